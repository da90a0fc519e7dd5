/*
 * With checksums, a byte that changes where an object lies is an error to whoever reads the object
 * whole, on every path: another process's memory over TCP and shared, views, all ranges together,
 * the hot cache, the node's SSD, what was promoted from there, a file of a shared file system, and
 * a node that reads for dummy clients. What is wrong in memory does not come to the SSD. A good
 * copy is read instead where there is one.
 */
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "mooncake/store.h"
#include "support/live.h"

#define SIZE (300u << 10)
#define AT   777 /* the byte that changes */

enum { MEMORY = 0, IN_FILE = 2, ON_SSD = 3 }; /* types of mc_replica_info */

static struct live master, node;
static char folder[32];
static struct mc_store *tcp, *shared; /* lend nothing: all is the node's */
static uint8_t bytes[SIZE], got[SIZE];

static struct mc_store *open_store(bool disable_shm, uint64_t hot) {
    struct mc_store_options options;
    struct mc_store *store;
    mc_store_options_init(&options);
    options.master = master.rpc_address;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = 0;
    options.checksum = true;
    options.disable_shm = disable_shm;
    options.hot_cache_bytes = hot;
    options.hot_admission = 1;
    assert_ok(mc_store_open(&options, &store));
    return store;
}

enum kind { WITH_SSD, WITH_PROMOTION, WITH_FILES };

static void start_cluster(enum kind kind) {
    char root[64], ssd[64];
    strcpy(folder, "/tmp/mooncake-flip-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(root, sizeof(root), "--root_fs_dir=%s", folder);
    snprintf(ssd, sizeof(ssd), "--ssd_offload_path=%s", folder);
    setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1", 1);
    setenv("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "67108864", 1);
    setenv("MC_TIER_SCRUB_BYTES_PER_SECOND", "0", 1); /* it would find it first */
    setenv("MOONCAKE_STORE_CHECKSUM", "1", 1);        /* the node's, which reads for dummies */
    const char *lease = "--default_kv_lease_ttl=300";
    const char *master_flags[] = {lease, "--enable_offload", NULL, NULL};
    const char *node_flags[] = {"--port=0", "--listen=127.0.0.1", ssd, NULL};
    if (kind == WITH_PROMOTION) {
        master_flags[2] = "--promotion_on_hit";
    } else if (kind == WITH_FILES) {
        master_flags[1] = root;
        master_flags[2] = "--cluster_id=c";
        node_flags[2] = NULL;
    }
    live_master(&master, master_flags, 0);
    live_node(&node, &master, "64MB", node_flags, 0);
    tcp = open_store(true, 0);
    shared = open_store(false, 0);
}

static int start_with_ssd(void **state) {
    start_cluster(WITH_SSD);
    return 0;
}
static int start_with_promotion(void **state) {
    start_cluster(WITH_PROMOTION);
    return 0;
}
static int start_with_files(void **state) {
    start_cluster(WITH_FILES);
    return 0;
}

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    return remove(path);
}

static int stop_cluster(void **state) {
    mc_store_close(tcp);
    mc_store_close(shared);
    live_end(&node, SIGTERM);
    live_end(&master, SIGTERM);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static void put(const char *key) {
    mc_test_fill(bytes, SIZE, mc_hash64(key, strlen(key), 0)); /* unlike those of other keys */
    assert_ok(mc_store_put(tcp, key, bytes, SIZE, NULL));
}

/* ---- where the object is ---- */

static bool find_replica(const char *key, int type, struct mc_replica_info *info, size_t *count) {
    struct mc_replica_info infos[4];
    bool found = false;
    if (mc_store_replicas(tcp, key, infos, 4, count) != MC_OK) {
        *count = 0;
    }
    for (size_t i = 0; i < *count; i++) {
        if (infos[i].type == type && infos[i].status == 3) {
            *info = infos[i];
            found = true;
        }
    }
    return found;
}

static struct mc_replica_info wait_replica(const char *key, int type) {
    struct mc_replica_info info;
    size_t count;
    for (unsigned i = 0; !find_replica(key, type, &info, &count); i++) {
        assert_true(i < 6000);
        usleep(20000);
    }
    return info;
}

/* Takes its memory away, once nobody has a lease on it. */
static void drop_memory(const char *key) {
    bool cleared = false;
    struct mc_replica_info info;
    size_t count;
    for (unsigned i = 0; !cleared; i++) {
        assert_true(i < 6000);
        assert_ok(mc_store_clear_replicas(tcp, &key, 1, node.name, &cleared));
        usleep(20000);
    }
    assert_false(find_replica(key, MEMORY, &info, &count));
    assert_int_equal(count, 1);
}

/* ---- what changes ---- */

static void flip_at(const char *path, uint64_t at) {
    uint8_t byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void flip_memory(const struct mc_replica_info *replica) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)node.pid);
    flip_at(path, replica->address + AT);
}

