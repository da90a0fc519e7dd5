/* The reactor runs tasks in order and exactly once, timers by deadline, descriptors until removed,
 * and stops while busy. MC_TEST_THREADS */
#include "support/support.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "io/io.h"

/* ---- tasks ---- */

#define POSTERS 4
#define POSTS   20000

struct numbered {
    struct mc_task task;
    struct poster *poster;
    int number;
};

struct poster {
    struct mc_reactor *reactor;
    struct numbered *items;
    int next_expected; /* the reactor thread's */
    int out_of_order;
    pthread_t thread;
};

static void count_task(struct mc_task *task) {
    struct numbered *n = mc_container_of(task, struct numbered, task);
    n->poster->out_of_order += n->number != n->poster->next_expected++;
}

static void *post_many(void *arg) {
    struct poster *p = arg;
    for (int i = 0; i < POSTS; i++) {
        p->items[i] = (struct numbered){.task.run = count_task, .poster = p, .number = i};
        mc_reactor_post(p->reactor, &p->items[i].task);
    }
    return NULL;
}

static void test_tasks_of_many_threads_run_once_and_in_order(void **state) {
    struct mc_reactor *r;
    struct poster posters[POSTERS] = {0};
    assert_ok(mc_reactor_create("test", &r));
    for (int i = 0; i < POSTERS; i++) {
        posters[i].reactor = r;
        posters[i].items = mc_zalloc(POSTS * sizeof(struct numbered));
        pthread_create(&posters[i].thread, NULL, post_many, &posters[i]);
    }
    for (int i = 0; i < POSTERS; i++) {
        pthread_join(posters[i].thread, NULL);
    }
    mc_reactor_destroy(r); /* what is still queued runs first */
    for (int i = 0; i < POSTERS; i++) {
        assert_int_equal(posters[i].next_expected, POSTS);
        assert_int_equal(posters[i].out_of_order, 0);
        free(posters[i].items);
    }
}

struct chain {
    struct mc_task task;
    struct mc_reactor *reactor;
    int left;
};

static void chain_task(struct mc_task *task) {
    struct chain *c = mc_container_of(task, struct chain, task);
    if (--c->left > 0) {
        mc_reactor_post(c->reactor, task); /* a task may queue itself again */
    }
}

static void add_one(void *arg) {
    ++*(int *)arg;
}

struct nested {
    struct mc_reactor *reactor;
    int ran;
    bool on_thread;
};

static void call_inside(void *arg) {
    struct nested *n = arg;
    n->on_thread = mc_reactor_on_thread(n->reactor);
    mc_reactor_call(n->reactor, add_one, &n->ran);
}

static void test_calls_wait_and_nest_and_tasks_requeue_themselves(void **state) {
    struct mc_reactor *r;
    assert_ok(mc_reactor_create("a name longer than fifteen", &r));
    int sum = 0;
    for (int i = 0; i < 1000; i++) {
        mc_reactor_call(r, add_one, &sum);
        assert_int_equal(sum, i + 1);
    }
    struct nested n = {.reactor = r};
    mc_reactor_call(r, call_inside, &n);
    assert_true(n.on_thread);
    assert_int_equal(n.ran, 1);
    assert_false(mc_reactor_on_thread(r));
    struct chain c = {.task.run = chain_task, .reactor = r, .left = 500};
    mc_reactor_post(r, &c.task);
    mc_reactor_destroy(r);
    assert_int_equal(c.left, 0);
}

struct last_task {
    struct mc_task task;
    sem_t ran;
};

static void say_ran(struct mc_task *task) {
    sem_post(&mc_container_of(task, struct last_task, task)->ran);
}

struct last_post {
    struct mc_reactor *reactor;
    struct last_task *last;
};

static void *post_one(void *arg) {
    struct last_post *p = arg;
    mc_reactor_post(p->reactor, &p->last->task);
    return NULL;
}

static void test_destroy_waits_for_a_poster_that_is_on_its_way_out(void **state) {
    for (int i = 0; i < 200; i++) {
        struct mc_reactor *r;
        struct last_task last = {.task.run = say_ran};
        sem_init(&last.ran, 0, 0);
        assert_ok(mc_reactor_create("test", &r));
        struct last_post post = {r, &last};
        pthread_t thread;
        pthread_create(&thread, NULL, post_one, &post);
        while (sem_wait(&last.ran) != 0) {
        }
        mc_reactor_destroy(r);
        pthread_join(thread, NULL);
        sem_destroy(&last.ran);
    }
}

