/*
 * Engines with certificates move every byte between processes in TLS, by every pair of modes; an
 * engine without a certificate, with another CA's, or out of date gets an error and no byte;
 * engines that stop half way in a handshake delay nobody. (Not for the thread sanitizer: children
 * are forked from a process with threads, and what orders processes is a pipe.)
 */
#include <poll.h>
#include <sys/wait.h>

#include "io/io.h"
#include "mooncake/transfer.h"
#include "support/certificates.h"

#define BYTES (8u << 20)

static struct certificates certificates;

/* ---- engines ---- */

struct setting {
    const char *peers, *name, *ca;
};

static enum mc_status start(const struct setting *with, struct mc_engine **engine) {
    struct mc_engine_options options;
    char *cert = NULL, *key = NULL, *ca = NULL, file[32];
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = true;
    options.tls_peers = with->peers;
    if (with->name != NULL) {
        snprintf(file, sizeof(file), "%s.pem", with->name);
        options.tls_cert = cert = certificates_file(&certificates, file);
        snprintf(file, sizeof(file), "%s.key", with->name);
        options.tls_key = key = certificates_file(&certificates, file);
    }
    if (with->ca != NULL) {
        options.tls_ca = ca = certificates_file(&certificates, with->ca);
    }
    enum mc_status status = mc_engine_create(&options, engine);
    free(cert);
    free(key);
    free(ca);
    return status;
}

/* An engine of a process of its own, which lends BYTES filled with seed 1; it ends when `ask` is
 * closed. */
struct peer {
    pid_t pid;
    int ask;
    char name[64];
    uint64_t addr;
};

static void serve(const struct setting *with, int told, int ask) {
    struct mc_engine *engine;
    void *memory;
    struct peer self = {0};
    if (start(with, &engine) != MC_OK || mc_memory_alloc(engine, BYTES, NULL, &memory) != MC_OK) {
        _exit(1);
    }
    mc_test_fill(memory, BYTES, 1);
    snprintf(self.name, sizeof(self.name), "%s", mc_engine_name(engine));
    self.addr = (uint64_t)(uintptr_t)memory;
    char byte;
    if (write(told, &self, sizeof(self)) != sizeof(self) || read(ask, &byte, 1) != 0) {
        _exit(1);
    }
    mc_engine_destroy(engine);
    _exit(0);
}

static struct peer peer_start(const struct setting *with) {
    int told[2], ask[2];
    struct peer peer;
    assert_int_equal(pipe(told), 0);
    assert_int_equal(pipe(ask), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(told[0]);
        close(ask[1]);
        serve(with, told[1], ask[0]);
    }
    close(told[1]);
    close(ask[0]);
    assert_int_equal(read(told[0], &peer, sizeof(peer)), sizeof(peer));
    close(told[0]);
    peer.pid = pid;
    peer.ask = ask[1];
    return peer;
}

static void peer_stop(struct peer *peer) {
    int how;
    close(peer->ask);
    assert_int_equal(waitpid(peer->pid, &how, 0), peer->pid);
    assert_int_equal(how, 0);
}

/* ---- transfers ---- */

static enum mc_status move(struct mc_engine *engine, mc_segment_id segment, enum mc_transfer_op op,
                           char *local, uint64_t remote, size_t length) {
    const struct mc_transfer_request request = {
        .op = op, .local = local, .segment = segment, .remote_addr = remote, .length = length};
    return mc_transfer(engine, &request, 1, mc_deadline_in_ms(20000));
}

/* Reads what the peer has in pieces of several sizes, writes other bytes, reads them back. */
static void every_byte(struct mc_engine *engine, const struct peer *peer) {
    static const size_t pieces[] = {1, 23, 4096, 16384, 65537, 1 << 20, 4 << 20};
    mc_segment_id segment;
    void *memory;
    assert_ok(mc_segment_open(engine, peer->name, &segment));
    assert_ok(mc_memory_alloc(engine, BYTES, NULL, &memory));
    char *local = memory;
    for (size_t i = 0; i < MC_ARRAY_LEN(pieces); i++) {
        size_t len = pieces[i];
        memset(local, 0, BYTES);
        assert_ok(move(engine, segment, MC_TRANSFER_READ, local, peer->addr, len));
        mc_test_verify(local, len, 1);
    }
    assert_ok(move(engine, segment, MC_TRANSFER_READ, local, peer->addr, BYTES));
    mc_test_verify(local, BYTES, 1);
    mc_test_fill(local, BYTES, 2);
    assert_ok(move(engine, segment, MC_TRANSFER_WRITE, local, peer->addr, BYTES));
    memset(local, 0, BYTES);
    assert_ok(move(engine, segment, MC_TRANSFER_READ, local, peer->addr, BYTES));
    mc_test_verify(local, BYTES, 2);
    assert_ok(mc_segment_close(engine, segment));
    assert_ok(mc_memory_free(engine, memory));
}

