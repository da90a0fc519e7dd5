/*
 * mc_recv_some ends with bytes, at the deadline, or with the peer, on sockets that sleep in reads
 * and on others; a sleeping socket still never blocks in the calls that must not. A stream that
 * looks before it sleeps gives the same bytes, and pays for looks in vain. MC_TEST_THREADS
 */
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/io.h"
#include "support/support.h"

static uint64_t in_ms(uint64_t ms) {
    return mc_now_ns(mc_clock_system()) + ms * MC_MS;
}

static void pair(int fds[2], bool sleeping) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    if (sleeping) {
        mc_sleep_in_reads(fds[0]);
    }
}

static void *send_late(void *arg) {
    int fd = *(int *)arg;
    char hello[] = "hello";
    struct iovec iov = {hello, 5};
    usleep(200 * 1000); /* longer than one sleep */
    assert_ok(mc_send_all(fd, &iov, 1, MC_NO_DEADLINE));
    usleep(100 * 1000);
    close(fd);
    return NULL;
}

static void test_bytes_then_the_end(void **state) {
    for (int sleeping = 0; sleeping < 2; sleeping++) {
        int fds[2];
        pthread_t thread;
        char head[2] = "", tail[8] = "";
        struct iovec iov[2] = {{head, sizeof(head)}, {tail, sizeof(tail)}};
        size_t n = 0;
        pair(fds, sleeping);
        assert_int_equal(pthread_create(&thread, NULL, send_late, &fds[1]), 0);
        assert_ok(mc_recv_some(fds[0], iov, 2, in_ms(60000), &n));
        assert_int_equal(n, 5);
        assert_memory_equal(head, "he", 2);
        assert_memory_equal(tail, "llo", 3);
        assert_int_equal(mc_recv_some(fds[0], iov, 2, MC_NO_DEADLINE, &n), MC_ERR_CLOSED);
        pthread_join(thread, NULL);
        close(fds[0]);
    }
}

static void test_the_deadline(void **state) {
    static const uint64_t limits_ms[] = {0, 5, 120};
    for (int sleeping = 0; sleeping < 2; sleeping++) {
        for (size_t i = 0; i < MC_ARRAY_LEN(limits_ms); i++) {
            int fds[2];
            char byte;
            struct iovec iov = {&byte, 1};
            size_t n = 0;
            pair(fds, sleeping);
            uint64_t deadline = in_ms(limits_ms[i]);
            assert_int_equal(mc_recv_some(fds[0], &iov, 1, deadline, &n), MC_ERR_TIMEOUT);
            assert_true(mc_now_ns(mc_clock_system()) >= deadline);
            assert_int_equal(n, 0);
            close(fds[0]);
            close(fds[1]);
        }
    }
}

static void test_streams_of_a_sleeping_socket_do_not_block(void **state) {
    int fds[2];
    struct mc_stream stream;
    static char bytes[1 << 20];
    struct iovec iov = {bytes, sizeof(bytes)};
    size_t n = 1, sent = 0;
    pair(fds, true);
    mc_stream_plain(&stream, fds[0]);
    assert_ok(stream.ops->readv(&stream, &iov, 1, &n));
    assert_int_equal(n, 0);
    do { /* nobody reads: it must say so, not wait */
        assert_ok(stream.ops->writev(&stream, &iov, 1, &n));
        sent += n;
    } while (n > 0 && sent < (64u << 20));
    assert_int_equal(n, 0);
    stream.ops->close(&stream);
    close(fds[1]);
}

static void looking_pair(int fds[2], struct mc_stream *stream, const char *spin_us) {
    pair(fds, false);
    mc_stream_plain(stream, fds[0]);
    setenv("MC_SPIN_US", spin_us, 1);
    mc_stream_sleep_in_reads(stream);
    unsetenv("MC_SPIN_US");
}

static void test_a_look_in_vain_is_paid_for(void **state) {
    static const char *const limits_us[] = {"0", "20"};
    for (size_t i = 0; i < MC_ARRAY_LEN(limits_us); i++) {
        int fds[2];
        struct mc_stream stream;
        char byte = 'a', got[4] = "";
        struct iovec out = {&byte, 1}, in = {got, sizeof(got)};
        size_t n = 0;
        looking_pair(fds, &stream, limits_us[i]);
        assert_int_equal(mc_stream_recv_some(&stream, &in, 1, in_ms(0), &n), MC_ERR_TIMEOUT);
        uint64_t owed = stream.spin.owed_ns;
        assert_true(i == 0 ? owed == 0 : owed >= 20000);
        for (unsigned answers = 0; stream.spin.owed_ns > 0; answers++) { /* slept for at once */
            assert_ok(mc_send_all(fds[1], &out, 1, MC_NO_DEADLINE));
            assert_ok(mc_stream_recv_once(&stream, &in, 1, &n));
            assert_true(n == 1 && got[0] == 'a');
            assert_true(stream.spin.owed_ns < owed);
            owed = stream.spin.owed_ns;
        }
        assert_ok(mc_send_all(fds[1], &out, 1, MC_NO_DEADLINE));
        assert_ok(mc_stream_recv_some(&stream, &in, 1, MC_NO_DEADLINE, &n)); /* the first look */
        assert_true(n == 1 && stream.spin.owed_ns == 0);
        assert_ok(
            mc_stream_recv_once(&stream, &in, 1, &n)); /* neither looking nor sleeping helps */
        assert_int_equal(n, 0);
        close(fds[1]);
        assert_int_equal(mc_stream_recv_some(&stream, &in, 1, MC_NO_DEADLINE, &n), MC_ERR_CLOSED);
        stream.ops->close(&stream);
    }
}

