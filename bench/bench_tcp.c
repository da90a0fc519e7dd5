/*
 * The tcp transport next to raw sockets, over loopback, two processes each: throughput by block
 * size, batch and threads, and the latency of small requests. The raw side is what a careful
 * programmer would write for the same task without an engine: a connection and a server thread for
 * each client thread, blocking calls, headers of a batch pipelined, status words, payload sent and
 * received in place.
 *
 * The two sides alternate, ROUNDS times each. "Good" is the third best round: on a machine that
 * others use as well, short rounds and that column come nearest to a quiet one. Every round has
 * connections (and an engine) of its own, warmed for a sixth of its time: congestion control
 * remembers, and what an older load or a chance taught it about one connection would be taken for a
 * difference between the sides in all rounds that follow (BBR, see bench/README.md).
 *
 * Usage: bench_tcp [SECONDS_A_ROUND [all|short|single|latency|far [HERE THERE]]]
 *
 * HERE and THERE are addresses of the two processes; with FAR_SPACE in the environment the second
 * one is in that network namespace: `bench/delayed-link 1 bench_tcp 0.3 far 10.78.0.1 10.78.0.2`.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "bench.h"
#include "io/io.h"
#include "mooncake/transfer.h"

#define MEMORY      (256ull << 20)
#define HALF        (MEMORY / 2)
#define ROUNDS      21
#define THREADS_MAX 4
#define BATCH_MAX   128
#define SAMPLES_MAX (1u << 20)

static char *make_memory(int byte) {
    char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MC_ASSERT(memory != MAP_FAILED);
    memset(memory, byte, MEMORY);
    return memory;
}

static struct mc_engine *make_engine(const char *host, char *memory, uint32_t flags) {
    struct mc_engine_options options;
    struct mc_engine *engine;
    mc_engine_options_init(&options);
    options.host = host;
    options.disable_shm = true;
    MC_ASSERT(mc_engine_create(&options, &engine) == MC_OK);
    MC_ASSERT(mc_memory_register(engine, memory, MEMORY, "*", flags) == MC_OK);
    return engine;
}

/* ---- raw sockets ---- */

/* Headers and status words fill a cache line, although they need not, so that the payload behind
 * them does not begin where processors of AMD copy slowly (docs/transport-tcp.md): the baseline is
 * to be as fast as sockets can be, not as an accident lets it. */
struct raw_header {
    uint64_t size, offset, op, unused[5];
};
struct raw_status {
    uint64_t code, unused[7];
};

static bool raw_receive(int fd, void *to, size_t length) {
    for (char *at = to; length > 0;) {
        ssize_t n = recv(fd, at, length, 0);
        if (n <= 0) {
            return false;
        }
        at += n;
        length -= (size_t)n;
    }
    return true;
}

static bool raw_send(int fd, struct iovec *iov, int count) {
    while (count > 0) {
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
        ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (n < 0) {
            return false;
        }
        for (; count > 0 && (size_t)n >= iov->iov_len; iov++, count--) {
            n -= (ssize_t)iov->iov_len;
        }
        if (count > 0) {
            iov->iov_base = (char *)iov->iov_base + n;
            iov->iov_len -= (size_t)n;
        }
    }
    return true;
}

static char *raw_memory; /* the target process's */

static void *raw_serve(void *arg) {
    int fd = (int)(intptr_t)arg;
    struct raw_header h;
    struct raw_status status = {0};
    bool ok = true;
    while (ok && raw_receive(fd, &h, sizeof(h))) {
        struct iovec reply[2] = {{&status, sizeof(status)}, {raw_memory + h.offset, h.size}};
        if (h.op == MC_TRANSFER_READ) {
            ok = raw_send(fd, reply, 2);
        } else {
            ok = raw_receive(fd, raw_memory + h.offset, h.size) && raw_send(fd, reply, 1);
        }
    }
    close(fd);
    return NULL;
}

static void set_blocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    MC_ASSERT(fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0);
}

/* ---- the target process ---- */

struct target {
    char name[128];
    uint64_t memory;
    uint16_t raw_port;
};

