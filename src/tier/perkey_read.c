/*
 * Reading files per key: a group is opened and read in one io_uring run, the head compared with
 * what it must be, then the checksum. See tier/perkey.c.
 *
 * A file can be replaced or deleted between the look-up and the opening. What was read then fits
 * another entry than the one looked up, and is read again.
 */
#include "tier/perkey.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "io/key_path.h"
#include "tier/keyfile.h"

#define TRIES 3u

struct reading {
    struct mc_tier_read *read;
    struct mc_buf path;
    uint64_t seq; /* of the entry */
    uint64_t head;
    uint32_t crc;
    bool has_crc;
    int fd; /* -1: nothing to read */
};

/* False when the answer is in read->status. */
static bool look_up(struct perkey_backend *b, struct reading *r) {
    pthread_mutex_lock(&b->face.lock);
    const struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, r->read->key);
    bool there = e != NULL && e->size == r->read->size;
    if (there) {
        r->seq = e->seq;
        r->crc = e->crc;
        r->has_crc = e->has_crc;
    }
    pthread_mutex_unlock(&b->face.lock);
    r->read->status = there ? MC_OK : MC_OBJECT_NOT_FOUND;
    return there;
}

static bool open_file(struct perkey_backend *b, struct reading *r) {
    bool direct;
    mc_buf_clear(&r->path);
    mc_key_path(mc_str_from(b->directory.data), r->read->key, &r->path);
    r->head = mc_keyfile_head_bytes(r->read->key.len, r->read->size);
    r->read->status = mc_file_open(mc_buf_cstr(&r->path), O_RDONLY, false, &r->fd, &direct);
    if (r->read->status != MC_OK) {
        r->fd = -1;
        r->read->status =
            r->read->status == MC_FILE_NOT_FOUND ? MC_OBJECT_NOT_FOUND : MC_FILE_READ_FAIL;
    }
    return r->fd >= 0;
}

static enum mc_status verify(const struct reading *r) {
    struct mc_buf head = {0};
    mc_keyfile_head(r->read->key, r->read->size, &head);
    bool same = memcmp(r->read->room, head.data, head.len) == 0;
    mc_buf_free(&head);
    bool good = same && (!r->has_crc || mc_tier_crc(r->read->value, r->read->size) == r->crc);
    return good ? MC_OK : MC_CHECKSUM_MISMATCH;
}

/* True when the entry that was read is no longer the key's. */
static bool entry_changed(struct perkey_backend *b, const struct reading *r) {
    pthread_mutex_lock(&b->face.lock);
    const struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, r->read->key);
    bool changed = e == NULL || e->seq != r->seq;
    pthread_mutex_unlock(&b->face.lock);
    return changed;
}

/* Counts; forgets what is broken or was taken away. */
static void settle(struct perkey_backend *b, const struct reading *r, struct mc_buf *lost) {
    struct mc_str key = r->read->key;
    pthread_mutex_lock(&b->face.lock);
    if (r->read->status == MC_OK && !r->read->unused) {
        b->stats.read_objects++;
        b->stats.read_bytes += r->read->size;
        uint64_t hash = mc_hash64(key.ptr, key.len, 0);
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, key);
        mc_tier_order_read(&b->order, &hash, e != NULL ? 1 : 0);
    } else if (r->read->status == MC_FILE_READ_FAIL) {
        b->stats.failed_reads++;
    } else if (r->read->status != MC_OK) {
        struct mc_tier_entry *e = mc_tier_index_find(&b->face.index, key);
        if (e != NULL && e->seq == r->seq) {
            b->stats.broken_objects++;
            mc_tier_lost_add(lost, key);
            perkey_drop_locked(b, e);
            perkey_haunt_locked(b, key); /* its file stays: a put may just be replacing it */
        }
    }
    pthread_mutex_unlock(&b->face.lock);
    if (r->read->status != MC_OK) {
        mc_error("an object on the SSD tier cannot be read: path=%s bytes=%llu status=%s",
                 r->path.data, (unsigned long long)r->read->size, mc_status_name(r->read->status));
    }
}

static void read_group(struct perkey_backend *b, struct reading *all, size_t count) {
    struct mc_file_op ops[PERKEY_GROUP];
    struct reading *owners[PERKEY_GROUP];
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        struct reading *r = &all[i];
        if (open_file(b, r)) {
            if (r->read->unused) { /* the disk is looked at, not the page cache */
                (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_DONTNEED);
            }
            ops[n] = (struct mc_file_op){
                .fd = r->fd, .buffer = r->read->room, .len = r->head + r->read->size};
            r->read->value = (char *)r->read->room + r->head;
            owners[n++] = r;
        }
    }
    struct mc_file_ring *ring = mc_tier_rings_take(&b->rings);
    enum mc_status status = mc_file_run(ring, ops, n);
    mc_tier_rings_give(&b->rings, ring);
    for (size_t i = 0; i < n; i++) {
        struct reading *r = owners[i];
        r->read->status = status == MC_OK || ops[i].status == MC_OK ? verify(r) : MC_FILE_READ_FAIL;
        close(r->fd);
        r->fd = -1;
    }
}

void perkey_read(struct mc_tier_backend *face, struct mc_tier_read *reads, size_t count) {
    struct perkey_backend *b = (struct perkey_backend *)face;
    struct mc_buf lost = {0};
    for (size_t begin = 0; begin < count; begin += PERKEY_GROUP) {
        struct reading all[PERKEY_GROUP];
        size_t n = 0, end = mc_min_u64(count, begin + PERKEY_GROUP);
        for (size_t i = begin; i < end; i++) {
            all[n] = (struct reading){.read = &reads[i], .fd = -1};
            n += look_up(b, &all[n]);
        }
        read_group(b, all, n);
        for (size_t i = 0; i < n; i++) {
            for (unsigned tries = 1; tries < TRIES && all[i].read->status != MC_OK &&
                                     entry_changed(b, &all[i]) && look_up(b, &all[i]);
                 tries++) {
                read_group(b, &all[i], 1);
            }
            settle(b, &all[i], &lost);
            mc_buf_free(&all[i].path);
        }
    }
    mc_tier_lost_tell(b->config, &lost);
    mc_buf_free(&lost);
}
