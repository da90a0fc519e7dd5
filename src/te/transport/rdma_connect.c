/*
 * How endpoints come up and go.
 *
 * A slice or a peer's request makes an endpoint; it waits for room (at most MC_MAX_EP_PER_CTX have
 * queue pairs), then makes queue pairs, then is connected by a handshake: ours, whose answer has
 * the peer's numbers, or the peer's, which had them. When both ask at the same time each takes the
 * other's request for its answer: the queue pairs named in all four messages are the same, so it
 * does not matter which comes first.
 *
 * Where there is no room SIEVE names a victim. It takes no new slices, ends what is posted, and
 * tells the peer, who does the same before it answers; only then are queue pairs destroyed, so that
 * eviction breaks no transfer, not even those that the peer does through it.
 */
#include <stdio.h>

#include "base/log.h"
#include "io/io.h"
#include "te/transport/rdma.h"

#define REPLY_TIMEOUT_MS 10000
#define CLOSE_TIMEOUT_MS 3000

/* ---- messages ---- */

/* What an endpoint says of itself. */
void rdma_setup_fill_locked(const struct rdma_endpoint *ep, struct mc_rdma_setup *out) {
    const struct rdma_context *context = ep->context;
    struct mc_engine *engine = context->transport->base.engine;
    *out = (struct mc_rdma_setup){
        .local_lid = context->info.lid,
        .engine_id = mc_engine_id(engine),
        .peer_id = ep->peer_id,
        .generation = ep->generation,
        .mtu = context->mtu,
    };
    snprintf(out->local_path, sizeof(out->local_path), "%s@%s", mc_engine_name(engine),
             context->name);
    snprintf(out->peer_path, sizeof(out->peer_path), "%s", ep->peer_path);
    memcpy(out->local_gid, context->gid.raw, sizeof(out->local_gid));
    out->qp_count = ep->in_use != 0 ? ep->in_use : ep->queue_count;
    for (uint32_t i = 0; i < out->qp_count; i++) {
        out->qp_num[i] = ep->queues[i].number;
    }
}

void rdma_setup_answer(struct mc_handshake_call *call, const struct mc_rdma_setup *setup) {
    struct mc_buf body = {0};
    mc_rdma_setup_encode(setup, &body);
    mc_handshake_answer(call, (struct mc_str){body.data, body.len});
    mc_buf_free(&body);
}

void rdma_setup_reject(struct rdma_transport *t, const struct mc_rdma_setup *request,
                       struct mc_handshake_call *call, const char *why) {
    struct mc_rdma_setup setup = {.engine_id = mc_engine_id(t->base.engine),
                                  .answers = request->generation};
    memcpy(setup.local_path, request->peer_path, sizeof(setup.local_path));
    memcpy(setup.peer_path, request->local_path, sizeof(setup.peer_path));
    snprintf(setup.reply_msg, sizeof(setup.reply_msg), "%s", why);
    mc_warn_limited("rdma: a peer's request is rejected from=%s to=%s reason=\"%s\"",
                    request->local_path, request->peer_path, why);
    rdma_setup_answer(call, &setup);
}

/* One exchange with the peer's handshake port. */
static enum mc_status exchange(struct rdma_endpoint *ep, const struct mc_rdma_setup *request,
                               uint32_t timeout_ms, struct mc_rdma_setup *reply) {
    const struct mc_engine_options *options = mc_engine_config(ep->context->transport->base.engine);
    struct mc_handshake_limits limits;
    struct mc_buf body = {0}, text = {0};
    mc_handshake_limits_init(&limits);
    limits.connect_timeout_ms = (uint32_t)mc_min_u64(options->connect_timeout_ms, timeout_ms);
    limits.reply_timeout_ms = timeout_ms;
    mc_rdma_setup_encode(request, &body);
    enum mc_status status =
        mc_handshake_connection(ep->host, ep->rpc_port, (struct mc_str){body.data, body.len},
                                &limits, MC_NO_DEADLINE, &text);
    if (status == MC_OK) {
        status = mc_rdma_setup_decode((struct mc_str){text.data, text.len}, reply);
    }
    if (status == MC_OK && reply->reply_msg[0] != '\0') {
        mc_warn_limited("rdma: the peer rejects a connection peer=%s reason=\"%s\"", ep->peer_path,
                        reply->reply_msg);
        status = MC_ERR_REJECTED;
    }
    mc_buf_free(&body);
    mc_buf_free(&text);
    return status;
}

/* ---- lists of the context ---- */

void rdma_endpoint_detach_locked(struct rdma_endpoint *ep) {
    struct rdma_context *context = ep->context;
    if (ep->node.inside) {
        rdma_pool_remove(&context->pool, &ep->node);
        mc_list_del(&ep->link); /* of `waiting`, or of none */
        mc_list_push_back(&context->leaving, &ep->link);
    }
}

