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
 * Reading parts of objects is the same: a key's stream of bytes is then not the object but the
 * caller's ranges, one after the other. A read of a session differs in that it brings the lease and
 * the replicas with it and may not go on without them.
 */
#include "client/ops_internal.h"

#include "base/log.h"
#include "client/checksum.h"

#define ROUND_BYTES  (64u << 20)
#define KEY_ATTEMPTS 8 /* replicas tried and beginnings at byte 0, together */

struct get_key {
    struct mc_store_item *item;
    const struct mc_slice *slices; /* the item's, or `made` */
    size_t slice_count;
    struct mc_slice made;          /* by the item's allocate */
    struct mc_store_range *ranges; /* NULL = the whole object into the slices */
    size_t range_count;
    struct mc_ops_lease *session; /* NULL = none */
    struct mc_str key;
    struct mw_replica_list list;
    const struct mw_replica *replica; /* being read; NULL = choose */
    size_t replica_index;
    uint64_t tried; /* bit per replica of `list` that failed */
    uint64_t object_size;
    uint64_t size;        /* of the stream: the object, or its ranges */
    uint64_t offset;      /* bytes read so far, from `replica`, under one unbroken lease */
    uint64_t round_bytes; /* asked for in this round */
    uint64_t lease_end_ns;
    uint64_t renew_at_ns;
    unsigned attempts;
    enum mc_status failure; /* of the last attempt */
    struct mc_str disk;     /* a node that has it on SSD; {NULL, 0} = none */
    struct mc_str file;     /* or the file that has it */
    uint64_t disk_size;
    bool done;
};

struct get_chunk {
    struct mc_ops *ops;
    struct mc_ops_call *call;
    struct get_key *keys;
    size_t count;
    uint64_t deadline_ns;
    struct mc_port_move *moves; /* of the round */
    uint32_t *owners;
    size_t move_count;
    size_t move_capacity;
};

static void finish(struct get_key *key, enum mc_status status) {
    key->done = true;
    key->item->status = status;
}

/* Forgets what was read and the replica it came from. */
static void start_over(struct get_key *key, enum mc_status why) {
    key->offset = 0;
    key->replica = NULL;
    key->failure = why;
    if (++key->attempts >= KEY_ATTEMPTS) {
        finish(key, why);
    }
}

/* ---- the stream of a key ---- */

static size_t piece_count(const struct get_key *key) {
    return key->ranges != NULL ? key->range_count : key->slice_count;
}

/* Piece i of the stream, which begins there at `begin`. */
static struct mc_store_range piece(const struct get_key *key, size_t i, uint64_t begin) {
    if (key->ranges == NULL) {
        const struct mc_slice *slice = &key->slices[i];
        return (struct mc_store_range){slice->ptr, slice->length, begin, MC_OK};
    }
    struct mc_store_range range = key->ranges[i];
    range.length = range.status == MC_OK ? range.length : 0;
    return range;
}

/* The object's size is known: how long is the stream of ranges? Those that leave the object are not
 * part of it. */
static enum mc_status measure_ranges(struct get_key *key) {
    bool all = true;
    key->size = 0;
    for (size_t i = 0; i < key->range_count; i++) {
        struct mc_store_range *range = &key->ranges[i];
        bool inside = mc_range_inside(range->offset, range->length, 0, key->object_size);
        if (!inside || __builtin_add_overflow(key->size, (uint64_t)range->length, &key->size)) {
            range->status = MC_INVALID_PARAMS;
            all = false;
        }
    }
    return all || key->session == NULL ? MC_OK : MC_INVALID_PARAMS;
}

