/* The checksum that travels with an object (object_checksum in PutEnd and in the replica list). */
#ifndef MC_CLIENT_CHECKSUM_H
#define MC_CLIENT_CHECKSUM_H

#include <stdbool.h>

#include "mooncake/store.h"

/* Device memory has none: the processor cannot read it, and a copy would cost more than the move.
 */
bool mc_checksum_possible(const struct mc_slice *slices, size_t count);
/* Of the first `length` bytes of the slices. */
uint64_t mc_checksum_slices(const struct mc_slice *slices, size_t count, uint64_t length);
/* Of these bytes when so many zeros follow. The checksum of an object is the exclusive or of those
 * of its parts, each with as many zeros as the object has bytes behind it. */
uint64_t mc_checksum_shift(uint64_t checksum, uint64_t zeros);

#endif
