/*
 * A node's SSD tier: what the master wants on disk is written there, and other nodes' reads of it
 * are served. See client/offload.h.
 *
 * A heartbeat asks the master for tasks, writes those objects with tier/, if it can from where they
 * lie in this node's memory, and says how it went; nothing is told before it is durable. Reads
 * bring objects from disk into memory that peers can reach, where the reader's transport takes
 * them; they stay until the reader gives them back or the time to live is over (offload_buffers.c).
 *
 * The master forgets a disk whose client it has not seen for long, or all of them when it starts
 * again: then it does not know us, and is told everything that the disk holds. Each object has the
 * version that the master gave it, and the master says what was removed or replaced meanwhile: that
 * is taken from the disk. So at each heartbeat the disk has nothing but what the master lists, and
 * notes the version up to which that holds (mc_tier_mark): with it the objects prove to the next
 * master that they were not replaced. Where that chain breaks (an answer that got lost, a disk that
 * does not delete) everything is told anew. A master of another make has no such words (SyncDisk,
 * OnDisk); it is told in upstream's, without versions, and has no opinion.
 */
#include "client/offload.h"

#include <stdio.h>

#include "base/log.h"
#include "client/ops_internal.h"
#include "io/io.h"
#include "wire/client_rpc.h"

#define GROUP_BYTES (64u << 20) /* of objects that are in hand at once */
#define GROUP_KEYS  500u
#define GETS_ALONE  5u
#define ADOPT_KEYS  1000u

struct tenant_ops {
    struct tenant_ops *next;
    char *tenant;
    struct mc_ops *ops;
};

struct mc_offload {
    struct mc_offload_config config;
    struct mc_tier *tier;
    struct mc_offload_buffers *buffers;
    char endpoint[MC_HOST_MAX + 8]; /* where reads are served */
    struct tenant_ops *tenants;     /* the heartbeat's, like what follows */
    bool told;                      /* the master knows all that the disk holds */
    bool plain;                     /* it has only upstream's words; asked anew at each mount */
    uint64_t ack;                   /* of drops that were carried out */
    struct mc_buf memory;           /* of one group after the other, while there is work */

    pthread_mutex_t lock; /* guards what follows */
    struct mc_buf lost;   /* keys that the tier dropped and the master does not know of yet:
                             u32 length, bytes */
};

/* ---- keys: "tenant NUL key" on disk ---- */

static void split_key(struct mc_str full, struct mc_str *tenant, struct mc_str *key) {
    const char *nul = memchr(full.ptr, '\0', full.len);
    size_t len = nul != NULL ? (size_t)(nul - full.ptr) : 0;
    *tenant = nul != NULL ? (struct mc_str){full.ptr, len} : MC_STR("default");
    *key = nul != NULL ? (struct mc_str){nul + 1, full.len - len - 1} : full;
}

static void note_lost(void *ctx, struct mc_str key) {
    struct mc_offload *off = ctx;
    uint32_t len = (uint32_t)key.len;
    pthread_mutex_lock(&off->lock);
    mc_buf_append(&off->lost, &len, sizeof(len));
    mc_buf_append(&off->lost, key.ptr, key.len);
    pthread_mutex_unlock(&off->lock);
}

/* ---- serving reads ---- */

static enum mc_status read_objects(struct mc_offload *off, const struct mw_a_offload_get *a,
                                   struct mc_arena *arena, struct mw_offload_buffers *out) {
    const struct mc_str *keys = a->keys.items;
    const int64_t *sizes = a->sizes.items;
    size_t count = a->keys.count;
    uint64_t room = 0;
    if (count == 0 || count != a->sizes.count) {
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t size = 0;
        if (!mc_tier_find(off->tier, keys[i], &size) || sizes[i] <= 0 ||
            size != (uint64_t)sizes[i]) {
            return MC_OBJECT_NOT_FOUND;
        }
        room += mc_tier_read_room(keys[i].len, size);
    }
    char *memory;
    uint64_t batch;
    MC_TRY(mc_offload_buffers_take(off->buffers, room, &batch, &memory));
    struct mc_tier_read *reads = mc_arena_zalloc(arena, count * sizeof(*reads));
    uint64_t *pointers = mc_arena_alloc(arena, count * sizeof(*pointers));
    for (size_t i = 0, at = 0; i < count; i++) {
        reads[i] =
            (struct mc_tier_read){.key = keys[i], .size = (uint64_t)sizes[i], .room = memory + at};
        at += mc_tier_read_room(keys[i].len, reads[i].size);
    }
    enum mc_status status = mc_tier_read(off->tier, reads, count);
    if (status != MC_OK) {
        mc_offload_buffers_drop(off->buffers, batch);
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        pointers[i] = (uintptr_t)reads[i].value;
    }
    mc_offload_buffers_lend(off->buffers, batch);
    *out = (struct mw_offload_buffers){
        batch, {pointers, count}, mc_str_from(off->config.te_endpoint), off->config.gc_ttl_ms};
    return MC_OK;
}

