/*
 * The master's core under requests of every shape (support/shaper.h): each RPC in every schema
 * version, valid one by one and senseless together, while time passes, drains begin and are
 * cancelled, tenants get quotas and lose them. Each has an answer, and the books balance all the
 * time (fsck): live extents are disjoint and are what the allocators say is used.
 *
 * MC_FRAMES_SEEDS (default 4) and MC_FRAMES_SEED say how many seeds and from which on.
 */
#include <stdlib.h>

#include "support/master_fixture.h"
#include "support/shaper.h"

#define REQUESTS_A_SEED 6000
#define FSCK_EVERY      97

struct run {
    struct fixture *f;
    struct shaper shaper;
    uint64_t words[MC_RPC_PEER_WORDS];
    unsigned long long good[MC_MASTER_RPC_COUNT];
};

static void ask(struct run *r) {
    struct shaper *s = &r->shaper;
    static const enum mc_master_rpc destructive[] = {MC_RPC_RemoveByRegex,
                                                     MC_RPC_RemoveAll,
                                                     MC_RPC_BatchRemove,
                                                     MC_RPC_Remove,
                                                     MC_RPC_UnmountSegment,
                                                     MC_RPC_GracefulUnmountSegment,
                                                     MC_RPC_UnmountLocalDiskSegment,
                                                     MC_RPC_BatchUpsertRevoke,
                                                     MC_RPC_BatchPutRevoke,
                                                     MC_RPC_ReMountSegment,
                                                     MC_RPC_BatchUpsertStart};
    unsigned index = (unsigned)mc_rng_below(&s->rng, MC_MASTER_RPC_COUNT);
    for (unsigned i = 0; i < MC_ARRAY_LEN(destructive); i++) {
        if (index == destructive[i] && mc_rng_below(&s->rng, 16)) {
            index = (unsigned)mc_rng_below(&s->rng, MC_MASTER_RPC_COUNT);
        }
    }
    const struct mc_rpc_desc *rpc = &mc_master_rpc_table()[index];
    unsigned version = (unsigned)mc_rng_below(&s->rng, rpc->version_count);
    uint64_t args[256] = {0}, ret[64] = {0};
    struct mc_buf body = {0}, answer = {0}, attachment = {0};
    assert_true(rpc->args_size <= sizeof(args) && rpc->ret_size <= sizeof(ret));
    if (rpc->versions[version].args != NULL) {
        shaper_fill(s, rpc->versions[version].args, args);
    }
    mc_master_rpc_encode_args(rpc, version, args, &body);
    struct mc_rpc_request request = {.function_id = rpc->function_id,
                                     .body = {body.data, body.len},
                                     .arena = &r->f->arena,
                                     .peer = "1.2.3.4:5",
                                     .peer_words = r->words};
    struct mc_rpc_reply reply = {.errc = MC_RPC_OK, .body = &answer, .attachment = &attachment};
    mc_master_serve(r->f->m, &request, &reply);
    assert_int_equal(reply.errc, MC_RPC_OK);
    enum mc_status read = MC_ERR_WIRE_HASH;
    for (unsigned i = 0; i < rpc->version_count && read != MC_OK; i++) {
        unsigned other = (version + i) % rpc->version_count;
        read = mc_master_rpc_decode_ret(rpc, other, (struct mc_str){answer.data, answer.len},
                                        &s->arena, ret);
        if (read == MC_OK) {
            shaper_learn(s, rpc->versions[other].ret, ret);
            if (rpc->versions[other].ret->kind == MC_KIND_EXPECTED) {
                r->good[index] += *(int32_t *)ret == 0;
            } else if (rpc->versions[other].ret->kind == MC_KIND_VEC &&
                       rpc->versions[other].ret->elem->kind == MC_KIND_EXPECTED) {
                const struct mc_vec *all = (const struct mc_vec *)ret;
                for (size_t k = 0; k < all->count; k++) {
                    r->good[index] += *(int32_t *)((char *)all->items +
                                                   k * rpc->versions[other].ret->elem->size) == 0;
                }
            }
        }
    }
    assert_ok(read);
    mc_buf_free(&body);
    mc_buf_free(&answer);
    mc_buf_free(&attachment);
    mc_arena_reset(&s->arena);
    mc_arena_reset(&r->f->arena);
}

