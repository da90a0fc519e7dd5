/*
 * The master's RPCs: argument and answer structs, and one table that names them all (spec:
 * docs/wire.md).
 *
 * Every struct here has a schema table of the same name in wire/master_rpc.c. The argument struct
 * of an RPC with several parameters is the tuple of them in order. Strings and vectors are views
 * (see wire/schema.h).
 */
#ifndef MC_WIRE_MASTER_RPC_H
#define MC_WIRE_MASTER_RPC_H

#include "wire/schema.h"

enum mc_replica_type {
    MC_REPLICA_MEMORY = 0,
    MC_REPLICA_DISK = 1,
    MC_REPLICA_LOCAL_DISK = 2,
    MC_REPLICA_NOF_SSD = 3,
    MC_REPLICA_ALL = 4,
    MC_REPLICA_DFS = 100
};
enum mc_replica_status {
    MC_REPLICA_UNDEFINED = 0,
    MC_REPLICA_INITIALIZED = 1,
    MC_REPLICA_PROCESSING = 2,
    MC_REPLICA_COMPLETE = 3,
    MC_REPLICA_REMOVED = 4,
    MC_REPLICA_FAILED = 5
};
enum mc_client_status { MC_CLIENT_UNDEFINED = 0, MC_CLIENT_OK = 1, MC_CLIENT_NEED_REMOUNT = 2 };
enum mc_segment_status {
    MC_SEGMENT_UNDEFINED = 0,
    MC_SEGMENT_OK = 1,
    MC_SEGMENT_DRAINING = 2,
    MC_SEGMENT_DRAINED = 3,
    MC_SEGMENT_GRACEFULLY_UNMOUNTING = 4,
    MC_SEGMENT_UNMOUNTING = 5
};
enum mc_soft_pin { MC_SOFT_PIN_PRESERVE = 0, MC_SOFT_PIN_ENABLE = 1, MC_SOFT_PIN_DISABLE = 2 };
enum mc_task_type { MC_TASK_COPY = 0, MC_TASK_MOVE = 1 };
enum mc_task_status {
    MC_TASK_PENDING = 0,
    MC_TASK_PROCESSING = 1,
    MC_TASK_FAILED = 2,
    MC_TASK_SUCCESS = 3
};

struct mw_opt_u64 {
    bool has;
    uint64_t value;
};
struct mw_opt_strs { /* optional<vector<string>> */
    bool has;
    struct mc_vec value; /* of struct mc_str */
};

struct mw_segment {
    struct mc_uuid id;
    struct mc_str name;
    uint64_t base;
    uint64_t size;
    struct mc_str te_endpoint;
    struct mc_str protocol;
    struct mc_str host_id;
};
struct mw_nof_segment {
    struct mc_uuid id;
    struct mc_str name;
    uint64_t base;
    uint64_t size;
    struct mc_str te_endpoint;
};
struct mw_nof_owner {
    struct mc_uuid segment_id;
    struct mc_uuid client_id;
};

struct mw_replicate_config {
    uint64_t replica_num;
    uint64_t nof_replica_num;
    uint64_t dfs_replica_num;
    uint8_t soft_pin_action;
    struct mw_opt_u64 soft_pin_ttl_ms;
    bool with_hard_pin;
    struct mc_vec preferred_segments; /* of struct mc_str */
    struct mc_str preferred_segment;
    struct mc_vec preferred_nof_segments;
    bool prefer_alloc_in_same_node;
    uint8_t data_type;
    struct mc_str host_id;
    struct mw_opt_strs group_ids;
};

