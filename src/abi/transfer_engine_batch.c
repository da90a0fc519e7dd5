/*
 * Upstream's C interface of the Transfer Engine: batches and notifications. See
 * compat/transfer_engine_c.h.
 */
#include "compat/transfer_engine_c.h"

#include <stdlib.h>

#include "abi/abi.h"
#include "abi/transfer_engine.h"
#include "base/export.h"

_Static_assert(OPCODE_READ == MC_TRANSFER_READ && OPCODE_WRITE == MC_TRANSFER_WRITE, "as ours");
_Static_assert(STATUS_COMPLETED == MC_TRANSFER_COMPLETED, "as ours");
_Static_assert(STATUS_TIMEOUT == MC_TRANSFER_TIMEOUT, "as ours");
_Static_assert(STATUS_FAILED == MC_TRANSFER_FAILED, "as ours");

MC_PUBLIC batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size) {
    uint64_t id = engine == NULL ? 0 : abi_batch_new(engine, batch_size);
    return id == 0 ? INVALID_BATCH : id;
}

MC_PUBLIC int freeBatchID(transfer_engine_t engine, batch_id_t batch_id) {
    return te_code(engine == NULL ? MC_INVALID_PARAMS : abi_batch_free(engine, batch_id));
}

static enum mc_status submit(struct abi_batch *b, const struct transfer_request *entries,
                             size_t count, const char *name, const char *message) {
    if (entries == NULL && count > 0) {
        return MC_INVALID_PARAMS;
    }
    if (count > MC_BATCH_MAX) {
        return MC_ERR_LIMIT;
    }
    struct mc_transfer_request *requests = malloc((count + 1) * sizeof(*requests));
    if (requests == NULL) {
        return MC_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        requests[i] = (struct mc_transfer_request){
            .op = (enum mc_transfer_op)entries[i].opcode,
            .local = entries[i].source,
            .segment = entries[i].target_id,
            .remote_addr = entries[i].target_offset,
            .length = entries[i].length,
        };
    }
    enum mc_status status = abi_batch_submit(b, requests, count, name, message);
    free(requests);
    return status;
}

MC_PUBLIC int submitTransfer(transfer_engine_t engine, batch_id_t batch_id,
                             struct transfer_request *entries, size_t count) {
    struct abi_batch *b = engine == NULL ? NULL : abi_batch_get(engine, batch_id);
    if (b == NULL) {
        return te_code(MC_INVALID_PARAMS);
    }
    enum mc_status status = submit(b, entries, count, NULL, NULL);
    abi_batch_put(engine, b);
    return te_code(status);
}

MC_PUBLIC int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id,
                                       struct transfer_request *entries, size_t count,
                                       notify_msg_t notify_msg) {
    bool usable = engine != NULL && count > 0 && notify_msg.name != NULL && notify_msg.msg != NULL;
    struct abi_batch *b = usable ? abi_batch_get(engine, batch_id) : NULL;
    if (b == NULL) {
        return te_code(MC_INVALID_PARAMS);
    }
    enum mc_status status = submit(b, entries, count, notify_msg.name, notify_msg.msg);
    abi_batch_put(engine, b);
    return te_code(status);
}

MC_PUBLIC int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                                struct transfer_status *status) {
    struct mc_transfer_status found;
    struct abi_batch *b = engine == NULL || status == NULL ? NULL : abi_batch_get(engine, batch_id);
    if (b == NULL) {
        return te_code(MC_INVALID_PARAMS);
    }
    enum mc_status result = abi_batch_task(b, task_id, &found);
    abi_batch_put(engine, b);
    if (result == MC_OK) {
        status->status = abi_task_state(&found);
        status->transferred_bytes = found.transferred_bytes;
    }
    return te_code(result);
}

/* ---- notifications ---- */

MC_PUBLIC notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size) {
    struct abi_engine *e = engine;
    struct mc_notification *list = NULL;
    size_t count = 0;
    if (size == NULL) {
        return NULL;
    }
    *size = -1;
    if (e == NULL || mc_notify_receive(e->engine, &list, &count) != MC_OK) {
        return NULL;
    }
    *size = 0;
    if (count == 0) {
        return NULL;
    }
    notify_msg_t *out = malloc(count * sizeof(*out));
    if (out == NULL) {
        mc_notify_free(list, count);
        *size = -1;
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = (notify_msg_t){list[i].name, list[i].message}; /* they go over to the caller */
    }
    mc_notify_free(list, 0);
    *size = (int)count;
    return out;
}

MC_PUBLIC int freeNotifsMsgBuf(notify_msg_t *msg, int size) {
    for (int i = 0; msg != NULL && i < size; i++) {
        free(msg[i].name);
        free(msg[i].msg);
    }
    free(msg);
    return 0;
}

MC_PUBLIC int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id,
                                notify_msg_t notify_msg) {
    struct abi_engine *e = engine;
    if (e == NULL || target_id > INT32_MAX) {
        return TE_INVALID;
    }
    return te_error(
        mc_notify_send(e->engine, (mc_segment_id)target_id, notify_msg.name, notify_msg.msg));
}
