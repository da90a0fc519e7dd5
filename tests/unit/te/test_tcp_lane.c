/*
 * The tcp transport's initiator: every byte arrives where it belongs, every slice ends exactly
 * once, and no failure of the peer is reported as success. Against the transport's own server, and
 * against a server that the test plays by hand. MC_TEST_THREADS: several threads share the lanes of
 * one peer.
 */
#include "unit/te/tcp_double.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MEMORY (72u << 20)

struct fixture {
    struct mc_engine *initiator;
    pid_t target;    /* a process of its own: a thread checker does not see order made by sockets */
    int target_pipe; /* closing it ends the target */
    struct double_segment segment;
    uint8_t *remote; /* the target's registered memory, at the same address in both */
    uint8_t *local;
    int listener; /* of the server played by hand */
    uint16_t port;
};

static _Noreturn void be_target(uint8_t *memory, int port_pipe, int life_pipe) {
    struct mc_engine *engine = double_engine(1);
    uint16_t port = double_port(engine);
    char byte;
    double_add(engine, memory, MEMORY);
    if (write(port_pipe, &port, sizeof(port)) != sizeof(port) || read(life_pipe, &byte, 1) != 0) {
        _exit(2);
    }
    mc_transport_tcp_ops.stop(engine->transport);
    _exit(atomic_load(&engine->memories[0].users) == 0 ? 0 : 3);
}

static uint16_t start_target(struct fixture *f) {
    int port_pipe[2], life_pipe[2];
    uint16_t port;
    assert_int_equal(pipe(port_pipe), 0);
    assert_int_equal(pipe(life_pipe), 0);
    f->target = fork();
    assert_true(f->target >= 0);
    if (f->target == 0) {
        close(life_pipe[1]);
        be_target(f->remote, port_pipe[1], life_pipe[0]);
    }
    close(port_pipe[1]);
    close(life_pipe[0]);
    f->target_pipe = life_pipe[1];
    assert_int_equal(read(port_pipe[0], &port, sizeof(port)), sizeof(port));
    close(port_pipe[0]);
    return port;
}

static int setup_lanes(void **state, unsigned lanes) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    f->remote = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(f->remote != MAP_FAILED);
    f->local = mc_zalloc(MEMORY);
    uint16_t port = start_target(f);
    f->initiator = double_engine(lanes);
    double_open(&f->segment, f->initiator, port, 2);
    assert_ok(mc_listen("127.0.0.1", 0, 16, &f->listener, &f->port));
    *state = f;
    return 0;
}

static int setup(void **state) {
    return setup_lanes(state, 4);
}
static int setup_one_lane(void **state) {
    return setup_lanes(state, 1);
}

static int setup_impatient(void **state) {
    setenv("MC_TCP_STATUS_TIMEOUT_SEC", "1", 1);
    setenv("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "10", 1);
    int result = setup(state);
    unsetenv("MC_TCP_STATUS_TIMEOUT_SEC");
    unsetenv("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER");
    return result;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    double_close(&f->segment);
    double_destroy(f->initiator);
    int status;
    close(f->target_pipe);
    assert_int_equal(waitpid(f->target, &status, 0), f->target);
    assert_int_equal(status, 0); /* no memory is held by a request */
    close(f->listener);
    munmap(f->remote, MEMORY);
    free(f->local);
    free(f);
    return 0;
}

static int64_t moved(const struct fixture *f, enum mc_transfer_op op) {
    return mc_metric_get(&double_metrics(f->initiator)->bytes[op]);
}

/* ---- against the transport's own server ---- */

static void move_sizes(struct fixture *f, unsigned proto, bool drive) {
    static const size_t sizes[] = {1, 4096, 65536 + 7, (1u << 20) + 1, DOUBLE_LARGEST};
    int64_t total = 0;
    f->segment.desc.tcp_proto = proto;
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        mc_test_fill(f->local, sizes[i], i);
        assert_ok(
            double_move(&f->segment, MC_TRANSFER_WRITE, f->local, f->remote + i, sizes[i], drive));
        mc_test_verify(f->remote + i, sizes[i], i);
        memset(f->local, 0, sizes[i]);
        assert_ok(
            double_move(&f->segment, MC_TRANSFER_READ, f->local, f->remote + i, sizes[i], drive));
        mc_test_verify(f->local, sizes[i], i);
        total += (int64_t)sizes[i];
    }
    assert_int_equal(moved(f, MC_TRANSFER_READ), total);
    assert_int_equal(moved(f, MC_TRANSFER_WRITE), total);
    assert_int_equal(mc_metric_get(&double_metrics(f->initiator)->errors), 0);
}

