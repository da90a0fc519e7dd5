/* What matches and may go is removed, and nothing else. */
#include "support/master_fixture.h"

static int64_t remove_by_regex(struct fixture *f, const char *tenant, const char *pattern,
                               bool force) {
    struct mw_a_remove args = {str(pattern), force, str(tenant)};
    struct mw_e_i64 r;
    call(f, MC_RPC_RemoveByRegex, &args, &r);
    return r.error ? r.error : r.value;
}

static int64_t found_by_regex(struct fixture *f, const char *tenant, const char *pattern) {
    struct mw_a_key args = {str(pattern), str(tenant)};
    struct mw_e_vec r;
    call(f, MC_RPC_GetReplicaListByRegex, &args, &r);
    for (size_t i = 0; r.error == 0 && i < r.value.count; i++) {
        assert_true(((struct mw_str_replicas *)r.value.items)[i].replicas.count > 0);
    }
    return r.error ? r.error : (int64_t)r.value.count;
}

static void put_many(struct fixture *f) {
    static const char *const keys[] = {"model_1/layer_0",
                                       "model_1/layer_10",
                                       "model_2/layer_0",
                                       "other",
                                       "line\nbreak",
                                       "a.b",
                                       "axb"};
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    for (size_t i = 0; i < MC_ARRAY_LEN(keys); i++) {
        assert_int_equal(put(f, keys[i], 10), MC_OK);
    }
    assert_int_equal(put_start(f, "model_1/unfinished", 10), MC_OK);
    assert_int_equal(put_start_with(f, client_a, "t", "model_1/layer_0", 10, replicas(1), NULL),
                     MC_OK);
    assert_int_equal(put_end_as(f, client_a, "t", "model_1/layer_0", MC_REPLICA_ALL), MC_OK);
}

static void test_a_pattern_is_searched_for_as_upstream_does(void **state) {
    struct fixture *f = *state;
    put_many(f);
    static const struct {
        const char *pattern;
        int64_t found;
    } cases[] = {
        {"^model_1/", 2},
        {"layer_0", 2},
        {"layer_0$", 2},
        {"^layer", 0},
        {"layer_[0-9]{2}", 1},
        {"a.b", 2},
        {"a\\.b", 1},
        {"line.break", 0},
        {"(?=other)", 1},
        {"\\u006fther", 1},
        {"", 7},
        {"(", MC_INVALID_PARAMS},
        {"[", MC_INVALID_PARAMS},
        {"*", MC_INVALID_PARAMS},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        if (found_by_regex(f, "default", cases[i].pattern) != cases[i].found) {
            fail_msg("pattern %s", cases[i].pattern);
        }
    }
    assert_int_equal(found_by_regex(f, "t", "model"), 1);
    assert_int_equal(found_by_regex(f, "nobody", "model"), 0);
}

static void test_removal_by_pattern_skips_what_is_leased_or_being_written(void **state) {
    struct fixture *f = *state;
    put_many(f);
    assert_int_equal(get(f, "model_1/layer_0"), MC_OK);
    assert_int_equal(remove_by_regex(f, "default", "(", true), MC_INVALID_PARAMS);
    assert_int_equal(remove_by_regex(f, "default", "^model_1", false), 1);
    assert_int_equal(remove_by_regex(f, "default", "^model_1", true), 1);
    assert_int_equal(put_end(f, "model_1/unfinished"), MC_OK);
    assert_int_equal(remove_by_regex(f, "default", "^model_1", true), 1);
    assert_int_equal(get_list(f, "t", "model_1/layer_0", NULL), MC_OK);
    assert_true(peek(f, "model_2/layer_0"));
}

static void test_a_pattern_that_explodes_is_refused_before_anything_is_removed(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 10),
                     MC_OK);
    assert_int_equal(put(f, "b", 10), MC_OK);
    assert_int_equal(remove_by_regex(f, "default", "^(?:(a+)+)+$(?<!a)|b", false),
                     MC_INVALID_PARAMS);
    assert_int_equal(key_count(f), 2);
    char *long_pattern = mc_zalloc(70001);
    memset(long_pattern, 'a', 70000);
    assert_int_equal(found_by_regex(f, "default", long_pattern), MC_INVALID_PARAMS);
    free(long_pattern);
}

