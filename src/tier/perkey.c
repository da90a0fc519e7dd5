/*
 * The backend `file per key`: upstream's file_per_key_storage_backend (tier/keyfile.h says how a
 * file looks).
 *
 * A file is written under another name in a directory of ours, synced, and renamed to its place, so
 * that at its place there is never a part of an object; what lies in that directory at the start is
 * deleted. Upstream writes in place: a file that is shorter than it says is what a crash left, and
 * deleted too. The checksum is an extended attribute, where the file system has them.
 *
 * Two keys can have the same name ("a/b" and "a_b", if their hashes agree). The later one has the
 * file; the entry of the earlier one is dropped then.
 *
 * Invariant: used_bytes is the sum of `disk` over the entries in the index; an entry's file is
 * there unless somebody else took it away, which a read finds out.
 */
#include "tier/perkey.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/log.h"
#include "io/key_path.h"

#define SCRATCH     ".mooncake.tmp"
#define GHOST_BYTES (256u << 10)
#define CRC_NAME    "user.mooncake.crc32c"

/* ---- entries ---- */

void perkey_publish_locked(struct perkey_backend *b, struct mc_tier_entry *entry) {
    entry->seq = ++b->next_seq;
    b->used_bytes += entry->disk;
    struct mc_tier_entry *old = mc_tier_index_insert(&b->face.index, entry);
    if (old != NULL) {
        b->used_bytes -= old->disk;
        free(old);
    }
}

void perkey_drop_locked(struct perkey_backend *b, struct mc_tier_entry *entry) {
    b->used_bytes -= entry->disk;
    mc_tier_index_remove(&b->face.index, entry);
    mc_tier_order_removed(&b->order, entry->hash);
    free(entry);
}

/* ---- checksums ---- */

struct crc_attribute {
    uint32_t crc, reserved;
    int64_t seconds, nanoseconds; /* of the file's last change */
    uint64_t tag;                 /* not there in what earlier versions wrote */
};

bool perkey_get_crc(int fd, struct mc_tier_entry *entry) {
    struct crc_attribute a = {0};
    struct stat info;
    ssize_t got = fgetxattr(fd, CRC_NAME, &a, sizeof(a));
    if ((got != sizeof(a) && got != offsetof(struct crc_attribute, tag)) || fstat(fd, &info) != 0 ||
        a.seconds != info.st_mtim.tv_sec || a.nanoseconds != info.st_mtim.tv_nsec) {
        return false;
    }
    entry->crc = a.crc;
    entry->tag = a.tag;
    return true;
}

void perkey_set_crc(int fd, const struct mc_tier_entry *entry) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct stat info;
    if (fstat(fd, &info) == 0) {
        struct crc_attribute a = {entry->crc, 0, info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                                  entry->tag};
        if (fsetxattr(fd, CRC_NAME, &a, sizeof(a), 0) == 0) {
            return;
        }
    }
    if (!atomic_flag_test_and_set(&said)) {
        mc_warn("checksums are not kept with the files of the SSD tier: after a restart their "
                "objects are not verified: errno=%d reason=\"%s\"",
                errno, strerror(errno));
    }
}

/* ---- questions and removals ---- */

/* Needs the lock. */
static enum mc_status unlink_key(struct perkey_backend *b, struct mc_str key, struct mc_buf *path) {
    mc_buf_clear(path);
    mc_key_path(mc_str_from(b->directory.data), key, path);
    if (unlink(mc_buf_cstr(path)) != 0 && errno != ENOENT) {
        mc_warn_limited("a file of the SSD tier cannot be deleted: path=%s errno=%d reason=\"%s\"",
                        path->data, errno, strerror(errno));
        perkey_haunt_locked(b, key);
        return MC_FILE_WRITE_FAIL;
    }
    return MC_OK;
}

static void note_behind(struct perkey_backend *b) {
    pthread_mutex_lock(&b->face.lock);
    b->names_behind = true;
    pthread_mutex_unlock(&b->face.lock);
}

