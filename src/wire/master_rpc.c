/*
 * The tables of the master's messages. Spec: docs/wire.md.
 *
 * A table names the members of the C struct in the order in which they travel. Where release 0.3.12
 * has another schema, its table (prefix old_) maps onto the same C struct: what it lacks stays
 * zero, and what it says in another way (a key where an object's meta data is now) lands in the
 * member that means it. Handlers never see the difference.
 */
#include "wire/master_rpc.h"

#include <stdio.h>
#include <pthread.h>

#include "wire/tables.h"

/* ---- pieces ---- */

MC_VEC_OF(t_strs, mc_t_str);
MC_VEC_OF(t_u64s, mc_t_u64);
MC_VEC_OF(t_uuids, mc_t_uuid);
MC_OPTIONAL(t_opt_u64, mw_opt_u64, mc_t_u64);
MC_OPTIONAL(t_opt_strs, mw_opt_strs, t_strs);

MC_STRUCT_SHARED(mc_t_segment, mw_segment, F(mw_segment, id, mc_t_uuid),
                 F(mw_segment, name, mc_t_str), F(mw_segment, base, mc_t_u64),
                 F(mw_segment, size, mc_t_u64), F(mw_segment, te_endpoint, mc_t_str),
                 F(mw_segment, protocol, mc_t_str), F(mw_segment, host_id, mc_t_str));
MC_STRUCT(t_nof_segment, mw_nof_segment, F(mw_nof_segment, id, mc_t_uuid),
          F(mw_nof_segment, name, mc_t_str), F(mw_nof_segment, base, mc_t_u64),
          F(mw_nof_segment, size, mc_t_u64), F(mw_nof_segment, te_endpoint, mc_t_str));
MC_STRUCT(t_nof_owner, mw_nof_owner, F(mw_nof_owner, segment_id, mc_t_uuid),
          F(mw_nof_owner, client_id, mc_t_uuid));
MC_VEC_OF(t_segments, mc_t_segment);
MC_VEC_OF(t_nof_segments, t_nof_segment);
MC_VEC_OF(t_nof_owners, t_nof_owner);

#define CONFIG(member, table) F(mw_replicate_config, member, table)
MC_STRUCT_SHARED(mc_t_replicate_config, mw_replicate_config, CONFIG(replica_num, mc_t_u64),
                 CONFIG(nof_replica_num, mc_t_u64), CONFIG(dfs_replica_num, mc_t_u64),
                 CONFIG(soft_pin_action, mc_t_u8), CONFIG(soft_pin_ttl_ms, t_opt_u64),
                 CONFIG(with_hard_pin, mc_t_bool), CONFIG(preferred_segments, t_strs),
                 CONFIG(preferred_segment, mc_t_str), CONFIG(preferred_nof_segments, t_strs),
                 CONFIG(prefer_alloc_in_same_node, mc_t_bool), CONFIG(data_type, mc_t_u8),
                 CONFIG(host_id, mc_t_str), CONFIG(group_ids, t_opt_strs));
/* "with_soft_pin" is a bool: true is MC_SOFT_PIN_ENABLE, and both other actions travel as false. */
MC_STRUCT(old_replicate_config, mw_replicate_config, CONFIG(replica_num, mc_t_u64),
          CONFIG(nof_replica_num, mc_t_u64), CONFIG(soft_pin_action, mc_t_bool),
          CONFIG(with_hard_pin, mc_t_bool), CONFIG(preferred_segments, t_strs),
          CONFIG(preferred_segment, mc_t_str), CONFIG(preferred_nof_segments, t_strs),
          CONFIG(prefer_alloc_in_same_node, mc_t_bool), CONFIG(data_type, mc_t_u8),
          CONFIG(host_id, mc_t_str), CONFIG(group_ids, t_opt_strs));
_Static_assert(MC_SOFT_PIN_ENABLE == 1, "the old flag and the new action share a byte");

/* ---- replicas ---- */

MC_STRUCT_SHARED(mc_t_buffer, mw_buffer, F(mw_buffer, size, mc_t_u64),
                 F(mw_buffer, address, mc_t_u64), F(mw_buffer, protocol, mc_t_str),
                 F(mw_buffer, endpoint, mc_t_str));
/* upstream's memory and NoF descriptors are a struct that holds one struct */
static const struct mc_field t_buffer_holder_fields[] = {{&mc_t_buffer, 0}};
static const struct mc_type t_buffer_holder =
    MC_TYPE_OF_FIELDS(MC_KIND_STRUCT, t_buffer_holder, mw_buffer, NULL);
MC_STRUCT(t_disk, mw_disk, F(mw_disk, file_path, mc_t_str), F(mw_disk, object_size, mc_t_u64));
MC_STRUCT(t_local_disk, mw_local_disk, F(mw_local_disk, client_id, mc_t_uuid),
          F(mw_local_disk, object_size, mc_t_u64), F(mw_local_disk, endpoint, mc_t_str));
