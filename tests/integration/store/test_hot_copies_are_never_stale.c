/*
 * MC_TEST_THREADS. A client with a hot cache reads objects of a node in another process: the third
 * read moves no byte; an object that was replaced, or removed and put again, by somebody else is
 * never read as it was, not while many read and one writes either.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#include "client/node.h"
#include "support/cluster.h"

#define SIZE    (300u << 10)
#define WRITES  60
#define READERS 3

static struct mc_master_service *master;
static struct cluster_process node;
static struct mc_store *writer, *reader;

static int setup(void **state) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(master);
    node = cluster_spawn_node(port, 256u << 20, true);
    writer = cluster_open(port, 0, true);
    setenv("MC_STORE_LOCAL_HOT_CACHE_SIZE", "4194304", 1);
    reader = cluster_open(port, 0, true);
    unsetenv("MC_STORE_LOCAL_HOT_CACHE_SIZE");
    return 0;
}

static int teardown(void **state) {
    mc_store_close(reader);
    mc_store_close(writer);
    cluster_kill(&node, SIGKILL);
    mc_master_service_stop(master);
    return 0;
}

static uint64_t counter(const char *name) {
    char *text = mc_store_metrics(reader);
    char line[80];
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(text, line);
    assert_non_null(at);
    uint64_t value = strtoull(at + strlen(line), NULL, 10);
    free(text);
    return value;
}

static void write_value(const char *key, size_t size, uint64_t seed) {
    uint8_t *value = malloc(size);
    mc_test_fill(value, size, seed);
    assert_ok(mc_store_upsert(writer, key, value, size, NULL));
    free(value);
}

static void read_value(const char *key, size_t size, uint64_t seed) {
    uint8_t *got = calloc(1, SIZE);
    size_t length = 0;
    assert_ok(mc_store_get(reader, key, got, SIZE, &length));
    assert_int_equal(length, size);
    mc_test_verify(got, size, seed);
    free(got);
}

static void test_what_is_read_again_is_read_here(void **state) {
    write_value("k", SIZE, 1);
    read_value("k", SIZE, 1);
    read_value("k", SIZE, 1);
    assert_int_equal(counter("mooncake_client_hot_cache_fills"), 1);
    for (unsigned i = 0; i < 5; i++) {
        read_value("k", SIZE, 1);
    }
    assert_int_equal(counter("mooncake_client_hot_cache_hits"), 5);
    uint8_t part[100];
    struct mc_store_range range = {part, sizeof(part), 12345, MC_OK};
    struct mc_store_range_item item = {.key = "k", .ranges = &range, .range_count = 1};
    assert_ok(mc_store_get_ranges(reader, &item, 1)); /* parts, too */
    assert_ok(item.status);
    uint8_t *whole = malloc(SIZE);
    mc_test_fill(whole, SIZE, 1);
    assert_memory_equal(part, whole + 12345, sizeof(part));
    free(whole);
    assert_int_equal(counter("mooncake_client_hot_cache_hits"), 6);
    uint8_t small[10];
    size_t length;
    assert_int_equal(mc_store_get(reader, "k", small, sizeof(small), &length), MC_BUFFER_OVERFLOW);
    assert_int_equal(length, SIZE);
}

static void test_no_change_is_missed(void **state) {
    for (uint64_t seed = 2; seed < 12; seed++) {
        size_t size = seed % 2 ? SIZE : SIZE - seed; /* in place, or in another */
        write_value("k", size, seed);
        for (unsigned i = 0; i < 4; i++) {
            read_value("k", size, seed);
        }
    }
    assert_true(counter("mooncake_client_hot_cache_hits") >= 6 + 10);
    assert_ok(mc_store_remove(writer, "k", true));
    uint8_t byte;
    size_t length;
    assert_int_equal(mc_store_get(reader, "k", &byte, 1, &length), MC_OBJECT_NOT_FOUND);
    write_value("k", SIZE, 99);
    read_value("k", SIZE, 99);
    for (unsigned i = 0; i < 40; i++) { /* more than there is room for */
        char key[16];
        snprintf(key, sizeof(key), "many-%u", i);
        write_value(key, SIZE, i);
        for (unsigned n = 0; n < 3; n++) {
            read_value(key, SIZE, i);
        }
    }
    assert_in_range(counter("mooncake_client_hot_cache_bytes"), SIZE, 4194304);
    assert_true(counter("mooncake_client_hot_cache_evictions") > 0);
}

/* The copy itself, and no byte is moved; it stays what it was, whatever becomes of the object and
 * of the cache's room, until it is given back. Nothing else of a remote object can be mapped. */
