/*
 * What a client says of its SSD: that it has written what it was told to write, that it found this
 * or that when it mounted, that it has an object no longer. disks.c says which of it is believed.
 */
#include "master/disks.h"

/* False when it has too many. */
static bool add_replica(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                        struct mc_segment *s) {
    struct mc_replica all[MC_MAX_REPLICAS];
    unsigned count = o->replica_count;
    if (count >= MC_MAX_REPLICAS) {
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        all[i] = *mc_object_replica(o, i);
    }
    all[count] = (struct mc_replica){
        .id = atomic_fetch_add_explicit(&call->m->next_replica_id, 1, memory_order_relaxed),
        .segment = s,
        .type = MC_REPLICA_LOCAL_DISK,
        .status = MC_REPLICA_COMPLETE};
    atomic_fetch_add_explicit(&s->disk_replicas, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->disk_bytes, o->size, memory_order_relaxed);
    mc_object_set_replicas(shard, o, all, count + 1);
    mc_object_announce(call->m, o);
    return true;
}

/* An object that only a disk has: a client found it there. */
static enum mc_status adopt(struct mc_call *call, struct mc_shard *shard, const struct mc_key *key,
                            struct mc_segment *s, uint64_t size, uint64_t version) {
    struct mc_object *o = mc_shard_insert(shard, key);
    if (!o) {
        return MC_NO_AVAILABLE_HANDLE;
    }
    o->size = size;
    o->writer = s->client;
    o->version = version != 0 ? version : mc_version_next(call->m);
    o->started_ms = o->lease_until_ms = call->now_ms;
    (void)add_replica(call, shard, o, s);
    mc_object_list_complete(shard, o, false);
    mc_count(&call->m->counters.offload_adopted, 1);
    return MC_OK;
}

static void written_one(struct mc_call *call, struct mc_uuid client, struct mc_segment *s,
                        bool adopting, const struct mw_disk_task *task,
                        const struct mw_storage_object *at) {
    struct mc_master *m = call->m;
    struct mc_key key;
    struct mc_str tenant;
    bool failed = at->data_size <= 0; /* a file per key has no bucket: -1 */
    if (mc_tenant_normalise(task->tenant, &tenant) != MC_OK ||
        mc_key_make(m, tenant, task->key, &key) != MC_OK || key.user.len == 0 || task->size <= 0) {
        return;
    }
    uint64_t mark = mc_disk_answered(call, client, &key, 0);
    struct mc_shard *shard = mc_shard_of(m, key.hash);
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(m, shard, &key);
    bool claimed = o && mc_offload_claimed(o, mark);
    if (claimed && !failed && s && o->size == (uint64_t)task->size && !mc_object_on_disk(o)) {
        (void)add_replica(call, shard, o, s);
        mc_count(&m->counters.offloads, 1);
        mc_count(&m->counters.offloaded_bytes, (int64_t)o->size);
    } else if (!o && adopting && !failed && s && mc_may_return(m, &key, 0, 0)) {
        (void)adopt(call, shard, &key, s, (uint64_t)task->size, 0);
    } else {
        mc_count(&m->counters.offload_failures, claimed);
    }
    if (claimed) {
        mc_offload_ended(shard, o, !mc_object_on_disk(o));
    }
    mc_lock_release(&shard->lock);
}

enum mc_status mc_disk_written(struct mc_call *call, struct mc_uuid client,
                               const struct mc_vec *tasks, const struct mc_vec *objects) {
    const struct mw_disk_task *task = tasks->items;
    const struct mw_storage_object *at = objects->items;
    struct mc_str endpoint = {0};
    bool adopting = false;
    if (!call->m->config.enable_offload) {
        return MC_UNABLE_OFFLOAD;
    }
    if (tasks->count != objects->count) {
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < objects->count && endpoint.len == 0; i++) {
        endpoint = at[i].endpoint;
    }
    if (endpoint.len > MC_MAX_KEY_BYTES) {
        return MC_INVALID_PARAMS;
    }
    if (!mc_disk_known(call->m, client)) {
        return MC_SEGMENT_NOT_FOUND;
    }
    struct mc_segment *s = endpoint.len ? mc_disk_segment(call, client, endpoint, &adopting) : NULL;
    pthread_rwlock_rdlock(&call->m->segments_lock); /* it is not drained meanwhile */
    struct mc_segment *open = mc_client_drained(call->m, client) ? NULL : s;
    for (size_t i = 0; i < tasks->count; i++) {
        written_one(call, client, open, adopting, &task[i], &at[i]);
    }
    pthread_rwlock_unlock(&call->m->segments_lock);
    if (s) {
        atomic_fetch_sub_explicit(&s->disk_replicas, 1, memory_order_relaxed);
    }
    return MC_OK;
}

static bool has_replica_on(struct mc_object *o, const struct mc_segment *s) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->segment == s) {
            return true;
        }
    }
    return false;
}

