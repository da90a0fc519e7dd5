/* See cache_sim.h. */
#include "cmd/cache_sim.h"

#include <stdlib.h>

#define NEVER UINT64_MAX
/* Between requests of a trace without times. */
#define STEP_MS 100u

static struct mc_cache_hits rates(struct mc_cache_hits hits) {
    if (hits.references) {
        hits.prefix_rate = (double)hits.prefix / (double)hits.references;
        hits.block_rate = (double)hits.block / (double)hits.references;
    }
    if (hits.cost > 0) {
        hits.saved_rate = hits.saved / hits.cost;
    }
    return hits;
}

/* What it takes to compute block `index` of a request, in tokens at the head of a prompt. */
static double cost_of(const struct mc_trace_request *request, uint32_t index,
                      const struct mc_cache_setup *setup) {
    double tokens = mc_trace_block_tokens(request, index);
    double before = (double)index * request->block_tokens + tokens / 2;
    return setup->attention_tokens > 0 ? tokens * (1 + before / setup->attention_tokens) : tokens;
}

/* One reference; `prefix` is whether all before it in the request were hits, and then it too. */
static void count_hit(struct mc_cache_hits *hits, bool *prefix, bool there, double cost) {
    *prefix = *prefix && there;
    hits->prefix += *prefix;
    hits->block += there;
    hits->references++;
    hits->saved += *prefix ? cost : 0;
    hits->cost += cost;
}

static struct mc_policy *create(const struct mc_trace *trace, const struct mc_policy_ops *policy,
                                const struct mc_cache_setup *setup) {
    struct mc_policy_config config = {0};
    if (setup->cost_told && trace->request_count) {
        config.attention_blocks = setup->attention_tokens / trace->requests[0].block_tokens;
    }
    return policy->create(&config);
}

struct mc_cache_hits mc_cache_simulate(const struct mc_trace *trace,
                                       const struct mc_policy_ops *policy,
                                       const struct mc_cache_setup *setup) {
    struct mc_cache_hits hits = {0};
    struct mc_policy *p = create(trace, policy, setup);
    bool *there = mc_zalloc(trace->distinct_count + 1);
    size_t longest = 0;
    for (size_t r = 0; r < trace->request_count; r++) {
        longest = mc_max_u64(longest, trace->requests[r].block_count);
    }
    uint64_t *keys = mc_alloc((longest + 1) * sizeof(*keys));
    for (size_t r = 0; r < trace->request_count; r++) {
        const struct mc_trace_request *request = &trace->requests[r];
        const uint32_t *blocks = trace->blocks + request->first_block;
        bool prefix = true;
        for (uint32_t i = 0; i < request->block_count; i++) {
            count_hit(&hits, &prefix, there[blocks[i]], cost_of(request, i, setup));
            keys[i] = blocks[i];
        }
        for (uint32_t i = 0; i < request->block_count; i++) {
            there[blocks[i]] = true;
        }
        uint64_t now_ms = trace->timestamp_count > 1 ? request->timestamp_ms : r * STEP_MS;
        mc_policy_request(
            p, &(struct mc_policy_request){MC_POLICY_STORE, keys, request->block_count, now_ms});
        uint64_t victim;
        while (mc_policy_resident(p) > setup->capacity && mc_policy_victim(p, &victim)) {
            there[victim] = false;
        }
    }
    free(keys);
    free(there);
    mc_policy_destroy(p);
    return rates(hits);
}

/* ---- the optimum ---- */

/* A binary heap of resident blocks, the one with the farthest next use first. Entries whose block
 * has been used since are dropped when they come up. */
struct future {
    uint64_t next;
    uint32_t block;
};
struct optimum {
    struct future *heap;
    size_t heap_count;
    uint64_t *next_of; /* of a resident block */
    bool *there;
    uint64_t resident;
};

static void heap_push(struct optimum *o, struct future f) {
    size_t i = o->heap_count++;
    for (; i > 0 && o->heap[(i - 1) / 2].next < f.next; i = (i - 1) / 2) {
        o->heap[i] = o->heap[(i - 1) / 2];
    }
    o->heap[i] = f;
}

static void heap_pop(struct optimum *o) {
    struct future last = o->heap[--o->heap_count];
    size_t i = 0;
    for (size_t child = 1; child < o->heap_count; child = 2 * i + 1) {
        if (child + 1 < o->heap_count && o->heap[child + 1].next > o->heap[child].next) {
            child++;
        }
        if (o->heap[child].next <= last.next) {
            break;
        }
        o->heap[i] = o->heap[child];
        i = child;
    }
    o->heap[i] = last;
}

/* The resident block with the farthest next use. */
static struct future farthest(struct optimum *o) {
    while (!o->there[o->heap[0].block] || o->next_of[o->heap[0].block] != o->heap[0].next) {
        heap_pop(o);
    }
    return o->heap[0];
}

static void optimum_use(struct optimum *o, uint32_t block, uint64_t next, uint64_t capacity) {
    bool was_there = o->there[block];
    if (next == NEVER) {
        o->there[block] = false;
        o->resident -= was_there;
        return;
    }
    if (!was_there && o->resident == capacity) {
        struct future f = farthest(o);
        if (f.next < next) {
            return;
        }
        o->there[f.block] = false;
        o->resident--;
    }
    o->resident += !was_there;
    o->there[block] = true;
    o->next_of[block] = next;
    heap_push(o, (struct future){next, block});
}

/* For each reference the place of the next one of the same block. */
static uint64_t *next_uses(const struct mc_trace *trace) {
    uint64_t *next = mc_alloc((trace->block_count + 1) * sizeof(*next));
    uint64_t *last = mc_alloc((trace->distinct_count + 1) * sizeof(*last));
    memset(last, 0xff, (trace->distinct_count + 1) * sizeof(*last));
    uint64_t at = trace->block_count;
    for (size_t r = trace->request_count; r-- > 0;) {
        const uint32_t *blocks = trace->blocks + trace->requests[r].first_block;
        for (size_t i = trace->requests[r].block_count; i-- > 0;) {
            next[--at] = last[blocks[i]];
            last[blocks[i]] = at;
        }
    }
    free(last);
    return next;
}

struct mc_cache_hits mc_cache_optimum(const struct mc_trace *trace,
                                      const struct mc_cache_setup *setup) {
    struct mc_cache_hits hits = {0};
    uint64_t *next = next_uses(trace), at = 0;
    struct optimum o = {.heap = mc_alloc((trace->block_count + 1) * sizeof(*o.heap)),
                        .next_of = mc_alloc((trace->distinct_count + 1) * sizeof(*o.next_of)),
                        .there = mc_zalloc(trace->distinct_count + 1)};
    for (size_t r = 0; r < trace->request_count; r++) {
        const struct mc_trace_request *request = &trace->requests[r];
        const uint32_t *blocks = trace->blocks + request->first_block;
        bool prefix = true;
        for (uint32_t i = 0; i < request->block_count; i++) {
            count_hit(&hits, &prefix, o.there[blocks[i]], cost_of(request, i, setup));
            optimum_use(&o, blocks[i], next[at++], setup->capacity);
        }
    }
    free(o.heap);
    free(o.next_of);
    free(o.there);
    free(next);
    return rates(hits);
}
