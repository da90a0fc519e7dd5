/*
 * A node that is drained leaves nothing behind on its SSD: what only that has comes to the memory
 * of others, what others have too is forgotten there, and nothing new is listed once the node may
 * go. Who wants the SSD left alone is told how much goes with it.
 */
#include "support/master_fixture.h"

#define SIZE 1000

static void mount_disk(struct fixture *f, struct mc_uuid client) {
    struct mw_a_client_flag flag = {client, true};
    struct mw_e_void ret;
    call(f, MC_RPC_MountLocalDiskSegment, &flag, &ret);
    assert_ok(ret.error);
}

/* What client_a's disk has, found there when it was mounted. */
static void found(struct fixture *f, const char *key) {
    struct mw_disk_item item = {str("default"), str(key), SIZE, 0};
    struct mw_a_on_disk args = {client_a, str("10.0.0.1:99"), true, {&item, 1}};
    struct mw_e_vec ret;
    call(f, MC_RPC_OnDisk, &args, &ret);
    assert_ok(ret.error);
}

/* Client_a has "A" and a disk, client_b "B" and "C"; promotion on hit is off. */
static void begin(struct fixture *f) {
    f->config.enable_offload = true;
    f->config.default_kv_lease_ttl_ms = 100;
    fixture_restart(f);
    mount(f, "A", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "B", FIXTURE_SEGMENT_BYTES);
    mount_for(f, client_b, "C", FIXTURE_SEGMENT_BYTES);
    mount_disk(f, client_a);
}

static struct mc_uuid drain(struct fixture *f, const char *to, bool leave_disks) {
    struct mc_str source = str("A"), target = to ? str(to) : (struct mc_str){0};
    struct mc_vec segments = {&source, 1}, targets = {&target, to != NULL};
    struct mc_uuid job;
    assert_ok(mc_master_drain(f->m, &segments, &targets, 4, leave_disks, &job));
    return job;
}

static struct mc_master_job_info look(struct fixture *f, struct mc_uuid job) {
    struct mc_master_job_info info = {0};
    assert_ok(mc_master_job(f->m, job, &f->arena, &info));
    return info;
}

static void wait_ms(struct fixture *f, unsigned ms) {
    for (unsigned i = 0; i < ms; i += 50) {
        tick_for_ms(f, 50);
        (void)ping(f, client_a);
        (void)ping(f, client_b);
    }
}

static unsigned replicas_of(struct fixture *f, const char *key, unsigned tag, const char *at) {
    struct mw_replica_list list;
    unsigned count = 0;
    assert_ok(mc_master_peek(f->m, str("default"), str(key), &f->arena, &list));
    const struct mw_replica *r = list.replicas.items;
    for (size_t i = 0; i < list.replicas.count; i++) {
        count += r[i].tag == tag && (at == NULL || mc_str_eq(r[i].memory.endpoint, str(at)));
    }
    return count;
}

/* What client_a does: takes what is asked for, as far as `steps` go; how many there were. */
enum { TAKE, ASK, WRITE };
static size_t promote(struct fixture *f, int steps) {
    size_t done = 0;
    for (;;) {
        struct mw_e_vec tasks;
        call(f, MC_RPC_PromotionObjectHeartbeat, &client_a, &tasks);
        if (tasks.error != 0 || tasks.value.count == 0) {
            return done;
        }
        const struct mw_disk_task *task = tasks.value.items;
        struct mw_a_promotion_start start = {
            .client = client_a, .key = task->key, .tenant = task->tenant, .size = SIZE};
        struct mw_a_client_key end = {client_a, task->key, task->tenant};
        struct mw_e_promotion place;
        struct mw_e_void ret;
        done++;
        if (steps >= ASK) {
            call(f, MC_RPC_PromotionAllocStart, &start, &place);
            assert_ok(place.error);
        }
        if (steps >= WRITE) {
            call(f, MC_RPC_NotifyPromotionSuccess, &end, &ret);
            assert_ok(ret.error);
        }
        fixture_check(f);
    }
}

static void test_what_only_the_ssd_has_comes_to_memory(void **state) {
    struct fixture *f = *state;
    begin(f);
    found(f, "k0");
    found(f, "k1");
    assert_int_equal(promote(f, WRITE), 0); /* nobody has asked */
    struct mc_uuid job = drain(f, "C", false);
    wait_ms(f, 300);
    assert_int_equal(look(f, job).status, MC_JOB_RUNNING);
    assert_int_equal(look(f, job).active, 2);
    assert_int_equal(promote(f, WRITE), 2);
    wait_ms(f, 300);
    struct mc_master_job_info info = look(f, job);
    assert_int_equal(info.status, MC_JOB_SUCCEEDED);
    assert_int_equal(info.succeeded, 2);
    assert_int_equal(info.migrated_bytes, 2 * SIZE);
    assert_int_equal(info.failed + info.blocked + info.active + info.disk_only, 0);
    assert_int_equal(replicas_of(f, "k0", MW_TAG_MEMORY, "C"), 1);
    assert_int_equal(replicas_of(f, "k0", MW_TAG_LOCAL_DISK, NULL), 0);
    found(f, "k0"); /* late words of a disk that may go at any moment */
    found(f, "k2");
    assert_int_equal(replicas_of(f, "k0", MW_TAG_LOCAL_DISK, NULL), 0);
    assert_false(peek(f, "k2"));
    fixture_check(f);
}

