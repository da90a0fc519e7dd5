/*
 * Look-ups: exist, replica list, by regular expression; each grants a read lease, peek does not,
 * and exist only while there is room (see evict.c).
 */
#include "master/core.h"
#include "master/promote.h"

bool mc_exists(struct mc_call *call, const struct mc_key *key) {
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, key->hash);
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(m, shard, key);
    bool readable = o && mc_object_readable(m, o);
    if (readable &&
        call->now_ms >= atomic_load_explicit(&m->probes_lease_from_ms, memory_order_relaxed)) {
        (void)mc_lease_grant(call, shard, o);
    }
    mc_lock_release(&shard->lock);
    return readable;
}

enum mc_status mc_inspect(struct mc_call *call, const struct mc_key *key,
                          struct mw_object_info *out) {
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, key->hash);
    enum mc_status status = MC_OK;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(m, shard, key);
    if (!o) {
        status = MC_OBJECT_NOT_FOUND;
    } else if (!mc_object_readable(m, o)) {
        status = MC_REPLICA_IS_NOT_READY;
    } else {
        uint64_t expires = o->ext ? o->ext->expires_ms : 0, now = mc_now_ms(m->clock);
        *out = (struct mw_object_info){.size = o->size,
                                       .version = o->version,
                                       .checksum = {o->has_checksum, o->checksum},
                                       .has_life = expires != 0,
                                       .life_left_ms = expires > now ? expires - now : 0,
                                       .replicas = mc_object_striped(o) ? mc_stripes_copies(o, true)
                                                                        : o->replica_count,
                                       .stripes = o->first.stripes ? o->first.stripes : 1};
    }
    mc_lock_release(&shard->lock);
    return status;
}

enum mc_status mc_master_inspect(struct mc_master *m, struct mc_str tenant, struct mc_str key,
                                 struct mw_object_info *out) {
    struct mc_call call = {.m = m, .now_ms = mc_now_ms(m->clock)};
    struct mc_key k;
    MC_TRY(mc_key_make(m, tenant, key, &k));
    return mc_inspect(&call, &k, out);
}

static enum mc_status get_locked(struct mc_call *call, struct mc_shard *shard,
                                 const struct mc_key *key, bool lease, bool stripes, bool *promote,
                                 struct mw_object *out) {
    struct mc_master *m = call->m;
    struct mc_object *o = mc_object_find(m, shard, key);
    if (!o) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (!mc_object_readable(m, o)) {
        return MC_REPLICA_IS_NOT_READY;
    }
    if (mc_object_striped(o) && !stripes) {
        return MC_NOT_SUPPORTED; /* a stripe would be taken for the whole */
    }
    *out = (struct mw_object){.list = {.checksum = {o->has_checksum, o->checksum}},
                              .size = o->size,
                              .version = o->version,
                              .stripes = o->first.stripes ? o->first.stripes : 1};
    if (mc_object_striped(o) && lease) { /* for who reads, each has its place */
        mc_stripes_describe(call, o, true, &out->list.replicas);
    } else {
        mc_describe_readable(call, o, &out->list.replicas);
    }
    if (lease) {
        out->list.lease_ttl_ms = mc_lease_grant(call, shard, o);
        bool memory = (o->announced & MC_MEDIUM_MEMORY) != 0;
        *(memory ? &call->hits : &call->disk_hits) += 1;
        *(memory ? &call->hit_bytes : &call->disk_hit_bytes) += o->size;
        *promote = mc_promote_wanted(call, o);
    }
    return MC_OK;
}

static enum mc_status get(struct mc_call *call, const struct mc_key *key, bool stripes,
                          struct mw_object *out) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    call->gets++;
    mc_lock_acquire(&shard->lock);
    bool promote = false;
    enum mc_status status = get_locked(call, shard, key, true, stripes, &promote, out);
    mc_lock_release(&shard->lock);
    if (promote) {
        mc_promote_hit(call, key);
    }
    return status;
}

enum mc_status mc_get(struct mc_call *call, const struct mc_key *key, struct mw_replica_list *out) {
    struct mw_object object;
    MC_TRY(get(call, key, false, &object));
    *out = object.list;
    return MC_OK;
}

enum mc_status mc_get_object(struct mc_call *call, const struct mc_key *key,
                             struct mw_object *out) {
    return get(call, key, true, out);
}

enum mc_status mc_master_peek(struct mc_master *m, struct mc_str tenant, struct mc_str key,
                              struct mc_arena *arena, struct mw_replica_list *out) {
    struct mc_call call = {.m = m, .arena = arena, .now_ms = mc_now_ms(m->clock)};
    struct mc_key k;
    MC_TRY(mc_key_make(m, tenant, key, &k));
    struct mc_shard *shard = mc_shard_of(m, k.hash);
    mc_lock_acquire(&shard->lock);
    struct mw_object object;
    enum mc_status status = get_locked(&call, shard, &k, false, true, NULL, &object);
    mc_lock_release(&shard->lock);
    MC_TRY(status);
    *out = object.list;
    return MC_OK;
}

enum mc_status mc_get_by_regex(struct mc_call *call, struct mc_str tenant, struct mc_str pattern,
                               struct mc_vec *out) {
    struct mc_vec keys;
    MC_TRY(mc_regex_keys(call, tenant, pattern, &keys));
    call->now_ms = mc_now_ms(call->m->clock); /* matching took its time; leases begin now */
    struct mw_str_replicas *items = mc_arena_alloc(call->arena, (keys.count + 1) * sizeof(*items));
    size_t count = 0;
    for (size_t i = 0; i < keys.count; i++) {
        struct mw_replica_list list;
        struct mc_key key;
        struct mc_str user = ((struct mc_str *)keys.items)[i];
        MC_TRY(mc_key_make(call->m, tenant, user, &key));
        if (mc_get(call, &key, &list) == MC_OK) {
            items[count++] = (struct mw_str_replicas){user, list.replicas};
        }
    }
    *out = (struct mc_vec){items, count};
    return MC_OK;
}
