/*
 * RPC over TLS: every byte arrives, whatever the sizes; a certificate that is not right, on either
 * side, ends in an error and never in an answer; and who speaks plain to a TLS server, or TLS to a
 * plain one, gets nothing and harms nobody. MC_TEST_THREADS
 */
#include <pthread.h>

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

static void test_files_that_are_none_are_named(void **state) {
    struct mc_tls *out = NULL;
    char *pem = certificates_file(&certificates, "server.pem");
    char *key = certificates_file(&certificates, "server.key");
    char *other_key = certificates_file(&certificates, "client.key");
    char *missing = certificates_file(&certificates, "missing.pem");
    char *junk = certificates_file(&certificates, "log");
    const struct mc_tls_config wrong[] = {
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
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_arrives),
        cmocka_unit_test(test_threads_share_a_client),
        cmocka_unit_test(test_a_wrong_certificate_is_an_error),
        cmocka_unit_test(test_a_server_may_demand_a_certificate),
        cmocka_unit_test(test_plain_and_tls_do_not_mix),
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
