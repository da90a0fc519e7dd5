/*
 * Registration (overlaps, wrapping ranges, limits), unregistering that waits for users, opened
 * segments and ids, notifications. MC_TEST_THREADS.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "unit/te/te_support.h"

static struct mc_engine *engine(void) {
    struct mc_engine_options options;
    struct mc_engine *e = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    assert_ok(mc_engine_create(&options, &e));
    return e;
}

static void ranges_are_disjoint_and_do_not_wrap(void **state) {
    struct mc_engine *e = engine();
    char *m = malloc(10000);
    assert_ok(mc_memory_register(e, m + 1000, 1000, "cpu:0", 0));
    assert_int_equal(mc_memory_register(e, m + 1000, 1000, "*", 0), MC_ERR_OVERLAP);
    assert_int_equal(mc_memory_register(e, m + 1999, 1, "*", 0), MC_ERR_OVERLAP);
    assert_int_equal(mc_memory_register(e, m, 1001, "*", 0), MC_ERR_OVERLAP);
    assert_int_equal(mc_memory_register(e, m, 10000, "*", 0), MC_ERR_OVERLAP);
    assert_int_equal(mc_memory_register(e, m + 1500, 5000, "*", 0), MC_ERR_OVERLAP);
    assert_ok(mc_memory_register(e, m, 1000, "*", 0));
    assert_ok(mc_memory_register(e, m + 2000, 1000, "*", MC_MEMORY_LOCAL_ONLY));
    assert_int_equal(mc_memory_register(e, m + 4000, 0, "*", 0), MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_register(e, NULL, 10, "*", 0), MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_register(e, m + 4000, SIZE_MAX, "*", 0), MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_register(e, m + 4000, SIZE_MAX - (size_t)m - 3999, "*", 0),
                     MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_register(e, m + 4000, 10, "", 0), MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_register(e, m + 4000, 10, "\xff", 0), MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_register(e, m + 4000, 10, "*", 128), MC_INVALID_PARAMS);

    uint64_t at = (uint64_t)(uintptr_t)m;
    struct mc_memory *found = mc_memory_acquire(e, at + 1000, 1000);
    assert_non_null(found);
    assert_int_equal(found->addr, at + 1000);
    mc_memory_release(found);
    assert_null(mc_memory_acquire(e, at + 999, 2)); /* two buffers, side by side */
    assert_null(mc_memory_acquire(e, at + 1999, 2));
    assert_null(mc_memory_acquire(e, at + 2000, 10));         /* local only */
    assert_null(mc_memory_acquire(e, at + 1500, UINT64_MAX)); /* wraps */
    assert_null(mc_memory_acquire(e, UINT64_MAX, 2));
    assert_null(mc_memory_acquire(e, 0, 1));
    assert_int_equal(mc_memory_unregister(e, m + 1), MC_ERR_NOT_FOUND);
    assert_ok(mc_memory_unregister(e, m + 1000));
    assert_int_equal(mc_memory_unregister(e, m + 1000), MC_ERR_NOT_FOUND);
    assert_null(mc_memory_acquire(e, at + 1000, 1));
    assert_ok(mc_memory_register(e, m + 1000, 1000, "*", 0));
    mc_engine_destroy(e);
    free(m);
}

static void allocated_memory_is_zero_aligned_and_freed_as_such(void **state) {
    struct mc_engine *e = engine();
    void *m = NULL, *small = NULL;
    assert_ok(mc_memory_alloc(e, 3 * 4096 + 5, "cpu:1", &m));
    assert_int_equal((uintptr_t)m % 4096, 0);
    for (size_t i = 0; i < 3 * 4096 + 5; i++) {
        assert_int_equal(((char *)m)[i], 0);
    }
    struct mc_buffer_info info[4];
    size_t count = 0;
    assert_ok(mc_segment_buffers(e, MC_LOCAL_SEGMENT, info, 4, &count));
    assert_int_equal(count, 1);
    assert_int_equal(info[0].addr, (uintptr_t)m);
    assert_int_equal(info[0].length, 3 * 4096 + 5);
    assert_string_equal(info[0].location, "cpu:1");
    /* It is freed, not unregistered. */
    assert_int_equal(mc_memory_unregister(e, m), MC_ERR_NOT_FOUND);
    assert_int_equal(mc_memory_alloc(e, 0, "*", &small), MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_alloc(e, SIZE_MAX, "*", &small), MC_INVALID_PARAMS);
    /* Under that location nobody would see it. */
    assert_int_equal(mc_memory_alloc(e, 4096, "staging", &small), MC_INVALID_PARAMS);
    assert_int_equal(mc_memory_register(e, info, sizeof(info), "staging", 0), MC_INVALID_PARAMS);
    assert_ok(mc_memory_free(e, m));
    assert_int_equal(mc_memory_free(e, m), MC_ERR_NOT_FOUND);
    mc_engine_destroy(e);
}

