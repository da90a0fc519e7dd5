/*
 * Upstream's two engine interfaces, called wrongly: NULL in each place, names and numbers that do
 * not exist, ids that are stale or invented. Each is the error of the header, and nothing crashes.
 * MC_TEST_THREADS
 */
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compat/tent/transfer_engine.h"
#include "compat/transfer_engine_c.h"
#include "support/support.h"

static transfer_engine_t engine;
static char memory[8192];

static int setup(void **state) {
    engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    assert_non_null(engine);
    return 0;
}
static int teardown(void **state) {
    destroyTransferEngine(engine);
    destroyTransferEngine(NULL);
    return 0;
}

static void test_no_engine(void **state) {
    char text[64];
    int size = 7;
    size_t count = 0;
    nic_load_stat_t stat;
    struct transfer_request r = {OPCODE_READ, memory, 0, 0, 1};
    struct transfer_status status;
    buffer_entry_t buffer = {memory, 100};
    void *addr = memory;
    notify_msg_t note = {(char *)(uintptr_t) "n", (char *)(uintptr_t) "m"};
    assert_int_equal(discoverTopology(NULL), -1);
    assert_int_equal(getLocalIpAndPort(NULL, text, sizeof(text)), -1);
    assert_null(installTransport(NULL, "tcp", NULL));
    assert_int_equal(uninstallTransport(NULL, "tcp"), -1);
    assert_int_equal(openSegment(NULL, "x"), -1);
    assert_int_equal(openSegmentNoCache(NULL, "x"), -1);
    assert_int_equal(closeSegment(NULL, 1), -1);
    assert_int_equal(warmupEfaSegment(NULL, "x"), -1);
    assert_int_equal(removeLocalSegment(NULL, "x"), -1);
    assert_int_equal(syncSegmentCache(NULL), -1);
    assert_int_equal(registerLocalMemory(NULL, memory, 100, "*", 1), -1);
    assert_int_equal(unregisterLocalMemory(NULL, memory), -1);
    assert_int_equal(registerLocalMemoryBatch(NULL, &buffer, 1, "*"), -1);
    assert_int_equal(unregisterLocalMemoryBatch(NULL, &addr, 1), -1);
    assert_true(allocateBatchID(NULL, 1) == INVALID_BATCH);
    assert_int_equal(submitTransfer(NULL, 1, &r, 1), 1);
    assert_int_equal(submitTransferWithNotify(NULL, 1, &r, 1, note), 1);
    assert_int_equal(getTransferStatus(NULL, 1, 0, &status), 1);
    assert_int_equal(freeBatchID(NULL, 1), 1);
    assert_null(getNotifsFromEngine(NULL, &size));
    assert_int_equal(size, -1);
    assert_int_equal(genNotifyInEngine(NULL, 1, note), -1);
    assert_int_equal(getNicLoadStats(NULL, &stat, &count), -1);
    assert_int_equal(showLinks(NULL, text, sizeof(text), 1), -1);
    enableGracefulShutdown(NULL);
    assert_int_equal(freeNotifsMsgBuf(NULL, 0), 0);
    assert_int_equal(freeNotifsMsgBuf(NULL, 5), 0);
}

static void test_engines_that_cannot_be(void **state) {
    assert_null(createTransferEngine(NULL, "127.0.0.1", "", 0, 1));
    assert_null(createTransferEngine("gopher://x", "127.0.0.1", "", 0, 1));
    assert_null(createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "203.0.113.77", 0, 1));
    transfer_engine_t other = createTransferEngine("P2PHANDSHAKE", NULL, NULL, 0, 0);
    assert_non_null(other); /* the machine chooses */
    destroyTransferEngine(other);
}

