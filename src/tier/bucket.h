/* What the files of the bucket backend share. Private to the room; see tier/bucket.c. */
#ifndef MC_TIER_BUCKET_H
#define MC_TIER_BUCKET_H

#include <stdatomic.h>

#include "tier/common.h"

#define BUCKET_STEP    (256u << 10) /* bytes of one write */
#define BUCKET_STAGING (16u << 20)  /* written at once; whole steps */

struct bucket {
    struct mc_list link; /* oldest first */
    int64_t id;
    uint64_t file_bytes; /* length of the .bucket file */
    uint64_t data_bytes; /* of it, records */
    uint64_t disk_bytes; /* what the file system took for both files */
    struct mc_tier_entry **entries;
    size_t count, live;
    unsigned users; /* readers that have it; the last one frees a dead bucket */
    bool dead;      /* its files are gone, or going */
    bool ours;      /* it has a trailer */
    bool behind;    /* its .meta still names a key that was taken out */
    bool direct;    /* how fd was opened */
    int fd;         /* for reading; -1 = not opened yet */
};

struct bucket_backend {
    struct mc_tier_backend face;
    const struct mc_tier_config *config;
    uint64_t capacity, bucket_bytes;
    uint32_t bucket_keys;
    _Atomic bool direct; /* O_DIRECT: wanted, and not refused by the file system at a write */

    pthread_mutex_t put_lock; /* one writer: guards what follows */
    void *staging;
    struct mc_file_ring *put_ring;
    int64_t next_id;

    /* Guarded by face.lock, which is not held while data is read or written. */
    bool names_behind; /* a file was unlinked that must not come back */
    bool haunted;      /* a .meta could not be: a start finds the bucket */
    struct mc_list buckets;
    size_t bucket_count, behind_count;
    uint64_t used_bytes;
    struct mc_tier_stats stats;
    struct mc_tier_order order; /* of buckets, by id */

    struct mc_tier_rings rings;
};

/* "<path>/<id>.bucket" or ".meta", for messages and system calls. */
const char *bucket_path(const struct bucket_backend *b, int64_t id, const char *suffix,
                        struct mc_buf *out);
uint64_t bucket_size_on_disk(const struct bucket_backend *b, int64_t id);
/* Unlinks the bucket's files. Needs the lock. */
void bucket_unlink_locked(struct bucket_backend *b, int64_t id);
/* In no list and no index yet; takes no reference. */
struct bucket *bucket_make(int64_t id, size_t count);
void bucket_discard(struct bucket *bucket); /* one that was never published */
/* Puts a complete bucket, and its entries, where readers find them. Needs the lock. */
void bucket_publish_locked(struct bucket_backend *b, struct bucket *bucket);
/* Takes it out; the files are unlinked, and its memory freed when nobody reads it. The keys that
 * were live are added to `lost`. Needs the lock. */
void bucket_retire_locked(struct bucket_backend *b, struct bucket *bucket, struct mc_buf *lost);
void bucket_unuse_locked(struct bucket *bucket); /* the end of users++ */
/* The entry is out of the index; a bucket without live entries goes, another's .meta is behind
 * until bucket_forget. Needs the lock. */
void bucket_entry_dropped_locked(struct bucket_backend *b, struct mc_tier_entry *entry);

/* Takes the keys out, on disk as well: when this has succeeded no start finds what they held. Those
 * that were there are added to `lost`. When it fails the next call tries again what this one could
 * not. Needs put_lock. */
enum mc_status bucket_forget(struct bucket_backend *b, const struct mc_str *keys, size_t count,
                             struct mc_buf *lost);

/* bucket_scan.c: reads the directory; drops what is not whole. */
enum mc_status bucket_recover(struct bucket_backend *b);
/* bucket_read.c */
void bucket_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count);
/* bucket_put.c */
void bucket_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count);
enum mc_status bucket_rewrite_meta(struct bucket_backend *b, struct bucket *bucket);

#endif
