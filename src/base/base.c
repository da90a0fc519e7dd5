/*
 * Memory, strings, arena, clock, random numbers: the small things that every room uses. See
 * base/base.h.
 *
 * Running out of memory ends the process with a message: an engine that cannot allocate a few bytes
 * cannot keep its promises either, and checking each small allocation hides the checks that matter.
 * Large amounts (segments, message bodies) are bounded by limits before they come here.
 */
#include "base/base.h"
#include "base/export.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

/* ---- status ---- */

MC_PUBLIC const char *mc_status_name(int status) {
    switch (status) {
#define X(name, number, text)                                                                      \
    case number:                                                                                   \
        return #name;
        MC_STATUS_TABLE(X)
#undef X
    default:
        return "UNKNOWN_ERROR";
    }
}

MC_PUBLIC const char *mc_status_text(int status) {
    switch (status) {
#define X(name, number, text)                                                                      \
    case number:                                                                                   \
        return text;
        MC_STATUS_TABLE(X)
#undef X
    default:
        return "an error number that this version does not know";
    }
}

MC_PUBLIC int32_t mc_status_to_wire(enum mc_status status) {
    if (status > -3000) {
        return status;
    }
    switch (status) {
    case MC_ERR_TIMEOUT:
        return MC_RPC_TIMEOUT;
    case MC_ERR_CLOSED:
    case MC_ERR_UNREACHABLE:
    case MC_ERR_PROTOCOL:
        return MC_RPC_FAIL;
    case MC_ERR_NOT_REGISTERED:
    case MC_ERR_OVERLAP:
    case MC_ERR_BAD_ADDRESS:
    case MC_ERR_USAGE:
        return MC_INVALID_PARAMS;
    case MC_ERR_IO:
    case MC_ERR_REJECTED:
    case MC_ERR_NO_TRANSPORT:
        return MC_TRANSFER_FAIL;
    default:
        return MC_INTERNAL_ERROR;
    }
}

_Noreturn void mc_assert_failed(const char *expression, const char *file, int line) {
    fprintf(stderr, "FATAL %s:%d does not hold: %s\n", file, line, expression);
    abort();
}

/* ---- memory ---- */

static void *must(void *ptr, size_t size) {
    if (ptr == NULL && size != 0) {
        fprintf(stderr, "FATAL out of memory: %zu bytes\n", size);
        abort();
    }
    return ptr;
}

void *mc_alloc(size_t size) {
    return must(malloc(size), size);
}
void *mc_zalloc(size_t size) {
    return must(calloc(1, size), size);
}
void *mc_realloc(void *ptr, size_t size) {
    return must(realloc(ptr, size), size);
}

char *mc_strdup(const char *text) {
    return mc_str_dup(mc_str_from(text));
}

char *mc_str_dup(struct mc_str s) {
    char *copy = mc_alloc(s.len + 1);
    if (s.len > 0) {
        memcpy(copy, s.ptr, s.len);
    }
    copy[s.len] = '\0';
    return copy;
}

/* ---- the string builder ---- */

void mc_buf_reserve(struct mc_buf *buf, size_t extra) {
    size_t need = buf->len + extra;
    MC_ASSERT(need >= extra);
    if (need <= buf->cap) {
        return;
    }
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need) {
        cap += cap / 2 + 64;
    }
    buf->data = mc_realloc(buf->data, cap);
    buf->cap = cap;
}

void mc_buf_append(struct mc_buf *buf, const void *bytes, size_t len) {
    if (len == 0) {
        return;
    }
    mc_buf_reserve(buf, len);
    memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
}

void mc_buf_printf(struct mc_buf *buf, const char *format, ...) {
    mc_buf_reserve(buf, 128);
    for (;;) {
        size_t room = buf->cap - buf->len;
        va_list args;
        va_start(args, format);
        int written = vsnprintf(buf->data + buf->len, room, format, args);
        va_end(args);
        MC_ASSERT(written >= 0);
        if ((size_t)written < room) {
            buf->len += (size_t)written;
            return;
        }
        mc_buf_reserve(buf, (size_t)written + 1);
    }
}

const char *mc_buf_cstr(struct mc_buf *buf) {
    mc_buf_reserve(buf, 1);
    buf->data[buf->len] = '\0';
    return buf->data;
}

void mc_buf_clear(struct mc_buf *buf) {
    buf->len = 0;
}

void mc_buf_free(struct mc_buf *buf) {
    free(buf->data);
    *buf = (struct mc_buf){0};
}

