/* What the files of get share: ops_get.c, which says how it goes, and ops_get_disk.c. */
#ifndef MC_CLIENT_OPS_GET_H
#define MC_CLIENT_OPS_GET_H

#include "client/ops_internal.h"

/* A copy on the SSD of a node, or in a file. */
struct mc_get_disk {
    uint64_t id; /* of the replica */
    struct mc_str endpoint, file;
    uint64_t size;
    bool lost; /* the file is there and has not got the object */
};

struct mc_get_key {
    struct mc_store_item *item;
    const struct mc_slice *slices; /* the item's, or `made` */
    size_t slice_count;
    struct mc_slice made;          /* by the item's allocate */
    struct mc_store_range *ranges; /* NULL = the whole object into the slices */
    size_t range_count;
    struct mc_ops_lease *session; /* NULL = none */
    struct mc_str key;
    struct mw_replica_list list;
    const struct mw_replica *replica; /* being read; NULL = choose. Of a striped one the first */
    size_t replica_index;
    uint8_t *chosen;  /* of a striped one: where each stripe is read, by its place in the list */
    uint64_t tried;   /* bit per replica of `list` that failed, */
    uint64_t damaged; /* and that gave other bytes than were written */
    uint64_t object_size;
    uint64_t version;       /* 0 = the master was not asked for it */
    uint64_t striped_bytes; /* object_size when the object is striped, else 0 */
    unsigned stripes;       /* of each copy then, else 0 */
    uint64_t size;          /* of the stream: the object, or its ranges */
    uint64_t offset;        /* bytes read so far, from `replica`, under one unbroken lease */
    uint64_t round_bytes;   /* asked for in this round */
    uint64_t lease_end_ns;
    uint64_t renew_at_ns;
    unsigned attempts;
    enum mc_status failure;    /* of the last attempt */
    struct mc_get_disk *disks; /* ops_get_disk.c: where it lies on disk; */
    size_t disk_count;
    size_t disk_next; /* those before it were tried */
    bool damaged_on_disk;
    bool done;
};

struct mc_get_owner { /* whose a move is: a key of the chunk, and a replica in its list */
    uint32_t key;
    uint32_t replica;
};

struct mc_get_chunk {
    struct mc_ops *ops;
    struct mc_ops_call *call;
    struct mc_get_key *keys;
    size_t count;
    bool own; /* asks the master in words of ours: some object is striped, or there is a cache */
    uint64_t deadline_ns;
    struct mc_port_move *moves; /* of the round */
    struct mc_get_owner *owners;
    size_t move_count;
    size_t move_capacity;
};

void mc_get_finish(struct mc_get_key *key, enum mc_status status);
/* What a failure is called: damage that was seen is not hidden by a copy that cannot be read. */
enum mc_status mc_get_why(const struct mc_get_key *key, enum mc_status status);

/* ---- the stream of a key: ops_get_stream.c ---- */

size_t mc_get_piece_count(const struct mc_get_key *key);
/* Piece i of the stream, which begins there at `begin`. */
struct mc_store_range mc_get_piece(const struct mc_get_key *key, size_t i, uint64_t begin);
/* The object's size is known: how long is the stream of ranges? */
enum mc_status mc_get_measure_ranges(struct mc_get_key *key);
/* The stream is the object from its first byte to its last; *slices describes it. */
bool mc_get_is_whole(struct mc_ops_call *call, const struct mc_get_key *key,
                     const struct mc_slice **slices);
uint64_t mc_get_capacity(const struct mc_get_key *key);
/* The size is known: memory for callers who could not give it before. */
enum mc_status mc_get_make_room(struct mc_get_key *key);

/* There is a checksum to compare the key's bytes with, which *slices describes: not of a part of an
 * object, and not in device memory. */
bool mc_get_is_checked(const struct mc_get_chunk *chunk, const struct mc_get_key *key,
                       const struct mc_slice **slices);
/* Whether that checksum says so. */
bool mc_get_is_damaged(const struct mc_get_chunk *chunk, const struct mc_get_key *key);

/* ops_get_mend.c: the checksum says that the bytes of a striped object are damaged; takes what is
 * damaged from other copies. True when the caller has the object's bytes now, read under the lease.
 */
bool mc_get_mend(struct mc_get_chunk *chunk, struct mc_get_key *key);

/* The master's answer about a key, in whichever words. */
struct mc_get_answer {
    enum mc_status status;
    struct mw_replica_list list;
    uint64_t striped_bytes, version;
    unsigned stripes;
    uint64_t asked_ns, answered_ns;
};

/* ops_get_hot.c: this client's copies of remote objects; without a cache no effect. The key was
 * looked up; it is done when there is a copy of the very version. */
void mc_get_from_hot(struct mc_get_chunk *chunk, struct mc_get_key *key);
/* The key was read. */
void mc_get_offer_hot(struct mc_get_chunk *chunk, struct mc_get_key *key);
bool mc_get_uses_hot(struct mc_ops *ops);

/* ---- asking the master again ---- */

/* Asks for the keys at index[0..n); mc_get_answer_at() reads the answers. */
MC_MUST_USE enum mc_status mc_get_request(struct mc_get_chunk *chunk, const uint32_t *index,
                                          size_t n, struct mc_vec *answers);
/* The answer to request number i. */
struct mc_get_answer mc_get_answer_at(const struct mc_get_chunk *chunk,
                                      const struct mc_vec *answers, size_t i, uint64_t answered_ns);
/* The answer to the renewal of a session's lease; ends the key when nothing is left to read. */
void mc_get_session_renewed(struct mc_get_key *key, const struct mc_get_answer *answer);

/* What was read is not the object any more: the key begins again with this answer, a bounded number
 * of times. It is not done when memory has it now. */
void mc_get_again(struct mc_get_chunk *chunk, struct mc_get_key *key,
                  const struct mc_get_answer *answer);

/* ops_get_disk.c: what no memory could give. False when all keys are done; else some have begun
 * again, in memory. */
bool mc_get_from_disks(struct mc_get_chunk *chunk);
/* Where the key lies on disk: copied, for the answer's strings do not live as long as the chunk. */
void mc_get_note_disks(struct mc_get_chunk *chunk, struct mc_get_key *key);

#endif
