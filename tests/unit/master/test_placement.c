/* Replicas go where they were asked to go, never twice to one segment name, and spread by the
 * strategy. */
#include <stdio.h>

#include "support/master_fixture.h"

static const char *place(struct fixture *f, const char *key, struct mw_replicate_config config,
                         size_t *count) {
    struct mc_vec out;
    assert_int_equal(put_start_with(f, client_a, "default", key, 1000, config, &out), MC_OK);
    *count = out.count;
    assert_int_equal(put_end(f, key), MC_OK);
    return ((struct mw_replica *)out.items)->memory.endpoint.ptr;
}

static void test_replicas_are_on_distinct_segments(void **state) {
    struct fixture *f = *state;
    size_t count;
    static const char *const names[] = {"n:1", "n:2", "n:3", "n:3"}; /* one name twice */
    for (size_t i = 0; i < MC_ARRAY_LEN(names); i++) {
        struct mw_segment s = segment_of(f, names[i], FIXTURE_SEGMENT_BYTES);
        assert_int_equal(mount_as(f, client_a, s), MC_OK);
    }
    for (int i = 0; i < 200; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        (void)place(f, key, replicas(1 + (uint64_t)i % 40), &count);
        assert_int_equal(count, i % 40 < 2 ? i % 40 + 1
                                           : 3); /* as many as there are; fsck looks at the names */
    }
    assert_true(metric(f, "master_put_start_partial_allocations_total") > 0);
}

static void test_preferred_segments_come_first_in_their_order(void **state) {
    struct fixture *f = *state;
    size_t count;
    static const char *const names[] = {"n:1", "n:2", "n:3", "n:4"};
    for (size_t i = 0; i < MC_ARRAY_LEN(names); i++) {
        mount(f, names[i], i == 2 ? 4000 : FIXTURE_SEGMENT_BYTES);
    }
    struct mw_replicate_config c = replicas(1);
    c.preferred_segment = MC_STR("n:4");
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "a%d", i);
        assert_string_equal(place(f, key, c, &count), "n:4");
    }
    c.preferred_segments = strs(f, 2, (const char *[]){"n:3", "n:1"});
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "b%d", i);
        assert_string_equal(place(f, key, c, &count), i < 4 ? "n:3" : "n:1"); /* n:3 holds four */
    }
    c.preferred_segments = strs(f, 1, (const char *[]){"nowhere"});
    c.preferred_segment = MC_STR("neither");
    (void)place(f, "c", c, &count); /* what cannot be had is not insisted on */
    assert_int_equal(count, 1);
}

static void test_avoided_segments_get_nothing(void **state) {
    struct fixture *f = *state;
    size_t count;
    static const char *const names[] = {"n:1", "n:2", "n:3"};
    for (size_t i = 0; i < MC_ARRAY_LEN(names); i++) {
        mount(f, names[i], FIXTURE_SEGMENT_BYTES);
    }
    struct mw_replicate_config c = replicas(3);
    c.preferred_segments = strs(f, 3, (const char *[]){"n:1", "!n:1", "!n:2"});
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "a%d", i);
        assert_string_equal(place(f, key, c, &count), "n:3");
        assert_int_equal(count, 1);
    }
    /* None is left: no room, and nothing is evicted for it. */
    struct mc_vec out;
    c.preferred_segments = strs(f, 3, (const char *[]){"!n:1", "!n:2", "!n:3"});
    assert_int_equal(put_start_with(f, client_a, "default", "b", 1000, c, &out),
                     MC_NO_AVAILABLE_HANDLE);
    advance_ms(f, 60000);
    assert_int_equal(mount_as(f, client_a, segment_of(f, "n:4", FIXTURE_SEGMENT_BYTES)), MC_OK);
    tick(f);
    assert_int_equal(metric(f, "master_attempted_evictions_total"), 0);
    c.preferred_segments = strs(f, 2, (const char *[]){"!", "!elsewhere"}); /* nobody's name */
    (void)place(f, "c", c, &count);
    assert_int_equal(count, 3);
}

