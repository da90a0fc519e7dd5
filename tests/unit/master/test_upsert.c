/* An upsert replaces an object without a reader ever seeing half of it. */
#include "support/master_fixture.h"

static uint64_t address_of(struct mc_vec list) {
    assert_true(list.count > 0);
    return ((struct mw_replica *)list.items)->memory.address;
}

static void test_a_missing_key_is_put(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(upsert_start(f, "", 10, replicas(1), NULL), MC_INVALID_PARAMS);
    assert_int_equal(upsert_start(f, "k", 0, replicas(1), NULL), MC_INVALID_PARAMS);
    assert_int_equal(upsert_start(f, "k", 10, replicas(1), NULL), MC_OK);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(get(f, "k"), MC_OK);
}

static void test_equal_size_is_written_in_place_and_unreadable_meanwhile(void **state) {
    struct fixture *f = *state;
    struct mw_replica_list before, after;
    struct mc_vec started;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    mount(f, "node:2", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_with(f, "k", 100, replicas(2)), MC_OK);
    assert_int_equal(get_list(f, "default", "k", &before), MC_OK);
    advance_ms(f, 10000);
    assert_int_equal(upsert_start(f, "k", 100, replicas(2), &started), MC_OK);
    assert_int_equal(started.count, 2);
    assert_int_equal(address_of(started), address_of(before.replicas));
    assert_int_equal(get(f, "k"), MC_REPLICA_IS_NOT_READY);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(get_list(f, "default", "k", &after), MC_OK);
    assert_int_equal(address_of(after.replicas), address_of(before.replicas));
    assert_int_equal(used_bytes(f), 200);
}

static void test_a_leased_reader_keeps_its_bytes(void **state) {
    struct fixture *f = *state;
    struct mw_replica_list before;
    struct mc_vec started;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(get_list(f, "default", "k", &before), MC_OK);
    assert_int_equal(upsert_start(f, "k", 100, replicas(1), &started), MC_OK);
    assert_int_not_equal(address_of(started), address_of(before.replicas));
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(used_bytes(f), 200);
    tick_for_ms(f, 9990);
    assert_int_equal(used_bytes(f), 200);
    tick_for_ms(f, 10);
    assert_int_equal(used_bytes(f), 100);
}

static void test_another_size_gets_new_extents(void **state) {
    struct fixture *f = *state;
    struct mw_replica_list list;
    struct mw_replicate_config hard = replicas(1);
    hard.with_hard_pin = true;
    mount(f, "node:1", 1000);
    assert_int_equal(put_with(f, "k", 400, hard), MC_OK);
    assert_int_equal(upsert_start(f, "k", 300, replicas(1), NULL), MC_OK);
    assert_int_equal(used_bytes(f), 300); /* nobody was reading */
    assert_int_equal(get(f, "k"), MC_REPLICA_IS_NOT_READY);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(get_list(f, "default", "k", &list), MC_OK);
    assert_int_equal(((struct mw_replica *)list.replicas.items)->memory.size, 300);
    /* one that finds no room changes nothing */
    assert_int_equal(upsert_start(f, "k", 900, replicas(1), NULL), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(get(f, "k"), MC_OK);
    advance_ms(f, 10000);
    ping(f, client_a);
    tick(f); /* the hard pin was inherited: the eviction that this put asked for does not take it */
    assert_true(peek(f, "k"));
}

static void test_a_later_writer_preempts_an_unfinished_one(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start_with(f, client_b, "default", "k", 100, replicas(1), NULL), MC_OK);
    assert_int_equal(upsert_start(f, "k", 100, replicas(1), NULL), MC_OK);
    /* The first may still be writing: its bytes are not handed out. */
    assert_int_equal(used_bytes(f), 200);
    assert_int_equal(put_end_as(f, client_b, "default", "k", MC_REPLICA_ALL), MC_ILLEGAL_CLIENT);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(metric(f, "master_put_start_discarded_staging_size"), 100);
}