/* A copy that is being written is no home yet, and a disk that is gone is none any more. */
static void test_half_a_copy_is_none(void **state) {
    struct fixture *f = *state;
    begin(f);
    found(f, "k");
    struct mc_uuid job = drain(f, NULL, false);
    wait_ms(f, 100);
    assert_int_equal(promote(f, ASK), 1);
    wait_ms(f, 1000);
    assert_int_equal(look(f, job).status, MC_JOB_RUNNING);
    struct mw_e_void ret;
    call(f, MC_RPC_UnmountLocalDiskSegment, &client_a, &ret);
    assert_ok(ret.error);
    wait_ms(f, f->config.put_start_release_timeout_ms + 1000);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
    assert_int_equal(look(f, job).disk_only, 0);
    assert_false(peek(f, "k"));
}

static void test_what_others_have_is_forgotten_there(void **state) {
    struct fixture *f = *state;
    struct mw_replicate_config in_b = replicas(1);
    begin(f);
    mount_disk(f, client_b);
    in_b.preferred_segment = str("B");
    assert_ok(put_with(f, "k", SIZE, in_b));
    struct mw_object_info o;
    assert_ok(mc_master_inspect(f->m, str("default"), str("k"), &o));
    struct mw_disk_item item = {str("default"), str("k"), SIZE, o.version};
    struct mw_a_on_disk args = {client_a, str("10.0.0.1:99"), true, {&item, 1}};
    struct mw_e_vec ret;
    call(f, MC_RPC_OnDisk, &args, &ret);
    assert_int_equal(replicas_of(f, "k", MW_TAG_LOCAL_DISK, NULL), 1);
    struct mc_uuid job = drain(f, NULL, false);
    wait_ms(f, 300);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
    assert_int_equal(replicas_of(f, "k", MW_TAG_LOCAL_DISK, NULL), 0);
    assert_int_equal(replicas_of(f, "k", MW_TAG_MEMORY, "B"), 1);
}

/* A client that takes nothing back keeps the job waiting, and whoever cancels it is heard. */
static void test_a_disk_that_gives_nothing_is_waited_for(void **state) {
    struct fixture *f = *state;
    begin(f);
    found(f, "k");
    struct mc_uuid job = drain(f, NULL, false);
    wait_ms(f, 2 * f->config.put_start_discard_timeout_ms);
    assert_int_equal(look(f, job).status, MC_JOB_RUNNING);
    assert_int_equal(look(f, job).disk_only, 1);
    if (mc_master_job_cancel(f->m, job) != MC_OK) {
        wait_ms(f, 100);
        assert_ok(mc_master_job_cancel(f->m, job));
    }
    assert_true(peek(f, "k"));
    assert_int_equal(promote(f, WRITE), 0);
    found(f, "k2"); /* it is a disk like any other again */
    assert_true(peek(f, "k2"));
}

static void test_a_disk_may_be_left_alone(void **state) {
    struct fixture *f = *state;
    begin(f);
    found(f, "k");
    struct mc_uuid job = drain(f, NULL, true);
    wait_ms(f, 300);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
    assert_int_equal(look(f, job).disk_only, 1);
    assert_true(peek(f, "k"));
}

/* The node goes on with its other segment, and its disk, too. */
static void test_half_a_node_keeps_its_disk(void **state) {
    struct fixture *f = *state;
    begin(f);
    mount(f, "A2", FIXTURE_SEGMENT_BYTES);
    found(f, "k");
    struct mc_uuid job = drain(f, NULL, false);
    wait_ms(f, 300);
    assert_int_equal(look(f, job).status, MC_JOB_SUCCEEDED);
    assert_int_equal(look(f, job).disk_only, 0);
    assert_int_equal(replicas_of(f, "k", MW_TAG_LOCAL_DISK, NULL), 1);
    found(f, "k2");
    assert_true(peek(f, "k2"));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {TEST(test_what_only_the_ssd_has_comes_to_memory),
                                       TEST(test_half_a_copy_is_none),
                                       TEST(test_what_others_have_is_forgotten_there),
                                       TEST(test_a_disk_that_gives_nothing_is_waited_for),
                                       TEST(test_a_disk_may_be_left_alone),
                                       TEST(test_half_a_node_keeps_its_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