/* The stream is the object from its first byte to its last; *slices describes it. */
static bool is_whole(struct mc_ops_call *call, const struct get_key *key,
                     const struct mc_slice **slices) {
    if (key->ranges == NULL) {
        *slices = key->slices;
        return true;
    }
    struct mc_slice *out = mc_arena_alloc(&call->arena, key->range_count * sizeof(*out));
    uint64_t end = 0;
    for (size_t i = 0; i < key->range_count; i++) {
        const struct mc_store_range *range = &key->ranges[i];
        if (range->status != MC_OK || range->offset != end) {
            return false;
        }
        end += range->length;
        out[i] = (struct mc_slice){range->ptr, range->length};
    }
    *slices = out;
    return end == key->object_size;
}

/* ---- asking the master ---- */

static uint64_t capacity_of(const struct get_key *key) {
    uint64_t total = 0;
    for (size_t i = 0; i < key->slice_count; i++) {
        total += key->slices[i].length;
    }
    return total;
}

/* The size is known: memory for callers who could not give it before. */
static enum mc_status make_room(struct get_key *key) {
    struct mc_store_item *item = key->item;
    if (item->slice_count > 0 || item->allocate == NULL || key->size == 0 ||
        (key->slice_count > 0 && key->made.length == key->size)) {
        return MC_OK;
    }
    key->made = (struct mc_slice){item->allocate(item->allocate_ctx, key->size), key->size};
    if (key->made.ptr == NULL) {
        return MC_ERR_NO_MEMORY;
    }
    key->slices = &key->made;
    key->slice_count = 1;
    return MC_OK;
}

void mc_ops_lease_taken(struct mc_ops_lease *lease, uint64_t asked_ns) {
    uint64_t ttl_ns = mc_min_u64(lease->list.lease_ttl_ms, UINT32_MAX) * MC_MS;
    lease->end_ns = asked_ns + ttl_ns;
    lease->renew_at_ns = asked_ns + ttl_ns / 2;
}

static void take_lease(struct get_key *key, uint64_t ttl_ms, uint64_t asked_ns) {
    struct mc_ops_lease lease = {.list = {.lease_ttl_ms = ttl_ms}};
    mc_ops_lease_taken(&lease, asked_ns);
    key->lease_end_ns = lease.end_ns;
    key->renew_at_ns = lease.renew_at_ns;
}

/* The replicas are known: how large is the object, and does it fit? */
static void list_known(struct get_key *key) {
    const struct mw_replica *replica = key->list.replicas.items;
    size_t readable = 0;
    for (size_t i = 0; i < key->list.replicas.count; i++) {
        if (mc_ops_replica_readable(&replica[i])) {
            key->object_size = mc_ops_replica_size(&replica[i]);
            readable++;
        }
    }
    if (readable == 0) { /* on disk only, or on nodes that are leaving */
        finish(key, key->list.replicas.count > 0 ? MC_INVALID_REPLICA : MC_OBJECT_NOT_FOUND);
        return;
    }
    enum mc_status fits = MC_OK;
    if (key->ranges != NULL) {
        fits = measure_ranges(key);
    } else {
        key->size = key->object_size;
        fits = make_room(key);
        if (fits == MC_OK && key->size > capacity_of(key)) {
            fits = MC_BUFFER_OVERFLOW;
        }
    }
    key->item->length = key->size;
    if (fits != MC_OK) {
        finish(key, fits);
    } else if (key->size == 0) { /* ours stores none, but a loop must not depend on that */
        finish(key, MC_OK);
    }
}

static void first_answer(struct get_key *key, const struct mw_e_list *answer, uint64_t asked_ns) {
    if (answer->error != 0) {
        finish(key, mc_ops_status(answer->error));
        return;
    }
    key->list = answer->value;
    take_lease(key, answer->value.lease_ttl_ms, asked_ns);
    list_known(key);
}

static bool same_place(const struct mw_replica *a, const struct mw_replica *b) {
    return a->id == b->id && mc_ops_replica_readable(b) && a->memory.address == b->memory.address &&
           a->memory.size == b->memory.size && mc_str_eq(a->memory.endpoint, b->memory.endpoint);
}

