/*
 * The rdma transport's table of functions: start and stop, posting, cancelling, what peers are
 * told. rdma.h says what lies in which file.
 */
#include "te/transport/rdma.h"

#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "base/log.h"

#define SLICE_BYTES  (256ull << 10)
#define COST         50
#define SPIN_NS      (50 * 1000ull)
#define POST_TRIES   8
#define DEVICES_SEEN 256

/* ---- peers of segments ---- */

/* The segment's peer, counted; made from its descriptor when there is none. */
static struct rdma_peer *peer_to(struct rdma_transport *t, struct mc_segment *segment) {
    struct rdma_peer *peer = rdma_peer_of(t, segment);
    if (peer != NULL) {
        return peer;
    }
    struct mc_peer_desc *desc = mc_segment_desc(segment);
    struct rdma_peer *made = rdma_peer_new(t, desc), *extra = NULL;
    mc_peer_desc_put(desc);
    if (made == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&t->peers_lock);
    void **slot = &segment->transport_state[t->base.index];
    if (*slot == NULL) {
        *slot = made;
    } else {
        extra = made;
        made = *slot;
    }
    atomic_fetch_add_explicit(&made->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&t->peers_lock);
    rdma_peer_put(extra);
    return made;
}

static void replace_peer(struct rdma_transport *t, struct mc_segment *segment,
                         struct rdma_peer *peer) {
    pthread_mutex_lock(&t->peers_lock);
    struct rdma_peer *old = segment->transport_state[t->base.index];
    segment->transport_state[t->base.index] = peer;
    pthread_mutex_unlock(&t->peers_lock);
    rdma_peer_put(old);
}

/* An endpoint to this peer's NICs that a process before it had. */
static bool is_outlived(const struct rdma_endpoint *ep, const void *arg) {
    const struct rdma_peer *peer = arg;
    struct mc_uuid id = peer->desc->engine_id, none = {0, 0};
    if (mc_uuid_eq(id, none) || mc_uuid_eq(ep->peer_id, none) || mc_uuid_eq(ep->peer_id, id)) {
        return false;
    }
    for (unsigned i = 0; i < peer->remote_count; i++) {
        if (strcmp(ep->peer_path, peer->remotes[i].path) == 0) {
            return true;
        }
    }
    return false;
}

static void rdma_open(struct mc_transport *base, struct mc_segment *segment,
                      const struct mc_peer_desc *desc) {
    struct rdma_transport *t = rdma_of(base);
    struct rdma_peer *peer = rdma_peer_new(t, (struct mc_peer_desc *)(uintptr_t)desc);
    if (peer != NULL) {
        for (unsigned i = 0; i < t->context_count; i++) {
            rdma_context_fail(t->contexts[i], is_outlived, peer);
        }
    }
    replace_peer(t, segment, peer);
}

static bool carries(const struct rdma_endpoint *ep, const void *segment) {
    const struct mc_list *lists[] = {&ep->queued, &ep->posted};
    for (size_t i = 0; i < MC_ARRAY_LEN(lists); i++) {
        for (struct mc_list *at = lists[i]->next; at != lists[i]; at = at->next) {
            if (mc_container_of(at, struct mc_slice_op, transport_link)->segment == segment) {
                return true;
            }
        }
    }
    return false;
}

static void rdma_forget(struct mc_transport *base, struct mc_segment *segment) {
    struct rdma_transport *t = rdma_of(base);
    replace_peer(t, segment, NULL);
    for (unsigned i = 0; i < t->context_count; i++) {
        rdma_context_fail(t->contexts[i], carries, segment);
    }
}

/* ---- choosing ---- */

static uint32_t rdma_cost(struct mc_transport *base, struct mc_segment *segment,
                          const struct mc_peer_desc *desc) {
    struct rdma_transport *t = rdma_of(base);
    if (segment->id == MC_LOCAL_SEGMENT || desc->rdma == NULL || desc->rdma->key_count == 0) {
        return UINT32_MAX;
    }
    for (unsigned i = 0; i < t->context_count; i++) {
        if (atomic_load_explicit(&t->contexts[i]->up, memory_order_relaxed)) {
            return COST;
        }
    }
    return UINT32_MAX;
}

static bool local_serves(struct rdma_transport *t, const struct mc_slice_op *slice) {
    return rdma_memory_covers(&t->memory, (uint64_t)(uintptr_t)slice->local, slice->length) ||
           (slice->op == MC_TRANSFER_WRITE && slice->length <= t->config.inline_bytes &&
            (slice->devices & MC_DEVICE_LOCAL) == 0); /* the processor copies it */
}

