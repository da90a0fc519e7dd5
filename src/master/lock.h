/*
 * A lock for critical sections of about 100 ns.
 *
 * One word. A waiter backs off twice as long each time it finds the lock taken, so that the thread
 * that has the lock (and the data behind it) in its cache goes on for many rounds before the line
 * moves: two threads that fight for one lock then do about as much as one thread alone, where a
 * fair lock would pay a cache line transfer per round. After the longest pause the waiter gives the
 * processor away, because the holder may have been descheduled. Not fair, not recursive; nobody may
 * sleep or do I/O while holding one.
 */
#ifndef MC_MASTER_LOCK_H
#define MC_MASTER_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct mc_lock {
    _Atomic uint32_t taken;
};

void mc_lock_wait(struct mc_lock *lock); /* the slow way in */

static inline bool mc_lock_try(struct mc_lock *lock) {
    /* acquire: pairs with the release in mc_lock_release */
    return atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0;
}

static inline void mc_lock_acquire(struct mc_lock *lock) {
    if (__builtin_expect(!mc_lock_try(lock), 0)) {
        mc_lock_wait(lock);
    }
}

static inline void mc_lock_release(struct mc_lock *lock) {
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

#endif
