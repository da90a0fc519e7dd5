/* An object that was put with a time to live is not there from its end on, whoever looks and
 * however; no lease outlasts it and no pin prolongs it. A conditional put takes place when the key
 * is as expected, and else changes nothing. */
#include "support/master_fixture.h"

static struct mw_replicate_config pinned(void) {
    struct mw_replicate_config c = replicas(1);
    c.with_hard_pin = true;
    return c;
}

static struct mw_replicate_config in_group(struct fixture *f, const char *group) {
    struct mw_replicate_config c = replicas(1);
    c.group_ids = (struct mw_opt_strs){true, strs(f, 1, &group)};
    return c;
}

struct wish {
    struct mw_replicate_config config;
    uint64_t ttl_ms;
    uint8_t condition;
    bool upsert;
    uint64_t expected;
};

static int32_t begin(struct fixture *f, const char *key, uint64_t size, struct wish wish) {
    bool compares = wish.condition >= MW_PUT_IF_VERSION;
    struct mw_a_start_puts args = {.client = client_a,
                                   .keys = strs(f, 1, &key),
                                   .lengths = {&size, 1},
                                   .config = wish.config,
                                   .tenant = MC_STR("default"),
                                   .upsert = wish.upsert,
                                   .ttl_ms = wish.ttl_ms,
                                   .condition = wish.condition,
                                   .expected = {&wish.expected, compares}};
    struct mc_vec answers;
    if (args.config.replica_num == 0) {
        args.config.replica_num = 1;
    }
    call(f, MC_RPC_StartPuts, &args, &answers);
    assert_int_equal(answers.count, 1);
    return ((struct mw_e_vec *)answers.items)->error;
}

static int32_t put_wish(struct fixture *f, const char *key, uint64_t size, struct wish wish) {
    MC_TRY(begin(f, key, size, wish));
    return put_end(f, key);
}

static struct mw_e_object_info inspect(struct fixture *f, const char *key) {
    struct mw_a_keys args = {strs(f, 1, &key), MC_STR("default")};
    struct mc_vec answers;
    call(f, MC_RPC_Inspect, &args, &answers);
    assert_int_equal(answers.count, 1);
    return *(struct mw_e_object_info *)answers.items;
}

static size_t listed(struct fixture *f) {
    struct mc_str next, none = {"", 0};
    struct mc_vec keys;
    assert_ok(mc_master_list(f->m, none, none, none, 100, &f->arena, &keys, &next));
    return keys.count;
}

static bool count_key(void *ctx, struct mc_str tenant, struct mc_str key) {
    (*(size_t *)ctx)++;
    return true;
}

/* ---- lives ---- */

static void test_an_object_is_gone_at_the_end_of_its_life_for_whoever_looks(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    for (unsigned way = 0; way < 7; way++) {
        assert_ok(put_wish(f, "k", 100, (struct wish){.ttl_ms = 5000}));
        advance_ms(f, 4999);
        assert_true(peek(f, "k"));
        assert_int_equal(listed(f), 1);
        advance_ms(f, 1);
        size_t seen = 0;
        switch (way) {
        case 0:
            assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
            break;
        case 1:
            assert_false(exists(f, "k"));
            break;
        case 2:
            assert_int_equal(listed(f), 0);
            break;
        case 3:
            assert_int_equal(remove_key(f, "k", true), MC_OBJECT_NOT_FOUND);
            break;
        case 4:
            mc_master_each_key(f->m, NULL, count_key, &seen);
            assert_int_equal(seen, 0);
            break;
        case 5:
            assert_int_equal(inspect(f, "k").error, MC_OBJECT_NOT_FOUND);
            break;
        default:
            assert_false(peek(f, "k"));
        }
        tick_for_ms(f, 200); /* and the janitor comes by */
        assert_int_equal(key_count(f), 0);
        assert_int_equal(used_bytes(f), 0);
    }
    assert_int_equal(metric(f, "master_expired_objects_total"), 7);
}

static void test_a_life_begins_when_the_object_can_be_read(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(begin(f, "k", 100, (struct wish){.ttl_ms = 1000}));
    advance_ms(f, 2000);
    assert_ok(put_end(f, "k"));
    assert_int_equal(inspect(f, "k").value.life_left_ms, 1000);
    advance_ms(f, 400);
    assert_true(inspect(f, "k").value.has_life);
    assert_int_equal(inspect(f, "k").value.life_left_ms, 600);
    advance_ms(f, 600);
    assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
    assert_ok(put(f, "k", 100)); /* the key is free */
    assert_false(inspect(f, "k").value.has_life);
    advance_ms(f, 1000000);
    assert_true(peek(f, "k"));
}

