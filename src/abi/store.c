/*
 * Upstream's C interface over ours: argument checks, error numbers, nothing else. See
 * compat/store_c.h.
 */
#include "compat/store_c.h"

#include <stdlib.h>
#include <string.h>

#include "base/export.h"
#include "mooncake/store.h"

_Static_assert(sizeof(struct mooncake_replicate_config) == 32, "upstream's layout");
_Static_assert(offsetof(struct mooncake_replicate_config, with_soft_pin) == 8, "upstream's layout");
_Static_assert(offsetof(struct mooncake_replicate_config, with_hard_pin) == 12,
               "upstream's layout");
_Static_assert(offsetof(struct mooncake_replicate_config, preferred_segments) == 16,
               "upstream's layout");
_Static_assert(offsetof(struct mooncake_replicate_config, preferred_segments_count) == 24,
               "upstream's layout");

#define INVALID               (-1)
#define INIT_ALL_BUFFER_BYTES (1ull << 30)

struct wrapper {            /* what mooncake_store_t points to */
    struct mc_store *store; /* NULL until setup */
};

static struct mc_store *open_store(mooncake_store_t handle) {
    return handle != NULL ? ((struct wrapper *)handle)->store : NULL;
}

/* A buffer that is too small is an invalid parameter to upstream. */
static int code(enum mc_status status) {
    return status == MC_BUFFER_OVERFLOW ? MC_INVALID_PARAMS : mc_status_to_wire(status);
}

/* A port that the caller chose is a parameter; one that was drawn is not. */
static int setup_code(enum mc_status status, const char *local_hostname) {
    const char *colon = strrchr(local_hostname, ':');
    bool chosen = colon != NULL && (colon == strchr(local_hostname, ':') ||
                                    (colon > local_hostname && colon[-1] == ']'));
    return status == MC_ERR_ADDRESS_IN_USE && chosen ? MC_INVALID_PARAMS : code(status);
}

static const struct mc_replicate_config *convert(const mooncake_replicate_config_t *from,
                                                 struct mc_replicate_config *to) {
    if (from == NULL) {
        return NULL;
    }
    *to = (struct mc_replicate_config){
        .replica_num = from->replica_num,
        .with_soft_pin = from->with_soft_pin != 0,
        .with_hard_pin = from->with_hard_pin != 0,
        .preferred_segments = from->preferred_segments,
        .preferred_segment_count =
            from->preferred_segments != NULL ? from->preferred_segments_count : 0};
    return to;
}

/* ---- life ---- */

MC_PUBLIC mooncake_store_t mooncake_store_create(void) {
    return calloc(1, sizeof(struct wrapper));
}

MC_PUBLIC void mooncake_store_destroy(mooncake_store_t store) {
    mc_store_close(open_store(store));
    free(store);
}

MC_PUBLIC int mooncake_store_setup(mooncake_store_t store, const char *local_hostname,
                                   const char *metadata_server, uint64_t global_segment_size,
                                   uint64_t local_buffer_size, const char *protocol,
                                   const char *device_name, const char *master_server_addr) {
    if (store == NULL || local_hostname == NULL || metadata_server == NULL ||
        open_store(store) != NULL) {
        return INVALID;
    }
    if (local_hostname[0] == '\0' || (local_buffer_size != 0 && local_buffer_size < 1024)) {
        return MC_INVALID_PARAMS;
    }
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.local_hostname = local_hostname;
    options.metadata = metadata_server;
    options.segment_bytes = global_segment_size;
    options.local_buffer_bytes = local_buffer_size;
    options.protocol = protocol != NULL ? protocol : options.protocol;
    options.device = device_name != NULL ? device_name : options.device;
    options.master = master_server_addr != NULL ? master_server_addr : options.master;
    return setup_code(mc_store_open(&options, &((struct wrapper *)store)->store), local_hostname);
}

MC_PUBLIC int mooncake_store_init_all(mooncake_store_t store, const char *protocol,
                                      const char *device_name, uint64_t mount_segment_size) {
    return mooncake_store_setup(store, "localhost:12345", "P2PHANDSHAKE", mount_segment_size,
                                INIT_ALL_BUFFER_BYTES, protocol, device_name, NULL);
}

MC_PUBLIC int mooncake_store_health_check(mooncake_store_t store) {
    struct mc_store *s = open_store(store);
    return s == NULL ? 1 : mc_store_health(s) == MC_OK ? 0 : 2;
}

