/*
 * The simulator notices a cluster that is wrong on purpose, each kind within 1000 seeds.
 *
 * A checker that has never found anything proves nothing. Each wrong cluster must be caught
 * twice: with all checks, and only by what clients get to see. The clients are made wrong through
 * their port, so their code is the real one.
 *
 *     test_sim_broken                  all kinds but keep-meta
 *     test_sim_broken KIND SEED MODE   one kind and seed, told event by event; MODE all or outside
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "sim/sim.h"

#define SEEDS 1000
/* A late byte, or a late reader, must meet a place that was given away meanwhile. */
#define SEEDS_RARE 1000

static const struct {
    const char *name;
    enum mc_master_break master;
    enum sim_break client;
    bool ssd;
    bool outside; /* can be judged from outside: it does not run into an assertion of its own */
} KINDS[] = {
    {"early-free", MC_BREAK_EARLY_FREE, SIM_BREAK_NONE, false, false},
    {"early-visible", MC_BREAK_EARLY_VISIBLE, SIM_BREAK_NONE, false, true},
    {"no-leases", MC_BREAK_NO_LEASES, SIM_BREAK_NONE, false, true},
    {"any-writer", MC_BREAK_ANY_WRITER, SIM_BREAK_NONE, false, true},
    {"move-frees", MC_BREAK_MOVE_FREES, SIM_BREAK_NONE, false, true},
    {"slow-clock", MC_BREAK_NONE, SIM_BREAK_SLOW_CLOCK, false, true},
    {"hidden-doubt", MC_BREAK_NONE, SIM_BREAK_HIDE_DOUBT, false, true},
    {"disk-returns", MC_BREAK_DISK_RETURNS, SIM_BREAK_NONE, true, true},
    {"any-answer", MC_BREAK_ANY_ANSWER, SIM_BREAK_NONE, true, true},
    {"live-on", MC_BREAK_LIVE_ON, SIM_BREAK_NONE, false, true},
    {"no-quota", MC_BREAK_NO_QUOTA, SIM_BREAK_NONE, false, false},
    {"no-refund", MC_BREAK_NO_REFUND, SIM_BREAK_NONE, false, false},
    {"one-tenant", MC_BREAK_ONE_TENANT, SIM_BREAK_NONE, false, true},
    {"any-condition", MC_BREAK_ANY_CONDITION, SIM_BREAK_NONE, false, false},
    {"page-again", MC_BREAK_PAGE_AGAIN, SIM_BREAK_NONE, false, true},
    {"drain-early", MC_BREAK_DRAIN_EARLY, SIM_BREAK_NONE, false, false},
    {"drain-memory", MC_BREAK_DRAIN_MEMORY, SIM_BREAK_NONE, true, false},
    {"stripe-order", MC_BREAK_STRIPE_ORDER, SIM_BREAK_NONE, false, true},
    {"stripes-meet", MC_BREAK_STRIPES_MEET, SIM_BREAK_NONE, false, false},
    {"file-names", MC_BREAK_FILE_NAMES, SIM_BREAK_NONE, false, true},
    {"cold-frees", MC_BREAK_COLD_FREES, SIM_BREAK_NONE, false, false},
    {"no-sums", MC_BREAK_NONE, SIM_BREAK_NO_SUMS, false, true},
    {"keep-meta", MC_BREAK_NONE, SIM_BREAK_KEEP_META, true, true},
    {"lose-notes", MC_BREAK_NONE, SIM_BREAK_LOSE_NOTES, true, true},
    {"old-copies", MC_BREAK_NONE, SIM_BREAK_OLD_COPIES, false, true},
};

static bool caught(size_t kind, uint64_t seed, bool outside_only, bool verbose) {
    struct sim_options options = {.seed = seed,
                                  .verbose = verbose,
                                  .master_break = KINDS[kind].master,
                                  .client_break = KINDS[kind].client,
                                  .ssd = KINDS[kind].ssd,
                                  .outside_only = outside_only};
    struct sim_result result;
    sim_run(&options, &result);
    if (result.failed) {
        printf("%-14s %-7s seed %3llu: %s\n", KINDS[kind].name, outside_only ? "outside" : "all",
               (unsigned long long)seed, result.failure);
    }
    return result.failed;
}

static bool search(size_t kind, bool outside_only) {
    bool rare =
        KINDS[kind].client == SIM_BREAK_HIDE_DOUBT || KINDS[kind].master == MC_BREAK_MOVE_FREES;
    unsigned seeds = rare ? SEEDS_RARE : SEEDS;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        if (caught(kind, seed, outside_only, false)) {
            return true;
        }
    }
    printf("%-14s NOT CAUGHT within %u seeds\n", KINDS[kind].name, seeds);
    return false;
}

/* In a process of its own: an assertion of the master's has noticed, too, but from inside. */
static bool caught_within(size_t kind, bool outside_only) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        bool found = search(kind, outside_only);
        fflush(stdout);
        _exit(found ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return false;
    }
    if (WIFSIGNALED(status)) {
        printf("%-14s %-7s ends the master\n", KINDS[kind].name, outside_only ? "outside" : "all");
        return !outside_only && WTERMSIG(status) == SIGABRT;
    }
    return WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv) {
    bool all = true;
    uint64_t seed;
    if (SIM_SKIP) {
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    if (mc_log_set_level("OFF") != MC_OK) {
        return 2;
    }
    for (size_t kind = 0; kind < MC_ARRAY_LEN(KINDS); kind++) {
        /* Since the master has disks drop what was replaced, not one of 1,000 seeds shows that the
         * disk itself does not: unit_tier_test_bucket_objects_survive does. */
        bool by_hand = KINDS[kind].client == SIM_BREAK_KEEP_META;
        if (argc != 4 && !by_hand) {
            all = caught_within(kind, false) && all;
            all = (!KINDS[kind].outside || caught_within(kind, true)) && all;
        } else if (argc == 4 && strcmp(argv[1], KINDS[kind].name) == 0 &&
                   mc_parse_u64(argv[2], 0, UINT64_MAX, &seed) == MC_OK) {
            (void)caught(kind, seed, strcmp(argv[3], "outside") == 0, true);
        }
    }
    return all ? 0 : 1;
}