/* A peer that still knows the old one must not find the new one there. */
static void memory_comes_at_addresses_that_were_not_used_before(void **state) {
#ifdef __SANITIZE_THREAD__
    skip(); /* it chooses addresses itself */
#endif
    struct mc_engine *e = engine();
    void *before = NULL, *again = NULL;
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(mc_memory_alloc(e, 1 << 20, "*", &again));
        assert_ptr_not_equal(again, before);
        before = again;
        assert_ok(mc_memory_free(e, again));
    }
    mc_engine_destroy(e);
}

struct unregister_work {
    struct mc_engine *engine;
    void *addr;
    _Atomic bool done;
};

static void *unregister_main(void *arg) {
    struct unregister_work *work = arg;
    enum mc_status status = mc_memory_unregister(work->engine, work->addr);
    atomic_store(&work->done, true);
    return (void *)(intptr_t)status;
}

static void unregistering_waits_for_users(void **state) {
    struct mc_engine *e = engine();
    char m[64];
    pthread_t thread;
    void *result = NULL;
    assert_ok(mc_memory_register(e, m, sizeof(m), "*", 0));
    struct mc_memory *one = mc_memory_acquire(e, (uint64_t)(uintptr_t)m, 64);
    struct mc_memory *two = mc_memory_acquire(e, (uint64_t)(uintptr_t)m, 1);
    struct unregister_work work = {e, m, false};
    assert_int_equal(pthread_create(&thread, NULL, unregister_main, &work), 0);
    struct mc_memory *late; /* once the thread has begun, there are no new users */
    for (int i = 0; (late = mc_memory_acquire(e, (uint64_t)(uintptr_t)m, 1)) != NULL && i < 5000;
         i++) {
        mc_memory_release(late);
        usleep(1000);
    }
    assert_null(late);
    assert_false(atomic_load(&work.done));
    mc_memory_release(one);
    usleep(5000);
    assert_false(atomic_load(&work.done));
    mc_memory_release(two);
    pthread_join(thread, &result);
    assert_int_equal((intptr_t)result, MC_OK);
    mc_engine_destroy(e);
}

static void segments_are_opened_closed_and_found_again(void **state) {
    struct mc_engine *a = engine(), *b = engine();
    mc_segment_id one = -1, two = -1, again = -1;
    char alias[64];
    assert_ok(mc_segment_open(a, mc_engine_name(b), &one));
    assert_ok(mc_segment_open(a, mc_engine_name(b), &two));
    assert_true(one > 0);
    assert_int_equal(one, two);
    assert_ok(mc_segment_probe(a, one, mc_deadline_in_ms(1000)));
    assert_ok(mc_segment_close(a, one));
    assert_ok(mc_segment_probe(a, one, mc_deadline_in_ms(1000))); /* opened twice */
    assert_ok(mc_segment_close(a, one));
    assert_int_equal(mc_segment_close(a, one), MC_SEGMENT_NOT_FOUND);
    assert_int_equal(mc_segment_probe(a, one, mc_deadline_in_ms(1000)), MC_SEGMENT_NOT_FOUND);
    usleep(20000);
    assert_ok(mc_segment_open(a, mc_engine_name(b), &again));
    assert_int_not_equal(again, one); /* an old id never means something else */
    assert_int_equal(mc_segment_probe(a, one, mc_deadline_in_ms(1000)), MC_SEGMENT_NOT_FOUND);
    snprintf(alias, sizeof(alias), "localhost:%u", (unsigned)mc_engine_rpc_port(a));
    assert_ok(mc_segment_open(a, alias, &two));
    assert_int_equal(two, MC_LOCAL_SEGMENT); /* ourselves, by the id in the descriptor */
    assert_int_equal(mc_segment_open(a, "", &two), MC_INVALID_PARAMS);
    assert_int_equal(mc_segment_open(a, "no-port", &two), MC_ERR_BAD_ADDRESS);
    assert_int_equal(mc_segment_open(a, "127.0.0.1:1", &two), MC_ERR_UNREACHABLE);
    assert_int_equal(mc_segment_close(a, -5), MC_SEGMENT_NOT_FOUND);
    mc_engine_destroy(b);
    assert_int_not_equal(mc_segment_probe(a, again, mc_deadline_in_ms(1000)), MC_OK);
    mc_engine_destroy(a);
}