/* The bits of `tried` for the same replicas in another list. */
static uint64_t carry_tried(const struct get_key *key, const struct mc_vec *list) {
    const struct mw_replica *old = key->list.replicas.items;
    const struct mw_replica *replica = list->items;
    uint64_t tried = 0;
    for (size_t i = 0; key->tried >> i != 0 && i < key->list.replicas.count && i < 64; i++) {
        for (size_t j = 0; (key->tried >> i & 1) != 0 && j < list->count && j < 64; j++) {
            tried |= (uint64_t)(old[i].id == replica[j].id) << j;
        }
    }
    return tried;
}

/* The answer to the renewal of a session's lease. Its replicas stay those that it began with, less
 * what the master does not name any more: no lease is on that. */
static void session_renewed(struct get_key *key, const struct mw_e_list *answer, uint64_t asked_ns,
                            uint64_t answered_ns) {
    struct mw_replica *mine = key->list.replicas.items; /* the session's own copy */
    const struct mw_replica *named = answer->value.replicas.items;
    size_t left = 0;
    for (size_t i = 0; i < key->list.replicas.count; i++) {
        bool still = false;
        for (size_t j = 0; answer->error == 0 && j < answer->value.replicas.count && !still; j++) {
            still = mc_ops_replica_readable(&mine[i]) && same_place(&mine[i], &named[j]);
        }
        mine[i].status = still ? mine[i].status : MC_REPLICA_REMOVED;
        left += still;
    }
    if (left == 0 || answered_ns >= key->lease_end_ns) {
        finish(key, MC_LEASE_EXPIRED);
        return;
    }
    take_lease(key, answer->value.lease_ttl_ms, asked_ns);
    if (key->replica != NULL && !mc_ops_replica_readable(key->replica)) {
        key->tried |= 1ull << key->replica_index;
        start_over(key, MC_LEASE_EXPIRED);
    }
}

/* The answer to a renewal. `answered_ns` decides whether the old lease still held when the new one
 * began. */
static void renewed(struct get_key *key, const struct mw_e_list *answer, uint64_t asked_ns,
                    uint64_t answered_ns) {
    const struct mw_replica *replica = answer->value.replicas.items;
    if (key->session != NULL) {
        session_renewed(key, answer, asked_ns, answered_ns);
        return;
    }
    if (answer->error != 0) {
        finish(key, mc_ops_status(answer->error));
        return;
    }
    key->tried = carry_tried(key, &answer->value.replicas);
    for (size_t i = 0; key->offset > 0 && i < answer->value.replicas.count && i < 64; i++) {
        if (answered_ns < key->lease_end_ns && same_place(key->replica, &replica[i])) {
            key->list = answer->value;
            key->replica = &replica[i];
            key->replica_index = i;
            take_lease(key, answer->value.lease_ttl_ms, asked_ns);
            return;
        }
    }
    if (key->offset > 0) {
        start_over(key, MC_LEASE_EXPIRED);
    }
    if (!key->done) {
        key->replica = NULL;
        first_answer(key, answer, asked_ns);
    }
}

/* Who has the key on SSD, or else in which file it is, copied: the answer's strings do not live as
 * long as the chunk. */
static void note_disk(struct get_chunk *chunk, struct get_key *key) {
    const struct mw_replica *replica = key->list.replicas.items;
    for (size_t i = 0; key->disk.len == 0 && i < key->list.replicas.count; i++) {
        if (replica[i].tag == MW_TAG_LOCAL_DISK && replica[i].status == MC_REPLICA_COMPLETE) {
            key->disk = mc_arena_str(&chunk->call->arena, replica[i].local_disk.endpoint);
            key->disk_size = replica[i].local_disk.object_size;
        }
    }
    for (size_t i = 0; key->disk.len + key->file.len == 0 && i < key->list.replicas.count; i++) {
        if (replica[i].tag == MW_TAG_DISK && replica[i].status == MC_REPLICA_COMPLETE &&
            mc_ops_file_allowed(chunk->ops, replica[i].disk.file_path)) {
            key->file = mc_arena_str(&chunk->call->arena, replica[i].disk.file_path);
            key->disk_size = replica[i].disk.object_size;
        }
    }
}

