/* Memory of the benchmarks. See cmd/bench_memory.h. */
#include "cmd/bench_memory.h"

#include "cmd/content.h"

#include <stdio.h>

#define TOUCH_BYTES (4u << 20) /* copied to a GPU at a time */

enum mc_status mc_bench_find_gpus(int64_t number, struct mc_bench_gpus *out, struct mc_buf *why) {
    struct mc_device first;
    unsigned count;
    MC_TRY(mc_device_start(&first, &count, why));
    if (number >= (int64_t)count) {
        mc_buf_printf(why, "this machine has %u, from 0 on", count);
        return MC_NOT_SUPPORTED;
    }
    out->first = first;
    out->first.index = number < 0 ? 0 : (unsigned)number;
    out->count = number < 0 ? count : 1;
    return MC_OK;
}

/* ---- buffers ---- */

static struct mc_bench_buffer *next_buffer(struct mc_bench_memory *memory) {
    MC_ASSERT(memory->count < MC_BENCH_BUFFERS_MAX);
    return &memory->buffers[memory->count];
}

enum mc_status mc_bench_memory_add_host(struct mc_bench_memory *memory, uint64_t length,
                                        const char *location) {
    struct mc_bench_buffer *b = next_buffer(memory);
    void *bytes = NULL;
    MC_TRY(mc_memory_alloc(memory->engine, length, location, &bytes));
    *b = (struct mc_bench_buffer){.bytes = bytes, .length = length};
    snprintf(b->location, sizeof(b->location), "%s", location);
    memory->count++;
    return MC_OK;
}

static enum mc_status add_gpu(struct mc_bench_memory *memory, uint64_t length,
                              struct mc_device device) {
    struct mc_bench_buffer *b = next_buffer(memory);
    void *bytes = NULL;
    *b = (struct mc_bench_buffer){.length = length, .device = device};
    mc_device_location(device, b->location, sizeof(b->location));
    MC_TRY(mc_device_alloc(device, length, &bytes));
    enum mc_status status = mc_memory_register(memory->engine, bytes, length, b->location, 0);
    if (status != MC_OK) {
        mc_device_release(device, bytes);
        return status;
    }
    b->bytes = bytes;
    memory->count++;
    return MC_OK;
}

enum mc_status mc_bench_memory_add_gpus(struct mc_bench_memory *memory, uint64_t length,
                                        const struct mc_bench_gpus *gpus) {
    for (unsigned i = 0; i < gpus->count; i++) {
        struct mc_device device = {gpus->first.ops, gpus->first.index + i};
        MC_TRY(add_gpu(memory, length, device));
    }
    return MC_OK;
}

enum mc_status mc_bench_memory_touch(struct mc_bench_memory *memory) {
    char *some = mc_alloc(TOUCH_BYTES);
    enum mc_status status = MC_OK;
    memset(some, 0x5a, TOUCH_BYTES);
    for (size_t i = 0; i < memory->count; i++) {
        struct mc_bench_buffer *b = &memory->buffers[i];
        if (b->device.ops == NULL) {
            memset(b->bytes, 0x5a, b->length);
            continue;
        }
        for (uint64_t at = 0; status == MC_OK && at < b->length; at += TOUCH_BYTES) {
            status = mc_device_move(b->bytes + at, some, mc_min_u64(TOUCH_BYTES, b->length - at));
        }
    }
    free(some);
    return status;
}

void mc_bench_memory_print(const struct mc_bench_memory *memory) {
    printf("memory: ");
    for (size_t i = 0; i < memory->count; i++) {
        const struct mc_bench_buffer *b = &memory->buffers[i];
        const char *kind = b->device.ops == NULL ? "DRAM" : "VRAM";
        printf("%s%s %s", i > 0 ? ", " : "", kind, b->location);
    }
    printf(": %llu bytes each\n", (unsigned long long)memory->buffers[0].length);
}

enum mc_status mc_bench_memory_free(struct mc_bench_memory *memory) {
    enum mc_status status = MC_OK;
    while (memory->count > 0) {
        struct mc_bench_buffer *b = &memory->buffers[--memory->count];
        bool is_host = b->device.ops == NULL;
        enum mc_status freed = is_host ? mc_memory_free(memory->engine, b->bytes)
                                       : mc_memory_unregister(memory->engine, b->bytes);
        if (!is_host && freed == MC_OK) {
            mc_device_release(b->device, b->bytes);
        }
        status = status == MC_OK ? freed : status;
    }
    return status;
}

/* ---- bytes ---- */

enum mc_status mc_bench_fill(void *to, uint64_t length, uint64_t seed) {
    if (mc_device_is_host(to)) {
        mc_content_fill(to, length, seed);
        return MC_OK;
    }
    void *here = mc_alloc(length);
    mc_content_fill(here, length, seed);
    enum mc_status status = mc_device_move(to, here, length);
    free(here);
    return status;
}

enum mc_status mc_bench_verify(const void *from, uint64_t length, uint64_t seed, bool *same) {
    size_t bad = 0;
    if (mc_device_is_host(from)) {
        *same = mc_content_verify(from, length, seed, &bad);
        return MC_OK;
    }
    void *here = mc_alloc(length);
    enum mc_status status = mc_device_move(here, from, length);
    if (status == MC_OK) {
        *same = mc_content_verify(here, length, seed, &bad);
    }
    free(here);
    return status;
}

enum mc_status mc_bench_clear(void *to, uint64_t length) {
    if (mc_device_is_host(to)) {
        memset(to, 0, length);
        return MC_OK;
    }
    void *here = mc_zalloc(length);
    enum mc_status status = mc_device_move(to, here, length);
    free(here);
    return status;
}
