/*
 * Segment descriptors: upstream's text is understood, ours has its members and round-trips, and
 * what cannot be used is refused as a whole.
 */
#include <jansson.h>

#include "support/support.h"
#include "wire/segment_desc.h"

#define HEAD "{\"name\":\"a\",\"protocol\":\"tcp\","

static enum mc_status decode(const char *text, struct mc_segment_desc *desc) {
    return mc_segment_desc_decode(mc_str_from(text), desc);
}

static void upstreams_text_is_understood(void **state) {
    struct mc_segment_desc d;
    assert_ok(decode("{\"buffers\":[{\"addr\":140000000008192,\"length\":4096,\"name\":\"cpu:1\"},"
                     "{\"addr\":139999999991808,\"length\":8192,\"name\":\"cpu:0\"}],"
                     "\"name\":\"10.0.0.2:15231\",\"protocol\":\"tcp\",\"tcp_data_port\":15999,"
                     "\"tcp_proto_version\":2,\"timestamp\":\"2026-08-22 10:00:00.123456\","
                     "\"rdma_server_name\":\"x\"}\n",
                     &d));
    assert_string_equal(d.name, "10.0.0.2:15231");
    assert_string_equal(d.protocol, "tcp");
    assert_int_equal(d.tcp_data_port, 15999);
    assert_string_equal(d.tcp_data_host, "");
    assert_int_equal(d.tcp_proto, 2);
    assert_int_equal(d.buffer_count, 2);
    assert_int_equal(d.buffers[0].addr, 139999999991808); /* sorted */
    assert_string_equal(d.buffers[0].location, "cpu:0");
    assert_int_equal(d.buffers[1].length, 4096);
    assert_int_equal(d.buffers[1].shm_slot, -1);
    assert_int_equal(d.engine_id.hi, 0);
    assert_int_equal(d.shm_socket[0], 0);
    mc_segment_desc_free(&d);
    assert_ok(decode(HEAD "\"tcp_data_host\":\"10.0.0.3\",\"tcp_data_port\":15999}", &d));
    assert_string_equal(d.tcp_data_host, "10.0.0.3");
    mc_segment_desc_free(&d);
    /* the oldest and the barest: no version = 1; no buffers; several protocols */
    assert_ok(decode("{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":null}", &d));
    assert_int_equal(d.tcp_proto, 1);
    assert_int_equal(d.tcp_data_port, 0);
    assert_int_equal(d.buffer_count, 0);
    mc_segment_desc_free(&d);
    assert_ok(decode("{\"name\":\"a\",\"protocol\":[\"rdma\",\"tcp\"]}", &d));
    assert_string_equal(d.protocol, "rdma");
    mc_segment_desc_free(&d);
}

static void ours_round_trips_and_has_upstreams_members(void **state) {
    struct mc_segment_desc_buffer buffers[2] = {
        {.addr = 0x7f0000000000, .length = 1, .location = "*", .shm_slot = 3, .shm_mappable = true},
        {.addr = 0x7f0000001000, .length = 1ull << 40, .location = "cuda:0", .shm_slot = -1},
    };
    struct mc_segment_desc d = {.name = "[fe80::1%eth0]:15000",
                                .protocol = "tcp",
                                .tcp_data_port = 65535,
                                .tcp_proto = 2,
                                .engine_id = {0x8000000000000001, 7},
                                .boot_id = "b-o-o-t",
                                .pid = 77,
                                .shm_socket = "mooncake-x",
                                .buffer_count = 2,
                                .buffers = buffers};
    struct mc_segment_desc back;
    struct mc_buf text = {0};
    mc_segment_desc_timestamp(d.timestamp);
    assert_int_equal(strlen(d.timestamp), 26);
    mc_segment_desc_finish(mc_segment_desc_json(&d), &text);
    assert_ok(mc_segment_desc_decode((struct mc_str){text.data, text.len}, &back));
    assert_string_equal(back.name, d.name);
    assert_string_equal(back.timestamp, d.timestamp);
    assert_string_equal(back.boot_id, d.boot_id);
    assert_string_equal(back.shm_socket, d.shm_socket);
    assert_true(mc_uuid_eq(back.engine_id, d.engine_id));
    assert_int_equal(back.pid, 77);
    assert_int_equal(back.tcp_data_port, 65535);
    assert_int_equal(back.tcp_proto, 2);
    assert_int_equal(back.buffer_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(back.buffers[i].addr, buffers[i].addr);
        assert_int_equal(back.buffers[i].length, buffers[i].length);
        assert_int_equal(back.buffers[i].shm_slot, buffers[i].shm_slot);
        assert_int_equal(back.buffers[i].shm_mappable, buffers[i].shm_mappable);
        assert_string_equal(back.buffers[i].location, buffers[i].location);
    }
    mc_segment_desc_free(&back);

    json_t *json = json_loadb(text.data, text.len, 0, NULL);
    static const char *const members[] = {"name",          "protocol",          "buffers",
                                          "tcp_data_port", "tcp_proto_version", "timestamp"};
    for (size_t i = 0; i < MC_ARRAY_LEN(members); i++) {
        assert_non_null(json_object_get(json, members[i]));
    }
    const json_t *buffer = json_array_get(json_object_get(json, "buffers"), 1);
    assert_string_equal(json_string_value(json_object_get(buffer, "name")), "cuda:0");
    assert_int_equal(json_integer_value(json_object_get(buffer, "addr")), 0x7f0000001000);
    assert_int_equal(json_integer_value(json_object_get(buffer, "length")), 1ll << 40);
    json_decref(json);
    assert_null(memchr(text.data, '\n', text.len));
    mc_buf_free(&text);
}

#define OURS(id, rest)                                                                             \
    HEAD "\"mooncake_c\":{\"engine_id\":" id ",\"boot_id\":\"\",\"shm_socket\":\"\"" rest "}}"
#define ID "[\"0000000000000001\",\"0000000000000002\"]"

static void what_cannot_be_used_is_refused(void **state) {
    static const char *const texts[] = {
        "",
        "null",
        "[]",
        "{}",
        "{",
        "\"tcp\"",
        "{\"name\":\"a\"}",
        "{\"protocol\":\"tcp\"}",
        "{\"name\":\"\",\"protocol\":\"tcp\"}",
        "{\"name\":7,\"protocol\":\"tcp\"}",
        "{\"name\":\"a\",\"protocol\":[]}",
        "{\"name\":\"a\",\"protocol\":\"\"}",
        "{\"name\":\"a\\u0000b\",\"protocol\":\"tcp\"}",
        "{\"name\":\"a\",\"name\":\"b\",\"protocol\":\"tcp\"}",
        HEAD "\"tcp_data_host\":7}",
        HEAD "\"tcp_data_port\":65536}",
        HEAD "\"tcp_data_port\":-1}",
        HEAD "\"tcp_data_port\":\"15000\"}",
        HEAD "\"tcp_proto_version\":1.5}",
        HEAD "\"timestamp\":5}",
        HEAD "\"buffers\":{}}",
        HEAD "\"buffers\":[1]}",
        HEAD "\"buffers\":[{\"addr\":1,\"length\":1}]}",
        HEAD "\"buffers\":[{\"addr\":1,\"length\":1,\"name\":\"\"}]}",
        HEAD "\"buffers\":[{\"addr\":0,\"length\":1,\"name\":\"*\"}]}",
        HEAD "\"buffers\":[{\"addr\":1,\"length\":0,\"name\":\"*\"}]}",
        HEAD "\"buffers\":[{\"addr\":-1,\"length\":1,\"name\":\"*\"}]}",
        HEAD "\"buffers\":[{\"addr\":18446744073709551615,\"length\":2,\"name\":\"*\"}]}",
        HEAD "\"buffers\":[{\"addr\":1e3,\"length\":1,\"name\":\"*\"}]}",
        HEAD "\"mooncake_c\":{}}",
        HEAD "\"mooncake_c\":[]}",
        OURS("[]", ",\"pid\":1,\"shm\":[]"),
        OURS("[\"1\",\"2\"]", ",\"pid\":1,\"shm\":[]"),
        OURS(ID, ",\"shm\":[]"),
        OURS(ID, ",\"pid\":-1,\"shm\":[]"),
        OURS(ID, ",\"pid\":1"),
        OURS(ID, ",\"pid\":1,\"shm\":[1]"),
        OURS(ID, ",\"pid\":1,\"shm\":[[1,-1,true]]"),
        OURS(ID, ",\"pid\":1,\"shm\":[[1,1,1]]"),
        HEAD "\"buffers\":[]} trailing"};
    for (size_t i = 0; i < MC_ARRAY_LEN(texts); i++) {
        struct mc_segment_desc d = {.pid = 4711};
        if (decode(texts[i], &d) != MC_ERR_PROTOCOL) {
            fail_msg("accepted: %s", texts[i]);
        }
        assert_int_equal(d.pid, 4711); /* untouched */
    }
    struct mc_segment_desc d;
    /* The frame of the above is right. */
    assert_ok(decode(OURS(ID, ",\"pid\":1,\"shm\":[[1,1,true]]"), &d));
    mc_segment_desc_free(&d);
    char long_name[400];
    memset(long_name, 'n', sizeof(long_name));
    struct mc_buf text = {0};
    mc_buf_printf(&text, "{\"name\":\"%.*s\",\"protocol\":\"tcp\"}", 300, long_name);
    assert_int_equal(mc_segment_desc_decode((struct mc_str){text.data, text.len}, &d),
                     MC_ERR_PROTOCOL);
    mc_buf_clear(&text);
    mc_buf_puts(&text, HEAD "\"buffers\":[");
    for (int i = 0; i <= MC_SEGMENT_BUFFERS_MAX; i++) {
        mc_buf_printf(&text, "%s{\"addr\":%d,\"length\":1,\"name\":\"*\"}", i ? "," : "", i + 1);
    }
    mc_buf_puts(&text, "]}");
    assert_int_equal(mc_segment_desc_decode((struct mc_str){text.data, text.len}, &d),
                     MC_ERR_PROTOCOL);
    mc_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(upstreams_text_is_understood),
        cmocka_unit_test(ours_round_trips_and_has_upstreams_members),
        cmocka_unit_test(what_cannot_be_used_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
