/*
 * A get returns the bytes of the object, from whatever replica still has them, or an error: never a
 * part, never bytes that the lease did not cover, never bytes that the checksum denies.
 */
#include <stdio.h>

#include "client/checksum.h"
#include "support/fake_port.h"
#include "support/support.h"

static struct fake_port *fake;
static struct mc_ops *ops;

static int setup_with(bool checksum) {
    fake = fake_create();
    ops = fake_ops(fake, checksum);
    return 0;
}
static int setup(void **state) {
    return setup_with(false);
}
static int setup_checksum(void **state) {
    return setup_with(true);
}
static int teardown(void **state) {
    mc_ops_destroy(ops);
    fake_destroy(fake);
    return 0;
}

static const size_t NODES[] = {0, 1, 2};
static uint8_t value[4096];
static uint8_t got[4096];

static void store(const char *key, size_t size, size_t replicas, uint64_t seed) {
    mc_test_fill(value, size, seed);
    fake_store(fake, key, value, size, NODES, replicas);
}

static enum mc_status get(const char *key, size_t capacity, size_t *length) {
    memset(got, 0xee, sizeof(got));
    struct mc_slice slice = {got, capacity};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    assert_ok(mc_ops_get(ops, &item, 1));
    *length = item.length;
    return item.status;
}

static void test_reads_every_byte(void **state) {
    size_t length;
    store("k", 4096, 1, 3);
    assert_ok(get("k", 4096, &length));
    assert_int_equal(length, 4096);
    mc_test_verify(got, 4096, 3);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->read_bytes), 4096);
}

static void test_missing_unfinished_and_too_large(void **state) {
    size_t length;
    assert_int_equal(get("absent", 4096, &length), MC_OBJECT_NOT_FOUND);
    store("k", 100, 1, 3);
    assert_int_equal(get("k", 99, &length), MC_BUFFER_OVERFLOW);
    assert_int_equal(length, 100);
    assert_int_equal(got[0], 0xee);
    fake_find(fake, "k")->complete = false;
    assert_int_equal(get("k", 4096, &length), MC_REPLICA_IS_NOT_READY);
    assert_int_equal(get("", 4096, &length), MC_INVALID_KEY);
}

static void test_nearest_replica_first(void **state) {
    size_t length;
    store("k", 100, 3, 3);
    fake->distance[1] = MC_DISTANCE_HOST;
    for (int i = 0; i < 10; i++) {
        assert_ok(get("k", 100, &length));
    }
    assert_int_equal(fake->node_reads[1], 10);
    fake->distance[2] = MC_DISTANCE_SELF;
    assert_ok(get("k", 100, &length));
    assert_int_equal(fake->node_reads[2], 1);
    fake->distance[1] = fake->distance[2] = MC_DISTANCE_NETWORK; /* equals share the load */
    for (int i = 0; i < 30; i++) {
        assert_ok(get("k", 100, &length));
    }
    for (size_t n = 0; n < 3; n++) {
        assert_true(fake->node_reads[n] >= 10);
    }
}

static void test_next_replica_serves(void **state) {
    size_t length;
    store("k", 2000, 3, 3);
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->distance[1] = MC_DISTANCE_HOST;
    fake->node_status[0] = MC_ERR_CLOSED;
    fake->node_status[1] = MC_ERR_TIMEOUT; /* a stopped peer must leave time for the third */
    assert_ok(get("k", 4096, &length));
    assert_int_equal(length, 2000);
    mc_test_verify(got, 2000, 3);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->failovers), 2);
    fake->node_status[2] = MC_ERR_CLOSED;
    assert_int_equal(get("k", 4096, &length), MC_TRANSFER_FAIL);
}

static void test_lost_answer_is_asked_again(void **state) {
    size_t length;
    store("k", 100, 1, 3);
    fake->lose_rpc = MC_RPC_GetReplicaList;
    fake->lose_how = FAKE_LOSE_ANSWER;
    fake->lose_count = 2;
    assert_ok(get("k", 100, &length));
    mc_test_verify(got, 100, 3);
    fake->lose_count = 3;
    assert_int_equal(get("k", 100, &length), MC_RPC_TIMEOUT);
    fake->lose_count = 3;
    fake->lose_status = MC_RPC_FAIL;
    assert_int_equal(get("k", 100, &length), MC_RPC_FAIL);
}

