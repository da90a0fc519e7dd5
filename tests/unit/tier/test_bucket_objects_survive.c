/* The bucket backend gives every byte back, after a restart too, and a crash, a flipped bit, a full
 * disk or a second owner costs no more than it must. */
#include "support/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tier/tier.h"

/* MC_TEST_THREADS */

static char dir[64];
static char lost_keys[4096];

static int setup(void **state) {
    snprintf(dir, sizeof(dir), "./mc_tier_XXXXXX"); /* not /tmp: that may have no O_DIRECT */
    assert_non_null(mkdtemp(dir));
    lost_keys[0] = '\0';
    return 0;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

static void note_lost(void *ctx, struct mc_str key) {
    size_t len = strlen(lost_keys);
    if (len + key.len + 2 < sizeof(lost_keys)) {
        snprintf(lost_keys + len, sizeof(lost_keys) - len, "%.*s ", (int)key.len, key.ptr);
    }
}

static struct mc_tier *open_with(enum mc_tier_eviction eviction, uint64_t capacity, bool buffered) {
    struct mc_tier_config config = {.path = dir,
                                    .owner = "test",
                                    .eviction = eviction,
                                    .capacity_bytes = capacity,
                                    .buffered = buffered,
                                    .lost = note_lost};
    struct mc_tier *tier;
    assert_ok(mc_tier_open(&config, &tier));
    return tier;
}

static size_t size_of(unsigned i) {
    return i % 5 == 4 ? 3u << 20 : 1 + (i * 7919u) % 200000;
}

static enum mc_status put(struct mc_tier *tier, unsigned first, unsigned count, uint64_t salt) {
    struct mc_tier_item items[64];
    char keys[64][32];
    for (unsigned i = 0; i < count; i++) {
        size_t size = size_of(first + i);
        char *value = malloc(size);
        mc_test_fill(value, size, first + i + salt);
        snprintf(keys[i], sizeof(keys[i]), "key%u", first + i);
        items[i] = (struct mc_tier_item){.key = mc_str_from(keys[i]), .value = value, .size = size};
    }
    enum mc_status status = mc_tier_put(tier, items, count);
    for (unsigned i = 0; i < count; i++) {
        free((void *)(uintptr_t)items[i].value);
    }
    return status;
}

static enum mc_status get(struct mc_tier *tier, unsigned i, uint64_t salt) {
    char key[32];
    snprintf(key, sizeof(key), "key%u", i);
    size_t size = size_of(i);
    struct mc_tier_read read = {.key = mc_str_from(key), .size = size};
    size_t room = mc_tier_read_room(read.key.len, size);
    read.room = aligned_alloc(MC_TIER_BLOCK, room);
    enum mc_status status = mc_tier_read(tier, &read, 1);
    if (status == MC_OK) {
        mc_test_verify(read.value, size, i + salt);
    }
    free(read.room);
    return status;
}

/* The path of the i-th file with that suffix, by name; "" when there is none. */
static const char *file_at(const char *suffix, unsigned i) {
    static char path[512];
    struct dirent **names;
    int count = scandir(dir, &names, NULL, alphasort);
    path[0] = '\0';
    for (int n = 0; n < count; n++) {
        const char *dot = strrchr(names[n]->d_name, '.');
        if (dot != NULL && strcmp(dot, suffix) == 0 && path[0] == '\0' && i-- == 0) {
            snprintf(path, sizeof(path), "%s/%s", dir, names[n]->d_name);
        }
        free(names[n]);
    }
    free(names);
    return path;
}

static void round_trip(bool buffered) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, buffered);
    struct mc_tier_stats stats;
    for (unsigned first = 0; first < 40; first += 10) {
        assert_ok(put(tier, first, 10, 0));
    }
    for (unsigned i = 0; i < 40; i++) {
        assert_ok(get(tier, i, 0));
    }
    assert_int_equal(get(tier, 40, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(put(tier, 5, 10, 1000)); /* replaced, from two buckets */
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.objects, 40);
    assert_int_equal(stats.written_objects, 50);
    assert_int_equal(stats.read_objects, 40);
    assert_true(stats.used_bytes > 0 && stats.used_bytes < stats.capacity_bytes);
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_NONE, 0, !buffered);
    for (unsigned i = 0; i < 40; i++) {
        assert_ok(get(tier, i, i >= 5 && i < 15 ? 1000 : 0));
    }
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.objects, 40);
    mc_tier_close(tier);
}

