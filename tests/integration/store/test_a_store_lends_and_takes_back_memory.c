/*
 * MC_TEST_THREADS. A store lends more memory while it runs, fresh or a mapped file, and takes it
 * back at once or after a grace in which what is there can still be read; objects move through
 * sessions between two processes' worth of engines.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "support/cluster.h"

#define SEGMENT (16u << 20)
#define OBJECT  (1u << 20)

struct fixture {
    struct mc_master_service *master;
    struct mc_store *lender, *client;
    uint8_t *value, *got;
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    f->master = cluster_start_master(&options);
    f->lender = cluster_open(mc_master_service_rpc_port(f->master), 0, true);
    f->client = cluster_open(mc_master_service_rpc_port(f->master), 0, true);
    f->value = malloc(OBJECT);
    f->got = malloc(OBJECT);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mc_store_close(f->client);
    mc_store_close(f->lender);
    mc_master_service_stop(f->master);
    free(f->value);
    free(f->got);
    free(f);
    return 0;
}

static struct mc_master_totals totals(struct fixture *f) {
    struct mc_master_totals t;
    mc_master_totals(mc_master_service_core(f->master), &t);
    return t;
}

static enum mc_status put(struct fixture *f, const char *key, uint64_t seed) {
    mc_test_fill(f->value, OBJECT, seed);
    return mc_store_put(f->client, key, f->value, OBJECT, NULL);
}

static void read_back(struct fixture *f, const char *key, uint64_t seed) {
    size_t length = 0;
    memset(f->got, 0, OBJECT);
    assert_ok(mc_store_get(f->client, key, f->got, OBJECT, &length));
    assert_int_equal(length, OBJECT);
    mc_test_verify(f->got, OBJECT, seed);
}

static void test_memory_comes_and_goes(void **state) {
    struct fixture *f = *state;
    struct mc_store_segment_id first, second;
    assert_int_equal(put(f, "none", 1), MC_NO_AVAILABLE_HANDLE);
    assert_ok(mc_store_mount_memory(f->lender, SEGMENT, NULL, &first));
    assert_ok(put(f, "a", 1));
    read_back(f, "a", 1);
    assert_ok(mc_store_mount_memory(f->lender, SEGMENT, "cpu:0", &second));
    assert_int_equal(totals(f).capacity_bytes, 2 * SEGMENT);
    assert_ok(mc_store_unmount(f->lender, first, 0));
    assert_int_equal(mc_store_unmount(f->lender, first, 0), MC_SEGMENT_NOT_FOUND);
    size_t length;
    assert_int_equal(mc_store_get(f->client, "a", f->got, OBJECT, &length), MC_OBJECT_NOT_FOUND);
    assert_ok(put(f, "a", 2));
    read_back(f, "a", 2);
    assert_ok(mc_store_unmount(f->lender, second, 0));
    assert_int_equal(totals(f).segments, 0);
    assert_int_equal(put(f, "none", 1), MC_NO_AVAILABLE_HANDLE);
}

static bool no_memory_left(void *ctx) {
    struct mc_buffer_info buffers[4];
    struct fixture *f = ctx;
    size_t count = 0;
    mc_segment_id own;
    struct mc_engine *engine = mc_store_engine(f->lender);
    assert_ok(mc_segment_open(engine, mc_engine_name(engine), &own));
    assert_ok(mc_segment_buffers(engine, own, buffers, 4, &count));
    return count == 0;
}

static void test_a_grace_is_for_reading(void **state) {
    struct fixture *f = *state;
    struct mc_store_segment_id id;
    assert_ok(mc_store_mount_memory(f->lender, SEGMENT, NULL, &id));
    assert_ok(put(f, "a", 1));
    assert_ok(mc_store_unmount(f->lender, id, 600000));
    assert_int_equal(put(f, "b", 2), MC_NO_AVAILABLE_HANDLE);
    read_back(f, "a", 1);
    assert_false(no_memory_left(f));
    assert_ok(mc_store_unmount(f->lender, id, 1)); /* less patience */
    cluster_wait_until(no_memory_left, f, 10000, "the segment leaves and its memory is freed");
    assert_int_equal(totals(f).segments, 0);
    assert_int_equal(mc_store_unmount(f->lender, id, 0), MC_SEGMENT_NOT_FOUND);
}

