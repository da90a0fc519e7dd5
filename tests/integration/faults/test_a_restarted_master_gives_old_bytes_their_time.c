/*
 * A master that starts again knows nothing, but the memory that comes back to it is not unused:
 * readers still hold leases that its predecessor granted. While such a lease runs, nobody else's
 * bytes may appear under it.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "support/cluster.h"

#define VALUE_BYTES (8u << 20)
#define NODE_BYTES  (64u << 20)
#define LEASE_MS    4000

static bool is(const uint8_t *bytes, const uint8_t *expected) {
    return memcmp(bytes, expected, VALUE_BYTES) == 0;
}

/* Fills the node with other bytes as soon as the new master allows it. */
struct writer {
    struct mc_store *store;
    _Atomic bool stop;
    _Atomic unsigned puts;
};
static void *write_on(void *arg) {
    struct writer *w = arg;
    uint8_t *value = malloc(VALUE_BYTES);
    mc_test_fill(value, VALUE_BYTES, 2);
    for (unsigned n = 0; !atomic_load(&w->stop); n++) {
        char key[32];
        snprintf(key, sizeof(key), "new%u", n);
        if (mc_store_put(w->store, key, value, VALUE_BYTES, NULL) == MC_OK) {
            atomic_fetch_add(&w->puts, 1);
        }
        usleep(5000);
    }
    free(value);
    return NULL;
}

static bool wrote_all(void *arg) {
    return atomic_load(&((struct writer *)arg)->puts) >= NODE_BYTES / VALUE_BYTES;
}

static void test_a_lease_outlives_the_master(void **state) {
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    options.lease_ms = LEASE_MS;
    struct cluster_process master = cluster_spawn_master(&options);
    struct cluster_process node = cluster_spawn_node(master.port, NODE_BYTES, false);
    struct mc_store *store = cluster_open(master.port, 0, false);
    uint8_t *expected = malloc(VALUE_BYTES);
    mc_test_fill(expected, VALUE_BYTES, 1);
    assert_ok(mc_store_put(store, "old", expected, VALUE_BYTES, NULL));
    struct mc_store_view view;
    assert_ok(mc_store_view(store, "old", &view));
    assert_true(is(view.data, expected) && mc_store_view_valid(&view));

    options.port = master.port;
    cluster_kill(&master, SIGKILL);
    master = cluster_spawn_master(&options);
    struct writer writer = {.store = store};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_on, &writer), 0);
    unsigned looks = 0;
    bool valid = true;
    while (valid) {
        bool same = is(view.data, expected);
        valid = mc_store_view_valid(&view); /* says whether what was read before was the object */
        if (valid && !same) {
            fail_msg("another object's bytes in a valid view, after %u puts",
                     atomic_load(&writer.puts));
        }
        looks += valid;
        usleep(1000);
    }
    assert_true(looks > 0);
    cluster_wait_until(wrote_all, &writer, 20000, "puts into the memory that came back");
    atomic_store(&writer.stop, true);
    pthread_join(thread, NULL);
    mc_store_view_release(store, &view);
    free(expected);
    mc_store_close(store);
    cluster_kill(&node, SIGKILL);
    cluster_kill(&master, SIGKILL);
}

int main(int argc, char **argv) {
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lease_outlives_the_master),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
