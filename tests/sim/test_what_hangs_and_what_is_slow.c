/*
 * The real engine over one simulated rail in virtual time: what has only become slow is left alone,
 * what was lost or hangs is given up, and with no other way left a request goes on until its
 * deadline, not less and not more.
 */
#include "base/log.h"
#include "support/sim_rails.h"
#include "support/support.h"

#define LEAST (5 * MC_SEC) /* attempt_timeout_ms */

static struct sim_rails *world_new(double bandwidth) {
    struct sim_rails *w = calloc(1, sizeof(*w));
    w->count = 1;
    w->rails[0] = (struct sim_rail){.bandwidth = bandwidth, .latency_ns = 5000, .up = true};
    sim_rails_start(w, 1);
    return w;
}

static void world_end(struct sim_rails *w) {
    assert_string_equal(w->broken, "");
    sim_rails_stop(w);
    free(w);
}

static struct mc_batch *submit(struct sim_rails *w, uint64_t length, uint64_t deadline_ns) {
    struct mc_batch *batch;
    struct mc_transfer_request r = {.op = MC_TRANSFER_WRITE,
                                    .local = w->space,
                                    .segment = MC_LOCAL_SEGMENT,
                                    .remote_addr = (uint64_t)(uintptr_t)w->space,
                                    .length = length};
    assert_ok(mc_batch_create(w->engine, 1, &batch));
    assert_ok(mc_batch_submit(batch, &r, 1, deadline_ns));
    return batch;
}

/* The state after so long. */
static enum mc_task_state look_after(struct sim_rails *w, struct mc_batch *batch, uint64_t ns) {
    struct mc_transfer_status status;
    sim_rails_run_until(w, w->now_ns + ns);
    mc_watch_look(w->engine);
    assert_ok(mc_batch_task(batch, 0, &status));
    return status.state;
}

/* How it ends; at most after `most_ns`. */
static enum mc_task_state end_of(struct sim_rails *w, struct mc_batch *batch, uint64_t most_ns) {
    uint64_t until = w->now_ns + most_ns;
    enum mc_task_state state;
    while ((state = look_after(w, batch, MC_WATCH_PERIOD_NS)) < MC_TRANSFER_COMPLETED) {
        assert_true(w->now_ns < until);
    }
    assert_ok(mc_batch_free(batch));
    return state;
}

static int64_t given_up(const struct sim_rails *w) {
    return mc_metric_get(&w->engine->attempts_given_up);
}

static void what_is_slow_is_left_alone(void **state) {
    struct sim_rails *w = world_new(1.0);
    assert_int_equal(end_of(w, submit(w, 64 << 20, MC_WAIT_FOREVER), MC_SEC),
                     MC_TRANSFER_COMPLETED);
    w->rails[0].bandwidth = 0.0003; /* 64 slices of 3.5 s each */
    uint64_t began = w->now_ns;
    assert_int_equal(end_of(w, submit(w, 64 << 20, MC_WAIT_FOREVER), 300 * MC_SEC),
                     MC_TRANSFER_COMPLETED);
    assert_true(w->now_ns - began > 200 * MC_SEC);
    assert_int_equal(given_up(w), 0);
    world_end(w);
}

static void what_others_overtake_is_lost(void **state) {
    struct sim_rails *w = world_new(0.1);
    uint64_t began = w->now_ns;
    struct mc_batch *lost = submit(w, 1 << 20, MC_WAIT_FOREVER);
    assert_int_equal(w->flight_count, 1);
    w->flights[0].number = w->number++; /* its end finds another flight */
    do {                                /* others keep the rail busy */
        assert_int_equal(end_of(w, submit(w, 1 << 20, MC_WAIT_FOREVER), MC_SEC),
                         MC_TRANSFER_COMPLETED);
        assert_true(w->now_ns - began < 3 * LEAST);
    } while (given_up(w) == 0);
    assert_true(w->now_ns - began >= LEAST);
    assert_int_equal(end_of(w, lost, MC_SEC), MC_TRANSFER_COMPLETED);
    world_end(w);
}

static void the_only_way_is_tried_until_the_deadline(void **state) {
    struct sim_rails *w = world_new(1.0);
    sim_rail_hang(w, 0);
    struct mc_batch *batch = submit(w, 4 << 20, w->now_ns + 100 * MC_SEC);
    uint64_t returns = w->now_ns + 80 * MC_SEC;
    while (w->now_ns < returns) {
        assert_true(look_after(w, batch, MC_WATCH_PERIOD_NS) < MC_TRANSFER_COMPLETED);
    }
    w->rails[0].hung = false;
    assert_int_equal(end_of(w, batch, 2 * LEAST), MC_TRANSFER_COMPLETED);
    assert_true(given_up(w) >= 10);
    world_end(w);
}

static void a_way_that_hangs_for_good_ends_with_the_deadline(void **state) {
    struct sim_rails *w = world_new(1.0);
    sim_rail_hang(w, 0);
    uint64_t deadline = w->now_ns + 100 * MC_SEC;
    assert_int_equal(end_of(w, submit(w, 4 << 20, deadline), 200 * MC_SEC), MC_TRANSFER_TIMEOUT);
    assert_in_range(w->now_ns, deadline, deadline + 2 * MC_WATCH_PERIOD_NS);
    /* Nobody said how long to wait: some attempts, and an end. */
    assert_int_equal(end_of(w, submit(w, 4 << 20, MC_WAIT_FOREVER), 60 * MC_SEC),
                     MC_TRANSFER_TIMEOUT);
    world_end(w);
}

int main(void) {
    (void)!mc_log_set_level("error");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_slow_is_left_alone),
        cmocka_unit_test(what_others_overtake_is_lost),
        cmocka_unit_test(the_only_way_is_tried_until_the_deadline),
        cmocka_unit_test(a_way_that_hangs_for_good_ends_with_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
