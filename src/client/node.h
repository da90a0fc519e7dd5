/*
 * node: a store that lends its memory and answers RPCs of its own, which is all that a storage node
 * (`mooncake_client`) is. The owner of the node decides how long it runs.
 */
#ifndef MC_CLIENT_NODE_H
#define MC_CLIENT_NODE_H

#include "base/metrics.h"
#include "mooncake/store.h"

struct mc_node_options {
    struct mc_store_options store;
    const char *host; /* where the RPC server listens; "" = all interfaces */
    uint16_t port;    /* 0 = any */
    bool serve;       /* false: no RPC server */
    unsigned threads; /* of the RPC server; 0 = 1 */
};

struct mc_node;
/* Starts serving RPCs, then opens the store. MC_ERR_ADDRESS_IN_USE names the port in the log. */
MC_MUST_USE enum mc_status mc_node_start(const struct mc_node_options *options,
                                         struct mc_node **out);
void mc_node_stop(struct mc_node *node); /* NULL is allowed */
struct mc_store *mc_node_store(struct mc_node *node);
uint16_t mc_node_port(const struct mc_node *node); /* of its RPC server; 0 = none */

#endif
