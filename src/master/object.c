/*
 * One object: its replicas, the list it is in, its end; and the extents that outlive their objects.
 *
 * An extent may not be handed out again while somebody may still touch it: a reader whose lease has
 * not ended would return another object's bytes. An object that is replaced, or removed by force,
 * while a lease runs, or while a writer that never ended it may still be writing, leaves its
 * extents in the heap of discarded ones, each with the time when it becomes free.
 */
#include "master/core.h"
#include "master/disks.h"
#include "master/files.h"
#include "master/promote.h"
#include "master/tenants.h"

#define DISCARDS_PER_TICK 65536u

/* ---- extents ---- */

/* Only with the test hook of master.h. */
static bool freed_at_put_end(const struct mc_master *m, const struct mc_replica *r) {
    return m->config.break_mode == MC_BREAK_EARLY_FREE && r->status == MC_REPLICA_COMPLETE;
}

void mc_extent_free(struct mc_master *m, const struct mc_replica *r, uint64_t size) {
    if (r->type != MC_REPLICA_MEMORY) {
        atomic_fetch_sub_explicit(&r->segment->disk_bytes, size, memory_order_relaxed);
        /* release: whoever sees 0 may free the segment */
        atomic_fetch_sub_explicit(&r->segment->disk_replicas, 1, memory_order_release);
        return;
    }
    if (freed_at_put_end(m, r)) {
        return;
    }
    mc_allocator_free(r->segment->allocator, mc_replica_extent(r), size);
}

void mc_discard_later(struct mc_master *m, const struct mc_replica *r, uint64_t size,
                      uint64_t free_at_ms) {
    if (r->type != MC_REPLICA_MEMORY) { /* its owner copies before it gives out */
        mc_extent_free(m, r, size);
        return;
    }
    if (freed_at_put_end(m, r)) {
        return;
    }
    mc_lock_acquire(&m->discard_lock);
    if (m->discarded_count == m->discarded_cap) {
        m->discarded_cap = m->discarded_cap ? m->discarded_cap * 2 : 64;
        m->discarded = mc_realloc(m->discarded, m->discarded_cap * sizeof(*m->discarded));
    }
    size_t i = m->discarded_count++;
    for (; i > 0 && m->discarded[(i - 1) / 2].free_at_ms > free_at_ms; i = (i - 1) / 2) {
        m->discarded[i] = m->discarded[(i - 1) / 2];
    }
    m->discarded[i] = (struct mc_discarded){.segment = r->segment,
                                            .extent = mc_replica_extent(r),
                                            .size = size,
                                            .free_at_ms = free_at_ms};
    mc_lock_release(&m->discard_lock);
    mc_count(&m->counters.discards, 1);
    mc_count(&m->counters.discarded_bytes, (int64_t)size);
}

static void discarded_sift_down_locked(struct mc_master *m, size_t i) {
    struct mc_discarded moving = m->discarded[i];
    for (size_t child = 2 * i + 1; child < m->discarded_count; child = 2 * i + 1) {
        if (child + 1 < m->discarded_count &&
            m->discarded[child + 1].free_at_ms < m->discarded[child].free_at_ms) {
            child++;
        }
        if (m->discarded[child].free_at_ms >= moving.free_at_ms) {
            break;
        }
        m->discarded[i] = m->discarded[child];
        i = child;
    }
    m->discarded[i] = moving;
}

static void discarded_free(struct mc_master *m, const struct mc_discarded *d) {
    mc_allocator_free(d->segment->allocator, d->extent, d->size);
    mc_count(&m->counters.discard_releases, 1);
    mc_count(&m->counters.discarded_bytes, -(int64_t)d->size);
}

void mc_discard_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    mc_lock_acquire(&m->discard_lock);
    for (unsigned n = 0; n < DISCARDS_PER_TICK && m->discarded_count > 0 &&
                         m->discarded[0].free_at_ms <= call->now_ms;
         n++) {
        discarded_free(m, &m->discarded[0]);
        m->discarded[0] = m->discarded[--m->discarded_count];
        if (m->discarded_count > 0) {
            discarded_sift_down_locked(m, 0);
        }
    }
    mc_lock_release(&m->discard_lock);
}

