/*
 * Sessions: objects that are written or read piece by piece, by calls of their own. Private to the
 * client.
 *
 * A session is what a put or a get keeps between its first RPC and its last: the replicas, the
 * writer's id or the lease. It is found by its key, one table for puts and one for gets, and lives
 * until its end. Calls copy what they need under the lock and go out without it.
 */
#ifndef MC_CLIENT_SESSION_H
#define MC_CLIENT_SESSION_H

#include "client/ops_internal.h"

/* The checksum of what a put session has written so far: known at the end if every byte was written
 * exactly once, in whatever order. */
#define MC_SESSION_PARTS_MAX 1024 /* that do not touch each other; with more there is no checksum  \
                                   */
struct mc_session_part {
    uint64_t begin, end;
};
struct mc_session_sum {
    uint64_t checksum;
    struct mc_session_part *parts; /* written, in order, apart from each other */
    size_t count, capacity;
    bool lost; /* a byte was written twice, or one that the processor cannot read */
};

struct mc_session {
    struct mc_session *next;
    struct mc_str key;
    uint64_t size;
    uint64_t serial; /* of a get: tells it from a later one of the same key */
    struct mc_ops_lease lease;
    struct mc_arena arena; /* holds the replicas */

    /* Of a put. */
    struct mc_uuid writer;
    uint64_t closes_at_ns; /* it is not written later */
    bool in_doubt;         /* a write may still land */
    bool has_disk;         /* the master also waits for a file that this client does not write */
    uint32_t users;        /* calls that are writing or ending it */
    struct mc_session_sum sum;
};

/* [begin, end) was written, and has this checksum, shifted to its place. */
void mc_session_sum_add(struct mc_session_sum *sum, uint64_t begin, uint64_t end,
                        uint64_t checksum);
bool mc_session_sum_known(const struct mc_session_sum *sum, uint64_t size);

/* The table's link to the session of the key, or to where it would be. Needs ops->lock, as all of
 * these but the next. */
struct mc_session **mc_session_find_locked(struct mc_ops_sessions *table, struct mc_str key);
/* In no table yet; copies what it is given. */
struct mc_session *mc_session_make(struct mc_str key, const struct mw_replica_list *list);
/* False when the table is full; then the session is freed. */
bool mc_session_add_locked(struct mc_ops_sessions *table, struct mc_session **at,
                           struct mc_session *session);
void mc_session_remove_locked(struct mc_ops_sessions *table, struct mc_session **at);
void mc_session_free(struct mc_session *session);
/* A copy of the list in the arena; of replicas that are neither memory nor on a disk only that
 * there are some. */
void mc_session_copy_list(struct mc_arena *arena, const struct mw_replica_list *from,
                          struct mw_replica_list *to);

#endif