static void a_waiter_moves_every_byte(void **state) {
    move_sizes(*state, 2, true);
}
static void the_reactor_moves_every_byte(void **state) {
    move_sizes(*state, 2, false);
}
static void the_plain_protocol_moves_every_byte(void **state) {
    move_sizes(*state, 1, true);
}
static void the_reactor_moves_every_byte_in_the_plain_protocol(void **state) {
    move_sizes(*state, 1, false);
}

/* Each thread has its own range on both sides and mixes sizes, directions, batches, and ways to
 * wait. */
struct worker {
    struct fixture *f;
    unsigned index;
    int rounds;
};

static void *work(void *arg) {
    enum { SPAN = 4 << 20 };
    struct worker *w = arg;
    uint8_t *local = w->f->local + (size_t)w->index * 2 * SPAN,
            *remote = w->f->remote + (size_t)w->index * SPAN;
    struct mc_rng rng;
    mc_rng_seed(&rng, w->index);
    for (int round = 0; round < w->rounds; round++) {
        uint64_t size = 1 + mc_rng_below(&rng, mc_rng_below(&rng, 8) == 0 ? 200000 : 5000);
        uint32_t count = 1 + (uint32_t)mc_rng_below(&rng, 20);
        int way = (int)mc_rng_below(&rng, 3);
        struct double_batch *writes = double_batch(), *reads = double_batch();
        mc_test_fill(local, size * count, (uint64_t)round);
        memset(local + SPAN, 0, size * count);
        for (uint32_t i = 0; i < count; i++) {
            double_add_slice(writes, &w->f->segment, MC_TRANSFER_WRITE, local + i * size,
                             remote + i * size, size);
            double_add_slice(reads, &w->f->segment, MC_TRANSFER_READ, local + SPAN + i * size,
                             remote + i * size, size);
        }
        assert_ok(double_post(writes, way == 0));
        double_wait(writes, way != 2);
        assert_ok(double_post(reads, way == 0));
        double_wait(reads, way != 2);
        for (uint32_t i = 0; i < count; i++) {
            assert_ok(writes->status[i]);
            assert_ok(reads->status[i]);
        }
        mc_test_verify(local + SPAN, size * count, (uint64_t)round);
        free(writes);
        free(reads);
    }
    return NULL;
}

