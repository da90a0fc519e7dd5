/*
 * The .meta file of a bucket: upstream's protobuf message
 *     { 1: int64 data_size, 2: repeated string key, 3: repeated { 1: offset, 2: key_size,
 *       3: data_size } }
 * and nothing else, since upstream's reader deletes a bucket whose .meta has a field that it does
 * not know. Checksums lie therefore in the .bucket, behind the records, where readers of the format
 * do not look: the trailer
 *     "MCTIERC2", u32 count, count times { u64 offset of the record, u64 tag, u32 CRC-32C of the
 *     value }, u32 CRC-32C of all that
 * in little-endian order, records by offset. "MCTIERC1" is the same without tags. The .meta of a
 * bucket with a trailer has field 1 last, where upstream's writer has it first and its reader takes
 * it: one whose trailer is missing is known for ours. Private to the room.
 */
#ifndef MC_TIER_BUCKET_META_H
#define MC_TIER_BUCKET_META_H

#include "tier/index.h"

struct mc_bucket_object {
    struct mc_str key;
    uint64_t offset; /* of the key's first byte in the .bucket file */
    uint64_t size;   /* of the value, which follows the key */
};
struct mc_bucket_meta {
    struct mc_bucket_object *objects; /* in the arena; keys point into the text */
    size_t count;
    bool ours;          /* there is a trailer */
    uint64_t data_size; /* of the records in the .bucket, whether named here or not */
};

void mc_bucket_meta_encode(const struct mc_bucket_meta *meta, struct mc_buf *out);
/* MC_DESERIALIZE_FAIL: not such a message, or its parts contradict each other. */
MC_MUST_USE enum mc_status mc_bucket_meta_decode(struct mc_str text, struct mc_arena *arena,
                                                 struct mc_bucket_meta *out);

#define MC_BUCKET_TRAILER_HEAD 12u
#define MC_BUCKET_TRAILER_ROW  20u
static inline uint64_t mc_bucket_trailer_bytes(uint64_t count) {
    return MC_BUCKET_TRAILER_HEAD + count * MC_BUCKET_TRAILER_ROW + 4;
}
/* The entries are in the order of their offsets. */
void mc_bucket_trailer_encode(struct mc_tier_entry *const *entries, size_t count,
                              struct mc_buf *out);
/* How many rows; 0 when `text` does not begin with a whole trailer. */
size_t mc_bucket_trailer_rows(struct mc_str text);
/* The checksum and the tag of the record at `offset`; false when it is not among the rows. */
bool mc_bucket_trailer_find(struct mc_str text, size_t rows, uint64_t offset, uint32_t *crc,
                            uint64_t *tag);

#endif
