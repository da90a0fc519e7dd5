/*
 * What a node does for the master: fetch tasks, copy or move objects, say how each ended.
 *
 * A copy is CopyStart, move the bytes to every target, CopyEnd; or CopyRevoke. It keeps the rules
 * of a put (client/ops.h): it has an id of its own, so a late end of one can never end another, and
 * it is revoked only when no byte of it can arrive any more; else the master's timeouts take the
 * space back. The bytes come from the source replica, which is this node's own as a rule: then they
 * are sent from where they lie, through a mapping that outlives whatever happens to the segment. A
 * striped object is copied stripe by stripe, each like a whole object, until the master names none.
 */
#include "client/ops_internal.h"

#include <stdio.h>

#include "base/log.h"
#include "wire/task_payload.h"

#define FETCH_MAX    16
#define BOUNCE_BYTES (8u << 20)
#define RETRY_NS     (50 * MC_MS) /* longer each time */
#define RETRIES_MAX  100
#define STRIPES_MAX  1024 /* steps of one copy: each gives every target that lacks it one stripe */

struct replicate {
    struct mc_ops *ops;
    struct mc_ops_call *call;
    struct mw_task_payload payload;
    struct mc_uuid writer;
    bool move;
    bool in_doubt; /* a write may still arrive */
    uint32_t retries;
    struct mw_replica source;
    struct mc_vec targets; /* of struct mw_replica */
    uint64_t deadline_ns;
};

/* ---- start, end, revoke ---- */

static enum mc_status start(struct replicate *r) {
    struct mw_a_copy_start copy = {.client = r->writer,
                                   .key = r->payload.key,
                                   .tenant = r->payload.tenant,
                                   .source = r->payload.source,
                                   .targets = r->payload.targets};
    if (!r->move) {
        struct mw_e_copy answer;
        MC_TRY(mc_ops_rpc(r->ops, r->call, MC_RPC_CopyStart, &copy, &answer, r->deadline_ns,
                          MC_OPS_ONCE));
        MC_TRY(mc_ops_status(answer.error));
        r->source = answer.value.source;
        r->targets = answer.value.targets;
        return MC_OK;
    }
    struct mw_a_move_start args = {.client = r->writer,
                                   .key = r->payload.key,
                                   .tenant = r->payload.tenant,
                                   .source = r->payload.source,
                                   .target = *(const struct mc_str *)r->payload.targets.items};
    struct mw_e_move answer;
    MC_TRY(
        mc_ops_rpc(r->ops, r->call, MC_RPC_MoveStart, &args, &answer, r->deadline_ns, MC_OPS_ONCE));
    MC_TRY(mc_ops_status(answer.error));
    struct mw_replica *target = mc_arena_alloc(&r->call->arena, sizeof(*target));
    *target = answer.value.target.value;
    r->source = answer.value.source;
    r->targets = (struct mc_vec){target, answer.value.target.has};
    return MC_OK;
}

static enum mc_status finish(struct replicate *r, enum mc_master_rpc copy, enum mc_master_rpc move,
                             uint64_t deadline_ns) {
    struct mw_a_client_key args = {
        .client = r->writer, .key = r->payload.key, .tenant = r->payload.tenant};
    struct mw_e_void answer;
    MC_TRY(mc_ops_rpc(r->ops, r->call, r->move ? move : copy, &args, &answer, deadline_ns,
                      MC_OPS_IDEMPOTENT));
    return mc_ops_status(answer.error);
}

/* Room may come: the master evicts for those who ask. */
static enum mc_status start_patiently(struct replicate *r, uint32_t most) {
    enum mc_status status = start(r);
    while (status == MC_NO_AVAILABLE_HANDLE && r->retries < mc_min_u64(most, RETRIES_MAX)) {
        r->retries++;
        struct mc_port *port = r->ops->port;
        port->ops->sleep_until(port, mc_ops_now(r->ops) + r->retries * RETRY_NS);
        r->deadline_ns = mc_ops_deadline(r->ops);
        status = start(r);
    }
    return status;
}

/* ---- the bytes ---- */