MC_STRUCT(t_dfs, mw_dfs, F(mw_dfs, file_path, mc_t_str), F(mw_dfs, offset, mc_t_u64),
          F(mw_dfs, object_size, mc_t_u64), F(mw_dfs, aligned_size, mc_t_u64),
          F(mw_dfs, shard_idx, mc_t_i32));

static bool old_replica_knows(const void *value) {
    return ((const struct mw_replica *)value)->tag != MW_TAG_DFS;
}

/* The variant's table works on the whole replica: tag and union are members of it. */
#define REPLICA(member, table) F(mw_replica, member, table)
#define OLD_PLACES                                                                                 \
    REPLICA(tag, mc_t_u8), REPLICA(memory, t_buffer_holder), REPLICA(nof, t_buffer_holder),        \
        REPLICA(disk, t_disk), REPLICA(local_disk, t_local_disk)
MC_COMPOSED(MC_KIND_VARIANT, t_place, mw_replica, OLD_PLACES, REPLICA(dfs, t_dfs));
MC_COMPOSED(MC_KIND_VARIANT, old_place, mw_replica, OLD_PLACES);
static const struct mc_field mc_t_replica_fields[] = {
    REPLICA(id, mc_t_u64), {&t_place, 0}, REPLICA(status, mc_t_i32)};
const struct mc_type mc_t_replica =
    MC_TYPE_OF_FIELDS(MC_KIND_STRUCT, mc_t_replica, mw_replica, NULL);
static const struct mc_field old_replica_fields[] = {
    REPLICA(id, mc_t_u64), {&old_place, 0}, REPLICA(status, mc_t_i32)};
static const struct mc_type old_replica =
    MC_TYPE_OF_FIELDS(MC_KIND_STRUCT, old_replica, mw_replica, old_replica_knows);
MC_VEC_OF(t_replicas, mc_t_replica);
MC_VEC_OF(old_replicas, old_replica);

MC_STRUCT_SHARED(mc_t_replica_list, mw_replica_list, F(mw_replica_list, replicas, t_replicas),
                 F(mw_replica_list, lease_ttl_ms, mc_t_u64),
                 F(mw_replica_list, checksum, t_opt_u64));
MC_STRUCT(old_replica_list, mw_replica_list, F(mw_replica_list, replicas, old_replicas),
          F(mw_replica_list, lease_ttl_ms, mc_t_u64));

MC_STRUCT(t_object_meta, mw_object_meta, F(mw_object_meta, key, mc_t_str),
          F(mw_object_meta, checksum, t_opt_u64));
MC_COMPOSED(MC_KIND_ALIAS, old_object_meta, mw_object_meta, F(mw_object_meta, key, mc_t_str));
MC_VEC_OF(t_object_metas, t_object_meta);
MC_VEC_OF(old_object_metas, old_object_meta);

/* ---- answers ---- */

MC_STRUCT(t_ping_reply, mw_ping_reply, F(mw_ping_reply, view_version, mc_t_i64),
          F(mw_ping_reply, client_status, mc_t_i32));
MC_STRUCT(t_storage_config, mw_storage_config, F(mw_storage_config, fsdir, mc_t_str),
          F(mw_storage_config, enable_disk_eviction, mc_t_bool),
          F(mw_storage_config, quota_bytes, mc_t_u64));
MC_STRUCT(t_disk_task, mw_disk_task, F(mw_disk_task, tenant, mc_t_str),
          F(mw_disk_task, key, mc_t_str), F(mw_disk_task, size, mc_t_i64));
MC_STRUCT(t_storage_object, mw_storage_object, F(mw_storage_object, bucket_id, mc_t_i64),
          F(mw_storage_object, offset, mc_t_i64), F(mw_storage_object, key_size, mc_t_i64),
          F(mw_storage_object, data_size, mc_t_i64), F(mw_storage_object, endpoint, mc_t_str));
MC_STRUCT(t_task_info, mw_task_info, F(mw_task_info, id, mc_t_uuid),
          F(mw_task_info, type, mc_t_i32), F(mw_task_info, status, mc_t_i32),
          F(mw_task_info, created, mc_t_i64), F(mw_task_info, updated, mc_t_i64),
          F(mw_task_info, client, mc_t_uuid), F(mw_task_info, message, mc_t_str));
MC_STRUCT(t_task_assignment, mw_task_assignment, F(mw_task_assignment, id, mc_t_uuid),
          F(mw_task_assignment, type, mc_t_i32), F(mw_task_assignment, payload, mc_t_str),
          F(mw_task_assignment, created_at_ms, mc_t_i64),
          F(mw_task_assignment, max_retry_attempts, mc_t_u32));
MC_STRUCT(t_task_complete, mw_task_complete, F(mw_task_complete, id, mc_t_uuid),
          F(mw_task_complete, status, mc_t_i32), F(mw_task_complete, message, mc_t_str));
MC_VEC_OF(t_disk_tasks, t_disk_task);
MC_VEC_OF(t_storage_objects, t_storage_object);
MC_VEC_OF(t_task_assignments, t_task_assignment);

