/*
 * te: the Transfer Engine. Mechanism below (transports), policy above (this room's engine).
 *
 * The engine owns registered memory, opened segments, batches and the choice: it cuts a request
 * into slices, gives each slice to a transport, and takes it back when it failed, at whatever
 * stage, to give it to another lane or transport. A transport only moves slices and reports what
 * happened; it never retries, never chooses and never reports success before the last byte arrived.
 *
 * May call base, io, wire, rpc, meta. Public face: mooncake/transfer.h.
 */
#ifndef MC_TE_TE_H
#define MC_TE_TE_H

#include "base/base.h"
#include "base/metrics.h"
#include "mooncake/transfer.h"
#include "te/device.h"

#define MC_TRANSPORT_MAX 10 /* transports of one engine */
#define MC_RAILS_MAX     16 /* rails of one transport */

/* ---- memory ---- */

/* A registered range. Immutable after registration but for `users`. */
struct mc_memory {
    uint64_t addr;
    uint64_t length;
    char location[64];
    bool remote;    /* peers may address it */
    bool staging;   /* of the engine itself: peers address it, applications are not told of it */
    bool on_device; /* not the processor's; then `device` is whose */
    struct mc_device device;
    int memfd;              /* of mc_memory_alloc, mappable by same-host peers; else -1 */
    size_t page_bytes;      /* of that memfd */
    int32_t shm_slot;       /* of the shm transport; -1 = not offered */
    _Atomic uint32_t users; /* peers' requests in progress on it; unregistering waits for zero */
};

/* Finds the registered remote-accessible range that holds [addr, addr+length) and counts a user;
 * NULL when none, or when it is device memory, which the processor must not touch. Called by a
 * transport's server side for each incoming request; released after the last byte. Cheap: a
 * read-locked sorted array. */
struct mc_memory *mc_memory_acquire(struct mc_engine *engine, uint64_t addr, uint64_t length);
/* The same, device memory alone. */
struct mc_memory *mc_memory_acquire_device(struct mc_engine *engine, uint64_t addr,
                                           uint64_t length);
void mc_memory_release(struct mc_memory *memory);

/* The bytes of a memory of mc_memory_alloc once more, read-only, at another address, where they can
 * be looked at when the memory is long gone. */
struct mc_memory_twin {
    const char *bytes; /* the first is that of the memory */
    uint64_t length;
    _Atomic uint32_t users;
};
/* Counts a user; one mapping serves all. NULL: there is no such thing of this memory. The memory is
 * acquired. */
struct mc_memory_twin *mc_memory_twin_acquire(struct mc_memory *memory);
void mc_memory_twin_release(struct mc_memory_twin *twin);

/* ---- peers ---- */

/* What is known of an opened segment, from its descriptor (wire: docs/wire.md). Replaced as a whole
 * on refresh; holders keep a reference. */
struct mc_peer_buffer {
    uint64_t addr;
    uint64_t length;
    char location[64];
    int32_t shm_slot;  /* ours: place in the owner's shared control page; -1 = not offered */
    bool shm_mappable; /* ours: memory of mc_memory_alloc, a memfd that same-host peers can map */
    bool on_device;    /* the peer's processor cannot touch it */
};
struct mc_peer_desc {
    _Atomic uint32_t refs;
    char name[280];     /* segment name */
    char host[256];     /* where the handshake connects to */
    char tcp_host[256]; /* where tcp connects to: the peer's own word, else `host` */
    uint16_t rpc_port;  /* handshake */
    uint16_t tcp_data_port;
    unsigned tcp_proto;       /* 1 or 2 */
    struct mc_uuid engine_id; /* ours: random per engine; {0,0} for upstream peers */
    char boot_id[40];         /* ours: same host when equal; "" for upstream peers */
    int32_t pid;              /* ours, for people; 0 when unknown. Never used as an identity */
    bool tls;                 /* ours: handshake and data port speak TLS */
    char shm_socket[64];      /* ours: abstract socket that hands out the mappings; "" when none */
    size_t buffer_count;
    struct mc_peer_buffer *buffers; /* sorted by addr */
    bool has_device_memory;         /* of some of them */
    struct mc_rdma_desc *rdma;      /* NICs and keys (wire/segment_desc.h); NULL = none */
    struct mc_fabric_desc *fabric;  /* devices and keys of libfabric; NULL = none */
    struct mc_file_parts *files;    /* of a file segment (wire/file_segment.h); NULL = memory */
};

