/*
 * Put and upsert: PutStart, move the bytes to every replica that the master allocated, PutEnd; or
 * PutRevoke.
 *
 * A chunk of a batch goes through these steps together: one RPC, one move call, one RPC. A chunk of
 * one key uses the single RPCs. Each key stands in one of the states below and, in one round, only
 * moves down:
 *
 *     started --all moves done--> written --PutEnd ok--> done
 *        |                           |
 *        |-- a move failed ----------+-- PutEnd refused or unanswered --> revoke
 *        '-- a write ended in doubt --> abandoned: neither ended nor revoked, the master's
 *                                       timeouts reclaim the space
 *
 * A key goes into another round, in the deadline, when
 *  - a node could not be written to, for sure, and the put was revoked: it is placed elsewhere (see
 *    ops_avoid.c);
 *  - the master said that it exists, but nothing of it can be read: somebody else is writing it, or
 *    died while doing so. Success would promise what is not there, so the round repeats until it
 *    can be read, or is free, or OTHER_WRITER_MS have passed.
 *
 * The writer id in the RPCs is fresh for every round, see client/ops.h.
 */
#include "client/ops_internal.h"

#include "base/log.h"
#include "client/checksum.h"
#include "client/replicate_config.h"

#define OTHER_WRITER_MS 2000
#define PAUSE_MS        1   /* before the second repetition; then doubled */
#define PAUSE_MAX_MS    128 /* a multiple of PAUSE_MS by a power of two */

enum put_state {
    PUT_REFUSED,
    PUT_EXISTS, /* the key is there; can it be read? */
    PUT_STARTED,
    PUT_WRITTEN,
    PUT_DONE,
    PUT_REVOKE,
    PUT_ABANDONED,
    PUT_AGAIN /* another round; the item's status says why, should there be no time for it */
};

struct put_key {
    struct mc_store_item *item;
    struct mc_str key;
    uint64_t length;
    struct mw_opt_u64 checksum;
    struct mc_vec replicas; /* of struct mw_replica, as PutStart answered */
    enum put_state state;
    bool has_disk;      /* the master also waits for a file; */
    struct mc_str file; /* where, if this client is to write it */
    unsigned stripes;   /* of each copy; 0 = each replica holds it all */
    bool misplaced;     /* a replica could not be written, and no byte of it can arrive any more */
    bool crowded;       /* there was no room beside the nodes to avoid: do not avoid them */
    uint64_t contested_until_ns; /* waits for another writer; 0 = does not */
};

struct put_chunk {
    struct mc_ops *ops;
    struct mc_ops_call *call;
    struct put_key *keys;
    size_t count;
    struct mc_uuid writer;
    bool upsert;
    bool avoids; /* the master was asked to avoid nodes in this round */
    uint64_t deadline_ns;
    /* What the caller asked for; items[0] is number `first` of the whole batch. */
    const struct mc_replicate_config *wanted;
    const struct mc_store_item *items;
    size_t first;
    struct mw_replicate_config config;
};

static void fail(struct put_key *key, enum put_state state, enum mc_status status) {
    key->state = state;
    key->item->status = status;
}

/* ---- what the caller asked for ---- */

/* Some key of the chunk is large enough to be striped. */
static bool may_stripe(const struct put_chunk *chunk) {
    bool large = false;
    for (size_t i = 0; i < chunk->count && chunk->ops->stripe_bytes > 0; i++) {
        large = large || chunk->keys[i].length >= chunk->ops->stripe_bytes;
    }
    return large && mc_ops_master_is_ours(chunk->ops);
}

/* The nodes to avoid join the preferred segments. */
static void add_avoided(struct put_chunk *chunk) {
    struct mc_str avoided[MC_OPS_AVOID_MAX];
    struct mc_vec *preferred = &chunk->config.preferred_segments;
    size_t count =
        chunk->keys[0].crowded ? 0 : mc_ops_avoided(chunk->ops, &chunk->call->arena, avoided);
    chunk->avoids = count > 0;
    if (count == 0) {
        return;
    }
    size_t total = preferred->count + count;
    struct mc_str *all = mc_arena_alloc(&chunk->call->arena, total * sizeof(*all));
    if (preferred->count > 0) {
        memcpy(all, preferred->items, preferred->count * sizeof(*all));
    }
    memcpy(all + preferred->count, avoided, count * sizeof(*all));
    *preferred = (struct mc_vec){all, total};
}

