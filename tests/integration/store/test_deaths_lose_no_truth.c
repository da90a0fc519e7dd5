/*
 * Nodes, masters and writers that are killed or stopped in the middle of their work: what a client
 * is told stays true. The other replica serves, nodes mount again by themselves, a half-written
 * object is never readable and its key and space come back.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "client/ops.h"
#include "client/port_real.h"
#include "support/cluster.h"

#define NODE_BYTES (64u << 20)

static bool healthy(void *store) {
    return mc_store_health(store) == MC_OK;
}
static bool unhealthy(void *store) {
    return mc_store_health(store) != MC_OK;
}

struct attempt {
    struct mc_store *store;
    const char *key;
    uint8_t *value;
    size_t size;
    uint64_t replicas;
};
/* True when the put succeeded and the value can be read. */
static bool put_and_get(void *arg) {
    struct attempt *a = arg;
    struct mc_replicate_config config = {.replica_num = a->replicas};
    uint8_t *got = malloc(a->size);
    size_t length = 0;
    bool ok = mc_store_put(a->store, a->key, a->value, a->size, &config) == MC_OK &&
              mc_store_get(a->store, a->key, got, a->size, &length) == MC_OK && length == a->size &&
              memcmp(got, a->value, a->size) == 0;
    free(got);
    return ok;
}

/* ---- a node is killed during reads ---- */

struct reader {
    struct mc_store *store;
    _Atomic unsigned rounds;
    _Atomic bool stop;
    unsigned keys;
    size_t size;
    unsigned failures;
    uint64_t verified;
};

static void *read_on(void *arg) {
    struct reader *r = arg;
    uint8_t *got = malloc(r->size);
    uint8_t *expected = malloc(r->size);
    while (!atomic_load(&r->stop)) {
        for (unsigned k = 0; k < r->keys; k++) {
            char key[32];
            size_t length = 0;
            snprintf(key, sizeof(key), "k%u", k);
            mc_test_fill(expected, r->size, k);
            if (mc_store_get(r->store, key, got, r->size, &length) != MC_OK || length != r->size ||
                memcmp(got, expected, r->size) != 0) {
                r->failures++;
            }
            r->verified += length;
        }
        atomic_fetch_add(&r->rounds, 1);
    }
    free(got);
    free(expected);
    return NULL;
}

static bool read_more(void *arg) {
    return atomic_load(&((struct reader *)arg)->rounds) >= 3;
}

static void kill_a_node(bool disable_shm) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    struct mc_master_service *master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(master);
    struct cluster_process nodes[2];
    for (int i = 0; i < 2; i++) {
        nodes[i] = cluster_spawn_node(port, NODE_BYTES, disable_shm);
    }
    struct mc_store *store = cluster_open(port, 0, disable_shm);
    struct reader reader = {.store = store, .keys = 20, .size = 300000};
    uint8_t *value = malloc(reader.size);
    struct mc_replicate_config config = {.replica_num = 2};
    for (unsigned k = 0; k < reader.keys; k++) {
        char key[32];
        snprintf(key, sizeof(key), "k%u", k);
        mc_test_fill(value, reader.size, k);
        assert_ok(mc_store_put(store, key, value, reader.size, &config));
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_on, &reader), 0);
    cluster_wait_until(read_more, &reader, 20000, "reads from two nodes");
    cluster_kill(&nodes[0], SIGKILL);
    atomic_store(&reader.rounds, 0);
    cluster_wait_until(read_more, &reader, 30000, "reads from the node that is left");
    atomic_store(&reader.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(reader.failures, 0);
    assert_true(reader.verified > 0);
    free(value);
    mc_store_close(store);
    cluster_kill(&nodes[1], SIGKILL);
    mc_master_service_stop(master);
}
static void test_other_replica_serves_when_a_node_is_killed_tcp(void **state) {
    kill_a_node(true);
}
static void test_other_replica_serves_when_a_node_is_killed_shm(void **state) {
    kill_a_node(false);
}

/* ---- a node is killed, and the master has not noticed ---- */

