/*
 * Sessions and ranges: an object written piece by piece is readable after its end and not before;
 * reads of parts return those parts of one object or an error; what is left open leaves nothing
 * behind that another object could meet.
 */
#include <stdio.h>

#include "client/checksum.h"
#include "client/session.h"
#include "support/fake_port.h"
#include "support/support.h"

static struct fake_port *fake;
static struct mc_ops *ops;

static int setup(void **state) {
    fake = fake_create();
    ops = fake_ops(fake, true);
    return 0;
}
static int teardown(void **state) {
    mc_ops_destroy(ops);
    fake_destroy(fake);
    return 0;
}

static enum mc_status start(const char *key, uint64_t size) {
    enum mc_status result;
    struct mc_replicate_config config = {.replica_num = 2};
    assert_ok(mc_ops_put_session_start(ops, &key, &size, 1, &config, &result));
    return result;
}
static enum mc_status write_part(const char *key, void *from, size_t length, uint64_t offset) {
    struct mc_store_range range = {.ptr = from, .length = length, .offset = offset};
    struct mc_store_range_item item = {.key = key, .ranges = &range, .range_count = 1};
    assert_ok(mc_ops_put_session_write(ops, &item, 1));
    assert_int_equal(item.length, item.status == MC_OK ? length : 0);
    assert_int_equal(range.status, item.status);
    return item.status;
}
static enum mc_status end(const char *key) {
    enum mc_status result;
    assert_ok(mc_ops_put_session_end(ops, &key, 1, &result));
    return result;
}
static enum mc_status revoke(const char *key) {
    enum mc_status result;
    assert_ok(mc_ops_put_session_revoke(ops, &key, 1, &result));
    return result;
}
static enum mc_status begin_get(const char *key) {
    enum mc_status result;
    assert_ok(mc_ops_get_session_start(ops, &key, 1, &result));
    return result;
}
static enum mc_status read_part(const char *key, void *to, size_t length, uint64_t offset) {
    struct mc_store_range range = {.ptr = to, .length = length, .offset = offset};
    struct mc_store_range_item item = {.key = key, .ranges = &range, .range_count = 1};
    assert_ok(mc_ops_get_session_read(ops, &item, 1));
    assert_int_equal(item.length, item.status == MC_OK ? length : 0);
    return item.status;
}
static void verify_whole(const char *key, size_t length, uint64_t seed) {
    uint8_t *got = calloc(1, length);
    struct mc_slice slice = {got, length};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    assert_ok(mc_ops_get(ops, &item, 1));
    assert_ok(item.status);
    assert_int_equal(item.length, length);
    mc_test_verify(got, length, seed);
    free(got);
}

static void test_pieces_in_any_order_become_the_object(void **state) {
    uint8_t value[3000];
    mc_test_fill(value, sizeof(value), 1);
    assert_ok(start("k", sizeof(value)));
    assert_ok(write_part("k", value + 2000, 1000, 2000));
    assert_ok(write_part("k", value, 1, 0));
    assert_false(fake_find(fake, "k")->complete);
    struct mc_store_range ranges[2] = {{value + 1, 1500, 1, MC_OK},
                                       {value + 1501, 499, 1501, MC_OK}};
    struct mc_store_range_item item = {.key = "k", .ranges = ranges, .range_count = 2};
    assert_ok(mc_ops_put_session_write(ops, &item, 1));
    assert_ok(item.status);
    assert_int_equal(item.length, 1999);
    assert_ok(end("k"));
    struct fake_object *object = fake_find(fake, "k");
    for (size_t i = 0; i < 2; i++) {
        mc_test_verify(&fake->memory[object->node[i]][object->offset[i]], sizeof(value), 1);
    }
    verify_whole("k", sizeof(value), 1);
    struct mc_slice whole = {value, sizeof(value)};
    assert_true(object->checksum.has &&
                object->checksum.value == mc_checksum_slices(&whole, 1, sizeof(value)));
}

