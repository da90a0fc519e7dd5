/*
 * What is known of a rail follows what happens on it: the average moves by its time constant, speed
 * is told from latency, pauses double and end by themselves, one probe goes at a time.
 */
#include <math.h>

#include "support/support.h"
#include "te/spray.h"

/* ---- the average ---- */

static void after_a_step_the_average_has_gone_63_per_cent_in_tau(void **state) {
    static const uint64_t steps[] = {1000, 77777, 1 * MC_MS}; /* whatever the rate of samples */
    for (size_t i = 0; i < MC_ARRAY_LEN(steps); i++) {
        struct mc_ewma e = {0};
        uint64_t now = MC_SEC, tau = 10 * MC_MS;
        mc_ewma_add(&e, 100, now, tau);
        assert_true(e.value == 100);
        for (uint64_t t = 0; t < tau; t += steps[i]) {
            now += steps[i];
            mc_ewma_add(&e, 200, now, tau);
        }
        double gone = (e.value - 100) / 100;
        assert_true(fabs(gone - (1 - exp(-1))) < 0.02);
        for (uint64_t t = 0; t < 2 * tau; t += steps[i]) {
            now += steps[i];
            mc_ewma_add(&e, 200, now, tau);
        }
        assert_true(fabs((e.value - 100) / 100 - (1 - exp(-3))) < 0.02);
    }
}

static void one_odd_sample_after_a_silence_does_not_decide(void **state) {
    struct mc_ewma e = {0};
    mc_ewma_add(&e, 100, MC_SEC, MC_MS);
    mc_ewma_add(&e, 0, 3600 * MC_SEC, MC_MS);
    assert_true(e.value > 36 && e.value < 37);
}

/* ---- speed and latency ---- */

static struct mc_rail new_rail(uint64_t bandwidth) {
    struct mc_rail rail;
    const struct mc_rail_info info = {
        .name = "r", .numa_node = -1, .bandwidth = bandwidth, .up = true};
    mc_rail_init(&rail, &info);
    return rail;
}

/* A rail of 25 bytes a nanosecond and 5 us; slices with `ahead` bytes before them, for `ns`. */
static uint64_t feed(struct mc_rail *rail, double speed, uint64_t ahead, uint64_t now,
                     uint64_t ns) {
    uint64_t took = 5000 + (uint64_t)((double)ahead / speed);
    for (uint64_t end = now + ns; now < end; now += 20000) {
        mc_rail_sample(rail, ahead, took, now);
    }
    return now;
}

static void is_about(double value, double expected) {
    if (fabs(value - expected) > 0.05 * expected) {
        fail_msg("%g is not about %g", value, expected);
    }
}

static void a_lightly_used_rail_is_not_taken_for_a_slow_one(void **state) {
    struct mc_rail rail = new_rail(25000000000);
    uint64_t now = feed(&rail, 25, 4096, MC_SEC, 100 * MC_MS);
    is_about(mc_rail_bandwidth(&rail), 25e9);
    is_about(atomic_load(&rail.latency_ns), 5000);
    is_about(mc_rail_predict(&rail, 25000000), 1005000);
    now = feed(&rail, 2.5, 1 << 20, now, 60 * MC_MS); /* it slows down */
    is_about(mc_rail_bandwidth(&rail), 2.5e9);
    assert_true(mc_rail_window(&rail, 1000) < 4000000 && mc_rail_window(&rail, 1000) > 2000000);
    feed(&rail, 25, 1 << 20, now, 100 * MC_MS); /* and recovers */
    is_about(mc_rail_bandwidth(&rail), 25e9);
}

static void a_rail_of_unknown_speed_is_learnt(void **state) {
    struct mc_rail rail = new_rail(0);
    assert_true(mc_rail_bandwidth(&rail) == 0);
    assert_int_equal(mc_rail_window(&rail, 4096), 8192);
    uint64_t now = feed(&rail, 25, 65536, MC_SEC, 10 * MC_MS);
    now = feed(&rail, 25, 4 << 20, now, 100 * MC_MS);
    feed(&rail, 25, 1 << 20, now, 3 * MC_SEC);
    assert_true(mc_rail_bandwidth(&rail) > 22e9 && mc_rail_bandwidth(&rail) < 29e9);
}

/* ---- health ---- */

