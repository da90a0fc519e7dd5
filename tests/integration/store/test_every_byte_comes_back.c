/*
 * MC_TEST_THREADS. A master, a node in another process, one in this process and clients, over
 * shared memory and over TCP: what was put is what is read, from 1 byte to 64 MiB, singly and in
 * batches, with any key that is allowed; what is not allowed is an error.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "support/cluster.h"

#define LARGEST (64u << 20)

struct fixture {
    struct mc_master_service *master;
    uint16_t port;
    bool shm;
    struct cluster_process node;
    struct mc_store *lender; /* also lends memory */
    struct mc_store *client;
    uint8_t *value;
    uint8_t *got;
};

static int setup_with(void **state, bool disable_shm) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    f->shm = !disable_shm;
    f->master = cluster_start_master(&options);
    f->port = mc_master_service_rpc_port(f->master);
    f->node = cluster_spawn_node(f->port, 192u << 20, disable_shm);
    f->lender = cluster_open(f->port, 192u << 20, disable_shm);
    f->client = cluster_open(f->port, 0, disable_shm);
    f->value = malloc(LARGEST);
    f->got = malloc(LARGEST);
    *state = f;
    return 0;
}
static int setup_shm(void **state) {
    return setup_with(state, false);
}
static int setup_tcp(void **state) {
    return setup_with(state, true);
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mc_store_close(f->client);
    mc_store_close(f->lender);
    cluster_kill(&f->node, SIGKILL);
    mc_master_service_stop(f->master);
    free(f->value);
    free(f->got);
    free(f);
    return 0;
}

static void read_back(struct fixture *f, struct mc_store *store, const char *key, size_t size,
                      uint64_t seed) {
    size_t length = 0;
    memset(f->got, 0, size);
    assert_ok(mc_store_get(store, key, f->got, size, &length));
    assert_int_equal(length, size);
    mc_test_verify(f->got, size, seed);
}

static void test_all_sizes(void **state) {
    struct fixture *f = *state;
    static const size_t SIZES[] = {1,      2,     3,     7,       8,        63,
                                   64,     65,    1000,  4095,    4096,     4097,
                                   65535,  65536, 65537, 1000003, 1u << 20, (4u << 20) + 1,
                                   LARGEST};
    for (size_t i = 0; i < MC_ARRAY_LEN(SIZES); i++) {
        char key[32];
        snprintf(key, sizeof(key), "size-%zu", SIZES[i]);
        mc_test_fill(f->value, SIZES[i], i);
        assert_ok(mc_store_put(i % 2 ? f->client : f->lender, key, f->value, SIZES[i], NULL));
        bool exists = false;
        assert_ok(mc_store_exist(f->client, key, &exists));
        assert_true(exists);
        uint64_t length = 0;
        assert_ok(mc_store_size(f->client, key, &length));
        assert_int_equal(length, SIZES[i]);
        read_back(f, f->client, key, SIZES[i], i);
        read_back(f, f->lender, key, SIZES[i], i);
        assert_ok(mc_store_remove(f->client, key, true));
        assert_ok(mc_store_exist(f->client, key, &exists));
        assert_false(exists);
    }
}

static void test_two_replicas(void **state) {
    struct fixture *f = *state;
    struct mc_replicate_config config = {.replica_num = 2};
    mc_test_fill(f->value, 100000, 1);
    assert_ok(mc_store_put(f->client, "twice", f->value, 100000, &config));
    struct mc_replica_info replicas[4];
    size_t count = 0;
    assert_ok(mc_store_replicas(f->client, "twice", replicas, 4, &count));
    assert_int_equal(count, 2);
    assert_string_not_equal(replicas[0].endpoint, replicas[1].endpoint);
    assert_int_equal(replicas[0].status, 3);
    for (int i = 0; i < 8; i++) { /* both serve */
        read_back(f, f->client, "twice", 100000, 1);
    }
}

