/*
 * RPC over TLS: every byte arrives, whatever the sizes; a certificate that is not right, on either
 * side, ends in an error and never in an answer; and who speaks plain to a TLS server, or TLS to a
 * plain one, gets nothing and harms nobody. MC_TEST_THREADS
 */
#include <pthread.h>
#include <sys/stat.h>

#include "io/tls.h"
#include "rpc_support.h"
#include "support/certificates.h"

static struct certificates certificates;

static struct mc_tls *tls(bool server, const char *name, const char *ca) {
    char file[32];
    struct mc_tls_config config = {0};
    if (name != NULL) {
        snprintf(file, sizeof(file), "%s.pem", name);
        config.cert = certificates_file(&certificates, file);
        snprintf(file, sizeof(file), "%s.key", name);
        config.key = certificates_file(&certificates, file);
    }
    if (ca != NULL) {
        config.ca = certificates_file(&certificates, ca);
    }
    struct mc_tls *out;
    assert_ok(mc_tls_create(&config, server, &out));
    free((char *)(uintptr_t)config.cert);
    free((char *)(uintptr_t)config.key);
    free((char *)(uintptr_t)config.ca);
    return out;
}

static enum mc_status echo(const char *address, struct mc_tls *with, size_t len) {
    struct mc_rpc_client *client;
    assert_ok(mc_rpc_client_create(address, 1, 3000, &client));
    if (with != NULL) {
        mc_rpc_client_use_tls(client, with);
    }
    char *bytes = mc_alloc(len);
    struct mc_buf reply = {0};
    mc_test_fill(bytes, len, len);
    uint64_t deadline = mc_now_ns(mc_clock_system()) + 5 * MC_SEC;
    enum mc_status status =
        mc_rpc_call(client, FN_ECHO, (struct mc_str){bytes, len}, deadline, &reply, NULL);
    if (status == MC_OK) {
        assert_int_equal(reply.len, len);
        mc_test_verify(reply.data, len, len);
    }
    mc_buf_free(&reply);
    free(bytes);
    mc_rpc_client_destroy(client);
    return status;
}

static void test_every_byte_arrives(void **state) {
    struct mc_tls *server = tls(true, "server", NULL), *with = tls(false, NULL, "ca.pem");
    struct test_server s =
        test_server_start((struct mc_rpc_server_config){.tls = server, .threads = 2});
    struct mc_rpc_client *client = test_client(&s, 1);
    mc_rpc_client_use_tls(client, with);
    static const size_t sizes[] = {1,      19,     20,     4096,    16383,   16384, 16385,    65536,
                                   262143, 262144, 262145, 1000003, 8 << 20, 3,     20 << 20, 100};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        test_echo(client, sizes[i], i);
    }
    enum { MANY = 3000 };
    struct mc_str *bodies = mc_zalloc(MANY * sizeof(*bodies));
    struct mc_buf *replies = mc_zalloc(MANY * sizeof(*replies));
    char pattern[5000];
    mc_test_fill(pattern, sizeof(pattern), 9);
    for (size_t i = 0; i < MANY; i++) {
        bodies[i] = (struct mc_str){pattern, 1 + i % sizeof(pattern)};
    }
    assert_ok(mc_rpc_call_many(client, FN_ECHO, bodies, MANY, test_deadline(), replies));
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(replies[i].len, bodies[i].len);
        assert_memory_equal(replies[i].data, pattern, replies[i].len);
        mc_buf_free(&replies[i]);
    }
    usleep(50000); /* nothing comes unasked: the connection is still good */
    test_echo(client, 50, 1);
    free(bodies);
    free(replies);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
    mc_tls_destroy(server);
    mc_tls_destroy(with);
}

struct caller {
    struct mc_rpc_client *client;
    uint64_t seed;
};
static void *call_often(void *arg) {
    struct caller *c = arg;
    for (size_t i = 0; i < 60; i++) {
        test_echo(c->client, 1 + (i * 7919 + c->seed * 104729) % 200000, c->seed);
    }
    return NULL;
}

