/*
 * The tcp transport's waiters: a thread that waits for slices it posted reads the answers itself,
 * which saves two thread switches a request; and cancelling.
 *
 * A waiter drives only lanes of which it is the owner (it posted first on the empty lane) and only
 * while its own slices are on them. While it does, epoll does not watch that lane for answers.
 * Slices that others put on the same lane are completed in passing; when the waiter leaves, epoll
 * is asked to watch, and reports at once what is readable already, so nothing is missed in between.
 */
#include "te/transport/tcp.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>

#define POLL_NS                                                                                    \
    (10 * MC_MS) /* own slices may end elsewhere: cancelled, or retried on another lane */

static void leave(struct tcp_lane *lane) {
    pthread_mutex_lock(&lane->lock);
    lane->driver = TCP_DRIVER_NONE;
    lane->blocked_by_waiter = lane->promised = false;
    tcp_lane_settle_locked(lane);
    tcp_lane_watch_locked(lane, lane->hang_up);
    pthread_mutex_unlock(&lane->lock);
}

/* Takes or keeps the lane to drive, and says what to poll for. */
static bool hold(struct tcp_lane *lane, bool held, struct pollfd *poll_for) {
    bool mine = false;
    if (!held && atomic_load_explicit(&lane->queued_bytes, memory_order_relaxed) == 0) {
        return false;
    }
    pthread_mutex_lock(&lane->lock);
    if (lane->state == TCP_LANE_UP && lane->owner_pending > 0 &&
        pthread_equal(lane->owner, pthread_self()) && (held || lane->driver == TCP_DRIVER_NONE)) {
        mine = true;
        lane->driver = TCP_DRIVER_WAITER;
        lane->blocked_by_waiter = lane->send_blocked;
        tcp_lane_watch_locked(lane, false);
        bool unseen = mc_stream_pending(&lane->stream); /* poll would not tell, but of POLLOUT */
        *poll_for =
            (struct pollfd){.fd = lane->stream.fd,
                            .events = lane->send_blocked || unseen ? POLLIN | POLLOUT : POLLIN};
    }
    pthread_mutex_unlock(&lane->lock);
    return mine;
}

/* True when an answer may have come before its request was noted as sent: another thread is about
 * to do so. */
static bool drive(struct tcp_lane *lane, short events, const _Atomic uint32_t *done, bool sleep) {
    pthread_mutex_lock(&lane->lock);
    lane->hang_up |= (events & (POLLHUP | POLLERR)) != 0;
    if ((events & POLLOUT) && lane->unsent != &lane->slices && lane->state == TCP_LANE_UP) {
        tcp_lane_send_locked(lane);
    }
    if ((events & ~POLLOUT) || mc_stream_pending(&lane->stream)) {
        (void)tcp_lane_receive_locked(lane, done, sleep); /* poll tells whether there is more */
    }
    bool early = lane->receive_again;
    pthread_mutex_unlock(&lane->lock);
    if (early) {
        sched_yield();
    }
    return early;
}

/* Never longer than POLL_NS. */
static void wait_ready(struct pollfd *fds, nfds_t count, uint64_t left_ns) {
    struct timespec timeout = {.tv_sec = 0, .tv_nsec = (long)mc_min_u64(left_ns, POLL_NS)};
    if (ppoll(fds, count, &timeout, NULL) <= 0) {
        for (nfds_t i = 0; i < count; i++) {
            fds[i].revents = 0;
        }
    }
}

/* Until the deadline; the clock is not read when there is none. */
static uint64_t time_left(uint64_t deadline_ns) {
    if (deadline_ns == MC_NO_DEADLINE) {
        return UINT64_MAX;
    }
    uint64_t now = mc_now_ns(mc_clock_system());
    return deadline_ns > now ? deadline_ns - now : 0;
}

static bool is_done(const _Atomic uint32_t *done) {
    return atomic_load_explicit(done, memory_order_acquire) != 0;
}

/* Lanes of this thread that it does not drive are the reactor's to watch. */
static void withdraw_promise(struct tcp_lane *lane) {
    if (atomic_load_explicit(&lane->queued_bytes, memory_order_relaxed) == 0) {
        return;
    }
    pthread_mutex_lock(&lane->lock);
    if (lane->promised && pthread_equal(lane->owner, pthread_self())) {
        lane->promised = false;
        tcp_lane_watch_locked(lane, false);
    }
    pthread_mutex_unlock(&lane->lock);
}

