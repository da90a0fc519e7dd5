/*
 * Two processes, by tcp, by mapped memory and by the kernel's copy: 1 B to 64 MiB, odd addresses,
 * batches of 1 to 1000, several threads; each byte is compared at both ends. MC_TEST_THREADS.
 */
#include <pthread.h>

#include "integration/te/te_peer.h"

#ifdef __SANITIZE_THREAD__
#define LARGEST (4u << 20) /* the sanitizer is slow on every byte */
#else
#define LARGEST (64u << 20)
#endif
#define ARENA   (LARGEST + (1u << 20))
#define THREADS 4

struct scene {
    struct peer peer;
    struct mc_engine *engine;
    mc_segment_id segment;
    const char *transport;
};

static void begin(struct scene *s, const char *transport) {
    s->transport = transport;
    bool tcp = strcmp(transport, "tcp") == 0;
    peer_start(&s->peer, ARENA, strcmp(transport, "mapped") == 0, tcp, 0);
    s->engine = peer_engine(tcp, 0);
    assert_ok(mc_segment_open(s->engine, s->peer.hello.name, &s->segment));
}

static void end(struct scene *s) {
    bool tcp = strcmp(s->transport, "tcp") == 0;
    const char *used = tcp ? "mooncake_te_slices_total{transport=\"tcp\",op=\"read\"}"
                           : "mooncake_te_slices_total{transport=\"shm\",op=\"read\"}";
    assert_true(te_counter(s->engine, used) > 0);
    assert_true(te_counter(s->engine, "mooncake_te_slices_total{transport=\"tcp\",op=\"write\"}") ==
                    0 ||
                tcp);
    assert_int_equal(te_counter(s->engine, "mooncake_te_tasks_failed_total"), 0);
    assert_int_equal(te_counter(s->engine, "mooncake_te_slice_failures_total{transport=\"tcp\"}"),
                     0);
    mc_engine_destroy(s->engine);
    peer_stop(&s->peer);
}

static enum mc_status move_one(struct scene *s, enum mc_transfer_op op, void *local,
                               uint64_t offset, uint64_t length) {
    struct mc_transfer_request r = {op, local, s->segment, s->peer.hello.addr + offset, length};
    return mc_transfer(s->engine, &r, 1, mc_deadline_in_ms(60000));
}

static void move_sizes(struct scene *s) {
    static const uint64_t sizes[] = {
        1, 2, 3, 63, 511, 4096, 4097, 65535, 1u << 20, (8u << 20) + 13, LARGEST};
    char *local = malloc(LARGEST + 64);
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes) && sizes[i] <= LARGEST; i++) {
        uint64_t offset = 1 + i * 5, length = sizes[i];
        mc_test_fill(local + i, length, i + 1);
        assert_ok(move_one(s, MC_TRANSFER_WRITE, local + i, offset, length));
        assert_int_equal(peer_tell(&s->peer, PEER_VERIFY, offset, length, i + 1), length);
        assert_true(peer_tell(&s->peer, PEER_FILL, offset, length, i + 100));
        memset(local, 0x77, length + 64);
        assert_ok(move_one(s, MC_TRANSFER_READ, local + 7, offset, length));
        mc_test_verify(local + 7, length, i + 100);
        assert_int_equal(local[6], 0x77);
        assert_int_equal(local[7 + length], 0x77);
    }
    free(local);
}