static void pauses_double_and_end_by_themselves(void **state) {
    struct mc_health h = {0};
    uint64_t now = MC_SEC, pause = MC_PAUSE_MIN_NS;
    assert_int_equal(mc_health_state(&h, now), MC_HEALTHY);
    for (int i = 0; i < 30; i++) {
        mc_health_failed(&h, now, now);
        assert_int_equal(mc_health_state(&h, now), MC_PAUSED);
        assert_int_equal(mc_health_state(&h, now + pause - 1), MC_PAUSED);
        assert_int_equal(mc_health_state(&h, now + pause), MC_PROBING);
        assert_false(mc_health_take(&h, now + pause - 1));
        now += pause;
        assert_true(mc_health_take(&h, now)); /* the probe, which fails */
        pause = mc_min_u64(2 * pause, MC_PAUSE_MAX_NS);
    }
    assert_int_equal(pause, MC_PAUSE_MAX_NS);
    mc_health_arrived(&h, now);
    assert_int_equal(mc_health_state(&h, now), MC_HEALTHY);
    mc_health_failed(&h, now, now); /* soon again: it goes on from where it was */
    assert_int_equal(mc_health_state(&h, now + MC_PAUSE_MAX_NS - 1), MC_PAUSED);
    now += 3600 * MC_SEC; /* after a long good time it begins anew */
    mc_health_arrived(&h, now);
    mc_health_failed(&h, now, now);
    assert_int_equal(mc_health_state(&h, now + MC_PAUSE_MIN_NS), MC_PROBING);
}

static void many_slices_of_one_failure_count_once(void **state) {
    struct mc_health h = {0};
    for (int i = 0; i < 100; i++) { /* all were in flight when the rail broke */
        mc_health_failed(&h, MC_SEC, MC_SEC + 1000 + (uint64_t)i);
    }
    assert_int_equal(mc_health_state(&h, MC_SEC + 1000 + MC_PAUSE_MIN_NS), MC_PROBING);
    /* One posted before that arrives late: no word about now. */
    mc_health_arrived(&h, MC_SEC);
    assert_int_not_equal(mc_health_state(&h, MC_SEC + 2000), MC_HEALTHY);
}

static void one_probe_goes_at_a_time(void **state) {
    struct mc_health h = {0};
    uint64_t now = MC_SEC;
    mc_health_failed(&h, now, now);
    now += MC_PAUSE_MIN_NS;
    assert_true(mc_health_take(&h, now));
    assert_false(mc_health_take(&h, now));
    assert_int_equal(mc_health_state(&h, now), MC_PAUSED);
    now += MC_PROBE_PATIENCE_NS; /* nobody ever heard of it */
    assert_true(mc_health_take(&h, now));
    mc_health_arrived(&h, now);
    assert_true(mc_health_take(&h, now) && mc_health_take(&h, now));
}

/* ---- choosing ---- */

struct scene {
    struct mc_rail rails[4];
    struct mc_spray spray;
    _Atomic(struct mc_health *) links;
    uint64_t now;
};

static void scene_init(struct scene *s, unsigned count, const uint32_t weights[3]) {
    static const uint32_t strict[3];
    memset(s, 0, sizeof(*s));
    s->now = MC_SEC;
    for (unsigned i = 0; i < count; i++) {
        s->rails[i] = new_rail(10000000000);
        atomic_store(&s->rails[i].timed_ns, s->now); /* not idle */
    }
    mc_spray_init(&s->spray, s->rails, count, weights != NULL ? weights : strict);
}

static struct mc_spray_item item_of(struct scene *s, uint64_t length, uint8_t priority) {
    struct mc_spray_item item = {.links = &s->links, .reach.rails = UINT16_MAX};
    item.wait.length = length;
    item.wait.priority = priority;
    return item;
}

/* One slice in a view of its own. */
static int choose_at(struct scene *s, struct mc_spray_item *item, uint64_t now) {
    struct mc_spray_view view;
    mc_spray_look(&s->spray, &view, false, now);
    int rail = mc_spray_choose(&s->spray, &view, item);
    assert_int_equal(mc_spray_commit(&s->spray, &view), 0);
    return rail;
}

static void arrive(struct scene *s, struct mc_spray_item *item, uint64_t now) {
    if (mc_spray_learns(&s->spray, item)) {
        mc_spray_arrived(&s->spray, item, now);
    }
    mc_spray_release(&s->spray, item->rail, item->wait.priority, item->wait.length);
    item->held = false;
}

