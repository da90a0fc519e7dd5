/* See mrc.h.
 *
 * Every sampled key stands at the position of its last use; a Fenwick tree counts keys by position,
 * so a distance is two sums. Positions are given out upwards and are numbered anew when they run
 * out. Distances go into a histogram of 16 buckets an octave, each weighted with one over the rate
 * at its time. What the sample saw too few or too many of all uses is a matter of a few popular
 * keys, whose distances are short: the first bucket takes the difference (SHARDS-adj). */
#include "policy/mrc.h"

#include <math.h>
#include <stdlib.h>

#define SLOTS        (4u * MC_MRC_KEYS) /* of the table of keys */
#define POSITIONS    (8u * MC_MRC_KEYS)
#define PER_OCTAVE   16.0
#define BUCKETS      640u
#define WINDOW       (1ull << 26) /* uses after which the past counts half */
#define HASH_BITS    32
#define KEEP_OF_RATE 0.875
/* A store of few keys and much traffic must not pay for each use: after so many the rate is at most
 * this. */
#define BUSY_USES (1ull << 20)
#define BUSY_RATE 0.125

struct sample {
    uint64_t key;
    uint32_t position; /* 0 = empty slot; positions count from 1 */
};

struct mc_mrc {
    _Atomic uint64_t threshold; /* of 2^HASH_BITS; relaxed: a stale one is asked again */
    _Atomic uint64_t uses;
    uint64_t halved_at;
    uint32_t count, next_position;
    double distinct, weight;
    double histogram[BUCKETS];
    double forgotten; /* uses that halving took away */
    struct sample slots[SLOTS];
    uint32_t tree[POSITIONS + 1];
};

static uint64_t sampled_hash(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53ull;
    return key >> (64 - HASH_BITS);
}

struct mc_mrc *mc_mrc_create(void) {
    struct mc_mrc *mrc = mc_zalloc(sizeof(*mrc));
    atomic_init(&mrc->threshold, 1ull << HASH_BITS);
    mrc->next_position = 1;
    return mrc;
}

void mc_mrc_free(struct mc_mrc *mrc) {
    free(mrc);
}

static double rate(const struct mc_mrc *mrc) {
    return (double)atomic_load_explicit(&mrc->threshold, memory_order_relaxed) /
           (double)(1ull << HASH_BITS);
}

bool mc_mrc_wants(const struct mc_mrc *mrc, uint64_t key) {
    return sampled_hash(key) < atomic_load_explicit(&mrc->threshold, memory_order_relaxed);
}

void mc_mrc_count(struct mc_mrc *mrc, uint64_t uses) {
    atomic_fetch_add_explicit(&mrc->uses, uses, memory_order_relaxed);
}

/* ---- positions ---- */

static void tree_add(struct mc_mrc *mrc, uint32_t position, uint32_t delta) {
    for (; position <= POSITIONS; position += position & -position) {
        mrc->tree[position] += delta;
    }
}

static uint32_t tree_sum(const struct mc_mrc *mrc, uint32_t position) {
    uint32_t sum = 0;
    for (; position; position -= position & -position) {
        sum += mrc->tree[position];
    }
    return sum;
}

/* The slot of the key, or the empty one where it belongs. */
static struct sample *slot_of(struct mc_mrc *mrc, uint64_t key) {
    uint64_t i = key * 0x9e3779b97f4a7c15ull >> 40;
    while (mrc->slots[i % SLOTS].position && mrc->slots[i % SLOTS].key != key) {
        i++;
    }
    return &mrc->slots[i % SLOTS];
}

static int by_position(const void *a, const void *b) {
    uint32_t x = ((const struct sample *)a)->position, y = ((const struct sample *)b)->position;
    return (x > y) - (x < y);
}

