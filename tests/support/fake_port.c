#include "support/fake_port.h"

#include <stdio.h>

#include "client/checksum.h"
#include "support/support.h"
#include "wire/client_rpc.h"

/* ---- the master ---- */

static struct fake_object *find(struct fake_port *fake, struct mc_str key) {
    for (size_t i = 0; i < FAKE_OBJECTS; i++) {
        struct fake_object *object = &fake->objects[i];
        if (object->key != NULL && mc_str_eq((struct mc_str){object->key, object->key_len}, key)) {
            return object;
        }
    }
    return NULL;
}

struct fake_object *fake_find(struct fake_port *fake, const char *key) {
    return find(fake, mc_str_from(key));
}

static void erase(struct fake_object *object) {
    free(object->key);
    *object = (struct fake_object){0};
}

void fake_erase(struct fake_port *fake, const char *key) {
    struct fake_object *object = fake_find(fake, key);
    if (object != NULL) {
        erase(object);
    }
}

static struct fake_object *add(struct fake_port *fake, struct mc_str key, uint64_t size) {
    for (size_t i = 0; i < FAKE_OBJECTS; i++) {
        struct fake_object *object = &fake->objects[i];
        if (object->key == NULL) {
            *object =
                (struct fake_object){.key = mc_str_dup(key), .key_len = key.len, .size = size};
            return object;
        }
    }
    MC_ASSERT(!"the fake master is full");
    return NULL;
}

static void place(struct fake_port *fake, struct fake_object *object, size_t node) {
    MC_ASSERT(fake->used[node] + object->size <= FAKE_NODE_BYTES);
    size_t r = object->replica_count++;
    object->node[r] = node;
    object->offset[r] = fake->used[node];
    object->ids[r] = ++fake->next_id;
    fake->used[node] += object->size;
}

void fake_store(struct fake_port *fake, const char *key, const void *bytes, size_t size,
                const size_t *nodes, size_t count) {
    struct fake_object *object = add(fake, mc_str_from(key), size);
    object->complete = true;
    for (size_t i = 0; i < count; i++) {
        place(fake, object, nodes[i]);
        memcpy(&fake->memory[nodes[i]][object->offset[i]], bytes, size);
    }
}

void fake_begin(struct fake_port *fake, const char *key, size_t size) {
    struct fake_object *object = add(fake, mc_str_from(key), size);
    object->writer = (struct mc_uuid){99, 99};
    place(fake, object, 0);
}

unsigned fake_unfinished(const struct fake_port *fake) {
    unsigned n = 0;
    for (size_t i = 0; i < FAKE_OBJECTS; i++) {
        n += fake->objects[i].key != NULL && !fake->objects[i].complete;
    }
    return n;
}

static struct mc_vec replicas_of(struct fake_port *fake, const struct fake_object *object,
                                 struct mc_arena *arena) {
    struct mw_replica *out = mc_arena_zalloc(arena, object->replica_count * sizeof(*out));
    for (size_t i = 0; i < object->replica_count; i++) {
        out[i].id = object->ids[i];
        out[i].tag = MW_TAG_MEMORY;
        out[i].status = object->complete ? MC_REPLICA_COMPLETE : MC_REPLICA_PROCESSING;
        out[i].memory = (struct mw_buffer){
            .size = object->size,
            .address = (uint64_t)(uintptr_t)&fake->memory[object->node[i]][object->offset[i]],
            .protocol = MC_STR("tcp"),
            .endpoint = mc_arena_printf(arena, "node:%zu", object->node[i])};
        if (i == 0 && object->on_disk) {
            out[i].tag = MW_TAG_LOCAL_DISK;
            out[i].local_disk.endpoint = mc_arena_printf(arena, "node:%zu:1", object->node[i]);
            out[i].local_disk.object_size = object->size;
        }
    }
    return (struct mc_vec){out, object->replica_count};
}

static bool avoided(const struct mw_replicate_config *config, size_t node) {
    char hint[16];
    snprintf(hint, sizeof(hint), "!node:%zu", node);
    const struct mc_str *preferred = config->preferred_segments.items;
    for (size_t i = 0; i < config->preferred_segments.count; i++) {
        if (mc_str_eq(preferred[i], mc_str_from(hint))) {
            return true;
        }
    }
    return false;
}

