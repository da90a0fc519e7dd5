/* What the backends of the tier share. See tier/common.h. */
#include "tier/common.h"

#include <sys/statvfs.h>

/* ---- rings ---- */

void mc_tier_rings_init(struct mc_tier_rings *r, unsigned depth) {
    *r = (struct mc_tier_rings){0};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->free, NULL);
    for (; r->free_count < MC_TIER_RINGS; r->free_count++) {
        /* the depth is right, and a kernel without io_uring is no failure */
        MC_ASSERT(mc_file_ring_create(depth, &r->rings[r->free_count]) == MC_OK);
    }
}

void mc_tier_rings_fini(struct mc_tier_rings *r) {
    MC_ASSERT(r->free_count == MC_TIER_RINGS);
    for (unsigned i = 0; i < MC_TIER_RINGS; i++) {
        mc_file_ring_destroy(r->rings[i]);
    }
    pthread_cond_destroy(&r->free);
    pthread_mutex_destroy(&r->lock);
}

void mc_tier_rings_use(struct mc_tier_rings *r, void *memory, size_t bytes) {
    pthread_mutex_lock(&r->lock);
    r->memory = memory;
    r->bytes = bytes;
    pthread_mutex_unlock(&r->lock);
    mc_tier_rings_give(r, mc_tier_rings_take(r)); /* the first one now, and not in a read */
}

struct mc_file_ring *mc_tier_rings_take(struct mc_tier_rings *r) {
    pthread_mutex_lock(&r->lock);
    while (r->free_count == 0) {
        pthread_cond_wait(&r->free, &r->lock);
    }
    struct mc_file_ring *ring = r->rings[--r->free_count];
    void *memory = NULL; /* registering the first rings only, as many as are used at once */
    if (r->memory != NULL && !mc_file_ring_has_memory(ring)) {
        memory = r->memory;
    }
    pthread_mutex_unlock(&r->lock);
    if (memory != NULL) {
        (void)mc_file_ring_register(ring, memory, r->bytes);
    }
    return ring;
}

void mc_tier_rings_give(struct mc_tier_rings *r, struct mc_file_ring *ring) {
    pthread_mutex_lock(&r->lock);
    r->rings[r->free_count++] = ring;
    pthread_cond_signal(&r->free);
    pthread_mutex_unlock(&r->lock);
}

/* ---- order ---- */

void mc_tier_order_init(struct mc_tier_order *order, enum mc_tier_eviction eviction) {
    static const char *const policies[] = {
        [MC_TIER_EVICT_FIFO] = "lru", [MC_TIER_EVICT_LRU] = "lru", [MC_TIER_EVICT_OWN] = "own"};
    *order = (struct mc_tier_order){0};
    if (eviction != MC_TIER_EVICT_NONE) {
        order->policy = mc_policy_create(policies[eviction], NULL);
        order->reads_count = eviction != MC_TIER_EVICT_FIFO; /* LRU that hears of no reads */
    }
}

void mc_tier_order_fini(struct mc_tier_order *order) {
    if (order->policy != NULL) {
        mc_policy_destroy(order->policy);
    }
}

static void request(struct mc_tier_order *order, enum mc_policy_kind kind, const uint64_t *units,
                    size_t count) {
    mc_policy_request(
        order->policy,
        &(struct mc_policy_request){
            .kind = kind, .keys = units, .count = count, .now_ms = mc_now_ms(mc_clock_system())});
}

void mc_tier_order_stored(struct mc_tier_order *order, const uint64_t *units, size_t count) {
    if (order->policy != NULL && count > 0) {
        request(order, MC_POLICY_STORE, units, count);
    }
}

void mc_tier_order_read(struct mc_tier_order *order, const uint64_t *units, size_t count) {
    if (order->reads_count && count > 0) {
        request(order, MC_POLICY_READ, units, count);
    }
}

void mc_tier_order_removed(struct mc_tier_order *order, uint64_t unit) {
    if (order->policy != NULL) {
        mc_policy_remove(order->policy, unit);
    }
}

bool mc_tier_order_victim(struct mc_tier_order *order, uint64_t *unit) {
    return order->policy != NULL && mc_policy_victim(order->policy, unit);
}

/* ---- lost keys ---- */

void mc_tier_lost_add(struct mc_buf *lost, struct mc_str key) {
    uint32_t len = (uint32_t)key.len;
    mc_buf_append(lost, &len, sizeof(len));
    mc_buf_append(lost, key.ptr, key.len);
}

size_t mc_tier_lost_count(const struct mc_buf *lost) {
    size_t count = 0;
    for (size_t at = 0; at < lost->len; count++) {
        uint32_t len;
        memcpy(&len, lost->data + at, sizeof(len));
        at += sizeof(len) + len;
    }
    return count;
}

void mc_tier_lost_tell(const struct mc_tier_config *config, const struct mc_buf *lost) {
    for (size_t at = 0; config->lost != NULL && at < lost->len;) {
        uint32_t len;
        memcpy(&len, lost->data + at, sizeof(len));
        at += sizeof(len);
        config->lost(config->lost_ctx, (struct mc_str){lost->data + at, len});
        at += len;
    }
}

/* ---- the disk ---- */

uint64_t mc_tier_disk_capacity(const char *path, uint64_t used_bytes) {
    struct statvfs disk;
    if (statvfs(path, &disk) != 0) {
        return UINT64_MAX;
    }
    return ((uint64_t)disk.f_bavail * disk.f_frsize + used_bytes) / 10 * 9;
}

bool mc_tier_disk_has(const char *path, uint64_t bytes) {
    struct statvfs disk;
    return statvfs(path, &disk) != 0 || (uint64_t)disk.f_bavail * disk.f_frsize > bytes;
}
