/*
 * The real engine over simulated rails, in virtual time, under 10,000 random lives: rails of any
 * speed that slow down, lose slices, die with or without a word, hang, flap and return, while
 * requests of all sizes and priorities are under way, some with deadlines. After each life:
 *
 *  - every request has ended, and completed where a healthy way remained and time was left;
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
#define FAULTS_MAX   12
#define GIVE_UP_NS   (300 * MC_SEC)

enum sabotage { NONE, RESEND, FORGET, WRONG_LINK, DOUBLE_BOOK, SABOTAGES };
static const char *const sabotages[] = {"none", "resend", "forget", "wrong-link", "double-book"};

struct request {
    struct mc_batch *batch;
    uint64_t offset; /* in the space */
    uint64_t length;
    uint64_t begins_ns;
    uint64_t deadline_ns;
    uint8_t priority;
    uint64_t moved;
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
    w->on_done = on_done;
    w->ctx = l;
    sim_rails_start(w, seed);
    l->fault_count = (unsigned)between(l, 0, FAULTS_MAX);
    for (unsigned i = 0; i < l->fault_count; i++) {
        l->faults[i] =
            (struct fault){w->now_ns + between(l, 0, 60 * MC_MS),
                           (unsigned)between(l, 0, w->count - 1), (int)between(l, SLOW, HUNG)};
    }
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
        r->deadline_ns = chance(l, 10) ? r->begins_ns + between(l, 1, 20 * MC_MS) : MC_WAIT_FOREVER;
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
    case HUNG: /* without another way only a deadline could end what is on it */
        if (l->healthy_way) {
            l->hung = true;
            sim_rail_hang(&l->w, f->rail);
        }
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
    r->submitted = true;
}

static void look(struct life *l, unsigned index) {
    struct request *r = &l->requests[index];
    struct mc_transfer_status status;
    enum mc_status asked = mc_batch_task(r->batch, 0, &status);
    MC_ASSERT(asked == MC_OK);
    if (status.state < MC_TRANSFER_COMPLETED) {
        return;
    }
    r->ended = true;
    bool completed = status.state == MC_TRANSFER_COMPLETED;
    bool late = status.state == MC_TRANSFER_TIMEOUT && l->w.now_ns >= r->deadline_ns;
    if (completed && (r->moved != r->length || status.transferred_bytes != r->length)) {
        complain(l, "a request completed without all its bytes", index);
    }
    if (!completed && !late && l->healthy_way) {
        complain(l, "a request failed although a healthy way was there", index);
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
            (void)sim_rails_step(&l->w);
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
