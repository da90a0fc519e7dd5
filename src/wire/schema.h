/*
 * wire: what travels between processes, as tables.
 *
 * struct_pack (yalantinglibs) messages are described once by a `struct mc_type` table that maps the
 * wire order onto a C struct; encoder, decoder, type literal and type hash all follow from the
 * table (spec: docs/wire.md). The C struct may have more fields than an older release's table
 * names; those keep their zero defaults, so that one handler serves several releases and the type
 * hash chooses the table.
 *
 * Decoding copies no payload: strings are views into the input, vectors live in the caller's arena.
 * It never reads past the input, and a count is compared with the bytes left (each element takes at
 * least one) before memory is taken.
 *
 * Owns the tables. May call base.
 */
#ifndef MC_WIRE_SCHEMA_H
#define MC_WIRE_SCHEMA_H

#include "base/base.h"

enum mc_kind {
    MC_KIND_I32,
    MC_KIND_U32,
    MC_KIND_I64,
    MC_KIND_U64,
    MC_KIND_I8,
    MC_KIND_U8,
    MC_KIND_I16,
    MC_KIND_U16,
    MC_KIND_BOOL, /* also over a uint8_t field: any other number than 1 travels as false */
    MC_KIND_F32,
    MC_KIND_F64,
    MC_KIND_STR,      /* struct mc_str */
    MC_KIND_CHARS,    /* vector<char>: struct mc_str, as STR but for the literal */
    MC_KIND_VEC,      /* struct mc_vec of elem */
    MC_KIND_MAP,      /* struct mc_vec of elem, where elem is the struct {key, value} */
    MC_KIND_OPT,      /* struct { bool has; T value; }: fields[0] is has, fields[1] the value */
    MC_KIND_VARIANT,  /* struct { uint8_t tag; union }: fields[0] is the tag, then each case */
    MC_KIND_EXPECTED, /* struct { int32_t error; T value; }: fields[0] is the error, fields[1] T */
    MC_KIND_STRUCT,   /* fields in wire order */
    MC_KIND_PAIR,  /* pair of two 64-bit integers: as STRUCT, but the literal has its alignment */
    MC_KIND_ALIAS, /* a struct of which only fields[0] travels, as if it were that type */
    MC_KIND_VOID,  /* monostate */
};

struct mc_vec {
    void *items;
    size_t count;
};

struct mc_type;
struct mc_field {
    const struct mc_type *type;
    size_t offset;
};
struct mc_type {
    enum mc_kind kind;
    size_t size; /* of the C representation */
    const struct mc_type *elem;
    const struct mc_field *fields;
    size_t field_count;
    /* Of an element type: false = this value cannot be said in this schema and is left out of
     * vectors. NULL = all can. */
    bool (*knows)(const void *value);
};

extern const struct mc_type mc_t_i32, mc_t_u32, mc_t_i64, mc_t_u64, mc_t_i8, mc_t_u8, mc_t_i16,
    mc_t_u16, mc_t_bool, mc_t_f32, mc_t_f64, mc_t_str, mc_t_chars, mc_t_void, mc_t_uuid;

/* First four bytes of the MD5, big-endian: how function ids and type hashes are made. */
uint32_t mc_wire_md5_id(const void *bytes, size_t len);

/* The type literal, appended to `out`, and the hash (low bit 0; of NULL: 0). NULL = no argument =
 * empty body. */
void mc_type_literal(const struct mc_type *type, struct mc_buf *out);
uint32_t mc_type_hash(const struct mc_type *type); /* computed; keep the result */

/* Appends hash, meta byte where the widths ask for it, and the value. `hash` = mc_type_hash(type).
 * A variant's tag must be one that the type has. */
void mc_wire_encode(const struct mc_type *type, uint32_t hash, const void *value,
                    struct mc_buf *out);

/* Reads only the leading hash (low bit cleared;
 * 0 of an empty body) so that a table can be chosen. */
MC_MUST_USE enum mc_status mc_wire_peek_hash(struct mc_str body, uint32_t *hash);

/* Decodes the whole body. Accepts bodies with and without a literal and all size widths. *value is
 * filled only on success; fields that the type does not name are zero. MC_ERR_WIRE_HASH: another
 * type; MC_DESERIALIZE_FAIL: malformed or bytes left over. Strings point into `body`. */
MC_MUST_USE enum mc_status mc_wire_decode(const struct mc_type *type, uint32_t hash,
                                          struct mc_str body, struct mc_arena *arena, void *value);

#endif
