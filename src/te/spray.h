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
 * Choosing and ending are lock-free; the queue is used under the caller's lock. Time is an
 * argument.
 */
#ifndef MC_TE_SPRAY_H
#define MC_TE_SPRAY_H

#include "te/qos.h"
#include "te/rail.h"

struct mc_spray_item { /* one slice */
    struct mc_qos_item wait;
    uint64_t posted_ns; /* 0 = not known */
    uint64_t ahead;     /* bytes on the rail when posted, its own included; 0 = it is no sample */
    /* Health of each rail's way to this peer; what it points to is NULL until one has failed. */
    _Atomic(struct mc_health *) *links;
    uint8_t distance[MC_RAILS_MAX]; /* mc_rail_distance_code; set by mc_spray_set_distances */
    uint16_t reach;                 /* bit per rail that is not MC_RAIL_CANNOT */
    uint16_t tried;                 /* bit per rail that failed */
    uint16_t rail;                  /* chosen */
    bool held;                      /* its bytes count as in flight on the rail */
    bool cautious;                  /* never sent to try a rail */
    bool last_resort;               /* pauses are ignored: there is no other way left */
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

struct mc_spray {
    struct mc_rail *rails; /* the owner's */
    unsigned count;
    _Atomic uint32_t up;  /* bit per rail */
    _Atomic uint32_t bad; /* bit per rail whose health is not good: a hint that saves looking */
    _Atomic uint64_t look_for_idle_ns; /* not before */
    struct mc_qos queue;
};

static inline void mc_spray_set_distances(struct mc_spray_item *item,
                                          const uint8_t distance[MC_RAILS_MAX]) {
    memcpy(item->distance, distance, MC_RAILS_MAX);
    item->reach = UINT16_MAX;
    if (__builtin_expect(memchr(distance, MC_RAIL_CANNOT, MC_RAILS_MAX) == NULL, 1)) {
        return; /* asked for each request */
    }
    for (unsigned i = 0; i < MC_RAILS_MAX; i++) {
        item->reach &= (uint16_t) ~((unsigned)(distance[i] == MC_RAIL_CANNOT) << i);
    }
}
void mc_spray_set_up(struct mc_spray *s, unsigned rail, bool up);

enum { MC_SPRAY_WAIT = -1, MC_SPRAY_NONE = -2 };

void mc_spray_init(struct mc_spray *s, struct mc_rail *rails, unsigned count,
                   const uint32_t weights[MC_PRIORITIES]);

/* The rail for this slice, whose bytes it then holds; MC_SPRAY_WAIT: wait until a slice ends (one
 * is in flight); MC_SPRAY_NONE: no rail may carry it now. `yields`: others of this host have urgent
 * bytes on the way, lower priorities keep back. */
int mc_spray_choose(struct mc_spray *s, struct mc_spray_item *item, bool yields, uint64_t now_ns);

/* The next waiting slice that has a rail, taken out of the queue, or NULL. Slices for which no rail
 * is left are taken out too, with `rail` = MC_RAILS_MAX. Lock held. */
struct mc_spray_item *mc_spray_next(struct mc_spray *s, bool yields, uint64_t now_ns);

enum mc_spray_end {
    MC_SPRAY_ARRIVED,
    MC_SPRAY_FAILED,  /* by the rail, or the way over it */
    MC_SPRAY_RELEASED /* ended otherwise: says nothing about the rail */
};
/* A slice that was on a rail has ended. `peer` is any address that stands for the peer.
 * A rail is paused for all when it failed for two peers with no success between; for one, only the
 * way to that peer is. */
void mc_spray_end(struct mc_spray *s, struct mc_spray_item *item, enum mc_spray_end how,
                  const void *peer, uint64_t now_ns);

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
uint64_t mc_spray_slice_bytes(uint64_t length, unsigned rails, uint64_t wanted);

#endif
