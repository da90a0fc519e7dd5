/*
 * The backend `bucket`: upstream's bucket_storage_backend.
 *
 * Objects of one put lie one behind the other, key then value, in <id>.bucket; <id>.meta says where
 * (bucket_meta.h). Ids grow. A bucket is written once: data first, synced, then its .meta by
 * rename; a .bucket without .meta is what a crash left and is deleted at the start, so an object is
 * there after a crash exactly when its .meta is. The .bucket is padded to whole blocks, which
 * readers of the format do not look at, so that it can be read with O_DIRECT to its end.
 *
 * Eviction drops whole buckets: the .meta goes first, so that what is left over after a crash is an
 * orphan. A key that is removed or about to be replaced is first taken out of its .meta, else what
 * it held would be back with the next start that can no longer read the newer bucket; when no key
 * is left the bucket goes. For the same reason a bucket that a start cannot read is deleted.
 *
 * Invariant: used_bytes is the sum of disk_bytes over the list of buckets; each live entry is in
 * the index and belongs to a bucket in the list.
 */
#include "tier/bucket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define DEFAULT_BUCKET_BYTES (256ull << 20)
#define DEFAULT_BUCKET_KEYS  500u

/* ---- files ---- */

const char *bucket_path(const struct bucket_backend *b, int64_t id, const char *suffix,
                        struct mc_buf *out) {
    mc_buf_clear(out);
    mc_buf_printf(out, "%s/%" PRId64 "%s", b->config->path, id, suffix);
    return mc_buf_cstr(out);
}

uint64_t bucket_size_on_disk(const struct bucket_backend *b, int64_t id) {
    static const char *const suffixes[] = {".bucket", ".meta"};
    struct mc_buf path = {0};
    uint64_t bytes = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(suffixes); i++) {
        struct stat info;
        if (stat(bucket_path(b, id, suffixes[i], &path), &info) == 0) {
            bytes += (uint64_t)info.st_blocks * 512;
        }
    }
    mc_buf_free(&path);
    return bytes;
}

void bucket_unlink_locked(struct bucket_backend *b, int64_t id) {
    static const char *const suffixes[] = {".meta", ".bucket"}; /* in this order */
    struct mc_buf path = {0};
    for (size_t i = 0; i < MC_ARRAY_LEN(suffixes); i++) {
        if (unlink(bucket_path(b, id, suffixes[i], &path)) != 0 && errno != ENOENT) {
            mc_error("a file of the SSD tier cannot be deleted: path=%s errno=%d reason=\"%s\"",
                     mc_buf_cstr(&path), errno, strerror(errno));
            b->haunted = b->haunted || i == 0; /* without its .meta it is none */
        }
    }
    b->names_behind = true;
    mc_buf_free(&path);
}

/* ---- the list of buckets ---- */

struct bucket *bucket_make(int64_t id, size_t count) {
    struct bucket *bucket = mc_zalloc(sizeof(*bucket));
    mc_list_init(&bucket->link);
    bucket->id = id;
    bucket->count = count;
    bucket->fd = -1;
    bucket->entries = mc_zalloc((count + 1) * sizeof(struct mc_tier_entry *));
    return bucket;
}

void bucket_discard(struct bucket *bucket) {
    for (size_t i = 0; i < bucket->count; i++) {
        free(bucket->entries[i]);
    }
    if (bucket->fd >= 0) {
        close(bucket->fd);
    }
    free(bucket->entries);
    free(bucket);
}

void bucket_entry_dropped_locked(struct bucket_backend *b, struct mc_tier_entry *entry) {
    struct bucket *owner = entry->file;
    owner->live--;
    b->behind_count += !owner->behind;
    owner->behind = true;
    if (owner->live == 0) {
        bucket_retire_locked(b, owner, NULL);
    }
}

void bucket_publish_locked(struct bucket_backend *b, struct bucket *bucket) {
    mc_list_push_back(&b->buckets, &bucket->link);
    b->bucket_count++;
    b->used_bytes += bucket->disk_bytes;
    uint64_t unit = (uint64_t)bucket->id;
    mc_tier_order_stored(&b->order, &unit, 1);
    bucket->live = bucket->count;
    bucket->users++; /* a key that is there twice must not free it under our feet */
    for (size_t i = 0; i < bucket->count; i++) {
        struct mc_tier_entry *old = mc_tier_index_insert(&b->face.index, bucket->entries[i]);
        if (old != NULL) {
            bucket_entry_dropped_locked(b, old);
        }
    }
    bucket->users--;
}

