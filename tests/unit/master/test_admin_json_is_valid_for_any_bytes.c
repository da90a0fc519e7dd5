/* JSON strings of the admin answers are valid JSON whatever bytes a key has, and errors carry code,
 * name and HTTP status. */
#include "master/admin.h"
#include "master/metrics_text.h"
#include "support/support.h"

#include <jansson.h>

static void expect_json(struct mc_str in, const char *want) {
    struct mc_buf out = {0};
    mc_json_string(&out, in);
    assert_string_equal(mc_buf_cstr(&out), want);
    json_t *parsed = json_loadb(out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(parsed);
    json_decref(parsed);
    mc_buf_free(&out);
}

static void test_strings(void **state) {
    expect_json(MC_STR("plain key/1"), "\"plain key/1\"");
    expect_json(MC_STR("q\"b\\s"), "\"q\\\"b\\\\s\"");
    expect_json(MC_STR("a\0\n\x7f"), "\"a\\u0000\\u000a\\u007f\"");
    expect_json(MC_STR("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x99"),
                "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x99\"");
    expect_json(MC_STR("\xff\xc3"), "\"\\ufffd\\ufffd\"");            /* never, and cut off */
    expect_json(MC_STR("\xc0\xaf"), "\"\\ufffd\\ufffd\"");            /* overlong */
    expect_json(MC_STR("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\""); /* a surrogate */
    /* Above U+10FFFF. */
    expect_json(MC_STR("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    expect_json((struct mc_str){NULL, 0}, "\"\"");
}

static void test_random_bytes_stay_valid(void **state) {
    struct mc_rng rng;
    mc_rng_seed(&rng, 11);
    for (int i = 0; i < 20000; i++) {
        char bytes[24];
        size_t len = mc_rng_below(&rng, sizeof(bytes) + 1);
        for (size_t b = 0; b < len; b++) {
            bytes[b] = (char)mc_rng_next(&rng);
        }
        struct mc_buf out = {0};
        mc_json_string(&out, (struct mc_str){bytes, len});
        json_t *parsed = json_loadb(out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(parsed);
        json_decref(parsed);
        mc_buf_free(&out);
    }
}

static void test_errors_and_their_http_status(void **state) {
    static const struct {
        enum mc_status status;
        int http;
        const char *json;
    } cases[] = {
        {MC_OBJECT_NOT_FOUND, 404,
         "{\"success\":false,\"error_code\":-704,\"error_message\":\"OBJECT_NOT_FOUND\"}"},
        {MC_UNAVAILABLE_IN_CURRENT_MODE, 409,
         "{\"success\":false,\"error_code\":-1011,\"error_message\":\"UNAVAILABLE_IN_CURRENT_"
         "MODE\"}"},
        {MC_INVALID_PARAMS, 400,
         "{\"success\":false,\"error_code\":-600,\"error_message\":\"INVALID_PARAMS\"}"},
        {MC_INTERNAL_ERROR, 500,
         "{\"success\":false,\"error_code\":-1,\"error_message\":\"INTERNAL_ERROR\"}"},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        struct mc_buf out = {0};
        assert_int_equal(mc_json_error(&out, cases[i].status, NULL), cases[i].http);
        assert_string_equal(mc_buf_cstr(&out), cases[i].json);
        mc_buf_free(&out);
    }
}

static void test_values_of_metrics_text(void **state) {
    const char *text =
        "# HELP a_total about a_total 5\na_total 7\na_total_more 8\nb{x=\"a_total 9\"} 10\nc -3\n";
    assert_int_equal(mc_metrics_text_value(text, "a_total"), 7);
    assert_int_equal(mc_metrics_text_value(text, "a_total_more"), 8);
    assert_int_equal(mc_metrics_text_value(text, "c"), -3);
    assert_int_equal(mc_metrics_text_value(text, "b"), 0);
    assert_int_equal(mc_metrics_text_value("", "b"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_random_bytes_stay_valid),
        cmocka_unit_test(test_errors_and_their_http_status),
        cmocka_unit_test(test_values_of_metrics_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
