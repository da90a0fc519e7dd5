/*
 * The options of mooncake_master. See cmd/master_options.h.
 *
 * The table has every flag that upstream's master has, so that its command lines and configuration
 * files work. Options of features that this build does not have are accepted with the values that
 * leave the feature off; switching it on is refused by name, because a master that runs without
 * what was asked for is worse than one that does not start.
 */
#include "cmd/master_options.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>

#include "base/thread.h"

#define OPT(...) MC_OPTION(struct mc_master_options, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(STRING, config_path,
        .doc = "JSON or YAML file with options by name; the command line overrides it"),
    /* ---- RPC ---- */
    OPT(I64, rpc_port, .default_value = "0", .max = 65535,
        .given = offsetof(struct mc_master_options, rpc_port_given),
        .doc = "RPC port; 0 = the value of --port, or, when that is not given and this is, any "
               "free one, which the log names (upstream: 50051)"),
    OPT(I64, port, .default_value = "50051", .max = 65535,
        .given = offsetof(struct mc_master_options, port_given),
        .doc = "RPC port when rpc_port is 0; 0 = any free one"),
    OPT(I64, rpc_thread_num, .default_value = "0", .max = 1024,
        .doc = "RPC threads; 0 = as many as cores that it may use, at most max_threads"),
    OPT(I64, max_threads, .default_value = "16", .min = 1, .max = 1024,
        .doc = "most RPC threads when rpc_thread_num is 0"),
    OPT(STRING, rpc_address, .default_value = "0.0.0.0",
        .doc = "address to listen on; :: listens on IPv6 and IPv4"),
    OPT(STRING, rpc_interface, .doc = "network interface whose IPv4 address overrides rpc_address"),
    OPT(I64, rpc_conn_timeout_seconds, .default_value = "0", .max = 86400,
        .doc = "close connections that were silent for this long; 0 = never"),
    OPT(STRING, rpc_tls_cert, .env = "MC_TLS_CERT",
        .doc = "PEM file with the certificate of the RPC server; with it, RPC is TLS only"),
    OPT(STRING, rpc_tls_key, .env = "MC_TLS_KEY", .doc = "PEM file with its key"),
    OPT(STRING, rpc_tls_ca, .env = "MC_TLS_CA",
        .doc = "PEM file with a CA: clients must show a certificate that it signed"),
    OPT(SIZE, rpc_memory_limit, .default_value = "2GB", .min = 1 << 20, .max = 1e15,
        .doc = "requests and answers that wait in memory, over all RPC connections; a connection "
               "that takes it over the limit is closed"),
    OPT(BOOL, rpc_enable_tcp_no_delay, .default_value = "true",
        .doc = "send small answers at once"),
    /* ---- HTTP ---- */
    OPT(STRING, http_tls_cert,
        .doc = "PEM file with the certificate of the admin endpoints and the metadata server; with "
               "it, they are HTTPS only"),
    OPT(STRING, http_tls_key, .doc = "PEM file with its key"),
    OPT(STRING, http_tls_ca,
        .doc = "PEM file with a CA: HTTP clients must show a certificate that it signed"),
    OPT(BOOL, enable_metric_reporting, .default_value = "true",
        .doc = "log a line of metrics every 10 seconds in which something happened"),
    OPT(I64, metrics_port, .default_value = "9003", .max = 65535,
        .doc = "port of the admin and metrics endpoints; 0 = any free one"),
    OPT(STRING, metrics_host, .default_value = "0.0.0.0",
        .doc = "address of the admin and metrics endpoints"),
    OPT(BOOL, enable_http_metadata_server, .default_value = "false",
        .doc = "serve Transfer Engine metadata over HTTP from this process"),
    OPT(I64, http_metadata_server_port, .default_value = "8080", .max = 65535,
        .doc = "port of the metadata server"),
    OPT(STRING, http_metadata_server_host, .default_value = "0.0.0.0",
        .doc = "address of the metadata server"),
    OPT(BOOL, enable_metadata_cleanup_on_timeout, .default_value = "false",
        .doc = "remove the metadata of clients whose heartbeat ended from the embedded metadata "
               "server"),
    /* ---- objects, eviction, placement ---- */
    OPT(DURATION, default_kv_lease_ttl, .default_value = "10000",
        .doc = "how long a read keeps an object from eviction and removal, in ms or with a unit "
               "ms, s, m, h"),
    OPT(DURATION, default_kv_soft_pin_ttl, .default_value = "1800000",
        .doc = "how long a soft pin lasts since the last access"),
    OPT(DURATION, max_kv_soft_pin_ttl, .default_value = "86400000",
        .doc = "longest soft pin that a put may ask for"),
    OPT(BOOL, allow_evict_soft_pinned_objects, .default_value = "true",
        .doc = "evict soft-pinned objects when nothing else is left"),
    OPT(DOUBLE, eviction_ratio, .default_value = "0.05", .max = 1,
        .doc = "share of the objects that one eviction removes"),
    OPT(CHOICE, eviction_policy, .default_value = "lru", .choices = "lru|s3fifo|chain|own",
        .doc = "which objects go first: lru = by the end of their last lease, as upstream; "
               "s3fifo; chain (also called own) = learned from uses and prefix chains"),
    OPT(U64, eviction_attention_blocks, .default_value = "0",
        .doc = "what recomputing costs, for the policy chain: the block of a prefix chain at which "
               "attention takes as much computing as the rest of the model (docs/eviction.md); 0 = "
               "every block costs the same"),
    OPT(DOUBLE, eviction_high_watermark_ratio, .default_value = "0.90", .max = 1,
        .doc =
            "memory use above which eviction starts by itself; 1 = only when a put finds no room"),
    OPT(I64, client_ttl, .default_value = "10", .min = 1, .max = 86400,
        .doc = "seconds without heartbeat after which a client and its segments are gone",
        .alias = "client_live_ttl_sec"),
    OPT(U64, put_start_discard_timeout_sec, .default_value = "30", .max = 31536000,
        .doc = "seconds after which an unfinished put may be overwritten"),
    OPT(U64, put_start_release_timeout_sec, .default_value = "600", .max = 31536000,
        .doc = "seconds after which the memory of an unfinished put is used again"),
    OPT(CHOICE, memory_allocator, .default_value = "offset", .choices = "offset|cachelib",
        .doc = "allocator of segment memory"),
    OPT(CHOICE, allocation_strategy, .default_value = "random",
        .choices = "random|free_ratio_first|cxl|ssd_free_ratio_first|local_first",
        .doc = "how segments are chosen for new objects"),
    OPT(STRING, cluster_id, .default_value = "mooncake_cluster",
        .doc = "name of the cluster, 1 to 128 of 0-9 A-Z a-z _ . -"),
    OPT(STRING, root_fs_dir, .doc = "directory, shared by the clients, for disk replicas"),
    OPT(I64, global_file_segment_size, .default_value = "9223372036854775807",
        .doc =
            "bytes that the shared directory has room for, for master_total_file_capacity_bytes"),
    OPT(BOOL, enable_disk_eviction, .default_value = "true",
        .doc = "clients evict from their file storage"),
    OPT(SIZE, metadata_memory_limit, .default_value = "0",
        .doc = "memory that the index may take; at it new objects are refused and others evicted; "
               "0 = three quarters of this machine's"),
    OPT(U64, quota_bytes, .default_value = "0",
        .doc = "bytes of file storage that clients may use; 0 = 90 % of what there is"),
    /* ---- copy and move tasks ---- */
    OPT(U64, max_total_finished_tasks, .default_value = "10000", .min = 1, .max = 4294967295,
        .doc = "most finished tasks that are kept"),
    OPT(U64, max_total_pending_tasks, .default_value = "10000", .min = 1, .max = 4294967295,
        .doc = "most pending tasks that are kept"),
    OPT(U64, max_total_processing_tasks, .default_value = "10000", .min = 1, .max = 4294967295,
        .doc = "most processing tasks that are kept"),
    OPT(U64, pending_task_timeout_sec, .default_value = "300", .max = 31536000,
        .doc = "seconds after which a task that nobody took fails; 0 = never"),
    OPT(U64, processing_task_timeout_sec, .default_value = "300", .max = 31536000,
        .doc = "seconds after which a running task fails; 0 = never"),
    OPT(U64, max_retry_attempts, .default_value = "10", .max = 1000,
        .doc = "how often a task is tried again"),
    /* ---- NVMe-oF segments ---- */
    OPT(DOUBLE, nof_eviction_ratio, .default_value = "0.05", .max = 1,
        .doc = "eviction_ratio of NVMe-oF segments"),
    OPT(DOUBLE, nof_eviction_high_watermark_ratio, .default_value = "0.90", .max = 1,
        .doc = "eviction_high_watermark_ratio of NVMe-oF segments"),
    OPT(I64, nof_heartbeat_interval_sec, .default_value = "10", .min = 1, .max = 86400,
        .doc = "seconds between probes of a target"),
    OPT(U64, nof_heartbeat_probe_timeout_ms, .default_value = "1000", .min = 1, .max = 3600000,
        .doc = "longest time of a probe"),
    OPT(U64, nof_heartbeat_failures_threshold, .default_value = "3", .min = 1, .max = 1000,
        .doc = "failed probes after which a target is unmounted"),
    /* ---- SSD tier ---- */
    OPT(BOOL, enable_offload, .default_value = "false",
        .doc = "let clients keep objects on their SSDs"),
    OPT(BOOL, offload_on_evict, .default_value = "false",
        .doc = "offload when an object is evicted instead of when it is put"),
    OPT(DOUBLE, offload_high_watermark_ratio, .default_value = "0", .max = 1,
        .doc = "offload the coldest objects while memory is fuller than this, and none when they "
               "are put; 0 = off"),
    OPT(BOOL, offload_force_evict, .default_value = "false",
        .doc = "evict objects that no disk took; what still waits for its disk is kept"),
    OPT(U64, offloading_queue_limit, .default_value = "50000", .min = 1, .max = 100000000,
        .doc = "objects that may wait for offloading"),
    OPT(DOUBLE, offload_cap_ratio, .default_value = "0.5", .max = 1,
        .doc = "with offload_on_evict: share of offloading_queue_limit that eviction may fill"),
    OPT(STRING, offload_notes_path, .default_value = "auto",
        .doc =
            "file in which a master leaves for the next one what disks may not bring back; auto = "
            "in /dev/shm, by port, unless that is 0; none = what disks hold is lost with the "
            "master"),
    OPT(BOOL, offload_adopt_unproven, .default_value = "false",
        .doc = "take what disks hold also when nothing proves that it was not replaced: for keys "
               "whose value never changes"),
    OPT(BOOL, promotion_on_hit, .default_value = "false",
        .doc = "bring an object back to memory when it is read from SSD"),
    OPT(U64, promotion_admission_threshold, .default_value = "2", .min = 1, .max = 1000000,
        .doc = "reads before an object is brought back"),
    OPT(U64, promotion_queue_limit, .default_value = "50000", .max = 4294967295,
        .doc = "objects that may wait to be brought back"),
    OPT(U64, promotion_max_per_heartbeat, .default_value = "1", .max = 4294967295,
        .doc = "objects that one heartbeat brings back"),
    OPT(CHOICE, dynamic_replication_mode, .default_value = "off", .choices = "off|observe|enforce",
        .doc = "more memory replicas for objects that are read often"),
    OPT(U64, dynamic_replication_heat_window_seconds, .default_value = "10", .min = 1, .max = 86400,
        .doc = "window in which reads are counted"),
    OPT(DOUBLE, dynamic_replication_admission_qps_threshold, .default_value = "0.8",
        .max = 1000000000.0, .doc = "reads a second from which an object is replicated"),
    OPT(U64, dynamic_replication_max_memory_replicas, .default_value = "2", .min = 1, .max = 1024,
        .doc = "most memory replicas of such an object"),
    /* ---- high availability ---- */
    OPT(BOOL, enable_ha, .default_value = "false", .doc = "elect a leader among several masters"),
    OPT(CHOICE, ha_backend_type, .default_value = "etcd", .choices = "etcd|redis|k8s",
        .doc = "where the election is held"),
    OPT(STRING, ha_backend_connstring, .doc = "address of that service; empty = etcd_endpoints"),
    OPT(STRING, etcd_endpoints, .doc = "addresses of etcd, separated by ;"),
    OPT(STRING, pod_name, .env = "POD_NAME", .doc = "name of this pod"),
    OPT(STRING, pod_namespace, .env = "POD_NAMESPACE", .doc = "namespace of this pod"),
    OPT(BOOL, enable_oplog, .default_value = "false",
        .doc = "replicate the metadata to standby masters"),
    OPT(I64, oplog_poll_interval_ms, .default_value = "1000", .min = 1, .max = 3600000,
        .doc = "how often a standby asks for new entries"),
    OPT(U64, oplog_batch_max_entries, .default_value = "1024", .min = 1, .max = 1000000,
        .doc = "most entries of one record"),
    OPT(U64, batch_oplog_retry_timeout_sec, .default_value = "180", .max = 86400,
        .doc = "how long a standby retries after an error"),
    /* ---- snapshots ---- */
    OPT(BOOL, enable_snapshot, .default_value = "false",
        .doc = "write the metadata to storage from time to time"),
    OPT(BOOL, enable_snapshot_restore, .default_value = "false",
        .doc = "start from the last snapshot"),
    OPT(U64, snapshot_interval_seconds, .default_value = "600", .min = 1, .max = 31536000,
        .doc = "time between snapshots"),
    OPT(U64, snapshot_child_timeout_seconds, .default_value = "300", .min = 1, .max = 86400,
        .doc = "longest time of writing one"),
    OPT(U64, snapshot_retention_count, .default_value = "2", .min = 1, .max = 1000000,
        .doc = "how many are kept"),
    OPT(STRING, snapshot_backup_dir, .doc = "directory for copies of what could not be uploaded"),
    OPT(CHOICE, snapshot_object_store_type, .choices = "|local|s3",
        .doc = "where snapshots are stored", .alias = "snapshot_payload_store_type"),
    MC_OPTION_AS(struct mc_master_options, CHOICE, "snapshot_payload_backend_type",
                 snapshot_object_store_type, .choices = "|local|s3",
                 .doc = "deprecated: use snapshot_object_store_type"),
    OPT(CHOICE, snapshot_catalog_store_type, .choices = "|embedded|redis|payload",
        .doc = "where the list of snapshots is kept", .alias = "snapshot_catalog_backend_type"),
    OPT(STRING, snapshot_catalog_store_connstring, .doc = "address of that list",
        .alias = "snapshot_catalog_backend_connstring"),
    /* ---- KV events ---- */
    OPT(BOOL, enable_kv_events, .default_value = "false",
        .doc = "publish stored and removed objects over ZeroMQ"),
    OPT(STRING, kv_events_bind_endpoint, .doc = "where to publish, like tcp://0.0.0.0:5557"),
    OPT(STRING, kv_events_backend_id, .doc = "name of this cache in the events"),
    OPT(BOOL, kv_events_emit_legacy_compat, .default_value = "true",
        .doc = "add the members that older subscribers read"),
    OPT(BOOL, kv_events_emit_object_key, .default_value = "true", .doc = "add the object key"),
    OPT(U64, kv_events_queue_capacity, .default_value = "65536", .max = 4294967295,
        .doc = "events that may wait; 0 = no limit"),
    OPT(STRING, kv_events_replay_endpoint,
        .doc = "where subscribers ask for events that they missed, like tcp://0.0.0.0:5558; empty "
               "= nowhere"),
    OPT(U64, kv_events_replay_batches, .default_value = "10000", .min = 1, .max = 10000000,
        .doc = "messages that are kept for them, at most"),
    OPT(SIZE, kv_events_replay_memory, .default_value = "64MB", .min = 1 << 16, .max = 1e12,
        .doc = "memory that these messages may take"),
    OPT(STRING, kv_events_model_name, .doc = "deprecated: not part of the events any more"),
    OPT(STRING, kv_events_additional_salt, .doc = "deprecated: not part of the events any more"),
    OPT(STRING, kv_events_lora_name, .doc = "deprecated: not part of the events any more"),
    OPT(STRING, kv_events_tenant_id, .default_value = "default",
        .doc = "deprecated: not part of the events any more"),
    OPT(U64, kv_events_block_size, .default_value = "0",
        .doc = "deprecated: not part of the events any more"),
    OPT(U64, kv_events_dp_rank, .default_value = "0",
        .doc = "deprecated: not part of the events any more"),
    /* ---- tenants and CXL ---- */
    OPT(BOOL, enable_multi_tenants, .default_value = "false",
        .doc = "only tenants with a quota may write"),
    OPT(CHOICE, tenant_quota_connector_type, .default_value = "file", .choices = "file|etcd",
        .doc = "where the quotas are kept"),
    OPT(STRING, tenant_quota_connector_uri, .doc = "path or address of the quotas"),
    OPT(BOOL, enable_cxl, .default_value = "false", .doc = "use CXL memory"),
    OPT(STRING, cxl_path, .default_value = "/dev/dax0.0", .doc = "device of the CXL memory"),
    OPT(U64, cxl_size, .default_value = "8589934592", .doc = "bytes of the CXL memory"),
    /* ---- logging ---- */
    MC_GLOG_OPTIONS(struct mc_master_options),
};

