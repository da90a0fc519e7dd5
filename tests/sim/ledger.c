/*
 * The ledger: what the master has promised about places, written down request by request.
 *
 * PutStart promises its writer that the extents are its own until it ends or revokes the put, or
 * the release timeout has passed. A replica list promises its reader that the extents keep the
 * object until the lease ends. So whenever a Start hands out an extent, no entry of the ledger that
 * overlaps it may still be promised to somebody, neither on this segment nor on one that covers the
 * same bytes again, and not even by the master before this one. A removal by force is no exception:
 * the object goes, its bytes stay while a lease runs.
 *
 * CopyStart and MoveStart promise the same to whoever copies; what they give is complete from their
 * end on, and the source of a move is then named by no list, while those who read it go on.
 *
 * It also knows which replicas are complete and who wrote them: a list names no others, and only
 * the last writer of a key can end it.
 */
#include "sim/sim.h"

/* ---- entries ---- */

static bool promised(const struct sim_extent *e, uint64_t now_ms) {
    return e->lease_until_ms > now_ms || (!e->complete && e->write_until_ms > now_ms);
}

#define breach(sim, ...)                                                                           \
    do {                                                                                           \
        if (!(sim)->options.outside_only) {                                                        \
            sim_fail((sim), __VA_ARGS__);                                                          \
        }                                                                                          \
    } while (0)

static void drop(struct sim *sim, size_t i) {
    sim->extents[i] = sim->extents[--sim->extent_count];
}

/* Entries that say nothing any more: not promised, and not of the key's present writer. */
static void prune(struct sim *sim) {
    for (size_t i = 0; i < sim->extent_count;) {
        const struct sim_extent *e = &sim->extents[i];
        bool current =
            e->known && (e->key == SIM_NO_KEY || mc_uuid_eq(e->writer, sim->writer_of[e->key]));
        if (!current && !promised(e, sim_now_ms(sim))) {
            drop(sim, i);
        } else {
            i++;
        }
    }
}

static void add(struct sim *sim, const struct sim_extent *e) {
    if (sim->extent_count == sim->extent_capacity) {
        sim->extent_capacity = sim->extent_capacity ? sim->extent_capacity * 2 : 64;
        sim->extents = mc_realloc(sim->extents, sim->extent_capacity * sizeof(*sim->extents));
    }
    sim->extents[sim->extent_count++] = *e;
}

static unsigned key_of(const struct sim *sim, struct mc_str text) {
    return sim_key_find(sim, sim->spied_tenant, text);
}

static const char *name_of(unsigned key) {
    return key == SIM_NO_KEY ? "(another key)" : sim_key_name(key);
}

/* What was promised about memory that has gone is void:
 * nothing is read from there or lands there. */
static bool reachable(const struct sim *sim, const struct sim_extent *e) {
    for (unsigned i = 0; i < SIM_NODES; i++) {
        const struct sim_region *region = sim->nodes[i].region;
        if (region != NULL && mc_range_inside(e->address, e->size, region->base, region->size)) {
            return true;
        }
    }
    return false;
}

/* The place is given to somebody new: is it free of promises? */
static void check_free(struct sim *sim, uint64_t address, uint64_t size, unsigned key) {
    uint64_t now = sim_now_ms(sim);
    for (size_t i = 0; i < sim->extent_count;) {
        const struct sim_extent *e = &sim->extents[i];
        if (e->address >= address + size || address >= e->address + e->size) {
            i++;
            continue;
        }
        if (promised(e, now) && reachable(sim, e)) {
            breach(sim, "the place %#llx of %s, %s for %llu ms more, was given to %s",
                   (unsigned long long)e->address, name_of(e->key),
                   e->lease_until_ms > now ? "leased" : "being written",
                   (unsigned long long)(mc_max_u64(e->lease_until_ms,
                                                   e->complete ? 0 : e->write_until_ms) -
                                        now),
                   name_of(key));
        }
        if (e->key == key && e->known && e->address == address && e->complete) {
            SIM_COUNT(sim, overwritten_in_place);
        }
        drop(sim, i);
    }
}

