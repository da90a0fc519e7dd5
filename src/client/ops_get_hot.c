/*
 * The hot cache in a get: the master is asked for the version with every look-up, and a copy of
 * that version is the object (client/hot_cache.h). So the copy is as right as a read that began
 * then: no message tells this client that an object changed, and none has to. A master that says no
 * versions, as upstream's, is told from others by the first question; then there is no cache.
 */
#include "client/ops_get.h"

#include <stdatomic.h>

#include "base/copy.h"
#include "base/log.h"
#include "client/checksum.h"
#include "client/hot_cache.h"
#include "te/device.h"

bool mc_get_uses_hot(struct mc_ops *ops) {
    return ops->hot != NULL && mc_ops_master_is_ours(ops);
}

/* Copies the key's stream; false, and nothing is copied, when a part of it is device memory. */
static bool copy_out(struct mc_get_key *key, const uint8_t *bytes) {
    uint64_t begin = 0;
    for (size_t i = 0; i < mc_get_piece_count(key); i++) {
        if (!mc_device_is_host(mc_get_piece(key, i, 0).ptr)) {
            return false;
        }
    }
    for (size_t i = 0; i < mc_get_piece_count(key) && begin < key->size; i++) {
        struct mc_store_range part = mc_get_piece(key, i, begin);
        uint64_t length = mc_min_u64(part.length, key->size - begin);
        if (length > 0) {
            mc_copy_in(part.ptr, bytes + part.offset, length);
        }
        begin += length;
    }
    return true;
}

void mc_get_from_hot(struct mc_get_chunk *chunk, struct mc_get_key *key) {
    struct mc_hot_cache *hot = chunk->ops->hot;
    const uint8_t *bytes;
    uint64_t length;
    if (hot == NULL || key->done || key->version == 0) {
        return;
    }
    struct mc_hot_entry *entry = mc_hot_get(hot, key->key, key->version, &bytes, &length);
    if (entry == NULL) {
        return;
    }
    bool copied = length == key->object_size && copy_out(key, bytes);
    mc_hot_put(hot, entry);
    if (copied && mc_get_is_damaged(chunk, key)) {
        mc_metric_add(&chunk->ops->counters.checksum_mismatches, 1);
        mc_error("a copy in this process has other bytes than its object: key=%.*s",
                 (int)key->key.len, key->key.ptr);
        mc_hot_drop(hot, key->key, key->version);
    } else if (copied) {
        mc_get_finish(key, MC_OK);
    }
}

/* The copy's bytes are the object's, as far as somebody can say. */
static bool intact(struct mc_ops *ops, struct mc_str key, const struct mw_opt_u64 *checksum,
                   const void *bytes, uint64_t length) {
    struct mc_slice slice = {(void *)(uintptr_t)bytes, length}; /* only read */
    if (!ops->checksum || !checksum->has ||
        mc_checksum_slices(&slice, 1, length) == checksum->value) {
        return true;
    }
    mc_metric_add(&ops->counters.checksum_mismatches, 1);
    mc_error("a copy in this process has other bytes than its object: key=%.*s", (int)key.len,
             key.ptr);
    return false;
}

bool mc_ops_view_hot(struct mc_ops *ops, struct mc_str key, uint64_t version,
                     const struct mw_opt_u64 *checksum, struct mc_ops_view *view) {
    const uint8_t *bytes;
    uint64_t length;
    struct mc_hot_entry *entry = mc_hot_get(ops->hot, key, version, &bytes, &length);
    if (entry == NULL) {
        return false;
    }
    if (!intact(ops, key, checksum, bytes, length)) {
        mc_hot_put(ops->hot, entry);
        mc_hot_drop(ops->hot, key, version);
        return false;
    }
    mc_ops_view_of_hot(ops, entry, bytes, length, view);
    return true;
}

static bool is_remote(struct mc_ops *ops, const struct mw_replica *replica) {
    return ops->port->ops->distance == NULL ||
           ops->port->ops->distance(ops->port, replica->memory.endpoint) % MC_DISTANCE_SUSPECT !=
               MC_DISTANCE_SELF;
}

void mc_get_offer_hot(struct mc_get_chunk *chunk, struct mc_get_key *key) {
    const struct mc_slice *slices;
    if (chunk->ops->hot == NULL || key->version == 0 || key->session != NULL ||
        !is_remote(chunk->ops, key->replica) || !mc_get_is_whole(chunk->call, key, &slices)) {
        return;
    }
    size_t count = mc_get_piece_count(key);
    for (size_t i = 0; i < count; i++) {
        if (!mc_device_is_host(slices[i].ptr)) {
            return;
        }
    }
    mc_hot_offer(chunk->ops->hot, key->key, key->version, slices, count, key->object_size);
}
