/*
 * Well-formed requests with contents that no client of ours would send, to a live master: odd keys,
 * sizes, replica counts, batches of none and of a hundred thousand, regular expressions that never
 * end, and segments that are mounted twice, over each other, empty or past the end of memory,
 * thousands of times. Each gets upstream's error or is served; the books balance afterwards; a slow
 * request delays only the connection that asked.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "support/live.h"

#define SEGMENT_BYTES (1ull << 30)
#define BASE          0x7f0000000000ull

static const char *const SHORT_LEASES[] = {"--default_kv_lease_ttl=500", NULL};

struct asker {
    struct mc_rpc_client *client;
    struct mc_arena arena;
    struct mc_buf reply;
    struct mc_uuid id;
};

static struct asker asker_make(const struct live *master, uint64_t id) {
    return (struct asker){.client = live_client(master), .id = {id, 1}};
}
static void asker_free(struct asker *a) {
    mc_rpc_client_destroy(a->client);
    mc_buf_free(&a->reply);
    mc_arena_free(&a->arena);
}

#define CALL(a, rpc, args, ret)                                                                    \
    assert_ok(live_call((a)->client, (rpc), (args), (ret), &(a)->arena, &(a)->reply))

/* ---- calls ---- */

static int32_t mount(struct asker *a, uint64_t segment_id, uint64_t base, uint64_t size,
                     const char *name, const char *endpoint) {
    struct mw_a_mount args = {.segment = {.id = {segment_id, 2},
                                          .name = mc_str_from(name),
                                          .base = base,
                                          .size = size,
                                          .te_endpoint = mc_str_from(endpoint),
                                          .protocol = MC_STR("tcp")},
                              .client = a->id};
    struct mw_e_void ret;
    CALL(a, MC_RPC_MountSegment, &args, &ret);
    return ret.error;
}
static int32_t unmount(struct asker *a, uint64_t segment_id) {
    struct mw_a_unmount args = {.segment = {segment_id, 2}, .client = a->id};
    struct mw_e_void ret;
    CALL(a, MC_RPC_UnmountSegment, &args, &ret);
    return ret.error;
}
static int32_t put_start(struct asker *a, struct mc_str key, uint64_t length, uint64_t replicas,
                         size_t *got) {
    struct mw_a_put_start args = {
        .client = a->id, .key = key, .length = length, .config = {.replica_num = replicas}};
    struct mw_e_vec ret;
    CALL(a, MC_RPC_PutStart, &args, &ret);
    if (got != NULL) {
        *got = ret.error == 0 ? ret.value.count : 0;
    }
    return ret.error;
}
static int32_t put_end(struct asker *a, struct mc_str key) {
    struct mw_a_put_end args = {.client = a->id, .meta = {.key = key}, .type = MC_REPLICA_MEMORY};
    struct mw_e_void ret;
    CALL(a, MC_RPC_PutEnd, &args, &ret);
    return ret.error;
}
static int32_t remove_key(struct asker *a, struct mc_str key) {
    struct mw_a_remove args = {.key = key, .force = true};
    struct mw_e_void ret;
    CALL(a, MC_RPC_Remove, &args, &ret);
    return ret.error;
}
static bool exists(struct asker *a, struct mc_str key) {
    struct mw_a_key args = {.key = key};
    struct mw_e_bool ret;
    CALL(a, MC_RPC_ExistKey, &args, &ret);
    assert_int_equal(ret.error, 0);
    return ret.value;
}
static void ping(struct asker *a) {
    struct mw_e_ping ret;
    CALL(a, MC_RPC_Ping, &a->id, &ret);
    assert_int_equal(ret.error, 0);
}

/* All removed: what was allocated is free again, so that one object can have the whole segment. */
static void all_space_is_back(struct asker *a) {
    struct mw_a_remove_all args = {.force = true};
    int64_t removed;
    CALL(a, MC_RPC_RemoveAll, &args, &removed);
    int32_t error = MC_NO_AVAILABLE_HANDLE;
    for (int i = 0; i < 2000 && error != 0; i++) {
        error = put_start(a, MC_STR("everything"), SEGMENT_BYTES, 1, NULL);
        usleep(error ? 5000 : 0);
    }
    assert_int_equal(error, 0);
    struct mw_a_put_revoke revoke = {
        .client = a->id, .key = MC_STR("everything"), .type = MC_REPLICA_MEMORY};
    struct mw_e_void ret;
    CALL(a, MC_RPC_PutRevoke, &revoke, &ret);
    assert_int_equal(ret.error, 0);
}

