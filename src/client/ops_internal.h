/* What the files of ops share: the call context and the RPC helper. See client/ops.h. */
#ifndef MC_CLIENT_OPS_INTERNAL_H
#define MC_CLIENT_OPS_INTERNAL_H

#include <pthread.h>

#include "client/ops.h"
#include "client/replicate_config.h"

/* What one operation needs of memory. Kept and used again, so that a warm client does not call
 * malloc for a key. The two replies alternate: what the last answer decoded to stays valid while
 * the next one is decoded. */
struct mc_ops_call {
    struct mc_ops_call *next;
    struct mc_arena arena;
    struct mc_buf request;
    struct mc_buf replies[2];
    unsigned reply_index;
    uint64_t asked_ns; /* when the request that the last answer belongs to was sent */
};

/* Bounds of one step of a batch. */
#define OPS_CHUNK_KEY_BYTES (16u << 20) /* keys of one RPC */
/* Values of one put step: far less than a discard timeout's worth. */
#define OPS_CHUNK_VALUE_BYTES (256u << 20)
#define OPS_CLEANUP_MS        1000 /* what a failed put may add to its time to revoke itself */

/* Open sessions by key: session.h. Guarded by ops->lock. */
#define OPS_SESSION_BUCKETS 1024
struct mc_ops_sessions {
    struct mc_session *buckets[OPS_SESSION_BUCKETS];
    size_t count;
};

/* ops_file_tidy.c: of the one thread that deletes files. */
struct mc_ops_tidy {
    uint64_t done;             /* a batch that the master has not been told of; 0 = none */
    uint64_t sweeping;         /* one that takes many steps; 0 = none */
    struct mc_buf keep;        /* what it leaves */
    uint64_t refused_until_ns; /* the master does not know the question */
};

#define MC_OPS_AVOID_MAX 8
struct mc_ops_avoided {
    char endpoint[280];
    size_t len;
    uint64_t until_ns;
};

struct mc_ops {
    struct mc_port *port;
    struct mc_uuid client;
    struct mc_str tenant;
    struct mc_str host_id;
    struct mc_str fsdir; /* ops_file.c: of files with copies of objects; empty = there are none */
    struct mc_ops_tidy tidy;
    uint64_t timeout_ns;
    bool checksum;
    uint64_t stripe_bytes;
    struct mc_hot_cache *hot; /* NULL = none; the owner's */
    /* The master is taken to know no words of ours until then; 0 = it may know them. */
    _Atomic uint64_t without_own_until_ns;
    uint64_t round_bytes;
    _Atomic uint64_t put_counter;
    _Atomic uint32_t spread; /* which of equally near replicas comes first */
    _Atomic uint8_t versions[MC_MASTER_RPC_COUNT];
    struct mc_ops_counters counters;
    _Atomic uint64_t avoid_until_ns; /* of the youngest in avoided[]; 0 = there never was one */

    pthread_mutex_t lock; /* guards what follows; never held across a port call */
    struct mc_ops_call *idle_calls;
    struct mc_list views;
    size_t view_count;
    struct mc_ops_sessions puts, gets;
    uint64_t session_serial;
    struct mc_ops_avoided avoided[MC_OPS_AVOID_MAX];
};

/* Whether our own words are worth trying: the master refused none lately, or may be another since.
 */
bool mc_ops_master_is_ours(struct mc_ops *ops);
/* It refused one: `what` goes without, says the log, once for each master. */
void mc_ops_master_refused(struct mc_ops *ops, const char *what);
void mc_ops_master_may_be_new(struct mc_ops *ops);

struct mc_hot_entry;

struct mc_ops_call *mc_ops_begin(struct mc_ops *ops);
void mc_ops_end(struct mc_ops *ops, struct mc_ops_call *call);

static inline uint64_t mc_ops_now(struct mc_ops *ops) {
    return mc_now_ns(ops->port->ops->clock(ops->port));
}
static inline uint64_t mc_ops_deadline(struct mc_ops *ops) {
    return mc_ops_now(ops) + ops->timeout_ns;
}

enum mc_ops_repeat {
    MC_OPS_ONCE,      /* an unanswered request is an error */
    MC_OPS_IDEMPOTENT /* asked again, a bounded number of times before the deadline */
};
/* Encodes, calls, decodes. The decoded answer's strings and vectors are valid until the next but
 * one RPC of this call. */
