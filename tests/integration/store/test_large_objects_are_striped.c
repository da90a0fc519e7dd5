/*
 * Objects of a size from which on they are striped lie on every node, come back
 * byte for byte (as a whole, in parts, in a session), can be larger than any node's memory, leave a
 * drained node while they are read, go as a whole when a node is killed that had the only copy of a
 * stripe, stay when it had not, and are refused, not given in part, to who does not know stripes.
 */
#include <signal.h>
#include <stdio.h>

#include "master/core.h"
#include "rpc/rpc.h"
#include "support/cluster.h"
#include "wire/master_rpc.h"

#define MIB     (1u << 20)
#define SEGMENT (64u * MIB)
#define STRIPED (32u * MIB) /* the least */
#define LARGEST (66u * MIB) /* more than a node has */
#define NODES   3

struct fixture {
    struct mc_master_service *master;
    uint16_t port;
    struct cluster_process nodes[NODES];
    struct mc_store *writer, *reader; /* the reader stripes nothing of its own */
    uint8_t *value, *got;
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    struct cluster_master_options options;
    cluster_master_options_init(&options);
    options.lease_ms = 2000;
    options.client_ttl_ms = 4000;
    f->master = cluster_start_master(&options);
    f->port = mc_master_service_rpc_port(f->master);
    for (unsigned i = 0; i < NODES; i++) {
        f->nodes[i] = cluster_spawn_node(f->port, SEGMENT, true);
    }
    setenv("MC_STORE_STRIPE_BYTES", "33554432", 1);
    f->writer = cluster_open(f->port, 0, true);
    unsetenv("MC_STORE_STRIPE_BYTES");
    f->reader = cluster_open(f->port, 0, true);
    f->value = malloc(LARGEST);
    f->got = malloc(LARGEST);
    assert_non_null(f->value);
    assert_non_null(f->got);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mc_store_close(f->reader);
    mc_store_close(f->writer);
    for (unsigned i = 0; i < NODES; i++) {
        if (f->nodes[i].pid != 0) {
            cluster_kill(&f->nodes[i], SIGKILL);
        }
    }
    mc_master_service_stop(f->master);
    free(f->value);
    free(f->got);
    free(f);
    return 0;
}

static struct mc_object_info inspect(struct fixture *f, const char *key) {
    struct mc_object_info info = {0};
    enum mc_status result;
    assert_ok(mc_store_inspect(f->reader, &key, 1, &info, &result));
    assert_ok(result);
    return info;
}

static void read_back(struct fixture *f, const char *key, size_t size, uint64_t seed) {
    size_t length = 0;
    memset(f->got, 0, size);
    assert_ok(mc_store_get(f->reader, key, f->got, LARGEST, &length));
    assert_int_equal(length, size);
    mc_test_verify(f->got, size, seed);
}

static bool empty(void *ctx) {
    struct fixture *f = ctx;
    struct mc_arena arena = {0};
    size_t count;
    uint64_t used = 0;
    const struct mc_master_segment_info *all =
        mc_master_segments(mc_master_service_core(f->master), &arena, &count);
    for (size_t i = 0; i < count; i++) {
        used += all[i].used_bytes;
    }
    mc_arena_free(&arena);
    return used == 0;
}

/* Leased places are free again only when the lease has ended. */
static void clear(struct fixture *f) {
    uint64_t removed;
    assert_ok(mc_store_remove_all(f->reader, true, &removed));
    cluster_wait_until(empty, f, 60000, "the nodes are empty");
}

static void test_every_byte_of_every_size(void **state) {
    struct fixture *f = *state;
    const size_t sizes[] = {LARGEST, STRIPED - 1, STRIPED + 1};
    const uint32_t stripes[] = {3, 1, 2};
    const char *const keys[] = {"largest", "below", "above"};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        mc_test_fill(f->value, sizes[i], i);
        assert_ok(mc_store_put(f->writer, keys[i], f->value, sizes[i], NULL));
        assert_int_equal(inspect(f, keys[i]).stripes, stripes[i]);
        assert_int_equal(inspect(f, keys[i]).size, sizes[i]);
        uint64_t length = 0;
        assert_ok(mc_store_size(f->reader, keys[i], &length));
        assert_int_equal(length, sizes[i]);
        read_back(f, keys[i], sizes[i], i);
    }
    clear(f);
}

