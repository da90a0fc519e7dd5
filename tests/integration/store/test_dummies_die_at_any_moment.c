/*
 * Dummy clients are killed while they connect, lend memory, put, upsert, read, hold blocks and
 * leave; so is the node, while they do that. Whoever reads sees whole values; the node that stays
 * keeps neither memory nor descriptors nor dummies of the dead, and the master no space that nobody
 * can give back. MC_TEST_THREADS
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/io.h"
#include "mooncake/store.h"
#include "support/live.h"

#define AT_ONCE 3
#define OF_ONE  2 /* mappings of a dummy that has lent nothing */
#ifdef MC_SANITIZE
#define ROUNDS      10
#define NODE_ROUNDS 2
#else
#define ROUNDS      25
#define NODE_ROUNDS 4
#endif
#define BUFFER (1u << 20)
#define SHARED (512u << 10)
#define LARGE  (2u << 20) /* does not fit the buffer: travels in the request */
#define KEYS   12

static struct live master, node;
static unsigned port;

static void start_node(void) {
    char flag[32];
    char line[256];
    snprintf(flag, sizeof(flag), "--port=%u", port);
    const char *flags[] = {flag, "--listen=127.0.0.1", NULL};
    live_node(&node, &master, "64MB", flags, 0);
    FILE *f = fopen(node.log, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        const char *text = strstr(line, "rpc port ");
        if (text != NULL) {
            assert_int_equal(sscanf(text, "rpc port %u", &port), 1);
        }
    }
    fclose(f);
    assert_true(port != 0);
}

/* ---- the child ---- */

struct child {
    struct mc_rng rng;
    unsigned at;
    struct mc_store *store;
    char *shared, *own;
};

/* Every value is one byte again and again, and says in its first what that is; so a mixture of two
 * shows. Its length follows from the byte. */
static size_t length_of(unsigned char byte) {
    return byte % 8 == 0 ? LARGE : 1 + (size_t)byte * 1500;
}
static bool is_whole(const char *bytes, size_t length) {
    return length == length_of((unsigned char)bytes[0]) &&
           memcmp(bytes, bytes + 1, length - 1) == 0;
}
static void check(const char *bytes, size_t length) {
    if (!is_whole(bytes, length)) {
        fprintf(stderr, "a mixture, of %zu bytes\n", length);
        abort();
    }
}

static void open_store(struct child *c) {
    char address[32];
    struct mc_store_options options;
    snprintf(address, sizeof(address), "127.0.0.1:%u", c->at);
    mc_store_options_init(&options);
    options.real_client = address;
    options.local_buffer_bytes = BUFFER;
    options.timeout_ms = 5000;
    while (mc_store_open(&options, &c->store) != MC_OK) { /* the node may be dead just now */
        usleep(20000);
    }
}

static void *take_memory(void *ctx, size_t length) {
    *(char **)ctx = mc_alloc(length);
    return *(char **)ctx;
}

static void put(struct child *c, const char *key, bool upsert) {
    unsigned char byte = (unsigned char)mc_rng_next(&c->rng);
    bool lent = mc_rng_below(&c->rng, 2) == 0 && length_of(byte) <= SHARED;
    char *bytes = lent ? c->shared : c->own;
    memset(bytes, byte, length_of(byte));
    enum mc_status status = upsert ? mc_store_upsert(c->store, key, bytes, length_of(byte), NULL)
                                   : mc_store_put(c->store, key, bytes, length_of(byte), NULL);
    (void)status; /* refused while another one writes it, or the node is dead */
}

static void get(struct child *c, const char *key) {
    char *got = NULL;
    size_t length = 0;
    if (mc_rng_below(&c->rng, 2) == 0) {
        struct mc_store_item item = {.key = key, .allocate = take_memory, .allocate_ctx = &got};
        if (mc_store_get_batch(c->store, &item, 1) == MC_OK && item.status == MC_OK) {
            check(got, item.length);
        }
        free(got);
    } else if (mc_store_get(c->store, key, c->shared, SHARED, &length) == MC_OK) {
        check(c->shared, length);
    }
}

static void step(struct child *c) {
    char key[16];
    struct mc_store_view view;
    enum mc_status status;
    snprintf(key, sizeof(key), "key%u", (unsigned)mc_rng_below(&c->rng, KEYS));
    switch (mc_rng_below(&c->rng, 8)) {
    case 0:
    case 1:
        put(c, key, false);
        return;
    case 2:
        put(c, key, true);
        return;
    case 3:
    case 4:
        get(c, key);
        return;
    case 5:
        if (mc_store_view(c->store, key, &view) == MC_OK) {
            if (!is_whole(view.data, view.length) && mc_store_view_valid(&view)) {
                abort();
            }
            mc_store_view_release(c->store, &view);
        }
        return;
    case 6:
        status = mc_store_remove(c->store, key, mc_rng_below(&c->rng, 2) == 0);
        (void)status;
        return;
    default: /* leaves, and comes back */
        mc_store_close(c->store);
        open_store(c);
        status = mc_store_register_buffer(c->store, c->shared, SHARED);
        (void)status;
    }
}

