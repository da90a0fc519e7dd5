/*
 * The HTTP server over TLS: whole bodies for who trusts it and whom it trusts, an error for all
 * others and for who speaks plain; handshakes that stop half way delay nobody; certificates change
 * while it runs. The clients are libcurl and the openssl program. MC_TEST_THREADS
 */
#include "io/http.h"
#include "io/io.h"
#include "io/tls.h"
#include "support/certificates.h"

static struct certificates certificates;

static void echo(void *ctx, const struct mc_http_request *request,
                 struct mc_http_response *response) {
    mc_buf_append(&response->body, request->body.ptr, request->body.len);
    mc_buf_puts(&response->body, "!");
}
static const struct mc_http_route ROUTES[] = {{NULL, "/echo", echo}};

struct files {
    char *cert, *key, *ca;
};
static struct files files_of(const char *name, const char *ca) {
    char file[32];
    struct files f = {0};
    if (name != NULL) {
        snprintf(file, sizeof(file), "%s.pem", name);
        f.cert = certificates_file(&certificates, file);
        snprintf(file, sizeof(file), "%s.key", name);
        f.key = certificates_file(&certificates, file);
    }
    f.ca = ca != NULL ? certificates_file(&certificates, ca) : NULL;
    return f;
}
static struct mc_tls_config config_of(const struct files *f) {
    return (struct mc_tls_config){f->cert, f->key, f->ca, NULL};
}
static void files_free(struct files *f) {
    free(f->cert);
    free(f->key);
    free(f->ca);
}

struct site {
    struct mc_http_server *server;
    uint16_t port;
};
static struct site site_start(const char *name, const char *ca) {
    struct site site;
    struct files f = files_of(name, ca);
    const struct mc_tls_config tls = config_of(&f);
    const struct mc_http_server_config config = {.host = "127.0.0.1",
                                                 .routes = ROUTES,
                                                 .route_count = MC_ARRAY_LEN(ROUTES),
                                                 .max_body_bytes = 4 << 20,
                                                 .tls = &tls};
    assert_ok(mc_http_server_start(&config, &site.server, &site.port));
    files_free(&f);
    return site;
}

/* One request with a body of `len` bytes, which must come back. */
static enum mc_status call(const struct site *site, const char *scheme, const char *name,
                           const char *ca, size_t len) {
    char url[64];
    struct files f = files_of(name, ca);
    const struct mc_tls_config tls = config_of(&f);
    struct mc_buf body = {0};
    char *bytes = mc_alloc(len + 1);
    int http_status = 0;
    mc_test_fill(bytes, len, len);
    snprintf(url, sizeof(url), "%s://127.0.0.1:%u/echo", scheme, (unsigned)site->port);
    const struct mc_http_call c = {.method = "POST",
                                   .url = url,
                                   .send = {bytes, len},
                                   .timeout_ms = 20000,
                                   .max_body_bytes = 8 << 20,
                                   .tls = &tls};
    enum mc_status status = mc_http_call(&c, &http_status, &body);
    if (status == MC_OK) {
        assert_int_equal(http_status, 200);
        assert_int_equal(body.len, len + 1);
        mc_test_verify(body.data, len, len);
    }
    mc_buf_free(&body);
    free(bytes);
    files_free(&f);
    return status;
}

static void test_bodies_arrive_for_who_trusts(void **state) {
    struct site site = site_start("server", NULL);
    static const size_t sizes[] = {1, 1000, 16384, 1 << 20, (4 << 20) - 1};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        assert_ok(call(&site, "https", NULL, "ca.pem", sizes[i]));
    }
    assert_int_equal(call(&site, "https", NULL, "stranger.pem", 1), MC_ERR_PROTOCOL);
    assert_int_equal(call(&site, "https", NULL, NULL, 1), MC_ERR_PROTOCOL); /* the system's CAs */
    assert_int_not_equal(call(&site, "http", NULL, NULL, 1), MC_OK);
    assert_ok(call(&site, "https", NULL, "ca.pem", 100));
    mc_http_server_stop(site.server);
}

static void test_the_wrong_certificate_is_an_error(void **state) {
    static const char *const names[] = {"elsewhere", "expired"};
    for (size_t i = 0; i < MC_ARRAY_LEN(names); i++) {
        struct site site = site_start(names[i], NULL);
        assert_int_equal(call(&site, "https", NULL, "ca.pem", 1), MC_ERR_PROTOCOL);
        mc_http_server_stop(site.server);
    }
}

static void test_a_server_may_demand_a_certificate(void **state) {
    struct site site = site_start("server", "ca.pem");
    assert_ok(call(&site, "https", "client", "ca.pem", 1000));
    assert_int_not_equal(call(&site, "https", NULL, "ca.pem", 1), MC_OK);
    assert_int_not_equal(call(&site, "https", "stranger", "ca.pem", 1), MC_OK);
    assert_ok(call(&site, "https", "client", "ca.pem", 1000));
    mc_http_server_stop(site.server);
}

