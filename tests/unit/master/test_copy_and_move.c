/*
 * Copies and moves: the object is readable throughout, the new replica from the end on; whoever
 * fails at any step leaves nothing behind; what is being copied is neither evicted, removed nor
 * replaced. (Answers are those of a running upstream master.)
 */
#include <stdio.h>

#include "support/master_fixture.h"

static const struct mc_uuid mover = {55, 66};

static int32_t copy_start_as(struct fixture *f, struct mc_uuid client, const char *key,
                             const char *source, size_t count, const char *const *targets,
                             struct mw_copy_start *out) {
    struct mw_a_copy_start a = {client, str(key), str("default"), str(source),
                                strs(f, count, targets)};
    struct mw_e_copy r;
    call(f, MC_RPC_CopyStart, &a, &r);
    if (r.error == 0 && out) {
        *out = r.value;
    }
    return r.error;
}
static int32_t copy_start(struct fixture *f, const char *key, const char *source,
                          const char *target) {
    return copy_start_as(f, mover, key, source, 1, &target, NULL);
}
static int32_t move_start(struct fixture *f, const char *key, const char *source,
                          const char *target, struct mw_move_start *out) {
    struct mw_a_move_start a = {mover, str(key), str("default"), str(source), str(target)};
    struct mw_e_move r;
    call(f, MC_RPC_MoveStart, &a, &r);
    if (r.error == 0 && out) {
        *out = r.value;
    }
    return r.error;
}
static int32_t finish_as(struct fixture *f, struct mc_uuid client, enum mc_master_rpc rpc,
                         const char *key) {
    struct mw_a_client_key a = {client, str(key), str("default")};
    struct mw_e_void r;
    call(f, rpc, &a, &r);
    return r.error;
}
static int32_t finish(struct fixture *f, enum mc_master_rpc rpc, const char *key) {
    return finish_as(f, mover, rpc, key);
}

static size_t replica_count(struct fixture *f, const char *key) {
    struct mw_replica_list list = {0};
    assert_ok(mc_master_peek(f->m, str("default"), str(key), &f->arena, &list));
    return list.replicas.count;
}
static bool on(struct fixture *f, const char *key, const char *endpoint) {
    struct mw_replica_list list = {0};
    assert_ok(mc_master_peek(f->m, str("default"), str(key), &f->arena, &list));
    for (size_t i = 0; i < list.replicas.count; i++) {
        const struct mw_replica *r = (const struct mw_replica *)list.replicas.items + i;
        if (mc_str_eq(r->memory.endpoint, str(endpoint))) {
            assert_int_equal(r->status, MC_REPLICA_COMPLETE);
            return true;
        }
    }
    return false;
}

/* "k" on A, B and C empty. */
static int setup(void **state) {
    fixture_setup(state);
    struct fixture *f = *state;
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 100));
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "C", FIXTURE_SEGMENT_BYTES);
    return 0;
}

static void test_a_copy_is_readable_from_its_end_on(void **state) {
    struct fixture *f = *state;
    struct mw_copy_start started = {0};
    const char *targets[] = {"B", "C", "B", "A"};
    assert_ok(copy_start_as(f, mover, "k", "A", 4, targets, &started));
    assert_true(mc_str_eq(started.source.memory.endpoint, str("A")));
    assert_int_equal(started.source.status, MC_REPLICA_COMPLETE);
    assert_int_equal(started.targets.count, 2); /* each once, and not where it is */
    const struct mw_replica *target = started.targets.items;
    assert_int_equal(target->status, MC_REPLICA_PROCESSING);
    assert_int_equal(target->memory.size, 100);
    assert_int_equal(used_bytes(f), 300);
    fixture_check(f);
    assert_int_equal(replica_count(f, "k"), 1);
    assert_int_equal(get(f, "k"), MC_OK);
    assert_ok(finish(f, MC_RPC_CopyEnd, "k"));
    assert_int_equal(replica_count(f, "k"), 3);
    assert_true(on(f, "k", "B") && on(f, "k", "C"));
    assert_int_equal(finish(f, MC_RPC_CopyEnd, "k"), MC_OBJECT_NO_REPLICATION_TASK);
    fixture_check(f);
}

static void test_a_revoked_copy_leaves_nothing(void **state) {
    struct fixture *f = *state;
    assert_ok(copy_start(f, "k", "A", "B"));
    assert_ok(finish(f, MC_RPC_CopyRevoke, "k"));
    assert_int_equal(used_bytes(f), 100);
    assert_int_equal(replica_count(f, "k"), 1);
    assert_int_equal(finish(f, MC_RPC_CopyRevoke, "k"), MC_OBJECT_NO_REPLICATION_TASK);
    assert_ok(copy_start(f, "k", "A", "B"));
    assert_ok(finish(f, MC_RPC_CopyEnd, "k"));
}

