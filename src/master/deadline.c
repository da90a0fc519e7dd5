/*
 * What ends at a time of its own: soft pins, and the lives of objects that were put with one. Each
 * shard keeps the objects that have either in a binary heap, by whichever comes first.
 *
 * A life begins when the object becomes readable. From its end on the object is not there: every
 * look-up drops it (mc_object_find), and the janitor comes by for the others. No lease outlasts it,
 * so the bytes are free at once; pins do not prolong it. Such an object is never offloaded: a disk
 * that is read again after a restart of the master would bring it back without its end.
 */
#include "master/core.h"

static uint64_t deadline(const struct mc_object_ext *ext) {
    uint64_t soft = ext->soft_until_ms ? ext->soft_until_ms : UINT64_MAX;
    uint64_t life = ext->expires_ms ? ext->expires_ms : UINT64_MAX;
    return mc_min_u64(soft, life);
}

uint64_t mc_deadline_of(const struct mc_object_ext *ext) {
    return deadline(ext);
}

/* ---- the heap ---- */

static void heap_set(struct mc_shard *shard, uint32_t i, struct mc_object_ext *ext) {
    shard->heap[i] = ext;
    ext->heap_index = i;
}

static void heap_sift(struct mc_shard *shard, uint32_t i) {
    struct mc_object_ext *ext = shard->heap[i];
    uint64_t own = deadline(ext);
    while (i > 0 && deadline(shard->heap[(i - 1) / 2]) > own) {
        heap_set(shard, i, shard->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (uint32_t child = 2 * i + 1; child < shard->heap_count; child = 2 * i + 1) {
        if (child + 1 < shard->heap_count &&
            deadline(shard->heap[child + 1]) < deadline(shard->heap[child])) {
            child++;
        }
        if (deadline(shard->heap[child]) >= own) {
            break;
        }
        heap_set(shard, i, shard->heap[child]);
        i = child;
    }
    heap_set(shard, i, ext);
}

static void heap_add(struct mc_shard *shard, struct mc_object_ext *ext) {
    if (shard->heap_count == shard->heap_cap) {
        uint32_t old = shard->heap_cap;
        shard->heap_cap = old ? old * 2 : 8;
        shard->heap = mc_realloc(shard->heap, shard->heap_cap * sizeof(*shard->heap));
        mc_slab_count(&shard->slab, (ptrdiff_t)((shard->heap_cap - old) * sizeof(*shard->heap)));
    }
    ext->in_heap = true;
    heap_set(shard, shard->heap_count++, ext);
    heap_sift(shard, ext->heap_index);
}

static void heap_remove(struct mc_shard *shard, struct mc_object_ext *ext) {
    uint32_t i = ext->heap_index;
    struct mc_object_ext *last = shard->heap[--shard->heap_count];
    ext->in_heap = false;
    if (last != ext) {
        heap_set(shard, i, last);
        heap_sift(shard, i);
    }
}

/* After one of the deadlines has changed. */
static void heap_update(struct mc_shard *shard, struct mc_object_ext *ext) {
    bool has_one = deadline(ext) != UINT64_MAX;
    if (has_one && !ext->in_heap) {
        heap_add(shard, ext);
    } else if (has_one) {
        heap_sift(shard, ext->heap_index);
    } else if (ext->in_heap) {
        heap_remove(shard, ext);
    }
}

static uint64_t after(const struct mc_call *call, uint64_t ttl_ms) { /* saturates */
    return mc_max_u64(call->now_ms + mc_min_u64(ttl_ms, UINT64_MAX - 1 - call->now_ms), 1);
}

/* ---- soft pins ---- */

void mc_soft_pin_restore(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                         uint64_t until_ms) {
    struct mc_object_ext *ext = mc_object_ext(shard, o);
    mc_count(&m->counters.soft_pins, ext->soft_until_ms == 0);
    ext->soft_until_ms = until_ms;
    heap_update(shard, ext);
}

void mc_soft_pin_clear(struct mc_master *m, struct mc_shard *shard, struct mc_object *o) {
    struct mc_object_ext *ext = o->ext;
    if (!ext || !ext->soft_until_ms) {
        return;
    }
    ext->soft_until_ms = 0;
    heap_update(shard, ext);
    mc_count(&m->counters.soft_pins, -1);
}

void mc_soft_pin_pending(struct mc_shard *shard, struct mc_object *o, uint8_t action,
                         uint64_t ttl_ms) {
    if (action == MC_SOFT_PIN_PRESERVE && !o->ext) {
        return;
    }
    struct mc_object_ext *ext = mc_object_ext(shard, o);
    ext->pending_pin = action;
    ext->pending_ttl_ms = ttl_ms;
}

void mc_soft_pin_commit(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    struct mc_object_ext *ext = o->ext;
    if (!ext || ext->pending_pin == MC_SOFT_PIN_PRESERVE) {
        return;
    }
    if (ext->pending_pin == MC_SOFT_PIN_DISABLE) {
        mc_soft_pin_clear(call->m, shard, o);
    } else {
        mc_soft_pin_restore(call->m, shard, o, after(call, ext->pending_ttl_ms));
    }
    ext->pending_pin = MC_SOFT_PIN_PRESERVE;
}

static void soft_pin_ends(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    mc_soft_pin_clear(call->m, shard, o);
    if (o->list == MC_LIST_SOFT_FRESH || o->list == MC_LIST_SOFT_TOUCHED) {
        /* pins last longer than leases, so among the oldest is about where it belongs */
        uint8_t list = o->list == MC_LIST_SOFT_FRESH ? MC_LIST_FRESH : MC_LIST_TOUCHED;
        mc_object_unlist(shard, o);
        mc_list_push_front(&shard->lists[list], &o->link);
        o->list = list;
    }
}

/* ---- lives ---- */

void mc_life_pending(struct mc_shard *shard, struct mc_object *o, uint64_t ttl_ms) {
    if (ttl_ms == 0 && !o->ext) {
        return;
    }
    struct mc_object_ext *ext = mc_object_ext(shard, o);
    ext->life_ms = ttl_ms;
    ext->expires_ms = 0;
    heap_update(shard, ext);
}

void mc_life_begin(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    if (o->ext && o->ext->life_ms) {
        bool longer = call->m->config.break_mode == MC_BREAK_LIVE_ON;
        o->ext->expires_ms = after(call, longer ? 100 * o->ext->life_ms : o->ext->life_ms);
        heap_update(shard, o->ext);
    }
}

bool mc_life_over(const struct mc_object *o, uint64_t now_ms) {
    return o->ext && o->ext->expires_ms && o->ext->expires_ms <= now_ms;
}

void mc_life_end(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                 uint64_t now_ms) {
    struct mc_call call = {.m = m, .now_ms = now_ms};
    mc_count(&m->counters.expired_objects, 1);
    mc_object_discard(&call, shard, o);
}

/* ---- both ---- */

void mc_deadlines_clear(struct mc_master *m, struct mc_shard *shard, struct mc_object *o) {
    mc_soft_pin_clear(m, shard, o);
    mc_life_pending(shard, o, 0);
}

void mc_deadlines_expire(struct mc_call *call, struct mc_shard *shard) {
    while (shard->heap_count && deadline(shard->heap[0]) <= call->now_ms) {
        struct mc_object *o = shard->heap[0]->object;
        if (mc_life_over(o, call->now_ms)) {
            mc_life_end(call->m, shard, o, call->now_ms);
        } else {
            soft_pin_ends(call, shard, o);
        }
    }
}
