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
    uint32_t up = 0;
    for (unsigned i = 0; i < count; i++) {
        up |= (uint32_t)atomic_load_explicit(&rails[i].up, memory_order_relaxed) << i;
    }
    s->rails = rails;
    s->count = count;
    atomic_store_explicit(&s->up, up, memory_order_relaxed);
    atomic_store_explicit(&s->bad, 0, memory_order_relaxed);
    atomic_store_explicit(&s->look_for_idle_ns, 0, memory_order_relaxed);
    mc_qos_init(&s->queue, weights);
}

static void set_bit(_Atomic uint32_t *word, unsigned bit, bool on) {
    if (on) {
        atomic_fetch_or_explicit(word, 1u << bit, memory_order_acq_rel);
    } else {
        atomic_fetch_and_explicit(word, ~(1u << bit), memory_order_acq_rel);
    }
}

void mc_spray_set_up(struct mc_spray *s, unsigned rail, bool up) {
    if (up) { /* what it did before says nothing about now */
        mc_health_reset(&s->rails[rail].health);
        set_bit(&s->bad, rail, false);
    }
    atomic_store_explicit(&s->rails[rail].up, up, memory_order_relaxed);
    set_bit(&s->up, rail, up);
}

/* ---- what may be used ---- */

static struct mc_health *links_of(const struct mc_spray_item *item) {
    return item->links == NULL ? NULL : atomic_load_explicit(item->links, memory_order_acquire);
}

/* Up, near enough and not tried; whether it is paused is another matter. */
static uint32_t open_rails(const struct mc_spray *s, const struct mc_spray_item *item) {
    return atomic_load_explicit(&s->up, memory_order_relaxed) & item->reach & ~item->tried;
}

/* Of `open`, those that are not healthy. */
static uint32_t bad_rails(const struct mc_spray *s, const struct mc_health *links, uint32_t open) {
    uint32_t bad = open & atomic_load_explicit(&s->bad, memory_order_relaxed);
    for (uint32_t m = links == NULL ? 0 : open & ~bad; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        bad |= (uint32_t)!mc_health_good(&links[rail]) << rail;
    }
    return bad;
}

static enum mc_health_state state_of(const struct mc_spray *s, const struct mc_health *links,
                                     unsigned rail, uint64_t now_ns) {
    enum mc_health_state a = mc_health_state(&s->rails[rail].health, now_ns);
    enum mc_health_state b = links == NULL ? MC_HEALTHY : mc_health_state(&links[rail], now_ns);
    return a == MC_PAUSED || b == MC_PAUSED ? MC_PAUSED : a == MC_HEALTHY ? b : a;
}

static double stretch_of(const struct mc_spray_item *item, unsigned rail) {
    return 1.0 + item->distance[rail] * (MC_RAIL_STEP / 100.0);
}

/* ---- choosing ---- */

