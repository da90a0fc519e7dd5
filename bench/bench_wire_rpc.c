/*
 * What the wire and the RPC rooms cost: coding of batches (in keys a second on one core), a
 * synchronous round trip of the size of an ExistKey against a raw socket ping-pong of the same
 * bytes in the same run, and pipelined calls.
 *
 * Rounds of raw and RPC alternate, and each shows its best and median round, because both depend on
 * where the scheduler puts two threads. Usage: bench_wire_rpc [seconds a round] (default 0.5).
 * Prints text, and one JSON line last.
 */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "bench.h"
#include "io/io.h"
#include "rpc/rpc.h"
#include "wire/master_rpc.h"

#define BATCH       128
#define ROUNDS      5
#define MAX_SAMPLES 1000000
#define CALL_BYTES  40 /* an ExistKey request: header and body */
#define REPLY_BYTES 22

/* ---- coding ---- */

struct coding {
    const struct mc_rpc_desc *rpc;
    const void *args;
    const void *ret;
};

/* Keys a second through: decode arguments, encode the answer (what a server does), both from warm
 * memory. */
static double serve_rate(const struct coding *c, double seconds) {
    struct mc_buf request = {0}, reply = {0};
    struct mc_arena arena = {0};
    _Alignas(16) char args[512];
    unsigned version;
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), rounds = 0;
    mc_master_rpc_encode_args(c->rpc, 0, c->args, &request);
    while (now_ns() < end) {
        for (int i = 0; i < 100; i++, rounds++) {
            check(mc_master_rpc_decode_args(c->rpc, (struct mc_str){request.data, request.len},
                                            &arena, args, &version),
                  "master rpc decode args");
            mc_buf_clear(&reply);
            mc_master_rpc_encode_ret(c->rpc, version, c->ret, &reply);
            mc_arena_reset(&arena);
        }
    }
    double rate = (double)rounds * BATCH / ((double)(now_ns() - begin) / 1e9);
    mc_buf_free(&request);
    mc_buf_free(&reply);
    mc_arena_free(&arena);
    return rate;
}

/* Keys a second through: encode arguments, decode the answer (what a client does). */
static double call_rate(const struct coding *c, double seconds) {
    struct mc_buf request = {0}, reply = {0};
    struct mc_arena arena = {0};
    _Alignas(16) char ret[512];
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), rounds = 0;
    mc_master_rpc_encode_ret(c->rpc, 0, c->ret, &reply);
    while (now_ns() < end) {
        for (int i = 0; i < 100; i++, rounds++) {
            mc_buf_clear(&request);
            mc_master_rpc_encode_args(c->rpc, 0, c->args, &request);
            check(mc_master_rpc_decode_ret(c->rpc, 0, (struct mc_str){reply.data, reply.len},
                                           &arena, ret),
                  "master rpc decode ret");
            mc_arena_reset(&arena);
        }
    }
    double rate = (double)rounds * BATCH / ((double)(now_ns() - begin) / 1e9);
    mc_buf_free(&request);
    mc_buf_free(&reply);
    mc_arena_free(&arena);
    return rate;
}

static void bench_coding(double seconds, struct mc_buf *json) {
    static char names[BATCH][48];
    static struct mc_str keys[BATCH];
    static uint64_t lengths[BATCH];
    static struct mw_e_bool exist[BATCH];
    static struct mw_replica replicas[BATCH];
    static struct mw_e_vec started[BATCH];
    for (size_t i = 0; i < BATCH; i++) {
        snprintf(names[i], sizeof(names[i]), "model/layer-17/block-%016zx",
                 i * 0x9e3779b97f4a7c15u);
        keys[i] = mc_str_from(names[i]);
        lengths[i] = 4096;
        exist[i] = (struct mw_e_bool){MC_OK, true};
        replicas[i] =
            (struct mw_replica){.id = i,
                                .memory = {4096, i << 20, MC_STR("tcp"), MC_STR("10.0.0.1:15001")},
                                .status = MC_REPLICA_PROCESSING};
        started[i] = (struct mw_e_vec){MC_OK, {&replicas[i], 1}};
    }
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    struct mw_a_keys a_keys = {{keys, BATCH}, MC_STR("default")};
    struct mw_a_batch_put_start a_put = {.client = {1, 2},
                                         .keys = {keys, BATCH},
                                         .lengths = {lengths, BATCH},
                                         .config = {.replica_num = 1},
                                         .tenant = MC_STR("default")};
    struct mc_vec r_exist = {exist, BATCH}, r_put = {started, BATCH};
    const struct coding cases[] = {{&table[MC_RPC_BatchExistKey], &a_keys, &r_exist},
                                   {&table[MC_RPC_BatchPutStart], &a_put, &r_put}};
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        double server = serve_rate(&cases[i], seconds), client = call_rate(&cases[i], seconds);
        printf("%-14s x %d keys: server side %.1f M keys/s, client side %.1f M keys/s\n",
               cases[i].rpc->name, BATCH, server / 1e6, client / 1e6);
        mc_buf_printf(json, "\"%s_server_keys_per_s\": %.0f, \"%s_client_keys_per_s\": %.0f, ",
                      cases[i].rpc->name, server, cases[i].rpc->name, client);
    }
}