static void test_slow_read_outlives_its_lease(void **state) {
    size_t length;
    store("k", 100, 2, 3);
    fake->move_takes_ns = FAKE_LEASE_MS * MC_MS;
    assert_int_equal(get("k", 100, &length), MC_LEASE_EXPIRED);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->leases_expired), 1);
    fake->move_takes_ns = FAKE_LEASE_MS * MC_MS - MC_MS;
    assert_ok(get("k", 100, &length));
    mc_test_verify(got, 100, 3);
    fake->move_takes_ns = 0;
    fake->lease_ms = 0;
    assert_int_equal(get("k", 100, &length), MC_LEASE_EXPIRED);
}

static void slow_question(struct fake_port *f, enum mc_master_rpc rpc) {
    f->now_ns += FAKE_LEASE_MS * MC_MS; /* on its way to the master, or back: who can tell? */
}
static void test_lease_counts_from_before_the_question(void **state) {
    size_t length;
    store("k", 100, 1, 3);
    fake->before_rpc = slow_question;
    assert_int_equal(get("k", 100, &length), MC_LEASE_EXPIRED);
}

static void test_checksum(void **state) {
    size_t length;
    mc_test_fill(value, 1000, 9);
    struct mc_slice slice = {value, 1000};
    struct mc_store_item item = {.key = "k", .slices = &slice, .slice_count = 1};
    struct mc_replicate_config config = {.replica_num = 2};
    assert_ok(mc_ops_put(ops, &item, 1, &config, false));
    assert_ok(item.status);
    assert_true(fake_find(fake, "k")->checksum.has);
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->corrupt_node[0] = true;
    assert_ok(get("k", 1000, &length)); /* from the other one */
    mc_test_verify(got, 1000, 9);
    assert_int_equal(mc_metric_get(&mc_ops_counters(ops)->checksum_mismatches), 1);
    fake->corrupt_node[1] = true;
    assert_int_equal(get("k", 1000, &length), MC_CHECKSUM_MISMATCH);
}

static void test_many_keys_in_pieces(void **state) {
    enum { KEYS = MC_STORE_BATCH_CHUNK * 2 + 3 };
    static struct mc_store_item items[KEYS];
    static struct mc_slice slices[KEYS][2];
    static uint8_t out[KEYS][80];
    static char keys[KEYS][32];
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof(keys[i]), "key-%zu", i);
        slices[i][0] = (struct mc_slice){out[i], 17};
        slices[i][1] = (struct mc_slice){out[i] + 17, 63};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = slices[i], .slice_count = 2};
        mc_test_fill(out[i], 80, i);
    }
    assert_ok(mc_ops_put(ops, items, KEYS, NULL, false));
    assert_int_equal(fake->rpcs[MC_RPC_BatchPutStart], 3);
    assert_int_equal(fake->rpcs[MC_RPC_BatchPutEnd], 3);
    assert_int_equal(fake->move_calls, 3);
    assert_int_equal(fake_unfinished(fake), 0);
    for (size_t i = 0; i < KEYS; i++) {
        assert_ok(items[i].status);
        memset(out[i], 0, 80);
        items[i].length = 0;
    }
    fake_erase(fake, "key-7");
    assert_ok(mc_ops_get(ops, items, KEYS));
    assert_int_equal(fake->rpcs[MC_RPC_BatchGetReplicaList], 3);
    for (size_t i = 0; i < KEYS; i++) {
        if (i == 7) {
            assert_int_equal(items[i].status, MC_OBJECT_NOT_FOUND);
            continue;
        }
        assert_ok(items[i].status);
        assert_int_equal(items[i].length, 80);
        mc_test_verify(out[i], 80, i);
    }
}

static void test_batch_fails_key_by_key(void **state) {
    uint8_t bytes[5][64];
    struct mc_slice slices[5];
    struct mc_store_item items[5];
    const char *keys[5] = {"a", "", "c", "a", "e"};
    for (size_t i = 0; i < 5; i++) {
        mc_test_fill(bytes[i], 64, i);
        slices[i] = (struct mc_slice){bytes[i], i == 4 ? FAKE_NODE_BYTES + 1 : 64};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    assert_ok(mc_ops_put(ops, items, 5, NULL, false));
    const enum mc_status expected[5] = {MC_OK, MC_INVALID_KEY, MC_OK, MC_OK,
                                        MC_NO_AVAILABLE_HANDLE};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(items[i].status, expected[i]);
    }
    size_t length;
    assert_ok(get("a", 64, &length));
    mc_test_verify(got, 64, 0); /* the first of the doubles */

    fake_erase(fake, "a");
    fake_erase(fake, "c");
    for (size_t i = 0; i < FAKE_NODES; i++) {
        fake->node_status[i] = MC_ERR_UNREACHABLE;
    }
    assert_ok(mc_ops_put(ops, items, 4, NULL, false));
    assert_int_equal(items[0].status, MC_TRANSFER_FAIL);
    assert_int_equal(items[2].status, MC_TRANSFER_FAIL);
    assert_int_equal(items[3].status, MC_TRANSFER_FAIL); /* so does the double */
    assert_null(fake_find(fake, "a"));
    assert_null(fake_find(fake, "c"));
}

