/* The masters that are wrong on purpose are wrong in the way they say, so that a checker that
 * misses them is blind. */
#include "support/master_fixture.h"

static void restart_broken(struct fixture *f, enum mc_master_break how) {
    f->config.break_mode = how;
    fixture_restart(f);
    mount(f, "node:1", 10000);
}

static uint64_t address_of(struct fixture *f, const char *key) {
    struct mw_replica_list list;
    assert_ok(mc_master_peek(f->m, MC_STR("default"), str(key), &f->arena, &list));
    return ((struct mw_replica *)list.replicas.items)->memory.address;
}

static void repair(struct fixture *f) { /* the teardown's fsck wants a sound master */
    f->config.break_mode = MC_BREAK_NONE;
    fixture_restart(f);
}

static void test_early_free_hands_out_bytes_twice_and_fsck_sees_it(void **state) {
    struct fixture *f = *state;
    struct mc_buf report = {0};
    restart_broken(f, MC_BREAK_EARLY_FREE);
    assert_int_equal(put(f, "a", 100), MC_OK);
    assert_int_equal(put(f, "b", 100), MC_OK);
    assert_int_equal(address_of(f, "a"), address_of(f, "b"));
    assert_int_equal(mc_master_fsck(f->m, &report), MC_INTERNAL_ERROR);
    assert_non_null(strstr(mc_buf_cstr(&report), "not alive in the allocator"));
    assert_int_equal(remove_all(f, "default", true), 2);
    mc_buf_free(&report);
    repair(f);
}

static void test_early_visible_is_readable_before_the_end(void **state) {
    struct fixture *f = *state;
    restart_broken(f, MC_BREAK_EARLY_VISIBLE);
    assert_int_equal(put_start(f, "a", 100), MC_OK);
    assert_int_equal(get(f, "a"), MC_OK);
    repair(f);
}

static void test_no_leases_evicts_what_is_being_read(void **state) {
    struct fixture *f = *state;
    restart_broken(f, MC_BREAK_NO_LEASES);
    for (int i = 0; i < 10; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        assert_int_equal(put(f, key, 1000), MC_OK);
        assert_int_equal(get(f, key), MC_OK);
    }
    tick(f);
    assert_true(key_count(f) < 10);
    repair(f);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_early_free_hands_out_bytes_twice_and_fsck_sees_it),
        TEST(test_early_visible_is_readable_before_the_end),
        TEST(test_no_leases_evicts_what_is_being_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
