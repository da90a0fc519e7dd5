/*
 * Records of keys, for the policies: a growing array found by key, each record in at most one
 * queue. Queues are circular lists of 32-bit indexes whose heads are the first records, so a record
 * is 32 bytes and moves between queues without allocation. With its share of the buckets and of the
 * room to grow a key costs at most MC_RECORD_BYTES.
 */
#ifndef MC_POLICY_RECORDS_H
#define MC_POLICY_RECORDS_H

#include "base/base.h"

#define MC_RECORD_BYTES 56u /* 32 * 1.5 and two buckets */
#define MC_RECORD_NONE  UINT32_MAX

struct mc_record {
    uint64_t key;
    uint32_t newer, older; /* in its queue; of a head: the oldest, the newest */
    uint32_t chained;      /* next of its bucket, or of the free ones */
    uint32_t used_at;      /* the policy's own, from here on */
    uint16_t uses;
    uint8_t state, relation, class, age, length, length_asked;
};
_Static_assert(sizeof(struct mc_record) == 32, "two records a cache line");

struct mc_records {
    struct mc_record *list;
    uint32_t *buckets;
    uint32_t bucket_mask, count, capacity, queues, free;
    uint32_t live; /* those that are no heads and not free */
};

void mc_records_init(struct mc_records *r, uint32_t queues);
void mc_records_free(struct mc_records *r);
uint32_t mc_records_find(const struct mc_records *r, uint64_t key); /* or MC_RECORD_NONE */
/* A new record, zeroed and in no queue. The key must not be there. */
uint32_t mc_records_add(struct mc_records *r, uint64_t key);
void mc_records_drop(struct mc_records *r, uint32_t record); /* out of its queue, and gone */

void mc_queue_push(struct mc_records *r, uint32_t queue, uint32_t record); /* as the newest */
void mc_queue_take(struct mc_records *r, uint32_t record);
static inline uint32_t mc_queue_oldest(const struct mc_records *r, uint32_t queue) {
    uint32_t oldest = r->list[queue].newer;
    return oldest == queue ? MC_RECORD_NONE : oldest;
}
/* How many are in the queue; walks it and checks its links. UINT32_MAX when they are broken. */
uint32_t mc_queue_check(const struct mc_records *r, uint32_t queue);

#endif
