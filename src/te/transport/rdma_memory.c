/*
 * Registered memory, for NICs: each range as one region a NIC, or as several where it is larger
 * than a NIC takes at once. Found by binary search under a read lock, as in te/memory.c; regions
 * come and go with the engine's registrations.
 *
 * A range that one NIC refuses (locked-memory limit, no more regions) is not served by RDMA at all:
 * the keys in the descriptor are one a NIC, and a peer may use any.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#include "base/log.h"
#include "base/thread.h"
#include "te/transport/rdma.h"

#define PARALLEL_BYTES (256ull << 20) /* from here on each NIC registers on a thread of its own */
#define CHUNK_ALIGN    (2ull << 20)

struct rdma_range {
    uint64_t addr;
    uint64_t length;
    bool remote;
    uint32_t distance[RDMA_CONTEXTS_MAX];
    uint64_t chunk; /* bytes of every region but the last */
    size_t chunks;
    unsigned contexts;
    struct rdma_region **regions; /* [context * chunks + chunk] */
    uint32_t *lkeys, *rkeys;
};

void rdma_memory_init(struct rdma_memory *memory, struct rdma_transport *t) {
    memory->transport = t;
    pthread_rwlock_init(&memory->lock, NULL);
}

/* ---- registering ---- */

static void destroy_range(struct rdma_memory *memory, struct rdma_range *range) {
    const struct rdma_provider *provider = memory->transport->provider;
    for (size_t i = 0; i < range->contexts * range->chunks; i++) {
        int error = range->regions[i] == NULL ? 0 : provider->region_destroy(range->regions[i]);
        if (error != 0) {
            mc_warn("rdma: a region does not go addr=0x%llx errno=%d",
                    (unsigned long long)range->addr, error);
        }
    }
    free(range->regions);
    free(range->lkeys);
    free(range->rkeys);
    free(range);
}

struct registration { /* of a range with one NIC */
    struct rdma_context *context;
    struct rdma_range *range;
    const struct mc_memory *memory;
    pthread_t thread;
    bool threaded;
    int error;
};

static void *register_one(void *arg) {
    struct registration *r = arg;
    struct rdma_transport *t = r->context->transport;
    struct rdma_range *range = r->range;
    unsigned access =
        (range->remote ? RDMA_ACCESS_REMOTE : 0u) | (t->config.relaxed ? RDMA_ACCESS_RELAXED : 0u);
    for (size_t i = 0; i < range->chunks && r->error == 0; i++) {
        size_t at = r->context->index * range->chunks + i;
        uint64_t offset = i * range->chunk;
        uint64_t length = mc_min_u64(range->chunk, range->length - offset);
        r->error = rdma_region_make(r->context, r->memory, range->addr + offset, length, access,
                                    &range->regions[at], &range->lkeys[at], &range->rkeys[at]);
    }
    return NULL;
}

static bool register_all(struct rdma_transport *t, struct rdma_range *range,
                         const struct mc_memory *m) {
    struct registration work[RDMA_CONTEXTS_MAX];
    bool parallel = range->length >= PARALLEL_BYTES && t->context_count > 1, ok = true;
    for (unsigned i = 0; i < t->context_count; i++) {
        work[i] = (struct registration){.context = t->contexts[i], .range = range, .memory = m};
        work[i].threaded = parallel && mc_thread_start(&work[i].thread, "mc-rdma-reg", register_one,
                                                       &work[i]) == 0;
        if (!work[i].threaded) {
            register_one(&work[i]);
        }
    }
    for (unsigned i = 0; i < t->context_count; i++) {
        if (work[i].threaded) {
            pthread_join(work[i].thread, NULL);
        }
        if (work[i].error != 0) {
            mc_warn("rdma: memory is not registered, other transports serve it: nic=%s addr=0x%llx "
                    "length=%llu location=%s errno=%d%s",
                    t->contexts[i]->name, (unsigned long long)range->addr,
                    (unsigned long long)range->length, m->location, work[i].error,
                    work[i].error == ENOMEM ? " hint=\"ulimit -l\"" : "");
            ok = false;
        }
    }
    return ok;
}

