/*
 * The rdma transport: one-sided READ and WRITE over connected queue pairs. docs/transport-rdma.md
 * has the picture. Which file has what:
 *
 *   rdma.c           start, stop, the table of functions, posting, cancelling
 *   rdma_config.c    settings; choice of GID and MTU
 *   rdma_provider.h  what is needed of verbs; rdma_load.c finds it, rdma_verbs.c (a module) is it
 *   rdma_context.c   a NIC port: its completions, its events, its thread
 *   rdma_endpoint.c  queue pairs to one NIC of one peer: queue, post, complete, fail
 *   rdma_connect.c   how endpoints come up and go: handshakes, room, eviction
 *   rdma_accept.c    what peers' requests are answered
 *   rdma_sweep.c     all endpoints of a NIC at once: failing, cancelling, the end
 *   rdma_pool.c      SIEVE
 *   rdma_memory.c    registered ranges and their keys; rdma_region.c: one region with one NIC
 *   rdma_topology.c  where NICs are: distances, priority matrix, filters
 *   rdma_peer.c      an opened segment's NICs, and which of them a slice goes to
 *
 * Locks, in the order in which they may be taken: context, endpoint; those of memory and peers are
 * taken alone. None is held across a handshake or mc_slice_done.
 */
#ifndef MC_TE_TRANSPORT_RDMA_H
#define MC_TE_TRANSPORT_RDMA_H

#include <pthread.h>
#include <stdatomic.h>

#include "meta/meta.h"
#include "te/te.h"
#include "te/transport/rdma_pool.h"
#include "te/transport/rdma_provider.h"
#include "te/worker.h"
#include "wire/rdma_setup.h"
#include "wire/segment_desc.h"

struct rdma_transport;
struct rdma_context;

#define RDMA_CONTEXTS_MAX MC_RAILS_MAX
#define RDMA_POLL_BATCH   64
#define RDMA_PENALTIES    256

/* ---- settings (rdma_config.c) ---- */

struct rdma_config {
    uint32_t qps;           /* a side of an endpoint: MC_NUM_QP_PER_EP */
    uint32_t endpoints_max; /* with queue pairs, a NIC: MC_MAX_EP_PER_CTX */
    uint32_t max_wr;        /* of a queue pair: MC_MAX_WR */
    uint32_t inline_bytes;  /* MC_MAX_INLINE */
    uint32_t cq_depth;      /* MC_MAX_CQE_PER_CTX */
    uint32_t mtu;           /* MC_MTU */
    int gid_index;          /* MC_GID_INDEX; -1 = choose */
    uint8_t port;           /* MC_IB_PORT */
    uint16_t pkey_index;
    uint8_t traffic_class, service_level;
    uint64_t max_region; /* MC_MAX_MR_SIZE */
    bool relaxed;        /* MC_IB_PCI_RELAXED_ORDERING */
    bool gpu_direct;     /* unless MC_DISABLE_GPU_DIRECT_RDMA: else device memory is staged */
    uint64_t pause_ns;   /* the longest that a failed path rests: MC_RDMA_RAIL_PAUSE_SECONDS */
};
void rdma_config_read(struct rdma_config *config);

/* The GID that peers are told, of a port's table: `wanted` >= 0 is taken as it is when it exists.
 * Else on Ethernet RoCEv2 before v1, IPv4-mapped before other global before link-local; on
 * InfiniBand the first. False when there is none. */
bool rdma_choose_gid(const struct rdma_gid *gids, size_t count, bool ethernet, int wanted,
                     struct rdma_gid *out);
/* The largest power of two of 256..4096 that exceeds none of the three; 0 = not known. */
uint32_t rdma_choose_mtu(uint32_t port, uint32_t configured, uint32_t peer);
/* Whether Soft-RoCE of a kernel (uname -r) can be trusted. That of 6.1 was seen to end a read well
 * of which no byte had come (tests/vm/verbs_check.c shows it without the engine), and 6.12 never.
 */
bool rdma_soft_roce_is_sound(const char *release);

/* ---- places (rdma_topology.c) ---- */

