/* Pages list every readable key of a tenant and prefix exactly once, whatever comes and goes
 * meanwhile, and nothing else; a cursor of another master is refused; looking grants no lease. */
#include <stdio.h>

#include "support/master_fixture.h"

#define KEYS 3000

static unsigned listed[KEYS];

/* Reads pages of `limit` to the end; between two pages calls `disturb`. How many keys came. */
static size_t list_all(struct fixture *f, const char *tenant, const char *prefix, size_t limit,
                       void (*disturb)(struct fixture *f, unsigned page)) {
    struct mc_str next = {"", 0};
    size_t total = 0;
    memset(listed, 0, sizeof(listed));
    for (unsigned page = 0; page == 0 || next.len > 0; page++) {
        struct mc_vec keys;
        assert_ok(
            mc_master_list(f->m, str(tenant), str(prefix), next, limit, &f->arena, &keys, &next));
        assert_true(keys.count <= limit);
        assert_true(keys.count > 0 || next.len == 0);
        for (size_t i = 0; i < keys.count; i++) {
            unsigned number = 0;
            char *text = mc_str_dup(((struct mc_str *)keys.items)[i]);
            assert_memory_equal(text, prefix, strlen(prefix));
            if (sscanf(text, "a/%u", &number) == 1) {
                listed[number]++;
            }
            free(text);
        }
        total += keys.count;
        if (disturb) {
            disturb(f, page);
        }
    }
    return total;
}

static int setup(void **state) {
    fixture_setup(state);
    struct fixture *f = *state;
    struct mc_vec out;
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    for (unsigned i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "a/%u", i);
        assert_ok(put(f, key, 1));
    }
    assert_ok(put(f, "b/0", 1));
    assert_ok(put_start(f, "a/unfinished", 1));
    assert_ok(put_start_with(f, client_a, "red", "a/0", 1, replicas(1), &out));
    assert_ok(put_end_as(f, client_a, "red", "a/0", MC_REPLICA_ALL));
    return 0;
}

static void test_every_key_once(void **state) {
    struct fixture *f = *state;
    const size_t limits[] = {1, 7, 100, 2999, 3000, 3001, MC_LIST_PAGE_KEYS};
    for (size_t l = 0; l < MC_ARRAY_LEN(limits); l++) {
        assert_int_equal(list_all(f, "default", "a/", limits[l], NULL), KEYS);
        for (unsigned i = 0; i < KEYS; i++) {
            assert_int_equal(listed[i], 1);
        }
    }
    assert_int_equal(list_all(f, "default", "", 500, NULL), KEYS + 1);
    assert_int_equal(list_all(f, "", "a/299", 5, NULL), 11); /* a/299 and a/2990 to a/2999 */
    assert_int_equal(list_all(f, "red", "", 10, NULL), 1);
    assert_int_equal(list_all(f, "blue", "", 10, NULL), 0);
    assert_int_equal(list_all(f, "default", "nothing", 10, NULL), 0);
    assert_int_equal(remove_all(f, "default", false), KEYS + 1); /* nothing had a lease */
}

static void come_and_go(struct fixture *f, unsigned page) {
    char key[32];
    for (unsigned i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "a/x%u-%u", page, i);
        assert_ok(put(f, key, 1));
        unsigned odd = 2 * (20 * page + i) + 1;
        if (odd < KEYS) {
            snprintf(key, sizeof(key), "a/%u", odd);
            assert_ok(remove_key(f, key, false));
        }
    }
}

static void test_who_stays_is_listed_once_whoever_comes_and_goes(void **state) {
    struct fixture *f = *state;
    assert_true(list_all(f, "default", "a/", 37, come_and_go) > KEYS / 2);
    for (unsigned i = 0; i < KEYS; i++) {
        if (i % 2 == 0) {
            assert_int_equal(listed[i], 1);
        } else {
            assert_true(listed[i] <= 1);
        }
    }
}

/* Tables double several times between two pages. */
static void grow(struct fixture *f, unsigned page) {
    char key[32];
    for (unsigned i = 0; page % 16 == 0 && i < 20000; i++) {
        snprintf(key, sizeof(key), "y%u-%u", page, i);
        assert_ok(put(f, key, 1));
    }
}

static void test_growing_tables_repeat_and_lose_nothing(void **state) {
    struct fixture *f = *state;
    assert_int_equal(list_all(f, "default", "a/", 50, grow), KEYS);
    for (unsigned i = 0; i < KEYS; i++) {
        assert_int_equal(listed[i], 1);
    }
}

static void test_pages_end_after_so_many_visits(void **state) {
    struct fixture *f = *state;
    struct mc_str next = {"", 0};
    struct mc_vec keys;
    char key[32];
    unsigned pages = 0;
    mount(f, "B", 1ull << 30);
    for (unsigned i = 0; i < 3 * MC_LIST_PAGE_VISITS / 2; i++) {
        snprintf(key, sizeof(key), "z%u", i);
        assert_ok(put(f, key, 1));
    }
    for (size_t total = 0; pages == 0 || next.len > 0; pages++) {
        assert_ok(mc_master_list(f->m, str(""), str("b/"), next, 10, &f->arena, &keys, &next));
        total += keys.count;
        assert_true(next.len > 0 || total == 1);
    }
    assert_int_equal(pages, 2);
}

static void test_questions_that_cannot_be(void **state) {
    struct fixture *f = *state;
    struct mc_vec keys;
    struct mc_str next, none = {"", 0};
    const char *bad[] = {"x", "0123456789abcdef-0123456789abcdef",
                         "0123456789abcdef-0123456789abcdeg", "-",
                         "                 1-              1"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        assert_int_equal(
            mc_master_list(f->m, str("default"), none, str(bad[i]), 10, &f->arena, &keys, &next),
            MC_INVALID_PARAMS);
    }
    assert_int_equal(mc_master_list(f->m, none, none, none, 0, &f->arena, &keys, &next),
                     MC_INVALID_PARAMS);
    assert_int_equal(
        mc_master_list(f->m, none, none, none, MC_LIST_PAGE_KEYS + 1, &f->arena, &keys, &next),
        MC_INVALID_PARAMS);
    assert_int_equal(mc_master_list(f->m, str("_x"), none, none, 1, &f->arena, &keys, &next),
                     MC_INVALID_PARAMS);
    assert_ok(mc_master_list(f->m, none, none, none, 10, &f->arena, &keys, &next));
    assert_true(next.len > 0);
    f->config.seed = 8;
    fixture_restart(f);
    assert_int_equal(mc_master_list(f->m, none, none, next, 10, &f->arena, &keys, &next),
                     MC_INVALID_PARAMS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
        T(test_every_key_once),
        T(test_who_stays_is_listed_once_whoever_comes_and_goes),
        T(test_growing_tables_repeat_and_lose_nothing),
        T(test_pages_end_after_so_many_visits),
        T(test_questions_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