static void test_pieces_in_and_ranges_out(void **state) {
    struct fixture *f = *state;
    const size_t size = 40 * MIB + 777,
                 cuts[] = {0, 1, 3 * MIB + 5, 17 * MIB, 40 * MIB + 776, size};
    struct mc_slice slices[MC_ARRAY_LEN(cuts) - 1];
    mc_test_fill(f->value, size, 9);
    for (size_t i = 0; i + 1 < MC_ARRAY_LEN(cuts); i++) {
        slices[i] = (struct mc_slice){f->value + cuts[i], cuts[i + 1] - cuts[i]};
    }
    struct mc_store_item item = {.key = "p", .slices = slices, .slice_count = MC_ARRAY_LEN(slices)};
    assert_ok(mc_store_upsert_batch(f->writer, &item, 1, NULL));
    assert_ok(item.status);
    assert_int_equal(inspect(f, "p").stripes, 2);
    read_back(f, "p", size, 9);

    const uint64_t at[] = {0, MIB - 3, 5 * MIB + 1, size - 10};
    const size_t length[] = {10, 6, 2 * MIB + 100, 10};
    struct mc_store_range ranges[MC_ARRAY_LEN(at)];
    const char *key = "p";
    enum mc_status result;
    for (unsigned session = 0; session < 2; session++) {
        memset(f->got, 0, size);
        for (size_t i = 0; i < MC_ARRAY_LEN(at); i++) {
            ranges[i] = (struct mc_store_range){f->got + at[i], length[i], at[i], MC_OK};
        }
        struct mc_store_range_item part = {
            .key = key, .ranges = ranges, .range_count = MC_ARRAY_LEN(at)};
        if (session) {
            assert_ok(mc_store_get_session_start(f->reader, &key, 1, &result));
            assert_ok(result);
            assert_ok(mc_store_get_session_read(f->reader, &part, 1));
            assert_ok(mc_store_get_session_end(f->reader, &key, 1));
        } else {
            assert_ok(mc_store_get_ranges(f->reader, &part, 1));
        }
        assert_ok(part.status);
        for (size_t i = 0; i < MC_ARRAY_LEN(at); i++) {
            assert_ok(ranges[i].status);
            assert_memory_equal(f->got + at[i], f->value + at[i], length[i]);
        }
    }
    struct mc_store_view view;
    assert_ok(mc_store_view(f->reader, "p", &view)); /* gathered: it is nowhere in one piece */
    assert_int_equal(view.length, size);
    mc_test_verify(view.data, size, 9);
    assert_true(mc_store_view_valid(&view));
    mc_store_view_release(f->reader, &view);
}

/* In a batch with others, which do not change by it. */
static void test_a_batch_of_both_kinds(void **state) {
    struct fixture *f = *state;
    mc_test_fill(f->value, STRIPED, 4);
    struct mc_slice large = {f->value, STRIPED}, small = {f->value, 5000};
    struct mc_store_item put[] = {{.key = "s1", .slices = &small, .slice_count = 1},
                                  {.key = "l", .slices = &large, .slice_count = 1},
                                  {.key = "s2", .slices = &small, .slice_count = 1}};
    assert_ok(mc_store_upsert_batch(f->writer, put, 3, NULL));
    struct mc_slice into[] = {
        {f->got, 5000}, {f->got + 8192, STRIPED}, {f->got + 8192 + STRIPED, 5000}};
    struct mc_store_item get[] = {{.key = "s1", .slices = &into[0], .slice_count = 1},
                                  {.key = "l", .slices = &into[1], .slice_count = 1},
                                  {.key = "s2", .slices = &into[2], .slice_count = 1},
                                  {.key = "none", .slices = &into[0], .slice_count = 1}};
    assert_ok(mc_store_get_batch(f->reader, get, 4));
    for (size_t i = 0; i < 3; i++) {
        assert_ok(put[i].status);
        assert_ok(get[i].status);
        mc_test_verify(into[i].ptr, into[i].length, 4);
    }
    assert_int_equal(get[3].status, MC_OBJECT_NOT_FOUND);
}

struct waiting {
    struct fixture *f;
    struct mc_store_task_id id;
    struct mc_store_task task;
};
static bool over(void *ctx) {
    struct waiting *w = ctx;
    assert_ok(mc_store_task(w->f->reader, w->id, &w->task));
    return w->task.status >= 2;
}

