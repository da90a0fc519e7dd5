/*
 * A cache of prefix blocks, simulated: what a policy would hit of a trace at some capacity.
 *
 * Requests come one after another. The prefix hits of a request are the blocks at its head that are
 * there, up to the first that is not; the block hits are all that are there. Then every block is
 * stored, and victims go until the rest fits. For hits all blocks count the same; what the prefix
 * hits save of recomputing counts the tokens of each, and that attention makes a token dearer the
 * more stand before it (docs/eviction.md).
 */
#ifndef MC_CMD_CACHE_SIM_H
#define MC_CMD_CACHE_SIM_H

#include "cmd/trace.h"
#include "policy/policy.h"

struct mc_cache_hits {
    uint64_t prefix, block, references;
    double prefix_rate, block_rate; /* out of all references */
    double saved, cost;             /* of recomputing the prefix hits, and all references */
    double saved_rate;
};

struct mc_cache_setup {
    uint64_t capacity; /* blocks, at least 1 */
    /* The place of a token at which attention costs as much as all the rest; 0 = never. */
    double attention_tokens;
    bool cost_told; /* to the policy, too; otherwise it only counts in `saved` */
};

struct mc_cache_hits mc_cache_simulate(const struct mc_trace *trace,
                                       const struct mc_policy_ops *policy,
                                       const struct mc_cache_setup *setup);

/* The offline optimum: whoever knows the future gives up the block whose next use is farthest and
 * keeps none that has no next use (Belady). The most block hits that any policy can have. */
struct mc_cache_hits mc_cache_optimum(const struct mc_trace *trace,
                                      const struct mc_cache_setup *setup);

#endif
