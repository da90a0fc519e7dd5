/*
 * Machines of the fixtures: devices, places, states, and the matrix made of them, compared with
 * what was checked by hand and written down (<name>.golden). MC_TEST_WRITE_GOLDEN=1 writes them
 * anew: to be read before they are committed.
 */
#include <stdio.h>
#include <unistd.h>

#include "support/support.h"
#include "topo/topo.h"

#define FIXTURES "tests/unit/topo/fixtures/"

static struct mc_topo *load(const char *name) {
    char xml[256], sysfs[256];
    struct mc_topo *topo = NULL;
    snprintf(xml, sizeof(xml), FIXTURES "%s.xml", name);
    snprintf(sysfs, sizeof(sysfs), FIXTURES "%s.sys", name);
    struct mc_topo_source source = {xml, access(sysfs, R_OK) == 0 ? sysfs : NULL};
    assert_ok(mc_topo_discover(&source, &topo));
    return topo;
}

static void describe(const struct mc_topo *topo, struct mc_buf *out) {
    static const char *const kinds[] = {"nic", "gpu", "nvme"};
    mc_buf_printf(out, "packages %u\n", topo->packages);
    for (size_t i = 0; i < topo->node_count; i++) {
        mc_buf_printf(out, "node %d memory %llu distances", topo->nodes[i].number,
                      (unsigned long long)topo->nodes[i].memory);
        for (size_t j = 0; j < topo->node_count; j++) {
            mc_buf_printf(out, " %u", topo->node_distances[i * topo->node_count + j]);
        }
        mc_buf_puts(out, "\n");
    }
    for (size_t i = 0; i < topo->device_count; i++) {
        const struct mc_topo_device *d = &topo->devices[i];
        mc_buf_printf(out, "%s %s netdev %s pci %s numa %d bridges %u%s%s bandwidth %llu\n",
                      kinds[d->kind], d->name, d->netdev[0] != '\0' ? d->netdev : "-",
                      d->pci[0] != '\0' ? d->pci : "-", d->numa_node, d->path_length,
                      d->rdma ? " rdma" : "", d->up ? " up" : " down",
                      (unsigned long long)d->bandwidth);
    }
    for (size_t i = 0; i < topo->device_count; i++) {
        for (size_t j = i + 1; j < topo->device_count; j++) {
            uint32_t hops;
            enum mc_topo_near near =
                mc_topo_nearness(topo, &topo->devices[i], &topo->devices[j], &hops);
            mc_buf_printf(out, "%s - %s: %s %u\n", topo->devices[i].name, topo->devices[j].name,
                          mc_topo_near_name(near), hops);
        }
    }
    struct mc_topo_matrix *matrix =
        mc_topo_matrix_make(topo, &(struct mc_topo_filters){NULL, NULL});
    mc_topo_matrix_print(matrix, false, out);
    mc_buf_puts(out, "\n");
    mc_topo_matrix_free(matrix);
}

static void compare(const char *name) {
    char path[256];
    struct mc_topo *topo = load(name);
    struct mc_buf got = {0};
    describe(topo, &got);
    snprintf(path, sizeof(path), FIXTURES "%s.golden", name);
    const char *write = getenv("MC_TEST_WRITE_GOLDEN");
    FILE *file = fopen(path, write != NULL ? "w" : "r");
    assert_non_null(file);
    if (write != NULL) {
        fwrite(got.data, 1, got.len, file);
    } else {
        char *want = malloc(1 << 20);
        size_t len = fread(want, 1, (1 << 20) - 1, file);
        want[len] = '\0';
        assert_true(len > 0);
        assert_string_equal(mc_buf_cstr(&got), want);
        free(want);
    }
    fclose(file);
    mc_buf_free(&got);
    mc_topo_free(topo);
}

#define GOLDEN(name, file)                                                                         \
    static void name(void **state) {                                                               \
        compare(file);                                                                             \
    }
GOLDEN(test_one_socket, "one-socket")
GOLDEN(test_two_sockets, "two-sockets")
GOLDEN(test_numa_unknown, "numa-unknown")
GOLDEN(test_pcie_switches, "pcie-switches")
GOLDEN(test_eight_cards_eight_gpus, "eight-cards-eight-gpus")
GOLDEN(test_nic_down, "nic-down")
GOLDEN(test_no_nic, "no-nic")
GOLDEN(test_soft_roce, "soft-roce")

