/*
 * The table interpreter: literals, hashes, encoder and decoder of struct_pack messages.
 *
 * A body is a hash, an optional meta byte (and literal), and the value; all container counts of one
 * body have the same width, one byte unless some container has more than 255 elements. The encoder
 * therefore writes with one-byte counts and starts again with wider ones when it meets a container
 * that needs them: most messages need none, and a look over all sizes beforehand would walk every
 * message twice.
 *
 * Invariant of the decoder: `at <= end`, and nothing is read before `end - at` was compared with
 * what is needed. Types do not recurse, so neither does the stack beyond the depth of the deepest
 * table.
 */
#include "wire/schema.h"

#define META_LITERAL     0x04u
#define META_WIDTH_SHIFT 3
/* Literal and width; "compatible" trailing fields are in no type of ours. */
#define META_KNOWN         0x1cu
#define COUNTS_TO_DISTRUST 64 /* below this, an element's smallest size need not be looked up */

const struct mc_type mc_t_i32 = {MC_KIND_I32, 4, NULL, NULL, 0, NULL};
const struct mc_type mc_t_u32 = {MC_KIND_U32, 4, NULL, NULL, 0, NULL};
const struct mc_type mc_t_i64 = {MC_KIND_I64, 8, NULL, NULL, 0, NULL};
const struct mc_type mc_t_u64 = {MC_KIND_U64, 8, NULL, NULL, 0, NULL};
const struct mc_type mc_t_i8 = {MC_KIND_I8, 1, NULL, NULL, 0, NULL};
const struct mc_type mc_t_u8 = {MC_KIND_U8, 1, NULL, NULL, 0, NULL};
const struct mc_type mc_t_i16 = {MC_KIND_I16, 2, NULL, NULL, 0, NULL};
const struct mc_type mc_t_u16 = {MC_KIND_U16, 2, NULL, NULL, 0, NULL};
const struct mc_type mc_t_bool = {MC_KIND_BOOL, 1, NULL, NULL, 0, NULL};
const struct mc_type mc_t_f32 = {MC_KIND_F32, 4, NULL, NULL, 0, NULL};
const struct mc_type mc_t_f64 = {MC_KIND_F64, 8, NULL, NULL, 0, NULL};
const struct mc_type mc_t_str = {MC_KIND_STR, sizeof(struct mc_str), NULL, NULL, 0, NULL};
const struct mc_type mc_t_chars = {MC_KIND_CHARS, sizeof(struct mc_str), NULL, NULL, 0, NULL};
const struct mc_type mc_t_void = {MC_KIND_VOID, 0, NULL, NULL, 0, NULL};
static const struct mc_field uuid_fields[] = {
    {&mc_t_u64, offsetof(struct mc_uuid, hi)},
    {&mc_t_u64, offsetof(struct mc_uuid, lo)},
};
const struct mc_type mc_t_uuid = {MC_KIND_PAIR, sizeof(struct mc_uuid), NULL, uuid_fields, 2, NULL};
_Static_assert(sizeof(struct mc_uuid) == 16, "a UUID is copied as it travels");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers are copied as they travel");

/* ---- literals and hashes ---- */

/* No literal byte is NUL, so that a literal in a body ends at the first one. */
static const uint8_t KIND_LITERAL[] = {
    [MC_KIND_I32] = 0x01,     [MC_KIND_U32] = 0x02,      [MC_KIND_I64] = 0x03,
    [MC_KIND_U64] = 0x04,     [MC_KIND_I8] = 0x05,       [MC_KIND_U8] = 0x06,
    [MC_KIND_I16] = 0x07,     [MC_KIND_U16] = 0x08,      [MC_KIND_BOOL] = 0x0b,
    [MC_KIND_F32] = 0x11,     [MC_KIND_F64] = 0x12,      [MC_KIND_STR] = 0x80,
    [MC_KIND_VEC] = 0x84,     [MC_KIND_MAP] = 0x82,      [MC_KIND_OPT] = 0x85,
    [MC_KIND_VARIANT] = 0x86, [MC_KIND_EXPECTED] = 0x87, [MC_KIND_STRUCT] = 0xfd,
    [MC_KIND_PAIR] = 0xfd,    [MC_KIND_VOID] = 0xfa,     [MC_KIND_CHARS] = 0x84,
};
#define LITERAL_CHAR 0x0c
#define LITERAL_END  0xff

