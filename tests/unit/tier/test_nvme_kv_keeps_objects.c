/* The backend `NVMe KV` against a namespace that is emulated where the kernel would take commands
 * over: this program has an ioctl and an io_uring_submit_and_wait of its own, which read the very
 * structures that the kernel would, carry out what the command set says, and complete in any order.
 * The namespace forgets on a crash what was not flushed, or keeps it, as it likes. */
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/nvme_ioctl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tier/index.h"
#include "tier/tier.h"

/* MC_TEST_THREADS */

/* ---- the namespace ---- */

#define VALUES_MAX 4096

struct value {
    uint8_t key[16], key_len;
    char *bytes;
    uint32_t len;
};
struct table {
    struct value values[VALUES_MAX];
    size_t count;
};
static struct table now, durable;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mc_rng rng;
static uint64_t capacity, stored_bytes;
static uint64_t commands_left; /* then the device is gone */
static bool no_uring;
static uint64_t by_uring, by_ioctl;
static int fail_opcode = -1, fail_status; /* the next command of the kind, */
static unsigned failures_left;            /* and so many behind it */
static uint64_t commands_of[256];         /* by opcode */

static void value_free(struct value *v) {
    free(v->bytes);
    *v = (struct value){0};
}

static struct value *find_value(struct table *t, const uint8_t *key, uint8_t key_len) {
    for (size_t i = 0; i < t->count; i++) {
        if (t->values[i].key_len == key_len && memcmp(t->values[i].key, key, key_len) == 0) {
            return &t->values[i];
        }
    }
    return NULL;
}

static void drop_value(struct table *t, struct value *v) {
    value_free(v);
    *v = t->values[--t->count];
    t->values[t->count] = (struct value){0};
}

static void set_value(struct table *t, const struct value *from) {
    struct value *v = find_value(t, from->key, from->key_len);
    if (v == NULL) {
        assert_true(t->count < VALUES_MAX);
        v = &t->values[t->count++];
    } else {
        value_free(v);
    }
    *v = *from;
    v->bytes = malloc(from->len);
    memcpy(v->bytes, from->bytes, from->len);
}

static void clear_table(struct table *t) {
    while (t->count > 0) {
        drop_value(t, &t->values[0]);
    }
}

static void copy_table(struct table *to, const struct table *from) {
    clear_table(to);
    for (size_t i = 0; i < from->count; i++) {
        set_value(to, &from->values[i]);
    }
}

/* Power fails: of each key that was changed since the last flush the device has either state. */
static void crash(void) {
    for (size_t i = 0; i < durable.count; i++) {
        if (mc_rng_below(&rng, 2) == 0) {
            set_value(&now, &durable.values[i]);
        }
    }
    for (size_t i = 0; i < now.count;) {
        struct value *v = &now.values[i];
        if (find_value(&durable, v->key, v->key_len) == NULL && mc_rng_below(&rng, 2) == 0) {
            drop_value(&now, v);
        } else {
            i++;
        }
    }
    copy_table(&durable, &now);
}

static int by_key(const void *a, const void *b) {
    return memcmp(((const struct value *)a)->key, ((const struct value *)b)->key, 16);
}

/* From the key that is asked for on. A small page, so that there are many. */
static void list_keys(const uint8_t *key, uint8_t key_len, char *out) {
    uint32_t count = 0;
    size_t at = sizeof(count);
    qsort(now.values, now.count, sizeof(now.values[0]), by_key);
    for (size_t i = 0; i < now.count && count < 7; i++) {
        const struct value *v = &now.values[i];
        if (key_len > 0 && memcmp(v->key, key, key_len) < 0) {
            continue;
        }
        uint16_t len = v->key_len;
        memcpy(out + at, &len, sizeof(len));
        memcpy(out + at + sizeof(len), v->key, len);
        at = (at + sizeof(len) + len + 3) / 4 * 4;
        count++;
    }
    memcpy(out, &count, sizeof(count));
}

