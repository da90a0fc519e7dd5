/* The allocator of the offset backend, against a plain map of units: pieces are as large as was
 * asked, apart from each other, and all of it is free again at the end. */
#include "support/support.h"

#include "tier/extents.h"

#define UNITS  5000u
#define ROUNDS 200000u

static void test_pieces_are_apart(void **state) {
    struct mc_extents *extents = mc_extents_create(UNITS);
    static uint32_t owner[UNITS]; /* 0 = free, else the piece's number + 1 */
    static uint32_t names[UNITS];
    size_t count = 0;
    uint64_t taken = 0, refused = 0;
    struct mc_rng rng;
    mc_rng_seed(&rng, 7);
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (mc_rng_below(&rng, 100) < (round / 10000 % 2 == 0 ? 55u : 45u)) {
            uint32_t wanted =
                1 + (uint32_t)mc_rng_below(&rng, mc_rng_below(&rng, 9) == 0 ? 600 : 40);
            if (!mc_extents_take(extents, wanted, &names[count])) {
                refused++;
                continue;
            }
            struct mc_extent at = mc_extents_at(extents, names[count]);
            assert_true(at.size >= wanted && at.size <= wanted + wanted / 8 + 1);
            for (uint32_t i = 0; i < at.size; i++) {
                assert_true(at.offset + i < UNITS && owner[at.offset + i] == 0);
                owner[at.offset + i] = 1;
            }
            taken += at.size;
            count++;
        } else if (count > 0) {
            size_t which = mc_rng_below(&rng, count);
            struct mc_extent at = mc_extents_at(extents, names[which]);
            memset(&owner[at.offset], 0, at.size * sizeof(owner[0]));
            mc_extents_give(extents, names[which]);
            names[which] = names[--count];
            taken -= at.size;
        }
        assert_int_equal(mc_extents_taken_units(extents), taken);
    }
    assert_true(refused > 0 && count > 0);
    while (count > 0) {
        mc_extents_give(extents, names[--count]);
    }
    assert_int_equal(mc_extents_count(extents), 1);
    assert_true(mc_extents_take(extents, 4096, &names[0])); /* a bin's size: all of it is one */
    mc_extents_destroy(extents);
}

static void test_bins_bracket_every_size(void **state) {
    for (uint64_t units = 1; units <= MC_EXTENTS_MAX; units += 1 + units / 97) {
        uint64_t below = mc_extents_bin_size(mc_extents_bin_below((uint32_t)units));
        uint64_t above = mc_extents_bin_size(mc_extents_bin_above((uint32_t)units));
        assert_true(below <= units && units <= above && above <= units + units / 8 + 1);
    }
    /* as upstream has them */
    assert_int_equal(mc_extents_bin_size(mc_extents_bin_above(104096)), 106496);
    assert_int_equal(mc_extents_bin_below(0x0ff64000), 207);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces_are_apart),
                                       cmocka_unit_test(test_bins_bracket_every_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
