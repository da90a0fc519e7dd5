/*
 * Batches: requests become tasks, tasks become slices, slices are posted; completion counts back
 * down.
 *
 * A submit is planned first (segment, transport, number of slices of each task; nothing is in
 * flight yet) and posted second, in groups that share segment and transport. Counters: a slice's
 * end takes one from its task's `pending`, a task's end one from its batch's `unfinished`, and
 * whoever takes the last publishes `word` = DONE as its very last access, so that the owner may
 * free the batch (or leave the stack frame that holds it) at once.
 *
 * Deadlines need no timer: what a task's state is can be seen only through the calls below, and
 * each of them first cancels what is overdue. Memory: one allocation a submit; mc_transfer with few
 * requests keeps it all on its stack and calls neither malloc nor the kernel when the transport
 * works inline.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"

#define CANCEL_PAUSE_NS 20000
#define PAGE            4096u

/* Failed posts that a task may have before it fails with what happened first: so many that it never
 * ends one that has a way left, and that a fault which comes back for ever ends it. */
#define RETRIES_MIN       64
#define RETRIES_PER_SLICE 16

static uint64_t now_ns(const struct mc_engine *engine) {
    return mc_now_ns(engine->clock);
}

static bool is_final(uint32_t state) {
    return state >= MC_TRANSFER_COMPLETED;
}

/* ---- the batch's end ---- */