static void literal_of_fields(const struct mc_type *type, size_t first, struct mc_buf *out) {
    for (size_t i = first; i < type->field_count; i++) {
        mc_type_literal(type->fields[i].type, out);
    }
}

void mc_type_literal(const struct mc_type *type, struct mc_buf *out) {
    if (type->kind == MC_KIND_ALIAS) {
        mc_type_literal(type->fields[0].type, out);
        return;
    }
    mc_buf_putc(out, (char)KIND_LITERAL[type->kind]);
    switch (type->kind) {
    case MC_KIND_STR:
    case MC_KIND_CHARS:
        mc_buf_putc(out, LITERAL_CHAR);
        break;
    case MC_KIND_VEC:
        mc_type_literal(type->elem, out);
        break;
    case MC_KIND_MAP:
        literal_of_fields(type->elem, 0, out);
        break;
    case MC_KIND_OPT:
        literal_of_fields(type, 1, out);
        break;
    case MC_KIND_EXPECTED:
        mc_type_literal(type->fields[1].type, out);
        mc_type_literal(type->fields[0].type, out);
        break;
    case MC_KIND_VARIANT:
        literal_of_fields(type, 1, out);
        mc_buf_putc(out, (char)LITERAL_END);
        break;
    case MC_KIND_STRUCT:
        literal_of_fields(type, 0, out);
        mc_buf_putc(out, (char)LITERAL_END);
        break;
    case MC_KIND_PAIR: /* upstream's literal names the alignment twice; the number n < 127 is the
                          byte 129 + n */
        literal_of_fields(type, 0, out);
        mc_buf_putc(out, (char)(129 + 8));
        mc_buf_putc(out, (char)(129 + 8));
        mc_buf_putc(out, (char)LITERAL_END);
        break;
    default:
        break;
    }
}

uint32_t mc_wire_md5_id(const void *bytes, size_t len) {
    uint8_t digest[16];
    mc_md5(bytes, len, digest);
    return (uint32_t)digest[0] << 24 | (uint32_t)digest[1] << 16 | (uint32_t)digest[2] << 8 |
           digest[3];
}

uint32_t mc_type_hash(const struct mc_type *type) {
    if (type == NULL) {
        return 0;
    }
    struct mc_buf literal = {0};
    mc_type_literal(type, &literal);
    uint32_t hash = mc_wire_md5_id(literal.data, literal.len) & ~1u;
    mc_buf_free(&literal);
    return hash;
}

/* ---- encoder ---- */

struct encoder {
    char *at;
    char *end; /* of the reserved room */
    struct mc_buf *out;
    uint64_t largest_count;
    unsigned width; /* bytes of a count */
};

static void encoder_grow(struct encoder *e, size_t need) {
    e->out->len = (size_t)(e->at - e->out->data);
    mc_buf_reserve(e->out, need);
    e->at = e->out->data + e->out->len;
    e->end = e->out->data + e->out->cap;
}

static inline void need_room(struct encoder *e, size_t need) {
    if (__builtin_expect((size_t)(e->end - e->at) < need, 0)) {
        encoder_grow(e, need);
    }
}

static inline void put_bytes(struct encoder *e, const void *bytes, size_t len) {
    need_room(e, len);
    if (len > 0) {
        memcpy(e->at, bytes, len);
        e->at += len;
    }
}

/* When the count does not fit the width, what is written is thrown away later;
 * see mc_wire_encode. */
static inline void put_count(struct encoder *e, uint64_t count) {
    if (count > e->largest_count) {
        e->largest_count = count;
    }
    need_room(e, 8);
    memcpy(e->at, &count, 8);
    e->at += e->width;
}

static inline void put_str(struct encoder *e, const struct mc_str *s) {
    put_count(e, s->len);
    put_bytes(e, s->ptr, s->len);
}

static inline unsigned width_for(uint64_t count) {
    return count <= UINT8_MAX ? 1 : count <= UINT16_MAX ? 2 : count <= UINT32_MAX ? 4 : 8;
}

static void put_value(struct encoder *e, const struct mc_type *type, const char *v);

