/*
 * Segments: the table of opened peers and their descriptors.
 *
 * A slot is never freed while the engine lives; its `word` holds id, closed flag and number of
 * users, so that looking a segment up by id is one compare-and-swap and no lock. Ids are not reused
 * until 32768 generations of a slot have passed: a stale id finds another number and is an error.
 * The last user of a closed segment hands it to a worker, which tells the transports and returns
 * the slot.
 *
 * What is known of a peer: descriptor.c. What can reach it: route.c.
 */
#include <stdio.h>

#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"

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

struct mc_segment_slot *mc_slot_share(struct mc_segment_slot *slot) {
    atomic_fetch_add_explicit(&slot->word, 1, memory_order_relaxed);
    return slot;
}

void mc_slot_release(struct mc_segment_slot *slot) {
    struct mc_engine *engine = slot->base.engine;
    uint64_t old = atomic_fetch_sub_explicit(&slot->word, 1, memory_order_acq_rel);
    if ((uint32_t)old == (MC_SEGMENT_CLOSED | 1)) {
        mc_workers_submit(engine->workers, &slot->reclaim_job);
    }
}

void mc_slot_forget(struct mc_segment_slot *slot) {
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
    mc_slot_forget(slot);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        if (engine->transports[i]->ops->close != NULL) {
            engine->transports[i]->ops->close(engine->transports[i], &slot->base);
        }
    }
}

/* No slice is in flight any more. Table lock held, or the table is empty. */
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
    pthread_mutex_lock(&engine->table_lock);
    free_links(slot);
    engine->free_slots[engine->free_count++] = (uint32_t)(slot->base.id % MC_SEGMENTS_MAX);
    pthread_mutex_unlock(&engine->table_lock);
}

/* ---- opening and closing ---- */

static void slot_init(struct mc_engine *engine, struct mc_segment_slot *slot) {
    slot->base.engine = engine;
    pthread_mutex_init(&slot->lock, NULL);
    pthread_mutex_init(&slot->refresh_lock, NULL);
    mc_list_init(&slot->waiting);
    mc_list_init(&slot->fetching);
    mc_list_init(&slot->by_name);
    slot->refresh_job.run = mc_slot_run_refresh;
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
    pthread_mutex_lock(&engine->table_lock);
    uint32_t count = engine->slot_count;
    engine->slot_count = 0; /* a transport may still tell of its rails */
    pthread_mutex_unlock(&engine->table_lock);
    for (uint32_t i = 0; i < count; i++) {
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
    mc_slot_tell_open(slot, current);
    mc_peer_desc_put(current);
    pthread_mutex_unlock(&slot->refresh_lock);
    mc_slot_release(slot);
    *out = id;
    return MC_OK;
}

enum mc_status mc_segment_open_until(struct mc_engine *engine, const char *name,
                                     uint64_t deadline_ns, mc_segment_id *segment) {
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
    MC_TRY(mc_desc_fetch(engine, name, mc_min_u64(deadline_ns, mc_fetch_deadline(engine)), &desc));
    if (desc->files == NULL &&
        mc_uuid_eq(desc->engine_id, engine->id)) { /* ourselves under another name */
        mc_peer_desc_put(desc);
        *segment = MC_LOCAL_SEGMENT;
        return MC_OK;
    }
    return insert(engine, name, desc, segment);
}

MC_PUBLIC enum mc_status mc_segment_open(struct mc_engine *engine, const char *name,
                                         mc_segment_id *segment) {
    return mc_segment_open_until(engine, name, MC_NO_DEADLINE, segment);
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
    enum mc_status status = mc_slot_refresh(slot, mc_fetch_deadline(engine));
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
        *count = 0;
        for (size_t i = 0; i < desc->buffer_count; i++) {
            const struct mc_peer_buffer *b = &desc->buffers[i];
            if (strcmp(b->location, MC_LOCATION_STAGING) == 0) {
                continue;
            }
            if (*count < capacity) {
                struct mc_buffer_info *to = &buffers[*count];
                *to = (struct mc_buffer_info){.addr = b->addr, .length = b->length};
                memcpy(to->location, b->location, sizeof(to->location));
            }
            (*count)++;
        }
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
    bool mappable = !memory->on_device;
    mc_memory_release(memory);
    if (!mappable) {
        return MC_NOT_SUPPORTED;
    }
    *ptr = (const void *)(uintptr_t)addr;
    return MC_OK;
}

static enum mc_status map_peer(struct mc_segment_slot *slot, uint64_t addr, size_t length,
                               uint64_t deadline_ns, const void **ptr) {
    struct mc_engine *engine = slot->base.engine;
    struct mc_route route;
    mc_route_open(&route, slot);
    bool covered = mc_route_covers(&route, addr, length);
    mc_route_close(&route);
    if (!covered) {
        MC_TRY(mc_slot_refresh(slot, mc_min_u64(deadline_ns, mc_fetch_deadline(engine))));
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

enum mc_status mc_segment_map_until(struct mc_engine *engine, mc_segment_id segment, uint64_t addr,
                                    size_t length, uint64_t deadline_ns, const void **ptr) {
    if (segment == MC_LOCAL_SEGMENT) {
        return map_local(engine, addr, length, ptr);
    }
    struct mc_segment_slot *slot = mc_slot_acquire(engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    enum mc_status status = map_peer(slot, addr, length, deadline_ns, ptr);
    mc_slot_release(slot);
    return status;
}

MC_PUBLIC enum mc_status mc_segment_map(struct mc_engine *engine, mc_segment_id segment,
                                        uint64_t addr, size_t length, const void **ptr) {
    return mc_segment_map_until(engine, segment, addr, length, MC_NO_DEADLINE, ptr);
}

struct mc_segment *mc_engine_segment(struct mc_engine *engine, mc_segment_id id) {
    if (id < 0) {
        return NULL;
    }
    struct mc_segment_slot *slot =
        atomic_load_explicit(&engine->slots[id % MC_SEGMENTS_MAX], memory_order_acquire);
    return slot == NULL ? NULL : &slot->base;
}
