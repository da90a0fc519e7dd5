/*
 * Registered memory: a sorted array of disjoint ranges under a read-write lock.
 *
 * Every incoming request asks for the range that holds its bytes, so finding is a binary search
 * under the read lock and one atomic add; registering, which is rare, moves the array's tail. A
 * range that is being unregistered first leaves the array (no new users), then waits until its last
 * user has gone: bit 31 of `users` says that somebody waits.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"

#define USERS_DRAINING        0x80000000u
#define DESCRIPTOR_FIXED      1024        /* bytes of descriptor JSON apart from buffers */
#define DESCRIPTOR_PER_BUFFER 120         /* and for each, apart from its location */
#define DESCRIPTOR_PER_KEY    12          /* and for each key of a NIC */
#define ALLOC_STAGING         0x80000000u /* beside the public flags */

void mc_memory_init(struct mc_engine *engine) {
    pthread_rwlock_init(&engine->memory_lock, NULL);
    pthread_mutex_init(&engine->drain_lock, NULL);
    pthread_cond_init(&engine->drained, NULL);
    pthread_mutex_init(&engine->descriptor_lock, NULL);
    atomic_store_explicit(&engine->memory_generation, 1, memory_order_relaxed);
    engine->descriptor_estimate = DESCRIPTOR_FIXED;
}

bool mc_name_ok(const char *name, size_t size) {
    size_t len = name == NULL ? 0 : strnlen(name, size);
    if (len == 0 || len >= size) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (name[i] < 0x20 || name[i] > 0x7e) {
            return false;
        }
    }
    return true;
}

/* ---- finding ---- */

