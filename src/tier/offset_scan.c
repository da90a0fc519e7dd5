/*
 * Opening the files of the offset backend, and what they hold. See tier/offset.c.
 *
 * For each piece that the .meta calls taken the header and the key are read; a record that cannot
 * be one, or that is younger than the .meta, is dropped and its piece is free. Of a key that is
 * there twice the later one counts. A .meta that cannot be understood means a new beginning, as
 * with upstream: nothing says then where anything is.
 */
#include "tier/offset.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define META_MAX_BYTES (1u << 31)
#define HEAD_READ      512u /* a header and most keys */

/* ---- the data file ---- */

static uint64_t wanted_capacity(const struct offset_backend *b) {
    uint64_t bytes = b->config->capacity_bytes != 0 ? b->config->capacity_bytes
                                                    : mc_tier_disk_capacity(b->config->path, 0);
    uint64_t unit = mc_max_u64(MC_TIER_BLOCK, 1ull << mc_offset_shift(bytes));
    return bytes / unit * unit;
}

/* Space that was asked for is reserved, so that a put does not find the disk full later. */
static enum mc_status size_file(const struct offset_backend *b, const char *path) {
    struct stat info;
    if (fstat(b->plain, &info) != 0 || (uint64_t)info.st_size == b->capacity) {
        return MC_OK;
    }
    bool reserve = b->config->capacity_bytes != 0;
    int rc = ftruncate(b->plain, (off_t)b->capacity);
    if (rc == 0 && reserve && fallocate(b->plain, 0, 0, (off_t)b->capacity) != 0 &&
        errno != EOPNOTSUPP) {
        rc = -1;
    }
    if (rc != 0) {
        mc_error("the file of the SSD tier cannot be made: path=%s bytes=%llu errno=%d "
                 "reason=\"%s\"",
                 path, (unsigned long long)b->capacity, errno, strerror(errno));
        return MC_FILE_WRITE_FAIL;
    }
    return MC_OK;
}

static enum mc_status open_data(struct offset_backend *b) {
    struct mc_buf path = {0};
    bool direct;
    mc_buf_printf(&path, "%s/kv_cache.data", b->config->path);
    enum mc_status status =
        mc_file_open(mc_buf_cstr(&path), O_RDWR | O_CREAT, false, &b->plain, &direct);
    if (status == MC_OK) {
        status = mc_file_open(path.data, O_RDWR, !b->config->buffered, &b->fd, &b->direct);
    }
    if (status != MC_OK) {
        b->fd = b->plain < 0 ? -1 : b->fd;
        status = MC_FILE_OPEN_FAIL;
    } else {
        status = size_file(b, path.data);
    }
    mc_buf_free(&path);
    return status;
}

/* ---- records ---- */

/* NULL: there is no whole record. */
static struct mc_tier_entry *read_entry(struct offset_backend *b, struct mc_extent piece,
                                        uint64_t insert_seq) {
    char head[HEAD_READ];
    uint64_t at = (uint64_t)piece.offset << b->shift, room = (uint64_t)piece.size << b->shift;
    struct mc_record r;
    ssize_t got = pread(b->plain, head, mc_min_u64(sizeof(head), room), (off_t)at);
    if (got < (ssize_t)MC_RECORD_HEAD || !mc_record_decode(head, room, &r) || r.seq >= insert_seq) {
        return NULL;
    }
    struct mc_tier_entry *e = NULL;
    char *key = mc_alloc(r.key_len);
    uint64_t have = mc_min_u64((uint64_t)got - MC_RECORD_HEAD, r.key_len);
    memcpy(key, head + MC_RECORD_HEAD, have);
    if (have == r.key_len ||
        pread(b->plain, key + have, r.key_len - have, (off_t)(at + MC_RECORD_HEAD + have)) ==
            (ssize_t)(r.key_len - have)) {
        e = mc_tier_entry_make((struct mc_str){key, r.key_len});
        e->size = r.value_len;
        e->seq = r.seq;
        e->offset = at;
        e->crc = r.crc;
        e->has_crc = (r.flags & MC_RECORD_HAS_CRC) != 0;
        e->tag = mc_record_tag(head, (size_t)got, r.key_len);
    }
    free(key);
    return e;
}

