/*
 * On which segments a new object lives.
 *
 * The caller's preferred segments come first, by name and in its order; what is still missing is
 * chosen by the strategy, one of a table. A "preferred" entry that begins with '!' names a segment
 * or an endpoint on which nothing is to be placed: the client could not write to it. Replicas of
 * one object never share a segment name. When there are fewer segments with room than replicas
 * wanted, fewer are made. All of this runs under segments_lock held for reading.
 */
#include "master/core.h"

#define SAMPLE_FACTOR 6u
#define SAMPLE_MAX    (SAMPLE_FACTOR * MC_MAX_REPLICAS)

struct placement {
    struct mc_call *call;
    uint64_t size;
    uint64_t hash;         /* of the key */
    struct mc_str host_id; /* where the writer is; "" = not known */
    unsigned wanted, count;
    const struct mw_replicate_config *config;
    bool avoids; /* some preferred entry begins with '!' */
    struct mc_replica *out;
};

struct mc_placement_ops {
    const char *name;
    void (*place)(struct placement *p);
};

/* splitmix64 over a shared counter: a sequence that a seed repeats, and no lock. */
uint64_t mc_random(struct mc_master *m) {
    uint64_t z =
        atomic_fetch_add_explicit(&m->rng_state, 0x9e3779b97f4a7c15ull, memory_order_relaxed);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static bool name_used(const struct placement *p, const struct mc_segment *s) {
    for (unsigned i = 0; i < p->count; i++) {
        if (p->out[i].segment->name_hash == s->name_hash) {
            return true;
        }
    }
    return false;
}

static bool segment_open(const struct mc_call *call, const struct mc_segment *s) {
    return atomic_load_explicit(&s->status, memory_order_relaxed) == MC_SEGMENT_OK &&
           call->now_ms >= s->closed_until_ms;
}

static bool is_avoidance(struct mc_str entry) {
    return entry.len > 0 && entry.ptr[0] == '!';
}

static bool avoided(const struct mw_replicate_config *config, const struct mc_segment *s) {
    const struct mc_str *entries = config->preferred_segments.items;
    for (size_t i = 0; i < config->preferred_segments.count; i++) {
        struct mc_str place = {entries[i].ptr + 1, entries[i].len - 1};
        if (is_avoidance(entries[i]) &&
            (mc_str_eq(place, s->info.te_endpoint) || mc_str_eq(place, s->info.name))) {
            return true;
        }
    }
    return false;
}

bool mc_place_possible(const struct mc_call *call, uint64_t size,
                       const struct mw_replicate_config *config) {
    for (size_t i = 0; i < call->m->segment_count; i++) {
        const struct mc_segment *s = call->m->segments[i];
        if (s->info.size >= size && segment_open(call, s) && !avoided(config, s)) {
            return true;
        }
    }
    return false;
}

static void try_segment(struct placement *p, struct mc_segment *s) {
    struct mc_extent extent;
    if (!segment_open(p->call, s) || name_used(p, s) || (p->avoids && avoided(p->config, s)) ||
        mc_allocator_alloc(s->allocator, p->size, &extent) != MC_OK) {
        return;
    }
    p->out[p->count++] = (struct mc_replica){
        .id = atomic_fetch_add_explicit(&p->call->m->next_replica_id, 1, memory_order_relaxed),
        .segment = s,
        .offset = extent.offset,
        .handle = extent.handle,
        .type = MC_REPLICA_MEMORY,
        .status = MC_REPLICA_PROCESSING};
}

static void try_name(struct placement *p, struct mc_str name) {
    struct mc_master *m = p->call->m;
    for (size_t i = 0; i < m->segment_count && p->count < p->wanted; i++) {
        if (mc_str_eq(m->segments[i]->info.name, name)) {
            try_segment(p, m->segments[i]);
        }
    }
}

enum mc_status mc_place_check(const struct mc_call *call, struct mc_str name) {
    const struct mc_master *m = call->m;
    enum mc_status status = MC_SEGMENT_NOT_FOUND;
    for (size_t i = 0; i < m->segment_count && status != MC_OK; i++) {
        if (mc_str_eq(m->segments[i]->info.name, name)) {
            status = segment_open(call, m->segments[i]) ? MC_OK : MC_UNAVAILABLE_IN_CURRENT_STATUS;
        }
    }
    return status;
}

enum mc_status mc_place_named(struct mc_call *call, uint64_t size, struct mc_str name,
                              struct mc_replica *out) {
    struct placement p = {.call = call, .size = size, .wanted = 1, .out = out};
    MC_TRY(mc_place_check(call, name));
    try_name(&p, name);
    return p.count == 1 ? MC_OK : MC_NO_AVAILABLE_HANDLE;
}

static bool named_in(const struct mc_vec *names, struct mc_str name) {
    for (size_t i = 0; i < names->count; i++) {
        if (mc_str_eq(((const struct mc_str *)names->items)[i], name)) {
            return true;
        }
    }
    return false;
}

bool mc_place_target(struct mc_call *call, uint64_t size, const struct mc_vec *among,
                     const struct mc_vec *except, struct mc_str *name) {
    struct mc_master *m = call->m;
    bool found = false;
    pthread_rwlock_rdlock(&m->segments_lock);
    size_t first = m->segment_count ? mc_random(m) % m->segment_count : 0;
    for (size_t i = 0; i < m->segment_count && !found; i++) {
        const struct mc_segment *s = m->segments[(first + i) % m->segment_count];
        found = segment_open(call, s) && s->info.size >= size && !named_in(except, s->info.name) &&
                (among->count == 0 || named_in(among, s->info.name));
        if (found) {
            *name = mc_arena_str(call->arena, s->info.name);
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return found;
}

/* From a random segment on, one after the other. A full segment costs one comparison, so all are
 * tried. */
static void place_random(struct placement *p) {
    struct mc_master *m = p->call->m;
    size_t start = mc_random(m) % m->segment_count;
    for (size_t i = 0; i < m->segment_count && p->count < p->wanted; i++) {
        size_t at = start + i < m->segment_count ? start + i : start + i - m->segment_count;
        try_segment(p, m->segments[at]);
    }
}

struct candidate {
    struct mc_segment *segment;
    double free_ratio; /* of what the strategy looks at */
};

/* The best of the sample that is left, which leaves it; NULL = none. A few are wanted of a few, so
 * sorting would cost more. */
static struct mc_segment *take_emptiest(struct candidate *sample, size_t *count) {
    size_t best = 0;
    if (*count == 0) {
        return NULL;
    }
    for (size_t i = 1; i < *count; i++) {
        best = sample[i].free_ratio > sample[best].free_ratio ? i : best;
    }
    struct mc_segment *s = sample[best].segment;
    sample[best] = sample[--*count];
    return s;
}

static double memory_free(const struct mc_segment *s) {
    return 1.0 - (double)mc_allocator_used(s->allocator) / (double)s->info.size;
}

/* Those whose memory is as free stay apart, so that a cluster without disks is filled evenly. */
static double ssd_free(const struct mc_segment *s) {
    uint32_t ppm = atomic_load_explicit(&s->ssd_free_ppm, memory_order_relaxed);
    return (double)ppm + memory_free(s);
}

/* The emptiest of a sample of neighbours in the table; when the sample has no room, anybody. */
static void place_emptiest(struct placement *p, double (*free_ratio)(const struct mc_segment *s)) {
    struct mc_master *m = p->call->m;
    struct candidate sample[SAMPLE_MAX];
    size_t count = mc_min_u64((uint64_t)SAMPLE_FACTOR * (p->wanted - p->count), m->segment_count);
    size_t start = mc_random(m) % m->segment_count;
    for (size_t i = 0, at = start; i < count; i++, at++) {
        at = at == m->segment_count ? 0 : at;
        sample[i] = (struct candidate){m->segments[at], free_ratio(m->segments[at])};
    }
    size_t left = count;
    struct mc_segment *s;
    while (p->count < p->wanted && (s = take_emptiest(sample, &left)) != NULL) {
        try_segment(p, s);
    }
    if (p->count < p->wanted && count < m->segment_count) {
        place_random(p);
    }
}

static void place_free_ratio_first(struct placement *p) {
    place_emptiest(p, memory_free);
}

/* The nodes whose SSDs have most room, because what is placed there will be offloaded there. */
static void place_ssd_free_ratio_first(struct placement *p) {
    place_emptiest(p, ssd_free);
}

/* Memory of CXL devices, and no other. */
static void place_cxl(struct placement *p) {
    struct mc_master *m = p->call->m;
    size_t start = mc_random(m) % m->segment_count;
    for (size_t i = 0; i < m->segment_count && p->count < p->wanted; i++) {
        struct mc_segment *s = m->segments[(start + i) % m->segment_count];
        if (mc_str_eq(s->info.protocol, MC_STR("cxl"))) {
            try_segment(p, s);
        }
    }
}

/* ---- near the writer ---- */

static int by_host(const void *a, const void *b) {
    const struct mc_segment *x = *(struct mc_segment *const *)a,
                            *y = *(struct mc_segment *const *)b;
    struct mc_str p = x->info.host_id, q = y->info.host_id;
    size_t len = mc_min_u64(p.len, q.len);
    int order = len > 0 ? memcmp(p.ptr, q.ptr, len) : 0;
    if (order == 0 && p.len != q.len) {
        order = p.len < q.len ? -1 : 1;
    }
    return order != 0 ? order : (x->serial > y->serial) - (x->serial < y->serial);
}

/* Tries `count` segments from the one that the key's hash points to. */
static void try_rotated(struct placement *p, struct mc_segment **segments, size_t count) {
    for (size_t i = 0; i < count && p->count < p->wanted; i++) {
        try_segment(p, segments[(p->hash + i) % count]);
    }
}

/* The segments of the writer's own host first; then the other hosts in their order, beginning at
 * one that the key's hash says, so that they share what overflows. Within a host the hash rotates,
 * too. For one replica only: several are better far from each other. */
static void place_local_first(struct placement *p) {
    const struct mc_master *m = p->call->m;
    if (p->wanted != 1 || p->host_id.len == 0) {
        place_random(p);
        return;
    }
    struct mc_segment **local =
        mc_arena_alloc(p->call->arena, m->segment_count * sizeof(struct mc_segment *));
    size_t near = 0, far = 0;
    for (size_t i = 0; i < m->segment_count; i++) { /* the near ones in front, the others behind */
        struct mc_segment *s = m->segments[i];
        if (mc_str_eq(s->info.host_id, p->host_id)) {
            local[near++] = s;
        } else {
            local[m->segment_count - ++far] = s;
        }
    }
    try_rotated(p, local, near);
    if (p->count == p->wanted || far == 0) {
        return;
    }
    struct mc_segment **remote = local + near;
    qsort(remote, far, sizeof(struct mc_segment *), by_host);
    size_t first = p->hash % far;
    while (first > 0 && mc_str_eq(remote[first]->info.host_id, remote[first - 1]->info.host_id)) {
        first--;
    }
    for (size_t done = 0; done < far && p->count < p->wanted;) {
        size_t begin = (first + done) % far, n = 1;
        while (begin + n < far && done + n < far &&
               mc_str_eq(remote[begin + n]->info.host_id, remote[begin]->info.host_id)) {
            n++;
        }
        try_rotated(p, remote + begin, n);
        done += n;
    }
}

static const struct mc_placement_ops local_first = {"local_first", place_local_first};

static const struct mc_placement_ops strategies[] = {
    {"random", place_random},
    {"free_ratio_first", place_free_ratio_first},
    {"local_first", place_local_first},
    {"ssd_free_ratio_first", place_ssd_free_ratio_first},
    {"cxl", place_cxl},
};

const struct mc_placement_ops *mc_placement_find(const char *name) {
    for (size_t i = 0; i < MC_ARRAY_LEN(strategies); i++) {
        if (strcmp(strategies[i].name, name) == 0) {
            return &strategies[i];
        }
    }
    return NULL;
}

unsigned mc_place(struct mc_call *call, uint64_t size, unsigned wanted, uint64_t hash,
                  const struct mw_replicate_config *config, struct mc_replica *out) {
    struct placement p = {.call = call,
                          .size = size,
                          .hash = hash,
                          .host_id = config->host_id,
                          .wanted = wanted,
                          .config = config,
                          .out = out};
    bool near = config->prefer_alloc_in_same_node && wanted == 1 && config->host_id.len > 0;
    const struct mc_str *preferred = config->preferred_segments.items;
    for (size_t i = 0; i < config->preferred_segments.count; i++) {
        p.avoids = p.avoids || is_avoidance(preferred[i]);
    }
    for (size_t i = 0; i < config->preferred_segments.count && p.count < wanted; i++) {
        try_name(&p, preferred[i]);
    }
    if (config->preferred_segment.len && p.count < wanted) {
        try_name(&p, config->preferred_segment);
    }
    if (p.count < wanted && call->m->segment_count) {
        (near ? &local_first : call->m->placement)->place(&p);
    }
    return p.count;
}
