/*
 * The clients' hot caches: the real ones, one a client, which die with it. The oracle judges what
 * comes from them like any other read.
 *
 * The look-up is wrapped (ld --wrap, tests.cmake) for the cluster that is wrong on purpose: there
 * the last version that was taken in is given to who asks for another.
 */
#include "sim/sim.h"

struct mc_hot_entry *__real_mc_hot_get(struct mc_hot_cache *cache, struct mc_str key,
                                       uint64_t version, const uint8_t **bytes, uint64_t *length);
struct mc_hot_entry *__wrap_mc_hot_get(struct mc_hot_cache *cache, struct mc_str key,
                                       uint64_t version, const uint8_t **bytes, uint64_t *length);
void __real_mc_hot_offer(struct mc_hot_cache *cache, struct mc_str key, uint64_t version,
                         const struct mc_slice *slices, size_t count, uint64_t length);
void __wrap_mc_hot_offer(struct mc_hot_cache *cache, struct mc_str key, uint64_t version,
                         const struct mc_slice *slices, size_t count, uint64_t length);

/* Of the one thread that runs simulations, and only when that is what is wrong. */
static bool takes_any;
static uint64_t last_version[1024];

static uint64_t *last_of(const struct mc_hot_cache *cache, struct mc_str key) {
    uint64_t hash = mc_hash64(key.ptr, key.len, (uint64_t)(uintptr_t)cache);
    return &last_version[hash % MC_ARRAY_LEN(last_version)];
}

struct mc_hot_entry *__wrap_mc_hot_get(struct mc_hot_cache *cache, struct mc_str key,
                                       uint64_t version, const uint8_t **bytes, uint64_t *length) {
    uint64_t last = takes_any ? *last_of(cache, key) : 0;
    return __real_mc_hot_get(cache, key, last != 0 ? last : version, bytes, length);
}

void __wrap_mc_hot_offer(struct mc_hot_cache *cache, struct mc_str key, uint64_t version,
                         const struct mc_slice *slices, size_t count, uint64_t length) {
    __real_mc_hot_offer(cache, key, version, slices, count, length);
    const uint8_t *bytes;
    uint64_t has;
    struct mc_hot_entry *taken =
        takes_any ? __real_mc_hot_get(cache, key, version, &bytes, &has) : NULL;
    if (taken != NULL) {
        *last_of(cache, key) = version;
        mc_hot_put(cache, taken);
    }
}

void sim_hot_make(struct sim_process *process) {
    const struct sim *sim = process->sim;
    takes_any = sim->options.client_break == SIM_BREAK_OLD_COPIES;
    if (sim->profile.hot_bytes > 0 && process->hot_reader) {
        process->hot = mc_hot_create(&(struct mc_hot_config){
            .bytes = sim->profile.hot_bytes, .largest_bytes = SIM_VALUE_MAX, .admission = 2});
    }
}

void sim_hot_free(struct sim_process *process) {
    if (process->hot != NULL) {
        struct sim_coverage *coverage = &process->sim->result->coverage;
        const struct mc_hot_counters *counters = mc_hot_counters(process->hot);
        coverage->hot_hits += (uint64_t)mc_metric_get(&counters->hits);
        coverage->hot_fills += (uint64_t)mc_metric_get(&counters->fills);
        coverage->hot_evictions += (uint64_t)mc_metric_get(&counters->evictions);
        mc_hot_destroy(process->hot);
        process->hot = NULL;
    }
}
