/*
 * The SSD tier as the master sees it: which clients have one, what they should write there, and
 * the replicas that they then hold.
 *
 * A client that mounts a local disk gets tasks with its heartbeats: objects whose memory replica
 * lies in one of its segments, queued at PutEnd, with offload_on_evict when eviction meets
 * them, or early (offload_early.c). While an object waits, or is being written, eviction passes it
 * over; that ends when the client says how it went, or when it has said nothing for the discard
 * timeout.
 *
 * A LOCAL_DISK replica points to a segment of its own kind, one per client and RPC address, that is
 * in no table of mounted ones: it has no allocator and counts its replicas. When the client goes
 * the segment is retired like any other, which hides its replicas at once.
 *
 * What a client says it has written is believed only for the very object that it was told to write,
 * so that bytes of a removed or replaced object never get a replica. Our own clients name the
 * version of the object (OnDisk), which their disks keep; what is no longer so they are told to
 * drop. Others' words (NotifyOffloadSuccess) name only the key: they are taken for the answer to
 * the oldest task of this key that this client was given and has not yet answered, a task that
 * waits no longer stays on the list until no answer can be on its way any more, and the object
 * carries a mark that ends with it. What such a client tells at its mount, if it arrives after a
 * task of the same key was given, is taken for the answer.
 *
 * A client of ours is told with its next heartbeat (SyncDisk) to drop what was removed or replaced
 * while its disk had it, and that everything before a version is among it; what was given is given
 * again until it acknowledges it. So a disk that is mounted has nothing that the index does not
 * list but what it is about to drop, and can prove that to another master. A disk whose drops did
 * not fit is told no such version any more, until it mounts again.
 *
 * A client that has just mounted its disk tells what it found there: until its first heartbeat it
 * may name objects that the index does not have. changes.c knows which of them may come back.
 *
 * A client whose segments are all DRAINED is about to go: its disk gets no new replicas (drain.c).
 *
 * The queues' lock is a leaf; queue items are copies of keys, looked up again when they are taken.
 */
#include "master/disks.h"
#include "master/files.h"
#include "master/promote.h"

#include "base/log.h"

#define TASKS_PER_HEARTBEAT 2048u
#define SSD_LOOK_MS         1000u
#define EXPIRED_PER_TICK    1024u
#define DROPS_MAX_BYTES     (4u << 20) /* of one disk, until its next heartbeat */

enum { MARK_NONE, MARK_QUEUED, MARK_CLAIMED };

struct item {
    struct mc_list link;
    uint64_t claimed_ms;
    uint64_t mark; /* the object's, so that a later object of the same name is not taken for it */
    uint64_t version; /* of the object, which a disk keeps */
    uint64_t hash;
    uint32_t tenant_len, key_len;
    char bytes[];
};

struct disk {
    struct disk *next;
    struct mc_uuid client;
    struct mc_segment *segment; /* NULL until the client has written or found something */
    bool offloading;            /* the client takes tasks */
    bool adopting;              /* it has mounted and not yet sent a heartbeat */
    bool wipe;                  /* everything was removed: it may empty its disk */
    int64_t capacity_bytes;     /* as reported */
    /* Items, the oldest first. Claimed: the client has them; late: it had them for so long that
     * their objects do not wait any more. */
    struct mc_list queued, claimed, late;
    uint64_t queued_count;
    /* What is on it and was removed or replaced: since the last heartbeat, and what one has told
     * it. Bytes of both. */
    struct mc_list drops, given;
    size_t drops_bytes;
    uint64_t given_serial;
    bool drops_lost; /* there were too many, or it has what is not listed: what it holds is not
                        known */
};

struct mc_disks {
    struct mc_lock lock;
    struct disk *all;
    uint64_t count;
    uint64_t next_mark;
};

struct mc_disks *mc_disks_create(void) {
    return mc_zalloc(sizeof(struct mc_disks));
}