/* Asks for the keys at index[0..n). `first` = not a renewal. */
static void ask(struct get_chunk *chunk, const uint32_t *index, size_t n, bool first) {
    struct mc_ops *ops = chunk->ops;
    struct get_key *keys = chunk->keys;
    struct mw_e_list single;
    struct mc_vec answers = {&single, 1};
    enum mc_status status;
    if (n == 1) {
        struct mw_a_key args = {.key = keys[index[0]].key, .tenant = ops->tenant};
        status = mc_ops_rpc(ops, chunk->call, MC_RPC_GetReplicaList, &args, &single,
                            chunk->deadline_ns, MC_OPS_IDEMPOTENT);
    } else {
        struct mc_str *names = mc_arena_alloc(&chunk->call->arena, n * sizeof(*names));
        for (size_t i = 0; i < n; i++) {
            names[i] = keys[index[i]].key;
        }
        struct mw_a_keys args = {.keys = {names, n}, .tenant = ops->tenant};
        status = mc_ops_rpc_batch(ops, chunk->call, MC_RPC_BatchGetReplicaList, &args, &answers, n,
                                  chunk->deadline_ns, MC_OPS_IDEMPOTENT);
    }
    uint64_t asked = chunk->call->asked_ns;
    uint64_t answered = mc_ops_now(ops);
    for (size_t i = 0; i < n; i++) {
        struct get_key *key = &keys[index[i]];
        if (status != MC_OK) {
            finish(key, status);
        } else if (first) {
            first_answer(key, (const struct mw_e_list *)answers.items + i, asked);
            note_disk(chunk, key);
        } else {
            renewed(key, (const struct mw_e_list *)answers.items + i, asked, answered);
        }
    }
}

/* Renews all leases of the chunk when one is half used: the answer replaces every list that the old
 * answer holds. */
