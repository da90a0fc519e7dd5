/*
 * Opening an NVMe KV namespace: all keys are listed, the heads of the roots are read, and what is
 * not whole is deleted: a root without all its pieces, pieces that no root names. Values that are
 * not ours are left alone. See tier/nvmekv.c.
 */
#include "tier/nvmekv.h"

#include <stdlib.h>

#include "base/log.h"

#define LIST_BYTES (64u << 10)
#define HEAD_BYTES MC_TIER_BLOCK /* read of a root; more when the key is longer */

struct keys {
    struct nvmekv_key *items;
    size_t count, capacity;
};

struct scan {
    struct nvmekv_backend *b;
    struct keys roots, pieces;
    size_t foreign, dropped;
};

static void keys_add(struct keys *keys, const struct nvmekv_key *key) {
    if (keys->count == keys->capacity) {
        keys->capacity = keys->capacity > 0 ? 2 * keys->capacity : 1024;
        keys->items = mc_realloc(keys->items, keys->capacity * sizeof(*keys->items));
    }
    keys->items[keys->count++] = *key;
}

/* ---- listing ---- */

/* A page: how many keys (4 bytes), then of each its length (2 bytes), its bytes, and zeros up to a
 * whole word. It begins with the key that was asked for. Returns the keys that are new, or -1. */
static int take_page(struct scan *s, const char *page, struct nvmekv_key *last, bool first) {
    uint32_t count, fresh = 0;
    uint64_t at = sizeof(count);
    struct nvmekv_key begin = *last;
    memcpy(&count, page, sizeof(count));
    for (uint32_t i = 0; i < count; i++) {
        uint16_t len;
        struct nvmekv_key key;
        if (!mc_range_inside(at, sizeof(len), 0, LIST_BYTES)) {
            return -1;
        }
        memcpy(&len, page + at, sizeof(len));
        at += sizeof(len);
        if (len > sizeof(key) || !mc_range_inside(at, len, 0, LIST_BYTES)) {
            return -1;
        }
        if (len == sizeof(key)) {
            memcpy(&key, page + at, sizeof(key));
            if (first || memcmp(&key, &begin, sizeof(key)) != 0) {
                keys_add(key.piece == 0 ? &s->roots : &s->pieces, &key);
                *last = key;
                fresh++;
            }
        } else { /* only somebody else's is shorter */
            s->foreign++;
        }
        at = (at + len + 3) / 4 * 4;
    }
    return (int)fresh;
}

static enum mc_status list_all(struct scan *s) {
    char *page = aligned_alloc(MC_TIER_BLOCK, LIST_BYTES);
    struct nvmekv_key last = {0};
    enum mc_status status = MC_OK;
    MC_ASSERT(page != NULL);
    for (int fresh = 1; fresh > 0;) {
        bool first = s->roots.count + s->pieces.count == 0;
        struct mc_nvme_command list =
            nvmekv_command(NVMEKV_LIST, first ? NULL : &last, page, LIST_BYTES);
        memset(page, 0, LIST_BYTES);
        mc_nvme_run(s->b->nvme, &list, 1);
        if (first && list.status == MC_NVME_KEY_SIZE) { /* it wants a key: the smallest */
            list = nvmekv_command(NVMEKV_LIST, &last, page, LIST_BYTES);
            mc_nvme_run(s->b->nvme, &list, 1);
        }
        fresh = list.status == MC_NVME_OK ? take_page(s, page, &last, first) : -1;
        if (list.status == MC_NVME_NO_SUCH_KEY && first) {
            break; /* nothing is there */
        }
        if (fresh < 0) {
            mc_error("the keys of an NVMe device cannot be listed: device=%s status=0x%x",
                     s->b->config->device, (unsigned)list.status);
            status = MC_FILE_READ_FAIL;
        }
    }
    free(page);
    return status;
}

/* ---- roots ---- */

/* The root is deleted; its pieces are, too, because no root names them any more. */
static void drop_root(struct scan *s, const struct nvmekv_key *key) {
    struct mc_nvme_command command = nvmekv_command(NVMEKV_DELETE, key, NULL, 0);
    mc_nvme_run(s->b->nvme, &command, 1);
    s->b->haunted = s->b->haunted || command.status != MC_NVME_OK;
    s->dropped++;
}

static bool add_entry(struct scan *s, const struct nvmekv_key *root, const struct nvmekv_head *head,
                      struct mc_str key) {
    struct nvmekv_backend *b = s->b;
    struct nvmekv_key should = nvmekv_root_of(key);
    if (memcmp(&should, root, sizeof(should)) != 0 ||
        mc_tier_index_find_hash(&b->face.index, root->hash) != NULL) {
        return false;
    }
    struct mc_tier_entry *e = mc_tier_entry_make(key);
    e->size = head->size;
    e->tag = head->tag;
    e->crc = head->crc;
    e->has_crc = true;
    e->offset = head->generation | (uint64_t)head->piece_bytes << 32;
    e->disk = nvmekv_stream_bytes(e->key_len, e->size);
    nvmekv_publish_locked(b, e);
    return true;
}

