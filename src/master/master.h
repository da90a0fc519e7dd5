/*
 * master: the metadata of the store. Index, placement, leases, eviction, segments, clients.
 *
 * The core is a thread-safe state machine without threads, sockets or clocks of its own: time comes
 * from an mc_clock, randomness from a seed, and the periodic work (eviction, expiry, releases) is
 * one function that somebody calls. So the real program and the simulator run the same code.
 *
 * One function per RPC family lives behind mc_master_handle(), which takes decoded arguments of
 * wire/master_rpc.h and fills the answer; mc_master_serve() wraps it with decoding and encoding, so
 * that the RPC server, the embedded master and the simulator all enter by one door. May call base,
 * io, wire, rpc.
 */
#ifndef MC_MASTER_MASTER_H
#define MC_MASTER_MASTER_H

#include "base/base.h"
#include "base/metrics.h"
#include "rpc/rpc.h"
#include "wire/master_rpc.h"

/* An object can be read from a medium now, or no longer; the strings are valid during the call. */
struct mc_object_event {
    bool removed, on_disk;
    struct mc_str tenant; /* empty = "default" */
    struct mc_str group;  /* empty = none */
    struct mc_str key;
};

/* Keeps the text of the tenants' quotas, where that is no file. Calls may block for seconds. */
struct mc_quota_store {
    enum mc_status (*load)(void *ctx, struct mc_buf *text); /* an empty text: there is none yet */
    enum mc_status (*save)(void *ctx, struct mc_str text);
    void *ctx;
};

