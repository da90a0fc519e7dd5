/*
 * Descriptors: what is known of a peer, fetched, replaced as a whole, and the slices that wait for
 * one.
 *
 * When the engine id in a descriptor changes, or for peers without one the address of the data
 * port, another process stands behind the name: `incarnation` moves, transports forget the old one,
 * and slices that were first sent to it are not sent to its successor, whose memory is not what
 * their addresses meant.
 */
#include <stdio.h>

#include "base/log.h"
#include "te/internal.h"
#include "wire/file_segment.h"
#include "wire/segment_desc_fabric.h"

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- descriptors ---- */

struct mc_peer_desc *mc_segment_desc(struct mc_segment *segment) {
    struct mc_segment_slot *slot = mc_slot_of(segment);
    pthread_mutex_lock(&slot->lock);
    struct mc_peer_desc *desc = slot->desc;
    atomic_fetch_add_explicit(&desc->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&slot->lock);
    return desc;
}

void mc_peer_desc_put(struct mc_peer_desc *desc) {
    if (desc != NULL && atomic_fetch_sub_explicit(&desc->refs, 1, memory_order_acq_rel) == 1) {
        mc_rdma_desc_free(desc->rdma);
        mc_fabric_desc_free(desc->fabric);
        if (desc->files != NULL) {
            mc_file_parts_free(desc->files);
            free(desc->files);
        }
        free(desc->buffers);
        free(desc);
    }
}

