/*
 * A real etcd with users, and one that demands certificates: who is welcome holds names there as
 * anywhere, also after etcd has forgotten its tokens; who is not gets an error that says why.
 */
#include <stdio.h>

#include "io/http.h"
#include "io/tls.h"
#include "support/certificates.h"
#include "unit/meta/store_scenarios.h"

static struct certificates certificates;

/* ---- administration ---- */

static void ask(const struct store_world *w, const char *path, const char *body) {
    const struct mc_tls_config tls = mc_tls_config_environment();
    char url[128];
    struct mc_buf answer = {0};
    int http_status = 0;
    snprintf(url, sizeof(url), "http%s://127.0.0.1:%u/v3/auth/%s", w->service.secure ? "s" : "",
             w->service.port, path);
    struct mc_http_call call = {.method = "POST",
                                .url = url,
                                .send = mc_str_from(body),
                                .max_body_bytes = 10000,
                                .tls = &tls};
    assert_ok(mc_http_call(&call, &http_status, &answer));
    assert_int_equal(http_status, 200);
    mc_buf_free(&answer);
}

/* "node" may use what begins with "mooncake/" (to "mooncake0"), nobody anything without a user. */
static void enable_users(const struct store_world *w) {
    ask(w, "user/add", "{\"name\":\"root\",\"password\":\"r\"}");
    ask(w, "role/add", "{\"name\":\"root\"}");
    ask(w, "user/grant", "{\"user\":\"root\",\"role\":\"root\"}");
    ask(w, "user/add", "{\"name\":\"node\",\"password\":\"open \\\"sesame\\\"\"}");
    ask(w, "user/add", "{\"name\":\"guest\",\"password\":\"g\"}");
    ask(w, "role/add", "{\"name\":\"nodes\"}");
    ask(w, "role/grant",
        "{\"name\":\"nodes\",\"perm\":{\"permType\":\"READWRITE\",\"key\":\"bW9vbmNha2Uv\","
        "\"range_end\":\"bW9vbmNha2Uw\"}}");
    ask(w, "user/grant", "{\"user\":\"node\",\"role\":\"nodes\"}");
    ask(w, "enable", "{}");
}

static void be(const char *name, const char *password) {
    setenv("MC_ETCD_USERNAME", name, 1);
    setenv("MC_ETCD_PASSWORD", password, 1);
}

static void be_node(void) {
    be("node", "open \"sesame\"");
}

static void use_certificate(const char *name, const char *ca) {
    certificates_use(&certificates, name, ca);
}

/* etcd's gateway refuses certificates with a Common Name while users are enabled. */
static bool make_nameless(void) {
    return certificates_run(
        &certificates,
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout nameless.key "
        "-out nameless.req -subj /O=node && openssl x509 -req -in nameless.req -CA ca.pem "
        "-CAkey ca.key -CAcreateserial -days 2 -out nameless.pem");
}

static int set_up(void **state, bool secure) {
    static char arguments[3][96];
    static const char *const FORMS[] = {"--cert-file=%s/server.pem", "--key-file=%s/server.key",
                                        "--trusted-ca-file=%s/ca.pem"};
    struct store_world *w = calloc(1, sizeof(*w));
    w->ops = &mc_meta_etcd_ops;
    w->service.arguments[0] = "--bcrypt-cost=4"; /* a login in a millisecond */
    if (secure) {
        for (size_t i = 0; i < 3; i++) {
            snprintf(arguments[i], sizeof(arguments[i]), FORMS[i], certificates.folder);
            w->service.arguments[i + 1] = arguments[i];
        }
        w->service.arguments[4] = "--client-cert-auth";
        w->service.secure = true;
        use_certificate("nameless", "ca");
    }
    mc_test_service_start(&w->service, MC_TEST_ETCD);
    *state = w;
    return 0;
}

static int set_up_open(void **state) {
    return set_up(state, false);
}

static int set_up_users(void **state) {
    set_up(state, false);
    enable_users(*state);
    return 0;
}

static int set_up_secure(void **state) {
    set_up(state, true);
    enable_users(*state);
    return 0;
}

