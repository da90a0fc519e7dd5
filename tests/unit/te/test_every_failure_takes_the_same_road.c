/*
 * A transport that fails on demand, at each stage: refusing the post, completing with an error at
 * once or from another thread, reporting a time-out, never answering. The engine tries the same
 * transport again where that may help, then the next, and a task ends with its first error only
 * when every road is closed. MC_TEST_THREADS.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "unit/te/te_support.h"

#define SIZE 100000

/* ---- the transport ---- */

struct fault { /* what a transport does; one for each of the two */
    uint32_t cost;
    _Atomic int refuse; /* so many posts are refused */
    _Atomic int fail;   /* so many slices end with `error` */
    enum mc_status error;
    bool retryable;
    bool async;          /* slices end on a thread of its own */
    bool hold;           /* slices never end but by cancel */
    bool rejects_serves; /* serves() says no */
    _Atomic int posts;
    _Atomic int moved; /* slices whose bytes were moved */
    _Atomic int cancelled;
    pthread_mutex_t lock;
    struct mc_list held;
};
static struct fault faults[2];

struct fault_transport {
    struct mc_transport base;
    struct fault *fault;
};

static struct fault *fault_of(struct mc_transport *t) {
    return mc_container_of(t, struct fault_transport, base)->fault;
}

static void end_slice(struct fault *f, struct mc_slice_op *slice) {
    if (atomic_fetch_sub(&f->fail, 1) > 0) {
        mc_slice_done(slice, f->error, f->retryable);
        return;
    }
    atomic_store(&f->fail, 0);
    void *remote = (void *)(uintptr_t)slice->remote; /* the peer is in this process */
    memcpy(slice->op == MC_TRANSFER_READ ? slice->local : remote,
           slice->op == MC_TRANSFER_READ ? remote : slice->local, slice->length);
    atomic_fetch_add(&f->moved, 1);
    mc_slice_done(slice, MC_OK, false);
}

struct async_end {
    struct fault *fault;
    size_t count;
    struct mc_slice_op *slices[64];
};

static void *async_main(void *arg) {
    struct async_end *work = arg;
    usleep(1000);
    for (size_t i = 0; i < work->count; i++) {
        end_slice(work->fault, work->slices[i]);
    }
    free(work);
    return NULL;
}

static enum mc_status fault_post(struct mc_transport *t, struct mc_slice_op **slices,
                                 size_t count) {
    struct fault *f = fault_of(t);
    atomic_fetch_add(&f->posts, 1);
    if (f->refuse > 0) {
        f->refuse--;
        return f->error;
    }
    if (f->hold) {
        pthread_mutex_lock(&f->lock);
        for (size_t i = 0; i < count; i++) {
            mc_list_push_back(&f->held, &slices[i]->transport_link);
        }
        pthread_mutex_unlock(&f->lock);
        return MC_OK;
    }
    if (f->async) {
        struct async_end *work = mc_zalloc(sizeof(*work));
        pthread_t thread;
        work->fault = f;
        work->count = count;
        memcpy(work->slices, slices, count * sizeof(*slices));
        assert_int_equal(pthread_create(&thread, NULL, async_main, work), 0);
        pthread_detach(thread);
        return MC_OK;
    }
    struct mc_slice_op *mine[64];
    memcpy(mine, slices, count * sizeof(*slices));
    for (size_t i = 0; i < count; i++) {
        end_slice(f, mine[i]);
    }
    return MC_OK;
}

