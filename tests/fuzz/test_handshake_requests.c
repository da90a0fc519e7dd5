/*
 * A live engine with NICs and a device is asked everything that can come to its handshake port:
 * connections of RDMA peers, metadata, notifications, and staging, each well made and then spoilt -
 * values of a JSON replaced, bytes flipped, frames cut off, doubled, out of order, of other engines
 * - by peers that wait for the answer, do not, or go away in the middle. It serves its real peer
 * all the while, touches no memory that is not registered, and ends with nothing left over.
 */
#include <dlfcn.h>
#include <endian.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/io.h"
#include "standins/cuda.h"
#include "support/fake_nics.h"
#include "support/rdma_suite.h"
#include "te/internal.h"
#include "te/stage_server.h"
#include "wire/rdma_setup.h"
#include "wire/stage.h"

#define ROUNDS      300u
#define EACH        60u /* strangers between two transfers of the real peer */
#define DEVICE_SIZE (2u * MIB)

static const struct standin_cuda *cuda;
static struct mc_transport_ops ops;

struct scene {
    struct rdma_side near, far;
    uint64_t device, other; /* the far engine's registered one; one that nobody registered */
    mc_segment_id to_far;
    struct mc_rng rng;
    bool last; /* nothing follows on this connection */
    unsigned long long answered, taken;
};

static uint64_t below(struct scene *s, uint64_t n) {
    return mc_rng_below(&s->rng, n);
}

/* ---- what is sent ---- */

/* One frame; its type is sometimes wrong, its length too when it is the connection's last. */
static void put_frame(struct scene *s, struct mc_buf *out, unsigned type, struct mc_str body) {
    uint64_t length = body.len + 1;
    if (s->last && below(s, 40) == 0) {
        length = below(s, 2) ? mc_rng_next(&s->rng) : below(s, 2 * length);
    }
    length = htole64(length);
    mc_buf_append(out, &length, sizeof(length));
    mc_buf_putc(out, (char)(below(s, 60) ? type : below(s, 256)));
    mc_buf_append(out, body.ptr, body.len);
}

static void put_setup(struct scene *s, struct mc_buf *out) {
    static const char *const odd[] = {"-1",        "4294967296", "99999999999999999999",
                                      "1e300",     "null",       "[]",
                                      "{}",        "\"\"",       "\"0\"",
                                      "true",      "[-1]",       "[[1]]",
                                      "\"zz:00\"", "\"@\"",      "[16777216]"};
    struct mc_rdma_setup m = {.local_lid = (uint16_t)below(s, 70000),
                              .engine_id = {below(s, 3), below(s, 3)},
                              .generation = below(s, 5),
                              .answers = below(s, 3),
                              .mtu = (uint32_t)below(s, 8192),
                              .ready_ack = below(s, 4) == 0,
                              .close = below(s, 4) == 0};
    m.qp_count = (uint32_t)(below(s, 20) ? 1 + below(s, 3) : below(s, MC_RDMA_QPS_MAX + 1));
    for (uint32_t i = 0; i < m.qp_count; i++) {
        m.qp_num[i] = (uint32_t)below(s, 200);
    }
    m.local_gid[0] = (uint8_t)below(s, 2);
    m.local_gid[15] = (uint8_t)below(s, 256);
    snprintf(m.local_path, sizeof(m.local_path), "127.0.0.1:%u@nic0", (unsigned)below(s, 20));
    snprintf(m.peer_path, sizeof(m.peer_path), "%s@nic%u", mc_engine_name(s->far.engine),
             below(s, 10) ? 1 : (unsigned)below(s, 4));
    struct mc_buf json = {0};
    mc_rdma_setup_encode(&m, &json);
    const char *text = mc_buf_cstr(&json);
    if (below(s, 2)) { /* another value for one of the members */
        const char *colon = text;
        for (uint64_t n = below(s, 14); n > 0 && strchr(colon + 1, ':') != NULL; n--) {
            colon = strchr(colon + 1, ':');
        }
        size_t end = (size_t)(colon - text) + 1 + strcspn(colon + 1, ",}");
        struct mc_buf other = {0};
        mc_buf_printf(&other, "%.*s:%s%s", (int)(colon - text), text,
                      odd[below(s, MC_ARRAY_LEN(odd))], text + end);
        mc_buf_free(&json);
        json = other;
    }
    for (uint64_t flips = below(s, 3) ? 0 : below(s, 3); flips > 0; flips--) {
        json.data[below(s, json.len)] = (char)mc_rng_next(&s->rng);
    }
    put_frame(s, out, MC_HANDSHAKE_CONNECTION, (struct mc_str){json.data, json.len});
    mc_buf_free(&json);
}

