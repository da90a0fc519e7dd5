/*
 * Bringing objects back from an SSD to memory when they are read.
 *
 * A read that finds an object on a disk only is counted in a small sketch; one that is read often
 * enough is queued for the client whose disk it is, and given to it with one of its next
 * heartbeats. The client asks for memory (mc_promote_start), writes the bytes there and says how it
 * went. From then on it is a replication like a copy (replication.c): nobody but that client may
 * end it, and one that is not ended in time is given up. Removing the object cancels it.
 *
 * An object that waits carries a mark; the queue holds copies of keys, looked up again when they
 * are taken, so what was removed, replaced or brought back otherwise meanwhile is passed over.
 * The end of a promotion names only the key and the client; a client of ours asks for the memory
 * under a new id each time, so that a late end of one that was given up is not the next one's.
 * Memory above the eviction's watermark takes nothing back, except what a drain asks for: that is
 * on no disk that stays, so eviction has to make room for it. The queues' lock is a leaf.
 */
#include "master/promote.h"

#include "master/core.h"
#include "master/disks.h"
#include "master/tenants.h"

#define SKETCH_ROWS  4u
#define SKETCH_WIDTH 65536u /* a power of two */
#define SKETCH_MAX   255u
/* Counts are halved after so many reads, so that what was hot once does not stay so. */
#define SKETCH_PERIOD (8ull * SKETCH_WIDTH)

enum { MARK_NONE, MARK_QUEUED, MARK_CLAIMED };

struct item {
    struct mc_list link;
    struct mc_uuid client;
    uint64_t claimed_ms;
    uint64_t mark; /* the object's */
    uint64_t hash;
    uint32_t tenant_len, key_len;
    char bytes[];
};

struct mc_promotions {
    struct mc_lock lock;
    struct mc_list queued, claimed; /* the oldest first */
    uint64_t queued_count;
    uint64_t next_mark;
    uint64_t reads; /* since the sketch was halved */
    uint8_t sketch[SKETCH_ROWS][SKETCH_WIDTH];
};

struct mc_promotions *mc_promotions_create(void) {
    struct mc_promotions *p = mc_zalloc(sizeof(*p));
    mc_list_init(&p->queued);
    mc_list_init(&p->claimed);
    return p;
}

static void items_free(struct mc_list *items) {
    while (!mc_list_empty(items)) {
        struct item *item = mc_container_of(items->next, struct item, link);
        mc_list_del(&item->link);
        free(item);
    }
}

void mc_promotions_destroy(struct mc_promotions *p) {
    items_free(&p->queued);
    items_free(&p->claimed);
    free(p);
}

static struct mc_key item_key(const struct item *item) {
    return (struct mc_key){.tenant = {item->bytes, item->tenant_len},
                           .user = {item->bytes + item->tenant_len, item->key_len},
                           .hash = item->hash};
}

/* Needs the shard's lock. */
static bool marked(const struct mc_object *o, const struct item *item, uint8_t state) {
    return o->ext && o->ext->promotion == state && o->ext->promotion_mark == item->mark;
}

/* Needs the shard's lock. The replication that follows the mark is counted by replication.c. */
static void set_mark(struct mc_master *m, struct mc_object *o, uint8_t state) {
    mc_count(&m->counters.promotions_in_flight,
             (state != MARK_NONE) - (o->ext->promotion != MARK_NONE));
    o->ext->promotion = state;
}

/* ---- admission ---- */

/* How often the key was read, this time included: never less than it was. */
static unsigned count_read_locked(struct mc_promotions *p, uint64_t hash) {
    unsigned least = SKETCH_MAX;
    if (++p->reads >= SKETCH_PERIOD) {
        p->reads = 0;
        for (size_t i = 0; i < sizeof(p->sketch); i++) {
            ((uint8_t *)p->sketch)[i] /= 2;
        }
    }
    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        uint64_t mixed = hash * (2 * row + 0x9e3779b97f4a7c15ull);
        uint8_t *cell = &p->sketch[row][mixed >> 48 & (SKETCH_WIDTH - 1)];
        *cell = (uint8_t)(*cell + (*cell < SKETCH_MAX));
        least = *cell < least ? *cell : least;
    }
    return least;
}

static const struct mc_replica *on_disk(struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (r->type == MC_REPLICA_LOCAL_DISK && r->status == MC_REPLICA_COMPLETE) {
            return r;
        }
    }
    return NULL;
}