static void test_names(void **state) {
    char text[64], small[4];
    void *bad[] = {(void *)(uintptr_t) "{\"cpu:0\": [", NULL};
    void *good[] = {(void *)(uintptr_t) "{\"cpu:0\": [[], []]}", NULL};
    assert_int_equal(getLocalIpAndPort(engine, text, sizeof(text)), 0);
    assert_memory_equal(text, "127.0.0.1:", 10);
    assert_int_equal(getLocalIpAndPort(engine, small, sizeof(small)), -1);
    assert_int_equal(getLocalIpAndPort(engine, NULL, 10), -1);
    assert_non_null(installTransport(engine, "tcp", NULL));
    assert_non_null(installTransport(engine, "tcp", good));
    assert_null(installTransport(engine, "tcp", bad));
    assert_null(installTransport(engine, "carrier-pigeon", NULL));
    assert_null(installTransport(engine, NULL, NULL));
    assert_int_equal(uninstallTransport(engine, "tcp"), 0);
    assert_int_equal(uninstallTransport(engine, "carrier-pigeon"), -1);
    assert_int_equal(openSegment(engine, text), LOCAL_SEGMENT);
    assert_int_equal(openSegmentNoCache(engine, text), LOCAL_SEGMENT);
    assert_int_equal(openSegment(engine, NULL), -1);
    assert_int_equal(openSegment(engine, ""), -1);
    assert_true(openSegment(engine, "127.0.0.1:1") < 0);
    assert_true(openSegmentNoCache(engine, "127.0.0.1:1") < 0);
    assert_int_equal(closeSegment(engine, 12345), -1);
    assert_int_equal(closeSegment(engine, -7), -1);
    assert_int_equal(closeSegment(engine, LOCAL_SEGMENT), 0);
    assert_int_equal(removeLocalSegment(engine, "somebody"), -1);
    assert_int_equal(removeLocalSegment(engine, text), 0);
    assert_int_equal(warmupEfaSegment(engine, "somebody"), 0);
    assert_int_equal(syncSegmentCache(engine), 0);
    assert_int_equal(discoverTopology(engine), 0);
}

static void test_memory(void **state) {
    buffer_entry_t buffers[] = {{memory, 1024}, {memory + 1024, 1024}, {memory + 512, 10}};
    void *addrs[] = {memory, memory + 5000, memory + 1024};
    assert_int_equal(registerLocalMemory(engine, NULL, 100, "*", 1), -1);
    assert_int_equal(registerLocalMemory(engine, memory, 0, "*", 1), -1);
    assert_int_equal(registerLocalMemory(engine, memory, SIZE_MAX, "*", 1), -1);
    assert_int_equal(registerLocalMemory(engine, memory, 100, "", 1), -1);
    assert_int_equal(unregisterLocalMemory(engine, memory), -1);
    assert_int_equal(registerLocalMemoryBatch(engine, buffers, 3, "*"), -7); /* and none stays */
    assert_int_equal(unregisterLocalMemory(engine, memory), -1);
    assert_int_equal(registerLocalMemoryBatch(engine, NULL, 1, "*"), -1);
    assert_int_equal(registerLocalMemoryBatch(engine, NULL, 0, "*"), 0);
    assert_int_equal(registerLocalMemoryBatch(engine, buffers, 2, NULL), 0);
    assert_int_equal(registerLocalMemory(engine, memory + 100, 10, "*", 0), -7);
    assert_int_equal(unregisterLocalMemoryBatch(engine, addrs, 3), -1); /* the second */
    assert_int_equal(unregisterLocalMemory(engine, memory), -1);
    assert_int_equal(unregisterLocalMemory(engine, memory + 1024), -1);
    assert_int_equal(unregisterLocalMemoryBatch(engine, NULL, 2), -1);
}

