/* A lease keeps an object where it is; a group has one lease for all; pins keep objects from
 * eviction. */
#include "support/master_fixture.h"

static struct mw_replicate_config in_group(struct fixture *f, const char *group) {
    struct mw_replicate_config c = replicas(1);
    c.group_ids = (struct mw_opt_strs){true, strs(f, 1, &group)};
    return c;
}

static uint64_t lease_ms(struct fixture *f, const char *key) {
    struct mw_replica_list list;
    assert_int_equal(get_list(f, "default", key, &list), MC_OK);
    return list.lease_ttl_ms;
}

static void test_a_read_object_cannot_be_removed_until_its_lease_ends(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(get(f, "k"), MC_OK);
    assert_int_equal(remove_key(f, "k", false), MC_OBJECT_HAS_LEASE);
    advance_ms(f, 9999);
    assert_int_equal(remove_key(f, "k", false), MC_OBJECT_HAS_LEASE);
    assert_int_equal(remove_all(f, "default", false), 0);
    assert_true(exists(f, "k")); /* asking grants a lease too */
    advance_ms(f, 9999);
    assert_int_equal(remove_key(f, "k", false), MC_OBJECT_HAS_LEASE);
    advance_ms(f, 1);
    assert_int_equal(remove_key(f, "k", false), MC_OK);
    assert_int_equal(used_bytes(f), 0);
}

static void test_force_removes_what_is_leased_and_nothing_else_more(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(put_start(f, "half", 100), MC_OK);
    assert_int_equal(get(f, "k"), MC_OK);
    assert_int_equal(remove_key(f, "half", true), MC_REPLICA_IS_NOT_READY);
    assert_int_equal(remove_all(f, "default", true), 1);
    assert_int_equal(get(f, "half"), MC_REPLICA_IS_NOT_READY);
    assert_int_equal(key_count(f), 1);
}

static void test_a_fresh_object_has_no_lease(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_true(peek(f, "k")); /* looking in from inside grants nothing */
    assert_int_equal(remove_key(f, "k", false), MC_OK);
}

