/*
 * The end of a get: what no memory could give comes from the SSD of a node, or from the file that
 * has it, after all else was read. Copies are tried one after the other.
 *
 * A checksum says whether the bytes are the object's. Where there is none to compare with (parts of
 * an object, device memory) the master is asked again after the last byte: a copy that it still
 * names by the same id was there all the time, and what lies under an id does not change. So it is
 * when the checksum is another's, and when the last copy could not be read: disks give no lease,
 * and the object may have been replaced. Where it names another copy the key begins again with that
 * answer; a session does not, for which the answer is the renewal of its lease, too.
 *
 * A file that has another length or other bytes, while the master still names it for an object of
 * the same checksum, will never have the object again: the master is told, so that the key is
 * missing or can be read elsewhere, and can be put. One that is not there may be only here.
 */
#include "client/ops_get.h"

#include "base/log.h"
#include "client/session.h"

/* ---- where ---- */

void mc_get_note_disks(struct mc_get_chunk *chunk, struct mc_get_key *key) {
    static const uint8_t order[] = {MW_TAG_LOCAL_DISK, MW_TAG_DISK};
    const struct mw_replica *replica = key->list.replicas.items;
    struct mc_arena *arena = &chunk->call->arena;
    size_t count = 0;
    for (size_t i = 0; i < key->list.replicas.count; i++) {
        count += mc_ops_replica_on_disk(chunk->ops, &replica[i]);
    }
    key->disk_count = key->disk_next = 0;
    if (count == 0) {
        return;
    }
    key->disks = mc_arena_alloc(arena, count * sizeof(*key->disks));
    for (size_t n = 0; n < 2; n++) {
        for (size_t i = 0; i < key->list.replicas.count; i++) {
            if (replica[i].tag != order[n] || !mc_ops_replica_on_disk(chunk->ops, &replica[i])) {
                continue;
            }
            struct mc_get_disk *disk = &key->disks[key->disk_count++];
            *disk =
                (struct mc_get_disk){.id = replica[i].id, .size = mc_ops_replica_size(&replica[i])};
            if (replica[i].tag == MW_TAG_DISK) {
                disk->file = mc_arena_str(arena, replica[i].disk.file_path);
            } else {
                disk->endpoint = mc_arena_str(arena, replica[i].local_disk.endpoint);
            }
        }
    }
}

/* ---- what ---- */

/* What memory says when it has not got the object, or other bytes. */
static bool disk_may_have_it(enum mc_status why) {
    return why == MC_INVALID_REPLICA || why == MC_TRANSFER_FAIL || why == MC_CHECKSUM_MISMATCH;
}

/* Looks at the key again as one that comes from its next disk; false when there is none to read. */
static bool prepare_disk(struct mc_get_key *key) {
    enum mc_status why = key->item->status;
    if (!key->done || why == MC_OK || key->disk_next == key->disk_count ||
        (key->disk_next == 0 && !disk_may_have_it(why))) {
        return false;
    }
    key->replica = NULL;
    key->object_size = key->size = key->disks[key->disk_next].size;
    enum mc_status fits = key->ranges != NULL ? mc_get_measure_ranges(key) : mc_get_make_room(key);
    if (fits == MC_OK && key->ranges == NULL && key->size > mc_get_capacity(key)) {
        fits = MC_BUFFER_OVERFLOW;
    }
    key->item->length = key->size;
    if (fits != MC_OK || key->size == 0) {
        key->disk_next = key->disk_count;
        mc_get_finish(key, fits);
        return false;
    }
    return true;
}

static void describe_disk_read(struct mc_get_chunk *chunk, struct mc_get_key *key,
                               struct mc_ops_disk_read *out) {
    struct mc_store_range *pieces =
        mc_arena_alloc(&chunk->call->arena, (mc_get_piece_count(key) + 1) * sizeof(*pieces));
    const struct mc_get_disk *disk = &key->disks[key->disk_next];
    size_t count = 0;
    uint64_t begin = 0;
    for (size_t i = 0; i < mc_get_piece_count(key) && begin < key->size; i++) {
        struct mc_store_range part = mc_get_piece(key, i, begin);
        part.length = mc_min_u64(part.length, key->size - begin);
        begin += part.length;
        if (part.length > 0) {
            pieces[count++] = part;
        }
    }
    *out = (struct mc_ops_disk_read){.key = key->key,
                                     .endpoint = disk->endpoint,
                                     .file = disk->file,
                                     .size = disk->size,
                                     .pieces = pieces,
                                     .piece_count = count};
}

/* ---- whether ---- */

/* The disk has been read. True when the master has to say what that means: nothing says yet that
 * the bytes are the object's, or they are not, or no disk is left to ask, and the object may have
 * been replaced meanwhile. */
static bool is_doubtful(struct mc_get_chunk *chunk, struct mc_get_key *key,
                        const struct mc_ops_disk_read *read) {
    const struct mc_slice *slices;
    enum mc_status status = read->status;
    bool checked = mc_get_is_checked(chunk, key, &slices);
    if (status == MC_OK && mc_get_is_damaged(chunk, key)) {
        status = MC_CHECKSUM_MISMATCH;
    }
    if (status == MC_LEASE_EXPIRED) { /* of the owner's memory: this is not the object's lease */
        status = MC_TRANSFER_FAIL;
    }
    struct mc_get_disk *disk = &key->disks[key->disk_next - 1];
    disk->lost = disk->file.len > 0 && (read->lost || status == MC_CHECKSUM_MISMATCH);
    mc_get_finish(key, status);
    if (status == MC_OK) {
        return !checked;
    }
    return status == MC_CHECKSUM_MISMATCH || disk->lost || key->disk_next == key->disk_count;
}

