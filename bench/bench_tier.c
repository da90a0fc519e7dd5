/*
 * What the SSD tier costs beside fio on the same disk: objects of one size are written in batches
 * and read back at a given depth, every byte of the first pass compared. fio does the same with the
 * same block size, depth and O_DIRECT, if it is installed; the two take turns, `rounds` times, and
 * the medians of each, and of the ratios of each turn, are compared at the end. fio writes a new
 * file each time, as the tier does (one that is there already is written up to twice as fast where
 * the disk has to find room for new blocks), once with a sync after as many bytes as the tier
 * makes durable at once, and once with one at the end.
 *
 * Usage: bench_tier DIRECTORY [--objects N] [--size BYTES] [--depth D] [--rounds R]
 *                             [--backend bucket|offset|perkey]
 * Default 4096 objects of 128 KiB, depth 16, 3 rounds. The directory must exist and is left empty.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "tier/tier.h"

#define BATCH      256u
#define MAX_DEPTH  256u
#define MAX_ROUNDS 99u

static uint64_t objects = 4096, size = 128 << 10, depth = 16, rounds = 3;
static const char *directory, *backend = "bucket_storage_backend";

/* What is measured, and the two that are compared in it. */
enum { WRITE, WRITE_SYNCED, READ, READ_ONE, KINDS };
static const char *const kind_names[] = {"write, fio not durable before its end",
                                         "write, both durable", "read", "read one by one, p99"};
static struct { double tier[MAX_ROUNDS], fio[MAX_ROUNDS]; } results[KINDS];

static double seconds_since(uint64_t from_ns) {
    return (double)(now_ns() - from_ns) / 1e9;
}

static void fill(char *value, uint64_t i) {
    struct mc_rng rng;
    mc_rng_seed(&rng, i);
    for (uint64_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word = mc_rng_next(&rng);
        memcpy(value + at, &word, 8);
    }
}

static double say(const char *who, const char *what, double seconds, double p50_us, double p99_us) {
    printf("%-5s %-12s %8.3f GB/s", who, what, (double)(objects * size) / seconds / 1e9);
    if (p99_us > 0) {
        printf("  p50 %8.1f us  p99 %8.1f us", p50_us, p99_us);
    }
    printf("\n");
    fflush(stdout);
    return (double)(objects * size) / seconds / 1e9;
}

static double write_all(struct mc_tier *tier) {
    struct mc_tier_item items[BATCH];
    char keys[BATCH][32];
    char *values = mc_zalloc(BATCH * size);
    double seconds = 0;
    for (uint64_t done = 0; done < objects; done += BATCH) {
        size_t n = mc_min_u64(BATCH, objects - done);
        for (size_t i = 0; i < n; i++) {
            snprintf(keys[i], sizeof(keys[i]), "object-%" PRIu64, done + i);
            fill(values + i * size, done + i); /* fresh bytes, not in the time */
            items[i] = (struct mc_tier_item){
                .key = mc_str_from(keys[i]), .value = values + i * size, .size = size};
        }
        uint64_t began = now_ns();
        check(mc_tier_put(tier, items, n), "put");
        seconds += seconds_since(began);
    }
    free(values);
    return say("tier", "write", seconds, 0, 0);
}

static char *memory; /* of reads; aligned */

/* Reads all objects in an order of its own: one by one, or many in a call, of which `depth` are
 * under way at a time. The p99 in us of one by one, else GB/s. */
