/* Pieces of shared memory that are in use. See client/blocks.h. */
#include "client/blocks.h"

#define ALIGN          64
#define FIRST_CAPACITY 64

/* Where the gap is, and behind how many blocks. */
static bool find_gap(const struct mc_blocks *b, uint64_t total, uint64_t size, uint64_t *offset,
                     size_t *index) {
    *offset = 0;
    for (*index = 0; *index < b->count; (*index)++) {
        const struct mc_block *block = &b->taken[*index];
        if (block->offset - *offset >= size) {
            return true;
        }
        *offset = block->offset + block->size;
    }
    return *offset <= total && total - *offset >= size;
}

bool mc_blocks_take(struct mc_blocks *b, uint64_t total, uint64_t size, uint64_t *offset) {
    uint64_t at;
    size_t index;
    MC_ASSERT(size > 0);
    if (size > total || b->count == MC_BLOCKS_MAX || !find_gap(b, total, size, &at, &index)) {
        return false;
    }
    if (b->count == b->capacity) {
        b->capacity = b->capacity > 0 ? 2 * b->capacity : FIRST_CAPACITY;
        b->taken = mc_realloc(b->taken, b->capacity * sizeof(*b->taken));
    }
    memmove(&b->taken[index + 1], &b->taken[index], (b->count - index) * sizeof(*b->taken));
    uint64_t rounded = (size + ALIGN - 1) / ALIGN * ALIGN; /* the last one may end behind `total` */
    if (index < b->count) {
        rounded = mc_min_u64(rounded, b->taken[index + 1].offset - at);
    }
    b->taken[index] = (struct mc_block){at, rounded};
    b->count++;
    *offset = at;
    return true;
}

bool mc_blocks_give(struct mc_blocks *b, uint64_t offset) {
    size_t low = 0, high = b->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (b->taken[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == b->count || b->taken[low].offset != offset) {
        return false;
    }
    b->count--;
    memmove(&b->taken[low], &b->taken[low + 1], (b->count - low) * sizeof(*b->taken));
    return true;
}

void mc_blocks_free(struct mc_blocks *b) {
    free(b->taken);
    *b = (struct mc_blocks){0};
}