/* Of bytes that were written twice, or not at all, nobody knows what lies there. */
static void test_a_checksum_needs_each_byte_once(void **state) {
    uint8_t value[100];
    mc_test_fill(value, sizeof(value), 1);
    assert_ok(start("twice", 100));
    assert_ok(write_part("twice", value, 100, 0));
    assert_ok(write_part("twice", value + 99, 1, 99));
    assert_ok(end("twice"));
    assert_ok(start("hole", 100));
    assert_ok(write_part("hole", value, 49, 0));
    assert_ok(write_part("hole", value + 50, 50, 50));
    assert_ok(end("hole"));
    assert_false(fake_find(fake, "twice")->checksum.has || fake_find(fake, "hole")->checksum.has);
    struct mc_rng rng;
    mc_rng_seed(&rng, 3);
    for (unsigned round = 0; round < 100; round++) { /* single bytes in any order */
        struct mc_session_sum sum = {0};
        bool written[64] = {0};
        for (unsigned left = 64; left > 0;) {
            uint64_t at = mc_rng_below(&rng, 64);
            assert_false(mc_session_sum_known(&sum, 64));
            if (!written[at]) {
                written[at] = true;
                left--;
                mc_session_sum_add(&sum, at, at + 1, 1ull << at);
            }
        }
        assert_true(mc_session_sum_known(&sum, 64) && sum.checksum == UINT64_MAX);
        mc_session_sum_add(&sum, 10, 20, 0);
        assert_false(mc_session_sum_known(&sum, 64));
        free(sum.parts);
    }
    struct mc_session_sum sum = {0};
    for (uint64_t i = 0; i <= MC_SESSION_PARTS_MAX; i++) {
        assert_false(sum.lost);
        mc_session_sum_add(&sum, 2 * i, 2 * i + 1, 0);
    }
    assert_true(sum.lost);
    free(sum.parts);
}

static void test_a_session_is_one_a_key_and_ends_once(void **state) {
    uint8_t value[10] = {0};
    assert_ok(start("k", 10));
    assert_int_equal(start("k", 10), MC_INVALID_PARAMS);
    assert_int_equal(start("zero", 0), MC_INVALID_PARAMS);
    assert_int_equal(start("", 10), MC_INVALID_KEY);
    assert_int_equal(write_part("other", value, 1, 0), MC_INVALID_PARAMS);
    assert_int_equal(end("other"), MC_INVALID_PARAMS);
    assert_ok(end("k"));
    assert_int_equal(end("k"), MC_INVALID_PARAMS);
    assert_int_equal(revoke("k"), MC_INVALID_PARAMS);
    assert_int_equal(start("k", 10), MC_OBJECT_ALREADY_EXISTS);
    const char *twice[2] = {"q", "q"};
    const uint64_t sizes[2] = {10, 10};
    enum mc_status results[2];
    assert_ok(mc_ops_put_session_start(ops, twice, sizes, 2, NULL, results));
    assert_ok(results[0]);
    assert_int_equal(results[1], MC_OBJECT_ALREADY_EXISTS);
    assert_ok(revoke("q"));
    assert_null(fake_find(fake, "q"));
}

static void test_ranges_stay_inside_the_reservation(void **state) {
    uint8_t value[20] = {0};
    assert_ok(start("k", 10));
    assert_int_equal(write_part("k", value, 11, 0), MC_INVALID_PARAMS);
    assert_int_equal(write_part("k", value, 1, 10), MC_INVALID_PARAMS);
    assert_int_equal(write_part("k", value, 2, UINT64_MAX), MC_INVALID_PARAMS);
    assert_int_equal(write_part("k", NULL, 1, 0), MC_INVALID_PARAMS);
    assert_int_equal(fake->moves, 0);
    assert_ok(write_part("k", value, 0, 10));
    assert_ok(write_part("k", value, 10, 0));
    assert_ok(revoke("k"));
    assert_null(fake_find(fake, "k"));
}