void mc_discard_purge_segment(struct mc_master *m, const struct mc_segment *segment) {
    mc_lock_acquire(&m->discard_lock);
    size_t kept = 0;
    for (size_t i = 0; i < m->discarded_count; i++) {
        const struct mc_discarded *d = &m->discarded[i];
        if (d->segment == segment) {
            mc_segment_busy_until(d->segment, d->free_at_ms);
            discarded_free(m, d);
        } else {
            m->discarded[kept++] = *d;
        }
    }
    m->discarded_count = kept;
    for (size_t i = kept / 2; i-- > 0;) {
        discarded_sift_down_locked(m, i);
    }
    mc_lock_release(&m->discard_lock);
}

void mc_discard_destroy(struct mc_master *m) {
    for (size_t i = 0; i < m->discarded_count; i++) {
        discarded_free(m, &m->discarded[i]);
    }
    free(m->discarded);
}

/* ---- events ---- */

static void tell(struct mc_master *m, const struct mc_object *o, unsigned media, bool removed) {
    for (unsigned medium = MC_MEDIUM_MEMORY; medium <= MC_MEDIUM_DISK; medium <<= 1) {
        if (!(media & medium)) {
            continue;
        }
        mc_count(medium == MC_MEDIUM_DISK ? &m->counters.on_disk : &m->counters.in_memory,
                 removed ? -1 : 1);
        if (m->config.on_object_event) {
            struct mc_object_event event = {.removed = removed,
                                            .on_disk = medium == MC_MEDIUM_DISK,
                                            .tenant = mc_object_tenant(o),
                                            .group = mc_group_of(o),
                                            .key = mc_object_key(o)};
            m->config.on_object_event(m->config.on_object_event_ctx, &event);
        }
    }
}

static void announce(struct mc_master *m, struct mc_object *o, unsigned media) {
    unsigned before = o->announced;
    o->announced = (uint8_t)(media & 3u);
    tell(m, o, before & ~media, true);
    tell(m, o, media & ~before, false);
}

void mc_object_announce(struct mc_master *m, struct mc_object *o) {
    unsigned media = 0;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (r->status == MC_REPLICA_COMPLETE) {
            media |= r->type == MC_REPLICA_MEMORY ? MC_MEDIUM_MEMORY : MC_MEDIUM_DISK;
        }
    }
    announce(m, o, media);
}

/* ---- replicas ---- */

static size_t more_bytes(unsigned replica_count) {
    return replica_count > 1 ? (replica_count - 1) * sizeof(struct mc_replica) : 0;
}

void mc_object_set_replicas(struct mc_shard *shard, struct mc_object *o,
                            const struct mc_replica *replicas, unsigned count) {
    MC_ASSERT(count > 0 && count <= MC_MAX_REPLICAS);
    if (o->replica_count > 1) {
        mc_slab_free(&shard->slab, o->more, more_bytes(o->replica_count));
    }
    o->first = replicas[0];
    o->replica_count = (uint8_t)count;
    o->more = NULL;
    if (count > 1) {
        o->more = mc_slab_alloc(&shard->slab, more_bytes(count));
        memcpy(o->more, replicas + 1, more_bytes(count));
    }
}

void mc_object_remove_replica(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                              unsigned i, uint64_t free_at_ms) {
    struct mc_replica kept[MC_MAX_REPLICAS];
    unsigned count = 0;
    struct mc_replica gone = *mc_object_replica(o, i);
    uint64_t bytes = mc_replica_bytes(&gone, o->size);
    for (unsigned k = 0; k < o->replica_count; k++) {
        if (k != i) {
            kept[count++] = *mc_object_replica(o, k);
        }
    }
    if (count) {
        mc_object_set_replicas(shard, o, kept, count);
    } else {
        o->replica_count = 0;
    }
    mc_file_dropped(m, o, &gone);
    mc_object_announce(m, o);
    mc_tenant_refund(m, mc_object_tenant(o), gone.type == MC_REPLICA_MEMORY ? bytes : 0);
    if (free_at_ms) {
        mc_discard_later(m, &gone, bytes, free_at_ms);
    } else {
        mc_extent_free(m, &gone, bytes);
    }
}

