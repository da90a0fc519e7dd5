/*
 * The client's port: everything that its protocol logic needs of the outside world, as one table of
 * functions.
 *
 * Put, get and heartbeat logic (client/) is straight-line blocking code over this table. The real
 * port speaks RPC to the master and moves bytes with the Transfer Engine; the simulator's port runs
 * each client on a fiber with virtual time, and delays, loses, doubles and reorders what it likes.
 */
#ifndef MC_CLIENT_PORT_H
#define MC_CLIENT_PORT_H

#include "base/base.h"
#include "mooncake/transfer.h"

struct mc_port_move { /* one replica's bytes */
    enum mc_transfer_op op;
    void *local;
    struct mc_str endpoint; /* of the replica descriptor */
    uint64_t remote_addr;
    uint64_t length;
    /* Set for each move. For a write MC_ERR_TIMEOUT means that bytes may still arrive at the peer
     * after this call; any other failure means that none will, so that the place may be given away.
     */
    enum mc_status status;
};

/* How far an endpoint's memory is from this process; lower is faster. */
enum mc_port_distance {
    MC_DISTANCE_SELF = 0,
    MC_DISTANCE_HOST = 1,
    MC_DISTANCE_NETWORK = 2,
    MC_DISTANCE_SUSPECT = 8, /* added for a while after a move to or from it failed */
};

struct mc_port;
struct mc_port_ops {
    const struct mc_clock *(*clock)(struct mc_port *port);
    void (*sleep_until)(struct mc_port *port, uint64_t deadline_ns);
    /* One RPC to the master: encoded arguments in, encoded answer appended. MC_RPC_FAIL: it was not
     * answered and may or may not have been carried out. MC_RPC_TIMEOUT: the same, and it may still
     * be carried out later. MC_ERR_WIRE_HASH: the master speaks another version of these arguments.
     * MC_NOT_SUPPORTED: it does not know the function. */
    enum mc_status (*call)(struct mc_port *port, uint32_t function_id, struct mc_str body,
                           uint64_t deadline_ns, struct mc_buf *reply);
    /* Moves all; returns when each has ended; each has its own status. After return nothing touches
     * `local`. */
    void (*move)(struct mc_port *port, struct mc_port_move *moves, size_t count,
                 uint64_t deadline_ns);
    /* A pointer through which the replica can be read in place, or NULL, also when its owner had to
     * be asked and did not answer in time. Readable until it is given back to unmap, whatever
     * happens to its owner; whether it still shows the object is the lease's business. */
    const void *(*map)(struct mc_port *port, struct mc_str endpoint, uint64_t remote_addr,
                       uint64_t length, uint64_t deadline_ns);
    void (*unmap)(struct mc_port *port, struct mc_str endpoint, const void *ptr);
    /* enum mc_port_distance, a guess that never waits; NULL = all are equally far. */
    unsigned (*distance)(struct mc_port *port, struct mc_str endpoint);
    /* As call, to another node's own RPC server, at host:port. NULL = there is no such thing here.
     */
    enum mc_status (*peer_call)(struct mc_port *port, struct mc_str endpoint, uint32_t function_id,
                                struct mc_str body, uint64_t deadline_ns, struct mc_buf *reply);
};
struct mc_port {
    const struct mc_port_ops *ops;
};

#endif