/* ---- keys and sizes ---- */

static void test_keys(void **state) {
    struct live master;
    live_master(&master, SHORT_LEASES, 0);
    struct asker a = asker_make(&master, 1);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "node", "127.0.0.1:1"), 0);
    static const size_t lengths[] = {1, 255, 256, 4096, 65535, 65536};
    for (size_t i = 0; i < MC_ARRAY_LEN(lengths); i++) {
        char *bytes = mc_alloc(lengths[i]);
        mc_test_fill(bytes, lengths[i], i); /* NUL and every other byte */
        bytes[lengths[i] / 2] = '\0';
        struct mc_str key = {bytes, lengths[i]}, shorter = {bytes, lengths[i] - 1};
        assert_int_equal(put_start(&a, key, 100, 1, NULL), 0);
        assert_int_equal(put_end(&a, key), 0);
        assert_true(exists(&a, key));
        if (shorter.len > 0) {
            assert_false(exists(&a, shorter));
        }
        assert_int_equal(remove_key(&a, key), 0);
        assert_false(exists(&a, key));
        free(bytes);
    }
    char *huge = mc_zalloc(1 << 20);
    static const size_t too_long[] = {65537, 1 << 20};
    for (size_t i = 0; i < MC_ARRAY_LEN(too_long); i++) {
        int32_t error = put_start(&a, (struct mc_str){huge, too_long[i]}, 100, 1, NULL);
        assert_true(error == MC_INVALID_PARAMS || error == MC_INVALID_KEY);
    }
    free(huge);
    assert_int_equal(put_start(&a, MC_STR(""), 100, 1, NULL), MC_INVALID_PARAMS);
    assert_int_equal(remove_key(&a, MC_STR("never there")), MC_OBJECT_NOT_FOUND);
    all_space_is_back(&a);
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

static void test_sizes_and_replica_counts(void **state) {
    struct live master;
    live_master(&master, SHORT_LEASES, 0);
    struct asker a = asker_make(&master, 1);
    /* No segment at all. */
    assert_int_equal(put_start(&a, MC_STR("k"), 100, 1, NULL), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "node", "127.0.0.1:1"), 0);
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 1,    UINT64_MAX - 4096,
                                     1ull << 63, SEGMENT_BYTES + 1, INT64_MAX,
                                     1ull << 48};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        assert_int_equal(put_start(&a, MC_STR("k"), sizes[i], 1, NULL), MC_NO_AVAILABLE_HANDLE);
        assert_int_equal(put_start(&a, MC_STR("k"), sizes[i], UINT64_MAX, NULL),
                         MC_NO_AVAILABLE_HANDLE);
    }
    assert_int_equal(put_start(&a, MC_STR("k"), 0, 1, NULL), MC_INVALID_PARAMS);
    assert_int_equal(put_start(&a, MC_STR("k"), 100, 0, NULL), MC_INVALID_PARAMS);
    assert_false(exists(&a, MC_STR("k")));
    /* As many as there can be. */
    static const uint64_t replicas[] = {2, 1ull << 32, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < MC_ARRAY_LEN(replicas); i++) {
        size_t got;
        assert_int_equal(put_start(&a, MC_STR("k"), 100, replicas[i], &got), 0);
        assert_int_equal(got, 1);
        assert_int_equal(put_end(&a, MC_STR("k")), 0);
        assert_int_equal(remove_key(&a, MC_STR("k")), 0);
    }
    all_space_is_back(&a);
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* ---- batches ---- */

/* The whole life of `count` keys, each step in one request. */
static void put_look_remove(struct asker *a, struct mc_str *keys, uint64_t *lengths,
                            struct mw_object_meta *metas, size_t count) {
    struct mc_vec all = {keys, count}, answers;
    struct mw_a_batch_put_start start = {
        .client = a->id, .keys = all, .lengths = {lengths, count}, .config = {.replica_num = 1}};
    CALL(a, MC_RPC_BatchPutStart, &start, &answers);
    assert_int_equal(answers.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(((struct mw_e_vec *)answers.items)[i].error, 0);
    }
    struct mw_a_batch_put_end end = {
        .client = a->id, .metas = {metas, count}, .type = MC_REPLICA_MEMORY};
    CALL(a, MC_RPC_BatchPutEnd, &end, &answers);
    assert_int_equal(answers.count, count);
    struct mw_a_keys look = {.keys = all};
    CALL(a, MC_RPC_BatchExistKey, &look, &answers);
    assert_int_equal(answers.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(((struct mw_e_bool *)answers.items)[i].value);
    }
    CALL(a, MC_RPC_BatchGetReplicaList, &look, &answers);
    assert_int_equal(answers.count, count);
    struct mw_a_batch_remove gone = {.keys = all, .force = true};
    CALL(a, MC_RPC_BatchRemove, &gone, &answers);
    assert_int_equal(answers.count, count);
    mc_arena_reset(&a->arena);
}

