/* What tebench counts and how it says it. See cmd/tebench.h. */
#include "cmd/tebench.h"

#include <jansson.h>
#include <stdio.h>
#include <time.h>

/* ---- latencies ---- */

#define SUB_BITS 5u

static unsigned bucket_of(uint64_t ns) {
    if (ns < (1u << SUB_BITS)) {
        return (unsigned)ns;
    }
    unsigned exponent = 63u - (unsigned)__builtin_clzll(ns);
    unsigned sub = (unsigned)(ns >> (exponent - SUB_BITS)) & ((1u << SUB_BITS) - 1);
    return ((exponent - SUB_BITS + 1) << SUB_BITS) + sub;
}

/* The largest value that falls into the bucket. */
static double bucket_end_us(unsigned bucket) {
    if (bucket < (1u << SUB_BITS)) {
        return (double)bucket / 1e3;
    }
    unsigned exponent = (bucket >> SUB_BITS) + SUB_BITS - 1;
    double sub = (double)((bucket & ((1u << SUB_BITS) - 1)) + 1 + (1u << SUB_BITS));
    return sub * (double)(1ull << (exponent - SUB_BITS)) / 1e3;
}

void tebench_stats_add(struct tebench_stats *s, uint64_t ns, uint64_t bytes) {
    s->operations++;
    s->bytes += bytes;
    s->total_ns += ns;
    s->buckets[bucket_of(ns)]++;
}

void tebench_stats_merge(struct tebench_stats *into, const struct tebench_stats *from) {
    into->operations += from->operations;
    into->bytes += from->bytes;
    into->late += from->late;
    into->failed += from->failed;
    into->total_ns += from->total_ns;
    for (size_t i = 0; i < TEBENCH_BUCKETS; i++) {
        into->buckets[i] += from->buckets[i];
    }
}

double tebench_stats_percentile_us(const struct tebench_stats *s, double part) {
    uint64_t wanted = (uint64_t)((double)s->operations * part), seen = 0;
    for (unsigned i = 0; i < TEBENCH_BUCKETS; i++) {
        seen += s->buckets[i];
        if (seen > wanted || (seen == s->operations && seen > 0)) {
            return bucket_end_us(i);
        }
    }
    return 0;
}

double tebench_stats_within(const struct tebench_stats *s, uint64_t us) {
    uint64_t within = 0;
    for (unsigned i = 0; i < TEBENCH_BUCKETS && bucket_end_us(i) <= (double)us; i++) {
        within += s->buckets[i];
    }
    uint64_t all = s->operations + s->late + s->failed;
    return all == 0 ? 0 : (double)within / (double)all;
}

/* ---- the table ---- */

static double gigabytes(const struct tebench_stats *s, double seconds) {
    return (double)s->bytes / seconds / 1e9;
}

static double mean_us(const struct tebench_stats *s) {
    return s->operations == 0 ? 0 : (double)s->total_ns / (double)s->operations / 1e3;
}

void tebench_print_header(void) {
    printf("%8s %12s %8s %12s %12s %12s %12s %12s\n", "Threads", "BlkSize (B)", "Batch",
           "BW (GB/s)", "Avg Lat (us)", "P50 (us)", "P99 (us)", "P999 (us)");
}

void tebench_print_run(const struct tebench_run *run) {
    printf("%8llu %12llu %8llu %12.3f %12.1f %12.1f %12.1f %12.1f\n",
           (unsigned long long)run->threads, (unsigned long long)run->block_size,
           (unsigned long long)run->batch_size, gigabytes(&run->all, run->seconds),
           mean_us(&run->all), tebench_stats_percentile_us(&run->all, 0.5),
           tebench_stats_percentile_us(&run->all, 0.99),
           tebench_stats_percentile_us(&run->all, 0.999));
    if (run->all.late > 0 || run->all.failed > 0) {
        printf("         %llu past their deadline, %llu failed\n",
               (unsigned long long)run->all.late, (unsigned long long)run->all.failed);
    }
    fflush(stdout);
}

/* ---- classes ---- */

struct served {
    double gbps, p99_us, attained, goodput, leakage; /* leakage < 0: not known */
};
struct summary {
    double weighted_goodput, fairness;
};

static struct served serve(const struct tebench_run *run, size_t i) {
    const struct tebench_class *c = &run->classes->list[i];
    const struct tebench_stats *s = &run->by_class[i];
    struct served out = {.gbps = gigabytes(s, run->seconds),
                         .p99_us = tebench_stats_percentile_us(s, 0.99),
                         .attained = c->slo_us == 0 ? 1 : tebench_stats_within(s, c->slo_us)};
    out.goodput = out.gbps * out.attained;
    out.leakage = c->isolated_gbps > 0 ? 1 - out.gbps / c->isolated_gbps : -1;
    return out;
}