/* ---- timers ---- */

#define TIMERS 300

struct fire {
    struct mc_timer timer;
    struct timers *all;
    bool stopped;
    int fired;
};

struct timers {
    struct mc_reactor *reactor;
    struct fire fires[TIMERS];
    uint64_t last_deadline;
    int disorder, early;
    int expected, fired;
    sem_t done;
};

static void on_fire(struct mc_timer *timer) {
    struct fire *f = mc_container_of(timer, struct fire, timer);
    struct timers *all = f->all;
    all->disorder += timer->deadline_ns < all->last_deadline;
    all->early += mc_now_ns(mc_clock_system()) < timer->deadline_ns;
    all->last_deadline = timer->deadline_ns;
    f->fired++;
    if (++all->fired == all->expected) {
        sem_post(&all->done);
    }
}

static void start_timers(void *arg) {
    struct timers *all = arg;
    struct mc_rng rng;
    mc_rng_seed(&rng, 42);
    uint64_t base = mc_now_ns(mc_clock_system());
    for (int i = 0; i < TIMERS; i++) {
        struct fire *f = &all->fires[i];
        f->all = all;
        mc_timer_init(&f->timer, on_fire);
        mc_timer_stop(all->reactor, &f->timer); /* of an idle timer: nothing */
        mc_timer_start(all->reactor, &f->timer, base + mc_rng_below(&rng, 30 * MC_MS));
    }
    for (int i = 0; i < TIMERS; i++) {
        struct fire *f = &all->fires[i];
        switch (mc_rng_below(&rng, 4)) {
        case 0:
            mc_timer_stop(all->reactor, &f->timer);
            f->stopped = true;
            break;
        case 1: /* restart */
            mc_timer_start(all->reactor, &f->timer,
                           base + 5 * MC_MS + mc_rng_below(&rng, 30 * MC_MS));
            break;
        case 2:
            mc_timer_start(all->reactor, &f->timer, MC_NO_DEADLINE);
            f->stopped = true;
            break;
        default:
            break;
        }
        all->expected += !f->stopped;
    }
}

static void test_timers_fire_once_in_order_and_never_early(void **state) {
    struct timers *all = mc_zalloc(sizeof(*all));
    sem_init(&all->done, 0, 0);
    assert_ok(mc_reactor_create("test", &all->reactor));
    mc_reactor_call(all->reactor, start_timers, all);
    while (sem_wait(&all->done) != 0) {
    }
    mc_reactor_destroy(all->reactor);
    assert_int_equal(all->disorder, 0);
    assert_int_equal(all->early, 0);
    assert_true(all->expected > 0 && all->expected < TIMERS);
    for (int i = 0; i < TIMERS; i++) {
        assert_int_equal(all->fires[i].fired, !all->fires[i].stopped);
    }
    sem_destroy(&all->done);
    free(all);
}

struct ticker {
    struct mc_timer timer;
    struct mc_reactor *reactor;
    int ticks;
    _Atomic bool other_ran;
    sem_t done;
    struct mc_task task;
};

static void tick(struct mc_timer *timer) { /* always due again: must not keep tasks from running */
    struct ticker *t = mc_container_of(timer, struct ticker, timer);
    t->ticks++;
    if (t->other_ran) {
        sem_post(&t->done);
    } else {
        mc_timer_start(t->reactor, timer, 0);
    }
}

static void other(struct mc_task *task) {
    mc_container_of(task, struct ticker, task)->other_ran = true;
}

static void start_ticker(void *arg) {
    struct ticker *t = arg;
    mc_timer_init(&t->timer, tick);
    mc_timer_start(t->reactor, &t->timer, 0);
}

static void test_a_timer_that_is_always_due_starves_nobody(void **state) {
    struct ticker t = {.task.run = other};
    sem_init(&t.done, 0, 0);
    assert_ok(mc_reactor_create("test", &t.reactor));
    mc_reactor_call(t.reactor, start_ticker, &t);
    mc_reactor_post(t.reactor, &t.task);
    while (sem_wait(&t.done) != 0) {
    }
    mc_reactor_destroy(t.reactor);
    assert_true(t.ticks > 0);
    sem_destroy(&t.done);
}

/* ---- descriptors ---- */

#define CROWD 40

struct member {
    struct mc_reactor_fd watch;
    struct crowd *crowd;
};

struct crowd { /* the first to be called removes and frees all others, whose events wait in the same
                  batch */
    struct mc_reactor *reactor;
    struct member *members[CROWD];
    int calls;
    sem_t called;
};

