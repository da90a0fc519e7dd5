/*
 * Reaching a cluster from a subcommand. See cmd/cmd.h.
 */
#include "cmd/cmd.h"

void mc_cluster_options_apply(const struct mc_cluster_options *options,
                              struct mc_store_options *store) {
    store->master = options->master;
    store->metadata = options->metadata;
    store->local_hostname = options->host[0] != '\0' ? options->host : NULL;
    store->tenant = options->tenant;
    store->timeout_ms = (uint32_t)mc_min_u64(options->timeout_ms, UINT32_MAX);
}

enum mc_status mc_cmd_open_store(const char *program, const struct mc_cluster_options *options,
                                 struct mc_store **store) {
    struct mc_store_options config;
    mc_store_options_init(&config);
    mc_cluster_options_apply(options, &config);
    config.segment_bytes = 0;
    enum mc_status status = mc_store_open(&config, store);
    switch (status) {
    case MC_OK:
        break;
    case MC_ERR_BAD_ADDRESS:
        mc_cmd_fail(program, 0, "'%s' is not the address of a master: host:port is expected",
                    options->master);
        break;
    case MC_RPC_FAIL:
    case MC_RPC_TIMEOUT:
    case MC_ERR_UNREACHABLE:
    case MC_ERR_TIMEOUT:
        mc_cmd_fail(program, 0,
                    "no master answers at %s. Start a cluster with 'mooncake up', or name the "
                    "master with --master",
                    options->master);
        break;
    default:
        mc_cmd_fail(program, 0, "the cluster of master %s cannot be joined: %s (%s)",
                    options->master, mc_status_text(status), mc_status_name(status));
    }
    return status;
}