/* The wire's configuration for the chunk's keys. */
static void fill_config(struct put_chunk *chunk) {
    const struct mc_replicate_config *config = chunk->wanted;
    struct mc_str *groups = NULL;
    if (config != NULL && config->group_ids != NULL) {
        groups = mc_arena_alloc(&chunk->call->arena, chunk->count * sizeof(*groups));
        for (size_t i = 0; i < chunk->count; i++) {
            size_t number = chunk->first + (size_t)(chunk->keys[i].item - chunk->items);
            groups[i] = mc_str_from(config->group_ids[number]);
        }
    }
    mc_ops_wire_config(chunk->ops, chunk->call, config, groups, chunk->count, &chunk->config);
    add_avoided(chunk);
}

static enum mc_status total_length(const struct mc_store_item *item, uint64_t *length) {
    uint64_t total = 0;
    for (size_t i = 0; i < item->slice_count; i++) {
        if (item->slices[i].ptr == NULL && item->slices[i].length > 0) {
            return MC_INVALID_PARAMS;
        }
        if (__builtin_add_overflow(total, (uint64_t)item->slices[i].length, &total)) {
            return MC_INVALID_PARAMS;
        }
    }
    *length = total;
    return total > 0 ? MC_OK : MC_INVALID_PARAMS;
}

/* Remembers the key that the chunk takes next; false when the chunk has it already. `slots` is a
 * hash table of places in the chunk, plus one. */
#define TAKEN_SLOTS (2 * MC_STORE_BATCH_CHUNK)
static bool remember(const struct put_chunk *chunk, uint16_t *slots, struct mc_str key) {
    size_t at = mc_hash64(key.ptr, key.len, 0) % TAKEN_SLOTS;
    for (; slots[at] != 0; at = (at + 1) % TAKEN_SLOTS) {
        if (mc_str_eq(chunk->keys[slots[at] - 1].key, key)) {
            return false;
        }
    }
    slots[at] = (uint16_t)(chunk->count + 1);
    return true;
}

/* Takes keys from items[0..count) until a bound of one chunk is reached; returns how many items
 * were looked at. An upsert that names a key twice means the second value, so the second goes into
 * a chunk of its own: in one chunk the end of the first would end the second, with the checksum of
 * the first. */
static size_t take_chunk(struct put_chunk *chunk, struct mc_store_item *items, size_t count) {
    size_t limit = count < MC_STORE_BATCH_CHUNK ? count : MC_STORE_BATCH_CHUNK;
    uint64_t key_bytes = 0;
    uint64_t value_bytes = 0;
    size_t i = 0;
    chunk->keys = mc_arena_alloc(&chunk->call->arena, limit * sizeof(*chunk->keys));
    chunk->count = 0;
    uint16_t *slots = NULL;
    if (chunk->upsert && limit > 1) {
        slots = mc_arena_zalloc(&chunk->call->arena, TAKEN_SLOTS * sizeof(*slots));
    }
    for (; i < limit; i++) {
        struct put_key key = {.item = &items[i], .state = PUT_REFUSED};
        enum mc_status status = mc_ops_key(items[i].key, &key.key);
        if (status == MC_OK) {
            status = total_length(&items[i], &key.length);
        }
        items[i].status = status;
        if (status != MC_OK) {
            continue;
        }
        key_bytes += key.key.len;
        value_bytes += key.length;
        if (chunk->count > 0 &&
            (key_bytes > OPS_CHUNK_KEY_BYTES || value_bytes > OPS_CHUNK_VALUE_BYTES)) {
            break;
        }
        if (slots != NULL && !remember(chunk, slots, key.key)) {
            break;
        }
        if (chunk->ops->checksum && mc_checksum_possible(items[i].slices, items[i].slice_count)) {
            key.checksum = (struct mw_opt_u64){
                true, mc_checksum_slices(items[i].slices, items[i].slice_count, key.length)};
        }
        chunk->keys[chunk->count++] = key;
    }
    return i;
}

/* ---- start ---- */

/* The answer must name memory for the whole value; files of a master with a root directory are left
 * out. */
