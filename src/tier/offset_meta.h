/*
 * What describes kv_cache.data: upstream's kv_cache.meta, the protobuf message
 *     { 1: version = 3, 2: bytes allocator, 3: insert_seq, 4: repeated { 1: seq, 2: key },
 *       5: repeated string evicted key }
 * of which 4 and 5 may be absent. `allocator`, in little-endian order:
 *     u64 base, u64 shift (a unit is 1 << shift bytes), u64 capacity in bytes, u64 bytes that were
 *     asked for, u64 pieces taken,
 *     u32 units, u32 nodes, u32 most nodes, u32 free units, u32 which bytes of the next are not 0,
 *     u8[32] which bins have free nodes, u32[256] the first of each, u32 spares before,
 *     nodes times { u32 offset, size, bin before, bin after, left, right, taken },
 *     u32[nodes] spare nodes: those from number `spares before` on are not in use
 *
 * And a record of kv_cache.data:
 *     u32 key_len, u32 value_len, u64 seq, u32 flags (1 = has a checksum), u32 CRC-32C of the 20
 *     bytes before it, the key and the value; the key; zeros to a whole block; the value
 * Where there is room in the zeros, ours has there "MCTG" and a u64, the tag: readers of the format
 * do not look at them.
 * A record is written with a seq below the insert_seq of the .meta that is written after it.
 * Private to the room.
 */
#ifndef MC_TIER_OFFSET_META_H
#define MC_TIER_OFFSET_META_H

#include "tier/extents.h"
#include "tier/index.h"

/* The unit for a file of so many bytes: 1 << shift. */
unsigned mc_offset_shift(uint64_t capacity_bytes);

struct mc_offset_meta {
    uint64_t capacity_bytes, insert_seq;
    unsigned shift;
    struct mc_extent *taken; /* by offset, disjoint, inside; in the arena */
    size_t count;
};
void mc_offset_meta_encode(const struct mc_extents *extents, uint64_t capacity_bytes,
                           uint64_t insert_seq, uint64_t asked_bytes, struct mc_buf *out);
/* MC_DESERIALIZE_FAIL: it is no such message, or of another version. Pieces that contradict each
 * other are left out. */
MC_MUST_USE enum mc_status mc_offset_meta_decode(struct mc_str text, struct mc_arena *arena,
                                                 struct mc_offset_meta *out);

#define MC_RECORD_HEAD    24u
#define MC_RECORD_HAS_CRC 1u
struct mc_record {
    uint32_t key_len, value_len, flags, crc;
    uint64_t seq;
};
/* From the record's begin to its value. */
static inline uint64_t mc_record_value_at(uint64_t key_len) {
    return (MC_RECORD_HEAD + key_len + 4095) / 4096 * 4096;
}
void mc_record_encode(const struct mc_record *record, char out[MC_RECORD_HEAD]);
/* False: it cannot be a record in a piece of `room` bytes. */
bool mc_record_decode(const char bytes[MC_RECORD_HEAD], uint64_t room, struct mc_record *out);
/* Between the key and the value, of a record whose begin is at `head`; no tag where it does not
 * fit, or is not among the first `have` bytes. */
void mc_record_put_tag(char *head, uint64_t key_len, uint64_t tag);
uint64_t mc_record_tag(const char *head, size_t have, uint64_t key_len);
uint32_t mc_record_crc(const struct mc_record *record, const char *key, const void *value);

#endif
