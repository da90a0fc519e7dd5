/*
 * Running a store node until a signal ends it: what `mooncake node` and mooncake_client share.
 */
#ifndef MC_CMD_NODE_RUN_H
#define MC_CMD_NODE_RUN_H

#include "client/node.h"

struct mc_node_run {
    struct mc_node_options node;
    bool http; /* /health, /metrics, /metrics/summary */
    const char *http_host;
    uint16_t http_port;
    bool quiet; /* do not say what runs */
};
/* Returns the exit status. */
int mc_node_run(const char *program, const struct mc_node_run *run);

#endif
