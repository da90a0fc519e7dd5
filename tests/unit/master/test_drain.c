/*
 * A drained segment takes nothing new, is readable until it is empty, and is DRAINED only when no
 * reader or writer can be there any more; a job that cannot succeed says so and gives its segments
 * back.
 */
#include <stdio.h>

#include "support/master_fixture.h"

static enum mc_status drain_to(struct fixture *f, const char *from, const char *to,
                               uint64_t concurrency, struct mc_uuid *job) {
    struct mc_str source = str(from), target = to ? str(to) : (struct mc_str){0};
    struct mc_vec segments = {&source, 1}, targets = {&target, to != NULL};
    return mc_master_drain(f->m, &segments, &targets, concurrency, false, job);
}
static struct mc_master_job_info look(struct fixture *f, struct mc_uuid job) {
    struct mc_master_job_info info = {0};
    assert_ok(mc_master_job(f->m, job, &f->arena, &info));
    return info;
}
static int32_t segment_status(struct fixture *f, const char *name) {
    struct mc_str s = str(name);
    struct mw_e_i32 r;
    call(f, MC_RPC_QuerySegmentStatus, &s, &r);
    assert_ok(r.error);
    return r.value;
}

/* What a node would do: every task of the client, carried out or refused. */
static unsigned work(struct fixture *f, struct mc_uuid client, bool succeed) {
    struct mw_a_fetch_tasks fetch = {client, 100};
    struct mw_e_vec tasks;
    call(f, MC_RPC_FetchTasks, &fetch, &tasks);
    for (size_t i = 0; i < tasks.value.count; i++) {
        const struct mw_task_assignment *t =
            (const struct mw_task_assignment *)tasks.value.items + i;
        char key[64], source[64], target[64];
        char *text = mc_str_dup(t->payload);
        assert_int_equal(t->type, MC_TASK_MOVE);
        assert_int_equal(sscanf(text,
                                "{\"tenant_id\":\"default\",\"key\":\"%63[^\"]\",\"source\":\"%63["
                                "^\"]\",\"target\":\"%63[^\"]\"}",
                                key, source, target),
                         3);
        free(text);
        struct mc_uuid mover = {7, i};
        struct mw_a_move_start start = {mover, str(key), str("default"), str(source), str(target)};
        struct mw_a_client_key end = {mover, str(key), str("default")};
        struct mw_e_move started;
        struct mw_e_void r = {0};
        if (succeed) {
            call(f, MC_RPC_MoveStart, &start, &started);
            assert_ok(started.error);
            call(f, MC_RPC_MoveEnd, &end, &r);
            assert_ok(r.error);
        }
        struct mw_a_task_complete done = {
            client, {t->id, succeed ? MC_TASK_SUCCESS : MC_TASK_FAILED, str("x")}};
        call(f, MC_RPC_MarkTaskToComplete, &done, &r);
        assert_ok(r.error);
    }
    return (unsigned)tasks.value.count;
}

static void alive(struct fixture *f) {
    (void)ping(f, client_a);
    (void)ping(f, client_b);
}

static void run(struct fixture *f, struct mc_uuid job, unsigned rounds, bool succeed) {
    for (unsigned i = 0; i < rounds && look(f, job).status < MC_JOB_SUCCEEDED; i++) {
        tick_for_ms(f, 50);
        alive(f);
        work(f, client_a, succeed);
    }
}

#define OBJECTS 100
static int setup(void **state) {
    fixture_setup(state);
    struct fixture *f = *state;
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    for (unsigned i = 0; i < OBJECTS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        assert_ok(put(f, key, 100 + i));
    }
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "C", FIXTURE_SEGMENT_BYTES);
    return 0;
}

