/*
 * What dummies ask of their node: each RPC becomes the store's own call, on the dummy's memory. See
 * client/dummies.h.
 *
 * A batch answers per key, so a key whose memory is not the dummy's fails alone: it is given no
 * slices' worth of a call, and its answer says MC_INVALID_PARAMS.
 */
#include "client/dummies_private.h"

#include <stdatomic.h>

#include "base/log.h"
#include "wire/client_rpc.h"

/* ---- what travels, as the store takes it ---- */

/* A key with a NUL inside becomes the empty one, which the store refuses. */
static const char *c_string(struct mc_dummy_call *call, struct mc_str s) {
    if (s.len == 0 || memchr(s.ptr, 0, s.len) != NULL) {
        return "";
    }
    return mc_arena_str(call->arena, s).ptr;
}

static const char **c_strings(struct mc_dummy_call *call, const struct mc_vec *list) {
    const struct mc_str *items = list->items;
    const char **out = mc_arena_alloc(call->arena, (list->count + 1) * sizeof(*out));
    for (size_t i = 0; i < list->count; i++) {
        out[i] = c_string(call, items[i]);
    }
    return out;
}

static enum mc_status take_config(struct mc_dummy_call *call,
                                  const struct mw_replicate_config *wire,
                                  struct mc_replicate_config *out) {
    if (wire->nof_replica_num > 0 || wire->dfs_replica_num > 0) {
        return MC_INVALID_PARAMS; /* tiers that this node does not write */
    }
    struct mc_vec preferred = wire->preferred_segments;
    if (preferred.count == 0 && wire->preferred_segment.len > 0) {
        preferred = (struct mc_vec){(void *)(uintptr_t)&wire->preferred_segment, 1};
    }
    *out = (struct mc_replicate_config){
        .replica_num = wire->replica_num,
        .with_soft_pin = wire->soft_pin_action == MC_SOFT_PIN_ENABLE,
        .without_soft_pin = wire->soft_pin_action == MC_SOFT_PIN_DISABLE,
        .soft_pin_ttl_ms = wire->soft_pin_ttl_ms.has ? wire->soft_pin_ttl_ms.value : 0,
        .with_hard_pin = wire->with_hard_pin,
        .preferred_segments = c_strings(call, &preferred),
        .preferred_segment_count = preferred.count,
        .prefer_same_node = wire->prefer_alloc_in_same_node,
        .data_type = wire->data_type,
        .group_ids = wire->group_ids.has ? c_strings(call, &wire->group_ids.value) : NULL,
        .group_id_count = wire->group_ids.has ? wire->group_ids.value.count : 0};
    return MC_OK;
}

/* The pieces as slices here; false when one is not the dummy's. */
static bool take_slices(struct mc_dummy_call *call, const uint64_t *addresses,
                        const uint64_t *sizes, size_t count, struct mc_store_item *item) {
    struct mc_slice *slices = mc_arena_alloc(call->arena, (count + 1) * sizeof(*slices));
    for (size_t i = 0; i < count; i++) {
        slices[i] = (struct mc_slice){mc_dummy_translate(call, addresses[i], sizes[i]), sizes[i]};
        if (slices[i].ptr == NULL) {
            return false;
        }
    }
    item->slices = slices;
    item->slice_count = count;
    return true;
}

/* A batch of which some keys may be refused beforehand: `items` are those that are left. */
struct batch {
    size_t total, count;
    struct mc_store_item *items;
    size_t *places; /* of each item among all keys */
    enum mc_status *results;
    uint64_t *lengths;
};

static void batch_init(struct mc_dummy_call *call, struct batch *b, size_t total) {
    b->total = total;
    b->count = 0;
    b->items = mc_arena_zalloc(call->arena, (total + 1) * sizeof(*b->items));
    b->places = mc_arena_alloc(call->arena, (total + 1) * sizeof(*b->places));
    b->results = mc_arena_alloc(call->arena, (total + 1) * sizeof(*b->results));
    b->lengths = mc_arena_zalloc(call->arena, (total + 1) * sizeof(*b->lengths));
    for (size_t i = 0; i < total; i++) {
        b->results[i] = MC_INVALID_PARAMS;
    }
}

static struct mc_store_item *batch_next(struct batch *b, size_t place) {
    b->places[b->count] = place;
    return &b->items[b->count];
}