static int64_t tcp_bytes(struct mc_engine *engine) {
    struct mc_buf text = {0};
    char *metrics = mc_engine_metrics(engine);
    mc_buf_puts(&text, metrics);
    const char *line = strstr(mc_buf_cstr(&text), "mooncake_te_tcp_bytes_total{op=\"read\"} ");
    int64_t bytes = line != NULL ? strtoll(strchr(line, ' ') + 1, NULL, 10) : -1;
    free(metrics);
    mc_buf_free(&text);
    return bytes;
}

static void test_every_pair_of_modes_that_may_speak(void **state) {
    static const struct setting off = {"off", NULL, NULL}, prefer = {"prefer", "server", "ca.pem"},
                                require = {"require", "server", "ca.pem"};
    const struct {
        const struct setting *peer, *own;
    } pairs[] = {{&require, &require}, {&prefer, &prefer}, {&prefer, &require}, {&require, &prefer},
                 {&off, &prefer},      {&prefer, &off},    {&off, &off}};
    for (size_t i = 0; i < MC_ARRAY_LEN(pairs); i++) {
        struct peer peer = peer_start(pairs[i].peer);
        struct mc_engine *engine;
        assert_ok(start(pairs[i].own, &engine));
        every_byte(engine, &peer);
        assert_true(tcp_bytes(engine) >= BYTES);
        mc_engine_destroy(engine);
        peer_stop(&peer);
    }
}

static void test_who_may_not_gets_nothing(void **state) {
    static const struct setting require = {"require", "server", "ca.pem"};
    static const struct setting strangers[] = {
        {"off", NULL, NULL},                    /* plain */
        {"require", "stranger", "ca.pem"},      /* a certificate that our CA did not sign */
        {"require", "server", "stranger.pem"},  /* does not believe the peer's */
        {"prefer", "stranger", "stranger.pem"}, /* and does not fall back to plain */
        {"require", "expired", "ca.pem"},
    };
    struct peer peer = peer_start(&require);
    struct mc_engine *engine;
    for (size_t i = 0; i < MC_ARRAY_LEN(strangers); i++) {
        mc_segment_id segment;
        assert_ok(start(&strangers[i], &engine));
        assert_int_not_equal(mc_segment_open(engine, peer.name, &segment), MC_OK);
        mc_engine_destroy(engine);
    }
    /* An expired server is found out too. */
    struct peer expired = peer_start(&(struct setting){"require", "expired", "ca.pem"});
    mc_segment_id segment;
    assert_ok(start(&require, &engine));
    assert_int_not_equal(mc_segment_open(engine, expired.name, &segment), MC_OK);
    every_byte(engine, &peer);
    mc_engine_destroy(engine);
    peer_stop(&expired);
    peer_stop(&peer);
}

static void test_a_mode_needs_its_files(void **state) {
    struct mc_engine *engine;
    assert_int_equal(start(&(struct setting){"require", NULL, NULL}, &engine), MC_INVALID_PARAMS);
    assert_int_equal(start(&(struct setting){"prefer", NULL, "ca.pem"}, &engine),
                     MC_INVALID_PARAMS);
    assert_int_equal(start(&(struct setting){"always", "server", "ca.pem"}, &engine),
                     MC_INVALID_PARAMS);
    assert_int_equal(start(&(struct setting){"require", "none", "ca.pem"}, &engine),
                     MC_INVALID_PARAMS);
}

static void test_half_a_handshake_delays_nobody(void **state) {
    static const struct setting require = {"require", "server", "ca.pem"};
    struct peer peer = peer_start(&require);
    struct mc_engine *engine;
    struct mc_hostport place;
    struct mc_addr addr;
    int fds[100];
    assert_ok(mc_hostport_parse(peer.name, &place));
    assert_ok(mc_addr_resolve(place.host, place.port, &addr));
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        const char part[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        assert_ok(mc_connect(&addr, mc_now_ns(mc_clock_system()) + 5 * MC_SEC, &fds[i]));
        assert_true(send(fds[i], part, i % sizeof(part), MSG_NOSIGNAL) >= 0);
    }
    assert_ok(start(&require, &engine));
    every_byte(engine, &peer);
    mc_engine_destroy(engine);
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        close(fds[i]);
    }
    peer_stop(&peer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_of_modes_that_may_speak),
        cmocka_unit_test(test_who_may_not_gets_nothing),
        cmocka_unit_test(test_a_mode_needs_its_files),
        cmocka_unit_test(test_half_a_handshake_delays_nobody),
    };
    if (!certificates_make(&certificates)) {
        fprintf(stderr, "skipped: certificates could not be made, is the openssl program there?\n");
        return 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    certificates_remove(&certificates);
    return failed;
}
