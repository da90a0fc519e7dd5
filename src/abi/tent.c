/*
 * TENT's C interface: life, segments, memory, notifications. See compat/tent/transfer_engine.h;
 * transfers are in tent_batch.c, the configuration in tent_config.c.
 */
#include "compat/tent/transfer_engine.h"

#include <stdlib.h>
#include <string.h>

#include "abi/abi.h"
#include "abi/tent.h"
#include "abi/tent_config.h"
#include "base/export.h"
#include "base/log.h"

_Static_assert(sizeof(struct tent_request) == 48, "upstream's layout");
_Static_assert(sizeof(struct tent_buffer_info) == 80, "upstream's layout");
_Static_assert(sizeof(struct tent_notifi_record) == 8 + 256 + 4096, "upstream's layout");
_Static_assert(sizeof(struct tent_memory_options) == 344, "upstream's layout");
_Static_assert(sizeof(struct tent_nic_load_stat) == 80, "upstream's layout");

int tent_result(const char *call, enum mc_status status) {
    if (status != MC_OK) {
        mc_error("%s failed status=%s", call, mc_status_name(status));
    }
    return status == MC_OK ? 0 : -1;
}

/* ---- life ---- */

MC_PUBLIC tent_engine_t tent_create_engine(void) {
    struct mc_engine_options options;
    struct tent_config_texts texts;
    struct mc_engine *engine = NULL;
    mc_engine_options_init(&options);
    if (tent_result("tent_create_engine", tent_config_apply(&options, &texts)) != 0) {
        return NULL;
    }
    enum mc_status status = mc_engine_create(&options, &engine);
    tent_config_free(&texts);
    if (tent_result("tent_create_engine", status) != 0) {
        return NULL;
    }
    struct abi_engine *e = abi_engine_wrap(engine);
    if (e == NULL) {
        mc_engine_destroy(engine);
    }
    return e;
}

MC_PUBLIC void tent_destroy_engine(tent_engine_t engine) {
    if (engine != NULL) {
        abi_engine_destroy(engine);
    }
}

MC_PUBLIC int tent_available(tent_engine_t engine) {
    return engine != NULL;
}

MC_PUBLIC int tent_segment_name(tent_engine_t engine, char *buf, size_t buf_len) {
    struct abi_engine *e = engine;
    bool good = e != NULL && buf != NULL && abi_text_out(buf, buf_len, mc_engine_name(e->engine));
    return tent_result("tent_segment_name", good ? MC_OK : MC_INVALID_PARAMS);
}

MC_PUBLIC int tent_rpc_server_addr_port(tent_engine_t engine, char *addr_buf, size_t buf_len,
                                        uint16_t *port) {
    struct abi_engine *e = engine;
    bool good = e != NULL && addr_buf != NULL && port != NULL &&
                abi_text_out(addr_buf, buf_len, mc_engine_host(e->engine));
    if (good) {
        *port = mc_engine_rpc_port(e->engine);
    }
    return tent_result("tent_rpc_server_addr_port", good ? MC_OK : MC_INVALID_PARAMS);
}

MC_PUBLIC int tent_get_nic_load_stats(tent_engine_t engine, tent_nic_load_stat_t *stats,
                                      size_t *count) {
    struct abi_engine *e = engine;
    if (e == NULL || count == NULL || (stats == NULL && *count > 0)) {
        return tent_result("tent_get_nic_load_stats", MC_INVALID_PARAMS);
    }
    struct abi_card cards[ABI_CARDS_MAX];
    size_t found = abi_cards(e->engine, cards, ABI_CARDS_MAX);
    for (size_t i = 0; i < found && i < *count; i++) {
        memcpy(stats[i].device_name, cards[i].name, sizeof(stats[i].device_name));
        stats[i].inflight_bytes = cards[i].inflight_bytes;
        stats[i].ewma_bandwidth_bps = cards[i].bandwidth;
    }
    *count = found;
    return 0;
}

/* ---- segments ---- */

MC_PUBLIC int tent_open_segment(tent_engine_t engine, tent_segment_id_t *handle,
                                const char *segment_name) {
    mc_segment_id id = 0;
    enum mc_status status = engine == NULL || handle == NULL || segment_name == NULL
                                ? MC_INVALID_PARAMS
                                : abi_segment_open(engine, segment_name, &id);
    if (status == MC_OK) {
        *handle = (tent_segment_id_t)id;
    }
    return tent_result("tent_open_segment", status);
}

