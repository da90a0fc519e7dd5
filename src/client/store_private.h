/* What the files of the store share: the store itself. Public face: mooncake/store.h. */
#ifndef MC_CLIENT_STORE_PRIVATE_H
#define MC_CLIENT_STORE_PRIVATE_H

#include <pthread.h>

#include "base/metrics.h"
#include "client/dummy_client.h"
#include "client/ops.h"
#include "client/port_real.h"
#include "io/io.h"
#include "io/tls.h"
#include "mooncake/store.h"
#include "rpc/rpc.h"

#define STORE_TOMBSTONES (2 * MC_OPS_SEGMENTS)

/* Calls of the application that move bytes, and as what upstream times them. */
enum mc_store_op {
    MC_STORE_PUT,
    MC_STORE_UPSERT,
    MC_STORE_PUT_BATCH,
    MC_STORE_UPSERT_BATCH,
    MC_STORE_GET,
    MC_STORE_GET_BATCH,
    MC_STORE_GET_RANGES,
    MC_STORE_VIEW,
    MC_STORE_OPS
};
enum mc_store_transfer {
    MC_TRANSFER_PUT,
    MC_TRANSFER_GET,
    MC_TRANSFER_BATCH_PUT,
    MC_TRANSFER_BATCH_GET,
    MC_TRANSFERS
};
struct mc_store_op_counters { /* of calls that moved something */
    struct mc_metric count, bytes;
    struct mc_steps latency; /* microseconds */
};
struct mc_store_counters {
    struct mc_store_op_counters ops[MC_STORE_OPS];
    struct mc_steps transfers[MC_TRANSFERS];
    struct mc_histogram exist;
};

struct mc_store_offload;

struct mc_store {
    struct mc_dummy_client *dummy; /* a node does the work: nothing else of this is made but
                                      metrics, counters and name */
    struct mc_rpc_client *rpc;
    struct mc_tls *tls;       /* of rpc; NULL = plain */
    struct mc_engine *engine; /* NULL with protocol "rpc_only" */
    bool owns_engine;
    struct mc_real_port *port;
    struct mc_ops *ops;
    struct mc_hot_cache *hot; /* NULL = none */
    struct mc_metrics *metrics;
    char *labels; /* of series that are upstream's */
    struct mc_store_counters counters;

    char name[MC_HOST_MAX + 8];        /* of this client, and of its segment */
    char te_endpoint[MC_HOST_MAX + 8]; /* what peers open to reach the segment */
    char host_id[MC_HOST_MAX];
    char protocol[16];
    int name_fd; /* holds the port in `name`, so that no other process draws it; -1 when it was
                    given, or when the engine listens there */

    /* One heartbeat, mount or unmount at a time, its requests to the master included; guards what
     * follows. */
    pthread_mutex_t segments_lock;
    struct mc_ops_node node;
    struct mc_rng rng;
    struct {
        void *addr;
        size_t length;
    } tombstones[STORE_TOMBSTONES]; /* addresses of replaced memory, kept from being used again */
    unsigned tombstone_next;

    /* The heartbeat's. */
    unsigned failed_pings;
    pthread_t heartbeat;
    bool heartbeat_runs;
    pthread_t worker; /* carries out the master's tasks */
    bool worker_runs;
    pthread_mutex_t lock;       /* guards what follows */
    pthread_cond_t wake;        /* the heartbeat */
    pthread_cond_t worker_wake; /* only for the end */
    bool stopping;
    uint64_t wake_at_ns;  /* when the heartbeat means to wake up; 0 = it is awake */
    uint64_t view_due_ns; /* of views opened since it last looked */

    struct mc_store_offload *offload; /* NULL = no SSD tier */

    _Atomic bool healthy; /* the last ping was answered */
};

/* ---- store_metrics.c ---- */

void mc_store_metrics_create(struct mc_store *store, const struct mc_store_options *options);
void mc_store_metrics_of_ops(struct mc_store *store); /* once there are ops */
void mc_store_metrics_destroy(struct mc_store *store);
/* A call that moved `bytes` ends now. */
void mc_store_count(struct mc_store *store, enum mc_store_op op, uint64_t begin_ns, uint64_t bytes);

/* ---- store_report.c ---- */

struct mc_store_report {
    uint64_t interval_ns, last_ns;
    uint64_t due_ns; /* MC_NO_DEADLINE = nobody asked for reports */
    bool bandwidth;
    int64_t read, written; /* bytes, at the last one */
};
void mc_store_report_init(struct mc_store_report *r);
void mc_store_report(struct mc_store *store, struct mc_store_report *r, uint64_t now_ns);

/* ---- store_segments.c ---- */

/* mc_ops_node.fresh_memory; ctx is the store. */
enum mc_status mc_store_segment_fresh_memory(void *ctx, struct mc_ops_segment *segment);
/* Lends `bytes`: one segment, or several of about the same size where a transport cannot register
 * so much at once. */
MC_MUST_USE enum mc_status mc_store_segments_lend(struct mc_store *store, uint64_t bytes);
/* One heartbeat, and frees the memory of segments that have left. */
MC_MUST_USE enum mc_status mc_store_segments_beat(struct mc_store *store);
void mc_store_segments_unmount_all(struct mc_store *store);
void mc_store_segments_destroy(struct mc_store *store); /* frees their memory */

/* ---- store_tasks.c ---- */

MC_MUST_USE enum mc_status mc_store_worker_start(struct mc_store *store);
/* After store->stopping was set; waits for the task that it is at. */
void mc_store_worker_join(struct mc_store *store);

/* ---- store_offload.c ---- */

/* Opens the directory, serves reads of it to others, tells the master, takes its tasks. */
MC_MUST_USE enum mc_status mc_store_offload_start(struct mc_store *store,
                                                  const struct mc_store_options *options);
void mc_store_offload_stop(struct mc_store *store);

/* A view was opened whose lease wants to be renewed at `due_ns`: earlier than the heartbeat had
 * planned? */
void mc_store_view_due(struct mc_store *store, uint64_t due_ns);

#endif
