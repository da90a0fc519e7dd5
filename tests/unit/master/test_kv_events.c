/*
 * Subscribers hear of an object when it can be read and when it no longer can, in order, and can
 * find out what they missed. Not under the thread sanitizer: the library hands messages between its
 * threads in ways which that does not see, and is not built for it.
 *
 * The subscribers here are sockets of the real library; what they receive is searched for the
 * members that matter (every byte of an event is tested in tests/unit/wire).
 */
#include <sched.h>
#include <stdio.h>

#include "io/zmq.h"
#include "master/events.h"
#include "support/master_fixture.h"
#include "wire/kv_event.h"

struct stage {
    struct fixture *f;
    const struct mc_zmq *zmq;
    void *context, *sub;
    struct mc_events *events;
    struct mc_events_config config;
};

struct message {
    uint64_t sequence;
    struct mc_buf payload;
};

static int stage_setup(void **state) {
    struct stage *s = mc_zalloc(sizeof(*s));
    s->zmq = mc_zmq_load();
    if (!s->zmq) {
        free(s);
        exit(77);
    }
    s->context = s->zmq->ctx_new();
    s->config = (struct mc_events_config){.endpoint = "tcp://127.0.0.1:*",
                                          .replay_endpoint = "tcp://127.0.0.1:*",
                                          .backend_id = "m",
                                          .legacy = true,
                                          .object_key = true,
                                          .queue_capacity = 65536,
                                          .replay_batches = 10000,
                                          .replay_bytes = 64 << 20};
    *state = s;
    return 0;
}

static void *open_socket(struct stage *s, int type, const char *endpoint, int hwm) {
    void *socket = s->zmq->socket(s->context, type);
    int none = 0, timeout = 10000;
    assert_non_null(socket);
    s->zmq->setsockopt(socket, ZMQ_LINGER, &none, sizeof(int));
    s->zmq->setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(int));
    s->zmq->setsockopt(socket, ZMQ_RCVTIMEO, &timeout, sizeof(int));
    if (type == ZMQ_SUB) {
        s->zmq->setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    }
    assert_int_equal(s->zmq->connect(socket, endpoint), 0);
    return socket;
}

static void start(struct stage *s) {
    assert_ok(mc_events_start(&s->config, NULL, &s->events));
}

static int stage_teardown(void **state) {
    struct stage *s = *state;
    if (s->sub) {
        s->zmq->close(s->sub);
    }
    mc_events_stop(s->events);
    s->zmq->ctx_term(s->context);
    free(s);
    return 0;
}

static bool receive_frame(struct stage *s, void *socket, struct mc_buf *out, bool *more) {
    zmq_msg_t msg;
    s->zmq->msg_init(&msg);
    bool ok = s->zmq->msg_recv(&msg, socket, 0) >= 0;
    if (ok) {
        mc_buf_clear(out);
        mc_buf_append(out, s->zmq->msg_data(&msg), s->zmq->msg_size(&msg));
        *more = s->zmq->msg_more(&msg);
    }
    s->zmq->msg_close(&msg);
    return ok;
}

/* Three frames, the first empty: of the publisher, and of a replay as a DEALER sees it. */
static bool receive(struct stage *s, void *socket, struct message *m) {
    struct mc_buf frame = {0};
    bool more = false;
    if (!receive_frame(s, socket, &frame, &more)) {
        return false;
    }
    assert_int_equal(frame.len, 0);
    assert_true(more);
    assert_true(receive_frame(s, socket, &frame, &more));
    assert_int_equal(frame.len, MW_KV_SEQUENCE_BYTES);
    m->sequence = mw_kv_sequence_get((const uint8_t *)frame.data);
    assert_true(more);
    assert_true(receive_frame(s, socket, &m->payload, &more));
    assert_false(more);
    mc_buf_free(&frame);
    return true;
}

static void push_for(struct stage *s, const char *key, bool removed) {
    struct mc_object_event event = {.removed = removed, .key = mc_str_from(key)};
    mc_events_push(s->events, &event);
}

static struct mc_events_stats stats(struct stage *s) {
    struct mc_events_stats now;
    mc_events_stats(s->events, &now);
    return now;
}

/* When nothing waits. */
static uint64_t next_sequence(struct stage *s) {
    struct mc_events_stats now = stats(s);
    return now.published_batches + now.dropped_events;
}