struct opt_replica { /* the anonymous struct of mw_move_start */
    bool has;
    struct mw_replica value;
};
_Static_assert(sizeof(struct opt_replica) == sizeof(((struct mw_move_start *)0)->target),
               "same layout");
MC_OPTIONAL(t_opt_replica, opt_replica, mc_t_replica);
MC_OPTIONAL(old_opt_replica, opt_replica, old_replica);
MC_STRUCT(t_copy_start, mw_copy_start, F(mw_copy_start, source, mc_t_replica),
          F(mw_copy_start, targets, t_replicas));
MC_STRUCT(old_copy_start, mw_copy_start, F(mw_copy_start, source, old_replica),
          F(mw_copy_start, targets, old_replicas));
MC_STRUCT(t_move_start, mw_move_start, F(mw_move_start, source, mc_t_replica),
          F(mw_move_start, target, t_opt_replica));
MC_STRUCT(old_move_start, mw_move_start, F(mw_move_start, source, old_replica),
          F(mw_move_start, target, old_opt_replica));
MC_STRUCT(t_promotion_start, mw_promotion_start, F(mw_promotion_start, memory, mc_t_replica));
MC_STRUCT(old_promotion_start, mw_promotion_start, F(mw_promotion_start, memory, old_replica));

MC_STRUCT(t_str_replicas, mw_str_replicas, F(mw_str_replicas, key, mc_t_str),
          F(mw_str_replicas, replicas, t_replicas));
MC_STRUCT(old_str_replicas, mw_str_replicas, F(mw_str_replicas, key, mc_t_str),
          F(mw_str_replicas, replicas, old_replicas));
MC_STRUCT(t_uuid_strs, mw_uuid_strs, F(mw_uuid_strs, id, mc_t_uuid), F(mw_uuid_strs, strs, t_strs));
MC_MAP_OF(t_replicas_by_key, t_str_replicas);
MC_MAP_OF(old_replicas_by_key, old_str_replicas);
MC_MAP_OF(t_strs_by_uuid, t_uuid_strs);

static const struct mc_field mc_t_e_void_fields[] = {F(mw_e_void, error, mc_t_i32),
                                                     {&mc_t_void, 0}};
const struct mc_type mc_t_e_void =
    MC_TYPE_OF_FIELDS(MC_KIND_EXPECTED, mc_t_e_void, mw_e_void, NULL);
MC_EXPECTED_SHARED(mc_t_e_bool, mw_e_bool, mc_t_bool);
MC_EXPECTED_SHARED(mc_t_e_ping, mw_e_ping, t_ping_reply);
MC_EXPECTED_SHARED(mc_t_e_i64, mw_e_i64, mc_t_i64);
MC_EXPECTED(e_i32, mw_e_i32, mc_t_i32);
MC_EXPECTED(e_str, mw_e_str, mc_t_str);
MC_EXPECTED_SHARED(mc_t_e_uuid, mw_e_uuid, mc_t_uuid);
MC_EXPECTED(e_strs, mw_e_vec, t_strs);
MC_EXPECTED(e_replicas, mw_e_vec, t_replicas);
MC_EXPECTED(old_e_replicas, mw_e_vec, old_replicas);
MC_EXPECTED(e_replicas_by_key, mw_e_vec, t_replicas_by_key);
MC_EXPECTED(old_e_replicas_by_key, mw_e_vec, old_replicas_by_key);
MC_EXPECTED(e_strs_by_uuid, mw_e_vec, t_strs_by_uuid);
MC_EXPECTED(e_nof_segments, mw_e_vec, t_nof_segments);
MC_EXPECTED(e_nof_owners, mw_e_vec, t_nof_owners);
MC_EXPECTED(e_disk_tasks, mw_e_vec, t_disk_tasks);
MC_EXPECTED(e_assignments, mw_e_vec, t_task_assignments);
MC_EXPECTED(e_list, mw_e_list, mc_t_replica_list);
MC_EXPECTED(old_e_list, mw_e_list, old_replica_list);
MC_EXPECTED(e_storage, mw_e_storage, t_storage_config);
MC_EXPECTED_SHARED(mc_t_e_task, mw_e_task, t_task_info);
MC_EXPECTED(e_copy, mw_e_copy, t_copy_start);
MC_EXPECTED(old_e_copy, mw_e_copy, old_copy_start);
MC_EXPECTED(e_move, mw_e_move, t_move_start);
MC_EXPECTED(old_e_move, mw_e_move, old_move_start);
MC_EXPECTED(e_promotion, mw_e_promotion, t_promotion_start);
MC_EXPECTED(old_e_promotion, mw_e_promotion, old_promotion_start);
MC_VEC_OF(t_e_bools, mc_t_e_bool);
MC_VEC_OF(t_e_voids, mc_t_e_void);
MC_VEC_OF(t_e_lists, e_list);
MC_VEC_OF(old_e_lists, old_e_list);
MC_VEC_OF(t_e_replicas, e_replicas);
MC_VEC_OF(old_t_e_replicas, old_e_replicas);

