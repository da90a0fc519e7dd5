/*
 * The RPCs that a store node serves: to other nodes, reading objects that it offloaded to its SSD;
 * to dummy clients of its own host, everything that a store does (client/dummies.h). Addresses in
 * the latter are the dummy's own, in memory that it has shared with the node.
 *
 * Tables as for the master (wire/master_rpc.h), with one schema version for all releases.
 */
#ifndef MC_WIRE_CLIENT_RPC_H
#define MC_WIRE_CLIENT_RPC_H

#include "wire/master_rpc.h"

struct mw_offload_buffers { /* BatchGetOffloadObjectResponse */
    uint64_t batch_id;
    struct mc_vec pointers; /* of uint64_t: addresses in the node, one a key */
    struct mc_str te_endpoint;
    uint64_t gc_ttl_ms; /* how long the node keeps them when they are not released */
};
MW_EXPECTED(mw_e_offload_buffers, struct mw_offload_buffers);

struct mw_a_offload_get {
    struct mc_vec keys;  /* of struct mc_str */
    struct mc_vec sizes; /* of int64_t */
};

struct mw_a_shm_mapped {
    uint64_t address;
    struct mc_uuid client;
};

/* ---- of dummy clients; `client` is the id that the dummy gave itself ---- */

struct mw_dummy_buffer {
    uint64_t address, size;
};
MW_EXPECTED(mw_e_dummy_buffer, struct mw_dummy_buffer);

struct mw_a_dummy_put {
    struct mc_str key, value;
    struct mw_replicate_config config;
    struct mc_uuid client;
};
struct mw_a_dummy_put_parts {
    struct mc_str key;
    struct mc_vec parts; /* of struct mc_str */
    struct mw_replicate_config config;
    struct mc_uuid client;
};
struct mw_a_dummy_put_batch {
    struct mc_vec keys, values; /* of struct mc_str */
    struct mw_replicate_config config;
    struct mc_uuid client;
};
struct mw_a_dummy_upsert_from {
    struct mc_str key;
    uint64_t address, size;
    struct mw_replicate_config config;
    struct mc_uuid client;
};
struct mw_a_dummy_put_from { /* also batch_upsert_from, which has no device */
    struct mc_vec keys;
    struct mc_vec addresses, sizes; /* of uint64_t; of the multi forms: of struct mc_vec of them */
    struct mw_replicate_config config;
    int32_t device;
    struct mc_uuid client;
};
struct mw_a_dummy_get_into {
    struct mc_vec keys;
    struct mc_vec addresses, sizes; /* as above */
    bool same_node;                 /* of the multi form */
    int32_t device;
    struct mc_uuid client;
};
struct mw_a_dummy_get_range {
    struct mc_str key;
    uint64_t address, to_offset, from_offset, size;
    bool whole; /* `size` is the memory's, and the object may be smaller */
    bool local;
    struct mc_uuid client;
};
struct mw_query_entry { /* what the dummy knows of a key's replicas */
    struct mc_str key;
    struct {
        bool ok;
        struct mw_replica_list list;
        int32_t error;
    } result;
};
struct mw_a_dummy_get_ranges {
    struct mc_vec addresses;                       /* of uint64_t, one a buffer */
    struct mc_vec keys;                            /* of vec of struct mc_str */
    struct mc_vec to_offsets, from_offsets, sizes; /* of vec of vec of uint64_t */
    struct mc_vec known;                           /* map: of struct mw_query_entry */
    int32_t device;
    struct mc_uuid client;
};
struct mw_a_dummy_key {
    struct mc_str key;
    struct mc_uuid client;
};
struct mw_a_dummy_keys {
    struct mc_vec keys;
    struct mc_uuid client;
};
struct mw_a_dummy_remove {
    struct mc_str key;
    bool force;
};
struct mw_a_dummy_batch_remove {
    struct mc_vec keys;
    bool force;
};
struct mw_a_dummy_copy {
    struct mc_str key;
    struct mc_vec targets; /* of struct mc_str */
};
struct mw_a_dummy_move {
    struct mc_str key, source, target;
};

