/*
 * What a transport and its rails have counted, by name. Everything is counted once, at the rail;
 * the lines of a transport are sums made when somebody asks.
 */
#include <stdio.h>

#include "te/internal.h"

static const char *const op_names[2] = {[MC_TRANSFER_READ] = "read", [MC_TRANSFER_WRITE] = "write"};
static const char *const priority_names[MC_PRIORITIES] = {"high", "medium", "low"};

/* ---- sums ---- */

/* The address of d->sums[op] says which transport and which direction. */
static int64_t sum(const struct mc_dispatch_sum *at, bool of_bytes) {
    const struct mc_dispatch *d = at->dispatch;
    int64_t total = 0;
    for (unsigned i = 0; i < d->rail_count; i++) {
        const struct mc_rail *rail = &d->rails[i];
        for (unsigned p = 0; p < MC_PRIORITIES; p++) {
            const struct mc_rail_moved *moved = &rail->moved[at->op][p];
            total += mc_metric_get(of_bytes ? &moved->bytes : &moved->slices);
        }
    }
    return total;
}
static int64_t sum_bytes(void *arg) {
    return sum(arg, true);
}
static int64_t sum_slices(void *arg) {
    return sum(arg, false);
}
static int64_t sum_errors(void *arg) {
    const struct mc_dispatch *d = arg;
    int64_t total = 0;
    for (unsigned i = 0; i < d->rail_count; i++) {
        total += mc_metric_get(&d->rails[i].errors);
    }
    return total;
}

/* ---- rails ---- */

static int64_t rail_bandwidth(void *arg) {
    return (int64_t)mc_rail_bandwidth(arg);
}
static int64_t rail_latency(void *arg) {
    const struct mc_rail *rail = arg;
    return (int64_t)atomic_load_explicit(&rail->latency_ns, memory_order_relaxed);
}
static int64_t rail_inflight(void *arg) {
    return (int64_t)mc_rail_inflight(arg);
}
static int64_t rail_state(void *arg) {
    const struct mc_rail *rail = arg;
    if (!atomic_load_explicit(&rail->up, memory_order_relaxed)) {
        return 3;
    }
    return mc_health_state(&rail->health, mc_now_ns(mc_clock_system()));
}

static void register_rail(struct mc_rail *rail, const char *transport, struct mc_metrics *m) {
    char labels[192], base[128];
    snprintf(base, sizeof(base), "transport=\"%s\",rail=\"%s\"", transport, rail->info.name);
    for (size_t op = 0; op < 2; op++) {
        for (size_t p = 0; p < MC_PRIORITIES; p++) {
            snprintf(labels, sizeof(labels), "%s,op=\"%s\",priority=\"%s\"", base, op_names[op],
                     priority_names[p]);
            mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_rail_bytes_total", labels,
                                "bytes moved by completed slices", &rail->moved[op][p].bytes);
            mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_rail_slices_total", labels,
                                "slices completed", &rail->moved[op][p].slices);
        }
    }
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_rail_errors_total", base,
                        "slices that ended with an error, to be retried or not", &rail->errors);
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_rail_probes_total", base,
                        "slices sent to try a rail that paused or was idle", &rail->probes);
    mc_metrics_register(m, MC_METRIC_HISTOGRAM, "mooncake_te_rail_latency_microseconds", base,
                        "time from post to completion, of measured slices", &rail->latency);
    mc_metrics_register_fn(m, MC_METRIC_GAUGE, "mooncake_te_rail_bandwidth_bytes", base,
                           "measured bytes a second; nominal or 0 before the first slice",
                           rail_bandwidth, rail);
    mc_metrics_register_fn(m, MC_METRIC_GAUGE, "mooncake_te_rail_latency_nanoseconds", base,
                           "least latency seen lately", rail_latency, rail);
    mc_metrics_register_fn(m, MC_METRIC_GAUGE, "mooncake_te_rail_inflight_bytes", base,
                           "bytes posted and not complete", rail_inflight, rail);
    mc_metrics_register_fn(m, MC_METRIC_GAUGE, "mooncake_te_rail_state", base,
                           "0 = healthy, 1 = paused, 2 = probing, 3 = down", rail_state, rail);
}

void mc_dispatch_register(struct mc_dispatch *d, struct mc_metrics *m) {
    const char *transport = d->transport->ops->name;
    char labels[128];
    for (size_t op = 0; op < 2; op++) {
        d->sums[op] = (struct mc_dispatch_sum){d, (enum mc_transfer_op)op};
        snprintf(labels, sizeof(labels), "transport=\"%s\",op=\"%s\"", transport, op_names[op]);
        mc_metrics_register_fn(m, MC_METRIC_COUNTER, "mooncake_te_transfer_bytes_total", labels,
                               "bytes moved by completed slices", sum_bytes, &d->sums[op]);
        mc_metrics_register_fn(m, MC_METRIC_COUNTER, "mooncake_te_slices_total", labels,
                               "slices completed", sum_slices, &d->sums[op]);
    }
    snprintf(labels, sizeof(labels), "transport=\"%s\"", transport);
    mc_metrics_register_fn(m, MC_METRIC_COUNTER, "mooncake_te_slice_failures_total", labels,
                           "slices that a transport failed", sum_errors, d);
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_slice_retries_total", labels,
                        "failed slices posted again on the same transport", &d->retries);
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_slice_failovers_total", labels,
                        "failed slices that went to another transport", &d->failovers);
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_slices_queued_total", labels,
                        "slices that waited in the engine for a rail", &d->queued);
    for (unsigned i = 0; i < d->rail_count; i++) {
        register_rail(&d->rails[i], transport, m);
    }
}
