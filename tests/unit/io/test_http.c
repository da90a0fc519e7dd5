/* The HTTP server routes, limits and decodes; the client moves bodies whole and tells a refusal
 * from a slow peer. MC_TEST_THREADS */
#include "support/support.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/http.h"
#include "io/io.h"

#define MAX_BODY (1u << 20)

struct site { /* the server thread's, read by the test after its calls */
    _Atomic int calls;
};

static void echo(void *ctx, const struct mc_http_request *request,
                 struct mc_http_response *response) {
    ((struct site *)ctx)->calls++;
    response->content_type = "application/octet-stream";
    mc_buf_append(&response->body, request->body.ptr, request->body.len);
}

static void query(void *ctx, const struct mc_http_request *request,
                  struct mc_http_response *response) {
    const char *key = mc_http_query(request, "key"), *other = mc_http_query(request, "other");
    response->status = key != NULL ? 200 : 400;
    mc_buf_printf(&response->body, "%s|%s|%s", request->method, key != NULL ? key : "-",
                  other != NULL ? other : "-");
}

static void nothing(void *ctx, const struct mc_http_request *request,
                    struct mc_http_response *response) {
    response->status = 204;
}

static void slow(void *ctx, const struct mc_http_request *request,
                 struct mc_http_response *response) {
    usleep(300 * 1000);
}

static const struct mc_http_route ROUTES[] = {
    {"POST", "/echo", echo}, {"PUT", "/echo", echo},       {"GET", "/query", query},
    {NULL, "/any", query},   {"GET", "/nothing", nothing}, {"GET", "/slow", slow},
};

struct fixture {
    struct site site;
    struct mc_http_server *server;
    uint16_t port;
    struct mc_buf body;
    int http_status;
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    const struct mc_http_server_config config = {.host = "",
                                                 .routes = ROUTES,
                                                 .route_count = MC_ARRAY_LEN(ROUTES),
                                                 .max_body_bytes = MAX_BODY,
                                                 .ctx = &f->site};
    assert_ok(mc_http_server_start(&config, &f->server, &f->port));
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mc_http_server_stop(f->server);
    mc_buf_free(&f->body);
    free(f);
    return 0;
}

static enum mc_status call(struct fixture *f, const char *method, const char *host,
                           const char *path, struct mc_str send) {
    char url[512];
    snprintf(url, sizeof(url), "http://%s:%u%s", host, (unsigned)f->port, path);
    struct mc_http_call c = {.method = method,
                             .url = url,
                             .content_type = send.len > 0 ? "application/octet-stream" : NULL,
                             .send = send,
                             .timeout_ms = 20000,
                             .connect_timeout_ms = 5000,
                             .max_body_bytes = 2 * MAX_BODY};
    f->http_status = 0;
    return mc_http_call(&c, &f->http_status, &f->body);
}

static void expect(struct fixture *f, const char *method, const char *path, int http_status,
                   const char *body) {
    assert_ok(call(f, method, "127.0.0.1", path, MC_STR("")));
    assert_int_equal(f->http_status, http_status);
    assert_string_equal(mc_buf_cstr(&f->body), body);
}

static void test_paths_methods_and_queries(void **state) {
    struct fixture *f = *state;
    expect(f, "GET", "/query?key=a%20b%2Fc%26&other=1+2", 200, "GET|a b/c&|1 2");
    expect(f, "GET", "/query?key=&x", 200, "GET||-");
    expect(f, "GET", "/query", 400, "GET|-|-");
    expect(f, "DELETE", "/any?key=k", 200, "DELETE|k|-");
    expect(f, "HEAD", "/query?key=k", 200, "");
    expect(f, "GET", "/nothing", 204, "");
    expect(f, "GET", "/no", 404, "no such path\n");
    expect(f, "GET", "/query/", 404, "no such path\n");
    expect(f, "GET", "/echo", 405, "method not allowed\n");
    expect(f, "POST", "/query", 405, "method not allowed\n");
    expect(f, "POST", "/echo", 200, "");
    assert_ok(call(f, "GET", "[::1]", "/query?key=v6", MC_STR("")));
    assert_string_equal(mc_buf_cstr(&f->body), "GET|v6|-");
}

static void test_an_escaped_key_comes_back(void **state) {
    struct fixture *f = *state;
    struct mc_buf path = {0};
    static const char key[] = "mooncake/ram/a b+c&d=e?f#g%h~\xc3\xa9-._";
    mc_buf_puts(&path, "/query?key=");
    mc_http_escape(&path, MC_STR(key));
    assert_null(strpbrk(mc_buf_cstr(&path) + 11, " +&=?#/"));
    assert_ok(call(f, "GET", "127.0.0.1", path.data, MC_STR("")));
    mc_buf_clear(&path);
    mc_buf_printf(&path, "GET|%s|-", key);
    assert_string_equal(mc_buf_cstr(&f->body), mc_buf_cstr(&path));
    mc_buf_clear(&path);
    mc_http_escape(&path, (struct mc_str){"a\0b", 3});
    assert_string_equal(mc_buf_cstr(&path), "a%00b");
    mc_buf_free(&path);
}