void bucket_retire_locked(struct bucket_backend *b, struct bucket *bucket, struct mc_buf *lost) {
    for (size_t i = 0; i < bucket->count; i++) {
        struct mc_tier_entry *e = bucket->entries[i];
        if (!e->live) {
            continue;
        }
        mc_tier_index_remove(&b->face.index, e);
        if (lost != NULL) {
            mc_tier_lost_add(lost, mc_tier_entry_key(e));
        }
    }
    bucket->live = 0;
    bucket->dead = true;
    b->behind_count -= bucket->behind;
    bucket->behind = false;
    mc_list_del(&bucket->link);
    mc_tier_order_removed(&b->order, (uint64_t)bucket->id);
    b->bucket_count--;
    b->used_bytes -= bucket->disk_bytes;
    bucket_unlink_locked(b, bucket->id);
    if (bucket->users == 0) {
        bucket_discard(bucket);
    }
}

void bucket_unuse_locked(struct bucket *bucket) {
    if (--bucket->users == 0 && bucket->dead) {
        bucket_discard(bucket);
    }
}

/* ---- taking keys out ---- */

/* One whose .meta is behind, in use; NULL = there is none. */
static struct bucket *take_behind(struct bucket_backend *b) {
    struct bucket *bucket = NULL;
    pthread_mutex_lock(&b->face.lock);
    for (struct mc_list *at = b->buckets.next; b->behind_count > 0 && at != &b->buckets;
         at = at->next) {
        bucket = mc_container_of(at, struct bucket, link);
        if (bucket->behind) {
            bucket->behind = false;
            b->behind_count--;
            bucket->users++;
            break;
        }
    }
    pthread_mutex_unlock(&b->face.lock);
    return bucket;
}

static enum mc_status catch_up(struct bucket_backend *b) {
    struct mc_buf path = {0};
    enum mc_status status = MC_OK;
    for (struct bucket *bucket; status == MC_OK && (bucket = take_behind(b)) != NULL;) {
        status = bucket_rewrite_meta(b, bucket);
        pthread_mutex_lock(&b->face.lock);
        bucket->behind = status != MC_OK && !bucket->dead;
        b->behind_count += bucket->behind;
        bucket_unuse_locked(bucket);
        pthread_mutex_unlock(&b->face.lock);
    }
    pthread_mutex_lock(&b->face.lock);
    bool names = status == MC_OK && b->names_behind;
    b->names_behind = b->names_behind && !names;
    pthread_mutex_unlock(&b->face.lock);
    if (names) {
        status = mc_file_sync_names(bucket_path(b, 0, ".meta", &path));
    }
    if (names && status != MC_OK) {
        pthread_mutex_lock(&b->face.lock);
        b->names_behind = true;
        pthread_mutex_unlock(&b->face.lock);
    }
    mc_buf_free(&path);
    return status;
}

enum mc_status bucket_forget(struct bucket_backend *b, const struct mc_str *keys, size_t count,
                             struct mc_buf *lost) {
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, keys[i]);
        if (e == NULL) {
            continue;
        }
        mc_tier_lost_add(lost, keys[i]);
        mc_tier_index_remove(&b->face.index, e);
        bucket_entry_dropped_locked(b, e);
    }
    pthread_mutex_unlock(&b->face.lock);
    return catch_up(b);
}

/* ---- questions and removals ---- */

static enum mc_status bucket_remove(struct mc_tier_backend *face, const struct mc_str *keys,
                                    size_t count, size_t *removed) {
    struct bucket_backend *b = (struct bucket_backend *)face;
    struct mc_buf gone = {0};
    pthread_mutex_lock(&b->put_lock); /* one writer of .meta files */
    enum mc_status status = bucket_forget(b, keys, count, &gone);
    pthread_mutex_unlock(&b->put_lock);
    *removed = mc_tier_lost_count(&gone);
    mc_buf_free(&gone);
    return status;
}

static enum mc_status bucket_clear(struct mc_tier_backend *face) {
    struct bucket_backend *b = (struct bucket_backend *)face;
    pthread_mutex_lock(&b->put_lock);
    pthread_mutex_lock(&b->face.lock);
    while (!mc_list_empty(&b->buckets)) {
        bucket_retire_locked(b, mc_container_of(b->buckets.next, struct bucket, link), NULL);
    }
    pthread_mutex_unlock(&b->face.lock);
    enum mc_status status = catch_up(b);
    pthread_mutex_unlock(&b->put_lock);
    return status;
}

