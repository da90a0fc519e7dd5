/*
 * Writing records of the offset backend: pieces are taken, evicting what must go, records are
 * staged and written with io_uring, synced, and described by a new .meta. See tier/offset.c.
 *
 * Our pieces begin at whole blocks, so O_DIRECT takes them; in a file that upstream has used a gap
 * may begin elsewhere, and a record there goes through the page cache.
 */
#include "tier/offset.h"

#include <errno.h>
#include <unistd.h>

#include "base/log.h"

#define STEP (256u << 10) /* bytes of one write */

struct writing {
    struct mc_tier_item *item;
    struct mc_tier_entry *entry; /* NULL: it failed, and item->status says so */
};

struct staged {
    struct mc_file_op ops[OFFSET_STAGING / MC_TIER_BLOCK];
    struct writing *owners[OFFSET_STAGING / MC_TIER_BLOCK];
    size_t count;
    uint64_t bytes; /* of the staging memory */
};

/* ---- room ---- */

/* A piece for the record; evicts until there is one. False when there cannot be. Needs put_lock. */
static bool take_piece(struct offset_backend *b, uint64_t bytes, uint32_t *name,
                       struct mc_buf *lost) {
    uint64_t units = (mc_tier_round_up(bytes) + (1ull << b->shift) - 1) >> b->shift;
    bool there = false;
    pthread_mutex_lock(&b->face.lock);
    while (units <= MC_EXTENTS_MAX &&
           !(there = mc_extents_take(b->extents, (uint32_t)units, name))) {
        uint64_t hash;
        if (bytes > b->capacity || !mc_tier_order_victim(&b->order, &hash)) {
            break;
        }
        struct mc_tier_entry *victim = mc_tier_index_find_hash(&b->face.index, hash);
        MC_ASSERT(victim != NULL); /* the order knows those in the index */
        mc_tier_lost_add(lost, mc_tier_entry_key(victim));
        offset_drop_locked(b, victim);
        b->stats.evicted_objects++;
    }
    uint64_t used = mc_extents_taken_units(b->extents) << b->shift;
    pthread_mutex_unlock(&b->face.lock);
    if (!there) {
        mc_warn_limited("the SSD tier is full: path=%s used_bytes=%llu capacity_bytes=%llu "
                        "wanted_bytes=%llu",
                        b->config->path, (unsigned long long)used, (unsigned long long)b->capacity,
                        (unsigned long long)bytes);
    }
    return there;
}

static void describe(struct offset_backend *b, struct writing *w, struct mc_buf *lost) {
    const struct mc_tier_item *item = w->item;
    uint32_t name;
    if (item->size > UINT32_MAX) { /* the format has 32 bits for it */
        w->item->status = MC_INVALID_PARAMS;
        return;
    }
    if (!take_piece(b, offset_record_bytes(item->key.len, item->size), &name, lost)) {
        w->item->status = MC_FILE_WRITE_FAIL;
        return;
    }
    struct mc_tier_entry *e = mc_tier_entry_make(item->key);
    pthread_mutex_lock(&b->face.lock);
    e->seq = b->insert_seq++;
    e->offset = (uint64_t)mc_extents_at(b->extents, name).offset << b->shift;
    pthread_mutex_unlock(&b->face.lock);
    e->disk = name;
    e->size = item->size;
    e->tag = item->tag;
    e->has_crc = true;
    struct mc_record record = {.key_len = e->key_len,
                               .value_len = (uint32_t)e->size,
                               .flags = MC_RECORD_HAS_CRC,
                               .seq = e->seq};
    e->crc = mc_record_crc(&record, e->key, item->value);
    w->entry = e;
}

/* ---- writing ---- */

static void fail(struct offset_backend *b, struct writing *w) {
    pthread_mutex_lock(&b->face.lock);
    mc_extents_give(b->extents, (uint32_t)w->entry->disk);
    pthread_mutex_unlock(&b->face.lock);
    free(w->entry);
    w->entry = NULL;
    w->item->status = MC_FILE_WRITE_FAIL;
}

static enum mc_status flush(struct offset_backend *b, struct staged *s) {
    enum mc_status status = mc_file_run(b->put_ring, s->ops, s->count);
    for (size_t i = 0; i < s->count; i++) {
        if (s->ops[i].status != MC_OK && s->owners[i]->entry != NULL) {
            mc_error("a record cannot be written: path=%s/kv_cache.data offset=%llu bytes=%llu",
                     b->config->path, (unsigned long long)s->owners[i]->entry->offset,
                     (unsigned long long)s->owners[i]->item->size);
            fail(b, s->owners[i]);
        }
    }
    s->count = 0;
    s->bytes = 0;
    return status;
}