static void test_a_view_is_of_the_copy(void **state) {
    struct mc_store_view view, again;
    uint8_t byte;
    size_t length;
    write_value("v", SIZE, 7);
    read_value("v", SIZE, 7);
    assert_int_equal(mc_store_view(reader, "v", &view), MC_REPLICA_NOT_IN_LOCAL_MEMORY);
    read_value("v", SIZE, 7);
    uint64_t hits = counter("mooncake_client_hot_cache_hits");
    assert_ok(mc_store_view(reader, "v", &view));
    assert_ok(mc_store_view(reader, "v", &again));
    assert_int_equal(counter("mooncake_client_hot_cache_hits"), hits + 2);
    assert_ptr_equal(view.data, again.data);
    mc_store_view_release(reader, &again);
    write_value("v", SIZE, 8);
    assert_int_equal(mc_store_view(reader, "v", &again), MC_REPLICA_NOT_IN_LOCAL_MEMORY);
    assert_ok(mc_store_remove(writer, "v", true));
    assert_int_equal(mc_store_get(reader, "v", &byte, 1, &length), MC_OBJECT_NOT_FOUND);
    assert_int_equal(mc_store_view(reader, "v", &again), MC_OBJECT_NOT_FOUND);
    for (unsigned i = 0; i < 20; i++) { /* others take its room */
        char key[16];
        snprintf(key, sizeof(key), "more-%u", i);
        write_value(key, SIZE, i);
        read_value(key, SIZE, i);
        read_value(key, SIZE, i);
    }
    assert_true(mc_store_view_valid(&view));
    assert_int_equal(view.length, SIZE);
    mc_test_verify(view.data, SIZE, 7);
    mc_store_view_release(reader, &view);
}

/* What one dummy client of a node has read often is there for the others. */
static void test_dummies_share_their_nodes_copies(void **state) {
    char address[32], here[32];
    struct mc_node_options options = {.host = "127.0.0.1", .serve = true};
    struct mc_node *own;
    struct mc_store *dummies[2], *mine = reader;
    mc_store_options_init(&options.store);
    snprintf(address, sizeof(address), "127.0.0.1:%u", mc_master_service_rpc_port(master));
    options.store.master = address;
    options.store.local_hostname = "127.0.0.1";
    options.store.disable_shm = true;
    options.store.hot_cache_bytes = 4u << 20;
    assert_ok(mc_node_start(&options, &own));
    struct mc_store_options dummy;
    mc_store_options_init(&dummy);
    snprintf(here, sizeof(here), "127.0.0.1:%u", mc_node_port(own));
    dummy.real_client = here;
    dummy.local_buffer_bytes = 1u << 20;
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(mc_store_open(&dummy, &dummies[i]));
    }
    write_value("shared", SIZE, 5);
    for (unsigned i = 0; i < 4; i++) {
        reader = dummies[i % 2];
        read_value("shared", SIZE, 5);
    }
    write_value("shared", SIZE, 6); /* by somebody else */
    read_value("shared", SIZE, 6);
    reader = mc_node_store(own);
    assert_int_equal(counter("mooncake_client_hot_cache_fills"), 2);
    assert_int_equal(counter("mooncake_client_hot_cache_hits"), 2);
    reader = mine;
    mc_store_close(dummies[0]);
    mc_store_close(dummies[1]);
    mc_node_stop(own);
}

/* A value says in its first eight bytes with which seed the rest was made. */
static _Atomic uint64_t acknowledged;
static _Atomic bool over;

static void *read_all_the_time(void *arg) {
    uint8_t *got = malloc(SIZE);
    uint64_t *reads = arg;
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        uint64_t least = atomic_load_explicit(&acknowledged, memory_order_acquire), seed;
        size_t length;
        enum mc_status status = mc_store_get(reader, "race", got, SIZE, &length);
        if (status != MC_OK) { /* just being written, or replaced while it was read */
            continue;
        }
        memcpy(&seed, got, sizeof(seed));
        assert_int_equal(length, SIZE);
        assert_true(seed >= least);
        mc_test_verify(got + 8, SIZE - 8, seed);
        ++*reads;
    }
    free(got);
    return NULL;
}

static void test_many_readers_and_a_writer(void **state) {
    pthread_t threads[READERS];
    uint64_t reads[READERS] = {0};
    uint8_t *value = malloc(SIZE);
    for (unsigned i = 0; i < READERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, read_all_the_time, &reads[i]), 0);
    }
    for (uint64_t seed = 1; seed <= WRITES; seed++) {
        memcpy(value, &seed, sizeof(seed));
        mc_test_fill(value + 8, SIZE - 8, seed);
        assert_ok(mc_store_upsert(writer, "race", value, SIZE, NULL));
        atomic_store_explicit(&acknowledged, seed, memory_order_release);
        struct timespec pause = {0, 5 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    atomic_store_explicit(&over, true, memory_order_relaxed);
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(reads[i] > 0);
    }
    free(value);
}

int main(int argc, char **argv) {
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_read_again_is_read_here),
        cmocka_unit_test(test_no_change_is_missed),
        cmocka_unit_test(test_a_view_is_of_the_copy),
        cmocka_unit_test(test_dummies_share_their_nodes_copies),
        cmocka_unit_test(test_many_readers_and_a_writer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