struct mw_buffer { /* AllocatedBuffer::Descriptor: a memory or NoF replica's place */
    uint64_t size;
    uint64_t address;
    struct mc_str protocol;
    struct mc_str endpoint; /* te_endpoint of the segment: what to open to reach it */
};
struct mw_disk {
    struct mc_str file_path;
    uint64_t object_size;
};
struct mw_local_disk {
    struct mc_uuid client_id;
    uint64_t object_size;
    struct mc_str endpoint;
};
struct mw_dfs {
    struct mc_str file_path;
    uint64_t offset;
    uint64_t object_size;
    uint64_t aligned_size;
    int32_t shard_idx;
};
enum { MW_TAG_MEMORY = 0, MW_TAG_NOF = 1, MW_TAG_DISK = 2, MW_TAG_LOCAL_DISK = 3, MW_TAG_DFS = 4 };
struct mw_replica { /* Replica::Descriptor */
    uint64_t id;
    uint8_t tag; /* MW_TAG_* */
    union {
        struct mw_buffer memory;
        struct mw_buffer nof;
        struct mw_disk disk;
        struct mw_local_disk local_disk;
        struct mw_dfs dfs;
    };
    int32_t status; /* enum mc_replica_status */
};

struct mw_object_meta {
    struct mc_str key;
    struct mw_opt_u64 checksum;
};
struct mw_replica_list {    /* GetReplicaListResponse */
    struct mc_vec replicas; /* of struct mw_replica */
    uint64_t lease_ttl_ms;
    struct mw_opt_u64 checksum;
};
struct mw_ping_reply {
    int64_t view_version;
    int32_t client_status;
};
struct mw_storage_config {
    struct mc_str fsdir;
    bool enable_disk_eviction;
    uint64_t quota_bytes;
};
struct mw_copy_start {
    struct mw_replica source;
    struct mc_vec targets; /* of struct mw_replica */
};
struct mw_move_start {
    struct mw_replica source;
    struct {
        bool has;
        struct mw_replica value;
    } target;
};
struct mw_promotion_start {
    struct mw_replica memory;
};
struct mw_disk_task { /* OffloadTaskItem, PromotionTaskItem */
    struct mc_str tenant;
    struct mc_str key;
    int64_t size;
};
struct mw_storage_object {
    int64_t bucket_id;
    int64_t offset;
    int64_t key_size;
    int64_t data_size;
    struct mc_str endpoint;
};
struct mw_task_info { /* QueryTaskResponse */
    struct mc_uuid id;
    int32_t type;
    int32_t status;
    int64_t created;
    int64_t updated;
    struct mc_uuid client;
    struct mc_str message;
};
struct mw_task_assignment {
    struct mc_uuid id;
    int32_t type;
    struct mc_str payload;
    int64_t created_at_ms;
    uint32_t max_retry_attempts;
};
struct mw_task_complete {
    struct mc_uuid id;
    int32_t status;
    struct mc_str message;
};

/* expected<T, ErrorCode>: error 0 means value holds. */
#define MW_EXPECTED(name, T)                                                                       \
    struct name {                                                                                  \
        int32_t error;                                                                             \
        T value;                                                                                   \
    }
MW_EXPECTED(mw_e_bool, bool);
MW_EXPECTED(mw_e_i64, int64_t);
MW_EXPECTED(mw_e_i32, int32_t);
MW_EXPECTED(mw_e_str, struct mc_str);
MW_EXPECTED(mw_e_vec, struct mc_vec); /* of whatever the RPC's table says */
MW_EXPECTED(mw_e_uuid, struct mc_uuid);
MW_EXPECTED(mw_e_list, struct mw_replica_list);
MW_EXPECTED(mw_e_ping, struct mw_ping_reply);
MW_EXPECTED(mw_e_storage, struct mw_storage_config);
MW_EXPECTED(mw_e_task, struct mw_task_info);
MW_EXPECTED(mw_e_copy, struct mw_copy_start);
MW_EXPECTED(mw_e_move, struct mw_move_start);
MW_EXPECTED(mw_e_promotion, struct mw_promotion_start);
struct mw_e_void {
    int32_t error;
};

/* map<K, V> entries */
struct mw_str_replicas {
    struct mc_str key;
    struct mc_vec replicas;
};
struct mw_uuid_strs {
    struct mc_uuid id;
    struct mc_vec strs;
};

/* ---- arguments ---- */

