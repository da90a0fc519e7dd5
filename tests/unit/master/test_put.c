/* A put is visible from PutEnd on and never before, belongs to its client, and leaves nothing
 * behind when it fails. */
#include "support/master_fixture.h"

static void test_a_put_is_readable_after_its_end_and_not_before(void **state) {
    struct fixture *f = *state;
    struct mc_vec started;
    struct mw_replica_list list;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start_with(f, client_a, "default", "k", 100, replicas(1), &started),
                     MC_OK);
    assert_int_equal(started.count, 1);
    const struct mw_replica *r = started.items;
    assert_int_equal(r->tag, MW_TAG_MEMORY);
    assert_int_equal(r->status, MC_REPLICA_PROCESSING);
    assert_int_equal(r->memory.size, 100);
    assert_true(mc_str_eq(r->memory.endpoint, MC_STR("node:1")));
    assert_true(mc_str_eq(r->memory.protocol, MC_STR("tcp")));
    assert_int_equal(get(f, "k"), MC_REPLICA_IS_NOT_READY);
    assert_false(exists(f, "k"));
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_true(exists(f, "k"));
    assert_int_equal(get_list(f, "default", "k", &list), MC_OK);
    assert_int_equal(list.replicas.count, 1);
    const struct mw_replica *read = list.replicas.items;
    assert_int_equal(read->id, r->id);
    assert_int_equal(read->memory.address, r->memory.address);
    assert_int_equal(read->status, MC_REPLICA_COMPLETE);
    assert_int_equal(list.lease_ttl_ms, 10000);
    assert_false(list.checksum.has);
    assert_int_equal(used_bytes(f), 100);
    assert_int_equal(metric(f, "master_key_count"), 1);
    assert_int_equal(metric(f, "master_put_start_requests_total"), 1);
    assert_int_equal(metric(f, "mem_cache_hit_nums_"), 1);
    assert_int_equal(metric(f, "mem_cache_hit_bytes_total"), 100);
}

