/*
 * The client's port: everything that its protocol logic needs of the outside world, as one table of functions.
 *
 * Put, get and heartbeat logic (client/) is straight-line blocking code over this table. The real port speaks RPC to the
 * master and moves bytes with the Transfer Engine; the simulator's port runs each client on a fiber with virtual time, and
 * delays, loses, doubles and reorders what it likes.
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
    enum mc_status status; /* set for each move */
};

struct mc_port;
struct mc_port_ops {
    const struct mc_clock *(*clock)(struct mc_port *port);
    void (*sleep_until)(struct mc_port *port, uint64_t deadline_ns);
    /* One RPC to the master: encoded arguments in, encoded answer appended. MC_RPC_FAIL, MC_RPC_TIMEOUT. */
    enum mc_status (*call)(struct mc_port *port, uint32_t function_id, struct mc_str body, uint64_t deadline_ns,
                           struct mc_buf *reply);
    /* Moves all; returns when each has ended; each has its own status. After return nothing touches `local`. */
    void (*move)(struct mc_port *port, struct mc_port_move *moves, size_t count, uint64_t deadline_ns);
    /* A pointer through which the replica can be read in place, or NULL. */
    const void *(*map)(struct mc_port *port, struct mc_str endpoint, uint64_t remote_addr, uint64_t length);
};
struct mc_port {
    const struct mc_port_ops *ops;
};

#endif
