/*
 * See tier/extents.h. Invariant: the pieces, linked by neighbourhood, cover all units without gap;
 * no two free ones are neighbours; each free one is in the list of the bin below its size, and a
 * bit says which lists are not empty.
 */
#include "tier/extents.h"

#define NONE          MC_EXTENTS_NONE
#define MANTISSA_BITS 3u
#define MANTISSA      8u
#define FIRST_PIECES  1024u

struct piece {
    uint32_t offset, size;
    uint32_t left, right;           /* neighbours; NONE at the edges */
    uint32_t bin_before, bin_after; /* in the list of the bin; bin_after also of unused pieces */
    bool taken;
};

struct mc_extents {
    uint32_t units;
    struct piece *pieces;
    uint32_t capacity, count; /* of pieces: memory for, in use */
    uint32_t unused;          /* first of the list */
    uint32_t first;           /* the piece at offset 0 */
    uint64_t taken_units;
    uint32_t tops; /* which bytes of `bits` are not 0 */
    uint8_t bits[MC_EXTENTS_BINS / 8];
    uint32_t bins[MC_EXTENTS_BINS]; /* first of each list */
};

/* ---- bins: floating point with three bits of mantissa ---- */

static unsigned bin_of(uint32_t units, bool up) {
    if (units < MANTISSA) {
        return units;
    }
    unsigned shift = 31u - (unsigned)__builtin_clz(units) - MANTISSA_BITS;
    unsigned bin = (shift + 1) * MANTISSA + (units >> shift & (MANTISSA - 1));
    bool exact = (units & ((1u << shift) - 1)) == 0;
    return bin + (up && !exact); /* past the last mantissa is the next exponent's first */
}

unsigned mc_extents_bin_below(uint32_t units) {
    return bin_of(units, false);
}

unsigned mc_extents_bin_above(uint32_t units) {
    return bin_of(units, true);
}

uint64_t mc_extents_bin_size(unsigned bin) {
    unsigned exponent = bin / MANTISSA, mantissa = bin % MANTISSA;
    return exponent == 0 ? mantissa : (uint64_t)(mantissa + MANTISSA) << (exponent - 1);
}

/* ---- pieces ---- */

static uint32_t piece_make(struct mc_extents *e, uint32_t offset, uint32_t size) {
    if (e->unused == NONE) {
        uint32_t old = e->capacity;
        e->capacity = old > 0 ? 2 * old : FIRST_PIECES;
        e->pieces = mc_realloc(e->pieces, e->capacity * sizeof(*e->pieces));
        for (uint32_t i = e->capacity; i-- > old;) {
            e->pieces[i].bin_after = e->unused;
            e->unused = i;
        }
    }
    uint32_t name = e->unused;
    e->unused = e->pieces[name].bin_after;
    e->pieces[name] = (struct piece){offset, size, NONE, NONE, NONE, NONE, false};
    e->count++;
    return name;
}

static void piece_drop(struct mc_extents *e, uint32_t name) {
    e->pieces[name].bin_after = e->unused;
    e->unused = name;
    e->count--;
}

static void bin_in(struct mc_extents *e, uint32_t name) {
    struct piece *p = &e->pieces[name];
    unsigned bin = mc_extents_bin_below(p->size);
    p->bin_before = NONE;
    p->bin_after = e->bins[bin];
    if (p->bin_after != NONE) {
        e->pieces[p->bin_after].bin_before = name;
    }
    e->bins[bin] = name;
    e->bits[bin / 8] |= (uint8_t)(1u << bin % 8);
    e->tops |= 1u << bin / 8;
}

static void bin_out(struct mc_extents *e, uint32_t name) {
    const struct piece *p = &e->pieces[name];
    unsigned bin = mc_extents_bin_below(p->size);
    if (p->bin_after != NONE) {
        e->pieces[p->bin_after].bin_before = p->bin_before;
    }
    if (p->bin_before != NONE) {
        e->pieces[p->bin_before].bin_after = p->bin_after;
        return;
    }
    e->bins[bin] = p->bin_after;
    if (p->bin_after == NONE) {
        e->bits[bin / 8] &= (uint8_t) ~(1u << bin % 8);
        e->tops &= ~(e->bits[bin / 8] == 0 ? 1u << bin / 8 : 0);
    }
}

/* The first bin from `bin` on that has a piece; MC_EXTENTS_BINS when none has. */
static unsigned bin_find(const struct mc_extents *e, unsigned bin) {
    if (bin >= MC_EXTENTS_BINS) {
        return MC_EXTENTS_BINS;
    }
    unsigned top = bin / 8;
    unsigned here = e->bits[top] & (0xffu << bin % 8);
    if (here != 0) {
        return top * 8 + (unsigned)__builtin_ctz(here);
    }
    uint32_t above = top == 31 ? 0 : e->tops & ~0u << (top + 1);
    if (above == 0) {
        return MC_EXTENTS_BINS;
    }
    top = (unsigned)__builtin_ctz(above);
    return top * 8 + (unsigned)__builtin_ctz(e->bits[top]);
}

