/*
 * A live node whose handshake and data ports are visited by peers that speak something else, lie
 * about lengths, ask for memory that is not registered, open more connections than it has
 * descriptors, or stop in the middle. And a master's metadata server under the same treatment. What
 * is served stays whole, nothing is given away, nothing stays behind.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mooncake/store.h"
#include "support/live.h"

#define VALUE_BYTES     1000000
#define DATA_HEADER     24
#define CALLING_THREADS 4 /* of a node: heartbeat, tasks, offload, the program */

static void send_bytes(int fd, const void *bytes, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, (const char *)bytes + at, len - at, MSG_NOSIGNAL);
        if (n <= 0) {
            return;
        }
        at += (size_t)n;
    }
}

/* ---- one node, one client ---- */

struct world {
    struct live master, node;
    struct mc_store *store;
    uint16_t handshake_port, data_port;
    uint64_t base, size; /* of its registered memory */
    unsigned files, threads;
    uint64_t rss;
    unsigned rounds;
};

/* A put and a get of the whole value over tcp. */
static void serves(struct world *w) {
    char key[32];
    uint8_t *value = mc_alloc(VALUE_BYTES), *got = mc_zalloc(VALUE_BYTES);
    size_t length = 0;
    snprintf(key, sizeof(key), "round%u", w->rounds);
    mc_test_fill(value, VALUE_BYTES, w->rounds);
    assert_ok(mc_store_put(w->store, key, value, VALUE_BYTES, NULL));
    assert_ok(mc_store_get(w->store, key, got, VALUE_BYTES, &length));
    assert_int_equal(length, VALUE_BYTES);
    mc_test_verify(got, length, w->rounds);
    assert_ok(mc_store_remove(w->store, key, true));
    free(value);
    free(got);
    w->rounds++;
}

/* Everything as it was when the attack began. */
static void is_as_before(struct world *w) {
    serves(w);
    live_wait_files(&w->node, w->master.rpc, w->files);
    assert_in_range(live_connections(&w->node, w->master.rpc), 1, CALLING_THREADS);
    live_assert_threads(&w->node, w->threads);
#ifndef MC_SANITIZE
    assert_in_range(live_anonymous_bytes(&w->node), 0, w->rss + (16u << 20));
#endif
}

static uint64_t number_after(const char *text, const char *name) {
    unsigned long long value = 0;
    const char *at = strstr(text, name);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(name), "%*[\": ]%llu", &value), 1);
    return value;
}

/* Asks for the descriptor as a peer does. */
static void learn_ports(struct world *w) {
    static const char request[] = "\x01{}";
    uint64_t length = sizeof(request) - 1;
    char reply[8192];
    struct mc_arena arena = {0};
    struct mc_buf bytes = {0};
    struct mc_rpc_client *client = live_client(&w->master);
    struct mw_a_put_start start = {
        .client = {9, 9}, .key = MC_STR("where"), .length = 1, .config = {.replica_num = 1}};
    struct mw_e_vec replicas;
    assert_ok(live_call(client, MC_RPC_PutStart, &start, &replicas, &arena, &bytes));
    assert_int_equal(replicas.value.count, 1);
    const struct mw_replica *replica = replicas.value.items;
    char endpoint[128];
    snprintf(endpoint, sizeof(endpoint), "%.*s", (int)replica->memory.endpoint.len,
             replica->memory.endpoint.ptr);
    w->handshake_port = (uint16_t)atoi(strrchr(endpoint, ':') + 1);
    int fd = live_connect(w->handshake_port);
    send_bytes(fd, &length, 8);
    send_bytes(fd, request, length);
    size_t n = 0;
    for (ssize_t part;
         n < sizeof(reply) - 1 && (part = read(fd, reply + n, sizeof(reply) - 1 - n)) > 0;
         n += (size_t)part) {
    }
    close(fd);
    assert_true(n > 9);
    reply[n] = '\0';
    w->data_port = (uint16_t)number_after(reply + 9, "tcp_data_port");
    w->base = number_after(reply + 9, "\"addr");
    w->size = number_after(reply + 9, "\"length");
    mc_rpc_client_destroy(client);
    mc_buf_free(&bytes);
    mc_arena_free(&arena);
}

static void begin(struct world *w, unsigned open_files) {
    static const char *const master_flags[] = {"--enable_http_metadata_server", NULL};
    *w = (struct world){0};
    live_master(&w->master, master_flags, 0);
    live_node(&w->node, &w->master, "64MB", NULL, open_files);
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = w->master.rpc_address;
    options.local_hostname = "127.0.0.1";
    options.disable_shm = true;
    assert_ok(mc_store_open(&options, &w->store));
    learn_ports(w);
    for (int i = 0; i < 8; i++) {
        serves(w);
    }
    live_wait_filled(&w->node);
    w->files = live_open_files(&w->node, w->master.rpc);
    w->threads = live_threads(&w->node);
    w->rss = live_anonymous_bytes(&w->node);
}

static void end(struct world *w) {
    mc_store_close(w->store);
    assert_int_equal(live_end(&w->node, SIGTERM), 0);
    assert_int_equal(live_end(&w->master, SIGTERM), 0);
}

