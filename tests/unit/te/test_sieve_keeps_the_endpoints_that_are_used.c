/* The pool of endpoints alone: finding, and whom SIEVE names. */
#include <stdio.h>

#include "support/support.h"
#include "te/transport/rdma_pool.h"

#define ENTRIES 64

struct entry {
    struct rdma_pool_node node;
    char key[16];
    bool pinned;
};

static struct rdma_pool pool;
static struct entry entries[ENTRIES];

static void add(unsigned i) {
    snprintf(entries[i].key, sizeof(entries[i].key), "peer-%u", i);
    rdma_pool_insert(&pool, &entries[i].node, entries[i].key, rdma_pool_hash(entries[i].key));
}

static struct rdma_pool_node *find(unsigned i) {
    char key[16];
    snprintf(key, sizeof(key), "peer-%u", i);
    return rdma_pool_find(&pool, key, rdma_pool_hash(key));
}

static bool any(const struct rdma_pool_node *node) {
    return true;
}

static bool not_pinned(const struct rdma_pool_node *node) {
    return !mc_container_of((struct rdma_pool_node *)(uintptr_t)node, struct entry, node)->pinned;
}

static unsigned evict(bool (*may_go)(const struct rdma_pool_node *node)) {
    struct rdma_pool_node *node = rdma_pool_victim(&pool, may_go);
    assert_non_null(node);
    rdma_pool_remove(&pool, node);
    return (unsigned)(mc_container_of(node, struct entry, node) - entries);
}

static int setup(void **state) {
    memset(entries, 0, sizeof(entries));
    rdma_pool_init(&pool);
    return 0;
}

static void test_what_is_inside_is_found(void **state) {
    for (unsigned i = 0; i < ENTRIES; i++) {
        add(i);
    }
    for (unsigned i = 0; i < ENTRIES; i++) {
        assert_ptr_equal(find(i), &entries[i].node);
    }
    rdma_pool_remove(&pool, &entries[5].node);
    rdma_pool_remove(&pool, &entries[5].node); /* nothing happens */
    assert_null(find(5));
    assert_int_equal(pool.count, ENTRIES - 1);
}

static void test_without_use_the_oldest_goes(void **state) {
    for (unsigned i = 0; i < 4; i++) {
        add(i);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(evict(any), i);
    }
    assert_null(rdma_pool_victim(&pool, any));
}

/* A scan over many peers, each used once, passes those that are used all the time by. */
static void test_a_scan_does_not_push_out_what_is_used(void **state) {
    add(0);
    add(1);
    for (unsigned i = 2; i < ENTRIES; i++) {
        find(0);
        find(1);
        add(i);
        if (pool.count > 4) {
            unsigned gone = evict(any);
            assert_true(gone != 0 && gone != 1);
        }
    }
}

/* The example of the paper: the hand goes on where it stood. */
static void test_the_hand_goes_on_where_it_stood(void **state) {
    for (unsigned i = 0; i < 5; i++) {
        add(i);
    }
    find(0);
    find(2);
    assert_int_equal(evict(any), 1); /* 0 is spared and marked */
    assert_int_equal(evict(any), 3); /* 2 is spared, not 0 again */
    add(5);
    assert_int_equal(evict(any), 4);
    assert_int_equal(evict(any), 5);
    assert_int_equal(evict(any), 0); /* from the oldest again */
    assert_int_equal(evict(any), 2);
}

static void test_those_that_may_not_go_stay(void **state) {
    for (unsigned i = 0; i < 3; i++) {
        add(i);
        entries[i].pinned = true;
    }
    assert_null(rdma_pool_victim(&pool, not_pinned));
    entries[1].pinned = false;
    assert_int_equal(evict(not_pinned), 1);
}

/* Against a plain model: an array in order of arrival and an index. */
static void test_any_sequence_is_sieve(void **state) {
    unsigned order[ENTRIES], count = 0, hand = 0;
    bool used[ENTRIES] = {false};
    struct mc_rng rng;
    mc_rng_seed(&rng, 42);
    for (int step = 0; step < 20000; step++) {
        unsigned i = (unsigned)mc_rng_below(&rng, ENTRIES);
        uint64_t what = mc_rng_below(&rng, 4);
        if (what == 0 && !entries[i].node.inside) {
            add(i);
            order[count++] = i; /* the newest is the last */
            used[i] = false;
        } else if (what < 3) {
            assert_int_equal(find(i) != NULL, entries[i].node.inside);
            used[i] = true;
        } else if (count > 0) {
            while (used[order[hand % count]]) {
                hand %= count;
                used[order[hand]] = false;
                hand = hand + 1 == count ? 0 : hand + 1;
            }
            hand %= count;
            unsigned expected = order[hand];
            assert_int_equal(evict(any), expected);
            memmove(&order[hand], &order[hand + 1], (count - hand - 1) * sizeof(order[0]));
            count--;
            if (hand == count) {
                hand = 0;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_what_is_inside_is_found, setup),
        cmocka_unit_test_setup(test_without_use_the_oldest_goes, setup),
        cmocka_unit_test_setup(test_a_scan_does_not_push_out_what_is_used, setup),
        cmocka_unit_test_setup(test_the_hand_goes_on_where_it_stood, setup),
        cmocka_unit_test_setup(test_those_that_may_not_go_stay, setup),
        cmocka_unit_test_setup(test_any_sequence_is_sieve, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
