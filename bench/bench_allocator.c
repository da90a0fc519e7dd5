/*
 * How fast and how tight the offset allocator is, on the workload of upstream's allocator
 * benchmark: a full pool; then each step allocates one extent and, as long as that fails, frees a
 * random one.
 *
 * Prints time a step (one allocation with its evictions), millions of steps a second with one and
 * two threads on one segment, and utilisation (bytes live after each allocation / pool; mean and
 * minimum over the run). The cost of choosing the victim is in the figure, the cache misses of the
 * benchmark's own table of extents are not.
 *
 * Usage: bench_allocator [steps, default 2000000 [bytes: this size alone, for a profile of it]]
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#include "bench.h"
#include "base/base.h"
#include "master/allocator.h"

#define POOL_BYTES       (2ull << 30)
#define POOL_BYTES_SMALL (POOL_BYTES / 16) /* for sizes below 1 KiB */
#define LIVE_MAX         (16u << 20)
#define WARM_UP_STEPS    200000u
#define VICTIMS_AHEAD    8u

struct live {
    struct mc_extent extent;
    uint64_t size;
};

struct worker {
    struct mc_allocator *allocator;
    uint64_t min_size, max_size; /* equal: uniform */
    uint64_t live_limit;         /* this worker's share; 0 = until the pool is full */
    uint64_t steps;
    uint64_t seed;
    pthread_barrier_t *barrier;
    struct live *live;
    uint64_t live_count, evictions;
    uint64_t victims[VICTIMS_AHEAD]; /* of the next steps, a ring by `evictions` */
    struct mc_rng rng;
    double utilisation_sum, utilisation_min;
    uint64_t elapsed_ns;
};

/* Processor time of the thread, waiting for the lock included: on a shared machine the wall clock
 * measures the neighbours. */
/* A multiplication, not a division: the benchmark's own cost must not hide the allocator's. */
static uint64_t below(struct worker *w, uint64_t bound) {
    return (uint64_t)(((__uint128_t)mc_rng_next(&w->rng) * bound) >> 64);
}

static void step(struct worker *w) {
    uint64_t size = w->min_size;
    if (w->max_size > w->min_size) {
        size += below(w, w->max_size - w->min_size + 1);
    }
    for (;;) {
        struct mc_extent extent;
        bool at_limit = w->live_limit && w->live_count >= w->live_limit;
        if (!at_limit && mc_allocator_alloc(w->allocator, size, &extent) == MC_OK) {
            MC_ASSERT(w->live_count < LIVE_MAX);
            w->live[w->live_count++] = (struct live){extent, size};
            return;
        }
        MC_ASSERT(w->live_count > 0);
        /* Victims are chosen some steps ahead and their entries fetched: the benchmark's own table
         * of extents (96 MiB for those of 32 bytes) must not be measured as if it were the
         * allocator's. */
        uint64_t *slot = &w->victims[w->evictions % VICTIMS_AHEAD];
        uint64_t victim = *slot < w->live_count ? *slot : 0;
        *slot = below(w, w->live_count);
        __builtin_prefetch(&w->live[*slot], 1);
        mc_allocator_free(w->allocator, w->live[victim].extent, w->live[victim].size);
        w->live[victim] = w->live[--w->live_count];
        w->evictions++;
    }
}