/* The addresses and sizes of each key: one number, or with `multi` a list. */
static void batch_take(struct mc_dummy_call *call, struct batch *b, const struct mc_vec *keys,
                       const struct mc_vec *addresses, const struct mc_vec *sizes, bool multi) {
    const struct mc_str *key = keys->items;
    batch_init(call, b, keys->count);
    if (addresses->count != keys->count || sizes->count != keys->count) {
        return;
    }
    for (size_t i = 0; i < keys->count; i++) {
        struct mc_store_item *item = batch_next(b, i);
        const struct mc_vec *a = (const struct mc_vec *)addresses->items + i;
        const struct mc_vec *s = (const struct mc_vec *)sizes->items + i;
        item->key = c_string(call, key[i]);
        bool good =
            multi ? a->count == s->count && take_slices(call, a->items, s->items, a->count, item)
                  : take_slices(call, (const uint64_t *)addresses->items + i,
                                (const uint64_t *)sizes->items + i, 1, item);
        b->count += good;
    }
}

static void batch_done(struct batch *b, enum mc_status whole) {
    for (size_t i = 0; i < b->count; i++) {
        b->results[b->places[i]] = whole != MC_OK ? whole : b->items[i].status;
        b->lengths[b->places[i]] = b->items[i].length;
    }
}

static void batch_put(struct mc_dummy_call *call, struct batch *b,
                      const struct mw_replicate_config *wire, bool upsert) {
    struct mc_store *store = call->dummies->store;
    struct mc_replicate_config config;
    enum mc_status whole = take_config(call, wire, &config);
    if (whole == MC_OK && config.group_ids != NULL && config.group_id_count != b->total) {
        whole = MC_INVALID_PARAMS;
    } else if (whole == MC_OK && config.group_ids != NULL) { /* those of the keys that are left */
        const char **left = mc_arena_alloc(call->arena, (b->count + 1) * sizeof(*left));
        for (size_t i = 0; i < b->count; i++) {
            left[i] = config.group_ids[b->places[i]];
        }
        config.group_ids = left;
        config.group_id_count = b->count;
    }
    if (whole == MC_OK && b->count > 0) {
        whole = upsert ? mc_store_upsert_batch(store, b->items, b->count, &config)
                       : mc_store_put_batch(store, b->items, b->count, &config);
    }
    batch_done(b, whole);
}

static void batch_get(struct mc_dummy_call *call, struct batch *b) {
    batch_done(b,
               b->count > 0 ? mc_store_get_batch(call->dummies->store, b->items, b->count) : MC_OK);
}

/* ---- answers ---- */

static int32_t to_wire(enum mc_status status) {
    return mc_status_to_wire(status);
}

static struct mc_vec answer_voids(struct mc_dummy_call *call, const enum mc_status *results,
                                  size_t count) {
    struct mw_e_void *out = mc_arena_alloc(call->arena, (count + 1) * sizeof(*out));
    for (size_t i = 0; i < count; i++) {
        out[i].error = to_wire(results[i]);
    }
    return (struct mc_vec){out, count};
}

static struct mc_vec answer_lengths(struct mc_dummy_call *call, const struct batch *b) {
    struct mw_e_i64 *out = mc_arena_zalloc(call->arena, (b->total + 1) * sizeof(*out));
    for (size_t i = 0; i < b->total; i++) {
        bool too_large = b->results[i] == MC_BUFFER_OVERFLOW; /* upstream's word for it differs */
        out[i].error = to_wire(too_large ? MC_INVALID_PARAMS : b->results[i]);
        out[i].value = (int64_t)b->lengths[i];
    }
    return (struct mc_vec){out, b->total};
}

static int32_t first_failure(const struct batch *b) {
    for (size_t i = 0; i < b->total; i++) {
        if (b->results[i] != MC_OK) {
            return to_wire(b->results[i]);
        }
    }
    return 0;
}

/* ---- values that came with the request ---- */