static void test_answers_to_what_cannot_be(void **state) {
    struct fixture *f = *state;
    assert_ok(put_start(f, "p", 100));
    assert_int_equal(copy_start(f, "none", "A", "B"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(copy_start(f, "p", "A", "B"), MC_REPLICA_NOT_FOUND);
    assert_int_equal(copy_start(f, "k", "X", "B"), MC_REPLICA_NOT_FOUND);
    assert_int_equal(copy_start(f, "k", "B", "C"), MC_REPLICA_NOT_FOUND);
    assert_int_equal(copy_start(f, "k", "A", "X"), MC_SEGMENT_NOT_FOUND);
    const char *half[] = {"B", "X"};
    assert_int_equal(copy_start_as(f, mover, "k", "A", 2, half, NULL), MC_SEGMENT_NOT_FOUND);
    assert_int_equal(used_bytes(f), 200);
    assert_int_equal(move_start(f, "k", "A", "A", NULL), MC_INVALID_PARAMS);
    assert_int_equal(move_start(f, "k", "A", "X", NULL), MC_SEGMENT_NOT_FOUND);
    assert_int_equal(move_start(f, "k", "X", "A", NULL), MC_REPLICA_NOT_FOUND);
    assert_int_equal(finish(f, MC_RPC_MoveEnd, "k"), MC_OBJECT_NO_REPLICATION_TASK);
    assert_int_equal(finish(f, MC_RPC_MoveEnd, "none"), MC_OBJECT_NOT_FOUND);

    assert_ok(copy_start(f, "k", "A", "B"));
    assert_int_equal(copy_start(f, "k", "A", "C"), MC_OBJECT_HAS_REPLICATION_TASK);
    assert_int_equal(move_start(f, "k", "A", "C", NULL), MC_OBJECT_HAS_REPLICATION_TASK);
    assert_int_equal(finish_as(f, client_a, MC_RPC_CopyEnd, "k"), MC_ILLEGAL_CLIENT);
    assert_int_equal(finish_as(f, client_a, MC_RPC_CopyRevoke, "k"), MC_ILLEGAL_CLIENT);
    assert_int_equal(finish(f, MC_RPC_MoveEnd, "k"), MC_INVALID_PARAMS);
    assert_int_equal(finish(f, MC_RPC_MoveRevoke, "k"), MC_INVALID_PARAMS);
    assert_int_equal(remove_key(f, "k", false), MC_REPLICA_IS_NOT_READY);
    assert_int_equal(remove_key(f, "k", true), MC_REPLICA_IS_NOT_READY);
    assert_int_equal(remove_all(f, "default", true), 0);
    assert_int_equal(upsert_start(f, "k", 100, replicas(1), NULL), MC_OBJECT_HAS_REPLICATION_TASK);
    assert_int_equal(put_start(f, "k", 100), MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(put_revoke(f, "k"), MC_INVALID_WRITE);
    assert_ok(put_end(f, "k")); /* again, and it ends nothing of the copy */
    assert_int_equal(replica_count(f, "k"), 1);
    assert_ok(finish(f, MC_RPC_CopyEnd, "k"));
    assert_ok(remove_key(f, "k", true));
    assert_int_equal(used_bytes(f), 100);
}

static void test_a_move_ends_with_the_object_elsewhere(void **state) {
    struct fixture *f = *state;
    struct mw_move_start started = {0};
    assert_ok(move_start(f, "k", "A", "B", &started));
    assert_true(started.target.has);
    assert_true(mc_str_eq(started.target.value.memory.endpoint, str("B")));
    assert_int_equal(finish(f, MC_RPC_CopyEnd, "k"), MC_INVALID_PARAMS);
    assert_true(on(f, "k", "A"));
    assert_ok(finish(f, MC_RPC_MoveEnd, "k"));
    assert_int_equal(replica_count(f, "k"), 1);
    assert_true(on(f, "k", "B"));
    assert_int_equal(used_bytes(f), 100);
    /* Back, revoked. */
    assert_ok(move_start(f, "k", "B", "A", NULL));
    assert_ok(finish(f, MC_RPC_MoveRevoke, "k"));
    assert_true(on(f, "k", "B"));
    assert_int_equal(used_bytes(f), 100);
}

static void test_a_move_to_where_it_is_only_takes_away(void **state) {
    struct fixture *f = *state;
    struct mw_move_start started = {0};
    assert_ok(copy_start(f, "k", "A", "B"));
    assert_ok(finish(f, MC_RPC_CopyEnd, "k"));
    assert_ok(move_start(f, "k", "A", "B", &started));
    assert_false(started.target.has);
    assert_int_equal(remove_key(f, "k", true), MC_OBJECT_HAS_REPLICATION_TASK);
    assert_ok(finish(f, MC_RPC_MoveEnd, "k"));
    assert_int_equal(replica_count(f, "k"), 1);
    assert_true(on(f, "k", "B"));
    assert_int_equal(used_bytes(f), 100);
}

static void test_a_reader_keeps_the_moved_bytes_until_its_lease_ends(void **state) {
    struct fixture *f = *state;
    assert_int_equal(get(f, "k"), MC_OK);
    assert_ok(move_start(f, "k", "A", "B", NULL));
    assert_ok(finish(f, MC_RPC_MoveEnd, "k"));
    assert_int_equal(used_bytes(f), 200);
    tick_for_ms(f, 9900);
    assert_int_equal(used_bytes(f), 200);
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    (void)ping(f, client_b);
    tick_for_ms(f, 200);
    assert_int_equal(used_bytes(f), 100);
}

static void test_the_source_is_not_evicted(void **state) {
    struct fixture *f = *state;
    f->config.eviction_ratio = 1;
    fixture_restart(f);
    mount(f, "A", 1000);
    assert_ok(put(f, "old", 100));
    mount_for(f, client_b, "B", 1000);
    assert_ok(copy_start(f, "old", "A", "B"));
    advance_ms(f, 20000);
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    assert_int_equal(ping(f, client_b), MC_CLIENT_OK);
    for (unsigned i = 0; i < 30; i++) {
        char key[8];
        snprintf(key, sizeof(key), "k%u", i);
        (void)put(f, key, 100);
        tick(f);
    }
    assert_true(metric(f, "master_evicted_key_count") > 0);
    assert_true(peek(f, "old"));
    assert_ok(finish(f, MC_RPC_CopyEnd, "old"));
    for (unsigned i = 30; i < 90 && peek(f, "old"); i++) {
        char key[8];
        snprintf(key, sizeof(key), "k%u", i);
        (void)put(f, key, 100);
        tick(f);
    }
    assert_false(peek(f, "old")); /* from now on like any other */
}

static void test_a_silent_copy_is_given_up(void **state) {
    struct fixture *f = *state;
    assert_ok(copy_start(f, "k", "A", "B"));
    for (unsigned i = 0; i < 31; i++) { /* the discard timeout; clients stay alive */
        tick_for_ms(f, 1000);
        assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
        assert_int_equal(ping(f, client_b), MC_CLIENT_OK);
    }
    assert_int_equal(used_bytes(f), 200); /* somebody may still be writing there */
    assert_int_equal(finish(f, MC_RPC_CopyEnd, "k"), MC_OBJECT_NO_REPLICATION_TASK);
    assert_int_equal(replica_count(f, "k"), 1);
    assert_ok(copy_start(f, "k", "A", "C"));
    assert_ok(finish(f, MC_RPC_CopyEnd, "k"));
    for (unsigned i = 0; i < 570; i++) {
        tick_for_ms(f, 1000);
        assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
        assert_int_equal(ping(f, client_b), MC_CLIENT_OK);
    }
    assert_int_equal(used_bytes(f), 200); /* two replicas, and nothing else */
    assert_int_equal(replica_count(f, "k"), 2);
}

static void test_a_source_that_went_away_ends_the_copy(void **state) {
    struct fixture *f = *state;
    fixture_restart(f);
    struct mc_uuid a = mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "one", 100));
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    assert_ok(put_with(f, "two", 100, replicas(2)));
    struct mc_uuid c = mount(f, "C", FIXTURE_SEGMENT_BYTES);
    assert_ok(copy_start(f, "one", "A", "B"));
    assert_ok(copy_start(f, "two", "A", "C"));
    assert_ok(unmount(f, a));
    assert_int_equal(get(f, "one"), MC_OBJECT_NOT_FOUND); /* there is nothing to read any more */
    assert_int_equal(finish(f, MC_RPC_CopyEnd, "one"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(finish(f, MC_RPC_CopyEnd, "two"), MC_REPLICA_IS_GONE);
    assert_int_equal(replica_count(f, "two"), 1);
    fixture_check(f);
    /* And a target that went away: there is nothing to end. */
    assert_ok(copy_start(f, "two", "B", "C"));
    assert_ok(unmount(f, c));
    assert_int_equal(finish(f, MC_RPC_CopyEnd, "two"), MC_REPLICA_IS_GONE);
    assert_ok(remove_key(f, "two", true));
    tick_for_ms(f, 100);
    fixture_check(f);
}

static void test_no_room_and_leaving_targets(void **state) {
    struct fixture *f = *state;
    struct mc_uuid small = mount_for(f, client_b, "small", 50);
    assert_int_equal(copy_start(f, "k", "A", "small"), MC_NO_AVAILABLE_HANDLE);
    const char *both[] = {"B", "small"};
    assert_int_equal(copy_start_as(f, mover, "k", "A", 2, both, NULL), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(used_bytes(f), 100);
    struct mw_a_graceful_unmount leave = {small, client_b, 60000};
    struct mw_e_void r;
    call(f, MC_RPC_GracefulUnmountSegment, &leave, &r);
    assert_ok(r.error);
    assert_int_equal(copy_start(f, "k", "A", "small"), MC_UNAVAILABLE_IN_CURRENT_STATUS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
        T(test_a_copy_is_readable_from_its_end_on),
        T(test_a_revoked_copy_leaves_nothing),
        T(test_answers_to_what_cannot_be),
        T(test_a_move_ends_with_the_object_elsewhere),
        T(test_a_move_to_where_it_is_only_takes_away),
        T(test_a_reader_keeps_the_moved_bytes_until_its_lease_ends),
        T(test_the_source_is_not_evicted),
        T(test_a_silent_copy_is_given_up),
        T(test_a_source_that_went_away_ends_the_copy),
        T(test_no_room_and_leaving_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
