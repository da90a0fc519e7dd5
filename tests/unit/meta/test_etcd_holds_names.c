/*
 * Engines that find each other through a real etcd: names are claimed, leased, taken over from the
 * dead and published again; its limits and its absence are errors. MC_TEST_THREADS
 */
#include "unit/meta/store_scenarios.h"

static void one_lease_for_all_that_ends_at_the_close(void **state) {
    struct store_world *w = *state;
    static const char *const keys[] = {"mooncake/ram/a", "mooncake/ram/b"};
    struct mc_meta_kv *kv = store_open(w, 3600);
    assert_int_equal(w->ops->renew(kv, keys, 2), MC_ERR_NOT_FOUND);
    assert_ok(w->ops->put(kv, keys[0], mc_str_from("{}"), true));
    assert_ok(w->ops->put(kv, keys[1], mc_str_from("{}"), true));
    assert_ok(w->ops->renew(kv, keys, 2));
    w->ops->close(kv);
    assert_false(store_holds(w, keys[0], ""));
    assert_false(store_holds(w, keys[1], ""));
}

static void a_lost_lease_is_replaced(void **state) {
    struct store_world *w = *state;
    static const char *const keys[] = {"mooncake/ram/a"};
    struct mc_meta_kv *kv = store_open(w, 3600);
    assert_ok(w->ops->put(kv, keys[0], mc_str_from("{}"), true));
    mc_test_service_kill(&w->service);
    mc_test_service_forget(&w->service);
    mc_test_service_run(&w->service);
    assert_ok(w->ops->put(kv, keys[0], mc_str_from("{}"), true)); /* with the old lease at first */
    assert_ok(w->ops->renew(kv, keys, 1));
    mc_test_service_kill(&w->service);
    mc_test_service_run(&w->service); /* with its data */
    assert_ok(w->ops->renew(kv, keys, 1));
    assert_true(store_holds(w, keys[0], "{}"));
    mc_test_service_kill(&w->service);
    mc_test_service_forget(&w->service);
    mc_test_service_run(&w->service);
    assert_int_equal(w->ops->renew(kv, keys, 1), MC_ERR_NOT_FOUND);
    assert_ok(w->ops->claim(kv, keys[0], mc_str_from(NULL), mc_str_from("{}")));
    assert_ok(w->ops->renew(kv, keys, 1));
    w->ops->close(kv);
}

static void what_is_too_large_is_said_so(void **state) {
    struct store_world *w = *state;
    struct mc_meta_kv *kv = store_open(w, 30);
    size_t size = 5u << 19; /* more than etcd takes, and not much work for it */
    char *large = mc_alloc(size);
    memset(large, 'x', size);
    assert_int_equal(w->ops->put(kv, "mooncake/ram/large", (struct mc_str){large, size}, false),
                     MC_ERR_LIMIT);
    assert_ok(w->ops->put(kv, "mooncake/ram/large", (struct mc_str){large, 1u << 20}, false));
    free(large);
    w->ops->close(kv);
}

/* As upstream reads it: host:port without a scheme. */
static void a_bare_address_is_etcd(void **state) {
    struct store_world *w = *state;
    struct mc_engine *a = NULL;
    struct mc_meta *meta = NULL;
    struct mc_handshake_limits limits;
    assert_ok(store_engine(w->service.url + strlen("etcd://"), "node", &a));
    assert_true(store_holds(w, "mooncake/rpc_meta/node", "rpc_port"));
    mc_engine_destroy(a);
    mc_handshake_limits_init(&limits);
    assert_int_equal(mc_meta_open("localhost", &limits, &meta), MC_NOT_SUPPORTED);
    assert_int_equal(mc_meta_open("zookeeper://h:1", &limits, &meta), MC_NOT_SUPPORTED);
}

#define ETCD_TEST(name) STORE_SCENARIO(name, store_set_up_etcd)

int main(int argc, char **argv) {
    store_be_publisher(argc, argv);
    mc_test_service_need(MC_TEST_ETCD);
    const struct CMUnitTest tests[] = {
        STORE_SCENARIOS(store_set_up_etcd),  ETCD_TEST(one_lease_for_all_that_ends_at_the_close),
        ETCD_TEST(a_lost_lease_is_replaced), ETCD_TEST(what_is_too_large_is_said_so),
        ETCD_TEST(a_bare_address_is_etcd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
