/*
 * What the SSD tier costs beside fio on the same disk: objects of one size are written in batches
 * and read back at a given depth, every byte of the first pass compared. Then fio does the same
 * with the same block size, depth and O_DIRECT, if it is installed.
 *
 * Usage: bench_tier DIRECTORY [--objects N] [--size BYTES] [--depth D]. Default 4096 objects of
 * 128 KiB, depth 16. The directory must exist and is left empty.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tier/tier.h"

#define BATCH     256u
#define MAX_DEPTH 256u

static uint64_t objects = 4096, size = 128 << 10, depth = 16;
static const char *directory;

static double seconds_since(uint64_t from_ns) {
    return (double)(mc_now_ns(mc_clock_system()) - from_ns) / 1e9;
}

static void fill(char *value, uint64_t i) {
    struct mc_rng rng;
    mc_rng_seed(&rng, i);
    for (uint64_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word = mc_rng_next(&rng);
        memcpy(value + at, &word, 8);
    }
}

static void check(enum mc_status status, const char *what) {
    if (status != MC_OK) {
        fprintf(stderr, "bench_tier: %s: %s\n", what, mc_status_text(status));
        exit(1);
    }
}

static void say(const char *who, const char *what, double seconds, double p50_us, double p99_us) {
    printf("%-5s %-12s %8.3f GB/s", who, what, (double)(objects * size) / seconds / 1e9);
    if (p99_us > 0) {
        printf("  p50 %8.1f us  p99 %8.1f us", p50_us, p99_us);
    }
    printf("\n");
    fflush(stdout);
}

static void write_all(struct mc_tier *tier) {
    struct mc_tier_item items[BATCH];
    char keys[BATCH][32];
    char *values = mc_zalloc(BATCH * size);
    double seconds = 0;
    for (uint64_t done = 0; done < objects; done += BATCH) {
        size_t n = mc_min_u64(BATCH, objects - done);
        for (size_t i = 0; i < n; i++) {
            snprintf(keys[i], sizeof(keys[i]), "object-%" PRIu64, done + i);
            fill(values + i * size, done + i);
            items[i] = (struct mc_tier_item){
                .key = mc_str_from(keys[i]), .value = values + i * size, .size = size};
        }
        uint64_t began = mc_now_ns(mc_clock_system());
        check(mc_tier_put(tier, items, n), "put");
        seconds += seconds_since(began);
    }
    say("tier", "write", seconds, 0, 0);
    free(values);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Reads all objects, `at_once` in one call, in an order of its own. */
static void read_all(struct mc_tier *tier, uint64_t at_once, bool compare) {
    struct mc_tier_read reads[MAX_DEPTH];
    char keys[MAX_DEPTH][32];
    char *expected = mc_zalloc(size);
    double *latency = mc_zalloc(objects * sizeof(*latency));
    uint64_t room = mc_tier_read_room(sizeof(keys[0]), size), calls = 0;
    char *memory = aligned_alloc(MC_TIER_BLOCK, at_once * room);
    double seconds = 0;
    for (uint64_t done = 0; done < objects; done += at_once, calls++) {
        size_t n = mc_min_u64(at_once, objects - done);
        for (size_t i = 0; i < n; i++) {
            uint64_t which = (done + i) * 2654435761u % objects;
            snprintf(keys[i], sizeof(keys[i]), "object-%" PRIu64, which);
            reads[i] = (struct mc_tier_read){
                .key = mc_str_from(keys[i]), .size = size, .room = memory + i * room};
        }
        uint64_t began = mc_now_ns(mc_clock_system());
        check(mc_tier_read(tier, reads, n), "read");
        latency[calls] = seconds_since(began);
        seconds += latency[calls];
        for (size_t i = 0; i < n && compare; i++) {
            fill(expected, (done + i) * 2654435761u % objects);
            check(memcmp(expected, reads[i].value, size) == 0 ? MC_OK : MC_CHECKSUM_MISMATCH,
                  "compare");
        }
    }
    qsort(latency, calls, sizeof(*latency), by_value);
    char what[32];
    snprintf(what, sizeof(what), "read x%" PRIu64, at_once);
    say("tier", what, seconds, latency[calls / 2] * 1e6, latency[calls * 99 / 100] * 1e6);
    free(memory);
    free(latency);
    free(expected);
}

/* One fio job; its own words for bandwidth and completion latency. */
static void run_fio(const char *rw, uint64_t at_once) {
    char command[1024];
    snprintf(command, sizeof(command),
             "fio --name=t --directory=%s --filename=fio.data --size=%" PRIu64 " --bs=%" PRIu64
             " --rw=%s --iodepth=%" PRIu64 " --ioengine=io_uring --direct=1 --fallocate=posix "
             "--end_fsync=1 --output-format=terse --terse-version=3 2>/dev/null",
             directory, objects * size, size, rw, at_once);
    FILE *pipe = popen(command, "r");
    char line[8192] = "";
    if (pipe == NULL) {
        return;
    }
    while (fgets(line, sizeof(line), pipe) != NULL && strncmp(line, "3;", 2) != 0) {
    }
    if (pclose(pipe) != 0 || strncmp(line, "3;", 2) != 0) {
        printf("fio   is not installed, or cannot run here\n");
        return;
    }
    /* terse v3: fields 6.. are of reads, 47.. of writes: total KiB, KiB/s, IOPS, run time ms, ...
     */
    bool writes = strcmp(rw, "write") == 0;
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
    char what[32];
    snprintf(what, sizeof(what), "%s x%" PRIu64, writes ? "write" : "read", at_once);
    say("fio", what, (double)(objects * size) / (kib * 1024), strtod(p50, NULL), strtod(p99, NULL));
}

static bool option(int argc, char **argv, int i, const char *name, uint64_t max, uint64_t *out) {
    return i + 1 < argc && strcmp(argv[i], name) == 0 &&
           mc_parse_u64(argv[i + 1], 1, max, out) == MC_OK;
}

int main(int argc, char **argv) {
    directory = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
    for (int i = 2; i < argc; i += 2) {
        if (!option(argc, argv, i, "--objects", 1u << 24, &objects) &&
            !option(argc, argv, i, "--size", 1u << 30, &size) &&
            !option(argc, argv, i, "--depth", MAX_DEPTH, &depth)) {
            directory = NULL;
        }
    }
    if (directory == NULL) {
        fprintf(stderr, "usage: bench_tier DIRECTORY [--objects N] [--size BYTES] [--depth D]\n");
        return 2;
    }
    struct mc_tier_config config = {.path = directory, .owner = "bench_tier"};
    struct mc_tier *tier;
    struct mc_tier_stats stats;
    check(mc_tier_open(&config, &tier), "open");
    write_all(tier);
    mc_tier_stats(tier, &stats);
    read_all(tier, depth, true);
    read_all(tier, depth, false);
    read_all(tier, 1, false);
    check(mc_tier_clear(tier), "clear");
    mc_tier_close(tier);
    run_fio("write", depth);
    run_fio("randread", depth);
    run_fio("randread", 1);
    char path[4096];
    snprintf(path, sizeof(path), "%s/fio.data", directory);
    remove(path);
    printf("%" PRIu64 " objects of %" PRIu64 " bytes, depth %" PRIu64 ", O_DIRECT %s\n", objects,
           size, depth, stats.direct ? "on" : "off");
    return 0;
}
