/*
 * A two-level segregated fit over nodes in a slab.
 *
 * Every extent, free or live, is one 32-byte node; nodes are linked in address order, so a freed
 * extent finds its neighbours at once and merges. Free nodes also hang in the list of their size
 * class: class = power of two, cut into 32 equal steps; two levels of bitmaps find the next class
 * that is not empty with two bit scans.
 *
 * Only the search is rounded, not the size. Classes above the class of `size` hold only extents
 * that fit. The class of `size` itself holds some that fit and some that do not; upstream's design
 * skips it, and then a pool of equal objects whose size is not a class boundary can never reuse its
 * own holes. So a few extents of that class are tried first, and the best of them is taken; the
 * number is a constant, which keeps the whole in constant time. Where nothing was found, nothing as
 * large is looked for again until something larger has been freed: a caller that evicts asks after
 * each victim.
 *
 * The extent that was freed last is parked: not merged until the next call, and handed out again at
 * once when that is an allocation of its size. That is what a full cache of equal objects does all
 * day, one out and one in, and it then touches no node at all: the caller says where the extent
 * lies, and whether a handle is live is a bit in a map of its own, 256 times smaller than the nodes
 * (with millions of extents a node is a miss to memory, which takes longer than all the rest). What
 * the caller said is compared with the node when the extent is merged. A parked extent keeps its
 * bit, so its neighbours leave it alone.
 *
 * Invariants: nodes cover [0, capacity) without gap or overlap; no two neighbours are both free
 * (the parked one aside); a bin bit is set exactly when its list is not empty; every extent in a
 * bin is below the ceiling; used + sum(free) = capacity. mc_allocator_check() proves them.
 *
 * Nodes are addressed by index because the slab moves when it grows (see slab_grow). Index 0
 * is a sentinel and means "none"; its live bit is set, so nothing merges with it, and its links may
 * be written and mean nothing, so that no link needs a test.
 */
#include "master/allocator.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "base/log.h"
#include "master/lock.h"

#define STEP_BITS           5u
#define STEPS               (1u << STEP_BITS)
#define LEVELS              (64u - STEP_BITS)
#define TRIES_IN_CLASS      8u
#define TRIES_IN_LAST_CLASS 128u
#define SLAB_FIRST_BYTES    (64u << 10)
#define HUGE_PAGE_BYTES     (2u << 20)

/* The two calls of the hot path have all their steps inline: a fifth of their time. */
#define FLATTEN __attribute__((flatten))

struct node {
    uint64_t offset;
    uint64_t size;
    uint32_t prev; /* neighbours in address order */
    uint32_t next;
    uint32_t bin_prev; /* neighbours in the class of a free node */
    uint32_t bin_next; /* also the chain of unused nodes */
};
_Static_assert(sizeof(struct node) == 32, "two nodes to a cache line");

struct mc_allocator {
    struct mc_lock lock;
    uint32_t next_fresh;     /* nodes from here on were never used */
    struct mc_extent parked; /* the extent freed last, not merged yet; handle 0 = none */
    uint64_t parked_size;
    uint64_t *live; /* a bit for each node of the slab */
    uint64_t capacity;
    _Atomic uint64_t used;
    _Atomic uint64_t count;
    /* So far, what one out and one in touches: a cache line. */
    struct node *nodes;
    uint32_t unused; /* chain of nodes given back */
    uint32_t slab_nodes;
    uint32_t max_nodes;
    uint64_t ceiling;       /* above the size of every extent in a bin */
    uint64_t levels;        /* bit l: some class of level l has nodes */
    uint32_t steps[LEVELS]; /* bit s: class (l, s) has nodes */
    uint32_t heads[LEVELS][STEPS];
};

static inline bool is_live(const struct mc_allocator *a, uint32_t index) {
    return a->live[index / 64] >> index % 64 & 1;
}
static inline void flip_live(struct mc_allocator *a, uint32_t index) {
    a->live[index / 64] ^= 1ull << index % 64;
}

struct bin {
    uint32_t level;
    uint32_t step;
};

/* Level 0 holds the sizes below STEPS one by one; level l > 0 holds [2^(l+4), 2^(l+5)). */
static struct bin bin_of(uint64_t size) {
    if (size < STEPS) {
        return (struct bin){0, (uint32_t)size};
    }
    uint32_t msb = 63u - (uint32_t)__builtin_clzll(size);
    return (struct bin){msb - STEP_BITS + 1, (uint32_t)(size >> (msb - STEP_BITS)) & (STEPS - 1)};
}

