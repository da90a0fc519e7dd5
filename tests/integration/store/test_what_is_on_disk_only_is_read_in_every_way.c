/*
 * Objects that no memory has any more are read whole, in parts, in sessions and as views, from the
 * SSD of another process and from a file of a shared file system; a session goes on with the disk
 * when memory goes, and never shows bytes of an object that is not there any more.
 */
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "mooncake/store.h"
#include "support/live.h"

#define SIZE     (300u << 10)
#define LEASE_MS 300u

enum { ON_SSD = 3, IN_FILE = 2 }; /* types of mc_replica_info */

static struct live master, node;
static char folder[32];
static struct mc_store *store; /* lends nothing: all is another process's */
static uint8_t bytes[SIZE], got[SIZE];

/* All at first, for a node asks once a second what it is to write. */
static const char *const keys[] = {"parts", "view", "session", "gone", "both"};

static void put(const char *key, uint64_t seed) {
    mc_test_fill(bytes, SIZE, seed);
    assert_ok(mc_store_put(store, key, bytes, SIZE, NULL));
}

static void put_all(void) {
    for (uint64_t i = 0; i < MC_ARRAY_LEN(keys); i++) {
        put(keys[i], i);
    }
}

static void start_cluster(int kind) {
    struct mc_store_options options;
    char root[64], ssd[64];
    strcpy(folder, "/tmp/mooncake-disk-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(root, sizeof(root), "--root_fs_dir=%s", folder);
    snprintf(ssd, sizeof(ssd), "--ssd_offload_path=%s", folder);
    setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1", 1);
    setenv("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "67108864", 1);
    const char *lease = "--default_kv_lease_ttl=300";
    live_master(&master,
                kind == ON_SSD ? (const char *const[]){"--enable_offload", lease, NULL}
                               : (const char *const[]){root, "--cluster_id=c", lease, NULL},
                0);
    live_node(&node, &master, "64MB", (const char *const[]){kind == ON_SSD ? ssd : NULL, NULL}, 0);
    mc_store_options_init(&options);
    options.master = master.rpc_address;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = 0;
    options.disable_shm = true;
    assert_ok(mc_store_open(&options, &store));
    put_all();
}

static int start_with_ssd(void **state) {
    start_cluster(ON_SSD);
    return 0;
}
static int start_with_files(void **state) {
    start_cluster(IN_FILE);
    return 0;
}

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    return remove(path);
}

static int stop_cluster(void **state) {
    mc_store_close(store);
    if (live_running(&node)) {
        live_end(&node, SIGTERM);
    }
    live_end(&master, SIGTERM);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

/* How many replicas are memory, and on disk. */
static void replicas_of(const char *key, size_t *memory, size_t *disk) {
    struct mc_replica_info infos[4];
    size_t count;
    assert_ok(mc_store_replicas(store, key, infos, 4, &count));
    *memory = *disk = 0;
    for (size_t i = 0; i < count; i++) {
        *memory += infos[i].type == 0;
        *disk += infos[i].type == ON_SSD || infos[i].type == IN_FILE;
    }
}

static void wait_on_disk(const char *key) {
    size_t memory = 0, disk = 0;
    for (unsigned i = 0; disk == 0; i++) {
        assert_true(i < 6000);
        replicas_of(key, &memory, &disk);
        usleep(20000);
    }
}

/* Takes its memory away, once nobody has a lease on it. */
static void drop_memory(const char *key) {
    bool cleared = false;
    for (unsigned i = 0; !cleared; i++) {
        assert_true(i < 6000);
        assert_ok(mc_store_clear_replicas(store, &key, 1, node.name, &cleared));
        usleep(20000);
    }
    size_t memory, disk;
    replicas_of(key, &memory, &disk);
    assert_int_equal(memory, 0);
    assert_int_equal(disk, 1);
}

/* The object with the seed is in no memory any more; it is in `bytes`. */
static void leave_on_disk(const char *key, uint64_t seed) {
    mc_test_fill(bytes, SIZE, seed);
    wait_on_disk(key);
    drop_memory(key);
}

static enum mc_status session_start(const char *key) {
    enum mc_status result = MC_INTERNAL_ERROR;
    assert_ok(mc_store_get_session_start(store, &key, 1, &result));
    return result;
}

static enum mc_status session_read(const char *key, size_t offset, size_t length) {
    struct mc_store_range ranges[2] = {
        {got + offset, length / 2, offset, MC_OK},
        {got + offset + length / 2, length - length / 2, offset + length / 2, MC_OK}};
    struct mc_store_range_item item = {.key = key, .ranges = ranges, .range_count = 2};
    memset(got + offset, 0, length);
    assert_ok(mc_store_get_session_read(store, &item, 1));
    if (item.status == MC_OK) {
        assert_int_equal(item.length, length);
        assert_true(length > 0 && memcmp(got + offset, bytes + offset, length) == 0);
    }
    return item.status;
}

/* ---- the tests; `bytes` is what was put last ---- */

static void whole_and_in_parts(void **state) {
    size_t length = 0;
    leave_on_disk("parts", 0);
    assert_ok(mc_store_get(store, "parts", got, SIZE, &length));
    assert_int_equal(length, SIZE);
    mc_test_verify(got, SIZE, 0);
    memset(got, 0, SIZE);
    struct mc_store_range ranges[] = {{got + 70000, 100000, 70000, MC_OK},
                                      {got, 1, 0, MC_OK},
                                      {got, 2, SIZE - 1, MC_OK},
                                      {got + 1, 69999, 1, MC_OK},
                                      {got + 170000, SIZE - 170000, 170000, MC_OK}};
    struct mc_store_range_item item = {.key = "parts", .ranges = ranges, .range_count = 5};
    assert_ok(mc_store_get_ranges(store, &item, 1));
    assert_ok(item.status);
    assert_int_equal(item.length, SIZE);
    assert_int_equal(ranges[2].status, MC_INVALID_PARAMS);
    mc_test_verify(got, SIZE, 0);
}

static void a_view_is_a_copy_that_stays(void **state) {
    struct mc_store_view view;
    leave_on_disk("view", 1);
    assert_ok(mc_store_view(store, "view", &view));
    assert_int_equal(view.length, SIZE);
    assert_ok(mc_store_remove(store, "view", true));
    assert_true(mc_store_view_valid(&view));
    mc_test_verify(view.data, SIZE, 1);
    mc_store_view_release(store, &view);
    assert_int_equal(mc_store_view(store, "view", &view), MC_OBJECT_NOT_FOUND);
}

/* Reads hold the lease for longer than it lasts by itself. */
static void a_session_reads_while_it_goes_on(void **state) {
    leave_on_disk("session", 2);
    assert_ok(session_start("session"));
    assert_ok(session_read("session", 0, SIZE));
    for (uint64_t until = mc_now_ms(mc_clock_system()) + 2 * LEASE_MS, i = 0;
         mc_now_ms(mc_clock_system()) < until; i++) {
        enum mc_status status = session_read("session", i * 977 % 200000, 1 + i * 31 % 90000);
        if (status == MC_LEASE_EXPIRED) { /* this process stood still for so long */
            assert_ok(session_start("session"));
        } else {
            assert_ok(status);
        }
        usleep(5000);
    }
    const char *key = "session";
    assert_ok(mc_store_get_session_end(store, &key, 1));
    assert_int_equal(session_read("session", 0, 1), MC_INVALID_PARAMS);
}

/* The node with the memory dies, the master does not know it yet, and the file is still there. */
static void a_session_goes_on_without_memory(void **state) {
    size_t memory, disk;
    mc_test_fill(bytes, SIZE, 4);
    wait_on_disk("both");
    replicas_of("both", &memory, &disk);
    assert_int_equal(memory, 1);
    assert_ok(session_start("both"));
    enum mc_status status = session_read("both", 0, 100);
    live_end(&node, SIGKILL);
    for (unsigned i = 0; i < 100 && (i == 0 || status == MC_LEASE_EXPIRED); i++) {
        if (status == MC_LEASE_EXPIRED) { /* this process stood still for so long */
            assert_ok(session_start("both"));
        }
        status = session_read("both", 5, 70000);
    }
    assert_ok(status);
}

static void a_session_ends_with_its_object(void **state) {
    leave_on_disk("gone", 3);
    assert_ok(session_start("gone"));
    assert_ok(mc_store_remove(store, "gone", true));
    /* The disk may still have it. */
    assert_int_equal(session_read("gone", 100, 1000), MC_LEASE_EXPIRED);
    assert_int_equal(session_read("gone", 100, 1000), MC_INVALID_PARAMS); /* it is over */
    assert_int_equal(session_start("gone"), MC_OBJECT_NOT_FOUND);
    uint8_t old[1000];
    memcpy(old, bytes + 100, sizeof(old));
    put("gone", 21); /* of the same size */
    leave_on_disk("gone", 21);
    assert_ok(session_start("gone"));
    assert_ok(session_read("gone", 100, 1000));
    assert_true(memcmp(got + 100, old, sizeof(old)) != 0);
}

/* One node has the SSD, and with it all of an object whose stripes lie on two. */
static void a_striped_object_outlives_a_stripe(void **state) {
    const size_t size = (33u << 20) + 7;
    uint8_t *large = mc_alloc(2 * size), *back = large + size;
    struct live other;
    struct mc_store_options options;
    struct mc_store *striping;
    size_t memory = 2, disk, length;
    live_node(&other, &master, "64MB", (const char *const[]){NULL}, 0);
    mc_store_options_init(&options);
    options.master = master.rpc_address;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = 0;
    options.stripe_bytes = 32u << 20;
    assert_ok(mc_store_open(&options, &striping));
    mc_test_fill(large, size, 9);
    assert_ok(mc_store_put(striping, "large", large, size, NULL));
    wait_on_disk("large");
    replicas_of("large", &memory, &disk);
    assert_true(memory == 2 && disk == 1);
    live_end(&other, SIGTERM);
    for (unsigned i = 0; memory > 0; i++) {
        assert_true(i < 6000);
        replicas_of("large", &memory, &disk);
        usleep(20000);
    }
    assert_ok(mc_store_get(store, "large", back, size, &length));
    assert_int_equal(length, size);
    mc_test_verify(back, size, 9);
    mc_store_close(striping);
    free(large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_and_in_parts),
        cmocka_unit_test(a_view_is_a_copy_that_stays),
        cmocka_unit_test(a_session_reads_while_it_goes_on),
        cmocka_unit_test(a_session_ends_with_its_object),
    };
    const struct CMUnitTest striped[] = {cmocka_unit_test(a_striped_object_outlives_a_stripe)};
    const struct CMUnitTest killing[] = {cmocka_unit_test(a_session_goes_on_without_memory)};
    int failed = cmocka_run_group_tests_name("on SSD", tests, start_with_ssd, stop_cluster);
    failed += cmocka_run_group_tests_name("striped", striped, start_with_ssd, stop_cluster);
    failed += cmocka_run_group_tests_name("in files", tests, start_with_files, stop_cluster);
    failed +=
        cmocka_run_group_tests_name("a file is left", killing, start_with_files, stop_cluster);
    return failed;
}