/* ---- arguments ---- */

#define A(ctype, member, table) F(mw_a_##ctype, member, table)
MC_STRUCT(a_key, mw_a_key, A(key, key, mc_t_str), A(key, tenant, mc_t_str));
MC_STRUCT(a_keys, mw_a_keys, A(keys, keys, t_strs), A(keys, tenant, mc_t_str));
MC_STRUCT(a_replica_clear, mw_a_replica_clear, A(replica_clear, keys, t_strs),
          A(replica_clear, client, mc_t_uuid), A(replica_clear, segment, mc_t_str));
MC_STRUCT(a_put_start, mw_a_put_start, A(put_start, client, mc_t_uuid), A(put_start, key, mc_t_str),
          A(put_start, length, mc_t_u64), A(put_start, config, mc_t_replicate_config),
          A(put_start, tenant, mc_t_str));
MC_STRUCT(old_a_put_start, mw_a_put_start, A(put_start, client, mc_t_uuid),
          A(put_start, key, mc_t_str), A(put_start, length, mc_t_u64),
          A(put_start, config, old_replicate_config), A(put_start, tenant, mc_t_str));
MC_STRUCT(a_put_end, mw_a_put_end, A(put_end, client, mc_t_uuid), A(put_end, meta, t_object_meta),
          A(put_end, type, mc_t_i32), A(put_end, tenant, mc_t_str));
MC_STRUCT(old_a_put_end, mw_a_put_end, A(put_end, client, mc_t_uuid),
          A(put_end, meta, old_object_meta), A(put_end, type, mc_t_i32),
          A(put_end, tenant, mc_t_str));
MC_STRUCT(a_put_revoke, mw_a_put_revoke, A(put_revoke, client, mc_t_uuid),
          A(put_revoke, key, mc_t_str), A(put_revoke, type, mc_t_i32),
          A(put_revoke, tenant, mc_t_str));
MC_STRUCT(a_batch_put_start, mw_a_batch_put_start, A(batch_put_start, client, mc_t_uuid),
          A(batch_put_start, keys, t_strs), A(batch_put_start, lengths, t_u64s),
          A(batch_put_start, config, mc_t_replicate_config), A(batch_put_start, tenant, mc_t_str));
MC_STRUCT(old_a_batch_put_start, mw_a_batch_put_start, A(batch_put_start, client, mc_t_uuid),
          A(batch_put_start, keys, t_strs), A(batch_put_start, lengths, t_u64s),
          A(batch_put_start, config, old_replicate_config), A(batch_put_start, tenant, mc_t_str));
MC_STRUCT(a_batch_put_end, mw_a_batch_put_end, A(batch_put_end, client, mc_t_uuid),
          A(batch_put_end, metas, t_object_metas), A(batch_put_end, type, mc_t_i32),
          A(batch_put_end, tenant, mc_t_str));
MC_STRUCT(old_a_batch_put_end, mw_a_batch_put_end, A(batch_put_end, client, mc_t_uuid),
          A(batch_put_end, metas, old_object_metas), A(batch_put_end, type, mc_t_i32),
          A(batch_put_end, tenant, mc_t_str));
MC_STRUCT(a_batch_put_revoke, mw_a_batch_put_revoke, A(batch_put_revoke, client, mc_t_uuid),
          A(batch_put_revoke, keys, t_strs), A(batch_put_revoke, type, mc_t_i32),
          A(batch_put_revoke, tenant, mc_t_str));
MC_STRUCT(a_batch_upsert_end, mw_a_batch_upsert_end, A(batch_upsert_end, client, mc_t_uuid),
          A(batch_upsert_end, metas, t_object_metas), A(batch_upsert_end, tenant, mc_t_str));
MC_STRUCT(old_a_batch_upsert_end, mw_a_batch_upsert_end, A(batch_upsert_end, client, mc_t_uuid),
          A(batch_upsert_end, metas, old_object_metas), A(batch_upsert_end, tenant, mc_t_str));
MC_STRUCT(a_batch_upsert_revoke, mw_a_batch_upsert_revoke,
          A(batch_upsert_revoke, client, mc_t_uuid), A(batch_upsert_revoke, keys, t_strs),
          A(batch_upsert_revoke, tenant, mc_t_str));
MC_STRUCT(a_remove, mw_a_remove, A(remove, key, mc_t_str), A(remove, force, mc_t_bool),
          A(remove, tenant, mc_t_str));
MC_STRUCT(a_remove_all, mw_a_remove_all, A(remove_all, force, mc_t_bool),
          A(remove_all, tenant, mc_t_str));
MC_STRUCT(a_batch_remove, mw_a_batch_remove, A(batch_remove, keys, t_strs),
          A(batch_remove, force, mc_t_bool), A(batch_remove, tenant, mc_t_str));
MC_STRUCT(a_mount, mw_a_mount, A(mount, segment, mc_t_segment), A(mount, client, mc_t_uuid));
MC_STRUCT(a_nof_mount, mw_a_nof_mount, A(nof_mount, segment, t_nof_segment),
          A(nof_mount, client, mc_t_uuid));
