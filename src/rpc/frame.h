/*
 * coro_rpc's frame headers as they travel (little endian, natural layout). Private to rpc.
 */
#ifndef MC_RPC_FRAME_H
#define MC_RPC_FRAME_H

#include "rpc/rpc.h"

#define MC_RPC_VERSION     0
#define MC_RPC_STRUCT_PACK 0 /* the only serialisation */

struct mc_rpc_request_header {
    uint8_t magic;
    uint8_t version;
    uint8_t serialize_type;
    uint8_t msg_type;
    uint32_t seq;
    uint32_t function_id;
    uint32_t length;
    uint32_t attach_length;
};
_Static_assert(sizeof(struct mc_rpc_request_header) == 20, "as it travels");

struct mc_rpc_reply_header {
    uint8_t magic;
    uint8_t version;
    uint8_t errc;
    uint8_t msg_type;
    uint32_t seq;
    uint32_t length;
    uint32_t attach_length;
};
_Static_assert(sizeof(struct mc_rpc_reply_header) == 16, "as it travels");

/* What upstream says in the body of an answer with this errc. Never NULL. */
const char *mc_rpc_errc_text(unsigned errc);

#endif
