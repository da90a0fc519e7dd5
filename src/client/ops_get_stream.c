/*
 * What a get moves of one key, as one stream of bytes: the object into the caller's slices, one
 * after the other, or the caller's ranges of it, one after the other.
 */
#include "client/ops_get.h"

size_t mc_get_piece_count(const struct mc_get_key *key) {
    return key->ranges != NULL ? key->range_count : key->slice_count;
}

/* Piece i of the stream, which begins there at `begin`. */
struct mc_store_range mc_get_piece(const struct mc_get_key *key, size_t i, uint64_t begin) {
    if (key->ranges == NULL) {
        const struct mc_slice *slice = &key->slices[i];
        return (struct mc_store_range){slice->ptr, slice->length, begin, MC_OK};
    }
    struct mc_store_range range = key->ranges[i];
    range.length = range.status == MC_OK ? range.length : 0;
    return range;
}

/* The object's size is known: how long is the stream of ranges? Those that leave the object are not
 * part of it. */
enum mc_status mc_get_measure_ranges(struct mc_get_key *key) {
    bool all = true;
    key->size = 0;
    for (size_t i = 0; i < key->range_count; i++) {
        struct mc_store_range *range = &key->ranges[i];
        bool inside = mc_range_inside(range->offset, range->length, 0, key->object_size);
        if (!inside || __builtin_add_overflow(key->size, (uint64_t)range->length, &key->size)) {
            range->status = MC_INVALID_PARAMS;
            all = false;
        }
    }
    return all || key->session == NULL ? MC_OK : MC_INVALID_PARAMS;
}

/* The stream is the object from its first byte to its last; *slices describes it. */
bool mc_get_is_whole(struct mc_ops_call *call, const struct mc_get_key *key,
                     const struct mc_slice **slices) {
    if (key->ranges == NULL) {
        *slices = key->slices;
        return true;
    }
    struct mc_slice *out = mc_arena_alloc(&call->arena, key->range_count * sizeof(*out));
    uint64_t end = 0;
    for (size_t i = 0; i < key->range_count; i++) {
        const struct mc_store_range *range = &key->ranges[i];
        if (range->status != MC_OK || range->offset != end) {
            return false;
        }
        end += range->length;
        out[i] = (struct mc_slice){range->ptr, range->length};
    }
    *slices = out;
    return end == key->object_size;
}

uint64_t mc_get_capacity(const struct mc_get_key *key) {
    uint64_t total = 0;
    for (size_t i = 0; i < key->slice_count; i++) {
        total += key->slices[i].length;
    }
    return total;
}

/* The size is known: memory for callers who could not give it before. */
enum mc_status mc_get_make_room(struct mc_get_key *key) {
    struct mc_store_item *item = key->item;
    if (item->slice_count > 0 || item->allocate == NULL || key->size == 0 ||
        (key->slice_count > 0 && key->made.length == key->size)) {
        return MC_OK;
    }
    key->made = (struct mc_slice){item->allocate(item->allocate_ctx, key->size), key->size};
    if (key->made.ptr == NULL) {
        return MC_ERR_NO_MEMORY;
    }
    key->slices = &key->made;
    key->slice_count = 1;
    return MC_OK;
}
