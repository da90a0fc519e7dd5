/* A task's payload says what was put into it, for any bytes; upstream's text is understood; broken
 * text is refused and nothing is read past its end. */
#include "support/support.h"
#include "wire/task_payload.h"

static struct mc_arena arena;

static enum mc_status decode(enum mc_task_type type, const char *text, size_t len,
                             struct mw_task_payload *out) {
    char *exact = malloc(len + 1); /* without the NUL: an overrun is seen by the sanitizers */
    memcpy(exact, text, len);
    char *trimmed = realloc(exact, len > 0 ? len : 1);
    enum mc_status status =
        mw_task_payload_decode(type, (struct mc_str){trimmed, len}, &arena, out);
    free(trimmed);
    return status;
}

static void test_any_bytes_come_back(void **state) {
    char every[256];
    for (unsigned i = 0; i < 256; i++) {
        every[i] = (char)i;
    }
    struct mc_str targets[3] = {{every, 256}, MC_STR(""), MC_STR("node:1")};
    struct mw_task_payload copy = {.tenant = MC_STR("red\n\"\\"),
                                   .key = {every, 256},
                                   .source = MC_STR("a:1"),
                                   .targets = {targets, 3},
                                   .lease = {UINT64_MAX, 1ull << 63},
                                   .epoch = 42};
    struct mc_buf text = {0};
    struct mw_task_payload got;
    mw_task_payload_encode(MC_TASK_COPY, &copy, &text);
    assert_ok(decode(MC_TASK_COPY, text.data, text.len, &got));
    assert_true(mc_str_eq(got.tenant, copy.tenant));
    assert_true(mc_str_eq(got.key, copy.key));
    assert_true(mc_str_eq(got.source, copy.source));
    assert_int_equal(got.targets.count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_true(mc_str_eq(((struct mc_str *)got.targets.items)[i], targets[i]));
    }
    assert_true(mc_uuid_eq(got.lease, copy.lease));
    assert_int_equal(got.epoch, 42);
    struct mw_task_payload move = copy;
    move.targets.count = 1;
    mc_buf_clear(&text);
    mw_task_payload_encode(MC_TASK_MOVE, &move, &text);
    assert_ok(decode(MC_TASK_MOVE, text.data, text.len, &got));
    assert_int_equal(got.targets.count, 1);
    assert_true(mc_str_eq(((struct mc_str *)got.targets.items)[0], targets[0]));
    assert_int_equal(decode(MC_TASK_COPY, text.data, text.len, &got), MC_DESERIALIZE_FAIL);
    mc_buf_free(&text);
}

static void test_json_is_understood(void **state) {
    static const char TEXT[] =
        " { \"targets\" : [ ] , \"extra\":{\"a\":[1,2,{\"b\":null}],\"c\":-1.5e3,"
        "\"d\":[],\"e\":{}}, \"key\":\"\\u00e9\\ud83d\\ude00\\/\\t\","
        "\"source\":\"s\" } ";
    struct mw_task_payload got;
    assert_ok(decode(MC_TASK_COPY, TEXT, sizeof(TEXT) - 1, &got));
    assert_true(mc_str_eq(got.key, MC_STR("\xc3\xa9\xf0\x9f\x98\x80/\t")));
    assert_true(mc_str_eq(got.tenant, MC_STR("default")));
    assert_int_equal(got.targets.count, 0);
}

static void test_broken_text_is_refused(void **state) {
    static const char *const BROKEN[] = {
        "",
        "{",
        "{}",
        "[]",
        "null",
        "{\"key\":\"k\"}",
        "{\"key\":\"k\",\"source\":\"s\",\"target\":\"t\"} x",
        "{\"key\":\"k\",\"source\":\"s\",\"target\":\"t\"",
        "{\"key\":\"k\",\"source\":\"s\",\"target\":\"t\",}",
        "{\"key\":\"k,\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":\"k\\\",\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":\"\\x\",\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":\"\\u12g4\",\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":\"\\ud800\",\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":\"\\ud800\\u0041\",\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":\"\\u12\",\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":5,\"source\":\"s\",\"target\":\"t\"}",
        "{\"key\":\"k\",\"source\":\"s\",\"target\":[\"t\"]}",
        "{\"key\":\"k\",\"source\":\"s\",\"target\":\"t\",\"dynamic_replication_version_epoch\":-"
        "1}",
        "{\"key\":\"k\",\"source\":\"s\",\"target\":\"t\","
        "\"dynamic_replication_version_epoch\":18446744073709551616}",
        "{\"a\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]],\"key\":\"k\",\"source\":\"s\",\"target\":"
        "\"t\"}",
    };
    struct mw_task_payload got;
    for (size_t i = 0; i < MC_ARRAY_LEN(BROKEN); i++) {
        if (decode(MC_TASK_MOVE, BROKEN[i], strlen(BROKEN[i]), &got) != MC_DESERIALIZE_FAIL) {
            fail_msg("accepted: %s", BROKEN[i]);
        }
    }
    /* Every prefix and every changed byte of a good one ends, one way or the other. */
    static const char GOOD[] = "{\"tenant_id\":\"d\",\"key\":\"\\u00e9k\",\"source\":\"s\","
                               "\"targets\":[\"t\",\"u\"],\"dynamic_replication_version_epoch\":7}";
    assert_ok(decode(MC_TASK_COPY, GOOD, sizeof(GOOD) - 1, &got));
    unsigned refused = 0;
    for (size_t len = 0; len < sizeof(GOOD) - 1; len++) {
        assert_int_equal(decode(MC_TASK_COPY, GOOD, len, &got), MC_DESERIALIZE_FAIL);
        for (unsigned c = 0; c < 256; c++) {
            char changed[sizeof(GOOD)];
            memcpy(changed, GOOD, sizeof(GOOD));
            changed[len] = (char)c;
            refused += decode(MC_TASK_COPY, changed, sizeof(GOOD) - 1, &got) != MC_OK;
        }
        mc_arena_reset(&arena);
    }
    assert_true(refused > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_bytes_come_back),
                                       cmocka_unit_test(test_json_is_understood),
                                       cmocka_unit_test(test_broken_text_is_refused)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mc_arena_free(&arena);
    return failed;
}
