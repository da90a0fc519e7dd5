/*
 * What a directory of buckets holds, at the start. See tier/bucket.c.
 *
 * Buckets are taken in the order of their ids, so that of a key that was written twice (by
 * upstream; ours is taken out of the older one) the later bytes count. An object that its file is
 * too short for is not taken; a .meta that cannot be read or understood loses its bucket, and only
 * that: were it passed over, the next start might read it and bring back what was removed or
 * replaced meanwhile. Files that may not be opened, which is a mistake of who set this up, end the
 * start. Files of other names are left alone.
 */
#include "tier/bucket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "tier/bucket_meta.h"

#define META_MAX_BYTES    (256u << 20)
#define TRAILER_MAX_BYTES (64u << 20)
#define ID_SECOND_BITS    12 /* upstream seeds ids with the time; ours sort after theirs */

struct listing {
    int64_t *metas, *datas;
    size_t meta_count, data_count, meta_cap, data_cap;
};

static void add(int64_t **list, size_t *count, size_t *cap, int64_t id) {
    if (*count == *cap) {
        *cap = *cap > 0 ? *cap * 2 : 64;
        *list = mc_realloc(*list, *cap * sizeof(**list));
    }
    (*list)[(*count)++] = id;
}

/* True when the name is "<id><suffix>". */
static bool name_is(const char *name, const char *suffix, int64_t *id) {
    size_t digits = strspn(name, "0123456789");
    uint64_t value;
    char text[24];
    if (digits == 0 || digits >= sizeof(text) || strcmp(name + digits, suffix) != 0) {
        return false;
    }
    memcpy(text, name, digits);
    text[digits] = '\0';
    if (mc_parse_u64(text, 0, INT64_MAX - 1, &value) != MC_OK) {
        return false;
    }
    *id = (int64_t)value;
    return true;
}

/* What mc_file_replace leaves of a .meta when the process dies in it. */
static bool is_left_over(const char *name) {
    size_t digits = strspn(name, "0123456789");
    return digits > 0 && strncmp(name + digits, ".meta.tmp.", 10) == 0;
}

