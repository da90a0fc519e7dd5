/*
 * Which rail takes a slice. See spray.h.
 */
#include "te/spray.h"

#define SCAN_MAX          8 /* waiting slices looked at for one whose rails have room */
#define SLICES_PER_RAIL   8
#define SLICE_MAX_BYTES   (4u << 20)
#define MEDIUM_SHARE_LOG2 1 /* of the window, while urgent bytes are on the way */
#define LOW_SHARE_LOG2    3
#define WHOLE_MAX_NS      ((double)(1ull << 46)) /* 19 hours: so many and a group more fit a word */

_Static_assert((MC_RAILS_MAX & (MC_RAILS_MAX - 1)) == 0, "a turn is some bits of a number");

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
    return atomic_load_explicit(&s->up, memory_order_relaxed) & item->reach.rails & ~item->tried;
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

static double stretch_of(unsigned distance) {
    return 1.0 + distance * (MC_RAIL_STEP / 100.0);
}

/* ---- choosing ---- */

/* Line by line; all are asked for before the first is needed, so that the waits overlap. */
void mc_spray_look(const struct mc_spray *s, struct mc_spray_view *v, bool yields,
                   uint64_t now_ns) {
    bool weighted = mc_qos_weighted(&s->queue);
    v->now_ns = now_ns;
    v->longest = 0;
    v->asked_length = UINT64_MAX; /* of no slice */
    memset(v->ends, 0xff, sizeof(v->ends));
    v->up = atomic_load_explicit(&s->up, memory_order_relaxed);
    v->last = s->count - 1;
    v->touched = 0;
    v->probed = 0;
    v->first = (uint32_t)((now_ns >> 8 & 0xffff) * s->count >> 16);
    v->idle_due = now_ns >= atomic_load_explicit(&s->look_for_idle_ns, memory_order_relaxed);
    v->yields = yields;
    for (uint8_t p = 0; p < MC_PRIORITIES; p++) {
        v->behind[p] = weighted ? mc_qos_waiting(&s->queue) > 0 : mc_qos_before(&s->queue, p) > 0;
    }
    for (uint32_t m = v->up; m != 0; m &= m - 1) {
        __builtin_prefetch(&s->rails[__builtin_ctz(m)], 1);
    }
    for (uint32_t m = v->up; m != 0; m &= m - 1) {
        const struct mc_rail *r = &s->rails[__builtin_ctz(m)];
        struct mc_spray_seen *seen = &v->rails[__builtin_ctz(m)];
        seen->ns_per_byte = atomic_load_explicit(&r->ns_per_byte, memory_order_relaxed);
        seen->latency_ns = atomic_load_explicit(&r->latency_ns, memory_order_relaxed);
        seen->urgent = atomic_load(&r->inflight[0]); /* sequentially consistent: see dispatch.c */
        seen->inflight = seen->urgent + atomic_load(&r->inflight[1]) + atomic_load(&r->inflight[2]);
        seen->window = atomic_load_explicit(&r->window, memory_order_relaxed);
        seen->timed_ns = atomic_load_explicit(&r->timed_ns, memory_order_relaxed);
        seen->timed_ahead = atomic_load_explicit(&r->timed_ahead, memory_order_relaxed);
        seen->timed = false;
        memset(seen->placed, 0, sizeof(seen->placed));
    }
}

/* With so many bytes more than are in flight. */
static double takes_ns(const struct mc_spray_view *v, unsigned rail, uint64_t more) {
    const struct mc_spray_seen *seen = &v->rails[rail];
    double takes = seen->latency_ns + (double)(int64_t)(seen->inflight + more) * seen->ns_per_byte;
    unsigned distance = v->asked_distance[rail];
    return distance == 0 ? takes : takes * stretch_of(distance);
}

/* A time as a whole number: sixty-fourths of a nanosecond, then four bits for the rail's turn. */
static uint64_t whole(double ns) {
    return (ns < WHOLE_MAX_NS ? (uint64_t)(ns * 64) : (uint64_t)WHOLE_MAX_NS * 64) * MC_RAILS_MAX;
}