static void put_start(struct fake_port *fake, struct mc_uuid writer, struct mc_str key,
                      uint64_t length, const struct mw_replicate_config *config, bool upsert,
                      struct mc_arena *arena, struct mw_e_vec *answer) {
    *answer = (struct mw_e_vec){0};
    struct fake_object *object = find(fake, key);
    if (object != NULL && !upsert) {
        answer->error = MC_OBJECT_ALREADY_EXISTS;
        return;
    }
    if (object != NULL) {
        erase(object);
    }
    size_t nodes[FAKE_NODES], count = 0;
    size_t first = fake->passes_over_hints ? fake->rpcs[MC_RPC_PutStart] : 0;
    for (size_t n = 0; n < FAKE_NODES && count < config->replica_num; n++) {
        size_t node = (first + n) % FAKE_NODES;
        if (length <= FAKE_NODE_BYTES - fake->used[node] &&
            (fake->passes_over_hints || !avoided(config, node))) {
            nodes[count++] = node;
        }
    }
    if (count == 0) {
        answer->error = MC_NO_AVAILABLE_HANDLE;
        return;
    }
    object = add(fake, key, length);
    object->writer = writer;
    for (size_t n = 0; n < count; n++) {
        place(fake, object, nodes[n]);
    }
    answer->value = replicas_of(fake, object, arena);
}

static int32_t put_end(struct fake_port *fake, struct mc_uuid writer,
                       const struct mw_object_meta *meta) {
    struct fake_object *object = find(fake, meta->key);
    if (object == NULL) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (!mc_uuid_eq(object->writer, writer)) {
        return MC_ILLEGAL_CLIENT;
    }
    object->complete = true;
    object->checksum = meta->checksum;
    return MC_OK;
}

static int32_t put_revoke(struct fake_port *fake, struct mc_uuid writer, struct mc_str key) {
    struct fake_object *object = find(fake, key);
    if (object == NULL) {
        return MC_OBJECT_NOT_FOUND;
    }
    if (!mc_uuid_eq(object->writer, writer)) {
        return MC_ILLEGAL_CLIENT;
    }
    if (object->complete) {
        return MC_INVALID_WRITE;
    }
    erase(object);
    return MC_OK;
}

static void list_key(struct fake_port *fake, struct mc_str key, struct mc_arena *arena,
                     struct mw_e_list *answer) {
    *answer = (struct mw_e_list){0};
    const struct fake_object *object = find(fake, key);
    if (object == NULL || !object->complete) {
        answer->error = object == NULL ? MC_OBJECT_NOT_FOUND : MC_REPLICA_IS_NOT_READY;
        return;
    }
    answer->value.replicas = replicas_of(fake, object, arena);
    answer->value.lease_ttl_ms = fake->lease_ms;
    answer->value.checksum = object->checksum;
}

static int32_t remove_key(struct fake_port *fake, struct mc_str key) {
    struct fake_object *object = find(fake, key);
    if (object == NULL) {
        return MC_OBJECT_NOT_FOUND;
    }
    erase(object);
    return MC_OK;
}

static const struct mc_str *keys_of(const struct mc_vec *vec) {
    return vec->items;
}