static void test_batch_remove_answers_each_key(void **state) {
    struct fixture *f = *state;
    put_many(f);
    assert_int_equal(get(f, "other"), MC_OK);
    struct mw_a_batch_remove args = {
        strs(f, 5, (const char *[]){"a.b", "other", "missing", "model_1/unfinished", "a.b"}), false,
        MC_STR("default")};
    struct mc_vec answers;
    call(f, MC_RPC_BatchRemove, &args, &answers);
    static const int32_t wanted[] = {MC_OK, MC_OBJECT_HAS_LEASE, MC_OBJECT_NOT_FOUND,
                                     MC_REPLICA_IS_NOT_READY, MC_OBJECT_NOT_FOUND};
    assert_int_equal(answers.count, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(((struct mw_e_void *)answers.items)[i].error, wanted[i]);
    }
}

static size_t replica_clear(struct fixture *f, struct mc_uuid client, struct mc_vec keys,
                            const char *segment) {
    struct mw_a_replica_clear args = {keys, client, str(segment)};
    struct mw_e_vec r;
    call(f, MC_RPC_BatchReplicaClear, &args, &r);
    assert_int_equal(r.error, MC_OK);
    return r.value.count;
}

static void test_replicas_are_cleared_by_their_writer_when_nobody_reads(void **state) {
    struct fixture *f = *state;
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    mount(f, "node:2", FIXTURE_SEGMENT_BYTES);
    struct mc_vec keys = strs(f, 3, (const char *[]){"a", "b", "missing"});
    assert_int_equal(put_with(f, "a", 10, replicas(2)), MC_OK);
    assert_int_equal(put_with(f, "b", 10, replicas(2)), MC_OK);
    assert_int_equal(get(f, "b"), MC_OK);
    assert_int_equal(replica_clear(f, client_b, keys, ""), 0);
    assert_int_equal(replica_clear(f, client_a, keys, "node:9"), 0);
    assert_int_equal(replica_clear(f, client_a, keys, "node:1"), 1); /* b is leased */
    struct mw_replica_list list;
    assert_int_equal(get_list(f, "default", "a", &list), MC_OK);
    assert_int_equal(list.replicas.count, 1);
    assert_true(
        mc_str_eq(((struct mw_replica *)list.replicas.items)->memory.endpoint, MC_STR("node:2")));
    fixture_check(f);
    advance_ms(f, 10000);
    assert_int_equal(replica_clear(f, client_a, keys, "node:2"), 2); /* a's last one: a is gone */
    assert_int_equal(get(f, "a"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(replica_clear(f, client_a, keys, ""), 1);
    assert_int_equal(key_count(f), 0);
    assert_int_equal(replica_clear(f, client_a, (struct mc_vec){0}, ""), 0);
    assert_int_equal(replica_clear(f, client_a, strs(f, 2, (const char *[]){"", ""}), ""), 0);
}

struct listing {
    size_t count;
    size_t stop_at;
};
static bool list_key(void *ctx, struct mc_str tenant, struct mc_str key) {
    struct listing *l = ctx;
    assert_true(tenant.len > 0 && key.len > 0);
    return ++l->count != l->stop_at;
}
static void test_every_key_is_listed_once(void **state) {
    struct fixture *f = *state;
    struct listing all = {0}, one = {0}, stopped = {.stop_at = 3};
    put_many(f);
    mc_master_each_key(f->m, NULL, list_key, &all);
    assert_int_equal(all.count, 9);
    mc_master_each_key(f->m, "t", list_key, &one);
    assert_int_equal(one.count, 1);
    mc_master_each_key(f->m, "default", list_key, &stopped);
    assert_int_equal(stopped.count, 3);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_pattern_is_searched_for_as_upstream_does),
        TEST(test_removal_by_pattern_skips_what_is_leased_or_being_written),
        TEST(test_a_pattern_that_explodes_is_refused_before_anything_is_removed),
        TEST(test_batch_remove_answers_each_key),
        TEST(test_replicas_are_cleared_by_their_writer_when_nobody_reads),
        TEST(test_every_key_is_listed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
