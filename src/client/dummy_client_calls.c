/*
 * A dummy's calls: which way each key's bytes take, one RPC for those that go by shared memory. See
 * client/dummy_client.h.
 */
#include "client/dummy_client_private.h"

#include "base/log.h"
#include "client/replicate_config.h"
#include "te/device.h"

#define CHUNK MC_STORE_BATCH_CHUNK

/* How one key's bytes travel. */
enum road {
    ROAD_NONE,
    ROAD_DIRECT,
    ROAD_STAGED,
    ROAD_OTHER /* put: in the request; get: acquired */
};
struct way {
    enum road road;
    char *staged;
    uint64_t length; /* of the value, or of the memory for it */
};

static uint64_t sum_of(const struct mc_store_item *item) {
    uint64_t sum = 0;
    for (size_t i = 0; i < item->slice_count; i++) {
        sum += item->slices[i].length;
    }
    return sum;
}

static bool has_memory(const struct mc_store_item *item) {
    for (size_t i = 0; i < item->slice_count; i++) {
        if (item->slices[i].ptr == NULL) {
            return false;
        }
    }
    return true;
}

static bool all_shared(struct mc_dummy_client *d, const struct mc_store_item *item) {
    for (size_t i = 0; i < item->slice_count; i++) {
        if (!mc_dummy_client_reaches(d, item->slices[i].ptr, item->slices[i].length)) {
            return false;
        }
    }
    return true;
}

static struct way way_of(struct mc_dummy_client *d, const struct mc_store_item *item) {
    struct way way = {.road = ROAD_OTHER, .length = sum_of(item)};
    if (item->slice_count == 0) {
        return way;
    }
    if (all_shared(d, item)) {
        way.road = ROAD_DIRECT;
    } else if ((way.staged = mc_dummy_stage(d, way.length)) != NULL) {
        way.road = ROAD_STAGED;
    }
    return way;
}

static void unstage(struct mc_dummy_client *d, const struct way *ways, size_t count,
                    bool answered) {
    for (size_t i = 0; i < count; i++) {
        if (ways[i].road == ROAD_STAGED) {
            mc_dummy_unstage(d, ways[i].staged, answered);
        }
    }
}

/* Appends the key's addresses and sizes to the request's lists. */
static void add_places(struct mc_arena *arena, const struct mc_store_item *item,
                       const struct way *way, struct mc_vec *addresses, struct mc_vec *sizes) {
    size_t count = way->road == ROAD_STAGED ? 1 : item->slice_count;
    uint64_t *a = mc_arena_alloc(arena, count * sizeof(*a));
    uint64_t *s = mc_arena_alloc(arena, count * sizeof(*s));
    for (size_t i = 0; i < count; i++) {
        bool staged = way->road == ROAD_STAGED;
        a[i] = (uintptr_t)(staged ? way->staged : item->slices[i].ptr);
        s[i] = staged ? way->length : item->slices[i].length;
    }
    ((struct mc_vec *)addresses->items)[addresses->count++] = (struct mc_vec){a, count};
    ((struct mc_vec *)sizes->items)[sizes->count++] = (struct mc_vec){s, count};
}

/* Whether the key's memory is one piece; upstream's node wants to know of memory in several exactly
 * how much the object fills, so gets of the two are different RPCs. */
static bool one_piece(const struct mc_store_item *item, const struct way *way) {
    return way->road == ROAD_STAGED || item->slice_count == 1;
}

/* The keys of a chunk that go by shared memory together, as the request has them. */
struct shared {
    size_t n;
    size_t places[CHUNK]; /* in the chunk */
    struct mc_str keys[CHUNK];
    struct mc_vec addresses, sizes; /* of lists */
};
enum pieces { ONE_PIECE = 1, SEVERAL = 2 };

static bool is_shared(const struct way *way) {
    return way->road == ROAD_DIRECT || way->road == ROAD_STAGED;
}

