/*
 * What a copy or move task asks for: the JSON text in mw_task_assignment.payload.
 *
 * Strings are bytes as they are: a key need not be UTF-8. The decoder accepts members in any order
 * and skips those that it does not know.
 */
#ifndef MC_WIRE_TASK_PAYLOAD_H
#define MC_WIRE_TASK_PAYLOAD_H

#include "wire/master_rpc.h"

struct mw_task_payload {
    struct mc_str tenant, key;
    struct mc_str source;  /* segment name */
    struct mc_vec targets; /* of struct mc_str; a move has exactly one */
    struct mc_uuid lease;  /* of a copy that dynamic replication asked for; else {0, 0} */
    uint64_t epoch;
    /* Of a copy of a striped object, which is done in so many steps: how many stripes it has. */
    uint64_t stripes;
};

void mw_task_payload_encode(enum mc_task_type type, const struct mw_task_payload *payload,
                            struct mc_buf *out);
/* Strings and targets live in the arena. MC_DESERIALIZE_FAIL: not JSON, or a member is missing. */
MC_MUST_USE enum mc_status mw_task_payload_decode(enum mc_task_type type, struct mc_str text,
                                                  struct mc_arena *arena,
                                                  struct mw_task_payload *out);

#endif
