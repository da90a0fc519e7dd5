/*
 * Looking for an answer a little before sleeping. See mc_stream_sleep_in_reads in io.h.
 *
 * Who sleeps for an answer pays for being woken: the interrupt to an idle core, the core's way out
 * of its idle state, the scheduler. That is a third of a round trip on a quiet machine, and nothing
 * is gained by it, for the caller's core has nothing else to do. When it has, looking takes it from
 * others, perhaps from the very process that is to answer. So a connection may waste 2 us an answer
 * on looks, and no more: one that was in vain, or lost its core on the way, is charged for as long
 * as it took. Until that is paid for, answers are slept for at once. Nor does a thread look while
 * so many others of the process wait too that half the cores would be busy looking.
 */
#include "io/private.h"

#include <sched.h>
#include <stdatomic.h>

#include "base/env.h"

#define SPIN_US_DEFAULT 50
#define WASTE_NS        2000

/* Threads of this process that wait for answers; among how many one may look. Relaxed: both only
 * say what is worth while. */
static _Atomic uint32_t waiting;
static _Atomic uint32_t waiting_most = 1;

bool mc_spin_enter(void) {
    uint32_t others = atomic_fetch_add_explicit(&waiting, 1, memory_order_relaxed);
    return others < atomic_load_explicit(&waiting_most, memory_order_relaxed);
}

void mc_spin_leave(void) {
    atomic_fetch_sub_explicit(&waiting, 1, memory_order_relaxed);
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void mc_spin_init(struct mc_spin *spin) {
    uint64_t limit_us = mc_env_u64("MC_SPIN_US", 0, 1000, SPIN_US_DEFAULT);
    *spin = (struct mc_spin){.limit_ns = limit_us * 1000};
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) > 1) {
        atomic_store_explicit(&waiting_most, (uint32_t)CPU_COUNT(&cores) / 2, memory_order_relaxed);
    }
}

static enum mc_status look(struct mc_stream *s, const struct iovec *iov, int count, size_t *n) {
    uint64_t begin = mc_now_ns(mc_clock_system()), took = 0;
    while (*n == 0 && took < s->spin.limit_ns) {
        relax();
        MC_TRY(s->ops->readv(s, iov, count, n));
        took = mc_now_ns(mc_clock_system()) - begin;
    }
    s->spin.owed_ns = took < s->spin.limit_ns + *n ? 0 : took;
    return MC_OK;
}

enum mc_status mc_spin_read(struct mc_stream *s, const struct iovec *iov, int count, size_t *n) {
    struct mc_spin *spin = &s->spin;
    *n = 0;
    if (spin->limit_ns == 0) {
        return MC_OK;
    }
    if (spin->owed_ns > 0) {
        spin->owed_ns -= mc_min_u64(spin->owed_ns, WASTE_NS);
        return MC_OK;
    }
    MC_TRY(s->ops->readv(s, iov, count, n));
    return *n > 0 ? MC_OK : look(s, iov, count, n);
}
