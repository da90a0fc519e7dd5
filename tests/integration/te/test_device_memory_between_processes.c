/*
 * Device memory of two processes, each with a driver of its own (the stand-in of
 * tests/standins/cuda.h): what neither can touch, and neither shares, arrives whole by tcp and by
 * shared memory; a peer that is killed amid it is an error in time, and the next one is served.
 * MC_TEST_THREADS.
 */
#include <dlfcn.h>

#include "integration/te/te_peer.h"

#define SIZE (8u << 20)

static const struct standin_cuda *cuda;

struct scene {
    struct peer peer;
    struct mc_engine *engine;
    mc_segment_id segment;
    uint64_t device; /* SIZE */
    char *host;      /* SIZE */
};

static void meet(struct scene *s, bool disable_shm) {
    const struct peer_config config = {.size = SIZE, .disable_shm = disable_shm, .on_device = true};
    peer_start_with(&s->peer, &config);
    assert_ok(mc_segment_open(s->engine, s->peer.hello.name, &s->segment));
}

static void begin(struct scene *s, bool disable_shm) {
    s->engine = peer_engine_of(disable_shm, 0, PEER_REACTORS);
    s->host = malloc(SIZE);
    assert_int_equal(cuda->alloc(0, SIZE, &s->device), 0);
    assert_ok(mc_memory_register(s->engine, (void *)(uintptr_t)s->device, SIZE, "*", 0));
    assert_ok(mc_memory_register(s->engine, s->host, SIZE, "*", 0));
    meet(s, disable_shm);
}

static void end(struct scene *s) {
    mc_engine_destroy(s->engine);
    cuda->release(s->device);
    free(s->host);
}

static struct mc_transfer_request request_of(const struct scene *s, enum mc_transfer_op op,
                                             bool device, uint64_t offset, uint64_t length) {
    char *local = device ? (char *)(uintptr_t)s->device : s->host;
    return (struct mc_transfer_request){.op = op,
                                        .local = local + offset,
                                        .segment = s->segment,
                                        .remote_addr = s->peer.hello.addr + offset,
                                        .length = length};
}

static void move(const struct scene *s, enum mc_transfer_op op, bool device, uint64_t offset,
                 uint64_t length) {
    struct mc_transfer_request r = request_of(s, op, device, offset, length);
    assert_ok(mc_transfer(s->engine, &r, 1, mc_deadline_in_ms(60000)));
}

static void every_size(bool disable_shm) {
    static const uint64_t sizes[] = {1, 4095, 65536, (1u << 20) + 1, SIZE - 3};
    struct scene s;
    begin(&s, disable_shm);
    for (size_t i = 0; i < 2 * MC_ARRAY_LEN(sizes); i++) {
        uint64_t length = sizes[i / 2], offset = i / 2 % 4;
        bool device = i % 2 == 0;
        char *here = (device ? (char *)cuda->inside(s.device) : s.host) + offset;
        mc_test_fill(here, length, i);
        move(&s, MC_TRANSFER_WRITE, device, offset, length);
        assert_int_equal(peer_tell(&s.peer, PEER_VERIFY, offset, length, i), length);
        assert_true(peer_tell(&s.peer, PEER_FILL, offset, length, 100 + i));
        move(&s, MC_TRANSFER_READ, device, offset, length);
        mc_test_verify(here, length, 100 + i);
    }
    assert_true(te_counter(s.engine, "mooncake_te_stage_chunks_total") > 0);
    assert_int_equal(te_counter(s.engine, "mooncake_te_tasks_failed_total"), 0);
    peer_stop(&s.peer);
    end(&s);
}

static void every_byte_arrives_by_tcp(void **state) {
    every_size(true);
}

static void every_byte_arrives_by_shared_memory(void **state) {
    every_size(false);
}

static void a_peer_that_is_killed_is_an_error(void **state) {
    struct scene s;
    struct mc_batch *batch;
    struct mc_transfer_status status;
    begin(&s, true);
    move(&s, MC_TRANSFER_WRITE, true, 0, SIZE); /* sessions are there */
    cuda->hold(true, true);                     /* reads cannot end */
    struct mc_transfer_request r = request_of(&s, MC_TRANSFER_READ, true, 0, SIZE);
    assert_ok(mc_batch_create(s.engine, 1, &batch));
    assert_ok(mc_batch_submit(batch, &r, 1, mc_deadline_in_ms(60000)));
    peer_kill(&s.peer);
    cuda->hold(true, false);
    assert_true(mc_batch_wait(batch, MC_WAIT_FOREVER) != MC_OK);
    assert_ok(mc_batch_task(batch, 0, &status));
    assert_int_equal(status.state, MC_TRANSFER_FAILED);
    assert_ok(mc_batch_free(batch));
    meet(&s, true);
    mc_test_fill(cuda->inside(s.device), SIZE, 5);
    move(&s, MC_TRANSFER_WRITE, true, 0, SIZE);
    assert_int_equal(peer_tell(&s.peer, PEER_VERIFY, 0, SIZE, 5), SIZE);
    peer_stop(&s.peer);
    end(&s);
}

int main(int argc, char **argv) {
    peer_take_over(argc, argv);
    cuda = peer_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_arrives_by_tcp),
        cmocka_unit_test(every_byte_arrives_by_shared_memory),
        cmocka_unit_test(a_peer_that_is_killed_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
