/*
 * Writing to an NVMe KV namespace: of a group of objects first all pieces but the roots, a flush,
 * then the roots, and a flush. See tier/nvmekv.c.
 *
 * A device that says that it is full, whatever we take its capacity to be, is given room by
 * evicting, and the command is run again.
 */
#include "tier/nvmekv.h"

#include "base/log.h"

struct writing {
    struct mc_tier_item *item;
    struct mc_tier_entry *entry;
    struct mc_tier_entry *old; /* that the root replaces; out of the order of eviction meanwhile */
    uint32_t pieces;
    bool failed;
    bool root_unknown; /* nobody knows which root the device has */
};

struct staged {
    uint64_t bytes;
    size_t count;
    struct mc_nvme_command commands[NVMEKV_STAGING / MC_TIER_BLOCK];
    struct writing *owners[NVMEKV_STAGING / MC_TIER_BLOCK];
};

/* ---- room ---- */

/* Deletes the object that goes first; false when none may. Needs put_lock. */
static bool evict_one(struct nvmekv_backend *b) {
    uint64_t hash;
    struct mc_tier_entry *e = NULL;
    struct mc_buf lost = {0};
    pthread_mutex_lock(&b->face.lock);
    if (mc_tier_order_victim(&b->order, &hash)) {
        e = mc_tier_index_find_hash(&b->face.index, hash);
        MC_ASSERT(e != NULL); /* the order knows those in the index */
        nvmekv_drop_locked(b, e);
        b->stats.evicted_objects++;
    }
    pthread_mutex_unlock(&b->face.lock);
    if (e == NULL) {
        return false;
    }
    (void)nvmekv_delete(b, e, 0); /* gone, or found again by the next start */
    mc_tier_lost_add(&lost, mc_tier_entry_key(e));
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
    free(e);
    return true;
}

static bool fits(struct nvmekv_backend *b, uint64_t bytes) {
    pthread_mutex_lock(&b->face.lock);
    bool there_is_room = b->used_bytes + bytes <= b->capacity;
    pthread_mutex_unlock(&b->face.lock);
    return there_is_room;
}

static bool make_room(struct nvmekv_backend *b, uint64_t bytes) {
    bool possible = bytes <= b->capacity;
    while (possible && !fits(b, bytes)) {
        possible = evict_one(b);
    }
    if (!possible) {
        mc_warn_limited("the SSD tier is full: device=%s capacity_bytes=%llu wanted_bytes=%llu",
                        b->config->device, (unsigned long long)b->capacity,
                        (unsigned long long)bytes);
    }
    return possible;
}

/* ---- pieces ---- */

static void run_staged(struct nvmekv_backend *b, struct staged *s) {
    mc_nvme_run(b->nvme, s->commands, s->count);
    for (size_t i = 0; i < s->count; i++) {
        struct mc_nvme_command *command = &s->commands[i];
        while (command->status == MC_NVME_CAPACITY && evict_one(b)) {
            mc_nvme_run(b->nvme, command, 1);
        }
        if (command->status != MC_NVME_OK) {
            mc_error("a piece of an object cannot be written: device=%s bytes=%u status=0x%x",
                     b->config->device, command->len, (unsigned)command->status);
            s->owners[i]->failed = true;
            s->owners[i]->root_unknown |= command->status == MC_NVME_NOT_COMPLETED;
        }
    }
    s->count = 0;
    s->bytes = 0;
}

/* Bytes [from, from + len) of the stream; what lies behind its end is zeros. */
static void copy_stream(const struct writing *w, struct mc_str head, uint64_t from, uint64_t len,
                        char *out) {
    const struct mc_str parts[] = {head, {w->item->value, w->item->size}};
    for (unsigned i = 0; i < MC_ARRAY_LEN(parts); i++) {
        if (from < parts[i].len && len > 0) {
            uint64_t n = mc_min_u64(len, parts[i].len - from);
            memcpy(out, parts[i].ptr + from, n);
            out += n;
            len -= n;
            from = 0;
        } else {
            from -= mc_min_u64(from, parts[i].len);
        }
    }
    memset(out, 0, len);
}

static void stage(struct nvmekv_backend *b, struct staged *s, struct writing *w, struct mc_str head,
                  uint32_t piece) {
    uint64_t stream = nvmekv_stream_bytes(w->entry->key_len, w->entry->size);
    uint32_t len = nvmekv_piece_len(stream, b->piece_bytes, piece);
    if (s->bytes + mc_tier_round_up(len) > NVMEKV_STAGING) {
        run_staged(b, s);
    }
    struct nvmekv_key key = nvmekv_piece_of(w->entry, piece);
    char *memory = b->staging + s->bytes;
    copy_stream(w, head, (uint64_t)piece * b->piece_bytes, len, memory);
    s->owners[s->count] = w;
    s->commands[s->count++] = nvmekv_command(NVMEKV_STORE, &key, memory, len);
    s->bytes += mc_tier_round_up(len);
}

/* Pieces [from, to) of the objects that are well so far; true when they are durable. */
static bool write_pieces(struct nvmekv_backend *b, struct staged *s, struct writing *all,
                         size_t count, uint32_t from, uint32_t to) {
    struct mc_buf head = {0};
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        struct writing *w = &all[i];
        struct nvmekv_head fields = {.size = w->entry->size,
                                     .tag = w->entry->tag,
                                     .key_len = w->entry->key_len,
                                     .crc = w->entry->crc,
                                     .generation = nvmekv_generation(w->entry),
                                     .piece_bytes = b->piece_bytes};
        mc_buf_clear(&head);
        mc_buf_reserve(&head, NVMEKV_HEAD + w->entry->key_len);
        nvmekv_head_encode(&fields, mc_tier_entry_key(w->entry), head.data);
        struct mc_str bytes = {head.data, NVMEKV_HEAD + w->entry->key_len};
        for (uint32_t p = from; p < w->pieces && p < to && !w->failed; p++) {
            stage(b, s, w, bytes, p);
            any = true;
        }
    }
    mc_buf_free(&head);
    run_staged(b, s);
    return !any || nvmekv_flush(b);
}

