/*
 * One region with one NIC: host memory by its address; device memory ("cuda:0") by a dma-buf
 * descriptor of it where CUDA can export one and kernel and NIC can import it, else by its address,
 * which works where the driver's peer-memory module does (WITH_NVIDIA_PEERMEM: that one first).
 *
 * CUDA is opened at run time, when the first device location is registered, and only its driver
 * library; a process that has no CUDA registers no such memory.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "te/transport/rdma.h"

/* Of cuda.h: CUmemRangeHandleType, CUdevice_attribute, CUpointer_attribute. */
#define CU_RANGE_HANDLE_DMABUF      1
#define CU_POINTER_ATTR_RANGE_START 11
#define CU_POINTER_ATTR_RANGE_SIZE  12

struct cuda {
    int (*range_handle)(void *handle, uint64_t addr, size_t size, int type, uint64_t flags);
    int (*pointer_attribute)(void *out, int attribute, uint64_t addr);
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cuda cuda; /* a registry: set once */

static void load_cuda(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL) {
        *(void **)&cuda.range_handle = dlsym(handle, "cuMemGetHandleForAddressRange");
        *(void **)&cuda.pointer_attribute = dlsym(handle, "cuPointerGetAttribute");
    }
}

/* A dma-buf of the whole pages that hold the range, and where in it the range begins. */
static int export_dmabuf(uint64_t addr, uint64_t length, int *fd, uint64_t *offset) {
    pthread_once(&once, load_cuda);
    if (cuda.range_handle == NULL || cuda.pointer_attribute == NULL) {
        return ENOTSUP;
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = addr / page * page;
    uint64_t end = (addr + length + page - 1) / page * page, base = 0;
    size_t size = 0;
    if (cuda.pointer_attribute(&base, CU_POINTER_ATTR_RANGE_START, addr) != 0 ||
        cuda.pointer_attribute(&size, CU_POINTER_ATTR_RANGE_SIZE, addr) != 0 || start < base ||
        end > base + size) {
        return EINVAL;
    }
    if (cuda.range_handle(fd, start, end - start, CU_RANGE_HANDLE_DMABUF, 0) != 0) {
        return ENOTSUP;
    }
    *offset = addr - start;
    return 0;
}

static bool is_device(const char *location) {
    return strncmp(location, "cuda:", 5) == 0;
}

int rdma_region_make(struct rdma_context *context, const struct mc_memory *memory, uint64_t addr,
                     uint64_t length, unsigned access, struct rdma_region **out, uint32_t *lkey,
                     uint32_t *rkey) {
    const struct rdma_provider *provider = context->transport->provider;
    int fd = -1, error = ENOTSUP;
    uint64_t offset = 0;
    if (is_device(memory->location) && !mc_env_bool("WITH_NVIDIA_PEERMEM", false) &&
        export_dmabuf(addr, length, &fd, &offset) == 0) {
        error = provider->region_create_dmabuf(context->device, fd, offset, addr, length, access,
                                               out, lkey, rkey);
        close(fd); /* the region keeps the buffer */
        if (error != 0) {
            mc_info("rdma: no dma-buf registration nic=%s location=%s errno=%d", context->name,
                    memory->location, error);
        }
    }
    if (error != 0) {
        error = provider->region_create(context->device, addr, length, access, out, lkey, rkey);
    }
    return error;
}
