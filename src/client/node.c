/*
 * A storage node. See client/node.h.
 *
 * Of the functions that upstream's node registers, those about shared-memory clients and offloaded
 * objects are not served by this build: they answer "not registered", as for any function that a
 * server does not know.
 */
#include "client/node.h"

#include <stdatomic.h>

#include "base/log.h"
#include "client/store_private.h"
#include "rpc/rpc.h"
#include "wire/client_rpc.h"

struct mc_node {
    _Atomic(struct mc_store *) store; /* NULL until it is open */
    struct mc_rpc_server *server;
    uint16_t port;
};

static void answer(void *ctx, const struct mc_rpc_request *request, struct mc_rpc_reply *reply) {
    struct mc_node *node = ctx;
    const struct mc_rpc_desc *ready = &mc_client_rpc_table()[MC_CLIENT_RPC_service_ready_internal];
    if (request->function_id != ready->function_id) {
        reply->errc = MC_RPC_NOT_REGISTERED;
        return;
    }
    struct mc_store *store = atomic_load_explicit(&node->store, memory_order_acquire);
    struct mw_e_void ret = {store != NULL ? MC_OK : MC_UNAVAILABLE_IN_CURRENT_STATUS};
    mc_master_rpc_encode_ret(ready, 0, &ret, reply->body);
}

static enum mc_status serve(struct mc_node *node, const struct mc_node_options *options) {
    struct mc_rpc_server_config config = {.host = options->host,
                                          .port = options->port,
                                          .threads = options->threads,
                                          .no_delay = true,
                                          .handler = answer,
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
    atomic_store_explicit(&node->store, store, memory_order_release);
    *out = node;
    return MC_OK;
fail_server:
    if (node->server != NULL) {
        mc_rpc_server_stop(node->server);
    }
fail_node:
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
    mc_store_close(atomic_load_explicit(&node->store, memory_order_relaxed));
    free(node);
}

struct mc_store *mc_node_store(struct mc_node *node) {
    return atomic_load_explicit(&node->store, memory_order_relaxed);
}

uint16_t mc_node_port(const struct mc_node *node) {
    return node->port;
}
