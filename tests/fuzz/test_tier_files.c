/* The decoders of the tier's files take any bytes: each answers, and what it accepts is consistent.
 * (Buckets: test_bucket_metadata.c.) */
#include "support/support.h"

#include "tier/keyfile.h"
#include "tier/offset_meta.h"

#define ROUNDS       200000
#define STATE_ROUNDS 3000

/* A copy of exactly that length, so that a sanitizer sees a byte too far. */
static char *exact(struct mc_str text) {
    char *copy = malloc(text.len > 0 ? text.len : 1);
    memcpy(copy, text.len > 0 ? text.ptr : "", text.len);
    return copy;
}

static void test_any_file_of_a_key(void **state) {
    struct mc_rng rng;
    struct mc_buf text = {0}, again = {0};
    unsigned accepted = 0, refused = 0;
    mc_rng_seed(&rng, 11);
    for (unsigned round = 0; round < ROUNDS; round++) {
        char key[40];
        size_t key_len = 1 + mc_rng_below(&rng, sizeof(key));
        uint64_t size = 1 + mc_rng_next(&rng) % (1ull << mc_rng_below(&rng, 40));
        memset(key, (int)mc_rng_below(&rng, 256), key_len);
        mc_buf_clear(&text);
        mc_keyfile_head((struct mc_str){key, key_len}, size, &text);
        assert_int_equal(text.len, mc_keyfile_head_bytes(key_len, size));
        uint64_t file_bytes = text.len + size;
        unsigned changes = (unsigned)mc_rng_below(&rng, 3);
        for (unsigned i = 0; i < changes; i++) {
            text.data[mc_rng_below(&rng, text.len)] = (char)mc_rng_next(&rng);
        }
        size_t len = mc_rng_below(&rng, 8) == 0 ? mc_rng_below(&rng, text.len) : text.len;
        char *tight = exact((struct mc_str){text.data, len});
        struct mc_str found;
        uint64_t value_size;
        enum mc_status status =
            mc_keyfile_decode((struct mc_str){tight, len}, file_bytes, &found, &value_size);
        assert_true(status == MC_OK || status == MC_DESERIALIZE_FAIL);
        assert_true(changes > 0 || len < text.len || status == MC_OK);
        if (status == MC_OK) { /* what it says is what the file is */
            mc_buf_clear(&again);
            mc_keyfile_head(found, value_size, &again);
            assert_true(again.len <= len && found.ptr >= tight &&
                        found.ptr + found.len <= tight + len);
            assert_true(value_size < file_bytes);
        }
        accepted += status == MC_OK;
        refused += status != MC_OK;
        free(tight);
    }
    assert_true(accepted > ROUNDS / 10 && refused > ROUNDS / 100);
    mc_buf_free(&text);
    mc_buf_free(&again);
}

static void test_any_record(void **state) {
    struct mc_rng rng;
    unsigned accepted = 0, refused = 0;
    mc_rng_seed(&rng, 12);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct mc_record record = {.key_len = 1 + (uint32_t)mc_rng_below(&rng, 5000),
                                   .value_len = 1 + (uint32_t)mc_rng_below(&rng, 1u << 30),
                                   .flags = (uint32_t)mc_rng_below(&rng, 2),
                                   .crc = (uint32_t)mc_rng_next(&rng),
                                   .seq = mc_rng_next(&rng)};
        struct mc_record out;
        char bytes[MC_RECORD_HEAD];
        uint64_t room = mc_record_value_at(record.key_len) + record.value_len;
        mc_record_encode(&record, bytes);
        assert_true(mc_record_decode(bytes, room, &out));
        assert_memory_equal(&out, &record, sizeof(out));
        assert_false(mc_record_decode(bytes, room - 1, &out));
        bytes[mc_rng_below(&rng, sizeof(bytes))] = (char)mc_rng_next(&rng);
        if (mc_record_decode(bytes, room, &out)) {
            assert_true(mc_record_value_at(out.key_len) + out.value_len <= room);
            assert_true(out.key_len > 0 && out.value_len > 0);
            accepted++;
        } else {
            refused++;
        }
    }
    assert_true(accepted > 0 && refused > 0);
}

