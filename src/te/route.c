/*
 * Routes: which transports can reach a segment at this moment, and the best of them for a slice.
 *
 * A route is made for each run of requests of one segment and for each slice that must go another
 * way: costs are asked once, and the choice is a walk over at most MC_TRANSPORT_MAX of them.
 */
#include "te/internal.h"

#define NO_FETCH_AFTER_FAILURE_NS (1 * MC_SEC)

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* Fetch first, unless that failed just now. */
static bool is_fresh(struct mc_segment_slot *slot) {
    if (atomic_load_explicit(&slot->stale, memory_order_relaxed) == 0 &&
        slot->base.engine->cache_descriptors) {
        return true;
    }
    uint64_t failed = atomic_load_explicit(&slot->refresh_failed_ns, memory_order_relaxed);
    return failed != 0 && now_ns() - failed < NO_FETCH_AFTER_FAILURE_NS;
}

void mc_route_open(struct mc_route *route, struct mc_segment_slot *slot) {
    struct mc_engine *engine = slot->base.engine;
    route->slot = slot;
    route->desc = NULL;
    route->buffer = NULL;
    route->fresh = true;
    route->sees_devices = atomic_load_explicit(&engine->has_devices, memory_order_relaxed);
    route->reach = 0;
    if (slot->base.id == MC_LOCAL_SEGMENT) {
        if (engine->local != NULL) {
            for (unsigned i = 0; i < engine->transport_count; i++) {
                route->cost[i] = i == engine->local->index ? 0 : UINT32_MAX;
            }
            route->reach = 1u << engine->local->index;
            return;
        }
        enum mc_status status = mc_slot_refresh(slot, MC_NO_DEADLINE); /* asks nobody */
        MC_ASSERT(status == MC_OK);
    } else {
        route->fresh = is_fresh(slot);
    }
    route->desc = mc_segment_desc(&slot->base);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        route->cost[i] = t->ops->cost(t, &slot->base, route->desc);
        route->reach |= (uint32_t)(route->cost[i] != UINT32_MAX) << i;
    }
    route->sees_devices |= route->desc->has_device_memory;
}

void mc_route_close(struct mc_route *route) {
    mc_peer_desc_put(route->desc);
    route->desc = NULL;
}

static const struct mc_peer_buffer *find_buffer(struct mc_route *route, uint64_t addr,
                                                uint64_t length) {
    const struct mc_peer_buffer *last = route->buffer;
    if (last == NULL || !mc_range_inside(addr, length, last->addr, last->length)) {
        route->buffer = mc_peer_desc_find(route->desc, addr, length);
    }
    return route->buffer;
}

bool mc_route_covers(struct mc_route *route, uint64_t addr, uint64_t length) {
    /* memcpy inside the engine looks the range up itself, and holds it while it copies. */
    return route->desc == NULL || find_buffer(route, addr, length) != NULL;
}

uint8_t mc_route_devices(struct mc_route *route, const struct mc_slice_op *slice) {
    struct mc_engine *engine = route->slot->base.engine;
    unsigned devices = 0;
    if (!route->sees_devices) {
        return 0;
    }
    if (atomic_load_explicit(&engine->has_devices, memory_order_relaxed)) {
        struct mc_device device;
        bool local = mc_memory_find_device(engine, (uint64_t)(uintptr_t)slice->local, slice->length,
                                           &device);
        devices |= local ? MC_DEVICE_LOCAL : 0u;
    }
    if (route->desc != NULL && route->desc->has_device_memory) {
        const struct mc_peer_buffer *b = find_buffer(route, slice->remote, slice->length);
        bool ours = route->desc->engine_id.hi != 0 || route->desc->engine_id.lo != 0;
        devices |= b == NULL || !b->on_device ? 0u : ours ? MC_DEVICE_REMOTE : MC_DEVICE_FOREIGN;
    }
    return (uint8_t)devices;
}

static inline bool can_serve(const struct mc_route *route, const struct mc_slice_op *slice,
                             unsigned i) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *t = engine->transports[i];
    return route->cost[i] != UINT32_MAX && (slice->tried_transports & (1u << i)) == 0 &&
           (slice->devices & ~t->ops->devices) == 0 && mc_dispatch_is_up(&engine->dispatch[i]) &&
           (t->ops->serves == NULL || t->ops->serves(t, &route->slot->base, slice));
}

struct mc_transport *mc_route_hinted(const struct mc_route *route, const struct mc_slice_op *slice,
                                     const struct mc_policy_rule *rule, const char *hint) {
    struct mc_engine *engine = route->slot->base.engine;
    for (unsigned i = 0; hint != NULL && i < engine->transport_count; i++) {
        if (strcmp(engine->transports[i]->ops->name, hint) == 0 && can_serve(route, slice, i)) {
            return engine->transports[i];
        }
    }
    return mc_route_choose(route, slice, rule);
}

