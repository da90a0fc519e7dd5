/*
 * Bodies are, byte for byte, what upstream writes: the samples of spec/wire.md section 6, and
 * messages recorded between upstream's own programs, decoded and encoded again. Bodies with and
 * without literal and of every width are read.
 */
#include "support/support.h"
#include "wire/master_rpc.h"

#include "peer_samples.h"

static struct mc_arena arena;

static struct mc_buf unhex(const char *hex) {
    struct mc_buf bytes = {0};
    unsigned high = 0, digits = 0;
    for (; *hex; hex++) {
        if (*hex == ' ') {
            continue;
        }
        unsigned digit = *hex <= '9' ? (unsigned)(*hex - '0') : (unsigned)(*hex - 'a') + 10;
        if (digits++ % 2) {
            mc_buf_putc(&bytes, (char)(high << 4 | digit));
        }
        high = digit;
    }
    assert_int_equal(digits % 2, 0);
    return bytes;
}

static struct mc_str view(const struct mc_buf *buf) {
    return (struct mc_str){buf->data, buf->len};
}

static void assert_bytes(const struct mc_buf *got, const struct mc_buf *want) {
    assert_int_equal(got->len, want->len);
    assert_true(want->len > 0);
    assert_memory_equal(got->data, want->data, want->len);
}

static void expect_args(enum mc_master_rpc rpc, const void *args, const char *hex) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    struct mc_buf want = unhex(hex), got = {0};
    mc_master_rpc_encode_args(desc, 0, args, &got);
    assert_bytes(&got, &want);
    mc_buf_free(&got);
    mc_buf_free(&want);
}

static void expect_ret(enum mc_master_rpc rpc, const void *ret, const char *hex) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    struct mc_buf want = unhex(hex), got = {0};
    mc_master_rpc_encode_ret(desc, 0, ret, &got);
    assert_bytes(&got, &want);
    mc_buf_free(&got);
    mc_buf_free(&want);
}

static void test_samples_of_the_specification(void **state) {
    struct mc_uuid client = {1, 2};
    struct mw_a_key key = {MC_STR("k1"), MC_STR("default")};
    expect_args(MC_RPC_ExistKey, &key, "d81ef97c 02 6b31 07 64656661756c74");
    expect_args(MC_RPC_Ping, &client, "e0836d3c 0100000000000000 0200000000000000");
    struct mw_a_put_start put = {.client = client,
                                 .key = MC_STR("k"),
                                 .length = 16,
                                 .config = {.replica_num = 1},
                                 .tenant = MC_STR("default")};
    expect_args(
        MC_RPC_PutStart, &put,
        "0ebd85e3 0100000000000000 0200000000000000 01 6b 1000000000000000 0100000000000000"
        "0000000000000000 0000000000000000 00 00 00 00 00 00 00 00 00 00 07 64656661756c74");

    struct mw_e_bool yes = {0, true}, missing = {-704, false};
    expect_ret(MC_RPC_ExistKey, &yes, "d200e890 01 01");
    expect_ret(MC_RPC_ExistKey, &missing, "d200e890 00 40fdffff");
    struct mw_e_void ok = {0};
    expect_ret(MC_RPC_PutEnd, &ok, "cc6828af 01");
    struct mw_e_ping ping = {0, {7, MC_CLIENT_OK}};
    expect_ret(MC_RPC_Ping, &ping, "528f2a74 01 0700000000000000 01000000");
    int64_t removed = 3;
    expect_ret(MC_RPC_RemoveAll, &removed, "34686686 0300000000000000");
    struct mw_replica replica = {.id = 5,
                                 .tag = MW_TAG_MEMORY,
                                 .memory = {16, 0x7000, MC_STR("tcp"), MC_STR("h:1")},
                                 .status = MC_REPLICA_COMPLETE};
    struct mw_e_vec replicas = {0, {&replica, 1}};
    expect_ret(MC_RPC_PutStart, &replicas,
               "a62739c4 01 01 0500000000000000 00 1000000000000000 0070000000000000"
               "03 746370 03 683a31 03000000");
}

static void test_answers_with_a_literal(void **state) {
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    struct mc_buf exists = unhex("d300e890 04 870b01 00 01 00");
    struct mw_e_bool found = {-1, true};
    assert_ok(mc_master_rpc_decode_ret(&table[MC_RPC_ExistKey], 0, view(&exists), &arena, &found));
    assert_int_equal(found.error, MC_OK);
    assert_false(found.value);
    struct mc_buf unknown = unhex("538f2a74 04 87fd0301ff01 00 01 0000000000000000 02000000");
    struct mw_e_ping ping = {0};
    assert_ok(mc_master_rpc_decode_ret(&table[MC_RPC_Ping], 0, view(&unknown), &arena, &ping));
    assert_int_equal(ping.value.client_status, MC_CLIENT_NEED_REMOUNT);
    struct mc_buf ready = unhex("35ccb31c 04 87800c01 00 01 05 322e302e30");
    struct mw_e_str text = {0};
    assert_ok(
        mc_master_rpc_decode_ret(&table[MC_RPC_ServiceReady], 0, view(&ready), &arena, &text));
    assert_true(mc_str_eq(text.value, MC_STR("2.0.0")));
    struct mc_buf error = unhex("77facf9d 04 800c 00 0f 696e76616c69642072706320617267");
    struct mc_str message = {0};
    assert_ok(mc_wire_decode(&mc_t_str, mc_type_hash(&mc_t_str), view(&error), &arena, &message));
    assert_true(mc_str_eq(message, MC_STR("invalid rpc arg")));
    mc_buf_free(&exists);
    mc_buf_free(&unknown);
    mc_buf_free(&ready);
    mc_buf_free(&error);
}