static void handle_batch(struct fake_port *fake, enum mc_master_rpc rpc, const void *args,
                         struct mc_arena *arena, struct mc_vec *ret) {
    if (rpc == MC_RPC_BatchPutStart || rpc == MC_RPC_BatchUpsertStart) {
        const struct mw_a_batch_put_start *a = args;
        struct mw_e_vec *out = mc_arena_zalloc(arena, a->keys.count * sizeof(*out));
        for (size_t i = 0; i < a->keys.count; i++) {
            put_start(fake, a->client, keys_of(&a->keys)[i],
                      ((const uint64_t *)a->lengths.items)[i], &a->config,
                      rpc == MC_RPC_BatchUpsertStart, arena, &out[i]);
        }
        *ret = (struct mc_vec){out, a->keys.count};
    } else if (rpc == MC_RPC_BatchPutEnd || rpc == MC_RPC_BatchUpsertEnd) {
        const struct mw_a_batch_put_end *put = args;
        const struct mw_a_batch_upsert_end *upsert = args;
        const struct mc_vec *metas = rpc == MC_RPC_BatchPutEnd ? &put->metas : &upsert->metas;
        struct mw_e_void *out = mc_arena_zalloc(arena, metas->count * sizeof(*out));
        for (size_t i = 0; i < metas->count; i++) {
            out[i].error =
                put_end(fake, put->client, (const struct mw_object_meta *)metas->items + i);
        }
        *ret = (struct mc_vec){out, metas->count};
    } else if (rpc == MC_RPC_BatchPutRevoke || rpc == MC_RPC_BatchUpsertRevoke) {
        const struct mw_a_batch_put_revoke *a = args; /* both begin with client and keys */
        struct mw_e_void *out = mc_arena_zalloc(arena, a->keys.count * sizeof(*out));
        for (size_t i = 0; i < a->keys.count; i++) {
            out[i].error = put_revoke(fake, a->client, keys_of(&a->keys)[i]);
        }
        *ret = (struct mc_vec){out, a->keys.count};
    } else if (rpc == MC_RPC_BatchGetReplicaList) {
        const struct mw_a_keys *a = args;
        struct mw_e_list *out = mc_arena_zalloc(arena, a->keys.count * sizeof(*out));
        for (size_t i = 0; i < a->keys.count; i++) {
            list_key(fake, keys_of(&a->keys)[i], arena, &out[i]);
        }
        *ret = (struct mc_vec){out, a->keys.count};
    } else if (rpc == MC_RPC_GetObjects) {
        const struct mw_a_keys *a = args;
        struct mw_e_object *out = mc_arena_zalloc(arena, a->keys.count * sizeof(*out));
        for (size_t i = 0; i < a->keys.count; i++) {
            struct mw_e_list list;
            list_key(fake, keys_of(&a->keys)[i], arena, &list);
            out[i].error = list.error;
            if (list.error == 0) {
                const struct fake_object *object = find(fake, keys_of(&a->keys)[i]);
                out[i].value = (struct mw_object){list.value, object->size, object->ids[0], 1};
            }
        }
        *ret = (struct mc_vec){out, a->keys.count};
    } else if (rpc == MC_RPC_BatchExistKey) {
        const struct mw_a_keys *a = args;
        struct mw_e_bool *out = mc_arena_zalloc(arena, a->keys.count * sizeof(*out));
        for (size_t i = 0; i < a->keys.count; i++) {
            const struct fake_object *object = find(fake, keys_of(&a->keys)[i]);
            out[i].value = object != NULL && object->complete;
        }
        *ret = (struct mc_vec){out, a->keys.count};
    } else {
        MC_ASSERT(rpc == MC_RPC_BatchRemove);
        const struct mw_a_batch_remove *a = args;
        struct mw_e_void *out = mc_arena_zalloc(arena, a->keys.count * sizeof(*out));
        for (size_t i = 0; i < a->keys.count; i++) {
            out[i].error = remove_key(fake, keys_of(&a->keys)[i]);
        }
        *ret = (struct mc_vec){out, a->keys.count};
    }
}

/* Of the SSD of a node. */
static void handle_disk(struct fake_port *fake, enum mc_master_rpc rpc, const void *args,
                        struct mc_arena *arena, void *ret) {
    if (rpc == MC_RPC_SyncDisk) {
        ((struct mw_e_disk_orders *)ret)->value.items =
            (struct mc_vec){fake->orders, fake->order_count};
        fake->order_count = 0;
    } else if (rpc == MC_RPC_OffloadObjectHeartbeat) {
        struct mw_disk_task *tasks = mc_arena_zalloc(arena, 4 * sizeof(*tasks));
        for (unsigned i = 0; i < fake->order_count; i++) {
            const struct mw_disk_item *o = &fake->orders[i];
            tasks[i] = (struct mw_disk_task){o->tenant, o->key, o->size};
        }
        ((struct mw_e_vec *)ret)->value = (struct mc_vec){tasks, fake->order_count};
        fake->order_count = 0;
    } else if (rpc == MC_RPC_OnDisk) {
        const struct mw_a_on_disk *a = args;
        for (size_t i = 0; i < a->items.count; i++) {
            bool there = ((const struct mw_disk_item *)a->items.items)[i].size > 0;
            fake->told_on_disk += there;
            fake->told_not += !there;
        }
        ((struct mw_e_vec *)ret)->value =
            (struct mc_vec){mc_arena_zalloc(arena, (a->items.count + 1) * sizeof(struct mw_e_void)),
                            a->items.count};
    } else if (rpc == MC_RPC_NotifyOffloadSuccess) {
        const struct mw_a_offload_done *a = args;
        for (size_t i = 0; i < a->objects.count; i++) {
            bool there = ((const struct mw_storage_object *)a->objects.items)[i].data_size > 0;
            fake->told_on_disk += there;
            fake->told_not += !there;
        }
    } else { /* nothing is to be promoted or wiped */
        MC_ASSERT(rpc == MC_RPC_MountLocalDiskSegment || rpc == MC_RPC_PollRemoveAll ||
                  rpc == MC_RPC_PromotionObjectHeartbeat);
    }
}