static void test_puts_go_to_the_nodes_that_live(void **state) {
    enum { KEYS = 120, BATCH = 40, SIZE = 50000 };
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    options.client_ttl_ms = 600000;
    struct mc_master_service *master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(master);
    struct cluster_process nodes[3];
    for (int i = 0; i < 3; i++) {
        nodes[i] = cluster_spawn_node(port, NODE_BYTES, true);
    }
    struct mc_store *store = cluster_open(port, 0, true);
    cluster_kill(&nodes[1], SIGKILL);
    uint8_t *values = malloc(KEYS * SIZE), *got = malloc(SIZE);
    char keys[KEYS][16];
    struct mc_slice slices[KEYS];
    struct mc_store_item items[KEYS];
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
        mc_test_fill(values + i * SIZE, SIZE, i);
        slices[i] = (struct mc_slice){values + i * SIZE, SIZE};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    assert_ok(mc_store_put_batch(store, items, BATCH, NULL));
    for (size_t i = 0; i < BATCH; i++) {
        assert_ok(items[i].status);
    }
    for (size_t i = BATCH; i < KEYS; i++) {
        assert_ok(mc_store_put(store, keys[i], slices[i].ptr, SIZE, NULL));
    }
    uint64_t verified = 0;
    for (size_t i = 0; i < KEYS; i++) {
        size_t length = 0;
        assert_ok(mc_store_get(store, keys[i], got, SIZE, &length));
        assert_int_equal(length, SIZE);
        mc_test_verify(got, SIZE, i);
        verified += length;
    }
    assert_int_equal(verified, KEYS * SIZE);
    char *metrics = mc_store_metrics(store);
    assert_null(
        strstr(metrics, "mooncake_client_put_replaced 0\n")); /* there was something to do */
    assert_non_null(strstr(metrics, "mooncake_client_put_failures 0\n"));
    free(metrics);
    free(values);
    free(got);
    mc_store_close(store);
    cluster_kill(&nodes[0], SIGKILL);
    cluster_kill(&nodes[2], SIGKILL);
    mc_master_service_stop(master);
}

/* ---- the master is killed ---- */

static void restart_the_master(bool disable_shm) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    struct cluster_process master = cluster_spawn_master(&options);
    uint16_t port = master.port;
    struct cluster_process node = cluster_spawn_node(port, NODE_BYTES, disable_shm);
    struct mc_store *lender = cluster_open(port, NODE_BYTES, disable_shm);
    struct mc_store *store = cluster_open(port, 0, disable_shm);
    uint8_t value[5000], got[5000];
    size_t length;
    mc_test_fill(value, sizeof(value), 1);
    assert_ok(mc_store_put(store, "before", value, sizeof(value), NULL));
    struct mc_store_view view;
    bool viewed =
        mc_store_view(lender, "before", &view) == MC_OK; /* when it fell into our own memory */

    cluster_kill(&master, SIGKILL);
    cluster_wait_until(unhealthy, store, 10000, "a ping that is not answered");
    assert_int_equal(mc_store_get(store, "before", got, sizeof(got), &length), MC_RPC_FAIL);
    assert_int_equal(mc_store_put(store, "meanwhile", value, sizeof(value), NULL), MC_RPC_FAIL);

    options.port = port;
    master = cluster_spawn_master(&options);
    cluster_wait_until(healthy, store, 10000, "the restarted master");
    mc_test_fill(value, sizeof(value), 2);
    struct attempt after = {store, "after", value, sizeof(value), 2};
    cluster_wait_until(put_and_get, &after, 15000, "both nodes mounted again");
    assert_int_equal(mc_store_get(store, "before", got, sizeof(got), &length), MC_OBJECT_NOT_FOUND);
    cluster_wait_until(healthy, lender, 10000, "the node in this process");
    if (viewed) { /* still there to look at: replaced memory stays mapped while a view shows it */
        mc_test_verify(view.data, view.length, 1);
        mc_store_view_release(lender, &view);
    }
    mc_store_close(store);
    mc_store_close(lender);
    cluster_kill(&node, SIGKILL);
    cluster_kill(&master, SIGKILL);
}
static void test_nodes_mount_again_when_the_master_restarts_tcp(void **state) {
    restart_the_master(true);
}
static void test_nodes_mount_again_when_the_master_restarts_shm(void **state) {
    restart_the_master(false);
}

/* ---- a writer is killed between PutStart and PutEnd ---- */

static const struct mc_port_ops *real_ops;
static void die_in_the_middle(struct mc_port *port, struct mc_port_move *moves, size_t count,
                              uint64_t deadline_ns) {
    moves[0].length /= 2;
    real_ops->move(port, moves, 1, deadline_ns);
    printf("half\n");
    fflush(stdout);
    raise(SIGKILL);
}

static int writer_role(const char *argument) {
    struct mc_rpc_client *rpc;
    struct mc_engine *engine;
    struct mc_engine_options options;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    if (mc_rpc_client_create(argument, 4, 1000, &rpc) != MC_OK ||
        mc_engine_create(&options, &engine) != MC_OK) {
        return 1;
    }
    struct mc_port *port = mc_real_port_face(mc_real_port_create(rpc, engine));
    real_ops = port->ops;
    struct mc_port_ops deadly = *real_ops;
    deadly.move = die_in_the_middle;
    struct mc_ops_config config = {
        .client = {77, 1}, .tenant = "default", .host_id = "", .timeout_ms = 5000};
    port->ops = &deadly;
    struct mc_ops *ops = mc_ops_create(port, &config);
    static uint8_t value[100000];
    memset(value, 0xaa, sizeof(value));
    struct mc_slice slice = {value, sizeof(value)};
    struct mc_store_item item = {.key = "torn", .slices = &slice, .slice_count = 1};
    return mc_ops_put(ops, &item, 1, NULL, false) == MC_OK ? 1 : 2;
}

