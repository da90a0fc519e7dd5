/*
 * File segments: files on ext4 (or what /tmp is) and on tmpfs, one and several end to end, aligned
 * and not, single requests and batches; every byte compared with the file itself. Then what goes
 * wrong: no such file, a directory, beyond the end, a file that shrank, one that may only be read,
 * a full device (/dev/full: ENOSPC), one that cannot be read (/proc/self/mem: EIO), and names that
 * must not lead to files. MC_TEST_THREADS.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/metadata_http.h"
#include "unit/te/te_support.h"

#define SIZE (9u << 20)

static struct mc_metadata_http *service;
static char metadata[64], directory[64];

static int setup(void **state) {
    uint16_t port = 0;
    assert_ok(mc_metadata_http_start("127.0.0.1", 0, NULL, &service, &port));
    snprintf(metadata, sizeof(metadata), "http://127.0.0.1:%u/metadata", port);
    snprintf(directory, sizeof(directory), "/tmp/mc_test_files_XXXXXX");
    assert_non_null(mkdtemp(directory));
    return 0;
}
static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    assert_int_equal(system(command), 0);
    mc_metadata_http_stop(service);
    return 0;
}

static struct mc_engine *make_engine(bool p2p) {
    static int number;
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    char name[32];
    mc_engine_options_init(&options);
    snprintf(name, sizeof(name), "engine-%d", number++);
    options.host = "127.0.0.1";
    options.metadata = p2p ? "P2PHANDSHAKE" : metadata;
    options.local_name = p2p ? NULL : name;
    assert_ok(mc_engine_create(&options, &engine));
    return engine;
}

static void path_in(const char *where, const char *name, char path[128]) {
    snprintf(path, 128, "%s/%s", where, name);
}

static void make_file(const char *path, uint64_t size) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    close(fd);
}

static void write_file(const char *path, uint64_t offset, const void *bytes, uint64_t length) {
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, bytes, length, (off_t)offset), (ssize_t)length);
    close(fd);
}

/* The bytes as the file has them, compared with the pattern. */
static void check_file(const char *path, uint64_t offset, uint64_t length, uint64_t seed) {
    char *got = malloc(length);
    int fd = open(path, O_RDONLY);
    assert_int_equal(pread(fd, got, length, (off_t)offset), (ssize_t)length);
    close(fd);
    mc_test_verify(got, length, seed);
    free(got);
}

static enum mc_status move(struct mc_engine *engine, enum mc_transfer_op op, mc_segment_id segment,
                           void *local, uint64_t offset, uint64_t length) {
    struct mc_transfer_request r = {
        .op = op, .local = local, .segment = segment, .remote_addr = offset, .length = length};
    return mc_transfer(engine, &r, 1, mc_deadline_in_ms(30000));
}

/* ---- what works ---- */

static void move_everything(const char *where) {
    static const struct {
        uint64_t offset, length, skew;
    } moves[] = {{0, 4096, 0},         {4096, 1 << 20, 0}, {0, SIZE, 0},           {1, 1, 3},
                 {4095, 8193, 1},      {12345, 777777, 0}, {SIZE - 4096, 4096, 0}, {SIZE - 1, 1, 0},
                 {1 << 20, 3 << 20, 8}};
    struct mc_engine *engine = make_engine(true);
    char path[128], url[160];
    char *local = aligned_alloc(4096, SIZE + 4096);
    mc_segment_id segment, again;
    path_in(where, "file", path);
    make_file(path, SIZE);
    snprintf(url, sizeof(url), "file://%s", path);
    assert_ok(mc_segment_open(engine, url, &segment));
    assert_ok(mc_segment_open(engine, url, &again));
    assert_true(segment > 0 && segment == again);
    struct mc_buffer_info info;
    size_t count = 0;
    assert_ok(mc_segment_buffers(engine, segment, &info, 1, &count));
    assert_int_equal(count, 1);
    assert_true(info.addr == 0 && info.length == SIZE);
    assert_string_equal(info.location, "file");
    assert_ok(mc_segment_probe(engine, segment, mc_deadline_in_ms(1000)));
    for (size_t i = 0; i < MC_ARRAY_LEN(moves); i++) {
        uint64_t offset = moves[i].offset, length = moves[i].length;
        char *at = local + moves[i].skew;
        mc_test_fill(at, length, i);
        assert_ok(move(engine, MC_TRANSFER_WRITE, segment, at, offset, length));
        check_file(path, offset, length, i);
        mc_test_fill(at, length, i + 100);
        write_file(path, offset, at, length);
        memset(at, 0, length);
        assert_ok(move(engine, MC_TRANSFER_READ, segment, at, offset, length));
        mc_test_verify(at, length, i + 100);
    }
    assert_true(te_counter(engine, "mooncake_te_file_operations_total{mode=\"buffered\"}") > 0);
    assert_ok(mc_segment_close(engine, segment));
    assert_ok(mc_segment_close(engine, segment));
    assert_int_equal(move(engine, MC_TRANSFER_READ, segment, local, 0, 1), MC_SEGMENT_NOT_FOUND);
    mc_engine_destroy(engine);
    unlink(path);
    free(local);
}