struct mw_a_key {
    struct mc_str key, tenant;
}; /* ExistKey GetReplicaList(ByRegex) */
struct mw_a_keys {
    struct mc_vec keys;
    struct mc_str tenant;
}; /* BatchExistKey BatchGetReplicaList */
struct mw_a_replica_clear {
    struct mc_vec keys;
    struct mc_uuid client;
    struct mc_str segment;
};
struct mw_a_put_start {
    struct mc_uuid client;
    struct mc_str key;
    uint64_t length;
    struct mw_replicate_config config;
    struct mc_str tenant;
};
struct mw_a_put_end {
    struct mc_uuid client;
    struct mw_object_meta meta;
    int32_t type;
    struct mc_str tenant;
};
struct mw_a_put_revoke {
    struct mc_uuid client;
    struct mc_str key;
    int32_t type;
    struct mc_str tenant;
};
struct mw_a_batch_put_start {
    struct mc_uuid client;
    struct mc_vec keys;
    struct mc_vec lengths /* u64 */;
    struct mw_replicate_config config;
    struct mc_str tenant;
};
struct mw_a_batch_put_end {
    struct mc_uuid client;
    struct mc_vec metas /* mw_object_meta */;
    int32_t type;
    struct mc_str tenant;
};
struct mw_a_batch_put_revoke {
    struct mc_uuid client;
    struct mc_vec keys;
    int32_t type;
    struct mc_str tenant;
};
struct mw_a_batch_upsert_end {
    struct mc_uuid client;
    struct mc_vec metas;
    struct mc_str tenant;
};
struct mw_a_batch_upsert_revoke {
    struct mc_uuid client;
    struct mc_vec keys;
    struct mc_str tenant;
};
struct mw_a_remove {
    struct mc_str key;
    bool force;
    struct mc_str tenant;
}; /* Remove RemoveByRegex */
struct mw_a_remove_all {
    bool force;
    struct mc_str tenant;
};
struct mw_a_batch_remove {
    struct mc_vec keys;
    bool force;
    struct mc_str tenant;
};
struct mw_a_mount {
    struct mw_segment segment;
    struct mc_uuid client;
};
struct mw_a_nof_mount {
    struct mw_nof_segment segment;
    struct mc_uuid client;
};
struct mw_a_remount {
    struct mc_vec segments;
    struct mc_uuid client;
}; /* also NoF */
struct mw_a_unmount {
    struct mc_uuid segment, client;
};
struct mw_a_graceful_unmount {
    struct mc_uuid segment, client;
    uint64_t grace_ms;
};
struct mw_a_client_flag {
    struct mc_uuid client;
    bool flag;
};
struct mw_a_ssd_capacity {
    struct mc_uuid client;
    int64_t bytes;
};
struct mw_a_offload_done {
    struct mc_uuid client;
    struct mc_vec tasks /* mw_disk_task */;
    struct mc_vec objects /* mw_storage_object */;
};
struct mw_a_promotion_start {
    struct mc_uuid client;
    struct mc_str key, tenant;
    uint64_t size;
    struct mc_vec segments /* str */;
};
struct mw_a_client_key {
    struct mc_uuid client;
    struct mc_str key, tenant;
};
struct mw_a_copy_task {
    struct mc_str key, tenant;
    struct mc_vec targets;
};
struct mw_a_move_task {
    struct mc_str key, tenant, source, target;
};
struct mw_a_fetch_tasks {
    struct mc_uuid client;
    uint64_t count;
};
struct mw_a_task_complete {
    struct mc_uuid client;
    struct mw_task_complete task;
};
struct mw_a_copy_start {
    struct mc_uuid client;
    struct mc_str key, tenant, source;
    struct mc_vec targets;
};
struct mw_a_dyn_copy_start {
    struct mc_uuid client;
    struct mc_str key, tenant, source;
    struct mc_vec targets;
    struct mc_uuid lease;
    uint64_t epoch;
};
struct mw_a_dyn_copy_end {
    struct mc_uuid client;
    struct mc_str key, tenant;
    struct mc_uuid lease;
    uint64_t epoch;
};
struct mw_a_move_start {
    struct mc_uuid client;
    struct mc_str key, tenant, source, target;
};
struct mw_a_evict_disk {
    struct mc_uuid client;
    struct mc_str key, tenant;
    int32_t type;
};
struct mw_a_batch_evict_disk {
    struct mc_uuid client;
    struct mc_vec keys;
    struct mc_str tenant;
    int32_t type;
};

