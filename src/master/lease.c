/*
 * Who may not be evicted or removed yet: read leases, the shared lease of a group.
 *
 * An ungrouped object has a lease of its own; a grant moves its end to now + ttl and the object to
 * the tail of its shard's list, so the lists stay ordered by lease end and the eviction reads its
 * victims from their heads.
 *
 * A group has one lease for all members. It is renewed when the member that was asked for has at
 * most half of the ttl left, or when somebody joined or left since the last renewal; so reading a
 * large group costs one renewal per half ttl, not one per member. A renewal covers those who were
 * members at that moment: the group counts its renewals, a member remembers the count at which it
 * joined, and a newcomer that nobody has asked for yet is as free as any fresh object.
 *
 * No lease outlasts the life of an object that has one (deadline.c).
 */
#include "master/core.h"

#define GROUP_BUCKETS_MIN 16u

/* ---- groups ---- */

static struct mc_str group_tenant(const struct mc_group *g) {
    return (struct mc_str){g->bytes, g->tenant_len};
}
static struct mc_str group_id(const struct mc_group *g) {
    return (struct mc_str){g->bytes + g->tenant_len, g->id_len};
}

static uint64_t group_hash(const struct mc_master *m, struct mc_str tenant, struct mc_str id) {
    return mc_hash64(id.ptr, id.len, mc_hash64(tenant.ptr, tenant.len, ~m->hash_seed));
}

static struct mc_group_shard *group_shard(struct mc_master *m, uint64_t hash) {
    return &m->groups[(hash >> 56) % MC_GROUP_SHARDS];
}

static void groups_grow_locked(struct mc_group_shard *gs) {
    uint32_t old = gs->buckets ? gs->bucket_mask + 1 : 0;
    if (gs->count < old) {
        return;
    }
    uint32_t buckets = old ? old * 2 : GROUP_BUCKETS_MIN;
    struct mc_group **table = mc_zalloc(buckets * sizeof(struct mc_group *));
    for (uint32_t b = 0; b < old; b++) {
        for (struct mc_group *g = gs->buckets[b], *next; g; g = next) {
            next = g->next;
            g->next = table[g->hash & (buckets - 1)];
            table[g->hash & (buckets - 1)] = g;
        }
    }
    free(gs->buckets);
    gs->buckets = table;
    gs->bucket_mask = buckets - 1;
}

static struct mc_group *group_get_locked(struct mc_master *m, struct mc_group_shard *gs,
                                         uint64_t hash, struct mc_str tenant, struct mc_str id) {
    groups_grow_locked(gs);
    struct mc_group **bucket = &gs->buckets[hash & gs->bucket_mask];
    for (struct mc_group *g = *bucket; g; g = g->next) {
        if (g->hash == hash && mc_str_eq(group_tenant(g), tenant) && mc_str_eq(group_id(g), id)) {
            return g;
        }
    }
    size_t bytes = sizeof(struct mc_group) + tenant.len + id.len;
    struct mc_group *g = mc_alloc(bytes);
    atomic_fetch_add_explicit(&m->group_bytes, bytes, memory_order_relaxed);
    *g = (struct mc_group){.next = *bucket,
                           .hash = hash,
                           .tenant_len = (uint32_t)tenant.len,
                           .id_len = (uint32_t)id.len};
    if (tenant.len) {
        memcpy(g->bytes, tenant.ptr, tenant.len);
    }
    memcpy(g->bytes + tenant.len, id.ptr, id.len);
    mc_list_init(&g->members);
    *bucket = g;
    gs->count++;
    return g;
}

void mc_group_join(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                   struct mc_str id) {
    if (id.len == 0) {
        return;
    }
    struct mc_object_ext *ext = mc_object_ext(shard, o);
    uint64_t hash = group_hash(m, mc_object_tenant(o), id);
    struct mc_group_shard *gs = group_shard(m, hash);
    mc_lock_acquire(&gs->lock);
    struct mc_group *g = group_get_locked(m, gs, hash, mc_object_tenant(o), id);
    ext->group = g;
    ext->joined_at = g->refreshes;
    mc_list_push_back(&g->members, &ext->member);
    g->member_count++;
    g->changed = true;
    mc_lock_release(&gs->lock);
}

static void group_free_locked(struct mc_master *m, struct mc_group_shard *gs, struct mc_group *g) {
    struct mc_group **at = &gs->buckets[g->hash & gs->bucket_mask];
    while (*at != g) {
        at = &(*at)->next;
    }
    *at = g->next;
    gs->count--;
    atomic_fetch_sub_explicit(&m->group_bytes, sizeof(*g) + g->tenant_len + g->id_len,
                              memory_order_relaxed);
    free(g);
}

