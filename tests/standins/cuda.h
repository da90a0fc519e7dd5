/*
 * A CUDA driver of host memory, for tests: what the engine uses of libcuda.so.1, with its ABI.
 *
 * "Device" memory is a memfd mapped twice: the address that is handed out cannot be touched by
 * anybody (PROT_NONE: the processor faults, the kernel answers EFAULT), copies use the other. So
 * whatever reaches the bytes by another way than the driver fails the test by itself. The library's
 * soname is libcuda.so.1: once a test has loaded it, that name finds it.
 */
#ifndef MC_TESTS_STANDINS_CUDA_H
#define MC_TESTS_STANDINS_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_DEVICES 4

struct standin_counts {
    uint64_t to_device, from_device; /* copies that ended well */
    uint64_t bytes;
    uint64_t pageable; /* copies with host memory that was not pinned */
    uint64_t most_at_once;
    uint64_t met;      /* see meet() */
    int64_t streams;   /* that exist */
    int64_t pinned;    /* ranges */
    uint64_t exported; /* descriptors for NICs */
};

struct standin_cuda { /* what tests get, by dlsym("standin_cuda_table") */
    int (*alloc)(unsigned device, size_t bytes, uint64_t *addr);
    void (*release)(uint64_t addr);
    /* Looks through the other mapping. */
    void *(*inside)(uint64_t addr);
    void (*counts)(struct standin_counts *out, bool reset);
    /* The next `count` copies fail with CUDA_ERROR_LAUNCH_FAILED. */
    void (*fail_next)(unsigned count);
    /* Copies to the device (or from it) wait until this is false again. */
    void (*hold)(bool to_device, bool on);
    /* The next copy to the device waits, at most 20 s, for one from a device that begins after it.
     */
    void (*meet)(void);
};

#endif