static void gather(struct shared *s, struct mc_arena *arena, const struct mc_store_item *items,
                   const struct way *ways, size_t count, unsigned pieces) {
    size_t bytes = count * sizeof(struct mc_vec);
    s->n = 0;
    s->addresses = (struct mc_vec){mc_arena_alloc(arena, bytes), 0};
    s->sizes = (struct mc_vec){mc_arena_alloc(arena, bytes), 0};
    for (size_t i = 0; i < count; i++) {
        if (is_shared(&ways[i]) &&
            (pieces & (one_piece(&items[i], &ways[i]) ? ONE_PIECE : SEVERAL)) != 0) {
            s->keys[s->n] = mc_str_from(items[i].key);
            s->places[s->n++] = i;
            add_places(arena, &items[i], &ways[i], &s->addresses, &s->sizes);
        }
    }
}

/* One answer a key, or the whole has failed. *answered: the node is not at it any more. */
static enum mc_status call_shared(struct mc_dummy_client *d, struct mc_dummy_rpc *r, size_t n,
                                  enum mc_client_rpc rpc, const void *args, struct mc_vec *ret,
                                  bool *answered) {
    enum mc_status status = n == 0 ? MC_OK : mc_dummy_rpc(d, r, rpc, args, ret);
    *answered = status == MC_OK;
    return status == MC_OK && ret->count != n ? MC_RPC_FAIL : status;
}

static bool key_fits(const char *key) {
    size_t len = strlen(key);
    return len > 0 && len <= MC_STORE_KEY_MAX;
}

/* ---- put ---- */

static void set_groups(struct mc_arena *arena, struct mw_replicate_config *wire,
                       const char *const *groups, size_t count) {
    if (groups != NULL) {
        wire->group_ids = (struct mw_opt_strs){true, mc_wire_strings(arena, groups, count)};
    }
}

/* A value that travels in the request. */
static enum mc_status put_inline(struct mc_dummy_client *d, struct mc_store_item *item,
                                 const struct mw_replicate_config *config, const char *group,
                                 bool upsert) {
    struct mc_dummy_rpc r = {0};
    struct mw_e_void ret;
    struct mc_str *parts = mc_arena_alloc(&r.arena, item->slice_count * sizeof(*parts));
    struct mw_a_dummy_put_parts args = {.key = mc_str_from(item->key),
                                        .parts = {parts, item->slice_count},
                                        .config = *config,
                                        .client = d->id};
    set_groups(&r.arena, &args.config, group != NULL ? &group : NULL, 1);
    enum mc_status status = sum_of(item) > MC_RPC_MAX_BODY / 2 ? MC_INVALID_PARAMS : MC_OK;
    for (size_t i = 0; i < item->slice_count && status == MC_OK; i++) {
        const struct mc_slice *slice = &item->slices[i];
        parts[i] = (struct mc_str){slice->ptr, slice->length};
        if (!mc_device_is_host(slice->ptr)) {
            char *copy = mc_arena_alloc(&r.arena, slice->length);
            status = mc_device_move(copy, slice->ptr, slice->length);
            parts[i].ptr = copy;
        }
    }
    if (status == MC_OK) {
        status = mc_dummy_rpc(d, &r,
                              upsert ? MC_CLIENT_RPC_upsert_parts_dummy_helper
                                     : MC_CLIENT_RPC_put_parts_dummy_helper,
                              &args, &ret);
    }
    mc_dummy_rpc_end(&r);
    return status != MC_OK ? status : mc_dummy_status(ret.error);
}

static enum mc_status stage_value(const struct mc_store_item *item, const struct way *way) {
    uint64_t at = 0;
    for (size_t i = 0; i < item->slice_count; i++) {
        MC_TRY(mc_device_move(way->staged + at, item->slices[i].ptr, item->slices[i].length));
        at += item->slices[i].length;
    }
    return MC_OK;
}

