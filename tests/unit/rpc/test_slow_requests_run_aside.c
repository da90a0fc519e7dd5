/*
 * Requests that the handler calls slow delay nobody but their own connection, whose answers stay in
 * order; a connection or a server may end while one is under way. MC_TEST_THREADS
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "rpc_support.h"

enum { FN_GATED = 100 };

struct gate {
    sem_t open;
    atomic_uint entered, closed;
};

/* A gated request ends when the test says so, and is an echo otherwise. */
static void gated_handler(void *ctx, const struct mc_rpc_request *request,
                          struct mc_rpc_reply *reply) {
    struct gate *gate = ctx;
    struct mc_rpc_request copy = *request;
    if (request->function_id == FN_GATED) {
        atomic_fetch_add(&gate->entered, 1);
        while (sem_wait(&gate->open) != 0) {
        }
        copy.function_id = FN_ECHO;
    }
    test_handler(NULL, &copy, reply);
}

static bool is_gated(void *ctx, uint32_t function_id) {
    return function_id == FN_GATED;
}

static void on_closed(void *ctx, const uint64_t *peer_words, const char *peer) {
    atomic_fetch_add(&((struct gate *)ctx)->closed, 1);
}

static struct test_server start(struct gate *gate, uint32_t idle_timeout_ms) {
    struct test_server s;
    struct mc_rpc_server_config config = {.host = "127.0.0.1",
                                          .threads = 1,
                                          .no_delay = true,
                                          .idle_timeout_ms = idle_timeout_ms,
                                          .handler = gated_handler,
                                          .slow = is_gated,
                                          .closed = on_closed,
                                          .ctx = gate};
    assert_int_equal(sem_init(&gate->open, 0, 0), 0);
    atomic_init(&gate->entered, 0);
    atomic_init(&gate->closed, 0);
    assert_ok(mc_rpc_server_start(&config, &s.server, &s.port));
    snprintf(s.address, sizeof(s.address), "127.0.0.1:%u", s.port);
    return s;
}

static void wait_for(atomic_uint *counter, unsigned value) {
    while (atomic_load(counter) < value) {
        usleep(1000);
    }
}

static void add_frame(struct mc_buf *out, uint32_t seq, uint32_t function, uint32_t len) {
    struct mc_rpc_request_header h = test_header(seq, function, len);
    mc_buf_append(out, &h, sizeof(h));
    mc_buf_reserve(out, len);
    mc_test_fill(out->data + out->len, len, seq);
    out->len += len;
}

static void expect_echo(int fd, uint32_t seq, uint32_t len) {
    struct mc_rpc_reply_header h;
    assert_ok(mc_recv_all(fd, &h, sizeof(h), test_deadline()));
    assert_int_equal(h.seq, seq);
    assert_int_equal(h.errc, MC_RPC_OK);
    assert_int_equal(h.length, len);
    char *body = mc_alloc(len);
    assert_ok(mc_recv_all(fd, body, len, test_deadline()));
    mc_test_verify(body, len, seq);
    free(body);
}

static void test_answers_stay_in_order_and_others_go_on(void **state) {
    enum { FRAMES = 40, LEN = 30000 };
    struct gate gate;
    struct test_server s = start(&gate, 0);
    struct mc_rpc_client *bystander = test_client(&s, 1);
    struct mc_buf frames = {0};
    for (uint32_t i = 0; i < FRAMES; i++) { /* fast and slow ones, more than one read takes */
        add_frame(&frames, i, i % 4 == 1 ? FN_GATED : FN_ECHO, 1 + i * LEN / FRAMES);
    }
    int fd = test_socket(&s);
    assert_ok(test_send(fd, frames.data, frames.len));
    for (uint32_t i = 0; i < FRAMES; i++) {
        if (i % 4 == 1) {
            wait_for(&gate.entered, i / 4 + 1);
            test_echo(bystander, 2000, i); /* on the same reactor: would wait for ever behind it */
            struct pollfd p = {fd, POLLIN, 0};
            assert_int_equal(poll(&p, 1, 0), 0);
            sem_post(&gate.open);
        }
        expect_echo(fd, i, 1 + i * LEN / FRAMES);
    }
    close(fd);
    mc_buf_free(&frames);
    mc_rpc_client_destroy(bystander);
    mc_rpc_server_stop(s.server);
}

static void test_a_connection_ends_while_its_request_is_aside(void **state) {
    enum { COUNT = 10 };
    struct gate gate;
    struct test_server s = start(&gate, 0);
    struct mc_rpc_client *bystander = test_client(&s, 1);
    for (unsigned i = 0; i < COUNT; i++) {
        struct mc_buf frame = {0};
        struct linger reset = {.l_onoff = 1};
        add_frame(&frame, i, FN_GATED, 100);
        add_frame(&frame, i, FN_ECHO, 100);
        int fd = test_socket(&s);
        assert_ok(test_send(fd, frame.data, frame.len));
        wait_for(&gate.entered, i == 0 ? 1 : i); /* the first one is in; the others wait behind */
        if (i % 2) {
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
        }
        close(fd);
        test_echo(bystander, 2000, i);
        sem_post(&gate.open);
        mc_buf_free(&frame);
    }
    wait_for(&gate.closed, COUNT);
    test_echo(bystander, 2000, COUNT);
    mc_rpc_client_destroy(bystander);
    mc_rpc_server_stop(s.server);
    assert_int_equal(atomic_load(&gate.closed), COUNT + 1);
    assert_int_equal(atomic_load(&gate.entered), COUNT);
}

static void *open_slowly(void *arg) {
    struct gate *gate = arg;
    for (int i = 0; i < 3; i++) {
        usleep(30000);
        sem_post(&gate->open);
    }
    return NULL;
}

static void test_the_server_stops_while_requests_are_aside(void **state) {
    struct gate gate;
    struct test_server s = start(&gate, 0);
    int fds[3];
    for (uint32_t i = 0; i < 3; i++) {
        struct mc_buf frame = {0};
        add_frame(&frame, i, FN_ECHO, 10);
        add_frame(&frame, i, FN_GATED, 1000);
        fds[i] = test_socket(&s);
        assert_ok(test_send(fds[i], frame.data, frame.len));
        expect_echo(fds[i], i, 10); /* it is accepted */
        mc_buf_free(&frame);
    }
    wait_for(&gate.entered, 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, open_slowly, &gate), 0);
    mc_rpc_server_stop(s.server);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&gate.closed), 3);
    for (int i = 0; i < 3; i++) {
        close(fds[i]);
    }
}

static void test_the_wait_for_an_answer_is_not_silence_of_the_peer(void **state) {
    struct gate gate;
    struct test_server s = start(&gate, 100);
    struct mc_buf frame = {0};
    add_frame(&frame, 5, FN_GATED, 1000);
    int fd = test_socket(&s);
    assert_ok(test_send(fd, frame.data, frame.len));
    wait_for(&gate.entered, 1);
    usleep(600000); /* some sweeps */
    assert_int_equal(atomic_load(&gate.closed), 0);
    sem_post(&gate.open);
    expect_echo(fd, 5, 1000);
    wait_for(&gate.closed, 1); /* and now it is */
    close(fd);
    mc_buf_free(&frame);
    mc_rpc_server_stop(s.server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_stay_in_order_and_others_go_on),
        cmocka_unit_test(test_a_connection_ends_while_its_request_is_aside),
        cmocka_unit_test(test_the_server_stops_while_requests_are_aside),
        cmocka_unit_test(test_the_wait_for_an_answer_is_not_silence_of_the_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
