/*
 * The one door: from an RPC number or from bytes to a method, with its counters. Which release's
 * schema an answer has is the business of dialect.h.
 */
#include "master/rpc_methods.h"

#define SINGLE(rpc, name) [MC_RPC_##rpc] = {mc_rpc_##rpc, name, false}
#define BATCH(rpc, name)  [MC_RPC_##rpc] = {mc_rpc_##rpc, name, true}

const struct mc_rpc_method mc_rpc_methods[MC_MASTER_RPC_COUNT] = {
    SINGLE(ExistKey, "exist_key"),
    BATCH(BatchExistKey, "batch_exist_key"),
    BATCH(BatchQueryIp, "batch_query_ip"),
    BATCH(BatchReplicaClear, "batch_replica_clear"),
    SINGLE(GetReplicaListByRegex, "get_replica_list_by_regex"),
    SINGLE(GetReplicaList, "get_replica_list"),
    BATCH(BatchGetReplicaList, "batch_get_replica_list"),
    SINGLE(PutStart, "put_start"),
    SINGLE(PutEnd, "put_end"),
    SINGLE(PutRevoke, "put_revoke"),
    BATCH(BatchPutStart, "batch_put_start"),
    BATCH(BatchPutEnd, "batch_put_end"),
    BATCH(BatchPutRevoke, "batch_put_revoke"),
    SINGLE(UpsertStart, NULL),
    SINGLE(UpsertEnd, NULL),
    SINGLE(UpsertRevoke, NULL),
    BATCH(BatchUpsertStart, NULL),
    BATCH(BatchUpsertEnd, NULL),
    BATCH(BatchUpsertRevoke, NULL),
    SINGLE(Remove, "remove"),
    SINGLE(RemoveByRegex, "remove_by_regex"),
    BATCH(RemoveAll, "remove_all"), /* its answer has no error */
    BATCH(BatchRemove, NULL),
    SINGLE(MountSegment, "mount_segment"),
    SINGLE(MountNoFSegment, "mount_nof_segment"),
    SINGLE(ReMountSegment, "remount_segment"),
    SINGLE(ReMountNoFSegment, "remount_nof_segment"),
    SINGLE(UnmountSegment, "unmount_segment"),
    SINGLE(GracefulUnmountSegment, NULL),
    SINGLE(UnmountNoFSegment, "unmount_nof_segment"),
    SINGLE(GetAllNoFSegments, NULL),
    SINGLE(GetNoFSegmentsByName, NULL),
    SINGLE(GetFsdir, NULL),
    SINGLE(GetStorageConfig, NULL),
    SINGLE(Ping, "ping"),
    SINGLE(ServiceReady, NULL),
    SINGLE(MountLocalDiskSegment, NULL),
    SINGLE(UnmountLocalDiskSegment, NULL),
    SINGLE(OffloadObjectHeartbeat, NULL),
    SINGLE(PollRemoveAll, NULL),
    SINGLE(ReportSsdCapacity, NULL),
    SINGLE(NotifyOffloadSuccess, NULL),
    SINGLE(PromotionObjectHeartbeat, NULL),
    SINGLE(PromotionAllocStart, NULL),
    SINGLE(NotifyPromotionSuccess, NULL),
    SINGLE(NotifyPromotionFailure, NULL),
    SINGLE(QuerySegmentStatus, NULL),
    SINGLE(QuerySegmentStatusById, NULL),
    SINGLE(CreateCopyTask, "create_copy_task"),
    SINGLE(CreateMoveTask, "create_move_task"),
    SINGLE(QueryTask, "query_task"),
    SINGLE(FetchTasks, "fetch_tasks"),
    SINGLE(MarkTaskToComplete, "update_task"),
    SINGLE(CopyStart, "copy_start"),
    SINGLE(DynamicReplicaCopyStart, NULL),
    SINGLE(CopyEnd, "copy_end"),
    SINGLE(DynamicReplicaCopyEnd, NULL),
    SINGLE(CopyRevoke, "copy_revoke"),
    SINGLE(DynamicReplicaCopyRevoke, NULL),
    SINGLE(MoveStart, "move_start"),
    SINGLE(MoveEnd, "move_end"),
    SINGLE(MoveRevoke, "move_revoke"),
    SINGLE(EvictDiskReplica, "evict_disk_replica"),
    BATCH(BatchEvictDiskReplica, NULL),
    SINGLE(ListKeys, NULL),
    BATCH(StartPuts, NULL),
    BATCH(Inspect, NULL),
    SINGLE(TakeOffloads, NULL),
    SINGLE(SyncDisk, NULL),
    SINGLE(OnDisk, NULL),
    SINGLE(TakeDeadFiles, NULL),
    BATCH(GetObjects, NULL),
};

