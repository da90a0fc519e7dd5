/*
 * The tcp transport's server speaks upstream's data protocol, byte by byte, with peers good and
 * bad. MC_TEST_THREADS: the requests of one connection are written and their answers read by two
 * threads.
 */
#include "support/certificates.h"
#include "unit/te/tcp_double.h"

#define MEMORY (48u << 20)

struct fixture {
    struct mc_engine *engine;
    uint8_t *memory;
    uint16_t port;
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    f->memory = mc_zalloc(MEMORY);
    f->engine = double_engine(1);
    double_add(f->engine, f->memory, MEMORY);
    f->port = double_port(f->engine);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    double_destroy(f->engine);
    free(f->memory);
    free(f);
    return 0;
}

/* ---- a hand-written initiator ---- */

static int dial(const struct fixture *f) {
    struct mc_addr addr;
    int fd;
    assert_ok(mc_addr_resolve("127.0.0.1", f->port, &addr));
    assert_ok(mc_connect(&addr, in_ms(5000), &fd));
    return fd;
}

static void put(int fd, const void *bytes, size_t length) {
    struct iovec iov = {(void *)bytes, length};
    assert_ok(mc_send_all(fd, &iov, 1, in_ms(20000)));
}

static void get(int fd, void *bytes, size_t length) {
    assert_ok(mc_recv_all(fd, bytes, length, in_ms(20000)));
}

static void ask(int fd, unsigned opcode, uint64_t addr, uint64_t size) {
    unsigned char header[TCP_HEADER_BYTES];
    tcp_header_encode(header, &(struct tcp_header){size, addr, (uint8_t)opcode});
    memset(header + 17, 0xee, 7); /* padding is ignored */
    put(fd, header, sizeof(header));
}

static void expect_status(int fd, unsigned code) {
    uint64_t word;
    get(fd, &word, sizeof(word));
    assert_int_equal(le64toh(word), 0x4D43545600000000ull | code);
}

static void expect_end(int fd) {
    char byte;
    assert_int_equal(mc_recv_all(fd, &byte, 1, in_ms(20000)), MC_ERR_CLOSED);
}

static uint64_t at(const struct fixture *f, size_t offset) {
    return (uint64_t)(uintptr_t)(f->memory + offset);
}

static void expect_no_users(const struct fixture *f) {
    wait_until(atomic_load(&f->engine->memories[0].users) == 0);
}

/* The server still answers on a fresh connection. */
static void expect_alive(const struct fixture *f) {
    int fd = dial(f);
    uint8_t byte;
    f->memory[5] = 0x5a;
    ask(fd, 0x80, at(f, 5), 1);
    expect_status(fd, 0);
    get(fd, &byte, 1);
    assert_int_equal(byte, 0x5a);
    close(fd);
}

/* ---- requests that are right ---- */

static const size_t SIZES[] = {
    1, 7, 24, 4096, 16384, 65536 + 1, (1u << 20) + 3, DOUBLE_LARGEST / 2};

static void acknowledged_requests_move_every_byte(void **state) {
    struct fixture *f = *state;
    uint8_t *bytes = mc_alloc(32u << 20);
    int fd = dial(f);
    int64_t moved = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(SIZES); i++) {
        mc_test_fill(bytes, SIZES[i], i);
        ask(fd, 0x81, at(f, 100 + i), SIZES[i]);
        put(fd, bytes, SIZES[i]);
        expect_status(fd, 0);
        mc_test_verify(f->memory + 100 + i, SIZES[i], i);
        memset(bytes, 0, SIZES[i]);
        ask(fd, 0x80, at(f, 100 + i), SIZES[i]);
        expect_status(fd, 0);
        get(fd, bytes, SIZES[i]);
        mc_test_verify(bytes, SIZES[i], i);
        moved += (int64_t)SIZES[i];
    }
    wait_until(mc_metric_get(&double_metrics(f->engine)->served_bytes[MC_TRANSFER_READ]) == moved);
    assert_int_equal(mc_metric_get(&double_metrics(f->engine)->served_bytes[MC_TRANSFER_WRITE]),
                     moved);
    close(fd);
    free(bytes);
}