static void member_free(struct crowd *c, int i) {
    mc_reactor_remove(c->reactor, &c->members[i]->watch);
    close(c->members[i]->watch.fd);
    free(c->members[i]);
    c->members[i] = NULL;
}

static void member_ready(struct mc_reactor_fd *watch, uint32_t events) {
    struct member *self = mc_container_of(watch, struct member, watch);
    struct crowd *c = self->crowd;
    c->calls++;
    for (int i = 0; i < CROWD; i++) {
        if (c->members[i] != NULL) {
            member_free(c, i);
        }
    }
    sem_post(&c->called);
}

static void start_crowd(void *arg) {
    struct crowd *c = arg;
    for (int i = 0; i < CROWD; i++) {
        c->members[i] = mc_zalloc(sizeof(struct member));
        c->members[i]->crowd = c;
        c->members[i]->watch = (struct mc_reactor_fd){
            .fd = eventfd(1, EFD_CLOEXEC), .events = EPOLLIN, .on_ready = member_ready};
        assert_ok(mc_reactor_add(c->reactor, &c->members[i]->watch));
    }
}

static void test_no_event_reaches_a_descriptor_that_was_removed_in_the_same_batch(void **state) {
    struct crowd c = {0};
    sem_init(&c.called, 0, 0);
    assert_ok(mc_reactor_create("test", &c.reactor));
    mc_reactor_call(c.reactor, start_crowd, &c);
    while (sem_wait(&c.called) != 0) {
    }
    mc_reactor_destroy(c.reactor);
    assert_int_equal(c.calls, 1);
    sem_destroy(&c.called);
}

struct echo {
    struct mc_reactor_fd watch;
    struct mc_reactor *reactor;
    char bytes[4096];
    size_t have, sent;
    bool closed;
    sem_t done;
};

static void echo_ready(struct mc_reactor_fd *watch, uint32_t events) {
    struct echo *e = mc_container_of(watch, struct echo, watch);
    if (events & EPOLLOUT) {
        ssize_t n = send(watch->fd, e->bytes + e->sent, e->have - e->sent, MSG_NOSIGNAL);
        e->sent += n > 0 ? (size_t)n : 0;
        if (e->sent == e->have) {
            mc_reactor_modify(e->reactor, watch, EPOLLIN);
        }
        return;
    }
    ssize_t n = recv(watch->fd, e->bytes, sizeof(e->bytes), 0);
    if (n == 0) {
        mc_reactor_remove(e->reactor, watch);
        sem_post(&e->done);
    } else if (n > 0) {
        e->have = (size_t)n;
        e->sent = 0;
        mc_reactor_modify(e->reactor, watch, EPOLLOUT);
    }
}

static void start_echo(void *arg) {
    struct echo *e = arg;
    assert_ok(mc_reactor_add(e->reactor, &e->watch));
}

static void test_a_socket_is_served_until_its_end(void **state) {
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    struct echo e = {.watch = {.fd = pair[1], .events = EPOLLIN, .on_ready = echo_ready}};
    sem_init(&e.done, 0, 0);
    assert_ok(mc_reactor_create("test", &e.reactor));
    mc_reactor_call(e.reactor, start_echo, &e);
    uint64_t deadline = mc_now_ns(mc_clock_system()) + 60 * MC_SEC;
    for (size_t round = 1; round <= 300; round++) {
        char out[1500], in[1500];
        size_t len = round * 5;
        mc_test_fill(out, len, round);
        struct iovec iov = {out, len};
        assert_ok(mc_send_all(pair[0], &iov, 1, deadline));
        assert_ok(mc_recv_all(pair[0], in, len, deadline));
        mc_test_verify(in, len, round);
    }
    close(pair[0]);
    while (sem_wait(&e.done) != 0) {
    }
    mc_reactor_destroy(e.reactor);
    close(pair[1]);
    sem_destroy(&e.done);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_of_many_threads_run_once_and_in_order),
        cmocka_unit_test(test_calls_wait_and_nest_and_tasks_requeue_themselves),
        cmocka_unit_test(test_destroy_waits_for_a_poster_that_is_on_its_way_out),
        cmocka_unit_test(test_timers_fire_once_in_order_and_never_early),
        cmocka_unit_test(test_a_timer_that_is_always_due_starves_nobody),
        cmocka_unit_test(test_no_event_reaches_a_descriptor_that_was_removed_in_the_same_batch),
        cmocka_unit_test(test_a_socket_is_served_until_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
