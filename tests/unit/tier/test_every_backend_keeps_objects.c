/* Every backend of the tier keeps the same promises: each byte comes back, after a restart too; a
 * crash, a flipped bit, a failing write or a full tier costs no more than it must. */
#include "support/support.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tier/tier.h"

/* MC_TEST_THREADS */

static char dir[64];
static char lost_keys[4096];
static const char *backend; /* the one that is looked at */

static int setup(void **state) {
    backend = *state;
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
    capacity = capacity != 0 ? capacity : 256 << 20;
    struct mc_tier_config config = {.path = dir,
                                    .backend = backend,
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
        items[i] = (struct mc_tier_item){.key = mc_str_from(keys[i]),
                                         .value = value,
                                         .size = size,
                                         .tag = (uint64_t)(first + i) << 40 | salt};
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
    struct mc_tier_stats stats;
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.objects, 0);
    assert_int_equal(stats.used_bytes, 0);
    assert_ok(put(tier, 0, 10, 0));
    assert_ok(mc_tier_clear(tier));
    assert_int_equal(get(tier, 3, 0), MC_OBJECT_NOT_FOUND);
    mc_tier_close(tier);
}

static bool check_tag(void *ctx, const struct mc_tier_found *found) {
    uint64_t number = (uint64_t)(found->key.ptr[3] - '0'); /* "key0" to "key5" */
    assert_int_equal(found->tag, number << 40 | (number < 3 ? 7 : 0));
    ++*(unsigned *)ctx;
    return true;
}

static void test_what_the_caller_knows_an_object_by_is_kept_with_it(void **state) {
    unsigned seen = 0;
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    assert_ok(put(tier, 0, 6, 0));
    assert_ok(put(tier, 0, 3, 7));
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_NONE, 0, false);
    mc_tier_scan(tier, check_tag, &seen);
    assert_int_equal(seen, 6);
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
    for (unsigned n = 0; n < 6; n++) {
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

static size_t wanted_len;
static char wanted[64];
static unsigned flipped;

/* One bit of the file, a little behind where the wanted bytes are. */
static int flip_in(const char *path, const struct stat *info, int type, struct FTW *at) {
    if (type != FTW_F || info->st_size == 0) {
        return 0;
    }
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    char *bytes = mmap(NULL, (size_t)info->st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(bytes != MAP_FAILED);
    char *found = memmem(bytes, (size_t)info->st_size, wanted, wanted_len);
    if (found != NULL) {
        found[20] ^= 4;
        flipped++;
    }
    assert_int_equal(munmap(bytes, (size_t)info->st_size), 0);
    close(fd);
    return 0;
}

static void flip_a_bit(unsigned i) {
    wanted_len = sizeof(wanted);
    flipped = 0;
    mc_test_fill(wanted, wanted_len, i);
    assert_int_equal(nftw(dir, flip_in, 8, FTW_PHYS), 0);
    assert_int_equal(flipped, 1);
}

static void test_a_flipped_bit_is_an_error_and_not_data(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0, true);
    struct mc_tier_stats stats;
    assert_ok(put(tier, 0, 3, 0));
    flip_a_bit(1);
    assert_int_equal(get(tier, 1, 0), MC_CHECKSUM_MISMATCH);
    assert_string_equal(lost_keys, "key1 ");
    assert_int_equal(get(tier, 1, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 0, 0));
    assert_ok(get(tier, 2, 0));
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.broken_objects, 1);
    mc_tier_mark(tier, 77); /* nothing is left that the next start could find */
    assert_int_equal(mc_tier_marked(tier), 77);
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_NONE, 0, true);
    assert_int_equal(mc_tier_marked(tier), 77);
    assert_int_equal(get(tier, 1, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 2, 0));
    mc_tier_close(tier);
}

/* Sees what a read would, without being one. */
static void test_the_scrubber_finds_a_flipped_bit(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_LRU, 0, true);
    struct mc_tier_stats stats;
    assert_ok(put(tier, 0, 4, 0));
    mc_tier_scrub(tier);
    assert_string_equal(lost_keys, "");
    flip_a_bit(2);
    mc_tier_scrub(tier);
    assert_string_equal(lost_keys, "key2 ");
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.broken_objects, 1);
    assert_int_equal(stats.read_objects, 0);
    assert_int_equal(get(tier, 2, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 3, 0));
    mc_tier_close(tier);
}

static void test_one_round_of_the_scrubber_sees_every_object(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_LRU, 0, true);
    struct mc_tier_stats stats;
    for (unsigned group = 0; group < 4; group++) {
        assert_ok(put(tier, 10 * group, 10, 0));
    }
    for (unsigned i = 3; i < 40; i += 5) {
        flip_a_bit(i);
    }
    mc_tier_scrub(tier);
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.broken_objects, 8);
    assert_int_equal(stats.objects, 32);
    mc_tier_close(tier);
}