static void test_a_batch_of_sessions_is_few_requests(void **state) {
    const char *keys[100];
    uint64_t sizes[100];
    enum mc_status results[100];
    char names[100][8];
    for (size_t i = 0; i < 100; i++) {
        snprintf(names[i], sizeof(names[i]), "k%zu", i);
        keys[i] = names[i];
        sizes[i] = 16;
    }
    assert_ok(mc_ops_put_session_start(ops, keys, sizes, 100, NULL, results));
    assert_int_equal(fake->rpcs[MC_RPC_BatchPutStart], 1);
    assert_ok(start("another", 16));
    keys[50] = "another";
    assert_ok(mc_ops_put_session_end(ops, keys, 100, results));
    for (size_t i = 0; i < 100; i++) {
        assert_ok(results[i]);
        assert_true(fake_find(fake, keys[i])->complete);
    }
    assert_int_equal(fake->rpcs[MC_RPC_BatchPutEnd], 2); /* one a writer */
    assert_int_equal(fake_unfinished(fake), 1);          /* k50 */
    mc_ops_put_session_revoke_all(ops);
    assert_int_equal(fake_unfinished(fake), 0);
}

static void test_a_write_in_doubt_is_neither_ended_nor_given_away(void **state) {
    uint8_t value[10] = {0};
    assert_ok(start("k", 10));
    fake->node_status[1] = MC_ERR_TIMEOUT;
    assert_int_equal(write_part("k", value, 10, 0), MC_TRANSFER_FAIL);
    fake->node_status[1] = MC_OK;
    assert_int_equal(write_part("k", value, 10, 0), MC_TRANSFER_FAIL);
    assert_int_equal(end("k"), MC_TRANSFER_FAIL);
    assert_ok(revoke("k"));
    assert_int_equal(fake->rpcs[MC_RPC_BatchPutRevoke], 0);
    assert_int_equal(fake_unfinished(fake), 1);
    assert_int_equal(end("k"), MC_INVALID_PARAMS);
}

static void test_a_failed_write_can_be_written_again(void **state) {
    uint8_t value[100];
    mc_test_fill(value, sizeof(value), 3);
    assert_ok(start("k", sizeof(value)));
    fake->node_status[1] = MC_ERR_UNREACHABLE;
    assert_int_equal(write_part("k", value, sizeof(value), 0), MC_TRANSFER_FAIL);
    fake->node_status[1] = MC_OK;
    assert_ok(write_part("k", value, sizeof(value), 0));
    assert_ok(end("k"));
    verify_whole("k", sizeof(value), 3);
}

static void test_a_session_outlives_an_end_without_answer(void **state) {
    uint8_t value[10];
    mc_test_fill(value, sizeof(value), 1);
    assert_ok(start("k", 10));
    assert_ok(write_part("k", value, 10, 0));
    fake->lose_rpc = MC_RPC_BatchPutEnd;
    fake->lose_how = FAKE_LOSE_REQUEST;
    fake->lose_count = 3;
    assert_int_equal(end("k"), MC_RPC_TIMEOUT);
    assert_ok(end("k"));
    verify_whole("k", 10, 1);
}

static void test_a_lost_start_answer_is_taken_back(void **state) {
    fake->lose_rpc = MC_RPC_BatchPutStart;
    fake->lose_how = FAKE_LOSE_ANSWER;
    fake->lose_count = 1;
    assert_int_equal(start("k", 10), MC_RPC_TIMEOUT);
    assert_null(fake_find(fake, "k"));
    assert_ok(start("k", 10));
}

static void test_an_old_session_is_not_written_any_more(void **state) {
    uint8_t value[10] = {0};
    assert_ok(start("k", 10));
    fake->now_ns += MC_STORE_PUT_SESSION_S * MC_SEC;
    assert_int_equal(write_part("k", value, 10, 0), MC_LEASE_EXPIRED);
    assert_int_equal(fake->moves, 0);
    assert_ok(revoke("k"));
}

static enum mc_status seen_during_move;
static void end_during_move(struct fake_port *f) {
    seen_during_move = end("k");
    if (seen_during_move == MC_OBJECT_REPLICA_BUSY) {
        seen_during_move = revoke("k");
    }
}
static void test_a_session_being_written_is_not_ended(void **state) {
    uint8_t value[10] = {0};
    assert_ok(start("k", 10));
    fake->during_move = end_during_move;
    assert_ok(write_part("k", value, 10, 0));
    fake->during_move = NULL;
    assert_int_equal(seen_during_move, MC_OBJECT_REPLICA_BUSY);
    assert_ok(end("k"));
}

