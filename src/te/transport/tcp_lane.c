/*
 * The tcp transport's lane: one connection to a peer, from the first slice to failure. See struct
 * tcp_lane for locks and roles, and tcp_lane_io.c for what moves.
 *
 * Connecting, closing and timers are work for the lane's reactor, which a thread asks for by
 * queueing the lane's task. Sending is done by whoever posts, so that a request leaves without a
 * thread switch. Receiving is done by the reactor, or by the thread that waits for the slices it
 * posted (tcp_wait.c); epoll is asked only for what no waiter polls for itself
 * (tcp_lane_watch_locked), so one answer wakes one thread.
 */
#include "te/transport/tcp.h"

#include <errno.h>

#include "base/log.h"

#define BACKOFF_FIRST_NS  (10 * MC_MS)
#define BACKOFF_DOUBLINGS 3 /* up to 80 ms: a dead peer is found out soon, and not besieged */
#define EVENTS_ALWAYS     (EPOLLRDHUP | EPOLLET)
#define EVENTS_BROKEN     (EPOLLRDHUP | EPOLLHUP | EPOLLERR)

static struct mc_slice_op *slice_at(struct mc_list *link) {
    return mc_container_of(link, struct mc_slice_op, transport_link);
}

static void ask_reactor_locked(struct tcp_lane *lane) {
    if (!lane->task_queued) {
        lane->task_queued = true;
        mc_reactor_post(lane->shard->reactor, &lane->task);
    }
}

/* ---- who watches the socket ---- */

void tcp_lane_watch_locked(struct tcp_lane *lane, bool again) {
    /* What TLS has decrypted and nobody has taken is invisible to epoll, which always sees that
     * there is room to send. */
    bool unseen = lane->state == TCP_LANE_UP && mc_stream_pending(&lane->stream);
    bool tls = lane->state == TCP_LANE_UP && !mc_stream_is_plain(&lane->stream);
    lane->watch_again |= again || unseen;
    if (!lane->attached || lane->state != TCP_LANE_UP || lane->driver == TCP_DRIVER_REACTOR) {
        return;
    }
    uint32_t events = EVENTS_ALWAYS;
    if (lane->driver == TCP_DRIVER_NONE && !lane->promised) {
        /* Once the reactor watches it goes on, even on an empty lane: the next answer is likely its
         * own too. */
        events |= lane->pending > 0 ? EPOLLIN : lane->watched & EPOLLIN;
        events |= lane->watched & EPOLLOUT;
    }
    if (lane->send_blocked && !(lane->driver == TCP_DRIVER_WAITER && lane->blocked_by_waiter) &&
        !lane->promised) {
        events |= EPOLLOUT;
    }
    if (tls && lane->watch_again && lane->driver == TCP_DRIVER_NONE) {
        events |= EPOLLOUT;
    }
    if (events != lane->watched || lane->watch_again) {
        lane->watched = events;
        lane->watch_again = false;
        mc_reactor_rearm(lane->shard->reactor, &lane->ready, events);
    }
}

/* ---- roles ---- */

static void tell_cancellers_locked(struct tcp_lane *lane) {
    if (lane->cancellers > 0) {
        pthread_cond_broadcast(&lane->changed);
    }
}

void tcp_lane_sender_left_locked(struct tcp_lane *lane) {
    bool again = lane->receive_again;
    bool unfinished =
        lane->state == TCP_LANE_UP && lane->unsent != &lane->slices && !lane->send_blocked;
    lane->sending = lane->receive_again = false;
    /* Stopped before the socket was full: it is writable, which epoll reports at once when asked
     * anew. */
    lane->send_blocked |= unfinished;
    tell_cancellers_locked(lane);
    tcp_lane_settle_locked(lane);
    tcp_lane_watch_locked(lane, again || unfinished);
}

void tcp_lane_complete_begin_locked(struct tcp_lane *lane) {
    MC_ASSERT(!lane->completing);
    lane->completing = true;
    lane->completer = pthread_self();
    pthread_mutex_unlock(&lane->lock);
}