/* `check`: the tenant of the request has no more now than its quota, unless it had before, as it
 * may when the cluster has shrunk. */
static void look_at_quotas(struct sim *sim, bool check) {
    struct mc_arena arena = {0};
    struct mc_tenant_info *all;
    size_t count;
    if (sim->profile.quota == 0 || sim->options.outside_only ||
        mc_master_tenants(sim->master, &arena, &all, &count) != MC_OK) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t *before = &sim->charged[mc_str_eq(all[i].name, MC_STR(SIM_GUEST))];
        if (check && mc_str_eq(all[i].name, sim->spied_tenant) &&
            all[i].charged > mc_max_u64(*before, all[i].effective)) {
            breach(sim, "a put was given a place, and the tenant has now %llu bytes of its %llu",
                   (unsigned long long)all[i].charged, (unsigned long long)all[i].effective);
        }
        *before = all[i].charged;
    }
    sim->result->coverage.quota_checks += check;
    mc_arena_free(&arena);
}

void sim_ledger_before(struct sim *sim, uint32_t function_id) {
    enum mc_master_rpc rpc = mc_master_rpc_index(mc_master_rpc_find(function_id));
    bool conditions = rpc == MC_RPC_StartPuts;
    if (conditions || rpc == MC_RPC_PutStart || rpc == MC_RPC_UpsertStart ||
        rpc == MC_RPC_BatchPutStart || rpc == MC_RPC_BatchUpsertStart) {
        look_at_quotas(sim, false);
    }
    for (unsigned key = 0; key < SIM_KEYS && conditions; key++) {
        struct mw_object_info o;
        bool known = mc_master_inspect(sim->master, mc_str_from(sim_key_tenant(sim, key)),
                                       mc_str_from(sim_key_text(sim, key)), &o) == MC_OK;
        sim->versions[key] = known ? o.version : 0;
    }
}

/* What was asked for on a condition was given only when that held. */
static void check_conditions(struct sim *sim, const struct mw_a_start_puts *args,
                             const struct mc_vec *ret) {
    const struct mc_str *keys = args->keys.items;
    const uint64_t *expected = args->expected.items;
    const struct mw_e_vec *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        unsigned key = key_of(sim, keys[i]);
        if (answers[i].error != 0 || key == SIM_NO_KEY) {
            continue;
        }
        if (args->condition == MW_PUT_IF_VERSION && sim->versions[key] != expected[i]) {
            breach(sim, "version %llx of %s was replaced, but it had %llx",
                   (unsigned long long)expected[i], name_of(key),
                   (unsigned long long)sim->versions[key]);
        } else if (!args->upsert && sim->versions[key] != 0 &&
                   (i == 0 || sim->profile.quota == 0)) { /* what came before may have evicted it */
            breach(sim, "a put of %s was given a place, but it is there", name_of(key));
        }
    }
}

static void count_stripes(struct sim *sim, const struct mw_a_start_puts *args,
                          const struct mc_vec *ret) {
    const uint64_t *lengths = args->lengths.items;
    const struct mw_e_vec *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        const struct mw_replica *first = answers[i].value.items;
        if (answers[i].error == 0 && first->memory.size < lengths[i]) {
            SIM_COUNT(sim, striped_puts);
            sim->result->coverage.striped_copies +=
                answers[i].value.count * first->memory.size >= 2 * lengths[i];
        }
    }
}

/* ---- what each kind of answer means ---- */

