/*
 * Dummy clients share one node: bytes come back by every road, addresses that
 * are not a dummy's and memory that is not what it says are refused, a killed
 * or silent dummy is forgotten and its memory unmapped, a node that comes back
 * gets the memory again at the same addresses, and too many dummies or too much
 * memory is refused while the others are served. MC_TEST_THREADS
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/io.h"
#include "mooncake/store.h"
#include "support/live.h"
#include "wire/client_rpc.h"
#include "wire/dummy_ipc.h"

#define BUFFER (4u << 20)
#define LARGE  (6u << 20)
#define SHARED (1u << 20)
#define KEYS   600

static struct live master, node;
static unsigned port;

/* *at is the port of its RPC server. */
static void start_node_of(struct live *n, unsigned rpc_port, unsigned descriptors, unsigned *at) {
    char flag[32];
    char line[256];
    snprintf(flag, sizeof(flag), "--port=%u", rpc_port);
    const char *flags[] = {flag, "--listen=127.0.0.1", NULL};
    live_node(n, &master, "64MB", flags, descriptors);
    FILE *f = fopen(n->log, "re");
    assert_non_null(f);
    *at = 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        const char *text = strstr(line, "rpc port ");
        if (text != NULL) {
            assert_int_equal(sscanf(text, "rpc port %u", at), 1);
        }
    }
    fclose(f);
    assert_true(*at != 0);
}
static void start_node(void) {
    start_node_of(&node, port, 0, &port);
}

static enum mc_status try_dummy(unsigned at, struct mc_store **store) {
    char address[32];
    struct mc_store_options options;
    snprintf(address, sizeof(address), "127.0.0.1:%u", at);
    mc_store_options_init(&options);
    options.real_client = address;
    options.local_buffer_bytes = BUFFER;
    options.timeout_ms = 10000;
    return mc_store_open(&options, store);
}
static struct mc_store *open_dummy(unsigned at) {
    struct mc_store *store = NULL;
    assert_int_equal(try_dummy(at, &store), MC_OK);
    return store;
}

static char *filled(size_t size, uint64_t seed) {
    char *bytes = mc_alloc(size);
    mc_test_fill(bytes, size, seed);
    return bytes;
}

static void *take_memory(void *ctx, size_t length) {
    *(char **)ctx = mc_alloc(length);
    return *(char **)ctx;
}

/* Reads the key in memory whose size the store asks for. */
static void expect_bytes(struct mc_store *store, const char *key, const char *want, size_t size) {
    char *got = NULL;
    struct mc_store_item item = {.key = key, .allocate = take_memory, .allocate_ctx = &got};
    assert_int_equal(mc_store_get_batch(store, &item, 1), MC_OK);
    assert_int_equal(item.status, MC_OK);
    assert_int_equal(item.length, size);
    assert_true(size > 0);
    assert_memory_equal(got, want, size);
    free(got);
}

static void expect_bytes_into(struct mc_store *store, const char *key, char *memory,
                              const char *want, size_t size) {
    size_t length = 0;
    memset(memory, 0, size);
    assert_int_equal(mc_store_get(store, key, memory, size, &length), MC_OK);
    assert_int_equal(length, size);
    assert_memory_equal(memory, want, size);
}

