/*
 * Get: GetReplicaList (which takes a lease), choose the nearest replica, move, check the lease
 * after the last byte, verify the checksum; on a failure go on with the next replica.
 *
 * A chunk of a batch is read in rounds. A round moves at most round_bytes, taken from as many keys
 * as they fill, so large objects are read in pieces and small ones together; before each round the
 * leases that are half used are renewed in one RPC. A key whose renewal was answered after its old
 * lease had ended begins again at byte 0: what it had read may be somebody else's bytes. Rounds are
 * bounded: each one moves bytes, uses up one of a key's attempts, or ends the chunk.
 *
 * A striped object is read from one copy of each stripe. When one fails, the next copy of that
 * stripe takes its place, and what was read stays: it is of the same version, under one lease. When
 * the checksum finds damage, the damaged stripes are found by comparing copies (ops_get_mend.c).
 *
 * Reading parts of objects is the same: a key's stream of bytes is then not the object but the
 * caller's ranges, one after the other. A read of a session differs in that it brings the lease and
 * the replicas with it and may not go on without them.
 */
#include "client/ops_get.h"

#include "base/log.h"
#include "client/checksum.h"
#include "client/session.h"

#define ROUND_BYTES  (64u << 20)
#define KEY_ATTEMPTS 8 /* replicas tried and beginnings at byte 0, together */

void mc_get_finish(struct mc_get_key *key, enum mc_status status) {
    key->done = true;
    key->item->status = status;
}

enum mc_status mc_get_why(const struct mc_get_key *key, enum mc_status status) {
    return key->damaged != 0 || key->damaged_on_disk ? MC_CHECKSUM_MISMATCH : status;
}

/* Chooses again. */
static void go_elsewhere(struct mc_get_key *key, enum mc_status why) {
    key->replica = NULL;
    key->failure = mc_get_why(key, why);
    if (++key->attempts >= KEY_ATTEMPTS) {
        mc_get_finish(key, key->failure);
    }
}

/* Forgets what was read and the replica it came from. */
static void start_over(struct mc_get_key *key, enum mc_status why) {
    key->offset = 0;
    go_elsewhere(key, why);
}

/* ---- asking the master ---- */

void mc_ops_lease_taken(struct mc_ops_lease *lease, uint64_t asked_ns) {
    uint64_t ttl_ns = mc_min_u64(lease->list.lease_ttl_ms, UINT32_MAX) * MC_MS;
    lease->end_ns = asked_ns + ttl_ns;
    lease->renew_at_ns = asked_ns + ttl_ns / 2;
}

static void take_lease(struct mc_get_key *key, uint64_t ttl_ms, uint64_t asked_ns) {
    struct mc_ops_lease lease = {.list = {.lease_ttl_ms = ttl_ms}};
    mc_ops_lease_taken(&lease, asked_ns);
    key->lease_end_ns = lease.end_ns;
    key->renew_at_ns = lease.renew_at_ns;
}

/* The replicas are known: how large is the object, and does it fit? */
static void list_known(struct mc_get_key *key) {
    const struct mw_replica *replica = key->list.replicas.items;
    for (size_t i = 0; i < key->list.replicas.count; i++) {
        if (mc_ops_replica_readable(&replica[i])) {
            key->object_size =
                key->stripes > 0 ? key->striped_bytes : mc_ops_replica_size(&replica[i]);
        }
    }
    if (!mc_ops_readable(&key->list.replicas, key->stripes)) {
        /* on disk only, or on nodes that are leaving */
        mc_get_finish(key, key->list.replicas.count > 0 ? MC_INVALID_REPLICA : MC_OBJECT_NOT_FOUND);
        return;
    }
    enum mc_status fits = MC_OK;
    if (key->ranges != NULL) {
        fits = mc_get_measure_ranges(key);
    } else {
        key->size = key->object_size;
        fits = mc_get_make_room(key);
        if (fits == MC_OK && key->size > mc_get_capacity(key)) {
            fits = MC_BUFFER_OVERFLOW;
        }
    }
    key->item->length = key->size;
    if (fits != MC_OK) {
        mc_get_finish(key, fits);
    } else if (key->size == 0) { /* ours stores none, but a loop must not depend on that */
        mc_get_finish(key, MC_OK);
    }
}