/* ---- ours alone ---- */

struct mw_a_list_keys {
    struct mc_str tenant, prefix, after;
    uint64_t limit;
};
struct mw_key_page {
    struct mc_vec keys;
    struct mc_str next;
};
MW_EXPECTED(mw_e_key_page, struct mw_key_page);

enum mw_put_condition { /* what the key must be for a put to begin */
                        MW_PUT_ALWAYS = 0,
                        MW_PUT_IF_ABSENT = 1,
                        MW_PUT_IF_VERSION = 2,
                        MW_PUT_IF_CHECKSUM = 3
};
/* A striped object: each copy lies on several segments, MW_STRIPE_UNIT on each in turn. Its stripes
 * are as many memory descriptors, in order and of equal size, and copies follow each other; where a
 * copy has lost a stripe there is a descriptor with the status REMOVED, so that number i is always
 * stripe i % stripes. Only the RPCs here show them, and upstream's answer NOT_SUPPORTED. */
#ifndef MW_STRIPE_UNIT /* less where objects are small: tests/sim */
#define MW_STRIPE_UNIT  (1ull << 20)
#define MW_STRIPE_LEAST (16 * MW_STRIPE_UNIT) /* of an object on each segment */
#endif
static inline uint64_t mw_stripe_bytes(uint64_t object_bytes, unsigned stripes) {
    uint64_t units = object_bytes / MW_STRIPE_UNIT + (object_bytes % MW_STRIPE_UNIT != 0);
    return (units / stripes + (units % stripes != 0)) * MW_STRIPE_UNIT;
}

struct mw_a_start_puts {
    struct mc_uuid client;
    struct mc_vec keys;
    struct mc_vec lengths /* u64 */;
    struct mw_replicate_config config;
    struct mc_str tenant;
    bool upsert;
    uint64_t ttl_ms;
    uint8_t condition;
    struct mc_vec expected /* u64, one a key; none where the condition has none */;
    uint64_t stripe_over; /* objects of at least so many bytes may be striped; 0 = none */
};
struct mw_object_info {
    uint64_t size, version;
    struct mw_opt_u64 checksum;
    bool has_life;
    uint64_t life_left_ms;
    uint32_t replicas, stripes; /* stripes: 1 = not striped */
};
MW_EXPECTED(mw_e_object_info, struct mw_object_info);
#define MW_DISK_DROP    (-1)
#define MW_DISK_CURRENT (-2)
struct mw_disk_item {
    struct mc_str tenant;
    struct mc_str key;
    /* Of SyncDisk MW_DISK_DROP: it was removed or replaced, and goes from the disk; such items come
     * first. Of OnDisk -1: it was not written; MW_DISK_CURRENT, first of what a disk tells when it
     * is mounted, without a key: `version` is the last `current` that it was given, and carried
     * out (a master that does not know it refuses the item). */
    int64_t size;
    uint64_t version; /* of the object; 0 = not known */
};
struct mw_a_sync_disk {
    struct mc_uuid client;
    bool flag;    /* it takes tasks */
    uint64_t ack; /* `serial` of the last answer whose drops it has carried out */
};
struct mw_disk_orders {
    uint64_t serial;
    /* Everything older than this has been told to the disk, these items included; 0 = this cannot
     * be said. A version, as objects have. */
    uint64_t current;
    struct mc_vec items /* mw_disk_item */;
};
MW_EXPECTED(mw_e_disk_orders, struct mw_disk_orders);
struct mw_a_on_disk {
    struct mc_uuid client;
    struct mc_str endpoint;
    bool found; /* when the disk was mounted; else these are answers to tasks */
    struct mc_vec items /* mw_disk_item */;
};
struct mw_a_dead_files {
    struct mc_uuid client; /* who asks: a batch is acknowledged by whom it was given to */
    uint64_t done;         /* the `batch` of the last answer, whose files are deleted; 0 = none */
};
struct mw_dead_files {
    uint64_t batch; /* 0 = nothing is to be deleted */
    /* This master's directory of files. A batch without paths: directories beside it that are named
     * alike, by 16 hexadecimal digits, are those of masters that were, and go. */
    struct mc_str keep;
    struct mc_vec paths /* mc_str */;
};
MW_EXPECTED(mw_e_dead_files, struct mw_dead_files);
struct mw_object { /* a replica list, and what upstream's has not */
    struct mw_replica_list list;
    uint64_t size, version;
    uint32_t stripes; /* of each copy; 1 = not striped */
};
MW_EXPECTED(mw_e_object, struct mw_object);

