/*
 * The metrics registry. See base/metrics.h.
 *
 * Metrics live in their owners; the registry holds families (a name, its help and type) and in each
 * the places to read. A family is printed in one piece, as the text format asks, in the order of
 * first registration. One mutex guards the lists; printing holds it, so that when
 * mc_metrics_unregister_range returns nobody reads that memory any more.
 */
#include "base/metrics.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>

struct entry {
    struct mc_list link; /* in family.entries */
    char *labels;
    void *metric; /* when read is NULL */
    bool quiet;   /* not printed while it has counted nothing */
    int64_t (*read)(void *arg);
    void *arg;
};

struct family {
    struct mc_list link; /* in mc_metrics.families */
    struct mc_list entries;
    enum mc_metric_type type;
    char *name;
    char *help;
};

struct mc_metrics {
    pthread_mutex_t lock;
    struct mc_list families;
};

/* ---- histogram ---- */

/* Buckets are half open downward, (lower, upper], because Prometheus' `le` is inclusive: a value v
 * lands where v - 1 would in [lower, upper). Below 4 a bucket holds one number; above, four buckets
 * divide each power of two. */
static size_t bucket_of(uint64_t value) {
    uint64_t x = value > 0 ? value - 1 : 0;
    if (x < 4) {
        return (size_t)x;
    }
    unsigned exponent = 63 - (unsigned)__builtin_clzll(x);
    size_t bucket = 4 * (size_t)(exponent - 1) + ((x >> (exponent - 2)) & 3);
    return bucket < MC_HISTOGRAM_BUCKETS ? bucket : MC_HISTOGRAM_BUCKETS - 1;
}

static uint64_t bucket_upper(size_t bucket) {
    if (bucket < 4) {
        return bucket + 1;
    }
    return (uint64_t)(bucket % 4 + 5) << (bucket / 4 - 1);
}

