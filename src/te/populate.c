/*
 * Gives memory of mc_memory_alloc its pages before somebody needs them.
 *
 * A page of a memfd costs about 2 us when it is first written (found, cleared, entered in the page
 * table): a writer into fresh memory runs at a quarter of memcpy's speed. So each allocation has a
 * thread that walks it once from the front, at a low priority and in steps so small that nobody
 * waits long for the address space's lock, and ends. Reading and writing meanwhile is allowed: the
 * kernel's own page fault does the same for whoever comes first.
 *
 * It goes no further than the machine, and the control group, can spare: what is left is filled by
 * use, as it was before, and the log says so. Freeing stops it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "te/internal.h"

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#define STEP_BYTES     (128u << 10)
#define LOOK_BYTES     (64u << 20) /* between two looks at what is left */
#define SMALLEST_BYTES (1u << 20)  /* below, use fills it soon enough */
#define NICENESS       10
#define SPARE_PART     16 /* one part in so many of the machine stays free */
#define CGROUP_ROOT    "/sys/fs/cgroup"

struct mc_populate {
    char *base;
    size_t length;
    bool reserved; /* from a pool, not from what the machine has left */
    struct mc_metric *ready;
    _Atomic bool stop;
    pthread_t thread;
};

static bool read_text(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0) {
        close(fd);
    }
    return n > 0;
}

static uint64_t meminfo_kib(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at == NULL ? 0 : strtoull(at + strlen(name), NULL, 10);
}

static bool machine_can_spare(uint64_t bytes) {
    char text[4096];
    if (!read_text("/proc/meminfo", text, sizeof(text))) {
        return true;
    }
    uint64_t total = meminfo_kib(text, "MemTotal:") << 10;
    uint64_t available = meminfo_kib(text, "MemAvailable:") << 10;
    return available > total / SPARE_PART && available - total / SPARE_PART >= bytes;
}

/* A group's limit less what it uses; UINT64_MAX without a limit. */
static uint64_t group_left(const char *group) {
    char path[512], limit[64], current[64];
    snprintf(path, sizeof(path), CGROUP_ROOT "%s/memory.max", group);
    if (!read_text(path, limit, sizeof(limit)) || strncmp(limit, "max", 3) == 0) {
        return UINT64_MAX;
    }
    snprintf(path, sizeof(path), CGROUP_ROOT "%s/memory.current", group);
    if (!read_text(path, current, sizeof(current))) {
        return UINT64_MAX;
    }
    uint64_t most = strtoull(limit, NULL, 10), used = strtoull(current, NULL, 10);
    return most - most / SPARE_PART > used ? most - most / SPARE_PART - used : 0;
}

/* Of this process' group and those above it (version 2 of control groups). */
static bool groups_can_spare(uint64_t bytes) {
    char text[512];
    char *group = NULL;
    if (read_text("/proc/self/cgroup", text, sizeof(text)) &&
        (group = strstr(text, "0::/")) != NULL) {
        group += strlen("0::");
        group[strcspn(group, "\n")] = '\0';
    }
    while (group != NULL) {
        if (group_left(group) < bytes) {
            return false;
        }
        char *end = strrchr(group, '/');
        if (end == NULL) {
            break;
        }
        *end = '\0';
    }
    return true;
}

static void *populate(void *arg) {
    struct mc_populate *p = arg;
    /* Linux: of this thread alone. A busy machine has better things to do first. */
    (void)setpriority(PRIO_PROCESS, 0, NICENESS);
    for (size_t at = 0; at < p->length; at += STEP_BYTES) {
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) {
            break;
        }
        size_t look = (size_t)mc_min_u64(LOOK_BYTES, p->length - at);
        if (at % LOOK_BYTES == 0 && !p->reserved &&
            !(machine_can_spare(look) && groups_can_spare(look))) {
            mc_warn(
                "little memory is left, so the rest gets its pages by use: length=%zu ready=%zu",
                p->length, at);
            break;
        }
        size_t step = (size_t)mc_min_u64(STEP_BYTES, p->length - at);
        if (madvise(p->base + at, step, MADV_POPULATE_WRITE) != 0) {
            mc_info("memory gets its pages by use: length=%zu ready=%zu errno=%d", p->length, at,
                    errno); /* EINVAL: a kernel that cannot */
            break;
        }
        mc_metric_add(p->ready, (int64_t)step);
    }
    return NULL;
}

struct mc_populate *mc_populate_start(const struct mc_pages *pages, struct mc_metric *ready) {
    if (pages->bytes < SMALLEST_BYTES) {
        return NULL;
    }
    struct mc_populate *p = mc_zalloc(sizeof(*p));
    p->base = pages->ptr;
    p->length = pages->bytes;
    p->reserved = mc_pages_are_huge(pages);
    p->ready = ready;
    int error = mc_thread_start(&p->thread, "mc-te-fill", populate, p);
    if (error != 0) {
        mc_warn("no thread to fill memory, it gets its pages by use: errno=%d", error);
        free(p);
        return NULL;
    }
    return p;
}

void mc_populate_stop(struct mc_populate *p) {
    if (p == NULL) {
        return;
    }
    atomic_store_explicit(&p->stop, true, memory_order_relaxed);
    pthread_join(p->thread, NULL);
    free(p);
}
