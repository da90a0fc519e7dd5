/*
 * A server whose process has no descriptor left neither loses who waits nor burns its processor,
 * and goes on by itself; TCP and local sockets alike. MC_TEST_THREADS
 */
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"
#include "support/support.h"

#define CALLERS 4

struct server {
    struct mc_acceptor acceptor;
    _Atomic int count;
    int fds[CALLERS];
    bool peers_known;
};

static void accepted(struct mc_acceptor *acceptor, int fd, const struct mc_addr *peer) {
    struct server *s = mc_container_of(acceptor, struct server, acceptor);
    int n = atomic_load(&s->count);
    s->fds[n] = fd;
    s->peers_known = peer->len > 0;
    atomic_store(&s->count, n + 1);
}

static void read_cpu_time(void *arg) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    *(uint64_t *)arg = (uint64_t)used.tv_sec * MC_SEC + (uint64_t)used.tv_nsec;
}

static void allow_descriptors(struct rlimit limit, int at_most) {
    limit.rlim_cur = at_most < 0 ? limit.rlim_cur : (rlim_t)at_most;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Callers wait in the listener's queue while no descriptor is to be had. */
static void check(int listen_fd, const int *callers, bool peers_known) {
    struct server s = {.count = 0};
    struct mc_reactor *reactor;
    struct rlimit limit;
    uint64_t before, after;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_ok(mc_reactor_create("test", &reactor));
    allow_descriptors(limit, 3);
    assert_ok(mc_acceptor_start(&s.acceptor, reactor, listen_fd, accepted));
    mc_reactor_call(reactor, read_cpu_time, &before);
    usleep(400 * 1000);
    mc_reactor_call(reactor, read_cpu_time, &after);
    assert_int_equal(atomic_load(&s.count), 0);
    assert_true(after - before < 100 * MC_MS); /* who spins uses all the time there is */
    allow_descriptors(limit, -1);
    for (int i = 0; i < 10000 && atomic_load(&s.count) < CALLERS; i++) {
        usleep(1000);
    }
    assert_int_equal(atomic_load(&s.count), CALLERS);
    assert_int_equal(s.peers_known, peers_known);
    mc_acceptor_stop(&s.acceptor);
    mc_reactor_destroy(reactor);
    for (int i = 0; i < CALLERS; i++) {
        close(s.fds[i]);
        close(callers[i]);
    }
}

static void tcp(void **state) {
    int listen_fd, callers[CALLERS];
    uint16_t port;
    struct mc_addr addr;
    assert_ok(mc_listen("127.0.0.1", 0, 16, &listen_fd, &port));
    assert_ok(mc_addr_resolve("127.0.0.1", port, &addr));
    for (int i = 0; i < CALLERS; i++) {
        assert_ok(mc_connect(&addr, mc_now_ns(mc_clock_system()) + 10 * MC_SEC, &callers[i]));
    }
    check(listen_fd, callers, true);
}

static void local(void **state) {
    int listen_fd, callers[CALLERS];
    char name[64];
    snprintf(name, sizeof(name), "mooncake-test-acceptor-%d", (int)getpid());
    assert_ok(mc_local_listen(name, &listen_fd));
    for (int i = 0; i < CALLERS; i++) {
        assert_ok(mc_local_connect(name, 10000, &callers[i]));
    }
    check(listen_fd, callers, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp),
        cmocka_unit_test(local),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