static void threads_share_lanes(void **state) {
    struct fixture *f = *state;
    struct worker workers[6];
    pthread_t threads[6];
    for (unsigned i = 0; i < 6; i++) {
        workers[i] = (struct worker){f, i, 60};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(moved(f, MC_TRANSFER_READ), moved(f, MC_TRANSFER_WRITE));
    assert_true(mc_metric_get(&double_metrics(f->initiator)->lanes) <=
                f->segment.desc.tcp_proto * 2);
}

/* Reads of 1 MiB in all, in one post. Nothing is taken off the lanes while it is posted, because a
 * waiter is promised. Returns how many connections had to be made. */
static int64_t connects_of_a_post(struct fixture *f, uint64_t seed) {
    enum { SIZE = 64 << 10, COUNT = 16 };
    int64_t before = mc_metric_get(&double_metrics(f->initiator)->connects);
    struct double_batch *b = double_batch();
    mc_test_fill(f->remote, SIZE * COUNT, seed);
    for (size_t i = 0; i < COUNT; i++) {
        double_add_slice(b, &f->segment, MC_TRANSFER_READ, f->local + i * SIZE,
                         f->remote + i * SIZE, SIZE);
    }
    assert_ok(double_post(b, true));
    double_wait(b, true);
    mc_test_verify(f->local, SIZE * COUNT, seed);
    free(b);
    return mc_metric_get(&double_metrics(f->initiator)->connects) - before;
}

static void a_post_to_a_far_peer_is_spread_over_all_lanes(void **state) {
    struct fixture *f = *state;
    assert_int_equal(connects_of_a_post(f, 1), 1);
    struct tcp_peer *peer = f->segment.base.transport_state[0];
    assert_true(atomic_load(&peer->rtt_us) > 0); /* the handshake's */
    atomic_store(&peer->rtt_us, 50);
    assert_int_equal(connects_of_a_post(f, 2), 0);
    atomic_store(&peer->rtt_us, UINT32_MAX);
    assert_int_equal(connects_of_a_post(f, 3), 3);
    assert_true(atomic_load(&peer->rtt_us) < UINT32_MAX); /* the new lanes know better */
}

static void reads_and_writes_of_one_batch_flow_in_both_directions(void **state) {
    struct fixture *f = *state;
    enum { SIZE = DOUBLE_LARGEST / 256, PAIRS = 100 };
    struct double_batch *b = double_batch();
    mc_test_fill(f->local, (size_t)SIZE * PAIRS, 1);
    mc_test_fill(f->remote, (size_t)SIZE * PAIRS, 2);
    for (int i = 0; i < PAIRS; i++) { /* the socket fills in both directions long before the end */
        size_t at = (size_t)i * SIZE, other = (size_t)(PAIRS + i) * SIZE;
        double_add_slice(b, &f->segment, MC_TRANSFER_WRITE, f->local + at, f->remote + other, SIZE);
        double_add_slice(b, &f->segment, MC_TRANSFER_READ, f->local + other, f->remote + at, SIZE);
    }
    assert_ok(double_post(b, true));
    double_wait(b, true);
    mc_test_verify(f->remote + (size_t)SIZE * PAIRS, (size_t)SIZE * PAIRS, 1);
    mc_test_verify(f->local + (size_t)SIZE * PAIRS, (size_t)SIZE * PAIRS, 2);
    free(b);
}

static void a_refusal_fails_its_slice_for_good_and_the_others_for_a_retry(void **state) {
    struct fixture *f = *state;
    struct double_batch *b = double_batch();
    mc_test_fill(f->remote, 4096, 6);
    double_add_slice(b, &f->segment, MC_TRANSFER_READ, f->local, f->remote, 4096);
    double_add_slice(b, &f->segment, MC_TRANSFER_READ, f->local + 4096, f->remote + MEMORY - 1,
                     4096);
    double_add_slice(b, &f->segment, MC_TRANSFER_READ, f->local + 8192, f->remote, 4096);
    assert_ok(double_post(b, true));
    double_wait(b, true);
    assert_ok(b->status[0]);
    mc_test_verify(f->local, 4096, 6);
    assert_int_equal(b->status[1], MC_ERR_REJECTED);
    assert_false(b->retryable[1]);
    assert_int_equal(b->status[2], MC_ERR_CLOSED);
    assert_true(b->retryable[2]);
    free(b);
    /* Said while the payload is on its way. */
    assert_int_equal(double_move(&f->segment, MC_TRANSFER_WRITE, f->local, f->remote + MEMORY - 1,
                                 32u << 20, true),
                     MC_ERR_REJECTED);
    assert_ok(double_move(&f->segment, MC_TRANSFER_READ, f->local, f->remote, 4096, true));
}

static void a_plain_write_that_was_refused_is_not_a_success(void **state) {
    struct fixture *f = *state;
    f->segment.desc.tcp_proto = 1;
    assert_int_equal(
        double_move(&f->segment, MC_TRANSFER_WRITE, f->local, f->remote + MEMORY - 1, 100, true),
        MC_ERR_CLOSED);
    assert_ok(double_move(&f->segment, MC_TRANSFER_WRITE, f->local, f->remote, 100, true));
}

static void forgetting_a_segment_ends_its_slices_and_the_next_post_starts_anew(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < 20; i++) {
        struct double_batch *b = double_batch();
        for (int k = 0; k < 16; k++) {
            double_add_slice(b, &f->segment, MC_TRANSFER_READ, f->local + (k << 20),
                             f->remote + (k << 20), 1 << 20);
        }
        assert_ok(double_post(b, false));
        double_close(&f->segment);
        double_wait(b, false);
        for (int k = 0; k < 16; k++) {
            assert_true(b->status[k] == MC_OK ||
                        (b->status[k] == MC_ERR_CANCELLED && b->retryable[k]));
        }
        free(b);
    }
    assert_ok(double_move(&f->segment, MC_TRANSFER_READ, f->local, f->remote, 4096, true));
    double_close(&f->segment);
    wait_until(mc_metric_get(&double_metrics(f->initiator)->lanes) == 0);
}

