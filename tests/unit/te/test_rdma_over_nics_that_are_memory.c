/*
 * The rdma transport with everything but verbs: the suite that the guest runs over Soft-RoCE, over
 * NICs that are memory. MC_TEST_THREADS
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "standins/cuda.h"
#include "support/certificates.h"
#include "support/fake_nics.h"
#include "support/rdma_suite.h"
#include "te/internal.h"

static struct mc_transport_ops ops;

static void set_link(unsigned nic, bool up) {
    char name[16];
    snprintf(name, sizeof(name), "nic%u", nic);
    fake_nics_link(name, up);
}

/* A deadline while the NIC holds what was posted: the call returns, and what comes afterwards
 * touches nothing. */
static void test_what_is_cancelled_in_flight_is_flushed(void **state) {
    struct rdma_side a, b;
    rdma_side_open(&a, "0", MIB, 0);
    rdma_side_open(&b, "1", MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    rdma_round_trip(&a, &b, to_b, MIB, 1);
    mc_test_fill(b.memory, MIB, 2);
    fake_nics_hold(true);
    assert_int_equal(rdma_move(&a, to_b, MC_TRANSFER_READ, a.memory, b.memory, MIB, 200),
                     MC_ERR_TIMEOUT);
    mc_test_fill(a.memory, MIB, 3);
    fake_nics_hold(false);
    rdma_pause_ms(20);
    mc_test_verify(a.memory, MIB, 3);
    assert_int_equal(rdma_counter(&a, "mooncake_te_rdma_endpoints_failed_total"), 1);
    rdma_round_trip(&a, &b, to_b, MIB, 4);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

static void *release_after_some(void *arg) {
    struct rdma_side *a = arg;
    while (rdma_counter(a, "mooncake_te_attempts_given_up_total") < 8) {
        rdma_pause_ms(10);
    }
    fake_nics_hold(false);
    return NULL;
}

/* The only NIC takes work and says nothing. It is asked again and again, by a new endpoint each
 * time, and what it does once it works again is in time: a deadline had said how long to wait. */
static void test_the_only_nic_hangs_and_comes_back(void **state) {
    struct rdma_side a, b;
    pthread_t thread;
    rdma_suite.policy = "{\"attempt_timeout_ms\": 20}";
    rdma_side_open(&a, "0", MIB, 0);
    rdma_suite.policy = NULL;
    rdma_side_open(&b, "1", MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    mc_test_fill(a.memory, MIB, 1);
    fake_nics_hold(true);
    assert_int_equal(pthread_create(&thread, NULL, release_after_some, &a), 0);
    assert_ok(rdma_move(&a, to_b, MC_TRANSFER_WRITE, a.memory, b.memory, MIB, RDMA_PATIENCE_MS));
    pthread_join(thread, NULL);
    mc_test_verify(b.memory, MIB, 1);
    /* One endpoint for each time, and not for each try that a slice may have at once. */
    assert_true(rdma_counter(&a, "mooncake_te_rdma_endpoints_failed_total") <=
                rdma_counter(&a, "mooncake_te_attempts_given_up_total"));
    assert_int_equal(rdma_counter(&a, "mooncake_te_tasks_failed_total"), 0);
    assert_int_equal(rdma_counter(&a, "mooncake_te_tasks_timed_out_total"), 0);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

static void fail_it(void *arg) {
    rdma_endpoint_fail(arg);
}

/* An endpoint drains, and while its queue pairs are destroyed the peer's next request, or the port,
 * fails it. */
static void test_an_endpoint_may_fail_while_it_is_taken_apart(void **state) {
    struct rdma_side a, b;
    char path[300];
    rdma_side_open(&a, "0", MIB, 0);
    rdma_side_open(&b, "1", MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    rdma_round_trip(&a, &b, to_b, MIB, 0);
    struct rdma_context *context = rdma_of(a.engine->transports[0])->contexts[0];
    snprintf(path, sizeof(path), "%s@nic1", mc_engine_name(b.engine));
    pthread_mutex_lock(&context->lock);
    struct rdma_endpoint *ep = rdma_endpoint_find_locked(context, path, rdma_pool_hash(path));
    assert_non_null(ep);
    rdma_endpoint_get(ep);
    pthread_mutex_unlock(&context->lock);
    fake_nics_after_destroy("nic0", fail_it, ep);
    rdma_endpoint_drain(ep);
    uint64_t patience = mc_deadline_in_ms(60000);
    while (rdma_endpoint_state(ep) != RDMA_FAILED && mc_now_ns(mc_clock_system()) < patience) {
        rdma_pause_ms(1);
    }
    assert_int_equal(rdma_endpoint_state(ep), RDMA_FAILED);
    rdma_endpoint_put(ep);
    rdma_round_trip(&a, &b, to_b, MIB, 1);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

/* Waits for the engine to see the port as it is. */
static void wait_for_port(struct rdma_side *side, unsigned rail, bool up) {
    const _Atomic bool *now = &side->engine->dispatch[0].rails[rail].up;
    uint64_t patience = mc_deadline_in_ms(60000);
    while (atomic_load(now) != up && mc_now_ns(mc_clock_system()) < patience) {
        rdma_pause_ms(1);
    }
    assert_int_equal(atomic_load(now), up);
}

/* While the port is down everything over it fails, again and again, and each failure doubles a
 * pause, up to ten seconds: of the way to the peer here, of the path in the transport. Those are
 * the port's doing, and gone when it comes back. */
static void test_a_port_that_comes_back_has_a_clean_record(void **state) {
    struct rdma_side a, b;
    char path[300];
    rdma_side_open(&a, "0,2", MIB, 0);
    rdma_side_open(&b, "1,3", MIB, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    rdma_round_trip(&a, &b, to_b, MIB, 0);
    struct mc_segment_slot *slot = mc_slot_acquire(a.engine, to_b);
    struct rdma_context *context = rdma_of(a.engine->transports[0])->contexts[1];
    snprintf(path, sizeof(path), "%s@nic3", mc_engine_name(b.engine));
    uint64_t hash = rdma_pool_hash(path);
    struct mc_health *links = atomic_load(&slot->links[0]);
    if (links == NULL) { /* the engine's from here on, as after a first failure */
        links = mc_zalloc(2 * sizeof(*links));
        atomic_store(&slot->links[0], links);
    }

    set_link(2, false);
    wait_for_port(&a, 1, false);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t now = mc_now_ns(mc_clock_system());
        mc_health_failed(&links[1], now, now);
        rdma_penalise(context, hash);
    }
    assert_int_equal(mc_health_state(&links[1], mc_now_ns(mc_clock_system())), MC_PAUSED);
    assert_true(rdma_penalised(context, hash, mc_now_ns(mc_clock_system())));
    rdma_round_trip(&a, &b, to_b, MIB, 1); /* over the other pair */

    set_link(2, true);
    wait_for_port(&a, 1, true);
    assert_true(mc_health_good(&links[1]));
    assert_false(rdma_penalised(context, hash, mc_now_ns(mc_clock_system())));
    rdma_round_trip(&a, &b, to_b, MIB, 2);
    mc_slot_release(slot);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

/* From device to device over nic0 and nic1, both ways: by dma-buf, or through host memory. */
static void move_between_devices(size_t size, bool direct) {
    static const char *const nics[] = {"nic0", "nic1"};
    const struct mc_transport_ops *const table[] = {&ops, &mc_transport_stage_ops};
    void *library = dlopen(MC_STANDIN_CUDA, RTLD_NOW);
    const struct standin_cuda *cuda = library == NULL ? NULL : dlsym(library, "standin_cuda_table");
    struct rdma_side sides[2];
    uint64_t device[2];
    struct standin_counts counts;
    assert_non_null(cuda);
    cuda->counts(&counts, true);
    if (!direct) {
        setenv("MC_DISABLE_GPU_DIRECT_RDMA", "1", 1);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct mc_engine_options options;
        mc_engine_options_init(&options);
        options.host = "127.0.0.1";
        options.reactors = 1;
        setenv("MC_TE_FILTERS", nics[i], 1);
        assert_ok(mc_engine_create_with(&options, table, 2, &sides[i].engine));
        assert_int_equal(cuda->alloc(i, size, &device[i]), 0);
        assert_ok(mc_memory_register(sides[i].engine, (void *)(uintptr_t)device[i], size, "*", 0));
    }
    unsetenv("MC_DISABLE_GPU_DIRECT_RDMA");
    mc_segment_id to_b = rdma_segment_of(&sides[0], &sides[1]);
    char *here = cuda->inside(device[0]), *there = cuda->inside(device[1]);
    mc_test_fill(here, size, 1);
    assert_ok(rdma_move(&sides[0], to_b, MC_TRANSFER_WRITE, (char *)(uintptr_t)device[0],
                        (const char *)(uintptr_t)device[1], size, 60000));
    mc_test_verify(there, size, 1);
    mc_test_fill(there, size, 2);
    assert_ok(rdma_move(&sides[0], to_b, MC_TRANSFER_READ, (char *)(uintptr_t)device[0],
                        (const char *)(uintptr_t)device[1], size, 60000));
    mc_test_verify(here, size, 2);
    assert_int_equal(rdma_counter_of(&sides[0], "mooncake_te_rail_bytes_total", "rail=\"nic0\""),
                     2 * size);
    cuda->counts(&counts, true);
    assert_int_equal(counts.exported, direct ? 2 : 0);
    assert_int_equal(counts.bytes, direct ? 0 : 4 * size); /* what the device's driver has copied */
    for (unsigned i = 0; i < 2; i++) {
        mc_engine_destroy(sides[i].engine);
        cuda->release(device[i]);
    }
}

static void test_device_memory_is_staged_over_rdma(void **state) {
    move_between_devices(3 * MIB + 5, false);
}

static void test_device_memory_is_reached_by_dma_buf(void **state) {
    move_between_devices(3 * MIB, true);
}

static void test_relaxed_ordering_is_asked_for(void **state) {
    static const char *const settings[] = {"0", "1", "2"};
    for (size_t i = 0; i < MC_ARRAY_LEN(settings); i++) {
        struct rdma_side side;
        setenv("MC_IB_PCI_RELAXED_ORDERING", settings[i], 1);
        rdma_side_open(&side, "0", MIB, 0);
        unsetenv("MC_IB_PCI_RELAXED_ORDERING");
        assert_int_equal(fake_nics_regions("nic0", i > 0), 1);
        assert_int_equal(fake_nics_regions("nic0", i == 0), 0);
        rdma_side_close(&side);
    }
}

/* Each end is told what the other was configured with: packets are as large as both take. */
static void test_ends_of_different_mtu_settings_meet(void **state) {
    static const char *const settings[][2] = {{"1024", "4096"}, {"4096", "512"}};
    for (size_t i = 0; i < MC_ARRAY_LEN(settings); i++) {
        struct rdma_side a, b;
        setenv("MC_MTU", settings[i][0], 1);
        rdma_side_open(&a, "0", MIB, 0);
        setenv("MC_MTU", settings[i][1], 1);
        rdma_side_open(&b, "1", MIB, 0);
        unsetenv("MC_MTU");
        rdma_round_trip(&a, &b, rdma_segment_of(&a, &b), MIB, 1);
        assert_int_equal(rdma_counter(&a, "mooncake_te_rdma_endpoints_failed_total"), 0);
        rdma_side_close(&a);
        rdma_side_close(&b);
    }
}

/* What NICs send is not encrypted: an engine that must speak TLS only has none. */
static void test_an_engine_that_requires_tls_uses_no_nics(void **state) {
    static const char *const modes[] = {"off", "prefer", "require"};
    const struct mc_transport_ops *const table[] = {&ops};
    struct certificates certificates;
    if (!certificates_make(&certificates)) {
        skip(); /* no openssl program */
    }
    certificates_use(&certificates, "server", "ca");
    for (size_t i = 0; i < MC_ARRAY_LEN(modes); i++) {
        struct mc_engine_options options;
        struct mc_engine *engine;
        setenv("MC_TE_FILTERS", "nic0", 1);
        mc_engine_options_init(&options);
        options.host = "127.0.0.1";
        options.reactors = 1;
        options.tls_peers = modes[i];
        assert_ok(mc_engine_create_with(&options, table, 1, &engine));
        assert_true((mc_engine_transport(engine, 0) != NULL) == (i < 2));
        mc_engine_destroy(engine);
    }
    certificates_remove(&certificates);
}

static void test_endpoints_never_exceed_their_limit(void **state) {
    (void)fake_nics_peak("nic0");
    test_two_endpoints_serve_four_busy_peers(state);
    assert_true(fake_nics_peak("nic0") <= 2 * 2); /* two endpoints of two queue pairs */
}

/* One NIC that does not take the memory, and RDMA leaves it to others. */
static void test_memory_that_a_nic_refuses_is_not_offered(void **state) {
    struct rdma_side a, b;
    rdma_side_open(&a, "0", 65536, 0);
    fake_nics_refuse_regions("nic1", ENOMEM);
    rdma_side_open(&b, "1", 65536, 0);
    fake_nics_refuse_regions("nic1", 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    assert_int_equal(rdma_move(&a, to_b, MC_TRANSFER_WRITE, a.memory, b.memory, 65536, 5000),
                     MC_ERR_NO_TRANSPORT);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

static void test_small_writes_need_no_registration(void **state) {
    struct rdma_side a, b;
    char own[64];
    rdma_side_open(&a, "0", 4096, 0);
    rdma_side_open(&b, "1", 4096, 0);
    mc_segment_id to_b = rdma_segment_of(&a, &b);
    mc_test_fill(own, sizeof(own), 9);
    assert_ok(rdma_move(&a, to_b, MC_TRANSFER_WRITE, own, b.memory, sizeof(own), 5000));
    mc_test_verify(b.memory, sizeof(own), 9);
    assert_int_equal(rdma_move(&a, to_b, MC_TRANSFER_READ, own, b.memory, sizeof(own), 5000),
                     MC_ERR_NO_TRANSPORT);
    rdma_side_close(&a);
    rdma_side_close(&b);
}

/* ---- the handshake as a peer sees it ---- */

static enum mc_status ask(struct rdma_side *side, const struct mc_rdma_setup *request,
                          struct mc_rdma_setup *reply) {
    struct mc_handshake_limits limits;
    struct mc_buf body = {0}, text = {0};
    mc_handshake_limits_init(&limits);
    mc_rdma_setup_encode(request, &body);
    assert_ok(mc_handshake_connection("127.0.0.1", mc_engine_rpc_port(side->engine),
                                      (struct mc_str){body.data, body.len}, &limits, MC_NO_DEADLINE,
                                      &text));
    enum mc_status status = mc_rdma_setup_decode((struct mc_str){text.data, text.len}, reply);
    mc_buf_free(&body);
    mc_buf_free(&text);
    return status;
}

static void fill_request(struct rdma_side *to, uint64_t generation, uint32_t qp,
                         struct mc_rdma_setup *request) {
    *request = (struct mc_rdma_setup){.local_path = "10.0.0.9:15000@nic1",
                                      .local_gid = {[10] = 0xff, [11] = 0xff, 10, 9, 0, 2},
                                      .qp_count = 2,
                                      .qp_num = {qp, qp + 1},
                                      .engine_id = {1, 2},
                                      .generation = generation,
                                      .mtu = 4096};
    snprintf(request->peer_path, sizeof(request->peer_path), "%s@nic0", mc_engine_name(to->engine));
}

static void test_an_old_generation_is_refused(void **state) {
    struct rdma_side a;
    struct mc_rdma_setup request, reply, again;
    rdma_side_open(&a, "0", 4096, 0);
    fill_request(&a, 5, 100, &request);
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "");
    assert_int_equal(reply.qp_count, 2);
    assert_int_equal(reply.answers, 5);
    /* The same once more: the same queue pairs. */
    assert_ok(ask(&a, &request, &again));
    assert_memory_equal(again.qp_num, reply.qp_num, 2 * sizeof(uint32_t));
    /* Late, from before: refused. Newer: replaces. Another engine under that name: replaces. */
    fill_request(&a, 4, 200, &request);
    assert_ok(ask(&a, &request, &again));
    assert_string_equal(again.reply_msg, "a newer connection exists");
    fill_request(&a, 6, 300, &request);
    assert_ok(ask(&a, &request, &again));
    assert_string_equal(again.reply_msg, "");
    assert_int_not_equal(again.qp_num[0], reply.qp_num[0]);
    fill_request(&a, 1, 400, &request);
    request.engine_id = (struct mc_uuid){7, 7};
    assert_ok(ask(&a, &request, &again));
    assert_string_equal(again.reply_msg, "");
    rdma_side_close(&a);
}

static void test_requests_that_cannot_be_served_say_why(void **state) {
    struct rdma_side a;
    struct mc_rdma_setup request, reply;
    rdma_side_open(&a, "0", 4096, 0);
    fill_request(&a, 1, 100, &request);
    strcpy(strrchr(request.peer_path, '@'), "@nic7");
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "no such NIC here");
    fill_request(&a, 1, 100, &request);
    request.peer_id = (struct mc_uuid){9, 9};
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "another engine answers here");
    fill_request(&a, 1, 100, &request);
    request.qp_count = 0;
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "no queue pairs named");
    fill_request(&a, 1, 100, &request);
    memset(request.local_gid, 0, 16);
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "no local_gid named");
    rdma_side_close(&a);
}

/* An upstream engine opens a connection to us, says that it is ready, and has no word of ours. */
static void test_an_upstream_peer_is_served(void **state) {
    struct rdma_side a;
    struct mc_rdma_setup request, reply;
    rdma_side_open(&a, "0", 4096, 0);
    fill_request(&a, 0, 100, &request);
    request.engine_id = (struct mc_uuid){0, 0};
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "");
    assert_int_equal(reply.qp_count, 2);
    request.ready_ack = true;
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "");
    request.ready_ack = false;
    request.qp_count = 3; /* it would refuse an answer with two */
    assert_ok(ask(&a, &request, &reply));
    assert_string_equal(reply.reply_msg, "fewer queue pairs an endpoint here: MC_NUM_QP_PER_EP");
    rdma_side_close(&a);
}

/* Upstream's engines go by the one protocol that a descriptor names. */
static void test_a_peer_hears_of_the_protocol_that_it_speaks(void **state) {
    static const struct {
        const char *request, *protocol;
    } cases[] = {
        {"{\"protocol\":\"tcp\",\"name\":\"x\"}", "\"protocol\":\"tcp\""},
        {"{\"protocol\":\"rdma\",\"name\":\"x\"}", "\"protocol\":\"rdma\""},
        {"{\"protocol\":\"tcp\",\"mooncake_c\":{}}", "\"protocol\":\"rdma\""},
        {"{}", "\"protocol\":\"rdma\""},
        {"noise", "\"protocol\":\"rdma\""},
    };
    struct mc_handshake_limits limits;
    struct rdma_side a;
    rdma_side_open(&a, "0", 4096, 0);
    mc_handshake_limits_init(&limits);
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        struct mc_buf text = {0};
        assert_ok(mc_handshake_metadata("127.0.0.1", mc_engine_rpc_port(a.engine),
                                        mc_str_from(cases[i].request), &limits, MC_NO_DEADLINE,
                                        &text));
        assert_non_null(strstr(mc_buf_cstr(&text), cases[i].protocol));
        assert_non_null(strstr(mc_buf_cstr(&text), "\"gid\":"));
        mc_buf_free(&text);
    }
    rdma_side_close(&a);
}

static char *descriptor_of(struct rdma_side *side) {
    struct mc_handshake_limits limits;
    struct mc_buf text = {0};
    mc_handshake_limits_init(&limits);
    assert_ok(mc_handshake_metadata("127.0.0.1", mc_engine_rpc_port(side->engine), MC_STR("{}"),
                                    &limits, MC_NO_DEADLINE, &text));
    (void)mc_buf_cstr(&text);
    return text.data;
}

/* Without a matrix of the user, NICs are placed by the NUMA node that their driver names. */
static void test_peers_are_told_which_nics_are_near(void **state) {
    char path[] = "/tmp/mc-matrix-XXXXXX";
    static const char matrix[] = "{\"cpu:0\":[[\"nic4\"],[\"nic0\"]]}";
    struct rdma_side a;
    rdma_side_open(&a, "0,4", 4096, 0);
    char *text = descriptor_of(&a);
    assert_non_null(strstr(text, "\"cpu:0\":[[\"nic0\"],[\"nic4\"]]"));
    assert_non_null(strstr(text, "\"cpu:1\":[[\"nic4\"],[\"nic0\"]]"));
    free(text);
    rdma_side_close(&a);

    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, matrix, strlen(matrix)) == (ssize_t)strlen(matrix));
    close(fd);
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    rdma_side_open(&a, "0,4", 4096, 0);
    unsetenv("MC_CUSTOM_TOPO_JSON");
    text = descriptor_of(&a);
    assert_non_null(strstr(text, matrix));
    free(text);
    rdma_side_close(&a);
    unlink(path);
}

