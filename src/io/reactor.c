/*
 * The reactor: one thread, one epoll, a heap of timers and a queue of tasks from other threads.
 *
 * Each turn runs, in this order: the tasks that were queued when the turn began, the ready
 * descriptors, the timers that are due. A turn is bounded (one snapshot of the queue, one batch of
 * events, as many timers as there were), so nothing starves the rest. Descriptors are level
 * triggered: a handler may leave bytes for the next turn.
 *
 * Removal. epoll hands out events in batches, so a handler may remove, free and even re-create a
 * descriptor whose event waits later in the same batch. mc_reactor_remove therefore blots the rest
 * of the current batch; the cost is a scan of at most EVENT_BATCH entries when a connection ends.
 *
 * Queue. Posters push onto a lock-free stack; the reactor takes all of it at once and turns it
 * round, so tasks run in the order they were posted and ABA cannot arise (nothing is popped
 * singly). The eventfd is written only when the reactor sleeps: it announces sleep, then looks at
 * the queue; a poster pushes, then looks whether sleep is announced. Both sides are sequentially
 * consistent, so at least one of them sees the other.
 */
#include "io/io.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

#define EVENT_BATCH          128
#define TIMER_FIRST_CAPACITY 64
#define TIMER_IDLE           SIZE_MAX
#define SLEPT_NS             5000 /* epoll_wait without sleeping takes one at most */

struct mc_reactor {
    int epoll_fd;
    int wake_fd;
    pthread_t thread;
    char name[16];

    /* The reactor thread's own. */
    struct mc_timer **heap; /* binary min-heap by deadline; heap[i]->heap_index == i */
    size_t heap_len;
    size_t heap_cap;
    struct epoll_event events[EVENT_BATCH];
    uint64_t yield_every_ns; /* 0 = never */
    uint64_t turn_end_ns;    /* these two only when it is not 0 */
    uint64_t busy_since_ns;  /* has neither slept nor given way since */
    int event_next;          /* the first event of the batch that is not handled yet */
    int event_count;

    /* Shared with posters; a cache line of its own so that posting does not slow the loop. */
    _Alignas(MC_CACHE_LINE) _Atomic(struct mc_task *) posted; /* newest first */
    atomic_bool asleep;
    atomic_bool stopping;
    atomic_uint posters; /* threads inside mc_reactor_post: destroy waits for them to be out */
};

/* Which reactor runs on this thread. */
static _Thread_local struct mc_reactor *current_reactor;

bool mc_reactor_on_thread(const struct mc_reactor *r) {
    return current_reactor == r;
}

/* ---- timers ---- */

static void heap_put(struct mc_reactor *r, size_t i, struct mc_timer *t) {
    r->heap[i] = t;
    t->heap_index = i;
}

static void heap_up(struct mc_reactor *r, size_t i, struct mc_timer *t) {
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (r->heap[parent]->deadline_ns <= t->deadline_ns) {
            break;
        }
        heap_put(r, i, r->heap[parent]);
        i = parent;
    }
    heap_put(r, i, t);
}

static void heap_down(struct mc_reactor *r, size_t i, struct mc_timer *t) {
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= r->heap_len) {
            break;
        }
        if (child + 1 < r->heap_len &&
            r->heap[child + 1]->deadline_ns < r->heap[child]->deadline_ns) {
            child++;
        }
        if (t->deadline_ns <= r->heap[child]->deadline_ns) {
            break;
        }
        heap_put(r, i, r->heap[child]);
        i = child;
    }
    heap_put(r, i, t);
}

void mc_timer_init(struct mc_timer *t, void (*on_timer)(struct mc_timer *)) {
    *t = (struct mc_timer){.heap_index = TIMER_IDLE, .on_timer = on_timer};
}