static void started(struct sim *sim, struct mc_str name, struct mc_uuid writer, uint64_t operation,
                    const struct mw_e_vec *answer) {
    if (answer->error != 0) {
        return;
    }
    unsigned key = key_of(sim, name);
    const struct mw_replica *replica = answer->value.items;
    if (answer->value.count == 0) {
        breach(sim, "a put of %s was given no place", name_of(key));
    }
    look_at_quotas(sim, true);
    prune(sim);
    sim->writer_of[key] = writer;
    sim->copy_of[key] = 0;
    for (size_t i = 0; i < answer->value.count; i++) {
        if (replica[i].tag != MW_TAG_MEMORY) {
            continue; /* a file */
        }
        struct sim_extent e = {.address = replica[i].memory.address,
                               .size = replica[i].memory.size,
                               .replica = replica[i].id,
                               .key = key,
                               .writer = writer,
                               .operation = operation,
                               .known = true,
                               .write_until_ms = sim_now_ms(sim) + sim->profile.release_ms};
        check_free(sim, e.address, e.size, key);
        add(sim, &e);
    }
}

/* No object of the workload has such a size. */
static bool is_stripe(const struct mw_replica *replica) {
    return replica->memory.size % MW_STRIPE_UNIT == 0;
}

static bool copied(const struct sim_extent *e) {
    return e->copier.hi != 0 || e->copier.lo != 0;
}

static void copy_started(struct sim *sim, struct mc_str name, struct mc_uuid copier,
                         const struct mw_replica *targets, size_t count, uint64_t moved_from) {
    unsigned key = key_of(sim, name);
    sim->copy_began_ns[key] = sim->now_ns;
    sim->copy_of[key] = ++sim->copies;
    sim->copier_of[key] = copier;
    prune(sim);
    for (size_t i = 0; i < count; i++) {
        struct sim_extent e = {.address = targets[i].memory.address,
                               .size = targets[i].memory.size,
                               .replica = targets[i].id,
                               .key = key,
                               .writer = sim->writer_of[key],
                               .copier = copier,
                               .copy = sim->copy_of[key],
                               .moved_from = moved_from,
                               .known = true,
                               .write_until_ms = sim_now_ms(sim) + sim->profile.release_ms};
        check_free(sim, e.address, e.size, key);
        add(sim, &e);
    }
    sim->result->coverage.stripes_moved += count > 0 && is_stripe(targets);
    sim->result->coverage.copies_begun += moved_from == 0;
    sim->result->coverage.moves_begun += moved_from != 0;
}

/* An end or a revocation names no copy: it is of the one that the master has let begin last. An
 * older one of the same node, which was never ended, may still be written. */
static bool is_of(const struct sim *sim, const struct sim_extent *e, unsigned key,
                  const struct mw_a_client_key *args) {
    return e->key == key && e->known && copied(e) && mc_uuid_eq(e->copier, args->client) &&
           (key == SIM_NO_KEY || e->copy == sim->copy_of[key]);
}

static void copy_ended(struct sim *sim, const struct mw_a_client_key *args, int32_t error,
                       bool move) {
    unsigned key = key_of(sim, args->key);
    uint64_t moved_from = 0;
    if (error == 0 && key != SIM_NO_KEY && sim->copy_of[key] == 0) {
        breach(sim, "a copy of %s was ended after that, or after the object had been replaced",
               name_of(key));
    }
    if (error == 0 && key != SIM_NO_KEY && !mc_uuid_eq(sim->copier_of[key], args->client)) {
        breach(sim, "a copy of %s was ended by the end of another", name_of(key));
    }
    for (size_t i = 0; error == 0 && i < sim->extent_count; i++) {
        struct sim_extent *e = &sim->extents[i];
        if (is_of(sim, e, key, args)) {
            e->complete = true;
            moved_from = e->moved_from;
        }
    }
    for (size_t i = 0; moved_from != 0 && i < sim->extent_count; i++) {
        struct sim_extent *e = &sim->extents[i];
        e->gone |= e->known && e->replica == moved_from;
    }
    if (error == 0) {
        sim->copy_of[key] = 0;
    }
    sim->result->coverage.copies_ended += error == 0 && !move;
    sim->result->coverage.moves_ended += error == 0 && move;
}

