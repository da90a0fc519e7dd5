/* File operations move all bytes or fail, each with its own status, through io_uring and without
 * it. */
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "io/file.h"

static char path[64];

static int setup(void **state) {
    snprintf(path, sizeof(path), "/tmp/mc_file_%d", (int)getpid());
    return 0;
}

static int teardown(void **state) {
    unlink(path);
    return 0;
}

#define PIECES 300

static void round_trip(unsigned depth, bool want_direct) {
    struct mc_file_ring *ring;
    struct mc_file_op ops[PIECES];
    const size_t piece = 8192, total = PIECES * piece;
    char *out = aligned_alloc(4096, total), *in = aligned_alloc(4096, total);
    bool direct;
    int fd;
    mc_test_fill(out, total, depth);
    memset(in, 0, total);
    assert_ok(mc_file_ring_create(depth, &ring));
    assert_ok(mc_file_open(path, O_RDWR | O_CREAT | O_TRUNC, want_direct, &fd, &direct));
    assert_true(want_direct || !direct);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    for (size_t i = 0; i < PIECES; i++) { /* in an order of their own */
        size_t at = (i * 7 % PIECES) * piece;
        ops[i] = (struct mc_file_op){true, fd, out + at, piece, at, MC_INTERNAL_ERROR};
    }
    assert_ok(mc_file_run(ring, ops, PIECES));
    for (size_t i = 0; i < PIECES; i++) {
        assert_ok(ops[i].status);
        ops[i] =
            (struct mc_file_op){false, fd, in + i * piece, piece, i * piece, MC_INTERNAL_ERROR};
    }
    assert_ok(mc_file_run(ring, ops, PIECES));
    mc_test_verify(in, total, depth);
    close(fd);
    mc_file_ring_destroy(ring);
    free(out);
    free(in);
}

static void test_pieces_are_written_and_read_whole(void **state) {
    round_trip(1, false);
    round_trip(8, false);
    round_trip(512, false);
    round_trip(16, true);
}

static void test_each_operation_has_its_own_status(void **state) {
    struct mc_file_ring *ring;
    char bytes[10000], got[5][1000];
    bool direct;
    int fd, read_only;
    mc_test_fill(bytes, sizeof(bytes), 3);
    assert_ok(mc_file_ring_create(4, &ring));
    assert_ok(mc_file_replace(path, (struct mc_str){bytes, 1500}));
    assert_ok(mc_file_open(path, O_RDWR, false, &fd, &direct));
    assert_ok(mc_file_open(path, O_RDONLY, false, &read_only, &direct));
    struct mc_file_op ops[] = {
        {false, fd, got[0], 1000, 0, MC_INTERNAL_ERROR},
        {false, fd, got[1], 1000, 501, MC_INTERNAL_ERROR}, /* one byte behind the end */
        {false, -1, got[2], 1000, 0, MC_INTERNAL_ERROR},
        {true, read_only, bytes, 10, 0, MC_INTERNAL_ERROR},
        {false, fd, got[3], 0, 5000, MC_INTERNAL_ERROR}, /* nothing is always there */
        {false, fd, got[3], 10, UINT64_MAX - 5, MC_INTERNAL_ERROR},
        {false, fd, NULL, 10, 0, MC_INTERNAL_ERROR},
        {false, fd, got[4], 1000, 500, MC_INTERNAL_ERROR},
    };
    assert_int_equal(mc_file_run(ring, ops, MC_ARRAY_LEN(ops)), MC_FILE_READ_FAIL);
    assert_ok(ops[0].status);
    assert_int_equal(ops[1].status, MC_FILE_READ_FAIL);
    assert_int_equal(ops[2].status, MC_FILE_INVALID_HANDLE);
    assert_int_equal(ops[3].status, MC_FILE_INVALID_HANDLE);
    assert_ok(ops[4].status);
    assert_int_equal(ops[5].status, MC_INVALID_PARAMS);
    assert_int_equal(ops[6].status, MC_INVALID_PARAMS);
    assert_ok(ops[7].status);
    assert_memory_equal(got[0], bytes, 1000);
    assert_memory_equal(got[4], bytes + 500, 1000);
    assert_ok(mc_file_run(ring, ops, 1)); /* the ring still works */
    assert_ok(mc_file_run(ring, NULL, 0));
    close(fd);
    close(read_only);
    mc_file_ring_destroy(ring);
}

static void test_a_full_disk_is_a_failed_write(void **state) {
    struct mc_file_ring *ring;
    bool direct;
    int fd;
    if (mc_file_open("/dev/full", O_WRONLY, false, &fd, &direct) != MC_OK) {
        skip();
    }
    assert_ok(mc_file_ring_create(2, &ring));
    struct mc_file_op op = {true, fd, path, 10, 0, MC_OK};
    assert_int_equal(mc_file_run(ring, &op, 1), MC_FILE_WRITE_FAIL);
    close(fd);
    mc_file_ring_destroy(ring);
}

