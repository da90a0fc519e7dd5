/*
 * At every limit the server does what rpc.h says, and other connections do not notice: bytes that
 * are no frame, requests that are too large, silent and dripping peers, peers that do not read, too
 * many connections. MC_TEST_THREADS
 */
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "rpc_support.h"
#include "wire/schema.h"

static void assert_closed(int fd) {
    char byte;
    assert_int_equal(mc_recv_all(fd, &byte, 1, test_deadline()), MC_ERR_CLOSED);
    close(fd);
}

static void test_what_is_no_frame_is_closed_without_an_answer(void **state) {
    struct mc_metrics *metrics = mc_metrics_create();
    struct test_server s = test_server_start((struct mc_rpc_server_config){.metrics = metrics});
    struct mc_rpc_client *client = test_client(&s, 1);
    for (int field = 0; field < 3; field++) {
        struct mc_rpc_request_header h = test_header(1, FN_ECHO, 0);
        *(field == 0 ? &h.magic : field == 1 ? &h.version : &h.serialize_type) += 1;
        int fd = test_socket(&s);
        assert_ok(test_send(fd, &h, sizeof(h)));
        assert_closed(fd);
        test_echo(client, 100, 1);
    }
    int fd = test_socket(&s);
    assert_ok(test_send(fd, MC_STR("GET / HTTP/1.1\r\nHost: x\r\n\r\n").ptr, 27));
    assert_closed(fd);
    test_echo(client, 100, 1);
    struct mc_buf text = {0};
    mc_metrics_print(metrics, &text);
    assert_non_null(strstr(mc_buf_cstr(&text), "\nmc_rpc_bad_frames 4\n"));
    assert_non_null(strstr(mc_buf_cstr(&text), "\nmc_rpc_requests 4\n"));
    mc_buf_free(&text);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
    mc_metrics_destroy(metrics);
}

/* Any msg_type is served, as upstream does. */
static void test_frames_may_be_cut_anywhere(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    int fd = test_socket(&s);
    char frame[2 * (sizeof(struct mc_rpc_request_header) + 3)];
    for (uint32_t i = 0; i < 2; i++) {
        struct mc_rpc_request_header h = test_header(i, FN_ECHO, 3);
        h.msg_type = 7;
        memcpy(frame + i * sizeof(frame) / 2, &h, sizeof(h));
        memcpy(frame + i * sizeof(frame) / 2 + sizeof(h), "abc", 3);
    }
    for (size_t cut = 1; cut < sizeof(frame); cut++) {
        assert_ok(test_send(fd, frame, cut));
        usleep(300);
        assert_ok(test_send(fd, frame + cut, sizeof(frame) - cut));
        for (uint32_t i = 0; i < 2; i++) {
            char reply[sizeof(struct mc_rpc_reply_header) + 3];
            struct mc_rpc_reply_header h;
            assert_ok(mc_recv_all(fd, reply, sizeof(reply), test_deadline()));
            memcpy(&h, reply, sizeof(h));
            assert_int_equal(h.seq, i);
            assert_int_equal(h.errc, 0);
            assert_int_equal(h.length, 3);
            assert_memory_equal(reply + sizeof(h), "abc", 3);
        }
    }
    close(fd);
    mc_rpc_server_stop(s.server);
}

static void test_too_large_is_answered_then_closed(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){.max_body_bytes = 1000});
    struct mc_rpc_client *client = test_client(&s, 1);
    test_echo(client, 1000, 1);
    char *bytes = mc_zalloc(8u << 20);
    struct mc_buf reply = {0};
    enum mc_rpc_errc errc = MC_RPC_OK;
    size_t sizes[] = {1001, 8u << 20}; /* the second is still being sent when the answer comes */
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        struct mc_str body = {bytes, sizes[i]};
        assert_int_equal(mc_rpc_call(client, FN_ECHO, body, test_deadline(), &reply, &errc),
                         MC_RPC_FAIL);
        assert_int_equal(errc, MC_RPC_MESSAGE_TOO_LARGE);
        test_echo(client, 1000, 2);
    }
    struct mc_rpc_request_header huge = test_header(9, FN_ECHO, UINT32_MAX);
    huge.attach_length = UINT32_MAX;
    int fd = test_socket(&s);
    struct mc_rpc_reply_header header;
    assert_ok(test_send(fd, &huge, sizeof(huge)));
    assert_ok(mc_recv_all(fd, &header, sizeof(header), test_deadline()));
    assert_int_equal(header.errc, MC_RPC_MESSAGE_TOO_LARGE);
    assert_int_equal(header.seq, 9);
    char body[64];
    assert_ok(mc_recv_all(fd, body, header.length, test_deadline()));
    assert_closed(fd);
    free(bytes);
    mc_buf_free(&reply);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

