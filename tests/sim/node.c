/*
 * A store node: it mounts its memory, pings, and mounts fresh memory when the master has forgotten
 * it; and its worker, which carries out the master's tasks. They do what client/store_open.c and
 * store_tasks.c do on threads, over the same mc_ops_* calls.
 *
 * Addresses are not used twice, neither by fresh memory (mc_ops_node promises that) nor by a node
 * that was started again, except in runs with checksums, where some restarts find their memory
 * where the old one was.
 */
#include "sim/sim.h"

static uint64_t fresh_base(struct sim_node *node) {
    return (node->index + 1ull) << 40 | ++node->generations << 24;
}

static void drop_region(struct sim_node *node) {
    if (node->region != NULL) {
        sim_region_unref(node->region);
        node->region = NULL;
    }
}

static void take_region(struct sim_node *node, struct mc_ops_segment *segment, uint64_t base) {
    struct sim *sim = node->process.sim;
    drop_region(node);
    node->region = sim_region_make(sim, base, sim->profile.segment_bytes);
    segment->id = mc_uuid_make(&sim->rng);
    segment->base = base;
    segment->size = node->region->size;
    sim_trace(sim, "%s has fresh memory at %#llx", node->process.name, (unsigned long long)base);
}

static enum mc_status fresh_memory(void *ctx, struct mc_ops_segment *segment) {
    struct sim_node *node = ctx;
    if (node->process.dead) {
        return MC_INTERNAL_ERROR;
    }
    take_region(node, segment, fresh_base(node));
    return MC_OK;
}

static void serve(struct sim_node *node) {
    struct sim_process *process = &node->process;
    const struct sim_profile *profile = &process->sim->profile;
    if (mc_ops_mount(process->ops, &node->ops, &node->ops.segments[0]) != MC_OK) {
        sim_trace(process->sim, "%s gives up", process->name);
        return;
    }
    while (!process->dead && !node->leaving) {
        sim_sleep(process, profile->ping_ns);
        enum mc_status status = mc_ops_heartbeat(process->ops, &node->ops);
        if (status != MC_OK) {
            sim_trace(process->sim, "%s: heartbeat: %s", process->name, mc_status_name(status));
        }
    }
    if (!process->dead && mc_ops_unmount(process->ops, &node->ops.segments[0], 0) != MC_OK) {
        sim_trace(process->sim, "%s leaves without having been unmounted", process->name);
    }
}

static bool worker_stops(void *ctx) {
    const struct sim_node *node = ctx;
    return node->worker.dead || !node->up;
}

static void worker_main(void *arg) {
    struct sim_node *node = arg;
    struct sim *sim = node->worker.sim;
    mc_ops_find_files(node->worker.ops);
    while (!worker_stops(node)) {
        sim_sleep(&node->worker, sim->profile.ping_ns);
        if (!worker_stops(node)) {
            sim->result->coverage.files_deleted += mc_ops_tidy_files(node->worker.ops);
        }
        if (!worker_stops(node)) {
            size_t done;
            enum mc_status status = mc_ops_run_tasks(node->worker.ops, worker_stops, node, &done);
            sim_note(sim, (uint64_t)(unsigned)status);
        }
    }
    sim_process_end(&node->worker);
}

static void stop_others(struct sim *sim, void *arg, uint64_t word) {
    struct sim_node *node = arg;
    if (!node->up) {
        sim_process_crash(&node->worker);
        sim_process_crash(&node->ssd);
        if (node->disk != NULL) {
            sim_disk_crash(node->disk, false);
        }
    }
}

static void start_again(struct sim *sim, void *arg, uint64_t word) {
    struct sim_node *node = arg;
    if (!sim->closing && node->process.fiber.stack == NULL && !node->power_lost) {
        sim_node_start(node);
    }
}

static void node_main(void *arg) {
    struct sim_node *node = arg;
    struct sim *sim = node->process.sim;
    serve(node);
    node->up = false;
    drop_region(node);
    sim_process_end(&node->process);
    sim_at(sim, sim->now_ns, stop_others, node, 0);
    sim_at(sim, sim->now_ns + sim_between(sim, 100 * MC_MS, 2 * MC_SEC), start_again, node, 0);
}

void sim_node_start(struct sim_node *node) {
    struct sim *sim = node->process.sim;
    uint64_t old_base = node->ops.segments[0].base;
    bool same_place = old_base != 0 && sim->profile.reuse_addresses && sim_odds(sim, 50);
    node->ops = (struct mc_ops_node){.name = node->process.name,
                                     .te_endpoint = node->process.name,
                                     .protocol = "tcp",
                                     .host_id = "",
                                     .segment_count = 1,
                                     .fresh_memory = fresh_memory,
                                     .ctx = node};
    take_region(node, &node->ops.segments[0], same_place ? old_base : fresh_base(node));
    node->up = true;
    node->leaving = false;
    sim_process_start(&node->process, node_main, node);
    sim_process_start(&node->worker, worker_main, node);
    sim_ssd_start(node);
}

void sim_node_crash(struct sim_node *node, bool power) {
    node->up = false; /* before its stack unwinds: nothing of it can be reached */
    node->power_lost = false;
    sim_process_crash(&node->process);
    sim_process_crash(&node->worker);
    sim_process_crash(&node->ssd);
    if (node->disk != NULL) {
        sim_disk_crash(node->disk, power);
    }
    MC_ASSERT(node->region == NULL);
}
