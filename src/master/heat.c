/*
 * Dynamic replication: what is read often gets another replica in memory, on another node, so that
 * its readers share two NICs; when it is not read so often any more the copy goes.
 *
 * Reads are counted by the hash of the key in a count-min sketch of one window. A key that reaches
 * the threshold becomes a candidate once a window; the tick looks at the candidates, and asks the
 * node that has the object for a copy by an ordinary task, which counts for nothing until the node
 * has ended it. What was asked for is kept in a table, and looked at when a window ends: the copy
 * is taken away when the window that has just ended saw less than half of the threshold, and never
 * when it is the only replica. Leases on it are respected.
 *
 * Bounds: the sketch is 2 MiB; CANDIDATES_MAX a tick; EXTRAS_MAX copies in all; nothing is copied
 * when memory is nearly as full as eviction wants it, because a copy is worth less than an object.
 */
#include "master/core.h"

#include "base/log.h"

#ifndef MC_HEAT_BITS /* fewer where a thousand small masters are made: tests/sim */
#define MC_HEAT_BITS 16u
#endif
#define ROWS           4u
#define SLOTS          (1u << MC_HEAT_BITS)
#define CANDIDATES_MAX 256u
#define EXTRAS_MAX     4096u
#define ROOM           0.95 /* of the high watermark */

struct extra { /* a copy that was asked for */
    uint64_t hash;
    uint64_t version;   /* of the object: another one of the key has its own replicas */
    uint64_t name_hash; /* of the segment */
    uint64_t asked_ms;
    struct mc_uuid task;
};

struct mc_heat {
    uint64_t threshold, window_ms;
    _Atomic unsigned current; /* which half counts now */
    uint64_t window_end_ms;   /* tick only, as what follows */
    struct extra *extras;
    size_t extra_count;
    struct mc_lock lock; /* guards what follows */
    uint64_t candidates[CANDIDATES_MAX];
    size_t candidate_count;
    _Atomic uint32_t counts[2][ROWS][SLOTS];
};

struct mc_heat *mc_heat_create(const struct mc_master_config *config) {
    if (config->dynamic_replication == MC_DYNAMIC_OFF) {
        return NULL;
    }
    struct mc_heat *heat = mc_zalloc(sizeof(*heat));
    double reads = config->dynamic_qps * (double)config->dynamic_window_ms / 1000;
    heat->threshold = reads < 1 ? 1 : reads > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint64_t)reads;
    heat->window_ms = config->dynamic_window_ms;
    heat->extras = mc_alloc(EXTRAS_MAX * sizeof(*heat->extras));
    return heat;
}

void mc_heat_destroy(struct mc_heat *heat) {
    if (heat) {
        free(heat->extras);
        free(heat);
    }
}

/* ---- counting ---- */

