/*
 * The file of MC_TENT_CONF says which transports and rails serve which requests; priorities decide
 * who goes first, in this process and towards others of the host. Over simulated rails, so that
 * every posted slice is seen.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "support/sim_rails.h"
#include "support/support.h"

/* ---- reading ---- */

static enum mc_status load(const char *text, struct mc_policy *p) {
    return mc_policy_load(text, p);
}

static void nothing_is_a_policy_too(void **state) {
    struct mc_policy p;
    assert_ok(load(NULL, &p));
    assert_ok(load("", &p));
    assert_ok(load("{}", &p));
    assert_int_equal(p.rule_count, 0);
    assert_null(mc_policy_match(&p, &(struct mc_policy_question){.locality = MC_REMOTE}));
}

static void the_first_rule_that_matches_holds(void **state) {
    struct mc_policy p;
    assert_ok(load("{\"policy\": [{\"name\": \"big\", \"min_size\": \"1MB\", \"devices\": [\"a\"]},"
                   "{\"name\": \"gpu\", \"local_memory\": \"cuda\", \"transports\": [\"rdma\"]},"
                   "{\"name\": \"near\", \"locality\": \"same_host\", \"priority\": [\"low\"],"
                   " \"intent\": \"latency\", \"segment_type\": \"memory\"}],"
                   "\"qos\": {\"weights\": [6, 3, 1]}, \"max_failover_attempts\": 5,"
                   "\"transports\": {\"tcp\": {\"enable\": false}, \"shm\": {\"enable\": true}},"
                   "\"use_legacy_transport_selection\": true, \"no_such_key\": 1}",
                   &p));
    assert_int_equal(p.rule_count, 3);
    assert_int_equal(p.weights[0], 6);
    assert_int_equal(p.max_failovers, 5);
    assert_true(p.fixed_order && mc_policy_asks_memory(&p));
    assert_true(mc_policy_disables(&p, "tcp") && !mc_policy_disables(&p, "shm"));
    struct mc_policy_question q = {.locality = MC_SAME_HOST, .size = 1 << 20};
    assert_string_equal(mc_policy_match(&p, &q)->name, "big");
    assert_true(mc_policy_allows_device(mc_policy_match(&p, &q), "a"));
    assert_false(mc_policy_allows_device(mc_policy_match(&p, &q), "b"));
    q.size = 1;
    q.local_memory = "cuda:3";
    assert_string_equal(mc_policy_match(&p, &q)->name, "gpu");
    q.local_memory = "cudahost";
    assert_null(mc_policy_match(&p, &q));
    q.priority = MC_PRIORITY_LOW;
    q.intent = MC_INTENT_LATENCY;
    assert_string_equal(mc_policy_match(&p, &q)->name, "near");
    q.is_file = true;
    assert_null(mc_policy_match(&p, &q));
}

static void a_file_that_cannot_be_understood_is_an_error(void **state) {
    static const char *const texts[] = {
        "{",
        "/no/such/file.json",
        "{\"policy\": 7}",
        "{\"policy\": [7]}",
        "{\"policy\": {\"transports\": [\"tcp\"]}}",
        "{\"policy\": {}}",
        "{\"policy\": [{\"min_size\": 10, \"max_size\": 9}]}",
        "{\"policy\": [{\"locality\": \"nowhere\"}]}",
        "{\"policy\": [{\"transports\": [1]}]}",
        "{\"policy\": [{\"min_size\": \"big\"}]}",
        "{\"qos\": {\"weights\": [1, 2]}}",
        "{\"qos\": {\"weights\": [0, 1, 2]}}",
        "{\"max_failover_attempts\": -1}",
        "{\"transports/tcp/enable\": 3}",
    };
    struct mc_policy p;
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    for (size_t i = 0; i < MC_ARRAY_LEN(texts); i++) {
        assert_int_equal(load(texts[i], &p), MC_INVALID_PARAMS);
    }
    mc_engine_options_init(&options);
    options.policy = texts[0];
    assert_int_equal(mc_engine_create(&options, &engine), MC_INVALID_PARAMS);
}