static struct disk *find_locked(struct mc_disks *disks, struct mc_uuid client) {
    struct disk *d = disks->all;
    while (d && !mc_uuid_eq(d->client, client)) {
        d = d->next;
    }
    return d;
}

static void items_free(struct mc_list *items) {
    while (!mc_list_empty(items)) {
        struct item *item = mc_container_of(items->next, struct item, link);
        mc_list_del(&item->link);
        free(item);
    }
}

static void disk_free(struct disk *d) {
    items_free(&d->queued);
    items_free(&d->claimed);
    items_free(&d->late);
    items_free(&d->drops);
    items_free(&d->given);
    free(d);
}

void mc_disks_destroy(struct mc_master *m) {
    for (struct disk *d = m->disks->all, *next; d; d = next) {
        next = d->next;
        if (d->segment) {
            mc_segment_disk_free(d->segment);
        }
        disk_free(d);
    }
    free(m->disks);
}

uint64_t mc_disks_count(struct mc_master *m) {
    mc_lock_acquire(&m->disks->lock);
    uint64_t count = m->disks->count;
    mc_lock_release(&m->disks->lock);
    return count;
}

/* ---- marks: all need the shard's lock ---- */

static bool marked(const struct mc_object *o, const struct item *item, uint8_t state) {
    return o->ext && o->ext->offload == state && o->ext->offload_mark == item->mark;
}

bool mc_offload_claimed(const struct mc_object *o, uint64_t mark) {
    return mark && o->ext && o->ext->offload == MARK_CLAIMED && o->ext->offload_mark == mark;
}

void mc_offload_ended(struct mc_shard *shard, struct mc_object *o, bool failed) {
    o->ext->offload = MARK_NONE;
    o->ext->offload_failed = failed;
    if (o->list == MC_LIST_NONE && !mc_replicating(o)) {
        mc_object_list_complete(shard, o, true); /* eviction had put it aside */
    }
}

bool mc_offload_pending(const struct mc_object *o) {
    return o->ext && o->ext->offload != MARK_NONE;
}

bool mc_offload_failed(const struct mc_object *o) {
    return o->ext && o->ext->offload_failed;
}

void mc_offload_cancel(struct mc_object *o) {
    if (o->ext) {
        o->ext->offload = MARK_NONE;
        o->ext->offload_failed = false;
    }
}

bool mc_object_on_disk(struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->type != MC_REPLICA_MEMORY) {
            return true;
        }
    }
    return false;
}

static struct item *item_make(struct mc_master *m, struct mc_object *o) {
    struct item *item = mc_alloc(sizeof(*item) + o->tenant_len + o->key_len);
    *item = (struct item){
        .hash = mc_object_hash(m, o), .tenant_len = o->tenant_len, .key_len = o->key_len};
    memcpy(item->bytes, o->bytes, (size_t)o->tenant_len + o->key_len);
    return item;
}

static size_t item_bytes(const struct item *item) {
    return sizeof(*item) + item->tenant_len + item->key_len;
}

static struct mc_key item_key(const struct item *item) {
    return (struct mc_key){.tenant = {item->bytes, item->tenant_len},
                           .user = {item->bytes + item->tenant_len, item->key_len},
                           .hash = item->hash};
}

bool mc_offload_queue(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                      uint64_t limit) {
    struct mc_master *m = call->m;
    if (!m->config.enable_offload || mc_offload_pending(o) || mc_object_on_disk(o) ||
        mc_mortal(o)) {
        return false;
    }
    struct item *item = NULL;
    /* any node that has a stripe may gather the others */
    unsigned first = mc_object_striped(o) ? (unsigned)(o->version % o->replica_count) : 0;
    mc_lock_acquire(&m->disks->lock);
    for (unsigned i = 0; i < o->replica_count && !item; i++) {
        const struct mc_replica *r = mc_object_replica(o, (first + i) % o->replica_count);
        struct disk *d =
            r->status == MC_REPLICA_COMPLETE ? find_locked(m->disks, r->segment->client) : NULL;
        if (d && d->offloading && d->queued_count < limit) {
            item = item_make(m, o);
            item->mark = ++m->disks->next_mark;
            item->version = o->version;
            mc_list_push_back(&d->queued, &item->link);
            d->queued_count++;
        }
    }
    uint64_t mark = item ? item->mark : 0; /* the item may be taken as soon as the lock is free */
    mc_lock_release(&m->disks->lock);
    if (mark) {
        struct mc_object_ext *ext = mc_object_ext(shard, o);
        ext->offload = MARK_QUEUED;
        ext->offload_mark = mark;
        mc_count(&m->counters.offloads_queued, 1);
    }
    return mark != 0;
}