static void test_batches_of_none_and_of_a_hundred_thousand(void **state) {
    enum { MANY = 100000 };
    struct live master;
    live_master(&master, NULL, 0);
    struct asker a = asker_make(&master, 1);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "node", "127.0.0.1:1"), 0);
    struct mc_str *keys = mc_zalloc(MANY * sizeof(*keys));
    uint64_t *lengths = mc_zalloc(MANY * sizeof(*lengths));
    char(*text)[16] = mc_zalloc(MANY * sizeof(*text));
    struct mw_object_meta *metas = mc_zalloc(MANY * sizeof(*metas));
    for (int i = 0; i < MANY; i++) {
        snprintf(text[i], sizeof(text[i]), "key/%d", i);
        keys[i] = mc_str_from(text[i]);
        lengths[i] = 1000;
        metas[i].key = keys[i];
    }
    for (size_t count = 0; count <= MANY; count += MANY) {
        put_look_remove(&a, keys, lengths, metas, count);
    }
    /* one length too few, and far too many */
    static const size_t wrong[] = {0, 1, 3, MANY};
    for (size_t i = 0; i < MC_ARRAY_LEN(wrong); i++) {
        struct mw_a_batch_put_start start = {.client = a.id,
                                             .keys = {keys, 2},
                                             .lengths = {lengths, wrong[i]},
                                             .config = {.replica_num = 1}};
        struct mc_vec answers;
        CALL(&a, MC_RPC_BatchPutStart, &start, &answers);
        assert_int_equal(answers.count, 2);
        for (size_t k = 0; k < 2; k++) {
            assert_int_equal(((struct mw_e_vec *)answers.items)[k].error, MC_INVALID_PARAMS);
        }
    }
    /* the same key a hundred thousand times: one put begins */
    for (int i = 0; i < MANY; i++) {
        keys[i] = keys[0];
    }
    struct mw_a_batch_put_start same = {.client = a.id,
                                        .keys = {keys, MANY},
                                        .lengths = {lengths, MANY},
                                        .config = {.replica_num = 1}};
    struct mc_vec answers;
    CALL(&a, MC_RPC_BatchPutStart, &same, &answers);
    assert_int_equal(((struct mw_e_vec *)answers.items)[0].error, 0);
    for (int i = 1; i < MANY; i++) {
        assert_int_equal(((struct mw_e_vec *)answers.items)[i].error, MC_OBJECT_ALREADY_EXISTS);
    }
    free(keys);
    free(lengths);
    free(text);
    free(metas);
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* ---- regular expressions ---- */

struct pinger {
    struct asker asker;
    pthread_t thread;
    _Atomic bool stop;
    _Atomic uint64_t count, worst_ns;
};

static void *ping_on(void *arg) {
    struct pinger *p = arg;
    while (!atomic_load(&p->stop)) {
        uint64_t begin = mc_now_ns(mc_clock_system());
        ping(&p->asker);
        uint64_t took = mc_now_ns(mc_clock_system()) - begin;
        if (took > atomic_load(&p->worst_ns)) {
            atomic_store(&p->worst_ns, took);
        }
        atomic_fetch_add(&p->count, 1);
        usleep(500);
    }
    return NULL;
}

static int32_t search(struct asker *a, const char *pattern, size_t *count) {
    struct mw_a_key args = {.key = mc_str_from(pattern)};
    struct mw_e_vec ret;
    CALL(a, MC_RPC_GetReplicaListByRegex, &args, &ret);
    *count = ret.error == 0 ? ret.value.count : 0;
    return ret.error;
}

