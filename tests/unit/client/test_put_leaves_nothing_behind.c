/*
 * A put ends in one of three ways: readable everywhere, revoked, or in doubt and left to the
 * master. Never a success that is not one, never a half-written object, never a space given away
 * while bytes may still arrive in it.
 */
#include "support/fake_port.h"
#include "support/support.h"

static struct fake_port *fake;
static struct mc_ops *ops;

static int setup(void **state) {
    fake = fake_create();
    ops = fake_ops(fake, false);
    return 0;
}
static int teardown(void **state) {
    mc_ops_destroy(ops);
    fake_destroy(fake);
    return 0;
}

static enum mc_status put_as(const char *key, void *value, size_t length, uint64_t replicas,
                             bool upsert) {
    struct mc_slice slice = {value, length};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    struct mc_replicate_config config = {.replica_num = replicas};
    assert_ok(mc_ops_put(ops, &item, 1, &config, upsert));
    return item.status;
}
static enum mc_status put(const char *key, void *value, size_t length, uint64_t replicas) {
    return put_as(key, value, length, replicas, false);
}

static void verify(const char *key, size_t length, uint64_t seed) {
    uint8_t *got = calloc(1, length);
    struct mc_slice slice = {got, length};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    assert_ok(mc_ops_get(ops, &item, 1));
    assert_ok(item.status);
    assert_int_equal(item.length, length);
    mc_test_verify(got, length, seed);
    free(got);
}

static void test_writes_every_replica(void **state) {
    uint8_t value[1000];
    mc_test_fill(value, sizeof(value), 1);
    assert_ok(put("k", value, sizeof(value), 3));
    struct fake_object *object = fake_find(fake, "k");
    assert_non_null(object);
    assert_true(object->complete);
    assert_int_equal(object->replica_count, 3);
    for (size_t i = 0; i < 3; i++) {
        mc_test_verify(&fake->memory[object->node[i]][object->offset[i]], sizeof(value), 1);
    }
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->written_bytes), 3 * sizeof(value));
}

static void test_existing_key_is_success_and_stays(void **state) {
    uint8_t value[64];
    mc_test_fill(value, sizeof(value), 1);
    assert_ok(put("k", value, sizeof(value), 1));
    mc_test_fill(value, sizeof(value), 2);
    assert_ok(put("k", value, sizeof(value), 1));
    verify("k", sizeof(value), 1);
    assert_ok(put_as("k", value, sizeof(value), 1, true));
    verify("k", sizeof(value), 2);
}

static void fail_all_nodes(void) {
    for (size_t i = 0; i < FAKE_NODES; i++) {
        fake->node_status[i] = MC_ERR_UNREACHABLE;
    }
}

static void test_failed_replica_revokes(void **state) {
    uint8_t value[64] = {0};
    fail_all_nodes();
    assert_int_equal(put("k", value, sizeof(value), 2), MC_TRANSFER_FAIL);
    assert_null(fake_find(fake, "k"));
    assert_int_equal(fake->rpcs[MC_RPC_PutRevoke], fake->rpcs[MC_RPC_PutStart] - 1);
    assert_int_equal(fake->rpcs[MC_RPC_PutEnd], 0);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->put_failures), 1);
}

static void test_write_in_doubt_is_not_revoked(void **state) {
    uint8_t value[64] = {0};
    fake->node_status[0] = MC_ERR_TIMEOUT;
    fake->node_status[1] = MC_ERR_UNREACHABLE; /* must not turn doubt into certainty */
    assert_int_equal(put("k", value, sizeof(value), 2), MC_TRANSFER_FAIL);
    struct fake_object *object = fake_find(fake, "k");
    assert_non_null(object);
    assert_false(object->complete);
    assert_int_equal(fake->rpcs[MC_RPC_PutRevoke], 0);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->puts_abandoned), 1);
}

static void test_lost_start_answer_is_revoked(void **state) {
    uint8_t value[64] = {0};
    fake->lose_rpc = MC_RPC_PutStart;
    fake->lose_how = FAKE_LOSE_ANSWER;
    fake->lose_count = 1;
    assert_int_equal(put("k", value, sizeof(value), 1), MC_RPC_TIMEOUT);
    assert_null(fake_find(fake, "k"));
    assert_int_equal(fake->moves, 0);
    /* Asking twice would meet its own first try. */
    assert_int_equal(fake->rpcs[MC_RPC_PutStart], 1);
}

static void test_lost_end_answer_is_asked_again(void **state) {
    uint8_t value[64];
    mc_test_fill(value, sizeof(value), 1);
    fake->lose_rpc = MC_RPC_PutEnd;
    fake->lose_how = FAKE_LOSE_ANSWER;
    fake->lose_count = 2;
    assert_ok(put("k", value, sizeof(value), 1));
    assert_int_equal(fake->rpcs[MC_RPC_PutEnd], 3);
    verify("k", sizeof(value), 1);
}

