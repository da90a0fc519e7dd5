/*
 * The backend `offset`: upstream's offset_allocator_storage_backend, with its persistence `strict`.
 *
 * All objects lie in one file of fixed length, kv_cache.data, wherever the allocator found room
 * (tier/extents.h); kv_cache.meta says which pieces are taken (tier/offset_meta.h has the format of
 * both). A put writes its records, syncs, and then replaces the .meta: after a crash an object is
 * there exactly when the .meta that is there knows its piece. A record that was written after that
 * .meta, into a piece that had been given up, has a seq that the .meta does not reach and is
 * dropped; half such a record fails its checksum, which covers header, key and value.
 *
 * The .meta is 32 bytes for each piece and free gap, written once a put.
 *
 * Invariant: every entry in the index owns one taken piece, and every taken piece has an entry in
 * the index or one that is read just now.
 */
#include "tier/offset.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

/* ---- entries ---- */

static void free_entry_locked(struct offset_backend *b, struct mc_tier_entry *e) {
    mc_extents_give(b->extents, (uint32_t)e->disk);
    b->asked_bytes -= offset_record_bytes(e->key_len, e->size);
    free(e);
}

/* It is out of the index. */
static void leave_locked(struct offset_backend *b, struct mc_tier_entry *e) {
    b->behind = true;
    b->leaving += e->users > 0;
    if (e->users == 0) {
        free_entry_locked(b, e);
    }
}

void offset_publish_locked(struct offset_backend *b, struct mc_tier_entry *entry) {
    b->asked_bytes += offset_record_bytes(entry->key_len, entry->size);
    struct mc_tier_entry *old = mc_tier_index_insert(&b->face.index, entry);
    if (old != NULL) {
        leave_locked(b, old);
    }
}

void offset_drop_locked(struct offset_backend *b, struct mc_tier_entry *entry) {
    mc_tier_index_remove(&b->face.index, entry);
    mc_tier_order_removed(&b->order, entry->hash);
    leave_locked(b, entry);
}

void offset_unuse_locked(struct offset_backend *b, struct mc_tier_entry *entry) {
    if (--entry->users == 0 && !entry->live) {
        b->leaving--;
        free_entry_locked(b, entry);
    }
}

enum mc_status offset_checkpoint(struct offset_backend *b) {
    struct mc_buf path = {0}, text = {0};
    mc_buf_printf(&path, "%s/kv_cache.meta", b->config->path);
    pthread_mutex_lock(&b->face.lock);
    mc_offset_meta_encode(b->extents, b->capacity, b->insert_seq, b->asked_bytes, &text);
    b->behind = b->leaving > 0;
    pthread_mutex_unlock(&b->face.lock);
    enum mc_status status =
        mc_file_replace(mc_buf_cstr(&path), (struct mc_str){text.data, text.len});
    if (status != MC_OK) {
        pthread_mutex_lock(&b->face.lock);
        b->behind = true;
        pthread_mutex_unlock(&b->face.lock);
    }
    mc_buf_free(&text);
    mc_buf_free(&path);
    return status;
}

/* ---- questions and removals ---- */

static enum mc_status offset_remove(struct mc_tier_backend *face, const struct mc_str *keys,
                                    size_t count, size_t *removed) {
    struct offset_backend *b = (struct offset_backend *)face;
    pthread_mutex_lock(&b->put_lock);
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, keys[i]);
        if (e != NULL) {
            offset_drop_locked(b, e);
            (*removed)++;
        }
    }
    bool behind = b->behind;
    pthread_mutex_unlock(&b->face.lock);
    enum mc_status status = behind ? offset_checkpoint(b) : MC_OK;
    pthread_mutex_lock(&b->face.lock);
    status = status == MC_OK && b->behind ? MC_UNAVAILABLE_IN_CURRENT_STATUS : status;
    pthread_mutex_unlock(&b->face.lock);
    pthread_mutex_unlock(&b->put_lock);
    return status;
}

static enum mc_status offset_settle(struct mc_tier_backend *face) {
    size_t removed = 0;
    return offset_remove(face, NULL, 0, &removed);
}

