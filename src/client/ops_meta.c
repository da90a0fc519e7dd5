/*
 * Questions and removals: operations that are one RPC (per chunk of keys) and move no bytes.
 *
 * Questions are repeated when unanswered. Removals are not: the repetition of one that was carried
 * out would say OBJECT_NOT_FOUND, so the caller is told that the answer is missing.
 */
#include "client/ops_internal.h"

#include <stdio.h>

/* ---- exist ---- */

static enum mc_status exist_one(struct mc_ops *ops, struct mc_ops_call *call, struct mc_str key,
                                bool *exists) {
    struct mw_a_key args = {.key = key, .tenant = ops->tenant};
    struct mw_e_bool answer;
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_ExistKey, &args, &answer, mc_ops_deadline(ops),
                      MC_OPS_IDEMPOTENT));
    MC_TRY(mc_ops_status(answer.error));
    *exists = answer.value;
    return MC_OK;
}

/* Copies the valid keys of a chunk to `out` and sets the status of the others; place[i] = index in
 * the chunk. */
static size_t take_keys(const char *const *keys, size_t count, struct mc_str *out, uint32_t *place,
                        enum mc_status *results) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        results[i] = mc_ops_key(keys[i], &out[n]);
        if (results[i] == MC_OK) {
            place[n++] = (uint32_t)i;
        }
    }
    return n;
}

static void exist_chunk(struct mc_ops *ops, struct mc_ops_call *call, const char *const *keys,
                        size_t count, bool *exists, enum mc_status *results) {
    struct mc_str *valid = mc_arena_alloc(&call->arena, count * sizeof(*valid));
    uint32_t *place = mc_arena_alloc(&call->arena, count * sizeof(*place));
    size_t n = take_keys(keys, count, valid, place, results);
    if (n == 1) {
        results[place[0]] = exist_one(ops, call, valid[0], &exists[place[0]]);
        return;
    }
    if (n == 0) {
        return;
    }
    struct mw_a_keys args = {.keys = {valid, n}, .tenant = ops->tenant};
    struct mc_vec answers;
    enum mc_status status = mc_ops_rpc_batch(ops, call, MC_RPC_BatchExistKey, &args, &answers, n,
                                             mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    const struct mw_e_bool *answer = answers.items;
    for (size_t i = 0; i < n; i++) {
        results[place[i]] = status != MC_OK ? status : mc_ops_status(answer[i].error);
        if (results[place[i]] == MC_OK) {
            exists[place[i]] = answer[i].value;
        }
    }
}

enum mc_status mc_ops_exist(struct mc_ops *ops, const char *const *keys, size_t count, bool *exists,
                            enum mc_status *results) {
    if (count > 0 && (keys == NULL || exists == NULL || results == NULL)) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    for (size_t done = 0; done < count;) {
        size_t n = mc_ops_chunk_keys(keys + done, count - done);
        exist_chunk(ops, call, keys + done, n, exists + done, results + done);
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return MC_OK;
}

/* ---- remove ---- */

static enum mc_status remove_one(struct mc_ops *ops, struct mc_ops_call *call, struct mc_str key,
                                 bool force) {
    struct mw_a_remove args = {.key = key, .force = force, .tenant = ops->tenant};
    struct mw_e_void answer;
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_Remove, &args, &answer, mc_ops_deadline(ops), MC_OPS_ONCE));
    return mc_ops_status(answer.error);
}

static void remove_chunk(struct mc_ops *ops, struct mc_ops_call *call, const char *const *keys,
                         size_t count, bool force, enum mc_status *results) {
    struct mc_str *valid = mc_arena_alloc(&call->arena, count * sizeof(*valid));
    uint32_t *place = mc_arena_alloc(&call->arena, count * sizeof(*place));
    size_t n = take_keys(keys, count, valid, place, results);
    if (n == 1) {
        results[place[0]] = remove_one(ops, call, valid[0], force);
        return;
    }
    if (n == 0) {
        return;
    }
    struct mw_a_batch_remove args = {.keys = {valid, n}, .force = force, .tenant = ops->tenant};
    struct mc_vec answers;
    enum mc_status status = mc_ops_rpc_batch(ops, call, MC_RPC_BatchRemove, &args, &answers, n,
                                             mc_ops_deadline(ops), MC_OPS_ONCE);
    const struct mw_e_void *answer = answers.items;
    for (size_t i = 0; i < n; i++) {
        results[place[i]] = status != MC_OK ? status : mc_ops_status(answer[i].error);
    }
}

