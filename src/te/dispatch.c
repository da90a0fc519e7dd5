/*
 * Between the road (select.c) and a transport: slices are placed on rails, or wait for one.
 *
 * Most transports have one rail. Their slices go straight through, one post() for the group and no
 * lock; now and then one is timed. Where there are several rails the spray places each slice;
 * likewise slices of lower priority on any transport that leaves slices in flight, for they must
 * keep behind those of higher.
 *
 * Whoever ends a slice lets waiting ones go ("pump"), one thread at a time: another that comes
 * meanwhile leaves word and goes on, so nobody waits and nothing is forgotten. Memory order: a
 * slice is put into the queue before its thread looks for room, and room is made before its thread
 * looks into the queue, both sequentially consistent; so at least one of the two sees the other.
 */
#include <stdio.h>

#include "base/log.h"
#include "te/internal.h"

enum pump_state { PUMP_IDLE, PUMP_RUNS, PUMP_AGAIN };

#define MEASURE_ONE_IN 16

_Static_assert(MC_POST_MAX <= 64, "a group is the bits of a word");

static uint64_t now_ns(const struct mc_dispatch *d) {
    return mc_now_ns(d->transport->engine->clock);
}

/* ---- life ---- */

void mc_dispatch_init(struct mc_dispatch *d, struct mc_transport *t) {
    struct mc_rail_info info[MC_RAILS_MAX];
    unsigned count = t->ops->rails == NULL ? 0 : t->ops->rails(t, info, MC_RAILS_MAX);
    MC_ASSERT(count <= MC_RAILS_MAX);
    if (count == 0) {
        count = 1;
        info[0] = (struct mc_rail_info){.numa_node = -1, .up = true};
        snprintf(info[0].name, sizeof(info[0].name), "%s", t->ops->name);
    }
    d->transport = t;
    d->sprayed = count > 1;
    d->asynchronous = t->ops->cancel != NULL;
    d->watched = t->ops->give_up != NULL && t->engine->policy.attempt_ns != 0;
    d->rail_count = count;
    d->rails = aligned_alloc(MC_CACHE_LINE, count * sizeof(*d->rails));
    MC_ASSERT(d->rails != NULL);
    for (unsigned i = 0; i < count; i++) {
        mc_rail_init(&d->rails[i], &info[i]);
    }
    mc_spray_init(&d->spray, d->rails, count, t->engine->policy.weights);
    pthread_mutex_init(&d->lock, NULL);
    atomic_store_explicit(&d->pump, PUMP_IDLE, memory_order_relaxed);
    atomic_store_explicit(&d->tick, 0, memory_order_release);
}

void mc_dispatch_destroy(struct mc_dispatch *d) {
    pthread_mutex_destroy(&d->lock);
    free(d->rails);
}

/* What peers' ways over the rail did before it went down says nothing about now. */
static void reset_links(struct mc_dispatch *d, unsigned rail) {
    struct mc_engine *engine = d->transport->engine;
    pthread_mutex_lock(&engine->table_lock); /* keeps the links */
    for (uint32_t i = 0; i < engine->slot_count; i++) {
        const struct mc_segment_slot *slot =
            atomic_load_explicit(&engine->slots[i], memory_order_relaxed);
        struct mc_health *links =
            atomic_load_explicit(&slot->links[d->transport->index], memory_order_acquire);
        if (links != NULL) {
            mc_health_reset(&links[rail]);
        }
    }
    pthread_mutex_unlock(&engine->table_lock);
}

void mc_rail_set_up(struct mc_transport *t, unsigned rail, bool up) {
    struct mc_dispatch *d = &t->engine->dispatch[t->index];
    MC_ASSERT(rail < d->rail_count);
    if (atomic_load_explicit(&d->rails[rail].up, memory_order_relaxed) == up) {
        return;
    }
    if (up) {
        reset_links(d, rail);
    }
    mc_spray_set_up(&d->spray, rail, up);
    mc_info("rail is %s transport=%s rail=%s", up ? "up" : "down", t->ops->name,
            d->rails[rail].info.name);
    mc_dispatch_pump(d);
}

