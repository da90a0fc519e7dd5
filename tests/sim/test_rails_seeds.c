/*
 * The real engine over simulated rails, in virtual time, under 10,000 random lives: rails of any
 * speed that slow down, lose slices, die with or without a word, hang, flap and return, while
 * requests of all sizes and priorities are under way, some with deadlines. In some lives all ways
 * hang at once, for ever or for a while. After each life:
 *
 *  - every request has ended, and completed where a healthy way remained and time was left;
 *  - none outlived its deadline, and where all ways only hung none with a deadline ended before it
 *    but by completing, which those did that had time left when the ways came back;
 *  - memory was handed back once, with nothing in flight to it, and nothing moved to it later;
 *  - every byte of a completed request was moved, and none again once it was known to be moved;
 *  - no slice went to a rail that was down or out of reach, none is left anywhere;
 *  - a rail held no more than its window while slices waited.
 *
 * A seed replays: `sim_test_rails_seeds --seed 4711`. `--seeds N` and `--from N` choose others;
 * `--break NAME` sabotages the engine, and then it is an error when no seed notices.
 */
#include <stdio.h>

#include "base/log.h"
#include "support/sim_rails.h"

#define SEEDS        10000
#define REQUESTS_MAX 24
#define SLOT_BYTES   (64ull << 20)
#define BLOCK        4096
#define FAULTS_MAX   16
#define GIVE_UP_NS   (3000 * MC_SEC)
#define RECOVERY_NS  (20 * MC_SEC) /* after all ways hung: some attempts of 5 s, and their rests */

enum sabotage { NONE, RESEND, FORGET, WRONG_LINK, DOUBLE_BOOK, EARLY, LATE, SABOTAGES };
static const char *const sabotages[] = {"none",        "resend", "forget", "wrong-link",
                                        "double-book", "early",  "late"};

struct request {
    struct mc_batch *batch;
    uint64_t offset; /* in the space */
    uint64_t length;
    uint64_t begins_ns;
    uint64_t deadline_ns;
    uint8_t priority;
    uint64_t moved;
    enum mc_task_state end;
    bool submitted, ended;
};

struct fault {
    uint64_t at_ns;
    unsigned rail;
    enum { SLOW, FAST, LOSSY, DEAD, ALIVE, DOWN, UP, HUNG } what;
};

struct life {
    struct sim_rails w;
    struct mc_rng rng;
    enum sabotage sabotage;
    bool sabotaged;
    unsigned safe_rail; /* never harmed; MC_RAILS_MAX = the backup is the safe one, or nothing */
    bool healthy_way;
    bool blackout;       /* all ways hang, and nothing else happens to them */
    uint64_t returns_ns; /* when the last way is back */
    struct request requests[REQUESTS_MAX];
    unsigned count;
    struct fault faults[FAULTS_MAX];
    unsigned fault_count;
    bool hung;         /* a rail, once */
    uint64_t watch_ns; /* when the engine looks for what hangs */
    uint8_t *known;    /* a bit per block of the space in use: known to be moved */
    char why[300];
    struct life *next; /* of those that were given up */
};

static void complain(struct life *l, const char *what, unsigned request) {
    if (l->why[0] == '\0') {
        snprintf(l->why, sizeof(l->why), "%s request=%u length=%llu moved=%llu at=%llu", what,
                 request, (unsigned long long)l->requests[request].length,
                 (unsigned long long)l->requests[request].moved, (unsigned long long)l->w.now_ns);
    }
}

/* ---- the account ---- */

static void on_done(void *ctx, const struct mc_slice_op *slice) {
    struct life *l = ctx;
    uint64_t offset = slice->remote - (uint64_t)(uintptr_t)l->w.space;
    unsigned index = (unsigned)(offset / SLOT_BYTES);
    struct request *r = &l->requests[index];
    if (r->ended) {
        complain(l, "bytes were moved to memory that had been handed back", index);
    }
    if ((uint64_t)(slice->local - l->w.space) != offset) {
        complain(l, "a slice pairs the wrong addresses", index);
    }
    for (uint64_t b = offset / BLOCK; b < (offset + slice->length + BLOCK - 1) / BLOCK; b++) {
        if ((l->known[b / 8] >> (b % 8) & 1) != 0) {
            complain(l, "a block that was known to be moved was moved again", index);
        }
        l->known[b / 8] |= (uint8_t)(1u << (b % 8));
    }
    r->moved += slice->length;
}

