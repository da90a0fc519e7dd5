/*
 * A context: one port of one NIC. Its thread waits for completions and events.
 *
 * Who polls: a thread that waits for a transfer polls itself for a while (no switch of threads on
 * the way of a small read), the context's thread otherwise. While waiters poll, the thread does not
 * arm the completion queue, so that it is not woken for each completion that they take; the last
 * waiter to leave wakes it if work is in flight. After its last look and before it sleeps the
 * thread arms the queue and looks once more: a completion that came in between is seen or wakes it.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "te/transport/rdma.h"

#define LOOK_AGAIN_MS 1000 /* how long the thread sleeps at most: a lost event is made up for */
#define PENALTY_NS    (100 * MC_MS)

/* ---- completions ---- */

static const char *why(enum rdma_wc_status status) {
    switch (status) {
    case RDMA_WC_FLUSHED:
        return "flushed";
    case RDMA_WC_UNREACHABLE:
        return "no answer";
    case RDMA_WC_REMOTE_DENIED:
        return "the peer's NIC refused";
    case RDMA_WC_LOCAL:
        return "local key, range or length";
    default:
        return "other";
    }
}

/* Completions of one endpoint in a row are handled under one lock. */
static size_t complete_run(const struct rdma_wc *wcs, size_t count) {
    struct rdma_slice *first = rdma_slice_of((struct mc_slice_op *)(uintptr_t)wcs[0].id);
    struct rdma_endpoint *ep = first->endpoint;
    struct rdma_context *context = ep->context;
    struct rdma_ended ended;
    size_t i = 0;
    bool good = true;
    rdma_ended_init(&ended);
    rdma_endpoint_get(ep); /* outlives the last slice's reference */
    pthread_mutex_lock(&ep->lock);
    for (; i < count; i++) {
        struct mc_slice_op *slice = (struct mc_slice_op *)(uintptr_t)wcs[i].id;
        if (rdma_slice_of(slice)->endpoint != ep) {
            break;
        }
        if (wcs[i].status != RDMA_WC_OK && ep->state != RDMA_FAILED) {
            good = false;
            mc_metric_add(&context->metrics.wr_errors, 1);
            mc_warn_limited("rdma: a work request failed nic=%s peer=%s op=%s why=\"%s\" code=0x%x",
                            context->name, ep->peer_path,
                            slice->op == MC_TRANSFER_READ ? "read" : "write", why(wcs[i].status),
                            wcs[i].vendor);
            if (wcs[i].status == RDMA_WC_UNREACHABLE) {
                ep->peer_closed = true;
                rdma_penalise(context, ep->node.hash);
            }
            rdma_endpoint_fail_locked(ep, &ended);
        }
        rdma_endpoint_complete_locked(ep, &wcs[i], &ended);
    }
    rdma_endpoint_pump_locked(ep, &ended);
    bool settle = !good || rdma_endpoint_is_over_locked(ep);
    pthread_mutex_unlock(&ep->lock);
    if (settle) {
        rdma_endpoint_settle(ep);
    }
    rdma_ended_tell(&ended);
    rdma_endpoint_put(ep);
    return i;
}

void rdma_context_starve(struct rdma_context *context, struct rdma_endpoint *ep) {
    pthread_mutex_lock(&context->starved_lock);
    if (mc_list_empty(&ep->starved)) {
        rdma_endpoint_get(ep);
        mc_list_push_back(&context->starved, &ep->starved);
    }
    pthread_mutex_unlock(&context->starved_lock);
}

/* Lets endpoints post that found the completion queue full, while it has room. */
static void feed(struct rdma_context *context) {
    while (atomic_load_explicit(&context->credits, memory_order_relaxed) > 0) {
        struct rdma_endpoint *ep = NULL;
        pthread_mutex_lock(&context->starved_lock);
        if (!mc_list_empty(&context->starved)) {
            ep = mc_container_of(context->starved.next, struct rdma_endpoint, starved);
            mc_list_del(&ep->starved);
        }
        pthread_mutex_unlock(&context->starved_lock);
        if (ep == NULL) {
            return;
        }
        struct rdma_ended ended;
        rdma_ended_init(&ended);
        pthread_mutex_lock(&ep->lock);
        rdma_endpoint_pump_locked(ep, &ended);
        pthread_mutex_unlock(&ep->lock);
        rdma_ended_tell(&ended);
        rdma_endpoint_put(ep);
    }
}