const struct mc_option_set mc_master_option_set = {
    .program = "mooncake_master",
    .synopsis = "[options]",
    .about = "The master of a Mooncake cluster: it knows where every object is, gives out space "
             "and leases, and evicts. "
             "No data passes through it.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
    .gflags_words = true,
    .config_option = "config_path",
};

/* ---- what is not there ---- */

const char *mc_master_options_unsupported(const struct mc_master_options *o) {
    const struct {
        bool wanted;
        const char *text;
    } features[] = {
        {o->enable_ha, "enable_ha: this build has no high availability"},
        {o->enable_oplog, "enable_oplog: this build has no op log"},
        {o->enable_snapshot, "enable_snapshot: this build has no snapshots"},
        {o->enable_snapshot_restore, "enable_snapshot_restore: this build has no snapshots"},
        {o->enable_cxl, "enable_cxl: this build has no CXL memory"},
        {strcmp(o->memory_allocator, "offset") != 0,
         "memory_allocator: this build has only the allocator 'offset'"},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(features); i++) {
        if (features[i].wanted) {
            return features[i].text;
        }
    }
    return NULL;
}

/* ---- the service configuration ---- */

static enum mc_status wrong(struct mc_buf *error, const char *option, const char *text) {
    mc_buf_printf(error, "%s: %s", option, text);
    return MC_ERR_USAGE;
}

