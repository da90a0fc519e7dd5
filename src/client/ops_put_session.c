/*
 * Put sessions: start reserves the space, writes fill it from the caller's ranges, end makes the
 * object readable or revoke gives the space back.
 *
 * What keeps it true, beside the rules of client/ops.h: ending or revoking makes the space somebody
 * else's, so neither happens while a write is running (the session counts its users). A write that
 * ended in doubt may still land; such a session can only be revoked, and its space is left to the
 * master's timeouts. And nothing is written after a time that is well below the master's release
 * timeout. The object gets a checksum when each of its bytes was written once (session.h).
 */
#include "client/session.h"

#include "base/log.h"
#include "client/checksum.h"

/* ---- start ---- */

/* Whether a session of the key may be made. */
static enum mc_status may_start(struct mc_ops *ops, struct mc_str key, uint64_t size) {
    pthread_mutex_lock(&ops->lock);
    bool open = *mc_session_find_locked(&ops->puts, key) != NULL;
    bool full = ops->puts.count >= MC_STORE_SESSIONS_MAX;
    pthread_mutex_unlock(&ops->lock);
    return open || size == 0 ? MC_INVALID_PARAMS : full ? MC_ERR_LIMIT : MC_OK;
}

static enum mc_status revoke_keys(struct mc_ops *ops, struct mc_ops_call *call,
                                  struct mc_uuid writer, struct mc_str *names, size_t n,
                                  int32_t type, struct mc_vec *answers) {
    struct mw_a_batch_put_revoke args = {
        .client = writer, .keys = {names, n}, .type = type, .tenant = ops->tenant};
    return mc_ops_rpc_batch(ops, call, MC_RPC_BatchPutRevoke, &args, answers, n,
                            mc_ops_now(ops) + OPS_CLEANUP_MS * MC_MS, MC_OPS_IDEMPOTENT);
}

static void revoke_one(struct mc_ops *ops, struct mc_ops_call *call, struct mc_uuid writer,
                       struct mc_str key) {
    struct mc_vec answers;
    enum mc_status status = revoke_keys(ops, call, writer, &key, 1, MC_REPLICA_ALL, &answers);
    if (status != MC_OK) { /* the master's discard timeout does it */
        mc_warn_limited("a reservation could not be revoked: key=%.*s status=%s", (int)key.len,
                        key.ptr, mc_status_name(status));
    }
}

/* Puts what the master gave into the table. */
static enum mc_status keep(struct mc_ops *ops, struct mc_str key, struct mc_uuid writer,
                           uint64_t size, uint64_t asked_ns, const struct mc_vec *replicas) {
    const struct mw_replica *replica = replicas->items;
    size_t memory = 0;
    bool has_disk = false;
    unsigned stripes = mc_ops_stripes(replicas, size);
    for (size_t i = 0; i < replicas->count; i++) {
        has_disk |= replica[i].tag == MW_TAG_DISK;
        memory +=
            replica[i].tag == MW_TAG_MEMORY && (stripes > 0 || replica[i].memory.size == size);
    }
    if (memory == 0 || memory + has_disk != replicas->count) {
        return MC_INVALID_REPLICA;
    }
    struct mw_replica_list list = {.replicas = *replicas};
    struct mc_session *session = mc_session_make(key, &list);
    session->writer = writer;
    session->size = size;
    session->has_disk = has_disk;
    session->lease.stripes = stripes;
    session->closes_at_ns = asked_ns + MC_STORE_PUT_SESSION_S * MC_SEC;
    pthread_mutex_lock(&ops->lock);
    /* The master gives a key to one put at a time; an entry that is here lost it. */
    struct mc_session **at = mc_session_find_locked(&ops->puts, key);
    enum mc_status status = MC_INVALID_PARAMS;
    if (*at == NULL) {
        status = mc_session_add_locked(&ops->puts, at, session) ? MC_OK : MC_ERR_LIMIT;
    } else {
        mc_session_free(session);
    }
    pthread_mutex_unlock(&ops->lock);
    return status;
}

struct start_key {
    size_t index; /* of the caller's arrays */
    struct mc_str key;
};

