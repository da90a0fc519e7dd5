/*
 * A node that the master has forgotten mounts again, with memory at an address that was never used
 * before; one that the master still knows is mounted as it is.
 */
#include "support/fake_port.h"
#include "support/support.h"

static struct fake_port *fake;
static struct mc_ops *ops;
static struct mc_ops_node node;
static unsigned fresh;

static enum mc_status fresh_memory(void *ctx, struct mc_ops_segment *segment) {
    fresh++;
    segment->id.lo++;
    segment->base += 0x100000;
    return MC_OK;
}

static int setup(void **state) {
    fake = fake_create();
    ops = fake_ops(fake, false);
    fresh = 0;
    node = (struct mc_ops_node){.name = "h:12300",
                                .te_endpoint = "h:15000",
                                .protocol = "tcp",
                                .host_id = "",
                                .segments = {{.id = {3, 4}, .base = 0x7000000, .size = 1 << 20}},
                                .segment_count = 1,
                                .fresh_memory = fresh_memory};
    return 0;
}
static int teardown(void **state) {
    mc_ops_destroy(ops);
    fake_destroy(fake);
    return 0;
}

static void test_mount_tells_where_the_memory_is(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    assert_true(mc_uuid_eq(fake->mounted.id, node.segments[0].id));
    assert_int_equal(fake->mounted.base, 0x7000000);
    assert_int_equal(fake->mounted.size, 1 << 20);
    assert_true(node.segments[0].confirmed);
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->mounts, 1);
}

static void test_known_segment_stays(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->need_remount = true; /* what a master answers to the first ping */
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->rpcs[MC_RPC_ReMountSegment], 1);
    assert_false(fake->need_remount);
    assert_int_equal(fake->mounts, 1);
    assert_int_equal(fresh, 0);
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_true(node.segments[0].confirmed);
    assert_int_equal(fake->rpcs[MC_RPC_ReMountSegment], 1);
}

static void forget(struct fake_port *f, enum mc_master_rpc rpc) {
    if (rpc == MC_RPC_QuerySegmentStatusById) {
        f->knows_segment = false;
        f->after_rpc = NULL;
    }
}

/* It would hand out again what its predecessor gave away. */
static void test_a_master_that_restarts_after_it_was_asked_gets_fresh_memory(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->need_remount = true;
    fake->after_rpc = forget;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->mounts, 1);
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fresh, 1);
    assert_int_equal(fake->mounts, 2);
    assert_int_equal(fake->mounted.base, 0x7100000);
    assert_true(node.segments[0].confirmed);
}

static void test_forgotten_segment_is_replaced(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->need_remount = true;
    fake->knows_segment = false;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fresh, 1);
    assert_int_equal(fake->mounted.base, 0x7100000);
    assert_int_equal(fake->mounted.id.lo, 5);
    assert_int_equal(fake->unmounts, 0);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->remounts), 1);
}

/* The master gave us up and is taking the segment down,
 * while readers may still hold leases in it. */
static void test_segment_that_is_taken_down_is_replaced(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->need_remount = true;
    fake->segment_status = MC_SEGMENT_UNMOUNTING;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fresh, 1);
    assert_int_equal(fake->mounted.base, 0x7100000);
}

static void test_ghost_of_an_unanswered_mount_is_unmounted(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->need_remount = true;
    fake->knows_segment = false;
    fake->lose_rpc = MC_RPC_ReMountSegment;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 1;
    assert_int_equal(mc_ops_heartbeat(ops, &node), MC_RPC_TIMEOUT);
    assert_false(node.segments[0].confirmed);
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fresh, 2);
    assert_int_equal(fake->unmounts, 1);
    assert_ok(mc_ops_heartbeat(ops, &node)); /* the lost one may come later still */
    assert_int_equal(fake->unmounts, 2);
    fake->now_ns += 61 * MC_SEC;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->unmounts, 2);
}

static void lose_queries(struct fake_port *f, enum mc_master_rpc rpc) {
    if (rpc == MC_RPC_QuerySegmentStatusById) {
        f->lose_rpc = rpc;
        f->lose_count = 1;
    }
}