int rdma_context_poll(struct rdma_context *context) {
    struct rdma_wc wcs[RDMA_POLL_BATCH];
    int count = context->transport->provider->cq_poll(context->cq, wcs, RDMA_POLL_BATCH);
    if (count <= 0) {
        return 0;
    }
    for (size_t at = 0; at < (size_t)count;) {
        at += complete_run(wcs + at, (size_t)count - at);
    }
    feed(context);
    return count;
}

/* ---- paths that failed ---- */

static struct rdma_penalty *penalty_of(const struct rdma_context *context, uint64_t hash) {
    return (struct rdma_penalty *)&context->penalties[hash % RDMA_PENALTIES];
}

/* Rests 100 ms, then twice as long each time, up to the configured pause. */
void rdma_penalise(struct rdma_context *context, uint64_t hash) {
    struct rdma_penalty *p = penalty_of(context, hash);
    uint64_t now = mc_now_ns(mc_clock_system());
    uint32_t failures = 1;
    if (atomic_exchange_explicit(&p->hash, hash, memory_order_relaxed) == hash) {
        failures = atomic_load_explicit(&p->failures, memory_order_relaxed) + 1;
    }
    atomic_store_explicit(&p->failures, failures, memory_order_relaxed);
    uint64_t rest = PENALTY_NS << mc_min_u64(failures - 1, 16);
    atomic_store_explicit(&p->until_ns, now + mc_min_u64(rest, context->transport->config.pause_ns),
                          memory_order_relaxed);
}

void rdma_pardon(struct rdma_context *context, uint64_t hash) {
    struct rdma_penalty *p = penalty_of(context, hash);
    if (atomic_load_explicit(&p->hash, memory_order_relaxed) == hash) {
        atomic_store_explicit(&p->hash, 0, memory_order_relaxed);
    }
}

/* The port was down: no path failed by itself. */
static void pardon_all(struct rdma_context *context) {
    for (unsigned i = 0; i < RDMA_PENALTIES; i++) {
        atomic_store_explicit(&context->penalties[i].hash, 0, memory_order_relaxed);
    }
}

bool rdma_penalised(const struct rdma_context *context, uint64_t hash, uint64_t now_ns) {
    const struct rdma_penalty *p = penalty_of(context, hash);
    return atomic_load_explicit(&p->hash, memory_order_relaxed) == hash &&
           atomic_load_explicit(&p->until_ns, memory_order_relaxed) > now_ns;
}

/* ---- events ---- */

static bool every(const struct rdma_endpoint *ep, const void *arg) {
    return true;
}

static void set_up(struct rdma_context *context, bool up, const char *why) {
    struct rdma_transport *t = context->transport;
    if (atomic_exchange_explicit(&context->up, up, memory_order_acq_rel) == up) {
        return;
    }
    mc_warn("rdma: nic=%s port=%u is %s reason=\"%s\"", context->name, (unsigned)t->config.port,
            up ? "up" : "down", why);
    if (up) {
        pardon_all(context);
    }
    if (atomic_load_explicit(&t->rails_told, memory_order_acquire)) {
        mc_rail_set_up(&t->base, context->index, up);
    }
    if (!up) { /* what is in flight need not wait for the NIC to give up */
        mc_metric_add(&context->metrics.port_down, 1);
        rdma_context_fail(context, every, NULL);
    }
}

static void look_at_port(struct rdma_context *context) {
    struct rdma_port_info info;
    if (context->transport->provider->query(context->device, &info) == 0) {
        set_up(context, info.active, "port state");
    }
}

static void look_at_events(struct rdma_context *context) {
    const struct rdma_provider *provider = context->transport->provider;
    enum rdma_event event;
    while ((event = provider->event_next(context->device)) != RDMA_EVENT_NONE) {
        switch (event) {
        case RDMA_EVENT_PORT_DOWN:
            set_up(context, false, "port error");
            break;
        case RDMA_EVENT_PORT_UP:
            look_at_port(context);
            break;
        case RDMA_EVENT_DEVICE_FATAL:
            set_up(context, false, "the device failed");
            break;
        case RDMA_EVENT_GID_CHANGE:
            mc_info("rdma: addresses changed nic=%s", context->name);
            break;
        default:
            break;
        }
    }
}

/* ---- the thread ---- */

static void wake(struct rdma_context *context) {
    uint64_t one = 1;
    ssize_t n = write(context->wake_fd, &one, sizeof(one));
    (void)n; /* full: it is awake anyway */
}

bool rdma_context_is_busy(const struct rdma_context *context) {
    return atomic_load_explicit(&context->credits, memory_order_relaxed) <
           (int32_t)context->cq_depth;
}

