/*
 * What offloading costs those who put and get meanwhile: two clusters, each a master, a node and
 * this client, do the same work in turns; the node of the second one writes all that is put to an
 * SSD. A node stands still while it is not its turn: what waits to be written is no burden of the
 * other.
 *
 * The work is paced, at a share of what the directory's disk is measured to take at the start, so
 * that the disk keeps up and each object that is put is also written; a client that puts as fast as
 * it can fills the memory and measures the disk. Nothing is removed: eviction takes the memory
 * back. Each put is followed by a get of an object that was put some calls ago. Printed are, of the
 * time inside the calls, the rate and the 50th and 99th percentile of both sides, the medians over
 * the turns; the median of the ratios of each turn, beside whose goal (.9) they stand; what was put
 * and what was written meanwhile; and the processor time that the node took for a byte.
 *
 * Usage: bench_offload DIRECTORY [--rounds R] [--milliseconds MS] [--size BYTES] [--batch N]
 *                                [--tcp 1] [--segment MIB] [--share PERCENT] [--rate MB_PER_S]
 *
 * Default 10 rounds of 2 s each, objects of 128 KiB, 16 in a call, through shared memory, nodes of
 * 1 GiB, 60 % of the disk's rate. The directory must exist; it takes up to 4 GiB, and is left
 * empty.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/service.h"
#include "mooncake/store.h"

#define BATCH_MAX  64u
#define ROUNDS_MAX 99u

#define CALLS_MAX 65536u /* of one turn */
#define PROBE     (256u << 20)

static uint64_t rounds = 10, milliseconds = 2000, size = 128 << 10, batch = 16, tcp,
                segment = 1024, /* MiB */
    share = 60, rate;           /* MB/s; 0 = that share of what the disk takes */

static void check(enum mc_status status, const char *what) {
    if (status != MC_OK) {
        fprintf(stderr, "bench_offload: %s: %s\n", what, mc_status_name(status));
        exit(1);
    }
}

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- processes ---- */

static _Noreturn void run_master(bool offload) {
    struct mc_master_service_config config;
    mc_master_service_config_init(&config);
    config.rpc_host = "127.0.0.1";
    config.rpc_no_delay = true;
    config.core.enable_offload = offload;
    config.core.default_kv_lease_ttl_ms = 1000; /* what is removed is soon free */
    struct mc_master_service *service;
    check(mc_master_service_start(&config, &service), "master");
    printf("%u\n", mc_master_service_rpc_port(service));
    fflush(stdout);
    for (;;) {
        pause();
    }
}

static struct mc_store *open_store(const char *master, uint64_t bytes, const char *directory) {
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = master;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = bytes;
    options.ssd_offload_path = directory;
    options.disable_shm = tcp != 0;
    struct mc_store *store;
    check(mc_store_open(&options, &store), "open");
    return store;
}

/* Its end of the pipe stands open for as long as it is to run: at the end it stops in order. */
static _Noreturn void run_node(const char *master, const char *directory) {
    char byte;
    struct mc_store *store =
        open_store(master, segment << 20, directory[0] != '\0' ? directory : NULL);
    printf("ready\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    mc_store_close(store);
    exit(0);
}

struct process {
    pid_t pid;
    int input;
    char line[64];
};

static struct process spawn(const char *role, const char *first, const char *second) {
    struct process p;
    int out[2], in[2];
    char tcp_text[8], segment_text[24];
    snprintf(tcp_text, sizeof(tcp_text), "%d", (int)tcp);
    snprintf(segment_text, sizeof(segment_text), "%" PRIu64, segment);
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(in, O_CLOEXEC) != 0) {
        exit(1);
    }
    p.pid = fork();
    if (p.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        dup2(in[0], STDIN_FILENO);
        execl("/proc/self/exe", "bench_offload", role, first, second, tcp_text, segment_text,
              (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    close(in[0]);
    p.input = in[1];
    FILE *answer = fdopen(out[0], "r");
    if (fgets(p.line, sizeof(p.line), answer) == NULL) {
        exit(1);
    }
    fclose(answer);
    return p;
}

static void stop(struct process *p, bool in_order) {
    if (!in_order) {
        kill(p->pid, SIGTERM);
    }
    close(p->input);
    waitpid(p->pid, NULL, 0);
}

/* ---- what the kernel says ---- */

/* What a process had written to disks, as the kernel counts it: what is removed again counts, too.
 */
static uint64_t bytes_written_by(pid_t pid) {
    char path[64], line[128];
    uint64_t bytes = 0;
    snprintf(path, sizeof(path), "/proc/%d/io", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "write_bytes: %" SCNu64, &bytes) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return bytes;
}

/* Processor time of a process so far, in ticks of the kernel's. */
static uint64_t cpu_of(pid_t pid) {
    char path[64];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                   &system) != 2) {
            user = system = 0;
        }
        fclose(file);
    }
    return (uint64_t)(user + system) * (1000000000ull / (uint64_t)sysconf(_SC_CLK_TCK));
}