void mc_offload_serve(void *ctx, const struct mc_rpc_request *request, struct mc_rpc_reply *reply) {
    struct mc_offload *off = ctx;
    const struct mc_rpc_desc *rpc = mc_client_rpc_find(request->function_id);
    const struct mc_rpc_desc *table = mc_client_rpc_table();
    unsigned version;
    if (rpc == &table[MC_CLIENT_RPC_service_ready_internal]) {
        struct mw_e_void ready = {MC_OK};
        mc_master_rpc_encode_ret(rpc, 0, &ready, reply->body);
    } else if (rpc == &table[MC_CLIENT_RPC_release_offload_buffer]) {
        uint64_t batch = 0;
        if (mc_master_rpc_decode_args(rpc, request->body, request->arena, &batch, &version) !=
            MC_OK) {
            reply->errc = MC_RPC_INVALID_ARGUMENTS;
            return;
        }
        bool there = mc_offload_buffers_release(off->buffers, batch);
        mc_master_rpc_encode_ret(rpc, 0, &there, reply->body);
    } else if (rpc == &table[MC_CLIENT_RPC_batch_get_offload_object]) {
        struct mw_a_offload_get args;
        struct mw_e_offload_buffers ret = {0};
        if (mc_master_rpc_decode_args(rpc, request->body, request->arena, &args, &version) !=
            MC_OK) {
            reply->errc = MC_RPC_INVALID_ARGUMENTS;
            return;
        }
        ret.error = read_objects(off, &args, request->arena, &ret.value);
        mc_master_rpc_encode_ret(rpc, 0, &ret, reply->body);
    } else {
        reply->errc = MC_RPC_NOT_REGISTERED;
    }
}

/* ---- telling the master ---- */

/* In upstream's words. */
static enum mc_status tell_plainly(struct mc_offload *off, const struct mw_disk_item *items,
                                   const struct mw_storage_object *objects, size_t count) {
    struct mc_ops *ops = off->config.ops;
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_disk_task *tasks = mc_arena_alloc(&call->arena, count * sizeof(*tasks));
    for (size_t i = 0; i < count; i++) {
        tasks[i] = (struct mw_disk_task){items[i].tenant, items[i].key, items[i].size};
    }
    struct mw_a_offload_done args = {
        ops->client, {tasks, count}, {(void *)(uintptr_t)objects, count}};
    struct mw_e_void ret;
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_NotifyOffloadSuccess, &args, &ret,
                                       mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    status = status == MC_OK ? mc_ops_status(ret.error) : status;
    mc_ops_end(ops, call);
    return status;
}

static struct mc_str full_key(struct mc_arena *arena, struct mc_str tenant, struct mc_str key) {
    size_t len = tenant.len + 1 + key.len;
    char *bytes = mc_arena_zalloc(arena, len);
    memcpy(bytes, tenant.ptr, tenant.len);
    memcpy(bytes + tenant.len + 1, key.ptr, key.len);
    return (struct mc_str){bytes, len};
}

/* What the master does not want any more: it would come back with a master that knows nothing. */
static enum mc_status drop_keys(struct mc_offload *off, const struct mc_str *keys, size_t count) {
    size_t removed;
    enum mc_status status =
        count > 0 ? mc_tier_remove_keys(off->tier, keys, count, &removed) : MC_OK;
    if (status != MC_OK) {
        mc_warn_limited("objects that were removed or replaced stay on the SSD tier: keys=%zu",
                        count);
    }
    return status;
}