void tcp_lane_complete_end_locked(struct tcp_lane *lane) {
    pthread_mutex_lock(&lane->lock);
    lane->completing = false;
    tell_cancellers_locked(lane);
}

/* ---- slices ---- */

void tcp_lane_unlink_locked(struct tcp_lane *lane, struct mc_slice_op *slice) {
    MC_ASSERT(lane->pending > 0);
    if (lane->unsent == &slice->transport_link) {
        lane->unsent = slice->transport_link.next;
        lane->sent_bytes = 0;
    }
    mc_list_del(&slice->transport_link);
    lane->pending--;
    if (slice->transport_data[TCP_SLICE_BY_OWNER]) {
        lane->owner_pending--;
    }
    atomic_fetch_sub_explicit(&lane->queued_bytes, tcp_slice_weight(slice), memory_order_relaxed);
    atomic_fetch_sub_explicit(&lane->peer->queued, 1, memory_order_relaxed);
}

static void link_slices_locked(struct tcp_lane *lane, struct mc_slice_op **slices, size_t count) {
    bool by_owner, waiter_follows = true;
    if (lane->pending == 0) {
        lane->owner = pthread_self();
        lane->promised = true;
        lane->stalled = 0;
        lane->moved = true;
    }
    by_owner = pthread_equal(lane->owner, pthread_self());
    for (size_t i = 0; i < count; i++) {
        struct mc_slice_op *slice = slices[i];
        MC_ASSERT(slice->length > 0); /* the engine answers empty requests itself */
        slice->transport_data[TCP_SLICE_BY_OWNER] = by_owner;
        slice->transport_data[TCP_SLICE_ENDING] = TCP_ENDING_WITH_LANE;
        waiter_follows &= slice->waiter_follows;
        mc_list_push_back(&lane->slices, &slice->transport_link);
        if (lane->unsent == &lane->slices) {
            lane->unsent = &slice->transport_link;
            lane->sent_bytes = 0;
        }
    }
    lane->promised &= by_owner && waiter_follows;
    lane->pending += (uint32_t)count;
    lane->owner_pending += by_owner ? (uint32_t)count : 0;
}

void tcp_lane_post(struct tcp_lane *lane, struct mc_slice_op **slices, size_t count) {
    pthread_mutex_lock(&lane->lock);
    link_slices_locked(lane, slices, count);
    if (lane->state == TCP_LANE_UP) {
        tcp_lane_send_locked(lane);
        tcp_lane_watch_locked(lane, false);
    } else if (lane->state == TCP_LANE_IDLE) {
        lane->state = TCP_LANE_STARTING;
        tcp_peer_get(lane->peer);
        ask_reactor_locked(lane);
    }
    pthread_mutex_unlock(&lane->lock);
}

/* ---- failing ---- */

/* A connection came to nothing: the next attempts wait. Several lanes that meet the same refusal
 * count once. */
static void note_refusal(struct tcp_peer *peer) {
    uint64_t now = mc_now_ns(mc_clock_system());
    if (now < atomic_load_explicit(&peer->retry_at_ns, memory_order_relaxed)) {
        return;
    }
    uint32_t refusals = atomic_fetch_add_explicit(&peer->refusals, 1, memory_order_relaxed);
    uint64_t pause = BACKOFF_FIRST_NS << mc_min_u64(refusals, BACKOFF_DOUBLINGS);
    atomic_store_explicit(&peer->retry_at_ns, now + pause, memory_order_relaxed);
}