/* ---- a random life ---- */

static uint64_t between(struct life *l, uint64_t low, uint64_t high) {
    return low + mc_rng_below(&l->rng, high - low + 1);
}
static bool chance(struct life *l, unsigned percent) {
    return mc_rng_below(&l->rng, 100) < percent;
}

static void make_rail(struct life *l, struct sim_rail *r) {
    r->bandwidth = (double)between(l, 1, 50);
    r->latency_ns = between(l, 1000, 50000);
    r->nominal = chance(l, 50) ? 0 : (uint64_t)(r->bandwidth * (chance(l, 30) ? 4e9 : 1e9));
    r->distance = chance(l, 20) ? (uint32_t)between(l, 1, 200) : 0;
    r->timeout_ns = between(l, 1, 20) * MC_MS;
    r->fail_ns = between(l, 1000, 20 * MC_MS);
    r->up = true;
}

/* Every rail hangs within a few milliseconds; half the time all come back later. */
static void make_blackout(struct life *l) {
    uint64_t begins = l->w.now_ns + between(l, 0, 60 * MC_MS);
    uint64_t returns = chance(l, 50) ? begins + between(l, 1, 100 * MC_SEC) : 0;
    l->returns_ns = UINT64_MAX;
    for (unsigned i = 0; i < l->w.count; i++) {
        l->faults[l->fault_count++] = (struct fault){begins + between(l, 0, 5 * MC_MS), i, HUNG};
    }
    for (unsigned i = 0; returns > 0 && i < l->w.count; i++) {
        uint64_t at = returns + between(l, 6, 50) * MC_MS;
        l->faults[l->fault_count++] = (struct fault){at, i, ALIVE};
        l->returns_ns = i == 0 ? at : mc_max_u64(l->returns_ns, at);
    }
}

static void make_faults(struct life *l) {
    l->blackout = !l->healthy_way && chance(l, 50);
    if (l->blackout) {
        make_blackout(l);
        return;
    }
    l->fault_count = (unsigned)between(l, 0, FAULTS_MAX);
    for (unsigned i = 0; i < l->fault_count; i++) {
        l->faults[i] =
            (struct fault){l->w.now_ns + between(l, 0, 60 * MC_MS),
                           (unsigned)between(l, 0, l->w.count - 1), (int)between(l, SLOW, HUNG)};
    }
}

static void make_world(struct life *l, uint64_t seed) {
    struct sim_rails *w = &l->w;
    mc_rng_seed(&l->rng, seed);
    w->count = (unsigned)between(l, 1, 8);
    for (unsigned i = 0; i < w->count; i++) {
        make_rail(l, &w->rails[i]);
        if (w->count > 2 && chance(l, 5)) {
            w->rails[i].distance = UINT32_MAX;
        }
    }
    w->has_backup = chance(l, 40);
    make_rail(l, &w->backup);
    l->safe_rail = chance(l, 60) ? (unsigned)between(l, 0, w->count - 1) : MC_RAILS_MAX;
    if (l->safe_rail < MC_RAILS_MAX) {
        w->rails[l->safe_rail].distance = 0;
    }
    l->healthy_way = w->has_backup || l->safe_rail < MC_RAILS_MAX;
    w->poll_ns = chance(l, 50) ? between(l, 1, 50000) : 0;
    w->on_done = on_done;
    w->ctx = l;
    sim_rails_start(w, seed);
    make_faults(l);
}

