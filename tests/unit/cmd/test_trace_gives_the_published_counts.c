/* The trace parser gives the published counts of the FAST'25 traces, reads agentic sessions with
 * sub-agents, and names the line of what is broken. */
#include "cmd/trace.h"
#include "support/support.h"

#include <stdio.h>
#include <unistd.h>

static struct mc_trace load(const char *path) {
    struct mc_trace trace;
    struct mc_buf error = {0};
    enum mc_status status = mc_trace_load(&path, 1, &trace, &error);
    if (status != MC_OK) {
        fail_msg("%s", mc_buf_cstr(&error));
    }
    mc_buf_free(&error);
    return trace;
}

static void test_conversation(void **state) {
    struct mc_trace trace = load("data/traces/conversation_trace.jsonl.gz");
    assert_int_equal(trace.request_count, 12031);
    assert_int_equal(trace.block_count, 288500);
    assert_int_equal(trace.distinct_count, 182790);
    assert_int_equal(trace.timestamp_count, 1180);
    struct mc_trace_bound bound = mc_trace_infinite_cache(&trace);
    assert_int_equal(bound.hit_blocks, 288500 - 182790);
    assert_true(bound.hit_rate_blocks > 0.3655 && bound.hit_rate_blocks < 0.3665);
    assert_true(bound.hit_rate_tokens > 0.3735 && bound.hit_rate_tokens < 0.3745);
    mc_trace_free(&trace);
}

static void test_synthetic(void **state) {
    struct mc_trace trace = load("data/traces/synthetic_trace.jsonl.gz");
    assert_int_equal(trace.request_count, 3993);
    assert_int_equal(trace.block_count, 121877);
    assert_int_equal(trace.distinct_count, 43924);
    struct mc_trace_bound bound = mc_trace_infinite_cache(&trace);
    assert_true(bound.hit_rate_blocks > 0.6395 && bound.hit_rate_blocks < 0.6405);
    assert_true(bound.hit_rate_tokens > 0.6505 && bound.hit_rate_tokens < 0.6515);
    mc_trace_free(&trace);
}

static void test_agentic_sessions_share_no_blocks(void **state) {
    const char *paths[] = {"data/traces/agentic/trace_0002.json.gz",
                           "data/traces/agentic/trace_0317.json.gz"};
    struct mc_trace first = load(paths[0]), second = load(paths[1]), both;
    struct mc_buf error = {0};
    assert_ok(mc_trace_load(paths, 2, &both, &error));
    assert_int_equal(first.request_count, 33);
    assert_int_equal(second.request_count, 42);
    assert_int_equal(first.requests[0].block_tokens, 64);
    assert_int_equal(both.request_count, 75);
    assert_int_equal(both.block_count, first.block_count + second.block_count);
    assert_int_equal(both.distinct_count, first.distinct_count + second.distinct_count);
    for (size_t i = 1; i < both.request_count; i++) {
        assert_true(both.requests[i - 1].timestamp_ms <= both.requests[i].timestamp_ms);
    }
    mc_trace_free(&first);
    mc_trace_free(&second);
    mc_trace_free(&both);
}

static void test_a_limit_keeps_only_what_is_named(void **state) {
    const char *paths[] = {"data/traces/agentic/trace_0002.json.gz",
                           "data/traces/agentic/trace_0317.json.gz"};
    struct mc_trace trace;
    struct mc_buf error = {0};
    assert_ok(mc_trace_load(paths, 2, &trace, &error));
    mc_trace_limit(&trace, 20);
    struct mc_trace_bound bound = mc_trace_infinite_cache(&trace);
    assert_int_equal(trace.request_count, 20);
    assert_true(bound.hit_blocks > 0);
    assert_int_equal(trace.distinct_count, trace.block_count - bound.hit_blocks);
    mc_trace_free(&trace);
}

/* ---- small files written here ---- */