/* v->ends is about slices like this one from here on. */
static void ask(struct mc_spray_view *v, const struct mc_spray_item *item) {
    uint64_t length = item->wait.length;
    if (v->asked_length == length &&
        memcmp(v->asked_distance, item->reach.distance, sizeof(v->asked_distance)) == 0) {
        return;
    }
    v->asked_length = length;
    memcpy(v->asked_distance, item->reach.distance, sizeof(v->asked_distance));
    for (uint32_t m = v->up; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        double takes = takes_ns(v, rail, length);
        v->ends[rail] = whole(takes) + (rail - v->first) % MC_RAILS_MAX;
        v->steps[rail] = whole(takes_ns(v, rail, 2 * length) - takes);
    }
}

/* Of the window, what this priority may fill. */
static bool has_room(const struct mc_spray *s, const struct mc_spray_view *v, unsigned rail,
                     uint64_t length, uint8_t priority) {
    const struct mc_spray_seen *seen = &v->rails[rail];
    uint64_t window = mc_max_u64(seen->window, 2 * length);
    if (priority != 0 && (v->yields || seen->urgent != 0) && !mc_qos_weighted(&s->queue)) {
        window >>= priority == 1 ? MEDIUM_SHARE_LOG2 : LOW_SHARE_LOG2;
    }
    /* Where there is one rail the urgent ask nobody for room (dispatch.c): who has waited until it
     * is as urgent does not wait for theirs. */
    uint64_t counted = seen->inflight - (s->count == 1 && priority == 0 ? seen->urgent : 0);
    return counted == 0 || counted + length <= window;
}

/* Of the rails in `among` (not 0), the one that completes the slice asked about first; looking
 * begins at v->first. Which one it is nobody can guess, a processor neither: so it is found without
 * a branch. */
static unsigned first_to_end(const struct mc_spray_view *v, uint32_t among) {
    uint64_t best = UINT64_MAX, other = UINT64_MAX;
    if (among == v->up) { /* mostly; the numbers of those that are not up are the largest */
        for (unsigned i = 0; i <= v->last; i += 2) {
            best = v->ends[i] < best ? v->ends[i] : best;
            other = v->ends[i + 1] < other ? v->ends[i + 1] : other;
        }
        best = other < best ? other : best;
        return (unsigned)((best + v->first) % MC_RAILS_MAX);
    }
    for (uint32_t m = among; m != 0; m &= m - 1) {
        uint64_t end = v->ends[__builtin_ctz(m)];
        best = end < best ? end : best;
    }
    return (unsigned)((best + v->first) % MC_RAILS_MAX);
}

static int place(struct mc_spray_view *v, struct mc_spray_item *item, unsigned rail) {
    struct mc_spray_seen *seen = &v->rails[rail];
    uint64_t length = item->wait.length;
    item->rail = (uint16_t)rail;
    item->posted_ns = v->now_ns;
    item->held = true;
    v->touched |= 1u << rail;
    v->longest = mc_max_u64(v->longest, length);
    seen->placed[item->wait.priority] += length;
    seen->urgent += item->wait.priority == 0 ? length : 0;
    seen->inflight += length;
    if (length == v->asked_length) {
        v->ends[rail] += v->steps[rail];
    } else { /* a probe, before any was asked about */
        v->asked_length = UINT64_MAX;
    }
    /* A sample now and then, and much deeper ones of a burst: speed shows in those. */
    bool timed =
        v->now_ns - seen->timed_ns >= MC_RAIL_SAMPLE_NS || seen->inflight / 4 >= seen->timed_ahead;
    item->ahead = timed ? seen->inflight : 0;
    if (timed) {
        seen->timed_ns = v->now_ns;
        seen->timed_ahead = seen->inflight;
        seen->timed = true;
    }
    return (int)rail;
}