static void test_a_file_on_disk(void **state) {
    move_everything(directory);
}
static void test_a_file_in_memory(void **state) {
    move_everything("/dev/shm");
}

static void test_aligned_requests_bypass_the_cache(void **state) {
    struct mc_engine *engine = make_engine(true);
    char path[128], url[160];
    char *local = aligned_alloc(4096, 1 << 20);
    mc_segment_id segment;
    path_in(directory, "direct", path);
    make_file(path, 1 << 20);
    int fd = open(path, O_RDWR | O_DIRECT);
    snprintf(url, sizeof(url), "file://%s", path);
    assert_ok(mc_segment_open(engine, url, &segment));
    mc_test_fill(local, 1 << 20, 3);
    assert_ok(move(engine, MC_TRANSFER_WRITE, segment, local, 0, 1 << 20));
    check_file(path, 0, 1 << 20, 3);
    int64_t direct = te_counter(engine, "mooncake_te_file_operations_total{mode=\"direct\"}");
    assert_true(fd < 0 ? direct == 0 : direct > 0); /* where the file system has it */
    if (fd >= 0) {
        close(fd);
    }
    mc_engine_destroy(engine);
    free(local);
}

static void test_published_files_lie_end_to_end(void **state) {
    struct mc_engine *owner = make_engine(false), *reader = make_engine(false);
    const uint64_t sizes[] = {5000, 1 << 20, 1, 123457};
    struct mc_segment_file files[MC_ARRAY_LEN(sizes)];
    char paths[MC_ARRAY_LEN(sizes)][128], name[32];
    uint64_t total = 0, at = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        snprintf(name, sizeof(name), "part%zu", i);
        path_in(directory, name, paths[i]);
        make_file(paths[i], sizes[i] + 10); /* the last bytes are not the segment's */
        files[i] = (struct mc_segment_file){paths[i], sizes[i]};
        total += sizes[i];
    }
    mc_segment_id segment;
    assert_int_equal(mc_segment_open(reader, "pool/one", &segment), MC_SEGMENT_NOT_FOUND);
    assert_ok(mc_segment_publish_files(owner, "pool/one", files, MC_ARRAY_LEN(sizes)));
    assert_ok(mc_segment_open(reader, "pool/one", &segment));
    mc_engine_destroy(owner); /* the files do not need who published them */
    char *bytes = malloc(total), *pieces = malloc(total);
    mc_test_fill(bytes, total, 9);
    assert_ok(move(reader, MC_TRANSFER_WRITE, segment, bytes, 0, total));
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        char *got = malloc(sizes[i] + 10);
        int fd = open(paths[i], O_RDONLY);
        assert_int_equal(read(fd, got, sizes[i] + 10), (ssize_t)sizes[i] + 10);
        close(fd);
        assert_memory_equal(got, bytes + at, sizes[i]);
        assert_memory_equal(got + sizes[i], "\0\0\0\0\0\0\0\0\0\0", 10);
        at += sizes[i];
        free(got);
    }
    memset(bytes, 0, total);
    for (at = 0; at < total; at += 4999) { /* pieces that cross the seams, as one batch each */
        uint64_t length = mc_min_u64(4999, total - at);
        assert_ok(move(reader, MC_TRANSFER_READ, segment, pieces + at, at, length));
    }
    mc_test_verify(pieces, total, 9);
    assert_int_equal(move(reader, MC_TRANSFER_READ, segment, bytes, total, 1),
                     MC_ERR_NOT_REGISTERED);
    assert_int_equal(move(reader, MC_TRANSFER_WRITE, segment, bytes, total - 1, 2),
                     MC_ERR_NOT_REGISTERED);
    assert_ok(mc_segment_close(reader, segment));
    assert_ok(mc_segment_withdraw_files(reader, "pool/one"));
    assert_int_equal(mc_segment_open(reader, "pool/one", &segment), MC_SEGMENT_NOT_FOUND);
    mc_engine_destroy(reader);
    free(bytes);
    free(pieces);
}