static void make_requests(struct life *l) {
    l->count = (unsigned)between(l, 1, REQUESTS_MAX);
    l->known = mc_zalloc(REQUESTS_MAX * SLOT_BYTES / BLOCK / 8);
    for (unsigned i = 0; i < l->count; i++) {
        struct request *r = &l->requests[i];
        uint64_t most = 1ull << between(l, 12, 26);
        r->offset = i * SLOT_BYTES;
        r->length = between(l, 1, most);
        r->begins_ns = l->w.now_ns + between(l, 0, 50 * MC_MS);
        r->priority = (uint8_t)(chance(l, 50) ? 0 : between(l, 0, 2));
        uint64_t patience = l->blackout && chance(l, 70) ? 200 * MC_SEC : 20 * MC_MS;
        bool has_deadline = chance(l, l->blackout ? 70 : 10);
        r->deadline_ns = has_deadline ? r->begins_ns + between(l, 1, patience) : MC_WAIT_FOREVER;
    }
}

static void strike(struct life *l, const struct fault *f) {
    struct sim_rail *r = &l->w.rails[f->rail];
    if (f->rail == l->safe_rail) {
        return;
    }
    switch (f->what) {
    case SLOW:
        r->bandwidth /= 10;
        break;
    case FAST:
        r->bandwidth *= 4;
        break;
    case LOSSY:
        r->loss = (uint32_t)between(l, 1, 300);
        break;
    case DEAD:
        r->dead = true;
        break;
    case ALIVE:
        r->dead = r->hung = false;
        r->loss = 0;
        break;
    case HUNG:
        l->hung = true;
        sim_rail_hang(&l->w, f->rail);
        break;
    case DOWN:
    case UP: /* with no rail up a worker thread would ask the peer again: out of virtual time */
        if ((l->healthy_way || f->rail != 0) && r->up != (f->what == UP)) {
            sim_rail_link(&l->w, f->rail, f->what == UP);
        }
        break;
    }
}

/* ---- sabotage: what a broken engine would do ---- */

static void sabotage(struct life *l) {
    struct sim_rails *w = &l->w;
    struct mc_dispatch *d = &w->engine->dispatch[0];
    if (l->sabotage == WRONG_LINK) { /* takes a rail that is down for up */
        for (unsigned i = 0; i < w->count; i++) {
            l->sabotaged |= !w->rails[i].up;
            mc_spray_set_up(&d->spray, i, true);
        }
    } else if (l->sabotage == FORGET && mc_qos_any(&d->spray.queue) && !l->sabotaged) {
        for (unsigned p = 0; p < MC_PRIORITIES; p++) { /* loses the slice that waits first */
            struct mc_list *queue = &d->spray.queue.queues[p];
            if (!mc_list_empty(queue)) {
                mc_qos_remove(&d->spray.queue,
                              mc_container_of(queue->next, struct mc_qos_item, link), false);
                l->sabotaged = true;
                return;
            }
        }
    } else if (l->sabotage == RESEND || l->sabotage == DOUBLE_BOOK) {
        for (size_t i = 0; i < w->flight_count && !l->sabotaged; i++) {
            struct mc_slice_op *slice = w->flights[i].slice;
            if (slice == NULL || w->flights[i].transport != 0) {
                continue;
            }
            l->sabotaged = true;
            if (l->sabotage == RESEND) { /* sends again what is on its way */
                (void)slice->transport->ops->post(slice->transport, &slice, 1);
            } else { /* sends the bytes of the slice before it */
                slice->remote -= mc_min_u64(slice->length, BLOCK);
            }
        }
    }
}

/* ---- living ---- */

static uint64_t next_action(const struct life *l) {
    uint64_t at = UINT64_MAX;
    for (unsigned i = 0; i < l->count; i++) {
        const struct request *r = &l->requests[i];
        at = r->submitted ? at : mc_min_u64(at, r->begins_ns);
        at = r->submitted && !r->ended ? mc_min_u64(at, r->deadline_ns) : at;
    }
    for (unsigned i = 0; i < l->fault_count; i++) {
        at = mc_min_u64(at, l->faults[i].at_ns);
    }
    return l->hung ? mc_min_u64(at, l->watch_ns) : at;
}

