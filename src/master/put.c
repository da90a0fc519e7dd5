/*
 * The life of a put: start (allocate, announce), end (visible), revoke; upsert; and what happens to
 * puts that nobody ends.
 *
 * An object is in the index from PutStart on, in its shard's list of objects being written, so that
 * a second put of the key is refused. It becomes readable in PutEnd and never changes after that
 * until it is removed or upserted. A put belongs to the client that started it. One that is not
 * ended within the discard timeout may be replaced or removed; its extents, and without that the
 * object itself, go when the release timeout has passed, because until then the writer may still be
 * writing.
 *
 * An upsert of equal size and replica count reuses the object's extents, as upstream does, but only
 * when nobody holds a lease: a leased reader would see half-written bytes. Otherwise the new bytes
 * get new extents and the old ones are freed when the lease ends.
 */
#include "master/core.h"
#include "master/disks.h"
#include "master/files.h"
#include "master/tenants.h"

#define EXPIRE_SHARDS_PER_TICK 64u
#define QUOTA_ATTEMPTS         2u /* evictions for a put of a tenant that has used its quota */

enum mc_status mc_put_validate(const struct mc_master *m, const struct mw_replicate_config *c,
                               size_t keys) {
    if (c->replica_num == 0 || c->nof_replica_num || c->dfs_replica_num) {
        return MC_INVALID_PARAMS; /* NoF and DFS tiers are off */
    }
    if (c->soft_pin_action > MC_SOFT_PIN_DISABLE) {
        return MC_INVALID_PARAMS;
    }
    if (c->soft_pin_ttl_ms.has &&
        (c->soft_pin_action != MC_SOFT_PIN_ENABLE || c->soft_pin_ttl_ms.value == 0 ||
         c->soft_pin_ttl_ms.value > m->config.max_kv_soft_pin_ttl_ms)) {
        return MC_INVALID_PARAMS;
    }
    if (c->group_ids.has && c->group_ids.value.count != keys) {
        return MC_INVALID_PARAMS;
    }
    return MC_OK;
}

static unsigned wanted_replicas(const struct mw_replicate_config *config) {
    return (unsigned)mc_min_u64(config->replica_num, MC_MAX_REPLICAS);
}

static void describe_all(struct mc_call *call, struct mc_object *o, struct mc_vec *out) {
    if (mc_object_striped(o)) {
        mc_stripes_describe(call, o, false, out);
        return;
    }
    struct mw_replica *items = mc_arena_alloc(call->arena, o->replica_count * sizeof(*items));
    for (unsigned i = 0; i < o->replica_count; i++) {
        mc_describe(call, o, mc_object_replica(o, i), &items[i]);
    }
    *out = (struct mc_vec){items, o->replica_count};
}

static void pin_as_asked(const struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                         const struct mw_replicate_config *config) {
    uint64_t ttl = config->soft_pin_ttl_ms.has ? config->soft_pin_ttl_ms.value
                                               : m->config.default_kv_soft_pin_ttl_ms;
    o->hard_pin = o->hard_pin || config->with_hard_pin;
    mc_soft_pin_pending(shard, o, config->soft_pin_action, ttl);
}

/* Extents for the replicas; how many, at least one. Needs segments_lock (read). Eviction is asked
 * for only when it can help: a put larger than any segment must not empty the cache. The tenant is
 * charged for what it gets; `credit` is what the caller will give back. */