static void test_everything_leaves_and_stays_readable(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0};
    assert_ok(drain_to(f, "A", "B", 4, &job));
    assert_int_equal(look(f, job).status, MC_JOB_CREATED);
    assert_int_equal(segment_status(f, "A"), MC_SEGMENT_DRAINING);
    struct mw_replicate_config c = replicas(1);
    c.preferred_segment = str("A");
    assert_ok(put_with(f, "new", 10, c)); /* elsewhere */
    tick(f);
    struct mc_master_job_info info = look(f, job);
    assert_int_equal(info.status, MC_JOB_RUNNING);
    assert_int_equal(info.active, 4);
    run(f, job, 200, true);
    info = look(f, job);
    assert_int_equal(info.status, MC_JOB_SUCCEEDED);
    assert_int_equal(info.succeeded, OBJECTS);
    assert_int_equal(info.failed + info.blocked + info.active, 0);
    assert_int_equal(info.migrated_bytes, 100 * OBJECTS + OBJECTS * (OBJECTS - 1) / 2);
    assert_int_equal(segment_status(f, "A"), MC_SEGMENT_DRAINED);
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct mw_replica_list list = {0};
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        assert_ok(mc_master_peek(f->m, str("default"), str(key), &f->arena, &list));
        assert_int_equal(list.replicas.count, 1);
        const struct mw_replica *r = list.replicas.items;
        assert_true(mc_str_eq(r->memory.endpoint, str("B")));
        assert_int_equal(r->memory.size, 100 + i);
    }
    assert_int_equal(mc_master_job_cancel(f->m, job), MC_UNAVAILABLE_IN_CURRENT_STATUS);
    fixture_check(f);
}

/* With moves always under way nobody could ever cancel: asking makes them run out. */
static void test_asking_twice_cancels_a_busy_job(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0};
    assert_ok(drain_to(f, "A", "B", 4, &job));
    tick(f);
    assert_int_equal(look(f, job).active, 4);
    assert_int_equal(mc_master_job_cancel(f->m, job), MC_UNAVAILABLE_IN_CURRENT_STATUS);
    run(f, job, 3, true);
    struct mc_master_job_info info = look(f, job);
    assert_int_equal(info.status, MC_JOB_RUNNING);
    assert_int_equal(info.active, 0);
    assert_int_equal(info.succeeded, 4);
    assert_ok(mc_master_job_cancel(f->m, job));
    assert_int_equal(look(f, job).status, MC_JOB_CANCELED);
    assert_int_equal(segment_status(f, "A"), MC_SEGMENT_OK);
    /* who asks once and leaves has changed nothing */
    assert_ok(drain_to(f, "A", "B", 4, &job));
    tick(f);
    assert_int_equal(mc_master_job_cancel(f->m, job), MC_UNAVAILABLE_IN_CURRENT_STATUS);
    run(f, job, 400, true);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
    fixture_check(f);
}

static void test_it_ends_only_when_readers_and_writers_have_gone(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0};
    struct mw_replicate_config c = replicas(1);
    struct mc_vec out;
    c.preferred_segment = str("A");
    assert_ok(put_start_with(f, client_a, "default", "slow", 50, c, &out));
    assert_ok(get(f, "k1"));
    assert_ok(drain_to(f, "A", NULL, 100, &job));
    run(f, job, 20, true); /* one second */
    struct mc_master_job_info info = look(f, job);
    assert_int_equal(info.status, MC_JOB_RUNNING);
    assert_int_equal(info.succeeded, OBJECTS);
    assert_int_equal(info.blocked, 1); /* the put that is under way */
    assert_ok(put_end(f, "slow"));
    run(f, job, 20, true);
    info = look(f, job);
    assert_int_equal(info.status, MC_JOB_RUNNING); /* somebody may still read k1 there */
    assert_int_equal(info.succeeded, OBJECTS + 1);
    run(f, job, 200, true); /* ten seconds: his lease has ended */
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
}

static void test_what_is_elsewhere_anyway_is_only_taken_away(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0};
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    assert_ok(put_with(f, "two", 100, replicas(2)));
    assert_ok(drain_to(f, "A", NULL, 4, &job));
    run(f, job, 100, true);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
    assert_int_equal(used_bytes(f), 100);
    assert_true(peek(f, "two"));
}