static void first_answer(struct mc_get_chunk *chunk, struct mc_get_key *key,
                         const struct mc_get_answer *answer) {
    if (answer->status != MC_OK) {
        mc_get_finish(key, answer->status);
        return;
    }
    key->list = answer->list;
    key->striped_bytes = answer->striped_bytes;
    if (answer->stripes > key->stripes) {
        key->chosen = mc_arena_alloc(&chunk->call->arena, answer->stripes);
    }
    key->stripes = answer->stripes;
    take_lease(key, answer->list.lease_ttl_ms, answer->asked_ns);
    list_known(key);
}

void mc_get_again(struct mc_get_chunk *chunk, struct mc_get_key *key,
                  const struct mc_get_answer *answer) {
    key->done = false;
    key->tried = key->damaged = 0;
    key->damaged_on_disk = false;
    for (size_t i = 0; i < key->range_count; i++) {
        key->ranges[i].status = MC_OK;
    }
    start_over(key, MC_TRANSFER_FAIL);
    if (!key->done) {
        key->version = answer->version;
        first_answer(chunk, key, answer);
        mc_get_note_disks(chunk, key);
    }
}

static bool same_place(const struct mw_replica *a, const struct mw_replica *b) {
    return a->id == b->id && mc_ops_replica_readable(b) && a->memory.address == b->memory.address &&
           a->memory.size == b->memory.size && mc_str_eq(a->memory.endpoint, b->memory.endpoint);
}

/* What was read so far is of the object that the list is of, and can be gone on with; *index = at
 * which replica, unless the object is striped: its version says it, wherever the stripes are now.
 */
static bool goes_on(const struct mc_get_key *key, const struct mc_get_answer *answer,
                    size_t *index) {
    *index = 0;
    bool same = answer->version == key->version || key->version == 0; /* 0: nobody had asked */
    if (!same || answer->stripes != key->stripes || answer->striped_bytes != key->striped_bytes) {
        return false;
    }
    const struct mw_replica *now = answer->list.replicas.items;
    for (size_t i = 0; key->stripes == 0 && i < answer->list.replicas.count && i < 64; i++) {
        if (same_place(key->replica, &now[i])) {
            *index = i;
            return true;
        }
    }
    return key->stripes > 0 && mc_ops_readable(&answer->list.replicas, key->stripes);
}

/* The bits of a mask of replicas for the same replicas in another list. */
static uint64_t carry(const struct mc_get_key *key, uint64_t mask, const struct mc_vec *list) {
    const struct mw_replica *old = key->list.replicas.items;
    const struct mw_replica *replica = list->items;
    uint64_t out = 0;
    for (size_t i = 0; i < key->list.replicas.count && i < 64 && mask >> i != 0; i++) {
        for (size_t j = 0; (mask >> i & 1) != 0 && j < list->count && j < 64; j++) {
            out |= (uint64_t)(old[i].id == replica[j].id) << j;
        }
    }
    return out;
}

/* The list still names the replica. That of a disk is known by its id: the bytes under it do not
 * change. */
static bool named_in(const struct mw_replica *mine, const struct mc_vec *list) {
    const struct mw_replica *named = list->items;
    for (size_t i = 0; i < list->count; i++) {
        if (mc_ops_replica_readable(mine)
                ? same_place(mine, &named[i])
                : mine->id == named[i].id && mine->tag == named[i].tag &&
                      mine->status == MC_REPLICA_COMPLETE && named[i].status == mine->status) {
            return true;
        }
    }
    return false;
}

/* A session's replicas stay those that it began with, less what the master does not name any more:
 * no lease is on that. Memory that was without a lease for a moment may be another object's now. */
