/*
 * MC_TEST_THREADS. A copy makes an object live on after its first node has gone; a move empties a
 * node while somebody reads all the time, and every byte that he reads is right. Nodes are in
 * other processes and in this one, so the bytes go over the network.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "support/cluster.h"

#define SEGMENT (64u << 20)
#define LARGE   (20u << 20)
#define OBJECTS 40

struct fixture {
    struct mc_master_service *master;
    struct cluster_process node;
    struct mc_store *a, *b, *client;
    char other[300]; /* the name of the node in another process */
    uint8_t *value, *got;
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    struct cluster_master_options options;
    struct mc_arena arena = {0};
    size_t count;
    cluster_master_options_init(&options);
    f->master = cluster_start_master(&options);
    uint16_t port = mc_master_service_rpc_port(f->master);
    f->node = cluster_spawn_node(port, SEGMENT, true);
    const struct mc_master_segment_info *all =
        mc_master_segments(mc_master_service_core(f->master), &arena, &count);
    assert_int_equal(count, 1);
    snprintf(f->other, sizeof(f->other), "%.*s", (int)all->segment.name.len, all->segment.name.ptr);
    mc_arena_free(&arena);
    f->a = cluster_open(port, SEGMENT, true);
    f->b = cluster_open(port, SEGMENT, true);
    f->client = cluster_open(port, 0, true);
    f->value = malloc(LARGE);
    f->got = malloc(LARGE);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mc_store_close(f->client);
    mc_store_close(f->b);
    mc_store_close(f->a);
    cluster_kill(&f->node, SIGKILL);
    mc_master_service_stop(f->master);
    free(f->value);
    free(f->got);
    free(f);
    return 0;
}

static void put_on(struct fixture *f, const char *key, const char *segment, size_t size,
                   uint64_t seed) {
    struct mc_replicate_config config = {.preferred_segments = &segment,
                                         .preferred_segment_count = 1};
    mc_test_fill(f->value, size, seed);
    assert_ok(mc_store_put(f->client, key, f->value, size, &config));
}

static void read_back(struct fixture *f, const char *key, size_t size, uint64_t seed) {
    size_t length = 0;
    memset(f->got, 0, size);
    assert_ok(mc_store_get(f->client, key, f->got, LARGE, &length));
    assert_int_equal(length, size);
    mc_test_verify(f->got, size, seed);
}

struct waiting {
    struct fixture *f;
    struct mc_store_task_id id;
    struct mc_store_task task;
};
static bool over(void *ctx) {
    struct waiting *w = ctx;
    assert_ok(mc_store_task(w->f->client, w->id, &w->task));
    return w->task.status >= 2;
}
static struct mc_store_task await(struct fixture *f, struct mc_store_task_id id) {
    struct waiting w = {.f = f, .id = id};
    cluster_wait_until(over, &w, 15000, "the task ends");
    return w.task;
}

static size_t replicas(struct fixture *f, const char *key, const struct mc_store *only) {
    struct mc_replica_info info[4];
    size_t count = 0, there = 0;
    assert_ok(mc_store_replicas(f->client, key, info, 4, &count));
    for (size_t i = 0; i < count; i++) {
        const char *endpoint = mc_engine_name(mc_store_engine((struct mc_store *)(uintptr_t)only));
        there += strcmp(info[i].endpoint, endpoint) == 0;
    }
    return only != NULL ? there : count;
}

static void test_a_copied_object_outlives_its_node(void **state) {
    struct fixture *f = *state;
    struct mc_store_task_id id = {0};
    const char *targets[] = {mc_store_hostname(f->b), f->other};
    put_on(f, "k", mc_store_hostname(f->a), LARGE, 1);
    assert_ok(mc_store_copy(f->client, "k", targets, 2, &id));
    struct mc_store_task task = await(f, id);
    assert_string_equal(task.message, "Task completed successfully");
    assert_int_equal(task.status, 3);
    assert_int_equal(task.type, 0);
    struct mc_replica_info info[4];
    size_t count;
    assert_ok(mc_store_replicas(f->client, "k", info, 4, &count));
    assert_int_equal(count, 3);
    mc_store_close(f->a);
    f->a = NULL;
    read_back(f, "k", LARGE, 1);
    cluster_kill(&f->node, SIGKILL);
    read_back(f, "k", LARGE, 1);
}

