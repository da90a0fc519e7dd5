/*
 * Batches: requests become tasks, tasks become slices, slices are posted (plan.c); completion
 * counts back down.
 *
 * Counters: a slice's end takes one from its task's pending ones, a task's end one from its batch's
 * `unfinished`, and whoever takes the last publishes `word` = DONE as its very last access, so that
 * the owner may free the batch (or leave the stack frame that holds it) at once.
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

void mc_batch_note_error(struct mc_batch *batch, enum mc_status error) {
    int32_t none = MC_OK;
    if (error != MC_OK) {
        atomic_compare_exchange_strong_explicit(&batch->first_error, &none, error,
                                                memory_order_relaxed, memory_order_relaxed);
    }
}

static void run_notify(struct mc_job *job) {
    struct mc_batch *batch = mc_container_of(job, struct mc_batch, notify_job);
    mc_batch_note_error(
        batch, mc_notify_slot(batch->notify_slot, batch->notify_name, batch->notify_message));
    mc_slot_release(batch->notify_slot);
    batch->notify_slot = NULL;
    publish_done(batch);
}

void mc_batch_task_ended(struct mc_batch *batch, size_t count) {
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
    batch->outer = NULL;
    batch->pins = 0;
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
    for (size_t i = 0; chunk->held > 0; i++) {
        if (chunk->tasks[i].holds_slot) {
            chunk->tasks[i].holds_slot = false;
            chunk->held--;
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
    while (batch->pins > 0) {
        pthread_cond_wait(&engine->batches_changed, &engine->batches_lock);
    }
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
    chunk->deadline_ns = mc_bounded_deadline(batch->engine, deadline_ns);
    chunk->tasks = (struct mc_transfer_task *)(chunk + 1);
    batch_arm(batch, count);
    mc_chunk_submit(batch, chunk, requests, (struct mc_slice *)(chunk->tasks + count), count,
                    waits);
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
    status->transferred_bytes =
        mc_task_moved(task, atomic_load_explicit(&task->ends, memory_order_relaxed));
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
        .count = count, .deadline_ns = mc_bounded_deadline(engine, deadline_ns), .tasks = tasks};
    batch_init(&batch, engine, true);
    batch.chunks = &chunk;
    batch.task_count = count;
    batch_arm(&batch, count);
    mc_chunk_submit(&batch, &chunk, requests, slices, MC_INLINE_TASKS, true);
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

/* ---- parts of slices ---- */

void mc_inner_start(struct mc_inner *inner, const struct mc_slice_op *outer, void *local,
                    uint64_t remote, uint64_t length) {
    const struct mc_transfer_request request = {.op = outer->op,
                                                .local = local,
                                                .segment = outer->segment->id,
                                                .remote_addr = remote,
                                                .length = length,
                                                .priority = outer->priority};
    inner->chunk =
        (struct mc_chunk){.count = 1, .deadline_ns = outer->deadline_ns, .tasks = &inner->task};
    batch_init(&inner->batch, outer->segment->engine, true);
    inner->batch.outer = outer;
    inner->batch.chunks = &inner->chunk;
    inner->batch.task_count = 1;
    batch_arm(&inner->batch, 1);
    mc_chunk_submit(&inner->batch, &inner->chunk, &request, &inner->slice, 1, true);
    enlist(&inner->batch);
}

enum mc_status mc_inner_finish(struct mc_inner *inner) {
    bool done = wait_done(&inner->batch, MC_WAIT_FOREVER);
    MC_ASSERT(done);
    delist(&inner->batch);
    if (inner->chunk.owns_slices) {
        free(inner->chunk.slices);
    }
    pthread_mutex_destroy(&inner->batch.lock);
    return atomic_load_explicit(&inner->batch.first_error, memory_order_relaxed);
}

void mc_inner_cancel(struct mc_inner *inner, enum mc_status why) {
    cancel_chunk(inner->batch.engine, &inner->chunk, why);
}
