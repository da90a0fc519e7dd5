/*
 * Upstream's engine interface as NIXL's plugin and TensorRT-LLM's wrapper use it, between two
 * processes: batches of 1024 for a few requests, request arrays and notification texts freed right
 * after submitting, the same segment opened again and again, several submits on one batch, statuses
 * asked for again after the end, failed batches freed, and a task that is seen complete only when
 * its notification has arrived. TENT's interface on the same two processes. Every byte is compared
 * at both ends.
 */
#include <time.h>

#include "compat/tent/transfer_engine.h"
#include "compat/transfer_engine_c.h"
#include "integration/te/te_peer.h"

#define ARENA (24u << 20)
#define LARGE (9u << 20)

static struct peer peer;
static transfer_engine_t engine;
static char *memory;

static int setup(void **state) {
    memory = malloc(ARENA);
    peer_start(&peer, ARENA, false, false, 0);
    engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    assert_non_null(engine);
    assert_int_equal(registerLocalMemory(engine, memory, ARENA, "*", 1), 0);
    return 0;
}
static int teardown(void **state) {
    assert_int_equal(unregisterLocalMemory(engine, memory), 0);
    destroyTransferEngine(engine);
    peer_stop(&peer);
    free(memory);
    return 0;
}

static int poll_task(batch_id_t batch, size_t task, uint64_t bytes) {
    struct transfer_status status;
    for (int i = 0; i < 60000; i++) {
        assert_int_equal(getTransferStatus(engine, batch, task, &status), 0);
        if (status.status != STATUS_WAITING && status.status != STATUS_PENDING) {
            assert_int_equal(status.transferred_bytes, bytes);
            return status.status;
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    fail_msg("the task does not end");
    return -1;
}

static batch_id_t submit_copies(int opcode, segment_id_t segment, size_t count, uint64_t each,
                                batch_id_t batch) {
    transfer_request_t *requests = calloc(count, sizeof(*requests));
    for (size_t i = 0; i < count; i++) {
        requests[i] = (transfer_request_t){opcode, memory + i * each, segment,
                                           peer.hello.addr + i * each, each};
    }
    assert_int_equal(submitTransfer(engine, batch, requests, count), 0);
    memset(requests, 0xee, count * sizeof(*requests));
    free(requests);
    return batch;
}

static void test_reads_and_writes(void **state) {
    static const uint64_t sizes[] = {1, 4097, 65536, LARGE};
    segment_id_t segment = openSegment(engine, peer.hello.name);
    assert_true(segment > 0);
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        assert_int_equal(openSegment(engine, peer.hello.name), segment);
        batch_id_t batch = allocateBatchID(engine, 1024);
        mc_test_fill(memory, sizes[i], i + 1);
        submit_copies(OPCODE_WRITE, segment, 1, sizes[i], batch);
        assert_int_equal(poll_task(batch, 0, sizes[i]), STATUS_COMPLETED);
        assert_int_equal(peer_tell(&peer, PEER_VERIFY, 0, sizes[i], i + 1), sizes[i]);
        assert_true(peer_tell(&peer, PEER_FILL, 0, sizes[i], i + 50));
        submit_copies(OPCODE_READ, segment, 1, sizes[i], batch); /* the same batch goes on */
        assert_int_equal(poll_task(batch, 1, sizes[i]), STATUS_COMPLETED);
        assert_int_equal(poll_task(batch, 0, sizes[i]), STATUS_COMPLETED);
        mc_test_verify(memory, sizes[i], i + 50);
        assert_int_equal(freeBatchID(engine, batch), 0);
    }
    assert_int_equal(syncSegmentCache(engine), 0);
    assert_int_equal(openSegmentNoCache(engine, peer.hello.name), segment);
}

static void test_more_tasks_than_the_batch_was_asked_for(void **state) {
    enum { TASKS = 3000 };
    const uint64_t each = 1021;
    segment_id_t segment = openSegment(engine, peer.hello.name);
    batch_id_t batch = allocateBatchID(engine, 1024);
    mc_test_fill(memory, TASKS * each, 7);
    submit_copies(OPCODE_WRITE, segment, TASKS, each, batch);
    for (size_t i = 0; i < TASKS; i++) {
        assert_int_equal(poll_task(batch, i, each), STATUS_COMPLETED);
    }
    assert_int_equal(peer_tell(&peer, PEER_VERIFY, 0, TASKS * each, 7), TASKS * each);
    assert_int_equal(freeBatchID(engine, batch), 0);
}

static void test_failed_batches_are_freed(void **state) {
    segment_id_t segment = openSegment(engine, peer.hello.name);
    batch_id_t batch = allocateBatchID(engine, 1024);
    transfer_request_t r = {OPCODE_READ, memory, segment, 4096, 100}; /* not registered there */
    assert_int_equal(submitTransfer(engine, batch, &r, 1), 0);
    assert_int_equal(poll_task(batch, 0, 0), STATUS_FAILED);
    assert_int_equal(poll_task(batch, 0, 0), STATUS_FAILED);
    assert_int_equal(freeBatchID(engine, batch), 0);
}

/* The target of the notification is an engine of this process, so that its queue can be looked at;
 * bytes and message go through sockets all the same. */
static void test_notifications(void **state) {
    transfer_engine_t other = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    char *theirs = malloc(LARGE), name[64];
    assert_int_equal(registerLocalMemory(other, theirs, LARGE, "*", 1), 0);
    assert_int_equal(getLocalIpAndPort(other, name, sizeof(name)), 0);
    segment_id_t segment = openSegment(engine, name);
    batch_id_t batch = allocateBatchID(engine, 1024);
    for (unsigned round = 0; round < 3; round++) {
        notify_msg_t note = {strdup("agent-1"), malloc(32)};
        snprintf(note.msg, 32, "round %u", round);
        transfer_request_t *r = malloc(sizeof(*r));
        *r = (transfer_request_t){OPCODE_WRITE, memory, segment, (uintptr_t)theirs, LARGE};
        mc_test_fill(memory, LARGE, round);
        assert_int_equal(submitTransferWithNotify(engine, batch, r, 1, note), 0);
        memset(note.msg, 'x', 31);
        free(note.name);
        free(note.msg);
        free(r);
        assert_int_equal(poll_task(batch, round, LARGE), STATUS_COMPLETED);
        int count = 0; /* complete means delivered: there is nothing to wait for */
        notify_msg_t *list = getNotifsFromEngine(other, &count);
        char expected[32];
        snprintf(expected, sizeof(expected), "round %u", round);
        assert_int_equal(count, 1);
        assert_string_equal(list[0].name, "agent-1");
        assert_string_equal(list[0].msg, expected);
        assert_int_equal(freeNotifsMsgBuf(list, count), 0);
        mc_test_verify(theirs, LARGE, round);
    }
    assert_int_equal(freeBatchID(engine, batch), 0);
    destroyTransferEngine(other);
    free(theirs);
}

static void test_a_lost_notification_is_told(void **state) {
    transfer_engine_t other = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    char name[64];
    notify_msg_t note = {(char *)(uintptr_t) "a", (char *)(uintptr_t) "b"};
    assert_int_equal(getLocalIpAndPort(other, name, sizeof(name)), 0);
    segment_id_t segment = openSegment(engine, name);
    destroyTransferEngine(other);
    batch_id_t batch = allocateBatchID(engine, 1);
    transfer_request_t r = {OPCODE_WRITE, memory, segment, 0, 0}; /* no bytes: it completes */
    assert_int_equal(submitTransferWithNotify(engine, batch, &r, 1, note), 0);
    assert_int_equal(poll_task(batch, 0, 0), STATUS_FAILED);
    assert_int_equal(freeBatchID(engine, batch), 0);
}

/* ---- TENT ---- */

static void test_tent(void **state) {
    tent_segment_id_t segment;
    void *buffer = NULL;
    tent_status_t status = {STATUS_PENDING, 0};
    tent_set_config("rpc_server_hostname", "127.0.0.1");
    tent_engine_t e = tent_create_engine();
    assert_non_null(e);
    assert_int_equal(tent_allocate_memory(e, &buffer, LARGE, "cpu:0"), 0);
    assert_int_equal(tent_open_segment(e, &segment, peer.hello.name), 0);
    tent_segment_info_t info;
    assert_int_equal(tent_get_segment_info(e, segment, &info), 0);
    assert_int_equal(info.num_buffers, 1);
    assert_true(info.buffers[0].base == peer.hello.addr && info.buffers[0].length == ARENA);
    tent_batch_id_t batch = tent_allocate_batch(e, 2);
    for (int op = OPCODE_WRITE; op >= OPCODE_READ; op--) {
        tent_request_t r = {op, buffer, segment, info.buffers[0].base, LARGE, 1, TRANSPORT_UNSPEC};
        mc_test_fill(buffer, LARGE, 90);
        if (op == OPCODE_READ) {
            assert_true(peer_tell(&peer, PEER_FILL, 0, LARGE, 91));
        }
        assert_int_equal(tent_submit(e, batch, &r, 1), 0);
        do {
            assert_int_equal(tent_overall_status(e, batch, &status), 0);
        } while (status.status == STATUS_PENDING);
        assert_int_equal(status.status, STATUS_COMPLETED);
        if (op == OPCODE_WRITE) {
            assert_int_equal(peer_tell(&peer, PEER_VERIFY, 0, LARGE, 90), LARGE);
        }
    }
    mc_test_verify(buffer, LARGE, 91);
    assert_int_equal(status.transferred_bytes, 2 * (uint64_t)LARGE);
    tent_free_segment_info(&info);
    assert_int_equal(tent_free_batch(e, batch), 0);
    assert_int_equal(tent_close_segment(e, segment), 0);
    assert_int_equal(tent_free_memory(e, buffer), 0);
    tent_destroy_engine(e);
}

/* A peer that stands still leaves a task unfinished: busy, then cancelled, then free. */
static void test_tent_cancels(void **state) {
    tent_segment_id_t segment;
    tent_status_t status;
    char *local = malloc(ARENA);
    setenv("MC_FORCE_TCP", "1", 1);
    tent_engine_t e = tent_create_engine();
    unsetenv("MC_FORCE_TCP");
    assert_int_equal(tent_register_memory(e, local, ARENA), 0);
    assert_int_equal(tent_open_segment(e, &segment, peer.hello.name), 0);
    tent_batch_id_t batch = tent_allocate_batch(e, 1);
    tent_request_t r = {OPCODE_READ, local, segment, peer.hello.addr, ARENA, 0, 0};
    peer_pause(&peer);
    assert_int_equal(tent_submit(e, batch, &r, 1), 0);
    assert_int_equal(tent_task_status(e, batch, 0, &status), 0);
    assert_int_equal(status.status, STATUS_PENDING);
    assert_int_equal(tent_free_batch(e, batch), -1);
    assert_int_equal(tent_cancel_task(e, batch, 0), 0);
    assert_int_equal(tent_task_status(e, batch, 0, &status), 0);
    assert_int_equal(status.status, STATUS_CANCELED);
    assert_int_equal(tent_free_batch(e, batch), 0);
    kill(peer.pid, SIGCONT);
    tent_destroy_engine(e);
    free(local);
}

int main(int argc, char **argv) {
    peer_take_over(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_and_writes),
        cmocka_unit_test(test_more_tasks_than_the_batch_was_asked_for),
        cmocka_unit_test(test_failed_batches_are_freed),
        cmocka_unit_test(test_notifications),
        cmocka_unit_test(test_a_lost_notification_is_told),
        cmocka_unit_test(test_tent),
        cmocka_unit_test(test_tent_cancels),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
