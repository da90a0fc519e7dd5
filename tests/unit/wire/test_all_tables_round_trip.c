/*
 * Every table of every version, with random values: the C struct's described bytes survive encoding
 * and decoding, fields lie inside their struct and apart from each other, and messages with wide
 * counts and with literals are read back.
 */
#include "support/support.h"
#include "wire/client_rpc.h"

struct filler {
    struct mc_rng rng;
    struct mc_arena arena;
    size_t longest; /* of a container */
};

static void fill(struct filler *f, const struct mc_type *type, char *v);

static void fill_str(struct filler *f, struct mc_str *s) {
    size_t len = mc_rng_below(&f->rng, f->longest + 1);
    char *bytes = mc_arena_alloc(&f->arena, len + 1);
    mc_test_fill(bytes, len, mc_rng_next(&f->rng));
    *s = (struct mc_str){bytes, len};
}

static void fill_vec(struct filler *f, const struct mc_type *elem, struct mc_vec *vec) {
    vec->count =
        mc_rng_below(&f->rng, f->longest > 8 && elem->kind != MC_KIND_STR ? 9 : f->longest + 1);
    vec->items = mc_arena_zalloc(&f->arena, vec->count * elem->size);
    for (size_t i = 0; i < vec->count; i++) {
        fill(f, elem, (char *)vec->items + i * elem->size);
    }
}

/* v is zeroed. */
static void fill(struct filler *f, const struct mc_type *type, char *v) {
    const struct mc_field *fields = type->fields;
    uint64_t random = mc_rng_next(&f->rng);
    switch (type->kind) {
    case MC_KIND_STR:
    case MC_KIND_CHARS:
        fill_str(f, (struct mc_str *)v);
        break;
    case MC_KIND_VEC:
    case MC_KIND_MAP:
        fill_vec(f, type->elem, (struct mc_vec *)v);
        break;
    case MC_KIND_BOOL:
        *v = random & 1;
        break;
    case MC_KIND_OPT:
        v[fields[0].offset] = random & 1;
        if (random & 1) {
            fill(f, fields[1].type, v + fields[1].offset);
        }
        break;
    case MC_KIND_EXPECTED: {
        int32_t error = random & 1 ? -(int32_t)(1 + (random >> 40)) : 0;
        memcpy(v + fields[0].offset, &error, sizeof(error));
        if (error == 0) {
            fill(f, fields[1].type, v + fields[1].offset);
        }
        break;
    }
    case MC_KIND_VARIANT: {
        uint8_t tag = (uint8_t)(random % (type->field_count - 1));
        v[fields[0].offset] = (char)tag;
        fill(f, fields[tag + 1].type, v + fields[tag + 1].offset);
        break;
    }
    case MC_KIND_STRUCT:
    case MC_KIND_PAIR:
    case MC_KIND_ALIAS:
        for (size_t i = 0; i < type->field_count; i++) {
            fill(f, fields[i].type, v + fields[i].offset);
        }
        break;
    default:
        memcpy(v, &random, type->size);
        break;
    }
}

static void expect_same(const struct mc_type *type, const char *a, const char *b);

static void expect_same_vec(const struct mc_type *elem, const struct mc_vec *a,
                            const struct mc_vec *b) {
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        expect_same(elem, (char *)a->items + i * elem->size, (char *)b->items + i * elem->size);
    }
}

static void expect_same(const struct mc_type *type, const char *a, const char *b) {
    const struct mc_field *fields = type->fields;
    switch (type->kind) {
    case MC_KIND_STR:
    case MC_KIND_CHARS:
        assert_true(mc_str_eq(*(const struct mc_str *)a, *(const struct mc_str *)b));
        break;
    case MC_KIND_VEC:
    case MC_KIND_MAP:
        expect_same_vec(type->elem, (const struct mc_vec *)a, (const struct mc_vec *)b);
        break;
    case MC_KIND_OPT:
        assert_int_equal(a[fields[0].offset], b[fields[0].offset]);
        if (a[fields[0].offset]) {
            expect_same(fields[1].type, a + fields[1].offset, b + fields[1].offset);
        }
        break;
    case MC_KIND_EXPECTED: {
        int32_t error;
        memcpy(&error, a + fields[0].offset, sizeof(error));
        expect_same(fields[0].type, a + fields[0].offset, b + fields[0].offset);
        if (error == 0) {
            expect_same(fields[1].type, a + fields[1].offset, b + fields[1].offset);
        }
        break;
    }
    case MC_KIND_VARIANT: {
        uint8_t tag = (uint8_t)a[fields[0].offset];
        assert_int_equal(tag, b[fields[0].offset]);
        expect_same(fields[tag + 1].type, a + fields[tag + 1].offset, b + fields[tag + 1].offset);
        break;
    }
    case MC_KIND_STRUCT:
    case MC_KIND_PAIR:
    case MC_KIND_ALIAS:
        for (size_t i = 0; i < type->field_count; i++) {
            expect_same(fields[i].type, a + fields[i].offset, b + fields[i].offset);
        }
        break;
    case MC_KIND_VOID:
        break;
    default:
        assert_memory_equal(a, b, type->size);
        break;
    }
}

static void add_literal(const struct mc_type *type, const struct mc_buf *plain,
                        struct mc_buf *out) {
    bool wide = plain->data[0] & 1;
    mc_buf_append(out, plain->data, 4);
    out->data[0] |= 1;
    mc_buf_putc(out, (char)((wide ? plain->data[4] : 0) | 0x04));
    mc_type_literal(type, out);
    mc_buf_putc(out, 0);
    mc_buf_append(out, plain->data + (wide ? 5 : 4), plain->len - (wide ? 5 : 4));
}