void mc_dispatch_find_reach(const struct mc_dispatch *d, const struct mc_slice_op *op,
                            const struct mc_policy_rule *rule, struct mc_spray_reach *reach) {
    struct mc_transport *t = d->transport;
    bool names_some = false; /* a rule for cards does not shut out what has none of them */
    for (unsigned i = 0; rule != NULL && rule->device_count > 0 && i < d->rail_count; i++) {
        names_some |= mc_policy_allows_device(rule, d->rails[i].info.name);
    }
    mc_spray_reach_all(reach);
    if (t->ops->rail_distance == NULL && !names_some) {
        return;
    }
    for (unsigned i = 0; i < d->rail_count; i++) {
        bool allowed = !names_some || mc_policy_allows_device(rule, d->rails[i].info.name);
        uint32_t percent = !allowed                        ? UINT32_MAX
                           : t->ops->rail_distance == NULL ? 0
                                                           : t->ops->rail_distance(t, i, op);
        reach->distance[i] = mc_rail_distance_code(percent);
        reach->rails &= (uint16_t) ~((unsigned)(percent == UINT32_MAX) << i);
    }
}

/* ---- urgent bytes of this host ---- */

/* What this engine has on the way, told to other processes; they are asked likewise. */
static void tell_host(const struct mc_dispatch *d, uint8_t priority, uint64_t now_ns) {
    const struct mc_engine *engine = d->transport->engine;
    uint64_t bytes = 0;
    if (engine->qos_host == NULL || priority != MC_PRIORITY_HIGH) {
        return;
    }
    for (unsigned t = 0; t < engine->transport_count; t++) {
        const struct mc_dispatch *each = &engine->dispatch[t];
        for (unsigned i = 0; i < each->rail_count; i++) {
            bytes += atomic_load_explicit(&each->rails[i].inflight[0], memory_order_relaxed);
        }
    }
    if (mc_qos_host_due(engine->qos_host, bytes, now_ns)) {
        mc_qos_host_publish(engine->qos_host, bytes, now_ns);
    }
}

static bool must_yield(const struct mc_dispatch *d, uint64_t now_ns) {
    struct mc_qos_host *host = d->transport->engine->qos_host;
    return host != NULL && mc_qos_host_others(host, now_ns) > 0;
}

/* ---- health of the way to a peer ---- */

static _Atomic(struct mc_health *) *links_of(const struct mc_dispatch *d,
                                             const struct mc_slice_op *op) {
    return &mc_slot_of(op->segment)->links[d->transport->index];
}

static void make_links(const struct mc_dispatch *d, const struct mc_slice_op *op) {
    _Atomic(struct mc_health *) *at = links_of(d, op);
    struct mc_health *none = NULL;
    if (atomic_load_explicit(at, memory_order_acquire) == NULL) {
        struct mc_health *made = mc_zalloc(d->rail_count * sizeof(*made));
        if (!atomic_compare_exchange_strong_explicit(at, &none, made, memory_order_acq_rel,
                                                     memory_order_acquire)) {
            free(made);
        }
    }
}

bool mc_dispatch_take_probe(struct mc_dispatch *d, struct mc_health *links) {
    return mc_health_take(links, now_ns(d));
}

/* Whether the failure is the rail's, or the way's, and not that of what was asked. */
static bool is_to_blame(enum mc_status status) {
    switch (status) {
    case MC_ERR_IO:
    case MC_ERR_TIMEOUT:
    case MC_ERR_CLOSED:
    case MC_ERR_UNREACHABLE:
    case MC_ERR_PROTOCOL:
        return true;
    default:
        return false;
    }
}

/* A later one that another thread notes meanwhile may be lost: the next makes up for it. */
static void note_arrival(struct mc_rail *rail, const struct mc_slice *slice) {
    uint64_t due = mc_attempt_due_us(atomic_load_explicit(&slice->attempt, memory_order_relaxed));
    if (due > atomic_load_explicit(&rail->reached_us, memory_order_relaxed)) {
        atomic_store_explicit(&rail->reached_us, due, memory_order_relaxed);
    }
}

/* Less is in flight on the slice's rail. */
static void tell_less(const struct mc_dispatch *d, const struct mc_slice_op *op) {
    if (d->transport->engine->qos_host != NULL && mc_rail_inflight(&d->rails[op->rail]) == 0) {
        tell_host(d, op->priority, now_ns(d));
    }
}

