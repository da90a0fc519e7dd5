/*
 * Peers that are killed, stopped, restarted under the same name, or take their memory back: an
 * error before the deadline, local memory that nobody touches afterwards, and a way on when the
 * peer is well again. MC_TEST_THREADS.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "integration/te/te_peer.h"

#define SIZE (4u << 20)

struct scene {
    struct peer peer;
    struct mc_engine *engine;
    mc_segment_id segment;
    char *local;
};

enum way { WAY_TCP, WAY_MAPPED, WAY_COPIED, WAYS };

static void begin(struct scene *s, enum way way) {
    peer_start(&s->peer, SIZE, way == WAY_MAPPED, way == WAY_TCP, 0);
    s->engine = peer_engine(way == WAY_TCP, 0);
    s->local = malloc(SIZE);
    assert_ok(mc_segment_open(s->engine, s->peer.hello.name, &s->segment));
}

static void end(struct scene *s) {
    mc_engine_destroy(s->engine);
    free(s->local);
}

static enum mc_status move(struct scene *s, enum mc_transfer_op op, uint64_t length, uint64_t ms) {
    struct mc_transfer_request r = {op, s->local, s->segment, s->peer.hello.addr, length};
    return mc_transfer(s->engine, &r, 1, mc_deadline_in_ms(ms));
}

static void a_killed_peer_is_an_error(void **state) {
    for (enum way way = 0; way < WAYS; way++) {
        struct scene s;
        begin(&s, way);
        assert_true(peer_tell(&s.peer, PEER_FILL, 0, SIZE, 1));
        assert_ok(move(&s, MC_TRANSFER_READ, SIZE, 20000));
        mc_test_verify(s.local, SIZE, 1);
        peer_kill(&s.peer);
        enum mc_status read = move(&s, MC_TRANSFER_READ, SIZE, 20000);
        enum mc_status write = move(&s, MC_TRANSFER_WRITE, 4096, 20000);
        assert_true(read != MC_OK && read != MC_ERR_TIMEOUT);
        assert_true(write != MC_OK && write != MC_ERR_TIMEOUT);
        end(&s);
    }
}

struct killer {
    pid_t pid;
    useconds_t after_us;
};

static void *killer_main(void *arg) {
    struct killer *k = arg;
    usleep(k->after_us);
    kill(k->pid, SIGKILL);
    return NULL;
}

/* Batches are under way when the peer dies: every task ends,
 * completed ones with the right bytes. */
static void a_peer_killed_in_mid_flight_ends_every_task(void **state) {
    for (enum way way = 0; way < WAYS; way++) {
        struct scene s;
        pthread_t thread;
        struct mc_transfer_request requests[64];
        begin(&s, way);
        assert_true(peer_tell(&s.peer, PEER_FILL, 0, SIZE, 5));
        for (size_t i = 0; i < 64; i++) {
            requests[i] =
                (struct mc_transfer_request){MC_TRANSFER_READ, s.local + i * (SIZE / 64), s.segment,
                                             s.peer.hello.addr + i * (SIZE / 64), SIZE / 64};
        }
        struct killer killer = {s.peer.pid, 20000};
        assert_int_equal(pthread_create(&thread, NULL, killer_main, &killer), 0);
        enum mc_status status = MC_OK;
        char *expected = malloc(SIZE);
        mc_test_fill(expected, SIZE, 5);
        while (status == MC_OK) {
            struct mc_batch *batch = NULL;
            memset(s.local, 0, SIZE);
            assert_ok(mc_batch_create(s.engine, 64, &batch));
            assert_ok(mc_batch_submit(batch, requests, 64, mc_deadline_in_ms(30000)));
            status = mc_batch_wait(batch, MC_WAIT_FOREVER);
            assert_int_not_equal(status, MC_ERR_TIMEOUT);
            for (size_t i = 0; i < 64; i++) {
                struct mc_transfer_status task;
                assert_ok(mc_batch_task(batch, i, &task));
                assert_true(task.state == MC_TRANSFER_COMPLETED ||
                            task.state == MC_TRANSFER_FAILED);
                if (task.state == MC_TRANSFER_COMPLETED) {
                    assert_int_equal(task.transferred_bytes, SIZE / 64);
                    assert_memory_equal(requests[i].local, expected + i * (SIZE / 64), SIZE / 64);
                }
            }
            assert_ok(mc_batch_free(batch));
        }
        free(expected);
        pthread_join(thread, NULL);
        peer_reap(&s.peer);
        end(&s);
    }
}