/* ---- obeying ---- */

static struct sim_rails *world(const char *policy) {
    struct sim_rails *w = calloc(1, sizeof(*w));
    w->count = 4;
    w->has_backup = true;
    for (unsigned i = 0; i < 4; i++) {
        w->rails[i] = (struct sim_rail){
            .bandwidth = 10, .latency_ns = 5000, .nominal = 10000000000, .up = true};
    }
    w->backup = w->rails[0];
    assert_int_equal(setenv("MC_TENT_CONF", policy, 1), 0);
    sim_rails_start(w, 1);
    unsetenv("MC_TENT_CONF");
    return w;
}

static void world_end(struct sim_rails *w) {
    assert_string_equal(w->broken, "");
    sim_rails_stop(w);
    free(w);
}

static struct mc_batch *submit_until(struct sim_rails *w, uint64_t offset, uint64_t length,
                                     uint8_t priority, const char *hint, uint64_t deadline_ns) {
    struct mc_batch *batch;
    struct mc_transfer_request r = {.op = MC_TRANSFER_WRITE,
                                    .local = w->space + offset,
                                    .segment = MC_LOCAL_SEGMENT,
                                    .remote_addr = (uint64_t)(uintptr_t)w->space + offset,
                                    .length = length,
                                    .priority = priority,
                                    .transport_hint = hint};
    assert_ok(mc_batch_create(w->engine, 1, &batch));
    assert_ok(mc_batch_submit(batch, &r, 1, deadline_ns));
    return batch;
}

static struct mc_batch *submit(struct sim_rails *w, uint64_t offset, uint64_t length,
                               uint8_t priority, const char *hint) {
    return submit_until(w, offset, length, priority, hint, MC_WAIT_FOREVER);
}

static void finish(struct sim_rails *w, struct mc_batch *batch) {
    struct mc_transfer_status status;
    do {
        assert_ok(mc_batch_task(batch, 0, &status));
    } while (status.state < MC_TRANSFER_COMPLETED && sim_rails_step(w));
    assert_int_equal(status.state, MC_TRANSFER_COMPLETED);
    assert_ok(mc_batch_free(batch));
}

static void a_rule_names_transports_and_rails(void **state) {
    struct sim_rails *w = world("{\"policy\": [{\"max_size\": 4096, \"transports\": [\"backup\"]},"
                                "{\"min_size\": \"1MB\", \"devices\": [\"sim1\", \"sim3\"]}]}");
    finish(w, submit(w, 0, 4096, 0, NULL));
    assert_int_equal(w->backup.moved, 4096);
    finish(w, submit(w, 0, 64 << 20, 0, NULL));
    assert_int_equal(w->rails[0].posts + w->rails[2].posts, 0);
    assert_true(w->rails[1].moved > 0 && w->rails[3].moved > 0);
    assert_int_equal(w->rails[1].moved + w->rails[3].moved, 64 << 20);
    finish(w, submit(w, 0, 65536, 0, NULL)); /* no rule: all */
    finish(w, submit(w, 0, 65536, 0, "backup"));
    assert_int_equal(w->backup.moved, 4096 + 65536);
    finish(w, submit(w, 0, 65536, 0, "nothing of this name"));
    assert_int_equal(w->backup.moved, 4096 + 65536);
    /* A rule holds on the way of failures too: no transport but the one it lists. */
    w->backup.dead = true;
    struct mc_batch *batch = submit(w, 0, 4096, 0, NULL);
    while (sim_rails_step(w)) {
    }
    assert_int_equal(mc_batch_wait(batch, MC_WAIT_FOREVER), MC_ERR_IO);
    assert_ok(mc_batch_free(batch));
    world_end(w);
}

