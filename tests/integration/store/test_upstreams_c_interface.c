/* Upstream's C interface: return values and error numbers of each function, as its bindings expect.
 * And a node's RPC. */
#include <signal.h>
#include <stdio.h>

#include "client/node.h"
#include "compat/store_c.h"
#include "rpc/rpc.h"
#include "support/cluster.h"
#include "wire/client_rpc.h"

static struct mc_master_service *master;
static char address[32];

static int setup(void **state) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    master = cluster_start_master(&options);
    snprintf(address, sizeof(address), "127.0.0.1:%u", mc_master_service_rpc_port(master));
    return 0;
}
static int teardown(void **state) {
    mc_master_service_stop(master);
    return 0;
}

static void test_before_setup(void **state) {
    mooncake_store_t store = mooncake_store_create();
    char name[64];
    int result;
    const char *key = "k";
    assert_non_null(store);
    assert_int_equal(mooncake_store_health_check(store), 1);
    assert_int_equal(mooncake_store_health_check(NULL), 1);
    assert_int_equal(mooncake_store_put(store, "k", "v", 1, NULL), -1);
    assert_int_equal(mooncake_store_get_into(store, "k", name, 1), -1);
    assert_int_equal(mooncake_store_is_exist(store, "k"), -1);
    assert_int_equal(mooncake_store_batch_is_exist(store, &key, 1, &result), -1);
    assert_int_equal(mooncake_store_get_hostname(store, name, sizeof(name)), -1);
    assert_int_equal(mooncake_store_remove_all(store, 0), -1);
    assert_int_equal(mooncake_store_setup(store, NULL, "P2PHANDSHAKE", 0, 0, NULL, NULL, address),
                     -1);
    assert_int_equal(mooncake_store_setup(store, "", "P2PHANDSHAKE", 0, 0, NULL, NULL, address),
                     -600);
    assert_int_equal(
        mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 100, 0, NULL, NULL, address),
        -600);
    assert_int_equal(
        mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 0, 0, NULL, NULL, "127.0.0.1:1"),
        -900);
    mooncake_store_destroy(store);
    mooncake_store_destroy(NULL);
}

static void test_objects(void **state) {
    mooncake_store_t store = mooncake_store_create();
    uint8_t value[1000], got[1000];
    char name[64];
    assert_int_equal(mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 32 << 20, 16 << 20,
                                          "tcp", "", address),
                     0);
    assert_int_equal(mooncake_store_health_check(store), 0);
    assert_int_equal(mooncake_store_get_hostname(store, name, sizeof(name)), 0);
    assert_memory_equal(name, "127.0.0.1:", 10);
    assert_int_equal(mooncake_store_get_hostname(store, name, 10), -1);

    mc_test_fill(value, sizeof(value), 1);
    mooncake_replicate_config_t config = {.replica_num = 1, .with_hard_pin = 1};
    assert_int_equal(mooncake_store_register_buffer(store, value, sizeof(value)), 0);
    assert_int_equal(mooncake_store_put(store, "k", value, sizeof(value), &config), 0);
    assert_int_equal(mooncake_store_put_from(store, "empty", value, 0, NULL), 0);
    assert_int_equal(mooncake_store_is_exist(store, "empty"), 0);
    assert_int_equal(mooncake_store_put(store, "empty", value, 0, NULL), -600);
    assert_int_equal(mooncake_store_unregister_buffer(store, value), 0);
    assert_int_equal(mooncake_store_unregister_buffer(store, value), -600);
    assert_int_equal(mooncake_store_is_exist(store, "k"), 1);
    assert_int_equal(mooncake_store_get_size(store, "k"), sizeof(value));
    assert_int_equal(mooncake_store_get_into(store, "k", got, sizeof(got)), sizeof(value));
    mc_test_verify(got, sizeof(got), 1);
    assert_int_equal(mooncake_store_get_into(store, "k", got, 999), -600);
    assert_int_equal(mooncake_store_get_into(store, "absent", got, sizeof(got)), -704);
    assert_int_equal(mooncake_store_get_size(store, "absent"), -704);
    assert_int_equal(mooncake_store_remove(store, "k", 0), -706);
    assert_int_equal(mooncake_store_remove_by_regex(store, "(", 1), -600);
    assert_int_equal(mooncake_store_remove_by_regex(store, "^k$", 1), 1);
    assert_int_equal(mooncake_store_remove(store, "k", 1), -704);
    assert_int_equal(mooncake_store_remove_all(store, 1), 0);
    mooncake_store_destroy(store);
}

static void test_batches(void **state) {
    enum { KEYS = 3 };
    mooncake_store_t store = mooncake_store_create();
    assert_int_equal(
        mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 32 << 20, 0, NULL, NULL, address),
        0);
    uint8_t values[KEYS][500];
    const char *keys[KEYS] = {"a", "b", "c"};
    void *buffers[KEYS];
    size_t sizes[KEYS];
    int results[KEYS];
    int64_t lengths[KEYS];
    for (size_t i = 0; i < KEYS; i++) {
        mc_test_fill(values[i], sizeof(values[i]), i);
        buffers[i] = values[i];
        sizes[i] = i == 1 ? 0 : sizeof(values[i]);
    }
    assert_int_equal(
        mooncake_store_batch_put_from(store, keys, buffers, sizes, KEYS, NULL, results), 0);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], -600);
    assert_int_equal(results[2], 0);
    assert_int_equal(mooncake_store_batch_is_exist(store, keys, KEYS, results), 0);
    assert_int_equal(results[0], 1);
    assert_int_equal(results[1], 0);
    memset(values, 0, sizeof(values));
    sizes[1] = sizeof(values[1]);
    assert_int_equal(mooncake_store_batch_get_into(store, keys, buffers, sizes, KEYS, lengths), 0);
    assert_int_equal(lengths[0], 500);
    assert_int_equal(lengths[1], -704);
    assert_int_equal(lengths[2], 500);
    mc_test_verify(values[0], 500, 0);
    mc_test_verify(values[2], 500, 2);
    assert_int_equal(mooncake_store_batch_put_from(store, keys, buffers, sizes, 0, NULL, results),
                     0);
    mooncake_store_destroy(store);
}

