/*
 * dummies: the dummy clients of a store node.
 *
 * Many ranks of a host share one real client, the node (`mooncake_client`): a dummy has neither an
 * engine nor a connection to the master, only memory that the node has mapped. It sends the
 * memory's descriptor over a unix socket and names ranges of it, by its own addresses, in RPCs to
 * the node, which moves the bytes.
 *
 * A dummy may be wrong, hostile or dead at any moment. So every address is looked up in the
 * mappings of the dummy that names it, and a mapping stays while a call uses it, whatever becomes
 * of the dummy. Memory is taken only as long as it says (a file on tmpfs or hugetlbfs), and from a
 * process of another user only sealed against shrinking: a page that is gone would end the node
 * with SIGBUS, which a process of the same user can do anyway. A dummy is forgotten when its
 * process has ended, when it has said nothing for MC_DUMMY_TTL_MS, or when it asks.
 */
#ifndef MC_CLIENT_DUMMIES_H
#define MC_CLIENT_DUMMIES_H

#include "mooncake/store.h"
#include "rpc/rpc.h"

#define MC_DUMMIES_MAX        1024
#define MC_DUMMY_MAPPINGS_MAX 256          /* of one dummy */
#define MC_DUMMY_BYTES_MAX    (1ull << 44) /* mapped, of all dummies together */
#define MC_DUMMY_TTL_MS       10000

struct mc_dummies;
/* Listens on the socket that belongs to the RPC port. MC_ERR_ADDRESS_IN_USE. */
MC_MUST_USE enum mc_status mc_dummies_start(struct mc_store *store, uint16_t rpc_port,
                                            struct mc_dummies **out);
/* No call is inside. NULL is allowed. */
void mc_dummies_stop(struct mc_dummies *dummies);

/* Answers an RPC of wire/client_rpc.h that is for dummies; false for the others. From any thread.
 */
bool mc_dummies_handle(struct mc_dummies *dummies, const struct mc_rpc_request *request,
                       struct mc_rpc_reply *reply);
/* The RPC may wait for the master or for bytes. */
bool mc_dummies_slow(uint32_t function_id);

#endif