enum mc_status mc_ops_remove(struct mc_ops *ops, const char *const *keys, size_t count, bool force,
                             enum mc_status *results) {
    if (count > 0 && (keys == NULL || results == NULL)) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    for (size_t done = 0; done < count;) {
        size_t n = mc_ops_chunk_keys(keys + done, count - done);
        remove_chunk(ops, call, keys + done, n, force, results + done);
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return MC_OK;
}

enum mc_status mc_ops_remove_regex(struct mc_ops *ops, const char *pattern, bool force,
                                   uint64_t *removed) {
    if (pattern == NULL || strnlen(pattern, MC_STORE_KEY_MAX + 1) > MC_STORE_KEY_MAX) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_a_remove args = {.key = mc_str_from(pattern), .force = force, .tenant = ops->tenant};
    struct mw_e_i64 answer;
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_RemoveByRegex, &args, &answer,
                                       mc_ops_deadline(ops), MC_OPS_ONCE);
    mc_ops_end(ops, call);
    MC_TRY(status);
    MC_TRY(mc_ops_status(answer.error));
    *removed = (uint64_t)answer.value;
    return MC_OK;
}

enum mc_status mc_ops_remove_all(struct mc_ops *ops, bool force, uint64_t *removed) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_a_remove_all args = {.force = force, .tenant = ops->tenant};
    int64_t answer = 0;
    enum mc_status status =
        mc_ops_rpc(ops, call, MC_RPC_RemoveAll, &args, &answer, mc_ops_deadline(ops), MC_OPS_ONCE);
    mc_ops_end(ops, call);
    MC_TRY(status);
    if (answer < 0) { /* upstream's master answers an error in the count */
        return (enum mc_status)answer;
    }
    *removed = (uint64_t)answer;
    return MC_OK;
}

/* ---- what our master alone knows ---- */

static bool are_stripes(const struct mc_vec *replicas, uint64_t object_bytes, unsigned stripes) {
    const struct mw_replica *stripe = replicas->items;
    uint64_t bytes = mw_stripe_bytes(object_bytes, stripes);
    size_t count = replicas->count; /* behind them is what lies on disks, in one piece */
    while (count > 0 && stripe[count - 1].tag != MW_TAG_MEMORY) {
        count--;
    }
    bool all = count > 0 && count % stripes == 0 && replicas->count < 64 && bytes < object_bytes;
    for (size_t i = 0; all && i < count; i++) {
        all = stripe[i].tag == MW_TAG_MEMORY && stripe[i].memory.size == bytes;
    }
    return all;
}

/* Two numbers of stripes never have the same size when one is a multiple of the other, as each has
 * at least 16 units. */
unsigned mc_ops_stripes(const struct mc_vec *replicas, uint64_t object_bytes) {
    for (unsigned n = 2; n <= replicas->count; n++) {
        if (are_stripes(replicas, object_bytes, n)) {
            return n;
        }
    }
    return 0;
}

enum mc_status mc_ops_object_stripes(const struct mw_object *object, unsigned *stripes) {
    *stripes = object->stripes > 1 ? object->stripes : 0;
    return *stripes == 0 || are_stripes(&object->list.replicas, object->size, *stripes)
               ? MC_OK
               : MC_INVALID_REPLICA;
}

bool mc_ops_readable(const struct mc_vec *replicas, unsigned stripes) {
    const struct mw_replica *replica = replicas->items;
    size_t apart = stripes > 0 ? stripes : 1;
    for (size_t stripe = 0; stripe < apart; stripe++) {
        bool readable = false;
        for (size_t i = stripe; i < replicas->count; i += apart) {
            readable = readable || mc_ops_replica_readable(&replica[i]);
        }
        if (!readable) {
            return false;
        }
    }
    return true;
}