/* One batch of one event. */
static void push_alone(struct stage *s, unsigned n) {
    uint64_t before = stats(s).published_batches;
    char key[16];
    snprintf(key, sizeof(key), "k%u", n);
    push_for(s, key, false);
    while (stats(s).published_batches == before) {
        sched_yield();
    }
}

/* Subscribes and pushes until something arrives: before that the two do not know each other. */
static void subscribe(struct stage *s, int hwm) {
    struct message m = {0};
    int brief = 20, timeout = 10000;
    s->sub = open_socket(s, ZMQ_SUB, mc_events_endpoint(s->events), hwm);
    s->zmq->setsockopt(s->sub, ZMQ_RCVTIMEO, &brief, sizeof(int));
    uint64_t before = stats(s).published_events, hellos = 0;
    do {
        push_for(s, "hello", false);
        hellos++;
    } while (!receive(s, s->sub, &m));
    while (stats(s).published_events + stats(s).dropped_events < before + hellos) {
        sched_yield();
    }
    while (m.sequence + 1 < next_sequence(s)) {
        assert_true(receive(s, s->sub, &m));
    }
    s->zmq->setsockopt(s->sub, ZMQ_RCVTIMEO, &timeout, sizeof(int));
    mc_buf_free(&m.payload);
}

static void ask_replay(struct stage *s, void *socket, uint64_t from) {
    uint8_t sequence[MW_KV_SEQUENCE_BYTES];
    mw_kv_sequence_put(sequence, from);
    assert_int_equal(s->zmq->send(socket, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(s->zmq->send(socket, sequence, sizeof(sequence), 0), sizeof(sequence));
}

/* Replays from a sequence number; every one of [from, until) must come, in order. */
static void replay_all(struct stage *s, uint64_t from, uint64_t until) {
    void *dealer = open_socket(s, ZMQ_DEALER, mc_events_replay_endpoint(s->events), 0);
    struct message m = {0};
    ask_replay(s, dealer, from);
    for (uint64_t want = from; want < until; want++) {
        assert_true(receive(s, dealer, &m));
        assert_int_equal(m.sequence, want);
        assert_true(m.payload.len > 0);
    }
    assert_true(receive(s, dealer, &m));
    assert_int_equal(m.sequence, UINT64_MAX);
    assert_int_equal(m.payload.len, 0);
    mc_buf_free(&m.payload);
    s->zmq->close(dealer);
}

/* ---- what is told ---- */

/* Waits for the event's batch, one event each, and checks its kind and key. */
static void expect(struct stage *s, const char *kind, const char *key) {
    struct message m = {0};
    char kind_member[64], key_member[64];
    snprintf(kind_member, sizeof(kind_member), "event_type%c%s", (int)(0xa0 | strlen(kind)), kind);
    snprintf(key_member, sizeof(key_member), "object_key%c%s", (int)(0xa0 | strlen(key)), key);
    assert_true(receive(s, s->sub, &m));
    assert_int_equal((unsigned char)m.payload.data[0], 0x93);
    assert_int_equal((unsigned char)m.payload.data[10], 0x91); /* one event */
    assert_non_null(memmem(m.payload.data, m.payload.len, kind_member, strlen(kind_member)));
    assert_non_null(memmem(m.payload.data, m.payload.len, key_member, strlen(key_member)));
    mc_buf_free(&m.payload);
}

static void assert_silent(struct stage *s) {
    struct mc_events_stats now = stats(s);
    assert_int_equal(now.waiting, 0);
    push_for(s, "silence", false); /* what came before it would be before it */
    expect(s, "stored", "silence");
}

static void test_an_event_follows_its_commit(void **state) {
    struct stage *s = *state;
    void *fixture;
    start(s);
    subscribe(s, 0);
    fixture_setup(&fixture);
    struct fixture *f = fixture;
    f->config.on_object_event = mc_events_push;
    f->config.on_object_event_ctx = s->events;
    fixture_restart(f);
    mount(f, "a:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(put_start(f, "one", 100));
    assert_silent(s);
    assert_ok(put_end(f, "one"));
    expect(s, "stored", "one");
    assert_ok(put_end(f, "one")); /* again: nothing new */
    assert_ok(put_start(f, "gone", 100));
    assert_ok(put_revoke(f, "gone"));
    assert_silent(s);
    struct mc_vec out;
    assert_ok(upsert_start(f, "one", 100, replicas(1), &out)); /* in place: unreadable at once */
    expect(s, "removed", "one");
    assert_ok(put_end(f, "one"));
    expect(s, "stored", "one");
    assert_ok(remove_key(f, "one", true));
    expect(s, "removed", "one");
    assert_int_equal(remove_key(f, "one", true), MC_OBJECT_NOT_FOUND);
    assert_silent(s);
    fixture_teardown(&fixture);
    assert_silent(s); /* what ends with the master is not told */
}

static void test_eviction_and_lost_nodes_are_told(void **state) {
    struct stage *s = *state;
    void *fixture;
    start(s);
    subscribe(s, 0);
    fixture_setup(&fixture);
    struct fixture *f = fixture;
    f->config.on_object_event = mc_events_push;
    f->config.on_object_event_ctx = s->events;
    fixture_restart(f);
    struct mc_uuid segment = mount(f, "a:1", FIXTURE_SEGMENT_BYTES);
    assert_ok(put(f, "old", FIXTURE_SEGMENT_BYTES / 8 * 7));
    expect(s, "stored", "old");
    assert_int_equal(put_start(f, "more", FIXTURE_SEGMENT_BYTES / 2), MC_NO_AVAILABLE_HANDLE);
    tick_for_ms(f, 100);
    expect(s, "removed", "old");
    assert_ok(put(f, "new", 100));
    expect(s, "stored", "new");
    assert_ok(unmount(f, segment));
    tick_for_ms(f, 2000);
    expect(s, "removed", "new");
    assert_silent(s);
    fixture_teardown(&fixture);
}

/* ---- what is missed ---- */

static void test_who_comes_late_asks_for_the_beginning(void **state) {
    struct stage *s = *state;
    start(s);
    for (unsigned i = 0; i < 100; i++) {
        push_alone(s, i);
    }
    subscribe(s, 0);
    replay_all(s, 0, stats(s).published_batches);
    replay_all(s, 90, stats(s).published_batches);
    replay_all(s, 1000000, 1000000); /* not there yet: the end at once */
    assert_int_equal(stats(s).replays, 3);
    assert_int_equal(stats(s).refused_replays, 0);
}

static void test_a_slow_subscriber_sees_the_gap_and_fills_it(void **state) {
    struct stage *s = *state;
    struct message m = {0};
    uint64_t missed = 0, next;
    s->config.replay_batches = 100000;
    start(s);
    subscribe(s, 1);
    next = stats(s).published_batches;
    for (unsigned i = 0; i < 60000; i++) { /* the library and the kernel hold fewer */
        push_alone(s, i);
    }
    uint64_t until = stats(s).published_batches;
    int brief = 300;
    s->zmq->setsockopt(s->sub, ZMQ_RCVTIMEO, &brief, sizeof(int));
    while (receive(s, s->sub, &m)) {
        assert_true(m.sequence >= next); /* never back, never twice */
        if (m.sequence > next && missed == 0) {
            missed = next;
        }
        next = m.sequence + 1;
    }
    if (missed == 0) {
        missed = next; /* all that was lost is the end */
    }
    assert_true(missed < until);
    replay_all(s, missed, until);
    mc_buf_free(&m.payload);
}

static void test_a_full_queue_drops_the_oldest_and_burns_numbers(void **state) {
    struct stage *s = *state;
    struct message m = {0};
    uint64_t gaps = 0, got = 0, next;
    s->config.queue_capacity = 2;
    start(s);
    subscribe(s, 0);
    struct mc_events_stats before = stats(s);
    next = next_sequence(s);
    const unsigned count = 100000;
    for (unsigned i = 0; i < count; i++) {
        push_for(s, "x", false);
    }
    uint64_t known = before.published_events + before.dropped_events;
    while (stats(s).published_events + stats(s).dropped_events < known + count) {
        sched_yield();
    }
    push_alone(s, 7);
    struct mc_events_stats after = stats(s);
    uint64_t batches = after.published_batches - before.published_batches;
    uint64_t dropped = after.dropped_events - before.dropped_events;
    assert_true(dropped > 0);
    assert_int_equal(after.published_events - before.published_events + dropped, count + 1);
    for (; got < batches; got++) {
        assert_true(receive(s, s->sub, &m));
        gaps += m.sequence - next;
        next = m.sequence + 1;
    }
    assert_non_null(memmem(m.payload.data, m.payload.len, "k7", 2)); /* the newest is there */
    assert_int_equal(gaps, dropped);
    mc_buf_free(&m.payload);
}

static void test_after_a_restart_the_numbers_begin_again(void **state) {
    struct stage *s = *state;
    char endpoint[256];
    struct message m = {0};
    start(s);
    subscribe(s, 0);
    for (unsigned i = 0; i < 50; i++) {
        push_alone(s, i);
        assert_true(receive(s, s->sub, &m));
    }
    uint64_t last = m.sequence;
    snprintf(endpoint, sizeof(endpoint), "%s", mc_events_endpoint(s->events));
    mc_events_stop(s->events);
    s->config.endpoint = endpoint; /* the same, as a configured one is */
    start(s);
    int brief = 50;
    s->zmq->setsockopt(s->sub, ZMQ_RCVTIMEO, &brief, sizeof(int));
    do {
        push_alone(s, 0);
    } while (!receive(s, s->sub, &m));
    assert_true(m.sequence < last); /* going back is how a subscriber knows */
    replay_all(s, 0, stats(s).published_batches);
    mc_buf_free(&m.payload);
}

/* ---- limits ---- */

static void test_replay_keeps_no_more_than_its_limits(void **state) {
    struct stage *s = *state;
    s->config.replay_batches = 7; /* the ring has gone round, and ends in its middle */
    start(s);
    for (unsigned i = 0; i < 100; i++) {
        push_alone(s, i);
    }
    void *dealer = open_socket(s, ZMQ_DEALER, mc_events_replay_endpoint(s->events), 0);
    struct message m = {0};
    ask_replay(s, dealer, 0);
    for (uint64_t want = 93; want < 100; want++) { /* the first says that 0..92 are lost */
        assert_true(receive(s, dealer, &m));
        assert_int_equal(m.sequence, want);
    }
    assert_true(receive(s, dealer, &m));
    assert_int_equal(m.sequence, UINT64_MAX);
    /* other shapes get no answer and do no harm */
    assert_int_equal(s->zmq->send(dealer, "12345678", 8, 0), 8);
    assert_int_equal(s->zmq->send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(s->zmq->send(dealer, "123", 3, 0), 3);
    for (unsigned i = 0; i < 9; i++) {
        assert_int_equal(s->zmq->send(dealer, "many", 4, i < 8 ? ZMQ_SNDMORE : 0), 4);
    }
    ask_replay(s, dealer, 99);
    assert_true(receive(s, dealer, &m));
    assert_int_equal(m.sequence, 99);
    assert_true(receive(s, dealer, &m));
    assert_int_equal(m.sequence, UINT64_MAX);
    assert_int_equal(stats(s).refused_replays, 3);
    mc_buf_free(&m.payload);
    s->zmq->close(dealer);
}

static void test_keys_without_a_name_or_number_are_skipped(void **state) {
    struct stage *s = *state;
    s->config.object_key = false;
    start(s);
    push_for(s, "not a number", false);
    push_for(s, "0x10", false);
    while (stats(s).published_events == 0) {
        sched_yield();
    }
    assert_int_equal(stats(s).skipped_unparsed_keys, 1);
    assert_int_equal(stats(s).published_events, 1);
}

static void test_endpoints_that_cannot_be_are_errors(void **state) {
    struct stage *s = *state;
    struct mc_events *other;
    struct mc_events_config config = s->config;
    start(s);
    config.endpoint = mc_events_endpoint(s->events);
    assert_int_equal(mc_events_start(&config, NULL, &other), MC_ERR_ADDRESS_IN_USE);
    config.endpoint = "nonsense";
    assert_int_equal(mc_events_start(&config, NULL, &other), MC_ERR_BAD_ADDRESS);
    config.endpoint = "tcp://127.0.0.1:*";
    config.replay_endpoint = mc_events_endpoint(s->events);
    assert_int_equal(mc_events_start(&config, NULL, &other), MC_ERR_ADDRESS_IN_USE);
}

#define STAGE_TEST(name) cmocka_unit_test_setup_teardown(name, stage_setup, stage_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        STAGE_TEST(test_an_event_follows_its_commit),
        STAGE_TEST(test_eviction_and_lost_nodes_are_told),
        STAGE_TEST(test_who_comes_late_asks_for_the_beginning),
        STAGE_TEST(test_a_slow_subscriber_sees_the_gap_and_fills_it),
        STAGE_TEST(test_a_full_queue_drops_the_oldest_and_burns_numbers),
        STAGE_TEST(test_after_a_restart_the_numbers_begin_again),
        STAGE_TEST(test_replay_keeps_no_more_than_its_limits),
        STAGE_TEST(test_keys_without_a_name_or_number_are_skipped),
        STAGE_TEST(test_endpoints_that_cannot_be_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