static void memory_registered_after_opening_is_found(void **state) {
    struct mc_engine *a = engine(), *b = engine();
    mc_segment_id segment = -1;
    char remote[1000], local[1000];
    mc_test_fill(remote, sizeof(remote), 3);
    assert_ok(mc_segment_open(a, mc_engine_name(b), &segment));
    struct mc_transfer_request read = {MC_TRANSFER_READ, local, segment,
                                       (uint64_t)(uintptr_t)remote, sizeof(remote)};
    assert_int_equal(mc_transfer(a, &read, 1, mc_deadline_in_ms(5000)), MC_ERR_NOT_REGISTERED);
    assert_ok(mc_memory_register(b, remote, sizeof(remote), "*", 0));
    assert_ok(mc_transfer(a, &read, 1, mc_deadline_in_ms(5000)));
    mc_test_verify(local, sizeof(local), 3);
    assert_ok(mc_memory_unregister(b, remote));
    assert_int_not_equal(mc_transfer(a, &read, 1, mc_deadline_in_ms(5000)), MC_OK);
    read.remote_addr = UINT64_MAX - 10; /* wraps */
    assert_int_equal(mc_transfer(a, &read, 1, mc_deadline_in_ms(5000)), MC_ERR_NOT_REGISTERED);
    read.length = 0;
    assert_ok(mc_transfer(a, &read, 1, mc_deadline_in_ms(5000)));
    assert_ok(mc_transfer(a, NULL, 0, mc_deadline_in_ms(5000)));
    read.length = 10;
    read.op = (enum mc_transfer_op)7;
    assert_int_equal(mc_transfer(a, &read, 1, mc_deadline_in_ms(5000)), MC_INVALID_PARAMS);
    mc_engine_destroy(a);
    mc_engine_destroy(b);
}

static bool knows(struct mc_engine *e, mc_segment_id segment, const void *addr) {
    struct mc_buffer_info buffers[4];
    size_t count = 0;
    assert_ok(mc_segment_buffers(e, segment, buffers, 4, &count));
    for (size_t i = 0; i < count && i < 4; i++) {
        if (buffers[i].addr == (uint64_t)(uintptr_t)addr) {
            return true;
        }
    }
    return false;
}

static void descriptors_are_fetched_again_when_that_is_asked_for(void **state) {
    setenv("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", "1", 1);
    struct mc_engine *a = engine();
    unsetenv("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS");
    struct mc_engine *b = engine(), *c = engine(), *gone = engine();
    mc_segment_id to_b = -1, to_gone = -1, c_to_b = -1;
    static char memory[1000];
    assert_ok(mc_segment_open(a, mc_engine_name(gone), &to_gone)); /* the first in the table */
    assert_ok(mc_segment_open(a, mc_engine_name(b), &to_b));
    assert_ok(mc_segment_open(c, mc_engine_name(b), &c_to_b));
    mc_engine_destroy(gone);
    assert_ok(mc_memory_register(b, memory, sizeof(memory), "*", 0));
    assert_false(knows(a, to_b, memory));
    for (int i = 0; i < 1000 && !knows(a, to_b, memory); i++) {
        usleep(10000);
    }
    assert_true(knows(a, to_b, memory));
    assert_false(knows(c, c_to_b, memory)); /* off unless it is set */
    mc_engine_destroy(a);
    mc_engine_destroy(c);
    mc_engine_destroy(b);
}

