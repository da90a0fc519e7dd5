/*
 * The tcp transport: upstream's data protocol over several connections (lanes) a peer.
 * docs/transport-tcp.md has the picture; tcp.h says what lies in which file.
 *
 * This file starts and stops it, keeps the peers and hands posted slices to lanes. A post goes to
 * the lane with the least queued bytes; it is spread over several only where cores are left for
 * their streams, or where the peer is so far away that windows and pacing are the limit, of which
 * every connection has its own.
 */
#include "te/transport/tcp.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/thread.h"

#define SLICE_BYTES      (4ull << 20)
#define COST             100
#define SPREAD_MIN_BYTES (1ull << 20) /* less than this a lane is not worth a second lane */
#define FAR_RTT_US       500          /* a copy of 1 MiB takes less */
#define FAR_MIN_BYTES    (256ull << 10)
#define STALL_DEFAULT_S  30
#define QUEUE_DEFAULT    (1ull << 20)

/* ---- peers ---- */

void tcp_peer_get(struct tcp_peer *peer) {
    atomic_fetch_add_explicit(&peer->refs, 1, memory_order_relaxed);
}

void tcp_peer_put(struct tcp_peer *peer) {
    if (atomic_fetch_sub_explicit(&peer->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    for (unsigned i = 0; i < peer->lane_count; i++) {
        tcp_lane_destroy(&peer->lanes[i]);
    }
    free(peer);
}

static bool speaks_acked(const struct tcp_transport *t, const struct mc_peer_desc *desc) {
    return desc->tcp_proto >= TCP_PROTO_ACKED && !t->force_plain;
}

static bool speaks_tls(const struct tcp_transport *t, const struct mc_peer_desc *desc) {
    return desc->tls && t->tls->mode != MC_TLS_OFF;
}

/* One of ours: upstream's answer to an empty read is not known. */
static bool pads(const struct tcp_transport *t, const struct mc_peer_desc *desc) {
    return desc->boot_id[0] != '\0' && speaks_acked(t, desc) && !speaks_tls(t, desc);
}

static enum mc_status peer_create(struct tcp_transport *t, const struct mc_peer_desc *desc,
                                  struct tcp_peer **out) {
    struct mc_addr addr;
    MC_TRY(mc_addr_resolve(desc->tcp_host, desc->tcp_data_port, &addr));
    struct tcp_peer *peer = mc_zalloc(sizeof(*peer) + t->lanes_per_peer * sizeof(peer->lanes[0]));
    peer->transport = t;
    peer->addr = addr;
    peer->acked = speaks_acked(t, desc);
    peer->tls = speaks_tls(t, desc);
    peer->pads = pads(t, desc);
    peer->lane_count = t->lanes_per_peer;
    mc_list_init(&peer->link);
    mc_addr_format(&addr, peer->name, sizeof(peer->name));
    snprintf(peer->host, sizeof(peer->host), "%s", desc->tcp_host);
    atomic_store_explicit(&peer->refs, 1, memory_order_relaxed);
    for (unsigned i = 0; i < peer->lane_count; i++) {
        tcp_lane_init(&peer->lanes[i], peer, i);
    }
    *out = peer;
    return MC_OK;
}

/* The segment's peer with a reference for the caller; NULL when it has none. */
static struct tcp_peer *peer_find(struct tcp_transport *t, struct mc_segment *segment) {
    pthread_mutex_lock(&t->peers_lock);
    struct tcp_peer *peer = segment->transport_state[t->base.index];
    if (peer != NULL) {
        tcp_peer_get(peer);
    }
    pthread_mutex_unlock(&t->peers_lock);
    return peer;
}

/* The same, made from the descriptor when the segment has none. */
static enum mc_status peer_open(struct tcp_transport *t, struct mc_segment *segment,
                                struct tcp_peer **out) {
    struct tcp_peer *made = NULL, *peer = peer_find(t, segment);
    if (peer == NULL) {
        struct mc_peer_desc *desc = mc_segment_desc(segment);
        enum mc_status status = peer_create(t, desc, &made);
        mc_peer_desc_put(desc);
        MC_TRY(status);
        pthread_mutex_lock(&t->peers_lock);
        peer = segment->transport_state[t->base.index];
        if (peer == NULL) {
            peer = made;
            made = NULL;
            segment->transport_state[t->base.index] = peer;
            mc_list_push_back(&t->peers, &peer->link);
        }
        tcp_peer_get(peer);
        pthread_mutex_unlock(&t->peers_lock);
        if (made != NULL) { /* another thread was first */
            tcp_peer_put(made);
        }
    }
    *out = peer;
    return MC_OK;
}

/* Ends all lanes; the caller has taken the peer off its segment and gives up the segment's
 * reference. */
static void peer_close(struct tcp_peer *peer) {
    for (unsigned i = 0; i < peer->lane_count; i++) {
        struct tcp_lane *lane = &peer->lanes[i];
        pthread_mutex_lock(&lane->lock);
        /* Not MC_ERR_CLOSED: the peer may still apply what it has received. */
        tcp_lane_fail_locked(lane, MC_ERR_CANCELLED, true);
        tcp_lane_settle_locked(lane);
        pthread_mutex_unlock(&lane->lock);
    }
    tcp_peer_put(peer);
}

/* ---- posting ---- */

/* The lane with the least in its queue, where `weight` is added at once so that threads that post
 * at the same time choose different lanes. Among empty lanes one that is connected. */
static struct tcp_lane *choose_lane(struct tcp_peer *peer, uint64_t weight) {
    for (;;) {
        struct tcp_lane *best = NULL;
        uint64_t best_load = UINT64_MAX, best_queued = 0;
        for (unsigned i = 0; i < peer->lane_count; i++) {
            struct tcp_lane *lane = &peer->lanes[i];
            uint64_t queued = atomic_load_explicit(&lane->queued_bytes, memory_order_relaxed);
            uint64_t load = queued + !atomic_load_explicit(&lane->connected, memory_order_relaxed);
            if (load < best_load) {
                best = lane;
                best_load = load;
                best_queued = queued;
            }
        }
        if (atomic_compare_exchange_strong_explicit(&best->queued_bytes, &best_queued,
                                                    best_queued + weight, memory_order_relaxed,
                                                    memory_order_relaxed)) {
            return best;
        }
    }
}

/* Over how many lanes a post of so many bytes spreads. */
static uint64_t count_parts(const struct tcp_transport *t, const struct tcp_peer *peer,
                            uint64_t bytes) {
    bool far = atomic_load_explicit(&peer->rtt_us, memory_order_relaxed) >= FAR_RTT_US;
    uint64_t worth = bytes / (far ? FAR_MIN_BYTES : SPREAD_MIN_BYTES);
    return mc_min_u64(mc_max_u64(worth, 1), far ? peer->lane_count : t->lanes_per_post);
}

static void post_to_lanes(struct tcp_transport *t, struct tcp_peer *peer,
                          struct mc_slice_op **slices, size_t count) {
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += tcp_slice_weight(slices[i]);
    }
    uint64_t share = total / count_parts(t, peer, total);
    for (size_t begin = 0, end; begin < count; begin = end) {
        uint64_t weight = 0;
        for (end = begin; end < count && (weight < share || end == begin); end++) {
            weight += tcp_slice_weight(slices[end]);
        }
        tcp_lane_post(choose_lane(peer, weight), slices + begin, end - begin);
    }
}

static enum mc_status tcp_post(struct mc_transport *base, struct mc_slice_op **slices,
                               size_t count) {
    struct tcp_transport *t = tcp_of(base);
    struct tcp_peer *peer;
    if (count == 0) {
        return MC_OK;
    }
    MC_TRY(peer_open(t, slices[0]->segment, &peer));
    uint64_t queued = atomic_fetch_add_explicit(&peer->queued, count, memory_order_relaxed);
    if (queued + count > t->queue_limit) {
        atomic_fetch_sub_explicit(&peer->queued, count, memory_order_relaxed);
        mc_warn_limited("tcp: too many slices are queued for one peer: peer=%s limit=%llu",
                        peer->name, (unsigned long long)t->queue_limit);
        tcp_peer_put(peer);
        return MC_ERR_LIMIT;
    }
    post_to_lanes(t, peer, slices, count);
    tcp_peer_put(peer);
    return MC_OK;
}

static void tcp_progress_op(struct mc_transport *base, struct mc_segment *segment,
                            const _Atomic uint32_t *done, uint64_t deadline_ns) {
    struct tcp_peer *peer = peer_find(tcp_of(base), segment);
    if (peer != NULL) {
        tcp_progress(peer, done, deadline_ns);
        tcp_peer_put(peer);
    }
}

static void tcp_cancel(struct mc_transport *base, struct mc_segment *segment, void *task) {
    struct tcp_peer *peer = peer_find(tcp_of(base), segment);
    if (peer != NULL) {
        for (unsigned i = 0; i < peer->lane_count; i++) {
            tcp_lane_cancel(&peer->lanes[i], task);
        }
        tcp_peer_put(peer);
    }
}

static void tcp_forget(struct mc_transport *base, struct mc_segment *segment) {
    struct tcp_transport *t = tcp_of(base);
    pthread_mutex_lock(&t->peers_lock);
    struct tcp_peer *peer = segment->transport_state[base->index];
    segment->transport_state[base->index] = NULL;
    if (peer != NULL) {
        mc_list_del(&peer->link);
    }
    pthread_mutex_unlock(&t->peers_lock);
    if (peer != NULL) {
        peer_close(peer);
    }
}

static uint32_t tcp_cost(struct mc_transport *base, struct mc_segment *segment,
                         const struct mc_peer_desc *desc) {
    bool closed = tcp_of(base)->tls->mode == MC_TLS_REQUIRE && !desc->tls;
    return desc->tcp_data_port != 0 && desc->tcp_host[0] != '\0' && !closed ? COST : UINT32_MAX;
}

/* Names are resolved here, where waiting is allowed. A descriptor that names another place ends the
 * lanes to the old one. */
static void tcp_open(struct mc_transport *base, struct mc_segment *segment,
                     const struct mc_peer_desc *desc) {
    struct tcp_transport *t = tcp_of(base);
    struct tcp_peer *peer = peer_find(t, segment);
    if (t->tls->mode == MC_TLS_REQUIRE && !desc->tls) {
        mc_warn("tcp: the peer speaks no TLS, which is required here: peer=%s", desc->name);
    }
    if (peer != NULL) {
        bool moved = strcmp(peer->host, desc->tcp_host) != 0 ||
                     mc_addr_port(&peer->addr) != desc->tcp_data_port ||
                     peer->acked != speaks_acked(t, desc) || peer->tls != speaks_tls(t, desc) ||
                     peer->pads != pads(t, desc);
        tcp_peer_put(peer);
        if (!moved) {
            return;
        }
        tcp_forget(base, segment);
    }
    if (tcp_cost(base, segment, desc) != UINT32_MAX && peer_open(t, segment, &peer) == MC_OK) {
        tcp_peer_put(peer);
    }
}

static void tcp_describe(struct mc_transport *base, void *json_object) {
    struct tcp_transport *t = tcp_of(base);
    MC_ASSERT(json_object_set_new(json_object, "tcp_data_port", json_integer(t->server.port)) == 0);
    MC_ASSERT(
        json_object_set_new(json_object, "tcp_proto_version", json_integer(TCP_PROTO_ACKED)) == 0);
}

/* ---- start and stop ---- */

static void register_metrics(struct tcp_transport *t) {
    struct mc_metrics *registry = mc_engine_registry(t->base.engine);
    struct tcp_metrics *m = &t->metrics;
    mc_register_by_op(registry, "mooncake_te_tcp_bytes_total", "bytes moved by own requests",
                      m->bytes);
    mc_register_by_op(registry, "mooncake_te_tcp_requests_total", "own requests completed",
                      m->requests);
    mc_register_by_op(registry, "mooncake_te_tcp_served_bytes_total",
                      "bytes moved by peers' requests", m->served_bytes);
    mc_register_by_op(registry, "mooncake_te_tcp_served_requests_total",
                      "peers' requests completed", m->served_requests);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "mooncake_te_tcp_errors_total", "",
                        "own requests that failed on a connection (the engine may retry them)",
                        &m->errors);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "mooncake_te_tcp_connects_total", "",
                        "connections made to peers", &m->connects);
    mc_metrics_register(registry, MC_METRIC_GAUGE, "mooncake_te_tcp_lanes", "",
                        "connections to peers", &m->lanes);
    mc_metrics_register(registry, MC_METRIC_GAUGE, "mooncake_te_tcp_connections", "",
                        "connections from peers", &m->connections);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "mooncake_te_tcp_rejected_total", "",
                        "peers' requests outside registered memory", &m->rejected);
    mc_metrics_register(registry, MC_METRIC_COUNTER, "mooncake_te_tcp_served_errors_total", "",
                        "peers' connections that ended inside a request or were one too many",
                        &m->served_errors);
}

