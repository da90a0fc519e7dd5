/* A striped object is one object: it is charged, leased, evicted, removed, listed and lost as a
 * whole, whatever happens to its stripes, and nobody who does not know stripes is shown one. */
#include <stdio.h>

#include "support/master_fixture.h"

#define MIB     (1ull << 20)
#define SEGMENT (64 * MIB)

static int32_t begin_copies(struct fixture *f, const char *tenant, const char *key, uint64_t size,
                            uint64_t copies, bool upsert, struct mc_vec *out) {
    struct mw_a_start_puts args = {.client = client_a,
                                   .keys = strs(f, 1, &key),
                                   .lengths = {&size, 1},
                                   .config = replicas(copies),
                                   .tenant = str(tenant),
                                   .upsert = upsert,
                                   .stripe_over = 32 * MIB};
    struct mc_vec answers;
    call(f, MC_RPC_StartPuts, &args, &answers);
    assert_int_equal(answers.count, 1);
    *out = ((struct mw_e_vec *)answers.items)->value;
    return ((struct mw_e_vec *)answers.items)->error;
}

static int32_t begin_as(struct fixture *f, const char *tenant, const char *key, uint64_t size,
                        bool upsert, struct mc_vec *out) {
    return begin_copies(f, tenant, key, size, 1, upsert, out);
}

static int32_t begin(struct fixture *f, const char *key, uint64_t size, struct mc_vec *out) {
    return begin_as(f, "default", key, size, false, out);
}

static int32_t put_striped(struct fixture *f, const char *key, uint64_t size) {
    struct mc_vec out;
    MC_TRY(begin(f, key, size, &out));
    return put_end(f, key);
}

static struct mw_e_object object(struct fixture *f, const char *key) {
    struct mw_a_keys args = {strs(f, 1, &key), MC_STR("default")};
    struct mc_vec answers;
    call(f, MC_RPC_GetObjects, &args, &answers);
    assert_int_equal(answers.count, 1);
    return *(struct mw_e_object *)answers.items;
}

static void mount_all(struct fixture *f, unsigned count, struct mc_uuid *ids) {
    f->config.client_ttl_ms = UINT32_MAX; /* nobody pings here */
    fixture_restart(f);
    for (unsigned i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "node:%u", i);
        ids[i] = mount(f, name, SEGMENT);
    }
}

static void test_large_objects_are_laid_over_the_segments(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[4];
    struct mc_vec out;
    mount_all(f, 4, ids);
    assert_ok(begin(f, "k", 200 * MIB + 1, &out)); /* more than any segment has */
    assert_int_equal(out.count, 4);
    const struct mw_replica *stripe = out.items;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(stripe[i].memory.size, 51 * MIB); /* whole units */
        for (size_t k = 0; k < i; k++) {
            assert_false(mc_str_eq(stripe[i].memory.endpoint, stripe[k].memory.endpoint));
        }
    }
    assert_int_equal(used_bytes(f), 4 * 51 * MIB);
    assert_false(exists(f, "k"));
    fixture_check(f);
    assert_ok(put_end(f, "k"));
    assert_true(exists(f, "k"));
    struct mw_e_object o = object(f, "k");
    assert_ok(o.error);
    assert_int_equal(o.value.size, 200 * MIB + 1);
    assert_int_equal(o.value.list.replicas.count, 4);
    assert_true(o.value.list.lease_ttl_ms > 0);
    assert_int_equal(get(f, "k"), MC_NOT_SUPPORTED); /* upstream's words */
    assert_int_equal(remove_key(f, "k", false), MC_OBJECT_HAS_LEASE);
    assert_ok(remove_key(f, "k", true));
    tick_for_ms(f, f->config.default_kv_lease_ttl_ms + 10);
    assert_int_equal(used_bytes(f), 0);

    assert_ok(begin(f, "small", 32 * MIB - 1, &out)); /* below the threshold */
    assert_int_equal(out.count, 1);
    assert_ok(begin(f, "two", 32 * MIB, &out)); /* 16 MiB a stripe at least */
    assert_int_equal(out.count, 2);
    assert_ok(put_revoke(f, "two"));
    assert_int_equal(begin(f, "huge", 1024 * MIB, &out), MC_NO_AVAILABLE_HANDLE);
}

