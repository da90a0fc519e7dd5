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

/* ---- of dummy clients ---- */

#define A(args, member, table) F(mw_a_dummy_##args, member, table)
MC_VEC_OF(t_chars_list, mc_t_chars);
MC_VEC_OF(t_u64_lists, t_u64s);
MC_VEC_OF(t_u64_tables, t_u64_lists);
MC_VEC_OF(t_str_lists, t_strs);
MC_STRUCT(a_dummy_put, mw_a_dummy_put, A(put, key, mc_t_str), A(put, value, mc_t_chars),
          A(put, config, mc_t_replicate_config), A(put, client, mc_t_uuid));
MC_STRUCT(a_dummy_put_parts, mw_a_dummy_put_parts, A(put_parts, key, mc_t_str),
          A(put_parts, parts, t_chars_list), A(put_parts, config, mc_t_replicate_config),
          A(put_parts, client, mc_t_uuid));
MC_STRUCT(a_dummy_put_batch, mw_a_dummy_put_batch, A(put_batch, keys, t_strs),
          A(put_batch, values, t_chars_list), A(put_batch, config, mc_t_replicate_config),
          A(put_batch, client, mc_t_uuid));
MC_STRUCT(a_dummy_upsert_from, mw_a_dummy_upsert_from, A(upsert_from, key, mc_t_str),
          A(upsert_from, address, mc_t_u64), A(upsert_from, size, mc_t_u64),
          A(upsert_from, config, mc_t_replicate_config), A(upsert_from, client, mc_t_uuid));
#define PUT_FROM(name, numbers, ...)                                                               \
    MC_STRUCT(name, mw_a_dummy_put_from, A(put_from, keys, t_strs),                                \
              A(put_from, addresses, numbers), A(put_from, sizes, numbers),                        \
              A(put_from, config, mc_t_replicate_config), __VA_ARGS__)
PUT_FROM(a_dummy_put_from, t_u64s, A(put_from, device, mc_t_i32), A(put_from, client, mc_t_uuid));
PUT_FROM(a_dummy_batch_upsert, t_u64s, A(put_from, client, mc_t_uuid));
PUT_FROM(a_dummy_put_multi, t_u64_lists, A(put_from, device, mc_t_i32),
         A(put_from, client, mc_t_uuid));
MC_STRUCT(a_dummy_get_into, mw_a_dummy_get_into, A(get_into, keys, t_strs),
          A(get_into, addresses, t_u64s), A(get_into, sizes, t_u64s), A(get_into, device, mc_t_i32),
          A(get_into, client, mc_t_uuid));
MC_STRUCT(a_dummy_get_multi, mw_a_dummy_get_into, A(get_into, keys, t_strs),
          A(get_into, addresses, t_u64_lists), A(get_into, sizes, t_u64_lists),
          A(get_into, same_node, mc_t_bool), A(get_into, device, mc_t_i32),
          A(get_into, client, mc_t_uuid));
MC_STRUCT(a_dummy_get_range, mw_a_dummy_get_range, A(get_range, key, mc_t_str),
          A(get_range, address, mc_t_u64), A(get_range, to_offset, mc_t_u64),
          A(get_range, from_offset, mc_t_u64), A(get_range, size, mc_t_u64),
          A(get_range, whole, mc_t_bool), A(get_range, local, mc_t_bool),
          A(get_range, client, mc_t_uuid));
static const struct mc_field t_query_result_fields[] = {
    F(mw_query_entry, result.ok, mc_t_bool), F(mw_query_entry, result.list, mc_t_replica_list),
    F(mw_query_entry, result.error, mc_t_i32)};
static const struct mc_type t_query_result =
    MC_TYPE_OF_FIELDS(MC_KIND_STRUCT, t_query_result, mw_query_entry, NULL);
static const struct mc_field t_query_entry_fields[] = {F(mw_query_entry, key, mc_t_str),
                                                       {&t_query_result, 0}};
static const struct mc_type t_query_entry =
    MC_TYPE_OF_FIELDS(MC_KIND_STRUCT, t_query_entry, mw_query_entry, NULL);
MC_MAP_OF(t_query_map, t_query_entry);
MC_STRUCT(a_dummy_get_ranges, mw_a_dummy_get_ranges, A(get_ranges, addresses, t_u64s),
          A(get_ranges, keys, t_str_lists), A(get_ranges, to_offsets, t_u64_tables),
          A(get_ranges, from_offsets, t_u64_tables), A(get_ranges, sizes, t_u64_tables),
          A(get_ranges, known, t_query_map), A(get_ranges, device, mc_t_i32),
          A(get_ranges, client, mc_t_uuid));