static void copy_revoked(struct sim *sim, const struct mw_a_client_key *args, int32_t error) {
    unsigned key = key_of(sim, args->key);
    for (size_t i = 0; error == 0 && i < sim->extent_count;) {
        const struct sim_extent *e = &sim->extents[i];
        if (is_of(sim, e, key, args) && !e->complete) {
            drop(sim, i);
        } else {
            i++;
        }
    }
    if (error == 0) {
        sim->copy_of[key] = 0;
    }
    sim->result->coverage.replications_revoked += error == 0;
}

static void ended(struct sim *sim, struct mc_str name, struct mc_uuid writer, int32_t type,
                  int32_t error) {
    unsigned key = key_of(sim, name);
    if (error != 0) {
        return;
    }
    if (key != SIM_NO_KEY && !mc_uuid_eq(sim->writer_of[key], writer)) {
        breach(sim, "a put of %s was ended by a writer whose put it is not", name_of(key));
    }
    for (size_t i = 0; i < sim->extent_count && type != MC_REPLICA_DISK; i++) {
        struct sim_extent *e = &sim->extents[i];
        if (e->key == key && mc_uuid_eq(e->writer, writer) && !copied(e)) {
            e->complete = true;
            sim_oracle_ended(sim, e->operation, key);
        }
    }
}

static void revoked(struct sim *sim, struct mc_str name, struct mc_uuid writer, int32_t type,
                    int32_t error) {
    unsigned key = key_of(sim, name);
    for (size_t i = 0; error == 0 && type != MC_REPLICA_DISK && i < sim->extent_count;) {
        const struct sim_extent *e = &sim->extents[i];
        if (e->key == key && mc_uuid_eq(e->writer, writer) && !e->complete && !copied(e)) {
            drop(sim, i);
        } else {
            i++;
        }
    }
}

static struct sim_extent *find_replica(struct sim *sim, const struct mw_replica *replica) {
    for (size_t i = 0; i < sim->extent_count; i++) {
        struct sim_extent *e = &sim->extents[i];
        if (e->known && e->replica == replica->id && e->address == replica->memory.address) {
            return e;
        }
    }
    return NULL;
}

static void listed(struct sim *sim, struct mc_str name, const struct mw_e_list *answer) {
    unsigned key = key_of(sim, name);
    const struct mw_replica *replica = answer->value.replicas.items;
    for (size_t i = 0; answer->error == 0 && i < answer->value.replicas.count; i++) {
        if (replica[i].tag != MW_TAG_MEMORY) {
            continue; /* no promise: its owner says what it still has */
        }
        if (replica[i].status == MC_REPLICA_REMOVED) {
            SIM_COUNT(sim, stripes_missing);
            continue; /* the place of a stripe that this copy has lost */
        }
        struct sim_extent *e = find_replica(sim, &replica[i]);
        if (e == NULL || e->key != key || e->size != replica[i].memory.size) {
            breach(sim, "the list of %s names a replica that no put of it was given", name_of(key));
        } else if (!e->complete) {
            breach(sim, "the list of %s names a replica that is not complete", name_of(key));
        } else if (e->gone) {
            breach(sim, "the list of %s names a replica that was moved away", name_of(key));
        } else {
            uint64_t until = sim_now_ms(sim) + answer->value.lease_ttl_ms;
            e->lease_until_ms = mc_max_u64(e->lease_until_ms, until);
            SIM_COUNT(sim, leases_tracked);
        }
    }
}

/* A segment that replaces another over the same bytes: its node was started anew. The master that
 * knew the old one keeps what it promised; a master that never knew it cannot. */
static void mounted(struct sim *sim, const struct mw_segment *segment, int32_t error) {
    for (size_t i = 0; error == 0 && i < sim->extent_count; i++) {
        struct sim_extent *e = &sim->extents[i];
        if (!e->known && sim->profile.reuse_addresses &&
            mc_range_inside(e->address, e->size, segment->base, segment->size)) {
            e->write_until_ms = 0;
            e->lease_until_ms = 0;
        }
    }
}

