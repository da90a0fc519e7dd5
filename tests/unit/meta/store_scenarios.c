/* See store_scenarios.h. */
#include "unit/meta/store_scenarios.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLAIMERS    8
#define PATIENCE_MS 120000 /* of a machine that is busy with other things */

/* ---- the world ---- */

static int set_up(void **state, enum mc_test_service_kind kind) {
    struct store_world *w = calloc(1, sizeof(*w));
    w->ops = kind == MC_TEST_ETCD ? &mc_meta_etcd_ops : &mc_meta_redis_ops;
    mc_test_service_start(&w->service, kind);
    *state = w;
    return 0;
}

int store_set_up_etcd(void **state) {
    return set_up(state, MC_TEST_ETCD);
}

int store_set_up_redis(void **state) {
    return set_up(state, MC_TEST_REDIS);
}

int store_tear_down(void **state) {
    struct store_world *w = *state;
    mc_test_service_stop(&w->service);
    unsetenv("MC_METADATA_CLUSTER_ID");
    unsetenv("MC_METADATA_LEASE_SECONDS");
    free(w);
    return 0;
}

struct mc_meta_kv *store_open(const struct store_world *w, uint32_t lease_s) {
    struct mc_meta_kv *kv = NULL;
    assert_ok(w->ops->open(w->service.url, lease_s, &kv));
    return kv;
}

bool store_holds(const struct store_world *w, const char *key, const char *part) {
    struct mc_meta_kv *kv = store_open(w, 30);
    struct mc_buf value = {0};
    enum mc_status status = w->ops->get(kv, key, &value);
    assert_true(status == MC_OK || status == MC_ERR_NOT_FOUND);
    bool found = status == MC_OK && strstr(mc_buf_cstr(&value), part) != NULL;
    mc_buf_free(&value);
    w->ops->close(kv);
    return found;
}

static bool comes_true(const struct store_world *w, const char *key, const char *part,
                       bool wanted) {
    uint64_t deadline = mc_deadline_in_ms(PATIENCE_MS);
    while (store_holds(w, key, part) != wanted) {
        if (mc_now_ns(mc_clock_system()) > deadline) {
            return false;
        }
        usleep(20000);
    }
    return true;
}

enum mc_status store_engine(const char *url, const char *name, struct mc_engine **out) {
    struct mc_engine_options options;
    mc_engine_options_init(&options);
    options.metadata = url;
    options.local_name = name;
    options.host = "127.0.0.1";
    return mc_engine_create(&options, out);
}