/* ---- the table ---- */

/* What only this master answers; another says that it does not know the function. Of the class
 * mooncake_c::Master. */
#define MC_MASTER_OWN_RPC_TABLE(X)                                                                 \
    X(ListKeys, struct mw_a_list_keys, struct mw_e_key_page)                                       \
    X(StartPuts, struct mw_a_start_puts, struct mc_vec /* mw_e_vec of mw_replica */)               \
    X(Inspect, struct mw_a_keys, struct mc_vec /* mw_e_object_info */)                             \
    X(TakeOffloads, struct mw_a_client_flag, struct mw_e_vec /* mw_disk_item */)                   \
    X(SyncDisk, struct mw_a_sync_disk, struct mw_e_disk_orders)                                    \
    X(OnDisk, struct mw_a_on_disk, struct mw_e_vec /* mw_e_void: whether it may stay */)           \
    X(TakeDeadFiles, struct mw_a_dead_files, struct mw_e_dead_files)                               \
    X(GetObjects, struct mw_a_keys, struct mc_vec /* mw_e_object */)

/* X(Name, argument struct, answer struct). A lone UUID, vector or string parameter has that type
 * itself. */
#define MC_MASTER_RPC_TABLE(X)                                                                     \
    X(ExistKey, struct mw_a_key, struct mw_e_bool)                                                 \
    X(BatchExistKey, struct mw_a_keys, struct mc_vec /* mw_e_bool */)                              \
    X(BatchQueryIp, struct mc_vec /* uuid */, struct mw_e_vec /* mw_uuid_strs */)                  \
    X(BatchReplicaClear, struct mw_a_replica_clear, struct mw_e_vec /* str */)                     \
    X(GetReplicaListByRegex, struct mw_a_key, struct mw_e_vec /* mw_str_replicas */)               \
    X(GetReplicaList, struct mw_a_key, struct mw_e_list)                                           \
    X(BatchGetReplicaList, struct mw_a_keys, struct mc_vec /* mw_e_list */)                        \
    X(PutStart, struct mw_a_put_start, struct mw_e_vec /* mw_replica */)                           \
    X(PutEnd, struct mw_a_put_end, struct mw_e_void)                                               \
    X(PutRevoke, struct mw_a_put_revoke, struct mw_e_void)                                         \
    X(BatchPutStart, struct mw_a_batch_put_start, struct mc_vec /* mw_e_vec of mw_replica */)      \
    X(BatchPutEnd, struct mw_a_batch_put_end, struct mc_vec /* mw_e_void */)                       \
    X(BatchPutRevoke, struct mw_a_batch_put_revoke, struct mc_vec)                                 \
    X(UpsertStart, struct mw_a_put_start, struct mw_e_vec)                                         \
    X(UpsertEnd, struct mw_a_put_end, struct mw_e_void)                                            \
    X(UpsertRevoke, struct mw_a_put_revoke, struct mw_e_void)                                      \
    X(BatchUpsertStart, struct mw_a_batch_put_start, struct mc_vec)                                \
    X(BatchUpsertEnd, struct mw_a_batch_upsert_end, struct mc_vec)                                 \
    X(BatchUpsertRevoke, struct mw_a_batch_upsert_revoke, struct mc_vec)                           \
    X(Remove, struct mw_a_remove, struct mw_e_void)                                                \
    X(RemoveByRegex, struct mw_a_remove, struct mw_e_i64)                                          \
    X(RemoveAll, struct mw_a_remove_all, int64_t)                                                  \
    X(BatchRemove, struct mw_a_batch_remove, struct mc_vec)                                        \
    X(MountSegment, struct mw_a_mount, struct mw_e_void)                                           \
    X(MountNoFSegment, struct mw_a_nof_mount, struct mw_e_void)                                    \
    X(ReMountSegment, struct mw_a_remount, struct mw_e_void)                                       \
    X(ReMountNoFSegment, struct mw_a_remount, struct mw_e_void)                                    \
    X(UnmountSegment, struct mw_a_unmount, struct mw_e_void)                                       \
    X(GracefulUnmountSegment, struct mw_a_graceful_unmount, struct mw_e_void)                      \
    X(UnmountNoFSegment, struct mw_a_unmount, struct mw_e_void)                                    \
    X(GetAllNoFSegments, void, struct mw_e_vec /* mw_nof_segment */)                               \
    X(GetNoFSegmentsByName, struct mc_str, struct mw_e_vec /* mw_nof_owner */)                     \
    X(GetFsdir, void, struct mw_e_str)                                                             \
    X(GetStorageConfig, void, struct mw_e_storage)                                                 \
    X(Ping, struct mc_uuid, struct mw_e_ping)                                                      \
    X(ServiceReady, void, struct mw_e_str)                                                         \
    X(MountLocalDiskSegment, struct mw_a_client_flag, struct mw_e_void)                            \
    X(UnmountLocalDiskSegment, struct mc_uuid, struct mw_e_void)                                   \
    X(OffloadObjectHeartbeat, struct mw_a_client_flag, struct mw_e_vec /* mw_disk_task */)         \
    X(PollRemoveAll, struct mc_uuid, struct mw_e_bool)                                             \
    X(ReportSsdCapacity, struct mw_a_ssd_capacity, struct mw_e_void)                               \
    X(NotifyOffloadSuccess, struct mw_a_offload_done, struct mw_e_void)                            \
    X(PromotionObjectHeartbeat, struct mc_uuid, struct mw_e_vec /* mw_disk_task */)                \
    X(PromotionAllocStart, struct mw_a_promotion_start, struct mw_e_promotion)                     \
    X(NotifyPromotionSuccess, struct mw_a_client_key, struct mw_e_void)                            \
    X(NotifyPromotionFailure, struct mw_a_client_key, struct mw_e_void)                            \
    X(QuerySegmentStatus, struct mc_str, struct mw_e_i32)                                          \
    X(QuerySegmentStatusById, struct mc_uuid, struct mw_e_i32)                                     \
    X(CreateCopyTask, struct mw_a_copy_task, struct mw_e_uuid)                                     \
    X(CreateMoveTask, struct mw_a_move_task, struct mw_e_uuid)                                     \
    X(QueryTask, struct mc_uuid, struct mw_e_task)                                                 \
    X(FetchTasks, struct mw_a_fetch_tasks, struct mw_e_vec /* mw_task_assignment */)               \
    X(MarkTaskToComplete, struct mw_a_task_complete, struct mw_e_void)                             \
    X(CopyStart, struct mw_a_copy_start, struct mw_e_copy)                                         \
    X(DynamicReplicaCopyStart, struct mw_a_dyn_copy_start, struct mw_e_copy)                       \
    X(CopyEnd, struct mw_a_client_key, struct mw_e_void)                                           \
    X(DynamicReplicaCopyEnd, struct mw_a_dyn_copy_end, struct mw_e_void)                           \
    X(CopyRevoke, struct mw_a_client_key, struct mw_e_void)                                        \
    X(DynamicReplicaCopyRevoke, struct mw_a_dyn_copy_end, struct mw_e_void)                        \
    X(MoveStart, struct mw_a_move_start, struct mw_e_move)                                         \
    X(MoveEnd, struct mw_a_client_key, struct mw_e_void)                                           \
    X(MoveRevoke, struct mw_a_client_key, struct mw_e_void)                                        \
    X(EvictDiskReplica, struct mw_a_evict_disk, struct mw_e_void)                                  \
    X(BatchEvictDiskReplica, struct mw_a_batch_evict_disk, struct mc_vec)                          \
    MC_MASTER_OWN_RPC_TABLE(X)