MC_STRUCT(a_dummy_key, mw_a_dummy_key, A(key, key, mc_t_str), A(key, client, mc_t_uuid));
MC_STRUCT(a_dummy_keys, mw_a_dummy_keys, A(keys, keys, t_strs), A(keys, client, mc_t_uuid));
MC_STRUCT(a_dummy_remove, mw_a_dummy_remove, A(remove, key, mc_t_str), A(remove, force, mc_t_bool));
MC_STRUCT(a_dummy_batch_remove, mw_a_dummy_batch_remove, A(batch_remove, keys, t_strs),
          A(batch_remove, force, mc_t_bool));
MC_STRUCT(a_dummy_copy, mw_a_dummy_copy, A(copy, key, mc_t_str), A(copy, targets, t_strs));
MC_STRUCT(a_dummy_move, mw_a_dummy_move, A(move, key, mc_t_str), A(move, source, mc_t_str),
          A(move, target, mc_t_str));
MC_STRUCT(t_dummy_buffer, mw_dummy_buffer, F(mw_dummy_buffer, address, mc_t_u64),
          F(mw_dummy_buffer, size, mc_t_u64));
MC_EXPECTED(e_dummy_buffer, mw_e_dummy_buffer, t_dummy_buffer);
MC_VEC_OF(e_dummy_buffers, e_dummy_buffer);
MC_VEC_OF(e_voids, mc_t_e_void);
MC_VEC_OF(e_bools, mc_t_e_bool);
MC_VEC_OF(e_i64s, mc_t_e_i64);
MC_VEC_OF(e_i64_lists, e_i64s);
MC_VEC_OF(e_i64_tables, e_i64_lists);

#define ROW(rpc, args, ret) [MC_CLIENT_RPC_##rpc] = MC_RPC_ONE_VERSION(args, ret)
static struct mc_rpc_desc rpcs[MC_CLIENT_RPC_COUNT] = {
    ROW(batch_get_offload_object, &a_offload_get, &e_offload_buffers),
    ROW(release_offload_buffer, &mc_t_u64, &mc_t_bool),
    ROW(service_ready_internal, NULL, &mc_t_e_void),
    ROW(is_shm_mapped_internal, &a_shm_mapped, &mc_t_e_bool),
    ROW(ping, &mc_t_uuid, &mc_t_e_ping),
    ROW(unmap_shm_internal, &mc_t_uuid, &mc_t_e_void),
    ROW(unregister_shm_buffer_internal, &a_shm_mapped, &mc_t_e_void),
    ROW(allocate_buffer_dummy, &a_shm_mapped, &e_dummy_buffer),
    ROW(release_buffer_dummy, &a_shm_mapped, &mc_t_e_void),
    ROW(acquire_buffer_dummy, &a_dummy_key, &e_dummy_buffer),
    ROW(batch_acquire_buffer_dummy, &a_dummy_keys, &e_dummy_buffers),
    ROW(put_dummy_helper, &a_dummy_put, &mc_t_e_void),
    ROW(upsert_dummy_helper, &a_dummy_put, &mc_t_e_void),
    ROW(put_parts_dummy_helper, &a_dummy_put_parts, &mc_t_e_void),
    ROW(upsert_parts_dummy_helper, &a_dummy_put_parts, &mc_t_e_void),
    ROW(put_batch_dummy_helper, &a_dummy_put_batch, &mc_t_e_void),
    ROW(upsert_batch_dummy_helper, &a_dummy_put_batch, &mc_t_e_void),
    ROW(upsert_from_dummy_helper, &a_dummy_upsert_from, &mc_t_e_void),
    ROW(batch_put_from_dummy_helper, &a_dummy_put_from, &e_voids),
    ROW(batch_upsert_from_dummy_helper, &a_dummy_batch_upsert, &e_voids),
    ROW(batch_put_from_multi_buffers_dummy_helper, &a_dummy_put_multi, &e_voids),
    ROW(batch_upsert_from_multi_buffers_dummy_helper, &a_dummy_put_multi, &e_voids),
    ROW(batch_get_into_dummy_helper, &a_dummy_get_into, &e_i64s),
    ROW(batch_get_into_multi_buffers_dummy_helper, &a_dummy_get_multi, &e_i64s),
    ROW(get_into_range_shm_helper, &a_dummy_get_range, &mc_t_e_i64),
    ROW(get_into_ranges_shm_helper, &a_dummy_get_ranges, &e_i64_tables),
    ROW(isExist_internal, &mc_t_str, &mc_t_e_bool),
    ROW(batchIsExist_internal, &t_strs, &e_bools),
    ROW(getSize_internal, &mc_t_str, &mc_t_e_i64),
    ROW(remove_internal, &a_dummy_remove, &mc_t_e_void),
    ROW(batchRemove_internal, &a_dummy_batch_remove, &e_voids),
    ROW(removeByRegex_internal, &a_dummy_remove, &mc_t_e_i64),
    ROW(removeAll_internal, &mc_t_bool, &mc_t_e_i64),
    ROW(create_copy_task, &a_dummy_copy, &mc_t_e_uuid),
    ROW(create_move_task, &a_dummy_move, &mc_t_e_uuid),
    ROW(query_task, &mc_t_uuid, &mc_t_e_task),
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
