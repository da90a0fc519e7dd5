/*
 * A cluster of one master, three nodes and eight clients keeps its promises through loss, delay,
 * doubling, overtaking, crashes and restarts: 2,000 histories, each from a seed.
 *
 *     test_sim                    the default seeds, then that a seed gives the same history twice
 *     test_sim --seeds A B        seeds A to B
 *     test_sim --seed N           one seed, told event by event
 *     test_sim --seed N --steps K only its first K events
 *
 * Also proves that the histories contain what they are there for: a run in which no lease expired,
 * no piece was late or no node crashed would prove nothing about them.
 */
#include <stdio.h>

#include "base/log.h"
#include "sim/sim.h"

#define FULL_SEEDS 2000 /* in which everything that is counted happens */
#ifdef MC_SANITIZE
#define DEFAULT_SEEDS 300
#else
#define DEFAULT_SEEDS FULL_SEEDS
#endif
#define TWICE_SEEDS 5

static void add(struct sim_coverage *sum, const struct sim_coverage *one) {
#define X(name) sum->name += one->name;
    SIM_COVERAGE(X)
#undef X
}

/* Prints the counters; false when one that must not be zero is. */
static bool covered(const struct sim_coverage *c) {
    bool all = true;
#define X(name)                                                                                    \
    printf("%20s %llu\n", #name, (unsigned long long)c->name);                                     \
    if (c->name == 0) {                                                                            \
        printf("never happened: " #name "\n");                                                     \
        all = false;                                                                               \
    }
    SIM_COVERAGE(X)
#undef X
    return all;
}

static bool run_one(uint64_t seed, uint64_t steps, bool verbose, struct sim_result *result) {
    struct sim_options options = {.seed = seed, .steps = steps, .verbose = verbose};
    sim_run(&options, result);
    if (result->failed) {
        printf("seed %llu FAILED %s\n  replay: build/release/tests/sim_test_sim --seed %llu\n",
               (unsigned long long)seed, result->failure, (unsigned long long)seed);
    }
    return !result->failed;
}

static int run_seeds(uint64_t first, uint64_t last, bool whole_suite) {
    struct sim_coverage sum = {0};
    struct sim_result result;
    uint64_t events = 0;
    uint64_t failures = 0;
    for (uint64_t seed = first; seed <= last && failures < 5; seed++) {
        failures += !run_one(seed, 0, false, &result);
        events += result.events;
        add(&sum, &result.coverage);
    }
    bool all = covered(&sum);
    printf("seeds %llu to %llu: %llu events, %llu failures\n", (unsigned long long)first,
           (unsigned long long)last, (unsigned long long)events, (unsigned long long)failures);
    return failures == 0 && (all || !whole_suite) ? 0 : 1;
}

static int run_twice(void) {
    for (uint64_t seed = 1; seed <= TWICE_SEEDS; seed++) {
        struct sim_result first, second;
        if (!run_one(seed, 0, false, &first) || !run_one(seed, 0, false, &second)) {
            return 1;
        }
        if (first.hash != second.hash || first.events != second.events) {
            printf("seed %llu gave two histories: %llx of %llu events, %llx of %llu\n",
                   (unsigned long long)seed, (unsigned long long)first.hash,
                   (unsigned long long)first.events, (unsigned long long)second.hash,
                   (unsigned long long)second.events);
            return 1;
        }
    }
    return 0;
}

static int run_verbosely(uint64_t seed, uint64_t steps) {
    struct sim_result result;
    bool ok = run_one(seed, steps, true, &result);
    printf("seed %llu: %llu events, %.3f s, history %016llx\n", (unsigned long long)seed,
           (unsigned long long)result.events, (double)result.virtual_ns / 1e9,
           (unsigned long long)result.hash);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    uint64_t first = 1, last = DEFAULT_SEEDS, seed = 0, steps = 0;
    bool range = false;
    if (SIM_SKIP) {
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    if (mc_log_set_level(getenv("MC_LOG_LEVEL") != NULL ? getenv("MC_LOG_LEVEL") : "OFF") !=
        MC_OK) {
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        bool known = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            known = mc_parse_u64(argv[++i], 0, UINT64_MAX, &seed) == MC_OK;
        } else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
            known = mc_parse_u64(argv[++i], 1, UINT64_MAX, &steps) == MC_OK;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 2 < argc) {
            known = mc_parse_u64(argv[i + 1], 0, UINT64_MAX, &first) == MC_OK &&
                    mc_parse_u64(argv[i + 2], first, UINT64_MAX, &last) == MC_OK;
            i += 2;
            range = true;
        } else {
            known = false;
        }
        if (!known) {
            fprintf(stderr, "usage: %s [--seed N [--steps K] | --seeds A B]\n", argv[0]);
            return 2;
        }
    }
    if (seed != 0) {
        return run_verbosely(seed, steps);
    }
    int failed = run_seeds(first, last, !range && DEFAULT_SEEDS == FULL_SEEDS);
    return failed != 0 || range ? failed : run_twice();
}
