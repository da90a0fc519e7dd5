/* Tables of a store node's RPCs. See wire/client_rpc.h; how tables are written: wire/tables.h. */
#include "wire/client_rpc.h"

#include <pthread.h>

#include "wire/tables.h"

MC_VEC_OF(t_strs, mc_t_str);
MC_VEC_OF(t_i64s, mc_t_i64);
MC_VEC_OF(t_u64s, mc_t_u64);
MC_STRUCT(a_offload_get, mw_a_offload_get, F(mw_a_offload_get, keys, t_strs),
          F(mw_a_offload_get, sizes, t_i64s));
MC_STRUCT(a_shm_mapped, mw_a_shm_mapped, F(mw_a_shm_mapped, address, mc_t_u64),
          F(mw_a_shm_mapped, client, mc_t_uuid));
MC_STRUCT(t_offload_buffers, mw_offload_buffers, F(mw_offload_buffers, batch_id, mc_t_u64),
          F(mw_offload_buffers, pointers, t_u64s), F(mw_offload_buffers, te_endpoint, mc_t_str),
          F(mw_offload_buffers, gc_ttl_ms, mc_t_u64));
MC_EXPECTED(e_offload_buffers, mw_e_offload_buffers, t_offload_buffers);

static struct mc_rpc_desc rpcs[MC_CLIENT_RPC_COUNT] = {
    [MC_CLIENT_RPC_batch_get_offload_object] =
        MC_RPC_ONE_VERSION(&a_offload_get, &e_offload_buffers),
    [MC_CLIENT_RPC_release_offload_buffer] = MC_RPC_ONE_VERSION(&mc_t_u64, &mc_t_bool),
    [MC_CLIENT_RPC_service_ready_internal] = MC_RPC_ONE_VERSION(NULL, &mc_t_e_void),
    [MC_CLIENT_RPC_is_shm_mapped_internal] = MC_RPC_ONE_VERSION(&a_shm_mapped, &mc_t_e_bool),
    [MC_CLIENT_RPC_ping] = MC_RPC_ONE_VERSION(&mc_t_uuid, &mc_t_e_ping),
};
static const struct mc_rpc_promise promised[] = {
#define X(rpc, args, ret) MC_RPC_PROMISE(rpc, args, ret)
    MC_CLIENT_RPC_TABLE(X)
#undef X
};

static void prepare(void) {
    for (size_t i = 0; i < MC_CLIENT_RPC_COUNT; i++) {
        mc_rpc_desc_complete(&rpcs[i], "mooncake::RealClient", &promised[i]);
    }
}

const struct mc_rpc_desc *mc_client_rpc_table(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* which TSan knows, unlike call_once */
    pthread_once(&once, prepare);
    return rpcs;
}

const struct mc_rpc_desc *mc_client_rpc_find(uint32_t function_id) {
    const struct mc_rpc_desc *table = mc_client_rpc_table();
    for (size_t i = 0; i < MC_CLIENT_RPC_COUNT; i++) {
        if (table[i].function_id == function_id) {
            return &table[i];
        }
    }
    return NULL;
}
