/*
 * Copies and moves of objects: start (reserve the places), end (they become readable, a moved
 * object's source goes), revoke.
 *
 * While one runs the object is in no list, so that it is not evicted, and is neither removed nor
 * replaced; reading goes on from the replicas that it had. The new ones are in PROCESSING until the
 * end. It belongs to whoever started it, under an id that our nodes never use twice. One that is
 * not ended within put_start_discard_timeout is given up; its places are handed out again when
 * put_start_release_timeout has passed, as those of a put are.
 *
 * The end wants its source to be there still: a source whose segment was unmounted meanwhile may
 * have been read when it was something else.
 */
#include "master/core.h"
#include "master/tenants.h"

static int find_complete(struct mc_object *o, struct mc_str segment) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (r->status == MC_REPLICA_COMPLETE && mc_str_eq(r->segment->info.name, segment)) {
            return (int)i;
        }
    }
    return -1;
}

static int find_id(struct mc_object *o, uint64_t id) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->id == id) {
            return (int)i;
        }
    }
    return -1;
}

/* The same bytes are there already. */
static bool on_segment(struct mc_object *o, const struct mc_replica *from, struct mc_str segment) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (r->stripe == from->stripe && r->stripes == from->stripes &&
            mc_str_eq(r->segment->info.name, segment)) {
            return true;
        }
    }
    return false;
}

/* ---- start ---- */

/* A place on each target that does not have the object; on failure none is kept. Needs
 * segments_lock (read). */
static enum mc_status reserve(struct mc_call *call, struct mc_object *o,
                              const struct mc_replica *from, const struct mc_str *names,
                              size_t count, struct mc_replica *out, unsigned *reserved) {
    enum mc_status status = MC_OK;
    uint64_t bytes = mc_replica_bytes(from, o->size);
    unsigned n = 0;
    for (size_t i = 0; i < count && status == MC_OK; i++) {
        bool there = on_segment(o, from, names[i]);
        for (unsigned k = 0; k < n && !there; k++) {
            there = mc_str_eq(out[k].segment->info.name, names[i]);
        }
        if (there) {
            continue;
        }
        status = n + o->replica_count < MC_MAX_REPLICAS
                     ? mc_place_named(call, bytes, names[i], &out[n])
                     : MC_INVALID_PARAMS;
        if (status == MC_OK) {
            out[n].stripe = from->stripe;
            out[n++].stripes = from->stripes;
        }
    }
    for (unsigned i = 0; i < n && status != MC_OK; i++) {
        mc_extent_free(call->m, &out[i], bytes);
    }
    *reserved = n;
    return status;
}

void mc_replication_begin(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                          struct mc_uuid client, enum mc_replication_kind kind, uint64_t source,
                          const struct mc_replica *targets, unsigned count) {
    struct mc_replication *r = mc_zalloc(sizeof(*r) + count * sizeof(r->targets[0]));
    struct mc_replica all[MC_MAX_REPLICAS];
    r->object = o;
    r->client = client;
    r->started_ms = call->now_ms;
    r->source = source;
    r->kind = (uint8_t)kind;
    r->target_count = (uint8_t)count;
    unsigned before = o->replica_count; /* the disks' of a striped object stay last */
    while (mc_object_striped(o) && mc_object_replica(o, before - 1)->stripes == 0) {
        before--;
    }
    for (unsigned i = 0; i < o->replica_count; i++) {
        all[i < before ? i : i + count] = *mc_object_replica(o, i);
    }
    for (unsigned i = 0; i < count; i++) {
        r->targets[i] = targets[i].id;
        all[before + i] = targets[i];
    }
    if (count > 0) {
        mc_object_set_replicas(shard, o, all, o->replica_count + count);
    }
    mc_object_ext(shard, o)->replication = r;
    mc_count(&call->m->counters.promotions_in_flight, kind == MC_REPLICATION_PROMOTE);
    mc_list_push_back(&shard->replicating, &r->link);
    mc_object_list(shard, o, MC_LIST_NONE);
}

/* What is copied of a striped object: a stripe that some target does not have, where it can be
 * read; any of its replicas when all have all. A copy takes as many steps as that. */
static const struct mc_replica *next_stripe(struct mc_object *o, const struct mc_str *targets,
                                            size_t count) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        for (size_t k = 0; k < count && r->stripes > 0 && r->status == MC_REPLICA_COMPLETE; k++) {
            if (!on_segment(o, r, targets[k])) {
                return r;
            }
        }
    }
    return &o->first;
}

/* Of a striped object lists have a place for as many of each stripe as of the one there is most of.
 */
