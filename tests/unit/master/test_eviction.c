/* Eviction takes the oldest that nobody may be reading, as many as it should, and never what is
 * protected. */
#include "support/master_fixture.h"

#define OBJECTS 100

static const char *name(struct fixture *f, int i) {
    return mc_arena_printf(&f->arena, "k%03d", i).ptr;
}

/* A segment of exactly 100 objects of 1000 bytes, and so many of them put, a second apart. */
static void fill(struct fixture *f, int count, struct mw_replicate_config config) {
    for (int i = 0; i < count; i++) {
        assert_int_equal(put_with(f, name(f, i), 1000, config), MC_OK);
        advance_ms(f, 1000);
        ping(f, client_a);
    }
}

static void test_nothing_is_evicted_below_the_watermark(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    fill(f, 90, replicas(1));
    tick(f);
    assert_int_equal(key_count(f), 90);
    assert_int_equal(metric(f, "master_attempted_evictions_total"), 0);
}

static void test_the_exact_oldest_go(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    fill(f, 95, replicas(1));
    tick(f); /* .95 used: over .90 by .05, and .05 more: ten of a hundred, of 95 objects */
    assert_int_equal(key_count(f), 85);
    for (int i = 0; i < 95; i++) {
        assert_int_equal(peek(f, name(f, i)), i >= 10);
    }
    assert_int_equal(metric(f, "master_evicted_key_count"), 10);
    assert_int_equal(metric(f, "master_evicted_size_bytes"), 10000);
    assert_int_equal(metric(f, "master_successful_evictions_total"), 1);
    tick(f);
    assert_int_equal(key_count(f), 85);
}

static void test_what_was_read_goes_last(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    fill(f, 95, replicas(1));
    for (int i = 0; i < 30; i++) {
        assert_int_equal(get(f, name(f, i)), MC_OK);
    }
    advance_ms(f, 10000); /* leases over; but the order stays */
    ping(f, client_a);
    tick(f);
    for (int i = 0; i < 95; i++) {
        assert_int_equal(peek(f, name(f, i)), i < 30 || i >= 40);
    }
}

static void test_leased_objects_stay_even_when_the_memory_is_full(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    fill(f, OBJECTS, replicas(1));
    for (int i = 0; i < OBJECTS; i++) {
        assert_true(exists(f, name(f, i)));
    }
    assert_int_equal(put_start(f, "new", 1000), MC_NO_AVAILABLE_HANDLE);
    tick_for_ms(f, 1000);
    ping(f, client_a);
    assert_int_equal(key_count(f), OBJECTS);
    assert_true(metric(f, "master_attempted_evictions_total") > 0);
    assert_int_equal(metric(f, "master_successful_evictions_total"), 0);
    tick_for_ms(f, 9500);
    assert_true(key_count(f) < OBJECTS);
    assert_int_equal(put(f, "new", 1000), MC_OK);
}

static void test_a_put_without_room_asks_for_eviction(void **state) {
    struct fixture *f = *state;
    f->config.eviction_high_watermark_ratio = 1.0; /* no proactive eviction */
    fixture_restart(f);
    mount(f, "node:1", OBJECTS * 1000);
    fill(f, OBJECTS, replicas(1));
    tick(f);
    assert_int_equal(key_count(f), OBJECTS);
    assert_int_equal(put_start(f, "new", 1000), MC_NO_AVAILABLE_HANDLE);
    tick(f);
    assert_int_equal(key_count(f), 95);
    assert_int_equal(put(f, "new", 1000), MC_OK);
}

