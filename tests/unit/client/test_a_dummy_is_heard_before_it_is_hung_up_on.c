/*
 * A dummy has a second for its request. When the node was busy with another's all the while, what
 * the dummy has said in time counts. The memory's side (dummies.c) is replaced: the linker takes
 * what is here. MC_TEST_THREADS
 */
#include <semaphore.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/dummies_private.h"
#include "io/io.h"
#include "support/support.h"

static sem_t is_inside, may_leave;

const char *mc_dummies_take_memory(struct mc_dummies *dummies, const struct mc_dummy_register *r,
                                   int memory, int connection) {
    if (r->base == 1) { /* the slow one */
        sem_post(&is_inside);
        sem_wait(&may_leave);
    }
    return NULL;
}

void mc_dummies_sweep(struct mc_dummies *dummies) {}

static int call(const char *name) {
    int fd;
    assert_ok(mc_local_connect_stream(name, 60000, &fd));
    return fd;
}

static void say(int fd, uint64_t base) {
    const uint32_t type = MC_DUMMY_IPC_REGISTER;
    const struct mc_dummy_register r = {.base = base, .size = 4096, .device = -1};
    assert_ok(mc_local_send(fd, &type, sizeof(type), -1));
    assert_ok(mc_local_send(fd, &r, sizeof(r), -1));
}

static enum mc_status hear(int fd) {
    int32_t answer = 1;
    int passed;
    enum mc_status status = mc_local_recv_stream(
        fd, &answer, sizeof(answer), mc_now_ns(mc_clock_system()) + 60 * MC_SEC, &passed);
    assert_true(status != MC_OK || answer == 0);
    close(fd);
    return status;
}

static void what_was_said_in_time_counts(void **state) {
    struct mc_dummies ds = {.stop_fd = eventfd(0, EFD_CLOEXEC)};
    char name[64];
    snprintf(name, sizeof(name), "mooncake-test-dummies-%d", (int)getpid());
    sem_init(&is_inside, 0, 0);
    sem_init(&may_leave, 0, 0);
    assert_ok(mc_local_listen_stream(name, &ds.listen_fd));
    assert_int_equal(pthread_create(&ds.thread, NULL, mc_dummies_main, &ds), 0);
    int silent = call(name), other = call(name), slow = call(name); /* accepted in this order */
    say(slow, 1);
    sem_wait(&is_inside);
    say(other, 2);
    usleep(1300000);
    sem_post(&may_leave);
    assert_ok(hear(slow));
    assert_ok(hear(other));
    assert_int_equal(hear(silent), MC_ERR_CLOSED);
    assert_int_equal(eventfd_write(ds.stop_fd, 1), 0);
    pthread_join(ds.thread, NULL);
    close(ds.listen_fd);
    close(ds.stop_fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_said_in_time_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
