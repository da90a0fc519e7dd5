/*
 * The miss-ratio curve of live traffic, from a sample of it, in fixed memory (SHARDS, Waldspurger
 * et al., FAST 2015): what share of the uses of keys an LRU cache of any size would hit.
 *
 * A key is in the sample when its hash is below a threshold, so all uses of a key are, or none. The
 * distance of a use is how many other sampled keys were used since the last one, divided by the
 * rate; a cache hits it when it has more room than that. When there are more sampled keys than
 * MC_MRC_KEYS the threshold falls by an eighth; after a million uses it is an eighth at most. Not
 * thread safe, but mc_mrc_wants is.
 */
#ifndef MC_POLICY_MRC_H
#define MC_POLICY_MRC_H

#include "base/base.h"

#include <stdatomic.h>

#define MC_MRC_KEYS 8192u

struct mc_mrc;
struct mc_mrc *mc_mrc_create(void);
void mc_mrc_free(struct mc_mrc *mrc);

/* Whether the key is in the sample. Any thread; false for nearly all keys of a large store. */
bool mc_mrc_wants(const struct mc_mrc *mrc, uint64_t key);
/* A use of a key that mc_mrc_wants. */
void mc_mrc_use(struct mc_mrc *mrc, uint64_t key);
/* So many uses of keys have been, in the sample or not. Any thread. */
void mc_mrc_count(struct mc_mrc *mrc, uint64_t uses);

struct mc_mrc_summary {
    uint64_t uses;        /* all */
    double distinct_keys; /* estimated: that were ever used */
    double sample_rate;
};
void mc_mrc_summary(const struct mc_mrc *mrc, struct mc_mrc_summary *out);
/* The share of uses that an LRU cache of so many keys would hit; 0 before the first use. */
double mc_mrc_hit_ratio(const struct mc_mrc *mrc, double keys);

#endif