static void enter_space(void) {
    const char *space = getenv("FAR_SPACE");
    char path[256];
    if (space != NULL) {
        snprintf(path, sizeof(path), "/run/netns/%s", space);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        MC_ASSERT(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
        close(fd);
    }
}

static _Noreturn void be_target(int pipe_fd, const char *host) {
    struct target t = {.memory = 0};
    enter_space();
    int listener;
    raw_memory = make_memory(1);
    struct mc_engine *engine = make_engine(host, raw_memory, 0);
    t.memory = (uint64_t)(uintptr_t)raw_memory;
    snprintf(t.name, sizeof(t.name), "%s", mc_engine_name(engine));
    MC_ASSERT(mc_listen(host, 0, 16, &listener, &t.raw_port) == MC_OK);
    set_blocking(listener);
    MC_ASSERT(write(pipe_fd, &t, sizeof(t)) == sizeof(t));
    for (;;) {
        struct mc_addr peer;
        pthread_t thread;
        int fd;
        if (mc_accept(listener, &fd, &peer) == MC_OK) {
            set_blocking(fd);
            pthread_create(&thread, NULL, raw_serve, (void *)(intptr_t)fd);
            pthread_detach(thread);
        }
    }
}

/* ---- one round ---- */

struct load {
    enum mc_transfer_op op;
    uint64_t size;
    int batch, threads;
};

struct bench {
    struct target target;
    const char *here, *there;
    struct mc_engine *engine;
    mc_segment_id segment;
    char *memory;
    int raw_fds[THREADS_MAX];
    double seconds;
    uint64_t *samples; /* of thread 0, ns */
    size_t sample_count;
};

struct client {
    struct bench *bench;
    const struct load *load;
    int index;
    uint64_t position; /* walks through the thread's share of memory */
    uint64_t bytes;
};

static uint64_t next_offset(struct client *c) {
    uint64_t share = HALF / (uint64_t)c->load->threads;
    if (c->position + c->load->size > share) {
        c->position = 0;
    }
    uint64_t offset = (uint64_t)c->index * share + c->position;
    c->position += c->load->size;
    return offset;
}

static void raw_batch(struct client *c) {
    const struct load *load = c->load;
    int fd = c->bench->raw_fds[c->index];
    struct raw_header headers[BATCH_MAX];
    struct raw_status status;
    for (int i = 0; i < load->batch; i++) {
        headers[i] = (struct raw_header){load->size, next_offset(c), load->op, {0}};
    }
    if (load->op == MC_TRANSFER_READ) {
        struct iovec all = {headers, (size_t)load->batch * sizeof(headers[0])};
        MC_ASSERT(raw_send(fd, &all, 1));
        for (int i = 0; i < load->batch; i++) {
            MC_ASSERT(raw_receive(fd, &status, sizeof(status)));
            MC_ASSERT(raw_receive(fd, c->bench->memory + headers[i].offset, load->size));
        }
        return;
    }
    for (int i = 0; i < load->batch; i++) {
        struct iovec one[2] = {{&headers[i], sizeof(headers[i])},
                               {c->bench->memory + headers[i].offset, load->size}};
        MC_ASSERT(raw_send(fd, one, 2));
    }
    for (int i = 0; i < load->batch; i++) {
        MC_ASSERT(raw_receive(fd, &status, sizeof(status)));
    }
}

static void engine_batch(struct client *c) {
    struct mc_transfer_request requests[BATCH_MAX];
    for (int i = 0; i < c->load->batch; i++) {
        uint64_t offset = next_offset(c);
        requests[i] =
            (struct mc_transfer_request){c->load->op, c->bench->memory + offset, c->bench->segment,
                                         c->bench->target.memory + offset, c->load->size};
    }
    MC_ASSERT(mc_transfer(c->bench->engine, requests, (size_t)c->load->batch, MC_WAIT_FOREVER) ==
              MC_OK);
}

static void raw_open(struct bench *bench, int threads) {
    struct mc_addr addr;
    MC_ASSERT(mc_addr_resolve(bench->there, bench->target.raw_port, &addr) == MC_OK);
    for (int i = 0; i < threads; i++) {
        MC_ASSERT(mc_connect(&addr, now_ns() + MC_SEC, &bench->raw_fds[i]) == MC_OK);
        set_blocking(bench->raw_fds[i]);
    }
}

static void raw_close(struct bench *bench, int threads) {
    for (int i = 0; i < threads; i++) {
        close(bench->raw_fds[i]);
    }
}

static void engine_open(struct bench *bench, int threads) {
    bench->engine = make_engine(bench->here, bench->memory, MC_MEMORY_LOCAL_ONLY);
    MC_ASSERT(mc_segment_open(bench->engine, bench->target.name, &bench->segment) == MC_OK);
}

static void engine_close(struct bench *bench, int threads) {
    mc_engine_destroy(bench->engine);
}

struct side {
    const char *name;
    void (*open)(struct bench *bench, int threads);
    void (*batch)(struct client *);
    void (*close)(struct bench *bench, int threads);
};
static const struct side SIDES[2] = {{"raw", raw_open, raw_batch, raw_close},
                                     {"tcp", engine_open, engine_batch, engine_close}};

struct job {
    struct client client;
    const struct side *side;
    uint64_t end;
};

static void *run_client(void *arg) {
    struct job *job = arg;
    struct bench *bench = job->client.bench;
    bool sample = job->client.index == 0;
    uint64_t begin = now_ns();
    do {
        job->side->batch(&job->client);
        job->client.bytes += job->client.load->size * (uint64_t)job->client.load->batch;
        uint64_t end = now_ns();
        if (sample && bench->sample_count < SAMPLES_MAX) {
            bench->samples[bench->sample_count++] = end - begin;
        }
        begin = end;
    } while (begin < job->end);
    return NULL;
}

/* GB/s */
static double run_for(struct bench *bench, const struct load *load, const struct side *side,
                      double seconds) {
    struct job jobs[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    uint64_t begin = now_ns(), bytes = 0;
    bench->sample_count = 0;
    for (int i = 0; i < load->threads; i++) {
        jobs[i] = (struct job){{bench, load, i, 0, 0}, side, begin + (uint64_t)(seconds * 1e9)};
        pthread_create(&threads[i], NULL, run_client, &jobs[i]);
    }
    for (int i = 0; i < load->threads; i++) {
        pthread_join(threads[i], NULL);
        bytes += jobs[i].client.bytes;
    }
    return (double)bytes / (double)(now_ns() - begin);
}

static double run_round(struct bench *bench, const struct load *load, const struct side *side) {
    side->open(bench, load->threads);
    (void)run_for(bench, load, side, bench->seconds / 6);
    double rate = run_for(bench, load, side, bench->seconds);
    side->close(bench, load->threads);
    return rate;
}

/* Of sorted values: what the machine gives when others let it, two rounds in ROUNDS. */
static double good(const double *values) {
    return values[ROUNDS - 3];
}

static double percentile_us(struct bench *bench, double q) {
    qsort(bench->samples, bench->sample_count, sizeof(bench->samples[0]), by_u64);
    return (double)bench->samples[(size_t)(q * (double)(bench->sample_count - 1))] / 1e3;
}

static void compare(struct bench *bench, const struct load *load) {
    double rate[2][ROUNDS], p50[2][ROUNDS], p99[2][ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int s = 0; s < 2; s++) {
            rate[s][round] = run_round(bench, load, &SIDES[s]);
            p50[s][round] = percentile_us(bench, .5);
            p99[s][round] = percentile_us(bench, .99);
        }
    }
    double raw = median(rate[0], ROUNDS), tcp = median(rate[1], ROUNDS);
    double raw_good = good(rate[0]), tcp_good = good(rate[1]);
    printf(
        "%-5s %8llu %5d %7d | %7.2f %7.2f %6.2f | %7.2f %7.2f %6.2f | %8.1f %8.1f | %8.1f %8.1f\n",
        load->op == MC_TRANSFER_READ ? "read" : "write", (unsigned long long)load->size,
        load->batch, load->threads, raw, tcp, tcp / raw, raw_good, tcp_good, tcp_good / raw_good,
        median(p50[0], ROUNDS), median(p50[1], ROUNDS), median(p99[0], ROUNDS),
        median(p99[1], ROUNDS));
    fflush(stdout);
}

static void run_all(struct bench *bench, const char *which) {
    static const uint64_t sizes[] = {4096, 65536, 1 << 20, 16 << 20};
    static const int batches[] = {1, 16, 128}, threads[] = {1, 2, 4};
    bool quick = strcmp(which, "short") == 0, single = strcmp(which, "single") == 0,
         latency = strcmp(which, "latency") == 0, far = strcmp(which, "far") == 0;
    printf("                             | GB/s, median round      | GB/s, good round        | p50 "
           "us of a batch "
           "| p99 us\n"
           "op        size batch threads |     raw     tcp  ratio |     raw     tcp  ratio |      "
           "raw      tcp "
           "|      raw      tcp\n");
    for (int op = 0; op < 2; op++) {
        for (size_t s = far ? 1 : 0; s < MC_ARRAY_LEN(sizes) && !(latency && s > 0); s++) {
            for (size_t b = 0; b < MC_ARRAY_LEN(batches) && !((latency || single) && b > 0); b++) {
                for (size_t t = 0; t < MC_ARRAY_LEN(threads) && !((latency || single) && t > 0);
                     t++) {
                    struct load load = {(enum mc_transfer_op)op, sizes[s], batches[b], threads[t]};
                    if (!(quick && t == 1) && !(far && (b == 2 || t == 1)) &&
                        load.size * (uint64_t)load.batch * (uint64_t)load.threads <= HALF) {
                        compare(bench, &load);
                    }
                }
            }
        }
    }
}

int main(int argc, char **argv) {
    struct bench bench = {.seconds = argc > 1 ? atof(argv[1]) : 0.1,
                          .here = argc > 4 ? argv[3] : "127.0.0.1",
                          .there = argc > 4 ? argv[4] : "127.0.0.1"};
    int channel[2];
    MC_ASSERT(mc_log_set_level("WARNING") == MC_OK);
    MC_ASSERT(pipe(channel) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        be_target(channel[1], bench.there);
    }
    MC_ASSERT(pid > 0 &&
              read(channel[0], &bench.target, sizeof(bench.target)) == sizeof(bench.target));
    bench.memory = make_memory(2);
    bench.samples = mc_alloc(SAMPLES_MAX * sizeof(bench.samples[0]));
    run_all(&bench, argc > 2 ? argv[2] : "all");
    free(bench.samples);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}