/* Index of the first range that ends behind addr; range_count when none. */
static size_t lower_bound_locked(const struct mc_engine *engine, uint64_t addr) {
    size_t low = 0, high = engine->range_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        const struct mc_memory *m = &engine->ranges[mid]->base;
        if (m->addr + m->length > addr) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

enum want { WANT_ANY, WANT_REMOTE, WANT_REMOTE_DEVICE };

static bool is_wanted(const struct mc_memory *m, enum want want) {
    return want == WANT_ANY || (m->remote && m->on_device == (want == WANT_REMOTE_DEVICE));
}

static struct mc_memory *acquire(struct mc_engine *engine, uint64_t addr, uint64_t length,
                                 enum want want) {
    struct mc_memory *found = NULL;
    pthread_rwlock_rdlock(&engine->memory_lock);
    size_t i = lower_bound_locked(engine, addr);
    if (i < engine->range_count) {
        struct mc_memory *m = &engine->ranges[i]->base;
        if (mc_range_inside(addr, length, m->addr, m->length) && is_wanted(m, want)) {
            atomic_fetch_add_explicit(&m->users, 1, memory_order_relaxed);
            found = m;
        }
    }
    pthread_rwlock_unlock(&engine->memory_lock);
    return found;
}

struct mc_memory *mc_memory_acquire(struct mc_engine *engine, uint64_t addr, uint64_t length) {
    return acquire(engine, addr, length, WANT_REMOTE);
}

struct mc_memory *mc_memory_acquire_any(struct mc_engine *engine, uint64_t addr, uint64_t length) {
    return acquire(engine, addr, length, WANT_ANY);
}

struct mc_memory *mc_memory_acquire_device(struct mc_engine *engine, uint64_t addr,
                                           uint64_t length) {
    return acquire(engine, addr, length, WANT_REMOTE_DEVICE);
}

void mc_memory_release(struct mc_memory *memory) {
    struct mc_engine *engine = mc_container_of(memory, struct mc_memory_entry, base)->engine;
    /* Release: our accesses to the range come before the waiter's return. The entry may be freed
     * from here on. */
    uint32_t old = atomic_fetch_sub_explicit(&memory->users, 1, memory_order_acq_rel);
    if (old == (USERS_DRAINING | 1)) {
        pthread_mutex_lock(&engine->drain_lock);
        pthread_cond_broadcast(&engine->drained);
        pthread_mutex_unlock(&engine->drain_lock);
    }
}

static void drain(struct mc_engine *engine, struct mc_memory *memory) {
    atomic_fetch_or_explicit(&memory->users, USERS_DRAINING, memory_order_acq_rel);
    pthread_mutex_lock(&engine->drain_lock);
    while (atomic_load_explicit(&memory->users, memory_order_acquire) != USERS_DRAINING) {
        pthread_cond_wait(&engine->drained, &engine->drain_lock);
    }
    pthread_mutex_unlock(&engine->drain_lock);
}

/* ---- the same bytes elsewhere ---- */

static struct mc_memory_twin *twin_create(const struct mc_memory_entry *entry) {
    const struct mc_pages *pages = &entry->pages;
    void *bytes = mmap(NULL, pages->bytes, PROT_READ, MAP_SHARED, pages->fd, 0);
    if (bytes == MAP_FAILED) {
        mc_warn_limited("memory cannot be mapped a second time: length=%zu errno=%d", pages->bytes,
                        errno);
        return NULL;
    }
    (void)madvise(bytes, pages->bytes, MADV_HUGEPAGE); /* a hint, as of the memory itself */
    struct mc_memory_twin *twin = mc_alloc(sizeof(*twin));
    *twin = (struct mc_memory_twin){.bytes = bytes, .length = pages->bytes, .users = 1};
    return twin;
}

struct mc_memory_twin *mc_memory_twin_acquire(struct mc_memory *memory) {
    struct mc_memory_entry *entry = mc_container_of(memory, struct mc_memory_entry, base);
    if (!entry->allocated) {
        return NULL;
    }
    pthread_mutex_lock(&entry->engine->drain_lock);
    entry->twin = entry->twin != NULL ? entry->twin : twin_create(entry);
    struct mc_memory_twin *twin = entry->twin;
    if (twin != NULL) {
        atomic_fetch_add_explicit(&twin->users, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&entry->engine->drain_lock);
    return twin;
}

void mc_memory_twin_release(struct mc_memory_twin *twin) {
    /* What its users read comes before the last one takes it down. */
    if (atomic_fetch_sub_explicit(&twin->users, 1, memory_order_acq_rel) == 1) {
        munmap((void *)(uintptr_t)twin->bytes, twin->length);
        free(twin);
    }
}

/* ---- the own descriptor ---- */

void mc_memory_snapshot(struct mc_engine *engine, struct mc_segment_desc *desc) {
    pthread_rwlock_rdlock(&engine->memory_lock);
    desc->buffers = mc_zalloc((engine->range_count + 1) * sizeof(*desc->buffers));
    desc->buffer_count = 0;
    for (size_t i = 0; i < engine->range_count; i++) {
        const struct mc_memory *m = &engine->ranges[i]->base;
        if (!m->remote) {
            continue;
        }
        struct mc_segment_desc_buffer *b = &desc->buffers[desc->buffer_count++];
        b->addr = m->addr;
        b->length = m->length;
        snprintf(b->location, sizeof(b->location), "%s",
                 m->staging ? MC_LOCATION_STAGING : m->location);
        b->shm_slot = m->shm_slot;
        b->shm_mappable = m->memfd >= 0;
        b->on_device = m->on_device;
    }
    pthread_rwlock_unlock(&engine->memory_lock);
}

static void rebuild_descriptor_locked(struct mc_engine *engine) {
    struct mc_segment_desc desc = {
        .protocol = "tcp",
        .tcp_proto = 1,
        .engine_id = engine->id,
        .pid = getpid(),
        .tls = engine->tls.mode != MC_TLS_OFF,
    };
    memcpy(desc.name, engine->name, sizeof(desc.name));
    memcpy(desc.boot_id, engine->boot_id, sizeof(desc.boot_id));
    mc_segment_desc_timestamp(desc.timestamp);
    mc_memory_snapshot(engine, &desc);
    void *json = mc_segment_desc_json(&desc);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        if (t->ops->describe != NULL) {
            t->ops->describe(t, json);
        }
    }
    mc_buf_clear(&engine->descriptor_tcp);
    (void)mc_segment_desc_print_as(json, "tcp", &engine->descriptor_tcp);
    mc_buf_clear(&engine->descriptor);
    mc_segment_desc_finish(json, &engine->descriptor);
    mc_segment_desc_free(&desc);
}

static void refresh_descriptor_locked(struct mc_engine *engine) {
    uint64_t generation = atomic_load_explicit(&engine->memory_generation, memory_order_acquire);
    if (engine->descriptor_generation != generation) {
        rebuild_descriptor_locked(engine);
        engine->descriptor_generation = generation;
    }
}

void mc_engine_describe(struct mc_engine *engine, struct mc_buf *out) {
    pthread_mutex_lock(&engine->descriptor_lock);
    refresh_descriptor_locked(engine);
    mc_buf_append(out, engine->descriptor.data, engine->descriptor.len);
    pthread_mutex_unlock(&engine->descriptor_lock);
}

void mc_engine_describe_to(struct mc_engine *engine, struct mc_str peer, struct mc_buf *out) {
    pthread_mutex_lock(&engine->descriptor_lock);
    refresh_descriptor_locked(engine);
    bool tcp = engine->descriptor_tcp.len > 0 && mc_segment_desc_wants_tcp(peer);
    const struct mc_buf *text = tcp ? &engine->descriptor_tcp : &engine->descriptor;
    mc_buf_append(out, text->data, text->len);
    pthread_mutex_unlock(&engine->descriptor_lock);
}

/* ---- device memory ---- */

/* The runtime knows, whatever the caller called the location; a location of a device is kept, for
 * it is what policies and peers' matrices speak of. */
void mc_engine_notice_devices(struct mc_engine *engine) {
    if (!atomic_load_explicit(&engine->has_devices, memory_order_relaxed) && mc_device_present()) {
        atomic_store_explicit(&engine->has_devices, true, memory_order_relaxed);
    }
}

static void find_device(struct mc_memory *m) {
    m->on_device = mc_device_present() && mc_device_find(m->addr, &m->device);
    if (m->on_device && !mc_device_is_location(m->location)) {
        mc_device_location(m->device, m->location, sizeof(m->location));
    }
}

bool mc_memory_find_device(struct mc_engine *engine, uint64_t addr, uint64_t length,
                           struct mc_device *device) {
    struct mc_memory *m = mc_memory_acquire_any(engine, addr, length);
    if (m == NULL) { /* not registered: ask */
        return mc_device_find(addr, device);
    }
    bool found = m->on_device;
    *device = m->device;
    mc_memory_release(m);
    return found;
}

/* ---- registering ---- */

static uint64_t estimate(const struct mc_engine *engine, const struct mc_memory *m) {
    uint64_t bytes = DESCRIPTOR_PER_BUFFER + strlen(m->location);
    for (unsigned i = 0; i < engine->transport_count; i++) {
        if (engine->transports[i]->ops->handshake != NULL) { /* it names two keys a rail */
            bytes += DESCRIPTOR_PER_KEY * 2 * engine->dispatch[i].rail_count;
        }
    }
    return m->remote ? bytes : 0;
}

static enum mc_status insert_locked(struct mc_engine *engine, struct mc_memory_entry *entry) {
    const struct mc_memory *m = &entry->base;
    size_t at = lower_bound_locked(engine, m->addr);
    if (at < engine->range_count && engine->ranges[at]->base.addr < m->addr + m->length) {
        return MC_ERR_OVERLAP;
    }
    uint64_t bytes = engine->descriptor_estimate + estimate(engine, m);
    if (engine->range_count >= MC_SEGMENT_BUFFERS_MAX ||
        bytes > mc_meta_limits(engine->meta)->max_frame_bytes) {
        mc_error("too many registered buffers count=%zu descriptor_bytes=%llu "
                 "raise=MC_HANDSHAKE_MAX_LENGTH",
                 engine->range_count, (unsigned long long)bytes);
        return MC_ERR_LIMIT;
    }
    if (engine->range_count == engine->range_cap) {
        engine->range_cap = engine->range_cap == 0 ? 64 : engine->range_cap * 2;
        engine->ranges = mc_realloc(engine->ranges, engine->range_cap * sizeof(*engine->ranges));
    }
    memmove(&engine->ranges[at + 1], &engine->ranges[at],
            (engine->range_count - at) * sizeof(*engine->ranges));
    engine->ranges[at] = entry;
    engine->range_count++;
    engine->descriptor_estimate = bytes;
    atomic_fetch_add_explicit(&engine->memory_generation, 1, memory_order_release);
    return MC_OK;
}

/* The entry that begins at addr leaves the array; NULL when none of that kind does. */
static struct mc_memory_entry *extract(struct mc_engine *engine, uint64_t addr, bool allocated) {
    struct mc_memory_entry *entry = NULL;
    pthread_rwlock_wrlock(&engine->memory_lock);
    size_t at = lower_bound_locked(engine, addr);
    if (at < engine->range_count && engine->ranges[at]->base.addr == addr &&
        engine->ranges[at]->allocated == allocated) {
        entry = engine->ranges[at];
        engine->range_count--;
        memmove(&engine->ranges[at], &engine->ranges[at + 1],
                (engine->range_count - at) * sizeof(*engine->ranges));
        engine->descriptor_estimate -= estimate(engine, &entry->base);
        atomic_fetch_add_explicit(&engine->memory_generation, 1, memory_order_release);
    }
    pthread_rwlock_unlock(&engine->memory_lock);
    return entry;
}

/* No peer and no own transfer touches the range when this returns. */
static void retire(struct mc_engine *engine, struct mc_memory_entry *entry) {
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        if (t->ops->memory_removed != NULL) {
            t->ops->memory_removed(t, &entry->base);
        }
    }
    drain(engine, &entry->base);
}