void mc_dispatch_failed(struct mc_dispatch *d, struct mc_slice *slice, enum mc_status status) {
    const struct mc_transfer_task *task = slice->base.task;
    bool given_up = atomic_load_explicit(&task->cancel, memory_order_relaxed) != MC_OK;
    enum mc_spray_end how = MC_SPRAY_RELEASED;
    uint64_t now = 0;
    atomic_store_explicit(&slice->attempt, 0, memory_order_relaxed);
    if (!given_up && is_to_blame(status)) {
        make_links(d, &slice->base);
        slice->spray.links = links_of(d, &slice->base);
        how = MC_SPRAY_FAILED;
        now = now_ns(d);
    }
    mc_spray_end(&d->spray, &slice->spray, how, slice->base.segment, now);
    tell_less(d, &slice->base);
}

/* Slices one after the other of one rail, operation and priority. */
struct arrived {
    const struct mc_slice_op *op; /* the first */
    uint64_t bytes, held_bytes;
    size_t count;
};

static void note_run(struct mc_dispatch *d, const struct arrived *run) {
    const struct mc_slice_op *op = run->op;
    struct mc_rail_moved *moved = &d->rails[op->rail].moved[op->op][op->priority];
    mc_metric_add(&moved->bytes, (int64_t)run->bytes);
    mc_metric_add(&moved->slices, (int64_t)run->count);
    if (run->held_bytes > 0) {
        mc_spray_release(&d->spray, op->rail, op->priority, run->held_bytes);
        tell_less(d, op);
    }
}

static bool goes_on(const struct arrived *run, const struct mc_slice_op *op) {
    return run->op->rail == op->rail && run->op->op == op->op && run->op->priority == op->priority;
}

/* What the slice says about its rail; *now is 0 before the first look at the clock. */
static void learn(struct mc_dispatch *d, struct mc_slice *slice, uint64_t *now) {
    if (d->watched) {
        note_arrival(&d->rails[slice->base.rail], slice);
        atomic_store_explicit(&slice->attempt, 0, memory_order_relaxed);
    }
    if (slice->spray.ahead != 0) {
        *now = *now == 0 ? now_ns(d) : *now;
        if (!atomic_load_explicit(&d->used, memory_order_relaxed)) {
            atomic_store_explicit(&d->used, true, memory_order_relaxed);
        }
    }
    if (mc_spray_learns(&d->spray, &slice->spray)) {
        mc_spray_arrived(&d->spray, &slice->spray, *now);
    }
}

void mc_dispatch_arrived(struct mc_dispatch *d, struct mc_slice_op *const *slices, size_t count) {
    struct arrived run = {.op = slices[0]};
    uint64_t now = 0;
    for (size_t i = 0; i < count; i++) {
        struct mc_slice_op *op = slices[i];
        struct mc_spray_item *item = &mc_slice_of(op)->spray;
        if (!goes_on(&run, op)) {
            note_run(d, &run);
            run = (struct arrived){.op = op};
        }
        if (item->held || item->posted_ns != 0) {
            learn(d, mc_slice_of(op), &now);
        }
        run.bytes += op->length;
        run.held_bytes += item->held ? op->length : 0;
        run.count++;
        item->held = false;
    }
    note_run(d, &run);
}

double mc_dispatch_predict(const struct mc_dispatch *d, const struct mc_segment_slot *slot,
                           uint64_t length, uint64_t now_ns) {
    struct mc_spray_item item = {.reach.rails = UINT16_MAX};
    item.links = (_Atomic(struct mc_health *) *)&slot->links[d->transport->index];
    return mc_spray_is_measured(&d->spray, now_ns)
               ? mc_spray_predict(&d->spray, &item, length, now_ns)
               : -1;
}

/* ---- posting ---- */

static void hand_back(struct mc_dispatch *d, struct mc_slice_op *op, enum mc_status status,
                      struct mc_slice_op **slices, size_t *back) {
    mc_slice_of(op)->refused = status;
    mc_dispatch_failed(d, mc_slice_of(op), status);
    slices[(*back)++] = op;
}

/* The slice is about to be posted on the rail, which is yet to be told of `more` bytes: its own and
 * those of its group that go before. */
