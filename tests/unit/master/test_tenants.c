/*
 * Only tenants with a quota write, none charges more than its quota, and what is charged is what
 * its objects take, whatever happens to them (every teardown's fsck compares).
 */
#include <stdio.h>
#include <unistd.h>

#include "support/master_fixture.h"

#define MIB (1ull << 20)

static char path[64];

static void write_policy(const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state) {
    snprintf(path, sizeof(path), "/tmp/mc_test_tenants_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_policy("version: 1\n\ntenants:\n  - name: \"a\"\n    quota: 4MB\n  - {name: b, quota: "
                 "1048576}\n");
    fixture_setup(state);
    struct fixture *f = *state;
    f->config.enable_multi_tenants = true;
    f->config.tenant_quota_policy = path;
    f->config.default_kv_lease_ttl_ms = 1000;
    fixture_restart(f);
    mount(f, "s:1", FIXTURE_SEGMENT_BYTES);
    mount(f, "s:2", FIXTURE_SEGMENT_BYTES);
    return 0;
}

static int teardown(void **state) {
    unlink(path);
    return fixture_teardown(state);
}

static struct mc_tenant_info info(struct fixture *f, const char *name) {
    struct mc_tenant_info *all, none = {0};
    size_t count;
    assert_ok(mc_master_tenants(f->m, &f->arena, &all, &count));
    for (size_t i = 0; i < count; i++) {
        if (mc_str_eq(all[i].name, str(name))) {
            return all[i];
        }
    }
    return none;
}

static int32_t begin(struct fixture *f, const char *tenant, const char *key, uint64_t size,
                     unsigned count) {
    struct mc_vec out;
    return put_start_with(f, client_a, tenant, key, size, replicas(count), &out);
}

static int32_t end(struct fixture *f, const char *tenant, const char *key) {
    return put_end_as(f, client_a, tenant, key, MC_REPLICA_ALL);
}

static int32_t store(struct fixture *f, const char *tenant, const char *key, uint64_t size,
                     unsigned count) {
    int32_t status = begin(f, tenant, key, size, count);
    return status == MC_OK ? end(f, tenant, key) : status;
}

static int32_t find(struct fixture *f, const char *tenant, const char *key) {
    struct mw_replica_list list;
    return mc_master_peek(f->m, str(tenant), str(key), &f->arena, &list);
}

static int32_t upsert_of(struct fixture *f, const char *key, uint64_t size) {
    struct mw_a_put_start args = {client_a, str(key), size, replicas(1), MC_STR("a")};
    struct mw_e_vec r;
    call(f, MC_RPC_UpsertStart, &args, &r);
    return r.error;
}

static void test_only_tenants_with_a_quota_write(void **state) {
    struct fixture *f = *state;
    assert_int_equal(begin(f, "zz", "k", 16, 1), MC_TENANT_NOT_REGISTERED);
    assert_int_equal(begin(f, "default", "k", 16, 1), MC_TENANT_NOT_REGISTERED);
    assert_int_equal(begin(f, "_a", "k", 16, 1), MC_INVALID_PARAMS);
    assert_ok(store(f, "a", "k", 16, 1));
    assert_ok(find(f, "a", "k"));
    assert_int_equal(find(f, "b", "k"), MC_OBJECT_NOT_FOUND);
    assert_ok(store(f, "b", "k", 16, 1)); /* keys are the tenant's own */
}

static void test_charges_follow_the_replicas(void **state) {
    struct fixture *f = *state;
    assert_ok(begin(f, "a", "one", MIB / 2, 2));
    assert_int_equal(info(f, "a").charged, MIB);
    fixture_check(f);
    assert_ok(end(f, "a", "one"));
    assert_int_equal(info(f, "a").charged, MIB);
    assert_ok(begin(f, "a", "two", MIB, 3)); /* two segments: two replicas */
    assert_int_equal(info(f, "a").charged, 3 * MIB);
    assert_ok(put_revoke_as(f, client_a, "a", "two", MC_REPLICA_ALL));
    assert_int_equal(info(f, "a").charged, MIB);
    assert_int_equal(remove_all(f, "a", true), 1);
    assert_int_equal(info(f, "a").charged, 0);
    assert_ok(begin(f, "a", "lost", MIB, 1)); /* nobody ends it */
    tick_for_ms(f, f->config.put_start_release_timeout_ms + 1000);
    assert_int_equal(info(f, "a").charged, 0);
}

static void test_over_the_quota_the_tenants_own_oldest_goes(void **state) {
    struct fixture *f = *state;
    assert_ok(store(f, "b", "other", 1000, 1));
    assert_ok(store(f, "a", "old", 2 * MIB, 1));
    tick_for_ms(f, 10);
    assert_ok(store(f, "a", "new", 2 * MIB, 1));
    assert_int_equal(info(f, "a").charged, 4 * MIB);
    tick_for_ms(f, 10);
    assert_ok(store(f, "a", "more", MIB, 1));
    assert_int_equal(find(f, "a", "old"), MC_OBJECT_NOT_FOUND);
    assert_ok(find(f, "a", "new"));
    assert_ok(find(f, "b", "other"));
    assert_int_equal(info(f, "a").charged, 3 * MIB);
    fixture_check(f);
    assert_int_equal(begin(f, "a", "huge", 5 * MIB, 1), MC_TENANT_QUOTA_EXCEEDED);
    assert_ok(find(f, "a", "new")); /* in vain nothing goes */
}