/* A rail whose pause is over, or one that was idle for long: one caller wins it. */
static int find_probe(struct mc_spray *s, struct mc_spray_view *v, struct mc_health *links,
                      uint32_t open, uint32_t bad) {
    uint64_t now_ns = v->now_ns;
    for (uint32_t m = bad; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        if (state_of(s, links, rail, now_ns) == MC_PROBING &&
            mc_health_take(&s->rails[rail].health, now_ns) &&
            (links == NULL || mc_health_take(&links[rail], now_ns))) {
            return (int)rail;
        }
    }
    uint64_t due = atomic_load_explicit(&s->look_for_idle_ns, memory_order_relaxed);
    if (!v->idle_due || now_ns < due ||
        !atomic_compare_exchange_strong_explicit(&s->look_for_idle_ns, &due,
                                                 now_ns + MC_RAIL_IDLE_NS / MC_RAILS_MAX,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        return -1;
    }
    for (uint32_t m = open & ~bad; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        const struct mc_spray_seen *seen = &v->rails[rail];
        if (seen->inflight == 0 && now_ns - seen->timed_ns >= MC_RAIL_IDLE_NS) {
            return (int)rail;
        }
    }
    return -1;
}

/* When the rails in `good` would be done with what is in flight and what waits before the slice. */
static double all_done_ns(const struct mc_spray *s, const struct mc_spray_view *v,
                          const struct mc_spray_item *item, uint32_t good) {
    double rate = 0;
    uint64_t bytes = mc_qos_before(&s->queue, item->wait.priority) + item->wait.length;
    for (uint32_t m = good; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        double each = v->rails[rail].ns_per_byte;
        rate += each > 0 ? 1.0 / (each * stretch_of(item->reach.distance[rail])) : 0;
        bytes += v->rails[rail].inflight;
    }
    return rate > 0 ? (double)bytes / rate : 0;
}

/* Among rails with room, where the best has none: a slow one is passed over when it would make the
 * end later. */
static int choose_roomy(const struct mc_spray *s, struct mc_spray_view *v,
                        struct mc_spray_item *item, uint8_t priority, uint32_t good,
                        unsigned best) {
    uint32_t roomy = 0;
    for (uint32_t m = good; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        roomy |= (uint32_t)has_room(s, v, rail, item->wait.length, priority) << rail;
    }
    if (roomy == 0) {
        return MC_SPRAY_WAIT;
    }
    unsigned rail = first_to_end(v, roomy);
    double ns = takes_ns(v, rail, item->wait.length);
    return ns > takes_ns(v, best, item->wait.length) && ns > all_done_ns(s, v, item, good)
               ? MC_SPRAY_WAIT
               : place(v, item, rail);
}

static int choose(struct mc_spray *s, struct mc_spray_view *v, struct mc_spray_item *item,
                  uint8_t priority) {
    struct mc_health *links = links_of(item);
    uint32_t open = v->up & item->reach.rails & ~(uint32_t)item->tried;
    uint32_t bad = item->last_resort ? 0 : bad_rails(s, links, open);
    uint32_t good = open & ~bad;
    if (!item->cautious && (bad != 0 || v->idle_due)) {
        int probe = find_probe(s, v, links, open, bad);
        if (probe >= 0) {
            mc_metric_add(&s->rails[probe].probes, 1);
            v->probed |= 1u << probe;
            return place(v, item, (unsigned)probe);
        }
    }
    if (good == 0) {
        return MC_SPRAY_NONE;
    }
    ask(v, item);
    unsigned best = first_to_end(v, good);
    if (has_room(s, v, best, item->wait.length, priority)) {
        return place(v, item, best);
    }
    return choose_roomy(s, v, item, priority, good, best);
}

int mc_spray_choose(struct mc_spray *s, struct mc_spray_view *v, struct mc_spray_item *item) {
    uint8_t priority = item->wait.priority;
    /* Who waits already goes first. */
    return v->behind[priority] ? MC_SPRAY_WAIT : choose(s, v, item, priority);
}

static void add_placed(struct mc_rail *r, const struct mc_spray_seen *seen) {
    for (unsigned p = 0; p < MC_PRIORITIES; p++) {
        if (seen->placed[p] != 0) {
            atomic_fetch_add(&r->inflight[p], seen->placed[p]);
        }
    }
    if (seen->timed) {
        atomic_store_explicit(&r->timed_ns, seen->timed_ns, memory_order_relaxed);
        atomic_store_explicit(&r->timed_ahead, seen->timed_ahead, memory_order_relaxed);
    }
}

uint32_t mc_spray_commit(struct mc_spray *s, struct mc_spray_view *v) {
    uint32_t overfull = 0;
    for (uint32_t m = v->touched; m != 0; m &= m - 1) {
        unsigned rail = (unsigned)__builtin_ctz(m);
        struct mc_rail *r = &s->rails[rail];
        const struct mc_spray_seen *seen = &v->rails[rail];
        add_placed(r, seen);
        uint64_t inflight = mc_rail_inflight(r);
        bool raced = inflight > seen->inflight && inflight > mc_rail_window(r, v->longest);
        overfull |= (uint32_t)raced << rail & ~v->probed; /* the next probe is 2 s away */
    }
    v->touched = 0;
    return overfull;
}

/* ---- the queue ---- */

/* What keeps a slice waiting that may use every rail keeps all others of its priority and below. */
static bool speaks_for_all(const struct mc_spray *s, const struct mc_spray_item *item) {
    return mc_spray_usable(s, item) == s->count;
}

static struct mc_spray_item *next_of(struct mc_spray *s, struct mc_spray_view *v, uint8_t priority,
                                     bool *full) {
    struct mc_list *queue = &s->queue.queues[priority];
    unsigned scanned = 0;
    for (struct mc_list *at = queue->next; at != queue && scanned < SCAN_MAX; at = at->next) {
        struct mc_spray_item *item = mc_container_of(at, struct mc_spray_item, wait.link);
        if (item->over_ns != 0 && item->over_ns <= v->now_ns) { /* nor may it take a probe */
            item->rail = MC_RAILS_MAX;
            mc_qos_remove(&s->queue, &item->wait, false);
            return item;
        }
        int rail = choose(s, v, item, mc_qos_effective(&item->wait, v->now_ns));
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

struct mc_spray_item *mc_spray_next(struct mc_spray *s, struct mc_spray_view *v) {
    uint8_t order[MC_PRIORITIES];
    unsigned count = mc_qos_order(&s->queue, v->now_ns, order);
    bool full = false;
    for (unsigned i = 0; i < count && !full; i++) {
        struct mc_spray_item *item = next_of(s, v, order[i], &full);
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

void mc_spray_arrived(struct mc_spray *s, struct mc_spray_item *item, uint64_t now_ns) {
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

void mc_spray_release(struct mc_spray *s, unsigned rail, uint8_t priority, uint64_t bytes) {
    /* Sequentially consistent: pairs with mc_qos_push. */
    atomic_fetch_sub(&s->rails[rail].inflight[priority], bytes);
}

void mc_spray_end(struct mc_spray *s, struct mc_spray_item *item, enum mc_spray_end how,
                  const void *peer, uint64_t now_ns) {
    if (how == MC_SPRAY_FAILED) {
        blame(s, item, peer, now_ns);
    }
    if (item->held) { /* last */
        item->held = false;
        mc_spray_release(s, item->rail, item->wait.priority, item->wait.length);
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
        double stretch = stretch_of(item->reach.distance[rail]);
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
    uint64_t least = wanted == 0 ? MC_SPRAY_SLICE_MIN : mc_min_u64(wanted, MC_SPRAY_SLICE_MIN);
    uint64_t most = wanted == 0 ? SLICE_MAX_BYTES : mc_max_u64(wanted, SLICE_MAX_BYTES);
    uint64_t even = length / (rails * SLICES_PER_RAIL) + 1;
    return mc_min_u64(mc_max_u64(even, least), most);
}
