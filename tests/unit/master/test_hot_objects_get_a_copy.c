/* What is read often is copied to another node by an ordinary task, once, and not beyond the limit;
 * the copy goes when the object has cooled down, never as the only replica and not under a lease.
 */
#include "support/master_fixture.h"

#define THRESHOLD 8 /* .8 reads a second, ten seconds */

static int setup(void **state) {
    fixture_setup(state);
    struct fixture *f = *state;
    f->config.dynamic_replication = MC_DYNAMIC_ENFORCE;
    f->config.client_ttl_ms = UINT32_MAX;
    f->config.default_kv_lease_ttl_ms = 1000;
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 1000));
    mount(f, "B", FIXTURE_SEGMENT_BYTES);
    mount(f, "C", FIXTURE_SEGMENT_BYTES);
    tick_for_ms(f, 100);
    return 0;
}

static void read_often(struct fixture *f, const char *key, unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        assert_ok(get(f, key));
    }
    tick(f);
}

static size_t fetch(struct fixture *f) {
    struct mw_a_fetch_tasks args = {client_a, 100};
    struct mw_e_vec r;
    call(f, MC_RPC_FetchTasks, &args, &r);
    assert_ok(r.error);
    const struct mw_task_assignment *task = r.value.items;
    for (size_t i = 0; i < r.value.count; i++) { /* of copies: to B or C */
        assert_int_equal(task[i].type, MC_TASK_COPY);
    }
    return r.value.count;
}

/* As the node does it that was asked. */
static void copy(struct fixture *f, const char *key, const char *target) {
    const struct mc_uuid worker = {55, 66};
    struct mw_a_copy_start start = {worker, str(key), str("default"), str("A"),
                                    strs(f, 1, &target)};
    struct mw_a_client_key end = {worker, str(key), str("default")};
    struct mw_e_copy started;
    struct mw_e_void ended;
    call(f, MC_RPC_CopyStart, &start, &started);
    assert_ok(started.error);
    call(f, MC_RPC_CopyEnd, &end, &ended);
    assert_ok(ended.error);
}

static size_t replica_count(struct fixture *f, const char *key) {
    struct mw_replica_list list = {0};
    assert_ok(mc_master_peek(f->m, str("default"), str(key), &f->arena, &list));
    return list.replicas.count;
}

static void test_a_hot_object_gets_one_copy(void **state) {
    struct fixture *f = *state;
    read_often(f, "k", THRESHOLD - 1);
    assert_int_equal(fetch(f), 0);
    read_often(f, "k", 1);
    assert_int_equal(fetch(f), 1);
    read_often(f, "k", 100);
    assert_int_equal(fetch(f), 0); /* once a window */
    assert_int_equal(metric(f, "master_hot_copies_total"), 1);
}

static void test_reads_of_batches_count_and_those_of_long_ago_do_not(void **state) {
    struct fixture *f = *state;
    const char *keys[] = {"k", "k", "k", "k"};
    struct mw_a_keys args = {strs(f, 4, keys), MC_STR("default")};
    struct mc_vec answers;
    read_often(f, "k", THRESHOLD - 1);
    tick_for_ms(f, 10100);
    call(f, MC_RPC_BatchGetReplicaList, &args, &answers);
    tick(f);
    assert_int_equal(fetch(f), 0);
    call(f, MC_RPC_BatchGetReplicaList, &args, &answers);
    tick(f);
    assert_int_equal(fetch(f), 1);
}

/* The copy lands where the task said; the test tries both names. */
static void copy_somewhere(struct fixture *f) {
    read_often(f, "k", THRESHOLD);
    assert_int_equal(fetch(f), 1);
    copy(f, "k", "B");
    copy(f, "k", "C");
    assert_int_equal(replica_count(f, "k"), 3);
}