MC_PUBLIC int mooncake_store_get_hostname(mooncake_store_t store, char *buf_out, size_t buf_len) {
    struct mc_store *s = open_store(store);
    if (s == NULL || buf_out == NULL) {
        return INVALID;
    }
    const char *name = mc_store_hostname(s);
    if (strlen(name) >= buf_len) {
        return INVALID;
    }
    memcpy(buf_out, name, strlen(name) + 1);
    return 0;
}

/* ---- put ---- */

MC_PUBLIC int mooncake_store_put(mooncake_store_t store, const char *key, const void *value,
                                 size_t size, const mooncake_replicate_config_t *config) {
    struct mc_store *s = open_store(store);
    struct mc_replicate_config converted;
    if (s == NULL || key == NULL || value == NULL) {
        return INVALID;
    }
    return code(mc_store_put(s, key, value, size, convert(config, &converted)));
}

MC_PUBLIC int mooncake_store_put_from(mooncake_store_t store, const char *key, void *buffer,
                                      size_t size, const mooncake_replicate_config_t *config) {
    if (open_store(store) == NULL || key == NULL || buffer == NULL) {
        return INVALID;
    }
    return size == 0 ? 0 : mooncake_store_put(store, key, buffer, size, config);
}

/* Items of one slice each, in one block; NULL when memory is exhausted. */
static struct mc_store_item *make_items(const char **keys, void **buffers, const size_t *sizes,
                                        size_t count) {
    struct mc_store_item *items =
        calloc(count + 1, sizeof(struct mc_store_item) + sizeof(struct mc_slice));
    struct mc_slice *slices = (struct mc_slice *)(items + count);
    for (size_t i = 0; items != NULL && i < count; i++) {
        slices[i] = (struct mc_slice){buffers[i], sizes[i]};
        items[i] = (struct mc_store_item){.key = keys[i], .slices = &slices[i], .slice_count = 1};
    }
    return items;
}

static int put_batch(mooncake_store_t store, const char **keys, void **buffers, const size_t *sizes,
                     size_t count, const struct mc_replicate_config *config, bool replace,
                     int *results_out) {
    struct mc_store *s = open_store(store);
    if (s == NULL || keys == NULL || buffers == NULL || sizes == NULL || results_out == NULL) {
        return INVALID;
    }
    struct mc_store_item *items = make_items(keys, buffers, sizes, count);
    if (items == NULL) {
        return INVALID;
    }
    enum mc_status status = replace ? mc_store_upsert_batch(s, items, count, config)
                                    : mc_store_put_batch(s, items, count, config);
    for (size_t i = 0; i < count && status == MC_OK; i++) {
        results_out[i] = code(items[i].status);
    }
    free(items);
    return code(status);
}

MC_PUBLIC int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys,
                                            void **buffers, const size_t *sizes, size_t count,
                                            const mooncake_replicate_config_t *config,
                                            int *results_out) {
    struct mc_replicate_config converted;
    return put_batch(store, keys, buffers, sizes, count, convert(config, &converted), false,
                     results_out);
}

MC_PUBLIC int mooncake_store_batch_put_on_terms(mooncake_store_t store, const char **keys,
                                                void **buffers, const size_t *sizes, size_t count,
                                                const mooncake_replicate_config_t *config,
                                                const mooncake_put_terms_t *terms,
                                                int *results_out) {
    struct mc_replicate_config converted = {0};
    if (terms == NULL || terms->struct_size < sizeof(*terms)) {
        return INVALID;
    }
    (void)convert(config, &converted);
    converted.ttl_ms = terms->ttl_ms;
    converted.condition = (enum mc_put_condition)terms->condition;
    converted.expected = terms->expected;
    converted.expected_count = terms->expected != NULL ? count : 0;
    return put_batch(store, keys, buffers, sizes, count, &converted, terms->replace != 0,
                     results_out);
}

/* ---- get ---- */

MC_PUBLIC int64_t mooncake_store_get_into(mooncake_store_t store, const char *key, void *buffer,
                                          size_t size) {
    struct mc_store *s = open_store(store);
    size_t length;
    if (s == NULL || key == NULL || buffer == NULL) {
        return INVALID;
    }
    enum mc_status status = mc_store_get(s, key, buffer, size, &length);
    return status == MC_OK ? (int64_t)length : code(status);
}

