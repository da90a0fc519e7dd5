/* Sixty-four processes that start at once get sixty-four ports, and each port leads to the process
 * that published it. */
#include "support/support.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/io.h"

#define PROCESSES 64
#define RANGE_MIN 21000 /* below the kernel's own choice for outgoing connections */
#define RANGE_MAX 21127

struct published {
    pid_t pid;
    uint16_t port;
};

/* Waits for the starting signal (end of file), takes a port, publishes it, then tells its pid to
 * whoever connects. */
static void child(int start_fd, int publish_fd, bool in_range) {
    struct mc_rng rng;
    struct published mine = {.pid = getpid()};
    int listener, fd;
    struct mc_addr peer;
    char byte;
    mc_rng_seed(&rng, 1); /* the same for all: they collide at every step */
    while (read(start_fd, &byte, 1) < 0 && errno == EINTR) {
    }
    enum mc_status status =
        in_range ? mc_listen_range("", RANGE_MIN, RANGE_MAX, &rng, 8, &listener, &mine.port)
                 : mc_listen("", 0, 8, &listener, &mine.port);
    if (status != MC_OK || write(publish_fd, &mine, sizeof(mine)) != (ssize_t)sizeof(mine)) {
        _exit(1);
    }
    struct pollfd p = {.fd = listener, .events = POLLIN};
    if (poll(&p, 1, 60000) != 1 || mc_accept(listener, &fd, &peer) != MC_OK) {
        _exit(2);
    }
    struct iovec iov = {&mine.pid, sizeof(mine.pid)};
    _exit(mc_send_all(fd, &iov, 1, mc_now_ns(mc_clock_system()) + 60 * MC_SEC) == MC_OK ? 0 : 3);
}

static void ask_who(const struct published *p) {
    struct mc_addr addr;
    int fd;
    pid_t answer = 0;
    uint64_t deadline = mc_now_ns(mc_clock_system()) + 60 * MC_SEC;
    assert_ok(mc_addr_resolve(p->port % 2 ? "127.0.0.1" : "::1", p->port, &addr));
    assert_ok(mc_connect(&addr, deadline, &fd));
    assert_ok(mc_recv_all(fd, &answer, sizeof(answer), deadline));
    assert_int_equal(answer, p->pid);
    close(fd);
}

static void race(bool in_range) {
    int start[2], publish[2];
    pid_t pids[PROCESSES];
    struct published all[PROCESSES] = {0};
    assert_int_equal(pipe(start), 0);
    assert_int_equal(pipe(publish), 0);
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            close(start[1]);
            child(start[0], publish[1], in_range);
        }
    }
    close(start[1]); /* go */
    close(start[0]);
    close(publish[1]);
    for (int i = 0; i < PROCESSES; i++) {
        assert_int_equal(read(publish[0], &all[i], sizeof(all[i])), sizeof(all[i]));
        assert_true(!in_range || (all[i].port >= RANGE_MIN && all[i].port <= RANGE_MAX));
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(all[i].port, all[j].port);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        ask_who(&all[i]);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int how;
        assert_int_equal(waitpid(pids[i], &how, 0), pids[i]);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    }
    close(publish[0]);
}

static void test_ports_of_a_range_are_never_shared(void **state) {
    race(true);
}
static void test_ports_that_the_kernel_chooses_are_never_shared(void **state) {
    race(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ports_of_a_range_are_never_shared),
        cmocka_unit_test(test_ports_that_the_kernel_chooses_are_never_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
