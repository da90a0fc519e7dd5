/*
 * Asking a master's HTTP admin endpoints, for the subcommands that look at a cluster without
 * touching it.
 */
#ifndef MC_CMD_ADMIN_CLIENT_H
#define MC_CMD_ADMIN_CLIENT_H

#include "cmd/cmd.h"
#include "cmd/replay.h"

#define MC_ADMIN_DEFAULT_PORT 9003
#define MC_ADMIN_ADDRESS_MAX  280

/* `admin` when it is not empty, else the master's host with the default admin port.
 * MC_ERR_BAD_ADDRESS. */
MC_MUST_USE enum mc_status mc_admin_address(const char *admin, const char *master, char *out,
                                            size_t size);

/* GET http://<address><path>; the body is in `body`, NUL-terminated. A transport error is a status;
 * *http_status is the server's. */
MC_MUST_USE enum mc_status mc_admin_get(const char *address, const char *path, int *http_status,
                                        struct mc_buf *body);

/* The same, and says on standard error why when the answer is not 200. */
MC_MUST_USE enum mc_status mc_admin_get_or_say(const char *program, const char *address,
                                               const char *path, struct mc_buf *body);

/* What Prometheus text of a master says about its cluster. */
void mc_cluster_state_from_text(const char *metrics, struct mc_cluster_state *out);

#endif