/* `drivers` and `armed` are written by one side and read by the other, each after its own write
 * (seq_cst): the thread that goes to sleep unarmed sees no driver or the last driver sees it so. */
void rdma_context_enter(struct rdma_context *context) {
    atomic_fetch_add_explicit(&context->drivers, 1, memory_order_seq_cst);
}

void rdma_context_leave(struct rdma_context *context) {
    if (atomic_fetch_sub_explicit(&context->drivers, 1, memory_order_seq_cst) == 1 &&
        !atomic_load_explicit(&context->armed, memory_order_seq_cst)) {
        wake(context);
    }
}

static void sleep_until_something(struct rdma_context *context) {
    const struct rdma_provider *provider = context->transport->provider;
    atomic_store_explicit(&context->armed, false, memory_order_seq_cst);
    bool driven = atomic_load_explicit(&context->drivers, memory_order_seq_cst) > 0;
    struct pollfd fds[3] = {{.fd = context->wake_fd, .events = POLLIN},
                            {.fd = provider->event_fd(context->device), .events = POLLIN},
                            {.fd = driven ? -1 : provider->cq_fd(context->cq), .events = POLLIN}};
    if (!driven) {
        atomic_store_explicit(&context->armed, true, memory_order_seq_cst);
        (void)provider->cq_arm(context->cq); /* when it fails, LOOK_AGAIN_MS is the net */
        if (rdma_context_poll(context) > 0) {
            return;
        }
    }
    if (poll(fds, 3, LOOK_AGAIN_MS) <= 0) {
        return;
    }
    if ((fds[0].revents & POLLIN) != 0) {
        uint64_t count;
        ssize_t n = read(context->wake_fd, &count, sizeof(count));
        (void)n;
    }
    if (fds[1].revents != 0) {
        look_at_events(context);
    }
    if (fds[2].revents != 0) {
        provider->cq_ack(context->cq);
    }
}

static void *run(void *arg) {
    struct rdma_context *context = arg;
    while (!atomic_load_explicit(&context->stop, memory_order_acquire)) {
        if (rdma_context_poll(context) == 0) {
            sleep_until_something(context);
        }
    }
    return NULL;
}

/* ---- life ---- */

static void register_metrics(struct rdma_context *context) {
    struct mc_metrics *registry = mc_engine_registry(context->transport->base.engine);
    struct rdma_context_metrics *m = &context->metrics;
    char labels[96];
    snprintf(labels, sizeof(labels), "nic=\"%s\"", context->name);
    const struct mc_metric_row rows[] = {
        {MC_METRIC_GAUGE, "mooncake_te_rdma_endpoints", "endpoints with queue pairs",
         &m->endpoints},
        {MC_METRIC_COUNTER, "mooncake_te_rdma_endpoints_opened_total", "endpoints that came up",
         &m->opened},
        {MC_METRIC_COUNTER, "mooncake_te_rdma_endpoints_evicted_total",
         "endpoints given up to make room", &m->evicted},
        {MC_METRIC_COUNTER, "mooncake_te_rdma_endpoints_failed_total",
         "endpoints that failed, to be opened anew", &m->failed},
        {MC_METRIC_COUNTER, "mooncake_te_rdma_requests_denied_total",
         "peers' connection requests rejected", &m->denied},
        {MC_METRIC_COUNTER, "mooncake_te_rdma_port_down_total", "times that the port went down",
         &m->port_down},
        {MC_METRIC_COUNTER, "mooncake_te_rdma_work_request_errors_total",
         "work requests that failed by themselves", &m->wr_errors},
    };
    mc_metrics_register_rows(registry, labels, rows, MC_ARRAY_LEN(rows));
}

