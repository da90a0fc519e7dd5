/*
 * Encoder and decoder of kv_cache.meta and of records. See tier/offset_meta.h.
 *
 * Of the allocator's state only the taken pieces are read: everything else follows from them, and
 * what follows from nothing else cannot contradict. It is written in full, pieces in the order of
 * their offsets.
 */
#include "tier/offset_meta.h"

#include "tier/proto.h"

#define VERSION          3u
#define FIELD_VERSION    1u
#define FIELD_ALLOCATOR  2u
#define FIELD_INSERT_SEQ 3u
#define NODES_MIN        1024u
#define NODES_MAX        (1u << 20) /* what upstream lets it grow to, unless there are more */
#define NODE_BYTES       28u
#define STATE_HEAD       1120u /* before the nodes */
#define AT_SHIFT         8u
#define AT_CAPACITY      16u
#define AT_UNITS         40u
#define AT_NODES         44u
#define AT_SPARES_BEFORE 1116u
#define SHIFT_MAX        32u
#define KEY_MAX          (1u << 20)

unsigned mc_offset_shift(uint64_t capacity_bytes) {
    unsigned shift = 0;
    while (capacity_bytes >> shift > MC_EXTENTS_MAX) {
        shift++;
    }
    return shift;
}

/* ---- writing ---- */

/* A bin's list and the marks of all of them, made as the nodes are. */
struct bins {
    uint32_t first[MC_EXTENTS_BINS];
    uint8_t bits[MC_EXTENTS_BINS / 8];
    uint32_t tops;
    uint64_t free_units;
};

static void put_node(struct mc_buf *out, struct mc_extent at, uint32_t before, uint32_t after,
                     uint32_t left, uint32_t right, bool taken) {
    const uint32_t words[] = {at.offset, at.size, before, after, left, right, taken};
    for (size_t i = 0; i < MC_ARRAY_LEN(words); i++) {
        mc_put_le(out, words[i], 4);
    }
}

static void set_word(struct mc_buf *nodes, uint32_t node, unsigned word, uint32_t value) {
    char *at = nodes->data + (size_t)node * NODE_BYTES + word * 4;
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (char)(value >> 8 * i);
    }
}

static void put_nodes(const struct mc_extents *extents, uint32_t room, struct bins *bins,
                      struct mc_buf *nodes) {
    uint32_t count = (uint32_t)mc_extents_count(extents), name = MC_EXTENTS_NONE;
    struct mc_extent at;
    bool taken;
    memset(bins->first, 0xff, sizeof(bins->first));
    for (uint32_t i = 0; mc_extents_next(extents, &name, &at, &taken); i++) {
        uint32_t right = i + 1 < count ? i + 1 : MC_EXTENTS_NONE;
        uint32_t after = MC_EXTENTS_NONE;
        if (!taken) {
            unsigned bin = mc_extents_bin_below(at.size);
            after = bins->first[bin];
            if (after != MC_EXTENTS_NONE) {
                set_word(nodes, after, 2, i); /* its bin before */
            }
            bins->first[bin] = i;
            bins->bits[bin / 8] |= (uint8_t)(1u << bin % 8);
            bins->tops |= 1u << bin / 8;
            bins->free_units += at.size;
        }
        put_node(nodes, at, MC_EXTENTS_NONE, after, i - 1, right, taken); /* 0 - 1 is none */
    }
    for (uint32_t i = count; i < room; i++) {
        put_node(nodes, (struct mc_extent){0, 0}, MC_EXTENTS_NONE, MC_EXTENTS_NONE, MC_EXTENTS_NONE,
                 MC_EXTENTS_NONE, false);
    }
}