/* ---- against a server played by hand ---- */

static void play(struct fixture *f) {
    f->segment.desc.tcp_data_port = f->port;
}

static int answer_call(const struct fixture *f) {
    struct pollfd p = {.fd = f->listener, .events = POLLIN};
    struct mc_addr peer;
    int fd;
    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_ok(mc_accept(f->listener, &fd, &peer));
    return fd;
}

static struct tcp_header expect_header(int fd) {
    unsigned char bytes[TCP_HEADER_BYTES];
    assert_ok(mc_recv_all(fd, bytes, sizeof(bytes), in_ms(20000)));
    return tcp_header_decode(bytes);
}

static void say(int fd, const void *bytes, size_t length) {
    struct iovec iov = {(void *)bytes, length};
    assert_ok(mc_send_all(fd, &iov, 1, in_ms(20000)));
}

static void say_status(int fd, uint64_t word) {
    word = htole64(word);
    say(fd, &word, sizeof(word));
}

#define OK_WORD 0x4D43545600000000ull

static struct double_batch *post_reads_to(struct fixture *f, uint8_t *local, int count,
                                          uint64_t size, bool hint) {
    struct double_batch *b = double_batch();
    for (int i = 0; i < count; i++) {
        double_add_slice(b, &f->segment, MC_TRANSFER_READ, local + (uint64_t)i * size, f->remote,
                         size);
    }
    assert_ok(double_post(b, hint));
    return b;
}

static struct double_batch *post_reads(struct fixture *f, int count, uint64_t size, bool hint) {
    return post_reads_to(f, f->local, count, size, hint);
}

static void expect_failed(struct double_batch *b, uint32_t from, enum mc_status status) {
    double_wait(b, false);
    for (uint32_t i = 0; i < b->count; i++) {
        assert_int_equal(b->status[i], i < from ? MC_OK : status);
        assert_true(i < from || b->retryable[i]);
    }
    free(b);
}

static void a_server_may_close_in_every_state(void **state) {
    struct fixture *f = *state;
    uint8_t bytes[1000];
    mc_test_fill(bytes, sizeof(bytes), 8);
    play(f);
    /* How many bytes of two answers (status and 1000 bytes each) it still sends. */
    static const int cuts[] = {-1, 0, 1, 1008, 7, 8, 1009, 9, 500, 1016, 1007, 2015};
    for (size_t i = 0; i < MC_ARRAY_LEN(cuts); i++) {
        struct double_batch *b = post_reads(f, 2, sizeof(bytes), false);
        int fd = answer_call(f);
        if (cuts[i] >= 0) {
            struct mc_buf answer = {0};
            uint64_t word = htole64(OK_WORD);
            for (int k = 0; k < 2; k++) {
                struct tcp_header header = expect_header(fd);
                assert_int_equal(header.opcode, 0x80);
                assert_int_equal(header.size, sizeof(bytes));
                assert_int_equal(header.addr, (uint64_t)(uintptr_t)f->remote);
                mc_buf_append(&answer, &word, sizeof(word));
                mc_buf_append(&answer, bytes, sizeof(bytes));
            }
            say(fd, answer.data, (size_t)cuts[i]);
            mc_buf_free(&answer);
        }
        memset(f->local, 0, sizeof(bytes));
        close(fd);
        expect_failed(b, cuts[i] >= 1008 ? 1 : 0, MC_ERR_CLOSED);
    }
}

