/*
 * The offset allocator of one segment: hands out [offset, offset + size) of a range that lives in
 * another process.
 *
 * It never touches the memory that it manages. Sizes are exact (nothing is rounded up), any two
 * live extents are disjoint, and neighbouring free extents are merged. Allocation and free
 * take constant time. An extent is known by its handle, not by its offset.
 *
 * Thread safe; calls take one short lock and never block on anything else.
 */
#ifndef MC_MASTER_ALLOCATOR_H
#define MC_MASTER_ALLOCATOR_H

#include "base/base.h"

struct mc_allocator;

struct mc_extent {
    uint64_t offset;
    uint32_t handle; /* never 0 for a live extent */
};

#define MC_ALLOCATOR_MAX_CAPACITY (1ull << 62)
#define MC_ALLOCATOR_MAX_NODES    (1u << 30)

/* Manages [0, capacity). 0 < capacity <= MC_ALLOCATOR_MAX_CAPACITY, else NULL. `max_nodes` bounds
 * the metadata: live extents plus free ones (32 bytes each, taken as they are needed); 0 =
 * MC_ALLOCATOR_MAX_NODES. */
struct mc_allocator *mc_allocator_create(uint64_t capacity, uint32_t max_nodes);
void mc_allocator_destroy(struct mc_allocator *a); /* live extents die with it */

/* MC_INVALID_PARAMS for size 0; MC_NO_AVAILABLE_HANDLE when no free extent is large enough or the
 * metadata is at its limit. *out is filled only on success. */
MC_MUST_USE enum mc_status mc_allocator_alloc(struct mc_allocator *a, uint64_t size,
                                              struct mc_extent *out);

/* Frees a live extent, given as mc_allocator_alloc gave it, and its size. A handle that is not live
 * ends the process at once (a double free must never hand space out twice); offset and size are the
 * caller's word, and if they were wrong the process ends when the extent is merged. */
void mc_allocator_free(struct mc_allocator *a, struct mc_extent extent, uint64_t size);

/* Read without the lock; exact when nobody else is calling. */
uint64_t mc_allocator_used(const struct mc_allocator *a);
uint64_t mc_allocator_capacity(const struct mc_allocator *a);
uint64_t mc_allocator_count(const struct mc_allocator *a); /* live extents */

/* The largest size that could be allocated now; takes the lock and looks at one class of free
 * extents. */
uint64_t mc_allocator_largest_free(struct mc_allocator *a);

/* Bytes of memory that the metadata occupies. */
uint64_t mc_allocator_metadata_bytes(struct mc_allocator *a);

/* Offset and size of a live extent; false for anything else. */
bool mc_allocator_lookup(struct mc_allocator *a, uint32_t handle, uint64_t *offset, uint64_t *size);

/* Walks every extent in address order and compares the bins, sums and counters with what it saw.
 * Appends a line for each fault to `report`; MC_OK when there is none. Slow. */
enum mc_status mc_allocator_check(struct mc_allocator *a, struct mc_buf *report);

#endif
