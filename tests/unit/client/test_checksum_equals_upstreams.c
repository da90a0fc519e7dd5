/* The object checksum is CRC-64/ECMA-182: catalogue check value, and independent of how the bytes
 * lie in slices. */
#include "client/checksum.h"
#include "support/support.h"

static uint64_t reference(const uint8_t *bytes, size_t len) {
    uint64_t crc = 0;
    for (size_t i = 0; i < len; i++) {
        crc ^= (uint64_t)bytes[i] << 56;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 1ull << 63 ? crc << 1 ^ 0x42f0e1eba9ea3693u : crc << 1;
        }
    }
    return crc;
}

static void test_check_value(void **state) {
    char text[] = "123456789";
    struct mc_slice slice = {text, 9};
    assert_true(mc_checksum_slices(&slice, 1, 9) == 0x6c40df5f0b497347u);
}

static void test_slices_do_not_matter(void **state) {
    uint8_t bytes[5000];
    struct mc_rng rng;
    mc_rng_seed(&rng, 5);
    mc_test_fill(bytes, sizeof(bytes), 4);
    for (int round = 0; round < 200; round++) {
        size_t len = 1 + mc_rng_below(&rng, sizeof(bytes) - 1);
        struct mc_slice slices[9];
        size_t at = 0;
        for (size_t i = 0; i < 9;
             i++) { /* the last one reaches beyond len, which must not matter */
            size_t part =
                i == 8 ? sizeof(bytes) - at : mc_rng_below(&rng, (sizeof(bytes) - at) / 2 + 1);
            slices[i] = (struct mc_slice){bytes + at, part};
            at += part;
        }
        assert_true(mc_checksum_slices(slices, 9, len) == reference(bytes, len));
    }
}

static void test_parts_make_the_whole(void **state) {
    uint8_t bytes[5000];
    struct mc_rng rng;
    mc_rng_seed(&rng, 6);
    mc_test_fill(bytes, sizeof(bytes), 7);
    for (int round = 0; round < 200; round++) {
        size_t len = 1 + mc_rng_below(&rng, sizeof(bytes) - 1), at = 0;
        uint64_t whole = 0;
        while (at < len) {
            size_t part = 1 + mc_rng_below(&rng, len - at);
            struct mc_slice slice = {bytes + at, part};
            at += part;
            whole ^= mc_checksum_shift(mc_checksum_slices(&slice, 1, part), len - at);
        }
        assert_true(whole == reference(bytes, len));
    }
    assert_true(mc_checksum_shift(0, UINT64_MAX) == 0);
    assert_true(mc_checksum_shift(1, 1ull << 40) != mc_checksum_shift(1, 1ull << 63));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_value),
        cmocka_unit_test(test_slices_do_not_matter),
        cmocka_unit_test(test_parts_make_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