static void watch(struct mc_dispatch *d, struct mc_slice_op *op, unsigned rail, uint64_t more,
                  uint64_t now) {
    double predicted = MC_ATTEMPT_FACTOR * mc_rail_predict(&d->rails[rail], more);
    uint64_t least = d->transport->engine->policy.attempt_ns;
    uint64_t takes = predicted > (double)least ? (uint64_t)predicted : least;
    atomic_store_explicit(&mc_slice_of(op)->attempt,
                          mc_attempt_make(now + takes, d->transport->index, rail),
                          memory_order_relaxed);
}

/* Straight through to the only rail. */
static size_t post_plain(struct mc_dispatch *d, struct mc_slice_op **slices, size_t count) {
    struct mc_rail *rail = &d->rails[0];
    if (!atomic_load_explicit(&rail->up, memory_order_relaxed)) {
        for (size_t i = 0; i < count; i++) {
            mc_slice_of(slices[i])->refused = MC_OK;
        }
        return count;
    }
    uint32_t tick = atomic_load_explicit(&d->tick, memory_order_relaxed);
    atomic_store_explicit(&d->tick, tick + 1, memory_order_relaxed); /* a lost one is no loss */
    _Atomic(struct mc_health *) *links = links_of(d, slices[0]);
    bool failed_before = atomic_load_explicit(links, memory_order_relaxed) != NULL;
    bool timed = tick % MEASURE_ONE_IN == 0;
    uint64_t now = timed || failed_before || d->watched ? now_ns(d) : 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct mc_spray_item *item = &mc_slice_of(slices[i])->spray;
        bytes += slices[i]->length;
        item->posted_ns = failed_before ? now : 0;
        item->ahead = 0;
        item->rail = 0;
        item->links = links;
        item->held = d->asynchronous;
        if (d->watched) { /* not by all of the group: the first is to be missed first */
            watch(d, slices[i], 0, bytes, now);
        }
    }
    if (d->asynchronous) {
        atomic_fetch_add_explicit(&rail->inflight[0], bytes, memory_order_relaxed);
    }
    if (d->asynchronous && d->transport->engine->qos_host != NULL) {
        tell_host(d, slices[0]->priority, now_ns(d));
    }
    if (timed) { /* the last one ends when all have */
        struct mc_spray_item *last = &mc_slice_of(slices[count - 1])->spray;
        last->posted_ns = now;
        last->ahead = d->asynchronous ? mc_rail_inflight(rail) : bytes;
    }
    enum mc_status status = d->transport->ops->post(d->transport, slices, count);
    size_t back = 0;
    for (size_t i = 0; status != MC_OK && i < count; i++) {
        hand_back(d, slices[i], status, slices, &back);
    }
    return back;
}

/* Posts slices of one rail and segment. */
static void post_run(struct mc_dispatch *d, struct mc_slice_op **run, size_t count,
                     struct mc_slice_op **slices, size_t *back) {
    struct mc_slice_op *mine[MC_POST_MAX]; /* the transport may do with it as it likes */
    for (size_t i = 0; i < count; i++) {
        mine[i] = run[i];
        if (d->watched) {
            watch(d, run[i], run[i]->rail, 0, mc_slice_of(run[i])->spray.posted_ns);
        }
    }
    enum mc_status status = d->transport->ops->post(d->transport, mine, count);
    for (size_t i = 0; status != MC_OK && i < count; i++) {
        hand_back(d, run[i], status, slices, back);
    }
}

/* Posts slices that have a rail, those of one rail together, in runs of one segment. */
static void post_placed(struct mc_dispatch *d, struct mc_slice_op **placed, size_t count,
                        struct mc_slice_op **slices, size_t *back) {
    uint64_t on[MC_RAILS_MAX] = {0}; /* bit per slice */
    for (size_t i = 0; i < count; i++) {
        on[placed[i]->rail] |= 1ull << i;
    }
    for (unsigned rail = 0; rail < d->rail_count; rail++) {
        struct mc_slice_op *run[MC_POST_MAX];
        size_t n = 0;
        for (uint64_t m = on[rail]; m != 0; m &= m - 1) {
            struct mc_slice_op *op = placed[__builtin_ctzll(m)];
            if (n > 0 && op->segment != run[0]->segment) {
                post_run(d, run, n, slices, back);
                n = 0;
            }
            run[n++] = op;
        }
        if (n > 0) {
            post_run(d, run, n, slices, back);
        }
    }
}