static enum mc_status accept_replicas(struct put_key *key, const struct mw_e_vec *answer) {
    MC_TRY(mc_ops_status(answer->error));
    const struct mw_replica *replica = answer->value.items;
    size_t memory = 0;
    key->stripes = mc_ops_stripes(&answer->value, key->length);
    for (size_t i = 0; i < answer->value.count; i++) {
        if (replica[i].tag == MW_TAG_DISK) {
            key->has_disk = true;
        } else if (replica[i].tag != MW_TAG_MEMORY ||
                   (replica[i].memory.size != key->length && key->stripes == 0)) {
            mc_error("the master allocated something that cannot be written: key=%.*s kind=%u "
                     "bytes=%llu",
                     (int)key->key.len, key->key.ptr, replica[i].tag,
                     (unsigned long long)key->length);
            return MC_INVALID_REPLICA;
        } else {
            memory++;
        }
    }
    key->replicas = answer->value;
    return memory > 0 ? MC_OK : MC_INVALID_REPLICA;
}

/* Copied: the answer's strings do not live as long as the chunk. An upsert has a file where no late
 * writer of the value before can reach it. */
static void note_file(struct put_chunk *chunk, struct put_key *key) {
    const struct mw_replica *replica = key->replicas.items;
    for (size_t i = 0; key->has_disk && i < key->replicas.count; i++) {
        struct mc_str path = replica[i].tag == MW_TAG_DISK ? replica[i].disk.file_path : MC_STR("");
        if (mc_ops_file_allowed(chunk->ops, path) &&
            (!chunk->upsert || mc_ops_file_own_name(chunk->ops, path))) {
            key->file = mc_arena_str(&chunk->call->arena, replica[i].disk.file_path);
        }
    }
}

static void started(struct put_chunk *chunk, struct put_key *key, const struct mw_e_vec *answer) {
    enum mc_status status = accept_replicas(key, answer);
    if (status == MC_OK) {
        key->state = PUT_STARTED;
        note_file(chunk, key);
    } else if (status == MC_OBJECT_ALREADY_EXISTS) { /* of an upsert: one of an absent key */
        /* Content-addressed use: the object is there, and stays as it is. */
        fail(key, PUT_EXISTS, MC_OK);
    } else if (status == MC_NO_AVAILABLE_HANDLE && key->misplaced) {
        fail(key, PUT_REFUSED, MC_TRANSFER_FAIL); /* no other node has room */
    } else if (status == MC_NO_AVAILABLE_HANDLE && chunk->avoids) {
        key->crowded = true;
        fail(key, PUT_AGAIN, status);
    } else {
        fail(key, answer->error == 0 ? PUT_REVOKE : PUT_REFUSED, status);
    }
}

static enum mc_status start_many(struct put_chunk *chunk, struct mc_vec *answers) {
    struct mc_arena *arena = &chunk->call->arena;
    const struct mc_replicate_config *wanted = chunk->wanted;
    struct mc_str *names = mc_arena_alloc(arena, chunk->count * sizeof(*names));
    uint64_t *lengths = mc_arena_alloc(arena, chunk->count * sizeof(*lengths));
    uint64_t *expected = mc_arena_alloc(arena, chunk->count * sizeof(*expected));
    for (size_t i = 0; i < chunk->count; i++) {
        size_t number = chunk->first + (size_t)(chunk->keys[i].item - chunk->items);
        names[i] = chunk->keys[i].key;
        lengths[i] = chunk->keys[i].length;
        expected[i] = mc_replicate_config_compares(wanted) ? wanted->expected[number] : 0;
    }
    struct mw_a_batch_put_start args = {.client = chunk->writer,
                                        .keys = {names, chunk->count},
                                        .lengths = {lengths, chunk->count},
                                        .config = chunk->config,
                                        .tenant = chunk->ops->tenant};
    return mc_ops_start_puts(chunk->ops, chunk->call, &args, chunk->upsert, wanted, expected,
                             may_stripe(chunk) ? chunk->ops->stripe_bytes : 0, chunk->deadline_ns,
                             answers);
}