/* Writes `length` bytes to the same offset of every target. */
static enum mc_status write_targets(struct replicate *r, const void *bytes, uint64_t offset,
                                    uint64_t length) {
    const struct mw_replica *target = r->targets.items;
    struct mc_port *port = r->ops->port;
    size_t n = r->targets.count;
    struct mc_port_move *moves = mc_arena_alloc(&r->call->arena, (n + 1) * sizeof(*moves));
    for (size_t i = 0; i < n; i++) {
        moves[i] = (struct mc_port_move){.op = MC_TRANSFER_WRITE,
                                         .local = (void *)(uintptr_t)bytes, /* only read */
                                         .endpoint = target[i].memory.endpoint,
                                         .remote_addr = target[i].memory.address + offset,
                                         .length = length,
                                         .status = MC_INTERNAL_ERROR};
    }
    port->ops->move(port, moves, n, r->deadline_ns);
    enum mc_status status = MC_OK;
    for (size_t i = 0; i < n; i++) {
        if (moves[i].status != MC_OK) {
            mc_warn_limited("a copy could not be written: key=%.*s endpoint=%.*s status=%s",
                            (int)r->payload.key.len, r->payload.key.ptr, (int)moves[i].endpoint.len,
                            moves[i].endpoint.ptr, mc_status_name(moves[i].status));
            r->in_doubt |= moves[i].status == MC_ERR_TIMEOUT;
            status = MC_TRANSFER_FAIL;
        } else {
            mc_metric_add(&r->ops->counters.written_bytes, (int64_t)length);
        }
    }
    return status;
}

/* A source that cannot be mapped is read piece by piece. */
static enum mc_status bounce(struct replicate *r, uint64_t size) {
    struct mc_port *port = r->ops->port;
    uint64_t step = mc_min_u64(size, BOUNCE_BYTES);
    void *buffer = mc_alloc(step);
    enum mc_status status = MC_OK;
    for (uint64_t done = 0; done < size && status == MC_OK; done += step) {
        uint64_t length = mc_min_u64(step, size - done);
        struct mc_port_move read = {.op = MC_TRANSFER_READ,
                                    .local = buffer,
                                    .endpoint = r->source.memory.endpoint,
                                    .remote_addr = r->source.memory.address + done,
                                    .length = length,
                                    .status = MC_INTERNAL_ERROR};
        port->ops->move(port, &read, 1, r->deadline_ns);
        status = read.status == MC_OK ? write_targets(r, buffer, done, length) : MC_TRANSFER_FAIL;
    }
    free(buffer);
    return status;
}

static enum mc_status transfer(struct replicate *r) {
    const struct mw_replica *target = r->targets.items;
    struct mc_port *port = r->ops->port;
    if (r->targets.count == 0) {
        return MC_OK; /* it is there already */
    }
    uint64_t size = mc_ops_replica_size(&r->source);
    if (!mc_ops_replica_readable(&r->source)) {
        return MC_INVALID_REPLICA;
    }
    for (size_t i = 0; i < r->targets.count; i++) {
        if (target[i].tag != MW_TAG_MEMORY || target[i].memory.size != size) {
            return MC_INVALID_REPLICA;
        }
    }
    const void *bytes = port->ops->map(port, r->source.memory.endpoint, r->source.memory.address,
                                       size, r->deadline_ns);
    if (bytes == NULL) {
        return bounce(r, size);
    }
    enum mc_status status = write_targets(r, bytes, 0, size);
    port->ops->unmap(port, r->source.memory.endpoint, bytes);
    return status;
}

/* ---- one task ---- */