static void test_bad_regular_expressions(void **state) {
    struct live master;
    live_master(&master, NULL, 0);
    struct asker a = asker_make(&master, 1);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "node", "127.0.0.1:1"), 0);
    assert_int_equal(put_start(&a,
                               MC_STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"),
                               100, 1, NULL),
                     0);
    assert_int_equal(
        put_end(&a, MC_STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab")), 0);
    static const char *const bad[] = {"(",
                                      "[",
                                      "*",
                                      "a{2,1}",
                                      "(?<n",
                                      "\\",
                                      "(?C1)(",
                                      "[[:nope:]]",
                                      "(a)\\2(",
                                      "^(a+)+$",
                                      "(a|aa)+$",
                                      "(?R)",
                                      "((((((((((a*)*)*)*)*)*)*)*)*)*)*c"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        size_t count;
        int32_t error = search(&a, bad[i], &count);
        if (error != MC_INVALID_PARAMS && !(error == 0 && count == 0)) {
            fail_msg("%s: error %d, %zu keys", bad[i], error, count);
        }
        struct mw_a_remove args = {.key = mc_str_from(bad[i]), .force = true};
        struct mw_e_i64 removed;
        CALL(&a, MC_RPC_RemoveByRegex, &args, &removed);
        assert_true(removed.error == MC_INVALID_PARAMS || removed.value == 0);
    }
    char *deep = mc_zalloc(60001);
    memset(deep, '(', 60000);
    size_t count;
    assert_int_equal(search(&a, deep, &count), MC_INVALID_PARAMS);
    free(deep);
    assert_int_equal(search(&a, "", &count), 0);
    assert_int_equal(count, 1);
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* A pattern that is slow for every one of many keys, but for none too slow: whoever else talks to
 * the master goes on meanwhile. A master with one RPC thread makes a blocked thread show. */
static void test_a_slow_search_delays_only_who_asked(void **state) {
    enum { KEYS = 800, LENGTH = 17 };
    static const char *const one_thread[] = {"--rpc_thread_num=1", NULL};
    struct live master;
    live_master(&master, one_thread, 0);
    struct asker a = asker_make(&master, 1);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "node", "127.0.0.1:1"), 0);
    char key[64];
    for (int i = 0; i < KEYS; i++) {
        memset(key, 'a', LENGTH);
        snprintf(key + LENGTH, sizeof(key) - LENGTH, "b%d", i);
        assert_int_equal(put_start(&a, mc_str_from(key), 100, 1, NULL), 0);
        assert_int_equal(put_end(&a, mc_str_from(key)), 0);
    }
    struct pinger pinger = {.asker = asker_make(&master, 7)};
    assert_int_equal(pthread_create(&pinger.thread, NULL, ping_on, &pinger), 0);
    usleep(50000);
    uint64_t before = atomic_load(&pinger.count);
    uint64_t begin = mc_now_ns(mc_clock_system());
    size_t count;
    int32_t error = search(&a, "^(a+)+$", &count);
    uint64_t took = mc_now_ns(mc_clock_system()) - begin;
    uint64_t pings = atomic_load(&pinger.count) - before;
    atomic_store(&pinger.stop, true);
    pthread_join(pinger.thread, NULL);
    print_message("search: error %d, %llu ms; meanwhile %llu pings, the worst took %llu ms\n",
                  error, (unsigned long long)(took / MC_MS), (unsigned long long)pings,
                  (unsigned long long)(atomic_load(&pinger.worst_ns) / MC_MS));
    assert_int_equal(count, 0);
    assert_true(pings >= took / (50 * MC_MS)); /* stalled: one */
    asker_free(&pinger.asker);
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* ---- segments ---- */

static void test_odd_mounts(void **state) {
    struct live master;
    live_master(&master, NULL, 0);
    struct asker a = asker_make(&master, 1), b = asker_make(&master, 2);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "one", "127.0.0.1:1"), 0);
    /* Again: it is mounted. */
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "one", "127.0.0.1:1"), 0);
    /* Another's id. */
    assert_int_not_equal(mount(&b, 1, BASE, SEGMENT_BYTES, "one", "127.0.0.1:2"), 0);
    /* Over itself. */
    assert_int_not_equal(mount(&a, 2, BASE + 4096, SEGMENT_BYTES, "two", "127.0.0.1:1"), 0);
    assert_int_equal(mount(&a, 3, BASE, 0, "none", "127.0.0.1:3"), MC_INVALID_PARAMS);
    assert_int_equal(mount(&a, 3, 0, 4096, "null", "127.0.0.1:3"), MC_INVALID_PARAMS);
    assert_int_equal(mount(&a, 3, UINT64_MAX - 4095, 8192, "wraps", "127.0.0.1:3"),
                     MC_INVALID_PARAMS);
    assert_int_equal(mount(&a, 3, 4096, UINT64_MAX, "wraps", "127.0.0.1:3"), MC_INVALID_PARAMS);
    assert_int_equal(mount(&a, 3, BASE, 4096, "", "127.0.0.1:3"), MC_INVALID_PARAMS);
    /* Unknown: as upstream, it is not mounted, which was the wish. */
    assert_int_equal(unmount(&a, 77), 0);
    assert_int_not_equal(unmount(&b, 1), 0); /* another's */
    /* The first one serves as before. */
    assert_int_equal(put_start(&a, MC_STR("k"), 100, 1, NULL), 0);
    assert_int_equal(put_end(&a, MC_STR("k")), 0);
    assert_true(exists(&b, MC_STR("k")));
    assert_int_equal(unmount(&a, 1), 0);
    assert_false(exists(&b, MC_STR("k")));
    assert_int_equal(put_start(&a, MC_STR("k"), 100, 1, NULL), MC_NO_AVAILABLE_HANDLE);
    asker_free(&a);
    asker_free(&b);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* Thousands of mounts and unmounts, with an object in each: no memory, metric or segment stays
 * behind. */