/* Bytes move inside the engine, so that tasks end at once. */
static void test_batches(void **state) {
    struct transfer_status status = {77, 77};
    uint64_t target = (uint64_t)(uintptr_t)memory;
    struct transfer_request r[] = {{OPCODE_WRITE, memory + 4096, LOCAL_SEGMENT, target, 100},
                                   {OPCODE_READ, memory + 4096, LOCAL_SEGMENT, target + 200, 100},
                                   {9, memory, LOCAL_SEGMENT, target, 1},
                                   {OPCODE_READ, memory, 4711, target, 1},
                                   {OPCODE_READ, memory, LOCAL_SEGMENT, 16, 1}};
    notify_msg_t note = {NULL, NULL};
    assert_int_equal(registerLocalMemory(engine, memory, 4096, "cpu:0", 1), 0);
    mc_test_fill(memory, 4096, 1);
    mc_test_fill(memory + 4096, 100, 2);
    batch_id_t batch = allocateBatchID(engine, 1);
    assert_true(batch != INVALID_BATCH && batch != 0);
    assert_true(allocateBatchID(engine, SIZE_MAX) == INVALID_BATCH);
    assert_int_equal(submitTransfer(engine, batch, NULL, 1), 1);
    assert_int_equal(submitTransfer(engine, batch, NULL, 0), 0);
    assert_int_equal(submitTransferWithNotify(engine, batch, r, 1, note), 1);
    assert_int_equal(submitTransfer(engine, batch ^ 1, r, 1), 1);
    assert_int_equal(getTransferStatus(engine, batch, 0, &status), 1); /* nothing was submitted */
    assert_int_equal(status.status, 77);
    assert_int_equal(submitTransfer(engine, batch, r, 5), 0); /* five in a batch of one */
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(getTransferStatus(engine, batch, i, &status), 0);
        assert_int_equal(status.status, i < 2 ? STATUS_COMPLETED : STATUS_FAILED);
        assert_int_equal(status.transferred_bytes, i < 2 ? 100 : 0);
    }
    mc_test_verify(memory, 100, 2);
    assert_memory_equal(memory + 4096, memory + 200, 100);
    assert_int_equal(getTransferStatus(engine, batch, 5, &status), 1);
    assert_int_equal(getTransferStatus(engine, batch, 0, NULL), 1);
    assert_int_equal(freeBatchID(engine, batch), 0); /* with failed tasks */
    assert_int_equal(freeBatchID(engine, batch), 1);
    assert_int_equal(getTransferStatus(engine, batch, 0, &status), 1);
    assert_int_equal(freeBatchID(engine, INVALID_BATCH), 1);
    assert_int_equal(freeBatchID(engine, 0), 1);
    batch_id_t next = allocateBatchID(engine, 1024); /* the same place, another id */
    assert_true(next != batch);
    assert_int_equal(freeBatchID(engine, batch), 1);
    assert_int_equal(freeBatchID(engine, next), 0);
    assert_int_equal(unregisterLocalMemory(engine, memory), 0);
}

static void test_many_batches(void **state) {
    enum { MANY = 1000 };
    batch_id_t ids[MANY];
    struct transfer_status status;
    for (size_t i = 0; i < MANY; i++) {
        ids[i] = allocateBatchID(engine, 1);
        assert_true(ids[i] != INVALID_BATCH);
        for (size_t j = 0; j < i; j += 97) {
            assert_true(ids[j] != ids[i]);
        }
    }
    for (size_t i = 0; i < MANY; i += 2) { /* the rest goes with the engine */
        assert_int_equal(freeBatchID(engine, ids[i]), 0);
        assert_int_equal(getTransferStatus(engine, ids[i], 0, &status), 1);
    }
}

struct sharer {
    batch_id_t batch;
    char *target; /* its own 8 bytes */
};

static void *submit_and_look(void *arg) {
    const struct sharer *s = arg;
    struct transfer_request r = {OPCODE_WRITE, s->target + 4096, LOCAL_SEGMENT,
                                 (uintptr_t)s->target, 8};
    struct transfer_status status;
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(submitTransfer(engine, s->batch, &r, 1), 0);
        assert_int_equal(getTransferStatus(engine, s->batch, (size_t)i, &status), 0);
    }
    return NULL;
}

