/* Segments come, go and come back; objects are visible exactly as long as a segment that holds them
 * is. */
#include "support/master_fixture.h"

static int32_t status_by_name(struct fixture *f, const char *name) {
    struct mc_str args = str(name);
    struct mw_e_i32 r;
    call(f, MC_RPC_QuerySegmentStatus, &args, &r);
    return r.error ? r.error : r.value;
}

static int32_t status_by_id(struct fixture *f, struct mc_uuid id) {
    struct mw_e_i32 r;
    call(f, MC_RPC_QuerySegmentStatusById, &id, &r);
    return r.error ? r.error : r.value;
}

static int32_t unmount_gracefully(struct fixture *f, struct mc_uuid id, struct mc_uuid client,
                                  uint64_t grace_ms) {
    struct mw_a_graceful_unmount args = {id, client, grace_ms};
    struct mw_e_void r;
    call(f, MC_RPC_GracefulUnmountSegment, &args, &r);
    return r.error;
}

static void test_mounting_twice_is_mounting_once(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_true(peek(f, "k"));
    struct mc_master_totals t;
    mc_master_totals(f->m, &t);
    assert_int_equal(t.segments, 1);
    assert_int_equal(t.capacity_bytes, FIXTURE_SEGMENT_BYTES);
    assert_int_equal(t.clients, 1);
    assert_int_equal(mount_as(f, client_b, s), MC_INVALID_PARAMS); /* an id belongs to one client */
    assert_int_equal(metric(f, "segment_total_capacity_bytes{segment=\"node:1\"}"),
                     FIXTURE_SEGMENT_BYTES);
    assert_int_equal(metric(f, "segment_allocated_bytes{segment=\"node:1\"}"), 100);
}

static void test_ranges_that_cannot_be_are_refused(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    struct mw_segment bad = s;
    bad.base = 0;
    assert_int_equal(mount_as(f, client_a, bad), MC_INVALID_PARAMS);
    bad = s;
    bad.size = 0;
    assert_int_equal(mount_as(f, client_a, bad), MC_INVALID_PARAMS);
    bad.size = UINT64_MAX;
    assert_int_equal(mount_as(f, client_a, bad), MC_INVALID_PARAMS);
    bad = s;
    bad.base = UINT64_MAX - 10;
    assert_int_equal(mount_as(f, client_a, bad), MC_INVALID_PARAMS);
    bad = s;
    bad.name.len = 0;
    assert_int_equal(mount_as(f, client_a, bad), MC_INVALID_PARAMS);
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    bad = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES); /* one process, the same bytes twice */
    bad.base = s.base + 100;
    assert_int_equal(mount_as(f, client_a, bad), MC_INVALID_PARAMS);
}

static void test_unmounting_hides_replicas_at_once(void **state) {
    struct fixture *f = *state;
    struct mc_uuid id = mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(get(f, "k"), MC_OK);
    assert_int_equal(put_start(f, "half", 100), MC_OK);
    struct mw_a_unmount wrong = {id, client_b};
    struct mw_e_void r;
    call(f, MC_RPC_UnmountSegment, &wrong, &r);
    assert_int_equal(r.error, MC_INVALID_PARAMS);
    assert_int_equal(unmount(f, id), MC_OK);
    assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(put_end(f, "half"), MC_OBJECT_NOT_FOUND);
    assert_int_equal(put_start(f, "new", 100), MC_NO_AVAILABLE_HANDLE);
    assert_int_equal(unmount(f, id), MC_OK); /* unknown by now: nothing to do */
    tick(f);
    tick(f);
    assert_int_equal(key_count(f), 0);
    assert_int_equal(status_by_id(f, id), MC_SEGMENT_NOT_FOUND);
    assert_int_equal(status_by_name(f, "node:1"), MC_SEGMENT_NOT_FOUND);
}

static void test_the_sweep_drops_what_nobody_asks_for(void **state) {
    struct fixture *f = *state;
    struct mc_uuid first = mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    mount(f, "node:2", FIXTURE_SEGMENT_BYTES);
    char key[32];
    for (int i = 0; i < 5000; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        assert_int_equal(put_with(f, key, 100, replicas(i % 2 ? 2 : 1)), MC_OK);
    }
    uint64_t used = used_bytes(f);
    assert_int_equal(used, 750000);
    assert_int_equal(unmount(f, first), MC_OK);
    assert_int_equal(status_by_id(f, first), MC_SEGMENT_UNMOUNTING);
    fixture_check(f);
    for (int i = 0; i < 5; i++) {
        tick(f);
        fixture_check(f);
    }
    assert_int_equal(status_by_id(f, first), MC_SEGMENT_NOT_FOUND);
    for (int i = 1; i < 5000; i += 2) { /* the replica on the other segment still serves */
        snprintf(key, sizeof(key), "k%d", i);
        assert_true(peek(f, key));
    }
    assert_int_equal(used_bytes(f), key_count(f) * 100);
    assert_true(key_count(f) >= 2500 && key_count(f) < 5000);
}

