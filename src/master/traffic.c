/*
 * What the eviction policy and the miss-ratio curve learn of the traffic.
 *
 * A batch is one request of the policy (policy/policy.h): looking for keys asks, getting replica
 * lists reads, PutEnd stores, and a put of what is there already reads. Reads and stores are the
 * uses of the curve. With upstream's LRU there is no policy object, for the shards' own lists have
 * that order; a policy costs its lock once a batch and once a removal. Both locks are leaves: a
 * removal tells of itself under its shard's lock.
 *
 * A policy may still know keys that have just gone, when a removal overtook a PutEnd; they come up
 * as victims and are dropped.
 */
#include "master/core.h"

#include "policy/mrc.h"
#include "policy/policy.h"

struct mc_traffic {
    struct mc_lock policy_lock, mrc_lock;
    struct mc_policy *policy; /* NULL = the shards' lists */
    struct mc_mrc *mrc;
};

bool mc_traffic_policy_exists(const char *name) {
    return mc_policy_find(name) != NULL;
}

struct mc_traffic *mc_traffic_create(const struct mc_master_config *config) {
    struct mc_traffic *t = mc_zalloc(sizeof(*t));
    t->mrc = mc_mrc_create();
    if (mc_policy_find(config->eviction_policy) != &mc_policy_lru) {
        t->policy = mc_policy_create(
            config->eviction_policy,
            &(struct mc_policy_config){.attention_blocks = config->eviction_attention_blocks});
    }
    return t;
}

void mc_traffic_destroy(struct mc_traffic *t) {
    mc_policy_destroy(t->policy);
    mc_mrc_free(t->mrc);
    free(t);
}

static void sample(struct mc_traffic *t, const uint64_t *hashes, size_t count) {
    mc_mrc_count(t->mrc, count);
    for (size_t i = 0; i < count; i++) {
        if (mc_mrc_wants(t->mrc, hashes[i])) {
            mc_lock_acquire(&t->mrc_lock);
            mc_mrc_use(t->mrc, hashes[i]);
            mc_lock_release(&t->mrc_lock);
        }
    }
}

static void note(struct mc_call *call, enum mc_policy_kind kind, const uint64_t *hashes,
                 size_t count) {
    struct mc_traffic *t = call->m->traffic;
    if (count == 0) {
        return;
    }
    if (kind != MC_POLICY_ASK) {
        sample(t, hashes, count);
    }
    if (t->policy) {
        mc_lock_acquire(&t->policy_lock);
        mc_policy_request(t->policy,
                          &(struct mc_policy_request){kind, hashes, count, call->now_ms});
        mc_lock_release(&t->policy_lock);
    }
}

void mc_traffic_asked(struct mc_call *call, const uint64_t *hashes, size_t count) {
    note(call, MC_POLICY_ASK, hashes, count);
}
void mc_traffic_read(struct mc_call *call, const uint64_t *hashes, size_t count) {
    note(call, MC_POLICY_READ, hashes, count);
    mc_heat_read(call, hashes, count);
}
void mc_traffic_stored(struct mc_call *call, const uint64_t *hashes, size_t count) {
    note(call, MC_POLICY_STORE, hashes, count);
}

void mc_traffic_gone(struct mc_master *m, uint64_t hash) {
    struct mc_traffic *t = m->traffic;
    if (t->policy) {
        mc_lock_acquire(&t->policy_lock);
        mc_policy_remove(t->policy, hash);
        mc_lock_release(&t->policy_lock);
    }
}

uint64_t mc_traffic_candidates(struct mc_master *m) {
    struct mc_traffic *t = m->traffic;
    uint64_t count = 0;
    if (t->policy) {
        mc_lock_acquire(&t->policy_lock);
        count = mc_policy_resident(t->policy);
        mc_lock_release(&t->policy_lock);
    }
    return count;
}

bool mc_traffic_victim(struct mc_master *m, uint64_t *hash) {
    struct mc_traffic *t = m->traffic;
    mc_lock_acquire(&t->policy_lock);
    bool found = mc_policy_victim(t->policy, hash);
    mc_lock_release(&t->policy_lock);
    return found;
}

void mc_traffic_keep(struct mc_master *m, uint64_t hash) {
    struct mc_traffic *t = m->traffic;
    mc_lock_acquire(&t->policy_lock);
    mc_policy_keep(t->policy, hash);
    mc_lock_release(&t->policy_lock);
}

/* ---- the curve ---- */

void mc_master_curve(struct mc_master *m, struct mc_master_curve *out) {
    static const double factors[MC_CURVE_POINTS] = MC_CURVE_FACTORS;
    struct mc_traffic *t = m->traffic;
    struct mc_master_totals totals;
    struct mc_mrc_summary summary;
    mc_master_totals(m, &totals);
    double object_bytes = totals.keys ? (double)totals.allocated_bytes / (double)totals.keys : 0;
    double usable = (double)totals.capacity_bytes * m->config.eviction_high_watermark_ratio;
    double room = object_bytes > 0 ? usable / object_bytes : 0;
    mc_lock_acquire(&t->mrc_lock);
    mc_mrc_summary(t->mrc, &summary);
    *out = (struct mc_master_curve){summary.uses, summary.distinct_keys, summary.sample_rate};
    for (unsigned i = 0; i < MC_CURVE_POINTS; i++) {
        double keys = room * factors[i];
        out->points[i].memory = factors[i];
        out->points[i].keys = keys;
        out->points[i].hit_ratio = mc_mrc_hit_ratio(t->mrc, keys);
    }
    mc_lock_release(&t->mrc_lock);
}
