/*
 * tier: objects on this machine's SSD, behind memory.
 *
 * A tier is a directory that one process owns (a lock file with the owner's name says so) and a
 * backend that knows how objects lie in it. Backends are rows of a table in tier.c; their formats
 * are upstream's, file for file, so that a directory written by either side opens with the other.
 *
 *     struct mc_tier_config config = {.path = "/nvme/kv", .owner = "10.0.0.1:12345", ...};
 *     mc_tier_open(&config, &tier);        // locks, scans, drops what is not whole
 *     mc_tier_put(tier, items, n);         // durable when an item's status is MC_OK
 *     mc_tier_read(tier, reads, n);        // checksum and key verified
 *     mc_tier_close(tier);
 *
 * A crash loses at most what put had not acknowledged. Keys are bytes; the store gives
 * "tenant NUL key". Thread safe; puts run one after the other, reads side by side. Functions block
 * on the disk. Errors are logged with the path. May call base and io.
 */
#ifndef MC_TIER_TIER_H
#define MC_TIER_TIER_H

#include "base/base.h"
#include "base/metrics.h"
#include "io/nvme.h"

#define MC_TIER_BLOCK   4096u /* what O_DIRECT wants of addresses and sizes */
#define MC_TIER_KEY_MAX (1u << 20)

enum mc_tier_eviction {
    MC_TIER_EVICT_NONE, /* a put that finds no room fails */
    MC_TIER_EVICT_FIFO, /* what was written first goes first */
    MC_TIER_EVICT_LRU,  /* what was not read for longest */
    MC_TIER_EVICT_OWN,  /* the store's own policy: policy/chain.c */
};

struct mc_tier_config {
    const char *path; /* a directory that exists */
    /* "bucket_storage_backend" (NULL = that), "file_per_key_storage_backend",
     * "offset_allocator_storage_backend", "nvme_kv_storage_backend". */
    const char *backend;
    const char *subdirectory; /* of the file per key; NULL = "file_per_key_dir" */
    /* Of the NVMe KV: the namespace, whose number is 1 unless it is said; the longest value that
     * one command moves (0 = 264 KiB); how commands get there. `path` is still locked. */
    const char *device;
    uint32_t device_nsid, device_value_bytes;
    enum mc_nvme_road device_road;
    const char *owner; /* written into the lock file, for whoever finds it locked */
    /* Bytes on disk, as the file system counts them; 0 = 90 % of what is free and ours at the
     * start. */
    uint64_t capacity_bytes;
    enum mc_tier_eviction eviction;
    /* A file of the bucket backend is closed at one of these; 0 = 256 MiB, 500. */
    uint64_t bucket_bytes;
    uint32_t bucket_keys;
    unsigned depth; /* operations under way at once, of a put and of each call that reads; 0 = 64 */
    uint64_t scrub_bytes_per_second; /* a thread reads everything again and again; 0 = none */
    bool buffered; /* through the page cache; else O_DIRECT where the file system has it */
    /* Called, without locks, for each key that the tier dropped by itself: evicted, or found
     * broken. May be NULL. */
    void (*lost)(void *ctx, struct mc_str key);
    void *lost_ctx;
};

#define MC_TIER_NO_BUCKET (-1) /* bucket_id of an object that has a file of its own */

struct mc_tier;
/* MC_FILE_NOT_FOUND (no such directory), MC_UNAVAILABLE_IN_CURRENT_STATUS (another process owns
 * it: the log says which), MC_INVALID_PARAMS (unknown backend), MC_FILE_READ_FAIL. */
MC_MUST_USE enum mc_status mc_tier_open(const struct mc_tier_config *config, struct mc_tier **out);
void mc_tier_close(struct mc_tier *tier); /* NULL is allowed */

struct mc_tier_item {
    struct mc_str key; /* 1 to MC_TIER_KEY_MAX bytes */
    const void *value;
    uint64_t size; /* from 1 */
    uint64_t tag;  /* of the caller, who finds it again in a scan; 0 = none */
    /* NULL, or the value is memory that another may write to: asked when its last byte was read,
     * and before anything of it can be found. False = what was read is not the value. Only
     * where mc_tier_borrows(). */
    bool (*still)(void *ctx);
    void *still_ctx;
    /* Set by put. Where it lies, in upstream's words for the master. */
    int64_t bucket_id, offset;
    enum mc_status status;
};
/* Writes the items; a key that is there is replaced, and what it held does not come back, whatever
 * becomes of the disk: a put that fails may have lost it. Each item has its own status: MC_OK = it
 * is on disk and survives a crash; MC_FILE_WRITE_FAIL (a full disk too); MC_INVALID_PARAMS;
 * MC_LEASE_EXPIRED (`still` said no). Returns the first failure, of another kind than that if there
 * is one. */