static enum mc_status add(struct mc_engine *engine, uint64_t addr, uint64_t length,
                          const char *location, unsigned flags, const struct mc_pages *pages,
                          struct mc_memory_entry **out) {
    struct mc_memory_entry *entry = mc_zalloc(sizeof(*entry));
    entry->engine = engine;
    entry->allocated = pages != NULL;
    entry->pages = pages != NULL ? *pages : (struct mc_pages){0};
    entry->base.addr = addr;
    entry->base.length = length;
    entry->base.remote = (flags & MC_MEMORY_LOCAL_ONLY) == 0;
    entry->base.staging = (flags & ALLOC_STAGING) != 0;
    entry->base.memfd = pages != NULL ? pages->fd : -1;
    entry->base.page_bytes = entry->pages.page_bytes;
    entry->base.shm_slot = -1;
    snprintf(entry->base.location, sizeof(entry->base.location), "%s", location);
    mc_engine_notice_devices(engine);
    if (pages == NULL) {
        find_device(&entry->base);
    }
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        if (t->ops->memory_added != NULL) {
            t->ops->memory_added(t, &entry->base);
        }
    }
    pthread_rwlock_wrlock(&engine->memory_lock);
    enum mc_status status = insert_locked(engine, entry);
    pthread_rwlock_unlock(&engine->memory_lock);
    if (status == MC_OK && entry->base.remote) {
        status = mc_publish_memory(engine);
        if (status != MC_OK) {
            MC_ASSERT(extract(engine, addr, entry->allocated) == entry);
        }
    }
    if (status != MC_OK) {
        retire(engine, entry);
        free(entry);
        return status;
    }
    *out = entry;
    return MC_OK;
}