static void bin_insert(struct mc_allocator *a, uint32_t index) {
    struct node *n = &a->nodes[index];
    struct bin b = bin_of(n->size);
    uint32_t head = a->heads[b.level][b.step];
    a->ceiling = mc_max_u64(a->ceiling, n->size + 1);
    n->bin_prev = 0;
    n->bin_next = head;
    a->nodes[head].bin_prev = index; /* the sentinel's when there is none: no branch to guess */
    a->heads[b.level][b.step] = index;
    a->steps[b.level] |= 1u << b.step;
    a->levels |= 1ull << b.level;
}

/* Without a branch: whether it was the first or the last of its class is a coin's toss. */
static void bin_remove(struct mc_allocator *a, uint32_t index) {
    const struct node *n = &a->nodes[index];
    struct bin b = bin_of(n->size);
    uint32_t prev = n->bin_prev, next = n->bin_next;
    a->nodes[next].bin_prev = prev;
    a->nodes[prev].bin_next = next;
    uint32_t head = prev ? a->heads[b.level][b.step] : next;
    uint32_t steps = a->steps[b.level] & ~((uint32_t)!head << b.step);
    a->heads[b.level][b.step] = head;
    a->steps[b.level] = steps;
    a->levels &= ~((uint64_t)!steps << b.level);
}

/* The best of the first `max_tries` nodes of a class that hold `size`; 0 when none does. *rest =
 * the first one that was not looked at, 0 = none. */
static uint32_t class_search(const struct mc_allocator *a, uint32_t head, uint64_t size,
                             unsigned max_tries, uint32_t *rest) {
    uint32_t best = 0;
    uint64_t best_size = UINT64_MAX;
    uint32_t index = head;
    for (unsigned tries = 0; index && tries < max_tries; tries++) {
        const struct node *n = &a->nodes[index];
        uint64_t have = n->size;
        if (have == size) {
            return index;
        }
        if (have > size && have < best_size) {
            best = index;
            best_size = have;
        }
        index = n->bin_next;
    }
    *rest = index;
    return best;
}

static uint32_t find_fit(struct mc_allocator *a, uint64_t size) {
    if (size >= a->ceiling) {
        return 0;
    }
    struct bin b = bin_of(size);
    /* two shifts: a shift by 32 would be undefined */
    uint32_t steps = a->steps[b.level] & (UINT32_MAX << b.step << 1);
    uint64_t levels = a->levels & (UINT64_MAX << b.level << 1);
    bool above = steps || levels;
    uint32_t rest = 0;
    uint32_t found = class_search(a, a->heads[b.level][b.step], size,
                                  above ? TRIES_IN_CLASS : TRIES_IN_LAST_CLASS, &rest);
    if (!found && above) {
        uint32_t level = steps ? b.level : (uint32_t)__builtin_ctzll(levels);
        steps = steps ? steps : a->steps[level];
        return a->heads[level][__builtin_ctz(steps)];
    }
    if (!found && !rest) {
        a->ceiling = size;
    }
    return found;
}

/* Twice the slab. A slab of huge pages is aligned to them and moves by its page table entries, so
 * that growing a slab of a gigabyte takes microseconds; a small one is copied. */
static bool slab_grow(struct mc_allocator *a) {
    if (a->slab_nodes >= a->max_nodes) {
        return false;
    }
    size_t old_bytes = (size_t)a->slab_nodes * sizeof(struct node);
    size_t new_bytes = old_bytes * 2;
    bool huge = new_bytes >= 2 * HUGE_PAGE_BYTES;
    size_t reserve = new_bytes + (huge ? HUGE_PAGE_BYTES : 0);
    char *area = mmap(NULL, reserve, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED) {
        mc_warn("allocator metadata cannot grow bytes=%zu", new_bytes);
        return false;
    }
    char *slab = area;
    if (huge) {
        slab =
            (char *)(((uintptr_t)area + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1));
        if (slab > area) {
            munmap(area, (size_t)(slab - area));
        }
        if (area + reserve > slab + new_bytes) {
            munmap(slab + new_bytes, (size_t)(area + reserve - (slab + new_bytes)));
        }
        (void)madvise(slab, new_bytes, MADV_HUGEPAGE); /* only a hint */
    }
    if (old_bytes < 2 * HUGE_PAGE_BYTES) {
        memcpy(slab, a->nodes, old_bytes);
        munmap(a->nodes, old_bytes);
    } else if (mremap(a->nodes, old_bytes, old_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, slab) !=
               slab) {
        munmap(slab, new_bytes);
        return false;
    }
    a->nodes = (struct node *)slab;
    size_t words = a->slab_nodes / 64;
    a->live = mc_realloc(a->live, 2 * words * sizeof(*a->live));
    memset(a->live + words, 0, words * sizeof(*a->live));
    a->slab_nodes *= 2;
    return true;
}

