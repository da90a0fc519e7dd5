/*
 * The inside of the master: objects, shards, segments, clients, groups, and who may touch what.
 *
 * Locks, in the order in which they are taken; none is held across a call that leaves the room:
 *  - segments_lock: the table of segments. Read-held by whoever allocates, from the choice of the
 *    segment until the object is in the index, so that after an unmount took it for writing no new
 *    replica on that segment appears.
 *  - shard lock: one of 1024, by the hash of tenant and key: the objects in it, their replicas,
 *    lists, slab.
 *  - group lock: one of 64: membership and the shared lease of a group.
 *  - clients, discard, tasks, allocator, page pool: leaves; nothing else is taken under them.
 *
 * A replica holds a pointer to its segment; a segment is freed only when its allocator has no live
 * extent, so the pointer is good as long as the replica is (under the shard's lock).
 */
#ifndef MC_MASTER_CORE_H
#define MC_MASTER_CORE_H

#include <pthread.h>
#include <stdatomic.h>

#include "master/allocator.h"
#include "master/dialect.h"
#include "master/lock.h"
#include "master/master.h"
#include "master/slab.h"

#ifndef MC_SHARD_BITS /* fewer where a thousand small masters are made: tests/sim */
#define MC_SHARD_BITS 10u
#endif
#define MC_SHARDS           (1u << MC_SHARD_BITS)
#define MC_GROUP_SHARDS     64u
#define MC_MAX_KEY_BYTES    65536u
#define MC_MAX_TENANT_BYTES 1024u
#define MC_MAX_REPLICAS     32u
#define MC_STRIPES_MAX      30u
#define MC_CLIENT_BUCKETS   1024u

/* ---- objects ---- */

struct mc_replica {
    uint64_t id;
    struct mc_segment *segment;
    uint64_t offset; /* of DISK: the file's number */
    uint32_t handle; /* of the segment's allocator */
    uint8_t type;    /* enum mc_replica_type: MEMORY; DISK and LOCAL_DISK have no place there */
    uint8_t status;  /* enum mc_replica_status */
    /* stripes 0: it holds the whole object; else it is stripe number `stripe` of so many. */
    uint8_t stripe, stripes;
};
_Static_assert(sizeof(struct mc_replica) == 32, "one replica, half a cache line");

/* Which list of its shard an object is in. The first four are ordered by lease_until_ms, oldest
 * first; who was asked for has lists of its own, because a lease that was granted ends later than
 * one that began and ended with PutEnd. */
enum mc_object_list {
    MC_LIST_FRESH,      /* complete, nobody asked for it since */
    MC_LIST_TOUCHED,    /* complete, had a lease */
    MC_LIST_SOFT_FRESH, /* the same, soft-pinned: second choice of the eviction */
    MC_LIST_SOFT_TOUCHED,
    MC_LIST_PROCESSING, /* being written; ordered by started_ms */
    MC_LIST_COUNT,
    /* Hard-pinned, being copied or moved, on disk only, or put aside until it is offloaded. */
    MC_LIST_NONE = MC_LIST_COUNT,
};

/* The source of a move goes at its end; a promotion's lies on a disk: promote.c. */
enum mc_replication_kind { MC_REPLICATION_COPY, MC_REPLICATION_MOVE, MC_REPLICATION_PROMOTE };

/* A copy, move or promotion of an object that is under way: replication.c. */
struct mc_replication {
    struct mc_list link; /* of the shard's, the oldest first */
    struct mc_object *object;
    struct mc_uuid client; /* only it may end or revoke */
    uint64_t started_ms;
    uint64_t source; /* replica ids; */
    uint8_t kind;    /* enum mc_replication_kind */
    uint8_t target_count;
    uint64_t targets[]; /* in PROCESSING until the end */
};

/* What only some objects have. */
struct mc_object_ext {
    struct mc_object *object;
    struct mc_group *group; /* NULL = ungrouped */
    struct mc_list member;  /* in the group */
    /* The group's refresh number when the object joined: later refreshes cover it. */
    uint64_t joined_at;
    uint64_t soft_until_ms; /* 0 = not soft-pinned */
    uint64_t pending_ttl_ms;
    uint64_t life_ms;                   /* from when it can be read on; 0 = for ever */
    uint64_t expires_ms;                /* 0 = never, or it has not begun to live */
    struct mc_replication *replication; /* NULL = none */
    uint64_t offload_mark;              /* disks.c: tells this offload from others of the key */
    struct mc_uuid promotion_client;    /* promote.c: who is to do it; */
    uint64_t promotion_mark;            /* which one it is; */
    uint64_t file_number;               /* of the file that `file` of the object is about */
    uint32_t heap_index;                /* in the shard's heap of deadlines, if in_heap */
    bool in_heap;
    uint8_t promotion;   /* waiting, or given to the client */
    uint8_t offload;     /* disks.c: waiting, or being written */
    bool offload_failed; /* the last time that it was tried */
    uint8_t pending_pin; /* enum mc_soft_pin, commits when the first replica becomes readable */
};

#define MC_MEDIUM_MEMORY 1u
#define MC_MEDIUM_DISK   2u

