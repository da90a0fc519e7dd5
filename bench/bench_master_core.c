/*
 * The master core without a network: operations a second on one core, memory an object, and how
 * long a ping waits while others work.
 *
 * Each operation goes through mc_master_serve(): a body is decoded, handled and the answer encoded,
 * as the RPC server does it, and the client's encoding is in the figure; only the socket is
 * missing. Keys are 40 bytes, chosen at random among all objects, so that the index does not sit in
 * the cache.
 *
 * Usage: bench_master_core [millions of objects, default 1] [rounds of inserting and removing all,
 * default 0]
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "base/base.h"
#include "base/log.h"
#include "base/metrics.h"
#include "master/master.h"

#define KEY_BYTES     40
#define BATCH         128
#define MEASURE_NS    (1500 * MC_MS)
#define OBJECT_BYTES  4096
#define SEGMENT_COUNT 4
#define PINGS_MAX     200000

static const struct mc_uuid client = {1, 2};

static uint64_t rss_bytes(void) {
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%llu %llu", &size, &resident) != 2) {
        resident = 0;
    }
    if (file) {
        fclose(file);
    }
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- one caller ---- */

struct caller {
    struct mc_master *m;
    struct mc_arena arena; /* the server's */
    struct mc_buf body, answer, attachment;
    struct mc_rng rng;
    uint64_t objects;
    uint64_t next_key; /* for puts */
    char (*keys)[KEY_BYTES + 1];
    struct mc_str names[BATCH];
    struct mw_object_meta metas[BATCH];
    uint64_t lengths[BATCH];
    uint64_t failures;
};

static void caller_init(struct caller *c, struct mc_master *m, uint64_t objects, uint64_t seed) {
    *c = (struct caller){.m = m, .objects = objects, .keys = mc_zalloc(BATCH * sizeof(*c->keys))};
    mc_rng_seed(&c->rng, seed);
    for (size_t i = 0; i < BATCH; i++) {
        c->lengths[i] = OBJECT_BYTES;
    }
}

static void caller_free(struct caller *c) {
    mc_arena_free(&c->arena);
    mc_buf_free(&c->body);
    mc_buf_free(&c->answer);
    mc_buf_free(&c->attachment);
    free(c->keys);
}

/* By hand: a printf would cost more than the look-up. */
static void name_key(struct caller *c, size_t i, uint64_t number) {
    static const char prefix[] = "model/layer/000000000000";
    _Static_assert(sizeof(prefix) - 1 + 16 == KEY_BYTES, "prefix and 16 digits");
    uint64_t bits = number * UINT64_C(0x9e3779b97f4a7c15);
    memcpy(c->keys[i], prefix, sizeof(prefix) - 1);
    for (size_t d = 0; d < 16; d++, bits >>= 4) {
        c->keys[i][sizeof(prefix) - 1 + d] = "0123456789abcdef"[bits & 15];
    }
    c->names[i] = (struct mc_str){c->keys[i], KEY_BYTES};
    c->metas[i] = (struct mw_object_meta){.key = c->names[i]};
}

static void serve(struct caller *c, enum mc_master_rpc rpc, const void *args) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    mc_buf_clear(&c->body);
    mc_buf_clear(&c->answer);
    mc_master_rpc_encode_args(desc, 0, args, &c->body);
    struct mc_rpc_request request = {.function_id = desc->function_id,
                                     .body = {c->body.data, c->body.len},
                                     .arena = &c->arena,
                                     .peer = "127.0.0.1:1"};
    struct mc_rpc_reply reply = {
        .errc = MC_RPC_OK, .body = &c->answer, .attachment = &c->attachment};
    mc_master_serve(c->m, &request, &reply);
    mc_arena_reset(&c->arena);
    c->failures += reply.errc != MC_RPC_OK;
}

/* ---- operations: each does `count` keys (1 = the single form) ---- */

static void op_put(struct caller *c, size_t count) {
    struct mw_replicate_config config = {.replica_num = 1};
    for (size_t i = 0; i < count; i++) {
        name_key(c, i, c->next_key++);
    }
    if (count == 1) {
        struct mw_a_put_start start = {client, c->names[0], OBJECT_BYTES, config,
                                       MC_STR("default")};
        struct mw_a_put_end end = {client, c->metas[0], MC_REPLICA_ALL, MC_STR("default")};
        serve(c, MC_RPC_PutStart, &start);
        serve(c, MC_RPC_PutEnd, &end);
        return;
    }
    struct mw_a_batch_put_start start = {
        client, {c->names, count}, {c->lengths, count}, config, MC_STR("default")};
    struct mw_a_batch_put_end end = {client, {c->metas, count}, MC_REPLICA_ALL, MC_STR("default")};
    serve(c, MC_RPC_BatchPutStart, &start);
    serve(c, MC_RPC_BatchPutEnd, &end);
}

