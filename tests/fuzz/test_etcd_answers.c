/*
 * Answers of etcd, good, damaged and made up: never harm, outputs only on success, and what comes
 * out of good ones is what was put in. Base64 against bytes of every length and against text that
 * is none.
 */
#include <stdio.h>

#include "meta/etcd_json.h"
#include "support/support.h"

#define HEADER "{\"header\":{\"cluster_id\":\"10144879847569953045\",\"revision\":\"2\"}"

static const char RANGE[] =
    HEADER ",\"kvs\":[{\"key\":\"YQ==\",\"create_revision\":\"2\",\"mod_revision\":\"2\","
           "\"version\":\"1\",\"value\":\"aGVsbG8sIHdvcmxk\"}],\"count\":\"1\"}";
static const char DELETED[] = HEADER ",\"deleted\":\"1\"}";
static const char REFUSED[] =
    HEADER ",\"responses\":[{\"response_range\":{\"header\":{\"revision\":\"2\"},"
           "\"kvs\":[{\"key\":\"YQ==\",\"value\":\"Yg==\"}],\"count\":\"1\"}}]}";
static const char DONE[] = HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}";
static const char GRANTED[] = HEADER ",\"ID\":\"1418812189291695109\",\"TTL\":\"3\"}";
static const char KEPT[] = "{\"result\":{\"header\":{},\"ID\":\"77\",\"TTL\":\"30\"}}\n";
static const char ENDED[] = "{\"result\":{\"header\":{},\"ID\":\"77\"}}\n";
static const char ERROR[] =
    "{\"error\":\"e\",\"message\":\"lease \\u0007not\\n found\",\"code\":5}";

static void test_base64(void **state) {
    static const char *const bad[] = {
        "=",     "====", "a",        "ab",   "abc",  "a===",     "ab=c",
        "a=bc",  "ab!=", "abcd====", "YR==", "YWF=", "YQ==YQ==", "\xff\xff\xff\xff",
        "YQ\n=", "-_-_"};
    struct mc_rng rng;
    struct mc_buf text = {0}, back = {0};
    char bytes[300];
    mc_rng_seed(&rng, 5);
    for (size_t len = 0; len <= sizeof(bytes); len++) {
        for (size_t i = 0; i < len; i++) {
            bytes[i] = (char)mc_rng_next(&rng);
        }
        mc_buf_clear(&text);
        mc_buf_clear(&back);
        mc_etcd_base64_encode(&text, (struct mc_str){bytes, len});
        assert_int_equal(text.len, (len + 2) / 3 * 4);
        assert_true(mc_etcd_base64_decode(&back, (struct mc_str){text.data, text.len}));
        assert_int_equal(back.len, len);
        assert_true(len == 0 || memcmp(back.data, bytes, len) == 0);
    }
    mc_buf_clear(&text);
    mc_etcd_base64_encode(&text, mc_str_from("hello, worl?~"));
    assert_string_equal(mc_buf_cstr(&text), "aGVsbG8sIHdvcmw/fg==");
    mc_buf_clear(&back);
    mc_buf_puts(&back, "kept");
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        assert_false(mc_etcd_base64_decode(&back, mc_str_from(bad[i])));
        assert_int_equal(back.len, 4);
    }
    mc_buf_free(&text);
    mc_buf_free(&back);
}

/* Text that decodes is the one text of its bytes. */
static void test_base64_of_anything(void **state) {
    static const char SIGNS[] = "AQZgw05+/=-\n";
    struct mc_rng rng;
    struct mc_buf back = {0}, again = {0};
    unsigned good = 0, bad = 0;
    mc_rng_seed(&rng, 6);
    for (int round = 0; round < 200000; round++) {
        char text[12];
        size_t len = mc_rng_below(&rng, sizeof(text) + 1);
        for (size_t i = 0; i < len; i++) {
            text[i] = SIGNS[mc_rng_below(&rng, mc_rng_below(&rng, 2) ? 9 : sizeof(SIGNS) - 1)];
        }
        mc_buf_clear(&back);
        mc_buf_clear(&again);
        if (!mc_etcd_base64_decode(&back, (struct mc_str){text, len})) {
            assert_int_equal(back.len, 0);
            bad++;
            continue;
        }
        mc_etcd_base64_encode(&again, (struct mc_str){back.data, back.len});
        assert_int_equal(again.len, len);
        assert_true(len == 0 || memcmp(again.data, text, len) == 0);
        good++;
    }
    assert_true(good > 1000 && bad > 1000);
    mc_buf_free(&back);
    mc_buf_free(&again);
}

static void test_good_answers(void **state) {
    struct mc_buf value = {0};
    int64_t lease = 0;
    int code;
    char message[16];
    assert_ok(mc_etcd_read_range(mc_str_from(RANGE), &value));
    assert_string_equal(mc_buf_cstr(&value), "hello, world");
    mc_buf_clear(&value);
    assert_int_equal(mc_etcd_read_range(mc_str_from(HEADER "}"), &value), MC_ERR_NOT_FOUND);
    assert_ok(mc_etcd_read_delete(mc_str_from(DELETED)));
    assert_int_equal(mc_etcd_read_delete(mc_str_from(HEADER "}")), MC_ERR_NOT_FOUND);
    assert_ok(mc_etcd_read_transaction(mc_str_from(DONE), &value));
    assert_int_equal(mc_etcd_read_transaction(mc_str_from(REFUSED), &value), MC_ERR_EXISTS);
    assert_string_equal(mc_buf_cstr(&value), "b");
    assert_ok(mc_etcd_read_grant(mc_str_from(GRANTED), &lease));
    assert_true(lease == 1418812189291695109);
    assert_ok(mc_etcd_read_keepalive(mc_str_from(KEPT)));
    assert_int_equal(mc_etcd_read_keepalive(mc_str_from(ENDED)), MC_ERR_NOT_FOUND);
    assert_ok(mc_etcd_read_token(mc_str_from(HEADER ",\"token\":\"abc.17\"}"), message, 7));
    assert_string_equal(message, "abc.17");
    mc_etcd_read_error(mc_str_from(ERROR), &code, message, sizeof(message));
    assert_int_equal(code, 5);
    assert_string_equal(message, "lease  not  fou");
    mc_etcd_read_error(mc_str_from("404 page not found"), &code, message, sizeof(message));
    assert_int_equal(code, 0);
    assert_string_equal(message, "404 page not fo");
    mc_buf_free(&value);
}