static void test_preferred_segment(void **state) {
    struct fixture *f = *state;
    const char *segment = mc_store_hostname(f->lender);
    struct mc_replicate_config config = {.preferred_segments = &segment,
                                         .preferred_segment_count = 1};
    mc_test_fill(f->value, 500, 1);
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof(key), "here-%d", i);
        assert_ok(mc_store_put(f->client, key, f->value, 500, &config));
        struct mc_replica_info replica;
        size_t count;
        assert_ok(mc_store_replicas(f->client, key, &replica, 1, &count));
        assert_string_equal(replica.endpoint, mc_engine_name(mc_store_engine(f->lender)));
    }
}

static void test_batches(void **state) {
    struct fixture *f = *state;
    enum { KEYS = 700, STRIDE = 9000 };
    struct mc_store_item *items = mc_zalloc(KEYS * sizeof(*items));
    struct mc_slice *slices = mc_zalloc(KEYS * 2 * sizeof(*slices));
    char(*keys)[32] = mc_zalloc(KEYS * sizeof(*keys));
    const char **names = mc_zalloc(KEYS * sizeof(*names));
    bool *exists = mc_zalloc(KEYS);
    enum mc_status *results = mc_zalloc(KEYS * sizeof(*results));
    for (size_t i = 0; i < KEYS; i++) {
        size_t size = 1 + i * 12;
        uint8_t *at = f->value + i * STRIDE;
        snprintf(keys[i], sizeof(keys[i]), "batch-%zu", i);
        names[i] = keys[i];
        mc_test_fill(at, size, i);
        slices[2 * i] = (struct mc_slice){at, size / 3};
        slices[2 * i + 1] = (struct mc_slice){at + size / 3, size - size / 3};
        items[i] =
            (struct mc_store_item){.key = keys[i], .slices = &slices[2 * i], .slice_count = 2};
    }
    assert_ok(mc_store_put_batch(f->client, items, KEYS, NULL));
    for (size_t i = 0; i < KEYS; i++) {
        assert_ok(items[i].status);
    }
    assert_ok(mc_store_exist_batch(f->client, names, KEYS, exists, results));
    memset(f->value, 0, KEYS * STRIDE);
    assert_ok(mc_store_get_batch(f->lender, items, KEYS));
    for (size_t i = 0; i < KEYS; i++) {
        assert_ok(results[i]);
        assert_true(exists[i]);
        assert_ok(items[i].status);
        assert_int_equal(items[i].length, 1 + i * 12);
        mc_test_verify(f->value + i * STRIDE, 1 + i * 12, i);
    }
    assert_ok(mc_store_remove_batch(f->client, names, KEYS, true, results));
    for (size_t i = 0; i < KEYS; i++) {
        assert_ok(results[i]);
    }
    assert_ok(mc_store_get_batch(f->client, items, KEYS));
    for (size_t i = 0; i < KEYS; i++) {
        assert_int_equal(items[i].status, MC_OBJECT_NOT_FOUND);
    }
    free(items);
    free(slices);
    free(keys);
    free(names);
    free(exists);
    free(results);
}

