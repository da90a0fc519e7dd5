/* A view is valid while its lease holds, is renewed while it is open, and is lost for good when the
 * object goes. */
#include "client/checksum.h"
#include "support/fake_port.h"
#include "support/support.h"

static struct fake_port *fake;
static struct mc_ops *ops;
static const size_t NODES[] = {0, 1};
static uint8_t value[1000];

static int setup(void **state) {
    fake = fake_create();
    ops = fake_ops(fake, false);
    mc_test_fill(value, sizeof(value), 1);
    fake_store(fake, "k", value, sizeof(value), NODES, 2);
    return 0;
}
static int teardown(void **state) {
    mc_ops_destroy(ops);
    fake_destroy(fake);
    return 0;
}

static void test_only_what_can_be_mapped(void **state) {
    struct mc_ops_view view;
    assert_int_equal(mc_ops_view_open(ops, "k", &view), MC_REPLICA_NOT_IN_LOCAL_MEMORY);
    assert_int_equal(mc_ops_view_open(ops, "absent", &view), MC_OBJECT_NOT_FOUND);
    fake->distance[1] = MC_DISTANCE_HOST;
    assert_ok(mc_ops_view_open(ops, "k", &view));
    assert_int_equal(view.length, sizeof(value));
    assert_true((const uint8_t *)view.data >= fake->memory[1] &&
                (const uint8_t *)view.data < fake->memory[1] + FAKE_NODE_BYTES);
    mc_test_verify(view.data, view.length, 1);
    mc_ops_view_release(ops, view.record);
}

static void test_renewal_keeps_it(void **state) {
    struct mc_ops_view view;
    fake->distance[0] = MC_DISTANCE_HOST;
    assert_ok(mc_ops_view_open(ops, "k", &view));
    for (int i = 0; i < 100; i++) {
        uint64_t next = mc_ops_view_renew(ops);
        assert_true(next > fake->now_ns && next <= fake->now_ns + FAKE_LEASE_MS * MC_MS);
        fake->now_ns = next;
        assert_true(mc_ops_view_valid(view.record));
    }
    assert_true(fake->rpcs[MC_RPC_BatchGetReplicaList] > 50);
    fake->now_ns += FAKE_LEASE_MS * MC_MS;
    assert_false(mc_ops_view_valid(view.record));
    mc_ops_view_renew(ops); /* too late: between the two leases the bytes may have been another's */
    assert_false(mc_ops_view_valid(view.record));
    mc_ops_view_release(ops, view.record);
    assert_true(mc_ops_view_renew(ops) == MC_NO_DEADLINE);
}

static void test_object_gone_is_seen(void **state) {
    struct mc_ops_view views[2];
    fake->distance[0] = MC_DISTANCE_HOST;
    fake_store(fake, "other", value, sizeof(value), NODES, 1);
    assert_ok(mc_ops_view_open(ops, "k", &views[0]));
    assert_ok(mc_ops_view_open(ops, "other", &views[1]));
    fake_erase(fake, "k");
    fake_store(fake, "k", value, sizeof(value), NODES, 1); /* the same key, another object */
    fake->now_ns += 6 * MC_SEC;
    mc_ops_view_renew(ops);
    assert_false(mc_ops_view_valid(views[0].record));
    assert_true(mc_ops_view_valid(views[1].record));
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->views_lost), 1);
    mc_ops_view_release(ops, views[0].record);
    mc_ops_view_release(ops, views[1].record);
}

static void test_unanswered_renewal_lets_it_run_out(void **state) {
    struct mc_ops_view view;
    fake->distance[0] = MC_DISTANCE_HOST;
    assert_ok(mc_ops_view_open(ops, "k", &view));
    fake->now_ns += 6 * MC_SEC;
    fake->lose_rpc = MC_RPC_BatchGetReplicaList;
    fake->lose_count = 3;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_status = MC_RPC_FAIL;
    mc_ops_view_renew(ops);
    assert_true(mc_ops_view_valid(view.record));
    mc_ops_view_renew(ops); /* the master is back in time */
    fake->now_ns += 9 * MC_SEC;
    assert_true(mc_ops_view_valid(view.record));
    mc_ops_view_release(ops, view.record);
}