void tcp_lane_fail_locked(struct tcp_lane *lane, enum mc_status status, bool retryable) {
    struct tcp_peer *peer = lane->peer;
    if (lane->state == TCP_LANE_IDLE || lane->state >= TCP_LANE_FAILING) {
        return;
    }
    lane->state = TCP_LANE_FAILING;
    atomic_store_explicit(&lane->connected, false, memory_order_relaxed);
    lane->failure = status;
    lane->failure_retryable = retryable;
    if (!lane->answered) {
        note_refusal(peer);
    }
    if (lane->stream.fd >= 0) {
        shutdown(lane->stream.fd, SHUT_RDWR); /* whoever polls it wakes up */
    }
}

static void end_failed(const struct tcp_lane *lane, struct mc_slice_op *slice) {
    switch (slice->transport_data[TCP_SLICE_ENDING]) {
    case TCP_ENDING_REFUSED:
        mc_slice_done(slice, MC_ERR_REJECTED, false);
        break;
    case TCP_ENDING_CANCELLED:
        mc_slice_done(slice, MC_ERR_TIMEOUT, false);
        break;
    default:
        mc_slice_done(slice, lane->failure, lane->failure_retryable);
        break;
    }
}

void tcp_lane_settle_locked(struct tcp_lane *lane) {
    if (lane->state != TCP_LANE_FAILING || lane->sending || lane->driver != TCP_DRIVER_NONE ||
        lane->completing) {
        return;
    }
    struct mc_list failed;
    mc_list_init(&failed);
    lane->state = TCP_LANE_CLOSING;
    lane->status_got = 0;
    lane->payload_got = 0;
    lane->send_blocked = lane->send_again = lane->receive_again = lane->watch_again = false;
    mc_metric_add(&lane->peer->transport->metrics.errors, lane->pending);
    while (!mc_list_empty(&lane->slices)) {
        struct mc_slice_op *slice = slice_at(lane->slices.next);
        tcp_lane_unlink_locked(lane, slice);
        mc_list_push_back(&failed, &slice->transport_link);
    }
    tcp_lane_complete_begin_locked(lane);
    while (!mc_list_empty(&failed)) {
        struct mc_slice_op *slice = slice_at(failed.next);
        mc_list_del(&slice->transport_link);
        end_failed(lane, slice);
    }
    tcp_lane_complete_end_locked(lane);
    ask_reactor_locked(lane);
}

/* ---- on the reactor's thread ---- */

static void connect_failed_locked(struct tcp_lane *lane, enum mc_status status, const char *step,
                                  int error) {
    mc_warn_limited("tcp: cannot connect: peer=%s lane=%u step=%s errno=%d reason=\"%s\"",
                    lane->peer->name, lane->index, step, error, error != 0 ? strerror(error) : "");
    tcp_lane_fail_locked(lane, status, true);
    tcp_lane_settle_locked(lane);
}

static void begin_connect_locked(struct tcp_lane *lane) {
    struct tcp_peer *peer = lane->peer;
    uint64_t now = mc_now_ns(mc_clock_system());
    uint64_t retry_at = atomic_load_explicit(&peer->retry_at_ns, memory_order_relaxed);
    int fd;
    lane->answered = false;
    if (now < retry_at) {
        mc_timer_start(lane->shard->reactor, &lane->timer, retry_at);
        return;
    }
    enum mc_status status = mc_connect_begin(&peer->addr, &fd);
    if (status != MC_OK) {
        connect_failed_locked(lane, status, "begin", errno);
        return;
    }
    mc_stream_plain(&lane->stream, fd);
    lane->state = TCP_LANE_CONNECTING;
    lane->acked = peer->acked;
    lane->hang_up = false;
    lane->watched = EVENTS_ALWAYS | EPOLLIN | EPOLLOUT;
    lane->ready.fd = fd;
    lane->ready.events = lane->watched;
    if (mc_reactor_add(lane->shard->reactor, &lane->ready) != MC_OK) {
        connect_failed_locked(lane, MC_ERR_LIMIT, "watch", 0);
        return;
    }
    lane->attached = true;
    mc_timer_start(lane->shard->reactor, &lane->timer, now + peer->transport->connect_timeout_ns);
}

