/*
 * Calls come back with their own bytes: alone, from many threads, pipelined, with attachments, of
 * all sizes; errors keep the connection; deadlines end calls; dead connections are replaced.
 * MC_TEST_THREADS
 */
#include <pthread.h>
#include <sys/socket.h>

#include "rpc_support.h"
#include "wire/schema.h"

static void test_function_ids(void **state) {
    assert_int_equal(mc_rpc_function_id("mooncake::WrappedMasterService::ExistKey"), 0x89385f09);
}

static void test_bodies_of_all_sizes(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){.threads = 2});
    struct mc_rpc_client *client = test_client(&s, 2);
    static const size_t sizes[] = {1,      2,      4079,   4080,     4081,     65535,
                                   262143, 262144, 262145, 5u << 20, 33u << 20};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        test_echo(client, sizes[i], i);
    }
    struct mc_buf reply = {0};
    assert_ok(mc_rpc_call(client, FN_ECHO, (struct mc_str){0}, test_deadline(), &reply, NULL));
    assert_int_equal(reply.len, 0);
    mc_buf_free(&reply);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

static void test_answers_are_appended_and_attachments_travel(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *client = test_client(&s, 1);
    char bytes[100000];
    mc_test_fill(bytes, sizeof(bytes), 3);
    struct mc_buf body = {0}, attachment = {0};
    mc_buf_puts(&body, "before");
    mc_buf_puts(&attachment, "kept");
    assert_ok(mc_rpc_call_attach(client, FN_ECHO, MC_STR("hello"),
                                 (struct mc_str){bytes, sizeof(bytes)}, test_deadline(), &body,
                                 &attachment, NULL));
    assert_string_equal(mc_buf_cstr(&body), "beforehello");
    assert_int_equal(attachment.len, 4 + sizeof(bytes));
    assert_memory_equal(attachment.data, "kept", 4);
    mc_test_verify(attachment.data + 4, sizeof(bytes), 3);
    assert_ok(mc_rpc_call_attach(client, FN_ECHO, MC_STR("!"), MC_STR("unwanted"), test_deadline(),
                                 &body, NULL, NULL));
    assert_string_equal(mc_buf_cstr(&body), "beforehello!");
    mc_buf_free(&body);
    mc_buf_free(&attachment);
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

static void test_an_error_answer_keeps_the_connection(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *client = test_client(&s, 1);
    struct mc_buf reply = {0};
    enum mc_rpc_errc errc = MC_RPC_OK;
    assert_int_equal(calls_on_connection(client), 1);
    assert_int_equal(mc_rpc_call(client, 0x12345678, MC_STR("x"), test_deadline(), &reply, &errc),
                     MC_RPC_FAIL);
    assert_int_equal(errc, MC_RPC_NOT_REGISTERED);
    assert_int_equal(
        mc_rpc_call(client, FN_BAD_ARGUMENTS, MC_STR("x"), test_deadline(), &reply, &errc),
        MC_RPC_FAIL);
    assert_int_equal(errc, MC_RPC_INVALID_ARGUMENTS);
    assert_int_equal(reply.len, 0);
    assert_int_equal(calls_on_connection(client), 2);
    mc_buf_free(&reply);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

/* The bytes that upstream's clients see for an unknown function and for bad arguments, without the
 * literal. */
static void test_error_bodies_are_upstreams(void **state) {
    static const struct {
        uint32_t function;
        unsigned errc;
        const char *text;
    } cases[] = {{0x12345678, 11, "the rpc function not registered"},
                 {FN_BAD_ARGUMENTS, 4, "invalid rpc arg"}};
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    int fd = test_socket(&s);
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        struct mc_rpc_request_header request = test_header(70 + (uint32_t)i, cases[i].function, 0);
        struct mc_rpc_reply_header header;
        char body[64];
        assert_ok(test_send(fd, &request, sizeof(request)));
        assert_ok(mc_recv_all(fd, &header, sizeof(header), test_deadline()));
        size_t text_len = strlen(cases[i].text);
        assert_int_equal(header.magic, 21);
        assert_int_equal(header.version, 0);
        assert_int_equal(header.errc, cases[i].errc);
        assert_int_equal(header.seq, 70 + i);
        assert_int_equal(header.length, 5 + text_len);
        assert_int_equal(header.attach_length, 0);
        assert_ok(mc_recv_all(fd, body, header.length, test_deadline()));
        assert_memory_equal(body, "\x76\xfa\xcf\x9d", 4);
        assert_int_equal(body[4], text_len);
        assert_memory_equal(body + 5, cases[i].text, text_len);
    }
    close(fd);
    mc_rpc_server_stop(s.server);
}

static void test_pipelined_calls_of_mixed_sizes(void **state) {
    enum { COUNT = 1500 };
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *client = test_client(&s, 1);
    struct mc_str bodies[COUNT];
    struct mc_buf *replies = mc_zalloc(COUNT * sizeof(*replies));
    for (size_t i = 0; i < COUNT;
         i++) { /* far more than sockets and OUT_LIMIT hold: neither side may block the other */
        size_t len = i % 100 == 0 ? 1000000 : 1 + i % 300;
        char *bytes = mc_alloc(len);
        mc_test_fill(bytes, len, i);
        bodies[i] = (struct mc_str){bytes, len};
    }
    assert_ok(mc_rpc_call_many(client, FN_ECHO, bodies, COUNT, test_deadline(), replies));
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(replies[i].len, bodies[i].len);
        mc_test_verify(replies[i].data, replies[i].len, i);
        mc_buf_free(&replies[i]);
        free((char *)bodies[i].ptr);
    }
    free(replies);
    test_echo(client, 100, 1);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

/* Small requests with large answers: the server must hold back requests that it has read already,
 * and go on later. */
static void test_pipelined_calls_with_large_answers(void **state) {
    enum { COUNT = 400 };
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *client = test_client(&s, 1);
    uint32_t sizes[COUNT];
    struct mc_str bodies[COUNT];
    struct mc_buf *replies = mc_zalloc(COUNT * sizeof(*replies));
    for (size_t i = 0; i < COUNT; i++) {
        sizes[i] = 200000 + (uint32_t)i;
        bodies[i] = (struct mc_str){(char *)&sizes[i], sizeof(sizes[i])};
    }
    assert_ok(mc_rpc_call_many(client, FN_GROW, bodies, COUNT, test_deadline(), replies));
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(replies[i].len, sizes[i]);
        mc_test_verify(replies[i].data, replies[i].len, sizes[i]);
        mc_buf_free(&replies[i]);
    }
    free(replies);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

struct caller {
    struct mc_rpc_client *client;
    uint64_t seed;
    pthread_t thread;
};

static void *call_often(void *arg) {
    struct caller *caller = arg;
    for (size_t i = 0; i < 300; i++) {
        test_echo(caller->client, 1 + (i * 37) % 9000, caller->seed + i);
    }
    return NULL;
}

static void test_more_threads_than_connections(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){.threads = 3});
    struct mc_rpc_client *client = test_client(&s, 3);
    struct caller callers[8];
    for (size_t i = 0; i < MC_ARRAY_LEN(callers); i++) {
        callers[i] = (struct caller){.client = client, .seed = i * 1000};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(callers); i++) {
        pthread_join(callers[i].thread, NULL);
    }
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