static void test_bytes_come_back_by_every_road(void **state) {
    struct mc_store *one = open_dummy(port), *two = open_dummy(port);
    char *small = filled(5000, 1), *large = filled(LARGE, 2), *room = mc_alloc(LARGE);
    char *shared = mc_shared_alloc(SHARED), *original = filled(SHARED, 3);
    size_t length = 0;
    bool exists = false;
    assert_non_null(shared);
    memcpy(shared, original, SHARED);
    assert_int_equal(mc_store_register_buffer(one, shared, SHARED), MC_OK);
    assert_int_equal(mc_store_register_buffer(one, shared + 4096, 4096), MC_INTERNAL_ERROR);
    assert_true(mc_store_reaches(one, shared + 10, 100) && !mc_store_reaches(two, shared, 1));

    assert_int_equal(mc_store_put(one, "small", small, 5000, NULL), MC_OK);  /* staged */
    assert_int_equal(mc_store_put(one, "large", large, LARGE, NULL), MC_OK); /* in the request */
    assert_int_equal(mc_store_put(one, "shared", shared, SHARED, NULL), MC_OK);
    expect_bytes(two, "small", small, 5000);
    expect_bytes(two, "shared", original, SHARED);
    expect_bytes_into(two, "small", room, small, 5000);
    expect_bytes_into(one, "shared", shared, original, SHARED);
    assert_int_equal(mc_store_get(two, "small", room, 100, &length), MC_BUFFER_OVERFLOW);
    assert_int_equal(length, 5000);
    assert_int_equal(mc_store_get(two, "none", room, 100, &length), MC_OBJECT_NOT_FOUND);

    /* More than the buffer holds: by memory that is shared for it. */
    char *wide = mc_shared_alloc(LARGE);
    assert_non_null(wide);
    assert_int_equal(mc_store_register_buffer(two, wide, LARGE), MC_OK);
    expect_bytes_into(two, "large", wide, large, LARGE);
    assert_int_equal(mc_store_unregister_buffer(two, wide), MC_OK);
    assert_false(mc_store_reaches(two, wide, LARGE));

    assert_int_equal(mc_store_upsert(two, "small", large, 6000, NULL), MC_OK);
    expect_bytes(one, "small", large, 6000);
    assert_int_equal(mc_store_exist(one, "small", &exists), MC_OK);
    assert_true(exists);
    assert_int_equal(mc_store_remove(one, "small", true), MC_OK);
    assert_int_equal(mc_store_exist(two, "small", &exists), MC_OK);
    assert_false(exists);

    mc_store_close(one);
    mc_store_close(two);
    assert_true(mc_shared_free(shared) && mc_shared_free(wide) && !mc_shared_free(wide));
    free(small);
    free(large);
    free(original);
    free(room);
}

static void test_a_batch_of_several_chunks(void **state) {
    struct mc_store *store = open_dummy(port);
    struct mc_store_item items[KEYS];
    struct mc_slice slices[KEYS];
    char keys[KEYS][16];
    char *values = filled(KEYS * 4096, 4), *room = mc_zalloc(KEYS * 4096);
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof(keys[i]), "batch%zu", i);
        slices[i] = (struct mc_slice){values + i * 4096, 4096 - i};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    assert_int_equal(mc_store_put_batch(store, items, KEYS, NULL), MC_OK);
    for (size_t i = 0; i < KEYS; i++) {
        assert_int_equal(items[i].status, MC_OK);
        slices[i] = (struct mc_slice){room + i * 4096, 4096};
    }
    assert_int_equal(mc_store_get_batch(store, items, KEYS), MC_OK);
    for (size_t i = 0; i < KEYS; i++) {
        assert_int_equal(items[i].status, MC_OK);
        assert_int_equal(items[i].length, 4096 - i);
        assert_memory_equal(room + i * 4096, values + i * 4096, 4096 - i);
    }
    mc_store_close(store);
    free(values);
    free(room);
}

/* ---- what is refused ---- */

static int32_t register_raw(const struct mc_dummy_register *r, int fd) {
    char name[64];
    uint32_t type = MC_DUMMY_IPC_REGISTER;
    int32_t answer = 1;
    int connection, passed;
    snprintf(name, sizeof(name), MC_DUMMY_SOCKET_FORMAT, port);
    assert_int_equal(mc_local_connect_stream(name, 5000, &connection), MC_OK);
    assert_int_equal(mc_local_send(connection, &type, sizeof(type), -1), MC_OK);
    assert_int_equal(mc_local_send(connection, r, sizeof(*r), fd), MC_OK);
    assert_int_equal(mc_local_recv_stream(connection, &answer, sizeof(answer),
                                          mc_now_ns(mc_clock_system()) + 10 * MC_SEC, &passed),
                     MC_OK);
    close(connection);
    return answer;
}

