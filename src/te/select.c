/*
 * The road of a slice: which transport next, and when it ends.
 *
 * Every failure, of whatever stage (posting refused, completion with an error, a transport's own
 * time-out), takes the same steps: the same transport again while it says that may help and fewer
 * than MC_SLICE_ATTEMPTS posts were made; then the cheapest transport not tried; when none is left
 * the descriptor is fetched once and, if the same peer still answers, the round begins anew; then
 * the slice ends with its first error and so does the task, except that a write whose bytes may
 * still arrive is not called over (mc_write_is_over): whoever hears that gives the place away. A
 * slice known complete never comes here. A cancelled task's slices end at their next step.
 */
#include "base/log.h"
#include "te/internal.h"

static struct mc_transfer_task *task_of(const struct mc_slice_op *slice) {
    return slice->task;
}

static void task_end(struct mc_transfer_task *task) {
    struct mc_engine *engine = task->batch->engine;
    enum mc_status error = atomic_load_explicit(&task->error, memory_order_relaxed);
    enum mc_task_state state = MC_TRANSFER_COMPLETED;
    if (error != MC_OK) {
        state = error == MC_ERR_TIMEOUT ? MC_TRANSFER_TIMEOUT : MC_TRANSFER_FAILED;
        mc_metric_add(error == MC_ERR_TIMEOUT ? &engine->tasks_timed_out : &engine->tasks_failed,
                      1);
    }
    struct mc_batch *batch = task->batch;
    atomic_store_explicit(&task->state, state, memory_order_release);
    mc_batch_task_ended(batch, 1, error);
}

bool mc_write_is_over(enum mc_status error) {
    switch (error) {
    case MC_ERR_UNREACHABLE:
    case MC_ERR_CLOSED:
    case MC_ERR_REJECTED:
    case MC_ERR_NOT_REGISTERED:
    case MC_ERR_NO_TRANSPORT:
    case MC_ERR_BAD_ADDRESS:
    case MC_SEGMENT_NOT_FOUND:
    case MC_INVALID_PARAMS:
        return true;
    default:
        return false;
    }
}

/* Whether `error` is to be told instead of what is known so far. */
static bool outweighs(const struct mc_slice_op *slice, enum mc_status error, int32_t known) {
    return known == MC_OK ||
           (slice->op == MC_TRANSFER_WRITE && mc_write_is_over(known) && !mc_write_is_over(error));
}

void mc_slice_end(struct mc_slice_op *slice, enum mc_status status) {
    struct mc_transfer_task *task = task_of(slice);
    if (status == MC_OK) {
        atomic_fetch_add_explicit(&task->moved, slice->length, memory_order_relaxed);
    } else {
        int32_t known = atomic_load_explicit(&task->error, memory_order_relaxed);
        while (outweighs(slice, status, known) &&
               !atomic_compare_exchange_weak_explicit(&task->error, &known, status,
                                                      memory_order_relaxed, memory_order_relaxed)) {
        }
    }
    /* Pairs with the same operation of the other slices: whoever is last sees all their results. */
    if (atomic_fetch_sub_explicit(&task->pending, 1, memory_order_acq_rel) == 1) {
        task_end(task);
    }
}

void mc_slice_note_failure(struct mc_slice_op *slice, enum mc_status status, bool retryable) {
    struct mc_segment_slot *slot = mc_slot_of(slice->segment);
    struct mc_transport_counters *counters = &slot->base.engine->counters[slice->transport->index];
    mc_metric_add(&counters->failures, 1);
    if (outweighs(slice, status, slice->first_error)) {
        slice->first_error = status;
    }
    atomic_store_explicit(&slot->stale, 1, memory_order_relaxed);
    if (retryable && slice->attempts < MC_SLICE_ATTEMPTS) {
        mc_metric_add(&counters->retries, 1);
        return;
    }
    slice->tried_transports |= 1u << slice->transport->index;
    slice->attempts = 0;
}

