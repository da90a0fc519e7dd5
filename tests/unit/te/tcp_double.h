/*
 * A stand-in for the engine under the tcp transport, so that its tests see every completion
 * themselves: it defines what transports need of the engine (te.h), and the linker takes these
 * instead of the real ones. Include it in one file of a test program.
 */
#ifndef MC_TESTS_TCP_DOUBLE_H
#define MC_TESTS_TCP_DOUBLE_H

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "support/support.h"
#include "te/transport/tcp.h"

/* ThreadSanitizer notes what sendmsg read after the call: by then the peer may have the bytes and
 * have sent others for the same place, an order made by sockets, which it does not see. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "intercept_send=0:atexit_sleep_ms=0";
}

/* Checkers make filling and verifying slow. */
#ifdef MC_SANITIZE
#define DOUBLE_LARGEST (6u << 20)
#else
#define DOUBLE_LARGEST (16u << 20)
#endif

#define DOUBLE_REACTORS 2
#define DOUBLE_MEMORIES 8

struct mc_engine {
    struct mc_engine_options options;
    struct mc_metrics *metrics;
    struct mc_reactor *reactors[DOUBLE_REACTORS];
    struct mc_transport *transport;
    struct mc_memory memories[DOUBLE_MEMORIES];
    _Atomic size_t memory_count;
    struct mc_tls_peers tls;
};

static struct mc_tls_peers double_tls; /* of engines to come */

struct mc_memory *mc_memory_acquire(struct mc_engine *engine, uint64_t addr, uint64_t length) {
    for (size_t i = 0; i < engine->memory_count; i++) {
        struct mc_memory *m = &engine->memories[i];
        if (mc_range_inside(addr, length, m->addr, m->length)) {
            atomic_fetch_add(&m->users, 1);
            return m;
        }
    }
    return NULL;
}

struct mc_memory *mc_memory_acquire_device(struct mc_engine *engine, uint64_t addr,
                                           uint64_t length) {
    return NULL;
}

void mc_memory_release(struct mc_memory *memory) {
    assert_true(atomic_fetch_sub(&memory->users, 1) > 0);
}

const struct mc_engine_options *mc_engine_config(const struct mc_engine *engine) {
    return &engine->options;
}
struct mc_metrics *mc_engine_registry(struct mc_engine *engine) {
    return engine->metrics;
}
const struct mc_tls_peers *mc_engine_tls(const struct mc_engine *engine) {
    return &engine->tls;
}
unsigned mc_engine_reactor_count(const struct mc_engine *engine) {
    return DOUBLE_REACTORS;
}
struct mc_reactor *mc_engine_reactor(struct mc_engine *engine, unsigned index) {
    return engine->reactors[index];
}

static inline struct mc_engine *double_engine(unsigned lanes) {
    struct mc_engine *engine = mc_zalloc(sizeof(*engine));
    engine->options = (struct mc_engine_options){.host = "127.0.0.1",
                                                 .port_min = 20000,
                                                 .port_max = 30000,
                                                 .lanes_per_peer = lanes,
                                                 .connect_timeout_ms = 2000};
    engine->metrics = mc_metrics_create();
    engine->tls = double_tls;
    for (unsigned i = 0; i < DOUBLE_REACTORS; i++) {
        assert_ok(mc_reactor_create("io", &engine->reactors[i]));
    }
    assert_ok(mc_transport_tcp_ops.start(engine, 0, &engine->transport));
    return engine;
}

static inline void double_add(struct mc_engine *engine, void *addr, size_t length) {
    assert_true(engine->memory_count < DOUBLE_MEMORIES);
    struct mc_memory *m = &engine->memories[engine->memory_count];
    m->addr = (uint64_t)(uintptr_t)addr;
    m->length = length;
    engine->memory_count++;
}

static inline void double_destroy(struct mc_engine *engine) {
    mc_transport_tcp_ops.stop(engine->transport);
    for (unsigned i = 0; i < DOUBLE_REACTORS; i++) {
        mc_reactor_destroy(engine->reactors[i]);
    }
    for (size_t i = 0; i < engine->memory_count; i++) {
        assert_int_equal(atomic_load(&engine->memories[i].users), 0);
    }
    mc_metrics_destroy(engine->metrics);
    free(engine);
}

static inline uint16_t double_port(struct mc_engine *engine) {
    json_t *object = json_object();
    mc_transport_tcp_ops.describe(engine->transport, object);
    assert_int_equal(json_integer_value(json_object_get(object, "tcp_proto_version")), 2);
    uint16_t port = (uint16_t)json_integer_value(json_object_get(object, "tcp_data_port"));
    json_decref(object);
    assert_true(port > 0);
    return port;
}

