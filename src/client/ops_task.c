/*
 * Copies, moves and single replicas: what a client may ask the master for. (Who carries them out is
 * a node's business.)
 */
#include "client/ops_internal.h"

#include <stdio.h>

#include "client/replicate_config.h"

/* Asked once: the repetition of one that was carried out would make a second task. */
static enum mc_status create(struct mc_ops *ops, struct mc_ops_call *call, enum mc_master_rpc rpc,
                             const void *args, struct mc_uuid *task) {
    struct mw_e_uuid answer;
    MC_TRY(mc_ops_rpc(ops, call, rpc, args, &answer, mc_ops_deadline(ops), MC_OPS_ONCE));
    MC_TRY(mc_ops_status(answer.error));
    *task = answer.value;
    return MC_OK;
}

enum mc_status mc_ops_copy(struct mc_ops *ops, const char *key, const char *const *targets,
                           size_t target_count, struct mc_uuid *task) {
    struct mw_a_copy_task args = {.tenant = ops->tenant};
    MC_TRY(mc_ops_key(key, &args.key));
    if (target_count > 0 && targets == NULL) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    args.targets = mc_wire_strings(&call->arena, targets, target_count);
    enum mc_status status = create(ops, call, MC_RPC_CreateCopyTask, &args, task);
    mc_ops_end(ops, call);
    return status;
}

enum mc_status mc_ops_move(struct mc_ops *ops, const char *key, const char *source,
                           const char *target, struct mc_uuid *task) {
    struct mw_a_move_task args = {.tenant = ops->tenant};
    MC_TRY(mc_ops_key(key, &args.key));
    if (source == NULL || target == NULL) {
        return MC_INVALID_PARAMS;
    }
    args.source = mc_str_from(source);
    args.target = mc_str_from(target);
    struct mc_ops_call *call = mc_ops_begin(ops);
    enum mc_status status = create(ops, call, MC_RPC_CreateMoveTask, &args, task);
    mc_ops_end(ops, call);
    return status;
}

enum mc_status mc_ops_task(struct mc_ops *ops, struct mc_uuid id, struct mc_store_task *task) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_task answer;
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_QueryTask, &id, &answer,
                                       mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    if (status == MC_OK) {
        status = mc_ops_status(answer.error);
    }
    if (status == MC_OK) {
        const struct mw_task_info *info = &answer.value;
        *task = (struct mc_store_task){.id = {info->id.hi, info->id.lo},
                                       .type = info->type,
                                       .status = info->status,
                                       .created_ms = info->created,
                                       .updated_ms = info->updated,
                                       .client = {info->client.hi, info->client.lo}};
        snprintf(task->message, sizeof(task->message), "%.*s", (int)info->message.len,
                 info->message.len > 0 ? info->message.ptr : "");
    }
    mc_ops_end(ops, call);
    return status;
}

/* ---- single replicas ---- */

/* The master answers the keys that it cleared, each as often as it was named, in order. */
static void mark_cleared(const struct mc_vec *names, const struct mc_vec *answer, bool *cleared) {
    const struct mc_str *asked = names->items;
    const struct mc_str *done = answer->items;
    for (size_t i = 0, k = 0; i < names->count && k < answer->count; i++) {
        if (mc_str_eq(asked[i], done[k])) {
            cleared[i] = true;
            k++;
        }
    }
}

static enum mc_status clear_chunk(struct mc_ops *ops, struct mc_ops_call *call,
                                  const char *const *keys, size_t count, struct mc_str segment,
                                  bool *cleared) {
    struct mc_vec names = mc_wire_strings(&call->arena, keys, count);
    struct mw_a_replica_clear args = {.keys = names, .client = ops->client, .segment = segment};
    struct mw_e_vec answer;
    memset(cleared, 0, count * sizeof(*cleared));
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_BatchReplicaClear, &args, &answer, mc_ops_deadline(ops),
                      MC_OPS_ONCE));
    MC_TRY(mc_ops_status(answer.error));
    mark_cleared(&names, &answer.value, cleared);
    return MC_OK;
}

enum mc_status mc_ops_clear_replicas(struct mc_ops *ops, const char *const *keys, size_t count,
                                     const char *segment, bool *cleared) {
    struct mc_str key;
    if (count > 0 && (keys == NULL || cleared == NULL)) {
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < count; i++) {
        MC_TRY(mc_ops_key(keys[i], &key));
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    enum mc_status status = MC_OK;
    for (size_t done = 0; done < count && status == MC_OK;) {
        size_t n = mc_ops_chunk_keys(keys + done, count - done);
        status = clear_chunk(ops, call, keys + done, n,
                             segment != NULL ? mc_str_from(segment) : (struct mc_str){"", 0},
                             cleared + done);
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return status;
}