static void test_a_revoked_upsert_removes_the_key(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(upsert_start(f, "k", 100, replicas(1), NULL), MC_OK);
    assert_int_equal(put_revoke(f, "k"), MC_OK);
    assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(used_bytes(f), 0);
}

static struct mw_replicate_config in_group(struct fixture *f, const char *group) {
    struct mw_replicate_config c = replicas(1);
    c.group_ids = (struct mw_opt_strs){true, strs(f, 1, &group)};
    return c;
}

static void test_group_membership_is_for_the_objects_life(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_with(f, "k", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(put_with(f, "other", 100, in_group(f, "g")), MC_OK);
    assert_int_equal(put(f, "free", 100), MC_OK);
    assert_int_equal(upsert_start(f, "k", 100, in_group(f, "h"), NULL), MC_INVALID_PARAMS);
    assert_int_equal(upsert_start(f, "k", 100, in_group(f, ""), NULL), MC_INVALID_PARAMS);
    assert_int_equal(upsert_start(f, "free", 100, in_group(f, "g"), NULL), MC_INVALID_PARAMS);
    /* Keeps it, with new extents too. */
    assert_int_equal(upsert_start(f, "k", 50, replicas(1), NULL), MC_OK);
    /* one that was never finished was never a member for life */
    assert_int_equal(upsert_start(f, "k", 50, in_group(f, ""), NULL), MC_OK);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(get(f, "other"), MC_OK);
    assert_int_equal(remove_key(f, "k", false), MC_OK); /* not protected by the group any more */
    assert_int_equal(upsert_start(f, "other", 50, replicas(1), NULL), MC_OK);
    assert_int_equal(put_end(f, "other"), MC_OK);
    assert_int_equal(put_with(f, "third", 10, in_group(f, "g")), MC_OK);
    assert_int_equal(get(f, "other"), MC_OK);
    assert_int_equal(remove_key(f, "third", false), MC_OBJECT_HAS_LEASE);
}

static void test_batches_of_upserts_answer_in_order(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_with(f, "a", 100, in_group(f, "g")), MC_OK);
    struct mc_vec keys = strs(f, 3, (const char *[]){"a", "b", "a"});
    uint64_t lengths[] = {10, 20, 30};
    struct mw_a_batch_put_start start = {
        client_a, keys, {lengths, 3}, replicas(1), MC_STR("default")};
    start.config.group_ids = (struct mw_opt_strs){true, strs(f, 3, (const char *[]){"g", "", "h"})};
    struct mc_vec answers;
    call(f, MC_RPC_BatchUpsertStart, &start, &answers);
    const struct mw_e_vec *r = answers.items;
    assert_int_equal(r[0].error, MC_OK);
    assert_int_equal(r[1].error, MC_OK);
    assert_int_equal(r[2].error, MC_OK); /* preempts the first, which was not finished */
    struct mw_object_meta metas[] = {{.key = MC_STR("a")}, {.key = MC_STR("b")}};
    struct mw_a_batch_upsert_end end = {client_a, {metas, 2}, MC_STR("default")};
    call(f, MC_RPC_BatchUpsertEnd, &end, &answers);
    assert_int_equal(((struct mw_e_void *)answers.items)[0].error, MC_OK);
    assert_int_equal(((struct mw_e_void *)answers.items)[1].error, MC_OK);
    struct mw_a_batch_upsert_revoke revoke = {client_a, keys, MC_STR("default")};
    call(f, MC_RPC_BatchUpsertRevoke, &revoke, &answers);
    assert_int_equal(((struct mw_e_void *)answers.items)[1].error, MC_INVALID_WRITE);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_missing_key_is_put),
        TEST(test_equal_size_is_written_in_place_and_unreadable_meanwhile),
        TEST(test_a_leased_reader_keeps_its_bytes),
        TEST(test_another_size_gets_new_extents),
        TEST(test_a_later_writer_preempts_an_unfinished_one),
        TEST(test_a_revoked_upsert_removes_the_key),
        TEST(test_group_membership_is_for_the_objects_life),
        TEST(test_batches_of_upserts_answer_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
