/*
 * What the engine's own files share. Transports see te.h only.
 *
 * Locks, in the order in which they may be taken: table (names and slots of segments), batches
 * (list of live batches), segment (descriptor and waiting slices), memory (read-write), descriptor
 * (own JSON). None is held across I/O but `publish`, which orders updates of the metadata service.
 */
#ifndef MC_TE_INTERNAL_H
#define MC_TE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "io/io.h"
#include "io/tls.h"
#include "meta/meta.h"
#include "te/policy.h"
#include "te/qos_host.h"
#include "te/spray.h"
#include "te/pages.h"
#include "te/te.h"
#include "te/worker.h"
#include "wire/segment_desc.h"

#define MC_SEGMENTS_MAX         65536 /* open at a time; ids are slot + 65536 * generation */
#define MC_SEGMENT_BUCKETS      1024
#define MC_SLICE_ATTEMPTS       3 /* posts of a slice on one transport */
#define MC_SLICES_PER_TASK_MAX  64
#define MC_SPRAYED_PER_TASK_MAX 256 /* the same where there are several rails */
#define MC_POST_MAX             64  /* slices a post() call */
#define MC_INLINE_TASKS         16  /* mc_transfer uses no heap up to here */
#define MC_NOTIFY_MAX           4096
#define MC_WATCH_PERIOD_NS      (100 * MC_MS)

struct mc_transfer_task;
struct mc_dispatch;

/* ---- segments ---- */

/* Type-stable: a slot's memory lives as long as the engine. `word` = id << 32 | closed << 31 |
 * users. */
#define MC_SEGMENT_CLOSED 0x80000000u
struct mc_segment_slot {
    struct mc_segment base; /* first */
    _Atomic uint64_t word;
    _Atomic uint32_t stale;       /* fetch the descriptor before the next submit */
    _Atomic uint32_t incarnation; /* of the peer: moves when its engine id does; from 1 */
    _Atomic uint32_t hangs;       /* attempts that were given up */
    char name[MC_SEGMENT_NAME_MAX];
    uint32_t opens;               /* table lock */
    struct mc_list by_name;       /* table lock */
    pthread_mutex_t refresh_lock; /* one fetch at a time; held while waiting for the peer */
    pthread_mutex_t lock;         /* the rest */
    struct mc_peer_desc *desc;
    uint64_t desc_generation; /* local segment: of the memory it shows */
    struct mc_list waiting;   /* slices that wait for a fetch to begin */
    struct mc_list fetching;  /* slices that wait for the one under way to end */
    bool refreshing;
    _Atomic uint64_t refresh_failed_ns; /* when, 0 = it did not */
    struct mc_job refresh_job;
    struct mc_job reclaim_job;
    /* By transport: health of each rail's way to this peer. Made with the first failure; freed with
     * the engine, for slices in flight look at it. */
    _Atomic(struct mc_health *) links[MC_TRANSPORT_MAX];
};
static inline struct mc_segment_slot *mc_slot_of(struct mc_segment *segment) {
    return (struct mc_segment_slot *)segment;
}

/* Counts a user; NULL when the id is not open. */
struct mc_segment_slot *mc_slot_acquire(struct mc_engine *engine, mc_segment_id id);
/* Counts another; the caller's keeps the slot from going. */
struct mc_segment_slot *mc_slot_share(struct mc_segment_slot *slot);
void mc_slot_release(struct mc_segment_slot *slot);
/* Puts the slice aside until the descriptor was fetched; it then takes the road again. Consumes the
 * slice. */
void mc_slot_wait_refresh(struct mc_segment_slot *slot, struct mc_slice_op *slice);
/* Takes the task's slices out of the waiting list and ends them. */
void mc_slot_cancel_waiting(struct mc_segment_slot *slot, struct mc_transfer_task *task);

/* descriptor.c */
/* When a fetch that begins now gives up, by the handshake's limits. */
uint64_t mc_fetch_deadline(const struct mc_engine *engine);
MC_MUST_USE enum mc_status mc_desc_fetch(struct mc_engine *engine, const char *name,
                                         uint64_t deadline_ns, struct mc_peer_desc **out);
enum mc_status mc_slot_refresh(struct mc_segment_slot *slot, uint64_t deadline_ns);
void mc_slot_run_refresh(struct mc_job *job);
/* Tells every transport. */
void mc_slot_tell_open(struct mc_segment_slot *slot, const struct mc_peer_desc *desc);
void mc_slot_forget(struct mc_segment_slot *slot);