static void fault_cancel(struct mc_transport *t, struct mc_segment *segment, void *task) {
    struct fault *f = fault_of(t);
    struct mc_list taken;
    mc_list_init(&taken);
    pthread_mutex_lock(&f->lock);
    for (struct mc_list *at = f->held.next, *next; at != &f->held; at = next) {
        next = at->next;
        if (mc_container_of(at, struct mc_slice_op, transport_link)->task == task) {
            mc_list_del(at);
            mc_list_push_back(&taken, at);
        }
    }
    pthread_mutex_unlock(&f->lock);
    while (!mc_list_empty(&taken)) {
        struct mc_slice_op *slice = mc_container_of(taken.next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        atomic_fetch_add(&f->cancelled, 1);
        mc_slice_done(slice, MC_ERR_TIMEOUT, false);
    }
}

static void fault_give_up(struct mc_transport *t, struct mc_segment *segment, void *task,
                          unsigned rail) {
    fault_cancel(t, segment, task);
}

static uint32_t fault_cost(struct mc_transport *t, struct mc_segment *segment,
                           const struct mc_peer_desc *desc) {
    return fault_of(t)->cost;
}

static bool fault_serves(struct mc_transport *t, struct mc_segment *segment,
                         const struct mc_slice_op *slice) {
    return !fault_of(t)->rejects_serves;
}

static enum mc_status start(struct fault *f, const struct mc_transport_ops *ops,
                            struct mc_engine *engine, unsigned index, struct mc_transport **out) {
    struct fault_transport *t = mc_zalloc(sizeof(*t));
    t->base = (struct mc_transport){ops, engine, index};
    t->fault = f;
    *out = &t->base;
    return MC_OK;
}

static void fault_stop(struct mc_transport *t) {
    free(mc_container_of(t, struct fault_transport, base));
}

static const struct mc_transport_ops first_ops, second_ops;
static enum mc_status start_first(struct mc_engine *e, unsigned index, struct mc_transport **out) {
    return start(&faults[0], &first_ops, e, index, out);
}
static enum mc_status start_second(struct mc_engine *e, unsigned index, struct mc_transport **out) {
    return start(&faults[1], &second_ops, e, index, out);
}
static const struct mc_transport_ops first_ops = {.name = "first",
                                                  .slice_bytes = 16384,
                                                  .start = start_first,
                                                  .stop = fault_stop,
                                                  .cost = fault_cost,
                                                  .serves = fault_serves,
                                                  .post = fault_post,
                                                  .cancel = fault_cancel,
                                                  .give_up = fault_give_up};
static const struct mc_transport_ops second_ops = {.name = "second",
                                                   .slice_bytes = 16384,
                                                   .start = start_second,
                                                   .stop = fault_stop,
                                                   .cost = fault_cost,
                                                   .serves = fault_serves,
                                                   .post = fault_post,
                                                   .cancel = fault_cancel};
static const struct mc_transport_ops *const fault_table[] = {&first_ops, &second_ops};

/* ---- the scene ---- */

struct scene {
    struct mc_engine *a; /* with faults */
    struct mc_engine *b;
    mc_segment_id segment;
    char remote[SIZE];
    char local[SIZE];
    struct mc_transfer_request read;
};

static int set_up_with(void **state, const char *policy) {
    struct scene *s = calloc(1, sizeof(*s));
    struct mc_engine_options options;
    for (int i = 0; i < 2; i++) {
        memset(&faults[i], 0, sizeof(faults[i]));
        faults[i].cost = 10 + (uint32_t)i;
        faults[i].error = i == 0 ? MC_ERR_IO : MC_ERR_CLOSED;
        pthread_mutex_init(&faults[i].lock, NULL);
        mc_list_init(&faults[i].held);
    }
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.policy = policy;
    assert_ok(mc_engine_create_with(&options, fault_table, 2, &s->a));
    assert_ok(mc_engine_create(&options, &s->b));
    assert_ok(mc_memory_register(s->b, s->remote, SIZE, "*", 0));
    assert_ok(mc_segment_open(s->a, mc_engine_name(s->b), &s->segment));
    mc_test_fill(s->remote, SIZE, 7);
    s->read = (struct mc_transfer_request){MC_TRANSFER_READ, s->local, s->segment,
                                           (uint64_t)(uintptr_t)s->remote, SIZE};
    *state = s;
    return 0;
}

static int set_up(void **state) {
    return set_up_with(state, NULL);
}
static int set_up_impatient(void **state) {
    return set_up_with(state, "{\"attempt_timeout_ms\": 20}");
}

static int set_up_with_a_budget_of_one(void **state) {
    return set_up_with(state, "{\"max_failover_attempts\": 1}");
}

static int tear_down(void **state) {
    struct scene *s = *state;
    mc_engine_destroy(s->a);
    assert_ok(mc_memory_unregister(s->b, s->remote));
    mc_engine_destroy(s->b);
    free(s);
    return 0;
}

static void read_all(struct scene *s) {
    memset(s->local, 0, SIZE);
    assert_ok(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(10000)));
    mc_test_verify(s->local, SIZE, 7);
}