/* The large object of the batch has two stripes: one goes to the third node. */
static void test_a_stripe_moves(void **state) {
    struct fixture *f = *state;
    struct mc_replica_info stripes[4];
    struct mc_arena arena = {0};
    size_t stripe_count, count;
    char from[300] = "", to[300] = "";
    assert_ok(mc_store_replicas(f->reader, "l", stripes, 4, &stripe_count));
    assert_int_equal(stripe_count, 2);
    const struct mc_master_segment_info *all =
        mc_master_segments(mc_master_service_core(f->master), &arena, &count);
    for (size_t i = 0; i < count; i++) {
        struct mc_str endpoint = all[i].segment.te_endpoint, name = all[i].segment.name;
        bool first = mc_str_eq(endpoint, mc_str_from(stripes[0].endpoint));
        bool second = mc_str_eq(endpoint, mc_str_from(stripes[1].endpoint));
        if (!second) {
            snprintf(first ? from : to, sizeof(from), "%.*s", (int)name.len, name.ptr);
        }
    }
    mc_arena_free(&arena);
    struct waiting w = {.f = f};
    assert_ok(mc_store_move(f->reader, "l", from, to, &w.id));
    cluster_wait_until(over, &w, 60000, "the move ends");
    assert_string_equal(w.task.message, "Task completed successfully");
    struct mc_replica_info after[4];
    assert_ok(mc_store_replicas(f->reader, "l", after, 4, &stripe_count));
    assert_int_equal(stripe_count, 2);
    assert_string_not_equal(after[0].endpoint, stripes[0].endpoint);
    assert_string_equal(after[1].endpoint, stripes[1].endpoint);
    read_back(f, "l", STRIPED, 4);
    /* A copy that is whole on the node that had the first stripe: of both, from two nodes. */
    assert_ok(mc_store_copy(f->reader, "l", (const char *const[]){from}, 1, &w.id));
    cluster_wait_until(over, &w, 60000, "the copy ends");
    assert_string_equal(w.task.message, "Task completed successfully");
    assert_int_equal(inspect(f, "l").replicas, 2);
    read_back(f, "l", STRIPED, 4);
}

static void test_upstreams_words_are_refused(void **state) {
    struct fixture *f = *state;
    struct mc_rpc_client *client;
    char peer[32];
    mc_test_fill(f->value, STRIPED, 5);
    assert_ok(mc_store_put(f->writer, "u", f->value, STRIPED, NULL));
    snprintf(peer, sizeof(peer), "127.0.0.1:%u", f->port);
    assert_ok(mc_rpc_client_create(peer, 1, 1000, &client));
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[MC_RPC_GetReplicaList];
    struct mw_a_key args = {MC_STR("u"), MC_STR("default")};
    struct mc_buf body = {0}, reply = {0};
    struct mc_arena arena = {0};
    struct mw_e_list answer;
    mc_master_rpc_encode_args(desc, 0, &args, &body);
    assert_ok(mc_rpc_call(client, desc->function_id, (struct mc_str){body.data, body.len},
                          mc_now_ns(mc_clock_system()) + 10 * MC_SEC, &reply, NULL));
    assert_ok(
        mc_master_rpc_decode_ret(desc, 0, (struct mc_str){reply.data, reply.len}, &arena, &answer));
    assert_int_equal(answer.error, MC_NOT_SUPPORTED);
    mc_rpc_client_destroy(client);
    mc_buf_free(&body);
    mc_buf_free(&reply);
    mc_arena_free(&arena);
    clear(f);
}

static bool gone(void *ctx) {
    struct fixture *f = ctx;
    bool exists = true;
    assert_ok(mc_store_exist(f->reader, "d", &exists));
    return !exists;
}

struct draining {
    struct fixture *f;
    struct mc_uuid job;
    struct mc_master_job_info info;
};
static bool drained(void *ctx) {
    struct draining *d = ctx;
    struct mc_arena arena = {0};
    read_back(d->f, "away", 48 * MIB, 11); /* and no reader notices */
    assert_ok(mc_master_job(mc_master_service_core(d->f->master), d->job, &arena, &d->info));
    mc_arena_free(&arena);
    return d->info.status >= MC_JOB_SUCCEEDED;
}