/* The interface's first IPv4 address as text. */
static enum mc_status interface_address(const char *name, char *address, struct mc_buf *error) {
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0) {
        return wrong(error, "rpc_interface", "the network interfaces cannot be listed");
    }
    enum mc_status status = MC_ERR_NOT_FOUND;
    for (const struct ifaddrs *i = list; i != NULL && status != MC_OK; i = i->ifa_next) {
        if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
            strcmp(i->ifa_name, name) == 0) {
            const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
            inet_ntop(AF_INET, &in->sin_addr, address, INET6_ADDRSTRLEN);
            status = MC_OK;
        }
    }
    freeifaddrs(list);
    return status == MC_OK
               ? MC_OK
               : wrong(error, "rpc_interface", "no such interface, or it has no IPv4 address");
}

static bool cluster_id_is_valid(const char *id) {
    size_t len = strlen(id);
    return len >= 1 && len <= 128 &&
           strspn(id, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_.-") == len;
}

static unsigned rpc_threads(const struct mc_master_options *o) {
    if (o->rpc_thread_num > 0) {
        return (unsigned)o->rpc_thread_num;
    }
    return (unsigned)mc_min_u64((uint64_t)o->max_threads, mc_usable_cores());
}

static uint64_t machine_memory(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void apply_core(const struct mc_master_options *o, struct mc_master_config *core) {
    core->default_kv_lease_ttl_ms = o->default_kv_lease_ttl;
    core->default_kv_soft_pin_ttl_ms = o->default_kv_soft_pin_ttl;
    core->max_kv_soft_pin_ttl_ms = o->max_kv_soft_pin_ttl;
    core->allow_evict_soft_pinned_objects = o->allow_evict_soft_pinned_objects;
    core->eviction_policy = o->eviction_policy;
    core->eviction_attention_blocks = (double)o->eviction_attention_blocks;
    core->eviction_ratio = o->eviction_ratio;
    core->eviction_high_watermark_ratio = o->eviction_high_watermark_ratio;
    core->client_ttl_ms = (uint64_t)o->client_ttl * 1000;
    core->put_start_discard_timeout_ms = o->put_start_discard_timeout_sec * 1000;
    core->put_start_release_timeout_ms = o->put_start_release_timeout_sec * 1000;
    core->max_total_finished_tasks = o->max_total_finished_tasks;
    core->max_total_pending_tasks = o->max_total_pending_tasks;
    core->max_total_processing_tasks = o->max_total_processing_tasks;
    core->pending_task_timeout_ms = o->pending_task_timeout_sec * 1000;
    core->processing_task_timeout_ms = o->processing_task_timeout_sec * 1000;
    core->max_retry_attempts = o->max_retry_attempts;
    core->allocation_strategy = o->allocation_strategy;
    core->root_fs_dir = o->root_fs_dir;
    core->root_fs_bytes = o->global_file_segment_size > 0 && o->global_file_segment_size < INT64_MAX
                              ? (uint64_t)o->global_file_segment_size
                              : 0;
    core->cluster_id = o->cluster_id;
    core->enable_disk_eviction = o->enable_disk_eviction;
    core->quota_bytes = o->quota_bytes;
    core->metadata_limit_bytes =
        o->metadata_memory_limit != 0 ? o->metadata_memory_limit : machine_memory() / 4 * 3;
    core->enable_offload = o->enable_offload;
    core->offload_on_evict = o->offload_on_evict;
    core->offload_force_evict = o->offload_force_evict;
    core->offload_high_watermark_ratio = o->offload_high_watermark_ratio;
    core->offloading_queue_limit = o->offloading_queue_limit;
    core->offload_cap_ratio = o->offload_cap_ratio;
    core->offload_notes_path = o->offload_notes_path;
    core->offload_adopt_unproven = o->offload_adopt_unproven;
    core->promotion_on_hit = o->promotion_on_hit;
    core->promotion_admission_threshold = o->promotion_admission_threshold;
    core->promotion_queue_limit = o->promotion_queue_limit;
    core->promotion_max_per_heartbeat = o->promotion_max_per_heartbeat;
    core->enable_multi_tenants = o->enable_multi_tenants;
    core->tenant_quota_policy = o->tenant_quota_connector_uri;
    core->dynamic_replication =
        strcmp(o->dynamic_replication_mode, "enforce") == 0   ? MC_DYNAMIC_ENFORCE
        : strcmp(o->dynamic_replication_mode, "observe") == 0 ? MC_DYNAMIC_OBSERVE
                                                              : MC_DYNAMIC_OFF;
    core->dynamic_window_ms = o->dynamic_replication_heat_window_seconds * 1000;
    core->dynamic_qps = o->dynamic_replication_admission_qps_threshold;
    core->dynamic_max_replicas = o->dynamic_replication_max_memory_replicas;
}

static enum mc_status apply_events(const struct mc_master_options *o,
                                   struct mc_events_config *events, struct mc_buf *error) {
    if (!o->enable_kv_events) {
        return MC_OK;
    }
    if (o->kv_events_bind_endpoint[0] == '\0') {
        return wrong(error, "kv_events_bind_endpoint", "enable_kv_events needs an endpoint");
    }
    if (o->kv_events_backend_id[0] == '\0') {
        return wrong(error, "kv_events_backend_id", "enable_kv_events needs a name of this cache");
    }
    *events = (struct mc_events_config){.endpoint = o->kv_events_bind_endpoint,
                                        .replay_endpoint = o->kv_events_replay_endpoint,
                                        .backend_id = o->kv_events_backend_id,
                                        .legacy = o->kv_events_emit_legacy_compat,
                                        .object_key = o->kv_events_emit_object_key,
                                        .queue_capacity = o->kv_events_queue_capacity,
                                        .replay_batches = o->kv_events_replay_batches,
                                        .replay_bytes = o->kv_events_replay_memory};
    return MC_OK;
}

/* Upstream's 0 is "not given", and its list of all flags with their defaults must go on meaning
 * 50051; but who asks for 0 and for nothing else does not mean that. */
static uint16_t rpc_port(const struct mc_master_options *o) {
    bool any_free = o->rpc_port_given && !o->port_given;
    return (uint16_t)(o->rpc_port != 0 || any_free ? o->rpc_port : o->port);
}

enum mc_status mc_master_options_apply(const struct mc_master_options *o,
                                       struct mc_master_service_config *config, char *address,
                                       struct mc_buf *error) {
    mc_master_service_config_init(config);
    if (!cluster_id_is_valid(o->cluster_id)) {
        return wrong(error, "cluster_id", "1 to 128 characters of 0-9 A-Z a-z _ . - are accepted");
    }
    if (o->put_start_release_timeout_sec < o->put_start_discard_timeout_sec) {
        return wrong(error, "put_start_release_timeout_sec",
                     "must not be below put_start_discard_timeout_sec");
    }
    config->rpc_host = o->rpc_address;
    if (o->rpc_interface[0] != '\0') {
        MC_TRY(interface_address(o->rpc_interface, address, error));
        config->rpc_host = address;
    }
    config->rpc_port = rpc_port(o);
    config->rpc_threads = rpc_threads(o);
    config->rpc_idle_timeout_ms = (uint32_t)o->rpc_conn_timeout_seconds * 1000;
    config->rpc_no_delay = o->rpc_enable_tcp_no_delay;
    config->rpc_buffer_limit_bytes = o->rpc_memory_limit;
    config->rpc_tls = (struct mc_tls_config){o->rpc_tls_cert, o->rpc_tls_key, o->rpc_tls_ca};
    config->http_tls = (struct mc_tls_config){o->http_tls_cert, o->http_tls_key, o->http_tls_ca};
    config->admin = true;
    config->admin_host = o->metrics_host;
    config->admin_port = (uint16_t)o->metrics_port;
    config->metadata = o->enable_http_metadata_server;
    config->metadata_host = o->http_metadata_server_host;
    config->metadata_port = (uint16_t)o->http_metadata_server_port;
    config->metadata_cleanup = o->enable_metadata_cleanup_on_timeout;
    config->report_interval_ms = o->enable_metric_reporting ? 10000 : 0;
    apply_core(o, &config->core);
    return apply_events(o, &config->events, error);
}