MC_STRUCT(a_remount, mw_a_remount, A(remount, segments, t_segments), A(remount, client, mc_t_uuid));
MC_STRUCT(a_nof_remount, mw_a_remount, A(remount, segments, t_nof_segments),
          A(remount, client, mc_t_uuid));
MC_STRUCT(a_unmount, mw_a_unmount, A(unmount, segment, mc_t_uuid), A(unmount, client, mc_t_uuid));
MC_STRUCT(a_graceful_unmount, mw_a_graceful_unmount, A(graceful_unmount, segment, mc_t_uuid),
          A(graceful_unmount, client, mc_t_uuid), A(graceful_unmount, grace_ms, mc_t_u64));
MC_STRUCT(a_client_flag, mw_a_client_flag, A(client_flag, client, mc_t_uuid),
          A(client_flag, flag, mc_t_bool));
MC_STRUCT(a_ssd_capacity, mw_a_ssd_capacity, A(ssd_capacity, client, mc_t_uuid),
          A(ssd_capacity, bytes, mc_t_i64));
MC_STRUCT(a_offload_done, mw_a_offload_done, A(offload_done, client, mc_t_uuid),
          A(offload_done, tasks, t_disk_tasks), A(offload_done, objects, t_storage_objects));
MC_STRUCT(a_promotion_start, mw_a_promotion_start, A(promotion_start, client, mc_t_uuid),
          A(promotion_start, key, mc_t_str), A(promotion_start, tenant, mc_t_str),
          A(promotion_start, size, mc_t_u64), A(promotion_start, segments, t_strs));
MC_STRUCT(a_client_key, mw_a_client_key, A(client_key, client, mc_t_uuid),
          A(client_key, key, mc_t_str), A(client_key, tenant, mc_t_str));
MC_STRUCT(a_copy_task, mw_a_copy_task, A(copy_task, key, mc_t_str), A(copy_task, tenant, mc_t_str),
          A(copy_task, targets, t_strs));
MC_STRUCT(a_move_task, mw_a_move_task, A(move_task, key, mc_t_str), A(move_task, tenant, mc_t_str),
          A(move_task, source, mc_t_str), A(move_task, target, mc_t_str));
MC_STRUCT(a_fetch_tasks, mw_a_fetch_tasks, A(fetch_tasks, client, mc_t_uuid),
          A(fetch_tasks, count, mc_t_u64));
MC_STRUCT(a_task_complete, mw_a_task_complete, A(task_complete, client, mc_t_uuid),
          A(task_complete, task, t_task_complete));
MC_STRUCT(a_copy_start, mw_a_copy_start, A(copy_start, client, mc_t_uuid),
          A(copy_start, key, mc_t_str), A(copy_start, tenant, mc_t_str),
          A(copy_start, source, mc_t_str), A(copy_start, targets, t_strs));
MC_STRUCT(a_dyn_copy_start, mw_a_dyn_copy_start, A(dyn_copy_start, client, mc_t_uuid),
          A(dyn_copy_start, key, mc_t_str), A(dyn_copy_start, tenant, mc_t_str),
          A(dyn_copy_start, source, mc_t_str), A(dyn_copy_start, targets, t_strs),
          A(dyn_copy_start, lease, mc_t_uuid), A(dyn_copy_start, epoch, mc_t_u64));
MC_STRUCT(a_dyn_copy_end, mw_a_dyn_copy_end, A(dyn_copy_end, client, mc_t_uuid),
          A(dyn_copy_end, key, mc_t_str), A(dyn_copy_end, tenant, mc_t_str),
          A(dyn_copy_end, lease, mc_t_uuid), A(dyn_copy_end, epoch, mc_t_u64));
MC_STRUCT(a_move_start, mw_a_move_start, A(move_start, client, mc_t_uuid),
          A(move_start, key, mc_t_str), A(move_start, tenant, mc_t_str),
          A(move_start, source, mc_t_str), A(move_start, target, mc_t_str));
MC_STRUCT(a_evict_disk, mw_a_evict_disk, A(evict_disk, client, mc_t_uuid),
          A(evict_disk, key, mc_t_str), A(evict_disk, tenant, mc_t_str),
          A(evict_disk, type, mc_t_i32));
MC_STRUCT(a_batch_evict_disk, mw_a_batch_evict_disk, A(batch_evict_disk, client, mc_t_uuid),
          A(batch_evict_disk, keys, t_strs), A(batch_evict_disk, tenant, mc_t_str),
          A(batch_evict_disk, type, mc_t_i32));

MC_STRUCT(a_list_keys, mw_a_list_keys, A(list_keys, tenant, mc_t_str),
          A(list_keys, prefix, mc_t_str), A(list_keys, after, mc_t_str),
          A(list_keys, limit, mc_t_u64));
