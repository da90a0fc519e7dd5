/*
 * `mooncake replay TRACE...`: a trace against a cluster, with a report. The engine is replay.c;
 * here are the options, the cluster and the files.
 */
#include "cmd/admin_client.h"
#include "cmd/cmd.h"
#include "cmd/local_cluster.h"
#include "cmd/presets.h"
#include "cmd/replay_report.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct replay_options {
    struct mc_cluster_options cluster;
    const char *admin, *model, *key_prefix, *json, *html;
    uint64_t block_bytes, node_bytes, buffer_bytes, requests, concurrency, nodes;
    double speed;
    bool progress;
};

#define OPT(...) MC_OPTION(struct replay_options, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_OPTION_AS(
        struct replay_options, STRING, "master", cluster.master,
        .doc =
            "host:port of the master of a running cluster; empty = start one on this machine for "
            "the run"),
    MC_OPTION_AS(struct replay_options, STRING, "metadata", cluster.metadata,
                 .default_value = "P2PHANDSHAKE",
                 .doc = "where engines find each other: P2PHANDSHAKE, http://host:port/metadata, "
                        "etcd://host:port or redis://host:port"),
    MC_OPTION_AS(struct replay_options, STRING, "host", cluster.host,
                 .doc = "address of this machine that others reach; empty = chosen"),
    MC_OPTION_AS(struct replay_options, STRING, "tenant", cluster.tenant,
                 .default_value = "default", .doc = "tenant whose objects are meant"),
    MC_OPTION_AS(struct replay_options, DURATION, "timeout", cluster.timeout_ms,
                 .default_value = "30s", .doc = "longest time of one operation"),
    OPT(STRING, admin,
        .doc = "host:port of the master's admin endpoint, for memory use and evictions; empty = "
               "as the master says, or port 9003 of its host"),
    OPT(STRING, model, .default_value = "demo",
        .doc = "size of a block: demo (32 bytes a token), llama-3.1-8b, llama-3.1-70b, qwen2.5-7b, "
               "qwen3-32b, deepseek-v3, kimi-k2"),
    OPT(SIZE, block_bytes, .default_value = "0", .doc = "size of a block, instead of a model"),
    OPT(U64, nodes, .default_value = "3", .min = 1, .max = MC_LOCAL_MAX_NODES,
        .doc = "node processes of the cluster that is started"),
    OPT(SIZE, node_bytes, .default_value = "0",
        .doc = "memory of each of them; 0 = room for the whole trace"),
    OPT(U64, concurrency, .default_value = "8", .min = 1, .max = MC_REPLAY_MAX_THREADS,
        .doc = "requests at a time"),
    OPT(DOUBLE, speed, .default_value = "0", .max = 1e6,
        .doc = "how much faster than the trace's own time; 0 = as fast as possible"),
    OPT(U64, requests, .default_value = "0", .doc = "only the first so many requests; 0 = all"),
    OPT(SIZE, buffer_bytes, .default_value = "16MB", .min = 1, .max = 1e12,
        .doc = "buffer of each of the concurrent requests; a longer one is several batches"),
    OPT(STRING, key_prefix,
        .doc = "what keys begin with; empty = another one in each run, so that runs do not meet"),
    OPT(STRING, json, .doc = "write the numbers to this file; - = standard output"),
    OPT(STRING, html, .doc = "write a page with plots to this file"),
    OPT(BOOL, progress, .default_value = "true", .doc = "show how far it is"),
};

