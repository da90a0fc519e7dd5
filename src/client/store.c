/*
 * The store's public calls: thin over ops (client/ops.h); each that moved bytes is counted, with
 * its time.
 */
#include "client/replicate_config.h"
#include "client/store_private.h"

#include <stdatomic.h>

#include "base/export.h"

static uint64_t now(void) {
    return mc_now_ns(mc_clock_system());
}

/* What a node does not do for others. */
static enum mc_status own(const struct mc_store *s) {
    return s->dummy == NULL ? MC_OK : MC_UNAVAILABLE_IN_CURRENT_MODE;
}

/* Moving bytes needs an engine; asking and removing does not. */
static enum mc_status check(const struct mc_store *s) {
    return s->engine != NULL ? MC_OK : MC_UNAVAILABLE_IN_CURRENT_MODE;
}

/* ---- the store itself ---- */

MC_PUBLIC const char *mc_store_hostname(const struct mc_store *store) {
    return store->name;
}

MC_PUBLIC struct mc_engine *mc_store_engine(struct mc_store *store) {
    return store->engine;
}

MC_PUBLIC enum mc_status mc_store_health(struct mc_store *store) {
    if (store->dummy != NULL) {
        return mc_dummy_client_health(store->dummy);
    }
    return atomic_load_explicit(&store->healthy, memory_order_relaxed) ? MC_OK : MC_RPC_FAIL;
}

MC_PUBLIC char *mc_store_metrics(struct mc_store *s) {
    struct mc_buf text = {0};
    mc_metrics_print(s->metrics, &text);
    char *engine = s->engine != NULL ? mc_engine_metrics(s->engine) : NULL;
    if (engine != NULL) {
        mc_buf_puts(&text, engine);
        free(engine);
    }
    (void)mc_buf_cstr(&text);
    return text.data;
}

/* ---- put ---- */

static enum mc_status put_items(struct mc_store *s, struct mc_store_item *items, size_t count,
                                const struct mc_replicate_config *config, bool upsert) {
    if (s->dummy != NULL) {
        if (mc_replicate_config_is_ours(config)) {
            return MC_UNAVAILABLE_IN_CURRENT_MODE;
        }
        return mc_dummy_client_put(s->dummy, items, count, config, upsert);
    }
    MC_TRY(check(s));
    return mc_ops_put(s->ops, items, count, config, upsert);
}

static enum mc_status put_one(struct mc_store *s, const char *key, const void *value, size_t length,
                              const struct mc_replicate_config *config, bool upsert) {
    uint64_t begin = now();
    struct mc_slice slice = {(void *)(uintptr_t)value, length}; /* only read */
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    MC_TRY(put_items(s, &item, 1, config, upsert));
    MC_TRY(item.status);
    mc_store_count(s, upsert ? MC_STORE_UPSERT : MC_STORE_PUT, begin, length);
    return MC_OK;
}

static uint64_t slices_bytes(const struct mc_store_item *item) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < item->slice_count; i++) {
        bytes += item->slices[i].length;
    }
    return bytes;
}