static int store(const struct value *given) {
    struct value *old = find_value(&now, given->key, given->key_len);
    uint64_t used = 0;
    for (size_t i = 0; i < now.count; i++) {
        used += now.values[i].len;
    }
    if (given->len > 512u << 10) {
        return MC_NVME_VALUE_SIZE;
    }
    if (used - (old != NULL ? old->len : 0) + given->len > capacity) {
        return MC_NVME_CAPACITY;
    }
    stored_bytes += given->len;
    set_value(&now, given);
    return MC_NVME_OK;
}

static int retrieve(struct value *v, char *out, uint32_t len, uint32_t *result) {
    if (v == NULL) {
        return MC_NVME_NO_SUCH_KEY;
    }
    memcpy(out, v->bytes, mc_min_u64(v->len, len));
    *result = v->len;
    return MC_NVME_OK;
}

/* A command as the device gets it; the status of its completion. */
static int carry_out(const struct nvme_passthru_cmd *c, uint32_t *result) {
    struct value given = {.key_len = c->cdw11 & 0xff, .bytes = (char *)(uintptr_t)c->addr};
    uint32_t words[4] = {c->cdw2, c->cdw3, c->cdw14, c->cdw15};
    memcpy(given.key, words, sizeof(words));
    given.len = c->cdw10;
    assert_int_equal(c->nsid, 3);
    assert_int_equal(c->addr % 4, 0);
    assert_int_equal(c->data_len, c->cdw10);
    assert_true(given.key_len <= 16);
    commands_of[c->opcode]++;
    if (fail_opcode == c->opcode) {
        fail_opcode = failures_left > 0 ? fail_opcode : -1;
        failures_left -= failures_left > 0;
        return fail_status;
    }
    struct value *v = find_value(&now, given.key, given.key_len);
    switch (c->opcode) {
    case 0x00:
        copy_table(&durable, &now);
        return MC_NVME_OK;
    case 0x01:
        return given.key_len == 0 ? MC_NVME_KEY_SIZE : store(&given);
    case 0x02:
        return retrieve(v, given.bytes, given.len, result);
    case 0x06:
        list_keys(given.key, given.key_len, given.bytes);
        return MC_NVME_OK;
    case 0x10:
        if (v != NULL) {
            drop_value(&now, v);
        }
        return v != NULL ? MC_NVME_OK : MC_NVME_NO_SUCH_KEY;
    default:
        return 0x01; /* invalid opcode */
    }
}

/* As the kernel answers: a status, or an errno below 0. */
static int device(const struct nvme_passthru_cmd *command, uint32_t *result) {
    *result = 0;
    if (commands_left == 0) {
        return -ENODEV;
    }
    commands_left--;
    int status = carry_out(command, result);
    return status == MC_NVME_OK ? status : status | 0x4000; /* do not retry */
}

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (request != NVME_IOCTL_IO_CMD) {
        return (int)syscall(SYS_ioctl, fd, request, argument);
    }
    struct nvme_passthru_cmd *command = argument;
    pthread_mutex_lock(&lock);
    by_ioctl++;
    int status = device(command, &command->result);
    pthread_mutex_unlock(&lock);
    if (status < 0) {
        errno = -status;
    }
    return status < 0 ? -1 : status;
}

static int from_submission(const struct io_uring_sqe *sqe, uint32_t *result) {
    const struct nvme_uring_cmd *c = (const void *)sqe->cmd;
    assert_int_equal(sqe->opcode, IORING_OP_URING_CMD);
    assert_int_equal(sqe->cmd_op, NVME_URING_CMD_IO);
    if (no_uring) {
        return -EOPNOTSUPP;
    }
    struct nvme_passthru_cmd command = {.opcode = c->opcode,
                                        .nsid = c->nsid,
                                        .cdw2 = c->cdw2,
                                        .cdw3 = c->cdw3,
                                        .addr = c->addr,
                                        .data_len = c->data_len,
                                        .cdw10 = c->cdw10,
                                        .cdw11 = c->cdw11,
                                        .cdw14 = c->cdw14,
                                        .cdw15 = c->cdw15};
    by_uring++;
    return device(&command, result);
}