static void start_chunk(struct mc_ops *ops, struct mc_ops_call *call, const struct start_key *keys,
                        size_t n, const uint64_t *sizes, const struct mc_replicate_config *config,
                        enum mc_status *results) {
    struct mc_uuid writer = mc_ops_fresh_writer(ops);
    struct mc_str *names = mc_arena_alloc(&call->arena, n * sizeof(*names));
    uint64_t *lengths = mc_arena_alloc(&call->arena, n * sizeof(*lengths));
    uint64_t *expected = mc_arena_alloc(&call->arena, n * sizeof(*expected));
    struct mc_str *groups = NULL;
    if (config != NULL && config->group_ids != NULL) {
        groups = mc_arena_alloc(&call->arena, n * sizeof(*groups));
    }
    for (size_t i = 0; i < n; i++) {
        names[i] = keys[i].key;
        lengths[i] = sizes[keys[i].index];
        expected[i] = mc_replicate_config_compares(config) ? config->expected[keys[i].index] : 0;
        if (groups != NULL) {
            groups[i] = mc_str_from(config->group_ids[keys[i].index]);
        }
    }
    struct mw_a_batch_put_start args = {
        .client = writer, .keys = {names, n}, .lengths = {lengths, n}, .tenant = ops->tenant};
    mc_ops_wire_config(ops, call, config, groups, n, &args.config);
    struct mc_vec answers = {0};
    bool large = false;
    for (size_t i = 0; i < n && mc_ops_master_is_ours(ops); i++) {
        large = large || lengths[i] >= ops->stripe_bytes;
    }
    enum mc_status status =
        mc_ops_start_puts(ops, call, &args, false, config, expected, large ? ops->stripe_bytes : 0,
                          mc_ops_deadline(ops), &answers);
    uint64_t asked = call->asked_ns;
    if (status == MC_RPC_FAIL || status == MC_RPC_TIMEOUT) { /* perhaps carried out */
        struct mc_vec revoked;
        (void)!revoke_keys(ops, call, writer, names, n, MC_REPLICA_ALL, &revoked);
    }
    enum mc_status *kept = mc_arena_alloc(&call->arena, n * sizeof(*kept));
    const struct mw_e_vec *answer = answers.items;
    for (size_t i = 0; i < n; i++) {
        kept[i] = status == MC_OK ? mc_ops_status(answer[i].error) : status;
        results[keys[i].index] = kept[i];
        if (kept[i] == MC_OK) {
            kept[i] = keep(ops, names[i], writer, lengths[i], asked, &answer[i].value);
        } else {
            kept[i] = MC_OK; /* nothing to take back */
        }
    }
    for (size_t i = 0; i < n; i++) { /* only now: this replaces the answers */
        if (kept[i] != MC_OK) {
            results[keys[i].index] = kept[i];
            revoke_one(ops, call, writer, names[i]);
        }
    }
}