void mc_timer_stop(struct mc_reactor *r, struct mc_timer *t) {
    MC_ASSERT(mc_reactor_on_thread(r));
    size_t hole = t->heap_index;
    if (hole == TIMER_IDLE) {
        return;
    }
    MC_ASSERT(hole < r->heap_len && r->heap[hole] == t);
    t->heap_index = TIMER_IDLE;
    struct mc_timer *last = r->heap[--r->heap_len];
    if (last == t) {
        return;
    }
    if (hole > 0 && last->deadline_ns < r->heap[(hole - 1) / 2]->deadline_ns) {
        heap_up(r, hole, last);
    } else {
        heap_down(r, hole, last);
    }
}

void mc_timer_start(struct mc_reactor *r, struct mc_timer *t, uint64_t deadline_ns) {
    mc_timer_stop(r, t);
    if (deadline_ns == MC_NO_DEADLINE) {
        return;
    }
    if (r->heap_len == r->heap_cap) {
        r->heap_cap = r->heap_cap > 0 ? r->heap_cap * 2 : TIMER_FIRST_CAPACITY;
        r->heap = mc_realloc(r->heap, r->heap_cap * sizeof(struct mc_timer *));
    }
    t->deadline_ns = deadline_ns;
    heap_up(r, r->heap_len++, t);
}

static void run_timers(struct mc_reactor *r) {
    if (r->heap_len == 0) {
        return;
    }
    uint64_t now = mc_now_ns(mc_clock_system());
    /* Not more than there were: one that restarts itself in the past waits for the next turn. */
    for (size_t left = r->heap_len; left > 0 && r->heap_len > 0 && r->heap[0]->deadline_ns <= now;
         left--) {
        struct mc_timer *t = r->heap[0];
        mc_timer_stop(r, t);
        t->on_timer(t);
    }
}

/* In milliseconds for epoll_wait, rounded up so that a timer is due when the wait ends; -1 = no
 * timer. */
static int wait_time(const struct mc_reactor *r) {
    if (r->heap_len == 0) {
        return -1;
    }
    uint64_t now = mc_now_ns(mc_clock_system());
    uint64_t deadline = r->heap[0]->deadline_ns;
    uint64_t ms = deadline > now ? (deadline - now + MC_MS - 1) / MC_MS : 0;
    return (int)mc_min_u64(ms, 60 * 1000);
}

/* ---- tasks ---- */

