/*
 * qos: in which order waiting slices go.
 *
 * Three queues, one a priority. Strictly: the highest priority that waits goes first, but a slice
 * at the head of its queue gains one priority for each MC_QOS_AGE_NS that it has waited, so the
 * lowest is late and never forgotten. By weight, where a policy gives weights: each priority gets
 * its share of the bytes. Within a priority the earliest deadline goes first, and what has none, or
 * one further away than MC_QOS_PATIENCE_NS, counts as if it had one then: so those are first come,
 * first served, and no stream of deadlines keeps them waiting for ever.
 *
 * The caller holds a lock; `waiting` alone may be read without.
 */
#ifndef MC_TE_QOS_H
#define MC_TE_QOS_H

#include <stdatomic.h>

#include "base/base.h"

#define MC_PRIORITIES      3             /* 0 = high, 1 = medium, 2 = low */
#define MC_QOS_AGE_NS      (100 * MC_MS) /* waiting so long is worth one priority */
#define MC_QOS_PATIENCE_NS MC_SEC
#define MC_QOS_WALK_MAX    1024 /* items that a push looks at, from either end */

struct mc_qos_item {
    struct mc_list link;
    uint64_t length;
    uint64_t deadline_ns; /* 0 or MC_NO_DEADLINE = none; no later than the patience once pushed */
    uint64_t since_ns;
    uint8_t priority;
};

struct mc_qos {
    struct mc_list queues[MC_PRIORITIES];
    _Atomic uint64_t waiting[MC_PRIORITIES]; /* bytes */
    uint32_t weights[MC_PRIORITIES];         /* all 0 = strict */
    double served[MC_PRIORITIES];            /* by weight: bytes over weight, a virtual clock */
    double clock;                            /* of the one served last, before it was */
};

void mc_qos_init(struct mc_qos *q, const uint32_t weights[MC_PRIORITIES]);
void mc_qos_push(struct mc_qos *q, struct mc_qos_item *item, uint64_t now_ns);
/* Takes the item out; its bytes count as served when `served`. */
void mc_qos_remove(struct mc_qos *q, struct mc_qos_item *item, bool served);
/* The priorities that wait, in the order in which their heads should go; returns how many. */
unsigned mc_qos_order(const struct mc_qos *q, uint64_t now_ns, uint8_t order[MC_PRIORITIES]);
/* The priority that the item has by now. */
uint8_t mc_qos_effective(const struct mc_qos_item *item, uint64_t now_ns);

static inline uint64_t mc_qos_waiting(const struct mc_qos *q) {
    return atomic_load_explicit(&q->waiting[0], memory_order_relaxed) +
           atomic_load_explicit(&q->waiting[1], memory_order_relaxed) +
           atomic_load_explicit(&q->waiting[2], memory_order_relaxed);
}
/* Whether anything waits; pairs with mc_qos_push. */
static inline bool mc_qos_any(const struct mc_qos *q) {
    return (atomic_load(&q->waiting[0]) | atomic_load(&q->waiting[1]) |
            atomic_load(&q->waiting[2])) != 0;
}
/* Bytes that wait and go before a slice of this priority. */
static inline uint64_t mc_qos_before(const struct mc_qos *q, uint8_t priority) {
    uint64_t bytes = 0;
    for (unsigned p = 0; p <= priority; p++) {
        bytes += atomic_load_explicit(&q->waiting[p], memory_order_relaxed);
    }
    return bytes;
}
static inline bool mc_qos_weighted(const struct mc_qos *q) {
    return (q->weights[0] | q->weights[1] | q->weights[2]) != 0;
}

#endif