static void take_root(struct scan *s, const struct nvmekv_key *root,
                      struct mc_nvme_command *command) {
    struct nvmekv_head head;
    struct mc_str key;
    bool ours = false, good = false;
    uint64_t got = mc_min_u64(command->result, command->len);
    if (command->status == MC_NVME_OK) {
        good = nvmekv_head_decode(command->buffer, got, &head, &key, &ours);
    }
    if (ours && !good && command->len < NVMEKV_STAGING && command->result > command->len) {
        /* the key may be longer than what was read */
        *command = nvmekv_command(NVMEKV_RETRIEVE, root, s->b->staging,
                                  (uint32_t)mc_min_u64(command->result, NVMEKV_STAGING));
        mc_nvme_run(s->b->nvme, command, 1);
        good = command->status == MC_NVME_OK &&
               nvmekv_head_decode(command->buffer, command->len, &head, &key, &ours);
    }
    if (good) {
        uint64_t stream = nvmekv_stream_bytes(key.len, head.size);
        good = command->result == nvmekv_piece_len(stream, head.piece_bytes, 0) &&
               add_entry(s, root, &head, key);
    }
    if (!good && ours) {
        drop_root(s, root);
    }
    s->b->haunted = s->b->haunted || command->status != MC_NVME_OK; /* another start may read it */
    s->foreign += !ours;
}

static void read_roots(struct scan *s) {
    struct mc_nvme_command commands[NVMEKV_GROUP];
    char *heads = aligned_alloc(MC_TIER_BLOCK, NVMEKV_GROUP * HEAD_BYTES);
    MC_ASSERT(heads != NULL);
    for (size_t done = 0, n; done < s->roots.count; done += n) {
        n = mc_min_u64(s->roots.count - done, NVMEKV_GROUP);
        for (size_t i = 0; i < n; i++) {
            commands[i] = nvmekv_command(NVMEKV_RETRIEVE, &s->roots.items[done + i],
                                         heads + i * HEAD_BYTES, HEAD_BYTES);
        }
        mc_nvme_run(s->b->nvme, commands, n);
        for (size_t i = 0; i < n; i++) {
            take_root(s, &s->roots.items[done + i], &commands[i]);
        }
    }
    free(heads);
}

/* ---- pieces ---- */

static uint32_t pieces_of(const struct mc_tier_entry *e) {
    return nvmekv_pieces(nvmekv_stream_bytes(e->key_len, e->size), nvmekv_piece_bytes(e));
}

/* An entry's `users` counts its pieces meanwhile. */
static void count_pieces(struct scan *s) {
    for (size_t i = 0; i < s->pieces.count; i++) {
        const struct nvmekv_key *key = &s->pieces.items[i];
        struct mc_tier_entry *e = mc_tier_index_find_hash(&s->b->face.index, key->hash);
        if (e != NULL && nvmekv_generation(e) == key->tag && key->piece < pieces_of(e)) {
            e->users++;
        } else {
            drop_root(s, key);
        }
    }
}

static int by_generation(const void *a, const void *b) {
    const struct mc_tier_entry *x = *(struct mc_tier_entry *const *)a,
                               *y = *(struct mc_tier_entry *const *)b;
    int32_t later = (int32_t)(nvmekv_generation(x) - nvmekv_generation(y)); /* it may wrap */
    return later < 0 ? -1 : later > 0;
}

/* Those that are whole, in the order in which they were put. */
static void order_entries(struct scan *s) {
    struct nvmekv_backend *b = s->b;
    struct mc_tier_entry **all =
        mc_alloc((b->face.index.count + 1) * sizeof(struct mc_tier_entry *));
    size_t count = 0;
    uint64_t cursor = 0;
    for (struct mc_tier_entry *e; (e = mc_tier_index_next(&b->face.index, &cursor)) != NULL;) {
        bool whole = e->users == pieces_of(e) - 1;
        e->users = 0;
        if (whole) {
            all[count++] = e;
            continue;
        }
        nvmekv_drop_locked(b, e);
        cursor--; /* the one behind it has moved up */
        (void)nvmekv_delete(b, e, 0);
        free(e);
        s->dropped++;
    }
    qsort(all, count, sizeof(struct mc_tier_entry *), by_generation);
    for (size_t i = 0; i < count; i++) {
        mc_tier_order_stored(&b->order, &all[i]->hash, 1);
    }
    b->next_generation = count > 0 ? nvmekv_generation(all[count - 1]) + 1 : 1;
    free(all);
}

enum mc_status nvmekv_recover(struct nvmekv_backend *b) {
    struct scan s = {.b = b};
    enum mc_status status = list_all(&s);
    if (status == MC_OK) {
        read_roots(&s);
        count_pieces(&s);
        order_entries(&s);
    }
    if (status == MC_OK && s.foreign + s.dropped > 0) {
        mc_info("an NVMe device had more than whole objects: device=%s dropped=%zu not_ours=%zu",
                b->config->device, s.dropped, s.foreign);
    }
    free(s.roots.items);
    free(s.pieces.items);
    return status;
}
