/* A dummy's questions, removals and tasks: no bytes of objects. See client/dummy_client.h. */
#include <stdio.h>

#include "client/dummy_client_private.h"
#include "client/replicate_config.h"

static enum mc_status exist_chunk(struct mc_dummy_client *d, const char *const *keys, size_t count,
                                  bool *exists, enum mc_status *results) {
    struct mc_dummy_rpc r = {0};
    struct mc_vec args = mc_wire_strings(&r.arena, keys, count), ret = {0};
    enum mc_status status = mc_dummy_rpc(d, &r, MC_CLIENT_RPC_batchIsExist_internal, &args, &ret);
    if (status == MC_OK && ret.count != count) {
        status = MC_RPC_FAIL;
    }
    const struct mw_e_bool *one = ret.items;
    for (size_t i = 0; i < count; i++) {
        results[i] = status != MC_OK ? status : mc_dummy_status(one[i].error);
        exists[i] = results[i] == MC_OK && one[i].value;
    }
    mc_dummy_rpc_end(&r);
    return MC_OK;
}

enum mc_status mc_dummy_client_exist(struct mc_dummy_client *d, const char *const *keys,
                                     size_t count, bool *exists, enum mc_status *results) {
    for (size_t at = 0; at < count; at += MC_STORE_BATCH_CHUNK) {
        MC_TRY(exist_chunk(d, keys + at, mc_min_u64(MC_STORE_BATCH_CHUNK, count - at), exists + at,
                           results + at));
    }
    return MC_OK;
}

/* RPCs that answer one number. */
static enum mc_status ask_number(struct mc_dummy_client *d, enum mc_client_rpc rpc,
                                 const void *args, uint64_t *number) {
    struct mc_dummy_rpc r = {0};
    struct mw_e_i64 ret;
    enum mc_status status = mc_dummy_rpc(d, &r, rpc, args, &ret);
    status = status == MC_OK ? mc_dummy_status(ret.error) : status;
    if (status == MC_OK) {
        *number = (uint64_t)ret.value;
    }
    mc_dummy_rpc_end(&r);
    return status;
}

enum mc_status mc_dummy_client_size(struct mc_dummy_client *d, const char *key, uint64_t *length) {
    struct mc_str args = mc_str_from(key);
    return ask_number(d, MC_CLIENT_RPC_getSize_internal, &args, length);
}

enum mc_status mc_dummy_client_remove_regex(struct mc_dummy_client *d, const char *pattern,
                                            bool force, uint64_t *removed) {
    struct mw_a_dummy_remove args = {mc_str_from(pattern), force};
    return ask_number(d, MC_CLIENT_RPC_removeByRegex_internal, &args, removed);
}

enum mc_status mc_dummy_client_remove_all(struct mc_dummy_client *d, bool force,
                                          uint64_t *removed) {
    return ask_number(d, MC_CLIENT_RPC_removeAll_internal, &force, removed);
}

enum mc_status mc_dummy_client_remove(struct mc_dummy_client *d, const char *const *keys,
                                      size_t count, bool force, enum mc_status *results) {
    for (size_t at = 0; at < count; at += MC_STORE_BATCH_CHUNK) {
        size_t n = mc_min_u64(MC_STORE_BATCH_CHUNK, count - at);
        struct mc_dummy_rpc r = {0};
        struct mw_a_dummy_batch_remove args = {mc_wire_strings(&r.arena, keys + at, n), force};
        struct mc_vec ret = {0};
        enum mc_status status =
            mc_dummy_rpc(d, &r, MC_CLIENT_RPC_batchRemove_internal, &args, &ret);
        if (status == MC_OK && ret.count != n) {
            status = MC_RPC_FAIL;
        }
        for (size_t i = 0; i < n; i++) {
            results[at + i] = status != MC_OK
                                  ? status
                                  : mc_dummy_status(((struct mw_e_void *)ret.items)[i].error);
        }
        mc_dummy_rpc_end(&r);
    }
    return MC_OK;
}

/* ---- tasks ---- */

static enum mc_status ask_task(struct mc_dummy_client *d, enum mc_client_rpc rpc, const void *args,
                               struct mc_store_task_id *task) {
    struct mc_dummy_rpc r = {0};
    struct mw_e_uuid ret;
    enum mc_status status = mc_dummy_rpc(d, &r, rpc, args, &ret);
    status = status == MC_OK ? mc_dummy_status(ret.error) : status;
    if (status == MC_OK) {
        *task = (struct mc_store_task_id){ret.value.hi, ret.value.lo};
    }
    mc_dummy_rpc_end(&r);
    return status;
}

enum mc_status mc_dummy_client_copy(struct mc_dummy_client *d, const char *key,
                                    const char *const *targets, size_t count,
                                    struct mc_store_task_id *task) {
    struct mc_arena arena = {0};
    struct mw_a_dummy_copy args = {mc_str_from(key), mc_wire_strings(&arena, targets, count)};
    enum mc_status status = ask_task(d, MC_CLIENT_RPC_create_copy_task, &args, task);
    mc_arena_free(&arena);
    return status;
}

enum mc_status mc_dummy_client_move(struct mc_dummy_client *d, const char *key, const char *source,
                                    const char *target, struct mc_store_task_id *task) {
    struct mw_a_dummy_move args = {mc_str_from(key), mc_str_from(source), mc_str_from(target)};
    return ask_task(d, MC_CLIENT_RPC_create_move_task, &args, task);
}

enum mc_status mc_dummy_client_task(struct mc_dummy_client *d, struct mc_store_task_id id,
                                    struct mc_store_task *task) {
    struct mc_dummy_rpc r = {0};
    struct mc_uuid args = {id.hi, id.lo};
    struct mw_e_task ret;
    enum mc_status status = mc_dummy_rpc(d, &r, MC_CLIENT_RPC_query_task, &args, &ret);
    status = status == MC_OK ? mc_dummy_status(ret.error) : status;
    if (status == MC_OK) {
        *task = (struct mc_store_task){.id = {ret.value.id.hi, ret.value.id.lo},
                                       .type = ret.value.type,
                                       .status = ret.value.status,
                                       .created_ms = ret.value.created,
                                       .updated_ms = ret.value.updated,
                                       .client = {ret.value.client.hi, ret.value.client.lo}};
        snprintf(task->message, sizeof(task->message), "%.*s", (int)ret.value.message.len,
                 ret.value.message.ptr != NULL ? ret.value.message.ptr : "");
    }
    mc_dummy_rpc_end(&r);
    return status;
}
