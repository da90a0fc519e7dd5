/* Metrics keep exact counts under many threads, histograms stay within a quarter, and the text is
 * Prometheus'. MC_TEST_THREADS */
#include "support/support.h"

#include <pthread.h>

#include "base/metrics.h"

static const char *printed(struct mc_metrics *registry, struct mc_buf *buf) {
    mc_buf_clear(buf);
    mc_metrics_print(registry, buf);
    return mc_buf_cstr(buf);
}

static int64_t read_double(void *arg) {
    return 2 * *(int *)arg;
}

static void test_families_are_printed_in_one_piece(void **state) {
    struct mc_metrics *registry = mc_metrics_create();
    struct mc_metric get = {0}, put = {0}, used = {0};
    struct mc_buf text = {0};
    int seven = 7;
    mc_metrics_register(registry, MC_METRIC_COUNTER, "ops_total", "op=\"get\"", "Operations", &get);
    mc_metrics_register(registry, MC_METRIC_GAUGE, "used_bytes", "", "a\\b\nc", &used);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "ops_total", "op=\"put\"", "Operations", &put);
    mc_metrics_register_fn(registry, MC_METRIC_GAUGE, "fn", "", "computed", read_double, &seven);
    mc_metric_add(&get, 3);
    mc_metric_add(&put, INT64_MAX);
    mc_metric_set(&used, -5);
    assert_string_equal(printed(registry, &text), "# HELP ops_total Operations\n"
                                                  "# TYPE ops_total counter\n"
                                                  "ops_total{op=\"get\"} 3\n"
                                                  "ops_total{op=\"put\"} 9223372036854775807\n"
                                                  "# HELP used_bytes a\\\\b\\nc\n"
                                                  "# TYPE used_bytes gauge\n"
                                                  "used_bytes -5\n"
                                                  "# HELP fn computed\n"
                                                  "# TYPE fn gauge\n"
                                                  "fn 14\n");
    mc_buf_free(&text);
    mc_metrics_destroy(registry);
}

static void test_what_was_unregistered_is_not_printed(void **state) {
    struct mc_metrics *registry = mc_metrics_create();
    struct {
        struct mc_metric before, own[2];
        int arg;
        struct mc_metric after;
    } m = {0};
    struct mc_buf text = {0};
    mc_metrics_register(registry, MC_METRIC_COUNTER, "a", "n=\"0\"", "h", &m.before);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "a", "n=\"1\"", "h", &m.own[0]);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "b", "", "h", &m.own[1]);
    mc_metrics_register_fn(registry, MC_METRIC_COUNTER, "c", "", "h", read_double, &m.arg);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "a", "n=\"2\"", "h", &m.after);
    mc_metrics_unregister_range(registry, &m.own, sizeof(m.own) + sizeof(m.arg));
    assert_string_equal(printed(registry, &text),
                        "# HELP a h\n# TYPE a counter\na{n=\"0\"} 0\na{n=\"2\"} 0\n");
    mc_metrics_unregister_range(registry, &m, sizeof(m));
    assert_string_equal(printed(registry, &text), "");
    mc_buf_free(&text);
    mc_metrics_destroy(registry);
}

static void test_histogram_buckets_hold_what_their_bound_says(void **state) {
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      3,
                                      4,
                                      5,
                                      7,
                                      8,
                                      9,
                                      10,
                                      11,
                                      100,
                                      1000,
                                      1024,
                                      1025,
                                      123456789,
                                      (1ull << 39) + 1,
                                      1ull << 40};
    for (size_t i = 0; i < MC_ARRAY_LEN(values); i++) {
        struct mc_histogram h = {0};
        mc_histogram_observe(&h, values[i]);
        uint64_t upper = mc_histogram_quantile(&h, 0.5);
        assert_true(upper >= values[i]);
        assert_true(values[i] == 0 || upper - values[i] <= values[i] / 4);
    }
    struct mc_histogram h = {0};
    assert_int_equal(mc_histogram_quantile(&h, 0.99), 0);
    mc_histogram_observe(&h, UINT64_MAX); /* beyond the range: the last bucket */
    assert_int_equal(mc_histogram_quantile(&h, 1), 1ull << 41);
}