/* The largest region that every NIC takes. */
static uint64_t largest_region(const struct rdma_transport *t) {
    uint64_t bytes = t->config.max_region;
    for (unsigned i = 0; i < t->context_count; i++) {
        if (t->contexts[i]->info.max_region != 0) {
            bytes = mc_min_u64(bytes, t->contexts[i]->info.max_region);
        }
    }
    return bytes > CHUNK_ALIGN ? bytes / CHUNK_ALIGN * CHUNK_ALIGN : bytes;
}

/* ---- finding ---- */

/* Index of the first range that ends behind addr. */
static size_t lower_bound_locked(const struct rdma_memory *memory, uint64_t addr) {
    size_t low = 0, high = memory->count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        const struct rdma_range *r = memory->ranges[mid];
        if (r->addr + r->length > addr) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

static const struct rdma_range *find_locked(const struct rdma_memory *memory, uint64_t addr) {
    size_t i = lower_bound_locked(memory, addr);
    return i < memory->count && memory->ranges[i]->addr <= addr ? memory->ranges[i] : NULL;
}

void rdma_memory_add(struct rdma_memory *memory, const struct mc_memory *m) {
    struct rdma_transport *t = memory->transport;
    struct rdma_range *range = mc_zalloc(sizeof(*range));
    range->addr = m->addr;
    range->length = m->length;
    range->remote = m->remote;
    for (unsigned i = 0; i < t->context_count; i++) {
        range->distance[i] = rdma_topology_distance(t->contexts[i], m->location);
    }
    range->chunk = mc_min_u64(m->length, largest_region(t));
    range->chunks = (size_t)((m->length - 1) / range->chunk + 1);
    range->contexts = t->context_count;
    size_t cells = range->contexts * range->chunks;
    range->regions = mc_zalloc(cells * sizeof(*range->regions));
    range->lkeys = mc_zalloc(cells * sizeof(*range->lkeys));
    range->rkeys = mc_zalloc(cells * sizeof(*range->rkeys));
    if (!register_all(t, range, m)) {
        destroy_range(memory, range);
        return;
    }
    pthread_rwlock_wrlock(&memory->lock);
    size_t at = lower_bound_locked(memory, m->addr);
    bool overlaps = at < memory->count && memory->ranges[at]->addr < m->addr + m->length;
    if (!overlaps) {
        if (memory->count == memory->cap) {
            memory->cap = memory->cap == 0 ? 64 : memory->cap * 2;
            memory->ranges = mc_realloc(memory->ranges, memory->cap * sizeof(memory->ranges[0]));
        }
        memmove(&memory->ranges[at + 1], &memory->ranges[at],
                (memory->count - at) * sizeof(memory->ranges[0]));
        memory->ranges[at] = range;
        memory->count++;
    }
    pthread_rwlock_unlock(&memory->lock);
    if (overlaps) { /* the engine is about to refuse it */
        destroy_range(memory, range);
    }
}

void rdma_memory_remove(struct rdma_memory *memory, const struct mc_memory *m) {
    struct rdma_range *range = NULL;
    pthread_rwlock_wrlock(&memory->lock);
    size_t at = lower_bound_locked(memory, m->addr);
    if (at < memory->count && memory->ranges[at]->addr == m->addr &&
        memory->ranges[at]->length == m->length) {
        range = memory->ranges[at];
        memory->count--;
        memmove(&memory->ranges[at], &memory->ranges[at + 1],
                (memory->count - at) * sizeof(memory->ranges[0]));
    }
    pthread_rwlock_unlock(&memory->lock);
    if (range != NULL) { /* from here on the NIC refuses peers */
        destroy_range(memory, range);
    }
}

bool rdma_memory_key(struct rdma_memory *memory, uint64_t addr, unsigned context, uint32_t *lkey,
                     uint64_t *length) {
    pthread_rwlock_rdlock(&memory->lock);
    const struct rdma_range *range = find_locked(memory, addr);
    if (range != NULL) {
        size_t chunk = (size_t)((addr - range->addr) / range->chunk);
        uint64_t end = mc_min_u64((chunk + 1) * range->chunk, range->length);
        *lkey = range->lkeys[context * range->chunks + chunk];
        *length = end - (addr - range->addr);
    }
    pthread_rwlock_unlock(&memory->lock);
    return range != NULL;
}

uint32_t rdma_memory_distance(struct rdma_memory *memory, uint64_t addr, unsigned context) {
    pthread_rwlock_rdlock(&memory->lock);
    const struct rdma_range *range = find_locked(memory, addr);
    uint32_t distance = range == NULL ? 0 : range->distance[context];
    pthread_rwlock_unlock(&memory->lock);
    return distance;
}

bool rdma_memory_covers(struct rdma_memory *memory, uint64_t addr, uint64_t length) {
    pthread_rwlock_rdlock(&memory->lock);
    const struct rdma_range *range = find_locked(memory, addr);
    bool covers = range != NULL && mc_range_inside(addr, length, range->addr, range->length);
    pthread_rwlock_unlock(&memory->lock);
    return covers;
}

/* ---- the descriptor ---- */

static json_t *keys_json(const struct rdma_range *range, const uint32_t *keys, size_t chunk) {
    json_t *list = json_array();
    for (unsigned c = 0; c < range->contexts; c++) {
        json_array_append_new(list, json_integer(keys[c * range->chunks + chunk]));
    }
    return list;
}

/* The buffer as one entry a chunk; all but the first are named in `joined`. */
static void describe_range(const struct rdma_range *range, json_t *buffer, json_t *out,
                           json_t *joined) {
    for (size_t i = 0; i < range->chunks; i++) {
        uint64_t offset = i * range->chunk;
        json_t *entry = json_copy(buffer);
        json_object_set_new(entry, "addr", json_integer((json_int_t)(range->addr + offset)));
        json_object_set_new(
            entry, "length",
            json_integer((json_int_t)mc_min_u64(range->chunk, range->length - offset)));
        json_object_set_new(entry, "rkey", keys_json(range, range->rkeys, i));
        json_object_set_new(entry, "lkey", keys_json(range, range->lkeys, i));
        json_array_append_new(out, entry);
        if (i > 0) {
            json_array_append_new(joined, json_integer((json_int_t)(range->addr + offset)));
        }
    }
}

void rdma_memory_describe(struct rdma_memory *memory, void *json_object) {
    json_t *root = json_object, *old = json_object_get(root, "buffers");
    json_t *buffers = json_array(), *joined = json_array();
    pthread_rwlock_rdlock(&memory->lock);
    for (size_t i = 0; i < json_array_size(old); i++) {
        json_t *buffer = json_array_get(old, i);
        uint64_t addr = (uint64_t)json_integer_value(json_object_get(buffer, "addr"));
        uint64_t length = (uint64_t)json_integer_value(json_object_get(buffer, "length"));
        const struct rdma_range *range = find_locked(memory, addr);
        if (range != NULL && range->remote && range->addr == addr && range->length == length) {
            describe_range(range, buffer, buffers, joined);
        } else {
            json_array_append(buffers, buffer);
        }
    }
    pthread_rwlock_unlock(&memory->lock);
    json_object_set_new(root, "buffers", buffers);
    json_object_set_new(json_object_get(root, "mooncake_c"), "joined", joined);
}

void rdma_memory_destroy(struct rdma_memory *memory) {
    for (size_t i = 0; i < memory->count; i++) {
        destroy_range(memory, memory->ranges[i]);
    }
    free(memory->ranges);
    pthread_rwlock_destroy(&memory->lock);
}