static void a_transport_can_be_switched_off(void **state) {
    struct sim_rails *w = world("{\"transports\": {\"sim\": {\"enable\": false}}}");
    finish(w, submit(w, 0, 1 << 20, 0, NULL));
    assert_int_equal(w->engine->transport_count, 1);
    assert_string_equal(w->engine->transports[0]->ops->name, "backup");
    world_end(w);
}

static void bad_priorities_are_refused(void **state) {
    struct sim_rails *w = world("{}");
    struct mc_transfer_request r = {.op = MC_TRANSFER_WRITE,
                                    .local = w->space,
                                    .remote_addr = (uint64_t)(uintptr_t)w->space,
                                    .length = 1,
                                    .priority = 3};
    assert_int_equal(mc_transfer(w->engine, &r, 1, MC_WAIT_FOREVER), MC_INVALID_PARAMS);
    r.priority = 0;
    r.intent = 4;
    assert_int_equal(mc_transfer(w->engine, &r, 1, MC_WAIT_FOREVER), MC_INVALID_PARAMS);
    world_end(w);
}

/* Virtual time from submit to completion of a small request of this priority behind much bulk. */
static uint64_t time_until(const char *policy, uint8_t bulk, uint8_t priority, uint64_t within_ns) {
    struct sim_rails *w = world(policy);
    struct mc_batch *batches[8];
    for (unsigned i = 0; i < 8; i++) {
        batches[i] = submit(w, (uint64_t)i << 28, 256 << 20, bulk, NULL);
    }
    sim_rails_run_until(w, w->now_ns + 5 * MC_MS);
    uint64_t begin = w->now_ns;
    uint64_t deadline = within_ns == 0 ? MC_WAIT_FOREVER : begin + within_ns;
    finish(w, submit_until(w, 1ull << 36, 1 << 20, priority, NULL, deadline));
    uint64_t took = w->now_ns - begin;
    for (unsigned i = 0; i < 8; i++) {
        finish(w, batches[i]);
    }
    world_end(w);
    return took;
}

static uint64_t time_behind_bulk(const char *policy, uint8_t bulk, uint8_t priority) {
    return time_until(policy, bulk, priority, 0);
}

static void a_deadline_is_met_behind_bulk_of_the_same_priority(void **state) {
    for (uint8_t p = 0; p < 3; p++) {
        assert_true(time_until("{}", p, p, 0) > 20 * MC_MS);
        assert_true(time_until("{}", p, p, 10 * MC_MS) < 10 * MC_MS);
    }
}

static void what_is_overdue_is_not_moved_though_nobody_looks(void **state) {
    struct sim_rails *w = world("{}");
    struct mc_transfer_status status;
    uint64_t length = 256 << 20, moved = 0;
    struct mc_batch *other = submit(w, 0, length, MC_PRIORITY_MEDIUM, NULL);
    struct mc_batch *late =
        submit_until(w, 1ull << 36, length / 4, MC_PRIORITY_MEDIUM, NULL, w->now_ns + MC_MS);
    sim_rails_run_until(w, w->now_ns + 30 * MC_MS);
    for (unsigned i = 0; i < w->count; i++) {
        moved += w->rails[i].moved;
    }
    assert_true(moved >= length);
    assert_true(moved < length + length / 4 * 3 / 4); /* there was time for half of it */
    finish(w, other);
    assert_ok(mc_batch_task(late, 0, &status));
    assert_int_equal(status.state, MC_TRANSFER_TIMEOUT);
    assert_int_equal(status.transferred_bytes, moved - length);
    assert_ok(mc_batch_free(late));
    world_end(w);
}