static void test_reading_one_member_protects_the_group(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_with(f, "a", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(put_with(f, "b", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(put_with(f, "c", 100, in_group(f, "h")), MC_OK);
    assert_int_equal(lease_ms(f, "a"), 10000);
    assert_int_equal(remove_key(f, "b", false), MC_OBJECT_HAS_LEASE);
    assert_int_equal(remove_key(f, "c", false), MC_OK);
    advance_ms(f, 4000);
    assert_int_equal(lease_ms(f, "b"), 6000); /* more than half is left: not renewed, and said so */
    advance_ms(f, 2000);
    assert_int_equal(lease_ms(f, "b"), 10000);
    advance_ms(f, 9999);
    assert_int_equal(remove_key(f, "a", false), MC_OBJECT_HAS_LEASE);
    advance_ms(f, 1);
    assert_int_equal(remove_key(f, "a", false), MC_OK);
    assert_int_equal(remove_key(f, "b", false), MC_OK);
}

static void test_a_newcomer_is_covered_from_the_next_read_on(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_with(f, "a", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(lease_ms(f, "a"), 10000);
    advance_ms(f, 1000);
    assert_int_equal(put_with(f, "b", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(put_with(f, "c", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(remove_key(f, "c", false), MC_OK); /* nobody asked for anybody since */
    assert_int_equal(lease_ms(f, "a"), 10000);          /* membership changed: renewed at once */
    assert_int_equal(remove_key(f, "b", false), MC_OBJECT_HAS_LEASE);
    advance_ms(f, 10000);
    assert_int_equal(remove_key(f, "b", false), MC_OK);
    assert_true(peek(f, "a"));
}

static void test_groups_of_tenants_are_apart(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_with(f, "a", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(put_start_with(f, client_a, "t", "b", 100, in_group(f, "g"), NULL), MC_OK);
    assert_int_equal(put_end_as(f, client_a, "t", "b", MC_REPLICA_ALL), MC_OK);
    assert_int_equal(lease_ms(f, "a"), 10000);
    assert_int_equal(remove_all(f, "t", false), 1);
}

/* ---- soft pins ---- */

static struct mw_replicate_config soft_pinned(uint64_t ttl_ms) {
    struct mw_replicate_config c = replicas(1);
    c.soft_pin_action = MC_SOFT_PIN_ENABLE;
    c.soft_pin_ttl_ms = (struct mw_opt_u64){ttl_ms != 0, ttl_ms};
    return c;
}

static void test_soft_pin_requests_are_validated(void **state) {
    struct fixture *f = *state;
    struct mw_replicate_config c = soft_pinned(0);
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    c.soft_pin_ttl_ms = (struct mw_opt_u64){true, 0};
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    assert_int_equal(put_with(f, "k", 10, soft_pinned(24ull * 3600 * 1000 + 1)), MC_INVALID_PARAMS);
    c = soft_pinned(1000);
    c.soft_pin_action = MC_SOFT_PIN_PRESERVE;
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    c.soft_pin_action = MC_SOFT_PIN_DISABLE;
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    assert_int_equal(put_with(f, "k", 10, soft_pinned(24ull * 3600 * 1000)), MC_OK);
    f->config.default_kv_soft_pin_ttl_ms = f->config.max_kv_soft_pin_ttl_ms + 1;
    assert_null(mc_master_create(&f->config, &f->clock, NULL));
}

static void test_a_soft_pin_lives_from_the_first_end_to_its_deadline(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start_with(f, client_a, "default", "k", 10, soft_pinned(5000), NULL),
                     MC_OK);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 0);
    advance_ms(f, 3000);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 1);
    advance_ms(f, 4000);
    assert_int_equal(put_end(f, "k"), MC_OK); /* ending again does not start it again */
    assert_int_equal(get(f, "k"), MC_OK);     /* nor does reading */
    tick_for_ms(f, 990);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 1);
    tick_for_ms(f, 200);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 0);
    assert_int_equal(get(f, "k"), MC_OK);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 0);
    assert_int_equal(remove_key(f, "k", true), MC_OK);
}

static void test_soft_pins_expire_in_the_order_of_their_deadlines(void **state) {
    struct fixture *f = *state;
    char key[32];
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    for (uint64_t i = 0; i < 3000; i++) {
        snprintf(key, sizeof(key), "k%d", (int)i);
        assert_int_equal(put_with(f, key, 10, soft_pinned(1000 + i * 7919 % 3000)), MC_OK);
    }
    for (uint64_t i = 0; i < 3000; i += 3) {
        snprintf(key, sizeof(key), "k%d", (int)i);
        assert_int_equal(remove_key(f, key, false), MC_OK);
    }
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 2000);
    fixture_check(f);
    for (uint64_t t = 0; t <= 4000; t += 500) {
        uint64_t left = 0;
        for (uint64_t i = 0; i < 3000; i++) {
            left += i % 3 != 0 && 1000 + i * 7919 % 3000 > t;
        }
        assert_int_equal(metric(f, "master_soft_pin_key_count"), left);
        advance_ms(f, 500);
        for (int n = 0; n < 16; n++) {
            tick(f); /* all shards get their turn */
        }
        ping(f, client_a);
    }
}

static void test_upserts_keep_or_change_the_soft_pin_when_they_end(void **state) {
    struct fixture *f = *state;
    struct mw_replicate_config off = replicas(1);
    off.soft_pin_action = MC_SOFT_PIN_DISABLE;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_with(f, "k", 10, soft_pinned(60000)), MC_OK);
    for (uint64_t size = 10; size < 12; size++) { /* in place, and with new extents */
        assert_int_equal(upsert_start(f, "k", size, replicas(1), NULL), MC_OK);
        assert_int_equal(metric(f, "master_soft_pin_key_count"), 1);
        assert_int_equal(put_end(f, "k"), MC_OK);
        assert_int_equal(metric(f, "master_soft_pin_key_count"), 1);
    }
    assert_int_equal(upsert_start(f, "k", 11, off, NULL), MC_OK);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 1);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 0);
    assert_int_equal(upsert_start(f, "k", 11, soft_pinned(1000), NULL), MC_OK);
    assert_int_equal(put_revoke(f, "k"), MC_OK);
    assert_int_equal(metric(f, "master_soft_pin_key_count"), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_read_object_cannot_be_removed_until_its_lease_ends),
        TEST(test_force_removes_what_is_leased_and_nothing_else_more),
        TEST(test_a_fresh_object_has_no_lease),
        TEST(test_reading_one_member_protects_the_group),
        TEST(test_a_newcomer_is_covered_from_the_next_read_on),
        TEST(test_groups_of_tenants_are_apart),
        TEST(test_soft_pin_requests_are_validated),
        TEST(test_a_soft_pin_lives_from_the_first_end_to_its_deadline),
        TEST(test_soft_pins_expire_in_the_order_of_their_deadlines),
        TEST(test_upserts_keep_or_change_the_soft_pin_when_they_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