/* ---- from bytes ---- */

static void spy_starts(struct sim *sim, const struct mw_a_batch_put_start *args,
                       const struct mc_vec *ret, uint64_t operation) {
    const struct mc_str *keys = args->keys.items;
    const struct mw_e_vec *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        started(sim, keys[i], args->client, operation, &answers[i]);
    }
}

static void spy_ends(struct sim *sim, struct mc_uuid writer, const struct mc_vec *metas,
                     int32_t type, const struct mc_vec *ret) {
    const struct mw_object_meta *meta = metas->items;
    const struct mw_e_void *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        ended(sim, meta[i].key, writer, type, answers[i].error);
    }
}

static void spy_revokes(struct sim *sim, struct mc_uuid writer, const struct mc_vec *names,
                        int32_t type, const struct mc_vec *ret) {
    const struct mc_str *keys = names->items;
    const struct mw_e_void *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        revoked(sim, keys[i], writer, type, answers[i].error);
    }
}

static void spy_lists(struct sim *sim, const struct mw_a_keys *args, const struct mc_vec *ret) {
    const struct mc_str *keys = args->keys.items;
    const struct mw_e_list *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        listed(sim, keys[i], &answers[i]);
    }
}

static void spy_objects(struct sim *sim, const struct mw_a_keys *args, const struct mc_vec *ret) {
    const struct mc_str *keys = args->keys.items;
    const struct mw_e_object *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        struct mw_e_list list = {.error = answers[i].error, .value = answers[i].value.list};
        bool striped = list.error == 0 && answers[i].value.stripes > 1;
        const struct mw_replica *replica = list.value.replicas.items;
        size_t count = list.value.replicas.count;
        sim->result->coverage.striped_lists += striped;
        sim->result->coverage.striped_on_disk +=
            striped && replica[count - 1].tag == MW_TAG_LOCAL_DISK;
        listed(sim, keys[i], &list);
    }
}

static void spy_replication(struct sim *sim, enum mc_master_rpc rpc, const void *args,
                            const void *ret) {
    const struct mw_a_copy_start *copy = args;
    const struct mw_a_move_start *move = args;
    const struct mw_e_copy *copy_answer = ret;
    const struct mw_e_move *move_answer = ret;
    switch (rpc) {
    case MC_RPC_CopyStart:
        if (copy_answer->error == 0) {
            copy_started(sim, copy->key, copy->client, copy_answer->value.targets.items,
                         copy_answer->value.targets.count, 0);
        }
        break;
    case MC_RPC_MoveStart:
        if (move_answer->error == 0) {
            copy_started(sim, move->key, move->client, &move_answer->value.target.value,
                         move_answer->value.target.has, move_answer->value.source.id);
        }
        break;
    case MC_RPC_CopyEnd:
    case MC_RPC_MoveEnd:
        copy_ended(sim, args, *(const int32_t *)ret, rpc == MC_RPC_MoveEnd);
        if (*(const int32_t *)ret == MC_REPLICA_IS_GONE) { /* in vain, but the writing is over */
            copy_revoked(sim, args, MC_OK);
        }
        break;
    case MC_RPC_PromotionAllocStart: {
        const struct mw_a_promotion_start *promotion = args;
        const struct mw_e_promotion *promoted = ret;
        if (promoted->error == 0) {
            copy_started(sim, promotion->key, promotion->client, &promoted->value.memory, 1, 0);
        }
        break;
    }
    case MC_RPC_NotifyPromotionSuccess:
        copy_ended(sim, args, *(const int32_t *)ret, false);
        sim->result->coverage.promotions += *(const int32_t *)ret == MC_OK;
        break;
    case MC_RPC_NotifyPromotionFailure:
    case MC_RPC_CopyRevoke:
    case MC_RPC_MoveRevoke:
        copy_revoked(sim, args, *(const int32_t *)ret);
        break;
    default:
        break;
    }
}