static void *wait_for_the_end(void *arg) {
    struct mc_stream *stream = arg;
    char byte;
    struct iovec in = {&byte, 1};
    size_t n;
    assert_int_equal(mc_stream_recv_some(stream, &in, 1, MC_NO_DEADLINE, &n), MC_ERR_CLOSED);
    return NULL;
}

/* On two cores there is one to look with: who comes second sleeps at once. */
static void test_who_is_not_alone_does_not_look(void **state) {
    cpu_set_t all, one;
    int fds[2], other_fds[2];
    struct mc_stream stream, other;
    pthread_t thread;
    char byte;
    struct iovec in = {&byte, 1};
    size_t n;
    uint64_t until = in_ms(60000);
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int i = 0, left = 2; i < CPU_SETSIZE && left > 0; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            left--;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    looking_pair(fds, &stream, "20");
    looking_pair(other_fds, &other, "20");
    assert_int_equal(pthread_create(&thread, NULL, wait_for_the_end, &other), 0);
    do { /* until the other one waits */
        stream.spin.owed_ns = 0;
        assert_int_equal(mc_stream_recv_some(&stream, &in, 1, in_ms(0), &n), MC_ERR_TIMEOUT);
        assert_true(mc_now_ns(mc_clock_system()) < until);
    } while (stream.spin.owed_ns > 0);
    close(other_fds[1]);
    pthread_join(thread, NULL);
    assert_int_equal(mc_stream_recv_some(&stream, &in, 1, in_ms(0), &n), MC_ERR_TIMEOUT);
    assert_true(stream.spin.owed_ns > 0); /* alone again */
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    stream.ops->close(&stream);
    other.ops->close(&other);
    close(fds[1]);
}

static void test_late_bytes_come_to_who_looks(void **state) {
    int fds[2];
    struct mc_stream stream;
    pthread_t thread;
    char head[2] = "", tail[8] = "";
    struct iovec iov[2] = {{head, sizeof(head)}, {tail, sizeof(tail)}};
    size_t n = 0;
    looking_pair(fds, &stream, "50");
    assert_int_equal(pthread_create(&thread, NULL, send_late, &fds[1]), 0);
    assert_ok(mc_stream_recv_some(&stream, iov, 2, in_ms(60000), &n));
    assert_int_equal(n, 5);
    assert_memory_equal(head, "he", 2);
    assert_memory_equal(tail, "llo", 3);
    assert_int_equal(mc_stream_recv_some(&stream, iov, 2, MC_NO_DEADLINE, &n), MC_ERR_CLOSED);
    pthread_join(thread, NULL);
    stream.ops->close(&stream);
}

#define ROUNDS 2000

static void *answer_at_once(void *arg) {
    int fd = *(int *)arg;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t asked[2] = {0, 0};
        struct iovec iov = {asked, sizeof(asked)};
        assert_ok(mc_recv_all(fd, asked, sizeof(asked), in_ms(60000)));
        assert_int_equal(asked[0], i);
        assert_ok(mc_send_all(fd, &iov, 1, MC_NO_DEADLINE));
    }
    return NULL;
}

/* Answers that come while somebody looks, before, and after: each whole, once, in order. */
static void test_answers_come_whole_whenever_they_come(void **state) {
    int fds[2];
    struct mc_stream stream;
    pthread_t thread;
    looking_pair(fds, &stream, "1000");
    assert_int_equal(pthread_create(&thread, NULL, answer_at_once, &fds[1]), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t asked[2] = {i, ~i}, answered[2] = {0, 0};
        struct iovec out = {asked, sizeof(asked)};
        size_t got = 0;
        if (i % 3 != 0) {
            stream.spin.owed_ns = 0; /* whatever the last look was, there is one now */
        }
        assert_ok(mc_send_all(fds[0], &out, 1, MC_NO_DEADLINE));
        while (got < sizeof(answered)) {
            struct iovec in = {(char *)answered + got, sizeof(answered) - got};
            size_t n = 0;
            assert_ok(mc_stream_recv_some(&stream, &in, 1, in_ms(60000), &n));
            assert_true(n > 0);
            got += n;
        }
        assert_true(answered[0] == i && answered[1] == ~i);
    }
    pthread_join(thread, NULL);
    stream.ops->close(&stream);
    close(fds[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_then_the_end),
        cmocka_unit_test(test_the_deadline),
        cmocka_unit_test(test_streams_of_a_sleeping_socket_do_not_block),
        cmocka_unit_test(test_a_look_in_vain_is_paid_for),
        cmocka_unit_test(test_who_is_not_alone_does_not_look),
        cmocka_unit_test(test_late_bytes_come_to_who_looks),
        cmocka_unit_test(test_answers_come_whole_whenever_they_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