void mc_group_leave(struct mc_master *m, struct mc_object *o) {
    if (!o->ext || !o->ext->group) {
        return;
    }
    struct mc_group *g = o->ext->group; /* lives as long as it has members */
    struct mc_group_shard *gs = group_shard(m, g->hash);
    mc_lock_acquire(&gs->lock);
    mc_list_del(&o->ext->member);
    o->ext->group = NULL;
    g->changed = true;
    if (--g->member_count == 0) {
        group_free_locked(m, gs, g);
    }
    mc_lock_release(&gs->lock);
}

struct mc_str mc_group_of(const struct mc_object *o) {
    return o->ext && o->ext->group ? group_id(o->ext->group) : (struct mc_str){"", 0};
}

struct mc_key *mc_group_members(struct mc_call *call, struct mc_object *o, size_t max,
                                size_t *count) {
    struct mc_group *g = o->ext->group;
    struct mc_group_shard *gs = group_shard(call->m, g->hash);
    mc_lock_acquire(&gs->lock);
    struct mc_key *keys =
        mc_arena_alloc(call->arena, mc_min_u64(g->member_count, max) * sizeof(*keys));
    size_t n = 0;
    for (struct mc_list *l = g->members.next; l != &g->members && n < max; l = l->next) {
        /* a member leaves its group under this lock before it is freed, so its bytes are there */
        const struct mc_object *member = mc_container_of(l, struct mc_object_ext, member)->object;
        keys[n++] = (struct mc_key){.tenant = mc_arena_str(call->arena, mc_object_tenant(member)),
                                    .user = mc_arena_str(call->arena, mc_object_key(member)),
                                    .hash = mc_object_hash(call->m, member)};
    }
    mc_lock_release(&gs->lock);
    *count = n;
    return keys;
}

static uint64_t group_lease_locked(const struct mc_group *g, const struct mc_object *o) {
    return o->ext->joined_at < g->refreshes ? g->lease_until_ms : 0;
}

bool mc_groups_check(struct mc_master *m, struct mc_buf *report) {
    size_t before = report->len;
    for (unsigned i = 0; i < MC_GROUP_SHARDS; i++) {
        struct mc_group_shard *gs = &m->groups[i];
        mc_lock_acquire(&gs->lock);
        for (uint32_t b = 0; gs->buckets && b <= gs->bucket_mask; b++) {
            for (struct mc_group *g = gs->buckets[b]; g; g = g->next) {
                uint32_t members = 0;
                for (struct mc_list *l = g->members.next; l != &g->members; l = l->next) {
                    members += mc_container_of(l, struct mc_object_ext, member)->group == g;
                }
                if (members != g->member_count || members == 0) {
                    mc_buf_printf(report, "group %.*s: %u members, counted %u\n", (int)g->id_len,
                                  g->bytes + g->tenant_len, g->member_count, members);
                }
            }
        }
        mc_lock_release(&gs->lock);
    }
    return report->len == before;
}

/* ---- leases ---- */

static uint64_t within_life(const struct mc_object *o, uint64_t until_ms) {
    return o->ext && o->ext->expires_ms ? mc_min_u64(until_ms, o->ext->expires_ms) : until_ms;
}

uint64_t mc_lease_end(struct mc_master *m, struct mc_object *o) {
    if (!o->ext || !o->ext->group) {
        return o->lease_until_ms;
    }
    struct mc_group *g = o->ext->group;
    struct mc_group_shard *gs = group_shard(m, g->hash);
    mc_lock_acquire(&gs->lock);
    uint64_t end = mc_max_u64(o->lease_until_ms, group_lease_locked(g, o));
    mc_lock_release(&gs->lock);
    return within_life(o, end);
}

static uint64_t group_grant(struct mc_call *call, struct mc_object *o, uint64_t ttl) {
    struct mc_group *g = o->ext->group;
    struct mc_group_shard *gs = group_shard(call->m, g->hash);
    mc_lock_acquire(&gs->lock);
    uint64_t end = mc_max_u64(o->lease_until_ms, group_lease_locked(g, o));
    if (g->changed || end <= call->now_ms + ttl / 2) {
        end = mc_max_u64(end, call->now_ms + ttl);
        g->lease_until_ms = mc_max_u64(g->lease_until_ms, end);
        g->refreshes++;
        g->changed = false;
    }
    mc_lock_release(&gs->lock);
    return end;
}

uint64_t mc_lease_grant(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    uint64_t ttl = call->m->config.default_kv_lease_ttl_ms;
    uint64_t end = call->now_ms + ttl;
    if (o->ext && o->ext->group) {
        end = group_grant(call, o, ttl);
    }
    o->lease_until_ms = mc_max_u64(o->lease_until_ms, within_life(o, end));
    if (o->list == MC_LIST_FRESH || o->list == MC_LIST_TOUCHED) {
        mc_object_list(shard, o, MC_LIST_TOUCHED);
    } else if (o->list == MC_LIST_SOFT_FRESH || o->list == MC_LIST_SOFT_TOUCHED) {
        mc_object_list(shard, o, MC_LIST_SOFT_TOUCHED);
    }
    return o->lease_until_ms > call->now_ms ? o->lease_until_ms - call->now_ms : 0;
}
