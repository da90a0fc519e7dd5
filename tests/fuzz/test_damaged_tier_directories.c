/* Directories of the SSD tier in which bytes changed, files were cut or have gone: a start opens
 * what is whole, and each read is the object that was put, or an error. Every file that a backend
 * keeps is damaged, its notes about itself too. */
#include "support/support.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tier/tier.h"

#define ROUNDS    20
#define KEYS      12
#define FILES_MAX 64

static char dir[64];
static char files[FILES_MAX][256];
static size_t file_count;

static int setup(void **state) {
    snprintf(dir, sizeof(dir), "./mc_damage_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

static enum mc_status open_tier(const char *backend, struct mc_tier **tier) {
    struct mc_tier_config config = {
        .path = dir, .backend = backend, .owner = "test", .capacity_bytes = 16 << 20};
    return mc_tier_open(&config, tier);
}

static size_t size_of(unsigned i) {
    return 1 + i * 1777;
}

static void put_all(struct mc_tier *tier) {
    for (unsigned i = 0; i < KEYS; i++) {
        char key[16];
        char *value = malloc(size_of(i));
        snprintf(key, sizeof(key), "key%u", i);
        mc_test_fill(value, size_of(i), i);
        struct mc_tier_item item = {
            .key = mc_str_from(key), .value = value, .size = size_of(i), .tag = i};
        assert_ok(mc_tier_put(tier, &item, 1));
        free(value);
    }
    mc_tier_mark(tier, 7);
}

static unsigned read_all(struct mc_tier *tier) {
    unsigned whole = 0;
    for (unsigned i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "key%u", i);
        struct mc_tier_read read = {.key = mc_str_from(key), .size = size_of(i)};
        read.room = aligned_alloc(MC_TIER_BLOCK, mc_tier_read_room(read.key.len, read.size));
        if (mc_tier_read(tier, &read, 1) == MC_OK) {
            mc_test_verify(read.value, size_of(i), i);
            whole++;
        }
        free(read.room);
    }
    return whole;
}

static int note_file(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    if (flag == FTW_F && file_count < FILES_MAX) {
        snprintf(files[file_count++], sizeof(files[0]), "%s", path);
    }
    return 0;
}

static void damage(struct mc_rng *rng) {
    struct stat info;
    file_count = 0;
    assert_int_equal(nftw(dir, note_file, 8, FTW_PHYS), 0);
    assert_true(file_count > 1);
    const char *path = files[mc_rng_below(rng, file_count)];
    assert_int_equal(stat(path, &info), 0);
    uint64_t size = (uint64_t)info.st_size, what = mc_rng_below(rng, 8);
    if (what == 0) {
        assert_int_equal(unlink(path), 0);
    } else if (what == 1 && size > 0) {
        assert_int_equal(truncate(path, (off_t)mc_rng_below(rng, size)), 0);
    } else if (size > 0) {
        struct timespec times[2] = {info.st_atim, info.st_mtim}; /* as when a disk does it */
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        for (unsigned i = 0; i < 4; i++) {
            char byte = (char)mc_rng_next(rng);
            uint64_t end = mc_rng_below(rng, 2) == 0 ? size : mc_min_u64(size, 4096);
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)mc_rng_below(rng, end)), 1);
        }
        assert_int_equal(futimens(fd, times), 0);
        close(fd);
    }
}

static void test_what_is_left_is_whole(void **state) {
    static const char *const backends[] = {"bucket_storage_backend", "file_per_key_storage_backend",
                                           "offset_allocator_storage_backend"};
    struct mc_rng rng;
    mc_rng_seed(&rng, 5);
    for (size_t b = 0; b < MC_ARRAY_LEN(backends); b++) {
        unsigned opened = 0, whole = 0;
        for (unsigned round = 0; round < ROUNDS; round++) {
            struct mc_tier *tier;
            setup(state);
            assert_ok(open_tier(backends[b], &tier));
            put_all(tier);
            mc_tier_close(tier);
            for (uint64_t n = mc_rng_below(&rng, 3); n > 0; n--) {
                damage(&rng);
            }
            if (open_tier(backends[b], &tier) == MC_OK) {
                opened++;
                whole += read_all(tier);
                put_all(tier); /* goes on as if nothing had been */
                assert_int_equal(read_all(tier), KEYS);
                mc_tier_close(tier);
            }
            assert_int_equal(teardown(state), 0);
        }
        assert_true(opened > ROUNDS / 2);
        assert_in_range(whole, ROUNDS * KEYS / 4, ROUNDS * KEYS - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_left_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