struct worker {
    struct mc_engine *engine;
    mc_segment_id segment;
    uint64_t number;
    enum mc_status status;
    char *memory;
};
#define EACH  (1u << 20)
#define COUNT 64

static void *batches(void *arg) {
    struct worker *w = arg;
    struct mc_transfer_request requests[COUNT];
    for (enum mc_transfer_op op = MC_TRANSFER_WRITE;; op = MC_TRANSFER_READ) {
        for (size_t i = 0; i < COUNT; i++) {
            size_t there = (i * 29) % COUNT;
            requests[i] = (struct mc_transfer_request){.op = op,
                                                       .local = w->memory + i * (EACH / COUNT),
                                                       .segment = w->segment,
                                                       .remote_addr = w->number * EACH +
                                                                      there * (EACH / COUNT),
                                                       .length = EACH / COUNT};
        }
        w->status = mc_transfer(w->engine, requests, COUNT, mc_deadline_in_ms(30000));
        if (op == MC_TRANSFER_READ || w->status != MC_OK) {
            return NULL;
        }
        memset(w->memory, 0, EACH);
    }
}

static void test_many_threads(void **state) {
    enum { THREADS = 6 };
    struct mc_engine *engine = make_engine(true);
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    char path[128], url[160];
    mc_segment_id segment;
    path_in(directory, "shared", path);
    make_file(path, THREADS * (uint64_t)EACH);
    snprintf(url, sizeof(url), "file://%s", path);
    assert_ok(mc_segment_open(engine, url, &segment));
    for (uint64_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){engine, segment, i, MC_OK, aligned_alloc(4096, EACH)};
        mc_test_fill(workers[i].memory, EACH, i);
        assert_int_equal(pthread_create(&threads[i], NULL, batches, &workers[i]), 0);
    }
    for (uint64_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_ok(workers[i].status);
        mc_test_verify(workers[i].memory, EACH, i);
        free(workers[i].memory);
    }
    mc_engine_destroy(engine);
}

/* ---- what goes wrong ---- */

static void test_names_that_are_no_files(void **state) {
    struct mc_engine *engine = make_engine(true), *with_service = make_engine(false);
    mc_segment_id segment = 7;
    char url[160];
    assert_int_equal(mc_segment_open(engine, "file:///nowhere/at/all", &segment),
                     MC_FILE_NOT_FOUND);
    snprintf(url, sizeof(url), "file://%s", directory);
    assert_int_equal(mc_segment_open(engine, url, &segment), MC_FILE_OPEN_FAIL);
    assert_int_equal(mc_segment_open(engine, "file://relative", &segment), MC_INVALID_PARAMS);
    assert_int_equal(mc_segment_open(engine, "file:///dev/null", &segment), MC_INVALID_PARAMS);
    assert_int_equal(mc_segment_open(with_service, "no/such/pool", &segment), MC_SEGMENT_NOT_FOUND);
    assert_int_equal(segment, 7);
    struct mc_segment_file file = {"/etc/hostname", 0};
    assert_int_equal(mc_segment_publish_files(engine, "pool/x", &file, 1), MC_NOT_SUPPORTED);
    assert_int_equal(mc_segment_publish_files(with_service, "pool", &file, 1), MC_INVALID_PARAMS);
    assert_int_equal(mc_segment_publish_files(with_service, "file:///x", &file, 1),
                     MC_INVALID_PARAMS);
    assert_int_equal(mc_segment_publish_files(with_service, "pool/x", &file, 0), MC_INVALID_PARAMS);
    file.path = "hostname";
    assert_int_equal(mc_segment_publish_files(with_service, "pool/x", &file, 1), MC_INVALID_PARAMS);
    file.path = "/nowhere/at/all";
    assert_int_equal(mc_segment_publish_files(with_service, "pool/x", &file, 1), MC_FILE_NOT_FOUND);
    file = (struct mc_segment_file){"/etc/hostname", 1 << 30};
    assert_int_equal(mc_segment_publish_files(with_service, "pool/x", &file, 1), MC_FILE_READ_FAIL);
    mc_engine_destroy(engine);
    mc_engine_destroy(with_service);
}