/* The kernel's part: takes all submissions, in any order, and completes them. */
int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait) {
    unsigned head = *ring->sq.khead, count = ring->sq.sqe_tail - head;
    unsigned mask = *ring->sq.kring_mask, cq_mask = *ring->cq.kring_mask;
    pthread_mutex_lock(&lock);
    unsigned turn = count > 0 ? (unsigned)mc_rng_below(&rng, count) : 0;
    for (unsigned i = 0; i < count; i++) {
        const struct io_uring_sqe *sqe = &ring->sq.sqes[((head + (i + turn) % count) & mask) << 1];
        uint32_t result = 0;
        unsigned tail = *ring->cq.ktail;
        struct io_uring_cqe *cqe = &ring->cq.cqes[(tail & cq_mask) << 1];
        cqe->res = from_submission(sqe, &result);
        cqe->user_data = sqe->user_data;
        cqe->flags = 0;
        cqe->big_cqe[0] = result;
        *ring->cq.ktail = tail + 1;
    }
    pthread_mutex_unlock(&lock);
    ring->sq.sqe_head = ring->sq.sqe_tail;
    *ring->sq.khead = ring->sq.sqe_tail;
    return (int)count;
}

/* ---- the tests' tools ---- */

#define PIECE (16u << 10)

static char dir[64], dev[96];
static char lost_keys[4096];
static enum mc_nvme_road road;