/* ---- tests ---- */

static void the_cheaper_transport_serves_in_slices(void **state) {
    struct scene *s = *state;
    read_all(s);
    assert_int_equal(faults[0].moved, 7); /* 100000 in slices of at most 16384 */
    assert_int_equal(faults[1].posts, 0);
    faults[0].cost = 20;
    read_all(s);
    assert_int_equal(faults[0].moved, 7);
    assert_int_equal(faults[1].moved, 7);
    faults[1].rejects_serves = true; /* not a failure, just another road */
    read_all(s);
    assert_int_equal(faults[0].moved, 14);
    assert_int_equal(te_counter(s->a, "mooncake_te_slice_failures_total{transport=\"second\"}"), 0);
}

static void a_refused_post_is_tried_again(void **state) {
    struct scene *s = *state;
    faults[0].refuse = 2;
    read_all(s);
    assert_int_equal(faults[1].posts, 0);
    assert_int_equal(faults[0].moved, 7);
    assert_true(te_counter(s->a, "mooncake_te_slice_retries_total{transport=\"first\"}") > 0);
}

static void a_transport_that_refuses_always_is_left(void **state) {
    struct scene *s = *state;
    faults[0].refuse = 1000;
    read_all(s);
    assert_int_equal(faults[0].moved, 0);
    assert_int_equal(faults[1].moved, 7);
    assert_int_equal(te_counter(s->a, "mooncake_te_slice_failovers_total{transport=\"first\"}"), 7);
}

/* The first transport takes slices and never says a word; nobody has set a deadline. */
static void a_transport_that_hangs_is_left(void **state) {
    struct scene *s = *state;
    faults[0].hold = true;
    memset(s->local, 0, SIZE);
    assert_ok(mc_transfer(s->a, &s->read, 1, MC_WAIT_FOREVER));
    mc_test_verify(s->local, SIZE, 7);
    assert_int_equal(faults[0].moved, 0);
    assert_int_equal(faults[1].moved, 7);
    assert_int_equal(faults[0].cancelled, 7); /* its only rail, which hangs, is not tried twice */
    assert_true(te_counter(s->a, "mooncake_te_attempts_given_up_total") > 0);
    assert_int_equal(te_counter(s->a, "mooncake_te_tasks_timed_out_total"), 0);
    /* Batches that somebody waits for in another call are looked at as well. */
    struct mc_batch *batch;
    memset(s->local, 0, SIZE);
    assert_ok(mc_batch_create(s->a, 1, &batch));
    assert_ok(mc_batch_submit(batch, &s->read, 1, MC_WAIT_FOREVER));
    assert_ok(mc_batch_wait(batch, MC_WAIT_FOREVER));
    assert_ok(mc_batch_free(batch));
    mc_test_verify(s->local, SIZE, 7);
}

/* With no other transport the one that hangs is the last resort, and so once more after the peer
 * was asked; nobody has set a deadline. */
