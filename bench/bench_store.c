/*
 * What the store costs: put, get, exist and view of 4 KiB to 16 MiB, singly and in batches, with 1
 * and 4 threads, over TCP and on one host.
 *
 * The master and the node are processes of their own, this one is the client. Baselines in the same
 * run: memcpy between buffers larger than the cache; and, right before each put and get over TCP,
 * raw sockets that move the same payloads the same way: a process that serves, a connection and a
 * thread there for each client thread, as many values in a batch, whose requests are sent before
 * the first answer is waited for, into as many buffers and through as many bytes of values as the
 * store's, so that what comes from memory there comes from memory here. Every value read is
 * compared once, outside of the measured time.
 *
 * Last, large objects in one piece and striped over three nodes, over TCP (road "whole",
 * "stripes").
 *
 * Usage: bench_store [--seconds S] [--json FILE] [--only tcp|host|stripes] [--size BYTES]. Default
 * 0.3 s a figure, all sizes.
 */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "io/io.h"
#include "master/service.h"
#include "mooncake/store.h"

#define SEGMENT_BYTES (3ull << 30)
/* Of values that gets go through, and of puts between two clean-ups. */
#define SET_BYTES   (256u << 20)
#define SET_KEYS    4096
#define MAX_BATCH   128
#define MAX_THREADS 4
#define MAX_SAMPLES 200000

static double seconds = 0.3;
static size_t only_size; /* 0 = all */
static FILE *json;
static bool json_comma;

/* ---- processes ---- */

static void say(unsigned port) {
    printf("%u\n", port);
    fflush(stdout);
}

static _Noreturn void run_master(void) {
    struct mc_master_service_config config;
    mc_master_service_config_init(&config);
    config.rpc_host = "127.0.0.1";
    config.rpc_no_delay = true;
    struct mc_master_service *service;
    check(mc_master_service_start(&config, &service), "master");
    say(mc_master_service_rpc_port(service));
    for (;;) {
        pause();
    }
}

static uint64_t stripe_bytes; /* of the stores that are opened */

static struct mc_store *open_store(const char *master, uint64_t bytes, bool tcp) {
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = master;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = bytes;
    options.disable_shm = tcp;
    options.stripe_bytes = stripe_bytes;
    struct mc_store *store;
    check(mc_store_open(&options, &store), "open");
    return store;
}