MC_MUST_USE enum mc_status mc_tier_put(struct mc_tier *tier, struct mc_tier_item *items,
                                       size_t count);

/* Whether the backend asks `still`. */
bool mc_tier_borrows(const struct mc_tier *tier);

/* Memory that a read of `size` bytes under a key of `key_len` wants, aligned to MC_TIER_BLOCK. */
static inline uint64_t mc_tier_read_room(uint64_t key_len, uint64_t size) {
    return (key_len + size + 2 * MC_TIER_BLOCK - 1) / MC_TIER_BLOCK * MC_TIER_BLOCK;
}
struct mc_tier_read {
    struct mc_str key;
    uint64_t size; /* what the caller takes the object to be */
    void *room;    /* mc_tier_read_room() bytes, aligned to MC_TIER_BLOCK */
    void *value;   /* set: where in `room` the object begins */
    bool unused;   /* looked at, not used: counts for nothing in the order of eviction */
    /* MC_OBJECT_NOT_FOUND (not there, or of another size), MC_FILE_READ_FAIL,
     * MC_CHECKSUM_MISMATCH. */
    enum mc_status status;
};
MC_MUST_USE enum mc_status mc_tier_read(struct mc_tier *tier, struct mc_tier_read *reads,
                                        size_t count);

/* Says where the rooms of most reads will be, so that the kernel keeps its pages at hand. The
 * memory outlives the tier. */
void mc_tier_use_memory(struct mc_tier *tier, void *memory, size_t bytes);

bool mc_tier_find(struct mc_tier *tier, struct mc_str key, uint64_t *size);
/* Durable: the key does not come back with the next start. MC_OBJECT_NOT_FOUND. */
MC_MUST_USE enum mc_status mc_tier_remove(struct mc_tier *tier, struct mc_str key);
/* Many for the price of few; *removed = how many were there. Those of a call that failed are gone
 * until the next start, which may find them. */
MC_MUST_USE enum mc_status mc_tier_remove_keys(struct mc_tier *tier, const struct mc_str *keys,
                                               size_t count, size_t *removed);
MC_MUST_USE enum mc_status mc_tier_clear(struct mc_tier *tier);
/* A number that the owner keeps beside the objects, about those that a start would find; 0 = none.
 * It is taken only when what the tier gave up by itself until now, evicted or broken, does not come
 * back either; else it stays as it was. It may fall back to an older one. */
void mc_tier_mark(struct mc_tier *tier, uint64_t mark);
uint64_t mc_tier_marked(struct mc_tier *tier);

struct mc_tier_found {
    struct mc_str key;
    uint64_t size;
    int64_t bucket_id, offset;
    uint64_t tag; /* 0: it was put without, or its file has no place for one, as upstream's */
};
/* Every object, in no order; fn may not call the tier. Stops when fn returns false. */
void mc_tier_scan(struct mc_tier *tier, bool (*fn)(void *ctx, const struct mc_tier_found *found),
                  void *ctx);

struct mc_tier_stats {
    uint64_t capacity_bytes, used_bytes; /* on disk */
    uint64_t objects, files;
    uint64_t written_objects, written_bytes, read_objects, read_bytes; /* since the start */
    uint64_t borrowed_objects; /* of those written: from memory with `still` */
    uint64_t scrubbed_objects, scrubbed_bytes, scrub_rounds;
    uint64_t evicted_objects, broken_objects, failed_writes, failed_reads;
    bool direct; /* O_DIRECT is in use */
};
/* Reads everything once, as the scrubber does; what is broken is told of through `lost`. */
void mc_tier_scrub(struct mc_tier *tier);
void mc_tier_stats(struct mc_tier *tier, struct mc_tier_stats *out);

/* What calls of mc_tier_read and mc_tier_put moved, and how long they took, in microseconds: in
 * upstream's buckets, and in finer ones for quantiles. */
struct mc_tier_time {
    struct mc_metric objects, bytes; /* of values alone */
    struct mc_steps steps;
    struct mc_histogram fine;
};
struct mc_tier_times {
    struct mc_tier_time read, write, total;
};
struct mc_tier_times *mc_tier_times(struct mc_tier *tier); /* the tier's */

#endif
