/*
 * Back from the SSD to memory (promote.c). Without promotion_on_hit or a drain an error, or
 * nothing.
 */
#ifndef MC_MASTER_PROMOTE_H
#define MC_MASTER_PROMOTE_H

#include "master/core.h"

struct mc_promotions *mc_promotions_create(void);
void mc_promotions_destroy(struct mc_promotions *promotions);
/* The object was read and lies on a disk only. Needs the shard's lock; mc_promote_hit does not. */
bool mc_promote_wanted(const struct mc_call *call, struct mc_object *o);
void mc_promote_hit(struct mc_call *call, const struct mc_key *key);
/* For a drain: whatever is read. MC_OK: it is asked for, of `size` bytes, by this or before. */
enum mc_status mc_promote_ask(struct mc_call *call, const struct mc_key *key, uint64_t *size);
/* It is asked for, and no memory was given yet. These two need the shard's lock. */
bool mc_promoting(const struct mc_object *o);
void mc_promote_withdraw(struct mc_master *m, struct mc_object *o);
enum mc_status mc_promote_heartbeat(struct mc_call *call, struct mc_uuid client,
                                    struct mc_vec *tasks);
enum mc_status mc_promote_start(struct mc_call *call, const struct mc_key *key,
                                const struct mw_a_promotion_start *a, struct mw_replica *out);
enum mc_status mc_promote_end(struct mc_call *call, const struct mc_key *key, struct mc_uuid client,
                              bool success);
void mc_promotions_tick(struct mc_call *call);
void mc_promotions_drop_client(struct mc_call *call, struct mc_uuid client);

#endif
