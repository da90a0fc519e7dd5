/* Choices of the rdma transport that need no NIC. */
#include <stdio.h>

#include "support/support.h"
#include "te/transport/rdma.h"

#define V4(a, b, c, d)                                                                             \
    { [10] = 0xff, [11] = 0xff, [12] = a, [13] = b, [14] = c, [15] = d }

static void test_gid_rocev2_and_ipv4_come_first(void **state) {
    const struct rdma_gid gids[] = {
        {{0xfe, 0x80, [15] = 1}, 0, RDMA_GID_ROCE_V1},
        {{0xfe, 0x80, [15] = 1}, 1, RDMA_GID_ROCE_V2},
        {V4(10, 0, 0, 1), 2, RDMA_GID_ROCE_V1},
        {{0x20, 0x01, [15] = 1}, 4, RDMA_GID_ROCE_V2},
        {V4(10, 0, 0, 1), 5, RDMA_GID_ROCE_V2},
        {V4(10, 0, 0, 2), 7, RDMA_GID_ROCE_V2},
    };
    struct rdma_gid gid;
    for (size_t count = 1; count <= MC_ARRAY_LEN(gids); count++) {
        static const uint32_t best[] = {0, 0, 1, 1, 4, 5, 5};
        assert_true(rdma_choose_gid(gids, count, true, -1, &gid));
        assert_int_equal(gid.index, best[count]);
    }
    assert_true(rdma_choose_gid(gids, MC_ARRAY_LEN(gids), true, 2, &gid));
    assert_int_equal(gid.index, 2);
    assert_false(rdma_choose_gid(gids, MC_ARRAY_LEN(gids), true, 3, &gid));
    assert_false(rdma_choose_gid(gids, 0, true, -1, &gid));
    const struct rdma_gid zero = {{0}, 0, RDMA_GID_ROCE_V2};
    assert_false(rdma_choose_gid(&zero, 1, true, -1, &gid));
}

static void test_gid_of_infiniband_is_the_first(void **state) {
    const struct rdma_gid gids[] = {{{0xfe, 0x80, [15] = 1}, 0, RDMA_GID_IB},
                                    {{0xfe, 0x80, [15] = 2}, 1, RDMA_GID_IB}};
    struct rdma_gid gid;
    assert_true(rdma_choose_gid(gids, 2, false, -1, &gid));
    assert_int_equal(gid.index, 0);
}

static void test_mtu_is_the_smallest_of_all(void **state) {
    assert_int_equal(rdma_choose_mtu(4096, 4096, 0), 4096);
    assert_int_equal(rdma_choose_mtu(1024, 4096, 0), 1024);
    assert_int_equal(rdma_choose_mtu(4096, 2048, 4096), 2048);
    assert_int_equal(rdma_choose_mtu(4096, 4096, 256), 256);
    assert_int_equal(rdma_choose_mtu(0, 3000, 0), 2048);
    assert_int_equal(rdma_choose_mtu(1, 1, 1), 256);
}

static void test_soft_roce_of_old_kernels_is_not_trusted(void **state) {
    assert_false(rdma_soft_roce_is_sound("6.1.0-57-amd64"));
    assert_false(rdma_soft_roce_is_sound("6.11.9"));
    assert_false(rdma_soft_roce_is_sound("5.15.0-130-generic"));
    assert_false(rdma_soft_roce_is_sound("mainline"));
    assert_true(rdma_soft_roce_is_sound("6.12.117+deb12-amd64"));
    assert_true(rdma_soft_roce_is_sound("7.0.0"));
}

static void test_filters_name_nics(void **state) {
    setenv("MC_TE_FILTERS", "mlx5_0, mlx5_10", 1);
    assert_true(rdma_topology_wants("mlx5_0"));
    assert_true(rdma_topology_wants("mlx5_10"));
    assert_false(rdma_topology_wants("mlx5_1"));
    unsetenv("MC_TE_FILTERS");
    setenv("MC_TE_FILTERS_EXCLUDE", "mlx5_0", 1);
    assert_false(rdma_topology_wants("mlx5_0"));
    assert_true(rdma_topology_wants("mlx5_1"));
    unsetenv("MC_TE_FILTERS_EXCLUDE");
}

/* ---- which NIC of the peer ---- */

#define NICS 4

struct world {
    struct rdma_transport transport;
    struct rdma_context contexts[NICS];
    struct mc_peer_desc *desc;
    struct rdma_peer *peer;
};

/* Four NICs here and there; `flat`: all on one subnet, else a subnet each, with the order of the
 * peer's reversed. */