struct mc_master_config { /* names and defaults are those of docs/options.md */
    uint64_t default_kv_lease_ttl_ms;
    uint64_t default_kv_soft_pin_ttl_ms;
    uint64_t max_kv_soft_pin_ttl_ms;
    bool allow_evict_soft_pinned_objects;
    double eviction_ratio;
    double eviction_high_watermark_ratio;
    const char *eviction_policy;      /* "lru", "s3fifo", "chain" */
    double eviction_attention_blocks; /* policy/policy.h: attention_blocks */
    uint64_t client_ttl_ms;
    uint64_t put_start_discard_timeout_ms;
    uint64_t put_start_release_timeout_ms;
    /* Copy and move tasks: how many are kept, and how long one may wait and run (0 = for ever). */
    uint64_t max_total_finished_tasks, max_total_pending_tasks, max_total_processing_tasks;
    uint64_t pending_task_timeout_ms, processing_task_timeout_ms;
    uint64_t max_retry_attempts;
    /* "random", "free_ratio_first", "local_first", "ssd_free_ratio_first", "cxl" */
    const char *allocation_strategy;
    /* DISK replicas: a directory that all clients share, and the cluster's own below it. */
    const char *root_fs_dir, *cluster_id;
    uint64_t root_fs_bytes; /* that it has room for, as an administrator says; 0 = unknown */
    bool enable_disk_eviction;
    uint64_t quota_bytes;
    uint64_t metadata_limit_bytes; /* of the index; 0 = none. At it new objects are refused */
    /* The SSD tier. Offload at PutEnd, or when eviction meets an object; how many may wait for one
     * client, and what share of that one eviction may fill; evict what finds no place there. Above
     * the watermark, if it is not 0, the objects that nobody read for longest are offloaded before
     * eviction wants them, and none at PutEnd. */
    bool enable_offload, offload_on_evict, offload_force_evict;
    double offload_high_watermark_ratio;
    /* A file that remembers for the next master what disks may not bring back; NULL or "" = none.
     * May they bring back what no such file can tell anything of? */
    const char *offload_notes_path;
    bool offload_adopt_unproven;
    uint64_t offloading_queue_limit;
    double offload_cap_ratio;
    /* Bring an object back to memory that was read so often from a disk only; how many may wait,
     * and how many a heartbeat takes. */
    bool promotion_on_hit;
    uint64_t promotion_admission_threshold, promotion_queue_limit, promotion_max_per_heartbeat;
    bool enable_multi_tenants;       /* only tenants with a quota may write: docs/tenants.md */
    const char *tenant_quota_policy; /* path of the file with the quotas; must be there */
    struct mc_quota_store tenant_quota_store; /* or where else they are; then the path is a name */
    /* An object that is read more often than dynamic_qps times a second, over a window, is copied
     * to another node until it has so many replicas in memory; the copies go when it is not any
     * more. Observing counts and copies nothing. */
    enum mc_dynamic_mode {
        MC_DYNAMIC_OFF = 0,
        MC_DYNAMIC_OBSERVE,
        MC_DYNAMIC_ENFORCE
    } dynamic_replication;
    uint64_t dynamic_window_ms;
    double dynamic_qps;
    uint64_t dynamic_max_replicas;
    uint64_t seed; /* of placement and ids; 0 = from the system */
    /* For tests only: a master that is wrong on purpose, so that a checker can prove that it would
     * notice. */
    enum mc_master_break {
        MC_BREAK_NONE = 0,
        MC_BREAK_EARLY_FREE,    /* the extents of a complete object are handed out again */
        MC_BREAK_EARLY_VISIBLE, /* an object can be read from PutStart on */
        MC_BREAK_NO_LEASES,     /* eviction ignores leases */
        MC_BREAK_ANY_WRITER,    /* an old put can end a newer one of the same key */
        MC_BREAK_MOVE_FREES,    /* a moved object's old place is free at once, leased or not */
        MC_BREAK_DISK_RETURNS,  /* a disk may bring back what was removed or replaced */
        MC_BREAK_ANY_ANSWER,    /* a disk's word about an older object is taken for the newer */
        MC_BREAK_LIVE_ON,       /* a time to live does not end */
        MC_BREAK_NO_QUOTA,      /* what a tenant has used is not looked at */
        MC_BREAK_NO_REFUND,     /* what goes is still charged */
        MC_BREAK_ONE_TENANT,    /* all tenants' keys are those of one */
        MC_BREAK_ANY_CONDITION, /* a put on a condition takes place in any case */
        MC_BREAK_PAGE_AGAIN,    /* a page of keys begins with the last one's */
        MC_BREAK_DRAIN_EARLY,   /* a drain does not wait for readers and writers */
        MC_BREAK_DRAIN_MEMORY,  /* a drain does not look at SSDs */
        MC_BREAK_STRIPE_ORDER,  /* stripes are told in the order in which they came */
        MC_BREAK_STRIPES_MEET,  /* copies of one stripe may share a node */
        MC_BREAK_FILE_NAMES,    /* a key's file has the same name each time */
        MC_BREAK_COLD_FREES,    /* a hot object's copy is free at once, leased or not */
    } break_mode;
    /* called (without locks held) for each segment of a client that expired: the program deletes
     * its metadata keys */
    void (*on_segment_lost)(void *ctx, struct mc_str segment_name);
    void *on_segment_lost_ctx;
    /* Called after each such change is done, with locks held: it may neither wait nor call the
     * master. The events of a key come in order. What ends with the master itself is not told. */
    void (*on_object_event)(void *ctx, const struct mc_object_event *event);
    void *on_object_event_ctx;
};
void mc_master_config_init(struct mc_master_config *config);

struct mc_master;
struct mc_master *mc_master_create(const struct mc_master_config *config,
                                   const struct mc_clock *clock,
                                   struct mc_metrics *metrics /* may be NULL */);
void mc_master_destroy(struct mc_master *m);

/* Runs RPC `rpc` with decoded `args` (the struct of MC_MASTER_RPC_TABLE); fills `ret`, whose
 * strings and vectors live in `arena`. Thread safe; never blocks on I/O. */
void mc_master_handle(struct mc_master *m, enum mc_master_rpc rpc, const void *args,
                      struct mc_arena *arena, void *ret);

/* The same from bytes to bytes: an mc_rpc_handler (ctx = struct mc_master *). */
void mc_master_serve(void *master, const struct mc_rpc_request *request,
                     struct mc_rpc_reply *reply);
/* Its companion, mc_rpc_server_config.closed: how a peer hangs up tells which release it speaks
 * (dialect.h). */