static inline struct tcp_metrics *double_metrics(struct mc_engine *engine) {
    return &tcp_of(engine->transport)->metrics;
}

/* ---- the initiator's side ---- */

struct double_segment {
    struct mc_segment base;
    struct mc_peer_desc desc;
};

struct mc_peer_desc *mc_segment_desc(struct mc_segment *segment) {
    return &mc_container_of(segment, struct double_segment, base)->desc;
}
void mc_peer_desc_put(struct mc_peer_desc *desc) {
    (void)desc;
}

static inline void double_open(struct double_segment *s, struct mc_engine *engine, uint16_t port,
                               unsigned proto) {
    memset(s, 0, sizeof(*s));
    s->base.engine = engine;
    strcpy(s->desc.tcp_host, "127.0.0.1");
    s->desc.tcp_data_port = port;
    s->desc.tcp_proto = proto;
    strcpy(s->desc.boot_id, "a peer of ours");
}

static inline void double_close(struct double_segment *s) {
    mc_transport_tcp_ops.forget(s->base.engine->transport, &s->base);
    assert_null(s->base.transport_state[0]);
}

/* Slices that are posted together; slice->task is the batch. */
#define DOUBLE_SLICES 256
struct double_batch {
    struct mc_slice_op slices[DOUBLE_SLICES];
    _Atomic int ended[DOUBLE_SLICES]; /* how often */
    int status[DOUBLE_SLICES];
    bool retryable[DOUBLE_SLICES];
    _Atomic uint32_t left, done;
    uint32_t count;
};

void mc_slice_done(struct mc_slice_op *slice, enum mc_status status, bool retryable) {
    struct double_batch *b = slice->task;
    size_t i = (size_t)(slice - b->slices);
    assert_true(i < b->count);
    b->status[i] = status;
    b->retryable[i] = retryable;
    atomic_fetch_add(&b->ended[i], 1);
    if (atomic_fetch_sub(&b->left, 1) == 1) {
        atomic_store(&b->done, 1);
    }
}

static inline struct double_batch *double_batch(void) {
    return mc_zalloc(sizeof(struct double_batch));
}

static inline void double_add_slice(struct double_batch *b, struct double_segment *s,
                                    enum mc_transfer_op op, void *local, const void *remote,
                                    uint64_t length) {
    assert_true(b->count < DOUBLE_SLICES);
    b->slices[b->count++] = (struct mc_slice_op){.op = op,
                                                 .local = local,
                                                 .remote = (uint64_t)(uintptr_t)remote,
                                                 .length = length,
                                                 .segment = &s->base,
                                                 .task = b};
}

static inline enum mc_status double_post(struct double_batch *b, bool waiter_follows) {
    struct mc_slice_op *slices[DOUBLE_SLICES];
    struct mc_segment *segment = b->slices[0].segment;
    for (uint32_t i = 0; i < b->count; i++) {
        b->slices[i].waiter_follows = waiter_follows;
        slices[i] = &b->slices[i];
    }
    atomic_store(&b->left, b->count);
    return mc_transport_tcp_ops.post(segment->engine->transport, slices, b->count);
}

static inline uint64_t in_ms(uint64_t ms) {
    return mc_now_ns(mc_clock_system()) + ms * MC_MS;
}

/* Until the condition holds; fails the test after 20 s, so that a hang is a failure and not a
 * time-out of the suite. */
#define wait_until(condition)                                                                      \
    do {                                                                                           \
        uint64_t wait_end_ = in_ms(20000);                                                         \
        while (!(condition)) {                                                                     \
            if (mc_now_ns(mc_clock_system()) > wait_end_) {                                        \
                fail_msg("waited in vain for: %s", #condition);                                    \
            }                                                                                      \
            usleep(200);                                                                           \
        }                                                                                          \
    } while (0)

/* As a waiter would: drives, then sleeps. */
static inline void double_wait(struct double_batch *b, bool drive) {
    struct mc_segment *segment = b->slices[0].segment;
    if (drive) {
        mc_transport_tcp_ops.progress(segment->engine->transport, segment, &b->done, in_ms(20000));
    }
    wait_until(atomic_load(&b->done));
    for (uint32_t i = 0; i < b->count; i++) {
        assert_int_equal(atomic_load(&b->ended[i]), 1);
    }
}

static inline enum mc_status double_move(struct double_segment *s, enum mc_transfer_op op,
                                         void *local, const void *remote, uint64_t length,
                                         bool drive) {
    struct double_batch *b = double_batch();
    double_add_slice(b, s, op, local, remote, length);
    assert_ok(double_post(b, drive));
    double_wait(b, drive);
    enum mc_status status = (enum mc_status)b->status[0];
    free(b);
    return status;
}

#endif