static void on_sweep(struct mc_timer *timer) {
    struct tcp_shard *shard = mc_container_of(timer, struct tcp_shard, sweep);
    tcp_server_sweep(shard);
    tcp_lane_sweep(shard);
    mc_timer_start(shard->reactor, timer, mc_now_ns(mc_clock_system()) + TCP_SWEEP_NS);
}

static void shard_begin(void *arg) {
    struct tcp_shard *shard = arg;
    mc_timer_start(shard->reactor, &shard->sweep, mc_now_ns(mc_clock_system()) + TCP_SWEEP_NS);
}

static void shard_end(void *arg) {
    struct tcp_shard *shard = arg;
    mc_timer_stop(shard->reactor, &shard->sweep);
    tcp_server_close_all(shard);
}

static void shard_barrier(void *arg) {
    (void)arg;
}

static void for_each_shard(struct tcp_transport *t, void (*fn)(void *)) {
    for (unsigned i = 0; i < t->shard_count; i++) {
        mc_reactor_call(t->shards[i].reactor, fn, &t->shards[i]);
    }
}

static void make_shards(struct tcp_transport *t) {
    t->shard_count = mc_engine_reactor_count(t->base.engine);
    t->shards = mc_zalloc(t->shard_count * sizeof(t->shards[0]));
    for (unsigned i = 0; i < t->shard_count; i++) {
        struct tcp_shard *shard = &t->shards[i];
        shard->transport = t;
        shard->reactor = mc_engine_reactor(t->base.engine, i);
        mc_list_init(&shard->connections);
        mc_list_init(&shard->lanes);
        mc_timer_init(&shard->sweep, on_sweep);
    }
}

