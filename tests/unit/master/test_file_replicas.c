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

/* The path that the answer gives for the file, or the key's readers are told; freed by the arena.
 */
static const char *path_in(struct fixture *f, const struct mc_vec *list) {
    const struct mw_replica *file = file_of(list);
    assert_non_null(file);
    return mc_arena_str(&f->arena, file->disk.file_path).ptr;
}
static const char *path_of(struct fixture *f, const char *tenant, const char *key) {
    struct mw_replica_list list;
    assert_int_equal(mc_master_peek(f->m, str(tenant), str(key), &f->arena, &list), 0);
    return path_in(f, &list.replicas);
}

/* What a client of ours is told to delete: asks until there is nothing, as it would. */
static size_t dead_files(struct fixture *f, const char *expected[], size_t most) {
    struct mw_a_dead_files args = {.client = client_b};
    struct mw_e_dead_files ret;
    size_t count = 0;
    for (;;) {
        call(f, MC_RPC_TakeDeadFiles, &args, &ret);
        assert_int_equal(ret.error, 0);
        assert_memory_equal(ret.value.keep.ptr, PATH, strlen(PATH));
        assert_int_equal(ret.value.keep.len, strlen(PATH) + 16);
        if (ret.value.batch == 0) {
            return count;
        }
        const struct mc_str *path = ret.value.paths.items;
        for (size_t i = 0; i < ret.value.paths.count; i++) {
            assert_true(count < most);
            expected[count++] = mc_arena_str(&f->arena, path[i]).ptr;
        }
        args.done = ret.value.batch;
    }
}

/* One value, of readable replicas with a file, or none. */
static const char *upsert(struct fixture *f, const char *key, bool file) {
    struct mc_vec answer;
    assert_int_equal(upsert_start(f, key, 1000, replicas(1), &answer), 0);
    const char *path = path_in(f, &answer);
    struct mw_a_put_end args = {client_a, {str(key), {0}}, MC_REPLICA_ALL, str("default")};
    struct mw_e_void ret;
    call(f, MC_RPC_UpsertEnd, &args, &ret);
    assert_int_equal(ret.error, 0);
    if (file) {
        assert_int_equal(end(f, key, MC_REPLICA_DISK), 0);
    }
    return path;
}

static void test_an_upsert_has_a_file_of_its_own(void **state) {
    struct fixture *f = *state;
    const char *dead[4];
    begin(f);
    assert_int_equal(start(f, "k"), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_ALL), 0);
    assert_int_equal(end(f, "k", MC_REPLICA_DISK), 0);
    const char *first = path_of(f, "default", "k");
    assert_int_equal(dead_files(f, dead, 4), 0);
    const char *second = upsert(f, "k", false);
    assert_string_not_equal(first, second);
    expect(f, "k", 0, 1);
    assert_int_equal(dead_files(f, dead, 4), 1);
    assert_string_equal(dead[0], first);
    /* in place: the writer of the second value has not said that its file is there */
    const char *third = upsert(f, "k", true);
    assert_string_not_equal(second, third);
    assert_string_equal(path_of(f, "default", "k"), third);
    assert_int_equal(dead_files(f, dead, 4), 1);
    assert_string_equal(dead[0], second);
    const char *other = upsert(f, "new", true); /* of a key that was not there */
    assert_string_equal(path_of(f, "default", "new"), other);
}

