/* See base/copy.h. The stores are of 16 bytes, which every x86-64 has; four of them fill a line,
 * and a full line leaves the processor in one piece. */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#include "base/base.h"

#define OUT_PAST_CACHE (64u << 10)
#define IN_PAST_CACHE  (4u << 20)

#if defined(__SSE2__)
#include <emmintrin.h>

static void copy_lines(char *to, const char *from, size_t lines) {
    for (size_t i = 0; i < lines; i++, to += MC_CACHE_LINE, from += MC_CACHE_LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
        _mm_prefetch(from + 8 * MC_CACHE_LINE, _MM_HINT_NTA);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)(to + 16), b);
        _mm_stream_si128((__m128i *)(to + 32), c);
        _mm_stream_si128((__m128i *)(to + 48), d);
    }
    /* Such stores are not ordered with later ones: without this somebody could see "done" first. */
    _mm_sfence();
}

static void copy_past_cache(char *to, const char *from, size_t length) {
    size_t head = (size_t)(-(uintptr_t)to % MC_CACHE_LINE);
    size_t lines = (length - head) / MC_CACHE_LINE;
    size_t done = head + lines * MC_CACHE_LINE;
    memcpy(to, from, head);
    copy_lines(to + head, from + head, lines);
    memcpy(to + done, from + done, length - done);
}

#else /* other processors' memcpy sees to it */

#define copy_past_cache memcpy

#endif

void mc_copy_out(void *to, const void *from, size_t length) {
    if (length >= OUT_PAST_CACHE) {
        copy_past_cache(to, from, length);
    } else {
        memcpy(to, from, length);
    }
}

void mc_copy_in(void *to, const void *from, size_t length) {
    if (length >= IN_PAST_CACHE) {
        copy_past_cache(to, from, length);
    } else {
        memcpy(to, from, length);
    }
}