void tcp_progress(struct tcp_peer *peer, const _Atomic uint32_t *done, uint64_t deadline_ns) {
    struct pollfd fds[TCP_LANES_MAX];
    struct tcp_lane *polled[TCP_LANES_MAX];
    bool held[TCP_LANES_MAX] = {false};
    bool early = false;
    while (!is_done(done)) {
        nfds_t count = 0;
        for (unsigned i = 0; i < peer->lane_count; i++) {
            struct tcp_lane *lane = &peer->lanes[i];
            bool before = held[i];
            held[i] = hold(lane, before, &fds[count]);
            if (held[i]) {
                polled[count++] = lane;
            } else if (before) {
                leave(lane);
            }
        }
        uint64_t left_ns = count > 0 ? time_left(deadline_ns) : 0;
        if (left_ns == 0) {
            break;
        }
        if (count == 1 && fds[0].events == POLLIN && !early && left_ns > MC_READ_SLEEP_NS) {
            /* One lane, and only answers to wait for: no need to ask which, sleep in the read. */
            early = drive(polled[0], POLLIN, done, true);
            continue;
        }
        wait_ready(fds, count, left_ns);
        early = false;
        for (nfds_t i = 0; i < count; i++) {
            if (fds[i].revents != 0) {
                early |= drive(polled[i], fds[i].revents, done, false);
            }
        }
    }
    for (unsigned i = 0; i < peer->lane_count; i++) {
        if (held[i]) {
            leave(&peer->lanes[i]);
        } else {
            withdraw_promise(&peer->lanes[i]);
        }
    }
}

/* ---- cancelling ---- */

/* Slices that were not begun are taken off; true when one was begun, so that only closing the
 * connection stops it. */
static bool take_unsent_locked(struct tcp_lane *lane, const void *task, struct mc_list *taken) {
    bool begun = false, sent = true;
    for (struct mc_list *i = lane->slices.next, *next; i != &lane->slices; i = next) {
        struct mc_slice_op *slice = mc_container_of(i, struct mc_slice_op, transport_link);
        bool first_unsent = i == lane->unsent;
        next = i->next;
        sent &= !first_unsent;
        if (slice->task != task) {
            continue;
        }
        if (sent || (first_unsent && lane->sent_bytes > 0)) {
            slice->transport_data[TCP_SLICE_ENDING] = TCP_ENDING_CANCELLED;
            begun = true;
        } else {
            tcp_lane_unlink_locked(lane, slice);
            mc_list_push_back(taken, &slice->transport_link);
        }
    }
    return begun;
}

static bool busy_elsewhere(const struct tcp_lane *lane) {
    return lane->sending || lane->state == TCP_LANE_FAILING ||
           (lane->completing && !pthread_equal(lane->completer, pthread_self()));
}

void tcp_lane_cancel(struct tcp_lane *lane, void *task) {
    struct mc_list taken;
    mc_list_init(&taken);
    pthread_mutex_lock(&lane->lock);
    lane->cancellers++;
    for (;;) {
        while (busy_elsewhere(lane)) {
            pthread_cond_wait(&lane->changed, &lane->lock);
        }
        if (!take_unsent_locked(lane, task, &taken)) {
            break;
        }
        /* What others have on the lane ends with it, through no fault of theirs or of the peer's.
         * Not MC_ERR_CLOSED: the peer may still apply what it has received. */
        tcp_lane_fail_locked(lane, MC_ERR_CANCELLED, true);
        tcp_lane_settle_locked(lane);
    }
    lane->cancellers--;
    /* Senders and the driver stood back meanwhile. */
    if (lane->state == TCP_LANE_UP && lane->unsent != &lane->slices) {
        tcp_lane_send_locked(lane);
    }
    tcp_lane_watch_locked(lane, true);
    pthread_mutex_unlock(&lane->lock);
    while (!mc_list_empty(&taken)) {
        struct mc_slice_op *slice = mc_container_of(taken.next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        mc_slice_done(slice, MC_ERR_TIMEOUT, false);
    }
}
