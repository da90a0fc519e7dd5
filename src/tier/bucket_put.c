/*
 * Writing buckets: a batch is cut into buckets, each is staged, written with io_uring, synced,
 * described by its .meta and only then published. What its keys held before is taken out of the
 * older buckets first. See tier/bucket.c.
 *
 * Values are copied once, into the staging memory, because a key lies before each and O_DIRECT
 * wants whole aligned blocks; copying and summing go on while the disk writes. A value that was not
 * the item's any more when its last byte was copied stays in the file, and in no .meta.
 */
#include "tier/bucket.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/copy.h"
#include "base/log.h"
#include "tier/bucket_meta.h"

/* ---- .meta ---- */

static enum mc_status write_meta(struct bucket_backend *b, int64_t id,
                                 const struct mc_bucket_meta *meta) {
    struct mc_buf text = {0}, path = {0};
    mc_bucket_meta_encode(meta, &text);
    enum mc_status status =
        mc_file_replace(bucket_path(b, id, ".meta", &path), (struct mc_str){text.data, text.len});
    mc_buf_free(&text);
    mc_buf_free(&path);
    return status;
}

/* Needs put_lock; the bucket is in use. */
enum mc_status bucket_rewrite_meta(struct bucket_backend *b, struct bucket *bucket) {
    struct mc_bucket_meta meta = {0};
    meta.objects = mc_zalloc((bucket->count + 1) * sizeof(*meta.objects));
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < bucket->count; i++) {
        const struct mc_tier_entry *e = bucket->entries[i];
        if (e->live) { /* data_size stays what the file holds */
            meta.objects[meta.count++] = (struct mc_bucket_object){
                .key = mc_tier_entry_key(e), .offset = e->offset, .size = e->size};
        }
    }
    meta.data_size = bucket->data_bytes;
    meta.ours = bucket->ours;
    bool dead = bucket->dead;
    pthread_mutex_unlock(&b->face.lock);
    enum mc_status status = dead ? MC_OK : write_meta(b, bucket->id, &meta);
    free(meta.objects);
    return status;
}

/* ---- room ---- */

/* The bucket that goes first; NULL when none may. */
static struct bucket *victim_locked(struct bucket_backend *b) {
    uint64_t id;
    if (!mc_tier_order_victim(&b->order, &id)) {
        return NULL;
    }
    struct mc_list *at = b->buckets.next;
    while (at != &b->buckets && mc_container_of(at, struct bucket, link)->id != (int64_t)id) {
        at = at->next;
    }
    MC_ASSERT(at != &b->buckets); /* the order knows those in the list */
    return mc_container_of(at, struct bucket, link);
}

/* Evicts until `bytes` more fit; false when they cannot. Needs put_lock. */
static bool make_room(struct bucket_backend *b, uint64_t bytes) {
    struct mc_buf lost = {0};
    uint64_t evicted = 0;
    pthread_mutex_lock(&b->face.lock);
    bool possible = bytes <= b->capacity;
    while (possible &&
           (b->used_bytes + bytes > b->capacity || !mc_tier_disk_has(b->config->path, bytes))) {
        struct bucket *victim = victim_locked(b);
        if (victim == NULL) {
            possible = false;
            break;
        }
        evicted += victim->live;
        bucket_retire_locked(b, victim, &lost);
    }
    b->stats.evicted_objects += evicted;
    uint64_t used = b->used_bytes;
    pthread_mutex_unlock(&b->face.lock);
    if (!possible) {
        mc_warn_limited("the SSD tier is full: path=%s used_bytes=%llu capacity_bytes=%llu "
                        "wanted_bytes=%llu",
                        b->config->path, (unsigned long long)used, (unsigned long long)b->capacity,
                        (unsigned long long)bytes);
    }
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
    return possible;
}

/* ---- data ---- */

/* The staging memory is two halves: one is written while the other is filled. */
#define HALF       (BUCKET_STAGING / 2)
#define STAGE_STEP (64u << 10) /* the second level of every cache holds it */

struct writer {
    struct bucket_backend *b;
    int fd;
    unsigned half;    /* that is filled */
    uint64_t staged;  /* bytes in it */
    uint64_t written; /* bytes in the file, or on their way: whole blocks */
    bool busy;        /* the other half is being written */
    struct mc_file_op ops[2][HALF / BUCKET_STEP];
};

static enum mc_status wait_for_writes(struct writer *w) {
    bool busy = w->busy;
    w->busy = false;
    return busy ? mc_file_finish(w->b->put_ring) : MC_OK;
}

