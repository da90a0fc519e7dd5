/*
 * The options of transfer_engine_bench: upstream's flags, --verify and --seed.
 */
#ifndef MC_CMD_TRANSFER_BENCH_H
#define MC_CMD_TRANSFER_BENCH_H

#include "cmd/cmd.h"

struct mc_transfer_bench_options {
    const char *local_server_name, *metadata_server, *mode, *operation, *protocol, *device_name,
        *nic_priority_matrix, *segment_id, *report_unit, *backend;
    uint64_t buffer_size, batch_size, block_size, duration, threads, report_precision, seed;
    int64_t gpu_id;
    bool auto_discovery, use_vram, init_mem, verify;
    bool use_vram_given, gpu_id_given;
    struct mc_glog_options log;
};

/* What this build does not have, or what contradicts itself, as MC_ERR_USAGE with a sentence in
 * `error`. */
MC_MUST_USE enum mc_status mc_transfer_bench_check(const struct mc_transfer_bench_options *options,
                                                   struct mc_buf *error);

#endif
