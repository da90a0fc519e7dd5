/*
 * Metrics: counters, gauges and histograms, printed as Prometheus text.
 *
 * A metric is a plain struct in its owner, so updating it is one relaxed atomic add and needs no
 * look-up; registering only gives it a name. Counters never go down. A registry is not global: the
 * program makes one and passes it on, so that two engines in one process do not mix their numbers.
 */
#ifndef MC_BASE_METRICS_H
#define MC_BASE_METRICS_H

#include "base/base.h"

enum mc_metric_type {
    MC_METRIC_COUNTER,
    MC_METRIC_GAUGE,
    MC_METRIC_HISTOGRAM, /* struct mc_histogram */
    MC_METRIC_STEPS,     /* struct mc_steps: printed as a histogram */
    MC_METRIC_SUMMARY    /* struct mc_histogram: printed as its quantiles .5, .9 and .99 */
};

struct mc_metric {
    _Atomic int64_t value;
};

/* Log-linear (4 steps a power of two) buckets over [0, 2^41]; relative error at most 25 %, no
 * allocation. */
#define MC_HISTOGRAM_BUCKETS 160
struct mc_histogram {
    _Atomic uint64_t buckets[MC_HISTOGRAM_BUCKETS];
    _Atomic uint64_t count;
    _Atomic uint64_t sum;
};

static inline void mc_metric_add(struct mc_metric *m, int64_t n) {
    __atomic_fetch_add((int64_t *)&m->value, n, __ATOMIC_RELAXED);
}
static inline void mc_metric_set(struct mc_metric *m, int64_t n) {
    __atomic_store_n((int64_t *)&m->value, n, __ATOMIC_RELAXED);
}
static inline int64_t mc_metric_get(const struct mc_metric *m) {
    return __atomic_load_n((const int64_t *)&m->value, __ATOMIC_RELAXED);
}
void mc_histogram_observe(struct mc_histogram *h, uint64_t value);
/* Upper bound of the bucket; 0 when empty. */
uint64_t mc_histogram_quantile(const struct mc_histogram *h, double q);

/* A histogram with given bounds: for series that another program's dashboards know by their `le`.
 * The bounds ascend and end with UINT64_MAX, the bucket of the rest; they outlive the steps. */
#define MC_STEPS_MAX 32
struct mc_steps {
    const uint64_t *bounds;
    _Atomic uint64_t buckets[MC_STEPS_MAX];
    _Atomic uint64_t sum;
};
void mc_steps_init(struct mc_steps *s, const uint64_t *bounds);
void mc_steps_observe(struct mc_steps *s, uint64_t value);

struct mc_metrics; /* the registry; thread safe */
struct mc_metrics *mc_metrics_create(void);
void mc_metrics_destroy(struct mc_metrics *registry);
/* `labels` is "" or `key="value",...`. The metric must outlive its registration. Same name may
 * repeat with other labels. */
void mc_metrics_register(struct mc_metrics *registry, enum mc_metric_type type, const char *name,
                         const char *labels, const char *help,
                         void *metric /* what the type says */);
/* As above for one of many labels: the series appears when it has counted something. */
void mc_metrics_register_quiet(struct mc_metrics *registry, enum mc_metric_type type,
                               const char *name, const char *labels, const char *help,
                               void *metric);
/* Appends `name="value"`, the value escaped, after a comma when there is something before it. */
void mc_metrics_label(struct mc_buf *labels, const char *name, const char *value);
/* Several, of a table. A registry that is NULL takes none. */
struct mc_metric_row {
    enum mc_metric_type type;
    const char *name, *help;
    void *metric;
};
void mc_metrics_register_rows(struct mc_metrics *registry, const char *labels,
                              const struct mc_metric_row *rows, size_t count);
/* A value computed when asked. */
void mc_metrics_register_fn(struct mc_metrics *registry, enum mc_metric_type type, const char *name,
                            const char *labels, const char *help, int64_t (*read)(void *arg),
                            void *arg);
/* Metrics in memory range. */
void mc_metrics_unregister_range(struct mc_metrics *registry, const void *begin, size_t size);
/* Prometheus text format 0.0.4. */
void mc_metrics_print(struct mc_metrics *registry, struct mc_buf *out);

#endif
