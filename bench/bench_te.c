/*
 * The Transfer Engine against what the machine can do: reads and writes of 4 KiB to 16 MiB, batches
 * of 1, 16 and 128, 1 to 4 threads, by mapped memory (shm), by the kernel's copy (shm-unregistered:
 * memory that the engine did not allocate) and by tcp, from and to another process. Beside each, in
 * the same run and alternating with it round by round, the bare thing: one thread's memcpy for
 * shared memory (whatever the number of threads), a plain socket to the same process for tcp (same
 * requests, same number of them in flight on one connection a thread, no engine). "tls", which has
 * to be asked for, is tcp between engines that require TLS, beside the same in the clear; the
 * openssl program makes its certificate.
 *
 * Every thread walks through its part of a working set several times as large as the last-level
 * cache, on both sides. Figures are medians of the rounds. Usage:
 *
 *     bench_te [--json FILE] [--seconds S] [--rounds N] [--sizes 4096,65536,...] [--batches 1,16]
 *              [--threads 1,4] [--transports shm,shm-unregistered,tcp,tls] [--ops read,write]
 *              [--set-mib 256]
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "base/log.h"
#include "io/io.h"
#include "mooncake/transfer.h"

#define LIST_MAX    8
#define THREADS_MAX 16
#define BATCH_MAX   1024
#define SAMPLES_MAX 200000

enum way { WAY_SHM, WAY_COPIED, WAY_TCP, WAY_TLS, WAY_COUNT, WAY_MEMCPY = WAY_COUNT, WAY_SOCKET };
static const char *const way_names[] = {"shm", "shm-unregistered", "tcp", "tls"};
static const enum way baselines[] = {WAY_MEMCPY, WAY_MEMCPY, WAY_SOCKET, WAY_TCP};
static const char *const baseline_names[] = {"memcpy, 1 thread", "memcpy, 1 thread", "socket",
                                             "tcp"};
static const char *const op_names[] = {"read", "write"};

struct list {
    size_t count;
    uint64_t values[LIST_MAX];
};

struct config {
    struct list sizes, batches, threads;
    bool ways[WAY_COUNT];
    bool ops[2];
    double seconds;
    unsigned rounds;
    uint64_t set_bytes;
    const char *json;
};

/* What the target process tells. */
struct target {
    char names[WAY_COUNT][280];
    uint64_t addrs[WAY_COUNT];
    uint32_t socket_port;
};

struct bench {
    struct config config;
    struct target target;
    struct mc_engine *engines[WAY_COUNT];
    mc_segment_id segments[WAY_COUNT];
    char *local;
    char *other; /* memcpy's far side */
};

static char *memory(uint64_t bytes) {
    char *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MC_ASSERT(ptr != MAP_FAILED);
    (void)madvise(ptr, bytes, MADV_HUGEPAGE);
    memset(ptr, 1, bytes);
    return ptr;
}

/* ---- the target process ---- */

/* Fills a cache line, although it need not, so that the payload of a write does not begin where
 * processors of AMD copy slowly (docs/transport-tcp.md); that of a read has nothing before it. */
struct socket_request {
    uint64_t offset;
    uint64_t length;
    uint64_t op;
    uint64_t unused[5];
};
struct socket_server {
    int fd;
    char *memory;
};