static void wake(struct mc_reactor *r) {
    uint64_t one = 1;
    while (write(r->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

void mc_reactor_post(struct mc_reactor *r, struct mc_task *task) {
    atomic_fetch_add_explicit(&r->posters, 1, memory_order_relaxed);
    struct mc_task *head = atomic_load_explicit(&r->posted, memory_order_relaxed);
    do {
        task->next = head;
        /* seq_cst: releases the task to take_tasks, and is ordered before the look at `asleep` (see
         * top). */
    } while (!atomic_compare_exchange_weak_explicit(&r->posted, &head, task, memory_order_seq_cst,
                                                    memory_order_relaxed));
    if (atomic_load_explicit(&r->asleep, memory_order_seq_cst) &&
        atomic_exchange_explicit(&r->asleep, false, memory_order_seq_cst)) {
        wake(r);
    }
    /* Pairs with the acquire in mc_reactor_destroy: what was read of *r above is read before it is
     * freed. */
    atomic_fetch_sub_explicit(&r->posters, 1, memory_order_release);
}

/* All posted tasks, oldest first. */
static struct mc_task *take_tasks(struct mc_reactor *r) {
    struct mc_task *newest = atomic_exchange_explicit(&r->posted, NULL, memory_order_acquire);
    struct mc_task *oldest = NULL;
    while (newest != NULL) {
        struct mc_task *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

static bool has_tasks(struct mc_reactor *r) {
    return atomic_load_explicit(&r->posted, memory_order_seq_cst) != NULL;
}

static void run_tasks(struct mc_reactor *r) {
    if (!has_tasks(r)) {
        return;
    }
    struct mc_task *task = take_tasks(r);
    while (task != NULL) {
        /* Read first: run() may free the task or post it again. */
        struct mc_task *next = task->next;
        task->run(task);
        task = next;
    }
}

struct call {
    struct mc_task task;
    void (*fn)(void *);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t done_cond;
    bool done;
};

static void call_run(struct mc_task *task) {
    struct call *call = mc_container_of(task, struct call, task);
    call->fn(call->arg);
    /* Signalled under the lock: the caller's stack frame outlives this. */
    pthread_mutex_lock(&call->lock);
    call->done = true;
    pthread_cond_signal(&call->done_cond);
    pthread_mutex_unlock(&call->lock);
}

void mc_reactor_call(struct mc_reactor *r, void (*fn)(void *), void *arg) {
    if (mc_reactor_on_thread(r)) {
        fn(arg);
        return;
    }
    struct call call = {.task.run = call_run, .fn = fn, .arg = arg};
    pthread_mutex_init(&call.lock, NULL);
    pthread_cond_init(&call.done_cond, NULL);
    mc_reactor_post(r, &call.task);
    pthread_mutex_lock(&call.lock);
    while (!call.done) {
        pthread_cond_wait(&call.done_cond, &call.lock);
    }
    pthread_mutex_unlock(&call.lock);
    pthread_cond_destroy(&call.done_cond);
    pthread_mutex_destroy(&call.lock);
}

/* ---- descriptors ---- */

enum mc_status mc_reactor_add(struct mc_reactor *r, struct mc_reactor_fd *f) {
    MC_ASSERT(mc_reactor_on_thread(r));
    struct epoll_event event = {.events = f->events, .data.ptr = f};
    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, f->fd, &event) != 0) {
        int error = errno;
        mc_error("cannot watch a descriptor: fd=%d errno=%d reason=\"%s\"", f->fd, error,
                 strerror(error));
        return error == ENOSPC || error == ENOMEM ? MC_ERR_LIMIT : MC_ERR_IO;
    }
    return MC_OK;
}

void mc_reactor_modify(struct mc_reactor *r, struct mc_reactor_fd *f, uint32_t events) {
    MC_ASSERT(mc_reactor_on_thread(r));
    if (f->events == events) {
        return;
    }
    struct epoll_event event = {.events = events, .data.ptr = f};
    f->events = events;
    MC_ASSERT(epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, f->fd, &event) == 0);
}

void mc_reactor_rearm(struct mc_reactor *r, struct mc_reactor_fd *f, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = f};
    MC_ASSERT(epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, f->fd, &event) == 0);
}

void mc_reactor_remove(struct mc_reactor *r, struct mc_reactor_fd *f) {
    MC_ASSERT(mc_reactor_on_thread(r));
    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, f->fd, NULL) != 0) {
        mc_error("a descriptor was not watched or closed too early: fd=%d errno=%d", f->fd, errno);
    }
    for (int i = r->event_next; i < r->event_count; i++) {
        if (r->events[i].data.ptr == f) {
            r->events[i].data.ptr = NULL;
        }
    }
}

static void clear_wake(struct mc_reactor *r) {
    uint64_t ignored;
    if (read(r->wake_fd, &ignored, sizeof(ignored)) < 0 && errno != EAGAIN && errno != EINTR) {
        mc_error("cannot read the wake-up descriptor: reactor=%s errno=%d", r->name, errno);
    }
}

static void run_events(struct mc_reactor *r) {
    while (r->event_next < r->event_count) {
        const struct epoll_event *event = &r->events[r->event_next++];
        struct mc_reactor_fd *f = event->data.ptr;
        if (event->data.ptr == r) {
            clear_wake(r);
        } else if (f != NULL) {
            f->on_ready(f, event->events);
        }
    }
}

/* Who has just slept stands in nobody's way: giving the core away in the middle of a client's calls
 * would make each of them wait for whoever else is busy here. */
static void note_sleep(struct mc_reactor *r) {
    if (r->yield_every_ns != 0) {
        uint64_t now = mc_now_ns(mc_clock_system());
        r->busy_since_ns = now - r->turn_end_ns >= SLEPT_NS ? now : r->busy_since_ns;
    }
}

