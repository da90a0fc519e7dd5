/*
 * The road of a slice: which transport next, and when it ends.
 *
 * Every failure, of whatever stage (posting refused, completion with an error, a transport's own
 * time-out), takes the same steps: while the transport says that may help, another of its rails, or
 * where it has one only the same again until MC_SLICE_ATTEMPTS posts were made (not after one that
 * hung, which may take seconds again); then the next transport not tried; then those passed over
 * because all their rails pause or their only one hung; when none is left the
 * descriptor is fetched once and, if the same peer still answers, the round begins anew, once, or
 * until its deadline where ways hang and do not fail; then the slice ends with its first error and
 * so does the task, except that a write whose bytes may still arrive is not called over
 * (mc_write_is_over): whoever hears that gives the place away. A slice known complete never comes
 * here. A cancelled task's slices end at their next step.
 */
#include "base/log.h"
#include "te/internal.h"

static struct mc_transfer_task *task_of(const struct mc_slice_op *slice) {
    return slice->task;
}

/* All slices have ended: says so, but does not count the task off its batch. */
static void task_finish(struct mc_transfer_task *task) {
    struct mc_batch *batch = task->batch;
    struct mc_engine *engine = batch->engine;
    enum mc_status error = atomic_load_explicit(&task->error, memory_order_relaxed);
    enum mc_task_state state = MC_TRANSFER_COMPLETED;
    if (error != MC_OK) {
        state = error == MC_ERR_TIMEOUT ? MC_TRANSFER_TIMEOUT : MC_TRANSFER_FAILED;
        mc_batch_note_error(batch, error);
    }
    if (error != MC_OK && batch->outer == NULL) {
        mc_metric_add(error == MC_ERR_TIMEOUT ? &engine->tasks_timed_out : &engine->tasks_failed,
                      1);
    }
    atomic_store_explicit(&task->state, state, memory_order_release);
}

/* Counts slices off; whether they were the last. Pairs with the same operation of the other slices:
 * whoever is last sees all their results. Whoever finds that all which are left are its own is
 * alone with the task, and needs no locked operation. */
