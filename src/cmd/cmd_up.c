/*
 * `mooncake up`: a whole cluster on this machine, in the foreground: the master in this process,
 * each node a process of its own.
 */
#include "cmd/cmd.h"
#include "cmd/local_cluster.h"

#include <stdio.h>

struct up_options {
    uint64_t nodes, node_bytes;
    int64_t port, admin_port, metadata_port;
    const char *host;
};

#define OPT(...) MC_OPTION(struct up_options, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(U64, nodes, .default_value = "3", .min = 1, .max = MC_LOCAL_MAX_NODES,
        .doc = "node processes"),
    OPT(SIZE, node_bytes, .default_value = "512MB", .min = 1, .max = 1e15,
        .doc = "memory that each of them lends"),
    OPT(STRING, host, .default_value = "127.0.0.1",
        .doc = "address that the master listens on; the nodes are reached at 127.0.0.1"),
    OPT(I64, port, .default_value = "50051", .max = 65535,
        .doc = "RPC port of the master; 0 = any free one"),
    OPT(I64, admin_port, .default_value = "9003", .max = 65535,
        .doc = "port of its metrics and admin endpoints; 0 = any free one"),
    OPT(I64, metadata_port, .default_value = "-1", .min = -1, .max = 65535,
        .doc = "port of a metadata server for Transfer Engines; -1 = none, 0 = any free one"),
};

const struct mc_option_set mc_up_options = {
    .program = "mooncake up",
    .synopsis = "[options]",
    .about = "Runs a cluster on this machine until it is interrupted: a master and several node "
             "processes.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static void print_how_to_reach_it(const struct up_options *o, struct mc_local_cluster *cluster) {
    struct mc_master_service *service = mc_local_cluster_service(cluster);
    const char *master = mc_local_cluster_master(cluster);
    int host_length = (int)(strrchr(master, ':') - master);
    struct mc_buf size = {0};
    mc_format_size(&size, o->node_bytes);
    printf("A Mooncake cluster is up: %llu nodes of %s.\n\n", (unsigned long long)o->nodes,
           mc_buf_cstr(&size));
    printf("  master    %s\n", master);
    printf("  metrics   http://%.*s:%u/metrics\n", host_length, master,
           mc_master_service_admin_port(service));
    if (mc_master_service_metadata_port(service) != 0) {
        printf("  metadata  http://%.*s:%u/metadata\n", host_length, master,
               mc_master_service_metadata_port(service));
    }
    printf("\nTry, in another terminal:\n"
           "  echo hello | mooncake put --master %s greeting\n"
           "  mooncake get --master %s greeting\n"
           "  mooncake top --admin %.*s:%u\n\nCtrl-C ends it.\n",
           master, master, host_length, master, mc_master_service_admin_port(service));
    fflush(stdout);
    mc_buf_free(&size);
}

/* Until a signal, or until the last node has gone. */
static int watch(const struct up_options *o, struct mc_local_cluster *cluster) {
    unsigned alive = (unsigned)o->nodes;
    while (!mc_cmd_wait_for_signal(200)) {
        unsigned now = mc_local_cluster_alive(cluster);
        if (now < alive) {
            mc_cmd_fail("mooncake up", 0, "a node process ended; %u of %llu are left", now,
                        (unsigned long long)o->nodes);
            alive = now;
        }
        if (alive == 0) {
            return MC_EXIT_FAILED;
        }
    }
    return 0;
}

int mc_cmd_up(int argc, char **argv) {
    struct up_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse_no_words(&mc_up_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_local_cluster_config config = {.nodes = (unsigned)options.nodes,
                                             .node_bytes = options.node_bytes};
    mc_master_service_config_init(&config.master);
    config.master.rpc_host = options.host;
    config.master.rpc_port = (uint16_t)options.port;
    config.master.admin = true;
    config.master.admin_host = options.host;
    config.master.admin_port = (uint16_t)options.admin_port;
    config.master.metadata = options.metadata_port >= 0;
    config.master.metadata_host = options.host;
    config.master.metadata_port = options.metadata_port >= 0 ? (uint16_t)options.metadata_port : 0;
    struct mc_local_cluster *cluster;
    mc_cmd_catch_signals();
    if (mc_local_cluster_start("mooncake up", &config, &cluster) != MC_OK) {
        exit_status = MC_EXIT_FAILED;
    } else {
        print_how_to_reach_it(&options, cluster);
        exit_status = watch(&options, cluster);
        mc_local_cluster_stop(cluster);
    }
    mc_options_free(&result);
    return exit_status;
}