static void start(struct put_chunk *chunk) {
    struct mw_e_vec single;
    struct mc_vec answers;
    enum mc_status status;
    struct put_key *keys = chunk->keys;
    if (chunk->count == 1 && !mc_replicate_config_is_ours(chunk->wanted) && !may_stripe(chunk)) {
        struct mw_a_put_start args = {.client = chunk->writer,
                                      .key = keys->key,
                                      .length = keys->length,
                                      .config = chunk->config,
                                      .tenant = chunk->ops->tenant};
        status = mc_ops_rpc(chunk->ops, chunk->call,
                            chunk->upsert ? MC_RPC_UpsertStart : MC_RPC_PutStart, &args, &single,
                            chunk->deadline_ns, MC_OPS_ONCE);
        answers = (struct mc_vec){&single, 1};
    } else {
        status = start_many(chunk, &answers);
    }
    for (size_t i = 0; i < chunk->count; i++) {
        if (status == MC_OK) {
            started(chunk, &keys[i], (const struct mw_e_vec *)answers.items + i);
        } else { /* perhaps carried out: no byte was written, so it can be revoked */
            bool unanswered = status == MC_RPC_FAIL || status == MC_RPC_TIMEOUT;
            keys[i].misplaced = false;
            fail(&keys[i], unanswered ? PUT_REVOKE : PUT_REFUSED, status);
        }
    }
}

/* ---- move ---- */

static size_t count_moves(const struct put_chunk *chunk) {
    size_t moves = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        const struct put_key *key = &chunk->keys[i];
        if (key->state == PUT_STARTED) {
            moves += key->stripes > 0 ? mc_ops_stripe_moves(&key->replicas, key->stripes,
                                                            key->length, key->item->slice_count)
                                      : key->replicas.count * key->item->slice_count;
        }
    }
    return moves;
}

static size_t add_stripes(struct put_key *key, uint32_t index, struct mc_port_move *moves,
                          uint32_t *owners) {
    size_t n = 0;
    uint64_t offset = 0;
    for (size_t s = 0; s < key->item->slice_count; s++) {
        const struct mc_slice *slice = &key->item->slices[s];
        n += mc_ops_stripe_writes(&key->replicas, key->stripes, slice->ptr, offset, slice->length,
                                  moves + n);
        offset += slice->length;
    }
    for (size_t i = 0; i < n; i++) {
        owners[i] = index;
    }
    return n;
}

/* Adds the moves of one key to its replicas; owners[] says whose a move is. */
static size_t add_moves(struct put_key *key, uint32_t index, struct mc_port_move *moves,
                        uint32_t *owners) {
    if (key->stripes > 0) {
        return add_stripes(key, index, moves, owners);
    }
    size_t n = 0;
    const struct mw_replica *replica = key->replicas.items;
    for (size_t r = 0; r < key->replicas.count; r++) {
        if (replica[r].tag != MW_TAG_MEMORY) {
            continue;
        }
        uint64_t offset = 0;
        for (size_t s = 0; s < key->item->slice_count; s++) {
            const struct mc_slice *slice = &key->item->slices[s];
            if (slice->length == 0) {
                continue;
            }
            moves[n] = (struct mc_port_move){.op = MC_TRANSFER_WRITE,
                                             .local = slice->ptr,
                                             .endpoint = replica[r].memory.endpoint,
                                             .remote_addr = replica[r].memory.address + offset,
                                             .length = slice->length,
                                             .status = MC_INTERNAL_ERROR};
            owners[n++] = index;
            offset += slice->length;
        }
    }
    return n;
}

/* Another node may do better. */
static bool peers_fault(enum mc_status status) {
    return status != MC_INVALID_PARAMS && status != MC_ERR_NO_MEMORY && status != MC_ERR_LIMIT &&
           status != MC_ERR_CANCELLED;
}

