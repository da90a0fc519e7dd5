/*
 * policy: which object to give up when the memory is full. Knows keys as 64-bit hashes and time as
 * milliseconds; no objects, locks, leases or threads, so the simulator of `mooncake simulate cache`
 * and the live master run the same code.
 *
 *     struct mc_policy *p = mc_policy_create("chain", NULL);
 *     mc_policy_request(p, &(struct mc_policy_request){.kind = MC_POLICY_STORE, .keys = chain,
 * ...}); while (too_full && mc_policy_victim(p, &key)) { evict(key) or mc_policy_keep(p, key); //
 * leased or pinned: as if just asked for
 *     }
 *
 * The unit of news is a request: the keys of one batch in the order of the prompt, so that each key
 * is the prefix parent of the next one. That order is all that a store learns of prefix chains, and
 * it is enough.
 *
 * A policy keeps a record for each resident key and, some of them, for keys that are gone (ghosts);
 * how many is bounded by the resident keys. Not thread safe. May call base.
 */
#ifndef MC_POLICY_POLICY_H
#define MC_POLICY_POLICY_H

#include "base/base.h"

enum mc_policy_kind {
    /* Somebody wants to know which of the keys there are: tells what belongs together, is no use.
     */
    MC_POLICY_ASK,
    MC_POLICY_READ,  /* the keys are read: a use of those that are resident */
    MC_POLICY_STORE, /* the keys are there from now on; a use of those that already were */
};

struct mc_policy_request {
    enum mc_policy_kind kind;
    const uint64_t *keys; /* from the head of the chain towards its end */
    size_t count;
    uint64_t now_ms; /* never goes back */
};

/* What a policy may be told when it is made. All zero: every block costs the same to recompute. */
struct mc_policy_config {
    /* The place in a chain, in blocks, at which attention takes as much computing as all the rest
     * of the model; docs/eviction.md says how it follows from a model's shape. A block at place p
     * costs 1 + p / attention_blocks times what the first one does. 0 = costs are ignored. */
    double attention_blocks;
};

struct mc_policy {
    const struct mc_policy_ops *ops;
};

struct mc_policy_ops {
    const char *name, *doc;
    /* Bytes that the policy's own records take at most for each resident key, when many. */
    size_t bytes_per_key;
    struct mc_policy *(*create)(const struct mc_policy_config *config);
    void (*destroy)(struct mc_policy *policy);
    void (*request)(struct mc_policy *policy, const struct mc_policy_request *request);
    bool (*victim)(struct mc_policy *policy, uint64_t *key);
    void (*keep)(struct mc_policy *policy, uint64_t key);
    void (*remove)(struct mc_policy *policy, uint64_t key);
    size_t (*resident)(const struct mc_policy *policy);
    bool (*check)(const struct mc_policy *policy);
};

/* NULL for a name that is not in the table. config NULL = all zero. */
struct mc_policy *mc_policy_create(const char *name, const struct mc_policy_config *config);
void mc_policy_destroy(struct mc_policy *policy);
static inline void mc_policy_request(struct mc_policy *p, const struct mc_policy_request *request) {
    p->ops->request(p, request);
}
/* Takes the least valuable key out. False when no key is resident. */
static inline bool mc_policy_victim(struct mc_policy *p, uint64_t *key) {
    return p->ops->victim(p, key);
}
/* The victim stays after all; it is not offered again before everything else of its worth. */
static inline void mc_policy_keep(struct mc_policy *p, uint64_t key) {
    p->ops->keep(p, key);
}
/* The key is gone for another reason than eviction. Nothing happens when it is not resident. */
static inline void mc_policy_remove(struct mc_policy *p, uint64_t key) {
    p->ops->remove(p, key);
}
static inline size_t mc_policy_resident(const struct mc_policy *p) {
    return p->ops->resident(p);
}
/* Its records agree with each other. Slow; for tests. */
static inline bool mc_policy_check(const struct mc_policy *p) {
    return p->ops->check(p);
}

extern const struct mc_policy_ops mc_policy_lru, mc_policy_s3fifo, mc_policy_chain;
/* All, for help texts. */
extern const struct mc_policy_ops *const mc_policies[];
extern const size_t mc_policy_count;
/* "chain" is also called "own". */
const struct mc_policy_ops *mc_policy_find(const char *name);

#endif
