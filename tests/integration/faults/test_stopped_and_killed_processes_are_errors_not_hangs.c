/*
 * One process of a cluster of real programs is stopped or killed, and what its peers are told is an
 * error in time, again and again, without a descriptor or a thread more each time; what comes back
 * is taken in again by itself. And sixty-four nodes that start in the same moment each have ports
 * of their own.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cluster.h"
#include "support/live.h"

#define VALUE_BYTES (2u << 20)
#define TIMEOUT_MS  1000
#define SLACK_MS    7000  /* of a busy machine; a handshake would wait for 10 s */
#define PATIENCE_MS 60000 /* for what comes by itself */
#define POOLED      4     /* connections to the master that a process may have */
#define ROUNDS      6     /* one more each time would show */

static const char *const FAST[] = {"--default_kv_lease_ttl=500", "--client_ttl=1",
                                   "--put_start_discard_timeout_sec=1",
                                   "--put_start_release_timeout_sec=2", NULL};

static uint64_t now_ms(void) {
    return mc_now_ms(mc_clock_system());
}

static struct mc_store *open_store(const struct live *master, bool disable_shm,
                                   uint32_t timeout_ms) {
    struct mc_store_options options;
    struct mc_store *store = NULL;
    mc_store_options_init(&options);
    options.master = master->rpc_address;
    options.local_hostname = "127.0.0.1";
    options.disable_shm = disable_shm;
    options.timeout_ms = timeout_ms;
    assert_ok(mc_store_open(&options, &store));
    return store;
}

/* What the first round left open, a later one does not add to, but for the one lane that a later
 * round may be the first to need. */
struct open_files {
    unsigned own, node;
};
static struct live self(void) {
    return (struct live){.pid = getpid()};
}
static struct open_files count_files(const struct live *master, const struct live *node) {
    struct live own = self();
    return (struct open_files){live_open_files(&own, master->rpc),
                               live_open_files(node, master->rpc)};
}
static void files_are_as_before(const struct live *master, const struct live *node,
                                struct open_files before) {
    struct live own = self();
    live_wait_files(&own, master->rpc, before.own + 1);
    live_wait_files(node, master->rpc, before.node + 1);
    assert_in_range(live_connections(&own, master->rpc), 0, POOLED);
    assert_in_range(live_connections(node, master->rpc), 0, POOLED);
}

struct round {
    struct mc_store *store;
    unsigned n;
    const char *key;
    const uint8_t *value;
};

static bool put_and_get(void *arg) {
    struct round *r = arg;
    char key[32];
    size_t length = 0;
    uint8_t *value = malloc(VALUE_BYTES), *got = malloc(VALUE_BYTES);
    snprintf(key, sizeof(key), "key%u", r->n++);
    mc_test_fill(value, VALUE_BYTES, r->n);
    bool ok = mc_store_put(r->store, key, value, VALUE_BYTES, NULL) == MC_OK &&
              mc_store_get(r->store, key, got, VALUE_BYTES, &length) == MC_OK &&
              length == VALUE_BYTES && memcmp(value, got, VALUE_BYTES) == 0;
    enum mc_status ignored = mc_store_remove(r->store, key, true);
    (void)ignored;
    free(value);
    free(got);
    return ok;
}

static bool put_whole(void *arg) {
    struct round *r = arg;
    enum mc_status status = mc_store_put(r->store, r->key, r->value, VALUE_BYTES, NULL);
    return status == MC_OK || status == MC_OBJECT_ALREADY_EXISTS; /* one that timed out */
}
/* On a busy machine a put may take longer than the timeout of the store. */
static void put_patiently(struct mc_store *store, const char *key, const uint8_t *value) {
    struct round r = {.store = store, .key = key, .value = value};
    cluster_wait_until(put_whole, &r, PATIENCE_MS, "a put to succeed");
}

/* A call that takes longer than this waits for something other than its deadline. */
static void in_time(uint64_t begin, unsigned calls, const char *what) {
    uint64_t took = now_ms() - begin;
    if (took > calls * TIMEOUT_MS + SLACK_MS) {
        fail_msg("%s took %llu ms", what, (unsigned long long)took);
    }
}

/* ---- the master ---- */

