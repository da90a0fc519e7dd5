/*
 * blocks: first fit in one piece of memory, kept apart from it, since the memory is shared with a
 * process that is not to be believed. The caller's lock.
 */
#ifndef MC_CLIENT_BLOCKS_H
#define MC_CLIENT_BLOCKS_H

#include "base/base.h"

#define MC_BLOCKS_MAX 65536

struct mc_block {
    uint64_t offset, size;
};
struct mc_blocks {          /* zero-initialised = nothing is taken */
    struct mc_block *taken; /* sorted */
    size_t count, capacity;
};
/* Takes `size` (not 0) of `total` bytes; offsets are multiples of 64. False when there is no room,
 * or there are MC_BLOCKS_MAX. */
bool mc_blocks_take(struct mc_blocks *blocks, uint64_t total, uint64_t size, uint64_t *offset);
bool mc_blocks_give(struct mc_blocks *blocks, uint64_t offset); /* false: not taken */
void mc_blocks_free(struct mc_blocks *blocks);

#endif
