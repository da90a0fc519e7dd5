/* Names and heads of files that hold one object. See tier/keyfile.h. */
#include "tier/keyfile.h"

#include "tier/tier.h"

#define TAG_KEY   0x0a /* field 1, bytes */
#define TAG_VALUE 0x12 /* field 2, bytes */

/* ---- the name ---- */

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

void mc_keyfile_path(const char *directory, struct mc_str key, struct mc_buf *out) {
    static const char odd[] = "/\\:*?\"<>|"; /* and NUL, which ends the literal */
    uint64_t hash = std_hash(key);
    mc_buf_printf(out, "%s/%c/%c/", directory, (char)('a' + (hash & 15)),
                  (char)('a' + (hash >> 4 & 15)));
    for (size_t i = 0; i < key.len; i++) {
        mc_buf_putc(out, memchr(odd, key.ptr[i], sizeof(odd)) != NULL ? '_' : key.ptr[i]);
    }
    (void)mc_buf_cstr(out); /* callers use out->data */
}

/* ---- the content ---- */

static void put_varint(struct mc_buf *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
        mc_buf_putc(out, (char)(value | 0x80));
    }
    mc_buf_putc(out, (char)value);
}

static bool get_varint(struct mc_str *in, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 63 && in->len > 0; shift += 7) {
        uint8_t byte = (uint8_t)*in->ptr++;
        in->len--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

static bool get_tag(struct mc_str *in, char tag) {
    if (in->len == 0 || *in->ptr != tag) {
        return false;
    }
    in->ptr++;
    in->len--;
    return true;
}

void mc_keyfile_head(struct mc_str key, uint64_t value_size, struct mc_buf *out) {
    mc_buf_putc(out, TAG_KEY);
    put_varint(out, key.len);
    mc_buf_append(out, key.ptr, key.len);
    mc_buf_putc(out, TAG_VALUE);
    put_varint(out, value_size);
}

enum mc_status mc_keyfile_decode(struct mc_str text, uint64_t file_bytes, struct mc_str *key_out,
                                 uint64_t *value_size) {
    struct mc_str in = text, key;
    uint64_t key_len, size;
    if (!get_tag(&in, TAG_KEY) || !get_varint(&in, &key_len) || key_len == 0 || key_len > in.len) {
        return MC_DESERIALIZE_FAIL;
    }
    key = (struct mc_str){in.ptr, (size_t)key_len};
    in.ptr += key_len;
    in.len -= (size_t)key_len;
    if (!get_tag(&in, TAG_VALUE) || !get_varint(&in, &size) || size == 0) {
        return MC_DESERIALIZE_FAIL;
    }
    uint64_t head = text.len - in.len;
    if (file_bytes < head || file_bytes - head != size) {
        return MC_DESERIALIZE_FAIL;
    }
    *key_out = key;
    *value_size = size;
    return MC_OK;
}