void mc_get_session_renewed(struct mc_get_key *key, const struct mc_get_answer *answer) {
    struct mw_replica *mine = key->list.replicas.items; /* the session's own copy */
    bool unbroken = answer->answered_ns < key->lease_end_ns;
    size_t left = 0;
    for (size_t i = 0; i < key->list.replicas.count; i++) {
        bool still = answer->status == MC_OK && (unbroken || mine[i].tag != MW_TAG_MEMORY) &&
                     named_in(&mine[i], &answer->list.replicas);
        mine[i].status = still ? mine[i].status : MC_REPLICA_REMOVED;
        left += still;
    }
    if (left == 0 || (key->stripes > 0 && !mc_ops_readable(&key->list.replicas, key->stripes))) {
        mc_get_finish(key, MC_LEASE_EXPIRED);
        return;
    }
    take_lease(key, answer->list.lease_ttl_ms, answer->asked_ns);
    if (key->stripes > 0) {
        key->replica = NULL; /* of those that are left */
    } else if (key->replica != NULL && !mc_ops_replica_readable(key->replica)) {
        key->tried |= 1ull << key->replica_index;
        start_over(key, MC_TRANSFER_FAIL);
    }
}

/* The answer to a renewal. When it came decides whether the old lease still held when the new one
 * began. */
static void renewed(struct mc_get_chunk *chunk, struct mc_get_key *key,
                    const struct mc_get_answer *answer) {
    if (key->session != NULL) {
        mc_get_session_renewed(key, answer);
        return;
    }
    if (answer->status != MC_OK) {
        mc_get_finish(key, answer->status);
        return;
    }
    size_t index;
    bool on =
        key->offset > 0 && answer->answered_ns < key->lease_end_ns && goes_on(key, answer, &index);
    key->tried = carry(key, key->tried, &answer->list.replicas);
    key->damaged = carry(key, key->damaged, &answer->list.replicas);
    key->version = answer->version;
    if (on) {
        key->list = answer->list;
        key->replica =
            key->stripes > 0 ? NULL : (const struct mw_replica *)key->list.replicas.items + index;
        key->replica_index = index;
        take_lease(key, answer->list.lease_ttl_ms, answer->asked_ns);
        return;
    }
    if (key->offset > 0) {
        start_over(key, MC_LEASE_EXPIRED);
    }
    if (!key->done) {
        key->replica = NULL;
        first_answer(chunk, key, answer);
    }
}

/* Some object is not for those who do not know of stripes. */
static bool names_stripes(const struct mc_vec *answers) {
    bool found = false;
    for (size_t i = 0; i < answers->count; i++) {
        found = found || ((const struct mw_e_list *)answers->items)[i].error == MC_NOT_SUPPORTED;
    }
    return found;
}

/* In upstream's words. */
static enum mc_status request_plainly(struct mc_get_chunk *chunk, struct mc_str *names, size_t n,
                                      struct mc_vec *answers) {
    struct mc_ops *ops = chunk->ops;
    if (n > 1) {
        struct mw_a_keys args = {.keys = {names, n}, .tenant = ops->tenant};
        return mc_ops_rpc_batch(ops, chunk->call, MC_RPC_BatchGetReplicaList, &args, answers, n,
                                chunk->deadline_ns, MC_OPS_IDEMPOTENT);
    }
    struct mw_a_key args = {.key = names[0], .tenant = ops->tenant};
    struct mw_e_list *single = mc_arena_alloc(&chunk->call->arena, sizeof(*single));
    *answers = (struct mc_vec){single, 1};
    return mc_ops_rpc(ops, chunk->call, MC_RPC_GetReplicaList, &args, single, chunk->deadline_ns,
                      MC_OPS_IDEMPOTENT);
}

static void keep_list(struct mc_get_chunk *chunk, struct mc_get_key *key) {
    mc_session_copy_list(&chunk->call->arena, &key->list, &key->list);
    if (key->replica != NULL) {
        key->replica = (const struct mw_replica *)key->list.replicas.items + key->replica_index;
    }
}

