/*
 * ops: the store's client protocol, as straight-line blocking code over a port (client/port.h).
 *
 * Everything that decides whether an object is what it should be happens here: the order of a put's
 * steps, what an unanswered RPC means, which replica is read, whether the lease lasted until the
 * last byte. It owns no socket, no thread and no clock, so the simulator runs the very same code on
 * fibers. Thread safe; no lock is held while a port function runs.
 *
 * Rules that the code keeps, each because its opposite once lost or mixed up data somewhere:
 *  - Every put carries an id of its own in the place of the client's (same upper half), so a late
 *    PutEnd or PutRevoke of one put can never end another put of the same key, not even one by the
 *    same client.
 *  - A put is revoked only when no byte of it can arrive any more. When a write ended in doubt, the
 *    space is left to the master's discard and release timeouts, since giving it away would let
 *    late bytes fall into another object.
 *  - A lease is counted from before the request that took it, and is checked after the last byte.
 *    A renewal continues a read only when it was answered before the old lease ended and names the
 *    same replica at the same place.
 *  - An answer that does not arrive is asked for again only where asking twice does no harm.
 */
#ifndef MC_CLIENT_OPS_H
#define MC_CLIENT_OPS_H

#include "base/metrics.h"
#include "client/port.h"
#include "mooncake/store.h"
#include "wire/master_rpc.h"

struct mc_ops_config {
    struct mc_uuid client; /* random per process */
    const char *tenant;    /* copied */
    const char *host_id;   /* copied; "" = none */
    uint32_t timeout_ms;   /* of one operation, and of each chunk of a batch */
    bool checksum;
    struct mc_hot_cache *hot; /* client/hot_cache.h; NULL = none. Outlives the ops */
    uint64_t stripe_bytes;    /* larger objects are striped when the master can; 0 = none are */
    uint64_t round_bytes;     /* a read moves so much between two looks at the lease; 0 = 64 MiB */
};

/* Of one RPC to the master. */
struct mc_ops_rpc_counters {
    struct mc_metric count;
    struct mc_steps latency; /* of those that were answered; microseconds */
};
/* Upstream's buckets of the latency of anything, in microseconds. */
extern const uint64_t mc_ops_latency_bounds[];

struct mc_ops_counters {
    struct mc_ops_rpc_counters rpc[MC_MASTER_RPC_COUNT];
    struct mc_metric rpc_failures, rpc_retries;
    /* Keys; abandoned = ended in doubt, left to the master. */
    struct mc_metric puts, put_failures, puts_abandoned;
    /* Placed on another node after one could not be written to; met a key that somebody else was
     * writing. */
    struct mc_metric puts_replaced, puts_contested;
    struct mc_metric gets, get_failures; /* keys */
    /* Of successful puts (each replica) and gets. */
    struct mc_metric written_bytes, read_bytes;
    struct mc_metric failovers; /* reads that went on to another replica */
    struct mc_metric leases_renewed, leases_expired, checksum_mismatches;
    struct mc_metric views_opened, views_lost, remounts;
    struct mc_metric tasks, task_failures;           /* of the master, carried out */
    struct mc_metric disk_reads, disk_read_failures; /* keys read from the SSD of a node */
    struct mc_metric files_lost; /* of another length or with other bytes, of which it was told */
};

struct mc_ops;
struct mc_ops *mc_ops_create(struct mc_port *port, const struct mc_ops_config *config);
/* Asks the master whether it wants copies of objects in files, and where; before any put. */
void mc_ops_find_files(struct mc_ops *ops);
/* Deletes some of the files that the master wants deleted; true when there may be more. One thread
 * at a time. */
bool mc_ops_tidy_files(struct mc_ops *ops);
void mc_ops_destroy(struct mc_ops *ops); /* no call is running; open views end */
struct mc_ops_counters *mc_ops_counters(struct mc_ops *ops);

/* ---- objects ---- */

/* All of these set each item's status and return MC_OK, or return why the call as a whole is not
 * possible. */