MC_STRUCT(t_key_page, mw_key_page, F(mw_key_page, keys, t_strs), F(mw_key_page, next, mc_t_str));
MC_EXPECTED(e_key_page, mw_e_key_page, t_key_page);
MC_STRUCT(a_start_puts, mw_a_start_puts, A(start_puts, client, mc_t_uuid),
          A(start_puts, keys, t_strs), A(start_puts, lengths, t_u64s),
          A(start_puts, config, mc_t_replicate_config), A(start_puts, tenant, mc_t_str),
          A(start_puts, upsert, mc_t_bool), A(start_puts, ttl_ms, mc_t_u64),
          A(start_puts, condition, mc_t_u8), A(start_puts, expected, t_u64s),
          A(start_puts, stripe_over, mc_t_u64));
MC_STRUCT(t_disk_item, mw_disk_item, F(mw_disk_item, tenant, mc_t_str),
          F(mw_disk_item, key, mc_t_str), F(mw_disk_item, size, mc_t_i64),
          F(mw_disk_item, version, mc_t_u64));
MC_VEC_OF(t_disk_items, t_disk_item);
MC_EXPECTED(e_disk_items, mw_e_vec, t_disk_items);
MC_STRUCT(a_sync_disk, mw_a_sync_disk, A(sync_disk, client, mc_t_uuid),
          A(sync_disk, flag, mc_t_bool), A(sync_disk, ack, mc_t_u64));
MC_STRUCT(t_disk_orders, mw_disk_orders, F(mw_disk_orders, serial, mc_t_u64),
          F(mw_disk_orders, current, mc_t_u64), F(mw_disk_orders, items, t_disk_items));
MC_EXPECTED(e_disk_orders, mw_e_disk_orders, t_disk_orders);
MC_STRUCT(a_on_disk, mw_a_on_disk, A(on_disk, client, mc_t_uuid), A(on_disk, endpoint, mc_t_str),
          A(on_disk, found, mc_t_bool), A(on_disk, items, t_disk_items));
MC_EXPECTED(e_voids, mw_e_vec, t_e_voids);
MC_STRUCT(a_dead_files, mw_a_dead_files, A(dead_files, client, mc_t_uuid),
          A(dead_files, done, mc_t_u64));
MC_STRUCT(t_dead_files, mw_dead_files, F(mw_dead_files, batch, mc_t_u64),
          F(mw_dead_files, keep, mc_t_str), F(mw_dead_files, paths, t_strs));
MC_EXPECTED(e_dead_files, mw_e_dead_files, t_dead_files);
MC_STRUCT(t_object_info, mw_object_info, F(mw_object_info, size, mc_t_u64),
          F(mw_object_info, version, mc_t_u64), F(mw_object_info, checksum, t_opt_u64),
          F(mw_object_info, has_life, mc_t_bool), F(mw_object_info, life_left_ms, mc_t_u64),
          F(mw_object_info, replicas, mc_t_u32), F(mw_object_info, stripes, mc_t_u32));
MC_EXPECTED(e_object_info, mw_e_object_info, t_object_info);
MC_VEC_OF(t_e_object_infos, e_object_info);
MC_STRUCT(t_object, mw_object, F(mw_object, list, mc_t_replica_list), F(mw_object, size, mc_t_u64),
          F(mw_object, version, mc_t_u64), F(mw_object, stripes, mc_t_u32));
MC_EXPECTED(e_object, mw_e_object, t_object);
MC_VEC_OF(t_e_objects, e_object);

/* ---- the RPCs ---- */

#define SAME(rpc, args, ret) [MC_RPC_##rpc] = MC_RPC_ONE_VERSION(args, ret)
#define BOTH(rpc, args, ret, old_args, old_ret)                                                    \
    [MC_RPC_##                                                                                     \
        rpc] = {.version_count = 2, .versions = {{args, ret, 0, 0}, {old_args, old_ret, 0, 0}}}