static void test_quantiles_of_a_uniform_spread(void **state) {
    static const double qs[] = {0, 0.01, 0.5, 0.9, 0.99, 0.999, 1};
    struct mc_histogram h = {0};
    for (uint64_t v = 1; v <= 100000; v++) {
        mc_histogram_observe(&h, v);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(qs); i++) {
        double exact = qs[i] == 0 ? 1 : qs[i] * 100000,
               got = (double)mc_histogram_quantile(&h, qs[i]);
        assert_true(got >= exact && got <= exact * 1.25 + 1);
    }
}

static void test_histogram_text_is_cumulative_and_ends_in_inf(void **state) {
    struct mc_metrics *registry = mc_metrics_create();
    struct mc_histogram h = {0}, plain = {0};
    struct mc_buf text = {0};
    mc_metrics_register(registry, MC_METRIC_HISTOGRAM, "lat", "op=\"get\"", "h", &h);
    mc_metrics_register(registry, MC_METRIC_HISTOGRAM, "lat", "", "h", &plain);
    mc_histogram_observe(&h, 1);
    mc_histogram_observe(&h, 4);
    mc_histogram_observe(&h, 5);
    mc_histogram_observe(&h, UINT64_MAX / 2);
    const char *got = printed(registry, &text);
    assert_non_null(strstr(got, "lat_bucket{op=\"get\",le=\"1\"} 1\n"));
    assert_non_null(strstr(got, "lat_bucket{op=\"get\",le=\"2\"} 1\n"));
    assert_non_null(strstr(got, "lat_bucket{op=\"get\",le=\"4\"} 2\n"));
    assert_non_null(strstr(got, "lat_bucket{op=\"get\",le=\"8\"} 3\n"));
    assert_non_null(strstr(got, "lat_bucket{op=\"get\",le=\"1099511627776\"} 3\n"));
    assert_non_null(strstr(got, "lat_bucket{op=\"get\",le=\"+Inf\"} 4\n"));
    assert_non_null(strstr(got, "lat_sum{op=\"get\"} 9223372036854775817\n"));
    assert_non_null(strstr(got, "lat_count{op=\"get\"} 4\n"));
    assert_non_null(strstr(got, "lat_bucket{le=\"+Inf\"} 0\n"));
    assert_non_null(strstr(got, "lat_count 0\n"));
    mc_buf_free(&text);
    mc_metrics_destroy(registry);
}

static void test_steps_have_the_bounds_that_were_given(void **state) {
    static const uint64_t bounds[] = {10, 1000, UINT64_MAX};
    static const uint64_t values[] = {0, 10, 11, 1000, 1001, UINT64_MAX / 2};
    struct mc_metrics *registry = mc_metrics_create();
    struct mc_buf text = {0};
    struct mc_steps steps;
    mc_steps_init(&steps, bounds);
    mc_metrics_register(registry, MC_METRIC_STEPS, "lat", "op=\"get\"", "h", &steps);
    for (size_t i = 0; i < MC_ARRAY_LEN(values); i++) {
        mc_steps_observe(&steps, values[i]);
    }
    assert_string_equal(printed(registry, &text), "# HELP lat h\n"
                                                  "# TYPE lat histogram\n"
                                                  "lat_bucket{op=\"get\",le=\"10.000000\"} 2\n"
                                                  "lat_bucket{op=\"get\",le=\"1000.000000\"} 4\n"
                                                  "lat_bucket{op=\"get\",le=\"+Inf\"} 6\n"
                                                  "lat_sum{op=\"get\"} 9223372036854777829\n"
                                                  "lat_count{op=\"get\"} 6\n");
    mc_buf_free(&text);
    mc_metrics_destroy(registry);
}

static void test_a_summary_shows_quantiles(void **state) {
    struct mc_metrics *registry = mc_metrics_create();
    struct mc_buf text = {0};
    struct mc_histogram h = {0};
    mc_metrics_register(registry, MC_METRIC_SUMMARY, "s", "", "h", &h);
    for (int i = 0; i < 100; i++) {
        mc_histogram_observe(&h, i < 95 ? 8 : 1024);
    }
    assert_string_equal(printed(registry, &text), "# HELP s h\n"
                                                  "# TYPE s summary\n"
                                                  "s{quantile=\"0.500000\"} 8\n"
                                                  "s{quantile=\"0.900000\"} 8\n"
                                                  "s{quantile=\"0.990000\"} 1024\n"
                                                  "s_sum 5880\n"
                                                  "s_count 100\n");
    mc_buf_free(&text);
    mc_metrics_destroy(registry);
}