static struct mc_spray_item *next_at(struct scene *s, uint64_t now) {
    struct mc_spray_view view;
    mc_spray_look(&s->spray, &view, false, now);
    struct mc_spray_item *item = mc_spray_next(&s->spray, &view);
    assert_int_equal(mc_spray_commit(&s->spray, &view), 0);
    return item;
}

static void the_first_to_be_complete_is_chosen(void **state) {
    struct scene s;
    scene_init(&s, 3, NULL);
    struct mc_spray_item a[6];
    int seen[3] = {0};
    for (int i = 0; i < 6; i++) {
        a[i] = item_of(&s, 1 << 20, 0);
        int rail = choose_at(&s, &a[i], s.now);
        assert_in_range(rail, 0, 2);
        seen[rail]++;
    }
    assert_int_equal(seen[0], 2);
    assert_int_equal(seen[1], 2);
    assert_int_equal(seen[2], 2);
    struct mc_spray_item far = item_of(&s, 4096, 0);
    far.reach.distance[0] = far.reach.distance[2] = mc_rail_distance_code(30);
    assert_int_equal(choose_at(&s, &far, s.now), 1);
    struct mc_spray_item none = item_of(&s, 4096, 0);
    none.reach.rails = 0;
    assert_int_equal(choose_at(&s, &none, s.now), MC_SPRAY_NONE);
    assert_int_equal(mc_rail_distance_code(0), 0);
    assert_int_equal(mc_rail_distance_code(UINT32_MAX), MC_RAIL_CANNOT);
    assert_int_equal(mc_rail_distance_code(UINT32_MAX - 1), MC_RAIL_CANNOT - 1);
}

static void a_full_rail_makes_wait_and_the_one_that_frees_first_serves(void **state) {
    struct scene s;
    scene_init(&s, 2, NULL);
    struct mc_spray_item items[64];
    int placed = 0;
    while (placed < 64) {
        items[placed] = item_of(&s, 1 << 20, 0);
        if (choose_at(&s, &items[placed], s.now) < 0) {
            break;
        }
        placed++;
    }
    assert_in_range(placed, 10, 30); /* about a millisecond of two times 10 GB/s */
    mc_qos_push(&s.spray.queue, &items[placed].wait, s.now);
    assert_null(next_at(&s, s.now));
    int freed = items[3].rail;
    arrive(&s, &items[3], s.now + 100000);
    struct mc_spray_item *next = next_at(&s, s.now + 100000);
    assert_ptr_equal(next, &items[placed]);
    assert_int_equal(next->rail, freed);
}

/* Rails of different speeds, distances and load; slices alone and several alike in a row. */
static void a_group_is_placed_as_one_after_the_other(void **state) {
    struct scene one, all;
    struct mc_spray_item each[48], group[48];
    struct mc_spray_view view;
    scene_init(&one, 4, NULL);
    for (unsigned i = 0; i < 4; i++) {
        atomic_store(&one.rails[i].ns_per_byte, 0.1 + 0.05 * i);
        atomic_store(&one.rails[i].latency_ns, 1000.0 * (4 - i));
        atomic_store(&one.rails[i].inflight[0], i << 16);
    }
    all = one;
    all.spray.rails = all.rails;
    mc_spray_look(&all.spray, &view, false, all.now);
    for (unsigned i = 0; i < 48; i++) {
        each[i] = item_of(&one, 4096 * (1 + i / 3 % 5 * 40), 0);
        each[i].reach.distance[3] = (uint8_t)(i / 5 % 7);
        group[i] = each[i];
        int rail = choose_at(&one, &each[i], one.now);
        assert_int_equal(mc_spray_choose(&all.spray, &view, &group[i]), rail);
        assert_int_equal(group[i].ahead, each[i].ahead);
    }
    for (unsigned i = 0; i < 4; i++) { /* nobody sees it before */
        assert_int_equal(mc_rail_inflight(&all.rails[i]), i << 16);
    }
    assert_int_equal(mc_spray_commit(&all.spray, &view), 0);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(mc_rail_inflight(&one.rails[i]) > i << 16);
        assert_int_equal(mc_rail_inflight(&all.rails[i]), mc_rail_inflight(&one.rails[i]));
        assert_int_equal(atomic_load(&all.rails[i].timed_ahead),
                         atomic_load(&one.rails[i].timed_ahead));
    }
}