static void move(struct put_chunk *chunk) {
    size_t capacity = count_moves(chunk);
    if (capacity == 0) {
        return;
    }
    struct mc_port_move *moves = mc_arena_alloc(&chunk->call->arena, capacity * sizeof(*moves));
    uint32_t *owners = mc_arena_alloc(&chunk->call->arena, capacity * sizeof(*owners));
    size_t n = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        if (chunk->keys[i].state == PUT_STARTED) {
            chunk->keys[i].misplaced = false;
            n += add_moves(&chunk->keys[i], (uint32_t)i, moves + n, owners + n);
            chunk->keys[i].state = PUT_WRITTEN;
        }
    }
    chunk->ops->port->ops->move(chunk->ops->port, moves, n, chunk->deadline_ns);
    for (size_t i = 0; i < n; i++) {
        struct put_key *key = &chunk->keys[owners[i]];
        if (moves[i].status == MC_OK) {
            continue;
        }
        mc_warn_limited("a replica could not be written: key=%.*s endpoint=%.*s status=%s",
                        (int)key->key.len, key->key.ptr, (int)moves[i].endpoint.len,
                        moves[i].endpoint.ptr, mc_status_name(moves[i].status));
        bool in_doubt = moves[i].status == MC_ERR_TIMEOUT || key->state == PUT_ABANDONED;
        fail(key, in_doubt ? PUT_ABANDONED : PUT_REVOKE, MC_TRANSFER_FAIL);
        bool elsewhere = peers_fault(moves[i].status);
        key->misplaced = key->misplaced || elsewhere;
        if (elsewhere) {
            mc_ops_avoid(chunk->ops, moves[i].endpoint);
        }
    }
}

/* ---- end and revoke ---- */

/* The keys in `state`; *n = how many. */
static struct put_key **select_keys(struct put_chunk *chunk, enum put_state state, size_t *n) {
    struct put_key **selected =
        mc_arena_alloc(&chunk->call->arena, chunk->count * sizeof(*selected));
    *n = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        if (chunk->keys[i].state == state) {
            selected[(*n)++] = &chunk->keys[i];
        }
    }
    return selected;
}

/* Ends replicas of keys[0..n); *answers holds a struct mw_e_void for each. */
static enum mc_status send_end(struct put_chunk *chunk, struct put_key **keys, size_t n,
                               int32_t type, uint64_t deadline_ns, struct mc_vec *answers) {
    struct mc_ops *ops = chunk->ops;
    if (n == 1) {
        struct mw_a_put_end args = {.client = chunk->writer,
                                    .meta = {keys[0]->key, keys[0]->checksum},
                                    .type = type,
                                    .tenant = ops->tenant};
        struct mw_e_void *answer = mc_arena_alloc(&chunk->call->arena, sizeof(*answer));
        *answers = (struct mc_vec){answer, 1};
        return mc_ops_rpc(ops, chunk->call, chunk->upsert ? MC_RPC_UpsertEnd : MC_RPC_PutEnd, &args,
                          answer, deadline_ns, MC_OPS_IDEMPOTENT);
    }
    struct mw_object_meta *metas = mc_arena_alloc(&chunk->call->arena, n * sizeof(*metas));
    for (size_t i = 0; i < n; i++) {
        metas[i] = (struct mw_object_meta){keys[i]->key, keys[i]->checksum};
    }
    if (chunk->upsert && type == MC_REPLICA_ALL) {
        struct mw_a_batch_upsert_end args = {
            .client = chunk->writer, .metas = {metas, n}, .tenant = ops->tenant};
        return mc_ops_rpc_batch(ops, chunk->call, MC_RPC_BatchUpsertEnd, &args, answers, n,
                                deadline_ns, MC_OPS_IDEMPOTENT);
    }
    struct mw_a_batch_put_end args = {
        .client = chunk->writer, .metas = {metas, n}, .type = type, .tenant = ops->tenant};
    return mc_ops_rpc_batch(ops, chunk->call, MC_RPC_BatchPutEnd, &args, answers, n, deadline_ns,
                            MC_OPS_IDEMPOTENT);
}