/* Everything of a tenant was removed but what is in use. */
static void purged(struct sim *sim) {
    struct mw_replica_list list;
    struct mc_arena arena = {0};
    bool guests = mc_str_eq(sim->spied_tenant, MC_STR(SIM_GUEST));
    for (unsigned key = 0; key < SIM_KEYS; key++) {
        struct mc_str tenant = mc_str_from(sim_key_tenant(sim, key));
        struct mc_str text = mc_str_from(sim_key_text(sim, key));
        if (guests == sim_key_is_guests(sim, key) &&
            mc_master_peek(sim->master, tenant, text, &arena, &list) != MC_OK) {
            sim_oracle_removed(sim, key);
        }
    }
    mc_arena_free(&arena);
}

static void removed(struct sim *sim, struct mc_str name, int32_t error) {
    if (error == MC_OK || error == MC_OBJECT_NOT_FOUND) {
        sim_oracle_removed(sim, key_of(sim, name));
    }
}

static void spy_removals(struct sim *sim, const struct mw_a_batch_remove *args,
                         const struct mc_vec *ret) {
    const struct mc_str *keys = args->keys.items;
    const struct mw_e_void *answers = ret->items;
    for (size_t i = 0; i < ret->count; i++) {
        removed(sim, keys[i], answers[i].error);
    }
}

/* Requests that speak of one key or one segment. */
static void spy_single(struct sim *sim, enum mc_master_rpc rpc, const void *args, const void *ret,
                       uint64_t operation) {
    const struct mw_a_put_start *start = args;
    const struct mw_a_put_end *end = args;
    const struct mw_a_put_revoke *revoke = args;
    switch (rpc) {
    case MC_RPC_PutStart:
    case MC_RPC_UpsertStart:
        started(sim, start->key, start->client, operation, ret);
        break;
    case MC_RPC_PutEnd:
    case MC_RPC_UpsertEnd:
        ended(sim, end->meta.key, end->client, end->type, ((const struct mw_e_void *)ret)->error);
        break;
    case MC_RPC_PutRevoke:
    case MC_RPC_UpsertRevoke:
        revoked(sim, revoke->key, revoke->client, revoke->type,
                ((const struct mw_e_void *)ret)->error);
        break;
    case MC_RPC_GetReplicaList:
        listed(sim, ((const struct mw_a_key *)args)->key, ret);
        break;
    case MC_RPC_Remove:
        removed(sim, ((const struct mw_a_remove *)args)->key,
                ((const struct mw_e_void *)ret)->error);
        break;
    case MC_RPC_RemoveAll:
        purged(sim);
        break;
    case MC_RPC_MountSegment:
        mounted(sim, &((const struct mw_a_mount *)args)->segment,
                ((const struct mw_e_void *)ret)->error);
        break;
    case MC_RPC_ReMountSegment: {
        const struct mw_a_remount *remount = args;
        if (remount->segments.count > 0) {
            mounted(sim, remount->segments.items, ((const struct mw_e_void *)ret)->error);
        }
        break;
    }
    default:
        spy_replication(sim, rpc, args, ret);
    }
}

