/*
 * MC_TEST_THREADS. Through a live cluster: of writers that race for one key with put-if-absent
 * exactly one wins; writers that count with put-if-version lose no step; an object with a time to
 * live is never read after its end.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "support/cluster.h"

#define WRITERS 4
#define STEPS   50
#define ROUNDS  30

struct fixture {
    struct mc_master_service *master;
    struct mc_store *node, *clients[WRITERS];
    pthread_barrier_t barrier;
};
struct writer {
    struct fixture *f;
    unsigned index;
    unsigned won[ROUNDS];
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    f->master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(f->master);
    f->node = cluster_open(port, 64u << 20, true);
    for (unsigned i = 0; i < WRITERS; i++) {
        f->clients[i] = cluster_open(port, 0, true);
    }
    pthread_barrier_init(&f->barrier, NULL, WRITERS);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    for (unsigned i = 0; i < WRITERS; i++) {
        mc_store_close(f->clients[i]);
    }
    mc_store_close(f->node);
    mc_master_service_stop(f->master);
    pthread_barrier_destroy(&f->barrier);
    free(f);
    return 0;
}

static void run_writers(struct fixture *f, struct writer *writers, void *(*run)(void *)) {
    pthread_t threads[WRITERS];
    for (unsigned i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.f = f, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &writers[i]), 0);
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void *race(void *arg) {
    struct writer *w = arg;
    struct mc_replicate_config config = {.condition = MC_PUT_IF_ABSENT};
    for (unsigned r = 0; r < ROUNDS; r++) {
        char key[32];
        snprintf(key, sizeof(key), "race/%u", r);
        pthread_barrier_wait(&w->f->barrier);
        enum mc_status status =
            mc_store_put(w->f->clients[w->index], key, &w->index, sizeof(w->index), &config);
        assert_true(status == MC_OK || status == MC_OBJECT_ALREADY_EXISTS);
        w->won[r] = status == MC_OK;
    }
    return NULL;
}

static void test_one_writer_wins_an_absent_key(void **state) {
    struct fixture *f = *state;
    static struct writer writers[WRITERS];
    run_writers(f, writers, race);
    for (unsigned r = 0; r < ROUNDS; r++) {
        char key[32];
        unsigned winners = 0, value;
        size_t length;
        snprintf(key, sizeof(key), "race/%u", r);
        assert_int_equal(mc_store_get(f->node, key, &value, sizeof(value), &length), MC_OK);
        assert_int_equal(length, sizeof(value));
        for (unsigned i = 0; i < WRITERS; i++) {
            winners += writers[i].won[r];
        }
        assert_int_equal(winners, 1);
        assert_true(value < WRITERS && writers[value].won[r]);
    }
}

/* Reads, adds one, writes if nobody else did. The version is asked for before and behind the read:
 * only then is it that of what was read. */
static bool step(struct mc_store *s) {
    const char *key = "counter";
    struct mc_object_info before, behind;
    enum mc_status result;
    uint64_t count;
    size_t length;
    if (mc_store_inspect(s, &key, 1, &before, &result) != MC_OK || result != MC_OK ||
        mc_store_get(s, key, &count, sizeof(count), &length) != MC_OK ||
        mc_store_inspect(s, &key, 1, &behind, &result) != MC_OK || result != MC_OK ||
        before.version != behind.version) {
        return false;
    }
    struct mc_replicate_config config = {
        .condition = MC_PUT_IF_VERSION, .expected = &before.version, .expected_count = 1};
    count++;
    enum mc_status status = mc_store_upsert(s, key, &count, sizeof(count), &config);
    assert_true(status == MC_OK || status == MC_INVALID_VERSION ||
                status == MC_REPLICA_IS_NOT_READY);
    return status == MC_OK;
}

static void *count_up(void *arg) {
    struct writer *w = arg;
    for (unsigned done = 0; done < STEPS;) {
        done += step(w->f->clients[w->index]);
    }
    return NULL;
}

static void test_writers_who_compare_lose_no_step(void **state) {
    struct fixture *f = *state;
    static struct writer writers[WRITERS];
    uint64_t count = 0;
    size_t length;
    assert_int_equal(mc_store_put(f->node, "counter", &count, sizeof(count), NULL), MC_OK);
    run_writers(f, writers, count_up);
    assert_int_equal(mc_store_get(f->node, "counter", &count, sizeof(count), &length), MC_OK);
    assert_int_equal(count, WRITERS * STEPS);
}

static uint64_t now_ms(void) {
    return mc_now_ms(mc_clock_system());
}

static void test_nothing_is_read_after_its_end(void **state) {
    struct fixture *f = *state;
    struct mc_replicate_config config = {.ttl_ms = 300, .with_hard_pin = true};
    struct mc_object_info info;
    enum mc_status result;
    const char *key = "mortal";
    uint8_t value[1000], got[1000];
    size_t length;
    mc_test_fill(value, sizeof(value), 5);
    assert_int_equal(mc_store_put(f->node, key, value, sizeof(value), &config), MC_OK);
    uint64_t put_by = now_ms();
    assert_int_equal(mc_store_inspect(f->node, &key, 1, &info, &result), MC_OK);
    if (result == MC_OK) { /* unless this machine takes its time */
        assert_true(info.has_ttl && info.ttl_left_ms <= 300);
        assert_int_equal(info.size, sizeof(value));
        assert_int_equal(info.replicas, 1);
    }
    for (;;) {
        uint64_t asked = now_ms();
        enum mc_status status = mc_store_get(f->clients[0], key, got, sizeof(got), &length);
        if (status != MC_OK) {
            assert_true(status == MC_OBJECT_NOT_FOUND || status == MC_LEASE_EXPIRED);
            break;
        }
        assert_true(asked <= put_by + 300);
        assert_int_equal(length, sizeof(value));
        mc_test_verify(got, length, 5);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    bool exists = true;
    assert_int_equal(mc_store_exist(f->node, key, &exists), MC_OK);
    assert_false(exists);
    assert_int_equal(mc_store_put(f->node, key, value, 500, NULL), MC_OK);
    assert_int_equal(mc_store_get(f->node, key, got, sizeof(got), &length), MC_OK);
    assert_int_equal(length, 500);
}

static void test_bad_wishes_are_refused(void **state) {
    struct fixture *f = *state;
    struct mc_replicate_config config = {.condition = MC_PUT_IF_VERSION};
    uint64_t version = 1;
    uint8_t byte = 0;
    assert_int_equal(mc_store_put(f->node, "k", &byte, 1, &config), MC_INVALID_PARAMS);
    config.expected = &version;
    config.expected_count = 2;
    assert_int_equal(mc_store_put(f->node, "k", &byte, 1, &config), MC_INVALID_PARAMS);
    config.expected_count = 1;
    assert_int_equal(mc_store_put(f->node, "k", &byte, 1, &config), MC_OBJECT_NOT_FOUND);
    config.condition = (enum mc_put_condition)9;
    assert_int_equal(mc_store_put(f->node, "k", &byte, 1, &config), MC_INVALID_PARAMS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_one_writer_wins_an_absent_key),
        T(test_writers_who_compare_lose_no_step),
        T(test_nothing_is_read_after_its_end),
        T(test_bad_wishes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
