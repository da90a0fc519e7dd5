/*
 * Being a node: mount segments, ping, and mount again those that the master has forgotten.
 *
 * The address of memory is what replica descriptors name, so it must never come to mean other bytes
 * while somebody may hold an old descriptor. A master that restarted empty hands out the whole
 * segment again, while readers still hold leases, and writers space, that its predecessor gave. So
 * a segment that a master had and no longer has is not offered again: it is replaced by fresh
 * memory at another address under another id, and what addresses the old place fails. (The objects
 * in it were lost with the master's index.) In short, memory is offered to a master once. A master
 * that still has the segment and only wants to be told which there are, as it does after every
 * mount, is told of none: it keeps what it has, and should it have restarted since it was asked, it
 * was offered nothing, which the next heartbeat finds out.
 *
 * A mount that was not answered may still reach the master after this node has given up that
 * memory. Such ghosts are unmounted at each heartbeat for a while, so that the master does not
 * allocate what nobody serves.
 */
#include "client/ops_internal.h"

#include "base/log.h"

#define GHOST_TTL_NS    (60 * MC_SEC)
#define PING_TIMEOUT_NS (3 * MC_SEC)
#define MOUNT_ATTEMPTS  3
#define MOUNT_PAUSE_NS  (20 * MC_MS) /* doubled each time */

static uint64_t ping_deadline(struct mc_ops *ops) {
    return mc_ops_now(ops) + mc_min_u64(ops->timeout_ns, PING_TIMEOUT_NS);
}

enum mc_status mc_ops_ready(struct mc_ops *ops) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_str answer;
    enum mc_status status =
        mc_ops_rpc(ops, call, MC_RPC_ServiceReady, NULL, &answer, ping_deadline(ops), MC_OPS_ONCE);
    if (status == MC_OK) {
        status = mc_ops_status(answer.error);
    }
    mc_ops_end(ops, call);
    return status;
}

static struct mw_segment wire_segment(const struct mc_ops_node *node,
                                      const struct mc_ops_segment *segment) {
    return (struct mw_segment){.id = segment->id,
                               .name = mc_str_from(node->name),
                               .base = segment->base,
                               .size = segment->size,
                               .te_endpoint = mc_str_from(node->te_endpoint),
                               .protocol = mc_str_from(node->protocol),
                               .host_id = mc_str_from(node->host_id)};
}

static enum mc_status unmount_id(struct mc_ops *ops, struct mc_ops_call *call, struct mc_uuid id) {
    struct mw_a_unmount args = {.segment = id, .client = ops->client};
    struct mw_e_void answer;
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_UnmountSegment, &args, &answer, ping_deadline(ops),
                      MC_OPS_ONCE));
    return mc_ops_status(answer.error);
}

static enum mc_status leave(struct mc_ops *ops, struct mc_ops_call *call,
                            struct mc_ops_segment *segment, uint64_t grace_ms) {
    struct mw_a_graceful_unmount args = {
        .segment = segment->id, .client = ops->client, .grace_ms = grace_ms};
    struct mw_e_void answer;
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_GracefulUnmountSegment, &args, &answer, ping_deadline(ops),
                      MC_OPS_ONCE));
    MC_TRY(mc_ops_status(answer.error));
    segment->leaving = true;
    return MC_OK;
}

enum mc_status mc_ops_unmount(struct mc_ops *ops, struct mc_ops_segment *segment,
                              uint64_t grace_ms) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    enum mc_status status =
        grace_ms > 0 ? leave(ops, call, segment, grace_ms) : unmount_id(ops, call, segment->id);
    mc_ops_end(ops, call);
    return status;
}

/* ---- ghosts ---- */

static void remember_ghost(struct mc_ops *ops, struct mc_ops_node *node, struct mc_uuid id) {
    size_t oldest = 0;
    for (size_t i = 1; i < MC_OPS_GHOSTS; i++) {
        if (node->ghost_until_ns[i] < node->ghost_until_ns[oldest]) {
            oldest = i;
        }
    }
    node->ghosts[oldest] = id;
    node->ghost_until_ns[oldest] = mc_ops_now(ops) + GHOST_TTL_NS;
}

static void unmount_ghosts(struct mc_ops *ops, struct mc_ops_node *node, struct mc_ops_call *call) {
    for (size_t i = 0; i < MC_OPS_GHOSTS; i++) {
        if (node->ghost_until_ns[i] > mc_ops_now(ops) &&
            unmount_id(ops, call, node->ghosts[i]) != MC_OK) {
            return; /* the next heartbeat tries again */
        }
    }
}

/* ---- mounting and heartbeat ---- */

/* MC_OK: the master has the segment under this id. MC_SEGMENT_NOT_FOUND: it does not, or is about
 * to forget it. */
static enum mc_status ask_segment(struct mc_ops *ops, struct mc_ops_call *call, struct mc_uuid id) {
    struct mw_e_i32 answer;
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_QuerySegmentStatusById, &id, &answer, ping_deadline(ops),
                      MC_OPS_ONCE));
    MC_TRY(mc_ops_status(answer.error));
    return answer.value != MC_SEGMENT_UNMOUNTING ? MC_OK : MC_SEGMENT_NOT_FOUND;
}