static void test_a_file_is_lent(void **state) {
    struct fixture *f = *state;
    struct mc_store_segment_id id;
    char path[64];
    snprintf(path, sizeof(path), "/tmp/mooncake-lent-%d", getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, SEGMENT + 4096), 0);
    assert_int_equal(mc_store_mount_file(f->lender, path, 0, SEGMENT + 4097, NULL, &id),
                     MC_INVALID_PARAMS);
    assert_int_equal(mc_store_mount_file(f->lender, path, 100, 4096, NULL, &id), MC_INVALID_PARAMS);
    assert_int_equal(mc_store_mount_file(f->lender, "/nowhere", 0, 4096, NULL, &id),
                     MC_FILE_OPEN_FAIL);
    assert_int_equal(mc_store_mount_file(f->lender, NULL, 0, 4096, NULL, &id), MC_INVALID_PARAMS);
    assert_int_equal(totals(f).segments, 0);
    assert_ok(mc_store_mount_file(f->lender, path, 4096, SEGMENT, NULL, &id));
    assert_ok(put(f, "a", 7));
    read_back(f, "a", 7);
    /* It is really there. */
    bool found = false;
    for (off_t at = 4096; at < (off_t)(SEGMENT + 4096) && !found; at += 4096) {
        assert_int_equal(pread(fd, f->got, 64, at), 64);
        found = memcmp(f->got, f->value, 64) == 0;
    }
    assert_true(found);
    assert_ok(mc_store_unmount(f->lender, id, 0));
    close(fd);
    unlink(path);
}

static void test_many_segments_and_a_limit(void **state) {
    struct fixture *f = *state;
    struct mc_store_segment_id ids[64], one_more;
    for (size_t i = 0; i < 64; i++) {
        assert_ok(mc_store_mount_memory(f->lender, 4096, NULL, &ids[i]));
    }
    assert_int_equal(mc_store_mount_memory(f->lender, 4096, NULL, &one_more), MC_ERR_LIMIT);
    assert_int_equal(mc_store_mount_memory(f->lender, 1023, NULL, &one_more), MC_INVALID_PARAMS);
    assert_int_equal(totals(f).segments, 64);
    for (size_t i = 0; i < 64; i += 2) {
        assert_ok(mc_store_unmount(f->lender, ids[i], 0));
    }
    assert_int_equal(totals(f).segments, 32);
}

static void test_sessions_over_the_wire(void **state) {
    struct fixture *f = *state;
    struct mc_store_segment_id id;
    const char *key = "k";
    const uint64_t size = OBJECT;
    enum mc_status result;
    assert_ok(mc_store_mount_memory(f->lender, SEGMENT, NULL, &id));
    mc_test_fill(f->value, OBJECT, 3);
    assert_ok(mc_store_put_session_start(f->client, &key, &size, 1, NULL, &result));
    assert_ok(result);
    for (size_t at = 0; at < OBJECT; at += OBJECT / 8) {
        struct mc_store_range halves[2] = {
            {f->value + at + OBJECT / 16, OBJECT / 16, at + OBJECT / 16, MC_OK},
            {f->value + at, OBJECT / 16, at, MC_OK}};
        struct mc_store_range_item item = {.key = key, .ranges = halves, .range_count = 2};
        assert_ok(mc_store_put_session_write(f->client, &item, 1));
        assert_ok(item.status);
        assert_int_equal(item.length, OBJECT / 8);
    }
    assert_ok(mc_store_put_session_end(f->client, &key, 1, &result));
    assert_ok(result);
    read_back(f, "k", 3);
    assert_ok(mc_store_get_session_start(f->client, &key, 1, &result));
    assert_ok(result);
    memset(f->got, 0, OBJECT);
    for (size_t at = OBJECT; at > 0; at -= OBJECT / 4) {
        struct mc_store_range part = {f->got + at - OBJECT / 4, OBJECT / 4, at - OBJECT / 4, MC_OK};
        struct mc_store_range_item item = {.key = key, .ranges = &part, .range_count = 1};
        assert_ok(mc_store_get_session_read(f->client, &item, 1));
        assert_ok(item.status);
    }
    mc_test_verify(f->got, OBJECT, 3);
    assert_ok(mc_store_get_session_end(f->client, &key, 1));
    bool cleared = true;
    assert_ok(mc_store_clear_replicas(f->client, &key, 1, NULL, &cleared));
    assert_false(cleared); /* leased */
    assert_ok(put(f, "free", 1));
    key = "free";
    assert_ok(mc_store_clear_replicas(f->lender, &key, 1, NULL, &cleared));
    assert_false(cleared); /* another store's */
    assert_ok(mc_store_clear_replicas(f->client, &key, 1, mc_store_hostname(f->lender), &cleared));
    assert_true(cleared);
}

int main(int argc, char **argv) {
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_memory_comes_and_goes),     T(test_a_grace_is_for_reading), T(test_a_file_is_lent),
        T(test_many_segments_and_a_limit), T(test_sessions_over_the_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