void mc_rpc_UpsertEnd(struct mc_call *call, const void *args, void *ret) {
    mc_rpc_PutEnd(call, args, ret);
}
void mc_rpc_UpsertRevoke(struct mc_call *call, const void *args, void *ret) {
    mc_rpc_PutRevoke(call, args, ret);
}

static void count_call(struct mc_call *call, enum mc_master_rpc rpc, const void *ret) {
    struct mc_master_counters *all = &call->m->counters;
    struct mc_rpc_counters *c = &all->rpc[rpc];
    mc_count(&c->requests, 1);
    if (mc_rpc_methods[rpc].batch) {
        mc_count(&c->items, (int64_t)call->items);
        if (call->failed_items) {
            mc_count(&c->failed_items, (int64_t)call->failed_items);
            mc_count(call->failed_items == call->items ? &c->failures : &c->partial_successes, 1);
        }
    } else if (*(const int32_t *)ret != 0) {
        mc_count(&c->failures, 1);
    }
    if (call->gets) {
        mc_count(&all->gets, (int64_t)call->gets);
        mc_count(&all->valid_gets, (int64_t)(call->hits + call->disk_hits));
        mc_count(&all->hits, (int64_t)call->hits);
        mc_count(&all->hit_bytes, (int64_t)call->hit_bytes);
    }
    if (call->disk_hits) {
        mc_count(&all->disk_hits, (int64_t)call->disk_hits);
        mc_count(&all->disk_hit_bytes, (int64_t)call->disk_hit_bytes);
    }
}

void mc_master_handle(struct mc_master *m, enum mc_master_rpc rpc, const void *args,
                      struct mc_arena *arena, void *ret) {
    MC_ASSERT((unsigned)rpc < MC_MASTER_RPC_COUNT);
    struct mc_call call = {.m = m, .arena = arena, .now_ms = mc_now_ms(m->clock)};
    memset(ret, 0, mc_master_rpc_table()[rpc].ret_size);
    mc_rpc_methods[rpc].run(&call, args, ret);
    count_call(&call, rpc, ret);
}

/* ---- bytes ---- */

void mc_master_serve(void *master, const struct mc_rpc_request *request,
                     struct mc_rpc_reply *reply) {
    struct mc_master *m = master;
    const struct mc_rpc_desc *desc = mc_master_rpc_find(request->function_id);
    if (!desc) {
        reply->errc = MC_RPC_NOT_REGISTERED;
        return;
    }
    unsigned version = 0;
    void *args = mc_arena_zalloc(request->arena, desc->args_size + 1);
    void *ret = mc_arena_alloc(request->arena, desc->ret_size);
    if (mc_master_rpc_decode_args(desc, request->body, request->arena, args, &version) != MC_OK) {
        reply->errc = MC_RPC_INVALID_ARGUMENTS;
        return;
    }
    version = mc_dialects_resolve(m->dialects, request, desc, args, version);
    mc_master_handle(m, mc_master_rpc_index(desc), args, request->arena, ret);
    mc_master_rpc_encode_ret(desc, version, ret, reply->body);
}

void mc_master_closed(void *master, const uint64_t *peer_words, const char *peer) {
    mc_dialects_closed(((struct mc_master *)master)->dialects, peer_words, peer);
}

bool mc_master_serves_slowly(void *master, uint32_t function_id) {
    static const enum mc_master_rpc slow[] = {MC_RPC_GetReplicaListByRegex, MC_RPC_RemoveByRegex,
                                              MC_RPC_RemoveAll, MC_RPC_ListKeys};
    for (size_t i = 0; i < MC_ARRAY_LEN(slow); i++) {
        if (mc_master_rpc_table()[slow[i]].function_id == function_id) {
            return true;
        }
    }
    return false;
}
