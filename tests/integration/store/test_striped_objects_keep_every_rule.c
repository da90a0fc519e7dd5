/*
 * What holds for every object holds for striped ones with two copies: damaged stripes are found by
 * the checksum and read from the other copy, a put on a condition takes place on it only, a life
 * ends, a batch of the hot cache's copies and others is right, and the bytes put are the bytes that
 * every reader gets.
 */
#include <stdio.h>

#include "support/cluster.h"

#define MIB   (1u << 20)
#define SIZE  (36u * MIB + 5)
#define ROOM  (256u * MIB) /* what was replaced stays until its lease ends */
#define NODES 2

static struct mc_master_service *master;
static struct mc_store *nodes[NODES], *client;
static uint8_t *value, *got;

static int setup(void **state) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    options.lease_ms = 10000; /* a loaded machine takes its time */
    master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(master);
    for (unsigned i = 0; i < NODES; i++) {
        nodes[i] = cluster_open(port, ROOM, true);
    }
    setenv("MC_STORE_STRIPE_BYTES", "33554432", 1);
    setenv("MOONCAKE_STORE_CHECKSUM", "1", 1);
    setenv("MC_STORE_LOCAL_HOT_CACHE_SIZE", "100000000", 1);
    setenv("MC_STORE_LOCAL_HOT_BLOCK_SIZE", "50000000", 1);
    client = cluster_open(port, 0, true);
    unsetenv("MC_STORE_LOCAL_HOT_CACHE_SIZE");
    unsetenv("MC_STORE_LOCAL_HOT_BLOCK_SIZE");
    unsetenv("MOONCAKE_STORE_CHECKSUM");
    unsetenv("MC_STORE_STRIPE_BYTES");
    value = mc_alloc(SIZE);
    got = mc_alloc(SIZE);
    return 0;
}

static int teardown(void **state) {
    mc_store_close(client);
    for (unsigned i = 0; i < NODES; i++) {
        mc_store_close(nodes[i]);
    }
    mc_master_service_stop(master);
    free(value);
    free(got);
    return 0;
}

static uint64_t counter(const char *name) {
    char *text = mc_store_metrics(client), line[80];
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(text, line);
    assert_non_null(at);
    uint64_t result = strtoull(at + strlen(line), NULL, 10);
    free(text);
    return result;
}

static const struct mc_replicate_config TWO = {.replica_num = 2};

static enum mc_status put(const char *key, uint64_t seed,
                          const struct mc_replicate_config *config) {
    mc_test_fill(value, SIZE, seed);
    return mc_store_put(client, key, value, SIZE, config);
}

static enum mc_status get(struct mc_store *s, const char *key, uint64_t seed) {
    size_t length = 0;
    memset(got, 0, SIZE);
    enum mc_status status = mc_store_get(s, key, got, SIZE, &length);
    if (status == MC_OK) {
        assert_int_equal(length, SIZE);
        mc_test_verify(got, SIZE, seed);
    }
    return status;
}

static struct mc_object_info inspect(const char *key) {
    struct mc_object_info info = {0};
    enum mc_status result;
    assert_ok(mc_store_inspect(client, &key, 1, &info, &result));
    assert_ok(result);
    return info;
}

/* The nodes are in this process, so their memory can be damaged. */
static void damage(const struct mc_replica_info *stripe) {
    ((uint8_t *)(uintptr_t)stripe->address)[777] ^= 1;
}

static void test_a_damaged_stripe_is_read_from_its_other_copy(void **state) {
    struct mc_replica_info stripes[8];
    size_t count;
    assert_ok(put("damaged", 1, &TWO));
    struct mc_object_info info = inspect("damaged");
    assert_int_equal(info.stripes, 2);
    assert_int_equal(info.replicas, 2);
    assert_true(info.has_checksum);
    assert_ok(mc_store_replicas(client, "damaged", stripes, 8, &count));
    assert_int_equal(count, 4);
    damage(&stripes[1]);
    /* Which copy is read changes from time to time; the cache has it from the second read on. */
    assert_ok(get(client, "damaged", 1));
    assert_ok(get(client, "damaged", 1));
    damage(&stripes[1]);
    /* Each copy in another stripe: nothing is lost. */
    assert_ok(put("apart", 11, &TWO));
    assert_ok(mc_store_replicas(client, "apart", stripes, 8, &count));
    damage(&stripes[0]);
    damage(&stripes[3]);
    for (unsigned i = 0; i < 2; i++) { /* which copies are read first changes */
        struct mc_slice pieces[] = {{got, 7}, {got + 7, 9 * MIB}, {got + 7 + 9 * MIB, SIZE}};
        struct mc_store_item item = {.key = "apart", .slices = pieces, .slice_count = 3};
        pieces[2].length = SIZE - 7 - 9 * MIB;
        memset(got, 0, SIZE);
        assert_ok(mc_store_get_batch(client, &item, 1));
        assert_ok(item.status);
        mc_test_verify(got, SIZE, 11);
    }
    assert_ok(mc_store_remove(client, "apart", true));
    assert_ok(put("both", 2, &TWO));
    assert_ok(mc_store_replicas(client, "both", stripes, 8, &count));
    damage(&stripes[0]);
    damage(&stripes[2]); /* the same stripe of the other copy */
    assert_int_equal(get(client, "both", 2), MC_CHECKSUM_MISMATCH);
    assert_int_equal(counter("mooncake_client_checksum_mismatches") >= 2, 1);
    assert_ok(mc_store_remove(client, "both", true));
    assert_ok(mc_store_remove(client, "damaged", true));
}

