/*
 * spray: which rail takes a slice, and when.
 *
 * Each slice goes to the rail where it is predicted to be complete first: bytes ahead of it and its
 * own over the measured bandwidth, plus latency, stretched by the distance between rail and memory.
 * No rail is given more than its window (rail.h); what finds no room waits in one queue for all
 * rails and goes to whichever frees first, so that a slow rail holds up only what it already has. A
 * slow rail with room is passed over when it would finish after all others were done with
 * everything: it must not make the end later.
 *
 * A paused rail gets nothing until its pause is over, then one slice as a probe. A rail that went
 * unused for long gets a slice as well, for what was measured of it may no longer hold.
 *
 * Rails are shared by all threads, and to read or write what another processor wrote last costs as
 * much as choosing for ten slices. So slices are placed in groups: mc_spray_look reads all rails
 * once, mc_spray_choose places slice after slice in that view, each seeing those before it, and
 * mc_spray_commit writes once to each rail that got some. When two threads place at the same time,
 * neither sees the other: the one that commits second hears which rails that made too full, and
 * takes its slices back. In the same way the ends of a group are taken off a rail at once.
 *
 * Choosing and ending are lock-free; the queue is used under the caller's lock. Time is an
 * argument.
 */
#ifndef MC_TE_SPRAY_H
#define MC_TE_SPRAY_H

#include "te/qos.h"
#include "te/rail.h"

/* Which rails may carry a request, and how far they are from its memory. */
struct mc_spray_reach {
    uint8_t distance[MC_RAILS_MAX]; /* mc_rail_distance_code */
    uint16_t rails;                 /* bit per rail that is not MC_RAIL_CANNOT */
};

#define MC_RAIL_CANNOT 255
#define MC_RAIL_STEP   4 /* per cent in one step of a distance */
/* A distance of te.h in a byte. */
static inline uint8_t mc_rail_distance_code(uint32_t percent) {
    if (percent == UINT32_MAX) {
        return MC_RAIL_CANNOT;
    }
    return percent >= (MC_RAIL_CANNOT - 1) * MC_RAIL_STEP
               ? MC_RAIL_CANNOT - 1
               : (uint8_t)((percent + MC_RAIL_STEP - 1) / MC_RAIL_STEP);
}
/* All rails, none farther than another. */
static inline void mc_spray_reach_all(struct mc_spray_reach *reach) {
    memset(reach->distance, 0, sizeof(reach->distance));
    reach->rails = UINT16_MAX;
}

struct mc_spray_item { /* one slice */
    struct mc_qos_item wait;
    uint64_t over_ns;   /* from then on it is placed on no rail; 0 = never */
    uint64_t posted_ns; /* 0 = not known */
    uint64_t ahead;     /* bytes on the rail when posted, its own included; 0 = it is no sample */
    /* Health of each rail's way to this peer; what it points to is NULL until one has failed. */
    _Atomic(struct mc_health *) *links;
    struct mc_spray_reach reach;
    uint16_t tried;   /* bit per rail that failed */
    uint16_t rail;    /* chosen */
    bool held;        /* its bytes count as in flight on the rail */
    bool cautious;    /* never sent to try a rail */
    bool last_resort; /* pauses are ignored: there is no other way left */
};

struct mc_spray {
    struct mc_rail *rails; /* the owner's */
    unsigned count;
    _Atomic uint32_t up;  /* bit per rail */
    _Atomic uint32_t bad; /* bit per rail whose health is not good: a hint that saves looking */
    _Atomic uint64_t look_for_idle_ns; /* not before */
    struct mc_qos queue;
};

void mc_spray_set_up(struct mc_spray *s, unsigned rail, bool up);

