/*
 * The table of backends, the directory and its lock. See tier/tier.h.
 *
 * The lock is flock(2) on a file in the directory: the kernel lets it go when its owner dies,
 * however that happens, so a crash never leaves a directory that nobody may open.
 */
#include "tier/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "tier/scrub.h"

#define LOCK_NAME            ".mooncake.owner"
#define MARK_NAME            ".mooncake.current"
#define DEFAULT_DEPTH        64u
#define DEFAULT_SUBDIRECTORY "file_per_key_dir"

static const struct mc_tier_backend_ops *const BACKENDS[] = {&mc_tier_bucket, &mc_tier_perkey,
                                                             &mc_tier_offset, &mc_tier_nvmekv};

struct mc_tier {
    struct mc_tier_config config; /* strings are our own */
    struct mc_tier_backend *backend;
    struct mc_tier_scrubber *scrubber; /* NULL = none */
    int lock_fd, mark_fd; /* mark_fd -1: it could not be opened, and is only in memory */
    uint64_t mark;
    struct mc_tier_times times;
    struct mc_metric borrowed;
};

/* Upstream's, in microseconds: from a fast NVMe to a shared file system. */
static const uint64_t TIME_BOUNDS[] = {
    50,     100,    200,    500,     1000,    2000,    5000,     10000,    20000,     50000,
    100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000, 30000000, UINT64_MAX};

static const struct mc_tier_backend_ops *find_backend(const char *name) {
    struct mc_buf known = {0};
    for (size_t i = 0; i < MC_ARRAY_LEN(BACKENDS); i++) {
        if (strcmp(BACKENDS[i]->name, name) == 0) {
            mc_buf_free(&known);
            return BACKENDS[i];
        }
        mc_buf_printf(&known, "%s%s", i > 0 ? "," : "", BACKENDS[i]->name);
    }
    mc_error("no such backend of the SSD tier: backend=%s known=%s", name, mc_buf_cstr(&known));
    mc_buf_free(&known);
    return NULL;
}

static enum mc_status check_directory(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        mc_error("the SSD tier needs a directory that exists: path=%s reason=\"%s\"", path,
                 "not there, or no directory");
        return MC_FILE_NOT_FOUND;
    }
    return MC_OK;
}

/* Who owns the directory: in the file, for people. */
static void say_locked(const char *path, int fd) {
    char owner[256] = "";
    ssize_t got = pread(fd, owner, sizeof(owner) - 1, 0);
    owner[got > 0 ? got : 0] = '\0';
    owner[strcspn(owner, "\n")] = '\0';
    mc_error("another process owns the directory of the SSD tier: path=%s owner=\"%s\"", path,
             owner);
}