static void test_a_lost_stripe_loses_the_object_and_nothing_else(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[4];
    mount_all(f, 4, ids);
    assert_ok(put_striped(f, "k", 100 * MIB));
    assert_ok(put(f, "other", 1000));
    struct mw_e_object o = object(f, "k"); /* leased: its bytes stay as long */
    assert_ok(o.error);
    struct mc_str lost = ((struct mw_replica *)o.value.list.replicas.items)[2].memory.endpoint;
    for (unsigned i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof(name), "node:%u", i);
        if (mc_str_eq(lost, mc_str_from(name))) {
            assert_ok(unmount(f, ids[i]));
        }
    }
    assert_false(exists(f, "k"));
    assert_int_equal(object(f, "k").error, MC_OBJECT_NOT_FOUND);
    fixture_check(f);
    assert_ok(put_striped(f, "k", 80 * MIB)); /* over the three that are left */
    assert_int_equal(object(f, "k").value.list.replicas.count, 3);
    tick_for_ms(f, f->config.default_kv_lease_ttl_ms + 10);
    uint64_t others = exists(f, "other") ? 1000 : 0; /* it may have been on that node */
    assert_int_equal(used_bytes(f), 3 * 27 * MIB + others);

    struct mc_vec out; /* one that is being written goes the same way */
    assert_ok(remove_key(f, "k", true));
    tick_for_ms(f, f->config.default_kv_lease_ttl_ms + 10);
    assert_ok(begin(f, "w", 100 * MIB, &out));
    for (unsigned i = 0; i < 4; i++) {
        (void)unmount(f, ids[i]);
    }
    assert_int_equal(put_end(f, "w"), MC_OBJECT_NOT_FOUND);
    tick_for_ms(f, 2000);
}

static void test_an_upsert_writes_in_place_only_for_who_knows_stripes(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[4];
    struct mc_vec first, again;
    mount_all(f, 4, ids);
    assert_ok(begin(f, "k", 64 * MIB, &first));
    assert_ok(put_end(f, "k"));
    uint64_t version = object(f, "k").value.version;
    tick_for_ms(f, f->config.default_kv_lease_ttl_ms + 10);
    assert_ok(begin_as(f, "default", "k", 64 * MIB, true, &again));
    assert_int_equal(again.count, first.count);
    for (size_t i = 0; i < first.count; i++) {
        assert_int_equal(((struct mw_replica *)first.items)[i].memory.address,
                         ((struct mw_replica *)again.items)[i].memory.address);
    }
    assert_ok(put_end(f, "k"));
    assert_int_not_equal(object(f, "k").value.version, version);
    tick_for_ms(f, f->config.default_kv_lease_ttl_ms + 10);
    /* Somebody else's upsert is of one piece, which is no larger than a segment. */
    assert_ok(upsert_start(f, "k", 48 * MIB, replicas(1), &again));
    assert_int_equal(again.count, 1);
    assert_ok(put_end(f, "k"));
    assert_ok(get(f, "k"));
    tick(f);
    assert_int_equal(used_bytes(f), 48 * MIB);
}

static void test_stripes_move_one_by_one_and_stay_in_order(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[4];
    mount_all(f, 3, ids);
    assert_ok(put_striped(f, "k", 90 * MIB));
    const struct mw_replica *before = object(f, "k").value.list.replicas.items;
    uint64_t kept[2] = {before[1].id, before[2].id};
    ids[3] = mount(f, "node:3", SEGMENT);
    struct mw_a_move_start start = {
        {7, 1}, str("k"), str("default"), before[0].memory.endpoint, str("node:3")};
    struct mw_a_client_key end = {{7, 1}, str("k"), str("default")};
    struct mw_e_move started;
    struct mw_e_void r;
    call(f, MC_RPC_MoveStart, &start, &started);
    assert_ok(started.error);
    assert_int_equal(started.value.source.memory.size, 30 * MIB);
    assert_int_equal(started.value.target.value.memory.size, 30 * MIB);
    assert_true(exists(f, "k"));
    assert_int_equal(object(f, "k").value.list.replicas.count, 3);
    fixture_check(f);
    call(f, MC_RPC_MoveEnd, &end, &r);
    assert_ok(r.error);
    struct mw_e_object o = object(f, "k");
    const struct mw_replica *after = o.value.list.replicas.items;
    assert_int_equal(o.value.list.replicas.count, 3);
    assert_int_equal(after[0].id, started.value.target.value.id);
    assert_int_equal(after[1].id, kept[0]);
    assert_int_equal(after[2].id, kept[1]);

    struct mc_str target = after[1].memory.endpoint; /* a stripe may join another */
    struct mw_a_move_start join = {{7, 2}, str("k"), str("default"), str("node:3"), target};
    end.client = (struct mc_uuid){7, 2};
    call(f, MC_RPC_MoveStart, &join, &started);
    assert_ok(started.error);
    assert_true(started.value.target.has);
    call(f, MC_RPC_MoveEnd, &end, &r);
    assert_ok(r.error);
    assert_int_equal(object(f, "k").value.list.replicas.count, 3);
}

