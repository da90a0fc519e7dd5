/* TENT's C interface: batches. See compat/tent/transfer_engine.h. */
#include "compat/tent/transfer_engine.h"

#include <stdlib.h>
#include <string.h>

#include "abi/abi.h"
#include "abi/tent.h"
#include "base/export.h"
#include "base/log.h"

MC_PUBLIC tent_batch_id_t tent_allocate_batch(tent_engine_t engine, size_t batch_size) {
    uint64_t id = engine == NULL ? 0 : abi_batch_new(engine, batch_size);
    (void)tent_result("tent_allocate_batch", id == 0 ? MC_INVALID_PARAMS : MC_OK);
    return id;
}

MC_PUBLIC int tent_free_batch(tent_engine_t engine, tent_batch_id_t batch_id) {
    return tent_result("tent_free_batch",
                       engine == NULL ? MC_INVALID_PARAMS : abi_batch_free(engine, batch_id));
}

/* ---- submitting ---- */

/* The hint must name a transport that runs here; `*hinted` is NULL when there is no hint. */
static bool hint_is_known(struct abi_engine *e, int hint, const char **hinted) {
    static const char *const names[] = {[TRANSPORT_RDMA] = "rdma",
                                        [TRANSPORT_SHM] = "shm",
                                        [TRANSPORT_IOURING] = "file",
                                        [TRANSPORT_TCP] = "tcp"};
    *hinted = NULL;
    if (hint == TRANSPORT_UNSPEC) {
        return true;
    }
    if (hint < 0 || (size_t)hint >= sizeof(names) / sizeof(names[0]) || names[hint] == NULL) {
        return false;
    }
    const char *name = NULL;
    for (unsigned i = 0; (name = mc_engine_transport(e->engine, i)) != NULL; i++) {
        if (strcmp(name, names[hint]) == 0) {
            *hinted = names[hint];
            return true;
        }
    }
    return false;
}

static enum mc_status convert(struct abi_engine *e, const tent_request_t *from,
                              struct mc_transfer_request *to) {
    if (from->target_id > INT32_MAX || from->priority < 0 || from->priority > 2) {
        mc_error("a request cannot be made target_id=%llu priority=%d",
                 (unsigned long long)from->target_id, from->priority);
        return MC_INVALID_PARAMS;
    }
    const char *hint;
    if (!hint_is_known(e, from->transport_hint, &hint)) {
        mc_error("the engine has no such transport transport_hint=%d", from->transport_hint);
        return MC_ERR_NO_TRANSPORT;
    }
    *to = (struct mc_transfer_request){
        .op = (enum mc_transfer_op)from->opcode,
        .local = from->source,
        .segment = (mc_segment_id)from->target_id,
        .remote_addr = from->target_offset,
        .length = from->length,
        .priority = (uint8_t)from->priority,
        .transport_hint = hint,
    };
    return MC_OK;
}

static enum mc_status submit(struct abi_engine *e, struct abi_batch *b,
                             const tent_request_t *entries, size_t count, const char *name,
                             const char *message) {
    if ((entries == NULL && count > 0) || count > MC_BATCH_MAX) {
        return MC_INVALID_PARAMS;
    }
    struct mc_transfer_request *requests = malloc((count + 1) * sizeof(*requests));
    enum mc_status status = requests == NULL ? MC_ERR_NO_MEMORY : MC_OK;
    for (size_t i = 0; status == MC_OK && i < count; i++) {
        status = convert(e, &entries[i], &requests[i]);
    }
    if (status == MC_OK) {
        status = abi_batch_submit(b, requests, count, name, message);
    }
    free(requests);
    return status;
}

MC_PUBLIC int tent_submit(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries,
                          size_t count) {
    enum mc_status status = MC_INVALID_PARAMS;
    struct abi_batch *b = engine == NULL ? NULL : abi_batch_get(engine, batch_id);
    if (b != NULL) {
        status = submit(engine, b, entries, count, NULL, NULL);
        abi_batch_put(engine, b);
    }
    return tent_result("tent_submit", status);
}

MC_PUBLIC int tent_submit_notif(tent_engine_t engine, tent_batch_id_t batch_id,
                                tent_request_t *entries, size_t count, const char *name,
                                const char *message) {
    enum mc_status status = MC_INVALID_PARAMS;
    bool usable = engine != NULL && count > 0 && name != NULL && message != NULL;
    struct abi_batch *b = usable ? abi_batch_get(engine, batch_id) : NULL;
    if (b != NULL) {
        status = submit(engine, b, entries, count, name, message);
        abi_batch_put(engine, b);
    }
    return tent_result("tent_submit_notif", status);
}

/* ---- looking ---- */

static enum mc_status task_status(struct abi_batch *b, size_t task, tent_status_t *out) {
    struct mc_transfer_status status;
    MC_TRY(abi_batch_task(b, task, &status));
    *out = (tent_status_t){abi_task_state(&status), status.transferred_bytes};
    return MC_OK;
}

MC_PUBLIC int tent_task_status(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id,
                               tent_status_t *status) {
    enum mc_status result = MC_INVALID_PARAMS;
    struct abi_batch *b = engine == NULL || status == NULL ? NULL : abi_batch_get(engine, batch_id);
    if (b != NULL) {
        result = task_status(b, task_id, status);
        abi_batch_put(engine, b);
    }
    return tent_result("tent_task_status", result);
}

MC_PUBLIC int tent_cancel_task(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id) {
    enum mc_status result = MC_INVALID_PARAMS;
    struct abi_batch *b = engine == NULL ? NULL : abi_batch_get(engine, batch_id);
    if (b != NULL) {
        result = mc_batch_cancel(b->batch, task_id);
        abi_batch_put(engine, b);
    }
    return tent_result("tent_cancel_task", result);
}

static void add_status(const tent_status_t *one, tent_status_t *all) {
    all->transferred_bytes += one->transferred_bytes;
    if (all->status == STATUS_PENDING || one->status == STATUS_COMPLETED) {
        return;
    }
    if (one->status < STATUS_INVALID) {
        all->status = STATUS_PENDING;
    } else if (all->status == STATUS_COMPLETED) {
        all->status = one->status;
    }
}

MC_PUBLIC int tent_overall_status(tent_engine_t engine, tent_batch_id_t batch_id,
                                  tent_status_t *status) {
    struct abi_batch *b = engine == NULL || status == NULL ? NULL : abi_batch_get(engine, batch_id);
    if (b == NULL) {
        return tent_result("tent_overall_status", MC_INVALID_PARAMS);
    }
    tent_status_t all = {STATUS_COMPLETED, 0}, one;
    for (size_t i = 0; task_status(b, i, &one) == MC_OK; i++) {
        add_status(&one, &all);
    }
    abi_batch_put(engine, b);
    *status = all;
    return 0;
}

MC_PUBLIC int tent_task_status_list(tent_engine_t engine, tent_batch_id_t batch_id,
                                    tent_status_t *statuses, size_t *count) {
    bool usable = engine != NULL && count != NULL && (statuses != NULL || *count == 0);
    struct abi_batch *b = usable ? abi_batch_get(engine, batch_id) : NULL;
    if (b == NULL) {
        return tent_result("tent_task_status_list", MC_INVALID_PARAMS);
    }
    tent_status_t one;
    size_t tasks = 0;
    while (task_status(b, tasks, &one) == MC_OK) {
        if (tasks < *count) {
            statuses[tasks] = one;
        }
        tasks++;
    }
    abi_batch_put(engine, b);
    *count = tasks;
    return 0;
}
