/*
 * Memory for the index: millions of small records that come and go for weeks.
 *
 * A general heap fragments under that load; here each index shard has its own slab, which cuts 4
 * KiB pages into items of one size, and empty pages go back to one pool from which any shard takes
 * them for any size. So memory follows the most that was ever live, and a round of inserts and
 * removals leaves nothing behind. Items larger than a quarter page come from malloc.
 *
 * The pool is thread safe; a slab belongs to its shard's lock.
 */
#ifndef MC_MASTER_SLAB_H
#define MC_MASTER_SLAB_H

#include "base/base.h"
#include "master/lock.h"

#define MC_PAGE_BYTES     4096u
#define MC_SLAB_ITEM_MAX  1008u
#define MC_SLAB_SMALL_MAX 512u /* steps of 16 bytes up to here, of 64 above */
#define MC_SLAB_CLASSES   (MC_SLAB_SMALL_MAX / 16 + (MC_SLAB_ITEM_MAX - MC_SLAB_SMALL_MAX + 63) / 64)

struct mc_page;
struct mc_page_pool {
    struct mc_lock lock;
    struct mc_page *free;
    struct mc_page_region *regions;
    char *fresh; /* the part of the newest region that was never used */
    char *fresh_end;
    size_t region_count;
    _Atomic size_t pages_in_use;
};

void mc_page_pool_init(struct mc_page_pool *pool);
void mc_page_pool_free(struct mc_page_pool *pool); /* takes every page with it */

struct mc_slab {
    struct mc_page_pool *pool;
    _Atomic size_t live_bytes; /* of items, and what mc_slab_count was told; read by anybody */
    struct mc_page *partial[MC_SLAB_CLASSES]; /* pages with room, by class */
};

/* 16-byte aligned, not cleared; never NULL (memory exhausted ends the process, see mc_alloc). */
void *mc_slab_alloc(struct mc_slab *slab, size_t size);
void mc_slab_free(struct mc_slab *slab, void *item, size_t size); /* the size it was asked for */
/* Memory from elsewhere that belongs to the same owner: it counts as live. */
void mc_slab_count(struct mc_slab *slab, ptrdiff_t bytes);

#endif
