/*
 * The index: 1024 shards, each an open-addressed table of 8-byte slots.
 *
 * A slot packs the object's address (48 bits, 16-byte aligned, so 44 that matter) with 20 bits of
 * the key's hash. The tag rejects other keys without touching them, and gives the slot's home, so a
 * table is resized without touching an object. Probing is linear and removal shifts back, so there
 * are no tombstones and no clean-up. A shard's table grows alone: at 100 million keys that moves
 * 0.8 MiB of slots, some 300 us, in one shard of 1024; that is why there is no incremental resize.
 * Tables do not shrink: 13 bytes a key at the most keys ever.
 */
#include "master/core.h"

#define TAG_BITS  20u
#define TAG_MASK  ((1u << TAG_BITS) - 1)
#define SLOTS_MIN 16u
#define SLOTS_MAX (1u << TAG_BITS)

static uint64_t slot_make(const struct mc_object *o, uint64_t hash) {
    return (uint64_t)((uintptr_t)o >> 4) << TAG_BITS | (hash & TAG_MASK);
}
static struct mc_object *slot_object(uint64_t slot) {
    return (struct mc_object *)(uintptr_t)(slot >> TAG_BITS << 4);
}

enum mc_status mc_tenant_normalise(struct mc_str tenant, struct mc_str *out) {
    if (tenant.len == 0 || mc_str_eq(tenant, MC_STR("default"))) {
        *out = (struct mc_str){"", 0};
        return MC_OK;
    }
    if (tenant.len > MC_MAX_TENANT_BYTES || tenant.ptr[0] == '_') {
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < tenant.len; i++) {
        unsigned char c = (unsigned char)tenant.ptr[i];
        if (c < 0x20 || c == 0x7f) {
            return MC_INVALID_PARAMS;
        }
    }
    *out = tenant;
    return MC_OK;
}

static uint64_t hash_of(const struct mc_master *m, struct mc_str tenant, struct mc_str user) {
    uint64_t seed = tenant.len ? mc_hash64(tenant.ptr, tenant.len, m->hash_seed) : m->hash_seed;
    return mc_hash64(user.ptr, user.len, seed);
}

enum mc_status mc_key_make(const struct mc_master *m, struct mc_str tenant, struct mc_str user,
                           struct mc_key *out) {
    if (user.len > MC_MAX_KEY_BYTES) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(mc_tenant_normalise(tenant, &out->tenant));
    out->tenant.len = m->config.break_mode == MC_BREAK_ONE_TENANT ? 0 : out->tenant.len;
    out->user = user;
    out->hash = hash_of(m, out->tenant, user);
    return MC_OK;
}

uint64_t mc_object_hash(const struct mc_master *m, const struct mc_object *o) {
    return hash_of(m, mc_object_tenant(o), mc_object_key(o));
}

void mc_shard_init(struct mc_shard *shard, struct mc_page_pool *pool) {
    *shard = (struct mc_shard){.slab.pool = pool};
    for (int i = 0; i < MC_LIST_COUNT; i++) {
        mc_list_init(&shard->lists[i]);
    }
    for (unsigned i = 0; i < MC_ARRAY_LEN(shard->offload_hand); i++) {
        shard->offload_hand[i] = &shard->lists[i];
    }
    mc_list_init(&shard->replicating);
}

static bool object_is(const struct mc_object *o, const struct mc_key *key) {
    return o->key_len == key->user.len && o->tenant_len == key->tenant.len &&
           memcmp(o->bytes + o->tenant_len, key->user.ptr, key->user.len) == 0 &&
           (o->tenant_len == 0 || memcmp(o->bytes, key->tenant.ptr, key->tenant.len) == 0);
}

