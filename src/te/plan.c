/*
 * From requests to slices on their way: the first half of a batch's life.
 *
 * A submit is planned first (segment, transport, number of slices of each task; nothing is in
 * flight yet) and posted second, in groups that share segment and transport. What becomes of the
 * slices is select.c's and dispatch.c's; how a batch ends is batch.c's.
 */
#include "te/internal.h"

#define PAGE 4096u

/* Failed posts that a task may have before it fails with what happened first: so many that it never
 * ends one that has a way left, and that a fault which comes back for ever ends it. */
#define RETRIES_MIN       64
#define RETRIES_PER_SLICE 16

static uint64_t now_ns(const struct mc_engine *engine) {
    return mc_now_ns(engine->clock);
}

/* ---- planning ---- */

static void task_init(struct mc_transfer_task *task, struct mc_batch *batch, uint64_t length) {
    task->batch = batch;
    task->slot = NULL;
    task->holds_slot = false;
    task->length = length;
    task->slice_bytes = 0;
    task->slice_count = 0;
    task->retry_budget = 0;
    task->priority = MC_PRIORITY_HIGH;
    task->devices = 0;
    task->cautious = false;
    task->rule = NULL;
    task->transport = NULL;
    atomic_store_explicit(&task->retries, 0, memory_order_relaxed);
    atomic_store_explicit(&task->hung, 0, memory_order_relaxed);
    atomic_store_explicit(&task->error, MC_OK, memory_order_relaxed);
    atomic_store_explicit(&task->cancel, MC_OK, memory_order_relaxed);
    atomic_store_explicit(&task->ends, 0, memory_order_relaxed);
    atomic_store_explicit(&task->state, MC_TRANSFER_PENDING, memory_order_relaxed);
}

static enum mc_status check_request(const struct mc_transfer_request *r) {
    if (r->op != MC_TRANSFER_READ && r->op != MC_TRANSFER_WRITE) {
        return MC_INVALID_PARAMS;
    }
    if (r->priority > MC_PRIORITY_LOW || r->intent > MC_INTENT_BACKGROUND) {
        return MC_INVALID_PARAMS;
    }
    if (r->length > 0 &&
        (r->local == NULL || r->length > UINT64_MAX - (uint64_t)(uintptr_t)r->local)) {
        return MC_INVALID_PARAMS;
    }
    return r->length > UINT64_MAX - r->remote_addr ? MC_ERR_NOT_REGISTERED : MC_OK;
}

static uint32_t incarnation_of(const struct mc_segment_slot *slot) {
    return atomic_load_explicit(&slot->incarnation, memory_order_acquire);
}

/* Makes the route that of the request's segment. The first task of a run of equal segments holds
 * the slot. */
static enum mc_status plan_segment(struct mc_engine *engine, struct mc_route *route,
                                   struct mc_transfer_task *task, mc_segment_id id) {
    if (route->slot != NULL && route->slot->base.id == id) {
        task->slot = route->slot;
        return MC_OK;
    }
    const struct mc_slice_op *outer = task->batch->outer;
    struct mc_segment_slot *slot =
        outer == NULL ? mc_slot_acquire(engine, id) : mc_slot_share(mc_slot_of(outer->segment));
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    if (route->slot != NULL) {
        mc_route_close(route);
    }
    mc_route_open(route, slot);
    task->slot = slot;
    task->holds_slot = true;
    /* What the outer slice's address means, only that peer knows. */
    return outer == NULL || outer->incarnation == incarnation_of(slot) ? MC_OK : MC_ERR_CLOSED;
}

/* All slices of a task but the last are of this size: about `wanted` (0 = never cut), larger where
 * that would be too many slices, a multiple of a page where there are several. */
static uint64_t slice_size(uint64_t length, uint64_t wanted, uint64_t most) {
    if (wanted == 0 || length <= wanted) {
        return length;
    }
    uint64_t count = mc_min_u64((length - 1) / wanted + 1, most);
    return ((length - 1) / count / PAGE + 1) * PAGE;
}

uint64_t mc_plan_slice_bytes(const struct mc_dispatch *d, const struct mc_spray_reach *reach,
                             uint64_t length) {
    uint64_t wanted = d->transport->ops->slice_bytes;
    if (!d->sprayed) {
        return slice_size(length, wanted, MC_SLICES_PER_TASK_MAX);
    }
    if (length <= MC_SPRAY_SLICE_MIN && (wanted == 0 || length <= wanted)) {
        return length;
    }
    struct mc_spray_item item = {.reach = *reach};
    wanted = mc_spray_slice_bytes(length, mc_spray_usable(&d->spray, &item), wanted);
    return slice_size(length, wanted, MC_SPRAYED_PER_TASK_MAX);
}

