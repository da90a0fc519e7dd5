/* Back from the SSD to memory: what is read often enough, by the client whose disk it is, and by
 * nobody else; whatever happens meanwhile, the books balance. */
#include "support/master_fixture.h"

#define SIZE (1 << 20)

/* A master whose object "k" is on client_a's disk and in no memory. */
static void begin(struct fixture *f, uint64_t threshold) {
    f->config.enable_offload = true;
    f->config.promotion_on_hit = true;
    f->config.promotion_admission_threshold = threshold;
    f->config.default_kv_lease_ttl_ms = 100;
    fixture_restart(f);
    mount(f, "a:1", 16 << 20);
    struct mw_a_client_flag flag = {client_a, true};
    struct mw_e_void ret;
    call(f, MC_RPC_MountLocalDiskSegment, &flag, &ret);
    assert_int_equal(ret.error, 0);
    struct mw_disk_task task = {str("default"), str("k"), SIZE};
    struct mw_storage_object object = {
        .bucket_id = 7, .key_size = 9, .data_size = SIZE, .endpoint = str("10.0.0.1:99")};
    struct mw_a_offload_done args = {client_a, {&task, 1}, {&object, 1}};
    call(f, MC_RPC_NotifyOffloadSuccess, &args, &ret); /* found there when it mounted */
    assert_int_equal(ret.error, 0);
}

static size_t heartbeat(struct fixture *f) {
    struct mw_e_vec ret;
    call(f, MC_RPC_PromotionObjectHeartbeat, &client_a, &ret);
    assert_int_equal(ret.error, 0);
    if (ret.value.count > 0) {
        const struct mw_disk_task *task = ret.value.items;
        assert_true(mc_str_eq(task->key, str("k")) && mc_str_eq(task->tenant, str("default")));
        assert_int_equal(task->size, SIZE);
    }
    return ret.value.count;
}

static int32_t start_as(struct fixture *f, struct mc_uuid client, const char *key, uint64_t size) {
    struct mw_a_promotion_start args = {
        .client = client, .key = str(key), .tenant = str("default"), .size = size};
    struct mw_e_promotion ret;
    call(f, MC_RPC_PromotionAllocStart, &args, &ret);
    if (ret.error == 0) {
        assert_int_equal(ret.value.memory.tag, MW_TAG_MEMORY);
        assert_int_equal(ret.value.memory.memory.size, size);
    }
    fixture_check(f);
    return ret.error;
}

static int32_t notify_as(struct fixture *f, struct mc_uuid client, bool good) {
    struct mw_a_client_key args = {.client = client, .key = str("k"), .tenant = str("default")};
    struct mw_e_void ret;
    call(f, good ? MC_RPC_NotifyPromotionSuccess : MC_RPC_NotifyPromotionFailure, &args, &ret);
    fixture_check(f);
    return ret.error;
}

static unsigned in_memory(struct fixture *f) {
    struct mw_replica_list list;
    unsigned count = 0;
    assert_ok(mc_master_peek(f->m, str("default"), str("k"), &f->arena, &list));
    const struct mw_replica *r = list.replicas.items;
    for (size_t i = 0; i < list.replicas.count; i++) {
        count += r[i].tag == MW_TAG_MEMORY;
    }
    return count;
}

static void test_what_is_read_often_comes_back(void **state) {
    struct fixture *f = *state;
    begin(f, 2);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 0); /* once is not often */
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(get(f, "k"), 0); /* many readers, one task */
    assert_int_equal(metric(f, "master_promotion_in_flight"), 1);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(heartbeat(f), 0);
    assert_int_equal(start_as(f, client_a, "k", SIZE), 0);
    assert_int_equal(metric(f, "master_promotion_in_flight"), 1);
    assert_int_equal(used_bytes(f), SIZE);
    assert_int_equal(in_memory(f), 0); /* not before it is written */
    assert_int_equal(metric(f, "mem_cache_nums_"), 0);
    assert_int_equal(notify_as(f, client_a, true), 0);
    assert_int_equal(in_memory(f), 1);
    assert_int_equal(metric(f, "mem_cache_nums_"), 1);
    assert_int_equal(metric(f, "file_cache_hit_nums_"), 3);
    assert_int_equal(metric(f, "mem_cache_hit_nums_"), 0);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(metric(f, "mem_cache_hit_nums_"), 1);
    assert_int_equal(metric(f, "file_cache_hit_nums_"), 3);
    assert_int_equal(metric(f, "file_cache_hit_bytes_total"), 3 * SIZE);
    assert_int_equal(metric(f, "valid_get_nums_"), 4);
    assert_int_equal(metric(f, "master_promotion_in_flight"), 0);
    assert_int_equal(metric(f, "master_promotion_completed_bytes_total"), SIZE);
    assert_int_equal(heartbeat(f), 0); /* it is there */
    assert_int_equal(metric(f, "master_promotion_admitted_total"), 1);
    assert_int_equal(metric(f, "master_promotion_completed_total"), 1);
    assert_int_equal(metric(f, "master_promotion_rejected_frequency_total"), 1);
}

