/* What any NICs must do; rdma_suite.h. */
#include "support/rdma_suite.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

struct rdma_suite rdma_suite;

/* ---- engines with memory ---- */

/* `nics` are numbers, "0,2". */
static struct mc_engine *engine_on(const char *nics, uint16_t port) {
    char filter[64];
    size_t len = 0;
    for (const char *c = nics; *c != '\0'; c++) {
        len += (size_t)snprintf(filter + len, sizeof(filter) - len, *c == ',' ? "," : "%s%c",
                                rdma_suite.prefix, *c);
    }
    const struct mc_transport_ops *const table[] = {rdma_suite.ops};
    struct mc_engine_options options;
    struct mc_engine *engine;
    setenv("MC_TE_FILTERS", filter, 1);
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.rpc_port = port;
    options.reactors = 1;
    /* In an emulator on a busy machine Soft-RoCE moves 1 to 3 MB/s (seen at a load of 20), and two
     * slices of 4 MiB, one in each queue pair, may take longer than five seconds without a word.
     * After a minute without any it is a stall, and tests fail by what they count. */
    options.policy =
        rdma_suite.policy != NULL ? rdma_suite.policy : "{\"attempt_timeout_ms\": 60000}";
    assert_ok(mc_engine_create_with(&options, table, 1, &engine));
    return engine;
}

void rdma_side_open(struct rdma_side *side, const char *nics, size_t size, uint16_t port) {
    side->engine = engine_on(nics, port);
    side->size = size;
    side->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(side->memory != MAP_FAILED);
    assert_ok(mc_memory_register(side->engine, side->memory, size, "cpu:0", 0));
}

void rdma_side_close(struct rdma_side *side) {
    if (side->engine != NULL) {
        mc_engine_destroy(side->engine);
    }
    munmap(side->memory, side->size);
}

mc_segment_id rdma_segment_of(struct rdma_side *from, struct rdma_side *to) {
    mc_segment_id id;
    assert_ok(mc_segment_open(from->engine, mc_engine_name(to->engine), &id));
    return id;
}

enum mc_status rdma_move(struct rdma_side *from, mc_segment_id to, enum mc_transfer_op op,
                         char *local, const char *remote, size_t length, uint64_t timeout_ms) {
    const struct mc_transfer_request request = {.op = op,
                                                .local = local,
                                                .segment = to,
                                                .remote_addr = (uint64_t)(uintptr_t)remote,
                                                .length = length};
    return mc_transfer(from->engine, &request, 1, mc_deadline_in_ms(timeout_ms));
}

/* The sum over all labels of a counter. */
long long rdma_counter(struct rdma_side *side, const char *name) {
    return rdma_counter_of(side, name, "");
}

long long rdma_counter_of(struct rdma_side *side, const char *name, const char *label) {
    char *text = mc_engine_metrics(side->engine), *save = NULL;
    long long sum = 0;
    size_t len = strlen(name);
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, name, len) == 0 && (line[len] == '{' || line[len] == ' ') &&
            strstr(line, label) != NULL) {
            sum += atoll(strrchr(line, ' '));
        }
    }
    free(text);
    return sum;
}