static void test_a_long_container_widens_all_counts(void **state) {
    char bytes[300];
    mc_test_fill(bytes, sizeof(bytes), 1);
    struct mc_str text = {bytes, sizeof(bytes)};
    struct mc_buf out = {0}, head = unhex("77facf9d 08 2c01");
    mc_wire_encode(&mc_t_str, mc_type_hash(&mc_t_str), &text, &out);
    assert_int_equal(out.len, head.len + sizeof(bytes));
    assert_memory_equal(out.data, head.data, head.len);
    assert_memory_equal(out.data + head.len, bytes, sizeof(bytes));
    mc_buf_free(&out);
    mc_buf_free(&head);
}

/* What a sample is without its literal: how this library writes it. */
static void strip_literal(struct mc_buf *body) {
    if (body->len < 6 || !(body->data[0] & 1) || body->data[4] != 0x04) {
        return;
    }
    size_t literal_end =
        (size_t)((char *)memchr(body->data + 5, 0, body->len - 5) - body->data) + 1;
    body->data[0] &= ~1;
    memmove(body->data + 4, body->data + literal_end, body->len - literal_end);
    body->len -= literal_end - 4;
}

static void test_recorded_messages_come_back_the_same(void **state) {
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    for (size_t s = 0; s < MC_ARRAY_LEN(PEER_SAMPLES); s++) {
        const struct peer_sample *sample = &PEER_SAMPLES[s];
        size_t i = 0;
        while (i < MC_MASTER_RPC_COUNT && strcmp(table[i].name, sample->rpc) != 0) {
            i++;
        }
        assert_in_range(i, 0, MC_MASTER_RPC_COUNT - 1);
        struct mc_buf body = unhex(sample->hex), again = {0};
        _Alignas(16) char value[1024];
        memset(value, 0xa5, sizeof(value));
        if (sample->answer) {
            assert_ok(
                mc_master_rpc_decode_ret(&table[i], sample->version, view(&body), &arena, value));
            mc_master_rpc_encode_ret(&table[i], sample->version, value, &again);
        } else {
            unsigned version = 99;
            assert_ok(mc_master_rpc_decode_args(&table[i], view(&body), &arena, value, &version));
            assert_int_equal(version, sample->version);
            mc_master_rpc_encode_args(&table[i], version, value, &again);
        }
        strip_literal(&body);
        assert_bytes(&again, &body);
        mc_buf_free(&body);
        mc_buf_free(&again);
    }
    mc_arena_free(&arena);
}

static void test_an_old_put_end_arrives_as_the_new_one(void **state) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[MC_RPC_BatchPutEnd];
    struct mw_object_meta metas[] = {{MC_STR("a"), {true, 7}}, {MC_STR("bc"), {false, 0}}};
    struct mw_a_batch_put_end args = {{1, 2}, {metas, 2}, MC_REPLICA_ALL, MC_STR("default")}, back;
    struct mc_buf body = {0};
    mc_master_rpc_encode_args(desc, 1, &args, &body);
    unsigned version = 0;
    assert_ok(mc_master_rpc_decode_args(desc, view(&body), &arena, &back, &version));
    assert_int_equal(version, 1);
    assert_int_equal(back.metas.count, 2);
    const struct mw_object_meta *got = back.metas.items;
    assert_true(mc_str_eq(got[0].key, MC_STR("a")) && !got[0].checksum.has);
    assert_true(mc_str_eq(got[1].key, MC_STR("bc")) && !got[1].checksum.has);
    mc_buf_free(&body);
    mc_arena_free(&arena);
}

static void test_replicas_that_an_old_peer_cannot_name_are_left_out(void **state) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[MC_RPC_GetReplicaList];
    struct mw_replica replicas[] = {
        {.id = 1, .tag = MW_TAG_DFS, .dfs = {.file_path = MC_STR("/f")}, .status = 3},
        {.id = 2, .tag = MW_TAG_DISK, .disk = {MC_STR("/g"), 9}, .status = 3},
        {.id = 3, .tag = MW_TAG_DFS, .dfs = {.file_path = MC_STR("/h")}, .status = 3},
    };
    struct mw_e_list list = {0, {{replicas, 3}, 10000, {false, 0}}}, back;
    struct mc_buf body = {0};
    mc_master_rpc_encode_ret(desc, 1, &list, &body);
    assert_ok(mc_master_rpc_decode_ret(desc, 1, view(&body), &arena, &back));
    assert_int_equal(back.value.replicas.count, 1);
    assert_int_equal(((struct mw_replica *)back.value.replicas.items)->id, 2);
    assert_int_equal(back.value.lease_ttl_ms, 10000);
    mc_buf_free(&body);
    mc_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples_of_the_specification),
        cmocka_unit_test(test_answers_with_a_literal),
        cmocka_unit_test(test_a_long_container_widens_all_counts),
        cmocka_unit_test(test_recorded_messages_come_back_the_same),
        cmocka_unit_test(test_an_old_put_end_arrives_as_the_new_one),
        cmocka_unit_test(test_replicas_that_an_old_peer_cannot_name_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
