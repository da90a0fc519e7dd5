/* See sim_rails.h. */
#include "support/sim_rails.h"

#include <stdio.h>
#include <sys/mman.h>

struct sim_transport {
    struct mc_transport base;
    struct sim_rails *world;
    bool backup;
};

static struct sim_rails *starting; /* whose engine is being made */

static struct sim_transport *sim_of(struct mc_transport *t) {
    return mc_container_of(t, struct sim_transport, base);
}

static void rule(struct sim_rails *w, bool kept, const char *what) {
    if (!kept && w->broken[0] == '\0') {
        snprintf(w->broken, sizeof(w->broken), "%s at %llu ns", what,
                 (unsigned long long)w->now_ns);
    }
}

static struct sim_rail *rail_at(struct sim_rails *w, bool backup, unsigned rail) {
    return backup ? &w->backup : &w->rails[rail];
}

/* ---- events ---- */

static bool earlier(const struct sim_rails *w, size_t a, size_t b) {
    return w->events[a].at_ns != w->events[b].at_ns ? w->events[a].at_ns < w->events[b].at_ns
                                                    : w->events[a].number < w->events[b].number;
}

static void swap(struct sim_rails *w, size_t a, size_t b) {
    __typeof__(w->events[0]) t = w->events[a];
    w->events[a] = w->events[b];
    w->events[b] = t;
}

static void push_event(struct sim_rails *w, size_t flight) {
    if (w->event_count == w->event_cap) {
        w->event_cap = w->event_cap * 2 + 64;
        w->events = mc_realloc(w->events, w->event_cap * sizeof(*w->events));
    }
    size_t i = w->event_count++;
    w->events[i].at_ns = w->flights[flight].at_ns;
    w->events[i].number = w->flights[flight].number;
    w->events[i].flight = flight;
    for (; i > 0 && earlier(w, i, (i - 1) / 2); i = (i - 1) / 2) {
        swap(w, i, (i - 1) / 2);
    }
}

static void pop_event(struct sim_rails *w) {
    w->events[0] = w->events[--w->event_count];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t c = 2 * i + 1; c <= 2 * i + 2 && c < w->event_count; c++) {
            least = earlier(w, c, least) ? c : least;
        }
        if (least == i) {
            return;
        }
        swap(w, i, least);
        i = least;
    }
}

static size_t new_flight(struct sim_rails *w) {
    if (w->free_count > 0) {
        return w->free_flights[--w->free_count];
    }
    if (w->flight_count == w->flight_cap) {
        w->flight_cap = w->flight_cap * 2 + 64;
        w->flights = mc_realloc(w->flights, w->flight_cap * sizeof(*w->flights));
        w->free_flights = mc_realloc(w->free_flights, w->flight_cap * sizeof(*w->free_flights));
    }
    return w->flight_count++;
}

/* ---- the transport ---- */

static void fly(struct sim_transport *t, struct mc_slice_op *slice) {
    struct sim_rails *w = t->world;
    struct sim_rail *rail = rail_at(w, t->backup, slice->rail);
    size_t index = new_flight(w);
    struct sim_flight *f = &w->flights[index];
    uint64_t begin = mc_max_u64(w->now_ns, rail->free_at_ns);
    rule(w, slice->rail < (t->backup ? 1 : w->count), "a slice names no rail");
    rule(w, rail->up, "a slice was posted on a rail that is down");
    rule(w, t->backup || rail->distance != UINT32_MAX, "a slice was posted on a rail out of reach");
    *f = (struct sim_flight){.slice = slice,
                             .length = slice->length,
                             .number = w->number++,
                             .status = MC_OK,
                             .rail = slice->rail,
                             .transport = t->backup};
    slice->transport_data[0] = index;
    if (!t->backup && w->count > 1) {
        const struct mc_rail *seen = sim_rail_of(w, slice->rail);
        int64_t probes = mc_metric_get(&seen->probes);
        rail->probed_at_ns = probes != rail->probes ? w->now_ns : rail->probed_at_ns;
        rail->probes = probes;
        rule(w,
             w->now_ns == rail->probed_at_ns || rail->outstanding == 0 ||
                 rail->outstanding <= mc_rail_window(seen, slice->length),
             "a rail was given more than its window");
    }
    rail->posts++;
    rail->outstanding += slice->length;
    if (rail->hung) {
        return;
    }
    if (rail->dead) {
        f->status = MC_ERR_IO;
        f->retryable = true;
        f->at_ns = w->now_ns + rail->fail_ns;
    } else {
        rail->free_at_ns = begin + (uint64_t)((double)slice->length / rail->bandwidth) + 1;
        f->at_ns = rail->free_at_ns + rail->latency_ns;
        if (rail->loss > 0 && mc_rng_below(&w->rng, 1000) < rail->loss) {
            f->status = MC_ERR_TIMEOUT;
            f->retryable = true;
            f->at_ns += rail->timeout_ns;
        }
    }
    push_event(w, index);
}