void rdma_pause_ms(unsigned ms) {
    nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

/* ---- tests ---- */

void test_every_size_arrives_whole(void **state) {
    static const size_t sizes[] = {1,    2,     7,     64,      65,      4095,         4096,
                                   4097, 65535, 65536, MIB + 3, 8 * MIB, 16 * MIB - 1, 64 * MIB};
    struct rdma_side a, b;
    long long moved = 0;
    rdma_side_open(&a, "0", 65 * MIB, 0);
    rdma_side_open(&b, "1", 65 * MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i], here = 3 * i, there = 5 * i + 1;
        mc_test_fill(a.memory + here, n, i);
        b.memory[there + n] = 'x';
        assert_ok(rdma_move(&a, to_b, MC_TRANSFER_WRITE, a.memory + here, b.memory + there, n,
                            RDMA_PATIENCE_MS));
        mc_test_verify(b.memory + there, n, i);
        assert_int_equal(b.memory[there + n], 'x');
        mc_test_fill(b.memory + there, n, 100 + i);
        a.memory[here + n] = 'y';
        assert_ok(rdma_move(&a, to_b, MC_TRANSFER_READ, a.memory + here, b.memory + there, n,
                            RDMA_PATIENCE_MS));
        mc_test_verify(a.memory + here, n, 100 + i);
        assert_int_equal(a.memory[here + n], 'y');
        moved += 2 * (long long)n;
    }
    assert_int_equal(rdma_counter(&a, "mooncake_te_transfer_bytes_total"), moved);
    assert_int_equal(rdma_counter(&a, "mooncake_te_rdma_endpoints_opened_total"), 1);
    assert_int_equal(rdma_counter(&a, "mooncake_te_slice_failures_total"), 0);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

/* Moves [0, size) of A's memory to B and back, and compares. */
void rdma_round_trip(struct rdma_side *a, struct rdma_side *b, mc_segment_id to_b, size_t size,
                     uint64_t seed) {
    mc_test_fill(a->memory, size, seed);
    assert_ok(rdma_move(a, to_b, MC_TRANSFER_WRITE, a->memory, b->memory, size, RDMA_PATIENCE_MS));
    mc_test_verify(b->memory, size, seed);
    memset(a->memory, 0, size);
    assert_ok(rdma_move(a, to_b, MC_TRANSFER_READ, a->memory, b->memory, size, RDMA_PATIENCE_MS));
    mc_test_verify(a->memory, size, seed);
}

void test_two_pairs_of_nics_carry_one_transfer(void **state) {
    struct rdma_side a, b;
    rdma_side_open(&a, "0,2", 16 * MIB, 0);
    rdma_side_open(&b, "1,3", 16 * MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    for (uint64_t i = 0; i < 3; i++) {
        rdma_round_trip(&a, &b, to_b, 16 * MIB, i);
    }
    assert_true(rdma_counter(&a, "mooncake_te_rdma_endpoints_opened_total") >= 2);
    assert_int_equal(rdma_counter(&a, "mooncake_te_slice_failures_total"), 0);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

static void *link_goes(void *arg) {
    rdma_pause_ms(300);
    rdma_suite.link(2, false);
    return NULL;
}

/* Bytes that NIC 2 of the side has carried. */
static long long carried_by_2(struct rdma_side *side) {
    char label[32];
    snprintf(label, sizeof(label), "rail=\"%s2\"", rdma_suite.prefix);
    return rdma_counter_of(side, "mooncake_te_rail_bytes_total", label);
}

void test_a_link_that_goes_down_is_not_seen_by_the_application(void **state) {
    struct rdma_side a, b;
    pthread_t thread;
    rdma_side_open(&a, "0,2", 8 * MIB, 0);
    rdma_side_open(&b, "1,3", 8 * MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    rdma_round_trip(&a, &b, to_b, 8 * MIB, 0);
    assert_true(carried_by_2(&a) > 0);
    assert_int_equal(pthread_create(&thread, NULL, link_goes, NULL), 0);
    uint64_t seed = 1, until = mc_deadline_in_ms(1500), patience = mc_deadline_in_ms(60000);
    while (mc_now_ns(mc_clock_system()) < until ||
           (rdma_counter(&a, "mooncake_te_rdma_port_down_total") == 0 &&
            mc_now_ns(mc_clock_system()) < patience)) {
        rdma_round_trip(&a, &b, to_b, 8 * MIB, seed++);
    }
    pthread_join(thread, NULL);
    long long before = carried_by_2(&a);
    rdma_round_trip(&a, &b, to_b, 8 * MIB, seed++);
    assert_int_equal(carried_by_2(&a), before);
    assert_int_equal(rdma_counter(&a, "mooncake_te_rdma_port_down_total"), 1);
    rdma_suite.link(2, true);
    patience = mc_deadline_in_ms(60000); /* the peer's NIC may be told later than ours */
    while (carried_by_2(&a) == before && mc_now_ns(mc_clock_system()) < patience) {
        rdma_round_trip(&a, &b, to_b, 8 * MIB, seed++);
        rdma_pause_ms(50);
    }
    assert_true(carried_by_2(&a) > before);
    assert_int_equal(rdma_counter(&a, "mooncake_te_tasks_failed_total"), 0);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

/* ---- many peers, few endpoints ---- */

#define PEERS  4
#define ROUNDS 12

struct busy {
    struct rdma_side *a, *b;
    mc_segment_id to_b;
    char *local;
    size_t size;
    uint64_t seed;
    enum mc_status status;
};

static void *keep_busy(void *arg) {
    struct busy *busy = arg;
    for (int i = 0; i < ROUNDS && busy->status == MC_OK; i++) {
        uint64_t seed = busy->seed * 1000 + (uint64_t)i;
        mc_test_fill(busy->local, busy->size, seed);
        busy->status = rdma_move(busy->a, busy->to_b, MC_TRANSFER_WRITE, busy->local,
                                 busy->b->memory, busy->size, RDMA_PATIENCE_MS);
        if (busy->status == MC_OK) {
            mc_test_verify(busy->b->memory, busy->size, seed);
        }
    }
    return NULL;
}

void test_two_endpoints_serve_four_busy_peers(void **state) {
    struct rdma_side a, b[PEERS];
    struct busy busy[PEERS];
    pthread_t threads[PEERS];
    size_t each = MIB / 2;
    setenv("MC_MAX_EP_PER_CTX", "2", 1);
    rdma_side_open(&a, "0", PEERS * each, 0);
    unsetenv("MC_MAX_EP_PER_CTX");
    for (size_t i = 0; i < PEERS; i++) {
        rdma_side_open(&b[i], "1", each, 0);
        busy[i] = (struct busy){.a = &a,
                                .b = &b[i],
                                .to_b = rdma_segment_of(&a, &b[i]),
                                .local = a.memory + i * each,
                                .size = each,
                                .seed = i};
    }
    for (size_t i = 0; i < PEERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, keep_busy, &busy[i]), 0);
    }
    for (size_t i = 0; i < PEERS; i++) {
        pthread_join(threads[i], NULL);
        assert_ok(busy[i].status);
    }
    assert_true(rdma_counter(&a, "mooncake_te_rdma_endpoints") <= 2);
    assert_true(rdma_counter(&a, "mooncake_te_rdma_endpoints_evicted_total") >= 2);
    assert_int_equal(rdma_counter(&a, "mooncake_te_slice_failures_total"), 0);
    rdma_side_close(&a);
    for (size_t i = 0; i < PEERS; i++) {
        rdma_side_close(&b[i]);
    }
}

struct opener {
    struct rdma_side *from, *to;
    mc_segment_id id;
    pthread_barrier_t *barrier;
    size_t from_offset, to_offset;
    enum mc_status status;
};

static void *open_at_once(void *arg) {
    struct opener *o = arg;
    pthread_barrier_wait(o->barrier);
    o->status = rdma_move(o->from, o->id, MC_TRANSFER_WRITE, o->from->memory + o->from_offset,
                          o->to->memory + o->to_offset, 65536, RDMA_PATIENCE_MS);
    return NULL;
}

void test_both_sides_may_open_at_the_same_moment(void **state) {
    for (uint64_t round = 0; round < 5; round++) {
        struct rdma_side a, b;
        pthread_barrier_t barrier;
        pthread_t threads[2];
        rdma_side_open(&a, "0", MIB, 0);
        rdma_side_open(&b, "1", MIB, 0);
        pthread_barrier_init(&barrier, NULL, 2);
        struct opener openers[2] = {
            {&a, &b, rdma_segment_of(&a, &b), &barrier, 0, 65536, MC_ERR_BUSY},
            {&b, &a, rdma_segment_of(&b, &a), &barrier, 0, 65536, MC_ERR_BUSY},
        };
        mc_test_fill(a.memory, 65536, 2 * round);
        mc_test_fill(b.memory, 65536, 2 * round + 1);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, open_at_once, &openers[i]), 0);
        }
        for (size_t i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            assert_ok(openers[i].status);
        }
        mc_test_verify(b.memory + 65536, 65536, 2 * round);
        mc_test_verify(a.memory + 65536, 65536, 2 * round + 1);
        pthread_barrier_destroy(&barrier);
        rdma_side_close(&a);
        rdma_side_close(&b);
    }
}

