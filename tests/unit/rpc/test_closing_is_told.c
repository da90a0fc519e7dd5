/*
 * Each connection's close is told once, with the words the handler left, whoever closed.
 * MC_TEST_THREADS
 */
#include <pthread.h>

#include "rpc_support.h"

struct told {
    pthread_mutex_t mutex;
    uint64_t times, calls;
};

static void closed(void *ctx, const uint64_t *peer_words, const char *peer) {
    struct told *t = ctx;
    assert_memory_equal(peer, "127.0.0.1:", 10);
    pthread_mutex_lock(&t->mutex);
    t->times++;
    t->calls += peer_words[MC_RPC_PEER_WORDS - 1];
    pthread_mutex_unlock(&t->mutex);
}

static void until(struct told *t, uint64_t times) {
    uint64_t seen = 0;
    while (seen < times) {
        usleep(1000);
        pthread_mutex_lock(&t->mutex);
        seen = t->times;
        pthread_mutex_unlock(&t->mutex);
    }
    assert_int_equal(seen, times);
}

static void test_closing_is_told_once_whoever_closes(void **state) {
    struct told told = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    struct test_server s =
        test_server_start((struct mc_rpc_server_config){.closed = closed, .ctx = &told});
    for (uint64_t i = 1; i <= 3; i++) { /* the peer closes */
        struct mc_rpc_client *client = test_client(&s, 1);
        struct mc_buf reply = {0};
        for (uint64_t call = 0; call < i; call++) {
            assert_ok(
                mc_rpc_call(client, FN_COUNT_CALLS, MC_STR(""), test_deadline(), &reply, NULL));
        }
        mc_buf_free(&reply);
        mc_rpc_client_destroy(client);
        until(&told, i);
        assert_int_equal(told.calls, i * (i + 1) / 2);
    }
    struct mc_rpc_client *open = test_client(&s, 1); /* the server does */
    struct mc_buf reply = {0};
    assert_ok(mc_rpc_call(open, FN_COUNT_CALLS, MC_STR(""), test_deadline(), &reply, NULL));
    mc_buf_free(&reply);
    mc_rpc_server_stop(s.server);
    assert_int_equal(told.times, 4);
    assert_int_equal(told.calls, 7);
    mc_rpc_client_destroy(open);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closing_is_told_once_whoever_closes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