static int fill(struct scene *s, struct mc_spray_view *view, struct mc_spray_item items[64]) {
    int placed = 0;
    mc_spray_look(&s->spray, view, false, s->now);
    for (; placed < 64; placed++) {
        items[placed] = item_of(s, 1 << 20, 0);
        if (mc_spray_choose(&s->spray, view, &items[placed]) < 0) {
            break;
        }
    }
    return placed;
}

static void of_two_that_fill_a_rail_at_once_one_is_told(void **state) {
    struct scene s;
    struct mc_spray_view a, b;
    struct mc_spray_item mine[64], yours[64], small;
    scene_init(&s, 2, NULL);
    mc_spray_set_up(&s.spray, 1, false);
    int count = fill(&s, &a, mine);
    assert_in_range(count, 5, 15); /* a millisecond of 10 GB/s */
    assert_int_equal(fill(&s, &b, yours), count);
    assert_int_equal(mc_spray_commit(&s.spray, &a), 0);
    assert_int_equal(mc_spray_commit(&s.spray, &b), 1 << 0);
    for (int i = 0; i < count; i++) {
        mc_spray_end(&s.spray, &yours[i], MC_SPRAY_RELEASED, NULL, s.now);
    }
    assert_int_equal(mc_rail_inflight(&s.rails[0]), (uint64_t)count << 20);
    mc_spray_release(&s.spray, 0, 0, (uint64_t)count << 20);
    mc_spray_look(&s.spray, &a, false, s.now); /* what leaves room makes nobody wait */
    mc_spray_look(&s.spray, &b, false, s.now);
    small = mine[0] = item_of(&s, 4096, 0);
    assert_int_equal(mc_spray_choose(&s.spray, &a, &mine[0]), 0);
    assert_int_equal(mc_spray_choose(&s.spray, &b, &small), 0);
    assert_int_equal(mc_spray_commit(&s.spray, &a), 0);
    assert_int_equal(mc_spray_commit(&s.spray, &b), 0);
    assert_int_equal(mc_rail_inflight(&s.rails[0]), 8192);
}

/* A probe comes once in two seconds: that others fill its rail at that moment does not undo it. */
static void a_probe_is_not_taken_back(void **state) {
    struct scene s;
    struct mc_spray_view a, b;
    struct mc_spray_item yours[64];
    struct mc_health health[2] = {0};
    _Atomic(struct mc_health *) links = health;
    scene_init(&s, 2, NULL);
    mc_spray_set_up(&s.spray, 1, false);
    struct mc_spray_item probe = item_of(&s, 1 << 20, 0);
    probe.links = &links;
    assert_int_equal(choose_at(&s, &probe, s.now), 0);
    mc_spray_end(&s.spray, &probe, MC_SPRAY_FAILED, "a", s.now);
    s.now += 20 * MC_MS;
    mc_spray_look(&s.spray, &a, false, s.now);
    assert_int_equal(mc_spray_choose(&s.spray, &a, &probe), 0);
    assert_true(fill(&s, &b, yours) > 0);
    assert_int_equal(mc_spray_commit(&s.spray, &b), 0);
    assert_int_equal(mc_spray_commit(&s.spray, &a), 0);
}

/* The urgent go straight to the only rail, however much is there; others wait, but not for ever. */
static void beside_a_flood_of_urgent_bytes_the_old_go_too(void **state) {
    struct scene s;
    scene_init(&s, 1, NULL);
    atomic_store(&s.rails[0].inflight[0], 4 * mc_rail_window(&s.rails[0], 4096));
    struct mc_spray_item low = item_of(&s, 4096, 2);
    mc_qos_push(&s.spray.queue, &low.wait, s.now);
    assert_null(next_at(&s, s.now));
    assert_null(next_at(&s, s.now + MC_QOS_AGE_NS));
    assert_ptr_equal(next_at(&s, s.now + 2 * MC_QOS_AGE_NS), &low);
}