static void *call_slowly(void *arg) {
    struct mc_buf reply = {0};
    assert_ok(mc_rpc_call(arg, FN_SLEEP, (struct mc_str){0}, test_deadline(), &reply, NULL));
    mc_buf_free(&reply);
    return NULL;
}

/* A burst opens connections; the calls that follow need one, and close the others. */
static void test_connections_of_a_burst_are_closed(void **state) {
    enum { BURST = 4, IDLE_MS = 300 };
    struct mc_metrics *metrics = mc_metrics_create();
    struct test_server s =
        test_server_start((struct mc_rpc_server_config){.threads = BURST, .metrics = metrics});
    struct mc_rpc_client *client = test_client(&s, BURST);
    pthread_t threads[BURST];
    mc_rpc_client_close_idle_after(client, IDLE_MS);
    do {
        for (size_t i = 0; i < BURST; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, call_slowly, client), 0);
        }
        for (size_t i = 0; i < BURST; i++) {
            pthread_join(threads[i], NULL);
        }
    } while (test_gauge(metrics, "mc_rpc_connections") < 2); /* one came after the other */
    uint64_t calls = 0;
    for (int look = 0; look < 6000 && test_gauge(metrics, "mc_rpc_connections") > 1; look++) {
        calls = calls_on_connection(client);
        usleep(10000);
    }
    assert_int_equal(test_gauge(metrics, "mc_rpc_connections"), 1);
    assert_int_equal(calls_on_connection(client), calls + 1); /* always the same */
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
    mc_metrics_destroy(metrics);
}

