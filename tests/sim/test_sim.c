/*
 * A cluster of one master, three nodes and eight clients keeps its promises through loss, delay,
 * doubling, overtaking, crashes and restarts: 10,000 histories in CI, each from a seed.
 *
 *     test_sim                    the first 2,000, then that a seed gives the same history twice
 *     test_sim --seeds A B        seeds A to B (tests.cmake runs the others so)
 *     test_sim --jobs N ...       in N processes: --jobs 16 --seeds 1 1000000
 *     test_sim --ssd ...          half of the runs have nodes with an SSD
 *     test_sim --seed N           one seed, told event by event
 *     test_sim --seed N --steps K only its first K events
 *
 * Also proves that the histories contain what they are there for: a run in which no lease expired,
 * no piece was late or no node crashed would prove nothing about them.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "sim/sim.h"

#define FULL_SEEDS 2000 /* in which everything that is counted happens */
#ifdef MC_SANITIZE
#define DEFAULT_SEEDS 300
#else
#define DEFAULT_SEEDS FULL_SEEDS
#endif
#define TWICE_SEEDS 5
#define TELL_EVERY  10000
#define JOBS_MAX    256

static void add(struct sim_coverage *sum, const struct sim_coverage *one) {
#define X(name) sum->name += one->name;
    SIM_COVERAGE(X)
    SIM_COVERAGE_SSD(X)
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
#define X(name) printf("%20s %llu\n", #name, (unsigned long long)c->name);
    SIM_COVERAGE_SSD(X)
#undef X
    return all;
}

static bool run_one(uint64_t seed, uint64_t steps, bool verbose, bool ssd,
                    struct sim_result *result) {
    struct sim_options options = {.seed = seed, .steps = steps, .verbose = verbose, .ssd = ssd};
    sim_run(&options, result);
    if (result->failed) {
        printf("seed %llu FAILED %s\n  replay: build/release/tests/sim_test_sim --seed %llu%s\n",
               (unsigned long long)seed, result->failure, (unsigned long long)seed,
               ssd ? " --ssd" : "");
    }
    return !result->failed;
}

/* What a range of seeds gave; jobs fill one each in shared memory. */
struct tally {
    struct sim_coverage coverage;
    uint64_t events, failures, most, seeds;
};

#define FAILURES_MAX 5

/* Every `jobs`-th seed from `first` on. */
static void run_share(uint64_t first, uint64_t last, uint64_t jobs, bool ssd, struct tally *tally) {
    struct sim_result result;
    uint64_t began = mc_now_ns(mc_clock_system());
    for (uint64_t seed = first; seed <= last && tally->failures < FAILURES_MAX; seed += jobs) {
        tally->failures += !run_one(seed, 0, false, ssd, &result);
        tally->events += result.events;
        tally->most = mc_max_u64(tally->most, result.most_possibilities);
        tally->seeds++;
        add(&tally->coverage, &result.coverage);
        if (tally->seeds % TELL_EVERY == 0) {
            uint64_t ns = mc_now_ns(mc_clock_system()) - began;
            printf("seed %llu: %llu seeds and %llu failures so far, %.1f a second\n",
                   (unsigned long long)seed, (unsigned long long)tally->seeds,
                   (unsigned long long)tally->failures,
                   (double)tally->seeds * 1e9 / (double)mc_max_u64(ns, 1));
        }
    }
}

/* A job that dies has failed: an assertion of the product is a fault, too. */
static bool run_jobs(uint64_t first, uint64_t last, unsigned jobs, bool ssd,
                     struct tally *tallies) {
    pid_t children[JOBS_MAX];
    bool good = true;
    for (unsigned i = 0; i < jobs; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            run_share(first + i, last, jobs, ssd, &tallies[i]);
            fflush(stdout);
            _exit(0);
        }
        good = good && children[i] > 0;
    }
    for (unsigned i = 0; i < jobs; i++) {
        int status = -1;
        if (children[i] > 0 && waitpid(children[i], &status, 0) == children[i] && status != 0) {
            printf("job %u of %u ended with status %d\n", i, jobs, status);
            good = false;
        }
    }
    return good;
}

