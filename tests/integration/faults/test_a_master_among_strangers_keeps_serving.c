/*
 * A live mooncake_master and peers that mean it no good, or do not know what they do: lengths of 4
 * GiB, counts of 2^62, every RPC with spoilt bodies, thousands of connections that never finish a
 * frame, and fewer file descriptors than connections. It answers with an error or closes, takes no
 * memory for a claim, goes on serving the others, and is afterwards as it was before.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rpc/frame.h"
#include "support/live.h"

#ifdef MC_SANITIZE
#define RSS_SLACK (256u << 20) /* the sanitizer keeps what was freed */
#else
#define RSS_SLACK (24u << 20)
#endif

static struct mc_rpc_request_header header(enum mc_master_rpc rpc, uint32_t length) {
    return (struct mc_rpc_request_header){.magic = MC_RPC_MAGIC,
                                          .version = MC_RPC_VERSION,
                                          .serialize_type = MC_RPC_STRUCT_PACK,
                                          .function_id = mc_master_rpc_table()[rpc].function_id,
                                          .length = length};
}

static void send_bytes(int fd, const void *bytes, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, (const char *)bytes + at, len - at, MSG_NOSIGNAL);
        if (n <= 0) {
            return; /* closed on a spoilt frame */
        }
        at += (size_t)n;
    }
}

static void serves(struct mc_rpc_client *client) {
    struct mc_arena arena = {0};
    struct mc_buf reply = {0};
    struct mw_e_str ready;
    assert_ok(live_call(client, MC_RPC_ServiceReady, NULL, &ready, &arena, &reply));
    assert_int_equal(ready.error, 0);
    mc_buf_free(&reply);
    mc_arena_free(&arena);
}

/* ---- claims ---- */

