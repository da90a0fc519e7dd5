/*
 * The handshake server, asked by its own client and by raw sockets: every request type, peers from
 * before the type byte, frames that are too long, cut off or of no known type, stalled connections
 * beside working ones. MC_TEST_THREADS.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"
#include "meta/meta.h"
#include "support/support.h"

struct scene {
    struct mc_reactor *reactor;
    struct mc_metrics *metrics;
    struct mc_handshake_server *server;
    struct mc_handshake_limits limits;
    uint16_t port;
    _Atomic int notified;
    char name[64];
    char message[64];
    _Atomic(struct mc_handshake_call *) call; /* to be answered by the test */
};

static void on_metadata(void *ctx, struct mc_str request, struct mc_buf *reply) {
    mc_buf_puts(reply, "{\"name\":\"me\"}");
}

static enum mc_status on_notify(void *ctx, struct mc_str name, struct mc_str message) {
    struct scene *s = ctx;
    snprintf(s->name, sizeof(s->name), "%.*s", (int)name.len, name.ptr ? name.ptr : "");
    snprintf(s->message, sizeof(s->message), "%.*s", (int)message.len,
             message.ptr ? message.ptr : "");
    atomic_fetch_add(&s->notified, 1);
    return mc_str_eq(name, MC_STR("refuse")) ? MC_ERR_LIMIT : MC_OK;
}

/* Those that say so are answered later, the others not here. */
static bool on_connection(void *ctx, struct mc_str body, struct mc_handshake_call *call) {
    struct scene *s = ctx;
    if (memmem(body.ptr, body.len, "later", 5) == NULL) {
        return false;
    }
    atomic_store(&s->call, call);
    return true;
}

static int set_up_with(void **state, uint32_t serve_timeout_ms) {
    struct scene *s = calloc(1, sizeof(*s));
    int fd = -1;
    mc_handshake_limits_init(&s->limits);
    s->limits.max_frame_bytes = 1u << 16;
    s->limits.serve_timeout_ms = serve_timeout_ms;
    s->limits.max_connections = 32;
    s->metrics = mc_metrics_create();
    assert_ok(mc_reactor_create("test", &s->reactor));
    assert_ok(mc_listen("127.0.0.1", 0, 128, &fd, &s->port));
    struct mc_handshake_handler handler = {s, on_metadata, on_notify, on_connection};
    assert_ok(mc_handshake_serve(s->reactor, fd, &handler, &s->limits, s->metrics, &s->server));
    *state = s;
    return 0;
}

static int set_up(void **state) {
    return set_up_with(state, 60000);
}

/* Where the test waits for a connection's time to be up. */
static int set_up_impatient(void **state) {
    return set_up_with(state, 1000);
}

static int tear_down(void **state) {
    struct scene *s = *state;
    mc_handshake_stop(s->server);
    mc_reactor_destroy(s->reactor);
    mc_metrics_destroy(s->metrics);
    free(s);
    return 0;
}

static uint64_t in_ms(uint64_t ms) {
    return mc_now_ns(mc_clock_system()) + ms * MC_MS;
}

static int dial(const struct scene *s) {
    struct mc_addr addr;
    int fd = -1;
    assert_ok(mc_addr_resolve("127.0.0.1", s->port, &addr));
    assert_ok(mc_connect(&addr, in_ms(20000), &fd));
    return fd;
}

static void send_bytes(int fd, const void *bytes, size_t len) {
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    assert_ok(mc_send_all(fd, &iov, 1, in_ms(20000)));
}