enum mc_status mc_get_request(struct mc_get_chunk *chunk, const uint32_t *index, size_t n,
                              struct mc_vec *answers) {
    struct mc_str *names = mc_arena_alloc(&chunk->call->arena, n * sizeof(*names));
    for (size_t i = 0; i < n; i++) {
        names[i] = chunk->keys[index[i]].key;
    }
    if (!chunk->own) {
        MC_TRY(request_plainly(chunk, names, n, answers));
        chunk->own = names_stripes(answers);
        if (!chunk->own) {
            return MC_OK;
        }
        for (size_t i = 0; i < n; i++) { /* the next answer takes the place of the one before */
            keep_list(chunk, &chunk->keys[index[i]]);
        }
    }
    return mc_ops_get_objects(chunk->ops, chunk->call, names, n, chunk->deadline_ns, answers);
}

struct mc_get_answer mc_get_answer_at(const struct mc_get_chunk *chunk,
                                      const struct mc_vec *answers, size_t i,
                                      uint64_t answered_ns) {
    struct mc_get_answer out = {.asked_ns = chunk->call->asked_ns, .answered_ns = answered_ns};
    if (!chunk->own) {
        const struct mw_e_list *list = (const struct mw_e_list *)answers->items + i;
        out.status = mc_ops_status(list->error);
        out.list = list->value;
        return out;
    }
    const struct mw_e_object *object = (const struct mw_e_object *)answers->items + i;
    out.status = mc_ops_status(object->error);
    if (out.status == MC_OK) {
        out.status = mc_ops_object_stripes(&object->value, &out.stripes);
        out.list = object->value.list;
        out.striped_bytes = out.stripes > 0 ? object->value.size : 0;
        out.version = object->value.version;
    }
    return out;
}

/* Asks for the keys at index[0..n). `first` = not a renewal. */
static void ask(struct mc_get_chunk *chunk, const uint32_t *index, size_t n, bool first) {
    struct mc_vec answers = {0};
    enum mc_status status = mc_get_request(chunk, index, n, &answers);
    if (first && status == MC_NOT_SUPPORTED && chunk->own) {
        mc_ops_master_refused(chunk->ops, "the hot cache is off, as no versions are told");
        chunk->own = false;
        status = mc_get_request(chunk, index, n, &answers);
    }
    uint64_t answered = mc_ops_now(chunk->ops);
    for (size_t i = 0; i < n; i++) {
        struct mc_get_key *key = &chunk->keys[index[i]];
        if (status != MC_OK) {
            mc_get_finish(key, status);
            continue;
        }
        struct mc_get_answer answer = mc_get_answer_at(chunk, &answers, i, answered);
        if (first) {
            key->version = answer.version;
            first_answer(chunk, key, &answer);
            mc_get_note_disks(chunk, key);
            mc_get_from_hot(chunk, key);
        } else {
            renewed(chunk, key, &answer);
            mc_get_note_disks(chunk, key);
        }
    }
}

/* Renews all leases of the chunk when one is half used: the answer replaces every list that the old
 * answer holds. */
static void renew(struct mc_get_chunk *chunk) {
    uint64_t now = mc_ops_now(chunk->ops);
    uint32_t *index = mc_arena_alloc(&chunk->call->arena, chunk->count * sizeof(*index));
    size_t n = 0;
    bool due = false;
    for (size_t i = 0; i < chunk->count; i++) {
        if (!chunk->keys[i].done) {
            index[n++] = (uint32_t)i;
            due = due || now >= chunk->keys[i].renew_at_ns;
        }
    }
    if (due && n > 0) {
        mc_metric_add(&chunk->ops->counters.leases_renewed, (int64_t)n);
        ask(chunk, index, n, false);
    }
}

/* ---- one round ---- */

static void add_move(struct mc_get_chunk *chunk, const struct mc_port_move *move,
                     struct mc_get_owner owner) {
    if (chunk->move_count == chunk->move_capacity) {
        size_t capacity = chunk->move_capacity ? chunk->move_capacity * 2 : chunk->count + 8;
        struct mc_port_move *moves = mc_arena_alloc(&chunk->call->arena, capacity * sizeof(*moves));
        struct mc_get_owner *owners =
            mc_arena_alloc(&chunk->call->arena, capacity * sizeof(*owners));
        if (chunk->move_count > 0) {
            memcpy(moves, chunk->moves, chunk->move_count * sizeof(*moves));
            memcpy(owners, chunk->owners, chunk->move_count * sizeof(*owners));
        }
        chunk->moves = moves;
        chunk->owners = owners;
        chunk->move_capacity = capacity;
    }
    chunk->moves[chunk->move_count] = *move;
    chunk->owners[chunk->move_count++] = owner;
}

