/*
 * A server whose functions are made for tests, and raw frames to throw at it.
 */
#ifndef MC_TESTS_RPC_SUPPORT_H
#define MC_TESTS_RPC_SUPPORT_H

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/metrics.h"
#include "io/io.h"
#include "rpc/frame.h"
#include "support/support.h"

enum {
    FN_ECHO = 1,
    FN_BAD_ARGUMENTS = 2,
    FN_COUNT_CALLS = 3,
    FN_GROW = 4,
    FN_SLEEP = 5,
    FN_WAIT = 6, /* until test_gate is open */
};

/* Whether a FN_WAIT has come in, and may go on. */
static struct { _Atomic bool asked, open; } test_gate;

static inline void test_wait_until(const _Atomic bool *flag) {
    while (!atomic_load(flag)) {
        usleep(1000);
    }
}

static inline void test_handler(void *ctx, const struct mc_rpc_request *request,
                                struct mc_rpc_reply *reply) {
    assert_int_equal(reply->body->len, 0);
    assert_int_equal(reply->attachment->len, 0);
    switch (request->function_id) {
    case FN_ECHO:
        mc_buf_append(reply->body, request->body.ptr, request->body.len);
        mc_buf_append(reply->attachment, request->attachment.ptr, request->attachment.len);
        break;
    case FN_BAD_ARGUMENTS:
        reply->errc = MC_RPC_INVALID_ARGUMENTS;
        break;
    case FN_COUNT_CALLS: /* on this connection */
        request->peer_words[MC_RPC_PEER_WORDS - 1]++;
        mc_buf_append(reply->body, &request->peer_words[MC_RPC_PEER_WORDS - 1], sizeof(uint64_t));
        break;
    case FN_GROW: { /* body: u32 n; answer: n bytes of the pattern seeded with n */
        uint32_t n;
        memcpy(&n, request->body.ptr, sizeof(n));
        char *bytes = mc_arena_alloc(request->arena, n);
        mc_test_fill(bytes, n, n);
        mc_buf_append(reply->body, bytes, n);
        break;
    }
    case FN_SLEEP:
        usleep(200 * 1000);
        break;
    case FN_WAIT:
        atomic_store(&test_gate.asked, true);
        test_wait_until(&test_gate.open);
        break;
    default:
        reply->errc = MC_RPC_NOT_REGISTERED;
        break;
    }
}

struct test_server {
    struct mc_rpc_server *server;
    uint16_t port;
    char address[32];
};

static inline struct test_server test_server_start(struct mc_rpc_server_config config) {
    struct test_server s;
    config.host = "127.0.0.1";
    config.no_delay = true;
    config.handler = test_handler;
    assert_ok(mc_rpc_server_start(&config, &s.server, &s.port));
    snprintf(s.address, sizeof(s.address), "127.0.0.1:%u", s.port);
    return s;
}

static inline struct mc_rpc_client *test_client(const struct test_server *s, unsigned connections) {
    struct mc_rpc_client *client;
    assert_ok(mc_rpc_client_create(s->address, connections, 5000, &client));
    return client;
}

static inline uint64_t test_deadline(void) {
    return mc_now_ns(mc_clock_system()) + 120 * MC_SEC;
}

static inline int64_t test_gauge(struct mc_metrics *metrics, const char *name) {
    struct mc_buf text = {0};
    char line[64];
    mc_metrics_print(metrics, &text);
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(mc_buf_cstr(&text), line);
    assert_non_null(at);
    int64_t value = strtoll(at + strlen(line), NULL, 10);
    mc_buf_free(&text);
    return value;
}

static inline int test_socket(const struct test_server *s) {
    struct mc_addr addr;
    int fd;
    assert_ok(mc_addr_resolve("127.0.0.1", s->port, &addr));
    assert_ok(mc_connect(&addr, test_deadline(), &fd));
    return fd;
}

static inline enum mc_status test_send(int fd, const void *bytes, size_t len) {
    struct iovec iov = {(void *)bytes, len};
    return mc_send_all(fd, &iov, 1, test_deadline());
}

static inline struct mc_rpc_request_header test_header(uint32_t seq, uint32_t function,
                                                       uint32_t length) {
    return (struct mc_rpc_request_header){
        .magic = MC_RPC_MAGIC, .seq = seq, .function_id = function, .length = length};
}

/* One echo call that must succeed with every byte right:
 * the server lives and keeps its promises. */
static inline void test_echo(struct mc_rpc_client *client, size_t len, uint64_t seed) {
    char *bytes = mc_alloc(len);
    struct mc_buf reply = {0};
    mc_test_fill(bytes, len, seed);
    enum mc_rpc_errc errc;
    assert_ok(
        mc_rpc_call(client, FN_ECHO, (struct mc_str){bytes, len}, test_deadline(), &reply, &errc));
    assert_int_equal(errc, MC_RPC_OK);
    assert_int_equal(reply.len, len);
    mc_test_verify(reply.data, len, seed);
    mc_buf_free(&reply);
    free(bytes);
}

#endif
