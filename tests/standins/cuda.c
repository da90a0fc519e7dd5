/* See cuda.h. */
#include "standins/cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT   __attribute__((visibility("default")))
#define RANGES   64
#define CONTEXTS ((uintptr_t)0x1000)

enum {
    OK = 0,
    INVALID = 1,
    NO_MEMORY = 2,
    NO_DEVICE = 100,
    BAD_CONTEXT = 201,
    LAUNCH_FAILED = 719
};

struct range {
    uint64_t addr;
    size_t bytes;
    char *inside; /* NULL = free; of pinned memory, the address itself */
    unsigned device;
    int fd; /* of an allocation: its memory */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct range allocations[RANGES], pinned[RANGES];
static struct standin_counts counts;
static unsigned failures, running;
static uint64_t begun[2];
static bool held[2], meeting;
static _Thread_local uintptr_t stack[8]; /* of contexts */
static _Thread_local int depth;

static const struct range *find(const struct range *list, uint64_t addr, size_t bytes) {
    for (int i = 0; i < RANGES; i++) {
        if (list[i].inside != NULL && addr >= list[i].addr &&
            addr - list[i].addr + bytes <= list[i].bytes) {
            return &list[i];
        }
    }
    return NULL;
}

static struct range *empty(struct range *list) {
    for (int i = 0; i < RANGES; i++) {
        if (list[i].inside == NULL) {
            return &list[i];
        }
    }
    return NULL;
}

/* ---- the driver ---- */

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuMemAlloc_v2(uint64_t *addr, size_t length);
EXPORT int cuMemFree_v2(uint64_t addr);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **context);
EXPORT int cuStreamCreate(void **stream, unsigned flags);
EXPORT int cuStreamDestroy_v2(void *stream);
EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t length, void *stream);
EXPORT int cuMemHostRegister_v2(void *ptr, size_t length, unsigned flags);
EXPORT int cuMemHostUnregister(void *ptr);
EXPORT int cuPointerGetAttribute(void *out, int attribute, uint64_t addr);
EXPORT int cuGetErrorName(int error, const char **name);
EXPORT int cuMemGetHandleForAddressRange(void *handle, uint64_t addr, size_t size, int type,
                                         unsigned long long flags);

/* As many as the driver would be let see. */
static int devices(void) {
    const char *few = getenv("STANDIN_CUDA_DEVICES");
    return few == NULL ? STANDIN_DEVICES : atoi(few);
}

int cuInit(unsigned flags) {
    return flags != 0 ? INVALID : devices() == 0 ? NO_DEVICE : OK;
}

int cuDeviceGetCount(int *count) {
    *count = devices();
    return OK;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < STANDIN_DEVICES ? OK : INVALID;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(CONTEXTS + (uintptr_t)device);
    return OK;
}

int cuCtxPushCurrent_v2(void *context) {
    if (depth == 8) {
        return INVALID;
    }
    stack[depth++] = (uintptr_t)context;
    return OK;
}

int cuCtxPopCurrent_v2(void **context) {
    if (depth == 0) {
        return BAD_CONTEXT;
    }
    *context = (void *)stack[--depth];
    return OK;
}

int cuStreamCreate(void **stream, unsigned flags) {
    static _Atomic uintptr_t next = 0x2000;
    if (depth == 0 || flags != 1) {
        return BAD_CONTEXT;
    }
    *stream = (void *)atomic_fetch_add(&next, 16);
    pthread_mutex_lock(&lock);
    counts.streams++;
    pthread_mutex_unlock(&lock);
    return OK;
}

int cuStreamDestroy_v2(void *stream) {
    pthread_mutex_lock(&lock);
    counts.streams--;
    pthread_mutex_unlock(&lock);
    return OK;
}

int cuStreamSynchronize(void *stream) {
    return stream == NULL || depth == 0 ? BAD_CONTEXT : OK;
}

static void wait_for_others(unsigned way) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    while (held[way]) {
        pthread_cond_wait(&changed, &lock);
    }
    bool meets = meeting && way == 1;
    uint64_t before = begun[0];
    meeting = meeting && !meets;
    while (meets && begun[0] == before) {
        if (pthread_cond_timedwait(&changed, &lock, &until) != 0) {
            return;
        }
    }
    counts.met += meets;
}

/* Before and after a copy of one side at most of the device. */
static int copy_begins(unsigned way, bool pageable) {
    pthread_mutex_lock(&lock);
    running++;
    begun[way]++;
    counts.most_at_once = running > counts.most_at_once ? running : counts.most_at_once;
    pthread_cond_broadcast(&changed);
    wait_for_others(way);
    counts.pageable += pageable;
    int error = failures > 0 ? LAUNCH_FAILED : OK;
    failures -= failures > 0;
    pthread_mutex_unlock(&lock);
    return error;
}