static bool count_off(struct mc_transfer_task *task, uint32_t count, uint64_t arrived) {
    uint64_t ends = atomic_load_explicit(&task->ends, memory_order_acquire);
    if (mc_task_pending(ends) == count) {
        atomic_store_explicit(&task->ends, ends - count + arrived, memory_order_relaxed);
        return true;
    }
    ends = atomic_fetch_add_explicit(&task->ends, arrived - count, memory_order_acq_rel);
    return mc_task_pending(ends) == count;
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
    struct mc_batch *batch = task->batch;
    MC_ASSERT(status != MC_OK);
    int32_t known = atomic_load_explicit(&task->error, memory_order_relaxed);
    while (outweighs(slice, status, known) &&
           !atomic_compare_exchange_weak_explicit(&task->error, &known, status,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
    if (count_off(task, 1, 0)) {
        task_finish(task);
        mc_batch_task_ended(batch, 1);
    }
}

/* Runs of one task count as one, and so do the tasks of a batch that end. A slice is read before it
 * is counted off, and a batch not after its last task is. */
static void end_arrived(struct mc_slice_op *const *slices, size_t count) {
    struct mc_batch *batch = NULL;
    size_t ended = 0; /* tasks of this batch that are yet to be counted off */
    for (size_t at = 0; at < count;) {
        struct mc_transfer_task *task = task_of(slices[at]);
        struct mc_batch *mine = task->batch;
        if (ended > 0 && mine != batch) {
            mc_batch_task_ended(batch, ended);
            ended = 0;
        }
        uint64_t arrived = 0;
        uint32_t n = 0;
        for (; at < count && slices[at]->task == task; at++, n++) {
            arrived +=
                slices[at]->length == task->slice_bytes ? MC_TASK_ARRIVED : MC_TASK_LAST_ARRIVED;
        }
        if (count_off(task, n, arrived)) {
            task_finish(task);
            batch = mine;
            ended++;
        }
    }
    if (ended > 0) {
        mc_batch_task_ended(batch, ended);
    }
}

static struct mc_dispatch *dispatch_of(const struct mc_slice_op *slice) {
    return &slice->segment->engine->dispatch[slice->transport->index];
}

static void leave_transport(struct mc_slice_op *slice) {
    slice->tried_transports |= 1u << slice->transport->index;
    slice->attempts = 0;
    mc_slice_of(slice)->spray.tried = 0;
}

/* Whether the attempt was given up (watch.c): a transport may report a time-out by itself too, of
 * an operation that was lost. */
static bool did_hang(const struct mc_slice_op *slice, enum mc_status status) {
    const struct mc_transfer_task *task = slice->task;
    return status == MC_ERR_TIMEOUT &&
           (atomic_load_explicit(&task->hung, memory_order_relaxed) >> slice->transport->index &
            1) != 0;
}

/* A time-out, of a caller who has said until when to wait: the deadline bounds how many there can
 * be (may_still_come), unless the policy has a number. */
static bool costs_only_time(const struct mc_dispatch *d, const struct mc_slice_op *slice,
                            enum mc_status status) {
    return status == MC_ERR_TIMEOUT && d->watched && slice->deadline_ns != MC_WAIT_FOREVER &&
           slice->segment->engine->policy.max_failovers == 0;
}

void mc_slice_note_failure(struct mc_slice_op *slice, enum mc_status status, bool retryable) {
    struct mc_transfer_task *task = task_of(slice);
    struct mc_dispatch *d = dispatch_of(slice);
    struct mc_spray_item *item = &mc_slice_of(slice)->spray;
    bool hung = did_hang(slice, status);
    mc_metric_add(&d->rails[slice->rail].errors, 1);
    if (!costs_only_time(d, slice, status)) {
        atomic_fetch_add_explicit(&task->retries, 1, memory_order_relaxed);
    }
    if (outweighs(slice, status, slice->first_error)) {
        slice->first_error = status;
    }
    atomic_store_explicit(&mc_slot_of(slice->segment)->stale, 1, memory_order_relaxed);
    if (retryable && status == MC_ERR_CANCELLED) { /* with another's that was given up */
        slice->attempts--;
    }
    bool again = !hung && slice->attempts < MC_SLICE_ATTEMPTS;
    if (d->sprayed) { /* each rail once */
        item->tried |= (uint16_t)(1u << slice->rail);
        again = mc_spray_usable(&d->spray, item) > 0;
    } else if (hung) { /* the others first */
        mc_slice_of(slice)->skipped_transports |= 1u << slice->transport->index;
    }
    if (retryable && again) {
        mc_metric_add(&d->retries, 1);
        return;
    }
    leave_transport(slice);
}

void mc_slice_note_refusal(struct mc_slice_op *slice) {
    struct mc_slice *s = mc_slice_of(slice);
    if (s->refused != MC_OK) {
        mc_slice_note_failure(slice, s->refused, true);
        return;
    }
    s->skipped_transports |= 1u << slice->transport->index;
    leave_transport(slice);
}

enum mc_status mc_slice_verdict(struct mc_slice_op *slice) {
    struct mc_transfer_task *task = task_of(slice);
    struct mc_segment_slot *slot = mc_slot_of(slice->segment);
    enum mc_status own = slice->first_error;
    int32_t cancel = atomic_load_explicit(&task->cancel, memory_order_acquire);
    if (cancel != MC_OK) {
        return cancel;
    }
    int32_t failed = atomic_load_explicit(&task->error, memory_order_relaxed);
    if (failed != MC_OK) { /* another slice of the task has failed for good */
        return own != MC_OK ? own : (enum mc_status)failed;
    }
    if (own != MC_OK &&
        atomic_load_explicit(&task->retries, memory_order_relaxed) > task->retry_budget) {
        return own;
    }
    uint32_t incarnation = atomic_load_explicit(&slot->incarnation, memory_order_acquire);
    if (slice->incarnation != 0 && slice->incarnation != incarnation) {
        return own != MC_OK ? own : MC_ERR_CLOSED;
    }
    slice->incarnation = incarnation;
    return MC_OK;
}

/* All transports as at the beginning. */
static void begin_round(struct mc_slice_op *slice) {
    slice->tried_transports = MC_SLICE_REFRESHED;
    slice->attempts = 0;
    mc_slice_of(slice)->skipped_transports = 0;
    mc_slice_of(slice)->spray.tried = 0;
    mc_slice_of(slice)->spray.last_resort = false;
    slice->transport = NULL;
}

/* Whether something that hung was given up on the way to this peer since the round began, and the
 * caller has said until when it would wait: a way that hangs may come back, and to wait for that is
 * what the time is for. Each such round takes as long as an attempt at least. */
static bool may_still_come(struct mc_slice_op *slice) {
    const struct mc_segment_slot *slot = mc_slot_of(slice->segment);
    uint32_t hangs = atomic_load_explicit(&slot->hangs, memory_order_relaxed);
    bool hung = hangs != mc_slice_of(slice)->hangs_known;
    mc_slice_of(slice)->hangs_known = hangs;
    return hung && slice->deadline_ns != MC_WAIT_FOREVER &&
           mc_now_ns(slot->base.engine->clock) < slice->deadline_ns;
}

/* No transport is left. True: the slice has another round. */
static bool exhausted(struct mc_slice_op *slice) {
    bool first = (slice->tried_transports & MC_SLICE_REFRESHED) == 0;
    bool again = may_still_come(slice);
    if (slice->segment->id == MC_LOCAL_SEGMENT && again) {
        begin_round(slice);
        return true;
    }
    if (slice->segment->id != MC_LOCAL_SEGMENT && (first || again)) {
        mc_slot_wait_refresh(mc_slot_of(slice->segment), slice);
        return false;
    }
    mc_slice_end(slice, slice->first_error != MC_OK ? slice->first_error : MC_ERR_NO_TRANSPORT);
    return false;
}

/* Those that were passed over because they pause: a bad way is better than none. */
static bool try_last_resort(struct mc_slice_op *slice) {
    struct mc_slice *s = mc_slice_of(slice);
    if (s->skipped_transports == 0 || s->spray.last_resort) {
        return false;
    }
    s->spray.last_resort = true;
    slice->tried_transports &= ~s->skipped_transports;
    s->skipped_transports = 0;
    return true;
}

static struct mc_transport *next_transport(struct mc_route *route, struct mc_slice_op *slice) {
    struct mc_transport *last = slice->transport;
    if (last != NULL && (slice->tried_transports & (1u << last->index)) == 0) {
        return last;
    }
    const struct mc_policy_rule *rule = task_of(slice)->rule;
    slice->devices = mc_route_devices(route, slice);
    struct mc_transport *t = mc_route_choose(route, slice, rule);
    if (t == NULL && try_last_resort(slice)) {
        t = mc_route_choose(route, slice, rule);
    }
    if (t == NULL) {
        return NULL;
    }
    if (last != NULL && last != t) {
        mc_metric_add(&dispatch_of(slice)->failovers, 1);
    }
    mc_dispatch_find_reach(&t->engine->dispatch[t->index], slice, rule,
                           &mc_slice_of(slice)->spray.reach);
    return t;
}

void mc_slice_route(struct mc_slice_op *slice) {
    struct mc_route route;
    mc_route_open(&route, mc_slot_of(slice->segment));
    for (;;) {
        enum mc_status verdict = mc_slice_verdict(slice);
        if (verdict != MC_OK) {
            mc_slice_end(slice, verdict);
            break;
        }
        struct mc_transport *t = next_transport(&route, slice);
        if (t == NULL && exhausted(slice)) {
            continue;
        }
        if (t == NULL) {
            break;
        }
        slice->transport = t;
        slice->rail = 0;
        slice->waiter_follows = false; /* this may be any thread */
        slice->attempts++;
        if (mc_dispatch_post(&t->engine->dispatch[t->index], &slice, 1) == 0) {
            break; /* taken: no longer ours */
        }
        mc_slice_note_refusal(slice);
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
    begin_round(slice);
    mc_slice_route(slice);
}

void mc_slices_arrived(struct mc_slice_op *const *slices, size_t count) {
    struct mc_dispatch *d = dispatch_of(slices[0]);
    mc_dispatch_arrived(d, slices, count);
    /* Whoever puts a slice into the queue after this look sees the room that these have left.
     * Where nobody waits nothing of the engine is touched after the slices' end. */
    bool others_wait = mc_qos_any(&d->spray.queue);
    end_arrived(slices, count);
    if (others_wait) {
        mc_dispatch_pump(d);
    }
}

void mc_slice_done(struct mc_slice_op *slice, enum mc_status status, bool retryable) {
    if (__builtin_expect(status == MC_OK, 1)) {
        mc_slices_arrived(&slice, 1);
        return;
    }
    struct mc_dispatch *d = dispatch_of(slice);
    /* One that was given up, and not by its deadline, hung: that is the rail's doing. */
    retryable |= status == MC_ERR_TIMEOUT && d->watched;
    mc_dispatch_failed(d, mc_slice_of(slice), status);
    bool others_wait = mc_qos_any(&d->spray.queue);
    mc_slice_note_failure(slice, status, retryable);
    mc_slice_route(slice);
    if (others_wait) {
        mc_dispatch_pump(d);
    }
}
