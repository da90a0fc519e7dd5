/*
 * What is known of one rail. See rail.h.
 *
 * How bandwidth is told from latency: a slice that had Q bytes ahead of it (itself included) and
 * took T is, with L the least latency, a sample Q / (T - L) of the rail's speed, whether or not the
 * rail was kept busy; this is why a lightly used rail is not taken for a slow one. Where T is not
 * well above L that would be noise, and where transmission explains most of T the rest of it is no
 * measure of L: each sample speaks about what dominates it.
 */
#include "te/rail.h"

#include <math.h>
#include <stdio.h>

#define LATENCY_DOMINATES 2.0 /* T must be so many times L to say something about speed */
#define FORGIVE_PAUSES    8   /* a failure so many pauses after the last one is the first again */

/* ---- exponential moving average ---- */

double mc_ewma_weight(uint64_t dt_ns, uint64_t tau_ns) {
    double x = (double)dt_ns / (double)tau_ns;
    return x < 0.001 ? x : -expm1(-x); /* the same to 0.05 % */
}

void mc_ewma_add(struct mc_ewma *e, double sample, uint64_t now_ns, uint64_t tau_ns) {
    if (e->at_ns == 0) {
        e->value = sample;
    } else {
        uint64_t dt = now_ns > e->at_ns ? now_ns - e->at_ns : 0;
        e->value += mc_ewma_weight(mc_min_u64(dt, tau_ns), tau_ns) * (sample - e->value);
    }
    e->at_ns = mc_max_u64(now_ns, 1);
}

/* ---- health ---- */

enum mc_health_state mc_health_state(const struct mc_health *h, uint64_t now_ns) {
    uint64_t until = atomic_load_explicit(&h->paused_until_ns, memory_order_relaxed);
    return until == 0 ? MC_HEALTHY : now_ns < until ? MC_PAUSED : MC_PROBING;
}

/* The probe is taken by moving the end of the pause: whoever succeeds sends it, everybody else sees
 * a pause, and if its end never comes the next probe goes after MC_PROBE_PATIENCE_NS. */
bool mc_health_take(struct mc_health *h, uint64_t now_ns) {
    uint64_t until = atomic_load_explicit(&h->paused_until_ns, memory_order_relaxed);
    if (until == 0) {
        return true;
    }
    return now_ns >= until && atomic_compare_exchange_strong_explicit(
                                  &h->paused_until_ns, &until, now_ns + MC_PROBE_PATIENCE_NS,
                                  memory_order_relaxed, memory_order_relaxed);
}

static uint64_t pause_ns(uint32_t failures) {
    uint32_t doublings = failures > 20 ? 20 : failures - 1;
    return mc_min_u64(MC_PAUSE_MIN_NS << doublings, MC_PAUSE_MAX_NS);
}

void mc_health_failed(struct mc_health *h, uint64_t posted_ns, uint64_t now_ns) {
    uint64_t last = atomic_load_explicit(&h->failed_at_ns, memory_order_relaxed);
    uint32_t failures = atomic_load_explicit(&h->failures, memory_order_relaxed);
    if (failures != 0 && posted_ns < last) {
        return; /* one of those that were under way when the rail failed: the same failure */
    }
    bool again = failures != 0 && now_ns < last + FORGIVE_PAUSES * pause_ns(failures);
    failures = again ? failures + 1 : 1;
    atomic_store_explicit(&h->failures, failures, memory_order_relaxed);
    atomic_store_explicit(&h->failed_at_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&h->paused_until_ns, now_ns + pause_ns(failures), memory_order_relaxed);
}

void mc_health_arrived(struct mc_health *h, uint64_t posted_ns) {
    if (!mc_health_good(h) &&
        posted_ns >= atomic_load_explicit(&h->failed_at_ns, memory_order_relaxed)) {
        atomic_store_explicit(&h->paused_until_ns, 0, memory_order_relaxed);
    }
}

void mc_health_reset(struct mc_health *h) {
    atomic_store_explicit(&h->failures, 0, memory_order_relaxed);
    atomic_store_explicit(&h->failed_at_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&h->paused_until_ns, 0, memory_order_relaxed);
}

/* ---- rail ---- */

static void set_speed(struct mc_rail *rail, double bytes_per_s, double latency_ns) {
    double window = bytes_per_s * ((double)MC_RAIL_QUEUE_NS + 2 * latency_ns) / 1e9;
    atomic_store_explicit(&rail->ns_per_byte, 1e9 / bytes_per_s, memory_order_relaxed);
    atomic_store_explicit(&rail->window, (uint64_t)window, memory_order_relaxed);
}

void mc_rail_init(struct mc_rail *rail, const struct mc_rail_info *info) {
    memset(rail, 0, sizeof(*rail));
    rail->info = *info;
    rail->least_latency[0] = rail->least_latency[1] = -1;
    atomic_store_explicit(&rail->up, info->up, memory_order_relaxed);
    if (info->bandwidth != 0) {
        rail->bandwidth.value = (double)info->bandwidth;
        set_speed(rail, rail->bandwidth.value, 0);
    }
}

/* The least of two spans, so that it holds at least one whole span of history; 0 when nothing is
 * known. `sample` < 0: none. */
static double note_latency(struct mc_rail *rail, double sample, uint64_t now_ns) {
    double *least = rail->least_latency;
    if (now_ns - rail->span_began_ns >= MC_RAIL_LATENCY_SPAN_NS) {
        least[1] = least[0];
        least[0] = -1;
        rail->span_began_ns = now_ns;
    }
    if (sample >= 0 && (least[0] < 0 || sample < least[0])) {
        least[0] = sample;
    }
    double latency = least[0] < 0 || (least[1] >= 0 && least[1] < least[0]) ? least[1] : least[0];
    latency = latency < 0 ? 0 : latency;
    atomic_store_explicit(&rail->latency_ns, latency, memory_order_relaxed);
    return latency;
}

void mc_rail_sample(struct mc_rail *rail, uint64_t ahead, uint64_t took_ns, uint64_t now_ns) {
    if (atomic_exchange_explicit(&rail->sampling, true, memory_order_acquire)) {
        return;
    }
    double took = (double)mc_max_u64(took_ns, 1);
    double each = atomic_load_explicit(&rail->ns_per_byte, memory_order_relaxed);
    double moving = (double)ahead * each;
    double latency = note_latency(rail, moving <= took / 2 ? took - moving : -1, now_ns);
    if (took > LATENCY_DOMINATES * latency || each <= 0) {
        double speed = (double)ahead * 1e9 / (took > latency ? took - latency : took);
        mc_ewma_add(&rail->bandwidth, speed, now_ns, MC_RAIL_TAU_NS);
        set_speed(rail, rail->bandwidth.value, latency);
    }
    atomic_store_explicit(&rail->measured_at_ns, mc_max_u64(now_ns, 1), memory_order_relaxed);
    mc_histogram_observe(&rail->latency, took_ns / 1000);
    atomic_store_explicit(&rail->sampling, false, memory_order_release);
}

double mc_rail_bandwidth(const struct mc_rail *rail) {
    double each = atomic_load_explicit(&rail->ns_per_byte, memory_order_relaxed);
    return each > 0 ? 1e9 / each : 0;
}

const char *mc_rail_state_name(const struct mc_rail *rail, uint64_t now_ns) {
    if (!atomic_load_explicit(&rail->up, memory_order_relaxed)) {
        return "down";
    }
    static const char *const names[] = {"healthy", "paused", "probing"};
    return names[mc_health_state(&rail->health, now_ns)];
}
