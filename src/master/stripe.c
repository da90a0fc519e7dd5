/*
 * Striped objects: one copy of a large object whose bytes lie on several segments, so that it can
 * be larger than any of them and is read and written at the speed of all.
 *
 * The replicas of such an object are its stripes, in order: each has an extent of the same size, a
 * number, and how many there are (mc_replica.stripe, .stripes). Everything else treats the object
 * as one with many replicas, so leases, lists, groups, lives, eviction and removal need no word
 * about stripes. What differs is that
 *  - it can be read when every stripe is there, and goes as a whole when one is lost;
 *  - only clients that ask for stripes are given them: upstream's would take a stripe for a copy;
 *  - it is moved stripe by stripe, two stripes may meet on one segment by that, and it is neither
 *    copied nor offloaded.
 */
#include "master/core.h"
#include "master/tenants.h"

_Static_assert(MC_STRIPES_MAX < MC_MAX_REPLICAS,
               "a stripe that moves has a place beside the others");

bool mc_stripes_whole(struct mc_object *o, bool complete) {
    uint32_t there = 0;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        bool counts =
            r->status == MC_REPLICA_COMPLETE || (!complete && o->list == MC_LIST_PROCESSING);
        there |= counts ? 1u << r->stripe : 0;
    }
    return there == (1u << o->first.stripes) - 1;
}

bool mc_stripes_wanted(const struct mc_put *put) {
    return put->stripe_over > 0 && put->size >= put->stripe_over &&
           put->size / 2 >= MW_STRIPE_LEAST && put->config->replica_num == 1 &&
           put->size <= MC_ALLOCATOR_MAX_CAPACITY;
}

static unsigned most_stripes(const struct mc_call *call, const struct mc_put *put) {
    uint64_t most = mc_min_u64(put->size / MW_STRIPE_LEAST, call->m->segment_count);
    return (unsigned)mc_min_u64(most, MC_STRIPES_MAX);
}

uint64_t mc_stripes_least_bytes(const struct mc_call *call, const struct mc_put *put) {
    unsigned most = most_stripes(call, put);
    return most > 1 ? mw_stripe_bytes(put->size, most) : put->size;
}

/* With fewer stripes each is larger, so fewer segments may have room: down to two. */
enum mc_status mc_stripes_place(struct mc_call *call, const struct mc_key *key,
                                const struct mc_put *put, uint64_t credit, struct mc_replica *out,
                                unsigned *count) {
    struct mc_master *m = call->m;
    *count = 0;
    for (unsigned n = most_stripes(call, put); n > 1;) {
        uint64_t bytes = mw_stripe_bytes(put->size, n);
        MC_TRY(mc_tenant_charge(m, key->tenant, bytes * n, credit));
        unsigned got = mc_place(call, bytes, n, key->hash, put->config, out);
        if (got == n) {
            for (unsigned i = 0; i < n; i++) {
                out[i].stripe = (uint8_t)i;
                out[i].stripes = (uint8_t)n;
            }
            *count = n;
            return MC_OK;
        }
        for (unsigned i = 0; i < got; i++) {
            mc_extent_free(m, &out[i], bytes);
        }
        mc_tenant_refund(m, key->tenant, bytes * n);
        n = got;
    }
    return MC_OK;
}