/* A published file of this path; requests on it fail with these. */
static void check_failures(const char *path, uint64_t length, enum mc_status read,
                           enum mc_status write) {
    struct mc_engine *engine = make_engine(false);
    struct mc_segment_file file = {path, length};
    char *local = aligned_alloc(4096, 8192);
    mc_segment_id segment;
    memset(local, 1, 8192);
    assert_ok(mc_segment_publish_files(engine, "odd/one", &file, 1));
    assert_ok(mc_segment_open(engine, "odd/one", &segment));
    for (int skew = 0; skew < 2; skew++) { /* aligned and not */
        assert_int_equal(move(engine, MC_TRANSFER_READ, segment, local + skew, 0, 4096), read);
        assert_int_equal(move(engine, MC_TRANSFER_WRITE, segment, local + skew, 0, 4096), write);
    }
    struct mc_transfer_request requests[2] = {
        {.op = MC_TRANSFER_READ, .local = local, .segment = segment, .length = 4096},
        {.op = MC_TRANSFER_READ,
         .local = local,
         .segment = segment,
         .remote_addr = length,
         .length = 1}};
    assert_int_not_equal(mc_transfer(engine, requests, 2, mc_deadline_in_ms(30000)), MC_OK);
    assert_ok(mc_segment_withdraw_files(engine, "odd/one"));
    mc_engine_destroy(engine);
    free(local);
}

static void test_a_full_device(void **state) {
    check_failures("/dev/full", 1 << 20, MC_OK, MC_FILE_WRITE_FAIL); /* ENOSPC */
}

static void test_a_device_that_fails(void **state) {
    check_failures("/proc/self/mem", 1 << 20, MC_FILE_READ_FAIL, MC_FILE_WRITE_FAIL); /* EIO */
}

static void test_a_file_that_shrinks(void **state) {
    struct mc_engine *engine = make_engine(true);
    char path[128], url[160], local[8192];
    mc_segment_id segment;
    path_in(directory, "shrinks", path);
    make_file(path, 65536);
    snprintf(url, sizeof(url), "file://%s", path);
    assert_ok(mc_segment_open(engine, url, &segment));
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(move(engine, MC_TRANSFER_READ, segment, local, 0, 8192), MC_FILE_READ_FAIL);
    /* The failure made the engine look at the file again, and it now knows the new length. */
    assert_int_equal(move(engine, MC_TRANSFER_READ, segment, local, 4096, 1),
                     MC_ERR_NOT_REGISTERED);
    assert_ok(move(engine, MC_TRANSFER_READ, segment, local, 0, 4096));
    assert_int_equal(truncate(path, 65536), 0);
    assert_ok(mc_segment_refresh(engine, segment));
    assert_ok(move(engine, MC_TRANSFER_READ, segment, local, 60000, 5536));
    mc_engine_destroy(engine);
}

static void test_a_deadline_that_has_passed(void **state) {
    struct mc_engine *engine = make_engine(true);
    char path[128], url[160], local[100];
    mc_segment_id segment;
    struct mc_batch *batch = NULL;
    path_in(directory, "late", path);
    make_file(path, 65536);
    snprintf(url, sizeof(url), "file://%s", path);
    assert_ok(mc_segment_open(engine, url, &segment));
    struct mc_transfer_request r = {
        .op = MC_TRANSFER_READ, .local = local, .segment = segment, .length = 100};
    assert_int_equal(mc_transfer(engine, &r, 1, 1), MC_ERR_TIMEOUT);
    for (int i = 0; i < 200; i++) { /* cancelled before, on and after the ring */
        struct mc_transfer_status status;
        assert_ok(mc_batch_create(engine, 1, &batch));
        assert_ok(mc_batch_submit(batch, &r, 1, MC_WAIT_FOREVER));
        assert_ok(mc_batch_cancel(batch, 0));
        assert_ok(mc_batch_task(batch, 0, &status));
        assert_true(status.state == MC_TRANSFER_COMPLETED ||
                    (status.state == MC_TRANSFER_FAILED && status.error == MC_ERR_CANCELLED));
        (void)!mc_batch_wait(batch, MC_WAIT_FOREVER);
        assert_ok(mc_batch_free(batch));
    }
    mc_engine_destroy(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_on_disk),
        cmocka_unit_test(test_a_file_in_memory),
        cmocka_unit_test(test_aligned_requests_bypass_the_cache),
        cmocka_unit_test(test_published_files_lie_end_to_end),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_names_that_are_no_files),
        cmocka_unit_test(test_a_full_device),
        cmocka_unit_test(test_a_device_that_fails),
        cmocka_unit_test(test_a_file_that_shrinks),
        cmocka_unit_test(test_a_deadline_that_has_passed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
