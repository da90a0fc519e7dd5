/*
 * The memory that the benchmarks of the Transfer Engine move: of the host or of GPUs, which only
 * the driver can touch. Filling and comparing go through host memory there, outside of what is
 * timed.
 */
#ifndef MC_CMD_BENCH_MEMORY_H
#define MC_CMD_BENCH_MEMORY_H

#include "mooncake/transfer.h"
#include "te/device.h"

/* Which GPUs to use: `count` of them, from `first` on. */
struct mc_bench_gpus {
    struct mc_device first;
    unsigned count;
};
/* One of this number, or all (-1). Loads the driver. MC_NOT_SUPPORTED, with the reason, where there
 * is none. */
MC_MUST_USE enum mc_status mc_bench_find_gpus(int64_t number, struct mc_bench_gpus *out,
                                              struct mc_buf *why);

struct mc_bench_buffer {
    char *bytes;
    uint64_t length;
    struct mc_device device; /* ops NULL = host memory */
    char location[16];
};
#define MC_BENCH_BUFFERS_MAX (2 * MC_DEVICES_MAX)
/* Zero-initialised is empty. */
struct mc_bench_memory {
    struct mc_engine *engine;
    struct mc_bench_buffer buffers[MC_BENCH_BUFFERS_MAX];
    size_t count;
};
/* One more buffer, registered with the engine. MC_ERR_NO_MEMORY and others of mc_memory_alloc. */
MC_MUST_USE enum mc_status mc_bench_memory_add_host(struct mc_bench_memory *memory, uint64_t length,
                                                    const char *location);
/* One on each of the GPUs, under "cuda:0" and so on. */
MC_MUST_USE enum mc_status mc_bench_memory_add_gpus(struct mc_bench_memory *memory, uint64_t length,
                                                    const struct mc_bench_gpus *gpus);
/* Writes every byte of all buffers. MC_ERR_IO. */
MC_MUST_USE enum mc_status mc_bench_memory_touch(struct mc_bench_memory *memory);
/* "memory: VRAM cuda:0, VRAM cuda:1: 1073741824 bytes each". */
void mc_bench_memory_print(const struct mc_bench_memory *memory);
/* MC_ERR_NOT_FOUND never, unless somebody else took the engine's memory away. */
MC_MUST_USE enum mc_status mc_bench_memory_free(struct mc_bench_memory *memory);

/* cmd/content.h for memory of either kind. MC_ERR_IO when the driver cannot copy. */
MC_MUST_USE enum mc_status mc_bench_fill(void *to, uint64_t length, uint64_t seed);
MC_MUST_USE enum mc_status mc_bench_verify(const void *from, uint64_t length, uint64_t seed,
                                           bool *same);
MC_MUST_USE enum mc_status mc_bench_clear(void *to, uint64_t length);

#endif
