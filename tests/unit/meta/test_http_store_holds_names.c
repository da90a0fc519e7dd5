/*
 * Engines that find each other through an HTTP metadata service that behaves as upstream's: names
 * are taken, freed, and taken over from the dead; descriptors follow registrations; a service that
 * fails makes registering fail.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "io/http.h"
#include "unit/te/te_support.h"

#define ENTRIES 16

struct service {
    struct mc_http_server *server;
    uint16_t port;
    char url[64];
    pthread_mutex_t lock;
    struct {
        char key[128];
        char *value;
    } entries[ENTRIES];
    _Atomic bool broken; /* PUT answers 500 */
};

static int find(struct service *s, const char *key) {
    for (int i = 0; i < ENTRIES; i++) {
        if (strcmp(s->entries[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}

static void serve_put(struct service *s, const char *key, struct mc_str body,
                      struct mc_http_response *response) {
    int at = find(s, key);
    if (atomic_load(&s->broken)) {
        response->status = 500;
    } else if (at >= 0 && strstr(key, "rpc_meta") != NULL) {
        bool same = mc_str_eq(mc_str_from(s->entries[at].value), body);
        response->status = same ? 200 : 400;
    } else {
        at = at >= 0 ? at : find(s, "");
        free(s->entries[at].value);
        snprintf(s->entries[at].key, sizeof(s->entries[at].key), "%s", key);
        s->entries[at].value = mc_str_dup(body);
    }
}

static void serve(void *ctx, const struct mc_http_request *request,
                  struct mc_http_response *response) {
    struct service *s = ctx;
    const char *key = mc_http_query(request, "key");
    pthread_mutex_lock(&s->lock);
    int at = key == NULL ? -1 : find(s, key);
    if (key == NULL) {
        response->status = 400;
    } else if (strcmp(request->method, "PUT") == 0) {
        serve_put(s, key, request->body, response);
    } else if (at < 0) {
        response->status = 404;
    } else if (strcmp(request->method, "GET") == 0) {
        mc_buf_puts(&response->body, s->entries[at].value);
    } else {
        s->entries[at].key[0] = '\0';
        free(s->entries[at].value);
        s->entries[at].value = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

static int set_up(void **state) {
    static const struct mc_http_route routes[] = {{NULL, "/metadata", serve}};
    struct service *s = calloc(1, sizeof(*s));
    pthread_mutex_init(&s->lock, NULL);
    const struct mc_http_server_config config = {.host = "127.0.0.1",
                                                 .routes = routes,
                                                 .route_count = 1,
                                                 .max_body_bytes = 1 << 20,
                                                 .ctx = s};
    assert_ok(mc_http_server_start(&config, &s->server, &s->port));
    snprintf(s->url, sizeof(s->url), "http://127.0.0.1:%u/metadata", (unsigned)s->port);
    *state = s;
    return 0;
}

static int tear_down(void **state) {
    struct service *s = *state;
    mc_http_server_stop(s->server);
    for (int i = 0; i < ENTRIES; i++) {
        free(s->entries[i].value);
    }
    free(s);
    return 0;
}

static bool holds(struct service *s, const char *key, const char *part) {
    pthread_mutex_lock(&s->lock);
    int at = find(s, key);
    bool found = at >= 0 && strstr(s->entries[at].value, part) != NULL;
    pthread_mutex_unlock(&s->lock);
    return found;
}

static enum mc_status start(const struct service *s, const char *name, struct mc_engine **e) {
    struct mc_engine_options options;
    mc_engine_options_init(&options);
    options.metadata = s->url;
    options.local_name = name;
    options.host = "127.0.0.1";
    return mc_engine_create(&options, e);
}

static void engines_meet_by_name(void **state) {
    struct service *s = *state;
    struct mc_engine *a = NULL, *b = NULL;
    mc_segment_id segment = -1;
    char remote[1000], local[1000], expected[64];
    assert_ok(start(s, "node a", &a));
    assert_ok(start(s, "node-b", &b));
    assert_string_equal(mc_engine_name(b), "node-b");
    snprintf(expected, sizeof(expected), "\"rpc_port\":%u", (unsigned)mc_engine_rpc_port(b));
    assert_true(holds(s, "mooncake/rpc_meta/node-b", expected));
    assert_true(holds(s, "mooncake/ram/node a", "\"name\":\"node a\""));
    assert_int_equal(mc_segment_open(a, "node-c", &segment), MC_SEGMENT_NOT_FOUND);
    mc_test_fill(remote, sizeof(remote), 4);
    assert_ok(mc_memory_register(b, remote, sizeof(remote), "cpu:7", 0));
    assert_true(holds(s, "mooncake/ram/node-b", "cpu:7"));
    assert_ok(mc_segment_open(a, "node-b", &segment));
    struct mc_transfer_request read = {MC_TRANSFER_READ, local, segment,
                                       (uint64_t)(uintptr_t)remote, sizeof(remote)};
    assert_ok(mc_transfer(a, &read, 1, mc_deadline_in_ms(5000)));
    mc_test_verify(local, sizeof(local), 4);
    assert_ok(mc_memory_unregister(b, remote));
    assert_false(holds(s, "mooncake/ram/node-b", "cpu:7"));
    mc_engine_destroy(b);
    assert_false(holds(s, "mooncake/ram/node-b", ""));
    assert_false(holds(s, "mooncake/rpc_meta/node-b", ""));
    mc_engine_destroy(a);
}

static void a_live_engine_keeps_its_name(void **state) {
    struct service *s = *state;
    struct mc_engine *a = NULL, *b = NULL;
    assert_ok(start(s, "node", &a));
    assert_int_equal(start(s, "node", &b), MC_ERR_EXISTS);
    assert_true(holds(s, "mooncake/rpc_meta/node", "127.0.0.1")); /* still a's */
    assert_true(holds(s, "mooncake/ram/node", "\"name\":\"node\""));
    mc_engine_destroy(a);
    assert_ok(start(s, "node", &b));
    mc_engine_destroy(b);
}

static void a_dead_engines_name_is_taken_over(void **state) {
    struct service *s = *state;
    struct mc_engine *a = NULL;
    snprintf(s->entries[0].key, sizeof(s->entries[0].key), "mooncake/rpc_meta/node");
    s->entries[0].value = strdup("{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":1}");
    assert_ok(start(s, "node", &a));
    assert_false(holds(s, "mooncake/rpc_meta/node", "\"rpc_port\":1}"));
    mc_engine_destroy(a);
}

static void a_failing_service_fails_the_registration(void **state) {
    struct service *s = *state;
    struct mc_engine *a = NULL, *b = NULL;
    char memory[64];
    assert_ok(start(s, "node", &a));
    atomic_store(&s->broken, true);
    assert_int_equal(mc_memory_register(a, memory, 64, "*", 0), MC_ERR_PROTOCOL);
    assert_null(mc_memory_acquire(a, (uint64_t)(uintptr_t)memory, 1));
    assert_int_not_equal(start(s, "other", &b), MC_OK);
    atomic_store(&s->broken, false);
    assert_ok(mc_memory_register(a, memory, 64, "*", 0)); /* nothing of the first try is left */
    mc_engine_destroy(a);
}

static void what_the_service_lost_comes_back(void **state) {
    struct service *s = *state;
    struct mc_engine *a = NULL;
    char memory[64];
    assert_ok(start(s, "node", &a));
    assert_ok(mc_memory_register(a, memory, 64, "cpu:5", 0));
    pthread_mutex_lock(&s->lock); /* it restarts empty */
    for (int i = 0; i < ENTRIES; i++) {
        s->entries[i].key[0] = '\0';
    }
    pthread_mutex_unlock(&s->lock);
    assert_false(holds(s, "mooncake/ram/node", ""));
    for (int i = 0; i < 2000 && te_counter(a, "mooncake_te_republished_total") == 0; i++) {
        usleep(10000);
    }
    assert_true(holds(s, "mooncake/ram/node", "cpu:5"));
    assert_true(holds(s, "mooncake/rpc_meta/node", "rpc_port"));
    mc_engine_destroy(a);
    assert_false(holds(s, "mooncake/ram/node", ""));
}

static void names_with_a_slash_are_keys_and_clusters_have_a_prefix(void **state) {
    struct service *s = *state;
    struct mc_engine *a = NULL;
    setenv("MC_METADATA_CLUSTER_ID", "blue", 1);
    assert_ok(start(s, "disk/1", &a));
    assert_true(holds(s, "mooncake/blue/disk/1", "disk/1"));
    assert_true(holds(s, "mooncake/blue/rpc_meta/disk/1", "rpc_port"));
    mc_engine_destroy(a);
    unsetenv("MC_METADATA_CLUSTER_ID");
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(engines_meet_by_name),
        STORE_TEST(a_live_engine_keeps_its_name),
        STORE_TEST(a_dead_engines_name_is_taken_over),
        STORE_TEST(a_failing_service_fails_the_registration),
        STORE_TEST(what_the_service_lost_comes_back),
        STORE_TEST(names_with_a_slash_are_keys_and_clusters_have_a_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