static bool memory_is_full(struct mc_master *m) {
    uint64_t used, capacity, segments;
    mc_segments_usage(m, &used, &capacity, &segments);
    return capacity == 0 ||
           (double)used > (double)capacity * m->config.eviction_high_watermark_ratio;
}

bool mc_promote_wanted(const struct mc_call *call, struct mc_object *o) {
    return call->m->config.promotion_on_hit && !mc_object_in_memory(o) && on_disk(o) != NULL;
}

/* Needs the shard's lock and the queues'. */
static void queue_locked(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                         uint64_t hash) {
    struct mc_promotions *p = m->promotions;
    struct item *item = mc_alloc(sizeof(*item) + o->tenant_len + o->key_len);
    *item = (struct item){.client = on_disk(o)->segment->client,
                          .mark = ++p->next_mark,
                          .hash = hash,
                          .tenant_len = o->tenant_len,
                          .key_len = o->key_len};
    memcpy(item->bytes, o->bytes, (size_t)o->tenant_len + o->key_len);
    struct mc_object_ext *ext = mc_object_ext(shard, o);
    ext->promotion_mark = item->mark;
    set_mark(m, o, MARK_QUEUED);
    mc_list_push_back(&p->queued, &item->link);
    p->queued_count++;
}

bool mc_promoting(const struct mc_object *o) {
    return o->ext && o->ext->promotion != MARK_NONE;
}

void mc_promote_withdraw(struct mc_master *m, struct mc_object *o) {
    if (o->ext) {
        set_mark(m, o, MARK_NONE);
    }
}

enum mc_status mc_promote_ask(struct mc_call *call, const struct mc_key *key, uint64_t *size) {
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, key->hash);
    enum mc_status status = MC_OBJECT_NOT_FOUND;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(m, shard, key);
    if (o && !mc_object_in_memory(o) && on_disk(o) && !mc_replicating(o) &&
        o->list != MC_LIST_PROCESSING) {
        status = MC_OK;
        *size = o->size;
        mc_lock_acquire(&m->promotions->lock);
        if (!mc_promoting(o)) {
            queue_locked(m, shard, o, key->hash);
        }
        mc_lock_release(&m->promotions->lock);
    }
    mc_lock_release(&shard->lock);
    return status;
}

void mc_promote_hit(struct mc_call *call, const struct mc_key *key) {
    struct mc_master *m = call->m;
    struct mc_promotions *p = m->promotions;
    uint64_t threshold =
        mc_max_u64(1, mc_min_u64(m->config.promotion_admission_threshold, SKETCH_MAX));
    bool full = memory_is_full(m); /* takes segments_lock: before the shard's */
    struct mc_shard *shard = mc_shard_of(m, key->hash);
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(m, shard, key);
    if (!o || !mc_promote_wanted(call, o) || mc_replicating(o) || o->list == MC_LIST_PROCESSING ||
        mc_promoting(o)) {
        mc_lock_release(&shard->lock);
        return;
    }
    struct mc_metric *why = NULL;
    mc_lock_acquire(&p->lock);
    if (count_read_locked(p, key->hash) < threshold) {
        why = &m->counters.promotions_rare;
    } else if (full) {
        why = &m->counters.promotions_no_room;
    } else if (p->queued_count >= m->config.promotion_queue_limit) {
        why = &m->counters.promotions_no_place;
    } else {
        queue_locked(m, shard, o, key->hash);
        why = &m->counters.promotions_admitted;
    }
    mc_lock_release(&p->lock);
    mc_lock_release(&shard->lock);
    mc_count(why, 1);
}

/* ---- tasks ---- */

static bool happens(const struct mc_master *m) {
    return m->config.promotion_on_hit || mc_drains_running(m);
}

/* The client's oldest queued item, moved to the claimed ones; a copy in the arena, or NULL. */
static struct item *take_item(struct mc_call *call, struct mc_uuid client) {
    struct mc_promotions *p = call->m->promotions;
    struct item *copy = NULL;
    mc_lock_acquire(&p->lock);
    for (struct mc_list *at = p->queued.next; at != &p->queued; at = at->next) {
        struct item *item = mc_container_of(at, struct item, link);
        if (mc_uuid_eq(item->client, client)) {
            size_t bytes = sizeof(*item) + item->tenant_len + item->key_len;
            item->claimed_ms = call->now_ms;
            mc_list_del(&item->link);
            mc_list_push_back(&p->claimed, &item->link);
            p->queued_count--;
            copy = mc_arena_alloc(call->arena, bytes);
            memcpy(copy, item, bytes);
            break;
        }
    }
    mc_lock_release(&p->lock);
    return copy;
}