static void test_bodies_up_to_the_limit_come_back_and_larger_ones_are_refused(void **state) {
    struct fixture *f = *state;
    static const size_t sizes[] = {1, 1000, 70000, MAX_BODY};
    char *bytes = mc_zalloc(MAX_BODY + 1);
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        mc_test_fill(bytes, sizes[i], i);
        assert_ok(call(f, i % 2 ? "PUT" : "POST", "127.0.0.1", "/echo",
                       (struct mc_str){bytes, sizes[i]}));
        assert_int_equal(f->http_status, 200);
        assert_int_equal(f->body.len, sizes[i]);
        mc_test_verify(f->body.data, f->body.len, i);
    }
    int before = f->site.calls;
    enum mc_status status =
        call(f, "POST", "127.0.0.1", "/echo", (struct mc_str){bytes, MAX_BODY + 1});
    assert_true(status == MC_ERR_CLOSED || (status == MC_OK && f->http_status == 413));
    assert_int_equal(f->site.calls, before);
    free(bytes);
}

/* What a client that is not libcurl sends. */
static void raw(struct fixture *f, const char *text, char *answer, size_t size) {
    struct mc_addr addr;
    int fd;
    uint64_t deadline = mc_now_ns(mc_clock_system()) + 20 * MC_SEC;
    assert_ok(mc_addr_resolve("127.0.0.1", f->port, &addr));
    assert_ok(mc_connect(&addr, deadline, &fd));
    struct iovec iov = {(char *)text, strlen(text)};
    assert_ok(mc_send_all(fd, &iov, 1, deadline));
    size_t len = 0;
    while (len + 1 < size && mc_recv_all(fd, answer + len, 1, deadline) == MC_OK) {
        len++;
    }
    answer[len] = '\0';
    close(fd);
}

