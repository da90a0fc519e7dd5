/* The slow way into mc_lock: exponential back-off, then giving the processor away. See lock.h for
 * why. */
#include "master/lock.h"

#include <sched.h>

#define LOCK_PAUSES_MIN          64u
#define LOCK_PAUSES_MAX          1024u
#define LOCK_ROUNDS_BEFORE_YIELD 16u

static void pause_once(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void mc_lock_wait(struct mc_lock *lock) {
    unsigned pauses = LOCK_PAUSES_MIN;
    for (unsigned round = 1;; round++) {
        for (unsigned i = 0; i < pauses; i++) {
            pause_once();
        }
        /* relaxed: only a hint; the exchange of mc_lock_try decides */
        if (atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 && mc_lock_try(lock)) {
            return;
        }
        if (pauses < LOCK_PAUSES_MAX) {
            pauses *= 2;
        } else if (round % LOCK_ROUNDS_BEFORE_YIELD == 0) {
            sched_yield();
        }
    }
}