/* A node's memory gets its pages by and by; a turn is not to wait for them. */
static void wait_filled(pid_t pid) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    for (unsigned i = 0; i < 600; i++) {
        uint64_t resident = 0;
        FILE *file = fopen(path, "re");
        bool read = file != NULL && fscanf(file, "%*u %" SCNu64, &resident) == 1;
        if (file != NULL) {
            fclose(file);
        }
        if (read && resident * (uint64_t)sysconf(_SC_PAGESIZE) >= segment << 20) {
            return;
        }
        usleep(100000);
    }
    check(MC_ERR_TIMEOUT, "memory of a node");
}

/* What the disk takes: one file written with O_DIRECT where it can be, and synced. MB/s. */
static uint64_t probe(const char *directory) {
    char path[4096];
    const size_t step = 4 << 20;
    char *memory = aligned_alloc(4096, step);
    memset(memory, 0x5a, step);
    snprintf(path, sizeof(path), "%s/probe.bucket", directory);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
    if (fd < 0) {
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    }
    uint64_t began = now_ns();
    for (size_t done = 0; done < PROBE; done += step) {
        if (fd < 0 || pwrite(fd, memory, step, (off_t)done) != (ssize_t)step) {
            check(MC_FILE_WRITE_FAIL, path);
        }
    }
    (void)fdatasync(fd);
    uint64_t ns = now_ns() - began;
    close(fd);
    (void)unlink(path);
    free(memory);
    return mc_max_u64(PROBE * 1000ull / ns, 1);
}

/* ---- work ---- */

struct side {                                  /* of one kind of call, by turn */
    double rate[ROUNDS_MAX];                   /* GB/s of the time in calls */
    double half[ROUNDS_MAX], high[ROUNDS_MAX]; /* us: percentiles 50 and 99 */
};

struct cluster {
    struct process master, node;
    struct mc_store *client;
    uint64_t serial; /* of the next object */
    uint64_t stalls; /* puts that found no memory */
    uint64_t put_bytes, written_bytes, node_cpu_ns;
    struct side put, get;
};

static struct cluster clusters[2];
static char *put_memory, *get_memory;

static void make_cluster(struct cluster *c, const char *directory) {
    char address[32];
    c->master = spawn("--master", directory, "");
    snprintf(address, sizeof(address), "127.0.0.1:%d", atoi(c->master.line));
    c->node = spawn("--node", address, directory);
    c->client = open_store(address, 0, NULL);
    wait_filled(c->node.pid);
}

/* Microseconds; each object begins with its number. */
static double call(struct cluster *c, uint64_t first, char *memory, bool put) {
    char keys[BATCH_MAX][32];
    struct mc_slice slices[BATCH_MAX];
    struct mc_store_item items[BATCH_MAX];
    size_t left = batch;
    for (uint64_t i = 0; i < batch; i++) {
        uint64_t number = first + i;
        snprintf(keys[i], sizeof(keys[i]), "object-%" PRIu64, number);
        slices[i] = (struct mc_slice){memory + i * size, size};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
        if (put) {
            memcpy(memory + i * size, &number, sizeof(number));
        }
    }
    uint64_t began = now_ns();
    while (left > 0) {
        check(put ? mc_store_put_batch(c->client, items, left, NULL)
                  : mc_store_get_batch(c->client, items, left),
              put ? "put" : "get");
        size_t again = 0;
        for (size_t i = 0; i < left; i++) {
            if (put && items[i].status == MC_NO_AVAILABLE_HANDLE) {
                items[again++] = items[i];
            } else {
                check(items[i].status, put ? "put" : "get");
            }
        }
        c->stalls += again;
        left = again;
        if (left > 0) {
            usleep(1000);
        }
    }
    return (double)(now_ns() - began) / 1e3;
}

