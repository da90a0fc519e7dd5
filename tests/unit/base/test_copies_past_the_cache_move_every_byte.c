/*
 * mc_copy_out and mc_copy_in are memcpy: every byte arrives, none beside it changes, for every
 * offset in a line on both sides and lengths round their thresholds.
 */
#include <stdlib.h>

#include "base/base.h"
#include "base/copy.h"
#include "support/support.h"

#define GUARD   64
#define LONGEST ((5u << 20) + 100)

static unsigned char *from, *to;

static void check(void (*copy)(void *, const void *, size_t), size_t to_at, size_t from_at,
                  size_t length) {
    unsigned char *target = to + GUARD + to_at;
    for (int i = 0; i < 2; i++) { /* the second one goes to where the first went */
        memset(target - GUARD, 0xEE, length + 2 * GUARD);
        copy(target, from + from_at, length);
        assert_int_equal(memcmp(target, from + from_at, length), 0);
        for (size_t g = 1; g <= GUARD; g++) {
            assert_int_equal(target[-(ptrdiff_t)g], 0xEE);
            assert_int_equal(target[length + g - 1], 0xEE);
        }
    }
}

static void every_byte_arrives(void **state) {
    static const size_t lengths[] = {0,      1,       63,          64,      65,    2111,
                                     2113,   4097,    65535,       65536,   65537, 65536 + 63,
                                     200001, 4194303, 4194304 + 1, 5u << 20};
    size_t checked = 0;
    for (size_t l = 0; l < MC_ARRAY_LEN(lengths); l++) {
        size_t step = lengths[l] < (1u << 20) ? 7 : 31; /* all offsets of short ones, nearly */
        for (size_t t = 0; t < 64; t += step) {
            for (size_t f = 0; f < 64; f += step) {
                check(mc_copy_out, t, f, lengths[l]);
                check(mc_copy_in, t, f, lengths[l]);
                checked += lengths[l];
            }
        }
    }
    assert_true(checked > 0);
}

static int prepare(void **state) {
    uint64_t word = 1;
    from = malloc(LONGEST + 2 * GUARD);
    to = malloc(LONGEST + 4 * GUARD);
    for (size_t i = 0; i < LONGEST + 2 * GUARD; i++) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        from[i] = (unsigned char)(word >> 56);
    }
    return 0;
}

static int clean_up(void **state) {
    free(from);
    free(to);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_arrives)};
    return cmocka_run_group_tests(tests, prepare, clean_up);
}
