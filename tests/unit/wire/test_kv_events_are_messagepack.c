/* KV events are, byte for byte, what msgpack of Python writes for the same maps, members in
 * upstream's order; keys that spell a number give its hash. */
#include "support/support.h"
#include "wire/kv_event.h"

#define TIME_MS 1700000000123

static const char both[] =
    "93cf0000018bcfe5687b92de0014a86576656e745f696401a974696d657374616d70cf0000018bcfe5687baa6576"
    "656e745f74797065a673746f726564a474797065ab426c6f636b53746f726564aa6d6f64656c5f6e616d65c0aa62"
    "6c6f636b5f73697a65c0af6164646974696f6e616c5f73616c74c0a96c6f72615f6e616d65c0a974656e616e745f"
    "6964a764656661756c74aa6261636b656e645f6964a26d31a867726f75705f6964c0a66d656469756da3637075a7"
    "64705f72616e6bc0aa6f626a6563745f6b6579a561206b6579aa7365715f68617368657390ac626c6f636b5f6861"
    "7368657390ae626173655f626c6f636b5f69647800ab706172656e745f68617368c0a9746f6b656e5f696473c0b1"
    "706172656e745f626c6f636b5f68617368c0de0011a86576656e745f6964cd012ca974696d657374616d70cf0000"
    "018bcfe5687baa6576656e745f74797065a772656d6f766564a474797065ac426c6f636b52656d6f766564aa6d6f"
    "64656c5f6e616d65c0aa626c6f636b5f73697a65c0af6164646974696f6e616c5f73616c74c0a96c6f72615f6e61"
    "6d65c0a974656e616e745f6964a174aa6261636b656e645f6964a26d31a867726f75705f6964a3677270a66d6564"
    "69756da46469736ba764705f72616e6bc0aa6f626a6563745f6b6579b23078666666666666666666666666666666"
    "66aa7365715f68617368657391cfffffffffffffffffac626c6f636b5f68617368657391ffae626173655f626c6f"
    "636b5f696478c000";
static const char bare[] =
    "93cf0000018bcfe5687b91de0010a86576656e745f6964ce00011170a974696d657374616d70cf0000018bcfe568"
    "7baa6576656e745f74797065a673746f726564aa6d6f64656c5f6e616d65c0aa626c6f636b5f73697a65c0af6164"
    "646974696f6e616c5f73616c74c0a96c6f72615f6e616d65c0a974656e616e745f6964a764656661756c74aa6261"
    "636b656e645f6964a26d31a867726f75705f6964c0a66d656469756da3637075a764705f72616e6bc0aa7365715f"
    "68617368657391cd3039ae626173655f626c6f636b5f69647800ab706172656e745f68617368c0a9746f6b656e5f"
    "696473c000";
/* Of 17 events with a key of 300 and a backend of 40 bytes: 10529 bytes with this MD5. */
static const uint8_t many_md5[16] = {0x45, 0x00, 0x0f, 0x93, 0x08, 0x50, 0xd1, 0x66,
                                     0xca, 0x5c, 0x78, 0x0e, 0xd9, 0x10, 0x7f, 0xcd};

static void assert_hex(const struct mc_buf *got, const char *want) {
    struct mc_buf hex = {0};
    for (size_t i = 0; i < got->len; i++) {
        mc_buf_printf(&hex, "%02x", (unsigned char)got->data[i]);
    }
    assert_string_equal(mc_buf_cstr(&hex), want);
    mc_buf_free(&hex);
}

static void test_the_bytes_are_those_of_msgpack(void **state) {
    struct mw_kv_format all = {MC_STR("m1"), true, true}, few = {MC_STR("m1"), false, false};
    struct mw_kv_event stored = {.id = 1, .key = MC_STR("a key")};
    struct mw_kv_event removed = {.id = 300,
                                  .kind = MW_KV_REMOVED,
                                  .medium = MW_KV_DISK,
                                  .tenant = MC_STR("t"),
                                  .group = MC_STR("grp"),
                                  .key = MC_STR("0xffffffffffffffff")};
    struct mw_kv_event number = {.id = 70000, .key = MC_STR("12345")};
    struct mc_buf out = {0};
    mw_kv_batch_begin(&out, TIME_MS, 2);
    mw_kv_event_put(&out, &all, TIME_MS, &stored);
    mw_kv_event_put(&out, &all, TIME_MS, &removed);
    mw_kv_batch_end(&out);
    assert_hex(&out, both);
    mc_buf_clear(&out);
    mw_kv_batch_begin(&out, TIME_MS, 1);
    mw_kv_event_put(&out, &few, TIME_MS, &number);
    mw_kv_batch_end(&out);
    assert_hex(&out, bare);
    mc_buf_free(&out);
}

static void test_long_strings_and_arrays(void **state) {
    char key[300], backend[40];
    uint8_t digest[16];
    memset(key, 'k', sizeof(key));
    memset(backend, 'b', sizeof(backend));
    struct mw_kv_format format = {{backend, sizeof(backend)}, true, true};
    struct mw_kv_event event = {.id = 1ull << 40, .key = {key, sizeof(key)}};
    struct mc_buf out = {0};
    mw_kv_batch_begin(&out, 5, 17);
    for (unsigned i = 0; i < 17; i++) {
        mw_kv_event_put(&out, &format, 5, &event);
    }
    mw_kv_batch_end(&out);
    assert_int_equal(out.len, 10529);
    mc_md5(out.data, out.len, digest);
    assert_memory_equal(digest, many_md5, sizeof(digest));
    mc_buf_free(&out);
}

static void test_keys_that_are_numbers(void **state) {
    static const struct {
        const char *key;
        bool ok;
        uint64_t hash;
    } cases[] = {{"0", true, 0},
                 {"42", true, 42},
                 {"18446744073709551615", true, UINT64_MAX},
                 {"18446744073709551616", false, 0},
                 {"0x0", true, 0},
                 {"0XdeadBEEF", true, 0xdeadbeef},
                 {"0xffffffffffffffff", true, UINT64_MAX},
                 {"0x10000000000000000", false, 0},
                 {"", false, 0},
                 {"0x", false, 0},
                 {"-1", false, 0},
                 {" 1", false, 0},
                 {"1 ", false, 0},
                 {"12a", false, 0},
                 {"0xg", false, 0},
                 {"@", false, 0}};
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        uint64_t hash = 0;
        assert_int_equal(mw_kv_key_hash(mc_str_from(cases[i].key), &hash), cases[i].ok);
        assert_int_equal(hash, cases[i].hash);
    }
}

static void test_sequence_numbers_are_big_endian(void **state) {
    static const uint8_t want[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t got[8];
    mw_kv_sequence_put(got, 0x0102030405060708);
    assert_memory_equal(got, want, sizeof(want));
    assert_int_equal(mw_kv_sequence_get(got), 0x0102030405060708);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_bytes_are_those_of_msgpack),
                                       cmocka_unit_test(test_long_strings_and_arrays),
                                       cmocka_unit_test(test_keys_that_are_numbers),
                                       cmocka_unit_test(test_sequence_numbers_are_big_endian)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