/* A node's stripes leave it while they are read; on the two that stay, two share one. */
static void test_a_drained_node_keeps_no_stripe(void **state) {
    struct fixture *f = *state;
    struct mc_master *master = mc_master_service_core(f->master);
    struct draining d = {.f = f};
    struct mc_arena arena = {0};
    size_t count, left;
    mc_test_fill(f->value, 48 * MIB, 11);
    assert_ok(mc_store_put(f->writer, "away", f->value, 48 * MIB, NULL));
    const struct mc_master_segment_info *all = mc_master_segments(master, &arena, &count);
    struct mc_str name = all[0].segment.name, endpoint = all[0].segment.te_endpoint;
    struct mc_vec segments = {&name, 1}, none = {0};
    assert_ok(mc_master_drain(master, &segments, &none, 2, false, &d.job));
    cluster_wait_until(drained, &d, 120000, "the node is drained");
    assert_int_equal(d.info.status, MC_JOB_SUCCEEDED);
    assert_int_equal(d.info.succeeded, 1);
    struct mc_replica_info replicas[4];
    assert_ok(mc_store_replicas(f->reader, "away", replicas, 4, &left));
    assert_int_equal(left, 3);
    for (size_t i = 0; i < left; i++) {
        assert_false(mc_str_eq(endpoint, mc_str_from(replicas[i].endpoint)));
    }
    read_back(f, "away", 48 * MIB, 11);
    mc_segments_set_status(master, name, MC_SEGMENT_DRAINED, MC_SEGMENT_OK);
    mc_arena_free(&arena);
    clear(f);
}

/* Last: a node goes. Of two copies nothing is lost, at once and afterwards: reads go on with the
 * other copy of what it had, also within a session. */
static void test_a_killed_node_takes_the_object_with_it(void **state) {
    struct fixture *f = *state;
    size_t length;
    struct mc_replicate_config two = {.replica_num = 2};
    const char *key = "two";
    enum mc_status result;
    mc_test_fill(f->value, 48 * MIB + 7, 8);
    assert_ok(mc_store_put(f->writer, key, f->value, 48 * MIB + 7, &two));
    assert_int_equal(inspect(f, key).stripes, 3); /* so each node has two */
    assert_int_equal(inspect(f, key).replicas, 2);
    read_back(f, key, 48 * MIB + 7, 8);
    mc_test_fill(f->value, 48 * MIB, 6);
    assert_ok(mc_store_put(f->writer, "d", f->value, 48 * MIB, NULL));
    assert_int_equal(inspect(f, "d").stripes, 3);
    read_back(f, "d", 48 * MIB, 6);
    cluster_kill(&f->nodes[1], SIGKILL);
    f->nodes[1].pid = 0;
    read_back(f, key, 48 * MIB + 7, 8); /* the master does not know yet */
    assert_int_not_equal(mc_store_get(f->reader, "d", f->got, LARGEST, &length), MC_OK);
    memset(f->got, 0, 48 * MIB + 7);
    struct mc_store_range all = {f->got, 48 * MIB + 7, 0, MC_OK};
    struct mc_store_range_item whole = {.key = key, .ranges = &all, .range_count = 1};
    assert_ok(mc_store_get_session_start(f->reader, &key, 1, &result));
    assert_ok(result);
    assert_ok(mc_store_get_session_read(f->reader, &whole, 1));
    assert_ok(whole.status);
    mc_test_verify(f->got, 48 * MIB + 7, 8);
    assert_ok(mc_store_get_session_end(f->reader, &key, 1));
    cluster_wait_until(gone, f, 60000, "the object is gone");
    read_back(f, key, 48 * MIB + 7, 8);
    assert_int_equal(inspect(f, key).replicas, 1);
    clear(f);
    mc_test_fill(f->value, STRIPED, 7);
    assert_ok(mc_store_put(f->writer, "d", f->value, STRIPED, NULL)); /* on those that are left */
    assert_int_equal(inspect(f, "d").stripes, 2);
    read_back(f, "d", STRIPED, 7);
}

int main(int argc, char **argv) {
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_of_every_size),
        cmocka_unit_test(test_pieces_in_and_ranges_out),
        cmocka_unit_test(test_a_batch_of_both_kinds),
        cmocka_unit_test(test_a_stripe_moves),
        cmocka_unit_test(test_upstreams_words_are_refused),
        cmocka_unit_test(test_a_drained_node_keeps_no_stripe),
        cmocka_unit_test(test_a_killed_node_takes_the_object_with_it),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
