/* Sizes, durations, booleans and numbers that people write are read exactly or refused. */
#include "base/env.h"
#include "support/support.h"

static void test_sizes_are_read(void **state) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"4 GB", 4ull << 30},
        {"4gib", 4ull << 30},
        {"1.5g", 3ull << 29},
        {" 64KB ", 64 << 10},
        {"0.5 k", 512},
        {"1.25MB", 1310720},
        {"2T", 2ull << 40},
        {"10b", 10},
        {"infinite", UINT64_MAX},
        {"INFINITE", UINT64_MAX},
        {".5m", 512 << 10},
        {"3.0", 3},
        {"18446744073709551615", UINT64_MAX},
        {"0.1g", 107374182},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(good); i++) {
        uint64_t bytes = 1;
        assert_ok(mc_parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
}

static void test_bad_sizes_are_refused_and_leave_the_output_alone(void **state) {
    static const char *const bad[] = {
        "",
        " ",
        "x",
        "-1",
        "+1",
        "1.5",
        "1.5b",
        "4 GBs",
        "4 G B",
        "1e3",
        "0x10",
        "nan",
        "inf",
        "1..5g",
        ".",
        "g",
        "18446744073709551616",
        "16777216t",
        "99999999999999999999999",
        "1 2",
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        uint64_t bytes = 77;
        assert_int_equal(mc_parse_size(bad[i], &bytes), MC_INVALID_PARAMS);
        assert_int_equal(bytes, 77);
    }
}

static void test_durations(void **state) {
    static const struct {
        const char *text;
        uint64_t ms;
    } good[] = {{"250", 250},    {"250ms", 250},  {"30s", 30000}, {"5m", 300000},
                {"1h", 3600000}, {"1.5 S", 1500}, {"0", 0}};
    static const char *const bad[] = {
        "", "1d", "1.5ms", "5 min", "-5s", "s", "99999999999999999999h"};
    uint64_t ms = 1;
    for (size_t i = 0; i < MC_ARRAY_LEN(good); i++) {
        assert_ok(mc_parse_duration_ms(good[i].text, &ms));
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        ms = 77;
        assert_int_equal(mc_parse_duration_ms(bad[i], &ms), MC_INVALID_PARAMS);
        assert_int_equal(ms, 77);
    }
}

static void test_booleans(void **state) {
    static const char *const yes[] = {"1", "true", "YES", " on "},
                             *const no[] = {"0", "False", "no", "OFF"},
                             *const bad[] = {"", "2", "t", "truee", "y e s"};
    bool value;
    for (size_t i = 0; i < MC_ARRAY_LEN(yes); i++) {
        value = false;
        assert_ok(mc_parse_bool(yes[i], &value));
        assert_true(value);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(no); i++) {
        value = true;
        assert_ok(mc_parse_bool(no[i], &value));
        assert_false(value);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        assert_int_equal(mc_parse_bool(bad[i], &value), MC_INVALID_PARAMS);
    }
}

static void test_numbers(void **state) {
    uint64_t value = 0;
    assert_ok(mc_parse_u64("18446744073709551615", 0, UINT64_MAX, &value));
    assert_int_equal(value, UINT64_MAX);
    assert_ok(mc_parse_u64("0xFf", 0, 255, &value));
    assert_int_equal(value, 255);
    static const char *const bad[] = {"",
                                      "0x",
                                      "1 ",
                                      " 1",
                                      "-1",
                                      "+1",
                                      "1a",
                                      "0xg",
                                      "18446744073709551616",
                                      "0x10000000000000000",
                                      "101"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        value = 77;
        assert_int_equal(
            mc_parse_u64(bad[i], 0, i + 1 < MC_ARRAY_LEN(bad) ? UINT64_MAX : 100, &value),
            MC_INVALID_PARAMS);
        assert_int_equal(value, 77);
    }
    assert_int_equal(mc_parse_u64("4", 5, 9, &value), MC_INVALID_PARAMS);
}

static void test_sizes_are_shown_for_people(void **state) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1 KiB"},
        {1536, "1.5 KiB"},
        {1048575, "1 MiB"},
        {3ull << 29, "1.5 GiB"},
        {4ull << 40, "4 TiB"},
        {1ull << 60, "1 EiB"},
        {UINT64_MAX - 1, "16 EiB"},
        {UINT64_MAX, "infinite"},
    };
    struct mc_buf buf = {0};
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        mc_buf_clear(&buf);
        mc_format_size(&buf, cases[i].bytes);
        assert_string_equal(mc_buf_cstr(&buf), cases[i].text);
    }
    mc_buf_free(&buf);
}

static void test_bad_settings_of_the_environment_are_ignored(void **state) {
    static const char NAME[] = "MC_TEST_SETTING";
    unsetenv(NAME);
    assert_int_equal(mc_env_u64(NAME, 1, 100, 7), 7);
    assert_true(mc_env_bool(NAME, true));
    static const char *const bad[] = {"", "0", "101", "x", "5x", "-1"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        setenv(NAME, bad[i], 1);
        assert_int_equal(mc_env_u64(NAME, 1, 100, 7), 7);
    }
    setenv(NAME, "100", 1);
    assert_int_equal(mc_env_u64(NAME, 1, 100, 7), 100);
    assert_true(mc_env_bool(NAME, true)); /* neither yes nor no */
    setenv(NAME, "no", 1);
    assert_false(mc_env_bool(NAME, true));
    unsetenv(NAME);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_are_read),
        cmocka_unit_test(test_bad_sizes_are_refused_and_leave_the_output_alone),
        cmocka_unit_test(test_durations),
        cmocka_unit_test(test_booleans),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_bad_settings_of_the_environment_are_ignored),
        cmocka_unit_test(test_sizes_are_shown_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
