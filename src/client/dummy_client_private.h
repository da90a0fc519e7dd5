/* What the files of dummy_client share. */
#ifndef MC_CLIENT_DUMMY_CLIENT_PRIVATE_H
#define MC_CLIENT_DUMMY_CLIENT_PRIVATE_H

#include <pthread.h>

#include "client/blocks.h"
#include "client/dummies.h"
#include "client/dummy_client.h"
#include "rpc/rpc.h"
#include "wire/client_rpc.h"

struct mc_dummy_piece { /* of shared memory that the node knows, or shall know again */
    char *memory;
    uint64_t size;
    int fd;
    bool local; /* the node's to allocate in */
};

struct mc_dummy_client {
    struct mc_rpc_client *rpc;
    struct mc_tls_peers tls; /* of rpc */
    struct mc_uuid id;
    char socket[64];
    uint32_t timeout_ms;

    pthread_mutex_t lock; /* guards what follows */
    struct mc_dummy_piece pieces[MC_DUMMY_MAPPINGS_MAX];
    size_t piece_count;
    struct mc_dummy_piece stage, local; /* copies; size 0 = none */
    struct mc_blocks staged;
    uint64_t *lost; /* offsets of staged blocks that a call in doubt may still use */
    size_t lost_count, lost_capacity;
    int node_pidfd; /* of the node's process at the last registration; -1 unknown */

    pthread_mutex_t registering; /* one registration at a time */
    pthread_t thread;
    bool thread_runs, stopping;
    pthread_cond_t wake;
    _Atomic bool healthy;
    struct {
        struct mc_metric rpcs, failures, reconnects, staged_bytes, lost_blocks;
    } metrics;
};

/* One RPC; `arena` and the buffers hold what the answer points to until mc_dummy_rpc_end. */
struct mc_dummy_rpc {
    struct mc_arena arena;
    struct mc_buf request, reply;
};
MC_MUST_USE enum mc_status mc_dummy_rpc(struct mc_dummy_client *d, struct mc_dummy_rpc *r,
                                        enum mc_client_rpc rpc, const void *args, void *ret);
void mc_dummy_rpc_end(struct mc_dummy_rpc *r);

/* The code of an answer as a status. */
enum mc_status mc_dummy_status(int32_t code);

/* NULL when there is no room. */
char *mc_dummy_stage(struct mc_dummy_client *d, uint64_t size);
/* `answered`: the node is done with it. */
void mc_dummy_unstage(struct mc_dummy_client *d, char *memory, bool answered);

#endif