static void copy_ends(unsigned way, size_t length, int error) {
    pthread_mutex_lock(&lock);
    running--;
    if (error == OK) {
        *(way != 0 ? &counts.to_device : &counts.from_device) += 1;
        counts.bytes += length;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* As a device does it: the thread sanitizer, which does not know that a socket orders two threads
 * of one process, does not see this. */
static void move(char *to, const char *from, size_t length) {
#if defined(__x86_64__)
    if (to <= from || to >= from + length) {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(length) : : "memory");
        return;
    }
#endif
    memmove(to, from, length);
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t length, void *stream) {
    if (stream == NULL || depth == 0) {
        return BAD_CONTEXT;
    }
    pthread_mutex_lock(&lock);
    const struct range *t = find(allocations, to, length), *f = find(allocations, from, length);
    char *target = t == NULL ? (char *)(uintptr_t)to : t->inside + (to - t->addr);
    char *source = f == NULL ? (char *)(uintptr_t)from : f->inside + (from - f->addr);
    bool pageable = (t == NULL && find(pinned, to, length) == NULL) ||
                    (f == NULL && find(pinned, from, length) == NULL);
    pthread_mutex_unlock(&lock);
    if (t == NULL && f == NULL) {
        return INVALID;
    }
    unsigned way = t != NULL;
    int error = copy_begins(way, pageable);
    if (error == OK) {
        move(target, source, length);
    }
    copy_ends(way, length, error);
    return error;
}

int cuMemHostRegister_v2(void *ptr, size_t length, unsigned flags) {
    pthread_mutex_lock(&lock);
    struct range *r = depth == 0 || flags != 1 ? NULL : empty(pinned);
    if (r != NULL) {
        *r = (struct range){(uint64_t)(uintptr_t)ptr, length, ptr, 0};
        counts.pinned++;
    }
    pthread_mutex_unlock(&lock);
    return r == NULL ? BAD_CONTEXT : OK;
}

int cuMemHostUnregister(void *ptr) {
    int error = INVALID;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES; i++) {
        if (pinned[i].inside == ptr) {
            pinned[i].inside = NULL;
            counts.pinned--;
            error = OK;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t addr) {
    pthread_mutex_lock(&lock);
    const struct range *r = find(allocations, addr, 1);
    pthread_mutex_unlock(&lock);
    if (r == NULL) {
        return INVALID;
    }
    switch (attribute) {
    case 2: /* MEMORY_TYPE */
        *(unsigned *)out = 2;
        return OK;
    case 8: /* IS_MANAGED */
        *(unsigned *)out = 0;
        return OK;
    case 9: /* DEVICE_ORDINAL */
        *(int *)out = (int)r->device;
        return OK;
    case 11: /* RANGE_START_ADDR */
        *(uint64_t *)out = r->addr;
        return OK;
    case 12: /* RANGE_SIZE */
        *(size_t *)out = r->bytes;
        return OK;
    default:
        return INVALID;
    }
}

int cuGetErrorName(int error, const char **name) {
    *name = error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
            : error == NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
            : error == NO_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
                                   : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}

/* A "dma-buf" is the memory's memfd: whole allocations only, and whole pages as the driver. */
int cuMemGetHandleForAddressRange(void *handle, uint64_t addr, size_t size, int type,
                                  unsigned long long flags) {
    pthread_mutex_lock(&lock);
    const struct range *r = find(allocations, addr, size);
    int fd = r != NULL && r->addr == addr && size % 4096 == 0 && type == 1 && flags == 0
                 ? fcntl(r->fd, F_DUPFD_CLOEXEC, 3)
                 : -1;
    counts.exported += fd >= 0;
    pthread_mutex_unlock(&lock);
    if (fd >= 0) {
        *(int *)handle = fd;
    }
    return fd >= 0 ? OK : INVALID;
}

/* ---- for tests ---- */

static int alloc(unsigned device, size_t bytes, uint64_t *addr) {
    int fd = memfd_create("standin-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        return -1;
    }
    void *outside = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    void *inside = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pthread_mutex_lock(&lock);
    struct range *r = empty(allocations);
    int error = outside == MAP_FAILED || inside == MAP_FAILED || r == NULL ? -1 : 0;
    if (error == 0) {
        *r = (struct range){(uint64_t)(uintptr_t)outside, bytes, inside, device, fd};
        *addr = r->addr;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static void release(uint64_t addr) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES; i++) {
        struct range *r = &allocations[i];
        if (r->inside != NULL && r->addr == addr) {
            munmap((void *)(uintptr_t)r->addr, r->bytes);
            munmap(r->inside, r->bytes);
            close(r->fd);
            r->inside = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
}

int cuMemAlloc_v2(uint64_t *addr, size_t length) {
    if (depth == 0) {
        return BAD_CONTEXT;
    }
    if (getenv("STANDIN_CUDA_ALLOC") != NULL) {
        return NO_MEMORY; /* its only value: nothing is given */
    }
    return alloc((unsigned)(stack[depth - 1] - CONTEXTS), length, addr) == 0 ? OK : NO_MEMORY;
}

int cuMemFree_v2(uint64_t addr) {
    if (depth == 0) {
        return BAD_CONTEXT;
    }
    release(addr);
    return OK;
}

static void *inside_of(uint64_t addr) {
    pthread_mutex_lock(&lock);
    const struct range *r = find(allocations, addr, 1);
    char *inside = r == NULL ? NULL : r->inside + (addr - r->addr);
    pthread_mutex_unlock(&lock);
    return inside;
}

static void read_counts(struct standin_counts *out, bool reset) {
    pthread_mutex_lock(&lock);
    *out = counts;
    if (reset) {
        counts = (struct standin_counts){.streams = counts.streams, .pinned = counts.pinned};
    }
    pthread_mutex_unlock(&lock);
}

static void fail_next(unsigned count) {
    pthread_mutex_lock(&lock);
    failures = count;
    pthread_mutex_unlock(&lock);
}

static void hold(bool to_device, bool on) {
    pthread_mutex_lock(&lock);
    held[to_device] = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void meet(void) {
    pthread_mutex_lock(&lock);
    meeting = true;
    pthread_mutex_unlock(&lock);
}

EXPORT extern const struct standin_cuda standin_cuda_table;
const struct standin_cuda standin_cuda_table = {
    .alloc = alloc,
    .release = release,
    .inside = inside_of,
    .counts = read_counts,
    .fail_next = fail_next,
    .hold = hold,
    .meet = meet,
};
