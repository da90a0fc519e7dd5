/*
 * What a client says of its SSD: that it has written what it was told to write, that it found this
 * or that when it mounted, that it has an object no longer. disks.c says which of it is believed.
 */
#include "master/disks.h"

static void add_replica(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                        struct mc_segment *s) {
    struct mc_replica all[MC_MAX_REPLICAS];
    unsigned count = o->replica_count;
    if (count >= MC_MAX_REPLICAS) {
        return;
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
    add_replica(call, shard, o, s);
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
        add_replica(call, shard, o, s);
        mc_count(&m->counters.offloads, 1);
        mc_count(&m->counters.offloaded_bytes, (int64_t)o->size);
    } else if (!o && adopting && !failed && s && mc_may_return(m, &key, 0)) {
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

/* Needs the shard's lock. MC_OBJECT_NOT_FOUND: the key has another value now, or none. */
static enum mc_status held_locked(struct mc_call *call, struct mc_shard *shard,
                                  const struct mc_key *key, struct mc_segment *s, bool adopting,
                                  const struct mw_disk_item *item) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    uint64_t size = (uint64_t)item->size;
    if (!o) {
        bool may = mc_may_return(call->m, key, item->version);
        if (may && adopting) {
            (void)adopt(call, shard, key, s, size, item->version);
        }
        return may ? MC_OK : MC_OBJECT_NOT_FOUND;
    }
    if (o->list == MC_LIST_PROCESSING || item->version == 0) {
        return MC_OK; /* nobody knows yet, or ever: it stays, and is not listed */
    }
    bool same = o->version == item->version || call->m->config.break_mode == MC_BREAK_ANY_ANSWER;
    if (!same || o->size != size) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (!has_replica_on(o, s)) {
        add_replica(call, shard, o, s);
    }
    return MC_OK;
}

/* `found`: no answer to a task. `s` NULL: it stays there, and is not listed. */
static enum mc_status held_one(struct mc_call *call, struct mc_uuid client, struct mc_segment *s,
                               bool found, bool adopting, const struct mw_disk_item *item) {
    struct mc_master *m = call->m;
    struct mc_key key;
    struct mc_str tenant;
    bool failed = item->size <= 0 || s == NULL;
    MC_TRY(mc_tenant_normalise(item->tenant, &tenant));
    MC_TRY(mc_key_make(m, tenant, item->key, &key));
    if (key.user.len == 0) {
        return MC_INVALID_KEY;
    }
    uint64_t mark = found ? 0 : mc_disk_answered(call, client, &key, item->version);
    enum mc_status status = MC_OK;
    struct mc_shard *shard = mc_shard_of(m, key.hash);
    mc_lock_acquire(&shard->lock);
    if (!failed) {
        status = held_locked(call, shard, &key, s, found && adopting, item);
    }
    struct mc_object *o = mc_object_find(m, shard, &key);
    if (o && mc_offload_claimed(o, mark)) {
        mc_count(&m->counters.offloads, !failed);
        mc_count(&m->counters.offloaded_bytes, failed ? 0 : (int64_t)o->size);
        mc_count(&m->counters.offload_failures, failed);
        mc_offload_ended(shard, o, failed);
    } else if (!found) {
        mc_count(&m->counters.offload_failures, 1);
    }
    mc_lock_release(&shard->lock);
    return status;
}

enum mc_status mc_disk_holds(struct mc_call *call, const struct mw_a_on_disk *a,
                             struct mc_vec *out) {
    const struct mw_disk_item *item = a->items.items;
    bool adopting = false;
    if (!call->m->config.enable_offload) {
        return MC_UNABLE_OFFLOAD;
    }
    if (a->endpoint.len == 0 || a->endpoint.len > MC_MAX_KEY_BYTES) {
        return MC_INVALID_PARAMS;
    }
    struct mc_segment *s = mc_disk_segment(call, a->client, a->endpoint, &adopting);
    if (!s) {
        return MC_SEGMENT_NOT_FOUND;
    }
    struct mw_e_void *answers =
        mc_arena_zalloc(call->arena, (a->items.count + 1) * sizeof(*answers));
    pthread_rwlock_rdlock(&call->m->segments_lock); /* it is not drained meanwhile */
    struct mc_segment *open = mc_client_drained(call->m, a->client) ? NULL : s;
    for (size_t i = 0; i < a->items.count; i++) {
        answers[i].error = held_one(call, a->client, open, a->found, adopting, &item[i]);
    }
    pthread_rwlock_unlock(&call->m->segments_lock);
    atomic_fetch_sub_explicit(&s->disk_replicas, 1, memory_order_relaxed);
    *out = (struct mc_vec){answers, a->items.count};
    return MC_OK;
}

enum mc_status mc_disk_forget(struct mc_call *call, const struct mc_key *key,
                              struct mc_uuid client) {
    return mc_object_forget_replica(call, key, MC_REPLICA_LOCAL_DISK, &client);
}
