/*
 * base: the ground floor. Status idiom, strings, arena, clock, random numbers, lists, ids.
 *
 * Owns nothing that outlives a call except what the caller made with it. May call libc and nothing
 * else of the house. Every other room includes this header; the rarer parts of the room have
 * headers of their own (log.h, env.h, options.h, metrics.h, thread.h).
 */
#ifndef MC_BASE_BASE_H
#define MC_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mooncake/error.h"

/* ---- the error idiom ---- */

/* Returns early when `expr` (an enum mc_status) is not MC_OK. */
#define MC_TRY(expr)                                                                               \
    do {                                                                                           \
        enum mc_status mc_try_status_ = (expr);                                                    \
        if (__builtin_expect(mc_try_status_ != MC_OK, 0)) {                                        \
            return mc_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

/* Must hold in every build, release too: prints the expression and aborts. */
#define MC_ASSERT(cond)                                                                            \
    (__builtin_expect(!!(cond), 1) ? (void)0 : mc_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void mc_assert_failed(const char *expression, const char *file, int line);

#define mc_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define MC_ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))
#define MC_PRINTF(fmt, args)               __attribute__((format(printf, fmt, args)))
#define MC_CACHE_LINE                      64

static inline uint64_t mc_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t mc_max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* True when [offset, offset + length) lies inside [base, base + size); cannot overflow. */
static inline bool mc_range_inside(uint64_t offset, uint64_t length, uint64_t base, uint64_t size) {
    return offset >= base && offset - base <= size && length <= size - (offset - base);
}

/* malloc/calloc/realloc that never return NULL: the process ends with a message when memory is
 * exhausted. Sizes that a peer chose are bounded before they come here. */
void *mc_alloc(size_t size);
void *mc_zalloc(size_t size);
void *mc_realloc(void *ptr, size_t size);
char *mc_strdup(const char *text);

/* ---- byte strings ---- */

/* A view of bytes that somebody else owns; may hold NUL; not terminated. {NULL, 0} is the empty
 * string. */
struct mc_str {
    const char *ptr;
    size_t len;
};

#define MC_STR(literal) ((struct mc_str){(literal), sizeof(literal) - 1})
static inline struct mc_str mc_str_from(const char *c_string) {
    return (struct mc_str){c_string, c_string ? strlen(c_string) : 0};
}
static inline bool mc_str_eq(struct mc_str a, struct mc_str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}
/* A malloc'ed NUL-terminated copy. */
char *mc_str_dup(struct mc_str s);

/* A growable byte buffer; the one string builder of the house. Zero-initialised is empty and valid.
 * Growing past memory ends the process (mc_alloc), so appends return nothing. */
struct mc_buf {
    char *data;
    size_t len;
    size_t cap;
};

void mc_buf_reserve(struct mc_buf *buf, size_t extra);
void mc_buf_append(struct mc_buf *buf, const void *bytes, size_t len);
void mc_buf_printf(struct mc_buf *buf, const char *format, ...) MC_PRINTF(2, 3);
/* Terminates with NUL (not counted in len) and returns data; never NULL. */
const char *mc_buf_cstr(struct mc_buf *buf);
void mc_buf_clear(struct mc_buf *buf); /* keeps the memory */
void mc_buf_free(struct mc_buf *buf);
static inline void mc_buf_putc(struct mc_buf *buf, char c) {
    mc_buf_append(buf, &c, 1);
}
static inline void mc_buf_puts(struct mc_buf *buf, const char *text) {
    mc_buf_append(buf, text, strlen(text));
}

/* ---- arena ---- */

/* Bump allocation for what lives as long as one request. mc_arena_reset() keeps the first block, so
 * a worker that handles request after request does not call malloc. Zero-initialised is empty and
 * valid. Not thread safe. */
struct mc_arena_block;
struct mc_arena {
    struct mc_arena_block *blocks; /* newest first */
    char *next;
    char *end;
};

void *mc_arena_alloc(struct mc_arena *arena, size_t size);  /* 16-byte aligned, not cleared */
void *mc_arena_zalloc(struct mc_arena *arena, size_t size); /* cleared */
struct mc_str mc_arena_str(struct mc_arena *arena, struct mc_str s); /* a copy, NUL behind it */
struct mc_str mc_arena_printf(struct mc_arena *arena, const char *format, ...) MC_PRINTF(2, 3);
void mc_arena_reset(struct mc_arena *arena);
void mc_arena_free(struct mc_arena *arena);

/* ---- time ---- */

/* The one door to time. Real programs pass mc_clock_system(); the simulator passes its own.
 * Monotonic; the wall clock is only for what people read. */
struct mc_clock {
    uint64_t (*now_ns)(const struct mc_clock *clock);  /* monotonic */
    uint64_t (*wall_ms)(const struct mc_clock *clock); /* Unix time */
};
const struct mc_clock *mc_clock_system(void);
static inline uint64_t mc_now_ns(const struct mc_clock *c) {
    return c->now_ns(c);
}
static inline uint64_t mc_now_ms(const struct mc_clock *c) {
    return c->now_ns(c) / 1000000u;
}

#define MC_MS          1000000ull
#define MC_SEC         1000000000ull
#define MC_NO_DEADLINE UINT64_MAX

/* ---- randomness ---- */

/* xoshiro256**, seeded by splitmix64. One per thread or under the owner's lock. */
struct mc_rng {
    uint64_t s[4];
};
void mc_rng_seed(struct mc_rng *rng, uint64_t seed);
void mc_rng_seed_system(struct mc_rng *rng); /* from getrandom(2) */
uint64_t mc_rng_next(struct mc_rng *rng);
uint64_t mc_rng_below(struct mc_rng *rng, uint64_t bound); /* [0, bound); bound > 0 */

/* ---- identity ---- */

/* Upstream's UUID = pair<u64, u64>; text form "<first>-<second>" in decimal. {0,0} means none. */
struct mc_uuid {
    uint64_t hi;
    uint64_t lo;
};
static inline bool mc_uuid_eq(struct mc_uuid a, struct mc_uuid b) {
    return a.hi == b.hi && a.lo == b.lo;
}
struct mc_uuid mc_uuid_make(struct mc_rng *rng);

/* ---- intrusive doubly linked list ---- */

struct mc_list {
    struct mc_list *next;
    struct mc_list *prev;
};
static inline void mc_list_init(struct mc_list *l) {
    l->next = l->prev = l;
}
static inline bool mc_list_empty(const struct mc_list *l) {
    return l->next == l;
}
static inline void mc_list_push_back(struct mc_list *head, struct mc_list *node) {
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}
static inline void mc_list_push_front(struct mc_list *head, struct mc_list *node) {
    mc_list_push_back(head->next, node);
}
static inline void mc_list_del(struct mc_list *node) {
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->next = node->prev = node;
}

/* ---- hashing ---- */

uint64_t mc_hash64(const void *bytes, size_t len, uint64_t seed); /* XXH3-64 */
/* RFC 1321; the type hash and function ids of the wire are made of it. */
void mc_md5(const void *bytes, size_t len, uint8_t digest[16]);

/* ---- parsing of what people write ---- */

/* "4 GB", "1.5g", "4096", "infinite" (UINT64_MAX): 1024-based, case-insensitive; units B K KB M MB
 * G GB T TB. */
MC_MUST_USE enum mc_status mc_parse_size(const char *text, uint64_t *bytes);
/* "250", "250ms", "30s", "5m", "1h": milliseconds. */
MC_MUST_USE enum mc_status mc_parse_duration_ms(const char *text, uint64_t *ms);
/* 1/0/true/false/yes/no/on/off, case-insensitive, trimmed. */
MC_MUST_USE enum mc_status mc_parse_bool(const char *text, bool *value);
/* A whole decimal number (or 0x…) without anything behind it, in [min, max]. */
MC_MUST_USE enum mc_status mc_parse_u64(const char *text, uint64_t min, uint64_t max,
                                        uint64_t *value);
/* "1.5 GiB" for people. */
void mc_format_size(struct mc_buf *buf, uint64_t bytes);
/* A file that people write, whole: MC_FILE_NOT_FOUND, MC_FILE_OPEN_FAIL, MC_FILE_READ_FAIL or
 * MC_ERR_LIMIT with `why` ("is larger than 1 MiB"), a text to put behind the name. A pipe that is
 * empty, or silent for 5 s, is an error. Both buffers are cleared first. */
MC_MUST_USE enum mc_status mc_text_file_read(const char *path, size_t max_bytes, struct mc_buf *out,
                                             struct mc_buf *why);

#endif
