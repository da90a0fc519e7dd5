/* The decoder of a bucket's .meta takes any bytes: it answers, and what it accepts is consistent.
 */
#include "support/support.h"

#include "tier/bucket_meta.h"

#define ROUNDS 200000

static void encode_some(struct mc_rng *rng, struct mc_buf *text) {
    static char keys[8][16];
    struct mc_bucket_object objects[8];
    struct mc_bucket_meta meta = {objects, mc_rng_below(rng, 9), 0};
    for (size_t i = 0; i < meta.count; i++) {
        size_t len = 1 + mc_rng_below(rng, 15);
        memset(keys[i], (int)mc_rng_below(rng, 256), len);
        objects[i] = (struct mc_bucket_object){
            {keys[i], len}, meta.data_size, 1 + mc_rng_below(rng, 1 << 20)};
        meta.data_size += len + objects[i].size;
    }
    mc_buf_clear(text);
    mc_bucket_meta_encode(&meta, text);
}

static void test_any_bytes(void **state) {
    struct mc_rng rng;
    struct mc_buf text = {0}, again = {0};
    struct mc_arena arena = {0};
    unsigned accepted = 0, refused = 0;
    mc_rng_seed(&rng, 4);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct mc_bucket_meta meta, second;
        encode_some(&rng, &text);
        unsigned changes = (unsigned)mc_rng_below(&rng, 4);
        for (unsigned i = 0; i < changes && text.len > 0; i++) {
            text.data[mc_rng_below(&rng, text.len)] = (char)mc_rng_next(&rng);
        }
        size_t len = mc_rng_below(&rng, 8) == 0 ? mc_rng_below(&rng, text.len + 1) : text.len;
        char *exact = malloc(len + 1); /* so that a sanitizer sees a byte too far */
        memcpy(exact, text.data != NULL ? text.data : "", len);
        char *tight = len > 0 ? realloc(exact, len) : exact;
        enum mc_status status = mc_bucket_meta_decode((struct mc_str){tight, len}, &arena, &meta);
        assert_true(status == MC_OK || status == MC_DESERIALIZE_FAIL);
        assert_true(changes > 0 || len < text.len || status == MC_OK);
        if (status == MC_OK) {
            mc_buf_clear(&again);
            mc_bucket_meta_encode(&meta, &again);
            assert_ok(
                mc_bucket_meta_decode((struct mc_str){again.data, again.len}, &arena, &second));
            assert_int_equal(second.count, meta.count);
            for (size_t i = 0; i < meta.count; i++) {
                assert_true(mc_str_eq(second.objects[i].key, meta.objects[i].key));
                assert_int_equal(second.objects[i].offset, meta.objects[i].offset);
                assert_int_equal(second.objects[i].size, meta.objects[i].size);
            }
        }
        accepted += status == MC_OK;
        refused += status != MC_OK;
        free(tight);
        mc_arena_reset(&arena);
    }
    assert_true(accepted > ROUNDS / 10 && refused > ROUNDS / 100);
    mc_arena_free(&arena);
    mc_buf_free(&text);
    mc_buf_free(&again);
}

static void test_any_trailer(void **state) {
    struct mc_rng rng;
    struct mc_buf text = {0};
    struct mc_tier_entry *entries[8];
    unsigned accepted = 0, refused = 0;
    mc_rng_seed(&rng, 5);
    for (unsigned i = 0; i < 8; i++) {
        entries[i] = mc_tier_entry_make(MC_STR("k"));
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t count = 1 + mc_rng_below(&rng, 8);
        for (size_t i = 0; i < count; i++) {
            entries[i]->offset = (i > 0 ? entries[i - 1]->offset : 0) + 1 + mc_rng_below(&rng, 99);
            entries[i]->crc = (uint32_t)mc_rng_next(&rng);
            entries[i]->tag = mc_rng_next(&rng);
        }
        mc_buf_clear(&text);
        mc_bucket_trailer_encode(entries, count, &text);
        assert_int_equal(text.len, mc_bucket_trailer_bytes(count));
        bool changed = mc_rng_below(&rng, 2) == 1;
        size_t len = changed ? mc_rng_below(&rng, text.len + 1) : text.len;
        char *tight = malloc(len > 0 ? len : 1);
        memcpy(tight, text.data, len);
        if (changed && len > 0) {
            tight[mc_rng_below(&rng, len)] ^= (char)(1 + mc_rng_below(&rng, 255));
        }
        size_t rows = mc_bucket_trailer_rows((struct mc_str){tight, len});
        assert_int_equal(rows, changed ? 0 : count);
        for (size_t i = 0; i < rows; i++) {
            uint32_t crc;
            uint64_t tag;
            assert_true(mc_bucket_trailer_find((struct mc_str){tight, len}, rows,
                                               entries[i]->offset, &crc, &tag));
            assert_int_equal(crc, entries[i]->crc);
            assert_int_equal(tag, entries[i]->tag);
        }
        accepted += rows > 0;
        refused += rows == 0;
        free(tight);
    }
    assert_true(accepted > 0 && refused > 0);
    for (unsigned i = 0; i < 8; i++) {
        free(entries[i]);
    }
    mc_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_bytes),
                                       cmocka_unit_test(test_any_trailer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