static void test_eviction_and_quota_see_all_stripes(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[4];
    mount_all(f, 4, ids);
    for (unsigned i = 0; i < 3; i++) {
        char key[8];
        snprintf(key, sizeof(key), "k%u", i);
        assert_ok(put_striped(f, key, 75 * MIB)); /* 4 times 19 MiB */
    }
    assert_int_equal(used_bytes(f), 3 * 4 * 19 * MIB);
    struct mc_vec out;
    assert_int_equal(begin(f, "more", 75 * MIB, &out), MC_NO_AVAILABLE_HANDLE);
    tick_for_ms(f, 100); /* evicts */
    assert_int_equal(used_bytes(f) % (4 * 19 * MIB), 0);
    assert_true(used_bytes(f) < 3 * 4 * 19 * MIB);
    assert_ok(begin(f, "more", 75 * MIB, &out));
    assert_int_equal(out.count, 4);
}

/* Every place has its stripe: of a size, and what is there is complete; no stripe is twice on a
 * node. Returns how many are there. */
static unsigned check_copies(const struct mc_vec *list, unsigned stripes, uint64_t bytes) {
    const struct mw_replica *r = list->items;
    unsigned there = 0;
    assert_int_equal(list->count % stripes, 0);
    for (size_t i = 0; i < list->count; i++) {
        assert_int_equal(r[i].memory.size, bytes);
        there += r[i].status != MC_REPLICA_REMOVED;
        for (size_t k = i % stripes; k < i; k += stripes) {
            assert_true(r[i].status == MC_REPLICA_REMOVED ||
                        !mc_str_eq(r[i].memory.endpoint, r[k].memory.endpoint));
        }
    }
    return there;
}

static struct mw_object_info inspect(struct fixture *f, const char *key) {
    struct mw_a_keys args = {strs(f, 1, &key), MC_STR("default")};
    struct mc_vec answers;
    call(f, MC_RPC_Inspect, &args, &answers);
    assert_int_equal(answers.count, 1);
    assert_ok(((struct mw_e_object_info *)answers.items)->error);
    return ((struct mw_e_object_info *)answers.items)->value;
}

/* Stripe by stripe, each to where it is not yet, until every target has all. */
static void test_a_copy_is_made_step_by_step(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[3];
    mount_all(f, 2, ids);
    assert_ok(put_striped(f, "k", 40 * MIB));
    ids[2] = mount(f, "node:2", SEGMENT);
    struct mc_str names[] = {str("node:2"), str("node:0")};
    struct mw_a_copy_task ask = {str("k"), str("default"), {names, 2}};
    struct mw_e_uuid id;
    call(f, MC_RPC_CreateCopyTask, &ask, &id);
    assert_ok(id.error);
    unsigned copied = 0;
    for (unsigned step = 0; step < 5; step++) {
        struct mw_a_copy_start start = {
            {7, step}, str("k"), str("default"), str("node:0"), {names, 2}};
        struct mw_a_client_key end = {{7, step}, str("k"), str("default")};
        struct mw_e_copy started;
        struct mw_e_void ended;
        call(f, MC_RPC_CopyStart, &start, &started);
        assert_ok(started.error);
        copied += (unsigned)started.value.targets.count;
        fixture_check(f);
        call(f, MC_RPC_CopyEnd, &end, &ended);
        assert_ok(ended.error);
    }
    assert_int_equal(copied, 3); /* node:0 had one of the two already */
    struct mw_e_object o = object(f, "k");
    assert_int_equal(check_copies(&o.value.list.replicas, 2, 20 * MIB), 5);
    assert_int_equal(inspect(f, "k").replicas, 2);
    assert_int_equal(used_bytes(f), 5 * 20 * MIB);
    fixture_check(f);
    assert_ok(unmount(f, ids[0]));
    assert_ok(object(f, "k").error);
    fixture_check(f);
}