static enum mc_status allocate(struct mc_call *call, const struct mc_key *key,
                               const struct mc_put *put, uint64_t credit,
                               struct mc_replica *replicas, unsigned *count) {
    struct mc_master *m = call->m;
    unsigned wanted = wanted_replicas(put->config);
    if (atomic_load_explicit(&m->metadata_full, memory_order_relaxed)) {
        mc_count(&m->counters.metadata_refusals, 1);
        atomic_store_explicit(&m->need_eviction, true, memory_order_relaxed);
        return MC_NO_AVAILABLE_HANDLE;
    }
    bool possible = put->size <= MC_ALLOCATOR_MAX_CAPACITY; /* so the sums cannot overflow */
    *count = 0;
    if (possible && mc_stripes_wanted(put)) {
        MC_TRY(mc_stripes_place(call, key, put, credit, replicas, count));
    }
    if (possible && *count == 0) {
        MC_TRY(mc_tenant_charge(m, key->tenant, put->size * wanted, credit));
        *count = mc_place(call, put->size, wanted, key->hash, put->config, replicas);
        mc_tenant_refund(m, key->tenant, put->size * (wanted - *count));
    }
    if (*count == 0) {
        mc_count(&m->counters.put_start_alloc_failures, 1);
        uint64_t least = mc_stripes_wanted(put) ? mc_stripes_least_bytes(call, put) : put->size;
        if (mc_place_possible(call, least, put->config)) {
            atomic_store_explicit(&m->need_eviction, true, memory_order_relaxed);
        }
        return MC_NO_AVAILABLE_HANDLE;
    }
    mc_count(&m->counters.put_start_partial_allocations,
             *count < wanted * mc_max_u64(replicas[0].stripes, 1));
    return MC_OK;
}

/* A new object in the index, being written. Needs segments_lock (read) and the shard's lock; takes
 * the extents. */
static enum mc_status create_locked(struct mc_call *call, struct mc_shard *shard,
                                    const struct mc_key *key, const struct mc_put *put,
                                    const struct mc_replica *replicas, unsigned count,
                                    struct mc_object **out) {
    struct mc_master *m = call->m;
    struct mc_object *o = mc_shard_insert(shard, key);
    if (!o) {
        for (unsigned i = 0; i < count; i++) {
            uint64_t bytes = mc_replica_bytes(&replicas[i], put->size);
            mc_extent_free(m, &replicas[i], bytes);
            mc_tenant_refund(m, key->tenant, bytes);
        }
        return MC_NO_AVAILABLE_HANDLE;
    }
    o->size = put->size;
    o->writer = put->client;
    o->started_ms = call->now_ms;
    mc_object_set_replicas(shard, o, replicas, count);
    mc_object_list(shard, o, MC_LIST_PROCESSING);
    mc_group_join(m, shard, o, put->group);
    pin_as_asked(m, shard, o, put->config);
    mc_life_pending(shard, o, put->ttl_ms);
    mc_histogram_observe(&m->counters.value_size, put->size);
    *out = o;
    return MC_OK;
}

static enum mc_status allocate_and_create_locked(struct mc_call *call, struct mc_shard *shard,
                                                 const struct mc_key *key, const struct mc_put *put,
                                                 struct mc_object **out) {
    struct mc_replica replicas[MC_MAX_REPLICAS];
    unsigned count;
    MC_TRY(allocate(call, key, put, 0, replicas, &count));
    return create_locked(call, shard, key, put, replicas, count, out);
}

bool mc_put_abandoned(const struct mc_call *call, const struct mc_object *o) {
    return call->now_ms >= o->started_ms &&
           call->now_ms - o->started_ms >= call->m->config.put_start_discard_timeout_ms;
}

static enum mc_status put_start_locked(struct mc_call *call, struct mc_shard *shard,
                                       const struct mc_key *key, const struct mc_put *put,
                                       struct mc_vec *replicas) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    if (o) {
        if (o->list != MC_LIST_PROCESSING || mc_object_readable(call->m, o) ||
            !mc_put_abandoned(call, o)) {
            return MC_OBJECT_ALREADY_EXISTS;
        }
        mc_object_discard(call, shard, o);
    }
    MC_TRY(allocate_and_create_locked(call, shard, key, put, &o));
    describe_all(call, o, replicas);
    mc_file_want(call, shard, o, replicas);
    return MC_OK;
}