static void put_stage(struct scene *s, struct mc_buf *out, uint64_t chunk) {
    const uint64_t addresses[] = {s->device,  s->device + DEVICE_SIZE - 4096,
                                  s->other,   (uint64_t)(uintptr_t)s->far.memory,
                                  chunk,      0,
                                  UINT64_MAX, mc_rng_next(&s->rng)};
    const uint64_t lengths[] = {0,
                                1,
                                4096,
                                MC_STAGE_CHUNK_BYTES,
                                MC_STAGE_CHUNK_BYTES + 1,
                                INT64_MAX,
                                UINT64_MAX,
                                mc_rng_next(&s->rng)};
    struct mc_stage_message m = {.op = (enum mc_stage_op)(1 + below(s, 4)),
                                 .flags = (uint8_t)below(s, 256),
                                 .engine = s->far.engine->id,
                                 .chunk = below(s, 8) ? chunk : mc_rng_next(&s->rng),
                                 .device = addresses[below(s, MC_ARRAY_LEN(addresses))],
                                 .length = lengths[below(s, MC_ARRAY_LEN(lengths))]};
    uint8_t bytes[MC_STAGE_BYTES];
    m.engine.lo ^= below(s, 15) == 0;
    m.chunk += below(s, 6) ? 0 : below(s, 2 * MC_STAGE_CHUNK_BYTES);
    mc_stage_encode(&m, bytes);
    if (below(s, 20) == 0) {
        bytes[below(s, sizeof(bytes))] ^= (uint8_t)mc_rng_next(&s->rng);
    }
    size_t length = below(s, 30) ? sizeof(bytes) : below(s, sizeof(bytes));
    put_frame(s, out, MC_HANDSHAKE_STAGE, (struct mc_str){(char *)bytes, length});
}

static void put_other(struct scene *s, struct mc_buf *out) {
    static const char *const bodies[] = {
        "",
        "{}",
        "null",
        "{\"name\":5,\"notify_msg\":{}}",
        "{\"name\":\"a\",\"notify_msg\":\"b\"}",
        "{\"protocol\":[]}",
        "{\"protocol\":\"rdma\",\"mooncake_c\":7}",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        "\xff\xfe{}",
    };
    const char *body = bodies[below(s, MC_ARRAY_LEN(bodies))];
    put_frame(s, out, 1 + (unsigned)below(s, 5), mc_str_from(body));
}

/* ---- a stranger ---- */

/* Sends, and now and then breaks off in the middle. */
static bool send_some(struct scene *s, int fd, const struct mc_buf *bytes) {
    size_t len = below(s, 12) ? bytes->len : below(s, bytes->len + 1);
    struct iovec iov = {bytes->data, len};
    return mc_send_all(fd, &iov, 1, mc_deadline_in_ms(20000)) == MC_OK && len == bytes->len;
}

/* One answer; false when the engine has ended the connection. */
static bool receive(struct scene *s, int fd, struct mc_stage_message *m) {
    char body[1 << 16];
    uint64_t length, deadline = mc_deadline_in_ms(60000);
    if (mc_recv_all(fd, &length, sizeof(length), deadline) != MC_OK) {
        return false;
    }
    length = le64toh(length);
    assert_in_range(length, 1, sizeof(body));
    assert_ok(mc_recv_all(fd, body, length, deadline));
    s->answered++;
    struct mc_str text = {body + 1, length - 1};
    return body[0] != MC_HANDSHAKE_STAGE || mc_stage_decode(text, m) == MC_OK;
}

static void talk(struct scene *s, int fd) {
    bool stage = below(s, 2);
    struct mc_stage_message answer = {0};
    uint64_t chunk = (uint64_t)(uintptr_t)s->far.memory;
    struct mc_buf bytes = {0};
    for (uint64_t n = 1 + (stage ? below(s, 6) : 0); n > 0; n--) {
        mc_buf_clear(&bytes);
        s->last = n == 1;
        for (uint64_t together = below(s, 8) ? 1 : 1 + below(s, 4); together > 0; together--) {
            if (stage) {
                put_stage(s, &bytes, chunk);
            } else if (below(s, 4)) {
                put_setup(s, &bytes);
            } else {
                put_other(s, &bytes);
            }
        }
        if (!send_some(s, fd, &bytes) || below(s, 10) == 0) {
            break; /* without hearing the answer */
        }
        if (s->last) { /* else an engine that was promised more waits for it */
            shutdown(fd, SHUT_WR);
        }
        if (!receive(s, fd, &answer)) {
            break;
        }
        if (answer.op == MC_STAGE_TAKE && answer.status == MC_OK) {
            chunk = answer.chunk;
            s->taken++;
        }
    }
    mc_buf_free(&bytes);
}

