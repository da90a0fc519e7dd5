/*
 * DISK replicas: copies of objects in files of a file system that the clients share
 * (mc_master_config.root_fs_dir). The master never looks there: it names a path for each put and
 * believes the writer who says that the file is there, and any client that says it is not.
 *
 * Until then the object carries a flag and no replica, so that neither reading, eviction nor the
 * allocator's books hear of it. The replica points to a segment without allocator, one for all,
 * like those of clients' own disks (disks.c). Objects of other tenants than the default have no
 * files, because their names would meet; nor have those that are upserted.
 */
#include "master/core.h"

#include "io/key_path.h"

enum { FILE_NONE, FILE_WANTED, FILE_WRITTEN };

static bool has_file(struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->type == MC_REPLICA_DISK) {
            return true;
        }
    }
    return false;
}

void mc_file_describe(struct mc_call *call, const struct mc_object *o, uint64_t id, int32_t status,
                      struct mw_replica *out) {
    struct mc_buf path = {0};
    mc_key_path(mc_str_from(call->m->config.root_fs_dir), mc_object_key(o), &path);
    *out = (struct mw_replica){
        .id = id,
        .tag = MW_TAG_DISK,
        .disk = {.file_path = mc_arena_str(call->arena, (struct mc_str){path.data, path.len}),
                 .object_size = o->size},
        .status = status};
    mc_buf_free(&path);
}

void mc_file_want(struct mc_call *call, struct mc_object *o, struct mc_vec *replicas) {
    if (!call->m->files || o->tenant_len > 0 || mc_object_striped(o)) {
        return;
    }
    struct mw_replica *all = mc_arena_alloc(call->arena, (replicas->count + 1) * sizeof(*all));
    memcpy(all, replicas->items, replicas->count * sizeof(*all));
    uint64_t id = atomic_fetch_add_explicit(&call->m->next_replica_id, 1, memory_order_relaxed);
    mc_file_describe(call, o, id, MC_REPLICA_PROCESSING, &all[replicas->count]);
    o->file = FILE_WANTED;
    *replicas = (struct mc_vec){all, replicas->count + 1};
}

void mc_file_settle(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    struct mc_replica all[MC_MAX_REPLICAS];
    unsigned count = o->replica_count;
    if (o->file != FILE_WRITTEN || o->list == MC_LIST_PROCESSING || count >= MC_MAX_REPLICAS) {
        return;
    }
    o->file = FILE_NONE;
    for (unsigned i = 0; i < count; i++) {
        all[i] = *mc_object_replica(o, i);
    }
    all[count] = (struct mc_replica){
        .id = atomic_fetch_add_explicit(&call->m->next_replica_id, 1, memory_order_relaxed),
        .segment = call->m->files,
        .type = MC_REPLICA_DISK,
        .status = MC_REPLICA_COMPLETE};
    atomic_fetch_add_explicit(&call->m->files->disk_replicas, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->m->files->disk_bytes, o->size, memory_order_relaxed);
    mc_object_set_replicas(shard, o, all, count + 1);
    mc_object_announce(call->m, o);
}

enum mc_status mc_file_end(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    if (o->file == FILE_NONE) {
        return has_file(o) ? MC_OK : MC_INVALID_WRITE; /* ending twice is ending once */
    }
    o->file = FILE_WRITTEN;
    mc_file_settle(call, shard, o); /* now, or when the object can be read */
    return MC_OK;
}

enum mc_status mc_file_revoke(struct mc_object *o) {
    if (o->file == FILE_NONE) {
        return MC_INVALID_WRITE;
    }
    o->file = FILE_NONE;
    return MC_OK;
}

enum mc_status mc_file_forget(struct mc_call *call, const struct mc_key *key) {
    return mc_object_forget_replica(call, key, MC_REPLICA_DISK, NULL);
}