static enum mc_status flush(struct writer *w) {
    char *memory = (char *)w->b->staging + w->half * HALF;
    struct mc_file_op *ops = w->ops[w->half];
    size_t count = 0;
    uint64_t bytes = mc_tier_round_up(w->staged);
    memset(memory + w->staged, 0, bytes - w->staged);
    for (uint64_t at = 0; at < bytes; at += BUCKET_STEP) {
        ops[count++] = (struct mc_file_op){.write = true,
                                           .fd = w->fd,
                                           .buffer = memory + at,
                                           .len = mc_min_u64(BUCKET_STEP, bytes - at),
                                           .offset = w->written + at};
    }
    MC_TRY(wait_for_writes(w));
    mc_file_begin(w->b->put_ring, ops, count, NULL, NULL);
    w->busy = true;
    w->half ^= 1;
    w->written += bytes;
    w->staged = 0;
    return MC_OK;
}

/* `crc`, which may be NULL, goes on over the bytes and brings them into the cache. What is staged
 * only the disk reads: it goes past the cache, which others use. */
static enum mc_status stage(struct writer *w, const void *bytes, uint64_t len, uint32_t *crc) {
    for (uint64_t done = 0; done < len;) {
        uint64_t step = mc_min_u64(mc_min_u64(len - done, HALF - w->staged), STAGE_STEP);
        const char *from = (const char *)bytes + done;
        if (crc != NULL) {
            *crc = mc_tier_crc_more(*crc, from, step);
        }
        mc_copy_out((char *)w->b->staging + w->half * HALF + w->staged, from, step);
        w->staged += step;
        done += step;
        if (w->staged == HALF) {
            MC_TRY(flush(w));
        }
    }
    return MC_OK;
}

static enum mc_status write_records(struct writer *w, struct mc_tier_item *const *items,
                                    const struct bucket *bucket, struct mc_buf *trailer) {
    for (size_t i = 0; i < bucket->count; i++) {
        struct mc_tier_entry *e = bucket->entries[i];
        MC_TRY(stage(w, items[i]->key.ptr, items[i]->key.len, NULL));
        MC_TRY(stage(w, items[i]->value, items[i]->size, &e->crc));
        e->has_crc = true;
        if (items[i]->still != NULL && !items[i]->still(items[i]->still_ctx)) {
            items[i]->status = MC_LEASE_EXPIRED;
        }
    }
    mc_bucket_trailer_encode(bucket->entries, bucket->count, trailer);
    MC_TRY(stage(w, trailer->data, trailer->len, NULL));
    if (w->staged > 0) {
        MC_TRY(flush(w));
    }
    return wait_for_writes(w);
}

/* Everything but the .meta. */
static enum mc_status write_data(struct bucket_backend *b, const struct bucket *bucket,
                                 struct mc_tier_item *const *items, struct mc_buf *path) {
    struct writer w = {.b = b};
    struct mc_buf trailer = {0};
    const char *step = "write";
    bool direct = atomic_load_explicit(&b->direct, memory_order_relaxed);
    enum mc_status status = mc_file_open(bucket_path(b, bucket->id, ".bucket", path),
                                         O_RDWR | O_CREAT | O_EXCL, direct, &w.fd, &direct);
    if (status != MC_OK) {
        return MC_FILE_WRITE_FAIL;
    }
    atomic_store_explicit(&b->direct, direct, memory_order_relaxed);
    errno = 0;
    if (fallocate(w.fd, 0, 0, (off_t)bucket->file_bytes) != 0 && errno != EOPNOTSUPP) {
        step = "allocate"; /* a full disk is found before anything is written */
        status = MC_FILE_WRITE_FAIL;
    } else {
        status = write_records(&w, items, bucket, &trailer);
        (void)wait_for_writes(&w); /* of a failure, which is known */
    }
    if (status == MC_OK && fdatasync(w.fd) != 0) {
        step = "sync";
        status = MC_FILE_WRITE_FAIL;
    }
    if (status != MC_OK) {
        mc_error("a bucket cannot be written: path=%s step=%s bytes=%llu errno=%d reason=\"%s\"",
                 mc_buf_cstr(path), step, (unsigned long long)bucket->file_bytes, errno,
                 strerror(errno));
    }
    close(w.fd);
    mc_buf_free(&trailer);
    return status;
}

/* ---- one bucket ---- */

static struct bucket *describe(int64_t id, struct mc_tier_item *const *items, size_t count,
                               struct mc_bucket_meta *meta) {
    struct bucket *bucket = bucket_make(id, count);
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        struct mc_tier_entry *e = mc_tier_entry_make(items[i]->key);
        e->file = bucket;
        e->offset = at;
        e->size = items[i]->size;
        e->tag = items[i]->tag;
        bucket->entries[i] = e;
        meta->objects[i] = (struct mc_bucket_object){items[i]->key, at, e->size};
        at += items[i]->key.len + items[i]->size;
    }
    bucket->data_bytes = at;
    bucket->file_bytes = mc_tier_round_up(at + mc_bucket_trailer_bytes(count));
    meta->count = count;
    meta->data_size = at;
    meta->ours = bucket->ours = true;
    return bucket;
}

