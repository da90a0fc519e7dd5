/*
 * device: memory of accelerators, which the processor cannot touch.
 *
 * A range is device memory when the runtime in this process says so, never because of the name of
 * its location. A process that has no runtime loaded has no such memory, so nothing is ever loaded
 * for looking: the runtime is found where the application brought it (dlopen with RTLD_NOLOAD).
 * Only a program that makes such memory itself loads it, by mc_device_start.
 * Another accelerator = one file with a struct mc_device_ops and one line of the table in device.c.
 */
#ifndef MC_TE_DEVICE_H
#define MC_TE_DEVICE_H

#include "base/base.h"

#define MC_DEVICES_MAX 64 /* of one kind */

struct mc_device_ops {
    const char *kind; /* "cuda": its locations are "cuda:0" ... */
    /* Brings the runtime into this process, and says how many devices it has, at least one.
     * MC_NOT_SUPPORTED with the reason. */
    enum mc_status (*start)(unsigned *count, struct mc_buf *why);
    /* Whether the runtime is in this process. */
    bool (*present)(void);
    /* Whether addr is device memory, and of which device. */
    bool (*owns)(uint64_t addr, unsigned *device);
    /* MC_ERR_NO_MEMORY, logged. */
    enum mc_status (*alloc)(unsigned device, size_t length, void **ptr);
    void (*release)(unsigned device, void *ptr);
    /* For copies of one thread at a time. */
    enum mc_status (*stream_create)(unsigned device, void **stream);
    void (*stream_destroy)(unsigned device, void *stream);
    /* One side at least is of the device, host memory is pinned; returns when the bytes are there.
     */
    enum mc_status (*copy)(unsigned device, void *stream, void *to, const void *from,
                           size_t length);
    /* Makes host memory one that every device copies to and from at full speed. */
    enum mc_status (*pin)(unsigned device, void *ptr, size_t length);
    void (*unpin)(unsigned device, void *ptr);
    /* A dma-buf of the whole pages that hold the range, and where in it the range begins; an errno
     * value when there is none. */
    int (*dmabuf)(uint64_t addr, uint64_t length, int *fd, uint64_t *offset);
};
extern const struct mc_device_ops mc_device_cuda_ops;

struct mc_device {
    const struct mc_device_ops *ops;
    unsigned index;
};

/* Whether any runtime is in this process. Costs little. */
bool mc_device_present(void);
/* Whether addr is device memory, and whose. */
bool mc_device_find(uint64_t addr, struct mc_device *device);
/* "cuda:3". */
void mc_device_location(struct mc_device device, char *out, size_t size);
/* Whether the location is one of a device, by its name: of memory of other processes, which cannot
 * be asked. */
bool mc_device_is_location(const char *location);

/* Copies of one thread at a time; streams are made when first needed. Zero-initialised is empty. */
struct mc_device_copier {
    void *streams[MC_DEVICES_MAX];
    const struct mc_device_ops *ops; /* of all streams */
};
/* Host memory should be pinned. MC_ERR_IO, logged. */
MC_MUST_USE enum mc_status mc_device_copy(struct mc_device_copier *copier, struct mc_device device,
                                          void *to, const void *from, size_t length);
void mc_device_copier_free(struct mc_device_copier *copier);

/* For programs that make device memory of their own. Starts the first runtime that has devices
 * here; theirs are *first and those with the next count - 1 indices. MC_NOT_SUPPORTED with the
 * reason. */
MC_MUST_USE enum mc_status mc_device_start(struct mc_device *first, unsigned *count,
                                           struct mc_buf *why);
/* MC_ERR_NO_MEMORY, logged. */
MC_MUST_USE enum mc_status mc_device_alloc(struct mc_device device, size_t length, void **ptr);
void mc_device_release(struct mc_device device, void *ptr);

/* For who holds an address of the application and is about to touch it. */
bool mc_device_is_host(const void *ptr);
/* memcpy, of which either side may be device memory. Slow there: for what is rare. MC_ERR_IO,
 * logged. */
MC_MUST_USE enum mc_status mc_device_move(void *to, const void *from, size_t length);

#endif