static void put_values(struct mc_dummy_call *call, const struct mc_vec *keys,
                       const struct mc_vec *values, bool parts_of_one,
                       const struct mw_replicate_config *config, bool upsert,
                       struct mw_e_void *ret) {
    const struct mc_str *key = keys->items, *value = values->items;
    struct mc_slice *slices = mc_arena_alloc(call->arena, (values->count + 1) * sizeof(*slices));
    struct batch b;
    batch_init(call, &b, keys->count);
    for (size_t i = 0; i < values->count; i++) {
        slices[i] = (struct mc_slice){(void *)(uintptr_t)value[i].ptr, value[i].len};
    }
    for (size_t i = 0; i < keys->count && (parts_of_one || values->count == keys->count); i++) {
        struct mc_store_item *item = batch_next(&b, i);
        item->key = c_string(call, key[i]);
        item->slices = &slices[parts_of_one ? 0 : i];
        item->slice_count = parts_of_one ? values->count : 1;
        b.count++;
    }
    batch_put(call, &b, config, upsert);
    ret->error = first_failure(&b);
}

static void do_put(struct mc_dummy_call *call, struct mw_a_dummy_put *a, bool upsert, void *ret) {
    struct mc_vec keys = {&a->key, 1}, values = {&a->value, 1};
    put_values(call, &keys, &values, false, &a->config, upsert, ret);
}

static void do_put_parts(struct mc_dummy_call *call, struct mw_a_dummy_put_parts *a, bool upsert,
                         void *ret) {
    struct mc_vec keys = {&a->key, 1};
    put_values(call, &keys, &a->parts, true, &a->config, upsert, ret);
}

static void do_put_batch(struct mc_dummy_call *call, struct mw_a_dummy_put_batch *a, bool upsert,
                         void *ret) {
    put_values(call, &a->keys, &a->values, false, &a->config, upsert, ret);
}

/* ---- values in shared memory ---- */

static void do_put_from(struct mc_dummy_call *call, struct mw_a_dummy_put_from *a, bool multi,
                        bool upsert, struct mc_vec *ret) {
    struct batch b;
    batch_take(call, &b, &a->keys, &a->addresses, &a->sizes, multi);
    batch_put(call, &b, &a->config, upsert);
    *ret = answer_voids(call, b.results, b.total);
}

static void do_upsert_from(struct mc_dummy_call *call, struct mw_a_dummy_upsert_from *a,
                           struct mw_e_void *ret) {
    struct mc_vec keys = {&a->key, 1}, addresses = {&a->address, 1}, sizes = {&a->size, 1};
    struct batch b;
    batch_take(call, &b, &keys, &addresses, &sizes, false);
    batch_put(call, &b, &a->config, true);
    ret->error = first_failure(&b);
}

static void do_get_into(struct mc_dummy_call *call, struct mw_a_dummy_get_into *a, bool multi,
                        struct mc_vec *ret) {
    struct batch b;
    batch_take(call, &b, &a->keys, &a->addresses, &a->sizes, multi);
    batch_get(call, &b);
    *ret = answer_lengths(call, &b);
}

static enum mc_status get_range(struct mc_dummy_call *call, struct mw_a_dummy_get_range *a,
                                uint64_t *length) {
    struct mc_store *store = call->dummies->store;
    uint64_t address = a->address + a->to_offset;
    void *here = address >= a->address ? mc_dummy_translate(call, address, a->size) : NULL;
    if (here == NULL) {
        return MC_INVALID_PARAMS;
    }
    const char *key = c_string(call, a->key);
    if (a->whole && a->from_offset == 0) {
        size_t got = 0;
        enum mc_status status = mc_store_get(store, key, here, a->size, &got);
        *length = got;
        return status == MC_BUFFER_OVERFLOW ? MC_INVALID_PARAMS : status;
    }
    struct mc_store_range range = {.ptr = here, .length = a->size, .offset = a->from_offset};
    struct mc_store_range_item item = {.key = key, .ranges = &range, .range_count = 1};
    MC_TRY(mc_store_get_ranges(store, &item, 1));
    *length = a->size;
    return item.status != MC_OK ? item.status : range.status;
}

static void do_get_range(struct mc_dummy_call *call, struct mw_a_dummy_get_range *a,
                         struct mw_e_i64 *ret) {
    uint64_t length = 0;
    ret->error = to_wire(get_range(call, a, &length));
    ret->value = (int64_t)length;
}

