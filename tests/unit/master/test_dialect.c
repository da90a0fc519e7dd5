/*
 * The master answers each release in its own schema, also where the question is the same: what a
 * connection told, what its client told elsewhere, what a hang-up says, and what none of these may
 * disturb.
 */
#include "support/support.h"

#include "master/dialect.h"

#include <stdio.h>

struct fake_clock {
    struct mc_clock base;
    uint64_t now_ns;
};
static uint64_t fake_now(const struct mc_clock *clock) {
    return ((const struct fake_clock *)clock)->now_ns;
}

struct fixture {
    struct fake_clock clock;
    struct mc_dialects *dialects;
    struct mc_arena arena;
    struct mc_buf body;
};
struct connection {
    uint64_t words[MC_RPC_PEER_WORDS];
    const char *peer;
};

static int setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    f->clock = (struct fake_clock){{fake_now, NULL}, 1000 * MC_SEC};
    f->dialects = mc_dialects_create(&f->clock.base);
    *state = f;
    return 0;
}
static int teardown(void **state) {
    struct fixture *f = *state;
    mc_dialects_destroy(f->dialects);
    mc_arena_free(&f->arena);
    mc_buf_free(&f->body);
    free(f);
    return 0;
}

/* One request as upstream sends it (with the literal) or as ours does;
 * the version of the answer. */
static unsigned ask(struct fixture *f, struct connection *c, enum mc_master_rpc rpc,
                    unsigned version, const void *args, bool literal) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    mc_buf_clear(&f->body);
    if (desc->versions[0].args != NULL) {
        mc_master_rpc_encode_args(desc, version, args, &f->body);
    }
    struct mc_buf sent = {0};
    if (literal && f->body.len > 0) {
        struct mc_buf name = {0};
        unsigned v = version < desc->version_count ? version : desc->version_count - 1;
        mc_type_literal(desc->versions[v].args, &name);
        mc_buf_append(&sent, f->body.data, 4);
        sent.data[0] |= 1;
        mc_buf_putc(&sent, 4);
        mc_buf_append(&sent, name.data, name.len);
        mc_buf_putc(&sent, 0);
        mc_buf_append(&sent, f->body.data + 4, f->body.len - 4);
        mc_buf_free(&name);
    } else {
        mc_buf_append(&sent, f->body.data, f->body.len);
    }
    struct mc_rpc_request request = {.function_id = desc->function_id,
                                     .body = {sent.data, sent.len},
                                     .arena = &f->arena,
                                     .peer = c->peer,
                                     .peer_words = c->words};
    void *decoded = mc_arena_zalloc(&f->arena, desc->args_size + 1);
    unsigned found;
    assert_ok(mc_master_rpc_decode_args(desc, request.body, &f->arena, decoded, &found));
    unsigned answer = mc_dialects_resolve(f->dialects, &request, desc, decoded, found);
    mc_buf_free(&sent);
    f->clock.now_ns += MC_MS;
    return answer;
}

static unsigned greet(struct fixture *f, struct connection *c) {
    return ask(f, c, MC_RPC_ServiceReady, 0, NULL, true);
}
static unsigned get(struct fixture *f, struct connection *c) {
    struct mw_a_key args = {.key = MC_STR("k"), .tenant = MC_STR("default")};
    return ask(f, c, MC_RPC_GetReplicaList, 0, &args, true);
}
static unsigned get_ours(struct fixture *f, struct connection *c) {
    struct mw_a_key args = {.key = MC_STR("k"), .tenant = MC_STR("default")};
    return ask(f, c, MC_RPC_GetReplicaList, 0, &args, false);
}
static unsigned put(struct fixture *f, struct connection *c, unsigned version,
                    struct mc_uuid client) {
    struct mw_a_put_start args = {.client = client,
                                  .key = MC_STR("k"),
                                  .length = 1,
                                  .config = {.replica_num = 1},
                                  .tenant = MC_STR("default")};
    return ask(f, c, MC_RPC_PutStart, version, &args, true);
}
static void ping(struct fixture *f, struct connection *c, struct mc_uuid client) {
    ask(f, c, MC_RPC_Ping, 0, &client, true);
}
static void hang_up(struct fixture *f, struct connection *c) {
    mc_dialects_closed(f->dialects, c->words, c->peer);
    f->clock.now_ns += MC_MS;
}

static void a_connection_that_told_is_answered_in_its_dialect(void **state) {
    struct fixture *f = *state;
    struct connection old = {.peer = "10.0.0.1:1"}, new = {.peer = "10.0.0.1:2"};
    for (int round = 0; round < 3; round++) {
        assert_int_equal(put(f, &old, 1, (struct mc_uuid){1, 1}), 1);
        assert_int_equal(put(f, &new, 0, (struct mc_uuid){2, 2}), 0);
        assert_int_equal(get(f, &old), 1);
        assert_int_equal(get(f, &new), 0);
    }
}

static void a_client_is_known_on_all_its_connections(void **state) {
    struct fixture *f = *state;
    struct mc_uuid one = {1, 1}, two = {2, 2};
    struct connection writes_old = {.peer = "10.0.0.1:1"}, pings_old = {.peer = "10.0.0.1:2"};
    struct connection writes_new = {.peer = "10.0.0.1:3"}, pings_new = {.peer = "10.0.0.1:4"};
    put(f, &writes_old, 1, one);
    put(f, &writes_new, 0, two); /* the host's last word is the newest */
    ping(f, &pings_old, one);
    ping(f, &pings_new, two);
    assert_int_equal(get(f, &pings_old), 1);
    assert_int_equal(get(f, &pings_new), 0);
}

