/*
 * `mooncake simulate cache --trace F`: what eviction policies would hit of a trace, beside the
 * offline optimum. Nothing runs and nothing is stored; a policy is the one of the live master.
 */
#include "cmd/cache_sim.h"
#include "cmd/cmd.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define LIST_MAX 64u

struct simulate_options {
    const char *trace, *policy, *capacity, *json;
    uint64_t requests, attention_tokens;
    bool ignore_cost;
};

#define OPT(...) MC_OPTION(struct simulate_options, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(STRING, trace,
        .doc = "a trace (FAST'25 .jsonl, agentic .json, also .gz); more may follow the options"),
    OPT(STRING, policy, .default_value = "lru,s3fifo,own,opt",
        .doc = "policies, separated by commas: lru, s3fifo, chain (also called own), opt (the "
               "offline optimum)"),
    OPT(STRING, capacity, .default_value = "1000,3000,10000,30000,50000",
        .doc = "capacities in blocks, separated by commas"),
    OPT(STRING, json,
        .doc = "write a list of {policy, capacity, prefix_hit, block_hit} to this file; - = "
               "standard output"),
    OPT(U64, requests, .default_value = "0", .doc = "only the first so many requests; 0 = all"),
    OPT(U64, attention_tokens, .default_value = "0",
        .doc =
            "the place in a prompt, in tokens, at which attention takes as much computing as the "
            "rest of the model: own takes recomputing into account, and a third table says how "
            "much of it hits save; 0 = every token costs the same"),
    OPT(BOOL, ignore_cost, .default_value = "false",
        .doc = "own does not know of attention_tokens, which only counts in the third table"),
};

const struct mc_option_set mc_simulate_options = {
    .program = "mooncake simulate",
    .synopsis = "cache [options] [TRACE...]",
    .about = "Simulates caches of prefix blocks under a trace and prints the share of blocks that "
             "are hit: of the prefix of a request up to the first block that is not there, and of "
             "all blocks. Several traces are merged by time; their blocks are kept apart.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static const char program[] = "mooncake simulate";

struct plan {
    char *names[LIST_MAX];
    const struct mc_policy_ops *policies[LIST_MAX]; /* NULL = the optimum */
    size_t policy_count;
    uint64_t capacities[LIST_MAX];
    size_t capacity_count;
    struct mc_cache_hits hits[LIST_MAX][LIST_MAX];
};

/* Calls add for each part between commas; false after it said why not. */
static bool each_part(const char *list, struct plan *plan,
                      bool (*add)(struct plan *plan, const char *part)) {
    char *copy = strdup(list), *state = NULL;
    bool good = copy != NULL;
    for (char *part = strtok_r(copy, ", ", &state); part && good;
         part = strtok_r(NULL, ", ", &state)) {
        good = add(plan, part);
    }
    free(copy);
    return good;
}

static bool add_policy(struct plan *plan, const char *name) {
    bool optimum = strcmp(name, "opt") == 0;
    const struct mc_policy_ops *ops = mc_policy_find(name);
    if (!ops && !optimum) {
        mc_cmd_fail(program, 0, "no policy '%s'; there are lru, s3fifo, chain (own), opt", name);
        return false;
    }
    if (plan->policy_count == LIST_MAX) {
        mc_cmd_fail(program, 0, "more than %u policies", LIST_MAX);
        return false;
    }
    plan->names[plan->policy_count] = strdup(name);
    plan->policies[plan->policy_count++] = ops;
    return true;
}

static bool add_capacity(struct plan *plan, const char *text) {
    char *end = NULL;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || *end || value == 0 || value > UINT32_MAX || text[0] == '-') {
        mc_cmd_fail(program, 0, "'%s' is no capacity: a number of blocks from 1 to %u", text,
                    UINT32_MAX);
        return false;
    }
    if (plan->capacity_count == LIST_MAX) {
        mc_cmd_fail(program, 0, "more than %u capacities", LIST_MAX);
        return false;
    }
    plan->capacities[plan->capacity_count++] = value;
    return true;
}

static void run(const struct simulate_options *o, const struct mc_trace *trace, struct plan *plan) {
    for (size_t p = 0; p < plan->policy_count; p++) {
        for (size_t c = 0; c < plan->capacity_count; c++) {
            struct mc_cache_setup setup = {.capacity = plan->capacities[c],
                                           .attention_tokens = (double)o->attention_tokens,
                                           .cost_told = !o->ignore_cost};
            plan->hits[p][c] = plan->policies[p]
                                   ? mc_cache_simulate(trace, plan->policies[p], &setup)
                                   : mc_cache_optimum(trace, &setup);
        }
    }
}

enum rate { PREFIX, BLOCK, SAVED };

static double rate_of(const struct mc_cache_hits *hits, enum rate rate) {
    return rate == PREFIX ? hits->prefix_rate : rate == BLOCK ? hits->block_rate : hits->saved_rate;
}

