/* One function per RPC, named after it; `args` and `ret` are the structs of MC_MASTER_RPC_TABLE,
 * *ret is zeroed. */
#ifndef MC_MASTER_RPC_METHODS_H
#define MC_MASTER_RPC_METHODS_H

#include "master/core.h"

#define X(name, args, ret)                                                                         \
    void mc_rpc_##name(struct mc_call *call, const void *arguments, void *answer);
MC_MASTER_RPC_TABLE(X)
#undef X

#endif
