/*
 * What the checksum of an object costs: its own speed beside memcpy, and puts and gets over TCP
 * with and without it, in turns of the same run.
 *
 * Master and node are one other process; the two clients are this one. A figure is the median over
 * the turns, the ratio the median of each turn's own, so that neighbours on the machine disturb
 * both sides alike; the client's processor time a byte is printed beside it. Every value read is
 * compared once, outside of the measured time.
 *
 * Usage: bench_checksum [turns, default 9]
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "client/checksum.h"
#include "io/io.h"
#include "master/service.h"
#include "mooncake/store.h"

#define SEGMENT_BYTES (1ull << 30)
#define TURN_NS       (40 * MC_MS)
#define TURNS_MAX     1000
#define KEYS          32u

static struct mc_store *open_store(unsigned port, uint64_t bytes, bool checksum) {
    struct mc_store_options options;
    struct mc_store *store;
    char master[32];
    snprintf(master, sizeof(master), "127.0.0.1:%u", port);
    mc_store_options_init(&options);
    options.master = master;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = bytes;
    options.disable_shm = true;
    options.checksum = checksum;
    check(mc_store_open(&options, &store), "open");
    return store;
}

static _Noreturn void be_the_cluster(int out) {
    struct mc_master_service_config config;
    struct mc_master_service *service;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mc_master_service_config_init(&config);
    config.rpc_host = "127.0.0.1";
    config.rpc_no_delay = true;
    check(mc_master_service_start(&config, &service), "master");
    unsigned port = mc_master_service_rpc_port(service);
    (void)open_store(port, SEGMENT_BYTES, false);
    if (write(out, &port, sizeof(port)) != sizeof(port)) {
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

/* ---- the sum alone ---- */

/* Of this process: what others take of the machine does not count. */
static uint64_t process_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * MC_SEC + (uint64_t)t.tv_nsec;
}

/* `step` bytes again and again: those of a cache, or of memory. */
static void measure_sum(size_t step, const char *where) {
    size_t bytes = 64u << 20;
    uint8_t *a = mc_alloc(bytes), *b = mc_alloc(bytes);
    memset(a, 1, bytes);
    memset(b, 2, bytes);
    double sum[9], copy[9];
    uint64_t use = 0;
    for (unsigned i = 0; i < MC_ARRAY_LEN(sum); i++) {
        uint64_t t0 = process_cpu_ns();
        for (size_t done = 0; done < bytes; done += step) {
            struct mc_slice slice = {a + (step < bytes ? 0 : done), step};
            use += mc_checksum_slices(&slice, 1, step);
        }
        uint64_t t1 = process_cpu_ns();
        for (size_t done = 0; done < bytes; done += step) {
            memcpy(b, a, step);
            __asm__ volatile("" ::: "memory");
        }
        uint64_t t2 = process_cpu_ns();
        sum[i] = (double)bytes / (double)(t1 - t0);
        copy[i] = (double)bytes / (double)(t2 - t1);
    }
    printf("CRC-64 %.1f GB/s, memcpy %.1f GB/s (%s, processor time of one thread; %u)\n",
           median(sum, MC_ARRAY_LEN(sum)), median(copy, MC_ARRAY_LEN(copy)), where,
           (unsigned)(use & 1) + b[0]);
    free(a);
    free(b);
}

/* ---- puts and gets ---- */

/* GB/s; *cpu = processor nanoseconds a byte. */
static double turn(struct mc_store *s, bool put, uint8_t *buffer, size_t bytes, double *cpu) {
    uint64_t begin = now_ns(), used = process_cpu_ns(), done = 0;
    for (unsigned i = 0; now_ns() - begin < TURN_NS; i++, done += bytes) {
        char key[64];
        size_t length;
        snprintf(key, sizeof(key), "%zu-%u", bytes, i % KEYS);
        if (put) {
            check(mc_store_upsert(s, key, buffer, bytes, NULL), "upsert");
        } else {
            check(mc_store_get(s, key, buffer, bytes, &length), "get");
        }
    }
    *cpu = (double)(process_cpu_ns() - used) / (double)done;
    return (double)done / (double)(now_ns() - begin);
}

static void compare(const uint8_t *buffer, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (buffer[i] != (uint8_t)(i * 7 + bytes)) {
            fprintf(stderr, "bench_checksum: wrong byte %zu of %zu\n", i, bytes);
            exit(1);
        }
    }
}

static void measure(struct mc_store *const stores[2], size_t bytes, bool put, unsigned turns) {
    double figures[2][TURNS_MAX], ratios[TURNS_MAX], cpu[2][TURNS_MAX];
    uint8_t *buffer = mc_alloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        buffer[i] = (uint8_t)(i * 7 + bytes);
    }
    for (unsigned k = 0; k < KEYS; k++) { /* all keys are there, with a checksum */
        char key[64];
        snprintf(key, sizeof(key), "%zu-%u", bytes, k);
        check(mc_store_upsert(stores[1], key, buffer, bytes, NULL), "upsert");
    }
    for (unsigned t = 0; t < turns; t++) {
        for (unsigned side = 0; side < 2; side++) {
            figures[side][t] = turn(stores[side], put, buffer, bytes, &cpu[side][t]);
        }
        ratios[t] = figures[1][t] / figures[0][t];
    }
    compare(buffer, bytes);
    printf("%-3s %8zu KiB: %6.2f GB/s without, %6.2f with: x%.3f; of the client's processor "
           "time %.3f ns a byte without, %.3f with\n",
           put ? "put" : "get", bytes >> 10, median(figures[0], turns), median(figures[1], turns),
           median(ratios, turns), median(cpu[0], turns), median(cpu[1], turns));
    fflush(stdout);
    free(buffer);
}

int main(int argc, char **argv) {
    unsigned turns = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 9;
    unsigned port = 0;
    int ends[2];
    if (turns == 0 || turns > TURNS_MAX || argc > 2) {
        fprintf(stderr, "usage: bench_checksum [turns, 1 to %d]\n", TURNS_MAX);
        return 2;
    }
    if (pipe(ends) != 0) {
        return 1;
    }
    if (fork() == 0) {
        be_the_cluster(ends[1]);
    }
    if (read(ends[0], &port, sizeof(port)) != sizeof(port)) {
        return 1;
    }
    measure_sum(32u << 10, "32 KiB in the cache");
    measure_sum(64u << 20, "64 MiB of memory");
    struct mc_store *stores[2] = {open_store(port, 0, false), open_store(port, 0, true)};
    static const size_t sizes[] = {16u << 10, 128u << 10, 1u << 20, 8u << 20};
    for (unsigned put = 0; put < 2; put++) {
        for (unsigned i = 0; i < MC_ARRAY_LEN(sizes); i++) {
            measure(stores, sizes[i], put == 1, turns);
        }
    }
    mc_store_close(stores[0]);
    mc_store_close(stores[1]);
    return 0;
}
