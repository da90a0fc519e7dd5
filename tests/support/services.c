/* See services.h. Ports lie below the ephemeral range, so that while a service is away no outgoing
 * connection takes its port. */
#include "support/services.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/http.h"
#include "io/tls.h"
#include "support/support.h"

#define READY_S     120 /* a busy machine takes seconds to start etcd */
#define START_TRIES 5   /* somebody else may take the port that was free */

static const char *program_of(enum mc_test_service_kind kind) {
    static const char *const ETCD[] = {"/usr/bin/etcd", "/usr/local/bin/etcd", NULL};
    static const char *const REDIS[] = {"/usr/bin/redis-server", "/usr/local/bin/redis-server",
                                        NULL};
    const char *const *at = kind == MC_TEST_ETCD ? ETCD : REDIS;
    while (*at != NULL && access(*at, X_OK) != 0) {
        at++;
    }
    return *at;
}

void mc_test_service_need(enum mc_test_service_kind kind) {
    if (program_of(kind) == NULL) {
        printf("skipped: %s is not installed (tools/setup does that)\n",
               kind == MC_TEST_ETCD ? "etcd" : "redis-server");
        exit(77);
    }
}

static bool answers(uint16_t port, const char *send_text, const char *expected) {
    char got[64] = {0};
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
                (send_text == NULL ||
                 (send(fd, send_text, strlen(send_text), MSG_NOSIGNAL) > 0 &&
                  recv(fd, got, sizeof(got) - 1, 0) > 0 && strstr(got, expected) != NULL));
    close(fd);
    return good;
}

/* Another than `taken`. */
static uint16_t free_port(uint16_t taken) {
    struct mc_rng rng;
    mc_rng_seed_system(&rng);
    for (;;) {
        uint16_t port = (uint16_t)(17100 + mc_rng_below(&rng, 13900));
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons(port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool free_now = bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
        close(fd);
        if (free_now && port != taken) {
            return port;
        }
    }
}

static void exec_with(const struct mc_test_service *s, const char *argv[32], size_t count) {
    for (size_t i = 0; s->arguments[i] != NULL; i++) {
        argv[count++] = s->arguments[i];
    }
    execv(program_of(s->kind), (char **)(uintptr_t)argv);
}

static void exec_etcd(const struct mc_test_service *s) {
    char client[64], peer[64], cluster[96];
    snprintf(client, sizeof(client), "http%s://127.0.0.1:%u", s->secure ? "s" : "", s->port);
    snprintf(peer, sizeof(peer), "http://127.0.0.1:%u", s->peer_port);
    snprintf(cluster, sizeof(cluster), "test=%s", peer);
    const char *argv[32] = {"etcd",
                            "--name=test",
                            "--unsafe-no-fsync",
                            "--heartbeat-interval=20",
                            "--election-timeout=200",
                            "--data-dir",
                            s->directory,
                            "--listen-client-urls",
                            client,
                            "--advertise-client-urls",
                            client,
                            "--listen-peer-urls",
                            peer,
                            "--initial-advertise-peer-urls",
                            peer,
                            "--initial-cluster",
                            cluster};
    exec_with(s, argv, 17);
}

static void exec_redis(const struct mc_test_service *s) {
    char port[8];
    snprintf(port, sizeof(port), "%u", s->port);
    const char *argv[32] = {"redis-server", "--bind", "127.0.0.1",           "--save", "", "--dir",
                            s->directory,   "--port", s->secure ? "0" : port};
    size_t count = 9;
    if (s->secure) {
        argv[count++] = "--tls-port";
        argv[count++] = port;
    }
    exec_with(s, argv, count);
}

static bool answers_https(uint16_t port) {
    const struct mc_tls_config tls = mc_tls_config_environment();
    char url[48];
    struct mc_buf body = {0};
    int http_status = 0;
    snprintf(url, sizeof(url), "https://127.0.0.1:%u/health", port);
    struct mc_http_call call = {
        .method = "GET", .url = url, .max_body_bytes = 1000, .tls = &tls, .timeout_ms = 2000};
    enum mc_status status = mc_http_call(&call, &http_status, &body);
    mc_buf_free(&body);
    return status == MC_OK && http_status == 200;
}

static bool ready(const struct mc_test_service *s) {
    if (s->kind == MC_TEST_REDIS) { /* -NOAUTH is an answer too; in TLS it listens, or does not */
        return answers(s->port, s->secure ? NULL : "PING\r\n", "");
    }
    return s->secure ? answers_https(s->port)
                     : answers(s->port, "GET /health HTTP/1.0\r\n\r\n", "200");
}

/* False when it ended instead of serving. */
static bool run(struct mc_test_service *s) {
    assert_int_equal(s->pid, 0);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null_fd = open("/dev/null", O_RDWR);
        dup2(null_fd, 0);
        dup2(null_fd, 1);
        dup2(null_fd, 2);
        s->kind == MC_TEST_ETCD ? exec_etcd(s) : exec_redis(s);
        _exit(127);
    }
    uint64_t deadline = mc_now_ns(mc_clock_system()) + READY_S * MC_SEC;
    while (!ready(s)) {
        assert_true(mc_now_ns(mc_clock_system()) < deadline);
        if (waitpid(s->pid, NULL, WNOHANG) != 0) {
            s->pid = 0;
            return false;
        }
        usleep(10000);
    }
    return true;
}