static bool space_is_free(void *arg) {
    struct mc_master_totals totals;
    mc_master_totals(mc_master_service_core(arg), &totals);
    return totals.allocated_bytes == 0;
}

static void test_half_written_object_is_never_readable(void **state) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    options.discard_ms = 1500;
    options.release_ms = 3000;
    struct mc_master_service *master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(master);
    struct mc_store *store = cluster_open(port, NODE_BYTES, true);
    char address[32], line[16];
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    struct cluster_process writer = cluster_spawn("writer", address);
    assert_true(cluster_wait_line(&writer, line, sizeof(line)));
    assert_string_equal(line, "half");
    cluster_kill(&writer, SIGKILL);

    uint8_t *value = malloc(100000);
    size_t length;
    bool exists = true;
    mc_test_fill(value, 100000, 5);
    assert_int_equal(mc_store_get(store, "torn", value, 100000, &length), MC_REPLICA_IS_NOT_READY);
    assert_ok(mc_store_exist(store, "torn", &exists));
    assert_false(exists);
    mc_test_fill(value, 100000, 5);
    struct attempt again = {store, "torn", value, 100000, 1};
    assert_true(put_and_get(&again)); /* it waits until the master discards the torn one */
    assert_ok(mc_store_remove(store, "torn", true));
    cluster_wait_until(space_is_free, master, 30000, "the space of the killed writer");
    free(value);
    mc_store_close(store);
    mc_master_service_stop(master);
}

/* ---- a node is stopped ---- */

static void test_stopped_node_is_a_deadline_not_a_hang(void **state) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    struct mc_master_service *master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(master);
    struct cluster_process node = cluster_spawn_node(port, NODE_BYTES, true);
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    struct mc_store_options store_options;
    mc_store_options_init(&store_options);
    store_options.master = address;
    store_options.local_hostname = "127.0.0.1";
    store_options.disable_shm = true;
    store_options.timeout_ms = 3000;
    struct mc_store *store;
    assert_ok(mc_store_open(&store_options, &store));
    uint8_t *value = malloc(1 << 20), *got = malloc(1 << 20);
    size_t length = 0;
    mc_test_fill(value, 1 << 20, 1);
    assert_ok(mc_store_put(store, "whole", value, 1 << 20, NULL));
    mc_test_stop_child(node.pid);
    mc_test_fill(got, 1 << 20, 9);
    assert_int_equal(mc_store_get(store, "whole", got, 1 << 20, &length), MC_TRANSFER_FAIL);
    mc_test_fill(got, 1 << 20, 9); /* the buffer is ours again: late bytes must not reach it */
    assert_int_equal(mc_store_put(store, "doubtful", value, 1 << 20, NULL), MC_TRANSFER_FAIL);
    kill(node.pid, SIGCONT);
    bool exists = true;
    assert_ok(mc_store_exist(store, "doubtful", &exists));
    assert_false(exists);
    struct attempt later = {store, "later", value, 1 << 20, 1};
    cluster_wait_until(put_and_get, &later, 20000, "the node that goes on");
    mc_test_verify(got, 1 << 20, 9);
    char *metrics = mc_store_metrics(store);
    assert_non_null(strstr(metrics, "mooncake_client_put_in_doubt 1"));
    free(metrics);
    free(value);
    free(got);
    mc_store_close(store);
    cluster_kill(&node, SIGKILL);
    mc_master_service_stop(master);
}

static void test_opening_without_a_master_is_an_error(void **state) {
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.local_hostname = "127.0.0.1";
    options.master = "127.0.0.1:1";
    struct mc_store *store = NULL;
    assert_int_equal(mc_store_open(&options, &store), MC_RPC_FAIL);
    assert_null(store);
    options.master = "not an address:::";
    assert_int_equal(mc_store_open(&options, &store), MC_ERR_BAD_ADDRESS);
    options.master = "127.0.0.1:1";
    options.protocol = "carrier-pigeon";
    assert_int_equal(mc_store_open(&options, &store), MC_INVALID_PARAMS);
    options.protocol = "rpc_only";
    options.segment_bytes = 1 << 20;
    assert_int_equal(mc_store_open(&options, &store), MC_INVALID_PARAMS);
}

int main(int argc, char **argv) {
    static const struct cluster_role ROLES[] = {{"writer", writer_role}, {NULL, NULL}};
    cluster_roles = ROLES;
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_replica_serves_when_a_node_is_killed_tcp),
        cmocka_unit_test(test_other_replica_serves_when_a_node_is_killed_shm),
        cmocka_unit_test(test_puts_go_to_the_nodes_that_live),
        cmocka_unit_test(test_nodes_mount_again_when_the_master_restarts_tcp),
        cmocka_unit_test(test_nodes_mount_again_when_the_master_restarts_shm),
        cmocka_unit_test(test_half_written_object_is_never_readable),
        cmocka_unit_test(test_stopped_node_is_a_deadline_not_a_hang),
        cmocka_unit_test(test_opening_without_a_master_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
