/* Bytes in, bytes out: every RPC is answered, bad bodies are refused,
 * features that are off say so. */
#include "support/master_fixture.h"

static enum mc_rpc_errc serve(struct fixture *f, enum mc_master_rpc rpc, unsigned version,
                              uint64_t *words, const void *args, struct mc_buf *answer) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    struct mc_buf body = {0};
    mc_master_rpc_encode_args(desc, version, args, &body);
    struct mc_rpc_request request = {.function_id = desc->function_id,
                                     .body = {body.data, body.len},
                                     .arena = &f->arena,
                                     .peer = "1.2.3.4:5",
                                     .peer_words = words};
    struct mc_buf attachment = {0};
    struct mc_rpc_reply reply = {.errc = MC_RPC_OK, .body = answer, .attachment = &attachment};
    mc_buf_clear(answer);
    mc_master_serve(f->m, &request, &reply);
    mc_buf_free(&body);
    mc_buf_free(&attachment);
    return reply.errc;
}

static void decode(struct fixture *f, enum mc_master_rpc rpc, unsigned version,
                   const struct mc_buf *answer, void *ret) {
    assert_ok(mc_master_rpc_decode_ret(&mc_master_rpc_table()[rpc], version,
                                       (struct mc_str){answer->data, answer->len}, &f->arena, ret));
}

static void test_a_put_and_a_get_by_bytes(void **state) {
    struct fixture *f = *state;
    struct mc_buf answer = {0};
    uint64_t words[MC_RPC_PEER_WORDS] = {0};
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    struct mw_a_put_start start = {client_a, MC_STR("k"), 10, replicas(1), MC_STR("default")};
    struct mw_e_vec started;
    assert_int_equal(serve(f, MC_RPC_PutStart, 0, words, &start, &answer), MC_RPC_OK);
    decode(f, MC_RPC_PutStart, 0, &answer, &started);
    assert_int_equal(started.error, MC_OK);
    struct mw_a_put_end end = {client_a, {.key = MC_STR("k")}, MC_REPLICA_ALL, MC_STR("default")};
    struct mw_e_void ended;
    assert_int_equal(serve(f, MC_RPC_PutEnd, 0, words, &end, &answer), MC_RPC_OK);
    decode(f, MC_RPC_PutEnd, 0, &answer, &ended);
    assert_int_equal(ended.error, MC_OK);
    struct mw_a_key key = {MC_STR("k"), MC_STR("default")};
    struct mw_e_list found;
    assert_int_equal(serve(f, MC_RPC_GetReplicaList, 0, words, &key, &answer), MC_RPC_OK);
    decode(f, MC_RPC_GetReplicaList, 0, &answer, &found);
    assert_int_equal(found.error, MC_OK);
    assert_int_equal(((struct mw_replica *)found.value.replicas.items)->memory.size, 10);
    mc_buf_free(&answer);
}

static void test_a_peer_of_an_older_release_is_answered_in_its_words(void **state) {
    struct fixture *f = *state;
    struct mc_buf answer = {0};
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[MC_RPC_GetReplicaList];
    uint64_t words[MC_RPC_PEER_WORDS] = {0};
    assert_int_equal(desc->version_count, 2);
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    struct mw_a_put_start start = {client_a, MC_STR("k"), 10, replicas(1), MC_STR("default")};
    struct mw_a_put_end end = {client_a, {.key = MC_STR("k")}, MC_REPLICA_ALL, MC_STR("default")};
    struct mw_a_key key = {MC_STR("k"), MC_STR("default")};
    struct mw_e_list found;
    assert_int_equal(serve(f, MC_RPC_PutStart, 1, words, &start, &answer), MC_RPC_OK);
    assert_int_equal(serve(f, MC_RPC_PutEnd, 1, words, &end, &answer), MC_RPC_OK);
    assert_int_equal(serve(f, MC_RPC_GetReplicaList, 1, words, &key, &answer), MC_RPC_OK);
    decode(f, MC_RPC_GetReplicaList, 1, &answer, &found);
    assert_int_equal(found.error, MC_OK);
    uint64_t other[MC_RPC_PEER_WORDS] = {0};
    assert_int_equal(serve(f, MC_RPC_GetReplicaList, 0, other, &key, &answer), MC_RPC_OK);
    decode(f, MC_RPC_GetReplicaList, 0, &answer, &found);
    mc_buf_free(&answer);
}

