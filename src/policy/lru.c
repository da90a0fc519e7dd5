/*
 * Least recently used, exactly: one queue. The keys of a request are used from the head of the
 * chain to its end, as they come, so of one chain the head goes first; that is what upstream does,
 * and why `chain` exists.
 */
#include "policy/policy.h"
#include "policy/records.h"

#include <stdlib.h>

struct lru {
    struct mc_policy base;
    struct mc_records records; /* queue 0: all */
};

static struct lru *of(struct mc_policy *policy) {
    return mc_container_of(policy, struct lru, base);
}

static struct mc_policy *create(const struct mc_policy_config *config) {
    struct lru *p = mc_zalloc(sizeof(*p));
    p->base.ops = &mc_policy_lru;
    mc_records_init(&p->records, 1);
    return &p->base;
}

static void destroy(struct mc_policy *policy) {
    mc_records_free(&of(policy)->records);
    free(of(policy));
}

static void request(struct mc_policy *policy, const struct mc_policy_request *r) {
    struct lru *p = of(policy);
    for (size_t i = 0; i < r->count && r->kind != MC_POLICY_ASK; i++) {
        uint32_t record = mc_records_find(&p->records, r->keys[i]);
        if (record != MC_RECORD_NONE) {
            mc_queue_take(&p->records, record);
        } else if (r->kind == MC_POLICY_STORE) {
            record = mc_records_add(&p->records, r->keys[i]);
        } else {
            continue;
        }
        mc_queue_push(&p->records, 0, record);
    }
}

static bool victim(struct mc_policy *policy, uint64_t *key) {
    struct lru *p = of(policy);
    uint32_t oldest = mc_queue_oldest(&p->records, 0);
    if (oldest == MC_RECORD_NONE) {
        return false;
    }
    *key = p->records.list[oldest].key;
    mc_records_drop(&p->records, oldest);
    return true;
}

static void keep(struct mc_policy *policy, uint64_t key) {
    request(policy, &(struct mc_policy_request){MC_POLICY_STORE, &key, 1, 0});
}

static void remove_key(struct mc_policy *policy, uint64_t key) {
    uint32_t record = mc_records_find(&of(policy)->records, key);
    if (record != MC_RECORD_NONE) {
        mc_records_drop(&of(policy)->records, record);
    }
}

static size_t resident(const struct mc_policy *policy) {
    return mc_container_of(policy, const struct lru, base)->records.live;
}

static bool check(const struct mc_policy *policy) {
    const struct lru *p = mc_container_of(policy, const struct lru, base);
    return mc_queue_check(&p->records, 0) == p->records.live;
}

const struct mc_policy_ops mc_policy_lru = {
    .name = "lru",
    .doc = "least recently used",
    .bytes_per_key = MC_RECORD_BYTES,
    .create = create,
    .destroy = destroy,
    .request = request,
    .victim = victim,
    .keep = keep,
    .remove = remove_key,
    .resident = resident,
    .check = check,
};