bool mc_disks_want_more(struct mc_master *m, uint64_t limit) {
    bool want = false;
    mc_lock_acquire(&m->disks->lock);
    for (const struct disk *d = m->disks->all; d && !want; d = d->next) {
        want = d->offloading && d->queued_count < limit;
    }
    mc_lock_release(&m->disks->lock);
    return want;
}

/* ---- mounting ---- */

enum mc_status mc_disk_mount(struct mc_call *call, struct mc_uuid client, bool offloading) {
    struct mc_disks *disks = call->m->disks;
    if (!call->m->config.enable_offload) {
        return MC_UNABLE_OFFLOAD;
    }
    mc_lock_acquire(&disks->lock);
    struct disk *d = find_locked(disks, client);
    if (!d) {
        d = mc_zalloc(sizeof(*d));
        d->client = client;
        mc_list_init(&d->queued);
        mc_list_init(&d->claimed);
        mc_list_init(&d->late);
        mc_list_init(&d->drops);
        mc_list_init(&d->given);
        d->next = disks->all;
        disks->all = d;
        disks->count++;
    }
    d->offloading = offloading;
    d->adopting = true;
    d->drops_lost = false; /* it tells all that it holds */
    mc_lock_release(&disks->lock);
    mc_changes_disk_away(call); /* until it has told, it is as good as away */
    return MC_OK;
}

/* Their objects are no longer waiting. Called without locks; frees the items. */
static void drop_items(struct mc_call *call, struct mc_list *items, uint8_t state) {
    while (!mc_list_empty(items)) {
        struct item *item = mc_container_of(items->next, struct item, link);
        struct mc_key key = item_key(item);
        struct mc_shard *shard = mc_shard_of(call->m, key.hash);
        mc_lock_acquire(&shard->lock);
        struct mc_object *o = mc_object_find(call->m, shard, &key);
        if (o && marked(o, item, state)) {
            mc_offload_ended(shard, o, true);
        }
        mc_lock_release(&shard->lock);
        mc_list_del(&item->link);
        free(item);
    }
}

void mc_disk_unmount(struct mc_call *call, struct mc_uuid client) {
    struct mc_disks *disks = call->m->disks;
    struct disk *gone = NULL;
    mc_lock_acquire(&disks->lock);
    for (struct disk **at = &disks->all; *at; at = &(*at)->next) {
        if (mc_uuid_eq((*at)->client, client)) {
            gone = *at;
            *at = gone->next;
            disks->count--;
            break;
        }
    }
    mc_lock_release(&disks->lock);
    if (!gone) {
        return;
    }
    mc_changes_disk_away(call);
    mc_promotions_drop_client(call, client);
    drop_items(call, &gone->queued, MARK_QUEUED);
    drop_items(call, &gone->claimed, MARK_CLAIMED);
    if (gone->segment) {
        mc_segment_disk_retire(call, gone->segment);
    }
    disk_free(gone);
}

enum mc_status mc_disk_capacity(struct mc_call *call, struct mc_uuid client, int64_t bytes) {
    struct mc_disks *disks = call->m->disks;
    mc_lock_acquire(&disks->lock);
    struct disk *d = find_locked(disks, client);
    if (d) {
        d->capacity_bytes = bytes;
    }
    mc_lock_release(&disks->lock);
    return d ? MC_OK : MC_SEGMENT_NOT_FOUND;
}

/* ---- tasks ---- */