static enum mc_status perkey_remove(struct mc_tier_backend *face, const struct mc_str *keys,
                                    size_t count, size_t *removed) {
    struct perkey_backend *b = (struct perkey_backend *)face;
    enum mc_status status = MC_OK;
    struct mc_buf path = {0};
    pthread_mutex_lock(&b->put_lock); /* else a new file of the key might be deleted */
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_lock(&b->face.lock);
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, keys[i]);
        if (e != NULL) {
            perkey_drop_locked(b, e);
        }
        pthread_mutex_unlock(&b->face.lock);
        if (e != NULL) {
            pthread_mutex_lock(&b->face.lock);
            enum mc_status one = unlink_key(b, keys[i], &path);
            pthread_mutex_unlock(&b->face.lock);
            one = one == MC_OK ? mc_file_sync_names(path.data) : one;
            if (one != MC_OK) {
                note_behind(b);
            }
            status = status == MC_OK ? one : status;
            (*removed)++;
        }
    }
    pthread_mutex_unlock(&b->put_lock);
    mc_buf_free(&path);
    return status;
}

/* What was unlinked does not come back: each of the 256 directories once. */
static enum mc_status sync_all_names(const struct perkey_backend *b) {
    enum mc_status status = MC_OK;
    struct mc_buf path = {0};
    for (unsigned which = 0; which < 256; which++) {
        mc_buf_clear(&path);
        mc_buf_printf(&path, "%s/%c/%c", b->directory.data, 'a' + (int)(which >> 4),
                      'a' + (int)(which & 15));
        struct stat info;
        if (stat(mc_buf_cstr(&path), &info) == 0) {
            mc_buf_printf(&path, "/x");
            enum mc_status one = mc_file_sync_names(mc_buf_cstr(&path));
            status = status == MC_OK ? one : status;
        }
    }
    mc_buf_free(&path);
    return status;
}

static enum mc_status perkey_clear(struct mc_tier_backend *face) {
    struct perkey_backend *b = (struct perkey_backend *)face;
    enum mc_status status = MC_OK;
    uint64_t cursor = 0;
    struct mc_buf path = {0};
    pthread_mutex_lock(&b->put_lock);
    pthread_mutex_lock(&b->face.lock);
    for (struct mc_tier_entry *e; (e = mc_tier_index_next(&b->face.index, &cursor)) != NULL;) {
        enum mc_status one = unlink_key(b, mc_tier_entry_key(e), &path);
        status = status == MC_OK ? one : status;
        perkey_drop_locked(b, e);
        cursor--; /* the one behind it has moved up */
    }
    pthread_mutex_unlock(&b->face.lock);
    enum mc_status synced = sync_all_names(b);
    if (synced != MC_OK) {
        note_behind(b);
    }
    pthread_mutex_unlock(&b->put_lock);
    mc_buf_free(&path);
    return status == MC_OK ? synced : status;
}

void perkey_haunt_locked(struct perkey_backend *b, struct mc_str key) {
    uint32_t len = (uint32_t)key.len;
    if (b->ghosts.len + sizeof(len) + key.len > GHOST_BYTES) {
        b->haunted = true;
        return;
    }
    mc_buf_append(&b->ghosts, &len, sizeof(len));
    mc_buf_append(&b->ghosts, key.ptr, len);
}

/* What a put of the key has replaced meanwhile, or has become another key's, haunts nobody. Needs
 * put_lock and the lock. */
static void lay(struct perkey_backend *b, struct mc_str key) {
    struct mc_buf path = {0}, head = {0};
    struct mc_str other;
    mc_key_path(mc_str_from(b->directory.data), key, &path);
    bool replaced = mc_tier_index_find(&b->face.index, key) != NULL ||
                    (perkey_key_in(path.data, &head, &other) && !mc_str_eq(key, other) &&
                     mc_tier_index_find(&b->face.index, other) != NULL);
    if (!replaced && unlink_key(b, key, &path) == MC_OK) {
        b->names_behind = true;
    }
    mc_buf_free(&path);
    mc_buf_free(&head);
}

static void lay_ghosts(struct perkey_backend *b) {
    struct mc_buf ghosts = b->ghosts;
    b->ghosts = (struct mc_buf){0};
    for (size_t at = 0; at < ghosts.len;) {
        uint32_t len;
        memcpy(&len, ghosts.data + at, sizeof(len));
        lay(b, (struct mc_str){ghosts.data + at + sizeof(len), len});
        at += sizeof(len) + len;
    }
    mc_buf_free(&ghosts);
}

