/*
 * Reading objects that are on the SSD of a node and in no memory: the owner brings some of them to
 * memory that it lends for a while, they are moved from there, and the owner is told that it may
 * have its memory back.
 *
 * What the owner lends is ours until gc_ttl_ms after it answered; we count from before we asked and
 * look after the last byte, so bytes that came too late are never taken. An owner whose memory is
 * lent to others says so; it is asked again until the deadline, and for less at once.
 */
#include "client/ops_internal.h"

#include "base/log.h"
#include "wire/client_rpc.h"

#define GROUP_BYTES (32u << 20) /* asked for at once, or one object */
#define GROUP_KEYS  256u
#define BUSY_NS     (20 * MC_MS)

struct group {
    struct mc_ops_disk_read *reads[GROUP_KEYS];
    size_t count;
    uint64_t bytes;
};

static void finish(struct group *group, enum mc_status status) {
    for (size_t i = 0; i < group->count; i++) {
        group->reads[i]->status = status;
        group->reads[i]->done = true;
    }
}

/* At most `most` reads of one owner, from those that are still open. */
static void gather(struct mc_ops_disk_read *reads, size_t count, size_t most, struct group *group) {
    group->count = 0;
    group->bytes = 0;
    for (size_t i = 0; i < count && group->count < most; i++) {
        struct mc_ops_disk_read *read = &reads[i];
        if (read->done ||
            (group->count > 0 && (!mc_str_eq(read->endpoint, group->reads[0]->endpoint) ||
                                  group->bytes + read->size > GROUP_BYTES))) {
            continue;
        }
        group->reads[group->count++] = read;
        group->bytes += read->size;
    }
}

/* As the owner knows it: "tenant NUL key". */
static struct mc_str disk_key(struct mc_ops *ops, struct mc_arena *arena, struct mc_str key) {
    char *text = mc_arena_alloc(arena, ops->tenant.len + 1 + key.len);
    memcpy(text, ops->tenant.ptr, ops->tenant.len);
    text[ops->tenant.len] = '\0';
    memcpy(text + ops->tenant.len + 1, key.ptr, key.len);
    return (struct mc_str){text, ops->tenant.len + 1 + key.len};
}

static enum mc_status ask(struct mc_ops *ops, struct mc_ops_call *call, struct group *group,
                          uint64_t deadline_ns, struct mw_offload_buffers *out) {
    const struct mc_rpc_desc *rpc = &mc_client_rpc_table()[MC_CLIENT_RPC_batch_get_offload_object];
    struct mc_str *keys = mc_arena_alloc(&call->arena, group->count * sizeof(*keys));
    int64_t *sizes = mc_arena_alloc(&call->arena, group->count * sizeof(*sizes));
    for (size_t i = 0; i < group->count; i++) {
        keys[i] = disk_key(ops, &call->arena, group->reads[i]->key);
        sizes[i] = (int64_t)group->reads[i]->size;
    }
    struct mw_a_offload_get args = {{keys, group->count}, {sizes, group->count}};
    struct mw_e_offload_buffers answer;
    struct mc_buf reply = {0};
    mc_buf_clear(&call->request);
    mc_master_rpc_encode_args(rpc, 0, &args, &call->request);
    enum mc_status status = ops->port->ops->peer_call(
        ops->port, group->reads[0]->endpoint, rpc->function_id,
        (struct mc_str){call->request.data, call->request.len}, deadline_ns, &reply);
    if (status == MC_OK) { /* the answer's strings must outlive the buffer */
        struct mc_str kept = mc_arena_str(&call->arena, (struct mc_str){reply.data, reply.len});
        status = mc_master_rpc_decode_ret(rpc, 0, kept, &call->arena, &answer);
        status = status == MC_OK ? mc_ops_status(answer.error) : MC_RPC_FAIL;
    }
    mc_buf_free(&reply);
    if (status == MC_OK && answer.value.pointers.count != group->count) {
        status = MC_RPC_FAIL;
    }
    if (status == MC_OK) {
        *out = answer.value;
    }
    return status;
}

static void release(struct mc_ops *ops, struct mc_ops_call *call, struct mc_str endpoint,
                    uint64_t batch, uint64_t deadline_ns) {
    const struct mc_rpc_desc *rpc = &mc_client_rpc_table()[MC_CLIENT_RPC_release_offload_buffer];
    struct mc_buf reply = {0};
    mc_buf_clear(&call->request);
    mc_master_rpc_encode_args(rpc, 0, &batch, &call->request);
    enum mc_status status = ops->port->ops->peer_call(
        ops->port, endpoint, rpc->function_id,
        (struct mc_str){call->request.data, call->request.len}, deadline_ns, &reply);
    if (status != MC_OK) { /* it takes its memory back by itself after a while */
        mc_debug("an owner was not told that its memory is free: endpoint=%.*s status=%s",
                 (int)endpoint.len, endpoint.ptr, mc_status_name(status));
    }
    mc_buf_free(&reply);
}