/* Takes out what was not the items' value any more; how many are left. */
static size_t leave_out(struct bucket *bucket, struct mc_bucket_meta *meta,
                        struct mc_tier_item *const *items) {
    size_t left = 0;
    for (size_t i = 0; i < bucket->count; i++) {
        if (items[i]->status != MC_OK) {
            free(bucket->entries[i]);
            continue;
        }
        meta->objects[left] = meta->objects[i];
        bucket->entries[left++] = bucket->entries[i];
    }
    bucket->count = meta->count = left;
    return left;
}

/* The last step of a put, or its undoing. */
static void settle(struct bucket_backend *b, struct bucket *bucket, enum mc_status status) {
    if (status == MC_OK) {
        bucket->disk_bytes = bucket_size_on_disk(b, bucket->id);
    }
    pthread_mutex_lock(&b->face.lock);
    if (status == MC_OK) {
        b->stats.written_objects += bucket->count;
        b->stats.written_bytes += bucket->data_bytes;
        bucket_publish_locked(b, bucket);
    } else { /* its .meta may have got its name, and the sync of that have failed */
        bucket_unlink_locked(b, bucket->id);
        bucket_discard(bucket);
        b->stats.failed_writes += status != MC_LEASE_EXPIRED;
    }
    pthread_mutex_unlock(&b->face.lock);
}

/* What the keys hold until now goes first. */
static enum mc_status supersede(struct bucket_backend *b, struct mc_tier_item *const *items,
                                size_t count, struct mc_buf *lost) {
    struct mc_str *keys = mc_alloc((count + 1) * sizeof(*keys));
    for (size_t i = 0; i < count; i++) {
        keys[i] = items[i]->key;
    }
    enum mc_status status = bucket_forget(b, keys, count, lost);
    free(keys);
    return status;
}

/* Of the keys that were taken out for new values, those that did not get theirs. */
static void tell_gone(struct bucket_backend *b, const struct mc_buf *taken_out) {
    struct mc_buf gone = {0};
    pthread_mutex_lock(&b->face.lock);
    for (size_t at = 0; at < taken_out->len;) {
        uint32_t len;
        memcpy(&len, taken_out->data + at, sizeof(len));
        struct mc_str key = {taken_out->data + at + sizeof(len), len};
        if (mc_tier_index_find(&b->face.index, key) == NULL) {
            mc_tier_lost_add(&gone, key);
        }
        at += sizeof(len) + len;
    }
    pthread_mutex_unlock(&b->face.lock);
    mc_tier_lost_tell(b->config, &gone);
    mc_buf_free(&gone);
}

static enum mc_status put_one(struct bucket_backend *b, struct mc_tier_item *const *items,
                              size_t count) {
    struct mc_buf path = {0}, lost = {0};
    struct mc_bucket_meta meta = {.objects = mc_zalloc(count * sizeof(*meta.objects))};
    struct bucket *bucket = describe(b->next_id++, items, count, &meta);
    enum mc_status status = MC_FILE_WRITE_FAIL;
    if (!make_room(b, bucket->file_bytes + MC_TIER_BLOCK)) { /* and its .meta */
        bucket_discard(bucket);
        goto done;
    }
    status = supersede(b, items, count, &lost);
    if (status == MC_OK) {
        status = write_data(b, bucket, items, &path);
    }
    for (size_t i = 0; i < count; i++) {
        items[i]->bucket_id = bucket->id;
        items[i]->offset = (int64_t)bucket->entries[i]->offset;
    }
    size_t left = status == MC_OK ? leave_out(bucket, &meta, items) : 0;
    if (status == MC_OK) {
        status = left > 0 ? write_meta(b, bucket->id, &meta) : MC_LEASE_EXPIRED;
    }
    settle(b, bucket, status);
    tell_gone(b, &lost);
done:
    mc_buf_free(&lost);
    free(meta.objects);
    mc_buf_free(&path);
    return status;
}

/* As many of the items from number *next on as one bucket takes. */
static size_t take(const struct bucket_backend *b, struct mc_tier_item *items, size_t count,
                   size_t *next, struct mc_tier_item **taken) {
    size_t n = 0;
    uint64_t bytes = 0;
    for (; *next < count && n < b->bucket_keys; (*next)++) {
        struct mc_tier_item *item = &items[*next];
        if (item->status != MC_OK) {
            continue;
        }
        uint64_t record = item->key.len + item->size;
        if (n > 0 && bytes + record > b->bucket_bytes) {
            break;
        }
        taken[n++] = item;
        bytes += record;
    }
    return n;
}

void bucket_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count) {
    struct bucket_backend *b = (struct bucket_backend *)face;
    struct mc_tier_item **taken = mc_zalloc((b->bucket_keys + 1) * sizeof(struct mc_tier_item *));
    pthread_mutex_lock(&b->put_lock);
    for (size_t next = 0; next < count;) {
        size_t n = take(b, items, count, &next, taken);
        enum mc_status status = n > 0 ? put_one(b, taken, n) : MC_OK;
        for (size_t i = 0; i < n; i++) {
            taken[i]->status = taken[i]->status == MC_OK ? status : taken[i]->status;
        }
    }
    pthread_mutex_unlock(&b->put_lock);
    free(taken);
}
