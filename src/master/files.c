/*
 * DISK replicas: copies of objects in files of a file system that the clients share
 * (mc_master_config.root_fs_dir). The master never looks there: it names a path for each put and
 * believes the writer who says that the file is there, and any client that says it is not.
 *
 * A path is named once and never again, because its last part is a number that no other put has.
 * So whoever writes late, a client that hung before it renamed or an upstream's thread, writes to a
 * name that nobody is told any more, and what a name gave once it gives for ever. Keys that differ
 * only in what file systems dislike, and tenants, do not meet either.
 *
 * Until the file is there the object carries its number and no replica, so that neither reading,
 * eviction nor the allocator's books hear of it. The replica points to a segment without allocator,
 * one for all, like those of clients' own disks (disks.c).
 *
 * Names that are never used again must be deleted by somebody. Paths of objects that are gone wait
 * here in batches, which clients of ours fetch (TakeDeadFiles) and acknowledge; what is not
 * acknowledged is given again. A file that comes after that is deleted by its writer, whom the
 * master refuses. All files of one master lie in a directory of their own, named by a number, too:
 * the first batch has no paths and says that such directories of other masters, which started empty
 * and know of no file, can go.
 */
#include "master/files.h"

#include "io/key_path.h"

#define NAME_BYTES  200u /* of a key or tenant in a path: file systems take names of 255 */
#define BATCH_PATHS 256u
#define BATCH_BYTES (64u << 10)
#define BYTES_MAX   (64u << 20) /* of paths that wait; what is beyond stays in the file system */
#define AGAIN_MS    60000u      /* a batch that was not acknowledged is another client's */

enum { FILE_NONE, FILE_WANTED, FILE_WRITTEN };

struct batch {
    struct mc_list link;
    uint64_t id;
    bool given;
    struct mc_uuid to; /* whom it was given to last */
    uint64_t given_ms;
    size_t count;
    struct mc_buf paths; /* each with a NUL behind it */
};

struct mc_files {
    struct mc_segment *segment; /* of the replicas */
    struct mc_buf directory;    /* of this master's files */
    bool ended;
    bool same_names;     /* for tests only */
    struct mc_lock lock; /* a leaf; guards what follows */
    struct mc_list batches;
    uint64_t next_batch;
    size_t bytes;
};

static struct batch *add_batch_locked(struct mc_files *f) {
    struct batch *b = mc_zalloc(sizeof(*b));
    b->id = f->next_batch++;
    mc_list_push_back(&f->batches, &b->link);
    return b;
}

struct mc_files *mc_files_create(struct mc_master *m) {
    if (m->config.root_fs_dir[0] == '\0') {
        return NULL;
    }
    struct mc_files *f = mc_zalloc(sizeof(*f));
    uint64_t number = mc_version_next(m); /* of no other master that has files */
    f->same_names = m->config.break_mode == MC_BREAK_FILE_NAMES;
    f->segment = mc_segment_disk_make(m, (struct mc_uuid){0}, MC_STR(""));
    mc_buf_printf(&f->directory, "%s/%016llx", m->config.root_fs_dir, (unsigned long long)number);
    mc_list_init(&f->batches);
    f->next_batch = number; /* so that acknowledgements of another master's mean nothing */
    (void)add_batch_locked(f);
    return f;
}

void mc_files_end(struct mc_files *f) {
    if (f) {
        f->ended = true;
    }
}

static void drop_batch_locked(struct mc_files *f, struct batch *b) {
    f->bytes -= b->paths.len;
    mc_list_del(&b->link);
    mc_buf_free(&b->paths);
    free(b);
}

void mc_files_destroy(struct mc_files *f) {
    if (!f) {
        return;
    }
    while (!mc_list_empty(&f->batches)) {
        drop_batch_locked(f, mc_container_of(f->batches.next, struct batch, link));
    }
    mc_segment_disk_free(f->segment);
    mc_buf_free(&f->directory);
    free(f);
}

uint64_t mc_files_bytes(const struct mc_files *f) {
    return f ? atomic_load_explicit(&f->segment->disk_bytes, memory_order_relaxed) : 0;
}

/* ---- names ---- */

/* <root>/<cluster>/<master>[/tenant-<tenant>]/<c1>/<c2>/<key>.<number> */
static void file_path(const struct mc_files *f, const struct mc_object *o, uint64_t number,
                      struct mc_buf *out) {
    mc_buf_append(out, f->directory.data, f->directory.len);
    if (o->tenant_len > 0) {
        mc_buf_puts(out, "/tenant-");
        mc_path_name(mc_object_tenant(o), NAME_BYTES, out);
    }
    mc_key_directory(mc_object_key(o), out);
    mc_path_name(mc_object_key(o), NAME_BYTES, out);
    mc_buf_printf(out, ".%016llx", f->same_names ? 0 : (unsigned long long)number);
}

static void describe(struct mc_call *call, const struct mc_object *o, uint64_t id, uint64_t number,
                     int32_t status, struct mw_replica *out) {
    struct mc_buf path = {0};
    file_path(call->m->files, o, number, &path);
    *out = (struct mw_replica){
        .id = id,
        .tag = MW_TAG_DISK,
        .disk = {.file_path = mc_arena_str(call->arena, (struct mc_str){path.data, path.len}),
                 .object_size = o->size},
        .status = status};
    mc_buf_free(&path);
}

void mc_file_describe(struct mc_call *call, const struct mc_object *o, const struct mc_replica *r,
                      struct mw_replica *out) {
    describe(call, o, r->id, r->offset, r->status, out);
}

/* ---- of one object ---- */

static bool has_file(struct mc_object *o) {
    for (unsigned i = 0; i < o->replica_count; i++) {
        if (mc_object_replica(o, i)->type == MC_REPLICA_DISK) {
            return true;
        }
    }
    return false;
}