static void *run_worker(void *arg) {
    struct worker *w = arg;
    mc_rng_seed(&w->rng, w->seed);
    w->live = mmap(NULL, LIVE_MAX * sizeof(*w->live), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MC_ASSERT(w->live != MAP_FAILED);
    (void)madvise(w->live, LIVE_MAX * sizeof(*w->live), MADV_HUGEPAGE);
    while (w->evictions < WARM_UP_STEPS) {
        step(w);
    }
    pthread_barrier_wait(w->barrier);
    uint64_t start = cpu_ns();
    for (uint64_t i = 0; i < w->steps; i++) {
        step(w);
    }
    w->elapsed_ns = cpu_ns() - start;
    /* utilisation apart, so that reading it does not cost time */
    w->utilisation_min = 1;
    double capacity = (double)mc_allocator_capacity(w->allocator);
    uint64_t samples = mc_min_u64(w->steps, 200000);
    for (uint64_t i = 0; i < samples; i++) {
        step(w);
        double now = (double)mc_allocator_used(w->allocator) / capacity;
        w->utilisation_sum += now / (double)samples;
        w->utilisation_min = now < w->utilisation_min ? now : w->utilisation_min;
    }
    pthread_barrier_wait(w->barrier);
    munmap(w->live, LIVE_MAX * sizeof(*w->live));
    return NULL;
}

struct outcome {
    double ns_per_step, mega_per_second, utilisation, utilisation_min;
};

static struct outcome measure(uint64_t pool, uint64_t min_size, uint64_t max_size, unsigned threads,
                              uint64_t steps) {
    struct worker workers[2] = {0};
    pthread_t ids[2];
    pthread_barrier_t barrier;
    struct mc_allocator *allocator = mc_allocator_create(pool, 0);
    pthread_barrier_init(&barrier, NULL, threads);
    for (unsigned t = 0; t < threads; t++) {
        workers[t] = (struct worker){.allocator = allocator,
                                     .min_size = min_size,
                                     .max_size = max_size,
                                     .steps = steps,
                                     .seed = 7 + t,
                                     .barrier = &barrier,
                                     .live_limit = threads > 1 ? pool / max_size / threads : 0};
        pthread_create(&ids[t], NULL, run_worker, &workers[t]);
    }
    struct outcome o = {.utilisation_min = 1};
    for (unsigned t = 0; t < threads; t++) {
        pthread_join(ids[t], NULL);
        o.ns_per_step += (double)workers[t].elapsed_ns / (double)steps / threads;
        o.mega_per_second += (double)steps * 1e3 / (double)workers[t].elapsed_ns;
        o.utilisation += workers[t].utilisation_sum / threads;
        o.utilisation_min = workers[t].utilisation_min;
    }
    pthread_barrier_destroy(&barrier);
    mc_allocator_destroy(allocator);
    return o;
}

static void row(const char *name, uint64_t pool, uint64_t min_size, uint64_t max_size,
                uint64_t steps) {
    struct outcome one = measure(pool, min_size, max_size, 1, steps);
    struct outcome two = measure(pool, min_size, max_size, 2, steps);
    printf("%-22s %10" PRIu64 " %9.1f %9.2f %9.2f %7.2f %8.4f %8.4f\n", name, pool >> 20,
           one.ns_per_step, one.mega_per_second, two.mega_per_second,
           two.mega_per_second / one.mega_per_second, one.utilisation, one.utilisation_min);
    fflush(stdout);
}

int main(int argc, char **argv) {
    uint64_t steps = 2000000;
    if (argc > 1) {
        steps = strtoull(argv[1], NULL, 10);
    }
    if (steps == 0) {
        fprintf(stderr, "usage: bench_allocator [steps [bytes]]\n");
        return 2;
    }
    uint64_t only = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    static const struct {
        const char *name;
        uint64_t size;
    } sizes[] = {{"32 B", 32},
                 {"8 KiB", 8 << 10},
                 {"32 KiB", 32 << 10},
                 {"2 MiB", 2 << 20},
                 {"32 MiB", 32 << 20}};
    printf("%-22s %10s %9s %9s %9s %7s %8s %8s\n", "size", "pool MiB", "ns/step", "1T M/s",
           "2T M/s", "2T/1T", "util", "util min");
    if (only > 0) {
        row(argv[2], only < 1024 ? POOL_BYTES_SMALL : POOL_BYTES, only, only, steps);
        return 0;
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        static const struct {
            const char *suffix;
            double factor;
            int64_t add;
        } variants[] = {
            {"", 1, 0}, {" - 17", 1, -17}, {" + 17", 1, 17}, {" x 0.9", .9, 0}, {" x 1.1", 1.1, 0}};
        for (size_t v = 0; v < MC_ARRAY_LEN(variants); v++) {
            char name[32];
            uint64_t size =
                (uint64_t)((double)sizes[i].size * variants[v].factor) + (uint64_t)variants[v].add;
            uint64_t pool = size < 1024 ? POOL_BYTES_SMALL : POOL_BYTES;
            snprintf(name, sizeof(name), "%s%s", sizes[i].name, variants[v].suffix);
            row(name, pool, size, size, steps);
        }
    }
    static const uint64_t random_pools[] = {2, 16, 64, 1024};
    for (size_t i = 0; i < MC_ARRAY_LEN(random_pools); i++) {
        row("random 1 KiB..64 MiB", random_pools[i] << 30, 1 << 10, 64 << 20, steps);
    }
    row("random 4 KiB..64 KiB", 2ull << 30, 4 << 10, 64 << 10, steps);
    return 0;
}
