/*
 * What offloading costs those who put and get meanwhile: two clusters, each a master, a node and
 * this client, do the same work in turns; the node of the second one writes what it holds to an
 * SSD. A node stands still while it is not its turn: what waits to be written is no burden of the
 * other. Printed are the medians of both, and of the ratios of each turn; and what was written, for
 * a client that puts and removes faster than the disk writes leaves it nothing to do.
 *
 * Usage: bench_offload DIRECTORY [--rounds R] [--milliseconds MS] [--size BYTES] [--batch N]
 *                                [--tcp 1] [--segment MIB]
 *
 * Default 15 rounds of .3 s each, objects of 128 KiB, 16 in a call, through shared memory, nodes of
 * 3 GiB. The directory must exist; it takes up to 4 GiB, and is left empty.
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

static uint64_t rounds = 15, milliseconds = 300, size = 128 << 10, batch = 16, tcp,
                segment = 3072; /* MiB */

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

/* ---- work ---- */

struct cluster {
    struct process master, node;
    struct mc_store *client;
    uint64_t serial;                         /* of the next object; */
    uint64_t removed;                        /* all before it are removed */
    double put[ROUNDS_MAX], get[ROUNDS_MAX]; /* GB/s */
};

static struct cluster clusters[2];
static char *put_memory, *get_memory;

static void make_cluster(struct cluster *c, const char *directory) {
    char address[32];
    c->master = spawn("--master", directory, "");
    snprintf(address, sizeof(address), "127.0.0.1:%d", atoi(c->master.line));
    c->node = spawn("--node", address, directory);
    c->client = open_store(address, 0, NULL);
}

static double call(struct cluster *c, uint64_t first, char *memory, bool put) {
    char keys[BATCH_MAX][32];
    struct mc_slice slices[BATCH_MAX];
    struct mc_store_item items[BATCH_MAX];
    for (uint64_t i = 0; i < batch; i++) {
        snprintf(keys[i], sizeof(keys[i]), "object-%" PRIu64, first + i);
        slices[i] = (struct mc_slice){memory + i * size, size};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    uint64_t began = now_ns();
    check(put ? mc_store_put_batch(c->client, items, batch, NULL)
              : mc_store_get_batch(c->client, items, batch),
          put ? "put" : "get");
    double seconds = (double)(now_ns() - began) / 1e9;
    for (uint64_t i = 0; i < batch; i++) {
        check(items[i].status, put ? "put" : "get");
    }
    return seconds;
}

/* Puts and gets in turns; what is got was put some calls ago. */
static void work(struct cluster *c, uint64_t round) {
    double put_seconds = 0, get_seconds = 0;
    kill(c->node.pid, SIGCONT);
    uint64_t calls = 0, until = now_ns() + milliseconds * MC_MS;
    for (; calls == 0 || now_ns() < until; calls++) {
        uint64_t ago = mc_min_u64(c->serial - c->removed, 32 * batch);
        put_seconds += call(c, c->serial, put_memory, true);
        get_seconds += call(c, c->serial - ago, get_memory, false);
        if (memcmp(put_memory, get_memory, batch * size) != 0) {
            check(MC_CHECKSUM_MISMATCH, "compare");
        }
        c->serial += batch;
        if ((c->serial - c->removed) * size >= (segment << 20) / 6) {
            uint64_t removed;
            check(mc_store_remove_regex(c->client, "^object-", true, &removed), "remove");
            c->removed = c->serial;
        }
    }
    kill(c->node.pid, SIGSTOP);
    double bytes = (double)(calls * batch * size);
    c->put[round] = bytes / put_seconds / 1e9;
    c->get[round] = bytes / get_seconds / 1e9;
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *values) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, rounds * sizeof(*values));
    qsort(sorted, rounds, sizeof(*sorted), by_value);
    return sorted[rounds / 2];
}

static void print_ratio(const char *what, const double *plain, const double *offloading) {
    double ratios[ROUNDS_MAX];
    for (uint64_t i = 0; i < rounds; i++) {
        ratios[i] = offloading[i] / plain[i];
    }
    printf("%s: %.3f GB/s alone, %.3f GB/s beside offloading: %.3f of it; of the rounds %.3f\n",
           what, median(plain), median(offloading), median(offloading) / median(plain),
           median(ratios));
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
            !option(argv, i, "--tcp", 0, 1, &tcp)) {
            return false;
        }
    }
    return argc >= 2 && argc % 2 == 0 && argv[1][0] != '-';
}

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
                        "[--segment MIB]\n");
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
    make_cluster(&clusters[0], "");
    make_cluster(&clusters[1], argv[1]);
    kill(clusters[0].node.pid, SIGSTOP);
    kill(clusters[1].node.pid, SIGSTOP);
    for (uint64_t round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < 2; i++) {
            work(&clusters[i ^ (round & 1)], round);
        }
    }
    printf("%" PRIu64 " objects of %" PRIu64 " bytes a call, %s; written to the SSD: %.3f GB\n",
           batch, size, tcp ? "tcp" : "shared memory",
           (double)bytes_written_by(clusters[1].node.pid) / 1e9);
    print_ratio("put", clusters[0].put, clusters[1].put);
    print_ratio("get", clusters[0].get, clusters[1].get);
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
