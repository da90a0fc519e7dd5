/* Staging for peers: chunks of host memory beside device memory of this process, and copies between
 * the two. See stage_server.c. */
#ifndef MC_TE_STAGE_SERVER_H
#define MC_TE_STAGE_SERVER_H

#include "base/base.h"
#include "base/metrics.h"

#define MC_STAGE_CHUNK_BYTES (1ull << 20)

struct mc_engine;
struct mc_handshake_call;
struct mc_stage_server;

struct mc_stage_server *mc_stage_server_create(struct mc_engine *engine);
/* No connection is left (mc_handshake_stop). NULL is allowed. */
void mc_stage_server_destroy(struct mc_stage_server *server);
/* For mc_handshake_handler. */
bool mc_stage_server_request(struct mc_stage_server *server, void **state, struct mc_str body,
                             struct mc_handshake_call *call);
void mc_stage_server_closed(struct mc_stage_server *server, void *state);

#endif
