/*
 * Mooncake Store client: a distributed object cache on the memory of many nodes.
 *
 *     struct mc_store_options options;
 *     mc_store_options_init(&options);
 *     options.master = "127.0.0.1:50051";
 *     options.segment_bytes = 1ull << 30;     // lent to the cluster; 0 = only use it
 *     struct mc_store *store;
 *     if (mc_store_open(&options, &store) != MC_OK) ...
 *     mc_store_put(store, key, bytes, length, NULL);
 *     mc_store_get(store, key, buffer, capacity, &length);
 *     mc_store_close(store);
 *
 * Contract. Put is atomic: an object is readable after its put returned MC_OK, never before, and
 * never changes until it is removed or upserted. A get returns the whole object, verified against
 * its checksum when it has one, or an error; never other bytes, never a part. The cluster is a
 * cache: objects without a hard pin may be evicted at any time after their lease ended, and objects
 * on a lost node are lost unless another replica lives.
 *
 * Keys: 1 to MC_STORE_KEY_MAX bytes, any bytes but NUL. Values: 1 byte to what fits one segment.
 * Threads: every function may be called from any thread; a store is closed when no call is inside
 * it. Every call ends within options.timeout_ms, a put that failed within one second more (it takes
 * itself back); a batch call within that time for each MC_STORE_BATCH_CHUNK keys.
 */
#ifndef MOONCAKE_STORE_H
#define MOONCAKE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mooncake/error.h"
#include "mooncake/transfer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mc_store;

#define MC_STORE_KEY_MAX 65535
/* Keys of a batch that share one round of RPCs and one deadline. */
#define MC_STORE_BATCH_CHUNK 512

struct mc_store_options {
    const char *master; /* "host:port"; default "127.0.0.1:50051" */
    /* "P2PHANDSHAKE" (default), "http://host:port/metadata" (or https), "etcd://host:port" or
     * "redis://host:port". */
    const char *metadata;
    /* "host" or "host:port"; NULL = chosen. It names this client's segments. A given port is a name
     * only; with MC_LEGACY_RPC_PORT_BINDING in the environment the engine listens there, or opening
     * fails with MC_ERR_ADDRESS_IN_USE. Without a port one of MC_STORE_CLIENT_MIN_PORT (12300) to
     * MC_STORE_CLIENT_MAX_PORT (14300) is held while the store is open. */
    const char *local_hostname;
    /* Memory lent to the cluster, at least 1024; 0 = none. More than MC_MAX_MR_SIZE (1 TiB) becomes
     * several segments, at most 64; a value lies in one of them. */
    uint64_t segment_bytes;
    /* Accepted for upstream's callers; nothing is staged, so nothing is allocated. */
    uint64_t local_buffer_bytes;
    const char *protocol; /* "tcp" (default) or "rpc_only": no engine, so no bytes are moved */
    const char *device;   /* accepted for upstream's callers: the engine finds the NICs */
    const char *tenant;   /* default "default" */
    uint32_t timeout_ms;  /* of one operation; default 30000 (MC_RPC_TIMEOUT_MS) */
    /* Attach and verify checksums (CRC-64/ECMA-182, as upstream); default false
     * (MOONCAKE_STORE_CHECKSUM): beside TCP it takes half as much time of the processor again, see
     * docs/client.md. Of objects that sessions did not write from end to end, each byte once, of
     * parts of objects, and where the caller's memory is a device's there is none. */
    bool checksum;
    /* An object of at least so many bytes (and 32 MiB) is laid over several segments, so that all
     * of their nodes serve it and it may be larger than any of them; each of its replicas, and
     * those of one stripe are on different nodes. Where the master cannot, it lies in one piece.
     * 0 = none are. Default MC_STORE_STRIPE_BYTES,
     * or 0: upstream's clients cannot read such objects (NOT_SUPPORTED). docs/client.md. */
    uint64_t stripe_bytes;
    /* Copies of objects of other nodes that are read again and again, in this process: room for
     * them and their keys, 0 = none (default, or MC_STORE_LOCAL_HOT_CACHE_SIZE); the largest object
     * (MC_STORE_LOCAL_HOT_BLOCK_SIZE, 16 MiB); from the how-manieth read on (0 = 1;
     * MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD, 2). The master is asked with every get, so a copy is
     * never older than its answer; with upstream's master, which says no versions, there are none.
     */
    uint64_t hot_cache_bytes, hot_object_bytes;
    uint32_t hot_admission;
    /* PEM files. One of them, and RPC with the master is TLS: `tls_ca` = who signs the master's
     * certificate (NULL = the system's CAs), `tls_cert` and `tls_key` = what this client shows.
     * Default NULL, or MC_TLS_CA, MC_TLS_CERT, MC_TLS_KEY. */
    const char *tls_ca, *tls_cert, *tls_key;
    /* TLS with other nodes and clients, by the same files: see mc_engine_options. */
    const char *tls_peers;
    /* A directory on this machine's SSD, which must exist: objects that lie in this client's memory
     * are written there when the master wants it, and read from there when no memory has them any
     * more. One process owns it at a time. NULL = none. Needs segment_bytes and a master with
     * enable_offload. MOONCAKE_OFFLOAD_* in the environment tune it (docs/tier.md). */
    const char *ssd_offload_path;
    struct mc_engine *engine; /* use this engine (not owned) or NULL to make one */
    /* "host:port" of a `mooncake_client` (or `mooncake node --port`) of this host, whose work this
     * store then is: see "a store by way of a node" below. NULL (default) = a store of its own. */
    const char *real_client;
    bool disable_shm;        /* measure or force TCP */
    bool disable_local_copy; /* MC_STORE_MEMCPY=0 */
};
void mc_store_options_init(struct mc_store_options *options); /* defaults, then the environment */

