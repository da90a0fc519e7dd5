/* Connection handshakes: what upstream's engines send and expect, ours beside it, and noise. */
#include <stdio.h>

#include "support/support.h"
#include "wire/rdma_setup.h"
#include "wire/segment_desc.h"

static enum mc_status decode(const char *text, struct mc_rdma_setup *out) {
    return mc_rdma_setup_decode(mc_str_from(text), out);
}

/* As an upstream engine writes it. */
static const char upstream_request[] =
    "{\"local_gid\":\"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05\",\"local_lid\":3,"
    "\"local_nic_path\":\"10.0.0.5:15002@mlx5_0\",\"payload\":\"\","
    "\"peer_nic_path\":\"10.0.0.6:15003@mlx5_1\",\"qp_num\":[291,292],\"reply_msg\":\"\"}\n";

static void test_an_upstream_request_is_understood(void **state) {
    static const uint8_t gid[16] = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 5};
    struct mc_rdma_setup s;
    assert_ok(decode(upstream_request, &s));
    assert_string_equal(s.local_path, "10.0.0.5:15002@mlx5_0");
    assert_string_equal(s.peer_path, "10.0.0.6:15003@mlx5_1");
    assert_int_equal(s.local_lid, 3);
    assert_memory_equal(s.local_gid, gid, 16);
    assert_int_equal(s.qp_count, 2);
    assert_int_equal(s.qp_num[1], 292);
    assert_false(s.ready_ack);
    assert_int_equal(s.engine_id.lo, 0);
    assert_int_equal(s.generation, 0);
}

static void test_what_is_encoded_is_decoded(void **state) {
    struct mc_rdma_setup out, in = {.local_path = "a@x",
                                    .peer_path = "[fe80::1]:5@y",
                                    .local_lid = 65535,
                                    .local_gid = {0xfe, 0x80, [15] = 9},
                                    .qp_count = 3,
                                    .qp_num = {1, 0xffffff, 7},
                                    .ready_ack = true,
                                    .reply_msg = "why",
                                    .engine_id = {1, UINT64_MAX},
                                    .peer_id = {5, 6},
                                    .generation = 77,
                                    .answers = 66,
                                    .mtu = 1024,
                                    .close = true};
    struct mc_buf text = {0};
    mc_rdma_setup_encode(&in, &text);
    assert_ok(mc_rdma_setup_decode((struct mc_str){text.data, text.len}, &out));
    assert_memory_equal(&in, &out, sizeof(in));
    mc_buf_free(&text);
}

static void test_malformed_text_is_refused(void **state) {
    static const char *const bad[] = {
        "",
        "null",
        "[]",
        "{}",
        "{\"local_nic_path\":\"a@b\"}",
        "{\"local_nic_path\":1,\"peer_nic_path\":\"a@b\"}",
        "{\"local_nic_path\":\"a@b\",\"peer_nic_path\":\"a\\u0000@b\"}",
        "{\"local_nic_path\":\"a@b\",\"peer_nic_path\":\"c@d\",\"qp_num\":[-1]}",
        "{\"local_nic_path\":\"a@b\",\"peer_nic_path\":\"c@d\",\"qp_num\":[16777216]}",
        "{\"local_nic_path\":\"a@b\",\"peer_nic_path\":\"c@d\",\"qp_num\":\"1\"}",
        "{\"local_nic_path\":\"a@b\",\"peer_nic_path\":\"c@d\",\"local_gid\":\"00:01\"}",
        "{\"local_nic_path\":\"a@b\",\"peer_nic_path\":\"c@d\",\"local_lid\":65536}",
        "{\"local_nic_path\":\"a@b\",\"peer_nic_path\":\"c@d\",\"mooncake_c\":{}}",
    };
    struct mc_rdma_setup s;
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        assert_int_equal(decode(bad[i], &s), MC_ERR_PROTOCOL);
    }
}

/* Any byte of a request changed: refused or understood, never worse (the sanitizers watch). */
static void test_noise_is_survived(void **state) {
    struct mc_rng rng;
    unsigned understood = 0;
    mc_rng_seed(&rng, 7);
    for (int i = 0; i < 20000; i++) {
        char text[sizeof(upstream_request)];
        struct mc_rdma_setup s;
        memcpy(text, upstream_request, sizeof(text));
        for (uint64_t n = 1 + mc_rng_below(&rng, 3); n > 0; n--) {
            text[mc_rng_below(&rng, sizeof(text) - 1)] = (char)mc_rng_next(&rng);
        }
        if (mc_rdma_setup_decode((struct mc_str){text, sizeof(text) - 1}, &s) == MC_OK) {
            understood++;
            assert_true(s.qp_count <= MC_RDMA_QPS_MAX);
        }
    }
    assert_true(understood > 0 && understood < 20000);
}