static void test_bad_arguments_are_refused_and_allocate_nothing(void **state) {
    struct fixture *f = *state;
    struct mw_replicate_config c = replicas(1);
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start(f, "", 10), MC_INVALID_PARAMS);
    assert_int_equal(put_start(f, "k", 0), MC_INVALID_PARAMS);
    assert_int_equal(put_with(f, "k", 10, replicas(0)), MC_INVALID_PARAMS);
    c.nof_replica_num = 1;
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    c = replicas(1);
    c.dfs_replica_num = 1;
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    c = replicas(1);
    c.group_ids = (struct mw_opt_strs){true, strs(f, 2, (const char *[]){"a", "b"})};
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    c.group_ids = (struct mw_opt_strs){true, {NULL, 0}};
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    c = replicas(1);
    c.soft_pin_action = 3;
    assert_int_equal(put_with(f, "k", 10, c), MC_INVALID_PARAMS);
    assert_int_equal(put_start(f, "k", UINT64_MAX), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(put_start(f, "k", FIXTURE_SEGMENT_BYTES + 1), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(used_bytes(f), 0);
    assert_int_equal(key_count(f), 0);
    assert_int_equal(metric(f, "master_put_start_failures_total"), 10);
    assert_int_equal(metric(f, "master_put_start_alloc_failures_total"), 2);
}

static void test_keys_of_any_bytes_and_up_to_64_kib(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    static const size_t lengths[] = {1, 7, 300, 1000, 1009, 4096, 65536};
    char *bytes = mc_alloc(65537);
    mc_test_fill(bytes, 65537, 3);
    bytes[0] = '\0';
    for (size_t i = 0; i < MC_ARRAY_LEN(lengths); i++) {
        struct mw_a_put_start start = {
            client_a, {bytes, lengths[i]}, 10, replicas(1), MC_STR("default")};
        struct mw_a_put_end end = {
            client_a, {.key = {bytes, lengths[i]}}, MC_REPLICA_ALL, MC_STR("default")};
        struct mw_a_key key = {{bytes, lengths[i]}, MC_STR("default")};
        struct mw_e_vec started;
        struct mw_e_void ended;
        struct mw_e_list found;
        call(f, MC_RPC_PutStart, &start, &started);
        assert_int_equal(started.error, MC_OK);
        call(f, MC_RPC_PutEnd, &end, &ended);
        assert_int_equal(ended.error, MC_OK);
        call(f, MC_RPC_GetReplicaList, &key, &found);
        assert_int_equal(found.error, MC_OK);
    }
    assert_int_equal(key_count(f), MC_ARRAY_LEN(lengths));
    struct mw_a_put_start too_long = {client_a, {bytes, 65537}, 10, replicas(1), MC_STR("default")};
    struct mw_e_vec r;
    call(f, MC_RPC_PutStart, &too_long, &r);
    assert_int_equal(r.error, MC_INVALID_PARAMS);
    free(bytes);
}

static void test_a_key_that_exists_or_is_being_written_is_refused(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start(f, "k", 100), MC_OK);
    assert_int_equal(put_start_with(f, client_b, "default", "k", 5, replicas(1), NULL),
                     MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(put_start(f, "k", 100), MC_OBJECT_ALREADY_EXISTS);
    advance_ms(f, 3600 * 1000);
    assert_int_equal(put_start(f, "k", 100), MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(used_bytes(f), 100);
}

static void test_only_its_own_client_ends_or_revokes_a_put(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_end(f, "k"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(put_revoke(f, "k"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(put_start(f, "k", 100), MC_OK);
    assert_int_equal(put_end_as(f, client_b, "default", "k", MC_REPLICA_ALL), MC_ILLEGAL_CLIENT);
    assert_int_equal(put_revoke_as(f, client_b, "default", "k", MC_REPLICA_ALL), MC_ILLEGAL_CLIENT);
    assert_int_equal(put_end_as(f, client_a, "default", "k", MC_REPLICA_DISK), MC_INVALID_WRITE);
    assert_int_equal(put_end_as(f, client_a, "default", "k", MC_REPLICA_MEMORY), MC_OK);
    assert_int_equal(put_end(f, "k"), MC_OK); /* ending twice is ending once */
    assert_int_equal(put_revoke(f, "k"), MC_INVALID_WRITE);
    assert_true(peek(f, "k"));
}

static void test_a_revoked_put_leaves_nothing(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start(f, "k", 100), MC_OK);
    assert_int_equal(put_revoke(f, "k"), MC_OK);
    assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(used_bytes(f), 0);
    assert_int_equal(put(f, "k", 50), MC_OK);
}

static void keep_alive(struct fixture *f, uint64_t ms) {
    for (uint64_t t = 0; t < ms; t += 5000) {
        tick_for_ms(f, ms - t < 5000 ? ms - t : 5000);
        assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    }
}

static void test_extents_of_an_abandoned_put_come_back_after_the_release_timeout(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start(f, "k", 100), MC_OK);
    keep_alive(f, 29990);
    assert_int_equal(put_start_with(f, client_b, "default", "k", 7, replicas(1), NULL),
                     MC_OBJECT_ALREADY_EXISTS);
    keep_alive(f, 10);
    assert_int_equal(put_start_with(f, client_b, "default", "k", 7, replicas(1), NULL), MC_OK);
    assert_int_equal(used_bytes(f), 107); /* the first writer may still be writing */
    assert_int_equal(metric(f, "master_put_start_discard_cnt"), 1);
    assert_int_equal(metric(f, "master_put_start_discarded_staging_size"), 100);
    /* The old writer cannot end the new put. */
    assert_int_equal(put_end(f, "k"), MC_ILLEGAL_CLIENT);
    assert_int_equal(put_end_as(f, client_b, "default", "k", MC_REPLICA_ALL), MC_OK);
    fixture_check(f);
    keep_alive(f, 569990);
    assert_int_equal(used_bytes(f), 107);
    keep_alive(f, 200);
    assert_int_equal(used_bytes(f), 7);
    assert_int_equal(metric(f, "master_put_start_release_cnt"), 1);
    assert_int_equal(metric(f, "master_put_start_discarded_staging_size"), 0);
}

static void test_a_put_that_nobody_ends_disappears(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start(f, "k", 100), MC_OK);
    assert_int_equal(remove_key(f, "k", true), MC_REPLICA_IS_NOT_READY);
    keep_alive(f, 600200);
    assert_int_equal(key_count(f), 0);
    assert_int_equal(used_bytes(f), 0);
    assert_int_equal(put_end(f, "k"), MC_OBJECT_NOT_FOUND);
    /* after the discard timeout it can be removed by hand */
    assert_int_equal(put_start(f, "k", 100), MC_OK);
    keep_alive(f, 30000);
    assert_int_equal(remove_key(f, "k", false), MC_OK);
    assert_int_equal(key_count(f), 0);
    assert_int_equal(used_bytes(f), 100);
}

static void test_the_checksum_travels_with_the_object(void **state) {
    struct fixture *f = *state;
    struct mw_replica_list list;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start(f, "k", 100), MC_OK);
    struct mw_a_put_end end = {
        client_a, {MC_STR("k"), {true, 0x1122334455667788}}, MC_REPLICA_ALL, MC_STR("default")};
    struct mw_e_void r;
    call(f, MC_RPC_PutEnd, &end, &r);
    assert_int_equal(r.error, MC_OK);
    assert_int_equal(get_list(f, "default", "k", &list), MC_OK);
    assert_true(list.checksum.has);
    assert_int_equal(list.checksum.value, 0x1122334455667788);
    /* an upsert without one clears it */
    advance_ms(f, 11000);
    assert_int_equal(upsert_start(f, "k", 100, replicas(1), NULL), MC_OK);
    assert_int_equal(put_end(f, "k"), MC_OK);
    assert_int_equal(get_list(f, "default", "k", &list), MC_OK);
    assert_false(list.checksum.has);
}

static void test_batches_answer_each_key_in_order(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "b", 10), MC_OK);
    struct mc_vec keys = strs(f, 4, (const char *[]){"a", "b", "", "a"});
    uint64_t lengths[] = {100, 100, 100, 100};
    struct mw_a_batch_put_start start = {
        client_a, keys, {lengths, 4}, replicas(1), MC_STR("default")};
    struct mc_vec answers;
    call(f, MC_RPC_BatchPutStart, &start, &answers);
    assert_int_equal(answers.count, 4);
    const struct mw_e_vec *r = answers.items;
    assert_int_equal(r[0].error, MC_OK);
    assert_int_equal(r[1].error, MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(r[2].error, MC_INVALID_PARAMS);
    assert_int_equal(r[3].error, MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(metric(f, "master_batch_put_start_items_total"), 4);
    assert_int_equal(metric(f, "master_batch_put_start_failed_items_total"), 3);
    assert_int_equal(metric(f, "master_batch_put_start_partial_successes_total"), 1);
    struct mw_object_meta metas[] = {{.key = MC_STR("a")}, {.key = MC_STR("c")}};
    struct mw_a_batch_put_end end = {client_a, {metas, 2}, MC_REPLICA_ALL, MC_STR("default")};
    call(f, MC_RPC_BatchPutEnd, &end, &answers);
    assert_int_equal(((struct mw_e_void *)answers.items)[0].error, MC_OK);
    assert_int_equal(((struct mw_e_void *)answers.items)[1].error, MC_OBJECT_NOT_FOUND);
    struct mw_a_keys lookup = {keys, MC_STR("default")};
    call(f, MC_RPC_BatchExistKey, &lookup, &answers);
    assert_true(((struct mw_e_bool *)answers.items)[0].value);
    assert_true(((struct mw_e_bool *)answers.items)[1].value);
    assert_false(((struct mw_e_bool *)answers.items)[2].value);
    call(f, MC_RPC_BatchGetReplicaList, &lookup, &answers);
    assert_int_equal(((struct mw_e_list *)answers.items)[0].error, MC_OK);
    assert_int_equal(((struct mw_e_list *)answers.items)[2].error, MC_OBJECT_NOT_FOUND);
    struct mw_a_batch_put_revoke revoke = {client_a, keys, MC_REPLICA_ALL, MC_STR("default")};
    call(f, MC_RPC_BatchPutRevoke, &revoke, &answers);
    assert_int_equal(((struct mw_e_void *)answers.items)[0].error, MC_INVALID_WRITE);
    /* lengths that do not fit the keys fail every key */
    start.lengths.count = 3;
    call(f, MC_RPC_BatchPutStart, &start, &answers);
    assert_int_equal(answers.count, 4);
    assert_int_equal(((struct mw_e_vec *)answers.items)[3].error, MC_INVALID_PARAMS);
}

static void test_tenants_do_not_see_each_other(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put_start_with(f, client_a, "t1", "k", 10, replicas(1), NULL), MC_OK);
    assert_int_equal(put_end_as(f, client_a, "t1", "k", MC_REPLICA_ALL), MC_OK);
    assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(get_list(f, "t2", "k", NULL), MC_OBJECT_NOT_FOUND);
    assert_int_equal(put(f, "k", 20), MC_OK);
    assert_int_equal(get_list(f, "", "k", NULL), MC_OK); /* no tenant is "default" */
    assert_int_equal(get_list(f, "t1", "k", NULL), MC_OK);
    assert_int_equal(get_list(f, "_t", "k", NULL), MC_INVALID_PARAMS);
    assert_int_equal(get_list(f, "a\x7f", "k", NULL), MC_INVALID_PARAMS);
    assert_int_equal(put_start_with(f, client_a, "a\nb", "k", 10, replicas(1), NULL),
                     MC_INVALID_PARAMS);
    assert_int_equal(remove_all(f, "t2", true), 0);
    assert_int_equal(remove_all(f, "t1", true), 1);
    assert_true(peek(f, "k"));
    assert_int_equal(mc_master_remove_all(f->m, NULL, true), 1);
    assert_int_equal(key_count(f), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_put_is_readable_after_its_end_and_not_before),
        TEST(test_bad_arguments_are_refused_and_allocate_nothing),
        TEST(test_keys_of_any_bytes_and_up_to_64_kib),
        TEST(test_a_key_that_exists_or_is_being_written_is_refused),
        TEST(test_only_its_own_client_ends_or_revokes_a_put),
        TEST(test_a_revoked_put_leaves_nothing),
        TEST(test_extents_of_an_abandoned_put_come_back_after_the_release_timeout),
        TEST(test_a_put_that_nobody_ends_disappears),
        TEST(test_the_checksum_travels_with_the_object),
        TEST(test_batches_answer_each_key_in_order),
        TEST(test_tenants_do_not_see_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