static void verify(uint64_t first) {
    for (uint64_t i = 0; i < batch; i++) {
        uint64_t number = first + i;
        const char *object = get_memory + i * size;
        if (memcmp(object, &number, sizeof(number)) != 0 ||
            memcmp(object + sizeof(number), put_memory + i * size + sizeof(number),
                   size - sizeof(number)) != 0) {
            check(MC_CHECKSUM_MISMATCH, "compare");
        }
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void describe(struct side *side, uint64_t round, double *us, uint64_t calls) {
    double sum = 0;
    for (uint64_t i = 0; i < calls; i++) {
        sum += us[i];
    }
    qsort(us, calls, sizeof(*us), by_value);
    side->rate[round] = (double)(calls * batch * size) / sum / 1e3;
    side->half[round] = us[calls / 2];
    side->high[round] = us[calls * 99 / 100];
}

/* Puts and gets in turns at the pace; what is got was put some calls ago. */
static void work(struct cluster *c, uint64_t round) {
    static double put_us[CALLS_MAX], get_us[CALLS_MAX];
    uint64_t written = bytes_written_by(c->node.pid), cpu = cpu_of(c->node.pid);
    kill(c->node.pid, SIGCONT);
    uint64_t period = batch * size * 1000 / rate; /* ns */
    uint64_t calls = 0, began = now_ns(), until = began + milliseconds * MC_MS;
    for (; (calls == 0 || now_ns() < until) && calls < CALLS_MAX; calls++) {
        uint64_t due = began + calls * period, now = now_ns();
        if (due > now) {
            usleep((useconds_t)((due - now) / 1000));
        }
        uint64_t ago = mc_min_u64(c->serial, 32 * batch);
        put_us[calls] = call(c, c->serial, put_memory, true);
        c->serial += batch;
        get_us[calls] = call(c, c->serial - batch - ago, get_memory, false);
        verify(c->serial - batch - ago);
    }
    kill(c->node.pid, SIGSTOP);
    c->put_bytes += calls * batch * size;
    c->written_bytes += bytes_written_by(c->node.pid) - written;
    c->node_cpu_ns += cpu_of(c->node.pid) - cpu;
    describe(&c->put, round, put_us, calls);
    describe(&c->get, round, get_us, calls);
}

/* ---- figures ---- */

static double median(const double *values) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, rounds * sizeof(*values));
    qsort(sorted, rounds, sizeof(*sorted), by_value);
    return sorted[rounds / 2];
}

static double ratio(const double *over, const double *under) {
    double ratios[ROUNDS_MAX];
    for (uint64_t i = 0; i < rounds; i++) {
        ratios[i] = over[i] / under[i];
    }
    return median(ratios);
}

static void print_side(const char *what, const struct side *plain, const struct side *busy) {
    printf("%s alone:             %7.3f GB/s  p50 %8.1f us  p99 %8.1f us\n", what,
           median(plain->rate), median(plain->half), median(plain->high));
    printf("%s beside offloading: %7.3f GB/s  p50 %8.1f us  p99 %8.1f us\n", what,
           median(busy->rate), median(busy->half), median(busy->high));
    printf("ratio %s: rate %.3f, p50 %.3f, p99 %.3f (rate: goal .9)\n", what,
           ratio(busy->rate, plain->rate), ratio(busy->half, plain->half),
           ratio(busy->high, plain->high));
}

static bool option(char **argv, int i, const char *name, uint64_t least, uint64_t most,
                   uint64_t *out) {
    return strcmp(argv[i], name) == 0 && mc_parse_u64(argv[i + 1], least, most, out) == MC_OK;
}