static int32_t put_raw(struct mc_uuid client, uint64_t address, uint64_t size) {
    const struct mc_rpc_desc *desc =
        &mc_client_rpc_table()[MC_CLIENT_RPC_batch_put_from_dummy_helper];
    char host[32];
    struct mc_rpc_client *rpc;
    struct mc_arena arena = {0};
    struct mc_buf request = {0}, reply = {0};
    struct mc_str key = MC_STR("raw");
    struct mc_vec ret = {0};
    struct mw_a_dummy_put_from args = {.keys = {&key, 1},
                                       .addresses = {&address, 1},
                                       .sizes = {&size, 1},
                                       .config = {.replica_num = 1},
                                       .client = client};
    snprintf(host, sizeof(host), "127.0.0.1:%u", port);
    assert_int_equal(mc_rpc_client_create(host, 1, 3000, &rpc), MC_OK);
    mc_master_rpc_encode_args(desc, 0, &args, &request);
    assert_int_equal(mc_rpc_call(rpc, desc->function_id, (struct mc_str){request.data, request.len},
                                 mc_now_ns(mc_clock_system()) + 30 * MC_SEC, &reply, NULL),
                     MC_OK);
    assert_int_equal(
        mc_master_rpc_decode_ret(desc, 0, (struct mc_str){reply.data, reply.len}, &arena, &ret),
        MC_OK);
    assert_int_equal(ret.count, 1);
    int32_t error = ((struct mw_e_void *)ret.items)->error;
    mc_arena_free(&arena);
    mc_buf_free(&request);
    mc_buf_free(&reply);
    mc_rpc_client_destroy(rpc);
    return error;
}

static void test_foreign_addresses_and_wrong_memory_are_refused(void **state) {
    struct mc_uuid client = {7, 8};
    int fd = memfd_create("short", MFD_CLOEXEC), ends[2];
    struct mc_dummy_register r = {.client = client, .base = 1u << 30, .size = 8192, .device = -1};
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(register_raw(&r, fd), -1); /* shorter than it says */
    assert_int_equal(register_raw(&r, ends[0]), -1);
    assert_int_equal(register_raw(&r, -1), -1);
    r.base = UINT64_MAX - 100;
    r.size = 4096;
    assert_int_equal(register_raw(&r, fd), -1); /* wraps */
    r.base = 1u << 30;
    r.device = 0;
    assert_int_equal(register_raw(&r, fd), -1); /* a device's */
    r.device = -1;
    assert_int_equal(put_raw(client, r.base, 100), MC_INVALID_PARAMS); /* nothing was taken */
    assert_int_equal(register_raw(&r, fd), 0);
    assert_int_equal(put_raw(client, r.base, 100), 0);
    assert_int_equal(put_raw(client, r.base + 4090, 100), MC_INVALID_PARAMS);
    assert_int_equal(put_raw(client, r.base - 1, 100), MC_INVALID_PARAMS);
    assert_int_equal(put_raw(client, UINT64_MAX - 10, 100), MC_INVALID_PARAMS);
    assert_int_equal(put_raw((struct mc_uuid){7, 9}, r.base, 100), MC_INVALID_PARAMS);
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

static int connect_raw(void) {
    char name[64];
    int connection;
    snprintf(name, sizeof(name), MC_DUMMY_SOCKET_FORMAT, port);
    assert_int_equal(mc_local_connect_stream(name, 60000, &connection), MC_OK);
    return connection;
}

/* Sends the second half of a request, behind its type. Whether it was answered. */
static bool end_late(int connection, const struct mc_dummy_register *r, int fd) {
    int32_t answer = 1;
    int passed;
    bool answered =
        mc_local_send(connection, r, sizeof(*r), fd) == MC_OK &&
        mc_local_recv_stream(connection, &answer, sizeof(answer),
                             mc_now_ns(mc_clock_system()) + 60 * MC_SEC, &passed) == MC_OK;
    assert_true(!answered || answer == 0);
    return answered;
}

/* One says nothing, one says half, one comes behind them and is served before they are hung up on,
 * after a second: should the machine not get so far within it, the next try does. */
static void test_a_slow_dummy_holds_up_nobody(void **state) {
    const uint32_t type = MC_DUMMY_IPC_REGISTER;
    struct mc_dummy_register r = {.client = {7, 11}, .base = 1u << 30, .size = 4096, .device = -1};
    bool side_by_side = false;
    int fd = memfd_create("slow", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4096), 0);
    for (int i = 0; i < 30 && !side_by_side; i++) {
        int silent = connect_raw(), slow = connect_raw();
        assert_int_equal(mc_local_send(slow, &type, sizeof(type), -1), MC_OK);
        assert_int_equal(register_raw(&r, fd), 0);
        struct pollfd hung_up = {silent, POLLIN, 0};
        bool open = poll(&hung_up, 1, 0) == 0;
        r.base += 8192;
        side_by_side = end_late(slow, &r, fd) && open;
        assert_int_equal(poll(&hung_up, 1, 60000), 1); /* in the end */
        char byte;
        assert_int_equal(read(silent, &byte, 1), 0);
        close(silent);
        close(slow);
    }
    assert_true(side_by_side);
    close(fd);
}