/* All bytes of the remote range have keys. */
static bool remote_serves(const struct rdma_peer *peer, uint64_t addr, uint64_t length) {
    uint32_t rkey;
    uint64_t holds;
    while (length > 0) {
        if (!rdma_peer_key(peer, addr, 0, &rkey, &holds)) {
            return false;
        }
        holds = mc_min_u64(holds, length);
        addr += holds;
        length -= holds;
    }
    return true;
}

static bool rdma_serves(struct mc_transport *base, struct mc_segment *segment,
                        const struct mc_slice_op *slice) {
    struct rdma_transport *t = rdma_of(base);
    if (!local_serves(t, slice)) {
        return false;
    }
    struct rdma_peer *peer = peer_to(t, segment);
    bool serves = peer != NULL && remote_serves(peer, slice->remote, slice->length);
    rdma_peer_put(peer);
    return serves;
}

static unsigned rdma_rails(struct mc_transport *base, struct mc_rail_info *rails,
                           unsigned capacity) {
    struct rdma_transport *t = rdma_of(base);
    for (unsigned i = 0; i < t->context_count && i < capacity; i++) {
        const struct rdma_context *context = t->contexts[i];
        rails[i] = (struct mc_rail_info){
            .numa_node = context->info.numa_node,
            .bandwidth = context->info.bits_a_second / 8,
        };
        snprintf(rails[i].name, sizeof(rails[i].name), "%s", context->name);
        snprintf(rails[i].pci, sizeof(rails[i].pci), "%s", context->info.pci);
        rails[i].up = atomic_load_explicit(&context->up, memory_order_acquire);
    }
    atomic_store_explicit(&t->rails_told, true, memory_order_release);
    return t->context_count;
}

static uint32_t rdma_rail_distance(struct mc_transport *base, unsigned rail,
                                   const struct mc_slice_op *slice) {
    struct rdma_transport *t = rdma_of(base);
    if (rail >= t->context_count) {
        return UINT32_MAX;
    }
    return rdma_memory_distance(&t->memory, (uint64_t)(uintptr_t)slice->local, rail);
}

/* ---- posting ---- */

/* Fills what the transport keeps in a slice; *remote is the peer's NIC. False: no key. */
static bool prepare(struct rdma_transport *t, struct rdma_context *context,
                    const struct rdma_peer *peer, struct mc_slice_op *slice, unsigned *remote) {
    struct rdma_slice *s = rdma_slice_of(slice);
    uint64_t here = 0, there = 0;
    *s = (struct rdma_slice){.status = RDMA_WC_OK};
    *remote = rdma_peer_choose(peer, context, slice->remote);
    if (!rdma_peer_key(peer, slice->remote, *remote, &s->rkey, &there)) {
        return false;
    }
    s->no_lkey = !rdma_memory_key(&t->memory, (uint64_t)(uintptr_t)slice->local, context->index,
                                  &s->lkey, &here);
    s->split = there < slice->length || (!s->no_lkey && here < slice->length);
    return true;
}