static void enqueue(struct mc_dispatch *d, struct mc_slice_op **waiting, size_t count,
                    uint64_t now) {
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < count; i++) {
        waiting[i]->waiter_follows = false; /* any thread may post it */
        mc_qos_push(&d->spray.queue, &mc_slice_of(waiting[i])->spray.wait, now);
    }
    pthread_mutex_unlock(&d->lock);
    mc_metric_add(&d->queued, (int64_t)count);
}

/* Other threads have filled the rails in `overfull` at the same moment: what was placed there waits
 * instead. Returns how many are left of `placed`. */
static size_t take_back(struct mc_dispatch *d, struct mc_slice_op **placed, size_t count,
                        uint32_t overfull, struct mc_slice_op **waiting, size_t *waiting_count) {
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        if ((overfull >> placed[i]->rail & 1) == 0) {
            placed[left++] = placed[i];
            continue;
        }
        mc_spray_end(&d->spray, &mc_slice_of(placed[i])->spray, MC_SPRAY_RELEASED, NULL, 0);
        waiting[(*waiting_count)++] = placed[i];
    }
    return left;
}

static size_t post_sprayed(struct mc_dispatch *d, struct mc_slice_op **slices, size_t count) {
    struct mc_slice_op *placed[MC_POST_MAX], *waiting[MC_POST_MAX];
    struct mc_spray_view view;
    size_t placed_count = 0, waiting_count = 0, back = 0;
    uint64_t now = now_ns(d);
    uint8_t priority = slices[0]->priority;
    _Atomic(struct mc_health *) *links = links_of(d, slices[0]);
    mc_spray_look(&d->spray, &view, priority > 0 && must_yield(d, now), now);
    for (size_t i = 0; i < count; i++) {
        struct mc_spray_item *item = &mc_slice_of(slices[i])->spray;
        item->links = links;
        int rail = mc_spray_choose(&d->spray, &view, item);
        if (rail >= 0) {
            slices[i]->rail = (uint16_t)rail;
            placed[placed_count++] = slices[i];
        } else if (rail == MC_SPRAY_WAIT) {
            waiting[waiting_count++] = slices[i];
        } else {
            mc_slice_of(slices[i])->refused = MC_OK;
            slices[back++] = slices[i];
        }
    }
    uint32_t overfull = mc_spray_commit(&d->spray, &view);
    if (overfull != 0) {
        placed_count = take_back(d, placed, placed_count, overfull, waiting, &waiting_count);
    }
    if (waiting_count > 0) {
        enqueue(d, waiting, waiting_count, now);
    }
    tell_host(d, priority, now);
    post_placed(d, placed, placed_count, slices, &back);
    if (waiting_count > 0) {
        mc_dispatch_pump(d);
    }
    return back;
}

size_t mc_dispatch_post(struct mc_dispatch *d, struct mc_slice_op **slices, size_t count) {
    bool keeps_behind = d->asynchronous && slices[0]->priority > 0;
    size_t back =
        d->sprayed || keeps_behind ? post_sprayed(d, slices, count) : post_plain(d, slices, count);
    if (back > 0) {
        mc_dispatch_pump(d); /* others may wait for the room that these held for a moment */
    }
    return back;
}

/* ---- the queue ---- */

/* Takes slices that have found a rail, have none left or are overdue out of the queue. One thread
 * at a time does this. Others that place at the same moment take theirs back when they commit
 * second; when they are first the rail holds more than its window for once. */
static size_t take(struct mc_dispatch *d, struct mc_slice_op **taken, size_t *lost) {
    struct mc_spray_view view;
    size_t count = 0;
    uint64_t now = now_ns(d);
    *lost = 0;
    pthread_mutex_lock(&d->lock);
    mc_spray_look(&d->spray, &view, must_yield(d, now), now);
    while (count + *lost < MC_POST_MAX) {
        struct mc_spray_item *item = mc_spray_next(&d->spray, &view);
        if (item == NULL) {
            break;
        }
        struct mc_slice *slice = mc_container_of(item, struct mc_slice, spray);
        if (item->rail == MC_RAILS_MAX) {
            slice->refused = MC_OK;
            taken[MC_POST_MAX - ++*lost] = &slice->base;
        } else {
            slice->base.rail = item->rail;
            taken[count++] = &slice->base;
        }
    }
    (void)mc_spray_commit(&d->spray, &view);
    pthread_mutex_unlock(&d->lock);
    return count;
}

