/*
 * Pages of equal items. The page of an item is found by rounding its address down, so items carry
 * no header. A page with room is in its class's list; a full one is in none; an empty one goes back
 * to the pool.
 *
 * Regions are mapped a few MiB at a time while the index is small, so that an idle master stays
 * small, and 64 MiB at a time with huge pages once it is not: look-ups jump about at random, and 4
 * KiB pages would cost a TLB miss each.
 */
#include "master/slab.h"

#include <stdatomic.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES    (2u << 20)
#define SMALL_REGION_BYTES (1u << 20)
#define LARGE_REGION_BYTES (64u << 20)
#define SMALL_REGIONS      16u

struct item {
    struct item *next;
};

struct mc_page {
    struct mc_page *next; /* in the class's list, or in the pool's chain */
    struct mc_page *prev;
    struct item *free;
    uint16_t used;
    uint16_t fresh; /* items from here on were never used */
    uint16_t capacity;
    uint16_t item_bytes;
};
_Static_assert(sizeof(struct mc_page) % 16 == 0, "items behind the header stay aligned");

struct mc_page_region {
    struct mc_page_region *next;
    void *area;
    size_t bytes;
};

void mc_page_pool_init(struct mc_page_pool *pool) {
    *pool = (struct mc_page_pool){0};
}

void mc_page_pool_free(struct mc_page_pool *pool) {
    struct mc_page_region *region = pool->regions;
    while (region) {
        struct mc_page_region *next = region->next;
        munmap(region->area, region->bytes);
        free(region);
        region = next;
    }
    mc_page_pool_init(pool);
}

static void pool_grow_locked(struct mc_page_pool *pool) {
    bool large = pool->region_count >= SMALL_REGIONS;
    size_t bytes = large ? LARGE_REGION_BYTES : SMALL_REGION_BYTES;
    size_t mapped = large ? bytes + HUGE_PAGE_BYTES : bytes;
    char *area = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MC_ASSERT(area != MAP_FAILED); /* as mc_alloc: no metadata memory, no master */
    struct mc_page_region *region = mc_alloc(sizeof(*region));
    *region = (struct mc_page_region){.next = pool->regions, .area = area, .bytes = mapped};
    pool->regions = region;
    pool->region_count++;
    pool->fresh = area;
    if (large) {
        uintptr_t aligned =
            ((uintptr_t)area + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
        pool->fresh = (char *)aligned;
        (void)madvise(pool->fresh, bytes, MADV_HUGEPAGE); /* only a hint */
    }
    pool->fresh_end = pool->fresh + bytes;
}

static struct mc_page *page_take(struct mc_page_pool *pool) {
    mc_lock_acquire(&pool->lock);
    struct mc_page *page = pool->free;
    if (page) {
        pool->free = page->next;
    } else {
        if (pool->fresh == pool->fresh_end) {
            pool_grow_locked(pool);
        }
        page = (struct mc_page *)pool->fresh;
        pool->fresh += MC_PAGE_BYTES;
    }
    mc_lock_release(&pool->lock);
    atomic_fetch_add_explicit(&pool->pages_in_use, 1, memory_order_relaxed);
    return page;
}

static void page_give(struct mc_page_pool *pool, struct mc_page *page) {
    mc_lock_acquire(&pool->lock);
    page->next = pool->free;
    pool->free = page;
    mc_lock_release(&pool->lock);
    atomic_fetch_sub_explicit(&pool->pages_in_use, 1, memory_order_relaxed);
}

static unsigned class_of(size_t size) {
    if (size <= MC_SLAB_SMALL_MAX) {
        return (unsigned)((size + 15) / 16) - 1;
    }
    return (unsigned)(MC_SLAB_SMALL_MAX / 16 + (size - MC_SLAB_SMALL_MAX + 63) / 64) - 1;
}

static size_t class_bytes(unsigned class) {
    unsigned small = MC_SLAB_SMALL_MAX / 16;
    if (class < small) {
        return (class + 1) * 16;
    }
    return mc_min_u64(MC_SLAB_SMALL_MAX + (class - small + 1) * 64ull, MC_SLAB_ITEM_MAX);
}

static void partial_link(struct mc_slab *slab, unsigned class, struct mc_page *page) {
    page->prev = NULL;
    page->next = slab->partial[class];
    if (page->next) {
        page->next->prev = page;
    }
    slab->partial[class] = page;
}

static void partial_unlink(struct mc_slab *slab, unsigned class, struct mc_page *page) {
    if (page->next) {
        page->next->prev = page->prev;
    }
    if (page->prev) {
        page->prev->next = page->next;
    } else {
        slab->partial[class] = page->next;
    }
}

static struct mc_page *page_open(struct mc_slab *slab, unsigned class) {
    struct mc_page *page = page_take(slab->pool);
    size_t item_bytes = class_bytes(class);
    *page = (struct mc_page){.item_bytes = (uint16_t)item_bytes,
                             .capacity = (uint16_t)((MC_PAGE_BYTES - sizeof(*page)) / item_bytes)};
    partial_link(slab, class, page);
    return page;
}

/* relaxed, in two steps: the owner's lock keeps other writers away */
void mc_slab_count(struct mc_slab *slab, ptrdiff_t bytes) {
    size_t live = atomic_load_explicit(&slab->live_bytes, memory_order_relaxed);
    atomic_store_explicit(&slab->live_bytes, live + (size_t)bytes, memory_order_relaxed);
}

void *mc_slab_alloc(struct mc_slab *slab, size_t size) {
    if (size > MC_SLAB_ITEM_MAX) {
        mc_slab_count(slab, (ptrdiff_t)size);
        return mc_alloc(size);
    }
    unsigned class = class_of(size ? size : 1);
    mc_slab_count(slab, (ptrdiff_t)class_bytes(class));
    struct mc_page *page = slab->partial[class];
    if (!page) {
        page = page_open(slab, class);
    }
    struct item *item = page->free;
    if (item) {
        page->free = item->next;
    } else {
        item = (struct item *)((char *)(page + 1) + (size_t)page->fresh++ * page->item_bytes);
    }
    if (++page->used == page->capacity) {
        partial_unlink(slab, class, page);
    }
    return item;
}

void mc_slab_free(struct mc_slab *slab, void *item, size_t size) {
    if (size > MC_SLAB_ITEM_MAX) {
        mc_slab_count(slab, -(ptrdiff_t)size);
        free(item);
        return;
    }
    unsigned class = class_of(size ? size : 1);
    mc_slab_count(slab, -(ptrdiff_t)class_bytes(class));
    struct mc_page *page = (struct mc_page *)((uintptr_t)item & ~(uintptr_t)(MC_PAGE_BYTES - 1));
    MC_ASSERT(page->used > 0 && page->item_bytes == class_bytes(class));
    ((struct item *)item)->next = page->free;
    page->free = item;
    if (page->used-- == page->capacity) {
        partial_link(slab, class, page);
    }
    if (page->used == 0) {
        partial_unlink(slab, class, page);
        page_give(slab->pool, page);
    }
}
