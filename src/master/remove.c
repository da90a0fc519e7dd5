/*
 * Removing objects: one, many, all of a tenant, by regular expression, or only their replicas on
 * one segment.
 *
 * Leases are respected unless the caller forces; force skips nothing but the lease. What is being
 * written is never removed, unless its writer has been silent for longer than the discard timeout;
 * what is being copied or moved is not either. Bringing back from an SSD is cancelled by it.
 */
#include "master/core.h"
#include "master/disks.h"

static enum mc_status removable(struct mc_call *call, struct mc_object *o, bool force) {
    if (!force && mc_leased(call->m, o, call->now_ms)) {
        return MC_OBJECT_HAS_LEASE;
    }
    if (mc_replicating(o) && o->ext->replication->kind == MC_REPLICATION_PROMOTE) {
        mc_count(&call->m->counters.promotions_cancelled, 1);
        return MC_OK; /* what is being brought back goes, and its memory when nobody writes there */
    }
    if (o->list == MC_LIST_PROCESSING || !mc_object_complete(o)) {
        return MC_REPLICA_IS_NOT_READY;
    }
    return mc_replicating(o) ? MC_OBJECT_HAS_REPLICATION_TASK : MC_OK;
}

enum mc_status mc_remove(struct mc_call *call, const struct mc_key *key, bool force) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(call->m, shard, key);
    enum mc_status status = o ? removable(call, o, force) : MC_OBJECT_NOT_FOUND;
    if (status == MC_REPLICA_IS_NOT_READY && o->list == MC_LIST_PROCESSING &&
        mc_put_abandoned(call, o)) {
        status = MC_OK;
    }
    if (status == MC_OK) {
        mc_object_discard(call, shard, o);
    }
    if (status == MC_OK || status == MC_OBJECT_NOT_FOUND) { /* a disk that is away may have it */
        mc_changed(call->m, key->hash);
    }
    mc_lock_release(&shard->lock);
    return status;
}

enum mc_status mc_remove_by_regex(struct mc_call *call, struct mc_str tenant, struct mc_str pattern,
                                  bool force, int64_t *removed) {
    struct mc_vec keys;
    MC_TRY(mc_regex_keys(call, tenant, pattern, &keys));
    *removed = 0;
    for (size_t i = 0; i < keys.count; i++) {
        struct mc_key key;
        MC_TRY(mc_key_make(call->m, tenant, ((struct mc_str *)keys.items)[i], &key));
        *removed += mc_remove(call, &key, force) == MC_OK;
    }
    return MC_OK;
}

struct key_copy {
    struct mc_call *call;
    const struct mc_str *tenant;
    struct mc_key *keys;
    size_t count;
};

static bool copy_key(void *ctx, struct mc_shard *shard, struct mc_object *o) {
    struct key_copy *copy = ctx;
    if ((!copy->tenant || mc_str_eq(*copy->tenant, mc_object_tenant(o))) &&
        !(mc_mortal(o) && mc_life_over(o, mc_now_ms(copy->call->m->clock)))) {
        copy->keys[copy->count++] =
            (struct mc_key){.tenant = mc_arena_str(copy->call->arena, mc_object_tenant(o)),
                            .user = mc_arena_str(copy->call->arena, mc_object_key(o)),
                            .hash = mc_object_hash(copy->call->m, o)};
    }
    return true;
}

struct mc_key *mc_shard_keys(struct mc_call *call, struct mc_shard *shard,
                             const struct mc_str *tenant, size_t *count) {
    struct key_copy copy = {.call = call, .tenant = tenant};
    mc_lock_acquire(&shard->lock);
    copy.keys = mc_arena_alloc(call->arena, (mc_shard_count(shard) + 1) * sizeof(*copy.keys));
    mc_shard_each(shard, copy_key, &copy);
    mc_lock_release(&shard->lock);
    *count = copy.count;
    return copy.keys;
}

struct remove_all {
    struct mc_call *call;
    const struct mc_str *tenant;
    bool force;
    int64_t removed;
};

static bool remove_one(void *ctx, struct mc_shard *shard, struct mc_object *o) {
    struct remove_all *all = ctx;
    if (all->tenant && !mc_str_eq(*all->tenant, mc_object_tenant(o))) {
        return true;
    }
    if (mc_object_drop_dead(all->call->m, shard, o) &&
        removable(all->call, o, all->force) == MC_OK) {
        mc_object_discard(all->call, shard, o);
        all->removed++;
    }
    return true;
}

int64_t mc_remove_all(struct mc_call *call, const struct mc_str *tenant, bool force) {
    struct remove_all all = {.call = call, .tenant = tenant, .force = force};
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        struct mc_shard *shard = &call->m->shards[i];
        mc_lock_acquire(&shard->lock);
        mc_shard_each(shard, remove_one, &all);
        mc_lock_release(&shard->lock);
    }
    mc_changed_all(call->m, tenant);
    mc_disks_removed_all(call->m);
    return all.removed;
}

static enum mc_status replica_clear_locked(struct mc_call *call, struct mc_shard *shard,
                                           const struct mc_key *key, struct mc_uuid client,
                                           struct mc_str segment) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    if (!o) {
        return MC_OBJECT_NOT_FOUND;
    }
    /* The lower half of a writer's id counts the puts of one of our clients (client/ops.h). */
    if (!mc_same_client(o->writer, client)) {
        return MC_ILLEGAL_CLIENT;
    }
    MC_TRY(removable(call, o, false));
    if (mc_replicating(o)) { /* being brought back: somebody writes there */
        return MC_OBJECT_HAS_REPLICATION_TASK;
    }
    if (segment.len == 0) {
        mc_object_erase(call->m, shard, o);
        mc_changed(call->m, key->hash);
        return MC_OK;
    }
    unsigned cleared = 0;
    for (unsigned i = 0; i < o->replica_count;) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (mc_str_eq(r->segment->info.name, segment)) {
            mc_disk_replica_ends(call->m, o, r);
            mc_object_remove_replica(call->m, shard, o, i, 0);
            cleared++;
        } else {
            i++;
        }
    }
    mc_stripes_drop_broken(call->m, shard, o);
    if (o->replica_count == 0) {
        mc_object_erase(call->m, shard, o);
        mc_changed(call->m, key->hash);
    }
    return cleared ? MC_OK : MC_REPLICA_NOT_FOUND;
}

enum mc_status mc_replica_clear(struct mc_call *call, const struct mc_key *key,
                                struct mc_uuid client, struct mc_str segment) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    mc_lock_acquire(&shard->lock);
    enum mc_status status = replica_clear_locked(call, shard, key, client, segment);
    mc_lock_release(&shard->lock);
    return status;
}
