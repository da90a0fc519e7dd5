/*
 * What both ends of a connection know: function ids and the texts of refusals. See rpc/frame.h.
 */
#include "rpc/frame.h"

#include "wire/schema.h"

uint32_t mc_rpc_function_id(const char *qualified_name) {
    return mc_wire_md5_id(qualified_name, strlen(qualified_name));
}

const char *mc_rpc_errc_text(unsigned errc) {
    switch (errc) {
    case MC_RPC_OK:
        return "ok";
    case MC_RPC_IO_ERROR:
        return "io error";
    case MC_RPC_NOT_CONNECTED:
        return "not connected";
    case MC_RPC_TIMED_OUT:
        return "timed out";
    case MC_RPC_INVALID_ARGUMENTS:
        return "invalid rpc arg";
    case MC_RPC_FUNCTION_THROWS:
        return "the rpc function failed";
    case MC_RPC_NOT_REGISTERED:
        return "the rpc function not registered";
    case MC_RPC_PROTOCOL_ERROR:
        return "protocol error";
    case MC_RPC_UNKNOWN_VERSION:
        return "unknown protocol version";
    case MC_RPC_MESSAGE_TOO_LARGE:
        return "message too large";
    default:
        return "unknown rpc error";
    }
}