/* The object's bytes in whichever file below the folder they are. */
static unsigned flipped;
static int flip_if_there(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    if (flag != FTW_F || stat->st_size < (off_t)SIZE) {
        return 0;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *content = malloc((size_t)stat->st_size);
    assert_true(fd >= 0 && content != NULL);
    assert_int_equal(pread(fd, content, (size_t)stat->st_size, 0), stat->st_size);
    close(fd);
    char *found = memmem(content, (size_t)stat->st_size, bytes, SIZE);
    if (found != NULL) {
        flip_at(path, (uint64_t)(found - content) + AT);
        flipped++;
    }
    free(content);
    return 0;
}

static void flip_file(void) {
    flipped = 0;
    nftw(folder, flip_if_there, 8, FTW_PHYS);
    assert_int_equal(flipped, 1);
}

/* ---- how it is read ---- */

static enum mc_status get(struct mc_store *store, const char *key) {
    size_t length = 0;
    memset(got, 0, SIZE);
    enum mc_status status;
    do { /* leases are short here, and the machine may be slow */
        status = mc_store_get(store, key, got, SIZE, &length);
    } while (status == MC_LEASE_EXPIRED);
    if (status == MC_OK) {
        assert_int_equal(length, SIZE);
        assert_memory_equal(got, bytes, SIZE);
    }
    return status;
}

static enum mc_status get_in_pieces(struct mc_store *store, const char *key) {
    struct mc_slice slices[] = {{got, 7}, {got + 7, 1000}, {got + 1007, SIZE - 1007}};
    struct mc_store_item item = {.key = key, .slices = slices, .slice_count = 3};
    do {
        assert_ok(mc_store_get_batch(store, &item, 1));
    } while (item.status == MC_LEASE_EXPIRED);
    return item.status;
}

static enum mc_status get_all_ranges(struct mc_store *store, const char *key) {
    struct mc_store_range halves[2] = {{got, SIZE / 2, 0, MC_OK},
                                       {got + SIZE / 2, SIZE / 2, SIZE / 2, MC_OK}};
    struct mc_store_range_item item = {.key = key, .ranges = halves, .range_count = 2};
    do {
        assert_ok(mc_store_get_ranges(store, &item, 1));
    } while (item.status == MC_LEASE_EXPIRED);
    return item.status;
}

static void expect_mismatch(struct mc_store *store, const char *key) {
    assert_int_equal(get(store, key), MC_CHECKSUM_MISMATCH);
    assert_int_equal(get_in_pieces(store, key), MC_CHECKSUM_MISMATCH);
    assert_int_equal(get_all_ranges(store, key), MC_CHECKSUM_MISMATCH);
}

/* ---- the tests ---- */

static void in_memory_of_another_process(void **state) {
    struct mc_store_view view;
    put("memory");
    struct mc_replica_info replica = wait_replica("memory", MEMORY);
    assert_ok(get(tcp, "memory"));
    assert_ok(get_in_pieces(shared, "memory"));
    assert_ok(get_all_ranges(shared, "memory"));
    assert_ok(mc_store_view(shared, "memory", &view));
    mc_store_view_release(shared, &view);
    flip_memory(&replica);
    expect_mismatch(tcp, "memory");
    expect_mismatch(shared, "memory");
    assert_int_equal(mc_store_view(shared, "memory", &view), MC_CHECKSUM_MISMATCH);
}

static void in_the_hot_cache(void **state) {
    struct mc_store *hot = open_store(true, 4 << 20);
    struct mc_store_view view;
    put("hot");
    assert_ok(get(hot, "hot"));
    assert_ok(mc_store_view(hot, "hot", &view)); /* is the copy itself */
    assert_memory_equal(view.data, bytes, SIZE);
    ((uint8_t *)(uintptr_t)view.data)[AT] ^= 1;
    mc_store_view_release(hot, &view);
    assert_ok(get(hot, "hot")); /* from the node */
    char *metrics = mc_store_metrics(hot);
    assert_non_null(strstr(metrics, "\nmooncake_client_checksum_mismatches 1\n"));
    free(metrics);
    mc_store_close(hot);
}

static void through_a_node(void **state) {
    char address[64], line[256];
    unsigned port = 0;
    struct mc_store_options options;
    struct mc_store *dummy;
    FILE *log = fopen(node.log, "re");
    assert_non_null(log);
    while (fgets(line, sizeof(line), log) != NULL) {
        const char *text = strstr(line, "rpc port ");
        port = text != NULL ? (unsigned)strtoul(text + strlen("rpc port "), NULL, 10) : port;
    }
    fclose(log);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    mc_store_options_init(&options);
    options.real_client = address;
    options.local_buffer_bytes = 4 << 20;
    assert_ok(mc_store_open(&options, &dummy));
    put("dummy");
    assert_ok(get(dummy, "dummy"));
    struct mc_replica_info replica = wait_replica("dummy", MEMORY);
    flip_memory(&replica);
    assert_int_equal(get(dummy, "dummy"), MC_CHECKSUM_MISMATCH);
    mc_store_close(dummy);
}

static void on_the_ssd(void **state) {
    put("ssd");
    wait_replica("ssd", ON_SSD);
    drop_memory("ssd");
    assert_ok(get(tcp, "ssd"));
    flip_file();
    assert_int_not_equal(get(tcp, "ssd"), MC_OK);
    assert_int_not_equal(get_in_pieces(shared, "ssd"), MC_OK);
    assert_int_not_equal(get_all_ranges(shared, "ssd"), MC_OK);
}

/* It would get a sum of its own there, of the wrong bytes. */
static void wrong_bytes_do_not_come_to_the_ssd(void **state) {
    static const char said[] = "the bytes read are not the bytes written: key=before";
    struct mc_replica_info replica;
    size_t count;
    put("before");
    replica = wait_replica("before", MEMORY);
    flip_memory(&replica);
    for (unsigned i = 0; !live_log_says(&node, said); i++) {
        assert_true(i < 6000);
        usleep(20000);
    }
    assert_false(find_replica("before", ON_SSD, &replica, &count));
    assert_int_equal(get(tcp, "before"), MC_CHECKSUM_MISMATCH);
}

static void promoted(void **state) {
    put("promoted");
    wait_replica("promoted", ON_SSD);
    drop_memory("promoted");
    struct mc_replica_info replica;
    size_t count;
    for (unsigned i = 0; !find_replica("promoted", MEMORY, &replica, &count); i++) {
        assert_true(i < 3000);
        assert_ok(get(tcp, "promoted"));
        usleep(20000);
    }
    assert_ok(get(shared, "promoted"));
    flip_memory(&replica);
    assert_ok(get(tcp, "promoted")); /* from the SSD */
    flip_file();
    assert_int_not_equal(get(tcp, "promoted"), MC_OK);
}

static void in_a_file(void **state) {
    put("file");
    wait_replica("file", IN_FILE);
    struct mc_replica_info replica = wait_replica("file", MEMORY);
    flip_memory(&replica);
    assert_ok(get(tcp, "file")); /* from the file */
    drop_memory("file");
    assert_ok(get(tcp, "file"));
    flip_file();
    assert_int_equal(get(tcp, "file"), MC_CHECKSUM_MISMATCH);
    assert_int_equal(get(tcp, "file"), MC_OBJECT_NOT_FOUND); /* the master was told */
    put("file");
    assert_ok(get(tcp, "file"));
}

/* What was proved first is what the reader hears, not why the other copy could not be read. */
static void in_memory_with_its_file_gone(void **state) {
    put("both");
    struct mc_replica_info file = wait_replica("both", IN_FILE);
    struct mc_replica_info replica = wait_replica("both", MEMORY);
    flip_memory(&replica);
    assert_int_equal(unlink(file.file_path), 0);
    expect_mismatch(tcp, "both");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_memory_of_another_process),
        cmocka_unit_test(in_the_hot_cache),
        cmocka_unit_test(through_a_node),
        cmocka_unit_test(on_the_ssd),
        cmocka_unit_test(wrong_bytes_do_not_come_to_the_ssd),
    };
    const struct CMUnitTest with_promotion[] = {
        cmocka_unit_test(promoted),
    };
    const struct CMUnitTest with_files[] = {
        cmocka_unit_test(in_a_file),
        cmocka_unit_test(in_memory_with_its_file_gone),
    };
    int failed = cmocka_run_group_tests(tests, start_with_ssd, stop_cluster);
    failed += cmocka_run_group_tests(with_promotion, start_with_promotion, stop_cluster);
    return failed + cmocka_run_group_tests(with_files, start_with_files, stop_cluster);
}