static enum mc_status perkey_settle(struct mc_tier_backend *face) {
    struct perkey_backend *b = (struct perkey_backend *)face;
    pthread_mutex_lock(&b->put_lock);
    pthread_mutex_lock(&b->face.lock);
    lay_ghosts(b);
    bool names = b->names_behind;
    enum mc_status status = b->haunted || b->ghosts.len > 0 ? MC_FILE_WRITE_FAIL : MC_OK;
    b->names_behind = false;
    pthread_mutex_unlock(&b->face.lock);
    if (names && sync_all_names(b) != MC_OK) {
        note_behind(b);
        status = MC_FILE_WRITE_FAIL;
    }
    pthread_mutex_unlock(&b->put_lock);
    return status;
}

static void perkey_stats(struct mc_tier_backend *face, struct mc_tier_stats *out) {
    struct perkey_backend *b = (struct perkey_backend *)face;
    pthread_mutex_lock(&b->face.lock);
    *out = b->stats;
    out->capacity_bytes = b->capacity;
    out->used_bytes = b->used_bytes;
    out->objects = out->files = b->face.index.count;
    pthread_mutex_unlock(&b->face.lock);
}

/* ---- open and close ---- */

static void perkey_close(struct mc_tier_backend *face) {
    struct perkey_backend *b = (struct perkey_backend *)face;
    mc_tier_index_free_all(&b->face.index);
    mc_tier_order_fini(&b->order);
    mc_tier_rings_fini(&b->rings);
    mc_buf_free(&b->directory);
    mc_buf_free(&b->scratch);
    mc_buf_free(&b->ghosts);
    pthread_mutex_destroy(&b->put_lock);
    pthread_mutex_destroy(&b->face.lock);
    free(b);
}

static enum mc_status make_directory(const char *path) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST) {
        mc_error("a directory of the SSD tier cannot be made: path=%s errno=%d reason=\"%s\"", path,
                 errno, strerror(errno));
        return MC_FILE_WRITE_FAIL;
    }
    return MC_OK;
}

static enum mc_status perkey_open(const struct mc_tier_config *config,
                                  struct mc_tier_backend **out) {
    struct perkey_backend *b = mc_zalloc(sizeof(*b));
    b->config = config;
    mc_buf_printf(&b->directory, "%s/%s", config->path, config->subdirectory);
    mc_buf_printf(&b->scratch, "%s/" SCRATCH, config->path);
    mc_buf_cstr(&b->directory);
    mc_buf_cstr(&b->scratch);
    pthread_mutex_init(&b->face.lock, NULL);
    pthread_mutex_init(&b->put_lock, NULL);
    mc_tier_order_init(&b->order, config->eviction);
    mc_tier_rings_init(&b->rings, config->depth);
    enum mc_status status = make_directory(b->directory.data);
    status = status == MC_OK ? make_directory(b->scratch.data) : status;
    status = status == MC_OK ? perkey_recover(b) : status;
    if (status != MC_OK) {
        perkey_close(&b->face);
        return status;
    }
    b->capacity = config->capacity_bytes != 0 ? config->capacity_bytes
                                              : mc_tier_disk_capacity(config->path, b->used_bytes);
    mc_info("SSD tier: path=%s backend=%s objects=%zu used_bytes=%llu capacity_bytes=%llu",
            config->path, config->backend, b->face.index.count, (unsigned long long)b->used_bytes,
            (unsigned long long)b->capacity);
    *out = &b->face;
    return MC_OK;
}

static void perkey_use_memory(struct mc_tier_backend *face, void *memory, size_t bytes) {
    mc_tier_rings_use(&((struct perkey_backend *)face)->rings, memory, bytes);
}

const struct mc_tier_backend_ops mc_tier_perkey = {
    .name = "file_per_key_storage_backend",
    .open = perkey_open,
    .close = perkey_close,
    .put = perkey_put,
    .read = perkey_read,
    .remove = perkey_remove,
    .clear = perkey_clear,
    .settle = perkey_settle,
    .use_memory = perkey_use_memory,
    .stats = perkey_stats,
};
