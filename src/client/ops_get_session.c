/*
 * Get sessions: start takes the lease and keeps the list of replicas, reads are of those replicas
 * while that lease goes on, end forgets both (the lease runs out by itself).
 *
 * A read works on a copy of the list and writes back what became of the lease: later when it was
 * renewed, and fewer replicas when the master does not name one any more. A session that was
 * started again meanwhile is another one and is left alone.
 */
#include "client/session.h"

/* ---- start ---- */

static enum mc_status keep(struct mc_ops *ops, struct mc_str key,
                           const struct mw_replica_list *list, uint64_t striped_bytes,
                           unsigned stripes, uint64_t asked_ns) {
    const struct mw_replica *replica = list->replicas.items;
    bool readable = mc_ops_readable(&list->replicas, stripes);
    for (size_t i = 0; i < list->replicas.count && !readable; i++) {
        readable = mc_ops_replica_on_disk(ops, &replica[i]);
    }
    if (!readable) {
        return MC_INVALID_REPLICA;
    }
    struct mc_session *session = mc_session_make(key, list);
    session->lease.striped_bytes = striped_bytes;
    session->lease.stripes = stripes;
    mc_ops_lease_taken(&session->lease, asked_ns);
    if (mc_ops_now(ops) >= session->lease.end_ns) {
        mc_session_free(session);
        return MC_LEASE_EXPIRED;
    }
    pthread_mutex_lock(&ops->lock);
    struct mc_session **at = mc_session_find_locked(&ops->gets, key);
    if (*at != NULL) {
        mc_session_remove_locked(&ops->gets, at);
        at = mc_session_find_locked(&ops->gets, key);
    }
    session->serial = ++ops->session_serial;
    bool added = mc_session_add_locked(&ops->gets, at, session);
    pthread_mutex_unlock(&ops->lock);
    return added ? MC_OK : MC_ERR_LIMIT;
}

/* Again in words of ours, because an object is striped. */
static void start_own(struct mc_ops *ops, struct mc_ops_call *call, struct mc_str *names, size_t n,
                      enum mc_status *results) {
    struct mc_vec answers;
    enum mc_status status = mc_ops_get_objects(ops, call, names, n, mc_ops_deadline(ops), &answers);
    for (size_t i = 0; i < n; i++) {
        const struct mw_e_object *answer = (const struct mw_e_object *)answers.items + i;
        const struct mw_object *o = &answer->value;
        unsigned stripes = 0;
        results[i] = status == MC_OK ? mc_ops_status(answer->error) : status;
        if (results[i] == MC_OK) {
            results[i] = mc_ops_object_stripes(o, &stripes);
        }
        if (results[i] == MC_OK) {
            results[i] =
                keep(ops, names[i], &o->list, stripes > 0 ? o->size : 0, stripes, call->asked_ns);
        }
    }
}

static void start_chunk(struct mc_ops *ops, struct mc_ops_call *call, const char *const *keys,
                        size_t count, enum mc_status *results) {
    struct mc_str *names = mc_arena_alloc(&call->arena, count * sizeof(*names));
    size_t *places = mc_arena_alloc(&call->arena, count * sizeof(*places));
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        results[i] = mc_ops_key(keys[i], &names[n]);
        if (results[i] == MC_OK) {
            places[n++] = i;
        }
    }
    if (n == 0) {
        return;
    }
    struct mw_a_keys args = {.keys = {names, n}, .tenant = ops->tenant};
    struct mc_vec answers;
    enum mc_status status = mc_ops_rpc_batch(ops, call, MC_RPC_BatchGetReplicaList, &args, &answers,
                                             n, mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    struct mc_str *striped = mc_arena_alloc(&call->arena, n * sizeof(*striped));
    size_t *striped_places = mc_arena_alloc(&call->arena, n * sizeof(*striped_places));
    size_t striped_count = 0;
    for (size_t i = 0; i < n; i++) {
        const struct mw_e_list *answer = (const struct mw_e_list *)answers.items + i;
        enum mc_status own = status == MC_OK ? mc_ops_status(answer->error) : status;
        results[places[i]] =
            own == MC_OK ? keep(ops, names[i], &answer->value, 0, 0, call->asked_ns) : own;
        if (own == MC_NOT_SUPPORTED) {
            striped[striped_count] = names[i];
            striped_places[striped_count++] = places[i];
        }
    }
    if (striped_count > 0) {
        enum mc_status *own = mc_arena_alloc(&call->arena, striped_count * sizeof(*own));
        start_own(ops, call, striped, striped_count, own);
        for (size_t i = 0; i < striped_count; i++) {
            results[striped_places[i]] = own[i];
        }
    }
}

