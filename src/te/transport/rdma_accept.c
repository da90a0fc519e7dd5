/*
 * Peers' requests: what an engine that connects to us, or ends a connection, is answered.
 *
 * A request names its sender's generation, which grows with each endpoint that an engine makes. One
 * that is older than what we are connected to is refused; an answer is taken only by the endpoint
 * that asked, and only while it still waits: a late one finds another state or another object.
 * Requests run on the transport's servants, and wait for nobody.
 */
#include <stdio.h>

#include "base/log.h"
#include "io/io.h"
#include "te/transport/rdma.h"

static struct rdma_context *context_named(const struct rdma_transport *t, const char *nic) {
    for (unsigned i = 0; i < t->context_count; i++) {
        if (strcmp(t->contexts[i]->name, nic) == 0) {
            return t->contexts[i];
        }
    }
    return NULL;
}

/* Whether the request is for us and can be served; else why not. */
static const char *check(const struct rdma_transport *t, const struct mc_rdma_setup *request,
                         struct rdma_context **context) {
    char server[MC_RDMA_PATH_MAX], nic[MC_RDMA_NIC_MAX], other[MC_RDMA_PATH_MAX];
    static const uint8_t no_gid[16];
    struct mc_uuid id = mc_engine_id(t->base.engine);
    if (mc_rdma_path_split(request->local_path, other, nic) != MC_OK ||
        mc_rdma_path_split(request->peer_path, server, nic) != MC_OK) {
        return "a NIC path is not <server>@<nic>";
    }
    if (strcmp(server, mc_engine_name(t->base.engine)) != 0 ||
        ((request->peer_id.hi != 0 || request->peer_id.lo != 0) &&
         !mc_uuid_eq(request->peer_id, id))) {
        return "another engine answers here";
    }
    *context = context_named(t, nic);
    if (*context == NULL) {
        return "no such NIC here";
    }
    if (!request->close && !atomic_load_explicit(&(*context)->up, memory_order_acquire)) {
        return "the port is down here";
    }
    if (request->qp_count == 0) {
        return "no queue pairs named";
    }
    if ((*context)->global && memcmp(request->local_gid, no_gid, 16) == 0) {
        return "no local_gid named";
    }
    if ((request->engine_id.hi == 0 && request->engine_id.lo == 0) &&
        request->qp_count > t->config.qps) {
        return "fewer queue pairs an endpoint here: MC_NUM_QP_PER_EP";
    }
    return atomic_load_explicit(&t->closing, memory_order_acquire) ? "the engine ends" : NULL;
}

static bool means_locked(const struct rdma_endpoint *ep, const struct mc_rdma_setup *request) {
    uint32_t count = (uint32_t)mc_min_u64(ep->in_use, request->qp_count);
    return count > 0 && memcmp(ep->peer_qps, request->qp_num, count * sizeof(uint32_t)) == 0;
}

/* Keeps the request until the endpoint has queue pairs. */
static void stash_locked(struct rdma_endpoint *ep, const struct mc_rdma_setup *request,
                         struct mc_handshake_call *call) {
    struct mc_hostport at;
    char server[MC_RDMA_PATH_MAX], nic[MC_RDMA_NIC_MAX];
    if (ep->call != NULL) {
        rdma_setup_reject(ep->context->transport, ep->request, ep->call, "a newer request came");
    }
    if (ep->request == NULL) {
        ep->request = mc_alloc(sizeof(*ep->request));
    }
    *ep->request = *request;
    ep->call = call;
    ep->peer_id = request->engine_id;
    if (ep->host[0] == '\0' && mc_rdma_path_split(request->local_path, server, nic) == MC_OK &&
        mc_hostport_parse(server, &at) == MC_OK && at.port != 0) {
        snprintf(ep->host, sizeof(ep->host), "%s", at.host);
        ep->rpc_port = at.port;
    }
}

enum verdict { VERDICT_STASHED, VERDICT_SERVE, VERDICT_REPLACE, VERDICT_STALE };

/* What a request means to the endpoint that there is. */
static enum verdict judge(struct rdma_endpoint *ep, const struct mc_rdma_setup *request,
                          struct mc_handshake_call *call) {
    enum verdict verdict = VERDICT_REPLACE;
    pthread_mutex_lock(&ep->lock);
    if (ep->state == RDMA_WAITING || (ep->state == RDMA_OPENING && ep->queues == NULL)) {
        stash_locked(ep, request, call);
        verdict = VERDICT_STASHED;
    } else if (ep->state == RDMA_OPENING || (ep->state == RDMA_UP && means_locked(ep, request))) {
        verdict = VERDICT_SERVE;
    } else if (ep->state == RDMA_UP && mc_uuid_eq(ep->peer_id, request->engine_id) &&
               request->generation < ep->peer_generation) {
        verdict = VERDICT_STALE;
    }
    pthread_mutex_unlock(&ep->lock);
    return verdict;
}