static void plain_requests_have_no_status(void **state) {
    struct fixture *f = *state;
    uint8_t *bytes = mc_alloc(32u << 20);
    int fd = dial(f);
    for (size_t i = 0; i < MC_ARRAY_LEN(SIZES); i++) {
        mc_test_fill(bytes, SIZES[i], 50 + i);
        ask(fd, 0x01, at(f, i), SIZES[i]);
        put(fd, bytes, SIZES[i]);
        memset(bytes, 0, SIZES[i]);
        ask(fd, 0x00, at(f, i), SIZES[i]); /* proves that the write before it was applied */
        get(fd, bytes, SIZES[i]);
        mc_test_verify(bytes, SIZES[i], 50 + i);
    }
    close(fd);
    free(bytes);
}

static void empty_requests_are_answered(void **state) {
    struct fixture *f = *state;
    int fd = dial(f);
    ask(fd, 0x80, at(f, 0), 0);
    expect_status(fd, 0);
    ask(fd, 0x81, at(f, 0), 0);
    expect_status(fd, 0);
    ask(fd, 0x00, at(f, 0), 0);
    ask(fd, 0x01, at(f, 0), 0);
    ask(fd, 0x80, at(f, 0), 0); /* after the silent ones the stream is in step */
    expect_status(fd, 0);
    close(fd);
}

/* Sent at once, so that the server queues them: every request has its status word, however many
 * without payload follow each other, and a refusal is behind all of them. */
static void answers_that_queue_up_keep_their_order(void **state) {
    struct fixture *f = *state;
    enum { EMPTY_MOST = 20 };
    unsigned char out[2 * (EMPTY_MOST + 2)][TCP_HEADER_BYTES];
    uint8_t bytes[100];
    mc_test_fill(f->memory, sizeof(bytes), 6);
    for (int empty = 0; empty <= EMPTY_MOST; empty++) {
        int fd = dial(f), count = 0;
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < empty; i++) {
                tcp_header_encode(out[count++], &(struct tcp_header){0, at(f, 0), 0x80 | (i & 1)});
            }
            tcp_header_encode(out[count++], &(struct tcp_header){sizeof(bytes), at(f, 0), 0x80});
            tcp_header_encode(out[count++], &(struct tcp_header){1, at(f, 1), 0x00});
        }
        tcp_header_encode(out[count - 1], &(struct tcp_header){1, 8, 0x80});
        put(fd, out, (size_t)count * TCP_HEADER_BYTES);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i <= empty; i++) {
                expect_status(fd, 0);
            }
            get(fd, bytes, sizeof(bytes));
            mc_test_verify(bytes, sizeof(bytes), 6);
            if (round == 0) {
                get(fd, bytes, 1);
                assert_int_equal(bytes[0], f->memory[1]);
            }
        }
        expect_status(fd, 1);
        expect_end(fd);
        close(fd);
    }
}

static void unknown_opcodes_read(void **state) {
    struct fixture *f = *state;
    uint8_t bytes[64];
    int fd = dial(f);
    mc_test_fill(f->memory, 64, 3);
    ask(fd, 0x07, at(f, 0), 64);
    get(fd, bytes, 64);
    mc_test_verify(bytes, 64, 3);
    close(fd);
}

/* One random stream of overlapping reads and writes, sent without waiting; a model says what each
 * read must see. */
struct stream {
    int fd;
    uint8_t *out;
    size_t out_length;
};

static void *send_stream(void *arg) {
    struct stream *s = arg;
    put(s->fd, s->out, s->out_length);
    return NULL;
}