static void handle_node(struct fake_port *fake, enum mc_master_rpc rpc, const void *args,
                        void *ret) {
    switch (rpc) {
    case MC_RPC_MountSegment:
        fake->mounted = ((const struct mw_a_mount *)args)->segment;
        fake->knows_segment = true;
        fake->mounts++;
        break;
    case MC_RPC_ReMountSegment: {
        const struct mw_a_remount *a = args;
        fake->need_remount = false;
        if (a->segments.count > 0) {
            fake->mounted = *(const struct mw_segment *)a->segments.items;
            fake->knows_segment = true;
            fake->mounts++;
        }
        break;
    }
    case MC_RPC_UnmountSegment:
        fake->unmounts++;
        fake->unmounted = ((const struct mw_a_unmount *)args)->segment;
        break;
    case MC_RPC_QuerySegmentStatusById:
        *(struct mw_e_i32 *)ret = (struct mw_e_i32){
            fake->knows_segment ? MC_OK : MC_SEGMENT_NOT_FOUND, fake->segment_status};
        break;
    case MC_RPC_Ping:
        ((struct mw_e_ping *)ret)->value.client_status =
            fake->need_remount ? MC_CLIENT_NEED_REMOUNT : MC_CLIENT_OK;
        break;
    case MC_RPC_ServiceReady:
        break;
    default:
        MC_ASSERT(!"the fake master does not know this RPC");
    }
}

static void handle(struct fake_port *fake, enum mc_master_rpc rpc, const void *args,
                   struct mc_arena *arena, void *ret) {
    switch (rpc) {
    case MC_RPC_ExistKey: {
        const struct fake_object *object = find(fake, ((const struct mw_a_key *)args)->key);
        ((struct mw_e_bool *)ret)->value = object != NULL && object->complete;
        break;
    }
    case MC_RPC_GetReplicaList:
        list_key(fake, ((const struct mw_a_key *)args)->key, arena, ret);
        break;
    case MC_RPC_PutStart:
    case MC_RPC_UpsertStart: {
        const struct mw_a_put_start *a = args;
        put_start(fake, a->client, a->key, a->length, &a->config, rpc == MC_RPC_UpsertStart, arena,
                  ret);
        break;
    }
    case MC_RPC_PutEnd:
    case MC_RPC_UpsertEnd: {
        const struct mw_a_put_end *a = args;
        ((struct mw_e_void *)ret)->error = put_end(fake, a->client, &a->meta);
        break;
    }
    case MC_RPC_PutRevoke:
    case MC_RPC_UpsertRevoke: {
        const struct mw_a_put_revoke *a = args;
        ((struct mw_e_void *)ret)->error = put_revoke(fake, a->client, a->key);
        break;
    }
    case MC_RPC_Remove:
        ((struct mw_e_void *)ret)->error =
            remove_key(fake, ((const struct mw_a_remove *)args)->key);
        break;
    case MC_RPC_BatchPutStart:
    case MC_RPC_BatchPutEnd:
    case MC_RPC_BatchPutRevoke:
    case MC_RPC_BatchUpsertStart:
    case MC_RPC_BatchUpsertEnd:
    case MC_RPC_BatchUpsertRevoke:
    case MC_RPC_BatchGetReplicaList:
    case MC_RPC_GetObjects:
    case MC_RPC_BatchExistKey:
    case MC_RPC_BatchRemove:
        handle_batch(fake, rpc, args, arena, ret);
        break;
    case MC_RPC_SyncDisk:
    case MC_RPC_OnDisk:
    case MC_RPC_OffloadObjectHeartbeat:
    case MC_RPC_NotifyOffloadSuccess:
    case MC_RPC_MountLocalDiskSegment:
    case MC_RPC_PollRemoveAll:
    case MC_RPC_PromotionObjectHeartbeat:
        handle_disk(fake, rpc, args, arena, ret);
        break;
    default:
        handle_node(fake, rpc, args, ret);
    }
}

/* ---- the port ---- */

static struct fake_port *of(struct mc_port *port) {
    return mc_container_of(port, struct fake_port, port);
}

static uint64_t fake_now(const struct mc_clock *clock) {
    return mc_container_of(clock, struct fake_port, clock)->now_ns;
}
static uint64_t fake_wall(const struct mc_clock *clock) {
    return fake_now(clock) / MC_MS;
}