static void renew(struct get_chunk *chunk) {
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

static void add_move(struct get_chunk *chunk, const struct mc_port_move *move, uint32_t owner) {
    if (chunk->move_count == chunk->move_capacity) {
        size_t capacity = chunk->move_capacity ? chunk->move_capacity * 2 : chunk->count + 8;
        struct mc_port_move *moves = mc_arena_alloc(&chunk->call->arena, capacity * sizeof(*moves));
        uint32_t *owners = mc_arena_alloc(&chunk->call->arena, capacity * sizeof(*owners));
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
static void add_moves(struct get_chunk *chunk, uint32_t index, uint64_t bytes) {
    struct get_key *key = &chunk->keys[index];
    uint64_t begin = key->offset;
    uint64_t end = key->offset + bytes;
    uint64_t piece_begin = 0;
    for (size_t i = 0; i < piece_count(key) && piece_begin < end; i++) {
        struct mc_store_range part = piece(key, i, piece_begin);
        uint64_t piece_end = piece_begin + part.length;
        uint64_t from = mc_max_u64(begin, piece_begin);
        uint64_t to = mc_min_u64(end, piece_end);
        if (from < to) {
            uint64_t skip = from - piece_begin;
            struct mc_port_move move = {.op = MC_TRANSFER_READ,
                                        .local = (char *)part.ptr + skip,
                                        .endpoint = key->replica->memory.endpoint,
                                        .remote_addr =
                                            key->replica->memory.address + part.offset + skip,
                                        .length = to - from,
                                        .status = MC_INTERNAL_ERROR};
            add_move(chunk, &move, index);
        }
        piece_begin = piece_end;
    }
    key->round_bytes = bytes;
}

/* True when another replica could still be read, so that this one must not use up all the time. */
static bool has_alternative(const struct get_key *key) {
    const struct mw_replica *replica = key->list.replicas.items;
    for (size_t i = 0; i < key->list.replicas.count && i < 64; i++) {
        if (i != key->replica_index && (key->tried >> i & 1) == 0 &&
            mc_ops_replica_readable(&replica[i])) {
            return true;
        }
    }
    return false;
}

/* Fills the round; false when every key was done before.
 * *alternative: some key could go elsewhere. */
static bool gather(struct get_chunk *chunk, bool *alternative) {
    uint64_t budget = chunk->ops->round_bytes;
    bool pending = false;
    chunk->move_count = 0;
    *alternative = false;
    for (size_t i = 0; i < chunk->count; i++) {
        struct get_key *key = &chunk->keys[i];
        key->round_bytes = 0;
        pending = pending || !key->done;
        if (key->done || budget == 0) {
            continue;
        }
        if (key->replica == NULL) {
            key->replica = mc_ops_choose(chunk->ops, &key->list, key->tried, &key->replica_index);
            if (key->replica == NULL) {
                finish(key, key->failure);
                continue;
            }
            if (mc_ops_replica_size(key->replica) != key->object_size) { /* replicas that differ */
                finish(key, MC_INVALID_REPLICA);
                continue;
            }
        }
        uint64_t bytes = mc_min_u64(key->size - key->offset, budget);
        budget -= bytes;
        add_moves(chunk, (uint32_t)i, bytes);
        *alternative = *alternative || has_alternative(key);
    }
    return pending;
}

/* Whether the checksum says so; without one, of a part of an object, or in device memory, nobody
 * does. */
static bool is_damaged(const struct get_chunk *chunk, const struct get_key *key) {
    const struct mc_slice *slices;
    if (!chunk->ops->checksum || !key->list.checksum.has || !is_whole(chunk->call, key, &slices) ||
        !mc_checksum_possible(slices, piece_count(key)) ||
        mc_checksum_slices(slices, piece_count(key), key->size) == key->list.checksum.value) {
        return false;
    }
    mc_metric_add(&chunk->ops->counters.checksum_mismatches, 1);
    return true;
}

/* All bytes are here: do they belong to the object? */
static void verify(struct get_chunk *chunk, struct get_key *key, uint64_t now) {
    struct mc_ops *ops = chunk->ops;
    if (now >= key->lease_end_ns) {
        mc_metric_add(&ops->counters.leases_expired, 1);
        mc_warn_limited("the lease ended before the read did: key=%.*s bytes=%llu late_ms=%llu",
                        (int)key->key.len, key->key.ptr, (unsigned long long)key->size,
                        (unsigned long long)((now - key->lease_end_ns) / MC_MS));
        finish(key, MC_LEASE_EXPIRED);
        return;
    }
    if (is_damaged(chunk, key)) {
        mc_error("the bytes read are not the bytes written: key=%.*s replica=%llu endpoint=%.*s",
                 (int)key->key.len, key->key.ptr, (unsigned long long)key->replica->id,
                 (int)key->replica->memory.endpoint.len, key->replica->memory.endpoint.ptr);
        key->tried |= 1ull << key->replica_index;
        start_over(key, MC_CHECKSUM_MISMATCH);
        return;
    }
    finish(key, MC_OK);
}

static void move_failed(struct get_chunk *chunk, struct get_key *key, enum mc_status status) {
    mc_metric_add(&chunk->ops->counters.failovers, 1);
    mc_warn_limited("a replica could not be read: key=%.*s endpoint=%.*s status=%s",
                    (int)key->key.len, key->key.ptr, (int)key->replica->memory.endpoint.len,
                    key->replica->memory.endpoint.ptr, mc_status_name(status));
    key->tried |= 1ull << key->replica_index;
    key->round_bytes = 0;
    start_over(key, MC_TRANSFER_FAIL);
}

static void run_round(struct get_chunk *chunk, bool alternative) {
    struct mc_port *port = chunk->ops->port;
    uint64_t now = mc_ops_now(chunk->ops);
    uint64_t left = chunk->deadline_ns > now ? chunk->deadline_ns - now : 0;
    port->ops->move(port, chunk->moves, chunk->move_count, now + (alternative ? left / 2 : left));
    for (size_t i = 0; i < chunk->move_count; i++) {
        struct get_key *key = &chunk->keys[chunk->owners[i]];
        if (chunk->moves[i].status != MC_OK && key->round_bytes > 0) {
            move_failed(chunk, key, chunk->moves[i].status);
        }
    }
    now = mc_ops_now(chunk->ops);
    for (size_t i = 0; i < chunk->count; i++) {
        struct get_key *key = &chunk->keys[i];
        if (key->done || key->round_bytes == 0) {
            continue;
        }
        key->offset += key->round_bytes;
        if (key->offset == key->size) {
            verify(chunk, key, now);
        }
    }
}

static void read_chunk(struct get_chunk *chunk) {
    bool alternative;
    while (gather(chunk, &alternative)) {
        if (chunk->move_count > 0) {
            run_round(chunk, alternative);
        }
        if (mc_ops_now(chunk->ops) >= chunk->deadline_ns) {
            for (size_t i = 0; i < chunk->count; i++) {
                if (!chunk->keys[i].done) {
                    finish(&chunk->keys[i], MC_TRANSFER_FAIL);
                }
            }
            return;
        }
        renew(chunk);
    }
}

/* ---- from SSD ---- */

/* Looks at the key again as one that comes from a disk; false when there is nothing to read. */
static bool prepare_disk(struct get_key *key) {
    enum mc_status why = key->item->status;
    if (!key->done || key->disk.len + key->file.len == 0 ||
        (why != MC_INVALID_REPLICA && why != MC_TRANSFER_FAIL)) {
        return false;
    }
    key->object_size = key->size = key->disk_size;
    enum mc_status fits = key->ranges != NULL ? measure_ranges(key) : make_room(key);
    if (fits == MC_OK && key->ranges == NULL && key->size > capacity_of(key)) {
        fits = MC_BUFFER_OVERFLOW;
    }
    key->item->length = key->size;
    if (fits != MC_OK || key->size == 0) {
        finish(key, fits);
        return false;
    }
    return true;
}

static void describe_disk_read(struct get_chunk *chunk, struct get_key *key,
                               struct mc_ops_disk_read *out) {
    struct mc_store_range *pieces =
        mc_arena_alloc(&chunk->call->arena, (piece_count(key) + 1) * sizeof(*pieces));
    size_t count = 0;
    uint64_t begin = 0;
    for (size_t i = 0; i < piece_count(key) && begin < key->size; i++) {
        struct mc_store_range part = piece(key, i, begin);
        part.length = mc_min_u64(part.length, key->size - begin);
        begin += part.length;
        if (part.length > 0) {
            pieces[count++] = part;
        }
    }
    *out = (struct mc_ops_disk_read){.key = key->key,
                                     .endpoint = key->disk,
                                     .file = key->file,
                                     .size = key->disk_size,
                                     .pieces = pieces,
                                     .piece_count = count};
}

static void verify_disk(struct get_chunk *chunk, struct get_key *key, enum mc_status status) {
    if (status == MC_OK && is_damaged(chunk, key)) {
        mc_error("the bytes read from an SSD are not the bytes written: key=%.*s endpoint=%.*s",
                 (int)key->key.len, key->key.ptr, (int)(key->disk.len + key->file.len),
                 key->disk.len > 0 ? key->disk.ptr : key->file.ptr);
        status = MC_CHECKSUM_MISMATCH;
    }
    finish(key, status);
}

/* What no memory could give. */
static void read_disks(struct get_chunk *chunk) {
    struct mc_arena *arena = &chunk->call->arena;
    struct mc_ops_disk_read *reads = NULL;
    struct get_key **keys = NULL;
    size_t count = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        if (!prepare_disk(&chunk->keys[i])) {
            continue;
        }
        if (reads == NULL) {
            reads = mc_arena_alloc(arena, chunk->count * sizeof(*reads));
            keys = mc_arena_alloc(arena, chunk->count * sizeof(struct get_key *));
        }
        describe_disk_read(chunk, &chunk->keys[i], &reads[count]);
        keys[count++] = &chunk->keys[i];
    }
    if (count > 0) {
        mc_ops_disk_read(chunk->ops, chunk->call, reads, count, chunk->deadline_ns);
    }
    for (size_t i = 0; i < count; i++) {
        verify_disk(chunk, keys[i], reads[i].status);
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
static bool take_item(const struct get_request *request, size_t i, struct get_key *key) {
    struct mc_store_item *item = &request->items[i];
    *key = (struct get_key){.item = item,
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
    for (size_t n = 0; n < piece_count(key) && item->status == MC_OK; n++) {
        struct mc_store_range part = piece(key, n, 0);
        if (part.ptr == NULL && part.length > 0) {
            item->status = MC_INVALID_PARAMS;
        }
    }
    if (request->leases != NULL) {
        key->session = &request->leases[i];
        key->list = key->session->list;
        key->lease_end_ns = key->session->end_ns;
        key->renew_at_ns = key->session->renew_at_ns;
    }
    return item->status == MC_OK;
}

/* Takes items from number `first` on until a bound of one chunk is reached; returns how many it
 * looked at. */
static size_t take_chunk(struct get_chunk *chunk, const struct get_request *request, size_t first) {
    size_t left = request->count - first;
    size_t limit = left < MC_STORE_BATCH_CHUNK ? left : MC_STORE_BATCH_CHUNK;
    size_t key_bytes = 0;
    size_t i = 0;
    chunk->keys = mc_arena_alloc(&chunk->call->arena, limit * sizeof(*chunk->keys));
    chunk->count = 0;
    chunk->moves = NULL;
    chunk->owners = NULL;
    chunk->move_capacity = 0;
    for (; i < limit; i++) {
        struct get_key key;
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

static void count_results(struct get_chunk *chunk) {
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

static void ask_all(struct get_chunk *chunk) {
    uint32_t *all = mc_arena_alloc(&chunk->call->arena, chunk->count * sizeof(*all));
    for (size_t i = 0; i < chunk->count; i++) {
        all[i] = (uint32_t)i;
    }
    ask(chunk, all, chunk->count, true);
}

/* The keys come with a lease; renews it when it wants that. */
static void begin_sessions(struct get_chunk *chunk) {
    for (size_t i = 0; i < chunk->count; i++) {
        struct get_key *key = &chunk->keys[i];
        if (mc_ops_now(chunk->ops) >= key->lease_end_ns) {
            finish(key, MC_LEASE_EXPIRED);
        } else {
            list_known(key);
        }
    }
    renew(chunk);
}

static void end_sessions(struct get_chunk *chunk) {
    for (size_t i = 0; i < chunk->count; i++) {
        chunk->keys[i].session->end_ns = chunk->keys[i].lease_end_ns;
        chunk->keys[i].session->renew_at_ns = chunk->keys[i].renew_at_ns;
    }
}

static void read_request(struct mc_ops *ops, const struct get_request *request) {
    struct get_chunk chunk = {.ops = ops, .call = mc_ops_begin(ops)};
    for (size_t done = 0; done < request->count;) {
        done += take_chunk(&chunk, request, done);
        if (chunk.count > 0) {
            chunk.deadline_ns = mc_ops_deadline(ops);
            if (request->leases != NULL) {
                begin_sessions(&chunk);
            } else {
                ask_all(&chunk);
            }
            read_chunk(&chunk);
            if (request->leases != NULL) {
                end_sessions(&chunk);
            } else {
                read_disks(&chunk);
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