/* A node for an extent; 0 at the limit. May move a->nodes. */
static uint32_t node_take(struct mc_allocator *a) {
    uint32_t index = a->unused;
    if (index) {
        a->unused = a->nodes[index].bin_next;
        return index;
    }
    if (a->next_fresh > a->max_nodes || (a->next_fresh == a->slab_nodes && !slab_grow(a))) {
        return 0;
    }
    return a->next_fresh++;
}

static void node_give(struct mc_allocator *a, uint32_t index) {
    a->nodes[index].bin_next = a->unused;
    a->unused = index;
}

struct mc_allocator *mc_allocator_create(uint64_t capacity, uint32_t max_nodes) {
    if (capacity == 0 || capacity > MC_ALLOCATOR_MAX_CAPACITY) {
        return NULL;
    }
    struct mc_allocator *a = mc_zalloc(sizeof(*a));
    a->nodes =
        mmap(NULL, SLAB_FIRST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->nodes == MAP_FAILED) {
        free(a);
        return NULL;
    }
    a->slab_nodes = SLAB_FIRST_BYTES / sizeof(struct node);
    a->live = mc_zalloc(a->slab_nodes / 64 * sizeof(*a->live));
    a->max_nodes =
        max_nodes && max_nodes < MC_ALLOCATOR_MAX_NODES ? max_nodes : MC_ALLOCATOR_MAX_NODES;
    a->next_fresh = 1;
    a->capacity = capacity;
    uint32_t all = node_take(a);
    a->nodes[all] = (struct node){.size = capacity};
    flip_live(a, 0);
    bin_insert(a, all);
    return a;
}

void mc_allocator_destroy(struct mc_allocator *a) {
    if (a) {
        munmap(a->nodes, (size_t)a->slab_nodes * sizeof(struct node));
        free(a->live);
        free(a);
    }
}

/* Cuts the tail off a free node that is in no bin; the tail goes to its bin. False when there is no
 * node for it. */
static bool split_locked(struct mc_allocator *a, uint32_t index, uint64_t size) {
    uint32_t rest = node_take(a);
    if (!rest) {
        return false;
    }
    struct node *n = &a->nodes[index];
    a->nodes[rest] = (struct node){
        .offset = n->offset + size, .size = n->size - size, .prev = index, .next = n->next};
    a->nodes[n->next].prev = rest;
    n->next = rest;
    n->size = size;
    bin_insert(a, rest);
    return true;
}

/* Merges `index`, in no bin, with its free neighbours; returns the node that holds the whole, in no
 * bin. */
static uint32_t merge_locked(struct mc_allocator *a, uint32_t index) {
    struct node *n = &a->nodes[index];
    uint32_t next = n->next;
    __builtin_prefetch(&a->nodes[n->prev], 1);
    __builtin_prefetch(&a->nodes[next], 1);
    if (!is_live(a, next)) {
        bin_remove(a, next);
        n->size += a->nodes[next].size;
        n->next = a->nodes[next].next;
        a->nodes[n->next].prev = index;
        node_give(a, next);
    }
    uint32_t prev = n->prev;
    if (!is_live(a, prev)) {
        struct node *p = &a->nodes[prev];
        bin_remove(a, prev);
        p->size += n->size;
        p->next = n->next;
        a->nodes[p->next].prev = prev;
        node_give(a, index);
        return prev;
    }
    return index;
}

/* The parked extent, merged and in no bin; 0 = none is parked. */
static uint32_t unpark_locked(struct mc_allocator *a) {
    uint32_t index = a->parked.handle;
    if (!index) {
        return 0;
    }
    MC_ASSERT(a->nodes[index].offset == a->parked.offset && a->nodes[index].size == a->parked_size);
    a->parked.handle = 0;
    flip_live(a, index);
    return merge_locked(a, index);
}