static void test_a_plain_server_answers_no_tls(void **state) {
    const struct mc_http_server_config config = {
        .host = "127.0.0.1", .routes = ROUTES, .route_count = 1, .max_body_bytes = 100};
    struct site site;
    assert_ok(mc_http_server_start(&config, &site.server, &site.port));
    assert_int_not_equal(call(&site, "https", NULL, "ca.pem", 1), MC_OK);
    assert_ok(call(&site, "http", NULL, NULL, 10));
    mc_http_server_stop(site.server);
}

static void test_half_a_handshake_delays_nobody(void **state) {
    struct site site = site_start("server", NULL);
    struct mc_addr addr;
    int fds[60];
    assert_ok(mc_addr_resolve("127.0.0.1", site.port, &addr));
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        assert_ok(mc_connect(&addr, mc_now_ns(mc_clock_system()) + 5 * MC_SEC, &fds[i]));
        const char part[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        assert_true(send(fds[i], part, i % sizeof(part), MSG_NOSIGNAL) >= 0);
        assert_ok(call(&site, "https", NULL, "ca.pem", 100));
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(fds); i++) {
        close(fds[i]);
    }
    mc_http_server_stop(site.server);
}

/* The openssl program's verdict on the server, as a client of the given versions. */
static bool openssl_agrees(const struct site *site, const char *options) {
    struct mc_buf command = {0};
    mc_buf_printf(&command,
                  "echo | timeout 20 openssl s_client -connect 127.0.0.1:%u -CAfile ca.pem "
                  "-verify_return_error -verify_ip 127.0.0.1 %s",
                  (unsigned)site->port, options);
    bool good = certificates_run(&certificates, mc_buf_cstr(&command));
    mc_buf_free(&command);
    return good;
}

static void test_the_openssl_program_agrees(void **state) {
    struct site site = site_start("server", NULL);
    assert_true(openssl_agrees(&site, "-tls1_3"));
    assert_true(openssl_agrees(&site, "-tls1_2"));
    assert_false(openssl_agrees(&site, "-tls1_1"));
    assert_false(openssl_agrees(&site, "-CAfile stranger.pem -no-CApath -no-CAstore"));
    mc_http_server_stop(site.server);
}

static void test_files_that_change_are_used(void **state) {
    assert_true(
        certificates_run(&certificates, "cp expired.pem live.pem && cp expired.key live.key"));
    struct site site = site_start("live", NULL);
    assert_int_equal(call(&site, "https", NULL, "ca.pem", 1), MC_ERR_PROTOCOL);
    assert_true(certificates_run(&certificates, "cp server.key k && mv k live.key"));
    assert_int_equal(call(&site, "https", NULL, "ca.pem", 1), MC_ERR_PROTOCOL); /* half of it */
    assert_true(certificates_run(&certificates, "cp server.pem c && mv c live.pem"));
    enum mc_status status = MC_ERR_PROTOCOL;
    for (int i = 0; i < 200 && status != MC_OK; i++) {
        usleep(50000);
        status = call(&site, "https", NULL, "ca.pem", 1);
    }
    assert_ok(status);
    mc_http_server_stop(site.server);
}

static void test_files_that_are_none_are_named(void **state) {
    static const struct {
        const char *cert, *key, *ca;
    } wrong[] = {{"server.pem", NULL, NULL},
                 {NULL, "server.key", NULL},
                 {NULL, NULL, "ca.pem"},
                 {"server.pem", "client.key", NULL},
                 {"none.pem", "server.key", NULL},
                 {"server.pem", "none.key", NULL},
                 {"server.pem", "server.key", "log"}};
    for (size_t i = 0; i < MC_ARRAY_LEN(wrong); i++) {
        const char *names[3] = {wrong[i].cert, wrong[i].key, wrong[i].ca};
        char *paths[3];
        for (int n = 0; n < 3; n++) {
            paths[n] = names[n] != NULL ? certificates_file(&certificates, names[n]) : NULL;
        }
        const struct mc_tls_config tls = {paths[0], paths[1], paths[2], NULL};
        const struct mc_http_server_config config = {
            .host = "127.0.0.1", .routes = ROUTES, .route_count = 1, .tls = &tls};
        struct site site;
        assert_int_equal(mc_http_server_start(&config, &site.server, &site.port),
                         MC_INVALID_PARAMS);
        for (int n = 0; n < 3; n++) {
            free(paths[n]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_arrive_for_who_trusts),
        cmocka_unit_test(test_the_wrong_certificate_is_an_error),
        cmocka_unit_test(test_a_server_may_demand_a_certificate),
        cmocka_unit_test(test_a_plain_server_answers_no_tls),
        cmocka_unit_test(test_half_a_handshake_delays_nobody),
        cmocka_unit_test(test_the_openssl_program_agrees),
        cmocka_unit_test(test_files_that_change_are_used),
        cmocka_unit_test(test_files_that_are_none_are_named),
    };
    if (!certificates_make(&certificates)) {
        fprintf(stderr, "skipped: certificates could not be made, is the openssl program there?\n");
        return 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    certificates_remove(&certificates);
    return failed;
}
