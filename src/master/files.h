/*
 * DISK replicas: copies of objects in files of a file system that the clients share
 * (mc_master_config.root_fs_dir). See files.c.
 */
#ifndef MC_MASTER_FILES_H
#define MC_MASTER_FILES_H

#include "master/core.h"

struct mc_files;
struct mc_files *mc_files_create(struct mc_master *m); /* NULL: there is no root */
/* Objects that go from here on are nobody's business any more. */
void mc_files_end(struct mc_files *files);
void mc_files_destroy(struct mc_files *files); /* NULL is none; no object is left */
uint64_t mc_files_bytes(const struct mc_files *files);

/* ---- of one object: all but forget need the shard's lock ---- */

void mc_file_describe(struct mc_call *call, const struct mc_object *o, const struct mc_replica *r,
                      struct mw_replica *out);
/* The object is about to be written: adds a file to what its writer is to write, where there are
 * files. */
void mc_file_want(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                  struct mc_vec *replicas);
/* The object has become readable: so does a file that is there already. */
void mc_file_settle(struct mc_call *call, struct mc_shard *shard, struct mc_object *o);
/* PutEnd and PutRevoke of the kind DISK, by the object's writer. */
enum mc_status mc_file_written(struct mc_call *call, struct mc_shard *shard, struct mc_object *o);
enum mc_status mc_file_revoke(struct mc_object *o);
/* Its replica goes, or it does: the files are to be deleted. */
void mc_file_dropped(struct mc_master *m, const struct mc_object *o, const struct mc_replica *r);
void mc_file_unwanted(struct mc_master *m, struct mc_object *o);
/* A client has deleted the file. */
enum mc_status mc_file_forget(struct mc_call *call, const struct mc_key *key);

/* ---- files to be deleted ---- */

/* The next batch for a client that may have deleted those of the one before. */
void mc_files_take(struct mc_call *call, const struct mw_a_dead_files *a,
                   struct mw_dead_files *out);

#endif
