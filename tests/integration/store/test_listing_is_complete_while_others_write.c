/*
 * MC_TEST_THREADS. mc_store_list over the wire: every key that is there all the time comes exactly
 * once in pages of any size while another client puts and removes keys; only keys of the prefix
 * come; nothing gets a lease; a cursor that makes no sense is refused.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "support/cluster.h"

#define KEYS 2000

struct fixture {
    struct mc_master_service *master;
    struct mc_store *node, *other;
    _Atomic bool stop;
    _Atomic unsigned rounds;
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    f->master = cluster_start_master(&options);
    f->node = cluster_open(mc_master_service_rpc_port(f->master), 64u << 20, true);
    f->other = cluster_open(mc_master_service_rpc_port(f->master), 0, true);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mc_store_close(f->other);
    mc_store_close(f->node);
    mc_master_service_stop(f->master);
    free(f);
    return 0;
}

static void put_number(struct mc_store *s, const char *prefix, unsigned number) {
    char key[64];
    snprintf(key, sizeof(key), "%s%u", prefix, number);
    assert_int_equal(mc_store_put(s, key, key, strlen(key), NULL), MC_OK);
}

static void *come_and_go(void *arg) {
    struct fixture *f = arg;
    for (unsigned i = 0; !atomic_load_explicit(&f->stop, memory_order_relaxed); i++) {
        char key[64];
        put_number(f->other, "stay/x", i);
        snprintf(key, sizeof(key), "stay/x%u", i / 2);
        enum mc_status status = mc_store_remove(f->other, key, true);
        assert_true(status == MC_OK || status == MC_OBJECT_NOT_FOUND);
        atomic_fetch_add_explicit(&f->rounds, 1, memory_order_relaxed);
    }
    return NULL;
}

static size_t list_all(struct fixture *f, size_t limit, unsigned *seen) {
    char after[64] = "";
    size_t pages = 0;
    do {
        struct mc_store_keys page = {0};
        assert_int_equal(mc_store_list(f->node, "stay/", after, limit, &page), MC_OK);
        assert_true(page.count <= limit);
        for (size_t i = 0; i < page.count; i++) {
            unsigned number, end = 0;
            assert_memory_equal(page.keys[i], "stay/", 5);
            if (sscanf(page.keys[i], "stay/k%u%n", &number, (int *)&end) == 1) {
                assert_true(number < KEYS && page.keys[i][end] == '\0');
                seen[number]++;
            }
        }
        memcpy(after, page.next, sizeof(after));
        mc_store_keys_free(&page);
        pages++;
    } while (after[0] != '\0');
    return pages;
}

static void test_every_key_that_stays_comes_once(void **state) {
    struct fixture *f = *state;
    static unsigned seen[KEYS];
    pthread_t thread;
    for (unsigned i = 0; i < KEYS; i++) {
        put_number(f->node, "stay/k", i);
        put_number(f->node, "else/k", i);
    }
    assert_int_equal(pthread_create(&thread, NULL, come_and_go, f), 0);
    static const size_t limits[] = {1, 33, 1000, MC_STORE_LIST_MAX};
    for (size_t l = 0; l < MC_ARRAY_LEN(limits); l++) {
        memset(seen, 0, sizeof(seen));
        size_t pages = list_all(f, limits[l], seen);
        assert_true(pages >= KEYS / limits[l]);
        for (unsigned i = 0; i < KEYS; i++) {
            assert_int_equal(seen[i], 1);
        }
    }
    atomic_store_explicit(&f->stop, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    assert_true(atomic_load_explicit(&f->rounds, memory_order_relaxed) > 0);
    assert_int_equal(mc_store_remove(f->node, "stay/k0", false), MC_OK); /* it has no lease */
}

static void test_bad_questions_are_refused(void **state) {
    struct fixture *f = *state;
    struct mc_store_keys page = {0};
    assert_int_equal(mc_store_list(f->node, NULL, "nonsense", 10, &page), MC_INVALID_PARAMS);
    assert_int_equal(mc_store_list(f->node, NULL, NULL, 0, &page), MC_INVALID_PARAMS);
    assert_int_equal(mc_store_list(f->node, NULL, NULL, MC_STORE_LIST_MAX + 1, &page),
                     MC_INVALID_PARAMS);
    assert_int_equal(mc_store_list(f->node, NULL, NULL, 10, NULL), MC_INVALID_PARAMS);
    assert_null(page.keys);
    assert_int_equal(mc_store_list(f->node, "", "", 10, &page), MC_OK);
    assert_int_equal(page.count, 0);
    assert_string_equal(page.next, "");
    mc_store_keys_free(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_key_that_stays_comes_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_questions_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
