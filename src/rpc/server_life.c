/*
 * A connection's life: taken over by its worker, OPEN, CLOSING, freed; and the sweep that ends
 * those that are silent for too long. Lists are in order of silence, so that a sweep looks at the
 * connections that it ends and one more.
 */
#include "rpc/server_private.h"

#define LINGER_MS         1000
#define BUDGET_FREE_BYTES (64u << 10) /* a connection of less is never closed for the sum */

/* What the connection's buffers take goes into the server's sum. False when it must go, for the sum
 * is over the budget and it has a good part in that. */
bool rpc_account(struct connection *c, size_t bytes) {
    struct mc_rpc_server *s = c->worker->server;
    if (bytes == c->accounted) {
        return true;
    }
    bool grew = bytes > c->accounted;
    /* relaxed: a number, nothing hangs on its order */
    size_t sum =
        atomic_fetch_add_explicit(&s->buffered, bytes - c->accounted, memory_order_relaxed) +
        (bytes - c->accounted);
    c->accounted = bytes;
    return !grew || bytes < BUDGET_FREE_BYTES || sum <= s->config.max_buffered_bytes;
}

size_t rpc_buffers_of(const struct connection *c) {
    size_t aside =
        c->aside == NULL ? 0 : c->aside->request.body.len + c->aside->request.attachment.len;
    return c->in.cap + c->out.cap + aside;
}

void rpc_connection_forget(struct connection *c) {
    struct worker *w = c->worker;
    (void)rpc_account(c, 0);
    const struct mc_rpc_server_config *config = &w->server->config;
    if (config->closed != NULL) {
        config->closed(config->ctx, c->peer_words, c->peer);
    }
    mc_buf_free(&c->in);
    mc_buf_free(&c->out);
    atomic_fetch_sub_explicit(&w->connections, 1, memory_order_relaxed);
    mc_metric_add(&w->server->metrics.connections, -1);
    free(c);
}

void rpc_connection_free(struct connection *c) {
    mc_reactor_remove(c->worker->reactor, &c->watch);
    mc_timer_stop(c->worker->reactor, &c->handshake);
    c->stream.ops->close(&c->stream);
    mc_list_del(&c->link);
    if (c->aside != NULL) {
        c->gone = true;
    } else {
        rpc_connection_forget(c);
    }
}

void rpc_sign_of_life(struct connection *c) {
    if (c->worker->server->config.idle_timeout_ms == 0 && !c->closing) {
        return; /* nobody looks: spare the clock */
    }
    c->sign_of_life_ns = now_ns();
    c->progress = 0;
    mc_list_del(&c->link);
    mc_list_push_back(c->closing ? &c->worker->closing : &c->worker->open, &c->link);
}

static void sweep_start(struct worker *w) {
    uint64_t period_ms = LINGER_MS / 4;
    uint64_t idle_ms = w->server->config.idle_timeout_ms;
    if (idle_ms != 0 && idle_ms / 4 < period_ms) {
        period_ms = idle_ms / 4 + 1;
    }
    if (w->sweep.heap_index == SIZE_MAX) {
        mc_timer_start(w->reactor, &w->sweep, now_ns() + period_ms * MC_MS);
    }
}

static void sweep_list(struct mc_list *list, uint64_t limit_ms, uint64_t now, bool complain) {
    while (!mc_list_empty(list)) {
        struct connection *c = mc_container_of(list->next, struct connection, link);
        if (now - c->sign_of_life_ns < limit_ms * MC_MS) {
            break;
        }
        if (c->aside != NULL) { /* the silence is ours */
            c->sign_of_life_ns = now;
            mc_list_del(&c->link);
            mc_list_push_back(list, &c->link);
            continue;
        }
        if (complain) {
            mc_debug("closing a silent connection: peer=%s idle_timeout_ms=%llu", c->peer,
                     (unsigned long long)limit_ms);
        }
        rpc_connection_free(c);
    }
}

void rpc_on_sweep(struct mc_timer *timer) {
    struct worker *w = mc_container_of(timer, struct worker, sweep);
    uint64_t now = now_ns(), idle_ms = w->server->config.idle_timeout_ms;
    sweep_list(&w->closing, LINGER_MS, now, false);
    if (idle_ms != 0) {
        sweep_list(&w->open, idle_ms, now, true);
    }
    if (!mc_list_empty(&w->closing) || (idle_ms != 0 && !mc_list_empty(&w->open))) {
        sweep_start(w);
    }
}

static void on_handshake_late(struct mc_timer *timer) {
    struct connection *c = mc_container_of(timer, struct connection, handshake);
    mc_warn_limited("closing a connection whose TLS handshake does not end: peer=%s", c->peer);
    rpc_connection_free(c);
}

void rpc_watch_handshake(struct connection *c) {
    uint64_t ends_ns = mc_stream_handshake_ends_ns(&c->stream);
    bool watched = c->handshake.heap_index != SIZE_MAX;
    if (ends_ns != 0 && !watched) {
        mc_timer_start(c->worker->reactor, &c->handshake, ends_ns);
    } else if (ends_ns == 0 && watched) {
        mc_timer_stop(c->worker->reactor, &c->handshake);
    }
}

void rpc_connection_adopt(struct mc_task *task) {
    struct connection *c = mc_container_of(task, struct connection, adopt);
    struct worker *w = c->worker;
    c->sign_of_life_ns = now_ns();
    mc_timer_init(&c->handshake, on_handshake_late);
    mc_list_push_back(&w->open, &c->link);
    if (mc_reactor_add(w->reactor, &c->watch) != MC_OK) {
        c->stream.ops->close(&c->stream);
        mc_list_del(&c->link);
        atomic_fetch_sub_explicit(&w->connections, 1, memory_order_relaxed);
        mc_metric_add(&w->server->metrics.connections, -1);
        free(c);
        return;
    }
    rpc_watch_handshake(c);
    if (w->server->config.idle_timeout_ms != 0) {
        sweep_start(w);
    }
}

void rpc_connection_start_closing(struct connection *c) {
    struct worker *w = c->worker;
    c->closing = true;
    c->sign_of_life_ns = now_ns();
    mc_buf_free(&c->in);
    mc_list_del(&c->link);
    mc_list_push_back(&w->closing, &c->link);
    sweep_start(w);
}