void mc_master_closed(void *master, const uint64_t *peer_words, const char *peer);
/* What may take long: it visits every key. An mc_rpc_server_config.slow. */
bool mc_master_serves_slowly(void *master, uint32_t function_id);

/* Eviction, lease and client expiry, discarded puts, graceful unmounts. Call about every 10 ms;
 * returns after a bounded amount of work. */
void mc_master_tick(struct mc_master *m);

/* ---- looking inside (HTTP admin, `mooncake ls`, fsck, simulator) ---- */

struct mc_master_totals {
    uint64_t keys, capacity_bytes, allocated_bytes, segments, clients;
};
void mc_master_totals(struct mc_master *m, struct mc_master_totals *out);

/* Calls fn for every key of the tenant (NULL = all), in no order, without holding locks during fn.
 * Stops when fn returns false. */
void mc_master_each_key(struct mc_master *m, const char *tenant,
                        bool (*fn)(void *ctx, struct mc_str tenant, struct mc_str key), void *ctx);

/* A page of the readable keys of the tenant that begin with `prefix`, at most `limit` of them, in
 * an order of the master's own; `after` is "" or what *next said of the page before, and *next is
 * "" after the last one. A page that looked at MC_LIST_PAGE_VISITS objects ends with what it found,
 * which may be nothing. A key that is there all the time is listed once. Grants no lease. Keys and
 * *next live in the arena. MC_INVALID_PARAMS: a bad tenant or limit, or a cursor of another master.
 */
#define MC_LIST_PAGE_KEYS   100000
#define MC_LIST_PAGE_BYTES  (16u << 20) /* a page ends behind the key that reaches it */
#define MC_LIST_PAGE_VISITS (1u << 19)
enum mc_status mc_master_list(struct mc_master *m, struct mc_str tenant, struct mc_str prefix,
                              struct mc_str after, size_t limit, struct mc_arena *arena,
                              struct mc_vec *keys, struct mc_str *next);

/* Removes every object of the tenant (NULL = all tenants) that is complete and, unless `force`, not
 * leased; how many. */
int64_t mc_master_remove_all(struct mc_master *m, const char *tenant, bool force);

struct mc_master_segment_info {
    struct mw_segment segment; /* strings live in the arena passed in */
    struct mc_uuid client;
    int status; /* enum mc_segment_status */
    uint64_t used_bytes, capacity_bytes;
};
/* All segments; the array lives in the arena. */
struct mc_master_segment_info *mc_master_segments(struct mc_master *m, struct mc_arena *arena,
                                                  size_t *count);

/* The replicas of a key without granting a lease or counting a hit. */
enum mc_status mc_master_peek(struct mc_master *m, struct mc_str tenant, struct mc_str key,
                              struct mc_arena *arena, struct mw_replica_list *out);
/* What is known of an object, likewise. */
enum mc_status mc_master_inspect(struct mc_master *m, struct mc_str tenant, struct mc_str key,
                                 struct mw_object_info *out);

/* ---- drain jobs ---- */

enum mc_job_status {
    MC_JOB_CREATED = 0,
    MC_JOB_PLANNING = 1,
    MC_JOB_RUNNING = 2,
    MC_JOB_SUCCEEDED = 3,
    MC_JOB_FAILED = 4,
    MC_JOB_CANCELED = 5
};
#define MC_DRAIN_JOBS_MAX        64 /* kept; the oldest that have ended are forgotten */
#define MC_DRAIN_SEGMENTS_MAX    256
#define MC_DRAIN_CONCURRENCY_MAX 4096

/* Begins to move everything off the segments, to `targets` (none = any other). They take nothing
 * new from now on and are readable all the time; the job has succeeded, and they are DRAINED, when
 * nothing is there any more that anybody could still be reading or writing. The SSDs of clients
 * that have no other segments are drained with them, to memory, unless `leave_disks`: then what
 * only they have goes with their nodes. MC_INVALID_PARAMS (no
 * segments, one that is a target too, concurrency 0, too many), MC_SEGMENT_NOT_FOUND,
 * MC_UNAVAILABLE_IN_CURRENT_STATUS (a segment that is leaving or being drained already),
 * MC_TASK_PENDING_LIMIT_EXCEEDED (too many jobs). */
