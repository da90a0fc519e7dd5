/*
 * A storage node. See client/node.h.
 *
 * Of the functions that upstream's node registers, those about offloaded objects and devices'
 * memory are not served by this build: they answer "not registered", as for any function that a
 * server does not know. What dummy clients ask may wait for the master, so it runs aside of the
 * reactors.
 */
#include "client/node.h"

#include <stdatomic.h>

#include "base/log.h"
#include "client/dummies.h"
#include "client/store_private.h"
#include "rpc/rpc.h"
#include "wire/client_rpc.h"

#define CALLS_AT_ONCE 8 /* of dummies; more wait */

struct mc_node {
    _Atomic(struct mc_store *) store; /* NULL until it is open */
    struct mc_dummies *dummies;       /* set before the store is; NULL without an RPC server */
    struct mc_tls_peers tls;
    struct mc_rpc_server *server;
    uint16_t port;
};

static void answer(void *ctx, const struct mc_rpc_request *request, struct mc_rpc_reply *reply) {
    struct mc_node *node = ctx;
    const struct mc_rpc_desc *ready = &mc_client_rpc_table()[MC_CLIENT_RPC_service_ready_internal];
    struct mc_store *store = atomic_load_explicit(&node->store, memory_order_acquire);
    if (request->function_id != ready->function_id) {
        if (store == NULL || !mc_dummies_handle(node->dummies, request, reply)) {
            reply->errc = MC_RPC_NOT_REGISTERED;
        }
        return;
    }
    struct mw_e_void ret = {store != NULL ? MC_OK : MC_UNAVAILABLE_IN_CURRENT_STATUS};
    mc_master_rpc_encode_ret(ready, 0, &ret, reply->body);
}

static bool slow(void *ctx, uint32_t function_id) {
    return mc_dummies_slow(function_id);
}

static enum mc_status serve(struct mc_node *node, const struct mc_node_options *options) {
    MC_TRY(mc_tls_peers_environment(&node->tls));
    struct mc_rpc_server_config config = {.host = options->host,
                                          .port = options->port,
                                          .threads = options->threads,
                                          .no_delay = true,
                                          .peers = node->tls,
                                          .handler = answer,
                                          .slow = slow,
                                          .slow_threads = CALLS_AT_ONCE,
                                          .ctx = node};
    return mc_rpc_server_start(&config, &node->server, &node->port);
}

enum mc_status mc_node_start(const struct mc_node_options *options, struct mc_node **out) {
    struct mc_node *node = mc_zalloc(sizeof(*node));
    struct mc_store *store;
    enum mc_status status = options->serve ? serve(node, options) : MC_OK;
    if (status != MC_OK) {
        goto fail_node;
    }
    status = mc_store_open(&options->store, &store);
    if (status != MC_OK) {
        goto fail_server;
    }
    if (options->serve) {
        status = mc_dummies_start(store, node->port, &node->dummies);
        if (status != MC_OK) {
            goto fail_store;
        }
    }
    atomic_store_explicit(&node->store, store, memory_order_release);
    *out = node;
    return MC_OK;
fail_store:
    mc_store_close(store);
fail_server:
    if (node->server != NULL) {
        mc_rpc_server_stop(node->server);
    }
fail_node:
    mc_tls_peers_close(&node->tls);
    free(node);
    return status;
}

void mc_node_stop(struct mc_node *node) {
    if (node == NULL) {
        return;
    }
    if (node->server != NULL) {
        mc_rpc_server_stop(node->server);
    }
    mc_dummies_stop(node->dummies);
    mc_store_close(atomic_load_explicit(&node->store, memory_order_relaxed));
    mc_tls_peers_close(&node->tls);
    free(node);
}

struct mc_store *mc_node_store(struct mc_node *node) {
    return atomic_load_explicit(&node->store, memory_order_relaxed);
}

uint16_t mc_node_port(const struct mc_node *node) {
    return node->port;
}
