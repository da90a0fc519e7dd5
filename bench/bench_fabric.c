/*
 * The fabric transport beside a bare loop of fi_write and fi_read on the same provider, between two
 * processes on loopback: what fi_rma_bw measures, with the same number of operations in flight. The
 * two sides alternate; the ratio is that of the medians.
 *
 * Usage: bench_fabric [SECONDS_A_ROUND [PROVIDER]]   (0.2, "tcp;ofi_rxm"; real cards: "efa")
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "mooncake/transfer.h"
#include "te/te.h"
#include "te/transport/fabric_provider.h"
#include "te/transport/module.h"

#define MEMORY (64ull << 20)
#define ROUNDS 5
#define WINDOW 16

struct hello { /* of the serving process */
    struct fabric_device_info info;
    uint64_t key;
    uint64_t addr;
    char name[280];
};

struct raw {
    const struct fabric_provider *provider;
    struct fabric_device *device;
    struct fabric_device_info info;
    struct fabric_region *region;
    uint64_t key, peer;
};

static void must(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "bench_fabric: %s\n", what);
        exit(1);
    }
}

static bool accept_provider(void *symbol, void *ctx) {
    *(const struct fabric_provider **)ctx = ((fabric_provider_fn)symbol)();
    return true;
}

static void raw_open(struct raw *r, const char *name, char *memory) {
    size_t count = 0;
    must(mc_module_find("transport-fabric.so", FABRIC_PROVIDER_SYMBOL, accept_provider,
                        &r->provider),
         "no transport-fabric.so");
    must(r->provider->open(name, "127.0.0.1", &r->device, 1, &count) == 0, "no device");
    must(r->provider->region_create(r->device, memory, MEMORY, true, &r->region, &r->key) == 0,
         "no region");
    r->provider->info(r->device, &r->info);
}

static struct mc_engine *engine_open(char *memory) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = true;
    options.policy = "{\"policy\": [{\"transports\": [\"fabric\"]}]}";
    must(mc_engine_create(&options, &engine) == MC_OK, "no engine");
    must(mc_memory_register(engine, memory, MEMORY, "*", 0) == MC_OK, "no memory");
    return engine;
}

static char *memory_new(void) {
    char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED, "no memory");
    memset(memory, 1, MEMORY);
    return memory;
}

/* ---- the serving process ---- */

static void serve(int out, const char *provider) {
    struct raw r;
    struct hello h = {0};
    char *memory = memory_new();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    raw_open(&r, provider, memory);
    snprintf(h.name, sizeof(h.name), "%s", mc_engine_name(engine_open(memory)));
    h.info = r.info;
    h.key = r.key;
    h.addr = (uint64_t)(uintptr_t)memory;
    must(write(out, &h, sizeof(h)) == sizeof(h), "the other process is gone");
    for (;;) { /* as the transport's thread does */
        struct fabric_completion c[8];
        int fds[2];
        (void)r.provider->poll(r.device, c, 8);
        if (r.provider->fds(r.device, fds) == 0 && r.provider->arm(r.device) == 0) {
            struct pollfd p[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
            (void)!poll(p, 2, 1000);
        }
    }
}

/* ---- the two sides: bytes a second ---- */

/* As fi_rma_bw: a window of operations, then all of their completions. */
static double run_raw(struct raw *r, const struct hello *h, char *memory, bool write_op,
                      uint64_t size, double seconds) {
    uint64_t begin = now_ns(), until = begin + (uint64_t)(seconds * 1e9), done = 0, posted = 0;
    uint64_t window = WINDOW;
    while (now_ns() < until || done < posted) {
        struct fabric_completion c[WINDOW];
        window += done == window && now_ns() < until ? WINDOW : 0;
        while (posted < window) {
            uint64_t offset = posted % (MEMORY / size) * size;
            struct fabric_op op = {.context = r,
                                   .write = write_op,
                                   .local = memory + offset,
                                   .length = size,
                                   .region = r->region,
                                   .peer = r->peer,
                                   .remote = h->info.virtual_addresses ? h->addr + offset : offset,
                                   .key = h->key};
            int error = r->provider->post(r->device, &op);
            must(error == 0 || error == EAGAIN, "posting fails");
            if (error == EAGAIN) {
                break;
            }
            posted++;
        }
        size_t n = r->provider->poll(r->device, c, WINDOW);
        for (size_t i = 0; i < n; i++) {
            must(c[i].error == FABRIC_OK, "an operation fails");
        }
        done += n;
    }
    return (double)(done * size) / (double)(now_ns() - begin) * 1e9;
}

static double run_engine(struct mc_engine *engine, mc_segment_id segment, const struct hello *h,
                         char *memory, bool write_op, uint64_t size, double seconds) {
    uint64_t begin = now_ns(), until = begin + (uint64_t)(seconds * 1e9), bytes = 0, at = 0;
    while (now_ns() < until) {
        struct mc_transfer_request r[WINDOW];
        for (int i = 0; i < WINDOW; i++, at++) {
            uint64_t offset = at % (MEMORY / size) * size;
            r[i] = (struct mc_transfer_request){write_op ? MC_TRANSFER_WRITE : MC_TRANSFER_READ,
                                                memory + offset, segment, h->addr + offset, size};
        }
        must(mc_transfer(engine, r, WINDOW, mc_deadline_in_ms(60000)) == MC_OK, "a transfer fails");
        bytes += WINDOW * size;
    }
    return (double)bytes / (double)(now_ns() - begin) * 1e9;
}

int main(int argc, char **argv) {
    static const uint64_t sizes[] = {4096, 65536, 1 << 20, 4 << 20};
    double seconds = argc > 1 ? atof(argv[1]) : 0.2;
    const char *provider = argc > 2 ? argv[2] : "tcp;ofi_rxm";
    int pipes[2];
    struct hello h;
    setenv("MC_FABRIC_PROVIDER", provider, 1);
    setenv("MC_LOG_LEVEL", "ERROR", 0);
    must(pipe(pipes) == 0, "no pipe");
    pid_t child = fork();
    if (child == 0) {
        serve(pipes[1], provider);
    }
    close(pipes[1]);
    must(read(pipes[0], &h, sizeof(h)) == sizeof(h), "the serving process did not come up");
    struct raw r;
    char *memory = memory_new();
    mc_segment_id segment;
    raw_open(&r, provider, memory);
    must(r.provider->peer_add(r.device, h.info.address, &r.peer) == 0, "no peer");
    struct mc_engine *engine = engine_open(memory);
    must(mc_segment_open(engine, h.name, &segment) == MC_OK, "no segment");
    printf("provider %s, %d operations in flight, median of %d rounds of %g s\n", provider, WINDOW,
           ROUNDS, seconds);
    printf("%-6s %10s %10s %10s %6s\n", "op", "size", "raw MB/s", "ours MB/s", "ratio");
    for (int op = 0; op < 2; op++) {
        for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
            double raw[ROUNDS], ours[ROUNDS];
            for (int round = 0; round < ROUNDS; round++) {
                raw[round] = run_raw(&r, &h, memory, op == 1, sizes[i], seconds);
                ours[round] = run_engine(engine, segment, &h, memory, op == 1, sizes[i], seconds);
            }
            double raw_rate = median(raw, ROUNDS), our_rate = median(ours, ROUNDS);
            printf("%-6s %10llu %10.0f %10.0f %6.2f\n", op == 1 ? "write" : "read",
                   (unsigned long long)sizes[i], raw_rate / 1e6, our_rate / 1e6,
                   our_rate / raw_rate);
        }
    }
    mc_engine_destroy(engine);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
