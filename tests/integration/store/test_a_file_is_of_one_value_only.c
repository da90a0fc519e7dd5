/*
 * Copies of objects in files of a shared file system: an upsert has a file of its own, where nobody
 * who still writes the value before can reach it; tenants do not meet; files of values that are
 * gone, and of masters that are, are deleted. Real processes; the files are looked at from outside.
 */
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mooncake/store.h"
#include "support/live.h"

#define SIZE    (100u << 10)
#define IN_FILE 2 /* type of mc_replica_info */

static struct live master, node;
static char folder[32], root_flag[64];
static struct mc_store *stores[2]; /* of the tenants "default" and "other" */
static uint8_t bytes[SIZE], got[SIZE];
static unsigned file_count;

static void start_master_and_node(void) {
    live_master(
        &master,
        (const char *const[]){root_flag, "--cluster_id=c", "--default_kv_lease_ttl=100", NULL}, 0);
    live_node(&node, &master, "64MB", (const char *const[]){NULL}, 0);
    for (unsigned i = 0; i < 2; i++) {
        struct mc_store_options options;
        mc_store_options_init(&options);
        options.master = master.rpc_address;
        options.local_hostname = "127.0.0.1";
        options.segment_bytes = 0;
        options.tenant = i == 0 ? "default" : "other";
        assert_ok(mc_store_open(&options, &stores[i]));
    }
}

static void stop_master_and_node(void) {
    for (unsigned i = 0; i < 2; i++) {
        mc_store_close(stores[i]);
    }
    if (live_running(&node)) {
        live_end(&node, SIGTERM);
    }
    live_end(&master, SIGTERM);
}

static int start_all(void **state) {
    strcpy(folder, "/tmp/mooncake-file-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(root_flag, sizeof(root_flag), "--root_fs_dir=%s", folder);
    start_master_and_node();
    return 0;
}

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    return remove(path);
}

static int stop_all(void **state) {
    stop_master_and_node();
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static int count_one(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    file_count += flag == FTW_F;
    return 0;
}

static unsigned count_files(void) {
    file_count = 0;
    (void)nftw(folder, count_one, 8, FTW_PHYS);
    return file_count;
}

static void upsert(unsigned tenant, const char *key, uint64_t seed) {
    mc_test_fill(bytes, SIZE, seed);
    assert_ok(mc_store_upsert(stores[tenant], key, bytes, SIZE, NULL));
}

/* The only replica that is a file, in *info; how many are memory. */
static size_t find_file(unsigned tenant, const char *key, struct mc_replica_info *info) {
    struct mc_replica_info all[4];
    size_t count, memory = 0, files = 0;
    assert_ok(mc_store_replicas(stores[tenant], key, all, 4, &count));
    for (size_t i = 0; i < count; i++) {
        memory += all[i].type == 0;
        files += all[i].type == IN_FILE;
        *info = all[i].type == IN_FILE ? all[i] : *info;
    }
    assert_int_equal(files, 1);
    return memory;
}

static void drop_memory(unsigned tenant, const char *key) {
    bool cleared = false;
    for (unsigned i = 0; !cleared; i++) {
        assert_true(i < 6000);
        assert_ok(mc_store_clear_replicas(stores[tenant], &key, 1, node.name, &cleared));
        usleep(10000);
    }
}

static void expect(unsigned tenant, const char *key, uint64_t seed) {
    size_t length = 0;
    memset(got, 0, SIZE);
    assert_ok(mc_store_get(stores[tenant], key, got, SIZE, &length));
    assert_int_equal(length, SIZE);
    mc_test_verify(got, SIZE, seed);
}

static void wait_until_deleted(const char *path) {
    for (unsigned i = 0; access(path, F_OK) == 0; i++) {
        assert_true(i < 6000);
        usleep(10000);
    }
}

static void write_file(const char *path) {
    memset(got, 0x5a, SIZE);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(got, 1, SIZE, file), SIZE);
    assert_int_equal(fclose(file), 0);
}

static void an_upsert_is_read_from_its_own_file(void **state) {
    struct mc_replica_info first, second;
    upsert(0, "k", 1);
    assert_int_equal(find_file(0, "k", &first), 1);
    upsert(0, "k", 2); /* of the same size */
    assert_int_equal(find_file(0, "k", &second), 1);
    assert_string_not_equal(first.file_path, second.file_path);
    wait_until_deleted(first.file_path);
    write_file(first.file_path); /* as its writer would, had it hung until now */
    drop_memory(0, "k");
    expect(0, "k", 2);
    assert_int_equal(unlink(first.file_path), 0);
    assert_ok(mc_store_remove(stores[0], "k", true));
    wait_until_deleted(second.file_path);
}

static enum mc_status try_get(const char *key) {
    size_t length;
    return mc_store_get(stores[0], key, got, SIZE, &length);
}

static void expect_files_lost(const char *line) {
    char *metrics = mc_store_metrics(stores[0]);
    assert_non_null(strstr(metrics, line));
    free(metrics);
}

/* The first reader says so to the master, and is told that the read failed; then the key is free.
 */
