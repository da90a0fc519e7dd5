/*
 * Tasks go to the owner of the bytes, oldest first, once; they end as he says, or by their time, or
 * with him; every state has a limit.
 */
#include "support/master_fixture.h"

static int32_t create_copy(struct fixture *f, const char *key, size_t count,
                           const char *const *targets, struct mc_uuid *id) {
    struct mw_a_copy_task a = {str(key), str("default"), strs(f, count, targets)};
    struct mw_e_uuid r;
    call(f, MC_RPC_CreateCopyTask, &a, &r);
    if (r.error == 0 && id) {
        *id = r.value;
    }
    return r.error;
}
static int32_t copy_to(struct fixture *f, const char *key, const char *target, struct mc_uuid *id) {
    return create_copy(f, key, 1, &target, id);
}
static int32_t create_move(struct fixture *f, const char *tenant, const char *key,
                           const char *source, const char *target) {
    struct mw_a_move_task a = {str(key), str(tenant), str(source), str(target)};
    struct mw_e_uuid r;
    call(f, MC_RPC_CreateMoveTask, &a, &r);
    return r.error;
}
static const struct mw_task_assignment *fetch(struct fixture *f, struct mc_uuid client,
                                              uint64_t count, size_t expected) {
    struct mw_a_fetch_tasks a = {client, count};
    struct mw_e_vec r;
    call(f, MC_RPC_FetchTasks, &a, &r);
    assert_ok(r.error);
    assert_int_equal(r.value.count, expected);
    return r.value.items;
}
static int32_t complete(struct fixture *f, struct mc_uuid client, struct mc_uuid id, int32_t status,
                        const char *message) {
    struct mw_a_task_complete a = {client, {id, status, str(message)}};
    struct mw_e_void r;
    call(f, MC_RPC_MarkTaskToComplete, &a, &r);
    return r.error;
}
static int32_t query(struct fixture *f, struct mc_uuid id, struct mw_task_info *out) {
    struct mw_e_task r;
    call(f, MC_RPC_QueryTask, &id, &r);
    if (r.error == 0) {
        *out = r.value;
    }
    return r.error;
}
static int32_t status_of(struct fixture *f, struct mc_uuid id) {
    struct mw_task_info info = {0};
    assert_ok(query(f, id, &info));
    return info.status;
}

static int setup(void **state) {
    fixture_setup(state);
    struct fixture *f = *state;
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 100));
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    return 0;
}

static void test_a_task_goes_to_the_owner_of_the_bytes(void **state) {
    struct fixture *f = *state;
    struct mc_uuid id = {0};
    struct mw_task_info info = {0};
    assert_ok(copy_to(f, "k", "B", &id));
    assert_ok(query(f, id, &info));
    assert_int_equal(info.type, MC_TASK_COPY);
    assert_int_equal(info.status, MC_TASK_PENDING);
    assert_true(mc_uuid_eq(info.client, client_a));
    assert_int_equal(info.message.len, 0);
    (void)fetch(f, client_b, 10, 0);
    (void)fetch(f, client_a, 0, 0);
    assert_int_equal(status_of(f, id), MC_TASK_PENDING);
    const struct mw_task_assignment *t = fetch(f, client_a, 10, 1);
    assert_true(mc_uuid_eq(t->id, id));
    assert_int_equal(t->max_retry_attempts, 10);
    /* Upstream's text, byte for byte. */
    assert_true(mc_str_eq(
        t->payload,
        str("{\"tenant_id\":\"default\",\"key\":\"k\",\"source\":\"A\",\"targets\":[\"B\"],"
            "\"dynamic_replication_lease_id_high\":0,\"dynamic_replication_lease_id_low\":0,"
            "\"dynamic_replication_version_epoch\":0}")));
    assert_int_equal(status_of(f, id), MC_TASK_PROCESSING);
    (void)fetch(f, client_a, 10, 0);
    assert_int_equal(metric(f, "master_tasks_processing"), 1);
    assert_int_equal(complete(f, client_b, id, MC_TASK_SUCCESS, ""), MC_ILLEGAL_CLIENT);
    assert_int_equal(complete(f, client_a, id, MC_TASK_PROCESSING, ""), MC_INVALID_PARAMS);
    assert_ok(complete(f, client_a, id, MC_TASK_SUCCESS, "good"));
    assert_ok(complete(f, client_a, id, MC_TASK_FAILED, "late")); /* said again: no error */
    assert_ok(query(f, id, &info));
    assert_int_equal(info.status, MC_TASK_SUCCESS);
    assert_true(mc_str_eq(info.message, str("good")));
    struct mc_uuid none = {9, 9};
    assert_int_equal(query(f, none, &info), MC_TASK_NOT_FOUND);
    assert_int_equal(complete(f, client_a, none, MC_TASK_SUCCESS, ""), MC_TASK_NOT_FOUND);
}

