/*
 * Device memory that no transport reaches travels through pinned host memory on either side, and
 * whoever asked for the transfer sees only that it is done. The device is the stand-in of
 * tests/standins/cuda.h, whose memory nobody but its driver can touch: a direct access ends the
 * test. MC_TEST_THREADS.
 */
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "standins/cuda.h"
#include "te/internal.h"
#include "te/stage_server.h"
#include "unit/te/te_support.h"

#define SIZE (12u << 20)

static const struct standin_cuda *cuda;

struct side {
    struct mc_engine *engine;
    char *host;      /* SIZE, registered */
    uint64_t device; /* SIZE, registered */
    mc_segment_id peer;
};
struct scene {
    struct side near, far;
};

static struct mc_engine *engine_new(bool disable_shm, const char *policy) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = disable_shm;
    options.policy = policy;
#ifdef __SANITIZE_THREAD__
    options.reactors = 1; /* two would write one chunk in turn, ordered by a socket only */
#endif
    assert_ok(mc_engine_create(&options, &engine));
    return engine;
}

static void side_new(struct side *side, bool disable_shm, unsigned device) {
    side->engine = engine_new(disable_shm, NULL);
    side->host = malloc(SIZE);
    assert_int_equal(cuda->alloc(device, SIZE, &side->device), 0);
    assert_ok(mc_memory_register(side->engine, side->host, SIZE, "*", 0));
    assert_ok(mc_memory_register(side->engine, (void *)(uintptr_t)side->device, SIZE, "*", 0));
}

static void side_free(struct side *side) {
    mc_engine_destroy(side->engine);
    cuda->release(side->device);
    free(side->host);
}

static int set_up_with(void **state, bool disable_shm) {
    struct scene *s = calloc(1, sizeof(*s));
    struct standin_counts counts;
    side_new(&s->near, disable_shm, 0);
    side_new(&s->far, disable_shm, 3);
    assert_ok(mc_segment_open(s->near.engine, mc_engine_name(s->far.engine), &s->near.peer));
    cuda->counts(&counts, true);
    *state = s;
    return 0;
}

static int set_up_tcp(void **state) {
    return set_up_with(state, true);
}
static int set_up_shm(void **state) {
    return set_up_with(state, false);
}

static int tear_down(void **state) {
    struct scene *s = *state;
    struct standin_counts counts;
    side_free(&s->near);
    side_free(&s->far);
    cuda->counts(&counts, false);
    assert_int_equal(counts.streams, 0);
    assert_int_equal(counts.pinned, 0);
    free(s);
    return 0;
}

static char *bytes_of(const struct side *side, bool device) {
    return device ? cuda->inside(side->device) : side->host;
}

static struct mc_transfer_request request_of(const struct scene *s, enum mc_transfer_op op,
                                             bool from_device, bool to_device, uint64_t offset,
                                             uint64_t length) {
    return (struct mc_transfer_request){
        .op = op,
        .local = (from_device ? (char *)(uintptr_t)s->near.device : s->near.host) + offset,
        .segment = s->near.peer,
        .remote_addr = (to_device ? s->far.device : (uint64_t)(uintptr_t)s->far.host) + offset,
        .length = length,
    };
}

/* Moves [offset, offset + length) and compares both sides, with a margin. */
static void move_and_compare(struct scene *s, enum mc_transfer_op op, bool near_device,
                             bool far_device, uint64_t offset, uint64_t length) {
    char *near = bytes_of(&s->near, near_device), *far = bytes_of(&s->far, far_device);
    size_t size = mc_min_u64(offset + length + 4096, SIZE);
    char *expected = malloc(size);
    mc_test_fill(near, size, 1 + length);
    mc_test_fill(far, size, 2 + offset);
    bool read = op == MC_TRANSFER_READ;
    memcpy(expected, read ? near : far, size);
    memcpy(expected + offset, (read ? far : near) + offset, length);
    struct mc_transfer_request r = request_of(s, op, near_device, far_device, offset, length);
    assert_ok(mc_transfer(s->near.engine, &r, 1, mc_deadline_in_ms(60000)));
    assert_memory_equal(read ? near : far, expected, size);
    mc_test_verify(read ? far : near, size, read ? 2 + offset : 1 + length);
    free(expected);
}

static int64_t copies_here(struct mc_engine *engine, const char *op) {
    char name[80];
    snprintf(name, sizeof(name), "mooncake_te_stage_copies_total{op=\"%s\"}", op);
    return te_counter(engine, name);
}

/* ---- tests ---- */

