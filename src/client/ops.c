/*
 * The ground of ops: call contexts, the RPC helper, the choice of a replica. See client/ops.h.
 *
 * A call context is taken from a free list, used by one operation and put back with its memory, so
 * the list grows to the number of concurrent callers and no further. The RPC helper is the only
 * place that knows about schema versions: a master of an older release refuses our newest arguments
 * by their type hash, and the version that it accepted is remembered per RPC.
 */
#include "client/ops_internal.h"

#include <stdatomic.h>

#include "base/log.h"

#define ROUND_BYTES  (64u << 20)
#define RPC_ATTEMPTS 3
/* Doubled at each repetition; only after an answer that came early. */
#define RPC_BACKOFF_NS   (20 * MC_MS)
#define REPLY_KEEP_BYTES (4u << 20) /* larger buffers are given back after the call */

const uint64_t mc_ops_latency_bounds[] = {
    50,     75,     125,     150,     200,     250,      300,      400,       500,   750,
    1000,   1500,   2000,    3000,    5000,    7000,     15000,    20000,     50000, 100000,
    200000, 500000, 1000000, 2000000, 5000000, 10000000, 20000000, UINT64_MAX};

struct mc_ops *mc_ops_create(struct mc_port *port, const struct mc_ops_config *config) {
    struct mc_ops *ops = mc_zalloc(sizeof(*ops));
    ops->port = port;
    ops->client = config->client;
    ops->tenant = mc_str_from(mc_strdup(config->tenant));
    ops->host_id = mc_str_from(mc_strdup(config->host_id));
    ops->timeout_ns = (uint64_t)config->timeout_ms * MC_MS;
    ops->checksum = config->checksum;
    ops->hot = config->hot;
    ops->stripe_bytes = config->stripe_bytes;
    ops->round_bytes = config->round_bytes != 0 ? config->round_bytes : ROUND_BYTES;
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        mc_steps_init(&ops->counters.rpc[i].latency, mc_ops_latency_bounds);
    }
    pthread_mutex_init(&ops->lock, NULL);
    mc_list_init(&ops->views);
    return ops;
}

static void call_destroy(struct mc_ops_call *call) {
    mc_arena_free(&call->arena);
    mc_buf_free(&call->request);
    mc_buf_free(&call->replies[0]);
    mc_buf_free(&call->replies[1]);
    free(call);
}

void mc_ops_destroy(struct mc_ops *ops) {
    mc_ops_view_release_all(ops);
    mc_ops_sessions_destroy(ops);
    while (ops->idle_calls != NULL) {
        struct mc_ops_call *call = ops->idle_calls;
        ops->idle_calls = call->next;
        call_destroy(call);
    }
    pthread_mutex_destroy(&ops->lock);
    free((char *)ops->tenant.ptr);
    free((char *)ops->host_id.ptr);
    free((char *)ops->fsdir.ptr);
    mc_buf_free(&ops->tidy.keep);
    free(ops);
}

struct mc_ops_counters *mc_ops_counters(struct mc_ops *ops) {
    return &ops->counters;
}

/* ---- call contexts ---- */

struct mc_ops_call *mc_ops_begin(struct mc_ops *ops) {
    pthread_mutex_lock(&ops->lock);
    struct mc_ops_call *call = ops->idle_calls;
    if (call != NULL) {
        ops->idle_calls = call->next;
    }
    pthread_mutex_unlock(&ops->lock);
    return call != NULL ? call : mc_zalloc(sizeof(*call));
}

static void trim(struct mc_buf *buf) {
    if (buf->cap > REPLY_KEEP_BYTES) {
        mc_buf_free(buf);
    }
    mc_buf_clear(buf);
}

void mc_ops_end(struct mc_ops *ops, struct mc_ops_call *call) {
    mc_arena_reset(&call->arena);
    trim(&call->request);
    trim(&call->replies[0]);
    trim(&call->replies[1]);
    pthread_mutex_lock(&ops->lock);
    call->next = ops->idle_calls;
    ops->idle_calls = call;
    pthread_mutex_unlock(&ops->lock);
}

/* ---- who the master is ---- */