/* Whether a NIC is wanted: MC_TE_FILTERS (MC_MS_FILTERS), MC_TE_FILTERS_EXCLUDE. */
bool rdma_topology_wants(const char *nic);
/* The contexts are open. */
void rdma_topology_open(struct rdma_transport *t);
/* From a NIC to memory at a location, as mc_transport_ops.rail_distance has it. */
uint32_t rdma_topology_distance(const struct rdma_context *context, const char *location);
/* The priority matrix for peers, a new jansson object. */
void *rdma_topology_json(const struct rdma_transport *t);

/* ---- the provider (rdma_load.c) ---- */

/* Whether the kernel knows an RDMA device: most machines have none, and need not load anything. */
bool rdma_device_exists(void);
/* Of the module transport-rdma.so, loaded once a process; NULL when there is none. */
const struct rdma_provider *rdma_provider_load(void);

/* ---- endpoints (rdma_endpoint.c) ---- */

/* WAITING (for room) -> OPENING (has or makes queue pairs, a handshake is under way) -> UP ->
 * DRAINING (evicted or closed by the peer: what was posted goes on, nothing new) -> gone; any ->
 * FAILED (queue pairs in error: all comes back flushed) -> gone. An endpoint never comes up twice:
 * whoever connects again gets a new one, with new queue pairs and a new generation, so that nothing
 * late can mean it. */
enum rdma_state {
    RDMA_WAITING,
    RDMA_OPENING,
    RDMA_UP,
    RDMA_DRAINING,
    RDMA_FAILED,
};

struct rdma_queue {
    struct rdma_qp *qp;
    uint32_t number;
    uint32_t room; /* work requests that fit */
};

struct rdma_endpoint {
    struct rdma_context *context;
    struct rdma_pool_node node; /* context lock; inside = new slices may come */
    struct mc_list link;        /* context lock; in `waiting` or `leaving` */
    bool holds_room;            /* context lock: counted in `live` */
    _Atomic uint32_t refs;
    char peer_path[MC_RDMA_PATH_MAX];
    uint64_t generation;
    char host[256]; /* of the peer's handshake; "" = not known */
    uint16_t rpc_port;
    struct mc_job job;
    bool job_queued, job_again; /* lock */

    pthread_mutex_t lock;
    enum rdma_state state;
    struct mc_uuid peer_id;   /* {0,0} = upstream's or not known yet */
    uint64_t peer_generation; /* of its endpoint; 0 = not known */
    struct rdma_queue *queues;
    uint32_t queue_count; /* made */
    uint32_t in_use;      /* connected: the smaller of both sides' */
    uint32_t next_queue;
    uint32_t peer_qps[MC_RDMA_QPS_MAX];
    uint32_t inline_bytes;
    struct mc_list queued;  /* slices not (fully) posted; only the first may have pieces posted */
    struct mc_list posted;  /* slices that wait for completions */
    uint32_t outstanding;   /* work requests posted and not completed */
    struct mc_list starved; /* context's starved_lock: waits for room in the completion queue */
    struct mc_rdma_setup *request; /* of a peer, to be answered when there are queue pairs */
    struct mc_handshake_call *call;
    struct mc_handshake_call *close_call; /* answered when drained */
    bool peer_closed;                     /* the peer knows that this ends, or is not there */
    bool finishing;                       /* its job takes it apart */
};

/* In slice->transport_data while the slice is the transport's. */
struct rdma_slice {
    struct rdma_endpoint *endpoint; /* counted */
    uint64_t posted;                /* bytes */
    uint32_t pieces;                /* work requests in flight */
    int8_t status;                  /* enum rdma_wc_status of the worst */
    bool split;                     /* keys change within the slice */
    bool no_lkey;                   /* local memory is not registered: inline only */
    bool hung;                      /* given up: flushed, it has failed by time */
    uint32_t lkey, rkey;
};
/* As status of a slice that was not posted: the endpoint goes, the slice takes another. */
#define RDMA_WC_AGAIN (RDMA_WC_OTHER + 1)
static inline struct rdma_slice *rdma_slice_of(struct mc_slice_op *slice) {
    _Static_assert(sizeof(struct rdma_slice) <= sizeof(slice->transport_data), "fits");
    return (struct rdma_slice *)slice->transport_data;
}

/* Slices that ended, to be told outside of all locks: [transport_link], outcome in rdma_slice. */
struct rdma_ended {
    struct mc_list slices;
};

