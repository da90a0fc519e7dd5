/* See client/hot_cache.h. Entries are in a table of chains and in a list by last use; one that is
 * dropped while somebody copies from it lives until he puts it back. */
#include "client/hot_cache.h"

#include <pthread.h>

#define BUCKETS      4096u
#define SKETCH_ROWS  4u
#define SKETCH_SLOTS 4096u
#define SKETCH_MAX   (8u * SKETCH_SLOTS) /* reads, then all counts are halved */

struct mc_hot_entry {
    struct mc_hot_entry *next; /* in the bucket */
    struct mc_list link;       /* the least recently used first */
    uint64_t hash, version, length, charge;
    uint32_t users; /* copying from it now */
    bool dropped;
    uint32_t key_len;
    uint8_t bytes[]; /* the value, then the key */
};

struct mc_hot_cache {
    struct mc_hot_config config;
    struct mc_hot_counters counters;
    pthread_mutex_t lock; /* guards what follows */
    struct mc_list entries;
    uint64_t used;
    uint32_t reads;
    uint8_t sketch[SKETCH_ROWS][SKETCH_SLOTS];
    struct mc_hot_entry *buckets[BUCKETS];
};

struct mc_hot_cache *mc_hot_create(const struct mc_hot_config *config) {
    struct mc_hot_cache *cache = mc_zalloc(sizeof(*cache));
    cache->config = *config;
    pthread_mutex_init(&cache->lock, NULL);
    mc_list_init(&cache->entries);
    return cache;
}

struct mc_hot_counters *mc_hot_counters(struct mc_hot_cache *cache) {
    return &cache->counters;
}

static struct mc_hot_entry **find_locked(struct mc_hot_cache *cache, uint64_t hash,
                                         struct mc_str key) {
    struct mc_hot_entry **at = &cache->buckets[hash % BUCKETS];
    while (*at != NULL && ((*at)->hash != hash || (*at)->key_len != key.len ||
                           memcmp((*at)->bytes + (*at)->length, key.ptr, key.len) != 0)) {
        at = &(*at)->next;
    }
    return at;
}

static void drop_locked(struct mc_hot_cache *cache, struct mc_hot_entry **at) {
    struct mc_hot_entry *entry = *at;
    *at = entry->next;
    mc_list_del(&entry->link);
    cache->used -= entry->charge;
    mc_metric_add(&cache->counters.bytes, -(int64_t)entry->charge);
    if (entry->users > 0) {
        entry->dropped = true;
    } else {
        free(entry);
    }
}

static void drop_oldest_locked(struct mc_hot_cache *cache) {
    struct mc_hot_entry *oldest = mc_container_of(cache->entries.next, struct mc_hot_entry, link);
    struct mc_hot_entry **at = &cache->buckets[oldest->hash % BUCKETS];
    while (*at != oldest) {
        at = &(*at)->next;
    }
    drop_locked(cache, at);
}

