/*
 * Eviction: approximately least recently used, exactly within what the lists know.
 *
 * Every shard keeps its complete objects in lists ordered by lease end; a binary heap over the
 * heads of all lists gives the oldest object of the whole index, so a cycle touches only its
 * victims and 1024 heads, never all objects. A cycle starts when the memory is fuller than the high
 * watermark or a put found no room; how many objects it wants is upstream's formula. Objects that
 * are leased, hard-pinned, or being written are not in question; soft-pinned ones only
 * when the others gave less than the lower bound. A group goes as a whole or, when any member is
 * leased, not at all.
 *
 * Leases can pin everything. Those of reads are necessary, but a scheduler that only asks whether
 * objects exist would keep a full cache full for ever. So while memory is short (fuller than the
 * high watermark, or a put found no room less than a lease ago) such a question grants no lease,
 * and after at most one lease time everything that nobody reads can be evicted.
 *
 * With another policy than LRU (traffic.c) the policy names the victims instead of the lists. What
 * it names and may not go yet it is told to keep; when it has named each candidate once, the lists
 * say what else may go.
 *
 * A tenant that has used its quota gives up objects of its own, in the middle of its put: the same
 * pass, over its objects only.
 *
 * One tick does a bounded amount; a cycle goes on in the next one.
 */
#include "master/core.h"
#include "master/disks.h"
#include "master/tenants.h"

#include <math.h>

#define VICTIMS_PER_TICK      8192u
#define GROUP_MEMBERS_AT_ONCE 1024u
#define HEADS_MAX             (2 * MC_SHARDS)
#define METADATA_WATERMARK    0.95       /* of the budget of metadata */
#define TENANT_LOOKS          (1u << 20) /* some milliseconds */
#define SHORTAGE_MS           100u       /* longer than from one tick to the next */

struct head {
    uint64_t lease_until_ms;
    uint16_t shard;
    uint8_t list;
};

struct cycle {
    struct mc_call *call;
    bool soft; /* second pass */
    uint64_t limit;
    uint64_t evicted, budget;
    const struct mc_str *tenant;  /* whose objects; NULL = all */
    uint64_t bytes, bytes_wanted; /* given back by objects of `tenant` */
    uint64_t looks;               /* at objects of others, in search of them */
    struct head heads[HEADS_MAX];
    size_t head_count;
};

static void heads_sift_down(struct cycle *c, size_t i) {
    struct head moving = c->heads[i];
    for (size_t child = 2 * i + 1; child < c->head_count; child = 2 * i + 1) {
        if (child + 1 < c->head_count &&
            c->heads[child + 1].lease_until_ms < c->heads[child].lease_until_ms) {
            child++;
        }
        if (c->heads[child].lease_until_ms >= moving.lease_until_ms) {
            break;
        }
        c->heads[i] = c->heads[child];
        i = child;
    }
    c->heads[i] = moving;
}

static bool expired(const struct cycle *c, uint64_t lease_until_ms) {
    return lease_until_ms <= c->call->now_ms || c->call->m->config.break_mode == MC_BREAK_NO_LEASES;
}

/* The oldest of the list if it is a candidate. Needs the shard's lock. */
static struct mc_object *candidate_locked(struct cycle *c, struct mc_shard *shard, unsigned list) {
    struct mc_list *head = &shard->lists[list];
    for (struct mc_list *l = head->next; l != head; l = l->next) {
        struct mc_object *o = mc_container_of(l, struct mc_object, link);
        if (!expired(c, o->lease_until_ms)) {
            return NULL;
        }
        if (!c->tenant || mc_str_eq(*c->tenant, mc_object_tenant(o))) {
            return o;
        }
        if (c->looks-- == 0) {
            c->looks = 0;
            return NULL;
        }
    }
    return NULL;
}

static bool satisfied(const struct cycle *c) {
    return c->evicted >= c->limit || (c->tenant && c->bytes >= c->bytes_wanted);
}

static void heads_collect(struct cycle *c) {
    unsigned first = c->soft ? MC_LIST_SOFT_FRESH : MC_LIST_FRESH;
    c->head_count = 0;
    for (unsigned s = 0; s < MC_SHARDS; s++) {
        struct mc_shard *shard = &c->call->m->shards[s];
        if (mc_shard_count(shard) == 0) {
            continue;
        }
        mc_lock_acquire(&shard->lock);
        for (unsigned list = first; list < first + 2; list++) {
            struct mc_object *o = candidate_locked(c, shard, list);
            if (o) {
                c->heads[c->head_count++] =
                    (struct head){o->lease_until_ms, (uint16_t)s, (uint8_t)list};
            }
        }
        mc_lock_release(&shard->lock);
    }
    for (size_t i = c->head_count / 2; i-- > 0;) {
        heads_sift_down(c, i);
    }
}