/* The ranges of one key of one buffer, into a list of answers of their own. */
static struct mc_vec key_ranges(struct mc_dummy_call *call, uint64_t address, struct mc_str key,
                                const struct mc_vec *to, const struct mc_vec *from,
                                const struct mc_vec *sizes) {
    size_t count = sizes->count;
    struct mw_e_i64 *out = mc_arena_zalloc(call->arena, (count + 1) * sizeof(*out));
    struct mc_store_range *ranges = mc_arena_zalloc(call->arena, (count + 1) * sizeof(*ranges));
    const uint64_t *t = to->items, *f = from->items, *s = sizes->items;
    bool good = to->count == count && from->count == count;
    for (size_t i = 0; i < count && good; i++) {
        ranges[i] = (struct mc_store_range){.length = s[i], .offset = f[i]};
        ranges[i].ptr =
            t[i] <= UINT64_MAX - address ? mc_dummy_translate(call, address + t[i], s[i]) : NULL;
        good = ranges[i].ptr != NULL;
    }
    struct mc_store_range_item item = {
        .key = c_string(call, key), .ranges = ranges, .range_count = count};
    enum mc_status whole =
        good ? mc_store_get_ranges(call->dummies->store, &item, 1) : MC_INVALID_PARAMS;
    for (size_t i = 0; i < count; i++) {
        enum mc_status status = whole != MC_OK ? whole : ranges[i].status;
        out[i] = (struct mw_e_i64){to_wire(status), (int64_t)ranges[i].length};
    }
    return (struct mc_vec){out, count};
}

static struct mc_vec buffer_ranges(struct mc_dummy_call *call, struct mw_a_dummy_get_ranges *a,
                                   size_t buffer) {
    const struct mc_vec *keys = (const struct mc_vec *)a->keys.items + buffer;
    const struct mc_vec *to = (const struct mc_vec *)a->to_offsets.items + buffer;
    const struct mc_vec *from = (const struct mc_vec *)a->from_offsets.items + buffer;
    const struct mc_vec *sizes = (const struct mc_vec *)a->sizes.items + buffer;
    struct mc_vec *out = mc_arena_zalloc(call->arena, (keys->count + 1) * sizeof(*out));
    if (to->count != keys->count || from->count != keys->count || sizes->count != keys->count) {
        return (struct mc_vec){out, 0};
    }
    for (size_t i = 0; i < keys->count; i++) {
        out[i] = key_ranges(
            call, ((const uint64_t *)a->addresses.items)[buffer],
            ((const struct mc_str *)keys->items)[i], (const struct mc_vec *)to->items + i,
            (const struct mc_vec *)from->items + i, (const struct mc_vec *)sizes->items + i);
    }
    return (struct mc_vec){out, keys->count};
}

static void do_get_ranges(struct mc_dummy_call *call, struct mw_a_dummy_get_ranges *a,
                          struct mc_vec *ret) {
    size_t count = a->addresses.count;
    struct mc_vec *out = mc_arena_zalloc(call->arena, (count + 1) * sizeof(*out));
    if (a->keys.count != count || a->to_offsets.count != count || a->from_offsets.count != count ||
        a->sizes.count != count) {
        return; /* an empty list: nothing was read */
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = buffer_ranges(call, a, i);
    }
    *ret = (struct mc_vec){out, count};
}

/* ---- blocks in the dummy's local buffer ---- */

struct acquired { /* where an object goes that is being read */
    struct mc_dummy_call *call;
    uint64_t address;
    bool taken;
};

static void acquired_give(struct acquired *a) {
    if (a->taken && mc_dummy_block_give(a->call, a->address) != MC_OK) {
        mc_debug("a dummy gave its buffer away while it was filled");
    }
    a->taken = false;
}

static void *acquired_take(void *ctx, size_t length) {
    struct acquired *a = ctx;
    void *here = NULL;
    acquired_give(a); /* the object was replaced by one of another size */
    a->taken = mc_dummy_block_take(a->call, length, &a->address, &here) == MC_OK;
    return a->taken ? here : NULL;
}