static void pipelined_overlapping_requests_take_effect_in_order(void **state) {
    struct fixture *f = *state;
    enum { REQUESTS = 600, SPAN = 300000 };
    uint8_t *model = mc_zalloc(SPAN);
    struct mc_buf out = {0}, expected = {0};
    struct mc_rng rng;
    mc_rng_seed(&rng, 42);
    for (int i = 0; i < REQUESTS; i++) {
        uint64_t limit = mc_rng_below(&rng, 4) == 0 ? 100000 : 500;
        uint64_t size = mc_rng_below(&rng, limit), offset = mc_rng_below(&rng, SPAN - size);
        bool write = mc_rng_below(&rng, 2), acked = mc_rng_below(&rng, 4) != 0;
        uint64_t word = htole64(0x4D43545600000000ull);
        unsigned char header[TCP_HEADER_BYTES];
        tcp_header_encode(header, &(struct tcp_header){size, at(f, offset),
                                                       (uint8_t)(write | (acked ? 0x80 : 0))});
        mc_buf_append(&out, header, sizeof(header));
        if (acked) {
            mc_buf_append(&expected, &word, sizeof(word));
        }
        if (write) {
            mc_test_fill(model + offset, size, (uint64_t)i);
            mc_buf_append(&out, model + offset, size);
        } else {
            mc_buf_append(&expected, model + offset, size);
        }
    }
    struct stream s = {dial(f), (uint8_t *)out.data, out.len};
    pthread_t sender;
    assert_int_equal(pthread_create(&sender, NULL, send_stream, &s), 0);
    uint8_t *got = mc_alloc(expected.len);
    get(s.fd, got, expected.len);
    pthread_join(sender, NULL);
    assert_true(expected.len > 1000000);
    assert_memory_equal(got, expected.data, expected.len);
    wait_until(mc_metric_get(&double_metrics(f->engine)->connections) == 1);
    shutdown(s.fd, SHUT_WR);
    expect_end(s.fd); /* the server took in everything: a last plain write may have been on its way
                         until here */
    assert_memory_equal(f->memory, model, SPAN);
    close(s.fd);
    free(got);
    free(model);
    mc_buf_free(&out);
    mc_buf_free(&expected);
}

static void a_peer_that_stops_sending_still_gets_its_answers(void **state) {
    struct fixture *f = *state;
    uint8_t *bytes = mc_alloc(8u << 20);
    int fd = dial(f);
    mc_test_fill(f->memory, 8u << 20, 9);
    ask(fd, 0x80, at(f, 0), 8u << 20);
    ask(fd, 0x80, at(f, 0), 4096);
    put(fd, "half a header", 13);
    shutdown(fd, SHUT_WR);
    expect_status(fd, 0);
    get(fd, bytes, 8u << 20);
    mc_test_verify(bytes, 8u << 20, 9);
    expect_status(fd, 0);
    get(fd, bytes, 4096);
    mc_test_verify(bytes, 4096, 9);
    expect_end(fd);
    close(fd);
    free(bytes);
}

static void headers_may_come_byte_by_byte_on_many_connections(void **state) {
    struct fixture *f = *state;
    enum { CONNECTIONS = 200 };
    int fds[CONNECTIONS];
    unsigned char request[TCP_HEADER_BYTES + 3];
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = dial(f);
    }
    for (size_t b = 0; b < sizeof(request); b++) {
        for (int i = 0; i < CONNECTIONS; i++) {
            tcp_header_encode(request, &(struct tcp_header){3, at(f, (size_t)i * 3), 0x81});
            mc_test_fill(request + TCP_HEADER_BYTES, 3, (uint64_t)i);
            put(fds[i], request + b, 1);
        }
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        expect_status(fds[i], 0);
        mc_test_verify(f->memory + (size_t)i * 3, 3, (uint64_t)i);
    }
    assert_int_equal(mc_metric_get(&double_metrics(f->engine)->connections), CONNECTIONS);
    for (int i = 0; i < CONNECTIONS; i++) {
        close(fds[i]);
    }
    wait_until(mc_metric_get(&double_metrics(f->engine)->connections) == 0);
}

/* ---- requests that are wrong ---- */