void mc_file_want(struct mc_call *call, struct mc_shard *shard, struct mc_object *o,
                  struct mc_vec *replicas) {
    if (!call->m->files || mc_object_striped(o)) {
        return;
    }
    struct mw_replica *all = mc_arena_alloc(call->arena, (replicas->count + 1) * sizeof(*all));
    memcpy(all, replicas->items, replicas->count * sizeof(*all));
    uint64_t id = atomic_fetch_add_explicit(&call->m->next_replica_id, 1, memory_order_relaxed);
    o->file = FILE_WANTED;
    mc_object_ext(shard, o)->file_number = mc_version_next(call->m);
    describe(call, o, id, o->ext->file_number, MC_REPLICA_PROCESSING, &all[replicas->count]);
    *replicas = (struct mc_vec){all, replicas->count + 1};
}

void mc_file_settle(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
    struct mc_replica all[MC_MAX_REPLICAS];
    unsigned count = o->replica_count;
    if (o->file != FILE_WRITTEN || o->list == MC_LIST_PROCESSING || count >= MC_MAX_REPLICAS) {
        return;
    }
    struct mc_segment *segment = call->m->files->segment;
    o->file = FILE_NONE;
    for (unsigned i = 0; i < count; i++) {
        all[i] = *mc_object_replica(o, i);
    }
    all[count] = (struct mc_replica){
        .id = atomic_fetch_add_explicit(&call->m->next_replica_id, 1, memory_order_relaxed),
        .segment = segment,
        .offset = o->ext->file_number,
        .type = MC_REPLICA_DISK,
        .status = MC_REPLICA_COMPLETE};
    atomic_fetch_add_explicit(&segment->disk_replicas, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&segment->disk_bytes, o->size, memory_order_relaxed);
    mc_object_set_replicas(shard, o, all, count + 1);
    mc_object_announce(call->m, o);
}

enum mc_status mc_file_written(struct mc_call *call, struct mc_shard *shard, struct mc_object *o) {
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

/* ---- files to be deleted ---- */

static void delete_later(struct mc_master *m, const struct mc_object *o, uint64_t number) {
    struct mc_files *f = m->files;
    struct mc_buf path = {0};
    if (f->ended) {
        return;
    }
    file_path(f, o, number, &path);
    mc_lock_acquire(&f->lock);
    bool room = f->bytes + path.len + 1 <= BYTES_MAX;
    if (room) {
        struct batch *last = mc_list_empty(&f->batches)
                                 ? NULL
                                 : mc_container_of(f->batches.prev, struct batch, link);
        if (!last || last->given || last->count == 0 || last->count == BATCH_PATHS ||
            last->paths.len > BATCH_BYTES) {
            last = add_batch_locked(f);
        }
        mc_buf_append(&last->paths, path.data, path.len + 1);
        last->count++;
        f->bytes += path.len + 1;
    }
    mc_lock_release(&f->lock);
    mc_count(room ? &m->counters.dead_files : &m->counters.dead_files_left, 1);
    mc_buf_free(&path);
}

void mc_file_dropped(struct mc_master *m, const struct mc_object *o, const struct mc_replica *r) {
    if (r->type == MC_REPLICA_DISK) {
        delete_later(m, o, r->offset);
    }
}

void mc_file_unwanted(struct mc_master *m, struct mc_object *o) {
    if (o->file != FILE_NONE) {
        o->file = FILE_NONE;
        delete_later(m, o, o->ext->file_number);
    }
}

static struct batch *next_batch_locked(struct mc_files *f, uint64_t now_ms) {
    for (struct mc_list *at = f->batches.next; at != &f->batches; at = at->next) {
        struct batch *b = mc_container_of(at, struct batch, link);
        if (!b->given || now_ms >= b->given_ms + AGAIN_MS) {
            return b;
        }
    }
    return NULL;
}

/* Only of whom has it now: what another could not delete in a minute is not gone because of a word
 * about that other try. */
static size_t acknowledge_locked(struct mc_files *f, uint64_t id, struct mc_uuid client) {
    for (struct mc_list *at = f->batches.next; at != &f->batches; at = at->next) {
        struct batch *b = mc_container_of(at, struct batch, link);
        if (b->id == id && b->given && mc_uuid_eq(b->to, client)) {
            size_t count = b->count;
            drop_batch_locked(f, b);
            return count;
        }
    }
    return 0;
}

void mc_files_take(struct mc_call *call, const struct mw_a_dead_files *a,
                   struct mw_dead_files *out) {
    struct mc_files *f = call->m->files;
    *out = (struct mw_dead_files){0};
    if (!f) {
        return;
    }
    out->keep = mc_arena_str(call->arena, (struct mc_str){f->directory.data, f->directory.len});
    mc_lock_acquire(&f->lock);
    size_t deleted = a->done != 0 ? acknowledge_locked(f, a->done, a->client) : 0;
    struct batch *b = next_batch_locked(f, call->now_ms);
    if (b) {
        struct mc_str *paths = mc_arena_alloc(call->arena, (b->count + 1) * sizeof(*paths));
        struct mc_str all = mc_arena_str(call->arena, (struct mc_str){b->paths.data, b->paths.len});
        for (size_t i = 0; i < b->count; i++) {
            size_t len = strlen(all.ptr);
            paths[i] = (struct mc_str){all.ptr, len};
            all.ptr += len + 1;
        }
        b->given = true;
        b->to = a->client;
        b->given_ms = call->now_ms;
        out->batch = b->id;
        out->paths = (struct mc_vec){paths, b->count};
    }
    mc_lock_release(&f->lock);
    mc_count(&call->m->counters.dead_files, -(int64_t)deleted);
}