/* ---- round trips ---- */

struct samples {
    uint32_t *ns;
    size_t count;
};

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_us(const struct samples *s, double q) {
    return s->count ? s->ns[(size_t)((double)(s->count - 1) * q)] / 1e3 : 0;
}

static void measure(struct samples *s, double seconds, void (*once)(void *), void *arg) {
    uint64_t at = now_ns(), end = at + (uint64_t)(seconds * 1e9);
    s->count = 0;
    while (at < end && s->count < MAX_SAMPLES) {
        once(arg);
        uint64_t then = now_ns();
        s->ns[s->count++] = (uint32_t)(then - at);
        at = then;
    }
    qsort(s->ns, s->count, sizeof(*s->ns), compare_u32);
}

/* The other side of the raw ping-pong: sleeps in its read, the least that any server can do. */
static void *raw_server(void *arg) {
    int fd = *(int *)arg;
    char bytes[CALL_BYTES];
    struct iovec in = {bytes, CALL_BYTES}, out = {bytes, REPLY_BYTES};
    size_t n;
    while (mc_recv_some(fd, &in, 1, MC_NO_DEADLINE, &n) == MC_OK && n == CALL_BYTES &&
           mc_send_all(fd, &out, 1, MC_NO_DEADLINE) == MC_OK) {
    }
    close(fd);
    return NULL;
}

static void raw_once(void *arg) {
    int fd = *(int *)arg;
    char bytes[CALL_BYTES] = {0};
    struct iovec out = {bytes, CALL_BYTES}, in = {bytes, REPLY_BYTES};
    size_t n;
    check(mc_send_all(fd, &out, 1, MC_NO_DEADLINE), "send all");
    check(mc_recv_some(fd, &in, 1, MC_NO_DEADLINE, &n), "recv some");
}

static void exist_handler(void *ctx, const struct mc_rpc_request *request,
                          struct mc_rpc_reply *reply) {
    const struct mc_rpc_desc *rpc = mc_master_rpc_find(request->function_id);
    struct mw_a_key args;
    struct mw_e_bool ret = {MC_OK, true};
    unsigned version;
    if (rpc == NULL || mc_master_rpc_index(rpc) != MC_RPC_ExistKey ||
        mc_master_rpc_decode_args(rpc, request->body, request->arena, &args, &version) != MC_OK) {
        reply->errc = MC_RPC_INVALID_ARGUMENTS;
        return;
    }
    mc_master_rpc_encode_ret(rpc, version, &ret, reply->body);
}

struct caller {
    struct mc_rpc_client *client;
    const struct mc_rpc_desc *rpc;
    struct mc_buf request, reply;
    struct mc_arena arena;
};

static void rpc_once(void *arg) {
    struct caller *c = arg;
    struct mw_a_key key = {MC_STR("k1"), MC_STR("default")};
    struct mw_e_bool ret;
    mc_buf_clear(&c->request);
    mc_buf_clear(&c->reply);
    mc_master_rpc_encode_args(c->rpc, 0, &key, &c->request);
    check(mc_rpc_call(c->client, c->rpc->function_id,
                      (struct mc_str){c->request.data, c->request.len}, now_ns() + 5 * MC_SEC,
                      &c->reply, NULL),
          "rpc call");
    check(mc_master_rpc_decode_ret(c->rpc, 0, (struct mc_str){c->reply.data, c->reply.len},
                                   &c->arena, &ret),
          "master rpc decode ret");
}

