/* What a node's SSD is to have is read from where it lies in the node's memory, under a lease; what
 * had none to the end is read again by way of a get, and so is everything with upstream's master.
 */
#include <stdio.h>
#include <unistd.h>

#include "client/offload.h"
#include "support/fake_port.h"
#include "support/support.h"

#define SIZE         5000u
#define MEMORY_BYTES (1u << 20)

static struct fake_port *fake;
static struct mc_ops *ops;
static struct mc_offload *offload;
static void *memory;
static char dir[64];
static uint8_t value[SIZE];

static bool never(void *ctx) {
    return false;
}

static void fill_and_order(unsigned i, const char *tenant, const char *key) {
    static const size_t OWN[] = {0};
    mc_test_fill(value, SIZE, i);
    fake_store(fake, key, value, SIZE, OWN, 1);
    fake->orders[i] = (struct mw_disk_item){mc_str_from(tenant), mc_str_from(key), SIZE, 100 + i};
    fake->order_count = i + 1;
}

static int setup(void **state) {
    snprintf(dir, sizeof(dir), "./mc_offload_XXXXXX");
    assert_non_null(mkdtemp(dir));
    fake = fake_create();
    fake->ours = true;
    fake->distance[0] = MC_DISTANCE_SELF;
    ops = fake_ops(fake, false);
    memory = aligned_alloc(MC_TIER_BLOCK, MEMORY_BYTES);
    struct mc_offload_config config = {.ops = ops,
                                       .te_endpoint = "node:0",
                                       .memory = memory,
                                       .memory_bytes = MEMORY_BYTES,
                                       .gc_ttl_ms = 1000,
                                       .stop = never,
                                       .tier = {.path = dir, .owner = "test"}};
    assert_ok(mc_offload_open(&config, &offload));
    fill_and_order(0, "default", "a");
    fill_and_order(1, "other", "b"); /* asked for in a request of its own, the second */
    return 0;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    mc_offload_close(offload);
    mc_ops_destroy(ops);
    fake_destroy(fake);
    free(memory);
    return system(command);
}

static void expect_on_disk(struct mc_str key, uint64_t seed) {
    struct mc_tier_read read = {.key = key, .size = SIZE};
    read.room = aligned_alloc(MC_TIER_BLOCK, mc_tier_read_room(key.len, SIZE));
    assert_ok(mc_tier_read(mc_offload_tier(offload), &read, 1));
    mc_test_verify(read.value, SIZE, seed);
    free(read.room);
}

/* A heartbeat with both tasks, of which `borrowed` are written from where they lie. */
static void beat(unsigned borrowed) {
    struct mc_tier_stats stats;
    bool busy;
    assert_ok(mc_offload_mount(offload, "node:0"));
    assert_ok(mc_offload_beat(offload, &busy));
    assert_true(busy);
    expect_on_disk(MC_STR("default\0a"), 0);
    expect_on_disk(MC_STR("other\0b"), 1);
    mc_offload_stats(offload, &stats);
    assert_int_equal(stats.written_objects, 2);
    assert_int_equal(stats.borrowed_objects, borrowed);
    assert_int_equal(fake->moves, 2 - borrowed);
    assert_int_equal(fake->told_on_disk, 2);
    assert_int_equal(fake->told_not, 0);
    assert_int_equal(fake->mapped, 0);
}

static void test_both_are_read_in_place(void **state) {
    beat(2);
}

/* When the second request is answered the first one's lease has just ended. */
static void first_lease_ends(struct fake_port *f, enum mc_master_rpc rpc) {
    if (rpc == MC_RPC_BatchGetReplicaList && f->rpcs[rpc] == 2) {
        f->after_rpc = NULL;
        f->now_ns += FAKE_LEASE_MS * MC_MS - 15000; /* a request takes 10000 */
    }
}
static void test_a_lease_that_did_not_last(void **state) {
    fake->after_rpc = first_lease_ends;
    beat(1);
}

static void test_not_under_leases_of_upstreams(void **state) {
    fake->ours = false;
    beat(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_both_are_read_in_place),
        T(test_a_lease_that_did_not_last),
        T(test_not_under_leases_of_upstreams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