static enum mc_status bucket_settle(struct mc_tier_backend *face) {
    struct bucket_backend *b = (struct bucket_backend *)face;
    pthread_mutex_lock(&b->put_lock);
    enum mc_status status = catch_up(b);
    pthread_mutex_lock(&b->face.lock);
    status = b->haunted ? MC_FILE_WRITE_FAIL : status;
    pthread_mutex_unlock(&b->face.lock);
    pthread_mutex_unlock(&b->put_lock);
    return status;
}

static void bucket_place(const struct mc_tier_entry *e, struct mc_tier_found *out) {
    out->bucket_id = ((const struct bucket *)e->file)->id;
    out->offset = (int64_t)e->offset;
}

static void bucket_stats(struct mc_tier_backend *face, struct mc_tier_stats *out) {
    struct bucket_backend *b = (struct bucket_backend *)face;
    pthread_mutex_lock(&b->face.lock);
    *out = b->stats;
    out->capacity_bytes = b->capacity;
    out->used_bytes = b->used_bytes;
    out->objects = b->face.index.count;
    out->files = b->bucket_count;
    out->direct = atomic_load_explicit(&b->direct, memory_order_relaxed);
    pthread_mutex_unlock(&b->face.lock);
}

/* ---- open and close ---- */

static void bucket_close(struct mc_tier_backend *face) {
    struct bucket_backend *b = (struct bucket_backend *)face;
    while (!mc_list_empty(&b->buckets)) {
        struct bucket *bucket = mc_container_of(b->buckets.next, struct bucket, link);
        MC_ASSERT(bucket->users == 0);
        mc_list_del(&bucket->link);
        bucket_discard(bucket);
    }
    mc_tier_index_free(&b->face.index);
    mc_tier_order_fini(&b->order);
    mc_tier_rings_fini(&b->rings);
    mc_file_ring_destroy(b->put_ring);
    free(b->staging);
    pthread_mutex_destroy(&b->put_lock);
    pthread_mutex_destroy(&b->face.lock);
    free(b);
}

static enum mc_status bucket_open(const struct mc_tier_config *config,
                                  struct mc_tier_backend **out) {
    struct bucket_backend *b = mc_zalloc(sizeof(*b));
    b->config = config;
    b->bucket_bytes = config->bucket_bytes != 0 ? config->bucket_bytes : DEFAULT_BUCKET_BYTES;
    b->bucket_keys = config->bucket_keys != 0 ? config->bucket_keys : DEFAULT_BUCKET_KEYS;
    atomic_init(&b->direct, !config->buffered);
    mc_list_init(&b->buckets);
    pthread_mutex_init(&b->face.lock, NULL);
    pthread_mutex_init(&b->put_lock, NULL);
    mc_tier_order_init(&b->order, config->eviction);
    mc_tier_rings_init(&b->rings, config->depth);
    /* the depth is right, and a kernel without io_uring is no failure */
    MC_ASSERT(mc_file_ring_create(config->depth, &b->put_ring) == MC_OK);
    b->staging = aligned_alloc(MC_TIER_BLOCK, BUCKET_STAGING);
    MC_ASSERT(b->staging != NULL);
    (void)mc_file_ring_register(b->put_ring, b->staging, BUCKET_STAGING);
    enum mc_status status = bucket_recover(b);
    if (status != MC_OK) {
        bucket_close(&b->face);
        return status;
    }
    b->capacity = config->capacity_bytes != 0 ? config->capacity_bytes
                                              : mc_tier_disk_capacity(config->path, b->used_bytes);
    mc_info("SSD tier: path=%s backend=%s objects=%zu buckets=%zu used_bytes=%llu "
            "capacity_bytes=%llu",
            config->path, config->backend, b->face.index.count, b->bucket_count,
            (unsigned long long)b->used_bytes, (unsigned long long)b->capacity);
    *out = &b->face;
    return MC_OK;
}

static void bucket_use_memory(struct mc_tier_backend *face, void *memory, size_t bytes) {
    mc_tier_rings_use(&((struct bucket_backend *)face)->rings, memory, bytes);
}

const struct mc_tier_backend_ops mc_tier_bucket = {
    .name = "bucket_storage_backend",
    .borrows = true,
    .open = bucket_open,
    .close = bucket_close,
    .put = bucket_put,
    .read = bucket_read,
    .remove = bucket_remove,
    .clear = bucket_clear,
    .settle = bucket_settle,
    .place = bucket_place,
    .use_memory = bucket_use_memory,
    .stats = bucket_stats,
};