struct mc_object {
    struct mc_list link; /* in the list that `list` names */
    uint64_t size;
    struct mc_uuid writer; /* whose PutStart made it: only it may end or revoke */
    uint64_t lease_until_ms;
    uint64_t started_ms;
    uint64_t checksum;
    uint64_t version; /* another each time that the key becomes readable */
    struct mc_object_ext *ext;
    struct mc_replica *more; /* replicas beyond the first */
    struct mc_replica first;
    uint32_t key_len;
    uint16_t tenant_len; /* 0 = "default" */
    uint8_t replica_count;
    uint8_t list; /* enum mc_object_list */
    bool has_checksum : 1;
    bool hard_pin : 1;
    uint8_t file : 2;      /* files.c: the writer is to make a file, or has */
    uint8_t announced : 2; /* MC_MEDIUM_*: where it is complete, as was counted and told of */
    char bytes[];          /* tenant, then key */
};
#define MC_OBJECT_BYTES(tenant_len, key_len)                                                       \
    (offsetof(struct mc_object, bytes) + (tenant_len) + (key_len))

static inline struct mc_extent mc_replica_extent(const struct mc_replica *r) {
    return (struct mc_extent){r->offset, r->handle};
}
/* Of its extent, when the object has `size` bytes. */
static inline uint64_t mc_replica_bytes(const struct mc_replica *r, uint64_t size) {
    return r->stripes == 0 ? size : mw_stripe_bytes(size, r->stripes);
}
/* Its replicas are stripes; see stripe.c. */
static inline bool mc_object_striped(const struct mc_object *o) {
    return o->first.stripes != 0;
}
static inline struct mc_replica *mc_object_replica(struct mc_object *o, unsigned i) {
    return i == 0 ? &o->first : &o->more[i - 1];
}
static inline struct mc_str mc_object_tenant(const struct mc_object *o) {
    return (struct mc_str){o->bytes, o->tenant_len};
}
static inline struct mc_str mc_object_key(const struct mc_object *o) {
    return (struct mc_str){o->bytes + o->tenant_len, o->key_len};
}

/* A client of ours that writes does so under an id of its own each time: the same upper half. */
static inline bool mc_same_client(struct mc_uuid a, struct mc_uuid b) {
    return a.hi == b.hi;
}

/* A key as the index wants it. The tenant "default" is the empty one. */
struct mc_key {
    struct mc_str tenant;
    struct mc_str user;
    uint64_t hash;
};

struct mc_shard {
    struct mc_lock lock;
    uint32_t slot_mask;     /* slots - 1 */
    _Atomic uint32_t count; /* written under the lock */
    uint32_t heap_count, heap_cap;
    uint64_t *slots;
    struct mc_object_ext **heap; /* deadlines, earliest first: deadline.c */
    struct mc_list lists[MC_LIST_COUNT];
    /* Of the first two: up to here early offload has looked; the list itself = nowhere yet. */
    struct mc_list *offload_hand[2];
    struct mc_list replicating; /* of mc_replication */
    struct mc_slab slab;
} __attribute__((aligned(MC_CACHE_LINE)));

struct mc_group {
    struct mc_group *next; /* in the bucket */
    uint64_t hash;
    struct mc_list members;
    uint64_t lease_until_ms;
    uint64_t refreshes; /* how often the lease was renewed; see mc_object_ext.joined_at */
    bool changed;       /* membership changed since */
    uint32_t member_count;
    uint32_t tenant_len, id_len;
    char bytes[];
};
struct mc_group_shard {
    struct mc_lock lock;
    uint32_t bucket_mask, count;
    struct mc_group **buckets;
};

/* ---- segments and clients ---- */

struct mc_segment {
    struct mw_segment info; /* strings are the segment's own */
    uint64_t serial;        /* never reused, unlike the address of this struct */
    uint64_t name_hash;
    struct mc_uuid client;
    struct mc_allocator *allocator; /* NULL = a client's disk: disks.c */
    _Atomic uint64_t disk_replicas; /* of a disk: how many name it, */
    _Atomic uint64_t disk_bytes;    /* and of how many bytes */
    /* What is free of its client's disk, in millionths; 0 = it has none, or has not said how large
     * it is. Kept only for the strategy that asks for it. */
    _Atomic uint32_t ssd_free_ppm;
    _Atomic int status;     /* enum mc_segment_status; UNMOUNTING: its replicas are hidden */
    uint64_t unmount_at_ms; /* graceful unmount; 0 = none */
    /* No allocation before: somebody may still read or write the same bytes. */
    uint64_t closed_until_ms;
    uint64_t unmounted_ms;
    /* Of an unmounted one: until when its readers and writers may go on, as far as the sweep has
     * come. */
    _Atomic uint64_t busy_until_ms;
    bool held_objects;   /* when it was unmounted */
    uint32_t sweep_left; /* shards that may still name it */
    uint64_t retired_as; /* the how-manieth unmount */
    struct mc_segment *next_retired;
    struct mc_metrics *metrics;
};

