/*
 * A cluster on this machine: the master in this process, each node a process of its own that lends
 * memory to it.
 *
 * The nodes are `mooncake node` children; they end when this process ends, however it does.
 */
#ifndef MC_CMD_LOCAL_CLUSTER_H
#define MC_CMD_LOCAL_CLUSTER_H

#include "master/service.h"

#define MC_LOCAL_MAX_NODES 64

struct mc_local_cluster_config {
    struct mc_master_service_config master;
    unsigned nodes;
    uint64_t node_bytes;
};

struct mc_local_cluster;
/* Returns when every node has mounted its memory. On failure it has said why and nothing runs. */
MC_MUST_USE enum mc_status mc_local_cluster_start(const char *program,
                                                  const struct mc_local_cluster_config *config,
                                                  struct mc_local_cluster **out);
/* Ends the nodes (they unmount), then the master. NULL is allowed. */
void mc_local_cluster_stop(struct mc_local_cluster *cluster);
struct mc_master_service *mc_local_cluster_service(struct mc_local_cluster *cluster);
/* "host:port" of the master, as this machine reaches it; valid as long as the cluster. */
const char *mc_local_cluster_master(const struct mc_local_cluster *cluster);
/* How many node processes are alive. */
unsigned mc_local_cluster_alive(struct mc_local_cluster *cluster);

#endif