static double read_all(struct mc_tier *tier, bool one_by_one, bool compare) {
    static struct mc_tier_read reads[BATCH];
    static char keys[BATCH][32];
    char *expected = mc_zalloc(size);
    double *latency = mc_zalloc(objects * sizeof(*latency));
    uint64_t at_once = one_by_one ? 1 : BATCH;
    uint64_t room = mc_tier_read_room(sizeof(keys[0]), size), calls = 0;
    double seconds = 0;
    for (uint64_t done = 0; done < objects; done += at_once, calls++) {
        size_t n = mc_min_u64(at_once, objects - done);
        for (size_t i = 0; i < n; i++) {
            uint64_t which = (done + i) * 2654435761u % objects;
            snprintf(keys[i], sizeof(keys[i]), "object-%" PRIu64, which);
            reads[i] = (struct mc_tier_read){
                .key = mc_str_from(keys[i]), .size = size, .room = memory + i * room};
        }
        uint64_t began = now_ns();
        check(mc_tier_read(tier, reads, n), "read");
        latency[calls] = seconds_since(began);
        seconds += latency[calls];
        for (size_t i = 0; i < n && compare; i++) {
            fill(expected, (done + i) * 2654435761u % objects);
            check(memcmp(expected, reads[i].value, size) == 0 ? MC_OK : MC_CHECKSUM_MISMATCH,
                  "compare");
        }
    }
    qsort(latency, calls, sizeof(*latency), by_double);
    double p50 = latency[calls / 2] * 1e6, p99 = latency[calls * 99 / 100] * 1e6;
    double rate = say("tier", one_by_one ? "read x1" : "read", seconds, one_by_one ? p50 : 0,
                      one_by_one ? p99 : 0);
    free(latency);
    free(expected);
    return one_by_one ? p99 : rate;
}

static void remove_fio_file(void) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/fio.data", directory);
    remove(path);
}

/* One fio job; its own words for bandwidth and completion latency. 0 when it cannot run. */
static double run_fio(const char *rw, uint64_t at_once, uint64_t sync_every) {
    char command[1024];
    bool writes = strcmp(rw, "write") == 0;
    if (writes) {
        remove_fio_file();
    }
    snprintf(command, sizeof(command),
             "fio --name=t --directory=%s --filename=fio.data --size=%" PRIu64 " --bs=%" PRIu64
             " --rw=%s --iodepth=%" PRIu64 " --ioengine=io_uring --direct=1 --fallocate=posix "
             "--end_fsync=1 --fdatasync=%" PRIu64
             " --output-format=terse --terse-version=3 2>/dev/null",
             directory, objects * size, size, rw, at_once, sync_every);
    FILE *pipe = popen(command, "r");
    char line[8192] = "";
    if (pipe == NULL) {
        return 0;
    }
    while (fgets(line, sizeof(line), pipe) != NULL && strncmp(line, "3;", 2) != 0) {
    }
    if (pclose(pipe) != 0 || strncmp(line, "3;", 2) != 0) {
        printf("fio   is not installed, or cannot run here\n");
        return 0;
    }
    /* terse v3: fields 6.. are of reads, 47.. of writes: total KiB, KiB/s, IOPS, run time ms, ...
     */
    unsigned wanted = writes ? 48 : 7, field = 1;
    char *rest = NULL, p50[32] = "", p99[32] = "";
    double kib = 0;
    for (char *text = strtok_r(line, ";", &rest); text != NULL;
         text = strtok_r(NULL, ";", &rest), field++) {
        if (field == wanted) {
            kib = strtod(text, NULL);
        } else if (field > wanted && field < wanted + 35 && strncmp(text, "50.0", 4) == 0) {
            snprintf(p50, sizeof(p50), "%s", strchr(text, '=') + 1);
        } else if (field > wanted && field < wanted + 35 && strncmp(text, "99.00", 5) == 0) {
            snprintf(p99, sizeof(p99), "%s", strchr(text, '=') + 1);
        }
    }
    char what[48];
    snprintf(what, sizeof(what), "%s x%" PRIu64 "%s", writes ? "write" : "read", at_once,
             sync_every > 0 ? " +sync" : "");
    double rate = say("fio", what, (double)(objects * size) / (kib * 1024), strtod(p50, NULL),
                      strtod(p99, NULL));
    return !writes && at_once == 1 ? strtod(p99, NULL) : rate;
}