static pid_t spawn(const char *role, const char *argument, char *line, size_t size) {
    int ends[2];
    if (pipe(ends) != 0) {
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "bench_store", role, argument, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    if (fgets(line, (int)size, out) == NULL) {
        exit(1);
    }
    fclose(out);
    return pid;
}

/* ---- figures ---- */

struct figure {
    double values_s, gb_s, p50_us, p99_us;
};

static void print_figure(const char *road, const char *what, size_t bytes, unsigned batch,
                         unsigned threads, const struct figure *f) {
    char size[32];
    struct mc_buf text = {0};
    mc_format_size(&text, bytes);
    snprintf(size, sizeof(size), "%s", mc_buf_cstr(&text));
    mc_buf_free(&text);
    printf("%-7s %-6s %9s  batch %3u  threads %u  %10.0f values/s  %7.2f GB/s  p50 %9.1f us  p99 "
           "%9.1f us\n",
           road, what, size, batch, threads, f->values_s, f->gb_s, f->p50_us, f->p99_us);
    fflush(stdout);
    if (json != NULL) {
        fprintf(json,
                "%s\n  {\"road\": \"%s\", \"op\": \"%s\", \"bytes\": %zu, \"batch\": %u, "
                "\"threads\": %u, "
                "\"values_s\": %.1f, \"gb_s\": %.4f, \"p50_us\": %.2f, \"p99_us\": %.2f}",
                json_comma ? "," : "", road, what, bytes, batch, threads, f->values_s, f->gb_s,
                f->p50_us, f->p99_us);
        json_comma = true;
    }
}

/* ---- work ---- */

enum op { OP_PUT, OP_GET, OP_EXIST, OP_VIEW };
static const char *const OP_NAMES[] = {"put", "get", "exist", "view"};

struct job {
    struct mc_store *store;
    enum op op;
    size_t bytes;
    unsigned batch;
    unsigned index, threads;
    unsigned set; /* keys that exist, for reads */
    uint64_t call_limit;
    uint8_t *buffer; /* batch values */
    uint64_t calls;
    uint64_t *samples;
    uint64_t sample_count;
    uint64_t elapsed_ns;
    char (*keys)[40];
    struct mc_store_item items[MAX_BATCH];
    struct mc_slice slices[MAX_BATCH];
    const char *names[MAX_BATCH];
};

static _Atomic uint64_t put_serial;

static void set_key(char *key, size_t bytes, unsigned i) {
    snprintf(key, 40, "set-%zu-%u", bytes, i);
}

static void one_call(struct job *j) {
    bool exists[MAX_BATCH];
    enum mc_status results[MAX_BATCH];
    size_t length;
    struct mc_store_view view;
    switch (j->op) {
    case OP_PUT:
        if (j->batch == 1) {
            check(mc_store_put(j->store, j->keys[0], j->buffer, j->bytes, NULL), "put");
            return;
        }
        check(mc_store_put_batch(j->store, j->items, j->batch, NULL), "put_batch");
        break;
    case OP_GET:
        if (j->batch == 1) {
            check(mc_store_get(j->store, j->keys[0], j->buffer, j->bytes, &length), "get");
            return;
        }
        check(mc_store_get_batch(j->store, j->items, j->batch), "get_batch");
        break;
    case OP_EXIST:
        check(mc_store_exist_batch(j->store, j->names, j->batch, exists, results), "exist");
        check(results[0], "exist");
        return;
    case OP_VIEW:
        check(mc_store_view(j->store, j->keys[0], &view), "view");
        if (!mc_store_view_valid(&view)) {
            check(MC_LEASE_EXPIRED, "view");
        }
        mc_store_view_release(j->store, &view);
        return;
    }
    for (unsigned i = 0; i < j->batch; i++) {
        check(j->items[i].status, OP_NAMES[j->op]);
    }
}

static void next_keys(struct job *j) {
    for (unsigned i = 0; i < j->batch; i++) {
        if (j->op == OP_PUT) {
            snprintf(j->keys[i], 40, "put-%" PRIu64, put_serial++);
        } else {
            set_key(j->keys[i], j->bytes,
                    (unsigned)((j->calls * j->batch + i) * j->threads + j->index) % j->set);
        }
    }
}

static void *run_job(void *arg) {
    struct job *j = arg;
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), now = begin;
    while (now < end && j->calls < j->call_limit) {
        next_keys(j);
        uint64_t started = now_ns();
        one_call(j);
        now = now_ns();
        j->elapsed_ns += now - started; /* making keys is not the store's work */
        if (j->sample_count < MAX_SAMPLES) {
            j->samples[j->sample_count++] = now - started;
        }
        j->calls++;
    }
    return NULL;
}

static void verify(const struct job *j) {
    for (unsigned i = 0; i < j->batch && j->op == OP_GET; i++) {
        for (size_t b = 0; b < j->bytes; b++) {
            if (j->buffer[i * j->bytes + b] != (uint8_t)(b * 7 + j->bytes)) {
                fprintf(stderr, "bench_store: wrong byte %zu of a value of %zu\n", b, j->bytes);
                exit(1);
            }
        }
    }
}

static void prepare_job(struct job *j, struct mc_store *store, enum op op, size_t bytes,
                        unsigned batch) {
    j->store = store;
    j->op = op;
    j->bytes = bytes;
    j->batch = batch;
    j->set = (unsigned)mc_min_u64(SET_BYTES / bytes, SET_KEYS);
    j->buffer = mc_alloc(bytes * batch);
    j->samples = mc_alloc(MAX_SAMPLES * sizeof(*j->samples));
    j->keys = mc_zalloc(batch * sizeof(*j->keys));
    j->call_limit = op == OP_PUT ? 2 * SET_BYTES / (bytes * batch) / j->threads + 1 : UINT64_MAX;
    for (unsigned i = 0; i < batch; i++) {
        for (size_t b = 0; b < bytes; b++) {
            j->buffer[i * bytes + b] = (uint8_t)(b * 7 + bytes);
        }
        j->slices[i] = (struct mc_slice){j->buffer + i * bytes, bytes};
        j->items[i] =
            (struct mc_store_item){.key = j->keys[i], .slices = &j->slices[i], .slice_count = 1};
        j->names[i] = j->keys[i];
    }
}