/* What a rule lists, in its order. */
static __attribute__((noinline)) struct mc_transport *
choose_listed(const struct mc_route *route, const struct mc_slice_op *slice,
              const struct mc_policy_rule *rule) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *paused = NULL;
    for (unsigned n = 0; n < rule->transport_count; n++) {
        for (unsigned i = 0; i < engine->transport_count; i++) {
            if (strcmp(engine->transports[i]->ops->name, rule->transports[n]) != 0 ||
                !can_serve(route, slice, i)) {
                continue;
            }
            if (!mc_dispatch_is_paused(&engine->dispatch[i], route->slot)) {
                return engine->transports[i];
            }
            paused = paused == NULL ? engine->transports[i] : paused;
        }
    }
    if (paused == NULL && engine->stage != NULL && can_serve(route, slice, engine->stage->index)) {
        return engine->stage; /* a way to use what is listed */
    }
    return paused;
}

#define CLEARLY_FASTER 2.0 /* what was measured must differ so much to outweigh the cost */
#define COST_NS        1000.0

/* A dearer transport that was lately measured to be much faster than the cheapest. What was not
 * measured lately is taken to be as its cost says: so the cheapest is tried again by itself. */
static __attribute__((noinline)) struct mc_transport *find_faster(const struct mc_route *route,
                                                                  const struct mc_slice_op *slice,
                                                                  struct mc_transport *cheapest) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *best = cheapest;
    uint64_t now = mc_now_ns(engine->clock);
    double best_ns =
        mc_dispatch_predict(&engine->dispatch[cheapest->index], route->slot, slice->length, now);
    if (best_ns < 0) {
        return cheapest;
    }
    best_ns = (best_ns + COST_NS * route->cost[cheapest->index]) / CLEARLY_FASTER;
    for (unsigned i = 0; i < engine->transport_count; i++) {
        double ns =
            i == cheapest->index || !can_serve(route, slice, i)
                ? -1
                : mc_dispatch_predict(&engine->dispatch[i], route->slot, slice->length, now);
        if (ns >= 0 && ns + COST_NS * route->cost[i] < best_ns &&
            !mc_dispatch_is_paused(&engine->dispatch[i], route->slot)) {
            best = engine->transports[i];
            best_ns = ns + COST_NS * route->cost[i];
        }
    }
    return best;
}

struct mc_transport *mc_route_choose(const struct mc_route *route, const struct mc_slice_op *slice,
                                     const struct mc_policy_rule *rule) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *best = NULL, *paused = NULL;
    uint32_t best_cost = UINT32_MAX, paused_cost = UINT32_MAX;
    unsigned others = 0; /* that have ever carried anything */
    if (rule != NULL && rule->transport_count > 0) {
        return choose_listed(route, slice, rule);
    }
    for (uint32_t m = route->reach; m != 0; m &= m - 1) {
        unsigned i = (unsigned)__builtin_ctz(m);
        others += mc_dispatch_was_used(&engine->dispatch[i]);
        if (route->cost[i] >= best_cost || !can_serve(route, slice, i)) {
            continue;
        }
        if (mc_dispatch_is_paused(&engine->dispatch[i], route->slot)) {
            if (route->cost[i] < paused_cost) {
                paused = engine->transports[i];
                paused_cost = route->cost[i];
            }
            continue;
        }
        best = engine->transports[i];
        best_cost = route->cost[i];
    }
    if (best == NULL) {
        return paused; /* a bad way is better than none */
    }
    return others < 2 || engine->policy.fixed_order ? best : find_faster(route, slice, best);
}

/* ---- policy ---- */

static enum mc_locality locality_of(const struct mc_route *route) {
    const struct mc_engine *engine = route->slot->base.engine;
    if (route->slot->base.id == MC_LOCAL_SEGMENT) {
        return MC_SAME_PROCESS;
    }
    return engine->boot_id[0] != '\0' && strcmp(route->desc->boot_id, engine->boot_id) == 0
               ? MC_SAME_HOST
               : MC_REMOTE;
}

const struct mc_policy_rule *mc_route_rule(struct mc_route *route, const struct mc_slice_op *whole,
                                           uint8_t priority, uint8_t intent) {
    struct mc_engine *engine = route->slot->base.engine;
    char local[64] = "";
    if (engine->policy.rule_count == 0) {
        return NULL;
    }
    struct mc_policy_question q = {.is_file = route->desc != NULL && route->desc->files != NULL,
                                   .locality = locality_of(route),
                                   .priority = priority,
                                   .intent = intent,
                                   .local_memory = local,
                                   .size = whole->length};
    if (mc_policy_asks_memory(&engine->policy)) {
        struct mc_memory *memory =
            mc_memory_acquire_any(engine, (uint64_t)(uintptr_t)whole->local, whole->length);
        if (memory != NULL) {
            memcpy(local, memory->location, sizeof(local));
            mc_memory_release(memory);
        }
        const struct mc_peer_buffer *remote =
            route->desc == NULL ? NULL : find_buffer(route, whole->remote, whole->length);
        q.remote_memory = remote == NULL ? NULL : remote->location;
    }
    return mc_policy_match(&engine->policy, &q);
}
