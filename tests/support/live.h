/*
 * The installed programs, for C tests that talk to them as a stranger would: a master or a node
 * started from the build folder on ports that the kernel chose, what /proc says about it, and typed
 * RPCs.
 */
#ifndef MC_TESTS_LIVE_H
#define MC_TESTS_LIVE_H

#include <sys/types.h>

#include "rpc/rpc.h"
#include "support/support.h"
#include "wire/master_rpc.h"

struct live {
    pid_t pid;
    char log[40]; /* file with its standard output and error */
    char rpc_address[64];
    uint16_t rpc, admin, metadata; /* of a master */
    char name[300];                /* of a node: its segment */
};

/* `flags` is NULL-terminated, after those that make every port of the master ephemeral on
 * 127.0.0.1 and let it forget a client that does not ping only after a minute. `open_files` 0 = as
 * in this process. Waits until it is ready; fails the test when it ends instead. */
void live_master(struct live *m, const char *const *flags, unsigned open_files);
/* `mooncake node` with `segment_bytes` ("64MB"). */
void live_node(struct live *n, const struct live *master, const char *segment_bytes,
               const char *const *flags, unsigned open_files);
/* The same in two steps, for several at once. (Not from a thread that ends: its children end with
 * it.) */
void live_node_begin(struct live *n, const struct live *master, const char *segment_bytes,
                     const char *const *flags, unsigned open_files);
void live_node_ready(struct live *n);
/* Sends the signal (0 = none) and waits for the end; the wait status. */
int live_end(struct live *p, int signal_number);
bool live_running(struct live *p);
bool live_log_says(const struct live *p, const char *text);

/* ---- what /proc says (live_proc.c) ---- */

uint64_t live_rss_bytes(const struct live *p);
uint64_t live_anonymous_bytes(const struct live *p); /* without the memory that it shares */
/* Waits until all the memory that it lends has its pages: before that, RSS grows by itself. */
void live_wait_filled(const struct live *p);
/* Without those that end by themselves when memory has its pages, and those that run jobs, of which
 * there are more when jobs overlapped. */
unsigned live_threads(const struct live *p);
void live_assert_threads(const struct live *p, unsigned expected);
/* Descriptors. A pool of connections opens one more whenever two threads ask in the same moment:
 * the connections of `pool_port`, at either end, are left out (0 = none). */
unsigned live_open_files(const struct live *p, uint16_t pool_port);
unsigned live_connections(const struct live *p, uint16_t port);
/* Waits until no more than `most` are open; shows all of them and fails when that does not come. */
void live_wait_files(const struct live *p, uint16_t pool_port, unsigned most);
uint64_t live_cpu_ms(const struct live *p);
/* Buffers of dummy clients that it has mapped; and waits until they are so many. */
size_t live_guest_mappings(const struct live *p);
void live_wait_guest_mappings(const struct live *p, size_t count);

/* A connected TCP socket, blocking. */
int live_connect(uint16_t port);
/* Reads until the end or an error; how many bytes came. False when it lasted more than
 * `timeout_ms`. */
bool live_read_to_end(int fd, size_t *bytes, uint64_t timeout_ms);

struct mc_rpc_client *live_client(const struct live *master);
/* One RPC with arguments and answer of the newest schema; `arena` owns what the answer points to
 * together with `reply`, which the caller frees. */
MC_MUST_USE enum mc_status live_call(struct mc_rpc_client *client, enum mc_master_rpc rpc,
                                     const void *args, void *ret, struct mc_arena *arena,
                                     struct mc_buf *reply);
#endif
