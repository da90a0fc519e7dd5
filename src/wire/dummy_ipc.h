/*
 * What a dummy client says to its store node over the abstract unix stream socket
 * "@mooncake_client_<rpc port>.sock" (upstream's; the @ is part of the name): one request a
 * connection, a uint32_t that says which, then the request.
 */
#ifndef MC_WIRE_DUMMY_IPC_H
#define MC_WIRE_DUMMY_IPC_H

#include "base/base.h"

#define MC_DUMMY_SOCKET_FORMAT "@mooncake_client_%u.sock"

enum { MC_DUMMY_IPC_REGISTER = 0, MC_DUMMY_IPC_FD = 1 };

/* Comes with a descriptor of the memory; answered by an int32_t, 0 or -1. */
struct mc_dummy_register {
    struct mc_uuid client;
    uint64_t base; /* where the dummy has it */
    uint64_t size;
    int32_t device; /* -1: host memory */
    uint8_t local;  /* the node may allocate in it */
    uint8_t zero[3];
};
_Static_assert(sizeof(struct mc_dummy_register) == 40, "as it travels");

struct mc_dummy_fd_request {
    struct mc_uuid client;
    uint32_t segment; /* 0: the hot cache */
    uint32_t zero;
};
_Static_assert(sizeof(struct mc_dummy_fd_request) == 24, "as it travels");
struct mc_dummy_fd_answer { /* with a descriptor when the status is 0 */
    int32_t status;
    uint32_t zero;
    uint64_t size;
};
_Static_assert(sizeof(struct mc_dummy_fd_answer) == 16, "as it travels");

#endif