enum mc_status mc_master_drain(struct mc_master *m, const struct mc_vec *segments,
                               const struct mc_vec *targets, uint64_t max_concurrency,
                               bool leave_disks, struct mc_uuid *job);
struct mc_master_job_info { /* strings live in the arena passed in */
    struct mc_uuid id;
    int status; /* enum mc_job_status */
    int64_t created_ms, updated_ms;
    struct mc_vec segments; /* of struct mc_str */
    /* Objects: moved; tasks that failed; that could not be moved when last looked at (they are
     * being written, copied, or there is no other place); being moved now. */
    uint64_t succeeded, failed, blocked, active;
    uint64_t migrated_bytes;
    /* Objects that only the SSDs of these nodes had, each as the last whole walk through the index
     * met it: of a job that has ended, as of its end. Evictions after that add to them. */
    uint64_t disk_only;
    struct mc_str message;
};
/* MC_JOB_NOT_FOUND. */
enum mc_status mc_master_job(struct mc_master *m, struct mc_uuid id, struct mc_arena *arena,
                             struct mc_master_job_info *out);
/* The segments take objects again; what was moved stays where it is.
 * MC_UNAVAILABLE_IN_CURRENT_STATUS: objects are being moved just now (then no further move begins
 * for 10 s, so that asking again succeeds), or the job has ended. */
enum mc_status mc_master_job_cancel(struct mc_master *m, struct mc_uuid id);
/* The miss-ratio curve of the traffic so far: what share of the reads and stores of keys an LRU
 * cache of more or less memory would find there. Memory is counted in objects of the present mean
 * size. */
#define MC_CURVE_POINTS 6
#define MC_CURVE_FACTORS                                                                           \
    { 0.25, 0.5, 1, 2, 4, 8 }
struct mc_master_curve {
    uint64_t uses;
    double distinct_keys, sample_rate; /* estimated; share of the keys that is followed */
    struct {
        double memory; /* times the present memory */
        double keys, hit_ratio;
    } points[MC_CURVE_POINTS];
};
void mc_master_curve(struct mc_master *m, struct mc_master_curve *out);

/* ---- tenants; MC_UNAVAILABLE_IN_CURRENT_MODE without enable_multi_tenants ---- */

bool mc_tenant_name_ok(struct mc_str name);
struct mc_tenant_info {
    struct mc_str name;                     /* lives in the arena passed in */
    uint64_t requested, effective, charged; /* bytes */
    bool has_policy;
};
/* The tenants that have a quota or objects, by name. */
enum mc_status mc_master_tenants(struct mc_master *m, struct mc_arena *arena,
                                 struct mc_tenant_info **all, size_t *count);
/* Gives the tenant a quota, and writes the file; nothing has changed when that fails
 * (MC_PERSISTENT_FAIL). MC_INVALID_PARAMS: a bad name, or not 1 to MC_TENANT_QUOTA_MAX, or too many
 * tenants. */
#define MC_TENANT_QUOTA_MAX ((uint64_t)INT64_MAX)
#define MC_TENANTS_MAX      65536u
enum mc_status mc_master_tenant_set(struct mc_master *m, struct mc_str name, uint64_t bytes);
/* Takes it away. MC_OBJECT_NOT_FOUND: it has none; MC_TENANT_NOT_EMPTY: it has objects. */
enum mc_status mc_master_tenant_delete(struct mc_master *m, struct mc_str name);

/* Prometheus text; nothing without enable_multi_tenants. */
void mc_master_tenant_metrics(struct mc_master *m, struct mc_buf *out);

/* Proves that live extents are disjoint and equal the allocators' used set, that counters equal
 * what they count, and that every index entry can be found; appends a line for each fault. MC_OK
 * when there is none. Slow; stops the world. */
enum mc_status mc_master_fsck(struct mc_master *m, struct mc_buf *report);

#endif