/* With a copy on disk, only the memory goes. */
static void evict_memory(struct cycle *c, struct mc_shard *shard, struct mc_object *o) {
    struct mc_master *m = c->call->m;
    for (unsigned i = 0; i < o->replica_count;) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (r->type == MC_REPLICA_MEMORY) {
            mc_count(&m->counters.evicted_bytes, (int64_t)mc_replica_bytes(r, o->size));
            mc_object_remove_replica(m, shard, o, i, 0);
        } else {
            i++;
        }
    }
    mc_object_list(shard, o, MC_LIST_NONE);
    mc_traffic_gone(m, mc_object_hash(m, o));
    mc_count(&m->counters.memory_evictions, 1);
    c->evicted++;
}

/* True when the object may not go because it is to be offloaded first; then it is put aside until
 * that has happened or failed. */
static bool evict_after_offload(struct cycle *c, struct mc_shard *shard, struct mc_object *o) {
    const struct mc_master_config *config = &c->call->m->config;
    if (!config->enable_offload || mc_mortal(o)) {
        return false;
    }
    bool waits = mc_offload_pending(o);
    /* what no disk took goes, where that is allowed, else a full disk makes memory full, too; a
     * striped one may be larger than any node can read at once */
    bool in_vain = (config->offload_force_evict || mc_object_striped(o)) && mc_offload_failed(o);
    if (!waits && config->offload_on_evict && !in_vain) {
        double cap = (double)config->offloading_queue_limit * config->offload_cap_ratio;
        waits = mc_offload_queue(c->call, shard, o, (uint64_t)cap);
        if (!waits && !config->offload_force_evict && mc_disks_count(c->call->m) > 0) {
            c->limit = c->evicted; /* the queue is full: nothing more may go for now */
            return true;
        }
    }
    if (waits) {
        mc_object_list(shard, o, MC_LIST_NONE);
    }
    return waits;
}

static void evict_locked(struct cycle *c, struct mc_shard *shard, struct mc_object *o) {
    struct mc_master *m = c->call->m;
    if (mc_object_on_disk(o)) {
        evict_memory(c, shard, o);
        return;
    }
    if (evict_after_offload(c, shard, o)) {
        return;
    }
    uint64_t bytes = mc_object_charge(o);
    mc_count(&m->counters.evicted_keys, 1);
    mc_count(&m->counters.evicted_bytes, (int64_t)bytes);
    c->bytes += c->tenant ? bytes : 0;
    mc_object_erase(m, shard, o);
    c->evicted++;
}

static bool evictable_locked(struct cycle *c, struct mc_object *o) {
    bool listed = o->list == MC_LIST_FRESH || o->list == MC_LIST_TOUCHED ||
                  (c->soft && (o->list == MC_LIST_SOFT_FRESH || o->list == MC_LIST_SOFT_TOUCHED));
    return listed && expired(c, mc_lease_end(c->call->m, o));
}

/* Evicts the members that may be; called without locks. */
static void evict_members(struct cycle *c, const struct mc_key *members, size_t count,
                          struct mc_str group) {
    for (size_t i = 0; i < count; i++) {
        struct mc_shard *shard = mc_shard_of(c->call->m, members[i].hash);
        mc_lock_acquire(&shard->lock);
        struct mc_object *o = mc_object_find(c->call->m, shard, &members[i]);
        if (o && mc_str_eq(mc_group_of(o), group) && evictable_locked(c, o)) {
            evict_locked(c, shard, o);
        }
        mc_lock_release(&shard->lock);
    }
}

/* Evicts the head of the list, with its group. Needs the shard's lock; gives it back. */
static void evict_head(struct cycle *c, struct mc_shard *shard, struct mc_object *o) {
    struct mc_master *m = c->call->m;
    c->budget--;
    if (!mc_object_drop_dead(m, shard, o)) {
        mc_lock_release(&shard->lock);
        return;
    }
    uint64_t lease_end = mc_lease_end(m, o);
    if (!expired(c, lease_end)) {
        /* its group was asked for: its place is where that lease says */
        o->lease_until_ms = lease_end;
        mc_object_list(shard, o, c->soft ? MC_LIST_SOFT_TOUCHED : MC_LIST_TOUCHED);
        mc_lock_release(&shard->lock);
        return;
    }
    size_t count = 0;
    struct mc_key *members = NULL;
    struct mc_str group = mc_group_of(o);
    if (group.len) {
        group = mc_arena_str(c->call->arena, group);
        members = mc_group_members(c->call, o, GROUP_MEMBERS_AT_ONCE, &count);
        c->budget -= mc_min_u64(c->budget, count);
    }
    evict_locked(c, shard, o);
    mc_lock_release(&shard->lock);
    evict_members(c, members, count, group);
}