/* The keys of a chunk that go by shared memory, in one RPC. False when the answer is in doubt. */
static bool put_shared(struct mc_dummy_client *d, struct mc_store_item *items,
                       const struct way *ways, size_t count,
                       const struct mw_replicate_config *config, const char *const *groups,
                       bool upsert) {
    struct mc_dummy_rpc r = {0};
    const char *left_groups[CHUNK];
    struct shared s;
    gather(&s, &r.arena, items, ways, count, ONE_PIECE | SEVERAL);
    for (size_t i = 0; groups != NULL && i < s.n; i++) {
        left_groups[i] = groups[s.places[i]];
    }
    struct mw_a_dummy_put_from args = {.keys = {s.keys, s.n},
                                       .addresses = s.addresses,
                                       .sizes = s.sizes,
                                       .config = *config,
                                       .client = d->id};
    set_groups(&r.arena, &args.config, groups != NULL ? left_groups : NULL, s.n);
    struct mc_vec ret = {0};
    bool answered;
    enum mc_status status =
        call_shared(d, &r, s.n,
                    upsert ? MC_CLIENT_RPC_batch_upsert_from_multi_buffers_dummy_helper
                           : MC_CLIENT_RPC_batch_put_from_multi_buffers_dummy_helper,
                    &args, &ret, &answered);
    for (size_t i = 0; i < s.n; i++) {
        items[s.places[i]].status =
            status != MC_OK ? status : mc_dummy_status(((struct mw_e_void *)ret.items)[i].error);
    }
    mc_dummy_rpc_end(&r);
    return answered;
}

static void put_chunk(struct mc_dummy_client *d, struct mc_store_item *items, size_t count,
                      const struct mw_replicate_config *config, const char *const *groups,
                      bool upsert) {
    struct way ways[CHUNK];
    for (size_t i = 0; i < count; i++) {
        ways[i] = (struct way){.road = ROAD_NONE};
        items[i].status = !key_fits(items[i].key)                            ? MC_INVALID_KEY
                          : !has_memory(&items[i]) || sum_of(&items[i]) == 0 ? MC_INVALID_PARAMS
                                                                             : MC_OK;
        if (items[i].status == MC_OK) {
            ways[i] = way_of(d, &items[i]);
        }
        if (ways[i].road == ROAD_STAGED) {
            items[i].status = stage_value(&items[i], &ways[i]);
        }
        if (ways[i].road == ROAD_STAGED && items[i].status != MC_OK) {
            mc_dummy_unstage(d, ways[i].staged, true);
            ways[i].road = ROAD_NONE;
        }
    }
    unstage(d, ways, count, put_shared(d, items, ways, count, config, groups, upsert));
    for (size_t i = 0; i < count; i++) {
        if (ways[i].road == ROAD_OTHER) {
            items[i].status =
                put_inline(d, &items[i], config, groups != NULL ? groups[i] : NULL, upsert);
        }
    }
}

enum mc_status mc_dummy_client_put(struct mc_dummy_client *d, struct mc_store_item *items,
                                   size_t count, const struct mc_replicate_config *config,
                                   bool upsert) {
    const char *const *groups = config != NULL ? config->group_ids : NULL;
    struct mc_arena arena = {0};
    struct mw_replicate_config wire;
    if (groups != NULL && config->group_id_count != count) {
        return MC_INVALID_PARAMS;
    }
    mc_wire_replicate_config(&arena, config, &wire);
    for (size_t at = 0; at < count; at += CHUNK) {
        put_chunk(d, items + at, mc_min_u64(CHUNK, count - at), &wire,
                  groups != NULL ? groups + at : NULL, upsert);
    }
    mc_arena_free(&arena);
    return MC_OK;
}

/* ---- get ---- */

static enum mc_status scatter(const char *from, uint64_t length, const struct mc_store_item *item) {
    for (size_t i = 0; i < item->slice_count && length > 0; i++) {
        size_t n = mc_min_u64(length, item->slices[i].length);
        MC_TRY(mc_device_move(item->slices[i].ptr, from, n));
        from += n;
        length -= n;
    }
    return MC_OK;
}

