/*
 * A put whose node cannot be written to is placed on another one while there is time; a put of a
 * key that somebody else is writing is a success only when the key can be read. The application
 * sees no error that another try would have healed, and no success that is none.
 */
#include "support/fake_port.h"
#include "support/support.h"

#include <stdio.h>

static struct fake_port *fake;
static struct mc_ops *ops;

static int setup(void **state) {
    fake = fake_create();
    ops = fake_ops(fake, false);
    return 0;
}
static int teardown(void **state) {
    assert_int_equal(fake_unfinished(fake), 0);
    mc_ops_destroy(ops);
    fake_destroy(fake);
    return 0;
}

static enum mc_status put_as(const char *key, uint64_t seed, uint64_t replicas, bool upsert) {
    uint8_t value[100];
    mc_test_fill(value, sizeof(value), seed);
    struct mc_slice slice = {value, sizeof(value)};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    struct mc_replicate_config config = {.replica_num = replicas};
    assert_ok(mc_ops_put(ops, &item, 1, &config, upsert));
    return item.status;
}
static enum mc_status put(const char *key, uint64_t seed) {
    return put_as(key, seed, 1, false);
}

static void verify(const char *key, uint64_t seed) {
    uint8_t got[100] = {0};
    struct mc_slice slice = {got, sizeof(got)};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    assert_ok(mc_ops_get(ops, &item, 1));
    assert_ok(item.status);
    assert_int_equal(item.length, sizeof(got));
    mc_test_verify(got, sizeof(got), seed);
}

/* ---- nodes that cannot be written to ---- */

static void test_the_next_node_takes_it(void **state) {
    fake->node_status[1] = MC_ERR_UNREACHABLE;
    assert_ok(put_as("k", 1, 2, false));
    struct fake_object *object = fake_find(fake, "k");
    assert_int_equal(object->replica_count, 2);
    assert_int_equal(object->node[0], 0);
    assert_int_equal(object->node[1], 2);
    mc_test_verify(&fake->memory[0][object->offset[0]], 100, 1);
    mc_test_verify(&fake->memory[2][object->offset[1]], 100, 1);
    assert_int_equal(fake->rpcs[MC_RPC_PutStart], 2);
    assert_int_equal(fake->rpcs[MC_RPC_PutRevoke], 1);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->puts_replaced), 1);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->put_failures), 0);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->puts), 1);
}

static void test_later_puts_avoid_it_for_a_while(void **state) {
    fake->node_status[0] = MC_ERR_UNREACHABLE;
    assert_ok(put("a", 1));
    assert_int_equal(fake->node_writes[0], 1);
    assert_ok(put("b", 2));
    assert_int_equal(fake->node_writes[0], 1);
    fake->node_status[0] = MC_OK;
    fake->now_ns += 10 * MC_SEC;
    assert_ok(put("c", 3));
    assert_int_equal(fake->node_writes[0], 2);
    verify("a", 1);
    verify("b", 2);
    verify("c", 3);
}

static void test_an_upsert_goes_elsewhere_too(void **state) {
    assert_ok(put_as("k", 1, 1, true));
    fake->node_status[0] = MC_ERR_CLOSED;
    assert_ok(put_as("k", 2, 1, true));
    assert_int_equal(fake->rpcs[MC_RPC_UpsertRevoke], 1);
    verify("k", 2);
}

static void test_an_avoided_node_is_taken_when_the_others_are_full(void **state) {
    fake->node_status[0] = MC_ERR_UNREACHABLE;
    assert_ok(put("a", 1));
    fake->node_status[0] = MC_OK;
    fake->used[1] = fake->used[2] = FAKE_NODE_BYTES;
    assert_ok(put("b", 2));
    assert_int_equal(fake_find(fake, "b")->node[0], 0);
    verify("b", 2);
}

/* Upstream's passes over the hint: chance and time have to do. */
static void test_a_master_that_places_there_again_is_asked_again(void **state) {
    fake->passes_over_hints = true;
    fake->node_status[0] = fake->node_status[1] = MC_ERR_UNREACHABLE;
    for (uint64_t i = 0; i < 6; i++) {
        char key[8];
        snprintf(key, sizeof(key), "k%llu", (unsigned long long)i);
        assert_ok(put(key, i));
        verify(key, i);
    }
}

static void test_it_ends_with_its_deadline(void **state) {
    fake->passes_over_hints = true;
    for (size_t i = 0; i < FAKE_NODES; i++) {
        fake->node_status[i] = MC_ERR_UNREACHABLE;
    }
    uint64_t begin = fake->now_ns;
    assert_int_equal(put("k", 1), MC_TRANSFER_FAIL);
    assert_true(fake->now_ns - begin >= 29 * MC_SEC && fake->now_ns - begin <= 31 * MC_SEC);
    assert_true(fake->rpcs[MC_RPC_PutStart] < 400);
    assert_null(fake_find(fake, "k"));
}