static const struct mc_clock *port_clock(struct mc_port *port) {
    return &of(port)->clock;
}

static void port_sleep(struct mc_port *port, uint64_t deadline_ns) {
    of(port)->now_ns = mc_max_u64(of(port)->now_ns, deadline_ns);
}

static enum mc_status lose(struct fake_port *fake, uint64_t deadline_ns) {
    fake->lose_count--;
    if (fake->lose_status == MC_RPC_TIMEOUT) {
        fake->now_ns = mc_max_u64(fake->now_ns, deadline_ns);
    }
    return fake->lose_status;
}

static enum mc_status port_call(struct mc_port *port, uint32_t function_id, struct mc_str body,
                                uint64_t deadline_ns, struct mc_buf *reply) {
    struct fake_port *fake = of(port);
    const struct mc_rpc_desc *desc = mc_master_rpc_find(function_id);
    MC_ASSERT(desc != NULL);
    enum mc_master_rpc rpc = mc_master_rpc_index(desc);
    fake->rpcs[rpc]++;
    fake->now_ns += 10000;
    if (fake->before_rpc != NULL) {
        fake->before_rpc(fake, rpc);
    }
    if (!fake->ours &&
        (rpc == MC_RPC_GetObjects || rpc == MC_RPC_SyncDisk || rpc == MC_RPC_OnDisk)) {
        return MC_NOT_SUPPORTED;
    }
    bool lost = fake->lose_count > 0 && fake->lose_rpc == rpc;
    if (lost && fake->lose_how == FAKE_LOSE_REQUEST) {
        return lose(fake, deadline_ns);
    }
    struct mc_arena arena = {0};
    void *args = mc_zalloc(desc->args_size + 1);
    void *ret = mc_zalloc(desc->ret_size + 1);
    unsigned version;
    MC_ASSERT(mc_master_rpc_decode_args(desc, body, &arena, args, &version) == MC_OK);
    unsigned oldest =
        desc->version_count - 1 < fake->old_schema ? desc->version_count - 1 : fake->old_schema;
    enum mc_status status = MC_OK;
    if (version < oldest && desc->versions[version].args_hash != desc->versions[oldest].args_hash) {
        status = MC_ERR_WIRE_HASH;
    } else {
        handle(fake, rpc, args, &arena, ret);
        mc_master_rpc_encode_ret(desc, oldest, ret, reply);
        if (fake->after_rpc != NULL) {
            fake->after_rpc(fake, rpc);
        }
    }
    free(args);
    free(ret);
    mc_arena_free(&arena);
    return status == MC_OK && lost ? lose(fake, deadline_ns) : status;
}

static size_t node_of(struct mc_str endpoint) {
    MC_ASSERT(endpoint.len == 6 && memcmp(endpoint.ptr, "node:", 5) == 0);
    size_t node = (size_t)(endpoint.ptr[5] - '0');
    MC_ASSERT(node < FAKE_NODES);
    return node;
}

static void port_move(struct mc_port *port, struct mc_port_move *moves, size_t count,
                      uint64_t deadline_ns) {
    struct fake_port *fake = of(port);
    fake->move_calls++;
    for (size_t i = 0; i < count; i++) {
        struct mc_port_move *m = &moves[i];
        size_t node = node_of(m->endpoint);
        uint8_t *remote = (uint8_t *)(uintptr_t)m->remote_addr;
        MC_ASSERT(mc_range_inside(m->remote_addr, m->length, (uintptr_t)fake->memory[node],
                                  FAKE_NODE_BYTES));
        fake->moves++;
        if (fake->during_move != NULL && i == count / 2) {
            fake->during_move(fake);
        }
        m->status = fake->node_status[node];
        if (m->op == MC_TRANSFER_READ) {
            fake->node_reads[node]++;
        } else {
            fake->node_writes[node]++;
        }
        if (m->status == MC_ERR_TIMEOUT) {
            fake->now_ns = mc_max_u64(fake->now_ns, deadline_ns);
        }
        if (m->status != MC_OK) {
            continue;
        }
        if (m->op == MC_TRANSFER_WRITE) {
            memcpy(remote, m->local, m->length);
        } else {
            memcpy(m->local, remote, m->length);
            ((uint8_t *)m->local)[m->length / 2] ^= fake->corrupt_node[node];
        }
    }
    fake->now_ns += fake->move_takes_ns;
}