static struct world *world_new(bool flat, const char *matrix) {
    struct world *w = mc_zalloc(sizeof(*w));
    struct mc_rdma_desc *rdma = mc_zalloc(sizeof(*rdma));
    rdma->device_count = NICS;
    rdma->devices = mc_zalloc(NICS * sizeof(*rdma->devices));
    rdma->priority_matrix = matrix == NULL ? NULL : mc_strdup(matrix);
    rdma->key_count = 1;
    rdma->keys = mc_zalloc(sizeof(*rdma->keys));
    rdma->keys[0] = (struct mc_rdma_keys_desc){0x1000, 0x1000, 0};
    rdma->rkeys = mc_zalloc(NICS * sizeof(uint32_t));
    for (unsigned i = 0; i < NICS; i++) {
        const uint8_t here[16] = V4(10, 0, flat ? 0 : (uint8_t)i, (uint8_t)(10 + i));
        const uint8_t there[16] = V4(10, 0, flat ? 0 : (uint8_t)(NICS - 1 - i), (uint8_t)(20 + i));
        w->contexts[i].transport = &w->transport;
        w->contexts[i].index = i;
        snprintf(w->contexts[i].name, sizeof(w->contexts[i].name), "a%u", i);
        memcpy(w->contexts[i].gid.raw, here, 16);
        w->transport.contexts[i] = &w->contexts[i];
        snprintf(rdma->devices[i].name, sizeof(rdma->devices[i].name), "b%u", i);
        memcpy(rdma->devices[i].gid, there, 16);
        rdma->rkeys[i] = 100 + i;
    }
    w->transport.context_count = NICS;
    w->transport.config.pause_ns = MC_SEC;
    w->desc = mc_zalloc(sizeof(*w->desc));
    atomic_store(&w->desc->refs, 1);
    strcpy(w->desc->name, "host:1");
    w->desc->rdma = rdma;
    w->desc->buffer_count = 1;
    w->desc->buffers = mc_zalloc(sizeof(*w->desc->buffers));
    w->desc->buffers[0] = (struct mc_peer_buffer){.addr = 0x1000, .length = 0x1000};
    strcpy(w->desc->buffers[0].location, "cpu:1");
    w->peer = rdma_peer_new(&w->transport, w->desc);
    assert_non_null(w->peer);
    return w;
}

static void world_free(struct world *w) {
    rdma_peer_put(w->peer);
    mc_peer_desc_put(w->desc);
    free(w);
}

static unsigned choose(struct world *w, unsigned context) {
    return rdma_peer_choose(w->peer, &w->contexts[context], 0x1800);
}

static void test_rails_of_a_subnet_each_find_each_other(void **state) {
    struct world *w = world_new(false, NULL);
    for (unsigned i = 0; i < NICS; i++) {
        assert_int_equal(choose(w, i), NICS - 1 - i);
    }
    assert_string_equal(w->peer->remotes[2].path, "host:1@b2");
    world_free(w);
}

static void test_on_a_flat_network_pairs_are_spread(void **state) {
    struct world *w = world_new(true, NULL);
    for (unsigned i = 0; i < NICS; i++) {
        assert_int_equal(choose(w, i), i);
    }
    world_free(w);
}

static void test_the_peers_matrix_comes_first_and_failed_paths_last(void **state) {
    struct world *w = world_new(true, "{\"cpu:1\":[[\"b2\"],[\"b3\"]],\"cpu:0\":[[\"b0\"],[]]}");
    assert_int_equal(choose(w, 0), 2);
    rdma_penalise(&w->contexts[0], w->peer->remotes[2].hash);
    assert_int_equal(choose(w, 0), 3);
    assert_int_equal(choose(w, 1), 2); /* another path */
    rdma_penalise(&w->contexts[0], w->peer->remotes[3].hash);
    assert_int_equal(choose(w, 0), 0);
    rdma_pardon(&w->contexts[0], w->peer->remotes[2].hash);
    assert_int_equal(choose(w, 0), 2);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gid_rocev2_and_ipv4_come_first),
        cmocka_unit_test(test_gid_of_infiniband_is_the_first),
        cmocka_unit_test(test_mtu_is_the_smallest_of_all),
        cmocka_unit_test(test_soft_roce_of_old_kernels_is_not_trusted),
        cmocka_unit_test(test_filters_name_nics),
        cmocka_unit_test(test_rails_of_a_subnet_each_find_each_other),
        cmocka_unit_test(test_on_a_flat_network_pairs_are_spread),
        cmocka_unit_test(test_the_peers_matrix_comes_first_and_failed_paths_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
