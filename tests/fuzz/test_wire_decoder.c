/*
 * The decoder under mutated messages: it answers success or an error, never reads past its input
 * (which ends at a page that may not be touched), leaves the value alone when it fails, and what it
 * accepts means the same after encoding again.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/support.h"
#include "unit/wire/peer_samples.h"
#include "wire/client_rpc.h"

#define ROUNDS  300000
#define LARGEST 4096
#define VALUE   512

struct fuzzer {
    struct mc_rng rng;
    struct mc_arena arena;
    char *guard; /* the input's end: the page behind cannot be read */
    size_t accepted;
};

static size_t unhex(const char *hex, uint8_t *out) {
    size_t n = 0;
    for (; hex[0] && n < LARGEST; hex += 2) {
        unsigned byte;
        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        out[n++] = (uint8_t)byte;
    }
    return n;
}

static uint64_t below(struct fuzzer *f, uint64_t bound) {
    return mc_rng_below(&f->rng, bound);
}

/* One change of `len` bytes; returns the new length. The hash is mostly left alone, so that the
 * tables are reached. */
static size_t mutate_once(struct fuzzer *f, uint8_t *bytes, size_t len) {
    static const uint8_t telling[] = {0,    1,    2,    4,    5,    0x08, 0x0c,
                                      0x10, 0x18, 0x1c, 0x7f, 0x80, 0xfe, 0xff};
    size_t first = len > 4 && below(f, 10) ? 4 : 0;
    size_t at = len > first ? first + below(f, len - first) : 0;
    switch (below(f, 8)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << below(f, 8));
        return len;
    case 1:
        bytes[at] = telling[below(f, sizeof(telling))];
        return len;
    case 2:
        bytes[at] = (uint8_t)mc_rng_next(&f->rng);
        return len;
    case 3:
        return below(f, len + 1);
    case 4: /* more bytes */
        for (size_t more = 1 + below(f, 16); more > 0 && len < LARGEST; more--) {
            bytes[len++] = (uint8_t)mc_rng_next(&f->rng);
        }
        return len;
    case 5: { /* a piece doubled */
        size_t piece = below(f, len - at + 1);
        piece = piece < LARGEST - len ? piece : LARGEST - len;
        memmove(bytes + at + piece, bytes + at, len - at);
        return len + piece;
    }
    case 6: { /* a piece taken out */
        size_t piece = below(f, len - at + 1);
        memmove(bytes + at, bytes + at + piece, len - at - piece);
        return len - piece;
    }
    default: /* another width, with or without a literal */
        if (len > 4) {
            bytes[0] |= 1;
            memmove(bytes + 5, bytes + 4, len - 4);
            bytes[4] = (uint8_t)(below(f, 4) << 3 | below(f, 4) << 1);
            return len + 1;
        }
        return len;
    }
}

/* What was accepted, encoded, decoded and encoded again gives the same bytes. */
static void expect_stable(struct fuzzer *f, const struct mc_type *type, uint32_t hash,
                          const char *value) {
    _Alignas(16) char back[VALUE];
    struct mc_buf first = {0}, second = {0};
    mc_wire_encode(type, hash, value, &first);
    assert_ok(mc_wire_decode(type, hash, (struct mc_str){first.data, first.len}, &f->arena, back));
    mc_wire_encode(type, hash, back, &second);
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.data, second.data, first.len);
    mc_buf_free(&first);
    mc_buf_free(&second);
}

static void decode_one(struct fuzzer *f, const struct mc_type *type, uint32_t hash,
                       const uint8_t *bytes, size_t len) {
    _Alignas(16) char value[VALUE];
    memset(value, 0x5a, sizeof(value));
    char *input = f->guard - len;
    memcpy(input, bytes, len);
    enum mc_status status =
        mc_wire_decode(type, hash, (struct mc_str){input, len}, &f->arena, value);
    if (status == MC_OK) {
        f->accepted++;
        expect_stable(f, type, hash, value);
    } else {
        assert_true(status == MC_DESERIALIZE_FAIL || status == MC_ERR_WIRE_HASH);
        for (size_t i = 0; i < sizeof(value); i++) {
            assert_int_equal(value[i], 0x5a);
        }
    }
    mc_arena_reset(&f->arena);
}

