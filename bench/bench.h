/* What the programs that measure share: the clocks, the end when a step fails, and medians. */
#ifndef MC_BENCH_BENCH_H
#define MC_BENCH_BENCH_H

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/base.h"

static inline uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* The processor's, of this thread: others may run meanwhile. */
static inline uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * MC_SEC + (uint64_t)t.tv_nsec;
}

/* Ends the program when a step of it has failed. */
static inline void check(enum mc_status status, const char *what) {
    if (status != MC_OK) {
        fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
                mc_status_name(status));
        exit(1);
    }
}

/* For qsort. */
static inline int by_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static inline int by_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts them. */
static inline double median(double *values, size_t count) {
    qsort(values, count, sizeof(*values), by_double);
    return values[count / 2];
}

#endif