static void test_a_claimed_length_costs_nothing(void **state) {
    static const uint32_t claims[] = {UINT32_MAX, 1u << 31, (256u << 20) + 1, 256u << 20,
                                      64u << 20};
    enum { EACH = 60 };
    struct live master;
    live_master(&master, NULL, 0);
    struct mc_rpc_client *bystander = live_client(&master);
    serves(bystander);
    uint64_t before = live_rss_bytes(&master);
    unsigned files = live_open_files(&master, 0);
    for (size_t c = 0; c < MC_ARRAY_LEN(claims); c++) {
        int fds[EACH];
        for (int i = 0; i < EACH; i++) {
            struct mc_rpc_request_header h = header(MC_RPC_PutStart, claims[c]);
            char part[3000] = {0};
            if (i % 2) {
                h.length = 0;
                h.attach_length = claims[c];
            }
            fds[i] = live_connect(master.rpc);
            send_bytes(fds[i], &h, sizeof(h));
            send_bytes(fds[i], part, sizeof(part));
        }
        if (claims[c] > 256u << 20) { /* an answer with the error, then the end */
            for (int i = 0; i < EACH; i++) {
                size_t bytes;
                assert_true(live_read_to_end(fds[i], &bytes, 10000));
                assert_true(bytes >= sizeof(struct mc_rpc_reply_header));
            }
        }
        serves(bystander);
        assert_true(live_rss_bytes(&master) < before + RSS_SLACK);
        for (int i = 0; i < EACH; i++) {
            close(fds[i]);
        }
    }
    live_wait_files(&master, 0, files);
    assert_int_equal(live_open_files(&master, 0), files); /* the bystander is still there */
    mc_rpc_client_destroy(bystander);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* ---- bodies ---- */

/* Sends `body` as a request of `rpc` with a connection that may be lost;
 * true when an answer came. */
static bool ask(struct mc_rpc_client *client, uint32_t function_id, struct mc_str body) {
    struct mc_buf reply = {0};
    enum mc_rpc_errc errc = MC_RPC_OK;
    enum mc_status status = mc_rpc_call(client, function_id, body,
                                        mc_now_ns(mc_clock_system()) + 20 * MC_SEC, &reply, &errc);
    mc_buf_free(&reply);
    assert_int_not_equal(status, MC_RPC_TIMEOUT);
    return status == MC_OK || errc != MC_RPC_OK;
}

/* Every RPC, with the right type hash and: nothing behind it; counts that say 2^62 in each width;
 * noise. */
static void test_spoilt_bodies_of_every_rpc(void **state) {
    struct live master;
    struct mc_rng rng;
    live_master(&master, NULL, 0);
    struct mc_rpc_client *client = live_client(&master), *bystander = live_client(&master);
    serves(bystander);
    uint64_t before = live_rss_bytes(&master);
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    mc_rng_seed(&rng, 99);
    unsigned answered = 0, asked = 0;
    for (unsigned r = 0; r < MC_MASTER_RPC_COUNT; r++) {
        for (unsigned v = 0; v < table[r].version_count; v++) {
            for (unsigned round = 0; round < 60; round++) {
                char body[600];
                uint32_t hash = table[r].versions[v].args_hash;
                size_t len = 4 + mc_rng_below(&rng, sizeof(body) - 4);
                for (size_t i = 4; i < len; i++) {
                    body[i] = (char)(round % 3 == 0   ? 0xff
                                     : round % 3 == 1 ? (int)mc_rng_below(&rng, 3) * 0x7f
                                                      : (int)mc_rng_next(&rng));
                }
                hash |= (uint32_t)mc_rng_below(&rng, 2); /* the low bit: a meta byte follows */
                memcpy(body, &hash, 4);
                if (round % 4) {
                    body[4] = (char)((round % 4) << 3);
                }
                answered += ask(client, table[r].function_id,
                                (struct mc_str){body, round == 0   ? 0
                                                      : round == 1 ? 4
                                                                   : len});
                asked++;
            }
        }
    }
    assert_int_equal(answered, asked);
    assert_true(answered > 3000);
    serves(bystander);
    assert_true(live_rss_bytes(&master) < before + RSS_SLACK);
    mc_rpc_client_destroy(client);
    mc_rpc_client_destroy(bystander);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* ---- connections ---- */

static void raise_open_files(void) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Half of them say nothing, the others send a frame one byte at a time and never end it. */
static void test_thousands_of_connections_that_never_ask(void **state) {
    enum { COUNT = 3000 };
    static int fds[COUNT];
    struct live master;
    live_master(&master, NULL, COUNT + 200);
    raise_open_files();
    struct mc_rpc_client *bystander = live_client(&master);
    serves(bystander);
    unsigned files = live_open_files(&master, 0);
    uint64_t rss = live_rss_bytes(&master);
    struct mc_rpc_request_header h = header(MC_RPC_PutStart, 100000);
    char byte = 0;
    for (int i = 0; i < COUNT; i++) {
        fds[i] = live_connect(master.rpc);
        if (i % 2) {
            send_bytes(fds[i], &h, (size_t)(1 + i % (int)sizeof(h)));
        }
        if (i % 100 == 0) {
            serves(bystander);
        }
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 1; i < COUNT; i += 2) {
            send_bytes(fds[i], i % 20 == 19 ? (const char *)&h : &byte, 1);
        }
        serves(bystander);
    }
    struct mc_rpc_client *newcomer = live_client(&master);
    serves(newcomer);
    assert_true(live_rss_bytes(&master) < rss + RSS_SLACK);
    for (int i = 0; i < COUNT; i++) {
        close(fds[i]);
    }
    live_wait_files(&master, 0, files + 1);
    assert_int_equal(live_open_files(&master, 0), files + 1);
    mc_rpc_client_destroy(newcomer);
    mc_rpc_client_destroy(bystander);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* More connections than descriptors: the master neither spins nor dies, those inside are served,
 * and the door opens again when others leave. */
static void descriptors_run_out(uint16_t (*port_of)(const struct live *master)) {
    enum { LIMIT = 64, COUNT = 100 };
    int fds[COUNT];
    struct live master;
    live_master(&master, NULL, LIMIT);
    struct mc_rpc_client *bystander = live_client(&master);
    serves(bystander);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = live_connect(port_of(&master));
    }
    usleep(300000);
    uint64_t cpu = live_cpu_ms(&master);
    for (int i = 0; i < 10; i++) {
        serves(bystander);
        usleep(100000);
    }
    assert_in_range(live_cpu_ms(&master) - cpu, 0, 500); /* of the second; spinning takes all */
    for (int i = 0; i < COUNT; i++) {
        close(fds[i]);
    }
    struct mc_rpc_client *newcomer = live_client(&master);
    serves(newcomer);
    mc_rpc_client_destroy(newcomer);
    mc_rpc_client_destroy(bystander);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}
static uint16_t rpc_of(const struct live *master) {
    return master->rpc;
}
static uint16_t admin_of(const struct live *master) {
    return master->admin;
}
static void test_descriptors_run_out_at_the_rpc_port(void **state) {
    descriptors_run_out(rpc_of);
}
static void test_descriptors_run_out_at_the_admin_port(void **state) {
    descriptors_run_out(admin_of);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_claimed_length_costs_nothing),
        cmocka_unit_test(test_spoilt_bodies_of_every_rpc),
        cmocka_unit_test(test_thousands_of_connections_that_never_ask),
        cmocka_unit_test(test_descriptors_run_out_at_the_rpc_port),
        cmocka_unit_test(test_descriptors_run_out_at_the_admin_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
