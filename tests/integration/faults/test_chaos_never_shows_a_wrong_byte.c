/*
 * A cluster of real programs in which everything is killed, stopped and started again in an order
 * that a seed gives, while workers in processes of their own put, upsert, get, remove and look,
 * over tcp and over shared memory, in less memory than they would like. What must hold:
 *
 *   - a get that succeeds returns the bytes of a put of that key: of the newest acknowledged one or
 *     a later one;
 *   - every call ends;
 *   - when the storm is over, everything works again by itself, and nothing has leaked:
 *     descriptors, threads, memory, space in the segments.
 *
 * MC_CHAOS_SECONDS (default 10) and MC_CHAOS_SEED choose how long and which; MC_CHAOS_EVENTS, to
 * find out what a failure needs, of "mk ms nk ns wk ws": master, node or worker killed or stopped.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cluster.h"
#include "support/live.h"

#define NODES         3
#define WORKERS       4
#define SHARED_KEYS   150
#define OWN_KEYS      12
#define TIMEOUT_MS    2000
#define CALL_LIMIT_MS 15000 /* a call may be repeated once, and its process stopped meanwhile */
#define STOP_MOST_MS  1500
#define LARGEST       (1u << 20)

static uint64_t now_ms(void) {
    return mc_now_ms(mc_clock_system());
}

/* ---- a worker ---- */

static const size_t SIZES[] = {1, 100, 4096, 70000, 300000, LARGEST};

struct own_key {
    uint64_t acknowledged, tried; /* versions */
};

struct worker {
    struct mc_store *store;
    struct mc_rng rng;
    unsigned long long id, ops, good, verified, newest_seen;
    struct own_key own[OWN_KEYS];
    uint8_t *value, *got;
};

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("WRONG " __VA_ARGS__);                                                          \
            printf("\n");                                                                          \
            fflush(stdout);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

/* The same key always has the same bytes, whoever puts it. */
static size_t shared_value(unsigned key, uint8_t *out) {
    size_t size = SIZES[key % MC_ARRAY_LEN(SIZES)];
    mc_test_fill(out, size, key);
    return size;
}
/* A version's first bytes say which it is. */
static size_t own_value(unsigned long long id, unsigned key, uint64_t version, uint8_t *out) {
    size_t size = SIZES[1 + (key + (version / 3)) % (MC_ARRAY_LEN(SIZES) - 1)];
    mc_test_fill(out, size, id * 1000003 + key * 7919 + version);
    memcpy(out, &version, sizeof(version));
    return size;
}

/* Says where got and value differ, and leaves what came in a file, to find out whose bytes they
 * are. */
static void compare(struct worker *w, const char *key, const uint8_t *got, size_t size) {
    size_t first = size, last = 0, count = 0;
    for (size_t i = 0; i < size; i++) {
        if (got[i] != w->value[i]) {
            first = first < i ? first : i;
            last = i;
            count++;
        }
    }
    if (count > 0) {
        static uint8_t again[LARGEST];
        struct mc_replica_info replica = {0};
        size_t length = 0, replicas = 0;
        enum mc_status look = mc_store_replicas(w->store, key, &replica, 1, &replicas);
        enum mc_status status = mc_store_get(w->store, key, again, sizeof(again), &length);
        bool right = status == MC_OK && length == size && memcmp(again, w->value, size) == 0;
        REQUIRE(false,
                "%s: %zu of %zu bytes differ, from %zu (%02x, not %02x) to %zu; read again: %s %s; "
                "replicas: %s %zu, first id %llu at %llx of %s",
                key, count, size, first, got[first], w->value[first], last, mc_status_name(status),
                right ? "right" : "wrong", mc_status_name(look), replicas,
                (unsigned long long)replica.id, (unsigned long long)replica.address,
                replica.endpoint);
    }
    w->verified += size;
    w->good++;
}

static void check_same(struct worker *w, const char *key, size_t size, size_t expected) {
    REQUIRE(size == expected, "%s: %zu bytes, not %zu", key, size, expected);
    compare(w, key, w->got, size);
}

static void shared_op(struct worker *w) {
    unsigned k = (unsigned)mc_rng_below(&w->rng, SHARED_KEYS),
             what = (unsigned)mc_rng_below(&w->rng, 10);
    char key[40];
    size_t size = shared_value(k, w->value), length = 0;
    struct mc_replicate_config config = {.replica_num = 1 + mc_rng_below(&w->rng, 2)};
    snprintf(key, sizeof(key), "shared/%u", k);
    if (what < 4) {
        w->good += mc_store_put(w->store, key, w->value, size, &config) == MC_OK;
    } else if (what < 9) {
        memset(w->got, 0x5a, size);
        if (mc_store_get(w->store, key, w->got, LARGEST, &length) == MC_OK) {
            check_same(w, key, length, size);
        }
    } else {
        w->good += mc_store_remove(w->store, key, mc_rng_below(&w->rng, 2)) == MC_OK;
    }
}