/* ---- the handshake port ---- */

static void handshake_frame(uint16_t port, uint64_t length, const void *body, size_t len,
                            bool finish) {
    int fd = live_connect(port);
    size_t bytes;
    send_bytes(fd, &length, 8);
    send_bytes(fd, body, len);
    if (finish) {
        shutdown(fd, SHUT_WR);
        assert_true(live_read_to_end(fd, &bytes, 15000));
    }
    close(fd);
}

static void test_handshake_garbage(void **state) {
    struct world w;
    struct mc_rng rng;
    begin(&w, 0);
    static const uint64_t lengths[] = {0,          1,         2,         1 << 20, (1 << 20) + 1,
                                       UINT32_MAX, INT64_MAX, UINT64_MAX};
    static const char *const bodies[] = {"",
                                         "\x01",
                                         "\x01{",
                                         "\x01{}",
                                         "\x02[]",
                                         "\x02{}",
                                         "\x02{\"name\":1}",
                                         "\x03",
                                         "\x04",
                                         "\xff{}",
                                         "{}",
                                         "{",
                                         "\x00{}",
                                         "{\"local_nic_path\":7}",
                                         "[]",
                                         "GET /",
                                         "\x16\x03",
                                         "\x02{\"name\":\"\\u0000\",\"notify_msg\":\"\\ud800\"}"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bodies); i++) {
        size_t len = strlen(bodies[i]);
        handshake_frame(w.handshake_port, len, bodies[i], len, true);
        for (size_t k = 0; k < MC_ARRAY_LEN(lengths); k++) {
            handshake_frame(w.handshake_port, lengths[k], bodies[i], len, k % 2);
        }
    }
    static const char types[] = {1, 2, 3, '{'};
    for (size_t i = 0; i < MC_ARRAY_LEN(types); i++) { /* nesting as deep as the frame allows */
        size_t len = (1 << 20) - 16;
        char *deep = mc_alloc(len);
        memset(deep, i % 2 ? '[' : '{', len);
        for (size_t k = 1; k + 5 < len; k += 5) {
            memcpy(deep + k, i % 2 ? "[[[[[" : "{\"a\":", 5);
        }
        deep[0] = types[i];
        handshake_frame(w.handshake_port, len, deep, len, true);
        free(deep);
    }
    mc_rng_seed(&rng, 3);
    for (int i = 0; i < 300; i++) {
        char noise[64];
        for (size_t k = 0; k < sizeof(noise); k++) {
            noise[k] = (char)mc_rng_next(&rng);
        }
        handshake_frame(w.handshake_port, mc_rng_below(&rng, 100), noise, sizeof(noise),
                        i % 3 == 0);
    }
    is_as_before(&w);
    end(&w);
}

/* ---- the data port ---- */

static void data_header(unsigned char out[DATA_HEADER], uint64_t size, uint64_t addr,
                        uint8_t opcode) {
    uint64_t words[3] = {size, addr, opcode};
    memcpy(out, words, DATA_HEADER);
}

/* Asks for what is not registered: nothing but a refusal may come back,
 * and nothing may be written. */
static void test_addresses_outside_registered_memory(void **state) {
    struct world w;
    begin(&w, 0);
    struct {
        uint64_t addr, size;
    } ranges[] = {{0, 1},
                  {0, UINT64_MAX},
                  {1, UINT64_MAX},
                  {w.base - 1, 1},
                  {w.base - 1, 2},
                  {w.base - 1, w.size + 2},
                  {w.base, w.size + 1},
                  {w.base, UINT64_MAX},
                  {w.base + 1, w.size},
                  {w.base + w.size, 1},
                  {w.base + w.size - 1, 2},
                  {w.base + w.size - 1, UINT64_MAX - w.base},
                  {w.base + 100, UINT64_MAX - w.base - 99}, /* wraps to 0 */
                  {w.base + 100, UINT64_MAX - 50},          /* wraps into the memory */
                  {UINT64_MAX, 1},
                  {UINT64_MAX, UINT64_MAX},
                  {UINT64_MAX - 10, 20},
                  {1ull << 63, 1ull << 63}};
    static const uint8_t opcodes[] = {0, 1, 0x80, 0x81, 2, 0xff};
    for (size_t i = 0; i < MC_ARRAY_LEN(ranges); i++) {
        for (size_t k = 0; k < MC_ARRAY_LEN(opcodes); k++) {
            unsigned char header[DATA_HEADER];
            char payload[256];
            size_t bytes;
            memset(payload, 0xee, sizeof(payload));
            data_header(header, ranges[i].size, ranges[i].addr, opcodes[k]);
            int fd = live_connect(w.data_port);
            send_bytes(fd, header, sizeof(header));
            send_bytes(fd, payload, sizeof(payload));
            shutdown(fd, SHUT_WR);
            assert_true(live_read_to_end(fd, &bytes, 15000));
            assert_in_range(bytes, 0, 8); /* a status at most */
            close(fd);
        }
    }
    is_as_before(&w);
    end(&w);
}

