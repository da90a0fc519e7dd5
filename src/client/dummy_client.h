/*
 * dummy_client: a store whose work a node of this host does (mc_store_options.real_client). The
 * other side is client/dummies.h; either may be upstream's.
 *
 * Bytes travel in shared memory: values that lie in registered memory are named by address, others
 * are copied through a staging buffer, and puts that find no room there travel in the request. The
 * node's own allocations for this dummy (reads of objects whose size is not known beforehand) are
 * in a second buffer.
 *
 * What keeps it true: staged memory of a call whose answer did not come is not used again while the
 * node's process that was asked may live, because that call may still write or read there.
 */
#ifndef MC_CLIENT_DUMMY_CLIENT_H
#define MC_CLIENT_DUMMY_CLIENT_H

#include "base/metrics.h"
#include "mooncake/store.h"

struct mc_dummy_client;
MC_MUST_USE enum mc_status mc_dummy_client_open(const struct mc_store_options *options,
                                                struct mc_metrics *metrics,
                                                struct mc_dummy_client **out);
void mc_dummy_client_close(struct mc_dummy_client *d); /* NULL is allowed */
MC_MUST_USE enum mc_status mc_dummy_client_health(struct mc_dummy_client *d);
MC_MUST_USE enum mc_status mc_dummy_client_register(struct mc_dummy_client *d, void *memory,
                                                    size_t size);
MC_MUST_USE enum mc_status mc_dummy_client_unregister(struct mc_dummy_client *d, void *memory);

/* Whether the node knows these bytes by address. */
bool mc_dummy_client_reaches(struct mc_dummy_client *d, const void *memory, uint64_t length);

/* As the calls of mooncake/store.h without `client_`. */
MC_MUST_USE enum mc_status mc_dummy_client_put(struct mc_dummy_client *d,
                                               struct mc_store_item *items, size_t count,
                                               const struct mc_replicate_config *config,
                                               bool upsert);
MC_MUST_USE enum mc_status mc_dummy_client_get(struct mc_dummy_client *d,
                                               struct mc_store_item *items, size_t count);
MC_MUST_USE enum mc_status mc_dummy_client_get_ranges(struct mc_dummy_client *d,
                                                      struct mc_store_range_item *items,
                                                      size_t count);
MC_MUST_USE enum mc_status mc_dummy_client_exist(struct mc_dummy_client *d, const char *const *keys,
                                                 size_t count, bool *exists,
                                                 enum mc_status *results);
MC_MUST_USE enum mc_status mc_dummy_client_size(struct mc_dummy_client *d, const char *key,
                                                uint64_t *length);
MC_MUST_USE enum mc_status mc_dummy_client_remove(struct mc_dummy_client *d,
                                                  const char *const *keys, size_t count, bool force,
                                                  enum mc_status *results);
MC_MUST_USE enum mc_status mc_dummy_client_remove_regex(struct mc_dummy_client *d,
                                                        const char *pattern, bool force,
                                                        uint64_t *removed);
MC_MUST_USE enum mc_status mc_dummy_client_remove_all(struct mc_dummy_client *d, bool force,
                                                      uint64_t *removed);
MC_MUST_USE enum mc_status mc_dummy_client_copy(struct mc_dummy_client *d, const char *key,
                                                const char *const *targets, size_t count,
                                                struct mc_store_task_id *task);
MC_MUST_USE enum mc_status mc_dummy_client_move(struct mc_dummy_client *d, const char *key,
                                                const char *source, const char *target,
                                                struct mc_store_task_id *task);
MC_MUST_USE enum mc_status mc_dummy_client_task(struct mc_dummy_client *d,
                                                struct mc_store_task_id id,
                                                struct mc_store_task *task);

#endif