static void own_op(struct worker *w) {
    unsigned k = (unsigned)mc_rng_below(&w->rng, OWN_KEYS);
    struct own_key *own = &w->own[k];
    char key[64];
    snprintf(key, sizeof(key), "own/%llu/%u", w->id, k);
    if (mc_rng_below(&w->rng, 2)) {
        uint64_t version = own->tried + 1;
        size_t size = own_value(w->id, k, version, w->value);
        own->tried = version;
        if (mc_store_upsert(w->store, key, w->value, size, NULL) == MC_OK) {
            own->acknowledged = version;
            w->good++;
        }
        return;
    }
    size_t length = 0;
    uint64_t version = 0;
    if (mc_store_get(w->store, key, w->got, LARGEST, &length) != MC_OK) {
        return;
    }
    REQUIRE(length >= sizeof(version), "%s: %zu bytes", key, length);
    memcpy(&version, w->got, sizeof(version));
    REQUIRE(version >= own->acknowledged && version <= own->tried,
            "%s: version %llu, acknowledged %llu, tried %llu", key, (unsigned long long)version,
            (unsigned long long)own->acknowledged, (unsigned long long)own->tried);
    check_same(w, key, length, own_value(w->id, k, version, w->value));
}

static void batch_op(struct worker *w) {
    enum { N = 8 };
    struct mc_store_item items[N];
    struct mc_slice slices[N];
    char keys[N][24];
    size_t room = LARGEST / N;
    for (unsigned i = 0; i < N; i++) {
        unsigned k = (unsigned)mc_rng_below(&w->rng, SHARED_KEYS);
        snprintf(keys[i], sizeof(keys[i]), "shared/%u", k);
        slices[i] = (struct mc_slice){w->got + i * room, room};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    if (mc_store_get_batch(w->store, items, N) != MC_OK) {
        return;
    }
    for (unsigned i = 0; i < N; i++) {
        if (items[i].status == MC_OK) {
            unsigned k = (unsigned)atoi(keys[i] + strlen("shared/"));
            size_t size = shared_value(k, w->value);
            REQUIRE(items[i].length == size, "%s in a batch: %zu bytes, not %zu", keys[i],
                    items[i].length, size);
            compare(w, keys[i], w->got + i * room, size);
        }
    }
}

static volatile sig_atomic_t enough;
static void on_term(int number) {
    enough = 1;
}

static int worker_role(const char *argument) {
    static char address[64];
    unsigned port, disable_shm;
    static struct worker w;
    if (sscanf(argument, "%u,%llu,%u", &port, &w.id, &disable_shm) != 3) {
        return 1;
    }
    signal(SIGTERM, on_term);
    mc_rng_seed(&w.rng, w.id);
    w.value = malloc(LARGEST);
    w.got = malloc(LARGEST);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = address;
    options.local_hostname = "127.0.0.1";
    options.disable_shm = disable_shm != 0;
    options.timeout_ms = TIMEOUT_MS;
    while (mc_store_open(&options, &w.store) != MC_OK) { /* the master may be down */
        if (enough) {
            printf("done 0 0 0\n");
            return 0;
        }
        usleep(20000);
    }
    while (!enough) {
        uint64_t begin = now_ms();
        unsigned which = (unsigned)mc_rng_below(&w.rng, 8);
        if (which == 0) {
            batch_op(&w);
        } else if (which < 5) {
            shared_op(&w);
        } else {
            own_op(&w);
        }
        w.ops++;
        uint64_t took = now_ms() - begin;
        REQUIRE(took < CALL_LIMIT_MS, "a call took %llu ms", (unsigned long long)took);
    }
    mc_store_close(w.store);
    printf("done %llu %llu %llu\n", w.ops, w.good, w.verified);
    fflush(stdout);
    return 0;
}

/* ---- the storm ---- */

struct storm {
    struct live master, nodes[NODES];
    struct cluster_process workers[WORKERS];
    uint64_t stopped_until[1 + NODES + WORKERS];
    struct mc_rng rng;
    uint64_t next_id;
    unsigned long long ops, good, verified;
    unsigned kills, stops;
    char port_flag[32];
};

static const char *master_flags[] = {
    "--default_kv_lease_ttl=800",        "--client_ttl=2", "--put_start_discard_timeout_sec=3",
    "--put_start_release_timeout_sec=6", "--port=0",       NULL};

static void start_worker(struct storm *s, unsigned i) {
    char argument[64];
    snprintf(argument, sizeof(argument), "%u,%llu,%u", s->master.rpc,
             (unsigned long long)s->next_id++, i % 2);
    s->workers[i] = cluster_spawn("worker", argument);
}

/* Takes what a worker that ended (or is asked to) has counted. `told` = it was killed and may have
 * said nothing. */
static void worker_ended(struct storm *s, unsigned i, int signal_number) {
    struct cluster_process *p = &s->workers[i];
    char line[600];
    unsigned long long ops, good, verified;
    kill(p->pid, SIGCONT);
    kill(p->pid, signal_number);
    while (cluster_wait_line(p, line, sizeof(line))) {
        if (sscanf(line, "done %llu %llu %llu", &ops, &good, &verified) == 3) {
            s->ops += ops;
            s->good += good;
            s->verified += verified;
            signal_number = SIGKILL;
        } else if (strncmp(line, "WRONG", 5) == 0) {
            fail_msg("worker %u: %s", i, line);
        }
    }
    if (signal_number == SIGTERM) {
        fail_msg("worker %u ended without its counts", i);
    }
    cluster_kill(p, SIGKILL);
}

static pid_t *pid_of(struct storm *s, unsigned who) {
    return who == 0       ? &s->master.pid
           : who <= NODES ? &s->nodes[who - 1].pid
                          : &s->workers[who - 1 - NODES].pid;
}

static void kill_and_restart(struct storm *s, unsigned who) {
    s->kills++;
    s->stopped_until[who] = 0;
    if (who == 0) {
        live_end(&s->master, SIGKILL);
        usleep((useconds_t)mc_rng_below(&s->rng, 500000));
        live_master(&s->master, master_flags, 0);
    } else if (who <= NODES) {
        if (s->stopped_until[0] > 0) { /* a node needs a master to start */
            kill(s->master.pid, SIGCONT);
            s->stopped_until[0] = 0;
        }
        live_end(&s->nodes[who - 1], SIGKILL);
        live_node(&s->nodes[who - 1], &s->master, "40MB", NULL, 0);
    } else {
        worker_ended(s, who - 1 - NODES, SIGKILL);
        start_worker(s, who - 1 - NODES);
    }
}

static void strike(struct storm *s) {
    unsigned who = (unsigned)mc_rng_below(&s->rng, 1 + NODES + WORKERS);
    bool kill_it = mc_rng_below(&s->rng, 2);
    const char *events = getenv("MC_CHAOS_EVENTS");
    char event[3] = {who == 0 ? 'm' : who <= NODES ? 'n' : 'w', kill_it ? 'k' : 's', 0};
    if (events != NULL && strstr(events, event) == NULL) {
        return;
    }
    if (kill_it) {
        kill_and_restart(s, who);
    } else if (s->stopped_until[who] == 0) {
        s->stops++;
        kill(*pid_of(s, who), SIGSTOP);
        s->stopped_until[who] = now_ms() + 50 + mc_rng_below(&s->rng, STOP_MOST_MS);
    }
}

static void wake(struct storm *s, bool all) {
    for (unsigned who = 0; who < MC_ARRAY_LEN(s->stopped_until); who++) {
        if (s->stopped_until[who] != 0 && (all || now_ms() >= s->stopped_until[who])) {
            kill(*pid_of(s, who), SIGCONT);
            s->stopped_until[who] = 0;
        }
    }
}

/* A worker that found something wrong has ended. */
static void look_at_workers(struct storm *s) {
    for (unsigned i = 0; i < WORKERS; i++) {
        int status;
        if (waitpid(s->workers[i].pid, &status, WNOHANG | WNOWAIT) == s->workers[i].pid ||
            kill(s->workers[i].pid, 0) != 0) {
            worker_ended(s, i, SIGTERM);
            fail_msg("worker %u ended: status 0x%x", i, status);
        }
    }
    for (unsigned i = 0; i < NODES; i++) {
        if (!live_running(&s->nodes[i])) {
            fail_msg("node %u ended by itself", i);
        }
    }
    if (!live_running(&s->master)) {
        fail_msg("the master ended by itself");
    }
}

/* ---- afterwards ---- */

static struct mc_store *open_store(struct storm *s) {
    struct mc_store_options options;
    struct mc_store *store = NULL;
    mc_store_options_init(&options);
    options.master = s->master.rpc_address;
    options.local_hostname = "127.0.0.1";
    assert_ok(mc_store_open(&options, &store));
    return store;
}

static bool every_node_takes_puts(void *arg) {
    struct mc_store *store = arg;
    static uint8_t value[1000], got[1000];
    struct mc_replicate_config config = {.replica_num = NODES};
    struct mc_replica_info replicas[8];
    size_t count = 0, length;
    mc_test_fill(value, sizeof(value), 1);
    bool ok = mc_store_put(store, "all nodes", value, sizeof(value), &config) == MC_OK &&
              mc_store_replicas(store, "all nodes", replicas, 8, &count) == MC_OK &&
              count == NODES &&
              mc_store_get(store, "all nodes", got, sizeof(got), &length) == MC_OK &&
              length == sizeof(got) && memcmp(got, value, sizeof(got)) == 0;
    enum mc_status ignored = mc_store_remove(store, "all nodes", true);
    (void)ignored;
    return ok;
}

static bool space_is_free(void *arg) {
    struct storm *s = arg;
    char text[65536] = "";
    size_t n = 0;
    int fd = live_connect(s->master.admin);
    static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
    assert_int_equal(write(fd, request, sizeof(request) - 1), sizeof(request) - 1);
    for (ssize_t part;
         n < sizeof(text) - 1 && (part = read(fd, text + n, sizeof(text) - 1 - n)) > 0;) {
        n += (size_t)part;
    }
    close(fd);
    text[n] = '\0';
    const char *at = strstr(text, "\nmaster_allocated_bytes ");
    assert_non_null(at);
    return strncmp(at, "\nmaster_allocated_bytes 0\n", 26) == 0;
}

struct baseline {
    unsigned files[1 + NODES], threads[1 + NODES];
};
static void take_baseline(struct storm *s, struct baseline *b) {
    for (unsigned i = 0; i <= NODES; i++) {
        struct live *p = i == 0 ? &s->master : &s->nodes[i - 1];
        b->files[i] = live_open_files(p, s->master.rpc);
        b->threads[i] = live_threads(p);
    }
}
/* No worker is connected; the programs are those of the start or fresh ones: each has what a fresh
 * one has. */
static void is_as_at_the_start(struct storm *s, const struct baseline *before) {
    for (unsigned i = 0; i <= NODES; i++) {
        struct live *p = i == 0 ? &s->master : &s->nodes[i - 1];
        live_wait_files(p, s->master.rpc, before->files[i]);
        live_assert_threads(p, before->threads[i]);
    }
}

static void test_chaos(void **state) {
    const char *seconds = getenv("MC_CHAOS_SECONDS"), *seed = getenv("MC_CHAOS_SEED");
    static struct storm s;
    struct baseline before;
    mc_rng_seed(&s.rng, seed != NULL ? strtoull(seed, NULL, 10) : 1);
    s.next_id = 1 + mc_rng_below(&s.rng, 1u << 30);
    live_master(&s.master, master_flags, 0);
    snprintf(s.port_flag, sizeof(s.port_flag), "--port=%u", s.master.rpc);
    master_flags[4] = s.port_flag;
    for (unsigned i = 0; i < NODES; i++) {
        live_node(&s.nodes[i], &s.master, "40MB", NULL, 0);
    }
    take_baseline(&s, &before);
    for (unsigned i = 0; i < WORKERS; i++) {
        start_worker(&s, i);
    }
    uint64_t end = now_ms() + 1000 * (seconds != NULL ? strtoull(seconds, NULL, 10) : 10);
    while (now_ms() < end) {
        usleep((useconds_t)(100000 + mc_rng_below(&s.rng, 500000)));
        wake(&s, false);
        look_at_workers(&s);
        strike(&s);
    }
    wake(&s, true);
    struct mc_store *store = open_store(&s);
    cluster_wait_until(every_node_takes_puts, store, 30000, "every node to take puts again");
    sleep(1); /* the workers go on in the calm */
    for (unsigned i = 0; i < WORKERS; i++) {
        worker_ended(&s, i, SIGTERM);
    }
    print_message("%u killed, %u stopped; %llu calls, %llu good, %llu MB verified\n", s.kills,
                  s.stops, s.ops, s.good, s.verified >> 20);
    assert_true(s.kills + s.stops > 0 && s.good > 0 && s.verified > 0);
    uint64_t removed;
    assert_ok(mc_store_remove_all(store, true, &removed));
    mc_store_close(store);
    cluster_wait_until(space_is_free, &s, 20000,
                       "the space of everything, also of puts that nobody ended");
    is_as_at_the_start(&s, &before);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(live_end(&s.nodes[i], SIGTERM), 0);
    }
    assert_int_equal(live_end(&s.master, SIGTERM), 0);
}

int main(int argc, char **argv) {
    static const struct cluster_role ROLES[] = {{"worker", worker_role}, {NULL, NULL}};
    cluster_roles = ROLES;
    if (cluster_is_child(argc, argv)) {
        return cluster_child(argc, argv);
    }
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chaos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