static void test_a_copy_goes_when_its_object_cools_down(void **state) {
    struct fixture *f = *state;
    struct mw_e_void r;
    struct mw_a_fetch_tasks fetch_args = {client_a, 100};
    struct mw_e_vec tasks;
    read_often(f, "k", THRESHOLD);
    call(f, MC_RPC_FetchTasks, &fetch_args, &tasks);
    assert_int_equal(tasks.value.count, 1);
    const struct mw_task_assignment *task = tasks.value.items;
    bool on_b = memmem(task->payload.ptr, task->payload.len, "\"B\"", 3) != NULL;
    copy(f, "k", on_b ? "B" : "C");
    struct mw_a_task_complete done = {client_a, {task->id, MC_TASK_SUCCESS, MC_STR("done")}};
    call(f, MC_RPC_MarkTaskToComplete, &done, &r);
    assert_ok(r.error);
    assert_int_equal(replica_count(f, "k"), 2);
    for (unsigned window = 0; window < 4; window++) { /* still warm */
        read_often(f, "k", THRESHOLD);
        tick_for_ms(f, 10000);
        assert_int_equal(replica_count(f, "k"), 2);
    }
    assert_int_equal(fetch(f), 0); /* two are the limit */
    uint64_t used = used_bytes(f);
    tick_for_ms(f, 20100);
    assert_int_equal(replica_count(f, "k"), 1);
    assert_int_equal(used_bytes(f), used - 1000);
    assert_int_equal(metric(f, "master_cold_copies_total"), 1);
    assert_ok(get(f, "k"));
    read_often(f, "k", THRESHOLD); /* and again */
    assert_int_equal(fetch(f), 1);
}

static void test_copies_that_somebody_asked_for_stay(void **state) {
    struct fixture *f = *state;
    copy(f, "k", "B");
    copy(f, "k", "C");
    read_often(f, "k", 50);
    assert_int_equal(fetch(f), 0); /* the limit is two */
    tick_for_ms(f, 50000);
    assert_int_equal(replica_count(f, "k"), 3);
}

static void test_the_only_replica_left_is_no_copy(void **state) {
    struct fixture *f = *state;
    struct mw_a_replica_clear clear = {strs(f, 1, (const char *[]){"k"}), client_a, str("A")};
    struct mw_e_vec r;
    f->config.processing_task_timeout_ms = 1000;
    copy_somewhere(f);
    tick_for_ms(f, 1100); /* the leases */
    call(f, MC_RPC_BatchReplicaClear, &clear, &r);
    assert_int_equal(r.value.count, 1);
    clear.segment = str("B");
    call(f, MC_RPC_BatchReplicaClear, &clear, &r);
    assert_int_equal(r.value.count, 1);
    tick_for_ms(f, 400000);
    assert_int_equal(replica_count(f, "k"), 1);
}

/* What was put in the place of a hot object has the replicas that its writer asked for. */
static void test_another_object_of_the_key_loses_nothing(void **state) {
    struct fixture *f = *state;
    read_often(f, "k", THRESHOLD);
    assert_int_equal(fetch(f), 1);
    assert_ok(remove_key(f, "k", true));
    assert_ok(put_with(f, "k", 1000, replicas(3)));
    assert_int_equal(replica_count(f, "k"), 3);
    tick_for_ms(f, 400000); /* the task that nobody has done is given up, too */
    assert_int_equal(replica_count(f, "k"), 3);
    assert_int_equal(metric(f, "master_cold_copies_total"), 0);
}

static void test_observing_asks_for_nothing(void **state) {
    struct fixture *f = *state;
    f->config.dynamic_replication = MC_DYNAMIC_OBSERVE;
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    mount(f, "B", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 1000));
    read_often(f, "k", 50);
    assert_int_equal(fetch(f), 0);
    assert_int_equal(metric(f, "master_hot_objects_total"), 1);
    assert_int_equal(metric(f, "master_hot_copies_total"), 0);
}

static void test_a_full_memory_takes_no_copies(void **state) {
    struct fixture *f = *state;
    char key[16];
    for (unsigned i = 0; i < 42; i++) { /* 42 of 48 MiB */
        snprintf(key, sizeof(key), "fill%u", i);
        assert_ok(put(f, key, 1 << 20));
    }
    read_often(f, "k", THRESHOLD);
    assert_int_equal(fetch(f), 0);
    assert_int_equal(metric(f, "master_hot_objects_total"), 1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_hot_object_gets_one_copy),
        TEST(test_reads_of_batches_count_and_those_of_long_ago_do_not),
        TEST(test_a_copy_goes_when_its_object_cools_down),
        TEST(test_copies_that_somebody_asked_for_stay),
        TEST(test_the_only_replica_left_is_no_copy),
        TEST(test_another_object_of_the_key_loses_nothing),
        TEST(test_observing_asks_for_nothing),
        TEST(test_a_full_memory_takes_no_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