static void test_names_meet_no_others(void **state) {
    struct fixture *f = *state;
    struct mc_vec answer;
    const char *paths[5];
    static const char *const keys[] = {"a/b", "a_b", "a/b"};
    begin(f);
    for (unsigned i = 0; i < 3; i++) { /* the third is the first, again */
        assert_int_equal(
            put_start_with(f, client_a, "default", keys[i], 1000, replicas(1), &answer), 0);
        paths[i] = path_in(f, &answer);
        assert_int_equal(put_revoke(f, keys[i]), 0);
    }
    assert_int_equal(put_start_with(f, client_a, "t/1", "a/b", 1000, replicas(1), &answer), 0);
    paths[3] = path_in(f, &answer);
    assert_non_null(strstr(paths[3], "/tenant-t_1/"));
    assert_int_equal(put_end_as(f, client_a, "t/1", "a/b", MC_REPLICA_ALL), 0);
    assert_int_equal(put_end_as(f, client_a, "t/1", "a/b", MC_REPLICA_DISK), 0);
    assert_string_equal(path_of(f, "t/1", "a/b"), paths[3]);
    char key[3000];
    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    assert_int_equal(put_start_with(f, client_a, "t/1", key, 1000, replicas(1), &answer), 0);
    paths[4] = path_in(f, &answer);
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned k = 0; k < i; k++) {
            assert_string_not_equal(paths[i], paths[k]);
        }
        assert_true(strlen(strrchr(paths[i], '/') + 1) < 230);
    }
}

static void test_files_of_what_is_gone_are_deleted_by_somebody(void **state) {
    struct fixture *f = *state;
    struct mw_a_dead_files args = {.client = client_b};
    struct mw_e_dead_files first, ret;
    const char *dead[4];
    begin(f);
    for (unsigned i = 0; i < 3; i++) { /* one with a file, one that may have one, one without */
        const char *key = (const char *[]){"a", "b", "c"}[i];
        assert_int_equal(start(f, key), 0);
        assert_int_equal(end(f, key, MC_REPLICA_ALL), 0);
    }
    assert_int_equal(end(f, "a", MC_REPLICA_DISK), 0);
    assert_int_equal(put_revoke_as(f, client_a, "default", "c", MC_REPLICA_DISK), 0);
    const char *a = path_of(f, "default", "a");
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(remove_key(f, (const char *[]){"a", "b", "c"}[i], true), 0);
    }
    assert_int_equal(metric(f, "master_dead_files"), 2);
    call(f, MC_RPC_TakeDeadFiles, &args, &first); /* directories of other masters */
    assert_int_not_equal(first.value.batch, 0);
    assert_int_equal(first.value.paths.count, 0);
    args.done = first.value.batch;
    call(f, MC_RPC_TakeDeadFiles, &args, &first);
    assert_int_equal(first.value.paths.count, 2);
    assert_string_equal(((struct mc_str *)first.value.paths.items)[0].ptr, a);
    args.done = 0;
    call(f, MC_RPC_TakeDeadFiles, &args, &ret); /* whoever has it may be at it */
    assert_int_equal(ret.value.batch, 0);
    args = (struct mw_a_dead_files){client_a, first.value.batch}; /* nor is it another's to end */
    call(f, MC_RPC_TakeDeadFiles, &args, &ret);
    assert_int_equal(metric(f, "master_dead_files"), 2);
    args.done = 0;
    tick_for_ms(f, 58000); /* of the minute that it has for them */
    call(f, MC_RPC_TakeDeadFiles, &args, &ret);
    assert_int_equal(ret.value.batch, 0);
    tick_for_ms(f, 3000);
    assert_int_equal(dead_files(f, dead, 4), 2); /* it is not heard of any more: again */
    assert_string_equal(dead[0], a);
    tick_for_ms(f, 61000);
    assert_int_equal(dead_files(f, dead, 4), 0);
    assert_int_equal(metric(f, "master_dead_files"), 0);
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
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {TEST(test_a_file_is_there_when_its_writer_says_so),
                                       TEST(test_the_file_may_be_there_first),
                                       TEST(test_no_file_is_no_failure),
                                       TEST(test_it_outlives_the_memory),
                                       TEST(test_an_upsert_has_a_file_of_its_own),
                                       TEST(test_names_meet_no_others),
                                       TEST(test_files_of_what_is_gone_are_deleted_by_somebody),
                                       TEST(test_without_a_root_there_are_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