void rdma_endpoint_settle(struct rdma_endpoint *ep) {
    pthread_mutex_lock(&ep->context->lock);
    pthread_mutex_lock(&ep->lock);
    bool leaves = ep->state > RDMA_UP, over = rdma_endpoint_is_over_locked(ep);
    pthread_mutex_unlock(&ep->lock);
    if (leaves) {
        rdma_endpoint_detach_locked(ep);
    }
    pthread_mutex_unlock(&ep->context->lock);
    if (over) {
        rdma_endpoint_kick(ep);
    }
}

/* A new endpoint, waiting for room; counted once for the house. */
struct rdma_endpoint *rdma_endpoint_add_locked(struct rdma_context *context, const char *path,
                                               uint64_t hash) {
    struct rdma_transport *t = context->transport;
    uint64_t generation = atomic_fetch_add_explicit(&t->generation, 1, memory_order_relaxed) + 1;
    struct rdma_endpoint *ep = rdma_endpoint_new(context, path, generation);
    rdma_pool_insert(&context->pool, &ep->node, ep->peer_path, hash);
    mc_list_push_back(&context->waiting, &ep->link);
    context->endpoints++;
    return ep;
}

enum rdma_state rdma_endpoint_state(struct rdma_endpoint *ep) {
    pthread_mutex_lock(&ep->lock);
    enum rdma_state state = ep->state;
    pthread_mutex_unlock(&ep->lock);
    return state;
}

/* The endpoint that new slices and requests mean; one that ends is taken out. */
struct rdma_endpoint *rdma_endpoint_find_locked(struct rdma_context *context, const char *path,
                                                uint64_t hash) {
    struct rdma_pool_node *node = rdma_pool_find(&context->pool, path, hash);
    if (node != NULL && rdma_endpoint_state(rdma_endpoint_of(node)) > RDMA_UP) {
        rdma_endpoint_detach_locked(rdma_endpoint_of(node));
        node = NULL;
    }
    return node == NULL ? NULL : rdma_endpoint_of(node);
}

struct rdma_endpoint *rdma_endpoint_to(struct rdma_context *context, const struct rdma_peer *peer,
                                       unsigned remote) {
    const struct rdma_remote *to = &peer->remotes[remote];
    pthread_mutex_lock(&context->lock);
    struct rdma_endpoint *ep = rdma_endpoint_find_locked(context, to->path, to->hash);
    bool made = ep == NULL;
    if (made) {
        ep = rdma_endpoint_add_locked(context, to->path, to->hash);
        snprintf(ep->host, sizeof(ep->host), "%s", peer->desc->host);
        ep->rpc_port = peer->desc->rpc_port;
        ep->peer_id = peer->desc->engine_id;
    }
    rdma_endpoint_get(ep);
    pthread_mutex_unlock(&context->lock);
    if (made) {
        rdma_context_admit(context);
    }
    return ep;
}

/* ---- room ---- */

static bool may_go(const struct rdma_pool_node *node) {
    return rdma_endpoint_state(rdma_endpoint_of(node)) == RDMA_UP;
}

static size_t length_of(const struct mc_list *list, size_t limit) {
    size_t n = 0;
    for (const struct mc_list *at = list->next; at != list && n < limit; at = at->next) {
        n++;
    }
    return n;
}

/* What can be done for the endpoint that waits longest: room is given (*next), or somebody is asked
 * to go (*victim), unless enough are on their way out. Both counted. */
static void look_for_room(struct rdma_context *context, struct rdma_endpoint **next,
                          struct rdma_endpoint **victim) {
    *next = *victim = NULL;
    pthread_mutex_lock(&context->lock);
    if (!mc_list_empty(&context->waiting)) {
        if (context->live < context->transport->config.endpoints_max) {
            struct rdma_endpoint *ep =
                mc_container_of(context->waiting.next, struct rdma_endpoint, link);
            mc_list_del(&ep->link);
            context->live++;
            ep->holds_room = true;
            mc_metric_set(&context->metrics.endpoints, (int64_t)context->live);
            pthread_mutex_lock(&ep->lock);
            ep->state = ep->state == RDMA_WAITING ? RDMA_OPENING : ep->state;
            pthread_mutex_unlock(&ep->lock);
            rdma_endpoint_get(ep);
            *next = ep;
        } else {
            size_t wanted = length_of(&context->waiting, 64);
            struct rdma_pool_node *node = length_of(&context->leaving, wanted) >= wanted
                                              ? NULL
                                              : rdma_pool_victim(&context->pool, may_go);
            if (node != NULL) {
                *victim = rdma_endpoint_of(node);
                rdma_endpoint_get(*victim);
                rdma_endpoint_detach_locked(*victim);
                mc_metric_add(&context->metrics.evicted, 1);
            }
        }
    }
    pthread_mutex_unlock(&context->lock);
}