static void wait_events(struct mc_reactor *r) {
    int timeout_ms = wait_time(r);
    /* Sleep is announced before the look at the queue; see top. */
    atomic_store_explicit(&r->asleep, true, memory_order_seq_cst);
    if (has_tasks(r) || atomic_load_explicit(&r->stopping, memory_order_seq_cst)) {
        timeout_ms = 0;
    }
    int count = epoll_wait(r->epoll_fd, r->events, EVENT_BATCH, timeout_ms);
    note_sleep(r);
    atomic_store_explicit(&r->asleep, false, memory_order_relaxed);
    if (count < 0 && errno != EINTR) {
        mc_error("epoll_wait failed: reactor=%s errno=%d reason=\"%s\"", r->name, errno,
                 strerror(errno));
        MC_ASSERT(!"epoll_wait failed");
    }
    r->event_next = 0;
    r->event_count = count > 0 ? count : 0;
}

void mc_reactor_yield_every(struct mc_reactor *r, uint64_t ns) {
    MC_ASSERT(mc_reactor_on_thread(r));
    r->yield_every_ns = ns;
    r->turn_end_ns = r->busy_since_ns = mc_now_ns(mc_clock_system());
}

static void give_way(struct mc_reactor *r) {
    if (r->yield_every_ns == 0) {
        return;
    }
    r->turn_end_ns = mc_now_ns(mc_clock_system());
    if (r->turn_end_ns - r->busy_since_ns >= r->yield_every_ns) {
        sched_yield();
        r->turn_end_ns = r->busy_since_ns = mc_now_ns(mc_clock_system());
    }
}

/* ---- life ---- */

static void *reactor_main(void *arg) {
    struct mc_reactor *r = arg;
    current_reactor = r;
    while (!atomic_load_explicit(&r->stopping, memory_order_acquire)) {
        wait_events(r);
        run_tasks(r);
        run_events(r);
        run_timers(r);
        give_way(r);
    }
    r->event_next = r->event_count = 0;
    while (has_tasks(r)) { /* what tasks post in turn runs too */
        run_tasks(r);
    }
    current_reactor = NULL;
    return NULL;
}

enum mc_status mc_reactor_create(const char *thread_name, struct mc_reactor **out) {
    struct mc_reactor *r = aligned_alloc(MC_CACHE_LINE, sizeof(*r));
    MC_ASSERT(r != NULL);
    memset(r, 0, sizeof(*r));
    snprintf(r->name, sizeof(r->name), "%s", thread_name);
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int error = errno;
    if (r->epoll_fd < 0) {
        goto fail_epoll;
    }
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    error = errno;
    if (r->wake_fd < 0) {
        goto fail_wake;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = r};
    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->wake_fd, &event) != 0) {
        error = errno;
        goto fail_thread;
    }
    error = mc_thread_start(&r->thread, r->name, reactor_main, r);
    if (error != 0) {
        goto fail_thread;
    }
    *out = r;
    return MC_OK;

fail_thread:
    close(r->wake_fd);
fail_wake:
    close(r->epoll_fd);
fail_epoll:
    free(r);
    mc_error("cannot start a reactor: name=%s errno=%d reason=\"%s\"", thread_name, error,
             strerror(error));
    return error == EMFILE || error == ENFILE || error == EAGAIN ? MC_ERR_LIMIT : MC_ERR_IO;
}

void mc_reactor_destroy(struct mc_reactor *r) {
    if (r == NULL) {
        return;
    }
    MC_ASSERT(!mc_reactor_on_thread(r));
    atomic_store_explicit(&r->stopping, true, memory_order_seq_cst);
    wake(r);
    pthread_join(r->thread, NULL);
    /* A poster whose task has run already may still be on its way out of mc_reactor_post. */
    while (atomic_load_explicit(&r->posters, memory_order_acquire) != 0) {
        sched_yield();
    }
    close(r->wake_fd);
    close(r->epoll_fd);
    free(r->heap);
    free(r);
}
