/*
 * Replaying a trace against a store: one object a prefix block, contents derived from the key,
 * every read verified.
 *
 * Each request of the trace reads its blocks in order as one batch, verifies every byte that it
 * got, and puts the blocks that were missing. Requests start in the order of the trace,
 * `concurrency` at a time. A request that shares a block which an earlier one is about to put waits
 * for it, so that the hits of a cache with room for everything do not depend on how threads were
 * scheduled; everything else runs freely.
 *
 * Hit rates. By blocks: blocks read / blocks referenced. By tokens: tokens of the blocks read /
 * input tokens. Prefix: only blocks before the first miss of their request count, which is what an
 * inference engine can use.
 */
#ifndef MC_CMD_REPLAY_H
#define MC_CMD_REPLAY_H

#include "cmd/trace.h"
#include "mooncake/store.h"

#define MC_REPLAY_BINS        60 /* of trace time, for the plot of hit rate over time */
#define MC_REPLAY_MAX_THREADS 256
/* When full, every second one is dropped and the interval doubles. */
#define MC_REPLAY_MAX_SAMPLES 4096

/* What the master says about the cluster, at one moment. */
struct mc_cluster_state {
    bool known;
    uint64_t allocated_bytes, capacity_bytes, keys, evicted_keys, evicted_bytes;
};

struct mc_replay_config {
    const struct mc_trace *trace;
    struct mc_store *store;
    const char *key_prefix;
    uint64_t block_bytes;
    uint64_t batch_bytes; /* buffer of a thread; a longer request is several batches */
    double speed; /* 0 = as fast as possible; 1 = the trace's own time; 60 = an hour in a minute */
    unsigned concurrency;
    void (*cluster_state)(void *ctx, struct mc_cluster_state *out); /* may be NULL */
    void *cluster_state_ctx;
    bool progress;            /* draw on standard error */
    const _Atomic bool *stop; /* ends the replay early when it becomes true; may be NULL */
};

struct mc_replay_bin { /* of trace time */
    uint64_t blocks, hit_blocks, prefix_blocks, tokens, hit_tokens;
};

struct mc_replay_sample { /* of wall time */
    double seconds;
    uint64_t requests, read_bytes, written_bytes;
    struct mc_cluster_state cluster;
};

struct mc_latencies { /* in microseconds, sorted */
    uint32_t *us;
    size_t count;
};

struct mc_replay_result {
    double seconds;
    bool stopped_early;
    uint64_t requests;
    struct mc_replay_bin total;
    uint64_t gets;           /* blocks read, each verified */
    uint64_t puts;           /* blocks written */
    uint64_t puts_refused;   /* the cluster had no room for the block */
    uint64_t leases_expired; /* blocks whose read took longer than the lease: misses, put again */
    uint64_t verified_bytes;
    uint64_t mismatches; /* blocks read whose bytes were wrong */
    uint64_t errors;     /* blocks whose get or put failed otherwise */
    enum mc_status first_error;
    uint64_t read_bytes, written_bytes;
    double get_seconds, put_seconds;              /* summed over threads */
    struct mc_latencies get_latency, put_latency; /* of one request's reads, of its writes */
    struct mc_replay_bin bins[MC_REPLAY_BINS];
    uint64_t bin_ms; /* trace time of one bin */
    struct mc_replay_sample *samples;
    size_t sample_count;
};

MC_MUST_USE enum mc_status mc_replay_run(const struct mc_replay_config *config,
                                         struct mc_replay_result *result);
void mc_replay_result_free(struct mc_replay_result *result);

/* The value at quantile q of [0, 1]; 0 when there is none. */
uint32_t mc_latencies_at(const struct mc_latencies *latencies, double q);

static inline double mc_rate(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}

#endif
