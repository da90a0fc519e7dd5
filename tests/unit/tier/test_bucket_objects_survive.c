/* What is the bucket backend's own: its files go with their objects, what a crash leaves of them is
 * dropped, they have one owner, and upstream's are read. (What it promises as every backend does:
 * test_every_backend_keeps_objects.c.) */
#include "support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tier/tier.h"

static char dir[64];

static int setup(void **state) {
    snprintf(dir, sizeof(dir), "./mc_tier_XXXXXX"); /* not /tmp: that may have no O_DIRECT */
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

static struct mc_tier *open_tier(void) {
    struct mc_tier_config config = {.path = dir, .owner = "test"};
    struct mc_tier *tier;
    assert_ok(mc_tier_open(&config, &tier));
    return tier;
}

static size_t size_of(unsigned i) {
    return i % 5 == 4 ? 3u << 20 : 1 + (i * 7919u) % 200000;
}

static enum mc_status put(struct mc_tier *tier, unsigned first, unsigned count) {
    struct mc_tier_item items[64];
    char keys[64][32];
    for (unsigned i = 0; i < count; i++) {
        size_t size = size_of(first + i);
        char *value = malloc(size);
        mc_test_fill(value, size, first + i);
        snprintf(keys[i], sizeof(keys[i]), "key%u", first + i);
        items[i] = (struct mc_tier_item){.key = mc_str_from(keys[i]), .value = value, .size = size};
    }
    enum mc_status status = mc_tier_put(tier, items, count);
    for (unsigned i = 0; i < count; i++) {
        free((void *)(uintptr_t)items[i].value);
    }
    return status;
}

static enum mc_status get(struct mc_tier *tier, unsigned i) {
    char key[32];
    snprintf(key, sizeof(key), "key%u", i);
    size_t size = size_of(i);
    struct mc_tier_read read = {.key = mc_str_from(key), .size = size};
    size_t room = mc_tier_read_room(read.key.len, size);
    read.room = aligned_alloc(MC_TIER_BLOCK, room);
    enum mc_status status = mc_tier_read(tier, &read, 1);
    if (status == MC_OK) {
        mc_test_verify(read.value, size, i);
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

static void test_a_removed_key_stays_away(void **state) {
    struct mc_tier *tier = open_tier();
    assert_ok(put(tier, 0, 3));
    assert_ok(mc_tier_remove(tier, MC_STR("key1")));
    assert_int_equal(mc_tier_remove(tier, MC_STR("key1")), MC_OBJECT_NOT_FOUND);
    mc_tier_close(tier);
    tier = open_tier();
    assert_ok(get(tier, 0));
    assert_int_equal(get(tier, 1), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 2));
    assert_ok(mc_tier_remove(tier, MC_STR("key0")));
    assert_ok(mc_tier_remove(tier, MC_STR("key2")));
    assert_string_equal(file_at(".bucket", 0), ""); /* nothing left: the files go too */
    assert_string_equal(file_at(".meta", 0), "");
    mc_tier_close(tier);
}

/* A value in memory that another gets, and writes to, while the put reads it or before. */
struct borrowed {
    char *value;
    size_t size;
    bool taken_away;
    unsigned asked;
};

static bool still(void *ctx) {
    struct borrowed *b = ctx;
    b->asked++;
    mc_test_fill(b->value, b->size, 998); /* from here on nothing of it may be read any more */
    return !b->taken_away;
}

static char lost_keys[8][32];
static size_t lost_count;

static void note_lost(void *ctx, struct mc_str key) {
    assert_true(lost_count < 8 && key.len < 32);
    memcpy(lost_keys[lost_count], key.ptr, key.len);
    lost_keys[lost_count++][key.len] = '\0';
}

/* Puts "key<first>" and so on; those whose bit is set in `away` lost their memory meanwhile. */
static void put_borrowed(struct mc_tier *tier, unsigned first, unsigned count, unsigned away) {
    struct mc_tier_item items[8];
    struct borrowed all[8];
    char keys[8][32];
    for (unsigned i = 0; i < count; i++) {
        all[i] = (struct borrowed){.size = size_of(first + i), .taken_away = (away >> i & 1) != 0};
        all[i].value = malloc(all[i].size);
        mc_test_fill(all[i].value, all[i].size, all[i].taken_away ? 999 : first + i);
        snprintf(keys[i], sizeof(keys[i]), "key%u", first + i);
        items[i] = (struct mc_tier_item){.key = mc_str_from(keys[i]),
                                         .value = all[i].value,
                                         .size = all[i].size,
                                         .tag = 100 + i,
                                         .still = still,
                                         .still_ctx = &all[i]};
    }
    enum mc_status status = mc_tier_put(tier, items, count);
    assert_int_equal(status, away != 0 ? MC_LEASE_EXPIRED : MC_OK);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(items[i].status, all[i].taken_away ? MC_LEASE_EXPIRED : MC_OK);
        assert_int_equal(all[i].asked, 1);
        free(all[i].value);
    }
}

static bool is_there(struct mc_tier *tier, unsigned i) {
    enum mc_status status = get(tier, i);
    assert_true(status == MC_OK || status == MC_OBJECT_NOT_FOUND);
    return status == MC_OK;
}

static void test_what_was_taken_away_while_it_was_written_is_never_found(void **state) {
    struct mc_tier_config config = {.path = dir, .owner = "test", .lost = note_lost};
    struct mc_tier *tier;
    struct mc_tier_stats stats;
    lost_count = 0;
    assert_ok(mc_tier_open(&config, &tier));
    assert_true(mc_tier_borrows(tier));
    put_borrowed(tier, 0, 6, 1u << 0 | 1u << 3); /* the first, and one that others lie behind */
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i < 6; i++) {
            assert_int_equal(is_there(tier, i), i != 0 && i != 3);
        }
        mc_tier_stats(tier, &stats);
        assert_int_equal(stats.objects, 4);
        assert_int_equal(stats.broken_objects, 0);
        assert_int_equal(stats.borrowed_objects, round == 0 ? 4 : 0);
        mc_tier_close(tier);
        assert_ok(mc_tier_open(&config, &tier));
    }
    put_borrowed(tier, 6, 2, 3); /* nothing of the bucket is left */
    assert_string_equal(file_at(".meta", 1), "");
    assert_string_equal(file_at(".bucket", 1), "");
    assert_int_equal(lost_count, 0);
    put_borrowed(tier, 1, 2, 1); /* in place of those that are there: the older one went first */
    assert_int_equal(lost_count, 1);
    assert_string_equal(lost_keys[0], "key1");
    assert_false(is_there(tier, 1));
    assert_true(is_there(tier, 2));
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.failed_writes, 0);
    mc_tier_close(tier);
}