/* Cuts a piece after `size` units; the rest is a new one to its right, in no bin. NONE = no rest.
 */
static uint32_t cut(struct mc_extents *e, uint32_t name, uint32_t size) {
    uint32_t rest = e->pieces[name].size - size;
    if (rest == 0) {
        return NONE;
    }
    uint32_t other = piece_make(e, e->pieces[name].offset + size, rest);
    struct piece *p = &e->pieces[name], *o = &e->pieces[other];
    p->size = size;
    o->left = name;
    o->right = p->right;
    if (o->right != NONE) {
        e->pieces[o->right].left = other;
    }
    p->right = other;
    return other;
}

/* The piece to the right becomes part of this one. */
static void swallow_right(struct mc_extents *e, uint32_t name) {
    struct piece *p = &e->pieces[name];
    uint32_t other = p->right;
    p->size += e->pieces[other].size;
    p->right = e->pieces[other].right;
    if (p->right != NONE) {
        e->pieces[p->right].left = name;
    }
    piece_drop(e, other);
}

/* ---- taking and giving ---- */

bool mc_extents_take(struct mc_extents *e, uint32_t units, uint32_t *name_out) {
    unsigned wanted = mc_extents_bin_above(units);
    unsigned bin = units > 0 && units <= MC_EXTENTS_MAX ? bin_find(e, wanted) : MC_EXTENTS_BINS;
    if (bin == MC_EXTENTS_BINS) {
        return false;
    }
    uint32_t name = e->bins[bin];
    bin_out(e, name);
    uint32_t rest = cut(e, name, (uint32_t)mc_extents_bin_size(wanted));
    if (rest != NONE) {
        bin_in(e, rest);
    }
    e->pieces[name].taken = true;
    e->taken_units += e->pieces[name].size;
    *name_out = name;
    return true;
}

void mc_extents_give(struct mc_extents *e, uint32_t name) {
    MC_ASSERT(name < e->capacity && e->pieces[name].taken);
    e->taken_units -= e->pieces[name].size;
    e->pieces[name].taken = false;
    uint32_t right = e->pieces[name].right, left = e->pieces[name].left;
    if (right != NONE && !e->pieces[right].taken) {
        bin_out(e, right);
        swallow_right(e, name);
    }
    if (left != NONE && !e->pieces[left].taken) {
        bin_out(e, left);
        swallow_right(e, left);
        name = left;
    }
    bin_in(e, name);
}

struct mc_extent mc_extents_at(const struct mc_extents *e, uint32_t name) {
    MC_ASSERT(name < e->capacity && e->pieces[name].taken);
    return (struct mc_extent){e->pieces[name].offset, e->pieces[name].size};
}

void mc_extents_load(struct mc_extents *e, const struct mc_extent *taken, size_t count,
                     uint32_t *names) {
    uint32_t rest = e->first; /* the free piece at the end */
    MC_ASSERT(e->count == 1 && e->taken_units == 0);
    bin_out(e, rest);
    for (size_t i = 0; i < count; i++) {
        MC_ASSERT(rest != NONE && taken[i].size > 0 && taken[i].offset >= e->pieces[rest].offset &&
                  mc_range_inside(taken[i].offset, taken[i].size, 0, e->units));
        uint32_t gap = taken[i].offset - e->pieces[rest].offset;
        uint32_t name = rest;
        if (gap > 0) {
            name = cut(e, rest, gap);
            bin_in(e, rest);
        }
        rest = cut(e, name, taken[i].size);
        e->pieces[name].taken = true;
        e->taken_units += taken[i].size;
        names[i] = name;
    }
    if (rest != NONE) {
        bin_in(e, rest);
    }
}

bool mc_extents_next(const struct mc_extents *e, uint32_t *name, struct mc_extent *at,
                     bool *taken) {
    *name = *name == NONE ? e->first : e->pieces[*name].right;
    if (*name == NONE) {
        return false;
    }
    *at = (struct mc_extent){e->pieces[*name].offset, e->pieces[*name].size};
    *taken = e->pieces[*name].taken;
    return true;
}

size_t mc_extents_count(const struct mc_extents *e) {
    return e->count;
}

uint64_t mc_extents_taken_units(const struct mc_extents *e) {
    return e->taken_units;
}

/* ---- life ---- */

struct mc_extents *mc_extents_create(uint32_t units) {
    MC_ASSERT(units > 0 && units <= MC_EXTENTS_MAX);
    struct mc_extents *e = mc_zalloc(sizeof(*e));
    e->units = units;
    e->unused = NONE;
    memset(e->bins, 0xff, sizeof(e->bins));
    e->first = piece_make(e, 0, units);
    bin_in(e, e->first);
    return e;
}

void mc_extents_destroy(struct mc_extents *e) {
    if (e != NULL) {
        free(e->pieces);
        free(e);
    }
}
