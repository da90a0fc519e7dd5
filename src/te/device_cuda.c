/*
 * CUDA by its driver library, libcuda.so.1, which every process with CUDA memory has loaded,
 * whatever else it uses. Only functions of the driver's stable ABI; their versions ("_v2") are
 * those that cuda.h's names stand for since CUDA 4.
 *
 * Copies run on a stream of the device's primary context, the one that CUDA's runtime and the
 * frameworks use. The driver tells host from device by the addresses, so one function copies every
 * way.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"
#include "te/device.h"

#define LIBRARY "libcuda.so.1"

/* Of cuda.h. */
#define CU_SUCCESS                  0
#define CU_ALREADY_REGISTERED       712
#define CU_POINTER_ATTR_MEMORY_TYPE 2
#define CU_POINTER_ATTR_IS_MANAGED  8
#define CU_POINTER_ATTR_ORDINAL     9
#define CU_POINTER_ATTR_RANGE_START 11
#define CU_POINTER_ATTR_RANGE_SIZE  12
#define CU_MEMORYTYPE_DEVICE        2
#define CU_STREAM_NON_BLOCKING      1
#define CU_HOST_REGISTER_PORTABLE   1
#define CU_RANGE_HANDLE_DMABUF      1

struct cuda {
    int (*init)(unsigned flags);
    int (*device_get_count)(int *count);
    int (*mem_alloc)(uint64_t *addr, size_t length);
    int (*mem_free)(uint64_t addr);
    int (*device_get)(int *device, int ordinal);
    int (*primary_retain)(void **context, int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*memcpy_async)(uint64_t to, uint64_t from, size_t length, void *stream);
    int (*host_register)(void *ptr, size_t length, unsigned flags);
    int (*host_unregister)(void *ptr);
    int (*pointer_attribute)(void *out, int attribute, uint64_t addr);
    int (*error_name)(int error, const char **name);
    /* Since CUDA 11.7; NULL before. */
    int (*range_handle)(void *handle, uint64_t addr, size_t size, int type, uint64_t flags);
    void *contexts[MC_DEVICES_MAX]; /* primary ones, kept for good; lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda cuda;                     /* a registry: set once, */
static _Atomic bool is_loaded;               /* and then this */
static _Atomic unsigned long long looked_at; /* libraries that were loaded at the last look */

static bool load_locked(void) {
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == NULL) {
        return false;
    }
    const struct {
        const char *name;
        void *to;
        bool optional;
    } symbols[] = {
        {"cuInit", &cuda.init, false},
        {"cuDeviceGetCount", &cuda.device_get_count, false},
        {"cuMemAlloc_v2", &cuda.mem_alloc, false},
        {"cuMemFree_v2", &cuda.mem_free, false},
        {"cuDeviceGet", &cuda.device_get, false},
        {"cuDevicePrimaryCtxRetain", &cuda.primary_retain, false},
        {"cuCtxPushCurrent_v2", &cuda.context_push, false},
        {"cuCtxPopCurrent_v2", &cuda.context_pop, false},
        {"cuStreamCreate", &cuda.stream_create, false},
        {"cuStreamDestroy_v2", &cuda.stream_destroy, false},
        {"cuStreamSynchronize", &cuda.stream_synchronize, false},
        {"cuMemcpyAsync", &cuda.memcpy_async, false},
        {"cuMemHostRegister_v2", &cuda.host_register, false},
        {"cuMemHostUnregister", &cuda.host_unregister, false},
        {"cuPointerGetAttribute", &cuda.pointer_attribute, false},
        {"cuGetErrorName", &cuda.error_name, false},
        {"cuMemGetHandleForAddressRange", &cuda.range_handle, true},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(symbols); i++) {
        void *symbol = dlsym(handle, symbols[i].name);
        if (symbol == NULL && !symbols[i].optional) {
            mc_warn("cuda: the driver library lacks a function, its memory is not served name=%s",
                    symbols[i].name);
            return false;
        }
        memcpy(symbols[i].to, &symbol, sizeof(symbol));
    }
    return true; /* the handle stays open: pointers point into it */
}

static int count_libraries(struct dl_phdr_info *info, size_t size, void *count) {
    *(unsigned long long *)count = info->dlpi_adds;
    return 1; /* the first has it */
}

/* dlopen() would look through folders for what is not there: it is asked once for each library that
 * this process has ever loaded. */
static bool cuda_present(void) {
    unsigned long long libraries = 0;
    if (atomic_load_explicit(&is_loaded, memory_order_acquire)) {
        return true;
    }
    (void)dl_iterate_phdr(count_libraries, &libraries);
    if (atomic_load_explicit(&looked_at, memory_order_relaxed) == libraries) {
        return false;
    }
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&is_loaded, memory_order_relaxed) && load_locked()) {
        atomic_store_explicit(&is_loaded, true, memory_order_release);
    }
    atomic_store_explicit(&looked_at, libraries, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    return atomic_load_explicit(&is_loaded, memory_order_acquire);
}

/* Managed memory is both's: the processor may touch it. */
static bool cuda_owns(uint64_t addr, unsigned *device) {
    unsigned type = 0, managed = 0;
    int ordinal = 0;
    if (cuda.pointer_attribute(&type, CU_POINTER_ATTR_MEMORY_TYPE, addr) != CU_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE) {
        return false;
    }
    if (cuda.pointer_attribute(&managed, CU_POINTER_ATTR_IS_MANAGED, addr) == CU_SUCCESS &&
        managed != 0) {
        return false;
    }
    if (cuda.pointer_attribute(&ordinal, CU_POINTER_ATTR_ORDINAL, addr) != CU_SUCCESS ||
        ordinal < 0) {
        return false;
    }
    *device = (unsigned)ordinal;
    return true;
}

