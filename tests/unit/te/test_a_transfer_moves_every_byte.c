/*
 * Inside one engine, and between two engines of one process by every transport: what is read or
 * written is what was there, for sizes from one byte, for odd addresses, for batches.
 * MC_TEST_THREADS.
 */
#include <pthread.h>
#include <stdlib.h>

#include "mooncake/transfer.h"
#include "support/support.h"
#include "unit/te/te_support.h"

#define ARENA (8u << 20)

struct pair {
    struct mc_engine *a;
    struct mc_engine *b;
    char *b_memory; /* of b, registered or allocated */
    mc_segment_id segment;
};

static struct mc_engine *engine(bool disable_shm, bool disable_local) {
    struct mc_engine_options options;
    struct mc_engine *e = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = disable_shm;
    options.disable_local = disable_local;
    assert_ok(mc_engine_create(&options, &e));
    return e;
}

static void open_pair(struct pair *p, bool disable_shm, bool allocated) {
    p->a = engine(disable_shm, false);
    p->b = engine(disable_shm, false);
    if (allocated) {
        void *memory = NULL;
        assert_ok(mc_memory_alloc(p->b, ARENA, "cpu:0", &memory));
        p->b_memory = memory;
    } else {
        p->b_memory = malloc(ARENA);
        assert_ok(mc_memory_register(p->b, p->b_memory, ARENA, "cpu:0", 0));
    }
    assert_ok(mc_segment_open(p->a, mc_engine_name(p->b), &p->segment));
    assert_int_not_equal(p->segment, MC_LOCAL_SEGMENT);
}

static void close_pair(struct pair *p, bool allocated) {
    mc_engine_destroy(p->a);
    if (allocated) {
        assert_ok(mc_memory_free(p->b, p->b_memory));
    } else {
        assert_ok(mc_memory_unregister(p->b, p->b_memory));
        free(p->b_memory);
    }
    mc_engine_destroy(p->b);
}

/* Writes a pattern to the peer at an odd place, reads it back elsewhere, and looks at the bytes
 * beside it. */
static void move(struct mc_engine *e, mc_segment_id segment, char *remote, size_t length,
                 uint64_t seed) {
    char *out = malloc(length + 2), *in = malloc(length + 2);
    mc_test_fill(out, length, seed);
    memset(in, 0x5a, length + 2);
    remote[0] = remote[length + 1] = 0x33;
    struct mc_transfer_request write = {MC_TRANSFER_WRITE, out, segment,
                                        (uint64_t)(uintptr_t)(remote + 1), length};
    assert_ok(mc_transfer(e, &write, 1, mc_deadline_in_ms(10000)));
    mc_test_verify(remote + 1, length, seed);
    assert_int_equal(remote[0], 0x33);
    assert_int_equal(remote[length + 1], 0x33);
    struct mc_transfer_request read = {MC_TRANSFER_READ, in + 1, segment,
                                       (uint64_t)(uintptr_t)(remote + 1), length};
    assert_ok(mc_transfer(e, &read, 1, mc_deadline_in_ms(10000)));
    mc_test_verify(in + 1, length, seed);
    assert_int_equal(in[0], 0x5a);
    assert_int_equal(in[length + 1], 0x5a);
    free(out);
    free(in);
}

static void move_sizes(struct mc_engine *e, mc_segment_id segment, char *remote) {
    static const size_t sizes[] = {1, 7, 64, 4095, 4096, 65537, 1u << 20, (5u << 20) + 3};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        move(e, segment, remote + i * 3, sizes[i], i + 1);
    }
}

static void move_batch(struct mc_engine *e, mc_segment_id segment, char *remote, size_t count) {
    const size_t each = 4001;
    struct mc_batch *batch = NULL;
    struct mc_transfer_request *requests = calloc(count, sizeof(*requests));
    char *local = malloc(count * each);
    assert_true(count * each <= ARENA);
    mc_test_fill(remote, count * each, count);
    for (size_t i = 0; i < count; i++) {
        requests[i] = (struct mc_transfer_request){MC_TRANSFER_READ, local + i * each, segment,
                                                   (uint64_t)(uintptr_t)(remote + i * each), each};
    }
    assert_ok(mc_batch_create(e, count, &batch));
    assert_ok(mc_batch_submit(batch, requests, count, mc_deadline_in_ms(20000)));
    assert_ok(mc_batch_wait(batch, mc_deadline_in_ms(20000)));
    for (size_t i = 0; i < count; i++) {
        struct mc_transfer_status status;
        assert_ok(mc_batch_task(batch, i, &status));
        assert_int_equal(status.state, MC_TRANSFER_COMPLETED);
        assert_int_equal(status.transferred_bytes, each);
    }
    mc_test_verify(local, count * each, count);
    memset(local, 0, count * each);
    assert_ok(mc_batch_submit(batch, requests, count, MC_WAIT_FOREVER)); /* a batch goes on */
    assert_ok(mc_batch_wait(batch, mc_deadline_in_ms(20000)));
    mc_test_verify(local, count * each, count);
    memset(local, 0, count * each);
    assert_ok(mc_transfer(e, requests, count, mc_deadline_in_ms(20000)));
    mc_test_verify(local, count * each, count);
    struct mc_transfer_status status;
    assert_int_equal(mc_batch_task(batch, 2 * count, &status), MC_TASK_NOT_FOUND);
    assert_ok(mc_batch_free(batch));
    free(requests);
    free(local);
}