struct mc_client {
    struct mc_client *next;
    struct mc_uuid id;
    uint64_t last_seen_ms;
    bool remounted; /* told us all its segments since it was last unknown */
};

/* An extent whose object has gone but whose bytes somebody may still be writing or reading. */
struct mc_discarded {
    struct mc_segment *segment;
    struct mc_extent extent;
    uint64_t size;
    uint64_t free_at_ms;
};

/* ---- counters ---- */

struct mc_rpc_counters {
    struct mc_metric requests, failures, partial_successes, items, failed_items;
};
struct mc_master_counters {
    struct mc_rpc_counters rpc[MC_MASTER_RPC_COUNT];
    struct mc_metric put_start_alloc_failures, put_start_partial_allocations;
    struct mc_metric metadata_refusals;
    struct mc_metric discards, discard_releases, discarded_bytes;
    struct mc_metric evictions_attempted, evictions_successful, evicted_keys, evicted_bytes;
    struct mc_metric gets, valid_gets, hits, hit_bytes, disk_hits, disk_hit_bytes;
    struct mc_metric in_memory, on_disk; /* objects with a complete replica there */
    struct mc_metric soft_pins, expired_objects;
    struct mc_metric offloads_queued, offloads, offloaded_bytes, offload_failures, offload_adopted;
    struct mc_metric promotions_admitted, promotions_done, promotions_failed, promotions_expired,
        promotions_cancelled, promotions_rare, promotions_no_room, promotions_no_place,
        promotions_in_flight, promoted_bytes;
    struct mc_metric memory_evictions;                     /* of objects that stay on disk */
    struct mc_metric dead_files, dead_files_left;          /* files.c */
    struct mc_metric hot_objects, hot_copies, cold_copies; /* heat.c */
    struct mc_histogram value_size;
};

/* ---- the master ---- */

struct mc_placement_ops;
struct mc_tasks;
struct mc_drains;
struct mc_disks;
struct mc_changes;
struct mc_promotions;
struct mc_tenants;
struct mc_heat;

struct mc_master {
    struct mc_master_config config;
    const struct mc_clock *clock;
    struct mc_metrics *metrics;
    uint64_t hash_seed;
    _Atomic uint64_t rng_state;
    _Atomic uint64_t next_replica_id;
    _Atomic uint64_t *next_version; /* in the notes that outlive a master (changes.c) */
    const struct mc_placement_ops *placement;

    pthread_rwlock_t segments_lock;
    struct mc_segment **segments; /* mounted */
    size_t segment_count, segment_cap;
    struct mc_segment *retired; /* unmounting */
    uint64_t next_serial, retired_total;

    struct mc_lock clients_lock;
    struct mc_client *clients[MC_CLIENT_BUCKETS];
    size_t client_count;
    uint64_t next_client_check_ms; /* tick only */

    struct mc_lock discard_lock;
    struct mc_discarded *discarded; /* a binary heap, the earliest free_at_ms first */
    size_t discarded_count, discarded_cap;

    _Atomic bool need_eviction; /* a put found no room */
    uint32_t offload_shard;     /* the next that early offload looks at; the tick's */
    _Atomic bool metadata_full; /* budget.c: no new objects for now */
    _Atomic uint64_t group_bytes;
    double metadata_fill;                  /* tick only; of the limit, 0 without one */
    _Atomic uint64_t probes_lease_from_ms; /* until then memory is short: see evict.c */
    _Atomic uint32_t sweep_left;
    uint32_t sweep_next; /* tick only */
    uint32_t expire_next;
    struct { /* tick only: an eviction that goes on in the next tick */
        uint64_t wanted, least, evicted;
        bool running;
    } evict;
    struct mc_lock tick_lock;
    struct mc_dialects *dialects; /* which release each peer speaks */
    struct mc_traffic *traffic;   /* what the eviction policy learns from */
    struct mc_tasks *tasks;       /* what nodes are asked to do */
    struct mc_drains *drains;
    struct mc_disks *disks;
    struct mc_changes *changes;
    struct mc_promotions *promotions;
    struct mc_files *files;     /* files.h; NULL without root_fs_dir */
    struct mc_tenants *tenants; /* NULL without enable_multi_tenants */
    struct mc_heat *heat;       /* NULL with dynamic_replication off */
    uint64_t next_ssd_look_ms;  /* tick only */

    struct mc_master_counters counters;
    struct mc_group_shard groups[MC_GROUP_SHARDS];
    struct mc_page_pool pages;
    struct mc_shard shards[MC_SHARDS];
};

/* One RPC, or one tick, on its way through. */
#define MC_CALL_SEGMENT_CACHE 8u
struct mc_call {
    struct mc_master *m;
    struct mc_arena *arena;
    uint64_t now_ms;
    uint64_t gets, hits, hit_bytes; /* added to the counters once at the end */
    uint64_t disk_hits, disk_hit_bytes;
    uint64_t items, failed_items; /* of a batch */
    struct {                      /* endpoint strings already copied into the arena */
        uint64_t serial;
        struct mc_str endpoint, protocol;
    } seen[MC_CALL_SEGMENT_CACHE];
};

