/* What the backends of the tier share: rings for readers, the order of eviction, and the keys that
 * a backend gave up. Private to the room. */
#ifndef MC_TIER_COMMON_H
#define MC_TIER_COMMON_H

#include <pthread.h>

#include "io/file.h"
#include "policy/policy.h"
#include "tier/backend.h"
#include "tier/index.h"

/* ---- rings: concurrent readers each take one; more than this many wait for one ---- */

#define MC_TIER_RINGS 8u

struct mc_tier_rings {
    pthread_mutex_t lock;
    pthread_cond_t free;
    struct mc_file_ring *rings[MC_TIER_RINGS];
    unsigned free_count;
    void *memory; /* that a ring registers when it is taken first; NULL = none */
    size_t bytes;
};
void mc_tier_rings_init(struct mc_tier_rings *rings, unsigned depth);
/* Reads will go to this memory most of the time; it outlives the rings. */
void mc_tier_rings_use(struct mc_tier_rings *rings, void *memory, size_t bytes);
void mc_tier_rings_fini(struct mc_tier_rings *rings); /* all have been given back */
struct mc_file_ring *mc_tier_rings_take(struct mc_tier_rings *rings);
void mc_tier_rings_give(struct mc_tier_rings *rings, struct mc_file_ring *ring);

/* ---- order: which unit (an object, a bucket) goes first. Not thread safe ---- */

struct mc_tier_order {
    struct mc_policy *policy; /* NULL: nothing is ever evicted */
    bool reads_count;
};
void mc_tier_order_init(struct mc_tier_order *order, enum mc_tier_eviction eviction);
void mc_tier_order_fini(struct mc_tier_order *order);
/* Units that were written together, in the order of the caller. */
void mc_tier_order_stored(struct mc_tier_order *order, const uint64_t *units, size_t count);
void mc_tier_order_read(struct mc_tier_order *order, const uint64_t *units, size_t count);
void mc_tier_order_removed(struct mc_tier_order *order, uint64_t unit);
/* Takes the next victim out; false when there is none. */
bool mc_tier_order_victim(struct mc_tier_order *order, uint64_t *unit);

/* ---- keys that were given up: (u32 length, bytes) one behind the other ---- */

void mc_tier_lost_add(struct mc_buf *lost, struct mc_str key);
size_t mc_tier_lost_count(const struct mc_buf *lost);
/* Tells config->lost of them; without locks. */
void mc_tier_lost_tell(const struct mc_tier_config *config, const struct mc_buf *lost);

/* ---- the disk ---- */

/* 90 % of what is free and ours. */
uint64_t mc_tier_disk_capacity(const char *path, uint64_t used_bytes);
bool mc_tier_disk_has(const char *path, uint64_t bytes);

static inline uint64_t mc_tier_round_up(uint64_t n) {
    return (n + MC_TIER_BLOCK - 1) / MC_TIER_BLOCK * MC_TIER_BLOCK;
}

#endif