static void spy(struct sim *sim, enum mc_master_rpc rpc, const void *args, const void *ret,
                uint64_t operation) {
    const struct mw_a_batch_put_end *ends = args;
    const struct mw_a_batch_put_revoke *revokes = args;
    switch (rpc) {
    case MC_RPC_BatchPutStart:
    case MC_RPC_BatchUpsertStart:
        spy_starts(sim, args, ret, operation);
        break;
    case MC_RPC_StartPuts: {
        const struct mw_a_start_puts *more = args;
        struct mw_a_batch_put_start plain = {.client = more->client, .keys = more->keys};
        check_conditions(sim, more, ret);
        count_stripes(sim, more, ret);
        spy_starts(sim, &plain, ret, operation);
        break;
    }
    case MC_RPC_BatchPutEnd:
        spy_ends(sim, ends->client, &ends->metas, ends->type, ret);
        break;
    case MC_RPC_BatchUpsertEnd: {
        const struct mw_a_batch_upsert_end *upserts = args;
        spy_ends(sim, upserts->client, &upserts->metas, MC_REPLICA_ALL, ret);
        break;
    }
    case MC_RPC_BatchPutRevoke:
        spy_revokes(sim, revokes->client, &revokes->keys, revokes->type, ret);
        break;
    case MC_RPC_BatchUpsertRevoke: {
        const struct mw_a_batch_upsert_revoke *upserts = args;
        spy_revokes(sim, upserts->client, &upserts->keys, MC_REPLICA_ALL, ret);
        break;
    }
    case MC_RPC_BatchRemove:
        spy_removals(sim, args, ret);
        break;
    case MC_RPC_BatchGetReplicaList:
        spy_lists(sim, args, ret);
        break;
    case MC_RPC_GetObjects:
        spy_objects(sim, args, ret);
        break;
    default:
        spy_single(sim, rpc, args, ret, operation);
    }
}

/* Whose keys a request is about. */
static struct mc_str tenant_of(enum mc_master_rpc rpc, const void *args) {
#define TENANT(type) (((const struct type *)args)->tenant)
    switch (rpc) {
    case MC_RPC_BatchPutStart:
    case MC_RPC_BatchUpsertStart:
        return TENANT(mw_a_batch_put_start);
    case MC_RPC_StartPuts:
        return TENANT(mw_a_start_puts);
    case MC_RPC_BatchPutEnd:
        return TENANT(mw_a_batch_put_end);
    case MC_RPC_BatchUpsertEnd:
        return TENANT(mw_a_batch_upsert_end);
    case MC_RPC_BatchPutRevoke:
        return TENANT(mw_a_batch_put_revoke);
    case MC_RPC_BatchUpsertRevoke:
        return TENANT(mw_a_batch_upsert_revoke);
    case MC_RPC_BatchRemove:
        return TENANT(mw_a_batch_remove);
    case MC_RPC_BatchGetReplicaList:
    case MC_RPC_GetObjects:
        return TENANT(mw_a_keys);
    case MC_RPC_PutStart:
    case MC_RPC_UpsertStart:
        return TENANT(mw_a_put_start);
    case MC_RPC_PutEnd:
    case MC_RPC_UpsertEnd:
        return TENANT(mw_a_put_end);
    case MC_RPC_PutRevoke:
    case MC_RPC_UpsertRevoke:
        return TENANT(mw_a_put_revoke);
    case MC_RPC_GetReplicaList:
        return TENANT(mw_a_key);
    case MC_RPC_Remove:
        return TENANT(mw_a_remove);
    case MC_RPC_RemoveAll:
        return TENANT(mw_a_remove_all);
    case MC_RPC_CopyStart:
        return TENANT(mw_a_copy_start);
    case MC_RPC_MoveStart:
        return TENANT(mw_a_move_start);
    case MC_RPC_PromotionAllocStart:
        return TENANT(mw_a_promotion_start);
    case MC_RPC_CopyEnd:
    case MC_RPC_MoveEnd:
    case MC_RPC_CopyRevoke:
    case MC_RPC_MoveRevoke:
    case MC_RPC_NotifyPromotionSuccess:
    case MC_RPC_NotifyPromotionFailure:
        return TENANT(mw_a_client_key);
    default:
        return (struct mc_str){"", 0};
    }
#undef TENANT
}

