/*
 * A striped object whose copies are damaged in different stripes is still there. Its checksum is of
 * the whole, so it does not say which stripe of which copy is right. But it is linear: how another
 * copy's stripe would change it depends on that stripe only, and is computed once for each. The
 * stripes to take from elsewhere are those whose changes together make the checksum right. There
 * are at most 30 stripes of all copies together, so 3^10 ways or fewer; that one of them looks
 * right by chance happens once in 2^48. What the caller is given is checked once more as a whole.
 */
#include "client/ops_get.h"

#include "base/log.h"
#include "client/checksum.h"

#define REPLICAS_MAX 64u

struct mend {
    struct mc_get_chunk *chunk;
    struct mc_get_key *key;
    const struct mc_slice *own; /* what was read */
    size_t own_count;
    uint8_t *stripe;                /* of another copy; room for one */
    uint64_t changes[REPLICAS_MAX]; /* of the checksum, by what that replica has */
    bool known[REPLICAS_MAX];
    uint8_t taken[REPLICAS_MAX]; /* for each stripe, a replica; as chosen = stays as it was read */
};

/* Reads the replica's stripe. */
static bool fetch(struct mend *m, size_t replica) {
    const struct mw_replica *from =
        (const struct mw_replica *)m->key->list.replicas.items + replica;
    struct mc_port *port = m->chunk->ops->port;
    struct mc_port_move move = {.op = MC_TRANSFER_READ,
                                .local = m->stripe,
                                .endpoint = from->memory.endpoint,
                                .remote_addr = from->memory.address,
                                .length = from->memory.size,
                                .status = MC_INTERNAL_ERROR};
    port->ops->move(port, &move, 1, m->chunk->deadline_ns);
    return move.status == MC_OK;
}

/* Goes through the caller's parts of [offset, offset + length) of the object, which `bytes` has in
 * one piece: copies them there, or adds up how they would change the checksum. */
static uint64_t visit(struct mend *m, const uint8_t *bytes, uint64_t offset, uint64_t length,
                      bool copy) {
    uint64_t end = offset + length, begin = 0, change = 0;
    for (size_t i = 0; i < m->own_count && begin < end; i++) {
        uint64_t from = mc_max_u64(begin, offset);
        uint64_t to = mc_min_u64(begin + m->own[i].length, end);
        if (from < to) {
            struct mc_slice mine = {(char *)m->own[i].ptr + (from - begin), to - from};
            struct mc_slice other = {(void *)(uintptr_t)(bytes + (from - offset)), to - from};
            if (copy) {
                memcpy(mine.ptr, other.ptr, to - from);
            } else {
                change ^= mc_checksum_shift(mc_checksum_slices(&mine, 1, to - from) ^
                                                mc_checksum_slices(&other, 1, to - from),
                                            m->key->size - to);
            }
        }
        begin += m->own[i].length;
    }
    return change;
}

static uint64_t visit_stripe(struct mend *m, unsigned stripe, bool copy) {
    uint64_t change = 0;
    uint64_t at = stripe * MW_STRIPE_UNIT;
    for (const uint8_t *unit = m->stripe; at < m->key->size; unit += MW_STRIPE_UNIT) {
        uint64_t length = mc_min_u64(MW_STRIPE_UNIT, m->key->size - at);
        change ^= visit(m, unit, at, length, copy);
        at += m->key->stripes * MW_STRIPE_UNIT;
    }
    return change;
}

/* Chooses a replica for this stripe and all that follow; `wrong`: what the checksum is off by. */
static bool choose(struct mend *m, unsigned stripe, uint64_t wrong) {
    const struct mc_get_key *key = m->key;
    if (stripe == key->stripes) {
        return wrong == 0;
    }
    m->taken[stripe] = key->chosen[stripe];
    if (choose(m, stripe + 1, wrong)) {
        return true;
    }
    for (size_t i = stripe; i < key->list.replicas.count; i += key->stripes) {
        m->taken[stripe] = (uint8_t)i;
        if (m->known[i] && choose(m, stripe + 1, wrong ^ m->changes[i])) {
            return true;
        }
    }
    return false;
}

/* Reads every other copy of every stripe, one after the other. */
static void compare(struct mend *m) {
    const struct mw_replica *replicas = m->key->list.replicas.items;
    for (size_t i = 0; i < m->key->list.replicas.count; i++) {
        unsigned stripe = (unsigned)(i % m->key->stripes);
        m->known[i] =
            i != m->key->chosen[stripe] && mc_ops_replica_readable(&replicas[i]) && fetch(m, i);
        m->changes[i] = m->known[i] ? visit_stripe(m, stripe, false) : 0;
    }
}

static bool mend(struct mend *m) {
    const struct mc_get_key *key = m->key;
    uint64_t is = mc_checksum_slices(m->own, m->own_count, key->size);
    compare(m);
    if (!choose(m, 0, is ^ key->list.checksum.value)) {
        return false;
    }
    for (unsigned s = 0; s < key->stripes; s++) {
        if (m->taken[s] != key->chosen[s]) {
            if (!fetch(m, m->taken[s])) {
                return false;
            }
            visit_stripe(m, s, true);
        }
    }
    return mc_checksum_slices(m->own, m->own_count, key->size) == key->list.checksum.value;
}

bool mc_get_mend(struct mc_get_chunk *chunk, struct mc_get_key *key) {
    struct mend m = {.chunk = chunk, .key = key};
    size_t count = key->list.replicas.count;
    if (key->stripes == 0 || count == key->stripes || count > REPLICAS_MAX ||
        !mc_get_is_checked(chunk, key, &m.own)) {
        return false;
    }
    m.own_count = mc_get_piece_count(key);
    m.stripe = malloc(mw_stripe_bytes(key->size, key->stripes));
    bool whole = m.stripe != NULL && mend(&m);
    free(m.stripe);
    if (whole) {
        mc_metric_add(&chunk->ops->counters.failovers, 1);
    }
    return whole && mc_ops_now(chunk->ops) < key->lease_end_ns;
}