MC_PUBLIC int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys,
                                            void **buffers, const size_t *sizes, size_t count,
                                            int64_t *results_out) {
    struct mc_store *s = open_store(store);
    if (s == NULL || keys == NULL || buffers == NULL || sizes == NULL || results_out == NULL) {
        return INVALID;
    }
    struct mc_store_item *items = make_items(keys, buffers, sizes, count);
    if (items == NULL) {
        return INVALID;
    }
    enum mc_status status = mc_store_get_batch(s, items, count);
    for (size_t i = 0; i < count && status == MC_OK; i++) {
        results_out[i] =
            items[i].status == MC_OK ? (int64_t)items[i].length : code(items[i].status);
    }
    free(items);
    return code(status);
}

/* ---- questions and removals ---- */

MC_PUBLIC int mooncake_store_is_exist(mooncake_store_t store, const char *key) {
    struct mc_store *s = open_store(store);
    bool exists;
    if (s == NULL || key == NULL) {
        return INVALID;
    }
    enum mc_status status = mc_store_exist(s, key, &exists);
    return status == MC_OK ? exists : code(status);
}

MC_PUBLIC int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys, size_t count,
                                            int *results_out) {
    struct mc_store *s = open_store(store);
    if (s == NULL || keys == NULL || results_out == NULL) {
        return INVALID;
    }
    bool *exists = calloc(count + 1, sizeof(*exists));
    enum mc_status *results = calloc(count + 1, sizeof(*results));
    enum mc_status status = exists == NULL || results == NULL
                                ? MC_INTERNAL_ERROR
                                : mc_store_exist_batch(s, keys, count, exists, results);
    for (size_t i = 0; i < count && status == MC_OK; i++) {
        results_out[i] = results[i] == MC_OK ? exists[i] : code(results[i]);
    }
    free(exists);
    free(results);
    return code(status);
}

MC_PUBLIC int64_t mooncake_store_get_size(mooncake_store_t store, const char *key) {
    struct mc_store *s = open_store(store);
    uint64_t length;
    if (s == NULL || key == NULL) {
        return INVALID;
    }
    enum mc_status status = mc_store_size(s, key, &length);
    return status == MC_OK ? (int64_t)length : code(status);
}

MC_PUBLIC int mooncake_store_remove(mooncake_store_t store, const char *key, int force) {
    struct mc_store *s = open_store(store);
    return s == NULL || key == NULL ? INVALID : code(mc_store_remove(s, key, force != 0));
}

MC_PUBLIC int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char *pattern,
                                                 int force) {
    struct mc_store *s = open_store(store);
    uint64_t removed;
    if (s == NULL || pattern == NULL) {
        return INVALID;
    }
    enum mc_status status = mc_store_remove_regex(s, pattern, force != 0, &removed);
    return status == MC_OK ? (int64_t)removed : code(status);
}

MC_PUBLIC int64_t mooncake_store_remove_all(mooncake_store_t store, int force) {
    struct mc_store *s = open_store(store);
    uint64_t removed;
    if (s == NULL) {
        return INVALID;
    }
    enum mc_status status = mc_store_remove_all(s, force != 0, &removed);
    return status == MC_OK ? (int64_t)removed : code(status);
}

MC_PUBLIC int mooncake_store_inspect(mooncake_store_t store, const char *key,
                                     mooncake_object_info_t *info) {
    struct mc_store *s = open_store(store);
    struct mc_object_info known;
    enum mc_status result;
    if (s == NULL || key == NULL || info == NULL || info->struct_size < sizeof(*info)) {
        return INVALID;
    }
    enum mc_status status = mc_store_inspect(s, &key, 1, &known, &result);
    if (status != MC_OK || result != MC_OK) {
        return code(status != MC_OK ? status : result);
    }
    *info =
        (struct mooncake_object_info){.struct_size = info->struct_size,
                                      .size = known.size,
                                      .version = known.version,
                                      .checksum = known.has_checksum ? known.checksum : 0,
                                      .ttl_left_ms = known.has_ttl ? known.ttl_left_ms : UINT64_MAX,
                                      .has_checksum = known.has_checksum,
                                      .replicas = known.replicas};
    return 0;
}

/* ---- buffers ---- */

MC_PUBLIC int mooncake_store_register_buffer(mooncake_store_t store, void *buffer, size_t size) {
    struct mc_store *s = open_store(store);
    return s == NULL || buffer == NULL ? INVALID : code(mc_store_register_buffer(s, buffer, size));
}

MC_PUBLIC int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer) {
    struct mc_store *s = open_store(store);
    return s == NULL || buffer == NULL ? INVALID : code(mc_store_unregister_buffer(s, buffer));
}