static enum mc_status put_many(struct mc_store *s, struct mc_store_item *items, size_t count,
                               const struct mc_replicate_config *config, bool upsert) {
    uint64_t begin = now(), bytes = 0;
    MC_TRY(put_items(s, items, count, config, upsert));
    for (size_t i = 0; i < count; i++) {
        bytes += items[i].status == MC_OK ? slices_bytes(&items[i]) : 0;
    }
    if (bytes > 0) {
        mc_store_count(s, upsert ? MC_STORE_UPSERT_BATCH : MC_STORE_PUT_BATCH, begin, bytes);
    }
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_store_put(struct mc_store *s, const char *key, const void *value,
                                      size_t length, const struct mc_replicate_config *config) {
    return put_one(s, key, value, length, config, false);
}

MC_PUBLIC enum mc_status mc_store_upsert(struct mc_store *s, const char *key, const void *value,
                                         size_t length, const struct mc_replicate_config *config) {
    return put_one(s, key, value, length, config, true);
}

MC_PUBLIC enum mc_status mc_store_put_batch(struct mc_store *s, struct mc_store_item *items,
                                            size_t count,
                                            const struct mc_replicate_config *config) {
    return put_many(s, items, count, config, false);
}

MC_PUBLIC enum mc_status mc_store_upsert_batch(struct mc_store *s, struct mc_store_item *items,
                                               size_t count,
                                               const struct mc_replicate_config *config) {
    return put_many(s, items, count, config, true);
}

/* ---- get ---- */

static enum mc_status get_items(struct mc_store *s, struct mc_store_item *items, size_t count) {
    if (s->dummy != NULL) {
        return mc_dummy_client_get(s->dummy, items, count);
    }
    MC_TRY(check(s));
    return mc_ops_get(s->ops, items, count);
}

MC_PUBLIC enum mc_status mc_store_get(struct mc_store *s, const char *key, void *buffer,
                                      size_t capacity, size_t *length) {
    uint64_t begin = now();
    struct mc_slice slice = {buffer, capacity};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    MC_TRY(get_items(s, &item, 1));
    if (item.status == MC_OK || item.status == MC_BUFFER_OVERFLOW) {
        *length = item.length;
    }
    MC_TRY(item.status);
    mc_store_count(s, MC_STORE_GET, begin, item.length);
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_store_get_batch(struct mc_store *s, struct mc_store_item *items,
                                            size_t count) {
    uint64_t begin = now(), bytes = 0;
    MC_TRY(get_items(s, items, count));
    for (size_t i = 0; i < count; i++) {
        bytes += items[i].status == MC_OK ? items[i].length : 0;
    }
    if (bytes > 0) {
        mc_store_count(s, MC_STORE_GET_BATCH, begin, bytes);
    }
    return MC_OK;
}

/* ---- questions and removals ---- */

MC_PUBLIC enum mc_status mc_store_exist_batch(struct mc_store *s, const char *const *keys,
                                              size_t count, bool *exists, enum mc_status *results) {
    uint64_t begin = now();
    MC_TRY(s->dummy != NULL ? mc_dummy_client_exist(s->dummy, keys, count, exists, results)
                            : mc_ops_exist(s->ops, keys, count, exists, results));
    mc_histogram_observe(&s->counters.exist, (now() - begin) / 1000);
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_store_exist(struct mc_store *s, const char *key, bool *exists) {
    enum mc_status status;
    MC_TRY(mc_store_exist_batch(s, &key, 1, exists, &status));
    return status;
}

MC_PUBLIC enum mc_status mc_store_size(struct mc_store *s, const char *key, uint64_t *length) {
    if (s->dummy != NULL) {
        return mc_dummy_client_size(s->dummy, key, length);
    }
    return mc_ops_size(s->ops, key, length);
}

MC_PUBLIC enum mc_status mc_store_remove_batch(struct mc_store *s, const char *const *keys,
                                               size_t count, bool force, enum mc_status *results) {
    if (s->dummy != NULL) {
        return mc_dummy_client_remove(s->dummy, keys, count, force, results);
    }
    return mc_ops_remove(s->ops, keys, count, force, results);
}

MC_PUBLIC enum mc_status mc_store_remove(struct mc_store *s, const char *key, bool force) {
    enum mc_status status;
    MC_TRY(mc_store_remove_batch(s, &key, 1, force, &status));
    return status;
}

MC_PUBLIC enum mc_status mc_store_remove_regex(struct mc_store *s, const char *pattern, bool force,
                                               uint64_t *removed) {
    if (s->dummy != NULL) {
        return mc_dummy_client_remove_regex(s->dummy, pattern, force, removed);
    }
    return mc_ops_remove_regex(s->ops, pattern, force, removed);
}

MC_PUBLIC enum mc_status mc_store_remove_all(struct mc_store *s, bool force, uint64_t *removed) {
    if (s->dummy != NULL) {
        return mc_dummy_client_remove_all(s->dummy, force, removed);
    }
    return mc_ops_remove_all(s->ops, force, removed);
}

MC_PUBLIC enum mc_status mc_store_replicas(struct mc_store *s, const char *key,
                                           struct mc_replica_info *replicas, size_t capacity,
                                           size_t *count) {
    MC_TRY(own(s));
    return mc_ops_replicas(s->ops, key, replicas, capacity, count);
}

MC_PUBLIC enum mc_status mc_store_list(struct mc_store *s, const char *prefix, const char *after,
                                       size_t limit, struct mc_store_keys *page) {
    MC_TRY(own(s));
    return mc_ops_list(s->ops, prefix, after, limit, page);
}

MC_PUBLIC enum mc_status mc_store_inspect(struct mc_store *s, const char *const *keys, size_t count,
                                          struct mc_object_info *infos, enum mc_status *results) {
    MC_TRY(own(s));
    return mc_ops_inspect(s->ops, keys, count, infos, results);
}

MC_PUBLIC void mc_store_keys_free(struct mc_store_keys *page) {
    free((void *)page->keys);
    *page = (struct mc_store_keys){0};
}

/* ---- parts, sessions, tasks ---- */

MC_PUBLIC enum mc_status mc_store_get_ranges(struct mc_store *s, struct mc_store_range_item *items,
                                             size_t count) {
    uint64_t begin = now(), bytes = 0;
    if (s->dummy != NULL) {
        MC_TRY(mc_dummy_client_get_ranges(s->dummy, items, count));
    } else {
        MC_TRY(check(s));
        MC_TRY(mc_ops_get_ranges(s->ops, items, count));
    }
    for (size_t i = 0; i < count; i++) {
        bytes += items[i].status == MC_OK ? items[i].length : 0;
    }
    if (bytes > 0) {
        mc_store_count(s, MC_STORE_GET_RANGES, begin, bytes);
    }
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_store_put_session_start(struct mc_store *s, const char *const *keys,
                                                    const uint64_t *sizes, size_t count,
                                                    const struct mc_replicate_config *config,
                                                    enum mc_status *results) {
    MC_TRY(check(s));
    return mc_ops_put_session_start(s->ops, keys, sizes, count, config, results);
}

MC_PUBLIC enum mc_status
mc_store_put_session_write(struct mc_store *s, struct mc_store_range_item *items, size_t count) {
    MC_TRY(check(s));
    return mc_ops_put_session_write(s->ops, items, count);
}

MC_PUBLIC enum mc_status mc_store_put_session_end(struct mc_store *s, const char *const *keys,
                                                  size_t count, enum mc_status *results) {
    MC_TRY(own(s));
    return mc_ops_put_session_end(s->ops, keys, count, results);
}

MC_PUBLIC enum mc_status mc_store_put_session_revoke(struct mc_store *s, const char *const *keys,
                                                     size_t count, enum mc_status *results) {
    MC_TRY(own(s));
    return mc_ops_put_session_revoke(s->ops, keys, count, results);
}

MC_PUBLIC enum mc_status mc_store_get_session_start(struct mc_store *s, const char *const *keys,
                                                    size_t count, enum mc_status *results) {
    MC_TRY(check(s));
    return mc_ops_get_session_start(s->ops, keys, count, results);
}

MC_PUBLIC enum mc_status
mc_store_get_session_read(struct mc_store *s, struct mc_store_range_item *items, size_t count) {
    MC_TRY(check(s));
    return mc_ops_get_session_read(s->ops, items, count);
}

MC_PUBLIC enum mc_status mc_store_get_session_end(struct mc_store *s, const char *const *keys,
                                                  size_t count) {
    MC_TRY(own(s));
    return mc_ops_get_session_end(s->ops, keys, count);
}

MC_PUBLIC enum mc_status mc_store_copy(struct mc_store *s, const char *key,
                                       const char *const *targets, size_t target_count,
                                       struct mc_store_task_id *task) {
    if (s->dummy != NULL) {
        return mc_dummy_client_copy(s->dummy, key, targets, target_count, task);
    }
    struct mc_uuid id;
    MC_TRY(mc_ops_copy(s->ops, key, targets, target_count, &id));
    *task = (struct mc_store_task_id){id.hi, id.lo};
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_store_move(struct mc_store *s, const char *key, const char *source,
                                       const char *target, struct mc_store_task_id *task) {
    if (s->dummy != NULL) {
        return mc_dummy_client_move(s->dummy, key, source, target, task);
    }
    struct mc_uuid id;
    MC_TRY(mc_ops_move(s->ops, key, source, target, &id));
    *task = (struct mc_store_task_id){id.hi, id.lo};
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_store_task(struct mc_store *s, struct mc_store_task_id id,
                                       struct mc_store_task *task) {
    if (s->dummy != NULL) {
        return mc_dummy_client_task(s->dummy, id, task);
    }
    return mc_ops_task(s->ops, (struct mc_uuid){id.hi, id.lo}, task);
}

MC_PUBLIC enum mc_status mc_store_clear_replicas(struct mc_store *s, const char *const *keys,
                                                 size_t count, const char *segment, bool *cleared) {
    if (s->dummy != NULL) {
        memset(cleared, 0, count * sizeof(*cleared));
        return MC_OK;
    }
    return mc_ops_clear_replicas(s->ops, keys, count, segment, cleared);
}

/* ---- views and buffers ---- */

MC_PUBLIC enum mc_status mc_store_view(struct mc_store *s, const char *key,
                                       struct mc_store_view *view) {
    MC_TRY(check(s));
    uint64_t begin = now();
    struct mc_ops_view opened;
    MC_TRY(mc_ops_view_open(s->ops, key, &opened));
    mc_store_count(s, MC_STORE_VIEW, begin, opened.length);
    *view = (struct mc_store_view){
        .data = opened.data, .length = opened.length, .internal = opened.record};
    mc_store_view_due(s, opened.renew_at_ns);
    return MC_OK;
}

MC_PUBLIC bool mc_store_view_valid(const struct mc_store_view *view) {
    return view->internal != NULL && mc_ops_view_valid(view->internal);
}

MC_PUBLIC void mc_store_view_release(struct mc_store *s, struct mc_store_view *view) {
    if (view->internal != NULL) {
        mc_ops_view_release(s->ops, view->internal);
    }
    *view = (struct mc_store_view){0};
}

/* The engine's words for a bad range are not upstream's. */
static enum mc_status buffer_status(enum mc_status status) {
    switch (status) {
    case MC_ERR_OVERLAP:
    case MC_ERR_NOT_FOUND:
    case MC_ERR_NOT_REGISTERED:
        return MC_INVALID_PARAMS;
    default:
        return status;
    }
}

MC_PUBLIC enum mc_status mc_store_register_buffer(struct mc_store *s, void *addr, size_t length) {
    if (s->dummy != NULL) {
        return mc_dummy_client_register(s->dummy, addr, length);
    }
    MC_TRY(check(s));
    return buffer_status(mc_memory_register(s->engine, addr, length, "*", MC_MEMORY_LOCAL_ONLY));
}

MC_PUBLIC enum mc_status mc_store_unregister_buffer(struct mc_store *s, void *addr) {
    if (s->dummy != NULL) {
        return mc_dummy_client_unregister(s->dummy, addr);
    }
    MC_TRY(check(s));
    return buffer_status(mc_memory_unregister(s->engine, addr));
}

MC_PUBLIC bool mc_store_reaches(struct mc_store *s, const void *ptr, size_t length) {
    return s->dummy == NULL || mc_dummy_client_reaches(s->dummy, ptr, length);
}
