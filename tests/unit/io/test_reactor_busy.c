/* A reactor that is under fire from threads, timers and sockets at once loses nothing and can be
 * destroyed in the middle of it. MC_TEST_THREADS */
#include "support/support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "io/io.h"

#define POSTERS 3
#define POSTS   3000
#define SOCKETS 8
#define TIMERS  16
#define ROUNDS  5

struct storm;

struct echo { /* throws back what its socket says; re-created again and again */
    struct mc_reactor_fd watch;
    struct storm *storm;
    int far_fd;
};

struct pulse {
    struct mc_timer timer;
    struct storm *storm;
};

struct shot {
    struct mc_task task;
    struct storm *storm;
};

/* Plain fields are the reactor thread's: TSan sees if anyone else touches them. */
struct storm {
    struct mc_reactor *reactor;
    struct mc_rng rng;
    struct echo *echoes[SOCKETS];
    struct pulse pulses[TIMERS];
    uint64_t shots_run, bytes_seen, pulses_run, recreated;
    atomic_uint posted;
};

static void echo_ready(struct mc_reactor_fd *watch, uint32_t events);

static void echo_create(struct storm *s, int i) {
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    struct echo *e = mc_zalloc(sizeof(*e));
    *e = (struct echo){{.fd = pair[0], .events = EPOLLIN, .on_ready = echo_ready}, s, pair[1]};
    assert_ok(mc_reactor_add(s->reactor, &e->watch));
    s->echoes[i] = e;
}

static void echo_destroy(struct storm *s, int i) {
    struct echo *e = s->echoes[i];
    mc_reactor_remove(s->reactor, &e->watch);
    close(e->watch.fd);
    close(e->far_fd);
    memset(e, 0xdd, sizeof(*e)); /* a late event would jump into nowhere */
    free(e);
    s->echoes[i] = NULL;
}

static void echo_ready(struct mc_reactor_fd *watch, uint32_t events) {
    struct storm *s = mc_container_of(watch, struct echo, watch)->storm;
    char bytes[64];
    ssize_t got = recv(watch->fd, bytes, sizeof(bytes), 0);
    s->bytes_seen += got > 0 ? (uint64_t)got : 0;
    int victim = (int)mc_rng_below(
        &s->rng, SOCKETS); /* often one whose event waits in this batch, at times itself */
    echo_destroy(s, victim);
    echo_create(s, victim);
    s->recreated++;
}

static void shoot(struct mc_task *task) {
    struct shot *shot = mc_container_of(task, struct shot, task);
    struct storm *s = shot->storm;
    s->shots_run++;
    if (s->shots_run % 16 == 0) {
        for (int i = 0; i < SOCKETS; i++) { /* all become ready in one batch */
            assert_int_equal(send(s->echoes[i]->far_fd, "x", 1, MSG_NOSIGNAL), 1);
        }
    }
    free(shot);
}

static void on_pulse(struct mc_timer *timer) {
    struct storm *s = mc_container_of(timer, struct pulse, timer)->storm;
    uint64_t now = mc_now_ns(mc_clock_system());
    s->pulses_run++;
    mc_timer_start(s->reactor, timer, now + mc_rng_below(&s->rng, MC_MS));
    struct pulse *other = &s->pulses[mc_rng_below(&s->rng, TIMERS)];
    mc_timer_stop(s->reactor, &other->timer);
    mc_timer_start(s->reactor, &other->timer, now);
}

static void start(void *arg) {
    struct storm *s = arg;
    for (int i = 0; i < SOCKETS; i++) {
        echo_create(s, i);
    }
    for (int i = 0; i < TIMERS; i++) {
        s->pulses[i].storm = s;
        mc_timer_init(&s->pulses[i].timer, on_pulse);
        mc_timer_start(s->reactor, &s->pulses[i].timer, 0);
    }
}

static void count_call(void *arg) {
    ++*(uint64_t *)arg;
}

static void *fire(void *arg) {
    struct storm *s = arg;
    uint64_t called = 0;
    for (int i = 0; i < POSTS; i++) {
        struct shot *shot = mc_zalloc(sizeof(*shot));
        *shot = (struct shot){.task.run = shoot, .storm = s};
        mc_reactor_post(s->reactor, &shot->task);
        atomic_fetch_add(&s->posted, 1);
        if (i % 100 == 0) {
            mc_reactor_call(s->reactor, count_call, &called);
        }
    }
    assert_int_equal(called, POSTS / 100);
    return NULL;
}

static void test_nothing_is_lost_and_destroy_works_in_the_middle(void **state) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct storm *s = mc_zalloc(sizeof(*s));
        pthread_t threads[POSTERS];
        mc_rng_seed(&s->rng, round);
        assert_ok(mc_reactor_create("storm", &s->reactor));
        mc_reactor_call(s->reactor, start, s);
        for (int i = 0; i < POSTERS; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, fire, s), 0);
        }
        for (int i = 0; i < POSTERS; i++) {
            pthread_join(threads[i], NULL);
        }
        mc_reactor_destroy(s->reactor); /* tasks queued, timers due, sockets readable */
        assert_int_equal(s->shots_run, POSTERS * POSTS);
        assert_int_equal(atomic_load(&s->posted), POSTERS * POSTS);
        assert_true(s->pulses_run > 0 && s->bytes_seen > 0 && s->recreated > 0);
        for (int i = 0; i < SOCKETS; i++) {
            close(s->echoes[i]->watch.fd);
            close(s->echoes[i]->far_fd);
            free(s->echoes[i]);
        }
        free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost_and_destroy_works_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