/* The same for taking them back. */
static enum mc_status send_revoke(struct put_chunk *chunk, struct put_key **keys, size_t n,
                                  int32_t type, uint64_t deadline_ns, struct mc_vec *answers) {
    struct mc_ops *ops = chunk->ops;
    if (n == 1) {
        struct mw_a_put_revoke args = {
            .client = chunk->writer, .key = keys[0]->key, .type = type, .tenant = ops->tenant};
        struct mw_e_void *answer = mc_arena_alloc(&chunk->call->arena, sizeof(*answer));
        *answers = (struct mc_vec){answer, 1};
        return mc_ops_rpc(ops, chunk->call, chunk->upsert ? MC_RPC_UpsertRevoke : MC_RPC_PutRevoke,
                          &args, answer, deadline_ns, MC_OPS_IDEMPOTENT);
    }
    struct mc_str *names = mc_arena_alloc(&chunk->call->arena, n * sizeof(*names));
    for (size_t i = 0; i < n; i++) {
        names[i] = keys[i]->key;
    }
    if (chunk->upsert && type == MC_REPLICA_ALL) {
        struct mw_a_batch_upsert_revoke args = {
            .client = chunk->writer, .keys = {names, n}, .tenant = ops->tenant};
        return mc_ops_rpc_batch(ops, chunk->call, MC_RPC_BatchUpsertRevoke, &args, answers, n,
                                deadline_ns, MC_OPS_IDEMPOTENT);
    }
    struct mw_a_batch_put_revoke args = {
        .client = chunk->writer, .keys = {names, n}, .type = type, .tenant = ops->tenant};
    return mc_ops_rpc_batch(ops, chunk->call, MC_RPC_BatchPutRevoke, &args, answers, n, deadline_ns,
                            MC_OPS_IDEMPOTENT);
}

/* Files that the master also waits for, and that are not, or could not be, written. */
static void revoke_files(struct put_chunk *chunk, struct put_key **keys, size_t n,
                         uint64_t deadline_ns) {
    struct put_key **files = mc_arena_alloc(&chunk->call->arena, n * sizeof(*files));
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (keys[i]->has_disk && keys[i]->file.len == 0) {
            files[count++] = keys[i];
        }
    }
    struct mc_vec answers;
    if (count > 0 &&
        send_revoke(chunk, files, count, MC_REPLICA_DISK, deadline_ns, &answers) != MC_OK) {
        mc_warn_limited("file replicas could not be revoked: keys=%zu", count);
    }
}

/* Written files. One that the master does not want any more, because its object was replaced
 * meanwhile, is nobody's: the master may have had it deleted before it was there. */
static void end_files(struct put_chunk *chunk, struct put_key **keys, size_t n,
                      uint64_t deadline_ns) {
    struct mc_vec answers;
    if (send_end(chunk, keys, n, MC_REPLICA_DISK, deadline_ns, &answers) != MC_OK) {
        mc_warn_limited("the master was not told of files: keys=%zu", n);
        return;
    }
    const struct mw_e_void *answer = answers.items;
    for (size_t i = 0; i < n; i++) {
        if (answer[i].error != 0 && mc_ops_file_own_name(chunk->ops, keys[i]->file)) {
            (void)mc_ops_file_delete(chunk->ops, keys[i]->file);
        }
    }
}

/* The files of keys that can be read by now; what happens to them is no failure of the put. */
static void write_files(struct put_chunk *chunk, struct put_key **keys, size_t n,
                        uint64_t deadline_ns) {
    struct put_key **written = mc_arena_alloc(&chunk->call->arena, n * sizeof(*written));
    struct put_key **lost = mc_arena_alloc(&chunk->call->arena, n * sizeof(*lost));
    size_t good = 0, bad = 0;
    for (size_t i = 0; i < n; i++) {
        struct put_key *key = keys[i];
        if (key->file.len == 0) {
            continue;
        }
        bool done = key->state == PUT_DONE &&
                    mc_ops_file_write(chunk->ops, key->file, key->item->slices,
                                      key->item->slice_count, key->length) == MC_OK;
        *(done ? &written[good++] : &lost[bad++]) = key;
    }
    if (good > 0) {
        end_files(chunk, written, good, deadline_ns);
    }
    for (size_t i = 0; i < bad; i++) {
        lost[i]->file.len = 0; /* as one that is not written */
    }
    revoke_files(chunk, lost, bad, deadline_ns);
}

static void end(struct put_chunk *chunk) {
    size_t n;
    struct put_key **keys = select_keys(chunk, PUT_WRITTEN, &n);
    if (n == 0) {
        return;
    }
    /* The bytes are there: do not give up for want of a moment. */
    uint64_t least = mc_ops_now(chunk->ops) + OPS_CLEANUP_MS * MC_MS;
    uint64_t deadline = mc_max_u64(chunk->deadline_ns, least);
    revoke_files(chunk, keys, n, deadline);
    struct mc_vec answers;
    enum mc_status status = send_end(chunk, keys, n, MC_REPLICA_ALL, deadline, &answers);
    const struct mw_e_void *answer = answers.items;
    for (size_t i = 0; i < n; i++) {
        enum mc_status own = status != MC_OK ? status : mc_ops_status(answer[i].error);
        fail(keys[i], own == MC_OK ? PUT_DONE : PUT_REVOKE, own);
    }
    write_files(chunk, keys, n, deadline);
}

