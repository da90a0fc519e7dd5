/*
 * Which rail takes a slice. See spray.h.
 */
#include "te/spray.h"

#define SCAN_MAX          8 /* waiting slices looked at for one whose rails have room */
#define SLICES_PER_RAIL   8
#define SLICE_MIN_BYTES   (64u << 10)
#define SLICE_MAX_BYTES   (4u << 20)
#define MEDIUM_SHARE_LOG2 1 /* of the window, while urgent bytes are on the way */
#define LOW_SHARE_LOG2    3

void mc_spray_init(struct mc_spray *s, struct mc_rail *rails, unsigned count,
                   const uint32_t weights[MC_PRIORITIES]) {
    s->rails = rails;
    s->count = count;
    atomic_store_explicit(&s->turn, 0, memory_order_relaxed);
    mc_qos_init(&s->queue, weights);
}

static struct mc_health *link_of(const struct mc_spray_item *item, unsigned rail) {
    struct mc_health *links =
        item->links == NULL ? NULL : atomic_load_explicit(item->links, memory_order_acquire);
    return links == NULL ? NULL : &links[rail];
}

/* Up, near enough and not tried; whether it is paused is another matter. */
static bool is_open(const struct mc_spray *s, const struct mc_spray_item *item, unsigned rail) {
    return atomic_load_explicit(&s->rails[rail].up, memory_order_relaxed) &&
           (item->tried >> rail & 1) == 0 && item->distance[rail] != MC_RAIL_CANNOT;
}

static double stretch_of(const struct mc_spray_item *item, unsigned rail) {
    return 1.0 + item->distance[rail] * (MC_RAIL_STEP / 100.0);
}

static enum mc_health_state state_of(const struct mc_spray *s, const struct mc_spray_item *item,
                                     unsigned rail, uint64_t now_ns) {
    const struct mc_health *link = link_of(item, rail);
    const struct mc_rail *r = &s->rails[rail];
    if (mc_health_good(&r->health) && (link == NULL || mc_health_good(link))) {
        return MC_HEALTHY;
    }
    enum mc_health_state a = mc_health_state(&r->health, now_ns);
    enum mc_health_state b = link == NULL ? MC_HEALTHY : mc_health_state(link, now_ns);
    return a == MC_PAUSED || b == MC_PAUSED ? MC_PAUSED : MC_PROBING;
}

/* ---- choosing ---- */

struct view {  /* of all rails at one moment, for one slice */
    int best;  /* completes it first, room or not */
    int room;  /* the same among those that have room */
    int probe; /* its pause is over, or it was idle for long */
    bool probe_paused;
    double best_ns, room_ns;
    double work_ns_rate; /* bytes a nanosecond of all */
    uint64_t inflight;
    bool any; /* some rail is healthy */
};

/* Of the window, what this priority may fill. */
static uint64_t share(const struct mc_spray *s, const struct mc_rail *rail, uint64_t length,
                      uint8_t priority, bool yields) {
    uint64_t window = mc_rail_window(rail, length);
    if (priority == 0 || mc_qos_weighted(&s->queue) ||
        (!yields && atomic_load_explicit(&rail->inflight[0], memory_order_relaxed) == 0)) {
        return window;
    }
    return window >> (priority == 1 ? MEDIUM_SHARE_LOG2 : LOW_SHARE_LOG2);
}

static void look_at(const struct mc_spray *s, const struct mc_spray_item *item, unsigned rail,
                    uint8_t priority, bool yields, uint64_t now_ns, struct view *v) {
    const struct mc_rail *r = &s->rails[rail];
    uint64_t length = item->wait.length;
    uint64_t inflight = mc_rail_inflight(r);
    enum mc_health_state state = state_of(s, item, rail, now_ns);
    if (state != MC_HEALTHY && !item->last_resort) {
        if (state == MC_PROBING && (v->probe < 0 || !v->probe_paused)) {
            v->probe = (int)rail;
            v->probe_paused = true;
        }
        return;
    }
    double each = atomic_load_explicit(&r->ns_per_byte, memory_order_relaxed);
    double latency = atomic_load_explicit(&r->latency_ns, memory_order_relaxed);
    double stretch = stretch_of(item, rail);
    double takes = (latency + (double)(inflight + length) * each) * stretch;
    v->any = true;
    v->inflight += inflight;
    v->work_ns_rate += each > 0 ? 1.0 / (each * stretch) : 0;
    if (v->best < 0 || takes < v->best_ns) {
        v->best = (int)rail;
        v->best_ns = takes;
    }
    if ((inflight == 0 || inflight + length <= share(s, r, length, priority, yields)) &&
        (v->room < 0 || takes < v->room_ns)) {
        v->room = (int)rail;
        v->room_ns = takes;
    }
    if (v->probe < 0 && inflight == 0 &&
        now_ns - atomic_load_explicit(&r->last_post_ns, memory_order_relaxed) >= MC_RAIL_IDLE_NS) {
        v->probe = (int)rail;
        v->probe_paused = false;
    }
}

