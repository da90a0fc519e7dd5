/* A tier counts what its files take on the disk, not their lengths; and a start looks at what lies
 * there: a file that somebody else has rewritten is his, and a record that is younger than the
 * allocator's state is what a crash left. */
#include "support/support.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tier/tier.h"

#define SIZE    5000
#define PER_KEY "file_per_key_storage_backend"
#define OFFSET  "offset_allocator_storage_backend"

static char dir[64];

static int setup(void **state) {
    snprintf(dir, sizeof(dir), "./mc_files_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

static struct mc_tier *open_tier(const char *backend) {
    struct mc_tier_config config = {
        .path = dir, .backend = backend, .owner = "test", .capacity_bytes = 64 << 20};
    struct mc_tier *tier;
    assert_ok(mc_tier_open(&config, &tier));
    return tier;
}

static void put(struct mc_tier *tier, const char *key, size_t size, uint64_t seed) {
    char *value = malloc(size);
    mc_test_fill(value, size, seed);
    struct mc_tier_item item = {.key = mc_str_from(key), .value = value, .size = size};
    assert_ok(mc_tier_put(tier, &item, 1));
    free(value);
}

/* The value is in `out` when it could be read. */
static enum mc_status get(struct mc_tier *tier, const char *key, char *out) {
    struct mc_tier_read read = {.key = mc_str_from(key), .size = SIZE};
    read.room = aligned_alloc(MC_TIER_BLOCK, mc_tier_read_room(read.key.len, SIZE));
    enum mc_status status = mc_tier_read(tier, &read, 1);
    if (status == MC_OK) {
        memcpy(out, read.value, SIZE);
    }
    free(read.room);
    return status;
}

static uint64_t taken;
static int add_blocks(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    if (flag == FTW_F && strncmp(path + walk->base, ".mooncake", 9) != 0) {
        taken += (uint64_t)stat->st_blocks * 512;
    }
    return 0;
}

static void test_what_is_used_is_what_the_disk_gave(void **state) {
    static const char *const backends[] = {"bucket_storage_backend", PER_KEY};
    for (size_t b = 0; b < MC_ARRAY_LEN(backends); b++) {
        struct mc_tier_stats stats;
        struct mc_tier *tier = open_tier(backends[b]);
        for (unsigned i = 0; i < 20; i++) {
            char key[16];
            snprintf(key, sizeof(key), "key%u", i);
            put(tier, key, 1 + i * 333, i);
        }
        for (unsigned starts = 0; starts < 2; starts++) {
            taken = 0;
            assert_int_equal(nftw(dir, add_blocks, 8, FTW_PHYS), 0);
            mc_tier_stats(tier, &stats);
            assert_true(taken > 0);
            assert_int_equal(stats.used_bytes, taken);
            mc_tier_close(tier);
            tier = open_tier(backends[b]);
        }
        assert_ok(mc_tier_clear(tier));
        mc_tier_close(tier);
    }
}

static int change_a_byte(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    if (flag == FTW_F && strcmp(path + walk->base, "key") == 0) {
        const struct timespec then[2] = {{1000, 1}, {1000, 1}};
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, "x", 1, stat->st_size - 1), 1);
        assert_int_equal(futimens(fd, then), 0);
        close(fd);
    }
    return 0;
}

/* As upstream's node would, which knows nothing of the sum beside the file. */
static void test_a_file_that_somebody_rewrote_is_his(void **state) {
    char want[SIZE], got[SIZE] = "";
    struct mc_tier *tier = open_tier(PER_KEY);
    put(tier, "key", SIZE, 1);
    mc_tier_close(tier);
    assert_int_equal(nftw(dir, change_a_byte, 8, FTW_PHYS), 0);
    mc_test_fill(want, SIZE, 1);
    want[SIZE - 1] = 'x';
    tier = open_tier(PER_KEY);
    assert_ok(get(tier, "key", got));
    assert_memory_equal(got, want, SIZE);
    mc_tier_close(tier);
}

MC_PRINTF(1, 0) static void run(const char *format) {
    char command[256];
    snprintf(command, sizeof(command), format, dir, dir);
    assert_int_equal(system(command), 0);
}

/* The place was given back and taken again after the state that a crash brings back. */
static void test_a_record_younger_than_the_state_is_dropped(void **state) {
    char got[SIZE];
    struct mc_tier *tier = open_tier(OFFSET);
    put(tier, "old", SIZE, 1);
    put(tier, "stays", SIZE, 2);
    run("cp %s/kv_cache.meta %s/saved");
    assert_ok(mc_tier_remove(tier, MC_STR("old")));
    put(tier, "new", SIZE, 3); /* where `old` was */
    mc_tier_close(tier);
    run("mv %s/saved %s/kv_cache.meta");
    tier = open_tier(OFFSET);
    assert_int_equal(get(tier, "old", got), MC_OBJECT_NOT_FOUND);
    assert_int_equal(get(tier, "new", got), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, "stays", got));
    mc_test_verify(got, SIZE, 2);
    mc_tier_close(tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_used_is_what_the_disk_gave, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_somebody_rewrote_is_his, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_record_younger_than_the_state_is_dropped, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
