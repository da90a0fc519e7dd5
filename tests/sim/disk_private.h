/* What the two files of the simulated disk share. See disk.h. */
#ifndef MC_TESTS_SIM_DISK_PRIVATE_H
#define MC_TESTS_SIM_DISK_PRIVATE_H

#include "sim/disk.h"

#define SIM_DISK_OPEN  32
#define SIM_FILE_ATTRS 4

struct sim_file {
    unsigned refs; /* names, undo log, descriptors */
    bool directory;
    uint8_t *seen, *kept;
    bool *dirty; /* sectors in which they may differ */
    uint64_t size, kept_size, room, reserved;
    struct {
        char *name;
        uint8_t value[64];
        size_t len;
    } attrs[SIM_FILE_ATTRS];
};
struct sim_name {
    char *path;
    struct sim_file *file;
};
struct sim_change { /* of names, not synced yet */
    char *path;
    struct sim_file *before; /* or NULL */
    uint64_t step;           /* the changes of one step come together */
};
struct sim_open {
    struct sim_file *file; /* NULL = free */
    uint64_t position;
    bool locked, writable;
};
struct sim_disk {
    char *root;
    struct mc_rng *rng;
    uint64_t capacity, seen, busy_ns, step;
    void (*on_cut)(void *ctx);
    void *ctx;
    bool (*pause)(void *ctx);
    void *pause_ctx;
    struct sim_disk_faults faults;
    struct sim_disk_counts counts;
    unsigned cut_after, number;
    bool quiet, keeps_meta;
    bool cut; /* the power has gone: nothing works any more */
    struct sim_name *names;
    size_t name_count, name_capacity;
    struct sim_change *changes;
    size_t change_count, change_capacity;
    struct sim_open open[SIM_DISK_OPEN];
};

/* disk.c */
void sim_file_unref(struct sim_file *file);
void sim_file_resize(struct sim_file *file, uint64_t size);
void sim_file_write(struct sim_file *file, uint64_t offset, const void *bytes, uint64_t len);
void sim_file_sync(struct sim_file *file);
uint64_t sim_disk_used(const struct sim_disk *disk);
size_t sim_disk_find(const struct sim_disk *disk, const char *path); /* name_count = not there */
struct sim_file *sim_disk_create(struct sim_disk *disk, const char *path, bool directory);
void sim_disk_unlink(struct sim_disk *disk, const char *path);
void sim_disk_rename(struct sim_disk *disk, const char *from, const char *to);
void sim_disk_sync_names(struct sim_disk *disk);
/* An operation begins. When the power goes in it, disk->cut is set and so many of its bytes still
 * make it. */
uint64_t sim_disk_step(struct sim_disk *disk, uint64_t bytes);
bool sim_disk_fails(struct sim_disk *disk, unsigned of_10000);

/* disk_calls.c */
void sim_disk_attach(struct sim_disk *disk);
void sim_disk_detach(struct sim_disk *disk);
struct sim_disk *sim_disk_behind(int fd); /* NULL = a descriptor of the kernel's */

#endif