static void the_stand_in_cannot_be_touched(void **state) {
    struct scene *s = *state;
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(write(pipes[1], (void *)(uintptr_t)s->near.device, 1), -1);
    assert_int_equal(errno, EFAULT);
    close(pipes[0]);
    close(pipes[1]);
}

/* What the application registered, and no more. */
static void check_buffers(const struct scene *s) {
    struct mc_buffer_info buffers[4];
    size_t count = 0;
    assert_ok(mc_segment_buffers(s->near.engine, s->near.peer, buffers, 4, &count));
    assert_int_equal(count, 2);
    for (size_t i = 0; i < count; i++) {
        bool device = buffers[i].addr == s->far.device;
        assert_true(device || buffers[i].addr == (uint64_t)(uintptr_t)s->far.host);
        assert_string_equal(buffers[i].location, device ? "cuda:3" : "*");
    }
    assert_ok(mc_segment_buffers(s->near.engine, s->near.peer, buffers, 1, &count));
    assert_int_equal(count, 2);
}

static void the_runtime_says_what_is_device_memory(void **state) {
    struct scene *s = *state;
    check_buffers(s);
    /* The memory through which the peer stages is none of them, although it is in its descriptor.
     */
    move_and_compare(s, MC_TRANSFER_WRITE, false, true, 0, 1);
    assert_ok(mc_segment_refresh(s->near.engine, s->near.peer));
    check_buffers(s);
    const void *ptr = NULL;
    assert_int_equal(mc_segment_map(s->far.engine, MC_LOCAL_SEGMENT, s->far.device, 1, &ptr),
                     MC_NOT_SUPPORTED);
}

static void every_byte_arrives(void **state) {
    struct scene *s = *state;
    static const uint64_t chunk = MC_STAGE_CHUNK_BYTES;
    const uint64_t lengths[] = {1, 4097, chunk - 1, chunk, chunk + 1, 3 * chunk + 12345};
    for (int op = 0; op < 2; op++) {
        for (int devices = 1; devices < 4; devices++) {
            for (size_t i = 0; i < MC_ARRAY_LEN(lengths); i++) {
                move_and_compare(s, (enum mc_transfer_op)op, (devices & 1) != 0, (devices & 2) != 0,
                                 4095, lengths[i]);
            }
        }
    }
    struct standin_counts counts;
    cuda->counts(&counts, false);
    assert_int_equal(counts.pageable, 0);
    assert_true(counts.to_device > 0 && counts.from_device > 0);
    assert_true(copies_here(s->near.engine, "read") > 0);
    assert_true(copies_here(s->near.engine, "write") > 0);
    assert_true(te_counter(s->far.engine, "mooncake_te_stage_served_total{op=\"read\"}") > 0);
    assert_true(te_counter(s->far.engine, "mooncake_te_stage_served_total{op=\"write\"}") > 0);
    /* Host to host is none of this. */
    int64_t before = te_counter(s->near.engine, "mooncake_te_stage_chunks_total");
    move_and_compare(s, MC_TRANSFER_READ, false, false, 1, 4 * chunk);
    assert_int_equal(te_counter(s->near.engine, "mooncake_te_stage_chunks_total"), before);
}

static void unregistered_device_memory_is_recognised(void **state) {
    struct scene *s = *state;
    assert_ok(mc_memory_unregister(s->near.engine, (void *)(uintptr_t)s->near.device));
    move_and_compare(s, MC_TRANSFER_WRITE, true, false, 0, 3 << 20);
    move_and_compare(s, MC_TRANSFER_READ, true, false, 0, 3 << 20);
}

static void a_device_may_be_both_ends_of_one_engine(void **state) {
    struct scene *s = *state;
    struct side *side = &s->near;
    char *device = cuda->inside(side->device);
    mc_test_fill(side->host, SIZE, 5);
    struct mc_transfer_request r = {MC_TRANSFER_WRITE, side->host, MC_LOCAL_SEGMENT, side->device,
                                    SIZE / 2};
    assert_ok(mc_transfer(side->engine, &r, 1, mc_deadline_in_ms(60000)));
    assert_memory_equal(device, side->host, SIZE / 2);
    r = (struct mc_transfer_request){MC_TRANSFER_READ, (void *)(uintptr_t)(side->device + SIZE / 2),
                                     MC_LOCAL_SEGMENT, side->device, SIZE / 2};
    assert_ok(mc_transfer(side->engine, &r, 1, mc_deadline_in_ms(60000)));
    assert_memory_equal(device + SIZE / 2, side->host, SIZE / 2);
    memset(side->host, 0, SIZE);
    r = (struct mc_transfer_request){MC_TRANSFER_READ, side->host, MC_LOCAL_SEGMENT, side->device,
                                     SIZE};
    assert_ok(mc_transfer(side->engine, &r, 1, mc_deadline_in_ms(60000)));
    assert_memory_equal(side->host, device, SIZE);
}

