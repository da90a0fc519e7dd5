/*
 * An endpoint: queue pairs to one NIC of one peer, and the slices that are on their way by them.
 *
 * Slices wait in `queued` until there is room, then in `posted` until their last work request has
 * completed. Each slice holds a reference to its endpoint, and queue pairs are destroyed only when
 * no work request is in flight; so nothing that the NIC still works on is ever freed. A work
 * request that fails takes the endpoint with it: the NIC flushes the rest, each slice comes back
 * with what happened to it, and the engine sends those that may be sent again by another endpoint.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "te/transport/rdma.h"

#define POST_BATCH 32
#define RUN_BYTES  (256u << 10) /* then the next queue pair has its turn */

/* ---- life ---- */

struct rdma_endpoint *rdma_endpoint_new(struct rdma_context *context, const char *peer_path,
                                        uint64_t generation) {
    struct rdma_endpoint *ep = mc_zalloc(sizeof(*ep));
    ep->context = context;
    snprintf(ep->peer_path, sizeof(ep->peer_path), "%s", peer_path);
    ep->generation = generation;
    ep->state = RDMA_WAITING;
    pthread_mutex_init(&ep->lock, NULL);
    mc_list_init(&ep->link);
    mc_list_init(&ep->queued);
    mc_list_init(&ep->posted);
    mc_list_init(&ep->starved);
    atomic_store_explicit(&ep->refs, 1, memory_order_relaxed);
    return ep;
}

void rdma_endpoint_get(struct rdma_endpoint *ep) {
    atomic_fetch_add_explicit(&ep->refs, 1, memory_order_relaxed);
}