static enum mc_status sim_post(struct mc_transport *base, struct mc_slice_op **slices,
                               size_t count) {
    struct sim_transport *t = sim_of(base);
    for (size_t i = 0; i < count; i++) {
        rule(t->world,
             slices[i]->rail == slices[0]->rail && slices[i]->segment == slices[0]->segment,
             "one post of several rails or segments");
        fly(t, slices[i]);
    }
    return MC_OK;
}

/* The flight is over; the engine is yet to hear of it. */
static struct mc_slice_op *take_down(struct sim_rails *w, size_t index, enum mc_status status) {
    struct sim_flight *f = &w->flights[index];
    struct mc_slice_op *slice = f->slice;
    struct sim_rail *rail = rail_at(w, f->transport != 0, f->rail);
    rail->outstanding -= f->length;
    rule(w, slice->rail == f->rail && slice->length == f->length, "a slice changed in flight");
    f->slice = NULL;
    w->free_flights[w->free_count++] = index;
    if (status == MC_OK) {
        rail->moved += f->length;
        w->completed++;
        if (w->on_done != NULL) {
            w->on_done(w->ctx, slice);
        }
    }
    return slice;
}

static void land(struct sim_rails *w, size_t index, enum mc_status status, bool retryable) {
    mc_slice_done(take_down(w, index, status), status, retryable);
}

static void sim_cancel(struct mc_transport *base, struct mc_segment *segment, void *task) {
    struct sim_transport *t = sim_of(base);
    struct sim_rails *w = t->world;
    for (size_t i = 0; i < w->flight_count; i++) {
        struct sim_flight *f = &w->flights[i];
        if (f->slice == NULL || f->slice->task != task || f->transport != t->backup) {
            continue;
        }
        if (w->cancels_early) {
            mc_slice_done(f->slice, MC_ERR_TIMEOUT, false);
        } else {
            land(w, i, MC_ERR_TIMEOUT, false);
        }
    }
}

/* All are taken before the first is told: one that is told may be posted again at once. */
static void sim_give_up(struct mc_transport *base, struct mc_segment *segment, void *task,
                        unsigned rail) {
    struct sim_transport *t = sim_of(base);
    struct sim_rails *w = t->world;
    struct mc_slice_op **taken = mc_alloc((w->flight_count + 1) * sizeof(struct mc_slice_op *));
    size_t count = 0;
    for (size_t i = 0; i < w->flight_count; i++) {
        struct sim_flight *f = &w->flights[i];
        if (f->slice != NULL && f->slice->task == task && f->transport == t->backup &&
            f->rail == rail) {
            taken[count++] = take_down(w, i, MC_ERR_TIMEOUT);
        }
    }
    for (size_t i = 0; i < count; i++) {
        mc_slice_done(taken[i], MC_ERR_TIMEOUT, false);
    }
    free(taken);
}

static unsigned sim_rails_of(struct mc_transport *base, struct mc_rail_info *info,
                             unsigned capacity) {
    struct sim_rails *w = sim_of(base)->world;
    for (unsigned i = 0; i < w->count && i < capacity; i++) {
        info[i] = (struct mc_rail_info){
            .numa_node = -1, .bandwidth = w->rails[i].nominal, .up = w->rails[i].up};
        snprintf(info[i].name, sizeof(info[i].name), "sim%u", i);
    }
    return w->count;
}

static uint32_t sim_distance(struct mc_transport *base, unsigned rail,
                             const struct mc_slice_op *slice) {
    return sim_of(base)->world->rails[rail].distance;
}

static uint32_t sim_cost(struct mc_transport *base, struct mc_segment *segment,
                         const struct mc_peer_desc *desc) {
    return sim_of(base)->backup ? 100 : 20;
}

static const struct mc_transport_ops sim_ops, backup_ops;

static enum mc_status start(struct mc_engine *engine, unsigned index, bool backup,
                            struct mc_transport **out) {
    struct sim_transport *t = mc_zalloc(sizeof(*t));
    t->base = (struct mc_transport){backup ? &backup_ops : &sim_ops, engine, index};
    t->world = starting;
    t->backup = backup;
    *out = &t->base;
    return MC_OK;
}
static enum mc_status start_sim(struct mc_engine *e, unsigned index, struct mc_transport **out) {
    return start(e, index, false, out);
}
static enum mc_status start_backup(struct mc_engine *e, unsigned index, struct mc_transport **out) {
    return start(e, index, true, out);
}
static void sim_stop(struct mc_transport *base) {
    free(sim_of(base));
}

static const struct mc_transport_ops sim_ops = {.name = "sim",
                                                .slice_bytes = 1 << 20,
                                                .start = start_sim,
                                                .stop = sim_stop,
                                                .cost = sim_cost,
                                                .rails = sim_rails_of,
                                                .rail_distance = sim_distance,
                                                .post = sim_post,
                                                .cancel = sim_cancel,
                                                .give_up = sim_give_up};
