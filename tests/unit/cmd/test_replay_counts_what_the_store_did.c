/* The replay engine against a store of this file: with room for everything it gives the bound of
 * the trace whatever the number of threads; wrong bytes, refusals and errors are counted as what
 * they are; the reports hold the same numbers. */
/* MC_TEST_THREADS */
#include "cmd/content.h"
#include "cmd/replay.h"
#include "cmd/replay_report.h"
#include "support/support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- the store: a table of keys, with faults to order ---- */

#define SESSION                                                                                    \
    "data/traces/agentic/trace_0317.json.gz" /* 42 requests, each with the prefix of the one       \
                                                before */
#define BLOCK 96                             /* bytes: more than one step of the contents */
#define SLOTS (1u << 20)

struct mc_store {
    pthread_mutex_t mutex;
    uint64_t *seeds; /* content seed of the object in each slot; 0 = free */
    size_t count;
    size_t capacity;
    bool flip_a_byte;
    enum mc_status fail_get, fail_put;
};

static uint64_t *find(struct mc_store *s, const char *key) {
    uint64_t seed = mc_content_seed(key);
    for (size_t at = seed % SLOTS;; at = (at + 1) % SLOTS) {
        if (s->seeds[at] == seed || s->seeds[at] == 0) {
            return &s->seeds[at];
        }
    }
}

enum mc_status mc_store_get_batch(struct mc_store *s, struct mc_store_item *items, size_t count) {
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_lock(&s->mutex);
        bool found = *find(s, items[i].key) != 0;
        pthread_mutex_unlock(&s->mutex);
        items[i].status = s->fail_get != MC_OK ? s->fail_get : found ? MC_OK : MC_OBJECT_NOT_FOUND;
        if (items[i].status == MC_OK) {
            mc_content_fill(items[i].slices[0].ptr, items[i].slices[0].length,
                            mc_content_seed(items[i].key));
            ((char *)items[i].slices[0].ptr)[17] ^= s->flip_a_byte;
            items[i].length = items[i].slices[0].length;
        }
    }
    return MC_OK;
}

enum mc_status mc_store_put_batch(struct mc_store *s, struct mc_store_item *items, size_t count,
                                  const struct mc_replicate_config *config) {
    for (size_t i = 0; i < count; i++) {
        size_t bad;
        assert_true(mc_content_verify(items[i].slices[0].ptr, items[i].slices[0].length,
                                      mc_content_seed(items[i].key), &bad));
        items[i].status = s->fail_put;
        pthread_mutex_lock(&s->mutex);
        uint64_t *slot = find(s, items[i].key);
        if (s->count >= s->capacity) {
            items[i].status = MC_NO_AVAILABLE_HANDLE;
        } else if (items[i].status == MC_OK) {
            s->count += *slot == 0;
            *slot = mc_content_seed(items[i].key);
        }
        pthread_mutex_unlock(&s->mutex);
    }
    return MC_OK;
}

enum mc_status mc_store_register_buffer(struct mc_store *s, void *addr, size_t length) {
    return MC_OK;
}
enum mc_status mc_store_unregister_buffer(struct mc_store *s, void *addr) {
    return MC_OK;
}

/* ---- a run ---- */

struct run {
    struct mc_trace trace;
    struct mc_store store;
    struct mc_replay_config config;
    struct mc_replay_result result;
};

static void run_setup(struct run *run, const char *path, size_t requests) {
    *run = (struct run){0};
    struct mc_buf error = {0};
    assert_ok(mc_trace_load(&path, 1, &run->trace, &error));
    mc_trace_limit(&run->trace, requests);
    pthread_mutex_init(&run->store.mutex, NULL);
    run->store.seeds = mc_zalloc(SLOTS * sizeof(uint64_t));
    run->store.capacity = SIZE_MAX;
    run->config = (struct mc_replay_config){.trace = &run->trace,
                                            .store = &run->store,
                                            .key_prefix = "t/",
                                            .block_bytes = BLOCK,
                                            .batch_bytes = BLOCK * 7,
                                            .concurrency = 1};
}

static void run_teardown(struct run *run) {
    mc_replay_result_free(&run->result);
    mc_trace_free(&run->trace);
    pthread_mutex_destroy(&run->store.mutex);
    free(run->store.seeds);
}