static void plan_slices(struct mc_transfer_task *task, struct mc_transport *t,
                        const struct mc_slice_op *whole) {
    const struct mc_dispatch *d = t == NULL ? NULL : &t->engine->dispatch[t->index];
    if (d != NULL && d->sprayed) {
        mc_dispatch_find_reach(d, whole, task->rule, &task->reach);
    } else {
        mc_spray_reach_all(&task->reach);
    }
    task->slice_bytes =
        d == NULL ? whole->length : mc_plan_slice_bytes(d, &task->reach, whole->length);
}

/* Decides the task's slot, transport (NULL: the descriptor must be fetched first) and number of
 * slices. `whole` is the caller's, to be filled: the request as one slice. */
static enum mc_status plan_task(struct mc_engine *engine, struct mc_route *route,
                                struct mc_transfer_task *task, const struct mc_transfer_request *r,
                                struct mc_slice_op *whole) {
    MC_TRY(check_request(r));
    if (r->length == 0) {
        return MC_OK;
    }
    MC_TRY(plan_segment(engine, route, task, r->segment));
    whole->op = r->op;
    whole->local = r->local;
    whole->remote = r->remote_addr;
    whole->length = r->length;
    whole->segment = &task->slot->base;
    whole->devices = task->devices = mc_route_devices(route, whole);
    task->priority = r->intent == MC_INTENT_BACKGROUND ? MC_PRIORITY_LOW : r->priority;
    if (task->batch->outer != NULL) {
        task->rule = ((const struct mc_transfer_task *)task->batch->outer->task)->rule;
    } else if (engine->policy.rule_count > 0) {
        task->rule = mc_route_rule(route, whole, task->priority, r->intent);
    }
    struct mc_transport *t = r->transport_hint == NULL
                                 ? mc_route_choose(route, whole, task->rule)
                                 : mc_route_hinted(route, whole, task->rule, r->transport_hint);
    task->cautious = r->intent == MC_INTENT_LATENCY;
    if (route->fresh && mc_route_covers(route, r->remote_addr, r->length)) {
        task->transport = t;
    }
    plan_slices(task, t, whole);
    task->slice_count = task->slice_bytes == r->length /* mostly, and a division takes long */
                            ? 1
                            : (uint32_t)((r->length - 1) / task->slice_bytes + 1);
    task->retry_budget = engine->policy.max_failovers != 0
                             ? engine->policy.max_failovers * task->slice_count
                             : RETRIES_MIN + RETRIES_PER_SLICE * task->slice_count;
    atomic_store_explicit(&task->ends, task->slice_count, memory_order_relaxed);
    return MC_OK;
}

/* Plans all tasks; returns the number of slices. Tasks that need none are final afterwards; *ended
 * counts them. */
static size_t plan(struct mc_batch *batch, struct mc_chunk *chunk,
                   const struct mc_transfer_request *requests, size_t *ended) {
    struct mc_route route = {0};
    struct mc_slice_op whole = {.tried_transports = 0};
    size_t slices = 0;
    chunk->held = 0;
    bool overdue =
        chunk->deadline_ns != MC_WAIT_FOREVER && now_ns(batch->engine) >= chunk->deadline_ns;
    for (size_t i = 0; i < chunk->count; i++) {
        struct mc_transfer_task *task = &chunk->tasks[i];
        task_init(task, batch, requests[i].length);
        enum mc_status status =
            overdue ? MC_ERR_TIMEOUT : plan_task(batch->engine, &route, task, &requests[i], &whole);
        slices += task->slice_count;
        if (task->holds_slot) {
            chunk->held++;
            batch->many_slots |= batch->only_slot != NULL && batch->only_slot != task->slot;
            batch->only_slot = task->slot;
        }
        if (task->slice_count > 0) {
            continue;
        }
        enum mc_task_state state = status == MC_OK            ? MC_TRANSFER_COMPLETED
                                   : status == MC_ERR_TIMEOUT ? MC_TRANSFER_TIMEOUT
                                                              : MC_TRANSFER_FAILED;
        if (status != MC_OK && batch->outer == NULL) {
            mc_metric_add(status == MC_ERR_TIMEOUT ? &batch->engine->tasks_timed_out
                                                   : &batch->engine->tasks_failed,
                          1);
        }
        atomic_store_explicit(&task->error, status, memory_order_relaxed);
        atomic_store_explicit(&task->state, state, memory_order_release);
        mc_batch_note_error(batch, status);
        ++*ended;
    }
    if (route.slot != NULL) {
        mc_route_close(&route);
    }
    return slices;
}

/* ---- posting ---- */

struct post_group {
    struct mc_transport *transport;
    struct mc_segment *segment;
    uint8_t priority;
    size_t count;
    struct mc_slice_op *slices[MC_POST_MAX];
};