static bool room_for(struct mc_object *o, const struct mc_replica *from,
                     const struct mc_str *targets, size_t count) {
    unsigned same = 0;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        same += r->stripe == from->stripe && r->stripes == from->stripes;
    }
    for (size_t i = 0; i < count; i++) {
        same += !on_segment(o, from, targets[i]);
    }
    return from->stripes == 0 || same * from->stripes <= MC_MAX_REPLICAS;
}

struct start {
    struct mc_uuid client;
    struct mc_str source;
    const struct mc_str *targets;
    size_t target_count;
    bool move;
};

static enum mc_status start_locked(struct mc_call *call, struct mc_shard *shard,
                                   const struct mc_key *key, const struct start *start,
                                   struct mw_replica *source, struct mc_vec *targets) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    struct mc_replica places[MC_MAX_REPLICAS];
    unsigned count = 0;
    if (!o) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (mc_replicating(o)) {
        return MC_OBJECT_HAS_REPLICATION_TASK;
    }
    int from = find_complete(o, start->source);
    if (o->list == MC_LIST_PROCESSING || from < 0) {
        return MC_REPLICA_NOT_FOUND;
    }
    const struct mc_replica *moved = mc_object_replica(o, (unsigned)from);
    if (mc_object_striped(o) && !start->move) {
        moved = next_stripe(o, start->targets, start->target_count);
        if (!room_for(o, moved, start->targets, start->target_count)) {
            return MC_INVALID_PARAMS;
        }
    }
    for (size_t i = 0; i < start->target_count; i++) {
        if (!on_segment(o, moved, start->targets[i])) {
            MC_TRY(mc_place_check(call, start->targets[i]));
        }
    }
    uint64_t bytes = mc_replica_bytes(moved, o->size);
    MC_TRY(reserve(call, o, moved, start->targets, start->target_count, places, &count));
    enum mc_status status = mc_tenant_charge(call->m, key->tenant, count * bytes, 0);
    if (status != MC_OK) {
        for (unsigned i = 0; i < count; i++) {
            mc_extent_free(call->m, &places[i], bytes);
        }
        return status;
    }
    mc_describe(call, o, moved, source);
    struct mw_replica *items = mc_arena_alloc(call->arena, (count + 1) * sizeof(*items));
    for (unsigned i = 0; i < count; i++) {
        mc_describe(call, o, &places[i], &items[i]);
    }
    *targets = (struct mc_vec){items, count};
    mc_replication_begin(call, shard, o, start->client,
                         start->move ? MC_REPLICATION_MOVE : MC_REPLICATION_COPY, source->id,
                         places, count);
    return MC_OK;
}

static enum mc_status start(struct mc_call *call, const struct mc_key *key,
                            const struct start *start, struct mw_replica *source,
                            struct mc_vec *targets) {
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, key->hash);
    pthread_rwlock_rdlock(&m->segments_lock);
    mc_lock_acquire(&shard->lock);
    enum mc_status status = start_locked(call, shard, key, start, source, targets);
    mc_lock_release(&shard->lock);
    pthread_rwlock_unlock(&m->segments_lock);
    return status;
}

enum mc_status mc_copy_start(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                             struct mc_str source, const struct mc_vec *targets,
                             struct mw_copy_start *out) {
    struct start copy = {client, source, targets->items, targets->count, false};
    return start(call, key, &copy, &out->source, &out->targets);
}

enum mc_status mc_move_start(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                             struct mc_str source, struct mc_str target,
                             struct mw_move_start *out) {
    struct start move = {client, source, &target, 1, true};
    struct mc_vec targets;
    if (mc_str_eq(source, target)) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(start(call, key, &move, &out->source, &targets));
    out->target.has = targets.count > 0;
    if (out->target.has) {
        out->target.value = *(const struct mw_replica *)targets.items;
    }
    return MC_OK;
}

/* ---- end and revoke ---- */

void mc_replication_drop(struct mc_master *m, struct mc_object *o) {
    struct mc_replication *r = o->ext->replication;
    if (r) {
        mc_list_del(&r->link);
        o->ext->replication = NULL;
        mc_count(&m->counters.promotions_in_flight, -(r->kind == MC_REPLICATION_PROMOTE));
        free(r);
    }
}

/* Takes the object out of its replication and erases it when nothing readable is left of it. */
static void finish(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    mc_replication_drop(call->m, o);
    if (o->replica_count == 0) {
        mc_object_erase(call->m, shard, o);
        return;
    }
    bool leased = mc_leased(call->m, o, call->now_ms);
    o->lease_until_ms = mc_max_u64(o->lease_until_ms, call->now_ms);
    mc_object_list_complete(shard, o, leased);
}

