/*
 * What the engine would do with a request, and why, in words. Asks the same functions that decide;
 * posts nothing.
 */
#include "te/internal.h"

static void say_size(struct mc_buf *out, uint64_t bytes) {
    mc_format_size(out, bytes);
}

static void say_time(struct mc_buf *out, double ns) {
    if (ns >= 1e6) {
        mc_buf_printf(out, "%.2f ms", ns / 1e6);
    } else {
        mc_buf_printf(out, "%.1f us", ns / 1e3);
    }
}

static void say_transport(struct mc_buf *out, const struct mc_route *route,
                          const struct mc_slice_op *whole, unsigned i,
                          const struct mc_transport *chosen) {
    const struct mc_dispatch *d = &route->slot->base.engine->dispatch[i];
    struct mc_transport *t = d->transport;
    mc_buf_printf(out, "  %-8s ", t->ops->name);
    if (route->cost[i] == UINT32_MAX) {
        mc_buf_puts(out, "no way to this peer\n");
        return;
    }
    mc_buf_printf(out, "cost %u, ", route->cost[i]);
    double ns = mc_dispatch_predict(d, route->slot, whole->length,
                                    mc_now_ns(route->slot->base.engine->clock));
    if (ns < 0) {
        mc_buf_puts(out, "not measured lately");
    } else {
        mc_buf_puts(out, "predicted ");
        say_time(out, ns);
    }
    if ((whole->devices & ~t->ops->devices) != 0) {
        mc_buf_puts(out, ", does not reach device memory");
    } else if (t->ops->serves != NULL && !t->ops->serves(t, &route->slot->base, whole)) {
        mc_buf_puts(out, ", does not serve this range");
    } else if (!mc_dispatch_is_up(d)) {
        mc_buf_puts(out, ", no rail is up");
    }
    mc_buf_puts(out, t == chosen ? "  <- chosen\n" : "\n");
}

static void say_rails(struct mc_buf *out, const struct mc_dispatch *d,
                      const struct mc_spray_reach *reach) {
    uint64_t now = mc_now_ns(d->transport->engine->clock);
    mc_buf_printf(out, "rails of %s:\n", d->transport->ops->name);
    for (unsigned i = 0; i < d->rail_count; i++) {
        const struct mc_rail *rail = &d->rails[i];
        mc_buf_printf(out, "  %-16s %-8s ", rail->info.name, mc_rail_state_name(rail, now));
        if (mc_rail_bandwidth(rail) > 0) {
            say_size(out, (uint64_t)mc_rail_bandwidth(rail));
            mc_buf_puts(out, "/s, latency ");
            say_time(out, atomic_load_explicit(&rail->latency_ns, memory_order_relaxed));
        } else {
            mc_buf_puts(out, "not measured");
        }
        mc_buf_puts(out, ", in flight ");
        say_size(out, mc_rail_inflight(rail));
        if ((reach->rails >> i & 1) == 0) {
            mc_buf_puts(out, ", out of reach or not allowed\n");
        } else {
            mc_buf_printf(out, ", %u %% farther\n", reach->distance[i] * MC_RAIL_STEP);
        }
    }
}

static const char *reason(const struct mc_engine *engine, const struct mc_policy_rule *rule,
                          const char *hint, const struct mc_transport *chosen) {
    if (hint != NULL && strcmp(hint, chosen->ops->name) == 0) {
        return "the request asks for it";
    }
    if (rule != NULL && rule->transport_count > 0) {
        return "the first that the rule lists and that can serve";
    }
    return engine->policy.fixed_order
               ? "the cheapest that can serve"
               : "the cheapest that can serve, or one measured to be twice as fast";
}

static void explain_route(struct mc_route *route, const struct mc_slice_op *whole,
                          const struct mc_transfer_request *r, struct mc_buf *out) {
    struct mc_engine *engine = route->slot->base.engine;
    uint8_t priority = r->intent == MC_INTENT_BACKGROUND ? MC_PRIORITY_LOW : r->priority;
    const struct mc_policy_rule *rule = mc_route_rule(route, whole, priority, r->intent);
    struct mc_transport *chosen = mc_route_hinted(route, whole, rule, r->transport_hint);
    mc_buf_printf(out, "rule: %s\ntransports:\n", rule == NULL ? "none, the default" : rule->name);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        say_transport(out, route, whole, i, chosen);
    }
    if (!mc_route_covers(route, whole->remote, whole->length)) {
        mc_buf_puts(out, "the peer is not known to have registered this range\n");
    }
    if (chosen == NULL) {
        mc_buf_puts(out, "nothing can serve this request\n");
        return;
    }
    const struct mc_dispatch *d = &engine->dispatch[chosen->index];
    struct mc_spray_reach reach;
    mc_dispatch_find_reach(d, whole, rule, &reach);
    mc_buf_printf(out, "why: %s\n", reason(engine, rule, r->transport_hint, chosen));
    say_rails(out, d, &reach);
    uint64_t each = mc_plan_slice_bytes(d, &reach, whole->length);
    mc_buf_printf(out, "slices: %llu of at most ",
                  (unsigned long long)((whole->length - 1) / each + 1));
    say_size(out, each);
    mc_buf_printf(out, ", %s\n",
                  d->sprayed ? "each to the rail where it is predicted to be complete first"
                             : "all by the one rail");
}

enum mc_status mc_engine_explain(struct mc_engine *engine, const struct mc_transfer_request *r,
                                 struct mc_buf *out) {
    struct mc_segment_slot *slot = mc_slot_acquire(engine, r->segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    if (r->length == 0) {
        mc_slot_release(slot);
        return MC_INVALID_PARAMS;
    }
    struct mc_slice_op whole = {.op = r->op,
                                .local = r->local,
                                .remote = r->remote_addr,
                                .length = r->length,
                                .segment = &slot->base};
    struct mc_route route;
    mc_route_open(&route, slot);
    whole.devices = mc_route_devices(&route, &whole);
    mc_buf_printf(out, "%s ", r->op == MC_TRANSFER_READ ? "read" : "write");
    say_size(out, r->length);
    mc_buf_printf(out, " %s %s\n", r->op == MC_TRANSFER_READ ? "from" : "to", slot->name);
    explain_route(&route, &whole, r, out);
    mc_route_close(&route);
    mc_slot_release(slot);
    return MC_OK;
}
