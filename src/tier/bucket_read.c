/*
 * Reading from buckets: a batch becomes one io_uring run. What lies before the value on disk is its
 * key, and it is compared; then the checksum. See tier/bucket.c.
 */
#include "tier/bucket.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/log.h"

struct found {
    struct bucket *bucket; /* in use; NULL = nothing to read */
    struct mc_tier_entry *entry;
    char *record; /* where the record begins in the room */
};

/* A file whose length is no whole number of blocks, as others write them, is read through the page
 * cache: its last block cannot be read otherwise. Needs the lock, for two readers that open it. */
static enum mc_status open_locked(struct bucket_backend *b, struct bucket *bucket) {
    if (bucket->fd >= 0) {
        return MC_OK;
    }
    struct mc_buf path = {0};
    bool want = atomic_load_explicit(&b->direct, memory_order_relaxed) &&
                bucket->file_bytes % MC_TIER_BLOCK == 0;
    enum mc_status status = mc_file_open(bucket_path(b, bucket->id, ".bucket", &path), O_RDONLY,
                                         want, &bucket->fd, &bucket->direct);
    if (status != MC_OK) {
        mc_error("a bucket cannot be opened: path=%s status=%s", mc_buf_cstr(&path),
                 mc_status_name(status));
    }
    mc_buf_free(&path);
    return status == MC_OK ? MC_OK : MC_FILE_READ_FAIL;
}

static void look_up(struct bucket_backend *b, struct mc_tier_read *reads, size_t count,
                    struct found *found) {
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, reads[i].key);
        found[i] = (struct found){0};
        if (e == NULL || e->size != reads[i].size) {
            reads[i].status = MC_OBJECT_NOT_FOUND;
            continue;
        }
        struct bucket *bucket = e->file;
        reads[i].status = open_locked(b, bucket);
        if (reads[i].status == MC_OK) {
            bucket->users++;
            found[i] = (struct found){.bucket = bucket, .entry = e};
            uint64_t unit = (uint64_t)bucket->id;
            mc_tier_order_read(&b->order, &unit, reads[i].unused ? 0 : 1);
        }
    }
    pthread_mutex_unlock(&b->face.lock);
}

static size_t plan(struct mc_tier_read *reads, size_t count, struct found *found,
                   struct mc_file_op *ops, size_t *owners) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (found[i].bucket == NULL) {
            continue;
        }
        const struct mc_tier_entry *e = found[i].entry;
        uint64_t end = e->offset + e->key_len + e->size;
        uint64_t from = e->offset / MC_TIER_BLOCK * MC_TIER_BLOCK;
        uint64_t to = (end + MC_TIER_BLOCK - 1) / MC_TIER_BLOCK * MC_TIER_BLOCK;
        if (!found[i].bucket->direct) {
            to = end;
        }
        found[i].record = (char *)reads[i].room + (e->offset - from);
        reads[i].value = found[i].record + e->key_len;
        ops[n] = (struct mc_file_op){
            .fd = found[i].bucket->fd, .buffer = reads[i].room, .len = to - from, .offset = from};
        owners[n++] = i;
    }
    return n;
}

static enum mc_status verify(const struct bucket_backend *b, const struct mc_tier_read *read,
                             const struct found *found) {
    const struct mc_tier_entry *e = found->entry;
    bool same_key = memcmp(found->record, e->key, e->key_len) == 0;
    if (same_key && (!e->has_crc || mc_tier_crc(read->value, e->size) == e->crc)) {
        return MC_OK;
    }
    struct mc_buf path = {0};
    mc_error("an object on the SSD tier is not what was written: path=%s offset=%llu bytes=%llu "
             "wrong=%s",
             bucket_path(b, found->bucket->id, ".bucket", &path), (unsigned long long)e->offset,
             (unsigned long long)e->size, same_key ? "checksum" : "key");
    mc_buf_free(&path);
    return MC_CHECKSUM_MISMATCH;
}

static void read_failed(const struct bucket_backend *b, const struct found *found) {
    struct mc_buf path = {0};
    mc_error("an object on the SSD tier cannot be read: path=%s offset=%llu bytes=%llu",
             bucket_path(b, found->bucket->id, ".bucket", &path),
             (unsigned long long)found->entry->offset, (unsigned long long)found->entry->size);
    mc_buf_free(&path);
}

/* Counts, forgets what is broken, lets the buckets go. */
static void finish(struct bucket_backend *b, struct mc_tier_read *reads, size_t count,
                   struct found *found) {
    struct mc_buf lost = {0};
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        if (found[i].bucket == NULL) {
            continue;
        }
        struct mc_tier_entry *e = found[i].entry;
        if (reads[i].status == MC_OK) {
            b->stats.read_objects += !reads[i].unused;
            b->stats.read_bytes += reads[i].unused ? 0 : e->size;
        } else if (reads[i].status == MC_CHECKSUM_MISMATCH && e->live) {
            b->stats.broken_objects++;
            mc_tier_index_remove(&b->face.index, e);
            mc_tier_lost_add(&lost, mc_tier_entry_key(e));
            bucket_entry_dropped_locked(b, e);
        } else {
            b->stats.failed_reads++;
        }
        bucket_unuse_locked(found[i].bucket);
    }
    pthread_mutex_unlock(&b->face.lock);
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
}

struct batch {
    struct bucket_backend *b;
    struct mc_tier_read *reads;
    struct found *found;
    struct mc_file_op *ops;
    size_t *owners; /* of an operation: which read */
};

static void read_ended(void *ctx, struct mc_file_op *op) {
    const struct batch *batch = ctx;
    size_t which = batch->owners[op - batch->ops];
    struct mc_tier_read *read = &batch->reads[which];
    if (op->status == MC_OK) {
        read->status = verify(batch->b, read, &batch->found[which]);
    } else {
        read->status = MC_FILE_READ_FAIL;
        read_failed(batch->b, &batch->found[which]);
    }
}

void bucket_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count) {
    struct bucket_backend *b = (struct bucket_backend *)face;
    struct batch batch = {.b = b, .reads = reads};
    batch.found = mc_zalloc((count + 1) * sizeof(*batch.found));
    batch.ops = mc_alloc((count + 1) * sizeof(*batch.ops));
    batch.owners = mc_alloc((count + 1) * sizeof(*batch.owners));
    look_up(b, reads, count, batch.found);
    size_t n = plan(reads, count, batch.found, batch.ops, batch.owners);
    struct mc_file_ring *ring = mc_tier_rings_take(&b->rings);
    enum mc_status first = mc_file_run_each(ring, batch.ops, n, read_ended, &batch);
    (void)first; /* each read has its own */
    mc_tier_rings_give(&b->rings, ring);
    finish(b, reads, count, batch.found);
    free(batch.owners);
    free(batch.ops);
    free(batch.found);
}