static void acquire(struct mc_dummy_call *call, const struct mc_vec *keys,
                    struct mw_e_dummy_buffer *out) {
    struct acquired *places = mc_arena_zalloc(call->arena, (keys->count + 1) * sizeof(*places));
    struct batch b;
    batch_init(call, &b, keys->count);
    for (size_t i = 0; i < keys->count && call->dummy != NULL; i++) {
        struct mc_store_item *item = batch_next(&b, i);
        places[i].call = call;
        item->key = c_string(call, ((const struct mc_str *)keys->items)[i]);
        item->allocate = acquired_take;
        item->allocate_ctx = &places[i];
        b.count++;
    }
    batch_get(call, &b);
    for (size_t i = 0; i < keys->count; i++) {
        if (b.results[i] != MC_OK) {
            acquired_give(&places[i]);
        }
        enum mc_status status = b.results[i] == MC_ERR_NO_MEMORY ? MC_INVALID_PARAMS : b.results[i];
        out[i] = (struct mw_e_dummy_buffer){to_wire(status), {places[i].address, b.lengths[i]}};
    }
}

static void do_acquire_batch(struct mc_dummy_call *call, struct mw_a_dummy_keys *a,
                             struct mc_vec *ret) {
    struct mw_e_dummy_buffer *out =
        mc_arena_zalloc(call->arena, (a->keys.count + 1) * sizeof(*out));
    acquire(call, &a->keys, out);
    *ret = (struct mc_vec){out, a->keys.count};
}

static void do_allocate(struct mc_dummy_call *call, struct mw_a_shm_mapped *a,
                        struct mw_e_dummy_buffer *ret) {
    void *here;
    ret->value.size = a->address; /* the RPC's number is a size */
    ret->error = to_wire(mc_dummy_block_take(call, a->address, &ret->value.address, &here));
}

/* ---- questions, removals, tasks: no memory of the dummy ---- */

static void do_exist(struct mc_dummy_call *call, const struct mc_vec *keys, struct mw_e_bool *out) {
    const char **list = c_strings(call, keys);
    bool *exists = mc_arena_zalloc(call->arena, keys->count + 1);
    enum mc_status *results = mc_arena_zalloc(call->arena, (keys->count + 1) * sizeof(*results));
    enum mc_status whole = keys->count == 0 ? MC_OK
                                            : mc_store_exist_batch(call->dummies->store, list,
                                                                   keys->count, exists, results);
    for (size_t i = 0; i < keys->count; i++) {
        out[i] = (struct mw_e_bool){to_wire(whole != MC_OK ? whole : results[i]), exists[i]};
    }
}

static void do_exist_batch(struct mc_dummy_call *call, struct mc_vec *keys, struct mc_vec *ret) {
    struct mw_e_bool *out = mc_arena_zalloc(call->arena, (keys->count + 1) * sizeof(*out));
    do_exist(call, keys, out);
    *ret = (struct mc_vec){out, keys->count};
}

static void do_size(struct mc_dummy_call *call, struct mc_str key, struct mw_e_i64 *ret) {
    uint64_t length = 0;
    ret->error = to_wire(mc_store_size(call->dummies->store, c_string(call, key), &length));
    ret->value = (int64_t)length;
}

static void do_remove_batch(struct mc_dummy_call *call, struct mw_a_dummy_batch_remove *a,
                            struct mc_vec *ret) {
    size_t count = a->keys.count;
    enum mc_status *results = mc_arena_zalloc(call->arena, (count + 1) * sizeof(*results));
    enum mc_status whole =
        count == 0 ? MC_OK
                   : mc_store_remove_batch(call->dummies->store, c_strings(call, &a->keys), count,
                                           a->force, results);
    for (size_t i = 0; i < count && whole != MC_OK; i++) {
        results[i] = whole;
    }
    *ret = answer_voids(call, results, count);
}

static void do_remove_regex(struct mc_dummy_call *call, struct mw_a_dummy_remove *a,
                            struct mw_e_i64 *ret) {
    uint64_t removed = 0;
    ret->error = to_wire(
        mc_store_remove_regex(call->dummies->store, c_string(call, a->key), a->force, &removed));
    ret->value = (int64_t)removed;
}

static void do_remove_all(struct mc_dummy_call *call, bool force, struct mw_e_i64 *ret) {
    uint64_t removed = 0;
    ret->error = to_wire(mc_store_remove_all(call->dummies->store, force, &removed));
    ret->value = (int64_t)removed;
}

static void do_copy(struct mc_dummy_call *call, struct mw_a_dummy_copy *a, struct mw_e_uuid *ret) {
    struct mc_store_task_id id = {0};
    ret->error = to_wire(mc_store_copy(call->dummies->store, c_string(call, a->key),
                                       c_strings(call, &a->targets), a->targets.count, &id));
    ret->value = (struct mc_uuid){id.hi, id.lo};
}