static void submit(struct life *l, struct request *r) {
    struct mc_transfer_request t = {.op = r->length % 2 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE,
                                    .local = l->w.space + r->offset,
                                    .segment = MC_LOCAL_SEGMENT,
                                    .remote_addr = (uint64_t)(uintptr_t)l->w.space + r->offset,
                                    .length = r->length,
                                    .priority = r->priority};
    enum mc_status status = mc_batch_create(l->w.engine, 1, &r->batch);
    status = status == MC_OK ? mc_batch_submit(r->batch, &t, 1, r->deadline_ns) : status;
    MC_ASSERT(status == MC_OK);
    if (l->sabotage == LATE) { /* forgets deadlines */
        r->batch->chunks->deadline_ns = MC_WAIT_FOREVER;
    }
    r->submitted = true;
}

static enum mc_task_state state_of(const struct request *r, uint64_t *transferred) {
    struct mc_transfer_status status;
    enum mc_status asked = mc_batch_task(r->batch, 0, &status);
    MC_ASSERT(asked == MC_OK);
    *transferred = status.transferred_bytes;
    return status.state;
}

static bool is_in_flight(const struct life *l, unsigned index) {
    uint64_t begin = (uint64_t)(uintptr_t)l->w.space + l->requests[index].offset;
    for (size_t i = 0; i < l->w.flight_count; i++) {
        const struct mc_slice_op *slice = l->w.flights[i].slice;
        if (slice != NULL && slice->remote - begin < SLOT_BYTES) {
            return true;
        }
    }
    return false;
}

static void judge(struct life *l, unsigned index, uint64_t transferred) {
    const struct request *r = &l->requests[index];
    bool completed = r->end == MC_TRANSFER_COMPLETED;
    bool late = r->end == MC_TRANSFER_TIMEOUT && l->w.now_ns >= r->deadline_ns;
    if (completed && (r->moved != r->length || transferred != r->length)) {
        complain(l, "a request completed without all its bytes", index);
    }
    if (!completed && !late && l->healthy_way) {
        complain(l, "a request failed although a healthy way was there", index);
    }
    if (!completed && !late && l->blackout && r->deadline_ns != MC_WAIT_FOREVER) {
        complain(l, "a request was given up before its deadline", index);
    }
    if (!completed && l->blackout && r->deadline_ns != MC_WAIT_FOREVER &&
        l->returns_ns < UINT64_MAX - RECOVERY_NS &&
        r->deadline_ns > mc_max_u64(l->returns_ns, r->begins_ns) + RECOVERY_NS) {
        complain(l, "a request failed although all ways had come back in time", index);
    }
    if (is_in_flight(l, index)) {
        complain(l, "memory was handed back with bytes in flight", index);
    }
}

static void look(struct life *l, unsigned index) {
    struct request *r = &l->requests[index];
    uint64_t transferred;
    r->end = state_of(r, &transferred);
    r->ended = r->end >= MC_TRANSFER_COMPLETED;
    if (r->ended) {
        judge(l, index, transferred);
    } else if (l->w.now_ns >= r->deadline_ns) {
        complain(l, "a request outlived its deadline", index);
    }
}

static void act(struct life *l) {
    for (unsigned i = 0; i < l->fault_count; i++) {
        if (l->faults[i].at_ns <= l->w.now_ns) {
            strike(l, &l->faults[i]);
            l->faults[i].at_ns = UINT64_MAX;
        }
    }
    for (unsigned i = 0; i < l->count; i++) {
        struct request *r = &l->requests[i];
        if (!r->submitted && r->begins_ns <= l->w.now_ns) {
            submit(l, r);
        }
    }
    if (l->w.now_ns >= l->watch_ns) {
        mc_watch_look(l->w.engine);
        l->watch_ns = l->w.now_ns + MC_WATCH_PERIOD_NS;
    }
    if (l->sabotage != NONE) {
        sabotage(l);
    }
}

static bool all_ended(struct life *l) {
    bool all = true;
    for (unsigned i = 0; i < l->count; i++) {
        if (l->requests[i].submitted && !l->requests[i].ended) {
            look(l, i);
        }
        all &= l->requests[i].ended;
    }
    return all;
}