static bool receive(int fd, void *to, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = recv(fd, (char *)to + done, len - done, 0);
        if (n <= 0) {
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

static bool transmit(int fd, const void *from, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, (const char *)from + done, len - done, MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

static void set_blocking(int fd) {
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

static void *serve_connection(void *arg) {
    struct socket_server *s = arg;
    struct socket_request r;
    while (receive(s->fd, &r, sizeof(r))) {
        bool ok = r.op == MC_TRANSFER_READ
                      ? transmit(s->fd, s->memory + r.offset, r.length)
                      : receive(s->fd, s->memory + r.offset, r.length) && transmit(s->fd, "k", 1);
        if (!ok) {
            break;
        }
    }
    close(s->fd);
    free(s);
    return NULL;
}

static void accept_forever(int listen_fd, char *far) {
    set_blocking(listen_fd);
    for (;;) {
        struct mc_addr peer;
        pthread_t thread;
        struct socket_server *s = mc_zalloc(sizeof(*s));
        s->memory = far;
        check(mc_accept(listen_fd, &s->fd, &peer), "accept");
        set_blocking(s->fd);
        MC_ASSERT(pthread_create(&thread, NULL, serve_connection, s) == 0);
        pthread_detach(thread);
    }
}

/* A certificate that is its own CA; its folder goes with the program. */
static char certificate_folder[] = "/tmp/mc_bench_XXXXXX";

static void make_certificate(void) {
    char line[512];
    MC_ASSERT(mkdtemp(certificate_folder) != NULL);
    snprintf(
        line, sizeof(line),
        "cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "
        "key -out cert -subj /CN=bench -addext subjectAltName=IP:127.0.0.1 -days 2 2>log",
        certificate_folder);
    if (system(line) != 0) {
        fprintf(stderr, "bench_te: no certificate: see %s/log\n", certificate_folder);
        exit(1);
    }
}

static void forget_certificate(void) {
    static const char *const files[] = {"key", "cert", "log"};
    char path[64];
    for (size_t i = 0; i < MC_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", certificate_folder, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(certificate_folder);
}

static struct mc_engine *make_engine(enum way way) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    char key[64], cert[64];
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = way == WAY_TCP || way == WAY_TLS;
    if (way == WAY_TLS) {
        snprintf(key, sizeof(key), "%s/key", certificate_folder);
        snprintf(cert, sizeof(cert), "%s/cert", certificate_folder);
        options.tls_peers = "require";
        options.tls_key = key;
        options.tls_cert = options.tls_ca = cert;
    }
    check(mc_engine_create(&options, &engine), "engine");
    return engine;
}

static void open_engine(struct bench *b, enum way way) {
    b->engines[way] = make_engine(way);
    check(mc_segment_open(b->engines[way], b->target.names[way], &b->segments[way]), "open");
}

static void close_engine(struct bench *b, enum way way) {
    mc_engine_destroy(b->engines[way]);
    b->engines[way] = NULL;
}

/* The ways that are measured, and those that they are measured against. */
static bool is_needed(const struct config *config, enum way way) {
    return config->ways[way] || (way == WAY_TCP && config->ways[WAY_TLS]);
}

static void target_main(const struct config *config, int out) {
    struct target t = {0};
    uint16_t port = 0;
    int listen_fd = -1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *plain = memory(config->set_bytes);
    for (enum way way = 0; way < WAY_COUNT; way++) {
        if (!is_needed(config, way)) {
            continue;
        }
        struct mc_engine *engine = make_engine(way);
        void *ptr = plain;
        if (way == WAY_SHM) {
            check(mc_memory_alloc(engine, config->set_bytes, "*", &ptr), "alloc");
            memset(ptr, 1, config->set_bytes);
        } else {
            check(mc_memory_register(engine, ptr, config->set_bytes, "*", 0), "register");
        }
        snprintf(t.names[way], sizeof(t.names[way]), "%s", mc_engine_name(engine));
        t.addrs[way] = (uint64_t)(uintptr_t)ptr;
    }
    check(mc_listen("127.0.0.1", 0, 128, &listen_fd, &port), "listen");
    t.socket_port = port;
    MC_ASSERT(write(out, &t, sizeof(t)) == (ssize_t)sizeof(t));
    accept_forever(listen_fd, plain);
}

/* ---- one round of one case ---- */

struct round_case {
    struct bench *bench;
    enum way way;
    enum mc_transfer_op op;
    uint64_t size;
    size_t batch;
    size_t threads;
};

struct worker {
    const struct round_case *round;
    size_t index;
    uint64_t bytes;
    size_t samples;
    uint64_t *latency_ns; /* of each batch */
    int fd;               /* of WAY_SOCKET */
    double seconds;
};

static void socket_batch(struct worker *w, const uint64_t *offsets) {
    const struct round_case *r = w->round;
    char *local = r->bench->local, ack;
    struct socket_request requests[BATCH_MAX];
    for (size_t i = 0; i < r->batch; i++) {
        requests[i] = (struct socket_request){offsets[i], r->size, r->op, {0}};
        struct iovec iov[2] = {{&requests[i], sizeof(requests[i])}, {local + offsets[i], r->size}};
        if (r->op == MC_TRANSFER_WRITE) {
            check(mc_send_all(w->fd, iov, 2, MC_NO_DEADLINE), "send");
        }
    }
    if (r->op == MC_TRANSFER_READ) {
        MC_ASSERT(transmit(w->fd, requests, r->batch * sizeof(requests[0])));
    }
    for (size_t i = 0; i < r->batch; i++) {
        MC_ASSERT(r->op == MC_TRANSFER_READ ? receive(w->fd, local + offsets[i], r->size)
                                            : receive(w->fd, &ack, 1));
    }
}

static void memcpy_batch(struct worker *w, const uint64_t *offsets) {
    const struct round_case *r = w->round;
    char *from = r->op == MC_TRANSFER_READ ? r->bench->other : r->bench->local;
    char *to = r->op == MC_TRANSFER_READ ? r->bench->local : r->bench->other;
    for (size_t i = 0; i < r->batch; i++) {
        memcpy(to + offsets[i], from + offsets[i], r->size);
        __asm__ volatile("" ::: "memory");
    }
}

static void engine_batch(struct worker *w, const uint64_t *offsets) {
    const struct round_case *r = w->round;
    struct mc_transfer_request requests[BATCH_MAX];
    for (size_t i = 0; i < r->batch; i++) {
        requests[i] = (struct mc_transfer_request){
            r->op, r->bench->local + offsets[i], r->bench->segments[r->way],
            r->bench->target.addrs[r->way] + offsets[i], r->size};
    }
    check(mc_transfer(r->bench->engines[r->way], requests, r->batch, MC_WAIT_FOREVER), "transfer");
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    const struct round_case *r = w->round;
    uint64_t part = r->bench->config.set_bytes / r->threads;
    uint64_t places = part / r->size, next = 0, offsets[BATCH_MAX];
    uint64_t end = now_ns() + (uint64_t)(w->seconds * 1e9);
    do {
        for (size_t i = 0; i < r->batch; i++, next++) {
            offsets[i] = w->index * part + next % places * r->size;
        }
        uint64_t begin = now_ns();
        if (r->way == WAY_SOCKET) {
            socket_batch(w, offsets);
        } else if (r->way == WAY_MEMCPY) {
            memcpy_batch(w, offsets);
        } else {
            engine_batch(w, offsets);
        }
        w->latency_ns[w->samples++] = now_ns() - begin;
        w->bytes += r->batch * r->size;
    } while (now_ns() < end && w->samples < SAMPLES_MAX);
    return NULL;
}

struct figures {
    double gb_s;
    double p50_us;
    double p99_us;
};

static int dial(const struct bench *b) {
    struct mc_addr addr;
    int fd = -1;
    check(mc_addr_resolve("127.0.0.1", (uint16_t)b->target.socket_port, &addr), "resolve");
    check(mc_connect(&addr, now_ns() + MC_SEC, &fd), "connect");
    set_blocking(fd);
    return fd;
}

/* Every round over sockets has connections of its own on both sides: congestion control remembers,
 * and what an older case taught it would be taken for a difference between the sides. */
static void open_round(const struct round_case *r, int *fds) {
    struct bench *b = r->bench;
    for (size_t i = 0; i < r->threads && r->way == WAY_SOCKET; i++) {
        fds[i] = dial(b);
    }
    if (r->way == WAY_TCP || r->way == WAY_TLS) {
        open_engine(b, r->way);
    }
}

static void close_round(const struct round_case *r, const int *fds) {
    for (size_t i = 0; i < r->threads && r->way == WAY_SOCKET; i++) {
        close(fds[i]);
    }
    if (r->way == WAY_TCP || r->way == WAY_TLS) {
        close_engine(r->bench, r->way);
    }
}

static struct figures run_for(const struct round_case *r, const int *fds, double for_seconds) {
    static uint64_t samples[THREADS_MAX][SAMPLES_MAX];
    struct worker workers[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    uint64_t bytes = 0, begin = now_ns();
    size_t count = 0;
    for (size_t i = 0; i < r->threads; i++) {
        workers[i] = (struct worker){r, i, 0, 0, samples[i], fds[i], for_seconds};
        MC_ASSERT(pthread_create(&threads[i], NULL, worker_main, &workers[i]) == 0);
    }
    for (size_t i = 0; i < r->threads; i++) {
        pthread_join(threads[i], NULL);
        bytes += workers[i].bytes;
    }
    double seconds = (double)(now_ns() - begin) / 1e9;
    uint64_t *all = mc_alloc(r->threads * SAMPLES_MAX * sizeof(*all));
    for (size_t i = 0; i < r->threads; i++) {
        memcpy(all + count, samples[i], workers[i].samples * sizeof(*all));
        count += workers[i].samples;
    }
    qsort(all, count, sizeof(*all), by_u64);
    struct figures f = {(double)bytes / seconds / 1e9, (double)all[count / 2] / 1e3,
                        (double)all[count * 99 / 100] / 1e3};
    free(all);
    return f;
}

static struct figures run_round(const struct round_case *r) {
    double seconds = r->bench->config.seconds;
    int fds[THREADS_MAX] = {0}; /* used by bare sockets alone */
    open_round(r, fds);
    (void)run_for(r, fds, seconds / 6); /* warms up */
    struct figures f = run_for(r, fds, seconds);
    close_round(r, fds);
    return f;
}

/* ---- all cases ---- */

static int by_rate(const void *a, const void *b) {
    double x = ((const struct figures *)a)->gb_s, y = ((const struct figures *)b)->gb_s;
    return (x > y) - (x < y);
}

static void print_case(const struct round_case *r, const struct figures *engine,
                       const struct figures *bare, FILE *json, bool first) {
    const char *baseline = baseline_names[r->way];
    printf("%-17s %-5s %9" PRIu64 " %5zu %7zu %8.2f %10.1f %10.1f %8.2f %6.2f\n", way_names[r->way],
           op_names[r->op], r->size, r->batch, r->threads, engine->gb_s, engine->p50_us,
           engine->p99_us, bare->gb_s, engine->gb_s / bare->gb_s);
    fflush(stdout);
    if (json != NULL) {
        fprintf(
            json,
            "%s\n {\"transport\":\"%s\",\"op\":\"%s\",\"size\":%" PRIu64
            ",\"batch\":%zu,\"threads\":%zu,\"gb_s\":%.3f,\"p50_us\":%.2f,\"p99_us\":%.2f,"
            "\"baseline\":\"%s\",\"baseline_gb_s\":%.3f,\"baseline_p50_us\":%.2f,\"ratio\":%.3f}",
            first ? "" : ",", way_names[r->way], op_names[r->op], r->size, r->batch, r->threads,
            engine->gb_s, engine->p50_us, engine->p99_us, baseline, bare->gb_s, bare->p50_us,
            engine->gb_s / bare->gb_s);
    }
}

static void run_case(struct round_case *r, FILE *json, bool *first) {
    const struct config *config = &r->bench->config;
    struct figures engine[64], bare[64];
    struct round_case base = *r;
    if (r->size * r->batch * r->threads > config->set_bytes || r->batch > BATCH_MAX) {
        return;
    }
    base.way = baselines[r->way];
    base.threads = base.way == WAY_MEMCPY ? 1 : r->threads;
    for (unsigned i = 0; i < config->rounds; i++) {
        bare[i] = run_round(&base);
        engine[i] = run_round(r);
    }
    qsort(engine, config->rounds, sizeof(engine[0]), by_rate);
    qsort(bare, config->rounds, sizeof(bare[0]), by_rate);
    print_case(r, &engine[config->rounds / 2], &bare[config->rounds / 2], json, *first);
    *first = false;
}

static void run_all(struct bench *b) {
    const struct config *c = &b->config;
    FILE *json = c->json != NULL ? fopen(c->json, "w") : NULL;
    bool first = true;
    if (json != NULL) {
        fprintf(json,
                "{\"bench\":\"te\",\"rounds\":%u,\"seconds\":%g,\"set_bytes\":%" PRIu64
                ",\"cases\":[",
                c->rounds, c->seconds, c->set_bytes);
    }
    printf("%-17s %-5s %9s %5s %7s %8s %10s %10s %8s %6s\n", "transport", "op", "bytes", "batch",
           "threads", "GB/s", "p50 us", "p99 us", "bare", "ratio");
    for (enum way way = 0; way < WAY_COUNT; way++) {
        for (size_t i = 0; i < c->sizes.count * c->batches.count * c->threads.count * 2; i++) {
            size_t op = i % 2, rest = i / 2;
            size_t threads = rest % c->threads.count,
                   batch = rest / c->threads.count % c->batches.count;
            size_t size = rest / c->threads.count / c->batches.count;
            struct round_case r = {b,
                                   way,
                                   (enum mc_transfer_op)op,
                                   c->sizes.values[size],
                                   c->batches.values[batch],
                                   c->threads.values[threads]};
            if (c->ways[way] && c->ops[op]) {
                run_case(&r, json, &first);
            }
        }
    }
    if (json != NULL) {
        fprintf(json, "\n]}\n");
        fclose(json);
    }
}

/* ---- command line ---- */

_Noreturn static void usage(const char *what) {
    fprintf(
        stderr,
        "bench_te: cannot use \"%s\"; the options are in the first comment of bench/bench_te.c\n",
        what);
    exit(2);
}

static struct list parse_numbers(char *text, uint64_t max) {
    struct list list = {0};
    char *rest = NULL;
    for (char *part = strtok_r(text, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        if (list.count == LIST_MAX ||
            mc_parse_u64(part, 1, max, &list.values[list.count++]) != MC_OK) {
            usage(part);
        }
    }
    return list;
}

static void parse_names(char *text, const char *const *names, size_t count, bool *chosen) {
    char *rest = NULL;
    memset(chosen, 0, count * sizeof(*chosen));
    for (char *part = strtok_r(text, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        size_t i = 0;
        while (i < count && strcmp(names[i], part) != 0) {
            i++;
        }
        if (i == count) {
            usage(part);
        }
        chosen[i] = true;
    }
}

static void parse(int argc, char **argv, struct config *c) {
    static const struct option options[] = {{"json", 1, 0, 'j'},    {"seconds", 1, 0, 's'},
                                            {"rounds", 1, 0, 'r'},  {"sizes", 1, 0, 'z'},
                                            {"batches", 1, 0, 'b'}, {"threads", 1, 0, 't'},
                                            {"ops", 1, 0, 'o'},     {"transports", 1, 0, 'x'},
                                            {"set-mib", 1, 0, 'm'}, {0}};
    uint64_t number = 0;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'j':
            c->json = optarg;
            break;
        case 's':
            c->seconds = strtod(optarg, NULL);
            break;
        case 'z':
            c->sizes = parse_numbers(optarg, 1ull << 30);
            break;
        case 'b':
            c->batches = parse_numbers(optarg, BATCH_MAX);
            break;
        case 't':
            c->threads = parse_numbers(optarg, THREADS_MAX);
            break;
        case 'o':
            parse_names(optarg, op_names, 2, c->ops);
            break;
        case 'x':
            parse_names(optarg, way_names, WAY_COUNT, c->ways);
            break;
        case 'r':
        case 'm':
            if (mc_parse_u64(optarg, 1, o == 'r' ? 64 : 1u << 20, &number) != MC_OK) {
                usage(optarg);
            }
            if (o == 'r') {
                c->rounds = (unsigned)number;
            } else {
                c->set_bytes = number << 20;
            }
            break;
        default:
            usage(argv[optind - 1]);
        }
    }
}

int main(int argc, char **argv) {
    static struct bench bench = {
        .config = {.sizes = {4, {4096, 65536, 1u << 20, 16u << 20}},
                   .batches = {3, {1, 16, 128}},
                   .threads = {3, {1, 2, 4}},
                   .ways = {true, true, true, false},
                   .ops = {true, true},
                   .seconds = 0.1,
                   .rounds = 3,
                   .set_bytes = 256u << 20},
    };
    int pipe_fds[2];
    parse(argc, argv, &bench.config);
    check(mc_log_set_level("WARNING"), "log");
    if (bench.config.ways[WAY_TLS]) {
        make_certificate();
    }
    MC_ASSERT(pipe(pipe_fds) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        target_main(&bench.config, pipe_fds[1]);
        return 1;
    }
    close(pipe_fds[1]);
    if (read(pipe_fds[0], &bench.target, sizeof(bench.target)) != (ssize_t)sizeof(bench.target)) {
        fprintf(stderr, "bench_te: the target did not start\n");
        return 1;
    }
    bench.local = memory(bench.config.set_bytes);
    bench.other = memory(bench.config.set_bytes);
    for (enum way way = WAY_SHM; way <= WAY_COPIED; way++) {
        if (is_needed(&bench.config, way)) {
            open_engine(&bench, way);
        }
    }
    run_all(&bench);
    for (enum way way = WAY_SHM; way <= WAY_COPIED; way++) {
        close_engine(&bench, way);
    }
    if (bench.config.ways[WAY_TLS]) {
        forget_certificate();
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}
