/*
 * Engines that find each other through a real Redis: names are claimed, leased, taken over from the
 * dead and published again; passwords, users and databases are obeyed; replicas are passed over.
 * MC_TEST_THREADS
 */
#include <stdio.h>

#include "unit/meta/store_scenarios.h"

static void unset_login(void) {
    unsetenv("MC_REDIS_USERNAME");
    unsetenv("MC_REDIS_PASSWORD");
    unsetenv("MC_REDIS_DB_INDEX");
}

static enum mc_status put_as(const struct store_world *w, const char *user, const char *password,
                             const char *db) {
    struct mc_meta_kv *kv = NULL;
    setenv("MC_REDIS_USERNAME", user, 1);
    setenv("MC_REDIS_PASSWORD", password, 1);
    setenv("MC_REDIS_DB_INDEX", db, 1);
    enum mc_status status = w->ops->open(w->service.url, 30, &kv);
    if (status == MC_OK) {
        status = w->ops->put(kv, "mooncake/ram/x", mc_str_from("{}"), true);
        w->ops->close(kv);
    }
    unset_login();
    return status;
}

/* `arguments` has 8 places. */
static void restart_with(struct store_world *w, const char *const *arguments) {
    mc_test_service_kill(&w->service);
    memcpy(w->service.arguments, arguments, sizeof(w->service.arguments));
    mc_test_service_run(&w->service);
}

static void passwords_are_obeyed(void **state) {
    static const char *const with_password[8] = {"--requirepass", "secret word"};
    static const char *const with_user[8] = {"--user", "mooncake",    "on",
                                             ">pw",    "~mooncake/*", "+@all"};
    struct store_world *w = *state;
    assert_ok(put_as(w, "", "", ""));
    assert_int_equal(put_as(w, "", "unasked", ""), MC_ERR_REJECTED); /* none is configured */
    restart_with(w, with_password);
    assert_ok(put_as(w, "", "secret word", ""));
    assert_ok(put_as(w, "default", "secret word", ""));
    assert_int_equal(put_as(w, "", "", ""), MC_ERR_REJECTED);
    assert_int_equal(put_as(w, "", "wrong", ""), MC_ERR_REJECTED);
    assert_int_equal(put_as(w, "nobody", "secret word", ""), MC_ERR_REJECTED);
    restart_with(w, with_user);
    assert_ok(put_as(w, "mooncake", "pw", ""));
    struct mc_engine *a = NULL;
    setenv("MC_REDIS_PASSWORD", "wrong", 1);
    assert_int_equal(store_engine(w->service.url, "node", &a), MC_ERR_REJECTED);
    unset_login();
}

static void databases_are_apart(void **state) {
    struct store_world *w = *state;
    assert_ok(put_as(w, "", "", "3"));
    assert_false(store_holds(w, "mooncake/ram/x", ""));
    setenv("MC_REDIS_DB_INDEX", "3", 1);
    assert_true(store_holds(w, "mooncake/ram/x", "{}"));
    unset_login();
    assert_int_equal(put_as(w, "", "", "16"), MC_ERR_REJECTED); /* redis-server has 16 */
    assert_int_equal(put_as(w, "", "", "three"), MC_INVALID_PARAMS);
    assert_int_equal(put_as(w, "", "", "-1"), MC_INVALID_PARAMS);
    assert_int_equal(put_as(w, "", "", "99999999999"), MC_INVALID_PARAMS);
}

static void a_replica_is_passed_over(void **state) {
    struct store_world *w = *state;
    struct mc_test_service replica = {0};
    struct mc_meta_kv *kv = NULL;
    char of[48], url[96];
    snprintf(of, sizeof(of), "127.0.0.1 %u", w->service.port);
    replica.arguments[0] = "--replicaof";
    replica.arguments[1] = of;
    mc_test_service_start(&replica, MC_TEST_REDIS);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u,127.0.0.1:%u", replica.port, w->service.port);
    assert_ok(w->ops->open(url, 30, &kv));
    assert_ok(w->ops->put(kv, "mooncake/ram/x", mc_str_from("{}"), true));
    assert_true(store_holds(w, "mooncake/ram/x", "{}"));
    w->ops->close(kv);
    mc_test_service_stop(&replica);
}

static void a_lease_is_the_records_own(void **state) {
    struct store_world *w = *state;
    static const char *const keys[] = {"mooncake/ram/a", "mooncake/ram/b"};
    struct mc_meta_kv *kv = store_open(w, 30);
    assert_ok(w->ops->put(kv, keys[0], mc_str_from("{}"), true));
    assert_ok(w->ops->renew(kv, keys, 1));
    assert_int_equal(w->ops->renew(kv, keys, 2), MC_ERR_NOT_FOUND);
    w->ops->close(kv);
}

#define REDIS_TEST(name) STORE_SCENARIO(name, store_set_up_redis)

int main(int argc, char **argv) {
    store_be_publisher(argc, argv);
    mc_test_service_need(MC_TEST_REDIS);
    const struct CMUnitTest tests[] = {
        STORE_SCENARIOS(store_set_up_redis),
        REDIS_TEST(passwords_are_obeyed),
        REDIS_TEST(databases_are_apart),
        REDIS_TEST(a_replica_is_passed_over),
        REDIS_TEST(a_broken_connection_is_not_noticed),
        REDIS_TEST(a_lease_is_the_records_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