/* One caller wins a probe. */
static bool take_probe(struct mc_spray *s, const struct mc_spray_item *item, const struct view *v,
                       uint64_t now_ns) {
    struct mc_rail *r = &s->rails[v->probe];
    if (!v->probe_paused) {
        uint64_t last = atomic_load_explicit(&r->last_post_ns, memory_order_relaxed);
        return now_ns - last >= MC_RAIL_IDLE_NS &&
               atomic_compare_exchange_strong_explicit(&r->last_post_ns, &last, now_ns,
                                                       memory_order_relaxed, memory_order_relaxed);
    }
    struct mc_health *link = link_of(item, (unsigned)v->probe);
    return mc_health_take(&r->health, now_ns) && (link == NULL || mc_health_take(link, now_ns));
}

static int hold(struct mc_spray *s, struct mc_spray_item *item, int rail, uint64_t now_ns) {
    struct mc_rail *r = &s->rails[rail];
    item->rail = (uint16_t)rail;
    item->posted_ns = now_ns;
    item->held = true;
    atomic_fetch_add(&r->inflight[item->wait.priority], item->wait.length);
    item->ahead = mc_rail_inflight(r);
    atomic_store_explicit(&r->last_post_ns, now_ns, memory_order_relaxed);
    return rail;
}

static int choose(struct mc_spray *s, struct mc_spray_item *item, uint8_t priority, bool yields,
                  uint64_t now_ns) {
    struct view v = {.best = -1, .room = -1, .probe = -1};
    unsigned first = atomic_load_explicit(&s->turn, memory_order_relaxed);
    atomic_store_explicit(&s->turn, first + 1, memory_order_relaxed);
    for (unsigned i = 0; i < s->count; i++) {
        unsigned rail = (first + i) % s->count;
        if (is_open(s, item, rail)) {
            look_at(s, item, rail, priority, yields, now_ns, &v);
        }
    }
    if (v.probe >= 0 && v.probe != v.room && !item->cautious && take_probe(s, item, &v, now_ns)) {
        mc_metric_add(&s->rails[v.probe].probes, 1);
        return hold(s, item, v.probe, now_ns);
    }
    if (!v.any) {
        return MC_SPRAY_NONE;
    }
    if (v.room < 0) {
        return MC_SPRAY_WAIT;
    }
    if (v.room != v.best && v.room_ns > v.best_ns) {
        /* When all rails would be done with what is in flight and what waits before this slice. */
        double backlog = (double)(v.inflight + mc_qos_before(&s->queue, item->wait.priority) +
                                  item->wait.length);
        if (v.work_ns_rate > 0 && v.room_ns > backlog / v.work_ns_rate) {
            return MC_SPRAY_WAIT;
        }
    }
    return hold(s, item, v.room, now_ns);
}

int mc_spray_choose(struct mc_spray *s, struct mc_spray_item *item, bool yields, uint64_t now_ns) {
    /* Who waits already goes first. */
    uint8_t priority = item->wait.priority;
    bool behind = mc_qos_weighted(&s->queue) ? mc_qos_waiting(&s->queue) > 0
                                             : mc_qos_before(&s->queue, priority) > 0;
    if (behind) {
        return MC_SPRAY_WAIT;
    }
    return choose(s, item, priority, yields, now_ns);
}

/* ---- the queue ---- */

/* What keeps a slice waiting that may use every rail keeps all others of its priority and below. */
static bool speaks_for_all(const struct mc_spray *s, const struct mc_spray_item *item) {
    return mc_spray_usable(s, item) == s->count;
}

static struct mc_spray_item *next_of(struct mc_spray *s, uint8_t priority, bool yields,
                                     uint64_t now_ns, bool *full) {
    struct mc_list *queue = &s->queue.queues[priority];
    unsigned scanned = 0;
    for (struct mc_list *at = queue->next; at != queue && scanned < SCAN_MAX; at = at->next) {
        struct mc_spray_item *item = mc_container_of(at, struct mc_spray_item, wait.link);
        int rail = choose(s, item, mc_qos_effective(&item->wait, now_ns), yields, now_ns);
        if (rail == MC_SPRAY_WAIT) {
            if (speaks_for_all(s, item)) {
                *full = true;
                return NULL;
            }
            scanned++;
            continue;
        }
        if (rail == MC_SPRAY_NONE) {
            item->rail = MC_RAILS_MAX;
        }
        mc_qos_remove(&s->queue, &item->wait, rail >= 0);
        return item;
    }
    return NULL;
}

