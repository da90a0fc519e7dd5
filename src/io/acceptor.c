/*
 * Accepting connections on a reactor, for every server of the house. See io.h.
 *
 * When the process has no descriptor left, accept fails and the socket stays readable: a reactor
 * that tried again at once would burn its processor on that until somebody closes something. So it
 * looks away for a while. A turn accepts a bounded number; the rest waits for the next one.
 */
#include "io/io.h"

#include <sys/epoll.h>
#include <unistd.h>

#define ACCEPTS_A_TURN 64
#define REST_NS        (100 * MC_MS)

static void on_readable(struct mc_reactor_fd *listener, uint32_t events) {
    struct mc_acceptor *a = mc_container_of(listener, struct mc_acceptor, listener);
    enum mc_status status = MC_OK;
    for (int i = 0; i < ACCEPTS_A_TURN && status == MC_OK; i++) {
        int fd;
        struct mc_addr peer;
        status = mc_accept(listener->fd, &fd, &peer);
        if (status == MC_OK) {
            a->accepted(a, fd, &peer);
        }
    }
    if (status != MC_OK && status != MC_ERR_NOT_FOUND) {
        mc_reactor_modify(a->reactor, listener, 0);
        mc_timer_start(a->reactor, &a->rest, mc_now_ns(mc_clock_system()) + REST_NS);
    }
}

static void on_rested(struct mc_timer *rest) {
    struct mc_acceptor *a = mc_container_of(rest, struct mc_acceptor, rest);
    mc_reactor_modify(a->reactor, &a->listener, EPOLLIN);
}

struct start {
    struct mc_acceptor *acceptor;
    enum mc_status status;
};

static void start_on_reactor(void *arg) {
    struct start *start = arg;
    start->status = mc_reactor_add(start->acceptor->reactor, &start->acceptor->listener);
}

enum mc_status mc_acceptor_start(struct mc_acceptor *a, struct mc_reactor *r, int listen_fd,
                                 mc_accepted_fn accepted) {
    a->reactor = r;
    a->accepted = accepted;
    a->listener =
        (struct mc_reactor_fd){.fd = listen_fd, .events = EPOLLIN, .on_ready = on_readable};
    mc_timer_init(&a->rest, on_rested);
    struct start start = {a, MC_OK};
    mc_reactor_call(r, start_on_reactor, &start);
    if (start.status != MC_OK) {
        close(listen_fd);
    }
    return start.status;
}

static void stop_on_reactor(void *arg) {
    struct mc_acceptor *a = arg;
    mc_timer_stop(a->reactor, &a->rest);
    mc_reactor_remove(a->reactor, &a->listener);
}

void mc_acceptor_stop(struct mc_acceptor *a) {
    mc_reactor_call(a->reactor, stop_on_reactor, a);
    close(a->listener.fd);
}
