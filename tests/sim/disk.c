/*
 * A small file system in memory with a cache that can be lost. See disk.h; the system calls are in
 * disk_calls.c.
 *
 * A file has two contents, what programs see and what would be there after the power went, and the
 * sectors in which they may differ. Names are a flat table of whole paths; each change of it since
 * the last sync of a directory is in a log from which it can be undone. All directories are synced
 * together, which is less than some file systems promise about others, and what all promise.
 */
#include "sim/disk_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

/* ---- files ---- */

static struct sim_file *file_make(bool directory) {
    struct sim_file *file = mc_zalloc(sizeof(*file));
    file->directory = directory;
    return file;
}

void sim_file_unref(struct sim_file *file) {
    if (--file->refs == 0) {
        for (unsigned i = 0; i < SIM_FILE_ATTRS; i++) {
            free(file->attrs[i].name);
        }
        free(file->seen);
        free(file->kept);
        free(file->dirty);
        free(file);
    }
}

static uint64_t file_blocks(const struct sim_file *file) {
    uint64_t bytes = mc_max_u64(file->size, file->reserved);
    return (bytes + SIM_DISK_BLOCK - 1) / SIM_DISK_BLOCK * SIM_DISK_BLOCK;
}

uint64_t sim_disk_used(const struct sim_disk *disk) {
    uint64_t used = 0;
    for (size_t i = 0; i < disk->name_count; i++) {
        used += file_blocks(disk->names[i].file);
    }
    return used;
}

static void file_room(struct sim_file *file, uint64_t size) {
    if (size > file->room) {
        uint64_t room = mc_max_u64(2 * file->room, (size + 4095) / 4096 * 4096);
        file->seen = mc_realloc(file->seen, room);
        file->kept = mc_realloc(file->kept, room);
        file->dirty = mc_realloc(file->dirty, room / SIM_DISK_SECTOR);
        memset(file->seen + file->room, 0, room - file->room);
        memset(file->kept + file->room, 0, room - file->room);
        memset(file->dirty + file->room / SIM_DISK_SECTOR, 0,
               (room - file->room) / SIM_DISK_SECTOR);
        file->room = room;
    }
}

void sim_file_resize(struct sim_file *file, uint64_t size) {
    file_room(file, size);
    if (size < file->size) {
        memset(file->seen + size, 0, file->size - size);
        for (uint64_t at = size / SIM_DISK_SECTOR; at * SIM_DISK_SECTOR < file->size; at++) {
            file->dirty[at] = true;
        }
    }
    file->size = size;
}

void sim_file_write(struct sim_file *file, uint64_t offset, const void *bytes, uint64_t len) {
    if (len == 0) {
        return;
    }
    file_room(file, offset + len);
    memcpy(file->seen + offset, bytes, len);
    for (uint64_t at = offset / SIM_DISK_SECTOR; at <= (offset + len - 1) / SIM_DISK_SECTOR; at++) {
        file->dirty[at] = true;
    }
    file->size = mc_max_u64(file->size, offset + len);
}

void sim_file_sync(struct sim_file *file) {
    for (uint64_t at = 0; at < file->room / SIM_DISK_SECTOR; at++) {
        if (file->dirty[at]) {
            memcpy(file->kept + at * SIM_DISK_SECTOR, file->seen + at * SIM_DISK_SECTOR,
                   SIM_DISK_SECTOR);
            file->dirty[at] = false;
        }
    }
    file->kept_size = file->size;
}

/* What the power leaves of it becomes what is seen. */
static void file_lose(struct sim_disk *disk, struct sim_file *file) {
    uint64_t odds = mc_rng_below(disk->rng, 3); /* nothing, some or all of it was written back */
    for (uint64_t at = 0; at < file->room / SIM_DISK_SECTOR; at++) {
        uint64_t begin = at * SIM_DISK_SECTOR;
        if (!file->dirty[at]) {
            continue;
        }
        if (odds == 2 || (odds == 1 && mc_rng_below(disk->rng, 2) == 0)) {
            memcpy(file->kept + begin, file->seen + begin, SIM_DISK_SECTOR);
        } else {
            disk->counts.sectors_lost++;
        }
    }
    if (file->kept_size != file->size && (odds == 2 || mc_rng_below(disk->rng, 2) == 0)) {
        file->kept_size = file->size;
    }
    file->size = file->kept_size;
    file->reserved = 0;
    if (file->room > 0) {
        memset(file->kept + file->size, 0, file->room - file->size);
        memcpy(file->seen, file->kept, file->room);
        memset(file->dirty, 0, file->room / SIM_DISK_SECTOR);
    }
}

