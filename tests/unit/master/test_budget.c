/* The index has a limit: at it new objects are refused and old ones evicted, what exists stays
 * usable, and the count is exact again when everything has gone. */
#include "support/master_fixture.h"

#define LIMIT (2 << 20)

static void limit(struct fixture *f) {
    f->config.metadata_limit_bytes = LIMIT;
    f->config.default_kv_lease_ttl_ms = 500;
    fixture_restart(f);
    mount(f, "n:1", 1ull << 40); /* room for bytes is not what is short */
}

static char *long_key(unsigned i) {
    static char key[2000];
    memset(key, 'x', sizeof(key) - 1);
    snprintf(key, 16, "%08u", i);
    key[8] = '-';
    return key;
}

static void test_new_objects_are_refused_and_old_ones_go(void **state) {
    struct fixture *f = *state;
    limit(f);
    unsigned stored = 0;
    int32_t status = MC_OK;
    for (; status == MC_OK && stored < 10000; stored++) {
        status = put(f, long_key(stored), 100);
        if (status == MC_OK) { /* a lease, so that nothing can be evicted */
            assert_int_equal(get(f, long_key(stored)), MC_OK);
        }
        if (stored % 16 == 0) {
            tick(f);
        }
    }
    assert_int_equal(status, MC_NO_AVAILABLE_HANDLE);
    assert_in_range(stored, LIMIT / 2400, LIMIT / 2000);
    assert_true(metric(f, "master_metadata_refusals_total") >= 1);
    assert_true(metric(f, "master_metadata_bytes") >= LIMIT);
    assert_true(metric(f, "master_metadata_bytes") <= LIMIT + 64 * 2400);
    assert_int_equal(metric(f, "master_metadata_limit_bytes"), LIMIT);
    assert_int_equal(get(f, long_key(0)), MC_OK); /* reads go on */
    assert_int_equal(put(f, long_key(0), 100), MC_OBJECT_ALREADY_EXISTS);
    advance_ms(f, 1000); /* the leases end */
    tick_for_ms(f, 100);
    assert_true(metric(f, "master_evicted_key_count") > 0);
    assert_true(metric(f, "master_metadata_bytes") < LIMIT);
    for (unsigned i = 0; i < 3000; i++) { /* and so on, for ever */
        (void)put(f, long_key(100000 + i), 100);
        (void)ping(f, client_a);
        tick_for_ms(f, 10);
        assert_true(metric(f, "master_metadata_bytes") <= LIMIT + 2400);
    }
    assert_int_equal(put(f, "last", 100), MC_OK);
}

static void test_what_goes_is_no_longer_counted(void **state) {
    struct fixture *f = *state;
    limit(f);
    int64_t tables = 0;
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 300; i++) {
            struct mw_replicate_config c = replicas(1);
            struct mc_str group = MC_STR("group");
            struct mc_vec out;
            c.soft_pin_action = MC_SOFT_PIN_ENABLE;
            c.group_ids = (struct mw_opt_strs){true, {&group, 1}};
            assert_int_equal(put_start_with(f, client_a, "tenant", long_key(i), 100, c, &out),
                             MC_OK);
            assert_int_equal(put_end_as(f, client_a, "tenant", long_key(i), MC_REPLICA_ALL), MC_OK);
        }
        assert_true(metric(f, "master_metadata_bytes") > 300 * 2000);
        assert_int_equal(mc_master_remove_all(f->m, NULL, true), 300);
        tick_for_ms(f, 100);
        int64_t left = metric(f, "master_metadata_bytes");
        assert_true(left < 300000 && (round == 0 || left == tables)); /* the tables stay */
        tables = left;
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_new_objects_are_refused_and_old_ones_go),
        TEST(test_what_goes_is_no_longer_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