/* Whether the key is as the writer wants it. */
static enum mc_status condition_locked(struct mc_call *call, struct mc_shard *shard,
                                       const struct mc_key *key, const struct mc_put *put) {
    if (put->condition == MW_PUT_ALWAYS || put->condition == MW_PUT_IF_ABSENT) {
        return MC_OK; /* the latter is a put's own */
    }
    struct mc_object *o = mc_object_find(call->m, shard, key);
    if (!o) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (o->list == MC_LIST_PROCESSING) {
        return MC_REPLICA_IS_NOT_READY;
    }
    bool same = put->condition == MW_PUT_IF_VERSION
                    ? o->version == put->expected
                    : o->has_checksum && o->checksum == put->expected;
    same = same || call->m->config.break_mode == MC_BREAK_ANY_CONDITION;
    return same ? MC_OK : MC_INVALID_VERSION;
}

/* A put and an upsert begin alike: under the segment table's lock and the shard's. */
static enum mc_status
start(struct mc_call *call, const struct mc_key *key, const struct mc_put *put,
      struct mc_vec *replicas,
      enum mc_status (*start_locked)(struct mc_call *, struct mc_shard *, const struct mc_key *,
                                     const struct mc_put *, struct mc_vec *)) {
    if (key->user.len == 0 || put->size == 0) {
        return MC_INVALID_PARAMS;
    }
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, key->hash);
    enum mc_status status = MC_OK;
    for (unsigned attempt = 0;; attempt++) {
        pthread_rwlock_rdlock(&m->segments_lock);
        mc_lock_acquire(&shard->lock);
        status = condition_locked(call, shard, key, put);
        if (status == MC_OK) {
            status = start_locked(call, shard, key, put, replicas);
        }
        uint64_t striped = mc_stripes_wanted(put) ? mc_stripes_charge(call, put) : 0;
        mc_lock_release(&shard->lock);
        pthread_rwlock_unlock(&m->segments_lock);
        if (status != MC_TENANT_QUOTA_EXCEEDED) {
            return status;
        }
        uint64_t bytes = mc_max_u64(put->size * wanted_replicas(put->config), striped);
        if (attempt == QUOTA_ATTEMPTS || !mc_evict_for_tenant(call, key->tenant, bytes)) {
            mc_tenant_rejected(m, key->tenant);
            return status;
        }
    }
}

enum mc_status mc_put_start(struct mc_call *call, const struct mc_key *key,
                            const struct mc_put *put, struct mc_vec *replicas) {
    return start(call, key, put, replicas, put_start_locked);
}

/* ---- end and revoke ---- */

static bool type_matches(const struct mc_replica *r, int32_t type) {
    return type == MC_REPLICA_ALL || r->type == type;
}

static enum mc_status find_for_writer(struct mc_call *call, struct mc_shard *shard,
                                      const struct mc_key *key, struct mc_uuid client,
                                      struct mc_object **out) {
    *out = mc_object_find(call->m, shard, key);
    if (!*out) {
        return MC_OBJECT_NOT_FOUND;
    }
    bool trusted = call->m->config.break_mode == MC_BREAK_ANY_WRITER;
    return trusted || mc_uuid_eq((*out)->writer, client) ? MC_OK : MC_ILLEGAL_CLIENT;
}

