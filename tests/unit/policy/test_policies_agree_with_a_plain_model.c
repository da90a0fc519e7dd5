/* Whatever is asked, read, stored, removed or kept: a policy offers exactly the keys that are
 * there, each once, its records agree, and they stay within their bound. LRU's order is checked key
 * by key. */
#include "policy/policy.h"
#include "support/support.h"

#include <stdlib.h>

#define KEYS  600u
#define STEPS 30000u

struct model {
    uint64_t stamp[KEYS]; /* 0 = not there; else when it was last used */
    uint64_t clock;
    size_t count;
};

static void model_put(struct model *m, uint64_t key) {
    m->count += m->stamp[key] == 0;
    m->stamp[key] = ++m->clock;
}
static void model_take(struct model *m, uint64_t key) {
    assert_true(key < KEYS && m->stamp[key] != 0);
    m->stamp[key] = 0;
    m->count--;
}
static uint64_t model_oldest(const struct model *m) {
    uint64_t oldest = KEYS;
    for (uint64_t k = 0; k < KEYS; k++) {
        if (m->stamp[k] && (oldest == KEYS || m->stamp[k] < m->stamp[oldest])) {
            oldest = k;
        }
    }
    return oldest;
}

static void one_request(struct mc_policy *p, struct model *m, struct mc_rng *rng, uint64_t now) {
    uint64_t keys[40], first = mc_rng_below(rng, KEYS);
    size_t count = mc_rng_below(rng, 40);
    enum mc_policy_kind kind = (enum mc_policy_kind)mc_rng_below(rng, 3);
    for (size_t i = 0; i < count; i++) {
        keys[i] = (first + i) % KEYS;
        if (kind == MC_POLICY_STORE || (kind == MC_POLICY_READ && m->stamp[keys[i]])) {
            model_put(m, keys[i]);
        }
    }
    mc_policy_request(p, &(struct mc_policy_request){kind, keys, count, now});
}

static void one_victim(struct mc_policy *p, struct model *m, struct mc_rng *rng, bool exact) {
    uint64_t key = KEYS;
    assert_int_equal(mc_policy_victim(p, &key), m->count > 0);
    if (m->count == 0 && key == KEYS) {
        return;
    }
    if (exact) {
        assert_int_equal(key, model_oldest(m));
    }
    model_take(m, key);
    if (mc_rng_below(rng, 8) == 0) {
        mc_policy_keep(p, key);
        model_put(m, key);
    }
}

static void run(const struct mc_policy_ops *ops, uint64_t seed) {
    struct mc_rng rng;
    mc_rng_seed(&rng, seed);
    struct model *m = mc_zalloc(sizeof(*m));
    struct mc_policy *p = ops->create(&(struct mc_policy_config){.attention_blocks = (double)seed});
    uint64_t now = 0, offered = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        now += mc_rng_below(&rng, 50) == 0 ? mc_rng_below(&rng, 100000) : mc_rng_below(&rng, 100);
        unsigned what = (unsigned)mc_rng_below(&rng, 10);
        if (what == 0) {
            one_request(p, m, &rng, now);
        } else if (what < 9) {
            one_victim(p, m, &rng, ops == &mc_policy_lru);
            offered++;
        } else {
            uint64_t key = mc_rng_below(&rng, KEYS);
            mc_policy_remove(p, key);
            if (m->stamp[key]) {
                model_take(m, key);
            }
        }
        assert_int_equal(mc_policy_resident(p), m->count);
        if (step % 500 == 0) {
            assert_true(mc_policy_check(p));
        }
    }
    assert_true(offered > STEPS / 2);
    while (m->count) {
        uint64_t key = KEYS;
        assert_true(mc_policy_victim(p, &key));
        model_take(m, key);
    }
    assert_true(mc_policy_check(p));
    mc_policy_destroy(p);
    free(m);
}

static void test_every_policy(void **state) {
    for (size_t i = 0; i < mc_policy_count; i++) {
        for (uint64_t seed = 1; seed <= 4; seed++) {
            run(mc_policies[i], seed);
        }
    }
}

/* A session whose chain does not fit: its head stays, because an end without head is no use. */
static void test_chain_gives_up_a_chain_from_its_end(void **state) {
    struct mc_policy *p = mc_policy_create("chain", NULL);
    uint64_t keys[100], now = 0;
    for (uint64_t i = 0; i < 100; i++) {
        keys[i] = i;
    }
    for (int turn = 0; turn < 20; turn++, now += 5000) {
        mc_policy_request(p, &(struct mc_policy_request){MC_POLICY_STORE, keys, 100, now});
        uint64_t victim = 0;
        for (uint64_t expected = 99; mc_policy_resident(p) > 50; expected--) {
            assert_true(mc_policy_victim(p, &victim));
            assert_int_equal(victim, expected);
        }
    }
    mc_policy_destroy(p);
}

static void test_names(void **state) {
    assert_ptr_equal(mc_policy_find("own"), mc_policy_find("chain"));
    assert_null(mc_policy_find("LRU"));
    assert_null(mc_policy_create("", NULL));
}

/* ---- documents that are asked for three times and never again ---- */

#define DOCUMENTS 3000u
#define BLOCKS    16u
#define BETWEEN   200u  /* other documents, until one is asked for again */
#define ROOM      7000u /* more than LRU needs to have it then */

static size_t hits_of_a_document(struct mc_policy *p, bool *there, uint64_t document,
                                 uint64_t now) {
    uint64_t keys[BLOCKS], victim;
    size_t hits = 0;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        keys[i] = document * BLOCKS + i;
        hits += there[keys[i]];
        there[keys[i]] = true;
    }
    mc_policy_request(p, &(struct mc_policy_request){MC_POLICY_STORE, keys, BLOCKS, now});
    while (mc_policy_resident(p) > ROOM && mc_policy_victim(p, &victim)) {
        there[victim] = false;
    }
    return hits;
}

static size_t hits_of(const char *name) {
    struct mc_policy *p = mc_policy_create(name, NULL);
    bool *there = mc_zalloc(DOCUMENTS * BLOCKS);
    uint64_t now = 0;
    size_t hits = 0;
    for (uint64_t document = 0; document < DOCUMENTS; document++) {
        hits += hits_of_a_document(p, there, document, now += 100);
        for (int again = 0; again < 2 && document >= BETWEEN; again++) {
            hits += hits_of_a_document(p, there, document - BETWEEN, now += 100);
        }
    }
    free(there);
    mc_policy_destroy(p);
    return hits;
}

/* Nothing that was used often is worth anything here, and what was used once is. */
static void test_chain_learns_that_much_used_is_dead(void **state) {
    size_t lru = hits_of("lru"), own = hits_of("chain");
    assert_true(lru > DOCUMENTS * BLOCKS);
    assert_true(own >= lru - lru / 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_policy),
        cmocka_unit_test(test_chain_learns_that_much_used_is_dead),
        cmocka_unit_test(test_chain_gives_up_a_chain_from_its_end),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