MC_MUST_USE enum mc_status mc_ops_put(struct mc_ops *ops, struct mc_store_item *items, size_t count,
                                      const struct mc_replicate_config *config, bool upsert);
MC_MUST_USE enum mc_status mc_ops_get(struct mc_ops *ops, struct mc_store_item *items,
                                      size_t count);
MC_MUST_USE enum mc_status mc_ops_exist(struct mc_ops *ops, const char *const *keys, size_t count,
                                        bool *exists, enum mc_status *results);
MC_MUST_USE enum mc_status mc_ops_remove(struct mc_ops *ops, const char *const *keys, size_t count,
                                         bool force, enum mc_status *results);
MC_MUST_USE enum mc_status mc_ops_remove_regex(struct mc_ops *ops, const char *pattern, bool force,
                                               uint64_t *removed);
MC_MUST_USE enum mc_status mc_ops_remove_all(struct mc_ops *ops, bool force, uint64_t *removed);
MC_MUST_USE enum mc_status mc_ops_inspect(struct mc_ops *ops, const char *const *keys, size_t count,
                                          struct mc_object_info *infos, enum mc_status *results);
/* `page` begins zeroed; mooncake/store.h. */
MC_MUST_USE enum mc_status mc_ops_list(struct mc_ops *ops, const char *prefix, const char *after,
                                       size_t limit, struct mc_store_keys *page);
MC_MUST_USE enum mc_status mc_ops_size(struct mc_ops *ops, const char *key, uint64_t *length);
MC_MUST_USE enum mc_status mc_ops_replicas(struct mc_ops *ops, const char *key,
                                           struct mc_replica_info *replicas, size_t capacity,
                                           size_t *count);

/* ---- parts of objects: mooncake/store.h says what each does ---- */

MC_MUST_USE enum mc_status mc_ops_get_ranges(struct mc_ops *ops, struct mc_store_range_item *items,
                                             size_t count);

MC_MUST_USE enum mc_status mc_ops_put_session_start(struct mc_ops *ops, const char *const *keys,
                                                    const uint64_t *sizes, size_t count,
                                                    const struct mc_replicate_config *config,
                                                    enum mc_status *results);
MC_MUST_USE enum mc_status
mc_ops_put_session_write(struct mc_ops *ops, struct mc_store_range_item *items, size_t count);
MC_MUST_USE enum mc_status mc_ops_put_session_end(struct mc_ops *ops, const char *const *keys,
                                                  size_t count, enum mc_status *results);
MC_MUST_USE enum mc_status mc_ops_put_session_revoke(struct mc_ops *ops, const char *const *keys,
                                                     size_t count, enum mc_status *results);
/* Revokes the sessions that are still open, asking once. */
void mc_ops_put_session_revoke_all(struct mc_ops *ops);

MC_MUST_USE enum mc_status mc_ops_get_session_start(struct mc_ops *ops, const char *const *keys,
                                                    size_t count, enum mc_status *results);
MC_MUST_USE enum mc_status mc_ops_get_session_read(struct mc_ops *ops,
                                                   struct mc_store_range_item *items, size_t count);
MC_MUST_USE enum mc_status mc_ops_get_session_end(struct mc_ops *ops, const char *const *keys,
                                                  size_t count);

/* ---- copies, moves, single replicas ---- */

MC_MUST_USE enum mc_status mc_ops_copy(struct mc_ops *ops, const char *key,
                                       const char *const *targets, size_t target_count,
                                       struct mc_uuid *task);
MC_MUST_USE enum mc_status mc_ops_move(struct mc_ops *ops, const char *key, const char *source,
                                       const char *target, struct mc_uuid *task);
MC_MUST_USE enum mc_status mc_ops_task(struct mc_ops *ops, struct mc_uuid id,
                                       struct mc_store_task *task);
MC_MUST_USE enum mc_status mc_ops_clear_replicas(struct mc_ops *ops, const char *const *keys,
                                                 size_t count, const char *segment, bool *cleared);