/* Connects, checks that the master is ready, mounts the segment, starts the heartbeat. `options`
 * and its strings are copied. MC_INVALID_PARAMS, MC_RPC_FAIL or MC_RPC_TIMEOUT (the master),
 * MC_ERR_BAD_ADDRESS, MC_ERR_ADDRESS_IN_USE, MC_ERR_NO_MEMORY, and what the engine or the mount
 * answers. */
MC_MUST_USE enum mc_status mc_store_open(const struct mc_store_options *options,
                                         struct mc_store **store);
/* Unmounts and frees; objects whose only replica is here go, and so do views. NULL is allowed. */
void mc_store_close(struct mc_store *store);
const char *mc_store_hostname(const struct mc_store *store); /* the segment's name */
struct mc_engine *mc_store_engine(struct mc_store *store);   /* NULL with "rpc_only" */
/* MC_OK while the master answers pings. */
MC_MUST_USE enum mc_status mc_store_health(struct mc_store *store);

/* What a key must be for a put to take place; compared when the put begins, and whoever puts the
 * key meanwhile wins over it. See mc_store_inspect. */
enum mc_put_condition {
    MC_PUT_ALWAYS = 0,
    MC_PUT_IF_ABSENT = 1,   /* MC_OBJECT_ALREADY_EXISTS, of a put and of an upsert */
    MC_PUT_IF_VERSION = 2,  /* replaces it; MC_INVALID_VERSION: it is another by now; */
    MC_PUT_IF_CHECKSUM = 3, /* MC_OBJECT_NOT_FOUND; MC_REPLICA_IS_NOT_READY: just being written */
};

struct mc_replicate_config {  /* zero-initialised = one replica, anywhere, no pin */
    uint64_t replica_num;     /* 0 = 1; each on another node, fewer where there are fewer */
    bool with_soft_pin;       /* evicted after the others, for soft_pin_ttl_ms */
    uint64_t soft_pin_ttl_ms; /* 0 = the master's default */
    bool with_hard_pin;       /* never evicted */
    const char *const *preferred_segments;
    size_t preferred_segment_count;
    bool prefer_same_node;
    const char *const *group_ids; /* one a key, or NULL */
    size_t group_id_count;        /* the number of keys, else MC_INVALID_PARAMS */
    bool without_soft_pin;        /* upsert: takes away the pin that the object has */
    uint8_t data_type;            /* what it is, for people and tools; upstream's ObjectDataType */
    /* What follows is MC_NOT_SUPPORTED with upstream's master, and in a store by way of a node
     * MC_UNAVAILABLE_IN_CURRENT_MODE. */
    /* The object is not there any more so long after it became readable; 0 = no such end. Leases
     * end with it, pins do not prolong it, it is never offloaded to SSD. An upsert begins anew,
     * with or without. */
    uint64_t ttl_ms;
    enum mc_put_condition condition;
    /* Of MC_PUT_IF_VERSION and MC_PUT_IF_CHECKSUM: one a key. When such a put fails after it began
     * (MC_TRANSFER_FAIL, MC_RPC_FAIL, MC_RPC_TIMEOUT), the old object may be gone. */
    const uint64_t *expected;
    size_t expected_count; /* the number of keys, else MC_INVALID_PARAMS */
};