static void a_host_is_remembered(void **state) {
    struct fixture *f = *state;
    struct connection writer = {.peer = "[fd00::1]:1"}, reader = {.peer = "[fd00::1]:2"};
    struct connection elsewhere = {.peer = "[fd00::2]:1"};
    put(f, &writer, 1, (struct mc_uuid){1, 1});
    assert_int_equal(get(f, &reader), 1);
    assert_int_equal(get(f, &elsewhere), 0);
}

/* The dialogue of a 0.3.12 client that only reads, as seen on the wire: its first connection
 * greets, gets an answer that it cannot read, closes; the next one begins with the read. */
static void a_pure_reader_loses_one_read(void **state) {
    struct fixture *f = *state;
    struct connection first = {.peer = "10.0.0.1:1"}, second = {.peer = "10.0.0.1:2"};
    struct connection third = {.peer = "10.0.0.1:3"};
    greet(f, &first);
    assert_int_equal(get(f, &first), 0);
    hang_up(f, &first);
    assert_int_equal(get(f, &second), 1);
    assert_int_equal(get(f, &second), 1);
    assert_int_equal(get(f, &third), 1); /* the second proved it for the host */
    hang_up(f, &second);                 /* proven: closing says nothing */
    struct connection fourth = {.peer = "10.0.0.1:4"};
    assert_int_equal(get(f, &fourth), 1);
}

static void a_reader_with_a_segment_loses_one_read(void **state) {
    struct fixture *f = *state;
    struct mc_uuid id = {7, 7};
    struct connection a = {.peer = "10.0.0.1:1"}, b = {.peer = "10.0.0.1:2"};
    greet(f, &a);
    ping(f, &a, id);
    ping(f, &b, id);
    assert_int_equal(get(f, &b), 0);
    hang_up(f, &b);
    assert_int_equal(get(f, &a), 1); /* greeted and older than the hang-up, but the same client */
}

/* Scripts that read once and end look like hang-ups; the next script begins with ServiceReady and
 * is not taken for a successor. */
static void short_scripts_of_the_newest_release_never_miss(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < 20; i++) {
        struct connection script = {.peer = "10.0.0.1:1"};
        greet(f, &script);
        assert_int_equal(get(f, &script), 0);
        hang_up(f, &script);
    }
}

static void a_late_close_says_nothing(void **state) {
    struct fixture *f = *state;
    struct connection idle = {.peer = "10.0.0.1:1"}, next = {.peer = "10.0.0.1:2"};
    assert_int_equal(get(f, &idle), 0);
    f->clock.now_ns += 30 * MC_SEC;
    hang_up(f, &idle);
    assert_int_equal(get(f, &next), 0);
}

static void both_generations_on_one_host_settle(void **state) {
    struct fixture *f = *state;
    struct connection old = {.peer = "10.0.0.1:1"}, old2 = {.peer = "10.0.0.1:2"};
    struct connection new = {.peer = "10.0.0.1:3"}, new2 = {.peer = "10.0.0.1:4"};
    greet(f, &old);
    greet(f, &new);
    assert_int_equal(get(f, &new), 0);
    assert_int_equal(get(f, &old), 0);
    hang_up(f, &old);
    assert_int_equal(get(f, &old2), 1);
    assert_int_equal(get(f, &old2), 1);
    assert_int_equal(get(f, &new2), 1); /* a further connection of the other process: one miss */
    hang_up(f, &new2);
    struct connection new3 = {.peer = "10.0.0.1:5"};
    assert_int_equal(get(f, &new3), 0);
    for (int i = 0; i < 5; i++) { /* those that live are settled */
        assert_int_equal(get(f, &old2), 1);
        assert_int_equal(get(f, &new), 0);
        assert_int_equal(get(f, &new3), 0);
    }
}

static void requests_without_a_literal_are_ours(void **state) {
    struct fixture *f = *state;
    struct connection old = {.peer = "10.0.0.1:1"}, ours = {.peer = "10.0.0.1:2"};
    put(f, &old, 1, (struct mc_uuid){1, 1});
    assert_int_equal(get_ours(f, &ours), 0);
    hang_up(f, &ours);
    struct connection ours2 = {.peer = "10.0.0.1:3"};
    assert_int_equal(get_ours(f, &ours2), 0);
    assert_int_equal(get(f, &old), 1);
    struct connection unnamed = {.peer = "10.0.0.3:1"}; /* an old build without literals */
    struct mw_a_put_start args = {.client = {3, 3}, .key = MC_STR("k"), .length = 1};
    assert_int_equal(ask(f, &unnamed, MC_RPC_PutStart, 1, &args, false), 1);
    assert_int_equal(get_ours(f, &unnamed), 1);
}

static void a_full_book_forgets_and_goes_on(void **state) {
    struct fixture *f = *state;
    char peer[32];
    for (unsigned i = 0; i < 20000; i++) {
        snprintf(peer, sizeof(peer), "10.%u.%u.%u:1", i >> 16, (i >> 8) & 255, i & 255);
        struct connection c = {.peer = peer};
        assert_int_equal(put(f, &c, 1, (struct mc_uuid){i + 1, 1}), 1);
        assert_int_equal(get(f, &c), 1);
    }
    struct connection again = {.peer = peer};
    assert_int_equal(get(f, &again), 1); /* the latest is still known */
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_connection_that_told_is_answered_in_its_dialect),
        T(a_client_is_known_on_all_its_connections),
        T(a_host_is_remembered),
        T(a_pure_reader_loses_one_read),
        T(a_reader_with_a_segment_loses_one_read),
        T(short_scripts_of_the_newest_release_never_miss),
        T(a_late_close_says_nothing),
        T(both_generations_on_one_host_settle),
        T(requests_without_a_literal_are_ours),
        T(a_full_book_forgets_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