/* ---- names ---- */

size_t sim_disk_find(const struct sim_disk *disk, const char *path) {
    size_t i = 0;
    while (i < disk->name_count && strcmp(disk->names[i].path, path) != 0) {
        i++;
    }
    return i;
}

static void name_put(struct sim_disk *disk, const char *path, struct sim_file *file) {
    if (disk->name_count == disk->name_capacity) {
        disk->name_capacity = disk->name_capacity > 0 ? 2 * disk->name_capacity : 16;
        disk->names = mc_realloc(disk->names, disk->name_capacity * sizeof(*disk->names));
    }
    file->refs++;
    disk->names[disk->name_count++] = (struct sim_name){mc_strdup(path), file};
}

static void name_take(struct sim_disk *disk, size_t i) {
    free(disk->names[i].path);
    sim_file_unref(disk->names[i].file);
    disk->names[i] = disk->names[--disk->name_count];
}

/* `path` named `before` (or NULL) and names `after` (or NULL). */
static void name_set(struct sim_disk *disk, const char *path, struct sim_file *after) {
    size_t i = sim_disk_find(disk, path);
    struct sim_file *before = i < disk->name_count ? disk->names[i].file : NULL;
    if (disk->change_count == disk->change_capacity) {
        disk->change_capacity = disk->change_capacity > 0 ? 2 * disk->change_capacity : 16;
        disk->changes = mc_realloc(disk->changes, disk->change_capacity * sizeof(*disk->changes));
    }
    if (before != NULL) {
        before->refs++;
    }
    disk->changes[disk->change_count++] = (struct sim_change){mc_strdup(path), before, disk->step};
    if (after != NULL) {
        after->refs++; /* taking the old name away may not free it */
    }
    if (before != NULL) {
        name_take(disk, i);
    }
    if (after != NULL) {
        name_put(disk, path, after);
        sim_file_unref(after);
    }
}

struct sim_file *sim_disk_create(struct sim_disk *disk, const char *path, bool directory) {
    struct sim_file *file = file_make(directory);
    disk->step++;
    file->refs++;
    name_set(disk, path, file);
    file->refs--;
    return file;
}

void sim_disk_unlink(struct sim_disk *disk, const char *path) {
    disk->step++;
    name_set(disk, path, NULL);
}

void sim_disk_rename(struct sim_disk *disk, const char *from, const char *to) {
    struct sim_file *file = disk->names[sim_disk_find(disk, from)].file;
    disk->step++; /* both or neither */
    file->refs++;
    name_set(disk, from, NULL);
    name_set(disk, to, file);
    sim_file_unref(file);
}

static void change_free(struct sim_change *change) {
    free(change->path);
    if (change->before != NULL) {
        sim_file_unref(change->before);
    }
}

void sim_disk_sync_names(struct sim_disk *disk) {
    while (disk->change_count > 0) {
        change_free(&disk->changes[--disk->change_count]);
    }
}

/* Only the first few changes since the last sync remain. */
static void names_lose(struct sim_disk *disk) {
    if (disk->change_count > 0) {
        uint64_t first = disk->changes[0].step;
        uint64_t remain = first + mc_rng_below(disk->rng, disk->step - first + 2);
        while (disk->change_count > 0 && disk->changes[disk->change_count - 1].step >= remain) {
            struct sim_change *change = &disk->changes[--disk->change_count];
            size_t i = sim_disk_find(disk, change->path);
            if (i < disk->name_count) {
                name_take(disk, i);
            }
            if (change->before != NULL) {
                name_put(disk, change->path, change->before);
            }
            change_free(change);
            disk->counts.names_lost++;
        }
    }
    sim_disk_sync_names(disk);
}

/* ---- operations ---- */

uint64_t sim_disk_step(struct sim_disk *disk, uint64_t bytes) {
    if (disk->quiet) {
        return 0;
    }
    disk->busy_ns += 20 * 1000 + bytes * 2;
    if (disk->cut_after > 0 && !disk->cut && --disk->cut_after == 0) {
        disk->cut = true;
        disk->on_cut(disk->ctx);
        return bytes > 0 ? mc_rng_below(disk->rng, bytes) : 0;
    }
    return 0;
}