static void revoke(struct put_chunk *chunk) {
    size_t n;
    struct put_key **keys = select_keys(chunk, PUT_REVOKE, &n);
    if (n == 0) {
        return;
    }
    struct mc_vec answers;
    uint64_t deadline = mc_ops_now(chunk->ops) + OPS_CLEANUP_MS * MC_MS;
    enum mc_status status = send_revoke(chunk, keys, n, MC_REPLICA_ALL, deadline, &answers);
    if (status != MC_OK) { /* the master's discard timeout does it */
        mc_warn_limited("failed puts could not be revoked: keys=%zu first=%.*s status=%s", n,
                        (int)keys[0]->key.len, keys[0]->key.ptr, mc_status_name(status));
        return;
    }
    const struct mw_e_void *answer = answers.items;
    for (size_t i = 0; i < n; i++) {
        bool gone = answer[i].error == MC_OK || answer[i].error == MC_OBJECT_NOT_FOUND;
        /* what it was to be compared with is gone, too */
        if (keys[i]->misplaced && gone && !mc_replicate_config_compares(chunk->wanted)) {
            keys[i]->state = PUT_AGAIN;
            mc_metric_add(&chunk->ops->counters.puts_replaced, 1);
        }
    }
}

/* ---- keys that are there already ---- */

static enum mc_status ask_readable(struct put_chunk *chunk, struct put_key **keys, size_t n,
                                   struct mc_vec *answers) {
    struct mc_ops *ops = chunk->ops;
    if (n == 1) {
        struct mw_a_key args = {keys[0]->key, ops->tenant};
        struct mw_e_bool *answer = mc_arena_alloc(&chunk->call->arena, sizeof(*answer));
        *answers = (struct mc_vec){answer, 1};
        return mc_ops_rpc(ops, chunk->call, MC_RPC_ExistKey, &args, answer, chunk->deadline_ns,
                          MC_OPS_IDEMPOTENT);
    }
    struct mc_str *names = mc_arena_alloc(&chunk->call->arena, n * sizeof(*names));
    for (size_t i = 0; i < n; i++) {
        names[i] = keys[i]->key;
    }
    struct mw_a_keys args = {{names, n}, ops->tenant};
    return mc_ops_rpc_batch(ops, chunk->call, MC_RPC_BatchExistKey, &args, answers, n,
                            chunk->deadline_ns, MC_OPS_IDEMPOTENT);
}

/* After the end of the others: a key that stands twice in a chunk exists because of its first
 * place. */
static void look_at_existing(struct put_chunk *chunk) {
    size_t n;
    struct put_key **keys = select_keys(chunk, PUT_EXISTS, &n);
    if (n == 0) {
        return;
    }
    struct mc_vec answers;
    enum mc_status status = ask_readable(chunk, keys, n, &answers);
    const struct mw_e_bool *answer = answers.items;
    uint64_t until = mc_ops_now(chunk->ops) + OTHER_WRITER_MS * MC_MS;
    for (size_t i = 0; i < n; i++) {
        enum mc_status own = status != MC_OK ? status : mc_ops_status(answer[i].error);
        if (own != MC_OK || answer[i].value) {
            bool unwanted = chunk->wanted && chunk->wanted->condition == MC_PUT_IF_ABSENT;
            fail(keys[i], PUT_REFUSED, own == MC_OK && unwanted ? MC_OBJECT_ALREADY_EXISTS : own);
            continue;
        }
        fail(keys[i], PUT_AGAIN, MC_REPLICA_IS_NOT_READY);
        if (keys[i]->contested_until_ns == 0) {
            keys[i]->contested_until_ns = mc_min_u64(until, chunk->deadline_ns);
            mc_metric_add(&chunk->ops->counters.puts_contested, 1);
        }
    }
}