/* What the goldens must say, said apart from them. */

static void assert_lists(const struct mc_topo_matrix *m, const char *location,
                         const char *preferred, const char *available) {
    for (size_t i = 0; i < m->count; i++) {
        if (strcmp(m->entries[i].location, location) != 0) {
            continue;
        }
        const char *want[2] = {preferred, available};
        for (int list = 0; list < 2; list++) {
            struct mc_buf got = {0};
            for (size_t n = 0; n < m->entries[i].count[list]; n++) {
                mc_buf_printf(&got, "%s%s", n > 0 ? " " : "", m->entries[i].names[list][n]);
            }
            assert_string_equal(mc_buf_cstr(&got), want[list]);
            mc_buf_free(&got);
        }
        return;
    }
    fail_msg("no entry for %s", location);
}

static struct mc_topo_matrix *matrix_of(const char *name, const char *only, const char *except) {
    struct mc_topo *topo = load(name);
    struct mc_topo_matrix *m = mc_topo_matrix_make(topo, &(struct mc_topo_filters){only, except});
    mc_topo_free(topo);
    return m;
}

static void test_every_gpu_has_its_own_card(void **state) {
    struct mc_topo_matrix *m = matrix_of("eight-cards-eight-gpus", NULL, NULL);
    char gpu[32], card[32];
    for (int i = 0; i < 8; i++) {
        snprintf(gpu, sizeof(gpu), "cuda:%d", i);
        snprintf(card, sizeof(card), "mlx5_%d", 7 - i);
        for (int j = 0; j < 8; j++) {
            char other[32];
            snprintf(other, sizeof(other), "mlx5_%d", j);
            assert_int_equal(mc_topo_matrix_rank(m, gpu, other), strcmp(card, other) == 0 ? 0 : 1);
        }
    }
    assert_lists(m, "cpu:0", "mlx5_0 mlx5_1 mlx5_2 mlx5_3", "mlx5_4 mlx5_5 mlx5_6 mlx5_7");
    assert_int_equal(mc_topo_matrix_rank(m, "*", "mlx5_3"), 1);
    assert_int_equal(mc_topo_matrix_rank(m, "cpu:0", "mlx5_9"), -1);
    assert_int_equal(mc_topo_matrix_rank(m, "*", "mlx5_9"), -1);
    mc_topo_matrix_free(m);
}

static void test_nearest_wins(void **state) {
    struct mc_topo_matrix *m = matrix_of("pcie-switches", NULL, NULL);
    assert_lists(m, "cuda:0", "mlx5_0", "mlx5_1 mlx5_2 mlx5_3");
    mc_topo_matrix_free(m);
    m = matrix_of("pcie-switches", NULL, "mlx5_0"); /* then the one at the same root complex */
    assert_lists(m, "cuda:0", "mlx5_1", "mlx5_2 mlx5_3");
    mc_topo_matrix_free(m);
    m = matrix_of("pcie-switches", "mlx5_2,mlx5_3", NULL); /* then the one of the same node */
    assert_lists(m, "cuda:0", "mlx5_2", "mlx5_3");
    mc_topo_matrix_free(m);
    m = matrix_of("pcie-switches", " mlx5_3 , nobody", "mlx5_3"); /* `only` outweighs `except` */
    assert_lists(m, "cuda:0", "mlx5_3", "");
    assert_lists(m, "cpu:0", "", "mlx5_3");
    assert_lists(m, "cpu:1", "mlx5_3", "");
    mc_topo_matrix_free(m);
    m = matrix_of("pcie-switches", "mlx5", NULL); /* names, not beginnings of names */
    assert_lists(m, "cpu:1", "", "");
    mc_topo_matrix_free(m);
}

static void test_what_is_not_known_is_not_claimed(void **state) {
    struct mc_topo_matrix *m = matrix_of("numa-unknown", NULL, NULL);
    assert_lists(m, "cpu:0", "", "mlx5_0 mlx5_1");
    assert_lists(m, "cpu:1", "", "mlx5_0 mlx5_1");
    assert_lists(m, "cuda:0", "mlx5_0", "mlx5_1"); /* the PCI tree is known all the same */
    assert_lists(m, "cuda:1", "", "mlx5_0 mlx5_1");
    mc_topo_matrix_free(m);
}

