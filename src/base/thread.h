/* Threads of the library: named, and deaf to signals, which are the program's business. */
#ifndef MC_BASE_THREAD_H
#define MC_BASE_THREAD_H

#include <pthread.h>

/* Starts run(arg) on a thread that is called `name` (at most 15 characters). 0, or an errno value:
 * whoever needs the thread knows what to say. */
int mc_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);

/* Cores that this process may run on: a set given to it (taskset, a container's cpuset) counts, not
 * the machine. At least 1. */
unsigned mc_usable_cores(void);

#endif