/* Of what it was told. */
static enum mc_status drop_stale(struct mc_offload *off, struct mc_arena *arena,
                                 const struct mw_disk_item *items, const struct mw_e_void *answers,
                                 size_t count) {
    struct mc_str *keys = mc_arena_alloc(arena, (count + 1) * sizeof(*keys));
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (answers[i].error == MC_OBJECT_NOT_FOUND) {
            keys[n++] = full_key(arena, items[i].tenant, items[i].key);
        }
    }
    return drop_keys(off, keys, n);
}

/* `objects`: the same, for a master that does not have our words. */
static enum mc_status tell(struct mc_offload *off, const struct mw_disk_item *items,
                           const struct mw_storage_object *objects, size_t count, bool found) {
    struct mc_ops *ops = off->config.ops;
    if (off->plain) {
        return tell_plainly(off, items, objects, count);
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    size_t head = found; /* what proves them */
    struct mw_disk_item *all = mc_arena_alloc(&call->arena, (1 + count) * sizeof(*all));
    all[0] = (struct mw_disk_item){.size = MW_DISK_CURRENT, .version = mc_tier_marked(off->tier)};
    memcpy(all + head, items, count * sizeof(*all));
    struct mw_a_on_disk args = {.client = ops->client,
                                .endpoint = mc_str_from(off->endpoint),
                                .found = found,
                                .items = {all, head + count}};
    struct mw_e_vec ret;
    enum mc_status status =
        mc_ops_rpc(ops, call, MC_RPC_OnDisk, &args, &ret, mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    off->plain = status == MC_NOT_SUPPORTED;
    status = status == MC_OK ? mc_ops_status(ret.error) : status;
    if (status == MC_OK && ret.value.count != head + count) {
        status = MC_DESERIALIZE_FAIL;
    }
    if (status == MC_OK) {
        const struct mw_e_void *answers = ret.value.items;
        status = drop_stale(off, &call->arena, items, answers + head, count);
    }
    mc_ops_end(ops, call);
    off->told = off->told && (status == MC_OK || off->plain); /* else all is told anew */
    return off->plain ? tell_plainly(off, items, objects, count) : status;
}

struct adopt {
    struct mc_offload *off;
    struct mc_arena arena;
    struct mc_vec found; /* of struct mc_tier_found */
    size_t capacity;
};

static bool collect(void *ctx, const struct mc_tier_found *found) {
    struct adopt *a = ctx;
    if (a->found.count == a->capacity) {
        a->capacity = a->capacity > 0 ? 2 * a->capacity : 1024;
        a->found.items = mc_realloc(a->found.items, a->capacity * sizeof(*found));
    }
    struct mc_tier_found *copy = (struct mc_tier_found *)a->found.items + a->found.count++;
    *copy = *found;
    copy->key = mc_arena_str(&a->arena, found->key);
    return true;
}

/* Everything that the disk holds. */
static enum mc_status tell_all(struct mc_offload *off) {
    struct adopt a = {.off = off};
    struct mw_disk_item *items = mc_zalloc(ADOPT_KEYS * sizeof(*items));
    struct mw_storage_object *objects = mc_zalloc(ADOPT_KEYS * sizeof(*objects));
    enum mc_status status = MC_OK;
    mc_tier_scan(off->tier, collect, &a);
    const struct mc_tier_found *found = a.found.items;
    for (size_t done = 0; done < a.found.count && status == MC_OK;) {
        size_t n = 0;
        for (; n < ADOPT_KEYS && done < a.found.count; n++, done++) {
            split_key(found[done].key, &items[n].tenant, &items[n].key);
            items[n].size = (int64_t)found[done].size;
            items[n].version = found[done].tag;
            objects[n] = (struct mw_storage_object){.bucket_id = found[done].bucket_id,
                                                    .offset = found[done].offset,
                                                    .key_size = (int64_t)found[done].key.len,
                                                    .data_size = (int64_t)found[done].size,
                                                    .endpoint = mc_str_from(off->endpoint)};
        }
        status = tell(off, items, objects, n, true);
    }
    mc_info("the master was told what the SSD tier holds: objects=%zu status=%s", a.found.count,
            mc_status_name(status));
    mc_arena_free(&a.arena);
    free(a.found.items);
    free(objects);
    free(items);
    return status;
}

static enum mc_status flag_rpc(struct mc_offload *off, enum mc_master_rpc rpc,
                               struct mc_ops_call *call, void *ret) {
    struct mc_ops *ops = off->config.ops;
    struct mw_a_client_flag args = {ops->client, true};
    return mc_ops_rpc(ops, call, rpc, &args, ret, mc_ops_deadline(ops), MC_OPS_ONCE);
}

static enum mc_status mount(struct mc_offload *off) {
    struct mc_ops *ops = off->config.ops;
    off->told = off->plain = false;
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_void ret;
    enum mc_status status = flag_rpc(off, MC_RPC_MountLocalDiskSegment, call, &ret);
    status = status == MC_OK ? mc_ops_status(ret.error) : status;
    mc_ops_end(ops, call);
    status = status == MC_OK ? tell_all(off) : status;
    off->told = status == MC_OK;
    return status;
}

/* Keys that are no longer on disk. */
static void tell_lost(struct mc_offload *off) {
    struct mc_ops *ops = off->config.ops;
    pthread_mutex_lock(&off->lock);
    struct mc_buf lost = off->lost;
    off->lost = (struct mc_buf){0};
    pthread_mutex_unlock(&off->lock);
    for (size_t at = 0; at < lost.len;) {
        struct mc_ops_call *call = mc_ops_begin(ops);
        struct mc_str *keys = mc_arena_alloc(&call->arena, ADOPT_KEYS * sizeof(*keys));
        struct mw_a_batch_evict_disk args = {.client = ops->client, .type = MC_REPLICA_LOCAL_DISK};
        size_t count = 0;
        while (at < lost.len && count < ADOPT_KEYS) { /* of one tenant */
            uint32_t len;
            struct mc_str tenant, key;
            memcpy(&len, lost.data + at, sizeof(len));
            split_key((struct mc_str){lost.data + at + sizeof(len), len}, &tenant, &key);
            if (count > 0 && !mc_str_eq(tenant, args.tenant)) {
                break;
            }
            uint64_t size;
            bool back = mc_tier_find(off->tier, (struct mc_str){lost.data + at + sizeof(len), len},
                                     &size); /* written anew since */
            args.tenant = tenant;
            keys[count] = key;
            count += !back;
            at += sizeof(len) + len;
        }
        args.keys = (struct mc_vec){keys, count};
        struct mc_vec ret;
        enum mc_status status =
            mc_ops_rpc_batch(ops, call, MC_RPC_BatchEvictDiskReplica, &args, &ret, count,
                             mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
        if (status != MC_OK) { /* a reader finds out, and goes elsewhere */
            mc_warn_limited("the master was not told of evictions from the SSD tier: keys=%zu "
                            "status=%s",
                            count, mc_status_name(status));
        }
        mc_ops_end(ops, call);
    }
    mc_buf_free(&lost);
}

/* ---- writing ---- */

/* The protocol of a tenant's objects: the store's own, or one made for it. */
static struct mc_ops *ops_of(struct mc_offload *off, struct mc_str tenant) {
    struct mc_ops *own = off->config.ops;
    if (mc_str_eq(tenant, own->tenant)) {
        return own;
    }
    struct tenant_ops *t = off->tenants;
    while (t != NULL && !mc_str_eq(tenant, mc_str_from(t->tenant))) {
        t = t->next;
    }
    if (t == NULL) {
        t = mc_zalloc(sizeof(*t));
        t->tenant = mc_str_dup(tenant);
        struct mc_ops_config config = {.client = own->client,
                                       .tenant = t->tenant,
                                       .host_id = own->host_id.ptr,
                                       .timeout_ms = (uint32_t)(own->timeout_ns / MC_MS),
                                       .checksum = own->checksum};
        t->ops = mc_ops_create(own->port, &config);
        t->next = off->tenants;
        off->tenants = t;
    }
    return t->ops;
}

struct group {
    struct mw_disk_item *tasks;
    size_t count;
    enum mc_status *statuses; /* at the end MC_OK: it is on disk */
    struct mc_ops_view *views;
    struct mw_storage_object *objects; /* what the master is told of each */
};

/* (what a master says that is wrong is an object of no bytes, which none has; what could not be
 * lent to readers in one piece is not written) */
static size_t task_bytes(const struct mc_offload *off, const struct mw_disk_item *task) {
    size_t key_bytes = task->tenant.len + 1 + task->key.len;
    uint64_t most = off->config.memory_bytes;
    bool fits = task->size > 0 && (uint64_t)task->size <= most &&
                mc_tier_read_room(key_bytes, (uint64_t)task->size) <= most;
    return fits ? (size_t)task->size : 0;
}

/* How many of the tasks from number `from` on are of its tenant. */
static size_t same_tenant(const struct group *g, size_t from) {
    size_t n = 1;
    while (from + n < g->count && mc_str_eq(g->tasks[from + n].tenant, g->tasks[from].tenant)) {
        n++;
    }
    return n;
}

/* ---- from where the objects lie ---- */

static bool still_valid(void *ctx) {
    return mc_ops_view_valid(ctx);
}

/* Looks at the objects in place: nothing is moved before the tier wants it. */
static void look(struct mc_offload *off, struct mc_arena *arena, struct group *g) {
    struct mc_str *keys = mc_arena_alloc(arena, g->count * sizeof(*keys));
    for (size_t i = 0; i < g->count; i++) {
        keys[i] = g->tasks[i].key;
    }
    for (size_t i = 0, n; i < g->count; i += n) {
        n = same_tenant(g, i);
        mc_ops_views_open(ops_of(off, g->tasks[i].tenant), keys + i, n, g->views + i,
                          g->statuses + i);
    }
    for (size_t i = 0; i < g->count; i++) {
        if (g->statuses[i] == MC_OK && g->views[i].length != task_bytes(off, &g->tasks[i])) {
            g->statuses[i] = MC_OBJECT_NOT_FOUND; /* another one now */
        }
    }
}

static void look_away(struct mc_offload *off, struct group *g) {
    for (size_t i = 0; i < g->count; i++) {
        if (g->views[i].record != NULL) {
            mc_ops_view_release(ops_of(off, g->tasks[i].tenant), g->views[i].record);
        }
    }
}

static struct mc_tier_item item_of(struct mc_arena *arena, const struct mw_disk_item *task,
                                   const void *value) {
    return (struct mc_tier_item){.key = full_key(arena, task->tenant, task->key),
                                 .value = value,
                                 .size = (uint64_t)task->size,
                                 .tag = task->version};
}

/* Puts the items, which are those of the tasks at index[0..n). */
static void put(struct mc_offload *off, struct group *g, struct mc_tier_item *puts,
                const uint32_t *index, size_t n) {
    enum mc_status status = n > 0 ? mc_tier_put(off->tier, puts, n) : MC_OK;
    if (status != MC_OK && status != MC_LEASE_EXPIRED) {
        mc_warn_limited("objects were not offloaded: status=%s", mc_status_name(status));
    }
    for (size_t k = 0; k < n; k++) {
        g->statuses[index[k]] = puts[k].status;
        if (puts[k].status == MC_OK) {
            g->objects[index[k]] =
                (struct mw_storage_object){.bucket_id = puts[k].bucket_id,
                                           .offset = puts[k].offset,
                                           .key_size = (int64_t)puts[k].key.len,
                                           .data_size = (int64_t)puts[k].size,
                                           .endpoint = mc_str_from(off->endpoint)};
        }
    }
}

static void store_in_place(struct mc_offload *off, struct mc_arena *arena, struct group *g) {
    struct mc_tier_item *puts = mc_arena_alloc(arena, g->count * sizeof(*puts));
    uint32_t *index = mc_arena_alloc(arena, g->count * sizeof(*index));
    size_t n = 0;
    look(off, arena, g);
    for (size_t i = 0; i < g->count; i++) {
        if (g->statuses[i] == MC_OK) {
            puts[n] = item_of(arena, &g->tasks[i], g->views[i].data);
            puts[n].still = still_valid;
            puts[n].still_ctx = g->views[i].record;
            index[n++] = (uint32_t)i;
        }
    }
    put(off, g, puts, index, n);
    look_away(off, g);
}

/* ---- by way of memory of ours ---- */

/* On a busy machine a group may take longer than a short lease lasts; one object seldom does. What
 * is given up here the master evicts without a copy. */
static void get_alone(struct mc_ops *ops, struct mc_store_item *get) {
    for (unsigned n = 0; n < GETS_ALONE && get->status == MC_LEASE_EXPIRED; n++) {
        enum mc_status status = mc_ops_get(ops, get, 1);
        get->status = status != MC_OK ? status : get->status;
    }
}

/* The bytes of the tasks at index[0..n), which are of one tenant, to `memory`. What is no longer
 * there, or of another size, is passed over. */
static void fetch(struct mc_offload *off, struct mc_arena *arena, struct group *g,
                  const uint32_t *index, size_t n, char *memory) {
    struct mc_slice *slices = mc_arena_alloc(arena, n * sizeof(*slices));
    struct mc_store_item *gets = mc_arena_zalloc(arena, n * sizeof(*gets));
    struct mc_ops *ops = ops_of(off, g->tasks[index[0]].tenant);
    for (size_t k = 0; k < n; k++) {
        const struct mw_disk_item *task = &g->tasks[index[k]];
        slices[k] = (struct mc_slice){memory, task_bytes(off, task)};
        gets[k] = (struct mc_store_item){
            .key = mc_arena_str(arena, task->key).ptr, .slices = &slices[k], .slice_count = 1};
        memory += slices[k].length;
    }
    enum mc_status status = mc_ops_get(ops, gets, n);
    for (size_t k = 0; k < n; k++) {
        gets[k].status = status != MC_OK ? status : gets[k].status;
        get_alone(ops, &gets[k]);
        bool whole = gets[k].length == (uint64_t)g->tasks[index[k]].size;
        g->statuses[index[k]] =
            gets[k].status == MC_OK && !whole ? MC_OBJECT_NOT_FOUND : gets[k].status;
    }
}

/* What cannot be written from where it lies, or was not its own any more before it was read: its
 * lease then did not last. */
static bool wants_copy(enum mc_status status) {
    return status == MC_REPLICA_NOT_IN_LOCAL_MEMORY || status == MC_LEASE_EXPIRED ||
           status == MC_CHECKSUM_MISMATCH; /* another replica may be good */
}

static void store_copies(struct mc_offload *off, struct mc_arena *arena, struct group *g) {
    struct mc_tier_item *puts = mc_arena_alloc(arena, g->count * sizeof(*puts));
    uint32_t *index = mc_arena_alloc(arena, g->count * sizeof(*index));
    size_t n = 0, put_count = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->count; i++) {
        if (wants_copy(g->statuses[i])) {
            index[n++] = (uint32_t)i;
            bytes += task_bytes(off, &g->tasks[i]);
        }
    }
    if (n == 0) {
        return;
    }
    mc_buf_reserve(&off->memory, bytes + 1);
    char *memory = off->memory.data;
    for (size_t k = 0, run; k < n; k += run) {
        run = 1;
        uint64_t run_bytes = task_bytes(off, &g->tasks[index[k]]);
        while (k + run < n &&
               mc_str_eq(g->tasks[index[k + run]].tenant, g->tasks[index[k]].tenant)) {
            run_bytes += task_bytes(off, &g->tasks[index[k + run++]]);
        }
        fetch(off, arena, g, index + k, run, memory);
        for (size_t i = k; i < k + run; i++) {
            const struct mw_disk_item *task = &g->tasks[index[i]];
            if (g->statuses[index[i]] == MC_OK) {
                puts[put_count] = item_of(arena, task, memory);
                index[put_count++] = index[i]; /* those behind it were looked at */
            }
            memory += task_bytes(off, task);
        }
    }
    put(off, g, puts, index, put_count);
}

/* Those that were not written; said only to a master with our words. */
static void mark_failed(const struct mc_offload *off, struct group *g) {
    for (size_t i = 0; i < g->count && !off->plain; i++) {
        if (g->objects[i].data_size < 0) {
            g->tasks[i].size = -1;
        }
    }
}

static enum mc_status offload_group(struct mc_offload *off, struct mw_disk_item *tasks,
                                    size_t count) {
    struct mc_arena arena = {0};
    struct group g = {.tasks = tasks, .count = count};
    g.statuses = mc_arena_alloc(&arena, count * sizeof(*g.statuses));
    g.views = mc_arena_zalloc(&arena, count * sizeof(*g.views));
    g.objects = mc_arena_alloc(&arena, count * sizeof(*g.objects));
    for (size_t i = 0; i < count; i++) {
        g.statuses[i] = MC_REPLICA_NOT_IN_LOCAL_MEMORY;
        /* as upstream says that it was not written */
        g.objects[i] = (struct mw_storage_object){.bucket_id = -1, .data_size = -1};
    }
    /* upstream's leases do not hold writers off: the bytes could change after they were checked */
    if (mc_tier_borrows(off->tier) && !off->plain) {
        store_in_place(off, &arena, &g);
    }
    store_copies(off, &arena, &g);
    mark_failed(off, &g);
    enum mc_status status = tell(off, tasks, g.objects, count, false);
    tell_lost(off);
    mc_arena_free(&arena);
    return status;
}

static enum mc_status offload_tasks(struct mc_offload *off, struct mw_disk_item *tasks,
                                    size_t count) {
    enum mc_status status = MC_OK;
    for (size_t i = 0, n; i < count && status == MC_OK && !off->config.stop(off->config.stop_ctx);
         i += n) {
        uint64_t bytes = 0;
        for (n = 0; i + n < count && n < GROUP_KEYS; n++) {
            uint64_t size = task_bytes(off, &tasks[i + n]);
            if (n > 0 && bytes + size > GROUP_BYTES) {
                break;
            }
            bytes += size;
        }
        status = offload_group(off, &tasks[i], n);
    }
    return status;
}

/* ---- the heartbeat ---- */

static void poll_wipe(struct mc_offload *off) {
    struct mc_ops *ops = off->config.ops;
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_bool ret;
    if (mc_ops_rpc(ops, call, MC_RPC_PollRemoveAll, &ops->client, &ret, mc_ops_deadline(ops),
                   MC_OPS_ONCE) == MC_OK &&
        ret.error == 0 && ret.value) {
        mc_info("all objects were removed: the SSD tier is emptied");
        if (mc_tier_clear(off->tier) != MC_OK) {
            mc_warn("the SSD tier could not be emptied");
        }
    }
    mc_ops_end(ops, call);
}

/* From a master that has only upstream's words. */
static enum mc_status take_plain_tasks(struct mc_offload *off, struct mc_ops_call *call,
                                       struct mc_vec *out) {
    struct mw_e_vec ret = {0};
    MC_TRY(flag_rpc(off, MC_RPC_OffloadObjectHeartbeat, call, &ret));
    MC_TRY(mc_ops_status(ret.error));
    const struct mw_disk_task *tasks = ret.value.items;
    size_t count = ret.value.count;
    struct mw_disk_item *items = mc_arena_alloc(&call->arena, (count + 1) * sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct mw_disk_item){tasks[i].tenant, tasks[i].key, tasks[i].size, 0};
    }
    *out = (struct mc_vec){items, count};
    return MC_OK;
}

/* What is to be dropped is dropped here; *tasks = the rest. */
static enum mc_status take_orders(struct mc_offload *off, struct mc_ops_call *call,
                                  struct mc_vec *tasks) {
    struct mc_ops *ops = off->config.ops;
    struct mw_a_sync_disk args = {ops->client, true, off->ack};
    struct mw_e_disk_orders ret = {0};
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_SyncDisk, &args, &ret, mc_ops_deadline(ops), MC_OPS_ONCE));
    MC_TRY(mc_ops_status(ret.error));
    struct mw_disk_item *items = ret.value.items.items;
    size_t count = ret.value.items.count, drops = 0;
    struct mc_str *keys = mc_arena_alloc(&call->arena, (count + 1) * sizeof(*keys));
    for (; drops < count && items[drops].size == MW_DISK_DROP; drops++) {
        keys[drops] = full_key(&call->arena, items[drops].tenant, items[drops].key);
    }
    *tasks = (struct mc_vec){items + drops, count - drops};
    if (drop_keys(off, keys, drops) == MC_OK) { /* else they are given again */
        off->ack = ret.value.serial;
        if (ret.value.current != 0) {
            mc_tier_mark(off->tier, ret.value.current);
        }
    }
    return MC_OK;
}