enum mc_status mc_object_forget_replica(struct mc_call *call, const struct mc_key *key, int type,
                                        const struct mc_uuid *client) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    enum mc_status status = MC_OBJECT_NOT_FOUND;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(call->m, shard, key);
    for (unsigned i = 0; o && i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        status = MC_REPLICA_NOT_FOUND;
        if (r->type == type && (client == NULL || mc_uuid_eq(r->segment->client, *client))) {
            mc_object_remove_replica(call->m, shard, o, i, 0);
            status = MC_OK;
            if (o->replica_count == 0) {
                mc_object_erase(call->m, shard, o);
            }
            break;
        }
    }
    mc_lock_release(&shard->lock);
    return status;
}

bool mc_object_readable(const struct mc_master *m, struct mc_object *o) {
    if (mc_object_striped(o) && !mc_object_on_disk(o) && !mc_stripes_whole(o, true)) {
        return false;
    }
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->status == MC_REPLICA_COMPLETE ||
            m->config.break_mode == MC_BREAK_EARLY_VISIBLE) {
            return true;
        }
    }
    return false;
}

bool mc_object_complete(struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->status != MC_REPLICA_COMPLETE) {
            return false;
        }
    }
    return true;
}

uint64_t mc_object_written_until(const struct mc_master *m, const struct mc_object *o,
                                 const struct mc_replica *r) {
    uint64_t started = o->started_ms;
    if (mc_replicating(o) && o->list != MC_LIST_PROCESSING) {
        started = o->ext->replication->started_ms;
    }
    return r->status == MC_REPLICA_COMPLETE ? 0 : started + m->config.put_start_release_timeout_ms;
}

bool mc_object_drop_dead(struct mc_master *m, struct mc_shard *shard, struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count;) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (mc_segment_gone(r->segment)) {
            bool complete = r->status == MC_REPLICA_COMPLETE;
            mc_segment_busy_until(r->segment,
                                  complete ? mc_lease_end(m, o) : mc_object_written_until(m, o, r));
            mc_object_remove_replica(m, shard, o, i, 0);
        } else {
            i++;
        }
    }
    mc_stripes_drop_broken(m, shard, o);
    while (mc_replicating(o) && o->replica_count > 0 && !mc_object_readable(m, o)) {
        /* the copy has lost what it is a copy of */
        uint64_t free_at = mc_object_written_until(m, o, &o->first);
        mc_object_remove_replica(m, shard, o, 0, free_at);
    }
    if (o->replica_count == 0) {
        mc_object_erase(m, shard, o);
        return false;
    }
    return true;
}

struct mc_object *mc_object_find(struct mc_master *m, struct mc_shard *shard,
                                 const struct mc_key *key) {
    struct mc_object *o = mc_shard_find(shard, key);
    if (!o) {
        return NULL;
    }
    if (mc_mortal(o)) {
        uint64_t now = mc_now_ms(m->clock); /* not the call's: it may have waited */
        if (mc_life_over(o, now)) {
            mc_life_end(m, shard, o, now);
            return NULL;
        }
    }
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_segment_gone(mc_object_replica(o, i)->segment)) {
            return mc_object_drop_dead(m, shard, o) ? o : NULL;
        }
    }
    return o;
}

/* ---- lists and the end ---- */

void mc_object_unlist(struct mc_shard *shard, struct mc_object *o) {
    for (unsigned i = 0; i < MC_ARRAY_LEN(shard->offload_hand); i++) {
        if (shard->offload_hand[i] == &o->link) {
            shard->offload_hand[i] = o->link.prev;
        }
    }
    mc_list_del(&o->link);
}

void mc_object_list(struct mc_shard *shard, struct mc_object *o, enum mc_object_list list) {
    mc_object_unlist(shard, o);
    o->list = (uint8_t)list;
    if (list != MC_LIST_NONE) {
        mc_list_push_back(&shard->lists[list], &o->link);
    }
}

bool mc_object_in_memory(struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->type == MC_REPLICA_MEMORY) {
            return true;
        }
    }
    return false;
}

void mc_object_list_complete(struct mc_shard *shard, struct mc_object *o, bool touched) {
    enum mc_object_list list = touched ? MC_LIST_TOUCHED : MC_LIST_FRESH;
    if (o->hard_pin || !mc_object_in_memory(o)) {
        list = MC_LIST_NONE;
    } else if (mc_soft_pinned(o)) {
        list = touched ? MC_LIST_SOFT_TOUCHED : MC_LIST_SOFT_FRESH;
    }
    mc_object_list(shard, o, list);
}