/* "k" has a checksum, and the client looks at it. */
static struct fake_object *check_sums(void) {
    struct mc_slice slice = {value, sizeof(value)};
    struct fake_object *o = fake_find(fake, "k");
    mc_ops_destroy(ops);
    ops = fake_ops(fake, true);
    o->checksum = (struct mw_opt_u64){true, mc_checksum_slices(&slice, 1, sizeof(value))};
    return o;
}

static void test_a_view_shows_what_was_written_or_nothing(void **state) {
    struct mc_ops_view view;
    struct fake_object *o = check_sums();
    fake->distance[0] = MC_DISTANCE_HOST;
    fake->distance[1] = MC_DISTANCE_HOST;
    fake->memory[0][o->offset[0] + 999] ^= 1;
    for (unsigned i = 0; i < 4; i++) { /* whichever replica comes first */
        assert_ok(mc_ops_view_open(ops, "k", &view));
        mc_test_verify(view.data, view.length, 1);
        mc_ops_view_release(ops, view.record);
    }
    assert_true(mc_metric_get(&mc_ops_counters(ops)->checksum_mismatches) > 0);
    fake->memory[1][o->offset[1]] ^= 1;
    assert_int_equal(mc_ops_view_open(ops, "k", &view), MC_CHECKSUM_MISMATCH);
    assert_int_equal(fake->mapped, 0);
}

/* One question for all; each is shown in place, or says why not. */
static void test_many_are_opened_at_once(void **state) {
    struct mc_str keys[] = {MC_STR("k"), MC_STR("absent"), MC_STR("far"), MC_STR("other")};
    struct mc_ops_view views[4] = {0};
    enum mc_status statuses[4];
    static const size_t FAR[] = {1};
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->distance[1] = MC_DISTANCE_NETWORK;
    fake_store(fake, "other", value, sizeof(value), NODES, 1);
    fake_store(fake, "far", value, sizeof(value), FAR, 1);
    mc_ops_views_open(ops, keys, 4, views, statuses);
    assert_int_equal(fake->rpcs[MC_RPC_BatchGetReplicaList], 1);
    assert_int_equal(fake->rpcs[MC_RPC_GetReplicaList], 0);
    assert_int_equal(statuses[1], MC_OBJECT_NOT_FOUND);
    assert_int_equal(statuses[2], MC_REPLICA_NOT_IN_LOCAL_MEMORY);
    assert_null(views[1].record);
    assert_null(views[2].record);
    for (unsigned i = 0; i < 4; i += 3) {
        assert_ok(statuses[i]);
        assert_int_equal(views[i].length, sizeof(value));
        mc_test_verify(views[i].data, views[i].length, 1);
        assert_true(mc_ops_view_valid(views[i].record));
    }
    fake->now_ns += FAKE_LEASE_MS * MC_MS;
    assert_false(mc_ops_view_valid(views[0].record));
    mc_ops_view_renew(ops);
    mc_ops_view_release(ops, views[0].record);
    mc_ops_view_release(ops, views[3].record);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->views_opened), 0); /* no program's */
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->views_lost), 0);
    assert_int_equal(fake->mapped, 0);
}

static void answer_late(struct fake_port *f, enum mc_master_rpc rpc) {
    f->now_ns += FAKE_LEASE_MS * MC_MS;
}

/* What is in the object's place after its lease is another's, and no damage. */
static void test_an_answer_after_the_lease_blames_no_bytes(void **state) {
    struct mc_ops_view view;
    struct fake_object *o = check_sums();
    fake->distance[0] = MC_DISTANCE_HOST;
    fake->memory[0][o->offset[0]] ^= 1;
    fake->after_rpc = answer_late;
    assert_int_equal(mc_ops_view_open(ops, "k", &view), MC_LEASE_EXPIRED);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->checksum_mismatches), 0);
    fake->after_rpc = NULL;
    assert_int_equal(mc_ops_view_open(ops, "k", &view), MC_CHECKSUM_MISMATCH);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->checksum_mismatches), 1);
    assert_int_equal(fake->mapped, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_only_what_can_be_mapped),
        T(test_renewal_keeps_it),
        T(test_object_gone_is_seen),
        T(test_unanswered_renewal_lets_it_run_out),
        T(test_a_view_shows_what_was_written_or_nothing),
        T(test_many_are_opened_at_once),
        T(test_an_answer_after_the_lease_blames_no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