/* Takes its targets out of the object; free_at_ms 0 = nobody is writing there. */
static void drop_targets(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                         uint64_t free_at_ms) {
    const struct mc_replication *r = o->ext->replication;
    for (unsigned i = 0; i < r->target_count; i++) {
        int at = find_id(o, r->targets[i]);
        if (at >= 0) {
            mc_object_remove_replica(call->m, shard, o, (unsigned)at, free_at_ms);
        }
    }
}

static enum mc_status find_replicating(struct mc_call *call, struct mc_shard *shard,
                                       const struct mc_key *key, struct mc_uuid client,
                                       enum mc_replication_kind kind, struct mc_object **out) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    if (!o) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (!mc_replicating(o)) {
        return MC_OBJECT_NO_REPLICATION_TASK;
    }
    if (!mc_uuid_eq(o->ext->replication->client, client)) {
        return MC_ILLEGAL_CLIENT;
    }
    *out = o;
    return o->ext->replication->kind == kind ? MC_OK : MC_INVALID_PARAMS;
}

/* Another replica has the same bytes. */
static bool has_other(struct mc_object *o, unsigned i) {
    for (unsigned k = 0; k < o->replica_count; k++) {
        const struct mc_replica *r = mc_object_replica(o, k);
        if (k != i && r->status == MC_REPLICA_COMPLETE &&
            r->stripe == mc_object_replica(o, i)->stripe &&
            r->stripes == mc_object_replica(o, i)->stripes) {
            return true;
        }
    }
    return false;
}

static enum mc_status end_locked(struct mc_call *call, struct mc_shard *shard,
                                 const struct mc_key *key, struct mc_uuid client,
                                 enum mc_replication_kind kind) {
    struct mc_object *o;
    MC_TRY(find_replicating(call, shard, key, client, kind, &o));
    const struct mc_replication *r = o->ext->replication;
    int source = find_id(o, r->source);
    unsigned ready = 0;
    if (source < 0) {
        drop_targets(call, shard, o, 0);
        finish(call, shard, o);
        return MC_REPLICA_IS_GONE;
    }
    for (unsigned i = 0; i < r->target_count; i++) {
        int at = find_id(o, r->targets[i]);
        if (at >= 0) {
            mc_object_replica(o, (unsigned)at)->status = MC_REPLICA_COMPLETE;
            ready++;
        }
    }
    mc_object_announce(call->m, o);
    if (kind == MC_REPLICATION_PROMOTE && ready > 0) {
        mc_count(&call->m->counters.promoted_bytes, (int64_t)o->size);
    }
    if (ready < r->target_count && ready == 0) { /* every target's segment has gone */
        finish(call, shard, o);
        return MC_REPLICA_IS_GONE;
    }
    if (kind == MC_REPLICATION_MOVE && has_other(o, (unsigned)source)) {
        uint64_t lease = mc_lease_end(call->m, o);
        bool read = lease > call->now_ms && call->m->config.break_mode != MC_BREAK_MOVE_FREES;
        mc_object_remove_replica(call->m, shard, o, (unsigned)source, read ? lease : 0);
    }
    finish(call, shard, o);
    return MC_OK;
}

enum mc_status mc_replication_end(struct mc_call *call, const struct mc_key *key,
                                  struct mc_uuid client, enum mc_replication_kind kind) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    mc_lock_acquire(&shard->lock);
    enum mc_status status = end_locked(call, shard, key, client, kind);
    mc_lock_release(&shard->lock);
    return status;
}

enum mc_status mc_replication_revoke(struct mc_call *call, const struct mc_key *key,
                                     struct mc_uuid client, enum mc_replication_kind kind) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    struct mc_object *o;
    mc_lock_acquire(&shard->lock);
    enum mc_status status = find_replicating(call, shard, key, client, kind, &o);
    if (status == MC_OK) {
        drop_targets(call, shard, o, 0); /* whoever writes there says that it writes no more */
        finish(call, shard, o);
    }
    mc_lock_release(&shard->lock);
    return status;
}

void mc_replication_expire(struct mc_call *call, struct mc_shard *shard) {
    const struct mc_master_config *config = &call->m->config;
    while (!mc_list_empty(&shard->replicating)) {
        struct mc_replication *r =
            mc_container_of(shard->replicating.next, struct mc_replication, link);
        if (call->now_ms < r->started_ms + config->put_start_discard_timeout_ms) {
            break;
        }
        drop_targets(call, shard, r->object, r->started_ms + config->put_start_release_timeout_ms);
        mc_count(&call->m->counters.promotions_expired, r->kind == MC_REPLICATION_PROMOTE);
        finish(call, shard, r->object);
    }
}