static void live(struct life *l) {
    uint64_t give_up = l->w.now_ns + GIVE_UP_NS;
    while (!all_ended(l) && l->why[0] == '\0' && l->w.broken[0] == '\0') {
        uint64_t at = next_action(l);
        if (l->w.event_count > 0 && l->w.events[0].at_ns <= at) {
            (void)sim_rails_step_until(&l->w, at);
        } else if (at != UINT64_MAX) {
            l->w.now_ns = mc_max_u64(l->w.now_ns, at);
        } else {
            complain(l, "requests wait and nothing is under way", 0);
        }
        act(l);
        if (l->w.now_ns > give_up) {
            complain(l, "requests do not end", 0);
        }
    }
}

static void settle(struct life *l) {
    struct mc_dispatch *d = &l->w.engine->dispatch[0];
    uint64_t transferred;
    while (sim_rails_step(&l->w)) { /* what is late meets nobody */
    }
    for (unsigned i = 0; i < l->count; i++) {
        if (state_of(&l->requests[i], &transferred) != l->requests[i].end) {
            complain(l, "a request ended twice", i);
        }
    }
    for (unsigned i = 0; i < l->w.count && l->why[0] == '\0'; i++) {
        if (mc_rail_inflight(&d->rails[i]) != 0 || l->w.rails[i].outstanding != 0) {
            complain(l, "bytes are left on a rail", 0);
        }
    }
    if (l->why[0] == '\0' && mc_qos_any(&d->spray.queue)) {
        complain(l, "slices are left in the queue", 0);
    }
}

/* Lives whose engine is broken on purpose: it cannot be put away in order. */
static struct life *given_up;

/* The reason for which the seed fails; "" = none. */
static void run_seed(uint64_t seed, enum sabotage how, char why[300]) {
    struct life *l = mc_zalloc(sizeof(*l));
    l->sabotage = how;
    l->w.cancels_early = how == EARLY;
    make_world(l, seed);
    make_requests(l);
    live(l);
    if (l->w.broken[0] != '\0' && l->why[0] == '\0') {
        snprintf(l->why, sizeof(l->why), "%s", l->w.broken);
    }
    if (l->why[0] == '\0') {
        settle(l);
    }
    snprintf(why, 300, "%s", l->why);
    if (how != NONE && l->why[0] != '\0') {
        l->next = given_up;
        given_up = l;
    } else {
        for (unsigned i = 0; i < l->count && l->requests[i].submitted; i++) {
            if (l->requests[i].ended) {
                (void)!mc_batch_free(l->requests[i].batch);
            }
        }
        sim_rails_stop(&l->w);
        free(l->known);
        free(l);
    }
}

/* ---- main ---- */

static int run_all(uint64_t from, uint64_t count, enum sabotage how) {
    char why[300];
    uint64_t failed = 0;
    for (uint64_t seed = from; seed < from + count; seed++) {
        run_seed(seed, how, why);
        if (why[0] == '\0') {
            continue;
        }
        failed++;
        printf("seed %llu%s%s: %s\n", (unsigned long long)seed, how == NONE ? "" : " with ",
               how == NONE ? "" : sabotages[how], why);
        if (how != NONE || failed == 10) {
            break;
        }
    }
    if (how != NONE) {
        printf("sabotage %s was %s\n", sabotages[how], failed > 0 ? "noticed" : "NOT noticed");
        return failed > 0 ? 0 : 1;
    }
    printf("%llu seeds from %llu, %llu failed\n", (unsigned long long)count,
           (unsigned long long)from, (unsigned long long)failed);
    return failed > 0 ? 1 : 0;
}

int main(int argc, char **argv) {
    uint64_t from = 1, count = SEEDS;
    enum sabotage how = NONE;
    bool only = argc > 1;
    (void)!mc_log_set_level("error");
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) {
            from = strtoull(argv[i + 1], NULL, 10);
            count = 1;
        } else if (strcmp(argv[i], "--from") == 0) {
            from = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seeds") == 0) {
            count = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--break") == 0) {
            for (how = NONE; how < SABOTAGES && strcmp(sabotages[how], argv[i + 1]) != 0; how++) {
            }
        }
    }
    if (how == SABOTAGES) {
        fprintf(stderr, "no such sabotage\n");
        return 2;
    }
    int result = run_all(from, count, how);
    for (int s = RESEND; !only && s < SABOTAGES; s++) {
        result |= run_all(1, 100, (enum sabotage)s);
    }
    return result;
}