enum mc_master_rpc {
#define X(name, args, ret) MC_RPC_##name,
    MC_MASTER_RPC_TABLE(X)
#undef X
        MC_MASTER_RPC_COUNT,
    MC_MASTER_RPC_FIRST_OWN = MC_RPC_BatchEvictDiskReplica + 1
};

/* One schema version of an RPC. Upstream's releases differ: version 0 is the newest (0.3.13 and
 * later) and is what our client speaks unless the peer rejects it; version 1, where there is one,
 * is that of 0.3.12. A number means the same release for every RPC; the functions below take a
 * higher number than an RPC has for its highest. */
#define MC_RPC_MAX_VERSIONS 4
struct mc_rpc_schema {
    const struct mc_type *args; /* NULL = no arguments */
    const struct mc_type *ret;
    uint32_t args_hash; /* computed by mc_master_rpc_table */
    uint32_t ret_hash;
};
struct mc_rpc_desc {
    const char *name; /* "ExistKey" */
    uint32_t function_id;
    size_t args_size; /* of the C argument struct; 0 = none */
    size_t ret_size;
    unsigned version_count;
    struct mc_rpc_schema versions[MC_RPC_MAX_VERSIONS];
};

/* Computes ids and hashes once (thread safe, cheap to repeat) and returns the table, indexed by
 * enum mc_master_rpc. */