static void test_a_graceful_unmount_reads_on_and_allocates_no_more(void **state) {
    struct fixture *f = *state;
    struct mc_uuid id = mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(unmount_gracefully(f, id, client_b, 2000), MC_INVALID_PARAMS);
    assert_int_equal(unmount_gracefully(f, id, client_a, 5000), MC_OK);
    /* The earlier deadline counts. */
    assert_int_equal(unmount_gracefully(f, id, client_a, 2000), MC_OK);
    assert_int_equal(unmount_gracefully(f, id, client_a, 90000), MC_OK);
    assert_int_equal(unmount_gracefully(f, (struct mc_uuid){5, 5}, client_a, 1), MC_OK);
    assert_int_equal(status_by_id(f, id), MC_SEGMENT_GRACEFULLY_UNMOUNTING);
    assert_int_equal(status_by_name(f, "node:1"), MC_SEGMENT_GRACEFULLY_UNMOUNTING);
    assert_int_equal(put_start(f, "new", 100), MC_NO_AVAILABLE_HANDLE);
    tick_for_ms(f, 1990);
    assert_int_equal(get(f, "k"), MC_OK);
    tick_for_ms(f, 20);
    assert_int_equal(get(f, "k"), MC_OBJECT_NOT_FOUND);
    /* the name may be taken by another segment meanwhile: it answers for the name */
    struct mc_uuid second = mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(status_by_name(f, "node:1"), MC_SEGMENT_OK);
    assert_int_equal(status_by_id(f, second), MC_SEGMENT_OK);
}

static void test_a_client_that_is_silent_loses_its_segments(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(ping(f, client_a), MC_CLIENT_NEED_REMOUNT);
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    /* It may have more segments than this one. */
    assert_int_equal(ping(f, client_a), MC_CLIENT_NEED_REMOUNT);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    assert_int_equal(put(f, "k", 100), MC_OK);
    tick_for_ms(f, 9990);
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    tick_for_ms(f, 9990);
    assert_true(peek(f, "k"));
    tick_for_ms(f, 200);
    assert_false(peek(f, "k"));
    assert_int_equal(ping(f, client_a), MC_CLIENT_NEED_REMOUNT);
    assert_int_equal(metric(f, "master_total_capacity_bytes"), 0);
    assert_int_equal(metric(f, "master_active_clients"), 0);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    assert_false(peek(f, "k"));
}

static void test_a_client_without_segments_is_known_after_its_remount(void **state) {
    struct fixture *f = *state;
    assert_int_equal(remount(f, client_b, NULL, 0), MC_OK);
    assert_int_equal(ping(f, client_b), MC_CLIENT_OK);
    tick_for_ms(f, 10200);
    assert_int_equal(ping(f, client_b), MC_CLIENT_NEED_REMOUNT);
}

static void test_memory_that_comes_back_is_not_handed_out_while_a_lease_may_run(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_int_equal(put(f, "k", 100), MC_OK);
    tick_for_ms(f, 9990);
    assert_int_equal(get(f, "k"), MC_OK); /* a reader has ten seconds from here */
    tick_for_ms(f, 200);
    assert_int_equal(ping(f, client_a), MC_CLIENT_NEED_REMOUNT);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_int_equal(status_by_id(f, s.id), MC_SEGMENT_OK);
    assert_int_equal(put_start(f, "new", 100), MC_NO_AVAILABLE_HANDLE);
    for (int i = 0; i < 5; i++) {
        tick_for_ms(f, 2100);
        assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    }
    assert_int_equal(put_start(f, "new", 100), MC_OK);
}

static void test_memory_that_comes_back_is_not_handed_out_while_a_put_may_go_on(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_int_equal(put_start(f, "unfinished", 100), MC_OK);
    tick_for_ms(f, 10200);
    assert_int_equal(ping(f, client_a), MC_CLIENT_NEED_REMOUNT);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    uint64_t until_ms = f->config.put_start_release_timeout_ms;
    for (uint64_t ms = 10200; ms + 5000 < until_ms; ms += 5000) {
        assert_int_equal(put_start(f, "new", 100), MC_NO_AVAILABLE_HANDLE);
        assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
        advance_ms(f, 5000);
        tick(f);
    }
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    advance_ms(f, 5000);
    assert_int_equal(put_start(f, "new", 100), MC_OK);
}

static void test_memory_that_nobody_was_using_is_open_again_after_the_sweep(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_int_equal(put(f, "k", 100), MC_OK);
    assert_int_equal(unmount(f, s.id), MC_OK);
    s.id.lo++;
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    /* The sweep has to look first. */
    assert_int_equal(put_start(f, "new", 100), MC_NO_AVAILABLE_HANDLE);
    tick(f);
    assert_int_equal(put(f, "new", 100), MC_OK);
    assert_int_equal(get(f, "new"), MC_OK);
    assert_int_equal(unmount(f, s.id), MC_OK);
    s.id.lo++;
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    tick_for_ms(f, 9990);
    /* This time somebody was reading. */
    assert_int_equal(put_start(f, "third", 100), MC_NO_AVAILABLE_HANDLE);
    ping(f, client_a);
    tick_for_ms(f, 10);
    assert_int_equal(put(f, "third", 100), MC_OK);
}