static void move(struct mc_ops *ops, struct mc_ops_call *call, struct group *group,
                 const struct mw_offload_buffers *at, uint64_t deadline_ns) {
    const uint64_t *pointers = at->pointers.items;
    size_t count = 0;
    for (size_t i = 0; i < group->count; i++) {
        count += group->reads[i]->piece_count;
    }
    struct mc_port_move *moves = mc_arena_alloc(&call->arena, (count + 1) * sizeof(*moves));
    size_t n = 0;
    for (size_t i = 0; i < group->count; i++) {
        for (size_t k = 0; k < group->reads[i]->piece_count; k++) {
            const struct mc_store_range *piece = &group->reads[i]->pieces[k];
            moves[n++] = (struct mc_port_move){.op = MC_TRANSFER_READ,
                                               .local = piece->ptr,
                                               .endpoint = at->te_endpoint,
                                               .remote_addr = pointers[i] + piece->offset,
                                               .length = piece->length,
                                               .status = MC_INTERNAL_ERROR};
        }
    }
    ops->port->ops->move(ops->port, moves, n, deadline_ns);
    n = 0;
    for (size_t i = 0; i < group->count; i++) {
        group->reads[i]->status = MC_OK;
        group->reads[i]->done = true;
        for (size_t k = 0; k < group->reads[i]->piece_count; k++, n++) {
            if (moves[n].status != MC_OK) {
                group->reads[i]->status = MC_TRANSFER_FAIL;
            }
        }
    }
}

/* False when the owner has no memory to lend just now. */
static bool read_group(struct mc_ops *ops, struct mc_ops_call *call, struct group *group,
                       uint64_t deadline_ns) {
    struct mw_offload_buffers at;
    uint64_t asked = mc_ops_now(ops);
    struct mc_str endpoint = group->reads[0]->endpoint;
    enum mc_status status = ask(ops, call, group, deadline_ns, &at);
    if (status == MC_BUFFER_OVERFLOW) {
        return false;
    }
    if (status != MC_OK && group->count > 1 && status != MC_RPC_FAIL && status != MC_RPC_TIMEOUT) {
        for (size_t i = 0; i < group->count; i++) { /* one of them spoils it for all */
            struct group single = {.reads = {group->reads[i]}, .count = 1};
            if (!read_group(ops, call, &single, deadline_ns)) {
                return false;
            }
        }
        return true;
    }
    if (status != MC_OK) {
        mc_warn_limited("objects could not be read from the SSD of a node: endpoint=%.*s keys=%zu "
                        "status=%s",
                        (int)endpoint.len, endpoint.ptr, group->count, mc_status_name(status));
        finish(group, status);
        return true;
    }
    move(ops, call, group, &at, deadline_ns);
    if (mc_ops_now(ops) - asked >= mc_min_u64(at.gc_ttl_ms, UINT32_MAX) * MC_MS) {
        finish(group, MC_LEASE_EXPIRED);
    } else {
        release(ops, call, endpoint, at.batch_id, deadline_ns);
    }
    return true;
}

void mc_ops_disk_read(struct mc_ops *ops, struct mc_ops_call *call, struct mc_ops_disk_read *reads,
                      size_t count, uint64_t deadline_ns) {
    struct group *group = mc_arena_alloc(&call->arena, sizeof(*group));
    for (size_t i = 0; i < count; i++) {
        reads[i].done = ops->port->ops->peer_call == NULL;
        reads[i].status = MC_INVALID_REPLICA;
        if (reads[i].file.len > 0) {
            mc_ops_file_read(ops, &reads[i]);
        }
    }
    size_t most = GROUP_KEYS; /* an owner may have less memory than a group wants */
    for (;;) {
        gather(reads, count, most, group);
        if (group->count == 0) {
            break;
        }
        if (mc_ops_now(ops) >= deadline_ns) {
            finish(group, MC_TRANSFER_FAIL);
        } else if (read_group(ops, call, group, deadline_ns)) {
            most = mc_min_u64(2 * most, GROUP_KEYS);
        } else {
            most = mc_max_u64(group->count / 2, 1);
            ops->port->ops->sleep_until(ops->port, mc_ops_now(ops) + BUSY_NS);
        }
    }
    for (size_t i = 0; i < count; i++) {
        mc_metric_add(&ops->counters.disk_reads, 1);
        mc_metric_add(&ops->counters.disk_read_failures, reads[i].status != MC_OK);
    }
}
