/*
 * What the engine itself costs: slices through select, spray and completion over a transport that
 * does nothing. Cases: a transport with one rail (the straight way of tcp and shared memory), and
 * ones with 1, 4 and 8 rails, whose slices end inside post() or, `later`, on the same thread after
 * it, so that rails fill up and slices wait in the engine's queue. `--threads N` runs as many
 * threads over one engine. Usage:
 *
 *     bench_sched [--seconds S] [--threads N] [--rounds R] [--case K] [--batches B] [--json FILE]
 *
 * The figure is the median of the rounds, per slice: of a request cut into as many slices as it
 * may have, and of requests of one slice each. The last line is what of it is counting: what the
 * metrics of a slice cost beside the least that any transport does for one. How much of simulated
 * rails is used is not a matter of this machine's speed: sim_test_rails_carry_their_share prints
 * it.
 *
 * Instructions a slice, which no noise touches: `bench/slice-cost` runs one case (`--case`) under
 * callgrind for a fixed number of batches of 64 slices (`--batches`).
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "bench.h"
#include "base/log.h"
#include "te/internal.h"

#define RING        4096
#define THREADS_MAX 16
#define ROUNDS_MAX  64
#define SPACE       (1ull << 32)
#define SLICE       (64ull << 10)
#define PER_BATCH   64

struct kind {
    const char *name;
    unsigned rails; /* 0 = the transport names none */
    bool later;
};
static const struct kind kinds[] = {
    {"one rail, straight", 0, false}, {"4 rails", 4, false},       {"8 rails", 8, false},
    {"4 rails, later", 4, true},      {"8 rails, later", 8, true},
};

/* ---- a transport that does nothing ---- */

static const struct kind *kind; /* of the engine under measurement */
static _Thread_local struct {   /* slices that end later */
    struct mc_slice_op *slices[RING];
    unsigned head, count;
} ring;

static void end_some(unsigned keep) {
    while (ring.count > keep) {
        unsigned n = (unsigned)mc_min_u64(ring.count - keep, RING - ring.head);
        struct mc_slice_op **slices = ring.slices + ring.head;
        ring.head = (ring.head + n) % RING;
        ring.count -= n;
        mc_slices_arrived(slices, n);
    }
}

static enum mc_status null_post(struct mc_transport *t, struct mc_slice_op **slices, size_t count) {
    if (!kind->later || ring.count + count > RING) {
        mc_slices_arrived(slices, count);
        return MC_OK;
    }
    for (size_t i = 0; i < count; i++) {
        ring.slices[(ring.head + ring.count++) % RING] = slices[i];
    }
    return MC_OK;
}

static unsigned null_rails(struct mc_transport *t, struct mc_rail_info *info, unsigned capacity) {
    for (unsigned i = 0; i < kind->rails; i++) {
        info[i] = (struct mc_rail_info){.numa_node = -1, .bandwidth = 50000000000, .up = true};
        snprintf(info[i].name, sizeof(info[i].name), "null%u", i);
    }
    return kind->rails;
}

static uint32_t null_cost(struct mc_transport *t, struct mc_segment *segment,
                          const struct mc_peer_desc *desc) {
    return 1;
}

static const struct mc_transport_ops null_ops;
static enum mc_status null_start(struct mc_engine *engine, unsigned index,
                                 struct mc_transport **out) {
    *out = mc_zalloc(sizeof(**out));
    **out = (struct mc_transport){&null_ops, engine, index};
    return MC_OK;
}
static void null_stop(struct mc_transport *t) {
    free(t);
}
static const struct mc_transport_ops null_ops = {.name = "null",
                                                 .slice_bytes = SLICE,
                                                 .start = null_start,
                                                 .stop = null_stop,
                                                 .cost = null_cost,
                                                 .rails = null_rails,
                                                 .post = null_post};

/* ---- measuring ---- */

struct worker {
    struct mc_engine *engine;
    uint64_t end_ns;
    bool cut;         /* one request of many slices, else many of one */
    uint64_t batches; /* after which it ends; 0 = by time */
    uint64_t took_ns;
};