static void measure(struct mc_store *store, const char *road, enum op op, size_t bytes,
                    unsigned batch, unsigned threads) {
    struct job *jobs = mc_zalloc(threads * sizeof(*jobs));
    pthread_t ids[MAX_THREADS];
    for (unsigned t = 0; t < threads; t++) {
        jobs[t].index = t;
        jobs[t].threads = threads;
        prepare_job(&jobs[t], store, op, bytes, batch);
    }
    uint64_t begin = now_ns();
    for (unsigned t = 1; t < threads; t++) {
        pthread_create(&ids[t], NULL, run_job, &jobs[t]);
    }
    run_job(&jobs[0]);
    for (unsigned t = 1; t < threads; t++) {
        pthread_join(ids[t], NULL);
    }
    double elapsed =
        threads == 1 ? (double)jobs[0].elapsed_ns / 1e9 : (double)(now_ns() - begin) / 1e9;
    uint64_t calls = 0, count = 0;
    uint64_t *samples = mc_alloc(threads * MAX_SAMPLES * sizeof(*samples));
    for (unsigned t = 0; t < threads; t++) {
        calls += jobs[t].calls;
        memcpy(samples + count, jobs[t].samples, jobs[t].sample_count * sizeof(*samples));
        count += jobs[t].sample_count;
        verify(&jobs[t]);
        free(jobs[t].buffer);
        free(jobs[t].samples);
        free(jobs[t].keys);
    }
    qsort(samples, count, sizeof(*samples), by_u64);
    struct figure f = {.values_s = (double)(calls * batch) / elapsed,
                       .gb_s = op == OP_EXIST ? 0 : (double)(calls * batch * bytes) / elapsed / 1e9,
                       .p50_us = (double)samples[count / 2] / 1e3,
                       .p99_us = (double)samples[count * 99 / 100] / 1e3};
    print_figure(road, OP_NAMES[op], bytes, batch, threads, &f);
    free(samples);
    free(jobs);
    if (op == OP_PUT) {
        uint64_t removed;
        check(mc_store_remove_regex(store, "^put-", true, &removed), "remove");
    }
}

/* ---- baselines ---- */

static void measure_memcpy(size_t bytes) {
    size_t span = 512u << 20;
    uint8_t *from = mc_alloc(span), *to = mc_alloc(span);
    memset(from, 1, span);
    memset(to, 2, span);
    uint64_t begin = now_ns(), n = 0;
    while (now_ns() - begin < (uint64_t)(seconds * 1e9)) {
        size_t at = n * bytes % span;
        memcpy(to + at, from + at, bytes);
        n++;
    }
    double elapsed = (double)(now_ns() - begin) / 1e9;
    struct figure f = {(double)n / elapsed, (double)(n * bytes) / elapsed / 1e9,
                       elapsed * 1e6 / (double)n, 0};
    print_figure("base", "memcpy", bytes, 1, 1, &f);
    free(from);
    free(to);
}

/* Raw sockets. The answer to a get is the value, to a put its 8 bytes of acknowledgement. */
struct raw_request {
    uint64_t put, bytes, offset, unused;
};

struct raw_connection {
    int fd;
    uint8_t *memory;
};

static void *raw_serve(void *arg) {
    struct raw_connection c = *(struct raw_connection *)arg;
    struct raw_request request;
    free(arg);
    while (mc_recv_all(c.fd, &request, sizeof(request), MC_NO_DEADLINE) == MC_OK) {
        struct iovec answer = {c.memory + request.offset, request.bytes};
        if (request.put) {
            check(mc_recv_all(c.fd, answer.iov_base, answer.iov_len, MC_NO_DEADLINE), "raw put");
            answer = (struct iovec){&request, 8};
        }
        check(mc_send_all(c.fd, &answer, 1, MC_NO_DEADLINE), "raw answer");
    }
    close(c.fd);
    return NULL;
}

