/* A chained hash table that doubles. See tier/index.h. */
#include "tier/index.h"

#include <isa-l/crc.h>

#define FIRST_BUCKETS 1024u
#define CRC_STEP      (1u << 30) /* the library counts in int */

uint32_t mc_tier_crc(const void *bytes, uint64_t len) {
    return mc_tier_crc_more(0, bytes, len);
}

uint32_t mc_tier_crc_more(uint32_t crc, const void *bytes, uint64_t len) {
    unsigned char *at = (unsigned char *)(uintptr_t)bytes; /* it is only read */
    for (uint64_t step; len > 0; at += step, len -= step) {
        step = mc_min_u64(len, CRC_STEP);
        crc = crc32_iscsi(at, (int)step, crc);
    }
    return crc;
}

struct mc_tier_entry *mc_tier_entry_make(struct mc_str key) {
    struct mc_tier_entry *e = mc_zalloc(sizeof(*e) + key.len);
    memcpy(e->key, key.ptr, key.len);
    e->key_len = (uint32_t)key.len;
    e->hash = mc_hash64(key.ptr, key.len, 0);
    return e;
}

struct mc_tier_entry *mc_tier_index_find(const struct mc_tier_index *index, struct mc_str key) {
    if (index->buckets == NULL) {
        return NULL;
    }
    uint64_t hash = mc_hash64(key.ptr, key.len, 0);
    struct mc_tier_entry *e = index->buckets[hash & index->mask];
    while (e != NULL && (e->hash != hash || !mc_str_eq(mc_tier_entry_key(e), key))) {
        e = e->next;
    }
    return e;
}

struct mc_tier_entry *mc_tier_index_find_hash(const struct mc_tier_index *index, uint64_t hash) {
    struct mc_tier_entry *e = index->buckets != NULL ? index->buckets[hash & index->mask] : NULL;
    while (e != NULL && e->hash != hash) {
        e = e->next;
    }
    return e;
}

/* The cursor: the number of a bucket, and how many of its entries were given already. */
#define CURSOR_BITS 8

struct mc_tier_entry *mc_tier_index_next(const struct mc_tier_index *index, uint64_t *cursor) {
    uint64_t at = *cursor >> CURSOR_BITS, skip = *cursor & ((1u << CURSOR_BITS) - 1);
    for (; index->buckets != NULL && at <= index->mask; at++, skip = 0) {
        struct mc_tier_entry *e = index->buckets[at];
        for (uint64_t i = 0; i < skip && e != NULL; i++) {
            e = e->next;
        }
        if (e != NULL && skip + 1 < 1u << CURSOR_BITS) {
            *cursor = (at << CURSOR_BITS) + skip + 1;
            return e;
        }
    }
    *cursor = 0;
    return NULL;
}

static void grow(struct mc_tier_index *index) {
    size_t buckets = index->buckets == NULL ? FIRST_BUCKETS : 2 * (index->mask + 1);
    struct mc_tier_entry **bigger = mc_zalloc(buckets * sizeof(struct mc_tier_entry *));
    for (size_t i = 0; index->buckets != NULL && i <= index->mask; i++) {
        for (struct mc_tier_entry *e = index->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            e->next = bigger[e->hash & (buckets - 1)];
            bigger[e->hash & (buckets - 1)] = e;
        }
    }
    free(index->buckets);
    index->buckets = bigger;
    index->mask = buckets - 1;
}

struct mc_tier_entry *mc_tier_index_insert(struct mc_tier_index *index,
                                           struct mc_tier_entry *entry) {
    struct mc_tier_entry *old = mc_tier_index_find(index, mc_tier_entry_key(entry));
    if (old != NULL) {
        mc_tier_index_remove(index, old);
    }
    if (index->buckets == NULL || index->count > index->mask) {
        grow(index);
    }
    struct mc_tier_entry **at = &index->buckets[entry->hash & index->mask];
    entry->next = *at;
    *at = entry;
    entry->live = true;
    index->count++;
    return old;
}

void mc_tier_index_remove(struct mc_tier_index *index, struct mc_tier_entry *entry) {
    struct mc_tier_entry **at = &index->buckets[entry->hash & index->mask];
    while (*at != entry) {
        MC_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = entry->next;
    entry->live = false;
    index->count--;
}

void mc_tier_index_free(struct mc_tier_index *index) {
    free(index->buckets);
    *index = (struct mc_tier_index){0};
}

void mc_tier_index_free_all(struct mc_tier_index *index) {
    for (size_t i = 0; index->buckets != NULL && i <= index->mask; i++) {
        for (struct mc_tier_entry *e = index->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            free(e);
        }
    }
    mc_tier_index_free(index);
}
