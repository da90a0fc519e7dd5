/*
 * Striped objects: large objects whose bytes lie on several segments, so that they can be larger
 * than any of them and are read and written at the speed of all.
 *
 * The replicas of such an object are the stripes of its copies: each has an extent of the same
 * size, a number, and how many a copy has (mc_replica.stripe, .stripes). Everything else treats the
 * object as one with many replicas, so leases, lists, groups, lives, eviction and removal need no
 * word about stripes. What differs is that
 *  - it can be read when every stripe is there once, and goes as a whole when one is lost;
 *  - the copies of one stripe never share a segment name, so that a node that goes takes no object
 *    of two copies with it; different stripes may share one;
 *  - only clients that ask for stripes are given them: upstream's would take a stripe for a copy;
 *  - it is moved and copied stripe by stripe.
 * On an SSD it is in one piece: such a replica follows the stripes (stripes 0), is no stripe of any
 * copy, and is all that is left when memory gives the object up or loses a stripe of it.
 */
#include "master/core.h"
#include "master/tenants.h"

_Static_assert(MC_STRIPES_MAX < MC_MAX_REPLICAS,
               "a stripe that moves has a place beside the others");

static bool counts(const struct mc_object *o, const struct mc_replica *r, bool complete) {
    return r->stripes > 0 &&
           (r->status == MC_REPLICA_COMPLETE || (!complete && o->list == MC_LIST_PROCESSING));
}

unsigned mc_stripes_copies(struct mc_object *o, bool complete) {
    uint8_t of[MC_STRIPES_MAX] = {0};
    unsigned least = MC_STRIPES_MAX;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        of[r->stripe] += counts(o, r, complete);
    }
    for (unsigned i = 0; i < o->first.stripes; i++) {
        least = of[i] < least ? of[i] : least;
    }
    return least;
}

void mc_stripes_drop_broken(struct mc_master *m, struct mc_shard *shard, struct mc_object *o) {
    while (mc_object_striped(o) && o->replica_count > 0 && !mc_stripes_whole(o, false)) {
        uint64_t free_at = o->first.status == MC_REPLICA_COMPLETE
                               ? mc_lease_end(m, o)
                               : mc_object_written_until(m, o, &o->first);
        mc_object_remove_replica(m, shard, o, 0, free_at);
    }
}

void mc_stripes_describe(struct mc_call *call, struct mc_object *o, bool complete,
                         struct mc_vec *out) {
    unsigned stripes = o->first.stripes, copies = 0, whole = 0;
    uint8_t seen[MC_STRIPES_MAX] = {0};
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        seen[r->stripe] += counts(o, r, complete);
        copies = seen[r->stripe] > copies ? seen[r->stripe] : copies;
    }
    struct mw_replica *items =
        mc_arena_alloc(call->arena, (stripes * copies + o->replica_count) * sizeof(*items));
    for (unsigned i = 0; i < stripes * copies; i++) {
        items[i] = (struct mw_replica){.tag = MW_TAG_MEMORY,
                                       .memory = {.size = mw_stripe_bytes(o->size, stripes),
                                                  .protocol = MC_STR(""),
                                                  .endpoint = MC_STR("")},
                                       .status = MC_REPLICA_REMOVED};
    }
    memset(seen, 0, sizeof(seen));
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (counts(o, r, complete)) {
            unsigned at = stripes * seen[r->stripe]++ + r->stripe;
            bool broken = call->m->config.break_mode == MC_BREAK_STRIPE_ORDER;
            mc_describe(call, o, r, &items[broken ? i % (stripes * copies) : at]);
        } else if (r->stripes == 0 && r->status == MC_REPLICA_COMPLETE) {
            mc_describe(call, o, r, &items[stripes * copies + whole++]);
        }
    }
    *out = (struct mc_vec){items, stripes * copies + whole};
}

bool mc_stripes_wanted(const struct mc_put *put) {
    return put->stripe_over > 0 && put->size >= put->stripe_over &&
           put->size / 2 >= MW_STRIPE_LEAST && put->config->replica_num <= MC_STRIPES_MAX / 2 &&
           put->size <= MC_ALLOCATOR_MAX_CAPACITY;
}

static unsigned most_stripes(const struct mc_call *call, const struct mc_put *put,
                             unsigned copies) {
    uint64_t most = mc_min_u64(put->size / MW_STRIPE_LEAST, call->m->segment_count);
    return (unsigned)mc_min_u64(most, MC_STRIPES_MAX / copies);
}

uint64_t mc_stripes_least_bytes(const struct mc_call *call, const struct mc_put *put) {
    unsigned most = most_stripes(call, put, 1);
    return most > 1 ? mw_stripe_bytes(put->size, most) : put->size;
}

