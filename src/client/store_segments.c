/*
 * The memory that a store lends: fresh memory of the engine, or a mapped file.
 *
 * Who lends memory keeps its address for it: when the master has forgotten a segment, its bytes are
 * offered again only at an address that was never used before (client/ops_node.c says why). For
 * fresh memory that is new memory; a file is mapped a second time before the first mapping goes.
 * The last few addresses given back stay reserved, so that they do not come back soon.
 *
 * One mutex makes mounts, unmounts and the heartbeat follow each other. It is held while they ask
 * the master, because what is asked and what is noted must not be parted.
 */
#include "client/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/export.h"
#include "base/log.h"

#define SMALLEST_SEGMENT 1024
#define REGISTER_AT_ONCE (1ull << 40)
#define PIECE_ALIGN      4096ull
/* After its grace a segment whose master does not say that it has gone is freed all the same. */
#define LEAVE_PATIENCE_NS (30 * MC_SEC)

/* What is behind mc_ops_segment.memory. */
struct lent {
    struct mc_store_segment_id id; /* for the application */
    char *location;
    char *path; /* NULL = memory of the engine */
    uint64_t offset;
    uint64_t free_at_ns; /* of one that is leaving */
};

static struct lent *lent_of(const struct mc_ops_segment *segment) {
    return segment->memory;
}

/* ---- memory ---- */

/* Keeps the address range from being used again for a while: somebody may still hold it. */
static void bury(struct mc_store *store, void *addr, size_t length) {
    unsigned i = store->tombstone_next++ % STORE_TOMBSTONES;
    if (store->tombstones[i].addr != NULL) {
        munmap(store->tombstones[i].addr, store->tombstones[i].length);
    }
    void *reserved = mmap(addr, length, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (reserved != MAP_FAILED && reserved != addr) { /* a kernel that does not know the flag */
        munmap(reserved, length);
        reserved = MAP_FAILED;
    }
    store->tombstones[i].addr = reserved == MAP_FAILED ? NULL : reserved;
    store->tombstones[i].length = length;
}

static enum mc_status map_file(const char *path, uint64_t offset, uint64_t length, void **addr) {
    struct stat about;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (offset % page != 0) {
        mc_error("the offset of a segment in a file is not a multiple of the page size: path=%s "
                 "offset=%llu page=%llu",
                 path, (unsigned long long)offset, (unsigned long long)page);
        return MC_INVALID_PARAMS;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) != 0) {
        mc_error("the file of a segment cannot be opened: path=%s errno=%d", path, errno);
        if (fd >= 0) {
            close(fd);
        }
        return MC_FILE_OPEN_FAIL;
    }
    bool inside = about.st_size >= 0 && mc_range_inside(offset, length, 0, (uint64_t)about.st_size);
    *addr = inside ? mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset)
                   : MAP_FAILED;
    if (*addr == MAP_FAILED) {
        mc_error("a file cannot be lent: path=%s file_bytes=%lld offset=%llu bytes=%llu why=%s",
                 path, (long long)about.st_size, (unsigned long long)offset,
                 (unsigned long long)length, inside ? strerror(errno) : "outside the file");
    }
    close(fd);
    return *addr != MAP_FAILED ? MC_OK : inside ? MC_ERR_NO_MEMORY : MC_INVALID_PARAMS;
}

/* Memory for a segment of `size` bytes, under a fresh id. */
static enum mc_status take_memory(struct mc_store *store, struct mc_ops_segment *segment,
                                  uint64_t size) {
    const struct lent *lent = lent_of(segment);
    void *addr;
    if (lent->path == NULL) {
        MC_TRY(mc_memory_alloc(store->engine, size, lent->location, &addr));
    } else {
        MC_TRY(map_file(lent->path, lent->offset, size, &addr));
        enum mc_status status = mc_memory_register(store->engine, addr, size, lent->location, 0);
        if (status != MC_OK) {
            munmap(addr, size);
            return status;
        }
    }
    segment->id = mc_uuid_make(&store->rng);
    segment->base = (uintptr_t)addr;
    segment->size = size;
    return MC_OK;
}

