/* Threads put, read, remove, upsert, evict, mount and unmount at once; the books balance all the
 * time. MC_TEST_THREADS */
#include "support/master_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#define WORKERS  4
#define KEYS     400
#define SEGMENTS 4

struct hammer {
    struct fixture *f;
    _Atomic bool stop;
    unsigned steps;
};
struct worker {
    struct hammer *hammer;
    uint64_t seed;
    uint64_t puts, gets, removed;
};

/* Every worker has its own arena: the fixture's helpers use one. */
struct session {
    struct mc_master *m;
    struct mc_arena arena;
    struct mc_rng rng;
    struct mc_uuid client;
    struct worker *worker;
};

static struct mw_replicate_config random_config(struct session *s) {
    struct mw_replicate_config c = {.replica_num = 1 + mc_rng_below(&s->rng, 3)};
    c.soft_pin_action = mc_rng_below(&s->rng, 8) == 0 ? MC_SOFT_PIN_ENABLE : MC_SOFT_PIN_PRESERVE;
    c.with_hard_pin = mc_rng_below(&s->rng, 200) == 0;
    if (mc_rng_below(&s->rng, 3) == 0) {
        struct mc_str *group = mc_arena_alloc(&s->arena, sizeof(*group));
        *group = mc_arena_printf(&s->arena, "g%d", (int)mc_rng_below(&s->rng, 10));
        c.group_ids = (struct mw_opt_strs){true, {group, 1}};
    }
    return c;
}

static void write_one(struct session *s, struct mc_str key, enum mc_master_rpc start) {
    struct mw_a_put_start args = {s->client, key, 100 + mc_rng_below(&s->rng, 5000),
                                  random_config(s), MC_STR("default")};
    struct mw_e_vec started;
    mc_master_handle(s->m, start, &args, &s->arena, &started);
    if (started.error) {
        return;
    }
    uint64_t how = mc_rng_below(&s->rng, 10);
    struct mw_e_void r;
    if (how == 0) {
        struct mw_a_put_revoke revoke = {s->client, key, MC_REPLICA_ALL, MC_STR("default")};
        mc_master_handle(s->m, MC_RPC_PutRevoke, &revoke, &s->arena, &r);
    } else if (how < 9) { /* one in ten is never ended */
        struct mw_a_put_end end = {s->client, {.key = key}, MC_REPLICA_ALL, MC_STR("default")};
        mc_master_handle(s->m, MC_RPC_PutEnd, &end, &s->arena, &r);
        s->worker->puts += r.error == 0;
    }
}

static void read_batch(struct session *s) {
    struct mc_str keys[16];
    for (size_t i = 0; i < MC_ARRAY_LEN(keys); i++) {
        keys[i] = mc_arena_printf(&s->arena, "k%d", (int)mc_rng_below(&s->rng, KEYS));
    }
    struct mw_a_keys args = {{keys, MC_ARRAY_LEN(keys)}, MC_STR("default")};
    struct mc_vec out;
    mc_master_handle(s->m, MC_RPC_BatchGetReplicaList, &args, &s->arena, &out);
    for (size_t i = 0; i < out.count; i++) {
        const struct mw_e_list *r = (const struct mw_e_list *)out.items + i;
        if (r->error == 0) {
            assert_true(r->value.replicas.count > 0);
            assert_true(((struct mw_replica *)r->value.replicas.items)->memory.endpoint.len == 3);
            s->worker->gets++;
        }
    }
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct session s = {.m = w->hammer->f->m, .client = {3, w->seed}, .worker = w};
    mc_rng_seed(&s.rng, w->seed);
    for (unsigned step = 0; step < w->hammer->steps; step++) {
        struct mc_str key = mc_arena_printf(&s.arena, "k%d", (int)mc_rng_below(&s.rng, KEYS));
        uint64_t what = mc_rng_below(&s.rng, 100);
        if (what < 40) {
            write_one(&s, key, MC_RPC_PutStart);
        } else if (what < 50) {
            write_one(&s, key, MC_RPC_UpsertStart);
        } else if (what < 80) {
            read_batch(&s);
        } else if (what < 99) {
            struct mw_a_remove args = {key, what < 85, MC_STR("default")};
            struct mw_e_void r;
            mc_master_handle(s.m, MC_RPC_Remove, &args, &s.arena, &r);
            w->removed += r.error == 0;
        } else {
            struct mw_a_remove args = {MC_STR("^k1[0-9]$"), false, MC_STR("default")};
            struct mw_e_i64 r;
            mc_master_handle(s.m, MC_RPC_RemoveByRegex, &args, &s.arena, &r);
        }
        mc_arena_reset(&s.arena);
    }
    mc_arena_free(&s.arena);
    return NULL;
}