/* Moves the oldest queued item to the claimed ones; a copy of it in the arena, or NULL. */
static struct item *take_item(struct mc_call *call, struct mc_uuid client) {
    struct mc_disks *disks = call->m->disks;
    struct item *copy = NULL;
    mc_lock_acquire(&disks->lock);
    struct disk *d = find_locked(disks, client);
    if (d && !mc_list_empty(&d->queued)) {
        struct item *item = mc_container_of(d->queued.next, struct item, link);
        size_t bytes = item_bytes(item);
        item->claimed_ms = call->now_ms;
        mc_list_del(&item->link);
        mc_list_push_back(&d->claimed, &item->link);
        d->queued_count--;
        copy = mc_arena_alloc(call->arena, bytes);
        memcpy(copy, item, bytes);
    }
    mc_lock_release(&disks->lock);
    return copy;
}

/* Of a disk that is mounted. (One that is not will tell what it holds.) In this order: a heartbeat
 * that tells of a version past the note has the drop, too. */
void mc_disk_replica_ends(struct mc_master *m, struct mc_object *o, const struct mc_replica *r) {
    if (r->type != MC_REPLICA_LOCAL_DISK) {
        return;
    }
    struct item *item = item_make(m, o);
    size_t bytes = item_bytes(item);
    mc_lock_acquire(&m->disks->lock);
    struct disk *d = find_locked(m->disks, r->segment->client);
    bool there = d && d->segment == r->segment;
    if (there && d->drops_bytes + bytes <= DROPS_MAX_BYTES) {
        mc_list_push_back(&d->drops, &item->link);
        d->drops_bytes += bytes;
        item = NULL;
    } else if (there) {
        d->drops_lost = true;
    }
    mc_lock_release(&m->disks->lock);
    free(item);
    if (there) {
        mc_changed(m, mc_object_hash(m, o));
    }
}

static bool is_on_disk_of(struct mc_call *call, const struct mc_key *key, struct mc_uuid client) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    bool is = false;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(call->m, shard, key);
    for (unsigned i = 0; o && i < o->replica_count && !is; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        is = r->type == MC_REPLICA_LOCAL_DISK && mc_uuid_eq(r->segment->client, client);
    }
    mc_lock_release(&shard->lock);
    return is;
}

static void move_all(struct mc_list *from, struct mc_list *to) {
    while (!mc_list_empty(from)) {
        struct mc_list *first = from->next;
        mc_list_del(first);
        mc_list_push_back(to, first);
    }
}

/* The drops; all that were given with `ack` are done. */
static void sync_locked(struct mc_call *call, struct disk *d, struct mw_disk_orders *orders,
                        struct mc_list *ended) {
    if (orders->serial == d->given_serial) {
        move_all(&d->given, ended);
    }
    move_all(&d->drops, &d->given);
    d->drops_bytes = 0;
    for (const struct mc_list *at = d->given.next; at != &d->given; at = at->next) {
        d->drops_bytes += item_bytes(mc_container_of(at, struct item, link));
    }
    orders->serial = ++d->given_serial;
    orders->current = d->drops_lost ? 0 : orders->current;
}

/* What the disk was given, in the arena. */
static size_t take_drops(struct mc_call *call, struct mc_uuid client, struct mw_disk_item **out,
                         size_t room) {
    struct mc_disks *disks = call->m->disks;
    size_t count = 0;
    mc_lock_acquire(&disks->lock);
    struct disk *d = find_locked(disks, client);
    for (const struct mc_list *at = d ? d->given.next : NULL; at && at != &d->given;
         at = at->next) {
        count++;
    }
    *out = mc_arena_alloc(call->arena, (count + room) * sizeof(**out));
    count = 0;
    for (const struct mc_list *at = d ? d->given.next : NULL; at && at != &d->given;
         at = at->next) {
        struct mc_key key = item_key(mc_container_of(at, struct item, link));
        struct mc_str tenant = key.tenant.len ? key.tenant : MC_STR("default");
        (*out)[count++] = (struct mw_disk_item){.tenant = mc_arena_str(call->arena, tenant),
                                                .key = mc_arena_str(call->arena, key.user),
                                                .size = MW_DISK_DROP};
    }
    mc_lock_release(&disks->lock);
    return count;
}