static void test_two_copies_outlive_any_one_node(void **state) {
    struct fixture *f = *state;
    for (unsigned lost = 0; lost < 3; lost++) {
        struct mc_uuid ids[3];
        struct mc_vec out;
        mount_all(f, 3, ids);
        assert_ok(begin_copies(f, "default", "k", 48 * MIB, 2, false, &out));
        assert_int_equal(out.count, 6);
        assert_int_equal(check_copies(&out, 3, 16 * MIB), 6);
        assert_int_equal(used_bytes(f), 6 * 16 * MIB);
        assert_ok(put_end(f, "k"));
        fixture_check(f);
        assert_int_equal(inspect(f, "k").replicas, 2);
        assert_int_equal(inspect(f, "k").stripes, 3);
        assert_ok(unmount(f, ids[lost]));
        assert_true(exists(f, "k"));
        struct mw_e_object o = object(f, "k");
        assert_ok(o.error);
        assert_int_equal(o.value.stripes, 3);
        assert_int_equal(o.value.list.replicas.count, 6);
        assert_int_equal(check_copies(&o.value.list.replicas, 3, 16 * MIB), 4);
        assert_int_equal(inspect(f, "k").replicas, 1);
        fixture_check(f);
        tick_for_ms(f, f->config.default_kv_lease_ttl_ms + 10);
        assert_int_equal(used_bytes(f), 4 * 16 * MIB);
        /* an upsert has two copies again, on the two nodes that are left */
        assert_ok(begin_copies(f, "default", "k", 32 * MIB, 2, true, &out));
        assert_int_equal(check_copies(&out, 2, 16 * MIB), 4);
        assert_ok(put_end(f, "k"));
        assert_ok(unmount(f, ids[(lost + 1) % 3]));
        assert_true(exists(f, "k"));
        assert_ok(unmount(f, ids[(lost + 2) % 3]));
        assert_false(exists(f, "k"));
        fixture_check(f);
    }
}

/* As many stripes as all copies have room for; fewer copies only where there is none. */
static void test_copies_share_the_room_there_is(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[6];
    struct mc_vec out;
    mount_all(f, 6, ids);
    assert_ok(begin_copies(f, "default", "one", 200 * MIB, 1, false, &out));
    assert_int_equal(check_copies(&out, 6, 34 * MIB), 6); /* 30 MiB are left on each */
    assert_ok(begin_copies(f, "default", "less", 96 * MIB, 2, false, &out));
    assert_int_equal(check_copies(&out, 6, 16 * MIB), 6);
    assert_ok(put_end(f, "less"));
    assert_int_equal(inspect(f, "less").replicas, 1);
    assert_ok(remove_key(f, "less", true));
    tick_for_ms(f, f->config.default_kv_lease_ttl_ms + 10);
    assert_ok(begin_copies(f, "default", "two", 80 * MIB, 2, false, &out));
    assert_int_equal(out.count, 6); /* once on each: with 5 stripes there is no second copy */
    assert_int_equal(check_copies(&out, 3, 27 * MIB), 6);
    fixture_check(f);
}