struct mc_slice { /* one piece of a value in memory */
    void *ptr;
    size_t length;
};

/* ---- single objects ---- */

/* An existing key is success and leaves the object as it is (content-addressed use; as upstream);
 * upsert replaces it. A key that somebody else is just writing is waited for, at most two seconds,
 * then MC_REPLICA_IS_NOT_READY: that writer may be dead, and the master keeps the key for it for a
 * while. A node that cannot be written to is passed over for another. MC_INVALID_KEY;
 * MC_INVALID_PARAMS (no bytes, or more than the master takes); MC_NO_AVAILABLE_HANDLE (no room, or
 * a larger object than any segment); MC_TRANSFER_FAIL (no other node has room); MC_RPC_FAIL,
 * MC_RPC_TIMEOUT (no answer: it may have been carried out all the same). */
MC_MUST_USE enum mc_status mc_store_put(struct mc_store *s, const char *key, const void *value,
                                        size_t length, const struct mc_replicate_config *config);
MC_MUST_USE enum mc_status mc_store_upsert(struct mc_store *s, const char *key, const void *value,
                                           size_t length, const struct mc_replicate_config *config);
/* MC_BUFFER_OVERFLOW when the object is larger than capacity (*length then says how large). */
MC_MUST_USE enum mc_status mc_store_get(struct mc_store *s, const char *key, void *buffer,
                                        size_t capacity, size_t *length);
/* Takes a lease like a get. */
MC_MUST_USE enum mc_status mc_store_size(struct mc_store *s, const char *key, uint64_t *length);
/* A missing key is MC_OK and false. A present one is kept for a lease while the cluster has room.
 */
MC_MUST_USE enum mc_status mc_store_exist(struct mc_store *s, const char *key, bool *exists);
/* MC_OBJECT_NOT_FOUND; unless `force`, MC_OBJECT_HAS_LEASE. Removals are asked once: after
 * MC_RPC_FAIL or MC_RPC_TIMEOUT they may have been carried out. Those of many keys pass over what
 * has a lease. */
MC_MUST_USE enum mc_status mc_store_remove(struct mc_store *s, const char *key, bool force);
MC_MUST_USE enum mc_status mc_store_remove_regex(struct mc_store *s, const char *pattern,
                                                 bool force, uint64_t *removed);
MC_MUST_USE enum mc_status mc_store_remove_all(struct mc_store *s, bool force, uint64_t *removed);

/* ---- batches ---- */

/* results[i], or items[i].status, is key i's own status; the return value is MC_OK when the call
 * was made at all. */

struct mc_store_item {
    const char *key;
    const struct mc_slice *slices; /* put: the value's pieces; get: where the bytes go, in order */
    size_t slice_count;
    size_t length;         /* get: set to the object's size, 0 when it is not known */
    enum mc_status status; /* set for every item */
    /* get, with slice_count 0: makes the memory when the size is known, on the calling thread,
     * before a byte moves; NULL gives MC_ERR_NO_MEMORY. Called again, for memory that replaces the
     * first, when the object was replaced meanwhile by one of another size. */
    void *(*allocate)(void *ctx, size_t length);
    void *allocate_ctx;
};
MC_MUST_USE enum mc_status mc_store_put_batch(struct mc_store *s, struct mc_store_item *items,
                                              size_t count,
                                              const struct mc_replicate_config *config);
MC_MUST_USE enum mc_status mc_store_upsert_batch(struct mc_store *s, struct mc_store_item *items,
                                                 size_t count,
                                                 const struct mc_replicate_config *config);
MC_MUST_USE enum mc_status mc_store_get_batch(struct mc_store *s, struct mc_store_item *items,
                                              size_t count);
MC_MUST_USE enum mc_status mc_store_exist_batch(struct mc_store *s, const char *const *keys,
                                                size_t count, bool *exists,
                                                enum mc_status *results);
MC_MUST_USE enum mc_status mc_store_remove_batch(struct mc_store *s, const char *const *keys,
                                                 size_t count, bool force, enum mc_status *results);

/* ---- parts of objects ---- */