void rdma_endpoint_drain(struct rdma_endpoint *ep) {
    struct rdma_ended ended;
    rdma_ended_init(&ended);
    pthread_mutex_lock(&ep->lock);
    rdma_endpoint_drain_locked(ep, &ended);
    pthread_mutex_unlock(&ep->lock);
    rdma_endpoint_settle(ep);
    rdma_ended_tell(&ended);
}

void rdma_context_admit(struct rdma_context *context) {
    for (;;) {
        struct rdma_endpoint *next, *victim;
        look_for_room(context, &next, &victim);
        if (next != NULL) {
            rdma_endpoint_kick(next);
            rdma_endpoint_put(next);
        } else if (victim != NULL) {
            rdma_endpoint_drain(victim);
            rdma_endpoint_put(victim);
        } else {
            return;
        }
    }
}

/* ---- opening ---- */

/* With the peer's numbers at hand: connects, and lets the slices go. */
static enum mc_status connect_to(struct rdma_endpoint *ep, const struct mc_rdma_setup *peer,
                                 struct mc_rdma_setup *own) {
    struct rdma_ended ended;
    rdma_ended_init(&ended);
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&ep->lock);
    if (ep->state != RDMA_OPENING) {
        status = ep->state == RDMA_UP ? MC_OK : MC_ERR_CLOSED;
    } else {
        status = rdma_endpoint_connect_locked(ep, peer);
        if (status == MC_OK) {
            ep->peer_generation = peer->generation;
            rdma_endpoint_pump_locked(ep, &ended);
        }
    }
    if (status == MC_OK && own != NULL) {
        rdma_setup_fill_locked(ep, own);
        own->answers = peer->generation;
    }
    pthread_mutex_unlock(&ep->lock);
    rdma_ended_tell(&ended);
    return status;
}

/* Answers a peer's request with this endpoint, which has queue pairs. */
void rdma_endpoint_serve(struct rdma_endpoint *ep, const struct mc_rdma_setup *request,
                         struct mc_handshake_call *call) {
    struct mc_rdma_setup own;
    enum mc_status status = connect_to(ep, request, &own);
    if (status == MC_OK) {
        rdma_pardon(ep->context, ep->node.hash);
        rdma_setup_answer(call, &own);
        rdma_context_admit(ep->context); /* somebody may wait for an endpoint that can be evicted */
    } else {
        mc_metric_add(&ep->context->metrics.denied, 1);
        rdma_setup_reject(ep->context->transport, request, call,
                          "the queue pairs cannot be connected");
        rdma_endpoint_fail(ep);
    }
}

/* Upstream's engines send by an endpoint that we opened only when they have heard that our side is
 * ready. */
static void send_ready_ack(struct rdma_endpoint *ep) {
    struct mc_rdma_setup request, reply;
    pthread_mutex_lock(&ep->lock);
    rdma_setup_fill_locked(ep, &request);
    pthread_mutex_unlock(&ep->lock);
    request.ready_ack = true;
    if (exchange(ep, &request, CLOSE_TIMEOUT_MS, &reply) != MC_OK) {
        mc_info("rdma: the peer does not take the word that we are ready peer=%s", ep->peer_path);
    }
}

static enum mc_status ask(struct rdma_endpoint *ep) {
    struct mc_rdma_setup request, reply;
    pthread_mutex_lock(&ep->lock);
    rdma_setup_fill_locked(ep, &request);
    pthread_mutex_unlock(&ep->lock);
    if (ep->host[0] == '\0') {
        return MC_ERR_BAD_ADDRESS;
    }
    MC_TRY(exchange(ep, &request, REPLY_TIMEOUT_MS, &reply));
    bool upstream = reply.engine_id.hi == 0 && reply.engine_id.lo == 0;
    if (!upstream && reply.answers != request.generation) {
        mc_warn_limited("rdma: an answer to another request peer=%s", ep->peer_path);
        return MC_ERR_PROTOCOL;
    }
    MC_TRY(connect_to(ep, &reply, NULL));
    if (upstream) {
        send_ready_ack(ep);
    }
    return MC_OK;
}

