/*
 * The fabric transport over libfabric's tcp provider, and its shm provider, between processes:
 * every byte in both directions, memory that is or is not registered, peers that stand still, die
 * and come back. Skipped where the module or libfabric is not there.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "integration/te/te_peer.h"
#include "te/te.h"

#define SIZE   (24u << 20)
#define RESETS "mooncake_te_fabric_resets_total{device=\"lo\"}"

struct scene {
    struct peer peer;
    struct mc_engine *engine;
    mc_segment_id segment;
    char *local; /* SIZE, registered */
};

/* Only fabric, so that no other transport hides what it does; and patience, for a machine under
 * load is no rail that hangs. */
static const char only_fabric[] =
    "{\"policy\": [{\"transports\": [\"fabric\"]}], \"attempt_timeout_ms\": 60000}";
/* A peer that died may leave operations without an end. */
static const char impatient[] =
    "{\"policy\": [{\"transports\": [\"fabric\"]}], \"attempt_timeout_ms\": 1000}";

static struct mc_engine *engine_new(const char *policy) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = true;
    options.policy = policy;
    assert_ok(mc_engine_create(&options, &engine));
    return engine;
}

static bool has_fabric(struct mc_engine *engine) {
    const char *name;
    for (unsigned i = 0; (name = mc_engine_transport(engine, i)) != NULL; i++) {
        if (strcmp(name, "fabric") == 0) {
            return true;
        }
    }
    return false;
}

static int set_up_with(void **state, const char *policy) {
    struct scene *s = calloc(1, sizeof(*s));
    peer_start(&s->peer, SIZE, false, true, 0);
    s->engine = engine_new(policy);
    s->local = malloc(SIZE);
    assert_ok(mc_memory_register(s->engine, s->local, SIZE, "*", 0));
    assert_ok(mc_segment_open(s->engine, s->peer.hello.name, &s->segment));
    *state = s;
    return 0;
}
static int set_up(void **state) {
    return set_up_with(state, only_fabric);
}
static int set_up_impatient(void **state) {
    return set_up_with(state, impatient);
}
static int set_up_free(void **state) {
    return set_up_with(state, NULL);
}

static int tear_down(void **state) {
    struct scene *s = *state;
    mc_engine_destroy(s->engine);
    peer_stop(&s->peer);
    free(s->local);
    free(s);
    return 0;
}

static enum mc_status move(struct scene *s, enum mc_transfer_op op, uint64_t at, uint64_t length,
                           uint64_t ms) {
    struct mc_transfer_request r = {op, s->local + at, s->segment, s->peer.hello.addr + at, length};
    return mc_transfer(s->engine, &r, 1, mc_deadline_in_ms(ms));
}

static int64_t bytes_by(struct scene *s, const char *transport, const char *op) {
    char name[120];
    snprintf(name, sizeof(name), "mooncake_te_transfer_bytes_total{transport=\"%s\",op=\"%s\"}",
             transport, op);
    return te_counter(s->engine, name);
}

/* ---- tests ---- */

static void every_byte_arrives(void **state) {
    struct scene *s = *state;
    static const uint64_t lengths[] = {1, 8, 4095, 65536, (1 << 20) + 1, (9 << 20) + 777};
    int64_t total = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(lengths); i++) {
        uint64_t at = 4093 * i;
        assert_int_equal(peer_tell(&s->peer, PEER_FILL, at, lengths[i], 10 + i), lengths[i]);
        memset(s->local, 0, SIZE);
        assert_ok(move(s, MC_TRANSFER_READ, at, lengths[i], 60000));
        mc_test_verify(s->local + at, lengths[i], 10 + i);
        assert_int_equal(s->local[at + lengths[i]], 0);
        mc_test_fill(s->local + at, lengths[i], 20 + i);
        assert_ok(move(s, MC_TRANSFER_WRITE, at, lengths[i], 60000));
        assert_int_equal(peer_tell(&s->peer, PEER_VERIFY, at, lengths[i], 20 + i), lengths[i]);
        total += (int64_t)lengths[i];
    }
    assert_int_equal(bytes_by(s, "fabric", "read"), total);
    assert_int_equal(bytes_by(s, "fabric", "write"), total);
    assert_int_equal(bytes_by(s, "tcp", "read"), 0);
}

struct mover {
    struct scene *s;
    unsigned number;
};