/* How late a deadline of `ms` is, the least of some: what the machine adds by itself is in all of
 * them but seldom in each. */
static uint64_t least_late_ns(struct scene *s, uint64_t ms) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 20 && least > ms * MC_MS / 10; i++) {
        uint64_t due = mc_deadline_in_ms(ms);
        assert_int_equal(move(s, i % 2 == 0 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE, SIZE, ms),
                         MC_ERR_TIMEOUT);
        least = mc_min_u64(least, mc_deadline_in_ms(0) - due);
    }
    return least;
}

/* By tcp a stopped peer answers nothing. (By shared memory its memory is as good as ever.) */
static void a_stopped_peer_ends_at_the_deadline(void **state) {
    struct scene s;
    begin(&s, WAY_TCP);
    assert_true(peer_tell(&s.peer, PEER_FILL, 0, SIZE, 2));
    assert_ok(move(&s, MC_TRANSFER_READ, SIZE, 20000));
    peer_pause(&s.peer);
    memset(s.local, 0x21, SIZE);
    uint64_t before = mc_deadline_in_ms(0);
    assert_int_equal(move(&s, MC_TRANSFER_READ, SIZE, 100), MC_ERR_TIMEOUT);
    assert_int_equal(move(&s, MC_TRANSFER_WRITE, SIZE, 100), MC_ERR_TIMEOUT);
    assert_true(mc_deadline_in_ms(0) - before >= 200 * MC_MS);
    assert_true(least_late_ns(&s, 100) <= 10 * MC_MS); /* to 10 % */
    kill(s.peer.pid, SIGCONT);
    usleep(100000); /* late bytes, if any were to come */
    for (size_t i = 0; i < SIZE; i++) {
        assert_int_equal(s.local[i], 0x21);
    }
    assert_true(peer_tell(&s.peer, PEER_FILL, 0, SIZE, 3));
    assert_ok(move(&s, MC_TRANSFER_READ, SIZE, 20000)); /* all is well again */
    mc_test_verify(s.local, SIZE, 3);
    end(&s);
    peer_stop(&s.peer);
}

static void an_engine_ends_with_transfers_in_flight(void **state) {
    struct scene s;
    struct mc_batch *batch = NULL;
    struct mc_transfer_status status;
    begin(&s, WAY_TCP);
    peer_pause(&s.peer);
    memset(s.local, 0x21, SIZE);
    struct mc_transfer_request r = {MC_TRANSFER_READ, s.local, s.segment, s.peer.hello.addr, SIZE};
    assert_ok(mc_batch_create(s.engine, 1, &batch));
    assert_ok(mc_batch_submit(batch, &r, 1, MC_WAIT_FOREVER));
    mc_engine_destroy(s.engine);
    kill(s.peer.pid, SIGCONT);
    assert_ok(mc_batch_task(batch, 0, &status));
    assert_int_equal(status.state, MC_TRANSFER_FAILED);
    assert_int_equal(status.error, MC_ERR_CANCELLED);
    usleep(50000);
    for (size_t i = 0; i < SIZE; i++) {
        assert_int_equal(s.local[i], 0x21);
    }
    assert_ok(mc_batch_free(batch));
    free(s.local);
    peer_stop(&s.peer);
}