enum mc_status mc_promote_heartbeat(struct mc_call *call, struct mc_uuid client,
                                    struct mc_vec *tasks) {
    struct mc_master *m = call->m;
    if (!happens(m)) {
        return MC_UNAVAILABLE_IN_CURRENT_MODE;
    }
    if (!mc_disk_known(m, client)) {
        return MC_SEGMENT_NOT_FOUND;
    }
    uint64_t most = mc_max_u64(1, mc_min_u64(m->config.promotion_max_per_heartbeat, 1024));
    struct mw_disk_task *out = mc_arena_alloc(call->arena, most * sizeof(*out));
    size_t count = 0;
    while (count < most) {
        struct item *item = take_item(call, client);
        if (!item) {
            break;
        }
        struct mc_key key = item_key(item);
        struct mc_shard *shard = mc_shard_of(m, key.hash);
        mc_lock_acquire(&shard->lock);
        struct mc_object *o = mc_object_find(m, shard, &key);
        if (o && marked(o, item, MARK_QUEUED)) {
            set_mark(m, o, MARK_CLAIMED);
            o->ext->promotion_client = client;
            out[count++] =
                (struct mw_disk_task){.tenant = key.tenant.len ? key.tenant : MC_STR("default"),
                                      .key = key.user,
                                      .size = (int64_t)o->size};
        }
        mc_lock_release(&shard->lock);
    }
    *tasks = (struct mc_vec){out, count};
    return MC_OK;
}

/* ---- the promotion itself ---- */

static bool place_named(struct mc_call *call, uint64_t size, const struct mc_vec *among,
                        struct mc_replica *out) {
    const struct mc_str *names = among->items;
    for (size_t i = 0; i < among->count; i++) {
        if (mc_place_named(call, size, names[i], out) == MC_OK) {
            return true;
        }
    }
    return false;
}

/* Where a promotion may go. */
struct where {
    const struct mc_vec *preferred;
    struct mc_vec targets; /* of the drain that empties the client; none = anywhere */
    bool drained;
};

static enum mc_status place(struct mc_call *call, const struct mc_key *key, struct mc_object *o,
                            const struct where *where, struct mc_replica *out) {
    struct mw_replicate_config config = {.replica_num = 1};
    bool found = place_named(call, o->size,
                             where->targets.count > 0 ? &where->targets : where->preferred, out);
    if (!found && where->targets.count == 0) {
        found = mc_place(call, o->size, 1, key->hash, &config, out) == 1;
    }
    if (!found && where->drained) {
        atomic_store_explicit(&call->m->need_eviction, true, memory_order_relaxed);
    }
    return found ? MC_OK : MC_NO_AVAILABLE_HANDLE;
}

static enum mc_status start_locked(struct mc_call *call, struct mc_shard *shard,
                                   const struct mc_key *key, const struct mw_a_promotion_start *a,
                                   const struct where *where, struct mw_replica *out) {
    struct mc_object *o = mc_object_find(call->m, shard, key);
    struct mc_replica target;
    if (!o) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (!o->ext || o->ext->promotion != MARK_CLAIMED) {
        return MC_OBJECT_NO_REPLICATION_TASK;
    }
    if (!mc_same_client(o->ext->promotion_client, a->client)) {
        return MC_ILLEGAL_CLIENT;
    }
    if (a->size != o->size) {
        return MC_INVALID_PARAMS;
    }
    const struct mc_replica *source = on_disk(o);
    if (mc_replicating(o) || o->list == MC_LIST_PROCESSING || mc_object_in_memory(o) || !source) {
        set_mark(call->m, o, MARK_NONE);
        return MC_OBJECT_HAS_REPLICATION_TASK;
    }
    MC_TRY(place(call, key, o, where, &target));
    enum mc_status status = mc_tenant_charge(call->m, key->tenant, o->size, 0);
    if (status != MC_OK) {
        mc_extent_free(call->m, &target, o->size);
        return status;
    }
    set_mark(call->m, o, MARK_NONE); /* the replication is the mark from here on */
    mc_describe(call, o, &target, out);
    mc_replication_begin(call, shard, o, a->client, MC_REPLICATION_PROMOTE, source->id, &target, 1);
    return MC_OK;
}

