/*
 * Segments: ranges of memory of other processes, each with its allocator.
 *
 * The life of a segment: mounted (OK), perhaps GRACEFULLY_UNMOUNTING (readable, nothing new), then
 * UNMOUNTING. From the moment of unmounting its replicas are hidden; every look-up drops the dead
 * replicas of the object that it meets, and the sweep of the tick visits all shards once to drop
 * the others. The struct is freed when the sweep is through and the last extent is free.
 *
 * The same memory may come back while somebody still reads or writes it by an old descriptor: a
 * client that was cut off for longer than its ttl remounts what it has. So a segment that covers
 * bytes of an unmounted one, in the same process, is mounted at once but allocates nothing until
 * the last lease there has ended and the release timeout of puts that were under way has passed.
 * The sweep finds out when that is; until it is through, the worst is assumed.
 */
#include "master/core.h"
#include "master/tenants.h"

#include <stdio.h>

#include "base/log.h"

#define SWEEP_OBJECTS_PER_TICK 32768u
#define NAME_MAX_BYTES         4096u

/* ---- the table ---- */

static struct mc_segment *find_locked(struct mc_master *m, struct mc_uuid id) {
    for (size_t i = 0; i < m->segment_count; i++) {
        if (mc_uuid_eq(m->segments[i]->info.id, id)) {
            return m->segments[i];
        }
    }
    return NULL;
}

static void segment_free(struct mc_segment *s) {
    if (s->metrics) {
        mc_metrics_unregister_range(s->metrics, s, sizeof(*s));
    }
    if (s->allocator) {
        mc_allocator_destroy(s->allocator);
    }
    free((char *)s->info.name.ptr);
    free((char *)s->info.te_endpoint.ptr);
    free((char *)s->info.protocol.ptr);
    free((char *)s->info.host_id.ptr);
    free(s);
}

static struct mc_str own(struct mc_str s) {
    return (struct mc_str){mc_str_dup(s), s.len};
}

/* In no table yet. Metrics are registered and unregistered without segments_lock: a registry that
 * prints itself holds its own lock and asks for ours. */
static struct mc_segment *segment_make(struct mc_master *m, const struct mw_segment *info,
                                       struct mc_uuid client) {
    struct mc_allocator *allocator = mc_allocator_create(info->size, 0);
    if (!allocator) {
        return NULL;
    }
    struct mc_segment *s = mc_zalloc(sizeof(*s));
    s->info = *info;
    s->info.name = own(info->name);
    s->info.te_endpoint = own(info->te_endpoint);
    s->info.protocol = own(info->protocol);
    s->info.host_id = own(info->host_id);
    s->name_hash = mc_hash64(info->name.ptr, info->name.len, 0);
    s->client = client;
    s->allocator = allocator;
    atomic_init(&s->status, MC_SEGMENT_OK);
    s->metrics = m->metrics;
    mc_segment_metrics_register(s);
    return s;
}

static struct mc_str reach(const struct mw_segment *info) {
    return info->te_endpoint.len ? info->te_endpoint : info->name;
}

static bool overlap(const struct mw_segment *a, const struct mw_segment *b) {
    return mc_str_eq(reach(a), reach(b)) && a->base < b->base + b->size &&
           b->base < a->base + a->size;
}

/* ---- unmounting ---- */

/* The segment is in no table any more. Its time is read after its replicas are hidden, so that no
 * lease is granted later than that. */
static void bury_locked(struct mc_master *m, struct mc_segment *s) {
    atomic_store_explicit(&s->status, MC_SEGMENT_UNMOUNTING, memory_order_seq_cst);
    s->unmounted_ms = mc_now_ms(m->clock);
    s->held_objects = s->allocator && mc_allocator_count(s->allocator) > 0;
    s->sweep_left = MC_SHARDS;
    s->retired_as = ++m->retired_total;
    s->next_retired = m->retired;
    m->retired = s;
    atomic_store_explicit(&m->sweep_left, MC_SHARDS, memory_order_relaxed);
}

static void retire_locked(struct mc_call *call, size_t i) {
    struct mc_master *m = call->m;
    struct mc_segment *s = m->segments[i];
    m->segments[i] = m->segments[--m->segment_count];
    bury_locked(m, s);
}

/* ---- disks ---- */