/* More than the node reads at once, all silent: they go by themselves. */
static void test_silent_dummies_do_not_stay(void **state) {
    enum { MANY = 100 };
    struct mc_dummy_register r = {.client = {7, 12}, .base = 1u << 30, .size = 4096, .device = -1};
    int silent[MANY], fd = memfd_create("behind", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4096), 0);
    for (int i = 0; i < MANY; i++) {
        silent[i] = connect_raw();
    }
    assert_int_equal(register_raw(&r, fd), 0);
    for (int i = 0; i < MANY; i++) {
        struct pollfd hung_up = {silent[i], POLLIN, 0};
        char byte;
        assert_int_equal(poll(&hung_up, 1, 60000), 1);
        assert_int_equal(read(silent[i], &byte, 1), 0);
        close(silent[i]);
    }
    close(fd);
}

/* Its process lives (this one), but it does not ping; another one does, and stays. */
static void test_a_silent_dummy_is_forgotten(void **state) {
#ifndef MC_SANITIZE /* takes ten seconds */
    struct mc_store *store = open_dummy(port);
    struct mc_uuid silent = {7, 9};
    struct mc_dummy_register r = {.client = silent, .base = 1u << 30, .size = 4096, .device = -1};
    int fd = memfd_create("silent", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(register_raw(&r, fd), 0);
    close(fd);
    assert_int_equal(put_raw(silent, r.base, 100), 0);
    for (int i = 0; i < 6000 && !live_log_says(&node, "client=7-9 mappings=1 cause=silent"); i++) {
        usleep(10000);
    }
    assert_true(live_log_says(&node, "client=7-9 mappings=1 cause=silent"));
    assert_int_equal(put_raw(silent, r.base, 100), MC_INVALID_PARAMS);
    char *want = filled(1000, 8);
    assert_int_equal(mc_store_put(store, "not silent", want, 1000, NULL), MC_OK);
    expect_bytes(store, "not silent", want, 1000);
    char *metrics = mc_store_metrics(store);
    assert_non_null(strstr(metrics, "\nmooncake_dummy_reconnects 0\n"));
    free(metrics);
    free(want);
    mc_store_close(store);
#endif
}

/* ---- limits ---- */

/* A node does not rely on the library of the other side, which has the same limit. */
static void test_a_dummy_has_so_many_mappings(void **state) {
    enum { MOST = 256 };
    struct mc_uuid client = {7, 10};
    int fd = memfd_create("many", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4096), 0);
    struct mc_dummy_register r = {.client = client, .size = 4096, .device = -1};
    for (uint64_t i = 0; i <= MOST; i++) {
        r.base = (1u << 30) + i * 8192;
        assert_int_equal(register_raw(&r, fd), i < MOST ? 0 : -1);
    }
    assert_true(live_log_says(&node, "the dummy has too many mappings"));
    assert_int_equal(put_raw(client, r.base, 100), MC_INVALID_PARAMS);
    assert_int_equal(put_raw(client, r.base - 8192, 100), 0);
    r.base -= 8192; /* the same again is no further one */
    assert_int_equal(register_raw(&r, fd), 0);
    close(fd);
}

/* A node of few descriptors: whoever comes too late is refused in time, who is there is served, and
 * when some have gone others may come. */
