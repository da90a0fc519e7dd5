/*
 * What disks may not bring back: the keys whose value was removed or replaced, and since when.
 *
 * A disk that comes (again) tells what it holds, each object with the version that the master had
 * given it. An object that the index does not have is taken from it only when nothing is noted of
 * its key, or when its version is not older than what is noted. Versions of this master grow;
 * another's prove nothing, so that a note about the key refuses them.
 *
 * What upstream's nodes have written has no version. It is refused when the key was removed or
 * upserted; that it was put proves nothing, since it may be what was put.
 *
 * Removals and upserts are noted always: they are rare. That a key was put anew must be known only
 * while a disk is away that may have an older value of it, and puts are many: they are noted from
 * the moment that a disk goes (or the master starts, which knows none) for AWAY_MS.
 *
 * Bounded: a table has two generations of at most so many keys; when the younger is full the older
 * is forgotten, and what is forgotten may come back. The lock is a leaf.
 */
#include "master/core.h"

#define REMOVED_MAX                                                                                \
    (1u << 20) /* keys of a generation: 16 bytes each, half as many again for air                  \
                */
#define PUT_MAX   (1u << 21)
#define SLOTS_MIN 1024u
#define AWAY_MS   (30ull * 60 * 1000)

struct slot {
    uint64_t hash; /* 0 = free */
    uint64_t version;
};
struct generation {
    struct slot *slots;
    size_t count, capacity; /* a power of two, or 0 */
};
struct table {
    struct generation young, old;
    size_t most;
};

struct mc_changes {
    struct mc_lock lock;
    struct table removed, put;
    uint64_t floor; /* everything older was removed; 0 = nothing was */
    uint64_t first_version;
    _Atomic uint64_t note_puts_until_ms;
};

struct mc_changes *mc_changes_create(uint64_t first_version, uint64_t now_ms) {
    struct mc_changes *c = mc_zalloc(sizeof(*c));
    c->removed.most = REMOVED_MAX;
    c->put.most = PUT_MAX;
    c->first_version = first_version;
    atomic_init(&c->note_puts_until_ms, now_ms + AWAY_MS);
    return c;
}

static void table_free(struct table *t) {
    free(t->young.slots);
    free(t->old.slots);
    t->young = t->old = (struct generation){0};
}

void mc_changes_destroy(struct mc_changes *c) {
    table_free(&c->removed);
    table_free(&c->put);
    free(c);
}

/* ---- tables ---- */

/* Its slot, or a free one. */
static struct slot *find(const struct generation *g, uint64_t hash) {
    size_t i = hash & (g->capacity - 1);
    while (g->slots[i].hash != 0 && g->slots[i].hash != hash) {
        i = (i + 1) & (g->capacity - 1);
    }
    return &g->slots[i];
}

static uint64_t version_in(const struct generation *g, uint64_t hash) {
    return g->capacity > 0 ? find(g, hash)->version : 0;
}

static void grow(struct generation *g) {
    struct generation larger = {.count = g->count,
                                .capacity = g->capacity > 0 ? 2 * g->capacity : SLOTS_MIN};
    larger.slots = mc_zalloc(larger.capacity * sizeof(*larger.slots));
    for (size_t i = 0; i < g->capacity; i++) {
        if (g->slots[i].hash != 0) {
            *find(&larger, g->slots[i].hash) = g->slots[i];
        }
    }
    free(g->slots);
    *g = larger;
}

static void note(struct table *t, uint64_t hash, uint64_t version) {
    hash += hash == 0;
    if (t->young.count >= t->most) {
        free(t->old.slots);
        t->old = t->young;
        t->young = (struct generation){0};
    }
    if (t->young.count * 4 >= t->young.capacity * 3) {
        grow(&t->young);
    }
    struct slot *slot = find(&t->young, hash);
    t->young.count += slot->hash == 0;
    *slot = (struct slot){hash, mc_max_u64(slot->version, version)};
}

static uint64_t noted(const struct table *t, uint64_t hash) {
    hash += hash == 0;
    return mc_max_u64(version_in(&t->young, hash), version_in(&t->old, hash));
}

/* ---- notes ---- */

static uint64_t hash_of_tenant(const struct mc_master *m, struct mc_str tenant) {
    return mc_hash64(tenant.ptr, tenant.len, ~m->hash_seed);
}

void mc_changed(struct mc_master *m, uint64_t hash) {
    if (m->config.enable_offload) {
        uint64_t version = mc_version_next(m);
        mc_lock_acquire(&m->changes->lock);
        note(&m->changes->removed, hash, version);
        mc_lock_release(&m->changes->lock);
    }
}

void mc_changed_all(struct mc_master *m, const struct mc_str *tenant) {
    struct mc_changes *c = m->changes;
    uint64_t version = mc_version_next(m);
    mc_lock_acquire(&c->lock);
    if (tenant) {
        note(&c->removed, hash_of_tenant(m, *tenant), version);
    } else {
        c->floor = version;
    }
    mc_lock_release(&c->lock);
}

void mc_changed_by_put(struct mc_call *call, uint64_t hash, uint64_t version) {
    struct mc_changes *c = call->m->changes;
    /* relaxed: who goes at this very moment has nothing older than this put */
    if (call->m->config.enable_offload &&
        call->now_ms < atomic_load_explicit(&c->note_puts_until_ms, memory_order_relaxed)) {
        mc_lock_acquire(&c->lock);
        note(&c->put, hash, version);
        mc_lock_release(&c->lock);
    }
}

void mc_changes_disk_away(struct mc_call *call) {
    atomic_store_explicit(&call->m->changes->note_puts_until_ms, call->now_ms + AWAY_MS,
                          memory_order_relaxed);
}

void mc_changes_tick(struct mc_call *call) {
    struct mc_changes *c = call->m->changes;
    if (call->now_ms >= atomic_load_explicit(&c->note_puts_until_ms, memory_order_relaxed)) {
        mc_lock_acquire(&c->lock);
        table_free(&c->put);
        mc_lock_release(&c->lock);
    }
}

bool mc_may_return(struct mc_master *m, const struct mc_key *key, uint64_t version) {
    struct mc_changes *c = m->changes;
    bool ours = version >= c->first_version &&
                version < atomic_load_explicit(&m->next_version, memory_order_relaxed);
    mc_lock_acquire(&c->lock);
    uint64_t since = noted(&c->removed, key->hash);
    if (version != 0) {
        since = mc_max_u64(since, noted(&c->put, key->hash));
    }
    since = mc_max_u64(since, noted(&c->removed, hash_of_tenant(m, key->tenant)));
    since = mc_max_u64(since, c->floor);
    mc_lock_release(&c->lock);
    return m->config.break_mode == MC_BREAK_DISK_RETURNS || since == 0 ||
           (ours && version >= since);
}