static unsigned spread(struct fixture *f, unsigned puts, uint64_t *least, uint64_t *most) {
    for (unsigned i = 0; i < puts; i++) {
        char key[16];
        size_t count;
        snprintf(key, sizeof(key), "k%u", i);
        (void)place(f, key, replicas(1), &count);
    }
    size_t count;
    const struct mc_master_segment_info *all = mc_master_segments(f->m, &f->arena, &count);
    *least = UINT64_MAX;
    *most = 0;
    for (size_t i = 0; i < count; i++) {
        *least = mc_min_u64(*least, all[i].used_bytes / 1000);
        *most = mc_max_u64(*most, all[i].used_bytes / 1000);
    }
    return (unsigned)count;
}

static void mount_ten(struct fixture *f) {
    char name[16];
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "n:%d", i);
        mount(f, mc_arena_str(&f->arena, str(name)).ptr, FIXTURE_SEGMENT_BYTES);
    }
}

static void test_random_uses_every_segment(void **state) {
    struct fixture *f = *state;
    uint64_t least, most;
    mount_ten(f);
    assert_int_equal(spread(f, 1000, &least, &most), 10);
    assert_true(least > 60 && most < 140);
}

static void test_free_ratio_first_evens_out(void **state) {
    struct fixture *f = *state;
    uint64_t least, most;
    f->config.allocation_strategy = "free_ratio_first";
    fixture_restart(f);
    mount_ten(f);
    spread(f, 1000, &least, &most);
    assert_true(most - least <= 6);
    f->config.allocation_strategy = "best";
    assert_null(mc_master_create(&f->config, &f->clock, NULL));
}

/* Where "key" of a writer on `host` went; the segment's name is its first letter and a number. */
static struct mc_str host_of(struct fixture *f, const char *key, const char *host, bool same_node) {
    struct mw_replicate_config c = replicas(1);
    struct mw_replica_list list = {0};
    c.host_id = str(host);
    c.prefer_alloc_in_same_node = same_node;
    if (put_with(f, key, 100, c) != MC_OK) {
        return (struct mc_str){"", 0};
    }
    assert_ok(mc_master_peek(f->m, str("default"), str(key), &f->arena, &list));
    return ((const struct mw_replica *)list.replicas.items)->memory.endpoint;
}

static void mount_hosts(struct fixture *f) {
    static const char *const hosts[] = {"x", "y", "z"};
    for (unsigned h = 0; h < 3; h++) {
        for (unsigned i = 0; i < 2; i++) {
            char name[8];
            snprintf(name, sizeof(name), "%s%u", hosts[h], i);
            struct mw_segment s = segment_of(f, name, 1000);
            s.host_id = str(hosts[h]);
            assert_ok(mount_as(f, client_a, s));
        }
    }
}

static void test_local_first_fills_the_writers_host_then_the_others(void **state) {
    struct fixture *f = *state;
    f->config.allocation_strategy = "local_first";
    f->config.eviction_high_watermark_ratio = 1;
    fixture_restart(f);
    mount_hosts(f);
    unsigned first = 0, second = 0, far[2] = {0};
    for (unsigned i = 0; i < 60; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        struct mc_str at = host_of(f, key, "y", false);
        assert_int_equal(at.len, 2);
        if (i < 20) { /* what fits there */
            assert_int_equal(at.ptr[0], 'y');
            first += at.ptr[1] == '0';
            second += at.ptr[1] == '1';
        } else {
            assert_int_not_equal(at.ptr[0], 'y');
            far[at.ptr[0] == 'z']++;
        }
    }
    assert_true(first == 10 && second == 10 && far[0] == 20 && far[1] == 20);
    assert_int_equal(host_of(f, "full", "y", false).len, 0);
}

static void test_the_same_node_is_preferred_by_whoever_asks(void **state) {
    struct fixture *f = *state;
    mount_hosts(f); /* the strategy is "random" */
    struct mw_replicate_config c = replicas(1);
    for (unsigned i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(host_of(f, key, "z", true).ptr[0], 'z');
    }
    assert_int_not_equal(host_of(f, "next", "z", true).ptr[0], 'z'); /* it is full */
    c.host_id = str("z");
    c.preferred_segment = str("x1"); /* a name says more than a host */
    c.prefer_alloc_in_same_node = true;
    struct mw_replica_list list = {0};
    assert_ok(put_with(f, "named", 100, c));
    assert_ok(mc_master_peek(f->m, str("default"), str("named"), &f->arena, &list));
    assert_true(
        mc_str_eq(((const struct mw_replica *)list.replicas.items)->memory.endpoint, str("x1")));
    assert_true(host_of(f, "nowhere", "unknown", true).len > 0);
    assert_true(host_of(f, "nobody", "", true).len > 0);
}