static void the_urgent_overtake_bulk(void **state) {
    uint64_t same = time_behind_bulk("{}", MC_PRIORITY_LOW, MC_PRIORITY_LOW);
    uint64_t urgent = time_behind_bulk("{}", MC_PRIORITY_LOW, MC_PRIORITY_HIGH);
    uint64_t weighted =
        time_behind_bulk("{\"qos\": {\"weights\": [8, 2, 1]}}", MC_PRIORITY_LOW, MC_PRIORITY_HIGH);
    print_message("behind 2 GiB of bulk: low %llu us, high %llu us, high by weight %llu us\n",
                  (unsigned long long)same / 1000, (unsigned long long)urgent / 1000,
                  (unsigned long long)weighted / 1000);
    assert_true(same > 20 * MC_MS);
    assert_true(urgent < 3 * MC_MS);
    assert_true(weighted < 6 * MC_MS);
    /* And bulk under a stream of urgent bytes ends too: it ages. */
    assert_true(time_behind_bulk("{}", MC_PRIORITY_HIGH, MC_PRIORITY_LOW) < 2 * MC_SEC);
}

/* ---- other processes ---- */

static char page[64];

static void others_of_the_host_are_heard_while_they_live(void **state) {
    struct mc_qos_host *mine, *second;
    uint64_t now = 100 * MC_SEC;
    snprintf(page, sizeof(page), "/dev/shm/mooncake-test-%d", (int)getpid());
    assert_ok(mc_qos_host_open(page, &mine));
    assert_ok(mc_qos_host_open(page, &second));
    mc_qos_host_publish(mine, 1000, now);
    assert_int_equal(mc_qos_host_others(mine, now), 0); /* not oneself */
    assert_int_equal(mc_qos_host_others(second, now), 1000);
    mc_qos_host_publish(mine, 0, now);
    assert_int_equal(mc_qos_host_others(second, now + 2 * MC_QOS_HOST_LOOK_NS), 0);
    mc_qos_host_publish(mine, 500, now);
    now += MC_QOS_HOST_STALE_NS; /* said too long ago */
    assert_int_equal(mc_qos_host_others(second, now), 0);
    mc_qos_host_close(mine);

    int pipes[2];
    char c;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) { /* dies with urgent bytes on the way */
        struct mc_qos_host *h;
        if (mc_qos_host_open(page, &h) == MC_OK) {
            mc_qos_host_publish(h, 7777, now);
            (void)!write(pipes[1], "x", 1);
        }
        pause();
        _exit(0);
    }
    assert_int_equal(read(pipes[0], &c, 1), 1);
    now += 2 * MC_QOS_HOST_LOOK_NS;
    assert_int_equal(mc_qos_host_others(second, now), 7777);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    now += 2 * MC_QOS_HOST_LOOK_NS;
    assert_int_equal(mc_qos_host_others(second, now), 0);
    mc_qos_host_close(second);
    unlink(page);
}

/* One entry: taken when `go` ends, held until the process is killed. */
static pid_t take_an_entry(int go, int ready, uint64_t now) {
    pid_t child = fork();
    if (child == 0) {
        struct mc_qos_host *h;
        char c;
        (void)!read(go, &c, 1);
        if (mc_qos_host_open(page, &h) == MC_OK) {
            mc_qos_host_publish(h, 1, now);
        }
        (void)!write(ready, "x", 1);
        pause();
        _exit(0);
    }
    return child;
}

/* All entries are of the dead, and many processes come at once: each gets one of its own, so that
 * what each says is heard. */
