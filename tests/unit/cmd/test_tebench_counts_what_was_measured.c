/* tebench's latency buckets, checked against sorted samples; the parts within an objective; classes
 * of threads in each of their forms, and what is wrong with them. */
#include "cmd/tebench.h"
#include "support/support.h"

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_percentiles_are_right_to_a_bucket(void **state) {
    enum { SAMPLES = 50000 };
    static const double parts[] = {0, 0.01, 0.5, 0.9, 0.99, 0.999, 1};
    struct tebench_stats *s = mc_zalloc(sizeof(*s));
    uint64_t *samples = malloc(SAMPLES * sizeof(*samples)), total = 0;
    struct mc_rng rng;
    mc_rng_seed(&rng, 5);
    for (size_t i = 0; i < SAMPLES; i++) {
        samples[i] = mc_rng_next(&rng) >> (24 + mc_rng_below(&rng, 40));
        total += samples[i];
        tebench_stats_add(s, samples[i], 10);
    }
    qsort(samples, SAMPLES, sizeof(*samples), by_size);
    for (size_t i = 0; i < MC_ARRAY_LEN(parts); i++) {
        size_t at = (size_t)mc_min_u64(SAMPLES - 1, (uint64_t)(SAMPLES * parts[i]));
        double exact = (double)samples[at] / 1e3;
        double told = tebench_stats_percentile_us(s, parts[i]);
        assert_true(told >= exact && told <= exact * 1.04 + 0.001);
    }
    assert_int_equal(s->operations, SAMPLES);
    assert_int_equal(s->bytes, 10 * SAMPLES);
    assert_int_equal(s->total_ns, total);
    tebench_stats_add(s, UINT64_MAX, 0); /* the last bucket exists */
    free(samples);
    free(s);
}

static void test_parts_within_an_objective(void **state) {
    struct tebench_stats *s = mc_zalloc(sizeof(*s)), *all = mc_zalloc(sizeof(*all));
    assert_true(tebench_stats_within(s, 100) == 0);
    for (int i = 0; i < 100; i++) {
        tebench_stats_add(s, i < 75 ? 50000 : 500000, 1);
    }
    assert_true(tebench_stats_within(s, 100) == 0.75);
    assert_true(tebench_stats_within(s, 1000) == 1);
    s->late = 100; /* what was given up was not within either */
    assert_true(tebench_stats_within(s, 1000) == 0.5);
    tebench_stats_merge(all, s);
    tebench_stats_merge(all, s);
    assert_int_equal(all->operations, 200);
    assert_int_equal(all->late, 200);
    assert_true(tebench_stats_within(all, 100) == 0.375);
    free(s);
    free(all);
}

static enum mc_status parse(const char *text, const char *json, const char *workload,
                            struct tebench_classes *out, struct mc_buf *error) {
    const struct tebench_options o = {
        .qos_classes = text, .qos_classes_json = json, .workload_classes_json = workload};
    return tebench_classes_parse(&o, out, error);
}

static void test_classes(void **state) {
    struct tebench_classes c;
    struct mc_buf error = {0};
    assert_ok(parse("", "", "", &c, &error));
    assert_int_equal(c.count, 0);
    assert_ok(parse("fg:3:1500:2.5:12,bg:1:0:1", "", "", &c, &error));
    assert_int_equal(c.count, 2);
    assert_string_equal(c.list[0].name, "fg");
    assert_true(c.list[0].threads == 3 && c.list[0].slo_us == 1500);
    assert_true(c.list[0].weight == 2.5 && c.list[0].isolated_gbps == 12);
    assert_true(c.list[1].isolated_gbps == 0 && !c.shaped);
    assert_ok(parse("", "[{\"name\":\"x\",\"threads\":2}]", "", &c, &error));
    assert_true(c.count == 1 && c.list[0].weight == 1 && !c.shaped);
    assert_ok(parse("", "",
                    "[{\"name\":\"x\",\"threads\":2,\"block_size\":4096,\"batch_size\":8,"
                    "\"intent_type\":\"migration\",\"deadline_us\":70}]",
                    &c, &error));
    assert_true(c.shaped && c.list[0].block_size == 4096 && c.list[0].batch_size == 8);
    assert_true(c.list[0].intent == MC_INTENT_BACKGROUND && c.list[0].deadline_us == 70);
    assert_int_equal(error.len, 0);
    static const char *const bad[] = {"a",           "a:1:1",  "a:0:1:1",  "a:1:1:0",   "a:1:1:1:x",
                                      "a:1:1:1:2:3", ":1:1:1", "a:1:1:1,", "a:2000:1:1"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        mc_buf_clear(&error);
        assert_int_equal(parse(bad[i], "", "", &c, &error), MC_INVALID_PARAMS);
        assert_true(error.len > 0);
    }
    static const char *const shaped[] = {
        "[]",
        "{}",
        "[7]",
        "[{\"name\":\"x\",\"threads\":-1,\"block_size\":1,\"batch_size\":1}]",
        "[{\"name\":\"x\",\"threads\":1,\"block_size\":1}]",
        "[{\"name\":\"x\",\"threads\":1,\"block_size\":1,\"batch_size\":1,\"intent_type\":\"y\"}]",
        "[{\"name\":\"x\",\"threads\":1,\"block_size\":9000000000000000000,\"batch_size\":1000}]"};
    for (size_t i = 0; i < MC_ARRAY_LEN(shaped); i++) {
        mc_buf_clear(&error);
        assert_int_equal(parse("", "", shaped[i], &c, &error), MC_INVALID_PARAMS);
        assert_true(error.len > 0);
    }
    mc_buf_free(&error);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_are_right_to_a_bucket),
        cmocka_unit_test(test_parts_within_an_objective),
        cmocka_unit_test(test_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