static void settle_locked(struct mc_allocator *a) {
    uint32_t whole = unpark_locked(a);
    if (whole) {
        bin_insert(a, whole);
    }
}

/* A free extent that holds `size`, in no bin; 0 = none. What was freed last mostly is the one,
 * since it was freed for this: it does not pass through a bin then. */
static uint32_t take_fit_locked(struct mc_allocator *a, uint64_t size) {
    uint32_t whole = unpark_locked(a);
    uint32_t found = find_fit(a, size);
    if (whole) {
        uint64_t have = a->nodes[whole].size;
        if (have >= size && (!found || have <= a->nodes[found].size)) {
            return whole;
        }
        bin_insert(a, whole);
    }
    if (found) {
        bin_remove(a, found);
    }
    return found;
}

static bool alloc_locked(struct mc_allocator *a, uint64_t size, struct mc_extent *out) {
    if (a->parked.handle && a->parked_size == size) {
        *out = a->parked;
        a->parked.handle = 0;
        return true;
    }
    uint32_t index = take_fit_locked(a, size);
    if (!index) {
        return false;
    }
    if (a->nodes[index].size > size && !split_locked(a, index, size)) {
        bin_insert(a, index);
        return false;
    }
    flip_live(a, index);
    *out = (struct mc_extent){a->nodes[index].offset, index};
    return true;
}

/* Only the lock's holder writes: plain arithmetic is enough, the stores are atomic for the readers
 * outside. */
static void account_locked(struct mc_allocator *a, uint64_t bytes, uint64_t extents) {
    atomic_store_explicit(&a->used, atomic_load_explicit(&a->used, memory_order_relaxed) + bytes,
                          memory_order_relaxed);
    atomic_store_explicit(&a->count,
                          atomic_load_explicit(&a->count, memory_order_relaxed) + extents,
                          memory_order_relaxed);
}

FLATTEN enum mc_status mc_allocator_alloc(struct mc_allocator *a, uint64_t size,
                                          struct mc_extent *out) {
    if (size == 0) {
        return MC_INVALID_PARAMS;
    }
    /* Hopeless without the lock: full or oversize. relaxed: a stale value only costs or saves a
     * try. */
    if (size > a->capacity - atomic_load_explicit(&a->used, memory_order_relaxed)) {
        return MC_NO_AVAILABLE_HANDLE;
    }
    mc_lock_acquire(&a->lock);
    bool done = alloc_locked(a, size, out);
    if (done) {
        account_locked(a, size, 1);
    }
    mc_lock_release(&a->lock);
    return done ? MC_OK : MC_NO_AVAILABLE_HANDLE;
}

static bool live_locked(const struct mc_allocator *a, uint32_t handle) {
    return handle != 0 && handle < a->next_fresh && handle != a->parked.handle &&
           is_live(a, handle);
}

FLATTEN void mc_allocator_free(struct mc_allocator *a, struct mc_extent extent, uint64_t size) {
    mc_lock_acquire(&a->lock);
    MC_ASSERT(live_locked(a, extent.handle));
    account_locked(a, -size, -1ull);
    settle_locked(a);
    a->parked = extent;
    a->parked_size = size;
    __builtin_prefetch(&a->nodes[extent.handle], 1); /* for the next call, which mostly merges it */
    mc_lock_release(&a->lock);
}

uint64_t mc_allocator_used(const struct mc_allocator *a) {
    return atomic_load_explicit(&a->used, memory_order_relaxed);
}

uint64_t mc_allocator_capacity(const struct mc_allocator *a) {
    return a->capacity;
}

uint64_t mc_allocator_count(const struct mc_allocator *a) {
    return atomic_load_explicit(&a->count, memory_order_relaxed);
}

uint64_t mc_allocator_largest_free(struct mc_allocator *a) {
    uint64_t largest = 0;
    mc_lock_acquire(&a->lock);
    settle_locked(a);
    if (a->levels) {
        uint32_t level = 63u - (uint32_t)__builtin_clzll(a->levels);
        uint32_t step = 31u - (uint32_t)__builtin_clz(a->steps[level]);
        for (uint32_t i = a->heads[level][step]; i; i = a->nodes[i].bin_next) {
            largest = mc_max_u64(largest, a->nodes[i].size);
        }
    }
    mc_lock_release(&a->lock);
    return largest;
}