/* The node says "wrong parameters" of memory that is too small; the caller wants to know how large
 * the object is. */
static void explain_failure(struct mc_dummy_client *d, struct mc_store_item *item,
                            uint64_t capacity) {
    uint64_t size;
    if ((item->status == MC_INVALID_PARAMS || item->status == MC_BUFFER_OVERFLOW) &&
        mc_dummy_client_size(d, item->key, &size) == MC_OK && size > capacity) {
        item->length = size;
        item->status = MC_BUFFER_OVERFLOW;
    }
}

/* What the node says of one key. */
static void take_read(struct mc_store_item *item, const struct way *way,
                      const struct mw_e_i64 *answer) {
    item->status = mc_dummy_status(answer->error);
    if (item->status != MC_OK) {
        return;
    }
    if (answer->value < 0 || (uint64_t)answer->value > way->length) {
        mc_error("the node says that it read more than fits: bytes=%lld", (long long)answer->value);
        item->status = MC_RPC_FAIL;
        return;
    }
    item->length = (size_t)answer->value;
    if (way->road == ROAD_STAGED) {
        item->status = scatter(way->staged, item->length, item);
    }
}

/* Memory in one piece as numbers instead of lists. */
static void flatten(struct mc_arena *arena, struct mc_vec *lists) {
    uint64_t *numbers = mc_arena_alloc(arena, (lists->count + 1) * sizeof(*numbers));
    for (size_t i = 0; i < lists->count; i++) {
        numbers[i] = *(uint64_t *)((struct mc_vec *)lists->items)[i].items;
    }
    lists->items = numbers;
}

/* The keys by shared memory in one piece, or the others. False when the answer is in doubt. */
static bool get_shared(struct mc_dummy_client *d, struct mc_store_item *items,
                       const struct way *ways, size_t count, bool one) {
    struct mc_dummy_rpc r = {0};
    struct shared s;
    gather(&s, &r.arena, items, ways, count, one ? ONE_PIECE : SEVERAL);
    if (one) {
        flatten(&r.arena, &s.addresses);
        flatten(&r.arena, &s.sizes);
    }
    struct mw_a_dummy_get_into args = {
        .keys = {s.keys, s.n}, .addresses = s.addresses, .sizes = s.sizes, .client = d->id};
    struct mc_vec ret = {0};
    bool answered;
    enum mc_status status =
        call_shared(d, &r, s.n,
                    one ? MC_CLIENT_RPC_batch_get_into_dummy_helper
                        : MC_CLIENT_RPC_batch_get_into_multi_buffers_dummy_helper,
                    &args, &ret, &answered);
    for (size_t i = 0; i < s.n; i++) {
        struct mc_store_item *item = &items[s.places[i]];
        if (status != MC_OK) {
            item->status = status;
        } else {
            take_read(item, &ways[s.places[i]], (struct mw_e_i64 *)ret.items + i);
        }
    }
    mc_dummy_rpc_end(&r);
    return answered;
}

/* What the node put into our local buffer goes to the caller. */
static void take_acquired(struct mc_dummy_client *d, struct mc_store_item *item,
                          const struct mw_dummy_buffer *buffer) {
    uint64_t capacity = sum_of(item);
    struct mc_slice slice;
    if (d->local.size == 0 || !mc_range_inside(buffer->address, buffer->size,
                                               (uintptr_t)d->local.memory, d->local.size)) {
        mc_error("the node names memory that is not in the local buffer: bytes=%llu",
                 (unsigned long long)buffer->size);
        item->status = MC_RPC_FAIL;
        return;
    }
    item->length = buffer->size;
    struct mc_store_item to = *item;
    if (item->slice_count == 0) {
        slice.ptr =
            item->allocate != NULL ? item->allocate(item->allocate_ctx, buffer->size) : NULL;
        slice.length = buffer->size;
        to.slices = &slice;
        to.slice_count = 1;
        item->status = slice.ptr != NULL ? MC_OK : MC_ERR_NO_MEMORY;
    } else if (buffer->size > capacity) {
        item->status = MC_BUFFER_OVERFLOW;
    }
    if (item->status == MC_OK) {
        item->status = scatter((const char *)(uintptr_t)buffer->address, buffer->size, &to);
    }
}

