/*
 * Reading from an NVMe KV namespace: all pieces of a batch in one run, each to its place in the
 * room, then the head with the key is compared, and the checksum. See tier/nvmekv.c.
 *
 * An object can be replaced or deleted while it is read: what was read then fits another entry than
 * the one looked up, or one that is not in the index yet. It is read again while no put runs.
 */
#include "tier/nvmekv.h"

#include "base/log.h"

struct reading {
    struct mc_tier_read *read;
    struct mc_tier_entry entry; /* a copy, without the key */
    size_t first;               /* of its commands; */
    uint32_t pieces;            /* 0 = the answer is known */
};

static void look_up(struct nvmekv_backend *b, struct reading *r) {
    pthread_mutex_lock(&b->face.lock);
    const struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, r->read->key);
    bool there = e != NULL && e->size == r->read->size;
    r->read->status = there ? MC_OK : MC_OBJECT_NOT_FOUND;
    r->pieces = 0;
    if (there) {
        r->entry = *e;
        r->pieces = nvmekv_pieces(nvmekv_stream_bytes(e->key_len, e->size), nvmekv_piece_bytes(e));
    }
    pthread_mutex_unlock(&b->face.lock);
}

static void describe(struct reading *r, struct mc_nvme_command *commands, size_t first) {
    uint64_t stream = nvmekv_stream_bytes(r->entry.key_len, r->entry.size);
    uint32_t piece_bytes = nvmekv_piece_bytes(&r->entry);
    r->first = first;
    for (uint32_t p = 0; p < r->pieces; p++) {
        struct nvmekv_key key = {r->entry.hash, nvmekv_generation(&r->entry), p};
        if (p == 0) {
            key = nvmekv_root_of(r->read->key);
        }
        commands[first + p] =
            nvmekv_command(NVMEKV_RETRIEVE, &key, (char *)r->read->room + (uint64_t)p * piece_bytes,
                           nvmekv_piece_len(stream, piece_bytes, p));
    }
    r->read->value = (char *)r->read->room + NVMEKV_HEAD + r->entry.key_len;
}

static enum mc_status verify(const struct reading *r, const struct mc_nvme_command *commands) {
    struct nvmekv_head head;
    struct mc_str key;
    bool ours;
    for (uint32_t p = 0; p < r->pieces; p++) {
        const struct mc_nvme_command *c = &commands[r->first + p];
        if (c->status == MC_NVME_NO_SUCH_KEY) {
            return MC_CHECKSUM_MISMATCH; /* a part of it is gone */
        }
        if (c->status != MC_NVME_OK) {
            return MC_FILE_READ_FAIL;
        }
        if (c->result != c->len) {
            return MC_CHECKSUM_MISMATCH; /* shorter or longer than it was written */
        }
    }
    bool good =
        nvmekv_head_decode(r->read->room, NVMEKV_HEAD + r->read->key.len, &head, &key, &ours) &&
        mc_str_eq(key, r->read->key) && head.size == r->entry.size &&
        head.generation == nvmekv_generation(&r->entry) && head.crc == r->entry.crc &&
        mc_tier_crc(r->read->value, r->read->size) == r->entry.crc;
    return good ? MC_OK : MC_CHECKSUM_MISMATCH;
}

/* What was read may be of another entry: the object was replaced meanwhile, or is just now. */
static bool entry_changes(struct nvmekv_backend *b, const struct reading *r) {
    pthread_mutex_lock(&b->face.lock);
    const struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, r->read->key);
    bool changes = e == NULL || e->seq != r->entry.seq || e->users > 0;
    pthread_mutex_unlock(&b->face.lock);
    return changes;
}

/* One run for all that have pieces to read. */
static void read_group(struct nvmekv_backend *b, struct reading *all, size_t count) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        n += all[i].pieces;
    }
    struct mc_nvme_command *commands = mc_alloc((n + 1) * sizeof(*commands));
    n = 0;
    for (size_t i = 0; i < count; i++) {
        if (all[i].pieces > 0) {
            describe(&all[i], commands, n);
            n += all[i].pieces;
        }
    }
    mc_nvme_run(b->nvme, commands, n);
    for (size_t i = 0; i < count; i++) {
        if (all[i].pieces > 0) {
            all[i].read->status = verify(&all[i], commands);
        }
    }
    free(commands);
}

/* Deletes what is broken and in the index no more, unless the root is a new object's by now. */
static void delete_broken(struct nvmekv_backend *b, struct mc_tier_entry *e) {
    pthread_mutex_lock(&b->put_lock);
    pthread_mutex_lock(&b->face.lock);
    bool replaced = mc_tier_index_find_hash(&b->face.index, e->hash) != NULL;
    pthread_mutex_unlock(&b->face.lock);
    (void)nvmekv_delete(b, e, replaced ? 1 : 0); /* what stays is found by the next start */
    pthread_mutex_unlock(&b->put_lock);
    free(e);
}

/* Counts; forgets what is broken. */
static void settle(struct nvmekv_backend *b, const struct reading *r, struct mc_buf *lost) {
    struct mc_tier_entry *broken = NULL;
    pthread_mutex_lock(&b->face.lock);
    struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, r->read->key);
    bool same = e != NULL && e->seq == r->entry.seq;
    if (r->read->status == MC_OK && !r->read->unused) {
        b->stats.read_objects++;
        b->stats.read_bytes += r->read->size;
        mc_tier_order_read(&b->order, &r->entry.hash, same && e->users == 0 ? 1 : 0);
    } else if (r->read->status == MC_FILE_READ_FAIL) {
        b->stats.failed_reads++;
    } else if (r->read->status == MC_CHECKSUM_MISMATCH && same) {
        mc_error("an object on the SSD tier is not what was written: device=%s bytes=%llu",
                 b->config->device, (unsigned long long)r->read->size);
        b->stats.broken_objects++;
        mc_tier_lost_add(lost, r->read->key);
        nvmekv_drop_locked(b, e);
        broken = e->users == 0 ? e : NULL; /* else a put is about to replace it, and frees it */
    }
    pthread_mutex_unlock(&b->face.lock);
    if (broken != NULL) {
        delete_broken(b, broken);
    }
}

void nvmekv_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count) {
    struct nvmekv_backend *b = (struct nvmekv_backend *)face;
    struct reading *all = mc_zalloc((count + 1) * sizeof(*all));
    struct mc_buf lost = {0};
    for (size_t i = 0; i < count; i++) {
        all[i].read = &reads[i];
        look_up(b, &all[i]);
    }
    read_group(b, all, count);
    for (size_t i = 0; i < count; i++) {
        bool looked = all[i].pieces > 0;
        if (looked && reads[i].status != MC_OK && entry_changes(b, &all[i])) {
            pthread_mutex_lock(&b->put_lock);
            look_up(b, &all[i]);
            read_group(b, &all[i], 1);
            pthread_mutex_unlock(&b->put_lock);
        }
        if (looked) {
            settle(b, &all[i], &lost);
        }
    }
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
    free(all);
}