static int setup(void **state) {
    road = *(const enum mc_nvme_road *)*state;
    snprintf(dir, sizeof(dir), "/tmp/mc_nvme_XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(dev, sizeof(dev), "%s/ng0n3", dir);
    int fd = open(dev, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    mc_rng_seed(&rng, 7);
    clear_table(&now);
    clear_table(&durable);
    capacity = commands_left = UINT64_MAX;
    no_uring = false;
    by_uring = by_ioctl = stored_bytes = 0;
    fail_opcode = -1;
    failures_left = 0;
    lost_keys[0] = '\0';
    return 0;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    clear_table(&now);
    clear_table(&durable);
    return system(command);
}

static void note_lost(void *ctx, struct mc_str key) {
    size_t len = strlen(lost_keys);
    if (len + key.len + 2 < sizeof(lost_keys)) {
        snprintf(lost_keys + len, sizeof(lost_keys) - len, "%.*s ", (int)key.len, key.ptr);
    }
}

static enum mc_status try_open(enum mc_tier_eviction eviction, uint64_t bytes,
                               struct mc_tier **tier) {
    return mc_tier_open(&(struct mc_tier_config){.path = dir,
                                                 .backend = "nvme_kv_storage_backend",
                                                 .device = dev,
                                                 .device_nsid = 3,
                                                 .device_value_bytes = PIECE,
                                                 .device_road = road,
                                                 .owner = "test",
                                                 .depth = 8,
                                                 .eviction = eviction,
                                                 .capacity_bytes = bytes,
                                                 .lost = note_lost},
                        tier);
}

static struct mc_tier *open_with(enum mc_tier_eviction eviction, uint64_t bytes) {
    struct mc_tier *tier;
    assert_ok(try_open(eviction, bytes, &tier));
    return tier;
}

/* Of one piece, of some, and of just whole ones; keys up to some thousand bytes. */
static size_t size_of(unsigned i) {
    static const size_t sizes[] = {1, 400, PIECE - 64 - 5, PIECE, 3 * PIECE, 5 * PIECE + 123};
    return sizes[i % MC_ARRAY_LEN(sizes)];
}

static struct mc_str key_of(unsigned i, char *out) {
    size_t len = (size_t)sprintf(out, "key%02u", i);
    for (; i % 4 == 3 && len < 100u * i; len++) {
        out[len] = 'x';
    }
    return (struct mc_str){out, len};
}

static enum mc_status put(struct mc_tier *tier, unsigned first, unsigned count, uint64_t salt) {
    struct mc_tier_item items[32];
    static _Thread_local char keys[32][8192];
    for (unsigned i = 0; i < count; i++) {
        char *value = malloc(size_of(first + i));
        mc_test_fill(value, size_of(first + i), first + i + salt);
        items[i] = (struct mc_tier_item){.key = key_of(first + i, keys[i]),
                                         .value = value,
                                         .size = size_of(first + i),
                                         .tag = first + i + salt};
    }
    enum mc_status status = mc_tier_put(tier, items, count);
    for (unsigned i = 0; i < count; i++) {
        free((void *)(uintptr_t)items[i].value);
    }
    return status;
}

/* *salt, if given, is a second value that may be there as well. */
static enum mc_status get_either(struct mc_tier *tier, unsigned i, uint64_t salt,
                                 const uint64_t *other) {
    char key[8192];
    struct mc_tier_read read = {.key = key_of(i, key), .size = size_of(i)};
    read.room = aligned_alloc(MC_TIER_BLOCK, mc_tier_read_room(read.key.len, read.size));
    enum mc_status status = mc_tier_read(tier, &read, 1);
    if (status == MC_OK) {
        char *expected = malloc(read.size);
        mc_test_fill(expected, read.size, i + salt);
        if (other != NULL && memcmp(expected, read.value, read.size) != 0) {
            salt = *other;
        }
        free(expected);
        mc_test_verify(read.value, read.size, i + salt);
    }
    free(read.room);
    return status;
}

static enum mc_status get(struct mc_tier *tier, unsigned i, uint64_t salt) {
    return get_either(tier, i, salt, NULL);
}

/* The value of the object's piece, as the device has it. */
static struct value *piece_of(unsigned i, uint32_t piece) {
    char key[8192];
    struct mc_str name = key_of(i, key);
    uint64_t hash = mc_hash64(name.ptr, name.len, 0);
    for (size_t k = 0; k < now.count; k++) {
        uint32_t number;
        memcpy(&number, now.values[k].key + 12, sizeof(number));
        if (memcmp(now.values[k].key, &hash, sizeof(hash)) == 0 && number == piece) {
            return &now.values[k];
        }
    }
    fail();
    return NULL;
}

static bool check_tag(void *ctx, const struct mc_tier_found *found) {
    uint64_t number =
        (uint64_t)(found->key.ptr[3] - '0') * 10 + (uint64_t)(found->key.ptr[4] - '0');
    assert_int_equal(found->tag, number + (number >= 5 && number < 12 ? 1000 : 0));
    ++*(unsigned *)ctx;
    return true;
}

/* ---- the tests ---- */

static void test_every_byte_comes_back(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0), *second;
    struct mc_tier_stats stats;
    assert_ok(put(tier, 0, 20, 0));
    assert_ok(put(tier, 5, 7, 1000)); /* replaced */
    char key[8192];
    assert_ok(mc_tier_remove(tier, key_of(17, key)));
    assert_int_equal(mc_tier_remove(tier, key_of(17, key)), MC_OBJECT_NOT_FOUND);
    for (unsigned again = 0; again < 2; again++) {
        uint64_t bytes = 0;
        for (unsigned i = 0; i < 20; i++) {
            assert_int_equal(get(tier, i, i >= 5 && i < 12 ? 1000 : 0),
                             i == 17 ? MC_OBJECT_NOT_FOUND : MC_OK);
        }
        for (size_t i = 0; i < now.count; i++) {
            bytes += now.values[i].len;
        }
        unsigned seen = 0;
        mc_tier_scan(tier, check_tag, &seen);
        assert_int_equal(seen, 19);
        mc_tier_stats(tier, &stats);
        assert_int_equal(stats.objects, 19);
        assert_int_equal(stats.used_bytes, bytes); /* what is replaced takes no room */
        mc_tier_close(tier);
        tier = open_with(MC_TIER_EVICT_NONE, 0);
    }
    assert_true(road == MC_NVME_IOCTL ? by_uring == 0 && by_ioctl > 0 : by_uring > 0);
    assert_int_not_equal(try_open(MC_TIER_EVICT_NONE, 0, &second), MC_OK); /* it has an owner */
    assert_ok(mc_tier_clear(tier));
    assert_int_equal(now.count, 0);
    mc_tier_close(tier);
}

static void test_without_io_uring_commands_it_goes_by_ioctl(void **state) {
    no_uring = true;
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0);
    assert_ok(put(tier, 0, 12, 0));
    for (unsigned i = 0; i < 12; i++) {
        assert_ok(get(tier, i, 0));
    }
    assert_true(by_uring == 0 && by_ioctl > 0);
    mc_tier_close(tier);
}

/* The device goes after each number of commands, and comes back with either state of what was not
 * flushed: objects that were acknowledged are there, of an upsert the old or the new one, and of
 * the others all or nothing. */