static void the_only_transport_that_hangs_is_tried_again(void **state) {
    struct scene *s = *state;
    faults[0].hold = true;
    faults[1].rejects_serves = true;
    s->read.length = 1000; /* one slice */
    assert_int_equal(mc_transfer(s->a, &s->read, 1, MC_WAIT_FOREVER), MC_ERR_TIMEOUT);
    assert_int_equal(faults[0].cancelled, 4);
    assert_int_equal(te_counter(s->a, "mooncake_te_attempts_given_up_total"), 4);
    /* It never went anywhere else. */
    assert_int_equal(te_counter(s->a, "mooncake_te_slice_failovers_total{transport=\"first\"}"), 0);
    faults[0].hold = false;
    s->read.length = SIZE;
    read_all(s);
}

static void a_retryable_completion_stays_on_the_transport(void **state) {
    struct scene *s = *state;
    faults[0].fail = 2;
    faults[0].retryable = true;
    read_all(s);
    assert_int_equal(faults[0].moved, 7);
    assert_int_equal(faults[1].posts, 0);
    assert_int_equal(te_counter(s->a, "mooncake_te_slice_retries_total{transport=\"first\"}"), 2);
}

/* Others' slices are given up, and the connection with them: no try of this one's, no pause. */
static void who_ends_with_others_is_posted_again(void **state) {
    struct scene *s = *state;
    faults[0].fail = 10;
    faults[0].error = MC_ERR_CANCELLED;
    faults[0].retryable = true;
    s->read.length = 1000; /* one slice */
    assert_ok(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(10000)));
    assert_memory_equal(s->local, s->remote, 1000);
    assert_int_equal(faults[0].posts, 11);
    assert_int_equal(faults[1].posts, 0);
}

static void a_final_completion_error_goes_to_the_next(void **state) {
    struct scene *s = *state;
    faults[0].fail = 3;
    faults[0].retryable = false;
    read_all(s);
    assert_int_equal(faults[0].moved, 4);
    assert_int_equal(faults[1].moved, 3); /* what was complete was not moved again */
    /* The peer may be another now: it is asked before the next request goes there. */
    int64_t fetches = te_counter(s->a, "mooncake_te_descriptor_fetches_total");
    read_all(s);
    assert_true(te_counter(s->a, "mooncake_te_descriptor_fetches_total") > fetches);
}

static void a_transports_timeout_goes_the_same_way(void **state) {
    struct scene *s = *state;
    faults[0].fail = 1000;
    faults[0].error = MC_ERR_TIMEOUT;
    faults[0].retryable = true;
    read_all(s);
    assert_int_equal(faults[0].moved, 0);
    assert_int_equal(faults[0].fail,
                     1000 - 3 * 7); /* lost is not hung: three posts of each slice */
    assert_int_equal(faults[1].moved, 7);
}

static void failures_from_another_thread_go_the_same_way(void **state) {
    struct scene *s = *state;
    faults[0].async = faults[1].async = true;
    faults[0].fail = 9;
    faults[0].retryable = true;
    faults[1].fail = 0;
    for (int i = 0; i < 5; i++) {
        read_all(s);
    }
    assert_int_equal(faults[0].moved + faults[1].moved, 5 * 7);
}

static void when_every_road_is_closed_the_first_error_is_told(void **state) {
    struct scene *s = *state;
    faults[0].fail = faults[1].fail = 100000;
    memset(s->local, 0x11, SIZE);
    assert_int_equal(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(10000)), MC_ERR_IO);
    for (size_t i = 0; i < SIZE; i++) {
        assert_int_equal(s->local[i], 0x11);
    }
    /* Asked once more. */
    assert_true(te_counter(s->a, "mooncake_te_descriptor_fetches_total") >= 2);
    assert_int_equal(te_counter(s->a, "mooncake_te_tasks_failed_total"), 1);
    faults[0].fail = faults[1].fail = 0;
    read_all(s); /* the next request finds its way */
}

/* One failure for each slice of the task, whichever of them has it: the third of two is too many.
 */