static void the_client_gets_its_answers(void **state) {
    struct scene *s = *state;
    struct mc_buf reply = {0};
    assert_ok(mc_handshake_metadata("127.0.0.1", s->port, MC_STR("{\"name\":\"you\"}"), &s->limits,
                                    in_ms(20000), &reply));
    assert_string_equal(mc_buf_cstr(&reply), "{\"name\":\"me\"}");
    assert_ok(mc_handshake_probe("127.0.0.1", s->port, &s->limits, in_ms(20000)));
    assert_ok(mc_handshake_notify("127.0.0.1", s->port, "n", "hello", &s->limits, in_ms(20000)));
    assert_int_equal(s->notified, 1);
    assert_string_equal(s->name, "n");
    assert_string_equal(s->message, "hello");
    assert_int_equal(
        mc_handshake_notify("127.0.0.1", s->port, "refuse", "x", &s->limits, in_ms(20000)),
        MC_ERR_REJECTED);
    assert_int_equal(
        mc_handshake_notify("127.0.0.1", s->port, "\xff", "x", &s->limits, in_ms(20000)),
        MC_INVALID_PARAMS);
    char *big = malloc(1u << 17);
    memset(big, 'x', 1u << 17);
    assert_int_equal(mc_handshake_metadata("127.0.0.1", s->port, (struct mc_str){big, 1u << 17},
                                           &s->limits, in_ms(20000), &reply),
                     MC_ERR_PROTOCOL);
    free(big);
    mc_buf_free(&reply);
    struct mc_buf text = {0};
    mc_metrics_print(s->metrics, &text);
    assert_non_null(
        strstr(mc_buf_cstr(&text), "mooncake_te_handshake_requests_total{type=\"metadata\"} 1"));
    mc_buf_free(&text);
}

/* Sends `request` behind its length, byte by byte if asked, and returns the whole answer behind its
 * length. */
static void ask(const struct scene *s, const char *request, size_t len, bool slowly,
                struct mc_buf *answer) {
    int fd = dial(s);
    uint64_t length = len;
    char frame[512];
    memcpy(frame, &length, 8);
    memcpy(frame + 8, request, len);
    for (size_t i = 0; i < 8 + len; i += slowly ? 1 : 8 + len) {
        send_bytes(fd, frame + i, slowly ? 1 : 8 + len);
    }
    assert_ok(mc_recv_all(fd, &length, 8, in_ms(20000)));
    assert_true(length > 0 && length < 4096);
    mc_buf_clear(answer);
    mc_buf_reserve(answer, length);
    assert_ok(mc_recv_all(fd, answer->data, length, in_ms(20000)));
    answer->len = length;
    char end;
    assert_int_equal(mc_recv_all(fd, &end, 1, in_ms(20000)), MC_ERR_CLOSED); /* its side is shut */
    close(fd);
}

static void rdma_peers_are_turned_away_politely(void **state) {
    struct scene *s = *state;
    struct mc_buf answer = {0};
    ask(s, "\0{\"local_nic_path\":\"a@mlx5_0\"}", 30, true, &answer);
    assert_int_equal(answer.data[0], MC_HANDSHAKE_CONNECTION);
    assert_non_null(strstr(mc_buf_cstr(&answer) + 1, "\"reply_msg\":\"no RDMA here\""));
    assert_non_null(strstr(answer.data + 1, "\"peer_nic_path\":\"a@mlx5_0\""));
    ask(s, "{\"local_nic_path\":\"old\"}", 24, false, &answer); /* from before the type byte */
    assert_int_equal(answer.data[0], '{');
    assert_non_null(strstr(mc_buf_cstr(&answer), "\"reply_msg\":\"no RDMA here\""));
    ask(s, "\3{}", 3, true, &answer);
    assert_memory_equal(answer.data, "\3{\"status\":\"success\"}", answer.len);
    mc_buf_free(&answer);
}

static void broken_frames_end_the_connection(void **state) {
    struct scene *s = *state;
    static const struct {
        uint64_t length;
        const char *body;
        size_t len;
    } frames[] = {
        {0, "", 0},       {UINT64_MAX, "x", 1}, {(1u << 16) + 1, "x", 1}, {3, "\4{}", 3},
        {3, "\x7f{}", 3}, {4, "\2{}x", 4},      {3, "\2[]", 3},           {1, "\2", 1},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(frames); i++) {
        int fd = dial(s);
        char end;
        send_bytes(fd, &frames[i].length, 8);
        if (frames[i].len > 0) {
            send_bytes(fd, frames[i].body, frames[i].len);
        }
        enum mc_status status = mc_recv_all(fd, &end, 1, in_ms(20000));
        assert_true(status == MC_ERR_CLOSED || status == MC_ERR_IO);
        close(fd);
    }
    assert_int_equal(s->notified, 0);
    assert_ok(mc_handshake_probe("127.0.0.1", s->port, &s->limits, in_ms(20000)));
}