static void test_the_last_segment_with_room_is_found(void **state) {
    struct fixture *f = *state;
    char name[16];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "n:%d", i);
        mount(f, name, i == 217 ? 5000 : 500);
    }
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "k%d", i);
        assert_int_equal(put(f, name, 1000), MC_OK);
    }
    assert_int_equal(put(f, "k5", 1000), MC_NO_AVAILABLE_HANDLE);
}

static void report_ssd(struct fixture *f, struct mc_uuid client, int64_t bytes) {
    struct mw_a_client_flag mount_args = {client, true};
    struct mw_a_ssd_capacity capacity = {client, bytes};
    struct mw_e_void r;
    call(f, MC_RPC_MountLocalDiskSegment, &mount_args, &r);
    assert_int_equal(r.error, MC_OK);
    call(f, MC_RPC_ReportSsdCapacity, &capacity, &r);
    assert_int_equal(r.error, MC_OK);
}

static void offloaded(struct fixture *f, struct mc_uuid client, const char *key, int64_t size) {
    struct mw_disk_task task = {str("default"), str(key), size};
    struct mw_storage_object object = {
        .bucket_id = 1, .key_size = 9, .data_size = size, .endpoint = str("10.0.0.1:99")};
    struct mw_a_offload_done args = {client, {&task, 1}, {&object, 1}};
    struct mw_e_void r;
    call(f, MC_RPC_NotifyOffloadSuccess, &args, &r);
    assert_int_equal(r.error, MC_OK);
}

static void test_the_emptiest_ssd_comes_first(void **state) {
    struct fixture *f = *state;
    size_t count;
    char key[16];
    f->config.allocation_strategy = "ssd_free_ratio_first";
    f->config.enable_offload = true;
    fixture_restart(f);
    mount_for(f, client_a, "a:1", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "b:1", FIXTURE_SEGMENT_BYTES);
    mount_for(f, (struct mc_uuid){3, 3}, "none:1", FIXTURE_SEGMENT_BYTES);
    report_ssd(f, client_a, 1000000);
    report_ssd(f, client_b, 100000);
    offloaded(f, client_b, "old", 20000); /* found there: a fifth of it is taken */
    tick_for_ms(f, 1100);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        assert_string_equal(place(f, key, replicas(1), &count), "a:1");
    }
    offloaded(f, client_a, "older", 300000);
    tick_for_ms(f, 1100);
    for (int i = 20; i < 40; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        assert_string_equal(place(f, key, replicas(1), &count), "b:1");
    }
    assert_int_equal(remove_key(f, "older", true), MC_OK);
    tick_for_ms(f, 1100);
    assert_string_equal(place(f, "last", replicas(1), &count), "a:1");
    (void)place(f, "all", replicas(3), &count);
    assert_int_equal(count, 3); /* a node without an SSD is better than none */
}

static void test_cxl_memory_only(void **state) {
    struct fixture *f = *state;
    size_t count;
    char key[16];
    f->config.allocation_strategy = "cxl";
    fixture_restart(f);
    mount(f, "tcp:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 1000), MC_NO_AVAILABLE_HANDLE);
    struct mw_segment s = segment_of(f, "cxl:1", FIXTURE_SEGMENT_BYTES);
    s.protocol = MC_STR("cxl");
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        assert_string_equal(place(f, key, replicas(2), &count), "cxl:1");
        assert_int_equal(count, 1);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_replicas_are_on_distinct_segments),
        TEST(test_preferred_segments_come_first_in_their_order),
        TEST(test_avoided_segments_get_nothing),
        TEST(test_random_uses_every_segment),
        TEST(test_free_ratio_first_evens_out),
        TEST(test_local_first_fills_the_writers_host_then_the_others),
        TEST(test_the_same_node_is_preferred_by_whoever_asks),
        TEST(test_the_last_segment_with_room_is_found),
        TEST(test_the_emptiest_ssd_comes_first),
        TEST(test_cxl_memory_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