static void test_gids_and_paths(void **state) {
    uint8_t gid[16];
    char text[MC_RDMA_GID_TEXT], server[MC_RDMA_PATH_MAX], nic[MC_RDMA_NIC_MAX];
    assert_ok(mc_rdma_gid_parse("fe:80:0:0:0:0:0:0:1:2:3:4:5:6:7:F", gid));
    mc_rdma_gid_format(gid, text);
    assert_string_equal(text, "fe:80:00:00:00:00:00:00:01:02:03:04:05:06:07:0f");
    assert_int_equal(mc_rdma_gid_parse("fe:80", gid), MC_ERR_PROTOCOL);
    assert_int_equal(mc_rdma_gid_parse("", gid), MC_ERR_PROTOCOL);
    assert_ok(mc_rdma_path_split("a@b:1@mlx5_0", server, nic));
    assert_string_equal(server, "a@b:1");
    assert_string_equal(nic, "mlx5_0");
    assert_int_equal(mc_rdma_path_split("@x", server, nic), MC_ERR_PROTOCOL);
    assert_int_equal(mc_rdma_path_split("x@", server, nic), MC_ERR_PROTOCOL);
    assert_int_equal(mc_rdma_path_split("x", server, nic), MC_ERR_PROTOCOL);
}

/* ---- descriptors ---- */

static const char upstream_desc[] =
    "{\"buffers\":[{\"addr\":8192,\"length\":4096,\"lkey\":[5,6],\"name\":\"cpu:0\","
    "\"rkey\":[7,8]},{\"addr\":4096,\"length\":4096,\"lkey\":[1,2],\"name\":\"cpu:0\","
    "\"rkey\":[3,4]}],\"devices\":[{\"gid\":\"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:05\","
    "\"lid\":0,\"name\":\"mlx5_0\"},{\"gid\":"
    "\"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:06\",\"lid\":1,\"name\":\"mlx5_1\"}],"
    "\"name\":\"10.0.0.5:15002\",\"priority_matrix\":{\"cpu:0\":[[\"mlx5_0\"],[\"mlx5_1\"]]},"
    "\"protocol\":\"rdma\",\"timestamp\":\"2026-11-30 02:25:22.440474\"%s}";

static enum mc_status decode_desc(const char *more, struct mc_segment_desc *desc) {
    char text[2048];
    snprintf(text, sizeof(text), upstream_desc, more);
    return mc_segment_desc_decode(mc_str_from(text), desc);
}

static void test_an_upstream_descriptor_names_nics_and_keys(void **state) {
    struct mc_segment_desc desc;
    assert_ok(decode_desc("", &desc));
    assert_non_null(desc.rdma);
    assert_int_equal(desc.rdma->device_count, 2);
    assert_string_equal(desc.rdma->devices[1].name, "mlx5_1");
    assert_int_equal(desc.rdma->devices[1].lid, 1);
    assert_non_null(desc.rdma->priority_matrix);
    assert_int_equal(desc.buffer_count, 2);
    const struct mc_rdma_keys_desc *keys = mc_rdma_desc_find(desc.rdma, 4096 + 17);
    assert_int_equal(desc.rdma->rkeys[keys->first + 1], 4);
    keys = mc_rdma_desc_find(desc.rdma, 12287);
    assert_int_equal(desc.rdma->rkeys[keys->first], 7);
    assert_null(mc_rdma_desc_find(desc.rdma, 12288));
    assert_null(mc_rdma_desc_find(desc.rdma, 4095));
    mc_segment_desc_free(&desc);
}

static void test_parts_of_one_range_are_joined(void **state) {
    struct mc_segment_desc desc;
    assert_ok(decode_desc(",\"mooncake_c\":{\"engine_id\":[\"0000000000000001\","
                          "\"0000000000000002\"],\"boot_id\":\"\",\"pid\":1,\"shm_socket\":\"\","
                          "\"shm\":[],\"joined\":[8192]}",
                          &desc));
    assert_int_equal(desc.buffer_count, 1);
    assert_int_equal(desc.buffers[0].addr, 4096);
    assert_int_equal(desc.buffers[0].length, 8192);
    assert_int_equal(desc.rdma->key_count, 2);
    mc_segment_desc_free(&desc);
}

static void test_keys_that_do_not_fit_the_devices_are_refused(void **state) {
    struct mc_segment_desc desc;
    assert_int_equal(
        mc_segment_desc_decode(
            MC_STR("{\"name\":\"x\",\"protocol\":\"rdma\",\"devices\":[{\"name\":\"m\",\"lid\":0,"
                   "\"gid\":\"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:06\"}],\"buffers\":[{"
                   "\"name\":\"*\",\"addr\":1,\"length\":1,\"rkey\":[1,2],\"lkey\":[1,2]}]}"),
            &desc),
        MC_ERR_PROTOCOL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_upstream_request_is_understood),
        cmocka_unit_test(test_what_is_encoded_is_decoded),
        cmocka_unit_test(test_malformed_text_is_refused),
        cmocka_unit_test(test_noise_is_survived),
        cmocka_unit_test(test_gids_and_paths),
        cmocka_unit_test(test_an_upstream_descriptor_names_nics_and_keys),
        cmocka_unit_test(test_parts_of_one_range_are_joined),
        cmocka_unit_test(test_keys_that_do_not_fit_the_devices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
