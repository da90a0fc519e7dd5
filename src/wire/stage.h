/*
 * What an engine asks of another's staging: a chunk of host memory, and copies between it and
 * device memory there. Ours alone; rides in handshake frames of type 4 (docs/meta.md). Fixed size,
 * little endian:
 *
 *   "mcs1"  u8 op  u8 flags  u16 0  i32 status  u32 0
 *   u64 engine.hi  u64 engine.lo  u64 chunk  u64 device  u64 length
 */
#ifndef MC_WIRE_STAGE_H
#define MC_WIRE_STAGE_H

#include "base/base.h"

#define MC_STAGE_BYTES 56

enum mc_stage_op {
    MC_STAGE_TAKE = 1,    /* a chunk for this connection; the answer has `chunk` and `length` */
    MC_STAGE_TO_DEVICE,   /* `length` bytes at `chunk` to `device` */
    MC_STAGE_FROM_DEVICE, /* the reverse */
    MC_STAGE_GIVE_BACK,   /* the chunk: nothing is on its way to it any more */
};
enum mc_stage_flags {
    MC_STAGE_WANTED = 1, /* answer: others wait for chunks; give yours back when it is not needed */
};

struct mc_stage_message {
    enum mc_stage_op op;
    uint8_t flags;
    enum mc_status status; /* of an answer */
    struct mc_uuid engine; /* whose memory is meant: another that has the address refuses */
    uint64_t chunk;        /* address in the engine's host memory */
    uint64_t device;
    uint64_t length;
};

void mc_stage_encode(const struct mc_stage_message *m, uint8_t out[MC_STAGE_BYTES]);
/* MC_ERR_PROTOCOL. */
MC_MUST_USE enum mc_status mc_stage_decode(struct mc_str bytes, struct mc_stage_message *m);

#endif