static double pipelined_rate(struct caller *c, size_t depth, double seconds) {
    struct mc_str *bodies = mc_alloc(depth * sizeof(*bodies));
    struct mc_buf *replies = mc_zalloc(depth * sizeof(*replies));
    uint64_t begin = now_ns(), calls = 0;
    for (size_t i = 0; i < depth; i++) {
        bodies[i] = (struct mc_str){c->request.data, c->request.len};
    }
    while (now_ns() - begin < (uint64_t)(seconds * 1e9)) {
        check(mc_rpc_call_many(c->client, c->rpc->function_id, bodies, depth, now_ns() + 5 * MC_SEC,
                               replies),
              "rpc call many");
        for (size_t i = 0; i < depth; i++) {
            mc_buf_clear(&replies[i]);
        }
        calls += depth;
    }
    for (size_t i = 0; i < depth; i++) {
        mc_buf_free(&replies[i]);
    }
    free(bodies);
    free(replies);
    return (double)calls / ((double)(now_ns() - begin) / 1e9);
}

static void raw_pair(int *client_fd, pthread_t *thread) {
    static int server_fd;
    struct mc_addr addr, peer;
    int listener;
    uint16_t port;
    check(mc_listen("127.0.0.1", 0, 1, &listener, &port), "listen");
    check(mc_addr_resolve("127.0.0.1", port, &addr), "addr resolve");
    check(mc_connect(&addr, MC_NO_DEADLINE, client_fd), "connect");
    check(mc_wait_ready(listener, POLLIN, MC_NO_DEADLINE), "wait ready");
    check(mc_accept(listener, &server_fd, &peer), "accept");
    close(listener);
    mc_sleep_in_reads(*client_fd);
    mc_sleep_in_reads(server_fd);
    pthread_create(thread, NULL, raw_server, &server_fd);
}

static void bench_round_trips(double seconds, struct mc_buf *json) {
    struct mc_rpc_server_config config = {
        .host = "127.0.0.1", .no_delay = true, .handler = exist_handler};
    struct mc_rpc_server *server;
    struct caller caller = {.rpc = &mc_master_rpc_table()[MC_RPC_ExistKey]};
    struct samples s = {mc_alloc(MAX_SAMPLES * sizeof(uint32_t)), 0};
    double raw_p50[ROUNDS], rpc_p50[ROUNDS], rpc_p99[ROUNDS], raw_p99[ROUNDS];
    uint16_t port;
    char address[32];
    int fd;
    pthread_t thread;
    raw_pair(&fd, &thread);
    check(mc_rpc_server_start(&config, &server, &port), "rpc server start");
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    check(mc_rpc_client_create(address, 1, 1000, &caller.client), "rpc client create");
    for (int round = 0; round < ROUNDS; round++) {
        measure(&s, seconds, raw_once, &fd);
        raw_p50[round] = quantile_us(&s, 0.5);
        raw_p99[round] = quantile_us(&s, 0.99);
        measure(&s, seconds, rpc_once, &caller);
        rpc_p50[round] = quantile_us(&s, 0.5);
        rpc_p99[round] = quantile_us(&s, 0.99);
        printf("round trip %d: raw p50 %.1f p99 %.1f us, ExistKey p50 %.1f p99 %.1f us (%.2f)\n",
               round, raw_p50[round], raw_p99[round], rpc_p50[round], rpc_p99[round],
               rpc_p50[round] / raw_p50[round]);
    }
    qsort(raw_p50, ROUNDS, sizeof(double), by_double);
    qsort(rpc_p50, ROUNDS, sizeof(double), by_double);
    qsort(rpc_p99, ROUNDS, sizeof(double), by_double);
    mc_buf_printf(json, "\"raw_p50_us\": %.2f, \"exist_p50_us\": %.2f, \"exist_p99_us\": %.2f, ",
                  raw_p50[ROUNDS / 2], rpc_p50[ROUNDS / 2], rpc_p99[ROUNDS / 2]);
    static const size_t depths[] = {16, 128, 1024};
    for (size_t i = 0; i < MC_ARRAY_LEN(depths); i++) {
        double rate = pipelined_rate(&caller, depths[i], seconds);
        printf("pipelined, %zu deep: %.0f K calls/s\n", depths[i], rate / 1e3);
        mc_buf_printf(json, "\"pipelined_%zu_calls_per_s\": %.0f%s", depths[i], rate,
                      i == 2 ? "" : ", ");
    }
    mc_rpc_client_destroy(caller.client);
    mc_rpc_server_stop(server);
    shutdown(fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(fd);
    mc_buf_free(&caller.request);
    mc_buf_free(&caller.reply);
    mc_arena_free(&caller.arena);
    free(s.ns);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0.5;
    struct mc_buf json = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_coding(seconds, &json);
    bench_round_trips(seconds, &json);
    printf("{%s}\n", mc_buf_cstr(&json));
    mc_buf_free(&json);
    return 0;
}