enum mc_status mc_ops_put_session_start(struct mc_ops *ops, const char *const *keys,
                                        const uint64_t *sizes, size_t count,
                                        const struct mc_replicate_config *config,
                                        enum mc_status *results) {
    if (count > 0 && (keys == NULL || sizes == NULL || results == NULL)) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(mc_replicate_config_check(config, count));
    struct mc_ops_call *call = mc_ops_begin(ops);
    for (size_t done = 0; done < count;) {
        size_t n = mc_ops_chunk_keys(keys + done, count - done);
        struct start_key *valid = mc_arena_alloc(&call->arena, n * sizeof(*valid));
        size_t valid_count = 0;
        for (size_t i = done; i < done + n; i++) {
            struct start_key key = {.index = i};
            results[i] = mc_ops_key(keys[i], &key.key);
            if (results[i] == MC_OK) {
                results[i] = may_start(ops, key.key, sizes[i]);
            }
            if (results[i] == MC_OK) {
                valid[valid_count++] = key;
            }
        }
        if (valid_count > 0) {
            start_chunk(ops, call, valid, valid_count, sizes, config, results);
        }
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return MC_OK;
}

/* ---- write ---- */

static enum mc_status check_ranges(const struct mc_store_range_item *item, uint64_t size) {
    for (size_t i = 0; i < item->range_count; i++) {
        const struct mc_store_range *range = &item->ranges[i];
        if (!mc_range_inside(range->offset, range->length, 0, size) ||
            (range->ptr == NULL && range->length > 0)) {
            return MC_INVALID_PARAMS;
        }
    }
    return MC_OK;
}

/* What a call that writes needs to know of a session. */
struct use {
    struct mc_vec replicas;
    unsigned stripes; /* of each copy; 0 = each replica holds it all */
    uint64_t size;
    uint64_t *sums; /* of the item's ranges, each shifted to its place; NULL = not to be had */
    bool in_doubt;
};

/* Finds the session, counts the caller as its user, and copies its replicas. */
static enum mc_status use(struct mc_ops *ops, struct mc_store_range_item *item,
                          struct mc_arena *arena, struct use *out) {
    struct mc_str key;
    struct mw_replica_list list;
    MC_TRY(mc_ops_key(item->key, &key));
    uint64_t now = mc_ops_now(ops);
    pthread_mutex_lock(&ops->lock);
    struct mc_session *session = *mc_session_find_locked(&ops->puts, key);
    enum mc_status status = session == NULL ? MC_INVALID_PARAMS : check_ranges(item, session->size);
    if (status == MC_OK && session->in_doubt) {
        status = MC_TRANSFER_FAIL;
    } else if (status == MC_OK && now >= session->closes_at_ns) {
        status = MC_LEASE_EXPIRED;
    }
    if (status == MC_OK) {
        session->users++;
        mc_session_copy_list(arena, &session->lease.list, &list);
        *out = (struct use){
            .replicas = list.replicas, .stripes = session->lease.stripes, .size = session->size};
    }
    pthread_mutex_unlock(&ops->lock);
    return status;
}

static void sum_ranges(struct mc_ops *ops, const struct mc_store_range_item *item,
                       struct mc_arena *arena, struct use *use) {
    uint64_t *sums = mc_arena_alloc(arena, (item->range_count + 1) * sizeof(*sums));
    bool possible = ops->checksum;
    for (size_t i = 0; i < item->range_count && possible; i++) {
        const struct mc_store_range *range = &item->ranges[i];
        struct mc_slice slice = {range->ptr, range->length};
        possible = range->length == 0 || mc_checksum_possible(&slice, 1);
        if (possible && range->length > 0) {
            sums[i] = mc_checksum_shift(mc_checksum_slices(&slice, 1, range->length),
                                        use->size - range->offset - range->length);
        }
    }
    use->sums = possible ? sums : NULL;
}

/* The call does not use the session any more. `use` NULL: it has not written. */
static void release(struct mc_ops *ops, struct mc_str key, const struct mc_store_range_item *item,
                    const struct use *use) {
    pthread_mutex_lock(&ops->lock);
    struct mc_session *session =
        *mc_session_find_locked(&ops->puts, key); /* its users keep it there */
    session->users--;
    session->in_doubt |= use != NULL && use->in_doubt;
    if (use != NULL && use->sums == NULL) {
        session->sum.lost = true;
    }
    for (size_t i = 0; use != NULL && use->sums != NULL && i < item->range_count; i++) {
        const struct mc_store_range *range = &item->ranges[i];
        if (item->status == MC_OK && range->length > 0) {
            mc_session_sum_add(&session->sum, range->offset, range->offset + range->length,
                               use->sums[i]);
        }
    }
    pthread_mutex_unlock(&ops->lock);
}

/* How many moves one item may need. */
static size_t count_moves(const struct mc_store_range_item *item, const struct use *use) {
    uint64_t total = 0;
    for (size_t i = 0; i < item->range_count; i++) {
        total += item->ranges[i].length;
    }
    return use->stripes > 0
               ? mc_ops_stripe_moves(&use->replicas, use->stripes, total, item->range_count)
               : use->replicas.count * item->range_count;
}

/* The moves of one range to each replica. */
static size_t add_range(const struct mc_store_range *range, const struct use *use,
                        struct mc_port_move *moves) {
    const struct mw_replica *replica = use->replicas.items;
    size_t n = 0;
    if (use->stripes > 0) {
        return mc_ops_stripe_writes(&use->replicas, use->stripes, range->ptr, range->offset,
                                    range->length, moves);
    }
    for (size_t r = 0; r < use->replicas.count && range->length > 0; r++) {
        if (replica[r].tag == MW_TAG_MEMORY) {
            moves[n++] =
                (struct mc_port_move){.op = MC_TRANSFER_WRITE,
                                      .local = range->ptr,
                                      .endpoint = replica[r].memory.endpoint,
                                      .remote_addr = replica[r].memory.address + range->offset,
                                      .length = range->length,
                                      .status = MC_INTERNAL_ERROR};
        }
    }
    return n;
}

static void write_chunk(struct mc_ops *ops, struct mc_ops_call *call,
                        struct mc_store_range_item *items, size_t count) {
    struct use *uses = mc_arena_zalloc(&call->arena, count * sizeof(*uses));
    bool *used = mc_arena_zalloc(&call->arena, count * sizeof(*used));
    size_t capacity = 0;
    for (size_t i = 0; i < count; i++) {
        items[i].length = 0;
        items[i].status = use(ops, &items[i], &call->arena, &uses[i]);
        used[i] = items[i].status == MC_OK;
        capacity += used[i] ? count_moves(&items[i], &uses[i]) : 0;
    }
    struct mc_port_move *moves = mc_arena_alloc(&call->arena, (capacity + 1) * sizeof(*moves));
    size_t *ends = mc_arena_alloc(&call->arena, count * sizeof(*ends)); /* of each item's moves */
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (used[i]) {
            sum_ranges(ops, &items[i], &call->arena, &uses[i]);
            for (size_t r = 0; r < items[i].range_count; r++) {
                n += add_range(&items[i].ranges[r], &uses[i], moves + n);
            }
        }
        ends[i] = n;
    }
    if (n > 0) {
        ops->port->ops->move(ops->port, moves, n, mc_ops_deadline(ops));
    }
    uint64_t written = 0;
    for (size_t i = 0, item = 0; i < n; i++) {
        while (i >= ends[item]) {
            item++;
        }
        written += moves[i].status == MC_OK ? moves[i].length : 0;
        if (moves[i].status != MC_OK) {
            items[item].status = MC_TRANSFER_FAIL;
            uses[item].in_doubt |= moves[i].status == MC_ERR_TIMEOUT;
        }
    }
    mc_metric_add(&ops->counters.written_bytes, (int64_t)written);
    for (size_t i = 0; i < count; i++) {
        for (size_t r = 0; r < items[i].range_count; r++) {
            items[i].ranges[r].status = items[i].status;
            items[i].length += items[i].status == MC_OK ? items[i].ranges[r].length : 0;
        }
        if (used[i]) {
            release(ops, mc_str_from(items[i].key), &items[i], &uses[i]);
        }
    }
}

