/* The wire format of protocol buffers, as far as files of the tier use it. Private to the room. */
#ifndef MC_TIER_PROTO_H
#define MC_TIER_PROTO_H

#include "base/base.h"

enum mc_proto_wire {
    MC_PROTO_VARINT = 0,
    MC_PROTO_FIXED64 = 1,
    MC_PROTO_BYTES = 2,
    MC_PROTO_FIXED32 = 5
};

struct mc_proto_field {
    uint32_t number;
    uint32_t wire;
    uint64_t value;      /* of a varint */
    struct mc_str bytes; /* of the others; points into the text */
};

/* Takes the next field from the front of *in; false when there is none or it is broken. */
bool mc_proto_next(struct mc_str *in, struct mc_proto_field *field);
void mc_proto_put_number(struct mc_buf *out, uint32_t field, uint64_t value); /* nothing for 0 */
void mc_proto_put_bytes(struct mc_buf *out, uint32_t field, struct mc_str bytes);

/* Numbers in little-endian order, which the rest of the formats is made of. */
static inline void mc_put_le(struct mc_buf *out, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) {
        mc_buf_putc(out, (char)(value >> 8 * i));
    }
}
static inline uint64_t mc_get_le(const char *at, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint64_t)(uint8_t)at[i] << 8 * i;
    }
    return value;
}

#endif