static enum mc_status beat_once(struct mc_offload *off, bool *busy) {
    struct mc_ops *ops = off->config.ops;
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mc_vec tasks = {0};
    enum mc_status status = off->plain ? MC_NOT_SUPPORTED : take_orders(off, call, &tasks);
    if (status == MC_NOT_SUPPORTED) {
        off->plain = true;
        status = take_plain_tasks(off, call, &tasks);
    }
    if (status == MC_OK && tasks.count > 0) { /* the call's memory lives until its end */
        status = offload_tasks(off, tasks.items, tasks.count);
        *busy = status == MC_OK;
    }
    mc_ops_end(ops, call);
    return status;
}

enum mc_status mc_offload_beat(struct mc_offload *off, bool *busy) {
    *busy = false;
    if (!off->told) { /* a heartbeat would say that this is all */
        return mount(off);
    }
    poll_wipe(off);
    tell_lost(off);
    enum mc_status status = beat_once(off, busy);
    if (!*busy) {
        mc_buf_free(&off->memory);
    }
    if (status == MC_OK && !*busy) { /* writing goes first: memory waits for it */
        const char *segment = off->config.segment;
        *busy =
            mc_offload_promote(off->config.ops, off->tier,
                               segment != NULL ? mc_str_from(segment) : MC_STR(""), off->plain) > 0;
    }
    return status == MC_SEGMENT_NOT_FOUND ? mount(off) : status;
}

