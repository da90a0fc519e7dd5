/* SIEVE over a list and a hash table; rdma_pool.h explains it. */
#include "te/transport/rdma_pool.h"

void rdma_pool_init(struct rdma_pool *pool) {
    mc_list_init(&pool->order);
    pool->hand = &pool->order;
    pool->count = 0;
    for (size_t i = 0; i < RDMA_POOL_BUCKETS; i++) {
        mc_list_init(&pool->buckets[i]);
    }
}

struct rdma_pool_node *rdma_pool_find(struct rdma_pool *pool, const char *key, uint64_t hash) {
    struct mc_list *bucket = &pool->buckets[hash % RDMA_POOL_BUCKETS];
    for (struct mc_list *at = bucket->next; at != bucket; at = at->next) {
        struct rdma_pool_node *node = mc_container_of(at, struct rdma_pool_node, bucket);
        if (node->hash == hash && strcmp(node->key, key) == 0) {
            node->used = true;
            return node;
        }
    }
    return NULL;
}

void rdma_pool_insert(struct rdma_pool *pool, struct rdma_pool_node *node, const char *key,
                      uint64_t hash) {
    node->key = key;
    node->hash = hash;
    node->used = false;
    node->inside = true;
    mc_list_push_front(&pool->order, &node->order);
    mc_list_push_front(&pool->buckets[hash % RDMA_POOL_BUCKETS], &node->bucket);
    pool->count++;
}

void rdma_pool_remove(struct rdma_pool *pool, struct rdma_pool_node *node) {
    if (!node->inside) {
        return;
    }
    if (pool->hand == &node->order) { /* goes on where it would have gone */
        pool->hand = node->order.prev;
    }
    mc_list_del(&node->order);
    mc_list_del(&node->bucket);
    node->inside = false;
    pool->count--;
}

struct rdma_pool_node *rdma_pool_victim(struct rdma_pool *pool,
                                        bool (*may_go)(const struct rdma_pool_node *node)) {
    for (size_t steps = 2 * pool->count; steps > 0; steps--) {
        if (pool->hand == &pool->order) {
            pool->hand = pool->order.prev; /* the oldest */
        }
        struct rdma_pool_node *node = mc_container_of(pool->hand, struct rdma_pool_node, order);
        if (may_go(node)) {
            if (!node->used) {
                return node;
            }
            node->used = false;
        }
        pool->hand = pool->hand->prev; /* towards the newest */
    }
    return NULL;
}