static void a_restarted_peer_is_found_under_its_name(void **state) {
    for (enum way way = 0; way < WAYS; way++) {
        struct scene s;
        begin(&s, way);
        assert_true(peer_tell(&s.peer, PEER_FILL, 0, SIZE, 1));
        assert_ok(move(&s, MC_TRANSFER_READ, SIZE, 20000));
        uint16_t port = (uint16_t)s.peer.hello.rpc_port;
        peer_kill(&s.peer);
        assert_int_not_equal(move(&s, MC_TRANSFER_READ, SIZE, 20000), MC_OK);
        struct peer_hello old = s.peer.hello;
        peer_start(&s.peer, SIZE, way == WAY_MAPPED, way == WAY_TCP, port);
        assert_string_equal(old.name, s.peer.hello.name);
        assert_true(peer_tell(&s.peer, PEER_FILL, 0, SIZE, 9));
        enum mc_status status = MC_ERR_CLOSED;
        for (int i = 0; i < 200 && status != MC_OK; i++) { /* it looks again once a second */
            status = move(&s, MC_TRANSFER_READ, SIZE, 20000);
            usleep(status == MC_OK ? 0 : 20000);
        }
        assert_ok(status);
        mc_test_verify(s.local, SIZE, 9);
        mc_test_fill(s.local, SIZE, 10);
        assert_ok(move(&s, MC_TRANSFER_WRITE, SIZE, 20000));
        assert_int_equal(peer_tell(&s.peer, PEER_VERIFY, 0, SIZE, 10), SIZE);
        const char *used = way == WAY_TCP
                               ? "mooncake_te_slices_total{transport=\"tcp\",op=\"write\"}"
                               : "mooncake_te_slices_total{transport=\"shm\",op=\"write\"}";
        assert_true(te_counter(s.engine, used) > 0);
        end(&s);
        peer_stop(&s.peer);
    }
}

/* Threads write all the time while the owner takes its memory back: once unregistering has
 * returned, the bytes stay. */
struct writer {
    struct scene *scene;
    _Atomic bool stop;
    _Atomic uint64_t ok;
    char fill;
};

static void *writer_main(void *arg) {
    struct writer *w = arg;
    char *mine = malloc(256 << 10);
    memset(mine, w->fill, 256 << 10);
    while (!atomic_load(&w->stop)) {
        struct mc_transfer_request r = {MC_TRANSFER_WRITE, mine, w->scene->segment,
                                        w->scene->peer.hello.addr, 256 << 10};
        if (mc_transfer(w->scene->engine, &r, 1, mc_deadline_in_ms(20000)) == MC_OK) {
            atomic_fetch_add(&w->ok, 1);
        }
    }
    free(mine);
    return NULL;
}

static void memory_taken_back_is_not_touched(void **state) {
    struct scene s;
    struct writer w = {&s, false, 0, 'w'};
    pthread_t threads[2];
    begin(&s, WAY_COPIED);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, writer_main, &w), 0);
    }
    for (int round = 0; round < 10; round++) {
        uint64_t before = atomic_load(&w.ok);
        for (int i = 0; i < 2000 && atomic_load(&w.ok) < before + 3; i++) {
            usleep(1000);
        }
        assert_true(atomic_load(&w.ok) >= before + 3); /* writes reach it… */
        assert_true(peer_tell(&s.peer, PEER_UNREGISTER, 0, 0, 0));
        assert_true(peer_tell(&s.peer, PEER_FILL, 0, SIZE, 77)); /* …now it is the owner's alone… */
        usleep(10000);
        assert_int_equal(peer_tell(&s.peer, PEER_VERIFY, 0, SIZE, 77), SIZE);
        assert_true(peer_tell(&s.peer, PEER_REGISTER, 0, 0, 0)); /* …and theirs again */
    }
    atomic_store(&w.stop, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(te_counter(s.engine, "mooncake_te_slices_total{transport=\"shm\",op=\"write\"}") >
                0);
    end(&s);
    peer_stop(&s.peer);
}

static void a_guest_that_goes_leaves_no_trace(void **state) {
    struct scene s;
    begin(&s, WAY_MAPPED);
    assert_ok(move(&s, MC_TRANSFER_READ, 4096, 20000));
    assert_int_equal(peer_tell(&s.peer, PEER_SHM_GUESTS, 0, 0, 0), 1);
    assert_ok(mc_segment_close(s.engine, s.segment));
    uint64_t guests = 1;
    for (int i = 0; i < 200 && guests != 0; i++) {
        usleep(10000);
        guests = peer_tell(&s.peer, PEER_SHM_GUESTS, 0, 0, 0);
    }
    assert_int_equal(guests, 0);
    end(&s);
    peer_stop(&s.peer);
}

int main(int argc, char **argv) {
    peer_take_over(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_peer_is_an_error),
        cmocka_unit_test(a_peer_killed_in_mid_flight_ends_every_task),
        cmocka_unit_test(a_stopped_peer_ends_at_the_deadline),
        cmocka_unit_test(an_engine_ends_with_transfers_in_flight),
        cmocka_unit_test(a_restarted_peer_is_found_under_its_name),
        cmocka_unit_test(memory_taken_back_is_not_touched),
        cmocka_unit_test(a_guest_that_goes_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