/* Whether the slice may go on at all; ends it otherwise. */
static bool may_go_on(struct mc_slice_op *slice) {
    struct mc_transfer_task *task = task_of(slice);
    struct mc_segment_slot *slot = mc_slot_of(slice->segment);
    int32_t cancel = atomic_load_explicit(&task->cancel, memory_order_acquire);
    if (cancel != MC_OK) {
        mc_slice_end(slice, cancel);
        return false;
    }
    int32_t failed = atomic_load_explicit(&task->error, memory_order_relaxed);
    if (failed != MC_OK) { /* another slice of the task has failed for good */
        mc_slice_end(slice, slice->first_error != MC_OK ? slice->first_error : failed);
        return false;
    }
    uint32_t incarnation = atomic_load_explicit(&slot->incarnation, memory_order_acquire);
    if (slice->incarnation != 0 && slice->incarnation != incarnation) {
        mc_slice_end(slice, slice->first_error != MC_OK ? slice->first_error : MC_ERR_CLOSED);
        return false;
    }
    slice->incarnation = incarnation;
    return true;
}

/* No transport is left. */
static void exhausted(struct mc_slice_op *slice) {
    if ((slice->tried_transports & MC_SLICE_REFRESHED) == 0 &&
        slice->segment->id != MC_LOCAL_SEGMENT) {
        mc_slot_wait_refresh(mc_slot_of(slice->segment), slice);
        return;
    }
    mc_slice_end(slice, slice->first_error != MC_OK ? slice->first_error : MC_ERR_NO_TRANSPORT);
}

static struct mc_transport *next_transport(const struct mc_route *route,
                                           struct mc_slice_op *slice) {
    struct mc_transport *last = slice->transport;
    if (last != NULL && (slice->tried_transports & (1u << last->index)) == 0) {
        return last;
    }
    struct mc_transport *t = mc_route_choose(route, slice);
    if (t != NULL && last != NULL) {
        mc_metric_add(&last->engine->counters[last->index].failovers, 1);
    }
    return t;
}

void mc_slice_route(struct mc_slice_op *slice) {
    struct mc_route route;
    mc_route_open(&route, mc_slot_of(slice->segment));
    while (may_go_on(slice)) {
        struct mc_transport *t = next_transport(&route, slice);
        if (t == NULL) {
            exhausted(slice);
            break;
        }
        slice->transport = t;
        slice->waiter_follows = false; /* this may be any thread */
        slice->attempts++;
        enum mc_status status = t->ops->post(t, &slice, 1);
        if (status == MC_OK) {
            break; /* taken: no longer ours */
        }
        mc_slice_note_failure(slice, status, true);
    }
    mc_route_close(&route);
}

void mc_slice_after_refresh(struct mc_slice_op *slice, enum mc_status status) {
    bool tried = slice->first_error != MC_OK;
    slice->tried_transports |= MC_SLICE_REFRESHED;
    if (tried && status != MC_OK) { /* nobody answers either way */
        mc_slice_end(slice, slice->first_error);
        return;
    }
    struct mc_route route;
    mc_route_open(&route, mc_slot_of(slice->segment));
    bool covered = mc_route_covers(&route, slice->remote, slice->length);
    mc_route_close(&route);
    if (!covered) {
        enum mc_status error = tried             ? slice->first_error
                               : status != MC_OK ? status
                                                 : MC_ERR_NOT_REGISTERED;
        mc_slice_end(slice, error);
        return;
    }
    slice->tried_transports = MC_SLICE_REFRESHED;
    slice->attempts = 0;
    slice->transport = NULL;
    mc_slice_route(slice);
}

void mc_slice_done(struct mc_slice_op *slice, enum mc_status status, bool retryable) {
    if (__builtin_expect(status == MC_OK, 1)) {
        struct mc_transport *t = slice->transport;
        struct mc_transport_counters *counters = &t->engine->counters[t->index];
        mc_metric_add(&counters->bytes[slice->op], (int64_t)slice->length);
        mc_metric_add(&counters->slices[slice->op], 1);
        mc_slice_end(slice, MC_OK);
        return;
    }
    mc_slice_note_failure(slice, status, retryable);
    mc_slice_route(slice);
}