MC_MUST_USE enum mc_status mc_ops_rpc(struct mc_ops *ops, struct mc_ops_call *call,
                                      enum mc_master_rpc rpc, const void *args, void *ret,
                                      uint64_t deadline_ns, enum mc_ops_repeat repeat);
/* The same for an answer that is a vector with one element per key. */
MC_MUST_USE enum mc_status mc_ops_rpc_batch(struct mc_ops *ops, struct mc_ops_call *call,
                                            enum mc_master_rpc rpc, const void *args,
                                            struct mc_vec *ret, size_t expected,
                                            uint64_t deadline_ns, enum mc_ops_repeat repeat);

/* The wire's words for what a caller asked for; groups[] = one a key of the request, or NULL. */
void mc_ops_wire_config(struct mc_ops *ops, struct mc_ops_call *call,
                        const struct mc_replicate_config *config, struct mc_str *groups,
                        size_t key_count, struct mw_replicate_config *wire);
/* Begins the puts of the request in the words that `config` needs; expected[] = one a key of the
 * request, or NULL; objects of at least `stripe_over` bytes may be striped, 0 = none. *answers: of
 * struct mw_e_vec of replicas. */
MC_MUST_USE enum mc_status mc_ops_start_puts(struct mc_ops *ops, struct mc_ops_call *call,
                                             const struct mw_a_batch_put_start *request,
                                             bool upsert, const struct mc_replicate_config *config,
                                             uint64_t *expected, uint64_t stripe_over,
                                             uint64_t deadline_ns, struct mc_vec *answers);
/* An id that no other put has. */
struct mc_uuid mc_ops_fresh_writer(struct mc_ops *ops);

/* What a reader knows of an object that it has a lease on. */
struct mc_ops_lease {
    struct mw_replica_list list;
    uint64_t striped_bytes; /* the object's size when it is striped, else 0 */
    unsigned stripes;       /* of each copy then, else 0 */
    uint64_t end_ns, renew_at_ns;
};
/* Reads the ranges of each item. With `leases`, one an item, every read is of the replicas named
 * there while that very lease goes on, and what became of it is written back; else the master is
 * asked. Like mc_ops_get in all other things. */
void mc_ops_read_ranges(struct mc_ops *ops, struct mc_store_range_item *items, size_t count,
                        struct mc_ops_lease *leases);
void mc_ops_lease_taken(struct mc_ops_lease *lease, uint64_t asked_ns);

/* ops_avoid.c: a node that could not be written to; and the nodes to avoid now, as entries for
 * preferred_segments in the arena. */
void mc_ops_avoid(struct mc_ops *ops, struct mc_str endpoint);
size_t mc_ops_avoided(struct mc_ops *ops, struct mc_arena *arena,
                      struct mc_str out[MC_OPS_AVOID_MAX]);

/* One object that only other nodes' disks have; it goes to the slices, which are as long. */
struct mc_ops_disk_read {
    struct mc_str key;
    struct mc_str endpoint; /* the owner's RPC server; or */
    struct mc_str file;     /* of a shared file system */
    uint64_t size;
    const struct mc_store_range *pieces; /* in memory, by their offset in the object */
    size_t piece_count;
    bool done;
    bool lost; /* the file is there and has another length: reading it again is in vain */
    enum mc_status status;
};
/* ops_disk.c: asks the owners to bring the objects to memory, moves them here, says so. */
void mc_ops_disk_read(struct mc_ops *ops, struct mc_ops_call *call, struct mc_ops_disk_read *reads,
                      size_t count, uint64_t deadline_ns);

#define MC_OPS_PATH_MAX 4096u
/* The path lies below the directory of ours. */
bool mc_ops_file_allowed(const struct mc_ops *ops, struct mc_str path);
MC_MUST_USE enum mc_status mc_ops_file_write(struct mc_ops *ops, struct mc_str path,
                                             const struct mc_slice *slices, size_t count,
                                             uint64_t length);
void mc_ops_file_read(struct mc_ops *ops, struct mc_ops_disk_read *read);
/* Tells the master that the keys' files have not got their objects. */
void mc_ops_files_lost(struct mc_ops *ops, struct mc_str *keys, size_t count, uint64_t deadline_ns);
/* No other put writes to a path like this: our master's names, not upstream's, which are the key's.
 * The path is allowed. */
bool mc_ops_file_own_name(const struct mc_ops *ops, struct mc_str path);
/* Whether it is gone. */
bool mc_ops_file_delete(struct mc_ops *ops, struct mc_str path);