static _Noreturn void run_raw(void) {
    int listener, fd;
    uint16_t port;
    struct mc_addr peer;
    uint8_t *memory = mc_alloc(SET_BYTES);
    memset(memory, 1, SET_BYTES);
    check(mc_listen("127.0.0.1", 0, 16, &listener, &port), "listen");
    say(port);
    for (;;) {
        struct raw_connection *c = mc_alloc(sizeof(*c));
        pthread_t thread;
        MC_ASSERT(mc_wait_ready(listener, POLLIN, MC_NO_DEADLINE) == MC_OK);
        while (mc_accept(listener, &fd, &peer) != MC_OK) {
        }
        *c = (struct raw_connection){fd, memory};
        MC_ASSERT(pthread_create(&thread, NULL, raw_serve, c) == 0);
        MC_ASSERT(pthread_detach(thread) == 0);
    }
}

static uint16_t raw_port;

struct raw_job {
    bool put;
    size_t bytes;
    unsigned batch, index, threads;
    int fd;
    uint8_t *values; /* of a batch */
    uint64_t calls, sample_count;
    uint64_t *samples;
};

/* All requests of a batch, then all answers. */
static void raw_call(struct raw_job *j) {
    struct raw_request requests[MAX_BATCH];
    uint8_t acknowledgement[8];
    for (unsigned i = 0; i < j->batch; i++) {
        uint64_t value = (j->calls * j->batch + i) * j->threads + j->index;
        requests[i] = (struct raw_request){j->put, j->bytes, value * j->bytes % SET_BYTES, 0};
        struct iovec iov[2] = {{&requests[i], sizeof(requests[i])},
                               {j->values + i * j->bytes, j->bytes}};
        if (j->put) {
            check(mc_send_all(j->fd, iov, 2, MC_NO_DEADLINE), "send");
        }
    }
    if (!j->put) {
        struct iovec all = {requests, j->batch * sizeof(requests[0])};
        check(mc_send_all(j->fd, &all, 1, MC_NO_DEADLINE), "send");
    }
    for (unsigned i = 0; i < j->batch; i++) {
        check(mc_recv_all(j->fd, j->put ? acknowledgement : j->values + i * j->bytes,
                          j->put ? sizeof(acknowledgement) : j->bytes, MC_NO_DEADLINE),
              "receive");
    }
}

static void *raw_run(void *arg) {
    struct raw_job *j = arg;
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), now = begin;
    while (now < end) {
        uint64_t started = now;
        raw_call(j);
        now = now_ns();
        if (j->sample_count < MAX_SAMPLES) {
            j->samples[j->sample_count++] = now - started;
        }
        j->calls++;
    }
    return NULL;
}

static void prepare_raw_job(struct raw_job *j) {
    struct mc_addr address;
    check(mc_addr_resolve("127.0.0.1", raw_port, &address), "resolve");
    check(mc_connect(&address, MC_NO_DEADLINE, &j->fd), "connect");
    j->samples = mc_alloc(MAX_SAMPLES * sizeof(*j->samples));
    j->values = mc_alloc(j->bytes * j->batch);
    memset(j->values, 1, j->bytes * j->batch);
}

static void measure_raw(bool put, size_t bytes, unsigned batch, unsigned threads) {
    struct raw_job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    uint64_t *samples = mc_alloc(threads * MAX_SAMPLES * sizeof(*samples));
    for (unsigned t = 0; t < threads; t++) {
        jobs[t] = (struct raw_job){
            .put = put, .bytes = bytes, .batch = batch, .index = t, .threads = threads};
        prepare_raw_job(&jobs[t]);
    }
    uint64_t begin = now_ns(), calls = 0, count = 0;
    for (unsigned t = 0; t < threads; t++) {
        MC_ASSERT(pthread_create(&ids[t], NULL, raw_run, &jobs[t]) == 0);
    }
    for (unsigned t = 0; t < threads; t++) {
        pthread_join(ids[t], NULL);
    }
    double elapsed = (double)(now_ns() - begin) / 1e9;
    for (unsigned t = 0; t < threads; t++) {
        calls += jobs[t].calls;
        memcpy(samples + count, jobs[t].samples, jobs[t].sample_count * sizeof(*samples));
        count += jobs[t].sample_count;
        close(jobs[t].fd);
        free(jobs[t].values);
        free(jobs[t].samples);
    }
    qsort(samples, count, sizeof(*samples), by_u64);
    struct figure f = {.values_s = (double)(calls * batch) / elapsed,
                       .gb_s = (double)(calls * batch * bytes) / elapsed / 1e9,
                       .p50_us = (double)samples[count / 2] / 1e3,
                       .p99_us = (double)samples[count * 99 / 100] / 1e3};
    print_figure("socket", put ? "put" : "get", bytes, batch, threads, &f);
    free(samples);
}

