/* What the files of dummies share: the dummies and their memory. */
#ifndef MC_CLIENT_DUMMIES_PRIVATE_H
#define MC_CLIENT_DUMMIES_PRIVATE_H

#include <pthread.h>

#include "base/metrics.h"
#include "client/blocks.h"
#include "client/dummies.h"
#include "wire/dummy_ipc.h"

struct mc_dummy_mapping {
    uint64_t base; /* in the dummy */
    uint64_t size;
    char *here;
    bool local;    /* blocks are lent out of it */
    unsigned refs; /* the dummy's, while it has it, and one of each call that uses it */
};

struct mc_dummy {
    struct mc_list link;
    struct mc_uuid id;
    uint64_t seen_ns;
    int pidfd;      /* -1 when the kernel does not tell */
    unsigned users; /* calls inside */
    bool gone;      /* out of the list; freed by the last user */
    struct mc_dummy_mapping *mappings[MC_DUMMY_MAPPINGS_MAX];
    size_t mapping_count;
    struct mc_blocks blocks; /* of the local mapping */
};

struct mc_dummies {
    struct mc_store *store;
    pthread_mutex_t lock; /* guards the list and all that hangs on it; no call is made under it */
    struct mc_list list;
    size_t count;
    uint64_t mapped_bytes;
    int listen_fd, stop_fd;
    pthread_t thread;
    struct {
        struct mc_metric connected, mapped_bytes; /* gauges */
        struct mc_metric registrations, refused, lost;
    } metrics;
};

/* One call of a dummy. */
struct mc_dummy_call {
    struct mc_dummies *dummies;
    struct mc_dummy *dummy; /* NULL: unknown */
    struct mc_dummy_mapping *held[MC_DUMMY_MAPPINGS_MAX];
    size_t held_count;
    struct mc_arena *arena;
};
void mc_dummy_call_begin(struct mc_dummy_call *call, struct mc_dummies *dummies,
                         struct mc_uuid client, struct mc_arena *arena);
void mc_dummy_call_end(struct mc_dummy_call *call);
/* The dummy's bytes [address, address + size) in this process, until the call ends; NULL when they
 * are not in one of its mappings. */
void *mc_dummy_translate(struct mc_dummy_call *call, uint64_t address, uint64_t size);

/* Lends a block of the dummy's local mapping. MC_INVALID_PARAMS when there is no such mapping, no
 * room, or the size is 0. */
MC_MUST_USE enum mc_status mc_dummy_block_take(struct mc_dummy_call *call, uint64_t size,
                                               uint64_t *address, void **here);
/* By the dummy's address. */
MC_MUST_USE enum mc_status mc_dummy_block_give(struct mc_dummy_call *call, uint64_t address);

/* The dummy was heard of; false when it is unknown. */
bool mc_dummies_seen(struct mc_dummies *dummies, struct mc_uuid client);
bool mc_dummy_has_mapping(struct mc_dummy_call *call, uint64_t base);
MC_MUST_USE enum mc_status mc_dummy_unmap(struct mc_dummy_call *call, uint64_t base);
/* Maps memory that came over the connection. Why it is not taken; NULL when it is. */
const char *mc_dummies_take_memory(struct mc_dummies *dummies, const struct mc_dummy_register *r,
                                   int memory, int connection);
/* Forgets dummies that have ended or say nothing. */
void mc_dummies_sweep(struct mc_dummies *dummies);
/* The thread of the socket, until stop_fd is readable. */
void *mc_dummies_main(void *dummies);
void mc_dummies_forget(struct mc_dummies *dummies, struct mc_uuid client);

#endif