static int tear_down(void **state) {
    unsetenv("MC_ETCD_USERNAME");
    unsetenv("MC_ETCD_PASSWORD");
    use_certificate(NULL, NULL);
    return store_tear_down(state);
}

/* ---- tests ---- */

static enum mc_status put_once(const struct store_world *w, const char *key) {
    struct mc_meta_kv *kv = store_open(w, 30);
    enum mc_status status = w->ops->put(kv, key, mc_str_from("{}"), true);
    w->ops->close(kv);
    return status;
}

static void strangers_are_refused(void **state) {
    struct store_world *w = *state;
    struct mc_engine *engine = NULL;
    be_node();
    assert_ok(put_once(w, "mooncake/ram/a"));
    assert_int_equal(put_once(w, "others/a"), MC_ERR_REJECTED); /* not this user's */
    be("node", "wrong");
    assert_int_equal(put_once(w, "mooncake/ram/a"), MC_ERR_REJECTED);
    be("nobody", "open \"sesame\"");
    assert_int_equal(put_once(w, "mooncake/ram/a"), MC_ERR_REJECTED);
    be("guest", "g");
    assert_int_equal(put_once(w, "mooncake/ram/a"), MC_ERR_REJECTED);
    be("", "");
    assert_int_equal(put_once(w, "mooncake/ram/a"), MC_ERR_REJECTED);
    assert_int_equal(store_engine(w->service.url, "node", &engine), MC_ERR_REJECTED);
}

static void a_forgotten_token_is_asked_for_again(void **state) {
    static const char *const keys[] = {"mooncake/ram/a"};
    struct store_world *w = *state;
    be_node();
    struct mc_meta_kv *kv = store_open(w, 3600);
    assert_ok(w->ops->put(kv, keys[0], mc_str_from("{}"), true));
    mc_test_service_kill(&w->service);
    mc_test_service_run(&w->service); /* with its data, without its tokens */
    assert_ok(w->ops->renew(kv, keys, 1));
    assert_true(store_holds(w, keys[0], "{}"));
    mc_test_service_kill(&w->service);
    mc_test_service_run(&w->service);
    w->ops->close(kv); /* revokes the lease, which needs a token too */
    assert_false(store_holds(w, keys[0], ""));
}

static void a_user_where_none_is_asked_for_is_welcome(void **state) {
    struct store_world *w = *state;
    be_node();
    assert_ok(put_once(w, "mooncake/ram/a"));
    enable_users(w); /* and from now on */
    assert_ok(put_once(w, "mooncake/ram/a"));
}

static void certificates_are_checked_both_ways(void **state) {
    struct store_world *w = *state;
    char url[64];
    be_node();
    engines_meet_by_name(state);
    use_certificate("client", "ca"); /* etcd takes no Common Name in place of a user */
    assert_true(put_once(w, "mooncake/ram/a") != MC_OK);
    use_certificate("nameless", "stranger"); /* we do not trust the server */
    assert_int_equal(put_once(w, "mooncake/ram/a"), MC_ERR_PROTOCOL);
    use_certificate(NULL, "ca"); /* it does not trust us */
    assert_true(put_once(w, "mooncake/ram/a") != MC_OK);
    use_certificate("nameless", "ca");
    assert_ok(put_once(w, "mooncake/ram/a"));
    snprintf(url, sizeof(url), "etcd://127.0.0.1:%u", w->service.port);
    struct mc_meta_kv *kv = NULL;
    assert_ok(w->ops->open(url, 30, &kv)); /* plain, to a server that speaks TLS */
    assert_true(w->ops->put(kv, "mooncake/ram/a", mc_str_from("{}"), false) != MC_OK);
    w->ops->close(kv);
}

#define AUTH_TEST(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    mc_test_service_need(MC_TEST_ETCD);
    if (!certificates_make(&certificates) || !make_nameless()) {
        printf("skipped: openssl is not installed\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        AUTH_TEST(strangers_are_refused, set_up_users),
        AUTH_TEST(a_forgotten_token_is_asked_for_again, set_up_users),
        AUTH_TEST(a_user_where_none_is_asked_for_is_welcome, set_up_open),
        AUTH_TEST(certificates_are_checked_both_ways, set_up_secure),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    certificates_remove(&certificates);
    return failed;
}