static void open_endpoint(struct rdma_endpoint *ep) {
    enum mc_status status = rdma_endpoint_make_queues(ep);
    pthread_mutex_lock(&ep->lock);
    struct mc_rdma_setup *request = ep->request;
    struct mc_handshake_call *call = ep->call;
    ep->request = NULL;
    ep->call = NULL;
    pthread_mutex_unlock(&ep->lock);
    if (call != NULL && status == MC_OK) {
        rdma_endpoint_serve(ep, request, call);
    } else if (call != NULL) {
        rdma_setup_reject(ep->context->transport, request, call, "no queue pairs are left");
    } else if (status == MC_OK) {
        status = ask(ep);
    }
    free(request);
    /* A peer's request may have brought the endpoint up meanwhile: then ours may fail. */
    if (status != MC_OK && rdma_endpoint_state(ep) != RDMA_UP) {
        rdma_penalise(ep->context, ep->node.hash);
        rdma_endpoint_fail(ep);
        return;
    }
    if (call == NULL) {
        rdma_pardon(ep->context, ep->node.hash);
        rdma_context_admit(ep->context);
    }
}

/* ---- going ---- */

/* The peer ends what it does through this endpoint, then answers. */
static void say_goodbye(struct rdma_endpoint *ep) {
    struct mc_rdma_setup request, reply;
    pthread_mutex_lock(&ep->lock);
    rdma_setup_fill_locked(ep, &request);
    bool ours = ep->peer_id.hi != 0 || ep->peer_id.lo != 0;
    bool wanted = ep->in_use > 0 && ours && !ep->peer_closed && ep->host[0] != '\0';
    pthread_mutex_unlock(&ep->lock);
    if (wanted && !atomic_load_explicit(&ep->context->transport->closing, memory_order_acquire)) {
        request.close = true;
        if (exchange(ep, &request, CLOSE_TIMEOUT_MS, &reply) != MC_OK) {
            mc_info("rdma: the peer was not told of an endpoint's end peer=%s", ep->peer_path);
        }
    }
}

static void finish(struct rdma_endpoint *ep) {
    struct rdma_context *context = ep->context;
    say_goodbye(ep);
    rdma_endpoint_destroy_queues(ep);
    pthread_mutex_lock(&ep->lock);
    struct mc_handshake_call *call = ep->call, *close_call = ep->close_call;
    ep->call = ep->close_call = NULL;
    pthread_mutex_unlock(&ep->lock);
    if (call != NULL) {
        rdma_setup_reject(context->transport, ep->request, call, "the endpoint failed");
    }
    if (close_call != NULL) {
        struct mc_rdma_setup own;
        rdma_setup_fill_locked(ep, &own);
        rdma_setup_answer(close_call, &own);
    }
    pthread_mutex_lock(&context->lock);
    rdma_endpoint_detach_locked(ep);
    mc_list_del(&ep->link);
    context->live -= ep->holds_room;
    context->endpoints--;
    mc_metric_set(&context->metrics.endpoints, (int64_t)context->live);
    pthread_cond_broadcast(&context->changed);
    pthread_mutex_unlock(&context->lock);
    rdma_context_admit(context);
    rdma_endpoint_put(ep);
}

/* ---- the job ---- */

enum step { STEP_NONE, STEP_OPEN, STEP_FINISH };

static enum step next_step(struct rdma_endpoint *ep) {
    enum step step = STEP_NONE;
    pthread_mutex_lock(&ep->lock);
    ep->job_again = false;
    if (ep->state == RDMA_OPENING && ep->queues == NULL) {
        step = STEP_OPEN;
    } else if (rdma_endpoint_is_over_locked(ep) && !ep->finishing) {
        ep->finishing = true;
        step = STEP_FINISH;
    }
    pthread_mutex_unlock(&ep->lock);
    return step;
}

static void run_job(struct mc_job *job) {
    struct rdma_endpoint *ep = mc_container_of(job, struct rdma_endpoint, job);
    bool again = true;
    while (again) {
        enum step step = next_step(ep);
        if (step == STEP_OPEN) {
            open_endpoint(ep);
        } else if (step == STEP_FINISH) {
            finish(ep);
        }
        pthread_mutex_lock(&ep->lock);
        again = ep->job_again;
        ep->job_queued = again;
        pthread_mutex_unlock(&ep->lock);
    }
    rdma_endpoint_put(ep);
}

void rdma_endpoint_kick(struct rdma_endpoint *ep) {
    struct rdma_transport *t = ep->context->transport;
    pthread_mutex_lock(&ep->lock);
    bool queued = ep->job_queued;
    bool waits = ep->call == NULL && ep->close_call == NULL && !ep->peer_closed;
    ep->job_again = queued;
    ep->job_queued = true;
    pthread_mutex_unlock(&ep->lock);
    if (!queued) {
        ep->job.run = run_job;
        rdma_endpoint_get(ep);
        mc_workers_submit(waits ? t->callers : t->servants, &ep->job);
    }
}
