/*
 * The backend `NVMe KV`: objects in a namespace of the NVMe Key Value command set, which has no
 * blocks: values up to some hundred KiB under keys up to 16 bytes. Upstream's
 * nvme_kv_storage_backend; how objects lie on the device is our own.
 *
 * An object is a stream (head, key, value, zeros up to a whole unit) cut into pieces. Piece 0, the
 * root, is stored under a hash of the key, and holds the key itself, which every read compares. The
 * others are stored under that hash and the number of this very put, which the root names. They are
 * written first and made durable; then the root, which replaces that of an earlier object of the
 * key. So an object is there after a crash exactly when its root is, and it is the old or the new
 * one; pieces that no root names are found at the start, by listing all keys, and deleted.
 *
 * Two keys whose hashes are alike in 64 bits cannot be told apart by the index: the later one drops
 * the earlier.
 *
 * Invariant: used_bytes is the sum of `disk` over the entries in the index.
 */
#include "tier/nvmekv.h"

#include "base/log.h"

#define MAGIC "MCKVOBJ1"

/* ---- the format ---- */

struct raw_head {
    char magic[8];
    uint64_t size, tag;
    uint32_t key_len, crc, generation, piece_bytes;
    uint32_t head_crc; /* of all this, without itself, and the key */
    char zero[NVMEKV_HEAD - 44];
};
_Static_assert(sizeof(struct raw_head) == NVMEKV_HEAD, "no holes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers lie as they are in memory");

struct nvmekv_key nvmekv_root_of(struct mc_str key) {
    return (struct nvmekv_key){.hash = mc_hash64(key.ptr, key.len, 0),
                               .tag = (uint32_t)mc_hash64(key.ptr, key.len, 1)};
}

struct nvmekv_key nvmekv_piece_of(const struct mc_tier_entry *e, uint32_t piece) {
    return piece == 0 ? nvmekv_root_of(mc_tier_entry_key(e))
                      : (struct nvmekv_key){e->hash, nvmekv_generation(e), piece};
}

struct mc_nvme_command nvmekv_command(uint8_t opcode, const struct nvmekv_key *key, void *buffer,
                                      uint32_t len) {
    struct mc_nvme_command command = {.opcode = opcode, .buffer = buffer, .len = len, .cdw10 = len};
    if (key != NULL) {
        uint32_t words[4];
        memcpy(words, key, sizeof(words));
        command.cdw2 = words[0];
        command.cdw3 = words[1];
        command.cdw14 = words[2];
        command.cdw15 = words[3];
        command.cdw11 = sizeof(*key);
    }
    return command;
}

static uint32_t head_crc(struct raw_head raw, struct mc_str key) {
    raw.head_crc = 0;
    return mc_tier_crc_more(mc_tier_crc(&raw, sizeof(raw)), key.ptr, key.len);
}

void nvmekv_head_encode(const struct nvmekv_head *head, struct mc_str key, char *out) {
    struct raw_head raw = {.size = head->size,
                           .tag = head->tag,
                           .key_len = head->key_len,
                           .crc = head->crc,
                           .generation = head->generation,
                           .piece_bytes = head->piece_bytes};
    memcpy(raw.magic, MAGIC, sizeof(raw.magic));
    raw.head_crc = head_crc(raw, key);
    memcpy(out, &raw, sizeof(raw));
    memcpy(out + sizeof(raw), key.ptr, key.len);
}

bool nvmekv_head_decode(const char *bytes, uint64_t len, struct nvmekv_head *head,
                        struct mc_str *key, bool *ours) {
    struct raw_head raw;
    *ours = len >= sizeof(raw) && memcmp(bytes, MAGIC, sizeof(raw.magic)) == 0;
    if (!*ours) {
        return false;
    }
    memcpy(&raw, bytes, sizeof(raw));
    if (raw.key_len == 0 || raw.key_len > len - sizeof(raw) || raw.size == 0 ||
        raw.size > INT64_MAX / 2 || raw.piece_bytes == 0 || raw.piece_bytes % MC_TIER_BLOCK != 0 ||
        raw.key_len + sizeof(raw) > raw.piece_bytes ||
        raw.size / raw.piece_bytes >= UINT32_MAX - 1) {
        return false;
    }
    *key = (struct mc_str){bytes + sizeof(raw), raw.key_len};
    *head = (struct nvmekv_head){.size = raw.size,
                                 .tag = raw.tag,
                                 .key_len = raw.key_len,
                                 .crc = raw.crc,
                                 .generation = raw.generation,
                                 .piece_bytes = raw.piece_bytes};
    return head_crc(raw, *key) == raw.head_crc;
}

/* ---- entries ---- */

void nvmekv_publish_locked(struct nvmekv_backend *b, struct mc_tier_entry *entry) {
    entry->seq = ++b->next_seq;
    b->used_bytes += entry->disk;
    struct mc_tier_entry *old = mc_tier_index_insert(&b->face.index, entry);
    MC_ASSERT(old == NULL); /* the caller has taken it out, for its pieces */
}