static void encode_state(const struct mc_extents *extents, uint64_t capacity, uint64_t asked,
                         struct mc_buf *out) {
    unsigned shift = mc_offset_shift(capacity);
    uint32_t count = (uint32_t)mc_extents_count(extents), room = NODES_MIN;
    uint64_t taken = 0;
    uint32_t name = MC_EXTENTS_NONE;
    struct mc_extent at;
    struct bins bins = {0};
    struct mc_buf nodes = {0};
    for (bool is_taken; mc_extents_next(extents, &name, &at, &is_taken);) {
        taken += is_taken;
    }
    while (room <= count) { /* and one to spare */
        room *= 2;
    }
    put_nodes(extents, room, &bins, &nodes);
    mc_put_le(out, 0, 8);
    mc_put_le(out, shift, 8);
    mc_put_le(out, capacity, 8);
    mc_put_le(out, asked, 8);
    mc_put_le(out, taken, 8);
    mc_put_le(out, capacity >> shift, 4);
    mc_put_le(out, room, 4);
    mc_put_le(out, mc_max_u64(room, NODES_MAX), 4);
    mc_put_le(out, bins.free_units, 4);
    mc_put_le(out, bins.tops, 4);
    mc_buf_append(out, bins.bits, sizeof(bins.bits));
    for (unsigned i = 0; i < MC_EXTENTS_BINS; i++) {
        mc_put_le(out, bins.first[i], 4);
    }
    mc_put_le(out, count, 4);
    mc_buf_append(out, nodes.data, nodes.len);
    for (uint32_t i = 0; i < room; i++) {
        mc_put_le(out, i, 4);
    }
    mc_buf_free(&nodes);
}

void mc_offset_meta_encode(const struct mc_extents *extents, uint64_t capacity_bytes,
                           uint64_t insert_seq, uint64_t asked_bytes, struct mc_buf *out) {
    struct mc_buf state = {0};
    encode_state(extents, capacity_bytes, asked_bytes, &state);
    mc_proto_put_number(out, FIELD_VERSION, VERSION);
    mc_proto_put_bytes(out, FIELD_ALLOCATOR, (struct mc_str){state.data, state.len});
    mc_proto_put_number(out, FIELD_INSERT_SEQ, insert_seq);
    mc_buf_free(&state);
}

/* ---- reading ---- */

static int by_offset(const void *a, const void *b) {
    const struct mc_extent *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Which nodes are in use: all but the spares. */
static bool *nodes_in_use(const char *spares, uint32_t nodes, uint32_t before,
                          struct mc_arena *arena) {
    bool *used = mc_arena_alloc(arena, nodes);
    memset(used, true, nodes);
    for (uint32_t i = before; i < nodes; i++) {
        uint64_t spare = mc_get_le(spares + (size_t)i * 4, 4);
        if (spare >= nodes) {
            return NULL;
        }
        used[spare] = false;
    }
    return used;
}

static enum mc_status decode_state(struct mc_str state, struct mc_arena *arena,
                                   struct mc_offset_meta *out) {
    if (state.len < STATE_HEAD) {
        return MC_DESERIALIZE_FAIL;
    }
    uint64_t shift = mc_get_le(state.ptr + AT_SHIFT, 8);
    uint64_t capacity = mc_get_le(state.ptr + AT_CAPACITY, 8);
    uint64_t units = mc_get_le(state.ptr + AT_UNITS, 4), nodes = mc_get_le(state.ptr + AT_NODES, 4);
    uint32_t before = (uint32_t)mc_get_le(state.ptr + AT_SPARES_BEFORE, 4);
    if (mc_get_le(state.ptr, 8) != 0 || capacity == 0 || capacity > INT64_MAX ||
        shift > SHIFT_MAX || shift != mc_offset_shift(capacity) || units != capacity >> shift ||
        nodes == 0 || before > nodes || state.len != STATE_HEAD + nodes * (NODE_BYTES + 4)) {
        return MC_DESERIALIZE_FAIL;
    }
    const char *node = state.ptr + STATE_HEAD;
    const bool *used = nodes_in_use(node + nodes * NODE_BYTES, (uint32_t)nodes, before, arena);
    if (used == NULL) {
        return MC_DESERIALIZE_FAIL;
    }
    struct mc_extent *taken = mc_arena_alloc(arena, nodes * sizeof(*taken));
    size_t count = 0;
    for (uint64_t i = 0; i < nodes; i++, node += NODE_BYTES) {
        struct mc_extent at = {(uint32_t)mc_get_le(node, 4), (uint32_t)mc_get_le(node + 4, 4)};
        if (used[i] && node[NODE_BYTES - 4] != 0 && at.size > 0 &&
            mc_range_inside(at.offset, at.size, 0, units)) {
            taken[count++] = at;
        }
    }
    qsort(taken, count, sizeof(*taken), by_offset);
    out->count = 0;
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        if (taken[i].offset >= end) {
            end = (uint64_t)taken[i].offset + taken[i].size;
            taken[out->count++] = taken[i];
        }
    }
    out->capacity_bytes = capacity;
    out->shift = (unsigned)shift;
    out->taken = taken;
    return MC_OK;
}