static void test_the_cache_has_striped_objects_too(void **state) {
    struct mc_store_view view;
    uint64_t hits = counter("mooncake_client_hot_cache_hits");
    assert_ok(put("hot", 3, NULL));
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(get(client, "hot", 3));
    }
    assert_int_equal(counter("mooncake_client_hot_cache_hits"), hits + 1);
    assert_ok(mc_store_view(client, "hot", &view)); /* there it is in one piece */
    assert_int_equal(view.length, SIZE);
    mc_test_verify(view.data, SIZE, 3);
    mc_store_view_release(client, &view);

    uint8_t small[100];
    mc_test_fill(small, sizeof(small), 9);
    assert_ok(mc_store_put(client, "small", small, sizeof(small), NULL));
    struct mc_slice slices[] = {{got, SIZE}, {value, 100}, {value + 100, 100}};
    struct mc_store_item items[] = {{.key = "hot", .slices = &slices[0], .slice_count = 1},
                                    {.key = "none", .slices = &slices[1], .slice_count = 1},
                                    {.key = "small", .slices = &slices[2], .slice_count = 1}};
    assert_ok(mc_store_get_batch(client, items, 3));
    assert_ok(items[0].status);
    assert_int_equal(items[1].status, MC_OBJECT_NOT_FOUND);
    assert_ok(items[2].status);
    mc_test_verify(got, SIZE, 3);
    mc_test_verify(value + 100, 100, 9);
    assert_int_equal(counter("mooncake_client_hot_cache_hits"), hits + 3);
    assert_ok(mc_store_remove(client, "hot", true));
}

static void test_conditions_and_lives(void **state) {
    assert_ok(put("c", 4, NULL));
    uint64_t version = inspect("c").version;
    struct mc_replicate_config config = {
        .condition = MC_PUT_IF_VERSION, .expected = &version, .expected_count = 1};
    assert_ok(put("c", 5, &config));
    assert_int_equal(inspect("c").stripes, 2);
    assert_int_equal(put("c", 6, &config), MC_INVALID_VERSION);
    assert_ok(get(nodes[0], "c", 5));
    config = (struct mc_replicate_config){.condition = MC_PUT_IF_ABSENT};
    assert_int_equal(put("c", 6, &config), MC_OBJECT_ALREADY_EXISTS);
    assert_ok(mc_store_remove(client, "c", true));

    config = (struct mc_replicate_config){.ttl_ms = 1};
    assert_ok(put("short", 7, &config));
    while (get(client, "short", 7) != MC_OBJECT_NOT_FOUND) { /* the test's own limit ends it */
    }
}

static void test_put_sessions_write_stripes_too(void **state) {
    static const char *const KEY[] = {"session"};
    static const size_t CUTS[] = {0, 5, MIB - 1, 20 * MIB, 20 * MIB + 3, SIZE};
    uint64_t size = SIZE;
    enum mc_status result;
    mc_test_fill(value, SIZE, 21);
    assert_ok(mc_store_put_session_start(client, KEY, &size, 1, &TWO, &result));
    assert_ok(result);
    for (size_t i = MC_ARRAY_LEN(CUTS) - 1; i-- > 0;) { /* from behind, in two calls */
        struct mc_store_range range = {value + CUTS[i], CUTS[i + 1] - CUTS[i], CUTS[i], MC_OK};
        struct mc_store_range_item item = {.key = KEY[0], .ranges = &range, .range_count = 1};
        assert_ok(mc_store_put_session_write(client, &item, 1));
        assert_ok(item.status);
        assert_int_equal(item.length, range.length);
    }
    assert_ok(mc_store_put_session_end(client, KEY, 1, &result));
    assert_ok(result);
    struct mc_object_info info = inspect("session");
    assert_int_equal(info.stripes, 2);
    assert_int_equal(info.replicas, 2);
    assert_true(info.has_checksum);
    assert_ok(get(nodes[0], "session", 21));
    assert_ok(get(client, "session", 21));
    assert_ok(mc_store_remove(client, "session", true));
}

int main(int argc, char **argv) {
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_damaged_stripe_is_read_from_its_other_copy),
        cmocka_unit_test(test_the_cache_has_striped_objects_too),
        cmocka_unit_test(test_conditions_and_lives),
        cmocka_unit_test(test_put_sessions_write_stripes_too),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