static void test_a_node_runs_out_of_descriptors(void **state) {
    enum { MANY = 64, DESCRIPTORS = 64 };
    struct live small;
    unsigned there;
    start_node_of(&small, 0, DESCRIPTORS, &there);
    struct mc_store *first = open_dummy(there), *others[MANY] = {NULL};
    char *want = filled(1000, 10);
    assert_int_equal(mc_store_put(first, "first", want, 1000, NULL), MC_OK);
    size_t open = 0;
    while (open < MANY && try_dummy(there, &others[open]) == MC_OK) {
        open++;
    }
    assert_in_range(open, 2, MANY - 1);
    expect_bytes(first, "first", want, 1000);
    for (size_t i = 0; i < open; i++) {
        mc_store_close(others[i]);
    }
    enum mc_status status = MC_RPC_FAIL;
    for (int i = 0; i < 3000 && status != MC_OK; i++) {
        status = try_dummy(there, &others[0]);
    }
    assert_int_equal(status, MC_OK);
    expect_bytes(others[0], "first", want, 1000);
    mc_store_close(others[0]);
    mc_store_close(first);
    free(want);
    assert_int_equal(live_end(&small, SIGTERM), 0);
}

/* ---- deaths ---- */

/* The child: a dummy that says when it is connected, and waits to be killed. */
static int child(const char *at) {
    char *value = filled(1000, 5);
    struct mc_store *store = open_dummy((unsigned)atoi(at));
    assert_int_equal(mc_store_put(store, "of the dead", value, 1000, NULL), MC_OK);
    assert_int_equal(write(STDOUT_FILENO, "x", 1), 1);
    pause();
    return 1;
}

static void test_a_killed_dummy_is_forgotten(void **state) {
    char at[16], byte;
    int ends[2];
    size_t before = live_guest_mappings(&node);
    snprintf(at, sizeof(at), "%u", port);
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "dummy", at, NULL);
        _exit(127);
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(live_guest_mappings(&node), before + 2);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    live_wait_guest_mappings(&node, before);
    assert_true(live_log_says(&node, "a dummy client is gone"));
    struct mc_store *store = open_dummy(port);
    char *want = filled(1000, 5);
    expect_bytes(store, "of the dead", want, 1000);
    mc_store_close(store);
    live_wait_guest_mappings(&node, before); /* who closes is forgotten too */
    free(want);
    close(ends[0]);
    close(ends[1]);
}

static void test_a_node_that_comes_back_gets_the_memory_again(void **state) {
    struct mc_store *store = open_dummy(port);
    char *shared = mc_shared_alloc(SHARED), *want = filled(SHARED, 6);
    assert_non_null(shared);
    assert_int_equal(mc_store_register_buffer(store, shared, SHARED), MC_OK);
    live_end(&node, SIGKILL);
    for (int i = 0; i < 20; i++) { /* more than the buffer holds, were it lost with each failure */
        assert_int_equal(mc_store_put(store, "meanwhile", want, SHARED, NULL), MC_RPC_FAIL);
    }
    start_node();
    memcpy(shared, want, SHARED);
    enum mc_status status = MC_RPC_FAIL;
    for (int i = 0; i < 3000 && status != MC_OK; i++) {
        status = mc_store_put(store, "again", shared, SHARED, NULL);
        if (status != MC_OK) {
            usleep(10000);
        }
    }
    assert_int_equal(status, MC_OK);
    expect_bytes_into(store, "again", shared, want, SHARED);
    expect_bytes(store, "again", want, SHARED);
    char *metrics = mc_store_metrics(store);
    assert_non_null(strstr(metrics, "\nmooncake_dummy_reconnects 1\n"));
    assert_non_null(strstr(metrics, "\nmooncake_dummy_lost_blocks 0\n"));
    free(metrics);
    mc_store_close(store);
    assert_true(mc_shared_free(shared));
    free(want);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[0], "dummy") == 0) {
        return child(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_back_by_every_road),
        cmocka_unit_test(test_a_batch_of_several_chunks),
        cmocka_unit_test(test_foreign_addresses_and_wrong_memory_are_refused),
        cmocka_unit_test(test_a_killed_dummy_is_forgotten),
        cmocka_unit_test(test_a_slow_dummy_holds_up_nobody),
        cmocka_unit_test(test_silent_dummies_do_not_stay),
        cmocka_unit_test(test_a_silent_dummy_is_forgotten),
        cmocka_unit_test(test_a_dummy_has_so_many_mappings),
        cmocka_unit_test(test_a_node_runs_out_of_descriptors),
        cmocka_unit_test(test_a_node_that_comes_back_gets_the_memory_again),
    };
    live_master(&master, NULL, 0);
    start_node();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    live_end(&node, SIGTERM);
    live_end(&master, SIGTERM);
    return failed;
}