/* What one thread has seen of the rails, and what it has placed on them since. On its stack. */
struct mc_spray_view {
    uint64_t now_ns;
    uint64_t longest; /* slice placed */
    unsigned last;    /* rail */
    uint32_t up;      /* bit per rail: up when looked at; of others nothing is known */
    uint32_t touched; /* bit per rail: has something to commit */
    uint32_t probed;  /* bit per rail: a slice goes to try it, whether there is room or not */
    uint32_t first;   /* rail at which looking begins, so that equals take turns */
    bool idle_due;    /* it is time to look for idle rails */
    bool yields;      /* others of this host have urgent bytes on the way */
    bool behind[MC_PRIORITIES]; /* slices wait that go before one of this priority */
    /* When each rail would complete the slice that was asked about last, and by how much later that
     * is with one more like it (in what unit, spray.c says). Slices of a group are mostly alike:
     * then only the rail that got the last one moves. */
    uint64_t ends[MC_RAILS_MAX], steps[MC_RAILS_MAX];
    uint64_t asked_length;
    uint8_t asked_distance[MC_RAILS_MAX];
    struct mc_spray_seen {
        double ns_per_byte, latency_ns;
        uint64_t inflight; /* bytes, what was placed included */
        uint64_t urgent;   /* of them, of the highest priority */
        uint64_t window;
        uint64_t timed_ns, timed_ahead;
        bool timed; /* these two have changed */
        uint64_t placed[MC_PRIORITIES];
    } rails[MC_RAILS_MAX];
};

enum { MC_SPRAY_WAIT = -1, MC_SPRAY_NONE = -2 };

void mc_spray_init(struct mc_spray *s, struct mc_rail *rails, unsigned count,
                   const uint32_t weights[MC_PRIORITIES]);

/* Reads the rails. `yields`: others of this host have urgent bytes on the way, lower priorities
 * keep back. */
void mc_spray_look(const struct mc_spray *s, struct mc_spray_view *v, bool yields, uint64_t now_ns);
/* The rail for this slice, whose bytes it holds once the view is committed; MC_SPRAY_WAIT: wait
 * until a slice ends (one is in flight, or in the view); MC_SPRAY_NONE: no rail may carry it now.
 */
int mc_spray_choose(struct mc_spray *s, struct mc_spray_view *v, struct mc_spray_item *item);
/* The next waiting slice that has a rail, taken out of the queue, or NULL. Slices for which no rail
 * is left, and those whose time is over, are taken out too, with `rail` = MC_RAILS_MAX. Lock held.
 */
struct mc_spray_item *mc_spray_next(struct mc_spray *s, struct mc_spray_view *v);
/* What was placed is in flight from here on: before the first of it is posted. Returns the rails
 * (bit each) which got so much from other threads meanwhile that they hold more than their window:
 * who can lets those slices wait (mc_spray_end, released). */
uint32_t mc_spray_commit(struct mc_spray *s, struct mc_spray_view *v);

/* The end of a slice that did not arrive. */
enum mc_spray_end {
    MC_SPRAY_FAILED,  /* by the rail, or the way over it */
    MC_SPRAY_RELEASED /* ended otherwise: says nothing about the rail */
};
/* It is off its rail. `peer` is any address that stands for the peer.
 * A rail is paused for all when it failed for two peers with no success between; for one, only the
 * way to that peer is. */
void mc_spray_end(struct mc_spray *s, struct mc_spray_item *item, enum mc_spray_end how,
                  const void *peer, uint64_t now_ns);
/* The two halves of the end of slices that arrived: what each says about its rail, and, for a run
 * of them at once, that a rail has so much less in flight. */
void mc_spray_arrived(struct mc_spray *s, struct mc_spray_item *item, uint64_t now_ns);
/* Whether mc_spray_arrived has anything to do: mostly not. */
static inline bool mc_spray_learns(const struct mc_spray *s, const struct mc_spray_item *item) {
    return item->ahead != 0 ||
           (atomic_load_explicit(&s->bad, memory_order_relaxed) >> item->rail & 1) != 0 ||
           (item->links != NULL && atomic_load_explicit(item->links, memory_order_relaxed) != NULL);
}
void mc_spray_release(struct mc_spray *s, unsigned rail, uint8_t priority, uint64_t bytes);

/* Predicted nanoseconds for `length` bytes spread over the rails that this slice may use; < 0 when
 * there is none. */
double mc_spray_predict(const struct mc_spray *s, const struct mc_spray_item *item, uint64_t length,
                        uint64_t now_ns);
/* Whether anything was measured lately. */
bool mc_spray_is_measured(const struct mc_spray *s, uint64_t now_ns);
/* How many rails may carry the slice that it has not tried, paused ones too. */
unsigned mc_spray_usable(const struct mc_spray *s, const struct mc_spray_item *item);
/* Size of the slices of a request: several for each rail, so that all end at about the same time
 * and one that fails costs little, but none so small that its own cost counts. */
#define MC_SPRAY_SLICE_MIN (64u << 10)
uint64_t mc_spray_slice_bytes(uint64_t length, unsigned rails, uint64_t wanted);

#endif