static void test_a_storm_of_mounts_leaves_nothing(void **state) {
    enum { ROUNDS = 2000 };
    static const char *const flags[] = {"--default_kv_lease_ttl=10", NULL};
    struct live master;
    live_master(&master, flags, 0);
    struct asker a = asker_make(&master, 1);
    uint64_t rss = 0;
    for (int phase = 0; phase < 3; phase++) {
        for (uint64_t i = 0; i < ROUNDS; i++) {
            char name[32];
            snprintf(name, sizeof(name), "127.0.0.1:%llu", (unsigned long long)(1000 + i));
            assert_int_equal(mount(&a, 1 + i, BASE, SEGMENT_BYTES, name, name), 0);
            if (i % 8 == 0) {
                assert_int_equal(put_start(&a, mc_str_from(name), 100, 1, NULL), 0);
                assert_int_equal(put_end(&a, mc_str_from(name)), 0);
            }
            assert_int_equal(unmount(&a, 1 + i), 0);
            mc_arena_reset(&a.arena);
        }
        usleep(500000); /* the sweep, on a machine that has time for it */
        if (phase == 1) {
            rss = live_rss_bytes(&master);
        }
    }
#ifndef MC_SANITIZE
    uint64_t most = rss + (rss / 10) + (1u << 20);
    for (int patience = 300; live_rss_bytes(&master) > most && patience > 0; patience--) {
        usleep(100000); /* and on one that has not */
    }
#endif
    print_message("RSS %llu KiB after two storms, %llu KiB after three\n",
                  (unsigned long long)(rss >> 10),
                  (unsigned long long)(live_rss_bytes(&master) >> 10));
#ifndef MC_SANITIZE
    assert_true(live_rss_bytes(&master) <= most);
#endif
    assert_int_equal(put_start(&a, MC_STR("k"), 100, 1, NULL), MC_NO_AVAILABLE_HANDLE);
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* A client that keeps asking whether objects exist, as schedulers do, must not keep others from
 * writing: what it only asked about is evicted when room is needed. */
static void test_probes_do_not_starve_puts(void **state) {
    enum { OBJECTS = 256 };
    static const char *const flags[] = {"--default_kv_lease_ttl=500", NULL};
    struct live master;
    live_master(&master, flags, 0);
    struct asker a = asker_make(&master, 1);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "node", "127.0.0.1:1"), 0);
    char key[32];
    unsigned puts = 0, refused = 0, longest = 0, in_a_row = 0;
    uint64_t refused_since = 0, longest_ms = 0;
    uint64_t end = mc_now_ms(mc_clock_system()) + 60000;
    struct mc_str names[4 * OBJECTS];
    static char text[4 * OBJECTS][24];
    for (unsigned i = 0; i < MC_ARRAY_LEN(names); i++) {
        snprintf(text[i], sizeof(text[i]), "k%u", i);
        names[i] = mc_str_from(text[i]);
    }
    while (puts <= 2 * OBJECTS && mc_now_ms(mc_clock_system()) < end) {
        unsigned first =
            puts > 2 * OBJECTS ? puts - 2 * OBJECTS : 0; /* probe everything that can be there */
        for (unsigned i = first; i < puts + 4; i += 256) {
            unsigned count = puts + 4 - i < 256 ? puts + 4 - i : 256;
            static struct mc_str probe[256];
            static char probe_text[256][24];
            for (unsigned k = 0; k < count; k++) {
                snprintf(probe_text[k], sizeof(probe_text[k]), "k%u", i + k);
                probe[k] = mc_str_from(probe_text[k]);
            }
            struct mw_a_keys look = {.keys = {probe, count}};
            struct mc_vec answers;
            CALL(&a, MC_RPC_BatchExistKey, &look, &answers);
        }
        mc_arena_reset(&a.arena);
        snprintf(key, sizeof(key), "k%u", puts);
        int32_t error = put_start(&a, mc_str_from(key), SEGMENT_BYTES / OBJECTS, 1, NULL);
        uint64_t now = mc_now_ms(mc_clock_system());
        if (error == 0) {
            assert_int_equal(put_end(&a, mc_str_from(key)), 0);
            puts++;
            in_a_row = 0;
        } else {
            assert_int_equal(error, MC_NO_AVAILABLE_HANDLE);
            refused++;
            refused_since = in_a_row++ == 0 ? now : refused_since;
            longest = in_a_row > longest ? in_a_row : longest;
            longest_ms = mc_max_u64(longest_ms, now - refused_since);
        }
        usleep(2000);
    }
    print_message("%u puts into room for %u, %u refused, at most %llu ms in a row\n", puts, OBJECTS,
                  refused, (unsigned long long)longest_ms);
    assert_true(puts > 2 * OBJECTS);
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