/* Nodes of ours ask for memory under an id of its own each time, with their client's upper half. */
static void test_the_end_of_one_is_not_the_next_ones(void **state) {
    struct fixture *f = *state;
    struct mc_uuid first = {client_a.hi, client_a.lo + 1}, second = {client_a.hi, client_a.lo + 2};
    f->config.put_start_discard_timeout_ms = 1000;
    begin(f, 1);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(start_as(f, client_b, "k", SIZE), MC_ILLEGAL_CLIENT);
    assert_int_equal(start_as(f, first, "k", SIZE), 0);
    for (unsigned i = 0; i < 30; i++) { /* its word takes too long */
        tick_for_ms(f, 50);
        (void)ping(f, client_a);
    }
    assert_int_equal(metric(f, "master_promotion_expired_total"), 1);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(notify_as(f, first, false), MC_ILLEGAL_CLIENT); /* nor its claim's */
    assert_int_equal(start_as(f, second, "k", SIZE), 0);
    assert_int_equal(notify_as(f, first, true), MC_ILLEGAL_CLIENT);
    assert_int_equal(notify_as(f, first, false), MC_ILLEGAL_CLIENT);
    assert_int_equal(notify_as(f, client_a, true), MC_ILLEGAL_CLIENT);
    assert_int_equal(in_memory(f), 0); /* the second is not written yet */
    assert_int_equal(notify_as(f, second, true), 0);
    assert_int_equal(in_memory(f), 1);
}

/* A claim that was given back is forgotten after a while, and with it nothing that was asked for
 * since: that is another promotion of the same object. */
static void test_a_claim_that_runs_out_takes_no_later_one_along(void **state) {
    struct fixture *f = *state;
    f->config.put_start_discard_timeout_ms = 1000;
    begin(f, 1);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(notify_as(f, client_a, false), 0); /* gives it back */
    for (unsigned i = 0; i < 15; i++) {
        tick_for_ms(f, 50);
        (void)ping(f, client_a);
    }
    assert_int_equal(get(f, "k"), 0);   /* asks for it again */
    for (unsigned i = 0; i < 10; i++) { /* the first would have run out */
        tick_for_ms(f, 50);
        (void)ping(f, client_a);
    }
    assert_int_equal(metric(f, "master_promotion_expired_total"), 0);
    assert_int_equal(metric(f, "master_promotion_in_flight"), 1);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(start_as(f, client_a, "k", SIZE), 0);
    assert_int_equal(notify_as(f, client_a, true), 0);
    assert_int_equal(in_memory(f), 1);
}

static void test_peeking_brings_nothing_back(void **state) {
    struct fixture *f = *state;
    begin(f, 1);
    for (unsigned i = 0; i < 5; i++) {
        assert_true(peek(f, "k"));
        assert_true(exists(f, "k"));
    }
    assert_int_equal(heartbeat(f), 0);
}

static void test_without_the_option_it_is_an_error(void **state) {
    struct fixture *f = *state;
    struct mw_e_vec ret;
    call(f, MC_RPC_PromotionObjectHeartbeat, &client_a, &ret);
    assert_int_equal(ret.error, MC_UNAVAILABLE_IN_CURRENT_MODE);
    assert_int_equal(start_as(f, client_a, "k", SIZE), MC_UNAVAILABLE_IN_CURRENT_MODE);
    f->config.promotion_on_hit = true;
    fixture_restart(f);
    call(f, MC_RPC_PromotionObjectHeartbeat, &client_b, &ret);
    assert_int_equal(ret.error, MC_SEGMENT_NOT_FOUND); /* it has no disk */
}

