/*
 * Threads that stop at bad moments: put into LD_PRELOAD, it stands before the calls at which
 * threads meet (locks, epoll, sockets, eventfds) and makes some of them wait, before and after the
 * call. So a run sees orders of events that a quiet machine shows once in thousands. tools/jitter
 * runs tests under it.
 *
 * JITTER_EVERY: one call in so many waits (default 50). JITTER_US: for up to so many microseconds
 * (default 500).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t every = 50, most_us = 500;

__attribute__((constructor)) static void configure(void) {
    const char *text = getenv("JITTER_EVERY");
    every = text != NULL && atoll(text) > 0 ? (uint64_t)atoll(text) : every;
    text = getenv("JITTER_US");
    most_us = text != NULL && atoll(text) > 0 ? (uint64_t)atoll(text) : most_us;
}

/* Each thread has its own sequence (xorshift64), begun by its time and place. */
static void wait_perhaps(void) {
    static _Thread_local uint64_t state;
    struct timespec wait = {0, 0};
    if (state == 0) {
        clock_gettime(CLOCK_MONOTONIC, &wait);
        state = ((uint64_t)wait.tv_nsec * 2654435761u ^ (uintptr_t)&state) | 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (state % every == 0) {
        wait.tv_sec = 0;
        wait.tv_nsec = (long)((state >> 20) % (most_us * 1000) % 1000000000);
        clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
    }
}

#define MEETING(type, name, parameters, arguments)                                                 \
    type name parameters {                                                                         \
        static type(*next) parameters;                                                             \
        if (next == NULL) {                                                                        \
            *(void **)&next = dlsym(RTLD_NEXT, #name);                                             \
        }                                                                                          \
        wait_perhaps();                                                                            \
        type result = next arguments;                                                              \
        wait_perhaps();                                                                            \
        return result;                                                                             \
    }

MEETING(int, pthread_mutex_lock, (pthread_mutex_t * m), (m))
MEETING(int, pthread_mutex_unlock, (pthread_mutex_t * m), (m))
MEETING(int, epoll_wait, (int fd, struct epoll_event *events, int n, int ms), (fd, events, n, ms))
MEETING(ssize_t, read, (int fd, void *buffer, size_t n), (fd, buffer, n))
MEETING(ssize_t, write, (int fd, const void *buffer, size_t n), (fd, buffer, n))
MEETING(ssize_t, recv, (int fd, void *buffer, size_t n, int flags), (fd, buffer, n, flags))
MEETING(ssize_t, send, (int fd, const void *buffer, size_t n, int flags), (fd, buffer, n, flags))
MEETING(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