static void accept_open(struct rdma_context *context, const struct mc_rdma_setup *request,
                        struct mc_handshake_call *call) {
    uint64_t hash = rdma_pool_hash(request->local_path);
    struct rdma_endpoint *old = NULL, *ep;
    pthread_mutex_lock(&context->lock);
    ep = rdma_endpoint_find_locked(context, request->local_path, hash);
    enum verdict verdict = ep == NULL ? VERDICT_REPLACE : judge(ep, request, call);
    if (verdict == VERDICT_REPLACE) {
        old = ep;
        if (old != NULL) { /* the peer has given its side up, whatever ours believes */
            rdma_endpoint_get(old);
            rdma_endpoint_detach_locked(old);
        }
        ep = rdma_endpoint_add_locked(context, request->local_path, hash);
        pthread_mutex_lock(&ep->lock);
        stash_locked(ep, request, call);
        pthread_mutex_unlock(&ep->lock);
    }
    rdma_endpoint_get(ep);
    pthread_mutex_unlock(&context->lock);
    if (old != NULL) {
        pthread_mutex_lock(&old->lock);
        old->peer_closed = true;
        pthread_mutex_unlock(&old->lock);
        rdma_endpoint_fail(old);
        rdma_endpoint_put(old);
    }
    if (verdict == VERDICT_SERVE) {
        rdma_endpoint_serve(ep, request, call);
    } else if (verdict == VERDICT_STALE) {
        mc_metric_add(&context->metrics.denied, 1);
        rdma_setup_reject(context->transport, request, call, "a newer connection exists");
    } else if (verdict == VERDICT_REPLACE) {
        rdma_context_admit(context);
    }
    rdma_endpoint_put(ep);
}

/* The endpoint that is connected to the queue pairs of the request, also one that is leaving;
 * counted. */
static struct rdma_endpoint *find_connected(struct rdma_context *context,
                                            const struct mc_rdma_setup *request) {
    struct rdma_endpoint *found = NULL;
    pthread_mutex_lock(&context->lock);
    struct rdma_pool_node *node =
        rdma_pool_find(&context->pool, request->local_path, rdma_pool_hash(request->local_path));
    struct rdma_endpoint *ep = node == NULL ? NULL : rdma_endpoint_of(node);
    struct mc_list *at = context->leaving.next;
    for (;;) {
        if (ep != NULL) {
            pthread_mutex_lock(&ep->lock);
            bool same = strcmp(ep->peer_path, request->local_path) == 0 && !ep->finishing &&
                        means_locked(ep, request);
            pthread_mutex_unlock(&ep->lock);
            if (same) {
                found = ep;
                rdma_endpoint_get(found);
                break;
            }
        }
        if (at == &context->leaving) {
            break;
        }
        ep = mc_container_of(at, struct rdma_endpoint, link);
        at = at->next;
    }
    pthread_mutex_unlock(&context->lock);
    return found;
}

static void accept_close(struct rdma_context *context, const struct mc_rdma_setup *request,
                         struct mc_handshake_call *call) {
    struct mc_rdma_setup done = {.engine_id = mc_engine_id(context->transport->base.engine),
                                 .answers = request->generation};
    memcpy(done.local_path, request->peer_path, sizeof(done.local_path));
    memcpy(done.peer_path, request->local_path, sizeof(done.peer_path));
    struct rdma_endpoint *ep = find_connected(context, request);
    if (ep != NULL) {
        pthread_mutex_lock(&ep->lock);
        ep->peer_closed = true;
        if (ep->close_call == NULL && !ep->finishing) {
            ep->close_call = call;
            call = NULL;
        }
        pthread_mutex_unlock(&ep->lock);
        rdma_endpoint_drain(ep);
        rdma_endpoint_put(ep);
    }
    if (call != NULL) { /* nothing of ours uses these queue pairs */
        rdma_setup_answer(call, &done);
    }
}

void rdma_accept(struct rdma_transport *t, const struct mc_rdma_setup *request,
                 struct mc_handshake_call *call) {
    struct rdma_context *context = NULL;
    const char *why = check(t, request, &context);
    if (why != NULL) {
        if (context != NULL) {
            mc_metric_add(&context->metrics.denied, 1);
        }
        rdma_setup_reject(t, request, call, why);
    } else if (request->close) {
        accept_close(context, request, call);
    } else if (request->ready_ack) { /* queue pairs wait for nothing here */
        struct mc_rdma_setup own;
        struct rdma_endpoint *ep = find_connected(context, request);
        if (ep == NULL) {
            rdma_setup_reject(t, request, call, "no such connection");
            return;
        }
        pthread_mutex_lock(&ep->lock);
        rdma_setup_fill_locked(ep, &own);
        pthread_mutex_unlock(&ep->lock);
        own.answers = request->generation;
        own.ready_ack = true;
        rdma_setup_answer(call, &own);
        rdma_endpoint_put(ep);
    } else {
        accept_open(context, request, call);
    }
}