static void test_a_scrubbing_thread_goes_round(void **state) {
    struct mc_tier_config config = {.path = dir,
                                    .backend = backend,
                                    .owner = "test",
                                    .capacity_bytes = 64 << 20,
                                    .scrub_bytes_per_second = 1 << 30};
    struct mc_tier *tier;
    struct mc_tier_stats stats;
    assert_ok(mc_tier_open(&config, &tier));
    for (unsigned round = 0; round < 3; round++) { /* beside it, life goes on */
        assert_ok(put(tier, 0, 4, round));
    }
    uint64_t begin;
    mc_tier_stats(tier, &stats);
    begin = stats.scrub_rounds;
    while (stats.scrub_rounds < begin + 2) {
        assert_ok(get(tier, 1, 2));
        mc_tier_stats(tier, &stats);
    }
    assert_true(stats.scrubbed_objects >= 4 && stats.scrubbed_bytes > 0);
    assert_int_equal(stats.broken_objects, 0);
    mc_tier_close(tier);
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
static void test_the_own_policy_makes_room(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_OWN, 14 << 20, false);
    struct mc_tier_stats stats;
    for (unsigned i = 4; i < 64; i += 5) { /* of 3 MiB each: four fit */
        assert_ok(put(tier, i, 1, 0));
        assert_ok(get(tier, i, 0));
    }
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.objects, 4);
    assert_int_equal(stats.evicted_objects, 8);
    assert_true(stats.used_bytes <= 14 << 20);
    mc_tier_close(tier);
}

static void test_without_eviction_full_is_an_error(void **state) {
    evict(MC_TIER_EVICT_NONE, "key4", NULL);
}

static void test_a_write_that_fails_leaves_nothing_behind(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_FIFO, 0, false);
    struct mc_tier_stats stats;
    struct rlimit old, small = {MC_TIER_BLOCK, RLIM_INFINITY};
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
    assert_ok(put(tier, 4, 1, 0));
    assert_ok(get(tier, 4, 0));
    mc_tier_close(tier);
}

/* Whoever was told that it was not written is never told by the next start that it is there. The
 * steps of a put fail for want of a descriptor, one after the other. */
static void test_what_could_not_be_written_is_not_found_by_a_start(void **state) {
    unsigned failures = 0;
    for (unsigned more = 0; more < 4; more++) {
        struct mc_tier *tier = open_with(MC_TIER_EVICT_FIFO, 0, false);
        struct rlimit old, small;
        assert_ok(put(tier, 50, 4, 0)); /* what is opened once is open */
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
        int next = dup(STDOUT_FILENO);
        assert_int_equal(close(next), 0);
        small = (struct rlimit){(rlim_t)next + more, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
        enum mc_status status = put(tier, more, 1, 0);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        mc_tier_close(tier);
        tier = open_with(MC_TIER_EVICT_FIFO, 0, false);
        assert_int_equal(get(tier, more, 0), status == MC_OK ? MC_OK : MC_OBJECT_NOT_FOUND);
        mc_tier_close(tier);
        failures += status != MC_OK;
    }
    assert_in_range(failures, 1, 3);
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
    for (unsigned round = 0; round < 6; round++) {
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
    static const char *const backends[] = {"bucket_storage_backend", "file_per_key_storage_backend",
                                           "offset_allocator_storage_backend"};
#define TEST(test)                                                                                 \
    { #test, test, setup, teardown, (void *)(uintptr_t)backends[i] }
    int failed = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(backends); i++) {
        const struct CMUnitTest tests[] = {
            TEST(test_every_byte_comes_back),
            TEST(test_every_byte_comes_back_through_the_page_cache),
            TEST(test_a_removed_key_stays_away),
            TEST(test_what_the_caller_knows_an_object_by_is_kept_with_it),
            TEST(test_a_killed_writer_loses_only_what_was_not_acknowledged),
            TEST(test_a_flipped_bit_is_an_error_and_not_data),
            TEST(test_the_scrubber_finds_a_flipped_bit),
            TEST(test_one_round_of_the_scrubber_sees_every_object),
            TEST(test_a_scrubbing_thread_goes_round),
            TEST(test_fifo_evicts_the_first),
            TEST(test_lru_keeps_what_was_read),
            TEST(test_the_own_policy_makes_room),
            TEST(test_without_eviction_full_is_an_error),
            TEST(test_a_write_that_fails_leaves_nothing_behind),
            TEST(test_what_could_not_be_written_is_not_found_by_a_start),
            TEST(test_readers_and_eviction_get_along),
        };
        printf("---- %s\n", backends[i]);
        failed += cmocka_run_group_tests_name(backends[i], tests, NULL, NULL);
    }
    return failed;
}