/* Not while a late PutStart, or the revoked put itself, may still hold the key. */
static void test_without_a_revoke_it_stays_failed(void **state) {
    fake->node_status[0] = MC_ERR_UNREACHABLE;
    fake->lose_rpc = MC_RPC_PutRevoke;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 100;
    assert_int_equal(put("k", 1), MC_TRANSFER_FAIL);
    assert_int_equal(fake->rpcs[MC_RPC_PutStart], 1);
    fake_erase(fake, "k");
}

static void test_an_own_fault_is_not_tried_elsewhere(void **state) {
    fake->node_status[0] = MC_INVALID_PARAMS;
    assert_int_equal(put("k", 1), MC_TRANSFER_FAIL);
    assert_int_equal(fake->rpcs[MC_RPC_PutStart], 1);
}

/* ---- keys that somebody else is writing ---- */

static void test_a_dead_writers_key_is_no_success(void **state) {
    fake_begin(fake, "k", 100);
    uint64_t begin = fake->now_ns;
    assert_int_equal(put("k", 1), MC_REPLICA_IS_NOT_READY);
    assert_in_range(fake->now_ns - begin, 1 * MC_SEC, 3 * MC_SEC);
    assert_true(fake->rpcs[MC_RPC_PutStart] < 50);
    assert_int_equal(fake->moves, 0);
    assert_int_equal(fake_find(fake, "k")->writer.hi, 99);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->puts_contested), 1);
    fake_erase(fake, "k");
}

static unsigned asked;
static void other_ends(struct fake_port *f, enum mc_master_rpc rpc) {
    if (rpc == MC_RPC_ExistKey && ++asked == 4) {
        fake_find(f, "k")->complete = true;
    }
}
static void test_a_living_writers_key_is_waited_for(void **state) {
    asked = 0;
    fake_begin(fake, "k", 100);
    fake->before_rpc = other_ends;
    assert_ok(put("k", 1));
    assert_int_equal(asked, 4);
    assert_int_equal(fake->moves, 0);
    assert_int_equal(fake_find(fake, "k")->writer.hi, 99);
}

static void other_gives_up(struct fake_port *f, enum mc_master_rpc rpc) {
    if (rpc == MC_RPC_ExistKey && ++asked == 3) {
        fake_erase(f, "k");
    }
}
static void test_a_key_that_comes_free_is_written(void **state) {
    asked = 0;
    fake_begin(fake, "k", 100);
    fake->before_rpc = other_gives_up;
    assert_ok(put("k", 5));
    assert_int_equal(fake_find(fake, "k")->writer.hi, 7);
    verify("k", 5);
}

static void test_an_unanswered_question_is_no_success(void **state) {
    assert_ok(put("k", 1));
    fake->lose_rpc = MC_RPC_ExistKey;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 100;
    assert_int_equal(put("k", 1), MC_RPC_TIMEOUT);
}

/* ---- all of it in one batch ---- */

static void test_each_key_of_a_batch_has_its_own_fate(void **state) {
    enum { KEYS = 12 };
    static const char *names[KEYS] = {"a", "b", "c",    "d", "e", "f",
                                      "g", "a", "dead", "h", "i", "there"};
    uint8_t values[KEYS][100];
    struct mc_slice slices[KEYS];
    struct mc_store_item items[KEYS];
    assert_ok(put("there", 11));
    fake_begin(fake, "dead", 100);
    fake->node_status[0] = MC_ERR_UNREACHABLE;
    for (size_t i = 0; i < KEYS; i++) {
        mc_test_fill(values[i], 100, i == 7 ? 0 : i);
        slices[i] = (struct mc_slice){values[i], 100};
        items[i] = (struct mc_store_item){.key = names[i], .slices = &slices[i], .slice_count = 1};
    }
    assert_ok(mc_ops_put(ops, items, KEYS, NULL, false));
    fake->node_status[0] = MC_OK; /* where "there" is */
    for (size_t i = 0; i < KEYS; i++) {
        assert_int_equal(items[i].status, i == 8 ? MC_REPLICA_IS_NOT_READY : MC_OK);
        if (i != 8) {
            verify(names[i], i == 7 ? 0 : i);
        }
    }
    assert_int_equal(fake->rpcs[MC_RPC_BatchPutRevoke], 1);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->puts_replaced), 9);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->put_failures), 1);
    fake_erase(fake, "dead");
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_the_next_node_takes_it),
        T(test_later_puts_avoid_it_for_a_while),
        T(test_an_upsert_goes_elsewhere_too),
        T(test_an_avoided_node_is_taken_when_the_others_are_full),
        T(test_a_master_that_places_there_again_is_asked_again),
        T(test_it_ends_with_its_deadline),
        T(test_without_a_revoke_it_stays_failed),
        T(test_an_own_fault_is_not_tried_elsewhere),
        T(test_a_dead_writers_key_is_no_success),
        T(test_a_living_writers_key_is_waited_for),
        T(test_a_key_that_comes_free_is_written),
        T(test_an_unanswered_question_is_no_success),
        T(test_each_key_of_a_batch_has_its_own_fate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