/* The last hop of one chunk waits for the first hop of another to begin: where one hop is done
 * after the other it never does. */
static void the_hops_overlap(void **state) {
    struct scene *s = *state;
    struct standin_counts counts;
    cuda->meet();
    move_and_compare(s, MC_TRANSFER_WRITE, true, true, 0, SIZE);
    cuda->counts(&counts, true);
    assert_int_equal(counts.met, 1);
    cuda->meet();
    move_and_compare(s, MC_TRANSFER_READ, true, true, 0, SIZE);
    cuda->counts(&counts, true);
    assert_int_equal(counts.met, 1);
    assert_true(counts.most_at_once > 1);
}

static void a_copy_that_fails_is_an_error(void **state) {
    struct scene *s = *state;
    struct mc_transfer_request r =
        request_of(s, MC_TRANSFER_WRITE, true, true, 0, 4 * MC_STAGE_CHUNK_BYTES);
    cuda->fail_next(1000000);
    assert_int_equal(mc_transfer(s->near.engine, &r, 1, mc_deadline_in_ms(60000)), MC_ERR_IO);
    r = request_of(s, MC_TRANSFER_READ, false, true, 0, 4 * MC_STAGE_CHUNK_BYTES);
    assert_int_equal(mc_transfer(s->near.engine, &r, 1, mc_deadline_in_ms(60000)), MC_ERR_IO);
    cuda->fail_next(0);
    move_and_compare(s, MC_TRANSFER_WRITE, true, true, 7, 4 * MC_STAGE_CHUNK_BYTES);
    move_and_compare(s, MC_TRANSFER_READ, true, true, 7, 4 * MC_STAGE_CHUNK_BYTES);
}

static void memory_that_is_gone_is_an_error(void **state) {
    struct scene *s = *state;
    struct mc_transfer_request r = request_of(s, MC_TRANSFER_READ, false, true, 0, 4096);
    assert_ok(mc_transfer(s->near.engine, &r, 1, mc_deadline_in_ms(60000)));
    assert_ok(mc_memory_unregister(s->far.engine, (void *)(uintptr_t)s->far.device));
    assert_int_equal(mc_transfer(s->near.engine, &r, 1, mc_deadline_in_ms(60000)),
                     MC_ERR_NOT_REGISTERED);
}

/* The peer's device does not get on. The deadline ends the transfer, and nothing arrives later. */
static void a_deadline_ends_it(void **state) {
    struct scene *s = *state;
    struct mc_transfer_request r = request_of(s, MC_TRANSFER_READ, false, true, 0, SIZE);
    mc_test_fill(s->near.host, SIZE, 3);
    mc_test_fill(cuda->inside(s->far.device), SIZE, 4);
    cuda->hold(false, true);
    uint64_t begin = mc_now_ns(mc_clock_system());
    assert_int_equal(mc_transfer(s->near.engine, &r, 1, mc_deadline_in_ms(300)), MC_ERR_TIMEOUT);
    assert_true(mc_now_ns(mc_clock_system()) - begin >= 300 * MC_MS);
    cuda->hold(false, false);
    mc_test_verify(s->near.host, SIZE, 3);
    move_and_compare(s, MC_TRANSFER_READ, false, true, 0, SIZE);
    assert_int_equal(te_counter(s->near.engine, "mooncake_te_tasks_timed_out_total"), 1);
}

static void a_batch_may_be_given_up(void **state) {
    struct scene *s = *state;
    struct mc_transfer_request r = request_of(s, MC_TRANSFER_WRITE, false, true, 0, SIZE);
    struct mc_batch *batch;
    struct mc_transfer_status status;
    cuda->hold(true, true);
    assert_ok(mc_batch_create(s->near.engine, 1, &batch));
    assert_ok(mc_batch_submit(batch, &r, 1, MC_WAIT_FOREVER));
    while (te_counter(s->near.engine, "mooncake_te_stage_chunks_total") < 1) {
        usleep(1000);
    }
    assert_ok(mc_batch_cancel(batch, 0));
    assert_ok(mc_batch_task(batch, 0, &status));
    assert_int_equal(status.state, MC_TRANSFER_FAILED);
    assert_int_equal(status.error, MC_ERR_CANCELLED);
    assert_ok(mc_batch_free(batch));
    cuda->hold(true, false);
    move_and_compare(s, MC_TRANSFER_WRITE, false, true, 0, SIZE);
}