static void addresses_outside_are_refused_and_the_connection_ends(void **state) {
    struct fixture *f = *state;
    const struct tcp_header bad[] = {
        {1, at(f, MEMORY), 0},        {1, at(f, 0) - 1, 0},
        {MEMORY + 1ull, at(f, 0), 0}, {UINT64_MAX, at(f, 0), 0},
        {UINT64_MAX, at(f, 0), 1},    {UINT64_MAX, UINT64_MAX, 0},
        {2, UINT64_MAX, 1},           {1, 0, 0},
        {at(f, 0), 0 - at(f, 0), 1},  {0 - at(f, 0) + 16, at(f, 0), 0},
        {32, at(f, MEMORY - 31), 1},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        int fd = dial(f);
        ask(fd, bad[i].opcode | 0x80, bad[i].addr, bad[i].size);
        expect_status(fd, 1);
        expect_end(fd);
        close(fd);
        fd = dial(f);
        ask(fd, bad[i].opcode, bad[i].addr, bad[i].size);
        expect_end(fd);
        close(fd);
    }
    assert_int_equal(mc_metric_get(&double_metrics(f->engine)->rejected), 2 * MC_ARRAY_LEN(bad));
    expect_alive(f);
}

static void a_refusal_arrives_behind_earlier_answers_and_before_the_payload_is_sent(void **state) {
    struct fixture *f = *state;
    uint8_t *bytes = mc_zalloc(8u << 20);
    int fd = dial(f);
    mc_test_fill(f->memory, 65536, 4);
    ask(fd, 0x80, at(f, 0), 65536);
    ask(fd, 0x81, at(f, MEMORY), 8u << 20);
    put(fd, bytes, 8u << 20); /* dropped by the server, whose close must not overtake the status */
    expect_status(fd, 0);
    get(fd, bytes, 65536);
    mc_test_verify(bytes, 65536, 4);
    expect_status(fd, 1);
    expect_end(fd);
    close(fd);
    free(bytes);
    expect_no_users(f);
}

static void a_peer_that_leaves_inside_a_request_frees_the_memory(void **state) {
    struct fixture *f = *state;
    struct tcp_metrics *metrics = double_metrics(f->engine);
    int fd = dial(f);
    ask(fd, 0x81, at(f, 0), 1u << 20);
    put(fd, f->memory + (2u << 20), 1000);
    wait_until(atomic_load(&f->engine->memories[0].users) == 1);
    close(fd);
    expect_no_users(f);
    wait_until(mc_metric_get(&metrics->served_errors) == 1);
    fd = dial(f);
    ask(fd, 0x80, at(f, 0), 40u << 20);
    expect_status(fd, 0);
    wait_until(atomic_load(&f->engine->memories[0].users) == 1);
    close(fd);
    expect_no_users(f);
    wait_until(mc_metric_get(&metrics->served_errors) == 2);
    assert_int_equal(mc_metric_get(&metrics->served_requests[MC_TRANSFER_READ]), 0);
    assert_int_equal(mc_metric_get(&metrics->served_requests[MC_TRANSFER_WRITE]), 0);
    expect_alive(f);
}

static void a_slow_reader_delays_nobody_else(void **state) {
    struct fixture *f = *state;
    uint8_t *bytes = mc_alloc(32u << 20);
    int slow = dial(f), quick = dial(f);
    mc_test_fill(f->memory, 32u << 20, 11);
    for (int i = 0; i < 100; i++) { /* more than the queue of replies holds */
        ask(slow, 0x80, at(f, 0), 32u << 20);
    }
    for (int i = 0; i < 100; i++) {
        ask(quick, 0x80, at(f, 0), 4096);
        expect_status(quick, 0);
        get(quick, bytes, 4096);
        mc_test_verify(bytes, 4096, 11);
    }
    expect_status(slow, 0);
    get(slow, bytes, 32u << 20);
    mc_test_verify(bytes, 32u << 20, 11);
    close(slow);
    close(quick);
    expect_no_users(f);
    free(bytes);
}