static void a_view_needs_no_copy(void **state) {
    struct mc_engine *a = engine(), *b = engine();
    mc_segment_id segment = -1;
    void *shared = NULL;
    char *plain = malloc(4096);
    const void *view = NULL;
    assert_ok(mc_memory_alloc(b, 1 << 20, "*", &shared));
    assert_ok(mc_memory_register(b, plain, 4096, "*", 0));
    assert_ok(mc_segment_open(a, mc_engine_name(b), &segment));
    mc_test_fill(shared, 1 << 20, 5);
    assert_ok(mc_segment_map(a, segment, (uint64_t)(uintptr_t)shared, 1 << 20, &view));
    assert_ptr_not_equal(view, shared);
    mc_test_verify(view, 1 << 20, 5);
    mc_test_fill(shared, 1 << 20, 6); /* it is the same memory */
    mc_test_verify(view, 1 << 20, 6);
    const void *again = NULL;
    assert_ok(mc_segment_map(a, segment, (uint64_t)(uintptr_t)shared + 5, 10, &again));
    assert_ptr_equal(again, (const char *)view + 5);
    assert_int_equal(mc_segment_map(a, segment, (uint64_t)(uintptr_t)plain, 10, &again),
                     MC_NOT_SUPPORTED);
    assert_int_equal(mc_segment_map(a, segment, (uint64_t)(uintptr_t)shared, (1 << 20) + 1, &again),
                     MC_ERR_NOT_REGISTERED);
    assert_ok(mc_segment_map(b, MC_LOCAL_SEGMENT, (uint64_t)(uintptr_t)plain, 10, &again));
    assert_ptr_equal(again, plain);
    assert_ok(mc_memory_free(b, shared)); /* the view stays readable until the segment is closed */
    mc_test_verify(view, 1 << 20, 6);
    assert_int_not_equal(mc_segment_map(a, segment, (uint64_t)(uintptr_t)shared, 1 << 20, &again),
                         MC_OK);
    assert_ok(mc_segment_close(a, segment));
    mc_engine_destroy(a);
    mc_engine_destroy(b);
    free(plain);
}

static void notifications_arrive_in_order_and_are_bounded(void **state) {
    struct mc_engine *a = engine(), *b = engine();
    mc_segment_id segment = -1;
    struct mc_notification *list = NULL;
    size_t count = 0;
    char text[32];
    assert_ok(mc_segment_open(a, mc_engine_name(b), &segment));
    assert_ok(mc_notify_receive(b, &list, &count));
    assert_int_equal(count, 0);
    assert_null(list);
    assert_ok(mc_notify_send(a, segment, "block", "one \"quoted\""));
    assert_ok(mc_notify_send(a, segment, "block", ""));
    assert_ok(mc_notify_receive(b, &list, &count));
    assert_int_equal(count, 2);
    assert_string_equal(list[0].name, "block");
    assert_string_equal(list[0].message, "one \"quoted\"");
    assert_string_equal(list[1].message, "");
    mc_notify_free(list, count);
    for (int i = 0; i < 4096 + 3; i++) {
        snprintf(text, sizeof(text), "%d", i);
        assert_ok(mc_notify_send(b, MC_LOCAL_SEGMENT, "n", text));
    }
    assert_ok(mc_notify_receive(b, &list, &count));
    assert_int_equal(count, 4096);
    assert_string_equal(list[0].message, "3"); /* the oldest went first */
    assert_string_equal(list[4095].message, "4098");
    mc_notify_free(list, count);
    assert_int_equal(te_counter(b, "mooncake_te_notifications_dropped_total"), 3);
    mc_engine_destroy(a);
    mc_engine_destroy(b);
}

static void a_batch_tells_the_peer_when_it_is_complete(void **state) {
    struct mc_engine *a = engine(), *b = engine();
    mc_segment_id segment = -1;
    struct mc_batch *batch = NULL;
    struct mc_notification *list = NULL;
    size_t count = 0;
    char remote[100], local[100];
    mc_test_fill(local, 100, 9);
    assert_ok(mc_memory_register(b, remote, 100, "*", 0));
    assert_ok(mc_segment_open(a, mc_engine_name(b), &segment));
    struct mc_transfer_request write = {MC_TRANSFER_WRITE, local, segment,
                                        (uint64_t)(uintptr_t)remote, 100};
    assert_ok(mc_batch_create(a, 1, &batch));
    assert_ok(mc_batch_notify(batch, segment, "done", "42"));
    assert_ok(mc_batch_submit(batch, &write, 1, mc_deadline_in_ms(5000)));
    assert_ok(mc_batch_wait(batch, mc_deadline_in_ms(5000)));
    assert_ok(mc_notify_receive(b, &list, &count));
    assert_int_equal(count, 1);
    assert_string_equal(list[0].name, "done");
    assert_string_equal(list[0].message, "42");
    mc_test_verify(remote, 100, 9);
    mc_notify_free(list, count);
    write.remote_addr = 1; /* a batch that fails says nothing */
    assert_ok(mc_batch_notify(batch, segment, "done", "43"));
    assert_ok(mc_batch_submit(batch, &write, 1, mc_deadline_in_ms(5000)));
    assert_int_equal(mc_batch_wait(batch, mc_deadline_in_ms(5000)), MC_ERR_NOT_REGISTERED);
    assert_ok(mc_notify_receive(b, &list, &count));
    assert_int_equal(count, 0);
    assert_ok(mc_batch_free(batch));
    mc_engine_destroy(a);
    mc_engine_destroy(b);
}