/* A client carries out what a heartbeat brings before it sends the next, drops first. So a newer
 * value of the key is on its disk only when the index says so, or when nobody will know of it. */
static size_t keep_true_drops(struct mc_call *call, struct mc_uuid client,
                              struct mw_disk_item *drops, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct mc_key key;
        struct mc_str tenant;
        if (mc_tenant_normalise(drops[i].tenant, &tenant) == MC_OK &&
            mc_key_make(call->m, tenant, drops[i].key, &key) == MC_OK &&
            !is_on_disk_of(call, &key, client)) {
            drops[kept++] = drops[i];
        }
    }
    return kept;
}

/* The oldest tasks, behind what is in `out`. */
static size_t take_tasks(struct mc_call *call, struct mc_uuid client, struct mw_disk_item *out) {
    size_t count = 0;
    for (unsigned n = 0; n < TASKS_PER_HEARTBEAT; n++) {
        struct item *item = take_item(call, client);
        if (!item) {
            break;
        }
        struct mc_key key = item_key(item);
        struct mc_shard *shard = mc_shard_of(call->m, key.hash);
        mc_lock_acquire(&shard->lock);
        struct mc_object *o = mc_object_find(call->m, shard, &key);
        if (o && marked(o, item, MARK_QUEUED)) {
            o->ext->offload = MARK_CLAIMED;
            out[count++] =
                (struct mw_disk_item){.tenant = key.tenant.len ? key.tenant : MC_STR("default"),
                                      .key = key.user,
                                      .size = (int64_t)o->size,
                                      .version = o->version};
        }
        mc_lock_release(&shard->lock);
    }
    return count;
}

/* `orders`: in, the serial that the client acknowledges; NULL: it has no such words. */
static enum mc_status heartbeat(struct mc_call *call, struct mc_uuid client, bool offloading,
                                struct mw_disk_orders *orders, struct mc_vec *tasks) {
    struct mc_disks *disks = call->m->disks;
    struct mw_disk_item *out;
    struct mc_list ended;
    if (!call->m->config.enable_offload) {
        return MC_UNABLE_OFFLOAD;
    }
    mc_list_init(&ended);
    mc_lock_acquire(&disks->lock);
    struct disk *d = find_locked(disks, client);
    if (d) {
        d->offloading = offloading;
        d->adopting = false;
        if (orders) {
            sync_locked(call, d, orders, &ended);
        } else { /* it cannot be told */
            move_all(&d->drops, &ended);
            d->drops_bytes = 0;
        }
    }
    mc_lock_release(&disks->lock);
    items_free(&ended);
    if (!d) {
        return MC_SEGMENT_NOT_FOUND;
    }
    size_t count = 0;
    if (orders) {
        count = take_drops(call, client, &out, TASKS_PER_HEARTBEAT);
        count = keep_true_drops(call, client, out, count);
    } else {
        out = mc_arena_alloc(call->arena, TASKS_PER_HEARTBEAT * sizeof(*out));
    }
    count += offloading ? take_tasks(call, client, out + count) : 0;
    *tasks = (struct mc_vec){out, count};
    return MC_OK;
}

enum mc_status mc_disk_heartbeat(struct mc_call *call, struct mc_uuid client, bool offloading,
                                 struct mc_vec *tasks) {
    return heartbeat(call, client, offloading, NULL, tasks);
}

enum mc_status mc_disk_sync(struct mc_call *call, const struct mw_a_sync_disk *a,
                            struct mw_disk_orders *out) {
    struct mw_disk_orders orders = {.serial = a->ack, .current = mc_version_now(call->m)};
    MC_TRY(heartbeat(call, a->client, a->flag, &orders, &orders.items));
    *out = orders;
    return MC_OK;
}