static void move_batches(struct scene *s) {
    static const size_t counts[] = {1, 16, 128, 1000};
    const uint64_t each = 1021;
    for (size_t c = 0; c < MC_ARRAY_LEN(counts); c++) {
        size_t count = counts[c];
        struct mc_transfer_request *requests = calloc(count, sizeof(*requests));
        char *local = malloc(count * each);
        struct mc_batch *batch = NULL;
        assert_true(peer_tell(&s->peer, PEER_FILL, 3, count * each, count));
        for (size_t i = 0; i < count;
             i++) { /* backwards, so that an order is not taken for granted */
            size_t at = count - 1 - i;
            requests[i] =
                (struct mc_transfer_request){MC_TRANSFER_READ, local + at * each, s->segment,
                                             s->peer.hello.addr + 3 + at * each, each};
        }
        assert_ok(mc_batch_create(s->engine, count, &batch));
        assert_ok(mc_batch_submit(batch, requests, count, mc_deadline_in_ms(60000)));
        assert_ok(mc_batch_wait(batch, mc_deadline_in_ms(60000)));
        mc_test_verify(local, count * each, count);
        mc_test_fill(local, count * each, count + 1);
        for (size_t i = 0; i < count; i++) {
            requests[i].op = MC_TRANSFER_WRITE;
        }
        assert_ok(mc_batch_submit(batch, requests, count, mc_deadline_in_ms(60000)));
        assert_ok(mc_batch_wait(batch, mc_deadline_in_ms(60000)));
        assert_int_equal(peer_tell(&s->peer, PEER_VERIFY, 3, count * each, count + 1),
                         count * each);
        assert_ok(mc_batch_free(batch));
        free(local);
        free(requests);
    }
}

struct work {
    struct scene *scene;
    unsigned index;
    intptr_t failures;
};

static void *thread_main(void *arg) {
    struct work *w = arg;
    uint64_t region = ARENA / THREADS, base = w->index * region;
    char *local = malloc(300000), *back = malloc(300000);
    for (unsigned round = 0; round < 30; round++) {
        uint64_t length = 1 + (round * 104729u + w->index * 7u) % 299999u;
        uint64_t offset = base + round % 17;
        mc_test_fill(local, length, w->index * 1000 + round);
        w->failures += move_one(w->scene, MC_TRANSFER_WRITE, local, offset, length) != MC_OK;
        w->failures += move_one(w->scene, MC_TRANSFER_READ, back, offset, length) != MC_OK;
        w->failures += memcmp(local, back, length) != 0;
    }
    free(local);
    free(back);
    return NULL;
}

static void move_in_threads(struct scene *s) {
    pthread_t threads[THREADS];
    struct work work[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        work[i] = (struct work){s, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &work[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(work[i].failures, 0);
    }
}

static void by(const char *transport) {
    struct scene s;
    begin(&s, transport);
    move_sizes(&s);
    move_batches(&s);
    move_in_threads(&s);
    end(&s);
}

static void by_tcp(void **state) {
    by("tcp");
}
static void by_mapped_memory(void **state) {
    by("mapped");
}
static void by_the_kernels_copy(void **state) {
    by("copied");
}

static void wrong_addresses_are_errors_by_every_way(void **state) {
    static const char *const ways[] = {"tcp", "mapped", "copied"};
    for (size_t w = 0; w < MC_ARRAY_LEN(ways); w++) {
        struct scene s;
        char local[64];
        begin(&s, ways[w]);
        memset(local, 0x42, sizeof(local));
        assert_int_equal(move_one(&s, MC_TRANSFER_READ, local, ARENA, 1), MC_ERR_NOT_REGISTERED);
        assert_int_equal(move_one(&s, MC_TRANSFER_READ, local, ARENA - 1, 2),
                         MC_ERR_NOT_REGISTERED);
        assert_int_equal(move_one(&s, MC_TRANSFER_READ, local, (uint64_t)-1, 1),
                         MC_ERR_NOT_REGISTERED);
        assert_int_equal(move_one(&s, MC_TRANSFER_WRITE, local, 10, UINT64_MAX - 5),
                         MC_INVALID_PARAMS);
        struct mc_transfer_request wraps = {MC_TRANSFER_READ, local, s.segment, UINT64_MAX - 4, 64};
        assert_int_equal(mc_transfer(s.engine, &wraps, 1, mc_deadline_in_ms(5000)),
                         MC_ERR_NOT_REGISTERED);
        for (size_t i = 0; i < sizeof(local); i++) {
            assert_int_equal(local[i], 0x42);
        }
        assert_ok(move_one(&s, MC_TRANSFER_READ, local, ARENA - 64, 64));
        mc_engine_destroy(s.engine);
        peer_stop(&s.peer);
    }
}

int main(int argc, char **argv) {
    peer_take_over(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_tcp),
        cmocka_unit_test(by_mapped_memory),
        cmocka_unit_test(by_the_kernels_copy),
        cmocka_unit_test(wrong_addresses_are_errors_by_every_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