static uint64_t calls_on_connection(struct mc_rpc_client *client) {
    struct mc_buf reply = {0};
    uint64_t n;
    assert_ok(
        mc_rpc_call(client, FN_COUNT_CALLS, (struct mc_str){0}, test_deadline(), &reply, NULL));
    assert_int_equal(reply.len, sizeof(n));
    memcpy(&n, reply.data, sizeof(n));
    mc_buf_free(&reply);
    return n;
}

static void test_silent_and_dripping_peers_are_closed(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){.idle_timeout_ms = 300});
    int silent = test_socket(&s), dripping = test_socket(&s);
    struct mc_rpc_client *busy = test_client(&s, 1);
    assert_int_equal(calls_on_connection(busy), 1);
    struct mc_rpc_request_header h = test_header(1, FN_ECHO, 1000);
    assert_ok(test_send(dripping, &h, sizeof(h)));
    bool open = true;
    for (int i = 0; i < 200 && open; i++) { /* one byte each 20 ms would need 20 s */
        struct pollfd p = {.fd = dripping, .events = POLLIN};
        open = test_send(dripping, "x", 1) == MC_OK && poll(&p, 1, 20) == 0;
        test_echo(busy, 100, 1);
    }
    assert_false(open);
    close(dripping);
    assert_closed(silent);
    assert_int_equal(calls_on_connection(busy), 2); /* the same connection all the time */
    mc_rpc_client_destroy(busy);
    mc_rpc_server_stop(s.server);
}

/* The server stops reading from a peer that does not read, and its memory stays bounded; when the
 * peer reads after all, every answer is there. */
static void test_a_peer_that_does_not_read_is_not_read(void **state) {
    enum { ANSWER = 1 << 20, LIMIT = 2000 };
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *other = test_client(&s, 1);
    int fd = test_socket(&s);
    /* Padded so that sockets fill soon. */
    char request[sizeof(struct mc_rpc_request_header) + 4 + 60000];
    uint32_t sent = 0, size = ANSWER;
    bool blocked = false;
    memset(request, 0, sizeof(request));
    memcpy(request + sizeof(struct mc_rpc_request_header), &size, sizeof(size));
    size_t part = 0;
    while (sent < LIMIT && !blocked) {
        struct mc_rpc_request_header h = test_header(sent, FN_GROW, sizeof(request) - sizeof(h));
        memcpy(request, &h, sizeof(h));
        ssize_t n = send(fd, request + part, sizeof(request) - part, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            part += (size_t)n;
        } else {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            blocked = poll(&p, 1, 500) == 0;
        }
        if (part == sizeof(request)) {
            part = 0;
            sent++;
        }
    }
    assert_true(blocked);
    assert_in_range(sent, 4, LIMIT - 1);
    test_echo(other, 1000, 1);
    char *answer = mc_alloc(sizeof(struct mc_rpc_reply_header) + ANSWER);
    for (uint32_t i = 0; i < sent; i++) {
        struct mc_rpc_reply_header h;
        assert_ok(mc_recv_all(fd, answer, sizeof(h) + ANSWER, test_deadline()));
        memcpy(&h, answer, sizeof(h));
        assert_int_equal(h.seq, i);
        assert_int_equal(h.length, ANSWER);
        mc_test_verify(answer + sizeof(h), ANSWER, ANSWER);
    }
    free(answer);
    close(fd);
    mc_rpc_client_destroy(other);
    mc_rpc_server_stop(s.server);
}

