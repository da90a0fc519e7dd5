/*
 * Segments: the table of opened peers and their descriptors.
 *
 * A slot is never freed while the engine lives; its `word` holds id, closed flag and number of
 * users, so that looking a segment up by id is one compare-and-swap and no lock. Ids are not reused
 * until 32768 generations of a slot have passed: a stale id finds another number and is an error.
 * The last user of a closed segment hands it to a worker, which tells the transports and returns
 * the slot.
 *
 * A descriptor is replaced as a whole. When the engine id in it changes, or for peers without one
 * the address of the data port, another process stands behind the name: `incarnation` moves,
 * transports forget the old one, and slices that were first sent to it are not sent to its
 * successor, whose memory is not what their addresses meant.
 */
#include <stdio.h>

#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"
#include "wire/file_segment.h"

#define NO_FETCH_AFTER_FAILURE_NS (1 * MC_SEC)

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- users ---- */

struct mc_segment_slot *mc_slot_acquire(struct mc_engine *engine, mc_segment_id id) {
    if (id < 0) {
        return NULL;
    }
    struct mc_segment_slot *slot =
        atomic_load_explicit(&engine->slots[id % MC_SEGMENTS_MAX], memory_order_acquire);
    if (slot == NULL) {
        return NULL;
    }
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    do {
        if (word >> 32 != (uint32_t)id || (word & MC_SEGMENT_CLOSED) != 0) {
            return NULL;
        }
    } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, word + 1,
                                                    memory_order_acquire, memory_order_relaxed));
    return slot;
}

void mc_slot_release(struct mc_segment_slot *slot) {
    struct mc_engine *engine = slot->base.engine;
    uint64_t old = atomic_fetch_sub_explicit(&slot->word, 1, memory_order_acq_rel);
    if ((uint32_t)old == (MC_SEGMENT_CLOSED | 1)) {
        mc_workers_submit(engine->workers, &slot->reclaim_job);
    }
}

static void forget(struct mc_segment_slot *slot) {
    struct mc_engine *engine = slot->base.engine;
    for (unsigned i = 0; i < engine->transport_count; i++) {
        if (engine->transports[i]->ops->forget != NULL) {
            engine->transports[i]->ops->forget(engine->transports[i], &slot->base);
        }
    }
}

/* Nobody uses the segment any more. */
static void close_transports(struct mc_segment_slot *slot) {
    struct mc_engine *engine = slot->base.engine;
    forget(slot);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        if (engine->transports[i]->ops->close != NULL) {
            engine->transports[i]->ops->close(engine->transports[i], &slot->base);
        }
    }
}

/* No slice is in flight any more. */
static void free_links(struct mc_segment_slot *slot) {
    for (unsigned i = 0; i < MC_TRANSPORT_MAX; i++) {
        free(atomic_exchange_explicit(&slot->links[i], NULL, memory_order_acq_rel));
    }
}

static void reclaim(struct mc_job *job) {
    struct mc_segment_slot *slot = mc_container_of(job, struct mc_segment_slot, reclaim_job);
    struct mc_engine *engine = slot->base.engine;
    close_transports(slot);
    mc_peer_desc_put(slot->desc);
    slot->desc = NULL;
    free_links(slot);
    pthread_mutex_lock(&engine->table_lock);
    engine->free_slots[engine->free_count++] = (uint32_t)(slot->base.id % MC_SEGMENTS_MAX);
    pthread_mutex_unlock(&engine->table_lock);
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
    }
    desc->rdma = wire->rdma;
    wire->rdma = NULL;
    return desc;
}

static enum mc_status fetch(struct mc_engine *engine, const char *name, uint64_t deadline_ns,
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

static void tell_open(struct mc_segment_slot *slot, const struct mc_peer_desc *desc) {
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
        forget(slot);
    }
    tell_open(slot, desc);
    mc_peer_desc_put(desc);
    mc_peer_desc_put(old);
}