static struct summary sum_up(const struct tebench_run *run) {
    struct summary out = {0};
    double sum = 0, squares = 0;
    for (size_t i = 0; i < run->classes->count; i++) {
        struct served s = serve(run, i);
        double share = s.gbps / run->classes->list[i].weight;
        out.weighted_goodput += s.goodput * run->classes->list[i].weight;
        sum += share;
        squares += share * share;
    }
    out.fairness = squares == 0 ? 0 : sum * sum / ((double)run->classes->count * squares);
    return out;
}

void tebench_print_classes(const struct tebench_run *run, double link_gbps) {
    printf("%16s %8s %10s %12s %10s %12s %10s\n", "class", "threads", "GB/s", "P99 (us)", "in SLO",
           "goodput", "leakage");
    for (size_t i = 0; i < run->classes->count; i++) {
        struct served s = serve(run, i);
        printf("%16s %8llu %10.3f %12.1f %9.1f%% %12.3f ", run->classes->list[i].name,
               (unsigned long long)run->classes->list[i].threads, s.gbps, s.p99_us,
               s.attained * 100, s.goodput);
        if (s.leakage < 0) {
            printf("%10s\n", "-");
        } else {
            printf("%9.1f%%\n", s.leakage * 100);
        }
    }
    struct summary all = sum_up(run);
    printf("weighted goodput %.3f GB/s, fairness %.3f", all.weighted_goodput, all.fairness);
    if (link_gbps > 0) {
        printf(", %.1f%% of the link", gigabytes(&run->all, run->seconds) * 8 / link_gbps * 100);
    }
    printf("\n");
    fflush(stdout);
}

/* ---- JSON lines ---- */

static json_t *stats_json(const struct tebench_stats *s, double seconds) {
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "operations", (json_int_t)s->operations,
        "bytes", (json_int_t)s->bytes, "late", (json_int_t)s->late, "failed", (json_int_t)s->failed,
        "throughput_gbytes", gigabytes(s, seconds), "mean_us", mean_us(s), "p50_us",
        tebench_stats_percentile_us(s, 0.5), "p99_us", tebench_stats_percentile_us(s, 0.99),
        "p999_us", tebench_stats_percentile_us(s, 0.999));
}

static json_t *classes_json(const struct tebench_run *run) {
    json_t *list = json_array();
    for (size_t i = 0; i < run->classes->count; i++) {
        struct served s = serve(run, i);
        json_t *one = stats_json(&run->by_class[i], run->seconds);
        json_object_set_new(one, "name", json_string(run->classes->list[i].name));
        json_object_set_new(one, "weight", json_real(run->classes->list[i].weight));
        json_object_set_new(one, "slo_attainment", json_real(s.attained));
        json_object_set_new(one, "goodput_gbytes", json_real(s.goodput));
        json_object_set_new(one, "isolation_leakage",
                            s.leakage < 0 ? json_null() : json_real(s.leakage));
        json_array_append_new(list, one);
    }
    return list;
}

enum mc_status tebench_write_jsonl(const char *path, const struct tebench_run *run,
                                   const struct tebench_options *o) {
    json_t *root = stats_json(&run->all, run->seconds);
    struct summary all = sum_up(run);
    json_object_set_new(root, "op_type", json_string(o->op_type));
    json_object_set_new(root, "threads", json_integer((json_int_t)run->threads));
    json_object_set_new(root, "block_size", json_integer((json_int_t)run->block_size));
    json_object_set_new(root, "batch_size", json_integer((json_int_t)run->batch_size));
    json_object_set_new(root, "seconds", json_real(run->seconds));
    json_object_set_new(root, "seed", json_integer((json_int_t)o->seed));
    json_object_set_new(root, "verified", json_boolean(o->check_consistency));
    if (run->classes->count > 0) {
        json_object_set_new(root, "classes", classes_json(run));
        json_object_set_new(root, "weighted_goodput_gbytes", json_real(all.weighted_goodput));
        json_object_set_new(root, "jain_fairness", json_real(all.fairness));
    }
    char *text = json_dumps(root, JSON_COMPACT);
    FILE *file = fopen(path, "ae");
    bool good = text != NULL && file != NULL && fprintf(file, "%s\n", text) > 0;
    if (file != NULL && fclose(file) != 0) {
        good = false;
    }
    free(text);
    json_decref(root);
    return good ? MC_OK : MC_FILE_OPEN_FAIL;
}
