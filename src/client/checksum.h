/* The checksum that travels with an object (object_checksum in PutEnd and in the replica list). */
#ifndef MC_CLIENT_CHECKSUM_H
#define MC_CLIENT_CHECKSUM_H

#include "mooncake/store.h"

/* Of the first `length` bytes of the slices. */
uint64_t mc_checksum_slices(const struct mc_slice *slices, size_t count, uint64_t length);

#endif
