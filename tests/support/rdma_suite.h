/*
 * Tests of the rdma transport that run over any NICs: Soft-RoCE in a guest (tests/vm), or NICs that
 * are memory (fake_nics.h). Engines that have no other transport, so that nothing else can have
 * moved the bytes; every byte is compared.
 *
 * NICs are numbered and come in pairs on wires of their own: 0 reaches only 1, 2 only 3.
 */
#ifndef MC_TESTS_RDMA_SUITE_H
#define MC_TESTS_RDMA_SUITE_H

#include "support/support.h"
#include "te/te.h"

#define MIB              (1u << 20)
#define RDMA_PATIENCE_MS 240000 /* for what must arrive, in a guest on a busy machine too */

struct rdma_suite {
    const struct mc_transport_ops *ops;
    const char *prefix; /* of NIC names */
    void (*link)(unsigned nic, bool up);
    const char *policy; /* of engines made from now on; NULL = a patient one */
};
extern struct rdma_suite rdma_suite; /* set by main */

/* An engine on some NICs ("0,2"), with registered memory. */
struct rdma_side {
    struct mc_engine *engine;
    char *memory;
    size_t size;
};
void rdma_side_open(struct rdma_side *side, const char *nics, size_t size, uint16_t port);
void rdma_side_close(struct rdma_side *side);
mc_segment_id rdma_segment_of(struct rdma_side *from, struct rdma_side *to);
enum mc_status rdma_move(struct rdma_side *from, mc_segment_id to, enum mc_transfer_op op,
                         char *local, const char *remote, size_t length, uint64_t timeout_ms);
/* Moves [0, size) of A's memory to B and back, and compares. */
void rdma_round_trip(struct rdma_side *a, struct rdma_side *b, mc_segment_id to_b, size_t size,
                     uint64_t seed);
/* The sum over all labels of a counter. */
long long rdma_counter(struct rdma_side *side, const char *name);
/* Over those labels that contain the text. */
long long rdma_counter_of(struct rdma_side *side, const char *name, const char *label);
void rdma_pause_ms(unsigned ms);

void test_every_size_arrives_whole(void **state);
void test_two_pairs_of_nics_carry_one_transfer(void **state);
void test_a_link_that_goes_down_is_not_seen_by_the_application(void **state);
void test_two_endpoints_serve_four_busy_peers(void **state);
void test_both_sides_may_open_at_the_same_moment(void **state);
void test_a_deadline_leaves_local_memory_alone(void **state);
void test_memory_that_is_unregistered_is_out_of_reach(void **state);
void test_ranges_larger_than_a_region_are_split(void **state);

#endif
