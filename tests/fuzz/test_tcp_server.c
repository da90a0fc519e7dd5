/*
 * The tcp transport's server under streams of damaged requests: it writes nothing outside
 * registered memory, ends every connection, lets go of all memory, and serves the next peer.
 * Deterministic: the round's number is the seed.
 */
#include "unit/te/tcp_double.h"

#include <poll.h>

#include "base/log.h"

#define ROUNDS        4000
#define TIME_LIMIT_MS 4000
#define MARGIN        (64u << 10)
#define MIDDLE        (64u << 10)

struct fixture {
    struct mc_engine *engine;
    uint8_t *memory; /* MARGIN that nobody registered, MIDDLE that is registered, MARGIN again */
    uint16_t port;
};

static uint64_t address(struct mc_rng *rng, const struct fixture *f, uint64_t size) {
    uint64_t base = (uint64_t)(uintptr_t)f->memory;
    switch (mc_rng_below(rng, 8)) {
    case 0:
        return mc_rng_next(rng);
    case 1: /* round the edges */
        return base + MARGIN + (mc_rng_below(rng, 2) ? MIDDLE : 0) - 16 + mc_rng_below(rng, 32);
    case 2:
        return base + mc_rng_below(rng, 2 * MARGIN + MIDDLE);
    default:
        return base + MARGIN + mc_rng_below(rng, MIDDLE - mc_min_u64(size, MIDDLE - 1));
    }
}

static uint64_t size(struct mc_rng *rng) {
    switch (mc_rng_below(rng, 16)) {
    case 0:
        return mc_rng_next(rng);
    case 1:
        return UINT64_MAX - mc_rng_below(rng, 64);
    case 2:
        return MIDDLE - 8 + mc_rng_below(rng, 16);
    default:
        return mc_rng_below(rng, 600);
    }
}

static void build(struct mc_rng *rng, const struct fixture *f, struct mc_buf *out) {
    static const uint8_t opcodes[] = {0, 1, 0x80, 0x81, 0x81, 0x81, 2, 0xff};
    for (uint64_t i = 0, n = 1 + mc_rng_below(rng, 20); i < n; i++) {
        unsigned char header[TCP_HEADER_BYTES];
        struct tcp_header h = {.size = size(rng)};
        h.addr = address(rng, f, h.size);
        h.opcode = opcodes[mc_rng_below(rng, sizeof(opcodes))];
        tcp_header_encode(header, &h);
        mc_buf_append(out, header, sizeof(header));
        if ((h.opcode & 0x7f) == 1) {
            for (uint64_t k = mc_min_u64(h.size, MIDDLE); k > 0; k--) {
                mc_buf_putc(out, (char)mc_rng_next(rng));
            }
        }
    }
    for (uint64_t n = mc_rng_below(rng, 4); n > 0; n--) { /* damage */
        out->data[mc_rng_below(rng, out->len)] ^= (char)(1u << mc_rng_below(rng, 8));
    }
    if (mc_rng_below(rng, 3) == 0) {
        out->len = mc_rng_below(rng, out->len + 1);
    }
}

/* Sends the stream in pieces and reads whatever comes,
 * until the server has ended the connection. */
static void exchange(struct mc_rng *rng, const struct fixture *f, const struct mc_buf *stream) {
    struct mc_addr addr;
    struct mc_stream s;
    int fd;
    uint8_t sink[65536];
    size_t sent = 0, n;
    assert_ok(mc_addr_resolve("127.0.0.1", f->port, &addr));
    assert_ok(mc_connect(&addr, in_ms(5000), &fd));
    mc_stream_plain(&s, fd);
    for (;;) {
        if (sent < stream->len) {
            struct iovec out = {stream->data + sent, 1 + mc_rng_below(rng, stream->len - sent)};
            if (s.ops->writev(&s, &out, 1, &n) != MC_OK) {
                break;
            }
            sent += n;
            if (sent == stream->len) {
                shutdown(fd, SHUT_WR);
            }
        } else if (stream->len == 0) {
            break;
        }
        struct iovec in = {sink, sizeof(sink)};
        if (s.ops->readv(&s, &in, 1, &n) != MC_OK) {
            break;
        }
        struct pollfd p = {.fd = fd,
                           .events = (short)(POLLIN | (sent < stream->len ? POLLOUT : 0))};
        assert_true(poll(&p, 1, 20000) > 0);
    }
    s.ops->close(&s);
}

static void damaged_streams_harm_nothing(void **state) {
    struct fixture f = {.memory = mc_alloc(2 * MARGIN + MIDDLE)};
    uint64_t end = in_ms(TIME_LIMIT_MS);
    int rounds = 0;
    mc_test_fill(f.memory, MARGIN, 1);
    memset(f.memory + MARGIN, 0, MIDDLE);
    mc_test_fill(f.memory + MARGIN + MIDDLE, MARGIN, 2);
    f.engine = double_engine(1);
    double_add(f.engine, f.memory + MARGIN, MIDDLE);
    f.port = double_port(f.engine);
    mc_log_threshold = MC_LOG_OFF;
    for (; rounds < ROUNDS && mc_now_ns(mc_clock_system()) < end; rounds++) {
        struct mc_rng rng;
        struct mc_buf stream = {0};
        mc_rng_seed(&rng, (uint64_t)rounds);
        build(&rng, &f, &stream);
        exchange(&rng, &f, &stream);
        mc_buf_free(&stream);
        if (rounds % 64 == 0) {
            mc_test_verify(f.memory, MARGIN, 1);
            mc_test_verify(f.memory + MARGIN + MIDDLE, MARGIN, 2);
        }
    }
    wait_until(mc_metric_get(&double_metrics(f.engine)->connections) == 0);
    assert_int_equal(atomic_load(&f.engine->memories[0].users), 0);
    mc_test_verify(f.memory, MARGIN, 1);
    mc_test_verify(f.memory + MARGIN + MIDDLE, MARGIN, 2);
    assert_true(mc_metric_get(&double_metrics(f.engine)->rejected) > 0);
    assert_true(mc_metric_get(&double_metrics(f.engine)->served_requests[MC_TRANSFER_WRITE]) > 0);
    assert_true(mc_metric_get(&double_metrics(f.engine)->served_requests[MC_TRANSFER_READ]) > 0);
    print_message("%d rounds\n", rounds);
    double_destroy(f.engine);
    free(f.memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(damaged_streams_harm_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