/* segment.c */
void mc_segments_init(struct mc_engine *engine);
void mc_segments_destroy(struct mc_engine *engine);

/* ---- tasks and batches ---- */

struct mc_transfer_task {
    struct mc_batch *batch;
    struct mc_segment_slot *slot;
    bool holds_slot;        /* released when the chunk is */
    _Atomic uint32_t state; /* enum mc_task_state; published last */
    _Atomic int32_t error;
    _Atomic int32_t cancel; /* why every slice that fails from now on ends; 0 = not cancelled */
    _Atomic uint64_t ends;  /* of slices: mc_task_pending, mc_task_moved */
    uint64_t length;
    uint64_t slice_bytes; /* of every slice but the last */
    uint32_t slice_count;
    uint32_t retry_budget;
    _Atomic uint32_t retries;
    _Atomic uint32_t hung; /* bit per transport that was asked to give up slices of the task */
    uint8_t priority;
    uint8_t devices; /* of enum mc_devices */
    bool cautious;
    const struct mc_policy_rule *rule; /* that holds for it; NULL = none */
    struct mc_spray_reach reach;       /* of the rails of `transport` */
    struct mc_transport *transport;    /* first choice */
};

/* In one word, so that the end of slices is one operation: how many have not ended, how many of
 * `slice_bytes` have arrived, and whether the last one has, when it is shorter. */
#define MC_TASK_ARRIVED      (1ull << 16)
#define MC_TASK_LAST_ARRIVED (1ull << 32)
_Static_assert(MC_SPRAYED_PER_TASK_MAX < MC_TASK_ARRIVED, "sixteen bits for each number");
static inline uint32_t mc_task_pending(uint64_t ends) {
    return (uint32_t)(ends % MC_TASK_ARRIVED);
}
static inline uint64_t mc_task_moved(const struct mc_transfer_task *task, uint64_t ends) {
    uint64_t moved = ends % MC_TASK_LAST_ARRIVED / MC_TASK_ARRIVED * task->slice_bytes;
    return ends < MC_TASK_LAST_ARRIVED
               ? moved
               : moved + task->length - (task->slice_count - 1) * task->slice_bytes;
}

/* The tasks of one submit. */
struct mc_chunk {
    struct mc_chunk *next;
    size_t first; /* number of the first task */
    size_t count;
    uint64_t deadline_ns;
    _Atomic bool posted; /* every slice has been initialised and sent on its way */
    struct mc_transfer_task *tasks;
    struct mc_slice *slices; /* of all tasks, in order; NULL = none */
    bool owns_slices;
    size_t held; /* tasks that hold a slot */
};

enum mc_batch_word { MC_BATCH_RUNNING = 0, MC_BATCH_DONE = 1, MC_BATCH_WAITED = 2 };
struct mc_batch {
    struct mc_engine *engine; /* NULL after the engine's destruction */
    /* The slice that this batch serves a part of: it goes to the same segment and incarnation by
     * the same rule, and counts as no task of its own. NULL = none. */
    const struct mc_slice_op *outer;
    bool in_call; /* of mc_transfer: a thread is inside, and the engine's end waits for it */
    _Atomic uint32_t word;     /* futex: enum mc_batch_word. After it is DONE nobody but the owner
                                  touches the batch */
    _Atomic uint32_t done;     /* non-zero shortly before `word` is DONE; for transport->progress */
    _Atomic size_t unfinished; /* tasks, + 1 while submitting */
    _Atomic int32_t first_error;
    _Atomic uint32_t waiters; /* threads inside mc_batch_wait; the engine's end waits for them */
    pthread_mutex_t lock;     /* chunks */
    struct mc_chunk *chunks;  /* newest first */
    size_t task_count;
    struct mc_list link; /* engine's list of batches */
    unsigned pins;       /* batches_lock: threads of the engine that look at it; it stays listed */
    struct mc_segment_slot *only_slot; /* when all tasks so far go to one segment */
    bool many_slots;
    struct mc_segment_slot *notify_slot;
    char *notify_name;
    char *notify_message;
    struct mc_job notify_job;
};

