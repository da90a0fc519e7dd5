/*
 * The operator: now and then he drains a node and, when that has succeeded, has it leave.
 *
 * A drained node is one where nobody can be reading or writing any more: of everything that the
 * ledger has promised, nothing is there, nor is anything on its disk only, unless he has said that
 * disks are to be left alone: then the master says how much goes with it. In a calm cluster no
 * drain goes on.
 */
#include "sim/sim.h"

#define CONCURRENCY_MAX 4

static void begin(struct sim *sim) {
    struct sim_node *node = &sim->nodes[mc_rng_below(&sim->rng, SIM_NODES)];
    struct mc_str name = mc_str_from(node->process.name);
    struct mc_vec segments = {&name, 1}, targets = {NULL, 0};
    sim->leave_disks = sim->profile.ssd && sim_odds(sim, 30);
    sim->next_drain_ns = sim->now_ns + sim_between(sim, 200 * MC_MS, 3 * MC_SEC);
    if (node->up && !node->leaving &&
        mc_master_drain(sim->master, &segments, &targets, sim_between(sim, 1, CONCURRENCY_MAX),
                        sim->leave_disks, &sim->drain_job) == MC_OK) {
        SIM_COUNT(sim, drains);
        sim_trace(sim, "%s is being drained", node->process.name);
        sim->draining = node;
    }
}

static void drained(struct sim *sim, uint64_t disk_only) {
    struct sim_node *node = sim->draining;
    SIM_COUNT(sim, drains_succeeded);
    sim_trace(sim, "%s is drained", node->process.name);
    sim_ledger_drained(sim, node, disk_only);
    node->leaving = node->up;
}

void sim_operator_tick(struct sim *sim) {
    struct mc_master_job_info job;
    if (sim->draining == NULL) {
        if (sim->profile.drains && !sim->calm && sim->now_ns >= sim->next_drain_ns) {
            begin(sim);
        }
        return;
    }
    struct mc_arena arena = {0};
    enum mc_status known = mc_master_job(sim->master, sim->drain_job, &arena, &job);
    mc_arena_free(&arena);
    MC_ASSERT(known == MC_OK);
    sim_note(sim, (uint64_t)job.status + job.succeeded);
    if (job.status == MC_JOB_SUCCEEDED) {
        drained(sim, job.disk_only);
        sim->draining = NULL;
    } else if (job.status == MC_JOB_FAILED) {
        SIM_COUNT(sim, drains_failed);
        sim->draining = NULL;
    } else if ((sim->calm || mc_rng_below(&sim->rng, 2000) == 0) &&
               mc_master_job_cancel(sim->master, sim->drain_job) == MC_OK) {
        SIM_COUNT(sim, drains_cancelled);
        sim->draining = NULL;
    }
}
