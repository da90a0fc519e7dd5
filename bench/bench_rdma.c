/*
 * The engine's rdma transport alone, between two processes: as ib_write_bw and ib_read_bw measure
 * verbs, with as many messages in flight. bench/rdma-vm runs both in a guest and compares; on a
 * machine with NICs run it by hand.
 *
 * Usage: bench_rdma LOCAL_NICS REMOTE_NICS write|read SIZE SECONDS [MESSAGES IN FLIGHT]
 * Prints: SIZE MB/s
 */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "te/te.h"

#define IN_FLIGHT 128

extern const struct mc_transport_ops mc_transport_rdma_ops;

struct side {
    struct mc_engine *engine;
    char *memory;
};

static struct side side_open(const char *nics, size_t bytes) {
    const struct mc_transport_ops *const table[] = {&mc_transport_rdma_ops};
    struct mc_engine_options options;
    struct side side;
    setenv("MC_TE_FILTERS", nics, 1);
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    check(mc_engine_create_with(&options, table, 1, &side.engine), "no engine");
    side.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    check(side.memory == MAP_FAILED ? MC_ERR_NO_MEMORY : MC_OK, "no memory");
    check(mc_memory_register(side.engine, side.memory, bytes, "cpu:0", 0), "not registered");
    return side;
}

struct target {
    char name[128];
    uint64_t addr;
};

/* Serves until the parent has gone. */
static pid_t start_target(const char *nics, size_t bytes, struct target *target) {
    int fds[2];
    if (pipe(fds) != 0) {
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct side side = side_open(nics, bytes);
        snprintf(target->name, sizeof(target->name), "%s", mc_engine_name(side.engine));
        target->addr = (uint64_t)(uintptr_t)side.memory;
        if (write(fds[1], target, sizeof(*target)) == sizeof(*target)) {
            pause();
        }
        _exit(0);
    }
    if (pid < 0 || read(fds[0], target, sizeof(*target)) != sizeof(*target)) {
        fprintf(stderr, "bench_rdma: no target\n");
        exit(1);
    }
    return pid;
}

/* Two batches in turn, each of half the messages in flight, so that one is always under way. */
static double run(struct side *side, const struct target *target, enum mc_transfer_op op,
                  size_t size, double seconds, size_t in_flight) {
    struct mc_transfer_request requests[2][IN_FLIGHT];
    struct mc_batch *batches[2];
    mc_segment_id id;
    size_t half = in_flight / 2 > 0 ? in_flight / 2 : 1;
    uint64_t messages = 0;
    check(mc_segment_open(side->engine, target->name, &id), "no segment");
    for (size_t b = 0; b < 2; b++) {
        for (size_t i = 0; i < half; i++) {
            size_t offset = (b * half + i) * size;
            requests[b][i] = (struct mc_transfer_request){.op = op,
                                                          .local = side->memory + offset,
                                                          .segment = id,
                                                          .remote_addr = target->addr + offset,
                                                          .length = size};
        }
    }
    check(mc_transfer(side->engine, requests[0], half, mc_deadline_in_ms(60000)), "first transfer");
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), now;
    for (size_t b = 0; b < 2; b++) {
        check(mc_batch_create(side->engine, half, &batches[b]), "no batch");
        check(mc_batch_submit(batches[b], requests[b], half, mc_deadline_in_ms(60000)), "submit");
    }
    do {
        for (size_t b = 0; b < 2; b++) {
            check(mc_batch_wait(batches[b], MC_WAIT_FOREVER), "transfer");
            check(mc_batch_free(batches[b]), "free");
            check(mc_batch_create(side->engine, half, &batches[b]), "no batch");
            check(mc_batch_submit(batches[b], requests[b], half, mc_deadline_in_ms(60000)),
                  "submit");
            messages += half;
        }
        now = now_ns();
    } while (now < end);
    for (size_t b = 0; b < 2; b++) {
        check(mc_batch_wait(batches[b], MC_WAIT_FOREVER), "transfer");
        check(mc_batch_free(batches[b]), "free");
    }
    return (double)messages * (double)size / ((double)(now - begin) / 1e9) / 1e6;
}

int main(int argc, char **argv) {
    uint64_t size = 0, in_flight = IN_FLIGHT;
    if (argc < 6 || mc_parse_size(argv[4], &size) != MC_OK || size == 0 ||
        (argc > 6 && mc_parse_u64(argv[6], 2, IN_FLIGHT, &in_flight) != MC_OK)) {
        fprintf(stderr, "usage: bench_rdma LOCAL_NICS REMOTE_NICS write|read SIZE SECONDS "
                        "[MESSAGES IN FLIGHT, at most 128]\n");
        return 2;
    }
    struct target target;
    size_t bytes = size * in_flight;
    pid_t pid = start_target(argv[2], bytes, &target);
    struct side side = side_open(argv[1], bytes);
    double rate =
        run(&side, &target, strcmp(argv[3], "read") == 0 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE,
            size, atof(argv[5]), in_flight);
    printf("%llu %.2f\n", (unsigned long long)size, rate);
    mc_engine_destroy(side.engine);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}