static void an_engine_may_end_amid(void **state) {
    struct scene *s = *state;
    struct mc_transfer_request r = request_of(s, MC_TRANSFER_WRITE, false, true, 0, SIZE);
    struct mc_batch *batch;
    cuda->hold(true, true);
    assert_ok(mc_batch_create(s->near.engine, 1, &batch));
    assert_ok(mc_batch_submit(batch, &r, 1, MC_WAIT_FOREVER));
    while (te_counter(s->near.engine, "mooncake_te_stage_chunks_total") < 1) {
        usleep(1000);
    }
    mc_engine_destroy(s->near.engine);
    s->near.engine = NULL;
    assert_int_equal(mc_batch_wait(batch, MC_WAIT_FOREVER), MC_ERR_CANCELLED);
    assert_ok(mc_batch_free(batch));
    cuda->hold(true, false);
}

/* More lanes than the peer has chunks: those that have one give it back for those that wait. */
struct crowd {
    struct scene *s;
    struct mc_engine *engine;
    char *host;
    unsigned number;
};

static void *crowd_main(void *arg) {
    struct crowd *c = arg;
    mc_segment_id segment;
    uint64_t part = SIZE / 12, offset = c->number * part;
    assert_ok(mc_segment_open(c->engine, mc_engine_name(c->s->far.engine), &segment));
    for (int round = 0; round < 3; round++) {
        struct mc_transfer_request r[8];
        uint64_t each = part / 8;
        mc_test_fill(c->host, part, c->number + 100 * (uint64_t)round);
        for (uint64_t i = 0; i < 8; i++) {
            r[i] = (struct mc_transfer_request){MC_TRANSFER_WRITE, c->host + i * each, segment,
                                                c->s->far.device + offset + i * each, each};
        }
        assert_ok(mc_transfer(c->engine, r, 8, mc_deadline_in_ms(120000)));
        assert_memory_equal((char *)cuda->inside(c->s->far.device) + offset, c->host, 8 * each);
    }
    return NULL;
}

static void a_crowd_shares_the_chunks(void **state) {
    struct scene *s = *state;
    struct crowd crowd[12];
    pthread_t threads[12];
    for (unsigned i = 0; i < 12; i++) {
        crowd[i] = (struct crowd){s, engine_new(true, NULL), malloc(SIZE / 12), i};
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_main, &crowd[i]), 0);
    }
    for (unsigned i = 0; i < 12; i++) {
        pthread_join(threads[i], NULL);
        mc_engine_destroy(crowd[i].engine);
        free(crowd[i].host);
    }
}

static void a_rule_for_transports_holds_between_the_hosts(void **state) {
    struct scene *s = *state;
    mc_engine_destroy(s->near.engine);
    s->near.engine = engine_new(false, "{\"policy\": [{\"transports\": [\"tcp\"]}]}");
    assert_ok(mc_segment_open(s->near.engine, mc_engine_name(s->far.engine), &s->near.peer));
    move_and_compare(s, MC_TRANSFER_WRITE, true, true, 0, 4 * MC_STAGE_CHUNK_BYTES);
    assert_int_equal(te_counter(s->near.engine,
                                "mooncake_te_transfer_bytes_total{transport=\"shm\",op=\"write\"}"),
                     0);
    assert_int_equal(te_counter(s->near.engine,
                                "mooncake_te_transfer_bytes_total{transport=\"tcp\",op=\"write\"}"),
                     4 * MC_STAGE_CHUNK_BYTES);
}

/* ---- a peer that is none of ours, over the data port ---- */

static int connect_to(struct mc_engine *engine) {
    struct mc_handshake_limits limits;
    struct mc_buf text = {0};
    mc_handshake_limits_init(&limits);
    assert_ok(mc_handshake_metadata("127.0.0.1", mc_engine_rpc_port(engine), MC_STR("{}"), &limits,
                                    MC_NO_DEADLINE, &text));
    const char *at = strstr(mc_buf_cstr(&text), "\"tcp_data_port\":");
    assert_non_null(at);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(at + 16)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    mc_buf_free(&text);
    return fd;
}

static void send_bytes(int fd, const void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = send(fd, (const char *)bytes + done, length - done, MSG_NOSIGNAL);
        assert_true(n > 0);
        done += (size_t)n;
    }
}

static void receive_bytes(int fd, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = recv(fd, (char *)bytes + done, length - done, 0);
        assert_true(n > 0);
        done += (size_t)n;
    }
}

static void send_request(int fd, uint64_t size, uint64_t addr, uint64_t opcode) {
    uint64_t header[3] = {htole64(size), htole64(addr), htole64(opcode)};
    send_bytes(fd, header, sizeof(header));
}