/* ---- reading ---- */

static const size_t BOTH[2] = {0, 1};

static void test_ranges_of_many_objects(void **state) {
    uint8_t a[1000], b[500], out[600] = {0};
    mc_test_fill(a, sizeof(a), 1);
    mc_test_fill(b, sizeof(b), 2);
    fake_store(fake, "a", a, sizeof(a), BOTH, 2);
    fake_store(fake, "b", b, sizeof(b), BOTH, 1);
    struct mc_store_range of_a[3] = {
        {out, 100, 900, MC_OK}, {out + 100, 200, 801, MC_OK}, {out + 300, 100, 0, MC_OK}};
    struct mc_store_range of_none[1] = {{out, 1, 0, MC_OK}};
    struct mc_store_range of_b[2] = {{out + 400, 100, 400, MC_OK}, {NULL, 0, 0, MC_OK}};
    struct mc_store_range_item items[3] = {{.key = "a", .ranges = of_a, .range_count = 3},
                                           {.key = "none", .ranges = of_none, .range_count = 1},
                                           {.key = "b", .ranges = of_b, .range_count = 2}};
    assert_ok(mc_ops_get_ranges(ops, items, 3));
    assert_ok(items[0].status);
    assert_int_equal(items[0].length, 200);
    assert_ok(of_a[0].status);
    assert_int_equal(of_a[1].status, MC_INVALID_PARAMS); /* one byte too far */
    assert_memory_equal(out, a + 900, 100);
    assert_memory_equal(out + 300, a, 100);
    assert_int_equal(items[1].status, MC_OBJECT_NOT_FOUND);
    assert_int_equal(of_none[0].status, MC_OBJECT_NOT_FOUND);
    assert_ok(items[2].status);
    assert_memory_equal(out + 400, b + 400, 100);
    for (size_t i = 100; i < 300; i++) {
        assert_int_equal(out[i], 0);
    }
    assert_int_equal(fake->rpcs[MC_RPC_BatchGetReplicaList], 1);
}

static void test_a_failed_replica_is_replaced_and_the_whole_is_verified(void **state) {
    uint8_t value[100], out[100];
    mc_test_fill(value, sizeof(value), 1);
    struct mc_slice slice = {value, sizeof(value)};
    struct mc_store_item put = {.key = "k", .slices = &slice, .slice_count = 1};
    struct mc_replicate_config config = {.replica_num = 2};
    assert_ok(mc_ops_put(ops, &put, 1, &config, false));
    assert_ok(put.status);
    fake->corrupt_node[0] = true;
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->distance[1] = MC_DISTANCE_NETWORK;
    struct mc_store_range halves[2] = {{out, 50, 0, MC_OK}, {out + 50, 50, 50, MC_OK}};
    struct mc_store_range_item item = {.key = "k", .ranges = halves, .range_count = 2};
    assert_ok(mc_ops_get_ranges(ops, &item, 1));
    assert_ok(item.status);
    mc_test_verify(out, sizeof(out), 1);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->checksum_mismatches), 1);
    fake->corrupt_node[0] = false;
    fake->node_status[0] = MC_ERR_UNREACHABLE;
    memset(out, 0, sizeof(out));
    struct mc_store_range part = {out, 10, 90, MC_OK};
    item = (struct mc_store_range_item){.key = "k", .ranges = &part, .range_count = 1};
    assert_ok(mc_ops_get_ranges(ops, &item, 1));
    assert_ok(item.status);
    assert_memory_equal(out, value + 90, 10);
}