static void an_answer_that_is_not_of_the_protocol_fails_the_lane(void **state) {
    struct fixture *f = *state;
    static const uint64_t words[] = {0, UINT64_MAX, 1, OK_WORD >> 32, OK_WORD ^ (1ull << 32)};
    play(f);
    for (size_t i = 0; i < MC_ARRAY_LEN(words); i++) {
        struct double_batch *b = post_reads(f, 3, 64, false);
        int fd = answer_call(f);
        expect_header(fd);
        say_status(fd, words[i]);
        expect_failed(b, 0, MC_ERR_PROTOCOL);
        close(fd);
    }
}

static void an_answer_before_the_question_is_whole_fails_the_lane(void **state) {
    struct fixture *f = *state;
    struct double_batch *b = double_batch();
    play(f);
    double_add_slice(b, &f->segment, MC_TRANSFER_WRITE, f->local, f->remote, 64u << 20);
    assert_ok(double_post(b, false));
    int fd = answer_call(f);
    expect_header(fd);
    say_status(fd, OK_WORD); /* but the payload is not read: a success would be a lie */
    expect_failed(b, 0, MC_ERR_PROTOCOL);
    close(fd);
}

static void answers_may_dribble(void **state) {
    struct fixture *f = *state;
    uint8_t answer[3][8 + 5];
    play(f);
    struct double_batch *b = post_reads(f, 3, 5, false);
    int fd = answer_call(f);
    for (int k = 0; k < 3; k++) {
        uint64_t word = htole64(OK_WORD);
        memcpy(answer[k], &word, 8);
        mc_test_fill(answer[k] + 8, 5, (uint64_t)k);
    }
    for (size_t i = 0; i < sizeof(answer); i++) {
        say(fd, (uint8_t *)answer + i, 1);
        usleep(300);
    }
    double_wait(b, true);
    for (int k = 0; k < 3; k++) {
        assert_ok(b->status[k]);
        mc_test_verify(f->local + k * 5, 5, (uint64_t)k);
    }
    free(b);
    close(fd);
}

/* A long request of ours has empty ones before it, so the answer to a read begins with as many
 * status words more. */
#define LONG_BYTES   (32u << 10)
#define STATUS_BYTES ((1 + TCP_PADS) * TCP_STATUS_BYTES)

static int padded_call(struct fixture *f, unsigned pad_opcode, unsigned opcode) {
    int fd = answer_call(f);
    for (int i = 0; i < TCP_PADS; i++) {
        struct tcp_header empty = expect_header(fd);
        assert_int_equal(empty.opcode, pad_opcode);
        assert_int_equal(empty.size, 0);
    }
    struct tcp_header header = expect_header(fd);
    assert_int_equal(header.opcode, opcode);
    assert_int_equal(header.size, LONG_BYTES);
    assert_int_equal(header.addr, (uint64_t)(uintptr_t)f->remote);
    return fd;
}

static void the_answer_to_a_padded_read_may_dribble(void **state) {
    struct fixture *f = *state;
    static uint8_t answer[STATUS_BYTES + LONG_BYTES];
    for (int i = 0; i <= TCP_PADS; i++) {
        uint64_t word = htole64(OK_WORD);
        memcpy(answer + i * TCP_STATUS_BYTES, &word, sizeof(word));
    }
    mc_test_fill(answer + STATUS_BYTES, LONG_BYTES, 3);
    play(f);
    for (int drive = 0; drive < 2; drive++) {
        memset(f->local, 0, LONG_BYTES);
        struct double_batch *b = post_reads(f, 1, LONG_BYTES, drive == 1);
        int fd = padded_call(f, 0x80, 0x80);
        const size_t dribbled = STATUS_BYTES + 4;
        for (size_t i = 0; i < dribbled; i++) {
            say(fd, answer + i, 1);
            usleep(300);
        }
        say(fd, answer + dribbled, sizeof(answer) - dribbled);
        double_wait(b, drive == 1);
        assert_ok(b->status[0]);
        mc_test_verify(f->local, LONG_BYTES, 3);
        free(b);
        double_close(&f->segment);
        close(fd);
    }
}