static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Sleeps while *word is `value`, at most until the absolute time. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t until_ns) {
    struct timespec until = {(time_t)(until_ns / MC_SEC), (long)(until_ns % MC_SEC)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value,
            until_ns == MC_WAIT_FOREVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void publish_done(struct mc_batch *batch) {
    atomic_store_explicit(&batch->done, 1, memory_order_release);
    /* From here on the batch is the owner's. Waking by address needs no access to it. */
    if (atomic_exchange_explicit(&batch->word, MC_BATCH_DONE, memory_order_acq_rel) ==
        MC_BATCH_WAITED) {
        futex_wake_all(&batch->word);
    }
}

static void note_error(struct mc_batch *batch, enum mc_status error) {
    int32_t none = MC_OK;
    if (error != MC_OK) {
        atomic_compare_exchange_strong_explicit(&batch->first_error, &none, error,
                                                memory_order_relaxed, memory_order_relaxed);
    }
}

static void run_notify(struct mc_job *job) {
    struct mc_batch *batch = mc_container_of(job, struct mc_batch, notify_job);
    note_error(batch,
               mc_notify_slot(batch->notify_slot, batch->notify_name, batch->notify_message));
    mc_slot_release(batch->notify_slot);
    batch->notify_slot = NULL;
    publish_done(batch);
}

void mc_batch_task_ended(struct mc_batch *batch, size_t count, enum mc_status error) {
    note_error(batch, error);
    if (atomic_fetch_sub_explicit(&batch->unfinished, count, memory_order_acq_rel) != count) {
        return;
    }
    if (batch->notify_slot != NULL &&
        atomic_load_explicit(&batch->first_error, memory_order_relaxed) == MC_OK) {
        mc_workers_submit(batch->engine->workers, &batch->notify_job);
        return;
    }
    publish_done(batch);
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
    task->cautious = false;
    task->rule = NULL;
    memset(task->distance, 0, sizeof(task->distance));
    task->reach = UINT16_MAX;
    task->transport = NULL;
    atomic_store_explicit(&task->retries, 0, memory_order_relaxed);
    atomic_store_explicit(&task->error, MC_OK, memory_order_relaxed);
    atomic_store_explicit(&task->cancel, MC_OK, memory_order_relaxed);
    atomic_store_explicit(&task->pending, 0, memory_order_relaxed);
    atomic_store_explicit(&task->moved, 0, memory_order_relaxed);
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

/* Makes the route that of the request's segment. The first task of a run of equal segments holds
 * the slot. */
static enum mc_status plan_segment(struct mc_engine *engine, struct mc_route *route,
                                   struct mc_transfer_task *task, mc_segment_id id) {
    if (route->slot != NULL && route->slot->base.id == id) {
        task->slot = route->slot;
        return MC_OK;
    }
    struct mc_segment_slot *slot = mc_slot_acquire(engine, id);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    if (route->slot != NULL) {
        mc_route_close(route);
    }
    mc_route_open(route, slot);
    task->slot = slot;
    task->holds_slot = true;
    return MC_OK;
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

uint64_t mc_plan_slice_bytes(const struct mc_dispatch *d, const struct mc_spray_item *item,
                             uint64_t length) {
    uint64_t wanted = d->transport->ops->slice_bytes;
    if (!d->sprayed) {
        return slice_size(length, wanted, MC_SLICES_PER_TASK_MAX);
    }
    wanted = mc_spray_slice_bytes(length, mc_spray_usable(&d->spray, item), wanted);
    return slice_size(length, wanted, MC_SPRAYED_PER_TASK_MAX);
}

static void plan_slices(struct mc_transfer_task *task, struct mc_transport *t,
                        const struct mc_slice_op *whole) {
    if (t == NULL) {
        task->slice_bytes = whole->length;
        return;
    }
    const struct mc_dispatch *d = &t->engine->dispatch[t->index];
    if (!d->sprayed) {
        task->slice_bytes = slice_size(whole->length, t->ops->slice_bytes, MC_SLICES_PER_TASK_MAX);
        return;
    }
    struct mc_spray_item item = {.tried = 0};
    mc_dispatch_set_distances(d, whole, task->rule, &item);
    memcpy(task->distance, item.distance, sizeof(task->distance));
    task->reach = item.reach;
    task->slice_bytes = mc_plan_slice_bytes(d, &item, whole->length);
}

/* Decides the task's slot, transport (NULL: the descriptor must be fetched first) and number of
 * slices. */
static enum mc_status plan_task(struct mc_engine *engine, struct mc_route *route,
                                struct mc_transfer_task *task,
                                const struct mc_transfer_request *r) {
    MC_TRY(check_request(r));
    if (r->length == 0) {
        return MC_OK;
    }
    MC_TRY(plan_segment(engine, route, task, r->segment));
    const struct mc_slice_op whole = {.op = r->op,
                                      .local = r->local,
                                      .remote = r->remote_addr,
                                      .length = r->length,
                                      .segment = &task->slot->base};
    task->priority = r->intent == MC_INTENT_BACKGROUND ? MC_PRIORITY_LOW : r->priority;
    if (engine->policy.rule_count > 0) {
        task->rule = mc_route_rule(route, &whole, task->priority, r->intent);
    }
    struct mc_transport *t = r->transport_hint == NULL
                                 ? mc_route_choose(route, &whole, task->rule)
                                 : mc_route_hinted(route, &whole, task->rule, r->transport_hint);
    task->cautious = r->intent == MC_INTENT_LATENCY;
    if (route->fresh && mc_route_covers(route, r->remote_addr, r->length)) {
        task->transport = t;
    }
    plan_slices(task, t, &whole);
    task->slice_count = (uint32_t)((r->length - 1) / task->slice_bytes + 1);
    task->retry_budget = engine->policy.max_failovers != 0
                             ? engine->policy.max_failovers * task->slice_count
                             : RETRIES_MIN + RETRIES_PER_SLICE * task->slice_count;
    atomic_store_explicit(&task->pending, task->slice_count, memory_order_relaxed);
    return MC_OK;
}

/* Plans all tasks; returns the number of slices. Tasks that need none are final afterwards; *ended
 * counts them. */
static size_t plan(struct mc_batch *batch, struct mc_chunk *chunk,
                   const struct mc_transfer_request *requests, size_t *ended) {
    struct mc_route route = {0};
    size_t slices = 0;
    bool overdue =
        chunk->deadline_ns != MC_WAIT_FOREVER && now_ns(batch->engine) >= chunk->deadline_ns;
    for (size_t i = 0; i < chunk->count; i++) {
        struct mc_transfer_task *task = &chunk->tasks[i];
        task_init(task, batch, requests[i].length);
        enum mc_status status =
            overdue ? MC_ERR_TIMEOUT : plan_task(batch->engine, &route, task, &requests[i]);
        slices += task->slice_count;
        if (task->slice_count > 0) {
            continue;
        }
        enum mc_task_state state = status == MC_OK            ? MC_TRANSFER_COMPLETED
                                   : status == MC_ERR_TIMEOUT ? MC_TRANSFER_TIMEOUT
                                                              : MC_TRANSFER_FAILED;
        if (status != MC_OK) {
            mc_metric_add(status == MC_ERR_TIMEOUT ? &batch->engine->tasks_timed_out
                                                   : &batch->engine->tasks_failed,
                          1);
        }
        atomic_store_explicit(&task->error, status, memory_order_relaxed);
        atomic_store_explicit(&task->state, state, memory_order_release);
        note_error(batch, status);
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
    s->spray.wait.length = length;
    s->spray.wait.priority = task->priority;
    s->spray.tried = 0;
    s->spray.rail = 0;
    s->spray.held = false;
    s->spray.last_resort = false;
    s->spray.cautious = task->cautious;
    s->spray.reach = task->reach;
    memcpy(s->spray.distance, task->distance, sizeof(s->spray.distance));
    slice->waiter_follows = waiter_follows;
    slice->op = r->op;
    slice->local = (char *)r->local + offset;
    slice->remote = r->remote_addr + offset;
    slice->length = length;
    slice->segment = &task->slot->base;
    slice->deadline_ns = deadline_ns;
    slice->task = task;
    slice->priority = task->priority;
    slice->attempts = 1;
    slice->rail = 0;
    slice->tried_transports = 0;
    slice->incarnation = task->transport == NULL
                             ? 0
                             : atomic_load_explicit(&task->slot->incarnation, memory_order_relaxed);
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

/* MC_SLICE_TIMEOUT bounds what the caller left open. */
static uint64_t bounded_deadline(const struct mc_engine *engine, uint64_t deadline_ns) {
    return engine->slice_timeout_ns == 0
               ? deadline_ns
               : mc_min_u64(deadline_ns, now_ns(engine) + engine->slice_timeout_ns);
}

/* Plans and posts the tasks of the chunk. `storage` holds as many slices as `storage_count`;
 * `waits`: the caller goes on to wait for the batch. */
static void submit_chunk(struct mc_batch *batch, struct mc_chunk *chunk,
                         const struct mc_transfer_request *requests, struct mc_slice *storage,
                         size_t storage_count, bool waits) {
    size_t ended = 0;
    size_t slices = plan(batch, chunk, requests, &ended);
    chunk->owns_slices = slices > storage_count;
    chunk->slices = chunk->owns_slices ? mc_alloc(slices * sizeof(*chunk->slices)) : storage;
    struct mc_segment_slot *slot = NULL;
    for (size_t i = 0; i < chunk->count; i++) {
        if (chunk->tasks[i].holds_slot) {
            slot = chunk->tasks[i].slot;
            batch->many_slots |= batch->only_slot != NULL && batch->only_slot != slot;
            batch->only_slot = slot;
        }
    }
    if (chunk != batch->chunks) {
        pthread_mutex_lock(&batch->lock);
        chunk->next = batch->chunks;
        batch->chunks = chunk;
        batch->task_count += chunk->count;
        pthread_mutex_unlock(&batch->lock);
    }
    post_all(chunk, requests, waits && !batch->many_slots);
    mc_batch_task_ended(batch, ended + 1, MC_OK);
}

/* ---- giving up ---- */

static bool cancel_task(struct mc_engine *engine, struct mc_transfer_task *task) {
    if (is_final(atomic_load_explicit(&task->state, memory_order_acquire))) {
        return true;
    }
    mc_slot_cancel_waiting(task->slot, task);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        mc_dispatch_cancel(&engine->dispatch[i], task);
        if (t->ops->cancel != NULL) {
            t->ops->cancel(t, &task->slot->base, task);
        }
    }
    return is_final(atomic_load_explicit(&task->state, memory_order_acquire));
}

/* Ends the chunk's unfinished tasks with `why`; they have ended when this returns. A slice that
 * some thread is carrying from one transport to the next is in neither's hands for a moment; the
 * next round finds it, or it finds the mark. */
static void cancel_chunk(struct mc_engine *engine, struct mc_chunk *chunk, enum mc_status why) {
    for (size_t i = 0; i < chunk->count; i++) {
        int32_t none = MC_OK;
        atomic_compare_exchange_strong_explicit(&chunk->tasks[i].cancel, &none, why,
                                                memory_order_acq_rel, memory_order_relaxed);
    }
    for (;;) {
        bool all = true;
        for (size_t i = 0; i < chunk->count; i++) {
            all &= cancel_task(engine, &chunk->tasks[i]);
        }
        if (all) {
            return;
        }
        nanosleep(&(struct timespec){0, CANCEL_PAUSE_NS}, NULL);
    }
}

static bool chunk_ended(const struct mc_chunk *chunk) {
    for (size_t i = 0; i < chunk->count; i++) {
        if (!is_final(atomic_load_explicit(&chunk->tasks[i].state, memory_order_acquire))) {
            return false;
        }
    }
    return true;
}

/* Cancels overdue tasks; returns when the next one is due. */
static uint64_t expire(struct mc_batch *batch, uint64_t now) {
    uint64_t next_due = MC_WAIT_FOREVER;
    pthread_mutex_lock(&batch->lock);
    struct mc_chunk *chunk = batch->chunks;
    pthread_mutex_unlock(&batch->lock);
    for (; chunk != NULL; chunk = chunk->next) { /* chunks are only added, in front */
        if (chunk->deadline_ns == MC_WAIT_FOREVER || chunk_ended(chunk)) {
            continue;
        }
        if (now >= chunk->deadline_ns) {
            cancel_chunk(batch->engine, chunk, MC_ERR_TIMEOUT);
        } else {
            next_due = mc_min_u64(next_due, chunk->deadline_ns);
        }
    }
    return next_due;
}

void mc_batch_abort(struct mc_batch *batch, enum mc_status why) {
    pthread_mutex_lock(&batch->lock);
    struct mc_chunk *chunk = batch->chunks;
    pthread_mutex_unlock(&batch->lock);
    for (; chunk != NULL; chunk = chunk->next) {
        cancel_chunk(batch->engine, chunk, why);
    }
}

/* ---- waiting ---- */

static bool is_done(struct mc_batch *batch) {
    return atomic_load_explicit(&batch->word, memory_order_acquire) == MC_BATCH_DONE;
}

/* The caller's thread moves bytes itself where a transport knows how to. */
static void drive(struct mc_batch *batch, uint64_t until_ns) {
    struct mc_engine *engine = batch->engine;
    for (unsigned i = 0; i < engine->transport_count && !batch->many_slots; i++) {
        struct mc_transport *t = engine->transports[i];
        if (t->ops->progress != NULL && batch->only_slot != NULL && !is_done(batch)) {
            t->ops->progress(t, &batch->only_slot->base, &batch->done, until_ns);
        }
    }
}

static void sleep_until_done(struct mc_batch *batch, uint64_t until_ns) {
    uint32_t word = MC_BATCH_RUNNING;
    atomic_compare_exchange_strong_explicit(&batch->word, &word, MC_BATCH_WAITED,
                                            memory_order_acq_rel, memory_order_acquire);
    if (word != MC_BATCH_DONE) {
        futex_wait(&batch->word, MC_BATCH_WAITED, until_ns);
    }
}

/* Until all tasks have ended; false when `deadline_ns` comes first. Overdue tasks are ended on the
 * way. */
static bool wait_done(struct mc_batch *batch, uint64_t deadline_ns) {
    while (!is_done(batch)) {
        uint64_t now = now_ns(batch->engine);
        uint64_t due = mc_min_u64(expire(batch, now), deadline_ns);
        if (is_done(batch)) {
            return true;
        }
        if (now >= deadline_ns) {
            return false;
        }
        drive(batch, due);
        if (!is_done(batch)) {
            sleep_until_done(batch, due);
        }
    }
    return true;
}

/* ---- life ---- */

static void batch_init(struct mc_batch *batch, struct mc_engine *engine, bool in_call) {
    batch->engine = engine;
    batch->in_call = in_call;
    batch->chunks = NULL;
    batch->task_count = 0;
    batch->only_slot = NULL;
    batch->many_slots = false;
    batch->notify_slot = NULL;
    batch->notify_name = NULL;
    batch->notify_message = NULL;
    batch->notify_job.run = run_notify;
    atomic_store_explicit(&batch->word, MC_BATCH_DONE, memory_order_relaxed);
    atomic_store_explicit(&batch->done, 1, memory_order_relaxed);
    atomic_store_explicit(&batch->unfinished, 0, memory_order_relaxed);
    atomic_store_explicit(&batch->first_error, MC_OK, memory_order_relaxed);
    atomic_store_explicit(&batch->waiters, 0, memory_order_relaxed);
    pthread_mutex_init(&batch->lock, NULL);
}

/* Before tasks are added: the batch is running. */
static void batch_arm(struct mc_batch *batch, size_t count) {
    atomic_fetch_add_explicit(&batch->unfinished, count + 1, memory_order_acq_rel);
    uint32_t word = atomic_load_explicit(&batch->word, memory_order_acquire);
    if (word != MC_BATCH_DONE &&
        atomic_load_explicit(&batch->unfinished, memory_order_relaxed) == count + 1) {
        /* The last task of an earlier submit has been counted off and its thread is about to say
         * so. */
        while ((word = atomic_load_explicit(&batch->word, memory_order_acquire)) != MC_BATCH_DONE) {
            sched_yield();
        }
    }
    if (word == MC_BATCH_DONE) {
        atomic_store_explicit(&batch->done, 0, memory_order_relaxed);
        atomic_store_explicit(&batch->word, MC_BATCH_RUNNING, memory_order_release);
    }
}

static void chunk_release_slots(struct mc_chunk *chunk) {
    for (size_t i = 0; i < chunk->count; i++) {
        if (chunk->tasks[i].holds_slot) {
            chunk->tasks[i].holds_slot = false;
            mc_slot_release(chunk->tasks[i].slot);
        }
    }
}

void mc_batch_drop_segments(struct mc_batch *batch) {
    for (struct mc_chunk *chunk = batch->chunks; chunk != NULL; chunk = chunk->next) {
        chunk_release_slots(chunk);
    }
    batch->only_slot = NULL;
    if (batch->notify_slot != NULL) {
        mc_slot_release(batch->notify_slot);
        batch->notify_slot = NULL;
    }
}

static void chunk_free(struct mc_chunk *chunk) {
    if (chunk->owns_slices) {
        free(chunk->slices);
    }
    free(chunk);
}

/* The engine can end the batch's tasks from here on. */
static void enlist(struct mc_batch *batch) {
    struct mc_engine *engine = batch->engine;
    pthread_mutex_lock(&engine->batches_lock);
    mc_list_push_back(&engine->batches, &batch->link);
    pthread_mutex_unlock(&engine->batches_lock);
}

/* The last access to the engine: of a batch in a call, the engine's end waits for it. */
static void delist(struct mc_batch *batch) {
    struct mc_engine *engine = batch->engine;
    mc_batch_drop_segments(batch);
    pthread_mutex_lock(&engine->batches_lock);
    mc_list_del(&batch->link);
    pthread_cond_broadcast(&engine->batches_changed);
    pthread_mutex_unlock(&engine->batches_lock);
}

static struct mc_batch *new_batch(struct mc_engine *engine, bool in_call) {
    struct mc_batch *batch = mc_alloc(sizeof(*batch));
    batch_init(batch, engine, in_call);
    enlist(batch);
    return batch;
}

MC_PUBLIC enum mc_status mc_batch_create(struct mc_engine *engine, size_t capacity,
                                         struct mc_batch **out) {
    if (capacity > MC_BATCH_MAX) {
        return MC_INVALID_PARAMS;
    }
    *out = new_batch(engine, false);
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_batch_free(struct mc_batch *batch) {
    struct mc_engine *engine = batch->engine;
    if (engine != NULL && !is_done(batch)) {
        (void)expire(batch, now_ns(batch->engine));
    }
    if (!is_done(batch)) {
        return MC_ERR_BUSY;
    }
    if (engine != NULL) {
        delist(batch);
    }
    while (batch->chunks != NULL) {
        struct mc_chunk *chunk = batch->chunks;
        batch->chunks = chunk->next;
        chunk_free(chunk);
    }
    free(batch->notify_name);
    free(batch->notify_message);
    pthread_mutex_destroy(&batch->lock);
    free(batch);
    return MC_OK;
}

static void submit(struct mc_batch *batch, const struct mc_transfer_request *requests, size_t count,
                   uint64_t deadline_ns, bool waits) {
    struct mc_chunk *chunk = mc_alloc(sizeof(*chunk) + count * sizeof(struct mc_transfer_task) +
                                      count * sizeof(struct mc_slice));
    chunk->first = batch->task_count;
    chunk->count = count;
    chunk->deadline_ns = bounded_deadline(batch->engine, deadline_ns);
    chunk->tasks = (struct mc_transfer_task *)(chunk + 1);
    batch_arm(batch, count);
    submit_chunk(batch, chunk, requests, (struct mc_slice *)(chunk->tasks + count), count, waits);
}

MC_PUBLIC enum mc_status mc_batch_submit(struct mc_batch *batch,
                                         const struct mc_transfer_request *requests, size_t count,
                                         uint64_t deadline_ns) {
    struct mc_engine *engine = batch->engine;
    if (engine == NULL || atomic_load_explicit(&engine->closing, memory_order_acquire)) {
        return MC_ERR_CLOSED;
    }
    if (count == 0) {
        return MC_OK;
    }
    if (requests == NULL || count > MC_BATCH_MAX - batch->task_count) {
        return MC_INVALID_PARAMS;
    }
    submit(batch, requests, count, deadline_ns, false);
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_batch_notify(struct mc_batch *batch, mc_segment_id segment,
                                         const char *name, const char *message) {
    if (batch->engine == NULL) {
        return MC_ERR_CLOSED;
    }
    if (name == NULL || message == NULL || batch->notify_slot != NULL) {
        return MC_INVALID_PARAMS;
    }
    struct mc_segment_slot *slot = mc_slot_acquire(batch->engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    free(batch->notify_name);
    free(batch->notify_message);
    batch->notify_name = mc_strdup(name);
    batch->notify_message = mc_strdup(message);
    batch->notify_slot = slot;
    return MC_OK;
}

static struct mc_transfer_task *find_task(struct mc_batch *batch, size_t index) {
    pthread_mutex_lock(&batch->lock);
    struct mc_chunk *chunk = batch->chunks;
    while (chunk != NULL && chunk->first > index) {
        chunk = chunk->next;
    }
    pthread_mutex_unlock(&batch->lock);
    return chunk == NULL || index >= chunk->first + chunk->count
               ? NULL
               : &chunk->tasks[index - chunk->first];
}

MC_PUBLIC enum mc_status mc_batch_cancel(struct mc_batch *batch, size_t index) {
    struct mc_transfer_task *task = find_task(batch, index);
    int32_t none = MC_OK;
    if (task == NULL) {
        return MC_TASK_NOT_FOUND;
    }
    atomic_compare_exchange_strong_explicit(&task->cancel, &none, MC_ERR_CANCELLED,
                                            memory_order_acq_rel, memory_order_relaxed);
    while (batch->engine != NULL && !cancel_task(batch->engine, task)) {
        nanosleep(&(struct timespec){0, CANCEL_PAUSE_NS}, NULL);
    }
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_batch_task(struct mc_batch *batch, size_t index,
                                       struct mc_transfer_status *status) {
    if (batch->engine != NULL && !is_done(batch)) {
        (void)expire(batch, now_ns(batch->engine));
    }
    struct mc_transfer_task *task = find_task(batch, index);
    if (task == NULL) {
        return MC_TASK_NOT_FOUND;
    }
    status->state = atomic_load_explicit(&task->state, memory_order_acquire);
    status->error = is_final(status->state)
                        ? (enum mc_status)atomic_load_explicit(&task->error, memory_order_relaxed)
                        : MC_OK;
    status->transferred_bytes = atomic_load_explicit(&task->moved, memory_order_relaxed);
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_batch_wait(struct mc_batch *batch, uint64_t deadline_ns) {
    if (!is_done(batch)) {
        atomic_fetch_add_explicit(&batch->waiters, 1, memory_order_acq_rel);
        bool done = wait_done(batch, deadline_ns);
        atomic_fetch_sub_explicit(&batch->waiters, 1, memory_order_acq_rel);
        if (!done) {
            return MC_ERR_TIMEOUT;
        }
    }
    return atomic_load_explicit(&batch->first_error, memory_order_relaxed);
}

/* ---- submit, wait and free in one ---- */

static enum mc_status transfer_few(struct mc_engine *engine,
                                   const struct mc_transfer_request *requests, size_t count,
                                   uint64_t deadline_ns) {
    struct mc_transfer_task tasks[MC_INLINE_TASKS];
    struct mc_slice slices[MC_INLINE_TASKS];
    struct mc_batch batch;
    struct mc_chunk chunk = {
        .count = count, .deadline_ns = bounded_deadline(engine, deadline_ns), .tasks = tasks};
    batch_init(&batch, engine, true);
    batch.chunks = &chunk;
    batch.task_count = count;
    batch_arm(&batch, count);
    submit_chunk(&batch, &chunk, requests, slices, MC_INLINE_TASKS, true);
    if (is_done(&batch)) {
        chunk_release_slots(&chunk);
    } else { /* tasks are in flight */
        enlist(&batch);
        bool done = wait_done(&batch, MC_WAIT_FOREVER); /* the tasks' own deadline ends it */
        MC_ASSERT(done);
        delist(&batch);
    }
    if (chunk.owns_slices) {
        free(chunk.slices);
    }
    pthread_mutex_destroy(&batch.lock);
    return atomic_load_explicit(&batch.first_error, memory_order_relaxed);
}

MC_PUBLIC enum mc_status mc_transfer(struct mc_engine *engine,
                                     const struct mc_transfer_request *requests, size_t count,
                                     uint64_t deadline_ns) {
    if (count == 0) {
        return MC_OK;
    }
    if (requests == NULL || count > MC_BATCH_MAX) {
        return MC_INVALID_PARAMS;
    }
    if (atomic_load_explicit(&engine->closing, memory_order_acquire)) {
        return MC_ERR_CLOSED;
    }
    if (count <= MC_INLINE_TASKS) {
        return transfer_few(engine, requests, count, deadline_ns);
    }
    struct mc_batch *batch = new_batch(engine, true);
    submit(batch, requests, count, deadline_ns, true);
    enum mc_status status = mc_batch_wait(batch, MC_WAIT_FOREVER);
    MC_ASSERT(mc_batch_free(batch) == MC_OK);
    return status;
}
