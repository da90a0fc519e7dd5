/*
 * Two engines in two processes over tcp: every byte arrives in both versions of the protocol,
 * threads do not disturb each other, and a peer that dies or stops costs an error, never a hang, a
 * wrong byte or a late one. MC_TEST_THREADS
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/te/te_support.h"

#ifdef MC_SANITIZE
#define LARGEST (6u << 20)
#else
#define LARGEST (64u << 20)
#endif
#define MEMORY   (LARGEST + (1u << 20))
#define DEADLINE mc_deadline_in_ms(30000)

/* Threads of one process share nothing but the engine; the order that sockets make is not seen
 * (tcp_double.h). */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "intercept_send=0:atexit_sleep_ms=0";
}

struct fixture {
    pid_t target;
    int life; /* closing it ends the target */
    struct mc_engine *engine;
    mc_segment_id segment;
    uint8_t *remote; /* shared, at the same address in both processes */
    uint8_t *local;
};

static struct mc_engine *start_engine(void) {
    struct mc_engine_options options;
    struct mc_engine *engine;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = true;
    assert_ok(mc_engine_create(&options, &engine));
    return engine;
}

static _Noreturn void be_target(uint8_t *memory, int name_pipe, int life_pipe) {
    struct mc_engine *engine = start_engine();
    char name[256] = {0}, byte;
    if (mc_memory_register(engine, memory, MEMORY, "cpu:0", 0) != MC_OK) {
        _exit(2);
    }
    snprintf(name, sizeof(name), "%s", mc_engine_name(engine));
    if (write(name_pipe, name, sizeof(name)) != sizeof(name) || read(life_pipe, &byte, 1) != 0 ||
        mc_memory_unregister(engine, memory) != MC_OK) {
        _exit(3);
    }
    mc_engine_destroy(engine);
    _exit(0);
}

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    int name_pipe[2], life_pipe[2];
    char name[256];
    f->remote = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(f->remote != MAP_FAILED);
    f->local = mc_zalloc(MEMORY);
    assert_int_equal(pipe(name_pipe), 0);
    assert_int_equal(pipe(life_pipe), 0);
    f->target = fork();
    assert_true(f->target >= 0);
    if (f->target == 0) {
        close(life_pipe[1]);
        be_target(f->remote, name_pipe[1], life_pipe[0]);
    }
    close(name_pipe[1]);
    close(life_pipe[0]);
    f->life = life_pipe[1];
    assert_int_equal(read(name_pipe[0], name, sizeof(name)), sizeof(name));
    close(name_pipe[0]);
    f->engine = start_engine();
    assert_ok(mc_segment_open(f->engine, name, &f->segment));
    *state = f;
    return 0;
}

static int setup_plain(void **state) {
    setenv("MC_TCP_PROTO", "1", 1);
    int result = setup(state);
    unsetenv("MC_TCP_PROTO");
    return result;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    int status;
    mc_engine_destroy(f->engine);
    close(f->life);
    assert_int_equal(waitpid(f->target, &status, 0), f->target);
    assert_true(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    munmap(f->remote, MEMORY);
    free(f->local);
    free(f);
    return 0;
}

static enum mc_status move(const struct fixture *f, enum mc_transfer_op op, size_t local,
                           size_t remote, uint64_t length, uint64_t deadline_ns) {
    struct mc_transfer_request request = {op, f->local + local, f->segment,
                                          (uint64_t)(uintptr_t)(f->remote + remote), length};
    return mc_transfer(f->engine, &request, 1, deadline_ns);
}

static int64_t bytes_moved(const struct fixture *f) {
    return te_counter(f->engine, "mooncake_te_tcp_bytes_total{op=\"read\"}") +
           te_counter(f->engine, "mooncake_te_tcp_bytes_total{op=\"write\"}");
}

static void every_byte_arrives(void **state) {
    const struct fixture *f = *state;
    static const uint64_t sizes[] = {1, 2, 63, 4096, 65535, 65536, 1000003, 4u << 20, LARGEST};
    int64_t total = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        mc_test_fill(f->local, sizes[i], i);
        assert_ok(move(f, MC_TRANSFER_WRITE, 0, i, sizes[i], DEADLINE));
        mc_test_verify(f->remote + i, sizes[i], i);
        memset(f->local, 0, sizes[i]);
        assert_ok(move(f, MC_TRANSFER_READ, 0, i, sizes[i], DEADLINE));
        mc_test_verify(f->local, sizes[i], i);
        total += 2 * (int64_t)sizes[i];
    }
    assert_int_equal(bytes_moved(f), total);
    assert_int_equal(te_counter(f->engine, "mooncake_te_tcp_errors_total"), 0);
}

/* ---- threads ---- */

struct worker {
    const struct fixture *f;
    size_t index;
};