/* ---- the whole ---- */

static void fill_set(struct mc_store *store, size_t bytes) {
    uint8_t *value = mc_alloc(bytes);
    for (size_t b = 0; b < bytes; b++) {
        value[b] = (uint8_t)(b * 7 + bytes);
    }
    for (unsigned i = 0; i < mc_min_u64(SET_BYTES / bytes, SET_KEYS); i++) {
        char key[40];
        set_key(key, bytes, i);
        check(mc_store_put(store, key, value, bytes, NULL), "fill");
    }
    free(value);
}

/* Pages of a segment exist when they were written once; a cluster that has been up for a while has
 * them all. */
static void touch_segment(struct mc_store *store) {
    size_t bytes = 64u << 20;
    uint8_t *value = mc_zalloc(bytes);
    uint64_t removed;
    for (unsigned i = 0; i < SEGMENT_BYTES / bytes * 8 / 10; i++) {
        char key[40];
        snprintf(key, sizeof(key), "touch-%u", i);
        check(mc_store_put(store, key, value, bytes, NULL), "touch");
    }
    check(mc_store_remove_all(store, true, &removed), "remove");
    free(value);
}

static void run_road(bool tcp) {
    static const size_t SIZES[] = {4u << 10, 64u << 10, 1u << 20, 16u << 20};
    static const unsigned BATCHES[] = {1, 32, 128};
    static const unsigned THREADS[] = {1, 4};
    const char *road = tcp ? "tcp" : "host";
    char argument[80], line[64], master[64];
    pid_t master_pid =
        spawn("--master", "", line, sizeof(line)); /* a fresh one: no node that has gone */
    snprintf(master, sizeof(master), "127.0.0.1:%d", atoi(line));
    snprintf(argument, sizeof(argument), "%s,%d", master, tcp);
    pid_t node = spawn("--node", argument, line, sizeof(line));
    struct mc_store *store = open_store(master, 0, tcp);
    touch_segment(store);
    for (size_t s = 0; s < MC_ARRAY_LEN(SIZES); s++) {
        if (only_size != 0 && SIZES[s] != only_size) {
            continue;
        }
        fill_set(store, SIZES[s]);
        for (size_t t = 0; t < MC_ARRAY_LEN(THREADS); t++) {
            for (size_t b = 0; b < MC_ARRAY_LEN(BATCHES); b++) {
                if (BATCHES[b] * SIZES[s] > SET_BYTES / 2) {
                    continue;
                }
                for (enum op op = OP_PUT; op <= OP_GET; op++) {
                    if (tcp) {
                        measure_raw(op == OP_PUT, SIZES[s], BATCHES[b], THREADS[t]);
                    }
                    measure(store, road, op, SIZES[s], BATCHES[b], THREADS[t]);
                }
                if (s == 0) {
                    measure(store, road, OP_EXIST, SIZES[s], BATCHES[b], THREADS[t]);
                }
                if (!tcp && BATCHES[b] == 1) {
                    measure(store, road, OP_VIEW, SIZES[s], 1, THREADS[t]);
                }
            }
        }
    }
    mc_store_close(store);
    kill(node, SIGTERM);
    waitpid(node, NULL, 0);
    kill(master_pid, SIGTERM);
    waitpid(master_pid, NULL, 0);
}

