/* Sockets listen on v4 and v6 alike, say when a port is in use, and move whole messages before a
 * deadline or fail. */
#include "support/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h> /* MC_TEST_THREADS */
#include <unistd.h>

#include "io/io.h"

static uint64_t in_ms(uint64_t ms) {
    return mc_now_ns(mc_clock_system()) + ms * MC_MS;
}

static int accept_soon(int listener, struct mc_addr *peer) {
    struct pollfd p = {.fd = listener, .events = POLLIN};
    int fd = -1;
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_ok(mc_accept(listener, &fd, peer));
    return fd;
}

static void connect_pair(const char *listen_host, const char *connect_host, int pair[2]) {
    int listener;
    uint16_t port;
    struct mc_addr addr, peer;
    assert_ok(mc_listen(listen_host, 0, 16, &listener, &port));
    assert_int_not_equal(port, 0);
    assert_int_equal(mc_accept(listener, &pair[1], &peer), MC_ERR_NOT_FOUND);
    assert_ok(mc_addr_resolve(connect_host, port, &addr));
    assert_ok(mc_connect(&addr, in_ms(10000), &pair[0]));
    pair[1] = accept_soon(listener, &peer);
    assert_int_equal(peer.storage.ss_family, addr.storage.ss_family);
    close(listener);
}

static void test_an_empty_host_listens_on_v4_and_v6(void **state) {
    static const char *const hosts[] = {"", "*"}, *const targets[] = {"127.0.0.1", "::1"};
    for (int i = 0; i < 4; i++) {
        int pair[2];
        connect_pair(hosts[i / 2], targets[i % 2], pair);
        assert_true(fcntl(pair[0], F_GETFD) & FD_CLOEXEC && fcntl(pair[1], F_GETFD) & FD_CLOEXEC);
        assert_true(fcntl(pair[0], F_GETFL) & O_NONBLOCK && fcntl(pair[1], F_GETFL) & O_NONBLOCK);
        close(pair[0]);
        close(pair[1]);
    }
}

static void test_a_v4_host_is_v4_only(void **state) {
    int listener, fd;
    uint16_t port;
    struct mc_addr addr;
    assert_ok(mc_listen("0.0.0.0", 0, 16, &listener, &port));
    assert_ok(mc_addr_resolve("::1", port, &addr));
    assert_int_equal(mc_connect(&addr, in_ms(10000), &fd), MC_ERR_UNREACHABLE);
    close(listener);
}

static void test_a_port_in_use_is_refused(void **state) {
    static const char *const hosts[] = {"", "127.0.0.1", "::1", "0.0.0.0"};
    int listener, fd;
    uint16_t port, other;
    assert_ok(mc_listen("", 0, 16, &listener, &port));
    for (size_t i = 0; i < MC_ARRAY_LEN(hosts); i++) {
        assert_int_equal(mc_listen(hosts[i], port, 16, &fd, &other), MC_ERR_ADDRESS_IN_USE);
    }
    struct mc_rng rng;
    mc_rng_seed(&rng, 1);
    assert_int_equal(mc_listen_range("", port, port, &rng, 16, &fd, &other), MC_ERR_ADDRESS_IN_USE);
    close(listener);
    assert_ok(mc_listen("", port, 16, &fd, &other)); /* at once, though connections may linger */
    assert_int_equal(port, other);
    close(fd);
    assert_int_equal(mc_listen("192.0.2.1", 0, 16, &fd, &other), MC_ERR_BAD_ADDRESS);
    assert_int_equal(mc_listen_range("", 2, 1, &rng, 16, &fd, &other), MC_INVALID_PARAMS);
}

/* Whoever opens and closes in a loop meets new ports as long as there are some. (By chance alone,
 * half as many draws as there are ports would be distinct once in a hundred runs.) */