static void release_acquired(struct mc_dummy_client *d, const struct mw_e_dummy_buffer *buffers,
                             size_t count) {
    const struct mc_rpc_desc *desc = &mc_client_rpc_table()[MC_CLIENT_RPC_release_buffer_dummy];
    struct mc_buf bodies[CHUNK] = {0}, replies[CHUNK] = {0};
    struct mc_str views[CHUNK];
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        struct mw_a_shm_mapped args = {.address = buffers[i].value.address, .client = d->id};
        if (buffers[i].error == 0) {
            mc_master_rpc_encode_args(desc, 0, &args, &bodies[n]);
            views[n] = (struct mc_str){bodies[n].data, bodies[n].len};
            n++;
        }
    }
    uint64_t deadline = mc_now_ns(mc_clock_system()) + d->timeout_ms * MC_MS;
    if (n > 0 &&
        mc_rpc_call_many(d->rpc, desc->function_id, views, n, deadline, replies) != MC_OK) {
        mc_warn_limited("buffers could not be given back to the node: count=%zu", n);
    }
    for (size_t i = 0; i < n; i++) {
        mc_buf_free(&bodies[i]);
        mc_buf_free(&replies[i]);
    }
}

/* Reads `n` keys of the chunk through the local buffer. */
static void get_acquired(struct mc_dummy_client *d, struct mc_store_item *items,
                         const size_t *places, size_t n) {
    struct mc_dummy_rpc r = {0};
    struct mc_str *keys = mc_arena_alloc(&r.arena, (n + 1) * sizeof(*keys));
    for (size_t i = 0; i < n; i++) {
        keys[i] = mc_str_from(items[places[i]].key);
    }
    struct mw_a_dummy_keys args = {.keys = {keys, n}, .client = d->id};
    struct mc_vec ret = {0};
    enum mc_status status =
        mc_dummy_rpc(d, &r, MC_CLIENT_RPC_batch_acquire_buffer_dummy, &args, &ret);
    const struct mw_e_dummy_buffer *buffers = ret.items;
    if (status == MC_OK && ret.count != n) {
        status = MC_RPC_FAIL;
    }
    for (size_t i = 0; i < n; i++) {
        struct mc_store_item *item = &items[places[i]];
        item->status = status != MC_OK ? status : mc_dummy_status(buffers[i].error);
        if (item->status == MC_OK) {
            take_acquired(d, item, &buffers[i].value);
        }
    }
    if (status == MC_OK) {
        release_acquired(d, buffers, n);
    }
    mc_dummy_rpc_end(&r);
}