/* A slice as the engine sees it. */
struct mc_slice {
    struct mc_slice_op base; /* first */
    struct mc_spray_item spray;
    uint32_t skipped_transports; /* bit per transport whose rails were all paused */
    int32_t refused;             /* by mc_dispatch_post: why; MC_OK = no rail may carry it now */
    uint32_t hangs_known;        /* the slot's when the round began */
    /* On a watched transport: when this attempt has taken too long, and where it is; 0 = not in
     * flight. One word, for watch.c reads it at any time. */
    _Atomic uint64_t attempt;
};
static inline uint64_t mc_attempt_make(uint64_t due_ns, unsigned transport, unsigned rail) {
    return due_ns / 1000 << 8 | transport << 4 | rail;
}
static inline uint64_t mc_attempt_due_us(uint64_t attempt) {
    return attempt >> 8;
}
static inline unsigned mc_attempt_transport(uint64_t attempt) {
    return attempt >> 4 & 15;
}
static inline unsigned mc_attempt_rail(uint64_t attempt) {
    return attempt & 15;
}
_Static_assert(MC_TRANSPORT_MAX <= 16 && MC_RAILS_MAX <= 16, "an attempt has four bits for each");
static inline struct mc_slice *mc_slice_of(struct mc_slice_op *op) {
    return mc_container_of(op, struct mc_slice, base);
}

/* A transfer that is part of a slice (staging): from or to the slice's segment, but other
 * addresses. One thread starts and finishes it, another may cancel between the two. The engine's
 * end does not look for it: it ends before the outer slice does. */
struct mc_inner {
    struct mc_batch batch;
    struct mc_chunk chunk;
    struct mc_transfer_task task;
    struct mc_slice slice;
};
void mc_inner_start(struct mc_inner *inner, const struct mc_slice_op *outer, void *local,
                    uint64_t remote, uint64_t length);
enum mc_status mc_inner_finish(struct mc_inner *inner);
void mc_inner_cancel(struct mc_inner *inner, enum mc_status why);

/* Ends a slice for good, with an error. */
void mc_slice_end(struct mc_slice_op *slice, enum mc_status status);
/* Gives an unposted slice its next home, or ends it. */
void mc_slice_route(struct mc_slice_op *slice);
/* A slice failed on its transport: decides where it may go next, without sending it there. */
void mc_slice_note_failure(struct mc_slice_op *slice, enum mc_status status, bool retryable);
/* The same for a slice that mc_dispatch_post gave back. */
void mc_slice_note_refusal(struct mc_slice_op *slice);
/* Whether the slice may go on at all: MC_OK, or what it is to end with (cancelled, another slice of
 * the task failed, the peer restarted, too many failures). */
enum mc_status mc_slice_verdict(struct mc_slice_op *slice);

/* Costs of a segment's transports at one moment. */
struct mc_route { /* route.c */
    struct mc_segment_slot *slot;
    struct mc_peer_desc *desc; /* counted; NULL for the local segment when served by memcpy */
    const struct mc_peer_buffer *buffer; /* of `desc`, found last: the next is mostly there too */
    bool fresh;                          /* false: fetch the descriptor first */
    bool sees_devices;                   /* device memory may be on either side */
    uint32_t reach;                      /* bit per transport that has a cost */
    uint32_t cost[MC_TRANSPORT_MAX];
};
void mc_route_open(struct mc_route *route, struct mc_segment_slot *slot);
void mc_route_close(struct mc_route *route);
/* Whether the peer is known to have registered the range. */
bool mc_route_covers(struct mc_route *route, uint64_t addr, uint64_t length);
/* Which sides of the move are device memory, as far as is known. */
uint8_t mc_route_devices(struct mc_route *route, const struct mc_slice_op *slice);
/* The best transport not tried that serves the slice; NULL when none. `rule` may be NULL. */
struct mc_transport *mc_route_choose(const struct mc_route *route, const struct mc_slice_op *slice,
                                     const struct mc_policy_rule *rule);
/* The transport of that name where it can serve the slice; else as mc_route_choose. */
struct mc_transport *mc_route_hinted(const struct mc_route *route, const struct mc_slice_op *slice,
                                     const struct mc_policy_rule *rule, const char *hint);
/* The rule of the policy that holds for a request; NULL when none. */
const struct mc_policy_rule *mc_route_rule(struct mc_route *route, const struct mc_slice_op *whole,
                                           uint8_t priority, uint8_t intent);

#define MC_SLICE_REFRESHED 0x80000000u /* in tried_transports: not the first round */
/* A slice that waited for the descriptor goes on; `status` is how the fetch ended. */
void mc_slice_after_refresh(struct mc_slice_op *slice, enum mc_status status);
extern const struct mc_transport_ops mc_transport_local_ops;
extern const struct mc_transport_ops mc_transport_file_ops;
extern const struct mc_transport_ops mc_transport_stage_ops;
extern const struct mc_transport_ops mc_transport_fabric_ops;

