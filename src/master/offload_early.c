/*
 * Offload above a watermark: while memory is fuller than offload_high_watermark_ratio, the objects
 * that nobody asked for for longest are queued for the SSDs, so that eviction, when it comes, drops
 * memory and no objects, and what lives for a short time or is read all the time is never written.
 *
 * Each shard's lists are ordered by lease end; a hand in each says up to where they were looked at,
 * and moves one object a visit, round the shards, so that the whole index is taken about in the
 * order of eviction. What was passed (it is on disk, will die, or its node has no SSD) is not
 * looked at again before it is asked for; eviction sees to it. The hands stand still while the
 * queues are long enough to keep the disks busy: what is queued early is not what is coldest later.
 */
#include "master/core.h"
#include "master/disks.h"

#define QUEUE_ENOUGH   4096u /* two heartbeats' worth */
#define LOOKS_PER_TICK 2048u

static bool above_watermark(struct mc_master *m) {
    uint64_t used, capacity, segments;
    mc_segments_usage(m, &used, &capacity, &segments);
    return (double)used > (double)capacity * m->config.offload_high_watermark_ratio;
}

/* Moves the hand of one list; false at its end, or when what follows may still be read. */
static bool look_at_next(struct mc_call *call, struct mc_shard *shard, unsigned list) {
    struct mc_list *next = shard->offload_hand[list]->next;
    if (next == &shard->lists[list]) {
        return false;
    }
    struct mc_object *o = mc_container_of(next, struct mc_object, link);
    if (o->lease_until_ms > call->now_ms) {
        return false;
    }
    shard->offload_hand[list] = next;
    if (mc_object_drop_dead(call->m, shard, o) && !mc_offload_failed(o)) { /* eviction may retry */
        (void)mc_offload_queue(call, shard, o, call->m->config.offloading_queue_limit);
    }
    return true;
}

void mc_offload_early_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    if (!m->config.enable_offload || m->config.offload_high_watermark_ratio == 0 ||
        !above_watermark(m) || !mc_disks_want_more(m, QUEUE_ENOUGH)) {
        return;
    }
    for (unsigned i = 0; i < LOOKS_PER_TICK / 2; i++) {
        struct mc_shard *shard = &m->shards[m->offload_shard++ % MC_SHARDS];
        if (mc_shard_count(shard) == 0) {
            continue;
        }
        mc_lock_acquire(&shard->lock);
        (void)look_at_next(call, shard, MC_LIST_FRESH);
        (void)look_at_next(call, shard, MC_LIST_TOUCHED);
        mc_lock_release(&shard->lock);
    }
}