static void test_only_whom_it_was_given_to(void **state) {
    struct fixture *f = *state;
    begin(f, 1);
    assert_int_equal(start_as(f, client_a, "k", SIZE), MC_OBJECT_NO_REPLICATION_TASK);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(start_as(f, client_a, "unknown", SIZE), MC_OBJECT_NOT_FOUND);
    assert_int_equal(start_as(f, client_b, "k", SIZE), MC_ILLEGAL_CLIENT);
    assert_int_equal(start_as(f, client_a, "k", SIZE + 1), MC_INVALID_PARAMS);
    assert_int_equal(start_as(f, client_a, "k", SIZE), 0);
    assert_int_equal(notify_as(f, client_b, true), MC_ILLEGAL_CLIENT);
    assert_int_equal(notify_as(f, client_b, false), MC_ILLEGAL_CLIENT);
    (void)put_end(f, "k"); /* a writer's end is not this one's */
    assert_int_equal(in_memory(f), 0);
    assert_int_equal(notify_as(f, client_a, false), 0);
    assert_int_equal(used_bytes(f), 0); /* its place is free at once */
    assert_int_equal(notify_as(f, client_a, true), MC_OBJECT_NO_REPLICATION_TASK);
    assert_int_equal(get(f, "k"), 0); /* and it may be tried again */
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(notify_as(f, client_a, false), 0); /* given up before it asked for memory */
    assert_int_equal(metric(f, "master_promotion_in_flight"), 0);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
}

static void test_a_silent_client_is_given_up(void **state) {
    struct fixture *f = *state;
    f->config.put_start_discard_timeout_ms = 1000;
    f->config.put_start_release_timeout_ms = 3000;
    begin(f, 1);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
    advance_ms(f, 1100); /* before it asked for memory */
    tick(f);
    assert_int_equal(metric(f, "master_promotion_expired_total"), 1);
    assert_int_equal(metric(f, "master_promotion_in_flight"), 0);
    assert_int_equal(start_as(f, client_a, "k", SIZE), MC_OBJECT_NO_REPLICATION_TASK);
    assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(start_as(f, client_a, "k", SIZE), 0);
    tick_for_ms(f, 1500); /* and after it */
    assert_int_equal(metric(f, "master_promotion_expired_total"), 2);
    assert_int_equal(metric(f, "master_promotion_in_flight"), 0);
    assert_int_equal(notify_as(f, client_a, true), MC_OBJECT_NO_REPLICATION_TASK);
    assert_int_equal(in_memory(f), 0);
    tick_for_ms(f, 2500);
    assert_int_equal(used_bytes(f), 0);
}

static void test_removing_cancels_it(void **state) {
    struct fixture *f = *state;
    f->config.put_start_release_timeout_ms = 1000;
    begin(f, 1);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 1);
    assert_int_equal(start_as(f, client_a, "k", SIZE), 0);
    assert_int_equal(upsert_start(f, "k", SIZE, replicas(1), NULL), MC_OBJECT_HAS_REPLICATION_TASK);
    assert_int_equal(remove_key(f, "k", true), 0);
    assert_int_equal(notify_as(f, client_a, true), MC_OBJECT_NOT_FOUND);
    assert_int_equal(metric(f, "master_promotion_cancelled_total"), 1);
    assert_int_equal(metric(f, "master_promotion_in_flight"), 0);
    assert_int_equal(metric(f, "file_cache_nums_"), 0);
    assert_int_equal(key_count(f), 0);
    tick_for_ms(f, 1500); /* not before nobody can be writing there */
    assert_int_equal(used_bytes(f), 0);
}

static void test_a_full_memory_takes_nothing_back(void **state) {
    struct fixture *f = *state;
    f->config.eviction_high_watermark_ratio = 0.5;
    begin(f, 1);
    assert_int_equal(put_start(f, "big", 12 << 20), 0);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(heartbeat(f), 0);
    assert_int_equal(metric(f, "master_promotion_rejected_watermark_total"), 1);
}

static void test_the_disk_goes_with_its_tasks(void **state) {
    struct fixture *f = *state;
    struct mw_e_void ret;
    begin(f, 1);
    assert_int_equal(get(f, "k"), 0);
    call(f, MC_RPC_UnmountLocalDiskSegment, &client_a, &ret);
    assert_int_equal(ret.error, 0);
    tick(f);
    struct mw_e_vec tasks;
    call(f, MC_RPC_PromotionObjectHeartbeat, &client_a, &tasks);
    assert_int_equal(tasks.error, MC_SEGMENT_NOT_FOUND);
    fixture_check(f);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {TEST(test_what_is_read_often_comes_back),
                                       TEST(test_peeking_brings_nothing_back),
                                       TEST(test_a_claim_that_runs_out_takes_no_later_one_along),
                                       TEST(test_without_the_option_it_is_an_error),
                                       TEST(test_only_whom_it_was_given_to),
                                       TEST(test_a_silent_client_is_given_up),
                                       TEST(test_removing_cancels_it),
                                       TEST(test_a_full_memory_takes_nothing_back),
                                       TEST(test_the_disk_goes_with_its_tasks),
                                       TEST(test_the_end_of_one_is_not_the_next_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