static void test_a_late_answer_is_never_anothers(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *client = test_client(&s, 1);
    struct mc_buf reply = {0};
    enum mc_rpc_errc errc = MC_RPC_OK;
    uint64_t soon = mc_now_ns(mc_clock_system()) + 20 * MC_MS;
    atomic_store(&test_gate.open, false);
    assert_int_equal(mc_rpc_call(client, FN_WAIT, (struct mc_str){0}, soon, &reply, &errc),
                     MC_RPC_TIMEOUT);
    assert_int_equal(errc, MC_RPC_TIMED_OUT);
    assert_int_equal(reply.len, 0);
    atomic_store(&test_gate.open, true);
    test_echo(client, 1000, 5);
    assert_int_equal(calls_on_connection(client), 1);
    mc_buf_free(&reply);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

static void *wait_call(void *arg) {
    struct mc_buf reply = {0};
    assert_ok(mc_rpc_call(arg, FN_WAIT, (struct mc_str){0}, test_deadline(), &reply, NULL));
    mc_buf_free(&reply);
    return NULL;
}

static void test_waiting_for_a_connection_ends_at_the_deadline(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *client = test_client(&s, 1);
    pthread_t thread;
    atomic_store(&test_gate.asked, false);
    atomic_store(&test_gate.open, false);
    assert_int_equal(pthread_create(&thread, NULL, wait_call, client), 0);
    test_wait_until(&test_gate.asked);
    struct mc_buf reply = {0};
    uint64_t soon = mc_now_ns(mc_clock_system()) + 10 * MC_MS;
    assert_int_equal(mc_rpc_call(client, FN_ECHO, MC_STR("x"), soon, &reply, NULL), MC_RPC_TIMEOUT);
    atomic_store(&test_gate.open, true);
    pthread_join(thread, NULL);
    test_echo(client, 10, 1);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

static void test_a_restarted_server_is_found_again(void **state) {
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_client *client = test_client(&s, 4);
    test_echo(client, 10, 1);
    mc_rpc_server_stop(s.server);
    struct mc_buf reply = {0};
    enum mc_rpc_errc errc = MC_RPC_OK;
    usleep(10 * 1000);
    assert_int_equal(mc_rpc_call(client, FN_ECHO, MC_STR("x"), test_deadline(), &reply, &errc),
                     MC_RPC_FAIL);
    assert_int_equal(errc, MC_RPC_NOT_CONNECTED);
    struct mc_rpc_server_config config = {
        .host = "127.0.0.1", .port = s.port, .no_delay = true, .handler = test_handler};
    assert_ok(mc_rpc_server_start(&config, &s.server, NULL));
    test_echo(client, 10, 2);
    /* The pooled connection dies while idle: the next call takes a fresh one. */
    mc_rpc_server_stop(s.server);
    assert_ok(mc_rpc_server_start(&config, &s.server, NULL));
    usleep(10 * 1000);
    test_echo(client, 10, 3);
    struct mc_buf many = {0};
    struct mc_str one = MC_STR("abc");
    assert_ok(mc_rpc_call_many(client, FN_ECHO, &one, 1, test_deadline(), &many));
    assert_string_equal(mc_buf_cstr(&many), "abc");
    mc_buf_free(&many);
    mc_rpc_client_destroy(client);
    mc_rpc_server_stop(s.server);
}

static void test_bad_addresses(void **state) {
    static const char *const bad[] = {"", "host", "host:0", "host:65536", "[::1]", ":1x"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        struct mc_rpc_client *client = NULL;
        assert_int_not_equal(mc_rpc_client_create(bad[i], 1, 100, &client), MC_OK);
        assert_null(client);
    }
    struct test_server s = test_server_start((struct mc_rpc_server_config){0});
    struct mc_rpc_server_config again = {
        .host = "127.0.0.1", .port = s.port, .handler = test_handler};
    struct mc_rpc_server *server = NULL;
    assert_int_equal(mc_rpc_server_start(&again, &server, NULL), MC_ERR_ADDRESS_IN_USE);
    assert_null(server);
    mc_rpc_server_stop(s.server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_function_ids),
        cmocka_unit_test(test_bodies_of_all_sizes),
        cmocka_unit_test(test_answers_are_appended_and_attachments_travel),
        cmocka_unit_test(test_an_error_answer_keeps_the_connection),
        cmocka_unit_test(test_error_bodies_are_upstreams),
        cmocka_unit_test(test_pipelined_calls_of_mixed_sizes),
        cmocka_unit_test(test_pipelined_calls_with_large_answers),
        cmocka_unit_test(test_more_threads_than_connections),
        cmocka_unit_test(test_connections_of_a_burst_are_closed),
        cmocka_unit_test(test_a_late_answer_is_never_anothers),
        cmocka_unit_test(test_waiting_for_a_connection_ends_at_the_deadline),
        cmocka_unit_test(test_a_restarted_server_is_found_again),
        cmocka_unit_test(test_bad_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
