/* See tier/proto.h. */
#include "tier/proto.h"

static bool read_varint(struct mc_str *in, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && in->len > 0; shift += 7) {
        uint8_t byte = (uint8_t)*in->ptr++;
        in->len--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return shift < 63 || byte <= 1;
        }
    }
    return false;
}

bool mc_proto_next(struct mc_str *in, struct mc_proto_field *f) {
    uint64_t tag;
    size_t fixed = 0;
    if (!read_varint(in, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX >> 3) {
        return false;
    }
    *f = (struct mc_proto_field){.number = (uint32_t)(tag >> 3), .wire = (uint32_t)(tag & 7)};
    switch (f->wire) {
    case MC_PROTO_VARINT:
        return read_varint(in, &f->value);
    case MC_PROTO_BYTES:
        if (!read_varint(in, &f->value) || f->value > in->len) {
            return false;
        }
        fixed = (size_t)f->value;
        break;
    case MC_PROTO_FIXED64:
        fixed = 8;
        break;
    case MC_PROTO_FIXED32:
        fixed = 4;
        break;
    default:
        return false;
    }
    if (fixed > in->len) {
        return false;
    }
    f->bytes = (struct mc_str){in->ptr, fixed};
    in->ptr += fixed;
    in->len -= fixed;
    return true;
}

static void put_varint(struct mc_buf *out, uint64_t value) {
    while (value >= 0x80) {
        mc_buf_putc(out, (char)(value | 0x80));
        value >>= 7;
    }
    mc_buf_putc(out, (char)value);
}

void mc_proto_put_number(struct mc_buf *out, uint32_t field, uint64_t value) {
    if (value != 0) { /* 0 is what an absent field means */
        put_varint(out, field << 3 | MC_PROTO_VARINT);
        put_varint(out, value);
    }
}

void mc_proto_put_bytes(struct mc_buf *out, uint32_t field, struct mc_str bytes) {
    put_varint(out, field << 3 | MC_PROTO_BYTES);
    put_varint(out, bytes.len);
    mc_buf_append(out, bytes.ptr, bytes.len);
}