static void test_a_put_larger_than_any_segment_evicts_nothing(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    fill(f, 50, replicas(1));
    assert_int_equal(put_start(f, "huge", OBJECTS * 1000 + 1), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(put_with(f, "second replica nowhere", 1000, replicas(2)), MC_OK);
    tick(f);
    assert_int_equal(key_count(f), 51);
    assert_int_equal(metric(f, "master_put_start_partial_allocations_total"), 1);
}

static void test_an_eviction_larger_than_a_tick_goes_on_in_the_next(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", 50000 * 10);
    for (int i = 0; i < 50000; i++) {
        assert_int_equal(put(f, name(f, i), 10), MC_OK);
    }
    f->config.eviction_ratio = 0;
    tick(f); /* wanted: 15 % of 50000 */
    uint64_t after_one = key_count(f);
    assert_true(after_one >= 50000 - 8192);
    for (int i = 0; i < 3; i++) {
        tick(f);
    }
    assert_int_equal(key_count(f), 42500);
}

static struct mw_replicate_config pinned(bool hard) {
    struct mw_replicate_config c = replicas(1);
    c.with_hard_pin = hard;
    c.soft_pin_action = hard ? MC_SOFT_PIN_PRESERVE : MC_SOFT_PIN_ENABLE;
    return c;
}

static void put_kinds(struct fixture *f) { /* 0..29 hard, 30..59 soft, 60..94 plain */
    for (int i = 0; i < 95; i++) {
        struct mw_replicate_config c = i < 30 ? pinned(true) : i < 60 ? pinned(false) : replicas(1);
        assert_int_equal(put_with(f, name(f, i), 1000, c), MC_OK);
        advance_ms(f, 10);
    }
    ping(f, client_a);
}

static void test_pinned_objects_go_last_or_never(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    put_kinds(f);
    for (int round = 0; round < 40;
         round++) { /* a put that never finds room asks again and again */
        assert_int_equal(put_start(f, "huge", 1000 * OBJECTS), MC_NO_AVAILABLE_HANDLE);
        tick(f);
        int soft = 0, plain = 0;
        for (int i = 0; i < 95; i++) {
            bool there = peek(f, name(f, i));
            assert_true(i >= 30 || there);
            soft += there && i >= 30 && i < 60;
            plain += there && i >= 60;
        }
        assert_true(soft == 30 || plain == 0);
    }
    assert_int_equal(key_count(f), 30); /* the hard-pinned */
    assert_int_equal(remove_key(f, name(f, 0), false), MC_OK);
}

static void test_soft_pinned_objects_stay_when_told_so(void **state) {
    struct fixture *f = *state;
    f->config.allow_evict_soft_pinned_objects = false;
    fixture_restart(f);
    mount(f, "node:1", OBJECTS * 1000);
    put_kinds(f);
    for (int round = 0; round < 40; round++) {
        assert_int_equal(put_start(f, "huge", 1000 * OBJECTS), MC_NO_AVAILABLE_HANDLE);
        tick(f);
    }
    assert_int_equal(key_count(f), 60);
}

static void test_an_expired_soft_pin_protects_no_more(void **state) {
    struct fixture *f = *state;
    struct mw_replicate_config c = pinned(false);
    c.soft_pin_ttl_ms = (struct mw_opt_u64){true, 1000};
    mount(f, "node:1", OBJECTS * 1000);
    for (int i = 0; i < 95; i++) {
        assert_int_equal(put_with(f, name(f, i), 1000, i < 50 ? c : replicas(1)), MC_OK);
    }
    tick(f);
    for (int i = 0; i < 50; i++) {
        assert_true(peek(f, name(f, i)));
    }
    tick_for_ms(f, 1200);
    for (int round = 0; round < 4; round++) {
        assert_int_equal(put_start(f, "huge", 1000 * OBJECTS), MC_NO_AVAILABLE_HANDLE);
        tick(f);
    }
    int left = 0;
    for (int i = 0; i < 50; i++) {
        left += peek(f, name(f, i));
    }
    assert_true(left < 50);
}

static struct mw_replicate_config in_group(struct fixture *f, const char *group) {
    struct mw_replicate_config c = replicas(1);
    c.group_ids = (struct mw_opt_strs){true, strs(f, 1, &group)};
    return c;
}

static void test_a_group_goes_as_a_whole(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    for (int i = 0; i < 95; i++) { /* member 0 is the oldest, its group is spread all over */
        bool member = i % 4 == 0;
        assert_int_equal(put_with(f, name(f, i), 1000, member ? in_group(f, "g") : replicas(1)),
                         MC_OK);
        advance_ms(f, 10);
    }
    tick(f);
    for (int i = 0; i < 95; i++) {
        assert_int_equal(peek(f, name(f, i)), i % 4 != 0);
    }
}

static void test_a_leased_member_keeps_the_whole_group(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    for (int i = 0; i < 95; i++) {
        assert_int_equal(put_with(f, name(f, i), 1000, i < 40 ? in_group(f, "g") : replicas(1)),
                         MC_OK);
        advance_ms(f, 10);
    }
    assert_int_equal(get(f, name(f, 20)), MC_OK);
    tick(f);
    for (int i = 0; i < 95; i++) {
        assert_int_equal(peek(f, name(f, i)), i < 40 || i >= 50);
    }
}

static void test_members_that_may_not_go_stay_and_their_peers_go(void **state) {
    struct fixture *f = *state;
    struct mw_replicate_config hard = in_group(f, "g");
    hard.with_hard_pin = true;
    mount(f, "node:1", OBJECTS * 1000);
    assert_int_equal(put_with(f, "plain", 1000, in_group(f, "g")), MC_OK);
    assert_int_equal(put_with(f, "hard", 1000, hard), MC_OK);
    assert_int_equal(put_start_with(f, client_a, "default", "half", 1000, in_group(f, "g"), NULL),
                     MC_OK);
    advance_ms(f, 10);
    fill(f, 92, replicas(1));
    tick(f);
    assert_false(peek(f, "plain"));
    assert_true(peek(f, "hard"));
    assert_int_equal(put_end(f, "half"), MC_OK);
}

/* ---- other policies ---- */

static int setup_with(void **state, const char *policy) {
    fixture_setup(state);
    struct fixture *f = *state;
    f->config.eviction_policy = policy;
    fixture_restart(f);
    return 0;
}
static int setup_s3fifo(void **state) {
    return setup_with(state, "s3fifo");
}
static int setup_chain(void **state) {
    return setup_with(state, "chain");
}

static void test_a_chain_goes_from_its_end(void **state) {
    struct fixture *f = *state;
    const char *keys[95];
    uint64_t lengths[95];
    struct mw_object_meta metas[95] = {0};
    mount(f, "node:1", OBJECTS * 1000);
    for (int i = 0; i < 95; i++) {
        keys[i] = name(f, i);
        lengths[i] = 1000;
        metas[i].key = str(keys[i]);
    }
    struct mw_a_batch_put_start begin = {.client = client_a,
                                         .keys = strs(f, 95, keys),
                                         .lengths = {lengths, 95},
                                         .config = replicas(1)};
    struct mw_a_batch_put_end end = {
        .client = client_a, .metas = {metas, 95}, .type = MC_REPLICA_ALL};
    struct mc_vec answers;
    call(f, MC_RPC_BatchPutStart, &begin, &answers);
    call(f, MC_RPC_BatchPutEnd, &end, &answers);
    assert_int_equal(key_count(f), 95);
    tick(f);
    for (int i = 0; i < 95; i++) {
        assert_int_equal(peek(f, keys[i]), i < 85);
    }
}

/* What the policy has kept for a lease, or forgotten by a removal, is no trouble. */
static void test_a_policy_survives_leases_and_removals(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 99; i++) {
            (void)put(f, name(f, 100 * (round % 3) + i), 1000);
        }
        for (int i = 0; i < 99; i += 3) {
            (void)get(f, name(f, 100 * (round % 3) + i));
            (void)remove_key(f, name(f, 100 * (round % 3) + i + 1), true);
        }
        tick_for_ms(f, round % 2 ? 8000 : 2500);
        ping(f, client_a);
        assert_true(key_count(f) <= OBJECTS);
    }
    assert_true(metric(f, "master_evicted_key_count") > 0);
    assert_int_equal(remove_all(f, "default", true), key_count(f));
}