static void the_budget_is_the_tasks(void **state) {
    struct scene *s = *state;
    faults[0].retryable = true;
    s->read.length = 20000; /* two slices */
    faults[0].fail = 2;
    assert_ok(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(10000)));
    assert_memory_equal(s->local, s->remote, 20000);
    faults[0].fail = 3;
    assert_int_equal(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(10000)), MC_ERR_IO);
    assert_int_equal(faults[1].posts, 0);
}

/* "Unreachable" means that no byte can arrive any more, and its hearer gives the place to somebody
 * else: a write that another attempt left in doubt must not be told so. */
static void a_write_in_doubt_is_never_called_over(void **state) {
    struct scene *s = *state;
    struct mc_transfer_request write = s->read;
    write.op = MC_TRANSFER_WRITE;
    for (int first = 0; first < 2; first++) {
        for (int i = 0; i < 2; i++) {
            faults[i].fail = 100000;
            faults[i].error = i == first ? MC_ERR_UNREACHABLE : MC_ERR_TIMEOUT;
        }
        assert_int_equal(mc_transfer(s->a, &write, 1, mc_deadline_in_ms(10000)), MC_ERR_TIMEOUT);
        /* Of a read it is of no importance: what happened first is told. */
        assert_int_equal(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(10000)), faults[0].error);
    }
    faults[0].error = MC_ERR_CLOSED;
    faults[1].error = MC_ERR_UNREACHABLE;
    assert_int_equal(mc_transfer(s->a, &write, 1, mc_deadline_in_ms(10000)), MC_ERR_CLOSED);
}

static void a_long_request_is_cut_where_it_ends(void **state) {
    enum { LENGTH = 65 * 16384, GUARD = 1 << 20 }; /* more slices of 16384 than a task may have */
    struct scene *s = *state;
    char *remote = calloc(1, LENGTH + GUARD), *local = malloc(LENGTH + GUARD);
    assert_ok(mc_memory_register(s->b, remote, LENGTH, "*", 0));
    assert_ok(mc_segment_refresh(s->a, s->segment));
    mc_test_fill(remote, LENGTH, 3);
    memset(local, 0x11, LENGTH + GUARD);
    struct mc_transfer_request read = {MC_TRANSFER_READ, local, s->segment,
                                       (uint64_t)(uintptr_t)remote, LENGTH};
    assert_ok(mc_transfer(s->a, &read, 1, mc_deadline_in_ms(10000)));
    mc_test_verify(local, LENGTH, 3);
    for (size_t i = LENGTH; i < LENGTH + GUARD; i++) {
        assert_int_equal(local[i], 0x11);
    }
    assert_true(faults[0].moved > 7 && faults[0].moved <= 64);
    assert_ok(mc_memory_unregister(s->b, remote));
    free(remote);
    free(local);
}

static void no_transport_at_all_is_an_error(void **state) {
    struct scene *s = *state;
    faults[0].cost = faults[1].cost = UINT32_MAX;
    assert_int_equal(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(10000)), MC_ERR_NO_TRANSPORT);
}

static void one_task_fails_and_the_others_do_not(void **state) {
    struct scene *s = *state;
    struct mc_batch *batch = NULL;
    struct mc_transfer_request requests[4];
    for (int i = 0; i < 4; i++) {
        requests[i] = s->read;
        requests[i].local = s->local + i * 1000;
        requests[i].remote_addr += (uint64_t)i * 1000;
        requests[i].length = 1000;
    }
    requests[1].remote_addr = (uint64_t)(uintptr_t)s->remote + SIZE - 10; /* leaves the buffer */
    requests[2].segment = 4711;
    assert_ok(mc_batch_create(s->a, 4, &batch));
    assert_ok(mc_batch_submit(batch, requests, 4, mc_deadline_in_ms(10000)));
    assert_int_not_equal(mc_batch_wait(batch, mc_deadline_in_ms(10000)), MC_OK);
    static const enum mc_status expected[4] = {MC_OK, MC_ERR_NOT_REGISTERED, MC_SEGMENT_NOT_FOUND,
                                               MC_OK};
    for (size_t i = 0; i < 4; i++) {
        struct mc_transfer_status status;
        assert_ok(mc_batch_task(batch, i, &status));
        assert_int_equal(status.error, expected[i]);
        assert_int_equal(status.state,
                         expected[i] == MC_OK ? MC_TRANSFER_COMPLETED : MC_TRANSFER_FAILED);
        assert_int_equal(status.transferred_bytes, expected[i] == MC_OK ? 1000 : 0);
    }
    assert_memory_equal(s->local, s->remote, 1000);
    assert_memory_equal(s->local + 3000, s->remote + 3000, 1000);
    assert_ok(mc_batch_free(batch));
}