#define READS  0u
#define WRITES 1u
#define ACKED  0x80u
#define DONE   0x4D43545600000000ull

static void expect_status(int fd) {
    uint64_t word = 0;
    receive_bytes(fd, &word, sizeof(word));
    assert_true(le64toh(word) == DONE);
}

/* Writes, then reads, of device and host memory in turn, each set sent before its answers are
 * read; without acknowledgement as well. */
static void a_foreign_peer_is_served_over_tcp(void **state) {
    static const uint64_t sizes[] = {1, 700, 4096, 262144, 262145, 3 << 20};
    struct scene *s = *state;
    char *bytes = malloc(SIZE), *got = malloc(SIZE);
    for (unsigned acked = 0; acked <= ACKED; acked += ACKED) {
        int fd = connect_to(s->far.engine);
        mc_test_fill(bytes, SIZE, acked);
        memset(cuda->inside(s->far.device), 0, SIZE);
        memset(s->far.host, 0, SIZE);
        uint64_t at = 0;
        for (size_t i = 0; i < MC_ARRAY_LEN(sizes); at += sizes[i++]) {
            send_request(fd, sizes[i], s->far.device + at, WRITES | acked);
            send_bytes(fd, bytes + at, sizes[i]);
            send_request(fd, sizes[i], (uint64_t)(uintptr_t)s->far.host + at, WRITES | acked);
            send_bytes(fd, bytes + at, sizes[i]);
        }
        for (size_t i = 0; i < 2 * MC_ARRAY_LEN(sizes) && acked; i++) {
            expect_status(fd);
        }
        at = 0;
        for (size_t i = 0; i < MC_ARRAY_LEN(sizes); at += sizes[i++]) {
            send_request(fd, sizes[i], s->far.device + at, READS | acked);
            send_request(fd, sizes[i], (uint64_t)(uintptr_t)s->far.host + at, READS | acked);
        }
        at = 0;
        for (size_t i = 0; i < 2 * MC_ARRAY_LEN(sizes); i++) {
            if (acked) {
                expect_status(fd);
            }
            receive_bytes(fd, got, sizes[i / 2]);
            assert_memory_equal(got, bytes + at, sizes[i / 2]);
            at += i % 2 != 0 ? sizes[i / 2] : 0;
        }
        assert_memory_equal(cuda->inside(s->far.device), bytes, at);
        assert_memory_equal(s->far.host, bytes, at);
        close(fd);
    }
    free(bytes);
    free(got);
}

/* A copy that fails, and a range that leaves the memory: the connection ends, nothing is told to
 * be done. */
static void what_a_foreign_peer_cannot_have_is_refused(void **state) {
    struct scene *s = *state;
    char byte;
    for (unsigned op = READS; op <= WRITES; op++) {
        int fd = connect_to(s->far.engine);
        cuda->fail_next(1);
        send_request(fd, 100, s->far.device, op | ACKED);
        if (op == WRITES) {
            send_bytes(fd, s->near.host, 100);
        }
        assert_true(recv(fd, &byte, 1, 0) <= 0);
        close(fd);
        fd = connect_to(s->far.engine);
        send_request(fd, 100, s->far.device + SIZE - 99, op | ACKED);
        uint64_t word;
        receive_bytes(fd, &word, sizeof(word));
        assert_true(le64toh(word) == (DONE | 1));
        close(fd);
    }
}

int main(void) {
    void *library = dlopen(MC_STANDIN_CUDA, RTLD_NOW);
    cuda = library == NULL ? NULL : dlsym(library, "standin_cuda_table");
    if (cuda == NULL) {
        fprintf(stderr, "the stand-in does not load: %s\n", dlerror());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_stand_in_cannot_be_touched, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(the_runtime_says_what_is_device_memory, set_up_tcp,
                                        tear_down),
        cmocka_unit_test_setup_teardown(every_byte_arrives, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(every_byte_arrives, set_up_shm, tear_down),
        cmocka_unit_test_setup_teardown(unregistered_device_memory_is_recognised, set_up_tcp,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_device_may_be_both_ends_of_one_engine, set_up_tcp,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_hops_overlap, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(a_copy_that_fails_is_an_error, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(memory_that_is_gone_is_an_error, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(a_deadline_ends_it, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(a_batch_may_be_given_up, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(an_engine_may_end_amid, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(a_crowd_shares_the_chunks, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(a_rule_for_transports_holds_between_the_hosts, set_up_shm,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_foreign_peer_is_served_over_tcp, set_up_tcp, tear_down),
        cmocka_unit_test_setup_teardown(what_a_foreign_peer_cannot_have_is_refused, set_up_tcp,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