static void *work(void *arg) {
    enum { SPAN = 512 << 10, COUNT = 24 };
    const struct worker *w = arg;
    size_t at = w->index * 2 * SPAN;
    struct mc_rng rng;
    mc_rng_seed(&rng, w->index);
    for (uint64_t round = 0; round < 40; round++) {
        uint64_t size = 1 + mc_rng_below(&rng, SPAN / COUNT);
        struct mc_transfer_request requests[COUNT];
        mc_test_fill(w->f->local + at, size * COUNT, round);
        for (int op = MC_TRANSFER_WRITE; op >= MC_TRANSFER_READ; op--) {
            for (size_t i = 0; i < COUNT; i++) {
                requests[i] = (struct mc_transfer_request){
                    (enum mc_transfer_op)op,
                    w->f->local + at + (op == MC_TRANSFER_READ ? SPAN : 0) + i * size,
                    w->f->segment, (uint64_t)(uintptr_t)(w->f->remote + at + i * size), size};
            }
            struct mc_batch *batch;
            if (round % 2 == 0) {
                assert_ok(mc_transfer(w->f->engine, requests, COUNT, DEADLINE));
                continue;
            }
            assert_ok(mc_batch_create(w->f->engine, COUNT, &batch));
            assert_ok(mc_batch_submit(batch, requests, COUNT, DEADLINE));
            assert_ok(mc_batch_wait(batch, MC_WAIT_FOREVER));
            assert_ok(mc_batch_free(batch));
        }
        mc_test_verify(w->f->local + at + SPAN, size * COUNT, round);
    }
    return NULL;
}

static void threads_do_not_disturb_each_other(void **state) {
    struct worker workers[6];
    pthread_t threads[6];
    for (size_t i = 0; i < 6; i++) {
        workers[i] = (struct worker){*state, i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(bytes_moved(*state) > 0);
}

/* ---- peers that die or stop ---- */

static void *kill_later(void *arg) {
    const struct fixture *f = arg;
    usleep(30000);
    kill(f->target, SIGKILL);
    return NULL;
}

static void a_peer_killed_in_mid_transfer_is_an_error(void **state) {
    struct fixture *f = *state;
    pthread_t killer;
    enum mc_status status = MC_OK;
    mc_test_fill(f->remote, LARGEST, 5);
    assert_ok(move(f, MC_TRANSFER_READ, 0, 0, LARGEST, DEADLINE));
    assert_int_equal(pthread_create(&killer, NULL, kill_later, f), 0);
    while (status == MC_OK) { /* what is reported as a success is one */
        memset(f->local, 0, LARGEST);
        status = move(f, MC_TRANSFER_READ, 0, 0, LARGEST, DEADLINE);
        if (status == MC_OK) {
            mc_test_verify(f->local, LARGEST, 5);
        }
    }
    pthread_join(killer, NULL);
    assert_int_not_equal(status, MC_ERR_TIMEOUT); /* found out, not waited out */
    assert_int_not_equal(move(f, MC_TRANSFER_WRITE, 0, 0, 4096, DEADLINE), MC_OK);
}

static void a_stopped_peer_costs_the_deadline_and_its_late_bytes_touch_nothing(void **state) {
    struct fixture *f = *state;
    mc_test_fill(f->remote, LARGEST, 5);
    assert_ok(move(f, MC_TRANSFER_READ, 0, 0, 4096, DEADLINE));
    mc_test_stop_child(f->target);
    assert_int_equal(move(f, MC_TRANSFER_READ, 0, 0, LARGEST, mc_deadline_in_ms(200)),
                     MC_ERR_TIMEOUT);
    assert_int_equal(move(f, MC_TRANSFER_WRITE, 0, 0, LARGEST, mc_deadline_in_ms(200)),
                     MC_ERR_TIMEOUT);
    mc_test_fill(f->local, LARGEST, 6);
    assert_int_equal(kill(f->target, SIGCONT), 0);
    usleep(200000);
    mc_test_verify(f->local, LARGEST, 6);
    assert_ok(move(f, MC_TRANSFER_WRITE, 0, 0, LARGEST, DEADLINE));
    mc_test_verify(f->remote, LARGEST, 6);
    memset(f->local, 0, LARGEST);
    assert_ok(move(f, MC_TRANSFER_READ, 0, 0, LARGEST, DEADLINE));
    mc_test_verify(f->local, LARGEST, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_byte_arrives, setup, teardown),
        {"every_byte_arrives_in_the_plain_protocol", every_byte_arrives, setup_plain, teardown,
         NULL},
        cmocka_unit_test_setup_teardown(threads_do_not_disturb_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_killed_in_mid_transfer_is_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_stopped_peer_costs_the_deadline_and_its_late_bytes_touch_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