enum mc_status mc_slot_refresh(struct mc_segment_slot *slot, uint64_t deadline_ns) {
    struct mc_engine *engine = slot->base.engine;
    struct mc_peer_desc *desc = NULL;
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&slot->refresh_lock);
    if (slot->base.id == MC_LOCAL_SEGMENT) {
        uint64_t generation =
            atomic_load_explicit(&engine->memory_generation, memory_order_acquire);
        if (slot->desc_generation != generation) {
            slot->desc_generation = generation;
            install_desc(slot, describe_self(engine));
        }
    } else {
        status = fetch(engine, slot->name, deadline_ns, &desc);
        if (status == MC_OK) {
            install_desc(slot, desc);
        } else {
            atomic_store_explicit(&slot->refresh_failed_ns, now_ns(), memory_order_relaxed);
        }
    }
    pthread_mutex_unlock(&slot->refresh_lock);
    return status;
}

static uint64_t fetch_deadline(const struct mc_engine *engine) {
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

static void run_refresh(struct mc_job *job) {
    struct mc_segment_slot *slot = mc_container_of(job, struct mc_segment_slot, refresh_job);
    while (begin_fetch(slot)) {
        enum mc_status status = mc_slot_refresh(slot, fetch_deadline(slot->base.engine));
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
        atomic_fetch_add_explicit(&slot->word, 1, memory_order_relaxed);
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

/* ---- opening and closing ---- */

static void slot_init(struct mc_engine *engine, struct mc_segment_slot *slot) {
    slot->base.engine = engine;
    pthread_mutex_init(&slot->lock, NULL);
    pthread_mutex_init(&slot->refresh_lock, NULL);
    mc_list_init(&slot->waiting);
    mc_list_init(&slot->fetching);
    mc_list_init(&slot->by_name);
    slot->refresh_job.run = run_refresh;
    slot->reclaim_job.run = reclaim;
}

static void slot_start(struct mc_segment_slot *slot, mc_segment_id id, const char *name,
                       struct mc_peer_desc *desc) {
    slot->base.id = id;
    memset(slot->base.transport_state, 0, sizeof(slot->base.transport_state));
    snprintf(slot->name, sizeof(slot->name), "%s", name);
    slot->desc = desc;
    slot->opens = 1;
    atomic_store_explicit(&slot->stale, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->incarnation, 1, memory_order_relaxed);
    atomic_store_explicit(&slot->refresh_failed_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->word, (uint64_t)(uint32_t)id << 32, memory_order_release);
}

void mc_segments_init(struct mc_engine *engine) {
    pthread_mutex_init(&engine->table_lock, NULL);
    engine->slots = mc_zalloc(MC_SEGMENTS_MAX * sizeof(*engine->slots));
    engine->free_slots = mc_alloc(MC_SEGMENTS_MAX * sizeof(*engine->free_slots));
    for (size_t i = 0; i < MC_SEGMENT_BUCKETS; i++) {
        mc_list_init(&engine->buckets[i]);
    }
    struct mc_segment_slot *local = mc_zalloc(sizeof(*local));
    slot_init(engine, local);
    slot_start(local, MC_LOCAL_SEGMENT, engine->name, NULL);
    atomic_store_explicit(&engine->slots[0], local, memory_order_release);
    engine->slot_count = 1;
}

/* No transfers, no workers; transports are still there. */
void mc_segments_destroy(struct mc_engine *engine) {
    for (uint32_t i = 0; i < engine->slot_count; i++) {
        struct mc_segment_slot *slot =
            atomic_load_explicit(&engine->slots[i], memory_order_relaxed);
        if (slot->desc != NULL) {
            close_transports(slot);
            mc_peer_desc_put(slot->desc);
        }
        free_links(slot);
        pthread_mutex_destroy(&slot->lock);
        pthread_mutex_destroy(&slot->refresh_lock);
        free(slot);
    }
    free(engine->slots);
    free(engine->free_slots);
    pthread_mutex_destroy(&engine->table_lock);
}

static struct mc_list *bucket_of(struct mc_engine *engine, const char *name) {
    return &engine->buckets[mc_hash64(name, strlen(name), 0) % MC_SEGMENT_BUCKETS];
}

/* Table lock held. Counts an opening. */
static bool find_by_name_locked(struct mc_engine *engine, const char *name, mc_segment_id *id) {
    struct mc_list *bucket = bucket_of(engine, name);
    for (struct mc_list *at = bucket->next; at != bucket; at = at->next) {
        struct mc_segment_slot *slot = mc_container_of(at, struct mc_segment_slot, by_name);
        if (strcmp(slot->name, name) == 0) {
            slot->opens++;
            *id = slot->base.id;
            return true;
        }
    }
    return false;
}

/* Table lock held. NULL when MC_SEGMENTS_MAX are open. */
static struct mc_segment_slot *new_slot_locked(struct mc_engine *engine, mc_segment_id *id) {
    if (engine->free_count > 0) {
        struct mc_segment_slot *slot = atomic_load_explicit(
            &engine->slots[engine->free_slots[--engine->free_count]], memory_order_relaxed);
        *id = slot->base.id <= INT32_MAX - MC_SEGMENTS_MAX ? slot->base.id + MC_SEGMENTS_MAX
                                                           : slot->base.id % MC_SEGMENTS_MAX;
        return slot;
    }
    if (engine->slot_count == MC_SEGMENTS_MAX) {
        return NULL;
    }
    struct mc_segment_slot *slot = mc_zalloc(sizeof(*slot));
    slot_init(engine, slot);
    *id = (mc_segment_id)engine->slot_count;
    atomic_store_explicit(&engine->slots[engine->slot_count++], slot, memory_order_release);
    return slot;
}

/* Consumes desc. */
static enum mc_status insert(struct mc_engine *engine, const char *name, struct mc_peer_desc *desc,
                             mc_segment_id *out) {
    mc_segment_id id = 0;
    pthread_mutex_lock(&engine->table_lock);
    if (find_by_name_locked(engine, name, &id)) { /* another thread was faster */
        pthread_mutex_unlock(&engine->table_lock);
        mc_peer_desc_put(desc);
        *out = id;
        return MC_OK;
    }
    struct mc_segment_slot *slot = new_slot_locked(engine, &id);
    if (slot == NULL) {
        pthread_mutex_unlock(&engine->table_lock);
        mc_peer_desc_put(desc);
        mc_error("too many open segments limit=%d", MC_SEGMENTS_MAX - 1);
        return MC_ERR_LIMIT;
    }
    slot_start(slot, id, name, desc);
    atomic_fetch_add_explicit(&slot->word, 1, memory_order_relaxed);
    mc_list_push_back(bucket_of(engine, name), &slot->by_name);
    pthread_mutex_unlock(&engine->table_lock);

    pthread_mutex_lock(&slot->refresh_lock);
    struct mc_peer_desc *current = mc_segment_desc(&slot->base);
    tell_open(slot, current);
    mc_peer_desc_put(current);
    pthread_mutex_unlock(&slot->refresh_lock);
    mc_slot_release(slot);
    *out = id;
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_segment_open(struct mc_engine *engine, const char *name,
                                         mc_segment_id *segment) {
    struct mc_peer_desc *desc = NULL;
    if (!mc_name_ok(name, MC_SEGMENT_NAME_MAX)) {
        return MC_INVALID_PARAMS;
    }
    if (strcmp(name, engine->name) == 0) {
        *segment = MC_LOCAL_SEGMENT;
        return MC_OK;
    }
    pthread_mutex_lock(&engine->table_lock);
    bool known = find_by_name_locked(engine, name, segment);
    pthread_mutex_unlock(&engine->table_lock);
    if (known) {
        return MC_OK;
    }
    MC_TRY(fetch(engine, name, fetch_deadline(engine), &desc));
    if (desc->files == NULL &&
        mc_uuid_eq(desc->engine_id, engine->id)) { /* ourselves under another name */
        mc_peer_desc_put(desc);
        *segment = MC_LOCAL_SEGMENT;
        return MC_OK;
    }
    return insert(engine, name, desc, segment);
}

MC_PUBLIC enum mc_status mc_segment_close(struct mc_engine *engine, mc_segment_id segment) {
    if (segment == MC_LOCAL_SEGMENT) {
        return MC_OK;
    }
    struct mc_segment_slot *slot = mc_slot_acquire(engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&engine->table_lock);
    if (slot->opens == 0) {
        status = MC_SEGMENT_NOT_FOUND;
    } else if (--slot->opens == 0) {
        mc_list_del(&slot->by_name);
        atomic_fetch_or_explicit(&slot->word, MC_SEGMENT_CLOSED, memory_order_relaxed);
    }
    pthread_mutex_unlock(&engine->table_lock);
    mc_slot_release(slot);
    return status;
}

/* ---- questions about a segment ---- */

MC_PUBLIC enum mc_status mc_segment_refresh(struct mc_engine *engine, mc_segment_id segment) {
    struct mc_segment_slot *slot = mc_slot_acquire(engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    enum mc_status status = mc_slot_refresh(slot, fetch_deadline(engine));
    mc_slot_release(slot);
    return status;
}

MC_PUBLIC enum mc_status mc_segment_buffers(struct mc_engine *engine, mc_segment_id segment,
                                            struct mc_buffer_info *buffers, size_t capacity,
                                            size_t *count) {
    struct mc_segment_slot *slot = mc_slot_acquire(engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    enum mc_status status = MC_OK;
    if (segment == MC_LOCAL_SEGMENT) {
        status = mc_slot_refresh(slot, MC_NO_DEADLINE); /* asks nobody */
    }
    if (status == MC_OK) {
        struct mc_peer_desc *desc = mc_segment_desc(&slot->base);
        for (size_t i = 0; i < desc->buffer_count && i < capacity; i++) {
            buffers[i].addr = desc->buffers[i].addr;
            buffers[i].length = desc->buffers[i].length;
            memcpy(buffers[i].location, desc->buffers[i].location, sizeof(buffers[i].location));
        }
        *count = desc->buffer_count;
        mc_peer_desc_put(desc);
    }
    mc_slot_release(slot);
    return status;
}

MC_PUBLIC enum mc_status mc_segment_probe(struct mc_engine *engine, mc_segment_id segment,
                                          uint64_t deadline_ns) {
    if (segment == MC_LOCAL_SEGMENT) {
        return MC_OK;
    }
    struct mc_segment_slot *slot = mc_slot_acquire(engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    struct mc_peer_desc *desc = mc_segment_desc(&slot->base);
    enum mc_status status = desc->files != NULL
                                ? MC_OK
                                : mc_handshake_probe(desc->host, desc->rpc_port,
                                                     mc_meta_limits(engine->meta), deadline_ns);
    mc_peer_desc_put(desc);
    mc_slot_release(slot);
    return status;
}

static enum mc_status map_local(struct mc_engine *engine, uint64_t addr, size_t length,
                                const void **ptr) {
    struct mc_memory *memory = mc_memory_acquire_any(engine, addr, length);
    if (memory == NULL) {
        return MC_ERR_NOT_REGISTERED;
    }
    mc_memory_release(memory);
    *ptr = (const void *)(uintptr_t)addr;
    return MC_OK;
}

static enum mc_status map_peer(struct mc_segment_slot *slot, uint64_t addr, size_t length,
                               const void **ptr) {
    struct mc_engine *engine = slot->base.engine;
    struct mc_route route;
    mc_route_open(&route, slot);
    bool covered = mc_route_covers(&route, addr, length);
    mc_route_close(&route);
    if (!covered) {
        MC_TRY(mc_slot_refresh(slot, fetch_deadline(engine)));
        mc_route_open(&route, slot);
        covered = mc_route_covers(&route, addr, length);
        mc_route_close(&route);
    }
    if (!covered) {
        return MC_ERR_NOT_REGISTERED;
    }
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        const void *found = t->ops->map == NULL ? NULL : t->ops->map(t, &slot->base, addr, length);
        if (found != NULL) {
            *ptr = found;
            return MC_OK;
        }
    }
    return MC_NOT_SUPPORTED;
}

MC_PUBLIC enum mc_status mc_segment_map(struct mc_engine *engine, mc_segment_id segment,
                                        uint64_t addr, size_t length, const void **ptr) {
    if (segment == MC_LOCAL_SEGMENT) {
        return map_local(engine, addr, length, ptr);
    }
    struct mc_segment_slot *slot = mc_slot_acquire(engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    enum mc_status status = map_peer(slot, addr, length, ptr);
    mc_slot_release(slot);
    return status;
}

struct mc_segment *mc_engine_segment(struct mc_engine *engine, mc_segment_id id) {
    if (id < 0) {
        return NULL;
    }
    struct mc_segment_slot *slot =
        atomic_load_explicit(&engine->slots[id % MC_SEGMENTS_MAX], memory_order_acquire);
    return slot == NULL ? NULL : &slot->base;
}

/* ---- routes: what can reach the peer ---- */

/* Fetch first, unless that failed just now. */
static bool is_fresh(struct mc_segment_slot *slot) {
    if (atomic_load_explicit(&slot->stale, memory_order_relaxed) == 0 &&
        slot->base.engine->cache_descriptors) {
        return true;
    }
    uint64_t failed = atomic_load_explicit(&slot->refresh_failed_ns, memory_order_relaxed);
    return failed != 0 && now_ns() - failed < NO_FETCH_AFTER_FAILURE_NS;
}

void mc_route_open(struct mc_route *route, struct mc_segment_slot *slot) {
    struct mc_engine *engine = slot->base.engine;
    route->slot = slot;
    route->desc = NULL;
    route->fresh = true;
    if (slot->base.id == MC_LOCAL_SEGMENT) {
        if (engine->local != NULL) {
            for (unsigned i = 0; i < engine->transport_count; i++) {
                route->cost[i] = i == engine->local->index ? 0 : UINT32_MAX;
            }
            return;
        }
        enum mc_status status = mc_slot_refresh(slot, MC_NO_DEADLINE); /* asks nobody */
        MC_ASSERT(status == MC_OK);
    } else {
        route->fresh = is_fresh(slot);
    }
    route->desc = mc_segment_desc(&slot->base);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        route->cost[i] = t->ops->cost(t, &slot->base, route->desc);
    }
}

void mc_route_close(struct mc_route *route) {
    mc_peer_desc_put(route->desc);
    route->desc = NULL;
}

bool mc_route_covers(const struct mc_route *route, uint64_t addr, uint64_t length) {
    /* memcpy inside the engine looks the range up itself, and holds it while it copies. */
    return route->desc == NULL || mc_peer_desc_find(route->desc, addr, length) != NULL;
}

static inline bool can_serve(const struct mc_route *route, const struct mc_slice_op *slice,
                             unsigned i) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *t = engine->transports[i];
    return route->cost[i] != UINT32_MAX && (slice->tried_transports & (1u << i)) == 0 &&
           mc_dispatch_is_up(&engine->dispatch[i]) &&
           (t->ops->serves == NULL || t->ops->serves(t, &route->slot->base, slice));
}

struct mc_transport *mc_route_hinted(const struct mc_route *route, const struct mc_slice_op *slice,
                                     const struct mc_policy_rule *rule, const char *hint) {
    struct mc_engine *engine = route->slot->base.engine;
    for (unsigned i = 0; hint != NULL && i < engine->transport_count; i++) {
        if (strcmp(engine->transports[i]->ops->name, hint) == 0 && can_serve(route, slice, i)) {
            return engine->transports[i];
        }
    }
    return mc_route_choose(route, slice, rule);
}

/* What a rule lists, in its order. */
static struct mc_transport *choose_listed(const struct mc_route *route,
                                          const struct mc_slice_op *slice,
                                          const struct mc_policy_rule *rule) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *paused = NULL;
    for (unsigned n = 0; n < rule->transport_count; n++) {
        for (unsigned i = 0; i < engine->transport_count; i++) {
            if (strcmp(engine->transports[i]->ops->name, rule->transports[n]) != 0 ||
                !can_serve(route, slice, i)) {
                continue;
            }
            if (!mc_dispatch_is_paused(&engine->dispatch[i], route->slot)) {
                return engine->transports[i];
            }
            paused = paused == NULL ? engine->transports[i] : paused;
        }
    }
    return paused;
}

#define CLEARLY_FASTER 2.0 /* what was measured must differ so much to outweigh the cost */
#define COST_NS        1000.0

/* A dearer transport that was lately measured to be much faster than the cheapest. What was not
 * measured lately is taken to be as its cost says: so the cheapest is tried again by itself. */
static struct mc_transport *find_faster(const struct mc_route *route,
                                        const struct mc_slice_op *slice,
                                        struct mc_transport *cheapest) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *best = cheapest;
    uint64_t now = mc_now_ns(engine->clock);
    double best_ns =
        mc_dispatch_predict(&engine->dispatch[cheapest->index], route->slot, slice->length, now);
    if (best_ns < 0) {
        return cheapest;
    }
    best_ns = (best_ns + COST_NS * route->cost[cheapest->index]) / CLEARLY_FASTER;
    for (unsigned i = 0; i < engine->transport_count; i++) {
        double ns =
            i == cheapest->index || !can_serve(route, slice, i)
                ? -1
                : mc_dispatch_predict(&engine->dispatch[i], route->slot, slice->length, now);
        if (ns >= 0 && ns + COST_NS * route->cost[i] < best_ns &&
            !mc_dispatch_is_paused(&engine->dispatch[i], route->slot)) {
            best = engine->transports[i];
            best_ns = ns + COST_NS * route->cost[i];
        }
    }
    return best;
}

struct mc_transport *mc_route_choose(const struct mc_route *route, const struct mc_slice_op *slice,
                                     const struct mc_policy_rule *rule) {
    struct mc_engine *engine = route->slot->base.engine;
    struct mc_transport *best = NULL, *paused = NULL;
    uint32_t best_cost = UINT32_MAX, paused_cost = UINT32_MAX;
    unsigned others = 0; /* that have ever carried anything */
    if (rule != NULL && rule->transport_count > 0) {
        return choose_listed(route, slice, rule);
    }
    for (unsigned i = 0; i < engine->transport_count; i++) {
        others += route->cost[i] != UINT32_MAX && mc_dispatch_was_used(&engine->dispatch[i]);
        if (route->cost[i] >= best_cost || !can_serve(route, slice, i)) {
            continue;
        }
        if (mc_dispatch_is_paused(&engine->dispatch[i], route->slot)) {
            if (route->cost[i] < paused_cost) {
                paused = engine->transports[i];
                paused_cost = route->cost[i];
            }
            continue;
        }
        best = engine->transports[i];
        best_cost = route->cost[i];
    }
    if (best == NULL) {
        return paused; /* a bad way is better than none */
    }
    return others < 2 || engine->policy.fixed_order ? best : find_faster(route, slice, best);
}

/* ---- policy ---- */

static enum mc_locality locality_of(const struct mc_route *route) {
    const struct mc_engine *engine = route->slot->base.engine;
    if (route->slot->base.id == MC_LOCAL_SEGMENT) {
        return MC_SAME_PROCESS;
    }
    return engine->boot_id[0] != '\0' && strcmp(route->desc->boot_id, engine->boot_id) == 0
               ? MC_SAME_HOST
               : MC_REMOTE;
}

const struct mc_policy_rule *mc_route_rule(const struct mc_route *route,
                                           const struct mc_slice_op *whole, uint8_t priority,
                                           uint8_t intent) {
    struct mc_engine *engine = route->slot->base.engine;
    char local[64] = "";
    if (engine->policy.rule_count == 0) {
        return NULL;
    }
    struct mc_policy_question q = {.is_file = route->desc != NULL && route->desc->files != NULL,
                                   .locality = locality_of(route),
                                   .priority = priority,
                                   .intent = intent,
                                   .local_memory = local,
                                   .size = whole->length};
    if (mc_policy_asks_memory(&engine->policy)) {
        struct mc_memory *memory =
            mc_memory_acquire_any(engine, (uint64_t)(uintptr_t)whole->local, whole->length);
        if (memory != NULL) {
            memcpy(local, memory->location, sizeof(local));
            mc_memory_release(memory);
        }
        const struct mc_peer_buffer *remote =
            route->desc == NULL ? NULL
                                : mc_peer_desc_find(route->desc, whole->remote, whole->length);
        q.remote_memory = remote == NULL ? NULL : remote->location;
    }
    return mc_policy_match(&engine->policy, &q);
}
