/*
 * What the benchmarks of the Transfer Engine say before they measure: their whole configuration, as
 * flags that repeat the run, and what is known to make a run slow.
 */
#ifndef MC_CMD_BENCH_CONFIG_H
#define MC_CMD_BENCH_CONFIG_H

#include "base/options.h"
#include "mooncake/transfer.h"

/* "program --name=value ..." of every option, given or not. */
void mc_bench_print_config(const struct mc_option_set *set, const void *config);

struct mc_bench_shape {
    uint64_t block_size, batch_size, threads;
    bool verify;
    uint64_t pause_us;
};
/* A line "warning: ..." for each thing that will make the figures low. */
void mc_bench_print_warnings(const struct mc_bench_shape *shape);

/* Has the engine to be made move everything by the transport of this name ("" or "auto": by those
 * that it chooses). `policy` is for what `config` then points to. */
#define MC_BENCH_POLICY_BYTES 192
void mc_bench_use_transport(const char *name, char policy[MC_BENCH_POLICY_BYTES],
                            struct mc_engine_options *config);
/* Whether the engine has that transport on this machine; if not, says which it has. */
bool mc_bench_has_transport(const char *program, const struct mc_engine *engine, const char *name);

#endif