static const struct mc_transport_ops backup_ops = {.name = "backup",
                                                   .slice_bytes = 1 << 20,
                                                   .start = start_backup,
                                                   .stop = sim_stop,
                                                   .cost = sim_cost,
                                                   .post = sim_post,
                                                   .cancel = sim_cancel,
                                                   .give_up = sim_give_up};

/* ---- the world ---- */

static uint64_t sim_now(const struct mc_clock *clock) {
    return mc_container_of(clock, struct sim_rails, clock)->now_ns;
}
static uint64_t sim_wall(const struct mc_clock *clock) {
    return sim_now(clock) / MC_MS;
}

void sim_rails_start(struct sim_rails *w, uint64_t seed) {
    static const struct mc_transport_ops *const table[] = {&sim_ops, &backup_ops};
    struct mc_engine_options options;
    w->clock = (struct mc_clock){sim_now, sim_wall};
    w->now_ns = MC_SEC;
    mc_rng_seed(&w->rng, seed);
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.reactors = 1;
    starting = w;
    enum mc_status status =
        mc_engine_create_with(&options, table, w->has_backup ? 2 : 1, &w->engine);
    MC_ASSERT(status == MC_OK);
    mc_watch_stop(w->engine); /* time is virtual from here on, and the world looks by itself */
    w->engine->watching = false;
    w->engine->clock = &w->clock;
    w->space =
        mmap(NULL, SIM_SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MC_ASSERT(w->space != MAP_FAILED);
    status = mc_memory_register(w->engine, w->space, SIM_SPACE_BYTES, "*", 0);
    MC_ASSERT(status == MC_OK);
}

void sim_rails_stop(struct sim_rails *w) {
    mc_engine_destroy(w->engine);
    munmap(w->space, SIM_SPACE_BYTES);
    free(w->flights);
    free(w->free_flights);
    free(w->events);
}

/* Drops events of flights that the transport had given up. */
static struct sim_flight *next_flight(struct sim_rails *w) {
    while (w->event_count > 0) {
        struct sim_flight *f = &w->flights[w->events[0].flight];
        if (f->slice != NULL && f->number == w->events[0].number) {
            return f;
        }
        pop_event(w);
    }
    return NULL;
}

bool sim_rails_step_until(struct sim_rails *w, uint64_t limit_ns) {
    struct mc_slice_op *arrived[16];
    size_t count = 0;
    struct sim_flight *f = next_flight(w);
    if (f == NULL) {
        return false;
    }
    uint64_t until = mc_max_u64(f->at_ns, mc_min_u64(f->at_ns + w->poll_ns, limit_ns));
    uint8_t transport = f->transport;
    w->now_ns = mc_max_u64(w->now_ns, f->at_ns);
    if (f->status != MC_OK || w->poll_ns == 0) {
        size_t index = w->events[0].flight;
        pop_event(w);
        land(w, index, f->status, f->retryable);
        return true;
    }
    while (f != NULL && f->status == MC_OK && f->transport == transport && f->at_ns <= until &&
           count < MC_ARRAY_LEN(arrived)) {
        size_t index = w->events[0].flight;
        w->now_ns = mc_max_u64(w->now_ns, f->at_ns);
        pop_event(w);
        arrived[count++] = take_down(w, index, MC_OK);
        f = next_flight(w);
    }
    mc_slices_arrived(arrived, count);
    return true;
}

bool sim_rails_step(struct sim_rails *w) {
    return sim_rails_step_until(w, UINT64_MAX);
}

void sim_rails_run_until(struct sim_rails *w, uint64_t at_ns) {
    for (struct sim_flight *f; (f = next_flight(w)) != NULL && f->at_ns <= at_ns;) {
        (void)sim_rails_step_until(w, at_ns);
    }
    w->now_ns = mc_max_u64(w->now_ns, at_ns);
}

void sim_rail_link(struct sim_rails *w, unsigned rail, bool up) {
    w->rails[rail].up = up;
    w->rails[rail].free_at_ns = w->now_ns;
    mc_rail_set_up(w->engine->transports[0], rail, up);
    for (size_t i = 0; !up && i < w->flight_count; i++) {
        struct sim_flight *f = &w->flights[i];
        if (f->slice != NULL && f->transport == 0 && f->rail == rail) {
            land(w, i, MC_ERR_IO, true);
        }
    }
}

void sim_rail_hang(struct sim_rails *w, unsigned rail) {
    w->rails[rail].hung = true;
    for (size_t i = 0; i < w->flight_count; i++) {
        struct sim_flight *f = &w->flights[i];
        if (f->slice != NULL && f->transport == 0 && f->rail == rail) {
            f->number = w->number++; /* its event finds another flight */
        }
    }
}

struct mc_rail *sim_rail_of(struct sim_rails *w, unsigned rail) {
    return &w->engine->dispatch[0].rails[rail];
}