struct mc_segment *mc_segment_disk_make(struct mc_master *m, struct mc_uuid client,
                                        struct mc_str endpoint) {
    char name[64];
    struct mc_segment *s = mc_zalloc(sizeof(*s));
    snprintf(name, sizeof(name), "local-disk-%016llx-%016llx", (unsigned long long)client.hi,
             (unsigned long long)client.lo);
    s->info.id = client;
    s->info.name = own(mc_str_from(name));
    s->info.te_endpoint = own(endpoint);
    s->info.protocol = own(MC_STR(""));
    s->info.host_id = own(MC_STR(""));
    s->name_hash = mc_hash64(name, strlen(name), 0);
    s->client = client;
    atomic_init(&s->status, MC_SEGMENT_OK);
    pthread_rwlock_wrlock(&m->segments_lock);
    s->serial = ++m->next_serial;
    pthread_rwlock_unlock(&m->segments_lock);
    return s;
}

void mc_segment_disk_retire(struct mc_call *call, struct mc_segment *s) {
    pthread_rwlock_wrlock(&call->m->segments_lock);
    bury_locked(call->m, s);
    pthread_rwlock_unlock(&call->m->segments_lock);
}

void mc_segment_disk_free(struct mc_segment *s) {
    segment_free(s);
}

static bool retire_id_locked(struct mc_call *call, struct mc_uuid id) {
    for (size_t i = 0; i < call->m->segment_count; i++) {
        if (mc_uuid_eq(call->m->segments[i]->info.id, id)) {
            retire_locked(call, i);
            return true;
        }
    }
    return false;
}

