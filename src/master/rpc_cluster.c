/*
 * The RPCs about clients and segments, and the honest answers of features that are off: a tier or
 * task service that this master does not run says so with upstream's error for it, and never
 * pretends.
 */
#include "master/disks.h"
#include "master/files.h"
#include "master/promote.h"
#include "master/rpc_methods.h"

/* What upstream 0.3.13 answers; its clients compare it with their own. */
#define SERVICE_VERSION "2.0.0"

/* ---- segments ---- */

void mc_rpc_MountSegment(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_mount *a = args;
    struct mw_e_void *r = ret;
    r->error = mc_segment_mount(call, &a->segment, a->client);
    if (r->error == 0) {
        mc_client_seen(call->m, a->client, call->now_ms, false);
    }
}

void mc_rpc_ReMountSegment(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_remount *a = args;
    struct mw_e_void *r = ret;
    const struct mw_segment *segments = a->segments.items;
    for (size_t i = 0; i < a->segments.count; i++) {
        enum mc_status status = mc_segment_mount(call, &segments[i], a->client);
        r->error = r->error ? r->error : (int32_t)status;
    }
    mc_client_seen(call->m, a->client, call->now_ms, r->error == 0);
}

void mc_rpc_UnmountSegment(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_unmount *a = args;
    struct mw_e_void *r = ret;
    r->error = mc_segment_unmount(call, a->segment, a->client);
}

void mc_rpc_GracefulUnmountSegment(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_graceful_unmount *a = args;
    struct mw_e_void *r = ret;
    r->error = mc_segment_unmount_gracefully(call, a->segment, a->client, a->grace_ms);
}

void mc_rpc_QuerySegmentStatus(struct mc_call *call, const void *args, void *ret) {
    const struct mc_str *name = args;
    struct mw_e_i32 *r = ret;
    r->error = mc_segment_status_by_name(call->m, *name, &r->value);
}

void mc_rpc_QuerySegmentStatusById(struct mc_call *call, const void *args, void *ret) {
    const struct mc_uuid *id = args;
    struct mw_e_i32 *r = ret;
    r->error = mc_segment_status_by_id(call->m, *id, &r->value);
}

void mc_rpc_BatchQueryIp(struct mc_call *call, const void *args, void *ret) {
    const struct mc_vec *clients = args;
    struct mw_e_vec *r = ret;
    struct mw_uuid_strs *items = mc_arena_alloc(call->arena, (clients->count + 1) * sizeof(*items));
    size_t count = 0;
    for (size_t i = 0; i < clients->count; i++) {
        struct mc_uuid id = ((const struct mc_uuid *)clients->items)[i];
        bool seen = false;
        for (size_t k = 0; k < count && !seen; k++) {
            seen = mc_uuid_eq(items[k].id, id);
        }
        if (!seen && mc_segments_ips(call, id, &items[count].strs)) {
            items[count++].id = id;
        }
    }
    call->items += clients->count;
    call->failed_items += clients->count - count;
    r->value = (struct mc_vec){items, count};
}

/* ---- clients and the service ---- */

void mc_rpc_Ping(struct mc_call *call, const void *args, void *ret) {
    const struct mc_uuid *client = args;
    struct mw_e_ping *r = ret;
    bool ok = mc_client_ping(call->m, *client, call->now_ms);
    r->value = (struct mw_ping_reply){.view_version = 0,
                                      .client_status = ok ? MC_CLIENT_OK : MC_CLIENT_NEED_REMOUNT};
}

void mc_rpc_ServiceReady(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_str *r = ret;
    r->value = MC_STR(SERVICE_VERSION);
}

/* The directory of DISK replicas; "" = there are none. */
void mc_rpc_GetFsdir(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_str *r = ret;
    r->value = mc_str_from(call->m->config.root_fs_dir);
}

void mc_rpc_GetStorageConfig(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_storage *r = ret;
    r->value =
        (struct mw_storage_config){.fsdir = mc_str_from(call->m->config.root_fs_dir),
                                   .enable_disk_eviction = call->m->config.enable_disk_eviction,
                                   .quota_bytes = call->m->config.quota_bytes};
}

/* ---- the SSD tier ---- */

void mc_rpc_MountLocalDiskSegment(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_client_flag *a = args;
    struct mw_e_void *r = ret;
    r->error = mc_disk_mount(call, a->client, a->flag);
    if (r->error == 0) {
        mc_client_seen(call->m, a->client, call->now_ms, false);
    }
}

void mc_rpc_UnmountLocalDiskSegment(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_void *r = ret;
    if (!call->m->config.enable_offload) {
        r->error = MC_UNABLE_OFFLOAD;
        return;
    }
    mc_disk_unmount(call, *(const struct mc_uuid *)args);
}

void mc_rpc_OffloadObjectHeartbeat(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_client_flag *a = args;
    struct mw_e_vec *r = ret;
    struct mc_vec items = {0};
    r->error = mc_disk_heartbeat(call, a->client, a->flag, &items);
    const struct mw_disk_item *item = items.items;
    struct mw_disk_task *tasks = mc_arena_alloc(call->arena, (items.count + 1) * sizeof(*tasks));
    for (size_t i = 0; i < items.count; i++) {
        tasks[i] = (struct mw_disk_task){item[i].tenant, item[i].key, item[i].size};
    }
    r->value = (struct mc_vec){tasks, items.count};
}