struct mc_store_range { /* bytes [offset, offset + length) of an object, and their place here */
    void *ptr;
    size_t length;
    uint64_t offset;
    enum mc_status status; /* set for every range */
};
struct mc_store_range_item {
    const char *key;
    struct mc_store_range *ranges;
    size_t range_count;
    size_t length;         /* set to how many bytes were moved */
    enum mc_status status; /* set for every item: of the key as a whole */
};
/* Reads parts, of each key all from the same object. A range that leaves the object is
 * MC_INVALID_PARAMS by itself, and the others are read; when the key failed, so has each range of
 * it. An item whose ranges cover the whole object from its first byte on, in order, is verified
 * against the checksum; others cannot be. */
MC_MUST_USE enum mc_status mc_store_get_ranges(struct mc_store *s,
                                               struct mc_store_range_item *items, size_t count);

/* ---- sessions: objects moved piece by piece ---- */

/* A session belongs to this store and a key; at most MC_STORE_SESSIONS_MAX of each kind are open
 * (MC_ERR_LIMIT). A call that names a key without a session is MC_INVALID_PARAMS for that key.
 *
 * A put session reserves the object; it is readable after its end, and bytes that were never
 * written have no defined value. It can be written for MC_STORE_PUT_SESSION_S seconds
 * (MC_LEASE_EXPIRED), and after the master's put_start_discard_timeout another put of the key takes
 * its place. */
#define MC_STORE_SESSIONS_MAX  65536
#define MC_STORE_PUT_SESSION_S 300

/* MC_OBJECT_ALREADY_EXISTS; MC_INVALID_PARAMS (size 0, or a session of the key is open);
 * MC_INVALID_REPLICA (the master gave no memory); else as mc_store_put. */
MC_MUST_USE enum mc_status mc_store_put_session_start(struct mc_store *s, const char *const *keys,
                                                      const uint64_t *sizes, size_t count,
                                                      const struct mc_replicate_config *config,
                                                      enum mc_status *results);
/* An item with a range that leaves the reserved size is MC_INVALID_PARAMS and writes nothing. After
 * MC_TRANSFER_FAIL the item's ranges may have been written or not; once a write has ended in doubt,
 * so do all later calls on the session but its revocation. */
MC_MUST_USE enum mc_status
mc_store_put_session_write(struct mc_store *s, struct mc_store_range_item *items, size_t count);
/* The object becomes readable and the session is over. On failure the session stays: end it again
 * or revoke it. MC_OBJECT_REPLICA_BUSY: a write of the session is running. */
MC_MUST_USE enum mc_status mc_store_put_session_end(struct mc_store *s, const char *const *keys,
                                                    size_t count, enum mc_status *results);
/* The reservation goes; one that the master no longer knows is success. The session stays only when
 * the master did not answer (MC_RPC_FAIL, MC_RPC_TIMEOUT) or is still being written. */
MC_MUST_USE enum mc_status mc_store_put_session_revoke(struct mc_store *s, const char *const *keys,
                                                       size_t count, enum mc_status *results);

/* A get session holds the object's lease: every read comes from the same object, from memory or,
 * where no memory has it, from the disks that had it when the session began. Reads renew the
 * lease; when it has ended (nothing was read for a lease's time, or the object went) a read is
 * MC_LEASE_EXPIRED and the session is over. Starting a session again renews it. */
MC_MUST_USE enum mc_status mc_store_get_session_start(struct mc_store *s, const char *const *keys,
                                                      size_t count, enum mc_status *results);
/* An item with a range that leaves the object is MC_INVALID_PARAMS and reads nothing. */
MC_MUST_USE enum mc_status
mc_store_get_session_read(struct mc_store *s, struct mc_store_range_item *items, size_t count);
/* Keys without a session are passed over. */
MC_MUST_USE enum mc_status mc_store_get_session_end(struct mc_store *s, const char *const *keys,
                                                    size_t count);

/* ---- copies, moves, single replicas ---- */

struct mc_store_task_id {
    uint64_t hi, lo;
};
struct mc_store_task {
    struct mc_store_task_id id;
    int type;                       /* 0 copy, 1 move */
    int status;                     /* 0 pending, 1 processing, 2 failed, 3 success */
    int64_t created_ms, updated_ms; /* since 1970 */
    struct mc_store_task_id client; /* who carries it out */
    char message[512];              /* cut when longer */
};
/* Asks the master to have the object copied to one more replica on each of the segments, or moved
 * from one segment to another; the work is done by a node and is over when mc_store_task says so.
 * MC_OBJECT_NOT_FOUND; MC_INVALID_PARAMS (no target, an unknown segment, source and target equal);
 * MC_UNAVAILABLE_IN_CURRENT_STATUS (a target that is leaving); MC_TASK_PENDING_LIMIT_EXCEEDED. */
