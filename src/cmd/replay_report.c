/*
 * The report of a replay as text and as JSON. See cmd/replay_report.h; the page is in
 * replay_html.c.
 */
#include "cmd/replay_report.h"

#include <jansson.h>

static const struct mc_replay_sample *last_sample(const struct mc_replay_result *result) {
    return result->sample_count ? &result->samples[result->sample_count - 1] : NULL;
}

/* ---- JSON ---- */

static void set_u64(json_t *object, const char *name, uint64_t value) {
    json_object_set_new(object, name, json_integer((json_int_t)mc_min_u64(value, INT64_MAX)));
}
static void set_real(json_t *object, const char *name, double value) {
    json_object_set_new(object, name, json_real(value));
}

static void set_latency(json_t *object, const char *name, const struct mc_latencies *latencies) {
    json_t *inner = json_object();
    static const struct {
        const char *name;
        double q;
    } quantiles[] = {{"p50", .5}, {"p90", .9}, {"p99", .99}, {"p999", .999}, {"max", 1}};
    set_u64(inner, "count", latencies->count);
    for (size_t i = 0; i < MC_ARRAY_LEN(quantiles); i++) {
        set_u64(inner, quantiles[i].name, mc_latencies_at(latencies, quantiles[i].q));
    }
    json_object_set_new(object, name, inner);
}

static void set_cluster(json_t *object, const struct mc_replay_report *report) {
    json_object_set_new(object, "cluster", json_string(report->cluster));
    const struct mc_replay_sample *last = last_sample(report->result);
    if (last == NULL || !last->cluster.known) {
        return;
    }
    const struct mc_cluster_state *first = &report->result->samples[0].cluster;
    set_u64(object, "memory_used_bytes", last->cluster.allocated_bytes);
    set_u64(object, "memory_capacity_bytes", last->cluster.capacity_bytes);
    set_u64(object, "evicted_blocks", last->cluster.evicted_keys - first->evicted_keys);
    set_u64(object, "evicted_bytes", last->cluster.evicted_bytes - first->evicted_bytes);
}

void mc_replay_report_json(const struct mc_replay_report *report, struct mc_buf *out) {
    const struct mc_replay_result *r = report->result;
    json_t *object = json_object();
    json_object_set_new(object, "trace", json_string(report->trace->title));
    json_object_set_new(object, "model", json_string(report->model));
    set_u64(object, "block_bytes", report->block_bytes);
    set_u64(object, "concurrency", report->concurrency);
    set_real(object, "speed", report->speed);
    json_object_set_new(object, "complete", json_boolean(!r->stopped_early));
    set_u64(object, "requests", r->requests);
    set_u64(object, "blocks", r->total.blocks);
    set_u64(object, "input_tokens", r->total.tokens);
    set_real(object, "hit_rate_blocks", mc_rate(r->total.hit_blocks, r->total.blocks));
    set_real(object, "hit_rate_tokens", mc_rate(r->total.hit_tokens, r->total.tokens));
    set_real(object, "hit_rate_prefix_blocks", mc_rate(r->total.prefix_blocks, r->total.blocks));
    set_real(object, "infinite_cache_hit_rate_blocks", report->bound.hit_rate_blocks);
    set_real(object, "infinite_cache_hit_rate_tokens", report->bound.hit_rate_tokens);
    set_u64(object, "gets", r->gets);
    set_u64(object, "puts", r->puts);
    set_u64(object, "puts_refused", r->puts_refused);
    set_u64(object, "leases_expired", r->leases_expired);
    set_u64(object, "verified_bytes", r->verified_bytes);
    set_u64(object, "mismatches", r->mismatches);
    set_u64(object, "errors", r->errors);
    if (r->errors > 0) {
        json_object_set_new(object, "first_error", json_string(mc_status_name(r->first_error)));
    }
    set_real(object, "seconds", r->seconds);
    set_u64(object, "read_bytes", r->read_bytes);
    set_u64(object, "written_bytes", r->written_bytes);
    set_real(object, "read_gb_per_second",
             r->seconds > 0 ? (double)r->read_bytes / r->seconds / 1e9 : 0);
    set_real(object, "write_gb_per_second",
             r->seconds > 0 ? (double)r->written_bytes / r->seconds / 1e9 : 0);
    set_latency(object, "get_latency_us", &r->get_latency);
    set_latency(object, "put_latency_us", &r->put_latency);
    set_cluster(object, report);
    char *text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    mc_buf_puts(out, text);
    mc_buf_putc(out, '\n');
    free(text);
    json_decref(object);
}