/* ---- views ---- */

struct mc_ops_view {
    const void *data;
    size_t length;
    uint64_t renew_at_ns; /* when its lease wants mc_ops_view_renew */
    struct mc_view_record *record;
};
/* MC_REPLICA_NOT_IN_LOCAL_MEMORY when no replica can be mapped. */
MC_MUST_USE enum mc_status mc_ops_view_open(struct mc_ops *ops, const char *key,
                                            struct mc_ops_view *view);
/* Many at once, and in place alone: what could only be shown as a copy, being striped or on disk,
 * is MC_REPLICA_NOT_IN_LOCAL_MEMORY. For the SSD tier: the counters of views leave them out. */
void mc_ops_views_open(struct mc_ops *ops, const struct mc_str *keys, size_t count,
                       struct mc_ops_view *views, enum mc_status *statuses);
bool mc_ops_view_valid(const struct mc_view_record *record);
void mc_ops_view_release(struct mc_ops *ops, struct mc_view_record *record);
/* Renews the leases that need it; returns when to call again (MC_NO_DEADLINE when there is no
 * view). */
uint64_t mc_ops_view_renew(struct mc_ops *ops);

/* ---- being a node ---- */

/* A segment that this client lends to the cluster, and what became of it. Guarded by the caller:
 * one call at a time. */
struct mc_ops_segment {
    struct mc_uuid id;
    uint64_t base;
    uint64_t size;
    bool confirmed; /* a master said that it is mounted, and no later mount is unanswered */
    bool leaving;   /* it is being unmounted gracefully: never mounted again */
    bool gone;      /* it was leaving, and the master has it no more */
    void *memory;   /* the owner's */
};
#define MC_OPS_SEGMENTS 64
#define MC_OPS_GHOSTS   (2 * MC_OPS_SEGMENTS)
struct mc_ops_node {
    const char *name;        /* of the segments */
    const char *te_endpoint; /* what peers open */
    const char *protocol;
    const char *host_id;
    struct mc_ops_segment segments[MC_OPS_SEGMENTS];
    size_t segment_count; /* 0 = nothing is lent */
    /* Replaces the segment's memory by fresh memory at an address that was not used before, in
     * segment->base, under a new id; the old memory is no longer reachable for peers when this
     * returns. */
    enum mc_status (*fresh_memory)(void *ctx, struct mc_ops_segment *segment);
    void *ctx;
    /* private to ops_node.c */
    uint64_t doubt_until_ns; /* until then an unanswered mount of any kind may be carried out */
    /* mounts that were given up but may still reach the master */
    struct mc_uuid ghosts[MC_OPS_GHOSTS];
    uint64_t ghost_until_ns[MC_OPS_GHOSTS];
};
MC_MUST_USE enum mc_status mc_ops_ready(struct mc_ops *ops); /* the master serves */
/* `segment` is one of the node's, here and below. */
MC_MUST_USE enum mc_status mc_ops_mount(struct mc_ops *ops, struct mc_ops_node *node,
                                        struct mc_ops_segment *segment);
/* With a grace the segment is `leaving` afterwards: readable until the master unmounts it, which a
 * heartbeat finds out. */
MC_MUST_USE enum mc_status mc_ops_unmount(struct mc_ops *ops, struct mc_ops_segment *segment,
                                          uint64_t grace_ms);
/* Fetches the tasks that the master has for this client and carries them out, until there are no
 * more or stop(ctx) says so; those that were fetched and not begun end by their time at the master.
 * *done = how many were begun, whatever is returned. For one thread. */
MC_MUST_USE enum mc_status mc_ops_run_tasks(struct mc_ops *ops, bool (*stop)(void *ctx), void *ctx,
                                            size_t *done);
/* One ping, and what follows from its answer. MC_OK when the master answered and knows
 * the segments. */
MC_MUST_USE enum mc_status mc_ops_heartbeat(struct mc_ops *ops, struct mc_ops_node *node);

#endif
