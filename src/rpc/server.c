/*
 * The RPC server: an acceptor and N workers, each a reactor with its connections. See rpc.h, and
 * server_private.h for what a connection is. Here: start, stop, accepting and metrics.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "rpc/server_private.h"
#include "wire/schema.h"

#define YIELD_NS                (500 * 1000ull)
#define LISTEN_BACKLOG          1024
#define MAX_WORKERS             256
#define DEFAULT_MAX_CONNECTIONS 65536
#define DEFAULT_MAX_BUFFERED    (2ull << 30)

/* ---- accepting ---- */

static struct worker *least_loaded(struct mc_rpc_server *s, unsigned *total) {
    struct worker *best = NULL;
    unsigned best_count = UINT32_MAX;
    *total = 0;
    for (unsigned i = 0; i < s->worker_count; i++) {
        unsigned count = atomic_load_explicit(&s->workers[i].connections, memory_order_relaxed);
        *total += count;
        if (count < best_count) {
            best = &s->workers[i];
            best_count = count;
        }
    }
    return best;
}

static void accepted(struct mc_acceptor *acceptor, int fd, const struct mc_addr *addr) {
    struct mc_rpc_server *s = mc_container_of(acceptor, struct mc_rpc_server, acceptor);
    unsigned total;
    struct worker *w = least_loaded(s, &total);
    char peer[PEER_TEXT];
    mc_addr_format(addr, peer, sizeof(peer));
    if (total >= s->config.max_connections) {
        mc_warn_limited("too many connections: peer=%s limit=%u", peer, s->config.max_connections);
        mc_metric_add(&s->metrics.refused, 1);
        close(fd);
        return;
    }
    if (!s->config.no_delay) {
        int off = 0;
        if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &off, sizeof(off)) != 0) {
            mc_debug("cannot clear TCP_NODELAY: peer=%s errno=%d", peer, errno);
        }
    }
    struct connection *c = mc_zalloc(sizeof(*c));
    memcpy(c->peer, peer, sizeof(peer));
    c->worker = w;
    c->watch = (struct mc_reactor_fd){.fd = fd, .events = EPOLLIN, .on_ready = rpc_on_ready};
    c->adopt.run = rpc_connection_adopt;
    if (s->config.tls != NULL) {
        mc_stream_tls(&c->stream, fd, s->config.tls, c->peer);
    } else {
        mc_stream_serve(&c->stream, fd, &s->config.peers, c->peer);
    }
    atomic_fetch_add_explicit(&w->connections, 1, memory_order_relaxed);
    mc_metric_add(&s->metrics.connections, 1);
    if (mc_reactor_on_thread(w->reactor)) {
        rpc_connection_adopt(&c->adopt);
    } else {
        mc_reactor_post(w->reactor, &c->adopt);
    }
}

/* ---- start and stop ---- */

static int64_t read_buffered(void *arg) {
    struct mc_rpc_server *s = arg;
    return (int64_t)atomic_load_explicit(&s->buffered, memory_order_relaxed);
}

static void register_metrics(struct mc_rpc_server *s) {
    const struct mc_metric_row rows[] = {
        {MC_METRIC_GAUGE, "mc_rpc_connections", "open RPC connections", &s->metrics.connections},
        {MC_METRIC_COUNTER, "mc_rpc_connections_refused", "connections closed because of the limit",
         &s->metrics.refused},
        {MC_METRIC_COUNTER, "mc_rpc_requests", "requests answered", &s->metrics.requests},
        {MC_METRIC_COUNTER, "mc_rpc_slow_requests", "of these, those that ran aside",
         &s->metrics.slow},
        {MC_METRIC_COUNTER, "mc_rpc_errors", "answers with an RPC error", &s->metrics.errors},
        {MC_METRIC_COUNTER, "mc_rpc_bad_frames",
         "connections closed because of bytes that are no frame", &s->metrics.bad_frames},
        {MC_METRIC_COUNTER, "mc_rpc_over_budget",
         "connections closed because all buffers together were at their limit",
         &s->metrics.over_budget},
        {MC_METRIC_COUNTER, "mc_rpc_received_bytes", "bytes read from RPC connections",
         &s->metrics.received},
        {MC_METRIC_COUNTER, "mc_rpc_sent_bytes", "bytes written to RPC connections",
         &s->metrics.sent},
    };
    mc_metrics_register_rows(s->config.metrics, "", rows, MC_ARRAY_LEN(rows));
    if (s->config.metrics != NULL) {
        mc_metrics_register_fn(s->config.metrics, MC_METRIC_GAUGE, "mc_rpc_buffered_bytes", "",
                               "bytes of requests and answers that wait on connections",
                               read_buffered, s);
    }
}