enum mc_status mc_ops_get_session_start(struct mc_ops *ops, const char *const *keys, size_t count,
                                        enum mc_status *results) {
    if (count > 0 && (keys == NULL || results == NULL)) {
        return MC_INVALID_PARAMS;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    for (size_t done = 0; done < count;) {
        size_t n = mc_ops_chunk_keys(keys + done, count - done);
        start_chunk(ops, call, keys + done, n, results + done);
        mc_arena_reset(&call->arena);
        done += n;
    }
    mc_ops_end(ops, call);
    return MC_OK;
}

/* ---- read ---- */

/* Copies the session of the key; its serial, 0 when there is none. */
static uint64_t borrow(struct mc_ops *ops, const char *name, struct mc_arena *arena,
                       struct mc_ops_lease *lease) {
    struct mc_str key;
    uint64_t serial = 0;
    if (mc_ops_key(name, &key) != MC_OK) {
        return 0;
    }
    pthread_mutex_lock(&ops->lock);
    const struct mc_session *session = *mc_session_find_locked(&ops->gets, key);
    if (session != NULL) {
        serial = session->serial;
        *lease = session->lease;
        mc_session_copy_list(arena, &session->lease.list, &lease->list);
    }
    pthread_mutex_unlock(&ops->lock);
    return serial;
}

/* Writes back what a read found out. Of two reads at once the longer lease is right: both ask the
 * same master about the same object. */
static void give_back(struct mc_ops *ops, const struct mc_store_range_item *item, uint64_t serial,
                      const struct mc_ops_lease *lease) {
    pthread_mutex_lock(&ops->lock);
    struct mc_session **at = mc_session_find_locked(&ops->gets, mc_str_from(item->key));
    struct mc_session *session = *at;
    if (session != NULL && session->serial == serial) {
        if (item->status == MC_LEASE_EXPIRED) {
            mc_session_remove_locked(&ops->gets, at);
        } else {
            struct mw_replica *mine = session->lease.list.replicas.items;
            const struct mw_replica *seen = lease->list.replicas.items;
            for (size_t i = 0; i < session->lease.list.replicas.count; i++) {
                if (seen[i].status == MC_REPLICA_REMOVED) {
                    mine[i].status = MC_REPLICA_REMOVED;
                }
            }
            session->lease.end_ns = mc_max_u64(session->lease.end_ns, lease->end_ns);
            session->lease.renew_at_ns = mc_max_u64(session->lease.renew_at_ns, lease->renew_at_ns);
        }
    }
    pthread_mutex_unlock(&ops->lock);
}

/* The keys of items[0..count) that have a session are read together. */
static void read_items(struct mc_ops *ops, struct mc_store_range_item *items, size_t count) {
    struct mc_arena arena = {0};
    struct mc_store_range_item *going = mc_arena_alloc(&arena, count * sizeof(*going));
    struct mc_ops_lease *leases = mc_arena_zalloc(&arena, count * sizeof(*leases));
    uint64_t *serials = mc_arena_alloc(&arena, count * sizeof(*serials));
    size_t *places = mc_arena_alloc(&arena, count * sizeof(*places));
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        items[i].length = 0;
        items[i].status = MC_INVALID_PARAMS;
        serials[n] = borrow(ops, items[i].key, &arena, &leases[n]);
        if (serials[n] != 0) {
            going[n] = items[i];
            places[n++] = i;
        }
        for (size_t r = 0; r < items[i].range_count; r++) {
            items[i].ranges[r].status = MC_INVALID_PARAMS;
        }
    }
    mc_ops_read_ranges(ops, going, n, leases);
    for (size_t i = 0; i < n; i++) {
        items[places[i]] = going[i];
        give_back(ops, &going[i], serials[i], &leases[i]);
    }
    mc_arena_free(&arena);
}

enum mc_status mc_ops_get_session_read(struct mc_ops *ops, struct mc_store_range_item *items,
                                       size_t count) {
    if (count > 0 && items == NULL) {
        return MC_INVALID_PARAMS;
    }
    for (size_t done = 0; done < count;) {
        size_t n = mc_min_u64(count - done, MC_STORE_BATCH_CHUNK);
        read_items(ops, items + done, n);
        done += n;
    }
    return MC_OK;
}

/* ---- end ---- */

enum mc_status mc_ops_get_session_end(struct mc_ops *ops, const char *const *keys, size_t count) {
    if (count > 0 && keys == NULL) {
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < count; i++) {
        struct mc_str key;
        if (mc_ops_key(keys[i], &key) != MC_OK) {
            continue;
        }
        pthread_mutex_lock(&ops->lock);
        struct mc_session **at = mc_session_find_locked(&ops->gets, key);
        if (*at != NULL) {
            mc_session_remove_locked(&ops->gets, at);
        }
        pthread_mutex_unlock(&ops->lock);
    }
    return MC_OK;
}