static struct mc_rpc_desc rpcs[MC_MASTER_RPC_COUNT] = {
    SAME(ExistKey, &a_key, &mc_t_e_bool),
    SAME(BatchExistKey, &a_keys, &t_e_bools),
    SAME(BatchQueryIp, &t_uuids, &e_strs_by_uuid),
    SAME(BatchReplicaClear, &a_replica_clear, &e_strs),
    BOTH(GetReplicaListByRegex, &a_key, &e_replicas_by_key, &a_key, &old_e_replicas_by_key),
    BOTH(GetReplicaList, &a_key, &e_list, &a_key, &old_e_list),
    BOTH(BatchGetReplicaList, &a_keys, &t_e_lists, &a_keys, &old_e_lists),
    BOTH(PutStart, &a_put_start, &e_replicas, &old_a_put_start, &old_e_replicas),
    BOTH(PutEnd, &a_put_end, &mc_t_e_void, &old_a_put_end, &mc_t_e_void),
    SAME(PutRevoke, &a_put_revoke, &mc_t_e_void),
    BOTH(BatchPutStart, &a_batch_put_start, &t_e_replicas, &old_a_batch_put_start,
         &old_t_e_replicas),
    BOTH(BatchPutEnd, &a_batch_put_end, &t_e_voids, &old_a_batch_put_end, &t_e_voids),
    SAME(BatchPutRevoke, &a_batch_put_revoke, &t_e_voids),
    BOTH(UpsertStart, &a_put_start, &e_replicas, &old_a_put_start, &old_e_replicas),
    BOTH(UpsertEnd, &a_put_end, &mc_t_e_void, &old_a_put_end, &mc_t_e_void),
    SAME(UpsertRevoke, &a_put_revoke, &mc_t_e_void),
    BOTH(BatchUpsertStart, &a_batch_put_start, &t_e_replicas, &old_a_batch_put_start,
         &old_t_e_replicas),
    BOTH(BatchUpsertEnd, &a_batch_upsert_end, &t_e_voids, &old_a_batch_upsert_end, &t_e_voids),
    SAME(BatchUpsertRevoke, &a_batch_upsert_revoke, &t_e_voids),
    SAME(Remove, &a_remove, &mc_t_e_void),
    SAME(RemoveByRegex, &a_remove, &mc_t_e_i64),
    SAME(RemoveAll, &a_remove_all, &mc_t_i64),
    SAME(BatchRemove, &a_batch_remove, &t_e_voids),
    SAME(MountSegment, &a_mount, &mc_t_e_void),
    SAME(MountNoFSegment, &a_nof_mount, &mc_t_e_void),
    SAME(ReMountSegment, &a_remount, &mc_t_e_void),
    SAME(ReMountNoFSegment, &a_nof_remount, &mc_t_e_void),
    SAME(UnmountSegment, &a_unmount, &mc_t_e_void),
    SAME(GracefulUnmountSegment, &a_graceful_unmount, &mc_t_e_void),
    SAME(UnmountNoFSegment, &a_unmount, &mc_t_e_void),
    SAME(GetAllNoFSegments, NULL, &e_nof_segments),
    SAME(GetNoFSegmentsByName, &mc_t_str, &e_nof_owners),
    SAME(GetFsdir, NULL, &e_str),
    SAME(GetStorageConfig, NULL, &e_storage),
    SAME(Ping, &mc_t_uuid, &mc_t_e_ping),
    SAME(ServiceReady, NULL, &e_str),
    SAME(MountLocalDiskSegment, &a_client_flag, &mc_t_e_void),
    SAME(UnmountLocalDiskSegment, &mc_t_uuid, &mc_t_e_void),
    SAME(OffloadObjectHeartbeat, &a_client_flag, &e_disk_tasks),
    SAME(PollRemoveAll, &mc_t_uuid, &mc_t_e_bool),
    SAME(ReportSsdCapacity, &a_ssd_capacity, &mc_t_e_void),
    SAME(NotifyOffloadSuccess, &a_offload_done, &mc_t_e_void),
    SAME(PromotionObjectHeartbeat, &mc_t_uuid, &e_disk_tasks),
    BOTH(PromotionAllocStart, &a_promotion_start, &e_promotion, &a_promotion_start,
         &old_e_promotion),
    SAME(NotifyPromotionSuccess, &a_client_key, &mc_t_e_void),
    SAME(NotifyPromotionFailure, &a_client_key, &mc_t_e_void),
    SAME(QuerySegmentStatus, &mc_t_str, &e_i32),
    SAME(QuerySegmentStatusById, &mc_t_uuid, &e_i32),
    SAME(CreateCopyTask, &a_copy_task, &mc_t_e_uuid),
    SAME(CreateMoveTask, &a_move_task, &mc_t_e_uuid),
    SAME(QueryTask, &mc_t_uuid, &mc_t_e_task),
    SAME(FetchTasks, &a_fetch_tasks, &e_assignments),
    SAME(MarkTaskToComplete, &a_task_complete, &mc_t_e_void),
    BOTH(CopyStart, &a_copy_start, &e_copy, &a_copy_start, &old_e_copy),
    SAME(DynamicReplicaCopyStart, &a_dyn_copy_start, &e_copy),
    SAME(CopyEnd, &a_client_key, &mc_t_e_void),
    SAME(DynamicReplicaCopyEnd, &a_dyn_copy_end, &mc_t_e_void),
    SAME(CopyRevoke, &a_client_key, &mc_t_e_void),
    SAME(DynamicReplicaCopyRevoke, &a_dyn_copy_end, &mc_t_e_void),
    BOTH(MoveStart, &a_move_start, &e_move, &a_move_start, &old_e_move),
    SAME(MoveEnd, &a_client_key, &mc_t_e_void),
    SAME(MoveRevoke, &a_client_key, &mc_t_e_void),
    SAME(EvictDiskReplica, &a_evict_disk, &mc_t_e_void),
    SAME(BatchEvictDiskReplica, &a_batch_evict_disk, &t_e_voids),
    SAME(ListKeys, &a_list_keys, &e_key_page),
    SAME(StartPuts, &a_start_puts, &t_e_replicas),
    SAME(Inspect, &a_keys, &t_e_object_infos),
    SAME(TakeOffloads, &a_client_flag, &e_disk_items),
    SAME(SyncDisk, &a_sync_disk, &e_disk_orders),
    SAME(OnDisk, &a_on_disk, &e_voids),
    SAME(TakeDeadFiles, &a_dead_files, &e_dead_files),
    SAME(GetObjects, &a_keys, &t_e_objects),
};