static int run_seeds(uint64_t first, uint64_t last, unsigned jobs, bool ssd, bool whole_suite) {
    size_t bytes = jobs * sizeof(struct tally);
    struct tally *tallies =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct tally sum = {0};
    bool good = tallies != MAP_FAILED;
    if (good && jobs == 1) {
        run_share(first, last, 1, ssd, tallies);
    } else if (good) {
        good = run_jobs(first, last, jobs, ssd, tallies);
    }
    for (unsigned i = 0; good && i < jobs; i++) {
        add(&sum.coverage, &tallies[i].coverage);
        sum.events += tallies[i].events;
        sum.failures += tallies[i].failures;
        sum.seeds += tallies[i].seeds;
        sum.most = mc_max_u64(sum.most, tallies[i].most);
    }
    bool all = covered(&sum.coverage);
    printf("%llu of the seeds %llu to %llu: %llu events, %llu failures; at most %llu possibilities "
           "of a history\n",
           (unsigned long long)sum.seeds, (unsigned long long)first, (unsigned long long)last,
           (unsigned long long)sum.events, (unsigned long long)sum.failures,
           (unsigned long long)sum.most);
    if (tallies != MAP_FAILED) {
        munmap(tallies, bytes);
    }
    return good && sum.failures == 0 && (all || !whole_suite) ? 0 : 1;
}

static int run_twice(void) {
    for (uint64_t seed = 1; seed <= TWICE_SEEDS; seed++) {
        struct sim_result first, second;
        if (!run_one(seed, 0, false, true, &first) || !run_one(seed, 0, false, true, &second)) {
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

static int run_verbosely(uint64_t seed, uint64_t steps, bool ssd) {
    struct sim_result result;
    bool ok = run_one(seed, steps, true, ssd, &result);
    printf("seed %llu: %llu events, %.3f s, history %016llx\n", (unsigned long long)seed,
           (unsigned long long)result.events, (double)result.virtual_ns / 1e9,
           (unsigned long long)result.hash);
    return ok ? 0 : 1;
}

struct request {
    uint64_t first, last, seed, steps, jobs;
    bool range, ssd;
};

static bool parse(int argc, char **argv, struct request *r) {
    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            known = mc_parse_u64(argv[++i], 1, UINT64_MAX, &r->seed) == MC_OK;
        } else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
            known = mc_parse_u64(argv[++i], 1, UINT64_MAX, &r->steps) == MC_OK;
        } else if (strcmp(argv[i], "--ssd") == 0) {
            known = r->ssd = true;
        } else if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc) {
            known = mc_parse_u64(argv[++i], 1, JOBS_MAX, &r->jobs) == MC_OK;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 2 < argc) {
            known = mc_parse_u64(argv[i + 1], 1, UINT64_MAX, &r->first) == MC_OK &&
                    mc_parse_u64(argv[i + 2], r->first, UINT64_MAX, &r->last) == MC_OK;
            i += 2;
            r->range = true;
        }
        if (!known) {
            fprintf(stderr, "usage: %s [--seed N [--steps K] | --seeds A B] [--jobs N] [--ssd]\n",
                    argv[0]);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    struct request r = {.first = 1, .last = DEFAULT_SEEDS, .jobs = 1};
    if (SIM_SKIP) {
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    const char *level = getenv("MC_LOG_LEVEL");
    if (mc_log_set_level(level != NULL ? level : "OFF") != MC_OK || !parse(argc, argv, &r)) {
        return 2;
    }
    if (r.seed != 0) {
        return run_verbosely(r.seed, r.steps, r.ssd);
    }
    int failed = run_seeds(r.first, r.last, (unsigned)r.jobs, r.ssd,
                           !r.range && DEFAULT_SEEDS == FULL_SEEDS);
    return failed != 0 || r.range ? failed : run_twice();
}
