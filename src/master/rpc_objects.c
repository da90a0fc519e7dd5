/*
 * The RPCs about objects: from argument structs to the core and back. Each does one thing per key;
 * a batch does it for every key in order and answers each on its own.
 *
 * A batch first visits the index once for all keys only to fetch the lines that the look-ups will
 * touch, so that the cache misses of its keys overlap.
 */
#include "master/rpc_methods.h"

#define TRY_KEY(ret, call, tenant, user, key)                                                      \
    do {                                                                                           \
        (ret)->error = mc_key_make((call)->m, (tenant), (user), (key));                            \
        if ((ret)->error) {                                                                        \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Keys of a batch with the status of each; and their lines on the way into the cache. */
struct batch_key {
    struct mc_key key;
    enum mc_status status;
};

static struct batch_key *batch_keys(struct mc_call *call, struct mc_str tenant, const void *first,
                                    size_t stride, size_t count) {
    struct batch_key *keys = mc_arena_alloc(call->arena, (count + 1) * sizeof(*keys));
    for (size_t i = 0; i < count; i++) {
        const struct mc_str *user = (const struct mc_str *)((const char *)first + i * stride);
        keys[i].status = mc_key_make(call->m, tenant, *user, &keys[i].key);
        if (keys[i].status == MC_OK) {
            __builtin_prefetch(mc_shard_of(call->m, keys[i].key.hash), 1);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (keys[i].status == MC_OK) {
            mc_shard_prefetch(call->m, keys[i].key.hash);
        }
    }
    return keys;
}

/* Tells the eviction policy of the keys whose status is MC_OK. */
static void tell(struct mc_call *call,
                 void (*traffic)(struct mc_call *call, const uint64_t *hashes, size_t count),
                 const struct batch_key *keys, size_t count) {
    uint64_t *hashes = mc_arena_alloc(call->arena, (count + 1) * sizeof(*hashes));
    size_t good = 0;
    for (size_t i = 0; i < count; i++) {
        hashes[good] = keys[i].key.hash;
        good += keys[i].status == MC_OK;
    }
    traffic(call, hashes, good);
}

static void tell_one(struct mc_call *call,
                     void (*traffic)(struct mc_call *call, const uint64_t *hashes, size_t count),
                     const struct mc_key *key, enum mc_status status) {
    traffic(call, &key->hash, status == MC_OK);
}

static void *batch_answers(struct mc_call *call, struct mc_vec *ret, size_t count, size_t size) {
    ret->items = mc_arena_zalloc(call->arena, (count + 1) * size);
    ret->count = count;
    call->items += count;
    return ret->items;
}

/* ---- look-ups ---- */

void mc_rpc_ExistKey(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_key *a = args;
    struct mw_e_bool *r = ret;
    struct mc_key key;
    TRY_KEY(r, call, a->tenant, a->key, &key);
    r->value = mc_exists(call, &key);
    tell_one(call, mc_traffic_asked, &key, MC_OK);
}

void mc_rpc_BatchExistKey(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_keys *a = args;
    struct batch_key *keys =
        batch_keys(call, a->tenant, a->keys.items, sizeof(struct mc_str), a->keys.count);
    struct mw_e_bool *r = batch_answers(call, ret, a->keys.count, sizeof(*r));
    for (size_t i = 0; i < a->keys.count; i++) {
        r[i].error = keys[i].status;
        r[i].value = keys[i].status == MC_OK && mc_exists(call, &keys[i].key);
        call->failed_items += r[i].error != 0;
    }
    tell(call, mc_traffic_asked, keys, a->keys.count);
}

void mc_rpc_GetReplicaList(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_key *a = args;
    struct mw_e_list *r = ret;
    struct mc_key key;
    TRY_KEY(r, call, a->tenant, a->key, &key);
    r->error = mc_get(call, &key, &r->value);
    tell_one(call, mc_traffic_read, &key, r->error);
}

void mc_rpc_BatchGetReplicaList(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_keys *a = args;
    struct batch_key *keys =
        batch_keys(call, a->tenant, a->keys.items, sizeof(struct mc_str), a->keys.count);
    struct mw_e_list *r = batch_answers(call, ret, a->keys.count, sizeof(*r));
    for (size_t i = 0; i < a->keys.count; i++) {
        r[i].error = keys[i].status ? keys[i].status : mc_get(call, &keys[i].key, &r[i].value);
        keys[i].status = r[i].error;
        call->failed_items += r[i].error != 0;
    }
    tell(call, mc_traffic_read, keys, a->keys.count);
}

void mc_rpc_GetObjects(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_keys *a = args;
    struct batch_key *keys =
        batch_keys(call, a->tenant, a->keys.items, sizeof(struct mc_str), a->keys.count);
    struct mw_e_object *r = batch_answers(call, ret, a->keys.count, sizeof(*r));
    for (size_t i = 0; i < a->keys.count; i++) {
        r[i].error =
            keys[i].status ? keys[i].status : mc_get_object(call, &keys[i].key, &r[i].value);
        keys[i].status = r[i].error;
        call->failed_items += r[i].error != 0;
    }
    tell(call, mc_traffic_read, keys, a->keys.count);
}

void mc_rpc_GetReplicaListByRegex(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_key *a = args;
    struct mw_e_vec *r = ret;
    r->error = mc_get_by_regex(call, a->tenant, a->key, &r->value);
}

/* ---- puts and upserts ---- */

typedef enum mc_status (*start_fn)(struct mc_call *, const struct mc_key *, const struct mc_put *,
                                   struct mc_vec *);

static struct mc_str group_at(const struct mw_replicate_config *config, size_t i) {
    return config->group_ids.has ? ((const struct mc_str *)config->group_ids.value.items)[i]
                                 : (struct mc_str){0};
}

static void start(struct mc_call *call, const struct mw_a_put_start *a, struct mw_e_vec *r,
                  start_fn run) {
    struct mc_key key;
    TRY_KEY(r, call, a->tenant, a->key, &key);
    r->error = mc_put_validate(call->m, &a->config, 1);
    if (r->error) {
        return;
    }
    struct mc_put put = {a->client, a->length, &a->config, group_at(&a->config, 0)};
    r->error = run(call, &key, &put, &r->value);
    if (r->error == MC_OBJECT_ALREADY_EXISTS) {
        tell_one(call, mc_traffic_read, &key, MC_OK); /* wanted again */
    }
}

static bool compares(const struct mw_a_start_puts *a) {
    return a->condition == MW_PUT_IF_VERSION || a->condition == MW_PUT_IF_CHECKSUM;
}

static bool condition_ok(const struct mw_a_start_puts *a) {
    return a->condition <= MW_PUT_IF_CHECKSUM &&
           a->expected.count == (compares(a) ? a->keys.count : 0);
}

/* `more`: what only StartPuts says; NULL = nothing. */
static void batch_start(struct mc_call *call, const struct mw_a_batch_put_start *a,
                        const struct mw_a_start_puts *more, struct mc_vec *ret, start_fn run) {
    size_t count = a->keys.count;
    struct mw_e_vec *r = batch_answers(call, ret, count, sizeof(*r));
    enum mc_status status = mc_put_validate(call->m, &a->config, count);
    if (a->lengths.count != count || (more && !condition_ok(more))) {
        status = MC_INVALID_PARAMS;
    }
    struct batch_key *keys =
        status ? NULL : batch_keys(call, a->tenant, a->keys.items, sizeof(struct mc_str), count);
    for (size_t i = 0; i < count; i++) {
        r[i].error = status ? status : keys[i].status;
        if (r[i].error == 0) {
            struct mc_put put = {a->client, ((const uint64_t *)a->lengths.items)[i], &a->config,
                                 group_at(&a->config, i)};
            if (more) {
                put.ttl_ms = more->ttl_ms;
                put.condition = more->condition;
                put.stripe_over = more->stripe_over;
                put.expected =
                    more->expected.count ? ((const uint64_t *)more->expected.items)[i] : 0;
            }
            r[i].error = run(call, &keys[i].key, &put, &r[i].value);
            /* what is there already is wanted again */
            keys[i].status = r[i].error == MC_OBJECT_ALREADY_EXISTS ? MC_OK : MC_OBJECT_NOT_FOUND;
        }
        call->failed_items += r[i].error != 0;
    }
    tell(call, mc_traffic_read, keys, keys ? count : 0);
}

void mc_rpc_PutStart(struct mc_call *call, const void *args, void *ret) {
    start(call, args, ret, mc_put_start);
}
void mc_rpc_UpsertStart(struct mc_call *call, const void *args, void *ret) {
    start(call, args, ret, mc_upsert_start);
}
void mc_rpc_BatchPutStart(struct mc_call *call, const void *args, void *ret) {
    batch_start(call, args, NULL, ret, mc_put_start);
}
void mc_rpc_BatchUpsertStart(struct mc_call *call, const void *args, void *ret) {
    batch_start(call, args, NULL, ret, mc_upsert_start);
}

void mc_rpc_StartPuts(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_start_puts *a = args;
    struct mw_a_batch_put_start plain = {a->client, a->keys, a->lengths, a->config, a->tenant};
    bool upsert = compares(a) || (a->upsert && a->condition == MW_PUT_ALWAYS);
    batch_start(call, &plain, a, ret, upsert ? mc_upsert_start : mc_put_start);
}

void mc_rpc_Inspect(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_keys *a = args;
    struct batch_key *keys =
        batch_keys(call, a->tenant, a->keys.items, sizeof(struct mc_str), a->keys.count);
    struct mw_e_object_info *r = batch_answers(call, ret, a->keys.count, sizeof(*r));
    for (size_t i = 0; i < a->keys.count; i++) {
        r[i].error = keys[i].status ? keys[i].status : mc_inspect(call, &keys[i].key, &r[i].value);
        call->failed_items += r[i].error != 0;
    }
}

void mc_rpc_PutEnd(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_put_end *a = args;
    struct mw_e_void *r = ret;
    struct mc_key key;
    TRY_KEY(r, call, a->tenant, a->meta.key, &key);
    r->error = mc_put_end(call, &key, a->client, a->type, a->meta.checksum);
    tell_one(call, mc_traffic_stored, &key, r->error);
}

_Static_assert(offsetof(struct mw_object_meta, key) == 0, "batch_keys walks metas by their keys");

static void batch_end(struct mc_call *call, struct mc_uuid client, struct mc_vec metas,
                      int32_t type, struct mc_str tenant, struct mc_vec *ret) {
    const struct mw_object_meta *meta = metas.items;
    struct batch_key *keys = batch_keys(call, tenant, metas.items, sizeof(*meta), metas.count);
    struct mw_e_void *r = batch_answers(call, ret, metas.count, sizeof(*r));
    for (size_t i = 0; i < metas.count; i++) {
        r[i].error = keys[i].status
                         ? keys[i].status
                         : mc_put_end(call, &keys[i].key, client, type, meta[i].checksum);
        keys[i].status = r[i].error;
        call->failed_items += r[i].error != 0;
    }
    tell(call, mc_traffic_stored, keys, metas.count);
}

void mc_rpc_BatchPutEnd(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_batch_put_end *a = args;
    batch_end(call, a->client, a->metas, a->type, a->tenant, ret);
}
void mc_rpc_BatchUpsertEnd(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_batch_upsert_end *a = args;
    batch_end(call, a->client, a->metas, MC_REPLICA_ALL, a->tenant, ret);
}

void mc_rpc_PutRevoke(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_put_revoke *a = args;
    struct mw_e_void *r = ret;
    struct mc_key key;
    TRY_KEY(r, call, a->tenant, a->key, &key);
    r->error = mc_put_revoke(call, &key, a->client, a->type);
}

static void batch_revoke(struct mc_call *call, struct mc_uuid client, struct mc_vec names,
                         int32_t type, struct mc_str tenant, struct mc_vec *ret) {
    struct batch_key *keys =
        batch_keys(call, tenant, names.items, sizeof(struct mc_str), names.count);
    struct mw_e_void *r = batch_answers(call, ret, names.count, sizeof(*r));
    for (size_t i = 0; i < names.count; i++) {
        r[i].error =
            keys[i].status ? keys[i].status : mc_put_revoke(call, &keys[i].key, client, type);
        call->failed_items += r[i].error != 0;
    }
}

void mc_rpc_BatchPutRevoke(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_batch_put_revoke *a = args;
    batch_revoke(call, a->client, a->keys, a->type, a->tenant, ret);
}
void mc_rpc_BatchUpsertRevoke(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_batch_upsert_revoke *a = args;
    batch_revoke(call, a->client, a->keys, MC_REPLICA_ALL, a->tenant, ret);
}

/* ---- removal ---- */

void mc_rpc_Remove(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_remove *a = args;
    struct mw_e_void *r = ret;
    struct mc_key key;
    TRY_KEY(r, call, a->tenant, a->key, &key);
    r->error = mc_remove(call, &key, a->force);
}

void mc_rpc_BatchRemove(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_batch_remove *a = args;
    struct batch_key *keys =
        batch_keys(call, a->tenant, a->keys.items, sizeof(struct mc_str), a->keys.count);
    struct mw_e_void *r = batch_answers(call, ret, a->keys.count, sizeof(*r));
    for (size_t i = 0; i < a->keys.count; i++) {
        r[i].error = keys[i].status ? keys[i].status : mc_remove(call, &keys[i].key, a->force);
        call->failed_items += r[i].error != 0;
    }
}

void mc_rpc_RemoveByRegex(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_remove *a = args;
    struct mw_e_i64 *r = ret;
    r->error = mc_remove_by_regex(call, a->tenant, a->key, a->force, &r->value);
}

/* The answer is a plain number: a tenant that cannot exist has nothing to remove. */
void mc_rpc_RemoveAll(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_remove_all *a = args;
    struct mc_str tenant;
    *(int64_t *)ret = mc_tenant_normalise(a->tenant, &tenant) == MC_OK
                          ? mc_remove_all(call, &tenant, a->force)
                          : 0;
}

void mc_rpc_BatchReplicaClear(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_replica_clear *a = args;
    struct mw_e_vec *r = ret;
    struct mc_str *cleared = mc_arena_alloc(call->arena, (a->keys.count + 1) * sizeof(*cleared));
    size_t count = 0;
    for (size_t i = 0; i < a->keys.count; i++) {
        struct mc_key key;
        struct mc_str user = ((const struct mc_str *)a->keys.items)[i];
        if (mc_key_make(call->m, (struct mc_str){0}, user, &key) == MC_OK &&
            mc_replica_clear(call, &key, a->client, a->segment) == MC_OK) {
            cleared[count++] = user;
        }
    }
    call->items += a->keys.count;
    call->failed_items += a->keys.count - count;
    r->value = (struct mc_vec){cleared, count};
}
