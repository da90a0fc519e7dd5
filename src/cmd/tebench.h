/*
 * tebench: upstream's sweeping benchmark of the Transfer Engine, with its flags. One process
 * without
 * --target_seg_name lends a buffer; another sweeps threads, block sizes and batch sizes over it, or
 * runs classes of threads beside each other and says how well each was served.
 */
#ifndef MC_CMD_TEBENCH_H
#define MC_CMD_TEBENCH_H

#include "cmd/cmd.h"
#include "mooncake/transfer.h"

#define TEBENCH_CLASSES_MAX 64
#define TEBENCH_BUCKETS     2048

struct tebench_options {
    const char *seg_name, *seg_type, *seg_type_mix, *target_seg_name, *op_type;
    bool check_consistency;
    uint64_t total_buffer_size, start_block_size, max_block_size, start_batch_size, max_batch_size;
    uint64_t duration, start_num_threads, max_num_threads, target_offset, target_range_size;
    const char *qos_classes, *qos_classes_json, *workload_classes_json, *qos_output_jsonl;
    double qos_link_capacity_gbps;
    uint64_t request_interval_us, deadline_us, deadline_tight_threads, seed;
    bool deadline_bw_arbitration, notifi;
    int64_t local_gpu_id, target_gpu_id;
    const char *metadata_type, *metadata_url_list, *xport_type, *backend;
    uint64_t rpc_server_port;
    const char *tent_transport_hint, *tent_intent_type;
    struct mc_glog_options log;
};
extern const struct mc_option_set mc_tebench_options;

/* ---- classes of threads ---- */

struct tebench_class {
    char name[64];
    uint64_t threads, slo_us, block_size, batch_size, deadline_us;
    double weight, isolated_gbps; /* 0 = not known */
    enum mc_intent intent;
};
struct tebench_classes {
    size_t count; /* 0 = none */
    bool shaped;  /* they have block and batch sizes of their own */
    struct tebench_class list[TEBENCH_CLASSES_MAX];
};
/* From the three flags, of which at most one may be given. MC_INVALID_PARAMS with the reason. */
MC_MUST_USE enum mc_status tebench_classes_parse(const struct tebench_options *options,
                                                 struct tebench_classes *out, struct mc_buf *error);
/* "foreground_get" and so on, or ours. */
MC_MUST_USE enum mc_status tebench_intent_parse(const char *text, enum mc_intent *out);

/* ---- what was measured ---- */

/* Latencies in logarithmic buckets, 32 to a power of two: exact to 3 %. */
struct tebench_stats {
    uint64_t operations, bytes, late, failed, total_ns;
    uint64_t buckets[TEBENCH_BUCKETS];
};
void tebench_stats_add(struct tebench_stats *s, uint64_t ns, uint64_t bytes);
void tebench_stats_merge(struct tebench_stats *into, const struct tebench_stats *from);
double tebench_stats_percentile_us(const struct tebench_stats *s, double part);
/* The part of operations that took at most so long. */
double tebench_stats_within(const struct tebench_stats *s, uint64_t us);

struct tebench_run {
    uint64_t threads, block_size, batch_size;
    double seconds;
    struct tebench_stats all;
    const struct tebench_classes *classes;
    struct tebench_stats *by_class; /* classes->count */
};
void tebench_print_header(void);
void tebench_print_run(const struct tebench_run *run);
/* Per class: p99, part within the objective, goodput; over all: weighted goodput, Jain's fairness
 * of throughput a weight, utilisation of the link. */
void tebench_print_classes(const struct tebench_run *run, double link_gbps);
/* Appends a line of JSON. MC_FILE_OPEN_FAIL. */
MC_MUST_USE enum mc_status tebench_write_jsonl(const char *path, const struct tebench_run *run,
                                               const struct tebench_options *options);

#endif