static void round_trip(struct filler *f, const struct mc_type *type, uint32_t hash) {
    _Alignas(16) char value[512] = {0}, back[512];
    struct mc_buf body = {0}, literal = {0};
    struct mc_arena arena = {0};
    assert_in_range(type->size, 0, sizeof(value));
    fill(f, type, value);
    mc_wire_encode(type, hash, value, &body);
    memset(back, 0xcc, sizeof(back));
    assert_ok(mc_wire_decode(type, hash, (struct mc_str){body.data, body.len}, &arena, back));
    expect_same(type, value, back);
    add_literal(type, &body, &literal);
    memset(back, 0xcc, sizeof(back));
    assert_ok(mc_wire_decode(type, hash, (struct mc_str){literal.data, literal.len}, &arena, back));
    expect_same(type, value, back);
    mc_buf_free(&body);
    mc_buf_free(&literal);
    mc_arena_free(&arena);
    mc_arena_reset(&f->arena);
}

static void round_trip_table(struct filler *f, const struct mc_rpc_desc *table, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (unsigned v = 0; v < table[i].version_count; v++) {
            const struct mc_rpc_schema *schema = &table[i].versions[v];
            if (schema->args != NULL) {
                round_trip(f, schema->args, schema->args_hash);
            }
            round_trip(f, schema->ret, schema->ret_hash);
        }
    }
}

static void test_random_values_of_all_widths(void **state) {
    static const size_t longest[] = {0, 3, 8, 255, 256, 300};
    struct filler f = {0};
    mc_rng_seed(&f.rng, 20260801);
    for (size_t i = 0; i < MC_ARRAY_LEN(longest); i++) {
        f.longest = longest[i];
        for (int round = 0; round < 20; round++) {
            round_trip_table(&f, mc_master_rpc_table(), MC_MASTER_RPC_COUNT);
            round_trip_table(&f, mc_client_rpc_table(), MC_CLIENT_RPC_COUNT);
        }
    }
    f.longest = 70000; /* only strings: vectors of so long ones would be gigabytes */
    for (int i = 0; i < 20; i++) {
        round_trip(&f, &mc_t_str, mc_type_hash(&mc_t_str));
        round_trip(&f, &mc_t_segment, mc_type_hash(&mc_t_segment));
    }
    mc_arena_free(&f.arena);
}

static void test_a_count_of_more_than_65535(void **state) {
    enum { COUNT = 70000 };
    const struct mc_rpc_desc *rpc = &mc_master_rpc_table()[MC_RPC_BatchExistKey];
    struct mw_e_bool *results = mc_zalloc(COUNT * sizeof(*results));
    for (size_t i = 0; i < COUNT; i++) {
        results[i] = (struct mw_e_bool){i % 3 ? 0 : MC_INVALID_PARAMS, i % 3 == 1};
    }
    struct mc_vec ret = {results, COUNT}, back;
    struct mc_buf body = {0};
    struct mc_arena arena = {0};
    mc_master_rpc_encode_ret(rpc, 0, &ret, &body);
    assert_int_equal(body.data[4], 2 << 3);
    assert_ok(
        mc_master_rpc_decode_ret(rpc, 0, (struct mc_str){body.data, body.len}, &arena, &back));
    assert_int_equal(back.count, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        const struct mw_e_bool *got = (struct mw_e_bool *)back.items + i;
        assert_int_equal(got->error, results[i].error);
        assert_int_equal(got->value, results[i].error ? false : results[i].value);
    }
    free(results);
    mc_buf_free(&body);
    mc_arena_free(&arena);
}

/* Marks the C bytes of a type's fields; each may be described once (alternatives of a variant share
 * theirs). */
static void mark(const struct mc_type *type, size_t at, uint8_t *used, size_t size) {
    switch (type->kind) {
    case MC_KIND_VARIANT:
        for (size_t i = 1; i < type->field_count; i++) {
            uint8_t aside[512] = {0};
            mark(type->fields[i].type, at + type->fields[i].offset, aside, size);
        }
        mark(type->fields[0].type, at + type->fields[0].offset, used, size);
        break;
    case MC_KIND_OPT:
    case MC_KIND_EXPECTED:
    case MC_KIND_STRUCT:
    case MC_KIND_PAIR:
    case MC_KIND_ALIAS:
        for (size_t i = 0; i < type->field_count; i++) {
            mark(type->fields[i].type, at + type->fields[i].offset, used, size);
        }
        break;
    default:
        assert_true(at + type->size <= size);
        for (size_t i = at; i < at + type->size; i++) {
            assert_int_equal(used[i]++, 0);
        }
        break;
    }
    if (type->elem != NULL) {
        uint8_t inside[512] = {0};
        assert_in_range(type->elem->size, 0, sizeof(inside));
        mark(type->elem, 0, inside, type->elem->size);
    }
}

static void test_fields_lie_apart_inside_their_struct(void **state) {
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        for (unsigned v = 0; v < table[i].version_count; v++) {
            uint8_t args[512] = {0}, ret[512] = {0};
            if (table[i].versions[v].args != NULL) {
                mark(table[i].versions[v].args, 0, args, table[i].args_size);
            }
            mark(table[i].versions[v].ret, 0, ret, table[i].ret_size);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_values_of_all_widths),
        cmocka_unit_test(test_a_count_of_more_than_65535),
        cmocka_unit_test(test_fields_lie_apart_inside_their_struct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
