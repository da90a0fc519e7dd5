/*
 * Writing a file per key: a group of files is written, each is synced and renamed, the directories
 * are synced, and only then are the objects published. See tier/perkey.c.
 */
#include "tier/perkey.h"

#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "io/key_path.h"
#include "tier/keyfile.h"

struct writing {
    struct mc_tier_item *item;
    struct mc_tier_entry *entry; /* NULL: it failed, and item->status says so */
    struct mc_buf path;          /* its place */
    char scratch[32];            /* its name until then */
    bool renamed;
    int fd;
};

static void scratch_path(const struct perkey_backend *b, const struct writing *w,
                         struct mc_buf *out) {
    mc_buf_clear(out);
    mc_buf_printf(out, "%s/%s", b->scratch.data, w->scratch);
    mc_buf_cstr(out);
}

/* It has its name already, and what had that before is gone. A start would find it, and nobody has
 * been told that it is here. */
static void take_back(struct perkey_backend *b, const struct writing *w) {
    struct mc_buf lost = {0};
    bool gone = unlink(w->path.data) == 0 || errno == ENOENT;
    pthread_mutex_lock(&b->face.lock);
    b->names_behind = true;
    if (!gone) {
        perkey_haunt_locked(b, w->item->key);
    }
    struct mc_tier_entry *old = mc_tier_index_find(&b->face.index, w->item->key);
    if (old != NULL) {
        mc_tier_lost_add(&lost, w->item->key);
        perkey_drop_locked(b, old);
    }
    pthread_mutex_unlock(&b->face.lock);
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
}

static void fail(struct perkey_backend *b, struct writing *w, const char *step) {
    int error = errno;
    struct mc_buf scratch = {0};
    mc_error("a file of the SSD tier cannot be written: path=%s step=%s errno=%d reason=\"%s\"",
             mc_buf_cstr(&w->path), step, error, strerror(error));
    scratch_path(b, w, &scratch);
    (void)unlink(scratch.data);
    mc_buf_free(&scratch);
    if (w->renamed) {
        take_back(b, w);
    }
    free(w->entry);
    w->entry = NULL;
    w->item->status = MC_FILE_WRITE_FAIL;
}

/* ---- room ---- */

/* Evicts until `bytes` more fit; false when they cannot. Needs put_lock. */
static bool make_room(struct perkey_backend *b, uint64_t bytes) {
    struct mc_buf lost = {0}, path = {0};
    bool possible = bytes <= b->capacity;
    pthread_mutex_lock(&b->face.lock);
    while (possible &&
           (b->used_bytes + bytes > b->capacity || !mc_tier_disk_has(b->config->path, bytes))) {
        uint64_t hash;
        if (!mc_tier_order_victim(&b->order, &hash)) {
            possible = false;
            break;
        }
        struct mc_tier_entry *victim = mc_tier_index_find_hash(&b->face.index, hash);
        MC_ASSERT(victim != NULL); /* the order knows those in the index */
        mc_buf_clear(&path);
        mc_key_path(mc_str_from(b->directory.data), mc_tier_entry_key(victim), &path);
        b->names_behind = true;
        if (unlink(mc_buf_cstr(&path)) != 0 && errno != ENOENT) {
            perkey_haunt_locked(b, mc_tier_entry_key(victim));
        }
        mc_tier_lost_add(&lost, mc_tier_entry_key(victim));
        perkey_drop_locked(b, victim);
        b->stats.evicted_objects++;
    }
    uint64_t used = b->used_bytes;
    pthread_mutex_unlock(&b->face.lock);
    if (!possible) {
        mc_warn_limited("the SSD tier is full: path=%s used_bytes=%llu capacity_bytes=%llu "
                        "wanted_bytes=%llu",
                        b->config->path, (unsigned long long)used, (unsigned long long)b->capacity,
                        (unsigned long long)bytes);
    }
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
    mc_buf_free(&path);
    return possible;
}

/* ---- one file ---- */

static bool write_all(int fd, struct mc_str head, struct mc_str value) {
    while (head.len + value.len > 0) {
        struct iovec parts[2] = {{(void *)(uintptr_t)head.ptr, head.len},
                                 {(void *)(uintptr_t)value.ptr, value.len}};
        ssize_t done = writev(fd, parts, 2);
        if (done < 0 && errno != EINTR) {
            return false;
        }
        size_t n = done > 0 ? (size_t)done : 0;
        size_t of_head = mc_min_u64(n, head.len);
        head = (struct mc_str){head.ptr + of_head, head.len - of_head};
        value = (struct mc_str){value.ptr + (n - of_head), value.len - (n - of_head)};
    }
    return true;
}

