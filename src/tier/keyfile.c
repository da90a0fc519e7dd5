/* Names and heads of files that hold one object. See tier/keyfile.h. */
#include "tier/keyfile.h"

#define TAG_KEY   0x0a /* field 1, bytes */
#define TAG_VALUE 0x12 /* field 2, bytes */

/* ---- the content ---- */

static void put_varint(struct mc_buf *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
        mc_buf_putc(out, (char)(value | 0x80));
    }
    mc_buf_putc(out, (char)value);
}

static bool get_varint(struct mc_str *in, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 63 && in->len > 0; shift += 7) {
        uint8_t byte = (uint8_t)*in->ptr++;
        in->len--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

static bool get_tag(struct mc_str *in, char tag) {
    if (in->len == 0 || *in->ptr != tag) {
        return false;
    }
    in->ptr++;
    in->len--;
    return true;
}

void mc_keyfile_head(struct mc_str key, uint64_t value_size, struct mc_buf *out) {
    mc_buf_putc(out, TAG_KEY);
    put_varint(out, key.len);
    mc_buf_append(out, key.ptr, key.len);
    mc_buf_putc(out, TAG_VALUE);
    put_varint(out, value_size);
}

enum mc_status mc_keyfile_decode(struct mc_str text, uint64_t file_bytes, struct mc_str *key_out,
                                 uint64_t *value_size) {
    struct mc_str in = text, key;
    uint64_t key_len, size;
    if (!get_tag(&in, TAG_KEY) || !get_varint(&in, &key_len) || key_len == 0 || key_len > in.len) {
        return MC_DESERIALIZE_FAIL;
    }
    key = (struct mc_str){in.ptr, (size_t)key_len};
    in.ptr += key_len;
    in.len -= (size_t)key_len;
    if (!get_tag(&in, TAG_VALUE) || !get_varint(&in, &size) || size == 0) {
        return MC_DESERIALIZE_FAIL;
    }
    uint64_t head = text.len - in.len;
    if (file_bytes < head || file_bytes - head != size) {
        return MC_DESERIALIZE_FAIL;
    }
    *key_out = key;
    *value_size = size;
    return MC_OK;
}