static void test_leases_end_with_it_and_pins_do_not_prolong_it(void **state) {
    struct fixture *f = *state;
    struct mw_replica_list list;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(put_wish(f, "k", 100, (struct wish){.ttl_ms = 15000, .config = pinned()}));
    assert_ok(put_wish(f, "g", 100, (struct wish){.ttl_ms = 15000, .config = in_group(f, "g")}));
    assert_ok(put_with(f, "stays", 100, in_group(f, "g")));
    assert_ok(get_list(f, "default", "k", &list));
    assert_int_equal(list.lease_ttl_ms, 10000);
    advance_ms(f, 9000);
    assert_ok(get_list(f, "default", "k", &list));
    assert_int_equal(list.lease_ttl_ms, 6000);
    assert_ok(get_list(f, "default", "stays", &list));
    assert_int_equal(list.lease_ttl_ms, 10000);
    assert_ok(get_list(f, "default", "g", &list));
    assert_int_equal(list.lease_ttl_ms, 6000);
    tick_for_ms(f, 5990);
    assert_int_equal(key_count(f), 3);
    tick_for_ms(f, 200);
    assert_int_equal(key_count(f), 1);
    assert_int_equal(used_bytes(f), 100); /* at once: nobody can be reading there */
}

static void test_an_upsert_begins_anew(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(put_wish(f, "k", 100, (struct wish){.ttl_ms = 1000}));
    advance_ms(f, 900);
    assert_ok(put_wish(f, "k", 100, (struct wish){.ttl_ms = 1000, .upsert = true})); /* in place */
    advance_ms(f, 900);
    assert_ok(put_wish(f, "k", 200, (struct wish){.ttl_ms = 1000, .upsert = true}));
    advance_ms(f, 900);
    assert_true(peek(f, "k"));
    assert_ok(put_wish(f, "k", 200, (struct wish){.upsert = true}));
    tick_for_ms(f, 5000);
    assert_true(peek(f, "k"));
    assert_int_equal(used_bytes(f), 200);
}

static void test_a_life_without_end_in_practice_does_not_overflow(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(put_wish(f, "k", 100, (struct wish){.ttl_ms = UINT64_MAX}));
    tick_for_ms(f, 5000);
    assert_true(peek(f, "k"));
}

/* Soft pins and lives share a heap. */
static void test_many_deadlines_come_in_their_order(void **state) {
    struct fixture *f = *state;
    char key[16];
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    for (unsigned i = 0; i < 4000; i++) {
        struct wish wish = {.ttl_ms = 10 * (i * 7919 % 4000 + 1)};
        if (i % 3 == 0) {
            wish.config.soft_pin_action = MC_SOFT_PIN_ENABLE;
            wish.config.soft_pin_ttl_ms = (struct mw_opt_u64){true, 20000};
        }
        snprintf(key, sizeof(key), "k%u", i);
        assert_ok(put_wish(f, key, 16, wish));
    }
    for (unsigned t = 0; t < 20; t++) {
        tick_for_ms(f, 2000);
        fixture_check(f);
        uint64_t due = 4000 - 200 * (t + 1);
        assert_true(key_count(f) >= due && key_count(f) <= due + 20); /* the janitor goes about */
        assert_int_equal(listed(f) == 0, due == 0);
    }
}

/* ---- conditions ---- */