static enum mc_status carry_out(struct replicate *r, uint32_t max_retries) {
    enum mc_status status = start_patiently(r, max_retries);
    bool started = status == MC_OK || status == MC_RPC_FAIL || status == MC_RPC_TIMEOUT;
    if (status == MC_OK) {
        status = transfer(r);
    }
    if (status == MC_OK) {
        uint64_t least = mc_ops_now(r->ops) + OPS_CLEANUP_MS * MC_MS;
        status = finish(r, MC_RPC_CopyEnd, MC_RPC_MoveEnd, mc_max_u64(r->deadline_ns, least));
    }
    if (status != MC_OK && started && !r->in_doubt) {
        enum mc_status revoked = finish(r, MC_RPC_CopyRevoke, MC_RPC_MoveRevoke,
                                        mc_ops_now(r->ops) + OPS_CLEANUP_MS * MC_MS);
        if (revoked == MC_RPC_FAIL || revoked == MC_RPC_TIMEOUT) {
            mc_warn_limited("a failed copy could not be revoked: key=%.*s status=%s",
                            (int)r->payload.key.len, r->payload.key.ptr, mc_status_name(revoked));
        }
    }
    return status;
}

static void report(struct mc_ops *ops, struct mc_ops_call *call, struct mc_uuid id,
                   enum mc_status status, uint32_t retries) {
    char message[128] = "Task completed successfully"; /* upstream's words */
    if (status != MC_OK && retries > 0) {
        snprintf(message, sizeof(message), "%s (max retries reached: %u)", mc_status_name(status),
                 retries);
    } else if (status != MC_OK) {
        snprintf(message, sizeof(message), "%s", mc_status_name(status));
    }
    struct mw_a_task_complete args = {
        .client = ops->client,
        .task = {.id = id,
                 .status = status == MC_OK ? MC_TASK_SUCCESS : MC_TASK_FAILED,
                 .message = mc_str_from(message)}};
    struct mw_e_void answer;
    enum mc_status told = mc_ops_rpc(ops, call, MC_RPC_MarkTaskToComplete, &args, &answer,
                                     mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    if (told != MC_OK || answer.error != 0) {
        mc_warn_limited("the master could not be told how a task ended: status=%s",
                        mc_status_name(told != MC_OK ? told : mc_ops_status(answer.error)));
    }
    mc_metric_add(status == MC_OK ? &ops->counters.tasks : &ops->counters.task_failures, 1);
}

static void run_task(struct mc_ops *ops, const struct mw_task_assignment *task) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct replicate r = {.ops = ops,
                          .call = call,
                          .writer = mc_ops_fresh_writer(ops),
                          .move = task->type == MC_TASK_MOVE,
                          .deadline_ns = mc_ops_deadline(ops)};
    enum mc_status status =
        task->type == MC_TASK_COPY || task->type == MC_TASK_MOVE
            ? mw_task_payload_decode(task->type, task->payload, &call->arena, &r.payload)
            : MC_NOT_SUPPORTED;
    uint64_t steps = r.move ? 0 : mc_min_u64(r.payload.stripes, STRIPES_MAX);
    if (status == MC_OK) {
        status = carry_out(&r, task->max_retry_attempts);
    }
    for (; steps > 0 && status == MC_OK && r.targets.count > 0; steps--) {
        r.writer = mc_ops_fresh_writer(ops);
        r.deadline_ns = mc_ops_deadline(ops);
        status = carry_out(&r, task->max_retry_attempts);
    }
    report(ops, call, task->id, status, r.retries);
    mc_ops_end(ops, call);
}

enum mc_status mc_ops_run_tasks(struct mc_ops *ops, bool (*stop)(void *ctx), void *ctx,
                                size_t *done) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_a_fetch_tasks args = {.client = ops->client, .count = FETCH_MAX};
    enum mc_status status = MC_OK;
    size_t count = FETCH_MAX;
    *done = 0;
    while (status == MC_OK && count == FETCH_MAX && !stop(ctx)) {
        struct mw_e_vec answer;
        status = mc_ops_rpc(ops, call, MC_RPC_FetchTasks, &args, &answer, mc_ops_deadline(ops),
                            MC_OPS_ONCE);
        if (status == MC_OK) {
            status = mc_ops_status(answer.error);
        }
        count = status == MC_OK ? answer.value.count : 0;
        const struct mw_task_assignment *tasks = answer.value.items;
        for (size_t i = 0; i < count && !stop(ctx); i++) {
            (*done)++;
            run_task(ops, &tasks[i]); /* in a call of its own: this one holds the tasks */
        }
        mc_arena_reset(&call->arena);
    }
    mc_ops_end(ops, call);
    return status;
}