static void options_take_the_environment(void **state) {
    struct mc_engine_options options;
    struct mc_engine *e = NULL;
    setenv("MC_MIN_RPC_PORT", "21000", 1);
    setenv("MC_MAX_PRC_PORT", "21900", 1); /* upstream's misspelling */
    setenv("MC_TCP_LANES_PER_PEER", "nine", 1);
    setenv("MC_HANDSHAKE_CONNECT_TIMEOUT", "2", 1);
    setenv("MC_FORCE_TCP", "1", 1);
    mc_engine_options_init(&options);
    assert_int_equal(options.port_min, 21000);
    assert_int_equal(options.port_max, 21900);
    assert_int_equal(options.lanes_per_peer, 0); /* unusable: said in the log, and the default */
    assert_int_equal(options.connect_timeout_ms, 2000);
    assert_true(options.disable_shm);
    options.host = "127.0.0.1";
    assert_ok(mc_engine_create(&options, &e));
    assert_in_range(mc_engine_rpc_port(e), 21000, 21900);
    options.rpc_port = mc_engine_rpc_port(e);
    struct mc_engine *second = NULL;
    assert_int_equal(mc_engine_create(&options, &second), MC_ERR_ADDRESS_IN_USE);
    options.port_min = 5;
    options.port_max = 4;
    assert_int_equal(mc_engine_create(&options, &second), MC_INVALID_PARAMS);
    mc_engine_options_init(&options);
    options.metadata = "carrier-pigeon://x";
    assert_int_equal(mc_engine_create(&options, &second), MC_NOT_SUPPORTED);
    mc_engine_destroy(e);
    mc_engine_destroy(NULL);
    unsetenv("MC_MIN_RPC_PORT");
    unsetenv("MC_MAX_PRC_PORT");
    unsetenv("MC_TCP_LANES_PER_PEER");
    unsetenv("MC_HANDSHAKE_CONNECT_TIMEOUT");
    unsetenv("MC_FORCE_TCP");
}

/* Another address, the same bytes, no writing; there until its last user goes. */
static void the_twin_of_memory_outlives_it(void **state) {
    const size_t length = (1u << 20) + 100;
    struct mc_engine *e = engine();
    unsigned char plain[64];
    void *addr;
    assert_ok(mc_memory_alloc(e, length, "*", &addr));
    memset(addr, 7, length);
    struct mc_memory *memory = mc_memory_acquire(e, (uint64_t)(uintptr_t)addr, length);
    struct mc_memory_twin *first = mc_memory_twin_acquire(memory);
    struct mc_memory_twin *second = mc_memory_twin_acquire(memory);
    assert_non_null(first);
    assert_ptr_equal(first, second);
    assert_ptr_not_equal(first->bytes, addr);
    assert_true(first->length >= length);
    ((unsigned char *)addr)[length - 1] = 8;
    assert_int_equal(first->bytes[0], 7);
    assert_int_equal(first->bytes[length - 1], 8);
    mc_memory_release(memory);
    mc_memory_twin_release(first);
    assert_ok(mc_memory_free(e, addr));
    assert_int_equal(second->bytes[length - 1], 8);
    mc_memory_twin_release(second);
    assert_ok(mc_memory_register(e, plain, sizeof(plain), "*", 0));
    memory = mc_memory_acquire(e, (uint64_t)(uintptr_t)plain, sizeof(plain));
    assert_null(mc_memory_twin_acquire(memory));
    mc_memory_release(memory);
    mc_engine_destroy(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_disjoint_and_do_not_wrap),
        cmocka_unit_test(allocated_memory_is_zero_aligned_and_freed_as_such),
        cmocka_unit_test(memory_comes_at_addresses_that_were_not_used_before),
        cmocka_unit_test(unregistering_waits_for_users),
        cmocka_unit_test(the_twin_of_memory_outlives_it),
        cmocka_unit_test(segments_are_opened_closed_and_found_again),
        cmocka_unit_test(memory_registered_after_opening_is_found),
        cmocka_unit_test(descriptors_are_fetched_again_when_that_is_asked_for),
        cmocka_unit_test(a_view_needs_no_copy),
        cmocka_unit_test(notifications_arrive_in_order_and_are_bounded),
        cmocka_unit_test(a_batch_tells_the_peer_when_it_is_complete),
        cmocka_unit_test(options_take_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