uint64_t mc_stripes_charge(const struct mc_call *call, const struct mc_put *put) {
    unsigned copies = (unsigned)put->config->replica_num;
    unsigned most = most_stripes(call, put, copies);
    return most > 1 ? mw_stripe_bytes(put->size, most) * most * copies : 0;
}

/* ---- places ---- */

/* The extents of one more copy, on names of their own, behind those of `copies` copies of n stripes
 * in order; owner[k] = which stripe the k-th is to be. */
struct spread {
    const struct mc_replica *placed;
    unsigned stripes, copies;
    bool may_meet; /* on one name: the master is wrong on purpose */
    int owner[MC_STRIPES_MAX];
    uint32_t seen;
};

static bool clashes(const struct spread *s, unsigned stripe, const struct mc_replica *r) {
    if (s->may_meet) {
        return false;
    }
    for (unsigned c = 0; c < s->copies; c++) {
        const struct mc_replica *other = &s->placed[c * s->stripes + stripe];
        if (other->segment->name_hash == r->segment->name_hash) {
            return true;
        }
    }
    return false;
}

/* An extent for the stripe on a name that does not have it, if need be one whose stripe finds
 * another: a step of matching in a bipartite graph, at most `stripes` deep. */
static bool give_extent(struct spread *s, unsigned stripe) {
    for (unsigned k = 0; k < s->stripes; k++) {
        if ((s->seen >> k & 1) != 0 || clashes(s, stripe, &s->placed[s->copies * s->stripes + k])) {
            continue;
        }
        s->seen |= 1u << k;
        if (s->owner[k] < 0 || give_extent(s, (unsigned)s->owner[k])) {
            s->owner[k] = (int)stripe;
            return true;
        }
    }
    return false;
}

/* Puts copy number `copy` in order; false when some stripe would be twice on a name. */
static bool spread_copy(const struct mc_call *call, struct mc_replica *placed, unsigned stripes,
                        unsigned copy) {
    struct spread s = {.placed = placed,
                       .stripes = stripes,
                       .copies = copy,
                       .may_meet = call->m->config.break_mode == MC_BREAK_STRIPES_MEET};
    struct mc_replica fresh[MC_STRIPES_MAX], *own = &placed[copy * stripes];
    for (unsigned k = 0; k < stripes; k++) {
        s.owner[k] = -1;
    }
    for (unsigned i = 0; i < stripes; i++) {
        s.seen = 0;
        if (!give_extent(&s, i)) {
            return false;
        }
    }
    memcpy(fresh, own, stripes * sizeof(*own));
    for (unsigned k = 0; k < stripes; k++) {
        own[s.owner[k]] = fresh[k];
        own[s.owner[k]].stripe = (uint8_t)s.owner[k];
        own[s.owner[k]].stripes = (uint8_t)stripes;
    }
    return true;
}

/* All copies, or none; then *stripes = with how many there may be room. */
static bool place_copies(struct mc_call *call, const struct mc_key *key, const struct mc_put *put,
                         unsigned copies, unsigned *stripes, struct mc_replica *out) {
    unsigned n = *stripes, count = 0;
    uint64_t bytes = mw_stripe_bytes(put->size, n);
    for (unsigned c = 0; c < copies; c++) {
        unsigned got = mc_place(call, bytes, n, key->hash, put->config, out + count);
        count += got;
        if (got < n || !spread_copy(call, out, n, c)) {
            *stripes = (unsigned)mc_min_u64(n - 1, c == 0 ? got : count / copies);
            break;
        }
    }
    for (unsigned i = 0; i < count && *stripes < n; i++) {
        mc_extent_free(call->m, &out[i], bytes);
    }
    return *stripes == n;
}

/* With fewer stripes each is larger, so fewer segments may have room: down to two. As with objects
 * in one piece there are fewer copies where there is no room for all. */
enum mc_status mc_stripes_place(struct mc_call *call, const struct mc_key *key,
                                const struct mc_put *put, uint64_t credit, struct mc_replica *out,
                                unsigned *count) {
    struct mc_master *m = call->m;
    *count = 0;
    for (unsigned copies = (unsigned)put->config->replica_num; copies > 0; copies--) {
        for (unsigned n = most_stripes(call, put, copies); n > 1;) {
            uint64_t all = mw_stripe_bytes(put->size, n) * n * copies;
            MC_TRY(mc_tenant_charge(m, key->tenant, all, credit));
            unsigned stripes = n;
            if (place_copies(call, key, put, copies, &n, out)) {
                *count = stripes * copies;
                return MC_OK;
            }
            mc_tenant_refund(m, key->tenant, all);
        }
    }
    return MC_OK;
}