/* Puts of `bytes` under a few keys, then gets of them, one at a time. */
static void measure_large(const char *road, const char *master, size_t bytes) {
    enum { KEYS = 4, MOST = 1000 };
    struct mc_store *store = open_store(master, 0, true);
    uint8_t *value = mc_alloc(bytes);
    uint64_t samples[MOST], removed;
    memset(value, 1, bytes);
    for (unsigned get = 0; get < 2; get++) {
        uint64_t begin = now_ns(), count = 0, now = begin;
        for (; count < MOST && (count < KEYS || now < begin + (uint64_t)(seconds * 1e9)); count++) {
            char key[40];
            size_t length;
            snprintf(key, sizeof(key), "large-%u", (unsigned)(count % KEYS));
            uint64_t started = now_ns();
            check(get ? mc_store_get(store, key, value, bytes, &length)
                      : mc_store_upsert(store, key, value, bytes, NULL),
                  get ? "get" : "put");
            now = now_ns();
            samples[count] = now - started;
        }
        double elapsed = (double)(now - begin) / 1e9;
        qsort(samples, count, sizeof(*samples), by_u64);
        struct figure f = {(double)count / elapsed, (double)(count * bytes) / elapsed / 1e9,
                           (double)samples[count / 2] / 1e3,
                           (double)samples[count * 99 / 100] / 1e3};
        print_figure(road, get ? "get" : "put", bytes, 1, 1, &f);
    }
    check(mc_store_remove_all(store, true, &removed), "remove");
    free(value);
    mc_store_close(store);
}

static void run_stripes(void) {
    enum { NODES = 3 };
    char argument[80], line[64], master[64];
    pid_t pids[NODES + 1];
    for (unsigned striped = 0; striped < 2; striped++) {
        pids[NODES] = spawn("--master", "", line, sizeof(line));
        snprintf(master, sizeof(master), "127.0.0.1:%d", atoi(line));
        snprintf(argument, sizeof(argument), "%s,1", master);
        for (unsigned i = 0; i < NODES; i++) {
            pids[i] = spawn("--node", argument, line, sizeof(line));
        }
        stripe_bytes = striped ? 32u << 20 : 0;
        measure_large(striped ? "stripes" : "whole", master, 192u << 20);
        for (unsigned i = 0; i <= NODES; i++) {
            kill(pids[i], SIGTERM);
            waitpid(pids[i], NULL, 0);
        }
    }
}

static _Noreturn void run_node(const char *argument) {
    char master[64];
    int tcp;
    if (sscanf(argument, "%63[^,],%d", master, &tcp) != 2) {
        exit(1);
    }
    open_store(master, SEGMENT_BYTES, tcp != 0);
    say(0);
    for (;;) {
        pause();
    }
}

int main(int argc, char **argv) {
    const char *only = "";
    if (argc == 3 && strcmp(argv[1], "--master") == 0) {
        run_master();
    }
    if (argc == 3 && strcmp(argv[1], "--raw") == 0) {
        run_raw();
    }
    if (argc == 3 && strcmp(argv[1], "--node") == 0) {
        run_node(argv[2]);
    }
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--seconds") == 0 && atof(value) > 0) {
            seconds = atof(value);
        } else if (strcmp(argv[i], "--json") == 0 && (json = fopen(value, "w")) != NULL) {
            continue;
        } else if (strcmp(argv[i], "--only") == 0 &&
                   (strcmp(value, "tcp") == 0 || strcmp(value, "host") == 0)) {
            only = value;
        } else if (strcmp(argv[i], "--size") == 0 && strtoull(value, NULL, 10) > 0) {
            only_size = strtoull(value, NULL, 10);
        } else {
            fprintf(stderr,
                    "bench_store: cannot use \"%s %s\"; the options are in the first comment of "
                    "bench/bench_store.c\n",
                    argv[i], value);
            return 2;
        }
    }
    if (json != NULL) {
        fprintf(json, "[");
    }
    for (size_t bytes = 4u << 10; bytes <= 16u << 20; bytes *= 16) {
        measure_memcpy(bytes);
    }
    if (strcmp(only, "host") != 0 && strcmp(only, "stripes") != 0) {
        char line[64];
        pid_t raw = spawn("--raw", "", line, sizeof(line));
        raw_port = (uint16_t)atoi(line);
        run_road(true);
        kill(raw, SIGTERM);
        waitpid(raw, NULL, 0);
    }
    if (strcmp(only, "tcp") != 0 && strcmp(only, "stripes") != 0) {
        run_road(false);
    }
    if (only[0] == '\0' || strcmp(only, "stripes") == 0) {
        run_stripes();
    }
    if (json != NULL) {
        fprintf(json, "\n]\n");
        fclose(json);
    }
    return 0;
}