void mc_test_service_run(struct mc_test_service *s) {
    assert_true(run(s));
}

void mc_test_service_start(struct mc_test_service *s, enum mc_test_service_kind kind) {
    s->kind = kind;
    s->pid = 0;
    snprintf(s->directory, sizeof(s->directory), "/tmp/mooncake-test-XXXXXX");
    assert_non_null(mkdtemp(s->directory));
    for (int tries = 1;; tries++) {
        s->port = free_port(0);
        s->peer_port = free_port(s->port);
        if (run(s)) {
            break;
        }
        assert_true(tries < START_TRIES);
        mc_test_service_forget(s);
    }
    snprintf(s->url, sizeof(s->url), "%s%s://127.0.0.1:%u", kind == MC_TEST_ETCD ? "etcd" : "redis",
             s->secure ? "s" : "", s->port);
}

void mc_test_service_kill(struct mc_test_service *s) {
    if (s->pid > 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
        s->pid = 0;
    }
}

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    return walk->level == 0 ? 0 : remove(path);
}

void mc_test_service_forget(struct mc_test_service *s) {
    assert_int_equal(s->pid, 0);
    nftw(s->directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void set_etcd_full(uint16_t port, bool full) {
    char url[64], body[80];
    struct mc_buf answer = {0};
    int http_status = 0;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/v3/maintenance/alarm", port);
    snprintf(body, sizeof(body), "{\"action\":\"%s\",\"memberID\":\"1\",\"alarm\":\"NOSPACE\"}",
             full ? "ACTIVATE" : "DEACTIVATE");
    struct mc_http_call call = {.method = "POST",
                                .url = url,
                                .content_type = "application/json",
                                .send = mc_str_from(body),
                                .max_body_bytes = 1000};
    assert_int_equal(mc_http_call(&call, &http_status, &answer), MC_OK);
    assert_int_equal(http_status, 200);
    assert_non_null(strstr(mc_buf_cstr(&answer), "NOSPACE")); /* else it was of no effect */
    mc_buf_free(&answer);
}

void mc_test_service_set_full(const struct mc_test_service *s, bool full) {
    if (s->kind == MC_TEST_ETCD) {
        set_etcd_full(s->port, full);
    } else {
        assert_true(answers(
            s->port, full ? "CONFIG SET maxmemory 1\r\n" : "CONFIG SET maxmemory 0\r\n", "+OK"));
    }
}

void mc_test_service_stop(struct mc_test_service *s) {
    mc_test_service_kill(s);
    mc_test_service_forget(s);
    rmdir(s->directory);
}