static int by_id(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static enum mc_status list_directory(struct bucket_backend *b, struct listing *list) {
    DIR *directory = opendir(b->config->path);
    struct mc_buf path = {0};
    if (directory == NULL) {
        mc_error("the directory of the SSD tier cannot be read: path=%s errno=%d reason=\"%s\"",
                 b->config->path, errno, strerror(errno));
        return MC_FILE_READ_FAIL;
    }
    for (const struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        int64_t id;
        if (name_is(entry->d_name, ".meta", &id)) {
            add(&list->metas, &list->meta_count, &list->meta_cap, id);
        } else if (name_is(entry->d_name, ".bucket", &id)) {
            add(&list->datas, &list->data_count, &list->data_cap, id);
        } else if (is_left_over(entry->d_name)) {
            mc_buf_clear(&path);
            mc_buf_printf(&path, "%s/%s", b->config->path, entry->d_name);
            (void)unlink(mc_buf_cstr(&path));
        }
    }
    closedir(directory);
    mc_buf_free(&path);
    if (list->meta_count > 0) {
        qsort(list->metas, list->meta_count, sizeof(int64_t), by_id);
    }
    if (list->data_count > 0) {
        qsort(list->datas, list->data_count, sizeof(int64_t), by_id);
    }
    return MC_OK;
}

static enum mc_status delete_file(const struct bucket_backend *b, int64_t id, const char *suffix,
                                  const char *why) {
    struct mc_buf path = {0};
    enum mc_status status = MC_OK;
    const char *name = bucket_path(b, id, suffix, &path);
    mc_warn("a file of the SSD tier is deleted: path=%s reason=\"%s\"", name, why);
    if (unlink(name) != 0 && errno != ENOENT) {
        mc_error("a file of the SSD tier cannot be deleted: path=%s errno=%d reason=\"%s\"", name,
                 errno, strerror(errno));
        status = MC_FILE_WRITE_FAIL;
    }
    mc_buf_free(&path);
    return status;
}

static void delete_orphans(const struct bucket_backend *b, const struct listing *list) {
    for (size_t i = 0; i < list->data_count; i++) {
        if (list->meta_count == 0 || bsearch(&list->datas[i], list->metas, list->meta_count,
                                             sizeof(int64_t), by_id) == NULL) {
            /* one that stays is an orphan again next time */
            (void)delete_file(b, list->datas[i], ".bucket", "it was never finished");
        }
    }
}

/* The objects of one bucket that are whole. */
static struct bucket *take(int64_t id, const struct mc_bucket_meta *meta, uint64_t file_bytes,
                           struct mc_str trailer) {
    size_t rows = mc_bucket_trailer_rows(trailer);
    struct bucket *bucket = bucket_make(id, meta->count);
    bucket->count = 0;
    bucket->file_bytes = file_bytes;
    bucket->data_bytes = meta->data_size;
    bucket->ours = rows > 0;
    for (size_t i = 0; i < meta->count; i++) {
        const struct mc_bucket_object *o = &meta->objects[i];
        if (o->key.len > MC_TIER_KEY_MAX || o->size > INT64_MAX / 2 ||
            !mc_range_inside(o->offset, o->key.len + o->size, 0, file_bytes)) {
            continue;
        }
        struct mc_tier_entry *e = mc_tier_entry_make(o->key);
        e->file = bucket;
        e->offset = o->offset;
        e->size = o->size;
        e->has_crc = rows > 0 && mc_bucket_trailer_find(trailer, rows, o->offset, &e->crc, &e->tag);
        bucket->entries[bucket->count++] = e;
    }
    return bucket;
}

static bool is_zero(const char *bytes, size_t len) {
    size_t i = 0;
    while (i < len && bytes[i] == 0) {
        i++;
    }
    return i == len;
}

/* What is behind the records, where our trailer may be. It is a failure when the disk does not give
 * it, or gives what is none: to go on without checksums would let its next fault pass for data, and
 * without tags a bucket of ours would pass for one of upstream's, which may be of any age. */
static enum mc_status read_trailer(const char *path, uint64_t from, uint64_t file_bytes,
                                   struct mc_buf *out) {
    int fd;
    bool direct;
    if (from >= file_bytes || file_bytes - from > TRAILER_MAX_BYTES) {
        return MC_OK; /* upstream's files end with the records */
    }
    MC_TRY(mc_file_open(path, O_RDONLY, false, &fd, &direct));
    mc_buf_reserve(out, file_bytes - from);
    ssize_t got = pread(fd, out->data, file_bytes - from, (off_t)from);
    out->len = got > 0 ? (size_t)got : 0;
    int error = errno;
    close(fd);
    if (got < 0) {
        mc_error("the checksums of a bucket cannot be read: path=%s errno=%d reason=\"%s\"", path,
                 error, strerror(error));
    }
    bool whole = mc_bucket_trailer_rows((struct mc_str){out->data, out->len}) > 0;
    return got >= 0 && (whole || is_zero(out->data, out->len)) ? MC_OK : MC_FILE_READ_FAIL;
}

/* The .meta first, so that a crash leaves an orphan. */
static enum mc_status delete_bucket(const struct bucket_backend *b, int64_t id, const char *why) {
    MC_TRY(delete_file(b, id, ".meta", why));
    return delete_file(b, id, ".bucket", why);
}

static enum mc_status load(struct bucket_backend *b, int64_t id, struct mc_arena *arena) {
    struct mc_buf path = {0}, text = {0}, trailer = {0};
    struct mc_bucket_meta meta;
    struct stat info;
    enum mc_status status;
    if (stat(bucket_path(b, id, ".bucket", &path), &info) != 0) {
        status = errno == ENOENT ? delete_file(b, id, ".meta", "its .bucket is gone")
                                 : MC_FILE_OPEN_FAIL;
        goto done;
    }
    status = mc_file_read_all(bucket_path(b, id, ".meta", &path), META_MAX_BYTES, &text);
    if (status == MC_OK) {
        status = mc_bucket_meta_decode((struct mc_str){text.data, text.len}, arena, &meta);
    }
    if (status == MC_OK) {
        status = read_trailer(bucket_path(b, id, ".bucket", &path), meta.data_size,
                              (uint64_t)info.st_size, &trailer);
    }
    if (status == MC_OK && meta.ours &&
        mc_bucket_trailer_rows((struct mc_str){trailer.data, trailer.len}) == 0) {
        status = MC_FILE_READ_FAIL; /* it was cut */
    }
    if (status != MC_OK) {
        status = status == MC_FILE_OPEN_FAIL
                     ? status
                     : delete_bucket(b, id, "it cannot be read, or not be understood");
        goto done;
    }
    struct bucket *bucket =
        take(id, &meta, (uint64_t)info.st_size, (struct mc_str){trailer.data, trailer.len});
    if (bucket->count < meta.count) {
        mc_warn("objects of the SSD tier are not whole and dropped: path=%s objects=%zu "
                "dropped=%zu",
                mc_buf_cstr(&path), meta.count, meta.count - bucket->count);
    }
    bucket->disk_bytes = bucket_size_on_disk(b, id);
    if (bucket->count == 0) {
        bucket_discard(bucket);
        status = delete_bucket(b, id, "it holds no whole object");
        goto done;
    }
    pthread_mutex_lock(&b->face.lock);
    bucket_publish_locked(b, bucket);
    pthread_mutex_unlock(&b->face.lock);
done:
    mc_buf_free(&path);
    mc_buf_free(&text);
    mc_buf_free(&trailer);
    return status;
}

enum mc_status bucket_recover(struct bucket_backend *b) {
    struct listing list = {0};
    struct mc_arena arena = {0};
    enum mc_status status = list_directory(b, &list);
    if (status == MC_OK) {
        delete_orphans(b, &list);
        for (size_t i = 0; i < list.meta_count && status == MC_OK; i++) {
            status = load(b, list.metas[i], &arena);
            mc_arena_reset(&arena);
        }
        struct mc_buf path = {0};
        if (status == MC_OK &&
            list.data_count + list.meta_count > 0) { /* what was deleted stays so */
            status = mc_file_sync_names(bucket_path(b, 0, ".meta", &path));
        }
        mc_buf_free(&path);
        int64_t seed = (int64_t)(mc_clock_system()->wall_ms(mc_clock_system()) / 1000)
                       << ID_SECOND_BITS;
        int64_t last = list.meta_count > 0 ? list.metas[list.meta_count - 1] : 0;
        b->next_id = (seed > last ? seed : last) + 1;
    }
    mc_arena_free(&arena);
    free(list.metas);
    free(list.datas);
    return status;
}