/* What no RPC does. */
static void something_else(struct run *r) {
    struct shaper *s = &r->shaper;
    struct fixture *f = r->f;
    static const char *const NAMES[] = {"segment0", "segment1", "segment2"};
    struct mc_vec from = strs(f, 1, &NAMES[mc_rng_below(&s->rng, 3)]);
    struct mc_uuid job = s->ids[mc_rng_below(&s->rng, SHAPER_LEARNT)];
    struct mc_master_job_info info;
    enum mc_status status = MC_OK;
    switch (mc_rng_below(&s->rng, 8)) {
    case 0:
        status = mc_master_drain(f->m, &from, &(struct mc_vec){0}, 1 + mc_rng_below(&s->rng, 4),
                                 mc_rng_below(&s->rng, 2), &s->ids[0]);
        break;
    case 1:
        status = mc_master_job_cancel(f->m, mc_rng_below(&s->rng, 2) ? s->ids[0] : job);
        break;
    case 2:
        status = mc_master_job(f->m, s->ids[0], &f->arena, &info);
        break;
    default:
        advance_ms(f, mc_rng_below(&s->rng, 10) ? mc_rng_below(&s->rng, 300)
                                                : mc_rng_below(&s->rng, 8000));
        tick(f);
    }
    (void)status;
}

static void one_seed(void **state, uint64_t seed, unsigned long long *good) {
    static const char *const POLICIES[] = {"lru", "s3fifo", "chain"};
    static const char *const STRATEGIES[] = {"random", "free_ratio_first", "local_first",
                                             "ssd_free_ratio_first"};
    struct fixture *f = *state;
    struct run r = {.f = f};
    mc_rng_seed(&r.shaper.rng, seed);
    struct mc_rng *rng = &r.shaper.rng;
    f->config.seed = seed + 1;
    f->config.eviction_policy = POLICIES[mc_rng_below(rng, 3)];
    f->config.allocation_strategy = STRATEGIES[mc_rng_below(rng, 4)];
    f->config.default_kv_lease_ttl_ms = mc_rng_below(rng, 1000);
    f->config.client_ttl_ms = 1000 + mc_rng_below(rng, 20000);
    f->config.put_start_discard_timeout_ms = mc_rng_below(rng, 3000);
    f->config.put_start_release_timeout_ms = mc_rng_below(rng, 10000);
    f->config.enable_offload = mc_rng_below(rng, 2);
    f->config.offload_on_evict = mc_rng_below(rng, 2);
    f->config.offload_force_evict = mc_rng_below(rng, 2);
    f->config.offload_high_watermark_ratio = mc_rng_below(rng, 2) ? 0.5 : 0;
    f->config.offloading_queue_limit = 1 + mc_rng_below(rng, 20);
    f->config.promotion_on_hit = mc_rng_below(rng, 2);
    f->config.promotion_admission_threshold = 1;
    f->config.dynamic_replication = (enum mc_dynamic_mode)mc_rng_below(rng, 3);
    f->config.max_total_pending_tasks = 1 + mc_rng_below(rng, 20);
    f->config.max_total_processing_tasks = 1 + mc_rng_below(rng, 20);
    f->config.max_total_finished_tasks = 1 + mc_rng_below(rng, 20);
    f->config.pending_task_timeout_ms = mc_rng_below(rng, 4000);
    f->config.processing_task_timeout_ms = mc_rng_below(rng, 4000);
    f->config.root_fs_dir = mc_rng_below(rng, 2) ? "/nowhere" : "";
    fixture_restart(f);
    for (unsigned i = 0; i < REQUESTS_A_SEED; i++) {
        if (mc_rng_below(rng, 12) == 0) {
            something_else(&r);
        } else {
            ask(&r);
        }
        if (i % FSCK_EVERY == 0) {
            fixture_check(f);
        }
    }
    tick_for_ms(f, 1000);
    fixture_check(f);
    for (unsigned i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        good[i] += r.good[i];
    }
    mc_arena_free(&r.shaper.arena);
}

static void test_books_balance_whatever_is_asked(void **state) {
    const char *first = getenv("MC_FRAMES_SEED"), *count = getenv("MC_FRAMES_SEEDS");
    uint64_t from = first != NULL ? strtoull(first, NULL, 0) : 1,
             seeds = count != NULL ? strtoull(count, NULL, 0) : 8;
    unsigned long long good[MC_MASTER_RPC_COUNT] = {0};
    for (uint64_t seed = from; seed < from + seeds; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        one_seed(state, seed, good);
    }
    static const enum mc_master_rpc must[] = {
        /* else nothing was tried */
        MC_RPC_PutStart,      MC_RPC_PutEnd,     MC_RPC_UpsertStart,   MC_RPC_MountSegment,
        MC_RPC_Remove,        MC_RPC_GetObjects, MC_RPC_OnDisk,        MC_RPC_TakeOffloads,
        MC_RPC_SyncDisk,      MC_RPC_Inspect,    MC_RPC_BatchPutStart, MC_RPC_ListKeys,
        MC_RPC_UnmountSegment};
    for (unsigned i = 0; i < MC_ARRAY_LEN(must) && first == NULL; i++) {
        if (good[must[i]] == 0) {
            fail_msg("%s was never answered well", mc_master_rpc_table()[must[i]].name);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_books_balance_whatever_is_asked, fixture_setup,
                                        fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
