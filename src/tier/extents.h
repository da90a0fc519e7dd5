/*
 * Which parts of a file are taken: the allocator of the offset backend. Sizes fall into 256 bins,
 * eight to each power of two; a piece is taken from the smallest bin whose pieces all fit, and
 * given back it is merged with free neighbours. Both cost the same whatever there is.
 *
 * Counts units, of whatever size. The bins and how a size is rounded to them are upstream's, whose
 * state the backend reads and writes (tier/offset_meta.h). Private to the room. Not thread safe.
 */
#ifndef MC_TIER_EXTENTS_H
#define MC_TIER_EXTENTS_H

#include "base/base.h"

#define MC_EXTENTS_BINS 256u
#define MC_EXTENTS_MAX  0xf0000000u /* units: the size of the largest bin */
#define MC_EXTENTS_NONE UINT32_MAX

struct mc_extents;

struct mc_extent {
    uint32_t offset, size;
};

/* One free piece of `units`, 1 to MC_EXTENTS_MAX. */
struct mc_extents *mc_extents_create(uint32_t units);
void mc_extents_destroy(struct mc_extents *extents); /* NULL is allowed */
/* Takes at least `units` and gives a name that lasts until it is given back. False: no free piece
 * is as large as the bin of that size. */
bool mc_extents_take(struct mc_extents *extents, uint32_t units, uint32_t *name);
void mc_extents_give(struct mc_extents *extents, uint32_t name);
struct mc_extent mc_extents_at(const struct mc_extents *extents, uint32_t name);
/* Takes these pieces of an allocator that is all free; they are in order, apart and inside.
 * names[i] belongs to taken[i]. */
void mc_extents_load(struct mc_extents *extents, const struct mc_extent *taken, size_t count,
                     uint32_t *names);

/* All pieces in the order of their offsets: *name starts as MC_EXTENTS_NONE; false at the end. */
bool mc_extents_next(const struct mc_extents *extents, uint32_t *name, struct mc_extent *at,
                     bool *taken);
size_t mc_extents_count(const struct mc_extents *extents); /* pieces, taken and free */
uint64_t mc_extents_taken_units(const struct mc_extents *extents);

/* The bins: the largest whose size is at most `units`, and the smallest whose size is at least. */
unsigned mc_extents_bin_below(uint32_t units);
unsigned mc_extents_bin_above(uint32_t units);
uint64_t mc_extents_bin_size(unsigned bin);

#endif