/* The next bytes of the record, and a write for what was staged when the memory is full. */
static void stage(struct offset_backend *b, struct staged *s, struct writing *w, uint64_t *at,
                  const void *bytes, uint64_t len) {
    while (len > 0 && w->entry != NULL) {
        uint64_t room = OFFSET_STAGING - s->bytes;
        uint64_t step = mc_min_u64(mc_min_u64(len, STEP), room / MC_TIER_BLOCK * MC_TIER_BLOCK);
        if (step == 0 || s->count == MC_ARRAY_LEN(s->ops)) {
            (void)flush(b, s); /* its owners know */
            continue;
        }
        char *memory = b->staging + s->bytes;
        uint64_t padded = mc_tier_round_up(step);
        memcpy(memory, bytes, step);
        memset(memory + step, 0, padded - step);
        bool aligned = w->entry->offset % MC_TIER_BLOCK == 0;
        s->owners[s->count] = w;
        s->ops[s->count++] = (struct mc_file_op){.write = true,
                                                 .fd = aligned ? b->fd : b->plain,
                                                 .buffer = memory,
                                                 .len = aligned ? padded : step,
                                                 .offset = w->entry->offset + *at};
        s->bytes += padded;
        *at += step;
        bytes = (const char *)bytes + step;
        len -= step;
    }
}

static void stage_record(struct offset_backend *b, struct staged *s, struct writing *w) {
    const struct mc_tier_entry *e = w->entry;
    uint64_t head_bytes = mc_record_value_at(e->key_len), at = 0;
    struct mc_record record = {.key_len = e->key_len,
                               .value_len = (uint32_t)e->size,
                               .flags = MC_RECORD_HAS_CRC,
                               .crc = e->crc,
                               .seq = e->seq};
    char *head = mc_zalloc(head_bytes);
    mc_record_encode(&record, head);
    memcpy(head + MC_RECORD_HEAD, e->key, e->key_len);
    mc_record_put_tag(head, e->key_len, e->tag);
    stage(b, s, w, &at, head, head_bytes);
    free(head);
    stage(b, s, w, &at, w->item->value, w->item->size);
}

static bool sync_data(struct offset_backend *b) {
    if (fdatasync(b->fd) == 0) {
        return true;
    }
    mc_error("the data of the SSD tier cannot be synced: path=%s/kv_cache.data errno=%d "
             "reason=\"%s\"",
             b->config->path, errno, strerror(errno));
    return false;
}

static void publish(struct offset_backend *b, struct writing *all, size_t count) {
    uint64_t *hashes = mc_alloc((count + 1) * sizeof(*hashes));
    size_t n = 0;
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        if (all[i].entry == NULL) {
            b->stats.failed_writes++;
            continue;
        }
        b->stats.written_objects++;
        b->stats.written_bytes += all[i].entry->size;
        all[i].item->bucket_id = 0;
        all[i].item->offset = (int64_t)all[i].entry->offset;
        hashes[n++] = all[i].entry->hash;
        offset_publish_locked(b, all[i].entry);
    }
    mc_tier_order_stored(&b->order, hashes, n);
    pthread_mutex_unlock(&b->face.lock);
    free(hashes);
}

/* Published, but not durable: they may not stay. */
static void withdraw(struct offset_backend *b, struct writing *all, size_t count) {
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        struct mc_tier_entry *e = all[i].entry;
        if (e != NULL && mc_tier_index_find(&b->face.index, all[i].item->key) == e) {
            offset_drop_locked(b, e);
        }
        all[i].item->status = e != NULL ? MC_FILE_WRITE_FAIL : all[i].item->status;
    }
    pthread_mutex_unlock(&b->face.lock);
}

void offset_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count) {
    struct offset_backend *b = (struct offset_backend *)face;
    struct writing *all = mc_zalloc((count + 1) * sizeof(*all));
    struct staged *staged = mc_zalloc(sizeof(*staged));
    struct mc_buf lost = {0};
    size_t n = 0;
    pthread_mutex_lock(&b->put_lock);
    for (size_t i = 0; i < count; i++) {
        if (items[i].status == MC_OK) {
            struct writing *w = &all[n++];
            w->item = &items[i];
            describe(b, w, &lost);
            if (w->entry != NULL) {
                stage_record(b, staged, w);
            }
        }
    }
    (void)flush(b, staged); /* its owners know */
    bool synced = sync_data(b);
    for (size_t i = 0; i < n && !synced; i++) {
        if (all[i].entry != NULL) {
            fail(b, &all[i]);
        }
    }
    publish(b, all, n);
    if (n > 0 && offset_checkpoint(b) != MC_OK) {
        withdraw(b, all, n);
    }
    pthread_mutex_unlock(&b->put_lock);
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
    free(staged);
    free(all);
}
