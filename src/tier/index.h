/*
 * Which key lies where in a tier: a hash table of entries that a backend's files own. Private to
 * the room. Not thread safe: the backend's lock guards it.
 */
#ifndef MC_TIER_INDEX_H
#define MC_TIER_INDEX_H

#include "base/base.h"

struct mc_tier_entry {
    struct mc_tier_entry *next; /* in the hash bucket */
    void *file;                 /* the backend's */
    uint64_t hash;
    uint64_t offset; /* of the record, which begins with the key */
    uint64_t size;   /* of the value */
    uint64_t tag;    /* the caller's; 0 = none */
    uint64_t disk;   /* bytes that it alone takes on disk; 0 where it shares a file */
    uint64_t seq;    /* tells this entry from an earlier one of the same key */
    uint32_t crc;    /* CRC-32C of the value */
    uint32_t key_len;
    uint32_t users; /* readers of a place that is not given away before they are done */
    bool has_crc;
    bool live; /* in the index; else a newer one has its place, or it was removed */
    char key[];
};

struct mc_tier_index {
    struct mc_tier_entry **buckets;
    size_t mask; /* buckets - 1; 0 = none yet */
    size_t count;
};

/* CRC-32C without the inversions of the standard: of the whole from 0, and of pieces. */
uint32_t mc_tier_crc(const void *bytes, uint64_t len);
uint32_t mc_tier_crc_more(uint32_t crc, const void *bytes, uint64_t len);
struct mc_tier_entry *mc_tier_entry_make(struct mc_str key);
static inline struct mc_str mc_tier_entry_key(const struct mc_tier_entry *e) {
    return (struct mc_str){e->key, e->key_len};
}
struct mc_tier_entry *mc_tier_index_find(const struct mc_tier_index *index, struct mc_str key);
struct mc_tier_entry *mc_tier_index_find_hash(const struct mc_tier_index *index, uint64_t hash);
/* Walks the table: each call gives another entry and moves the cursor, which starts at 0; NULL and
 * 0 again at the end. The table may change between calls: then some entries come twice or not. */
struct mc_tier_entry *mc_tier_index_next(const struct mc_tier_index *index, uint64_t *cursor);
/* The entry that had the key until now, or NULL. */
struct mc_tier_entry *mc_tier_index_insert(struct mc_tier_index *index,
                                           struct mc_tier_entry *entry);
void mc_tier_index_remove(struct mc_tier_index *index, struct mc_tier_entry *entry);
void mc_tier_index_free(struct mc_tier_index *index); /* not the entries */
void mc_tier_index_free_all(struct mc_tier_index *index);

#endif