struct rdma_endpoint *rdma_endpoint_new(struct rdma_context *context, const char *peer_path,
                                        uint64_t generation);
void rdma_endpoint_get(struct rdma_endpoint *ep);
void rdma_endpoint_put(struct rdma_endpoint *ep);
/* Makes the queue pairs; state OPENING, not locked. */
MC_MUST_USE enum mc_status rdma_endpoint_make_queues(struct rdma_endpoint *ep);
/* Connects them to the peer's; UP afterwards. */
MC_MUST_USE enum mc_status rdma_endpoint_connect_locked(struct rdma_endpoint *ep,
                                                        const struct mc_rdma_setup *peer);
/* Queues the slices ([transport_link] of `list`, taken over); false when no more may come. */
bool rdma_endpoint_submit(struct rdma_endpoint *ep, struct mc_list *list);
/* Posts what fits. */
void rdma_endpoint_pump_locked(struct rdma_endpoint *ep, struct rdma_ended *ended);
/* Queue pairs to the error state; slices that are not posted end. */
void rdma_endpoint_fail_locked(struct rdma_endpoint *ep, struct rdma_ended *ended);
void rdma_endpoint_fail(struct rdma_endpoint *ep);
/* A completion. */
void rdma_endpoint_complete_locked(struct rdma_endpoint *ep, const struct rdma_wc *wc,
                                   struct rdma_ended *ended);
/* DRAINING or FAILED with nothing in flight: to be finished by its job. */
bool rdma_endpoint_is_over_locked(const struct rdma_endpoint *ep);
/* Ends slices that are not posted; fails the endpoint when one of the task is. */
void rdma_endpoint_cancel(struct rdma_endpoint *ep, void *task);
/* The same, because they hang. */
void rdma_endpoint_give_up(struct rdma_endpoint *ep, void *task);
bool rdma_endpoint_has_task(struct rdma_endpoint *ep, void *task);
/* UP -> DRAINING: what is not posted takes another endpoint. */
void rdma_endpoint_drain_locked(struct rdma_endpoint *ep, struct rdma_ended *ended);
/* Frees queue pairs; nothing is in flight. */
void rdma_endpoint_destroy_queues(struct rdma_endpoint *ep);
void rdma_ended_init(struct rdma_ended *ended);
/* Tells the engine of each. */
void rdma_ended_tell(struct rdma_ended *ended);

/* ---- contexts (rdma_context.c) ---- */

struct rdma_penalty { /* a path that failed rests; found by its hash, newest wins */
    _Atomic uint64_t hash;
    _Atomic uint64_t until_ns;
    _Atomic uint32_t failures;
};

struct rdma_context_metrics {
    struct mc_metric endpoints, opened, evicted, failed, denied;
    struct mc_metric port_down, wr_errors;
};

struct rdma_context {
    struct rdma_transport *transport;
    unsigned index; /* = rail */
    char name[RDMA_NAME_MAX];
    struct rdma_device *device;
    struct rdma_port_info info; /* at the start */
    struct rdma_gid gid;
    bool global; /* paths carry GIDs */
    uint32_t mtu;
    uint64_t max_message;
    _Atomic bool up;

    struct rdma_cq *cq;
    _Atomic int32_t credits; /* room in the completion queue */
    uint32_t cq_depth;
    _Atomic uint32_t drivers; /* waiters that poll */
    _Atomic bool armed;       /* the thread is woken by completions */
    pthread_t thread;
    bool thread_started;
    int wake_fd;
    _Atomic bool stop;
    pthread_mutex_t starved_lock;
    struct mc_list starved; /* counted */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* an endpoint has gone */
    struct rdma_pool pool;
    struct mc_list waiting; /* endpoints without room, oldest first */
    struct mc_list leaving; /* out of the pool, not gone yet */
    size_t live;            /* endpoints with queue pairs */
    size_t endpoints;       /* all */
    struct rdma_penalty penalties[RDMA_PENALTIES];
    struct rdma_context_metrics metrics;
};

MC_MUST_USE enum mc_status rdma_context_open(struct rdma_transport *t, const char *name,
                                             unsigned index, struct rdma_context **out);
