/*
 * Contents derived from a key. See cmd/content.h.
 *
 * The state is four 16-byte vectors, the width that every x86-64 and arm64 has, written out one by
 * one so that they stay in registers. Verifying folds the difference of every word into an
 * accumulator and looks at it once at the end: no branch in the loop. Only a block that failed is
 * walked again to find the place.
 */
#include "cmd/content.h"

typedef uint64_t pair __attribute__((vector_size(16)));
typedef uint64_t pair_anywhere __attribute__((vector_size(16), aligned(1)));

struct stream {
    pair a, b, c, d;
};
#define STEP sizeof(struct stream)
_Static_assert(STEP == 64, "one cache line a step");

static inline pair next_pair(pair x) { /* xorshift64, two lanes */
    x ^= x << 13;
    x ^= x >> 7;
    return x ^ (x << 17);
}

static inline void next(struct stream *s) {
    s->a = next_pair(s->a);
    s->b = next_pair(s->b);
    s->c = next_pair(s->c);
    s->d = next_pair(s->d);
}

static struct stream start(uint64_t seed) {
    struct mc_rng rng;
    mc_rng_seed(&rng, seed);
    uint64_t words[STEP / sizeof(uint64_t)];
    for (size_t i = 0; i < MC_ARRAY_LEN(words); i++) {
        words[i] = mc_rng_next(&rng) | 1; /* xorshift must not start at zero */
    }
    struct stream s;
    memcpy(&s, words, sizeof(s));
    return s;
}

uint64_t mc_content_seed(const char *key) {
    return mc_hash64(key, strlen(key), 0x6d6f6f6e);
}

void mc_content_fill(void *buffer, size_t length, uint64_t seed) {
    struct stream s = start(seed);
    char *out = buffer;
    size_t at = 0;
    for (; length - at >= STEP; at += STEP) {
        next(&s);
        pair_anywhere *to = (pair_anywhere *)(out + at);
        to[0] = s.a;
        to[1] = s.b;
        to[2] = s.c;
        to[3] = s.d;
    }
    if (at < length) {
        next(&s);
        memcpy(out + at, &s, length - at);
    }
}

static size_t first_difference(const char *bytes, size_t length, uint64_t seed) {
    struct stream s = start(seed);
    for (size_t at = 0; at < length; at += STEP) {
        next(&s);
        const char *want = (const char *)&s;
        for (size_t i = 0; i < STEP && at + i < length; i++) {
            if (bytes[at + i] != want[i]) {
                return at + i;
            }
        }
    }
    return length;
}

bool mc_content_verify(const void *buffer, size_t length, uint64_t seed, size_t *bad_at) {
    struct stream s = start(seed);
    const char *bytes = buffer;
    pair wrong = {0, 0};
    size_t at = 0;
    for (; length - at >= STEP; at += STEP) {
        next(&s);
        const pair_anywhere *got = (const pair_anywhere *)(bytes + at);
        wrong |= (got[0] ^ s.a) | (got[1] ^ s.b) | (got[2] ^ s.c) | (got[3] ^ s.d);
    }
    bool good = (wrong[0] | wrong[1]) == 0;
    if (at < length) {
        next(&s);
        good = good && memcmp(bytes + at, &s, length - at) == 0;
    }
    if (!good) {
        *bad_at = first_difference(bytes, length, seed);
    }
    return good;
}
