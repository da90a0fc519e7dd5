/* See io/key_path.h. */
#include "io/key_path.h"

#define HASH_SEED     0xc70f6907u
#define HASH_MULTIPLY 0xc6a4a7935bd1e995ull

static uint64_t load_le(const char *at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t)(uint8_t)at[i] << 8 * i;
    }
    return value;
}

static uint64_t mix(uint64_t value) {
    return value ^ value >> 47;
}

/* MurmurHash64A as libstdc++ seeds it. */
static uint64_t std_hash(struct mc_str key) {
    uint64_t hash = HASH_SEED ^ key.len * HASH_MULTIPLY;
    size_t whole = key.len / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        hash ^= mix(load_le(key.ptr + i, 8) * HASH_MULTIPLY) * HASH_MULTIPLY;
        hash *= HASH_MULTIPLY;
    }
    if (whole < key.len) {
        hash ^= load_le(key.ptr + whole, key.len - whole);
        hash *= HASH_MULTIPLY;
    }
    return mix(mix(hash) * HASH_MULTIPLY);
}

void mc_path_name(struct mc_str text, size_t most, struct mc_buf *out) {
    static const char odd[] = "/\\:*?\"<>|"; /* and NUL, which ends the literal */
    for (size_t i = 0; i < text.len && i < most; i++) {
        mc_buf_putc(out, memchr(odd, text.ptr[i], sizeof(odd)) != NULL ? '_' : text.ptr[i]);
    }
    (void)mc_buf_cstr(out); /* callers use out->data */
}

void mc_key_directory(struct mc_str key, struct mc_buf *out) {
    uint64_t hash = std_hash(key);
    mc_buf_printf(out, "/%c/%c/", (char)('a' + (hash & 15)), (char)('a' + (hash >> 4 & 15)));
}

void mc_key_path(struct mc_str directory, struct mc_str key, struct mc_buf *out) {
    mc_buf_append(out, directory.ptr, directory.len);
    mc_key_directory(key, out);
    mc_path_name(key, SIZE_MAX, out);
}