static void move_all(struct mc_engine *e, mc_segment_id segment, char *remote) {
    move_sizes(e, segment, remote);
    move_batch(e, segment, remote, 1);
    move_batch(e, segment, remote, 16);
    move_batch(e, segment, remote, 128);
    move_batch(e, segment, remote, 1000);
}

static void local_memory_is_copied(void **state) {
    struct mc_engine *e = engine(false, false);
    mc_segment_id segment = -1;
    char *memory = malloc(ARENA);
    assert_ok(mc_memory_register(e, memory, ARENA, "*", 0));
    assert_ok(mc_segment_open(e, mc_engine_name(e), &segment));
    assert_int_equal(segment, MC_LOCAL_SEGMENT);
    move_all(e, segment, memory);
    assert_true(te_counter(e, "mooncake_te_transfer_bytes_total{transport=\"local\",op=\"read\"}") >
                0);
    assert_ok(mc_memory_unregister(e, memory));
    struct mc_transfer_request gone = {MC_TRANSFER_READ, memory, segment,
                                       (uint64_t)(uintptr_t)memory + 8, 8};
    assert_int_equal(mc_transfer(e, &gone, 1, mc_deadline_in_ms(1000)), MC_ERR_NOT_REGISTERED);
    mc_engine_destroy(e);
    free(memory);
}

#ifndef __SANITIZE_THREAD__
static void the_own_segment_is_reachable_without_memcpy(void **state) {
    struct mc_engine *e = engine(false, true);
    char *memory = malloc(ARENA);
    assert_ok(mc_memory_register(e, memory, ARENA, "*", 0));
    move_all(e, MC_LOCAL_SEGMENT, memory);
    mc_engine_destroy(e);
    free(memory);
}

static void tcp_moves_every_byte(void **state) {
    struct pair p;
    open_pair(&p, true, false);
    move_all(p.a, p.segment, p.b_memory);
    assert_true(te_counter(p.a, "mooncake_te_transfer_bytes_total{transport=\"tcp\",op=\"read\"}") >
                1000 * 4001);
    assert_int_equal(te_counter(p.a, "mooncake_te_slice_failures_total{transport=\"tcp\"}"), 0);
    close_pair(&p, false);
}

#endif

static void shared_memory_moves_every_byte(bool allocated) {
    struct pair p;
    open_pair(&p, false, allocated);
    move_all(p.a, p.segment, p.b_memory);
    assert_true(te_counter(p.a, "mooncake_te_transfer_bytes_total{transport=\"shm\",op=\"read\"}") >
                1000 * 4001);
    assert_int_equal(te_counter(p.a, "mooncake_te_slices_total{transport=\"tcp\",op=\"read\"}"), 0);
    assert_int_equal(te_counter(p.a, "mooncake_te_slice_failures_total{transport=\"shm\"}"), 0);
    assert_int_equal(te_counter(p.b, "mooncake_te_shm_guests"), 1);
    close_pair(&p, allocated);
}

static void allocated_memory_is_mapped(void **state) {
    shared_memory_moves_every_byte(true);
}

static void registered_memory_is_copied_by_the_kernel(void **state) {
    shared_memory_moves_every_byte(false);
}

struct thread_work {
    struct mc_engine *engine;
    mc_segment_id segment;
    char *remote;
    unsigned index;
};

static void *thread_main(void *arg) {
    struct thread_work *work = arg;
    for (unsigned round = 0; round < 20; round++) {
        move(work->engine, work->segment, work->remote, 1 + (round * 7919) % 100000,
             work->index * 100 + round);
    }
    return NULL;
}

static void threads_share_an_engine(struct pair *p) {
    pthread_t threads[4];
    struct thread_work work[4];
    for (unsigned i = 0; i < 4; i++) {
        work[i] = (struct thread_work){p->a, p->segment, p->b_memory + i * (ARENA / 4), i};
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &work[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void shm_serves_several_threads(void **state) {
    struct pair p;
    open_pair(&p, false, true);
    threads_share_an_engine(&p);
    close_pair(&p, true);
}

#ifndef __SANITIZE_THREAD__
static void tcp_serves_several_threads(void **state) {
    struct pair p;
    open_pair(&p, true, false);
    threads_share_an_engine(&p);
    close_pair(&p, false);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_memory_is_copied),
#ifndef __SANITIZE_THREAD__
        /* TSan does not see that bytes which went through a socket order what both ends do to
         * memory; it watches tcp between processes (tests/integration/te). */
        cmocka_unit_test(the_own_segment_is_reachable_without_memcpy),
        cmocka_unit_test(tcp_moves_every_byte),
        cmocka_unit_test(tcp_serves_several_threads),
#endif
        cmocka_unit_test(allocated_memory_is_mapped),
        cmocka_unit_test(registered_memory_is_copied_by_the_kernel),
        cmocka_unit_test(shm_serves_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