/* What is overdue goes first in the queue and would be moved for nobody: whoever looks finds that
 * its time is over. */
static enum mc_status verdict_on(const struct mc_dispatch *d, struct mc_slice_op *op) {
    enum mc_status verdict = mc_slice_verdict(op);
    return verdict == MC_OK && op->deadline_ns != MC_WAIT_FOREVER && now_ns(d) >= op->deadline_ns
               ? MC_ERR_TIMEOUT
               : verdict;
}

static void send_on(const struct mc_dispatch *d, struct mc_slice_op **slices, size_t count) {
    for (size_t i = 0; i < count; i++) {
        mc_slice_note_refusal(slices[i]);
        enum mc_status verdict = verdict_on(d, slices[i]);
        if (verdict != MC_OK) {
            mc_slice_end(slices[i], verdict);
        } else {
            mc_slice_route(slices[i]);
        }
    }
}

static bool pump_once(struct mc_dispatch *d) {
    struct mc_slice_op *taken[MC_POST_MAX], *placed[MC_POST_MAX], *refused[MC_POST_MAX];
    size_t lost, back = 0, placed_count = 0;
    size_t count = take(d, taken, &lost);
    for (size_t i = 0; i < count; i++) {
        enum mc_status verdict = mc_slice_verdict(taken[i]);
        if (verdict == MC_OK) {
            placed[placed_count++] = taken[i];
            continue;
        }
        mc_spray_end(&d->spray, &mc_slice_of(taken[i])->spray, MC_SPRAY_RELEASED, NULL, 0);
        mc_slice_end(taken[i], verdict);
    }
    post_placed(d, placed, placed_count, refused, &back);
    send_on(d, refused, back);
    send_on(d, taken + MC_POST_MAX - lost, lost);
    return count + lost > 0;
}

void mc_dispatch_pump(struct mc_dispatch *d) {
    if (!mc_qos_any(&d->spray.queue)) {
        return;
    }
    uint32_t state = PUMP_IDLE;
    while (!atomic_compare_exchange_weak(&d->pump, &state,
                                         state == PUMP_IDLE ? PUMP_RUNS : PUMP_AGAIN)) {
    }
    if (state != PUMP_IDLE) {
        return; /* who runs looks again */
    }
    do {
        while (pump_once(d)) {
        }
        state = PUMP_RUNS;
    } while (!atomic_compare_exchange_strong(&d->pump, &state, PUMP_IDLE) &&
             atomic_exchange(&d->pump, PUMP_RUNS) == PUMP_AGAIN);
}

void mc_dispatch_cancel(struct mc_dispatch *d, struct mc_transfer_task *task) {
    struct mc_list mine;
    mc_list_init(&mine);
    if (!mc_qos_any(&d->spray.queue)) {
        return;
    }
    pthread_mutex_lock(&d->lock);
    for (unsigned p = 0; p < MC_PRIORITIES; p++) {
        struct mc_list *queue = &d->spray.queue.queues[p];
        for (struct mc_list *at = queue->next, *next; at != queue; at = next) {
            struct mc_spray_item *item = mc_container_of(at, struct mc_spray_item, wait.link);
            next = at->next;
            if (mc_container_of(item, struct mc_slice, spray)->base.task == task) {
                mc_qos_remove(&d->spray.queue, &item->wait, false);
                mc_list_push_back(&mine, &item->wait.link);
            }
        }
    }
    pthread_mutex_unlock(&d->lock);
    while (!mc_list_empty(&mine)) {
        struct mc_spray_item *item = mc_container_of(mine.next, struct mc_spray_item, wait.link);
        mc_list_del(&item->wait.link);
        mc_slice_end(&mc_container_of(item, struct mc_slice, spray)->base,
                     atomic_load_explicit(&task->cancel, memory_order_relaxed));
    }
}