void mc_histogram_observe(struct mc_histogram *h, uint64_t value) {
    __atomic_fetch_add((uint64_t *)&h->buckets[bucket_of(value)], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add((uint64_t *)&h->count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add((uint64_t *)&h->sum, value, __ATOMIC_RELAXED);
}

/* One copy of the buckets, so that what is printed adds up while others observe. Returns their
 * total. */
static uint64_t histogram_copy(const struct mc_histogram *h, uint64_t copy[MC_HISTOGRAM_BUCKETS]) {
    uint64_t total = 0;
    for (size_t i = 0; i < MC_HISTOGRAM_BUCKETS; i++) {
        copy[i] = __atomic_load_n((const uint64_t *)&h->buckets[i], __ATOMIC_RELAXED);
        total += copy[i];
    }
    return total;
}

uint64_t mc_histogram_quantile(const struct mc_histogram *h, double q) {
    uint64_t buckets[MC_HISTOGRAM_BUCKETS];
    uint64_t total = histogram_copy(h, buckets);
    if (total == 0) {
        return 0;
    }
    double wanted = q <= 0 ? 0 : q * (double)total;
    uint64_t seen = 0;
    size_t last = 0;
    for (size_t i = 0; i < MC_HISTOGRAM_BUCKETS; i++) {
        seen += buckets[i];
        last = buckets[i] > 0 ? i : last;
        if (seen > 0 && (double)seen >= wanted) {
            return bucket_upper(i);
        }
    }
    return bucket_upper(last); /* q > 1, or rounding */
}

/* ---- steps ---- */

void mc_steps_init(struct mc_steps *s, const uint64_t *bounds) {
    size_t last = 0;
    while (bounds[last] != UINT64_MAX) {
        last++;
    }
    MC_ASSERT(last < MC_STEPS_MAX);
    *s = (struct mc_steps){.bounds = bounds};
}

void mc_steps_observe(struct mc_steps *s, uint64_t value) {
    size_t i = 0;
    while (value > s->bounds[i]) {
        i++;
    }
    __atomic_fetch_add((uint64_t *)&s->buckets[i], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add((uint64_t *)&s->sum, value, __ATOMIC_RELAXED);
}

/* ---- registry ---- */

struct mc_metrics *mc_metrics_create(void) {
    struct mc_metrics *registry = mc_alloc(sizeof(*registry));
    pthread_mutex_init(&registry->lock, NULL);
    mc_list_init(&registry->families);
    return registry;
}

static void entry_free(struct entry *entry) {
    mc_list_del(&entry->link);
    free(entry->labels);
    free(entry);
}

static void family_free(struct family *family) {
    while (!mc_list_empty(&family->entries)) {
        entry_free(mc_container_of(family->entries.next, struct entry, link));
    }
    mc_list_del(&family->link);
    free(family->name);
    free(family->help);
    free(family);
}

void mc_metrics_destroy(struct mc_metrics *registry) {
    if (registry == NULL) {
        return;
    }
    while (!mc_list_empty(&registry->families)) {
        family_free(mc_container_of(registry->families.next, struct family, link));
    }
    pthread_mutex_destroy(&registry->lock);
    free(registry);
}

static bool name_is_valid(const char *name) {
    if (name[0] == '\0' || isdigit((unsigned char)name[0])) {
        return false;
    }
    for (; *name != '\0'; name++) {
        if (!isalnum((unsigned char)*name) && *name != '_' && *name != ':') {
            return false;
        }
    }
    return true;
}

static struct family *family_get_locked(struct mc_metrics *registry, enum mc_metric_type type,
                                        const char *name, const char *help) {
    for (struct mc_list *l = registry->families.next; l != &registry->families; l = l->next) {
        struct family *family = mc_container_of(l, struct family, link);
        if (strcmp(family->name, name) == 0) {
            MC_ASSERT(family->type == type);
            return family;
        }
    }
    struct family *family = mc_alloc(sizeof(*family));
    family->type = type;
    family->name = mc_strdup(name);
    family->help = mc_strdup(help);
    mc_list_init(&family->entries);
    mc_list_push_back(&registry->families, &family->link);
    return family;
}

static void entry_add(struct mc_metrics *registry, enum mc_metric_type type, const char *name,
                      const char *help, const char *labels, struct entry what) {
    MC_ASSERT(name_is_valid(name));
    struct entry *entry = mc_alloc(sizeof(*entry));
    *entry = what;
    entry->labels = mc_strdup(labels);
    pthread_mutex_lock(&registry->lock);
    struct family *family = family_get_locked(registry, type, name, help);
    mc_list_push_back(&family->entries, &entry->link);
    pthread_mutex_unlock(&registry->lock);
}

void mc_metrics_register(struct mc_metrics *registry, enum mc_metric_type type, const char *name,
                         const char *labels, const char *help, void *metric) {
    entry_add(registry, type, name, help, labels, (struct entry){.metric = metric});
}

void mc_metrics_register_quiet(struct mc_metrics *registry, enum mc_metric_type type,
                               const char *name, const char *labels, const char *help,
                               void *metric) {
    entry_add(registry, type, name, help, labels, (struct entry){.metric = metric, .quiet = true});
}

void mc_metrics_register_rows(struct mc_metrics *registry, const char *labels,
                              const struct mc_metric_row *rows, size_t count) {
    for (size_t i = 0; registry != NULL && i < count; i++) {
        mc_metrics_register(registry, rows[i].type, rows[i].name, labels, rows[i].help,
                            rows[i].metric);
    }
}

void mc_metrics_register_fn(struct mc_metrics *registry, enum mc_metric_type type, const char *name,
                            const char *labels, const char *help, int64_t (*read)(void *arg),
                            void *arg) {
    MC_ASSERT(type == MC_METRIC_COUNTER || type == MC_METRIC_GAUGE);
    entry_add(registry, type, name, help, labels, (struct entry){.read = read, .arg = arg});
}

static bool entry_is_inside(const struct entry *entry, const void *begin, size_t size) {
    uintptr_t at = (uintptr_t)(entry->read != NULL ? entry->arg : entry->metric);
    return mc_range_inside(at, 1, (uintptr_t)begin, size);
}

void mc_metrics_unregister_range(struct mc_metrics *registry, const void *begin, size_t size) {
    pthread_mutex_lock(&registry->lock);
    for (struct mc_list *f = registry->families.next, *next_f; f != &registry->families;
         f = next_f) {
        struct family *family = mc_container_of(f, struct family, link);
        next_f = f->next;
        for (struct mc_list *e = family->entries.next, *next_e; e != &family->entries; e = next_e) {
            struct entry *entry = mc_container_of(e, struct entry, link);
            next_e = e->next;
            if (entry_is_inside(entry, begin, size)) {
                entry_free(entry);
            }
        }
        if (mc_list_empty(&family->entries)) {
            family_free(family);
        }
    }
    pthread_mutex_unlock(&registry->lock);
}

/* ---- text ---- */

static void print_escaped_help(struct mc_buf *out, const char *help) {
    for (; *help != '\0'; help++) {
        if (*help == '\n') {
            mc_buf_puts(out, "\\n");
        } else if (*help == '\\') {
            mc_buf_puts(out, "\\\\");
        } else {
            mc_buf_putc(out, *help);
        }
    }
}

void mc_metrics_label(struct mc_buf *labels, const char *name, const char *value) {
    mc_buf_printf(labels, "%s%s=\"", labels->len > 0 ? "," : "", name);
    for (; *value != '\0'; value++) {
        if (*value == '\n') {
            mc_buf_puts(labels, "\\n");
        } else {
            if (*value == '\\' || *value == '"') {
                mc_buf_putc(labels, '\\');
            }
            mc_buf_putc(labels, *value);
        }
    }
    mc_buf_putc(labels, '"');
}

static void print_value(struct mc_buf *out, const char *name, const struct entry *entry) {
    int64_t value = entry->read != NULL ? entry->read(entry->arg) : mc_metric_get(entry->metric);
    mc_buf_puts(out, name);
    if (entry->labels[0] != '\0') {
        mc_buf_printf(out, "{%s}", entry->labels);
    }
    mc_buf_printf(out, " %lld\n", (long long)value);
}

static void print_bucket(struct mc_buf *out, const char *name, const char *labels,
                         const char *upper, uint64_t cumulative) {
    mc_buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, labels,
                  labels[0] != '\0' ? "," : "", upper, (unsigned long long)cumulative);
}

static void print_part(struct mc_buf *out, const char *name, const char *part, const char *labels,
                       uint64_t value) {
    bool some = labels[0] != '\0';
    mc_buf_printf(out, "%s_%s%s%s%s %llu\n", name, part, some ? "{" : "", labels, some ? "}" : "",
                  (unsigned long long)value);
}

static void print_sum_and_count(struct mc_buf *out, const char *name, const char *labels,
                                const _Atomic uint64_t *sum, uint64_t count) {
    print_part(out, name, "sum", labels, __atomic_load_n((const uint64_t *)sum, __ATOMIC_RELAXED));
    print_part(out, name, "count", labels, count);
}

/* A line for each power of two: every scrape shows the same series, and a page stays short. */
static void print_histogram(struct mc_buf *out, const char *name, const struct entry *entry) {
    const struct mc_histogram *h = entry->metric;
    uint64_t buckets[MC_HISTOGRAM_BUCKETS];
    uint64_t total = histogram_copy(h, buckets);
    uint64_t cumulative = 0;
    for (size_t i = 0; i + 1 < MC_HISTOGRAM_BUCKETS; i++) {
        uint64_t upper = bucket_upper(i);
        cumulative += buckets[i];
        if ((upper & (upper - 1)) == 0) {
            char text[24];
            snprintf(text, sizeof(text), "%llu", (unsigned long long)upper);
            print_bucket(out, name, entry->labels, text, cumulative);
        }
    }
    print_bucket(out, name, entry->labels, "+Inf", total);
    print_sum_and_count(out, name, entry->labels, &h->sum, total);
}

/* Bounds with six decimals, as upstream writes them: a label is compared as text. */
static void print_steps(struct mc_buf *out, const char *name, const struct entry *entry) {
    const struct mc_steps *s = entry->metric;
    uint64_t cumulative = 0;
    for (size_t i = 0;; i++) {
        char text[32] = "+Inf";
        cumulative += __atomic_load_n((const uint64_t *)&s->buckets[i], __ATOMIC_RELAXED);
        if (s->bounds[i] != UINT64_MAX) {
            snprintf(text, sizeof(text), "%llu.000000", (unsigned long long)s->bounds[i]);
        }
        print_bucket(out, name, entry->labels, text, cumulative);
        if (s->bounds[i] == UINT64_MAX) {
            break;
        }
    }
    print_sum_and_count(out, name, entry->labels, &s->sum, cumulative);
}

static void print_summary(struct mc_buf *out, const char *name, const struct entry *entry) {
    static const double QUANTILES[] = {.5, .9, .99};
    const struct mc_histogram *h = entry->metric;
    uint64_t buckets[MC_HISTOGRAM_BUCKETS];
    for (size_t i = 0; i < MC_ARRAY_LEN(QUANTILES); i++) {
        mc_buf_printf(out, "%s{%s%squantile=\"%f\"} %llu\n", name, entry->labels,
                      entry->labels[0] != '\0' ? "," : "", QUANTILES[i],
                      (unsigned long long)mc_histogram_quantile(h, QUANTILES[i]));
    }
    print_sum_and_count(out, name, entry->labels, &h->sum, histogram_copy(h, buckets));
}

static bool has_counted(enum mc_metric_type type, const struct entry *entry) {
    if (type == MC_METRIC_STEPS) {
        const struct mc_steps *s = entry->metric;
        uint64_t any = 0;
        for (size_t i = 0; i < MC_STEPS_MAX; i++) {
            any |= __atomic_load_n((const uint64_t *)&s->buckets[i], __ATOMIC_RELAXED);
        }
        return any != 0;
    }
    if (type == MC_METRIC_HISTOGRAM || type == MC_METRIC_SUMMARY) {
        const struct mc_histogram *h = entry->metric;
        return __atomic_load_n((const uint64_t *)&h->count, __ATOMIC_RELAXED) != 0;
    }
    return mc_metric_get(entry->metric) != 0;
}

static void print_entry(struct mc_buf *out, const struct family *family,
                        const struct entry *entry) {
    switch (family->type) {
    case MC_METRIC_COUNTER:
    case MC_METRIC_GAUGE:
        print_value(out, family->name, entry);
        break;
    case MC_METRIC_HISTOGRAM:
        print_histogram(out, family->name, entry);
        break;
    case MC_METRIC_STEPS:
        print_steps(out, family->name, entry);
        break;
    case MC_METRIC_SUMMARY:
        print_summary(out, family->name, entry);
        break;
    }
}

void mc_metrics_print(struct mc_metrics *registry, struct mc_buf *out) {
    static const char *const TYPES[] = {"counter", "gauge", "histogram", "histogram", "summary"};
    pthread_mutex_lock(&registry->lock);
    for (struct mc_list *f = registry->families.next; f != &registry->families; f = f->next) {
        const struct family *family = mc_container_of(f, struct family, link);
        mc_buf_printf(out, "# HELP %s ", family->name);
        print_escaped_help(out, family->help);
        mc_buf_printf(out, "\n# TYPE %s %s\n", family->name, TYPES[family->type]);
        for (struct mc_list *e = family->entries.next; e != &family->entries; e = e->next) {
            const struct entry *entry = mc_container_of(e, struct entry, link);
            if (!entry->quiet || has_counted(family->type, entry)) {
                print_entry(out, family, entry);
            }
        }
    }
    pthread_mutex_unlock(&registry->lock);
}