static int nothing_is_left(void **state) {
    assert_int_equal(fake_nics_queue_pairs(), 0);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size_arrives_whole),
        cmocka_unit_test(test_two_pairs_of_nics_carry_one_transfer),
        cmocka_unit_test(test_a_link_that_goes_down_is_not_seen_by_the_application),
        cmocka_unit_test(test_both_sides_may_open_at_the_same_moment),
        cmocka_unit_test(test_memory_that_is_unregistered_is_out_of_reach),
        cmocka_unit_test(test_ranges_larger_than_a_region_are_split),
        cmocka_unit_test(test_what_is_cancelled_in_flight_is_flushed),
        cmocka_unit_test(test_the_only_nic_hangs_and_comes_back),
        cmocka_unit_test(test_an_endpoint_may_fail_while_it_is_taken_apart),
        cmocka_unit_test(test_a_port_that_comes_back_has_a_clean_record),
        cmocka_unit_test(test_device_memory_is_staged_over_rdma),
        cmocka_unit_test(test_device_memory_is_reached_by_dma_buf),
        cmocka_unit_test(test_relaxed_ordering_is_asked_for),
        cmocka_unit_test(test_ends_of_different_mtu_settings_meet),
        cmocka_unit_test(test_an_engine_that_requires_tls_uses_no_nics),
        cmocka_unit_test(test_endpoints_never_exceed_their_limit),
        cmocka_unit_test(test_memory_that_a_nic_refuses_is_not_offered),
        cmocka_unit_test(test_small_writes_need_no_registration),
        cmocka_unit_test(test_an_old_generation_is_refused),
        cmocka_unit_test(test_requests_that_cannot_be_served_say_why),
        cmocka_unit_test(test_an_upstream_peer_is_served),
        cmocka_unit_test(test_a_peer_hears_of_the_protocol_that_it_speaks),
        cmocka_unit_test(test_peers_are_told_which_nics_are_near),
    };
    ops = mc_transport_rdma_ops;
    ops.start = fake_nics_ops.start;
    rdma_suite = (struct rdma_suite){&ops, "nic", set_link};
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, NULL, nothing_is_left);
}