static void test_another_process_at_the_same_address_replaces_the_dead_one(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(mount_as(f, client_a, s), MC_OK);
    assert_int_equal(put(f, "k", 100), MC_OK);
    s.id = (struct mc_uuid){77, 77};
    assert_int_equal(mount_as(f, client_b, s), MC_OK);
    assert_false(peek(f, "k")); /* its bytes died with the old process */
    struct mc_master_totals t;
    mc_master_totals(f->m, &t);
    assert_int_equal(t.segments, 1);
}

static void test_a_live_client_whose_segment_was_replaced_is_told(void **state) {
    struct fixture *f = *state;
    struct mw_segment s = segment_of(f, "node:1", FIXTURE_SEGMENT_BYTES);
    assert_int_equal(remount(f, client_a, &s, 1), MC_OK);
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    s.id = (struct mc_uuid){77, 77};
    assert_int_equal(remount(f, client_b, &s, 1), MC_OK); /* late, of the process before */
    assert_int_equal(ping(f, client_a), MC_CLIENT_NEED_REMOUNT);
}

static char lost_names[64];
static void on_lost(void *ctx, struct mc_str name) {
    assert_ptr_equal(ctx, lost_names);
    snprintf(lost_names + strlen(lost_names), sizeof(lost_names) - strlen(lost_names), "%.*s ",
             (int)name.len, name.ptr);
}

static void test_expiry_tells_whose_metadata_to_forget(void **state) {
    struct fixture *f = *state;
    f->config.on_segment_lost = on_lost;
    f->config.on_segment_lost_ctx = lost_names;
    fixture_restart(f);
    mount(f, "node:1", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "node:2", FIXTURE_SEGMENT_BYTES);
    for (int i = 0; i < 3; i++) {
        tick_for_ms(f, 5000);
        assert_int_equal(ping(f, client_b), MC_CLIENT_OK);
    }
    assert_string_equal(lost_names, "node:1 ");
}

static void test_addresses_of_clients_are_told_without_ports(void **state) {
    struct fixture *f = *state;
    static const char *const endpoints[] = {"10.0.0.1:1234",
                                            "10.0.0.1:99",
                                            "[fe80::1%eth0]:80",
                                            "2001:db8::5",
                                            "[2001:db8::6]:12345",
                                            "plainhost",
                                            ""};
    for (size_t i = 0; i < MC_ARRAY_LEN(endpoints); i++) {
        struct mw_segment s = segment_of(f, "n", 1 << 20);
        s.name = mc_arena_printf(&f->arena, "segment%zu", i);
        s.te_endpoint = str(endpoints[i]);
        assert_int_equal(mount_as(f, client_a, s), MC_OK);
    }
    struct mw_segment bare = segment_of(f, "bare", 1 << 20);
    bare.te_endpoint = (struct mc_str){0};
    assert_int_equal(mount_as(f, client_b, bare), MC_OK);
    struct mc_uuid ids[] = {client_a, {42, 42}, client_b, client_a};
    struct mc_vec args = {ids, 4};
    struct mw_e_vec r;
    call(f, MC_RPC_BatchQueryIp, &args, &r);
    assert_int_equal(r.error, MC_OK);
    assert_int_equal(r.value.count, 2);
    const struct mw_uuid_strs *entries = r.value.items;
    assert_true(mc_uuid_eq(entries[0].id, client_a));
    static const char *const wanted[] = {"10.0.0.1", "fe80::1%eth0", "2001:db8::5", "2001:db8::6",
                                         "plainhost"};
    assert_int_equal(entries[0].strs.count, MC_ARRAY_LEN(wanted));
    for (size_t i = 0; i < MC_ARRAY_LEN(wanted); i++) {
        assert_true(mc_str_eq(((struct mc_str *)entries[0].strs.items)[i], str(wanted[i])));
    }
    assert_int_equal(entries[1].strs.count, 0); /* known, without an address */
    args.count = 0;
    call(f, MC_RPC_BatchQueryIp, &args, &r);
    assert_int_equal(r.value.count, 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_mounting_twice_is_mounting_once),
        TEST(test_ranges_that_cannot_be_are_refused),
        TEST(test_unmounting_hides_replicas_at_once),
        TEST(test_the_sweep_drops_what_nobody_asks_for),
        TEST(test_a_graceful_unmount_reads_on_and_allocates_no_more),
        TEST(test_a_client_that_is_silent_loses_its_segments),
        TEST(test_a_client_without_segments_is_known_after_its_remount),
        TEST(test_memory_that_comes_back_is_not_handed_out_while_a_lease_may_run),
        TEST(test_memory_that_comes_back_is_not_handed_out_while_a_put_may_go_on),
        TEST(test_memory_that_nobody_was_using_is_open_again_after_the_sweep),
        TEST(test_another_process_at_the_same_address_replaces_the_dead_one),
        TEST(test_a_live_client_whose_segment_was_replaced_is_told),
        TEST(test_expiry_tells_whose_metadata_to_forget),
        TEST(test_addresses_of_clients_are_told_without_ports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