/* Forbidden, and what a stale id does; it may cost time but neither a hang nor a lost task. */
static void test_threads_that_share_a_batch(void **state) {
    pthread_t threads[4];
    struct sharer sharers[MC_ARRAY_LEN(threads)];
    struct transfer_status status;
    assert_int_equal(registerLocalMemory(engine, memory, sizeof(memory), "*", 1), 0);
    batch_id_t batch = allocateBatchID(engine, 16);
    for (size_t i = 0; i < MC_ARRAY_LEN(threads); i++) {
        sharers[i] = (struct sharer){batch, memory + 64 * i};
        assert_int_equal(pthread_create(&threads[i], NULL, submit_and_look, &sharers[i]), 0);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(threads); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(getTransferStatus(engine, batch, 7999, &status), 0);
    assert_int_equal(status.status, STATUS_COMPLETED);
    assert_int_not_equal(getTransferStatus(engine, batch, 8000, &status), 0);
    assert_int_equal(freeBatchID(engine, batch), 0);
    assert_int_equal(unregisterLocalMemory(engine, memory), 0);
}

static void test_questions(void **state) {
    char text[2048];
    size_t count = 0;
    nic_load_stat_t stats[2];
    notify_msg_t note = {(char *)(uintptr_t) "name", (char *)(uintptr_t) "text"};
    int size = 5;
    assert_int_equal(showLinks(engine, text, sizeof(text), 1), 0);
    assert_non_null(strstr(text, "\"transport\":\"tcp\""));
    assert_int_equal(showLinks(engine, text, sizeof(text), 0), 0);
    assert_non_null(strstr(text, "tcp"));
    assert_int_equal(showLinks(engine, text, 5, 1), 0);
    assert_int_equal(strlen(text), 4);
    assert_int_equal(showLinks(engine, NULL, 5, 1), -1);
    assert_int_equal(showLinks(engine, text, 0, 1), -1);
    assert_int_equal(getNicLoadStats(engine, NULL, &count), 0);
    count = 2;
    assert_int_equal(getNicLoadStats(engine, stats, &count), 0);
    assert_int_equal(getNicLoadStats(engine, NULL, NULL), -1);
    count = 2;
    assert_int_equal(getNicLoadStats(engine, NULL, &count), -1);
    assert_null(getNotifsFromEngine(engine, &size));
    assert_int_equal(size, 0);
    assert_null(getNotifsFromEngine(engine, NULL));
    assert_int_equal(genNotifyInEngine(engine, LOCAL_SEGMENT, note), 0); /* to itself */
    notify_msg_t *list = getNotifsFromEngine(engine, &size);
    assert_int_equal(size, 1);
    assert_string_equal(list[0].name, "name");
    assert_string_equal(list[0].msg, "text");
    assert_int_equal(freeNotifsMsgBuf(list, size), 0);
    assert_true(genNotifyInEngine(engine, 4711, note) < 0);
    assert_true(genNotifyInEngine(engine, UINT64_MAX, note) < 0);
    note.msg = NULL;
    assert_true(genNotifyInEngine(engine, LOCAL_SEGMENT, note) < 0);
}

/* ---- TENT ---- */

static void test_tent_without_an_engine(void **state) {
    char text[64];
    uint16_t port;
    tent_segment_id_t id;
    tent_segment_info_t info;
    tent_notifi_info notes;
    tent_status_t status;
    tent_request_t r = {0};
    size_t size = 1, count = 0;
    void *addr = memory;
    tent_memory_options_t opts = {0};
    assert_int_equal(tent_available(NULL), 0);
    tent_destroy_engine(NULL);
    assert_int_equal(tent_segment_name(NULL, text, sizeof(text)), -1);
    assert_int_equal(tent_rpc_server_addr_port(NULL, text, sizeof(text), &port), -1);
    assert_int_equal(tent_open_segment(NULL, &id, "x"), -1);
    assert_int_equal(tent_close_segment(NULL, 1), -1);
    assert_int_equal(tent_get_segment_info(NULL, 0, &info), -1);
    tent_free_segment_info(NULL);
    assert_int_equal(tent_allocate_memory(NULL, &addr, 1, "*"), -1);
    assert_int_equal(tent_allocate_memory_ex(NULL, &addr, 1, &opts), -1);
    assert_int_equal(tent_free_memory(NULL, memory), -1);
    assert_int_equal(tent_register_memory(NULL, memory, 1), -1);
    assert_int_equal(tent_register_memory_with_perm(NULL, memory, 1, 2), -1);
    assert_int_equal(tent_register_memory_ex(NULL, memory, 1, &opts), -1);
    assert_int_equal(tent_register_memory_batch(NULL, &addr, &size, 1, 2), -1);
    assert_int_equal(tent_register_memory_batch_ex(NULL, &addr, &size, 1, &opts), -1);
    assert_int_equal(tent_unregister_memory(NULL, memory, 1), -1);
    assert_int_equal(tent_unregister_memory_batch(NULL, &addr, &size, 1), -1);
    assert_true(tent_allocate_batch(NULL, 1) == 0);
    assert_int_equal(tent_free_batch(NULL, 1), -1);
    assert_int_equal(tent_submit(NULL, 1, &r, 1), -1);
    assert_int_equal(tent_submit_notif(NULL, 1, &r, 1, "a", "b"), -1);
    assert_int_equal(tent_task_status(NULL, 1, 0, &status), -1);
    assert_int_equal(tent_task_status_list(NULL, 1, &status, &count), -1);
    assert_int_equal(tent_overall_status(NULL, 1, &status), -1);
    assert_int_equal(tent_cancel_task(NULL, 1, 0), -1);
    assert_int_equal(tent_send_notifs(NULL, 0, "a", "b"), -1);
    assert_int_equal(tent_recv_notifs(NULL, &notes), -1);
    tent_free_notifs(NULL);
    assert_int_equal(tent_get_nic_load_stats(NULL, NULL, &count), -1);
}

static void test_tent_configurations_that_cannot_be(void **state) {
    tent_set_config(NULL, "x");
    tent_set_config("rpc_server_port", NULL);
    tent_set_config("rpc_server_port", "seventy");
    assert_null(tent_create_engine());
    tent_set_config("rpc_server_port", "0");
    tent_set_config("metadata_type", "http");
    assert_null(tent_create_engine()); /* without servers */
    tent_set_config("metadata_type", "p2p");
    /* Keys of the policy, by their type. */
    tent_set_config("max_failover_attempts", "many");
    assert_null(tent_create_engine());
    tent_set_config("max_failover_attempts", "3");
    tent_set_config("qos/weights", "[4, 2]");
    assert_null(tent_create_engine());
    tent_set_config("qos/weights", "[4, 2, 1]");
    tent_set_config("transports/shm/enable", "perhaps");
    assert_null(tent_create_engine());
    tent_set_config("transports/shm/enable", "false");
    tent_engine_t good = tent_create_engine();
    assert_non_null(good);
    tent_destroy_engine(good);
    setenv("MC_TENT_CONF", "{\"rpc_server_port\": ", 1);
    assert_null(tent_create_engine());
    unsetenv("MC_TENT_CONF");
    tent_load_config_from_file("/nowhere/at/all.json");
    assert_null(tent_create_engine());
    char pipe_path[64];
    snprintf(pipe_path, sizeof(pipe_path), "/tmp/mc_test_tent_pipe.%d", (int)getpid());
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    tent_load_config_from_file(pipe_path); /* nobody writes to it: not waited for */
    assert_int_equal(unlink(pipe_path), 0);
    assert_null(tent_create_engine());
}

/* A submit that was refused leaves no notification behind. */
static void test_tent_notifications(tent_engine_t e, tent_request_t *r) {
    tent_notifi_info notes;
    tent_batch_id_t batch = tent_allocate_batch(e, 4);
    r[0].transport_hint = TRANSPORT_MNNVL;
    assert_int_equal(tent_submit_notif(e, batch, r, 1, "refused", "m"), -1);
    assert_int_equal(tent_submit_notif(e, batch, r, 0, "refused", "m"), -1);
    assert_int_equal(tent_submit_notif(e, batch, r, SIZE_MAX, "refused", "m"), -1);
    r[0].transport_hint = TRANSPORT_UNSPEC;
    assert_int_equal(tent_submit_notif(e, batch, r, 1, NULL, "m"), -1);
    assert_int_equal(tent_submit_notif(e, batch, r, 1, "n", "m"), 0);
    tent_status_t status = {STATUS_PENDING, 0};
    for (int i = 0; i < 5000 && status.status == STATUS_PENDING; i++) {
        assert_int_equal(tent_overall_status(e, batch, &status), 0);
        usleep(1000);
    }
    assert_int_equal(status.status, STATUS_COMPLETED);
    assert_int_equal(tent_recv_notifs(e, &notes), 0);
    assert_int_equal(notes.num_records, 1);
    assert_string_equal(notes.records[0].name, "n");
    tent_free_notifs(&notes);
    assert_int_equal(tent_free_batch(e, batch), 0);
}

static void test_tent(void **state) {
    static const char path[] = "/tmp/mc_test_tent_config.json";
    char text[64];
    FILE *file = fopen(path, "w");
    fputs("{\"rpc_server_hostname\": \"127.0.0.1\", \"transports/tcp/enable\": true}", file);
    fclose(file);
    tent_load_config_from_file(path);
    remove(path);
    tent_engine_t e = tent_create_engine();
    assert_non_null(e);
    assert_int_equal(tent_available(e), 1);
    assert_int_equal(tent_segment_name(e, text, 4), -1);
    assert_int_equal(tent_segment_name(e, text, sizeof(text)), 0);
    tent_segment_id_t id = 99;
    assert_int_equal(tent_open_segment(e, &id, text), 0);
    assert_true(id == TENT_LOCAL_SEGMENT_ID);
    assert_int_equal(tent_open_segment(e, &id, ""), -1);
    assert_int_equal(tent_close_segment(e, UINT64_MAX), -1);
    assert_int_equal(tent_register_memory_with_perm(e, memory, 4096, PERM_GLOBAL_READ_ONLY), -1);
    assert_int_equal(tent_register_memory(e, memory, 4096), 0);
    tent_segment_info_t info;
    assert_int_equal(tent_get_segment_info(e, 0, &info), 0);
    assert_int_equal(info.type, TYPE_MEMORY);
    assert_int_equal(info.num_buffers, 1);
    assert_true(info.buffers[0].base == (uintptr_t)memory && info.buffers[0].length == 4096);
    tent_free_segment_info(&info);
    tent_request_t r[2] = {{OPCODE_WRITE, memory + 4096, 0, (uintptr_t)memory, 64, 0, 0},
                           {OPCODE_WRITE, memory, 0, 8, 1, 0, 0}};
    tent_batch_id_t batch = tent_allocate_batch(e, 4);
    r[0].priority = 3;
    assert_int_equal(tent_submit(e, batch, r, 1), -1);
    r[0].priority = 2;
    r[0].transport_hint = TRANSPORT_MNNVL;
    assert_int_equal(tent_submit(e, batch, r, 1), -1);
    r[0].transport_hint = TRANSPORT_TCP;
    mc_test_fill(memory + 4096, 64, 5);
    assert_int_equal(tent_submit(e, batch, r, 1), 0);
    tent_status_t status[3];
    assert_int_equal(tent_overall_status(e, batch, &status[0]), 0);
    assert_int_equal(status[0].status, STATUS_COMPLETED);
    assert_int_equal(status[0].transferred_bytes, 64);
    mc_test_verify(memory, 64, 5);
    assert_int_equal(tent_submit_notif(e, batch, r, 2, "n", "m"), 0); /* the second fails */
    size_t count = 2;
    assert_int_equal(tent_task_status_list(e, batch, status, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(tent_task_status(e, batch, 2, &status[0]), 0);
    assert_int_equal(status[0].status, STATUS_FAILED);
    assert_int_equal(tent_overall_status(e, batch, &status[0]), 0);
    assert_int_equal(status[0].status, STATUS_FAILED);
    assert_int_equal(tent_cancel_task(e, batch, 0), 0); /* too late: it stays completed */
    assert_int_equal(tent_task_status(e, batch, 0, &status[0]), 0);
    assert_int_equal(status[0].status, STATUS_COMPLETED);
    assert_int_equal(tent_cancel_task(e, batch, 17), -1);
    assert_int_equal(tent_task_status(e, batch, 17, &status[0]), -1);
    tent_notifi_info notes;
    assert_int_equal(tent_recv_notifs(e, &notes), 0);
    assert_int_equal(notes.num_records, 0); /* one task failed: nothing was sent */
    assert_int_equal(tent_free_batch(e, batch), 0);
    assert_int_equal(tent_free_batch(e, batch), -1);
    test_tent_notifications(e, r);
    assert_int_equal(tent_unregister_memory(e, memory, 4096), 0);
    tent_destroy_engine(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_engine),
        cmocka_unit_test(test_engines_that_cannot_be),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_many_batches),
        cmocka_unit_test(test_threads_that_share_a_batch),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_tent_without_an_engine),
        cmocka_unit_test(test_tent_configurations_that_cannot_be),
        cmocka_unit_test(test_tent),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