MC_MUST_USE enum mc_status mc_store_copy(struct mc_store *s, const char *key,
                                         const char *const *targets, size_t target_count,
                                         struct mc_store_task_id *task);
MC_MUST_USE enum mc_status mc_store_move(struct mc_store *s, const char *key, const char *source,
                                         const char *target, struct mc_store_task_id *task);
/* MC_TASK_NOT_FOUND: there was none, or it ended long ago. */
MC_MUST_USE enum mc_status mc_store_task(struct mc_store *s, struct mc_store_task_id id,
                                         struct mc_store_task *task);
/* Takes away the replicas on `segment` (NULL or "" = all, and so the object) of the keys that this
 * store has put, that are complete and that nobody has a lease on; cleared[i] says which. The
 * request names no tenant, as in upstream's protocol: it is about keys of the tenant "default"
 * whatever the store's is, and takes nothing of another tenant's (cleared[i] is false). */
MC_MUST_USE enum mc_status mc_store_clear_replicas(struct mc_store *s, const char *const *keys,
                                                   size_t count, const char *segment,
                                                   bool *cleared);

/* ---- zero copy ---- */

/* A read-only view of an object that lives in memory of this host, without a copy. The view holds
 * the object's lease (renewed until released); when the lease is lost mc_store_view_valid() says
 * so, and bytes read since the last valid answer must be thrown away. A view of a copy in the hot
 * cache shows the object as it was when the view was opened, and is valid until it is released,
 * whatever becomes of the object and of the cache's room; so is one of an object that is on disk
 * only, or striped: it is nowhere in one piece, and its view is a copy of its own.
 * MC_REPLICA_NOT_IN_LOCAL_MEMORY when no replica can be mapped; MC_CHECKSUM_MISMATCH, when
 * checksums are on; MC_ERR_NO_MEMORY. */
struct mc_store_view {
    const void *data;
    size_t length;
    void *internal;
};
MC_MUST_USE enum mc_status mc_store_view(struct mc_store *s, const char *key,
                                         struct mc_store_view *view);
bool mc_store_view_valid(const struct mc_store_view *view);
void mc_store_view_release(struct mc_store *s, struct mc_store_view *view);

/* Names memory that values are read from and into often: faster for hardware transports. Others
 * move any memory without staging. MC_INVALID_PARAMS: overlaps a registered buffer, or is none. */
MC_MUST_USE enum mc_status mc_store_register_buffer(struct mc_store *s, void *addr, size_t length);
MC_MUST_USE enum mc_status mc_store_unregister_buffer(struct mc_store *s, void *addr);

/* ---- a store by way of a node ---- */

/* With options.real_client, many processes of a host share one node: this store has no engine and
 * no connection to the master, only memory that the node maps (descriptors travel over a unix
 * socket, so node and store are in one network namespace; either may be upstream's). Of the other
 * options only timeout_ms and local_buffer_bytes count: twice that much memory is shared, and used
 * as far as it is touched.
 *
 * A slice without memory (NULL) makes its item MC_INVALID_PARAMS. Values in memory of
 * mc_shared_alloc that is registered with this store are moved without a copy; others are copied
 * through the shared buffer, or when a put finds no room there, sent in the request (up to 128
 * MiB). A value of unknown size is read through the other half, and is MC_INVALID_PARAMS when it
 * does not fit. Ranges are always copied.
 *
 * When the node ends, calls are MC_RPC_FAIL; when it is back (also another process at the same
 * port), the memory is registered again within two seconds, at the same addresses. After
 * MC_RPC_TIMEOUT or MC_RPC_FAIL the node may still write the memory that a get named.
 * Not there (MC_UNAVAILABLE_IN_CURRENT_MODE): sessions, mounting, replicas, views, and
 * mc_store_clear_replicas clears nothing. */

/* Zeroed memory that a node can map, of whole pages of a memfd sealed against shrinking; NULL when
 * there is none. mc_store_register_buffer of such a store takes only this, whole (else
 * MC_INTERNAL_ERROR, as upstream). */