static const struct mc_rpc_promise promised[] = {
#define X(rpc, args, ret) MC_RPC_PROMISE(rpc, args, ret)
    MC_MASTER_RPC_TABLE(X)
#undef X
};

#define MASTER_CLASS "mooncake::WrappedMasterService"
#define OWN_CLASS    "mooncake_c::Master"
#define ID_SLOTS     256u       /* open addressing; under a third full */
static uint8_t by_id[ID_SLOTS]; /* index + 1 into rpcs; 0 = free */
_Static_assert(MC_MASTER_RPC_COUNT < UINT8_MAX && MC_MASTER_RPC_COUNT * 3 < ID_SLOTS, "ids fit");

void mc_rpc_desc_complete(struct mc_rpc_desc *rpc, const char *class_name,
                          const struct mc_rpc_promise *promise) {
    char qualified[128];
    int len = snprintf(qualified, sizeof(qualified), "%s::%s", class_name, promise->name);
    MC_ASSERT(len > 0 && (size_t)len < sizeof(qualified));
    rpc->name = promise->name;
    rpc->function_id = mc_wire_md5_id(qualified, (size_t)len);
    rpc->args_size = promise->args_size;
    rpc->ret_size = promise->ret_size;
    for (unsigned v = 0; v < rpc->version_count; v++) {
        struct mc_rpc_schema *schema = &rpc->versions[v];
        MC_ASSERT(rpc->args_size == (schema->args ? schema->args->size : 0));
        MC_ASSERT(rpc->ret_size == schema->ret->size);
        schema->args_hash = mc_type_hash(schema->args);
        schema->ret_hash = mc_type_hash(schema->ret);
    }
}

static void prepare(void) {
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        struct mc_rpc_desc *rpc = &rpcs[i];
        mc_rpc_desc_complete(rpc, i < MC_MASTER_RPC_FIRST_OWN ? MASTER_CLASS : OWN_CLASS,
                             &promised[i]);
        uint32_t slot = rpc->function_id % ID_SLOTS;
        while (by_id[slot] != 0) {
            slot = (slot + 1) % ID_SLOTS;
        }
        by_id[slot] = (uint8_t)(i + 1);
    }
}

const struct mc_rpc_desc *mc_master_rpc_table(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* which TSan knows, unlike call_once */
    pthread_once(&once, prepare);
    return rpcs;
}

const struct mc_rpc_desc *mc_master_rpc_find(uint32_t function_id) {
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    for (uint32_t slot = function_id % ID_SLOTS; by_id[slot] != 0; slot = (slot + 1) % ID_SLOTS) {
        if (table[by_id[slot] - 1].function_id == function_id) {
            return &table[by_id[slot] - 1];
        }
    }
    return NULL;
}

bool mc_master_rpc_args_tell_version(const struct mc_rpc_desc *desc) {
    return desc->version_count > 1 && desc->versions[0].args_hash != desc->versions[1].args_hash;
}

enum mc_status mc_master_rpc_decode_args(const struct mc_rpc_desc *desc, struct mc_str body,
                                         struct mc_arena *arena, void *args, unsigned *version) {
    if (desc->versions[0].args == NULL) { /* upstream does not look at the body either */
        *version = 0;
        return MC_OK;
    }
    uint32_t hash;
    MC_TRY(mc_wire_peek_hash(body, &hash));
    for (unsigned v = 0; v < desc->version_count; v++) {
        if (desc->versions[v].args_hash == hash) {
            *version = v;
            return mc_wire_decode(desc->versions[v].args, hash, body, arena, args);
        }
    }
    return MC_ERR_WIRE_HASH;
}

static const struct mc_rpc_schema *schema_of(const struct mc_rpc_desc *desc, unsigned version) {
    return &desc->versions[version < desc->version_count ? version : desc->version_count - 1];
}

void mc_master_rpc_encode_args(const struct mc_rpc_desc *desc, unsigned version, const void *args,
                               struct mc_buf *out) {
    const struct mc_rpc_schema *schema = schema_of(desc, version);
    mc_wire_encode(schema->args, schema->args_hash, args, out);
}

enum mc_status mc_master_rpc_decode_ret(const struct mc_rpc_desc *desc, unsigned version,
                                        struct mc_str body, struct mc_arena *arena, void *ret) {
    const struct mc_rpc_schema *schema = schema_of(desc, version);
    return mc_wire_decode(schema->ret, schema->ret_hash, body, arena, ret);
}

void mc_master_rpc_encode_ret(const struct mc_rpc_desc *desc, unsigned version, const void *ret,
                              struct mc_buf *out) {
    const struct mc_rpc_schema *schema = schema_of(desc, version);
    mc_wire_encode(schema->ret, schema->ret_hash, ret, out);
}
