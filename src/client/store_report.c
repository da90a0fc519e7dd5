/*
 * A store's report of itself: with MC_STORE_CLIENT_METRIC_INTERVAL=N (upstream's word; 0, the
 * default, is never) its heartbeat logs two lines every N seconds. The first has what calls moved,
 * in all and, unless MC_STORE_CLIENT_METRIC_BANDWIDTH=0, a second since the last report; the other
 * the requests to the master. A time is `count/p95/most`, the two in microseconds and as upper
 * bounds of their buckets. MC_STORE_CLIENT_METRIC=0 turns reports off, too.
 */
#include "base/env.h"
#include "base/log.h"
#include "client/store_private.h"

#define LONGEST_S 86400

void mc_store_report_init(struct mc_store_report *r) {
    *r = (struct mc_store_report){.due_ns = MC_NO_DEADLINE};
    if (mc_env_bool("MC_STORE_CLIENT_METRIC", true)) {
        r->interval_ns = mc_env_u64("MC_STORE_CLIENT_METRIC_INTERVAL", 0, LONGEST_S, 0) * MC_SEC;
    }
    if (r->interval_ns > 0) {
        r->bandwidth = mc_env_bool("MC_STORE_CLIENT_METRIC_BANDWIDTH", true);
        r->last_ns = mc_now_ns(mc_clock_system());
        r->due_ns = r->last_ns + r->interval_ns;
    }
}

/* The upper bound of the bucket in which the `nth` value lies; the last bound that is a number for
 * those beyond it. */
static uint64_t bound_of(const uint64_t *buckets, const uint64_t *bounds, uint64_t nth) {
    uint64_t seen = 0;
    for (size_t i = 0;; i++) {
        seen += buckets[i];
        if (seen >= nth || bounds[i] == UINT64_MAX) {
            return bounds[i] == UINT64_MAX && i > 0 ? bounds[i - 1] : bounds[i];
        }
    }
}

static void print_times(struct mc_buf *out, const char *name, struct mc_steps *steps) {
    uint64_t buckets[MC_STEPS_MAX] = {0}, count = 0;
    for (size_t i = 0; i < MC_STEPS_MAX; i++) {
        buckets[i] = atomic_load_explicit(&steps->buckets[i], memory_order_relaxed);
        count += buckets[i];
    }
    if (count > 0) {
        mc_buf_printf(out, " %s=%llu/%llu/%llu", name, (unsigned long long)count,
                      (unsigned long long)bound_of(buckets, steps->bounds, count - count / 20),
                      (unsigned long long)bound_of(buckets, steps->bounds, count));
    }
}

void mc_store_report(struct mc_store *store, struct mc_store_report *r, uint64_t now_ns) {
    static const char *const TRANSFERS[MC_TRANSFERS] = {[MC_TRANSFER_PUT] = "put",
                                                        [MC_TRANSFER_GET] = "get",
                                                        [MC_TRANSFER_BATCH_PUT] = "batch_put",
                                                        [MC_TRANSFER_BATCH_GET] = "batch_get"};
    struct mc_ops_counters *c = mc_ops_counters(store->ops);
    int64_t read = mc_metric_get(&c->read_bytes), written = mc_metric_get(&c->written_bytes);
    double seconds = (double)(now_ns - r->last_ns) / 1e9;
    struct mc_buf line = {0};
    mc_buf_printf(&line, "read_bytes=%lld written_bytes=%lld", (long long)read, (long long)written);
    if (r->bandwidth && seconds > 0) {
        mc_buf_printf(&line, " read_bytes_per_s=%.0f written_bytes_per_s=%.0f",
                      (double)(read - r->read) / seconds, (double)(written - r->written) / seconds);
    }
    for (size_t i = 0; i < MC_TRANSFERS; i++) {
        print_times(&line, TRANSFERS[i], &store->counters.transfers[i]);
    }
    mc_info("client report name=%s %s", store->name, mc_buf_cstr(&line));
    mc_buf_clear(&line);
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        print_times(&line, mc_master_rpc_table()[i].name, &c->rpc[i].latency);
    }
    mc_info("client report name=%s requests:%s", store->name, mc_buf_cstr(&line));
    mc_buf_free(&line);
    r->read = read;
    r->written = written;
    r->last_ns = now_ns;
    r->due_ns = now_ns + r->interval_ns;
}