static void stalled_connections_delay_nobody_and_end(void **state) {
    struct scene *s = *state;
    int stalled[8];
    for (int i = 0; i < 8; i++) {
        stalled[i] = dial(s);
        send_bytes(stalled[i], "\x20\0\0", 3); /* a frame that never goes on */
    }
    assert_ok(mc_handshake_probe("127.0.0.1", s->port, &s->limits, in_ms(20000)));
    for (int i = 0; i < 8; i++) {
        char end; /* its time is up, by itself */
        assert_int_equal(mc_recv_all(stalled[i], &end, 1, in_ms(20000)), MC_ERR_CLOSED);
        close(stalled[i]);
    }
}

static void too_many_connections_are_refused_and_counted(void **state) {
    struct scene *s = *state;
    int fds[40];
    int refused = 0;
    for (int i = 0; i < 40; i++) {
        fds[i] = dial(s);
    }
    for (int i = 0; i < 40; i++) {
        char end;
        refused += mc_recv_all(fds[i], &end, 1, in_ms(i < 32 ? 1 : 20000)) == MC_ERR_CLOSED;
    }
    assert_true(refused >= 8);
    for (int i = 0; i < 40; i++) {
        close(fds[i]);
    }
    enum mc_status status = MC_ERR_CLOSED; /* and room comes back */
    for (int i = 0; i < 100 && status != MC_OK; i++) {
        status = mc_handshake_probe("127.0.0.1", s->port, &s->limits, in_ms(20000));
        usleep(10000);
    }
    assert_ok(status);
}

static void *probe_main(void *arg) {
    struct scene *s = arg;
    intptr_t failures = 0;
    for (int i = 0; i < 20; i++) {
        failures += mc_handshake_probe("127.0.0.1", s->port, &s->limits, in_ms(20000)) != MC_OK;
    }
    return (void *)failures;
}

static void many_clients_are_served_at_a_time(void **state) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, probe_main, *state), 0);
    }
    for (int i = 0; i < 8; i++) {
        void *failures = NULL;
        pthread_join(threads[i], &failures);
        assert_null(failures);
    }
}

/* A peer that answers `reply` whatever is asked. */
struct fake_peer {
    int fd;
    const char *reply;
    size_t len;
};

static void *fake_main(void *arg) {
    struct fake_peer *peer = arg;
    int fd = -1;
    struct mc_addr addr;
    while (mc_accept(peer->fd, &fd, &addr) != MC_OK) {
        usleep(1000);
    }
    char sink[11]; /* the whole probe: its end is not a reset */
    enum mc_status status = mc_recv_all(fd, sink, sizeof(sink), in_ms(20000));
    if (peer->len > 0) {
        assert_ok(status);
        send_bytes(fd, peer->reply, peer->len);
    } else { /* silent until the asker leaves, who may do so before it asked */
        assert_int_not_equal(mc_recv_all(fd, sink, 1, in_ms(20000)), MC_ERR_TIMEOUT);
    }
    close(fd);
    return NULL;
}

static enum mc_status probe_fake(const struct scene *s, const char *reply, size_t len,
                                 uint64_t deadline_ms) {
    struct fake_peer peer = {-1, reply, len};
    uint16_t port = 0;
    pthread_t thread;
    assert_ok(mc_listen("127.0.0.1", 0, 8, &peer.fd, &port));
    assert_int_equal(pthread_create(&thread, NULL, fake_main, &peer), 0);
    enum mc_status status = mc_handshake_probe("127.0.0.1", port, &s->limits, in_ms(deadline_ms));
    pthread_join(thread, NULL);
    close(peer.fd);
    return status;
}