static void test_a_port_of_a_range_comes_back_last(void **state) {
    enum { FIRST = 21100, PORTS = 40 };
    struct mc_rng rng;
    bool seen[PORTS] = {false};
    mc_rng_seed(&rng, 7);
    for (int i = 0; i < 2 * PORTS; i++) { /* others may have some of them */
        int fd;
        uint16_t port;
        assert_ok(mc_listen_range("127.0.0.1", FIRST, FIRST + PORTS - 1, &rng, 1, &fd, &port));
        close(fd);
        assert_true(i >= PORTS / 2 || !seen[port - FIRST]);
        seen[port - FIRST] = true;
    }
}

static void test_connect_fails_when_refused_or_late(void **state) {
    int listener, fd;
    uint16_t port;
    struct mc_addr addr;
    assert_ok(mc_listen("127.0.0.1", 0, 0, &listener, &port));
    assert_ok(mc_addr_resolve("127.0.0.1", port, &addr));
    int waiting[8], count = 0; /* a full backlog leaves the next connect waiting */
    enum mc_status status;
    do {
        status = mc_connect(&addr, in_ms(50), &fd);
        if (status == MC_OK) {
            waiting[count++] = fd;
        }
    } while (status == MC_OK && count < 8);
    assert_int_equal(status, MC_ERR_TIMEOUT);
    while (count > 0) {
        close(waiting[--count]);
    }
    close(listener);
    assert_int_equal(mc_connect(&addr, in_ms(10000), &fd), MC_ERR_UNREACHABLE);
}

#define BIG    (8u << 20)
#define PIECES 1000

struct sender {
    int fd;
    char *bytes;
    enum mc_status status;
};

static void *send_in_pieces(void *arg) {
    struct sender *s = arg;
    struct iovec iov[PIECES];
    size_t at = 0;
    for (size_t i = 0; i < PIECES; i++) { /* some empty, all uneven, the last takes the rest */
        size_t len = i + 1 == PIECES ? BIG - at : i % 7 == 0 ? 0 : i * 13;
        iov[i] = (struct iovec){s->bytes + at, len};
        at += len;
    }
    s->status = mc_send_all(s->fd, iov, PIECES, in_ms(60000));
    return NULL;
}

static void test_whole_messages_arrive(void **state) {
    int pair[2];
    connect_pair("", "::1", pair);
    struct sender s = {.fd = pair[0], .bytes = mc_alloc(BIG), .status = MC_INTERNAL_ERROR};
    char *got = mc_zalloc(BIG);
    mc_test_fill(s.bytes, BIG, 5);
    pthread_t thread;
    pthread_create(&thread, NULL, send_in_pieces, &s);
    assert_ok(mc_recv_all(pair[1], got, BIG, in_ms(60000)));
    pthread_join(thread, NULL);
    assert_ok(s.status);
    mc_test_verify(got, BIG, 5);
    free(got);
    free(s.bytes);
    close(pair[0]);
    close(pair[1]);
}

static void test_a_deadline_and_a_closed_peer_are_errors(void **state) {
    int pair[2];
    char byte[2] = {1, 2};
    connect_pair("127.0.0.1", "127.0.0.1", pair);
    assert_int_equal(mc_recv_all(pair[1], byte, 1, in_ms(20)), MC_ERR_TIMEOUT);
    assert_int_equal(mc_recv_all(pair[1], byte, 1, 0), MC_ERR_TIMEOUT);
    char *big = mc_zalloc(64u << 20);
    struct iovec iov = {big, 64u << 20};
    assert_int_equal(mc_send_all(pair[0], &iov, 1, in_ms(20)), MC_ERR_TIMEOUT);
    free(big);
    close(pair[0]);
    close(pair[1]);

    connect_pair("127.0.0.1", "127.0.0.1", pair);
    iov = (struct iovec){byte, 1};
    assert_ok(mc_send_all(pair[0], &iov, 1, in_ms(1000)));
    close(pair[0]);
    assert_int_equal(mc_recv_all(pair[1], byte, 2, in_ms(10000)), MC_ERR_CLOSED);
    enum mc_status status = MC_OK;
    for (int i = 0; i < 1000 && status == MC_OK; i++) { /* and no SIGPIPE */
        status = mc_send_all(pair[1], &iov, 1, in_ms(1000));
    }
    assert_int_equal(status, MC_ERR_CLOSED);
    close(pair[1]);
}