static int by_seq(const void *a, const void *b) {
    const struct mc_tier_entry *x = *(struct mc_tier_entry *const *)a;
    const struct mc_tier_entry *y = *(struct mc_tier_entry *const *)b;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

static void load(struct offset_backend *b, const struct mc_offset_meta *meta) {
    struct mc_tier_entry **entries = mc_zalloc((meta->count + 1) * sizeof(struct mc_tier_entry *));
    uint32_t *names = mc_alloc((meta->count + 1) * sizeof(*names));
    size_t count = 0;
    pthread_mutex_lock(&b->face.lock);
    mc_extents_load(b->extents, meta->taken, meta->count, names);
    for (size_t i = 0; i < meta->count; i++) {
        struct mc_tier_entry *e = read_entry(b, meta->taken[i], meta->insert_seq);
        if (e == NULL) {
            mc_extents_give(b->extents, names[i]);
        } else {
            e->disk = names[i];
            entries[count++] = e;
        }
    }
    if (count > 0) {
        qsort(entries, count, sizeof(struct mc_tier_entry *), by_seq);
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = entries[i]->hash;
        offset_publish_locked(b, entries[i]);
        mc_tier_order_stored(&b->order, &hash, 1);
    }
    b->insert_seq = meta->insert_seq;
    b->behind = b->behind || count < meta->count; /* another start may read them */
    pthread_mutex_unlock(&b->face.lock);
    if (count < meta->count) {
        mc_warn("records of the SSD tier are not whole and dropped: path=%s/kv_cache.data "
                "records=%zu dropped=%zu",
                b->config->path, meta->count, meta->count - count);
    }
    free(names);
    free(entries);
}

/* ---- the start ---- */

enum mc_status offset_recover(struct offset_backend *b) {
    struct mc_buf path = {0}, text = {0};
    struct mc_arena arena = {0};
    struct mc_offset_meta meta = {0};
    mc_buf_printf(&path, "%s/kv_cache.meta", b->config->path);
    enum mc_status status = mc_file_read_all(mc_buf_cstr(&path), META_MAX_BYTES, &text);
    if (status != MC_OK && status != MC_FILE_NOT_FOUND) {
        status = MC_FILE_READ_FAIL;
        goto done;
    }
    bool known = status == MC_OK && mc_offset_meta_decode((struct mc_str){text.data, text.len},
                                                          &arena, &meta) == MC_OK;
    if (status == MC_OK && !known) {
        mc_warn("the index of the SSD tier cannot be understood, it begins anew: path=%s",
                path.data);
    }
    b->capacity = known ? meta.capacity_bytes : wanted_capacity(b);
    b->shift = mc_offset_shift(b->capacity);
    if (b->capacity < MC_TIER_BLOCK) {
        mc_error("the SSD tier is too small: path=%s bytes=%llu", b->config->path,
                 (unsigned long long)b->capacity);
        status = MC_INVALID_PARAMS;
        goto done;
    }
    if (known && b->config->capacity_bytes != 0 && b->capacity != wanted_capacity(b)) {
        mc_warn("the SSD tier keeps the size that it was made with: path=%s bytes=%llu "
                "wanted_bytes=%llu",
                b->config->path, (unsigned long long)b->capacity,
                (unsigned long long)b->config->capacity_bytes);
    }
    b->extents = mc_extents_create((uint32_t)(b->capacity >> b->shift));
    status = open_data(b);
    if (status == MC_OK && known) {
        load(b, &meta);
    }
done:
    mc_arena_free(&arena);
    mc_buf_free(&path);
    mc_buf_free(&text);
    return status;
}
