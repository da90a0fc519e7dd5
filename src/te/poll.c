/*
 * Descriptors of opened segments, fetched again every MC_TE_METADATA_REFRESH_INTERVAL_SECONDS; off
 * unless that is set, as with upstream. An engine finds out by itself what its transfers need to
 * know (an address that is not in the descriptor, a peer that has restarted); this is for who wants
 * to see changes of a peer's memory without asking, and restarts before the first transfer fails.
 *
 * A timer on the first reactor leaves one job to the workers, which goes through the table; a round
 * that is still under way when the next is due skips that one.
 */
#include <unistd.h>

#include "base/env.h"
#include "te/internal.h"

#define FETCH_TIMEOUT_NS                                                                           \
    (2 * MC_SEC) /* of one segment: a dead peer must not hold up the others                        \
                  */

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

static void run_round(struct mc_job *job) {
    struct mc_engine *engine = mc_container_of(job, struct mc_engine, poll_job);
    for (uint32_t i = 1; i < MC_SEGMENTS_MAX; i++) {
        struct mc_segment_slot *slot =
            atomic_load_explicit(&engine->slots[i], memory_order_acquire);
        if (slot == NULL || atomic_load_explicit(&engine->closing, memory_order_acquire)) {
            break; /* slots are filled in order */
        }
        mc_segment_id id =
            (mc_segment_id)(atomic_load_explicit(&slot->word, memory_order_acquire) >> 32);
        slot = mc_slot_acquire(engine, id);
        if (slot != NULL) {
            (void)mc_slot_refresh(slot, now_ns() + FETCH_TIMEOUT_NS); /* what is known stays */
            mc_slot_release(slot);
        }
    }
    atomic_store_explicit(&engine->poll_busy, false, memory_order_release);
}

static void start_timer(void *arg) {
    struct mc_engine *engine = arg;
    mc_timer_start(engine->reactors[0], &engine->poll_timer, now_ns() + engine->poll_every_ns);
}

static void on_timer(struct mc_timer *timer) {
    struct mc_engine *engine = mc_container_of(timer, struct mc_engine, poll_timer);
    if (!atomic_exchange_explicit(&engine->poll_busy, true, memory_order_acq_rel)) {
        mc_workers_submit(engine->workers, &engine->poll_job);
    }
    start_timer(engine);
}

static void stop_timer(void *arg) {
    struct mc_engine *engine = arg;
    mc_timer_stop(engine->reactors[0], &engine->poll_timer);
}

void mc_poll_start(struct mc_engine *engine) {
    uint64_t seconds = mc_env_u64("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", 0, 86400, 0);
    mc_timer_init(&engine->poll_timer, on_timer);
    engine->poll_job.run = run_round;
    engine->poll_every_ns = seconds * MC_SEC;
    if (seconds > 0) {
        mc_reactor_call(engine->reactors[0], start_timer, engine);
    }
}

void mc_poll_stop(struct mc_engine *engine) {
    if (engine->poll_every_ns == 0) {
        return;
    }
    mc_reactor_call(engine->reactors[0], stop_timer, engine);
    while (atomic_load_explicit(&engine->poll_busy, memory_order_acquire)) {
        usleep(1000); /* one fetch is under way; it ends within FETCH_TIMEOUT_NS */
    }
}
