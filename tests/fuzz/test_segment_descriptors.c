/*
 * Mutated descriptors: the decoder never reads past its input (ASan watches), and what it accepts
 * keeps the rules that the engine relies on.
 */
#include "support/support.h"
#include "base/log.h"
#include "wire/segment_desc.h"

#define ROUNDS 60000

static const char *const seeds[] = {
    "{\"buffers\":[{\"addr\":140000000008192,\"length\":4096,\"name\":\"cpu:1\"},{\"addr\":1,"
    "\"length\":8192,\"name\":\"*\"}],\"name\":\"10.0.0.2:15231\",\"protocol\":\"tcp\","
    "\"tcp_data_port\":15999,\"tcp_proto_version\":2,\"timestamp\":\"2026-08-22 10:00:00.123456\"}",
    "{\"name\":\"a\",\"protocol\":[\"tcp\"],\"buffers\":[{\"addr\":1,\"length\":1,\"name\":\"*\"}],"
    "\"mooncake_c\":{\"engine_id\":[\"0000000000000001\",\"0000000000000002\"],\"boot_id\":\"b\","
    "\"pid\":1,\"shm_socket\":\"s\",\"shm\":[[1,1,true]]}}",
};
static const char *const pieces[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     "\"",
                                     ":",
                                     ",",
                                     "null",
                                     "-1",
                                     "1e999",
                                     "0",
                                     "true",
                                     "\\u0000",
                                     "\xff",
                                     "18446744073709551615",
                                     "9223372036854775807"};

static void mutate(struct mc_rng *rng, struct mc_buf *text) {
    uint64_t times = 1 + mc_rng_below(rng, 4);
    while (times-- > 0 && text->len > 0) {
        size_t at = (size_t)mc_rng_below(rng, text->len);
        switch (mc_rng_below(rng, 4)) {
        case 0:
            text->data[at] = (char)mc_rng_next(rng);
            break;
        case 1:
            text->len = at;
            break;
        case 2: {
            size_t n = (size_t)mc_rng_below(rng, text->len - at) + 1;
            memmove(text->data + at, text->data + at + n, text->len - at - n);
            text->len -= n;
            break;
        }
        default: {
            const char *piece = pieces[mc_rng_below(rng, MC_ARRAY_LEN(pieces))];
            size_t n = strlen(piece);
            mc_buf_reserve(text, n);
            memmove(text->data + at + n, text->data + at, text->len - at);
            memcpy(text->data + at, piece, n);
            text->len += n;
        }
        }
    }
}

static void check(const struct mc_segment_desc *d) {
    assert_true(d->name[0] != '\0' && strnlen(d->name, sizeof(d->name)) < sizeof(d->name));
    assert_true(d->protocol[0] != '\0' && d->tcp_proto >= 1);
    assert_true(d->buffer_count <= MC_SEGMENT_BUFFERS_MAX);
    for (size_t i = 0; i < d->buffer_count; i++) {
        const struct mc_segment_desc_buffer *b = &d->buffers[i];
        assert_true(b->addr != 0 && b->length != 0 && b->length <= UINT64_MAX - b->addr);
        assert_true(b->location[0] != '\0' && b->shm_slot >= -1);
        assert_true(i == 0 || d->buffers[i - 1].addr <= b->addr);
    }
}

static void mutated_descriptors_are_refused_or_usable(void **state) {
    struct mc_rng rng;
    size_t accepted = 0, refused = 0;
    mc_rng_seed(&rng, 20260822);
    for (int i = 0; i < ROUNDS; i++) {
        struct mc_buf text = {0};
        struct mc_segment_desc d;
        mc_buf_puts(&text, seeds[i % MC_ARRAY_LEN(seeds)]);
        if (i >= (int)MC_ARRAY_LEN(seeds)) {
            mutate(&rng, &text);
        }
        char *exact = malloc(text.len + 1); /* so that one byte too far is seen */
        char *tight = realloc(exact, text.len ? text.len : 1);
        memcpy(tight, text.data, text.len);
        if (mc_segment_desc_decode((struct mc_str){tight, text.len}, &d) == MC_OK) {
            check(&d);
            mc_segment_desc_free(&d);
            accepted++;
        } else {
            refused++;
        }
        free(tight);
        mc_buf_free(&text);
    }
    assert_true(accepted > ROUNDS / 100);
    assert_true(refused > ROUNDS / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_descriptors_are_refused_or_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