static inline void mc_count(struct mc_metric *metric, int64_t n) {
    mc_metric_add(metric, n);
}

/* ---- index.c ---- */

/* MC_INVALID_PARAMS for a tenant name that is not allowed or a key that is too long. */
MC_MUST_USE enum mc_status mc_key_make(const struct mc_master *m, struct mc_str tenant,
                                       struct mc_str user, struct mc_key *out);
static inline struct mc_shard *mc_shard_of(struct mc_master *m, uint64_t hash) {
    return &m->shards[hash >> (64 - MC_SHARD_BITS)];
}
void mc_shard_init(struct mc_shard *shard, struct mc_page_pool *pool);
/* All need the shard's lock. */
struct mc_object *mc_shard_find(struct mc_shard *shard, const struct mc_key *key);
/* The first object whose key has this hash. */
struct mc_object *mc_shard_find_hash(const struct mc_master *m, struct mc_shard *shard,
                                     uint64_t hash);
/* A zeroed object in no list; NULL when the shard is at its limit. The key must not be there. */
struct mc_object *mc_shard_insert(struct mc_shard *shard, const struct mc_key *key);
/* Takes the object out of the table and frees its record; replicas, lists, groups are the caller's
 * business. */
void mc_shard_erase(struct mc_master *m, struct mc_shard *shard, struct mc_object *o);
/* Calls fn for each object; fn may erase the object that it is given, and nothing else. Stops when
 * fn returns false. */
void mc_shard_each(struct mc_shard *shard,
                   bool (*fn)(void *ctx, struct mc_shard *shard, struct mc_object *o), void *ctx);
/* Visits a shard in pieces. Positions are the tags of keys with their bits reversed: a table's
 * homes in that order divide into those of a larger one, so that a walk that lets go of the lock,
 * and goes on where it was, sees each object that stays exactly once though the table has grown
 * meanwhile. Copies the objects whose home is at `from` and behind it, at least one home's and no
 * more than MC_WALK_OBJECTS + MC_WALK_SLACK; returns where to go on. Those of one home are in no
 * order. */
#define MC_WALK_END     (1u << 20)
#define MC_WALK_BUCKETS 4096u
#define MC_WALK_OBJECTS 512u
#define MC_WALK_SLACK                                                                              \
    64u /* objects of one home; at a load of 7/8 and a seeded hash 20 are many                     \
         */
uint32_t mc_shard_walk(struct mc_shard *shard, uint32_t from, struct mc_object **out,
                       size_t *count);
/* Sorts hashes into the order of the walk: shard, position, then the other bits. */
#define MC_WALK_REST_BITS (64 - MC_SHARD_BITS - 20)
uint64_t mc_walk_order(uint64_t hash);
uint64_t mc_object_hash(const struct mc_master *m, const struct mc_object *o);
static inline uint32_t mc_shard_count(const struct mc_shard *shard) {
    return atomic_load_explicit(&shard->count, memory_order_relaxed);
}
uint64_t mc_key_count(const struct mc_master *m);
/* Fetches what a look-up of this hash will touch, for batches. */
void mc_shard_prefetch(struct mc_master *m, uint64_t hash);

/* ---- object.c: all need the shard's lock ---- */

/* Finds the object, first dropping it when its life is over, and replicas whose segment is
 * unmounted; NULL when nothing is left of it. */
struct mc_object *mc_object_find(struct mc_master *m, struct mc_shard *shard,
                                 const struct mc_key *key);
/* False when the object had no other replicas and is erased. */
bool mc_object_drop_dead(struct mc_master *m, struct mc_shard *shard, struct mc_object *o);
/* Some replica is complete. */
bool mc_object_readable(const struct mc_master *m, struct mc_object *o);
bool mc_object_complete(struct mc_object *o);  /* every replica is */
bool mc_object_in_memory(struct mc_object *o); /* some replica is, complete or not */
/* To its tail. */
void mc_object_list(struct mc_shard *shard, struct mc_object *o, enum mc_object_list list);
void mc_object_unlist(struct mc_shard *shard, struct mc_object *o); /* before it is freed */
/* Puts a complete object where its pins say. `touched`: it has or had a lease. */
void mc_object_list_complete(struct mc_shard *shard, struct mc_object *o, bool touched);
void mc_object_set_replicas(struct mc_shard *shard, struct mc_object *o,
                            const struct mc_replica *replicas, unsigned count);
/* Takes replica i out of the object and frees its extent,
 * at once or at free_at_ms (0 = at once). */
void mc_object_remove_replica(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                              unsigned i, uint64_t free_at_ms);
/* Forgets the key's first replica of this type, and of this client when it is not NULL; the object
 * goes with its last. */
enum mc_status mc_object_forget_replica(struct mc_call *call, const struct mc_key *key, int type,
                                        const struct mc_uuid *client);
/* Erases the object and frees its extents at once: nobody may be reading or writing them. */
void mc_object_erase(struct mc_master *m, struct mc_shard *shard, struct mc_object *o);
/* Erases the object; its extents are freed at once, or later: complete ones when the last lease has
 * ended, others when the writer can no longer be writing. */
