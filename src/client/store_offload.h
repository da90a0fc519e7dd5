/* What the files of a store's SSD tier share. Private to the client; see client/store_offload.c. */
#ifndef MC_CLIENT_STORE_OFFLOAD_H
#define MC_CLIENT_STORE_OFFLOAD_H

#include "client/ops_internal.h"
#include "client/store_private.h"
#include "tier/tier.h"

/*
 * Memory for objects that were read from disk for another node, until it has fetched them. One
 * registered region; pieces of it are lent for a time. Thread safe.
 */
struct mc_offload_buffers;
MC_MUST_USE enum mc_status mc_offload_buffers_create(struct mc_engine *engine, uint64_t bytes,
                                                     uint64_t ttl_ms,
                                                     struct mc_offload_buffers **out);
void mc_offload_buffers_destroy(struct mc_offload_buffers *buffers); /* NULL is allowed */
/* Aligned for the tier. MC_BUFFER_OVERFLOW: too much is lent just now. */
MC_MUST_USE enum mc_status mc_offload_buffers_take(struct mc_offload_buffers *buffers,
                                                   uint64_t bytes, uint64_t *batch, char **memory);
/* It is filled: its time to live begins. */
void mc_offload_buffers_lend(struct mc_offload_buffers *buffers, uint64_t batch);
void mc_offload_buffers_drop(struct mc_offload_buffers *buffers, uint64_t batch); /* not lent */
/* Of one that is lent. False when there is no such batch (any more). */
bool mc_offload_buffers_release(struct mc_offload_buffers *buffers, uint64_t batch);

#endif
