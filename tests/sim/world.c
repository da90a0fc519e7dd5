/*
 * The world: events, virtual time, processes, the master, faults, and the phases of a run.
 *
 * A run has three phases. First the clients do their operations while faults happen. When all are
 * through, the world becomes calm: nothing is lost or late any more, who was down comes back, and
 * the auditor (workload.c) demands that everything works and that all space returns. Then
 * everything is taken down; handlers of events that are still queued only give back what they own.
 */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "sim/sim.h"

#define NOTES_LOST        20 /* of 100 masters that are lost: the next one does not find their notes */
#define FSCK_EVERY_EVENTS 97 /* a prime: not in step with anything */
#define EVENTS_MAX        2000000
#define CUT_WITHIN        40 /* operations of a disk */
#define GUEST_EVERY       3  /* of the clients */
#define CALM_TICK_NS      (100 * MC_MS)

/* ---- saying ---- */

void sim_say(struct sim *sim, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%10.6f  ", (double)sim->now_ns / 1e9);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

void sim_fail(struct sim *sim, const char *format, ...) {
    struct sim_result *result = sim->result;
    if (result->failed) {
        return; /* the first fault is the one that explains the others */
    }
    result->failed = true;
    int n = snprintf(result->failure, sizeof(result->failure),
                     "at %.6f s, event %llu: ", (double)sim->now_ns / 1e9,
                     (unsigned long long)result->events);
    va_list args;
    va_start(args, format);
    vsnprintf(result->failure + n, sizeof(result->failure) - (size_t)n, format, args);
    va_end(args);
    sim_trace(sim, "FAULT %s", result->failure);
}

void sim_note(struct sim *sim, uint64_t word) {
    uint64_t hash = (sim->result->hash ^ word) * 0x9e3779b97f4a7c15u;
    sim->result->hash = hash ^ hash >> 29;
}

/* ---- chance ---- */

bool sim_odds(struct sim *sim, unsigned of_100) {
    return mc_rng_below(&sim->rng, 100) < of_100;
}

bool sim_chance(struct sim *sim, unsigned of_10000) {
    return mc_rng_below(&sim->rng, 10000) < of_10000 && !sim->calm;
}

uint64_t sim_between(struct sim *sim, uint64_t least, uint64_t most) {
    return least + mc_rng_below(&sim->rng, most - least + 1);
}

/* Of one message: mostly a round number of network, sometimes a retransmission, rarely a stall. */
uint64_t sim_latency(struct sim *sim) {
    uint64_t ns = sim_between(sim, 30 * 1000, 300 * 1000);
    if (sim_chance(sim, sim->profile.slow)) {
        ns += sim_between(sim, MC_MS, 80 * MC_MS);
    }
    if (sim_chance(sim, sim->profile.very_slow)) {
        ns += sim_between(sim, 100 * MC_MS, 3500 * MC_MS);
    }
    return ns;
}

/* ---- events ---- */

static bool earlier(const struct sim_event *a, const struct sim_event *b) {
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

void sim_at(struct sim *sim, uint64_t at_ns, sim_fire_fn fire, void *arg, uint64_t word) {
    if (sim->heap_count == sim->heap_capacity) {
        sim->heap_capacity = sim->heap_capacity ? sim->heap_capacity * 2 : 256;
        sim->heap = mc_realloc(sim->heap, sim->heap_capacity * sizeof(*sim->heap));
    }
    struct sim_event event = {mc_max_u64(at_ns, sim->now_ns), sim->sequence++, fire, arg, word};
    size_t i = sim->heap_count++;
    for (; i > 0 && earlier(&event, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        sim->heap[i] = sim->heap[(i - 1) / 2];
    }
    sim->heap[i] = event;
}

static struct sim_event take_first(struct sim *sim) {
    struct sim_event first = sim->heap[0];
    struct sim_event moving = sim->heap[--sim->heap_count];
    size_t i = 0;
    for (size_t child = 1; child < sim->heap_count; child = 2 * i + 1) {
        if (child + 1 < sim->heap_count && earlier(&sim->heap[child + 1], &sim->heap[child])) {
            child++;
        }
        if (!earlier(&sim->heap[child], &moving)) {
            break;
        }
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    if (sim->heap_count > 0) {
        sim->heap[i] = moving;
    }
    return first;
}

/* ---- processes ---- */

static uint64_t process_now(const struct mc_clock *clock) {
    const struct sim_process *process = mc_container_of(clock, struct sim_process, clock);
    return process->sim->now_ns - process->clock_lag_ns;
}

static uint64_t process_wall(const struct mc_clock *clock) {
    const struct sim_process *process = mc_container_of(clock, struct sim_process, clock);
    return process->sim->now_ns / MC_MS + process->wall_ms;
}

static const struct mc_clock *port_clock(struct mc_port *port) {
    return &mc_container_of(port, struct sim_process, port)->clock;
}

static void port_sleep_until(struct mc_port *port, uint64_t deadline_ns) {
    struct sim_process *process = mc_container_of(port, struct sim_process, port);
    if (!process->dead && deadline_ns > process_now(&process->clock)) {
        sim_park(process, deadline_ns + process->clock_lag_ns);
    }
}

const struct mc_port_ops sim_port_ops = {.clock = port_clock,
                                         .sleep_until = port_sleep_until,
                                         .call = sim_port_call,
                                         .move = sim_port_move,
                                         .map = sim_port_map,
                                         .unmap = sim_port_unmap,
                                         .peer_call = sim_port_peer_call};

void sim_process_start(struct sim_process *process, void (*main)(void *arg), void *arg) {
    struct sim *sim = process->sim;
    process->dead = false;
    process->clock_lag_ns = 0;
    process->cut_until_ns = 0;
    process->id = process->twin != NULL ? process->twin->id : mc_uuid_make(&sim->rng);
    sim_hot_make(process);
    struct mc_ops_config config = {.client = process->id,
                                   .tenant = process->guest ? SIM_GUEST : "default",
                                   .host_id = "",
                                   .timeout_ms = (uint32_t)sim->profile.timeout_ms,
                                   .checksum = sim->profile.checksum &&
                                               sim->options.client_break != SIM_BREAK_NO_SUMS,
                                   .hot = process->hot,
                                   .stripe_bytes = process->striper ? sim->profile.stripe_bytes : 0,
                                   .round_bytes = sim->profile.round_bytes};
    process->ops = mc_ops_create(&process->port, &config);
    sim_trace(sim, "%s starts", process->name);
    struct sim_process *before = sim->running;
    sim->running = process;
    sim_fiber_start(&process->fiber, main, arg);
    sim->running = before;
}

static void resume(struct sim_process *process) {
    struct sim *sim = process->sim;
    struct sim_process *before = sim->running;
    sim->running = process;
    sim_fiber_resume(&process->fiber);
    sim->running = before;
}

void sim_process_end(struct sim_process *process) {
    struct sim_coverage *coverage = &process->sim->result->coverage;
    const struct mc_ops_counters *counters = mc_ops_counters(process->ops);
    coverage->remounts += (uint64_t)mc_metric_get(&counters->remounts);
    coverage->failovers += (uint64_t)mc_metric_get(&counters->failovers);
    coverage->renewals += (uint64_t)mc_metric_get(&counters->leases_renewed);
    coverage->in_doubt += (uint64_t)mc_metric_get(&counters->puts_abandoned);
    coverage->tasks_done += (uint64_t)mc_metric_get(&counters->tasks);
    coverage->tasks_failed += (uint64_t)mc_metric_get(&counters->task_failures);
    coverage->disk_reads += (uint64_t)mc_metric_get(&counters->disk_reads);
    coverage->disk_read_failures += (uint64_t)mc_metric_get(&counters->disk_read_failures);
    coverage->files_told += (uint64_t)mc_metric_get(&counters->files_lost);
    coverage->checksum_mismatches += (uint64_t)mc_metric_get(&counters->checksum_mismatches);
    mc_ops_destroy(process->ops);
    process->ops = NULL;
    sim_hot_free(process);
}

/* Its calls fail from now on, at once and without effect, until its main function has returned. */
void sim_process_crash(struct sim_process *process) {
    if (process->fiber.stack == NULL) {
        return;
    }
    process->dead = true;
    process->wait_serial++; /* what it waited for shall not wake its successor */
    resume(process);
    MC_ASSERT(process->fiber.stack == NULL);
}

static void wake_event(struct sim *sim, void *arg, uint64_t word) {
    if (!sim->closing) {
        sim_wake(sim, arg, word);
    }
}

void sim_wake(struct sim *sim, struct sim_process *process, uint64_t serial) {
    if (process->fiber.stack != NULL && process->wait_serial == serial) {
        process->wait_serial++;
        resume(process);
    }
}

void sim_park(struct sim_process *process, uint64_t until_ns) {
    if (until_ns != UINT64_MAX) {
        sim_at(process->sim, until_ns, wake_event, process, process->wait_serial);
    }
    sim_fiber_park(&process->fiber);
}

void sim_sleep(struct sim_process *process, uint64_t ns) {
    if (!process->dead) {
        sim_park(process, process->sim->now_ns + ns);
    }
}

/* ---- the master ---- */

static uint64_t world_now(const struct mc_clock *clock) {
    return mc_container_of(clock, struct sim, clock)->now_ns;
}

static uint64_t world_wall(const struct mc_clock *clock) {
    return world_now(clock) / MC_MS + mc_container_of(clock, struct sim, clock)->wall_ms;
}

static void master_start(struct sim *sim) {
    const struct sim_profile *profile = &sim->profile;
    struct mc_master_config config;
    mc_master_config_init(&config);
    config.default_kv_lease_ttl_ms = profile->lease_ms;
    config.default_kv_soft_pin_ttl_ms = 5 * profile->lease_ms;
    config.client_ttl_ms = profile->client_ttl_ms;
    config.put_start_discard_timeout_ms = profile->discard_ms;
    config.put_start_release_timeout_ms = profile->release_ms;
    config.pending_task_timeout_ms = config.processing_task_timeout_ms = 5000;
    config.max_retry_attempts = 3;
    config.allocation_strategy = profile->strategy;
    config.eviction_policy = profile->eviction_policy;
    if (profile->heat) { /* hot keys get a second replica, which goes when they cool down */
        config.dynamic_replication = MC_DYNAMIC_ENFORCE;
        config.dynamic_window_ms = 700;
        config.dynamic_qps = 3;
    }
    config.eviction_ratio = profile->eviction_ratio;
    config.eviction_high_watermark_ratio = profile->watermark;
    config.enable_offload = profile->ssd;
    config.offload_on_evict = profile->offload_on_evict;
    config.offload_force_evict = profile->offload_force;
    config.offload_high_watermark_ratio = profile->offload_watermark;
    config.offload_notes_path = sim->notes;
    config.offload_adopt_unproven = sim->options.client_break == SIM_BREAK_LOSE_NOTES;
    config.promotion_on_hit = profile->promote;
    config.root_fs_dir = profile->files ? SIM_SHARED : "";
    config.cluster_id = "c";
    config.promotion_admission_threshold = 2;
    config.enable_multi_tenants = profile->quota > 0;
    config.tenant_quota_policy = sim->quotas;
    config.seed = mc_rng_next(&sim->rng) | 1;
    config.break_mode = sim->options.master_break;
    sim->master = mc_master_create(&config, &sim->clock, NULL);
    MC_ASSERT(sim->master != NULL);
    memset(sim->peer_words, 0, sizeof(sim->peer_words));
    sim_trace(sim, "master starts");
}

static void master_lose(struct sim *sim) {
    if (sim->master != NULL) {
        mc_master_destroy(sim->master);
        sim->master = NULL;
        sim->draining = NULL;
        sim_ledger_master_lost(sim);
        bool lost =
            sim->profile.ssd && !sim->closing &&
            (sim_odds(sim, NOTES_LOST) || sim->options.client_break == SIM_BREAK_LOSE_NOTES);
        if (lost) { /* the next one runs elsewhere */
            (void)unlink(sim->notes);
            SIM_COUNT(sim, notes_lost);
        }
    }
}

static void master_tick(struct sim *sim, void *arg, uint64_t word) {
    if (sim->closing) {
        return;
    }
    if (sim->master != NULL) {
        mc_master_tick(sim->master);
        sim_operator_tick(sim);
    }
    /* in a calm cluster there is more time than work */
    uint64_t period = sim->auditing ? CALM_TICK_NS : sim->profile.tick_ns;
    sim_at(sim, sim->now_ns + period, master_tick, NULL, 0);
}

static void check_master(struct sim *sim) {
    if (sim->master == NULL) {
        return;
    }
    struct mc_buf report = {0};
    /* asked in any case, since the question may move things in the allocator */
    enum mc_status status = mc_master_fsck(sim->master, &report);
    if (status != MC_OK && !sim->options.outside_only) {
        sim_fail(sim, "fsck: %s", mc_buf_cstr(&report));
    }
    mc_buf_free(&report);
    SIM_COUNT(sim, fscks);
}

/* ---- faults ---- */

static void master_returns(struct sim *sim, void *arg, uint64_t word) {
    if (!sim->closing && sim->master == NULL) {
        master_start(sim);
    }
}

static void client_returns(struct sim *sim, void *arg, uint64_t word) {
    struct sim_client *client = arg;
    if (!sim->closing && client->process.fiber.stack == NULL && !client->finished) {
        sim_client_start(client);
    }
}

static void crash_master(struct sim *sim) {
    if (sim->master != NULL) {
        SIM_COUNT(sim, master_crashes);
        sim_trace(sim, "master crashes");
        master_lose(sim);
        sim_at(sim, sim->now_ns + sim_between(sim, 0, 2 * MC_SEC), master_returns, NULL, 0);
    }
}

static void crash_node(struct sim *sim, struct sim_node *node) {
    if (node->up) {
        SIM_COUNT(sim, node_crashes);
        sim_trace(sim, "%s crashes", node->process.name);
        sim_node_crash(node, sim_odds(sim, 30));
    }
}

static void crash_client(struct sim *sim, struct sim_client *client) {
    if (client->process.fiber.stack != NULL) {
        SIM_COUNT(sim, client_crashes);
        sim_trace(sim, "%s crashes", client->process.name);
        sim_process_crash(&client->process);
        sim_at(sim, sim->now_ns + sim_between(sim, 0, MC_SEC), client_returns, client, 0);
    }
}

static void cut_off(struct sim *sim, struct sim_process *process) {
    SIM_COUNT(sim, cuts);
    process->cut_until_ns = sim->now_ns + sim_between(sim, 50 * MC_MS, 2500 * MC_MS);
    for (unsigned i = 0; i < SIM_NODES; i++) {
        if (process == &sim->nodes[i].process) {
            sim->nodes[i].worker.cut_until_ns = process->cut_until_ns;
            sim->nodes[i].ssd.cut_until_ns = process->cut_until_ns;
        }
    }
    sim_trace(sim, "%s is cut off until %.6f", process->name, (double)process->cut_until_ns / 1e9);
}

static void leave(struct sim *sim, struct sim_node *node) {
    if (node->up && !node->leaving) {
        SIM_COUNT(sim, leaves);
        sim_trace(sim, "%s is asked to leave", node->process.name);
        node->leaving = true;
    }
}

/* The power goes in the middle of whatever the disk does next. */
static void cut_power(struct sim *sim, struct sim_node *node) {
    if (node->up && node->disk != NULL) {
        sim_disk_cut_after(node->disk, (unsigned)sim_between(sim, 1, CUT_WITHIN));
    }
}

static void turn_bit(struct sim *sim, struct sim_node *node) {
    if (node->disk != NULL && sim_disk_turn_bit(node->disk)) {
        sim_trace(sim, "a bit turns on the disk of %s", node->process.name);
    }
}

/* Anybody's wall clock, by up to an hour; and that of a client or node which no longer knows how
 * much time has passed takes it for more than it was. */
static void jump(struct sim *sim, struct sim_process *process) {
    SIM_COUNT(sim, clock_jumps);
    uint64_t by_ms = sim_between(sim, 0, 2 * 3600 * 1000) - 3600 * 1000ull;
    if (sim_odds(sim, 30)) {
        sim->wall_ms += by_ms;
    } else if (sim_odds(sim, 50)) {
        process->wall_ms += by_ms;
    } else {
        process->clock_lag_ns -= sim_between(sim, 0, 3 * MC_SEC);
    }
    sim_trace(sim, "a clock jumps, of the master or of %s", process->name);
}

static void fault_event(struct sim *sim, void *arg, uint64_t word) {
    if (sim->closing || sim->calm) {
        return;
    }
    const struct sim_profile *p = &sim->profile;
    struct sim_node *node = &sim->nodes[mc_rng_below(&sim->rng, SIM_NODES)];
    struct sim_client *client = &sim->clients[mc_rng_below(&sim->rng, SIM_CLIENTS)];
    unsigned all = p->crash_client + p->crash_node + p->crash_master + p->cut + p->leave +
                   p->power + p->jump + p->file_loss + p->bit_rot;
    unsigned pick = all > 0 ? (unsigned)mc_rng_below(&sim->rng, all) : 0;
    if (all == 0) {
        return;
    }
    if (pick < p->crash_client) {
        crash_client(sim, client);
    } else if ((pick -= p->crash_client) < p->crash_node) {
        crash_node(sim, node);
    } else if ((pick -= p->crash_node) < p->crash_master) {
        crash_master(sim);
    } else if ((pick -= p->crash_master) < p->cut) {
        cut_off(sim, sim_odds(sim, 50) ? &node->process : &client->process);
    } else if ((pick -= p->cut) < p->leave) {
        leave(sim, node);
    } else if ((pick -= p->leave) < p->power) {
        cut_power(sim, node);
    } else if ((pick -= p->power) < p->jump) {
        jump(sim, sim_odds(sim, 30) ? &node->process : &client->process);
    } else if ((pick -= p->jump) < p->file_loss) {
        sim_shared_lose(sim);
    } else {
        turn_bit(sim, node);
    }
    sim_at(sim, sim->now_ns + sim_between(sim, p->fault_period_ns / 4, p->fault_period_ns * 2),
           fault_event, NULL, 0);
}

/* ---- phases ---- */

static unsigned one_of(struct sim *sim, unsigned a, unsigned b, unsigned c) {
    unsigned of[] = {a, b, c};
    return of[mc_rng_below(&sim->rng, 3)];
}

static void choose_faults(struct sim *sim) {
    struct sim_profile *p = &sim->profile;
    p->loss = one_of(sim, 0, 100, 500);
    p->doubling = one_of(sim, 0, 200, 1000);
    p->slow = one_of(sim, 100, 500, 2000);
    p->very_slow = one_of(sim, 0, 50, 300);
    p->ack_loss = one_of(sim, 0, 100, 500);
    p->crash_client = one_of(sim, 0, 2, 4);
    p->crash_node = one_of(sim, 0, 2, 3);
    p->crash_master = one_of(sim, 0, 0, 2);
    p->cut = one_of(sim, 0, 2, 4);
    p->leave = one_of(sim, 0, 0, 1);
    p->jump = one_of(sim, 0, 0, 2);
    p->file_loss = p->files ? one_of(sim, 0, 2, 4) : 0;
    if (p->ssd) {
        p->power = one_of(sim, 0, 2, 4);
        p->bit_rot = one_of(sim, 0, 0, 3);
        p->disk_faults = one_of(sim, 0, 50, 500);
        p->disk_slowness = one_of(sim, 1, 1, 200);
    }
    p->fault_period_ns = one_of(sim, 150, 400, 1500) * MC_MS;
}

static void choose_ssd(struct sim *sim) {
    struct sim_profile *p = &sim->profile;
    p->ssd = sim->options.ssd && sim_odds(sim, 50);
    p->offload_on_evict = sim_odds(sim, 50);
    p->promote = p->ssd && sim_odds(sim, 50);
    p->backend = (const char *[]){"bucket_storage_backend", "file_per_key_storage_backend",
                                  "offset_allocator_storage_backend",
                                  "nvme_kv_storage_backend"}[mc_rng_below(&sim->rng, 4)];
    p->offload_watermark = sim_odds(sim, 25) ? p->watermark / 2 : 0;
    p->disk_slowness = 1;
    p->disk_bytes = one_of(sim, 48, 128, 512) << 10;
    p->disk_seen_bytes = sim_odds(sim, 70) ? p->disk_bytes : 8 * p->disk_bytes;
    p->tier_bytes = one_of(sim, 32, 96, 1024) << 10;
    p->bucket_bytes = one_of(sim, 1000, 4000, 100000);
    p->lent_bytes = one_of(sim, 16, 32, 128) << 10;
    p->gc_ttl_ms = one_of(sim, 50, 300, 2000);
    p->tier_eviction = (enum mc_tier_eviction)mc_rng_below(&sim->rng, 3);
    if (strncmp(p->backend, "offset", 6) ==
        0) { /* its file is as large from the start; and .meta */
        p->disk_bytes = p->disk_seen_bytes = p->tier_bytes + sim_between(sim, 76, 132) * 1024;
    }
    /* else memory stays full when the disk is: what finds no place there may not go */
    p->offload_force = sim_odds(sim, 30) || p->tier_eviction == MC_TIER_EVICT_NONE;
}

static void choose_profile(struct sim *sim) {
    struct sim_profile *p = &sim->profile;
    *p = (struct sim_profile){
        .faulty = sim_odds(sim, 88),
        .checksum = sim_odds(sim, 40),
        .lease_ms = one_of(sim, 60, 300, 1000),
        .timeout_ms = one_of(sim, 600, 1500, 2500),
        .discard_ms = one_of(sim, 700, 1600, 3000),
        .client_ttl_ms = one_of(sim, 800, 1500, 2500),
        .tick_ns = one_of(sim, 10, 10, 50) * MC_MS,
        .ping_ns = one_of(sim, 100, 200, 300) * MC_MS,
        .segment_bytes = one_of(sim, 4096, 8192, 16384),
        .round_bytes = one_of(sim, 300, 1000, 0),
        .strategy = sim_odds(sim, 50) ? "random" : "free_ratio_first",
        .heat = sim_odds(sim, 40),
        .eviction_policy = (const char *[]){"lru", "s3fifo", "chain"}[sim_between(sim, 0, 2)],
        .eviction_ratio = one_of(sim, 5, 10, 30) / 100.0,
        .watermark = one_of(sim, 60, 90, 95) / 100.0,
        .operations = one_of(sim, 25, 35, 45)};
    p->release_ms = p->timeout_ms + SIM_LATE_NS / MC_MS + one_of(sim, 500, 1500, 4000);
    p->force = sim_odds(sim, 40);
    /* of one put to all that there is */
    p->quota =
        sim_odds(sim, 25) ? sim_between(sim, SIM_VALUE_MAX, SIM_NODES * p->segment_bytes) : 0;
    p->guest_quota = p->quota > 0 && sim_odds(sim, 70)
                         ? sim_between(sim, SIM_VALUE_MAX, SIM_NODES * p->segment_bytes)
                         : 0;
    p->hot_bytes = sim_odds(sim, 30) ? one_of(sim, 2000, 6000, 1u << 20) : 0;
    choose_ssd(sim);
    p->files = sim_odds(sim, 35);
    p->stripe_bytes = sim_odds(sim, 40) ? one_of(sim, 1, 600, 1000) : 0;
    p->drains = sim_odds(sim, p->ssd ? 70 : 40);
    p->reuse_addresses =
        (p->checksum && sim_odds(sim, 50)) || sim->options.client_break == SIM_BREAK_NO_SUMS;
    if (p->faulty) {
        choose_faults(sim);
    }
}

static void settle_down(struct sim *sim) {
    sim_trace(sim, "calm");
    for (unsigned i = 0; i < sim->profile.file_loss; i++) {
        sim_shared_lose(sim);
    }
    for (unsigned i = 0; i < SIM_NODES && sim->profile.file_loss > 0; i++) {
        crash_node(sim, &sim->nodes[i]); /* what is left is in files */
    }
    sim->calm = true;
    sim->auditing = true;
    sim_shared_faults(sim, 0);
    for (unsigned i = 0; i < SIM_NODES; i++) {
        sim->nodes[i].process.cut_until_ns = 0;
        sim->nodes[i].worker.cut_until_ns = 0;
        sim->nodes[i].ssd.cut_until_ns = 0;
        if (sim->nodes[i].disk != NULL) {
            sim_disk_set_faults(sim->nodes[i].disk, (struct sim_disk_faults){0});
            sim_disk_cut_after(sim->nodes[i].disk, 0);
        }
    }
    master_returns(sim, NULL, 0);
    sim_auditor_start(sim);
}

static bool clients_finished(const struct sim *sim) {
    for (unsigned i = 0; i < SIM_CLIENTS; i++) {
        if (!sim->clients[i].finished) {
            return false;
        }
    }
    return true;
}

static void set_up_process(struct sim *sim, struct sim_process *process, const char *kind,
                           unsigned index) {
    process->sim = sim;
    process->port.ops = &sim_port_ops;
    process->clock = (struct mc_clock){process_now, process_wall};
    process->host = index % SIM_NODES;
    snprintf(process->name, sizeof(process->name), "%s%u", kind, index);
}

/* A file of the real disk, as the master wants it. */
static void write_quotas(struct sim *sim) {
    if (sim->profile.quota == 0) {
        return;
    }
    snprintf(sim->quotas, sizeof(sim->quotas), "/tmp/mc_sim_quotas_%d.yaml", (int)getpid());
    FILE *file = fopen(sim->quotas, "w");
    MC_ASSERT(file != NULL);
    fprintf(file, "version: 1\n\ntenants:\n  - name: \"default\"\n    quota: %llu\n",
            (unsigned long long)sim->profile.quota);
    if (sim->profile.guest_quota > 0) {
        fprintf(file, "  - name: \"" SIM_GUEST "\"\n    quota: %llu\n",
                (unsigned long long)sim->profile.guest_quota);
    }
    fclose(file);
}

static struct sim *set_up(const struct sim_options *options, struct sim_result *result) {
    struct sim *sim = mc_zalloc(sizeof(*sim));
    sim->options = *options;
    sim->result = result;
    sim->clock = (struct mc_clock){world_now, world_wall};
    sim->now_ns = 1000 * MC_SEC; /* an uptime: subtracting a timeout from it must not wrap */
    mc_rng_seed(&sim->rng, options->seed);
    choose_profile(sim);
    sim->calm = !sim->profile.faulty;
    write_quotas(sim);
    snprintf(sim->notes, sizeof(sim->notes), "/dev/shm/mc_sim_notes_%d", (int)getpid());
    sim_shared_make(sim);
    sim_shared_faults(sim, sim->profile.faulty ? one_of(sim, 0, 50, 500) : 0);
    master_start(sim);
    for (unsigned i = 0; i < SIM_NODES; i++) {
        sim->nodes[i].index = i;
        set_up_process(sim, &sim->nodes[i].process, "node", i);
        set_up_process(sim, &sim->nodes[i].worker, "worker", i);
        set_up_process(sim, &sim->nodes[i].ssd, "ssd", i);
        sim->nodes[i].worker.twin = &sim->nodes[i].process;
        sim->nodes[i].ssd.twin = &sim->nodes[i].process;
        sim_ssd_make(&sim->nodes[i]);
        sim_node_start(&sim->nodes[i]);
    }
    for (unsigned i = 0; i <= SIM_CLIENTS; i++) {
        sim->clients[i].index = i;
        sim->clients[i].operations_left = sim->profile.operations;
        set_up_process(sim, &sim->clients[i].process, i < SIM_CLIENTS ? "client" : "auditor", i);
        sim->clients[i].process.hot_reader = i < SIM_CLIENTS;
        sim->clients[i].process.striper = i % 2 == 0;
        sim->clients[i].process.guest = sim->profile.guest_quota > 0 && i % GUEST_EVERY == 2;
        if (i < SIM_CLIENTS) {
            sim_client_start(&sim->clients[i]);
        }
    }
    sim_at(sim, sim->now_ns + sim->profile.tick_ns, master_tick, NULL, 0);
    if (sim->profile.faulty) {
        sim_at(sim, sim->now_ns + sim->profile.fault_period_ns, fault_event, NULL, 0);
    }
    return sim;
}

static void take_down(struct sim *sim) {
    sim->closing = true;
    for (unsigned i = 0; i <= SIM_CLIENTS; i++) {
        sim_process_crash(&sim->clients[i].process);
    }
    for (unsigned i = 0; i < SIM_NODES; i++) {
        sim_node_crash(&sim->nodes[i], false);
        sim_ssd_free(&sim->nodes[i]);
    }
    while (sim->heap_count > 0) {
        struct sim_event event = take_first(sim);
        event.fire(sim, event.arg, event.word);
    }
    master_lose(sim);
    sim_shared_free(sim);
    if (sim->profile.quota > 0) {
        (void)unlink(sim->quotas);
    }
    if (sim->profile.ssd) {
        (void)unlink(sim->notes);
    }
    MC_ASSERT(sim->mapped_count == 0);
    mc_arena_free(&sim->master_arena);
    mc_arena_free(&sim->spy_arena);
    free(sim->heap);
    free(sim->mapped);
    free(sim->values);
    for (unsigned key = 0; key < SIM_KEYS; key++) {
        free(sim->histories[key].ops);
    }
    free(sim->replaced);
    free(sim->extents);
    free(sim);
}

static void step(struct sim *sim) {
    struct sim_event event = take_first(sim);
    MC_ASSERT(event.at >= sim->now_ns);
    sim->now_ns = event.at;
    sim->result->events++;
    sim_note(sim, event.at);
    sim_note(sim, event.sequence);
    event.fire(sim, event.arg, event.word);
    if (sim->result->events % FSCK_EVERY_EVENTS == 0) {
        check_master(sim);
    }
}

void sim_run(const struct sim_options *options, struct sim_result *result) {
    *result = (struct sim_result){.hash = options->seed};
    struct sim *sim = set_up(options, result);
    uint64_t began = sim->now_ns;
    bool audited = false;
    while (!sim->over && !result->failed && sim->heap_count > 0 &&
           (options->steps == 0 || result->events < options->steps)) {
        step(sim);
        if (!audited && clients_finished(sim)) {
            audited = true;
            settle_down(sim);
        }
        if (result->events > EVENTS_MAX) {
            sim_fail(sim, "the run does not come to an end");
        }
    }
    check_master(sim);
    sim_oracle_conclude(sim);
    result->virtual_ns = sim->now_ns - began;
    take_down(sim);
}