static void test_data_port_garbage(void **state) {
    struct world w;
    struct mc_rng rng;
    begin(&w, 0);
    mc_rng_seed(&rng, 4);
    for (int i = 0; i < 400; i++) {
        char noise[400];
        size_t len = 1 + mc_rng_below(&rng, sizeof(noise)), bytes;
        for (size_t k = 0; k < len; k++) {
            noise[k] = (char)mc_rng_next(&rng);
        }
        if (i % 2) { /* a write into the memory that is not all sent */
            data_header((unsigned char *)noise, 1 + mc_rng_below(&rng, 100000),
                        w.base + w.size - 200000, i % 4 == 1 ? 1 : 0x81);
        }
        int fd = live_connect(w.data_port);
        send_bytes(fd, noise, len);
        if (i % 3 == 0) {
            shutdown(fd, SHUT_WR);
            assert_true(live_read_to_end(fd, &bytes, 15000));
        }
        close(fd);
    }
    is_as_before(&w);
    end(&w);
}

/* Asks for the whole memory many times and never reads: the server stops reading from that peer,
 * and drops it in time; others are served meanwhile. */
static void test_peers_that_do_not_read(void **state) {
    enum { COUNT = 32 };
    struct world w;
    int fds[COUNT];
    begin(&w, 0);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = live_connect(w.data_port);
        for (int k = 0; k < 200; k++) {
            unsigned char header[DATA_HEADER];
            data_header(header, w.size, w.base, 0x80);
            send_bytes(fds[i], header, sizeof(header));
        }
    }
    for (int i = 0; i < 20; i++) {
        serves(&w);
    }
    for (int i = 0; i < COUNT; i++) {
        close(fds[i]);
    }
    is_as_before(&w);
    end(&w);
}

/* ---- connections without end ---- */

static void descriptors_run_out(bool handshake) {
    enum { LIMIT = 64, COUNT = 120 };
    struct world w;
    int fds[COUNT];
    begin(&w, LIMIT);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = live_connect(handshake ? w.handshake_port : w.data_port);
    }
    usleep(300000);
    uint64_t cpu = live_cpu_ms(&w.node);
    sleep(1);
    cpu = live_cpu_ms(&w.node) - cpu;
    serves(&w); /* on the lanes that are there */
    for (int i = 0; i < COUNT; i++) {
        close(fds[i]);
    }
    assert_in_range(cpu, 0, 300); /* spinning takes all of the second */
    is_as_before(&w);
    end(&w);
}
static void test_descriptors_run_out_at_the_handshake_port(void **state) {
    descriptors_run_out(true);
}
static void test_descriptors_run_out_at_the_data_port(void **state) {
    descriptors_run_out(false);
}

/* ---- the metadata server ---- */

static void test_metadata_server_garbage(void **state) {
    static const char *const requests[] = {
        "",
        "GET",
        "GET / HTTP/9.9\r\n\r\n",
        "GET /metadata HTTP/1.1\r\n\r\n",
        "GET /metadata?key HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /metadata?key=%zz%00%ff HTTP/1.1\r\nHost: x\r\n\r\n",
        "PUT /metadata?key=a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\nx",
        "PUT /metadata?key=a HTTP/1.1\r\nHost: x\r\nContent-Length: "
        "99999999999999999999999\r\n\r\nx",
        "PUT /metadata?key=a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\nx",
        "PUT /metadata?key=a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
        "chunked\r\n\r\nffffffffffffffff\r\nx",
        "PUT /metadata?key=a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx",
        "POST /metadata?key=a HTTP/1.1\r\nHost: x\r\n\r\n",
        "DELETE /metadata?key=never HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"};
    struct world w;
    struct mc_rng rng;
    begin(&w, 0);
    unsigned files = live_open_files(&w.master, w.master.rpc);
    mc_rng_seed(&rng, 5);
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < MC_ARRAY_LEN(requests); i++) {
            int fd = live_connect(round % 2 ? w.master.metadata : w.master.admin);
            send_bytes(fd, requests[i], strlen(requests[i]));
            if (round < 4) { /* half closed: the library waits 10 s for the rest */
                shutdown(fd, SHUT_WR);
            }
            close(fd);
        }
        int fd = live_connect(round % 2 ? w.master.metadata : w.master.admin);
        char *long_line = mc_alloc(1 << 20); /* a URL, then a header, of a mebibyte */
        memset(long_line, 'a', 1 << 20);
        memcpy(long_line, round < 5 ? "GET /" : "GET / HTTP/1.1\r\nX: ", round < 5 ? 5 : 19);
        send_bytes(fd, long_line, 1 << 20);
        free(long_line);
        close(fd);
    }
    live_wait_files(&w.master, w.master.rpc, files);
    is_as_before(&w);
    end(&w);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake_garbage),
        cmocka_unit_test(test_addresses_outside_registered_memory),
        cmocka_unit_test(test_data_port_garbage),
        cmocka_unit_test(test_peers_that_do_not_read),
        cmocka_unit_test(test_descriptors_run_out_at_the_handshake_port),
        cmocka_unit_test(test_descriptors_run_out_at_the_data_port),
        cmocka_unit_test(test_metadata_server_garbage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
