/*
 * TLS streams move every byte while one thread reads and another writes on both sides and the
 * sockets are always full; a writer that changes its mind about what was not taken is understood; a
 * port that takes both tells TLS from plain by its first bytes, however few come at a time; changed
 * files count from the next connection on, and bad ones not at all. MC_TEST_THREADS
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "io/tls.h"
#include "support/certificates.h"

static struct certificates certificates;

static struct mc_tls *tls(bool server, const char *name, const char *ca, const char *peer_name) {
    struct mc_tls_config config = {.peer_name = peer_name};
    char *cert = NULL, *key = NULL, *trust = NULL, file[32];
    if (name != NULL) {
        snprintf(file, sizeof(file), "%s.pem", name);
        config.cert = cert = certificates_file(&certificates, file);
        snprintf(file, sizeof(file), "%s.key", name);
        config.key = key = certificates_file(&certificates, file);
    }
    if (ca != NULL) {
        config.ca = trust = certificates_file(&certificates, ca);
    }
    struct mc_tls *out;
    assert_ok(mc_tls_create(&config, server, &out));
    free(cert);
    free(key);
    free(trust);
    return out;
}

static void sockets(int fds[2], int buffer_bytes) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    for (int i = 0; i < 2 && buffer_bytes > 0; i++) {
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(int)), 0);
    }
}

static uint64_t in_10_s(void) {
    return mc_now_ns(mc_clock_system()) + 10 * MC_SEC;
}

/* ---- both directions at once ---- */

enum { BYTES = 6 << 20 };
struct flow {
    struct mc_stream *stream;
    char *bytes;
    uint64_t seed;
};

static void *send_all(void *arg) {
    struct flow *f = arg;
    struct mc_rng rng;
    mc_rng_seed(&rng, f->seed);
    for (size_t sent = 0; sent < BYTES;) {
        struct iovec iov[5];
        size_t offered = 0;
        for (int i = 0; i < 5; i++) { /* another cut each time */
            size_t part = mc_min_u64(mc_rng_next(&rng) % 40000, BYTES - sent - offered);
            iov[i] = (struct iovec){f->bytes + sent + offered, part};
            offered += part;
        }
        size_t n = 0;
        assert_ok(f->stream->ops->writev(f->stream, iov, 5, &n));
        assert_true(n <= offered);
        sent += n;
        if (n < offered) {
            assert_ok(mc_wait_ready(f->stream->fd, POLLOUT, in_10_s()));
        }
    }
    /* The last byte is told only when it has left. */
    return NULL;
}

static void *receive_all(void *arg) {
    struct flow *f = arg;
    assert_ok(mc_stream_recv_all(f->stream, f->bytes, BYTES, in_10_s() + 50 * MC_SEC));
    return NULL;
}