static void test_every_byte_comes_back(void **state) {
    round_trip(false);
}
static void test_every_byte_comes_back_through_the_page_cache(void **state) {
    round_trip(true);
}

static void test_a_removed_key_stays_away(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    assert_ok(put(tier, 0, 3, 0));
    assert_ok(mc_tier_remove(tier, MC_STR("key1")));
    assert_int_equal(mc_tier_remove(tier, MC_STR("key1")), MC_OBJECT_NOT_FOUND);
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    assert_ok(get(tier, 0, 0));
    assert_int_equal(get(tier, 1, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 2, 0));
    assert_ok(mc_tier_remove(tier, MC_STR("key0")));
    assert_ok(mc_tier_remove(tier, MC_STR("key2")));
    assert_string_equal(file_at(".bucket", 0), ""); /* nothing left: the files go too */
    assert_string_equal(file_at(".meta", 0), "");
    mc_tier_close(tier);
}

/* The newer bucket is lost: what it replaced, or had taken out, does not come back for that. */
static void test_what_was_replaced_is_not_found_again(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    assert_ok(put(tier, 0, 3, 0));
    assert_ok(put(tier, 1, 1, 1000));
    mc_tier_close(tier);
    int fd = open(file_at(".meta", 1), O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, "\377", 1), 1);
    close(fd);
    tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    assert_ok(get(tier, 0, 0));
    assert_int_equal(get(tier, 1, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 2, 0));
    assert_string_equal(file_at(".bucket", 1), ""); /* what cannot be understood is gone for good */
    mc_tier_close(tier);
}

/* A crash leaves: data without .meta, half a .meta under a temporary name, a file that is shorter
 * than its .meta says. */
static void test_what_a_crash_leaves_is_dropped(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    char path[600];
    for (unsigned first = 0; first < 30; first += 10) {
        assert_ok(put(tier, first, 10, 0));
    }
    mc_tier_close(tier);
    assert_int_equal(unlink(file_at(".meta", 0)), 0);
    snprintf(path, sizeof(path), "%s.tmp.1.2", file_at(".meta", 0));
    FILE *left_over = fopen(path, "w");
    fputs("half", left_over);
    fclose(left_over);
    /* key24 and key29 are 3 MiB: cut behind key24 */
    size_t whole = 0;
    for (unsigned i = 20; i < 25; i++) {
        whole += size_of(i) + strlen("key20");
    }
    assert_int_equal(truncate(file_at(".bucket", 2), (off_t)whole), 0);
    tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    for (unsigned i = 0; i < 30; i++) {
        bool there = i >= 10 && i < 25;
        assert_int_equal(get(tier, i, 0), there ? MC_OK : MC_OBJECT_NOT_FOUND);
    }
    assert_int_not_equal(access(path, F_OK), 0);
    assert_string_equal(file_at(".bucket", 2), ""); /* the orphan is gone */
    assert_ok(put(tier, 0, 10, 0));                 /* and life goes on */
    assert_ok(get(tier, 3, 0));
    mc_tier_close(tier);
}

static void test_a_killed_writer_loses_only_what_was_not_acknowledged(void **state) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct mc_tier *mine = open_with(MC_TIER_EVICT_NONE, 0, false);
        for (unsigned first = 0;; first += 4) {
            bool good = put(mine, first, 4, 0) == MC_OK;
            if (!good || write(pipes[1], &first, sizeof(first)) != sizeof(first)) {
                _exit(1);
            }
        }
    }
    unsigned acknowledged = 0;
    for (unsigned n = 0; n < 20; n++) {
        assert_int_equal(read(pipes[0], &acknowledged, sizeof(acknowledged)), sizeof(acknowledged));
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, false); /* its lock died with it */
    for (unsigned i = 0; i < acknowledged + 4; i++) {
        assert_ok(get(tier, i, 0));
    }
    mc_tier_close(tier);
}