/* For the strategy that places by what is free of the SSDs: once a second, into the segments. */
static void look_at_disks(struct mc_call *call) {
    struct mc_master *m = call->m;
    if (call->now_ms < m->next_ssd_look_ms ||
        strcmp(m->config.allocation_strategy, "ssd_free_ratio_first") != 0) {
        return;
    }
    m->next_ssd_look_ms = call->now_ms + SSD_LOOK_MS;
    pthread_rwlock_rdlock(&m->segments_lock);
    mc_lock_acquire(&m->disks->lock);
    for (size_t i = 0; i < m->segment_count; i++) {
        const struct disk *d = find_locked(m->disks, m->segments[i]->client);
        double capacity = d && d->offloading ? (double)d->capacity_bytes : 0, used = 0;
        if (d && d->segment) {
            used = (double)atomic_load_explicit(&d->segment->disk_bytes, memory_order_relaxed);
        }
        uint32_t ppm = used < capacity ? (uint32_t)(1e6 * (1 - used / capacity)) : 0;
        atomic_store_explicit(&m->segments[i]->ssd_free_ppm, ppm, memory_order_relaxed);
    }
    mc_lock_release(&m->disks->lock);
    pthread_rwlock_unlock(&m->segments_lock);
}

static struct item *item_copy(const struct item *item) {
    size_t bytes = item_bytes(item);
    return memcpy(mc_alloc(bytes), item, bytes);
}

/* Frees what nobody can still answer. */
static void forget_late_locked(struct mc_call *call, struct disk *d) {
    uint64_t timeout = mc_max_u64(call->m->config.put_start_release_timeout_ms,
                                  call->m->config.put_start_discard_timeout_ms);
    for (unsigned n = 0; n < EXPIRED_PER_TICK && !mc_list_empty(&d->late); n++) {
        struct item *item = mc_container_of(d->late.next, struct item, link);
        if (call->now_ms < item->claimed_ms + timeout) {
            break;
        }
        mc_list_del(&item->link);
        free(item);
    }
}

void mc_disks_tick(struct mc_call *call) {
    struct mc_disks *disks = call->m->disks;
    struct mc_list expired;
    uint64_t timeout = call->m->config.put_start_discard_timeout_ms;
    unsigned count = 0;
    mc_list_init(&expired);
    mc_lock_acquire(&disks->lock);
    for (struct disk *d = disks->all; d; d = d->next) {
        forget_late_locked(call, d);
        while (!mc_list_empty(&d->claimed) && count < EXPIRED_PER_TICK) {
            struct item *item = mc_container_of(d->claimed.next, struct item, link);
            if (call->now_ms < item->claimed_ms + timeout) {
                break;
            }
            mc_list_del(&item->link);
            mc_list_push_back(&d->late, &item->link);
            mc_list_push_back(&expired, &item_copy(item)->link);
            count++;
        }
    }
    mc_lock_release(&disks->lock);
    drop_items(call, &expired, MARK_CLAIMED);
    look_at_disks(call);
}

/* ---- for what a client has to say (disk_words.c) ---- */

struct mc_segment *mc_disk_segment(struct mc_call *call, struct mc_uuid client,
                                   struct mc_str endpoint, bool *adopting) {
    struct mc_disks *disks = call->m->disks;
    struct mc_segment *old = NULL, *fresh = NULL, *s = NULL;
    for (;;) {
        mc_lock_acquire(&disks->lock);
        struct disk *d = find_locked(disks, client);
        if (d && d->segment && mc_str_eq(d->segment->info.te_endpoint, endpoint)) {
            s = d->segment;
        } else if (d && fresh) {
            old = d->segment;
            s = d->segment = fresh;
            fresh = NULL;
        }
        if (s) {
            d->wipe = false;
            *adopting = d->adopting;
            atomic_fetch_add_explicit(&s->disk_replicas, 1, memory_order_relaxed); /* ours */
        }
        mc_lock_release(&disks->lock);
        if (s || !d) {
            break;
        }
        fresh = mc_segment_disk_make(call->m, client, endpoint);
    }
    if (fresh) {
        mc_segment_disk_free(fresh);
    }
    if (old) {
        mc_segment_disk_retire(call, old);
    }
    return s;
}