static void flush(struct post_group *group) {
    if (group->count == 0) {
        return;
    }
    struct mc_transport *t = group->transport;
    size_t back = mc_dispatch_post(&t->engine->dispatch[t->index], group->slices, group->count);
    for (size_t i = 0; i < back; i++) {
        mc_slice_note_refusal(group->slices[i]);
        mc_slice_route(group->slices[i]);
    }
    group->count = 0;
}

static void slice_init(struct mc_slice *s, struct mc_transfer_task *task,
                       const struct mc_transfer_request *r, uint64_t offset, uint64_t length,
                       uint64_t deadline_ns, bool waiter_follows) {
    struct mc_slice_op *slice = &s->base;
    s->skipped_transports = 0;
    s->hangs_known = 0;
    atomic_store_explicit(&s->attempt, 0, memory_order_relaxed);
    s->spray.wait.length = length;
    s->spray.wait.priority = task->priority;
    s->spray.wait.deadline_ns = deadline_ns;
    s->spray.over_ns = deadline_ns;
    s->spray.tried = 0;
    s->spray.rail = 0;
    s->spray.held = false;
    s->spray.last_resort = false;
    s->spray.cautious = task->cautious;
    s->spray.reach = task->reach;
    slice->waiter_follows = waiter_follows;
    slice->op = r->op;
    slice->local = (char *)r->local + offset;
    slice->remote = r->remote_addr + offset;
    slice->length = length;
    slice->segment = &task->slot->base;
    slice->deadline_ns = deadline_ns;
    slice->task = task;
    slice->priority = task->priority;
    slice->devices = task->devices;
    slice->attempts = 1;
    slice->rail = 0;
    slice->tried_transports = 0;
    const struct mc_slice_op *outer = task->batch->outer;
    slice->incarnation = outer != NULL             ? outer->incarnation
                         : task->transport == NULL ? 0
                                                   : incarnation_of(task->slot);
    slice->first_error = MC_OK;
    slice->transport = task->transport;
}

/* The group takes the slice; nothing of the task may be read after its last slice went out. */
static void post_slice(struct post_group *group, struct mc_segment_slot *slot,
                       struct mc_slice_op *slice) {
    if (slice->transport == NULL) {
        slice->attempts = 0;
        mc_slot_wait_refresh(slot, slice);
        return;
    }
    if (group->count == MC_POST_MAX || (group->count > 0 && (group->transport != slice->transport ||
                                                             group->segment != slice->segment ||
                                                             group->priority != slice->priority))) {
        flush(group);
    }
    group->priority = slice->priority;
    group->transport = slice->transport;
    group->segment = slice->segment;
    group->slices[group->count++] = slice;
}

static void post_all(struct mc_chunk *chunk, const struct mc_transfer_request *requests,
                     bool waiter_follows) {
    struct post_group group;
    group.count = 0;
    struct mc_slice *next = chunk->slices;
    for (size_t i = 0; i < chunk->count; i++) {
        struct mc_transfer_task *task = &chunk->tasks[i];
        uint32_t count = task->slice_count;
        if (count == 0) {
            continue;
        }
        uint64_t each = task->slice_bytes;
        for (uint32_t s = 0; s < count; s++, next++) {
            uint64_t offset = s * each;
            uint64_t length = mc_min_u64(each, task->length - offset);
            slice_init(next, task, &requests[i], offset, length, chunk->deadline_ns,
                       waiter_follows);
            post_slice(&group, task->slot, &next->base);
        }
    }
    flush(&group);
}

uint64_t mc_bounded_deadline(const struct mc_engine *engine, uint64_t deadline_ns) {
    return engine->slice_timeout_ns == 0
               ? deadline_ns
               : mc_min_u64(deadline_ns, now_ns(engine) + engine->slice_timeout_ns);
}

void mc_chunk_submit(struct mc_batch *batch, struct mc_chunk *chunk,
                     const struct mc_transfer_request *requests, struct mc_slice *storage,
                     size_t storage_count, bool waits) {
    size_t ended = 0;
    atomic_store_explicit(&chunk->posted, false, memory_order_relaxed);
    size_t slices = plan(batch, chunk, requests, &ended);
    chunk->owns_slices = slices > storage_count;
    chunk->slices = chunk->owns_slices ? mc_alloc(slices * sizeof(*chunk->slices)) : storage;
    if (chunk != batch->chunks) {
        pthread_mutex_lock(&batch->lock);
        chunk->next = batch->chunks;
        batch->chunks = chunk;
        batch->task_count += chunk->count;
        pthread_mutex_unlock(&batch->lock);
    }
    post_all(chunk, requests, waits && !batch->many_slots);
    atomic_store_explicit(&chunk->posted, true, memory_order_release);
    mc_batch_task_ended(batch, ended + 1);
}
