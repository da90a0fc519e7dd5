/*
 * What a store is called and where it listens, and how a lot of memory becomes segments: a given
 * port is a name, or exactly the port that the engine listens on; a drawn one lies in its range;
 * memory above the registration limit is several segments, which all live through a restart of the
 * master. MC_TEST_THREADS
 */
#include "support/cluster.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <unistd.h>

#include "compat/store_c.h"
#include "io/io.h"

#define PIECE (4u << 20)

static struct mc_master_service *master;
static uint16_t master_port;

static int setup(void **state) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    options.lease_ms = 5000;
    master = cluster_start_master(&options);
    master_port = mc_master_service_rpc_port(master);
    return 0;
}
static int teardown(void **state) {
    unsetenv("MC_LEGACY_RPC_PORT_BINDING");
    unsetenv("MC_STORE_CLIENT_MIN_PORT");
    unsetenv("MC_STORE_CLIENT_MAX_PORT");
    unsetenv("MC_STORE_CLIENT_SETUP_RETRIES");
    unsetenv("MC_MAX_MR_SIZE");
    mc_master_service_stop(master);
    return 0;
}

static enum mc_status open_named(const char *name, const char *metadata, uint64_t bytes,
                                 struct mc_store **store) {
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%u", master_port);
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = address;
    options.metadata = metadata;
    options.local_hostname = name;
    options.segment_bytes = bytes;
    return mc_store_open(&options, store);
}

/* A port that nobody has; kept by `fd` until that is closed. */
static uint16_t some_port(int *fd) {
    uint16_t port;
    assert_ok(mc_listen("127.0.0.1", 0, 1, fd, &port));
    return port;
}

static void test_a_given_port_is_a_name(void **state) {
    int fd;
    char name[64];
    snprintf(name, sizeof(name), "127.0.0.1:%u", some_port(&fd)); /* taken, and that is no matter */
    struct mc_store *a, *b;
    assert_ok(open_named(name, "P2PHANDSHAKE", 0, &a));
    assert_ok(open_named(name, "P2PHANDSHAKE", 0, &b));
    assert_string_equal(mc_store_hostname(a), name);
    assert_string_equal(mc_store_hostname(b), name);
    assert_string_not_equal(mc_engine_name(mc_store_engine(a)), name);
    mc_store_close(a);
    mc_store_close(b);
    close(fd);
}

static void test_a_given_port_is_listened_on_when_asked(void **state) {
    int fd;
    uint16_t port = some_port(&fd);
    char name[64];
    snprintf(name, sizeof(name), "127.0.0.1:%u", port);
    setenv("MC_LEGACY_RPC_PORT_BINDING", "1", 1);
    struct mc_store *a = NULL, *b = NULL;
    assert_int_equal(open_named(name, "P2PHANDSHAKE", 0, &a), MC_ERR_ADDRESS_IN_USE);
    assert_null(a);
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%u", master_port);
    mooncake_store_t wrapped = mooncake_store_create();
    assert_int_equal(mooncake_store_setup(wrapped, name, "P2PHANDSHAKE", 0, 0, "tcp", "", address),
                     -600);
    mooncake_store_destroy(wrapped);
    close(fd);
    assert_ok(open_named(name, "P2PHANDSHAKE", 0, &a));
    assert_string_equal(mc_store_hostname(a), name);
    assert_string_equal(mc_engine_name(mc_store_engine(a)), name);
    assert_int_equal(mc_engine_rpc_port(mc_store_engine(a)), port);
    assert_int_equal(open_named(name, "P2PHANDSHAKE", 0, &b), MC_ERR_ADDRESS_IN_USE);
    mc_store_close(a);
}