/* MC_OK with *done false: the next event continues. */
static enum mc_status secure_locked(struct tcp_lane *lane, bool *done) {
    *done = !lane->peer->tls;
    if (!lane->peer->tls) {
        return MC_OK;
    }
    if (mc_stream_is_plain(&lane->stream)) {
        mc_stream_tls(&lane->stream, lane->stream.fd, lane->peer->transport->tls->client,
                      lane->peer->host);
    }
    return mc_stream_tls_step(&lane->stream, done);
}

/* By several reactors at a time, perhaps: one of them may win with more than the least, which only
 * means a lane more or less for some posts. */
static void note_rtt(struct tcp_peer *peer, uint32_t rtt_us) {
    uint32_t least = atomic_load_explicit(&peer->rtt_us, memory_order_relaxed);
    if (rtt_us > 0 && (least == 0 || rtt_us < least)) {
        atomic_store_explicit(&peer->rtt_us, rtt_us, memory_order_relaxed);
    }
}

static void end_connect_locked(struct tcp_lane *lane) {
    struct tcp_metrics *metrics = &lane->peer->transport->metrics;
    enum mc_status status =
        mc_stream_is_plain(&lane->stream) ? mc_connect_end(lane->stream.fd) : MC_OK;
    if (status != MC_OK) {
        connect_failed_locked(lane, status, "connect", errno);
        return;
    }
    bool done;
    status = secure_locked(lane, &done);
    if (status != MC_OK) {
        connect_failed_locked(lane, status, "TLS", 0);
        return;
    }
    if (!done) {
        return;
    }
    mc_timer_stop(lane->shard->reactor, &lane->timer);
    if (mc_stream_is_plain(&lane->stream)) {
        mc_stream_sleep_in_reads(&lane->stream);
    }
    lane->state = TCP_LANE_UP;
    note_rtt(lane->peer, mc_socket_rtt_us(lane->stream.fd));
    atomic_store_explicit(&lane->connected, true, memory_order_relaxed);
    lane->counted = true;
    lane->moved = true;
    mc_metric_add(&metrics->lanes, 1);
    mc_metric_add(&metrics->connects, 1);
    tcp_lane_send_locked(lane);
}

/* The failed connection goes; slices posted since then get a new one. True when the lane came to
 * rest. */
static bool close_locked(struct tcp_lane *lane) {
    struct mc_reactor *reactor = lane->shard->reactor;
    mc_timer_stop(reactor, &lane->timer);
    if (lane->attached) {
        mc_reactor_remove(reactor, &lane->ready);
        lane->attached = false;
    }
    if (lane->stream.fd >= 0) {
        lane->stream.ops->close(&lane->stream);
        lane->stream.fd = -1;
    }
    if (lane->counted) {
        mc_metric_add(&lane->peer->transport->metrics.lanes, -1);
        lane->counted = false;
    }
    if (lane->pending == 0) {
        lane->state = TCP_LANE_IDLE;
        mc_list_del(&lane->shard_link);
        return true;
    }
    lane->state = TCP_LANE_STARTING;
    begin_connect_locked(lane);
    return false;
}

static void on_task(struct mc_task *task) {
    struct tcp_lane *lane = mc_container_of(task, struct tcp_lane, task);
    bool rested = false;
    pthread_mutex_lock(&lane->lock);
    lane->task_queued = false;
    if (lane->state == TCP_LANE_STARTING) {
        if (mc_list_empty(&lane->shard_link)) {
            mc_list_push_back(&lane->shard->lanes, &lane->shard_link);
        }
        begin_connect_locked(lane);
    } else if (lane->state == TCP_LANE_CLOSING && !lane->completing) {
        rested = close_locked(lane);
    }
    pthread_mutex_unlock(&lane->lock);
    if (rested) {
        tcp_peer_put(lane->peer);
    }
}