/* What the port is, and what paths from it look like. */
static enum mc_status learn(struct rdma_context *context) {
    struct rdma_transport *t = context->transport;
    struct rdma_gid gids[RDMA_GIDS_MAX];
    int error = t->provider->query(context->device, &context->info);
    if (error != 0) {
        mc_warn("rdma: the port cannot be asked nic=%s port=%u errno=%d", context->name,
                (unsigned)t->config.port, error);
        return MC_NOT_SUPPORTED;
    }
    struct utsname kernel;
    if (context->info.soft_roce &&
        (uname(&kernel) != 0 || !rdma_soft_roce_is_sound(kernel.release))) {
        mc_error("rdma: Soft-RoCE of Linux %s ends reads well whose bytes have not come (6.12 does "
                 "not): not used nic=%s",
                 kernel.release, context->name);
        return MC_NOT_SUPPORTED;
    }
    size_t count = t->provider->gids(context->device, gids, MC_ARRAY_LEN(gids));
    bool found =
        rdma_choose_gid(gids, count, context->info.ethernet, t->config.gid_index, &context->gid);
    if (!found && (context->info.ethernet || t->config.gid_index >= 0)) {
        mc_warn("rdma: no usable GID nic=%s MC_GID_INDEX=%d", context->name, t->config.gid_index);
        return MC_NOT_SUPPORTED;
    }
    context->global = context->info.ethernet || context->info.lid == 0 || t->config.gid_index >= 0;
    context->mtu = rdma_choose_mtu(context->info.mtu, t->config.mtu, 0); /* peers are told this */
    context->max_message = mc_max_u64(context->info.max_message, 1);
    context->max_message = mc_min_u64(context->max_message, 1u << 30);
    atomic_store_explicit(&context->up, context->info.active, memory_order_relaxed);
    return MC_OK;
}

static enum mc_status make_queue(struct rdma_context *context) {
    struct rdma_transport *t = context->transport;
    uint32_t depth = (uint32_t)mc_min_u64(t->config.cq_depth, context->info.max_cqe);
    int error = t->provider->cq_create(context->device, depth, &context->cq);
    if (error != 0) {
        mc_warn("rdma: no completion queue nic=%s depth=%u errno=%d", context->name, depth, error);
        return MC_NOT_SUPPORTED;
    }
    context->cq_depth = depth;
    atomic_store_explicit(&context->credits, (int32_t)depth, memory_order_relaxed);
    return MC_OK;
}

enum mc_status rdma_context_open(struct rdma_transport *t, const char *name, unsigned index,
                                 struct rdma_context **out) {
    struct rdma_context *context = mc_zalloc(sizeof(*context));
    context->transport = t;
    context->index = index;
    snprintf(context->name, sizeof(context->name), "%s", name);
    pthread_mutex_init(&context->lock, NULL);
    pthread_cond_init(&context->changed, NULL);
    pthread_mutex_init(&context->starved_lock, NULL);
    rdma_pool_init(&context->pool);
    mc_list_init(&context->waiting);
    mc_list_init(&context->leaving);
    mc_list_init(&context->starved);
    context->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    MC_ASSERT(context->wake_fd >= 0);
    int error = t->provider->open(name, t->config.port, &context->device);
    if (error != 0) {
        mc_warn("rdma: the device cannot be opened nic=%s errno=%d", name, error);
        rdma_context_close(context);
        return MC_NOT_SUPPORTED;
    }
    enum mc_status status = learn(context);
    if (status == MC_OK) {
        status = make_queue(context);
    }
    if (status != MC_OK) {
        rdma_context_close(context);
        return status;
    }
    register_metrics(context);
    char gid[MC_RDMA_GID_TEXT];
    mc_rdma_gid_format(context->gid.raw, gid);
    mc_info("rdma: nic=%s port=%u %s gid_index=%u gid=%s lid=%u mtu=%u numa=%d", name,
            (unsigned)t->config.port, context->info.active ? "up" : "down", context->gid.index, gid,
            (unsigned)context->info.lid, context->mtu, context->info.numa_node);
    *out = context;
    return MC_OK;
}

enum mc_status rdma_context_start(struct rdma_context *context) {
    char name[16];
    snprintf(name, sizeof(name), "mc-rdma-%u", context->index);
    int error = mc_thread_start(&context->thread, name, run, context);
    if (error != 0) {
        mc_error("rdma: no thread nic=%s errno=%d", context->name, error);
        return MC_ERR_LIMIT;
    }
    context->thread_started = true;
    return MC_OK;
}

void rdma_context_close(struct rdma_context *context) {
    const struct rdma_provider *provider = context->transport->provider;
    if (context->thread_started) {
        atomic_store_explicit(&context->stop, true, memory_order_release);
        wake(context);
        pthread_join(context->thread, NULL);
    }
    mc_metrics_unregister_range(mc_engine_registry(context->transport->base.engine),
                                &context->metrics, sizeof(context->metrics));
    MC_ASSERT(context->endpoints == 0);
    if (context->cq != NULL) {
        provider->cq_destroy(context->cq);
    }
    if (context->device != NULL) {
        provider->close(context->device);
    }
    close(context->wake_fd);
    pthread_mutex_destroy(&context->lock);
    pthread_cond_destroy(&context->changed);
    pthread_mutex_destroy(&context->starved_lock);
    free(context);
}
