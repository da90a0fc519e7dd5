/*
 * The RPCs that a store node serves to other nodes: reading objects that it offloaded to its SSD.
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

/* X(name, argument struct, answer struct) */
#define MC_CLIENT_RPC_TABLE(X)                                                                     \
    X(batch_get_offload_object, struct mw_a_offload_get, struct mw_e_offload_buffers)              \
    X(release_offload_buffer, uint64_t, bool)                                                      \
    X(service_ready_internal, void, struct mw_e_void)                                              \
    X(is_shm_mapped_internal, struct mw_a_shm_mapped, struct mw_e_bool)                            \
    X(ping, struct mc_uuid, struct mw_e_ping)

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
