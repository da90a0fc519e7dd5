/*
 * `mooncake node`: lends memory of this machine to a cluster until a signal ends it.
 */
#include "cmd/cmd.h"
#include "cmd/node_run.h"

#include "base/log.h"

struct node_config {
    struct mc_cluster_options cluster;
    uint64_t segment_bytes, http_port, rpc_threads;
    int64_t port;
    const char *http_tls_cert, *http_tls_key, *http_tls_ca;
    bool quiet, http, shm;
    const char *listen, *ssd_offload_path;
};

#define OPT(...) MC_OPTION(struct node_config, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_CLUSTER_OPTIONS(struct node_config),
    OPT(SIZE, segment_bytes, .default_value = "1GB", .env = "MOONCAKE_GLOBAL_SEGMENT_SIZE",
        .min = 1, .max = 1e18, .doc = "memory that is lent", .alias = "global_segment_size"),
    OPT(STRING, listen, .default_value = "0.0.0.0",
        .doc = "address of the node's own RPC and HTTP servers"),
    OPT(I64, port, .default_value = "-1", .min = -1, .max = 65535,
        .doc = "port of the node's own RPC server, for clients that use its memory through it; -1 "
               "= none, 0 = any free one"),
    OPT(U64, rpc_threads, .default_value = "1", .min = 1, .max = 256,
        .doc = "threads of that server"),
    OPT(BOOL, http, .doc = "serve /health and /metrics over HTTP"),
    OPT(U64, http_port, .default_value = "9300", .max = 65535, .doc = "port of the HTTP server"),
    MC_NODE_HTTP_TLS_OPTIONS(OPT),
    OPT(BOOL, shm, .default_value = "true", .doc = "let processes of this machine map the memory"),
    OPT(STRING, ssd_offload_path,
        .doc = "directory on an SSD, which exists: objects of this node are written there when the "
               "master has enable_offload; empty = none"),
    OPT(BOOL, quiet, .doc = "do not say what runs"),
};

const struct mc_option_set mc_node_options = {
    .program = "mooncake node",
    .synopsis = "[options]",
    .about = "Lends memory of this machine to a cluster until it is interrupted. Objects whose "
             "only copy is here go with it.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

int mc_cmd_node(int argc, char **argv) {
    struct node_config config;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse_no_words(&mc_node_options, argc, argv, &config, &result, &exit_status)) {
        return exit_status;
    }
    if (config.quiet && getenv("MC_LOG_LEVEL") == NULL && mc_log_set_level("WARNING") != MC_OK) {
        mc_cmd_fail("mooncake node", 0, "the log level cannot be set");
    }
    struct mc_node_run run = {
        .http = config.http,
        .http_host = config.listen,
        .http_port = (uint16_t)config.http_port,
        .http_tls = {config.http_tls_cert, config.http_tls_key, config.http_tls_ca},
        .quiet = config.quiet};
    mc_store_options_init(&run.node.store);
    mc_cluster_options_apply(&config.cluster, &run.node.store);
    run.node.store.segment_bytes = config.segment_bytes;
    run.node.store.ssd_offload_path =
        config.ssd_offload_path[0] != '\0' ? config.ssd_offload_path : NULL;
    run.node.store.disable_shm = !config.shm;
    run.node.host = config.listen;
    run.node.serve = config.port >= 0;
    run.node.port = config.port >= 0 ? (uint16_t)config.port : 0;
    run.node.threads = (unsigned)config.rpc_threads;
    exit_status = mc_node_run("mooncake node", &run);
    mc_options_free(&result);
    return exit_status;
}