bool sim_disk_fails(struct sim_disk *disk, unsigned of_10000) {
    bool fails = of_10000 > 0 && !disk->quiet && mc_rng_below(disk->rng, 10000) < of_10000;
    disk->counts.errors += fails;
    return fails;
}

/* ---- from the simulator ---- */

struct sim_disk *sim_disk_make(const char *root, struct mc_rng *rng, uint64_t capacity_bytes,
                               uint64_t seen_bytes, void (*on_cut)(void *ctx), void *ctx) {
    struct sim_disk *disk = mc_zalloc(sizeof(*disk));
    *disk = (struct sim_disk){.root = mc_strdup(root),
                              .rng = rng,
                              .capacity = capacity_bytes,
                              .seen = seen_bytes,
                              .on_cut = on_cut,
                              .ctx = ctx};
    char device[64];
    snprintf(device, sizeof(device), "%s" SIM_DISK_DEVICE, root);
    sim_disk_create(disk, root, true);
    sim_disk_create(disk, device, false);
    sim_disk_sync_names(disk);
    sim_disk_attach(disk);
    return disk;
}

void sim_disk_free(struct sim_disk *disk) {
    sim_disk_crash(disk, false);
    sim_disk_detach(disk);
    sim_disk_sync_names(disk);
    while (disk->name_count > 0) {
        name_take(disk, disk->name_count - 1);
    }
    free(disk->names);
    free(disk->changes);
    free(disk->root);
    free(disk);
}

void sim_disk_set_faults(struct sim_disk *disk, struct sim_disk_faults faults) {
    disk->faults = faults;
}

void sim_disk_set_pause(struct sim_disk *disk, bool (*pause)(void *ctx), void *ctx) {
    disk->pause = pause;
    disk->pause_ctx = ctx;
}

void sim_disk_keep_meta(struct sim_disk *disk) {
    disk->keeps_meta = true;
}

void sim_disk_quiet(struct sim_disk *disk, bool quiet) {
    disk->quiet = quiet;
}

void sim_disk_cut_after(struct sim_disk *disk, unsigned operations) {
    disk->cut_after = operations;
}

void sim_disk_crash(struct sim_disk *disk, bool power) {
    for (unsigned i = 0; i < SIM_DISK_OPEN; i++) {
        MC_ASSERT(disk->open[i].file == NULL); /* a fiber that dies unwinds, and closes */
    }
    if (power || disk->cut) {
        names_lose(disk);
        for (size_t i = 0; i < disk->name_count; i++) {
            file_lose(disk, disk->names[i].file);
        }
    }
    disk->cut = false;
    disk->cut_after = 0;
    disk->busy_ns = 0;
}

const char *sim_disk_lose_file(struct sim_disk *disk) {
    for (unsigned tries = 0; tries < 8; tries++) {
        struct sim_name *name = &disk->names[mc_rng_below(disk->rng, disk->name_count)];
        if (name->file->directory || name->file->size == 0) {
            continue;
        }
        if (mc_rng_below(disk->rng, 2) == 0) {
            sim_file_resize(name->file, name->file->size - 1);
            return "cut";
        }
        sim_disk_unlink(disk, name->path);
        return "deleted";
    }
    return NULL;
}

bool sim_disk_has(const struct sim_disk *disk, struct mc_str path) {
    char *name = mc_str_dup(path);
    bool there = sim_disk_find(disk, name) < disk->name_count;
    free(name);
    return there;
}

bool sim_disk_turn_bit(struct sim_disk *disk) {
    for (unsigned tries = 0; tries < 8 && disk->counts.bits_turned == 0; tries++) {
        struct sim_file *file = disk->names[mc_rng_below(disk->rng, disk->name_count)].file;
        if (file->size > 0) {
            uint64_t at = mc_rng_below(disk->rng, file->size);
            uint8_t bit = (uint8_t)(1u << mc_rng_below(disk->rng, 8));
            file->seen[at] ^= bit;
            file->kept[at] ^= bit;
            disk->counts.bits_turned++;
            return true;
        }
    }
    return false;
}

const struct sim_disk_counts *sim_disk_counts(const struct sim_disk *disk) {
    return &disk->counts;
}

uint64_t sim_disk_busy_ns(struct sim_disk *disk) {
    uint64_t ns = disk->busy_ns;
    disk->busy_ns = 0;
    return ns;
}