static void get_chunk(struct mc_dummy_client *d, struct mc_store_item *items, size_t count) {
    struct way ways[CHUNK] = {0};
    size_t places[CHUNK], n = 0;
    for (size_t i = 0; i < count; i++) {
        items[i].length = 0;
        ways[i] = (struct way){.road = ROAD_NONE};
        items[i].status = !key_fits(items[i].key)  ? MC_INVALID_KEY
                          : !has_memory(&items[i]) ? MC_INVALID_PARAMS
                                                   : MC_OK;
        if (items[i].status == MC_OK) {
            ways[i] = way_of(d, &items[i]);
        }
        if (ways[i].road == ROAD_OTHER) {
            places[n++] = i;
        }
    }
    unstage(d, ways, count,
            get_shared(d, items, ways, count, true)); /* what is staged is one piece */
    if (!get_shared(d, items, ways, count, false)) {
        mc_debug("keys in several pieces were not answered");
    }
    if (n > 0) {
        get_acquired(d, items, places, n);
    }
    for (size_t i = 0; i < n && n > 1; i++) { /* together they may not have fitted */
        if (items[places[i]].status == MC_INVALID_PARAMS) {
            get_acquired(d, items, &places[i], 1);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (is_shared(&ways[i])) {
            explain_failure(d, &items[i], ways[i].length);
        }
    }
}

enum mc_status mc_dummy_client_get(struct mc_dummy_client *d, struct mc_store_item *items,
                                   size_t count) {
    for (size_t at = 0; at < count; at += CHUNK) {
        get_chunk(d, items + at, mc_min_u64(CHUNK, count - at));
    }
    return MC_OK;
}

/* ---- ranges ---- */

/* One key's ranges through one staged block, so that they come from one object in one request. */
static void get_item_ranges(struct mc_dummy_client *d, struct mc_store_range_item *item) {
    struct mc_dummy_rpc r = {0};
    size_t count = item->range_count;
    uint64_t *to = mc_arena_alloc(&r.arena, (3 * count + 1) * sizeof(*to));
    uint64_t *from = to + count, *sizes = from + count, total = 0;
    bool good = true;
    for (size_t i = 0; i < count; i++) {
        good = good && item->ranges[i].ptr != NULL;
        to[i] = total;
        from[i] = item->ranges[i].offset;
        sizes[i] = item->ranges[i].length;
        total += sizes[i];
    }
    char *staged = good ? mc_dummy_stage(d, total) : NULL;
    uint64_t address = (uintptr_t)staged;
    struct mc_str key = mc_str_from(item->key);
    struct mc_vec keys = {&key, 1}, to_row = {to, count}, from_row = {from, count},
                  size_row = {sizes, count}, to_rows = {&to_row, 1}, from_rows = {&from_row, 1},
                  size_rows = {&size_row, 1}, ret = {0};
    struct mw_a_dummy_get_ranges args = {.addresses = {&address, 1},
                                         .keys = {&keys, 1},
                                         .to_offsets = {&to_rows, 1},
                                         .from_offsets = {&from_rows, 1},
                                         .sizes = {&size_rows, 1},
                                         .client = d->id};
    enum mc_status status =
        staged == NULL ? MC_INVALID_PARAMS
                       : mc_dummy_rpc(d, &r, MC_CLIENT_RPC_get_into_ranges_shm_helper, &args, &ret);
    bool answered = status == MC_OK;
    const struct mc_vec *rows = ret.items; /* of the buffer, then of the key */
    if (answered && (ret.count != 1 || rows->count != 1 ||
                     ((const struct mc_vec *)rows->items)->count != count)) {
        status = MC_RPC_FAIL;
    }
    const struct mw_e_i64 *one =
        status == MC_OK ? ((const struct mc_vec *)rows->items)->items : NULL;
    item->length = 0;
    item->status = status;
    for (size_t i = 0; i < count; i++) {
        item->ranges[i].status = one != NULL ? mc_dummy_status(one[i].error) : status;
        if (item->ranges[i].status == MC_OK) {
            item->ranges[i].status = mc_device_move(item->ranges[i].ptr, staged + to[i], sizes[i]);
        }
        if (item->ranges[i].status == MC_OK) {
            item->length += sizes[i];
        } else if (item->ranges[i].status != MC_INVALID_PARAMS) {
            item->status = item->ranges[i].status; /* the key's own */
        }
    }
    if (staged != NULL) {
        mc_dummy_unstage(d, staged, answered);
    }
    mc_dummy_rpc_end(&r);
}

enum mc_status mc_dummy_client_get_ranges(struct mc_dummy_client *d,
                                          struct mc_store_range_item *items, size_t count) {
    for (size_t i = 0; i < count; i++) {
        get_item_ranges(d, &items[i]);
    }
    return MC_OK;
}