static void give_memory(struct mc_store *store, const struct mc_ops_segment *segment) {
    void *addr = (void *)(uintptr_t)segment->base;
    bool file = lent_of(segment)->path != NULL;
    enum mc_status status =
        file ? mc_memory_unregister(store->engine, addr) : mc_memory_free(store->engine, addr);
    if (status != MC_OK) {
        mc_error("segment memory could not be freed: base=%p status=%s", addr,
                 mc_status_name(status));
        return;
    }
    if (file) {
        munmap(addr, segment->size);
    }
    bury(store, addr, segment->size);
}

/* The new is made before the old goes, so the two differ in address. */
enum mc_status mc_store_segment_fresh_memory(void *ctx, struct mc_ops_segment *segment) {
    struct mc_store *store = ctx;
    struct mc_ops_segment old = *segment;
    MC_TRY(take_memory(store, segment, old.size));
    give_memory(store, &old);
    return MC_OK;
}

static void lent_free(struct lent *lent) {
    free(lent->location);
    free(lent->path);
    free(lent);
}

/* ---- the list of segments: needs segments_lock ---- */

static void remove_locked(struct mc_store *store, struct mc_ops_segment *segment) {
    struct mc_ops_node *node = &store->node;
    give_memory(store, segment);
    lent_free(lent_of(segment));
    *segment = node->segments[--node->segment_count];
}

static enum mc_status mount_locked(struct mc_store *store, struct lent *lent, uint64_t length) {
    struct mc_ops_node *node = &store->node;
    if (node->segment_count == MC_OPS_SEGMENTS) {
        mc_error("a store lends at most %d segments: name=%s", MC_OPS_SEGMENTS, store->name);
        return MC_ERR_LIMIT;
    }
    struct mc_ops_segment *segment = &node->segments[node->segment_count];
    *segment = (struct mc_ops_segment){.memory = lent};
    MC_TRY(take_memory(store, segment, length));
    lent->id = (struct mc_store_segment_id){segment->id.hi, segment->id.lo};
    enum mc_status status = mc_ops_mount(store->ops, node, segment);
    if (status != MC_OK) {
        mc_error("the segment could not be mounted: name=%s bytes=%llu status=%s", store->name,
                 (unsigned long long)length, mc_status_name(status));
        give_memory(store, segment);
        return status;
    }
    node->segment_count++;
    return MC_OK;
}

static enum mc_status mount(struct mc_store *s, const char *path, uint64_t offset, uint64_t length,
                            const char *location, struct mc_store_segment_id *id) {
    if (s->engine == NULL) {
        return MC_UNAVAILABLE_IN_CURRENT_MODE;
    }
    if (length < SMALLEST_SEGMENT) {
        mc_error("a segment has at least %d bytes: bytes=%llu", SMALLEST_SEGMENT,
                 (unsigned long long)length);
        return MC_INVALID_PARAMS;
    }
    struct lent *lent = mc_zalloc(sizeof(*lent));
    lent->location = mc_strdup(location != NULL && location[0] != '\0' ? location : "*");
    lent->path = path != NULL ? mc_strdup(path) : NULL;
    lent->offset = offset;
    pthread_mutex_lock(&s->segments_lock);
    enum mc_status status = mount_locked(s, lent, length);
    if (status == MC_OK) {
        *id = lent->id;
    }
    pthread_mutex_unlock(&s->segments_lock);
    if (status != MC_OK) {
        lent_free(lent);
    }
    return status;
}