static void test_a_crash_leaves_whole_objects(void **state) {
    const uint64_t newer = 1000;
    for (uint64_t at = 1; at < 60; at++) {
        struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0);
        struct mc_tier_stats stats;
        assert_ok(put(tier, 0, 6, 0));
        commands_left = at;
        bool replaced = put(tier, 2, 4, newer) == MC_OK;
        bool more = put(tier, 6, 3, 0) == MC_OK;
        mc_tier_close(tier);
        crash();
        commands_left = UINT64_MAX;
        tier = open_with(MC_TIER_EVICT_NONE, 0);
        for (unsigned i = 0; i < 9; i++) {
            bool old = i < 2 || (i < 6 && !replaced);
            enum mc_status status = get_either(tier, i, old || i >= 6 ? 0 : newer,
                                               i >= 2 && i < 6 && !replaced ? &newer : NULL);
            assert_true(status == MC_OK || (i >= 6 && !more && status == MC_OBJECT_NOT_FOUND));
        }
        uint64_t bytes = 0;
        for (size_t i = 0; i < now.count; i++) {
            bytes += now.values[i].len;
        }
        mc_tier_stats(tier, &stats);
        assert_int_equal(stats.used_bytes, bytes); /* nothing is left over */
        assert_ok(mc_tier_clear(tier));
        mc_tier_close(tier);
        assert_int_equal(now.count, 0);
    }
}

static void test_a_full_device_makes_room_or_says_so(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_FIFO, 0);
    struct mc_tier_stats stats;
    capacity = 10 * PIECE;
    assert_ok(put(tier, 4, 1, 0)); /* of 3 pieces and a bit each */
    assert_ok(put(tier, 10, 1, 0));
    assert_ok(put(tier, 16, 1, 0));
    assert_ok(put(tier, 22, 1, 0));
    assert_string_equal(lost_keys, "key04 key10 ");
    assert_ok(get(tier, 16, 0));
    assert_ok(get(tier, 22, 0));
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_NONE, 0);
    assert_int_equal(put(tier, 5, 1, 0), MC_FILE_WRITE_FAIL);
    assert_ok(get(tier, 16, 0));
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.objects, 2);
    assert_int_equal(stats.failed_writes, 1);
    assert_ok(put(tier, 1, 1, 0)); /* what failed has left nothing behind */
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_LRU, 8 * PIECE); /* its own limit */
    assert_ok(get(tier, 16, 0));
    assert_ok(put(tier, 28, 1, 0));
    assert_ok(get(tier, 16, 0));
    assert_int_equal(get(tier, 22, 0), MC_OBJECT_NOT_FOUND);
    mc_tier_close(tier);
}

static void test_errors_are_errors_and_not_data(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0);
    struct mc_tier_stats stats;
    assert_ok(put(tier, 0, 12, 0));
    fail_opcode = 0x02;
    fail_status = 0x281; /* unrecovered read error */
    assert_int_equal(get(tier, 5, 0), MC_FILE_READ_FAIL);
    assert_ok(get(tier, 5, 0)); /* it was the device, not the object */
    piece_of(5, 2)->len -= 512;
    assert_int_equal(get(tier, 5, 0), MC_CHECKSUM_MISMATCH);
    piece_of(4, 1)->bytes[100] ^= 1;
    assert_int_equal(get(tier, 4, 0), MC_CHECKSUM_MISMATCH);
    drop_value(&now, piece_of(10, 3));
    assert_int_equal(get(tier, 10, 0), MC_CHECKSUM_MISMATCH);
    char *root = piece_of(0, 0)->bytes; /* another key of the same hash, all else alike */
    root[64 + 3] ^= 1;
    memset(root + 40, 0, 4);
    uint32_t crc = mc_tier_crc(root, 64 + strlen("key00"));
    memcpy(root + 40, &crc, sizeof(crc));
    assert_int_equal(get(tier, 0, 0), MC_CHECKSUM_MISMATCH);
    drop_value(&now, piece_of(1, 0));
    assert_int_equal(get(tier, 1, 0), MC_CHECKSUM_MISMATCH);
    assert_string_equal(lost_keys, "key05 key04 key10 key00 key01 ");
    mc_tier_stats(tier, &stats);
    assert_int_equal(stats.broken_objects, 5);
    assert_int_equal(stats.objects, 7);
    fail_opcode = 0x01;
    fail_status = MC_NVME_VALUE_SIZE;
    assert_int_equal(put(tier, 2, 1, 1000), MC_FILE_WRITE_FAIL);
    assert_ok(get(tier, 2, 0)); /* the old one */
    fail_opcode = 0x00;
    fail_status = 0x06;
    assert_int_equal(put(tier, 1, 1, 0), MC_FILE_WRITE_FAIL); /* not durable is not written */
    assert_int_equal(get(tier, 1, 0), MC_OBJECT_NOT_FOUND);
    fail_opcode = 0x10;
    fail_status = 0x06;
    char name[8192];
    assert_int_equal(mc_tier_remove(tier, key_of(3, name)), MC_FILE_WRITE_FAIL);
    assert_non_null(piece_of(3, 0)); /* a start would find it; it is tried again */
    mc_tier_mark(tier, 77);
    assert_int_equal(mc_tier_marked(tier), 77);
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_NONE, 0);
    assert_int_equal(get(tier, 3, 0), MC_OBJECT_NOT_FOUND);
    assert_ok(get(tier, 2, 0));
    mc_tier_close(tier);
}