static void the_client_believes_no_broken_answer(void **state) {
    struct scene *s = *state;
    /* Another type. */
    assert_int_equal(probe_fake(s, "\x15\0\0\0\0\0\0\0\1{\"status\":\"success\"}", 29, 20000),
                     MC_ERR_PROTOCOL);
    assert_int_equal(probe_fake(s, "\0\0\0\0\0\0\0\0\3", 9, 20000), MC_ERR_PROTOCOL);
    assert_int_equal(probe_fake(s, "\0\0\0\0\0\0\0\x7f\3", 9, 20000), MC_ERR_PROTOCOL);
    assert_int_equal(probe_fake(s, "\x15\0\0\0\0\0\0\0\3{\"sta", 14, 20000), MC_ERR_CLOSED);
    assert_int_equal(probe_fake(s, "\x03\0\0\0\0\0\0\0\3{}", 11, 20000), MC_ERR_REJECTED);
    assert_int_equal(probe_fake(s, NULL, 0, 50), MC_ERR_TIMEOUT);
    assert_ok(probe_fake(s, "\x15\0\0\0\0\0\0\0\3{\"status\":\"success\"}", 29, 20000));
}

#define HANDSHAKE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define IMPATIENT_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_impatient, tear_down)

/* ---- answers that come later ---- */

struct asker {
    struct scene *scene;
    enum mc_status status;
    struct mc_buf reply;
};

static void *ask_connection(void *arg) {
    struct asker *a = arg;
    a->status = mc_handshake_connection("127.0.0.1", a->scene->port, MC_STR("{\"x\":\"later\"}"),
                                        &a->scene->limits, in_ms(20000), &a->reply);
    return NULL;
}

static struct mc_handshake_call *wait_for_call(struct scene *s) {
    while (atomic_load(&s->call) == NULL) {
        usleep(1000);
    }
    return atomic_exchange(&s->call, NULL);
}

static void an_answer_may_come_later_and_from_any_thread(void **state) {
    struct asker asker = {.scene = *state};
    pthread_t thread;
    pthread_create(&thread, NULL, ask_connection, &asker);
    struct mc_handshake_call *call = wait_for_call(asker.scene);
    usleep(20000);
    mc_handshake_answer(call, MC_STR("{\"so\":1}"));
    pthread_join(thread, NULL);
    assert_ok(asker.status);
    assert_string_equal(mc_buf_cstr(&asker.reply), "{\"so\":1}");
    mc_buf_free(&asker.reply);
}

static void an_answer_that_is_too_late_is_dropped(void **state) {
    struct asker asker = {.scene = *state};
    pthread_t thread;
    pthread_create(&thread, NULL, ask_connection, &asker);
    struct mc_handshake_call *call = wait_for_call(asker.scene);
    pthread_join(thread, NULL); /* the connection's time was up */
    assert_int_equal(asker.status, MC_ERR_CLOSED);
    mc_handshake_answer(call, MC_STR("{}"));
    assert_ok(
        mc_handshake_probe("127.0.0.1", asker.scene->port, &asker.scene->limits, in_ms(20000)));
    mc_buf_free(&asker.reply);
}

static void an_answer_may_come_after_the_server_stopped(void **state) {
    struct asker asker = {.scene = *state};
    pthread_t thread;
    pthread_create(&thread, NULL, ask_connection, &asker);
    struct mc_handshake_call *call = wait_for_call(asker.scene);
    mc_handshake_stop(asker.scene->server);
    asker.scene->server = NULL;
    pthread_join(thread, NULL);
    assert_int_not_equal(asker.status, MC_OK);
    mc_handshake_answer(call, MC_STR("{}"));
    mc_buf_free(&asker.reply);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        HANDSHAKE_TEST(the_client_gets_its_answers),
        HANDSHAKE_TEST(rdma_peers_are_turned_away_politely),
        HANDSHAKE_TEST(broken_frames_end_the_connection),
        IMPATIENT_TEST(stalled_connections_delay_nobody_and_end),
        HANDSHAKE_TEST(too_many_connections_are_refused_and_counted),
        HANDSHAKE_TEST(many_clients_are_served_at_a_time),
        HANDSHAKE_TEST(the_client_believes_no_broken_answer),
        HANDSHAKE_TEST(an_answer_may_come_later_and_from_any_thread),
        IMPATIENT_TEST(an_answer_that_is_too_late_is_dropped),
        HANDSHAKE_TEST(an_answer_may_come_after_the_server_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
