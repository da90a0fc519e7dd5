/*
 * Attempts that do not end. A rail that hangs says nothing: no error, no completion. So whoever
 * posts a slice notes when its attempt has taken far longer than was predicted (dispatch.c), and
 * this goes through what is in flight, a few times a second, and has the transport give up what is
 * overdue. It then comes back as any failed slice does, to another rail or transport, without the
 * application's deadline.
 *
 * A rail that has become slow does not hang: what is overdue is left alone while others of its rail
 * arrive, for they stand in one queue, and giving up would begin it anew. Unless it was overtaken:
 * something arrived that was posted long after.
 *
 * Only transports with give_up() are watched, and only while they have bytes in flight. A slice's
 * `attempt` is one word, so that looking takes no lock that a transfer needs: it is read while the
 * slice may end and go elsewhere, and giving up asks the transport, which knows. A batch that is
 * looked at is pinned: it is not freed meanwhile.
 */
#include <unistd.h>

#include "base/log.h"
#include "te/internal.h"

static bool is_in_flight(const struct mc_engine *engine) {
    for (unsigned i = 0; i < engine->transport_count; i++) {
        const struct mc_dispatch *d = &engine->dispatch[i];
        for (unsigned r = 0; d->watched && r < d->rail_count; r++) {
            if (mc_rail_inflight(&d->rails[r]) > 0) {
                return true;
            }
        }
    }
    return false;
}

/* Notes on which rails slices have arrived since the last look. */
static void see_arrivals(struct mc_engine *engine, uint64_t now_us) {
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_dispatch *d = &engine->dispatch[i];
        for (unsigned r = 0; d->watched && r < d->rail_count; r++) {
            int64_t arrived = 0;
            for (unsigned p = 0; p < MC_PRIORITIES; p++) {
                arrived += mc_metric_get(&d->rails[r].moved[MC_TRANSFER_READ][p].slices) +
                           mc_metric_get(&d->rails[r].moved[MC_TRANSFER_WRITE][p].slices);
            }
            if (arrived != d->seen[r].arrived) {
                d->seen[r].arrived = arrived;
                d->seen[r].at_us = now_us;
            }
        }
    }
}

static bool hangs(const struct mc_engine *engine, uint64_t attempt, uint64_t now_us) {
    uint64_t due = mc_attempt_due_us(attempt), least = engine->policy.attempt_ns / 1000;
    if (attempt == 0 || now_us <= due) {
        return false;
    }
    const struct mc_dispatch *d = &engine->dispatch[mc_attempt_transport(attempt)];
    unsigned rail = mc_attempt_rail(attempt);
    return now_us > d->seen[rail].at_us + least ||
           atomic_load_explicit(&d->rails[rail].reached_us, memory_order_relaxed) > due + least;
}

/* The rails, by transport, on which the task has an attempt that hangs. */
static bool find_overdue(const struct mc_engine *engine, const struct mc_transfer_task *task,
                         const struct mc_slice *slices, uint64_t now_us,
                         uint16_t overdue[MC_TRANSPORT_MAX]) {
    bool any = false;
    for (uint32_t i = 0; i < task->slice_count; i++) {
        uint64_t attempt = atomic_load_explicit(&slices[i].attempt, memory_order_relaxed);
        if (hangs(engine, attempt, now_us)) {
            overdue[mc_attempt_transport(attempt)] |= (uint16_t)(1u << mc_attempt_rail(attempt));
            any = true;
        }
    }
    return any;
}

static void give_up(struct mc_engine *engine, struct mc_transfer_task *task,
                    const uint16_t overdue[MC_TRANSPORT_MAX]) {
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        for (uint32_t rails = overdue[i]; rails != 0; rails &= rails - 1) {
            unsigned rail = (unsigned)__builtin_ctz(rails);
            mc_warn_limited("a slice has not ended in far more than its time, it goes another way "
                            "transport=%s rail=%s peer=%s",
                            t->ops->name, engine->dispatch[i].rails[rail].info.name,
                            task->slot->name);
            mc_metric_add(&engine->attempts_given_up, 1);
            atomic_fetch_add_explicit(&task->slot->hangs, 1, memory_order_relaxed);
            atomic_fetch_or_explicit(&task->hung, 1u << i, memory_order_relaxed);
            t->ops->give_up(t, &task->slot->base, task, rail);
        }
    }
}

