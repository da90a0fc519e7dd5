/* Messages of staging, good, damaged and made up: what is accepted comes out as it went in, and
 * everything else is refused. */
#include <string.h>

#include "support/support.h"
#include "wire/stage.h"

static const struct mc_stage_message sample = {
    .op = MC_STAGE_TO_DEVICE,
    .flags = MC_STAGE_WANTED,
    .status = MC_ERR_LIMIT,
    .engine = {0x0123456789abcdefu, 0xfedcba9876543210u},
    .chunk = 0x7f0000000000,
    .device = 0x7fa000000000,
    .length = 1 << 20,
};

static void test_a_message_comes_out_as_it_went_in(void **state) {
    uint8_t bytes[MC_STAGE_BYTES];
    struct mc_stage_message m;
    mc_stage_encode(&sample, bytes);
    assert_memory_equal(bytes, "mcs1", 4);
    assert_ok(mc_stage_decode((struct mc_str){(char *)bytes, sizeof(bytes)}, &m));
    assert_int_equal(m.op, sample.op);
    assert_int_equal(m.flags, sample.flags);
    assert_int_equal(m.status, sample.status);
    assert_true(mc_uuid_eq(m.engine, sample.engine));
    assert_int_equal(m.chunk, sample.chunk);
    assert_int_equal(m.device, sample.device);
    assert_int_equal(m.length, sample.length);
}

static void test_damaged_messages_do_no_harm(void **state) {
    struct mc_rng rng;
    size_t accepted = 0;
    mc_rng_seed(&rng, 7);
    for (int round = 0; round < 200000; round++) {
        uint8_t bytes[MC_STAGE_BYTES + 8], again[MC_STAGE_BYTES];
        struct mc_stage_message m;
        size_t len = round % 3 == 0 ? mc_rng_below(&rng, sizeof(bytes) + 1) : MC_STAGE_BYTES;
        memset(bytes, 0, sizeof(bytes));
        mc_stage_encode(&sample, bytes);
        for (uint64_t flips = mc_rng_below(&rng, 4); flips > 0; flips--) {
            bytes[mc_rng_below(&rng, MC_STAGE_BYTES)] = (uint8_t)mc_rng_next(&rng);
        }
        if (mc_stage_decode((struct mc_str){(char *)bytes, len}, &m) != MC_OK) {
            continue;
        }
        accepted++;
        assert_int_equal(len, MC_STAGE_BYTES);
        assert_in_range(m.op, MC_STAGE_TAKE, MC_STAGE_GIVE_BACK);
        assert_true((int)m.status <= 0);
        mc_stage_encode(&m, again);
        bytes[6] = bytes[7] = 0; /* what is reserved is not looked at */
        memset(bytes + 12, 0, 4);
        assert_memory_equal(again, bytes, MC_STAGE_BYTES);
    }
    assert_true(accepted > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_comes_out_as_it_went_in),
        cmocka_unit_test(test_damaged_messages_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