void mc_hot_destroy(struct mc_hot_cache *cache) {
    if (cache == NULL) {
        return;
    }
    while (!mc_list_empty(&cache->entries)) {
        drop_oldest_locked(cache);
    }
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

struct mc_hot_entry *mc_hot_get(struct mc_hot_cache *cache, struct mc_str key, uint64_t version,
                                const uint8_t **bytes, uint64_t *length) {
    uint64_t hash = mc_hash64(key.ptr, key.len, 0);
    pthread_mutex_lock(&cache->lock);
    struct mc_hot_entry **at = find_locked(cache, hash, key), *entry = *at;
    if (entry != NULL && entry->version != version) { /* versions do not come back */
        drop_locked(cache, at);
        entry = NULL;
    }
    if (entry != NULL) {
        entry->users++;
        mc_list_del(&entry->link);
        mc_list_push_back(&cache->entries, &entry->link);
        *bytes = entry->bytes;
        *length = entry->length;
    }
    pthread_mutex_unlock(&cache->lock);
    mc_metric_add(entry != NULL ? &cache->counters.hits : &cache->counters.misses, 1);
    return entry;
}

void mc_hot_put(struct mc_hot_cache *cache, struct mc_hot_entry *entry) {
    pthread_mutex_lock(&cache->lock);
    bool last = --entry->users == 0 && entry->dropped;
    pthread_mutex_unlock(&cache->lock);
    if (last) {
        free(entry);
    }
}

void mc_hot_drop(struct mc_hot_cache *cache, struct mc_str key, uint64_t version) {
    pthread_mutex_lock(&cache->lock);
    struct mc_hot_entry **at = find_locked(cache, mc_hash64(key.ptr, key.len, 0), key);
    if (*at != NULL && (*at)->version == version) {
        drop_locked(cache, at);
    }
    pthread_mutex_unlock(&cache->lock);
}

/* Counts the read; true when there have been enough lately. */
static bool admit_locked(struct mc_hot_cache *cache, uint64_t hash) {
    uint32_t least = UINT32_MAX;
    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        uint64_t mixed = (hash ^ (row * 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
        uint8_t *count = &cache->sketch[row][mixed >> 52];
        *count += *count < UINT8_MAX;
        least = *count < least ? *count : least;
    }
    if (++cache->reads >= SKETCH_MAX) {
        cache->reads /= 2;
        for (unsigned row = 0; row < SKETCH_ROWS; row++) {
            for (unsigned i = 0; i < SKETCH_SLOTS; i++) {
                cache->sketch[row][i] /= 2;
            }
        }
    }
    return least >= cache->config.admission;
}
_Static_assert(SKETCH_SLOTS == 1u << 12, "12 bits of the hash");

static struct mc_hot_entry *copy(uint64_t hash, struct mc_str key, uint64_t version,
                                 const struct mc_slice *slices, size_t count, uint64_t length) {
    size_t size = sizeof(struct mc_hot_entry) + length + key.len;
    struct mc_hot_entry *entry = malloc(size);
    if (entry == NULL) {
        return NULL; /* a cache is no reason to end the process */
    }
    *entry = (struct mc_hot_entry){.hash = hash,
                                   .version = version,
                                   .length = length,
                                   .charge = size,
                                   .key_len = (uint32_t)key.len};
    uint64_t done = 0;
    for (size_t i = 0; i < count && done < length; i++) {
        uint64_t part = mc_min_u64(slices[i].length, length - done);
        if (part > 0) {
            memcpy(entry->bytes + done, slices[i].ptr, part);
            done += part;
        }
    }
    memcpy(entry->bytes + length, key.ptr, key.len);
    return entry;
}

void mc_hot_offer(struct mc_hot_cache *cache, struct mc_str key, uint64_t version,
                  const struct mc_slice *slices, size_t count, uint64_t length) {
    uint64_t hash = mc_hash64(key.ptr, key.len, 0);
    uint64_t charge = sizeof(struct mc_hot_entry) + length + key.len;
    if (length > cache->config.largest_bytes || charge > cache->config.bytes) {
        return;
    }
    pthread_mutex_lock(&cache->lock);
    struct mc_hot_entry *known = *find_locked(cache, hash, key);
    bool wanted = (known == NULL || known->version != version) && admit_locked(cache, hash);
    pthread_mutex_unlock(&cache->lock);
    struct mc_hot_entry *entry = wanted ? copy(hash, key, version, slices, count, length) : NULL;
    if (entry == NULL) {
        return;
    }
    pthread_mutex_lock(&cache->lock);
    struct mc_hot_entry **at = find_locked(cache, hash, key);
    if (*at != NULL) { /* another version, or somebody was faster */
        drop_locked(cache, at);
    }
    int64_t evicted = 0;
    for (; cache->used + charge > cache->config.bytes; evicted++) {
        drop_oldest_locked(cache);
    }
    entry->next = cache->buckets[hash % BUCKETS];
    cache->buckets[hash % BUCKETS] = entry;
    mc_list_push_back(&cache->entries, &entry->link);
    cache->used += charge;
    pthread_mutex_unlock(&cache->lock);
    mc_metric_add(&cache->counters.bytes, (int64_t)charge);
    mc_metric_add(&cache->counters.fills, 1);
    mc_metric_add(&cache->counters.evictions, evicted);
}
