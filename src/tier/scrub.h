/* The scrubber of a tier. Private to the room; see tier/scrub.c. */
#ifndef MC_TIER_SCRUB_H
#define MC_TIER_SCRUB_H

#include <pthread.h>

#include "tier/backend.h"

struct mc_tier_scrubber;
/* NULL when there is no thread to be had, which the log says. */
struct mc_tier_scrubber *mc_tier_scrub_start(struct mc_tier_backend *backend,
                                             uint64_t bytes_per_second);
void mc_tier_scrub_stop(struct mc_tier_scrubber *scrubber); /* NULL is allowed */
void mc_tier_scrub_stats(const struct mc_tier_scrubber *scrubber, struct mc_tier_stats *out);
/* A whole round, as fast as it goes. */
void mc_tier_scrub_once(struct mc_tier_backend *backend);

#endif
