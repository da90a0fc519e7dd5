/* Long and short documents that are asked for equally often: a policy that is told what recomputing
 * costs keeps the long ones, whose ends are dear, and saves more computing; one that is not told
 * does not. The same when a store only sees the missing end of a chain that was asked for before.
 */
#include "policy/policy.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>

#define LONG      20u /* documents */
#define SHORT     640u
#define LONGEST   256u
#define SHORTEST  8u
#define ROOM      5000u /* blocks, of the 10240 there are */
#define REQUESTS  12000u
#define ATTENTION 32.0

struct world {
    struct mc_policy *policy;
    bool there[LONG * LONGEST + SHORT * SHORTEST];
    double saved, hits;
};

/* As an engine does it: asks for the chain, reads the prefix that is there, stores the rest. */
static void in_parts(struct world *w, const uint64_t *keys, size_t count, size_t prefix,
                     uint64_t now) {
    mc_policy_request(w->policy, &(struct mc_policy_request){MC_POLICY_ASK, keys, count, now});
    mc_policy_request(w->policy, &(struct mc_policy_request){MC_POLICY_READ, keys, prefix, now});
    for (size_t i = prefix; i < count; i += SHORTEST) {
        mc_policy_request(w->policy,
                          &(struct mc_policy_request){MC_POLICY_STORE, keys + i, SHORTEST, now});
    }
}

static void one_request(struct world *w, uint64_t document, uint64_t now, bool parts) {
    uint64_t keys[LONGEST], victim;
    bool is_long = document < LONG;
    size_t count = is_long ? LONGEST : SHORTEST, prefix = 0;
    uint64_t first = is_long ? document * LONGEST : LONG * LONGEST + (document - LONG) * SHORTEST;
    for (size_t i = 0; i < count; i++) {
        keys[i] = first + i;
    }
    for (; prefix < count && w->there[keys[prefix]]; prefix++) {
        w->saved += 1 + (double)prefix / ATTENTION;
        w->hits += 1;
    }
    prefix -= prefix % SHORTEST;
    if (parts) {
        in_parts(w, keys, count, prefix, now);
    } else {
        mc_policy_request(w->policy,
                          &(struct mc_policy_request){MC_POLICY_STORE, keys, count, now});
    }
    for (size_t i = 0; i < count; i++) {
        w->there[keys[i]] = true;
    }
    while (mc_policy_resident(w->policy) > ROOM && mc_policy_victim(w->policy, &victim)) {
        w->there[victim] = false;
    }
}

static struct world run(double attention_blocks, bool parts) {
    struct mc_rng rng;
    mc_rng_seed(&rng, 7);
    struct world w = {
        .policy = mc_policy_create(
            "chain", &(struct mc_policy_config){.attention_blocks = attention_blocks})};
    for (uint64_t i = 0; i < REQUESTS; i++) {
        one_request(&w, mc_rng_below(&rng, LONG + SHORT), i * 100, parts);
    }
    assert_true(mc_policy_check(w.policy));
    mc_policy_destroy(w.policy);
    return w;
}

static void told_saves_more(bool parts) {
    struct world not_told = run(0, parts), told = run(ATTENTION, parts);
    printf("saved %.0f with costs, %.0f without; hits %.0f and %.0f\n", told.saved, not_told.saved,
           told.hits, not_told.hits);
    assert_true(not_told.saved > 0);
    assert_true(told.saved > 1.1 * not_told.saved);
}

static void test_whole_chains(void **state) {
    told_saves_more(false);
}
static void test_ends_of_chains_that_were_asked_for(void **state) {
    told_saves_more(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_chains),
        cmocka_unit_test(test_ends_of_chains_that_were_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
