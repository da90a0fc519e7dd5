/*
 * mooncake_client: a store node under upstream's name and flags. `mooncake node` is the same with
 * more comfortable ones.
 */
#include "cmd/cmd.h"
#include "cmd/node_run.h"

#define DEFAULT_OFFLOAD_PATH "/data/file_storage" /* upstream's */

struct client_config {
    const char *host, *metadata_server, *device_names, *master_server_address, *protocol,
        *tenant_id;
    uint64_t port, global_segment_size, local_buffer_size, threads, http_port;
    const char *http_tls_cert, *http_tls_key, *http_tls_ca;
    bool enable_offload, start_offload_rpc_server, enable_http_server;
    struct mc_glog_options log;
};

#define OPT(...) MC_OPTION(struct client_config, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(STRING, host, .default_value = "0.0.0.0",
        .doc = "address of this machine: where the RPC server listens and what others are told; "
               "0.0.0.0 = listen on all, tell a chosen one"),
    OPT(U64, port, .default_value = "50052", .max = 65535,
        .doc = "port of the node's own RPC server"),
    OPT(STRING, master_server_address, .default_value = "127.0.0.1:50051",
        .doc = "host:port of the master"),
    OPT(STRING, metadata_server, .default_value = "http://127.0.0.1:8080/metadata",
        .doc = "where engines find each other: P2PHANDSHAKE, http://host:port/metadata, "
               "etcd://host:port or redis://host:port"),
    OPT(STRING, protocol, .default_value = "tcp", .doc = "how data travels: tcp"),
    OPT(STRING, device_names, .doc = "network cards to use, separated by commas; empty = all"),
    OPT(SIZE, global_segment_size, .default_value = "4 GB",
        .doc = "memory that is lent to the cluster"),
    OPT(SIZE, local_buffer_size, .default_value = "0",
        .doc = "memory for staging the node's own transfers; 0 = the default"),
    OPT(U64, threads, .default_value = "1", .min = 1, .max = 1024,
        .doc = "threads of the RPC server"),
    OPT(STRING, tenant_id, .default_value = "default",
        .doc = "tenant of the node's own operations"),
    OPT(BOOL, enable_offload,
        .doc = "keep objects on this machine's SSD, in the directory that "
               "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH names, else " DEFAULT_OFFLOAD_PATH),
    OPT(BOOL, start_offload_rpc_server, .default_value = "true",
        .doc = "serve offloaded objects to others, when enable_offload is set"),
    OPT(BOOL, enable_http_server, .doc = "serve /health and /metrics over HTTP"),
    OPT(U64, http_port, .default_value = "9300", .max = 65535, .doc = "port of the HTTP server"),
    MC_NODE_HTTP_TLS_OPTIONS(OPT),
    MC_GLOG_OPTIONS(struct client_config),
};

const struct mc_option_set mc_client_options = {
    .program = "mooncake_client",
    .synopsis = "[options]",
    .about = "A store node: lends memory of this machine to a cluster and serves clients that use "
             "it through this process.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
    .gflags_words = true,
};

static int run_client(const char *program, const void *of) {
    const struct client_config *config = of;
    const char *path = getenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH");
    if (config->enable_offload && !config->start_offload_rpc_server) {
        return mc_cmd_fail(program, MC_EXIT_FAILED,
                           "start_offload_rpc_server: objects on SSD are always served to others");
    }
    bool any_host = strcmp(config->host, "0.0.0.0") == 0 || strcmp(config->host, "::") == 0;
    struct mc_node_run run = {
        .http = config->enable_http_server,
        .http_host = config->host,
        .http_port = (uint16_t)config->http_port,
        .http_tls = {config->http_tls_cert, config->http_tls_key, config->http_tls_ca}};
    mc_store_options_init(&run.node.store);
    run.node.store.master = config->master_server_address;
    run.node.store.metadata = config->metadata_server;
    run.node.store.local_hostname = any_host ? NULL : config->host;
    run.node.store.segment_bytes = config->global_segment_size;
    run.node.store.protocol = config->protocol;
    run.node.store.device = config->device_names;
    run.node.store.tenant = config->tenant_id;
    if (config->enable_offload) {
        run.node.store.ssd_offload_path = path != NULL ? path : DEFAULT_OFFLOAD_PATH;
    }
    if (config->local_buffer_size > 0) {
        run.node.store.local_buffer_bytes = config->local_buffer_size;
    }
    run.node.host = config->host;
    run.node.port = (uint16_t)config->port;
    run.node.serve = true;
    run.node.threads = (unsigned)config->threads;
    return mc_node_run(program, &run);
}

int mc_cmd_client(int argc, char **argv) {
    struct client_config config;
    const struct mc_upstream_program program = {
        .options = &mc_client_options, .config = &config, .log = &config.log, .run = run_client};
    return mc_upstream_main(argc, argv, &program);
}