/* plan.c */
/* Of every slice of a request but the last. */
uint64_t mc_plan_slice_bytes(const struct mc_dispatch *d, const struct mc_spray_reach *reach,
                             uint64_t length);
/* MC_SLICE_TIMEOUT bounds what the caller left open. */
uint64_t mc_bounded_deadline(const struct mc_engine *engine, uint64_t deadline_ns);
/* Plans and posts the tasks of the chunk. `storage` holds as many slices as `storage_count`;
 * `waits`: the caller goes on to wait for the batch. */
void mc_chunk_submit(struct mc_batch *batch, struct mc_chunk *chunk,
                     const struct mc_transfer_request *requests, struct mc_slice *storage,
                     size_t storage_count, bool waits);

/* batch.c */
void mc_batch_note_error(struct mc_batch *batch, enum mc_status error);
/* So many tasks, whose errors are noted. The last access of who does not own the batch. */
void mc_batch_task_ended(struct mc_batch *batch, size_t count);
/* All unfinished tasks; returns when ended. */
void mc_batch_abort(struct mc_batch *batch, enum mc_status why);
void mc_batch_drop_segments(struct mc_batch *batch);

/* ---- engine ---- */

struct mc_dispatch_sum { /* what a sum over the rails of a transport is about */
    const struct mc_dispatch *dispatch;
    enum mc_transfer_op op;
};

/* dispatch.c: between the road and a transport. */
struct mc_dispatch {
    struct mc_transport *transport;
    bool sprayed;      /* several rails: every slice is placed by the spray */
    bool asynchronous; /* post() may leave slices in flight */
    bool watched;      /* attempts that take too long are given up */
    struct {           /* watch.c: when slices last arrived, as far as it has seen */
        int64_t arrived;
        uint64_t at_us;
    } seen[MC_RAILS_MAX];
    unsigned rail_count;
    struct mc_rail *rails;
    struct mc_spray spray;
    pthread_mutex_t lock;       /* the spray's queue */
    _Atomic bool used;          /* a slice was measured */
    _Atomic uint32_t pump;      /* enum in dispatch.c */
    _Atomic uint32_t tick;      /* which posts are measured, where not all are */
    struct mc_metric retries;   /* posts again on the same transport */
    struct mc_metric failovers; /* slices that left for another transport */
    struct mc_metric queued;    /* slices that had to wait for a rail */
    struct mc_dispatch_sum sums[2];
};
void mc_dispatch_init(struct mc_dispatch *d, struct mc_transport *t);
void mc_dispatch_destroy(struct mc_dispatch *d);
void mc_dispatch_register(struct mc_dispatch *d, struct mc_metrics *m); /* telemetry.c */
/* Posts slices of one segment, by the rails that suit them best, or lets them wait for one. Those
 * that were not taken are moved to the front with `refused` set; returns how many. */
size_t mc_dispatch_post(struct mc_dispatch *d, struct mc_slice_op **slices, size_t count);
/* The slice came back from the transport with an error, or was not taken. */
void mc_dispatch_failed(struct mc_dispatch *d, struct mc_slice *slice, enum mc_status status);
/* Slices have arrived. Before their end. */
void mc_dispatch_arrived(struct mc_dispatch *d, struct mc_slice_op *const *slices, size_t count);
/* Lets waiting slices go where there is room. After mc_slice_end. */
void mc_dispatch_pump(struct mc_dispatch *d);
/* Takes the task's slices out of the queue and ends them. */
void mc_dispatch_cancel(struct mc_dispatch *d, struct mc_transfer_task *task);
/* Whether anything was ever measured. */
static inline bool mc_dispatch_was_used(const struct mc_dispatch *d) {
    return atomic_load_explicit(&d->used, memory_order_relaxed);
}
/* Whether any rail is up. */
static inline bool mc_dispatch_is_up(const struct mc_dispatch *d) {
    return atomic_load_explicit(&d->spray.up, memory_order_relaxed) != 0;
}
/* Whether the way to this peer is paused after failures; takes the probe when that time is over. */
bool mc_dispatch_take_probe(struct mc_dispatch *d, struct mc_health *links);
static inline bool mc_dispatch_is_paused(struct mc_dispatch *d,
                                         const struct mc_segment_slot *slot) {
    struct mc_health *links =
        atomic_load_explicit(&slot->links[d->transport->index], memory_order_acquire);
    /* Of several rails the spray knows which are. */
    return links != NULL && !d->sprayed && !mc_health_good(links) &&
           !mc_dispatch_take_probe(d, links);
}
/* Asks the transport how far its rails are from this memory. */
void mc_dispatch_find_reach(const struct mc_dispatch *d, const struct mc_slice_op *op,
                            const struct mc_policy_rule *rule, struct mc_spray_reach *reach);