static enum mc_status put_end_locked(struct mc_call *call, struct mc_shard *shard,
                                     const struct mc_key *key, struct mc_uuid client, int32_t type,
                                     struct mw_opt_u64 checksum) {
    struct mc_object *o;
    MC_TRY(find_for_writer(call, shard, key, client, &o));
    unsigned ended = 0, complete = 0;
    if (type == MC_REPLICA_DISK) {
        return mc_file_written(call, shard, o);
    }
    for (unsigned i = 0; i < o->replica_count; i++) {
        struct mc_replica *r = mc_object_replica(o, i);
        if (type_matches(r, type)) {
            complete += r->status == MC_REPLICA_COMPLETE;
            ended += r->status == MC_REPLICA_PROCESSING;
        }
    }
    if (o->list != MC_LIST_PROCESSING || ended == 0) {
        return complete ? MC_OK : MC_INVALID_WRITE; /* ending twice is ending once */
    }
    for (unsigned i = 0; i < o->replica_count; i++) {
        struct mc_replica *r = mc_object_replica(o, i);
        if (type_matches(r, type) && r->status == MC_REPLICA_PROCESSING) {
            r->status = MC_REPLICA_COMPLETE;
            if (call->m->config.break_mode == MC_BREAK_EARLY_FREE) {
                mc_allocator_free(r->segment->allocator, mc_replica_extent(r),
                                  mc_replica_bytes(r, o->size));
            }
        }
    }
    o->has_checksum = checksum.has;
    o->checksum = checksum.has ? checksum.value : 0;
    o->lease_until_ms = mc_max_u64(o->lease_until_ms, call->now_ms);
    o->version = mc_version_next(call->m);
    mc_changed_by_put(call, key->hash, o->version);
    mc_soft_pin_commit(call, shard, o);
    mc_life_begin(call, shard, o);
    mc_object_list_complete(shard, o, false);
    mc_object_announce(call->m, o);
    mc_file_settle(call, shard, o);
    if (call->m->config.enable_offload && !call->m->config.offload_on_evict &&
        call->m->config.offload_high_watermark_ratio == 0) {
        (void)mc_offload_queue(call, shard, o, call->m->config.offloading_queue_limit);
    }
    return MC_OK;
}

enum mc_status mc_put_end(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                          int32_t type, struct mw_opt_u64 checksum) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    mc_lock_acquire(&shard->lock);
    enum mc_status status = put_end_locked(call, shard, key, client, type, checksum);
    mc_lock_release(&shard->lock);
    return status;
}

static enum mc_status put_revoke_locked(struct mc_call *call, struct mc_shard *shard,
                                        const struct mc_key *key, struct mc_uuid client,
                                        int32_t type) {
    struct mc_object *o;
    MC_TRY(find_for_writer(call, shard, key, client, &o));
    unsigned matching = 0;
    if (type == MC_REPLICA_DISK) {
        return mc_file_revoke(o);
    }
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (type_matches(r, type) && r->status != MC_REPLICA_PROCESSING) {
            return MC_INVALID_WRITE;
        }
        matching += type_matches(r, type);
    }
    if (o->list != MC_LIST_PROCESSING || matching == 0) {
        return MC_INVALID_WRITE;
    }
    for (unsigned i = 0; i < o->replica_count;) {
        if (type_matches(mc_object_replica(o, i), type)) {
            /* the writer itself says that it writes no more */
            mc_object_remove_replica(call->m, shard, o, i, 0);
        } else {
            i++;
        }
    }
    if (o->replica_count == 0) {
        mc_object_erase(call->m, shard, o);
    }
    return MC_OK;
}

enum mc_status mc_put_revoke(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                             int32_t type) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    mc_lock_acquire(&shard->lock);
    enum mc_status status = put_revoke_locked(call, shard, key, client, type);
    mc_lock_release(&shard->lock);
    return status;
}

/* ---- upsert ---- */

/* Writes over the object's own extents: unreadable from here until the end. */
static void upsert_in_place(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                            const struct mc_put *put) {
    mc_offload_cancel(o);
    mc_file_unwanted(call->m, o); /* whoever still writes it writes what the object was */
    for (unsigned i = 0; i < o->replica_count; i++) {
        mc_object_replica(o, i)->status = MC_REPLICA_PROCESSING;
    }
    mc_object_announce(call->m, o);
    o->writer = put->client;
    o->started_ms = call->now_ms;
    mc_object_list(shard, o, MC_LIST_PROCESSING);
    pin_as_asked(call->m, shard, o, put->config);
    mc_life_pending(shard, o, put->ttl_ms);
}