static void test_a_flipped_bit_is_an_error_and_not_data(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, true);
    struct mc_tier_stats stats;
    assert_ok(put(tier, 0, 3, 0));
    int fd = open(file_at(".bucket", 0), O_RDWR);
    char byte;
    off_t at = (off_t)(2 * strlen("key0") + size_of(0) + 100); /* in key1's value */
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    assert_int_equal(get(tier, 1, 0), MC_CHECKSUM_MISMATCH);
    assert_string_equal(lost_keys, "key1 ");
    assert_int_equal(get(tier, 1, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 0, 0));
    assert_ok(get(tier, 2, 0));
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.broken_objects, 1);
    mc_tier_close(tier);
}

static void test_one_process_owns_the_directory(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    struct mc_tier *second;
    struct mc_tier_config config = {.path = dir, .owner = "second"};
    assert_int_equal(mc_tier_open(&config, &second), MC_UNAVAILABLE_IN_CURRENT_STATUS);
    mc_tier_close(tier);
    assert_ok(mc_tier_open(&config, &second));
    mc_tier_close(second);
    config.path = "/no/such/directory";
    assert_int_equal(mc_tier_open(&config, &second), MC_FILE_NOT_FOUND);
    config.path = dir;
    config.backend = "no_such_backend";
    assert_int_equal(mc_tier_open(&config, &second), MC_INVALID_PARAMS);
}

static void evict(enum mc_tier_eviction eviction, const char *survivor, const char *victim) {
    const uint64_t mib = 1 << 20;
    struct mc_tier *tier = open_with(eviction, 14 * mib, false);
    struct mc_tier_stats stats;
    assert_ok(put(tier, 4, 1, 0)); /* of 3 MiB each: four fit */
    assert_ok(put(tier, 9, 1, 0));
    assert_ok(put(tier, 14, 1, 0));
    assert_ok(put(tier, 19, 1, 0));
    assert_ok(get(tier, 4, 0));
    enum mc_status status = put(tier, 24, 1, 0);
    assert_int_equal(status, eviction == MC_TIER_EVICT_NONE ? MC_FILE_WRITE_FAIL : MC_OK);
    uint64_t size;
    mc_tier_stats(tier, &stats);
    assert_true(stats.used_bytes <= 14 * mib);
    assert_true(mc_tier_find(tier, mc_str_from(survivor), &size));
    if (victim != NULL) {
        char text[32];
        snprintf(text, sizeof(text), "%s ", victim);
        assert_string_equal(lost_keys, text);
        assert_false(mc_tier_find(tier, mc_str_from(victim), &size));
        assert_int_equal(stats.evicted_objects, 1);
        assert_ok(get(tier, 24, 0));
    }
    mc_tier_close(tier);
}

static void test_fifo_evicts_the_first(void **state) {
    evict(MC_TIER_EVICT_FIFO, "key9", "key4");
}
static void test_lru_keeps_what_was_read(void **state) {
    evict(MC_TIER_EVICT_LRU, "key4", "key9");
}
static void test_without_eviction_full_is_an_error(void **state) {
    evict(MC_TIER_EVICT_NONE, "key4", NULL);
}

static void test_a_write_that_fails_leaves_nothing_behind(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_FIFO, 0, false);
    struct mc_tier_stats stats;
    struct rlimit old, small = {1 << 20, RLIM_INFINITY};
    assert_ok(put(tier, 0, 3, 0));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum mc_status status = put(tier, 4, 1, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, MC_FILE_WRITE_FAIL);
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.failed_writes, 1);
    assert_int_equal(stats.objects, 3);
    assert_string_equal(file_at(".bucket", 1), "");
    assert_ok(put(tier, 4, 1, 0));
    assert_ok(get(tier, 4, 0));
    mc_tier_close(tier);
}