_Noreturn static void child(const char *at, const char *seed) {
    struct child c = {
        .at = (unsigned)atoi(at), .shared = mc_shared_alloc(SHARED), .own = mc_alloc(LARGE)};
    mc_rng_seed(&c.rng, strtoull(seed, NULL, 10));
    open_store(&c);
    enum mc_status status = mc_store_register_buffer(c.store, c.shared, SHARED);
    (void)status;
    for (;;) {
        step(&c);
    }
}

/* ---- the test ---- */

static pid_t start_child(uint64_t seed) {
    char at[16], number[24];
    snprintf(at, sizeof(at), "%u", port);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)seed);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", "dummy", at, number, NULL);
        _exit(127);
    }
    return pid;
}

/* Killed by us, not ended by itself, which a wrong byte makes it do. */
static void end_child(pid_t pid) {
    int how;
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

static int64_t metric(struct mc_store *store, const char *name) {
    char *text = mc_store_metrics(store), line[96];
    long long value = -1;
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(text, line);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(line), "%lld", &value), 1);
    free(text);
    return value;
}

/* One that lives through it all; what it put at first is there at the end. */
static struct mc_store *witness(void) {
    struct child c = {.at = port};
    open_store(&c);
    return c.store;
}

static void kill_dummies(struct mc_rng *rng, unsigned round) {
    pid_t pids[AT_ONCE];
    for (unsigned i = 0; i < AT_ONCE; i++) {
        pids[i] = start_child(round * AT_ONCE + i);
    }
    for (unsigned i = 0; i < AT_ONCE; i++) {
        usleep((unsigned)mc_rng_below(rng, 60000));
        end_child(pids[i]);
    }
}

/* The memory that a put of a dead one had is given back: the whole segment can be filled. */
static void expect_all_space(struct mc_store *store) {
    enum { PIECE = 8u << 20, PIECES = 7 };
    char *bytes = mc_zalloc(PIECE), key[16];
    uint64_t removed;
    size_t there = 0;
    for (int i = 0; i < 3000 && there < PIECES; i++) {
        assert_int_equal(mc_store_remove_all(store, true, &removed), MC_OK);
        for (there = 0; there < PIECES; there++) {
            snprintf(key, sizeof(key), "fill%zu", there);
            const struct mc_replicate_config config = {.replica_num = 1, .with_hard_pin = true};
            if (mc_store_put(store, key, bytes, PIECE, &config) != MC_OK) {
                break;
            }
        }
        usleep(there < PIECES ? 10000 : 0);
    }
    assert_int_equal(there, PIECES);
    assert_int_equal(mc_store_remove_all(store, true, &removed), MC_OK);
    free(bytes);
}

static void test_dummies_are_killed(void **state) {
    struct mc_rng rng;
    mc_rng_seed(&rng, 1);
    struct mc_store *store = witness();
    kill_dummies(&rng, 1000); /* all connections that the node keeps are there */
    live_wait_guest_mappings(&node, OF_ONE);
    unsigned files = live_open_files(&node, master.rpc);
    for (unsigned round = 0; round < ROUNDS; round++) {
        kill_dummies(&rng, round);
    }
    live_wait_guest_mappings(&node, OF_ONE);
    live_wait_files(&node, master.rpc, files);
    assert_true(live_running(&node) && live_running(&master));
    expect_all_space(store);
    assert_int_equal(metric(store, "mooncake_dummy_reconnects"), 0);
    mc_store_close(store);
    live_wait_guest_mappings(&node, 0);
}

static void test_the_node_is_killed(void **state) {
    struct mc_rng rng;
    mc_rng_seed(&rng, 2);
    struct mc_store *store = witness();
    pid_t pids[AT_ONCE];
    for (unsigned i = 0; i < AT_ONCE; i++) {
        pids[i] = start_child(2000 + i);
    }
    for (unsigned round = 0; round < NODE_ROUNDS; round++) {
        usleep(100000 + (unsigned)mc_rng_below(&rng, 400000));
        live_end(&node, SIGKILL);
        start_node();
    }
    usleep(300000);
    for (unsigned i = 0; i < AT_ONCE; i++) {
        end_child(pids[i]);
    }
    live_wait_guest_mappings(&node, OF_ONE);
    expect_all_space(store);
    assert_in_range(metric(store, "mooncake_dummy_reconnects"), 1, NODE_ROUNDS);
    mc_store_close(store);
    live_wait_guest_mappings(&node, 0);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[0], "dummy") == 0) {
        child(argv[1], argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dummies_are_killed),
        cmocka_unit_test(test_the_node_is_killed),
    };
    const char *flags[] = {"--put_start_discard_timeout_sec=1", "--put_start_release_timeout_sec=2",
                           NULL};
    live_master(&master, flags, 0);
    start_node();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    live_end(&node, SIGTERM);
    live_end(&master, SIGTERM);
    return failed;
}
