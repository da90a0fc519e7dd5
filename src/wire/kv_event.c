/*
 * KV events in MessagePack. See wire/kv_event.h.
 *
 * Every value is written in the shortest form that the format has for it, as the usual libraries
 * do, so that two writers of one event agree in every byte.
 */
#include "wire/kv_event.h"

/* ---- MessagePack ---- */

static void put_be(struct mc_buf *out, uint8_t tag, uint64_t value, unsigned bytes) {
    mc_buf_putc(out, (char)tag);
    for (unsigned i = bytes; i-- > 0;) {
        mc_buf_putc(out, (char)(value >> (8 * i)));
    }
}

static void put_nil(struct mc_buf *out) {
    mc_buf_putc(out, (char)0xc0);
}

static void put_u64(struct mc_buf *out, uint64_t value) {
    if (value < 0x80) {
        mc_buf_putc(out, (char)value);
    } else if (value <= UINT8_MAX) {
        put_be(out, 0xcc, value, 1);
    } else if (value <= UINT16_MAX) {
        put_be(out, 0xcd, value, 2);
    } else if (value <= UINT32_MAX) {
        put_be(out, 0xce, value, 4);
    } else {
        put_be(out, 0xcf, value, 8);
    }
}

static void put_i64(struct mc_buf *out, int64_t value) {
    if (value >= 0) {
        put_u64(out, (uint64_t)value);
    } else if (value >= -32) {
        mc_buf_putc(out, (char)value);
    } else if (value >= INT8_MIN) {
        put_be(out, 0xd0, (uint64_t)value, 1);
    } else if (value >= INT16_MIN) {
        put_be(out, 0xd1, (uint64_t)value, 2);
    } else if (value >= INT32_MIN) {
        put_be(out, 0xd2, (uint64_t)value, 4);
    } else {
        put_be(out, 0xd3, (uint64_t)value, 8);
    }
}

static void put_array(struct mc_buf *out, uint32_t count) {
    if (count < 16) {
        mc_buf_putc(out, (char)(0x90 | count));
    } else if (count <= UINT16_MAX) {
        put_be(out, 0xdc, count, 2);
    } else {
        put_be(out, 0xdd, count, 4);
    }
}

static void put_map(struct mc_buf *out, uint32_t count) {
    if (count < 16) {
        mc_buf_putc(out, (char)(0x80 | count));
    } else {
        put_be(out, 0xde, count, 2);
    }
}

static void put_str(struct mc_buf *out, struct mc_str text) {
    if (text.len < 32) {
        mc_buf_putc(out, (char)(0xa0 | text.len));
    } else if (text.len <= UINT8_MAX) {
        put_be(out, 0xd9, text.len, 1);
    } else if (text.len <= UINT16_MAX) {
        put_be(out, 0xda, text.len, 2);
    } else {
        put_be(out, 0xdb, text.len, 4);
    }
    mc_buf_append(out, text.ptr, text.len);
}

static void put_name(struct mc_buf *out, const char *name) {
    put_str(out, mc_str_from(name));
}

static void put_member(struct mc_buf *out, const char *name, struct mc_str text) {
    put_name(out, name);
    put_str(out, text);
}

static void put_unknown(struct mc_buf *out, const char *name) {
    put_name(out, name);
    put_nil(out);
}

/* ---- events ---- */

/* 16 for what is none. */
static unsigned digit_of(unsigned char c) {
    if (c >= '0' && c <= '9') {
        return c - (unsigned)'0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - (unsigned)'a' + 10 : 16;
}

bool mw_kv_key_hash(struct mc_str key, uint64_t *hash) {
    bool hex = key.len > 2 && key.ptr[0] == '0' && (key.ptr[1] == 'x' || key.ptr[1] == 'X');
    unsigned base = hex ? 16 : 10;
    uint64_t value = 0;
    if (key.len == 0) {
        return false;
    }
    for (size_t i = hex ? 2 : 0; i < key.len; i++) {
        unsigned digit = digit_of((unsigned char)key.ptr[i]);
        if (digit >= base || value > (UINT64_MAX - digit) / base) {
            return false;
        }
        value = value * base + digit;
    }
    *hash = value;
    return true;
}

void mw_kv_batch_begin(struct mc_buf *out, uint64_t time_ms, uint32_t count) {
    put_array(out, 3);
    put_u64(out, time_ms);
    put_array(out, count);
}

void mw_kv_batch_end(struct mc_buf *out) {
    put_u64(out, 0); /* data-parallel rank: a master has none */
}

static uint32_t member_count(const struct mw_kv_format *format, enum mw_kv_event_kind kind) {
    uint32_t count = kind == MW_KV_STORED ? 16 : 14;
    if (format->legacy) {
        count += kind == MW_KV_STORED ? 3 : 2;
    }
    return count + format->object_key;
}

static void put_hashes(struct mc_buf *out, const struct mw_kv_format *format, struct mc_str key) {
    uint64_t hash = 0;
    bool known = mw_kv_key_hash(key, &hash);
    put_name(out, "seq_hashes");
    put_array(out, known);
    if (known) {
        put_u64(out, hash);
    }
    if (format->legacy) {
        put_name(out, "block_hashes");
        put_array(out, known);
        if (known) {
            put_i64(out, (int64_t)hash); /* the same bits */
        }
    }
}

void mw_kv_event_put(struct mc_buf *out, const struct mw_kv_format *format, uint64_t time_ms,
                     const struct mw_kv_event *event) {
    bool stored = event->kind == MW_KV_STORED;
    put_map(out, member_count(format, event->kind));
    put_name(out, "event_id");
    put_u64(out, event->id);
    put_name(out, "timestamp");
    put_u64(out, time_ms);
    put_member(out, "event_type", stored ? MC_STR("stored") : MC_STR("removed"));
    if (format->legacy) {
        put_member(out, "type", stored ? MC_STR("BlockStored") : MC_STR("BlockRemoved"));
    }
    put_unknown(out, "model_name");
    put_unknown(out, "block_size");
    put_unknown(out, "additional_salt");
    put_unknown(out, "lora_name");
    put_member(out, "tenant_id", event->tenant.len ? event->tenant : MC_STR("default"));
    put_member(out, "backend_id", format->backend_id);
    if (event->group.len) {
        put_member(out, "group_id", event->group);
    } else {
        put_unknown(out, "group_id");
    }
    put_member(out, "medium", event->medium == MW_KV_CPU ? MC_STR("cpu") : MC_STR("disk"));
    put_unknown(out, "dp_rank");
    if (format->object_key) {
        put_member(out, "object_key", event->key);
    }
    put_hashes(out, format, event->key);
    put_name(out, "base_block_idx");
    if (!stored) {
        put_nil(out);
        return;
    }
    put_u64(out, 0);
    put_unknown(out, "parent_hash");
    put_unknown(out, "token_ids");
    if (format->legacy) {
        put_unknown(out, "parent_block_hash");
    }
}

void mw_kv_sequence_put(uint8_t out[MW_KV_SEQUENCE_BYTES], uint64_t sequence) {
    for (unsigned i = 0; i < MW_KV_SEQUENCE_BYTES; i++) {
        out[i] = (uint8_t)(sequence >> (8 * (MW_KV_SEQUENCE_BYTES - 1 - i)));
    }
}

uint64_t mw_kv_sequence_get(const uint8_t in[MW_KV_SEQUENCE_BYTES]) {
    uint64_t sequence = 0;
    for (unsigned i = 0; i < MW_KV_SEQUENCE_BYTES; i++) {
        sequence = sequence << 8 | in[i];
    }
    return sequence;
}