static void a_failure_pauses_the_way_and_two_peers_the_rail(void **state) {
    struct scene s;
    scene_init(&s, 2, NULL);
    struct mc_health health[4] = {0}, other_health[4] = {0};
    _Atomic(struct mc_health *) other_links = other_health;
    atomic_store(&s.links, health);
    struct mc_spray_item item = item_of(&s, 4096, 0);
    item.tried = 2;
    assert_int_equal(choose_at(&s, &item, s.now), 0);
    mc_spray_end(&s.spray, &item, MC_SPRAY_FAILED, "a", s.now);
    item.tried = 0;
    assert_int_equal(choose_at(&s, &item, s.now), 1); /* rail 0 pauses */
    struct mc_spray_item other = item_of(&s, 4096, 0);
    other.links = &other_links;
    other.tried = 2;
    assert_int_equal(choose_at(&s, &other, s.now), 0); /* not for others */
    mc_spray_end(&s.spray, &other, MC_SPRAY_FAILED, "b", s.now);
    assert_int_equal(mc_health_state(&s.rails[0].health, s.now),
                     MC_PAUSED); /* now it is the rail */
    assert_int_equal(choose_at(&s, &other, s.now), MC_SPRAY_NONE);
    other.last_resort = true;
    assert_int_equal(choose_at(&s, &other, s.now), 0);
    mc_spray_end(&s.spray, &other, MC_SPRAY_RELEASED, "b", s.now);
    s.now += MC_PAUSE_MIN_NS;
    other.last_resort = false;
    assert_int_equal(choose_at(&s, &other, s.now), 0); /* the probe */
    arrive(&s, &other, s.now + 5000);
    assert_int_equal(mc_health_state(&s.rails[0].health, s.now), MC_HEALTHY);
}

/* Overload keeps overdue slices at the head of the queue. They end there: one that took the probe
 * would keep the rail out for two seconds more, and the next one again. */
static void what_is_overdue_takes_no_probe(void **state) {
    enum { LATE = 3 };
    struct scene s;
    struct mc_health health[4] = {0};
    struct mc_spray_item item, late[LATE], good;
    scene_init(&s, 2, NULL);
    atomic_store(&s.links, health);
    item = item_of(&s, 4096, 0);
    item.tried = 2;
    assert_int_equal(choose_at(&s, &item, s.now), 0);
    mc_spray_end(&s.spray, &item, MC_SPRAY_FAILED, "a", s.now);
    for (int i = 0; i < LATE; i++) {
        late[i] = item_of(&s, 4096, 0);
        late[i].over_ns = late[i].wait.deadline_ns = s.now + MC_MS;
        mc_qos_push(&s.spray.queue, &late[i].wait, s.now);
    }
    good = item_of(&s, 4096, 0);
    good.over_ns = good.wait.deadline_ns = s.now + MC_SEC;
    mc_qos_push(&s.spray.queue, &good.wait, s.now);
    s.now += 10 * MC_MS; /* the pause is over, and so is the time of three */
    for (int i = 0; i < LATE; i++) {
        assert_ptr_equal(next_at(&s, s.now), &late[i]);
        assert_int_equal(late[i].rail, MC_RAILS_MAX);
        assert_false(late[i].held);
    }
    assert_ptr_equal(next_at(&s, s.now), &good);
    assert_int_equal(good.rail, 0); /* the probe */
    assert_int_equal(mc_metric_get(&s.rails[0].probes), 1);
    assert_int_equal(mc_rail_inflight(&s.rails[0]), 4096);
    assert_int_equal(mc_rail_inflight(&s.rails[1]), 0);
    assert_false(mc_qos_any(&s.spray.queue));
    arrive(&s, &good, s.now + 5000);
    assert_int_equal(mc_health_state(&health[0], s.now), MC_HEALTHY);
}

static void an_idle_rail_is_tried_again(void **state) {
    struct scene s;
    scene_init(&s, 2, NULL);
    s.now = feed(&s.rails[1], 0.1, 1 << 20, s.now, 100 * MC_MS); /* it was very slow once */
    atomic_store(&s.rails[0].timed_ns, s.now);
    atomic_store(&s.rails[1].timed_ns, s.now);
    int seen[2] = {0};
    for (int i = 0; i < 300; i++, s.now += MC_MS) {
        struct mc_spray_item item = item_of(&s, 65536, 0);
        int rail = choose_at(&s, &item, s.now);
        assert_in_range(rail, 0, 1);
        seen[rail]++;
        mc_spray_end(&s.spray, &item, MC_SPRAY_RELEASED, NULL, s.now);
    }
    assert_in_range(seen[1], 1, 5);
}