static bool is_location(const char *text) {
    return mc_name_ok(text, sizeof(((struct mc_memory *)0)->location)) &&
           strcmp(text, MC_LOCATION_STAGING) != 0;
}

MC_PUBLIC enum mc_status mc_memory_register(struct mc_engine *engine, void *addr, size_t length,
                                            const char *location, unsigned flags) {
    uint64_t start = (uint64_t)(uintptr_t)addr;
    location = location == NULL ? "*" : location;
    if (addr == NULL || length == 0 || length > UINT64_MAX - start || !is_location(location) ||
        (flags & ~(unsigned)MC_MEMORY_LOCAL_ONLY) != 0) {
        return MC_INVALID_PARAMS;
    }
    struct mc_memory_entry *entry;
    return add(engine, start, length, location, flags, NULL, &entry);
}

static void remove_entry(struct mc_engine *engine, struct mc_memory_entry *entry) {
    if (entry->base.remote && mc_publish_memory(engine) != MC_OK) {
        mc_warn("the metadata service still shows an unregistered buffer addr=0x%llx",
                (unsigned long long)entry->base.addr);
    }
    retire(engine, entry);
}

MC_PUBLIC enum mc_status mc_memory_unregister(struct mc_engine *engine, void *addr) {
    struct mc_memory_entry *entry = extract(engine, (uint64_t)(uintptr_t)addr, false);
    if (entry == NULL) {
        return MC_ERR_NOT_FOUND;
    }
    remove_entry(engine, entry);
    free(entry);
    return MC_OK;
}