/* ---- terminal ---- */

static void latency_line(struct mc_buf *out, const char *name,
                         const struct mc_latencies *latencies) {
    mc_buf_printf(out, "  %-14s p50 %.2f ms   p90 %.2f   p99 %.2f   p99.9 %.2f   max %.2f\n", name,
                  mc_latencies_at(latencies, .5) / 1e3, mc_latencies_at(latencies, .9) / 1e3,
                  mc_latencies_at(latencies, .99) / 1e3, mc_latencies_at(latencies, .999) / 1e3,
                  mc_latencies_at(latencies, 1) / 1e3);
}

static void cluster_lines(const struct mc_replay_report *report, struct mc_buf *out) {
    const struct mc_replay_sample *last = last_sample(report->result);
    if (last == NULL || !last->cluster.known) {
        mc_buf_puts(out,
                    "  memory         not known: the master's HTTP endpoint was not reached\n");
        return;
    }
    const struct mc_cluster_state *first = &report->result->samples[0].cluster;
    mc_buf_puts(out, "  memory         ");
    mc_format_size(out, last->cluster.allocated_bytes);
    mc_buf_puts(out, " of ");
    mc_format_size(out, last->cluster.capacity_bytes);
    mc_buf_printf(out, " in use, %llu blocks evicted\n",
                  (unsigned long long)(last->cluster.evicted_keys - first->evicted_keys));
}

void mc_replay_report_text(const struct mc_replay_report *report, struct mc_buf *out) {
    const struct mc_replay_result *r = report->result;
    mc_buf_printf(out, "\n%s: %llu requests%s, %llu block references in %.1f s\n",
                  report->trace->title, (unsigned long long)r->requests,
                  r->stopped_early ? " (stopped early)" : "", (unsigned long long)r->total.blocks,
                  r->seconds);
    mc_buf_printf(out, "  cluster        %s\n", report->cluster);
    mc_buf_puts(out, "  blocks         ");
    mc_format_size(out, report->block_bytes);
    mc_buf_printf(out, " each%s%s, %u requests at a time", report->model[0] ? ", preset " : "",
                  report->model, report->concurrency);
    if (report->speed > 0) {
        mc_buf_printf(out, ", %g times the trace's speed\n", report->speed);
    } else {
        mc_buf_puts(out, ", as fast as possible\n");
    }
    mc_buf_printf(
        out,
        "  hit rate       %.3f by blocks, %.3f by tokens (a cache without limit: %.3f, %.3f)\n",
        mc_rate(r->total.hit_blocks, r->total.blocks),
        mc_rate(r->total.hit_tokens, r->total.tokens), report->bound.hit_rate_blocks,
        report->bound.hit_rate_tokens);
    mc_buf_printf(out, "  gets           %llu blocks, ", (unsigned long long)r->gets);
    mc_format_size(out, r->read_bytes);
    mc_buf_puts(out, "; every byte verified: ");
    mc_format_size(out, r->verified_bytes);
    mc_buf_printf(out, " right, %llu blocks wrong", (unsigned long long)r->mismatches);
    if (r->leases_expired > 0) {
        mc_buf_printf(out, ", %llu leases ended before the read did",
                      (unsigned long long)r->leases_expired);
    }
    mc_buf_putc(out, '\n');
    mc_buf_printf(out, "  puts           %llu blocks, ", (unsigned long long)r->puts);
    mc_format_size(out, r->written_bytes);
    mc_buf_printf(out, "; %llu refused for lack of room\n", (unsigned long long)r->puts_refused);
    if (r->errors > 0) {
        mc_buf_printf(out, "  errors         %llu, the first: %s (%s)\n",
                      (unsigned long long)r->errors, mc_status_name(r->first_error),
                      mc_status_text(r->first_error));
    } else {
        mc_buf_puts(out, "  errors         0\n");
    }
    mc_buf_printf(out, "  throughput     read %.2f GB/s, write %.2f GB/s, %.0f requests/s\n",
                  r->seconds > 0 ? (double)r->read_bytes / r->seconds / 1e9 : 0,
                  r->seconds > 0 ? (double)r->written_bytes / r->seconds / 1e9 : 0,
                  r->seconds > 0 ? (double)r->requests / r->seconds : 0);
    latency_line(out, "get a request", &r->get_latency);
    latency_line(out, "put a request", &r->put_latency);
    cluster_lines(report, out);
}