static void test_a_stopped_master_is_a_timeout(void **state) {
    struct live master, node;
    live_master(&master, NULL, 0);
    live_node(&node, &master, "64MB", NULL, 0);
    struct mc_store *store = open_store(&master, true, TIMEOUT_MS);
    struct round round = {.store = store};
    uint8_t *value = calloc(1, VALUE_BYTES);
    mc_test_fill(value, VALUE_BYTES, 77);
    put_patiently(store, "before", value);
    cluster_wait_until(put_and_get, &round, PATIENCE_MS, "a put and a get");
    struct open_files files = {0};
    for (int i = 0; i < 2; i++) {
        mc_test_stop_child(master.pid);
        size_t length;
        bool exists;
        uint64_t begin = now_ms();
        assert_int_equal(mc_store_get(store, "before", value, VALUE_BYTES, &length),
                         MC_RPC_TIMEOUT);
        assert_int_equal(mc_store_put(store, "meanwhile", value, VALUE_BYTES, NULL),
                         MC_RPC_TIMEOUT);
        assert_int_equal(mc_store_exist(store, "before", &exists), MC_RPC_TIMEOUT);
        assert_int_not_equal(mc_store_health(store), MC_OK);
        in_time(begin, 4, "four calls to a stopped master");
        kill(master.pid, SIGCONT);
        cluster_wait_until(put_and_get, &round, PATIENCE_MS, "the master that goes on");
        enum mc_status status = MC_RPC_TIMEOUT;
        for (uint64_t until = now_ms() + PATIENCE_MS; status != MC_OK && now_ms() < until;) {
            status = mc_store_get(store, "before", value, VALUE_BYTES, &length);
        }
        assert_ok(status);
        assert_int_equal(length, VALUE_BYTES);
        mc_test_verify(value, length, 77);
        if (i == 0) {
            files = count_files(&master, &node);
        }
    }
    files_are_as_before(&master, &node, files);
    free(value);
    mc_store_close(store);
    assert_int_equal(live_end(&node, SIGTERM), 0);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* ---- a node ---- */

/* Stopped for longer than the heartbeat allows, the node is forgotten; when it goes on it mounts
 * again. */
static void forgotten_and_back(bool disable_shm) {
    struct live master, node;
    live_master(&master, FAST, 0);
    live_node(&node, &master, "64MB", NULL, 0);
    struct mc_store *store = open_store(&master, disable_shm, TIMEOUT_MS);
    struct round round = {.store = store};
    cluster_wait_until(put_and_get, &round, PATIENCE_MS, "a put and a get");
    struct open_files files = {0};
    unsigned node_threads = live_threads(&node);
    uint64_t rss = 0;
    uint8_t *value = calloc(1, VALUE_BYTES);
    for (int i = 0; i < ROUNDS; i++) {
        size_t length;
        char key[32];
        snprintf(key, sizeof(key), "lost%d", i);
        put_patiently(store, key, value);
        mc_test_stop_child(node.pid);
        uint64_t begin = now_ms(), until = begin + PATIENCE_MS;
        enum mc_status status = MC_OK;
        while (status != MC_OBJECT_NOT_FOUND &&
               now_ms() < until) { /* shm needs no answer of the node */
            begin = now_ms();
            status = mc_store_get(store, key, value, VALUE_BYTES, &length);
            in_time(begin, 1, "a get from a stopped node");
            usleep(20000);
        }
        assert_int_equal(status, MC_OBJECT_NOT_FOUND);
        kill(node.pid, SIGCONT);
        cluster_wait_until(put_and_get, &round, PATIENCE_MS, "the node that goes on");
        if (i == 0) {
            files = count_files(&master, &node);
            live_wait_filled(&node);
            rss = live_rss_bytes(&node);
        }
    }
    files_are_as_before(&master, &node, files);
    live_assert_threads(&node, node_threads);
    assert_in_range(live_rss_bytes(&node), 0,
                    rss + (16u << 20)); /* memory that was replaced is gone */
    free(value);
    mc_store_close(store);
    assert_int_equal(live_end(&node, SIGTERM), 0);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}
static void test_a_forgotten_node_mounts_again_tcp(void **state) {
    forgotten_and_back(true);
}
static void test_a_forgotten_node_mounts_again_shm(void **state) {
    forgotten_and_back(false);
}

/* A client that has never met the node must ask it where its memory is. */
static void test_a_stranger_does_not_wait_for_a_stopped_node(void **state) {
    struct live master, node;
    live_master(&master, NULL, 0);
    live_node(&node, &master, "64MB", NULL, 0);
    struct mc_store *store = open_store(&master, true, TIMEOUT_MS);
    uint8_t *value = calloc(1, VALUE_BYTES);
    put_patiently(store, "there", value);
    mc_test_stop_child(node.pid);
    for (int view = 0; view < 2; view++) {
        struct mc_store *stranger = open_store(&master, !view, TIMEOUT_MS);
        struct mc_store_view seen;
        size_t length;
        uint64_t begin = now_ms();
        assert_int_not_equal(view ? mc_store_view(stranger, "there", &seen)
                                  : mc_store_get(stranger, "there", value, VALUE_BYTES, &length),
                             MC_OK);
        in_time(begin, 1, view ? "a view of a stopped node" : "a get from a stopped node");
        mc_store_close(stranger);
    }
    kill(node.pid, SIGCONT);
    free(value);
    mc_store_close(store);
    assert_int_equal(live_end(&node, SIGTERM), 0);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

struct getter {
    struct mc_store *store;
    enum mc_status status;
    uint64_t took_ms;
    bool wrong;
};
static void *get_until_error(void *arg) {
    struct getter *g = arg;
    uint8_t *got = malloc(VALUE_BYTES), *value = malloc(VALUE_BYTES);
    mc_test_fill(value, VALUE_BYTES, 5);
    do {
        size_t length = 0;
        uint64_t begin = now_ms();
        g->status = mc_store_get(g->store, "single", got, VALUE_BYTES, &length);
        g->took_ms = now_ms() - begin;
        g->wrong =
            g->status == MC_OK && (length != VALUE_BYTES || memcmp(got, value, VALUE_BYTES) != 0);
    } while (g->status == MC_OK && !g->wrong);
    free(got);
    free(value);
    return NULL;
}

/* The only replica's node is killed in the middle of reads. */
static void the_only_replica_dies(bool disable_shm) {
    enum { READERS = 3 };
    struct live master, node;
    live_master(&master, NULL, 0);
    live_node(&node, &master, "64MB", NULL, 0);
    struct getter getters[READERS];
    pthread_t threads[READERS];
    uint8_t *value = malloc(VALUE_BYTES);
    mc_test_fill(value, VALUE_BYTES, 5);
    for (int i = 0; i < READERS; i++) {
        getters[i] = (struct getter){.store = open_store(&master, disable_shm, PATIENCE_MS)};
    }
    assert_ok(mc_store_put(getters[0].store, "single", value, VALUE_BYTES, NULL));
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, get_until_error, &getters[i]), 0);
    }
    usleep(200000);
    live_end(&node, SIGKILL);
    for (int i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(getters[i].wrong);
        assert_int_equal(getters[i].status, MC_TRANSFER_FAIL);
        assert_in_range(getters[i].took_ms, 0, PATIENCE_MS / 2); /* not only at its deadline */
        mc_store_close(getters[i].store);
    }
    free(value);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}
