/*
 * What puts, put sessions and copies have in common: the start, an id for the writer, and where the
 * bytes of a striped object go.
 */
#include "client/ops_internal.h"

#include <stdatomic.h>

#include "client/replicate_config.h"

struct mc_uuid mc_ops_fresh_writer(struct mc_ops *ops) {
    uint64_t n = atomic_fetch_add_explicit(&ops->put_counter, 1, memory_order_relaxed) + 1;
    return (struct mc_uuid){ops->client.hi, ops->client.lo + n};
}

void mc_ops_wire_config(struct mc_ops *ops, struct mc_ops_call *call,
                        const struct mc_replicate_config *config, struct mc_str *groups,
                        size_t key_count, struct mw_replicate_config *wire) {
    mc_wire_replicate_config(&call->arena, config, wire);
    wire->host_id = ops->host_id;
    if (config != NULL && groups != NULL) {
        wire->group_ids = (struct mw_opt_strs){true, {groups, key_count}};
    }
}

enum mc_status mc_ops_start_puts(struct mc_ops *ops, struct mc_ops_call *call,
                                 const struct mw_a_batch_put_start *request, bool upsert,
                                 const struct mc_replicate_config *config, uint64_t *expected,
                                 uint64_t stripe_over, uint64_t deadline_ns,
                                 struct mc_vec *answers) {
    const struct mc_replicate_config nothing = {0};
    bool ours = mc_replicate_config_is_ours(config);
    if (!ours && stripe_over == 0) {
        return mc_ops_rpc_batch(ops, call, upsert ? MC_RPC_BatchUpsertStart : MC_RPC_BatchPutStart,
                                request, answers, request->keys.count, deadline_ns, MC_OPS_ONCE);
    }
    config = config != NULL ? config : &nothing;
    struct mw_a_start_puts args = {.client = request->client,
                                   .keys = request->keys,
                                   .lengths = request->lengths,
                                   .config = request->config,
                                   .tenant = request->tenant,
                                   .upsert = upsert,
                                   .ttl_ms = config->ttl_ms,
                                   .condition = (uint8_t)config->condition,
                                   .stripe_over = stripe_over};
    if (mc_replicate_config_compares(config)) {
        args.expected = (struct mc_vec){expected, request->keys.count};
    }
    enum mc_status status = mc_ops_rpc_batch(ops, call, MC_RPC_StartPuts, &args, answers,
                                             request->keys.count, deadline_ns, MC_OPS_ONCE);
    if (status == MC_NOT_SUPPORTED && !ours) { /* upstream's master: in one piece, then */
        mc_ops_master_refused(ops, "large objects lie in one piece");
        return mc_ops_start_puts(ops, call, request, upsert, config, expected, 0, deadline_ns,
                                 answers);
    }
    return status;
}

size_t mc_ops_stripe_writes(const struct mc_vec *replicas, unsigned stripes, const void *from,
                            uint64_t offset, uint64_t length, struct mc_port_move *moves) {
    const struct mw_replica *replica = replicas->items;
    size_t n = 0;
    for (uint64_t done = 0, step; done < length; done += step) {
        struct mc_ops_run run = mc_ops_stripe_at(stripes, offset + done);
        step = mc_min_u64(run.length, length - done);
        for (size_t r = run.stripe; r < replicas->count; r += stripes) {
            if (replica[r].tag != MW_TAG_MEMORY || replica[r].status == MC_REPLICA_REMOVED) {
                continue; /* an older copy's stripe that is not there; the whole on a disk */
            }
            moves[n++] = (struct mc_port_move){.op = MC_TRANSFER_WRITE,
                                               .local = (char *)(uintptr_t)from + done,
                                               .endpoint = replica[r].memory.endpoint,
                                               .remote_addr = replica[r].memory.address + run.at,
                                               .length = step,
                                               .status = MC_INTERNAL_ERROR};
        }
    }
    return n;
}