enum mc_status mc_ops_put_session_write(struct mc_ops *ops, struct mc_store_range_item *items,
                                        size_t count) {
    if (count > 0 && items == NULL) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    for (size_t done = 0; done < count;) {
        size_t n = mc_min_u64(count - done, MC_STORE_BATCH_CHUNK);
        write_chunk(ops, call, items + done, n);
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return MC_OK;
}

/* ---- end and revoke ---- */

/* One session that is being ended or revoked. */
struct ending {
    struct mc_str key;
    struct mc_uuid writer;
    size_t index; /* of the caller's arrays */
    bool has_disk;
    bool sent;
    struct mw_opt_u64 checksum;
};

/* Counts the caller as the session's only user. */
static enum mc_status claim(struct mc_ops *ops, const char *name, struct ending *out,
                            bool *in_doubt) {
    MC_TRY(mc_ops_key(name, &out->key));
    pthread_mutex_lock(&ops->lock);
    struct mc_session *session = *mc_session_find_locked(&ops->puts, out->key);
    enum mc_status status = session == NULL       ? MC_INVALID_PARAMS
                            : session->users != 0 ? MC_OBJECT_REPLICA_BUSY
                                                  : MC_OK;
    if (status == MC_OK) {
        session->users = 1;
        out->writer = session->writer;
        out->has_disk = session->has_disk;
        if (mc_session_sum_known(&session->sum, session->size)) {
            out->checksum = (struct mw_opt_u64){true, session->sum.checksum};
        }
        *in_doubt = session->in_doubt;
    }
    pthread_mutex_unlock(&ops->lock);
    return status;
}

static void drop(struct mc_ops *ops, struct mc_str key) {
    pthread_mutex_lock(&ops->lock);
    mc_session_remove_locked(&ops->puts, mc_session_find_locked(&ops->puts, key));
    pthread_mutex_unlock(&ops->lock);
}

/* Ends or revokes those of `puts` that have the writer of the first unsent one: an RPC names one
 * writer. Sets their results. */
static void send_group(struct mc_ops *ops, struct mc_ops_call *call, struct ending *puts, size_t n,
                       size_t first, bool revoking, enum mc_status *results) {
    struct mc_uuid writer = puts[first].writer;
    struct mc_str *names = mc_arena_alloc(&call->arena, n * sizeof(*names));
    struct mc_str *files = mc_arena_alloc(&call->arena, n * sizeof(*files));
    struct mw_object_meta *metas = mc_arena_zalloc(&call->arena, n * sizeof(*metas));
    size_t *members = mc_arena_alloc(&call->arena, n * sizeof(*members));
    size_t count = 0, file_count = 0;
    for (size_t i = first; i < n; i++) {
        if (!puts[i].sent && mc_uuid_eq(puts[i].writer, writer)) {
            puts[i].sent = true;
            if (puts[i].has_disk) {
                files[file_count++] = puts[i].key;
            }
            metas[count] = (struct mw_object_meta){puts[i].key, puts[i].checksum};
            names[count] = puts[i].key;
            members[count++] = puts[i].index;
        }
    }
    struct mc_vec answers;
    enum mc_status status;
    if (revoking) {
        status = revoke_keys(ops, call, writer, names, count, MC_REPLICA_ALL, &answers);
    } else {
        if (file_count > 0 &&
            revoke_keys(ops, call, writer, files, file_count, MC_REPLICA_DISK, &answers) != MC_OK) {
            mc_warn_limited("file replicas could not be revoked: keys=%zu", file_count);
        }
        struct mw_a_batch_put_end args = {.client = writer,
                                          .metas = {metas, count},
                                          .type = MC_REPLICA_ALL,
                                          .tenant = ops->tenant};
        status = mc_ops_rpc_batch(ops, call, MC_RPC_BatchPutEnd, &args, &answers, count,
                                  mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    }
    const struct mw_e_void *answer = answers.items;
    for (size_t i = 0; i < count; i++) {
        enum mc_status own = status == MC_OK ? mc_ops_status(answer[i].error) : status;
        results[members[i]] = revoking && own == MC_OBJECT_NOT_FOUND ? MC_OK : own;
    }
}

static void finish_chunk(struct mc_ops *ops, struct mc_ops_call *call, const char *const *keys,
                         size_t count, bool revoking, enum mc_status *results) {
    struct ending *puts = mc_arena_alloc(&call->arena, count * sizeof(*puts));
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        bool in_doubt = false;
        puts[n] = (struct ending){.index = i};
        results[i] = claim(ops, keys[i], &puts[n], &in_doubt);
        if (results[i] == MC_OK) {
            /* What may still land in the space must not meet another object: it is not revoked. */
            puts[n].sent = in_doubt;
            results[i] = in_doubt && !revoking ? MC_TRANSFER_FAIL : MC_OK;
            n++;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!puts[i].sent) {
            send_group(ops, call, puts, n, i, revoking, results);
        }
    }
    for (size_t i = 0; i < n; i++) {
        enum mc_status own = results[puts[i].index];
        bool unanswered = own == MC_RPC_FAIL || own == MC_RPC_TIMEOUT;
        if (own == MC_OK || (revoking && !unanswered)) {
            drop(ops, puts[i].key);
        } else {
            release(ops, puts[i].key, NULL, NULL);
        }
    }
}

static enum mc_status finish(struct mc_ops *ops, const char *const *keys, size_t count,
                             bool revoking, enum mc_status *results) {
    if (count > 0 && (keys == NULL || results == NULL)) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    for (size_t done = 0; done < count;) {
        size_t n = mc_ops_chunk_keys(keys + done, count - done);
        finish_chunk(ops, call, keys + done, n, revoking, results + done);
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return MC_OK;
}

enum mc_status mc_ops_put_session_end(struct mc_ops *ops, const char *const *keys, size_t count,
                                      enum mc_status *results) {
    return finish(ops, keys, count, false, results);
}

enum mc_status mc_ops_put_session_revoke(struct mc_ops *ops, const char *const *keys, size_t count,
                                         enum mc_status *results) {
    return finish(ops, keys, count, true, results);
}

void mc_ops_put_session_revoke_all(struct mc_ops *ops) {
    pthread_mutex_lock(&ops->lock);
    size_t count = 0, open = ops->puts.count;
    char **keys = mc_alloc((open + 1) * sizeof(char *));
    for (size_t b = 0; b < OPS_SESSION_BUCKETS; b++) {
        for (const struct mc_session *s = ops->puts.buckets[b]; s != NULL; s = s->next) {
            keys[count++] = mc_str_dup(s->key);
        }
    }
    pthread_mutex_unlock(&ops->lock);
    enum mc_status *results = mc_alloc((count + 1) * sizeof(*results));
    enum mc_status status = finish(ops, (const char *const *)keys, count, true, results);
    MC_ASSERT(status == MC_OK);
    for (size_t i = 0; i < count; i++) {
        free(keys[i]);
    }
    free(keys);
    free(results);
}
