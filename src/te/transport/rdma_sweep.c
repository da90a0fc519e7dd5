/*
 * All endpoints of a context at once: those that a restarted peer left behind, those of a port that
 * went down, those that carry a task which is given up, and all of them at the end.
 */
#include <time.h>

#include "te/transport/rdma.h"

#define DRAIN_LOOK_MS 50
#define FAIL_BATCH    64

void rdma_context_fail(struct rdma_context *context,
                       bool (*which)(const struct rdma_endpoint *ep, const void *arg),
                       const void *arg) {
    struct rdma_endpoint *batch[FAIL_BATCH];
    size_t count;
    do {
        count = 0;
        pthread_mutex_lock(&context->lock);
        for (struct mc_list *at = context->pool.order.next, *next;
             at != &context->pool.order && count < FAIL_BATCH; at = next) {
            next = at->next;
            struct rdma_endpoint *ep =
                rdma_endpoint_of(mc_container_of(at, struct rdma_pool_node, order));
            pthread_mutex_lock(&ep->lock);
            bool hit = which(ep, arg);
            pthread_mutex_unlock(&ep->lock);
            if (hit) {
                rdma_endpoint_get(ep);
                rdma_endpoint_detach_locked(ep);
                batch[count++] = ep;
            }
        }
        pthread_mutex_unlock(&context->lock);
        for (size_t i = 0; i < count; i++) {
            rdma_endpoint_fail(batch[i]);
            rdma_endpoint_put(batch[i]);
        }
    } while (count == FAIL_BATCH);
}

/* Those that have the task, counted; at most `capacity`. */
static size_t with_task(struct rdma_context *context, void *task, struct rdma_endpoint **out,
                        size_t capacity) {
    size_t count = 0;
    pthread_mutex_lock(&context->lock);
    for (struct mc_list *at = context->pool.order.next;
         at != &context->pool.order && count < capacity; at = at->next) {
        struct rdma_endpoint *ep =
            rdma_endpoint_of(mc_container_of(at, struct rdma_pool_node, order));
        if (rdma_endpoint_has_task(ep, task)) {
            rdma_endpoint_get(ep);
            out[count++] = ep;
        }
    }
    for (struct mc_list *at = context->leaving.next; at != &context->leaving && count < capacity;
         at = at->next) {
        struct rdma_endpoint *ep = mc_container_of(at, struct rdma_endpoint, link);
        if (rdma_endpoint_has_task(ep, task)) {
            rdma_endpoint_get(ep);
            out[count++] = ep;
        }
    }
    pthread_mutex_unlock(&context->lock);
    return count;
}

void rdma_context_cancel(struct rdma_context *context, void *task) {
    struct rdma_endpoint *batch[FAIL_BATCH];
    size_t count;
    while ((count = with_task(context, task, batch, FAIL_BATCH)) > 0) {
        for (size_t i = 0; i < count; i++) {
            rdma_endpoint_cancel(batch[i], task);
            rdma_endpoint_put(batch[i]);
        }
        /* What was in flight comes back flushed. */
        if (rdma_context_poll(context) == 0) {
            nanosleep(&(struct timespec){0, 50000}, NULL);
        }
    }
}

/* Once: the slices may be back on this NIC, by another endpoint, before this returns. */
void rdma_context_give_up(struct rdma_context *context, void *task) {
    struct rdma_endpoint *batch[FAIL_BATCH];
    size_t count = with_task(context, task, batch, FAIL_BATCH);
    for (size_t i = 0; i < count; i++) {
        rdma_endpoint_give_up(batch[i], task);
        rdma_endpoint_put(batch[i]);
    }
}

static bool every(const struct rdma_endpoint *ep, const void *arg) {
    return true;
}

/* Those that were draining lose what is in flight. */
static void fail_leaving(struct rdma_context *context) {
    struct rdma_endpoint *batch[FAIL_BATCH];
    size_t count = 0;
    pthread_mutex_lock(&context->lock);
    for (struct mc_list *at = context->leaving.next; at != &context->leaving && count < FAIL_BATCH;
         at = at->next) {
        struct rdma_endpoint *ep = mc_container_of(at, struct rdma_endpoint, link);
        if (rdma_endpoint_state(ep) == RDMA_DRAINING) {
            rdma_endpoint_get(ep);
            batch[count++] = ep;
        }
    }
    pthread_mutex_unlock(&context->lock);
    for (size_t i = 0; i < count; i++) {
        rdma_endpoint_fail(batch[i]);
        rdma_endpoint_put(batch[i]);
    }
}

void rdma_context_drain(struct rdma_context *context) {
    for (;;) {
        rdma_context_fail(context, every, NULL);
        fail_leaving(context);
        pthread_mutex_lock(&context->lock);
        size_t left = context->endpoints;
        if (left > 0) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += DRAIN_LOOK_MS * (long)MC_MS;
            until.tv_sec += until.tv_nsec / (long)MC_SEC;
            until.tv_nsec %= (long)MC_SEC;
            pthread_cond_timedwait(&context->changed, &context->lock, &until);
        }
        pthread_mutex_unlock(&context->lock);
        if (left == 0) {
            return;
        }
    }
}
