/*
 * Listing keys, page by page, without a lease, in bounded memory.
 *
 * Keys are listed in the order of their hashes, which is also the order of the shards; so the
 * cursor is one number, a page needs only the shards that it comes from, and a key that is there
 * during the whole listing is listed exactly once, whatever else comes and goes. A page visits each
 * of its shards once (under the shard's lock, as all that visit every key) and copies only what it
 * returns. Keys of one hash are never parted by the end of a page.
 *
 * Hashes are seeded when the master starts, so a cursor of an earlier one means nothing: it carries
 * a mark of the seed and is refused.
 */
#include "master/core.h"

#include <stdio.h>

#define TIES_MAX 64 /* keys of one hash */

struct found {
    uint64_t hash;
    struct mc_object *object;
};

struct page {
    struct mc_master *m;
    struct mc_str tenant, prefix;
    uint64_t from; /* hashes from here on */
    struct found *found;
    size_t count, capacity;
};

static uint64_t mark_of(const struct mc_master *m) {
    return mc_hash64(&m->hash_seed, sizeof(m->hash_seed), 1);
}

static bool look(void *ctx, struct mc_shard *shard, struct mc_object *o) {
    struct page *page = ctx;
    struct mc_str key = mc_object_key(o);
    if (key.len < page->prefix.len ||
        (page->prefix.len > 0 && memcmp(key.ptr, page->prefix.ptr, page->prefix.len) != 0) ||
        !mc_str_eq(mc_object_tenant(o), page->tenant) || !mc_object_readable(page->m, o)) {
        return true;
    }
    uint64_t hash = mc_object_hash(page->m, o);
    if (hash >= page->from) {
        if (page->count == page->capacity) {
            page->capacity = page->capacity ? page->capacity * 2 : 1024;
            page->found = mc_realloc(page->found, page->capacity * sizeof(*page->found));
        }
        page->found[page->count++] = (struct found){hash, o};
    }
    return true;
}

static int by_hash(const void *a, const void *b) {
    const struct found *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

/* Copies what was found in the shard, in order, until the page is full; true when all of it went
 * in. Needs the shard's lock. */
static bool copy_locked(struct page *page, struct mc_arena *arena, size_t limit,
                        struct mc_str *keys, size_t *count, size_t *bytes) {
    if (page->count > 0) {
        qsort(page->found, page->count, sizeof(*page->found), by_hash);
    }
    for (size_t i = 0; i < page->count; i++) {
        bool tied = i > 0 && page->found[i].hash == page->found[i - 1].hash;
        MC_ASSERT(*count < limit + TIES_MAX); /* of a seeded 64-bit hash */
        if (!tied && (*count >= limit || *bytes >= MC_LIST_PAGE_BYTES)) {
            page->from = page->found[i].hash;
            return false;
        }
        keys[*count] = mc_arena_str(arena, mc_object_key(page->found[i].object));
        *bytes += keys[(*count)++].len;
    }
    return true;
}

static enum mc_status parse_cursor(const struct mc_master *m, struct mc_str text, uint64_t *from) {
    char copy[40];
    unsigned long long mark, hash;
    int end = 0;
    *from = 0;
    if (text.len == 0) {
        return MC_OK;
    }
    if (text.len != 33) {
        return MC_INVALID_PARAMS;
    }
    memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    if (sscanf(copy, "%16llx-%16llx%n", &mark, &hash, &end) != 2 || end != 33 ||
        mark != mark_of(m)) {
        return MC_INVALID_PARAMS;
    }
    *from = hash;
    return MC_OK;
}

enum mc_status mc_master_list(struct mc_master *m, struct mc_str tenant, struct mc_str prefix,
                              struct mc_str after, size_t limit, struct mc_arena *arena,
                              struct mc_vec *keys, struct mc_str *next) {
    struct page page = {.m = m, .prefix = prefix};
    size_t count = 0, bytes = 0;
    MC_TRY(mc_tenant_normalise(tenant, &page.tenant));
    MC_TRY(parse_cursor(m, after, &page.from));
    if (limit == 0 || limit > MC_LIST_PAGE_KEYS) {
        return MC_INVALID_PARAMS;
    }
    struct mc_str *items = mc_arena_alloc(arena, (limit + TIES_MAX) * sizeof(*items));
    bool whole = true;
    unsigned first = (unsigned)(page.from >> (64 - MC_SHARD_BITS));
    for (unsigned i = first; i < MC_SHARDS && whole; i++) {
        struct mc_shard *shard = &m->shards[i];
        page.count = 0;
        mc_lock_acquire(&shard->lock);
        mc_shard_each(shard, look, &page);
        whole = copy_locked(&page, arena, limit, items, &count, &bytes);
        mc_lock_release(&shard->lock);
    }
    free(page.found);
    *keys = (struct mc_vec){items, count};
    *next = whole ? (struct mc_str){"", 0}
                  : mc_arena_printf(arena, "%016llx-%016llx", (unsigned long long)mark_of(m),
                                    (unsigned long long)page.from);
    return MC_OK;
}