static void do_move(struct mc_dummy_call *call, struct mw_a_dummy_move *a, struct mw_e_uuid *ret) {
    struct mc_store_task_id id = {0};
    ret->error = to_wire(mc_store_move(call->dummies->store, c_string(call, a->key),
                                       c_string(call, a->source), c_string(call, a->target), &id));
    ret->value = (struct mc_uuid){id.hi, id.lo};
}

static void do_query_task(struct mc_dummy_call *call, struct mc_uuid id, struct mw_e_task *ret) {
    struct mc_store_task task = {0};
    ret->error = to_wire(
        mc_store_task(call->dummies->store, (struct mc_store_task_id){id.hi, id.lo}, &task));
    ret->value =
        (struct mw_task_info){.id = {task.id.hi, task.id.lo},
                              .type = task.type,
                              .status = task.status,
                              .created = task.created_ms,
                              .updated = task.updated_ms,
                              .client = {task.client.hi, task.client.lo},
                              .message = mc_arena_str(call->arena, mc_str_from(task.message))};
}

/* ---- dispatch ---- */

static void do_ping(struct mc_dummies *ds, struct mc_uuid client, struct mw_e_ping *ret) {
    ret->value.client_status = mc_dummies_seen(ds, client) ? MC_CLIENT_OK : MC_CLIENT_NEED_REMOUNT;
}

union arguments { /* of any of the RPCs */
    struct mw_a_dummy_put put;
    struct mw_a_dummy_put_parts put_parts;
    struct mw_a_dummy_put_batch put_batch;
    struct mw_a_dummy_upsert_from upsert_from;
    struct mw_a_dummy_put_from put_from;
    struct mw_a_dummy_get_into get_into;
    struct mw_a_dummy_get_range get_range;
    struct mw_a_dummy_get_ranges get_ranges;
    struct mw_a_dummy_key key;
    struct mw_a_dummy_keys keys;
    struct mw_a_dummy_remove remove;
    struct mw_a_dummy_batch_remove batch_remove;
    struct mw_a_dummy_copy copy;
    struct mw_a_dummy_move move;
    struct mw_a_shm_mapped mapped;
    struct mc_uuid id;
    struct mc_str str;
    struct mc_vec vec;
    bool flag;
};
union answers {
    struct mw_e_void e_void;
    struct mw_e_bool e_bool;
    struct mw_e_i64 e_i64;
    struct mw_e_uuid e_uuid;
    struct mw_e_task e_task;
    struct mw_e_ping e_ping;
    struct mw_e_dummy_buffer e_buffer;
    struct mc_vec vec;
};

/* Which of the arguments is the dummy's id; {0, 0} where there is none. */
static struct mc_uuid client_of(enum mc_client_rpc rpc, const union arguments *a) {
    switch (rpc) {
    case MC_CLIENT_RPC_is_shm_mapped_internal:
    case MC_CLIENT_RPC_unregister_shm_buffer_internal:
    case MC_CLIENT_RPC_allocate_buffer_dummy:
    case MC_CLIENT_RPC_release_buffer_dummy:
        return a->mapped.client;
    case MC_CLIENT_RPC_acquire_buffer_dummy:
        return a->key.client;
    case MC_CLIENT_RPC_batch_acquire_buffer_dummy:
        return a->keys.client;
    case MC_CLIENT_RPC_put_dummy_helper:
    case MC_CLIENT_RPC_upsert_dummy_helper:
        return a->put.client;
    case MC_CLIENT_RPC_put_parts_dummy_helper:
    case MC_CLIENT_RPC_upsert_parts_dummy_helper:
        return a->put_parts.client;
    case MC_CLIENT_RPC_put_batch_dummy_helper:
    case MC_CLIENT_RPC_upsert_batch_dummy_helper:
        return a->put_batch.client;
    case MC_CLIENT_RPC_upsert_from_dummy_helper:
        return a->upsert_from.client;
    case MC_CLIENT_RPC_batch_put_from_dummy_helper:
    case MC_CLIENT_RPC_batch_upsert_from_dummy_helper:
    case MC_CLIENT_RPC_batch_put_from_multi_buffers_dummy_helper:
    case MC_CLIENT_RPC_batch_upsert_from_multi_buffers_dummy_helper:
        return a->put_from.client;
    case MC_CLIENT_RPC_batch_get_into_dummy_helper:
    case MC_CLIENT_RPC_batch_get_into_multi_buffers_dummy_helper:
        return a->get_into.client;
    case MC_CLIENT_RPC_get_into_range_shm_helper:
        return a->get_range.client;
    case MC_CLIENT_RPC_get_into_ranges_shm_helper:
        return a->get_ranges.client;
    default:
        return (struct mc_uuid){0};
    }
}

