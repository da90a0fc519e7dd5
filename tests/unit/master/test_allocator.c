/* Extents that are alive never overlap and are exactly the allocator's used set. MC_TEST_THREADS */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/support.h"
#include "master/allocator.h"

static void assert_sound(struct mc_allocator *a) {
    struct mc_buf report = {0};
    if (mc_allocator_check(a, &report) != MC_OK) {
        fail_msg("%s", mc_buf_cstr(&report));
    }
    mc_buf_free(&report);
}

static void test_sizes_that_cannot_be_are_refused(void **state) {
    struct mc_extent e = {77, 77};
    assert_null(mc_allocator_create(0, 0));
    assert_null(mc_allocator_create(UINT64_MAX, 0));
    struct mc_allocator *a = mc_allocator_create(1000, 0);
    assert_int_equal(mc_allocator_alloc(a, 0, &e), MC_INVALID_PARAMS);
    assert_int_equal(mc_allocator_alloc(a, 1001, &e), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(mc_allocator_alloc(a, UINT64_MAX, &e), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(mc_allocator_alloc(a, 1ull << 63, &e), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(e.offset, 77); /* outputs only on success */
    assert_int_equal(mc_allocator_used(a), 0);
    assert_sound(a);
    mc_allocator_destroy(a);
}

static void test_the_whole_range_is_one_extent_and_comes_back_whole(void **state) {
    static const uint64_t sizes[] = {1,         31, 32, 33, 1000003, 1ull << 40, (1ull << 62) - 1,
                                     1ull << 62};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        struct mc_extent e, other;
        struct mc_allocator *a = mc_allocator_create(sizes[i], 0);
        assert_ok(mc_allocator_alloc(a, sizes[i], &e));
        assert_int_equal(e.offset, 0);
        assert_int_equal(mc_allocator_alloc(a, 1, &other), MC_NO_AVAILABLE_HANDLE);
        assert_int_equal(mc_allocator_largest_free(a), 0);
        mc_allocator_free(a, e, sizes[i]);
        assert_int_equal(mc_allocator_largest_free(a), sizes[i]);
        assert_sound(a);
        mc_allocator_destroy(a);
    }
}

static void test_freed_neighbours_merge_in_every_order(void **state) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t o = 0; o < MC_ARRAY_LEN(orders); o++) {
        struct mc_extent e[3], all;
        struct mc_allocator *a = mc_allocator_create(300, 0);
        for (int i = 0; i < 3; i++) {
            assert_ok(mc_allocator_alloc(a, 100, &e[i]));
        }
        for (int i = 0; i < 3; i++) {
            mc_allocator_free(a, e[orders[o][i]], 100);
            assert_sound(a);
        }
        assert_ok(mc_allocator_alloc(a, 300, &all));
        mc_allocator_destroy(a);
    }
}

static void test_a_hole_of_equal_size_is_reused_whatever_the_size(void **state) {
    /* equal objects fill the pool to the last whole one, and stay there when one is replaced by
     * another */
    static const uint64_t sizes[] = {15, 49, 8209, 29491, 2097169, 33554449};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        enum { COUNT = 50 };
        struct mc_extent e[COUNT];
        struct mc_allocator *a = mc_allocator_create(sizes[i] * COUNT + 7, 0);
        for (int k = 0; k < COUNT; k++) {
            assert_ok(mc_allocator_alloc(a, sizes[i], &e[k]));
        }
        for (int k = 0; k < COUNT; k++) {
            mc_allocator_free(a, e[(k * 17) % COUNT], sizes[i]);
            assert_ok(mc_allocator_alloc(a, sizes[i], &e[(k * 17) % COUNT]));
        }
        assert_sound(a);
        mc_allocator_destroy(a);
    }
}

static void test_metadata_has_a_limit_and_stays_sound_at_it(void **state) {
    struct mc_extent e[8];
    struct mc_allocator *a = mc_allocator_create(1 << 20, 5);
    for (int i = 0; i < 4; i++) {
        assert_ok(mc_allocator_alloc(a, 10, &e[i])); /* four live, one free */
    }
    assert_int_equal(mc_allocator_alloc(a, 10, &e[4]), MC_NO_AVAILABLE_HANDLE);
    assert_sound(a);
    assert_ok(mc_allocator_alloc(a, (1 << 20) - 40, &e[4])); /* a whole free extent needs no node */
    for (int i = 0; i < 5; i++) {
        mc_allocator_free(a, e[i], i < 4 ? 10 : (1 << 20) - 40);
    }
    assert_int_equal(mc_allocator_largest_free(a), 1 << 20);
    assert_sound(a);
    mc_allocator_destroy(a);
}