/* Starts its thread, which looks at completions and events. */
MC_MUST_USE enum mc_status rdma_context_start(struct rdma_context *context);
/* No endpoint is left. */
void rdma_context_close(struct rdma_context *context);
/* Handles what has completed; returns how many. From any thread. */
int rdma_context_poll(struct rdma_context *context);
/* A waiter polls between enter and leave. */
void rdma_context_enter(struct rdma_context *context);
void rdma_context_leave(struct rdma_context *context);
bool rdma_context_is_busy(const struct rdma_context *context); /* work requests in flight */
/* The endpoint waits for room in the completion queue. */
void rdma_context_starve(struct rdma_context *context, struct rdma_endpoint *ep);

void rdma_penalise(struct rdma_context *context, uint64_t path_hash);
void rdma_pardon(struct rdma_context *context, uint64_t path_hash);
bool rdma_penalised(const struct rdma_context *context, uint64_t path_hash, uint64_t now_ns);

/* ---- connecting (rdma_connect.c) ---- */

static inline struct rdma_endpoint *rdma_endpoint_of(const struct rdma_pool_node *node) {
    return mc_container_of((struct rdma_pool_node *)(uintptr_t)node, struct rdma_endpoint, node);
}
enum rdma_state rdma_endpoint_state(struct rdma_endpoint *ep);
/* What an endpoint says of itself; its lock is held, or nobody else has it any more. */
void rdma_setup_fill_locked(const struct rdma_endpoint *ep, struct mc_rdma_setup *out);
void rdma_setup_answer(struct mc_handshake_call *call, const struct mc_rdma_setup *setup);
void rdma_setup_reject(struct rdma_transport *t, const struct mc_rdma_setup *request,
                       struct mc_handshake_call *call, const char *why);
/* Context's lock: the endpoint that new slices and requests mean (one that ends is taken out); a
 * new one, waiting for room, counted once for the house; out of the pool, into `leaving`. */
struct rdma_endpoint *rdma_endpoint_find_locked(struct rdma_context *context, const char *path,
                                                uint64_t hash);
struct rdma_endpoint *rdma_endpoint_add_locked(struct rdma_context *context, const char *path,
                                               uint64_t hash);
void rdma_endpoint_detach_locked(struct rdma_endpoint *ep);
/* Gives room to endpoints that wait for it, as long as there is any, or somebody to evict. */
void rdma_context_admit(struct rdma_context *context);
/* Takes nothing new, ends what is posted. */
void rdma_endpoint_drain(struct rdma_endpoint *ep);
/* Answers a peer's request with this endpoint, which has queue pairs. */
void rdma_endpoint_serve(struct rdma_endpoint *ep, const struct mc_rdma_setup *request,
                         struct mc_handshake_call *call);
struct rdma_peer;
/* The endpoint to the peer's NIC, made when there is none; counted for the caller. */
struct rdma_endpoint *rdma_endpoint_to(struct rdma_context *context, const struct rdma_peer *peer,
                                       unsigned remote);
/* A peer's request; answers the call, now or later. Not on a reactor (rdma_accept.c). */
void rdma_accept(struct rdma_transport *t, const struct mc_rdma_setup *request,
                 struct mc_handshake_call *call);
/* Queues the endpoint's job: open it, or finish it. */
void rdma_endpoint_kick(struct rdma_endpoint *ep);
/* After a change of state, no lock held: a failed endpoint leaves the pool, one that is over has
 * its job queued. */
void rdma_endpoint_settle(struct rdma_endpoint *ep);

/* ---- many at once (rdma_sweep.c) ---- */

/* Fails every endpoint that `which` names and takes it out of the pool. */
void rdma_context_fail(struct rdma_context *context,
                       bool (*which)(const struct rdma_endpoint *ep, const void *arg),
                       const void *arg);
/* Fails all and waits until they have gone. */
void rdma_context_drain(struct rdma_context *context);

/* Ends the task's slices: nothing of them touches local memory afterwards. */
void rdma_context_cancel(struct rdma_context *context, void *task);
/* Those that are on the NIC now hang: they come back as MC_ERR_TIMEOUT, some of them later. */
void rdma_context_give_up(struct rdma_context *context, void *task);

/* ---- memory (rdma_memory.c) ---- */