static void slices_suit_the_request_and_the_rails(void **state) {
    assert_int_equal(mc_spray_slice_bytes(1 << 30, 1, 4 << 20), 4 << 20);
    assert_int_equal(mc_spray_slice_bytes(4096, 8, 1 << 20), 64 << 10);
    assert_in_range(mc_spray_slice_bytes(64 << 20, 8, 1 << 20), 1 << 20, (1 << 20) + 1);
    assert_int_equal(mc_spray_slice_bytes(1ull << 40, 8, 1 << 20), 4 << 20);
}

/* ---- order ---- */

static uint8_t first_of(struct mc_qos *q, uint64_t now) {
    uint8_t order[MC_PRIORITIES];
    assert_true(mc_qos_order(q, now, order) > 0);
    return order[0];
}

static void the_urgent_go_first_and_the_old_are_not_forgotten(void **state) {
    static const uint32_t strict[3];
    struct mc_qos q;
    struct mc_qos_item items[3];
    mc_qos_init(&q, strict);
    for (uint8_t p = 3; p-- > 0;) {
        items[p] = (struct mc_qos_item){.length = 1000, .priority = p};
        mc_qos_push(&q, &items[p], MC_SEC + 1 - p); /* the lowest came first */
    }
    assert_int_equal(first_of(&q, MC_SEC + 2), 0);
    assert_int_equal(mc_qos_before(&q, 1), 2000);
    assert_int_equal(mc_qos_waiting(&q), 3000);
    /* As urgent by then as the urgent, and older. */
    assert_int_equal(first_of(&q, MC_SEC + 2 * MC_QOS_AGE_NS), 2);
    mc_qos_remove(&q, &items[2], true);
    assert_int_equal(first_of(&q, MC_SEC + 2 * MC_QOS_AGE_NS), 1);
    mc_qos_remove(&q, &items[1], true);
    mc_qos_remove(&q, &items[0], true);
    assert_int_equal(mc_qos_waiting(&q), 0);
    assert_false(mc_qos_any(&q));
}

static void weights_divide_the_bytes(void **state) {
    static const uint32_t weights[3] = {6, 3, 1};
    struct mc_qos q;
    struct mc_qos_item items[300];
    uint64_t served[3] = {0};
    mc_qos_init(&q, weights);
    for (int i = 0; i < 300; i++) {
        items[i] = (struct mc_qos_item){.length = 1000 + (uint64_t)(i % 7), .priority = i % 3};
        mc_qos_push(&q, &items[i], MC_SEC);
    }
    for (int i = 0; i < 100; i++) {
        uint8_t p = first_of(&q, MC_SEC);
        struct mc_qos_item *item = mc_container_of(q.queues[p].next, struct mc_qos_item, link);
        served[p] += item->length;
        mc_qos_remove(&q, item, true);
    }
    is_about((double)served[0], 60000);
    is_about((double)served[1], 30000);
    assert_in_range(served[2], 9000, 11500);
}

static void serve(struct mc_qos *q, uint64_t served[3]) {
    uint8_t p = first_of(q, MC_SEC);
    struct mc_qos_item *item = mc_container_of(q->queues[p].next, struct mc_qos_item, link);
    served[p] += item->length;
    mc_qos_remove(q, item, true);
}

static void silence_saves_nothing_up(void **state) {
    static const uint32_t weights[3] = {6, 3, 1};
    struct mc_qos q;
    struct mc_qos_item items[200], alone;
    uint64_t served[3] = {0};
    mc_qos_init(&q, weights);
    for (int i = 0; i < 5000; i++) { /* the low alone, its queue empty between */
        alone = (struct mc_qos_item){.length = 1000, .priority = 2};
        mc_qos_push(&q, &alone, MC_SEC);
        mc_qos_remove(&q, &alone, true);
    }
    for (int i = 0; i < 200; i++) { /* the high comes first, and nobody waits then */
        items[i] = (struct mc_qos_item){.length = 1000, .priority = i < 100 ? 0 : 2};
        mc_qos_push(&q, &items[i], MC_SEC);
    }
    for (int i = 0; i < 70; i++) {
        serve(&q, served);
    }
    assert_in_range(served[0], 58000, 62000);
    assert_in_range(served[2], 8000, 12000);
}

static void expect_order(struct mc_qos *q, struct mc_qos_item *const *items, size_t count) {
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(mc_container_of(q->queues[1].next, struct mc_qos_item, link), items[i]);
        mc_qos_remove(q, items[i], true);
    }
    assert_false(mc_qos_any(q));
}