void *mc_shared_alloc(size_t size);
bool mc_shared_free(void *memory); /* false: not of mc_shared_alloc */
/* Whether the node can reach these bytes where they are, as part of one registered piece. Always
 * true of a store of its own. */
bool mc_store_reaches(struct mc_store *s, const void *ptr, size_t length);

/* ---- lending more memory ---- */

/* Names one segment of this store, for as long as it is lent. (All segments of a store have its
 * name; the master's own id of one changes when it is mounted again.) */
struct mc_store_segment_id {
    uint64_t hi, lo;
};
/* Lends `length` bytes of fresh memory (at least 1024) to the cluster, beside
 * options.segment_bytes. `location` as in mc_memory_register. MC_ERR_LIMIT (64 segments),
 * MC_ERR_NO_MEMORY, MC_INVALID_PARAMS, and what the master answers. */
MC_MUST_USE enum mc_status mc_store_mount_memory(struct mc_store *s, uint64_t length,
                                                 const char *location,
                                                 struct mc_store_segment_id *id);
/* The same with bytes [offset, offset + length) of an existing file (of /dev/shm, of a persistent
 * memory or huge page file system), mapped shared; `offset` is a multiple of the page size. The
 * range must be inside the file (MC_INVALID_PARAMS), which must not shrink while it is lent. */
MC_MUST_USE enum mc_status mc_store_mount_file(struct mc_store *s, const char *path,
                                               uint64_t offset, uint64_t length,
                                               const char *location,
                                               struct mc_store_segment_id *id);
/* Takes a segment back; objects whose only replica is there go. With a grace it is readable that
 * long, gets nothing new, and is freed some time after; the call does not wait for that. Asking
 * again may shorten the grace. MC_SEGMENT_NOT_FOUND, or why the master was not reached. */
MC_MUST_USE enum mc_status mc_store_unmount(struct mc_store *s, struct mc_store_segment_id id,
                                            uint64_t grace_ms);

/* ---- listing keys ---- */

/* Some keys that begin with `prefix` (NULL or "" = all of the tenant), in no order that means
 * anything: at most `limit`, 1 to MC_STORE_LIST_MAX, of those that come after `after` (NULL or "" =
 * from the beginning, else `next` of the page before). page->next is "" behind the last page; a
 * page may hold fewer keys than asked for, or none, and not be the last. A key that can be read
 * during the whole listing comes exactly once, whatever else comes and goes; takes no leases.
 * MC_INVALID_PARAMS (also: a cursor of a master that has been restarted since); MC_NOT_SUPPORTED
 * (upstream's master). */
#define MC_STORE_LIST_MAX 100000
struct mc_store_keys {
    const char **keys;
    size_t count;
    char next[64];
};
MC_MUST_USE enum mc_status mc_store_list(struct mc_store *s, const char *prefix, const char *after,
                                         size_t limit, struct mc_store_keys *page);
void mc_store_keys_free(struct mc_store_keys *page);

/* ---- looking inside ---- */

struct mc_object_info {
    uint64_t size;
    uint64_t version; /* never the same again once the key was replaced or removed */
    uint64_t checksum;
    bool has_checksum;
    bool has_ttl;
    uint64_t ttl_left_ms;
    uint32_t replicas; /* of a striped object: whole copies */
    uint32_t stripes;  /* of each; 1 = every replica is in one piece */
};
/* Takes no lease. results[i]: MC_OBJECT_NOT_FOUND; MC_REPLICA_IS_NOT_READY. MC_NOT_SUPPORTED
 * (upstream's master). */
MC_MUST_USE enum mc_status mc_store_inspect(struct mc_store *s, const char *const *keys,
                                            size_t count, struct mc_object_info *infos,
                                            enum mc_status *results);

struct mc_replica_info {
    uint64_t id;
    int type;   /* 0 memory, 1 NoF, 2 disk, 3 local disk, 4 DFS */
    int status; /* 3 = complete */
    uint64_t size;
    uint64_t address;
    char endpoint[280];
    char file_path[1024]; /* of types 2 and 4 */
};
/* Takes a lease like a get. Writes at most `capacity`; *count is how many there are. */
MC_MUST_USE enum mc_status mc_store_replicas(struct mc_store *s, const char *key,
                                             struct mc_replica_info *replicas, size_t capacity,
                                             size_t *count);
/* Counters of the client as Prometheus text, malloc'ed. */
char *mc_store_metrics(struct mc_store *s);

#ifdef __cplusplus
}
#endif
#endif
