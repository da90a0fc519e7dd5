/*
 * offload: what a node with an SSD says and does about it, as blocking code over mc_ops and a tier.
 *
 * What the master wants on disk is read (it lies in this node's memory), written to the tier, and
 * reported when it is durable; other nodes' reads of it are served. No socket, no thread and no
 * clock of its own: a store runs mc_offload_beat on a thread and mc_offload_serve behind an RPC
 * server (store_offload.c), the simulator runs both on fibers over a disk of its own.
 */
#ifndef MC_CLIENT_OFFLOAD_H
#define MC_CLIENT_OFFLOAD_H

#include "client/ops.h"
#include "rpc/rpc.h"
#include "tier/tier.h"

/*
 * Memory for objects that were read from disk for another node, until it has fetched them. One
 * region that peers can reach; pieces of it are lent for a time. Thread safe.
 */
struct mc_offload_buffers;
/* `memory` is aligned for the tier, and the caller's. Batches are numbered from `first` on: late
 * words about one that an earlier process lent must not end one of this. */
struct mc_offload_buffers *mc_offload_buffers_create(void *memory, uint64_t bytes, uint64_t ttl_ms,
                                                     uint64_t first, const struct mc_clock *clock);
void mc_offload_buffers_destroy(struct mc_offload_buffers *buffers); /* NULL is allowed */
/* Aligned for the tier. MC_BUFFER_OVERFLOW: too much is lent just now. */
MC_MUST_USE enum mc_status mc_offload_buffers_take(struct mc_offload_buffers *buffers,
                                                   uint64_t bytes, uint64_t *batch, char **memory);
/* It is filled: its time to live begins. */
void mc_offload_buffers_lend(struct mc_offload_buffers *buffers, uint64_t batch);
void mc_offload_buffers_drop(struct mc_offload_buffers *buffers, uint64_t batch); /* not lent */
/* Of one that is lent. False when there is no such batch (any more). */
bool mc_offload_buffers_release(struct mc_offload_buffers *buffers, uint64_t batch);

struct mc_offload_config { /* everything outlives the offload */
    struct mc_ops *ops;    /* of this node, and of the tenant whose objects it puts itself */
    const char *te_endpoint;
    void *memory; /* lent to readers; they reach it under te_endpoint */
    uint64_t memory_bytes;
    uint64_t gc_ttl_ms;      /* how long they may keep it */
    const char *segment;     /* where objects that come back go, if there is room; NULL = none */
    bool (*stop)(void *ctx); /* asked between groups of objects */
    void *stop_ctx;
    struct mc_tier_config tier; /* all but `lost` */
};
struct mc_offload;
/* Opens the tier: its errors. */
MC_MUST_USE enum mc_status mc_offload_open(const struct mc_offload_config *config,
                                           struct mc_offload **out);
void mc_offload_stats(struct mc_offload *off, struct mc_tier_stats *out);
void mc_offload_close(struct mc_offload *off); /* NULL is allowed */

/* Tells the master that there is a disk, and all that it holds. `endpoint`: where others reach
 * mc_offload_serve; copied. */
MC_MUST_USE enum mc_status mc_offload_mount(struct mc_offload *off, const char *endpoint);
/* One heartbeat and its tasks; mounts again when the master does not know the disk. *busy = there
 * may be more. For one thread, that of mount. */
MC_MUST_USE enum mc_status mc_offload_beat(struct mc_offload *off, bool *busy);
void mc_offload_goodbye(struct mc_offload *off); /* the disk goes; asks once */

/* offload_promote.c: asks what is to come back to memory, and does it; how many there were.
 * `plain`: the master has only upstream's words. */
size_t mc_offload_promote(struct mc_ops *ops, struct mc_tier *tier, struct mc_str segment,
                          bool plain);
struct mc_tier *mc_offload_tier(struct mc_offload *off); /* for looking inside */

/* An mc_rpc_handler; `offload` is a struct mc_offload. For any number of threads. */
void mc_offload_serve(void *offload, const struct mc_rpc_request *request,
                      struct mc_rpc_reply *reply);

#endif
