/*
 * Encoder and decoder of a bucket's .meta and trailer. See tier/bucket_meta.h.
 *
 * The decoder reads the text twice: to count, so that memory is taken once and for as many objects
 * as there are bytes for, and to fill. It accepts fields in any order and skips those that it does
 * not know; a number that does not fit its place is a fault of the whole file.
 */
#include "tier/bucket_meta.h"

#include "tier/proto.h"

#define TRAILER_MAGIC   "MCTIERC2"
#define OLD_TRAILER     "MCTIERC1"
#define OLD_TRAILER_ROW 12u

#define FIELD_DATA_SIZE  1u
#define FIELD_KEY        2u
#define FIELD_OBJECT     3u
#define OBJECT_OFFSET    1u
#define OBJECT_KEY_SIZE  2u
#define OBJECT_DATA_SIZE 3u

/* ---- the message ---- */

void mc_bucket_meta_encode(const struct mc_bucket_meta *meta, struct mc_buf *out) {
    struct mc_buf object = {0};
    if (!meta->ours) {
        mc_proto_put_number(out, FIELD_DATA_SIZE, meta->data_size);
    }
    for (size_t i = 0; i < meta->count; i++) {
        mc_proto_put_bytes(out, FIELD_KEY, meta->objects[i].key);
    }
    for (size_t i = 0; i < meta->count; i++) {
        mc_buf_clear(&object);
        mc_proto_put_number(&object, OBJECT_OFFSET, meta->objects[i].offset);
        mc_proto_put_number(&object, OBJECT_KEY_SIZE, meta->objects[i].key.len);
        mc_proto_put_number(&object, OBJECT_DATA_SIZE, meta->objects[i].size);
        mc_proto_put_bytes(out, FIELD_OBJECT, (struct mc_str){object.data, object.len});
    }
    if (meta->ours) {
        mc_proto_put_number(out, FIELD_DATA_SIZE, meta->data_size);
    }
    mc_buf_free(&object);
}

static bool read_object(struct mc_str in, struct mc_bucket_object *o, uint64_t *key_size) {
    struct mc_proto_field f;
    while (in.len > 0) {
        if (!mc_proto_next(&in, &f)) {
            return false;
        }
        uint64_t *place = f.number == OBJECT_OFFSET      ? &o->offset
                          : f.number == OBJECT_KEY_SIZE  ? key_size
                          : f.number == OBJECT_DATA_SIZE ? &o->size
                                                         : NULL;
        if (place == NULL) {
            continue;
        }
        if (f.wire != MC_PROTO_VARINT || f.value > INT64_MAX) {
            return false;
        }
        *place = f.value;
    }
    return true;
}

static bool count_objects(struct mc_str in, size_t *keys, size_t *objects) {
    struct mc_proto_field f;
    *keys = *objects = 0;
    while (in.len > 0) {
        if (!mc_proto_next(&in, &f)) {
            return false;
        }
        *keys += f.number == FIELD_KEY && f.wire == MC_PROTO_BYTES;
        *objects += f.number == FIELD_OBJECT && f.wire == MC_PROTO_BYTES;
    }
    return true;
}

static bool fill(struct mc_str in, struct mc_bucket_meta *out, uint64_t *key_sizes) {
    struct mc_proto_field f;
    size_t keys = 0, objects = 0;
    while (in.len > 0) {
        if (!mc_proto_next(&in, &f)) {
            return false;
        }
        bool good = true;
        if (f.number == FIELD_DATA_SIZE) {
            good = f.wire == MC_PROTO_VARINT && f.value <= INT64_MAX;
            out->data_size = f.value;
            out->ours = objects > 0;
        } else if (f.number == FIELD_KEY && f.wire == MC_PROTO_BYTES) {
            out->objects[keys++].key = f.bytes;
        } else if (f.number == FIELD_OBJECT && f.wire == MC_PROTO_BYTES) {
            good = read_object(f.bytes, &out->objects[objects], &key_sizes[objects]);
            objects++;
        }
        if (!good) {
            return false;
        }
    }
    return true;
}

enum mc_status mc_bucket_meta_decode(struct mc_str text, struct mc_arena *arena,
                                     struct mc_bucket_meta *out) {
    struct mc_bucket_meta meta = {0};
    size_t objects;
    if (!count_objects(text, &meta.count, &objects) || objects != meta.count) {
        return MC_DESERIALIZE_FAIL;
    }
    meta.objects = mc_arena_zalloc(arena, (meta.count + 1) * sizeof(*meta.objects));
    uint64_t *key_sizes = mc_arena_zalloc(arena, (meta.count + 1) * sizeof(*key_sizes));
    if (!fill(text, &meta, key_sizes)) {
        return MC_DESERIALIZE_FAIL;
    }
    for (size_t i = 0; i < meta.count; i++) {
        const struct mc_bucket_object *o = &meta.objects[i];
        if (o->key.len == 0 || o->key.len != key_sizes[i] || o->size == 0 ||
            !mc_range_inside(o->offset, o->key.len + o->size, 0, INT64_MAX)) {
            return MC_DESERIALIZE_FAIL;
        }
    }
    *out = meta;
    return MC_OK;
}

/* ---- the trailer ---- */

void mc_bucket_trailer_encode(struct mc_tier_entry *const *entries, size_t count,
                              struct mc_buf *out) {
    size_t begin = out->len;
    mc_buf_puts(out, TRAILER_MAGIC);
    mc_put_le(out, count, 4);
    for (size_t i = 0; i < count; i++) {
        mc_put_le(out, entries[i]->offset, 8);
        mc_put_le(out, entries[i]->tag, 8);
        mc_put_le(out, entries[i]->crc, 4);
    }
    mc_put_le(out, mc_tier_crc(out->data + begin, out->len - begin), 4);
}

static bool is_old(struct mc_str text) {
    return memcmp(text.ptr, OLD_TRAILER, 8) == 0;
}

size_t mc_bucket_trailer_rows(struct mc_str text) {
    if (text.len < MC_BUCKET_TRAILER_HEAD ||
        (memcmp(text.ptr, TRAILER_MAGIC, 8) != 0 && !is_old(text))) {
        return 0;
    }
    uint64_t rows = mc_get_le(text.ptr + 8, 4);
    uint64_t row = is_old(text) ? OLD_TRAILER_ROW : MC_BUCKET_TRAILER_ROW;
    uint64_t bytes = MC_BUCKET_TRAILER_HEAD + rows * row + 4;
    if (bytes > text.len ||
        mc_tier_crc(text.ptr, bytes - 4) != mc_get_le(text.ptr + bytes - 4, 4)) {
        return 0;
    }
    return rows;
}

bool mc_bucket_trailer_find(struct mc_str text, size_t rows, uint64_t offset, uint32_t *crc,
                            uint64_t *tag) {
    size_t low = 0, high = rows, width = is_old(text) ? OLD_TRAILER_ROW : MC_BUCKET_TRAILER_ROW;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const char *row = text.ptr + MC_BUCKET_TRAILER_HEAD + middle * width;
        uint64_t at = mc_get_le(row, 8);
        if (at == offset) {
            *tag = is_old(text) ? 0 : mc_get_le(row + 8, 8);
            *crc = (uint32_t)mc_get_le(row + width - 4, 4);
            return true;
        }
        low = at < offset ? middle + 1 : low;
        high = at < offset ? high : middle;
    }
    return false;
}