/* Predicted nanoseconds of `length` bytes to this peer; < 0 when nothing was measured lately, or no
 * rail can be used. */
double mc_dispatch_predict(const struct mc_dispatch *d, const struct mc_segment_slot *slot,
                           uint64_t length, uint64_t now_ns);

struct mc_engine {
    struct mc_engine_options options; /* strings are owned */
    char name[MC_SEGMENT_NAME_MAX];
    char host[256];
    char boot_id[40];
    struct mc_tls_peers tls;
    uint16_t rpc_port;
    int listen_backlog;
    struct mc_uuid id;
    bool cache_descriptors;    /* off: MC_DISABLE_METACACHE */
    uint64_t slice_timeout_ns; /* MC_SLICE_TIMEOUT: an upper bound of every deadline; 0 = none */
    struct mc_metrics *metrics;
    struct mc_meta *meta;
    struct mc_workers *workers;
    struct mc_handshake_server *handshake;
    struct mc_reactor *reactors[16];
    unsigned reactor_count;
    struct mc_transport *transports[MC_TRANSPORT_MAX];
    struct mc_dispatch dispatch[MC_TRANSPORT_MAX]; /* by transport index */
    const struct mc_clock *clock;                  /* of scheduling: deadlines, rails */
    struct mc_policy policy;
    struct mc_qos_host *qos_host; /* NULL = none */
    unsigned transport_count;
    struct mc_transport *local;           /* serves MC_LOCAL_SEGMENT alone; NULL when disabled */
    struct mc_transport *stage;           /* for what no other reaches; NULL when disabled */
    struct mc_stage_server *stage_server; /* made by the first request; handshake's reactor */
    struct mc_metric tasks_failed;
    struct mc_metric tasks_timed_out;
    struct mc_metric refreshes;
    _Atomic bool closing;
    _Atomic bool has_devices; /* local addresses may be of device memory */

    /* memory.c */
    pthread_rwlock_t memory_lock;
    struct mc_memory_entry **ranges; /* sorted by address, disjoint */
    size_t range_count;
    size_t range_cap;
    uint64_t descriptor_estimate; /* bytes of JSON, rounded up */
    _Atomic uint64_t memory_generation;
    struct mc_metric populated;
    pthread_mutex_t drain_lock; /* unregistering waits for users */
    pthread_cond_t drained;
    pthread_mutex_t descriptor_lock;
    struct mc_buf descriptor;     /* own JSON, of descriptor_generation */
    struct mc_buf descriptor_tcp; /* the same with protocol "tcp"; empty when it has that */
    uint64_t descriptor_generation;

    /* watch.c */
    bool watching;
    struct mc_timer watch_timer;
    struct mc_job watch_job;
    _Atomic bool watch_busy;
    struct mc_metric attempts_given_up;

    /* publish.c; of engines with a metadata service */
    pthread_mutex_t publish_lock; /* the last written is the newest */
    struct mc_timer publish_timer;
    struct mc_job publish_job;
    _Atomic bool publish_busy; /* the job is queued or runs */

    /* poll.c */
    uint64_t poll_every_ns; /* 0 = never */
    struct mc_timer poll_timer;
    struct mc_job poll_job;
    _Atomic bool poll_busy;
    _Atomic bool withdrawn; /* nothing is published any more */
    struct mc_metric republished;

    /* topology.c */
    pthread_mutex_t topo_lock;
    struct mc_topo *topo;          /* NULL until asked for; then fixed */
    struct mc_topo_matrix *matrix; /* the user's from the start, or made with `topo` */

    /* segment.c */
    pthread_mutex_t table_lock;
    _Atomic(struct mc_segment_slot *) *slots; /* MC_SEGMENTS_MAX; [0] is the local one */
    uint32_t slot_count;                      /* ever used */
    uint32_t *free_slots;
    uint32_t free_count;
    struct mc_list buckets[MC_SEGMENT_BUCKETS];

    /* batch.c */
    pthread_mutex_t batches_lock;
    struct mc_list batches; /* live ones; of those on a stack only the ones that wait */
    pthread_cond_t batches_changed;