void store_be_publisher(int argc, char **argv) {
    struct mc_engine *engine = NULL;
    if (argc != 3) {
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (store_engine(argv[1], argv[2], &engine) != MC_OK) {
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

static pid_t start_publisher(const struct store_world *w, const char *name) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", "publisher", w->service.url, name, (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* ---- scenarios ---- */

void engines_meet_by_name(void **state) {
    struct store_world *w = *state;
    struct mc_engine *a = NULL, *b = NULL;
    mc_segment_id segment = -1;
    struct mc_buf value = {0};
    char remote[1000], local[1000], expected[96];
    assert_ok(store_engine(w->service.url, "node a", &a));
    assert_ok(store_engine(w->service.url, "node-b", &b));
    snprintf(expected, sizeof(expected), "{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":%u}\n",
             (unsigned)mc_engine_rpc_port(b));
    struct mc_meta_kv *kv = store_open(w, 30);
    assert_ok(w->ops->get(kv, "mooncake/rpc_meta/node-b", &value)); /* upstream's very bytes */
    assert_string_equal(mc_buf_cstr(&value), expected);
    assert_int_equal(w->ops->get(kv, "mooncake/rpc_meta/node-c", &value), MC_ERR_NOT_FOUND);
    assert_int_equal(w->ops->remove(kv, "mooncake/rpc_meta/node-c"), MC_ERR_NOT_FOUND);
    w->ops->close(kv);
    mc_buf_free(&value);
    assert_true(store_holds(w, "mooncake/ram/node a", "\"name\":\"node a\""));
    assert_true(store_holds(w, "mooncake/ram/node a", "}\n"));
    assert_int_equal(mc_segment_open(a, "node-c", &segment), MC_SEGMENT_NOT_FOUND);
    mc_test_fill(remote, sizeof(remote), 4);
    assert_ok(mc_memory_register(b, remote, sizeof(remote), "cpu:7", 0));
    assert_true(store_holds(w, "mooncake/ram/node-b", "cpu:7"));
    assert_ok(mc_segment_open(a, "node-b", &segment));
    struct mc_transfer_request read = {MC_TRANSFER_READ, local, segment,
                                       (uint64_t)(uintptr_t)remote, sizeof(remote)};
    assert_ok(mc_transfer(a, &read, 1, mc_deadline_in_ms(PATIENCE_MS)));
    mc_test_verify(local, sizeof(local), 4);
    assert_ok(mc_memory_unregister(b, remote));
    assert_false(store_holds(w, "mooncake/ram/node-b", "cpu:7"));
    mc_engine_destroy(b);
    assert_false(store_holds(w, "mooncake/ram/node-b", ""));
    assert_false(store_holds(w, "mooncake/rpc_meta/node-b", ""));
    assert_true(store_holds(w, "mooncake/rpc_meta/node a", ""));
    mc_engine_destroy(a);
}

void a_live_engine_keeps_its_name(void **state) {
    struct store_world *w = *state;
    struct mc_engine *a = NULL, *b = NULL;
    char port[32];
    assert_ok(store_engine(w->service.url, "node", &a));
    assert_int_equal(store_engine(w->service.url, "node", &b), MC_ERR_EXISTS);
    snprintf(port, sizeof(port), "\"rpc_port\":%u}", (unsigned)mc_engine_rpc_port(a));
    assert_true(store_holds(w, "mooncake/rpc_meta/node", port));
    assert_true(store_holds(w, "mooncake/ram/node", "\"name\":\"node\""));
    mc_engine_destroy(a);
    assert_ok(store_engine(w->service.url, "node", &b));
    mc_engine_destroy(b);
}

/* Upstream's records have no lease. */
void a_dead_engines_name_is_taken_over(void **state) {
    struct store_world *w = *state;
    struct mc_engine *a = NULL;
    struct mc_meta_kv *kv = store_open(w, 30);
    assert_ok(w->ops->put(kv, "mooncake/rpc_meta/node",
                          mc_str_from("{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":1}"),
                          false));
    assert_ok(w->ops->put(kv, "mooncake/rpc_meta/damaged", mc_str_from("{\"ip"), false));
    assert_ok(store_engine(w->service.url, "node", &a));
    assert_false(store_holds(w, "mooncake/rpc_meta/node", "\"rpc_port\":1}"));
    mc_engine_destroy(a);
    assert_false(store_holds(w, "mooncake/rpc_meta/node", ""));
    assert_ok(store_engine(w->service.url, "damaged", &a));
    /* Meanwhile somebody else's: not to be removed at the end. */
    assert_ok(w->ops->put(kv, "mooncake/rpc_meta/damaged",
                          mc_str_from("{\"ip_or_host_name\":\"10.9.8.7\",\"rpc_port\":1}"), false));
    mc_engine_destroy(a);
    assert_true(store_holds(w, "mooncake/rpc_meta/damaged", "10.9.8.7"));
    w->ops->close(kv);
}

void clusters_have_a_prefix(void **state) {
    struct store_world *w = *state;
    struct mc_engine *blue = NULL, *green = NULL;
    mc_segment_id segment;
    setenv("MC_METADATA_CLUSTER_ID", "blue", 1);
    assert_ok(store_engine(w->service.url, "node", &blue));
    setenv("MC_METADATA_CLUSTER_ID", "green", 1);
    assert_ok(store_engine(w->service.url, "node", &green)); /* no other's name */
    assert_true(store_holds(w, "mooncake/blue/rpc_meta/node", "rpc_port"));
    assert_true(store_holds(w, "mooncake/green/ram/node", "\"node\""));
    assert_false(store_holds(w, "mooncake/rpc_meta/node", ""));
    mc_engine_destroy(blue);
    assert_false(store_holds(w, "mooncake/blue/rpc_meta/node", ""));
    assert_true(store_holds(w, "mooncake/green/rpc_meta/node", "rpc_port"));
    setenv("MC_METADATA_CLUSTER_ID", "blue", 1);
    assert_ok(store_engine(w->service.url, "other", &blue));
    assert_int_equal(mc_segment_open(blue, "node", &segment), MC_SEGMENT_NOT_FOUND);
    mc_engine_destroy(blue);
    mc_engine_destroy(green);
}

struct claimer {
    const struct store_world *w;
    const char *old;
    char value[32];
    enum mc_status status;
};

static void *claim(void *arg) {
    struct claimer *c = arg;
    struct mc_meta_kv *kv = store_open(c->w, 30);
    c->status =
        c->w->ops->claim(kv, "mooncake/rpc_meta/raced", mc_str_from(c->old), mc_str_from(c->value));
    if (c->status == MC_OK) { /* and its lease does not end with the claimer's */
        c->status = c->w->ops->put(kv, "mooncake/rpc_meta/raced", mc_str_from(c->value), false);
    }
    c->w->ops->close(kv);
    return NULL;
}

/* Returns the winner's number. */
static int race(const struct store_world *w, const char *old, int first) {
    struct claimer claimers[CLAIMERS];
    pthread_t threads[CLAIMERS];
    int winner = -1;
    for (int i = 0; i < CLAIMERS; i++) {
        claimers[i] = (struct claimer){.w = w, .old = old, .status = MC_ERR_IO};
        snprintf(claimers[i].value, sizeof(claimers[i].value), "{\"claimer\":%d}", first + i);
        assert_int_equal(pthread_create(&threads[i], NULL, claim, &claimers[i]), 0);
    }
    for (int i = 0; i < CLAIMERS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(claimers[i].status == MC_OK || claimers[i].status == MC_ERR_EXISTS);
        if (claimers[i].status == MC_OK) {
            assert_int_equal(winner, -1);
            winner = first + i;
        }
    }
    assert_int_not_equal(winner, -1);
    return winner;
}

void of_many_that_claim_one_wins(void **state) {
    struct store_world *w = *state;
    char held[40];
    int winner = race(w, NULL, 0);
    snprintf(held, sizeof(held), "{\"claimer\":%d}\n", winner);
    assert_true(store_holds(w, "mooncake/rpc_meta/raced", held));
    int second = race(w, held, 100);
    snprintf(held, sizeof(held), "{\"claimer\":%d}\n", second);
    assert_true(store_holds(w, "mooncake/rpc_meta/raced", held));
    struct mc_meta_kv *kv = store_open(w, 30); /* what is mine already is mine again */
    held[strlen(held) - 1] = '\0';
    assert_ok(w->ops->claim(kv, "mooncake/rpc_meta/raced", mc_str_from(NULL), mc_str_from(held)));
    w->ops->close(kv);
}

/* One that lives keeps its records for longer than their lease, without publishing again, also
 * while the service takes no new ones. False: it had to, as it does when it is not let run for most
 * of the lease. */
static bool outlives_its_lease(const struct store_world *w, unsigned lease_s) {
    struct mc_engine *live = NULL;
    char text[16];
    snprintf(text, sizeof(text), "%u", lease_s);
    setenv("MC_METADATA_LEASE_SECONDS", text, 1);
    assert_ok(store_engine(w->service.url, "live", &live));
    mc_test_service_set_full(&w->service, true);
    uint64_t outlived = mc_deadline_in_ms((lease_s + 1) * 1000);
    while (mc_now_ns(mc_clock_system()) < outlived) {
        usleep(50000);
    }
    bool held = store_holds(w, "mooncake/ram/live", "\"live\"") &&
                store_holds(w, "mooncake/rpc_meta/live", "rpc_port") &&
                te_counter(live, "mooncake_te_republished_total") == 0;
    mc_test_service_set_full(&w->service, false);
    mc_engine_destroy(live);
    return held;
}

void a_live_engine_outlives_its_lease(void **state) {
    unsigned lease_s = LIVE_LEASE_S;
    while (!outlives_its_lease(*state, lease_s)) {
        lease_s *= 2; /* without renewals no lease is long enough */
        assert_true(lease_s <= 8 * LIVE_LEASE_S);
    }
}

void records_of_a_killed_publisher_go(void **state) {
    struct store_world *w = *state;
    struct mc_engine *next = NULL;
    setenv("MC_METADATA_LEASE_SECONDS", SHORT_LEASE_S, 1);
    pid_t publisher = start_publisher(w, "victim");
    assert_true(comes_true(w, "mooncake/ram/victim", "\"victim\"", true));
    kill(publisher, SIGKILL);
    waitpid(publisher, NULL, 0);
    assert_true(comes_true(w, "mooncake/ram/victim", "", false));
    assert_true(comes_true(w, "mooncake/rpc_meta/victim", "", false));
    assert_ok(store_engine(w->service.url, "victim", &next));
    mc_engine_destroy(next);
}

void a_lasting_record_stays(void **state) {
    struct store_world *w = *state;
    struct mc_meta_kv *kv = store_open(w, 2);
    assert_ok(w->ops->put(kv, "mooncake/pool/leased", mc_str_from("{}"), true));
    assert_ok(w->ops->put(kv, "mooncake/pool/lasting", mc_str_from("{}"), false));
    w->ops->close(kv);
    assert_true(comes_true(w, "mooncake/pool/leased", "", false));
    assert_true(store_holds(w, "mooncake/pool/lasting", "{}"));
}

void what_a_restarted_service_lost_comes_back(void **state) {
    struct store_world *w = *state;
    struct mc_engine *a = NULL;
    char memory[64];
    setenv("MC_METADATA_LEASE_SECONDS", SHORT_LEASE_S, 1);
    assert_ok(store_engine(w->service.url, "node", &a));
    assert_ok(mc_memory_register(a, memory, 64, "cpu:5", 0));
    mc_test_service_kill(&w->service);
    mc_test_service_forget(&w->service);
    assert_int_not_equal(mc_memory_unregister(a, memory + 1), MC_OK);
    mc_test_service_run(&w->service);
    assert_true(comes_true(w, "mooncake/ram/node", "cpu:5", true));
    assert_true(comes_true(w, "mooncake/rpc_meta/node", "rpc_port", true));
    uint64_t deadline = mc_deadline_in_ms(PATIENCE_MS);
    while (te_counter(a, "mooncake_te_republished_total") == 0) {
        assert_true(mc_now_ns(mc_clock_system()) < deadline);
        usleep(10000);
    }
    mc_engine_destroy(a);
    assert_false(store_holds(w, "mooncake/ram/node", ""));
}

void a_service_that_is_away_is_an_error_and_its_return_is_noticed(void **state) {
    struct store_world *w = *state;
    struct mc_engine *a = NULL;
    char memory[64];
    mc_test_service_kill(&w->service);
    assert_int_equal(store_engine(w->service.url, "node", &a), MC_ERR_UNREACHABLE);
    assert_null(a);
    mc_test_service_run(&w->service);
    assert_ok(store_engine(w->service.url, "node", &a));
    mc_test_service_kill(&w->service);
    assert_int_equal(mc_memory_register(a, memory, 64, "*", 0), MC_ERR_UNREACHABLE);
    mc_test_service_run(&w->service);
    assert_ok(mc_memory_register(a, memory, 64, "cpu:3", 0));
    assert_true(store_holds(w, "mooncake/ram/node", "cpu:3"));
    mc_engine_destroy(a);
}

/* And what is lost meanwhile comes back when there is room. */
void a_full_service_refuses_and_forgets_nobody(void **state) {
    struct store_world *w = *state;
    struct mc_engine *a = NULL, *late = NULL;
    char memory[64];
    setenv("MC_METADATA_LEASE_SECONDS", SHORT_LEASE_S, 1);
    assert_ok(store_engine(w->service.url, "node", &a));
    mc_test_service_set_full(&w->service, true);
    assert_int_equal(store_engine(w->service.url, "late", &late), MC_ERR_REJECTED);
    assert_null(late);
    assert_int_equal(mc_memory_register(a, memory, 64, "cpu:3", 0), MC_ERR_REJECTED);
    struct mc_meta_kv *kv = store_open(w, 30);
    enum mc_status gone = w->ops->remove(kv, "mooncake/rpc_meta/node");
    assert_true(gone == MC_OK || gone == MC_ERR_NOT_FOUND);
    w->ops->close(kv);
    usleep(1500000); /* two looks, in vain */
    assert_false(store_holds(w, "mooncake/rpc_meta/node", ""));
    mc_test_service_set_full(&w->service, false);
    assert_true(comes_true(w, "mooncake/rpc_meta/node", "rpc_port", true));
    assert_true(comes_true(w, "mooncake/ram/node", "\"node\"", true));
    assert_ok(mc_memory_register(a, memory, 64, "cpu:3", 0));
    assert_true(store_holds(w, "mooncake/ram/node", "cpu:3"));
    assert_ok(store_engine(w->service.url, "late", &late));
    mc_engine_destroy(late);
    mc_engine_destroy(a);
    assert_false(store_holds(w, "mooncake/ram/node", ""));
}

void the_next_endpoint_is_asked(void **state) {
    struct store_world *w = *state;
    struct mc_meta_kv *kv = NULL;
    struct mc_engine *a = NULL;
    char url[160];
    const char *scheme = w->service.kind == MC_TEST_ETCD ? "etcd" : "redis";
    snprintf(url, sizeof(url), "%s://127.0.0.1:1,[::1]:2;127.0.0.1:%u", scheme, w->service.port);
    assert_ok(store_engine(url, "node", &a));
    assert_true(store_holds(w, "mooncake/rpc_meta/node", "rpc_port"));
    mc_engine_destroy(a);
    static const char *const bad[] = {"",        "a b:1", "127.0.0.1:0", "127.0.0.1:1,",
                                      "u:p@h:1", "h:1/2"};
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        snprintf(url, sizeof(url), "%s://%s", scheme, bad[i]);
        assert_int_equal(w->ops->open(url, 30, &kv), MC_ERR_BAD_ADDRESS);
    }
}

struct liar {
    int listener;
    const char *answer;
};

/* Says the same to everybody, until the listener is shut. */
static void *lie(void *arg) {
    struct liar *liar = arg;
    char request[4096];
    for (int fd; (fd = accept(liar->listener, NULL, NULL)) >= 0; close(fd)) {
        if (recv(fd, request, sizeof(request), 0) > 0) {
            send(fd, liar->answer, strlen(liar->answer), MSG_NOSIGNAL);
        }
    }
    return NULL;
}

static enum mc_status get_from_liar(const struct store_world *w, const char *answer) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    struct liar liar = {socket(AF_INET, SOCK_STREAM, 0), answer};
    struct mc_meta_kv *kv = NULL;
    struct mc_buf value = {0};
    pthread_t thread;
    char url[64];
    assert_int_equal(bind(liar.listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(liar.listener, 8), 0);
    assert_int_equal(getsockname(liar.listener, (struct sockaddr *)&address, &length), 0);
    snprintf(url, sizeof(url), "%s127.0.0.1:%u", w->ops->schemes[0], ntohs(address.sin_port));
    assert_int_equal(pthread_create(&thread, NULL, lie, &liar), 0);
    assert_ok(w->ops->open(url, 30, &kv));
    enum mc_status status = w->ops->get(kv, "mooncake/ram/x", &value);
    w->ops->close(kv);
    mc_buf_free(&value);
    shutdown(liar.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(liar.listener);
    return status;
}

#define HTTP_200 "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"

void answers_that_are_no_answers_are_errors(void **state) {
    struct store_world *w = *state;
    static const char *const etcd[] = {"what?\r\n", HTTP_200 "<html>", HTTP_200 "{}",
                                       "HTTP/1.0 404 Not Found\r\n\r\n404 page not found"};
    static const char *const redis[] = {"what?\r\n", "$5\r\n", "*1\r\n$1\r\na\r\n", ":7\r\n"};
    const char *const *lies = w->service.kind == MC_TEST_ETCD ? etcd : redis;
    for (int i = 0; i < 4; i++) {
        enum mc_status status = get_from_liar(w, lies[i]);
        assert_true(status == MC_ERR_PROTOCOL || status == MC_ERR_BAD_ADDRESS ||
                    (i == 1 && status == MC_ERR_CLOSED)); /* cut off */
    }
}

/* The connection dies between two calls: neither an error nor, with the signal's default action,
 * the end of this process. Many rounds, because it matters what of the death has arrived. */
void a_broken_connection_is_not_noticed(void **state) {
    struct store_world *w = *state;
    struct mc_meta_kv *kv = store_open(w, 30);
    assert_true(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    assert_ok(w->ops->put(kv, "mooncake/ram/x", mc_str_from("{}"), false));
    for (int i = 0; i < 5; i++) {
        mc_test_service_kill(&w->service);
        mc_test_service_run(&w->service);
        assert_ok(w->ops->put(kv, "mooncake/ram/x", mc_str_from("{}"), false));
        assert_true(store_holds(w, "mooncake/ram/x", "{}"));
    }
    w->ops->close(kv);
}