static void the_entries_of_the_dead_go_to_one_each(void **state) {
    enum { ROUNDS = 20, HEIRS = 16 };
    const uint64_t now = 100 * MC_SEC;
    snprintf(page, sizeof(page), "/dev/shm/mooncake-test-%d", (int)getpid());
    for (int round = 0; round < ROUNDS; round++) {
        struct mc_qos_host *h;
        int go[2], ready[2];
        pid_t heirs[HEIRS], dead = fork();
        char c;
        if (dead == 0) {
            for (int i = 0; i < MC_QOS_HOST_ENTRIES; i++) {
                (void)!mc_qos_host_open(page, &h);
            }
            _exit(0);
        }
        assert_int_equal(waitpid(dead, NULL, 0), dead);
        assert_int_equal(pipe2(go, O_CLOEXEC) | pipe2(ready, O_CLOEXEC), 0);
        for (int i = 0; i < HEIRS; i++) {
            heirs[i] = take_an_entry(go[0], ready[1], now);
        }
        assert_int_equal(write(go[1], "xxxxxxxxxxxxxxxx", HEIRS), HEIRS);
        for (int i = 0; i < HEIRS; i++) {
            assert_int_equal(read(ready[0], &c, 1), 1);
        }
        assert_ok(mc_qos_host_open(page, &h));
        assert_int_equal(mc_qos_host_others(h, now), HEIRS);
        mc_qos_host_close(h);
        for (int i = 0; i < HEIRS; i++) {
            kill(heirs[i], SIGKILL);
            assert_int_equal(waitpid(heirs[i], NULL, 0), heirs[i]);
        }
        close(go[0]);
        close(go[1]);
        close(ready[0]);
        close(ready[1]);
        unlink(page);
    }
}

static void a_page_that_is_something_else_is_refused(void **state) {
    struct mc_qos_host *h;
    snprintf(page, sizeof(page), "/dev/shm/mooncake-test-%d", (int)getpid());
    FILE *f = fopen(page, "w");
    fputs("a letter to somebody else", f);
    fclose(f);
    assert_int_equal(mc_qos_host_open(page, &h), MC_ERR_PROTOCOL);
    unlink(page);
    assert_int_equal(mc_qos_host_open("/no/such/folder/page", &h), MC_ERR_IO);
}

static void bulk_keeps_back_while_others_are_urgent(void **state) {
    struct mc_qos_host *other;
    char policy[128];
    snprintf(page, sizeof(page), "/dev/shm/mooncake-test-%d", (int)getpid());
    snprintf(policy, sizeof(policy), "{\"qos\": {\"shared_page\": \"%s\"}}", page);
    assert_ok(mc_qos_host_open(page, &other));
    struct sim_rails *w = world(policy);
    mc_qos_host_publish(other, 1 << 20, w->now_ns);
    struct mc_batch *batch = submit(w, 0, 256 << 20, MC_PRIORITY_LOW, NULL);
    uint64_t kept_back = w->rails[0].outstanding;
    assert_true(kept_back > 0);
    mc_qos_host_publish(other, 0, w->now_ns);
    sim_rails_run_until(w, w->now_ns + 4 * MC_MS);
    assert_true(w->rails[0].outstanding >= 2 * kept_back);
    finish(w, batch);
    /* What this engine has under way others hear in turn. */
    batch = submit(w, 0, 64 << 20, MC_PRIORITY_HIGH, NULL);
    assert_true(mc_qos_host_others(other, w->now_ns + MC_SEC / 2) > 0);
    finish(w, batch);
    assert_int_equal(mc_qos_host_others(other, w->now_ns + MC_SEC), 0);
    world_end(w);
    mc_qos_host_close(other);
    unlink(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_a_policy_too),
        cmocka_unit_test(the_first_rule_that_matches_holds),
        cmocka_unit_test(a_file_that_cannot_be_understood_is_an_error),
        cmocka_unit_test(a_rule_names_transports_and_rails),
        cmocka_unit_test(a_transport_can_be_switched_off),
        cmocka_unit_test(bad_priorities_are_refused),
        cmocka_unit_test(the_urgent_overtake_bulk),
        cmocka_unit_test(a_deadline_is_met_behind_bulk_of_the_same_priority),
        cmocka_unit_test(what_is_overdue_is_not_moved_though_nobody_looks),
        cmocka_unit_test(others_of_the_host_are_heard_while_they_live),
        cmocka_unit_test(the_entries_of_the_dead_go_to_one_each),
        cmocka_unit_test(a_page_that_is_something_else_is_refused),
        cmocka_unit_test(bulk_keeps_back_while_others_are_urgent),
    };
    (void)!mc_log_set_level("off");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
