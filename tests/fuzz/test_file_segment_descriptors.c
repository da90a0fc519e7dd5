/* Descriptors of file segments, good, damaged and made up: never harm, and what is accepted is
 * usable and comes out as it went in. */
#include <string.h>

#include "support/support.h"
#include "wire/file_segment.h"

static const char SAMPLE[] =
    "{\"name\":\"pool/a\",\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"/mnt/nvme0/a\","
    "\"length\":1073741824,\"local_path_map\":{\"host-1\":\"/mnt/local/a\",\"host-2\":\"/b\"}},"
    "{\"file_path\":\"/mnt/nvme1/b\",\"length\":4096,\"local_path_map\":{}}]}";

static void check_usable(const struct mc_file_parts *parts) {
    uint64_t total = 0;
    assert_true(parts->count > 0 && parts->count <= MC_FILE_PARTS_MAX);
    for (size_t i = 0; i < parts->count; i++) {
        assert_true(parts->list[i].path[0] == '/');
        assert_true(strlen(parts->list[i].path) < MC_FILE_PATH_MAX);
        assert_true(parts->list[i].length > 0 && parts->list[i].length <= INT64_MAX - total);
        total += parts->list[i].length;
    }
}

static void test_the_path_is_that_of_the_server(void **state) {
    struct mc_file_parts parts;
    struct mc_buf again = {0};
    assert_ok(mc_file_segment_decode(mc_str_from(SAMPLE), "host-1", &parts));
    assert_int_equal(parts.count, 2);
    assert_string_equal(parts.list[0].path, "/mnt/local/a");
    assert_string_equal(parts.list[1].path, "/mnt/nvme1/b");
    assert_int_equal(parts.list[0].length, 1 << 30);
    mc_file_segment_encode("pool/a", "host-9", &parts, &again);
    mc_file_parts_free(&parts);
    assert_ok(mc_file_segment_decode((struct mc_str){again.data, again.len}, "elsewhere", &parts));
    assert_string_equal(parts.list[0].path, "/mnt/local/a");
    mc_file_parts_free(&parts);
    assert_ok(mc_file_segment_decode(mc_str_from(SAMPLE), "nobody", &parts));
    assert_string_equal(parts.list[0].path, "/mnt/nvme0/a");
    mc_file_parts_free(&parts);
    mc_buf_free(&again);
}

static void test_what_is_refused(void **state) {
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"protocol\":\"tcp\",\"buffers\":[]}",
        "{\"protocol\":\"nvmeof\",\"buffers\":[]}",
        "{\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"relative\",\"length\":1}]}",
        "{\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"/a\\u0000b\",\"length\":1}]}",
        "{\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"/a\",\"length\":0}]}",
        "{\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"/a\",\"length\":-5}]}",
        "{\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"/"
        "a\",\"length\":9223372036854775807},"
        "{\"file_path\":\"/b\",\"length\":1}]}",
        "{\"protocol\":\"nvmeof\",\"buffers\":[{\"file_path\":\"/a\",\"length\":1,"
        "\"local_path_map\":{\"me\":7}}]}"};
    for (size_t i = 0; i < MC_ARRAY_LEN(texts); i++) {
        struct mc_file_parts parts;
        assert_int_equal(mc_file_segment_decode(mc_str_from(texts[i]), "me", &parts),
                         MC_ERR_PROTOCOL);
    }
}

static void test_damaged_text(void **state) {
    struct mc_rng rng;
    char text[sizeof(SAMPLE)];
    unsigned good = 0, bad = 0;
    mc_rng_seed(&rng, 99);
    for (int round = 0; round < 30000; round++) {
        struct mc_file_parts parts;
        memcpy(text, SAMPLE, sizeof(text));
        for (uint64_t n = mc_rng_below(&rng, 4); n > 0; n--) {
            text[mc_rng_below(&rng, sizeof(text) - 1)] = (char)mc_rng_below(&rng, 256);
        }
        size_t len =
            mc_rng_below(&rng, 8) == 0 ? mc_rng_below(&rng, sizeof(text)) : sizeof(text) - 1;
        if (mc_file_segment_decode((struct mc_str){text, len}, "host-1", &parts) == MC_OK) {
            check_usable(&parts);
            mc_file_parts_free(&parts);
            good++;
        } else {
            bad++;
        }
    }
    assert_true(good > 1000 && bad > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_path_is_that_of_the_server),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_damaged_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