static void test_depth_is_bounded(void **state) {
    struct mc_file_ring *ring = NULL;
    assert_int_equal(mc_file_ring_create(0, &ring), MC_INVALID_PARAMS);
    assert_int_equal(mc_file_ring_create(1u << 20, &ring), MC_INVALID_PARAMS);
    assert_null(ring);
}

/* Makes io_uring_setup fail with EPERM, as containers do. For the rest of the process. */
static bool forbid_io_uring(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {MC_ARRAY_LEN(code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* What a second ring without io_uring adds to standard error is nothing. */
static unsigned said_by_two_rings(void) {
    char text[4000] = {0};
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_ok(mc_log_set_level("WARNING"));
    assert_non_null(log);
    assert_true(kept >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    for (unsigned i = 0; i < 2; i++) {
        struct mc_file_ring *ring;
        assert_ok(mc_file_ring_create(4, &ring));
        assert_false(mc_file_ring_is_native(ring));
        mc_file_ring_destroy(ring);
    }
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(log);
    assert_true(fread(text, 1, sizeof(text) - 1, log) < sizeof(text) - 1);
    fclose(log);
    unsigned count = 0;
    for (const char *at = text; (at = strstr(at, "refuses io_uring")) != NULL; at++) {
        count++;
    }
    return count;
}

static void test_everything_holds_without_io_uring(void **state) {
    if (!forbid_io_uring()) {
        skip();
    }
    assert_int_equal(said_by_two_rings(), 1); /* aloud, and once */
    test_pieces_are_written_and_read_whole(state);
    test_each_operation_has_its_own_status(state);
    test_a_full_disk_is_a_failed_write(state);
}

static void test_small_files_are_read_whole_and_replaced_at_once(void **state) {
    struct mc_buf got = {0};
    char bytes[200000];
    mc_test_fill(bytes, sizeof(bytes), 9);
    assert_int_equal(mc_file_read_all(path, 100, &got), MC_FILE_NOT_FOUND);
    assert_ok(mc_file_replace(path, (struct mc_str){bytes, sizeof(bytes)}));
    assert_ok(mc_file_read_all(path, sizeof(bytes), &got));
    assert_int_equal(got.len, sizeof(bytes));
    mc_test_verify(got.data, got.len, 9);
    assert_int_equal(mc_file_read_all(path, sizeof(bytes) - 1, &got), MC_ERR_LIMIT);
    assert_int_equal(got.len, 0);
    assert_ok(mc_file_replace(path, MC_STR("short")));
    assert_ok(mc_file_read_all(path, 5, &got));
    assert_string_equal(mc_buf_cstr(&got), "short");
    assert_ok(mc_file_replace(path, MC_STR("")));
    assert_ok(mc_file_read_all(path, 0, &got));
    assert_int_equal(got.len, 0);
    assert_int_equal(mc_file_read_all("/tmp", 100, &got), MC_FILE_READ_FAIL);
    assert_int_equal(mc_file_replace("/no/such/folder/file", MC_STR("x")), MC_FILE_WRITE_FAIL);
    mc_buf_free(&got);
}

static void test_a_failed_replace_leaves_the_old_file_and_no_litter(void **state) {
    char directory[80], inner[96];
    snprintf(directory, sizeof(directory), "%s.d", path);
    snprintf(inner, sizeof(inner), "%s/x", directory);
    assert_int_equal(mkdir(directory, 0755), 0);
    assert_ok(mc_file_replace(inner, MC_STR("old")));
    /* A folder is in the way. */
    assert_int_equal(mc_file_replace(directory, MC_STR("new")), MC_FILE_WRITE_FAIL);
    struct mc_buf got = {0};
    assert_ok(mc_file_read_all(inner, 100, &got));
    assert_string_equal(mc_buf_cstr(&got), "old");
    mc_buf_clear(&got);
    mc_buf_printf(&got, "%s.tmp.%d.%d", directory, (int)getpid(), (int)gettid());
    assert_int_equal(access(mc_buf_cstr(&got), F_OK), -1);
    mc_buf_free(&got);
    unlink(inner);
    rmdir(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pieces_are_written_and_read_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_operation_has_its_own_status, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_a_failed_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_depth_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_files_are_read_whole_and_replaced_at_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_failed_replace_leaves_the_old_file_and_no_litter,
                                        setup, teardown),
        /* last: there is no way back */
        cmocka_unit_test_setup_teardown(test_everything_holds_without_io_uring, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