enum mc_status mc_offset_meta_decode(struct mc_str text, struct mc_arena *arena,
                                     struct mc_offset_meta *out) {
    struct mc_offset_meta meta = {0};
    struct mc_proto_field f;
    struct mc_str state = {0};
    uint64_t version = 0;
    while (text.len > 0) {
        if (!mc_proto_next(&text, &f)) {
            return MC_DESERIALIZE_FAIL;
        }
        if (f.number == FIELD_VERSION && f.wire == MC_PROTO_VARINT) {
            version = f.value;
        } else if (f.number == FIELD_ALLOCATOR && f.wire == MC_PROTO_BYTES) {
            state = f.bytes;
        } else if (f.number == FIELD_INSERT_SEQ && f.wire == MC_PROTO_VARINT) {
            meta.insert_seq = f.value;
        }
    }
    if (version != VERSION) {
        return MC_DESERIALIZE_FAIL;
    }
    MC_TRY(decode_state(state, arena, &meta));
    *out = meta;
    return MC_OK;
}

/* ---- records ---- */

static void put_word(char *at, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) {
        at[i] = (char)(value >> 8 * i);
    }
}

void mc_record_encode(const struct mc_record *r, char out[MC_RECORD_HEAD]) {
    put_word(out, r->key_len, 4);
    put_word(out + 4, r->value_len, 4);
    put_word(out + 8, r->seq, 8);
    put_word(out + 16, r->flags, 4);
    put_word(out + 20, r->crc, 4);
}

bool mc_record_decode(const char bytes[MC_RECORD_HEAD], uint64_t room, struct mc_record *out) {
    struct mc_record r = {.key_len = (uint32_t)mc_get_le(bytes, 4),
                          .value_len = (uint32_t)mc_get_le(bytes + 4, 4),
                          .seq = mc_get_le(bytes + 8, 8),
                          .flags = (uint32_t)mc_get_le(bytes + 16, 4),
                          .crc = (uint32_t)mc_get_le(bytes + 20, 4)};
    if (r.key_len == 0 || r.key_len > KEY_MAX || r.value_len == 0 ||
        (r.flags & ~MC_RECORD_HAS_CRC) != 0 || mc_record_value_at(r.key_len) > room ||
        r.value_len > room - mc_record_value_at(r.key_len)) {
        return false;
    }
    *out = r;
    return true;
}

#define TAG_MAGIC "MCTG"
#define TAG_BYTES 12u

void mc_record_put_tag(char *head, uint64_t key_len, uint64_t tag) {
    uint64_t at = MC_RECORD_HEAD + key_len;
    if (tag != 0 && at + TAG_BYTES <= mc_record_value_at(key_len)) {
        memcpy(head + at, TAG_MAGIC, 4);
        put_word(head + at + 4, tag, 8);
    }
}

uint64_t mc_record_tag(const char *head, size_t have, uint64_t key_len) {
    uint64_t at = MC_RECORD_HEAD + key_len;
    bool there = at + TAG_BYTES <= mc_min_u64(have, mc_record_value_at(key_len)) &&
                 memcmp(head + at, TAG_MAGIC, 4) == 0;
    return there ? mc_get_le(head + at + 4, 8) : 0;
}

uint32_t mc_record_crc(const struct mc_record *r, const char *key, const void *value) {
    char head[MC_RECORD_HEAD];
    mc_record_encode(r, head);
    uint32_t crc = mc_tier_crc_more(~0u, head, MC_RECORD_HEAD - 4);
    crc = mc_tier_crc_more(crc, key, r->key_len);
    return ~mc_tier_crc_more(crc, value, r->value_len);
}