enum mc_status mc_ops_get_objects(struct mc_ops *ops, struct mc_ops_call *call,
                                  struct mc_str *names, size_t n, uint64_t deadline_ns,
                                  struct mc_vec *answers) {
    struct mw_a_keys args = {.keys = {names, n}, .tenant = ops->tenant};
    return mc_ops_rpc_batch(ops, call, MC_RPC_GetObjects, &args, answers, n, deadline_ns,
                            MC_OPS_IDEMPOTENT);
}

/* ---- inspect ---- */

static void inspect_chunk(struct mc_ops *ops, struct mc_ops_call *call, const char *const *keys,
                          size_t count, struct mc_object_info *infos, enum mc_status *results) {
    struct mc_str *valid = mc_arena_alloc(&call->arena, count * sizeof(*valid));
    uint32_t *place = mc_arena_alloc(&call->arena, count * sizeof(*place));
    size_t n = take_keys(keys, count, valid, place, results);
    struct mw_a_keys args = {.keys = {valid, n}, .tenant = ops->tenant};
    struct mc_vec answers = {0};
    enum mc_status status = n > 0 ? mc_ops_rpc_batch(ops, call, MC_RPC_Inspect, &args, &answers, n,
                                                     mc_ops_deadline(ops), MC_OPS_IDEMPOTENT)
                                  : MC_OK;
    const struct mw_e_object_info *answer = answers.items;
    for (size_t i = 0; i < n; i++) {
        results[place[i]] = status != MC_OK ? status : mc_ops_status(answer[i].error);
        if (results[place[i]] == MC_OK) {
            const struct mw_object_info *o = &answer[i].value;
            infos[place[i]] = (struct mc_object_info){.size = o->size,
                                                      .version = o->version,
                                                      .checksum = o->checksum.value,
                                                      .has_checksum = o->checksum.has,
                                                      .has_ttl = o->has_life,
                                                      .ttl_left_ms = o->life_left_ms,
                                                      .stripes = o->stripes,
                                                      .replicas = o->replicas};
        }
    }
}

enum mc_status mc_ops_inspect(struct mc_ops *ops, const char *const *keys, size_t count,
                              struct mc_object_info *infos, enum mc_status *results) {
    if (count > 0 && (keys == NULL || infos == NULL || results == NULL)) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    for (size_t done = 0; done < count;) {
        size_t n = mc_ops_chunk_keys(keys + done, count - done);
        inspect_chunk(ops, call, keys + done, n, infos + done, results + done);
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return MC_OK;
}

/* ---- list ---- */

static void take_page(const struct mw_key_page *answer, struct mc_store_keys *page) {
    const struct mc_str *key = answer->keys.items;
    size_t bytes = 0;
    for (size_t i = 0; i < answer->keys.count; i++) {
        bytes += sizeof(char *) + key[i].len + 1;
    }
    const char **pointers = mc_zalloc(bytes + 1);
    char *text = (char *)(pointers + answer->keys.count);
    for (size_t i = 0; i < answer->keys.count; i++) {
        pointers[i] = text;
        memcpy(text, key[i].ptr, key[i].len);
        text += key[i].len + 1;
    }
    page->keys = pointers;
    page->count = answer->keys.count;
    memcpy(page->next, answer->next.ptr, answer->next.len);
    page->next[answer->next.len] = '\0';
}

enum mc_status mc_ops_list(struct mc_ops *ops, const char *prefix, const char *after, size_t limit,
                           struct mc_store_keys *page) {
    if (page == NULL ||
        (prefix != NULL && strnlen(prefix, MC_STORE_KEY_MAX + 1) > MC_STORE_KEY_MAX)) {
        return MC_INVALID_PARAMS;
    }
    struct mw_a_list_keys args = {.tenant = ops->tenant,
                                  .prefix = mc_str_from(prefix != NULL ? prefix : ""),
                                  .after = mc_str_from(after != NULL ? after : ""),
                                  .limit = limit};
    struct mw_e_key_page answer;
    struct mc_ops_call *call = mc_ops_begin(ops);
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_ListKeys, &args, &answer,
                                       mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    if (status == MC_OK) {
        status = mc_ops_status(answer.error);
    }
    if (status == MC_OK && answer.value.next.len >= sizeof(page->next)) {
        status = MC_RPC_FAIL;
    }
    if (status == MC_OK) {
        take_page(&answer.value, page);
    }
    mc_ops_end(ops, call);
    return status;
}

/* ---- looking inside ---- */

/* The replicas, and the size when there is one. */
static enum mc_status query(struct mc_ops *ops, struct mc_ops_call *call, const char *key,
                            struct mw_object *out) {
    struct mw_a_key args = {.tenant = ops->tenant};
    MC_TRY(mc_ops_key(key, &args.key));
    uint64_t deadline_ns = mc_ops_deadline(ops);
    struct mw_e_list answer;
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_GetReplicaList, &args, &answer, deadline_ns,
                      MC_OPS_IDEMPOTENT));
    if (answer.error == MC_NOT_SUPPORTED) { /* striped */
        struct mc_vec answers;
        MC_TRY(mc_ops_get_objects(ops, call, &args.key, 1, deadline_ns, &answers));
        *out = ((const struct mw_e_object *)answers.items)->value;
        return mc_ops_status(((const struct mw_e_object *)answers.items)->error);
    }
    MC_TRY(mc_ops_status(answer.error));
    *out = (struct mw_object){.list = answer.value};
    if (answer.value.replicas.count > 0) {
        out->size = mc_ops_replica_size(answer.value.replicas.items);
    }
    return MC_OK;
}