/* The two levels of directories that the name needs. */
static bool make_directories(struct perkey_backend *b, const struct mc_buf *path) {
    size_t at = b->directory.len + 1; /* "a/b/name" from there on */
    unsigned which = (unsigned)(path->data[at] - 'a') << 4 | (unsigned)(path->data[at + 2] - 'a');
    struct mc_buf directory = {0};
    bool good = true;
    for (size_t len = at + 1; len <= at + 3 && good && !b->made[which]; len += 2) {
        mc_buf_clear(&directory);
        mc_buf_append(&directory, path->data, len);
        good = mkdir(mc_buf_cstr(&directory), 0755) == 0 || errno == EEXIST;
    }
    b->made[which] = b->made[which] || good;
    mc_buf_free(&directory);
    return good;
}

static void write_one(struct perkey_backend *b, struct writing *w, unsigned number) {
    struct mc_buf scratch = {0}, head = {0};
    const struct mc_tier_item *item = w->item;
    w->entry = mc_tier_entry_make(item->key);
    w->entry->size = item->size;
    w->entry->tag = item->tag;
    w->entry->crc = mc_tier_crc(item->value, item->size);
    w->entry->has_crc = true;
    snprintf(w->scratch, sizeof(w->scratch), "%d.%u", (int)getpid(), number);
    mc_key_path(mc_str_from(b->directory.data), item->key, &w->path);
    mc_keyfile_head(item->key, item->size, &head);
    scratch_path(b, w, &scratch);
    if (!make_directories(b, &w->path)) {
        fail(b, w, "mkdir");
        goto done;
    }
    w->fd = open(scratch.data, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        fail(b, w, "open");
    } else if (!write_all(w->fd, (struct mc_str){head.data, head.len},
                          (struct mc_str){item->value, item->size})) {
        fail(b, w, "write");
    } else {
        /* starts the disk; the sync below waits for it */
        (void)sync_file_range(w->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
done:
    mc_buf_free(&scratch);
    mc_buf_free(&head);
}

bool perkey_key_in(const char *path, struct mc_buf *head, struct mc_str *key) {
    struct stat info;
    uint64_t size;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    mc_buf_reserve(head, NAME_MAX + MC_KEYFILE_HEAD_MAX);
    ssize_t got = pread(fd, head->data, NAME_MAX + MC_KEYFILE_HEAD_MAX, 0);
    bool good = got > 0 && fstat(fd, &info) == 0 &&
                mc_keyfile_decode((struct mc_str){head->data, (size_t)got}, (uint64_t)info.st_size,
                                  key, &size) == MC_OK;
    close(fd);
    return good;
}

/* A file that is there without an entry of its key is another key's: that one loses it. */
static void yield_name(struct perkey_backend *b, const struct writing *w, struct mc_buf *lost) {
    struct mc_buf head = {0};
    struct mc_str key;
    if (perkey_key_in(w->path.data, &head, &key)) {
        struct mc_tier_entry *other = mc_tier_index_find(&b->face.index, key);
        if (other != NULL) {
            mc_tier_lost_add(lost, key);
            perkey_drop_locked(b, other);
        }
    }
    mc_buf_free(&head);
}

/* Syncs the descriptors that are not -1, at once: a file system does that in one go. ok[i] is false
 * for those where it failed. */
static void sync_all(struct perkey_backend *b, const int *fds, size_t count, bool *ok) {
    struct mc_file_op ops[PERKEY_GROUP];
    size_t owners[PERKEY_GROUP], n = 0;
    for (size_t i = 0; i < count; i++) {
        ok[i] = true;
        if (fds[i] >= 0) {
            ops[n] = (struct mc_file_op){.sync = true, .fd = fds[i]};
            owners[n++] = i;
        }
    }
    struct mc_file_ring *ring = mc_tier_rings_take(&b->rings);
    enum mc_status status = mc_file_run(ring, ops, n);
    mc_tier_rings_give(&b->rings, ring);
    for (size_t i = 0; i < n && status != MC_OK; i++) {
        ok[owners[i]] = ops[i].status == MC_OK;
    }
}

static void rename_one(struct perkey_backend *b, struct writing *w) {
    struct mc_buf scratch = {0}, lost = {0};
    struct stat info;
    scratch_path(b, w, &scratch);
    w->entry->disk = fstat(w->fd, &info) == 0 ? (uint64_t)info.st_blocks * 512 : w->entry->size;
    pthread_mutex_lock(&b->face.lock);
    if (mc_tier_index_find(&b->face.index, w->item->key) == NULL) {
        yield_name(b, w, &lost);
    }
    pthread_mutex_unlock(&b->face.lock);
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
    w->renamed = rename(scratch.data, w->path.data) == 0;
    if (!w->renamed) {
        fail(b, w, "rename");
    }
    mc_buf_free(&scratch);
}

/* ---- a group ---- */

static void sync_files(struct perkey_backend *b, struct writing *all, size_t count) {
    int fds[PERKEY_GROUP];
    bool ok[PERKEY_GROUP];
    for (size_t i = 0; i < count; i++) {
        fds[i] = all[i].entry != NULL ? all[i].fd : -1;
        if (fds[i] >= 0) {
            perkey_set_crc(fds[i], all[i].entry);
        }
    }
    sync_all(b, fds, count, ok);
    for (size_t i = 0; i < count; i++) {
        if (!ok[i]) {
            fail(b, &all[i], "sync");
        }
    }
}

/* The number of the directory that the file is in. */
static unsigned directory_of(const struct perkey_backend *b, const struct writing *w) {
    const char *letters = w->path.data + b->directory.len + 1;
    return (unsigned)(letters[0] - 'a') << 4 | (unsigned)(letters[2] - 'a');
}

/* Each directory that got a file, once: after it the names are durable. Where that fails, none of
 * them is. */
static void sync_directories(struct perkey_backend *b, struct writing *all, size_t count) {
    bool seen[256] = {0}, failed[256] = {0}, ok[PERKEY_GROUP];
    int fds[PERKEY_GROUP];
    for (size_t i = 0; i < count; i++) {
        fds[i] = -1;
        if (all[i].entry == NULL || seen[directory_of(b, &all[i])]) {
            continue;
        }
        struct mc_buf directory = {0};
        mc_buf_append(&directory, all[i].path.data, b->directory.len + 4);
        fds[i] = open(mc_buf_cstr(&directory), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        mc_buf_free(&directory);
        seen[directory_of(b, &all[i])] = true;
        failed[directory_of(b, &all[i])] = fds[i] < 0;
    }
    sync_all(b, fds, count, ok);
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
            failed[directory_of(b, &all[i])] = !ok[i];
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (all[i].entry != NULL && failed[directory_of(b, &all[i])]) {
            fail(b, &all[i], "sync directory");
        }
    }
}

static void publish(struct perkey_backend *b, struct writing *all, size_t count) {
    uint64_t hashes[PERKEY_GROUP];
    size_t n = 0;
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < count; i++) {
        if (all[i].entry == NULL) {
            b->stats.failed_writes++;
            continue;
        }
        b->stats.written_objects++;
        b->stats.written_bytes += all[i].entry->size;
        hashes[n++] = all[i].entry->hash;
        perkey_publish_locked(b, all[i].entry);
        all[i].item->bucket_id = MC_TIER_NO_BUCKET;
        all[i].item->offset = 0;
        all[i].item->status = MC_OK;
    }
    mc_tier_order_stored(&b->order, hashes, n);
    pthread_mutex_unlock(&b->face.lock);
}

static void put_group(struct perkey_backend *b, struct writing *all, size_t count) {
    for (size_t i = 0; i < count; i++) {
        write_one(b, &all[i], (unsigned)i);
    }
    sync_files(b, all, count);
    for (size_t i = 0; i < count; i++) {
        if (all[i].entry != NULL) {
            rename_one(b, &all[i]);
        }
    }
    sync_directories(b, all, count);
    publish(b, all, count);
    for (size_t i = 0; i < count; i++) {
        if (all[i].fd >= 0) {
            close(all[i].fd);
        }
        mc_buf_free(&all[i].path);
    }
}

void perkey_put(struct mc_tier_backend *face, struct mc_tier_item *items, size_t count) {
    struct perkey_backend *b = (struct perkey_backend *)face;
    struct writing all[PERKEY_GROUP];
    pthread_mutex_lock(&b->put_lock);
    for (size_t next = 0; next < count;) {
        size_t n = 0;
        uint64_t bytes = 0;
        for (; next < count && n < PERKEY_GROUP; next++) {
            uint64_t record =
                mc_tier_round_up(items[next].size + items[next].key.len + MC_KEYFILE_HEAD_MAX);
            if (items[next].status != MC_OK) {
                continue;
            }
            if (n > 0 && bytes + record > b->capacity / 2) {
                break; /* a small tier takes them one after the other */
            }
            all[n++] = (struct writing){.item = &items[next], .fd = -1};
            bytes += record;
        }
        if (n > 0 && make_room(b, bytes)) {
            put_group(b, all, n);
        } else {
            for (size_t i = 0; i < n; i++) {
                all[i].item->status = MC_FILE_WRITE_FAIL;
            }
        }
    }
    pthread_mutex_unlock(&b->put_lock);
}
