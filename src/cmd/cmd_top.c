/*
 * `mooncake top`: a live view of a cluster, from the master's metrics: memory, objects, what
 * happens each second, evictions, and each node's fill.
 */
#include "cmd/admin_client.h"
#include "cmd/cmd.h"
#include "master/metrics_text.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

struct top_options {
    struct mc_admin_options reach;
    uint64_t interval_ms, count;
};

#define OPT(...) MC_OPTION(struct top_options, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_ADMIN_OPTIONS(struct top_options),
    MC_OPTION_AS(struct top_options, DURATION, "interval", interval_ms, .default_value = "1s",
                 .min = 50, .max = 3600000, .doc = "time between two looks"),
    OPT(U64, count, .default_value = "0", .doc = "how many looks; 0 = until interrupted"),
};

const struct mc_option_set mc_top_options = {
    .program = "mooncake top",
    .synopsis = "[options]",
    .about = "Shows a cluster live: memory, objects, operations a second, evictions, and how full "
             "each node is.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static const char program[] = "mooncake top";

/* The counters whose rate is shown; a batch counts with its items. */
static const struct {
    const char *label;
    const char *single;
    const char *batch;
} rates[] = {
    {"put", "master_put_start_requests_total", "master_batch_put_start_items_total"},
    {"get", "master_get_replica_list_requests_total", "master_batch_get_replica_list_items_total"},
    {"exist", "master_exist_key_requests_total", "master_batch_exist_key_items_total"},
    {"remove", "master_remove_requests_total", NULL},
    {"ping", "master_ping_requests_total", NULL},
    {"evicted", "master_evicted_key_count", NULL},
};

struct view {
    int64_t before[MC_ARRAY_LEN(rates)];
    uint64_t before_ns;
    bool on_terminal;
};

static void put_bar(struct mc_buf *out, uint64_t part, uint64_t whole) {
    enum { WIDTH = 32 };
    size_t filled = whole ? (size_t)((double)part / (double)whole * WIDTH + 0.5) : 0;
    for (size_t i = 0; i < WIDTH; i++) {
        mc_buf_puts(out, i < filled ? "\u2588" : "\u2591");
    }
}

static void put_size_line(struct mc_buf *out, const char *name, uint64_t used, uint64_t capacity) {
    mc_buf_printf(out, "  %-24s ", name);
    put_bar(out, used, capacity);
    mc_buf_printf(out, " %5.1f %%  ", 100 * mc_rate(used, capacity));
    mc_format_size(out, used);
    mc_buf_puts(out, " of ");
    mc_format_size(out, capacity);
    mc_buf_putc(out, '\n');
}

static void put_rates(struct view *view, const char *metrics, struct mc_buf *out) {
    uint64_t now_ns = mc_now_ns(mc_clock_system());
    double seconds = view->before_ns ? (double)(now_ns - view->before_ns) / (double)MC_SEC : 0;
    view->before_ns = now_ns;
    mc_buf_puts(out, "\n  keys a second ");
    for (size_t i = 0; i < MC_ARRAY_LEN(rates); i++) {
        int64_t value = mc_metrics_text_value(metrics, rates[i].single);
        value += rates[i].batch ? mc_metrics_text_value(metrics, rates[i].batch) : 0;
        double rate = seconds > 0 ? (double)(value - view->before[i]) / seconds : 0;
        mc_buf_printf(out, "  %s %.0f", rates[i].label, rate);
        view->before[i] = value;
    }
    mc_buf_puts(out, "\n\n");
}

static enum mc_status put_segments(const struct mc_admin *admin, struct mc_buf *out) {
    struct mc_buf body = {0};
    enum mc_status status = mc_admin_get_or_say(program, admin, "/get_segments_detail", &body);
    json_t *answer = status == MC_OK ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    const json_t *segments = json_object_get(answer, "segments");
    for (size_t i = 0; i < json_array_size(segments); i++) {
        const json_t *segment = json_array_get(segments, i);
        const char *name = json_string_value(json_object_get(segment, "segment_name"));
        put_size_line(
            out, name ? name : "?",
            (uint64_t)json_integer_value(json_object_get(segment, "allocator_used_bytes")),
            (uint64_t)json_integer_value(json_object_get(segment, "allocator_capacity_bytes")));
    }
    json_decref(answer);
    mc_buf_free(&body);
    return status;
}

/* Draws one look at the cluster. */
static enum mc_status look(struct view *view, const struct mc_admin *admin) {
    struct mc_buf metrics = {0}, out = {0};
    enum mc_status status = mc_admin_get_or_say(program, admin, "/metrics", &metrics);
    if (status == MC_OK) {
        struct mc_cluster_state state;
        const char *text = mc_buf_cstr(&metrics);
        mc_cluster_state_from_text(text, &state);
        mc_buf_puts(&out, view->on_terminal ? "\x1b[H\x1b[2J" : "");
        mc_buf_printf(&out, "mooncake at %s: %llu objects, %lld clients, %llu evicted so far\n\n",
                      admin->address, (unsigned long long)state.keys,
                      (long long)mc_metrics_text_value(text, "master_active_clients"),
                      (unsigned long long)state.evicted_keys);
        put_size_line(&out, "memory", state.allocated_bytes, state.capacity_bytes);
        mc_buf_printf(
            &out, "  hits (LRU)               %.1f %%; twice the memory would give %.1f %%\n",
            (double)mc_metrics_text_value(text, "master_mrc_same_memory_hit_ppm") / 1e4,
            (double)mc_metrics_text_value(text, "master_mrc_double_memory_hit_ppm") / 1e4);
        put_rates(view, text, &out);
        status = put_segments(admin, &out);
        fwrite(out.data, 1, out.len, stdout);
        fflush(stdout);
    }
    mc_buf_free(&metrics);
    mc_buf_free(&out);
    return status;
}

int mc_cmd_top(int argc, char **argv) {
    struct top_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse_no_words(&mc_top_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_admin admin;
    struct view view = {.on_terminal = isatty(STDOUT_FILENO)};
    exit_status = mc_admin_find_or_say(program, &options.reach, &admin);
    mc_cmd_catch_signals();
    for (uint64_t i = 0; exit_status == 0 && (options.count == 0 || i < options.count); i++) {
        if (i > 0 && mc_cmd_wait_for_signal(options.interval_ms)) {
            break;
        }
        exit_status = look(&view, &admin) == MC_OK ? 0 : MC_EXIT_FAILED;
    }
    mc_options_free(&result);
    return exit_status;
}
