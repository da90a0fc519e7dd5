/*
 * KV events: what happened to objects, as upstream's master publishes it over ZeroMQ.
 *
 * A message has three frames: a topic (empty), a sequence number (8 bytes, big-endian), and a
 * MessagePack array [time in ms, [event ...], 0]. An event is a map whose members and their order
 * are upstream's; what the master does not know (model, block size, tokens) is nil. The key of an
 * object is its identity; where it is a number it is also the hash of its block (`seq_hashes`).
 */
#ifndef MC_WIRE_KV_EVENT_H
#define MC_WIRE_KV_EVENT_H

#include "base/base.h"

enum mw_kv_event_kind { MW_KV_STORED, MW_KV_REMOVED };
enum mw_kv_medium { MW_KV_CPU, MW_KV_DISK };

struct mw_kv_event {
    uint64_t id;
    enum mw_kv_event_kind kind;
    enum mw_kv_medium medium;
    struct mc_str tenant; /* "default" when empty */
    struct mc_str group;  /* empty = none */
    struct mc_str key;
};

struct mw_kv_format {
    struct mc_str backend_id;
    bool legacy;     /* also the members that subscribers of vLLM's events read */
    bool object_key; /* also the key */
};

/* The hash that a key spells: a decimal number, or a hexadecimal one after 0x, that fits. */
bool mw_kv_key_hash(struct mc_str key, uint64_t *hash);

/* Begins the payload of a message with exactly `count` events, each appended with mw_kv_event_put
 * and the same time, and ends it. */
void mw_kv_batch_begin(struct mc_buf *out, uint64_t time_ms, uint32_t count);
void mw_kv_event_put(struct mc_buf *out, const struct mw_kv_format *format, uint64_t time_ms,
                     const struct mw_kv_event *event);
void mw_kv_batch_end(struct mc_buf *out);

#define MW_KV_SEQUENCE_BYTES 8u
void mw_kv_sequence_put(uint8_t out[MW_KV_SEQUENCE_BYTES], uint64_t sequence);
uint64_t mw_kv_sequence_get(const uint8_t in[MW_KV_SEQUENCE_BYTES]);

#endif