const struct mc_rpc_desc *mc_master_rpc_table(void);
/* The RPC with this function id, or NULL. */
const struct mc_rpc_desc *mc_master_rpc_find(uint32_t function_id);
static inline enum mc_master_rpc mc_master_rpc_index(const struct mc_rpc_desc *desc) {
    return (enum mc_master_rpc)(desc - mc_master_rpc_table());
}

/* True when the hash of the arguments tells this RPC's versions apart. For the others that have
 * several (GetReplicaList: same arguments, other answers) decode_args says 0, and a server uses
 * what another RPC of the same peer has told. */
bool mc_master_rpc_args_tell_version(const struct mc_rpc_desc *desc);

/* Picks the version whose argument hash the body carries (0 when the RPC has no arguments) and
 * decodes into `args` (args_size bytes; members that the version lacks are zero). Strings point
 * into `body`. MC_ERR_WIRE_HASH: no version has that hash. */
MC_MUST_USE enum mc_status mc_master_rpc_decode_args(const struct mc_rpc_desc *desc,
                                                     struct mc_str body, struct mc_arena *arena,
                                                     void *args, unsigned *version);
void mc_master_rpc_encode_args(const struct mc_rpc_desc *desc, unsigned version, const void *args,
                               struct mc_buf *out);
MC_MUST_USE enum mc_status mc_master_rpc_decode_ret(const struct mc_rpc_desc *desc,
                                                    unsigned version, struct mc_str body,
                                                    struct mc_arena *arena, void *ret);
void mc_master_rpc_encode_ret(const struct mc_rpc_desc *desc, unsigned version, const void *ret,
                              struct mc_buf *out);

/* Schema tables that other messages or tests use. */
extern const struct mc_type mc_t_segment, mc_t_replicate_config, mc_t_replica, mc_t_replica_list,
    mc_t_buffer;

#endif