/* A master that refuses our words is upstream's. Another may take its place at any time: where an
 * answer fails to come or the heartbeat finds that this client is not known, it is asked anew; and
 * now and then anyway, for one that was quicker than both. Upstream's logs a line for each refusal,
 * so not often. */
#define ASK_AGAIN_NS (60 * MC_SEC)

bool mc_ops_master_is_ours(struct mc_ops *ops) {
    uint64_t until = atomic_load_explicit(&ops->without_own_until_ns, memory_order_relaxed);
    return until == 0 || mc_ops_now(ops) >= until;
}

void mc_ops_master_refused(struct mc_ops *ops, const char *what) {
    uint64_t until = mc_ops_now(ops) + ASK_AGAIN_NS;
    if (atomic_exchange_explicit(&ops->without_own_until_ns, until, memory_order_relaxed) == 0) {
        mc_warn("the master does not know our own words (upstream's does not): %s", what);
    }
}

void mc_ops_master_may_be_new(struct mc_ops *ops) {
    atomic_store_explicit(&ops->without_own_until_ns, 0, memory_order_relaxed);
}

/* ---- RPC ---- */

/* Two releases may take the same arguments and answer with different types: then the answer's hash
 * decides. */
static enum mc_status decode(struct mc_ops *ops, struct mc_ops_call *call, enum mc_master_rpc rpc,
                             unsigned version, struct mc_str reply, void *ret) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    uint32_t args_hash = desc->versions[version].args_hash;
    enum mc_status status = MC_ERR_WIRE_HASH;
    for (unsigned i = 0; i < desc->version_count && status == MC_ERR_WIRE_HASH; i++) {
        unsigned candidate = (version + i) % desc->version_count;
        if (desc->versions[candidate].args_hash == args_hash) {
            status = mc_master_rpc_decode_ret(desc, candidate, reply, &call->arena, ret);
            version = candidate;
        }
    }
    if (status != MC_OK) {
        mc_error("the master's answer cannot be decoded: rpc=%s bytes=%zu status=%s", desc->name,
                 reply.len, mc_status_name(status));
        return MC_RPC_FAIL;
    }
    if (version != atomic_load_explicit(&ops->versions[rpc], memory_order_relaxed)) {
        mc_info("the master speaks an older schema: rpc=%s version=%u", desc->name, version);
        atomic_store_explicit(&ops->versions[rpc], (uint8_t)version, memory_order_relaxed);
    }
    return MC_OK;
}

/* One request in the schema version that the master is known to accept; tries the others when it
 * refuses. */
static enum mc_status rpc_once(struct mc_ops *ops, struct mc_ops_call *call, enum mc_master_rpc rpc,
                               const void *args, void *ret, uint64_t deadline_ns) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    unsigned first = atomic_load_explicit(&ops->versions[rpc], memory_order_relaxed);
    for (unsigned i = 0; i < desc->version_count; i++) {
        unsigned version = (first + i) % desc->version_count;
        mc_buf_clear(&call->request);
        mc_master_rpc_encode_args(desc, version, args, &call->request);
        struct mc_buf *reply = &call->replies[call->reply_index];
        mc_buf_clear(reply);
        struct mc_ops_rpc_counters *counters = &ops->counters.rpc[rpc];
        mc_metric_add(&counters->count, 1);
        call->asked_ns = mc_ops_now(ops);
        enum mc_status status = ops->port->ops->call(
            ops->port, desc->function_id, (struct mc_str){call->request.data, call->request.len},
            deadline_ns, reply);
        if (status == MC_ERR_WIRE_HASH) {
            continue;
        }
        MC_TRY(status);
        mc_steps_observe(&counters->latency, (mc_ops_now(ops) - call->asked_ns) / 1000);
        return decode(ops, call, rpc, version, (struct mc_str){reply->data, reply->len}, ret);
    }
    mc_error("the master knows none of our schema versions: rpc=%s", desc->name);
    return MC_NOT_SUPPORTED;
}

