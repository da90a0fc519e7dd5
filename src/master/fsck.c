/*
 * The proof that the books balance, for tests, the simulator and `mooncake fsck`.
 *
 * The world stands still: segments_lock and every shard are held. Then: every object is found by
 * its key and is in the list that it names; the extents of all replicas and of all discarded ones
 * are disjoint, are alive in their allocator with that offset and size, and are all that is alive
 * there; the counters equal what they count.
 */
#include "master/core.h"
#include "master/tenants.h"

struct extent {
    struct mc_segment *segment;
    uint64_t offset, size;
};

struct audit {
    struct mc_master *m;
    struct mc_buf *report;
    struct extent *extents;
    size_t count, cap;
    uint64_t objects_in_shard, soft_pins, deadlines;
    struct mc_tenant_audit *tenants;
};

static void fault(struct audit *a, const struct mc_object *o, const char *what) {
    mc_buf_printf(a->report, "object %.*s: %s\n", (int)o->key_len, o->bytes + o->tenant_len, what);
}

static void add_extent(struct audit *a, struct mc_segment *segment, uint32_t handle, uint64_t size,
                       const struct mc_object *o) {
    uint64_t offset = 0, live_size = 0;
    if (!mc_allocator_lookup(segment->allocator, handle, &offset, &live_size) ||
        live_size != size) {
        mc_buf_printf(a->report, "extent of %.*s in segment %.*s is not alive in the allocator\n",
                      o ? (int)o->key_len : 9, o ? o->bytes + o->tenant_len : "(discard)",
                      (int)segment->info.name.len, segment->info.name.ptr);
        return;
    }
    if (a->count == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 1024;
        a->extents = mc_realloc(a->extents, a->cap * sizeof(*a->extents));
    }
    a->extents[a->count++] = (struct extent){segment, offset, size};
}

static bool audit_object(void *ctx, struct mc_shard *shard, struct mc_object *o) {
    struct audit *a = ctx;
    struct mc_key key = {mc_object_tenant(o), mc_object_key(o), mc_object_hash(a->m, o)};
    a->objects_in_shard++;
    a->soft_pins += mc_soft_pinned(o);
    a->deadlines += o->ext && mc_deadline_of(o->ext) != UINT64_MAX;
    mc_tenant_audit_add(a->tenants, o);
    if (mc_shard_of(a->m, key.hash) != shard || mc_shard_find(shard, &key) != o) {
        fault(a, o, "is not found by its key");
    }
    if (o->replica_count == 0) {
        fault(a, o, "has no replica");
    }
    bool writing = !mc_object_complete(o) && !mc_replicating(o);
    if (writing != (o->list == MC_LIST_PROCESSING) ||
        (mc_replicating(o) && o->list != MC_LIST_NONE)) {
        fault(a, o, "is in the wrong list");
    }
    if (mc_object_striped(o) && !mc_stripes_whole(o, false)) {
        fault(a, o, "has lost a stripe");
    }
    if (o->link.next->prev != &o->link || o->link.prev->next != &o->link) {
        fault(a, o, "has a broken list link");
    }
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        uint64_t offset = 0, size = 0;
        if (r->stripes > 0 && i > 0 && mc_object_replica(o, i - 1)->stripes == 0) {
            fault(a, o, "has a stripe behind what is in one piece");
        }
        if (r->type != MC_REPLICA_MEMORY) {
            continue; /* no extent */
        }
        add_extent(a, r->segment, r->handle, mc_replica_bytes(r, o->size), o);
        if (mc_allocator_lookup(r->segment->allocator, r->handle, &offset, &size) &&
            offset != r->offset) {
            fault(a, o, "names another offset than the allocator");
        }
        for (unsigned k = 0; k < i; k++) {
            const struct mc_replica *other = mc_object_replica(o, k);
            if (other->segment->name_hash == r->segment->name_hash && other->stripe == r->stripe) {
                fault(a, o, "has two replicas on one segment name");
            }
        }
    }
    return true;
}

static void audit_lists(struct audit *a, struct mc_shard *shard) {
    for (unsigned list = 0; list < MC_LIST_COUNT; list++) {
        for (struct mc_list *l = shard->lists[list].next; l != &shard->lists[list]; l = l->next) {
            const struct mc_object *o = mc_container_of(l, struct mc_object, link);
            if (o->list != list) {
                fault(a, o, "is in another list than it says");
            }
        }
    }
    for (struct mc_list *l = shard->replicating.next; l != &shard->replicating; l = l->next) {
        const struct mc_replication *r = mc_container_of(l, struct mc_replication, link);
        if (!r->object->ext || r->object->ext->replication != r) {
            fault(a, r->object, "is not being copied as its shard says");
        }
    }
    for (uint32_t i = 1; i < shard->heap_count; i++) {
        if (mc_deadline_of(shard->heap[(i - 1) / 2]) > mc_deadline_of(shard->heap[i])) {
            fault(a, shard->heap[i]->object, "is out of order in the heap of deadlines");
        }
    }
    if (a->deadlines != shard->heap_count) {
        mc_buf_printf(a->report, "heap of deadlines: %u entries, %llu objects have one\n",
                      shard->heap_count, (unsigned long long)a->deadlines);
    }
    a->deadlines = 0;
}