static void one_batch(const struct worker *w, const struct mc_transfer_request *requests,
                      size_t count) {
    struct mc_batch *batch;
    struct mc_transfer_status last;
    enum mc_status status = mc_batch_create(w->engine, count, &batch);
    MC_ASSERT(status == MC_OK);
    status = mc_batch_submit(batch, requests, count, MC_WAIT_FOREVER);
    MC_ASSERT(status == MC_OK);
    do {
        end_some(0);
        status = mc_batch_task(batch, count - 1, &last);
        MC_ASSERT(status == MC_OK);
    } while (mc_batch_free(batch) == MC_ERR_BUSY);
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct mc_transfer_request requests[PER_BATCH];
    size_t count = w->cut ? 1 : PER_BATCH;
    char *base = (char *)(uintptr_t)SPACE;
    for (size_t i = 0; i < count; i++) {
        uint64_t length = w->cut ? PER_BATCH * SLICE : SLICE;
        requests[i] = (struct mc_transfer_request){.op = MC_TRANSFER_WRITE,
                                                   .local = base + i * length,
                                                   .segment = MC_LOCAL_SEGMENT,
                                                   .remote_addr = SPACE + i * length,
                                                   .length = length};
    }
    uint64_t begin = cpu_ns();
    do {
        for (uint64_t i = 0; i < (w->batches > 0 ? w->batches : 100); i++) {
            one_batch(w, requests, count);
        }
    } while (w->batches == 0 && now_ns() < w->end_ns);
    w->took_ns = cpu_ns() - begin;
    return NULL;
}

/* ---- what counting costs ---- */

#define COUNTED (1u << 20)

/* What the engine counts of each slice: its bytes and itself, by rail, operation and priority; of
 * one in 16 also how long it took, by two looks at the clock. */
static double count_slices(void) {
    static struct mc_rail rail;
    struct mc_rail_info info = {.up = true};
    mc_rail_init(&rail, &info);
    uint64_t begin = cpu_ns();
    for (unsigned i = 0; i < COUNTED; i++) {
        if (i % 16 == 0) {
            uint64_t posted = now_ns();
            mc_histogram_observe(&rail.latency, (now_ns() - posted) / 1000);
        }
        mc_metric_add(&rail.moved[MC_TRANSFER_WRITE][0].bytes, (int64_t)SLICE);
        mc_metric_add(&rail.moved[MC_TRANSFER_WRITE][0].slices, 1);
    }
    return (double)(cpu_ns() - begin) / COUNTED;
}