static void a_padded_read_can_be_refused_and_answered_with_nonsense(void **state) {
    struct fixture *f = *state;
    play(f);
    static const struct {
        int at;
        uint64_t word;
    } bad[] = {{TCP_PADS, OK_WORD | 1}, {0, OK_WORD | 1}, {TCP_PADS, 7}, {TCP_PADS / 2, 7}};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        struct double_batch *b = post_reads(f, 1, LONG_BYTES, false);
        int fd = padded_call(f, 0x80, 0x80);
        for (int k = 0; k < bad[i].at; k++) {
            say_status(fd, OK_WORD);
        }
        say_status(fd, bad[i].word);
        double_wait(b, false);
        bool refused = i < 2;
        assert_int_equal(b->status[0], refused ? MC_ERR_REJECTED : MC_ERR_PROTOCOL);
        assert_int_equal(b->retryable[0], !refused);
        free(b);
        close(fd);
    }
}

/* What precedes a write asks for no answer: one status word says that all is applied. */
static void a_padded_write_is_answered_once(void **state) {
    struct fixture *f = *state;
    static uint8_t got[LONG_BYTES];
    play(f);
    mc_test_fill(f->local, LONG_BYTES, 4);
    struct double_batch *b = double_batch();
    double_add_slice(b, &f->segment, MC_TRANSFER_WRITE, f->local, f->remote, LONG_BYTES);
    assert_ok(double_post(b, false));
    int fd = padded_call(f, 0x00, 0x81);
    assert_ok(mc_recv_all(fd, got, LONG_BYTES, in_ms(20000)));
    mc_test_verify(got, LONG_BYTES, 4);
    say_status(fd, OK_WORD);
    double_wait(b, false);
    assert_ok(b->status[0]);
    free(b);
    close(fd);
}

static void a_peer_that_is_not_ours_is_asked_without_padding(void **state) {
    struct fixture *f = *state;
    f->segment.desc.boot_id[0] = '\0';
    assert_ok(double_move(&f->segment, MC_TRANSFER_READ, f->local, f->remote, LONG_BYTES, true));
    double_close(&f->segment);
    play(f);
    struct double_batch *b = post_reads(f, 1, LONG_BYTES, false);
    int fd = answer_call(f);
    assert_int_equal(expect_header(fd).size, LONG_BYTES);
    close(fd);
    expect_failed(b, 0, MC_ERR_CLOSED);
}

static void a_lane_survives_that_its_idle_connection_is_closed(void **state) {
    struct fixture *f = *state;
    uint8_t bytes[64];
    play(f);
    for (int i = 0; i < 3; i++) {
        mc_test_fill(bytes, sizeof(bytes), (uint64_t)i);
        struct double_batch *b = post_reads(f, 1, sizeof(bytes), false);
        int fd = answer_call(f);
        expect_header(fd);
        say_status(fd, OK_WORD);
        say(fd, bytes, sizeof(bytes));
        double_wait(b, i % 2 == 0);
        assert_ok(b->status[0]);
        mc_test_verify(f->local, sizeof(bytes), (uint64_t)i);
        free(b);
        close(fd);
        wait_until(mc_metric_get(&double_metrics(f->initiator)->lanes) == 0);
    }
    assert_int_equal(mc_metric_get(&double_metrics(f->initiator)->connects), 3);
    assert_int_equal(mc_metric_get(&double_metrics(f->initiator)->errors), 0);
}

static void a_descriptor_that_names_another_place_moves_the_lanes(void **state) {
    struct fixture *f = *state;
    uint16_t old = f->segment.desc.tcp_data_port;
    uint8_t bytes[64];
    assert_ok(double_move(&f->segment, MC_TRANSFER_READ, f->local, f->remote, 64, true));
    mc_transport_tcp_ops.open(f->initiator->transport, &f->segment.base, &f->segment.desc);
    assert_int_equal(mc_metric_get(&double_metrics(f->initiator)->lanes), 1); /* nothing changed */
    play(f);
    mc_transport_tcp_ops.open(f->initiator->transport, &f->segment.base, &f->segment.desc);
    struct double_batch *b = post_reads(f, 1, sizeof(bytes), false);
    int fd = answer_call(f);
    mc_test_fill(bytes, sizeof(bytes), 4);
    expect_header(fd);
    say_status(fd, OK_WORD);
    say(fd, bytes, sizeof(bytes));
    double_wait(b, false);
    assert_ok(b->status[0]);
    mc_test_verify(f->local, sizeof(bytes), 4);
    free(b);
    close(fd);
    f->segment.desc.tcp_data_port = old;
}