static int setup_impatient(void **state) {
    setenv("MC_TCP_STATUS_TIMEOUT_SEC", "1", 1);
    int result = setup(state);
    unsetenv("MC_TCP_STATUS_TIMEOUT_SEC");
    return result;
}

static void a_reader_that_stopped_for_ever_is_dropped(void **state) {
    struct fixture *f = *state;
    int fd = dial(f), idle = dial(f);
    ask(fd, 0x80, at(f, 0), 40u << 20);
    wait_until(atomic_load(&f->engine->memories[0].users) == 1);
    expect_no_users(f);           /* although the peer is still connected */
    ask(idle, 0x80, at(f, 0), 0); /* an idle connection is not stalled */
    expect_status(idle, 0);
    close(fd);
    close(idle);
}

static void a_handshake_that_does_not_end_is_ended(void **state) {
    struct fixture *f = *state;
    int quiet = dial(f), half = dial(f);
    put(half, "\x16\x03\x01\x02\x00\x01", 6); /* so many bytes of a hello, and no more */
    expect_end(half);
    ask(quiet, 0x80, at(f, 0), 0); /* a plain peer may have been silent for longer */
    expect_status(quiet, 0);
    close(half);
    close(quiet);
}

/* One that has ended in time may be followed by a silence of any length. */
static void a_handshake_that_ended_is_not_late(void **state) {
    struct fixture *f = *state;
    unsigned char header[TCP_HEADER_BYTES], status;
    struct mc_stream stream;
    mc_stream_tls(&stream, dial(f), double_tls.client, "127.0.0.1");
    assert_ok(mc_stream_tls_handshake(&stream, in_ms(20000)));
    int half = dial(f);
    put(half, "\x16\x03\x01\x02\x00\x01", 6);
    expect_end(half); /* begun later, and late by now */
    tcp_header_encode(header, &(struct tcp_header){0, at(f, 0), 0x80});
    memset(header + 17, 0, TCP_HEADER_BYTES - 17);
    struct iovec out = {header, sizeof(header)}, in = {&status, 1};
    size_t n = 0;
    assert_ok(mc_stream_send_all(&stream, &out, 1, in_ms(20000)));
    assert_ok(mc_stream_recv_some(&stream, &in, 1, in_ms(20000), &n));
    assert_true(n == 1 && status == 0);
    stream.ops->close(&stream);
    close(half);
}

static void with_handshakes_in_tls(void) {
    struct certificates certificates;
    if (!certificates_make(&certificates)) {
        printf("without TLS: certificates could not be made, is the openssl program there?\n");
        return;
    }
    certificates_use(&certificates, "server", "ca");
    const struct mc_tls_config config = mc_tls_config_environment();
    setenv("MC_TLS_HANDSHAKE_TIMEOUT_SEC", "1", 1);
    assert_ok(mc_tls_peers_open(MC_TLS_PREFER, &config, &double_tls));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_handshake_that_does_not_end_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(a_handshake_that_ended_is_not_late, setup, teardown)};
    if (cmocka_run_group_tests(tests, NULL, NULL) != 0) {
        exit(1);
    }
    mc_tls_peers_close(&double_tls);
    certificates_remove(&certificates);
}

int main(void) {
    with_handshakes_in_tls();
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(acknowledged_requests_move_every_byte),
        T(plain_requests_have_no_status),
        T(empty_requests_are_answered),
        T(answers_that_queue_up_keep_their_order),
        T(unknown_opcodes_read),
        T(pipelined_overlapping_requests_take_effect_in_order),
        T(a_peer_that_stops_sending_still_gets_its_answers),
        T(headers_may_come_byte_by_byte_on_many_connections),
        T(addresses_outside_are_refused_and_the_connection_ends),
        T(a_refusal_arrives_behind_earlier_answers_and_before_the_payload_is_sent),
        T(a_peer_that_leaves_inside_a_request_frees_the_memory),
        T(a_slow_reader_delays_nobody_else),
#undef T
        cmocka_unit_test_setup_teardown(a_reader_that_stopped_for_ever_is_dropped, setup_impatient,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
