/* The RPCs about copies, moves and tasks: from argument structs to the core and back. */
#include "master/rpc_methods.h"

/* ---- tasks ---- */

void mc_rpc_CreateCopyTask(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_copy_task *a = args;
    struct mw_e_uuid *r = ret;
    struct mc_key key;
    r->error = mc_key_make(call->m, a->tenant, a->key, &key);
    if (r->error == 0) {
        r->error = mc_copy_task(call, &key, &a->targets, &r->value);
    }
}

void mc_rpc_CreateMoveTask(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_move_task *a = args;
    struct mw_e_uuid *r = ret;
    struct mc_key key;
    r->error = mc_key_make(call->m, a->tenant, a->key, &key);
    if (r->error == 0) {
        r->error = mc_move_task(call, &key, a->source, a->target, &r->value);
    }
}

void mc_rpc_QueryTask(struct mc_call *call, const void *args, void *ret) {
    const struct mc_uuid *id = args;
    struct mw_e_task *r = ret;
    r->error = mc_task_query(call, *id, &r->value);
}

void mc_rpc_FetchTasks(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_fetch_tasks *a = args;
    struct mw_e_vec *r = ret;
    mc_tasks_fetch(call, a->client, a->count, &r->value);
}

void mc_rpc_MarkTaskToComplete(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_task_complete *a = args;
    struct mw_e_void *r = ret;
    r->error = mc_task_complete(call, a->client, &a->task);
}

/* ---- what a task does ---- */

void mc_rpc_CopyStart(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_copy_start *a = args;
    struct mw_e_copy *r = ret;
    struct mc_key key;
    r->error = mc_key_make(call->m, a->tenant, a->key, &key);
    if (r->error == 0) {
        r->error = mc_copy_start(call, &key, a->client, a->source, &a->targets, &r->value);
    }
}

void mc_rpc_MoveStart(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_move_start *a = args;
    struct mw_e_move *r = ret;
    struct mc_key key;
    r->error = mc_key_make(call->m, a->tenant, a->key, &key);
    if (r->error == 0) {
        r->error = mc_move_start(call, &key, a->client, a->source, a->target, &r->value);
    }
}

static void finish(struct mc_call *call, const struct mw_a_client_key *a, struct mw_e_void *r,
                   enum mc_replication_kind kind,
                   enum mc_status (*run)(struct mc_call *, const struct mc_key *, struct mc_uuid,
                                         enum mc_replication_kind)) {
    struct mc_key key;
    r->error = mc_key_make(call->m, a->tenant, a->key, &key);
    if (r->error == 0) {
        r->error = run(call, &key, a->client, kind);
    }
}

void mc_rpc_CopyEnd(struct mc_call *call, const void *args, void *ret) {
    finish(call, args, ret, MC_REPLICATION_COPY, mc_replication_end);
}
void mc_rpc_CopyRevoke(struct mc_call *call, const void *args, void *ret) {
    finish(call, args, ret, MC_REPLICATION_COPY, mc_replication_revoke);
}
void mc_rpc_MoveEnd(struct mc_call *call, const void *args, void *ret) {
    finish(call, args, ret, MC_REPLICATION_MOVE, mc_replication_end);
}
void mc_rpc_MoveRevoke(struct mc_call *call, const void *args, void *ret) {
    finish(call, args, ret, MC_REPLICATION_MOVE, mc_replication_revoke);
}