static const void *port_map(struct mc_port *port, struct mc_str endpoint, uint64_t remote_addr,
                            uint64_t length, uint64_t deadline_ns) {
    if (of(port)->distance[node_of(endpoint)] == MC_DISTANCE_NETWORK) {
        return NULL;
    }
    of(port)->mapped++;
    return (const void *)(uintptr_t)remote_addr;
}

static void port_unmap(struct mc_port *port, struct mc_str endpoint, const void *ptr) {
    MC_ASSERT(of(port)->mapped > 0);
    of(port)->mapped--;
}

static unsigned port_distance(struct mc_port *port, struct mc_str endpoint) {
    return of(port)->distance[node_of(endpoint)];
}

/* An SSD's owner lends the place where the object lies here; only one at a time is asked for. */
static enum mc_status lend(struct fake_port *fake, struct mc_str body, struct mc_arena *arena,
                           struct mc_buf *reply) {
    const struct mc_rpc_desc *rpc = &mc_client_rpc_table()[MC_CLIENT_RPC_batch_get_offload_object];
    struct mw_a_offload_get args;
    struct mw_e_offload_buffers ret = {.error = MC_OBJECT_NOT_FOUND};
    unsigned version;
    assert_int_equal(mc_master_rpc_decode_args(rpc, body, arena, &args, &version), MC_OK);
    assert_int_equal(args.keys.count, 1);
    struct mc_str key = *(const struct mc_str *)args.keys.items;
    const char *nul = memchr(key.ptr, 0, key.len);
    size_t skip = (size_t)(nul + 1 - key.ptr);
    const struct fake_object *object = find(fake, (struct mc_str){nul + 1, key.len - skip});
    uint64_t place = 0;
    if (object != NULL && object->on_disk &&
        *(int64_t *)args.sizes.items == (int64_t)object->size) {
        place = (uint64_t)(uintptr_t)&fake->memory[object->node[0]][object->offset[0]];
        ret.error = MC_OK;
        ret.value.te_endpoint = mc_arena_printf(arena, "node:%zu", object->node[0]);
        ret.value.pointers = (struct mc_vec){&place, 1};
        ret.value.gc_ttl_ms = 1000;
    }
    mc_master_rpc_encode_ret(rpc, 0, &ret, reply);
    return MC_OK;
}

static enum mc_status port_peer_call(struct mc_port *port, struct mc_str endpoint,
                                     uint32_t function_id, struct mc_str body, uint64_t deadline_ns,
                                     struct mc_buf *reply) {
    struct fake_port *fake = of(port);
    if (mc_client_rpc_find(function_id) !=
        &mc_client_rpc_table()[MC_CLIENT_RPC_batch_get_offload_object]) {
        return MC_RPC_FAIL; /* it is not told that it may have its memory back */
    }
    if (fake->before_disk != NULL) {
        fake->before_disk(fake);
    }
    struct mc_arena arena = {0};
    enum mc_status status = lend(fake, body, &arena, reply);
    mc_arena_free(&arena);
    return status;
}

static const struct mc_port_ops FAKE_OPS = {port_clock, port_sleep, port_call,     port_move,
                                            port_map,   port_unmap, port_distance, port_peer_call};

struct fake_port *fake_create(void) {
    struct fake_port *fake = mc_zalloc(sizeof(*fake));
    fake->port.ops = &FAKE_OPS;
    fake->clock = (struct mc_clock){fake_now, fake_wall};
    fake->now_ns = 1000 * MC_SEC;
    fake->lease_ms = FAKE_LEASE_MS;
    fake->lose_status = MC_RPC_TIMEOUT;
    fake->knows_segment = true;
    fake->segment_status = MC_SEGMENT_OK;
    for (size_t i = 0; i < FAKE_NODES; i++) {
        fake->distance[i] = MC_DISTANCE_NETWORK;
    }
    return fake;
}

void fake_destroy(struct fake_port *fake) {
    MC_ASSERT(fake->mapped == 0);
    for (size_t i = 0; i < FAKE_OBJECTS; i++) {
        free(fake->objects[i].key);
    }
    free(fake);
}

struct mc_ops *fake_ops(struct fake_port *fake, bool checksum) {
    struct mc_ops_config config = {.client = {7, 1},
                                   .tenant = "default",
                                   .host_id = "",
                                   .timeout_ms = 30000,
                                   .checksum = checksum,
                                   .round_bytes = fake->round_bytes};
    return mc_ops_create(&fake->port, &config);
}
