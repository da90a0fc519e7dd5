/* The curve of a sample agrees with exact LRU, on real traces and in corner cases. */
#include "cmd/cache_sim.h"
#include "policy/mrc.h"
#include "support/support.h"

#include <math.h>

static void use(struct mc_mrc *mrc, uint64_t key) {
    mc_mrc_count(mrc, 1);
    if (mc_mrc_wants(mrc, key)) {
        mc_mrc_use(mrc, key);
    }
}

static void trace_agrees(const char *path) {
    struct mc_trace trace;
    struct mc_buf error = {0};
    assert_ok(mc_trace_load(&path, 1, &trace, &error));
    struct mc_mrc *mrc = mc_mrc_create();
    for (size_t r = 0; r < trace.request_count; r++) {
        for (size_t i = 0; i < trace.requests[r].block_count; i++) {
            use(mrc, trace.blocks[trace.requests[r].first_block + i] * 0x9e3779b97f4a7c15ull);
        }
    }
    double sum = 0;
    unsigned count = 0;
    for (uint64_t capacity = 500; capacity < trace.distinct_count; capacity *= 2, count++) {
        double exact = mc_cache_simulate(&trace, &mc_policy_lru, &(struct mc_cache_setup){capacity})
                           .block_rate;
        double sampled = mc_mrc_hit_ratio(mrc, (double)capacity);
        assert_true(fabs(exact - sampled) < 0.05);
        sum += fabs(exact - sampled);
    }
    assert_true(count > 5);
    if (sum / count >= 0.02) {
        fail_msg("%s: mean error %.4f", path, sum / count);
    }
    struct mc_mrc_summary summary;
    mc_mrc_summary(mrc, &summary);
    assert_int_equal(summary.uses, trace.block_count);
    assert_true(fabs(summary.distinct_keys / (double)trace.distinct_count - 1) < 0.1);
    assert_true(summary.sample_rate < 0.5);
    mc_mrc_free(mrc);
    mc_trace_free(&trace);
}

static void test_traces(void **state) {
    trace_agrees("data/traces/conversation_trace.jsonl.gz");
    trace_agrees("data/traces/synthetic_trace.jsonl.gz");
}

/* A loop is all or nothing. */
static void test_a_loop(void **state) {
    struct mc_mrc *mrc = mc_mrc_create();
    assert_true(mc_mrc_hit_ratio(mrc, 100) == 0);
    for (int i = 0; i < 500000; i++) {
        use(mrc, (uint64_t)(i % 5000));
    }
    assert_true(mc_mrc_hit_ratio(mrc, 4500) < 0.01);
    assert_true(mc_mrc_hit_ratio(mrc, 5500) > 0.98);
    mc_mrc_free(mrc);
}

/* Few keys and much traffic: the sample shrinks, the curve stays. */
static void test_much_traffic_of_few_keys(void **state) {
    struct mc_mrc *mrc = mc_mrc_create();
    struct mc_mrc_summary summary;
    for (int i = 0; i < 3000000; i++) {
        use(mrc, (uint64_t)(i % 4000));
    }
    mc_mrc_summary(mrc, &summary);
    assert_true(summary.sample_rate <= 0.125);
    assert_true(mc_mrc_hit_ratio(mrc, 3000) < 0.02);
    assert_true(mc_mrc_hit_ratio(mrc, 5000) > 0.98);
    mc_mrc_free(mrc);
}

/* One key has all the uses: in the sample or not, it is hit. */
static void test_one_popular_key(void **state) {
    for (uint64_t popular = 0; popular < 8; popular++) {
        struct mc_mrc *mrc = mc_mrc_create();
        for (uint64_t i = 0; i < 400000; i++) {
            use(mrc, i % 10 ? popular : 1000 + i);
        }
        assert_true(fabs(mc_mrc_hit_ratio(mrc, 100) - 0.9) < 0.02);
        mc_mrc_free(mrc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_a_loop),
        cmocka_unit_test(test_much_traffic_of_few_keys),
        cmocka_unit_test(test_one_popular_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