MC_PUBLIC int tent_close_segment(tent_engine_t engine, tent_segment_id_t handle) {
    return tent_result("tent_close_segment",
                       engine == NULL || handle > INT32_MAX
                           ? MC_INVALID_PARAMS
                           : abi_segment_close(engine, (mc_segment_id)handle));
}

/* All buffers of the segment, malloc'ed. */
static enum mc_status read_buffers(struct abi_engine *e, mc_segment_id id,
                                   struct mc_buffer_info **out, size_t *out_count) {
    size_t count = 0, capacity;
    MC_TRY(mc_segment_buffers(e->engine, id, NULL, 0, &count));
    struct mc_buffer_info *list = calloc(count + 1, sizeof(*list));
    if (list == NULL) {
        return MC_ERR_NO_MEMORY;
    }
    capacity = count;
    enum mc_status status = mc_segment_buffers(e->engine, id, list, capacity, &count);
    if (status != MC_OK) {
        free(list);
        return status;
    }
    *out = list;
    *out_count = count < capacity ? count : capacity;
    return MC_OK;
}

static enum mc_status segment_info(struct abi_engine *e, mc_segment_id id,
                                   tent_segment_info_t *info) {
    struct mc_buffer_info *list = NULL;
    size_t count = 0;
    MC_TRY(read_buffers(e, id, &list, &count));
    struct tent_buffer_info *out = calloc(count + 1, sizeof(*out));
    for (size_t i = 0; out != NULL && i < count; i++) {
        out[i].base = list[i].addr;
        out[i].length = list[i].length;
        memcpy(out[i].location, list[i].location, sizeof(out[i].location));
    }
    free(list);
    if (out == NULL) {
        return MC_ERR_NO_MEMORY;
    }
    *info = (tent_segment_info_t){TYPE_MEMORY, (int)count, out};
    return MC_OK;
}

MC_PUBLIC int tent_get_segment_info(tent_engine_t engine, tent_segment_id_t handle,
                                    tent_segment_info_t *info) {
    return tent_result("tent_get_segment_info",
                       engine == NULL || info == NULL || handle > INT32_MAX
                           ? MC_INVALID_PARAMS
                           : segment_info(engine, (mc_segment_id)handle, info));
}

MC_PUBLIC void tent_free_segment_info(tent_segment_info_t *info) {
    if (info != NULL) {
        free(info->buffers);
        *info = (tent_segment_info_t){0};
    }
}

/* ---- memory ---- */

/* Flags of mc_memory_register for the options. */
static enum mc_status flags_of(const tent_memory_options_t *opts, unsigned *flags) {
    if (opts->permission != PERM_LOCAL_READ_WRITE && opts->permission != PERM_GLOBAL_READ_WRITE) {
        mc_error("this permission cannot be granted permission=%d", opts->permission);
        return MC_NOT_SUPPORTED;
    }
    if (opts->shm_path[0] != '\0') {
        mc_error("memory by path is not supported shm_path=%.255s", opts->shm_path);
        return MC_NOT_SUPPORTED;
    }
    *flags = opts->permission == PERM_LOCAL_READ_WRITE ? MC_MEMORY_LOCAL_ONLY : 0;
    return MC_OK;
}

static enum mc_status register_all(struct abi_engine *e, void **addrs, const size_t *sizes,
                                   size_t count, const tent_memory_options_t *opts) {
    char location[sizeof(opts->location) + 1] = "*";
    unsigned flags = 0;
    if (e == NULL || (count > 0 && (addrs == NULL || sizes == NULL)) || opts == NULL) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(flags_of(opts, &flags));
    if (opts->location[0] != '\0') {
        memcpy(location, opts->location, sizeof(opts->location));
        location[sizeof(opts->location)] = '\0';
    }
    return abi_register_all(e, addrs, sizes, count, location, flags);
}

MC_PUBLIC int tent_register_memory_batch_ex(tent_engine_t engine, void **addrs, size_t *sizes,
                                            size_t count, tent_memory_options_t *opts) {
    return tent_result("tent_register_memory_batch_ex",
                       register_all(engine, addrs, sizes, count, opts));
}

MC_PUBLIC int tent_register_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes,
                                         size_t count, int permission) {
    const tent_memory_options_t opts = {.permission = permission};
    return tent_result("tent_register_memory_batch",
                       register_all(engine, addrs, sizes, count, &opts));
}

MC_PUBLIC int tent_register_memory_ex(tent_engine_t engine, void *addr, size_t size,
                                      tent_memory_options_t *opts) {
    return tent_result("tent_register_memory_ex", register_all(engine, &addr, &size, 1, opts));
}