static void put_vec(struct encoder *e, const struct mc_type *elem, const struct mc_vec *vec) {
    const char *item = vec->items;
    size_t count = vec->count;
    if (elem->knows != NULL) {
        for (size_t i = 0; i < vec->count; i++) {
            count -= elem->knows(item + i * elem->size) ? 0 : 1;
        }
    }
    put_count(e, count);
    if (width_for(e->largest_count) > e->width) {
        return;
    }
    switch (elem->kind) {
    case MC_KIND_STR:
        for (size_t i = 0; i < count; i++) {
            put_str(e, (const struct mc_str *)item + i);
        }
        return;
    case MC_KIND_I32:
    case MC_KIND_U32:
    case MC_KIND_I64:
    case MC_KIND_U64:
    case MC_KIND_PAIR:
        put_bytes(e, item, count * elem->size);
        return;
    default:
        for (size_t i = 0; i < vec->count; i++, item += elem->size) {
            if (elem->knows == NULL || elem->knows(item)) {
                put_value(e, elem, item);
            }
        }
        return;
    }
}

static void put_flagged(struct encoder *e, const struct mc_type *type, const char *v) {
    const struct mc_field *f = type->fields;
    bool has;
    if (type->kind == MC_KIND_OPT) {
        memcpy(&has, v + f[0].offset, sizeof(has));
    } else {
        int32_t error;
        memcpy(&error, v + f[0].offset, sizeof(error));
        has = error == MC_OK;
    }
    need_room(e, 1);
    *e->at++ = has;
    if (has) {
        put_value(e, f[1].type, v + f[1].offset);
    } else if (type->kind == MC_KIND_EXPECTED) {
        put_value(e, f[0].type, v + f[0].offset);
    }
}

static void put_value(struct encoder *e, const struct mc_type *type, const char *v) {
    switch (type->kind) {
    case MC_KIND_I64:
    case MC_KIND_U64:
    case MC_KIND_F64:
        put_bytes(e, v, 8);
        break;
    case MC_KIND_I32:
    case MC_KIND_U32:
    case MC_KIND_F32:
        put_bytes(e, v, 4);
        break;
    case MC_KIND_I16:
    case MC_KIND_U16:
        put_bytes(e, v, 2);
        break;
    case MC_KIND_I8:
    case MC_KIND_U8:
        put_bytes(e, v, 1);
        break;
    case MC_KIND_BOOL:
        need_room(e, 1);
        *e->at++ = *(const uint8_t *)v == 1;
        break;
    case MC_KIND_STR:
    case MC_KIND_CHARS:
        put_str(e, (const struct mc_str *)v);
        break;
    case MC_KIND_VEC:
    case MC_KIND_MAP:
        put_vec(e, type->elem, (const struct mc_vec *)v);
        break;
    case MC_KIND_OPT:
    case MC_KIND_EXPECTED:
        put_flagged(e, type, v);
        break;
    case MC_KIND_VARIANT: {
        uint8_t tag = *(const uint8_t *)(v + type->fields[0].offset);
        MC_ASSERT(tag + 1u < type->field_count);
        need_room(e, 1);
        *e->at++ = (char)tag;
        put_value(e, type->fields[tag + 1].type, v + type->fields[tag + 1].offset);
        break;
    }
    case MC_KIND_PAIR:
        put_bytes(e, v, sizeof(struct mc_uuid));
        break;
    case MC_KIND_STRUCT:
        for (size_t i = 0; i < type->field_count; i++) {
            put_value(e, type->fields[i].type, v + type->fields[i].offset);
        }
        break;
    case MC_KIND_ALIAS:
        put_value(e, type->fields[0].type, v + type->fields[0].offset);
        break;
    case MC_KIND_VOID:
        break;
    }
}

void mc_wire_encode(const struct mc_type *type, uint32_t hash, const void *value,
                    struct mc_buf *out) {
    if (type == NULL) {
        return;
    }
    size_t start = out->len;
    mc_buf_reserve(out, 256);
    struct encoder e = {.out = out, .width = 1};
    for (;;) {
        static const uint8_t META[] = {
            [2] = 1 << META_WIDTH_SHIFT, [4] = 2 << META_WIDTH_SHIFT, [8] = 3 << META_WIDTH_SHIFT};
        e.at = out->data + start;
        e.end = out->data + out->cap;
        uint32_t first = hash | (e.width > 1);
        put_bytes(&e, &first, sizeof(first));
        if (e.width > 1) {
            put_bytes(&e, &META[e.width], 1);
        }
        put_value(&e, type, value);
        unsigned width = width_for(e.largest_count);
        if (width <= e.width) {
            break;
        }
        e.width = width;
    }
    out->len = (size_t)(e.at - out->data);
}

/* ---- decoder ---- */

struct decoder {
    const char *at;
    const char *end;
    struct mc_arena *arena;
    unsigned width;
};