void nvmekv_drop_locked(struct nvmekv_backend *b, struct mc_tier_entry *entry) {
    b->used_bytes -= entry->disk;
    mc_tier_index_remove(&b->face.index, entry);
    mc_tier_order_removed(&b->order, entry->hash);
}

bool nvmekv_flush(struct nvmekv_backend *b) {
    struct mc_nvme_command flush = nvmekv_command(NVMEKV_FLUSH, NULL, NULL, 0);
    mc_nvme_run(b->nvme, &flush, 1);
    if (flush.status != MC_NVME_OK) {
        mc_error("the SSD tier cannot be flushed: device=%s status=0x%x", b->config->device,
                 (unsigned)flush.status);
    }
    return flush.status == MC_NVME_OK;
}

bool nvmekv_delete(struct nvmekv_backend *b, const struct mc_tier_entry *e, uint32_t from) {
    uint32_t pieces =
        nvmekv_pieces(nvmekv_stream_bytes(e->key_len, e->size), nvmekv_piece_bytes(e));
    struct mc_nvme_command commands[NVMEKV_GROUP];
    bool good = true;
    for (uint32_t done = from, n; done < pieces; done += n) {
        n = (uint32_t)mc_min_u64(pieces - done, NVMEKV_GROUP);
        for (uint32_t i = 0; i < n; i++) {
            struct nvmekv_key key = nvmekv_piece_of(e, done + i);
            commands[i] = nvmekv_command(NVMEKV_DELETE, &key, NULL, 0);
        }
        mc_nvme_run(b->nvme, commands, n);
        for (uint32_t i = 0; i < n; i++) { /* a piece that stays is found by the next start */
            bool gone =
                commands[i].status == MC_NVME_OK || commands[i].status == MC_NVME_NO_SUCH_KEY;
            good = good && (gone || done + i > 0);
        }
    }
    if (!good && b->ghost_count < NVMEKV_GHOSTS) {
        b->ghosts[b->ghost_count++] = (struct nvmekv_ghost){e->hash, nvmekv_piece_of(e, 0)};
    } else if (!good) {
        pthread_mutex_lock(&b->face.lock);
        b->haunted = true;
        pthread_mutex_unlock(&b->face.lock);
    }
    return good;
}

/* A few of them, the oldest: a device that does not answer costs each its time, and puts and
 * removals wait meanwhile. What is kept goes behind the others. A root that a put has replaced
 * meanwhile haunts nobody. Needs put_lock. */
static void lay_ghosts(struct nvmekv_backend *b) {
    struct nvmekv_ghost again[NVMEKV_GHOSTS_LAID];
    unsigned kept = 0, count = (unsigned)mc_min_u64(b->ghost_count, NVMEKV_GHOSTS_LAID);
    for (unsigned i = 0; i < count; i++) {
        const struct nvmekv_ghost *ghost = &b->ghosts[i];
        pthread_mutex_lock(&b->face.lock);
        bool gone = mc_tier_index_find_hash(&b->face.index, ghost->hash) != NULL;
        pthread_mutex_unlock(&b->face.lock);
        if (!gone) {
            struct mc_nvme_command command = nvmekv_command(NVMEKV_DELETE, &ghost->root, NULL, 0);
            mc_nvme_run(b->nvme, &command, 1);
            gone = command.status == MC_NVME_OK || command.status == MC_NVME_NO_SUCH_KEY;
        }
        if (!gone) {
            again[kept++] = *ghost;
        }
    }
    b->ghost_count -= count;
    memmove(b->ghosts, b->ghosts + count, b->ghost_count * sizeof(*b->ghosts));
    memcpy(b->ghosts + b->ghost_count, again, kept * sizeof(*again));
    b->ghost_count += kept;
}

/* ---- questions and removals ---- */

/* Needs put_lock. `e` is out of the index, and freed. */
static enum mc_status delete_dropped(struct nvmekv_backend *b, struct mc_tier_entry *e) {
    bool good = nvmekv_delete(b, e, 0);
    if (!good) {
        mc_error("an object of the SSD tier cannot be deleted: device=%s bytes=%llu",
                 b->config->device, (unsigned long long)e->size);
    }
    free(e);
    return good ? MC_OK : MC_FILE_WRITE_FAIL;
}

static enum mc_status nvmekv_remove(struct mc_tier_backend *face, const struct mc_str *keys,
                                    size_t count, size_t *removed) {
    struct nvmekv_backend *b = (struct nvmekv_backend *)face;
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&b->put_lock);
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_lock(&b->face.lock);
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, keys[i]);
        if (e != NULL) {
            nvmekv_drop_locked(b, e);
        }
        pthread_mutex_unlock(&b->face.lock);
        if (e != NULL) {
            enum mc_status one = delete_dropped(b, e);
            status = status == MC_OK ? one : status;
            (*removed)++;
        }
    }
    if (status == MC_OK && *removed > 0 && !nvmekv_flush(b)) {
        status = MC_FILE_WRITE_FAIL;
    }
    pthread_mutex_unlock(&b->put_lock);
    return status;
}