static void test_one_reads_while_another_writes(void **state) {
    struct mc_tls *server = tls(true, "server", NULL, NULL);
    struct mc_tls *client = tls(false, NULL, "ca.pem", "localhost");
    struct mc_stream ends[2];
    struct flow flows[4];
    pthread_t threads[4];
    int fds[2];
    sockets(fds, 20000);
    mc_stream_tls(&ends[0], fds[0], client, "any");
    mc_stream_tls(&ends[1], fds[1], server, "any");
    for (int i = 0; i < 4; i++) {
        flows[i] = (struct flow){&ends[i % 2], mc_zalloc(BYTES), (uint64_t)i};
        if (i < 2) {
            mc_test_fill(flows[i].bytes, BYTES, (uint64_t)i);
        }
        pthread_create(&threads[i], NULL, i < 2 ? send_all : receive_all, &flows[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    mc_test_verify(flows[3].bytes, BYTES, 0);
    mc_test_verify(flows[2].bytes, BYTES, 1);
    for (int i = 0; i < 4; i++) {
        free(flows[i].bytes);
    }
    for (int i = 0; i < 2; i++) {
        ends[i].ops->close(&ends[i]);
    }
    mc_tls_destroy(server);
    mc_tls_destroy(client);
}

/* ---- a change of mind ---- */

static void handshake(struct mc_stream *client, struct mc_stream *server) {
    bool done = false;
    for (int i = 0; i < 100 && !done; i++) {
        char byte;
        struct iovec iov = {&byte, 1};
        size_t n = 0;
        assert_ok(mc_stream_tls_step(client, &done));
        assert_ok(server->ops->readv(server, &iov, 1, &n));
        assert_int_equal(n, 0);
    }
    assert_true(done);
}

static void test_what_was_not_taken_may_be_taken_back(void **state) {
    struct mc_tls *server = tls(true, "server", NULL, NULL);
    struct mc_tls *client = tls(false, NULL, "ca.pem", "localhost");
    struct mc_stream ends[2];
    int fds[2];
    sockets(fds, 0);
    mc_stream_tls(&ends[0], fds[0], client, "any");
    mc_stream_tls(&ends[1], fds[1], server, "any");
    handshake(&ends[0], &ends[1]);
    static char first[1 << 20], second[100], back[1 << 20];
    mc_test_fill(first, sizeof(first), 1);
    mc_test_fill(second, sizeof(second), 2);
    size_t taken = 0, n = 0, got = 0;
    struct iovec iov = {first, sizeof(first)};
    assert_ok(ends[0].ops->writev(&ends[0], &iov, 1, &taken));
    assert_in_range(taken, 1, sizeof(first) - 2); /* full */
    iov = (struct iovec){first, sizeof(first)};
    assert_ok(ends[0].ops->writev(&ends[0], &iov, 1, &n)); /* and still */
    assert_int_equal(n, 0);
    /* One byte more of the first, then something else. */
    do {
        iov = (struct iovec){back + got, sizeof(back) - got};
        assert_ok(ends[1].ops->readv(&ends[1], &iov, 1, &n));
        got += n;
    } while (n > 0);
    assert_in_range(got, 1, taken);
    struct iovec other[2] = {{first + taken, 1}, {second, sizeof(second)}};
    assert_ok(ends[0].ops->writev(&ends[0], other, 2, &n));
    assert_int_equal(n, 1 + sizeof(second));
    assert_ok(mc_stream_recv_all(&ends[1], back + got, taken + n - got, in_10_s()));
    mc_test_verify(back, taken + 1, 1);
    mc_test_verify(back + taken + 1, sizeof(second), 2);
    for (int i = 0; i < 2; i++) {
        ends[i].ops->close(&ends[i]);
    }
    mc_tls_destroy(server);
    mc_tls_destroy(client);
}

/* ---- plain or TLS ---- */

static void test_a_port_takes_both(void **state) {
    struct mc_tls *server = tls(true, "server", NULL, NULL);
    struct mc_tls *client = tls(false, NULL, "ca.pem", "localhost");
    /* Plain requests, the second to the last as much like a handshake as a length can be. */
    static const char *const heads[] = {"\x11\x00\x00\x00\x00\x00", "\x16\x00\x00\x00\x00\x00",
                                        "\x16\x03\x01\x00\x00\x00", "GET / "};
    for (size_t i = 0; i < MC_ARRAY_LEN(heads); i++) {
        for (int step = 1; step <= 12; step += 11) {
            struct mc_stream s;
            int fds[2];
            char sent[12] = "012345abcdef", got[12];
            size_t total = 0;
            memcpy(sent, heads[i], 6);
            sockets(fds, 0);
            mc_stream_either(&s, fds[1], server, false, "any");
            for (int at = 0; at < 12; at += step) {
                size_t n = 0;
                struct iovec iov = {got + total, sizeof(got) - total};
                assert_int_equal(write(fds[0], sent + at, (size_t)step), step);
                assert_ok(s.ops->readv(&s, &iov, 1, &n));
                total += n;
                /* Told as soon as it is known: at the first byte where that says it. */
                assert_true(total == (size_t)(at + step) || (sent[0] == 0x16 && total == 0));
            }
            assert_int_equal(total, 12);
            assert_memory_equal(got, sent, 12);
            assert_true(mc_stream_is_plain(&s));
            s.ops->close(&s);
            close(fds[0]);
        }
    }
    for (int demand = 0; demand < 2; demand++) {
        struct mc_stream ends[2];
        int fds[2];
        char bytes[1000], got[1000];
        mc_test_fill(bytes, sizeof(bytes), 5);
        sockets(fds, 0);
        mc_stream_tls(&ends[0], fds[0], client, "any");
        mc_stream_either(&ends[1], fds[1], server, demand, "any");
        handshake(&ends[0], &ends[1]);
        struct iovec iov = {bytes, sizeof(bytes)};
        assert_ok(mc_stream_send_all(&ends[0], &iov, 1, in_10_s()));
        assert_ok(mc_stream_recv_all(&ends[1], got, sizeof(got), in_10_s()));
        mc_test_verify(got, sizeof(got), 5);
        ends[0].ops->close(&ends[0]);
        ends[1].ops->close(&ends[1]);
    }
    mc_tls_destroy(server);
    mc_tls_destroy(client);
}

static void test_plain_is_refused_where_tls_is_demanded(void **state) {
    struct mc_tls *server = tls(true, "server", NULL, NULL);
    struct mc_stream s;
    int fds[2];
    size_t n = 0;
    char got[64];
    struct iovec iov = {got, sizeof(got)};
    sockets(fds, 0);
    mc_stream_either(&s, fds[1], server, true, "any");
    assert_ok(s.ops->readv(&s, &iov, 1, &n));
    assert_int_equal(n, 0);
    assert_int_equal(write(fds[0], "\x11", 1), 1);
    assert_int_equal(s.ops->readv(&s, &iov, 1, &n), MC_ERR_PROTOCOL);
    assert_int_equal(n, 0);
    s.ops->close(&s);
    close(fds[0]);
    mc_tls_destroy(server);
}

/* ---- certificates that change ---- */

static enum mc_status meet(struct mc_tls *server, struct mc_tls *client) {
    struct mc_stream ends[2];
    int fds[2];
    bool done = false;
    enum mc_status status = MC_OK;
    sockets(fds, 0);
    mc_stream_tls(&ends[0], fds[0], client, "any");
    mc_stream_tls(&ends[1], fds[1], server, "any");
    while (!done && status == MC_OK) {
        char byte;
        struct iovec iov = {&byte, 1};
        size_t n = 0;
        status = mc_stream_tls_step(&ends[0], &done);
        (void)ends[1].ops->readv(&ends[1], &iov, 1, &n);
    }
    ends[0].ops->close(&ends[0]);
    ends[1].ops->close(&ends[1]);
    return status;
}

/* Until the files are looked at again. */
static enum mc_status meet_until(struct mc_tls *server, struct mc_tls *client,
                                 enum mc_status wanted) {
    enum mc_status status = MC_OK;
    for (int i = 0; i < 200; i++) { /* 10 s */
        status = meet(server, client);
        if (status == wanted) {
            break;
        }
        usleep(50000);
    }
    return status;
}

static void test_files_that_change_are_used(void **state) {
    assert_true(
        certificates_run(&certificates, "cp server.pem live.pem && cp server.key live.key"));
    struct mc_tls *server = tls(true, "live", NULL, NULL);
    struct mc_tls *old = tls(false, NULL, "ca.pem", "localhost");
    struct mc_tls *renewed = tls(false, NULL, "ca.pem", "elsewhere.example");
    assert_ok(meet(server, old));
    assert_int_equal(meet(server, renewed), MC_ERR_PROTOCOL);
    /* Half of a renewal, and junk: the old pair serves on. */
    assert_true(certificates_run(&certificates, "cp elsewhere.pem new && mv new live.pem"));
    usleep(1200000);
    assert_ok(meet(server, old));
    assert_true(certificates_run(&certificates, "cp elsewhere.key new && mv new live.key"));
    assert_ok(meet_until(server, renewed, MC_OK));
    assert_int_equal(meet(server, old), MC_ERR_PROTOCOL);
    assert_true(certificates_run(&certificates, "echo junk > live.pem"));
    usleep(1200000);
    assert_ok(meet(server, renewed));
    mc_tls_destroy(server);
    mc_tls_destroy(old);
    mc_tls_destroy(renewed);
}

static void test_a_certificate_out_of_date_is_an_error(void **state) {
    struct mc_tls *server = tls(true, "expired", NULL, NULL);
    struct mc_tls *client = tls(false, NULL, "ca.pem", "localhost");
    assert_int_equal(meet(server, client), MC_ERR_PROTOCOL);
    mc_tls_destroy(server);
    mc_tls_destroy(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_reads_while_another_writes),
        cmocka_unit_test(test_what_was_not_taken_may_be_taken_back),
        cmocka_unit_test(test_a_port_takes_both),
        cmocka_unit_test(test_plain_is_refused_where_tls_is_demanded),
        cmocka_unit_test(test_files_that_change_are_used),
        cmocka_unit_test(test_a_certificate_out_of_date_is_an_error),
    };
    if (!certificates_make(&certificates)) {
        fprintf(stderr, "skipped: certificates could not be made, is the openssl program there?\n");
        return 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    certificates_remove(&certificates);
    return failed;
}
