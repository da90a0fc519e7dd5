/* A trace through the whole master in virtual time, as an engine does it: ask for the chain, read
 * the prefix that is there, store the rest. The policy learns the same from these calls as from the
 * simulator's whole chains, so it hits more than LRU here too. */
#include "cmd/cache_sim.h"
#include "support/master_fixture.h"

#include <stdio.h>

#define BLOCKS      8000 /* of memory */
#define BLOCK_BYTES 1024
#define WATERMARK   0.95
#define LONGEST     512
#define MS_A_TICK   1000
#define TRACE       "data/traces/synthetic_trace.jsonl.gz"

static struct mc_vec keys_of(struct fixture *f, const uint32_t *blocks, size_t count) {
    struct mc_str *keys = mc_arena_alloc(&f->arena, (count + 1) * sizeof(*keys));
    for (size_t i = 0; i < count; i++) {
        keys[i] = mc_arena_printf(&f->arena, "block-%08x", blocks[i]);
    }
    return (struct mc_vec){keys, count};
}

/* How many blocks at the head are there. */
static size_t ask_and_read(struct fixture *f, struct mc_vec keys) {
    struct mw_a_keys args = {.keys = keys};
    struct mc_vec answers;
    size_t prefix = 0;
    call(f, MC_RPC_BatchExistKey, &args, &answers);
    while (prefix < keys.count && ((struct mw_e_bool *)answers.items)[prefix].value) {
        prefix++;
    }
    args.keys.count = prefix;
    call(f, MC_RPC_BatchGetReplicaList, &args, &answers);
    for (size_t i = 0; i < prefix; i++) {
        assert_int_equal(((struct mw_e_list *)answers.items)[i].error, MC_OK);
    }
    return prefix;
}

static void store(struct fixture *f, const struct mc_str *keys, size_t count) {
    uint64_t lengths[LONGEST];
    struct mw_object_meta metas[LONGEST];
    struct mc_str started[LONGEST];
    size_t good = 0;
    for (size_t i = 0; i < count; i++) {
        lengths[i] = BLOCK_BYTES;
    }
    struct mw_a_batch_put_start begin = {.client = client_a,
                                         .keys = {(void *)keys, count},
                                         .lengths = {lengths, count},
                                         .config = replicas(1)};
    struct mc_vec answers;
    call(f, MC_RPC_BatchPutStart, &begin, &answers);
    for (size_t i = 0; i < count; i++) {
        if (((struct mw_e_vec *)answers.items)[i].error == MC_OK) {
            started[good] = keys[i];
            metas[good] = (struct mw_object_meta){.key = started[good]};
            good++;
        }
    }
    struct mw_a_batch_put_end end = {
        .client = client_a, .metas = {metas, good}, .type = MC_REPLICA_ALL};
    call(f, MC_RPC_BatchPutEnd, &end, &answers);
}

static double run(struct fixture *f, const struct mc_trace *trace, const char *policy) {
    f->config.eviction_policy = policy;
    f->config.eviction_ratio = 0;
    f->config.eviction_high_watermark_ratio = WATERMARK;
    f->config.default_kv_lease_ttl_ms = 100;
    fixture_restart(f);
    mount(f, "node:1", BLOCKS * BLOCK_BYTES);
    uint64_t hits = 0, now_ms = 0;
    for (size_t r = 0; r < trace->request_count; r++) {
        const struct mc_trace_request *request = &trace->requests[r];
        for (; now_ms < request->timestamp_ms; now_ms += MS_A_TICK) {
            advance_ms(f, MS_A_TICK);
            ping(f, client_a);
            tick(f);
        }
        assert_true(request->block_count <= LONGEST);
        mc_arena_reset(&f->arena);
        struct mc_vec keys = keys_of(f, trace->blocks + request->first_block, request->block_count);
        size_t prefix = ask_and_read(f, keys);
        store(f, (const struct mc_str *)keys.items + prefix, keys.count - prefix);
        tick(f);
        hits += prefix;
    }
    fixture_check(f);
    return (double)hits / (double)trace->block_count;
}

static void test_a_trace(void **state) {
    struct fixture *f = *state;
    struct mc_trace trace;
    struct mc_buf error = {0};
    const char *path = TRACE;
    assert_ok(mc_trace_load(&path, 1, &trace, &error));
    struct mc_cache_setup setup = {.capacity = (uint64_t)(BLOCKS * WATERMARK)};
    double lru = run(f, &trace, "lru"), chain = run(f, &trace, "chain");
    double simulated_lru = mc_cache_simulate(&trace, &mc_policy_lru, &setup).prefix_rate;
    double simulated_chain = mc_cache_simulate(&trace, &mc_policy_chain, &setup).prefix_rate;
    printf("lru %.4f (simulated %.4f), chain %.4f (simulated %.4f)\n", lru, simulated_lru, chain,
           simulated_chain);
    assert_true(lru > simulated_lru - 0.03 && lru < simulated_lru + 0.03);
    assert_true(chain > simulated_chain - 0.02 && chain < simulated_chain + 0.02);
    assert_true(chain > lru + 0.01);
    mc_trace_free(&trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_trace, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