uint64_t mc_allocator_metadata_bytes(struct mc_allocator *a) {
    mc_lock_acquire(&a->lock);
    uint64_t bytes = sizeof(*a) + (uint64_t)a->slab_nodes * sizeof(struct node) + a->slab_nodes / 8;
    mc_lock_release(&a->lock);
    return bytes;
}

bool mc_allocator_lookup(struct mc_allocator *a, uint32_t handle, uint64_t *offset,
                         uint64_t *size) {
    mc_lock_acquire(&a->lock);
    bool live = live_locked(a, handle);
    if (live) {
        *offset = a->nodes[handle].offset;
        *size = a->nodes[handle].size;
    }
    mc_lock_release(&a->lock);
    return live;
}

/* What a walk over the nodes in address order found. */
struct census {
    uint64_t end, used, count, free_nodes;
};

static void check_extents_locked(struct mc_allocator *a, struct census *c, struct mc_buf *report) {
    /* Node 1 was made first and always keeps offset 0: merging keeps the lower node. */
    uint32_t first = 1;
    bool before_free = false;
    for (uint32_t i = first, prev = 0; i; prev = i, i = a->nodes[i].next) {
        const struct node *n = &a->nodes[i];
        if (n->offset != c->end || n->prev != prev || n->size == 0) {
            mc_buf_printf(report,
                          "allocator: node %u at %llu does not follow %u which ends at %llu\n", i,
                          (unsigned long long)n->offset, prev, (unsigned long long)c->end);
            return;
        }
        if (!is_live(a, i) && before_free) {
            mc_buf_printf(report, "allocator: free neighbours %u and %u are not merged\n", prev, i);
        }
        before_free = !is_live(a, i);
        c->end += n->size;
        c->used += is_live(a, i) ? n->size : 0;
        c->count += is_live(a, i);
        c->free_nodes += !is_live(a, i);
    }
}

static uint64_t check_bins_locked(const struct mc_allocator *a, struct mc_buf *report) {
    uint64_t nodes = 0;
    static const uint32_t NONE[STEPS];
    for (uint32_t level = 0; level < LEVELS; level++) {
        bool empty = !a->steps[level] && memcmp(a->heads[level], NONE, sizeof(NONE)) == 0;
        for (uint32_t step = 0; step < STEPS && !empty; step++) {
            uint32_t head = a->heads[level][step];
            if (!head != !(a->steps[level] >> step & 1)) {
                mc_buf_printf(report, "allocator: bin %u/%u and its bit disagree\n", level, step);
            }
            for (uint32_t i = head; i; i = a->nodes[i].bin_next, nodes++) {
                struct bin b = bin_of(a->nodes[i].size);
                if (is_live(a, i) || b.level != level || b.step != step ||
                    a->nodes[i].size >= a->ceiling) {
                    mc_buf_printf(report, "allocator: node %u is wrong in bin %u/%u\n", i, level,
                                  step);
                    return nodes;
                }
            }
        }
        if (!a->steps[level] != !(a->levels >> level & 1)) {
            mc_buf_printf(report, "allocator: level %u and its bit disagree\n", level);
        }
    }
    return nodes;
}

enum mc_status mc_allocator_check(struct mc_allocator *a, struct mc_buf *report) {
    size_t before = report->len;
    struct census c = {0};
    mc_lock_acquire(&a->lock);
    settle_locked(a);
    check_extents_locked(a, &c, report);
    uint64_t in_bins = check_bins_locked(a, report);
    if (c.end != a->capacity || c.used != mc_allocator_used(a) ||
        c.count != mc_allocator_count(a) || c.free_nodes != in_bins) {
        mc_buf_printf(report,
                      "allocator: walk saw end=%llu used=%llu live=%llu free=%llu, counters say "
                      "capacity=%llu "
                      "used=%llu live=%llu free=%llu\n",
                      (unsigned long long)c.end, (unsigned long long)c.used,
                      (unsigned long long)c.count, (unsigned long long)c.free_nodes,
                      (unsigned long long)a->capacity, (unsigned long long)mc_allocator_used(a),
                      (unsigned long long)mc_allocator_count(a), (unsigned long long)in_bins);
    }
    mc_lock_release(&a->lock);
    return report->len == before ? MC_OK : MC_INTERNAL_ERROR;
}