static void test_a_card_without_a_link_carries_nothing(void **state) {
    struct mc_topo_matrix *m = matrix_of("nic-down", NULL, NULL);
    assert_lists(m, "cpu:0", "", "mlx5_1");
    assert_lists(m, "cpu:1", "mlx5_1", "");
    mc_topo_matrix_free(m);
    m = matrix_of("no-nic", NULL, NULL);
    assert_lists(m, "cpu:0", "", "");
    assert_lists(m, "cuda:0", "", "");
    mc_topo_matrix_free(m);
}

static void test_penalties_grow_with_distance(void **state) {
    uint32_t last = 0;
    for (int near = MC_TOPO_SAME; near <= MC_TOPO_SYSTEM; near++) {
        uint32_t penalty = mc_topo_penalty((enum mc_topo_near)near, 20);
        assert_true(penalty >= last);
        last = penalty;
    }
    assert_true(mc_topo_penalty(MC_TOPO_SYSTEM, 32) > mc_topo_penalty(MC_TOPO_SYSTEM, 21));
    assert_true(mc_topo_penalty(MC_TOPO_SYSTEM, UINT32_MAX) <= 200);
    struct mc_topo *topo = load("two-sockets");
    uint32_t hops = 0;
    const struct mc_topo_device *card = mc_topo_find(topo, "ens1np0");
    assert_string_equal(card->name, "mlx5_1");
    assert_ptr_equal(mc_topo_find(topo, "0000:99:00.0"), card);
    assert_null(mc_topo_find(topo, ""));
    assert_int_equal(mc_topo_nearness_to(topo, card, "cpu:1", &hops), MC_TOPO_SAME);
    assert_int_equal(mc_topo_nearness_to(topo, card, "cpu:0", &hops), MC_TOPO_SYSTEM);
    assert_int_equal(hops, 32);
    assert_int_equal(mc_topo_nearness_to(topo, card, "cuda:1", NULL), MC_TOPO_ROOT);
    assert_int_equal(mc_topo_nearness_to(topo, card, "cuda:0", &hops), MC_TOPO_SYSTEM);
    assert_int_equal(mc_topo_nearness_to(topo, card, "*", &hops), MC_TOPO_UNKNOWN);
    assert_int_equal(mc_topo_nearness_to(topo, card, "cpu:7", &hops), MC_TOPO_UNKNOWN);
    assert_int_equal(mc_topo_nearness_to(topo, card, "cpu:x", &hops), MC_TOPO_UNKNOWN);
    mc_topo_free(topo);
}

static void test_sources_that_cannot_be_used(void **state) {
    struct mc_topo *topo = NULL;
    struct mc_topo_source source = {"/nowhere.xml", NULL};
    assert_int_equal(mc_topo_discover(&source, &topo), MC_FILE_OPEN_FAIL);
    source.xml = "README.md";
    assert_int_equal(mc_topo_discover(&source, &topo), MC_FILE_OPEN_FAIL);
    assert_null(topo);
    mc_topo_free(NULL);
}

static void test_this_machine(void **state) {
    struct mc_topo *topo = NULL;
    assert_ok(mc_topo_discover(&(struct mc_topo_source){NULL, NULL}, &topo));
    assert_true(topo->node_count >= 1 && topo->packages >= 1);
    for (size_t i = 0; i < topo->device_count; i++) {
        assert_true(topo->devices[i].name[0] != '\0');
    }
    mc_topo_free(topo);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_socket),
        cmocka_unit_test(test_two_sockets),
        cmocka_unit_test(test_numa_unknown),
        cmocka_unit_test(test_pcie_switches),
        cmocka_unit_test(test_eight_cards_eight_gpus),
        cmocka_unit_test(test_nic_down),
        cmocka_unit_test(test_no_nic),
        cmocka_unit_test(test_soft_roce),
        cmocka_unit_test(test_every_gpu_has_its_own_card),
        cmocka_unit_test(test_nearest_wins),
        cmocka_unit_test(test_what_is_not_known_is_not_claimed),
        cmocka_unit_test(test_a_card_without_a_link_carries_nothing),
        cmocka_unit_test(test_penalties_grow_with_distance),
        cmocka_unit_test(test_sources_that_cannot_be_used),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