static void test_room_for_everything_gives_the_bound(void **state) {
    for (unsigned threads = 1; threads <= 16; threads *= 4) {
        struct run run;
        run_setup(&run, SESSION, SIZE_MAX);
        run.config.concurrency = threads;
        struct mc_trace_bound bound = mc_trace_infinite_cache(&run.trace);
        assert_true(bound.hit_blocks > 0);
        assert_ok(mc_replay_run(&run.config, &run.result));
        assert_int_equal(run.result.requests, 42);
        assert_int_equal(run.result.total.blocks, run.trace.block_count);
        assert_int_equal(run.result.total.hit_blocks, bound.hit_blocks);
        assert_int_equal(run.result.total.hit_tokens, bound.hit_tokens);
        assert_int_equal(run.result.gets, bound.hit_blocks);
        assert_int_equal(run.result.puts, run.trace.block_count - bound.hit_blocks);
        assert_int_equal(run.result.verified_bytes, bound.hit_blocks * BLOCK);
        assert_int_equal(run.result.mismatches, 0);
        assert_int_equal(run.result.errors, 0);
        assert_false(run.result.stopped_early);
        run_teardown(&run);
    }
}

static void test_wrong_bytes_are_mismatches_and_no_hits(void **state) {
    struct run run;
    run_setup(&run, SESSION, 20);
    run.store.flip_a_byte = true;
    assert_ok(mc_replay_run(&run.config, &run.result));
    assert_true(run.result.mismatches > 0);
    assert_int_equal(run.result.mismatches, run.result.gets);
    assert_int_equal(run.result.total.hit_blocks, 0);
    assert_int_equal(run.result.verified_bytes, 0);
    run_teardown(&run);
}

static void test_refusals_and_errors_are_told_apart(void **state) {
    struct run run;
    run_setup(&run, SESSION, 20);
    run.store.capacity = 500;
    assert_ok(mc_replay_run(&run.config, &run.result));
    assert_int_equal(run.result.puts, 500);
    assert_true(run.result.puts_refused > 0);
    assert_int_equal(run.result.errors, 0);
    run_teardown(&run);

    run_setup(&run, SESSION, 20);
    run.store.fail_get = MC_TRANSFER_FAIL;
    run.store.fail_put = MC_RPC_FAIL;
    assert_ok(mc_replay_run(&run.config, &run.result));
    assert_int_equal(run.result.errors, 2 * run.trace.block_count);
    assert_int_equal(run.result.first_error, MC_TRANSFER_FAIL);
    assert_int_equal(run.result.puts, 0);
    run_teardown(&run);
}

static void test_an_expired_lease_is_a_miss(void **state) {
    struct run run;
    run_setup(&run, SESSION, 20);
    run.store.fail_get = MC_LEASE_EXPIRED;
    assert_ok(mc_replay_run(&run.config, &run.result));
    assert_int_equal(run.result.leases_expired, run.trace.block_count);
    assert_int_equal(run.result.errors, 0);
    assert_int_equal(run.result.total.hit_blocks, 0);
    assert_int_equal(run.result.puts, run.trace.block_count);
    run_teardown(&run);
}

static void test_speed_keeps_the_time_of_the_trace(void **state) {
    struct run run;
    run_setup(&run, "data/traces/agentic/trace_0002.json.gz", 3); /* at 0, 9 and 16 s */
    run.config.speed = 160;
    run.config.concurrency = 2;
    assert_ok(mc_replay_run(&run.config, &run.result));
    assert_int_equal(run.result.requests, 3);
    assert_true(run.result.seconds >= 0.1);
    run_teardown(&run);
}

static void test_stop_ends_the_run_and_says_so(void **state) {
    struct run run;
    run_setup(&run, SESSION, SIZE_MAX);
    _Atomic bool stop = true;
    run.config.stop = &stop;
    assert_ok(mc_replay_run(&run.config, &run.result));
    assert_true(run.result.stopped_early);
    assert_int_equal(run.result.requests, 0);
    run_teardown(&run);
}

/* ---- reports ---- */