static void on_timer(struct mc_timer *timer) {
    struct tcp_lane *lane = mc_container_of(timer, struct tcp_lane, timer);
    pthread_mutex_lock(&lane->lock);
    if (lane->state == TCP_LANE_STARTING) {
        begin_connect_locked(lane);
    } else if (lane->state == TCP_LANE_CONNECTING) {
        connect_failed_locked(lane, MC_ERR_UNREACHABLE, "connect", ETIMEDOUT);
    }
    pthread_mutex_unlock(&lane->lock);
}

static void drive_locked(struct tcp_lane *lane, uint32_t events) {
    lane->driver = TCP_DRIVER_REACTOR;
    lane->hang_up |= (events & EVENTS_BROKEN) != 0;
    if ((events & EPOLLOUT) && lane->unsent != &lane->slices) {
        tcp_lane_send_locked(lane);
    }
    bool more = tcp_lane_receive_locked(lane, NULL, false);
    lane->driver = TCP_DRIVER_NONE;
    tcp_lane_settle_locked(lane);
    tcp_lane_watch_locked(lane, more);
}

static void on_ready(struct mc_reactor_fd *ready, uint32_t events) {
    struct tcp_lane *lane = mc_container_of(ready, struct tcp_lane, ready);
    pthread_mutex_lock(&lane->lock);
    bool securing = lane->state == TCP_LANE_CONNECTING && !mc_stream_is_plain(&lane->stream);
    if (lane->state == TCP_LANE_CONNECTING && (securing || (events & (EPOLLOUT | EVENTS_BROKEN)))) {
        end_connect_locked(lane);
    }
    if (lane->state == TCP_LANE_UP && lane->driver == TCP_DRIVER_NONE) {
        drive_locked(lane, events);
    } else if (lane->state == TCP_LANE_UP) { /* a waiter reads; it did not see sending block */
        lane->hang_up |= (events & EVENTS_BROKEN) != 0;
        if ((events & EPOLLOUT) && lane->unsent != &lane->slices) {
            tcp_lane_send_locked(lane);
        }
    }
    pthread_mutex_unlock(&lane->lock);
}

void tcp_lane_sweep(struct tcp_shard *shard) {
    for (struct mc_list *i = shard->lanes.next; i != &shard->lanes; i = i->next) {
        struct tcp_lane *lane = mc_container_of(i, struct tcp_lane, shard_link);
        pthread_mutex_lock(&lane->lock);
        bool waits = lane->state == TCP_LANE_UP && lane->pending > 0;
        lane->stalled = waits && !lane->moved ? lane->stalled + 1 : 0;
        lane->moved = false;
        if (lane->promised) { /* by a waiter that did not come */
            lane->promised = false;
            tcp_lane_watch_locked(lane, false);
        }
        if (lane->stalled >= shard->transport->stall_ticks) {
            mc_warn_limited("tcp: the peer does not answer: peer=%s lane=%u pending=%u seconds=%u",
                            lane->peer->name, lane->index, lane->pending, lane->stalled);
            tcp_lane_fail_locked(lane, MC_ERR_TIMEOUT, true);
            tcp_lane_settle_locked(lane);
        }
        pthread_mutex_unlock(&lane->lock);
    }
}

/* ---- life ---- */

void tcp_lane_init(struct tcp_lane *lane, struct tcp_peer *peer, unsigned index) {
    struct tcp_transport *transport = peer->transport;
    memset(lane, 0, sizeof(*lane));
    lane->peer = peer;
    lane->index = index;
    lane->shard = &transport->shards[index % transport->shard_count];
    lane->stream.fd = -1;
    lane->ready.on_ready = on_ready;
    lane->task.run = on_task;
    mc_timer_init(&lane->timer, on_timer);
    mc_list_init(&lane->shard_link);
    mc_list_init(&lane->slices);
    lane->unsent = &lane->slices;
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->changed, NULL);
}

void tcp_lane_destroy(struct tcp_lane *lane) {
    MC_ASSERT(lane->state == TCP_LANE_IDLE && lane->pending == 0);
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->lock);
}