/* Asks for bytes [offset, offset + bytes) of the key's stream, cut where its pieces are cut. */
static void add_moves(struct mc_get_chunk *chunk, uint32_t index, uint64_t bytes) {
    struct mc_get_key *key = &chunk->keys[index];
    const struct mw_replica *replicas = key->list.replicas.items;
    uint64_t begin = key->offset;
    uint64_t end = key->offset + bytes;
    uint64_t piece_begin = 0;
    for (size_t i = 0; i < mc_get_piece_count(key) && piece_begin < end; i++) {
        struct mc_store_range part = mc_get_piece(key, i, piece_begin);
        uint64_t piece_end = piece_begin + part.length;
        uint64_t from = mc_max_u64(begin, piece_begin);
        uint64_t to = mc_min_u64(end, piece_end);
        while (from < to) {
            uint64_t skip = from - piece_begin, at = part.offset + skip, length = to - from;
            size_t replica = key->replica_index;
            if (key->stripes > 0) {
                struct mc_ops_run run = mc_ops_stripe_at(key->stripes, at);
                replica = key->chosen[run.stripe];
                at = run.at;
                length = mc_min_u64(length, run.length);
            }
            const struct mw_buffer *memory = &replicas[replica].memory;
            struct mc_port_move move = {.op = MC_TRANSFER_READ,
                                        .local = (char *)part.ptr + skip,
                                        .endpoint = memory->endpoint,
                                        .remote_addr = memory->address + at,
                                        .length = length,
                                        .status = MC_INTERNAL_ERROR};
            add_move(chunk, &move, (struct mc_get_owner){index, (uint32_t)replica});
            from += move.length;
        }
        piece_begin = piece_end;
    }
    key->round_bytes = bytes;
}

/* The replicas of the key that have what number `stripe` has, a bit each. */
static uint64_t same_bytes(const struct mc_get_key *key, unsigned stripe) {
    uint64_t mask = 0;
    size_t apart = key->stripes > 0 ? key->stripes : 1;
    for (size_t i = stripe; i < key->list.replicas.count && i < 64; i += apart) {
        mask |= 1ull << i;
    }
    return mask;
}

/* True when another replica could still be read, so that this one must not use up all the time. */
static bool has_alternative(const struct mc_get_key *key) {
    const struct mw_replica *replica = key->list.replicas.items;
    for (unsigned stripe = 0; stripe == 0 || stripe < key->stripes; stripe++) {
        uint64_t left = same_bytes(key, stripe) & ~key->tried;
        left &= ~(1ull << (key->stripes > 0 ? key->chosen[stripe] : key->replica_index));
        while (left != 0 && !mc_ops_replica_readable(&replica[__builtin_ctzll(left)])) {
            left &= left - 1;
        }
        if (left == 0) {
            return false;
        }
    }
    return true;
}

/* The replica to read, or one for each stripe; false when the key has come to its end. */
static bool choose(struct mc_get_chunk *chunk, struct mc_get_key *key) {
    for (unsigned i = key->stripes; i-- > 0;) {
        key->replica = mc_ops_choose(chunk->ops, &key->list, key->tried | ~same_bytes(key, i),
                                     &key->replica_index);
        if (key->replica == NULL) {
            mc_get_finish(key, key->failure);
            return false;
        }
        key->chosen[i] = (uint8_t)key->replica_index;
    }
    if (key->stripes > 0) {
        return true;
    }
    key->replica = mc_ops_choose(chunk->ops, &key->list, key->tried, &key->replica_index);
    if (key->replica == NULL) {
        mc_get_finish(key, key->failure);
        return false;
    }
    if (mc_ops_replica_size(key->replica) != key->object_size) {
        mc_get_finish(key, MC_INVALID_REPLICA); /* replicas that differ */
        return false;
    }
    return true;
}

