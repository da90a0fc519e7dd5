/*
 * The budget of metadata: how much memory the index may take.
 *
 * What is counted is what is live: records with their keys, the tables that find them, groups, and
 * the allocators' notes of extents. Pages that the slabs keep for reuse follow the most that was
 * ever live, so this bounds them too. Counting is cheap where it happens (a number of each shard,
 * under its lock) and summed by the tick, so a limit is noticed up to a tick late, by as much as
 * the puts of 10 ms take.
 *
 * Near the limit the tick evicts as if memory of segments were short. At the limit new objects are
 * refused with NO_AVAILABLE_HANDLE, as where there is no room for their bytes, until something has
 * gone. Nothing that exists is touched: reads, ends of puts and removals go on.
 */
#include "master/core.h"

#define EXTENT_BYTES 32u /* of an allocator, each live extent */

uint64_t mc_metadata_bytes(struct mc_master *m) {
    uint64_t bytes = atomic_load_explicit(&m->group_bytes, memory_order_relaxed);
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        bytes += atomic_load_explicit(&m->shards[i].slab.live_bytes, memory_order_relaxed);
    }
    pthread_rwlock_rdlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count; i++) {
        bytes += EXTENT_BYTES * mc_allocator_count(m->segments[i]->allocator);
    }
    for (const struct mc_segment *s = m->retired; s; s = s->next_retired) {
        bytes += s->allocator ? EXTENT_BYTES * mc_allocator_count(s->allocator) : 0;
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return bytes;
}

void mc_budget_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    uint64_t limit = m->config.metadata_limit_bytes;
    if (limit == 0) {
        return;
    }
    double fill = (double)mc_metadata_bytes(m) / (double)limit;
    /* relaxed: a put that comes too early or late to see it is within what the head says */
    atomic_store_explicit(&m->metadata_full, fill >= 1, memory_order_relaxed);
    m->metadata_fill = fill;
}