static _Atomic uint32_t *slot_of(struct mc_heat *heat, unsigned half, unsigned row, uint64_t hash) {
    uint64_t mixed = (hash ^ (row * 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
    return &heat->counts[half][row][mixed >> (64 - MC_HEAT_BITS)];
}

static void become_candidate(struct mc_heat *heat, uint64_t hash) {
    mc_lock_acquire(&heat->lock);
    if (heat->candidate_count < CANDIDATES_MAX) { /* else it may become one in the next window */
        heat->candidates[heat->candidate_count++] = hash;
    }
    mc_lock_release(&heat->lock);
}

void mc_heat_read(struct mc_call *call, const uint64_t *hashes, size_t count) {
    struct mc_heat *heat = call->m->heat;
    if (!heat) {
        return;
    }
    /* relaxed, here and below: these are estimates */
    unsigned half = atomic_load_explicit(&heat->current, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        uint32_t before = UINT32_MAX;
        for (unsigned row = 0; row < ROWS; row++) {
            uint32_t seen = atomic_fetch_add_explicit(slot_of(heat, half, row, hashes[i]), 1,
                                                      memory_order_relaxed);
            before = seen < before ? seen : before;
        }
        if (before + 1 == heat->threshold) {
            become_candidate(heat, hashes[i]);
        }
    }
}

static uint64_t reads_of(struct mc_heat *heat, unsigned half, uint64_t hash) {
    uint64_t least = UINT32_MAX;
    for (unsigned row = 0; row < ROWS; row++) {
        least = mc_min_u64(
            least, atomic_load_explicit(slot_of(heat, half, row, hash), memory_order_relaxed));
    }
    return least;
}

/* ---- copies ---- */

static bool has_room(struct mc_call *call, uint64_t bytes) {
    uint64_t used, capacity, segments;
    mc_segments_usage(call->m, &used, &capacity, &segments);
    return (double)(used + bytes) <=
           (double)capacity * call->m->config.eviction_high_watermark_ratio * ROOM;
}

/* What a copy needs to know of the object; false when it wants none. */
static bool wants_copy(struct mc_call *call, uint64_t hash, struct mc_key *key, uint64_t *size,
                       uint64_t *version, struct mc_vec *names) {
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, hash);
    unsigned memory = 0;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_shard_find_hash(m, shard, hash);
    bool wants = o && mc_object_drop_dead(m, shard, o) && o->list != MC_LIST_PROCESSING &&
                 !mc_replicating(o) && o->replica_count < MC_MAX_REPLICAS && !mc_object_striped(o);
    if (wants) {
        struct mc_str *items = mc_arena_alloc(call->arena, o->replica_count * sizeof(*items));
        for (unsigned i = 0; i < o->replica_count; i++) {
            const struct mc_replica *r = mc_object_replica(o, i);
            if (r->type == MC_REPLICA_MEMORY) {
                items[memory++] = mc_arena_str(call->arena, r->segment->info.name);
            }
        }
        *names = (struct mc_vec){items, memory};
        *size = o->size;
        *version = o->version;
        *key = (struct mc_key){.tenant = mc_arena_str(call->arena, mc_object_tenant(o)),
                               .user = mc_arena_str(call->arena, mc_object_key(o)),
                               .hash = hash};
    }
    mc_lock_release(&shard->lock);
    return wants && memory > 0 && memory < m->config.dynamic_max_replicas;
}

static bool asked_for(const struct mc_heat *heat, uint64_t hash, uint64_t name_hash) {
    for (size_t i = 0; i < heat->extra_count; i++) {
        if (heat->extras[i].hash == hash && heat->extras[i].name_hash == name_hash) {
            return true;
        }
    }
    return false;
}

static void consider(struct mc_call *call, uint64_t hash) {
    struct mc_master *m = call->m;
    struct mc_heat *heat = m->heat;
    const struct mc_vec anywhere = {0};
    struct mc_vec names, targets;
    struct mc_key key;
    struct mc_str target;
    uint64_t size, version;
    if (!wants_copy(call, hash, &key, &size, &version, &names)) {
        return;
    }
    mc_count(&m->counters.hot_objects, 1);
    if (m->config.dynamic_replication != MC_DYNAMIC_ENFORCE || heat->extra_count == EXTRAS_MAX ||
        !has_room(call, size) || !mc_place_target(call, size, &anywhere, &names, &target)) {
        return;
    }
    uint64_t name_hash = mc_hash64(target.ptr, target.len, 0);
    if (asked_for(heat, hash, name_hash)) {
        return;
    }
    targets = (struct mc_vec){&target, 1};
    struct extra extra = {
        .hash = hash, .version = version, .name_hash = name_hash, .asked_ms = call->now_ms};
    enum mc_status status = mc_copy_task(call, &key, &targets, &extra.task);
    if (status == MC_OK) {
        heat->extras[heat->extra_count++] = extra;
        mc_count(&m->counters.hot_copies, 1);
    } else {
        mc_warn_limited("a copy of a hot object cannot be asked for: key=%.*s status=%s",
                        (int)key.user.len, key.user.ptr, mc_status_name(status));
    }
}

/* The copy goes, if it is there and not the only replica; false = not now. */
static bool take_away(struct mc_call *call, const struct extra *extra) {
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, extra->hash);
    bool settled = true;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_shard_find_hash(m, shard, extra->hash);
    if (o && mc_object_drop_dead(m, shard, o) && o->version == extra->version) {
        unsigned readable = 0;
        int found = -1;
        for (unsigned i = 0; i < o->replica_count; i++) {
            const struct mc_replica *r = mc_object_replica(o, i);
            bool memory = r->type == MC_REPLICA_MEMORY && r->status == MC_REPLICA_COMPLETE;
            readable += memory;
            found = memory && r->segment->name_hash == extra->name_hash ? (int)i : found;
        }
        settled = !mc_replicating(o) && o->list != MC_LIST_PROCESSING;
        if (settled && found >= 0 && readable > 1) {
            uint64_t lease = mc_lease_end(m, o);
            bool read = lease > call->now_ms && m->config.break_mode != MC_BREAK_COLD_FREES;
            mc_object_remove_replica(m, shard, o, (unsigned)found, read ? lease : 0);
            mc_count(&m->counters.cold_copies, 1);
        }
    }
    mc_lock_release(&shard->lock);
    return settled;
}

static bool under_way(struct mc_call *call, const struct extra *extra) {
    struct mw_task_info info;
    return mc_task_query(call, extra->task, &info) == MC_OK &&
           (info.status == MC_TASK_PENDING || info.status == MC_TASK_PROCESSING);
}

/* Those whose object has cooled down in the half that has just ended. */
static void cool_down(struct mc_call *call, unsigned ended) {
    struct mc_heat *heat = call->m->heat;
    size_t kept = 0;
    for (size_t i = 0; i < heat->extra_count; i++) {
        struct extra extra = heat->extras[i];
        bool cold = reads_of(heat, ended, extra.hash) < heat->threshold / 2 + 1 &&
                    call->now_ms - extra.asked_ms >= heat->window_ms;
        if (!cold || under_way(call, &extra) || !take_away(call, &extra)) {
            heat->extras[kept++] = extra;
        }
    }
    heat->extra_count = kept;
}

void mc_heat_tick(struct mc_call *call) {
    struct mc_heat *heat = call->m->heat;
    uint64_t candidates[CANDIDATES_MAX];
    if (!heat) {
        return;
    }
    mc_lock_acquire(&heat->lock);
    size_t count = heat->candidate_count;
    memcpy(candidates, heat->candidates, count * sizeof(*candidates));
    heat->candidate_count = 0;
    mc_lock_release(&heat->lock);
    for (size_t i = 0; i < count; i++) {
        consider(call, candidates[i]);
    }
    if (call->now_ms < heat->window_end_ms) {
        return;
    }
    unsigned ended = atomic_load_explicit(&heat->current, memory_order_relaxed);
    for (unsigned row = 0; row < ROWS; row++) {
        for (unsigned i = 0; i < SLOTS; i++) {
            atomic_store_explicit(&heat->counts[1 - ended][row][i], 0, memory_order_relaxed);
        }
    }
    atomic_store_explicit(&heat->current, 1 - ended, memory_order_relaxed);
    bool first = heat->window_end_ms == 0;
    heat->window_end_ms = call->now_ms + heat->window_ms;
    if (!first) {
        cool_down(call, ended);
    }
}