enum mc_status mc_store_segments_lend(struct mc_store *store, uint64_t bytes) {
    uint64_t most = mc_env_u64("MC_MAX_MR_SIZE", SMALLEST_SEGMENT, UINT64_MAX, REGISTER_AT_ONCE);
    uint64_t count = (bytes - 1) / most + 1;
    if (count > MC_OPS_SEGMENTS) {
        mc_error("so much memory makes too many segments: segment_bytes=%llu MC_MAX_MR_SIZE=%llu "
                 "segments=%llu limit=%d",
                 (unsigned long long)bytes, (unsigned long long)most, (unsigned long long)count,
                 MC_OPS_SEGMENTS);
        return MC_INVALID_PARAMS;
    }
    for (uint64_t left = bytes; count > 0; count--) {
        uint64_t piece = left / count; /* rounded up to pages while that is allowed */
        if (count > 1) {
            piece = mc_min_u64((piece + PIECE_ALIGN - 1) & ~(PIECE_ALIGN - 1), most);
            piece = mc_min_u64(piece, left - (count - 1) * SMALLEST_SEGMENT);
        }
        struct mc_store_segment_id id;
        MC_TRY(mount(store, NULL, 0, piece, NULL, &id));
        left -= piece;
    }
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_store_mount_memory(struct mc_store *s, uint64_t length,
                                               const char *location,
                                               struct mc_store_segment_id *id) {
    return mount(s, NULL, 0, length, location, id);
}

MC_PUBLIC enum mc_status mc_store_mount_file(struct mc_store *s, const char *path, uint64_t offset,
                                             uint64_t length, const char *location,
                                             struct mc_store_segment_id *id) {
    return path != NULL ? mount(s, path, offset, length, location, id) : MC_INVALID_PARAMS;
}

static enum mc_status unmount_locked(struct mc_store *s, struct mc_store_segment_id id,
                                     uint64_t grace_ms) {
    for (size_t i = 0; i < s->node.segment_count; i++) {
        struct mc_ops_segment *segment = &s->node.segments[i];
        struct lent *lent = lent_of(segment);
        if (lent->id.hi != id.hi || lent->id.lo != id.lo) {
            continue;
        }
        MC_TRY(mc_ops_unmount(s->ops, segment, grace_ms));
        if (grace_ms == 0) {
            remove_locked(s, segment);
        } else {
            uint64_t now = mc_now_ns(mc_clock_system());
            lent->free_at_ns = now + mc_min_u64(grace_ms, UINT32_MAX) * MC_MS + LEAVE_PATIENCE_NS;
        }
        return MC_OK;
    }
    return MC_SEGMENT_NOT_FOUND;
}

MC_PUBLIC enum mc_status mc_store_unmount(struct mc_store *s, struct mc_store_segment_id id,
                                          uint64_t grace_ms) {
    pthread_mutex_lock(&s->segments_lock);
    enum mc_status status = unmount_locked(s, id, grace_ms);
    pthread_mutex_unlock(&s->segments_lock);
    return status;
}

/* ---- heartbeat and end ---- */

enum mc_status mc_store_segments_beat(struct mc_store *store) {
    pthread_mutex_lock(&store->segments_lock);
    enum mc_status status = mc_ops_heartbeat(store->ops, &store->node);
    for (size_t i = store->node.segment_count; i-- > 0;) {
        struct mc_ops_segment *segment = &store->node.segments[i];
        uint64_t free_at = lent_of(segment)->free_at_ns;
        if (segment->gone || (free_at != 0 && free_at <= mc_now_ns(mc_clock_system()))) {
            mc_info("a segment has left: name=%s base=%#llx bytes=%llu", store->name,
                    (unsigned long long)segment->base, (unsigned long long)segment->size);
            remove_locked(store, segment);
        }
    }
    pthread_mutex_unlock(&store->segments_lock);
    return status;
}

void mc_store_segments_unmount_all(struct mc_store *store) {
    for (size_t i = 0; i < store->node.segment_count; i++) {
        enum mc_status status = mc_ops_unmount(store->ops, &store->node.segments[i], 0);
        if (status != MC_OK) {
            mc_warn("a segment could not be unmounted, the master will notice: name=%s status=%s",
                    store->name, mc_status_name(status));
        }
    }
}

void mc_store_segments_destroy(struct mc_store *store) {
    while (store->node.segment_count > 0) {
        remove_locked(store, &store->node.segments[store->node.segment_count - 1]);
    }
    for (unsigned i = 0; i < STORE_TOMBSTONES; i++) {
        if (store->tombstones[i].addr != NULL) {
            munmap(store->tombstones[i].addr, store->tombstones[i].length);
        }
    }
}
