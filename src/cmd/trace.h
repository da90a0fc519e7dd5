/*
 * Traces of LLM serving: which prefix blocks each request needed, and when.
 *
 * Two formats are read, plain or gzip'ed, told apart by the name:
 *   *.jsonl  the FAST'25 Mooncake release: one request a line, {"timestamp": ms, "input_length",
 * "output_length", "hash_ids": [one id per 512 tokens, the last block may be partial]}.
 *   *.json   an agentic session: {"id", "block_size", "requests": [{"t": s, "in", "out",
 * "hash_ids"}]}; an entry may hold the "requests" of a sub-agent, whose times and ids are those of
 * the file.
 *
 * Ids are only comparable inside one file, so several files may be loaded into one trace: their
 * requests are merged by time and their blocks are kept apart.
 */
#ifndef MC_CMD_TRACE_H
#define MC_CMD_TRACE_H

#include "base/base.h"

#define MC_TRACE_MAX_BYTES           (1ull << 30) /* of one file, unpacked */
#define MC_TRACE_MAX_BLOCKS          (1u << 20)   /* of one request */
#define MC_TRACE_FAST25_BLOCK_TOKENS 512

struct mc_trace_request {
    uint64_t timestamp_ms;
    uint32_t input_tokens;
    uint32_t output_tokens;
    uint32_t block_tokens; /* tokens of a full block */
    uint32_t block_count;
    size_t first_block; /* in mc_trace.blocks */
};

struct mc_trace {
    struct mc_trace_request *requests; /* by time; equal times in the order of the file */
    size_t request_count;
    uint32_t *blocks; /* all references: dense numbers, 0 … distinct_count - 1 in order of first
                         loading */
    size_t block_count;
    uint64_t *names; /* of each distinct block: a hash of file scope and id, equal in every run */
    size_t distinct_count;
    size_t timestamp_count; /* distinct */
    uint64_t input_tokens;  /* of all requests */
    char *title;            /* file names, for the report */
};

/* Loads `count` files. On failure *trace is empty and `error` says "file:line: what is wrong". */
MC_MUST_USE enum mc_status mc_trace_load(const char *const *paths, size_t count,
                                         struct mc_trace *trace, struct mc_buf *error);
void mc_trace_free(struct mc_trace *trace);

/* Keeps the first `count` requests and their blocks. */
void mc_trace_limit(struct mc_trace *trace, size_t count);

/* Tokens of block `index` of the request: block_tokens, fewer for a partial last block. */
uint32_t mc_trace_block_tokens(const struct mc_trace_request *request, uint32_t index);

/* What a cache without limit would hit when the requests came one after another: a block is hit
 * when an earlier request had it. By tokens a block counts with the tokens that it really holds,
 * out of all input tokens. */
struct mc_trace_bound {
    uint64_t hit_blocks;
    uint64_t hit_tokens;
    double hit_rate_blocks;
    double hit_rate_tokens;
};
struct mc_trace_bound mc_trace_infinite_cache(const struct mc_trace *trace);

#endif
