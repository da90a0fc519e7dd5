/*
 * The port of real programs: RPC to the master, bytes by the Transfer Engine.
 *
 * Keeps one handle per endpoint that replica descriptors name. Endpoints are opened on first use,
 * outside of any lock; one that failed is suspected for a while, so that reads prefer other
 * replicas, and given back when nobody uses it.
 */
#ifndef MC_CLIENT_PORT_REAL_H
#define MC_CLIENT_PORT_REAL_H

#include "client/port.h"
#include "rpc/rpc.h"

struct mc_real_port;
/* `rpc` and `engine` are not owned; engine NULL = RPC only, moves fail. */
struct mc_real_port *mc_real_port_create(struct mc_rpc_client *rpc, struct mc_engine *engine);
void mc_real_port_destroy(struct mc_real_port *real); /* views are gone, calls have returned */
struct mc_port *mc_real_port_face(struct mc_real_port *real);

#endif