void mc_object_discard(struct mc_call *call, struct mc_shard *shard, struct mc_object *o);
/* Made when it is not there. */
struct mc_object_ext *mc_object_ext(struct mc_shard *shard, struct mc_object *o);
/* Tells mc_master_config.on_object_event what has changed since the last time. Whoever makes a
 * replica complete or incomplete calls it; removing one does by itself. */
void mc_object_announce(struct mc_master *m, struct mc_object *o);
void mc_describe(struct mc_call *call, const struct mc_object *o, const struct mc_replica *r,
                 struct mw_replica *out);
/* The readable replicas. */
void mc_describe_readable(struct mc_call *call, struct mc_object *o, struct mc_vec *out);

void mc_extent_free(struct mc_master *m, const struct mc_replica *r, uint64_t size);
void mc_discard_later(struct mc_master *m, const struct mc_replica *r, uint64_t size,
                      uint64_t free_at_ms);
void mc_discard_tick(struct mc_call *call);
void mc_discard_purge_segment(struct mc_master *m, const struct mc_segment *segment);
void mc_discard_destroy(struct mc_master *m);
/* Discards puts, copies and moves that were never ended. */
void mc_put_expire_tick(struct mc_call *call);
/* When somebody who has been given the replica to write can no longer be writing. */
uint64_t mc_object_written_until(const struct mc_master *m, const struct mc_object *o,
                                 const struct mc_replica *r);

/* ---- replication.c: need the shard's lock where they have a shard ---- */

static inline bool mc_replicating(const struct mc_object *o) {
    return o->ext && o->ext->replication;
}
enum mc_status mc_copy_start(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                             struct mc_str source, const struct mc_vec *targets,
                             struct mw_copy_start *out);
enum mc_status mc_move_start(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                             struct mc_str source, struct mc_str target, struct mw_move_start *out);
/* Takes the object out of its list until the end; the targets are its own from here on. */
void mc_replication_begin(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                          struct mc_uuid client, enum mc_replication_kind kind, uint64_t source,
                          const struct mc_replica *targets, unsigned count);
enum mc_status mc_replication_end(struct mc_call *call, const struct mc_key *key,
                                  struct mc_uuid client, enum mc_replication_kind kind);
enum mc_status mc_replication_revoke(struct mc_call *call, const struct mc_key *key,
                                     struct mc_uuid client, enum mc_replication_kind kind);
/* Gives up those that nobody has ended in time. */
void mc_replication_expire(struct mc_call *call, struct mc_shard *shard);
/* Forgets it; its replicas are the caller's business. */
void mc_replication_drop(struct mc_master *m, struct mc_object *o);

/* ---- traffic.c: hashes of keys, in the order of their batch ---- */

struct mc_traffic *mc_traffic_create(const struct mc_master_config *config);
void mc_traffic_destroy(struct mc_traffic *traffic);
bool mc_traffic_policy_exists(const char *name);
void mc_traffic_asked(struct mc_call *call, const uint64_t *hashes, size_t count);
void mc_traffic_read(struct mc_call *call, const uint64_t *hashes, size_t count); /* those found */
void mc_traffic_stored(struct mc_call *call, const uint64_t *hashes, size_t count);
void mc_traffic_gone(struct mc_master *m, uint64_t hash);
/* How many victims the policy can name; 0 with upstream's LRU, which is the shards' lists. */
uint64_t mc_traffic_candidates(struct mc_master *m);
bool mc_traffic_victim(struct mc_master *m, uint64_t *hash);
void mc_traffic_keep(struct mc_master *m, uint64_t hash); /* may not be evicted */

/* ---- heat.c ---- */

struct mc_heat *mc_heat_create(const struct mc_master_config *config);
void mc_heat_destroy(struct mc_heat *heat);
/* Objects with these hashes were read. */
void mc_heat_read(struct mc_call *call, const uint64_t *hashes, size_t count);
void mc_heat_tick(struct mc_call *call);

/* ---- tasks.c ---- */

struct mc_tasks *mc_tasks_create(void);
void mc_tasks_destroy(struct mc_tasks *tasks);
/* A task for `client`, who owns what is to be copied or moved. The payload is copied.
 * MC_TASK_PENDING_LIMIT_EXCEEDED. */
enum mc_status mc_task_create(struct mc_call *call, enum mc_task_type type, struct mc_uuid client,
                              struct mc_str payload, struct mc_uuid *id);
enum mc_status mc_task_query(struct mc_call *call, struct mc_uuid id, struct mw_task_info *out);
/* Up to `count` of the client's pending tasks, which are processing from now on. */
void mc_tasks_fetch(struct mc_call *call, struct mc_uuid client, uint64_t count,
                    struct mc_vec *out);
enum mc_status mc_task_complete(struct mc_call *call, struct mc_uuid client,
                                const struct mw_task_complete *done);
/* The client has gone: its tasks fail. */
void mc_tasks_drop_client(struct mc_call *call, struct mc_uuid client);
void mc_tasks_tick(struct mc_call *call);
uint64_t mc_tasks_count(struct mc_master *m, enum mc_task_status status);
/* Creates the task for the object's replica on `source`, or on any segment when that is empty. */
enum mc_status mc_copy_task(struct mc_call *call, const struct mc_key *key,
                            const struct mc_vec *targets, struct mc_uuid *id);