static inline size_t bytes_left(const struct decoder *d) {
    return (size_t)(d->end - d->at);
}

static inline bool get_bytes(struct decoder *d, void *to, size_t len) {
    if (bytes_left(d) < len) {
        return false;
    }
    memcpy(to, d->at, len);
    d->at += len;
    return true;
}

static inline bool get_count(struct decoder *d, uint64_t *count) {
    if (bytes_left(d) < d->width) {
        return false;
    }
    if (d->width == 1) {
        *count = (uint8_t)*d->at;
    } else {
        *count = 0;
        memcpy(count, d->at, d->width);
    }
    d->at += d->width;
    return true;
}

static inline bool get_bool(struct decoder *d, void *to) {
    if (bytes_left(d) < 1 || (uint8_t)*d->at > 1) {
        return false;
    }
    *(uint8_t *)to = (uint8_t)*d->at++;
    return true;
}

static inline bool get_str(struct decoder *d, struct mc_str *s) {
    uint64_t len;
    if (!get_count(d, &len) || len > bytes_left(d)) {
        return false;
    }
    *s = (struct mc_str){d->at, (size_t)len};
    d->at += len;
    return true;
}

/* The fewest bytes that a value can take. */
static size_t smallest(const struct decoder *d, const struct mc_type *type) {
    size_t sum = 0;
    switch (type->kind) {
    case MC_KIND_STR:
    case MC_KIND_CHARS:
    case MC_KIND_VEC:
    case MC_KIND_MAP:
        return d->width;
    case MC_KIND_OPT:
        return 1;
    case MC_KIND_EXPECTED: {
        size_t error = smallest(d, type->fields[0].type), value = smallest(d, type->fields[1].type);
        return 1 + (error < value ? error : value);
    }
    case MC_KIND_VARIANT:
        sum = SIZE_MAX;
        for (size_t i = 1; i < type->field_count; i++) {
            size_t one = smallest(d, type->fields[i].type);
            sum = one < sum ? one : sum;
        }
        return 1 + sum;
    case MC_KIND_STRUCT:
    case MC_KIND_PAIR:
        for (size_t i = 0; i < type->field_count; i++) {
            sum += smallest(d, type->fields[i].type);
        }
        return sum;
    case MC_KIND_ALIAS:
        return smallest(d, type->fields[0].type);
    default:
        return type->size;
    }
}

static bool count_possible(const struct decoder *d, const struct mc_type *elem, uint64_t count) {
    if (count > bytes_left(d)) {
        return false;
    }
    if (count <= COUNTS_TO_DISTRUST) {
        return true;
    }
    size_t least = smallest(d, elem);
    return least <= 1 || count <= bytes_left(d) / least;
}

static bool get_value(struct decoder *d, const struct mc_type *type, char *v);

static bool get_vec(struct decoder *d, const struct mc_type *elem, struct mc_vec *vec) {
    uint64_t count;
    if (!get_count(d, &count) || !count_possible(d, elem, count)) {
        return false;
    }
    *vec = (struct mc_vec){NULL, (size_t)count};
    if (count == 0) {
        return true;
    }
    size_t bytes = (size_t)count * elem->size;
    char *item = vec->items = mc_arena_alloc(d->arena, bytes);
    switch (elem->kind) {
    case MC_KIND_STR:
        for (size_t i = 0; i < count; i++) {
            if (!get_str(d, (struct mc_str *)item + i)) {
                return false;
            }
        }
        return true;
    case MC_KIND_I32:
    case MC_KIND_U32:
    case MC_KIND_I64:
    case MC_KIND_U64:
    case MC_KIND_PAIR:
        return get_bytes(d, item, bytes);
    default:
        memset(item, 0, bytes);
        for (size_t i = 0; i < count; i++, item += elem->size) {
            if (!get_value(d, elem, item)) {
                return false;
            }
        }
        return true;
    }
}

static bool get_expected(struct decoder *d, const struct mc_field *f, char *v) {
    uint8_t has;
    if (!get_bool(d, &has)) {
        return false;
    }
    if (has) {
        return get_value(d, f[1].type, v + f[1].offset); /* the error is zero already */
    }
    int32_t error;
    if (!get_bytes(d, &error, sizeof(error)) || error == MC_OK) {
        return false; /* "failed with success" must not be read as success */
    }
    memcpy(v + f[0].offset, &error, sizeof(error));
    return true;
}