/* ops_get_hot.c: a view of the copy of this version; false when there is none. With a cache only.
 */
bool mc_ops_view_hot(struct mc_ops *ops, struct mc_str key, uint64_t version,
                     const struct mw_opt_u64 *checksum, struct mc_ops_view *view);
/* ops_view.c: a view that holds an entry of the hot cache. */
void mc_ops_view_of_hot(struct mc_ops *ops, struct mc_hot_entry *entry, const void *bytes,
                        uint64_t length, struct mc_ops_view *view);
/* At the end of the ops: gives back views that the application forgot. */
void mc_ops_view_release_all(struct mc_ops *ops);
void mc_ops_sessions_destroy(struct mc_ops *ops);

/* MC_INVALID_KEY unless 1 to MC_STORE_KEY_MAX bytes. */
MC_MUST_USE enum mc_status mc_ops_key(const char *key, struct mc_str *out);
/* The upstream code in an answer; an unknown one passes as it is. */
static inline enum mc_status mc_ops_status(int32_t wire) {
    return (enum mc_status)wire;
}
/* How many of keys[0..count) one RPC takes, at least 1. */
size_t mc_ops_chunk_keys(const char *const *keys, size_t count);

/* Only memory is read; replicas on disk and those being written are other clients' business. */
static inline bool mc_ops_replica_readable(const struct mw_replica *replica) {
    return replica->tag == MW_TAG_MEMORY && replica->status == MC_REPLICA_COMPLETE;
}
/* It lies where mc_ops_disk_read() can read it. */
static inline bool mc_ops_replica_on_disk(const struct mc_ops *ops,
                                          const struct mw_replica *replica) {
    return replica->status == MC_REPLICA_COMPLETE &&
           ((replica->tag == MW_TAG_LOCAL_DISK && ops->port->ops->peer_call != NULL) ||
            (replica->tag == MW_TAG_DISK && mc_ops_file_allowed(ops, replica->disk.file_path)));
}
uint64_t mc_ops_replica_size(const struct mw_replica *replica);
/* Of a striped object (wire/master_rpc.h): in which stripe byte `offset` of it lies, where there,
 * and how many follow it. */
struct mc_ops_run {
    unsigned stripe;
    uint64_t at, length;
};
static inline struct mc_ops_run mc_ops_stripe_at(unsigned stripes, uint64_t offset) {
    uint64_t unit = offset / MW_STRIPE_UNIT, skip = offset % MW_STRIPE_UNIT;
    return (struct mc_ops_run){(unsigned)(unit % stripes), unit / stripes * MW_STRIPE_UNIT + skip,
                               MW_STRIPE_UNIT - skip};
}
/* Replicas that were just allocated: how many stripes each copy has, 0 = each holds it all. */
unsigned mc_ops_stripes(const struct mc_vec *replicas, uint64_t object_bytes);
/* The writes of bytes [offset, offset + length) of a striped object to all of its copies; how many
 * there are, and how many there may be of `length` bytes in so many parts. */
size_t mc_ops_stripe_writes(const struct mc_vec *replicas, unsigned stripes, const void *from,
                            uint64_t offset, uint64_t length, struct mc_port_move *moves);
static inline size_t mc_ops_stripe_moves(const struct mc_vec *replicas, unsigned stripes,
                                         uint64_t length, size_t parts) {
    return replicas->count / stripes * (length / MW_STRIPE_UNIT + 2 * (parts + 1));
}
/* What the answer says of the stripes, 0 = none; MC_INVALID_REPLICA when it contradicts itself. */
MC_MUST_USE enum mc_status mc_ops_object_stripes(const struct mw_object *object, unsigned *stripes);
/* The replicas with their stripes, 0 = each has all, give the whole object. */
bool mc_ops_readable(const struct mc_vec *replicas, unsigned stripes);
/* What our master alone knows: *answers of struct mw_e_object. Takes leases. MC_NOT_SUPPORTED
 * (another master). */
MC_MUST_USE enum mc_status mc_ops_get_objects(struct mc_ops *ops, struct mc_ops_call *call,
                                              struct mc_str *names, size_t n, uint64_t deadline_ns,
                                              struct mc_vec *answers);

/* The nearest readable replica of `list` whose bit in `tried` is not set;
 * NULL when none is left. */
const struct mw_replica *mc_ops_choose(struct mc_ops *ops, const struct mw_replica_list *list,
                                       uint64_t tried, size_t *index);

#endif