struct mc_segment { /* one opened segment; lives until closed and unused */
    struct mc_engine *engine;
    mc_segment_id id;
    /* private to engine.c and transports follow behind their own structs */
    /* Indexed by mc_transport.index; made and freed by the transport. */
    void *transport_state[MC_TRANSPORT_MAX];
};
/* A counted reference to the current descriptor. */
struct mc_peer_desc *mc_segment_desc(struct mc_segment *segment);
void mc_peer_desc_put(struct mc_peer_desc *desc);
/* The buffer of the descriptor that holds [addr, addr+length), or NULL. */
const struct mc_peer_buffer *mc_peer_desc_find(const struct mc_peer_desc *desc, uint64_t addr,
                                               uint64_t length);

/* ---- slices ---- */

/* Which sides of a move are device memory. */
enum mc_devices {
    MC_DEVICE_LOCAL = 1,
    MC_DEVICE_REMOTE = 2,
    MC_DEVICE_FOREIGN = 4, /* the remote one, of a peer that is none of ours: it has its own ways */
};

/* The unit of work: one contiguous move. Embedded in the task's memory, so posting allocates
 * nothing. The engine fills the first part; the transport owns `transport_link` and
 * `transport_data` between post and completion. */
struct mc_slice_op {
    enum mc_transfer_op op;
    char *local;
    uint64_t remote;
    uint64_t length;
    struct mc_segment *segment;
    uint64_t deadline_ns;
    void *task;       /* engine's */
    uint8_t priority; /* 0 = high, 1 = medium, 2 = low; also for the transport's own queues */
    uint8_t devices;  /* of enum mc_devices */
    /* The posting thread is about to call the transport's progress() for this segment and stays
     * until the slice ended, so the transport need not have it driven by a reactor as well. Only a
     * hint for speed; never set on a retry. */
    bool waiter_follows;
    uint32_t attempts;         /* posts on `transport` */
    uint32_t tried_transports; /* bit per mc_transport.index that failed */
    uint32_t incarnation;      /* engine's: of the peer when first posted */
    int32_t first_error;       /* engine's: what the task fails with when every road is closed */
    uint16_t rail; /* of `transport`; chosen by the engine before each post(), kept until done */
    struct mc_transport *transport; /* where it is posted */
    struct mc_list transport_link;
    uint64_t transport_data[4];
};

/* Whether a write that failed so can deliver no byte any more, because the peer, or the way to it,
 * said no. After any other failure bytes may be on their way, and its place must not be given to
 * somebody else. */
bool mc_write_is_over(enum mc_status error);

/* Tells the engine that the slice ended. From any thread, exactly once for each posted slice, after
 * which the transport must not touch the slice or its memory. On failure `retryable` says whether
 * another lane of the same transport may work. The engine may post again from inside this call,
 * other slices too, and goes on with that after the slice's own end: the transport's stop() waits
 * for threads that are inside. */
void mc_slice_done(struct mc_slice_op *slice, enum mc_status status, bool retryable);
/* The same as mc_slice_done(, MC_OK, ) for each, and much cheaper: what all threads share is
 * written once for a run of one rail. For slices of one transport whose ends were learnt of at the
 * same moment; none is kept back to make a larger group. The array is the caller's. */
void mc_slices_arrived(struct mc_slice_op *const *slices, size_t count);

/* ---- rails ---- */

struct mc_transport;

/* A rail is one local device of a transport, say a port of an RDMA card. A transport without
 * devices of its own (tcp, shm) has one, named like itself. The engine measures each rail and
 * spreads slices over them; the transport obeys `rail` of each slice. */
struct mc_rail_info {
    char name[64];      /* as people know it, "mlx5_0"; unique within the transport */
    int numa_node;      /* -1 = unknown */
    char pci[16];       /* "0000:3b:00.0"; "" = unknown */
    uint64_t bandwidth; /* nominal, bytes a second; 0 = unknown */
    bool up;
};

/* For the transport to tell that a rail went down or came back (port events), from any thread,
 * once start() has returned. A rail that is down gets no slices; those in flight on it are the
 * transport's to fail. */
void mc_rail_set_up(struct mc_transport *t, unsigned rail, bool up);

/* ---- transports ---- */

