/*
 * One region with one NIC: host memory by its address; device memory by a dma-buf descriptor of it
 * where its runtime can export one and kernel and NIC can import it, else by its address, which
 * works where the driver's peer-memory module does (WITH_NVIDIA_PEERMEM: that one first).
 */
#include <errno.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "te/transport/rdma.h"

int rdma_region_make(struct rdma_context *context, const struct mc_memory *memory, uint64_t addr,
                     uint64_t length, unsigned access, struct rdma_region **out, uint32_t *lkey,
                     uint32_t *rkey) {
    const struct rdma_provider *provider = context->transport->provider;
    int fd = -1, error = ENOTSUP;
    uint64_t offset = 0;
    if (memory->on_device && !mc_env_bool("WITH_NVIDIA_PEERMEM", false) &&
        memory->device.ops->dmabuf(addr, length, &fd, &offset) == 0) {
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