struct rdma_range; /* a registered range: one or several regions a NIC */
struct rdma_memory {
    struct rdma_transport *transport;
    pthread_rwlock_t lock;
    struct rdma_range **ranges; /* sorted, disjoint */
    size_t count, cap;
};
void rdma_memory_init(struct rdma_memory *memory, struct rdma_transport *t);
void rdma_memory_destroy(struct rdma_memory *memory);
void rdma_memory_add(struct rdma_memory *memory, const struct mc_memory *m);
void rdma_memory_remove(struct rdma_memory *memory, const struct mc_memory *m);
/* The local key of `addr` on a NIC, and how many bytes from there it holds for; false when the
 * address is not registered. */
bool rdma_memory_key(struct rdma_memory *memory, uint64_t addr, unsigned context, uint32_t *lkey,
                     uint64_t *length);
/* How far a NIC is from the memory; 0 when that is not registered. */
uint32_t rdma_memory_distance(struct rdma_memory *memory, uint64_t addr, unsigned context);
/* Whether the whole range is registered. */
bool rdma_memory_covers(struct rdma_memory *memory, uint64_t addr, uint64_t length);
/* One region with one NIC (rdma_region.c); 0 or an errno value. */
int rdma_region_make(struct rdma_context *context, const struct mc_memory *memory, uint64_t addr,
                     uint64_t length, unsigned access, struct rdma_region **out, uint32_t *lkey,
                     uint32_t *rkey);
/* Adds keys to the buffers of a descriptor. */
void rdma_memory_describe(struct rdma_memory *memory, void *json_object);

/* ---- peers (rdma_peer.c) ---- */

struct rdma_remote { /* a NIC of the peer */
    char path[MC_RDMA_PATH_MAX];
    uint64_t hash;
};
struct rdma_peer {
    _Atomic uint32_t refs;
    struct mc_peer_desc *desc; /* counted */
    unsigned remote_count;
    struct rdma_remote *remotes;
    uint8_t order[RDMA_CONTEXTS_MAX][MC_RDMA_DEVICES_MAX]; /* remotes, best first, by context */
    uint64_t *preferred; /* bit sets of remotes, by buffer of the descriptor */
    uint64_t *available;
};
/* NULL when the descriptor names no NICs. */
struct rdma_peer *rdma_peer_new(const struct rdma_transport *t, struct mc_peer_desc *desc);
void rdma_peer_put(struct rdma_peer *peer); /* NULL is allowed */
/* Of the segment, counted; NULL when it has none. */
struct rdma_peer *rdma_peer_of(struct rdma_transport *t, struct mc_segment *segment);
/* The peer's NIC for bytes at `addr`, from this context. */
unsigned rdma_peer_choose(const struct rdma_peer *peer, const struct rdma_context *context,
                          uint64_t addr);
/* The remote key, and how many bytes from addr it holds for. */
bool rdma_peer_key(const struct rdma_peer *peer, uint64_t addr, unsigned remote, uint32_t *rkey,
                   uint64_t *length);

/* ---- the transport ---- */

/* A slice whose endpoint goes before it was posted takes another. */
void rdma_repost(struct rdma_transport *t, struct mc_slice_op *slice);

struct rdma_transport {
    struct mc_transport base;
    const struct rdma_provider *provider;
    struct rdma_config config;
    struct rdma_context *contexts[RDMA_CONTEXTS_MAX];
    unsigned context_count;
    const struct mc_topo *topo;          /* the engine's; NULL when it knows none of our NICs */
    const struct mc_topo_matrix *matrix; /* likewise */
    struct rdma_memory memory;
    /* Two sets of threads, so that two engines that wait for each other's answers both still
     * answer: those that wait for peers, and those that serve them and wait for nobody. */
    struct mc_workers *callers;
    struct mc_workers *servants;
    pthread_mutex_t peers_lock; /* segments' transport_state */
    _Atomic uint64_t generation;
    _Atomic uint32_t requests; /* of peers, queued or being answered */
    _Atomic bool closing;
    _Atomic bool rails_told;
};
static inline struct rdma_transport *rdma_of(struct mc_transport *t) {
    return mc_container_of(t, struct rdma_transport, base);
}
/* Over another provider; tests. */
MC_MUST_USE enum mc_status rdma_start_with(struct mc_engine *engine, unsigned index,
                                           const struct rdma_provider *provider,
                                           struct mc_transport **out);
extern const struct mc_transport_ops mc_transport_rdma_ops;

#endif