static void test_a_get_session_reads_one_object(void **state) {
    uint8_t value[1000], out[1000] = {0};
    mc_test_fill(value, sizeof(value), 1);
    fake_store(fake, "k", value, sizeof(value), BOTH, 2);
    assert_int_equal(begin_get("none"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(read_part("k", out, 10, 0), MC_INVALID_PARAMS);
    assert_ok(begin_get("k"));
    unsigned asked = fake->rpcs[MC_RPC_BatchGetReplicaList];
    for (size_t i = 0; i < 1000; i += 100) {
        assert_ok(read_part("k", out + i, 100, i));
    }
    mc_test_verify(out, sizeof(out), 1);
    assert_int_equal(fake->rpcs[MC_RPC_BatchGetReplicaList] + fake->rpcs[MC_RPC_GetReplicaList],
                     asked); /* the session knows where */
    assert_int_equal(read_part("k", out, 1, 1000), MC_INVALID_PARAMS);
    const char *key = "k";
    assert_ok(mc_ops_get_session_end(ops, &key, 1));
    assert_int_equal(read_part("k", out, 10, 0), MC_INVALID_PARAMS);
}

static void test_a_get_session_is_renewed_by_reads_and_lost_with_its_lease(void **state) {
    uint8_t value[100], out[100];
    mc_test_fill(value, sizeof(value), 1);
    fake_store(fake, "k", value, sizeof(value), BOTH, 2);
    assert_ok(begin_get("k"));
    for (unsigned i = 0; i < 5; i++) {
        fake->now_ns += FAKE_LEASE_MS * MC_MS * 6 / 10;
        assert_ok(read_part("k", out, 100, 0));
        mc_test_verify(out, sizeof(out), 1);
    }
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->leases_renewed), 5);
    fake->now_ns += FAKE_LEASE_MS * MC_MS;
    assert_int_equal(read_part("k", out, 100, 0), MC_LEASE_EXPIRED);
    assert_int_equal(read_part("k", out, 100, 0), MC_INVALID_PARAMS);
    assert_ok(begin_get("k"));
    assert_ok(read_part("k", out, 100, 0));
}

static void test_a_get_session_never_shows_the_next_object(void **state) {
    uint8_t value[100], other[100], out[100];
    mc_test_fill(value, sizeof(value), 1);
    mc_test_fill(other, sizeof(other), 2);
    fake_store(fake, "k", value, sizeof(value), BOTH, 2);
    assert_ok(begin_get("k"));
    fake_erase(fake, "k");
    fake_store(fake, "k", other, sizeof(other), BOTH, 2);
    fake->now_ns += FAKE_LEASE_MS * MC_MS * 6 / 10; /* a read has to renew */
    assert_int_equal(read_part("k", out, 100, 0), MC_LEASE_EXPIRED);
}

static void test_a_get_session_goes_to_the_other_replica(void **state) {
    uint8_t value[100], out[100];
    mc_test_fill(value, sizeof(value), 1);
    fake_store(fake, "k", value, sizeof(value), BOTH, 2);
    assert_ok(begin_get("k"));
    fake->node_status[0] = MC_ERR_UNREACHABLE;
    for (unsigned i = 0; i < 4; i++) {
        memset(out, 0, sizeof(out));
        assert_ok(read_part("k", out, 100, 0));
        mc_test_verify(out, sizeof(out), 1);
    }
    fake->node_status[1] = MC_ERR_UNREACHABLE;
    assert_int_equal(read_part("k", out, 100, 0), MC_TRANSFER_FAIL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_pieces_in_any_order_become_the_object),
        T(test_a_checksum_needs_each_byte_once),
        T(test_a_session_is_one_a_key_and_ends_once),
        T(test_ranges_stay_inside_the_reservation),
        T(test_a_batch_of_sessions_is_few_requests),
        T(test_a_write_in_doubt_is_neither_ended_nor_given_away),
        T(test_a_failed_write_can_be_written_again),
        T(test_a_session_outlives_an_end_without_answer),
        T(test_a_lost_start_answer_is_taken_back),
        T(test_an_old_session_is_not_written_any_more),
        T(test_a_session_being_written_is_not_ended),
        T(test_ranges_of_many_objects),
        T(test_a_failed_replica_is_replaced_and_the_whole_is_verified),
        T(test_a_get_session_reads_one_object),
        T(test_a_get_session_is_renewed_by_reads_and_lost_with_its_lease),
        T(test_a_get_session_never_shows_the_next_object),
        T(test_a_get_session_goes_to_the_other_replica),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