static void a_deadline_ends_what_never_answers(void **state) {
    struct scene *s = *state;
    faults[0].hold = true;
    memset(s->local, 0x11, SIZE);
    assert_int_equal(mc_transfer(s->a, &s->read, 1, mc_deadline_in_ms(30)), MC_ERR_TIMEOUT);
    assert_int_equal(faults[0].cancelled, 7);
    assert_true(mc_list_empty(&faults[0].held));
    struct mc_batch *batch = NULL; /* nobody waits: looking at the task is enough */
    struct mc_transfer_status status;
    assert_ok(mc_batch_create(s->a, 1, &batch));
    assert_ok(mc_batch_submit(batch, &s->read, 1, mc_deadline_in_ms(20)));
    usleep(25000);
    assert_ok(mc_batch_task(batch, 0, &status));
    assert_int_equal(status.state, MC_TRANSFER_TIMEOUT);
    assert_int_equal(status.error, MC_ERR_TIMEOUT);
    assert_int_equal(mc_batch_wait(batch, MC_WAIT_FOREVER), MC_ERR_TIMEOUT);
    assert_ok(mc_batch_free(batch));
    assert_true(mc_list_empty(&faults[0].held));
    for (size_t i = 0; i < SIZE; i++) {
        assert_int_equal(s->local[i], 0x11);
    }
    faults[0].hold = false;
    assert_int_equal(mc_transfer(s->a, &s->read, 1, 1), MC_ERR_TIMEOUT); /* passed already */
    read_all(s);
}