/* ---- memory that same-host peers can map ---- */

static enum mc_status allocate(struct mc_engine *engine, size_t length, const char *location,
                               unsigned flags, void **addr) {
    struct mc_pages pages;
    struct mc_memory_entry *entry = NULL;
    MC_TRY(mc_pages_map(length, engine->options.huge_page_bytes, &pages));
    enum mc_status status =
        add(engine, (uint64_t)(uintptr_t)pages.ptr, length, location, flags, &pages, &entry);
    if (status != MC_OK) {
        mc_pages_unmap(&pages);
        return status;
    }
    entry->populate =
        engine->options.lazy_memory ? NULL : mc_populate_start(&pages, &engine->populated);
    *addr = pages.ptr;
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_memory_alloc(struct mc_engine *engine, size_t length,
                                         const char *location, void **addr) {
    location = location == NULL ? "*" : location;
    if (length == 0 || length > (size_t)INT64_MAX / 2 || !is_location(location)) {
        return MC_INVALID_PARAMS;
    }
    return allocate(engine, length, location, 0, addr);
}

enum mc_status mc_memory_alloc_staging(struct mc_engine *engine, size_t length, void **addr) {
    return allocate(engine, length, "*", ALLOC_STAGING, addr);
}

static void free_allocated(struct mc_memory_entry *entry) {
    if (entry->twin != NULL) {
        mc_memory_twin_release(entry->twin);
    }
    mc_populate_stop(entry->populate);
    mc_pages_unmap(&entry->pages);
    free(entry);
}

MC_PUBLIC enum mc_status mc_memory_free(struct mc_engine *engine, void *addr) {
    struct mc_memory_entry *entry = extract(engine, (uint64_t)(uintptr_t)addr, true);
    if (entry == NULL) {
        return MC_ERR_NOT_FOUND;
    }
    remove_entry(engine, entry);
    free_allocated(entry);
    return MC_OK;
}

/* The transports have stopped: nobody uses a range. */
void mc_memory_destroy(struct mc_engine *engine) {
    for (size_t i = 0; i < engine->range_count; i++) {
        struct mc_memory_entry *entry = engine->ranges[i];
        if (entry->allocated) {
            free_allocated(entry);
        } else {
            free(entry);
        }
    }
    free(engine->ranges);
    mc_buf_free(&engine->descriptor);
    mc_buf_free(&engine->descriptor_tcp);
    pthread_rwlock_destroy(&engine->memory_lock);
    pthread_mutex_destroy(&engine->drain_lock);
    pthread_cond_destroy(&engine->drained);
    pthread_mutex_destroy(&engine->descriptor_lock);
}