/* Builds table and tree anew from the keys that are still wanted, with positions from 1 on. */
static void renumber(struct mc_mrc *mrc) {
    struct sample *kept = mc_alloc((mrc->count + 1) * sizeof(*kept));
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (mrc->slots[i].position && mc_mrc_wants(mrc, mrc->slots[i].key)) {
            kept[count++] = mrc->slots[i];
        }
    }
    qsort(kept, count, sizeof(*kept), by_position);
    memset(mrc->slots, 0, sizeof(mrc->slots));
    memset(mrc->tree, 0, sizeof(mrc->tree));
    for (uint32_t i = 0; i < count; i++) {
        *slot_of(mrc, kept[i].key) = (struct sample){kept[i].key, i + 1};
        tree_add(mrc, i + 1, 1);
    }
    mrc->count = count;
    mrc->next_position = count + 1;
    free(kept);
}

/* ---- uses ---- */

static void record(struct mc_mrc *mrc, double distance) {
    unsigned bucket = (unsigned)(log2(distance + 1) * PER_OCTAVE);
    mrc->histogram[mc_min_u64(bucket, BUCKETS - 1)] += 1 / rate(mrc);
}

static void forget_half(struct mc_mrc *mrc) {
    uint64_t uses = atomic_load_explicit(&mrc->uses, memory_order_relaxed);
    if (uses - mrc->halved_at < WINDOW) {
        return;
    }
    mrc->halved_at = uses;
    mrc->forgotten = (mrc->forgotten + (double)uses) / 2;
    mrc->weight /= 2;
    for (unsigned b = 0; b < BUCKETS; b++) {
        mrc->histogram[b] /= 2;
    }
}

static void lower_rate(struct mc_mrc *mrc, double to) {
    atomic_store_explicit(&mrc->threshold, (uint64_t)(to * (double)(1ull << HASH_BITS)),
                          memory_order_relaxed);
    renumber(mrc);
}

void mc_mrc_use(struct mc_mrc *mrc, uint64_t key) {
    if (!mc_mrc_wants(mrc, key)) {
        return;
    }
    if (mrc->next_position > POSITIONS) {
        renumber(mrc);
    }
    struct sample *s = slot_of(mrc, key);
    if (s->position) {
        record(mrc, (mrc->count - tree_sum(mrc, s->position)) / rate(mrc));
        tree_add(mrc, s->position, UINT32_MAX); /* minus one */
    } else {
        s->key = key;
        mrc->count++;
        mrc->distinct += 1 / rate(mrc);
    }
    mrc->weight += 1 / rate(mrc);
    s->position = mrc->next_position++;
    tree_add(mrc, s->position, 1);
    while (mrc->count > MC_MRC_KEYS) {
        lower_rate(mrc, rate(mrc) * KEEP_OF_RATE);
    }
    if (rate(mrc) > BUSY_RATE &&
        atomic_load_explicit(&mrc->uses, memory_order_relaxed) > BUSY_USES) {
        lower_rate(mrc, BUSY_RATE);
    }
    forget_half(mrc);
}

/* ---- reading ---- */

void mc_mrc_summary(const struct mc_mrc *mrc, struct mc_mrc_summary *out) {
    *out = (struct mc_mrc_summary){
        .uses = atomic_load_explicit(&mrc->uses, memory_order_relaxed),
        .distinct_keys = mrc->distinct,
        .sample_rate = rate(mrc),
    };
}

double mc_mrc_hit_ratio(const struct mc_mrc *mrc, double keys) {
    double total = (double)atomic_load_explicit(&mrc->uses, memory_order_relaxed) - mrc->forgotten;
    if (total <= 0 || keys < 1) {
        return 0;
    }
    double hits = total - mrc->weight; /* the difference goes into the first bucket */
    double reach = log2(keys + 1) * PER_OCTAVE;
    for (unsigned b = 0; b < BUCKETS && b < reach; b++) {
        hits += mrc->histogram[b] * fmin(1, reach - b);
    }
    return fmin(1, fmax(0, hits / total));
}