void mc_rpc_ReportSsdCapacity(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_ssd_capacity *a = args;
    ((struct mw_e_void *)ret)->error = call->m->config.enable_offload
                                           ? mc_disk_capacity(call, a->client, a->bytes)
                                           : MC_UNABLE_OFFLOAD;
}

void mc_rpc_NotifyOffloadSuccess(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_offload_done *a = args;
    ((struct mw_e_void *)ret)->error = mc_disk_written(call, a->client, &a->tasks, &a->objects);
}

void mc_rpc_PollRemoveAll(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_bool *r = ret;
    r->error = call->m->config.enable_offload
                   ? mc_disk_poll_wipe(call, *(const struct mc_uuid *)args, &r->value)
                   : MC_UNABLE_OFFLOAD;
}

void mc_rpc_PromotionObjectHeartbeat(struct mc_call *call, const void *args, void *ret) {
    struct mw_e_vec *r = ret;
    r->error = mc_promote_heartbeat(call, *(const struct mc_uuid *)args, &r->value);
}

static enum mc_status tenant_key(struct mc_call *call, struct mc_str tenant, struct mc_str user,
                                 struct mc_key *key) {
    struct mc_str scope;
    MC_TRY(mc_tenant_normalise(tenant, &scope));
    return mc_key_make(call->m, scope, user, key);
}

void mc_rpc_PromotionAllocStart(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_promotion_start *a = args;
    struct mw_e_promotion *r = ret;
    struct mc_key key;
    r->error = tenant_key(call, a->tenant, a->key, &key);
    r->error = r->error == 0 ? mc_promote_start(call, &key, a, &r->value.memory) : r->error;
}

static int32_t promotion_end(struct mc_call *call, const struct mw_a_client_key *a, bool success) {
    struct mc_key key;
    MC_TRY(tenant_key(call, a->tenant, a->key, &key));
    return mc_promote_end(call, &key, a->client, success);
}

void mc_rpc_NotifyPromotionSuccess(struct mc_call *call, const void *args, void *ret) {
    ((struct mw_e_void *)ret)->error = promotion_end(call, args, true);
}

void mc_rpc_NotifyPromotionFailure(struct mc_call *call, const void *args, void *ret) {
    ((struct mw_e_void *)ret)->error = promotion_end(call, args, false);
}

/* ---- features that are off ---- */

/* Every answer of several that can fail begins with its error. */
#define ANSWERS(name, status)                                                                      \
    void mc_rpc_##name(struct mc_call *call, const void *args, void *ret) {                        \
        *(int32_t *)ret = (status);                                                                \
    }

ANSWERS(MountNoFSegment, MC_NOT_SUPPORTED)
ANSWERS(ReMountNoFSegment, MC_NOT_SUPPORTED)
ANSWERS(UnmountNoFSegment, MC_NOT_SUPPORTED)
ANSWERS(DynamicReplicaCopyStart, MC_UNAVAILABLE_IN_CURRENT_MODE)
ANSWERS(DynamicReplicaCopyEnd, MC_UNAVAILABLE_IN_CURRENT_MODE)
ANSWERS(DynamicReplicaCopyRevoke, MC_UNAVAILABLE_IN_CURRENT_MODE)
/* No segment of this kind, no task: the true answer is an empty list. */
ANSWERS(GetAllNoFSegments, MC_OK)
ANSWERS(GetNoFSegmentsByName, MC_OK)

static int32_t evict_disk(struct mc_call *call, struct mc_uuid client, struct mc_str tenant,
                          struct mc_str user, int32_t type) {
    struct mc_key key;
    struct mc_str scope;
    if (type != MC_REPLICA_DISK && type != MC_REPLICA_LOCAL_DISK) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(mc_tenant_normalise(tenant, &scope));
    MC_TRY(mc_key_make(call->m, scope, user, &key));
    return type == MC_REPLICA_DISK ? mc_file_forget(call, &key)
                                   : mc_disk_forget(call, &key, client);
}

void mc_rpc_EvictDiskReplica(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_evict_disk *a = args;
    ((struct mw_e_void *)ret)->error = evict_disk(call, a->client, a->tenant, a->key, a->type);
}

void mc_rpc_BatchEvictDiskReplica(struct mc_call *call, const void *args, void *ret) {
    const struct mw_a_batch_evict_disk *a = args;
    struct mc_vec *r = ret;
    struct mw_e_void *items = mc_arena_zalloc(call->arena, (a->keys.count + 1) * sizeof(*items));
    const struct mc_str *keys = a->keys.items;
    for (size_t i = 0; i < a->keys.count; i++) {
        items[i].error = evict_disk(call, a->client, a->tenant, keys[i], a->type);
        call->failed_items += items[i].error != 0;
    }
    call->items += a->keys.count;
    *r = (struct mc_vec){items, a->keys.count};
}