static char *write_file(const char *name, const char *text) {
    char *path = NULL;
    const char *dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    assert_true(asprintf(&path, "%s/mc_trace_%d_%s", dir, (int)getpid(), name) > 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    return path;
}

static void test_sub_agents_take_part_at_their_time(void **state) {
    char *path = write_file(
        "nested.json",
        "{\"id\": \"s\", \"block_size\": 64, \"hash_id_scope\": \"local\", \"requests\": ["
        "{\"t\": 0.5, \"type\": \"n\", \"in\": 130, \"out\": 1, \"hash_ids\": [1, 2]},"
        "{\"t\": 1.0, \"type\": \"subagent\", \"agent_id\": \"a\", \"requests\": ["
        "  {\"t\": 3.0, \"type\": \"n\", \"in\": 64, \"out\": 2, \"hash_ids\": [1]}]},"
        "{\"t\": 2.0, \"type\": \"n\", \"in\": 192, \"out\": 1, \"hash_ids\": [1, 2, 3]}]}");
    struct mc_trace trace = load(path);
    assert_int_equal(trace.request_count, 3);
    assert_int_equal(trace.requests[0].timestamp_ms, 500);
    assert_int_equal(trace.requests[1].timestamp_ms, 2000);
    assert_int_equal(trace.requests[2].timestamp_ms, 3000);
    assert_int_equal(trace.requests[2].output_tokens, 2);
    assert_int_equal(trace.distinct_count, 3);
    struct mc_trace_bound bound = mc_trace_infinite_cache(&trace);
    assert_int_equal(bound.hit_blocks, 3);
    assert_int_equal(bound.hit_tokens, 192);
    mc_trace_free(&trace);
    unlink(path);
    free(path);
}

static void expect_error(const char *name, const char *text, const char *want) {
    char *path = write_file(name, text);
    struct mc_trace trace;
    struct mc_buf error = {0};
    const char *paths[] = {path};
    assert_int_equal(mc_trace_load(paths, 1, &trace, &error), MC_ERR_USAGE);
    struct mc_buf whole = {0};
    mc_buf_printf(&whole, "%s%s", path, want);
    if (strstr(mc_buf_cstr(&error), mc_buf_cstr(&whole)) == NULL) {
        fail_msg("\"%s\" does not hold \"%s\"", mc_buf_cstr(&error), mc_buf_cstr(&whole));
    }
    assert_null(trace.requests);
    mc_buf_free(&whole);
    mc_buf_free(&error);
    unlink(path);
    free(path);
}

#define GOOD                                                                                       \
    "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1, 2]}\n"

static void test_a_broken_line_is_named(void **state) {
    expect_error("a.jsonl", GOOD GOOD "{\"timestamp\": 2, \"input_le\n" GOOD, ":3: not JSON");
    expect_error("b.jsonl", GOOD "\n[1]\n", ":3: not a JSON object");
    expect_error(
        "c.jsonl",
        "{\"timestamp\": -1, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1, 2]}\n",
        ":1: \"timestamp\" is not a time");
    expect_error(
        "d.jsonl",
        GOOD "{\"timestamp\": 2, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1]}",
        ":2: 1 \"hash_ids\" for 600 tokens in blocks of 512");
}

static void test_wrong_values_are_named(void **state) {
    expect_error(
        "e.jsonl",
        GOOD
        "{\"timestamp\": 2, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1, 2, 3]}",
        ":2: 3 \"hash_ids\" for 600 tokens in blocks of 512");
    expect_error(
        "f.jsonl",
        GOOD
        "{\"timestamp\": 2, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1, \"x\"]}",
        ":2: \"hash_ids\"[1] is not a whole number");
    expect_error(
        "g.jsonl",
        GOOD
        "{\"timestamp\": 2, \"input_length\": 5000000000, \"output_length\": 1, \"hash_ids\": []}",
        ":2: \"input_length\" is 5000000000");
    expect_error("h.jsonl", "\n\n", ": holds no request");
    expect_error("i.json", "{\"id\": \"s\",\n \"block_size\": 64,\n \"requests\": [}",
                 ":3: not JSON");
    expect_error("j.json", "{\"id\": \"s\", \"block_size\": 0, \"requests\": []}",
                 ": \"block_size\" is 0");
    expect_error(
        "k.json",
        "{\"id\": \"s\", \"block_size\": 64, \"requests\": [{\"t\": 1, \"in\": 64, \"out\": 1}]}",
        ": \"hash_ids\" is missing or not a list (request 0)");
}

static void test_a_missing_or_cut_file_is_an_error(void **state) {
    struct mc_trace trace;
    struct mc_buf error = {0};
    const char *missing[] = {"/nonexistent/trace.jsonl"};
    assert_int_equal(mc_trace_load(missing, 1, &trace, &error), MC_ERR_USAGE);
    assert_non_null(strstr(mc_buf_cstr(&error), "/nonexistent/trace.jsonl: cannot be opened"));

    char packed[4096];
    FILE *in = fopen("data/traces/conversation_trace.jsonl.gz", "rb");
    assert_non_null(in);
    assert_int_equal(fread(packed, 1, sizeof(packed), in), sizeof(packed));
    fclose(in);
    char *path = write_file("cut.jsonl.gz", "");
    FILE *out = fopen(path, "wb");
    assert_int_equal(fwrite(packed, 1, sizeof(packed), out), sizeof(packed));
    fclose(out);
    const char *cut[] = {path};
    assert_int_equal(mc_trace_load(cut, 1, &trace, &error), MC_ERR_USAGE);
    mc_buf_free(&error);
    unlink(path);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_agentic_sessions_share_no_blocks),
        cmocka_unit_test(test_a_limit_keeps_only_what_is_named),
        cmocka_unit_test(test_sub_agents_take_part_at_their_time),
        cmocka_unit_test(test_a_broken_line_is_named),
        cmocka_unit_test(test_wrong_values_are_named),
        cmocka_unit_test(test_a_missing_or_cut_file_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