static void a_refused_connection_is_tried_again_later(void **state) {
    struct fixture *f = *state;
    int listener;
    uint16_t port;
    assert_ok(mc_listen("127.0.0.1", 0, 16, &listener, &port));
    close(listener);
    f->segment.desc.tcp_data_port = port;
    uint64_t before = mc_now_ns(mc_clock_system());
    for (int i = 0; i < 4; i++) {
        assert_int_equal(double_move(&f->segment, MC_TRANSFER_READ, f->local, f->remote, 64, true),
                         MC_ERR_UNREACHABLE);
    }
    assert_true(mc_now_ns(mc_clock_system()) - before >=
                70 * MC_MS); /* pauses of 10, 20 and 40 ms */
    struct double_batch *b = post_reads(f, 1, 64, false);
    assert_ok(mc_listen("127.0.0.1", port, 16, &listener, &port));
    int real = f->listener;
    f->listener = listener;
    int fd = answer_call(f);
    f->listener = real;
    expect_header(fd);
    say_status(fd, OK_WORD);
    say(fd, f->remote, 64);
    double_wait(b, false);
    assert_ok(b->status[0]);
    free(b);
    close(fd);
    close(listener);
}

static void cancelled_slices_end_at_once_and_late_bytes_touch_nothing(void **state) {
    struct fixture *f = *state;
    uint8_t late[8 + 4096];
    uint64_t word = htole64(OK_WORD);
    memset(late, 0xff, sizeof(late));
    memcpy(late, &word, 8);
    play(f);
    for (int round = 0; round < 4; round++) {
        bool hint = round % 2; /* a waiter that comes too late */
        struct double_batch *cancelled = post_reads(f, 2, 4096, hint),
                            *other = post_reads_to(f, f->local + 65536, 1, 4096, hint);
        int fd = answer_call(f);
        if (round >= 2) { /* the answer has begun */
            expect_header(fd);
            say(fd, late, 2000);
            usleep(20000);
        }
        mc_transport_tcp_ops.cancel(f->initiator->transport, &f->segment.base, cancelled);
        assert_int_equal(atomic_load(&cancelled->done), 1);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(atomic_load(&cancelled->ended[i]), 1);
            assert_int_equal(cancelled->status[i], MC_ERR_TIMEOUT);
        }
        mc_test_fill(f->local, 8192, 77);
        struct iovec iov = {late, sizeof(late)};
        /* Succeeds or not: the connection may be gone. */
        (void)!mc_send_all(fd, &iov, 1, in_ms(1000));
        usleep(20000);
        mc_test_verify(f->local, 8192, 77);
        if (!atomic_load(&other->done)) { /* it was not begun: the next connection serves it */
            close(fd);
            fd = answer_call(f);
            expect_header(fd);
            say(fd, late, sizeof(late));
        }
        double_wait(other, false);
        assert_true(other->status[0] == MC_OK ||
                    (other->status[0] == MC_ERR_CANCELLED && other->retryable[0]));
        free(cancelled);
        free(other);
        close(fd);
        wait_until(mc_metric_get(&double_metrics(f->initiator)->lanes) == 0);
    }
}

struct canceller {
    struct fixture *f;
    struct double_batch *batch;
};

static void *cancel_later(void *arg) {
    struct canceller *c = arg;
    usleep(30000);
    mc_transport_tcp_ops.cancel(c->f->initiator->transport, &c->f->segment.base, c->batch);
    assert_int_equal(atomic_load(&c->batch->done), 1);
    return NULL;
}

