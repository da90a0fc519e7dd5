/*
 * Arguments of every shape, for tests that fuzz what reads requests: walks a schema table
 * (wire/schema.h) and fills its C struct with values that are valid one by one - a few keys,
 * clients, segments and addresses that come again and again, and what earlier answers told - and
 * senseless together. One seed, one sequence.
 */
#ifndef MC_TESTS_SHAPER_H
#define MC_TESTS_SHAPER_H

#include "wire/schema.h"

#define SHAPER_LEARNT       64
#define SHAPER_LEARNT_BYTES 400
struct shaper {
    struct mc_rng rng;
    struct mc_arena arena; /* of what was filled; the test resets and frees it */
    struct mc_uuid ids[SHAPER_LEARNT];
    uint64_t numbers[SHAPER_LEARNT];
    char texts[SHAPER_LEARNT][SHAPER_LEARNT_BYTES];
    size_t text_lengths[SHAPER_LEARNT];
    enum { SHAPER_KEY, SHAPER_TENANT, SHAPER_SEGMENT } role; /* of the next text */
    const struct mc_type *whole;
    uint64_t keys, key, client;
    size_t vector; /* how many the vectors of this request have, mostly */
};
/* Everything else is zero at the start. */
void shaper_fill(struct shaper *s, const struct mc_type *type, void *out);
/* Keeps some of an answer for later requests; keys that begin with "w/" are somebody else's. */
void shaper_learn(struct shaper *s, const struct mc_type *type, const void *value);

#endif
