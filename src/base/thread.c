/* See thread.h. */
#include "base/thread.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

int mc_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        (void)pthread_setname_np(*thread, name); /* a name that is too long is none */
    }
    return error;
}

unsigned mc_usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return (unsigned)CPU_COUNT(&set);
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than the set has room for */
    return online > 0 ? (unsigned)online : 1;
}