enum mc_status mc_ops_size(struct mc_ops *ops, const char *key, uint64_t *length) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_object object;
    enum mc_status status = query(ops, call, key, &object);
    if (status == MC_OK && object.list.replicas.count == 0) {
        status = MC_INVALID_REPLICA;
    }
    if (status == MC_OK) {
        *length = object.size;
    }
    mc_ops_end(ops, call);
    return status;
}

static void describe(const struct mw_replica *replica, struct mc_replica_info *info) {
    static const int TYPE_OF_TAG[] = {[MW_TAG_MEMORY] = 0,
                                      [MW_TAG_NOF] = 1,
                                      [MW_TAG_DISK] = 2,
                                      [MW_TAG_LOCAL_DISK] = 3,
                                      [MW_TAG_DFS] = 4};
    struct mc_str endpoint = {"", 0};
    *info = (struct mc_replica_info){.id = replica->id,
                                     .type = TYPE_OF_TAG[replica->tag],
                                     .status = replica->status,
                                     .size = mc_ops_replica_size(replica)};
    if (replica->tag == MW_TAG_MEMORY || replica->tag == MW_TAG_NOF) {
        const struct mw_buffer *buffer =
            replica->tag == MW_TAG_MEMORY ? &replica->memory : &replica->nof;
        info->address = buffer->address;
        endpoint = buffer->endpoint;
    } else if (replica->tag == MW_TAG_LOCAL_DISK) {
        endpoint = replica->local_disk.endpoint;
    }
    if (replica->tag == MW_TAG_DISK || replica->tag == MW_TAG_DFS) {
        struct mc_str path =
            replica->tag == MW_TAG_DISK ? replica->disk.file_path : replica->dfs.file_path;
        snprintf(info->file_path, sizeof(info->file_path), "%.*s", (int)path.len,
                 path.len ? path.ptr : "");
    }
    snprintf(info->endpoint, sizeof(info->endpoint), "%.*s", (int)endpoint.len,
             endpoint.len ? endpoint.ptr : "");
}

enum mc_status mc_ops_replicas(struct mc_ops *ops, const char *key,
                               struct mc_replica_info *replicas, size_t capacity, size_t *count) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_object object;
    enum mc_status status = query(ops, call, key, &object);
    if (status == MC_OK) {
        const struct mc_vec list = object.list.replicas;
        const struct mw_replica *replica = list.items;
        *count = 0;
        for (size_t i = 0; i < list.count; i++) {
            if (replica[i].status == MC_REPLICA_REMOVED) {
                continue; /* the place of a lost stripe */
            }
            if (*count < capacity) {
                describe(&replica[i], &replicas[*count]);
            }
            ++*count;
        }
    }
    mc_ops_end(ops, call);
    return status;
}
