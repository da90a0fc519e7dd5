/*
 * `mooncake bench`: how fast this machine puts and gets objects of one size, alone or in batches,
 * with every byte verified on request. Threads share one client. Each thread writes its own keys,
 * then reads them back, then removes them.
 */
#include "cmd/cmd.h"
#include "cmd/content.h"
#include "cmd/replay.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CALLS      1000ull
#define CALLS_MIN  4ull
#define BYTES_MOST 256000000ull /* of all objects, when nobody says how many */

struct bench_options {
    struct mc_cluster_options cluster;
    uint64_t value_bytes, batch, threads, count;
    bool verify, keep;
};

#define OPT(...) MC_OPTION(struct bench_options, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_CLUSTER_OPTIONS(struct bench_options),
    OPT(SIZE, value_bytes, .default_value = "64KB", .min = 1, .max = 1e12,
        .doc = "size of an object"),
    OPT(U64, batch, .default_value = "1", .min = 1, .max = 65536, .doc = "objects in one call"),
    OPT(U64, threads, .default_value = "1", .min = 1, .max = 256, .doc = "threads"),
    OPT(U64, count, .default_value = "0", .max = 1e9,
        .doc =
            "calls of each thread; 0 = 1000, but not more than put 256 MB into the cluster, and at "
            "least 4"),
    OPT(BOOL, verify, .default_value = "true", .doc = "compare every byte that is read"),
    OPT(BOOL, keep, .doc = "leave the objects in the cluster"),
};

