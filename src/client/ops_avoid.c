/*
 * Nodes that could not be written to, and that new objects had better not be placed on for a while.
 *
 * A master takes up to its client ttl to notice that a node died; until then it goes on placing
 * objects there, and with a strategy that likes empty segments it does so for most of them. Clients
 * know sooner. They tell by entries of `preferred_segments` that begin with '!', before the node's
 * endpoint or segment name: our master then places nothing there; to upstream's such an entry is a
 * segment that does not exist, which it passes over, so that chance and time have to do.
 *
 * A few nodes are remembered; with more, the oldest goes. Looking costs one load while there is
 * none.
 */
#include "client/ops_internal.h"

#include <stdatomic.h>

#define AVOID_NS (10 * MC_SEC) /* the default ttl of clients at the master */

void mc_ops_avoid(struct mc_ops *ops, struct mc_str endpoint) {
    uint64_t until = mc_ops_now(ops) + AVOID_NS;
    if (endpoint.len >= sizeof(ops->avoided[0].endpoint)) {
        return;
    }
    pthread_mutex_lock(&ops->lock);
    struct mc_ops_avoided *slot = &ops->avoided[0];
    for (size_t i = 0; i < MC_OPS_AVOID_MAX; i++) {
        struct mc_ops_avoided *a = &ops->avoided[i];
        if (mc_str_eq((struct mc_str){a->endpoint, a->len}, endpoint)) {
            slot = a;
            break;
        }
        slot = a->until_ns < slot->until_ns ? a : slot;
    }
    memcpy(slot->endpoint, endpoint.ptr, endpoint.len);
    slot->len = endpoint.len;
    slot->until_ns = until;
    pthread_mutex_unlock(&ops->lock);
    /* relaxed: who comes too early to see it finds out for itself */
    atomic_store_explicit(&ops->avoid_until_ns, until, memory_order_relaxed);
}

size_t mc_ops_avoided(struct mc_ops *ops, struct mc_arena *arena,
                      struct mc_str out[MC_OPS_AVOID_MAX]) {
    uint64_t until = atomic_load_explicit(&ops->avoid_until_ns, memory_order_relaxed);
    uint64_t now = until == 0 ? 0 : mc_ops_now(ops);
    if (now >= until) {
        return 0;
    }
    size_t count = 0;
    pthread_mutex_lock(&ops->lock);
    for (size_t i = 0; i < MC_OPS_AVOID_MAX; i++) {
        const struct mc_ops_avoided *a = &ops->avoided[i];
        if (a->until_ns > now) {
            out[count++] = mc_arena_printf(arena, "!%.*s", (int)a->len, a->endpoint);
        }
    }
    pthread_mutex_unlock(&ops->lock);
    return count;
}