static void count_results(struct put_chunk *chunk) {
    struct mc_ops_counters *counters = &chunk->ops->counters;
    uint64_t bytes = 0;
    int64_t failures = 0;
    int64_t abandoned = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        const struct put_key *key = &chunk->keys[i];
        failures += key->item->status != MC_OK;
        abandoned += key->state == PUT_ABANDONED;
        size_t copies = key->stripes > 0 ? key->replicas.count / key->stripes
                                         : key->replicas.count - key->has_disk;
        bytes += key->state == PUT_DONE ? key->length * copies : 0;
    }
    mc_metric_add(&counters->puts, (int64_t)chunk->count);
    mc_metric_add(&counters->put_failures, failures);
    mc_metric_add(&counters->puts_abandoned, abandoned);
    mc_metric_add(&counters->written_bytes, (int64_t)bytes);
}

/* ---- rounds ---- */

static void put_round(struct put_chunk *chunk) {
    chunk->writer = mc_ops_fresh_writer(chunk->ops);
    fill_config(chunk);
    start(chunk);
    move(chunk);
    end(chunk);
    look_at_existing(chunk);
    revoke(chunk);
}

/* The keys that want another round and have time for it; `crowded` ones go by themselves. */
static struct put_key **again(struct put_chunk *chunk, size_t *n, bool *contested) {
    struct put_key **keys = select_keys(chunk, PUT_AGAIN, n);
    uint64_t now = mc_ops_now(chunk->ops);
    size_t kept = 0;
    *contested = false;
    for (size_t i = 0; i < *n; i++) {
        uint64_t until = chunk->deadline_ns;
        if (keys[i]->item->status == MC_REPLICA_IS_NOT_READY) {
            until = keys[i]->contested_until_ns;
        }
        if (now >= until) {
            keys[i]->state = PUT_REFUSED;
        } else if (kept == 0 || keys[i]->crowded == keys[0]->crowded) {
            *contested = *contested || keys[i]->item->status == MC_REPLICA_IS_NOT_READY;
            keys[kept++] = keys[i];
        }
    }
    *n = kept;
    return keys;
}

/* One round for all keys, and more for those that want them. The first repetition comes at once,
 * unless it waits for somebody. */
static void put_chunk(struct put_chunk *chunk) {
    struct mc_port *port = chunk->ops->port;
    uint64_t pause_ms = 0;
    put_round(chunk);
    for (;;) {
        size_t n;
        bool contested;
        struct put_key **keys = again(chunk, &n, &contested);
        if (n == 0) {
            return;
        }
        if (pause_ms > 0 || contested) {
            pause_ms = pause_ms > 0 ? pause_ms : PAUSE_MS;
            port->ops->sleep_until(port, mc_ops_now(chunk->ops) + pause_ms * MC_MS);
        }
        pause_ms = pause_ms == 0 ? PAUSE_MS : mc_min_u64(2 * pause_ms, PAUSE_MAX_MS);
        struct put_chunk rest = *chunk;
        rest.keys = mc_arena_alloc(&chunk->call->arena, n * sizeof(*rest.keys));
        rest.count = n;
        for (size_t i = 0; i < n; i++) {
            rest.keys[i] = *keys[i];
        }
        put_round(&rest);
        for (size_t i = 0; i < n; i++) {
            *keys[i] = rest.keys[i];
        }
    }
}

enum mc_status mc_ops_put(struct mc_ops *ops, struct mc_store_item *items, size_t count,
                          const struct mc_replicate_config *config, bool upsert) {
    if (count > 0 && items == NULL) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(mc_replicate_config_check(config, count));
    struct put_chunk chunk = {.ops = ops,
                              .call = mc_ops_begin(ops),
                              .upsert = upsert || mc_replicate_config_compares(config),
                              .wanted = config};
    for (size_t done = 0; done < count;) {
        size_t taken = take_chunk(&chunk, items + done, count - done);
        if (chunk.count > 0) {
            chunk.deadline_ns = mc_ops_deadline(ops);
            chunk.items = items + done;
            chunk.first = done;
            put_chunk(&chunk);
            count_results(&chunk);
        }
        mc_arena_reset(&chunk.call->arena);
        done += taken;
    }
    mc_ops_end(ops, chunk.call);
    return MC_OK;
}