/* The least that a slice of 64 KiB costs on any transport: a memcpy of what is in no cache. */
static double copy_slices(void) {
    const size_t size = 64u << 20;
    char *from = mc_alloc(size), *to = mc_alloc(size);
    memset(from, 1, size);
    memset(to, 2, size);
    uint64_t begin = cpu_ns();
    for (size_t at = 0; at < size; at += SLICE) {
        memcpy(to + at, from + at, SLICE);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    double each = (double)(cpu_ns() - begin) / (double)(size / SLICE);
    free(from);
    free(to);
    return each;
}

static void telemetry(unsigned rounds, FILE *json) {
    double count[ROUNDS_MAX], copy[ROUNDS_MAX];
    for (unsigned r = 0; r < rounds; r++) {
        count[r] = count_slices();
        copy[r] = copy_slices();
    }
    qsort(count, rounds, sizeof(count[0]), by_double);
    qsort(copy, rounds, sizeof(copy[0]), by_double);
    double share = 100 * count[rounds / 2] / copy[rounds / 2];
    printf("telemetry: %.1f ns a slice, %.2f %% of a memcpy of 64 KiB (%.0f ns)\n",
           count[rounds / 2], share, copy[rounds / 2]);
    if (json != NULL) {
        fprintf(json, "{\"case\":\"telemetry\",\"slice_ns\":%.1f,\"copy_ns\":%.1f}\n",
                count[rounds / 2], copy[rounds / 2]);
    }
}

static uint64_t completed(struct mc_engine *engine) {
    const struct mc_dispatch *d = &engine->dispatch[0];
    uint64_t slices = 0;
    for (unsigned i = 0; i < d->rail_count; i++) {
        slices += (uint64_t)mc_metric_get(&d->rails[i].moved[MC_TRANSFER_WRITE][0].slices);
    }
    return slices;
}

/* Nanoseconds of one thread a slice, the median of the rounds. */
static double measure(bool cut, unsigned threads, unsigned rounds, double seconds,
                      uint64_t batches) {
    static const struct mc_transport_ops *const table[] = {&null_ops};
    struct mc_engine_options options;
    struct mc_engine *engine;
    double figures[ROUNDS_MAX];
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.reactors = 1;
    enum mc_status status = mc_engine_create_with(&options, table, 1, &engine);
    MC_ASSERT(status == MC_OK);
    status = mc_memory_register(engine, (void *)(uintptr_t)SPACE, SPACE, "*", 0);
    MC_ASSERT(status == MC_OK);
    for (unsigned r = 0; r < rounds; r++) {
        struct worker workers[THREADS_MAX] = {{0}};
        pthread_t ids[THREADS_MAX];
        uint64_t before = completed(engine), took = 0;
        for (unsigned i = 0; i < threads; i++) {
            workers[i] = (struct worker){.engine = engine, .cut = cut, .batches = batches};
            workers[i].end_ns = now_ns() + (uint64_t)(seconds * 1e9);
            int error = pthread_create(&ids[i], NULL, work, &workers[i]);
            MC_ASSERT(error == 0);
        }
        for (unsigned i = 0; i < threads; i++) {
            pthread_join(ids[i], NULL);
            took += workers[i].took_ns;
        }
        figures[r] = (double)took / (double)(completed(engine) - before);
    }
    mc_engine_destroy(engine);
    qsort(figures, rounds, sizeof(figures[0]), by_double);
    return figures[rounds / 2];
}

int main(int argc, char **argv) {
    static const struct option long_options[] = {{"seconds", required_argument, NULL, 's'},
                                                 {"threads", required_argument, NULL, 't'},
                                                 {"rounds", required_argument, NULL, 'r'},
                                                 {"case", required_argument, NULL, 'c'},
                                                 {"batches", required_argument, NULL, 'b'},
                                                 {"json", required_argument, NULL, 'j'},
                                                 {NULL, 0, NULL, 0}};
    double seconds = 0.2;
    unsigned threads = 1, rounds = 5, only = MC_ARRAY_LEN(kinds);
    uint64_t batches = 0;
    FILE *json = NULL;
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        if (c == 's') {
            seconds = atof(optarg);
        } else if (c == 't') {
            threads = (unsigned)mc_min_u64(mc_max_u64((uint64_t)atoi(optarg), 1), THREADS_MAX);
        } else if (c == 'r') {
            rounds = (unsigned)mc_min_u64(mc_max_u64((uint64_t)atoi(optarg), 1), ROUNDS_MAX);
        } else if (c == 'c') {
            only = (unsigned)atoi(optarg);
        } else if (c == 'b') {
            batches = (uint64_t)atoll(optarg);
        } else if (c == 'j') {
            json = fopen(optarg, "w");
        } else {
            return 2;
        }
    }
    (void)!mc_log_set_level("warn");
    printf("%-22s %16s %16s   (ns of CPU a slice, threads=%u)\n", "transport", "64 of a request",
           "64 requests", threads);
    for (size_t i = 0; i < MC_ARRAY_LEN(kinds); i++) {
        if (only < MC_ARRAY_LEN(kinds) && only != i) {
            continue;
        }
        kind = &kinds[i];
        double cut = measure(true, threads, rounds, seconds, batches);
        double single = measure(false, threads, rounds, seconds, batches);
        printf("%-22s %16.1f %16.1f\n", kind->name, cut, single);
        if (json != NULL) {
            fprintf(json, "{\"case\":\"%s\",\"threads\":%u,\"cut_ns\":%.1f,\"single_ns\":%.1f}\n",
                    kind->name, threads, cut, single);
        }
    }
    if (only >= MC_ARRAY_LEN(kinds)) {
        telemetry(rounds, json);
    }
    if (json != NULL) {
        fclose(json);
    }
    return 0;
}