/* RPCs that move bytes. */
static bool run_data(struct mc_dummy_call *call, enum mc_client_rpc rpc, union arguments *a,
                     union answers *r) {
    switch (rpc) {
    case MC_CLIENT_RPC_put_dummy_helper:
    case MC_CLIENT_RPC_upsert_dummy_helper:
        do_put(call, &a->put, rpc == MC_CLIENT_RPC_upsert_dummy_helper, r);
        return true;
    case MC_CLIENT_RPC_put_parts_dummy_helper:
    case MC_CLIENT_RPC_upsert_parts_dummy_helper:
        do_put_parts(call, &a->put_parts, rpc == MC_CLIENT_RPC_upsert_parts_dummy_helper, r);
        return true;
    case MC_CLIENT_RPC_put_batch_dummy_helper:
    case MC_CLIENT_RPC_upsert_batch_dummy_helper:
        do_put_batch(call, &a->put_batch, rpc == MC_CLIENT_RPC_upsert_batch_dummy_helper, r);
        return true;
    case MC_CLIENT_RPC_upsert_from_dummy_helper:
        do_upsert_from(call, &a->upsert_from, &r->e_void);
        return true;
    case MC_CLIENT_RPC_batch_put_from_dummy_helper:
    case MC_CLIENT_RPC_batch_upsert_from_dummy_helper:
        do_put_from(call, &a->put_from, false, rpc == MC_CLIENT_RPC_batch_upsert_from_dummy_helper,
                    &r->vec);
        return true;
    case MC_CLIENT_RPC_batch_put_from_multi_buffers_dummy_helper:
    case MC_CLIENT_RPC_batch_upsert_from_multi_buffers_dummy_helper:
        do_put_from(call, &a->put_from, true,
                    rpc == MC_CLIENT_RPC_batch_upsert_from_multi_buffers_dummy_helper, &r->vec);
        return true;
    case MC_CLIENT_RPC_batch_get_into_dummy_helper:
    case MC_CLIENT_RPC_batch_get_into_multi_buffers_dummy_helper:
        do_get_into(call, &a->get_into,
                    rpc == MC_CLIENT_RPC_batch_get_into_multi_buffers_dummy_helper, &r->vec);
        return true;
    case MC_CLIENT_RPC_get_into_range_shm_helper:
        do_get_range(call, &a->get_range, &r->e_i64);
        return true;
    case MC_CLIENT_RPC_get_into_ranges_shm_helper:
        do_get_ranges(call, &a->get_ranges, &r->vec);
        return true;
    case MC_CLIENT_RPC_acquire_buffer_dummy:
        acquire(call, &(struct mc_vec){&a->key.key, 1}, &r->e_buffer);
        return true;
    case MC_CLIENT_RPC_batch_acquire_buffer_dummy:
        do_acquire_batch(call, &a->keys, &r->vec);
        return true;
    default:
        return false;
    }
}

/* RPCs that ask the master. */
static bool run_meta(struct mc_dummy_call *call, enum mc_client_rpc rpc, union arguments *a,
                     union answers *r) {
    switch (rpc) {
    case MC_CLIENT_RPC_isExist_internal:
        do_exist(call, &(struct mc_vec){&a->str, 1}, &r->e_bool);
        return true;
    case MC_CLIENT_RPC_batchIsExist_internal:
        do_exist_batch(call, &a->vec, &r->vec);
        return true;
    case MC_CLIENT_RPC_getSize_internal:
        do_size(call, a->str, &r->e_i64);
        return true;
    case MC_CLIENT_RPC_remove_internal:
        r->e_void.error = to_wire(
            mc_store_remove(call->dummies->store, c_string(call, a->remove.key), a->remove.force));
        return true;
    case MC_CLIENT_RPC_batchRemove_internal:
        do_remove_batch(call, &a->batch_remove, &r->vec);
        return true;
    case MC_CLIENT_RPC_removeByRegex_internal:
        do_remove_regex(call, &a->remove, &r->e_i64);
        return true;
    case MC_CLIENT_RPC_removeAll_internal:
        do_remove_all(call, a->flag, &r->e_i64);
        return true;
    case MC_CLIENT_RPC_create_copy_task:
        do_copy(call, &a->copy, &r->e_uuid);
        return true;
    case MC_CLIENT_RPC_create_move_task:
        do_move(call, &a->move, &r->e_uuid);
        return true;
    case MC_CLIENT_RPC_query_task:
        do_query_task(call, a->id, &r->e_task);
        return true;
    default:
        return false;
    }
}

