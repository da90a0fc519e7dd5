/*
 * How full can a pool be that gives out random sizes? The workload of upstream's allocator
 * benchmark (a full pool; then each step allocates one extent of 1 KiB to 64 MiB and, as long as
 * that fails, frees a random one), played with placements that may look at everything and take any
 * time.
 *
 * It bounds what bench_allocator's utilisation can be asked to be: nothing here moves extents or
 * knows what comes next, and no allocator does.
 *
 * Usage: bench_fit [GiB of the pool, default 2 [steps, default 100000]]
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

#define EXTENTS_MAX 65536u
#define MIN_BYTES   (1ull << 10)
#define MAX_BYTES   (64ull << 20)
#define WARM_UP     2000u

struct extent {
    uint64_t offset, size;
};

struct pool {
    uint64_t bytes, used;
    size_t count;
    struct extent *extents; /* by address */
    struct mc_rng rng;
};

/* A hole lies before extents[at]; the last one behind all. */
static struct extent hole(const struct pool *p, size_t at) {
    uint64_t begin = at > 0 ? p->extents[at - 1].offset + p->extents[at - 1].size : 0;
    uint64_t end = at < p->count ? p->extents[at].offset : p->bytes;
    return (struct extent){begin, end - begin};
}

static void insert(struct pool *p, size_t at, uint64_t offset, uint64_t size) {
    MC_ASSERT(p->count < EXTENTS_MAX);
    memmove(p->extents + at + 1, p->extents + at, (p->count - at) * sizeof(*p->extents));
    p->extents[at] = (struct extent){offset, size};
    p->count++;
    p->used += size;
}

static void erase(struct pool *p, size_t at) {
    p->used -= p->extents[at].size;
    p->count--;
    memmove(p->extents + at, p->extents + at + 1, (p->count - at) * sizeof(*p->extents));
}

/* ---- placements: how good is it to put `size` into the hole `at`, at its low or high end ---- */

typedef double (*placement)(struct pool *p, size_t at, bool high, uint64_t size);

static double first_fit(struct pool *p, size_t at, bool high, uint64_t size) {
    return high ? -1e30 : -(double)at;
}

static double best_fit(struct pool *p, size_t at, bool high, uint64_t size) {
    return high ? -1e30 : -(double)hole(p, at).size;
}

/* Best fit, what is left of the hole beside its larger neighbour. */
static double best_fit_beside_smaller(struct pool *p, size_t at, bool high, uint64_t size) {
    uint64_t below = at > 0 ? p->extents[at - 1].size : 0;
    uint64_t above = at < p->count ? p->extents[at].size : 0;
    return high == (below > above) ? -(double)hole(p, at).size : -1e30;
}

/* Large extents from the low end, small ones from the high end. */
static double two_ends(struct pool *p, size_t at, bool high, uint64_t size) {
    bool large = size >= MAX_BYTES / 2;
    return high == large ? -1e30 : large ? -(double)at : (double)at;
}

/* How likely the next extent fits then at once, or after one more is freed. */
static double look_ahead(struct pool *p, size_t at, bool high, uint64_t size) {
    struct extent h = hole(p, at);
    uint64_t largest = 0;
    double later = 0;
    insert(p, at, high ? h.offset + h.size - size : h.offset, size);
    for (size_t i = 0; i <= p->count; i++) {
        largest = mc_max_u64(largest, hole(p, i).size);
    }
    for (size_t i = 0; i < p->count; i++) {
        uint64_t merged = hole(p, i).size + p->extents[i].size + hole(p, i + 1).size;
        later += (double)mc_min_u64(mc_max_u64(merged, largest), MAX_BYTES);
    }
    double value = (double)mc_min_u64(largest, MAX_BYTES) + later / (double)p->count;
    erase(p, at);
    return value;
}

/* ---- the workload ---- */

static bool allocate(struct pool *p, placement value, uint64_t size) {
    double best = -1e29;
    size_t best_at = 0;
    bool best_high = false, found = false;
    for (size_t at = 0; at <= p->count; at++) {
        for (int high = 0; high < 2 && hole(p, at).size >= size; high++) {
            double v = value(p, at, high != 0, size);
            if (v > best) {
                best = v;
                best_at = at;
                best_high = high != 0;
                found = true;
            }
        }
    }
    if (found) {
        struct extent h = hole(p, best_at);
        insert(p, best_at, best_high ? h.offset + h.size - size : h.offset, size);
    }
    return found;
}

static void play(const char *name, placement value, uint64_t bytes, uint64_t steps) {
    struct pool p = {.bytes = bytes, .extents = mc_alloc(EXTENTS_MAX * sizeof(*p.extents))};
    double sum = 0, least = 1;
    mc_rng_seed(&p.rng, 7);
    for (uint64_t i = 0; i < steps + WARM_UP; i++) {
        uint64_t size = MIN_BYTES + mc_rng_below(&p.rng, MAX_BYTES - MIN_BYTES + 1);
        while (!allocate(&p, value, size)) {
            erase(&p, mc_rng_below(&p.rng, p.count));
        }
        double now = (double)p.used / (double)bytes;
        sum += i >= WARM_UP ? now / (double)steps : 0;
        least = i >= WARM_UP && now < least ? now : least;
    }
    printf("%-52s %8.4f %8.4f\n", name, sum, least);
    fflush(stdout);
    free(p.extents);
}

int main(int argc, char **argv) {
    uint64_t gib = argc > 1 ? strtoull(argv[1], NULL, 10) : 2;
    uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    if (gib == 0 || steps == 0) {
        fprintf(stderr, "usage: bench_fit [GiB of the pool [steps]]\n");
        return 2;
    }
    printf("%-52s %8s %8s\n", "placement", "util", "util min");
    play("first fit", first_fit, gib << 30, steps);
    play("best fit", best_fit, gib << 30, steps);
    play("best fit, the rest beside the larger neighbour", best_fit_beside_smaller, gib << 30,
         steps);
    play("large ones from one end, small from the other", two_ends, gib << 30, steps);
    play("what lets the next one fit most likely", look_ahead, gib << 30, steps);
    return 0;
}
