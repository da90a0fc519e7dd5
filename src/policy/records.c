/* See records.h. Buckets double when there is a record for each; nothing shrinks, so the memory is
 * that of the most keys ever, as the master's index. */
#include "policy/records.h"

#include <stdlib.h>

#define BUCKETS_MIN 64u

static uint32_t *bucket_of(const struct mc_records *r, uint64_t key) {
    return &r->buckets[(key * 0x9e3779b97f4a7c15ull >> 32) & r->bucket_mask];
}

void mc_records_init(struct mc_records *r, uint32_t queues) {
    *r = (struct mc_records){.count = queues, .capacity = queues + BUCKETS_MIN, .queues = queues};
    r->free = MC_RECORD_NONE;
    r->list = mc_alloc(r->capacity * sizeof(*r->list));
    for (uint32_t q = 0; q < queues; q++) {
        r->list[q] = (struct mc_record){.newer = q, .older = q};
    }
    r->bucket_mask = BUCKETS_MIN - 1;
    r->buckets = mc_alloc(BUCKETS_MIN * sizeof(*r->buckets));
    memset(r->buckets, 0xff, BUCKETS_MIN * sizeof(*r->buckets));
}

void mc_records_free(struct mc_records *r) {
    free(r->list);
    free(r->buckets);
    *r = (struct mc_records){0};
}

uint32_t mc_records_find(const struct mc_records *r, uint64_t key) {
    uint32_t i = *bucket_of(r, key);
    while (i != MC_RECORD_NONE && r->list[i].key != key) {
        i = r->list[i].chained;
    }
    return i;
}

static void buckets_grow(struct mc_records *r) {
    uint32_t old = r->bucket_mask + 1;
    if (r->live < old) {
        return;
    }
    uint32_t *buckets = mc_alloc(2 * (size_t)old * sizeof(*buckets));
    memset(buckets, 0xff, 2 * (size_t)old * sizeof(*buckets));
    uint32_t *before = r->buckets;
    r->buckets = buckets;
    r->bucket_mask = 2 * old - 1;
    for (uint32_t b = 0; b < old; b++) {
        for (uint32_t i = before[b], next; i != MC_RECORD_NONE; i = next) {
            next = r->list[i].chained;
            uint32_t *bucket = bucket_of(r, r->list[i].key);
            r->list[i].chained = *bucket;
            *bucket = i;
        }
    }
    free(before);
}

uint32_t mc_records_add(struct mc_records *r, uint64_t key) {
    buckets_grow(r);
    uint32_t i = r->free;
    if (i != MC_RECORD_NONE) {
        r->free = r->list[i].chained;
    } else {
        if (r->count == r->capacity) {
            MC_ASSERT(r->capacity < UINT32_MAX / 2);
            r->capacity += r->capacity / 2;
            r->list = mc_realloc(r->list, (size_t)r->capacity * sizeof(*r->list));
        }
        i = r->count++;
    }
    uint32_t *bucket = bucket_of(r, key);
    r->list[i] = (struct mc_record){.key = key, .newer = i, .older = i, .chained = *bucket};
    *bucket = i;
    r->live++;
    return i;
}

void mc_records_drop(struct mc_records *r, uint32_t record) {
    mc_queue_take(r, record);
    uint32_t *at = bucket_of(r, r->list[record].key);
    while (*at != record) {
        at = &r->list[*at].chained;
    }
    *at = r->list[record].chained;
    r->list[record].chained = r->free;
    r->free = record;
    r->live--;
}

void mc_queue_push(struct mc_records *r, uint32_t queue, uint32_t record) {
    struct mc_record *list = r->list;
    uint32_t newest = list[queue].older;
    list[record].older = newest;
    list[record].newer = queue;
    list[newest].newer = record;
    list[queue].older = record;
}

void mc_queue_take(struct mc_records *r, uint32_t record) {
    struct mc_record *x = &r->list[record];
    r->list[x->older].newer = x->newer;
    r->list[x->newer].older = x->older;
    x->newer = x->older = record;
}

uint32_t mc_queue_check(const struct mc_records *r, uint32_t queue) {
    uint32_t count = 0;
    for (uint32_t i = r->list[queue].newer; i != queue; i = r->list[i].newer) {
        if (i < r->queues || i >= r->count || r->list[r->list[i].newer].older != i ||
            mc_records_find(r, r->list[i].key) != i || count++ > r->live) {
            return UINT32_MAX;
        }
    }
    return count;
}
