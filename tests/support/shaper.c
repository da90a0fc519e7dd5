/* See shaper.h. */
#include "support/shaper.h"

#include <stdio.h>
#include <string.h>

#include "wire/master_rpc.h"

static uint64_t below(struct shaper *s, uint64_t bound) {
    return mc_rng_below(&s->rng, bound);
}

static uint64_t a_number(struct shaper *s) {
    if (below(s, 2)) {
        return below(s, 3) ? below(s, 3) : 1 + below(s, 3u << 20);
    }
    static const uint64_t telling[] = {0,
                                       1,
                                       2,
                                       3,
                                       8,
                                       100,
                                       1000,
                                       4096,
                                       65536,
                                       1u << 20,
                                       17u << 20,
                                       64u << 20,
                                       1ull << 32,
                                       1ull << 62,
                                       INT64_MAX,
                                       1ull << 63,
                                       UINT64_MAX - 4095,
                                       UINT64_MAX};
    switch (below(s, 8)) {
    case 0:
        return mc_rng_next(&s->rng);
    case 1:
    case 2:
        return s->numbers[below(s, SHAPER_LEARNT)] + below(s, 3) - 1;
    case 3:
        return telling[below(s, MC_ARRAY_LEN(telling))];
    default:
        return telling[below(s, 12)];
    }
}

static struct mc_str a_text(struct shaper *s) {
    static const char *const telling[] = {"f/group", "f/",      "f/.*",        ".*",
                                          "(a*)*b",  "[",       "tcp",         "shm",
                                          "{}",      "f/[0-3]", "127.0.0.1:1", "a\nb\"c\\"};
    char *made = mc_arena_alloc(&s->arena, SHAPER_LEARNT_BYTES);
    size_t length = 0, i = below(s, SHAPER_LEARNT);
    /* most texts are what their place in the arguments asks for */
    static const uint64_t plain[] = {[SHAPER_KEY] = 12, [SHAPER_TENANT] = 7, [SHAPER_SEGMENT] = 3};
    switch (below(s, 8) ? plain[s->role] : below(s, 20)) {
    case 0:
        return mc_str_from(telling[below(s, MC_ARRAY_LEN(telling))]);
    case 1:
        memcpy(made, s->texts[i], s->text_lengths[i]);
        return (struct mc_str){made, s->text_lengths[i]};
    case 2:
        length = below(s, below(s, 2) ? 20 : SHAPER_LEARNT_BYTES);
        for (i = 0; i < length; i++) {
            made[i] = (char)mc_rng_next(&s->rng);
        }
        return (struct mc_str){made, length};
    case 3:
    case 4:
    case 5:
    case 6:
        length = (size_t)snprintf(made, SHAPER_LEARNT_BYTES, "segment%u", (unsigned)below(s, 3));
        return (struct mc_str){made, length};
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
        return below(s, 2) ? MC_STR("default") : (struct mc_str){"", 0};
    default:
        length = (size_t)snprintf(made, SHAPER_LEARNT_BYTES, "f/%u",
                                  (unsigned)(below(s, 4) ? s->key : below(s, s->keys)));
        return (struct mc_str){made, length};
    }
}

static struct mc_uuid an_id(struct shaper *s) {
    if (below(s, 8) == 0) {
        return s->ids[below(s, SHAPER_LEARNT)];
    }
    return (struct mc_uuid){below(s, 4) ? s->client : 1 + below(s, 3), below(s, 8) ? 77 : 99};
}

static void shape(struct shaper *s, const struct mc_type *type, void *out);

/* Of the arguments of an RPC the first text, or list that has texts, is the key (but a config or a
 * segment is no text), the second the tenant, the rest segments. */
static bool says_text(const struct mc_type *type) {
    return type->kind == MC_KIND_STR ||
           (type->kind == MC_KIND_VEC &&
            (type->elem->kind == MC_KIND_STR || type->elem->kind == MC_KIND_STRUCT)) ||
           (type->kind == MC_KIND_STRUCT && type->size == sizeof(struct mw_object_meta));
}

/* What most puts ask for. */
static void plain_config(struct shaper *s, struct mw_replicate_config *config) {
    config->replica_num = below(s, 4);
    config->nof_replica_num = config->dfs_replica_num = 0;
    config->with_hard_pin = below(s, 8) == 0;
    if (below(s, 4)) {
        config->group_ids.has = false;
        config->preferred_segment.len = 0;
        config->preferred_segments.count = config->preferred_nof_segments.count = 0;
    }
}

/* One of a few places, so that mounts meet each other. */
static void plain_segment(struct shaper *s, struct mw_segment *segment) {
    uint64_t place = below(s, 3);
    char *name = mc_arena_alloc(&s->arena, 16);
    size_t length = (size_t)snprintf(name, 16, "segment%u", (unsigned)place);
    *segment = (struct mw_segment){.id = {1 + place, 99},
                                   .name = {name, length},
                                   .base = (1ull << 40) + (place << 28),
                                   .size = 32ull << 20,
                                   .te_endpoint = {name, length},
                                   .protocol = MC_STR("tcp"),
                                   .host_id = {name, length}};
}