struct mc_object *mc_shard_find(struct mc_shard *shard, const struct mc_key *key) {
    if (!shard->slots) {
        return NULL;
    }
    uint32_t tag = key->hash & TAG_MASK;
    for (uint32_t i = tag & shard->slot_mask; shard->slots[i]; i = (i + 1) & shard->slot_mask) {
        if ((shard->slots[i] & TAG_MASK) == tag) {
            struct mc_object *o = slot_object(shard->slots[i]);
            if (object_is(o, key)) {
                return o;
            }
        }
    }
    return NULL;
}

struct mc_object *mc_shard_find_hash(const struct mc_master *m, struct mc_shard *shard,
                                     uint64_t hash) {
    uint32_t tag = hash & TAG_MASK;
    for (uint32_t i = tag & shard->slot_mask; shard->slots && shard->slots[i];
         i = (i + 1) & shard->slot_mask) {
        if ((shard->slots[i] & TAG_MASK) == tag &&
            mc_object_hash(m, slot_object(shard->slots[i])) == hash) {
            return slot_object(shard->slots[i]);
        }
    }
    return NULL;
}

static void slot_put(struct mc_shard *shard, uint64_t slot) {
    uint32_t i = slot & TAG_MASK & shard->slot_mask;
    while (shard->slots[i]) {
        i = (i + 1) & shard->slot_mask;
    }
    shard->slots[i] = slot;
}

static bool shard_make_room(struct mc_shard *shard) {
    uint32_t slots = shard->slots ? shard->slot_mask + 1 : 0;
    if (mc_shard_count(shard) + 1 <= slots - slots / 8 && slots) {
        return true;
    }
    if (slots == SLOTS_MAX) {
        return false;
    }
    uint64_t *old = shard->slots;
    uint32_t new_slots = slots ? slots * 2 : SLOTS_MIN;
    shard->slots = mc_zalloc((size_t)new_slots * sizeof(*shard->slots));
    shard->slot_mask = new_slots - 1;
    mc_slab_count(&shard->slab, (ptrdiff_t)((new_slots - slots) * sizeof(*shard->slots)));
    for (uint32_t i = 0; i < slots; i++) {
        if (old[i]) {
            slot_put(shard, old[i]);
        }
    }
    free(old);
    return true;
}

struct mc_object *mc_shard_insert(struct mc_shard *shard, const struct mc_key *key) {
    if (!shard_make_room(shard)) {
        return NULL;
    }
    struct mc_object *o =
        mc_slab_alloc(&shard->slab, MC_OBJECT_BYTES(key->tenant.len, key->user.len));
    MC_ASSERT(((uintptr_t)o & 15) == 0 && (uintptr_t)o >> 48 == 0);
    *o = (struct mc_object){.key_len = (uint32_t)key->user.len,
                            .tenant_len = (uint16_t)key->tenant.len,
                            .list = MC_LIST_NONE};
    mc_list_init(&o->link);
    if (key->tenant.len) {
        memcpy(o->bytes, key->tenant.ptr, key->tenant.len);
    }
    memcpy(o->bytes + o->tenant_len, key->user.ptr, key->user.len);
    slot_put(shard, slot_make(o, key->hash));
    atomic_store_explicit(&shard->count, mc_shard_count(shard) + 1, memory_order_relaxed);
    return o;
}

/* Empties slot i and moves back what was pushed past its home by it. */
static void slot_remove(struct mc_shard *shard, uint32_t i) {
    uint32_t mask = shard->slot_mask;
    uint32_t hole = i;
    for (uint32_t next = (i + 1) & mask; shard->slots[next]; next = (next + 1) & mask) {
        uint32_t home = shard->slots[next] & TAG_MASK & mask;
        if (((next - home) & mask) >= ((next - hole) & mask)) {
            shard->slots[hole] = shard->slots[next];
            hole = next;
        }
    }
    shard->slots[hole] = 0;
}

