/*
 * Requests that may take long run aside, on threads that all workers share, so that one delays
 * nobody but its own connection: that handles and reads nothing until the answer is back, which
 * keeps its answers in order. A connection that ends meanwhile is freed when the request is
 * through.
 */
#include <limits.h>

#include "rpc/server_private.h"

/* On the thread aside. */
static void aside_run(struct mc_task *task) {
    struct aside *aside = mc_container_of(task, struct aside, there);
    struct worker *w = aside->connection->worker;
    struct mc_rpc_reply reply = {MC_RPC_OK, &aside->body, &aside->attachment};
    w->server->config.handler(w->server->config.ctx, &aside->request, &reply);
    aside->errc = reply.errc;
    atomic_fetch_sub_explicit(&w->server->aside_load[aside->thread], 1, memory_order_relaxed);
    mc_reactor_post(w->reactor, &aside->back);
}

/* The answer of a request that ran aside; then the requests that came meanwhile. */
static void aside_back(struct mc_task *task) {
    struct aside *aside = mc_container_of(task, struct aside, back);
    struct connection *c = aside->connection;
    c->aside = NULL;
    if (c->gone) {
        rpc_connection_forget(c);
    } else {
        struct mc_rpc_reply reply = {aside->errc, &aside->body, &aside->attachment};
        rpc_append_answer(c, aside->seq, &reply);
        c->worker->requests++;
        mc_metric_add(&c->worker->server->metrics.slow, 1);
        rpc_end_turn(c, rpc_process(c, c->in.data, c->in.len));
    }
    mc_arena_free(&aside->arena);
    mc_buf_free(&aside->body);
    mc_buf_free(&aside->attachment);
    free(aside);
}

/* A guess is enough: other workers choose at the same time. */
static unsigned least_loaded_aside(struct mc_rpc_server *s) {
    unsigned best = 0, load = UINT_MAX;
    for (unsigned i = 0; i < s->config.slow_threads; i++) {
        unsigned n = atomic_load_explicit(&s->aside_load[i], memory_order_relaxed);
        if (n < load) {
            best = i;
            load = n;
        }
    }
    return best;
}

/* Copies the request and sends it on its way; true unless it is to be handled here. */
bool rpc_aside_take(struct connection *c, const struct mc_rpc_request_header *header,
                    const char *payload) {
    const struct mc_rpc_server_config *config = &c->worker->server->config;
    if (config->slow == NULL || !config->slow(config->ctx, header->function_id)) {
        return false;
    }
    size_t len = (size_t)header->length + header->attach_length;
    struct aside *aside = mc_alloc(sizeof(*aside) + len);
    *aside = (struct aside){
        .there.run = aside_run,
        .back.run = aside_back,
        .connection = c,
        .request = {.function_id = header->function_id,
                    .body = {aside->payload, header->length},
                    .attachment = {aside->payload + header->length, header->attach_length},
                    .arena = &aside->arena,
                    .peer = c->peer,
                    .peer_words = c->peer_words},
        .seq = header->seq};
    if (len > 0) {
        memcpy(aside->payload, payload, len);
    }
    c->aside = aside;
    struct mc_rpc_server *server = c->worker->server;
    aside->thread = least_loaded_aside(server);
    atomic_fetch_add_explicit(&server->aside_load[aside->thread], 1, memory_order_relaxed);
    mc_reactor_post(server->aside[aside->thread], &aside->there);
    return true;
}