static enum mc_status nvmekv_clear(struct mc_tier_backend *face) {
    struct nvmekv_backend *b = (struct nvmekv_backend *)face;
    enum mc_status status = MC_OK;
    uint64_t cursor = 0;
    pthread_mutex_lock(&b->put_lock);
    for (;;) {
        pthread_mutex_lock(&b->face.lock);
        struct mc_tier_entry *e = mc_tier_index_next(&b->face.index, &cursor);
        if (e != NULL) {
            nvmekv_drop_locked(b, e);
            cursor--; /* the one behind it has moved up */
        }
        pthread_mutex_unlock(&b->face.lock);
        if (e == NULL) {
            break;
        }
        enum mc_status one = delete_dropped(b, e);
        status = status == MC_OK ? one : status;
    }
    status = status == MC_OK && !nvmekv_flush(b) ? MC_FILE_WRITE_FAIL : status;
    pthread_mutex_unlock(&b->put_lock);
    return status;
}

static enum mc_status nvmekv_settle(struct mc_tier_backend *face) {
    struct nvmekv_backend *b = (struct nvmekv_backend *)face;
    pthread_mutex_lock(&b->put_lock);
    lay_ghosts(b);
    bool flushed = nvmekv_flush(b) && b->ghost_count == 0;
    pthread_mutex_unlock(&b->put_lock);
    pthread_mutex_lock(&b->face.lock);
    bool settled = flushed && !b->haunted;
    pthread_mutex_unlock(&b->face.lock);
    return settled ? MC_OK : MC_FILE_WRITE_FAIL;
}

static void nvmekv_stats(struct mc_tier_backend *face, struct mc_tier_stats *out) {
    struct nvmekv_backend *b = (struct nvmekv_backend *)face;
    pthread_mutex_lock(&b->face.lock);
    *out = b->stats;
    out->capacity_bytes = b->capacity;
    out->used_bytes = b->used_bytes;
    out->objects = b->face.index.count;
    out->direct = true; /* there is no page cache before such a device */
    pthread_mutex_unlock(&b->face.lock);
}

/* ---- open and close ---- */

static void nvmekv_close(struct mc_tier_backend *face) {
    struct nvmekv_backend *b = (struct nvmekv_backend *)face;
    mc_tier_index_free_all(&b->face.index);
    mc_tier_order_fini(&b->order);
    mc_nvme_close(b->nvme);
    free(b->staging);
    pthread_mutex_destroy(&b->put_lock);
    pthread_mutex_destroy(&b->face.lock);
    free(b);
}

static enum mc_status nvmekv_open(const struct mc_tier_config *config,
                                  struct mc_tier_backend **out) {
    uint32_t piece = config->device_value_bytes != 0 ? config->device_value_bytes : NVMEKV_PIECE;
    if (config->device == NULL || piece < MC_TIER_BLOCK || piece > NVMEKV_STAGING) {
        mc_error("the backend %s needs a device, and values of %u to %u bytes: device=%s bytes=%u",
                 config->backend, MC_TIER_BLOCK, NVMEKV_STAGING,
                 config->device != NULL ? config->device : "", piece);
        return MC_INVALID_PARAMS;
    }
    struct nvmekv_backend *b = mc_zalloc(sizeof(*b));
    b->config = config;
    b->capacity = config->capacity_bytes != 0 ? config->capacity_bytes : INT64_MAX;
    b->piece_bytes = piece / MC_TIER_BLOCK * MC_TIER_BLOCK;
    pthread_mutex_init(&b->face.lock, NULL);
    pthread_mutex_init(&b->put_lock, NULL);
    mc_tier_order_init(&b->order, config->eviction);
    b->staging = aligned_alloc(MC_TIER_BLOCK, NVMEKV_STAGING);
    MC_ASSERT(b->staging != NULL);
    enum mc_status status = mc_nvme_open(config->device, config->device_nsid, config->depth,
                                         config->device_road, &b->nvme);
    status = status == MC_OK ? nvmekv_recover(b) : status;
    if (status != MC_OK) {
        nvmekv_close(&b->face);
        return status;
    }
    mc_info("SSD tier: device=%s backend=%s objects=%zu used_bytes=%llu by=%s", config->device,
            config->backend, b->face.index.count, (unsigned long long)b->used_bytes,
            mc_nvme_uses_uring(b->nvme) ? "io_uring" : "ioctl");
    *out = &b->face;
    return MC_OK;
}

const struct mc_tier_backend_ops mc_tier_nvmekv = {
    .name = "nvme_kv_storage_backend",
    .open = nvmekv_open,
    .close = nvmekv_close,
    .put = nvmekv_put,
    .read = nvmekv_read,
    .remove = nvmekv_remove,
    .clear = nvmekv_clear,
    .settle = nvmekv_settle,
    .stats = nvmekv_stats,
};