struct mc_handshake_call;
struct mc_transport_ops {
    const char *name; /* "tcp", "shm" */
    /* Bytes leave the machine and are not encrypted: not for an engine that requires TLS. */
    bool in_the_clear;
    /* Requests are cut into slices of about this size, so that one request uses several lanes; 0 =
     * never cut. */
    uint64_t slice_bytes;
    /* The kinds of device memory (enum mc_devices) that it may be asked for. With others the engine
     * does not offer the slice: it is staged (transport/stage.c). */
    unsigned devices;
    /* Starts for this engine (listeners, threads). MC_NOT_SUPPORTED = not on this machine; the
     * engine goes on without. */
    enum mc_status (*start)(struct mc_engine *engine, unsigned index, struct mc_transport **out);
    void (*stop)(struct mc_transport *t);
    /* Before stop(), and before segments and other transports go: no task is left, threads that use
     * the engine end. May be NULL. */
    void (*quiesce)(struct mc_transport *t);
    /* Adds the transport's keys to the engine's descriptor (a jansson object). May be NULL. */
    void (*describe)(struct mc_transport *t, void *json_object);
    /* Memory becomes addressable by peers, or ceases to be: when memory_removed returns, no peer
     * touches it through this transport. Also called for memory that is not `remote`: it may be a
     * transfer's local side. May be NULL. (Transports that serve requests by mc_memory_acquire need
     * neither.) */
    void (*memory_added)(struct mc_transport *t, struct mc_memory *memory);
    void (*memory_removed)(struct mc_transport *t, struct mc_memory *memory);
    /* Lower is better; UINT32_MAX = cannot reach this peer. */
    uint32_t (*cost)(struct mc_transport *t, struct mc_segment *segment,
                     const struct mc_peer_desc *desc);
    /* Writes at most `capacity` rails, returns how many there are; called once, after start(), and
     * fixed from then on. NULL or 0 = one rail, up, named like the transport. */
    unsigned (*rails)(struct mc_transport *t, struct mc_rail_info *rails, unsigned capacity);
    /* How far a rail is from the slice's local memory, as per cent of extra time: 0 = as near as
     * can be, 30 = a move takes about 1.3 times as long, UINT32_MAX = it cannot carry the slice (no
     * way to this segment, memory not registered with this device). Looks at op, local, remote,
     * length and segment only; asked once a request (not once a slice), for the request as a whole.
     * NULL = 0 for all. */
    uint32_t (*rail_distance)(struct mc_transport *t, unsigned rail,
                              const struct mc_slice_op *slice);
    /* Whether this slice, to a segment that cost() accepts, can be served; false sends it to the
     * next transport without counting a failure. NULL = every slice. */
    bool (*serves)(struct mc_transport *t, struct mc_segment *segment,
                   const struct mc_slice_op *slice);
    /* The segment was opened, or has a new descriptor: on the opener's or a helper thread, may wait
     * for the peer for a bounded time. May be NULL. */
    void (*open)(struct mc_transport *t, struct mc_segment *segment,
                 const struct mc_peer_desc *desc);
    /* Posts slices, all for one segment and on one rail. The status is that of posting as a whole:
     * on an error none was taken. A taken slice ends with mc_slice_done, possibly before this
     * returns (inline completion). Never blocks on the peer. */
    enum mc_status (*post)(struct mc_transport *t, struct mc_slice_op **slices, size_t count);
    /* Progress on the calling thread (a waiter), until `*done` is non-zero or the deadline passes;
     * returns at once when there is nothing to drive. `segment` is what the waiter waits for. May
     * be NULL. */
    void (*progress)(struct mc_transport *t, struct mc_segment *segment,
                     const _Atomic uint32_t *done, uint64_t deadline_ns);
    /* Gives up slices of `task` still in flight (deadline): when it returns, none of them touches
     * local memory again and each has ended with mc_slice_done(MC_ERR_TIMEOUT). NULL when post()
     * never leaves a slice in flight. */
    void (*cancel)(struct mc_transport *t, struct mc_segment *segment, void *task);
    /* The same for those on one rail, which have taken far longer than was predicted; the task goes
     * on. NULL: attempts are not timed, since the transport notices by itself what does not end. */
    void (*give_up)(struct mc_transport *t, struct mc_segment *segment, void *task, unsigned rail);
    /* The segment is going away or its peer restarted: drop connections and mappings. Slices still
     * in flight end with an error. When the segment goes away no slice is in flight, and
     * transport_state[index] must be NULL afterwards. */
    void (*forget)(struct mc_transport *t, struct mc_segment *segment);
    /* After the last forget(): no call for this segment follows; frees what was kept beside it. May
     * be NULL. */
    void (*close)(struct mc_transport *t, struct mc_segment *segment);
    /* A peer wants to set up a connection (body: wire/rdma_setup.h). On the reactor's thread, must
     * not block; answers with mc_handshake_answer, now or later. At most one transport of an engine
     * has this; NULL = none. */
    void (*handshake)(struct mc_transport *t, struct mc_str body, struct mc_handshake_call *call);
    /* mc_segment_map; NULL when the transport cannot. */
    const void *(*map)(struct mc_transport *t, struct mc_segment *segment, uint64_t addr,
                       uint64_t length);
};
struct mc_transport {
    const struct mc_transport_ops *ops;
    struct mc_engine *engine;
    unsigned index;
};