/* RPCs about the dummy's memory: they wait for nothing. */
static bool run_memory(struct mc_dummy_call *call, enum mc_client_rpc rpc, union arguments *a,
                       union answers *r) {
    switch (rpc) {
    case MC_CLIENT_RPC_ping:
        do_ping(call->dummies, a->id, &r->e_ping);
        return true;
    case MC_CLIENT_RPC_unmap_shm_internal:
        mc_dummies_forget(call->dummies, a->id);
        return true;
    case MC_CLIENT_RPC_is_shm_mapped_internal:
        r->e_bool.value = mc_dummy_has_mapping(call, a->mapped.address);
        return true;
    case MC_CLIENT_RPC_unregister_shm_buffer_internal:
        r->e_void.error = to_wire(mc_dummy_unmap(call, a->mapped.address));
        return true;
    case MC_CLIENT_RPC_allocate_buffer_dummy:
        do_allocate(call, &a->mapped, &r->e_buffer);
        return true;
    case MC_CLIENT_RPC_release_buffer_dummy:
        r->e_void.error = to_wire(mc_dummy_block_give(call, a->mapped.address));
        return true;
    default:
        return false;
    }
}

static bool is_memory_rpc(enum mc_client_rpc rpc) {
    return rpc == MC_CLIENT_RPC_ping || rpc == MC_CLIENT_RPC_unmap_shm_internal ||
           rpc == MC_CLIENT_RPC_is_shm_mapped_internal ||
           rpc == MC_CLIENT_RPC_unregister_shm_buffer_internal ||
           rpc == MC_CLIENT_RPC_allocate_buffer_dummy ||
           rpc == MC_CLIENT_RPC_release_buffer_dummy || rpc == MC_CLIENT_RPC_service_ready_internal;
}

bool mc_dummies_slow(uint32_t function_id) {
    const struct mc_rpc_desc *desc = mc_client_rpc_find(function_id);
    return desc != NULL && !is_memory_rpc((enum mc_client_rpc)(desc - mc_client_rpc_table()));
}

bool mc_dummies_handle(struct mc_dummies *ds, const struct mc_rpc_request *request,
                       struct mc_rpc_reply *reply) {
    const struct mc_rpc_desc *desc = mc_client_rpc_find(request->function_id);
    union arguments args = {0};
    union answers answer = {0};
    unsigned version;
    if (desc == NULL) {
        return false;
    }
    MC_ASSERT(desc->args_size <= sizeof(args) && desc->ret_size <= sizeof(answer));
    enum mc_client_rpc rpc = (enum mc_client_rpc)(desc - mc_client_rpc_table());
    if (rpc == MC_CLIENT_RPC_service_ready_internal ||
        rpc == MC_CLIENT_RPC_batch_get_offload_object ||
        rpc == MC_CLIENT_RPC_release_offload_buffer) {
        return false;
    }
    if (mc_master_rpc_decode_args(desc, request->body, request->arena, &args, &version) != MC_OK) {
        reply->errc = MC_RPC_INVALID_ARGUMENTS;
        return true;
    }
    struct mc_dummy_call call;
    mc_dummy_call_begin(&call, ds, client_of(rpc, &args), request->arena);
    MC_ASSERT(run_data(&call, rpc, &args, &answer) || run_meta(&call, rpc, &args, &answer) ||
              run_memory(&call, rpc, &args, &answer));
    mc_dummy_call_end(&call);
    mc_master_rpc_encode_ret(desc, version, &answer, reply->body);
    return true;
}