static void test_a_move_keeps_copies_apart(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[4];
    struct mc_vec out;
    mount_all(f, 2, ids);
    assert_ok(begin_copies(f, "default", "k", 40 * MIB, 2, false, &out));
    assert_int_equal(check_copies(&out, 2, 20 * MIB), 4); /* each node has both stripes */
    assert_ok(put_end(f, "k"));
    /* The other node has the same bytes: the move only takes some away. */
    struct mw_a_move_start start = {{7, 1}, str("k"), str("default"), str("node:0"), str("node:1")};
    struct mw_a_client_key end = {{7, 1}, str("k"), str("default")};
    struct mw_e_move started;
    struct mw_e_void r;
    call(f, MC_RPC_MoveStart, &start, &started);
    assert_ok(started.error);
    assert_false(started.value.target.has);
    call(f, MC_RPC_MoveEnd, &end, &r);
    assert_ok(r.error);
    struct mw_e_object o = object(f, "k");
    assert_int_equal(check_copies(&o.value.list.replicas, 2, 20 * MIB), 3);
    fixture_check(f);
    /* A drain finds another node for what is left there, not the one that has it. */
    ids[2] = mount(f, "node:2", SEGMENT);
    struct mc_str from = str("node:0");
    struct mc_vec segments = {&from, 1}, none = {0};
    struct mc_uuid job;
    assert_ok(mc_master_drain(f->m, &segments, &none, 4, false, &job));
    struct mw_a_fetch_tasks fetch = {client_a, 10};
    struct mw_e_vec tasks = {0};
    for (unsigned i = 0; i < 100 && tasks.value.count == 0; i++) {
        tick_for_ms(f, 50);
        call(f, MC_RPC_FetchTasks, &fetch, &tasks);
    }
    assert_int_equal(tasks.value.count, 1);
    struct mc_str payload = ((struct mw_task_assignment *)tasks.value.items)->payload;
    assert_non_null(memmem(payload.ptr, payload.len, "\"target\":\"node:2\"", 17));
}

static void test_clearing_a_node_takes_its_stripes(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[2];
    struct mc_vec out;
    mount_all(f, 2, ids);
    const char *key = "k";
    assert_ok(begin_copies(f, "default", key, 40 * MIB, 2, false, &out));
    assert_ok(put_end(f, key));
    const char *const names[] = {"node:0", "node:1"};
    for (unsigned i = 0; i < 2; i++) {
        struct mw_a_replica_clear args = {strs(f, 1, &key), client_a, str(names[i])};
        struct mw_e_vec r;
        call(f, MC_RPC_BatchReplicaClear, &args, &r);
        assert_ok(r.error);
        assert_int_equal(r.value.count, 1);
        assert_int_equal(used_bytes(f), i == 0 ? 2 * 20 * MIB : 0);
        fixture_check(f);
    }
    assert_false(exists(f, key));
}

/* Two nodes, the first with an SSD; returns what that asks with. */
static struct mw_a_client_flag mount_two_with_ssd(struct fixture *f, struct mc_uuid ids[2]) {
    struct mw_a_client_flag flag = {client_a, true};
    struct mw_e_void done;
    f->config.enable_offload = true;
    mount_all(f, 2, ids);
    call(f, MC_RPC_MountLocalDiskSegment, &flag, &done);
    assert_ok(done.error);
    return flag;
}

static void test_an_ssd_has_it_whole_when_a_stripe_is_lost(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[2];
    struct mc_vec out;
    struct mw_e_vec tasks;
    const struct mw_a_client_flag flag = mount_two_with_ssd(f, ids);
    call(f, MC_RPC_TakeOffloads, &flag, &tasks);
    assert_int_equal(tasks.value.count, 0);
    assert_ok(begin_copies(f, "default", "k", 40 * MIB, 2, false, &out));
    assert_ok(put_end(f, "k"));
    call(f, MC_RPC_TakeOffloads, &flag, &tasks);
    assert_int_equal(tasks.value.count, 1);
    struct mw_disk_item item = *(struct mw_disk_item *)tasks.value.items;
    assert_int_equal(item.size, 40 * MIB);
    struct mw_a_on_disk told = {client_a, str("10.0.0.1:99"), false, {&item, 1}};
    call(f, MC_RPC_OnDisk, &told, &tasks);
    assert_ok(tasks.error);
    struct mw_e_object o = object(f, "k");
    assert_int_equal(o.value.list.replicas.count, 5);
    assert_int_equal(((struct mw_replica *)o.value.list.replicas.items)[4].tag, MW_TAG_LOCAL_DISK);
    assert_int_equal(inspect(f, "k").replicas, 2);
    assert_int_equal(used_bytes(f), 4 * 20 * MIB);
    /* One node goes, and the object is whole in the memory of the other; then that is cleared. */
    assert_ok(unmount(f, ids[0]));
    assert_int_equal(object(f, "k").value.stripes, 2);
    fixture_check(f);
    assert_ok(unmount(f, ids[1]));
    o = object(f, "k");
    assert_ok(o.error);
    assert_int_equal(o.value.stripes, 1);
    assert_int_equal(o.value.size, 40 * MIB);
    assert_int_equal(o.value.list.replicas.count, 1);
    fixture_check(f);
    assert_ok(remove_key(f, "k", true));
    assert_false(exists(f, "k"));
}

