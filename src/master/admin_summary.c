/*
 * The one-line summary of the master's metrics, for /metrics/summary and the periodic log. See
 * master/admin.h.
 *
 * The values are read from the registry's own text: the summary can then never differ from
 * /metrics, and needs no second list of where a counter lives.
 */
#include "master/admin.h"
#include "master/metrics_text.h"

#include <stdio.h>

struct rate_name {
    const char *label;
    const char *metric; /* master_<metric>_requests_total and _failures_total */
};
static const struct rate_name rate_names[] = {
    {"PutStart", "put_start"},   {"PutEnd", "put_end"},  {"PutRevoke", "put_revoke"},
    {"Get", "get_replica_list"}, {"Exist", "exist_key"}, {"Del", "remove"},
    {"DelAll", "remove_all"},    {"Ping", "ping"},
};
static const struct rate_name batch_names[] = {
    {"PutStart", "batch_put_start"},   {"PutEnd", "batch_put_end"},
    {"PutRevoke", "batch_put_revoke"}, {"Get", "batch_get_replica_list"},
    {"ExistKey", "batch_exist_key"},
};
_Static_assert(2 * (MC_ARRAY_LEN(rate_names)) <= MC_SUMMARY_RATES, "each rate has two counters");

struct summary {
    const char *text;
    struct mc_summary_rates *rates;
    double seconds;
    struct mc_buf *out;
};

static int64_t counter(const struct summary *s, const char *metric, const char *suffix) {
    char name[128];
    snprintf(name, sizeof(name), "master_%s_%s", metric, suffix);
    return mc_metrics_text_value(s->text, name);
}

static void put_rates(struct summary *s) {
    for (size_t i = 0; i < MC_ARRAY_LEN(rate_names); i++) {
        int64_t all = counter(s, rate_names[i].metric, "requests_total");
        int64_t failed = counter(s, rate_names[i].metric, "failures_total");
        int64_t *seen = &s->rates->seen[2 * i];
        double all_rate = s->seconds > 0 ? (double)(all - seen[0]) / s->seconds : 0;
        double failed_rate = s->seconds > 0 ? (double)(failed - seen[1]) / s->seconds : 0;
        mc_buf_printf(s->out, "%s%s=%.2f/%.2f", i ? ", " : "", rate_names[i].label,
                      all_rate - failed_rate, all_rate);
        seen[0] = all;
        seen[1] = failed;
    }
}

static void put_batches(struct summary *s) {
    for (size_t i = 0; i < MC_ARRAY_LEN(batch_names); i++) {
        int64_t all = counter(s, batch_names[i].metric, "requests_total");
        int64_t failed = counter(s, batch_names[i].metric, "failures_total");
        int64_t items = counter(s, batch_names[i].metric, "items_total");
        int64_t failed_items = counter(s, batch_names[i].metric, "failed_items_total");
        mc_buf_printf(s->out, "%s%s:(Req=%lld/%lld, Item=%lld/%lld)", i ? ", " : "",
                      batch_names[i].label, (long long)(all - failed), (long long)all,
                      (long long)(items - failed_items), (long long)items);
    }
}

static void put_evictions(struct summary *s) {
    mc_buf_printf(
        s->out, " | Eviction: Success/Attempts=%lld/%lld, AllocFail=%lld, keys=%lld, size=",
        (long long)mc_metrics_text_value(s->text, "master_successful_evictions_total"),
        (long long)mc_metrics_text_value(s->text, "master_attempted_evictions_total"),
        (long long)mc_metrics_text_value(s->text, "master_put_start_alloc_failures_total"),
        (long long)mc_metrics_text_value(s->text, "master_evicted_key_count"));
    mc_format_size(s->out, (uint64_t)mc_metrics_text_value(s->text, "master_evicted_size_bytes"));
    mc_buf_printf(s->out, " | Discard: Released/Total=%lld/%lld, StagingSize=",
                  (long long)mc_metrics_text_value(s->text, "master_put_start_release_cnt"),
                  (long long)mc_metrics_text_value(s->text, "master_put_start_discard_cnt"));
    mc_format_size(s->out, (uint64_t)mc_metrics_text_value(
                               s->text, "master_put_start_discarded_staging_size"));
}

void mc_admin_summary(struct mc_master *master, struct mc_metrics *metrics,
                      struct mc_summary_rates *rates, struct mc_buf *out) {
    struct mc_master_totals totals;
    struct mc_buf text = {0};
    mc_master_totals(master, &totals);
    mc_metrics_print(metrics, &text);
    uint64_t now_ns = mc_now_ns(mc_clock_system());
    struct summary s = {.text = mc_buf_cstr(&text), .rates = rates, .out = out};
    s.seconds = rates->at_ns ? (double)(now_ns - rates->at_ns) / (double)MC_SEC : 0;
    rates->at_ns = now_ns;
    double percent = totals.capacity_bytes
                         ? 100.0 * (double)totals.allocated_bytes / (double)totals.capacity_bytes
                         : 0;
    mc_buf_puts(out, "role=leader, state=serving, service_ready=true, master={Mem Storage: ");
    mc_format_size(out, totals.allocated_bytes);
    mc_buf_puts(out, " / ");
    mc_format_size(out, totals.capacity_bytes);
    mc_buf_printf(out,
                  " (%.1f%%) | Keys: %llu (soft-pinned: %lld) | Clients: %llu | Segments: %llu",
                  percent, (unsigned long long)totals.keys,
                  (long long)mc_metrics_text_value(s.text, "master_soft_pin_key_count"),
                  (unsigned long long)totals.clients, (unsigned long long)totals.segments);
    mc_buf_puts(out, " | Requests (Success/Total per sec): ");
    put_rates(&s);
    mc_buf_puts(out, " | Batch Requests (Req=Success/Total, Item=Success/Total): ");
    put_batches(&s);
    put_evictions(&s);
    mc_buf_puts(out, "}");
    mc_buf_free(&text);
}