/* New extents for the key; the old ones are freed when nobody can be using them. On failure nothing
 * has changed. */
static enum mc_status upsert_replace(struct mc_call *call, struct mc_shard *shard,
                                     const struct mc_key *key, const struct mc_put *put,
                                     struct mc_object *old, struct mc_object **out) {
    struct mc_master *m = call->m;
    bool hard_pin = old->hard_pin;
    uint64_t soft_until =
        mc_soft_pinned(old) && old->ext->soft_until_ms > call->now_ms ? old->ext->soft_until_ms : 0;
    struct mc_replica replicas[MC_MAX_REPLICAS];
    unsigned count;
    MC_TRY(allocate(call, key, put, mc_object_charge(old), replicas, &count));
    mc_object_discard(call, shard, old);
    MC_TRY(create_locked(call, shard, key, put, replicas, count, out));
    (*out)->hard_pin |= hard_pin;
    if (soft_until) {
        mc_soft_pin_restore(m, shard, *out, soft_until);
    }
    return MC_OK;
}

static enum mc_status upsert_start_locked(struct mc_call *call, struct mc_shard *shard,
                                          const struct mc_key *key, const struct mc_put *put,
                                          struct mc_vec *replicas) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    if (!o) {
        MC_TRY(allocate_and_create_locked(call, shard, key, put, &o));
        describe_all(call, o, replicas);
        mc_file_want(call, shard, o, replicas);
        return MC_OK;
    }
    bool writing = o->list == MC_LIST_PROCESSING;
    if (mc_replicating(o)) {
        return MC_OBJECT_HAS_REPLICATION_TASK;
    }
    if (!writing && put->config->group_ids.has && !mc_str_eq(mc_group_of(o), put->group)) {
        return MC_INVALID_PARAMS; /* membership is for the object's life */
    }
    struct mc_put kept = *put;
    if (!writing && !put->config->group_ids.has) {
        kept.group = mc_arena_str(call->arena, mc_group_of(o));
    }
    unsigned pieces = wanted_replicas(put->config) * mc_max_u64(o->first.stripes, 1);
    bool same_shape = o->size == put->size && !mc_object_on_disk(o) && o->replica_count == pieces &&
                      (!mc_object_striped(o) || mc_stripes_wanted(put));
    if (!writing && same_shape && !mc_leased(call->m, o, call->now_ms)) {
        upsert_in_place(call, shard, o, put);
    } else {
        MC_TRY(upsert_replace(call, shard, key, &kept, o, &o));
    }
    if (!writing) {
        mc_changed(call->m, key->hash);
    }
    describe_all(call, o, replicas);
    mc_file_want(call, shard, o, replicas);
    return MC_OK;
}

enum mc_status mc_upsert_start(struct mc_call *call, const struct mc_key *key,
                               const struct mc_put *put, struct mc_vec *replicas) {
    return start(call, key, put, replicas, upsert_start_locked);
}

/* ---- puts that nobody ends ---- */

void mc_put_expire_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    for (unsigned n = 0; n < EXPIRE_SHARDS_PER_TICK && n < MC_SHARDS; n++) {
        struct mc_shard *shard = &m->shards[m->expire_next++ % MC_SHARDS];
        mc_lock_acquire(&shard->lock);
        struct mc_list *writing = &shard->lists[MC_LIST_PROCESSING];
        while (!mc_list_empty(writing)) {
            struct mc_object *o = mc_container_of(writing->next, struct mc_object, link);
            if (call->now_ms < o->started_ms + m->config.put_start_release_timeout_ms) {
                break;
            }
            mc_object_erase(m, shard, o); /* nobody can still be writing */
        }
        mc_replication_expire(call, shard);
        mc_deadlines_expire(call, shard);
        mc_lock_release(&shard->lock);
    }
}