static void test_what_is_refused(void **state) {
    static const char *const texts[] = {"",
                                        "[]",
                                        "7",
                                        "{",
                                        "{\"header\":7}",
                                        HEADER ",\"kvs\":{}}",
                                        HEADER ",\"kvs\":[7]}",
                                        HEADER ",\"kvs\":[{\"value\":7}]}",
                                        HEADER ",\"kvs\":[{\"value\":\"a\"}]}",
                                        HEADER ",\"kvs\":[{\"value\":\"YQ==\"},{}]}"};
    struct mc_buf value = {0};
    int64_t lease = 9;
    static const char *const tokens[] = {
        HEADER "}", HEADER ",\"token\":7}", HEADER ",\"token\":\"\"}",
        HEADER ",\"token\":\"a\\nX: y\"}", HEADER ",\"token\":\"12345678\"}"};
    char token[8] = "before";
    for (size_t i = 0; i < MC_ARRAY_LEN(tokens); i++) {
        assert_int_equal(mc_etcd_read_token(mc_str_from(tokens[i]), token, sizeof(token)),
                         MC_ERR_PROTOCOL);
        assert_string_equal(token, "before");
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(texts); i++) {
        struct mc_str text = mc_str_from(texts[i]);
        assert_int_equal(mc_etcd_read_range(text, &value), MC_ERR_PROTOCOL);
        assert_int_equal(mc_etcd_read_transaction(text, &value), MC_ERR_PROTOCOL);
        assert_int_equal(mc_etcd_read_grant(text, &lease), MC_ERR_PROTOCOL);
        assert_int_equal(mc_etcd_read_keepalive(text), MC_ERR_PROTOCOL);
        assert_int_equal(value.len, 0);
        assert_int_equal(lease, 9);
    }
    static const char *const ids[] = {"{\"ID\":\"0\"}", "{\"ID\":\"-4\"}", "{\"ID\":\"x\"}",
                                      "{\"ID\":[]}", "{\"ID\":\"9223372036854775808\"}"};
    for (size_t i = 0; i < MC_ARRAY_LEN(ids); i++) {
        assert_int_equal(mc_etcd_read_grant(mc_str_from(ids[i]), &lease), MC_ERR_PROTOCOL);
    }
    mc_buf_free(&value);
}

/* Every reader gets every text. */
static unsigned read_all(struct mc_str text) {
    struct mc_buf value = {0};
    int64_t lease = 0;
    int code = -1;
    char message[32];
    unsigned good = 0;
    enum mc_status status = mc_etcd_read_range(text, &value);
    assert_true(status == MC_OK || value.len == 0);
    good += status == MC_OK;
    mc_buf_clear(&value);
    status = mc_etcd_read_transaction(text, &value);
    assert_true(status == MC_ERR_EXISTS || value.len == 0);
    good += status == MC_OK || status == MC_ERR_EXISTS;
    good += mc_etcd_read_delete(text) == MC_OK;
    status = mc_etcd_read_grant(text, &lease);
    assert_true((status == MC_OK) == (lease > 0));
    good += status == MC_OK;
    good += mc_etcd_read_keepalive(text) == MC_OK;
    mc_etcd_read_error(text, &code, message, sizeof(message));
    assert_true(code >= 0 && code <= 100 && strlen(message) < sizeof(message));
    for (const char *c = message; *c != '\0'; c++) {
        assert_true((unsigned char)*c >= ' ' && *c != '"');
    }
    mc_buf_free(&value);
    return good;
}

static void test_damaged_answers(void **state) {
    static const char *const samples[] = {RANGE,   DELETED, REFUSED, DONE,
                                          GRANTED, KEPT,    ENDED,   ERROR};
    struct mc_rng rng;
    unsigned good = 0;
    mc_rng_seed(&rng, 77);
    for (int round = 0; round < 60000; round++) {
        char text[512];
        const char *sample = samples[mc_rng_below(&rng, MC_ARRAY_LEN(samples))];
        size_t len = strlen(sample);
        memcpy(text, sample, len);
        for (uint64_t n = mc_rng_below(&rng, 4); n > 0; n--) {
            size_t at = mc_rng_below(&rng, len);
            size_t from = mc_rng_below(&rng, len);
            text[at] = mc_rng_below(&rng, 2) ? (char)mc_rng_next(&rng) : text[from];
        }
        if (mc_rng_below(&rng, 8) == 0) {
            len = mc_rng_below(&rng, len + 1);
        }
        good += read_all((struct mc_str){text, len});
    }
    assert_true(good > 1000 && good < 60000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base64),          cmocka_unit_test(test_base64_of_anything),
        cmocka_unit_test(test_good_answers),    cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_damaged_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