void test_a_deadline_leaves_local_memory_alone(void **state) {
    struct rdma_side a, b;
    rdma_side_open(&a, "0", 32 * MIB, 0);
    rdma_side_open(&b, "1", 32 * MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    rdma_round_trip(&a, &b, to_b, 65536, 1);
    mc_test_fill(b.memory, 32 * MIB, 2);
    assert_int_equal(rdma_move(&a, to_b, MC_TRANSFER_READ, a.memory, b.memory, 32 * MIB, 100),
                     MC_ERR_TIMEOUT);
    mc_test_fill(a.memory, 32 * MIB, 3);
    rdma_pause_ms(500);
    mc_test_verify(a.memory, 32 * MIB, 3);
    rdma_round_trip(&a, &b, to_b, MIB, 4); /* the way is open again */
    rdma_side_close(&a);
    rdma_side_close(&b);
}

void test_memory_that_is_unregistered_is_out_of_reach(void **state) {
    struct rdma_side a, b;
    char *extra = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(extra != MAP_FAILED);
    rdma_side_open(&a, "0", MIB, 0);
    rdma_side_open(&b, "1", MIB, 0);
    assert_ok(mc_memory_register(b.engine, extra, MIB, "cpu:0", 0));
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    mc_test_fill(extra, MIB, 1);
    assert_ok(rdma_move(&a, to_b, MC_TRANSFER_READ, a.memory, extra, MIB, RDMA_PATIENCE_MS));
    mc_test_verify(a.memory, MIB, 1);
    assert_ok(mc_memory_unregister(b.engine, extra));
    memset(a.memory, 7, 65536);
    assert_int_equal(
        rdma_move(&a, to_b, MC_TRANSFER_WRITE, a.memory, extra, 65536, RDMA_PATIENCE_MS),
        MC_ERR_NOT_REGISTERED);
    mc_test_verify(extra, MIB, 1);
    rdma_round_trip(&a, &b, to_b, MIB, 2);
    rdma_side_close(&a);
    rdma_side_close(&b);
    munmap(extra, MIB);
}

/* A NIC that takes 2 MiB at once: larger ranges are several regions, and transfers cross them. */
void test_ranges_larger_than_a_region_are_split(void **state) {
    struct rdma_side a, b;
    setenv("MC_MAX_MR_SIZE", "2097152", 1);
    rdma_side_open(&a, "0", 7 * MIB, 0);
    rdma_side_open(&b, "1", 7 * MIB, 0);
    unsetenv("MC_MAX_MR_SIZE");
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    size_t count = 0;
    assert_ok(mc_segment_buffers(a.engine, to_b, NULL, 0, &count));
    assert_int_equal(count, 1);
    rdma_round_trip(&a, &b, to_b, 7 * MIB, 1);
    mc_test_fill(a.memory + 1 * MIB + 5, 3 * MIB, 2);
    assert_ok(rdma_move(&a, to_b, MC_TRANSFER_WRITE, a.memory + MIB + 5, b.memory + 2 * MIB - 7,
                        3 * MIB, RDMA_PATIENCE_MS));
    mc_test_verify(b.memory + 2 * MIB - 7, 3 * MIB, 2);
    rdma_side_close(&a);
    rdma_side_close(&b);
}