/* The table of what this build has; adding a transport = one file and one line there
 * (te/transport/table.c). */
extern const struct mc_transport_ops *const mc_transport_table[];
extern const size_t mc_transport_count;

/* mc_engine_create over another table (at most MC_TRANSPORT_MAX); tests inject faults with it. */
MC_MUST_USE enum mc_status mc_engine_create_with(const struct mc_engine_options *options,
                                                 const struct mc_transport_ops *const *table,
                                                 size_t count, struct mc_engine **engine);

/* Appends what the engine would do with the request and why, for people. Posts nothing.
 * MC_SEGMENT_NOT_FOUND, MC_INVALID_PARAMS. */
MC_MUST_USE enum mc_status mc_engine_explain(struct mc_engine *engine,
                                             const struct mc_transfer_request *request,
                                             struct mc_buf *out);

/* A runtime of accelerators may have come into the process since memory was last registered: for
 * who hands in local memory that need not be registered. */
void mc_engine_notice_devices(struct mc_engine *engine);

/* What transports need of the engine. */
/* Numbers hold no 0 = default. */
const struct mc_engine_options *mc_engine_config(const struct mc_engine *engine);
/* TLS with other engines; what listens for peers serves by it (mc_stream_serve). */
const struct mc_tls_peers *mc_engine_tls(const struct mc_engine *engine);
struct mc_uuid mc_engine_id(const struct mc_engine *engine);
/* Of this host's kernel; "" when unknown. */
const char *mc_engine_boot_id(const struct mc_engine *engine);
struct mc_metrics *mc_engine_registry(struct mc_engine *engine);
/* Counters by operation, indexed by enum mc_transfer_op. */
static inline void mc_register_by_op(struct mc_metrics *registry, const char *name,
                                     const char *help, struct mc_metric counters[2]) {
    mc_metrics_register(registry, MC_METRIC_COUNTER, name, "op=\"read\"", help,
                        &counters[MC_TRANSFER_READ]);
    mc_metrics_register(registry, MC_METRIC_COUNTER, name, "op=\"write\"", help,
                        &counters[MC_TRANSFER_WRITE]);
}
/* The machine, and which cards serve which memory: the user's matrix (MC_CUSTOM_TOPO_JSON) or one
 * made with MC_TE_FILTERS; see topo/topo.h. Discovered at the first call, which takes some tens of
 * milliseconds; fixed and shared from then on. What mc_topo_discover answers. */
struct mc_topo;
struct mc_topo_matrix;
MC_MUST_USE enum mc_status mc_engine_topo(struct mc_engine *engine, const struct mc_topo **topo,
                                          const struct mc_topo_matrix **matrix);
struct mc_reactor;
unsigned mc_engine_reactor_count(const struct mc_engine *engine);
struct mc_reactor *mc_engine_reactor(struct mc_engine *engine, unsigned index);
/* The segment that a slice to (engine, id) uses; for tests. */
struct mc_segment *mc_engine_segment(struct mc_engine *engine, mc_segment_id id);
/* As mc_segment_open and mc_segment_map, for callers with a deadline of their own: a peer that is
 * asked for its descriptor and does not answer costs no more than that, MC_ERR_TIMEOUT. */
MC_MUST_USE enum mc_status mc_segment_open_until(struct mc_engine *engine, const char *name,
                                                 uint64_t deadline_ns, mc_segment_id *segment);
MC_MUST_USE enum mc_status mc_segment_map_until(struct mc_engine *engine, mc_segment_id segment,
                                                uint64_t addr, size_t length, uint64_t deadline_ns,
                                                const void **ptr);

#endif