static void compare_with_fio(void) {
    for (unsigned kind = 0; kind < KINDS; kind++) {
        double ratios[MAX_ROUNDS];
        for (uint64_t i = 0; i < rounds; i++) {
            ratios[i] = results[kind].fio[i] > 0 ? results[kind].tier[i] / results[kind].fio[i] : 0;
        }
        double tier = median(results[kind].tier, rounds), fio = median(results[kind].fio, rounds);
        if (fio > 0) {
            printf("ratio %s: tier %.3f, fio %.3f: %.2f; of the rounds %.2f\n", kind_names[kind],
                   tier, fio, tier / fio, median(ratios, rounds));
        }
    }
}

static const char *backend_named(const char *name) {
    return strcmp(name, "bucket") == 0   ? "bucket_storage_backend"
           : strcmp(name, "offset") == 0 ? "offset_allocator_storage_backend"
           : strcmp(name, "perkey") == 0 ? "file_per_key_storage_backend"
                                         : NULL;
}

static bool one_round(uint64_t round) {
    struct mc_tier_config config = {.path = directory,
                                    .backend = backend,
                                    .owner = "bench_tier",
                                    .capacity_bytes = objects * (size + 65536) * 5 / 4 + (64 << 20),
                                    .depth = (unsigned)depth};
    struct mc_tier *tier;
    struct mc_tier_stats stats;
    uint64_t bytes = BATCH * mc_tier_read_room(32, size);
    check(mc_tier_open(&config, &tier), "open");
    mc_tier_use_memory(tier, memory, bytes);
    results[WRITE].tier[round] = results[WRITE_SYNCED].tier[round] = write_all(tier);
    mc_tier_stats(tier, &stats);
    if (round == 0) {
        (void)read_all(tier, false, true);
    }
    results[READ].tier[round] = read_all(tier, false, false);
    results[READ_ONE].tier[round] = read_all(tier, true, false);
    check(mc_tier_clear(tier), "clear");
    mc_tier_close(tier);
    results[WRITE_SYNCED].fio[round] = run_fio("write", depth, BATCH);
    results[WRITE].fio[round] = run_fio("write", depth, 0);
    results[READ].fio[round] = run_fio("randread", depth, 0);
    results[READ_ONE].fio[round] = run_fio("randread", 1, 0);
    return stats.direct;
}

static bool option(int argc, char **argv, int i, const char *name, uint64_t max, uint64_t *out) {
    return i + 1 < argc && strcmp(argv[i], name) == 0 &&
           mc_parse_u64(argv[i + 1], 1, max, out) == MC_OK;
}

int main(int argc, char **argv) {
    directory = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
    for (int i = 2; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--backend") == 0) {
            backend = backend_named(argv[i + 1]);
            directory = backend != NULL ? directory : NULL;
        } else if (!option(argc, argv, i, "--objects", 1u << 24, &objects) &&
                   !option(argc, argv, i, "--size", 1u << 30, &size) &&
                   !option(argc, argv, i, "--rounds", MAX_ROUNDS, &rounds) &&
                   !option(argc, argv, i, "--depth", MAX_DEPTH, &depth)) {
            directory = NULL;
        }
    }
    if (directory == NULL) {
        fprintf(stderr, "usage: bench_tier DIRECTORY [--objects N] [--size BYTES] [--depth D] "
                        "[--rounds R] [--backend bucket|offset|perkey]\n");
        return 2;
    }
    memory = aligned_alloc(MC_TIER_BLOCK, BATCH * mc_tier_read_room(32, size));
    memset(memory, 0, BATCH * mc_tier_read_room(32, size));
    bool direct = false;
    for (uint64_t round = 0; round < rounds; round++) {
        direct = one_round(round);
    }
    compare_with_fio();
    remove_fio_file();
    free(memory);
    printf("%" PRIu64 " objects of %" PRIu64 " bytes, depth %" PRIu64 ", O_DIRECT %s\n", objects,
           size, depth, direct ? "on" : "off");
    return 0;
}