static int by_place(const void *x, const void *y) {
    const struct extent *a = x, *b = y;
    if (a->segment != b->segment) {
        return a->segment->serial < b->segment->serial ? -1 : 1;
    }
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static void audit_segment(struct audit *a, struct mc_segment *segment) {
    uint64_t used = 0, count = 0;
    if (!segment->allocator) {
        return; /* a client's disk */
    }
    for (size_t i = 0; i < a->count; i++) {
        if (a->extents[i].segment == segment) {
            used += a->extents[i].size;
            count++;
        }
    }
    if (used != mc_allocator_used(segment->allocator) ||
        count != mc_allocator_count(segment->allocator)) {
        mc_buf_printf(a->report,
                      "segment %.*s: objects hold %llu bytes in %llu extents, the allocator says "
                      "%llu in %llu\n",
                      (int)segment->info.name.len, segment->info.name.ptr, (unsigned long long)used,
                      (unsigned long long)count,
                      (unsigned long long)mc_allocator_used(segment->allocator),
                      (unsigned long long)mc_allocator_count(segment->allocator));
    }
    (void)mc_allocator_check(segment->allocator, a->report);
}

static void audit_extents(struct audit *a) {
    struct mc_master *m = a->m;
    if (a->count) {
        qsort(a->extents, a->count, sizeof(*a->extents), by_place);
    }
    for (size_t i = 1; i < a->count; i++) {
        const struct extent *x = &a->extents[i - 1], *y = &a->extents[i];
        if (x->segment == y->segment && x->offset + x->size > y->offset) {
            mc_buf_printf(a->report, "segment %.*s: two objects share the byte at %llu\n",
                          (int)x->segment->info.name.len, x->segment->info.name.ptr,
                          (unsigned long long)y->offset);
        }
    }
    for (size_t i = 0; i < m->segment_count; i++) {
        audit_segment(a, m->segments[i]);
    }
    for (struct mc_segment *s = m->retired; s; s = s->next_retired) {
        audit_segment(a, s);
    }
}

static void audit_shards(struct audit *a) {
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        struct mc_shard *shard = &a->m->shards[i];
        a->objects_in_shard = 0;
        mc_shard_each(shard, audit_object, a);
        audit_lists(a, shard);
        if (a->objects_in_shard != mc_shard_count(shard)) {
            mc_buf_printf(a->report, "shard %u: %llu objects, counted %u\n", i,
                          (unsigned long long)a->objects_in_shard, mc_shard_count(shard));
        }
    }
    if (a->soft_pins != (uint64_t)mc_metric_get(&a->m->counters.soft_pins)) {
        mc_buf_printf(a->report, "%llu soft-pinned objects, counted %lld\n",
                      (unsigned long long)a->soft_pins,
                      (long long)mc_metric_get(&a->m->counters.soft_pins));
    }
}

static void audit_discarded(struct audit *a) {
    struct mc_master *m = a->m;
    uint64_t bytes = 0;
    mc_lock_acquire(&m->discard_lock);
    for (size_t i = 0; i < m->discarded_count; i++) {
        const struct mc_discarded *d = &m->discarded[i];
        add_extent(a, d->segment, d->extent.handle, d->size, NULL);
        bytes += d->size;
    }
    mc_lock_release(&m->discard_lock);
    if (bytes != (uint64_t)mc_metric_get(&m->counters.discarded_bytes)) {
        mc_buf_printf(a->report, "%llu discarded bytes, counted %lld\n", (unsigned long long)bytes,
                      (long long)mc_metric_get(&m->counters.discarded_bytes));
    }
}

enum mc_status mc_master_fsck(struct mc_master *m, struct mc_buf *report) {
    struct audit a = {.m = m, .report = report};
    size_t before = report->len;
    pthread_rwlock_wrlock(&m->segments_lock);
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        mc_lock_acquire(&m->shards[i].lock);
    }
    a.tenants = mc_tenant_audit_begin(m);
    audit_shards(&a);
    mc_tenant_audit_end(a.tenants, report);
    audit_discarded(&a);
    audit_extents(&a);
    (void)mc_groups_check(m, report);
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        mc_lock_release(&m->shards[i].lock);
    }
    pthread_rwlock_unlock(&m->segments_lock);
    free(a.extents);
    return report->len == before ? MC_OK : MC_INTERNAL_ERROR;
}
