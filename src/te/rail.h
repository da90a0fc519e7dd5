/*
 * rail: what is known of one rail, and whether it may be used.
 *
 * Measured: bytes in flight by priority, bandwidth (an exponential moving average whose time
 * constant is MC_RAIL_TAU_NS: after a step of the input it has gone 63 % of the way in that time),
 * latency (the least seen lately), a histogram, errors. From these follow the predicted completion
 * time of a move and the window: how many bytes may be outstanding, so that no rail holds more than
 * about a millisecond of work and a slow one delays nobody but itself.
 *
 * Health: an error pauses for a time that doubles with each further one; when the time is over, one
 * slice goes as a probe, and its end decides. Nobody needs to wake a paused rail: time does.
 *
 * Nothing here reads a clock; time is an argument, so that the simulator can pass its own. All of
 * it may be called from any thread.
 */
#ifndef MC_TE_RAIL_H
#define MC_TE_RAIL_H

#include <stdatomic.h>

#include "te/qos.h"
#include "te/te.h"

#define MC_RAIL_TAU_NS   (10 * MC_MS) /* time constant of the bandwidth's average */
#define MC_RAIL_QUEUE_NS (1 * MC_MS)  /* work that a rail may hold, beside its latency */
#define MC_RAIL_LATENCY_SPAN_NS                                                                    \
    (1 * MC_SEC)                           /* how long a least latency is remembered, at least     \
                                            */
#define MC_RAIL_IDLE_NS      (100 * MC_MS) /* a rail unused for so long gets a slice to try it */
#define MC_RAIL_TRUST_NS     (1 * MC_SEC)  /* what was measured is believed for so long */
#define MC_RAIL_SAMPLE_NS    20000         /* denser samples add work and no knowledge */
#define MC_ATTEMPT_MIN_NS    (5 * MC_SEC)  /* no attempt is given up sooner, */
#define MC_ATTEMPT_FACTOR    16            /* nor than after so many times what was predicted */
#define MC_PAUSE_MIN_NS      (1 * MC_MS)
#define MC_PAUSE_MAX_NS      (10 * MC_SEC)
#define MC_PROBE_PATIENCE_NS (2 * MC_SEC) /* after which another probe may go */

/* ---- exponential moving average ---- */

struct mc_ewma {
    double value;
    uint64_t at_ns; /* of the last sample; 0 = none yet */
};
/* 1 - e^(-dt/tau). */
double mc_ewma_weight(uint64_t dt_ns, uint64_t tau_ns);
/* The first sample is the value. A sample after a silence longer than tau weighs no more than one
 * after tau: a single odd one does not wipe out what was known. */
void mc_ewma_add(struct mc_ewma *e, double sample, uint64_t now_ns, uint64_t tau_ns);

/* ---- health ---- */

/* Of a rail, and of the way over a rail to one peer. Zero-initialised is healthy. */
struct mc_health {
    _Atomic uint64_t paused_until_ns; /* 0 = healthy */
    _Atomic uint64_t failed_at_ns;    /* last */
    _Atomic uint32_t failures;        /* in a row, or nearly */
};
enum mc_health_state { MC_HEALTHY, MC_PAUSED, MC_PROBING };

static inline bool mc_health_good(const struct mc_health *h) {
    return __builtin_expect(atomic_load_explicit(&h->paused_until_ns, memory_order_relaxed) == 0,
                            1);
}
/* PROBING: the pause is over, and the next slice is the probe. */
enum mc_health_state mc_health_state(const struct mc_health *h, uint64_t now_ns);
/* Whether the caller's slice may go; takes the probe, so that one caller wins it. */
bool mc_health_take(struct mc_health *h, uint64_t now_ns);
/* A slice posted at `posted_ns` failed, or arrived. What was posted before the last failure says
 * nothing about the time after it. */
void mc_health_failed(struct mc_health *h, uint64_t posted_ns, uint64_t now_ns);
void mc_health_arrived(struct mc_health *h, uint64_t posted_ns);
/* Forgets all. */
void mc_health_reset(struct mc_health *h);

/* ---- rail ---- */

struct mc_rail {
    /* Read for every slice: one line. */
    _Atomic uint64_t inflight[MC_PRIORITIES] __attribute__((aligned(MC_CACHE_LINE)));
    _Atomic double ns_per_byte; /* 0 = unknown */
    _Atomic double latency_ns;
    _Atomic uint64_t window;      /* bytes that may be outstanding; 0 = unknown */
    _Atomic uint64_t timed_ns;    /* when a slice was last posted that is to be a sample, */
    _Atomic uint64_t timed_ahead; /* and how many bytes it had ahead */

    /* Read when something failed, written by samples. */
    struct mc_health health;
    struct mc_ewma bandwidth; /* bytes a second */
    double least_latency[2];  /* of this span and of the one before; < 0 = none */
    uint64_t span_began_ns;
    _Atomic uint64_t measured_at_ns; /* 0 = never */
    _Atomic bool up;
    _Atomic bool sampling; /* a thread is inside mc_rail_sample */
    /* The peer that failed last, to tell a bad rail from a bad peer; an address never followed. */
    _Atomic uintptr_t failed_peer;

    /* Counters. Those that a slice changes lie beside each other: one line for it. */
    struct mc_rail_moved {
        struct mc_metric bytes, slices;
    } moved[2][MC_PRIORITIES] __attribute__((aligned(MC_CACHE_LINE)));
    _Atomic uint64_t reached_us; /* latest `due` of an attempt that arrived; watch.c */
    struct mc_metric errors;
    struct mc_metric probes;
    struct mc_histogram latency; /* microseconds, of measured slices */
    struct mc_rail_info info;
};

_Static_assert(offsetof(struct mc_rail, health) == MC_CACHE_LINE, "one line for every slice");

void mc_rail_init(struct mc_rail *rail, const struct mc_rail_info *info);

static inline uint64_t mc_rail_inflight(const struct mc_rail *rail) {
    /* Sequentially consistent: see dispatch.c. */
    return atomic_load(&rail->inflight[0]) + atomic_load(&rail->inflight[1]) +
           atomic_load(&rail->inflight[2]);
}
/* Nanoseconds until a slice of `length` posted now would be complete. With an unknown bandwidth
 * only latency counts. */
static inline double mc_rail_predict(const struct mc_rail *rail, uint64_t length) {
    return atomic_load_explicit(&rail->latency_ns, memory_order_relaxed) +
           (double)(mc_rail_inflight(rail) + length) *
               atomic_load_explicit(&rail->ns_per_byte, memory_order_relaxed);
}
/* Bytes that may be outstanding; at least two slices of this length, so that the wire is never
 * idle between two. */
static inline uint64_t mc_rail_window(const struct mc_rail *rail, uint64_t length) {
    return mc_max_u64(2 * length, atomic_load_explicit(&rail->window, memory_order_relaxed));
}

/* A slice was posted with `ahead` bytes before and including it on the rail, and took `took_ns`. */
void mc_rail_sample(struct mc_rail *rail, uint64_t ahead, uint64_t took_ns, uint64_t now_ns);
/* Bytes a second by the average; the nominal one, or 0, before the first sample. */
double mc_rail_bandwidth(const struct mc_rail *rail);

/* "healthy", "paused", "probing", "down". */
const char *mc_rail_state_name(const struct mc_rail *rail, uint64_t now_ns);

#endif
