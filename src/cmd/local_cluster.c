/*
 * A cluster on this machine. See cmd/local_cluster.h.
 *
 * A node is this same program, started again as `mooncake node`: what runs here is what runs on a
 * real node. PR_SET_PDEATHSIG makes the kernel end it with its parent, so a killed `mooncake up`
 * leaves nothing behind.
 */
#include "cmd/local_cluster.h"
#include "cmd/cmd.h"
#include "io/io.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NODE_START_TIMEOUT_NS (60 * MC_SEC)
#define NODE_STOP_TIMEOUT_NS  (10 * MC_SEC)

struct mc_local_cluster {
    struct mc_master_service *service;
    char master[MC_HOST_MAX + 8];
    pid_t nodes[MC_LOCAL_MAX_NODES]; /* 0 = ended */
    unsigned node_count;
};

static void nap(void) {
    struct timespec ts = {0, 2 * MC_MS};
    nanosleep(&ts, NULL);
}

/* In the child: becomes a node. Between fork and exec only what is safe there. */
static void become_node(pid_t parent, char *const argv[]) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) { /* it ended before the line above */
        _exit(0);
    }
    /* a terminal's Ctrl-C goes to the parent, which ends its nodes in order */
    setpgid(0, 0);
    execv("/proc/self/exe", argv);
    _exit(127);
}

static enum mc_status spawn_node(struct mc_local_cluster *c, uint64_t bytes) {
    char size[48], master[MC_HOST_MAX + 24];
    snprintf(size, sizeof(size), "--segment_bytes=%llu", (unsigned long long)bytes);
    snprintf(master, sizeof(master), "--master=%s", c->master);
    char name[] = "mooncake", verb[] = "node", host[] = "--host=127.0.0.1", quiet[] = "--quiet";
    char *argv[] = {name, verb, master, size, host, quiet, NULL};
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        become_node(parent, argv);
    }
    if (pid < 0) {
        mc_cmd_fail("mooncake", 0, "a node process cannot be started: %s", strerror(errno));
        return MC_ERR_LIMIT;
    }
    c->nodes[c->node_count++] = pid;
    return MC_OK;
}

unsigned mc_local_cluster_alive(struct mc_local_cluster *c) {
    unsigned alive = 0;
    for (unsigned i = 0; i < c->node_count; i++) {
        int how = 0;
        if (c->nodes[i] != 0 && waitpid(c->nodes[i], &how, WNOHANG) != 0) {
            c->nodes[i] = 0;
        }
        alive += c->nodes[i] != 0;
    }
    return alive;
}

static enum mc_status wait_for_mounts(struct mc_local_cluster *c, const char *program) {
    uint64_t until_ns = mc_now_ns(mc_clock_system()) + NODE_START_TIMEOUT_NS;
    for (;;) {
        struct mc_master_totals totals;
        mc_master_totals(mc_master_service_core(c->service), &totals);
        if (totals.segments >= c->node_count) {
            return MC_OK;
        }
        if (mc_local_cluster_alive(c) < c->node_count) {
            mc_cmd_fail(program, 0, "a node process ended before it had mounted its memory");
            return MC_ERR_CLOSED;
        }
        if (mc_now_ns(mc_clock_system()) > until_ns) {
            mc_cmd_fail(program, 0, "%llu of %u nodes mounted their memory within a minute",
                        (unsigned long long)totals.segments, c->node_count);
            return MC_ERR_TIMEOUT;
        }
        nap();
    }
}

/* Where a process of this machine finds what listens on `host`. */
static const char *reachable_host(const char *host) {
    bool any = host[0] == '\0' || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
               strcmp(host, "::") == 0;
    return any ? "127.0.0.1" : host;
}

enum mc_status mc_local_cluster_start(const char *program,
                                      const struct mc_local_cluster_config *config,
                                      struct mc_local_cluster **out) {
    MC_ASSERT(config->nodes <= MC_LOCAL_MAX_NODES);
    struct mc_local_cluster *c = mc_zalloc(sizeof(*c));
    enum mc_status status = mc_master_service_start(&config->master, &c->service);
    if (status != MC_OK) {
        mc_cmd_fail(program, 0, "the master cannot start: %s%s", mc_status_text(status),
                    status == MC_ERR_ADDRESS_IN_USE
                        ? ". Perhaps a cluster runs already; --port=0 --admin_port=0 choose others"
                        : "");
        free(c);
        return status;
    }
    mc_hostport_format(reachable_host(config->master.rpc_host),
                       mc_master_service_rpc_port(c->service), c->master, sizeof(c->master));
    for (unsigned i = 0; i < config->nodes && status == MC_OK; i++) {
        status = spawn_node(c, config->node_bytes);
    }
    if (status == MC_OK) {
        status = wait_for_mounts(c, program);
    }
    if (status != MC_OK) {
        mc_local_cluster_stop(c);
        return status;
    }
    *out = c;
    return MC_OK;
}

static void signal_nodes(struct mc_local_cluster *c, int number) {
    for (unsigned i = 0; i < c->node_count; i++) {
        if (c->nodes[i] != 0) {
            kill(c->nodes[i], number);
        }
    }
}

void mc_local_cluster_stop(struct mc_local_cluster *c) {
    if (c == NULL) {
        return;
    }
    signal_nodes(c, SIGTERM);
    uint64_t until_ns = mc_now_ns(mc_clock_system()) + NODE_STOP_TIMEOUT_NS;
    while (mc_local_cluster_alive(c) > 0 && mc_now_ns(mc_clock_system()) < until_ns) {
        nap();
    }
    if (mc_local_cluster_alive(c) > 0) {
        mc_cmd_fail("mooncake", 0, "a node process did not end within 10 seconds and is killed");
        signal_nodes(c, SIGKILL);
        while (mc_local_cluster_alive(c) > 0) {
            nap();
        }
    }
    mc_master_service_stop(c->service);
    free(c);
}

struct mc_master_service *mc_local_cluster_service(struct mc_local_cluster *c) {
    return c->service;
}
const char *mc_local_cluster_master(const struct mc_local_cluster *c) {
    return c->master;
}