static bool get_variant(struct decoder *d, const struct mc_type *type, char *v) {
    uint8_t tag;
    if (!get_bytes(d, &tag, 1) || tag + 1u >= type->field_count) {
        return false;
    }
    *(uint8_t *)(v + type->fields[0].offset) = tag;
    return get_value(d, type->fields[tag + 1].type, v + type->fields[tag + 1].offset);
}

/* `v` is zeroed memory. */
static bool get_value(struct decoder *d, const struct mc_type *type, char *v) {
    switch (type->kind) {
    case MC_KIND_I64:
    case MC_KIND_U64:
    case MC_KIND_F64:
        return get_bytes(d, v, 8);
    case MC_KIND_I32:
    case MC_KIND_U32:
    case MC_KIND_F32:
        return get_bytes(d, v, 4);
    case MC_KIND_I16:
    case MC_KIND_U16:
        return get_bytes(d, v, 2);
    case MC_KIND_I8:
    case MC_KIND_U8:
        return get_bytes(d, v, 1);
    case MC_KIND_BOOL:
        return get_bool(d, v);
    case MC_KIND_STR:
    case MC_KIND_CHARS:
        return get_str(d, (struct mc_str *)v);
    case MC_KIND_VEC:
    case MC_KIND_MAP:
        return get_vec(d, type->elem, (struct mc_vec *)v);
    case MC_KIND_OPT:
        if (!get_bool(d, v + type->fields[0].offset)) {
            return false;
        }
        return !*(const bool *)(v + type->fields[0].offset) ||
               get_value(d, type->fields[1].type, v + type->fields[1].offset);
    case MC_KIND_EXPECTED:
        return get_expected(d, type->fields, v);
    case MC_KIND_VARIANT:
        return get_variant(d, type, v);
    case MC_KIND_PAIR:
        return get_bytes(d, v, sizeof(struct mc_uuid));
    case MC_KIND_STRUCT:
        for (size_t i = 0; i < type->field_count; i++) {
            if (!get_value(d, type->fields[i].type, v + type->fields[i].offset)) {
                return false;
            }
        }
        return true;
    case MC_KIND_ALIAS:
        return get_value(d, type->fields[0].type, v + type->fields[0].offset);
    case MC_KIND_VOID:
        return true;
    }
    return false;
}

enum mc_status mc_wire_peek_hash(struct mc_str body, uint32_t *hash) {
    if (body.len == 0) {
        *hash = 0;
        return MC_OK;
    }
    if (body.len < sizeof(*hash)) {
        return MC_DESERIALIZE_FAIL;
    }
    memcpy(hash, body.ptr, sizeof(*hash));
    *hash &= ~1u;
    return MC_OK;
}

/* Meta byte and literal, if the hash's low bit says that they are there. */
static bool get_preamble(struct decoder *d) {
    uint32_t first;
    uint8_t meta = 0;
    if (!get_bytes(d, &first, sizeof(first)) || ((first & 1) && !get_bytes(d, &meta, 1))) {
        return false;
    }
    if ((meta & ~META_KNOWN) != 0) {
        return false;
    }
    d->width = 1u << (meta >> META_WIDTH_SHIFT);
    if (meta & META_LITERAL) { /* the hash stands for it */
        const char *nul = bytes_left(d) ? memchr(d->at, 0, bytes_left(d)) : NULL;
        if (nul == NULL) {
            return false;
        }
        d->at = nul + 1;
    }
    return true;
}

/* Messages' own structs are at most this big; they are decoded aside so that a failure leaves
 * *value alone. */
#define LARGEST_VALUE 512

enum mc_status mc_wire_decode(const struct mc_type *type, uint32_t hash, struct mc_str body,
                              struct mc_arena *arena, void *value) {
    uint32_t found;
    MC_TRY(mc_wire_peek_hash(body, &found));
    if (found != hash) {
        return MC_ERR_WIRE_HASH;
    }
    if (type == NULL) {
        return body.len == 0 ? MC_OK : MC_DESERIALIZE_FAIL;
    }
    _Alignas(16) char aside[LARGEST_VALUE];
    MC_ASSERT(type->size <= sizeof(aside));
    memset(aside, 0, type->size);
    struct decoder d = {.at = body.ptr, .end = body.ptr + body.len, .arena = arena, .width = 1};
    if (body.len == 0 || !get_preamble(&d) || !get_value(&d, type, aside) || d.at != d.end) {
        return MC_DESERIALIZE_FAIL;
    }
    memcpy(value, aside, type->size);
    return MC_OK;
}
