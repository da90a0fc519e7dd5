/*
 * Clusters of real processes for tests: a test program runs itself again in a role, so that a node
 * or a master can be killed, stopped and started like any other process.
 *
 * main() of such a test begins with `if (cluster_is_child(argc, argv)) return cluster_child(argc,
 * argv);`. Everything is killed when the test program dies.
 */
#ifndef MC_TESTS_CLUSTER_H
#define MC_TESTS_CLUSTER_H

#include <sys/types.h>

#include "master/service.h"
#include "mooncake/store.h"
#include "support/support.h"

bool cluster_is_child(int argc, char **argv);
int cluster_child(int argc, char **argv);

struct cluster_process {
    pid_t pid;
    int output; /* its standard output: one line when it is ready */
    uint16_t port;
};

struct cluster_master_options {
    uint16_t port; /* 0 = any */
    uint64_t lease_ms, client_ttl_ms, discard_ms, release_ms;
};
void cluster_master_options_init(struct cluster_master_options *options);

/* In a child; waits until it accepts. */
struct cluster_process cluster_spawn_master(const struct cluster_master_options *options);
/* A node that lends `bytes`; waits until it is mounted. */
struct cluster_process cluster_spawn_node(uint16_t master_port, uint64_t bytes, bool disable_shm);
/* Runs `role` (registered by the test) with an argument; does not wait. */
struct cluster_process cluster_spawn(const char *role, const char *argument);
void cluster_kill(struct cluster_process *process, int signal_number); /* and waits for its end */
bool cluster_wait_line(struct cluster_process *process, char *line, size_t size);

/* A test's own roles: a NULL-named entry ends the table. Set before cluster_child is called. */
struct cluster_role {
    const char *name;
    int (*run)(const char *argument);
};
extern const struct cluster_role *cluster_roles;

/* In this process. */
struct mc_master_service *cluster_start_master(const struct cluster_master_options *options);
struct mc_store *cluster_open(uint16_t master_port, uint64_t segment_bytes, bool disable_shm);

/* Calls check(ctx) every few milliseconds until it is true; fails the test after `timeout_ms`. */
void cluster_wait_until(bool (*check)(void *ctx), void *ctx, uint64_t timeout_ms, const char *what);

#endif
