/*
 * Reading records of the offset backend: only the value is read; its checksum covers the header and
 * the key too, which are known. The piece stays taken while it is read. See tier/offset.c.
 */
#include "tier/offset.h"

#include "base/log.h"

static size_t look_up(struct offset_backend *b, struct mc_tier_read *reads, size_t count,
                      struct mc_tier_entry **entries, struct mc_file_op *ops, size_t *owners) {
    size_t n = 0;
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, reads[i].key);
        if (e == NULL || e->size != reads[i].size) {
            reads[i].status = MC_OBJECT_NOT_FOUND;
            continue;
        }
        e->users++;
        entries[n] = e;
        uint64_t at = e->offset + mc_record_value_at(e->key_len);
        uint64_t from = b->direct ? at / MC_TIER_BLOCK * MC_TIER_BLOCK : at;
        uint64_t to = b->direct ? mc_tier_round_up(at + e->size) : at + e->size;
        reads[i].value = (char *)reads[i].room + (at - from);
        ops[n] = (struct mc_file_op){
            .fd = b->fd, .buffer = reads[i].room, .len = to - from, .offset = from};
        owners[n++] = i;
    }
    pthread_mutex_unlock(&b->face.lock);
    return n;
}

static enum mc_status verify(const struct offset_backend *b, const struct mc_tier_read *read,
                             const struct mc_tier_entry *e) {
    struct mc_record record = {.key_len = e->key_len,
                               .value_len = (uint32_t)e->size,
                               .flags = MC_RECORD_HAS_CRC,
                               .seq = e->seq};
    if (!e->has_crc || mc_record_crc(&record, e->key, read->value) == e->crc) {
        return MC_OK;
    }
    mc_error("an object on the SSD tier is not what was written: path=%s/kv_cache.data "
             "offset=%llu bytes=%llu wrong=checksum",
             b->config->path, (unsigned long long)e->offset, (unsigned long long)e->size);
    return MC_CHECKSUM_MISMATCH;
}

struct batch {
    struct offset_backend *b;
    struct mc_tier_read *reads;
    struct mc_tier_entry **entries;
    struct mc_file_op *ops;
    size_t *owners; /* of an operation: which read */
};

static void read_ended(void *ctx, struct mc_file_op *op) {
    const struct batch *batch = ctx;
    size_t i = (size_t)(op - batch->ops);
    struct mc_tier_read *read = &batch->reads[batch->owners[i]];
    read->status =
        op->status == MC_OK ? verify(batch->b, read, batch->entries[i]) : MC_FILE_READ_FAIL;
}

void offset_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count) {
    struct offset_backend *b = (struct offset_backend *)face;
    struct mc_tier_entry **entries = mc_zalloc((count + 1) * sizeof(struct mc_tier_entry *));
    struct mc_file_op *ops = mc_zalloc((count + 1) * sizeof(*ops));
    size_t *owners = mc_zalloc((count + 1) * sizeof(*owners));
    uint64_t *hashes = mc_alloc((count + 1) * sizeof(*hashes));
    struct mc_buf lost = {0};
    size_t n = look_up(b, reads, count, entries, ops, owners), good = 0;
    struct mc_file_ring *ring = mc_tier_rings_take(&b->rings);
    struct batch batch = {b, reads, entries, ops, owners};
    enum mc_status first = mc_file_run_each(ring, ops, n, read_ended, &batch);
    (void)first; /* each read has its own */
    mc_tier_rings_give(&b->rings, ring);
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < n; i++) {
        struct mc_tier_entry *e = entries[i];
        const struct mc_tier_read *read = &reads[owners[i]];
        if (read->status == MC_OK && !read->unused) {
            b->stats.read_objects++;
            b->stats.read_bytes += e->size;
            hashes[good] = e->hash;
            good += e->live;
        } else if (read->status == MC_CHECKSUM_MISMATCH && e->live) {
            b->stats.broken_objects++;
            mc_tier_lost_add(&lost, read->key);
            offset_drop_locked(b, e);
        } else if (read->status != MC_OK) {
            b->stats.failed_reads++;
        }
        offset_unuse_locked(b, e);
    }
    mc_tier_order_read(&b->order, hashes, good);
    pthread_mutex_unlock(&b->face.lock);
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
    free(hashes);
    free(owners);
    free(ops);
    free(entries);
}