/* The master's word comes with each heartbeat, and nobody waits for sixty deletions of a device
 * that refuses them all; each is tried in its turn. */
static void test_few_deletions_are_tried_again_at_once(void **state) {
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0);
    char name[8192];
    assert_ok(put(tier, 0, 20, 0));
    fail_opcode = 0x10;
    fail_status = 0x06;
    failures_left = 1000;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(mc_tier_remove(tier, key_of(i, name)), MC_FILE_WRITE_FAIL);
    }
    for (unsigned i = 0; i < 5; i++) {
        uint64_t before = commands_of[0x10];
        mc_tier_mark(tier, 77);
        assert_int_equal(commands_of[0x10] - before, 8);
        assert_int_equal(mc_tier_marked(tier), 0);
    }
    fail_opcode = -1;
    failures_left = 0;
    mc_tier_mark(tier, 77);
    mc_tier_mark(tier, 77);
    assert_int_equal(mc_tier_marked(tier), 0);
    mc_tier_mark(tier, 77); /* the last four */
    assert_int_equal(mc_tier_marked(tier), 77);
    mc_tier_close(tier);
    tier = open_with(MC_TIER_EVICT_NONE, 0);
    assert_int_equal(now.count, 0);
    mc_tier_close(tier);
}

static void test_a_namespace_with_other_things_in_it_opens(void **state) {
    struct value foreign[] = {{.key = "short", .key_len = 5, .bytes = (char *)"theirs", .len = 6},
                              {.key = "somebody else's", .key_len = 16, .len = 100}};
    char bytes[100] = "MCKVOBJ";
    foreign[1].bytes = bytes;
    memset(foreign[1].key + 12, 0, 4); /* as if it were a root */
    set_value(&now, &foreign[0]);
    set_value(&now, &foreign[1]);
    struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0);
    assert_ok(put(tier, 0, 9, 0));
    mc_tier_close(tier);
    piece_of(3, 0)->bytes[9] ^= 1;    /* a head that is broken */
    drop_value(&now, piece_of(4, 2)); /* an object that is not whole */
    drop_value(&now, piece_of(5, 0)); /* pieces without a root */
    tier = open_with(MC_TIER_EVICT_NONE, 0);
    for (unsigned i = 0; i < 9; i++) {
        assert_int_equal(get(tier, i, 0), i >= 3 && i <= 5 ? MC_OBJECT_NOT_FOUND : MC_OK);
    }
    assert_ok(mc_tier_clear(tier));
    assert_int_equal(now.count, 2); /* theirs, and nothing else */
    mc_tier_close(tier);
    fail_opcode = 0x06;
    fail_status = 0x06;
    assert_int_equal(try_open(MC_TIER_EVICT_NONE, 0, &tier), MC_FILE_READ_FAIL);
}

