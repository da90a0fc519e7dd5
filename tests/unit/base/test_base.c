/* Status names, strings, arena, random numbers and MD5 do what base.h says. */
#include <sched.h>

#include "base/thread.h"
#include "support/support.h"

static void test_status_names_and_wire_codes(void **state) {
    assert_string_equal(mc_status_name(-704), "OBJECT_NOT_FOUND");
    assert_string_equal(mc_status_name(-9999), "UNKNOWN_ERROR");
    assert_int_equal(mc_status_to_wire(MC_OBJECT_NOT_FOUND), -704);
    assert_int_equal(mc_status_to_wire(MC_ERR_TIMEOUT), MC_RPC_TIMEOUT);
}

static void test_cores_are_those_that_the_process_may_use(void **state) {
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    assert_int_equal(mc_usable_cores(), CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; core++) {
        if (CPU_ISSET(core, &all)) {
            CPU_SET(core, &one);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    unsigned cores = mc_usable_cores();
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    assert_int_equal(cores, 1);
}

static void test_buffer_grows_and_keeps_its_bytes(void **state) {
    struct mc_buf buf = {0};
    for (int i = 0; i < 10000; i++) {
        mc_buf_printf(&buf, "%d,", i);
    }
    assert_memory_equal(mc_buf_cstr(&buf), "0,1,2,3,", 8);
    assert_string_equal(buf.data + buf.len - 5, "9999,");
    mc_buf_free(&buf);
}

static void test_arena_keeps_pieces_apart_and_reuses_its_first_block(void **state) {
    struct mc_arena arena = {0};
    void *first = mc_arena_alloc(&arena, 1);
    char *pieces[1000];
    for (size_t i = 0; i < MC_ARRAY_LEN(pieces); i++) {
        pieces[i] = mc_arena_alloc(&arena, 100 + i);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        mc_test_fill(pieces[i], 100 + i, i);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(pieces); i++) {
        mc_test_verify(pieces[i], 100 + i, i);
    }
    mc_arena_reset(&arena);
    assert_ptr_equal(mc_arena_alloc(&arena, 1), first);
    mc_arena_free(&arena);
}

static void test_md5_of_rfc_1321(void **state) {
    static const struct {
        const char *text;
        const char *hex;
    } cases[] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        uint8_t digest[16];
        struct mc_buf hex = {0};
        mc_md5(cases[i].text, strlen(cases[i].text), digest);
        for (int b = 0; b < 16; b++) {
            mc_buf_printf(&hex, "%02x", digest[b]);
        }
        assert_string_equal(mc_buf_cstr(&hex), cases[i].hex);
        mc_buf_free(&hex);
    }
}

static void test_random_numbers_repeat_and_stay_below(void **state) {
    struct mc_rng a, b;
    mc_rng_seed(&a, 7);
    mc_rng_seed(&b, 7);
    unsigned seen[10] = {0};
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(mc_rng_next(&a), mc_rng_next(&b));
        seen[mc_rng_below(&a, 10)]++;
        mc_rng_next(&b);
    }
    for (int i = 0; i < 10; i++) {
        assert_in_range(seen[i], 800, 1200);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names_and_wire_codes),
        cmocka_unit_test(test_cores_are_those_that_the_process_may_use),
        cmocka_unit_test(test_buffer_grows_and_keeps_its_bytes),
        cmocka_unit_test(test_arena_keeps_pieces_apart_and_reuses_its_first_block),
        cmocka_unit_test(test_md5_of_rfc_1321),
        cmocka_unit_test(test_random_numbers_repeat_and_stay_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