enum mc_status mc_promote_start(struct mc_call *call, const struct mc_key *key,
                                const struct mw_a_promotion_start *a, struct mw_replica *out) {
    struct mc_master *m = call->m;
    struct mc_shard *shard = mc_shard_of(m, key->hash);
    if (!happens(m)) {
        return MC_UNAVAILABLE_IN_CURRENT_MODE;
    }
    struct where where = {.preferred = &a->segments};
    where.drained = mc_drain_targets(call, a->client, &where.targets);
    pthread_rwlock_rdlock(&m->segments_lock);
    mc_lock_acquire(&shard->lock);
    enum mc_status status = start_locked(call, shard, key, a, &where, out);
    mc_lock_release(&shard->lock);
    pthread_rwlock_unlock(&m->segments_lock);
    return status;
}

/* A claimed object whose client gave up before it had memory: in its own name, because the id that
 * memory is asked for under may be that of an earlier promotion. */
static enum mc_status release_claim(struct mc_call *call, const struct mc_key *key,
                                    struct mc_uuid client) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    enum mc_status status = MC_OBJECT_NO_REPLICATION_TASK;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(call->m, shard, key);
    if (o && o->ext && o->ext->promotion == MARK_CLAIMED) {
        bool holder = mc_uuid_eq(o->ext->promotion_client, client);
        set_mark(call->m, o, holder ? MARK_NONE : MARK_CLAIMED);
        status = holder ? MC_OK : MC_ILLEGAL_CLIENT;
    }
    mc_lock_release(&shard->lock);
    return status;
}

enum mc_status mc_promote_end(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                              bool success) {
    struct mc_master *m = call->m;
    if (!happens(m)) {
        return MC_UNAVAILABLE_IN_CURRENT_MODE;
    }
    enum mc_status status;
    if (success) {
        status = mc_replication_end(call, key, client, MC_REPLICATION_PROMOTE);
        mc_count(&m->counters.promotions_done, status == MC_OK);
    } else {
        status = mc_replication_revoke(call, key, client, MC_REPLICATION_PROMOTE);
        status =
            status == MC_OBJECT_NO_REPLICATION_TASK ? release_claim(call, key, client) : status;
        mc_count(&m->counters.promotions_failed, status == MC_OK);
    }
    return status;
}

/* ---- time ---- */

/* Claims that came to nothing are free again after a while, and queues of clients that are gone. */
void mc_promotions_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    struct mc_promotions *p = m->promotions;
    uint64_t timeout = m->config.put_start_discard_timeout_ms;
    struct mc_list expired;
    mc_list_init(&expired);
    mc_lock_acquire(&p->lock);
    while (!mc_list_empty(&p->claimed)) {
        struct item *item = mc_container_of(p->claimed.next, struct item, link);
        if (call->now_ms < item->claimed_ms + timeout) {
            break;
        }
        mc_list_del(&item->link);
        mc_list_push_back(&expired, &item->link);
    }
    mc_lock_release(&p->lock);
    while (!mc_list_empty(&expired)) {
        struct item *item = mc_container_of(expired.next, struct item, link);
        struct mc_key key = item_key(item);
        struct mc_shard *shard = mc_shard_of(m, key.hash);
        mc_lock_acquire(&shard->lock);
        struct mc_object *o = mc_object_find(m, shard, &key);
        if (o && (marked(o, item, MARK_CLAIMED) || marked(o, item, MARK_QUEUED))) {
            set_mark(m, o, MARK_NONE);
            mc_count(&m->counters.promotions_expired, 1);
        }
        mc_lock_release(&shard->lock);
        mc_list_del(&item->link);
        free(item);
    }
}

void mc_promotions_drop_client(struct mc_call *call, struct mc_uuid client) {
    struct mc_promotions *p = call->m->promotions;
    mc_lock_acquire(&p->lock);
    for (struct mc_list *at = p->queued.next, *next; at != &p->queued; at = next) {
        struct item *item = mc_container_of(at, struct item, link);
        next = at->next;
        if (mc_uuid_eq(item->client, client)) { /* the tick frees their objects at once */
            item->claimed_ms = 0;
            mc_list_del(&item->link);
            mc_list_push_front(&p->claimed, &item->link);
            p->queued_count--;
        }
    }
    mc_lock_release(&p->lock);
}