static void test_metadata_grows_with_what_is_live_and_is_reused(void **state) {
    enum { COUNT = 300000 };
    struct mc_extent *e = mc_alloc(COUNT * sizeof(*e));
    struct mc_allocator *a = mc_allocator_create(COUNT * 3ull, 0);
    uint64_t after_first_round = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            assert_ok(mc_allocator_alloc(a, 3, &e[i]));
        }
        assert_true(mc_allocator_metadata_bytes(a) < COUNT * 80ull);
        for (int i = 0; i < COUNT; i++) {
            mc_allocator_free(a, e[(i * 7919ull) % COUNT], 3);
        }
        after_first_round = round == 0 ? mc_allocator_metadata_bytes(a) : after_first_round;
        assert_int_equal(mc_allocator_metadata_bytes(a), after_first_round);
    }
    assert_sound(a);
    free(e);
    mc_allocator_destroy(a);
}

/* ---- frees that must not be ---- */

static void free_twice_in_a_row(struct mc_allocator *a, const struct mc_extent *e) {
    mc_allocator_free(a, e[1], 10);
    mc_allocator_free(a, e[1], 10);
}

static void free_twice_with_another_between(struct mc_allocator *a, const struct mc_extent *e) {
    mc_allocator_free(a, e[1], 10);
    mc_allocator_free(a, e[3], 10);
    mc_allocator_free(a, e[1], 10);
}

static void free_what_never_was(struct mc_allocator *a, const struct mc_extent *e) {
    mc_allocator_free(a, (struct mc_extent){70, 900}, 10);
}

static void free_with_a_wrong_size(struct mc_allocator *a, const struct mc_extent *e) {
    mc_allocator_free(a, e[1], 11);
    (void)mc_allocator_largest_free(a);
}

static void free_at_a_wrong_place(struct mc_allocator *a, const struct mc_extent *e) {
    mc_allocator_free(a, (struct mc_extent){e[1].offset + 1, e[1].handle}, 10);
    (void)mc_allocator_largest_free(a);
}

static void test_a_free_that_must_not_be_ends_the_process(void **state) {
    static void (*const wrong[])(struct mc_allocator *, const struct mc_extent *) = {
        free_twice_in_a_row, free_twice_with_another_between, free_what_never_was,
        free_with_a_wrong_size, free_at_a_wrong_place};
    struct mc_extent e[5];
    struct mc_allocator *a = mc_allocator_create(100, 0);
    for (size_t i = 0; i < MC_ARRAY_LEN(e); i++) {
        assert_ok(mc_allocator_alloc(a, 10, &e[i]));
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(wrong); i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            const struct rlimit none = {0, 0};
            (void)setrlimit(RLIMIT_CORE, &none);
            dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
            signal(SIGABRT, SIG_DFL); /* cmocka's handler would go on in the parent's tests */
            wrong[i](a, e);
            _exit(0);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    }
    mc_allocator_destroy(a);
}

/* ---- against a plain model ---- */

struct live {
    struct mc_extent extent;
    uint64_t size;
};

static void assert_equals_model(struct mc_allocator *a, const struct live *live, size_t count,
                                uint8_t *map, uint64_t capacity) {
    uint64_t used = 0;
    memset(map, 0, capacity);
    for (size_t i = 0; i < count; i++) {
        uint64_t offset, size;
        assert_true(mc_allocator_lookup(a, live[i].extent.handle, &offset, &size));
        assert_int_equal(offset, live[i].extent.offset);
        assert_int_equal(size, live[i].size);
        assert_true(mc_range_inside(offset, size, 0, capacity));
        for (uint64_t b = offset; b < offset + size; b++) {
            assert_int_equal(map[b], 0);
            map[b] = 1;
        }
        used += size;
    }
    assert_int_equal(used, mc_allocator_used(a));
    assert_int_equal(count, mc_allocator_count(a));
    assert_sound(a);
}

