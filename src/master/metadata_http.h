/*
 * The embedded metadata server: a key-value store over HTTP in which Transfer Engines publish where
 * they are.
 *
 *     GET    /metadata?key=K   200 and the value, 404 "metadata not found"
 *     PUT    /metadata?key=K   200 "metadata updated"; a rpc_meta key that exists keeps its value:
 *                              the same body is 200 "metadata unchanged", another one 400
 *     DELETE /metadata?key=K   200 "metadata deleted", 404
 *     GET    /health           200 "OK"
 *
 * Without a key 400. Lives in memory; what engines published is gone after a restart and they
 * publish it again. Limits: MC_METADATA_MAX_KEYS keys, MC_METADATA_MAX_VALUE bytes a value,
 * MC_METADATA_MAX_TOTAL bytes in all; a PUT beyond them is refused with 507.
 */
#ifndef MC_MASTER_METADATA_HTTP_H
#define MC_MASTER_METADATA_HTTP_H

#include "base/base.h"

#define MC_METADATA_MAX_KEYS  (1u << 17)
#define MC_METADATA_MAX_VALUE (4u << 20)
#define MC_METADATA_MAX_TOTAL (256u << 20)

struct mc_metadata_http;
struct mc_tls_config; /* io/tls.h */

/* Serves on host:port (0 = any free; *bound_port says which); `tls` as mc_http_server_config's.
 * MC_ERR_ADDRESS_IN_USE is logged with the port. */
MC_MUST_USE enum mc_status mc_metadata_http_start(const char *host, uint16_t port,
                                                  const struct mc_tls_config *tls,
                                                  struct mc_metadata_http **out,
                                                  uint16_t *bound_port);
void mc_metadata_http_stop(struct mc_metadata_http *server);

/* Removes what the engine called `segment_name` published: its descriptor and its handshake
 * address. Thread safe. */
void mc_metadata_http_forget(struct mc_metadata_http *server, struct mc_str segment_name);

#endif