struct view { /* of all healthy rails at one moment, for one slice */
    int best; /* completes it first, room or not */
    int room; /* the same among those that have room */
    double best_ns, room_ns;
    uint64_t inflight;
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

static inline void look_at(const struct mc_spray *s, const struct mc_spray_item *item,
                           unsigned rail, uint8_t priority, bool yields, struct view *v) {
    const struct mc_rail *r = &s->rails[rail];
    uint64_t length = item->wait.length;
    uint64_t inflight = mc_rail_inflight(r);
    double each = atomic_load_explicit(&r->ns_per_byte, memory_order_relaxed);
    double latency = atomic_load_explicit(&r->latency_ns, memory_order_relaxed);
    double takes = latency + (double)(int64_t)(inflight + length) * each;
    if (item->distance[rail] != 0) {
        takes *= stretch_of(item, rail);
    }
    v->inflight += inflight;
    if (v->best < 0 || takes < v->best_ns) {
        v->best = (int)rail;
        v->best_ns = takes;
    }
    if ((v->room < 0 || takes < v->room_ns) &&
        (inflight == 0 || inflight + length <= share(s, r, length, priority, yields))) {
        v->room = (int)rail;
        v->room_ns = takes;
    }
}

static int hold(struct mc_spray *s, struct mc_spray_item *item, unsigned rail, uint64_t now_ns) {
    struct mc_rail *r = &s->rails[rail];
    item->rail = (uint16_t)rail;
    item->posted_ns = now_ns;
    item->held = true;
    atomic_fetch_add(&r->inflight[item->wait.priority], item->wait.length);
    /* A sample now and then, and much deeper ones of a burst: speed shows in those. */
    uint64_t ahead = mc_rail_inflight(r);
    bool timed =
        now_ns - atomic_load_explicit(&r->timed_ns, memory_order_relaxed) >= MC_RAIL_SAMPLE_NS ||
        ahead / 4 >= atomic_load_explicit(&r->timed_ahead, memory_order_relaxed);
    item->ahead = timed ? ahead : 0;
    if (timed) {
        atomic_store_explicit(&r->timed_ns, now_ns, memory_order_relaxed);
        atomic_store_explicit(&r->timed_ahead, ahead, memory_order_relaxed);
    }
    return (int)rail;
}

/* A rail whose pause is over, or one that was idle for long: one caller wins it. */
static int find_probe(struct mc_spray *s, struct mc_health *links, uint32_t open, uint32_t bad,
                      uint64_t now_ns) {
    for (uint32_t m = bad; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        if (state_of(s, links, rail, now_ns) == MC_PROBING &&
            mc_health_take(&s->rails[rail].health, now_ns) &&
            (links == NULL || mc_health_take(&links[rail], now_ns))) {
            return (int)rail;
        }
    }
    uint64_t due = atomic_load_explicit(&s->look_for_idle_ns, memory_order_relaxed);
    if (now_ns < due || !atomic_compare_exchange_strong_explicit(
                            &s->look_for_idle_ns, &due, now_ns + MC_RAIL_IDLE_NS / MC_RAILS_MAX,
                            memory_order_relaxed, memory_order_relaxed)) {
        return -1;
    }
    for (uint32_t m = open & ~bad; m != 0; m &= m - 1) {
        const struct mc_rail *r = &s->rails[__builtin_ctz(m)];
        if (mc_rail_inflight(r) == 0 &&
            now_ns - atomic_load_explicit(&r->timed_ns, memory_order_relaxed) >= MC_RAIL_IDLE_NS) {
            return __builtin_ctz(m);
        }
    }
    return -1;
}

/* When the rails in `good` would be done with what is in flight and what waits before the slice. */
static double all_done_ns(const struct mc_spray *s, const struct mc_spray_item *item, uint32_t good,
                          uint64_t inflight) {
    double rate = 0;
    for (uint32_t m = good; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        double each = atomic_load_explicit(&s->rails[rail].ns_per_byte, memory_order_relaxed);
        rate += each > 0 ? 1.0 / (each * stretch_of(item, rail)) : 0;
    }
    uint64_t bytes = inflight + mc_qos_before(&s->queue, item->wait.priority) + item->wait.length;
    return rate > 0 ? (double)bytes / rate : 0;
}

static int choose(struct mc_spray *s, struct mc_spray_item *item, uint8_t priority, bool yields,
                  uint64_t now_ns) {
    struct view v = {.best = -1, .room = -1};
    struct mc_health *links = links_of(item);
    uint32_t open = open_rails(s, item);
    uint32_t bad = item->last_resort ? 0 : bad_rails(s, links, open);
    uint32_t good = open & ~bad;
    if (!item->cautious) {
        int probe = find_probe(s, links, open, bad, now_ns);
        if (probe >= 0) {
            mc_metric_add(&s->rails[probe].probes, 1);
            return hold(s, item, (unsigned)probe, now_ns);
        }
    }
    if (good == 0) {
        return MC_SPRAY_NONE;
    }
    /* Equals take turns: looking begins anywhere. */
    uint32_t first = (uint32_t)((now_ns >> 8 & 0xffff) * s->count >> 16);
    uint32_t turned = (good >> first | good << (MC_RAILS_MAX - first)) & ((1u << MC_RAILS_MAX) - 1);
    for (uint32_t m = turned; m != 0; m &= m - 1) {
        unsigned rail = ((unsigned)__builtin_ctz(m) + first) % MC_RAILS_MAX;
        look_at(s, item, rail, priority, yields, &v);
    }
    if (v.room < 0 ||
        (v.room_ns > v.best_ns && v.room_ns > all_done_ns(s, item, good, v.inflight))) {
        return MC_SPRAY_WAIT;
    }
    return hold(s, item, (unsigned)v.room, now_ns);
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
    struct mc_health *links = links_of(item);
    struct mc_health *link = links == NULL ? NULL : &links[item->rail];
    uintptr_t before =
        atomic_exchange_explicit(&r->failed_peer, (uintptr_t)peer, memory_order_relaxed);
    if (link != NULL) {
        mc_health_failed(link, item->posted_ns, now_ns);
    }
    if (link == NULL || (before != 0 && before != (uintptr_t)peer) || !mc_health_good(&r->health)) {
        mc_health_failed(&r->health, item->posted_ns, now_ns);
        set_bit(&s->bad, item->rail, true);
    }
}

static void praise(struct mc_spray *s, struct mc_spray_item *item, uint64_t now_ns) {
    struct mc_rail *r = &s->rails[item->rail];
    struct mc_health *links = links_of(item);
    if (links != NULL) {
        mc_health_arrived(&links[item->rail], item->posted_ns);
        if (atomic_load_explicit(&r->failed_peer, memory_order_relaxed) != 0) {
            atomic_store_explicit(&r->failed_peer, 0, memory_order_relaxed);
        }
    }
    if ((atomic_load_explicit(&s->bad, memory_order_relaxed) >> item->rail & 1) != 0) {
        mc_health_arrived(&r->health, item->posted_ns);
        set_bit(&s->bad, item->rail, !mc_health_good(&r->health));
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
    const struct mc_health *links = links_of(item);
    for (uint32_t m = open_rails(s, item); m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        const struct mc_rail *r = &s->rails[rail];
        if (state_of(s, links, rail, now_ns) == MC_PAUSED) {
            continue;
        }
        double stretch = stretch_of(item, rail);
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
    return (unsigned)__builtin_popcount(open_rails(s, item));
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