static void test_end_that_never_arrives_is_revoked(void **state) {
    uint8_t value[64] = {0};
    fake->lose_rpc = MC_RPC_PutEnd;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 100;
    assert_int_equal(put("k", value, sizeof(value), 1), MC_RPC_TIMEOUT);
    assert_int_equal(fake->rpcs[MC_RPC_PutEnd], 3);
    assert_null(fake_find(fake, "k"));
}

static void test_lost_revoke_is_asked_again(void **state) {
    uint8_t value[64] = {0};
    fail_all_nodes();
    fake->lose_rpc = MC_RPC_PutRevoke;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 1;
    assert_int_equal(put("k", value, sizeof(value), 1), MC_TRANSFER_FAIL);
    assert_null(fake_find(fake, "k"));
}

/* Between our start and our end the master gave the key to another writer. */
static void pre_empt(struct fake_port *f) {
    struct fake_object *object = fake_find(f, "k");
    object->writer = (struct mc_uuid){99, 99};
}
static void test_end_of_another_put_is_refused(void **state) {
    uint8_t value[64] = {0};
    fake->during_move = pre_empt;
    assert_int_equal(put("k", value, sizeof(value), 1), MC_ILLEGAL_CLIENT);
    struct fake_object *object = fake_find(fake, "k"); /* still the other writer's */
    assert_non_null(object);
    assert_false(object->complete);
}

static void test_each_put_has_its_own_writer_id(void **state) {
    uint8_t value[64] = {0};
    assert_ok(put("a", value, sizeof(value), 1));
    assert_ok(put("b", value, sizeof(value), 1));
    struct mc_uuid a = fake_find(fake, "a")->writer;
    struct mc_uuid b = fake_find(fake, "b")->writer;
    assert_false(mc_uuid_eq(a, b));
    assert_int_equal(a.hi, 7);
    assert_int_equal(b.hi, 7);
}

static void test_arguments(void **state) {
    uint8_t value[64] = {0};
    char *long_key = malloc(MC_STORE_KEY_MAX + 2);
    memset(long_key, 'x', MC_STORE_KEY_MAX + 1);
    long_key[MC_STORE_KEY_MAX + 1] = '\0';
    assert_int_equal(put(long_key, value, 1, 1), MC_INVALID_KEY);
    long_key[MC_STORE_KEY_MAX] = '\0';
    assert_ok(put(long_key, value, 1, 1));
    free(long_key);
    assert_int_equal(put("", value, 1, 1), MC_INVALID_KEY);
    assert_int_equal(put(NULL, value, 1, 1), MC_INVALID_KEY);
    assert_int_equal(put("zero", value, 0, 1), MC_INVALID_PARAMS);
    assert_int_equal(put("null", NULL, 5, 1), MC_INVALID_PARAMS);
    assert_int_equal(put("huge", value, FAKE_NODE_BYTES + 1, 1), MC_NO_AVAILABLE_HANDLE);
    struct mc_slice wrap[2] = {{value, SIZE_MAX}, {value, 2}};
    struct mc_store_item item = {.key = "wrap", .slices = wrap, .slice_count = 2};
    assert_ok(mc_ops_put(ops, &item, 1, NULL, false));
    assert_int_equal(item.status, MC_INVALID_PARAMS);
    const char *group = "g";
    struct mc_replicate_config groups = {.group_ids = &group, .group_id_count = 1};
    struct mc_store_item two[2] = {item, item};
    assert_int_equal(mc_ops_put(ops, two, 2, &groups, false), MC_INVALID_PARAMS);
    assert_int_equal(fake_unfinished(fake), 0);
}

static void test_pieces_become_one_value(void **state) {
    uint8_t value[300];
    mc_test_fill(value, sizeof(value), 5);
    struct mc_slice slices[4] = {{value, 100}, {value + 100, 1}, {NULL, 0}, {value + 101, 199}};
    struct mc_store_item item = {.key = "k", .slices = slices, .slice_count = 4};
    assert_ok(mc_ops_put(ops, &item, 1, NULL, false));
    assert_ok(item.status);
    verify("k", sizeof(value), 5);
}

static void test_older_master_is_spoken_to(void **state) {
    uint8_t value[64];
    mc_test_fill(value, sizeof(value), 1);
    fake->old_schema = MC_RPC_MAX_VERSIONS;
    assert_ok(put("k", value, sizeof(value), 2));
    verify("k", sizeof(value), 1);
    unsigned starts = fake->rpcs[MC_RPC_PutStart];
    assert_ok(put("l", value, sizeof(value), 2));
    assert_int_equal(fake->rpcs[MC_RPC_PutStart], starts + 1); /* remembered */
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_writes_every_replica),
        T(test_existing_key_is_success_and_stays),
        T(test_failed_replica_revokes),
        T(test_write_in_doubt_is_not_revoked),
        T(test_lost_start_answer_is_revoked),
        T(test_lost_end_answer_is_asked_again),
        T(test_end_that_never_arrives_is_revoked),
        T(test_lost_revoke_is_asked_again),
        T(test_end_of_another_put_is_refused),
        T(test_each_put_has_its_own_writer_id),
        T(test_arguments),
        T(test_pieces_become_one_value),
        T(test_older_master_is_spoken_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