void rdma_endpoint_put(struct rdma_endpoint *ep) {
    if (atomic_fetch_sub_explicit(&ep->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    MC_ASSERT(ep->queues == NULL && ep->outstanding == 0);
    pthread_mutex_destroy(&ep->lock);
    free(ep->request);
    free(ep);
}

enum mc_status rdma_endpoint_make_queues(struct rdma_endpoint *ep) {
    struct rdma_context *context = ep->context;
    const struct rdma_transport *t = context->transport;
    uint32_t count = t->config.qps;
    struct rdma_queue *queues = mc_zalloc(count * sizeof(*queues));
    struct rdma_qp_limits limits = {(uint32_t)mc_min_u64(t->config.max_wr, context->info.max_qp_wr),
                                    t->config.inline_bytes};
    for (uint32_t i = 0; i < count; i++) {
        queues[i].room = limits.send_wrs;
        int error = t->provider->qp_create(context->device, context->cq, &limits, &queues[i].qp,
                                           &queues[i].number);
        if (error != 0) {
            mc_warn_limited("rdma: no queue pair nic=%s peer=%s errno=%d made=%u", context->name,
                            ep->peer_path, error, i);
            while (i > 0) {
                t->provider->qp_destroy(queues[--i].qp);
            }
            free(queues);
            return MC_ERR_LIMIT;
        }
    }
    pthread_mutex_lock(&ep->lock);
    ep->queues = queues;
    ep->queue_count = count;
    ep->inline_bytes = limits.inline_bytes;
    pthread_mutex_unlock(&ep->lock);
    return MC_OK;
}

/* Out of the endpoint first: a peer's request or a port that goes down may fail the endpoint, or
 * ask what it is, while its queue pairs go. */
void rdma_endpoint_destroy_queues(struct rdma_endpoint *ep) {
    const struct rdma_provider *provider = ep->context->transport->provider;
    pthread_mutex_lock(&ep->lock);
    MC_ASSERT(ep->outstanding == 0);
    struct rdma_queue *queues = ep->queues;
    uint32_t count = ep->queue_count;
    ep->queues = NULL;
    ep->queue_count = ep->in_use = 0;
    pthread_mutex_unlock(&ep->lock);
    for (uint32_t i = 0; i < count; i++) {
        provider->qp_destroy(queues[i].qp);
    }
    free(queues);
}

enum mc_status rdma_endpoint_connect_locked(struct rdma_endpoint *ep,
                                            const struct mc_rdma_setup *peer) {
    struct rdma_context *context = ep->context;
    const struct rdma_transport *t = context->transport;
    uint32_t count = (uint32_t)mc_min_u64(ep->queue_count, peer->qp_count);
    struct rdma_path path = {
        .local_port = t->config.port,
        .gid_index = context->gid.index,
        .lid = peer->local_lid,
        .global = context->global,
        .mtu = rdma_choose_mtu(context->mtu, 0, peer->mtu),
        .pkey_index = t->config.pkey_index,
        .traffic_class = t->config.traffic_class,
        .service_level = t->config.service_level,
        .timeout = 14,
        .retry_count = 7,
        .reads = (uint8_t)mc_min_u64(context->info.max_reads, 16),
    };
    memcpy(path.gid, peer->local_gid, sizeof(path.gid));
    if (count == 0) {
        return MC_ERR_PROTOCOL;
    }
    for (uint32_t i = 0; i < count; i++) {
        path.qp_num = peer->qp_num[i];
        int error = t->provider->qp_connect(ep->queues[i].qp, &path);
        if (error != 0) {
            mc_warn_limited("rdma: a queue pair does not connect nic=%s gid_index=%u peer=%s "
                            "errno=%d",
                            context->name, path.gid_index, ep->peer_path, error);
            return MC_ERR_UNREACHABLE;
        }
        ep->peer_qps[i] = peer->qp_num[i];
    }
    ep->in_use = count;
    ep->peer_id = peer->engine_id;
    ep->state = RDMA_UP;
    mc_metric_add(&context->metrics.opened, 1);
    return MC_OK;
}

/* ---- slices that ended ---- */

void rdma_ended_init(struct rdma_ended *ended) {
    mc_list_init(&ended->slices);
}

static void end_slice(struct rdma_ended *ended, struct mc_slice_op *slice, int status) {
    rdma_slice_of(slice)->status = (int8_t)status;
    mc_list_del(&slice->transport_link);
    mc_list_push_back(&ended->slices, &slice->transport_link);
}

/* What the engine is told of a failure. A write that got no answer may have arrived, or part of it:
 * never MC_ERR_UNREACHABLE or MC_ERR_CLOSED, which say that it is over (mc_write_is_over). */
static void tell(struct mc_slice_op *slice, enum rdma_wc_status status, bool was_posted,
                 bool hung) {
    switch (status) {
    case RDMA_WC_REMOTE_DENIED: /* an old key, or memory that is gone */
        mc_slice_done(slice, MC_ERR_NOT_REGISTERED, false);
        return;
    case RDMA_WC_LOCAL:
        mc_slice_done(slice, MC_TRANSFER_FAIL, false);
        return;
    case RDMA_WC_FLUSHED: /* with another's failure, unless it hung */
        mc_slice_done(slice,
                      hung         ? MC_ERR_TIMEOUT
                      : was_posted ? MC_TRANSFER_FAIL
                                   : MC_ERR_CLOSED,
                      true);
        return;
    default: /* the NIC's doing, or the way's */
        mc_slice_done(slice, MC_ERR_IO, true);
    }
}

#define TELL_MAX 32 /* slices told of together */
struct told {
    size_t count;
    struct mc_slice_op *slices[TELL_MAX];
    struct rdma_endpoint *endpoints[TELL_MAX]; /* counted: the transport waits for them */
};

static void tell_arrived(struct told *told) {
    if (told->count > 0) {
        mc_slices_arrived(told->slices, told->count);
    }
    while (told->count > 0) {
        rdma_endpoint_put(told->endpoints[--told->count]);
    }
}

void rdma_ended_tell(struct rdma_ended *ended) {
    struct told told;
    told.count = 0;
    while (!mc_list_empty(&ended->slices)) {
        struct mc_slice_op *slice =
            mc_container_of(ended->slices.next, struct mc_slice_op, transport_link);
        struct rdma_slice *s = rdma_slice_of(slice);
        struct rdma_endpoint *ep = s->endpoint;
        int status = s->status;
        bool was_posted = s->posted > 0, hung = s->hung;
        mc_list_del(&slice->transport_link);
        if (status == RDMA_WC_OK) {
            told.slices[told.count] = slice;
            told.endpoints[told.count++] = ep;
            if (told.count == TELL_MAX) {
                tell_arrived(&told);
            }
            continue;
        }
        tell_arrived(&told); /* sending others on may take a while */
        if (status == RDMA_WC_AGAIN) {
            rdma_repost(ep->context->transport, slice);
        } else {
            tell(slice, (enum rdma_wc_status)status, was_posted, hung);
        }
        rdma_endpoint_put(ep);
    }
    tell_arrived(&told);
}

/* ---- posting ---- */

/* The next piece of a slice whose keys change within it: from the registered ranges. */
static bool split_piece(const struct rdma_endpoint *ep, struct mc_slice_op *slice, uint64_t offset,
                        uint64_t *length, struct rdma_wr *wr) {
    struct rdma_transport *t = ep->context->transport;
    struct rdma_peer *peer = rdma_peer_of(t, slice->segment);
    uint64_t here = 0, there = 0;
    bool ok = false;
    for (unsigned i = 0; peer != NULL && i < peer->remote_count && !ok; i++) {
        ok = strcmp(peer->remotes[i].path, ep->peer_path) == 0 &&
             rdma_peer_key(peer, slice->remote + offset, i, &wr->rkey, &there);
    }
    rdma_peer_put(peer);
    ok = ok && rdma_memory_key(&t->memory, (uint64_t)(uintptr_t)slice->local + offset,
                               ep->context->index, &wr->lkey, &here);
    *length = mc_min_u64(*length, mc_min_u64(here, there));
    return ok;
}

/* The slice's next work request; false when it has no key any more. */
static bool next_piece(const struct rdma_endpoint *ep, struct mc_slice_op *slice,
                       struct rdma_wr *wr) {
    struct rdma_slice *s = rdma_slice_of(slice);
    uint64_t length = mc_min_u64(slice->length - s->posted, ep->context->max_message);
    *wr = (struct rdma_wr){
        .id = (uint64_t)(uintptr_t)slice,
        .local = (uint64_t)(uintptr_t)slice->local + s->posted,
        .remote = slice->remote + s->posted,
        .lkey = s->lkey,
        .rkey = s->rkey,
        .write = slice->op == MC_TRANSFER_WRITE,
    };
    wr->inlined =
        wr->write && slice->length <= ep->inline_bytes && (slice->devices & MC_DEVICE_LOCAL) == 0;
    if (s->split && !split_piece(ep, slice, s->posted, &length, wr)) {
        return false;
    }
    wr->length = (uint32_t)length;
    return s->split || !s->no_lkey || wr->inlined;
}

static struct rdma_queue *roomy_queue(struct rdma_endpoint *ep) {
    for (uint32_t i = 0; i < ep->in_use; i++) {
        struct rdma_queue *q = &ep->queues[ep->next_queue++ % ep->in_use];
        if (q->room > 0) {
            return q;
        }
    }
    return NULL;
}

/* Room in the completion queue: at most `wanted`. */
static uint32_t take_credits(struct rdma_context *context, uint32_t wanted) {
    int32_t had = atomic_load_explicit(&context->credits, memory_order_relaxed), take;
    do {
        take = had < (int32_t)wanted ? had : (int32_t)wanted;
        if (take <= 0) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak_explicit(&context->credits, &had, had - take,
                                                    memory_order_relaxed, memory_order_relaxed));
    return (uint32_t)take;
}

static void give_credits(struct rdma_context *context, uint32_t count) {
    atomic_fetch_add_explicit(&context->credits, (int32_t)count, memory_order_relaxed);
}

/* Fills at most `capacity` work requests from the head of `queued`. Slices with all pieces taken
 * move to `posted`; one without keys ends. */
static uint32_t gather(struct rdma_endpoint *ep, struct rdma_wr *wrs, uint32_t capacity,
                       struct rdma_ended *ended) {
    uint32_t count = 0;
    uint64_t bytes = 0;
    while (count < capacity && bytes < RUN_BYTES && !mc_list_empty(&ep->queued)) {
        struct mc_slice_op *slice =
            mc_container_of(ep->queued.next, struct mc_slice_op, transport_link);
        struct rdma_slice *s = rdma_slice_of(slice);
        if (!next_piece(ep, slice, &wrs[count])) {
            if (s->pieces > 0) { /* the rest comes back first; s->posted stays short */
                s->status = RDMA_WC_LOCAL;
                mc_list_del(&slice->transport_link);
                mc_list_push_back(&ep->posted, &slice->transport_link);
            } else {
                end_slice(ended, slice, RDMA_WC_LOCAL);
            }
            continue;
        }
        bytes += wrs[count].length;
        s->posted += wrs[count].length;
        s->pieces++;
        if (s->posted == slice->length) {
            mc_list_del(&slice->transport_link);
            mc_list_push_back(&ep->posted, &slice->transport_link);
        }
        count++;
    }
    return count;
}

/* Work requests that the provider did not take complete at once, as flushed. */
static void take_back(struct rdma_endpoint *ep, const struct rdma_wr *wrs, size_t count,
                      uint32_t queue_number, struct rdma_ended *ended) {
    for (size_t i = 0; i < count; i++) {
        const struct rdma_wc wc = {wrs[i].id, queue_number, RDMA_WC_FLUSHED, 0};
        rdma_endpoint_complete_locked(ep, &wc, ended);
    }
}

void rdma_endpoint_pump_locked(struct rdma_endpoint *ep, struct rdma_ended *ended) {
    struct rdma_context *context = ep->context;
    struct rdma_wr wrs[POST_BATCH];
    while (ep->state == RDMA_UP && !mc_list_empty(&ep->queued)) {
        struct rdma_queue *q = roomy_queue(ep);
        if (q == NULL) {
            return; /* a completion makes room */
        }
        uint32_t credits = take_credits(context, q->room < POST_BATCH ? q->room : POST_BATCH);
        if (credits == 0) {
            rdma_context_starve(context, ep);
            return;
        }
        uint32_t count = gather(ep, wrs, credits, ended);
        give_credits(context, credits - count);
        if (count == 0) {
            continue;
        }
        size_t posted = 0;
        q->room -= count;
        ep->outstanding += count;
        int error = context->transport->provider->qp_post(q->qp, wrs, count, &posted);
        if (error != 0) {
            mc_warn_limited("rdma: posting failed nic=%s peer=%s errno=%d", context->name,
                            ep->peer_path, error);
            take_back(ep, wrs + posted, count - posted, q->number, ended);
            rdma_endpoint_fail_locked(ep, ended);
        }
    }
}

bool rdma_endpoint_submit(struct rdma_endpoint *ep, struct mc_list *list) {
    struct rdma_ended ended;
    rdma_ended_init(&ended);
    pthread_mutex_lock(&ep->lock);
    bool open = ep->state <= RDMA_UP;
    while (open && !mc_list_empty(list)) {
        struct mc_list *link = list->next;
        struct mc_slice_op *slice = mc_container_of(link, struct mc_slice_op, transport_link);
        rdma_slice_of(slice)->endpoint = ep;
        rdma_endpoint_get(ep);
        mc_list_del(link);
        mc_list_push_back(&ep->queued, link);
    }
    rdma_endpoint_pump_locked(ep, &ended);
    bool failed = ep->state == RDMA_FAILED;
    pthread_mutex_unlock(&ep->lock);
    if (failed) {
        rdma_endpoint_settle(ep);
    }
    rdma_ended_tell(&ended);
    return open;
}

/* ---- completing ---- */

static struct rdma_queue *queue_of(struct rdma_endpoint *ep, uint32_t number) {
    for (uint32_t i = 0; i < ep->queue_count; i++) {
        if (ep->queues[i].number == number) {
            return &ep->queues[i];
        }
    }
    MC_ASSERT(!"a completion of a queue pair of another endpoint");
    return NULL;
}

void rdma_endpoint_complete_locked(struct rdma_endpoint *ep, const struct rdma_wc *wc,
                                   struct rdma_ended *ended) {
    struct mc_slice_op *slice = (struct mc_slice_op *)(uintptr_t)wc->id;
    struct rdma_slice *s = rdma_slice_of(slice);
    MC_ASSERT(s->endpoint == ep && s->pieces > 0 && ep->outstanding > 0);
    queue_of(ep, wc->qp_num)->room++;
    give_credits(ep->context, 1);
    ep->outstanding--;
    s->pieces--;
    if (wc->status != RDMA_WC_OK &&
        (s->status == RDMA_WC_OK || s->status == RDMA_WC_FLUSHED)) { /* the first cause counts */
        s->status = (int8_t)wc->status;
    }
    if (s->pieces > 0) {
        return;
    }
    if (s->posted == slice->length || s->status != RDMA_WC_OK || ep->state > RDMA_UP) {
        enum rdma_wc_status status = (enum rdma_wc_status)s->status;
        if (status == RDMA_WC_OK && s->posted < slice->length) {
            status = RDMA_WC_FLUSHED; /* the rest will not be posted here */
        }
        end_slice(ended, slice, status);
    }
}

bool rdma_endpoint_is_over_locked(const struct rdma_endpoint *ep) {
    return ep->state > RDMA_UP && ep->outstanding == 0;
}

/* ---- failing ---- */

/* Slices of which nothing is posted; task NULL = all. */
static void end_unposted_locked(struct rdma_endpoint *ep, const void *task, int status,
                                struct rdma_ended *ended) {
    for (struct mc_list *at = ep->queued.next, *next; at != &ep->queued; at = next) {
        next = at->next;
        struct mc_slice_op *slice = mc_container_of(at, struct mc_slice_op, transport_link);
        if (rdma_slice_of(slice)->posted == 0 && (task == NULL || slice->task == task)) {
            end_slice(ended, slice, status);
        }
    }
}

void rdma_endpoint_drain_locked(struct rdma_endpoint *ep, struct rdma_ended *ended) {
    if (ep->state == RDMA_UP) {
        ep->state = RDMA_DRAINING;
        end_unposted_locked(ep, NULL, RDMA_WC_AGAIN, ended);
    }
}

void rdma_endpoint_fail_locked(struct rdma_endpoint *ep, struct rdma_ended *ended) {
    if (ep->state == RDMA_FAILED) {
        return;
    }
    ep->state = RDMA_FAILED;
    mc_metric_add(&ep->context->metrics.failed, 1);
    for (uint32_t i = 0; i < ep->in_use; i++) {
        int error = ep->context->transport->provider->qp_fail(ep->queues[i].qp);
        if (error != 0) {
            mc_warn_limited("rdma: a queue pair does not go to the error state nic=%s errno=%d",
                            ep->context->name, error);
        }
    }
    end_unposted_locked(ep, NULL, RDMA_WC_FLUSHED, ended);
}

void rdma_endpoint_fail(struct rdma_endpoint *ep) {
    struct rdma_ended ended;
    rdma_ended_init(&ended);
    pthread_mutex_lock(&ep->lock);
    rdma_endpoint_fail_locked(ep, &ended);
    pthread_mutex_unlock(&ep->lock);
    rdma_endpoint_settle(ep);
    rdma_ended_tell(&ended);
}

static bool in_list(const struct mc_list *list, const void *task) {
    for (struct mc_list *at = list->next; at != list; at = at->next) {
        if (mc_container_of(at, struct mc_slice_op, transport_link)->task == task) {
            return true;
        }
    }
    return false;
}

static void mark_hung(struct mc_list *list, const void *task) {
    for (struct mc_list *at = list->next; at != list; at = at->next) {
        struct mc_slice_op *slice = mc_container_of(at, struct mc_slice_op, transport_link);
        rdma_slice_of(slice)->hung |= slice->task == task;
    }
}

static void end_task(struct rdma_endpoint *ep, void *task, bool hung) {
    struct rdma_ended ended;
    rdma_ended_init(&ended);
    pthread_mutex_lock(&ep->lock);
    if (hung) {
        mark_hung(&ep->queued, task);
        mark_hung(&ep->posted, task);
    }
    end_unposted_locked(ep, task, RDMA_WC_FLUSHED, &ended);
    bool flying = in_list(&ep->queued, task) || in_list(&ep->posted, task);
    if (flying) { /* the one way to make a NIC forget a work request */
        rdma_endpoint_fail_locked(ep, &ended);
    }
    pthread_mutex_unlock(&ep->lock);
    if (flying) {
        rdma_endpoint_settle(ep);
    }
    rdma_ended_tell(&ended);
}

void rdma_endpoint_cancel(struct rdma_endpoint *ep, void *task) {
    end_task(ep, task, false);
}

void rdma_endpoint_give_up(struct rdma_endpoint *ep, void *task) {
    end_task(ep, task, true);
}

bool rdma_endpoint_has_task(struct rdma_endpoint *ep, void *task) {
    pthread_mutex_lock(&ep->lock);
    bool has = in_list(&ep->queued, task) || in_list(&ep->posted, task);
    pthread_mutex_unlock(&ep->lock);
    return has;
}
