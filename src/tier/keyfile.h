/*
 * One object, one file: upstream's file_per_key_storage_backend. The name is that of io/key_path.h;
 * the content is the protobuf message { 1: bytes key, 2: bytes value }, of which upstream reads no
 * other form, so a checksum cannot be in it. Private to the room.
 */
#ifndef MC_TIER_KEYFILE_H
#define MC_TIER_KEYFILE_H

#include "base/base.h"

#define MC_KEYFILE_HEAD_MAX 22u /* what mc_keyfile_head adds to the key, at most */

/* Everything before the value. */
void mc_keyfile_head(struct mc_str key, uint64_t value_size, struct mc_buf *out);
static inline uint64_t mc_keyfile_varint_bytes(uint64_t value) {
    uint64_t bytes = 1;
    for (; value >= 0x80; value >>= 7) {
        bytes++;
    }
    return bytes;
}
static inline uint64_t mc_keyfile_head_bytes(uint64_t key_len, uint64_t value_size) {
    return 2 + mc_keyfile_varint_bytes(key_len) + key_len + mc_keyfile_varint_bytes(value_size);
}
/* `text` is how the file begins; it may be shorter than the file, but holds the key. The key points
 * into it. MC_DESERIALIZE_FAIL: it is no such message, or longer or shorter than the file. */
MC_MUST_USE enum mc_status mc_keyfile_decode(struct mc_str text, uint64_t file_bytes,
                                             struct mc_str *key, uint64_t *value_size);

#endif