enum mc_status mc_move_task(struct mc_call *call, const struct mc_key *key, struct mc_str source,
                            struct mc_str target, struct mc_uuid *id);

/* ---- drain.c ---- */

struct mc_drains *mc_drains_create(void);
void mc_drains_destroy(struct mc_drains *drains);
void mc_drains_tick(struct mc_call *call);
bool mc_drains_running(const struct mc_master *m);
/* Is the client's SSD being drained? Then where to; none = anywhere. Without locks. */
bool mc_drain_targets(struct mc_call *call, struct mc_uuid client, struct mc_vec *targets);

/* ---- changes.c: what disks may not bring back ---- */

/* Begins a line of versions, or goes on with the one in config->offload_notes_path. */
struct mc_changes *mc_changes_create(const struct mc_master_config *config, struct mc_rng *rng,
                                     uint64_t now_ms);
void mc_changes_end(struct mc_changes *changes); /* what goes now is no change */
void mc_changes_destroy(struct mc_changes *changes);
void mc_changes_tick(struct mc_call *call);
_Atomic uint64_t *mc_changes_versions(struct mc_changes *changes); /* the next one */
uint64_t mc_changes_hash_seed(const struct mc_changes *changes);   /* of the keys in the notes */
static inline uint64_t mc_version_next(struct mc_master *m) {
    return atomic_fetch_add_explicit(m->next_version, 1, memory_order_seq_cst);
}
/* What was noted before is older, and what will be is not. */
static inline uint64_t mc_version_now(struct mc_master *m) {
    return atomic_load_explicit(m->next_version, memory_order_seq_cst);
}
/* What the key had until now was removed, or is being replaced. Where disks have it that must be
 * known first (mc_disk_replica_ends), and the shard's lock is held over both. */
void mc_changed(struct mc_master *m, uint64_t hash);
void mc_changed_all(struct mc_master *m, const struct mc_str *tenant); /* NULL = every tenant's */
/* A put has given the key this version. */
void mc_changed_by_put(struct mc_call *call, uint64_t hash, uint64_t version);
void mc_changes_disk_away(struct mc_call *call);
/* Whether a disk that holds this version of the key (0 = it does not know which), and was told of
 * everything older than `current` (0 = of nothing), may bring it back to an index that does not
 * have the key. */
bool mc_may_return(struct mc_master *m, const struct mc_key *key, uint64_t version,
                   uint64_t current);

/* ---- lease.c: all need the shard's lock ---- */

/* Of the object, its group considered. */
uint64_t mc_lease_end(struct mc_master *m, struct mc_object *o);
static inline bool mc_leased(struct mc_master *m, struct mc_object *o, uint64_t now_ms) {
    return mc_lease_end(m, o) > now_ms;
}
/* Grants a read lease and returns how long it lasts from now. */
uint64_t mc_lease_grant(struct mc_call *call, struct mc_shard *shard, struct mc_object *o);
void mc_group_join(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                   struct mc_str id);
void mc_group_leave(struct mc_master *m, struct mc_object *o);
struct mc_str mc_group_of(const struct mc_object *o); /* the group's id; "" = ungrouped */
/* Copies of the keys of at most `max` members, in the arena. */
struct mc_key *mc_group_members(struct mc_call *call, struct mc_object *o, size_t max,
                                size_t *count);

bool mc_groups_check(struct mc_master *m, struct mc_buf *report);

/* ---- deadline.c: all need the shard's lock ---- */

void mc_soft_pin_pending(struct mc_shard *shard, struct mc_object *o, uint8_t action,
                         uint64_t ttl_ms);
void mc_soft_pin_commit(struct mc_call *call, struct mc_shard *shard, struct mc_object *o);
void mc_soft_pin_clear(struct mc_master *m, struct mc_shard *shard, struct mc_object *o);
void mc_soft_pin_restore(struct mc_master *m, struct mc_shard *shard, struct mc_object *o,
                         uint64_t until_ms);
static inline bool mc_soft_pinned(const struct mc_object *o) {
    return o->ext && o->ext->soft_until_ms != 0;
}
/* How long it will live once it can be read; 0 = for ever. Until then its life has not begun. */
void mc_life_pending(struct mc_shard *shard, struct mc_object *o, uint64_t ttl_ms);
void mc_life_begin(struct mc_call *call, struct mc_shard *shard, struct mc_object *o);
bool mc_life_over(const struct mc_object *o, uint64_t now_ms);
/* Erases the object. */
void mc_life_end(struct mc_master *m, struct mc_shard *shard, struct mc_object *o, uint64_t now_ms);
static inline bool mc_mortal(const struct mc_object *o) {
    return o->ext && o->ext->life_ms != 0;
}
uint64_t mc_deadline_of(const struct mc_object_ext *ext); /* UINT64_MAX = none */
void mc_deadlines_clear(struct mc_master *m, struct mc_shard *shard, struct mc_object *o);
void mc_deadlines_expire(struct mc_call *call, struct mc_shard *shard);