/* Fills the round; false when every key was done before.
 * *alternative: some key could go elsewhere. */
static bool gather(struct mc_get_chunk *chunk, bool *alternative) {
    uint64_t budget = chunk->ops->round_bytes;
    bool pending = false;
    chunk->move_count = 0;
    *alternative = false;
    for (size_t i = 0; i < chunk->count; i++) {
        struct mc_get_key *key = &chunk->keys[i];
        key->round_bytes = 0;
        pending = pending || !key->done;
        if (key->done || budget == 0) {
            continue;
        }
        if (key->replica == NULL && !choose(chunk, key)) {
            continue;
        }
        uint64_t bytes = mc_min_u64(key->size - key->offset, budget);
        budget -= bytes;
        add_moves(chunk, (uint32_t)i, bytes);
        *alternative = *alternative || has_alternative(key);
    }
    return pending;
}

bool mc_get_is_checked(const struct mc_get_chunk *chunk, const struct mc_get_key *key,
                       const struct mc_slice **slices) {
    return chunk->ops->checksum && key->list.checksum.has &&
           mc_get_is_whole(chunk->call, key, slices) &&
           mc_checksum_possible(*slices, mc_get_piece_count(key));
}

bool mc_get_is_damaged(const struct mc_get_chunk *chunk, const struct mc_get_key *key) {
    const struct mc_slice *slices;
    return mc_get_is_checked(chunk, key, &slices) &&
           mc_checksum_slices(slices, mc_get_piece_count(key), key->size) !=
               key->list.checksum.value;
}

/* All bytes are here: do they belong to the object? */
static void verify(struct mc_get_chunk *chunk, struct mc_get_key *key, uint64_t now) {
    struct mc_ops *ops = chunk->ops;
    if (now >= key->lease_end_ns) {
        mc_metric_add(&ops->counters.leases_expired, 1);
        mc_warn_limited("the lease ended before the read did: key=%.*s bytes=%llu late_ms=%llu",
                        (int)key->key.len, key->key.ptr, (unsigned long long)key->size,
                        (unsigned long long)((now - key->lease_end_ns) / MC_MS));
        mc_get_finish(key, MC_LEASE_EXPIRED);
        return;
    }
    if (mc_get_is_damaged(chunk, key)) {
        mc_metric_add(&ops->counters.checksum_mismatches, 1);
        mc_error("the bytes read are not the bytes written: key=%.*s replica=%llu endpoint=%.*s",
                 (int)key->key.len, key->key.ptr, (unsigned long long)key->replica->id,
                 (int)key->replica->memory.endpoint.len, key->replica->memory.endpoint.ptr);
        if (!mc_get_mend(chunk, key)) {
            uint64_t read = 1ull << key->replica_index;
            for (unsigned i = 0; i < key->stripes; i++) { /* nobody knows which */
                read |= 1ull << key->chosen[i];
            }
            key->tried |= read;
            key->damaged |= read;
            start_over(key, MC_CHECKSUM_MISMATCH);
            return;
        }
    }
    mc_get_offer_hot(chunk, key);
    mc_get_finish(key, MC_OK);
}

static void move_failed(struct mc_get_chunk *chunk, struct mc_get_key *key,
                        const struct mc_port_move *move) {
    mc_metric_add(&chunk->ops->counters.failovers, 1);
    mc_warn_limited("a replica could not be read: key=%.*s endpoint=%.*s status=%s",
                    (int)key->key.len, key->key.ptr, (int)move->endpoint.len, move->endpoint.ptr,
                    mc_status_name(move->status));
    key->round_bytes = 0;
    if (key->stripes > 0) {
        go_elsewhere(key, MC_TRANSFER_FAIL);
    } else {
        start_over(key, MC_TRANSFER_FAIL);
    }
}