static enum mc_status failed(const char *step, unsigned device, int error) {
    const char *name = NULL;
    (void)cuda.error_name(error, &name);
    mc_warn_limited("cuda: %s failed device=%u error=%d (%s)", step, device, error,
                    name == NULL ? "unknown" : name);
    return MC_ERR_IO;
}

/* The device's primary context becomes the thread's; cuda_leave() puts back what it had. */
static enum mc_status cuda_enter(unsigned device) {
    int number = 0, error = CU_SUCCESS;
    pthread_mutex_lock(&lock);
    if (cuda.contexts[device] == NULL) {
        error = cuda.device_get(&number, (int)device);
        error = error != CU_SUCCESS ? error : cuda.primary_retain(&cuda.contexts[device], number);
    }
    void *context = cuda.contexts[device];
    pthread_mutex_unlock(&lock);
    error = error != CU_SUCCESS ? error : cuda.context_push(context);
    return error == CU_SUCCESS ? MC_OK : failed("entering a context", device, error);
}

static void cuda_leave(void) {
    void *context = NULL;
    (void)cuda.context_pop(&context);
}

/* The library stays for good: it is what memory and streams belong to. */
static enum mc_status cuda_start(unsigned *count, struct mc_buf *why) {
    int devices = 0;
    if (dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL) == NULL) {
        const char *text = dlerror();
        mc_buf_puts(why, text != NULL ? text : LIBRARY " cannot be loaded");
        return MC_NOT_SUPPORTED;
    }
    if (!cuda_present()) {
        mc_buf_puts(why, LIBRARY " lacks a function");
        return MC_NOT_SUPPORTED;
    }
    int error = cuda.init(0);
    error = error != CU_SUCCESS ? error : cuda.device_get_count(&devices);
    if (error != CU_SUCCESS || devices <= 0) {
        const char *name = NULL;
        (void)cuda.error_name(error, &name);
        mc_buf_printf(why, LIBRARY " has no device (%s)", name == NULL ? "unknown error" : name);
        return MC_NOT_SUPPORTED;
    }
    *count = (unsigned)mc_min_u64((uint64_t)devices, MC_DEVICES_MAX);
    return MC_OK;
}

static enum mc_status cuda_alloc(unsigned device, size_t length, void **ptr) {
    uint64_t addr = 0;
    MC_TRY(cuda_enter(device));
    int error = cuda.mem_alloc(&addr, length);
    cuda_leave();
    if (error != CU_SUCCESS) {
        (void)failed("allocating device memory", device, error);
        return MC_ERR_NO_MEMORY;
    }
    *ptr = (void *)(uintptr_t)addr;
    return MC_OK;
}

static void cuda_release(unsigned device, void *ptr) {
    if (cuda_enter(device) == MC_OK) {
        (void)cuda.mem_free((uint64_t)(uintptr_t)ptr);
        cuda_leave();
    }
}

static enum mc_status cuda_stream_create(unsigned device, void **stream) {
    MC_TRY(cuda_enter(device));
    int error = cuda.stream_create(stream, CU_STREAM_NON_BLOCKING);
    cuda_leave();
    return error == CU_SUCCESS ? MC_OK : failed("making a stream", device, error);
}

static void cuda_stream_destroy(unsigned device, void *stream) {
    if (cuda_enter(device) == MC_OK) {
        (void)cuda.stream_destroy(stream);
        cuda_leave();
    }
}

static enum mc_status cuda_copy(unsigned device, void *stream, void *to, const void *from,
                                size_t length) {
    MC_TRY(cuda_enter(device));
    int error =
        cuda.memcpy_async((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, length, stream);
    /* Also after a failure: nothing touches the memory when this returns. */
    int ended = cuda.stream_synchronize(stream);
    cuda_leave();
    error = error != CU_SUCCESS ? error : ended;
    return error == CU_SUCCESS ? MC_OK : failed("a copy", device, error);
}

static enum mc_status cuda_pin(unsigned device, void *ptr, size_t length) {
    MC_TRY(cuda_enter(device));
    int error = cuda.host_register(ptr, length, CU_HOST_REGISTER_PORTABLE);
    cuda_leave();
    return error == CU_SUCCESS || error == CU_ALREADY_REGISTERED
               ? MC_OK
               : failed("pinning host memory", device, error);
}

static void cuda_unpin(unsigned device, void *ptr) {
    if (cuda_enter(device) == MC_OK) {
        (void)cuda.host_unregister(ptr);
        cuda_leave();
    }
}

static int cuda_dmabuf(uint64_t addr, uint64_t length, int *fd, uint64_t *offset) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = addr / page * page;
    uint64_t end = (addr + length + page - 1) / page * page, base = 0;
    size_t size = 0;
    if (cuda.range_handle == NULL) {
        return ENOTSUP;
    }
    if (cuda.pointer_attribute(&base, CU_POINTER_ATTR_RANGE_START, addr) != CU_SUCCESS ||
        cuda.pointer_attribute(&size, CU_POINTER_ATTR_RANGE_SIZE, addr) != CU_SUCCESS ||
        start < base || end > base + size) {
        return EINVAL;
    }
    if (cuda.range_handle(fd, start, end - start, CU_RANGE_HANDLE_DMABUF, 0) != CU_SUCCESS) {
        return ENOTSUP;
    }
    *offset = addr - start;
    return 0;
}

const struct mc_device_ops mc_device_cuda_ops = {
    .kind = "cuda",
    .start = cuda_start,
    .present = cuda_present,
    .owns = cuda_owns,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .copy = cuda_copy,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .dmabuf = cuda_dmabuf,
};