/* What upstream's has not: how long an object lives and what it may replace. */
static void test_terms(void **state) {
    enum { KEYS = 2 };
    mooncake_store_t store = mooncake_store_create();
    assert_int_equal(
        mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 32 << 20, 0, NULL, NULL, address),
        0);
    uint8_t values[KEYS][300], got[300];
    const char *keys[KEYS] = {"first", "second"};
    void *buffers[KEYS] = {values[0], values[1]};
    size_t sizes[KEYS] = {300, 300};
    int results[KEYS];
    mc_test_fill(values[0], 300, 1);
    mc_test_fill(values[1], 300, 2);
    mooncake_put_terms_t terms = {
        .struct_size = sizeof(terms), .ttl_ms = 3600000, .condition = MOONCAKE_PUT_IF_ABSENT};
    assert_int_equal(
        mooncake_store_batch_put_on_terms(store, keys, buffers, sizes, KEYS, NULL, NULL, results),
        -1);
    assert_int_equal(
        mooncake_store_batch_put_on_terms(store, keys, buffers, sizes, KEYS, NULL, &terms, results),
        0);
    assert_int_equal(results[0] | results[1], 0);
    mooncake_object_info_t info = {.struct_size = sizeof(info)};
    assert_int_equal(mooncake_store_inspect(store, "absent", &info), -704);
    assert_int_equal(mooncake_store_inspect(store, "first", &info), 0);
    assert_int_equal(info.size, 300);
    assert_in_range(info.ttl_left_ms, 1, 3600000);
    assert_int_equal(
        mooncake_store_batch_put_on_terms(store, keys, buffers, sizes, 1, NULL, &terms, results),
        0);
    assert_int_equal(results[0], -705);

    terms = (mooncake_put_terms_t){.struct_size = sizeof(terms),
                                   .condition = MOONCAKE_PUT_IF_VERSION,
                                   .expected = &info.version};
    buffers[0] = values[1];
    assert_int_equal(
        mooncake_store_batch_put_on_terms(store, keys, buffers, sizes, 1, NULL, &terms, results),
        0);
    assert_int_equal(results[0], 0);
    assert_int_equal(mooncake_store_get_into(store, "first", got, sizeof(got)), 300);
    mc_test_verify(got, sizeof(got), 2);
    assert_int_equal(
        mooncake_store_batch_put_on_terms(store, keys, buffers, sizes, 1, NULL, &terms, results),
        0);
    assert_int_equal(results[0], -300);
    assert_int_equal(mooncake_store_inspect(store, "first", &info), 0);
    assert_true(info.ttl_left_ms == UINT64_MAX);
    mooncake_store_destroy(store);
}

static void test_node_says_that_it_is_ready(void **state) {
    struct mc_node_options options = {.host = "127.0.0.1", .serve = true};
    mc_store_options_init(&options.store);
    options.store.master = address;
    options.store.local_hostname = "127.0.0.1";
    options.store.segment_bytes = 16 << 20;
    struct mc_node *node;
    assert_ok(mc_node_start(&options, &node));
    assert_ok(mc_store_health(mc_node_store(node)));
    char peer[32];
    snprintf(peer, sizeof(peer), "127.0.0.1:%u", mc_node_port(node));
    struct mc_rpc_client *client;
    assert_ok(mc_rpc_client_create(peer, 1, 1000, &client));
    const struct mc_rpc_desc *ready = &mc_client_rpc_table()[MC_CLIENT_RPC_service_ready_internal];
    struct mc_buf reply = {0};
    struct mc_arena arena = {0};
    struct mw_e_void answer;
    uint64_t deadline = mc_now_ns(mc_clock_system()) + 5 * MC_SEC;
    assert_ok(mc_rpc_call(client, ready->function_id, (struct mc_str){0}, deadline, &reply, NULL));
    assert_ok(mc_master_rpc_decode_ret(ready, 0, (struct mc_str){reply.data, reply.len}, &arena,
                                       &answer));
    assert_int_equal(answer.error, 0);
    enum mc_rpc_errc errc = MC_RPC_OK;
    assert_int_equal(mc_rpc_call(client, 12345, (struct mc_str){0}, deadline, &reply, &errc),
                     MC_RPC_FAIL);
    assert_int_equal(errc, MC_RPC_NOT_REGISTERED);
    struct mc_node *second;
    options.port = mc_node_port(node);
    assert_int_equal(mc_node_start(&options, &second), MC_ERR_ADDRESS_IN_USE);
    mc_rpc_client_destroy(client);
    mc_buf_free(&reply);
    mc_arena_free(&arena);
    mc_node_stop(node);
    mc_node_stop(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_setup),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_node_says_that_it_is_ready),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