static void print_table(FILE *out, const struct plan *plan, const char *title, enum rate rate) {
    fprintf(out, "\n%s\n%10s", title, "blocks");
    for (size_t p = 0; p < plan->policy_count; p++) {
        fprintf(out, " %8s", plan->names[p]);
    }
    fputc('\n', out);
    for (size_t c = 0; c < plan->capacity_count; c++) {
        fprintf(out, "%10llu", (unsigned long long)plan->capacities[c]);
        for (size_t p = 0; p < plan->policy_count; p++) {
            fprintf(out, " %8.4f", rate_of(&plan->hits[p][c], rate));
        }
        fputc('\n', out);
    }
}

static bool write_json(const struct plan *plan, const char *path) {
    json_t *list = json_array();
    for (size_t p = 0; p < plan->policy_count; p++) {
        for (size_t c = 0; c < plan->capacity_count; c++) {
            const struct mc_cache_hits *hits = &plan->hits[p][c];
            json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:f}", "policy", plan->names[p],
                                                  "capacity", (json_int_t)plan->capacities[c],
                                                  "prefix_hit", hits->prefix_rate, "block_hit",
                                                  hits->block_rate));
        }
    }
    FILE *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    bool good = file && json_dumpf(list, file, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0 &&
                fputc('\n', file) != EOF;
    if (file) {
        good = (file == stdout ? fflush(file) : fclose(file)) == 0 && good;
    }
    json_decref(list);
    if (!good) {
        mc_cmd_fail(program, 0, "%s cannot be written: %s", path, strerror(errno));
    }
    return good;
}

static int simulate(const struct simulate_options *o, const struct mc_trace *trace,
                    struct plan *plan) {
    run(o, trace, plan);
    FILE *out = strcmp(o->json, "-") == 0 ? stderr : stdout;
    fprintf(out, "%s: %zu requests, %zu blocks, %zu distinct; a cache without limit hits %.4f\n",
            trace->title, trace->request_count, trace->block_count, trace->distinct_count,
            mc_trace_infinite_cache(trace).hit_rate_blocks);
    print_table(out, plan, "prefix hits", PREFIX);
    print_table(out, plan, "block hits", BLOCK);
    if (o->attention_tokens) {
        print_table(out, plan, "recomputing saved", SAVED);
    }
    return o->json[0] == '\0' || write_json(plan, o->json) ? 0 : MC_EXIT_FAILED;
}

static int load_and_simulate(const struct simulate_options *o, char **paths, size_t count,
                             struct plan *plan) {
    if (count == 0) {
        return mc_cmd_fail(program, MC_EXIT_USAGE, "which trace? See --help");
    }
    struct mc_trace trace;
    struct mc_buf error = {0};
    if (mc_trace_load((const char *const *)paths, count, &trace, &error) != MC_OK) {
        mc_cmd_fail(program, 0, "%s", mc_buf_cstr(&error));
        mc_buf_free(&error);
        return MC_EXIT_FAILED;
    }
    mc_trace_limit(&trace, o->requests ? o->requests : SIZE_MAX);
    int exit_status = simulate(o, &trace, plan);
    mc_trace_free(&trace);
    mc_buf_free(&error);
    return exit_status;
}

/* The traces of --trace and behind the options, in `paths`. */
static size_t collect_paths(const struct simulate_options *o, const struct mc_option_result *result,
                            char **paths) {
    size_t count = 0;
    if (o->trace[0]) {
        paths[count++] = (char *)o->trace;
    }
    for (size_t i = 1; i < result->positional_count; i++) {
        paths[count++] = result->positional[i];
    }
    return count;
}

int mc_cmd_simulate(int argc, char **argv) {
    struct simulate_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_simulate_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct plan *plan = mc_zalloc(sizeof(*plan));
    char **paths = mc_alloc((result.positional_count + 1) * sizeof(*paths));
    if (result.positional_count == 0 || strcmp(result.positional[0], "cache") != 0) {
        exit_status = mc_cmd_fail(program, MC_EXIT_USAGE, "what to simulate? There is: cache");
    } else if (!each_part(options.policy, plan, add_policy) ||
               !each_part(options.capacity, plan, add_capacity)) {
        exit_status = MC_EXIT_USAGE;
    } else if (plan->policy_count == 0 || plan->capacity_count == 0) {
        exit_status = mc_cmd_fail(program, MC_EXIT_USAGE, "no %s is named",
                                  plan->policy_count == 0 ? "policy" : "capacity");
    } else {
        exit_status =
            load_and_simulate(&options, paths, collect_paths(&options, &result, paths), plan);
    }
    for (size_t p = 0; p < plan->policy_count; p++) {
        free(plan->names[p]);
    }
    free(plan);
    free(paths);
    mc_options_free(&result);
    return exit_status;
}
