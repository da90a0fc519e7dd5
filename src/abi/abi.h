/*
 * abi: upstream's C interfaces over ours, each a thin library of its own (libtransfer_engine.so,
 * libmooncake_store.so) whose only exports are upstream's names. Argument checks, numbers,
 * lifetimes of handles; nothing that moves a byte.
 *
 * The libraries link libmooncake.so like any application, so this room may use only what that one
 * exports: the public headers, and the log.
 *
 * Here is what the two Transfer Engine interfaces share: an engine with its table of batches. A
 * batch is known by an id that is never used twice, so that a stale or invented one is an error and
 * not an access to freed memory. Every call counts itself a user of the batch, and freeing waits
 * for the others.
 */
#ifndef MC_ABI_ABI_H
#define MC_ABI_ABI_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mooncake/transfer.h"

#define ABI_BATCHES_MAX (1u << 20)

struct abi_batch {
    uint64_t id;
    struct mc_batch *batch;
    unsigned users; /* abi_engine.lock */
    bool freeing;   /* abi_engine.lock */
    pthread_mutex_t submitting;
    bool notifies; /* a notification belongs to its end; under `submitting` */
    size_t tasks;  /* submitted; under `submitting` */
};

struct abi_engine {
    struct mc_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t unused;      /* a batch that is being freed lost a user */
    struct abi_batch **batches; /* by the low half of the id */
    uint32_t batch_slots;
    uint32_t *free_slots;
    uint32_t free_count;
    uint32_t generation;     /* the high half of the next id */
    mc_segment_id *segments; /* opened ones, each once */
    size_t segment_count;
    size_t segment_cap;
    struct abi_engine *next_graceful; /* list of enableGracefulShutdown */
};

/* NULL when memory is exhausted; takes over the engine. */
struct abi_engine *abi_engine_wrap(struct mc_engine *engine);
/* Ends the engine and frees every batch. */
void abi_engine_destroy(struct abi_engine *e);

/* A new batch's id; 0 when there is none to be had. */
uint64_t abi_batch_new(struct abi_engine *e, size_t capacity);
/* The batch with one user more, or NULL; abi_batch_put takes the user back. */
struct abi_batch *abi_batch_get(struct abi_engine *e, uint64_t id);
void abi_batch_put(struct abi_engine *e, struct abi_batch *b);
/* Submits; when name is not NULL, with a notification to the first request's segment. What is
 * refused leaves nothing behind. Threads that submit to one batch at once, which the interfaces
 * forbid and only a stale id should bring about, wait for each other. */
MC_MUST_USE enum mc_status abi_batch_submit(struct abi_batch *b,
                                            const struct mc_transfer_request *requests,
                                            size_t count, const char *name, const char *message);
/* MC_TASK_NOT_FOUND, MC_ERR_BUSY. */
MC_MUST_USE enum mc_status abi_batch_free(struct abi_engine *e, uint64_t id);
/* As mc_batch_task, but of a batch with a notification no task has completed before it arrived, and
 * all have failed when it did not. */
MC_MUST_USE enum mc_status abi_batch_task(struct abi_batch *b, size_t task,
                                          struct mc_transfer_status *status);

/* mc_segment_open, and remembers it. */
MC_MUST_USE enum mc_status abi_segment_open(struct abi_engine *e, const char *name,
                                            mc_segment_id *id);
MC_MUST_USE enum mc_status abi_segment_close(struct abi_engine *e, mc_segment_id id);
/* Fetches all descriptors; whose peer does not answer keeps its old one. */
void abi_segments_refresh(struct abi_engine *e);

/* Registers all ranges or none. */
MC_MUST_USE enum mc_status abi_register_all(struct abi_engine *e, void *const *addrs,
                                            const size_t *lengths, size_t count,
                                            const char *location, unsigned flags);

/* STATUS_* of both interfaces. */
int abi_task_state(const struct mc_transfer_status *status);

/* What each transport of the engine has done, by its counters. */
struct abi_link {
    char transport[32];
    uint64_t bytes[2]; /* by enum mc_transfer_op */
    uint64_t slices[2];
    uint64_t failures;
};
/* Fills at most `capacity`; how many there are. */
size_t abi_links(struct mc_engine *engine, struct abi_link *links, size_t capacity);

/* The cards that the engine's transports drive themselves, by its gauges. */
struct abi_card {
    char name[64];
    uint64_t inflight_bytes;
    double bandwidth; /* bytes a second */
};
#define ABI_CARDS_MAX 64
size_t abi_cards(struct mc_engine *engine, struct abi_card *cards, size_t capacity);

/* Text into a caller's buffer; false when it does not fit (it is then cut). */
bool abi_text_out(char *out, size_t size, const char *text);

#endif