/* What a client of ours says of what it holds. */
struct words {
    struct mc_uuid client;
    struct mc_segment *s; /* NULL: it is not listed */
    bool found;           /* when it mounted; else these are answers to tasks */
    bool adopting;        /* and it may bring back what the index does not have */
    uint64_t current;     /* what it was told of: mc_may_return */
};

/* Needs the shard's lock. MC_OBJECT_NOT_FOUND: the key has another value now, or none, or it cannot
 * be known: what is not listed may not stay, since nobody would have it dropped when it is old. */
static enum mc_status held_locked(struct mc_call *call, struct mc_shard *shard,
                                  const struct mc_key *key, const struct words *w,
                                  const struct mw_disk_item *item) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    uint64_t size = (uint64_t)item->size;
    if (!o) {
        bool back = w->found && w->adopting &&
                    mc_may_return(call->m, key, item->version, w->current) &&
                    adopt(call, shard, key, w->s, size, item->version) == MC_OK;
        return back ? MC_OK : MC_OBJECT_NOT_FOUND;
    }
    /* (what it has from upstream was given a version when it was listed) */
    bool same = o->list != MC_LIST_PROCESSING &&
                (o->version == item->version || (item->version == 0 && has_replica_on(o, w->s)));
    same = same || call->m->config.break_mode == MC_BREAK_ANY_ANSWER;
    if (!same || o->size != size) {
        return MC_OBJECT_NOT_FOUND;
    }
    return has_replica_on(o, w->s) || add_replica(call, shard, o, w->s) ? MC_OK
                                                                        : MC_OBJECT_NOT_FOUND;
}

static enum mc_status held_one(struct mc_call *call, const struct words *w,
                               const struct mw_disk_item *item) {
    struct mc_master *m = call->m;
    struct mc_key key;
    struct mc_str tenant;
    bool failed = item->size <= 0 || w->s == NULL;
    MC_TRY(mc_tenant_normalise(item->tenant, &tenant));
    MC_TRY(mc_key_make(m, tenant, item->key, &key));
    if (key.user.len == 0) {
        return MC_INVALID_KEY;
    }
    uint64_t mark = w->found ? 0 : mc_disk_answered(call, w->client, &key, item->version);
    enum mc_status status = MC_OK;
    struct mc_shard *shard = mc_shard_of(call->m, key.hash);
    mc_lock_acquire(&shard->lock);
    if (!failed) {
        status = held_locked(call, shard, &key, w, item);
    }
    struct mc_object *o = mc_object_find(call->m, shard, &key);
    if (o && mc_offload_claimed(o, mark)) {
        mc_count(&m->counters.offloads, !failed);
        mc_count(&m->counters.offloaded_bytes, failed ? 0 : (int64_t)o->size);
        mc_count(&m->counters.offload_failures, failed);
        mc_offload_ended(shard, o, failed);
    } else if (!w->found) {
        mc_count(&m->counters.offload_failures, 1);
    }
    mc_lock_release(&shard->lock);
    return status;
}

enum mc_status mc_disk_holds(struct mc_call *call, const struct mw_a_on_disk *a,
                             struct mc_vec *out) {
    const struct mw_disk_item *item = a->items.items;
    struct words w = {.client = a->client, .found = a->found};
    if (!call->m->config.enable_offload) {
        return MC_UNABLE_OFFLOAD;
    }
    if (a->endpoint.len == 0 || a->endpoint.len > MC_MAX_KEY_BYTES) {
        return MC_INVALID_PARAMS;
    }
    struct mc_segment *s = mc_disk_segment(call, a->client, a->endpoint, &w.adopting);
    if (!s) {
        return MC_SEGMENT_NOT_FOUND;
    }
    struct mw_e_void *answers =
        mc_arena_zalloc(call->arena, (a->items.count + 1) * sizeof(*answers));
    pthread_rwlock_rdlock(&call->m->segments_lock); /* it is not drained meanwhile */
    w.s = mc_client_drained(call->m, a->client) ? NULL : s;
    if (w.s == NULL) {
        mc_disk_unlisted(call, a->client);
    }
    for (size_t i = 0; i < a->items.count; i++) {
        if (item[i].size == MW_DISK_CURRENT && item[i].key.len == 0) {
            w.current = item[i].version;
        } else {
            answers[i].error = held_one(call, &w, &item[i]);
        }
    }
    pthread_rwlock_unlock(&call->m->segments_lock);
    atomic_fetch_sub_explicit(&s->disk_replicas, 1, memory_order_relaxed);
    *out = (struct mc_vec){answers, a->items.count};
    return MC_OK;
}

enum mc_status mc_disk_forget(struct mc_call *call, const struct mc_key *key,
                              struct mc_uuid client) {
    mc_changed(call->m, key->hash); /* it may still find it when it starts again */
    return mc_object_forget_replica(call, key, MC_REPLICA_LOCAL_DISK, &client);
}