/* ---- segments.c, clients.c, placement.c ---- */

enum mc_status mc_segment_mount(struct mc_call *call, const struct mw_segment *segment,
                                struct mc_uuid client);
enum mc_status mc_segment_unmount(struct mc_call *call, struct mc_uuid id, struct mc_uuid client);
enum mc_status mc_segment_unmount_gracefully(struct mc_call *call, struct mc_uuid id,
                                             struct mc_uuid client, uint64_t grace_ms);
enum mc_status mc_segment_status_by_name(struct mc_master *m, struct mc_str name, int32_t *status);
enum mc_status mc_segment_status_by_id(struct mc_master *m, struct mc_uuid id, int32_t *status);
/* Unmounts all segments of the client; their names, copied into the arena. */
size_t mc_segments_drop_client(struct mc_call *call, struct mc_uuid client, struct mc_str **names);
void mc_segments_tick(struct mc_call *call);
void mc_segment_table_destroy(struct mc_master *m);
void mc_segments_usage(struct mc_master *m, uint64_t *used, uint64_t *capacity, uint64_t *count);
/* Somebody may go on writing to or reading from the unmounted segment until then. */
void mc_segment_busy_until(struct mc_segment *s, uint64_t until_ms);
static inline bool mc_segment_gone(const struct mc_segment *s) {
    /* relaxed: whoever must not miss it holds segments_lock or comes by again */
    return atomic_load_explicit(&s->status, memory_order_relaxed) == MC_SEGMENT_UNMOUNTING;
}
/* What LOCAL_DISK replicas of a client point to; in no table until it is retired. */
struct mc_segment *mc_segment_disk_make(struct mc_master *m, struct mc_uuid client,
                                        struct mc_str endpoint);
void mc_segment_disk_retire(struct mc_call *call, struct mc_segment *s);
void mc_segment_disk_free(struct mc_segment *s); /* one that nothing names */
/* Addresses of the client's segments, without ports, each once; false when it has no segment. */
bool mc_segments_ips(struct mc_call *call, struct mc_uuid client, struct mc_vec *ips);

void mc_client_seen(struct mc_master *m, struct mc_uuid id, uint64_t now_ms, bool remounted);
/* False: must remount. */
bool mc_client_ping(struct mc_master *m, struct mc_uuid id, uint64_t now_ms);
/* It is told so when it pings. */
void mc_client_must_remount(struct mc_master *m, struct mc_uuid id);
void mc_clients_tick(struct mc_call *call);
void mc_clients_destroy(struct mc_master *m);

/* `hash`: the key's. Allocates up to `wanted` replicas on segments of distinct names; returns how
 * many. segments_lock must be held. */
unsigned mc_place(struct mc_call *call, uint64_t size, unsigned wanted, uint64_t hash,
                  const struct mw_replicate_config *config, struct mc_replica *out);
/* One replica on a segment of that name. MC_SEGMENT_NOT_FOUND; MC_UNAVAILABLE_IN_CURRENT_STATUS
 * (none of them takes objects now); MC_NO_AVAILABLE_HANDLE. */
enum mc_status mc_place_named(struct mc_call *call, uint64_t size, struct mc_str name,
                              struct mc_replica *out);
/* Changes the status of all segments of that name from one to another; how many there are, changed
 * or not. */
size_t mc_segments_set_status(struct mc_master *m, struct mc_str name, int from, int to);
/* Live extents of the segments of that name. */
/* It has segments, and all of them are DRAINED. Needs segments_lock. */
bool mc_client_drained(const struct mc_master *m, struct mc_uuid client);
uint64_t mc_segments_extents(struct mc_master *m, struct mc_str name);
/* A segment name for one more replica of an object of this size: of `among` (empty = all), not in
 * `except`, open, with room as far as one can tell; chosen at random. False when there is none. The
 * name is copied into the arena. */
bool mc_place_target(struct mc_call *call, uint64_t size, const struct mc_vec *among,
                     const struct mc_vec *except, struct mc_str *name);
/* Whether some segment of that name takes objects. segments_lock must be held. */
enum mc_status mc_place_check(const struct mc_call *call, struct mc_str name);
/* Whether some open segment would have room if it were empty. segments_lock must be held. */
bool mc_place_possible(const struct mc_call *call, uint64_t size,
                       const struct mw_replicate_config *config);
const struct mc_placement_ops *mc_placement_find(const char *name);
uint64_t mc_random(struct mc_master *m);

/* ---- what the RPCs do: put.c, read.c, remove.c ---- */

struct mc_put {
    struct mc_uuid client;
    uint64_t size;
    const struct mw_replicate_config *config;
    struct mc_str group;
    uint64_t ttl_ms;      /* 0 = for ever */
    uint8_t condition;    /* MW_PUT_* */
    uint64_t expected;    /* of MW_PUT_IF_VERSION and _CHECKSUM */
    uint64_t stripe_over; /* may be striped from so many bytes on; 0 = never */
};
MC_MUST_USE enum mc_status mc_put_validate(const struct mc_master *m,
                                           const struct mw_replicate_config *config, size_t keys);