struct mc_spray_item *mc_spray_next(struct mc_spray *s, bool yields, uint64_t now_ns) {
    uint8_t order[MC_PRIORITIES];
    unsigned count = mc_qos_order(&s->queue, now_ns, order);
    bool full = false;
    for (unsigned i = 0; i < count && !full; i++) {
        struct mc_spray_item *item = next_of(s, order[i], yields, now_ns, &full);
        if (item != NULL) {
            return item;
        }
    }
    return NULL;
}

/* ---- the end of a slice ---- */

static void blame(struct mc_spray *s, struct mc_spray_item *item, const void *peer,
                  uint64_t now_ns) {
    struct mc_rail *r = &s->rails[item->rail];
    struct mc_health *link = link_of(item, item->rail);
    uintptr_t before =
        atomic_exchange_explicit(&r->failed_peer, (uintptr_t)peer, memory_order_relaxed);
    if (link != NULL) {
        mc_health_failed(link, item->posted_ns, now_ns);
    }
    if (link == NULL || (before != 0 && before != (uintptr_t)peer) || !mc_health_good(&r->health)) {
        mc_health_failed(&r->health, item->posted_ns, now_ns);
    }
}

static void praise(struct mc_spray *s, struct mc_spray_item *item, uint64_t now_ns) {
    struct mc_rail *r = &s->rails[item->rail];
    struct mc_health *link = link_of(item, item->rail);
    if (atomic_load_explicit(&r->failed_peer, memory_order_relaxed) != 0) {
        atomic_store_explicit(&r->failed_peer, 0, memory_order_relaxed);
    }
    mc_health_arrived(&r->health, item->posted_ns);
    if (link != NULL) {
        mc_health_arrived(link, item->posted_ns);
    }
    if (item->ahead != 0) {
        mc_rail_sample(r, item->ahead, now_ns - item->posted_ns, now_ns);
    }
}

void mc_spray_end(struct mc_spray *s, struct mc_spray_item *item, enum mc_spray_end how,
                  const void *peer, uint64_t now_ns) {
    if (how == MC_SPRAY_ARRIVED) {
        praise(s, item, now_ns);
    } else if (how == MC_SPRAY_FAILED) {
        blame(s, item, peer, now_ns);
    }
    if (item->held) { /* last, and sequentially consistent: pairs with mc_qos_push */
        item->held = false;
        atomic_fetch_sub(&s->rails[item->rail].inflight[item->wait.priority], item->wait.length);
    }
}

/* ---- planning ---- */

double mc_spray_predict(const struct mc_spray *s, const struct mc_spray_item *item, uint64_t length,
                        uint64_t now_ns) {
    double rate = 0, latency = -1;
    uint64_t inflight = 0;
    for (unsigned i = 0; i < s->count; i++) {
        const struct mc_rail *r = &s->rails[i];
        if (!is_open(s, item, i) || state_of(s, item, i, now_ns) == MC_PAUSED) {
            continue;
        }
        double stretch = stretch_of(item, i);
        double each = atomic_load_explicit(&r->ns_per_byte, memory_order_relaxed);
        double own = atomic_load_explicit(&r->latency_ns, memory_order_relaxed);
        latency = latency < 0 || own < latency ? own : latency;
        rate += each > 0 ? 1.0 / (each * stretch) : 0;
        inflight += mc_rail_inflight(r);
    }
    return latency < 0 ? -1 : latency + (rate > 0 ? (double)(inflight + length) / rate : 0);
}

bool mc_spray_is_measured(const struct mc_spray *s, uint64_t now_ns) {
    for (unsigned i = 0; i < s->count; i++) {
        uint64_t at = atomic_load_explicit(&s->rails[i].measured_at_ns, memory_order_relaxed);
        if (at != 0 && now_ns - at < MC_RAIL_TRUST_NS) {
            return true;
        }
    }
    return false;
}

unsigned mc_spray_usable(const struct mc_spray *s, const struct mc_spray_item *item) {
    unsigned usable = 0;
    for (unsigned i = 0; i < s->count; i++) {
        usable += is_open(s, item, i);
    }
    return usable;
}

uint64_t mc_spray_slice_bytes(uint64_t length, unsigned rails, uint64_t wanted) {
    if (rails <= 1) {
        return wanted;
    }
    uint64_t least = wanted == 0 ? SLICE_MIN_BYTES : mc_min_u64(wanted, SLICE_MIN_BYTES);
    uint64_t most = wanted == 0 ? SLICE_MAX_BYTES : mc_max_u64(wanted, SLICE_MAX_BYTES);
    uint64_t even = length / (rails * SLICES_PER_RAIL) + 1;
    return mc_min_u64(mc_max_u64(even, least), most);
}
