/*
 * shared: memory of this process that a store node can map, found again by its address. Public
 * face: mc_shared_alloc of mooncake/store.h.
 */
#ifndef MC_CLIENT_SHARED_H
#define MC_CLIENT_SHARED_H

#include "base/base.h"

/* A sealed memfd of `size` bytes and its mapping. MC_ERR_NO_MEMORY. */
MC_MUST_USE enum mc_status mc_shared_map(size_t size, void **memory, int *fd);
/* A descriptor of its own for memory of mc_shared_alloc that begins at `memory` and is `size` long;
 * MC_ERR_NOT_FOUND. */
MC_MUST_USE enum mc_status mc_shared_fd(const void *memory, size_t size, int *fd);

#endif