/* ---- arena ---- */

struct mc_arena_block {
    struct mc_arena_block *older;
    size_t size;
    _Alignas(16) char bytes[];
};

#define ARENA_FIRST_BLOCK  (16u << 10)
#define ARENA_LARGEST_STEP (4u << 20)

static void *arena_grow(struct mc_arena *arena, size_t size) {
    size_t want = arena->blocks ? arena->blocks->size * 2 : ARENA_FIRST_BLOCK;
    if (want > ARENA_LARGEST_STEP) {
        want = ARENA_LARGEST_STEP;
    }
    if (want < size) {
        want = size;
    }
    struct mc_arena_block *block = mc_alloc(sizeof(*block) + want);
    block->older = arena->blocks;
    block->size = want;
    arena->blocks = block;
    arena->next = block->bytes + size;
    arena->end = block->bytes + want;
    return block->bytes;
}

void *mc_arena_alloc(struct mc_arena *arena, size_t size) {
    MC_ASSERT(size <= SIZE_MAX - 32);
    size = (size + 15) & ~(size_t)15;
    if (size <= (size_t)(arena->end - arena->next)) {
        void *ptr = arena->next;
        arena->next += size;
        return ptr;
    }
    return arena_grow(arena, size);
}

void *mc_arena_zalloc(struct mc_arena *arena, size_t size) {
    void *ptr = mc_arena_alloc(arena, size);
    memset(ptr, 0, size);
    return ptr;
}

struct mc_str mc_arena_str(struct mc_arena *arena, struct mc_str s) {
    char *copy = mc_arena_alloc(arena, s.len + 1);
    if (s.len > 0) {
        memcpy(copy, s.ptr, s.len);
    }
    copy[s.len] = '\0';
    return (struct mc_str){copy, s.len};
}

struct mc_str mc_arena_printf(struct mc_arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    MC_ASSERT(len >= 0);
    char *text = mc_arena_alloc(arena, (size_t)len + 1);
    vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    return (struct mc_str){text, (size_t)len};
}

void mc_arena_reset(struct mc_arena *arena) {
    struct mc_arena_block *block = arena->blocks;
    if (block == NULL) {
        return;
    }
    /* The oldest block is the smallest: a burst does not stay in memory. */
    while (block->older != NULL) {
        struct mc_arena_block *older = block->older;
        free(block);
        block = older;
    }
    arena->blocks = block;
    arena->next = block->bytes;
    arena->end = block->bytes + block->size;
}

void mc_arena_free(struct mc_arena *arena) {
    mc_arena_reset(arena);
    free(arena->blocks);
    *arena = (struct mc_arena){0};
}

/* ---- time ---- */

static uint64_t clock_read_ns(clockid_t id) {
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * MC_SEC + (uint64_t)ts.tv_nsec;
}
static uint64_t system_now_ns(const struct mc_clock *clock) {
    return clock_read_ns(CLOCK_MONOTONIC);
}
static uint64_t system_wall_ms(const struct mc_clock *clock) {
    return clock_read_ns(CLOCK_REALTIME) / MC_MS;
}

const struct mc_clock *mc_clock_system(void) {
    static const struct mc_clock clock = {system_now_ns, system_wall_ms};
    return &clock;
}

/* ---- randomness ---- */

void mc_rng_seed(struct mc_rng *rng, uint64_t seed) {
    for (int i = 0; i < 4; i++) { /* splitmix64 */
        uint64_t z = (seed += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        rng->s[i] = z ^ (z >> 31);
    }
}

void mc_rng_seed_system(struct mc_rng *rng) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed)) {
        seed = clock_read_ns(CLOCK_MONOTONIC) ^ clock_read_ns(CLOCK_REALTIME);
    }
    mc_rng_seed(rng, seed);
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

uint64_t mc_rng_next(struct mc_rng *rng) { /* xoshiro256** */
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t mc_rng_below(struct mc_rng *rng, uint64_t bound) {
    MC_ASSERT(bound > 0);
    return (uint64_t)(((unsigned __int128)mc_rng_next(rng) * bound) >> 64);
}

struct mc_uuid mc_uuid_make(struct mc_rng *rng) {
    struct mc_uuid id = {mc_rng_next(rng), mc_rng_next(rng)};
    if (id.hi == 0) { /* {0,0} means none */
        id.hi = 1;
    }
    return id;
}

/* ---- hashing ---- */

uint64_t mc_hash64(const void *bytes, size_t len, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, len, seed);
}