static void look_at(struct mc_engine *engine, struct mc_batch *batch, uint64_t now_us) {
    pthread_mutex_lock(&batch->lock);
    struct mc_chunk *chunk = batch->chunks;
    pthread_mutex_unlock(&batch->lock);
    for (; chunk != NULL; chunk = chunk->next) {
        const struct mc_slice *slices = chunk->slices;
        if (!atomic_load_explicit(&chunk->posted, memory_order_acquire)) {
            continue; /* some of its slices are not yet there */
        }
        for (size_t i = 0; i < chunk->count; i++) {
            struct mc_transfer_task *task = &chunk->tasks[i];
            uint16_t overdue[MC_TRANSPORT_MAX] = {0};
            if (mc_task_pending(atomic_load_explicit(&task->ends, memory_order_relaxed)) != 0 &&
                find_overdue(engine, task, slices, now_us, overdue)) {
                give_up(engine, task, overdue);
            }
            slices += task->slice_count;
        }
    }
}

void mc_watch_look(struct mc_engine *engine) {
    uint64_t now_us = mc_now_ns(engine->clock) / 1000;
    if (!is_in_flight(engine)) {
        return;
    }
    see_arrivals(engine, now_us);
    pthread_mutex_lock(&engine->batches_lock);
    for (struct mc_list *at = engine->batches.next; at != &engine->batches; at = at->next) {
        struct mc_batch *batch = mc_container_of(at, struct mc_batch, link);
        batch->pins++;
        pthread_mutex_unlock(&engine->batches_lock);
        look_at(engine, batch, now_us);
        pthread_mutex_lock(&engine->batches_lock);
        batch->pins--;
        pthread_cond_broadcast(&engine->batches_changed);
    }
    pthread_mutex_unlock(&engine->batches_lock);
}

/* ---- when ---- */

static void run_look(struct mc_job *job) {
    struct mc_engine *engine = mc_container_of(job, struct mc_engine, watch_job);
    mc_watch_look(engine);
    atomic_store_explicit(&engine->watch_busy, false, memory_order_release);
}

static void start_timer(void *arg) {
    struct mc_engine *engine = arg;
    mc_timer_start(engine->reactors[0], &engine->watch_timer,
                   mc_now_ns(mc_clock_system()) + MC_WATCH_PERIOD_NS);
}

static void on_timer(struct mc_timer *timer) {
    struct mc_engine *engine = mc_container_of(timer, struct mc_engine, watch_timer);
    if (is_in_flight(engine) &&
        !atomic_exchange_explicit(&engine->watch_busy, true, memory_order_acq_rel)) {
        mc_workers_submit(engine->workers, &engine->watch_job); /* giving up may wait */
    }
    start_timer(engine);
}

static void stop_timer(void *arg) {
    struct mc_engine *engine = arg;
    mc_timer_stop(engine->reactors[0], &engine->watch_timer);
}

static bool is_needed(const struct mc_engine *engine) {
    for (unsigned i = 0; i < engine->transport_count; i++) {
        if (engine->dispatch[i].watched) {
            return engine->clock == mc_clock_system(); /* a simulator looks by itself */
        }
    }
    return false;
}

void mc_watch_start(struct mc_engine *engine) {
    mc_timer_init(&engine->watch_timer, on_timer);
    engine->watch_job.run = run_look;
    mc_metrics_register(engine->metrics, MC_METRIC_COUNTER, "mooncake_te_attempts_given_up_total",
                        "",
                        "rails on which slices of a request did not end in far more than "
                        "their time",
                        &engine->attempts_given_up);
    engine->watching = is_needed(engine);
    if (engine->watching) {
        mc_reactor_call(engine->reactors[0], start_timer, engine);
    }
}

void mc_watch_stop(struct mc_engine *engine) {
    if (!engine->watching) {
        return;
    }
    mc_reactor_call(engine->reactors[0], stop_timer, engine);
    while (atomic_load_explicit(&engine->watch_busy, memory_order_acquire)) {
        usleep(1000); /* a look is under way; it waits for transports only */
    }
}