static void mount_number(struct session *s, unsigned i, bool again) {
    static const char *const names[SEGMENTS] = {"n:0", "n:1", "n:2", "n:3"};
    struct mw_segment segment = {.id = {8, i},
                                 .name = str(names[i]),
                                 .base = (1ull << 30) * (i + 1),
                                 .size = 300000,
                                 .te_endpoint = str(names[i]),
                                 .protocol = MC_STR("tcp")};
    struct mw_e_void r;
    if (again) {
        struct mw_a_unmount args = {segment.id, s->client};
        mc_master_handle(s->m, MC_RPC_UnmountSegment, &args, &s->arena, &r);
        assert_int_equal(r.error, MC_OK);
    }
    struct mw_a_remount args = {{&segment, 1}, s->client};
    mc_master_handle(s->m, MC_RPC_ReMountSegment, &args, &s->arena, &r);
    assert_int_equal(r.error, MC_OK);
}

/* The janitor, an operator that mounts and unmounts, and somebody who scrapes the metrics. */
static void *janitor(void *arg) {
    struct hammer *h = arg;
    struct session s = {.m = h->f->m, .client = {3, 99}};
    mc_rng_seed(&s.rng, 99);
    for (unsigned n = 0; !atomic_load_explicit(&h->stop, memory_order_relaxed); n++) {
        advance_ms(h->f, 50);
        mc_master_tick(s.m);
        struct mw_e_ping pong;
        mc_master_handle(s.m, MC_RPC_Ping, &s.client, &s.arena, &pong);
        if (n % 20 == 19) {
            mount_number(&s, (unsigned)mc_rng_below(&s.rng, SEGMENTS), true);
        }
        if (n % 50 == 0) {
            struct mc_buf text = {0}, report = {0};
            mc_metrics_print(h->f->metrics, &text);
            if (mc_master_fsck(s.m, &report) != MC_OK) {
                fail_msg("fsck: %s", mc_buf_cstr(&report));
            }
            mc_buf_free(&text);
            mc_buf_free(&report);
        }
        mc_arena_reset(&s.arena);
    }
    mc_arena_free(&s.arena);
    return NULL;
}

static void test_everything_at_once(void **state) {
    struct fixture *f = *state;
    f->config.default_kv_lease_ttl_ms = 200;
    f->config.put_start_discard_timeout_ms = 300;
    f->config.put_start_release_timeout_ms = 600;
    fixture_restart(f);
#ifdef MC_SANITIZE
    struct hammer h = {.f = f, .steps = 4000};
#else
    struct hammer h = {.f = f, .steps = 40000};
#endif
    struct session s = {.m = f->m, .client = {3, 99}};
    for (unsigned i = 0; i < SEGMENTS; i++) {
        mount_number(&s, i, false);
    }
    mc_arena_free(&s.arena);
    struct worker workers[WORKERS] = {0};
    pthread_t ids[WORKERS], janitor_id;
    pthread_create(&janitor_id, NULL, janitor, &h);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.hammer = &h, .seed = i + 1};
        pthread_create(&ids[i], NULL, work, &workers[i]);
    }
    uint64_t puts = 0, gets = 0, removed = 0;
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(ids[i], NULL);
        puts += workers[i].puts;
        gets += workers[i].gets;
        removed += workers[i].removed;
    }
    atomic_store_explicit(&h.stop, true, memory_order_relaxed);
    pthread_join(janitor_id, NULL);
    assert_true(puts > 100 && gets > 100 && removed > 10); /* it did something */
    fixture_check(f);
    tick_for_ms(f, 2000); /* what nobody ended goes, too */
    (void)mc_master_remove_all(f->m, NULL, true);
    assert_int_equal(key_count(f), 0);
    tick_for_ms(f, 2000);
    assert_int_equal(used_bytes(f), 0);
}

static int setup_chain(void **state) {
    fixture_setup(state);
    struct fixture *f = *state;
    f->config.eviction_policy = "chain";
    fixture_restart(f);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_everything_at_once, fixture_setup, fixture_teardown),
        {"test_everything_at_once with the policy chain", test_everything_at_once, setup_chain,
         fixture_teardown, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