/* Gives the list to the endpoint; one that ends in between is looked up anew. */
static void submit(struct rdma_context *context, const struct rdma_peer *peer, unsigned remote,
                   struct mc_list *list) {
    for (unsigned tries = 0; tries < POST_TRIES && !mc_list_empty(list); tries++) {
        struct rdma_endpoint *ep = rdma_endpoint_to(context, peer, remote);
        (void)rdma_endpoint_submit(ep, list);
        rdma_endpoint_put(ep);
    }
    while (!mc_list_empty(list)) {
        struct mc_slice_op *slice = mc_container_of(list->next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        mc_slice_done(slice, MC_ERR_CLOSED, true);
    }
}

static enum mc_status rdma_post(struct mc_transport *base, struct mc_slice_op **slices,
                                size_t count) {
    struct rdma_transport *t = rdma_of(base);
    struct rdma_context *context = t->contexts[slices[0]->rail % t->context_count];
    if (!atomic_load_explicit(&context->up, memory_order_acquire)) {
        return MC_ERR_UNREACHABLE;
    }
    struct rdma_peer *peer = peer_to(t, slices[0]->segment);
    if (peer == NULL) {
        return MC_ERR_NO_TRANSPORT;
    }
    struct mc_list list;
    unsigned remote = 0, last = 0;
    mc_list_init(&list);
    for (size_t i = 0; i < count; i++) {
        if (!prepare(t, context, peer, slices[i], &remote)) {
            mc_slice_done(slices[i], MC_ERR_NOT_REGISTERED, false);
            continue;
        }
        if (remote != last && !mc_list_empty(&list)) {
            submit(context, peer, last, &list);
        }
        last = remote;
        mc_list_push_back(&list, &slices[i]->transport_link);
    }
    submit(context, peer, last, &list);
    rdma_peer_put(peer);
    return MC_OK;
}

void rdma_repost(struct rdma_transport *t, struct mc_slice_op *slice) {
    enum mc_status status = rdma_post(&t->base, &slice, 1);
    if (status != MC_OK) {
        mc_slice_done(slice, status, true);
    }
}

/* Polls for a while after each completion; then the contexts' threads do. */
static void rdma_progress(struct mc_transport *base, struct mc_segment *segment,
                          const _Atomic uint32_t *done, uint64_t deadline_ns) {
    struct rdma_transport *t = rdma_of(base);
    uint64_t now = mc_now_ns(mc_clock_system());
    uint64_t until = mc_min_u64(deadline_ns, now + SPIN_NS);
    for (unsigned i = 0; i < t->context_count; i++) {
        rdma_context_enter(t->contexts[i]);
    }
    while (atomic_load_explicit(done, memory_order_acquire) == 0 && now < until) {
        int seen = 0;
        bool busy = false;
        for (unsigned i = 0; i < t->context_count; i++) {
            if (rdma_context_is_busy(t->contexts[i])) {
                busy = true;
                seen += rdma_context_poll(t->contexts[i]);
            }
        }
        if (!busy) {
            break;
        }
        now = mc_now_ns(mc_clock_system());
        until = seen > 0 ? mc_min_u64(deadline_ns, now + SPIN_NS) : until;
    }
    for (unsigned i = 0; i < t->context_count; i++) {
        rdma_context_leave(t->contexts[i]);
    }
}

static void rdma_cancel(struct mc_transport *base, struct mc_segment *segment, void *task) {
    struct rdma_transport *t = rdma_of(base);
    for (unsigned i = 0; i < t->context_count; i++) {
        rdma_context_cancel(t->contexts[i], task);
    }
}

static void rdma_give_up(struct mc_transport *base, struct mc_segment *segment, void *task,
                         unsigned rail) {
    struct rdma_transport *t = rdma_of(base);
    rdma_context_give_up(t->contexts[rail % t->context_count], task);
}

/* ---- what peers are told ---- */

static void rdma_describe(struct mc_transport *base, void *json_object) {
    struct rdma_transport *t = rdma_of(base);
    json_t *root = json_object, *devices = json_array();
    for (unsigned i = 0; i < t->context_count; i++) {
        const struct rdma_context *context = t->contexts[i];
        char gid[MC_RDMA_GID_TEXT];
        mc_rdma_gid_format(context->gid.raw, gid);
        json_array_append_new(devices, json_pack("{s:s, s:i, s:s}", "name", context->name, "lid",
                                                 (int)context->info.lid, "gid", gid));
    }
    json_object_set_new(root, "protocol", json_string("rdma"));
    json_object_set_new(root, "devices", devices);
    json_object_set_new(root, "priority_matrix", rdma_topology_json(t));
    rdma_memory_describe(&t->memory, root);
}

static void rdma_memory_added(struct mc_transport *base, struct mc_memory *memory) {
    struct rdma_transport *t = rdma_of(base);
    if (!memory->on_device || t->config.gpu_direct) {
        rdma_memory_add(&t->memory, memory);
    }
}

static void rdma_memory_removed(struct mc_transport *base, struct mc_memory *memory) {
    rdma_memory_remove(&rdma_of(base)->memory, memory);
}

/* ---- peers' requests ---- */

struct request_job {
    struct mc_job job;
    struct rdma_transport *transport;
    struct mc_handshake_call *call;
    struct mc_rdma_setup setup;
};

static void run_request(struct mc_job *job) {
    struct request_job *r = mc_container_of(job, struct request_job, job);
    struct rdma_transport *t = r->transport;
    rdma_accept(t, &r->setup, r->call);
    free(r);
    atomic_fetch_sub_explicit(&t->requests, 1, memory_order_release);
}

static void rdma_handshake(struct mc_transport *base, struct mc_str body,
                           struct mc_handshake_call *call) {
    struct rdma_transport *t = rdma_of(base);
    struct request_job *r = mc_zalloc(sizeof(*r));
    if (mc_rdma_setup_decode(body, &r->setup) != MC_OK) {
        mc_handshake_answer(call, MC_STR("{\"local_nic_path\":\"\",\"peer_nic_path\":\"\","
                                         "\"qp_num\":[],\"reply_msg\":\"malformed request\"}"));
        free(r);
        return;
    }
    r->job.run = run_request;
    r->transport = t;
    r->call = call;
    atomic_fetch_add_explicit(&t->requests, 1, memory_order_relaxed);
    mc_workers_submit(t->servants, &r->job);
}

/* ---- life ---- */

static void open_contexts(struct rdma_transport *t) {
    char(*names)[RDMA_NAME_MAX] = mc_zalloc(DEVICES_SEEN * sizeof(*names));
    size_t count = mc_min_u64(t->provider->list(names, DEVICES_SEEN), DEVICES_SEEN);
    for (size_t i = 0; i < count; i++) {
        if (!rdma_topology_wants(names[i])) {
            mc_info("rdma: nic=%s is left out by MC_TE_FILTERS", names[i]);
            continue;
        }
        if (t->context_count == RDMA_CONTEXTS_MAX) {
            mc_warn("rdma: more than %u NICs, the rest is not used: nic=%s",
                    (unsigned)RDMA_CONTEXTS_MAX, names[i]);
            break;
        }
        struct rdma_context *context = NULL;
        if (rdma_context_open(t, names[i], t->context_count, &context) == MC_OK) {
            t->contexts[t->context_count++] = context;
        }
    }
    free(names);
}

static void close_transport(struct rdma_transport *t) {
    mc_workers_destroy(t->callers);
    mc_workers_destroy(t->servants);
    rdma_memory_destroy(&t->memory);
    for (unsigned i = 0; i < t->context_count; i++) {
        rdma_context_close(t->contexts[i]);
    }
    pthread_mutex_destroy(&t->peers_lock);
    free(t);
}

enum mc_status rdma_start_with(struct mc_engine *engine, unsigned index,
                               const struct rdma_provider *provider, struct mc_transport **out) {
    struct rdma_transport *t = mc_zalloc(sizeof(*t));
    t->base = (struct mc_transport){&mc_transport_rdma_ops, engine, index};
    t->provider = provider;
    pthread_mutex_init(&t->peers_lock, NULL);
    rdma_memory_init(&t->memory, t);
    rdma_config_read(&t->config);
    open_contexts(t);
    if (t->context_count > 0) {
        rdma_topology_open(t);
    }
    enum mc_status status = t->context_count == 0 ? MC_NOT_SUPPORTED : MC_OK;
    if (status == MC_OK && (status = mc_workers_create(&t->callers)) == MC_OK) {
        status = mc_workers_create(&t->servants);
    }
    for (unsigned i = 0; i < t->context_count && status == MC_OK; i++) {
        status = rdma_context_start(t->contexts[i]);
    }
    if (status != MC_OK) {
        close_transport(t);
        return status;
    }
    *out = &t->base;
    return MC_OK;
}

static enum mc_status rdma_start(struct mc_engine *engine, unsigned index,
                                 struct mc_transport **out) {
    const char *force_tcp = getenv("MC_FORCE_TCP");
    const struct rdma_provider *provider = NULL;
    if ((force_tcp == NULL || force_tcp[0] == '\0') && rdma_device_exists()) {
        provider = rdma_provider_load();
    }
    return provider == NULL ? MC_NOT_SUPPORTED : rdma_start_with(engine, index, provider, out);
}

/* No segment is open and the handshake server has stopped. */
static void rdma_stop(struct mc_transport *base) {
    struct rdma_transport *t = rdma_of(base);
    atomic_store_explicit(&t->closing, true, memory_order_release);
    while (atomic_load_explicit(&t->requests, memory_order_acquire) > 0) {
        nanosleep(&(struct timespec){0, 1000000}, NULL); /* they wait for nobody */
    }
    for (unsigned i = 0; i < t->context_count; i++) {
        rdma_context_drain(t->contexts[i]);
    }
    close_transport(t);
}

const struct mc_transport_ops mc_transport_rdma_ops = {
    .name = "rdma",
    .in_the_clear = true,
    .slice_bytes = SLICE_BYTES,
    .devices = MC_DEVICE_LOCAL | MC_DEVICE_REMOTE | MC_DEVICE_FOREIGN, /* where it is registered */
    .start = rdma_start,
    .stop = rdma_stop,
    .describe = rdma_describe,
    .memory_added = rdma_memory_added,
    .memory_removed = rdma_memory_removed,
    .cost = rdma_cost,
    .rails = rdma_rails,
    .rail_distance = rdma_rail_distance,
    .serves = rdma_serves,
    .open = rdma_open,
    .post = rdma_post,
    .progress = rdma_progress,
    .cancel = rdma_cancel,
    .give_up = rdma_give_up,
    .forget = rdma_forget,
    .handshake = rdma_handshake,
};