static void run_round(struct mc_get_chunk *chunk, bool alternative) {
    struct mc_port *port = chunk->ops->port;
    uint64_t now = mc_ops_now(chunk->ops);
    uint64_t left = chunk->deadline_ns > now ? chunk->deadline_ns - now : 0;
    port->ops->move(port, chunk->moves, chunk->move_count, now + (alternative ? left / 2 : left));
    for (size_t i = 0; i < chunk->move_count; i++) {
        const struct mc_get_owner *owner = &chunk->owners[i];
        struct mc_get_key *key = &chunk->keys[owner->key];
        if (chunk->moves[i].status == MC_OK) {
            continue;
        }
        key->tried |= 1ull << owner->replica;
        if (key->round_bytes > 0) {
            move_failed(chunk, key, &chunk->moves[i]);
        }
    }
    now = mc_ops_now(chunk->ops);
    for (size_t i = 0; i < chunk->count; i++) {
        struct mc_get_key *key = &chunk->keys[i];
        if (key->done || key->round_bytes == 0) {
            continue;
        }
        key->offset += key->round_bytes;
        if (key->offset == key->size) {
            verify(chunk, key, now);
        }
    }
}

static void read_chunk(struct mc_get_chunk *chunk) {
    bool alternative;
    while (gather(chunk, &alternative)) {
        if (chunk->move_count > 0) {
            run_round(chunk, alternative);
        }
        if (mc_ops_now(chunk->ops) >= chunk->deadline_ns) {
            for (size_t i = 0; i < chunk->count; i++) {
                if (!chunk->keys[i].done) {
                    mc_get_finish(&chunk->keys[i], mc_get_why(&chunk->keys[i], MC_TRANSFER_FAIL));
                }
            }
            return;
        }
        renew(chunk);
    }
}

/* ---- the batch ---- */

/* What the caller asked for; `ranges` and `leases`, when not NULL, have one entry an item. */
struct get_request {
    struct mc_store_item *items;
    struct mc_store_range_item *ranges;
    struct mc_ops_lease *leases;
    size_t count;
};

/* Looks at item i of the request; false when it cannot be read, which its status says. */
static bool take_item(const struct get_request *request, size_t i, struct mc_get_key *key) {
    struct mc_store_item *item = &request->items[i];
    *key = (struct mc_get_key){.item = item,
                               .slices = item->slices,
                               .slice_count = item->slice_count,
                               .failure = MC_TRANSFER_FAIL};
    item->length = 0;
    item->status = mc_ops_key(item->key, &key->key);
    if (request->ranges != NULL) {
        key->ranges = request->ranges[i].ranges;
        key->range_count = request->ranges[i].range_count;
    }
    for (size_t n = 0; n < key->range_count; n++) {
        key->ranges[n].status = MC_OK;
    }
    for (size_t n = 0; n < mc_get_piece_count(key) && item->status == MC_OK; n++) {
        struct mc_store_range part = mc_get_piece(key, n, 0);
        if (part.ptr == NULL && part.length > 0) {
            item->status = MC_INVALID_PARAMS;
        }
    }
    if (request->leases != NULL) {
        key->session = &request->leases[i];
        key->list = key->session->list;
        key->striped_bytes = key->session->striped_bytes;
        key->stripes = key->session->stripes;
        key->lease_end_ns = key->session->end_ns;
        key->renew_at_ns = key->session->renew_at_ns;
    }
    return item->status == MC_OK;
}

/* Takes items from number `first` on until a bound of one chunk is reached; returns how many it
 * looked at. */
static size_t take_chunk(struct mc_get_chunk *chunk, const struct get_request *request,
                         size_t first) {
    size_t left = request->count - first;
    size_t limit = left < MC_STORE_BATCH_CHUNK ? left : MC_STORE_BATCH_CHUNK;
    size_t key_bytes = 0;
    size_t i = 0;
    chunk->keys = mc_arena_alloc(&chunk->call->arena, limit * sizeof(*chunk->keys));
    chunk->count = 0;
    chunk->own = false;
    chunk->moves = NULL;
    chunk->owners = NULL;
    chunk->move_capacity = 0;
    for (; i < limit; i++) {
        struct mc_get_key key;
        if (!take_item(request, first + i, &key)) {
            continue;
        }
        key_bytes += key.key.len;
        if (chunk->count > 0 && key_bytes > OPS_CHUNK_KEY_BYTES) {
            break;
        }
        chunk->keys[chunk->count++] = key;
    }
    return i;
}