enum mc_status mc_offload_mount(struct mc_offload *off, const char *endpoint) {
    snprintf(off->endpoint, sizeof(off->endpoint), "%s", endpoint);
    return mount(off);
}

void mc_offload_goodbye(struct mc_offload *off) {
    struct mc_ops *ops = off->config.ops;
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_void ret;
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_UnmountLocalDiskSegment, &ops->client,
                                       &ret, mc_ops_now(ops) + 1 * MC_SEC, MC_OPS_ONCE);
    if (status != MC_OK) {
        mc_warn("the master was not told that the SSD tier goes: status=%s",
                mc_status_name(status));
    }
    mc_ops_end(ops, call);
}

void mc_offload_stats(struct mc_offload *off, struct mc_tier_stats *out) {
    mc_tier_stats(off->tier, out);
}

/* ---- life ---- */

enum mc_status mc_offload_open(const struct mc_offload_config *config, struct mc_offload **out) {
    struct mc_offload *off = mc_zalloc(sizeof(*off));
    off->config = *config;
    off->config.tier.lost = note_lost;
    off->config.tier.lost_ctx = off;
    pthread_mutex_init(&off->lock, NULL);
    off->buffers = mc_offload_buffers_create(config->memory, config->memory_bytes,
                                             config->gc_ttl_ms, config->ops->client.lo, /* random */
                                             config->ops->port->ops->clock(config->ops->port));
    enum mc_status status = mc_tier_open(&off->config.tier, &off->tier);
    if (status != MC_OK) {
        mc_offload_close(off);
        return status;
    }
    mc_tier_use_memory(off->tier, config->memory, config->memory_bytes);
    *out = off;
    return MC_OK;
}

void mc_offload_close(struct mc_offload *off) {
    if (off == NULL) {
        return;
    }
    mc_tier_close(off->tier);
    mc_offload_buffers_destroy(off->buffers);
    while (off->tenants != NULL) {
        struct tenant_ops *t = off->tenants;
        off->tenants = t->next;
        mc_ops_destroy(t->ops);
        free(t->tenant);
        free(t);
    }
    mc_buf_free(&off->lost);
    mc_buf_free(&off->memory);
    pthread_mutex_destroy(&off->lock);
    free(off);
}

struct mc_tier *mc_offload_tier(struct mc_offload *off) {
    return off->tier;
}