static void *mover_main(void *arg) {
    struct mover *m = arg;
    struct mc_transfer_request r[32];
    uint64_t part = SIZE / 4, each = part / 32, base = m->number * part;
    for (int round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < 32; i++) {
            r[i] = (struct mc_transfer_request){MC_TRANSFER_READ, m->s->local + base + i * each,
                                                m->s->segment,
                                                m->s->peer.hello.addr + base + i * each, each};
        }
        assert_ok(mc_transfer(m->s->engine, r, 32, mc_deadline_in_ms(120000)));
    }
    return NULL;
}

static void threads_share_it(void **state) {
    struct scene *s = *state;
    struct mover movers[4];
    pthread_t threads[4];
    assert_int_equal(peer_tell(&s->peer, PEER_FILL, 0, SIZE, 3), SIZE);
    for (unsigned i = 0; i < 4; i++) {
        movers[i] = (struct mover){s, i};
        assert_int_equal(pthread_create(&threads[i], NULL, mover_main, &movers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    mc_test_verify(s->local, SIZE, 3);
}

static void what_is_not_registered_goes_by_tcp(void **state) {
    struct scene *s = *state;
    assert_ok(mc_memory_unregister(s->engine, s->local));
    assert_int_equal(peer_tell(&s->peer, PEER_FILL, 0, SIZE, 4), SIZE);
    assert_ok(move(s, MC_TRANSFER_READ, 0, SIZE, 60000));
    mc_test_verify(s->local, SIZE, 4);
    assert_int_equal(bytes_by(s, "tcp", "read"), SIZE);
    assert_int_equal(bytes_by(s, "fabric", "read"), 0);
}

/* The peer's device refuses a key that is gone. */
static void memory_that_is_gone_is_an_error(void **state) {
    struct scene *s = *state;
    assert_ok(move(s, MC_TRANSFER_READ, 0, 4096, 60000));
    assert_int_equal(peer_tell(&s->peer, PEER_UNREGISTER, 0, 0, 0), 1);
    memset(s->local, 7, 4096);
    assert_int_not_equal(move(s, MC_TRANSFER_READ, 0, 4096, 60000), MC_OK);
    assert_int_equal(s->local[0], 7);
    assert_int_equal(peer_tell(&s->peer, PEER_REGISTER, 0, 0, 0), 1);
    assert_int_equal(peer_tell(&s->peer, PEER_FILL, 0, SIZE, 5), SIZE);
    assert_ok(mc_segment_refresh(s->engine, s->segment));
    assert_ok(move(s, MC_TRANSFER_READ, 0, SIZE, 60000));
    mc_test_verify(s->local, SIZE, 5);
}

static void a_deadline_ends_what_a_stopped_peer_owes(void **state) {
    struct scene *s = *state;
    assert_int_equal(peer_tell(&s->peer, PEER_FILL, 0, SIZE, 6), SIZE);
    assert_ok(move(s, MC_TRANSFER_READ, 0, SIZE, 60000));
    peer_pause(&s->peer);
    mc_test_fill(s->local, SIZE, 8);
    assert_int_equal(move(s, MC_TRANSFER_READ, 0, SIZE, 300), MC_ERR_TIMEOUT);
    char *copy = malloc(SIZE);
    memcpy(copy, s->local, SIZE);
    kill(s->peer.pid, SIGCONT);
    assert_int_equal(peer_tell(&s->peer, PEER_VERIFY, 0, SIZE, 6), SIZE); /* it runs again */
    usleep(50000);
    assert_memory_equal(copy, s->local, SIZE); /* nothing came late */
    free(copy);
    assert_ok(move(s, MC_TRANSFER_READ, 0, SIZE, 60000));
    mc_test_verify(s->local, SIZE, 6);
    assert_true(te_counter(s->engine, RESETS) > 0);
}

static void *go_on_after_a_reset(void *arg) {
    struct scene *s = arg;
    uint64_t patience = mc_deadline_in_ms(60000);
    while (te_counter(s->engine, RESETS) == 0 && mc_now_ns(mc_clock_system()) < patience) {
        usleep(1000);
    }
    kill(s->peer.pid, SIGCONT);
    return NULL;
}

/* More than 64 on one device: none is taken for lost again while it is under way on the new
 * endpoint (the transport asserts it), and all arrive. */
static void many_slices_are_given_up_at_once(void **state) {
    enum { MANY = 256, EACH = 65536 };
    struct scene *s = *state;
    struct mc_transfer_request r[MANY];
    pthread_t thread;
    for (uint64_t i = 0; i < MANY; i++) {
        r[i] = (struct mc_transfer_request){MC_TRANSFER_READ, s->local + i * EACH, s->segment,
                                            s->peer.hello.addr + i * EACH, EACH};
    }
    assert_int_equal(peer_tell(&s->peer, PEER_FILL, 0, SIZE, 7), SIZE);
    assert_ok(move(s, MC_TRANSFER_READ, 0, 4096, 60000));
    peer_pause(&s->peer);
    assert_int_equal(pthread_create(&thread, NULL, go_on_after_a_reset, s), 0);
    assert_ok(mc_transfer(s->engine, r, MANY, mc_deadline_in_ms(60000)));
    pthread_join(thread, NULL);
    mc_test_verify(s->local, (size_t)MANY * EACH, 7);
    assert_true(te_counter(s->engine, RESETS) > 0);
    assert_true(te_counter(s->engine, "mooncake_te_slice_failures_total{transport=\"fabric\"}") >
                64);
}

static void a_peer_that_came_back_is_met_anew(void **state) {
    struct scene *s = *state;
    uint16_t port = (uint16_t)s->peer.hello.rpc_port;
    assert_ok(move(s, MC_TRANSFER_READ, 0, 4096, 60000));
    peer_kill(&s->peer);
    assert_int_not_equal(move(s, MC_TRANSFER_WRITE, 0, 4096, 60000), MC_OK);
    peer_start(&s->peer, SIZE, false, true, port);
    assert_int_equal(peer_tell(&s->peer, PEER_FILL, 0, SIZE, 9), SIZE);
    assert_ok(mc_segment_refresh(s->engine, s->segment));
    for (uint64_t at = 0; at < SIZE; at += SIZE / 24) {
        enum mc_status status = MC_ERR_IO; /* on a machine under load an attempt may be given up */
        for (int tries = 0; tries < 20 && status != MC_OK; tries++) {
            status = move(s, MC_TRANSFER_READ, at, SIZE / 24, 60000);
        }
        assert_ok(status);
    }
    mc_test_verify(s->local, SIZE, 9);
}

/* With keys that the provider chooses (standins/fabric_keys.c). The library must be there before
 * libfabric is: in a process of its own, and its peers. Returns only where it cannot be. */
static void go_on_with_keys_of_the_provider(void) {
    char path[512];
    snprintf(path, sizeof(path), "%.*slibstandin_fabric_keys.so",
             (int)(strrchr(MC_STANDIN_CUDA, '/') + 1 - MC_STANDIN_CUDA), MC_STANDIN_CUDA);
    if (access(path, R_OK) == 0) {
        setenv("LD_PRELOAD", path, 1);
        setenv("MC_FABRIC_PROVIDER", "tcp;ofi_rxm", 1);
        execl("/proc/self/exe", "fabric-keys", "keys", (char *)NULL);
    }
}

static int test_keys_of_the_provider(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_byte_arrives, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_that_is_gone_is_an_error, set_up, tear_down),
    };
    if (dlsym(RTLD_DEFAULT, "fi_getinfo") == NULL) { /* the module's libfabric is not seen here */
        fprintf(stderr, "the library that makes providers choose keys is not loaded\n");
        return 1;
    }
    return cmocka_run_group_tests_name("keys_of_the_provider", tests, NULL, NULL);
}

int main(int argc, char **argv) {
    setenv("MC_FABRIC_PROVIDER", "tcp;ofi_rxm", 0); /* a child: as its parent */
    setenv("FI_LOG_LEVEL", "none", 0);
    peer_take_over(argc, argv);
    if (argc == 2 && strcmp(argv[1], "keys") == 0) {
        return test_keys_of_the_provider();
    }
    struct mc_engine *engine = engine_new(NULL);
    bool there = has_fabric(engine);
    mc_engine_destroy(engine);
    if (!there) {
        fprintf(stderr, "skipped: no libfabric here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_byte_arrives, set_up, tear_down),
        cmocka_unit_test_setup_teardown(threads_share_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_registered_goes_by_tcp, set_up_free, tear_down),
        cmocka_unit_test_setup_teardown(memory_that_is_gone_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_deadline_ends_what_a_stopped_peer_owes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(many_slices_are_given_up_at_once, set_up_impatient,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_peer_that_came_back_is_met_anew, set_up_impatient,
                                        tear_down),
    };
    /* Its memory is addressed by addresses instead of offsets, as efa's is. (To a key that it does
     * not know it answers nothing: such a transfer ends with its deadline.) */
    const struct CMUnitTest by_address[] = {
        cmocka_unit_test_setup_teardown(every_byte_arrives, set_up, tear_down),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    setenv("MC_FABRIC_PROVIDER", "shm", 1);
    failed += cmocka_run_group_tests(by_address, NULL, NULL);
    if (failed == 0) {
        go_on_with_keys_of_the_provider();
    }
    return failed;
}