static void count_results(struct mc_get_chunk *chunk) {
    uint64_t bytes = 0;
    int64_t failures = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        bool ok = chunk->keys[i].item->status == MC_OK;
        failures += !ok;
        bytes += ok ? chunk->keys[i].size : 0;
    }
    mc_metric_add(&chunk->ops->counters.gets, (int64_t)chunk->count);
    mc_metric_add(&chunk->ops->counters.get_failures, failures);
    mc_metric_add(&chunk->ops->counters.read_bytes, (int64_t)bytes);
}

static void ask_all(struct mc_get_chunk *chunk) {
    uint32_t *all = mc_arena_alloc(&chunk->call->arena, chunk->count * sizeof(*all));
    for (size_t i = 0; i < chunk->count; i++) {
        all[i] = (uint32_t)i;
    }
    chunk->own = mc_get_uses_hot(chunk->ops);
    ask(chunk, all, chunk->count, true);
}

/* The keys come with a lease; renews it when it wants that. */
static void begin_sessions(struct mc_get_chunk *chunk) {
    for (size_t i = 0; i < chunk->count; i++) {
        struct mc_get_key *key = &chunk->keys[i];
        if (mc_ops_now(chunk->ops) >= key->lease_end_ns) {
            mc_get_finish(key, MC_LEASE_EXPIRED);
        } else {
            list_known(key);
            mc_get_note_disks(chunk, key);
        }
        chunk->own = chunk->own || key->stripes > 0;
        key->chosen = mc_arena_alloc(&chunk->call->arena, key->stripes + 1u);
    }
    renew(chunk);
}

static void end_sessions(struct mc_get_chunk *chunk) {
    for (size_t i = 0; i < chunk->count; i++) {
        chunk->keys[i].session->end_ns = chunk->keys[i].lease_end_ns;
        chunk->keys[i].session->renew_at_ns = chunk->keys[i].renew_at_ns;
    }
}

static void read_request(struct mc_ops *ops, const struct get_request *request) {
    struct mc_get_chunk chunk = {.ops = ops, .call = mc_ops_begin(ops)};
    for (size_t done = 0; done < request->count;) {
        done += take_chunk(&chunk, request, done);
        if (chunk.count > 0) {
            chunk.deadline_ns = mc_ops_deadline(ops);
            if (request->leases != NULL) {
                begin_sessions(&chunk);
            } else {
                ask_all(&chunk);
            }
            do {
                read_chunk(&chunk);
            } while (mc_get_from_disks(&chunk));
            if (request->leases != NULL) {
                end_sessions(&chunk);
            }
            count_results(&chunk);
        }
        mc_arena_reset(&chunk.call->arena);
    }
    mc_ops_end(ops, chunk.call);
}

enum mc_status mc_ops_get(struct mc_ops *ops, struct mc_store_item *items, size_t count) {
    if (count > 0 && items == NULL) {
        return MC_INVALID_PARAMS;
    }
    read_request(ops, &(struct get_request){.items = items, .count = count});
    return MC_OK;
}

void mc_ops_read_ranges(struct mc_ops *ops, struct mc_store_range_item *ranges, size_t count,
                        struct mc_ops_lease *leases) {
    struct mc_store_item *items = mc_alloc((count + 1) * sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct mc_store_item){.key = ranges[i].key};
    }
    read_request(ops, &(struct get_request){items, ranges, leases, count});
    for (size_t i = 0; i < count; i++) {
        ranges[i].status = items[i].status;
        ranges[i].length = items[i].status == MC_OK ? items[i].length : 0;
        for (size_t n = 0; n < ranges[i].range_count && items[i].status != MC_OK; n++) {
            ranges[i].ranges[n].status = items[i].status;
        }
    }
    free(items);
}

enum mc_status mc_ops_get_ranges(struct mc_ops *ops, struct mc_store_range_item *items,
                                 size_t count) {
    if (count > 0 && items == NULL) {
        return MC_INVALID_PARAMS;
    }
    mc_ops_read_ranges(ops, items, count, NULL);
    return MC_OK;
}
