/*
 * The file system that all clients share, for DISK replicas: one disk, whose power stays. Whoever
 * names a file there may wait, a moment or very long, while the others go on: between the bytes and
 * the rename, between the rename and the word to the master, before an old file is opened. Now and
 * then somebody deletes a file by hand, or cuts it.
 */
#include "sim/sim.h"

#define SHARED_BYTES (64ull << 20)

static bool pause(void *ctx) {
    struct sim *sim = ctx;
    struct sim_process *process = sim->running;
    if (process == NULL || process->dead) {
        return process == NULL;
    }
    if (sim_odds(sim, 30)) {
        bool long_one = !sim->calm && sim_odds(sim, 10);
        sim_sleep(process, sim_between(sim, 0, long_one ? 2 * MC_SEC : 30 * MC_MS));
    }
    return !process->dead;
}

void sim_shared_make(struct sim *sim) {
    if (sim->profile.files) {
        sim->shared = sim_disk_make(SIM_SHARED, &sim->rng, SHARED_BYTES, SHARED_BYTES, NULL, NULL);
        sim_disk_set_pause(sim->shared, pause, sim);
    }
}

void sim_shared_faults(struct sim *sim, unsigned of_10000) {
    if (sim->shared != NULL) {
        sim_disk_set_faults(sim->shared, (struct sim_disk_faults){of_10000, of_10000, of_10000});
    }
}

void sim_shared_lose(struct sim *sim) {
    const char *lost = sim->shared != NULL ? sim_disk_lose_file(sim->shared) : NULL;
    if (lost != NULL) {
        SIM_COUNT(sim, files_lost);
        sim_trace(sim, "a file is %s by hand", lost);
    }
}

void sim_shared_free(struct sim *sim) {
    if (sim->shared != NULL) {
        const struct sim_disk_counts *counts = sim_disk_counts(sim->shared);
        sim->result->coverage.file_reads += counts->reads;
        sim->result->coverage.file_writes += counts->writes;
        sim_disk_free(sim->shared);
        sim->shared = NULL;
    }
}