static void random_keys(struct caller *c, size_t count) {
    for (size_t i = 0; i < count; i++) {
        name_key(c, i, mc_rng_next(&c->rng) % c->objects);
    }
}

static void look_up(struct caller *c, size_t count, enum mc_master_rpc one,
                    enum mc_master_rpc many) {
    random_keys(c, count);
    if (count == 1) {
        struct mw_a_key args = {c->names[0], MC_STR("default")};
        serve(c, one, &args);
        return;
    }
    struct mw_a_keys args = {{c->names, count}, MC_STR("default")};
    serve(c, many, &args);
}

static void op_get(struct caller *c, size_t count) {
    look_up(c, count, MC_RPC_GetReplicaList, MC_RPC_BatchGetReplicaList);
}
static void op_exist(struct caller *c, size_t count) {
    look_up(c, count, MC_RPC_ExistKey, MC_RPC_BatchExistKey);
}

/* What the benchmark itself costs: the same keys, no master. */
static void op_nothing(struct caller *c, size_t count) {
    random_keys(c, count);
}

/* ---- measuring ---- */

static double keys_per_second(struct caller *c, void (*op)(struct caller *, size_t), size_t count) {
    uint64_t start = cpu_ns(), now = start, keys = 0;
    while (now - start < MEASURE_NS) {
        for (int i = 0; i < 64; i++, keys += count) {
            op(c, count);
        }
        now = cpu_ns();
    }
    return (double)keys * 1e9 / (double)(now - start);
}

static void mount_segments(struct mc_master *m, uint64_t bytes) {
    struct mc_arena arena = {0};
    struct mw_segment segments[SEGMENT_COUNT];
    for (uint64_t i = 0; i < SEGMENT_COUNT; i++) {
        struct mc_str name = mc_arena_printf(&arena, "10.0.0.%d:15000", (int)i + 1);
        segments[i] = (struct mw_segment){.id = {5, i},
                                          .name = name,
                                          .base = 1ull << 44,
                                          .size = bytes / SEGMENT_COUNT,
                                          .te_endpoint = name,
                                          .protocol = MC_STR("tcp")};
    }
    struct mw_a_remount args = {{segments, SEGMENT_COUNT}, client};
    struct mw_e_void r;
    mc_master_handle(m, MC_RPC_ReMountSegment, &args, &arena, &r);
    MC_ASSERT(r.error == 0);
    mc_arena_free(&arena);
}

static void insert_all(struct caller *c, uint64_t objects) {
    c->next_key = 0;
    while (c->next_key < objects) {
        op_put(c, BATCH);
    }
}

static uint64_t keys_in(struct mc_master *m) {
    struct mc_master_totals totals;
    mc_master_totals(m, &totals);
    return totals.keys;
}

static void measure_rates(struct caller *c) {
    static const struct {
        const char *name;
        void (*op)(struct caller *, size_t);
    } ops[] = {{"(the benchmark)", op_nothing},
               {"Exist", op_exist},
               {"GetReplicaList", op_get},
               {"PutStart+PutEnd", op_put}};
    printf("%-20s %14s %14s\n", "keys/s of CPU time", "single", "batch of 128");
    for (size_t i = 0; i < MC_ARRAY_LEN(ops); i++) {
        double single = keys_per_second(c, ops[i].op, 1);
        double batch = keys_per_second(c, ops[i].op, BATCH);
        printf("%-20s %14.0f %14.0f\n", ops[i].name, single, batch);
        fflush(stdout);
    }
}

/* ---- a ping while others work ---- */

struct load {
    struct mc_master *m;
    uint64_t objects;
    _Atomic bool stop;
};

static void *work(void *arg) {
    struct load *load = arg;
    struct caller c;
    caller_init(&c, load->m, load->objects, 11);
    c.next_key = load->objects * 2;
    while (!atomic_load_explicit(&load->stop, memory_order_relaxed)) {
        op_get(&c, BATCH);
        op_put(&c, BATCH);
        mc_master_tick(load->m);
    }
    caller_free(&c);
    return NULL;
}