static void test_a_stream_says_wait_and_end(void **state) {
    int pair[2];
    struct mc_stream a, b;
    char text[8], more[8];
    size_t n = 9;
    connect_pair("127.0.0.1", "127.0.0.1", pair);
    mc_stream_plain(&a, pair[0]);
    mc_stream_plain(&b, pair[1]);
    struct iovec in[2] = {{text, 3}, {more, 8}}, none = {text, 0};
    assert_ok(b.ops->readv(&b, in, 2, &n));
    assert_int_equal(n, 0);
    struct iovec out[2] = {{(char *)"abcd", 4}, {(char *)"efg", 3}};
    assert_ok(a.ops->writev(&a, out, 2, &n));
    assert_int_equal(n, 7);
    struct pollfd p = {.fd = b.fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_ok(b.ops->readv(&b, &none, 1, &n));
    assert_int_equal(n, 0);
    assert_ok(b.ops->readv(&b, in, 2, &n));
    assert_int_equal(n, 7);
    assert_memory_equal(text, "abc", 3);
    assert_memory_equal(more, "defg", 4);
    a.ops->close(&a);
    assert_int_equal(a.fd, -1);
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(b.ops->readv(&b, in, 2, &n), MC_ERR_CLOSED);
    b.ops->close(&b);
}

/* ---- descriptors in messages ---- */

static int count_open(void) {
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

/* `count` times the descriptor, in one message. */
static void send_with(int to, uint64_t message, int fd, size_t count) {
    struct iovec iov = {&message, sizeof(message)};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control = {.space = {0}};
    struct msghdr header = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (size_t i = 0; i < count; i++) {
        memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
    }
    assert_int_equal(sendmsg(to, &header, 0), sizeof(message));
}

/* More are refused, by the kernel's word or not, and none of them stays. */
static void test_one_descriptor_at_most_comes_with_a_message(void **state) {
    for (int stream = 0; stream < 2; stream++) {
        int pair[2], before, passed = -1;
        assert_int_equal(socketpair(AF_UNIX, stream ? SOCK_STREAM : SOCK_SEQPACKET, 0, pair), 0);
        before = count_open();
        for (size_t count = 1; count <= 4; count++) {
            uint64_t got = 0;
            send_with(pair[0], 0x1234, pair[0], count);
            enum mc_status status =
                stream ? mc_local_recv_stream(pair[1], &got, sizeof(got), in_ms(10000), &passed)
                       : mc_local_recv(pair[1], &got, sizeof(got), &passed);
            assert_int_equal(status, count == 1 ? MC_OK : MC_ERR_PROTOCOL);
            assert_int_equal(passed >= 0, count == 1);
            if (count == 1) {
                assert_int_equal(got, 0x1234);
                close(passed);
            }
            assert_int_equal(count_open(), before);
        }
        close(pair[0]);
        close(pair[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_host_listens_on_v4_and_v6),
        cmocka_unit_test(test_a_v4_host_is_v4_only),
        cmocka_unit_test(test_a_port_in_use_is_refused),
        cmocka_unit_test(test_a_port_of_a_range_comes_back_last),
        cmocka_unit_test(test_connect_fails_when_refused_or_late),
        cmocka_unit_test(test_whole_messages_arrive),
        cmocka_unit_test(test_a_deadline_and_a_closed_peer_are_errors),
        cmocka_unit_test(test_a_stream_says_wait_and_end),
        cmocka_unit_test(test_one_descriptor_at_most_comes_with_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
