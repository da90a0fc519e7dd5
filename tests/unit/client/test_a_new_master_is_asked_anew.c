/*
 * What a master refuses is not asked of it with every call; but when another master may be in its
 * place, because an answer failed to come, because it does not know the client's segments, or after
 * a minute, it is asked again, and what it can do is used.
 */
#include "client/hot_cache.h"
#include "support/fake_port.h"
#include "support/support.h"

static struct fake_port *fake;
static struct mc_hot_cache *hot;
static struct mc_ops *ops;
static uint8_t value[1000];
static const size_t NODES[] = {0, 1};

static int setup(void **state) {
    fake = fake_create();
    hot = mc_hot_create(
        &(struct mc_hot_config){.bytes = 1 << 20, .largest_bytes = 1 << 16, .admission = 1});
    struct mc_ops_config config = {
        .client = {7, 1}, .tenant = "default", .host_id = "", .timeout_ms = 30000, .hot = hot};
    ops = mc_ops_create(&fake->port, &config);
    mc_test_fill(value, sizeof(value), 1);
    fake_store(fake, "k", value, sizeof(value), NODES, 2);
    for (size_t i = 0; i < FAKE_NODES; i++) {
        fake->distance[i] = MC_DISTANCE_NETWORK;
    }
    return 0;
}
static int teardown(void **state) {
    mc_ops_destroy(ops);
    mc_hot_destroy(hot);
    fake_destroy(fake);
    return 0;
}

/* How often the master was asked in our words for it. */
static unsigned get(void) {
    uint8_t got[sizeof(value)];
    struct mc_slice slice = {got, sizeof(got)};
    struct mc_store_item item = {.key = "k", .slices = &slice, .slice_count = 1};
    unsigned before = fake->rpcs[MC_RPC_GetObjects];
    assert_ok(mc_ops_get(ops, &item, 1));
    assert_ok(item.status);
    assert_memory_equal(got, value, sizeof(value));
    return fake->rpcs[MC_RPC_GetObjects] - before;
}

static int64_t hits(void) {
    return mc_metric_get(&mc_hot_counters(hot)->hits);
}

static void refused_once(void) {
    assert_int_equal(get(), 1);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(get(), 0);
    }
    assert_int_equal(hits(), 0);
}

static void uses_the_cache(void) {
    assert_int_equal(get(), 1);
    assert_int_equal(get(), 1);
    assert_int_equal(hits(), 1);
}

static void test_after_an_answer_that_failed_to_come(void **state) {
    refused_once();
    fake->lose_rpc = MC_RPC_GetReplicaList;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_status = MC_RPC_FAIL;
    fake->lose_count = 1;
    fake->ours = true;
    assert_int_equal(get(), 0);
    uses_the_cache();
}

static void test_after_a_remount(void **state) {
    struct mc_ops_node node = {.name = "node", .te_endpoint = "node:0", .segment_count = 1};
    node.segments[0] = (struct mc_ops_segment){.id = {7, 7}, .base = 4096, .size = 4096};
    fake->knows_segment = true;
    refused_once();
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(get(), 0);
    fake->need_remount = true;
    fake->ours = true;
    assert_ok(mc_ops_heartbeat(ops, &node));
    uses_the_cache();
}

static void test_after_a_minute(void **state) {
    refused_once();
    fake->ours = true;
    fake->now_ns += 59 * MC_SEC;
    assert_int_equal(get(), 0);
    fake->now_ns += 2 * MC_SEC;
    uses_the_cache();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_after_an_answer_that_failed_to_come),
        TEST(test_after_a_remount),
        TEST(test_after_a_minute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