#define BATCH 40u
static void node_zero_dies(struct fake_port *f) {
    f->node_status[0] = MC_ERR_CLOSED;
}

/* In the middle of its one move: what node 0 did not give comes from the other replicas, what it
 * gave is not read again, and what had no other replica fails alone. */
static void test_a_batch_goes_on_when_a_node_dies_in_it(void **state) {
    static uint8_t out[BATCH][1000];
    static const size_t LONELY[] = {0}, OTHERS[] = {2, 1};
    struct mc_slice slices[BATCH];
    struct mc_store_item items[BATCH];
    char keys[BATCH][16];
    for (size_t i = 0; i < BATCH; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
        mc_test_fill(value, 1000, i);
        bool last = i == BATCH - 1;
        fake_store(fake, keys[i], value, 1000,
                   last         ? LONELY
                   : i % 4 == 3 ? OTHERS
                                : NODES,
                   last ? 1 : 2);
        slices[i] = (struct mc_slice){out[i], 1000};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    fake->distance[1] = fake->distance[2] = MC_DISTANCE_NETWORK;
    fake->distance[0] = MC_DISTANCE_HOST; /* so it is asked for three in four */
    fake->during_move = node_zero_dies;
    assert_ok(mc_ops_get(ops, items, BATCH));
    int64_t failovers = mc_metric_get(&mc_ops_counters(ops)->failovers);
    assert_in_range(failovers, 2, 30);
    assert_int_equal(fake->moves, BATCH + failovers - 1);
    for (size_t i = 0; i + 1 < BATCH; i++) {
        assert_ok(items[i].status);
        mc_test_verify(out[i], 1000, i);
    }
    assert_int_equal(items[BATCH - 1].status, MC_TRANSFER_FAIL);
}

/* The second value counts, and its checksum with it. */
static void test_upsert_that_names_a_key_twice(void **state) {
    uint8_t bytes[3][64];
    struct mc_slice slices[3];
    struct mc_store_item items[3];
    const char *keys[3] = {"a", "b", "a"};
    for (size_t i = 0; i < 3; i++) {
        mc_test_fill(bytes[i], 64, i);
        slices[i] = (struct mc_slice){bytes[i], 64};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    assert_ok(mc_ops_put(ops, items, 3, NULL, true));
    for (size_t i = 0; i < 3; i++) {
        assert_ok(items[i].status);
    }
    size_t length;
    assert_ok(get("a", 64, &length));
    mc_test_verify(got, 64, 2);
    assert_ok(get("b", 64, &length));
    mc_test_verify(got, 64, 1);
}

/* ---- leases of long batches ---- */

static unsigned replace_at;
static void slow(struct fake_port *f) {
    f->now_ns += 6 * MC_SEC; /* more than half a lease for every round */
}
static void test_long_batch_renews(void **state) {
    enum { KEYS = 12 };
    static struct mc_store_item items[KEYS];
    static struct mc_slice slices[KEYS];
    static char keys[KEYS][32];
    static uint8_t out[KEYS][100];
    for (size_t i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
        mc_test_fill(value, 100, i);
        fake_store(fake, keys[i], value, 100, NODES, 2);
        slices[i] = (struct mc_slice){out[i], 100};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    /* Nodes that fail in turn make a round of each key's second replica. */
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->node_status[0] = MC_ERR_CLOSED;
    fake->during_move = slow;
    assert_ok(mc_ops_get(ops, items, KEYS));
    assert_int_equal(fake->rpcs[MC_RPC_BatchGetReplicaList], 2); /* the question and one renewal */
    for (size_t i = 0; i < KEYS; i++) {
        assert_ok(items[i].status);
        mc_test_verify(out[i], 100, i);
    }
    assert_true(mc_metric_get(&mc_ops_counters(ops)->leases_renewed) == KEYS);
}

/* While a renewal is asked for, the object is replaced by another of another size. */
static void replace(struct fake_port *f, enum mc_master_rpc rpc) {
    if (rpc == MC_RPC_GetReplicaList && f->rpcs[rpc] == replace_at) {
        fake_erase(f, "k");
        mc_test_fill(value, 700, 8);
        fake_store(f, "k", value, 700, NODES, 2);
    }
}
static void test_object_replaced_before_it_was_read(void **state) {
    size_t length;
    store("k", 100, 2, 3);
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->node_status[0] = MC_ERR_CLOSED;
    fake->during_move = slow;
    fake->before_rpc = replace;
    replace_at = 2;
    assert_ok(get("k", 4096, &length));
    assert_int_equal(length, 700);
    mc_test_verify(got, 700, 8);
}

/* ---- large objects, read in rounds of 1000 bytes ---- */

static unsigned rounds;
static unsigned replace_in_round;
static uint64_t pause_ns; /* after round 2 */
static void count_rounds(struct fake_port *f) {
    f->now_ns += 2 * MC_SEC;
    rounds++;
    f->now_ns += rounds == 2 ? pause_ns : 0;
    if (rounds == replace_in_round) {
        fake_erase(f, "k");
        mc_test_fill(value, 4096, 77);
        fake_store(f, "k", value, 4096, NODES, 1);
    }
}
static int setup_rounds(void **state) {
    fake = fake_create();
    fake->round_bytes = 1000;
    fake->during_move = count_rounds;
    ops = fake_ops(fake, false);
    rounds = replace_in_round = 0;
    pause_ns = 0;
    store("k", 4096, 1, 3);
    return 0;
}

static void test_large_read_renews_and_goes_on(void **state) {
    size_t length;
    assert_ok(get("k", 4096, &length)); /* 10 s in all, as long as the lease */
    mc_test_verify(got, 4096, 3);
    assert_int_equal(rounds, 5);
    assert_true(fake->rpcs[MC_RPC_GetReplicaList] >= 2);
}

static void test_large_read_with_a_broken_lease_begins_again(void **state) {
    size_t length;
    pause_ns = 9 * MC_SEC;
    assert_ok(get("k", 4096, &length));
    mc_test_verify(got, 4096, 3);
    assert_int_equal(rounds, 2 + 5);
}

static void test_large_read_never_mixes_two_objects(void **state) {
    size_t length;
    replace_in_round = 3;
    assert_ok(get("k", 4096, &length));
    mc_test_verify(got, 4096, 77);
    assert_true(rounds > 5);
}

static void late_after_two(struct fake_port *f) {
    f->now_ns += f->move_calls > 2 ? f->lease_ms * MC_MS : 0;
}

/* One copy is damaged, and no lease lasts for the other: the last of many attempts says the former.
 */
static void test_damage_is_not_hidden_by_leases(void **state) {
    size_t length;
    struct mc_slice slice = {value, 2000};
    mc_ops_destroy(ops);
    ops = fake_ops(fake, true);
    fake_erase(fake, "k");
    store("k", 2000, 2, 4);
    fake_find(fake, "k")->checksum = (struct mw_opt_u64){true, mc_checksum_slices(&slice, 1, 2000)};
    fake->lease_ms = 1000;
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->corrupt_node[0] = true;
    fake->during_move = late_after_two;
    assert_int_equal(get("k", sizeof(got), &length), MC_CHECKSUM_MISMATCH);
    assert_int_equal(fake->move_calls, 2 + 7);
}

/* ---- memory that is made when the size is known ---- */

static size_t allocated[4];
static size_t allocations;
static void *allocate(void *ctx, size_t length) {
    assert_true(allocations < MC_ARRAY_LEN(allocated));
    allocated[allocations++] = length;
    return ctx;
}

static void test_memory_is_made_when_the_size_is_known(void **state) {
    struct mc_store_item items[] = {
        {.key = "k", .allocate = allocate, .allocate_ctx = got},
        {.key = "absent", .allocate = allocate, .allocate_ctx = got},
    };
    store("k", 4000, 1, 3);
    allocations = 0;
    assert_ok(mc_ops_get(ops, items, MC_ARRAY_LEN(items)));
    assert_ok(items[0].status);
    assert_int_equal(items[1].status, MC_OBJECT_NOT_FOUND);
    assert_int_equal(allocations, 1);
    assert_int_equal(allocated[0], 4000);
    mc_test_verify(got, 4000, 3);
    items[0].allocate_ctx = NULL; /* no memory */
    assert_ok(mc_ops_get(ops, items, 1));
    assert_int_equal(items[0].status, MC_ERR_NO_MEMORY);
}

/* ---- from an SSD ---- */

static void store_on_disk(struct fake_port *to, size_t size, uint64_t seed) {
    mc_test_fill(value, size, seed);
    fake_erase(to, "k");
    fake_store(to, "k", value, size, NODES, 1);
    struct mc_slice slice = {value, size};
    fake_find(to, "k")->on_disk = true;
    fake_find(to, "k")->checksum = (struct mw_opt_u64){true, mc_checksum_slices(&slice, 1, size)};
}

static void store_same_size(struct fake_port *to) {
    to->before_disk = NULL;
    store_on_disk(to, 1000, 5);
}
static void store_another_size(struct fake_port *to) {
    to->before_disk = NULL;
    store_on_disk(to, 900, 6);
}
static void change_in_place(struct fake_port *to) { /* as a master that started anew may name it */
    struct fake_object *o = fake_find(to, "k");
    to->before_disk = NULL;
    mc_test_fill(value, o->size, 7);
    memcpy(&to->memory[o->node[0]][o->offset[0]], value, o->size);
    struct mc_slice slice = {value, o->size};
    o->checksum.value = mc_checksum_slices(&slice, 1, o->size);
}
static void remove_it(struct fake_port *to) {
    fake_erase(to, "k");
}

static int64_t mismatches(void) {
    return mc_metric_get(&mc_ops_counters(ops)->checksum_mismatches);
}

/* Between the master's answer and the disk's nothing keeps the object as it was: other bytes there
 * are damage only while the master names the same copy. */
static void test_object_replaced_while_its_disk_was_read(void **state) {
    size_t length;
    store_on_disk(fake, 1000, 4);
    assert_ok(get("k", sizeof(got), &length));
    mc_test_verify(got, 1000, 4);
    fake->before_disk = store_same_size;
    assert_ok(get("k", sizeof(got), &length));
    assert_int_equal(length, 1000);
    mc_test_verify(got, 1000, 5);
    fake->before_disk = store_another_size;
    assert_ok(get("k", sizeof(got), &length));
    assert_int_equal(length, 900);
    mc_test_verify(got, 900, 6);
    fake->before_disk = change_in_place; /* another object under the same id */
    assert_ok(get("k", sizeof(got), &length));
    mc_test_verify(got, 900, 7);
    assert_int_equal(mismatches(), 0);
    fake->corrupt_node[0] = true;
    assert_int_equal(get("k", sizeof(got), &length), MC_CHECKSUM_MISMATCH);
    assert_int_equal(mismatches(), 1);
    fake->corrupt_node[0] = false;
    fake->before_disk = remove_it;
    assert_int_equal(get("k", sizeof(got), &length), MC_OBJECT_NOT_FOUND);
    assert_int_equal(mismatches(), 1);
}

/* As test_object_replaced_before_it_was_read: the second object has another size. */
static void test_memory_is_made_again_for_another_object(void **state) {
    struct mc_store_item item = {.key = "k", .allocate = allocate, .allocate_ctx = got};
    store("k", 100, 2, 3);
    fake->distance[0] = MC_DISTANCE_SELF;
    fake->node_status[0] = MC_ERR_CLOSED;
    fake->during_move = slow;
    fake->before_rpc = replace;
    replace_at = 2;
    allocations = 0;
    assert_ok(mc_ops_get(ops, &item, 1));
    assert_ok(item.status);
    assert_int_equal(allocations, 2);
    assert_int_equal(allocated[1], 700);
    assert_int_equal(item.length, 700);
    mc_test_verify(got, 700, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_reads_every_byte),
        T(test_missing_unfinished_and_too_large),
        T(test_nearest_replica_first),
        T(test_next_replica_serves),
        T(test_lost_answer_is_asked_again),
        T(test_slow_read_outlives_its_lease),
        T(test_lease_counts_from_before_the_question),
        cmocka_unit_test_setup_teardown(test_checksum, setup_checksum, teardown),
        cmocka_unit_test_setup_teardown(test_upsert_that_names_a_key_twice, setup_checksum,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_object_replaced_while_its_disk_was_read,
                                        setup_checksum, teardown),
        T(test_many_keys_in_pieces),
        T(test_batch_fails_key_by_key),
        T(test_a_batch_goes_on_when_a_node_dies_in_it),
        T(test_long_batch_renews),
        T(test_object_replaced_before_it_was_read),
        T(test_memory_is_made_when_the_size_is_known),
        T(test_memory_is_made_again_for_another_object),
        cmocka_unit_test_setup_teardown(test_large_read_renews_and_goes_on, setup_rounds, teardown),
        cmocka_unit_test_setup_teardown(test_large_read_with_a_broken_lease_begins_again,
                                        setup_rounds, teardown),
        cmocka_unit_test_setup_teardown(test_large_read_never_mixes_two_objects, setup_rounds,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_damage_is_not_hidden_by_leases, setup_rounds,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