/* It may have been carried out by a master that has restarted since and gave parts of it away. */
static void test_unanswered_mount_is_not_repeated_with_the_same_memory(void **state) {
    fake->knows_segment = false;
    fake->lose_rpc = MC_RPC_MountSegment;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 1;
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    assert_int_equal(fresh, 1);
    assert_int_equal(fake->mounted.base, 0x7100000);
    assert_true(node.segments[0].confirmed);
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->unmounts, 1); /* should it still arrive */
}

/* The caller takes the memory back. Other segments keep the client alive for the master, so that
 * nothing but this client would ever take the late one away. */
static void test_mount_that_was_given_up_is_unmounted_if_it_comes_late(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    struct mc_ops_segment second = {.id = {5, 6}, .base = 0x9000000, .size = 1 << 20};
    fake->lose_rpc = MC_RPC_MountSegment;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 1;
    fake->before_rpc = lose_queries;
    assert_int_equal(mc_ops_mount(ops, &node, &second), MC_RPC_TIMEOUT);
    fake->before_rpc = NULL;
    fake->lose_count = 0;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->unmounts, 1);
    assert_true(mc_uuid_eq(fake->unmounted, second.id));
}

static void test_mount_whose_answer_is_lost_stays(void **state) {
    fake->lose_rpc = MC_RPC_MountSegment;
    fake->lose_how = FAKE_LOSE_ANSWER;
    fake->lose_count = 1;
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    assert_int_equal(fresh, 0);
    assert_int_equal(fake->mounted.base, 0x7000000);
    assert_true(node.segments[0].confirmed);
}

/* The master is content with the client because of a late mount of an earlier segment. */
static void test_unconfirmed_segment_is_asked_for(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->need_remount = true;
    fake->knows_segment = false;
    fake->lose_rpc = MC_RPC_ReMountSegment;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 1;
    assert_int_equal(mc_ops_heartbeat(ops, &node), MC_RPC_TIMEOUT);
    fake->need_remount = false;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_true(node.segments[0].confirmed);
    assert_int_equal(fake->mounted.base, node.segments[0].base);
}

/* It had forgotten the client, and then carried out a mount that had been given up. */
static void test_content_master_is_asked_while_a_mount_may_be_late(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->need_remount = true;
    fake->knows_segment = false;
    fake->lose_rpc = MC_RPC_ReMountSegment;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 1;
    assert_int_equal(mc_ops_heartbeat(ops, &node), MC_RPC_TIMEOUT);
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_true(node.segments[0].confirmed);
    unsigned before = fresh;
    fake->knows_segment = false;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fresh, before + 1);
    assert_int_equal(fake->mounted.base, node.segments[0].base);
    fake->now_ns += 61 * MC_SEC;
    unsigned asked = fake->rpcs[MC_RPC_QuerySegmentStatusById];
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->rpcs[MC_RPC_QuerySegmentStatusById], asked);
}

static void test_unreachable_master_is_an_error(void **state) {
    assert_ok(mc_ops_mount(ops, &node, &node.segments[0]));
    fake->lose_rpc = MC_RPC_Ping;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 1;
    assert_int_equal(mc_ops_heartbeat(ops, &node), MC_RPC_TIMEOUT);
    assert_ok(mc_ops_heartbeat(ops, &node));
}

static void test_without_a_segment_the_master_need_not_know_us(void **state) {
    node.segment_count = 0;
    assert_ok(mc_ops_heartbeat(ops, &node));
    assert_int_equal(fake->rpcs[MC_RPC_Ping], 0);
    assert_int_equal(fake->rpcs[MC_RPC_ServiceReady], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_mount_tells_where_the_memory_is),
        T(test_known_segment_stays),
        T(test_a_master_that_restarts_after_it_was_asked_gets_fresh_memory),
        T(test_forgotten_segment_is_replaced),
        T(test_segment_that_is_taken_down_is_replaced),
        T(test_ghost_of_an_unanswered_mount_is_unmounted),
        T(test_unanswered_mount_is_not_repeated_with_the_same_memory),
        T(test_mount_that_was_given_up_is_unmounted_if_it_comes_late),
        T(test_mount_whose_answer_is_lost_stays),
        T(test_unconfirmed_segment_is_asked_for),
        T(test_content_master_is_asked_while_a_mount_may_be_late),
        T(test_unreachable_master_is_an_error),
        T(test_without_a_segment_the_master_need_not_know_us),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