static void test_random_use_equals_the_model(void **state) {
    enum { CAPACITY = 20000, STEPS = 20000, LIVE = 2000 };
    static struct live live[LIVE];
    static uint8_t map[CAPACITY];
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct mc_rng rng;
        mc_rng_seed(&rng, seed);
        size_t count = 0;
        struct mc_allocator *a = mc_allocator_create(CAPACITY, 0);
        uint64_t max_size = 1ull << (3 + seed);
        for (int step = 0; step < STEPS; step++) {
            bool grow = mc_rng_below(&rng, 1000) < (uint64_t)(step / 1000 % 2 ? 400 : 600);
            if (grow && count < LIVE) {
                struct live one = {.size = 1 + mc_rng_below(&rng, max_size)};
                enum mc_status status = mc_allocator_alloc(a, one.size, &one.extent);
                if (status == MC_OK) {
                    live[count++] = one;
                } else {
                    assert_int_equal(status, MC_NO_AVAILABLE_HANDLE);
                    assert_true(mc_allocator_largest_free(a) < one.size);
                }
            } else if (count) {
                size_t victim = mc_rng_below(&rng, count);
                mc_allocator_free(a, live[victim].extent, live[victim].size);
                live[victim] = live[--count];
            }
            if (step % 500 == 0) {
                assert_equals_model(a, live, count, map, CAPACITY);
            }
        }
        while (count) {
            count--;
            mc_allocator_free(a, live[count].extent, live[count].size);
        }
        assert_int_equal(mc_allocator_largest_free(a), CAPACITY);
        mc_allocator_destroy(a);
    }
}

/* ---- threads ---- */

struct thread_arg {
    struct mc_allocator *allocator;
    uint64_t seed;
    uint8_t *owner; /* one byte per unit: who has it */
};

static void *allocate_and_mark(void *arg) {
    struct thread_arg *t = arg;
    struct mc_rng rng;
    mc_rng_seed(&rng, t->seed);
    struct live live[64];
    size_t count = 0;
    for (int step = 0; step < 20000; step++) {
        struct live one = {.size = 1 + mc_rng_below(&rng, 64)};
        if (count < MC_ARRAY_LEN(live) &&
            mc_allocator_alloc(t->allocator, one.size, &one.extent) == MC_OK) {
            /* plain bytes: if two threads ever held one extent TSan or the compare would tell */
            memset(t->owner + one.extent.offset, (int)t->seed, one.size);
            live[count++] = one;
        } else if (count) {
            struct live *victim = &live[mc_rng_below(&rng, count)];
            for (uint64_t i = 0; i < victim->size; i++) {
                assert_int_equal(t->owner[victim->extent.offset + i], t->seed);
            }
            mc_allocator_free(t->allocator, victim->extent, victim->size);
            *victim = live[--count];
        }
    }
    while (count) {
        count--;
        mc_allocator_free(t->allocator, live[count].extent, live[count].size);
    }
    return NULL;
}

static void test_threads_never_share_an_extent(void **state) {
    enum { CAPACITY = 6000, THREADS = 4 };
    static uint8_t owner[CAPACITY];
    pthread_t ids[THREADS];
    struct thread_arg args[THREADS];
    struct mc_allocator *a = mc_allocator_create(CAPACITY, 0);
    for (int i = 0; i < THREADS; i++) {
        args[i] = (struct thread_arg){a, (uint64_t)i + 1, owner};
        pthread_create(&ids[i], NULL, allocate_and_mark, &args[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
    }
    assert_int_equal(mc_allocator_used(a), 0);
    assert_int_equal(mc_allocator_largest_free(a), CAPACITY);
    assert_sound(a);
    mc_allocator_destroy(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_that_cannot_be_are_refused),
        cmocka_unit_test(test_the_whole_range_is_one_extent_and_comes_back_whole),
        cmocka_unit_test(test_freed_neighbours_merge_in_every_order),
        cmocka_unit_test(test_a_hole_of_equal_size_is_reused_whatever_the_size),
        cmocka_unit_test(test_metadata_has_a_limit_and_stays_sound_at_it),
        cmocka_unit_test(test_metadata_grows_with_what_is_live_and_is_reused),
        cmocka_unit_test(test_a_free_that_must_not_be_ends_the_process),
        cmocka_unit_test(test_random_use_equals_the_model),
        cmocka_unit_test(test_threads_never_share_an_extent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