static void test_a_connection_too_many_is_closed(void **state) {
    struct test_server s =
        test_server_start((struct mc_rpc_server_config){.max_connections = 3, .threads = 2});
    struct mc_rpc_client *client = test_client(&s, 1);
    test_echo(client, 10, 1);
    int fds[2];
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        struct mc_rpc_request_header h = test_header(1, FN_ECHO, 0);
        struct mc_rpc_reply_header reply;
        fds[i] = test_socket(&s);
        assert_ok(test_send(fds[i], &h, sizeof(h)));
        assert_ok(mc_recv_all(fds[i], &reply, sizeof(reply), test_deadline()));
    }
    assert_closed(test_socket(&s));
    test_echo(client, 10, 1);
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        close(fds[i]);
    }
    mc_rpc_client_destroy(client);
    client = test_client(&s, 1);
    enum mc_status status = MC_RPC_FAIL;
    for (int i = 0; i < 1000 && status != MC_OK;
         i++) { /* the server sees the ends a moment later */
        struct mc_buf reply = {0};
        status = mc_rpc_call(client, FN_ECHO, MC_STR("x"), test_deadline(), &reply, NULL);
        mc_buf_free(&reply);
    }
    assert_ok(status);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

/* Each may have its request; together they may not. */
static void test_all_requests_together_have_a_limit(void **state) {
    enum { PEERS = 12, PART = 3 << 20 };
    struct mc_metrics *metrics = mc_metrics_create();
    struct test_server s = test_server_start(
        (struct mc_rpc_server_config){.metrics = metrics, .max_buffered_bytes = 16u << 20});
    struct mc_rpc_client *client = test_client(&s, 1);
    struct mc_rpc_request_header h = test_header(1, FN_ECHO, 200u << 20);
    char *bytes = mc_zalloc(PART);
    int fds[PEERS];
    for (size_t i = 0; i < PEERS; i++) {
        fds[i] = test_socket(&s);
        if (test_send(fds[i], &h, sizeof(h)) == MC_OK) {
            (void)test_send(fds[i], bytes, PART); /* fails where the server has closed it */
        }
        test_echo(client, 1000, i); /* who asks for little is served all the time */
        assert_true(test_gauge(metrics, "mc_rpc_buffered_bytes") <= (16 << 20) + (8 << 20));
    }
    int64_t closed = 0;
    for (int look = 0; look < 400 && closed < PEERS - 6; look++) {
        usleep(5000);
        closed = test_gauge(metrics, "mc_rpc_over_budget");
    }
    usleep(50000);
    assert_in_range(test_gauge(metrics, "mc_rpc_over_budget"), PEERS - 6, PEERS - 2);
    assert_true(test_gauge(metrics, "mc_rpc_buffered_bytes") <= 16 << 20);
    test_echo(client, 1000, PEERS);
    for (size_t i = 0; i < PEERS; i++) {
        close(fds[i]);
    }
    for (int look = 0; look < 2000 && test_gauge(metrics, "mc_rpc_connections") > 1; look++) {
        usleep(5000);
    }
    assert_int_equal(test_gauge(metrics, "mc_rpc_buffered_bytes"), 0);
    test_echo(client, 8 << 20, 1); /* there is room again */
    free(bytes);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
    mc_metrics_destroy(metrics);
}

static void test_stopping_ends_connections(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){.threads = 2});
    int fds[6];
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        fds[i] = test_socket(&s);
        assert_ok(test_send(fds[i], "\x15", 1));
    }
    mc_rpc_server_stop(s.server);
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        assert_closed(fds[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_no_frame_is_closed_without_an_answer),
        cmocka_unit_test(test_frames_may_be_cut_anywhere),
        cmocka_unit_test(test_too_large_is_answered_then_closed),
        cmocka_unit_test(test_silent_and_dripping_peers_are_closed),
        cmocka_unit_test(test_a_peer_that_does_not_read_is_not_read),
        cmocka_unit_test(test_a_connection_too_many_is_closed),
        cmocka_unit_test(test_all_requests_together_have_a_limit),
        cmocka_unit_test(test_stopping_ends_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