static void test_the_curve_says_what_more_memory_would_give(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", OBJECTS * 1000);
    for (int i = 0; i < 3000; i++) { /* a loop over 150 keys; the memory takes 90 */
        if (get(f, name(f, i % 150)) != MC_OK && put(f, name(f, i % 150), 1000) != MC_OK) {
            tick_for_ms(f, 5100);
            ping(f, client_a);
            tick_for_ms(f, 5100);
            ping(f, client_a);
            (void)put(f, name(f, i % 150), 1000);
        }
    }
    assert_true(metric(f, "master_mrc_same_memory_hit_ppm") < 100000);
    assert_true(metric(f, "master_mrc_double_memory_hit_ppm") > 900000);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
#define WITH(name, setup)                                                                          \
    { #name " " #setup, name, setup, fixture_teardown, NULL }
#define PROTECTED(setup)                                                                           \
    WITH(test_nothing_is_evicted_below_the_watermark, setup),                                      \
        WITH(test_leased_objects_stay_even_when_the_memory_is_full, setup),                        \
        WITH(test_a_put_without_room_asks_for_eviction, setup),                                    \
        WITH(test_an_eviction_larger_than_a_tick_goes_on_in_the_next, setup),                      \
        WITH(test_pinned_objects_go_last_or_never, setup),                                         \
        WITH(test_a_leased_member_keeps_the_whole_group, setup),                                   \
        WITH(test_members_that_may_not_go_stay_and_their_peers_go, setup),                         \
        WITH(test_a_policy_survives_leases_and_removals, setup)
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_is_evicted_below_the_watermark),
        TEST(test_the_exact_oldest_go),
        TEST(test_what_was_read_goes_last),
        TEST(test_leased_objects_stay_even_when_the_memory_is_full),
        TEST(test_a_put_without_room_asks_for_eviction),
        TEST(test_a_put_larger_than_any_segment_evicts_nothing),
        TEST(test_an_eviction_larger_than_a_tick_goes_on_in_the_next),
        TEST(test_pinned_objects_go_last_or_never),
        TEST(test_soft_pinned_objects_stay_when_told_so),
        TEST(test_an_expired_soft_pin_protects_no_more),
        TEST(test_a_group_goes_as_a_whole),
        TEST(test_a_leased_member_keeps_the_whole_group),
        TEST(test_members_that_may_not_go_stay_and_their_peers_go),
        TEST(test_the_curve_says_what_more_memory_would_give),
        PROTECTED(setup_s3fifo),
        PROTECTED(setup_chain),
        WITH(test_a_chain_goes_from_its_end, setup_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