static void free_transport(struct tcp_transport *t) {
    pthread_mutex_destroy(&t->peers_lock);
    free(t->shards);
    free(t);
}

static enum mc_status tcp_start(struct mc_engine *engine, unsigned index,
                                struct mc_transport **out) {
    const struct mc_engine_options *config = mc_engine_config(engine);
    struct tcp_transport *t = mc_zalloc(sizeof(*t));
    unsigned cores = mc_usable_cores();
    t->base.ops = &mc_transport_tcp_ops;
    t->base.engine = engine;
    t->base.index = index;
    t->tls = mc_engine_tls(engine);
    t->lanes_per_peer = (unsigned)mc_min_u64(mc_max_u64(config->lanes_per_peer, 1), TCP_LANES_MAX);
    /* A stream keeps about one core busy at each end. */
    t->lanes_per_post = (unsigned)mc_min_u64(t->lanes_per_peer, cores > 2 ? cores / 2 : 1);
    t->stall_ticks = (unsigned)mc_env_u64("MC_TCP_STATUS_TIMEOUT_SEC", 1, 86400, STALL_DEFAULT_S);
    t->queue_limit =
        mc_env_u64("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", 1, UINT32_MAX, QUEUE_DEFAULT);
    t->force_plain = mc_env_u64("MC_TCP_PROTO", TCP_PROTO_PLAIN, TCP_PROTO_ACKED,
                                TCP_PROTO_ACKED) == TCP_PROTO_PLAIN;
    t->connect_timeout_ns = (uint64_t)config->connect_timeout_ms * MC_MS;
    pthread_mutex_init(&t->peers_lock, NULL);
    mc_list_init(&t->peers);
    make_shards(t);
    enum mc_status status = tcp_server_start(&t->server, t);
    if (status != MC_OK) {
        free_transport(t);
        return status;
    }
    for_each_shard(t, shard_begin);
    register_metrics(t);
    *out = &t->base;
    return MC_OK;
}

