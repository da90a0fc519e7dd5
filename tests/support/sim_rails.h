/*
 * A transport whose rails exist only in virtual time, under the real engine. Each rail carries one
 * slice after the other at its speed; faults are set on rails while the world runs. Nothing is
 * copied: the world keeps account of which bytes it has moved, and of every broken rule it sees.
 *
 * One thread. Time moves only in sim_rails_step.
 */
#ifndef MC_TESTS_SIM_RAILS_H
#define MC_TESTS_SIM_RAILS_H

#include "te/internal.h"

#define SIM_SPACE_BYTES (1ull << 37) /* the thread sanitizer has no room for much more */

struct sim_rail {
    double bandwidth;    /* bytes a nanosecond */
    uint64_t latency_ns; /* beyond transmission */
    uint64_t nominal;    /* told to the engine; 0 = unknown */
    uint32_t distance;   /* told to the engine */
    uint32_t loss;       /* of 1000 slices so many are lost: they fail after timeout_ns */
    uint64_t timeout_ns;
    bool dead; /* every slice fails after fail_ns */
    uint64_t fail_ns;
    bool hung; /* no slice ends, and nobody hears why */
    bool up;   /* a slice posted on a rail that was told down breaks the rules */
    /* account */
    uint64_t free_at_ns;
    uint64_t outstanding;
    int64_t probes; /* that the engine had sent, at the last post; they ask for no room */
    uint64_t probed_at_ns;
    uint64_t moved;
    uint64_t posts;
};

struct sim_flight {
    struct mc_slice_op *slice; /* NULL = free */
    uint64_t at_ns;
    uint64_t number; /* order among equals; also tells a late event from a new flight */
    uint64_t length;
    enum mc_status status;
    bool retryable;
    uint16_t rail;
    uint8_t transport;
};

struct sim_rails {
    struct mc_clock clock; /* first */
    uint64_t now_ns;
    struct mc_rng rng;
    struct mc_engine *engine;
    struct sim_rail rails[MC_RAILS_MAX];
    unsigned count;
    struct sim_rail backup; /* a second transport of one rail */
    bool has_backup;
    /* Slices that arrive within so long are told of together, at the last one's time: as by who
     * polls a completion queue now and then. 0 = each alone. */
    uint64_t poll_ns;
    bool cancels_early; /* says of what is cancelled that it has ended, and goes on moving it */
    char *space;        /* address space for both sides of transfers; never touched */
    struct sim_flight *flights;
    size_t flight_count, flight_cap;
    size_t *free_flights;
    size_t free_count;
    struct { /* a heap by time */
        uint64_t at_ns, number;
        size_t flight;
    } * events;
    size_t event_count, event_cap;
    uint64_t number;
    uint64_t completed; /* slices */
    /* What is known done, by remote address: sorted out by the caller through on_done. */
    void (*on_done)(void *ctx, const struct mc_slice_op *slice);
    void *ctx;
    char broken[200]; /* the first broken rule; "" = none */
};

/* `rails` and `backup` are set by the caller; then the engine starts. Its segment 0 is the peer. */
void sim_rails_start(struct sim_rails *w, uint64_t seed);
void sim_rails_stop(struct sim_rails *w);
/* The next completion, or those that are told of together; false when nothing is in flight. */
bool sim_rails_step(struct sim_rails *w);
/* The same; what arrives after `limit_ns` is not told of with the first. */
bool sim_rails_step_until(struct sim_rails *w, uint64_t limit_ns);
/* Until `at_ns`, completions on the way included. */
void sim_rails_run_until(struct sim_rails *w, uint64_t at_ns);
/* The port of a rail goes down or comes up; slices in flight fail at once. */
void sim_rail_link(struct sim_rails *w, unsigned rail, bool up);
/* The rail hangs, with all that is on it. */
void sim_rail_hang(struct sim_rails *w, unsigned rail);
/* The engine's view of a rail. */
struct mc_rail *sim_rail_of(struct sim_rails *w, unsigned rail);

#endif