static void test_leased_objects_stay_and_the_put_is_refused(void **state) {
    struct fixture *f = *state;
    struct mw_replica_list list;
    assert_ok(store(f, "a", "read", 4 * MIB, 1));
    assert_ok(get_list(f, "a", "read", &list));
    assert_int_equal(begin(f, "a", "more", 1, 1), MC_TENANT_QUOTA_EXCEEDED);
    assert_ok(find(f, "a", "read"));
    advance_ms(f, 1001);
    assert_ok(store(f, "a", "more", 1, 1));
    assert_int_equal(info(f, "a").charged, 1);
}

static void test_an_upsert_needs_only_the_difference(void **state) {
    struct fixture *f = *state;
    assert_ok(store(f, "a", "k", 3 * MIB, 1));
    assert_ok(upsert_of(f, "k", 4 * MIB));
    assert_int_equal(info(f, "a").charged, 4 * MIB);
    fixture_check(f);
    assert_ok(end(f, "a", "k"));
    assert_ok(upsert_of(f, "k", 4 * MIB)); /* in place */
    assert_int_equal(info(f, "a").charged, 4 * MIB);
    assert_ok(end(f, "a", "k"));
    assert_int_equal(upsert_of(f, "k", 4 * MIB + 1), MC_TENANT_QUOTA_EXCEEDED);
    assert_ok(find(f, "a", "k"));
}

/* The same of an object that cannot be evicted to make room for its next self. */
static void test_an_upsert_of_what_is_pinned_needs_only_the_difference(void **state) {
    struct fixture *f = *state;
    struct mc_vec out;
    struct mw_replicate_config pinned = replicas(1);
    pinned.with_hard_pin = true;
    assert_ok(put_start_with(f, client_a, "a", "k", 3 * MIB, pinned, &out));
    assert_ok(end(f, "a", "k"));
    assert_ok(upsert_of(f, "k", 4 * MIB));
    assert_ok(end(f, "a", "k"));
    assert_int_equal(info(f, "a").charged, 4 * MIB);
    assert_int_equal(begin(f, "a", "other", 1, 1), MC_TENANT_QUOTA_EXCEEDED);
    assert_ok(upsert_of(f, "k", 2 * MIB));
    assert_ok(end(f, "a", "k"));
    tick_for_ms(f, 2000); /* nobody reads the old bytes any more */
    assert_int_equal(info(f, "a").charged, 2 * MIB);
    fixture_check(f);
    assert_ok(mc_master_tenant_set(f->m, MC_STR("a"), MIB)); /* less than there is */
    assert_int_equal(begin(f, "a", "other", 1, 1), MC_TENANT_QUOTA_EXCEEDED);
    assert_ok(upsert_of(f, "k", MIB));
    assert_ok(end(f, "a", "k"));
}

static void test_copies_are_charged(void **state) {
    struct fixture *f = *state;
    struct mc_vec out;
    struct mw_replicate_config config = replicas(1);
    const char *preferred[] = {"s:1"};
    config.preferred_segments = strs(f, 1, preferred);
    assert_ok(put_start_with(f, client_a, "b", "k", 600000, config, &out));
    assert_ok(end(f, "b", "k"));
    const char *targets[] = {"s:2"};
    struct mw_a_copy_start args = {client_a, MC_STR("k"), MC_STR("b"), MC_STR("s:1"),
                                   strs(f, 1, targets)};
    struct mw_e_copy r;
    call(f, MC_RPC_CopyStart, &args, &r);
    assert_int_equal(r.error, MC_TENANT_QUOTA_EXCEEDED);
    fixture_check(f);
    assert_ok(mc_master_tenant_set(f->m, MC_STR("b"), 2 * MIB));
    call(f, MC_RPC_CopyStart, &args, &r);
    assert_ok(r.error);
    assert_int_equal(info(f, "b").charged, 1200000);
    fixture_check(f);
}

static void test_quotas_shrink_with_the_memory(void **state) {
    struct fixture *f = *state;
    const uint64_t capacity = 2 * FIXTURE_SEGMENT_BYTES;
    assert_ok(mc_master_tenant_set(f->m, MC_STR("c"), 5000));
    assert_ok(mc_master_tenant_delete(f->m, MC_STR("b")));
    assert_ok(mc_master_tenant_set(f->m, MC_STR("big"), 99999999999));
    /* what upstream's master says of the same */
    assert_int_equal(info(f, "a").effective, 1407);
    assert_int_equal(info(f, "c").effective, 2);
    assert_int_equal(info(f, "big").effective, 33553023);
    assert_int_equal(1407 + 2 + 33553023, capacity);
}