static void test_a_put_of_an_absent_key(void **state) {
    struct fixture *f = *state;
    struct wish absent = {.condition = MW_PUT_IF_ABSENT}, over = absent;
    over.upsert = true;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(put_wish(f, "k", 100, absent));
    assert_int_equal(put_wish(f, "k", 100, absent), MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(put_wish(f, "k", 200, over), MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(inspect(f, "k").value.size, 100);
    assert_ok(remove_key(f, "k", false));
    assert_ok(put_wish(f, "k", 200, over));
    assert_int_equal(inspect(f, "k").value.size, 200);
}

static void test_a_put_over_a_version(void **state) {
    struct fixture *f = *state;
    struct wish wish = {.condition = MW_PUT_IF_VERSION};
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_wish(f, "k", 100, wish), MC_OBJECT_NOT_FOUND);
    assert_int_equal(key_count(f), 0);
    assert_ok(put(f, "k", 100));
    uint64_t first = inspect(f, "k").value.version;
    wish.expected = first + 1;
    assert_int_equal(put_wish(f, "k", 100, wish), MC_INVALID_VERSION);
    wish.expected = first;
    assert_ok(put_wish(f, "k", 100, wish)); /* in place */
    uint64_t second = inspect(f, "k").value.version;
    assert_int_not_equal(second, first);
    assert_int_equal(put_wish(f, "k", 300, wish), MC_INVALID_VERSION);
    wish.expected = second;
    assert_ok(begin(f, "k", 300, wish));
    assert_int_equal(inspect(f, "k").error, MC_REPLICA_IS_NOT_READY);
    assert_int_equal(begin(f, "k", 400, wish), MC_REPLICA_IS_NOT_READY);
    assert_ok(put_end(f, "k"));
    assert_int_equal(inspect(f, "k").value.size, 300);
    assert_int_not_equal(inspect(f, "k").value.version, second);
    assert_ok(remove_key(f, "k", false));
    assert_ok(put(f, "k", 300));
    assert_int_not_equal(inspect(f, "k").value.version, second);
    assert_int_not_equal(inspect(f, "k").value.version, first);
}

static void test_a_put_over_a_checksum(void **state) {
    struct fixture *f = *state;
    struct wish wish = {.condition = MW_PUT_IF_CHECKSUM, .expected = 77};
    struct mw_a_put_end end = {
        client_a, {MC_STR("k"), {true, 77}}, MC_REPLICA_ALL, MC_STR("default")};
    struct mw_e_void r;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "plain", 100));
    assert_int_equal(put_wish(f, "plain", 100, wish), MC_INVALID_VERSION); /* it has none */
    assert_ok(put_start(f, "k", 100));
    call(f, MC_RPC_PutEnd, &end, &r);
    assert_ok(r.error);
    assert_int_equal(inspect(f, "k").value.checksum.value, 77);
    wish.expected = 78;
    assert_int_equal(put_wish(f, "k", 100, wish), MC_INVALID_VERSION);
    assert_int_equal(inspect(f, "k").value.checksum.value, 77);
    wish.expected = 77;
    assert_ok(put_wish(f, "k", 100, wish));
    assert_int_equal(put_wish(f, "k", 100, wish), MC_INVALID_VERSION); /* the new one has none */
}

static void test_requests_that_make_no_sense(void **state) {
    struct fixture *f = *state;
    uint64_t lengths[2] = {1, 1}, expected[2] = {1, 1};
    struct mc_str keys[2] = {MC_STR("a"), MC_STR("b")};
    struct mw_a_start_puts args = {.client = client_a,
                                   .keys = {keys, 2},
                                   .lengths = {lengths, 2},
                                   .config = replicas(1),
                                   .tenant = MC_STR("default"),
                                   .condition = MW_PUT_IF_VERSION,
                                   .expected = {expected, 1}};
    struct mc_vec answers;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    for (unsigned way = 0; way < 4; way++) {
        args.condition = way == 1 ? 4 : way == 2 ? MW_PUT_ALWAYS : MW_PUT_IF_VERSION;
        args.expected.count = way == 1 ? 2 : 1;
        args.lengths.count = way == 3 ? 1 : 2;
        call(f, MC_RPC_StartPuts, &args, &answers);
        assert_int_equal(answers.count, 2);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(((struct mw_e_vec *)answers.items)[i].error, MC_INVALID_PARAMS);
        }
    }
    assert_int_equal(key_count(f), 0);
}

static int setup(void **state) {
    fixture_setup(state);
    struct fixture *f = *state;
    f->config.client_ttl_ms = UINT32_MAX; /* nobody pings here */
    fixture_restart(f);
    return 0;
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_an_object_is_gone_at_the_end_of_its_life_for_whoever_looks),
        TEST(test_a_life_begins_when_the_object_can_be_read),
        TEST(test_leases_end_with_it_and_pins_do_not_prolong_it),
        TEST(test_an_upsert_begins_anew),
        TEST(test_a_life_without_end_in_practice_does_not_overflow),
        TEST(test_many_deadlines_come_in_their_order),
        TEST(test_a_put_of_an_absent_key),
        TEST(test_a_put_over_a_version),
        TEST(test_a_put_over_a_checksum),
        TEST(test_requests_that_make_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