/* Some allocator, after takes and gives. */
static struct mc_extents *some_extents(struct mc_rng *rng, uint32_t units, uint64_t *asked) {
    struct mc_extents *extents = mc_extents_create(units);
    uint32_t names[64];
    size_t count = 0;
    for (unsigned i = 0; i < 100; i++) {
        if (count < 64 && mc_rng_below(rng, 3) > 0) {
            uint32_t wanted = 1 + (uint32_t)mc_rng_below(rng, units / 16);
            count += mc_extents_take(extents, wanted, &names[count]);
        } else if (count > 0) {
            size_t which = mc_rng_below(rng, count);
            mc_extents_give(extents, names[which]);
            names[which] = names[--count];
        }
    }
    *asked = mc_extents_taken_units(extents);
    return extents;
}

static void same_pieces(const struct mc_extents *extents, const struct mc_offset_meta *meta) {
    uint32_t name = MC_EXTENTS_NONE;
    struct mc_extent at;
    size_t n = 0;
    for (bool taken; mc_extents_next(extents, &name, &at, &taken);) {
        if (taken) {
            assert_true(n < meta->count);
            assert_memory_equal(&at, &meta->taken[n], sizeof(at));
            n++;
        }
    }
    assert_int_equal(n, meta->count);
}

static void test_any_state_of_the_allocator(void **state) {
    struct mc_rng rng;
    struct mc_buf text = {0};
    struct mc_arena arena = {0};
    unsigned accepted = 0, refused = 0;
    mc_rng_seed(&rng, 13);
    for (unsigned round = 0; round < STATE_ROUNDS; round++) {
        uint64_t capacity = 1 << (16 + mc_rng_below(&rng, 10)), asked;
        struct mc_extents *extents = some_extents(&rng, (uint32_t)capacity, &asked);
        mc_buf_clear(&text);
        mc_offset_meta_encode(extents, capacity, round, asked, &text);
        unsigned changes = (unsigned)mc_rng_below(&rng, 4);
        for (unsigned i = 0; i < changes; i++) {
            /* most of the text is spare nodes: half of the changes hit what matters */
            size_t end = mc_rng_below(&rng, 2) == 0 ? text.len : 2400;
            text.data[mc_rng_below(&rng, end)] = (char)mc_rng_next(&rng);
        }
        size_t len = mc_rng_below(&rng, 8) == 0 ? mc_rng_below(&rng, text.len) : text.len;
        char *tight = exact((struct mc_str){text.data, len});
        struct mc_offset_meta meta;
        enum mc_status status = mc_offset_meta_decode((struct mc_str){tight, len}, &arena, &meta);
        assert_true(status == MC_OK || status == MC_DESERIALIZE_FAIL);
        if (status == MC_OK) { /* whatever it says can be loaded, and is so then */
            uint32_t units = (uint32_t)(meta.capacity_bytes >> meta.shift);
            struct mc_extents *loaded = mc_extents_create(units);
            uint32_t *names = mc_arena_alloc(&arena, (meta.count + 1) * sizeof(*names));
            mc_extents_load(loaded, meta.taken, meta.count, names);
            same_pieces(loaded, &meta);
            mc_extents_destroy(loaded);
        }
        if (changes == 0 && len == text.len) {
            assert_int_equal(status, MC_OK);
            assert_int_equal(meta.insert_seq, round);
            same_pieces(extents, &meta);
        }
        accepted += status == MC_OK;
        refused += status != MC_OK;
        free(tight);
        mc_extents_destroy(extents);
        mc_arena_reset(&arena);
    }
    assert_true(accepted > STATE_ROUNDS / 10 && refused > STATE_ROUNDS / 100);
    mc_arena_free(&arena);
    mc_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_file_of_a_key),
                                       cmocka_unit_test(test_any_record),
                                       cmocka_unit_test(test_any_state_of_the_allocator)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