/* True when the pass is through: enough is evicted or nothing is left. */
static bool run_pass(struct cycle *c) {
    heads_collect(c);
    while (c->head_count && !satisfied(c)) {
        if (c->budget == 0) {
            return false;
        }
        struct head *top = &c->heads[0];
        struct mc_shard *shard = &c->call->m->shards[top->shard];
        mc_lock_acquire(&shard->lock);
        struct mc_object *o = candidate_locked(c, shard, top->list);
        if (o && o->lease_until_ms <= top->lease_until_ms) {
            evict_head(c, shard, o);
            mc_lock_acquire(&shard->lock);
            o = candidate_locked(c, shard, top->list);
        }
        if (o) {
            top->lease_until_ms = o->lease_until_ms;
        } else {
            *top = c->heads[--c->head_count];
        }
        mc_lock_release(&shard->lock);
        heads_sift_down(c, 0);
    }
    return true;
}

/* The same with the victims that the policy names. */
static bool run_policy(struct cycle *c) {
    struct mc_master *m = c->call->m;
    uint64_t hash, candidates = mc_traffic_candidates(m);
    while (candidates-- > 0 && c->evicted < c->limit) {
        if (c->budget == 0) {
            return false;
        }
        if (!mc_traffic_victim(m, &hash)) {
            break;
        }
        struct mc_shard *shard = mc_shard_of(m, hash);
        mc_lock_acquire(&shard->lock);
        struct mc_object *o = mc_shard_find_hash(m, shard, hash);
        if (o && evictable_locked(c, o)) {
            evict_head(c, shard, o);
            continue;
        }
        if (o) {
            mc_traffic_keep(m, hash);
        }
        c->budget--;
        mc_lock_release(&shard->lock);
    }
    return true;
}

static void memory_is_short(struct mc_call *call, uint64_t for_ms) {
    _Atomic uint64_t *from = &call->m->probes_lease_from_ms;
    uint64_t until = call->now_ms + for_ms;
    if (until > atomic_load_explicit(from, memory_order_relaxed)) { /* only the tick writes it */
        atomic_store_explicit(from, until, memory_order_relaxed);
    }
}

/* Decides whether a cycle starts, and how much it wants. */
static bool cycle_starts(struct mc_call *call) {
    struct mc_master *m = call->m;
    uint64_t used, capacity, segments;
    mc_segments_usage(m, &used, &capacity, &segments);
    bool asked = atomic_exchange_explicit(&m->need_eviction, false, memory_order_relaxed);
    if (capacity == 0) {
        return false;
    }
    double ratio = m->config.eviction_ratio;
    double over = (double)used / (double)capacity - m->config.eviction_high_watermark_ratio;
    over = fmax(over, m->metadata_fill - METADATA_WATERMARK);
    if (over <= 0 && !(asked && ratio > 0)) {
        return false;
    }
    memory_is_short(call, asked ? m->config.default_kv_lease_ttl_ms : SHORTAGE_MS);
    double target = fmax(ratio, over + ratio);
    double least = fmax(target * 0.5, over);
    double keys = (double)mc_key_count(m);
    m->evict.wanted = (uint64_t)ceil(keys * fmin(target, 1));
    m->evict.least = (uint64_t)ceil(keys * fmin(least, 1));
    m->evict.evicted = 0;
    mc_count(&m->counters.evictions_attempted, 1);
    return true;
}

void mc_evict_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    if (!m->evict.running && !cycle_starts(call)) {
        return;
    }
    struct cycle *c = mc_arena_alloc(call->arena, sizeof(*c));
    *c = (struct cycle){.call = call};
    c->limit = m->evict.wanted;
    c->evicted = m->evict.evicted;
    c->budget = VICTIMS_PER_TICK;
    bool done = run_policy(c) && run_pass(c);
    if (done && c->evicted < m->evict.least && m->config.allow_evict_soft_pinned_objects) {
        c->soft = true;
        c->limit = m->evict.least;
        done = run_pass(c);
    }
    m->evict.evicted = c->evicted;
    m->evict.running = !done;
    if (done && c->evicted) {
        mc_count(&m->counters.evictions_successful, 1);
    }
}

bool mc_evict_for_tenant(struct mc_call *call, struct mc_str tenant, uint64_t bytes) {
    struct mc_master *m = call->m;
    uint64_t deficit = mc_tenant_deficit(m, tenant, bytes);
    if (deficit == 0) {
        return false;
    }
    struct cycle *c = mc_arena_alloc(call->arena, sizeof(*c));
    *c = (struct cycle){.call = call,
                        .limit = UINT64_MAX,
                        .budget = VICTIMS_PER_TICK,
                        .tenant = &tenant,
                        .bytes_wanted = deficit,
                        .looks = TENANT_LOOKS};
    (void)run_pass(c); /* what it did is in c->bytes */
    if (!satisfied(c) && m->config.allow_evict_soft_pinned_objects) {
        c->soft = true;
        (void)run_pass(c);
    }
    mc_tenant_evicted(m, tenant, c->bytes);
    return c->bytes > 0;
}
