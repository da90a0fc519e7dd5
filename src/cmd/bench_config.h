/*
 * What the benchmarks of the Transfer Engine say before they measure: their whole configuration, as
 * flags that repeat the run, and what is known to make a run slow.
 */
#ifndef MC_CMD_BENCH_CONFIG_H
#define MC_CMD_BENCH_CONFIG_H

#include "base/options.h"

/* "program --name=value ..." of every option, given or not. */
void mc_bench_print_config(const struct mc_option_set *set, const void *config);

struct mc_bench_shape {
    uint64_t block_size, batch_size, threads;
    bool verify;
    uint64_t pause_us;
};
/* A line "warning: ..." for each thing that will make the figures low. */
void mc_bench_print_warnings(const struct mc_bench_shape *shape);

#endif