static enum mc_status lock_directory(const struct mc_tier_config *config, int *out) {
    struct mc_buf path = {0}, owner = {0};
    mc_buf_printf(&path, "%s/%s", config->path, LOCK_NAME);
    mc_buf_printf(&owner, "%s pid %d\n", config->owner, (int)getpid());
    enum mc_status status = MC_OK;
    int fd = open(mc_buf_cstr(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        mc_error("the lock of the SSD tier cannot be opened: path=%s errno=%d reason=\"%s\"",
                 mc_buf_cstr(&path), errno, strerror(errno));
        status = MC_FILE_OPEN_FAIL;
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        say_locked(mc_buf_cstr(&path), fd);
        status = MC_UNAVAILABLE_IN_CURRENT_STATUS;
    } else if (ftruncate(fd, 0) != 0 ||
               pwrite(fd, owner.data, owner.len, 0) != (ssize_t)owner.len) {
        mc_warn("the owner of the SSD tier could not be noted: path=%s errno=%d reason=\"%s\"",
                mc_buf_cstr(&path), errno, strerror(errno));
    }
    if (status != MC_OK && fd >= 0) {
        close(fd);
    }
    *out = fd;
    mc_buf_free(&path);
    mc_buf_free(&owner);
    return status;
}

/* ---- the mark ---- */

struct mark { /* as it lies in its file */
    uint64_t mark, again;
};

/* A mark that is lost proves less, and harms nobody: no failure ends anything. */
static void open_mark(struct mc_tier *tier) {
    struct mc_buf path = {0};
    struct mark mark;
    mc_buf_printf(&path, "%s/%s", tier->config.path, MARK_NAME);
    tier->mark_fd = open(mc_buf_cstr(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (tier->mark_fd < 0) {
        mc_warn("the mark of the SSD tier cannot be kept: path=%s errno=%d", mc_buf_cstr(&path),
                errno);
    } else if (pread(tier->mark_fd, &mark, sizeof(mark), 0) == sizeof(mark) &&
               mark.again == ~mark.mark) {
        tier->mark = mark.mark;
    }
    mc_buf_free(&path);
}

void mc_tier_mark(struct mc_tier *tier, uint64_t value) {
    struct mark mark = {value, ~value};
    if (tier->backend->ops->settle(tier->backend) == MC_OK) {
        tier->mark = value;
        if (tier->mark_fd >= 0 &&
            pwrite(tier->mark_fd, &mark, sizeof(mark), 0) != (ssize_t)sizeof(mark)) {
            mc_warn_limited("the mark of the SSD tier cannot be written: path=%s errno=%d",
                            tier->config.path, errno);
        }
    } else {
        mc_warn_limited("what was deleted from the SSD tier may still be found by its next start, "
                        "which then keeps less than it could: path=%s",
                        tier->config.path);
    }
}

uint64_t mc_tier_marked(struct mc_tier *tier) {
    return tier->mark;
}

bool mc_tier_borrows(const struct mc_tier *tier) {
    return tier->backend->ops->borrows;
}

static void tier_free(struct mc_tier *tier) {
    free((char *)tier->config.path);
    free((char *)tier->config.owner);
    free((char *)tier->config.subdirectory);
    free((char *)tier->config.device);
    free(tier);
}

enum mc_status mc_tier_open(const struct mc_tier_config *config, struct mc_tier **out) {
    const struct mc_tier_backend_ops *ops =
        find_backend(config->backend != NULL ? config->backend : mc_tier_bucket.name);
    if (ops == NULL) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(check_directory(config->path));
    struct mc_tier *tier = mc_zalloc(sizeof(*tier));
    tier->config = *config;
    mc_steps_init(&tier->times.read.steps, TIME_BOUNDS);
    mc_steps_init(&tier->times.write.steps, TIME_BOUNDS);
    mc_steps_init(&tier->times.total.steps, TIME_BOUNDS);
    tier->config.path = mc_strdup(config->path);
    tier->config.owner = mc_strdup(config->owner != NULL ? config->owner : "unknown");
    tier->config.subdirectory =
        mc_strdup(config->subdirectory != NULL ? config->subdirectory : DEFAULT_SUBDIRECTORY);
    tier->config.device = config->device != NULL ? mc_strdup(config->device) : NULL;
    tier->config.device_nsid = config->device_nsid != 0 ? config->device_nsid : 1;
    tier->config.depth = config->depth != 0 ? config->depth : DEFAULT_DEPTH;
    tier->config.backend = ops->name;
    enum mc_status status = lock_directory(&tier->config, &tier->lock_fd);
    if (status != MC_OK) {
        goto fail_tier;
    }
    status = ops->open(&tier->config, &tier->backend);
    if (status != MC_OK) {
        goto fail_lock;
    }
    tier->backend->ops = ops;
    open_mark(tier);
    if (config->scrub_bytes_per_second != 0) {
        tier->scrubber = mc_tier_scrub_start(tier->backend, config->scrub_bytes_per_second);
    }
    *out = tier;
    return MC_OK;
fail_lock:
    close(tier->lock_fd);
fail_tier:
    tier_free(tier);
    return status;
}

void mc_tier_close(struct mc_tier *tier) {
    if (tier != NULL) {
        mc_tier_scrub_stop(tier->scrubber);
        tier->backend->ops->close(tier->backend);
        if (tier->mark_fd >= 0) {
            close(tier->mark_fd);
        }
        close(tier->lock_fd);
        tier_free(tier);
    }
}

struct mc_tier_times *mc_tier_times(struct mc_tier *tier) {
    return &tier->times;
}

struct moved {
    uint64_t begin_ns, objects, bytes;
};

static void count_in(struct mc_tier_time *time, const struct moved *m, uint64_t us) {
    mc_metric_add(&time->objects, (int64_t)m->objects);
    mc_metric_add(&time->bytes, (int64_t)m->bytes);
    mc_steps_observe(&time->steps, us);
    mc_histogram_observe(&time->fine, us);
}

static void count(struct mc_tier *tier, struct mc_tier_time *time, const struct moved *m) {
    if (m->objects > 0) {
        uint64_t us = (mc_now_ns(mc_clock_system()) - m->begin_ns) / 1000;
        count_in(time, m, us);
        count_in(&tier->times.total, m, us);
    }
}

enum mc_status mc_tier_put(struct mc_tier *tier, struct mc_tier_item *items, size_t n) {
    struct moved moved = {.begin_ns = mc_now_ns(mc_clock_system())};
    enum mc_status first = MC_OK;
    for (size_t i = 0; i < n; i++) {
        bool sane = items[i].key.len > 0 && items[i].key.len <= MC_TIER_KEY_MAX &&
                    items[i].size > 0 && items[i].size <= INT64_MAX / 2 &&
                    (items[i].still == NULL || mc_tier_borrows(tier));
        items[i].status = sane ? MC_OK : MC_INVALID_PARAMS;
    }
    tier->backend->ops->put(tier->backend, items, n);
    for (size_t i = 0; i < n; i++) {
        bool well = items[i].status == MC_OK;
        moved.objects += well;
        moved.bytes += well ? items[i].size : 0;
        mc_metric_add(&tier->borrowed, well && items[i].still != NULL);
        if (!well && (first == MC_OK || first == MC_LEASE_EXPIRED)) {
            first = items[i].status; /* not that one when there is another */
        }
    }
    count(tier, &tier->times.write, &moved);
    return first;
}

enum mc_status mc_tier_read(struct mc_tier *tier, struct mc_tier_read *reads, size_t n) {
    struct moved moved = {.begin_ns = mc_now_ns(mc_clock_system())};
    enum mc_status first = MC_OK;
    tier->backend->ops->read(tier->backend, reads, n);
    for (size_t i = 0; i < n; i++) {
        bool well = reads[i].status == MC_OK;
        moved.objects += well;
        moved.bytes += well ? reads[i].size : 0;
        first = first == MC_OK ? reads[i].status : first;
    }
    count(tier, &tier->times.read, &moved);
    return first;
}

void mc_tier_use_memory(struct mc_tier *tier, void *memory, size_t bytes) {
    if (tier->backend->ops->use_memory != NULL) {
        tier->backend->ops->use_memory(tier->backend, memory, bytes);
    }
}

bool mc_tier_find(struct mc_tier *tier, struct mc_str key, uint64_t *size) {
    struct mc_tier_backend *backend = tier->backend;
    pthread_mutex_lock(&backend->lock);
    const struct mc_tier_entry *e = mc_tier_index_find(&backend->index, key);
    if (e != NULL) {
        *size = e->size;
    }
    pthread_mutex_unlock(&backend->lock);
    return e != NULL;
}

enum mc_status mc_tier_remove(struct mc_tier *tier, struct mc_str key) {
    size_t removed = 0;
    MC_TRY(mc_tier_remove_keys(tier, &key, 1, &removed));
    return removed > 0 ? MC_OK : MC_OBJECT_NOT_FOUND;
}

enum mc_status mc_tier_remove_keys(struct mc_tier *tier, const struct mc_str *keys, size_t count,
                                   size_t *removed) {
    *removed = 0;
    return tier->backend->ops->remove(tier->backend, keys, count, removed);
}

enum mc_status mc_tier_clear(struct mc_tier *tier) {
    return tier->backend->ops->clear(tier->backend);
}

void mc_tier_scan(struct mc_tier *tier, bool (*fn)(void *ctx, const struct mc_tier_found *found),
                  void *ctx) {
    struct mc_tier_backend *backend = tier->backend;
    uint64_t cursor = 0;
    pthread_mutex_lock(&backend->lock);
    for (struct mc_tier_entry *e; (e = mc_tier_index_next(&backend->index, &cursor)) != NULL;) {
        struct mc_tier_found found = {mc_tier_entry_key(e), e->size, MC_TIER_NO_BUCKET, 0, e->tag};
        if (backend->ops->place != NULL) {
            backend->ops->place(e, &found);
        }
        if (!fn(ctx, &found)) {
            break;
        }
    }
    pthread_mutex_unlock(&backend->lock);
}

bool mc_tier_backend_next(struct mc_tier_backend *backend, uint64_t *cursor, struct mc_buf *key,
                          uint64_t *size) {
    pthread_mutex_lock(&backend->lock);
    const struct mc_tier_entry *e = mc_tier_index_next(&backend->index, cursor);
    if (e != NULL) {
        mc_buf_append(key, e->key, e->key_len);
        *size = e->size;
    }
    pthread_mutex_unlock(&backend->lock);
    return e != NULL;
}

void mc_tier_scrub(struct mc_tier *tier) {
    mc_tier_scrub_once(tier->backend);
}

void mc_tier_stats(struct mc_tier *tier, struct mc_tier_stats *out) {
    *out = (struct mc_tier_stats){0};
    tier->backend->ops->stats(tier->backend, out);
    mc_tier_scrub_stats(tier->scrubber, out);
    out->borrowed_objects = (uint64_t)mc_metric_get(&tier->borrowed);
}