static void a_wait_that_gives_up_leaves_the_task_alone(void **state) {
    struct scene *s = *state;
    struct mc_batch *batch = NULL;
    struct mc_transfer_status status;
    faults[0].hold = true;
    memset(s->local, 0, SIZE);
    assert_ok(mc_batch_create(s->a, 1, &batch));
    assert_ok(mc_batch_submit(batch, &s->read, 1, MC_WAIT_FOREVER));
    assert_int_equal(mc_batch_wait(batch, mc_deadline_in_ms(5)), MC_ERR_TIMEOUT);
    assert_ok(mc_batch_task(batch, 0, &status));
    assert_int_equal(status.state, MC_TRANSFER_PENDING);
    assert_int_equal(mc_batch_free(batch), MC_ERR_BUSY);
    while (!mc_list_empty(&faults[0].held)) { /* now it answers */
        struct mc_slice_op *slice =
            mc_container_of(faults[0].held.next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        end_slice(&faults[0], slice);
    }
    assert_ok(mc_batch_wait(batch, mc_deadline_in_ms(0)));
    mc_test_verify(s->local, SIZE, 7);
    assert_ok(mc_batch_free(batch));
}

static void destroying_the_engine_ends_what_is_in_flight(void **state) {
    struct scene *s = *state;
    struct mc_batch *batch = NULL;
    struct mc_transfer_status status;
    faults[0].hold = true;
    assert_ok(mc_batch_create(s->a, 1, &batch));
    assert_ok(mc_batch_submit(batch, &s->read, 1, MC_WAIT_FOREVER));
    mc_engine_destroy(s->a);
    s->a = NULL;
    assert_ok(mc_batch_task(batch, 0, &status));
    assert_int_equal(status.state, MC_TRANSFER_FAILED);
    assert_int_equal(status.error, MC_ERR_CANCELLED);
    assert_int_equal(mc_batch_wait(batch, MC_WAIT_FOREVER), MC_ERR_CANCELLED);
    assert_int_equal(mc_batch_submit(batch, &s->read, 1, MC_WAIT_FOREVER), MC_ERR_CLOSED);
    assert_ok(mc_batch_free(batch));
}

static void *transfer_main(void *arg) {
    struct scene *s = arg;
    return (void *)(intptr_t)mc_transfer(s->a, &s->read, 1, MC_WAIT_FOREVER);
}

static void destroying_the_engine_wakes_a_waiter(void **state) {
    struct scene *s = *state;
    pthread_t thread;
    void *result = NULL;
    faults[0].hold = true;
    assert_int_equal(pthread_create(&thread, NULL, transfer_main, s), 0);
    bool held = false;
    while (!held) {
        usleep(1000);
        pthread_mutex_lock(&faults[0].lock);
        held = !mc_list_empty(&faults[0].held);
        pthread_mutex_unlock(&faults[0].lock);
    }
    usleep(20000); /* it has told the engine that it waits */
    mc_engine_destroy(s->a);
    s->a = NULL;
    pthread_join(thread, &result);
    assert_int_equal((intptr_t)result, MC_ERR_CANCELLED);
}

static void *wait_main(void *arg) {
    return (void *)(intptr_t)mc_batch_wait(arg, MC_WAIT_FOREVER);
}

static void destroying_the_engine_wakes_who_waits_for_a_batch(void **state) {
    struct scene *s = *state;
    struct mc_batch *batch = NULL;
    pthread_t thread;
    void *result = NULL;
    faults[0].hold = true;
    assert_ok(mc_batch_create(s->a, 1, &batch));
    assert_ok(mc_batch_submit(batch, &s->read, 1, MC_WAIT_FOREVER));
    assert_int_equal(pthread_create(&thread, NULL, wait_main, batch), 0);
    usleep(20000);
    mc_engine_destroy(s->a);
    s->a = NULL;
    pthread_join(thread, &result);
    assert_int_equal((intptr_t)result, MC_ERR_CANCELLED);
    assert_ok(mc_batch_free(batch));
}

#define ROAD_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        ROAD_TEST(the_cheaper_transport_serves_in_slices),
        ROAD_TEST(a_refused_post_is_tried_again),
        ROAD_TEST(a_transport_that_refuses_always_is_left),
        cmocka_unit_test_setup_teardown(the_budget_is_the_tasks, set_up_with_a_budget_of_one,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_transport_that_hangs_is_left, set_up_impatient,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_only_transport_that_hangs_is_tried_again,
                                        set_up_impatient, tear_down),
        ROAD_TEST(a_retryable_completion_stays_on_the_transport),
        ROAD_TEST(who_ends_with_others_is_posted_again),
        ROAD_TEST(a_final_completion_error_goes_to_the_next),
        ROAD_TEST(a_transports_timeout_goes_the_same_way),
        ROAD_TEST(failures_from_another_thread_go_the_same_way),
        ROAD_TEST(when_every_road_is_closed_the_first_error_is_told),
        ROAD_TEST(a_write_in_doubt_is_never_called_over),
        ROAD_TEST(a_long_request_is_cut_where_it_ends),
        ROAD_TEST(no_transport_at_all_is_an_error),
        ROAD_TEST(one_task_fails_and_the_others_do_not),
        ROAD_TEST(a_deadline_ends_what_never_answers),
        ROAD_TEST(a_wait_that_gives_up_leaves_the_task_alone),
        ROAD_TEST(destroying_the_engine_ends_what_is_in_flight),
        ROAD_TEST(destroying_the_engine_wakes_a_waiter),
        ROAD_TEST(destroying_the_engine_wakes_who_waits_for_a_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