void sim_ledger_spy(struct sim *sim, uint32_t function_id, struct mc_str request,
                    struct mc_str reply, uint64_t operation) {
    const struct mc_rpc_desc *desc = mc_master_rpc_find(function_id);
    struct mc_arena *arena = &sim->spy_arena;
    void *args = mc_arena_zalloc(arena, desc->args_size + 1);
    void *ret = mc_arena_zalloc(arena, desc->ret_size + 1);
    unsigned version = 0;
    if (mc_master_rpc_decode_args(desc, request, arena, args, &version) != MC_OK ||
        mc_master_rpc_decode_ret(desc, version, reply, arena, ret) != MC_OK) {
        breach(sim, "%s cannot be decoded", desc->name);
    } else {
        sim->spied_tenant = tenant_of(mc_master_rpc_index(desc), args);
        spy(sim, mc_master_rpc_index(desc), args, ret, operation);
    }
    mc_arena_reset(arena);
}

/* ---- losses ---- */

/* The promises of a master that has gone are still believed by those who got them. */
void sim_ledger_master_lost(struct sim *sim) {
    for (size_t i = 0; i < sim->extent_count; i++) {
        sim->extents[i].known = false;
    }
    memset(sim->writer_of, 0, sizeof(sim->writer_of));
    memset(sim->copy_of, 0, sizeof(sim->copy_of));
}

/* Who has memory of this name mounted: the node, or a process of it that has died. A late mount by
 * such a one takes the place of the live one's segment until its next heartbeat; what is drained
 * then is what the dead one had. */
struct drained {
    struct sim *sim;
    struct mc_arena arena;
    const struct mc_master_segment_info *segments;
    size_t count;
    struct mc_str name;
    bool by_the_living;
    uint64_t disk_only;
};

static bool goes(const struct drained *d, struct mc_uuid client) {
    for (size_t i = 0; i < d->count; i++) {
        if (mc_str_eq(d->segments[i].segment.name, d->name) &&
            mc_uuid_eq(d->segments[i].client, client)) {
            return true;
        }
    }
    return false;
}

static bool count_disk_only(void *ctx, struct mc_str tenant, struct mc_str key) {
    struct drained *d = ctx;
    struct mw_replica_list list;
    if (mc_master_peek(d->sim->master, tenant, key, &d->arena, &list) == MC_OK) {
        const struct mw_replica *r = list.replicas.items;
        size_t theirs = 0;
        for (size_t i = 0; i < list.replicas.count; i++) {
            theirs += r[i].tag == MW_TAG_LOCAL_DISK && goes(d, r[i].local_disk.client_id);
        }
        d->disk_only += theirs > 0 && theirs == list.replicas.count;
    }
    return true;
}

void sim_ledger_drained(struct sim *sim, const struct sim_node *node, uint64_t disk_only) {
    struct drained d = {.sim = sim, .name = mc_str_from(node->process.name)};
    d.segments = mc_master_segments(sim->master, &d.arena, &d.count);
    for (size_t i = 0; i < d.count; i++) {
        d.by_the_living |= node->region != NULL && d.segments[i].segment.base == node->region->base;
    }
    mc_master_each_key(sim->master, NULL, count_disk_only, &d);
    mc_arena_free(&d.arena);
    if (d.disk_only != disk_only || (disk_only > 0 && !sim->leave_disks)) {
        breach(sim, "%s is drained, and only its disk has %llu objects; the master says %llu",
               node->process.name, (unsigned long long)d.disk_only, (unsigned long long)disk_only);
    }
    sim->result->coverage.left_on_disk += disk_only;
    if (sim->profile.reuse_addresses || !d.by_the_living) {
        return; /* promises about memory that was there before cannot be told apart */
    }
    for (size_t i = 0; i < sim->extent_count; i++) {
        const struct sim_extent *e = &sim->extents[i];
        if (e->known && promised(e, sim_now_ms(sim)) &&
            mc_range_inside(e->address, e->size, node->region->base, node->region->size)) {
            breach(sim, "%s is drained, but the place %#llx of %s there is still %s",
                   node->process.name, (unsigned long long)e->address, name_of(e->key),
                   e->complete ? "leased" : "being written");
        }
    }
}