/* Who holds a lease may be reading: by force the key goes at once,
 * the bytes only after the lease. */
static void test_forced_removal_keeps_the_bytes_for_readers(void **state) {
    /* Two do not fit, and one does not fill the room so far that it is evicted before the lease. */
    enum { MOST = SEGMENT_BYTES / 4 * 3 };
    static const char *const flags[] = {"--default_kv_lease_ttl=700", NULL};
    static const enum mc_master_rpc ways[] = {MC_RPC_Remove, MC_RPC_RemoveByRegex, MC_RPC_RemoveAll,
                                              MC_RPC_BatchRemove};
    struct live master;
    live_master(&master, flags, 0);
    struct asker a = asker_make(&master, 1);
    assert_int_equal(mount(&a, 1, BASE, SEGMENT_BYTES, "node", "127.0.0.1:1"), 0);
    struct mc_str key = MC_STR("whole");
    for (size_t i = 0; i < MC_ARRAY_LEN(ways); i++) {
        int32_t error = MC_NO_AVAILABLE_HANDLE;
        uint64_t begin = mc_now_ms(mc_clock_system());
        while (error == MC_NO_AVAILABLE_HANDLE && mc_now_ms(mc_clock_system()) < begin + 60000) {
            error = put_start(&a, key, MOST, 1, NULL);
            usleep(error ? 5000 : 0);
        }
        assert_int_equal(error, 0);
        assert_int_equal(put_end(&a, key), 0);
        struct mw_a_key look = {.key = key};
        struct mw_e_list list;
        uint64_t asked = mc_now_ms(mc_clock_system());
        CALL(&a, MC_RPC_GetReplicaList, &look, &list);
        assert_int_equal(list.error, 0);
        uint64_t lease_end = asked + list.value.lease_ttl_ms;
        struct mw_a_remove one = {.key = key, .force = true};
        struct mw_a_remove_all all = {.force = true};
        struct mw_a_batch_remove many = {.keys = {&key, 1}, .force = true};
        union {
            struct mw_e_void one;
            struct mw_e_i64 regex;
            int64_t all;
            struct mc_vec many;
        } ret;
        CALL(&a, ways[i],
             ways[i] == MC_RPC_RemoveAll     ? (const void *)&all
             : ways[i] == MC_RPC_BatchRemove ? (const void *)&many
                                             : (const void *)&one,
             &ret);
        assert_false(exists(&a, key));
        error = put_start(&a, MC_STR("next"), MOST, 1, NULL);
        if (error == 0 && mc_now_ms(mc_clock_system()) < lease_end) {
            fail_msg("way %zu: a reader's bytes were given away under its lease", i);
        }
    }
    asker_free(&a);
    assert_int_equal(live_end(&master, SIGTERM), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_sizes_and_replica_counts),
        cmocka_unit_test(test_batches_of_none_and_of_a_hundred_thousand),
        cmocka_unit_test(test_bad_regular_expressions),
        cmocka_unit_test(test_a_slow_search_delays_only_who_asked),
        cmocka_unit_test(test_odd_mounts),
        cmocka_unit_test(test_a_storm_of_mounts_leaves_nothing),
        cmocka_unit_test(test_probes_do_not_starve_puts),
        cmocka_unit_test(test_forced_removal_keeps_the_bytes_for_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
