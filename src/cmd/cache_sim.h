/*
 * A cache of prefix blocks, simulated: what a policy would hit of a trace at some capacity.
 *
 * Requests come one after another. The prefix hits of a request are the blocks at its head that are
 * there, up to the first that is not; the block hits are all that are there. Then every block is
 * stored, and victims go until the rest fits. All blocks count the same.
 */
#ifndef MC_CMD_CACHE_SIM_H
#define MC_CMD_CACHE_SIM_H

#include "cmd/trace.h"
#include "policy/policy.h"

struct mc_cache_hits {
    uint64_t prefix, block, references;
    double prefix_rate, block_rate; /* out of all references */
};

/* `capacity` in blocks, at least 1. */
struct mc_cache_hits mc_cache_simulate(const struct mc_trace *trace,
                                       const struct mc_policy_ops *policy, uint64_t capacity);

/* The offline optimum: whoever knows the future gives up the block whose next use is farthest and
 * keeps none that has no next use (Belady). The most block hits that any policy can have. */
struct mc_cache_hits mc_cache_optimum(const struct mc_trace *trace, uint64_t capacity);

#endif
