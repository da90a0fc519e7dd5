/*
 * The rdma transport over real verbs, inside the guest of tests/vm/guest: the suite of
 * support/rdma_suite.h, and what needs a process that dies.
 *
 * Usage: vm_rdma [name of one test]
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/rdma_suite.h"

extern const struct mc_transport_ops mc_transport_rdma_ops;

static void set_link(unsigned nic, bool up) {
    char command[160];
    /* A link that goes down takes its routes along (rxe.sh). */
    snprintf(command, sizeof(command),
             up ? "ip link set v%u up && ip route replace 10.9.%u.2 dev v%u table %u"
                : "ip link set v%u down",
             nic, nic / 2, nic, 100 + nic);
    assert_int_equal(system(command), 0);
}

/* A process of its own that serves memory under a fixed port until it is killed. */
struct target {
    pid_t pid;
    uint64_t addr;
};

static struct target target_start(uint16_t port, uint64_t seed) {
    struct target target;
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    target.pid = fork();
    assert_true(target.pid >= 0);
    if (target.pid == 0) {
        struct rdma_side side;
        rdma_side_open(&side, "1", 4 * MIB, port);
        mc_test_fill(side.memory, side.size, seed);
        uint64_t addr = (uint64_t)(uintptr_t)side.memory;
        (void)!write(pipe_fds[1], &addr, sizeof(addr));
        pause();
        _exit(0);
    }
    assert_int_equal(read(pipe_fds[0], &target.addr, sizeof(target.addr)), sizeof(target.addr));
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return target;
}

static void target_kill(const struct target *target) {
    kill(target->pid, SIGKILL);
    waitpid(target->pid, NULL, 0);
}

static void test_a_peer_that_is_killed_is_an_error_and_met_again(void **state) {
    struct rdma_side a;
    mc_segment_id id;
    struct target target = target_start(16999, 1);
    rdma_side_open(&a, "0", 4 * MIB, 0);
    assert_ok(mc_segment_open(a.engine, "127.0.0.1:16999", &id));
    const char *there = (const char *)(uintptr_t)target.addr;
    assert_ok(rdma_move(&a, id, MC_TRANSFER_READ, a.memory, there, 4 * MIB, RDMA_PATIENCE_MS));
    mc_test_verify(a.memory, 4 * MIB, 1);
    target_kill(&target);
    uint64_t begin = mc_now_ms(mc_clock_system());
    enum mc_status status = rdma_move(&a, id, MC_TRANSFER_READ, a.memory, there, MIB, 20000);
    assert_int_not_equal(status, MC_OK);
    assert_true(mc_now_ms(mc_clock_system()) - begin < 25000);
    target = target_start(16999, 2);
    there = (const char *)(uintptr_t)target.addr;
    assert_ok(mc_segment_refresh(a.engine, id));
    assert_ok(rdma_move(&a, id, MC_TRANSFER_READ, a.memory, there, 4 * MIB, RDMA_PATIENCE_MS));
    mc_test_verify(a.memory, 4 * MIB, 2);
    target_kill(&target);
    rdma_side_close(&a);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size_arrives_whole),
        cmocka_unit_test(test_two_pairs_of_nics_carry_one_transfer),
        cmocka_unit_test(test_a_link_that_goes_down_is_not_seen_by_the_application),
        cmocka_unit_test(test_two_endpoints_serve_four_busy_peers),
        cmocka_unit_test(test_both_sides_may_open_at_the_same_moment),
        cmocka_unit_test(test_a_deadline_leaves_local_memory_alone),
        cmocka_unit_test(test_memory_that_is_unregistered_is_out_of_reach),
        cmocka_unit_test(test_ranges_larger_than_a_region_are_split),
        cmocka_unit_test(test_a_peer_that_is_killed_is_an_error_and_met_again),
    };
    rdma_suite = (struct rdma_suite){&mc_transport_rdma_ops, "rxe", set_link};
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    alarm(500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