/* ---- a group ---- */

/* False when the item cannot be part of this group: another of the same hash is. */
static bool describe(struct nvmekv_backend *b, struct mc_tier_item *item, struct writing *all,
                     size_t count) {
    uint64_t hash = mc_hash64(item->key.ptr, item->key.len, 0);
    for (size_t i = 0; i < count; i++) {
        if (all[i].entry->hash == hash) {
            return false;
        }
    }
    struct mc_tier_entry *e = mc_tier_entry_make(item->key);
    pthread_mutex_lock(&b->face.lock);
    struct mc_tier_entry *old = mc_tier_index_find_hash(&b->face.index, hash);
    if (old != NULL) {
        old->users = 1; /* a reader that finds it broken leaves it to us */
        mc_tier_order_removed(&b->order, hash);
    }
    pthread_mutex_unlock(&b->face.lock);
    uint32_t generation = b->next_generation++;
    if (old != NULL && generation == nvmekv_generation(old)) {
        generation = b->next_generation++;
    }
    e->offset = generation | (uint64_t)b->piece_bytes << 32;
    e->size = item->size;
    e->tag = item->tag;
    e->crc = mc_tier_crc(item->value, item->size);
    e->has_crc = true;
    e->disk = nvmekv_stream_bytes(e->key_len, e->size);
    all[count] = (struct writing){
        .item = item, .entry = e, .old = old, .pieces = nvmekv_pieces(e->disk, b->piece_bytes)};
    return true;
}

/* Readers find the new object, or still the old one. What is left over is deleted after that. */
static void settle(struct nvmekv_backend *b, struct writing *w) {
    struct mc_buf lost = {0};
    struct mc_tier_entry *old = w->old;
    pthread_mutex_lock(&b->face.lock);
    bool old_goes = old != NULL && (!w->failed || w->root_unknown || !old->live);
    if (old != NULL) {
        old->users = 0;
    }
    if (old_goes && old->live) {
        nvmekv_drop_locked(b, old);
        if (w->failed || !mc_str_eq(mc_tier_entry_key(old), w->item->key)) {
            mc_tier_lost_add(&lost, mc_tier_entry_key(old));
        }
    } else if (old != NULL && old->live) {
        mc_tier_order_stored(&b->order, &old->hash, 1);
    }
    if (w->failed) {
        b->stats.failed_writes++;
    } else {
        b->stats.written_objects++;
        b->stats.written_bytes += w->entry->size;
        nvmekv_publish_locked(b, w->entry);
        mc_tier_order_stored(&b->order, &w->entry->hash, 1);
    }
    pthread_mutex_unlock(&b->face.lock);
    w->item->status = w->failed ? MC_FILE_WRITE_FAIL : MC_OK;
    w->item->bucket_id = MC_TIER_NO_BUCKET;
    w->item->offset = 0;
    if (w->failed) {
        (void)nvmekv_delete(b, w->entry, w->root_unknown ? 0 : 1);
        free(w->entry);
    }
    if (old_goes) {
        (void)nvmekv_delete(b, old, 1); /* its root is another's, deleted above, or broken */
        free(old);
    }
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
}

static void put_group(struct nvmekv_backend *b, struct staged *s, struct writing *all, size_t count,
                      uint64_t bytes) {
    bool possible = make_room(b, bytes);
    for (size_t i = 0; i < count && !possible; i++) {
        all[i].failed = true;
    }
    if (possible && !write_pieces(b, s, all, count, 1, UINT32_MAX)) {
        for (size_t i = 0; i < count; i++) {
            all[i].failed = true;
        }
    }
    for (size_t i = 0; i < count; i++) { /* no root was touched yet */
        all[i].root_unknown = false;
    }
    if (possible && !write_pieces(b, s, all, count, 0, 1)) {
        for (size_t i = 0; i < count; i++) { /* a root that failed for sure is not there */
            all[i].root_unknown |= !all[i].failed;
            all[i].failed = true;
        }
    }
    for (size_t i = 0; i < count; i++) {
        settle(b, &all[i]);
    }
}

void nvmekv_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count) {
    struct nvmekv_backend *b = (struct nvmekv_backend *)face;
    struct writing all[NVMEKV_GROUP];
    struct staged *staged = mc_zalloc(sizeof(*staged));
    pthread_mutex_lock(&b->put_lock);
    for (size_t next = 0; next < count;) {
        size_t n = 0;
        uint64_t bytes = 0;
        for (; next < count && n < NVMEKV_GROUP; next++) {
            struct mc_tier_item *item = &items[next];
            uint64_t stream = nvmekv_stream_bytes(item->key.len, item->size);
            if (item->status != MC_OK) {
                continue;
            }
            if (NVMEKV_HEAD + item->key.len > b->piece_bytes ||
                stream / b->piece_bytes >= UINT32_MAX - 1) {
                item->status = MC_INVALID_PARAMS; /* the root holds the whole key */
                continue;
            }
            if (n > 0 && bytes + stream > b->capacity / 2) {
                break; /* a small tier takes them one after the other */
            }
            if (!describe(b, item, all, n)) {
                break;
            }
            bytes += stream;
            n++;
        }
        put_group(b, staged, all, n, bytes);
    }
    pthread_mutex_unlock(&b->put_lock);
    free(staged);
}
