/* DISK replicas: the writer of an object is told of a file, says that it is there, and readers are
 * told of it as long as the object lives, memory or not. */
#include "support/master_fixture.h"

#define PATH "/shared/kv/c1/"

static void begin(struct fixture *f) {
    f->config.root_fs_dir = "/shared/kv";
    f->config.cluster_id = "c1";
    f->config.default_kv_lease_ttl_ms = 100;
    fixture_restart(f);
    mount(f, "a:1", 16 << 20);
}

/* Of the answer to PutStart or a look-up: its file, or NULL. */
static const struct mw_replica *file_of(const struct mc_vec *replicas) {
    const struct mw_replica *r = replicas->items, *found = NULL;
    for (size_t i = 0; i < replicas->count; i++) {
        if (r[i].tag == MW_TAG_DISK) {
            assert_null(found);
            found = &r[i];
        }
    }
    return found;
}

static unsigned files(struct fixture *f, const char *key, size_t *all) {
    struct mw_replica_list list;
    fixture_check(f);
    if (mc_master_peek(f->m, str("default"), str(key), &f->arena, &list) != MC_OK) {
        *all = 0;
        return 0;
    }
    *all = list.replicas.count;
    return file_of(&list.replicas) != NULL;
}

static void expect(struct fixture *f, const char *key, unsigned file, size_t all) {
    size_t count;
    assert_int_equal(files(f, key, &count), file);
    assert_int_equal(count, all);
}

static int32_t start(struct fixture *f, const char *key) {
    struct mc_vec answer;
    int32_t error = put_start_with(f, client_a, "default", key, 1000, replicas(1), &answer);
    if (error == 0) {
        const struct mw_replica *file = file_of(&answer);
        assert_non_null(file);
        assert_int_equal(answer.count, 2);
        assert_int_equal(file->status, MC_REPLICA_PROCESSING);
        assert_int_equal(file->disk.object_size, 1000);
        assert_memory_equal(file->disk.file_path.ptr, PATH, strlen(PATH));
    }
    return error;
}

static int32_t end(struct fixture *f, const char *key, int32_t type) {
    return put_end_as(f, client_a, "default", key, type);
}

static void test_a_file_is_there_when_its_writer_says_so(void **state) {
    struct fixture *f = *state;
    begin(f);
    assert_int_equal(start(f, "k"), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_ALL), 0);
    expect(f, "k", 0, 1);
    assert_int_equal(put_end_as(f, client_b, "default", "k", MC_REPLICA_DISK), MC_ILLEGAL_CLIENT);
    assert_int_equal(end(f, "k", MC_REPLICA_DISK), 0);
    expect(f, "k", 1, 2);
    assert_int_equal(end(f, "k", MC_REPLICA_DISK), 0); /* ending twice is ending once */
    expect(f, "k", 1, 2);
    assert_int_equal(remove_key(f, "k", true), 0);
    expect(f, "k", 0, 0);
}

static void test_the_file_may_be_there_first(void **state) {
    struct fixture *f = *state;
    begin(f);
    assert_int_equal(start(f, "k"), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_DISK), 0);
    assert_int_not_equal(get(f, "k"), 0); /* not readable by that alone */
    assert_int_equal(end(f, "k", MC_REPLICA_ALL), 0);
    expect(f, "k", 1, 2);
}

static void test_no_file_is_no_failure(void **state) {
    struct fixture *f = *state;
    begin(f);
    assert_int_equal(start(f, "k"), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_ALL), 0);
    assert_int_equal(put_revoke_as(f, client_a, "default", "k", MC_REPLICA_DISK), 0);
    assert_int_equal(put_revoke_as(f, client_a, "default", "k", MC_REPLICA_DISK), MC_INVALID_WRITE);
    assert_int_equal(end(f, "k", MC_REPLICA_DISK), MC_INVALID_WRITE);
    expect(f, "k", 0, 1);
    assert_int_equal(start(f, "l"), 0); /* a put that is given up takes its file along */
    assert_int_equal(put_revoke(f, "l"), 0);
    assert_int_equal(end(f, "l", MC_REPLICA_DISK), MC_OBJECT_NOT_FOUND);
    fixture_check(f);
}

static void test_it_outlives_the_memory(void **state) {
    struct fixture *f = *state;
    begin(f);
    struct mc_uuid second = mount(f, "a:2", 16 << 20);
    struct mw_replicate_config there = replicas(1);
    struct mc_vec answer;
    there.preferred_segment = str("a:2");
    assert_int_equal(put_start_with(f, client_a, "default", "k", 1000, there, &answer), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_ALL), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_DISK), 0);
    assert_int_equal(unmount(f, second), 0);
    tick_for_ms(f, 200);
    size_t all;
    assert_int_equal(files(f, "k", &all), 1);
    assert_int_equal(get(f, "k"), 0);
    struct mw_a_evict_disk gone = {
        .client = client_a, .key = str("k"), .tenant = str("default"), .type = MC_REPLICA_DISK};
    struct mw_e_void ret;
    call(f, MC_RPC_EvictDiskReplica, &gone, &ret); /* somebody deleted it */
    assert_int_equal(ret.error, 0);
    tick_for_ms(f, 200);
    if (all == 1) { /* nothing else was left of it */
        assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
    }
    fixture_check(f);
}

static void test_an_upsert_has_no_old_file(void **state) {
    struct fixture *f = *state;
    struct mc_vec answer;
    begin(f);
    assert_int_equal(start(f, "k"), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_ALL), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_DISK), 0);
    assert_int_equal(upsert_start(f, "k", 1000, replicas(1), &answer), 0);
    assert_null(file_of(&answer));
    expect(f, "k", 0, 0);
}

static void test_without_a_root_there_are_none(void **state) {
    struct fixture *f = *state;
    struct mc_vec answer;
    struct mw_e_storage config;
    mount(f, "a:1", 16 << 20);
    assert_int_equal(put_start_with(f, client_a, "default", "k", 1000, replicas(1), &answer), 0);
    assert_null(file_of(&answer));
    call(f, MC_RPC_GetStorageConfig, NULL, &config);
    assert_int_equal(config.value.fsdir.len, 0);
    begin(f);
    call(f, MC_RPC_GetStorageConfig, NULL, &config);
    assert_true(mc_str_eq(config.value.fsdir, str("/shared/kv/c1")));
    /* names of other tenants would meet those of the default one */
    assert_int_equal(put_start_with(f, client_a, "other", "k", 1000, replicas(1), &answer), 0);
    assert_null(file_of(&answer));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {TEST(test_a_file_is_there_when_its_writer_says_so),
                                       TEST(test_the_file_may_be_there_first),
                                       TEST(test_no_file_is_no_failure),
                                       TEST(test_it_outlives_the_memory),
                                       TEST(test_an_upsert_has_no_old_file),
                                       TEST(test_without_a_root_there_are_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