enum mc_status mc_ops_rpc(struct mc_ops *ops, struct mc_ops_call *call, enum mc_master_rpc rpc,
                          const void *args, void *ret, uint64_t deadline_ns,
                          enum mc_ops_repeat repeat) {
    unsigned attempts = repeat == MC_OPS_IDEMPOTENT ? RPC_ATTEMPTS : 1;
    uint64_t backoff = RPC_BACKOFF_NS;
    call->reply_index ^= 1; /* the last answer stays readable until this one is decoded */
    for (;;) {
        uint64_t now = mc_ops_now(ops);
        uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        enum mc_status status = rpc_once(ops, call, rpc, args, ret, now + left / attempts);
        if (status == MC_OK) {
            return MC_OK;
        }
        mc_metric_add(&ops->counters.rpc_failures, 1);
        bool unanswered = status == MC_RPC_FAIL || status == MC_RPC_TIMEOUT;
        if (unanswered) {
            mc_ops_master_may_be_new(ops);
        }
        now = mc_ops_now(ops);
        if (!unanswered || --attempts == 0 || now + backoff >= deadline_ns) {
            return status;
        }
        mc_metric_add(&ops->counters.rpc_retries, 1);
        if (status == MC_RPC_FAIL) {
            ops->port->ops->sleep_until(ops->port, now + backoff);
            backoff *= 2;
        }
    }
}

enum mc_status mc_ops_rpc_batch(struct mc_ops *ops, struct mc_ops_call *call,
                                enum mc_master_rpc rpc, const void *args, struct mc_vec *ret,
                                size_t expected, uint64_t deadline_ns, enum mc_ops_repeat repeat) {
    MC_TRY(mc_ops_rpc(ops, call, rpc, args, ret, deadline_ns, repeat));
    if (ret->count != expected) {
        mc_error("the master answered for another number of keys: rpc=%s asked=%zu answered=%zu",
                 mc_master_rpc_table()[rpc].name, expected, ret->count);
        return MC_RPC_FAIL;
    }
    return MC_OK;
}

/* ---- keys ---- */

enum mc_status mc_ops_key(const char *key, struct mc_str *out) {
    if (key == NULL) {
        return MC_INVALID_KEY;
    }
    size_t len = strnlen(key, MC_STORE_KEY_MAX + 1);
    if (len == 0 || len > MC_STORE_KEY_MAX) {
        return MC_INVALID_KEY;
    }
    *out = (struct mc_str){key, len};
    return MC_OK;
}

size_t mc_ops_chunk_keys(const char *const *keys, size_t count) {
    size_t bytes = 0;
    size_t n = 0;
    while (n < count && n < MC_STORE_BATCH_CHUNK) {
        bytes += keys[n] != NULL ? strnlen(keys[n], MC_STORE_KEY_MAX + 1) : 0;
        if (n > 0 && bytes > OPS_CHUNK_KEY_BYTES) {
            break;
        }
        n++;
    }
    return n;
}

/* ---- replicas ---- */

uint64_t mc_ops_replica_size(const struct mw_replica *replica) {
    switch (replica->tag) {
    case MW_TAG_MEMORY:
        return replica->memory.size;
    case MW_TAG_NOF:
        return replica->nof.size;
    case MW_TAG_DISK:
        return replica->disk.object_size;
    case MW_TAG_LOCAL_DISK:
        return replica->local_disk.object_size;
    default:
        return replica->dfs.object_size;
    }
}

const struct mw_replica *mc_ops_choose(struct mc_ops *ops, const struct mw_replica_list *list,
                                       uint64_t tried, size_t *index) {
    const struct mw_replica *replicas = list->replicas.items;
    size_t count = list->replicas.count < 64 ? list->replicas.count : 64;
    unsigned (*distance)(struct mc_port *, struct mc_str) = ops->port->ops->distance;
    size_t first = 0;
    if (count > 1) { /* equally near replicas share the load */
        first = atomic_fetch_add_explicit(&ops->spread, 1, memory_order_relaxed) % count;
    }
    const struct mw_replica *best = NULL;
    unsigned best_distance = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        size_t at = (first + i) % count;
        const struct mw_replica *replica = &replicas[at];
        if ((tried >> at & 1) != 0 || !mc_ops_replica_readable(replica)) {
            continue;
        }
        unsigned far =
            count > 1 && distance != NULL ? distance(ops->port, replica->memory.endpoint) : 0;
        if (far < best_distance) {
            best = replica;
            best_distance = far;
            *index = at;
        }
    }
    return best;
}