static bool parse(int argc, char **argv) {
    for (int i = 2; i + 1 < argc; i += 2) {
        if (!option(argv, i, "--rounds", 1, ROUNDS_MAX, &rounds) &&
            !option(argv, i, "--milliseconds", 1, 3600000, &milliseconds) &&
            !option(argv, i, "--size", 1, 8 << 20, &size) &&
            !option(argv, i, "--batch", 1, BATCH_MAX, &batch) &&
            !option(argv, i, "--segment", 16, 1 << 20, &segment) &&
            !option(argv, i, "--share", 1, 1000, &share) &&
            !option(argv, i, "--rate", 1, 1 << 20, &rate) &&
            !option(argv, i, "--tcp", 0, 1, &tcp)) {
            return false;
        }
    }
    return argc >= 2 && argc % 2 == 0 && argv[1][0] != '-';
}

int main(int argc, char **argv) {
    if (argc == 6 && strcmp(argv[1], "--master") == 0) {
        run_master(argv[2][0] != '\0');
    }
    if (argc == 6 && strcmp(argv[1], "--node") == 0) {
        tcp = argv[4][0] == '1';
        segment = strtoull(argv[5], NULL, 10);
        run_node(argv[2], argv[3]);
    }
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: bench_offload DIRECTORY [--rounds R] [--milliseconds MS] "
                        "[--size BYTES] [--batch N] [--tcp 0|1] "
                        "[--segment MIB] [--share PERCENT] [--rate MB_PER_S]\n");
        return 2;
    }
    setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1", 0);
    setenv("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "134217728", 0);
    setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "4294967296", 0);
    put_memory = mc_zalloc(batch * size);
    get_memory = mc_zalloc(batch * size);
    struct mc_rng rng;
    mc_rng_seed(&rng, 1);
    for (uint64_t i = 0; i < batch * size; i++) {
        put_memory[i] = (char)mc_rng_next(&rng);
    }
    if (rate == 0) {
        uint64_t disk = probe(argv[1]);
        rate = mc_max_u64(disk * share / 100, 1);
        printf("the disk takes %" PRIu64 " MB/s\n", disk);
    }
    make_cluster(&clusters[0], "");
    make_cluster(&clusters[1], argv[1]);
    kill(clusters[0].node.pid, SIGSTOP);
    kill(clusters[1].node.pid, SIGSTOP);
    for (unsigned i = 0; i < 2; i++) { /* not counted */
        work(&clusters[i], 0);
        clusters[i].put_bytes = clusters[i].written_bytes = 0;
        clusters[i].node_cpu_ns = clusters[i].stalls = 0;
    }
    for (uint64_t round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < 2; i++) {
            work(&clusters[i ^ (round & 1)], round);
        }
    }
    const struct cluster *plain = &clusters[0], *busy = &clusters[1];
    printf("%" PRIu64 " objects of %" PRIu64 " bytes a call, %s, paced at %" PRIu64 " MB/s\n",
           batch, size, tcp ? "tcp" : "shared memory", rate);
    printf("put beside offloading %.3f GB, written to the SSD meanwhile %.3f GB (%.2f of it), puts "
           "that found no memory %" PRIu64 " (alone %" PRIu64 ")\n",
           (double)busy->put_bytes / 1e9, (double)busy->written_bytes / 1e9,
           (double)busy->written_bytes / (double)busy->put_bytes, busy->stalls, plain->stalls);
    printf("processor time of the node: %.3f ns a byte put alone, %.3f beside offloading\n",
           (double)plain->node_cpu_ns / (double)plain->put_bytes,
           (double)busy->node_cpu_ns / (double)busy->put_bytes);
    print_side("put", &plain->put, &busy->put);
    print_side("get", &plain->get, &busy->get);
    for (unsigned i = 0; i < 2; i++) {
        kill(clusters[i].node.pid, SIGCONT);
        mc_store_close(clusters[i].client);
        stop(&clusters[i].node, true);
        stop(&clusters[i].master, false);
    }
    char command[4200];
    snprintf(command, sizeof(command), "rm -f '%s'/*.bucket '%s'/*.meta '%s'/.mooncake.owner",
             argv[1], argv[1], argv[1]);
    return system(command) == 0 ? 0 : 1;
}