static void test_bad_bodies_and_unknown_functions_are_refused(void **state) {
    struct fixture *f = *state;
    struct mc_buf body = {0}, attachment = {0};
    struct mc_rpc_reply reply = {.errc = MC_RPC_OK, .body = &body, .attachment = &attachment};
    struct mc_rpc_request request = {.function_id = 0x12345678, .arena = &f->arena, .peer = "x:1"};
    mc_master_serve(f->m, &request, &reply);
    assert_int_equal(reply.errc, MC_RPC_NOT_REGISTERED);
    static const char *const bodies[] = {"", "\1", "\1\2\3\4", "\xd8\x1e\xf9\x7c",
                                         "\xd8\x1e\xf9\x7c\x02k"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bodies); i++) {
        request.function_id = mc_master_rpc_table()[MC_RPC_ExistKey].function_id;
        request.body = str(bodies[i]);
        reply.errc = MC_RPC_OK;
        mc_master_serve(f->m, &request, &reply);
        assert_int_equal(reply.errc, MC_RPC_INVALID_ARGUMENTS);
        assert_int_equal(body.len, 0);
    }
    mc_buf_free(&body);
    mc_buf_free(&attachment);
}

static void test_every_rpc_answers_empty_arguments(void **state) {
    struct fixture *f = *state;
    struct mc_buf answer = {0};
    for (unsigned i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        const struct mc_rpc_desc *desc = &mc_master_rpc_table()[i];
        void *args = mc_arena_zalloc(&f->arena, desc->args_size + 1);
        void *ret = mc_arena_zalloc(&f->arena, desc->ret_size + 1);
        assert_int_equal(serve(f, (enum mc_master_rpc)i, 0, NULL, args, &answer), MC_RPC_OK);
        decode(f, (enum mc_master_rpc)i, 0, &answer, ret);
    }
    mc_buf_free(&answer);
}

static void test_features_that_are_off_say_so(void **state) {
    struct fixture *f = *state;
    static const struct {
        enum mc_master_rpc rpc;
        int32_t error;
    } cases[] = {
        {MC_RPC_MountLocalDiskSegment, MC_UNABLE_OFFLOAD},
        {MC_RPC_OffloadObjectHeartbeat, MC_UNABLE_OFFLOAD},
        {MC_RPC_NotifyOffloadSuccess, MC_UNABLE_OFFLOAD},
        {MC_RPC_MountNoFSegment, MC_NOT_SUPPORTED},
        {MC_RPC_QueryTask, MC_TASK_NOT_FOUND},
        {MC_RPC_MarkTaskToComplete, MC_TASK_NOT_FOUND},
        {MC_RPC_FetchTasks, MC_OK},
        {MC_RPC_GetAllNoFSegments, MC_OK},
        {MC_RPC_ServiceReady, MC_OK},
        {MC_RPC_GetFsdir, MC_OK},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        const struct mc_rpc_desc *desc = &mc_master_rpc_table()[cases[i].rpc];
        void *args = mc_arena_zalloc(&f->arena, desc->args_size + 1);
        int32_t *ret = mc_arena_zalloc(&f->arena, desc->ret_size);
        call(f, cases[i].rpc, args, ret);
        assert_int_equal(*ret, cases[i].error);
    }
    struct mw_a_evict_disk evict = {client_a, MC_STR("k"), MC_STR("default"), MC_REPLICA_MEMORY};
    struct mw_e_void r;
    call(f, MC_RPC_EvictDiskReplica, &evict, &r);
    assert_int_equal(r.error, MC_INVALID_PARAMS);
    evict.type = MC_REPLICA_DISK;
    call(f, MC_RPC_EvictDiskReplica, &evict, &r);
    assert_int_equal(r.error, MC_OBJECT_NOT_FOUND);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_put_and_a_get_by_bytes),
        TEST(test_a_peer_of_an_older_release_is_answered_in_its_words),
        TEST(test_bad_bodies_and_unknown_functions_are_refused),
        TEST(test_every_rpc_answers_empty_arguments),
        TEST(test_features_that_are_off_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
