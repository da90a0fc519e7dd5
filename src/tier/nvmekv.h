/* What the files of the backend `NVMe KV` share. Private to the room; see tier/nvmekv.c. */
#ifndef MC_TIER_NVMEKV_H
#define MC_TIER_NVMEKV_H

#include "io/nvme.h"
#include "tier/common.h"

#define NVMEKV_GROUP   64u          /* objects of a put that are durable together */
#define NVMEKV_STAGING (8u << 20)   /* bytes of pieces that are written at once */
#define NVMEKV_HEAD    64u          /* bytes before the key */
#define NVMEKV_UNIT    512u         /* values are whole ones of these */
#define NVMEKV_PIECE   (264u << 10) /* bytes of a value at most, if nobody says */

/* The command set. */
enum {
    NVMEKV_FLUSH = 0x00,
    NVMEKV_STORE = 0x01,
    NVMEKV_RETRIEVE = 0x02,
    NVMEKV_LIST = 0x06,
    NVMEKV_DELETE = 0x10,
};

/* A key as the device has it. Piece 0 is the root, which the object is there with: its `tag` is
 * more of the hash. The tag of the others is the generation that the root names. */
struct nvmekv_key {
    uint64_t hash;
    uint32_t tag, piece;
};
_Static_assert(sizeof(struct nvmekv_key) == 16, "the longest key that a command holds");

#define NVMEKV_GHOSTS      64u
#define NVMEKV_GHOSTS_LAID 8u /* at once */

struct nvmekv_head {
    uint64_t size, tag;
    uint32_t key_len, crc, generation, piece_bytes;
};

struct nvmekv_backend {
    struct mc_tier_backend face;
    const struct mc_tier_config *config;
    uint64_t capacity;
    uint32_t piece_bytes; /* of new objects */
    struct mc_nvme *nvme;

    pthread_mutex_t put_lock; /* one writer: guards what follows */
    char *staging;
    uint32_t next_generation;
    struct nvmekv_ghost { /* a root that could not be deleted: a start would find it */
        uint64_t hash;
        struct nvmekv_key root;
    } ghosts[NVMEKV_GHOSTS]; /* tried again (nvmekv_settle) */
    unsigned ghost_count;

    /* Guarded by face.lock, which is not held while the device works. */
    struct mc_tier_order order; /* of objects, by hash */
    uint64_t used_bytes, next_seq;
    bool haunted; /* until the next start: what could not be read then, or more ghosts */
    struct mc_tier_stats stats;
};

/* An entry's `offset`: generation and piece_bytes of the object. */
static inline uint32_t nvmekv_generation(const struct mc_tier_entry *e) {
    return (uint32_t)e->offset;
}
static inline uint32_t nvmekv_piece_bytes(const struct mc_tier_entry *e) {
    return (uint32_t)(e->offset >> 32);
}
static inline uint64_t nvmekv_stream_bytes(uint64_t key_len, uint64_t size) {
    return (NVMEKV_HEAD + key_len + size + NVMEKV_UNIT - 1) / NVMEKV_UNIT * NVMEKV_UNIT;
}
/* How many pieces, and how long each is, of a stream of so many bytes. */
static inline uint32_t nvmekv_pieces(uint64_t stream, uint32_t piece_bytes) {
    return (uint32_t)((stream + piece_bytes - 1) / piece_bytes);
}
static inline uint32_t nvmekv_piece_len(uint64_t stream, uint32_t piece_bytes, uint32_t piece) {
    return (uint32_t)mc_min_u64(piece_bytes, stream - (uint64_t)piece * piece_bytes);
}

struct nvmekv_key nvmekv_root_of(struct mc_str key);
struct nvmekv_key nvmekv_piece_of(const struct mc_tier_entry *e, uint32_t piece);
struct mc_nvme_command nvmekv_command(uint8_t opcode, const struct nvmekv_key *key, void *buffer,
                                      uint32_t len);
void nvmekv_head_encode(const struct nvmekv_head *head, struct mc_str key, char *out);
/* False when these `len` bytes are no head with its key; *ours: they were meant to be. */
bool nvmekv_head_decode(const char *bytes, uint64_t len, struct nvmekv_head *head,
                        struct mc_str *key, bool *ours);
/* Deletes pieces [from, pieces) of the object from the device. False when it may come back. */
bool nvmekv_delete(struct nvmekv_backend *b, const struct mc_tier_entry *e, uint32_t from);
bool nvmekv_flush(struct nvmekv_backend *b);

void nvmekv_publish_locked(struct nvmekv_backend *b, struct mc_tier_entry *entry);
/* Takes it out; it, and its pieces, are the caller's affair. Needs the lock. */
void nvmekv_drop_locked(struct nvmekv_backend *b, struct mc_tier_entry *entry);

/* nvmekv_put.c */
void nvmekv_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count);
/* nvmekv_read.c */
void nvmekv_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count);
/* nvmekv_scan.c: lists the namespace; drops what is not whole. */
enum mc_status nvmekv_recover(struct nvmekv_backend *b);

#endif