static void say_damaged(struct mc_get_chunk *chunk, const struct mc_get_key *key) {
    const struct mc_get_disk *disk = &key->disks[key->disk_next - 1];
    struct mc_str from = disk->endpoint.len > 0 ? disk->endpoint : disk->file;
    mc_metric_add(&chunk->ops->counters.checksum_mismatches, 1);
    mc_error("the bytes read from an SSD are not the bytes written: key=%.*s endpoint=%.*s",
             (int)key->key.len, key->key.ptr, (int)from.len, from.ptr);
}

/* The copy with the id is in the list. */
static bool named(const struct mc_get_answer *answer, uint64_t id) {
    const struct mw_replica *replica = answer->list.replicas.items;
    for (size_t i = 0; answer->status == MC_OK && i < answer->list.replicas.count; i++) {
        if (replica[i].id == id && replica[i].tag != MW_TAG_MEMORY &&
            replica[i].status == MC_REPLICA_COMPLETE) {
            return true;
        }
    }
    return false;
}

/* By which the bytes were judged. */
static bool same_checksum(const struct mw_opt_u64 *a, const struct mw_opt_u64 *b) {
    return a->has == b->has && (!a->has || a->value == b->value);
}

/* What the copy that the master still names gave is the key's end, unless there is another. */
static void settle(struct mc_get_chunk *chunk, struct mc_get_key *key, enum mc_status read) {
    if (read == MC_CHECKSUM_MISMATCH) {
        say_damaged(chunk, key);
        key->damaged_on_disk = true;
    }
    mc_get_finish(key, read != MC_OK ? mc_get_why(key, read) : MC_OK);
}

/* The keys at index[0..n) were read from the disk before their next one, as their status says. */
static void confirm(struct mc_get_chunk *chunk, const uint32_t *index, size_t n) {
    struct mc_vec answers = {0};
    struct mc_str *lost = mc_arena_alloc(&chunk->call->arena, n * sizeof(*lost));
    size_t lost_count = 0;
    enum mc_status status = mc_get_request(chunk, index, n, &answers);
    uint64_t answered = mc_ops_now(chunk->ops);
    for (size_t i = 0; i < n; i++) {
        struct mc_get_key *key = &chunk->keys[index[i]];
        enum mc_status read = key->item->status;
        if (status != MC_OK) {
            mc_get_finish(key, mc_get_why(key, read != MC_OK ? read : status));
            continue;
        }
        struct mc_get_answer answer = mc_get_answer_at(chunk, &answers, i, answered);
        bool there = named(&answer, key->disks[key->disk_next - 1].id) &&
                     same_checksum(&answer.list.checksum, &key->list.checksum);
        if (key->session == NULL && !there) {
            mc_get_again(chunk, key, &answer);
            if (!key->done) { /* other keys may be confirmed before this one is read */
                mc_session_copy_list(&chunk->call->arena, &key->list, &key->list);
            }
            continue;
        }
        if (there) {
            settle(chunk, key, read);
        } else {
            mc_get_finish(key, mc_get_why(key, MC_TRANSFER_FAIL));
        }
        if (there && key->disks[key->disk_next - 1].lost) {
            lost[lost_count++] = key->key;
        }
        if (key->session != NULL) { /* may finish it otherwise */
            mc_get_session_renewed(key, &answer);
        }
        if (key->item->status == MC_LEASE_EXPIRED) {
            key->disk_next = key->disk_count;
        }
    }
    if (lost_count > 0) {
        mc_ops_files_lost(chunk->ops, lost, lost_count, chunk->deadline_ns);
    }
}

/* Reads each key that has a disk left from its next one; false when no key has. */
static bool read_next(struct mc_get_chunk *chunk) {
    struct mc_arena *arena = &chunk->call->arena;
    struct mc_ops_disk_read *reads = NULL;
    uint32_t *index = NULL;
    size_t count = 0;
    bool alternative = false;
    for (size_t i = 0; i < chunk->count; i++) {
        struct mc_get_key *key = &chunk->keys[i];
        if (!prepare_disk(key)) {
            continue;
        }
        if (reads == NULL) {
            reads = mc_arena_alloc(arena, chunk->count * sizeof(*reads));
            index = mc_arena_alloc(arena, chunk->count * sizeof(*index));
        }
        describe_disk_read(chunk, key, &reads[count]);
        index[count++] = (uint32_t)i;
        key->disk_next++;
        alternative = alternative || key->disk_next < key->disk_count;
    }
    if (count == 0) {
        return false;
    }
    uint64_t now = mc_ops_now(chunk->ops);
    uint64_t left = chunk->deadline_ns > now ? chunk->deadline_ns - now : 0;
    mc_ops_disk_read(chunk->ops, chunk->call, reads, count, now + (alternative ? left / 2 : left));
    size_t doubtful = 0;
    for (size_t i = 0; i < count; i++) {
        struct mc_get_key *key = &chunk->keys[index[i]];
        if (is_doubtful(chunk, key, &reads[i])) {
            index[doubtful++] = index[i];
        }
    }
    if (doubtful > 0) {
        confirm(chunk, index, doubtful);
    }
    return true;
}

bool mc_get_from_disks(struct mc_get_chunk *chunk) {
    while (read_next(chunk)) {
    }
    bool open = false;
    for (size_t i = 0; i < chunk->count; i++) {
        open = open || !chunk->keys[i].done;
    }
    return open;
}