static void test_policies_are_kept_in_the_file(void **state) {
    struct fixture *f = *state;
    char text[256] = {0};
    assert_ok(mc_master_tenant_set(f->m, MC_STR("\"q\\"), 7));
    assert_ok(mc_master_tenant_delete(f->m, MC_STR("b")));
    assert_int_equal(mc_master_tenant_delete(f->m, MC_STR("b")), MC_OBJECT_NOT_FOUND);
    assert_int_equal(mc_master_tenant_set(f->m, MC_STR("a"), 0), MC_INVALID_PARAMS);
    assert_ok(store(f, "a", "k", 1, 1));
    assert_int_equal(mc_master_tenant_delete(f->m, MC_STR("a")), MC_TENANT_NOT_EMPTY);
    FILE *file = fopen(path, "r");
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    assert_string_equal(text, "version: 1\n\ntenants:\n  - name: \"\\\"q\\\\\"\n    quota: 7\n"
                              "  - name: \"a\"\n    quota: 4194304\n");
    fixture_check(f);
    fixture_restart(f);
    assert_int_equal(info(f, "\"q\\").requested, 7);
    assert_int_equal(info(f, "a").requested, 4 * MIB);
    assert_int_equal(info(f, "a").charged, 0);
    unlink(path);
}

static void test_wrong_files_stop_the_start(void **state) {
    struct fixture *f = *state;
    static const char *const wrong[] = {
        "",
        "version: 2\ntenants: []\n",
        "tenants: []\n",
        "version: 1\n",
        "version: 1\ntenants: 5\n",
        "version: 1\ntenants:\n  - name: a\n",
        "version: 1\ntenants:\n  - {name: a, quota: 0}\n",
        "version: 1\ntenants:\n  - {name: a, quota: 1 MB}\n",
        "version: 1\ntenants:\n  - {name: a, quota: 1mb}\n",
        "version: 1\ntenants:\n  - {name: a, quota: 9223372036854775808}\n",
        "version: 1\ntenants:\n  - {name: a, quota: 8388608TB}\n",
        "version: 1\ntenants:\n  - {name: _a, quota: 1}\n",
        "version: 1\ntenants:\n  - {name: '', quota: 1}\n",
        "version: 1\ntenants:\n  - {name: a, quota: 1}\n  - {name: a, quota: 2}\n",
        "version: 1\ntenants: [}\n"};
    for (size_t i = 0; i < MC_ARRAY_LEN(wrong); i++) {
        write_policy(wrong[i]);
        assert_null(mc_master_create(&f->config, &f->clock, NULL));
    }
    char *deep = mc_zalloc(200001); /* libyaml alone needs minutes to load it */
    memset(deep, '[', 200000);
    write_policy(deep);
    free(deep);
    assert_null(mc_master_create(&f->config, &f->clock, NULL));
    write_policy("version: 1\ntenants:\n  - {name: a, quota: 9223372036854775807}\n  - {name: b, "
                 "quota: 1TB}\n  - {name: c, quota: 1B}\n");
    fixture_restart(f);
    assert_int_equal(info(f, "a").requested, INT64_MAX);
    assert_int_equal(info(f, "b").requested, 1ull << 40);
    unlink(path);
    assert_null(mc_master_create(&f->config, &f->clock, NULL));
}

static void test_without_the_option_there_are_no_quotas(void **state) {
    struct fixture *f = *state;
    struct mc_tenant_info *all;
    size_t count;
    f->config.enable_multi_tenants = false;
    fixture_restart(f);
    mount(f, "s:3", FIXTURE_SEGMENT_BYTES);
    assert_ok(store(f, "zz", "k", 8 * MIB, 1));
    assert_int_equal(mc_master_tenants(f->m, &f->arena, &all, &count),
                     MC_UNAVAILABLE_IN_CURRENT_MODE);
    assert_int_equal(mc_master_tenant_set(f->m, MC_STR("a"), 1), MC_UNAVAILABLE_IN_CURRENT_MODE);
}

#define TENANT_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TENANT_TEST(test_only_tenants_with_a_quota_write),
        TENANT_TEST(test_charges_follow_the_replicas),
        TENANT_TEST(test_over_the_quota_the_tenants_own_oldest_goes),
        TENANT_TEST(test_leased_objects_stay_and_the_put_is_refused),
        TENANT_TEST(test_an_upsert_needs_only_the_difference),
        TENANT_TEST(test_an_upsert_of_what_is_pinned_needs_only_the_difference),
        TENANT_TEST(test_copies_are_charged),
        TENANT_TEST(test_quotas_shrink_with_the_memory),
        TENANT_TEST(test_policies_are_kept_in_the_file),
        TENANT_TEST(test_wrong_files_stop_the_start),
        TENANT_TEST(test_without_the_option_there_are_no_quotas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