/* What is worth a warning is not hidden by what is not. */
static void test_a_put_says_what_failed_rather_than_what_was_taken_away(void **state) {
    struct mc_tier *tier = open_tier();
    struct borrowed gone = {.value = (char[1]){'x'}, .size = 1, .taken_away = true};
    struct mc_tier_item items[] = {
        {.key = MC_STR("a"), .value = gone.value, .size = 1, .still = still, .still_ctx = &gone},
        {.key = MC_STR("b"), .value = "b", .size = 0}};
    assert_int_equal(mc_tier_put(tier, items, 2), MC_INVALID_PARAMS);
    assert_int_equal(items[0].status, MC_LEASE_EXPIRED);
    assert_int_equal(items[1].status, MC_INVALID_PARAMS);
    mc_tier_close(tier);
}

/* The newer bucket is lost: what it replaced, or had taken out, does not come back for that. */
static void test_what_was_replaced_is_not_found_again(void **state) {
    struct mc_tier *tier = open_tier();
    assert_ok(put(tier, 0, 3));
    assert_ok(put(tier, 1, 1));
    mc_tier_close(tier);
    int fd = open(file_at(".meta", 1), O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, "\377", 1), 1);
    close(fd);
    tier = open_tier();
    assert_ok(get(tier, 0));
    assert_int_equal(get(tier, 1), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 2));
    assert_string_equal(file_at(".bucket", 1), ""); /* what cannot be understood is gone for good */
    mc_tier_close(tier);
}