MC_PUBLIC int tent_register_memory_with_perm(tent_engine_t engine, void *addr, size_t size,
                                             int permission) {
    const tent_memory_options_t opts = {.permission = permission};
    return tent_result("tent_register_memory_with_perm",
                       register_all(engine, &addr, &size, 1, &opts));
}

MC_PUBLIC int tent_register_memory(tent_engine_t engine, void *addr, size_t size) {
    const tent_memory_options_t opts = {.permission = PERM_GLOBAL_READ_WRITE};
    return tent_result("tent_register_memory", register_all(engine, &addr, &size, 1, &opts));
}

MC_PUBLIC int tent_unregister_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes,
                                           size_t count) {
    struct abi_engine *e = engine;
    enum mc_status first = e == NULL || (addrs == NULL && count > 0) ? MC_INVALID_PARAMS : MC_OK;
    for (size_t i = 0; first != MC_INVALID_PARAMS && i < count; i++) {
        enum mc_status status = mc_memory_unregister(e->engine, addrs[i]);
        first = first == MC_OK ? status : first;
    }
    return tent_result("tent_unregister_memory_batch", first);
}

MC_PUBLIC int tent_unregister_memory(tent_engine_t engine, void *addr, size_t size) {
    return tent_unregister_memory_batch(engine, &addr, &size, 1);
}

static enum mc_status allocate(struct abi_engine *e, void **addr, size_t size,
                               const char *location) {
    return e == NULL || addr == NULL ? MC_INVALID_PARAMS
                                     : mc_memory_alloc(e->engine, size, location, addr);
}

MC_PUBLIC int tent_allocate_memory(tent_engine_t engine, void **addr, size_t size,
                                   const char *location) {
    return tent_result("tent_allocate_memory", allocate(engine, addr, size, location));
}

MC_PUBLIC int tent_allocate_memory_ex(tent_engine_t engine, void **addr, size_t size,
                                      tent_memory_options_t *opts) {
    unsigned flags = 0;
    enum mc_status status = opts == NULL ? MC_INVALID_PARAMS : flags_of(opts, &flags);
    if (status == MC_OK) {
        char location[sizeof(opts->location) + 1];
        memcpy(location, opts->location, sizeof(opts->location));
        location[sizeof(opts->location)] = '\0';
        status = allocate(engine, addr, size, location[0] != '\0' ? location : NULL);
    }
    return tent_result("tent_allocate_memory_ex", status);
}

MC_PUBLIC int tent_free_memory(tent_engine_t engine, void *addr) {
    struct abi_engine *e = engine;
    return tent_result("tent_free_memory",
                       e == NULL ? MC_INVALID_PARAMS : mc_memory_free(e->engine, addr));
}

/* ---- notifications ---- */

MC_PUBLIC int tent_send_notifs(tent_engine_t engine, tent_segment_id_t handle, const char *name,
                               const char *message) {
    struct abi_engine *e = engine;
    return tent_result("tent_send_notifs",
                       e == NULL || handle > INT32_MAX
                           ? MC_INVALID_PARAMS
                           : mc_notify_send(e->engine, (mc_segment_id)handle, name, message));
}

static enum mc_status receive(struct abi_engine *e, tent_notifi_info *info) {
    struct mc_notification *list = NULL;
    size_t count = 0;
    MC_TRY(mc_notify_receive(e->engine, &list, &count));
    struct tent_notifi_record *records = count == 0 ? NULL : calloc(count, sizeof(*records));
    if (records == NULL && count > 0) {
        mc_notify_free(list, count);
        return MC_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        bool whole = abi_text_out(records[i].name, sizeof(records[i].name), list[i].name);
        whole &= abi_text_out(records[i].msg, sizeof(records[i].msg), list[i].message);
        if (!whole) {
            mc_warn("a notification was cut to the interface's size name=%s", records[i].name);
        }
    }
    mc_notify_free(list, count);
    *info = (tent_notifi_info){(int)count, records};
    return MC_OK;
}

MC_PUBLIC int tent_recv_notifs(tent_engine_t engine, tent_notifi_info *info) {
    return tent_result("tent_recv_notifs",
                       engine == NULL || info == NULL ? MC_INVALID_PARAMS : receive(engine, info));
}

MC_PUBLIC void tent_free_notifs(tent_notifi_info *info) {
    if (info != NULL) {
        free(info->records);
        *info = (tent_notifi_info){0};
    }
}