static enum mc_status offset_clear(struct mc_tier_backend *face) {
    struct offset_backend *b = (struct offset_backend *)face;
    uint64_t cursor = 0;
    pthread_mutex_lock(&b->put_lock);
    pthread_mutex_lock(&b->face.lock);
    for (struct mc_tier_entry *e; (e = mc_tier_index_next(&b->face.index, &cursor)) != NULL;) {
        offset_drop_locked(b, e);
        cursor--; /* the one behind it has moved up */
    }
    pthread_mutex_unlock(&b->face.lock);
    enum mc_status status = offset_checkpoint(b);
    pthread_mutex_unlock(&b->put_lock);
    return status;
}

static void offset_place(const struct mc_tier_entry *e, struct mc_tier_found *out) {
    out->bucket_id = 0;
    out->offset = (int64_t)e->offset;
}

static void offset_stats(struct mc_tier_backend *face, struct mc_tier_stats *out) {
    struct offset_backend *b = (struct offset_backend *)face;
    pthread_mutex_lock(&b->face.lock);
    *out = b->stats;
    out->capacity_bytes = b->capacity;
    out->used_bytes = mc_extents_taken_units(b->extents) << b->shift;
    out->objects = b->face.index.count;
    out->files = 1;
    out->direct = b->direct;
    pthread_mutex_unlock(&b->face.lock);
}

/* ---- open and close ---- */

static void offset_close(struct mc_tier_backend *face) {
    struct offset_backend *b = (struct offset_backend *)face;
    if (b->fd >= 0) {
        close(b->fd);
    }
    if (b->plain >= 0) {
        close(b->plain);
    }
    mc_tier_index_free_all(&b->face.index);
    mc_tier_order_fini(&b->order);
    mc_tier_rings_fini(&b->rings);
    mc_extents_destroy(b->extents);
    mc_file_ring_destroy(b->put_ring);
    free(b->staging);
    pthread_mutex_destroy(&b->put_lock);
    pthread_mutex_destroy(&b->face.lock);
    free(b);
}

static enum mc_status offset_open(const struct mc_tier_config *config,
                                  struct mc_tier_backend **out) {
    struct offset_backend *b = mc_zalloc(sizeof(*b));
    b->config = config;
    b->fd = b->plain = -1;
    pthread_mutex_init(&b->face.lock, NULL);
    pthread_mutex_init(&b->put_lock, NULL);
    mc_tier_order_init(&b->order, config->eviction);
    mc_tier_rings_init(&b->rings, config->depth);
    /* the depth is right, and a kernel without io_uring is no failure */
    MC_ASSERT(mc_file_ring_create(config->depth, &b->put_ring) == MC_OK);
    b->staging = aligned_alloc(MC_TIER_BLOCK, OFFSET_STAGING);
    MC_ASSERT(b->staging != NULL);
    (void)mc_file_ring_register(b->put_ring, b->staging, OFFSET_STAGING);
    enum mc_status status = offset_recover(b);
    if (status != MC_OK) {
        offset_close(&b->face);
        return status;
    }
    mc_info("SSD tier: path=%s backend=%s objects=%zu used_bytes=%llu capacity_bytes=%llu",
            config->path, config->backend, b->face.index.count,
            (unsigned long long)(mc_extents_taken_units(b->extents) << b->shift),
            (unsigned long long)b->capacity);
    *out = &b->face;
    return MC_OK;
}

static void offset_use_memory(struct mc_tier_backend *face, void *memory, size_t bytes) {
    mc_tier_rings_use(&((struct offset_backend *)face)->rings, memory, bytes);
}

const struct mc_tier_backend_ops mc_tier_offset = {
    .name = "offset_allocator_storage_backend",
    .open = offset_open,
    .close = offset_close,
    .put = offset_put,
    .read = offset_read,
    .remove = offset_remove,
    .clear = offset_clear,
    .settle = offset_settle,
    .place = offset_place,
    .use_memory = offset_use_memory,
    .stats = offset_stats,
};
