/* What the files of the backend `offset` share. Private to the room; see tier/offset.c. */
#ifndef MC_TIER_OFFSET_H
#define MC_TIER_OFFSET_H

#include "tier/common.h"
#include "tier/offset_meta.h"

#define OFFSET_STAGING (16u << 20) /* written at once, or one record */

struct offset_backend {
    struct mc_tier_backend face;
    const struct mc_tier_config *config;
    uint64_t capacity;
    unsigned shift; /* an entry's `offset` and the allocator's units */
    int fd, plain;  /* of the data: with O_DIRECT where there is; through the page cache */
    bool direct;

    pthread_mutex_t put_lock; /* one writer of data and .meta: guards what follows */
    char *staging;
    struct mc_file_ring *put_ring;

    /* Guarded by face.lock, which is not held while data is read or written. */
    struct mc_tier_order order; /* of objects, by hash */
    struct mc_extents *extents; /* an entry's `disk` is the name of its piece */
    uint64_t asked_bytes, insert_seq;
    bool behind;    /* kv_cache.meta still names what was taken out */
    size_t leaving; /* taken out, and still read: their pieces are theirs, in the next .meta too */
    struct mc_tier_stats stats;

    struct mc_tier_rings rings;
};

static inline uint64_t offset_record_bytes(uint64_t key_len, uint64_t size) {
    return mc_record_value_at(key_len) + size;
}
/* Puts an entry where readers find it. Needs the lock. */
void offset_publish_locked(struct offset_backend *b, struct mc_tier_entry *entry);
/* Takes it out; its piece is free, and the entry freed, when nobody reads it. Needs the lock. */
void offset_drop_locked(struct offset_backend *b, struct mc_tier_entry *entry);
void offset_unuse_locked(struct offset_backend *b, struct mc_tier_entry *entry);
/* Writes kv_cache.meta: what is published is durable. Needs put_lock. */
enum mc_status offset_checkpoint(struct offset_backend *b);

/* offset_put.c */
void offset_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count);
/* offset_read.c */
void offset_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count);
/* offset_scan.c: opens the files, or makes them; drops what is not whole. */
enum mc_status offset_recover(struct offset_backend *b);

#endif
