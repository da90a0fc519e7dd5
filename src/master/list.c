/*
 * Listing keys, page by page, without a lease, in bounded memory.
 *
 * Keys are listed in the order in which mc_shard_walk visits them, which neither growing tables nor
 * other keys change; so the cursor is one number, a page costs what it visits and not what its
 * shards hold, no lock is held for more than some hundred objects, and a key that is there during
 * the whole listing is listed exactly once, whatever else comes and goes. Keys of one hash are
 * never parted by the end of a page.
 *
 * Hashes are seeded when the master starts, so a cursor of an earlier one means nothing: it carries
 * a mark of the seed and is refused.
 */
#include "master/core.h"

#include <stdio.h>

#define TIES_MAX 64 /* keys of one hash */

struct found {
    uint64_t order;
    struct mc_object *object;
};

struct page {
    struct mc_master *m;
    struct mc_arena *arena;
    struct mc_str tenant, prefix;
    uint64_t from; /* mc_walk_order from here on */
    size_t limit, count, bytes, visits;
    struct mc_str *keys;
};

static uint64_t mark_of(const struct mc_master *m) {
    return mc_hash64(&m->hash_seed, sizeof(m->hash_seed), 1);
}

static bool wanted(const struct page *page, struct mc_object *o) {
    struct mc_str key = mc_object_key(o);
    return key.len >= page->prefix.len &&
           (page->prefix.len == 0 || memcmp(key.ptr, page->prefix.ptr, page->prefix.len) == 0) &&
           mc_str_eq(mc_object_tenant(o), page->tenant) && mc_object_readable(page->m, o) &&
           !(mc_mortal(o) && mc_life_over(o, mc_now_ms(page->m->clock)));
}

/* Those that are wanted, in order: the walk gives them nearly so. */
static size_t sort(const struct page *page, struct mc_object **objects, size_t count,
                   struct found *out) {
    size_t n = 0;
    for (size_t k = 0; k < count; k++) {
        if (!wanted(page, objects[k])) {
            continue;
        }
        uint64_t order = mc_walk_order(mc_object_hash(page->m, objects[k]));
        if (order < page->from) {
            continue;
        }
        size_t i = n++;
        for (; i > 0 && out[i - 1].order > order; i--) {
            out[i] = out[i - 1];
        }
        out[i] = (struct found){order, objects[k]};
    }
    return n;
}

/* False when the page is full; then it goes on at page->from. */
static bool copy_locked(struct page *page, const struct found *found, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bool tied = i > 0 && found[i].order == found[i - 1].order;
        MC_ASSERT(page->count < page->limit + TIES_MAX); /* of a seeded 64-bit hash */
        if (!tied && (page->count >= page->limit || page->bytes >= MC_LIST_PAGE_BYTES)) {
            page->from = found[i].order;
            return false;
        }
        page->keys[page->count] = mc_arena_str(page->arena, mc_object_key(found[i].object));
        page->bytes += page->keys[page->count++].len;
    }
    return true;
}

/* True when the whole shard from page->from on is in the page. */
static bool list_shard(struct page *page, unsigned index) {
    struct mc_shard *shard = &page->m->shards[index];
    uint64_t base = (uint64_t)index << (64 - MC_SHARD_BITS);
    uint32_t position =
        page->from <= base ? 0 : (uint32_t)((page->from - base) >> MC_WALK_REST_BITS);
    while (position < MC_WALK_END) {
        struct mc_object *objects[MC_WALK_OBJECTS + MC_WALK_SLACK];
        struct found found[MC_WALK_OBJECTS + MC_WALK_SLACK];
        size_t count;
        if (page->visits >= MC_LIST_PAGE_VISITS) {
            page->from = mc_max_u64(page->from, base | (uint64_t)position << MC_WALK_REST_BITS);
            return false;
        }
        mc_lock_acquire(&shard->lock);
        position = mc_shard_walk(shard, position, objects, &count);
        bool whole = copy_locked(page, found, sort(page, objects, count, found));
        mc_lock_release(&shard->lock);
        page->visits += mc_max_u64(count, MC_WALK_BUCKETS / 16); /* empty homes cost too */
        if (!whole) {
            return false;
        }
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
    struct page page = {.m = m, .arena = arena, .prefix = prefix, .limit = limit};
    MC_TRY(mc_tenant_normalise(tenant, &page.tenant));
    MC_TRY(parse_cursor(m, after, &page.from));
    if (limit == 0 || limit > MC_LIST_PAGE_KEYS) {
        return MC_INVALID_PARAMS;
    }
    page.keys = mc_arena_alloc(arena, (limit + TIES_MAX) * sizeof(*page.keys));
    bool whole = true;
    for (unsigned i = (unsigned)(page.from >> (64 - MC_SHARD_BITS)); i < MC_SHARDS && whole; i++) {
        whole = list_shard(&page, i);
    }
    if (m->config.break_mode == MC_BREAK_PAGE_AGAIN) {
        page.from -= mc_min_u64(page.from, UINT64_MAX / 16);
    }
    *keys = (struct mc_vec){page.keys, page.count};
    *next = whole ? (struct mc_str){"", 0}
                  : mc_arena_printf(arena, "%016llx-%016llx", (unsigned long long)mark_of(m),
                                    (unsigned long long)page.from);
    return MC_OK;
}
