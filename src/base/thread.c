/* See thread.h. */
#include "base/thread.h"

#include <signal.h>

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
