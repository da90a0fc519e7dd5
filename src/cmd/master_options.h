/*
 * The options of mooncake_master: upstream's flags, each with its type, range, default and meaning,
 * and what they make of a service configuration.
 */
#ifndef MC_CMD_MASTER_OPTIONS_H
#define MC_CMD_MASTER_OPTIONS_H

#include "cmd/cmd.h"
#include "master/service.h"

struct mc_master_options {
    const char *config_path;
    /* RPC */
    bool rpc_port_given, port_given;
    int64_t port, rpc_port, max_threads, rpc_thread_num, rpc_conn_timeout_seconds;
    const char *rpc_address, *rpc_interface;
    bool rpc_enable_tcp_no_delay;
    /* HTTP */
    bool enable_metric_reporting;
    int64_t metrics_port;
    const char *metrics_host;
    bool enable_http_metadata_server, enable_metadata_cleanup_on_timeout;
    int64_t http_metadata_server_port;
    const char *http_metadata_server_host;
    /* objects */
    uint64_t default_kv_lease_ttl, default_kv_soft_pin_ttl, max_kv_soft_pin_ttl;
    bool allow_evict_soft_pinned_objects;
    double eviction_ratio, eviction_high_watermark_ratio;
    uint64_t eviction_attention_blocks;
    int64_t client_ttl;
    uint64_t put_start_discard_timeout_sec, put_start_release_timeout_sec;
    const char *memory_allocator, *allocation_strategy, *eviction_policy;
    const char *root_fs_dir, *cluster_id;
    int64_t global_file_segment_size;
    bool enable_disk_eviction;
    const char *rpc_tls_cert, *rpc_tls_key, *rpc_tls_ca;
    const char *http_tls_cert, *http_tls_key, *http_tls_ca;
    uint64_t quota_bytes, metadata_memory_limit, rpc_memory_limit;
    /* tasks */
    uint64_t max_total_finished_tasks, max_total_pending_tasks, max_total_processing_tasks;
    uint64_t pending_task_timeout_sec, processing_task_timeout_sec, max_retry_attempts;
    /* NVMe-oF segments */
    double nof_eviction_ratio, nof_eviction_high_watermark_ratio;
    int64_t nof_heartbeat_interval_sec;
    uint64_t nof_heartbeat_probe_timeout_ms, nof_heartbeat_failures_threshold;
    /* SSD tier */
    bool enable_offload, offload_on_evict, offload_force_evict, promotion_on_hit;
    uint64_t offloading_queue_limit, promotion_admission_threshold, promotion_queue_limit,
        promotion_max_per_heartbeat;
    const char *offload_notes_path;
    bool offload_adopt_unproven;
    double offload_cap_ratio, offload_high_watermark_ratio;
    const char *dynamic_replication_mode;
    uint64_t dynamic_replication_heat_window_seconds, dynamic_replication_max_memory_replicas;
    double dynamic_replication_admission_qps_threshold;
    /* high availability */
    bool enable_ha, enable_oplog;
    const char *ha_backend_type, *ha_backend_connstring, *etcd_endpoints, *pod_name, *pod_namespace;
    int64_t oplog_poll_interval_ms;
    uint64_t oplog_batch_max_entries, batch_oplog_retry_timeout_sec;
    /* snapshots */
    bool enable_snapshot, enable_snapshot_restore;
    uint64_t snapshot_interval_seconds, snapshot_child_timeout_seconds, snapshot_retention_count;
    const char *snapshot_backup_dir, *snapshot_object_store_type, *snapshot_catalog_store_type,
        *snapshot_catalog_store_connstring;
    /* events */
    bool enable_kv_events, kv_events_emit_legacy_compat, kv_events_emit_object_key;
    const char *kv_events_bind_endpoint, *kv_events_backend_id, *kv_events_model_name,
        *kv_events_tenant_id, *kv_events_additional_salt, *kv_events_lora_name;
    const char *kv_events_replay_endpoint;
    uint64_t kv_events_replay_batches, kv_events_replay_memory;
    uint64_t kv_events_queue_capacity, kv_events_block_size, kv_events_dp_rank;
    /* tenants, CXL */
    bool enable_multi_tenants, enable_cxl;
    const char *tenant_quota_connector_type, *tenant_quota_connector_uri, *cxl_path;
    uint64_t cxl_size;
    struct mc_glog_options log;
};

/* What this build does not have, when the options ask for it: a sentence that names the option,
 * else NULL. */
const char *mc_master_options_unsupported(const struct mc_master_options *options);

/* MC_ERR_USAGE with the reason in `error` when options contradict each other. The strings of
 * `config` live in `options`; an interface's address goes to `address` (of INET6_ADDRSTRLEN bytes).
 */
MC_MUST_USE enum mc_status mc_master_options_apply(const struct mc_master_options *options,
                                                   struct mc_master_service_config *config,
                                                   char *address, struct mc_buf *error);

#endif