/* A value of the namespace after something happened to it that no host asked for. */
static void damage(struct value *v) {
    uint64_t at = mc_rng_below(&rng, v->len);
    uint64_t other = mc_rng_below(&rng, now.count);
    switch (mc_rng_below(&rng, 5)) {
    case 0:
        v->bytes[at] ^= (char)(1u << mc_rng_below(&rng, 8));
        break;
    case 1: /* heads, whose fields are few, more often than by chance */
        v->bytes[at % mc_min_u64(v->len, 64)] = (char)mc_rng_next(&rng);
        break;
    case 2:
        v->len = (uint32_t)at + 1;
        break;
    case 3:
        memset(v->bytes + at, 0xff, v->len - at);
        break;
    default: { /* another's bytes */
        struct value swapped = *v;
        v->bytes = now.values[other].bytes, v->len = now.values[other].len;
        now.values[other].bytes = swapped.bytes, now.values[other].len = swapped.len;
    }
    }
}

static void test_whatever_happened_to_values_no_wrong_byte_comes_back(void **state) {
    for (unsigned round = 0; round < 60; round++) {
        uint64_t salt = round * 1000ull;
        struct mc_tier *tier = open_with(MC_TIER_EVICT_NONE, 0);
        assert_ok(put(tier, 0, 12, salt));
        mc_tier_close(tier);
        for (uint64_t n = 1 + mc_rng_below(&rng, 6); n > 0; n--) {
            damage(&now.values[mc_rng_below(&rng, now.count)]);
        }
        tier = open_with(MC_TIER_EVICT_NONE, 0);
        for (unsigned i = 0; i < 12; i++) {
            (void)get(tier, i, salt); /* verifies what comes */
        }
        assert_ok(put(tier, 0, 12, salt + 500));
        for (unsigned i = 0; i < 12; i++) {
            assert_ok(get(tier, i, salt + 500));
        }
        mc_tier_close(tier);
    }
}

struct reader {
    struct mc_tier *tier;
    _Atomic bool stop;
    unsigned good;
};

static void *read_on(void *arg) {
    static const uint64_t newer = 1000;
    struct reader *r = arg;
    for (unsigned i = 0; !atomic_load_explicit(&r->stop, memory_order_acquire) || r->good < 10;
         i++) {
        enum mc_status status = get_either(r->tier, i % 12, 0, &newer);
        r->good += status == MC_OK;
        if (status != MC_OK && status != MC_OBJECT_NOT_FOUND) {
            return r;
        }
    }
    return NULL;
}

static void test_readers_and_replacement_get_along(void **state) {
    struct reader reader = {.tier = open_with(MC_TIER_EVICT_NONE, 0)};
    pthread_t threads[2];
    void *failure[2];
    assert_ok(put(reader.tier, 0, 12, 0));
    struct reader readers[2] = {reader, reader};
    for (unsigned i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, read_on, &readers[i]);
    }
    for (unsigned round = 0; round < 10; round++) {
        assert_ok(put(reader.tier, 0, 12, round % 2 * 1000));
    }
    for (unsigned i = 0; i < 2; i++) {
        atomic_store_explicit(&readers[i].stop, true, memory_order_release);
        pthread_join(threads[i], &failure[i]);
        assert_null(failure[i]);
    }
    mc_tier_close(reader.tier);
}

int main(void) {
    static const enum mc_nvme_road roads[] = {MC_NVME_AUTO, MC_NVME_IOCTL};
#define TEST(test)                                                                                 \
    { #test, test, setup, teardown, (void *)(uintptr_t)&roads[i] }
    int failed = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(roads); i++) {
        const struct CMUnitTest tests[] = {
            TEST(test_every_byte_comes_back),
            TEST(test_without_io_uring_commands_it_goes_by_ioctl),
            TEST(test_a_crash_leaves_whole_objects),
            TEST(test_a_full_device_makes_room_or_says_so),
            TEST(test_errors_are_errors_and_not_data),
            TEST(test_few_deletions_are_tried_again_at_once),
            TEST(test_a_namespace_with_other_things_in_it_opens),
            TEST(test_whatever_happened_to_values_no_wrong_byte_comes_back),
            TEST(test_readers_and_replacement_get_along),
        };
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