static void test_keys_and_lengths_at_their_limits(void **state) {
    struct fixture *f = *state;
    static const char *const ODD[] = {" ",         "\x01\x7f\n\r\t", "\xff\xfe\x80",
                                      "a/b//../c", "%00%s%n",        "k\xc3\xa9y"};
    for (size_t i = 0; i < MC_ARRAY_LEN(ODD); i++) {
        mc_test_fill(f->value, 321, i);
        assert_ok(mc_store_put(f->client, ODD[i], f->value, 321, NULL));
        read_back(f, f->lender, ODD[i], 321, i);
    }
    char *key = malloc(MC_STORE_KEY_MAX + 2);
    memset(key, 'k', MC_STORE_KEY_MAX + 1);
    key[MC_STORE_KEY_MAX + 1] = '\0';
    assert_int_equal(mc_store_put(f->client, key, f->value, 10, NULL), MC_INVALID_KEY);
    key[MC_STORE_KEY_MAX] = '\0';
    mc_test_fill(f->value, 4321, 9);
    assert_ok(mc_store_put(f->client, key, f->value, 4321, NULL));
    read_back(f, f->client, key, 4321, 9);
    free(key);

    size_t length;
    assert_int_equal(mc_store_put(f->client, "", f->value, 10, NULL), MC_INVALID_KEY);
    assert_int_equal(mc_store_get(f->client, "", f->got, 10, &length), MC_INVALID_KEY);
    assert_int_equal(mc_store_put(f->client, "nothing", f->value, 0, NULL), MC_INVALID_PARAMS);
    assert_int_equal(mc_store_put(f->client, "oversize", f->value, (size_t)1 << 40, NULL),
                     MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(mc_store_put(f->client, "wrap", f->value, SIZE_MAX, NULL),
                     MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(mc_store_get(f->client, "absent", f->got, 10, &length), MC_OBJECT_NOT_FOUND);
    assert_int_equal(mc_store_remove(f->client, "absent", false), MC_OBJECT_NOT_FOUND);
    assert_ok(mc_store_put(f->client, "small", f->value, 100, NULL));
    length = 0;
    assert_int_equal(mc_store_get(f->client, "small", f->got, 99, &length), MC_BUFFER_OVERFLOW);
    assert_int_equal(length, 100);
    assert_int_equal(mc_store_remove(f->client, "small", false), MC_OBJECT_HAS_LEASE);
}

static void test_upsert_and_regex(void **state) {
    struct fixture *f = *state;
    mc_test_fill(f->value, 1000, 1);
    assert_ok(mc_store_put(f->client, "u-1", f->value, 1000, NULL));
    mc_test_fill(f->value, 1000, 2);
    assert_ok(mc_store_put(f->client, "u-1", f->value, 1000, NULL)); /* stays */
    read_back(f, f->lender, "u-1", 1000, 1);
    assert_ok(mc_store_upsert(f->client, "u-1", f->value, 1000, NULL));
    read_back(f, f->lender, "u-1", 1000, 2);
    mc_test_fill(f->value, 2000, 3);
    assert_ok(mc_store_upsert(f->client, "u-1", f->value, 2000, NULL));
    read_back(f, f->lender, "u-1", 2000, 3);
    assert_ok(mc_store_put(f->client, "u-2", f->value, 2000, NULL));
    assert_ok(mc_store_put(f->client, "v-1", f->value, 2000, NULL));
    uint64_t removed = 0;
    assert_int_equal(mc_store_remove_regex(f->client, "(", true, &removed), MC_INVALID_PARAMS);
    assert_ok(mc_store_remove_regex(f->client, "^u-[0-9]$", true, &removed));
    assert_int_equal(removed, 2);
    read_back(f, f->client, "v-1", 2000, 3);
    assert_ok(mc_store_remove_all(f->client, true, &removed));
    assert_int_equal(removed, 1);
}

static void test_views(void **state) {
    struct fixture *f = *state;
    const char *segment = mc_store_hostname(f->lender);
    struct mc_replicate_config near = {.preferred_segments = &segment,
                                       .preferred_segment_count = 1};
    mc_test_fill(f->value, 70000, 4);
    assert_ok(mc_store_put(f->client, "near", f->value, 70000, &near));
    struct mc_store_view own; /* in this process's own memory */
    assert_ok(mc_store_view(f->lender, "near", &own));
    assert_int_equal(own.length, 70000);
    mc_test_verify(own.data, own.length, 4);
    assert_true(mc_store_view_valid(&own));
    struct mc_store_view other; /* of another process's memory: a mapping, or none over TCP */
    enum mc_status status = mc_store_view(f->client, "near", &other);
    assert_int_equal(status, f->shm ? MC_OK : MC_REPLICA_NOT_IN_LOCAL_MEMORY);
    if (status == MC_OK) {
        assert_int_equal(other.length, 70000);
        mc_test_verify(other.data, other.length, 4);
        assert_true(mc_store_view_valid(&other));
        mc_store_view_release(f->client, &other);
        assert_false(mc_store_view_valid(&other));
    }
    assert_int_equal(mc_store_view(f->lender, "absent", &other), MC_OBJECT_NOT_FOUND);
    mc_store_view_release(f->lender, &own);
}

static void test_buffers_and_metrics(void **state) {
    struct fixture *f = *state;
    assert_ok(mc_store_register_buffer(f->client, f->value, LARGEST));
    assert_int_equal(mc_store_register_buffer(f->client, f->value + 5, 10), MC_INVALID_PARAMS);
    mc_test_fill(f->value, 5000, 6);
    assert_ok(mc_store_put(f->client, "registered", f->value, 5000, NULL));
    read_back(f, f->client, "registered", 5000, 6);
    assert_ok(mc_store_unregister_buffer(f->client, f->value));
    assert_int_equal(mc_store_unregister_buffer(f->client, f->value), MC_INVALID_PARAMS);
    assert_ok(mc_store_health(f->client));
    char *metrics = mc_store_metrics(f->client);
    assert_non_null(strstr(metrics, "mooncake_transfer_write_bytes{client_mode=\"real\"} 5000"));
    assert_non_null(strstr(metrics, "mooncake_transfer_read_bytes{client_mode=\"real\"} 5000"));
    free(metrics);
}

static void expect_op(const char *metrics, const char *kind, const char *op, int bytes) {
    char line[128];
    for (int i = 0; i < 3; i++) {
        static const char *const FIELDS[] = {"count", "bytes", "latency_count"};
        snprintf(line, sizeof(line),
                 "mooncake_transfer_%s_operation_%s{client_mode=\"real\",op_name=\"%s\"} %d\n",
                 kind, FIELDS[i], op, i == 1 ? bytes : 1);
        if (strstr(metrics, line) == NULL) {
            fail_msg("no %s in\n%s", line, metrics);
        }
    }
}

/* By upstream's names; what moved nothing counts for nothing. */
static void test_each_kind_of_call_is_counted(void **state) {
    struct fixture *f = *state;
    struct mc_slice whole = {f->value, 3000}, half = {f->value, 1500}, into = {f->got, 3000};
    struct mc_store_item puts[] = {{.key = "a", .slices = &whole, .slice_count = 1},
                                   {.key = "", .slices = &whole, .slice_count = 1},
                                   {.key = "b", .slices = &half, .slice_count = 1}};
    struct mc_store_item gets[] = {{.key = "a", .slices = &into, .slice_count = 1},
                                   {.key = "absent", .slices = &into, .slice_count = 1}};
    struct mc_store_range range = {.ptr = f->got, .length = 700, .offset = 9};
    struct mc_store_range_item ranges = {.key = "a", .ranges = &range, .range_count = 1};
    struct mc_store_view view = {0};
    size_t length = 0;
    mc_test_fill(f->value, 3000, 7);
    assert_ok(mc_store_put(f->client, "one", f->value, 1000, NULL));
    assert_ok(mc_store_upsert(f->client, "one", f->value, 2000, NULL));
    assert_ok(mc_store_put_batch(f->client, puts, 3, NULL));
    assert_ok(mc_store_upsert_batch(f->client, puts, 1, NULL));
    read_back(f, f->client, "one", 2000, 7);
    assert_int_equal(mc_store_get(f->client, "absent", f->got, 9, &length), MC_OBJECT_NOT_FOUND);
    assert_ok(mc_store_get_batch(f->client, gets, 2));
    assert_ok(mc_store_get_batch(f->client, gets + 1, 1));
    assert_ok(mc_store_get_ranges(f->client, &ranges, 1));
    enum mc_status viewed = mc_store_view(f->client, "b", &view);
    assert_int_equal(viewed, f->shm ? MC_OK : MC_REPLICA_NOT_IN_LOCAL_MEMORY);
    mc_store_view_release(f->client, &view);
    char *metrics = mc_store_metrics(f->client);
    expect_op(metrics, "write", "put", 1000);
    expect_op(metrics, "write", "upsert", 2000);
    expect_op(metrics, "write", "put_batch", 4500);
    expect_op(metrics, "write", "upsert_batch", 3000);
    expect_op(metrics, "read", "get_into", 2000);
    expect_op(metrics, "read", "batch_get_into", 3000);
    expect_op(metrics, "read", "get_into_ranges", 700);
    if (f->shm) {
        expect_op(metrics, "read", "get_buffer", 1500);
    }
    static const char *const TIMES[] = {"put", "batch_put", "get", "batch_get"};
    for (size_t i = 0; i < MC_ARRAY_LEN(TIMES); i++) {
        char line[96];
        bool view_failed = !f->shm && strcmp(TIMES[i], "get") == 0;
        snprintf(line, sizeof(line),
                 "mooncake_transfer_%s_latency_count{client_mode=\"real\"} %d\n", TIMES[i],
                 view_failed ? 1 : 2);
        assert_non_null(strstr(metrics, line));
    }
    free(metrics);
}

/* Segments are found by name in a metadata service instead of by their addresses. */
static void test_metadata_service(void **state) {
    struct mc_master_service_config config;
    mc_master_service_config_init(&config);
    config.rpc_host = config.metadata_host = "127.0.0.1";
    config.metadata = true;
    struct mc_master_service *master;
    assert_ok(mc_master_service_start(&config, &master));
    char address[32], url[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", mc_master_service_rpc_port(master));
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/metadata",
             mc_master_service_metadata_port(master));
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = address;
    options.metadata = url;
    options.local_hostname = "127.0.0.1";
    options.checksum = true;
    struct mc_store *lender, *client;
    options.segment_bytes = 32 << 20;
    assert_ok(mc_store_open(&options, &lender));
    options.segment_bytes = 0;
    assert_ok(mc_store_open(&options, &client));
    uint8_t value[20000], got[20000];
    size_t length = 0;
    mc_test_fill(value, sizeof(value), 1);
    assert_ok(mc_store_put(client, "k", value, sizeof(value), NULL));
    struct mc_replica_info replica;
    size_t count;
    assert_ok(mc_store_replicas(client, "k", &replica, 1, &count));
    assert_string_equal(replica.endpoint, mc_store_hostname(lender));
    assert_ok(mc_store_get(client, "k", got, sizeof(got), &length));
    assert_int_equal(length, sizeof(value));
    mc_test_verify(got, sizeof(got), 1);
    mc_store_close(client);
    mc_store_close(lender);
    mc_master_service_stop(master);
}

/* ---- many threads, one store ---- */

struct worker {
    struct fixture *f;
    unsigned index;
    enum mc_status status;
    uint64_t verified;
};

static void *work(void *arg) {
    struct worker *w = arg;
    uint8_t bytes[6000], got[6000];
    for (unsigned i = 0; i < 60 && w->status == MC_OK; i++) {
        char key[32];
        size_t size = 1 + (i * 97 + w->index * 31) % sizeof(bytes);
        snprintf(key, sizeof(key), "t-%u-%u", w->index, i);
        mc_test_fill(bytes, size, w->index * 1000 + i);
        size_t length = 0;
        w->status = mc_store_put(w->f->client, key, bytes, size, NULL);
        if (w->status == MC_OK) {
            w->status =
                mc_store_get(i % 2 ? w->f->client : w->f->lender, key, got, sizeof(got), &length);
        }
        if (w->status == MC_OK && (length != size || memcmp(bytes, got, size) != 0)) {
            w->status = MC_CHECKSUM_MISMATCH;
        }
        w->verified += length;
    }
    return NULL;
}

static void test_threads_share_a_store(void **state) {
    enum { THREADS = 6 };
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.f = *state, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_ok(workers[i].status);
        assert_true(workers[i].verified > 0);
    }
}

int main(int argc, char **argv) {
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
#define BOTH(name)                                                                                 \
    {#name "_shm", name, setup_shm, teardown, NULL}, {#name "_tcp", name, setup_tcp, teardown, NULL}
        BOTH(test_all_sizes),
        BOTH(test_two_replicas),
        BOTH(test_preferred_segment),
        BOTH(test_batches),
        BOTH(test_keys_and_lengths_at_their_limits),
        BOTH(test_upsert_and_regex),
        BOTH(test_views),
        BOTH(test_buffers_and_metrics),
        BOTH(test_each_kind_of_call_is_counted),
        BOTH(test_threads_share_a_store),
        cmocka_unit_test(test_metadata_service),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