static void worker_close_all(void *arg) {
    struct worker *w = arg;
    struct mc_list *lists[] = {&w->open, &w->closing};
    for (size_t i = 0; i < MC_ARRAY_LEN(lists); i++) {
        while (!mc_list_empty(lists[i])) {
            rpc_connection_free(mc_container_of(lists[i]->next, struct connection, link));
        }
    }
    mc_timer_stop(w->reactor, &w->sweep);
}

static void worker_begin(void *arg) {
    struct worker *w = arg;
    mc_reactor_yield_every(w->reactor, YIELD_NS);
}

static enum mc_status worker_start(struct mc_rpc_server *s, struct worker *w, unsigned index) {
    char name[32];
    snprintf(name, sizeof(name), "mc-rpc-%u", index);
    w->server = s;
    mc_list_init(&w->open);
    mc_list_init(&w->closing);
    mc_timer_init(&w->sweep, rpc_on_sweep);
    MC_TRY(mc_reactor_create(name, &w->reactor));
    mc_reactor_call(w->reactor, worker_begin, w);
    w->scratch = mc_alloc(READ_BYTES);
    return MC_OK;
}

static void worker_stop(struct worker *w) {
    mc_reactor_destroy(w->reactor);
    mc_arena_free(&w->arena);
    mc_buf_free(&w->out);
    mc_buf_free(&w->body);
    mc_buf_free(&w->attachment);
    free(w->scratch);
}

static struct mc_rpc_server *server_new(const struct mc_rpc_server_config *config) {
    struct mc_rpc_server *s = mc_zalloc(sizeof(*s));
    s->config = *config;
    s->config.max_body_bytes = config->max_body_bytes ? config->max_body_bytes : MC_RPC_MAX_BODY;
    s->config.max_connections =
        config->max_connections ? config->max_connections : DEFAULT_MAX_CONNECTIONS;
    s->config.max_buffered_bytes =
        config->max_buffered_bytes ? config->max_buffered_bytes : DEFAULT_MAX_BUFFERED;
    s->text_hash = mc_type_hash(&mc_t_str);
    unsigned threads = config->threads ? config->threads : 1;
    threads = threads < MAX_WORKERS ? threads : MAX_WORKERS;
    unsigned slow = config->slow_threads ? config->slow_threads : 1;
    s->config.slow_threads = slow < MAX_ASIDE ? slow : MAX_ASIDE;
    s->workers = mc_zalloc(threads * sizeof(struct worker));
    s->config.threads = threads;
    return s;
}

static void server_free(struct mc_rpc_server *s) {
    for (unsigned i = 0; i < s->worker_count; i++) {
        mc_reactor_call(s->workers[i].reactor, worker_close_all, &s->workers[i]);
    }
    for (unsigned i = 0; i < MAX_ASIDE; i++) {
        mc_reactor_destroy(s->aside[i]); /* what is there runs to its end and goes back */
    }
    while (s->worker_count > 0) {
        worker_stop(&s->workers[--s->worker_count]);
    }
    if (s->config.metrics != NULL) {
        mc_metrics_unregister_range(s->config.metrics, s, sizeof(*s));
    }
    free(s->workers);
    free(s);
}

enum mc_status mc_rpc_server_start(const struct mc_rpc_server_config *config,
                                   struct mc_rpc_server **out, uint16_t *bound_port) {
    MC_ASSERT(config->handler != NULL);
    struct mc_rpc_server *s = server_new(config);
    int fd;
    uint16_t port;
    enum mc_status status =
        mc_listen(config->host ? config->host : "", config->port, LISTEN_BACKLOG, &fd, &port);
    if (status != MC_OK) {
        goto fail_listen;
    }
    register_metrics(s);
    while (s->worker_count < s->config.threads) {
        status = worker_start(s, &s->workers[s->worker_count], s->worker_count);
        if (status != MC_OK) {
            goto fail_start;
        }
        s->worker_count++;
    }
    for (unsigned i = 0; config->slow != NULL && i < s->config.slow_threads; i++) {
        status = mc_reactor_create("mc-rpc-aside", &s->aside[i]);
        if (status != MC_OK) {
            goto fail_start;
        }
    }
    status = mc_acceptor_start(&s->acceptor, s->workers[0].reactor, fd, accepted);
    if (status != MC_OK) {
        goto fail_listen; /* the socket is closed */
    }
    *out = s;
    if (bound_port != NULL) {
        *bound_port = port;
    }
    return MC_OK;

fail_start:
    close(fd);
fail_listen:
    server_free(s);
    return status;
}

void mc_rpc_server_stop(struct mc_rpc_server *server) {
    if (server == NULL) {
        return;
    }
    /* First the acceptor: what it handed over before is queued at the workers and is closed by
     * them. */
    mc_acceptor_stop(&server->acceptor);
    server_free(server);
}
