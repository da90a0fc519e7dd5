/*
 * hot cache: copies of remote objects that this client reads again and again, in its own memory.
 *
 * A copy is known by key and version. Whoever reads asks the master first, as for any read, and is
 * told the version in the same step; a copy of that version is what the object is, byte for byte,
 * because a version never changes. So nothing has to be invalidated: what was replaced, removed or
 * has outlived its time is simply never asked for again, and goes when room is wanted.
 *
 * Bounded by bytes (what is being copied from at the moment it is dropped lives until then), the
 * least recently used goes first; an object is taken in when it has been read `admission` times
 * lately (a count-min sketch that halves itself), so that a scan leaves no trace. Thread safe; no
 * lock is held while bytes are copied.
 */
#ifndef MC_CLIENT_HOT_CACHE_H
#define MC_CLIENT_HOT_CACHE_H

#include "base/base.h"
#include "base/metrics.h"
#include "mooncake/store.h"

struct mc_hot_config {
    uint64_t bytes;         /* 0 = no cache; of values, keys and records */
    uint64_t largest_bytes; /* larger objects are not taken in */
    uint32_t admission;     /* 1 = at the first read */
};
struct mc_hot_counters {
    struct mc_metric hits, misses, fills, evictions, bytes;
};

struct mc_hot_cache;
struct mc_hot_cache *mc_hot_create(const struct mc_hot_config *config);
void mc_hot_destroy(struct mc_hot_cache *cache); /* every entry was put back */
struct mc_hot_counters *mc_hot_counters(struct mc_hot_cache *cache);

/* The bytes of this version, to be given back with mc_hot_put; NULL when it is not there. */
struct mc_hot_entry;
struct mc_hot_entry *mc_hot_get(struct mc_hot_cache *cache, struct mc_str key, uint64_t version,
                                const uint8_t **bytes, uint64_t *length);
void mc_hot_put(struct mc_hot_cache *cache, struct mc_hot_entry *entry);
/* What was found there is not the object after all. */
void mc_hot_drop(struct mc_hot_cache *cache, struct mc_str key, uint64_t version);
/* This version was read from afar. */
void mc_hot_offer(struct mc_hot_cache *cache, struct mc_str key, uint64_t version,
                  const struct mc_slice *slices, size_t count, uint64_t length);

#endif