const struct mc_option_set mc_bench_options = {
    .program = "mooncake bench",
    .synopsis = "[options]",
    .about =
        "Puts objects, gets them back and says how fast that was. Latencies are those of one call.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

enum phase { PHASE_PUT, PHASE_GET };

struct bench {
    const struct bench_options *options;
    struct mc_store *store;
    uint64_t run; /* part of every key */
    enum phase phase;
};

struct worker {
    const struct bench *bench;
    pthread_t thread;
    unsigned number;
    char *buffer;
    struct mc_store_item *items;
    struct mc_slice *slices;
    char (*keys)[64];
    uint32_t *us; /* of each call of this phase */
    uint64_t wrong, failed;
    enum mc_status first_error;
};

static void prepare(struct worker *w, uint64_t call) {
    const struct bench_options *o = w->bench->options;
    for (uint64_t i = 0; i < o->batch; i++) {
        snprintf(w->keys[i], sizeof(w->keys[i]), "bench-%llx/%u/%llu/%llu",
                 (unsigned long long)w->bench->run, w->number, (unsigned long long)call,
                 (unsigned long long)i);
        w->slices[i] = (struct mc_slice){w->buffer + i * o->value_bytes, o->value_bytes};
        w->items[i] =
            (struct mc_store_item){.key = w->keys[i], .slices = &w->slices[i], .slice_count = 1};
        if (w->bench->phase == PHASE_PUT) {
            mc_content_fill(w->slices[i].ptr, o->value_bytes, mc_content_seed(w->keys[i]));
        }
    }
}

/* One call of the phase; items[].status is set. */
static void call_store(struct worker *w) {
    struct mc_store *store = w->bench->store;
    size_t count = w->bench->options->batch;
    enum mc_status status = MC_OK;
    if (w->bench->phase == PHASE_PUT && count == 1) {
        w->items[0].status = mc_store_put(store, w->keys[0], w->buffer, w->slices[0].length, NULL);
    } else if (w->bench->phase == PHASE_PUT) {
        status = mc_store_put_batch(store, w->items, count, NULL);
    } else if (count == 1) {
        w->items[0].status =
            mc_store_get(store, w->keys[0], w->buffer, w->slices[0].length, &w->items[0].length);
    } else {
        status = mc_store_get_batch(store, w->items, count);
    }
    for (size_t i = 0; i < count && status != MC_OK; i++) {
        w->items[i].status = status;
    }
}

static bool item_is_right(const struct worker *w, uint64_t i) {
    const struct bench_options *o = w->bench->options;
    size_t bad = 0;
    if (w->bench->phase != PHASE_GET || !o->verify) {
        return true;
    }
    return w->items[i].length == o->value_bytes &&
           mc_content_verify(w->slices[i].ptr, o->value_bytes, mc_content_seed(w->keys[i]), &bad);
}

static void account(struct worker *w) {
    for (uint64_t i = 0; i < w->bench->options->batch; i++) {
        if (w->items[i].status != MC_OK) {
            w->first_error = w->failed++ == 0 ? w->items[i].status : w->first_error;
        } else if (!item_is_right(w, i)) {
            w->wrong++;
        }
    }
}

static void *work(void *arg) {
    struct worker *w = arg;
    for (uint64_t call = 0; call < w->bench->options->count; call++) {
        prepare(w, call);
        uint64_t begin = mc_now_ns(mc_clock_system());
        call_store(w);
        w->us[call] =
            (uint32_t)mc_min_u64((mc_now_ns(mc_clock_system()) - begin) / 1000, UINT32_MAX);
        account(w);
    }
    return NULL;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* One line for the phase that has just run. Rates are over the time inside calls: what threads
 * spend on making and comparing contents is not the store's. */
static void report(const struct bench *bench, const struct worker *workers) {
    const struct bench_options *o = bench->options;
    size_t calls = o->threads * o->count;
    struct mc_latencies all = {mc_alloc(calls * sizeof(uint32_t)), calls};
    uint64_t busy_us = 0;
    for (uint64_t t = 0; t < o->threads; t++) {
        memcpy(all.us + t * o->count, workers[t].us, o->count * sizeof(uint32_t));
    }
    for (size_t i = 0; i < calls; i++) {
        busy_us += all.us[i];
    }
    qsort(all.us, calls, sizeof(uint32_t), by_value);
    double seconds = (double)mc_max_u64(busy_us, 1) / (double)o->threads / 1e6;
    double objects = (double)calls * (double)o->batch;
    printf("%-4s %10.0f objects/s  %7.3f GB/s  p50 %u us  p99 %u us  max %u us\n",
           bench->phase == PHASE_PUT ? "put" : "get", objects / seconds,
           objects * (double)o->value_bytes / seconds / 1e9, mc_latencies_at(&all, .5),
           mc_latencies_at(&all, .99), mc_latencies_at(&all, 1));
    free(all.us);
}

static bool run_phase(struct bench *bench, struct worker *workers, enum phase phase) {
    unsigned started = 0;
    bench->phase = phase;
    for (; started < bench->options->threads; started++) {
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) {
            mc_cmd_fail("mooncake bench", 0, "%u threads can be started, no more", started);
            break;
        }
    }
    bool all = started == bench->options->threads;
    for (unsigned t = 0; t < started; t++) {
        pthread_join(workers[t].thread, NULL);
    }
    if (all) {
        report(bench, workers);
    }
    return all;
}

/* ---- set-up ---- */

static void worker_init(struct worker *w, struct bench *bench, unsigned number) {
    const struct bench_options *o = bench->options;
    w->bench = bench;
    w->number = number;
    w->buffer = mc_alloc(o->batch * o->value_bytes);
    w->items = mc_zalloc(o->batch * sizeof(*w->items));
    w->slices = mc_zalloc(o->batch * sizeof(*w->slices));
    w->keys = mc_zalloc(o->batch * sizeof(*w->keys));
    w->us = mc_zalloc(o->count * sizeof(*w->us));
    if (mc_store_register_buffer(bench->store, w->buffer, o->batch * o->value_bytes) != MC_OK) {
        mc_cmd_fail("mooncake bench", 0, "a buffer cannot be registered; it is copied instead");
    }
}

static void worker_free(struct worker *w, struct mc_store *store) {
    enum mc_status status = mc_store_unregister_buffer(store, w->buffer);
    (void)status; /* it may not have been registered */
    free(w->buffer);
    free(w->items);
    free(w->slices);
    free(w->keys);
    free(w->us);
}

static void remove_objects(const struct bench *bench) {
    char pattern[64];
    uint64_t removed = 0;
    snprintf(pattern, sizeof(pattern), "^bench-%llx/", (unsigned long long)bench->run);
    enum mc_status status = mc_store_remove_regex(bench->store, pattern, true, &removed);
    if (status != MC_OK) {
        mc_cmd_fail("mooncake bench", 0, "the objects of this run stay in the cluster: %s",
                    mc_status_text(status));
    }
}

static int bench_store(struct bench *bench) {
    const struct bench_options *o = bench->options;
    struct worker *workers = mc_zalloc(o->threads * sizeof(*workers));
    for (unsigned t = 0; t < o->threads; t++) {
        worker_init(&workers[t], bench, t);
    }
    bool complete = run_phase(bench, workers, PHASE_PUT) && run_phase(bench, workers, PHASE_GET);
    if (!o->keep) {
        remove_objects(bench);
    }
    uint64_t wrong = 0, failed = 0;
    enum mc_status first_error = MC_OK;
    for (unsigned t = 0; t < o->threads; t++) {
        wrong += workers[t].wrong;
        first_error = failed == 0 ? workers[t].first_error : first_error;
        failed += workers[t].failed;
        worker_free(&workers[t], bench->store);
    }
    free(workers);
    if (wrong + failed > 0) {
        bool evicted = first_error == MC_OBJECT_NOT_FOUND;
        return mc_cmd_fail(
            "mooncake bench", MC_EXIT_FAILED,
            "%llu objects came back wrong, %llu operations failed (%s%s)",
            (unsigned long long)wrong, (unsigned long long)failed, mc_status_name(first_error),
            evicted ? ": the cluster has no room for so many objects, see --count" : "");
    }
    return complete ? 0 : MC_EXIT_FAILED;
}

int mc_cmd_bench(int argc, char **argv) {
    struct bench_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse_no_words(&mc_bench_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    if (options.count == 0) {
        uint64_t bytes = options.value_bytes * options.batch * options.threads;
        options.count = mc_max_u64(CALLS_MIN, mc_min_u64(CALLS, BYTES_MOST / bytes));
    }
    struct mc_rng rng;
    mc_rng_seed_system(&rng);
    struct bench bench = {.options = &options, .run = mc_rng_next(&rng) >> 32};
    if (mc_cmd_open_store("mooncake bench", &options.cluster, &bench.store) != MC_OK) {
        exit_status = MC_EXIT_FAILED;
    } else {
        exit_status = bench_store(&bench);
        mc_store_close(bench.store);
    }
    mc_options_free(&result);
    return exit_status;
}