static void test_quiet_series_appear_with_their_first_number(void **state) {
    static const uint64_t bounds[] = {10, UINT64_MAX};
    struct mc_metrics *registry = mc_metrics_create();
    struct mc_buf text = {0}, labels = {0};
    struct mc_metric get = {0}, put = {0};
    struct mc_steps steps;
    mc_steps_init(&steps, bounds);
    mc_metrics_label(&labels, "a", "x");
    mc_metrics_label(&labels, "b", "\\ \" \n");
    mc_metrics_register_quiet(registry, MC_METRIC_COUNTER, "ops", "op=\"get\"", "h", &get);
    mc_metrics_register_quiet(registry, MC_METRIC_COUNTER, "ops", mc_buf_cstr(&labels), "h", &put);
    mc_metrics_register_quiet(registry, MC_METRIC_STEPS, "lat", "", "h", &steps);
    assert_string_equal(printed(registry, &text), "# HELP ops h\n# TYPE ops counter\n"
                                                  "# HELP lat h\n# TYPE lat histogram\n");
    mc_metric_add(&put, 1);
    mc_steps_observe(&steps, 11);
    assert_string_equal(printed(registry, &text),
                        "# HELP ops h\n# TYPE ops counter\n"
                        "ops{a=\"x\",b=\"\\\\ \\\" \\n\"} 1\n"
                        "# HELP lat h\n# TYPE lat histogram\n"
                        "lat_bucket{le=\"10.000000\"} 0\nlat_bucket{le=\"+Inf\"} 1\n"
                        "lat_sum 11\nlat_count 1\n");
    mc_buf_free(&text);
    mc_buf_free(&labels);
    mc_metrics_destroy(registry);
}

#define THREADS 4
#define ADDS    50000

struct shared {
    struct mc_metrics *registry;
    struct mc_metric counter;
    struct mc_histogram histogram;
};

static void *update(void *arg) {
    struct shared *s = arg;
    for (int i = 0; i < ADDS; i++) {
        mc_metric_add(&s->counter, 1);
        mc_histogram_observe(&s->histogram, (uint64_t)i);
        if (i % 10000 == 0) {
            struct mc_metric own = {0};
            mc_metrics_register(s->registry, MC_METRIC_COUNTER, "own", "", "h", &own);
            mc_metrics_unregister_range(s->registry, &own, sizeof(own));
        }
    }
    return NULL;
}

static void test_no_update_is_lost_while_printing(void **state) {
    struct shared s = {.registry = mc_metrics_create()};
    struct mc_buf text = {0};
    pthread_t threads[THREADS];
    mc_metrics_register(s.registry, MC_METRIC_COUNTER, "c", "", "h", &s.counter);
    mc_metrics_register(s.registry, MC_METRIC_HISTOGRAM, "h", "", "h", &s.histogram);
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, update, &s);
    }
    for (int i = 0; i < 50; i++) {
        printed(s.registry, &text);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(mc_metric_get(&s.counter), THREADS * ADDS);
    assert_non_null(strstr(printed(s.registry, &text), "h_count 200000\n"));
    assert_non_null(strstr(text.data, "h_sum 4999900000\n"));
    mc_buf_free(&text);
    mc_metrics_destroy(s.registry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_are_printed_in_one_piece),
        cmocka_unit_test(test_what_was_unregistered_is_not_printed),
        cmocka_unit_test(test_histogram_buckets_hold_what_their_bound_says),
        cmocka_unit_test(test_quantiles_of_a_uniform_spread),
        cmocka_unit_test(test_histogram_text_is_cumulative_and_ends_in_inf),
        cmocka_unit_test(test_steps_have_the_bounds_that_were_given),
        cmocka_unit_test(test_a_summary_shows_quantiles),
        cmocka_unit_test(test_quiet_series_appear_with_their_first_number),
        cmocka_unit_test(test_no_update_is_lost_while_printing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