static void fuzzer_start(struct fuzzer *f, uint64_t seed) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (2 * LARGEST + page - 1) / page * page;
    *f = (struct fuzzer){0};
    mc_rng_seed(&f->rng, seed);
    char *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + room, page, PROT_NONE), 0);
    f->guard = map + room;
}

static const struct mc_type *sample_type(const struct peer_sample *sample, uint32_t *hash) {
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        if (strcmp(table[i].name, sample->rpc) == 0) {
            const struct mc_rpc_schema *schema = &table[i].versions[sample->version];
            *hash = sample->answer ? schema->ret_hash : schema->args_hash;
            return sample->answer ? schema->ret : schema->args;
        }
    }
    return NULL;
}

static void test_mutated_messages(void **state) {
    struct fuzzer f;
    fuzzer_start(&f, 1);
    for (size_t i = 0; i < ROUNDS; i++) {
        uint8_t bytes[2 * LARGEST];
        uint32_t hash = 0;
        const struct peer_sample *sample = &PEER_SAMPLES[below(&f, MC_ARRAY_LEN(PEER_SAMPLES))];
        const struct mc_type *type = sample_type(sample, &hash);
        assert_non_null(type);
        size_t len = unhex(sample->hex, bytes);
        for (size_t changes = below(&f, 4); changes > 0; changes--) {
            len = mutate_once(&f, bytes, len);
        }
        decode_one(&f, type, hash, bytes, len);
    }
    assert_in_range(f.accepted, ROUNDS / 10, ROUNDS - 1);
    mc_arena_free(&f.arena);
}

static void test_random_bytes_behind_every_hash(void **state) {
    struct fuzzer f;
    fuzzer_start(&f, 2);
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    for (size_t round = 0; round < 1000; round++) {
        for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
            const struct mc_rpc_schema *schema =
                &table[i].versions[below(&f, table[i].version_count)];
            const struct mc_type *types[] = {schema->args, schema->ret};
            uint32_t hashes[] = {schema->args_hash, schema->ret_hash};
            size_t side = below(&f, 2), len = 4 + below(&f, 200);
            uint8_t bytes[256];
            for (size_t b = 4; b < len; b++) { /* small numbers pass more checks */
                uint64_t random = mc_rng_next(&f.rng);
                bytes[b] = (uint8_t)(random & 0x100 ? random & 3 : random);
            }
            uint32_t first = hashes[side] | (uint32_t)below(&f, 2);
            memcpy(bytes, &first, sizeof(first));
            if (types[side] != NULL) {
                decode_one(&f, types[side], hashes[side], bytes, len);
            }
        }
    }
    mc_arena_free(&f.arena);
}

/* Counts that promise more than the message holds end in an error before memory is taken
 * for them. */
static void test_huge_counts(void **state) {
    struct fuzzer f;
    fuzzer_start(&f, 3);
    const struct mc_rpc_desc *rpc = &mc_master_rpc_table()[MC_RPC_PutStart];
    static const uint64_t counts[] = {
        2, 255, 65536, UINT32_MAX, (uint64_t)1 << 60, UINT64_MAX / 72, UINT64_MAX};
    for (size_t i = 0; i < MC_ARRAY_LEN(counts); i++) {
        uint8_t bytes[64] = {0};
        uint32_t first = rpc->versions[0].ret_hash | 1;
        memcpy(bytes, &first, 4);
        bytes[4] = 3 << 3;
        bytes[5] = 1;
        memcpy(bytes + 6, &counts[i], 8);
        _Alignas(16) char value[VALUE];
        for (size_t len = 14; len <= sizeof(bytes); len++) {
            struct mc_str body = {(char *)memcpy(f.guard - len, bytes, len), len};
            assert_int_equal(mc_wire_decode(rpc->versions[0].ret, rpc->versions[0].ret_hash, body,
                                            &f.arena, value),
                             MC_DESERIALIZE_FAIL);
        }
    }
    mc_arena_free(&f.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mutated_messages),
        cmocka_unit_test(test_random_bytes_behind_every_hash),
        cmocka_unit_test(test_huge_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