static void a_scalar(struct shaper *s, enum mc_kind kind, void *out) {
    switch (kind) {
    case MC_KIND_I32:
    case MC_KIND_U32:
    case MC_KIND_F32: {
        int32_t small = (int32_t)below(s, 8) - 1;
        uint32_t value = below(s, 16) ? (uint32_t)small : (uint32_t)a_number(s);
        memcpy(out, &value, 4);
        return;
    }
    case MC_KIND_I64:
    case MC_KIND_U64:
    case MC_KIND_F64: {
        uint64_t value = a_number(s);
        memcpy(out, &value, 8);
        return;
    }
    case MC_KIND_I16:
    case MC_KIND_U16: {
        uint16_t value = (uint16_t)a_number(s);
        memcpy(out, &value, 2);
        return;
    }
    case MC_KIND_BOOL:
        *(uint8_t *)out = (uint8_t)below(s, 2);
        return;
    case MC_KIND_I8:
    case MC_KIND_U8:
        *(uint8_t *)out = (uint8_t)(below(s, 10) ? below(s, 5) : below(s, 256));
        return;
    default: /* MC_KIND_VOID */
        return;
    }
}

static void shape(struct shaper *s, const struct mc_type *type, void *out) {
    memset(out, 0, type->size);
    if (type == &mc_t_uuid) {
        *(struct mc_uuid *)out = an_id(s);
        return;
    }
    switch (type->kind) {
    case MC_KIND_STR:
    case MC_KIND_CHARS:
        *(struct mc_str *)out = a_text(s);
        return;
    case MC_KIND_MAP:
    case MC_KIND_VEC: {
        struct mc_vec *vec = out;
        vec->count = below(s, 10) ? s->vector : below(s, 6);
        vec->items = mc_arena_alloc(&s->arena, vec->count * type->elem->size + 1);
        for (size_t i = 0; i < vec->count; i++) {
            shape(s, type->elem, (char *)vec->items + i * type->elem->size);
        }
        return;
    }
    case MC_KIND_OPT:
        *(bool *)out = below(s, 2);
        shape(s, type->fields[1].type, (char *)out + type->fields[1].offset);
        return;
    case MC_KIND_VARIANT:
        *(uint8_t *)((char *)out + type->fields[0].offset) =
            (uint8_t)below(s, type->field_count - 1);
        shape(s, type->fields[1 + *(uint8_t *)((char *)out + type->fields[0].offset)].type,
              (char *)out +
                  type->fields[1 + *(uint8_t *)((char *)out + type->fields[0].offset)].offset);
        return;
    case MC_KIND_EXPECTED:
        *(int32_t *)out = below(s, 2) ? 0 : -(int32_t)below(s, 1000);
        shape(s, type->fields[1].type, (char *)out + type->fields[1].offset);
        return;
    case MC_KIND_STRUCT:
    case MC_KIND_PAIR:
    case MC_KIND_ALIAS:
        for (size_t i = 0; i < type->field_count; i++) {
            shape(s, type->fields[i].type, (char *)out + type->fields[i].offset);
            if (type == s->whole && says_text(type->fields[i].type)) {
                s->role += s->role < SHAPER_SEGMENT;
            }
        }
        if (type == &mc_t_segment && below(s, 4)) {
            plain_segment(s, out);
        }
        if (type->size == sizeof(struct mw_replicate_config) && below(s, 4)) {
            plain_config(s, out); /* of either release */
        }
        return;
    default:
        a_scalar(s, type->kind, out);
        return;
    }
}

void shaper_fill(struct shaper *s, const struct mc_type *type, void *out) {
    s->vector = below(s, 40) ? below(s, 4) : below(s, 300);
    if (below(s, 12) == 0) { /* else as in the request before, so that one thing leads to another */
        s->client = 1 + below(s, 3);
        s->key = below(s, 5);
    }
    s->whole = type;
    s->role = SHAPER_KEY;
    s->keys = s->vector > 4 ? 300 : 5;
    shape(s, type, out);
}

void shaper_learn(struct shaper *s, const struct mc_type *type, const void *value) {
    if (type == &mc_t_uuid) {
        s->ids[below(s, SHAPER_LEARNT)] = *(const struct mc_uuid *)value;
        return;
    }
    switch (type->kind) {
    case MC_KIND_STR: {
        const struct mc_str *text = value;
        if (text->len > 0 && text->len <= SHAPER_LEARNT_BYTES &&
            (text->len < 2 || memcmp(text->ptr, "w/", 2) != 0)) {
            size_t i = below(s, SHAPER_LEARNT);
            memcpy(s->texts[i], text->ptr, text->len);
            s->text_lengths[i] = text->len;
        }
        return;
    }
    case MC_KIND_MAP:
    case MC_KIND_VEC: {
        const struct mc_vec *vec = value;
        for (size_t i = 0; i < vec->count && i < 4; i++) {
            shaper_learn(s, type->elem, (const char *)vec->items + i * type->elem->size);
        }
        return;
    }
    case MC_KIND_OPT:
        if (*(const bool *)value) {
            shaper_learn(s, type->fields[1].type, (const char *)value + type->fields[1].offset);
        }
        return;
    case MC_KIND_EXPECTED:
        if (*(const int32_t *)value == 0) {
            shaper_learn(s, type->fields[1].type, (const char *)value + type->fields[1].offset);
        }
        return;
    case MC_KIND_VARIANT: {
        uint8_t tag = *(const uint8_t *)((const char *)value + type->fields[0].offset);
        shaper_learn(s, type->fields[1 + tag].type,
                     (const char *)value + type->fields[1 + tag].offset);
        return;
    }
    case MC_KIND_STRUCT:
    case MC_KIND_PAIR:
    case MC_KIND_ALIAS:
        for (size_t i = 0; i < type->field_count; i++) {
            shaper_learn(s, type->fields[i].type, (const char *)value + type->fields[i].offset);
        }
        return;
    case MC_KIND_I64:
    case MC_KIND_U64:
        memcpy(&s->numbers[below(s, SHAPER_LEARNT)], value, 8);
        return;
    default:
        return;
    }
}