const struct mc_option_set mc_replay_options = {
    .program = "mooncake replay",
    .synopsis = "[options] TRACE...",
    .about = "Replays traces (FAST'25 .jsonl, agentic .json, also .gz) against a cluster: one "
             "object a prefix block, every "
             "byte that is read is verified. Without --master it starts a cluster on this machine "
             "for the run.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

/* ---- sizes ---- */

static const char program[] = "mooncake replay";

static bool choose_block_bytes(const struct replay_options *o, const struct mc_trace *trace,
                               uint64_t *block_bytes, const char **model) {
    if (o->block_bytes > 0) {
        *block_bytes = o->block_bytes;
        *model = "";
        return true;
    }
    const struct mc_model_preset *preset = mc_model_preset_find(o->model);
    if (preset == NULL) {
        mc_cmd_fail(program, 0, "no model '%s'; see --help for those there are", o->model);
        return false;
    }
    *block_bytes = preset->bytes_per_token * trace->requests[0].block_tokens;
    *model = preset->name;
    return true;
}

static uint64_t available_memory(void) {
    uint64_t kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        unsigned long long value;
        if (sscanf(line, "MemAvailable: %llu kB", &value) == 1) {
            kib = value;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

/* Room for every distinct block below the eviction watermark, and some for the unevenness of random
 * placement. */
static uint64_t room_for(const struct mc_trace *trace, uint64_t block_bytes, uint64_t nodes) {
    uint64_t need = trace->distinct_count * block_bytes;
    uint64_t each = (need / nodes) * 13 / 10 + (64u << 20);
    return (each + (2u << 20) - 1) & ~(uint64_t)((2u << 20) - 1);
}

static bool choose_node_bytes(const struct replay_options *o, const struct mc_trace *trace,
                              uint64_t block_bytes, uint64_t *node_bytes) {
    *node_bytes = o->node_bytes > 0 ? o->node_bytes : room_for(trace, block_bytes, o->nodes);
    uint64_t available = available_memory();
    if (available == 0 || *node_bytes <= available / o->nodes * 9 / 10) {
        return true;
    }
    struct mc_buf want = {0}, have = {0};
    mc_format_size(&want, *node_bytes);
    mc_format_size(&have, available);
    mc_cmd_fail(program, 0,
                "%llu nodes of %s do not fit the %s that are free here. Choose a smaller "
                "--node-bytes (the cluster will "
                "evict), a smaller --block-bytes, or fewer --requests",
                (unsigned long long)o->nodes, mc_buf_cstr(&want), mc_buf_cstr(&have));
    mc_buf_free(&want);
    mc_buf_free(&have);
    return false;
}

/* ---- the cluster ---- */

struct target {
    struct mc_local_cluster *local; /* or NULL: a cluster that was there */
    struct mc_admin admin;
    bool has_admin;
    struct mc_buf metrics;
    struct mc_buf title;
};

static void state_of_target(void *ctx, struct mc_cluster_state *out) {
    struct target *t = ctx;
    mc_buf_clear(&t->metrics);
    *out = (struct mc_cluster_state){0};
    if (t->local != NULL) {
        mc_metrics_print(mc_master_service_metrics(mc_local_cluster_service(t->local)),
                         &t->metrics);
    } else {
        int http_status = 0;
        if (!t->has_admin ||
            mc_admin_get(&t->admin, "/metrics", &http_status, &t->metrics) != MC_OK ||
            http_status != 200) {
            t->has_admin = false; /* not asked again */
            return;
        }
    }
    mc_cluster_state_from_text(mc_buf_cstr(&t->metrics), out);
}

static enum mc_status reach_target(const struct replay_options *o, uint64_t node_bytes,
                                   struct target *t) {
    if (o->cluster.master[0] != '\0') {
        mc_buf_printf(&t->title, "the cluster of master %s", o->cluster.master);
        struct mc_admin_options reach = {o->cluster.master, o->admin};
        enum mc_status status = mc_admin_find(&reach, &t->admin);
        t->has_admin = status == MC_OK;
        return status == MC_ERR_NOT_FOUND ? MC_OK : status;
    }
    struct mc_local_cluster_config config = {.nodes = (unsigned)o->nodes, .node_bytes = node_bytes};
    mc_master_service_config_init(&config.master);
    config.master.rpc_host = "127.0.0.1";
    mc_buf_printf(&t->title, "an embedded master and %llu node processes of ",
                  (unsigned long long)o->nodes);
    mc_format_size(&t->title, node_bytes);
    return mc_local_cluster_start(program, &config, &t->local);
}

static void leave_target(struct target *t) {
    mc_local_cluster_stop(t->local);
    mc_buf_free(&t->metrics);
    mc_buf_free(&t->title);
}

/* ---- the report ---- */

static bool write_file(const char *path, const struct mc_buf *content) {
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "we");
    bool good = file != NULL && fwrite(content->data, 1, content->len, file) == content->len;
    if (file != NULL) {
        good = (to_stdout ? fflush(file) : fclose(file)) == 0 && good;
    }
    if (!good) {
        mc_cmd_fail(program, 0, "%s cannot be written: %s", path, strerror(errno));
    }
    return good;
}

static bool write_reports(const struct replay_options *o, const struct mc_replay_report *report) {
    struct mc_buf text = {0};
    bool good = true;
    bool json_on_stdout = strcmp(o->json, "-") == 0;
    mc_replay_report_text(report, &text);
    fwrite(text.data, 1, text.len, json_on_stdout ? stderr : stdout);
    if (o->json[0] != '\0') {
        mc_buf_clear(&text);
        mc_replay_report_json(report, &text);
        good = write_file(o->json, &text);
        if (good && !json_on_stdout) {
            printf("  numbers        %s\n", o->json);
        }
    }
    if (o->html[0] != '\0') {
        mc_buf_clear(&text);
        mc_replay_report_html(report, &text);
        bool written = write_file(o->html, &text);
        if (written) {
            fprintf(json_on_stdout ? stderr : stdout, "  page           %s\n", o->html);
        }
        good = good && written;
    }
    mc_buf_free(&text);
    return good;
}

/* ---- the run ---- */

static void random_prefix(char *out, size_t size) {
    struct mc_rng rng;
    mc_rng_seed_system(&rng);
    snprintf(out, size, "replay-%08llx/", (unsigned long long)(mc_rng_next(&rng) >> 32));
}

/* Runs against the target and reports; the exit status says whether everything that was read was
 * right. */
static int run_and_report(const struct replay_options *o, const struct mc_trace *trace,
                          uint64_t block_bytes, const char *model, struct target *target) {
    struct mc_cluster_options cluster = o->cluster;
    if (target->local != NULL) {
        cluster.master = mc_local_cluster_master(target->local);
        cluster.host = "127.0.0.1";
    }
    struct mc_store *store;
    if (mc_cmd_open_store(program, &cluster, &store) != MC_OK) {
        return MC_EXIT_FAILED;
    }
    char prefix[64];
    random_prefix(prefix, sizeof(prefix));
    struct mc_replay_config config = {.trace = trace,
                                      .store = store,
                                      .key_prefix =
                                          o->key_prefix[0] != '\0' ? o->key_prefix : prefix,
                                      .block_bytes = block_bytes,
                                      .batch_bytes = o->buffer_bytes,
                                      .speed = o->speed,
                                      .concurrency = (unsigned)o->concurrency,
                                      .cluster_state = state_of_target,
                                      .cluster_state_ctx = target,
                                      .progress = o->progress,
                                      .stop = mc_cmd_catch_signals()};
    struct mc_replay_result result;
    enum mc_status status = mc_replay_run(&config, &result);
    mc_store_close(store);
    if (status != MC_OK) {
        return mc_cmd_fail(program, MC_EXIT_FAILED, "the replay did not run: %s",
                           mc_status_text(status));
    }
    struct mc_replay_report report = {.trace = trace,
                                      .result = &result,
                                      .bound = mc_trace_infinite_cache(trace),
                                      .model = model,
                                      .block_bytes = block_bytes,
                                      .concurrency = (unsigned)o->concurrency,
                                      .speed = o->speed,
                                      .cluster = mc_buf_cstr(&target->title)};
    bool good = write_reports(o, &report) && result.mismatches == 0 && result.errors == 0 &&
                !result.stopped_early;
    mc_replay_result_free(&result);
    return good ? 0 : MC_EXIT_FAILED;
}

static int replay(const struct replay_options *o, const struct mc_trace *trace) {
    uint64_t block_bytes = 0, node_bytes = 0;
    const char *model = "";
    if (!choose_block_bytes(o, trace, &block_bytes, &model)) {
        return MC_EXIT_USAGE;
    }
    if (o->cluster.master[0] == '\0' && !choose_node_bytes(o, trace, block_bytes, &node_bytes)) {
        return MC_EXIT_FAILED;
    }
    struct target target = {0};
    int exit_status = MC_EXIT_FAILED;
    if (reach_target(o, node_bytes, &target) == MC_OK) {
        if (o->progress) {
            fprintf(stderr, "%s: %zu requests on %s\n", trace->title, trace->request_count,
                    mc_buf_cstr(&target.title));
        }
        exit_status = run_and_report(o, trace, block_bytes, model, &target);
    }
    leave_target(&target);
    return exit_status;
}

int mc_cmd_replay(int argc, char **argv) {
    struct replay_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_replay_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_trace trace;
    struct mc_buf error = {0};
    if (result.positional_count == 0) {
        exit_status = mc_cmd_fail(program, MC_EXIT_USAGE, "which trace? See --help");
    } else if (mc_trace_load((const char *const *)result.positional, result.positional_count,
                             &trace, &error) != MC_OK) {
        exit_status = mc_cmd_fail(program, MC_EXIT_FAILED, "%s", mc_buf_cstr(&error));
    } else {
        mc_trace_limit(&trace, options.requests > 0 ? options.requests : SIZE_MAX);
        mc_cmd_catch_signals();
        exit_status = replay(&options, &trace);
        mc_trace_free(&trace);
    }
    mc_buf_free(&error);
    mc_options_free(&result);
    return exit_status;
}