/* X(name, argument struct, answer struct) */
#define MC_CLIENT_RPC_TABLE(X)                                                                     \
    X(batch_get_offload_object, struct mw_a_offload_get, struct mw_e_offload_buffers)              \
    X(release_offload_buffer, uint64_t, bool)                                                      \
    X(service_ready_internal, void, struct mw_e_void)                                              \
    X(is_shm_mapped_internal, struct mw_a_shm_mapped, struct mw_e_bool)                            \
    X(ping, struct mc_uuid, struct mw_e_ping)                                                      \
    X(unmap_shm_internal, struct mc_uuid, struct mw_e_void)                                        \
    X(unregister_shm_buffer_internal, struct mw_a_shm_mapped, struct mw_e_void)                    \
    X(allocate_buffer_dummy, struct mw_a_shm_mapped, struct mw_e_dummy_buffer)                     \
    X(release_buffer_dummy, struct mw_a_shm_mapped, struct mw_e_void)                              \
    X(acquire_buffer_dummy, struct mw_a_dummy_key, struct mw_e_dummy_buffer)                       \
    X(batch_acquire_buffer_dummy, struct mw_a_dummy_keys, struct mc_vec)                           \
    X(put_dummy_helper, struct mw_a_dummy_put, struct mw_e_void)                                   \
    X(upsert_dummy_helper, struct mw_a_dummy_put, struct mw_e_void)                                \
    X(put_parts_dummy_helper, struct mw_a_dummy_put_parts, struct mw_e_void)                       \
    X(upsert_parts_dummy_helper, struct mw_a_dummy_put_parts, struct mw_e_void)                    \
    X(put_batch_dummy_helper, struct mw_a_dummy_put_batch, struct mw_e_void)                       \
    X(upsert_batch_dummy_helper, struct mw_a_dummy_put_batch, struct mw_e_void)                    \
    X(upsert_from_dummy_helper, struct mw_a_dummy_upsert_from, struct mw_e_void)                   \
    X(batch_put_from_dummy_helper, struct mw_a_dummy_put_from, struct mc_vec)                      \
    X(batch_upsert_from_dummy_helper, struct mw_a_dummy_put_from, struct mc_vec)                   \
    X(batch_put_from_multi_buffers_dummy_helper, struct mw_a_dummy_put_from, struct mc_vec)        \
    X(batch_upsert_from_multi_buffers_dummy_helper, struct mw_a_dummy_put_from, struct mc_vec)     \
    X(batch_get_into_dummy_helper, struct mw_a_dummy_get_into, struct mc_vec)                      \
    X(batch_get_into_multi_buffers_dummy_helper, struct mw_a_dummy_get_into, struct mc_vec)        \
    X(get_into_range_shm_helper, struct mw_a_dummy_get_range, struct mw_e_i64)                     \
    X(get_into_ranges_shm_helper, struct mw_a_dummy_get_ranges, struct mc_vec)                     \
    X(isExist_internal, struct mc_str, struct mw_e_bool)                                           \
    X(batchIsExist_internal, struct mc_vec, struct mc_vec)                                         \
    X(getSize_internal, struct mc_str, struct mw_e_i64)                                            \
    X(remove_internal, struct mw_a_dummy_remove, struct mw_e_void)                                 \
    X(batchRemove_internal, struct mw_a_dummy_batch_remove, struct mc_vec)                         \
    X(removeByRegex_internal, struct mw_a_dummy_remove, struct mw_e_i64)                           \
    X(removeAll_internal, bool, struct mw_e_i64)                                                   \
    X(create_copy_task, struct mw_a_dummy_copy, struct mw_e_uuid)                                  \
    X(create_move_task, struct mw_a_dummy_move, struct mw_e_uuid)                                  \
    X(query_task, struct mc_uuid, struct mw_e_task)

enum mc_client_rpc {
#define X(name, args, ret) MC_CLIENT_RPC_##name,
    MC_CLIENT_RPC_TABLE(X)
#undef X
        MC_CLIENT_RPC_COUNT
};

/* Indexed by enum mc_client_rpc. The codec functions of wire/master_rpc.h
 * (mc_master_rpc_decode_args, ...) take its entries. */
const struct mc_rpc_desc *mc_client_rpc_table(void);
const struct mc_rpc_desc *mc_client_rpc_find(uint32_t function_id); /* NULL when not one of these */

#endif