static void measure_ping(struct mc_master *m, uint64_t objects) {
    struct load load = {.m = m, .objects = objects};
    struct caller c;
    pthread_t id;
    static uint64_t times[PINGS_MAX];
    caller_init(&c, m, objects, 12);
    pthread_create(&id, NULL, work, &load);
    size_t count = 0;
    uint64_t start = now_ns();
    while (count < PINGS_MAX && now_ns() - start < 2 * MEASURE_NS) {
        uint64_t before = now_ns();
        serve(&c, MC_RPC_Ping, &client);
        times[count++] = now_ns() - before;
        usleep(20);
    }
    atomic_store_explicit(&load.stop, true, memory_order_relaxed);
    pthread_join(id, NULL);
    qsort(times, count, sizeof(times[0]), by_u64);
    printf("ping under load: p50 %.1f us, p99 %.1f us, max %.1f us (%zu pings)\n",
           (double)times[count / 2] / 1e3, (double)times[count * 99 / 100] / 1e3,
           (double)times[count - 1] / 1e3, count);
    caller_free(&c);
}

/* ---- rounds ---- */

static void measure_rounds(struct caller *c, uint64_t objects, unsigned rounds) {
    for (unsigned round = 1; round <= rounds; round++) {
        insert_all(c, objects);
        uint64_t full = rss_bytes();
        int64_t removed = mc_master_remove_all(c->m, NULL, true);
        printf("round %2u: RSS %.1f MiB full, %.1f MiB after %" PRId64 " removals\n", round,
               (double)full / 1048576.0, (double)rss_bytes() / 1048576.0, removed);
        fflush(stdout);
    }
}

/* All keys in pages, as `mooncake ls` asks for them, and in the small pages of a browser. */
static void measure_list(struct mc_master *m, size_t limit) {
    struct mc_arena arena = {0};
    struct mc_str next = {"", 0}, none = {"", 0};
    char cursor[64] = "";
    uint64_t listed = 0, began = cpu_ns(), longest = 0, before = rss_bytes();
    do {
        struct mc_vec keys;
        uint64_t page_began = cpu_ns();
        MC_ASSERT(mc_master_list(m, none, none, mc_str_from(cursor), limit, &arena, &keys, &next) ==
                  MC_OK);
        longest = mc_max_u64(longest, cpu_ns() - page_began);
        listed += keys.count;
        snprintf(cursor, sizeof(cursor), "%.*s", (int)next.len, next.ptr);
        mc_arena_reset(&arena);
    } while (cursor[0] != '\0' && cpu_ns() - began < 2 * MEASURE_NS);
    printf("list by %zu: %.2f M keys/s, longest page %.1f ms, RSS grew by %.1f MiB\n", limit,
           (double)listed * 1e3 / (double)(cpu_ns() - began), (double)longest / 1e6,
           ((double)rss_bytes() - (double)before) / 1048576.0);
    mc_arena_free(&arena);
}

int main(int argc, char **argv) {
    uint64_t objects = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 1000000;
    unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    if (objects == 0) {
        fprintf(stderr, "usage: bench_master_core [millions of objects] [rounds]\n");
        return 2;
    }
    struct mc_master_config config;
    struct mc_metrics *metrics = mc_metrics_create();
    mc_master_config_init(&config);
    config.client_ttl_ms = 3600 * 1000;
    config.seed = 1;
    struct mc_master *m = mc_master_create(&config, mc_clock_system(), metrics);
    mount_segments(m, 1ull << 46);
    printf("idle: RSS %.1f MiB\n", (double)rss_bytes() / 1048576.0);
    struct caller c;
    caller_init(&c, m, objects, 3);
    if (rounds) {
        measure_rounds(&c, objects, rounds);
    } else {
        uint64_t before = rss_bytes();
        insert_all(&c, objects);
        uint64_t keys = keys_in(m);
        double per_key = (double)(rss_bytes() - before) / (double)keys;
        printf("memory: %" PRIu64
               " objects, %.1f bytes an object, %.1f beyond its key of %d bytes\n",
               keys, per_key, per_key - KEY_BYTES, KEY_BYTES);
        measure_rates(&c);
        measure_list(m, MC_LIST_PAGE_KEYS);
        measure_list(m, 1000);
        measure_ping(m, objects);
    }
    MC_ASSERT(c.failures == 0);
    caller_free(&c);
    mc_master_destroy(m);
    mc_metrics_destroy(metrics);
    return 0;
}
