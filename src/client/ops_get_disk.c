/*
 * The end of a get: what no memory could give comes from the SSD of a node, or from the file that
 * has it, after all else was read.
 */
#include "client/ops_get.h"

#include "base/log.h"

/* Looks at the key again as one that comes from a disk; false when there is nothing to read. */
static bool prepare_disk(struct mc_get_key *key) {
    enum mc_status why = key->item->status;
    if (!key->done || key->disk.len + key->file.len == 0 ||
        (why != MC_INVALID_REPLICA && why != MC_TRANSFER_FAIL)) {
        return false;
    }
    key->object_size = key->size = key->disk_size;
    enum mc_status fits = key->ranges != NULL ? mc_get_measure_ranges(key) : mc_get_make_room(key);
    if (fits == MC_OK && key->ranges == NULL && key->size > mc_get_capacity(key)) {
        fits = MC_BUFFER_OVERFLOW;
    }
    key->item->length = key->size;
    if (fits != MC_OK || key->size == 0) {
        mc_get_finish(key, fits);
        return false;
    }
    return true;
}

static void describe_disk_read(struct mc_get_chunk *chunk, struct mc_get_key *key,
                               struct mc_ops_disk_read *out) {
    struct mc_store_range *pieces =
        mc_arena_alloc(&chunk->call->arena, (mc_get_piece_count(key) + 1) * sizeof(*pieces));
    size_t count = 0;
    uint64_t begin = 0;
    for (size_t i = 0; i < mc_get_piece_count(key) && begin < key->size; i++) {
        struct mc_store_range part = mc_get_piece(key, i, begin);
        part.length = mc_min_u64(part.length, key->size - begin);
        begin += part.length;
        if (part.length > 0) {
            pieces[count++] = part;
        }
    }
    *out = (struct mc_ops_disk_read){.key = key->key,
                                     .endpoint = key->disk,
                                     .file = key->file,
                                     .size = key->disk_size,
                                     .pieces = pieces,
                                     .piece_count = count};
}

static void verify_disk(struct mc_get_chunk *chunk, struct mc_get_key *key, enum mc_status status) {
    if (status == MC_OK && mc_get_is_damaged(chunk, key)) {
        mc_error("the bytes read from an SSD are not the bytes written: key=%.*s endpoint=%.*s",
                 (int)key->key.len, key->key.ptr, (int)(key->disk.len + key->file.len),
                 key->disk.len > 0 ? key->disk.ptr : key->file.ptr);
        status = MC_CHECKSUM_MISMATCH;
    }
    mc_get_finish(key, status);
}

/* What no memory could give. */
void mc_get_from_disks(struct mc_get_chunk *chunk) {
    struct mc_arena *arena = &chunk->call->arena;
    struct mc_ops_disk_read *reads = NULL;
    struct mc_get_key **keys = NULL;
    size_t count = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        if (!prepare_disk(&chunk->keys[i])) {
            continue;
        }
        if (reads == NULL) {
            reads = mc_arena_alloc(arena, chunk->count * sizeof(*reads));
            keys = mc_arena_alloc(arena, chunk->count * sizeof(struct mc_get_key *));
        }
        describe_disk_read(chunk, &chunk->keys[i], &reads[count]);
        keys[count++] = &chunk->keys[i];
    }
    if (count > 0) {
        mc_ops_disk_read(chunk->ops, chunk->call, reads, count, chunk->deadline_ns);
    }
    for (size_t i = 0; i < count; i++) {
        verify_disk(chunk, keys[i], reads[i].status);
    }
}