static void test_questions_that_cannot_be(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0}, other = {0};
    struct mc_vec none = {NULL, 0};
    struct mc_master_job_info info;
    assert_int_equal(mc_master_drain(f->m, &none, &none, 4, false, &job), MC_INVALID_PARAMS);
    assert_int_equal(drain_to(f, "A", NULL, 0, &job), MC_INVALID_PARAMS);
    assert_int_equal(drain_to(f, "A", "A", 4, &job), MC_INVALID_PARAMS);
    assert_int_equal(drain_to(f, "X", NULL, 4, &job), MC_SEGMENT_NOT_FOUND);
    assert_int_equal(drain_to(f, "A", "X", 4, &job), MC_SEGMENT_NOT_FOUND);
    assert_int_equal(segment_status(f, "A"), MC_SEGMENT_OK);
    assert_ok(drain_to(f, "A", NULL, 4, &job));
    assert_int_equal(drain_to(f, "A", NULL, 4, &other), MC_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_ok(mc_master_job_cancel(f->m, job)); /* nothing is being moved yet */
    assert_int_equal(look(f, job).status, MC_JOB_CANCELED);
    assert_int_equal(segment_status(f, "A"), MC_SEGMENT_OK);
    tick_for_ms(f, 200);
    assert_int_equal(look(f, job).succeeded, 0);
    assert_ok(drain_to(f, "A", NULL, 4, &other));
    struct mc_uuid unknown = {1, 2};
    assert_int_equal(mc_master_job(f->m, unknown, &f->arena, &info), MC_JOB_NOT_FOUND);
    assert_int_equal(mc_master_job_cancel(f->m, unknown), MC_JOB_NOT_FOUND);
    for (unsigned i = 0; i < 2 * MC_DRAIN_JOBS_MAX; i++) { /* ended ones are forgotten */
        assert_ok(drain_to(f, "B", NULL, 4, &job));
        assert_ok(mc_master_job_cancel(f->m, job));
    }
    assert_int_equal(look(f, job).status, MC_JOB_CANCELED);
    assert_int_not_equal(look(f, other).status, MC_JOB_CANCELED);
}

static void test_a_job_that_only_fails_gives_up(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0};
    assert_ok(drain_to(f, "A", NULL, 8, &job));
    run(f, job, 100, false);
    struct mc_master_job_info info = look(f, job);
    assert_int_equal(info.status, MC_JOB_FAILED);
    assert_true(info.failed >= 32 && info.failed < 50);
    assert_true(mc_str_eq(info.message, str("too many moves in a row failed")));
    assert_int_equal(segment_status(f, "A"), MC_SEGMENT_OK);
    for (unsigned i = 0; i < OBJECTS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        assert_true(peek(f, key));
    }
    /* And with luck the next time. */
    assert_ok(drain_to(f, "A", NULL, 8, &job));
    run(f, job, 200, true);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
}

static void test_a_segment_that_goes_first_is_a_failure(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0};
    fixture_restart(f);
    struct mc_uuid a = mount(f, "A", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    struct mw_replicate_config c = replicas(1);
    c.preferred_segment = str("A");
    assert_ok(put_with(f, "k", 100, c));
    assert_ok(drain_to(f, "A", NULL, 4, &job));
    assert_ok(unmount(f, a));
    mount(f, "A", FIXTURE_SEGMENT_BYTES); /* the node is back, empty, and not being drained */
    tick_for_ms(f, 300);
    assert_int_equal(look(f, job).status, MC_JOB_FAILED);
    assert_int_equal(segment_status(f, "A"), MC_SEGMENT_OK);
}

static void test_nowhere_to_go_is_waited_for(void **state) {
    struct fixture *f = *state;
    struct mc_uuid job = {0};
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "k", 100));
    assert_ok(drain_to(f, "A", NULL, 4, &job));
    run(f, job, 20, true);
    assert_int_equal(look(f, job).status, MC_JOB_RUNNING);
    assert_int_equal(look(f, job).blocked, 1);
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    run(f, job, 100, true);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
        T(test_everything_leaves_and_stays_readable),
        T(test_asking_twice_cancels_a_busy_job),
        T(test_it_ends_only_when_readers_and_writers_have_gone),
        T(test_what_is_elsewhere_anyway_is_only_taken_away),
        T(test_questions_that_cannot_be),
        T(test_a_job_that_only_fails_gives_up),
        T(test_a_segment_that_goes_first_is_a_failure),
        T(test_nowhere_to_go_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
