#include "support/cluster.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bytes of a segment are written and read by whoever a peer's one-sided request falls to; what puts
 * them in order are the peers' messages, through the kernel, which TSan does not see. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
    return "race:mc_socket_receive\nrace:mc_socket_writev\nrace:take_input\n";
}

const struct cluster_role *cluster_roles;

/* ---- roles ---- */

static struct mc_master_service *start_master(const struct cluster_master_options *options) {
    struct mc_master_service_config config;
    mc_master_service_config_init(&config);
    config.rpc_host = "127.0.0.1";
    config.rpc_port = options->port;
    config.rpc_no_delay = true;
    config.core.default_kv_lease_ttl_ms = options->lease_ms;
    config.core.client_ttl_ms = options->client_ttl_ms;
    config.core.put_start_discard_timeout_ms = options->discard_ms;
    config.core.put_start_release_timeout_ms = options->release_ms;
    struct mc_master_service *service = NULL;
    enum mc_status status = mc_master_service_start(&config, &service);
    if (status != MC_OK) {
        fprintf(stderr, "master: %s\n", mc_status_name(status));
        exit(1);
    }
    return service;
}

static void say_ready(uint16_t port) {
    printf("ready %u\n", port);
    fflush(stdout);
}

static int master_role(const char *argument) {
    struct cluster_master_options options;
    unsigned port;
    unsigned long long lease, ttl, discard, release;
    if (sscanf(argument, "%u,%llu,%llu,%llu,%llu", &port, &lease, &ttl, &discard, &release) != 5) {
        return 1;
    }
    options = (struct cluster_master_options){(uint16_t)port, lease, ttl, discard, release};
    struct mc_master_service *service = start_master(&options);
    say_ready(mc_master_service_rpc_port(service));
    for (;;) {
        pause();
    }
}

static struct mc_store *open_store(uint16_t master_port, uint64_t segment_bytes, bool disable_shm) {
    char master[32];
    snprintf(master, sizeof(master), "127.0.0.1:%u", master_port);
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = master;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = segment_bytes;
    options.disable_shm = disable_shm;
    options.timeout_ms = 60000;
    struct mc_store *store = NULL;
    enum mc_status status = mc_store_open(&options, &store);
    if (status != MC_OK) {
        fprintf(stderr, "store: %s\n", mc_status_name(status));
        exit(1);
    }
    return store;
}

static int node_role(const char *argument) {
    unsigned port, disable_shm;
    unsigned long long bytes;
    if (sscanf(argument, "%u,%llu,%u", &port, &bytes, &disable_shm) != 3) {
        return 1;
    }
    open_store((uint16_t)port, bytes, disable_shm != 0);
    say_ready(0);
    for (;;) {
        pause();
    }
}

bool cluster_is_child(int argc, char **argv) {
    return argc == 4 && strcmp(argv[1], "--role") == 0;
}

int cluster_child(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (strcmp(argv[2], "master") == 0) {
        return master_role(argv[3]);
    }
    if (strcmp(argv[2], "node") == 0) {
        return node_role(argv[3]);
    }
    for (const struct cluster_role *role = cluster_roles; role != NULL && role->name != NULL;
         role++) {
        if (strcmp(argv[2], role->name) == 0) {
            return role->run(argv[3]);
        }
    }
    return 1;
}

/* ---- processes ---- */

struct cluster_process cluster_spawn(const char *role, const char *argument) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "test", "--role", role, argument, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    return (struct cluster_process){.pid = pid, .output = ends[0]};
}

bool cluster_wait_line(struct cluster_process *process, char *line, size_t size) {
    size_t n = 0;
    char c;
    while (n + 1 < size) {
        ssize_t got = read(process->output, &c, 1);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        if (c == '\n') {
            line[n] = '\0';
            return true;
        }
        line[n++] = c;
    }
    return false;
}

static void wait_ready(struct cluster_process *process) {
    char line[64];
    unsigned port;
    assert_true(cluster_wait_line(process, line, sizeof(line)));
    assert_int_equal(sscanf(line, "ready %u", &port), 1);
    process->port = (uint16_t)port;
}

void cluster_master_options_init(struct cluster_master_options *options) {
    *options = (struct cluster_master_options){
        .lease_ms = 10000, .client_ttl_ms = 30000, .discard_ms = 30000, .release_ms = 600000};
}

struct cluster_process cluster_spawn_master(const struct cluster_master_options *o) {
    char argument[128];
    snprintf(argument, sizeof(argument), "%u,%llu,%llu,%llu,%llu", o->port,
             (unsigned long long)o->lease_ms, (unsigned long long)o->client_ttl_ms,
             (unsigned long long)o->discard_ms, (unsigned long long)o->release_ms);
    struct cluster_process process = cluster_spawn("master", argument);
    wait_ready(&process);
    return process;
}

struct cluster_process cluster_spawn_node(uint16_t master_port, uint64_t bytes, bool disable_shm) {
    char argument[64];
    snprintf(argument, sizeof(argument), "%u,%llu,%u", master_port, (unsigned long long)bytes,
             disable_shm);
    struct cluster_process process = cluster_spawn("node", argument);
    wait_ready(&process);
    return process;
}

void cluster_kill(struct cluster_process *process, int signal_number) {
    if (process->pid <= 0) {
        return;
    }
    kill(process->pid, signal_number);
    int status;
    while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(process->output);
    process->pid = 0;
}

/* ---- in this process ---- */

struct mc_master_service *cluster_start_master(const struct cluster_master_options *options) {
    return start_master(options);
}

struct mc_store *cluster_open(uint16_t master_port, uint64_t segment_bytes, bool disable_shm) {
    return open_store(master_port, segment_bytes, disable_shm);
}

void cluster_wait_until(bool (*check)(void *ctx), void *ctx, uint64_t timeout_ms,
                        const char *what) {
    uint64_t end = mc_now_ms(mc_clock_system()) + timeout_ms;
    while (!check(ctx)) {
        if (mc_now_ms(mc_clock_system()) > end) {
            fail_msg("waited %llu ms in vain for: %s", (unsigned long long)timeout_ms, what);
        }
        usleep(5000);
    }
}