static void test_what_cannot_be_a_task(void **state) {
    struct fixture *f = *state;
    const char *leaving = "B";
    assert_int_equal(copy_to(f, "none", "B", NULL), MC_OBJECT_NOT_FOUND);
    assert_int_equal(create_copy(f, "k", 0, NULL, NULL), MC_INVALID_PARAMS);
    assert_int_equal(copy_to(f, "k", "X", NULL), MC_INVALID_PARAMS);
    assert_int_equal(create_move(f, "default", "k", "A", "A"), MC_INVALID_PARAMS);
    assert_int_equal(create_move(f, "default", "k", "X", "B"), MC_INVALID_PARAMS);
    assert_int_equal(create_move(f, "default", "k", "B", "A"), MC_INVALID_PARAMS); /* not there */
    assert_int_equal(create_move(f, "default", "k", "A", "X"), MC_INVALID_PARAMS);
    assert_int_equal(create_move(f, "default", "none", "A", "B"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(create_move(f, "_bad", "k", "A", "B"), MC_INVALID_PARAMS);
    assert_int_equal(metric(f, "master_tasks_pending"), 0);
    size_t count;
    const struct mc_master_segment_info *all = mc_master_segments(f->m, &f->arena, &count);
    for (size_t i = 0; i < count; i++) {
        if (mc_str_eq(all[i].segment.name, str(leaving))) {
            struct mw_a_graceful_unmount a = {all[i].segment.id, client_b, 60000};
            struct mw_e_void r;
            call(f, MC_RPC_GracefulUnmountSegment, &a, &r);
            assert_ok(r.error);
        }
    }
    assert_int_equal(copy_to(f, "k", "B", NULL), MC_UNAVAILABLE_IN_CURRENT_STATUS);
}

static void test_tasks_are_taken_oldest_first_and_carry_their_tenant(void **state) {
    struct fixture *f = *state;
    struct mc_vec out;
    assert_ok(put_start_with(
        f, client_a, "red", "t", 10,
        (struct mw_replicate_config){.replica_num = 1, .preferred_segment = str("A")}, &out));
    assert_ok(put_end_as(f, client_a, "red", "t", MC_REPLICA_ALL));
    assert_int_equal(create_move(f, "default", "t", "A", "B"), MC_OBJECT_NOT_FOUND);
    struct mc_uuid first = {0}, second = {0};
    assert_ok(copy_to(f, "k", "B", &first));
    assert_ok(copy_to(f, "k", "B", &second));
    assert_ok(create_move(f, "red", "t", "A", "B"));
    const struct mw_task_assignment *t = fetch(f, client_a, 2, 2);
    assert_true(mc_uuid_eq(t[0].id, first) && mc_uuid_eq(t[1].id, second));
    t = fetch(f, client_a, 2, 1);
    assert_int_equal(t->type, MC_TASK_MOVE);
    assert_true(
        mc_str_eq(t->payload,
                  str("{\"tenant_id\":\"red\",\"key\":\"t\",\"source\":\"A\",\"target\":\"B\"}")));
}

static void test_every_state_has_a_limit(void **state) {
    struct fixture *f = *state;
    f->config.max_total_pending_tasks = 3;
    f->config.max_total_processing_tasks = 2;
    f->config.max_total_finished_tasks = 2;
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 100));
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    struct mc_uuid id[5] = {0};
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(copy_to(f, "k", "B", &id[i]));
    }
    assert_int_equal(copy_to(f, "k", "B", NULL), MC_TASK_PENDING_LIMIT_EXCEEDED);
    (void)fetch(f, client_a, 10, 2);
    (void)fetch(f, client_a, 10, 0);
    assert_ok(copy_to(f, "k", "B", &id[3]));
    assert_ok(copy_to(f, "k", "B", &id[4]));
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(complete(f, client_a, id[i], MC_TASK_SUCCESS, ""));
    }
    struct mw_task_info info = {0};
    assert_int_equal(query(f, id[0], &info), MC_TASK_NOT_FOUND); /* the oldest is forgotten */
    assert_int_equal(status_of(f, id[1]), MC_TASK_SUCCESS);
    assert_int_equal(status_of(f, id[2]), MC_TASK_SUCCESS); /* finished without being fetched */
    (void)fetch(f, client_a, 10, 2);
}

static void test_tasks_end_with_their_time_and_their_client(void **state) {
    struct fixture *f = *state;
    f->config.pending_task_timeout_ms = 5000;
    f->config.processing_task_timeout_ms = 3000;
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 100));
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    struct mc_uuid taken = {0}, waiting = {0}, third = {0}, fourth = {0};
    assert_ok(copy_to(f, "k", "B", &taken));
    (void)fetch(f, client_a, 1, 1);
    assert_ok(copy_to(f, "k", "B", &waiting));
    tick_for_ms(f, 2990);
    assert_int_equal(status_of(f, taken), MC_TASK_PROCESSING);
    tick_for_ms(f, 20);
    assert_int_equal(status_of(f, taken), MC_TASK_FAILED);
    assert_int_equal(status_of(f, waiting), MC_TASK_PENDING);
    tick_for_ms(f, 2000);
    assert_int_equal(status_of(f, waiting), MC_TASK_FAILED);
    f->config.pending_task_timeout_ms = f->config.processing_task_timeout_ms = 0;
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 100));
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    assert_ok(copy_to(f, "k", "B", &third));
    (void)fetch(f, client_a, 1, 1);
    assert_ok(copy_to(f, "k", "B", &fourth));
    tick_for_ms(f, 9900);
    assert_int_equal(status_of(f, third), MC_TASK_PROCESSING);
    assert_int_equal(status_of(f, fourth), MC_TASK_PENDING);
    tick_for_ms(f, 300); /* the clients were silent */
    assert_int_equal(status_of(f, third), MC_TASK_FAILED);
    assert_int_equal(status_of(f, fourth), MC_TASK_FAILED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
        T(test_a_task_goes_to_the_owner_of_the_bytes),
        T(test_what_cannot_be_a_task),
        T(test_tasks_are_taken_oldest_first_and_carry_their_tenant),
        T(test_every_state_has_a_limit),
        T(test_tasks_end_with_their_time_and_their_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