/* The engine has no slice in flight any more and no thread inside. */
static void tcp_stop(struct mc_transport *base) {
    struct tcp_transport *t = tcp_of(base);
    tcp_server_stop_listening(&t->server);
    while (!mc_list_empty(&t->peers)) {
        struct tcp_peer *peer = mc_container_of(t->peers.next, struct tcp_peer, link);
        mc_list_del(&peer->link);
        peer_close(peer);
    }
    for_each_shard(t, shard_end);
    for_each_shard(
        t, shard_barrier); /* closing lanes and cut turns are queued tasks: they have run now */
    for (unsigned i = 0; i < t->shard_count; i++) {
        MC_ASSERT(mc_list_empty(&t->shards[i].lanes) && mc_list_empty(&t->shards[i].connections));
        mc_device_copier_free(&t->shards[i].copier);
    }
    mc_metrics_unregister_range(mc_engine_registry(base->engine), &t->metrics, sizeof(t->metrics));
    free_transport(t);
}

const struct mc_transport_ops mc_transport_tcp_ops = {
    .name = "tcp",
    .slice_bytes = SLICE_BYTES,
    .devices = MC_DEVICE_FOREIGN, /* upstream's servers copy to and from it themselves */
    .start = tcp_start,
    .stop = tcp_stop,
    .describe = tcp_describe,
    .cost = tcp_cost,
    .open = tcp_open,
    .post = tcp_post,
    .progress = tcp_progress_op,
    .cancel = tcp_cancel,
    .forget = tcp_forget,
};