enum mc_status mc_segment_unmount(struct mc_call *call, struct mc_uuid id, struct mc_uuid client) {
    struct mc_master *m = call->m;
    enum mc_status status = MC_OK;
    pthread_rwlock_wrlock(&m->segments_lock);
    struct mc_segment *s = find_locked(m, id);
    if (s && !mc_uuid_eq(s->client, client)) {
        status = MC_INVALID_PARAMS;
    } else if (s) {
        retire_id_locked(call, id);
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return status;
}

enum mc_status mc_segment_unmount_gracefully(struct mc_call *call, struct mc_uuid id,
                                             struct mc_uuid client, uint64_t grace_ms) {
    struct mc_master *m = call->m;
    enum mc_status status = MC_OK;
    uint64_t at = call->now_ms + mc_min_u64(grace_ms, UINT64_MAX - call->now_ms);
    pthread_rwlock_wrlock(&m->segments_lock);
    struct mc_segment *s = find_locked(m, id);
    if (s && !mc_uuid_eq(s->client, client)) {
        status = MC_INVALID_PARAMS;
    } else if (s) {
        s->unmount_at_ms = s->unmount_at_ms ? mc_min_u64(s->unmount_at_ms, at) : mc_max_u64(at, 1);
        atomic_store_explicit(&s->status, MC_SEGMENT_GRACEFULLY_UNMOUNTING, memory_order_relaxed);
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return status;
}

size_t mc_segments_drop_client(struct mc_call *call, struct mc_uuid client, struct mc_str **names) {
    struct mc_master *m = call->m;
    size_t count = 0;
    pthread_rwlock_wrlock(&m->segments_lock);
    *names = mc_arena_alloc(call->arena, (m->segment_count + 1) * sizeof(**names));
    for (size_t i = 0; i < m->segment_count;) {
        if (mc_uuid_eq(m->segments[i]->client, client)) {
            (*names)[count++] = mc_arena_str(call->arena, m->segments[i]->info.name);
            retire_locked(call, i);
        } else {
            i++;
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return count;
}

/* ---- mounting ---- */

void mc_segment_busy_until(struct mc_segment *s, uint64_t until_ms) {
    uint64_t known = atomic_load_explicit(&s->busy_until_ms, memory_order_relaxed);
    while (known < until_ms &&
           !atomic_compare_exchange_weak_explicit(&s->busy_until_ms, &known, until_ms,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* Until when an unmounted segment's bytes may not be handed out again; see the head of the file.
 * relaxed: the sweep is through when sweep_left, which segments_lock guards, is 0. */
static uint64_t quiet_after(const struct mc_master *m, const struct mc_segment *s) {
    if (!s->held_objects) {
        return 0;
    }
    if (s->sweep_left == 0) {
        return atomic_load_explicit(&s->busy_until_ms, memory_order_relaxed);
    }
    return s->unmounted_ms +
           mc_max_u64(m->config.put_start_release_timeout_ms, m->config.default_kv_lease_ttl_ms);
}

static uint64_t quarantine_locked(const struct mc_master *m, const struct mw_segment *info) {
    uint64_t until = 0;
    for (const struct mc_segment *s = m->retired; s; s = s->next_retired) {
        if (overlap(&s->info, info)) {
            until = mc_max_u64(until, quiet_after(m, s));
        }
    }
    return until;
}

/* A process cannot have two segments over the same bytes. If the other one belongs to another
 * client, that client's process is gone and its address was reused: what it held is gone too. Or it
 * is alive and this mount is a late one of its predecessor: then it is told to mount again. */
static enum mc_status resolve_overlaps_locked(struct mc_call *call, const struct mw_segment *info,
                                              struct mc_uuid client, bool *replaced) {
    struct mc_master *m = call->m;
    for (size_t i = 0; i < m->segment_count;) {
        struct mc_segment *s = m->segments[i];
        if (!overlap(&s->info, info)) {
            i++;
            continue;
        }
        if (mc_uuid_eq(s->client, client)) {
            return MC_INVALID_PARAMS;
        }
        *replaced = true;
        mc_client_must_remount(m, s->client);
        retire_locked(call, i);
    }
    return MC_OK;
}

static void add_locked(struct mc_master *m, struct mc_segment *s) {
    if (m->segment_count == m->segment_cap) {
        m->segment_cap = m->segment_cap ? m->segment_cap * 2 : 8;
        m->segments = mc_realloc(m->segments, m->segment_cap * sizeof(*m->segments));
    }
    s->serial = ++m->next_serial;
    m->segments[m->segment_count++] = s;
}

static bool mounted_already(struct mc_master *m, struct mc_uuid id, struct mc_uuid client) {
    pthread_rwlock_rdlock(&m->segments_lock);
    struct mc_segment *same = find_locked(m, id);
    bool mounted = same && mc_uuid_eq(same->client, client);
    pthread_rwlock_unlock(&m->segments_lock);
    return mounted;
}

enum mc_status mc_segment_mount(struct mc_call *call, const struct mw_segment *info,
                                struct mc_uuid client) {
    struct mc_master *m = call->m;
    if (info->base == 0 || info->size == 0 || info->size > MC_ALLOCATOR_MAX_CAPACITY ||
        info->name.len == 0 || info->name.len > NAME_MAX_BYTES ||
        info->te_endpoint.len > NAME_MAX_BYTES || info->protocol.len > NAME_MAX_BYTES ||
        info->host_id.len > NAME_MAX_BYTES || info->size > UINT64_MAX - info->base) {
        return MC_INVALID_PARAMS;
    }
    if (mounted_already(m, info->id, client)) {
        return MC_OK;
    }
    struct mc_segment *s = segment_make(m, info, client);
    if (!s) {
        return MC_NO_AVAILABLE_HANDLE;
    }
    bool replaced = false;
    pthread_rwlock_wrlock(&m->segments_lock);
    enum mc_status status = find_locked(m, info->id)
                                ? MC_INVALID_PARAMS
                                : resolve_overlaps_locked(call, info, client, &replaced);
    if (status == MC_OK) {
        s->closed_until_ms = quarantine_locked(m, info);
        add_locked(m, s);
    }
    pthread_rwlock_unlock(&m->segments_lock);
    if (replaced) {
        mc_warn("a new client owns the address of an older one, whose segment is unmounted "
                "endpoint=%.*s",
                (int)info->te_endpoint.len, info->te_endpoint.ptr);
    }
    if (status != MC_OK) {
        segment_free(s);
        return mounted_already(m, info->id, client) ? MC_OK
                                                    : status; /* another thread was faster */
    }
    mc_tenants_resize(m);
    mc_info("segment mounted name=%.*s client=%llu-%llu bytes=%llu endpoint=%.*s",
            (int)info->name.len, info->name.ptr, (unsigned long long)client.hi,
            (unsigned long long)client.lo, (unsigned long long)info->size,
            (int)info->te_endpoint.len, info->te_endpoint.ptr);
    return MC_OK;
}

/* ---- questions ---- */

/* Swept and empty: kept only so that its bytes are not handed out again too early. */
static bool cleaned(const struct mc_segment *s) {
    /* acquire: pairs with the release of whoever dropped the last replica */
    return s->sweep_left == 0 &&
           (s->allocator ? mc_allocator_count(s->allocator)
                         : atomic_load_explicit(&s->disk_replicas, memory_order_acquire)) == 0;
}

enum mc_status mc_segment_status_by_name(struct mc_master *m, struct mc_str name, int32_t *status) {
    enum mc_status found = MC_SEGMENT_NOT_FOUND;
    pthread_rwlock_rdlock(&m->segments_lock);
    for (struct mc_segment *s = m->retired; s; s = s->next_retired) {
        if (!cleaned(s) && mc_str_eq(s->info.name, name)) {
            *status = MC_SEGMENT_UNMOUNTING;
            found = MC_OK;
        }
    }
    for (size_t i = 0; i < m->segment_count; i++) {
        if (mc_str_eq(m->segments[i]->info.name, name)) {
            *status = atomic_load_explicit(&m->segments[i]->status, memory_order_relaxed);
            found = MC_OK;
            break;
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return found;
}

enum mc_status mc_segment_status_by_id(struct mc_master *m, struct mc_uuid id, int32_t *status) {
    enum mc_status found = MC_SEGMENT_NOT_FOUND;
    pthread_rwlock_rdlock(&m->segments_lock);
    struct mc_segment *s = find_locked(m, id);
    for (struct mc_segment *r = m->retired; !s && r; r = r->next_retired) {
        s = mc_uuid_eq(r->info.id, id) && !cleaned(r) ? r : NULL;
    }
    if (s) {
        *status = atomic_load_explicit(&s->status, memory_order_relaxed);
        found = MC_OK;
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return found;
}

size_t mc_segments_set_status(struct mc_master *m, struct mc_str name, int from, int to) {
    size_t count = 0;
    pthread_rwlock_wrlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count; i++) {
        struct mc_segment *s = m->segments[i];
        if (mc_str_eq(s->info.name, name)) {
            int expected = from; /* relaxed: writers hold the lock, readers look again */
            atomic_compare_exchange_strong_explicit(&s->status, &expected, to, memory_order_relaxed,
                                                    memory_order_relaxed);
            count++;
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return count;
}

bool mc_client_drained(const struct mc_master *m, struct mc_uuid client) {
    bool some = false, all = true;
    for (size_t i = 0; i < m->segment_count; i++) {
        const struct mc_segment *s = m->segments[i];
        if (mc_uuid_eq(s->client, client)) {
            some = true;
            all =
                all && atomic_load_explicit(&s->status, memory_order_relaxed) == MC_SEGMENT_DRAINED;
        }
    }
    return some && all;
}

uint64_t mc_segments_extents(struct mc_master *m, struct mc_str name) {
    uint64_t extents = 0;
    pthread_rwlock_rdlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count; i++) {
        if (mc_str_eq(m->segments[i]->info.name, name)) {
            extents += mc_allocator_count(m->segments[i]->allocator);
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return extents;
}

/* "10.0.0.1:80" -> "10.0.0.1"; "[fe80::1%eth0]:80" -> "fe80::1%eth0"; a bare IPv6 address stays. */
static struct mc_str without_port(struct mc_str endpoint) {
    const char *colon = endpoint.len ? memchr(endpoint.ptr, ':', endpoint.len) : NULL;
    if (endpoint.len && endpoint.ptr[0] == '[') {
        const char *end = memchr(endpoint.ptr, ']', endpoint.len);
        return end ? (struct mc_str){endpoint.ptr + 1, (size_t)(end - endpoint.ptr - 1)} : endpoint;
    }
    if (!colon || memchr(colon + 1, ':', endpoint.len - (size_t)(colon + 1 - endpoint.ptr))) {
        return endpoint;
    }
    return (struct mc_str){endpoint.ptr, (size_t)(colon - endpoint.ptr)};
}

bool mc_segments_ips(struct mc_call *call, struct mc_uuid client, struct mc_vec *ips) {
    struct mc_master *m = call->m;
    bool known = false;
    pthread_rwlock_rdlock(&m->segments_lock);
    struct mc_str *items = mc_arena_alloc(call->arena, (m->segment_count + 1) * sizeof(*items));
    size_t count = 0;
    for (size_t i = 0; i < m->segment_count; i++) {
        const struct mc_segment *s = m->segments[i];
        if (!mc_uuid_eq(s->client, client)) {
            continue;
        }
        known = true;
        struct mc_str ip = without_port(s->info.te_endpoint);
        bool seen = ip.len == 0;
        for (size_t k = 0; k < count && !seen; k++) {
            seen = mc_str_eq(items[k], ip);
        }
        if (!seen) {
            items[count++] = mc_arena_str(call->arena, ip);
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
    *ips = (struct mc_vec){items, count};
    return known;
}

void mc_segments_usage(struct mc_master *m, uint64_t *used, uint64_t *capacity, uint64_t *count) {
    *used = *capacity = 0;
    pthread_rwlock_rdlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count; i++) {
        *used += mc_allocator_used(m->segments[i]->allocator);
        *capacity += m->segments[i]->info.size;
    }
    *count = m->segment_count;
    pthread_rwlock_unlock(&m->segments_lock);
}

/* ---- the tick ---- */

static bool drop_dead(void *ctx, struct mc_shard *shard, struct mc_object *o) {
    struct mc_master *m = ctx;
    (void)mc_object_drop_dead(m, shard, o);
    return true;
}

/* Drops what still names an unmounted segment, a few shards a tick. */
static void sweep(struct mc_call *call) {
    struct mc_master *m = call->m;
    uint32_t shards = 0;
    pthread_rwlock_rdlock(&m->segments_lock);
    uint64_t retired_before = m->retired_total; /* only these can be swept out now */
    pthread_rwlock_unlock(&m->segments_lock);
    for (uint64_t objects = 0; objects < SWEEP_OBJECTS_PER_TICK && shards < MC_SHARDS; shards++) {
        struct mc_shard *shard = &m->shards[m->sweep_next++ % MC_SHARDS];
        mc_lock_acquire(&shard->lock);
        objects += mc_shard_count(shard);
        mc_shard_each(shard, drop_dead, m);
        mc_lock_release(&shard->lock);
    }
    pthread_rwlock_wrlock(&m->segments_lock);
    uint32_t left = 0;
    for (struct mc_segment *s = m->retired; s; s = s->next_retired) {
        uint32_t swept = s->retired_as <= retired_before ? shards : 0;
        if (s->sweep_left && s->sweep_left <= swept) {
            mc_discard_purge_segment(m, s);
        }
        s->sweep_left -= (uint32_t)mc_min_u64(s->sweep_left, swept);
        left = left > s->sweep_left ? left : s->sweep_left;
    }
    atomic_store_explicit(&m->sweep_left, left, memory_order_relaxed);
    pthread_rwlock_unlock(&m->segments_lock);
}

static void unmount_due(struct mc_call *call) {
    struct mc_master *m = call->m;
    bool due = false;
    pthread_rwlock_rdlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count && !due; i++) {
        due = m->segments[i]->unmount_at_ms && m->segments[i]->unmount_at_ms <= call->now_ms;
    }
    pthread_rwlock_unlock(&m->segments_lock);
    if (!due) {
        return;
    }
    pthread_rwlock_wrlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count;) {
        if (m->segments[i]->unmount_at_ms && m->segments[i]->unmount_at_ms <= call->now_ms) {
            retire_locked(call, i);
        } else {
            i++;
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
}

static void free_retired(struct mc_call *call) {
    struct mc_master *m = call->m;
    struct mc_segment *gone = NULL;
    pthread_rwlock_wrlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count; i++) {
        struct mc_segment *s = m->segments[i];
        if (s->closed_until_ms > call->now_ms) {
            s->closed_until_ms = quarantine_locked(m, &s->info); /* the sweep may know better now */
        }
    }
    for (struct mc_segment **at = &m->retired; *at;) {
        struct mc_segment *s = *at;
        if (cleaned(s) && call->now_ms >= quiet_after(m, s)) {
            *at = s->next_retired;
            s->next_retired = gone;
            gone = s;
        } else {
            at = &s->next_retired;
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
    for (struct mc_segment *next; gone; gone = next) {
        next = gone->next_retired;
        mc_info("segment gone name=%.*s client=%llu-%llu bytes=%llu", (int)gone->info.name.len,
                gone->info.name.ptr, (unsigned long long)gone->client.hi,
                (unsigned long long)gone->client.lo, (unsigned long long)gone->info.size);
        segment_free(gone);
    }
}

void mc_segments_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    unmount_due(call);
    if (atomic_load_explicit(&m->sweep_left, memory_order_relaxed)) {
        sweep(call);
    }
    pthread_rwlock_rdlock(&m->segments_lock);
    bool any = m->retired != NULL;
    pthread_rwlock_unlock(&m->segments_lock);
    if (any) {
        free_retired(call);
    }
}

void mc_segment_table_destroy(struct mc_master *m) {
    for (size_t i = 0; i < m->segment_count; i++) {
        segment_free(m->segments[i]);
    }
    for (struct mc_segment *s = m->retired, *next; s; s = next) {
        next = s->next_retired;
        segment_free(s);
    }
    free(m->segments);
}