static void a_task_can_be_cancelled_while_its_waiter_drives(void **state) {
    struct fixture *f = *state;
    play(f);
    struct double_batch *warm = post_reads(f, 1, 1, false);
    int fd = answer_call(f);
    expect_header(fd);
    say_status(fd, OK_WORD);
    say(fd, "x", 1);
    double_wait(warm, false);
    struct canceller c = {f, post_reads(f, 4, 4096, true)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_later, &c), 0);
    double_wait(c.batch, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c.batch->status[i], MC_ERR_TIMEOUT);
    }
    free(c.batch);
    free(warm);
    close(fd);
}

static void a_waiter_leaves_at_its_deadline(void **state) {
    struct fixture *f = *state;
    play(f);
    struct double_batch *b = post_reads(f, 1, 64, true);
    int fd = answer_call(f);
    expect_header(fd);
    mc_transport_tcp_ops.progress(f->initiator->transport, &f->segment.base, &b->done, in_ms(50));
    assert_int_equal(atomic_load(&b->done), 0);
    say_status(fd, OK_WORD);
    say(fd, f->remote, 64);
    double_wait(b, false); /* the reactor took over */
    assert_ok(b->status[0]);
    free(b);
    close(fd);
}

static void a_server_that_never_answers_is_given_up(void **state) {
    struct fixture *f = *state;
    play(f);
    struct double_batch *b = post_reads(f, 2, 64, false);
    int fd = answer_call(f);
    expect_failed(b, 0, MC_ERR_TIMEOUT);
    close(fd);
}

static void the_queue_of_a_peer_is_bounded(void **state) {
    struct fixture *f = *state;
    play(f);
    struct double_batch *b = post_reads(f, 10, 64, false), *more = double_batch();
    double_add_slice(more, &f->segment, MC_TRANSFER_READ, f->local, f->remote, 64);
    assert_int_equal(double_post(more, false), MC_ERR_LIMIT);
    double_close(&f->segment);
    double_wait(b, false);
    play(f);
    assert_ok(double_post(more, false)); /* there is room again */
    double_close(&f->segment);
    double_wait(more, false);
    assert_int_equal(atomic_load(&more->ended[0]), 1);
    free(more);
    free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name)  cmocka_unit_test_setup_teardown(name, setup, teardown)
#define T1(name) cmocka_unit_test_setup_teardown(name, setup_one_lane, teardown)
#define TI(name) cmocka_unit_test_setup_teardown(name, setup_impatient, teardown)
        T(a_waiter_moves_every_byte),
        T(the_reactor_moves_every_byte),
        T(the_plain_protocol_moves_every_byte),
        T(the_reactor_moves_every_byte_in_the_plain_protocol),
        T(threads_share_lanes),
        T1(threads_share_lanes),
        T(a_post_to_a_far_peer_is_spread_over_all_lanes),
        T1(reads_and_writes_of_one_batch_flow_in_both_directions),
        T1(a_refusal_fails_its_slice_for_good_and_the_others_for_a_retry),
        T(a_plain_write_that_was_refused_is_not_a_success),
        T(forgetting_a_segment_ends_its_slices_and_the_next_post_starts_anew),
        T1(a_server_may_close_in_every_state),
        T1(an_answer_that_is_not_of_the_protocol_fails_the_lane),
        T1(an_answer_before_the_question_is_whole_fails_the_lane),
        T1(answers_may_dribble),
        T1(the_answer_to_a_padded_read_may_dribble),
        T1(a_padded_read_can_be_refused_and_answered_with_nonsense),
        T1(a_padded_write_is_answered_once),
        T1(a_peer_that_is_not_ours_is_asked_without_padding),
        T1(a_lane_survives_that_its_idle_connection_is_closed),
        T(a_descriptor_that_names_another_place_moves_the_lanes),
        T1(a_refused_connection_is_tried_again_later),
        T1(cancelled_slices_end_at_once_and_late_bytes_touch_nothing),
        T1(a_task_can_be_cancelled_while_its_waiter_drives),
        T(a_waiter_leaves_at_its_deadline),
        TI(a_server_that_never_answers_is_given_up),
        TI(the_queue_of_a_peer_is_bounded),
#undef T
#undef T1
#undef TI
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
