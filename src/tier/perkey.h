/* What the files of the backend `file per key` share. Private to the room; see tier/perkey.c. */
#ifndef MC_TIER_PERKEY_H
#define MC_TIER_PERKEY_H

#include "tier/common.h"

#define PERKEY_GROUP 64u /* files that are open at once, in a put and in a read */

struct perkey_backend {
    struct mc_tier_backend face;
    const struct mc_tier_config *config;
    uint64_t capacity;
    struct mc_buf directory, scratch; /* <path>/<subdirectory>, <path>/.mooncake.tmp */

    pthread_mutex_t put_lock; /* one writer: guards what follows */
    bool made[256];           /* directories that are there, by the letters of their name */

    /* Guarded by face.lock, which is not held while data is read or written. */
    struct mc_tier_order order; /* of objects, by hash */
    uint64_t used_bytes, next_seq;
    bool names_behind; /* a file was unlinked whose directory is not synced */
    /* Keys, each behind its length in a uint32_t: a file of them could not be unlinked, or is
     * broken and stays, and a start would find it. It is tried again (perkey_settle). */
    struct mc_buf ghosts;
    bool haunted; /* until the next start: what could not be read then, or more of these */
    struct mc_tier_stats stats;

    struct mc_tier_rings rings;
};

/* Puts an entry where readers find it. Needs the lock. */
void perkey_publish_locked(struct perkey_backend *b, struct mc_tier_entry *entry);
/* Takes it out and frees it; its file is the caller's affair. Needs the lock. */
void perkey_drop_locked(struct perkey_backend *b, struct mc_tier_entry *entry);
/* A start would find a file of the key. Needs the lock. */
void perkey_haunt_locked(struct perkey_backend *b, struct mc_str key);
/* The key that the file says it is of, in *head; false when it says none. */
bool perkey_key_in(const char *path, struct mc_buf *head, struct mc_str *key);
/* The checksum of the value, in an extended attribute beside the time of the file's last change:
 * one that somebody else has written since has none. */
bool perkey_get_crc(int fd, struct mc_tier_entry *entry);
void perkey_set_crc(int fd, const struct mc_tier_entry *entry);

/* perkey_put.c */
void perkey_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count);
/* perkey_read.c */
void perkey_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count);
/* perkey_scan.c: reads the directory; drops what is not whole. */
enum mc_status perkey_recover(struct perkey_backend *b);

#endif
