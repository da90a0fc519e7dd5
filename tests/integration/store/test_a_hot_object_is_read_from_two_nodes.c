/*
 * MC_TEST_THREADS. With dynamic replication an object that somebody reads all the time gets a
 * second replica by itself, whose node then gives the right bytes alone; when nobody reads it any
 * more one of the two goes.
 */
#include "support/cluster.h"

struct fixture {
    struct mc_master_service *master;
    struct mc_store *a, *b, *reader;
    uint8_t value[100000], got[100000];
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    struct mc_master_service_config config;
    mc_master_service_config_init(&config);
    config.rpc_host = "127.0.0.1";
    config.admin = false;
    config.core.dynamic_replication = MC_DYNAMIC_ENFORCE;
    config.core.dynamic_window_ms = 1000;
    config.core.dynamic_qps = 1; /* one read in a window: a slow machine is hot enough, too */
    assert_int_equal(mc_master_service_start(&config, &f->master), MC_OK);
    uint16_t port = mc_master_service_rpc_port(f->master);
    f->a = cluster_open(port, 64u << 20, true);
    f->b = cluster_open(port, 64u << 20, true);
    f->reader = cluster_open(port, 0, true);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mc_store_close(f->reader);
    mc_store_close(f->b);
    mc_store_close(f->a);
    mc_master_service_stop(f->master);
    free(f);
    return 0;
}

/* Without reading it. */
static size_t replica_count(struct fixture *f) {
    struct mc_object_info info;
    const char *key = "hot";
    enum mc_status result;
    assert_int_equal(mc_store_inspect(f->reader, &key, 1, &info, &result), MC_OK);
    assert_int_equal(result, MC_OK);
    return info.replicas;
}

static bool reads_and_finds_two(void *arg) {
    struct fixture *f = arg;
    size_t length = 0;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(mc_store_get(f->reader, "hot", f->got, sizeof(f->got), &length), MC_OK);
        assert_int_equal(length, sizeof(f->value));
        mc_test_verify(f->got, length, 3);
    }
    return replica_count(f) == 2;
}

static bool one_is_left(void *arg) {
    return replica_count(arg) == 1;
}

static void test_a_second_replica_comes_and_goes(void **state) {
    struct fixture *f = *state;
    size_t length = 0;
    mc_test_fill(f->value, sizeof(f->value), 3);
    assert_int_equal(mc_store_put(f->a, "hot", f->value, sizeof(f->value), NULL), MC_OK);
    assert_int_equal(replica_count(f), 1);
    cluster_wait_until(reads_and_finds_two, f, 60000, "a second replica");
    cluster_wait_until(one_is_left, f, 60000, "the copy to go");
    assert_int_equal(mc_store_get(f->reader, "hot", f->got, sizeof(f->got), &length), MC_OK);
    assert_int_equal(length, sizeof(f->value));
    mc_test_verify(f->got, length, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_second_replica_comes_and_goes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
