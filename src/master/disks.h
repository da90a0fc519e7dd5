/*
 * The SSDs of the clients, as the master sees them (disks.c), and what clients say of them
 * (disk_words.c).
 */
#ifndef MC_MASTER_DISKS_H
#define MC_MASTER_DISKS_H

#include "master/core.h"

struct mc_disks *mc_disks_create(void);
void mc_disks_destroy(struct mc_master *m); /* the objects are gone */
uint64_t mc_disks_count(struct mc_master *m);
void mc_disks_tick(struct mc_call *call);
/* These three need the shard's lock. Waiting for its client to write it, or being written. */
bool mc_offload_pending(const struct mc_object *o);
bool mc_offload_failed(const struct mc_object *o);
void mc_offload_cancel(struct mc_object *o); /* its bytes are about to change */
bool mc_object_on_disk(struct mc_object *o);
/* Queues the object for the client that has it in memory, if that client takes tasks and fewer than
 * `limit` wait. Needs the shard's lock. */
bool mc_offload_queue(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                      uint64_t limit);
/* A client takes tasks and fewer than `limit` wait for it. */
bool mc_disks_want_more(struct mc_master *m, uint64_t limit);
enum mc_status mc_disk_mount(struct mc_call *call, struct mc_uuid client, bool offloading);
void mc_disk_unmount(struct mc_call *call, struct mc_uuid client);
bool mc_disk_known(struct mc_master *m, struct mc_uuid client);
uint64_t mc_disk_replicas(struct mc_master *m, struct mc_uuid client); /* that are on it */
/* Of all SSDs and the shared directory, as far as the master was told: bytes of objects, room. */
void mc_disks_usage(struct mc_master *m, uint64_t *used, uint64_t *capacity);
enum mc_status mc_disk_capacity(struct mc_call *call, struct mc_uuid client, int64_t bytes);
/* The tasks for a client that has no words for more. */
enum mc_status mc_disk_heartbeat(struct mc_call *call, struct mc_uuid client, bool offloading,
                                 struct mc_vec *tasks);
/* The same of our nodes: first what is to be dropped. */
enum mc_status mc_disk_sync(struct mc_call *call, const struct mw_a_sync_disk *a,
                            struct mw_disk_orders *out);
/* The object is removed or replaced, and with it this replica, which may be one of a disk. Needs
 * the shard's lock. */
void mc_disk_replica_ends(struct mc_master *m, struct mc_object *o, const struct mc_replica *r);
/* After RemoveAll: disks that hold nothing any more may be emptied. */
void mc_disks_removed_all(struct mc_master *m);
enum mc_status mc_disk_poll_wipe(struct mc_call *call, struct mc_uuid client, bool *wipe);

/* For disk_words.c. The segment of the client's replicas, made when its address is new; NULL = it
 * has no disk. The caller takes one from its disk_replicas when it has done. Only one such RPC of a
 * client is under way at a time, as its clients send them. */
struct mc_segment *mc_disk_segment(struct mc_call *call, struct mc_uuid client,
                                   struct mc_str endpoint, bool *adopting);
/* It has what the index does not list. */
void mc_disk_unlisted(struct mc_call *call, struct mc_uuid client);
/* Ends the task that the client's words are about; its mark, or 0 when it has none. */
uint64_t mc_disk_answered(struct mc_call *call, struct mc_uuid client, const struct mc_key *key,
                          uint64_t version);
/* These two need the shard's lock: the object is what the task with this mark is about; it waits no
 * longer. */
bool mc_offload_claimed(const struct mc_object *o, uint64_t mark);
void mc_offload_ended(struct mc_shard *shard, struct mc_object *o, bool failed);

/* ---- disk_words.c ---- */

/* What the client says that it has written, or found when it mounted. */
enum mc_status mc_disk_written(struct mc_call *call, struct mc_uuid client,
                               const struct mc_vec *tasks, const struct mc_vec *objects);
/* The client has it on disk no longer. */
enum mc_status mc_disk_forget(struct mc_call *call, const struct mc_key *key,
                              struct mc_uuid client);
/* The same in words of our own nodes, which name versions; out: one mw_e_void for each item,
 * MC_OBJECT_NOT_FOUND = it was removed or replaced and may not stay on the disk. */
enum mc_status mc_disk_holds(struct mc_call *call, const struct mw_a_on_disk *a,
                             struct mc_vec *out);

/* ---- offload_early.c: with offload_high_watermark_ratio ---- */

void mc_offload_early_tick(struct mc_call *call);

#endif