static void test_the_only_replica_dies_tcp(void **state) {
    the_only_replica_dies(true);
}
static void test_the_only_replica_dies_shm(void **state) {
    the_only_replica_dies(false);
}

/* ---- many at once ---- */

static void test_sixty_four_nodes_at_once(void **state) {
    enum { COUNT = 64 };
    struct live master;
    static struct live nodes[COUNT];
    live_master(&master, NULL, 0);
    for (int i = 0; i < COUNT; i++) {
        live_node_begin(&nodes[i], &master, "1MB", NULL, 0);
    }
    for (int i = 0; i < COUNT; i++) {
        live_node_ready(&nodes[i]);
    }
    struct mc_store *store = cluster_open(master.rpc, 0, true);
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(nodes[i].name, nodes[k].name);
        }
        char key[32];
        uint8_t value[3000], got[3000];
        size_t length, count;
        const char *preferred[] = {nodes[i].name};
        struct mc_replicate_config config = {
            .replica_num = 1, .preferred_segments = preferred, .preferred_segment_count = 1};
        struct mc_replica_info replica;
        snprintf(key, sizeof(key), "on%d", i);
        mc_test_fill(value, sizeof(value), (uint64_t)i);
        assert_ok(mc_store_put(store, key, value, sizeof(value), &config));
        assert_ok(mc_store_get(store, key, got, sizeof(got), &length));
        assert_int_equal(length, sizeof(got));
        mc_test_verify(got, length, (uint64_t)i);
        assert_ok(mc_store_replicas(store, key, &replica, 1, &count));
        assert_int_equal(count, 1);
    }
    mc_store_close(store);
    for (int i = 0; i < COUNT; i++) {
        kill(nodes[i].pid, SIGTERM);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(live_end(&nodes[i], 0), 0); /* a second signal would kill */
    }
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    setenv("MC_TCP_LANES_PER_PEER", "1", 1); /* else failures use more of them, in any round */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stopped_master_is_a_timeout),
        cmocka_unit_test(test_a_forgotten_node_mounts_again_tcp),
        cmocka_unit_test(test_a_forgotten_node_mounts_again_shm),
        cmocka_unit_test(test_a_stranger_does_not_wait_for_a_stopped_node),
        cmocka_unit_test(test_the_only_replica_dies_tcp),
        cmocka_unit_test(test_the_only_replica_dies_shm),
        cmocka_unit_test(test_sixty_four_nodes_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
