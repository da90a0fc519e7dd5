/*
 * Get: GetReplicaList (which takes a lease), choose the nearest replica, move, check the lease
 * after the last byte, verify the checksum; on a failure go on with the next replica.
 *
 * A chunk of a batch is read in rounds. A round moves at most round_bytes, taken from as many keys
 * as they fill, so large objects are read in pieces and small ones together; before each round the
 * leases that are half used are renewed in one RPC. A key whose renewal was answered after its old
 * lease had ended begins again at byte 0: what it had read may be somebody else's bytes. Rounds are
 * bounded: each one moves bytes, uses up one of a key's attempts, or ends the chunk.
 */
#include "client/ops_internal.h"

#include "base/log.h"
#include "client/checksum.h"

#define ROUND_BYTES  (64u << 20)
#define KEY_ATTEMPTS 8 /* replicas tried and beginnings at byte 0, together */

struct get_key {
    struct mc_store_item *item;
    struct mc_str key;
    struct mw_replica_list list;
    const struct mw_replica *replica; /* being read; NULL = choose */
    size_t replica_index;
    uint64_t tried; /* bit per replica of `list` that failed */
    uint64_t size;
    uint64_t offset;      /* bytes read so far, from `replica`, under one unbroken lease */
    uint64_t round_bytes; /* asked for in this round */
    uint64_t lease_end_ns;
    uint64_t renew_at_ns;
    unsigned attempts;
    enum mc_status failure; /* of the last attempt */
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

/* ---- asking the master ---- */

static uint64_t capacity_of(const struct mc_store_item *item) {
    uint64_t total = 0;
    for (size_t i = 0; i < item->slice_count; i++) {
        total += item->slices[i].length;
    }
    return total;
}

static void take_lease(struct get_key *key, uint64_t asked_ns) {
    uint64_t ttl_ns = mc_min_u64(key->list.lease_ttl_ms, UINT32_MAX) * MC_MS;
    key->lease_end_ns = asked_ns + ttl_ns;
    key->renew_at_ns = asked_ns + ttl_ns / 2;
}

/* The first answer for a key: how large is it, and does it fit? */
static void first_answer(struct get_key *key, const struct mw_e_list *answer, uint64_t asked_ns) {
    if (answer->error != 0) {
        finish(key, mc_ops_status(answer->error));
        return;
    }
    key->list = answer->value;
    take_lease(key, asked_ns);
    const struct mw_replica *replica = key->list.replicas.items;
    size_t readable = 0;
    for (size_t i = 0; i < key->list.replicas.count; i++) {
        if (mc_ops_replica_readable(&replica[i])) {
            key->size = mc_ops_replica_size(&replica[i]);
            readable++;
        }
    }
    if (readable == 0) { /* on disk only, or on nodes that are leaving */
        finish(key, key->list.replicas.count > 0 ? MC_INVALID_REPLICA : MC_OBJECT_NOT_FOUND);
        return;
    }
    key->item->length = key->size;
    if (key->size > capacity_of(key->item)) {
        finish(key, MC_BUFFER_OVERFLOW);
    } else if (key->size == 0) { /* ours stores none, but a loop must not depend on that */
        finish(key, MC_OK);
    }
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

/* The answer to a renewal. `answered_ns` decides whether the old lease still held when the new one
 * began. */
static void renewed(struct get_key *key, const struct mw_e_list *answer, uint64_t asked_ns,
                    uint64_t answered_ns) {
    const struct mw_replica *replica = answer->value.replicas.items;
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
            take_lease(key, asked_ns);
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

/* Asks for bytes [offset, offset + bytes) of the key, cut where the caller's slices are cut. */
static void add_moves(struct get_chunk *chunk, uint32_t index, uint64_t bytes) {
    struct get_key *key = &chunk->keys[index];
    uint64_t begin = key->offset;
    uint64_t end = key->offset + bytes;
    uint64_t slice_begin = 0;
    for (size_t i = 0; i < key->item->slice_count && slice_begin < end; i++) {
        const struct mc_slice *slice = &key->item->slices[i];
        uint64_t slice_end = slice_begin + slice->length;
        uint64_t from = mc_max_u64(begin, slice_begin);
        uint64_t to = mc_min_u64(end, slice_end);
        if (from < to) {
            struct mc_port_move move = {.op = MC_TRANSFER_READ,
                                        .local = (char *)slice->ptr + (from - slice_begin),
                                        .endpoint = key->replica->memory.endpoint,
                                        .remote_addr = key->replica->memory.address + from,
                                        .length = to - from,
                                        .status = MC_INTERNAL_ERROR};
            add_move(chunk, &move, index);
        }
        slice_begin = slice_end;
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
            if (mc_ops_replica_size(key->replica) != key->size) { /* replicas that differ */
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
    if (ops->checksum && key->list.checksum.has &&
        mc_checksum_slices(key->item->slices, key->item->slice_count, key->size) !=
            key->list.checksum.value) {
        mc_metric_add(&ops->counters.checksum_mismatches, 1);
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

/* ---- the batch ---- */

static size_t take_chunk(struct get_chunk *chunk, struct mc_store_item *items, size_t count) {
    size_t limit = count < MC_STORE_BATCH_CHUNK ? count : MC_STORE_BATCH_CHUNK;
    size_t key_bytes = 0;
    size_t i = 0;
    chunk->keys = mc_arena_alloc(&chunk->call->arena, limit * sizeof(*chunk->keys));
    chunk->count = 0;
    chunk->moves = NULL;
    chunk->owners = NULL;
    chunk->move_capacity = 0;
    for (; i < limit; i++) {
        struct get_key key = {.item = &items[i], .failure = MC_TRANSFER_FAIL};
        items[i].length = 0;
        items[i].status = mc_ops_key(items[i].key, &key.key);
        for (size_t s = 0; s < items[i].slice_count && items[i].status == MC_OK; s++) {
            if (items[i].slices[s].ptr == NULL && items[i].slices[s].length > 0) {
                items[i].status = MC_INVALID_PARAMS;
            }
        }
        if (items[i].status != MC_OK) {
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

enum mc_status mc_ops_get(struct mc_ops *ops, struct mc_store_item *items, size_t count) {
    if (count > 0 && items == NULL) {
        return MC_INVALID_PARAMS;
    }
    struct get_chunk chunk = {.ops = ops, .call = mc_ops_begin(ops)};
    for (size_t done = 0; done < count;) {
        size_t taken = take_chunk(&chunk, items + done, count - done);
        if (chunk.count > 0) {
            chunk.deadline_ns = mc_ops_deadline(ops);
            uint32_t *all = mc_arena_alloc(&chunk.call->arena, chunk.count * sizeof(*all));
            for (size_t i = 0; i < chunk.count; i++) {
                all[i] = (uint32_t)i;
            }
            ask(&chunk, all, chunk.count, true);
            read_chunk(&chunk);
            count_results(&chunk);
        }
        mc_arena_reset(&chunk.call->arena);
        done += taken;
    }
    mc_ops_end(ops, chunk.call);
    return MC_OK;
}
