/*
 * Bringing objects back from this node's SSD to memory: the master names those that are read often,
 * gives a place for each, and is told how it went. See client/offload.h.
 *
 * Each goes by an id of its own, as puts do (client/ops.h): the master gives one up that takes too
 * long, and its late end must not end the next one of the same key. A master that takes only the
 * client's own (upstream's) gets that, and so does every master of what never had memory.
 *
 * The bytes are verified by the tier before they are written anywhere. A write that ended in doubt
 * (its bytes may still arrive) is not reported as failed, because the master would hand the place
 * out again at once: it gives it up by itself, later.
 */
#include "client/offload.h"

#include "base/log.h"
#include "client/ops_internal.h"

struct promotion {
    struct mc_ops *ops;
    struct mc_ops_call *call;
    struct mc_tier *tier;
    const struct mw_disk_task *task;
    struct mc_uuid writer;
    struct mc_uuid holder; /* who ends it: the client what it was only given, the writer the rest */
};

static enum mc_status notify(struct promotion *p, enum mc_master_rpc rpc) {
    struct mw_a_client_key args = {
        .client = p->holder, .key = p->task->key, .tenant = p->task->tenant};
    struct mw_e_void ret;
    MC_TRY(
        mc_ops_rpc(p->ops, p->call, rpc, &args, &ret, mc_ops_deadline(p->ops), MC_OPS_IDEMPOTENT));
    return mc_ops_status(ret.error);
}

static enum mc_status read_object(struct promotion *p, struct mc_tier_read *read) {
    const struct mw_disk_task *task = p->task;
    size_t len = task->tenant.len + 1 + task->key.len;
    char *key = mc_arena_zalloc(&p->call->arena, len);
    memcpy(key, task->tenant.ptr, task->tenant.len);
    memcpy(key + task->tenant.len + 1, task->key.ptr, task->key.len);
    *read = (struct mc_tier_read){.key = {key, len}, .size = (uint64_t)task->size};
    read->room = aligned_alloc(MC_TIER_BLOCK, mc_tier_read_room(len, read->size));
    MC_ASSERT(read->room != NULL);
    return mc_tier_read(p->tier, read, 1);
}

static enum mc_status ask_for_memory(struct promotion *p, uint64_t size, struct mc_str segment,
                                     struct mw_e_promotion *start) {
    struct mw_a_promotion_start args = {.client = p->writer,
                                        .key = p->task->key,
                                        .tenant = p->task->tenant,
                                        .size = size,
                                        .segments = {&segment, segment.len > 0}};
    p->holder = p->writer; /* also when the answer is lost */
    MC_TRY(mc_ops_rpc(p->ops, p->call, MC_RPC_PromotionAllocStart, &args, start,
                      mc_ops_deadline(p->ops), MC_OPS_ONCE));
    enum mc_status status = mc_ops_status(start->error);
    if (status != MC_OK) {
        p->holder = p->ops->client;
    }
    if (status == MC_ILLEGAL_CLIENT && !mc_uuid_eq(p->writer, p->ops->client)) {
        p->writer = p->ops->client;
        return ask_for_memory(p, size, segment, start);
    }
    return status;
}

/* *doubt: the bytes may still arrive. */
static enum mc_status write_object(struct promotion *p, const struct mc_tier_read *read,
                                   struct mc_str segment, bool *doubt) {
    struct mw_e_promotion start;
    MC_TRY(ask_for_memory(p, read->size, segment, &start));
    struct mc_port *port = p->ops->port;
    struct mc_port_move move = {.op = MC_TRANSFER_WRITE,
                                .local = read->value,
                                .endpoint = start.value.memory.memory.endpoint,
                                .remote_addr = start.value.memory.memory.address,
                                .length = read->size,
                                .status = MC_INTERNAL_ERROR};
    if (start.value.memory.tag != MW_TAG_MEMORY || start.value.memory.memory.size < read->size) {
        return MC_RPC_FAIL;
    }
    port->ops->move(port, &move, 1, mc_ops_deadline(p->ops));
    *doubt = move.status == MC_ERR_TIMEOUT;
    return move.status == MC_OK ? MC_OK : MC_TRANSFER_FAIL;
}

/* A master that the question for memory did not reach has it in the client's name still. */
static enum mc_status give_up(struct promotion *p) {
    enum mc_status status = notify(p, MC_RPC_NotifyPromotionFailure);
    if (status == MC_ILLEGAL_CLIENT && !mc_uuid_eq(p->holder, p->ops->client)) {
        p->holder = p->ops->client;
        status = notify(p, MC_RPC_NotifyPromotionFailure);
    }
    return status;
}

static void promote(struct promotion *p, struct mc_str segment) {
    struct mc_tier_read read = {0};
    bool doubt = false;
    enum mc_status status = MC_INVALID_PARAMS;
    if (p->task->size > 0) {
        status = read_object(p, &read);
        status = status == MC_OK ? write_object(p, &read, segment, &doubt) : status;
    }
    if (status == MC_OK) {
        status = notify(p, MC_RPC_NotifyPromotionSuccess);
    } else if (!doubt && give_up(p) != MC_OK) {
        mc_debug("the master was not told that an object stays on SSD: key=%.*s",
                 (int)p->task->key.len, p->task->key.ptr);
    }
    if (status != MC_OK) {
        mc_warn_limited("an object was not brought back from SSD: key=%.*s status=%s",
                        (int)p->task->key.len, p->task->key.ptr, mc_status_name(status));
    }
    free(read.room);
}

size_t mc_offload_promote(struct mc_ops *ops, struct mc_tier *tier, struct mc_str segment,
                          bool plain) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_vec ret;
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_PromotionObjectHeartbeat, &ops->client,
                                       &ret, mc_ops_deadline(ops), MC_OPS_ONCE);
    status = status == MC_OK ? mc_ops_status(ret.error) : status;
    size_t count = status == MC_OK ? ret.value.count : 0; /* most masters do not want it */
    for (size_t i = 0; i < count; i++) {
        struct promotion p = {.ops = ops,
                              .call = mc_ops_begin(ops),
                              .tier = tier,
                              .task = (const struct mw_disk_task *)ret.value.items + i,
                              .holder = ops->client,
                              .writer = plain ? ops->client : mc_ops_fresh_writer(ops)};
        promote(&p, segment);
        mc_ops_end(ops, p.call);
    }
    mc_ops_end(ops, call);
    return count;
}