static void the_earliest_deadline_goes_first(void **state) {
    static const uint32_t strict[3];
    const uint64_t now = 10 * MC_SEC;
    struct mc_qos q;
    struct mc_qos_item open[3], soon, sooner, far, late;
    struct mc_qos_item many[2 * MC_QOS_WALK_MAX], later[MC_QOS_WALK_MAX + 10];
    mc_qos_init(&q, strict);
    for (int i = 0; i < 3; i++) {
        open[i] = (struct mc_qos_item){.length = 1, .priority = 1};
        mc_qos_push(&q, &open[i], now);
    }
    soon = (struct mc_qos_item){.length = 1, .priority = 1, .deadline_ns = now + 90 * MC_MS};
    sooner = (struct mc_qos_item){.length = 1, .priority = 1, .deadline_ns = now + 40 * MC_MS};
    far = (struct mc_qos_item){.length = 1, .priority = 1, .deadline_ns = now + 60 * MC_SEC};
    mc_qos_push(&q, &soon, now);
    mc_qos_push(&q, &far, now);
    mc_qos_push(&q, &sooner, now);
    /* What has waited for its patience is not passed by those that come later. */
    late = (struct mc_qos_item){
        .length = 1, .priority = 1, .deadline_ns = now + MC_QOS_PATIENCE_NS + 10 * MC_MS};
    mc_qos_push(&q, &late, now + MC_QOS_PATIENCE_NS);
    struct mc_qos_item *const order[] = {&sooner, &soon, &open[0], &open[1], &open[2], &far, &late};
    expect_order(&q, order, MC_ARRAY_LEN(order));
    /* However many go before, or after, who pushes late passes none that is due earlier. */
    for (int i = 0; i < 2 * MC_QOS_WALK_MAX; i++) {
        many[i] = (struct mc_qos_item){.length = 1, .priority = 1, .deadline_ns = now + 1};
        mc_qos_push(&q, &many[i], now);
    }
    mc_qos_push(&q, &open[0], now);
    mc_qos_push(&q, &soon, now - 1);
    assert_ptr_equal(soon.link.prev, &many[2 * MC_QOS_WALK_MAX - 1].link);
    assert_ptr_equal(soon.link.next, &open[0].link);
    for (size_t i = 0; i < MC_ARRAY_LEN(later); i++) {
        later[i] = (struct mc_qos_item){.length = 1, .priority = 1};
        mc_qos_push(&q, &later[i], now + 1);
    }
    mc_qos_push(&q, &sooner, now); /* a push looks at a bounded number of them */
    assert_ptr_equal(sooner.link.prev, &later[MC_ARRAY_LEN(later) - 1 - MC_QOS_WALK_MAX].link);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_step_the_average_has_gone_63_per_cent_in_tau),
        cmocka_unit_test(one_odd_sample_after_a_silence_does_not_decide),
        cmocka_unit_test(a_lightly_used_rail_is_not_taken_for_a_slow_one),
        cmocka_unit_test(a_rail_of_unknown_speed_is_learnt),
        cmocka_unit_test(pauses_double_and_end_by_themselves),
        cmocka_unit_test(many_slices_of_one_failure_count_once),
        cmocka_unit_test(one_probe_goes_at_a_time),
        cmocka_unit_test(the_first_to_be_complete_is_chosen),
        cmocka_unit_test(a_full_rail_makes_wait_and_the_one_that_frees_first_serves),
        cmocka_unit_test(a_group_is_placed_as_one_after_the_other),
        cmocka_unit_test(of_two_that_fill_a_rail_at_once_one_is_told),
        cmocka_unit_test(a_probe_is_not_taken_back),
        cmocka_unit_test(beside_a_flood_of_urgent_bytes_the_old_go_too),
        cmocka_unit_test(a_failure_pauses_the_way_and_two_peers_the_rail),
        cmocka_unit_test(what_is_overdue_takes_no_probe),
        cmocka_unit_test(an_idle_rail_is_tried_again),
        cmocka_unit_test(slices_suit_the_request_and_the_rails),
        cmocka_unit_test(the_urgent_go_first_and_the_old_are_not_forgotten),
        cmocka_unit_test(weights_divide_the_bytes),
        cmocka_unit_test(silence_saves_nothing_up),
        cmocka_unit_test(the_earliest_deadline_goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