static void test_a_move_from_another_process(void **state) {
    struct fixture *f = *state;
    struct mc_store_task_id id = {0};
    put_on(f, "k", f->other, LARGE, 2);
    assert_ok(mc_store_move(f->client, "k", f->other, mc_store_hostname(f->b), &id));
    assert_int_equal(await(f, id).status, 3);
    assert_int_equal(replicas(f, "k", f->b), 1);
    cluster_kill(&f->node, SIGKILL);
    read_back(f, "k", LARGE, 2);
}

static void test_a_task_that_cannot_be_done_says_why(void **state) {
    struct fixture *f = *state;
    struct mc_store_task_id id = {0}, none = {1, 2};
    struct mc_store_task task;
    const char *target = mc_store_hostname(f->b);
    assert_int_equal(mc_store_copy(f->client, "none", &target, 1, &id), MC_OBJECT_NOT_FOUND);
    assert_int_equal(mc_store_copy(f->client, "none", NULL, 0, &id), MC_INVALID_PARAMS);
    assert_int_equal(mc_store_task(f->client, none, &task), MC_TASK_NOT_FOUND);
    put_on(f, "k", mc_store_hostname(f->a), 1000, 1);
    assert_ok(mc_store_move(f->client, "k", mc_store_hostname(f->a), target, &id));
    assert_ok(mc_store_remove(f->client, "k", true)); /* before anybody takes it */
    task = await(f, id);
    assert_int_equal(task.status, 2);
    assert_string_equal(task.message, "OBJECT_NOT_FOUND");
}

struct reading {
    struct mc_store *store;
    _Atomic bool stop;
    _Atomic uint64_t reads;
};
static void *read_all_the_time(void *arg) {
    struct reading *r = arg;
    uint8_t *got = malloc(100000);
    for (unsigned i = 0; !atomic_load_explicit(&r->stop, memory_order_relaxed); i++) {
        char key[16];
        size_t length = 0;
        snprintf(key, sizeof(key), "k%u", i % OBJECTS);
        memset(got, 0, 100000);
        assert_ok(mc_store_get(r->store, key, got, 100000, &length));
        assert_int_equal(length, 90000 + i % OBJECTS);
        mc_test_verify(got, length, i % OBJECTS);
        atomic_fetch_add_explicit(&r->reads, 1, memory_order_relaxed);
    }
    free(got);
    return NULL;
}

static void test_readers_do_not_notice_a_move(void **state) {
    struct fixture *f = *state;
    struct mc_store_task_id ids[OBJECTS];
    for (unsigned i = 0; i < OBJECTS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        put_on(f, key, i % 2 ? f->other : mc_store_hostname(f->a), 90000 + i, i);
    }
    struct reading reading = {.store = f->client};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_all_the_time, &reading), 0);
    for (unsigned i = 0; i < OBJECTS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        assert_ok(mc_store_move(f->client, key, i % 2 ? f->other : mc_store_hostname(f->a),
                                mc_store_hostname(f->b), &ids[i]));
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        assert_int_equal(await(f, ids[i]).status, 3);
    }
    atomic_store_explicit(&reading.stop, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    assert_true(atomic_load_explicit(&reading.reads, memory_order_relaxed) > 0);
    for (unsigned i = 0; i < OBJECTS; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(replicas(f, key, f->b), 1);
        assert_int_equal(replicas(f, key, f->a), 0);
    }
}

int main(int argc, char **argv) {
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_a_copied_object_outlives_its_node),
        T(test_a_move_from_another_process),
        T(test_a_task_that_cannot_be_done_says_why),
        T(test_readers_do_not_notice_a_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