static void test_threads_share_a_client(void **state) {
    struct mc_tls *server = tls(true, "server", NULL), *with = tls(false, NULL, "ca.pem");
    struct test_server s =
        test_server_start((struct mc_rpc_server_config){.tls = server, .threads = 2});
    struct mc_rpc_client *client = test_client(&s, 8);
    mc_rpc_client_use_tls(client, with);
    pthread_t threads[4];
    struct caller callers[4];
    for (size_t i = 0; i < 4; i++) {
        callers[i] = (struct caller){client, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
    mc_tls_destroy(server);
    mc_tls_destroy(with);
}

static void test_a_wrong_certificate_is_an_error(void **state) {
    struct mc_tls *server = tls(true, "server", NULL), *other = tls(true, "elsewhere", NULL);
    struct mc_tls *good = tls(false, NULL, "ca.pem"), *strange = tls(false, NULL, "stranger.pem");
    struct test_server s = test_server_start((struct mc_rpc_server_config){.tls = server});
    struct test_server wrong = test_server_start((struct mc_rpc_server_config){.tls = other});
    char localhost[32];
    snprintf(localhost, sizeof(localhost), "localhost:%u", s.port);
    assert_ok(echo(s.address, good, 100));
    assert_ok(echo(localhost, good, 100));
    assert_int_equal(echo(s.address, strange, 100), MC_RPC_FAIL);  /* signed by nobody we know */
    assert_int_equal(echo(wrong.address, good, 100), MC_RPC_FAIL); /* of another host */
    assert_ok(echo(s.address, good, 100));
    mc_rpc_server_stop(s.server);
    mc_rpc_server_stop(wrong.server);
    mc_tls_destroy(server);
    mc_tls_destroy(other);
    mc_tls_destroy(good);
    mc_tls_destroy(strange);
}

static void test_a_server_may_demand_a_certificate(void **state) {
    struct mc_tls *server = tls(true, "server", "ca.pem");
    struct mc_tls *named = tls(false, "client", "ca.pem"), *nameless = tls(false, NULL, "ca.pem");
    struct mc_tls *forged = tls(false, "stranger", "ca.pem");
    struct test_server s = test_server_start((struct mc_rpc_server_config){.tls = server});
    assert_ok(echo(s.address, named, 100));
    assert_int_equal(echo(s.address, nameless, 100), MC_RPC_FAIL);
    assert_int_equal(echo(s.address, forged, 100), MC_RPC_FAIL);
    assert_ok(echo(s.address, named, 100000));
    mc_rpc_server_stop(s.server);
    mc_tls_destroy(server);
    mc_tls_destroy(named);
    mc_tls_destroy(nameless);
    mc_tls_destroy(forged);
}

static void test_plain_and_tls_do_not_mix(void **state) {
    struct mc_tls *server = tls(true, "server", NULL), *with = tls(false, NULL, "ca.pem");
    struct test_server secret = test_server_start((struct mc_rpc_server_config){.tls = server});
    struct test_server plain = test_server_start((struct mc_rpc_server_config){0});
    assert_int_equal(echo(secret.address, NULL, 100), MC_RPC_FAIL);
    assert_int_equal(echo(plain.address, with, 100), MC_RPC_FAIL);
    struct mc_rng rng;
    mc_rng_seed(&rng, 1);
    for (int i = 0; i < 200; i++) { /* noise, some of it like the beginning of a handshake */
        unsigned char noise[300];
        for (size_t b = 0; b < sizeof(noise); b++) {
            noise[b] = (unsigned char)mc_rng_next(&rng);
        }
        if (i % 2 == 0) {
            memcpy(noise, "\x16\x03\x01\x01\x00\x01", 6);
        }
        int fd = test_socket(&secret);
        (void)test_send(fd, noise, sizeof(noise));
        close(fd);
    }
    assert_ok(echo(secret.address, with, 100));
    assert_ok(echo(plain.address, NULL, 100));
    mc_rpc_server_stop(secret.server);
    mc_rpc_server_stop(plain.server);
    mc_tls_destroy(server);
    mc_tls_destroy(with);
}

#define HALF_HELLO "\x16\x03\x01\x02\x00\x01" /* so many bytes, and no more */

static void expect_end(int fd) {
    char byte;
    assert_int_equal(mc_recv_all(fd, &byte, 1, test_deadline()), MC_ERR_CLOSED);
    close(fd);
}

static struct mc_tls *hasty_server(const char *seconds) {
    setenv("MC_TLS_HANDSHAKE_TIMEOUT_SEC", seconds, 1);
    struct mc_tls *server = tls(true, "server", NULL);
    unsetenv("MC_TLS_HANDSHAKE_TIMEOUT_SEC");
    return server;
}

static enum mc_status count_calls(struct mc_rpc_client *client, uint64_t *calls) {
    struct mc_buf reply = {0};
    enum mc_status status =
        mc_rpc_call(client, FN_COUNT_CALLS, mc_str_from(""), test_deadline(), &reply, NULL);
    if (status == MC_OK) {
        assert_int_equal(reply.len, sizeof(*calls));
        memcpy(calls, reply.data, sizeof(*calls));
    }
    mc_buf_free(&reply);
    return status;
}

static void test_a_handshake_that_does_not_end_is_ended(void **state) {
    struct mc_tls *server = hasty_server("1"), *with = tls(false, NULL, "ca.pem");
    struct test_server s = test_server_start((struct mc_rpc_server_config){.tls = server});
    struct mc_rpc_client *client = test_client(&s, 1);
    mc_rpc_client_use_tls(client, with);
    uint64_t calls = 0, deadline = test_deadline();
    while (count_calls(client, &calls) != MC_OK) { /* a busy machine: even ours took too long */
        assert_true(mc_now_ns(mc_clock_system()) < deadline);
    }
    assert_int_equal(calls, 1);
    int half = test_socket(&s), silent = test_socket(&s);
    assert_ok(test_send(half, HALF_HELLO, 6));
    expect_end(half);
    expect_end(silent);
    assert_ok(count_calls(client, &calls));
    assert_int_equal(calls, 2); /* on a connection that is older than the handshakes were */
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
    mc_tls_destroy(server);
    mc_tls_destroy(with);
}

/* Where both are served, who says nothing may be a plain peer, and waits as long as those do. */
static void test_silence_is_no_handshake_where_plain_is_served(void **state) {
    struct mc_tls *server = hasty_server("1");
    struct test_server s = test_server_start(
        (struct mc_rpc_server_config){.peers = {.mode = MC_TLS_PREFER, .server = server}});
    int silent = test_socket(&s), half = test_socket(&s);
    assert_ok(test_send(half, HALF_HELLO, 6));
    expect_end(half);
    struct mc_rpc_request_header header = test_header(1, FN_ECHO, 0);
    char answer[sizeof(struct mc_rpc_reply_header)];
    assert_ok(test_send(silent, &header, sizeof(header)));
    assert_ok(mc_recv_all(silent, answer, sizeof(answer), test_deadline()));
    close(silent);
    mc_rpc_server_stop(s.server);
    mc_tls_destroy(server);
}

static void test_peers_that_leave_in_a_handshake_are_noticed(void **state) {
    enum { PEERS = 50 };
    struct mc_tls *server = hasty_server("3600");
    struct mc_metrics *metrics = mc_metrics_create();
    struct test_server s =
        test_server_start((struct mc_rpc_server_config){.tls = server, .metrics = metrics});
    int fds[PEERS];
    for (int i = 0; i < PEERS; i++) {
        fds[i] = test_socket(&s);
        assert_ok(test_send(fds[i], HALF_HELLO, (size_t)(i % 7)));
    }
    uint64_t deadline = test_deadline();
    while (test_gauge(metrics, "mc_rpc_connections") != PEERS) {
        assert_true(mc_now_ns(mc_clock_system()) < deadline);
        usleep(1000);
    }
    for (int i = 0; i < PEERS; i++) {
        close(fds[i]);
    }
    while (test_gauge(metrics, "mc_rpc_connections") != 0) {
        assert_true(mc_now_ns(mc_clock_system()) < deadline);
        usleep(1000);
    }
    mc_rpc_server_stop(s.server);
    mc_metrics_destroy(metrics);
    mc_tls_destroy(server);
}

static void test_files_that_are_none_are_named(void **state) {
    struct mc_tls *out = NULL;
    char *pem = certificates_file(&certificates, "server.pem");
    char *key = certificates_file(&certificates, "server.key");
    char *other_key = certificates_file(&certificates, "client.key");
    char *missing = certificates_file(&certificates, "missing.pem");
    char *junk = certificates_file(&certificates, "log");
    char *fifo = certificates_file(&certificates, "fifo"); /* nobody writes to it */
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const struct mc_tls_config wrong[] = {
        {.cert = fifo, .key = key},
        {.cert = pem, .key = fifo},
        {.ca = fifo, .cert = pem, .key = key},
        {.cert = pem},
        {.key = key},
        {.ca = junk, .cert = pem, .key = key},
        {.ca = missing, .cert = pem, .key = key},
        {.cert = missing, .key = key},
        {.cert = pem, .key = missing},
        {.cert = pem, .key = other_key},
        {.cert = junk, .key = key},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(wrong); i++) {
        assert_int_equal(mc_tls_create(&wrong[i], true, &out), MC_INVALID_PARAMS);
        assert_int_equal(mc_tls_create(&wrong[i], false, &out), MC_INVALID_PARAMS);
    }
    assert_int_equal(mc_tls_create(&(struct mc_tls_config){0}, true, &out), MC_INVALID_PARAMS);
    assert_null(out);
    free(pem);
    free(key);
    free(other_key);
    free(missing);
    free(junk);
    free(fifo);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_arrives),
        cmocka_unit_test(test_threads_share_a_client),
        cmocka_unit_test(test_a_wrong_certificate_is_an_error),
        cmocka_unit_test(test_a_server_may_demand_a_certificate),
        cmocka_unit_test(test_plain_and_tls_do_not_mix),
        cmocka_unit_test(test_a_handshake_that_does_not_end_is_ended),
        cmocka_unit_test(test_silence_is_no_handshake_where_plain_is_served),
        cmocka_unit_test(test_peers_that_leave_in_a_handshake_are_noticed),
        cmocka_unit_test(test_files_that_are_none_are_named),
    };
    if (!certificates_make(&certificates)) {
        fprintf(stderr, "skipped: certificates could not be made, is the openssl program there?\n");
        return 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    certificates_remove(&certificates);
    return failed;
}