enum mc_status mc_put_start(struct mc_call *call, const struct mc_key *key,
                            const struct mc_put *put, struct mc_vec *replicas);
enum mc_status mc_upsert_start(struct mc_call *call, const struct mc_key *key,
                               const struct mc_put *put, struct mc_vec *replicas);
enum mc_status mc_put_end(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                          int32_t type, struct mw_opt_u64 checksum);
enum mc_status mc_put_revoke(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                             int32_t type);

/* stripe.c. How many copies an object that is being written, or (`complete`) that is to be read,
 * has of the stripe that it has fewest of. Needs the shard's lock, as do the next two. */
unsigned mc_stripes_copies(struct mc_object *o, bool complete);
static inline bool mc_stripes_whole(struct mc_object *o, bool complete) {
    return mc_stripes_copies(o, complete) > 0;
}
/* When some stripe is lost, what is left of the others goes; what is on disk stays. */
void mc_stripes_drop_broken(struct mc_master *m, struct mc_shard *shard, struct mc_object *o);
/* As wire/master_rpc.h says; `complete`: what can be read, else all. */
void mc_stripes_describe(struct mc_call *call, struct mc_object *o, bool complete,
                         struct mc_vec *out);
bool mc_stripes_wanted(const struct mc_put *put);
/* Extents for a striped object; *count = 0 when there is no room for two stripes or more. Needs
 * segments_lock (read). As `allocate` in put.c. */
enum mc_status mc_stripes_place(struct mc_call *call, const struct mc_key *key,
                                const struct mc_put *put, uint64_t credit, struct mc_replica *out,
                                unsigned *count);
/* Of its smallest extent possible. */
uint64_t mc_stripes_least_bytes(const struct mc_call *call, const struct mc_put *put);
/* What its tenant would be charged for all of it; 0 = it would not be striped. The same. */
uint64_t mc_stripes_charge(const struct mc_call *call, const struct mc_put *put);

bool mc_exists(struct mc_call *call, const struct mc_key *key);
/* What is known of the object; grants no lease. */
enum mc_status mc_inspect(struct mc_call *call, const struct mc_key *key,
                          struct mw_object_info *out);
enum mc_status mc_get(struct mc_call *call, const struct mc_key *key, struct mw_replica_list *out);
/* The same for clients of ours: with version and size, and striped objects too. */
enum mc_status mc_get_object(struct mc_call *call, const struct mc_key *key, struct mw_object *out);
enum mc_status mc_get_by_regex(struct mc_call *call, struct mc_str tenant, struct mc_str pattern,
                               struct mc_vec *out);

enum mc_status mc_remove(struct mc_call *call, const struct mc_key *key, bool force);
enum mc_status mc_remove_by_regex(struct mc_call *call, struct mc_str tenant, struct mc_str pattern,
                                  bool force, int64_t *removed);
/* tenant NULL = all. */
int64_t mc_remove_all(struct mc_call *call, const struct mc_str *tenant, bool force);
enum mc_status mc_replica_clear(struct mc_call *call, const struct mc_key *key,
                                struct mc_uuid client, struct mc_str segment);
MC_MUST_USE enum mc_status mc_tenant_normalise(struct mc_str tenant, struct mc_str *out);
/* The tenant's keys that the pattern finds, copied into the arena; struct mc_str each. */
MC_MUST_USE enum mc_status mc_regex_keys(struct mc_call *call, struct mc_str tenant,
                                         struct mc_str pattern, struct mc_vec *keys);
/* Keys of one shard, copied into the arena; tenant NULL = all. */
struct mc_key *mc_shard_keys(struct mc_call *call, struct mc_shard *shard,
                             const struct mc_str *tenant, size_t *count);

/* budget.c */
uint64_t mc_metadata_bytes(struct mc_master *m);
void mc_budget_tick(struct mc_call *call);

void mc_evict_tick(struct mc_call *call);
/* Makes room in a tenant's quota for so many bytes by evicting its objects, the oldest first; looks
 * at a bounded number of objects. False when nothing went. No lock may be held. */
bool mc_evict_for_tenant(struct mc_call *call, struct mc_str tenant, uint64_t bytes);
/* Writing for longer than allowed. */
bool mc_put_abandoned(const struct mc_call *call, const struct mc_object *o);

void mc_master_metrics_register(struct mc_master *m);
void mc_master_metrics_unregister(struct mc_master *m);
void mc_segment_metrics_register(struct mc_segment *segment);

/* ---- the RPC table: handle.c, and the handlers in rpc_*.c ---- */

typedef void (*mc_rpc_method_fn)(struct mc_call *call, const void *args, void *ret);
struct mc_rpc_method {
    mc_rpc_method_fn run;
    const char *metric; /* in metric names, "exist_key"; NULL: upstream has no counters for it */
    bool batch;         /* has items; a single one's answer begins with its error */
};
extern const struct mc_rpc_method mc_rpc_methods[MC_MASTER_RPC_COUNT];

#endif