/* The range has one port: whoever comes second tries as often as it may, then names the range. */
static void drawn_port(const char *legacy) {
    int fd;
    uint16_t port = some_port(&fd);
    char text[16], name[64];
    snprintf(text, sizeof(text), "%u", port);
    snprintf(name, sizeof(name), "127.0.0.1:%u", port);
    setenv("MC_STORE_CLIENT_MIN_PORT", text, 1);
    setenv("MC_STORE_CLIENT_MAX_PORT", text, 1);
    setenv("MC_STORE_CLIENT_SETUP_RETRIES", "2", 1);
    if (legacy != NULL) {
        setenv("MC_LEGACY_RPC_PORT_BINDING", legacy, 1);
    }
    struct mc_store *a = NULL, *b = NULL;
    uint64_t begin = mc_now_ms(mc_clock_system());
    assert_int_equal(open_named("127.0.0.1", "P2PHANDSHAKE", 0, &a), MC_ERR_ADDRESS_IN_USE);
    assert_true(mc_now_ms(mc_clock_system()) - begin >= 100); /* it did try again */
    close(fd);
    assert_ok(open_named("127.0.0.1", "P2PHANDSHAKE", 0, &a));
    assert_string_equal(mc_store_hostname(a), name);
    assert_int_equal(mc_engine_rpc_port(mc_store_engine(a)) == port, legacy != NULL);
    assert_int_equal(open_named("127.0.0.1", "P2PHANDSHAKE", 0, &b), MC_ERR_ADDRESS_IN_USE);
    mc_store_close(a);
}
static void test_a_drawn_port_is_held(void **state) {
    drawn_port(NULL);
}
static void test_a_drawn_port_is_listened_on_when_asked(void **state) {
    drawn_port("1");
}

static void test_a_name_that_is_none_is_refused(void **state) {
    struct mc_store *store = NULL;
    assert_int_equal(open_named("127.0.0.1:99999", "P2PHANDSHAKE", 0, &store), MC_ERR_BAD_ADDRESS);
    assert_null(store);
}

/* ---- a lot of memory ---- */

static bool capacity_is(void *ctx) {
    struct mc_master_totals totals;
    mc_master_totals(mc_master_service_core(master), &totals);
    return totals.capacity_bytes == *(uint64_t *)ctx;
}

static uint64_t put_and_verify(struct mc_store *store, unsigned count, size_t size) {
    uint8_t *value = malloc(size), *got = malloc(size);
    uint64_t verified = 0;
    for (unsigned i = 0; i < count; i++) {
        char key[32];
        size_t length = 0;
        snprintf(key, sizeof(key), "piece-%u-%zu", i, size);
        mc_test_fill(value, size, i);
        assert_ok(mc_store_put(store, key, value, size, NULL));
        assert_ok(mc_store_get(store, key, got, size, &length));
        assert_int_equal(length, size);
        mc_test_verify(got, size, i);
        verified += length;
    }
    free(value);
    free(got);
    return verified;
}

static void test_memory_above_the_limit_is_several_segments(void **state) {
    char limit[16];
    snprintf(limit, sizeof(limit), "%u", PIECE);
    setenv("MC_MAX_MR_SIZE", limit, 1);
    uint64_t bytes = 3 * PIECE + 5000;
    struct mc_store *store, *reader;
    assert_ok(open_named("127.0.0.1", "P2PHANDSHAKE", bytes, &store));
    assert_true(capacity_is(&bytes));
    assert_ok(open_named("127.0.0.1", "P2PHANDSHAKE", 0, &reader));
    /* Of most of a piece each: no two fit into one segment, four find a place, and leave so much
     * room that none is evicted before it is read. */
    size_t size = bytes / 4 / 10 * 9;
    assert_int_equal(put_and_verify(reader, 4, size), 4 * size);
    uint8_t *large = calloc(1, PIECE + 1);
    assert_int_equal(mc_store_put(reader, "large", large, PIECE + 1, NULL), MC_NO_AVAILABLE_HANDLE);
    free(large);
    uint16_t port = master_port;
    mc_master_service_stop(master);
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    options.port = port;
    master = cluster_start_master(&options);
    cluster_wait_until(capacity_is, &bytes, 60000, "all segments are mounted again");
    assert_int_equal(put_and_verify(reader, 4, size), 4 * size);
    mc_store_close(reader);
    mc_store_close(store);
    bytes = 0;
    assert_true(capacity_is(&bytes));
}

static void test_too_many_segments_are_refused(void **state) {
    setenv("MC_MAX_MR_SIZE", "1048576", 1);
    struct mc_store *store = NULL;
    assert_int_equal(open_named("127.0.0.1", "P2PHANDSHAKE", (64ull << 20) + 1, &store),
                     MC_INVALID_PARAMS);
    assert_null(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_a_given_port_is_a_name),         T(test_a_given_port_is_listened_on_when_asked),
        T(test_a_drawn_port_is_held),           T(test_a_drawn_port_is_listened_on_when_asked),
        T(test_a_name_that_is_none_is_refused), T(test_memory_above_the_limit_is_several_segments),
        T(test_too_many_segments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