/* What upstream 0.3.13 wrote for key0 (1000 bytes), key1 and key2 under "default". */
static void test_a_directory_of_upstreams_opens(void **state) {
    static const unsigned char meta[] =
        "\x08\xf4\x8c\x01\x12\x0c"
        "default\0key0\x12\x0c"
        "default\0key1\x12\x0c"
        "default\0key2\x1a\x05\x10\x0c\x18\xe8\x07\x1a\x08\x08\xf4\x07\x10\x0c\x18\xf0\x2e\x1a\x08"
        "\x08\xf0\x36\x10\x0c\x18\xf8\x55";
    static const size_t sizes[] = {1000, 6000, 11000};
    char path[128];
    snprintf(path, sizeof(path), "%s/7356504641537.meta", dir);
    FILE *file = fopen(path, "w");
    fwrite(meta, 1, sizeof(meta) - 1, file);
    fclose(file);
    snprintf(path, sizeof(path), "%s/7356504641537.bucket", dir);
    file = fopen(path, "w");
    for (unsigned i = 0; i < 3; i++) {
        fprintf(file, "default%ckey%u", 0, i);
        for (unsigned j = 0; j < sizes[i]; j++) {
            fputc((int)((i * 7 + j) % 251), file);
        }
    }
    fclose(file);
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    for (unsigned i = 0; i < 3; i++) {
        char key[12] = "default";
        memcpy(key + 8, "key", 3);
        key[11] = (char)('0' + i);
        struct mc_tier_read read = {.key = {key, 12}, .size = sizes[i]};
        size_t room = mc_tier_read_room(12, sizes[i]);
        read.room = aligned_alloc(MC_TIER_BLOCK, room);
        assert_ok(mc_tier_read(tier, &read, 1));
        const unsigned char *bytes = read.value;
        for (unsigned j = 0; j < sizes[i]; j++) {
            assert_int_equal(bytes[j], (i * 7 + j) % 251);
        }
        free(read.room);
    }
    mc_tier_close(tier);
}

struct reader {
    struct mc_tier *tier;
    _Atomic bool *stop;
    unsigned good;
};

static void *read_on(void *arg) {
    struct reader *r = arg;
    for (unsigned i = 0; !__atomic_load_n(r->stop, __ATOMIC_ACQUIRE); i++) {
        enum mc_status status = get(r->tier, i % 60, 0);
        if (status != MC_OK && status != MC_OBJECT_NOT_FOUND) {
            return r;
        }
        r->good += status == MC_OK;
    }
    return NULL;
}

static void test_readers_and_eviction_get_along(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_LRU, 24 << 20, false);
    _Atomic bool stop = false;
    struct reader readers[3];
    pthread_t threads[3];
    assert_ok(put(tier, 0, 10, 0));
    for (unsigned i = 0; i < 3; i++) {
        readers[i] = (struct reader){tier, &stop, 0};
        pthread_create(&threads[i], NULL, read_on, &readers[i]);
    }
    for (unsigned round = 0; round < 12; round++) {
        assert_ok(put(tier, round % 6 * 10, 10, 0));
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < 3; i++) {
        void *failure;
        pthread_join(threads[i], &failure);
        assert_null(failure);
    }
    mc_tier_close(tier);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_byte_comes_back),
        TEST(test_every_byte_comes_back_through_the_page_cache),
        TEST(test_a_removed_key_stays_away),
        TEST(test_what_was_replaced_is_not_found_again),
        TEST(test_what_a_crash_leaves_is_dropped),
        TEST(test_a_killed_writer_loses_only_what_was_not_acknowledged),
        TEST(test_a_flipped_bit_is_an_error_and_not_data),
        TEST(test_one_process_owns_the_directory),
        TEST(test_fifo_evicts_the_first),
        TEST(test_lru_keeps_what_was_read),
        TEST(test_without_eviction_full_is_an_error),
        TEST(test_a_write_that_fails_leaves_nothing_behind),
        TEST(test_a_directory_of_upstreams_opens),
        TEST(test_readers_and_eviction_get_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