void mc_shard_erase(struct mc_master *m, struct mc_shard *shard, struct mc_object *o) {
    uint64_t hash = mc_object_hash(m, o), slot = slot_make(o, hash);
    uint32_t i = slot & TAG_MASK & shard->slot_mask;
    while (shard->slots[i] != slot) {
        MC_ASSERT(shard->slots[i] != 0);
        i = (i + 1) & shard->slot_mask;
    }
    slot_remove(shard, i);
    atomic_store_explicit(&shard->count, mc_shard_count(shard) - 1, memory_order_relaxed);
    mc_slab_free(&shard->slab, o, MC_OBJECT_BYTES(o->tenant_len, o->key_len));
    mc_traffic_gone(m, hash);
}

/* From the last slot down, starting behind an empty one: a removal moves only objects that were
 * already seen, from higher slots of the same run, into the hole; after one the slot is looked at
 * again. */
void mc_shard_each(struct mc_shard *shard,
                   bool (*fn)(void *ctx, struct mc_shard *shard, struct mc_object *o), void *ctx) {
    if (!shard->slots) {
        return;
    }
    uint32_t mask = shard->slot_mask;
    uint32_t empty = 0;
    while (shard->slots[empty]) {
        empty++; /* the load limit keeps some slot empty */
    }
    for (uint32_t n = 1; n <= mask; n++) {
        uint32_t i = (empty - n) & mask;
        if (shard->slots[i] && !fn(ctx, shard, slot_object(shard->slots[i]))) {
            return;
        }
    }
}

/* ---- walking in pieces ---- */

static uint32_t reverse_tag(uint32_t x) {
    x = __builtin_bswap32(x);
    x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
    x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
    x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
    return x >> (32 - TAG_BITS);
}

uint64_t mc_walk_order(uint64_t hash) {
    uint64_t shard = hash >> (64 - MC_SHARD_BITS);
    uint64_t rest = hash << MC_SHARD_BITS >> (MC_SHARD_BITS + TAG_BITS);
    return shard << (64 - MC_SHARD_BITS) |
           (uint64_t)reverse_tag(hash & TAG_MASK) << MC_WALK_REST_BITS | rest;
}

uint32_t mc_shard_walk(struct mc_shard *shard, uint32_t from, struct mc_object **out,
                       size_t *count) {
    uint32_t mask = shard->slot_mask, visited = 0;
    *count = 0;
    if (!shard->slots) {
        return MC_WALK_END;
    }
    unsigned shift = TAG_BITS - (unsigned)__builtin_popcount(mask);
    while (from < MC_WALK_END && visited++ < MC_WALK_BUCKETS && *count < MC_WALK_OBJECTS) {
        uint32_t home = reverse_tag(from) & mask;
        size_t before = *count;
        for (uint32_t i = home; shard->slots[i]; i = (i + 1) & mask) {
            if ((shard->slots[i] & TAG_MASK & mask) == home) {
                struct mc_object *o = slot_object(shard->slots[i]);
                __builtin_prefetch((char *)o + MC_CACHE_LINE);
                __builtin_prefetch((char *)o + 2 * MC_CACHE_LINE);
                MC_ASSERT(*count < before + MC_WALK_SLACK); /* of a seeded hash */
                out[(*count)++] = o;
            }
        }
        from = ((from >> shift) + 1) << shift;
    }
    return from;
}

uint64_t mc_key_count(const struct mc_master *m) {
    uint64_t count = 0;
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        count += mc_shard_count(&m->shards[i]);
    }
    return count;
}

void mc_shard_prefetch(struct mc_master *m, uint64_t hash) {
    struct mc_shard *shard = mc_shard_of(m, hash);
    mc_lock_acquire(&shard->lock);
    if (shard->slots) {
        uint64_t slot = shard->slots[hash & TAG_MASK & shard->slot_mask];
        __builtin_prefetch(slot_object(slot), 1);
        __builtin_prefetch((char *)slot_object(slot) + MC_CACHE_LINE, 1);
        __builtin_prefetch((char *)slot_object(slot) + 2 * MC_CACHE_LINE, 0); /* the key */
    }
    mc_lock_release(&shard->lock);
}
