#include "support/support.h"

static uint8_t pattern(size_t i, uint64_t seed) {
    uint64_t word = (i / 8 + 1) * 0x9e3779b97f4a7c15u ^ seed * 0xff51afd7ed558ccdu;
    word ^= word >> 29;
    return (uint8_t)(word >> (8 * (i % 8)));
}

void mc_test_fill(void *buffer, size_t len, uint64_t seed) {
    for (size_t i = 0; i < len; i++) {
        ((uint8_t *)buffer)[i] = pattern(i, seed);
    }
}

void mc_test_verify(const void *buffer, size_t len, uint64_t seed) {
    assert_true(len > 0);
    for (size_t i = 0; i < len; i++) {
        if (((const uint8_t *)buffer)[i] != pattern(i, seed)) {
            fail_msg("byte %zu of %zu is %02x, not %02x", i, len, ((const uint8_t *)buffer)[i],
                     pattern(i, seed));
        }
    }
}