const struct mc_peer_buffer *mc_peer_desc_find(const struct mc_peer_desc *desc, uint64_t addr,
                                               uint64_t length) {
    size_t low = 0, high = desc->buffer_count;
    while (low < high) { /* the last buffer that begins at or before addr */
        size_t mid = (low + high) / 2;
        if (desc->buffers[mid].addr <= addr) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    if (low == 0) {
        return NULL;
    }
    const struct mc_peer_buffer *b = &desc->buffers[low - 1];
    return mc_range_inside(addr, length, b->addr, b->length) ? b : NULL;
}

/* Takes wire->rdma over. */
static struct mc_peer_desc *desc_from_wire(struct mc_segment_desc *wire, const char *host,
                                           uint16_t rpc_port) {
    struct mc_peer_desc *desc = mc_zalloc(sizeof(*desc));
    atomic_store_explicit(&desc->refs, 1, memory_order_relaxed);
    memcpy(desc->name, wire->name, sizeof(desc->name));
    snprintf(desc->host, sizeof(desc->host), "%s", host);
    snprintf(desc->tcp_host, sizeof(desc->tcp_host), "%s",
             wire->tcp_data_host[0] != '\0' ? wire->tcp_data_host : host);
    desc->rpc_port = rpc_port;
    desc->tcp_data_port = wire->tcp_data_port;
    desc->tcp_proto = wire->tcp_proto;
    desc->engine_id = wire->engine_id;
    memcpy(desc->boot_id, wire->boot_id, sizeof(desc->boot_id));
    memcpy(desc->shm_socket, wire->shm_socket, sizeof(desc->shm_socket));
    desc->pid = wire->pid;
    desc->tls = wire->tls;
    desc->buffer_count = wire->buffer_count;
    desc->buffers = mc_zalloc((wire->buffer_count + 1) * sizeof(*desc->buffers));
    for (size_t i = 0; i < wire->buffer_count; i++) {
        const struct mc_segment_desc_buffer *from = &wire->buffers[i];
        struct mc_peer_buffer *to = &desc->buffers[i];
        to->addr = from->addr;
        to->length = from->length;
        memcpy(to->location, from->location, sizeof(to->location));
        to->shm_slot = from->shm_slot;
        to->shm_mappable = from->shm_mappable;
        to->on_device = from->on_device;
        desc->has_device_memory |= from->on_device;
    }
    desc->rdma = wire->rdma;
    wire->rdma = NULL;
    desc->fabric = wire->fabric;
    wire->fabric = NULL;
    return desc;
}

enum mc_status mc_desc_fetch(struct mc_engine *engine, const char *name, uint64_t deadline_ns,
                             struct mc_peer_desc **out) {
    struct mc_buf own = {0};
    struct mc_meta_peer peer;
    struct mc_segment_desc wire;
    mc_metric_add(&engine->refreshes, 1);
    if (mc_file_segment_is_name(engine, name)) {
        return mc_file_segment_fetch(engine, name, out);
    }
    mc_engine_describe(engine, &own);
    enum mc_status status =
        mc_meta_lookup(engine->meta, name, (struct mc_str){own.data, own.len}, deadline_ns, &peer);
    mc_buf_free(&own);
    MC_TRY(status);
    status =
        mc_segment_desc_decode((struct mc_str){peer.descriptor.data, peer.descriptor.len}, &wire);
    if (status == MC_OK) {
        *out = desc_from_wire(&wire, peer.host, peer.rpc_port);
        mc_segment_desc_free(&wire);
    } else {
        mc_warn_limited("unusable segment descriptor name=%s", name);
    }
    mc_buf_free(&peer.descriptor);
    return status;
}

/* The local segment as a peer would see it. */
static struct mc_peer_desc *describe_self(struct mc_engine *engine) {
    struct mc_buf own = {0};
    struct mc_segment_desc wire;
    mc_engine_describe(engine, &own);
    enum mc_status status = mc_segment_desc_decode((struct mc_str){own.data, own.len}, &wire);
    MC_ASSERT(status == MC_OK);
    mc_buf_free(&own);
    struct mc_peer_desc *desc = desc_from_wire(&wire, engine->host, engine->rpc_port);
    mc_segment_desc_free(&wire);
    return desc;
}

static bool same_incarnation(const struct mc_peer_desc *a, const struct mc_peer_desc *b) {
    return mc_uuid_eq(a->engine_id, b->engine_id) && a->tcp_data_port == b->tcp_data_port &&
           strcmp(a->host, b->host) == 0 && strcmp(a->tcp_host, b->tcp_host) == 0;
}

void mc_slot_tell_open(struct mc_segment_slot *slot, const struct mc_peer_desc *desc) {
    struct mc_engine *engine = slot->base.engine;
    for (unsigned i = 0; i < engine->transport_count; i++) {
        if (engine->transports[i]->ops->open != NULL) {
            engine->transports[i]->ops->open(engine->transports[i], &slot->base, desc);
        }
    }
}

/* refresh_lock held; takes over the reference. */
static void install_desc(struct mc_segment_slot *slot, struct mc_peer_desc *desc) {
    pthread_mutex_lock(&slot->lock);
    struct mc_peer_desc *old = slot->desc;
    bool restarted = old != NULL && !same_incarnation(old, desc);
    slot->desc = desc;
    atomic_fetch_add_explicit(&desc->refs, 1, memory_order_relaxed);
    if (restarted) {
        atomic_fetch_add_explicit(&slot->incarnation, 1, memory_order_release);
    }
    atomic_store_explicit(&slot->stale, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->refresh_failed_ns, 0, memory_order_relaxed);
    pthread_mutex_unlock(&slot->lock);
    if (restarted) {
        mc_info("another engine answers under the name of a known one name=%s", slot->name);
        mc_slot_forget(slot);
    }
    mc_slot_tell_open(slot, desc);
    mc_peer_desc_put(desc);
    mc_peer_desc_put(old);
}

/* By the wall clock, for the thread sanitizer knows no other: where it is set back meanwhile, the
 * wait is longer, but not than the holder's, who has a deadline too. */
static bool lock_until(pthread_mutex_t *lock, uint64_t deadline_ns) {
    if (deadline_ns == MC_NO_DEADLINE) {
        return pthread_mutex_lock(lock) == 0;
    }
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t now = now_ns(), until = (uint64_t)wall.tv_sec * MC_SEC + (uint64_t)wall.tv_nsec;
    until += deadline_ns > now ? mc_min_u64(deadline_ns - now, 3600 * MC_SEC) : 0;
    wall = (struct timespec){(time_t)(until / MC_SEC), (long)(until % MC_SEC)};
    return pthread_mutex_timedlock(lock, &wall) == 0;
}

enum mc_status mc_slot_refresh(struct mc_segment_slot *slot, uint64_t deadline_ns) {
    struct mc_engine *engine = slot->base.engine;
    struct mc_peer_desc *desc = NULL;
    enum mc_status status = MC_OK;
    if (!lock_until(&slot->refresh_lock, deadline_ns)) { /* another thread waits for the peer */
        return MC_ERR_TIMEOUT;
    }
    if (slot->base.id == MC_LOCAL_SEGMENT) {
        uint64_t generation =
            atomic_load_explicit(&engine->memory_generation, memory_order_acquire);
        if (slot->desc_generation != generation) {
            slot->desc_generation = generation;
            install_desc(slot, describe_self(engine));
        }
    } else {
        status = mc_desc_fetch(engine, slot->name, deadline_ns, &desc);
        if (status == MC_OK) {
            install_desc(slot, desc);
        } else {
            atomic_store_explicit(&slot->refresh_failed_ns, now_ns(), memory_order_relaxed);
        }
    }
    pthread_mutex_unlock(&slot->refresh_lock);
    return status;
}

uint64_t mc_fetch_deadline(const struct mc_engine *engine) {
    const struct mc_handshake_limits *limits = mc_meta_limits(engine->meta);
    return now_ns() + (uint64_t)(limits->connect_timeout_ms + limits->reply_timeout_ms) * MC_MS;
}

/* ---- slices that wait for a descriptor ---- */

static struct mc_slice_op *pop(struct mc_segment_slot *slot, struct mc_list *list) {
    struct mc_slice_op *slice = NULL;
    pthread_mutex_lock(&slot->lock);
    if (!mc_list_empty(list)) {
        slice = mc_container_of(list->next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
    }
    pthread_mutex_unlock(&slot->lock);
    return slice;
}

/* Those that wait now are served by the fetch that begins now; who comes later gets the next, for
 * what has happened in between would not be in this one's answer. False when nobody waits: the job
 * is over. */
static bool begin_fetch(struct mc_segment_slot *slot) {
    pthread_mutex_lock(&slot->lock);
    bool any = !mc_list_empty(&slot->waiting);
    while (!mc_list_empty(&slot->waiting)) {
        struct mc_list *link = slot->waiting.next;
        mc_list_del(link);
        mc_list_push_back(&slot->fetching, link);
    }
    slot->refreshing = any;
    pthread_mutex_unlock(&slot->lock);
    return any;
}

void mc_slot_run_refresh(struct mc_job *job) {
    struct mc_segment_slot *slot = mc_container_of(job, struct mc_segment_slot, refresh_job);
    while (begin_fetch(slot)) {
        enum mc_status status = mc_slot_refresh(slot, mc_fetch_deadline(slot->base.engine));
        struct mc_slice_op *slice;
        while ((slice = pop(slot, &slot->fetching)) != NULL) {
            mc_slice_after_refresh(slice, status);
        }
    }
    mc_slot_release(slot);
}

void mc_slot_wait_refresh(struct mc_segment_slot *slot, struct mc_slice_op *slice) {
    bool start = false;
    pthread_mutex_lock(&slot->lock);
    mc_list_push_back(&slot->waiting, &slice->transport_link);
    if (!slot->refreshing) {
        slot->refreshing = start = true;
        /* The slice's task holds the slot: it cannot be reclaimed here. */
        (void)mc_slot_share(slot);
    }
    pthread_mutex_unlock(&slot->lock);
    if (start) {
        mc_workers_submit(slot->base.engine->workers, &slot->refresh_job);
    }
}

static void take_of_task(struct mc_list *list, const struct mc_transfer_task *task,
                         struct mc_list *taken) {
    for (struct mc_list *at = list->next, *next; at != list; at = next) {
        next = at->next;
        if (mc_container_of(at, struct mc_slice_op, transport_link)->task == task) {
            mc_list_del(at);
            mc_list_push_back(taken, at);
        }
    }
}

void mc_slot_cancel_waiting(struct mc_segment_slot *slot, struct mc_transfer_task *task) {
    struct mc_list mine;
    mc_list_init(&mine);
    pthread_mutex_lock(&slot->lock);
    take_of_task(&slot->waiting, task, &mine);
    take_of_task(&slot->fetching, task, &mine);
    pthread_mutex_unlock(&slot->lock);
    while (!mc_list_empty(&mine)) {
        struct mc_slice_op *slice = mc_container_of(mine.next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        mc_slice_end(slice, atomic_load_explicit(&task->cancel, memory_order_relaxed));
    }
}
