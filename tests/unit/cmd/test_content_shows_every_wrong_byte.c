/* Contents derived from a key verify, and any byte that is changed, moved or of another key is
 * found at its place. */
#include "cmd/content.h"
#include "support/support.h"

static void test_every_length_verifies(void **state) {
    char buffer[300];
    size_t bad;
    for (size_t length = 1; length <= sizeof(buffer); length++) {
        uint64_t seed = mc_content_seed("key") + length;
        mc_content_fill(buffer, length, seed);
        assert_true(mc_content_verify(buffer, length, seed, &bad));
        assert_false(mc_content_verify(buffer, length, seed + 1, &bad) && length > 8);
    }
}

static void test_each_flipped_byte_is_found(void **state) {
    char buffer[261 + 1];
    char *unaligned = buffer + 1;
    size_t length = 261, bad;
    uint64_t seed = mc_content_seed("another");
    mc_content_fill(unaligned, length, seed);
    for (size_t i = 0; i < length; i++) {
        unaligned[i] ^= 0x10;
        bad = SIZE_MAX;
        assert_false(mc_content_verify(unaligned, length, seed, &bad));
        assert_int_equal(bad, i);
        unaligned[i] ^= 0x10;
    }
    assert_true(mc_content_verify(unaligned, length, seed, &bad));
}

static void test_moved_steps_are_found(void **state) {
    char buffer[4096], moved[4096];
    size_t bad;
    mc_content_fill(buffer, sizeof(buffer), 7);
    memcpy(moved, buffer, sizeof(buffer));
    memcpy(moved + 1024, buffer + 1088, 64);
    memcpy(moved + 1088, buffer + 1024, 64);
    assert_false(mc_content_verify(moved, sizeof(moved), 7, &bad));
    assert_in_range(bad, 1024, 1088);
}

static void test_a_part_is_the_same_as_of_the_whole(void **state) {
    char whole[1000], part[1000];
    mc_content_fill(whole, sizeof(whole), 9);
    mc_content_fill(part, 333, 9);
    assert_memory_equal(whole, part, 333);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_verifies),
        cmocka_unit_test(test_each_flipped_byte_is_found),
        cmocka_unit_test(test_moved_steps_are_found),
        cmocka_unit_test(test_a_part_is_the_same_as_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
