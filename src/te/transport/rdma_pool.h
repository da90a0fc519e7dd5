/*
 * The endpoints of one NIC, found by the path of the peer's NIC, and which of them goes when there
 * is no room: SIEVE (Zhang et al., NSDI'24). A queue in order of arrival and a hand that walks from
 * the oldest to the newest: an entry that was used since the hand last passed is spared and marked
 * unused; the first that was not used goes. New entries come in front of the hand, so that a burst
 * of peers used once does not push out those used all the time.
 *
 * Only links and marks: no memory, no lock; the owner has both. Capacity is the owner's too.
 */
#ifndef MC_TE_TRANSPORT_RDMA_POOL_H
#define MC_TE_TRANSPORT_RDMA_POOL_H

#include "base/base.h"

#define RDMA_POOL_BUCKETS 1024

struct rdma_pool_node { /* embed */
    struct mc_list order;
    struct mc_list bucket;
    uint64_t hash;
    const char *key; /* the owner's, as long as it is in the pool */
    bool used;
    bool inside;
};

struct rdma_pool {
    struct mc_list order; /* newest first */
    struct mc_list *hand; /* an entry, or &order: begin with the oldest */
    size_t count;
    struct mc_list buckets[RDMA_POOL_BUCKETS];
};

void rdma_pool_init(struct rdma_pool *pool);
static inline uint64_t rdma_pool_hash(const char *key) {
    return mc_hash64(key, strlen(key), 0);
}
/* Marks it used. NULL when there is none. */
struct rdma_pool_node *rdma_pool_find(struct rdma_pool *pool, const char *key, uint64_t hash);
/* The key must not be in the pool. */
void rdma_pool_insert(struct rdma_pool *pool, struct rdma_pool_node *node, const char *key,
                      uint64_t hash);
/* Nothing happens when it is not inside. */
void rdma_pool_remove(struct rdma_pool *pool, struct rdma_pool_node *node);
/* The entry to evict, of those that `may_go` allows; it stays in the pool. NULL when none may. At
 * most two rounds of the hand. */
struct rdma_pool_node *rdma_pool_victim(struct rdma_pool *pool,
                                        bool (*may_go)(const struct rdma_pool_node *node));

#endif