void mc_disk_unlisted(struct mc_call *call, struct mc_uuid client) {
    mc_lock_acquire(&call->m->disks->lock);
    struct disk *d = find_locked(call->m->disks, client);
    if (d) {
        d->drops_lost = true;
    }
    mc_lock_release(&call->m->disks->lock);
}

/* `version`: 0 = the oldest task of the key. */
static struct item *find_item(struct mc_list *items, const struct mc_key *key, uint64_t version) {
    for (struct mc_list *at = items->next; at != items; at = at->next) {
        struct item *item = mc_container_of(at, struct item, link);
        struct mc_key own = item_key(item);
        if ((version == 0 || version == item->version) && own.hash == key->hash &&
            mc_str_eq(own.tenant, key->tenant) && mc_str_eq(own.user, key->user)) {
            return item;
        }
    }
    return NULL;
}

uint64_t mc_disk_answered(struct mc_call *call, struct mc_uuid client, const struct mc_key *key,
                          uint64_t version) {
    struct mc_disks *disks = call->m->disks;
    uint64_t mark = 0;
    mc_lock_acquire(&disks->lock);
    struct disk *d = find_locked(disks, client);
    struct item *item = d ? find_item(&d->late, key, version) : NULL;
    item = d && !item ? find_item(&d->claimed, key, version) : item;
    if (item) {
        mark = item->mark;
        mc_list_del(&item->link);
        free(item);
    }
    mc_lock_release(&disks->lock);
    return mark;
}

void mc_disks_usage(struct mc_master *m, uint64_t *used, uint64_t *capacity) {
    *used = mc_files_bytes(m->files);
    *capacity = m->files ? m->config.root_fs_bytes : 0;
    mc_lock_acquire(&m->disks->lock);
    for (const struct disk *d = m->disks->all; d; d = d->next) {
        *used +=
            d->segment ? atomic_load_explicit(&d->segment->disk_bytes, memory_order_relaxed) : 0;
        *capacity += d->capacity_bytes > 0 ? (uint64_t)d->capacity_bytes : 0;
    }
    mc_lock_release(&m->disks->lock);
}

bool mc_disk_known(struct mc_master *m, struct mc_uuid client) {
    mc_lock_acquire(&m->disks->lock);
    bool known = find_locked(m->disks, client) != NULL;
    mc_lock_release(&m->disks->lock);
    return known;
}

uint64_t mc_disk_replicas(struct mc_master *m, struct mc_uuid client) {
    mc_lock_acquire(&m->disks->lock);
    const struct disk *d = find_locked(m->disks, client);
    uint64_t count = d && d->segment
                         ? atomic_load_explicit(&d->segment->disk_replicas, memory_order_relaxed)
                         : 0;
    mc_lock_release(&m->disks->lock);
    return count;
}

/* ---- everything removed ---- */

void mc_disks_removed_all(struct mc_master *m) {
    mc_lock_acquire(&m->disks->lock);
    for (struct disk *d = m->disks->all; d; d = d->next) {
        /* relaxed: a replica that is just coming clears the flag again, under this lock */
        d->wipe = !d->segment ||
                  atomic_load_explicit(&d->segment->disk_replicas, memory_order_relaxed) == 0;
    }
    mc_lock_release(&m->disks->lock);
}

enum mc_status mc_disk_poll_wipe(struct mc_call *call, struct mc_uuid client, bool *wipe) {
    struct mc_disks *disks = call->m->disks;
    mc_lock_acquire(&disks->lock);
    struct disk *d = find_locked(disks, client);
    if (d) {
        *wipe = d->wipe;
        d->wipe = false;
    }
    mc_lock_release(&disks->lock);
    return d ? MC_OK : MC_SEGMENT_NOT_FOUND;
}
