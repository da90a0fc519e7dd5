/*
 * MC_TEST_THREADS. Copies are of one version only, never take more room than they may, and take in
 * only what is read again; whoever copies from one is not disturbed by its end.
 */
#include <pthread.h>
#include <stdio.h>

#include "client/hot_cache.h"
#include "support/support.h"

#define VALUE 1000u

static void offer(struct mc_hot_cache *cache, const char *key, uint64_t version, uint64_t seed) {
    uint8_t value[VALUE];
    mc_test_fill(value, VALUE, seed);
    struct mc_slice slices[] = {{value, 1}, {value + 1, 0}, {value + 1, VALUE + 500}};
    mc_hot_offer(cache, mc_str_from(key), version, slices, 3, VALUE);
}

static bool has(struct mc_hot_cache *cache, const char *key, uint64_t version, uint64_t seed) {
    const uint8_t *bytes;
    uint64_t length;
    struct mc_hot_entry *entry = mc_hot_get(cache, mc_str_from(key), version, &bytes, &length);
    if (entry == NULL) {
        return false;
    }
    assert_int_equal(length, VALUE);
    mc_test_verify(bytes, VALUE, seed);
    mc_hot_put(cache, entry);
    return true;
}

static void test_a_copy_is_of_one_version(void **state) {
    struct mc_hot_cache *cache = mc_hot_create(
        &(struct mc_hot_config){.bytes = 1 << 20, .largest_bytes = VALUE, .admission = 1});
    struct mc_hot_counters *c = mc_hot_counters(cache);
    assert_false(has(cache, "k", 1, 1));
    offer(cache, "k", 1, 1);
    assert_true(has(cache, "k", 1, 1));
    assert_false(has(cache, "k", 2, 2));
    assert_false(has(cache, "k", 1, 1)); /* versions do not come back, so it went */
    offer(cache, "k", 2, 2);
    offer(cache, "k", 3, 3);
    assert_true(has(cache, "k", 3, 3));
    assert_false(has(cache, "other", 3, 3));
    mc_hot_drop(cache, MC_STR("k"), 2);
    assert_true(has(cache, "k", 3, 3));
    mc_hot_drop(cache, MC_STR("k"), 3);
    assert_false(has(cache, "k", 3, 3));
    assert_int_equal(mc_metric_get(&c->fills), 3);
    assert_int_equal(mc_metric_get(&c->hits), 3);
    assert_int_equal(mc_metric_get(&c->bytes), 0);
    mc_hot_destroy(cache);
}

static void test_room_is_bounded_and_the_least_recent_goes(void **state) {
    struct mc_hot_cache *cache = mc_hot_create(
        &(struct mc_hot_config){.bytes = 12000, .largest_bytes = VALUE, .admission = 1});
    struct mc_hot_counters *c = mc_hot_counters(cache);
    char key[8];
    unsigned kept = 0;
    for (unsigned i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        offer(cache, key, 1, i);
        assert_in_range(mc_metric_get(&c->bytes), 1, 12000);
        assert_true(has(cache, "k0", 1, 0)); /* used all the time */
    }
    for (unsigned i = 1; i < 100; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        bool there = has(cache, key, 1, i);
        assert_true(there || kept == 0); /* the youngest */
        kept += there;
    }
    assert_in_range(kept, 5, 11);
    assert_int_equal(mc_metric_get(&c->evictions), 100 - 1 - kept);
    uint8_t large[VALUE + 1] = {0};
    struct mc_slice slice = {large, sizeof(large)};
    mc_hot_offer(cache, MC_STR("large"), 1, &slice, 1, sizeof(large));
    assert_false(has(cache, "large", 1, 0));
    mc_hot_destroy(cache);
}

static void test_a_scan_leaves_no_trace(void **state) {
    struct mc_hot_cache *cache = mc_hot_create(
        &(struct mc_hot_config){.bytes = 1 << 20, .largest_bytes = VALUE, .admission = 3});
    char key[8];
    for (unsigned i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        offer(cache, key, 1, i);
    }
    assert_int_equal(mc_metric_get(&mc_hot_counters(cache)->fills), 0);
    offer(cache, "k7", 1, 7);
    assert_false(has(cache, "k7", 1, 7));
    offer(cache, "k7", 1, 7);
    assert_true(has(cache, "k7", 1, 7));
    mc_hot_destroy(cache);
}

struct hammer {
    struct mc_hot_cache *cache;
    uint64_t seed;
};
static void *run(void *arg) {
    struct hammer *h = arg;
    struct mc_rng rng;
    mc_rng_seed(&rng, h->seed);
    for (unsigned n = 0; n < 4000; n++) {
        char key[8];
        uint64_t i = mc_rng_next(&rng) % 20, version = 1 + n / 500 + mc_rng_next(&rng) % 2;
        snprintf(key, sizeof(key), "k%u", (unsigned)i);
        if (mc_rng_next(&rng) % 2) {
            offer(h->cache, key, version, i * 1000 + version);
        } else {
            (void)has(h->cache, key, version, i * 1000 + version);
        }
    }
    return NULL;
}

static void test_many_at_once(void **state) {
    enum { THREADS = 4 };
    struct mc_hot_cache *cache = mc_hot_create(
        &(struct mc_hot_config){.bytes = 8000, .largest_bytes = VALUE, .admission = 1});
    struct hammer hammers[THREADS];
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        hammers[i] = (struct hammer){cache, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &hammers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_in_range(mc_metric_get(&mc_hot_counters(cache)->bytes), 0, 8000);
    assert_true(mc_metric_get(&mc_hot_counters(cache)->hits) > 0);
    mc_hot_destroy(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_copy_is_of_one_version),
        cmocka_unit_test(test_room_is_bounded_and_the_least_recent_goes),
        cmocka_unit_test(test_a_scan_leaves_no_trace),
        cmocka_unit_test(test_many_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
