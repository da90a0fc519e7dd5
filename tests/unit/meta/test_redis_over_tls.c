/*
 * A real Redis that speaks TLS and demands certificates: who has one holds names there as anywhere;
 * who has none, or trusts another, or speaks plain, gets an error. MC_TEST_THREADS
 */
#include <stdio.h>

#include "support/certificates.h"
#include "unit/meta/store_scenarios.h"

static struct certificates certificates;

static int set_up(void **state) {
    static char arguments[3][96];
    static const char *const FLAGS[] = {"--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file"};
    static const char *const FILES[] = {"server.pem", "server.key", "ca.pem"};
    struct store_world *w = calloc(1, sizeof(*w));
    w->ops = &mc_meta_redis_ops;
    w->service.secure = true;
    for (size_t i = 0; i < 3; i++) {
        snprintf(arguments[i], sizeof(arguments[i]), "%s/%s", certificates.folder, FILES[i]);
        w->service.arguments[2 * i] = FLAGS[i];
        w->service.arguments[2 * i + 1] = arguments[i];
    }
    mc_test_service_start(&w->service, MC_TEST_REDIS);
    certificates_use(&certificates, "client", "ca");
    *state = w;
    return 0;
}

static int tear_down(void **state) {
    certificates_use(&certificates, NULL, NULL);
    return store_tear_down(state);
}

static enum mc_status put_once(const struct store_world *w, const char *url) {
    struct mc_meta_kv *kv = NULL;
    enum mc_status status = w->ops->open(url, 30, &kv);
    if (status == MC_OK) {
        status = w->ops->put(kv, "mooncake/ram/a", mc_str_from("{}"), true);
        w->ops->close(kv);
    }
    return status;
}

static void certificates_are_checked_both_ways(void **state) {
    struct store_world *w = *state;
    struct mc_engine *engine = NULL;
    char plain[64], other_name[96];
    assert_ok(put_once(w, w->service.url));
    snprintf(other_name, sizeof(other_name), "rediss://127.0.0.2:%u,127.0.0.1:%u", w->service.port,
             w->service.port);
    assert_ok(put_once(w, other_name));                    /* nobody listens at the first */
    certificates_use(&certificates, "client", "stranger"); /* we do not trust the server */
    assert_int_equal(put_once(w, w->service.url), MC_ERR_PROTOCOL);
    assert_int_equal(store_engine(w->service.url, "node", &engine), MC_ERR_PROTOCOL);
    certificates_use(&certificates, NULL, "ca"); /* it does not trust us */
    assert_true(put_once(w, w->service.url) != MC_OK);
    certificates_use(&certificates, "client", "ca");
    setenv("MC_TLS_CA", "/nowhere/ca.pem", 1);
    assert_int_equal(put_once(w, w->service.url), MC_INVALID_PARAMS);
    certificates_use(&certificates, "client", "ca");
    snprintf(plain, sizeof(plain), "redis://127.0.0.1:%u", w->service.port);
    assert_true(put_once(w, plain) != MC_OK); /* plain, to a server that speaks TLS */
    assert_ok(put_once(w, w->service.url));
}

/* A descriptor of many buffers takes many records of TLS and many reads. */
static void a_long_value_comes_back_whole(void **state) {
    struct store_world *w = *state;
    struct mc_meta_kv *kv = store_open(w, 30);
    struct mc_buf long_value = {0}, got = {0};
    while (long_value.len < 300000) {
        mc_buf_printf(&long_value, "{\"addr\":%zu}", long_value.len);
    }
    assert_ok(w->ops->put(kv, "mooncake/ram/long", (struct mc_str){long_value.data, long_value.len},
                          true));
    assert_ok(w->ops->get(kv, "mooncake/ram/long", &got));
    assert_int_equal(got.len, long_value.len + 1); /* a newline behind it, as upstream's */
    assert_memory_equal(got.data, long_value.data, long_value.len);
    mc_buf_free(&long_value);
    mc_buf_free(&got);
    w->ops->close(kv);
}

#define TLS_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    mc_test_service_need(MC_TEST_REDIS);
    if (!certificates_make(&certificates)) {
        printf("skipped: openssl is not installed\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        TLS_TEST(engines_meet_by_name),
        TLS_TEST(a_live_engine_keeps_its_name),
        TLS_TEST(certificates_are_checked_both_ways),
        TLS_TEST(a_broken_connection_is_not_noticed),
        TLS_TEST(a_long_value_comes_back_whole),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    certificates_remove(&certificates);
    return failed;
}