static void visit(struct scene *s) {
    const struct linger reset = {.l_onoff = 1};
    struct mc_addr addr;
    int fd;
    assert_ok(mc_addr_resolve("127.0.0.1", mc_engine_rpc_port(s->far.engine), &addr));
    assert_ok(mc_connect(&addr, mc_deadline_in_ms(20000), &fd));
    talk(s, fd);
    if (below(s, 2)) {
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    }
    close(fd);
}

/* ---- the test ---- */

static void open_sides(struct scene *s) {
    static const struct mc_transport_ops *const table[] = {&ops, &mc_transport_stage_ops};
    struct rdma_side *sides[] = {&s->near, &s->far};
    void *library = dlopen(MC_STANDIN_CUDA, RTLD_NOW);
    cuda = library == NULL ? NULL : dlsym(library, "standin_cuda_table");
    assert_non_null(cuda);
    setenv("MC_DISABLE_GPU_DIRECT_RDMA", "1", 1);
    for (unsigned i = 0; i < 2; i++) {
        struct mc_engine_options options;
        mc_engine_options_init(&options);
        options.host = "127.0.0.1";
        options.reactors = 1;
        setenv("MC_TE_FILTERS", i ? "nic1" : "nic0", 1);
        assert_ok(mc_engine_create_with(&options, table, 2, &sides[i]->engine));
        sides[i]->size = MIB;
        sides[i]->memory = calloc(1, MIB);
        assert_ok(mc_memory_register(sides[i]->engine, sides[i]->memory, MIB, "*", 0));
    }
    assert_int_equal(cuda->alloc(0, DEVICE_SIZE, &s->device), 0);
    assert_int_equal(cuda->alloc(0, DEVICE_SIZE, &s->other), 0);
    assert_ok(mc_memory_register(s->far.engine, (void *)(uintptr_t)s->device, DEVICE_SIZE, "*", 0));
    s->to_far = rdma_segment_of(&s->near, &s->far);
}

static void test_a_peer_is_served_among_strangers(void **state) {
    struct scene s = {0};
    const char *seed = getenv("MC_FUZZ_SEED"), *rounds = getenv("MC_FUZZ_ROUNDS");
    mc_rng_seed(&s.rng, seed != NULL ? strtoull(seed, NULL, 0) : 1);
    open_sides(&s);
    mc_test_fill(cuda->inside(s.other), DEVICE_SIZE, 7);
    unsigned long long count = rounds != NULL ? strtoull(rounds, NULL, 0) : ROUNDS;
    for (unsigned long long i = 0; i < count; i++) {
        visit(&s);
        if (i % EACH ==
            0) { /* host memory directly; the device by staging, with what chunks are left */
            rdma_round_trip(&s.near, &s.far, s.to_far, MIB, i);
        }
    }
    mc_test_verify(cuda->inside(s.other), DEVICE_SIZE, 7);
    assert_true(s.answered > count / 3);
    assert_true(s.taken > 5); /* 64 chunks, each rests for 10 s when its owner has gone */
    mc_test_fill(s.near.memory, MIB, 9);
    assert_ok(rdma_move(&s.near, s.to_far, MC_TRANSFER_WRITE, s.near.memory,
                        (const char *)(uintptr_t)s.device, MIB, RDMA_PATIENCE_MS));
    mc_test_verify(cuda->inside(s.device), MIB, 9);
    mc_engine_destroy(s.near.engine);
    mc_engine_destroy(s.far.engine);
    free(s.near.memory);
    free(s.far.memory);
    cuda->release(s.device);
    cuda->release(s.other);
    assert_int_equal(fake_nics_queue_pairs(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_peer_is_served_among_strangers),
    };
    ops = mc_transport_rdma_ops;
    ops.start = fake_nics_ops.start;
    rdma_suite = (struct rdma_suite){&ops, "nic", NULL, NULL};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