/* Half of it is lost: the other half is of no use, and goes, when an SSD has it all. */
static void test_what_is_left_of_a_broken_one_goes_when_an_ssd_has_it(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[2];
    struct mw_e_vec tasks;
    const struct mw_a_client_flag flag = mount_two_with_ssd(f, ids);
    call(f, MC_RPC_TakeOffloads, &flag, &tasks);
    assert_ok(put_striped(f, "k", 40 * MIB));
    call(f, MC_RPC_TakeOffloads, &flag, &tasks);
    assert_int_equal(tasks.value.count, 1);
    struct mw_a_on_disk told = {client_a, str("10.0.0.1:99"), false, tasks.value};
    call(f, MC_RPC_OnDisk, &told, &tasks);
    assert_ok(tasks.error);
    assert_ok(unmount(f, ids[1]));
    struct mw_e_object o = object(f, "k");
    assert_ok(o.error);
    assert_int_equal(o.value.stripes, 1);
    assert_int_equal(o.value.list.replicas.count, 1);
    assert_int_equal(((struct mw_replica *)o.value.list.replicas.items)[0].tag, MW_TAG_LOCAL_DISK);
    tick_for_ms(f, 20);
    assert_int_equal(used_bytes(f), 0);
    fixture_check(f);
}

/* Stripes that move stay before what the SSD has: else they would pass for whole copies once none
 * of the old places is left, and what one lost stripe leaves would be read (simulated seed 8501).
 */
static void test_stripes_that_move_are_stripes_beside_an_ssd_too(void **state) {
    struct fixture *f = *state;
    struct mc_uuid ids[2], late[2];
    struct mw_e_vec tasks;
    const struct mw_a_client_flag flag = mount_two_with_ssd(f, ids);
    call(f, MC_RPC_TakeOffloads, &flag, &tasks);
    assert_ok(put_striped(f, "k", 40 * MIB));
    call(f, MC_RPC_TakeOffloads, &flag, &tasks);
    struct mw_a_on_disk told = {client_a, str("10.0.0.1:99"), false, tasks.value};
    call(f, MC_RPC_OnDisk, &told, &tasks);
    assert_ok(tasks.error);
    const char *const from[] = {"node:0", "node:1"}, *const to[] = {"node:2", "node:3"};
    for (unsigned i = 0; i < 2; i++) {
        struct mw_a_move_start start = {{7, i}, str("k"), str("default"), str(from[i]), str(to[i])};
        struct mw_a_client_key end = {{7, i}, str("k"), str("default")};
        struct mw_e_move started;
        struct mw_e_void r;
        late[i] = mount(f, to[i], SEGMENT);
        call(f, MC_RPC_MoveStart, &start, &started);
        assert_ok(started.error);
        call(f, MC_RPC_MoveEnd, &end, &r);
        assert_ok(r.error);
        fixture_check(f);
    }
    struct mw_e_object o = object(f, "k");
    assert_int_equal(o.value.stripes, 2);
    assert_int_equal(o.value.list.replicas.count, 3);
    assert_ok(unmount(f, late[1]));
    o = object(f, "k");
    assert_int_equal(o.value.stripes, 1);
    assert_int_equal(o.value.list.replicas.count, 1);
    assert_int_equal(((struct mw_replica *)o.value.list.replicas.items)[0].tag, MW_TAG_LOCAL_DISK);
    fixture_check(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_large_objects_are_laid_over_the_segments),
        TEST(test_a_lost_stripe_loses_the_object_and_nothing_else),
        TEST(test_an_upsert_writes_in_place_only_for_who_knows_stripes),
        TEST(test_stripes_move_one_by_one_and_stay_in_order),
        TEST(test_eviction_and_quota_see_all_stripes),
        TEST(test_two_copies_outlive_any_one_node),
        TEST(test_copies_share_the_room_there_is),
        TEST(test_a_move_keeps_copies_apart),
        TEST(test_clearing_a_node_takes_its_stripes),
        TEST(test_a_copy_is_made_step_by_step),
        TEST(test_an_ssd_has_it_whole_when_a_stripe_is_lost),
        TEST(test_what_is_left_of_a_broken_one_goes_when_an_ssd_has_it),
        TEST(test_stripes_that_move_are_stripes_beside_an_ssd_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