    /* notify.c */
    pthread_mutex_t notify_lock;
    struct mc_notification *notify_ring; /* MC_NOTIFY_MAX */
    size_t notify_head;
    size_t notify_count;
    struct mc_metric notify_received;
    struct mc_metric notify_dropped;
};

/* populate.c */
struct mc_populate;
/* Gives a mapping its pages in the background, and counts their bytes. NULL when it is small or no
 * thread can be had. */
struct mc_populate *mc_populate_start(const struct mc_pages *pages, struct mc_metric *ready);
/* Before the mapping goes. NULL is allowed. */
void mc_populate_stop(struct mc_populate *p);

/* memory.c */
/* The location under which peers see memory of the engine's own (mc_memory.staging). */
#define MC_LOCATION_STAGING "staging"
/* mc_memory_alloc of such memory: part of the descriptor, for peers' engines move bytes through it,
 * and never one of mc_segment_buffers, for whoever wrote there would spoil them. */
MC_MUST_USE enum mc_status mc_memory_alloc_staging(struct mc_engine *engine, size_t length,
                                                   void **addr);
struct mc_memory_entry {
    struct mc_memory base; /* first */
    struct mc_engine *engine;
    bool allocated;               /* by mc_memory_alloc: base.addr is a mapping of base.memfd */
    struct mc_pages pages;        /* of these */
    struct mc_populate *populate; /* of these; NULL = not filled in advance */
    struct mc_memory_twin *twin;  /* NULL = nobody wanted one yet; the entry is a user. Guarded by
                                     drain_lock */
};
void mc_memory_init(struct mc_engine *engine);
void mc_memory_destroy(struct mc_engine *engine);
/* As mc_memory_acquire, local-only ranges too. */
struct mc_memory *mc_memory_acquire_any(struct mc_engine *engine, uint64_t addr, uint64_t length);
/* Whether the range is device memory of this process, registered or not. Only worth asking when
 * engine->has_devices. */
bool mc_memory_find_device(struct mc_engine *engine, uint64_t addr, uint64_t length,
                           struct mc_device *device);
/* Appends the own descriptor. */
void mc_engine_describe(struct mc_engine *engine, struct mc_buf *out);
/* The same for the peer that asks with its own: an upstream engine that speaks only tcp hears that
 * this is what we speak. */
void mc_engine_describe_to(struct mc_engine *engine, struct mc_str peer, struct mc_buf *out);
/* Copies the own ranges into a descriptor; the caller frees desc->buffers. */
void mc_memory_snapshot(struct mc_engine *engine, struct mc_segment_desc *desc);

/* file_segment.c */
/* Whether the name is that of files, not of an engine. */
bool mc_file_segment_is_name(const struct mc_engine *engine, const char *name);
MC_MUST_USE enum mc_status mc_file_segment_fetch(struct mc_engine *engine, const char *name,
                                                 struct mc_peer_desc **out);

/* topology.c */
/* Reads the user's matrix, when there is one. */
MC_MUST_USE enum mc_status mc_topology_init(struct mc_engine *engine);
void mc_topology_destroy(struct mc_engine *engine);

/* watch.c */
void mc_watch_start(struct mc_engine *engine);
void mc_watch_stop(struct mc_engine *engine);
/* Has transports give up what is overdue now; for simulators, which have no threads. */
void mc_watch_look(struct mc_engine *engine);

/* publish.c */
void mc_poll_start(struct mc_engine *engine);
void mc_poll_stop(struct mc_engine *engine);
void mc_publish_init(struct mc_engine *engine);
void mc_publish_destroy(struct mc_engine *engine);
/* The name, the address, the descriptor; from then on they are put back when the service
 * lost them. */
enum mc_status mc_publish_start(struct mc_engine *engine);
/* Takes them out of the service; NULL-safe after a start that failed. */
void mc_publish_stop(struct mc_engine *engine);
/* The own ranges have changed. */
enum mc_status mc_publish_memory(struct mc_engine *engine);

/* notify.c */
void mc_notify_init(struct mc_engine *engine);
void mc_notify_destroy(struct mc_engine *engine);
enum mc_status mc_notify_queue(struct mc_engine *engine, struct mc_str name, struct mc_str message);
enum mc_status mc_notify_slot(struct mc_segment_slot *slot, const char *name, const char *message);

/* Segment and location names travel as JSON text: printable ASCII, not empty, shorter than size. */
bool mc_name_ok(const char *name, size_t size);

#endif