static void test_chunked_bodies_obey_the_limit_and_bad_requests_do_not_hurt(void **state) {
    struct fixture *f = *state;
    static char answer[8192];
    raw(f,
        "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        answer, sizeof(answer));
    assert_non_null(strstr(answer, "200 OK"));
    assert_non_null(strstr(answer, "\r\n\r\nabcde"));
    struct mc_buf big = {0};
    mc_buf_puts(&big, "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: "
                      "chunked\r\n\r\n");
    for (int i = 0; i < 20; i++) {
        mc_buf_puts(&big, "10000\r\n");
        mc_buf_reserve(&big, 0x10000);
        memset(big.data + big.len, 'x', 0x10000);
        big.len += 0x10000;
        mc_buf_puts(&big, "\r\n");
    }
    mc_buf_puts(&big, "0\r\n\r\n");
    raw(f, mc_buf_cstr(&big), answer, sizeof(answer));
    assert_non_null(strstr(answer, " 413 "));
    mc_buf_free(&big);
    raw(f, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n", answer,
        sizeof(answer));
    raw(f, "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", answer, sizeof(answer));
    assert_non_null(strstr(answer, " 405 "));
    assert_non_null(strstr(answer, "Allow: POST, PUT\r\n"));
    raw(f, "\x16\x03\x01 not http\r\n\r\n", answer, sizeof(answer));
    expect(f, "GET", "/query?key=alive", 200, "GET|alive|-");
}

/* What a proxy before the server could read in another way, and what a C string would cut off. */
static void test_requests_that_mean_two_things_are_refused(void **state) {
    struct fixture *f = *state;
    static char answer[8192];
    static const char *const AMBIGUOUS[] = {
        "Content-Length: 4\r\nContent-Length: 40",
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Content-Length : 4"};
    struct mc_buf text = {0};
    for (size_t i = 0; i < MC_ARRAY_LEN(AMBIGUOUS); i++) {
        mc_buf_clear(&text);
        mc_buf_printf(&text,
                      "POST /echo HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n0\r\n\r\n"
                      "GET /query?key=smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
                      AMBIGUOUS[i]);
        raw(f, mc_buf_cstr(&text), answer, sizeof(answer));
        assert_non_null(strstr(answer, " 400 "));
        assert_null(strstr(answer, "smuggled"));
    }
    mc_buf_free(&text);
    expect(f, "GET", "/query?key=a%00b", 400, "a NUL byte in the address\n");
    expect(f, "GET", "/query%00/x?key=a", 400, "a NUL byte in the address\n");
    expect(f, "GET", "/query?key=%2500", 200, "GET|%00|-");
    raw(f, "GET /query?key=%00 HTTP/1.1\r\nHost:\r\n", answer, 1); /* no completion is told */
}

/* More than the server keeps; none gets its request done, and none is ever idle for long. */
#define DRIPPING 300

struct dripping {
    int fds[DRIPPING];
    _Atomic bool stop;
};

static void *drip(void *arg) {
    struct dripping *d = arg;
    while (!d->stop) {
        for (int i = 0; i < DRIPPING; i++) {
            (void)send(d->fds[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        usleep(200000);
    }
    return NULL;
}

static void test_clients_that_drip_shut_nobody_out(void **state) {
    struct fixture *f = *state;
    struct dripping d = {.stop = false};
    struct mc_addr addr;
    pthread_t thread;
    char answer[1024], byte;
    uint64_t deadline = mc_now_ns(mc_clock_system()) + 20 * MC_SEC;
    assert_ok(mc_addr_resolve("127.0.0.1", f->port, &addr));
    for (int i = 0; i < DRIPPING; i++) {
        static const char beginning[] = "GET /query?key=x HTTP/1.1\r\nHost: x\r\n";
        struct iovec iov = {(char *)(uintptr_t)beginning, i % 3 == 0 ? 1 : sizeof(beginning) - 1};
        assert_ok(mc_connect(&addr, deadline, &d.fds[i]));
        assert_ok(mc_send_all(d.fds[i], &iov, 1, deadline));
    }
    pthread_create(&thread, NULL, drip, &d);
    raw(f, "GET /query?key=new HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", answer,
        sizeof(answer));
    assert_non_null(strstr(answer, "GET|new|-"));
    d.stop = true;
    pthread_join(thread, NULL);
    assert_true(mc_recv_all(d.fds[0], &byte, 1, deadline) != MC_OK);
    for (int i = 0; i < DRIPPING; i++) {
        close(d.fds[i]);
    }
}

static void test_the_client_says_what_went_wrong(void **state) {
    struct fixture *f = *state;
    struct mc_http_call c = {
        .method = "GET", .timeout_ms = 20000, .connect_timeout_ms = 5000, .max_body_bytes = 4};
    char url[128];
    int http_status = -7, fd;
    uint16_t port;
    c.url = url;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u/query?key=long", (unsigned)f->port);
    assert_int_equal(mc_http_call(&c, &http_status, &f->body), MC_ERR_LIMIT);
    assert_int_equal(f->body.len, 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/slow", (unsigned)f->port);
    c.timeout_ms = 50;
    assert_int_equal(mc_http_call(&c, &http_status, &f->body), MC_ERR_TIMEOUT);
    c.timeout_ms = 20000;

    assert_ok(mc_listen("127.0.0.1", 0, 4, &fd, &port)); /* taken, then closed: nobody is there */
    close(fd);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/", (unsigned)port);
    assert_int_equal(mc_http_call(&c, &http_status, &f->body), MC_ERR_UNREACHABLE);
    static const char *const bad[] = {"", "http://", "file:///etc/passwd",
                                      "http://no.such.host.invalid/", "nonsense://x"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        c.url = bad[i];
        assert_int_equal(mc_http_call(&c, &http_status, &f->body), MC_ERR_BAD_ADDRESS);
    }
    assert_int_equal(http_status, -7);
}

static void test_a_port_in_use_is_refused(void **state) {
    struct fixture *f = *state;
    const struct mc_http_server_config config = {
        .host = "", .port = f->port, .routes = ROUTES, .route_count = 1};
    struct mc_http_server *other;
    uint16_t port;
    assert_int_equal(mc_http_server_start(&config, &other, &port), MC_ERR_ADDRESS_IN_USE);
}

#define THREADS 4
#define CALLS   50

static void *many_calls(void *arg) {
    struct fixture *f = arg;
    struct mc_buf body = {0};
    char url[128], bytes[300];
    int http_status;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/echo", (unsigned)f->port);
    for (size_t i = 0; i < CALLS; i++) {
        size_t len = 1 + i * 5;
        mc_test_fill(bytes, len, i);
        struct mc_http_call c = {"POST", url, "text/plain", {bytes, len}, 20000, 5000, 1000};
        assert_ok(mc_http_call(&c, &http_status, &body));
        assert_int_equal(body.len, len);
        mc_test_verify(body.data, len, i);
    }
    mc_buf_free(&body);
    return NULL;
}

static void test_calls_of_many_threads(void **state) {
    struct fixture *f = *state;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, many_calls, f);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(f->site.calls, THREADS * CALLS);
}

static size_t open_descriptors(void) {
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

static void test_a_stopped_server_leaves_nothing_open(void **state) {
    size_t before = open_descriptors();
    for (int i = 0; i < 5; i++) {
        void *inner;
        setup(&inner);
        teardown(&inner);
    }
    assert_int_equal(open_descriptors(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_paths_methods_and_queries, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_escaped_key_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_bodies_up_to_the_limit_come_back_and_larger_ones_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_chunked_bodies_obey_the_limit_and_bad_requests_do_not_hurt, setup, teardown),
        cmocka_unit_test_setup_teardown(test_requests_that_mean_two_things_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_clients_that_drip_shut_nobody_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_client_says_what_went_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_port_in_use_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_calls_of_many_threads, setup, teardown),
        cmocka_unit_test(test_a_stopped_server_leaves_nothing_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