struct mc_object_ext *mc_object_ext(struct mc_shard *shard, struct mc_object *o) {
    if (!o->ext) {
        o->ext = mc_slab_alloc(&shard->slab, sizeof(*o->ext));
        *o->ext = (struct mc_object_ext){.object = o};
        mc_list_init(&o->ext->member);
    }
    return o->ext;
}

/* Everything but the extents. */
static void object_forget(struct mc_master *m, struct mc_shard *shard, struct mc_object *o) {
    announce(m, o, 0);
    if (m->tenants) {
        mc_tenant_refund(m, mc_object_tenant(o), mc_object_charge(o));
    }
    mc_object_unlist(shard, o);
    mc_file_unwanted(m, o);
    if (o->ext) {
        mc_replication_drop(m, o);
        mc_promote_withdraw(m, o);
        mc_group_leave(m, o);
        mc_deadlines_clear(m, shard, o);
        mc_slab_free(&shard->slab, o->ext, sizeof(*o->ext));
    }
    if (o->replica_count > 1) {
        mc_slab_free(&shard->slab, o->more, more_bytes(o->replica_count));
    }
    mc_shard_erase(m, shard, o);
}

void mc_object_erase(struct mc_master *m, struct mc_shard *shard, struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        mc_disk_replica_ends(m, o, r);
        mc_file_dropped(m, o, r);
        mc_extent_free(m, r, mc_replica_bytes(r, o->size));
    }
    object_forget(m, shard, o);
}

void mc_object_discard(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    struct mc_master *m = call->m;
    uint64_t readers_until = mc_lease_end(m, o);
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        uint64_t free_at =
            r->status == MC_REPLICA_COMPLETE ? readers_until : mc_object_written_until(m, o, r);
        mc_disk_replica_ends(m, o, r);
        mc_file_dropped(m, o, r);
        if (free_at > call->now_ms) {
            mc_discard_later(m, r, mc_replica_bytes(r, o->size), free_at);
        } else {
            mc_extent_free(m, r, mc_replica_bytes(r, o->size));
        }
    }
    object_forget(m, shard, o);
}

/* ---- descriptors ---- */

void mc_describe(struct mc_call *call, const struct mc_object *o, const struct mc_replica *r,
                 struct mw_replica *out) {
    const struct mc_segment *s = r->segment;
    if (r->type == MC_REPLICA_DISK) {
        mc_file_describe(call, o, r, out);
        return;
    }
    unsigned slot = s->serial % MC_CALL_SEGMENT_CACHE;
    if (call->seen[slot].serial != s->serial) { /* serials start at 1 */
        /* copies: the segment may go as soon as the shard's lock is released */
        struct mc_str endpoint = s->info.te_endpoint.len ? s->info.te_endpoint : s->info.name;
        call->seen[slot].serial = s->serial;
        call->seen[slot].endpoint = mc_arena_str(call->arena, endpoint);
        call->seen[slot].protocol = mc_arena_str(call->arena, s->info.protocol);
    }
    if (r->type == MC_REPLICA_LOCAL_DISK) {
        *out = (struct mw_replica){.id = r->id,
                                   .tag = MW_TAG_LOCAL_DISK,
                                   .local_disk = {.client_id = s->client,
                                                  .object_size = o->size,
                                                  .endpoint = call->seen[slot].endpoint},
                                   .status = r->status};
        return;
    }
    *out = (struct mw_replica){.id = r->id,
                               .tag = MW_TAG_MEMORY,
                               .memory = {.size = mc_replica_bytes(r, o->size),
                                          .address = s->info.base + r->offset,
                                          .protocol = call->seen[slot].protocol,
                                          .endpoint = call->seen[slot].endpoint},
                               .status = r->status};
}

void mc_describe_readable(struct mc_call *call, struct mc_object *o, struct mc_vec *out) {
    struct mw_replica *items = mc_arena_alloc(call->arena, o->replica_count * sizeof(*items));
    size_t count = 0;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (r->status == MC_REPLICA_COMPLETE ||
            call->m->config.break_mode == MC_BREAK_EARLY_VISIBLE) {
            mc_describe(call, o, r, &items[count]);
            items[count++].status = MC_REPLICA_COMPLETE;
        }
    }
    *out = (struct mc_vec){items, count};
}