static void a_file_that_was_cut_is_told_to_the_master(void **state) {
    struct mc_replica_info info;
    upsert(0, "cut", 10);
    find_file(0, "cut", &info);
    drop_memory(0, "cut");
    expect(0, "cut", 10);
    assert_int_equal(truncate(info.file_path, SIZE - 1), 0);
    assert_int_equal(try_get("cut"), MC_FILE_READ_FAIL);
    assert_int_equal(try_get("cut"), MC_OBJECT_NOT_FOUND);
    mc_test_fill(bytes, SIZE, 20);
    assert_ok(mc_store_put(stores[0], "cut", bytes, SIZE, NULL));
    expect(0, "cut", 20);
    expect_files_lost("\nmooncake_client_files_lost 1\n");
}

/* Reads fail and the master goes on naming the file. */
static void expect_missing(const char *key) {
    struct mc_replica_info info;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(try_get(key), MC_FILE_READ_FAIL);
    }
    assert_int_equal(find_file(0, key, &info), 0);
    expect_files_lost("\nmooncake_client_files_lost 1\n");
}

/* It may be missing for this client alone: one that does not have the others' file system mounted
 * makes the directories in its own, with its first put. */
static void a_file_that_is_missing_is_told_to_nobody(void **state) {
    struct mc_replica_info info;
    char away[64], home[64];
    upsert(0, "missing", 11);
    upsert(0, "away", 12);
    find_file(0, "missing", &info);
    drop_memory(0, "missing");
    drop_memory(0, "away");
    assert_int_equal(unlink(info.file_path), 0);
    expect_missing("missing");
    mc_test_fill(bytes, SIZE, 13);
    assert_ok(mc_store_put(stores[0], "missing", bytes, SIZE, NULL)); /* is there, and stays */
    upsert(0, "missing", 13);
    expect(0, "missing", 13);
    snprintf(home, sizeof(home), "%s/c", folder);
    snprintf(away, sizeof(away), "%s/d", folder);
    assert_int_equal(rename(home, away), 0);
    expect_missing("away");
    upsert(0, "another", 14);
    assert_int_equal(find_file(0, "another", &info), 1);
    assert_int_equal(access(info.file_path, F_OK), 0); /* so that all directories are there */
    expect_missing("away");
    assert_int_equal(nftw(home, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    assert_int_equal(rename(away, home), 0);
    expect(0, "away", 12);
}

static void tenants_do_not_meet(void **state) {
    struct mc_replica_info mine, theirs;
    upsert(0, "same", 3);
    upsert(1, "same", 4);
    upsert(1, "other/key", 5);
    upsert(1, "other_key", 6); /* the name of a file has no / */
    assert_int_equal(find_file(0, "same", &mine), 1);
    assert_int_equal(find_file(1, "same", &theirs), 1);
    assert_string_not_equal(mine.file_path, theirs.file_path);
    const char *same = "same"; /* this request names no tenant, and must take nobody else's */
    bool cleared = true;
    assert_ok(mc_store_clear_replicas(stores[1], &same, 1, NULL, &cleared));
    assert_false(cleared);
    assert_int_equal(find_file(0, "same", &mine), 1);
    assert_int_equal(find_file(1, "same", &theirs), 1);
    live_end(&node, SIGKILL); /* and with it all memory */
    expect(0, "same", 3);
    expect(1, "same", 4);
    expect(1, "other/key", 5);
    expect(1, "other_key", 6);
}

static void a_new_master_has_the_old_ones_files_deleted(void **state) {
    struct mc_replica_info info;
    assert_true(count_files() > 0);
    char keep[64];
    snprintf(keep, sizeof(keep), "%s/c/a", folder); /* upstream's: of nobody that we know */
    assert_int_equal(mkdir(keep, 0755), 0);
    strcat(keep, "/b");
    assert_int_equal(mkdir(keep, 0755), 0);
    strcat(keep, "/key");
    write_file(keep);
    char outside[64], name[64]; /* what only has the name of a master's directory */
    snprintf(outside, sizeof(outside), "%s/outside", folder);
    snprintf(name, sizeof(name), "%s/c/0123456789abcdef", folder);
    assert_int_equal(mkdir(outside, 0755), 0);
    assert_int_equal(symlink(outside, name), 0);
    strcat(outside, "/file");
    write_file(outside);
    snprintf(name, sizeof(name), "%s/c/fedcba9876543210", folder);
    write_file(name);
    stop_master_and_node();
    start_master_and_node();
    upsert(0, "k", 7);
    for (unsigned i = 0; count_files() != 4; i++) {
        assert_true(i < 6000);
        usleep(10000);
    }
    assert_int_equal(access(keep, F_OK), 0);
    assert_int_equal(access(outside, F_OK), 0);
    assert_int_equal(find_file(0, "k", &info), 1);
    drop_memory(0, "k");
    expect(0, "k", 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_upsert_is_read_from_its_own_file),
        cmocka_unit_test(a_file_that_was_cut_is_told_to_the_master),
        cmocka_unit_test(a_file_that_is_missing_is_told_to_nobody),
        cmocka_unit_test(tenants_do_not_meet),
        cmocka_unit_test(a_new_master_has_the_old_ones_files_deleted),
    };
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