/* The master has it no more. */
static enum mc_status renew_memory(struct mc_ops *ops, struct mc_ops_node *node,
                                   struct mc_ops_segment *segment) {
    struct mc_uuid old = segment->id;
    if (!segment->confirmed) {
        remember_ghost(ops, node, old);
    }
    MC_TRY(node->fresh_memory(node->ctx, segment));
    MC_ASSERT(!mc_uuid_eq(old, segment->id));
    segment->confirmed = false;
    mc_info("the master does not know the segment any more, mounting fresh memory: name=%s "
            "base=%#llx",
            node->name, (unsigned long long)segment->base);
    return MC_OK;
}

/* Finds out which of segments[0..n) the master has, brings fresh memory for those that it has not,
 * and tells it of these. `told`: the master wants to be told all segments. */
static enum mc_status settle(struct mc_ops *ops, struct mc_ops_node *node, struct mc_ops_call *call,
                             struct mc_ops_segment *segments, size_t n, bool told) {
    struct mw_segment fresh[MC_OPS_SEGMENTS];
    struct mc_ops_segment *mounting[MC_OPS_SEGMENTS];
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        enum mc_status known = ask_segment(ops, call, segments[i].id);
        if (known == MC_OK) {
            segments[i].confirmed = segments[i].confirmed || !told;
        } else if (known != MC_SEGMENT_NOT_FOUND) {
            return known;
        } else if (segments[i].leaving) {
            segments[i].gone = true;
        } else {
            MC_TRY(renew_memory(ops, node, &segments[i]));
            fresh[count] = wire_segment(node, &segments[i]);
            mounting[count++] = &segments[i];
        }
    }
    if (count == 0 && !told) {
        return MC_OK;
    }
    for (size_t i = 0; i < n; i++) {
        segments[i].confirmed = false;
    }
    struct mw_a_remount args = {.segments = {fresh, count}, .client = ops->client};
    struct mw_e_void answer;
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_ReMountSegment, &args, &answer,
                                       ping_deadline(ops), MC_OPS_ONCE);
    if (status != MC_OK) {
        node->doubt_until_ns = mc_ops_now(ops) + GHOST_TTL_NS;
        return status;
    }
    MC_TRY(mc_ops_status(answer.error));
    for (size_t i = 0; i < count; i++) {
        mounting[i]->confirmed = true;
    }
    mc_metric_add(&ops->counters.remounts, 1);
    return MC_OK;
}

/* A mount that was not answered may have been carried out by a master that has restarted since, and
 * that gave parts of the memory away. So it is not repeated. */
enum mc_status mc_ops_mount(struct mc_ops *ops, struct mc_ops_node *node,
                            struct mc_ops_segment *segment) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_a_mount args = {.segment = wire_segment(node, segment), .client = ops->client};
    struct mw_e_void answer;
    uint64_t deadline = mc_ops_now(ops) + ops->timeout_ns / MOUNT_ATTEMPTS;
    enum mc_status status =
        mc_ops_rpc(ops, call, MC_RPC_MountSegment, &args, &answer, deadline, MC_OPS_ONCE);
    if (status == MC_OK) {
        status = mc_ops_status(answer.error);
    }
    segment->confirmed = status == MC_OK;
    if (status != MC_OK) {
        node->doubt_until_ns = mc_ops_now(ops) + GHOST_TTL_NS;
    }
    for (unsigned attempt = 1;
         attempt < MOUNT_ATTEMPTS && (status == MC_RPC_FAIL || status == MC_RPC_TIMEOUT);
         attempt++) {
        ops->port->ops->sleep_until(ops->port, mc_ops_now(ops) + (MOUNT_PAUSE_NS << attempt));
        status = settle(ops, node, call, segment, 1, false);
    }
    if (status == MC_RPC_FAIL || status == MC_RPC_TIMEOUT) {
        remember_ghost(ops, node, segment->id); /* given up here, it may be carried out yet */
    }
    mc_ops_end(ops, call);
    return status;
}

enum mc_status mc_ops_heartbeat(struct mc_ops *ops, struct mc_ops_node *node) {
    if (node->segment_count == 0) { /* nothing lent: the master need not know this client */
        return mc_ops_ready(ops);
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_ping answer;
    enum mc_status status =
        mc_ops_rpc(ops, call, MC_RPC_Ping, &ops->client, &answer, ping_deadline(ops), MC_OPS_ONCE);
    if (status == MC_OK) {
        status = mc_ops_status(answer.error);
    }
    /* A late mount of an earlier segment makes the master content with this client, whether it has
     * the present segments or, when it had forgotten the client meanwhile, has not. */
    bool told = status == MC_OK && answer.value.client_status == MC_CLIENT_NEED_REMOUNT;
    if (told) {
        mc_ops_master_may_be_new(ops);
    }
    bool unsure = mc_ops_now(ops) < node->doubt_until_ns;
    for (size_t i = 0; i < node->segment_count; i++) {
        unsure = unsure || !node->segments[i].confirmed || node->segments[i].leaving;
    }
    if (status == MC_OK && (told || unsure)) {
        status = settle(ops, node, call, node->segments, node->segment_count, told);
    }
    if (status == MC_OK) {
        unmount_ghosts(ops, node, call);
    }
    mc_ops_end(ops, call);
    return status;
}