static void fake_state(void *ctx, struct mc_cluster_state *out) {
    uint64_t *calls = ctx;
    *out = (struct mc_cluster_state){true, 5000, 10000, 20, 100 + *calls, 256 * (100 + *calls)};
    (*calls)++;
}

static void test_the_reports_hold_the_numbers(void **state) {
    struct run run;
    run_setup(&run, SESSION, SIZE_MAX);
    uint64_t calls = 0;
    run.config.cluster_state = fake_state;
    run.config.cluster_state_ctx = &calls;
    assert_ok(mc_replay_run(&run.config, &run.result));
    struct mc_replay_report report = {.trace = &run.trace,
                                      .result = &run.result,
                                      .bound = mc_trace_infinite_cache(&run.trace),
                                      .model = "",
                                      .block_bytes = BLOCK,
                                      .concurrency = 1,
                                      .cluster = "a <test> cluster"};
    struct mc_buf json = {0}, text = {0}, html = {0};
    mc_replay_report_json(&report, &json);
    json_t *object = json_loadb(json.data, json.len, 0, NULL);
    assert_non_null(object);
    assert_int_equal(json_integer_value(json_object_get(object, "requests")), 42);
    assert_int_equal(json_integer_value(json_object_get(object, "gets")), run.result.gets);
    assert_int_equal(json_integer_value(json_object_get(object, "puts")), run.result.puts);
    assert_int_equal(json_integer_value(json_object_get(object, "verified_bytes")),
                     run.result.gets * BLOCK);
    assert_int_equal(json_integer_value(json_object_get(object, "mismatches")), 0);
    assert_int_equal(json_integer_value(json_object_get(object, "errors")), 0);
    assert_int_equal(json_integer_value(json_object_get(object, "evicted_blocks")), calls - 1);
    assert_true(json_real_value(json_object_get(object, "seconds")) > 0);
    double hits = json_real_value(json_object_get(object, "hit_rate_blocks"));
    assert_true(hits > 0 && hits - mc_rate(run.result.gets, run.trace.block_count) < 1e-5);
    assert_true(json_is_real(json_object_get(object, "hit_rate_tokens")));
    json_decref(object);

    mc_replay_report_text(&report, &text);
    assert_non_null(strstr(mc_buf_cstr(&text), "by blocks"));
    assert_non_null(strstr(mc_buf_cstr(&text), "0 blocks wrong"));

    mc_replay_report_html(&report, &html);
    const char *page = mc_buf_cstr(&html);
    assert_non_null(strstr(page, "a &lt;test&gt; cluster"));
    assert_non_null(strstr(page, "Hit rate over time"));
    assert_non_null(strstr(page, "</html>"));
    assert_null(strstr(page, "http://")); /* nothing is fetched */
    assert_null(strstr(page, "https://"));
    assert_null(strstr(page, "nan"));
    mc_buf_free(&json);
    mc_buf_free(&text);
    mc_buf_free(&html);
    run_teardown(&run);
}

static void test_quantiles_of_sorted_latencies(void **state) {
    uint32_t values[101];
    for (uint32_t i = 0; i <= 100; i++) {
        values[i] = i * 10;
    }
    struct mc_latencies latencies = {values, 101};
    assert_int_equal(mc_latencies_at(&latencies, 0), 0);
    assert_int_equal(mc_latencies_at(&latencies, .5), 500);
    assert_int_equal(mc_latencies_at(&latencies, .99), 990);
    assert_int_equal(mc_latencies_at(&latencies, 1), 1000);
    struct mc_latencies empty = {0};
    assert_int_equal(mc_latencies_at(&empty, .5), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_for_everything_gives_the_bound),
        cmocka_unit_test(test_wrong_bytes_are_mismatches_and_no_hits),
        cmocka_unit_test(test_refusals_and_errors_are_told_apart),
        cmocka_unit_test(test_an_expired_lease_is_a_miss),
        cmocka_unit_test(test_speed_keeps_the_time_of_the_trace),
        cmocka_unit_test(test_stop_ends_the_run_and_says_so),
        cmocka_unit_test(test_the_reports_hold_the_numbers),
        cmocka_unit_test(test_quantiles_of_sorted_latencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