/* Without its trailer a bucket of ours would pass for one of upstream's, which may be of any age.
 */
static void test_a_bucket_with_a_damaged_trailer_is_not_taken_for_upstreams(void **state) {
    static const size_t wrong[] = {0, 8, 12, 20, 31, 35}; /* magic, count, offset, tag, crc, crc */
    for (size_t n = 0; n <= MC_ARRAY_LEN(wrong); n++) {   /* the last: it is cut off */
        struct mc_tier *tier = open_tier();
        char byte;
        assert_ok(put(tier, 0, 1));
        mc_tier_close(tier);
        off_t at = (off_t)(strlen("key0") + size_of(0));
        int fd = open(file_at(".bucket", 0), O_RDWR);
        if (n == MC_ARRAY_LEN(wrong)) {
            assert_int_equal(ftruncate(fd, at), 0);
        } else {
            at += (off_t)wrong[n];
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= 4;
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
        tier = open_tier();
        assert_int_equal(get(tier, 0), MC_OBJECT_NOT_FOUND);
        assert_string_equal(file_at(".bucket", 0), "");
        assert_string_equal(file_at(".meta", 0), "");
        mc_tier_close(tier);
    }
}

/* A crash leaves: data without .meta, half a .meta under a temporary name, a file that is shorter
 * than its .meta says. */
static void test_what_a_crash_leaves_is_dropped(void **state) {
    struct mc_tier *tier = open_tier();
    char path[600];
    for (unsigned first = 0; first < 30; first += 10) {
        assert_ok(put(tier, first, 10));
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
    tier = open_tier();
    for (unsigned i = 0; i < 30; i++) {
        bool there = i >= 10 && i < 20;
        assert_int_equal(get(tier, i), there ? MC_OK : MC_OBJECT_NOT_FOUND);
    }
    assert_int_not_equal(access(path, F_OK), 0);
    assert_string_equal(file_at(".bucket", 2), ""); /* the orphan is gone */
    assert_ok(put(tier, 0, 10));                    /* and life goes on */
    assert_ok(get(tier, 3));
    mc_tier_close(tier);
}

static void test_one_process_owns_the_directory(void **state) {
    struct mc_tier *tier = open_tier();
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

static void test_a_write_that_fails_leaves_nothing_behind(void **state) {
    struct mc_tier *tier = open_tier();
    struct mc_tier_stats stats;
    struct rlimit old, small = {1 << 20, RLIM_INFINITY};
    assert_ok(put(tier, 0, 3));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum mc_status status = put(tier, 4, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, MC_FILE_WRITE_FAIL);
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.failed_writes, 1);
    assert_int_equal(stats.objects, 3);
    assert_string_equal(file_at(".bucket", 1), "");
    assert_ok(put(tier, 4, 1));
    assert_ok(get(tier, 4));
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
    struct mc_tier *tier = open_tier();
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

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_removed_key_stays_away),
        TEST(test_what_was_replaced_is_not_found_again),
        TEST(test_what_was_taken_away_while_it_was_written_is_never_found),
        TEST(test_a_put_says_what_failed_rather_than_what_was_taken_away),
        TEST(test_a_bucket_with_a_damaged_trailer_is_not_taken_for_upstreams),
        TEST(test_what_a_crash_leaves_is_dropped),
        TEST(test_one_process_owns_the_directory),
        TEST(test_a_write_that_fails_leaves_nothing_behind),
        TEST(test_a_directory_of_upstreams_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
