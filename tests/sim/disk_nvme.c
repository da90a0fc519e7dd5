/*
 * A namespace of the NVMe Key Value command set on a simulated disk: commands come by ioctl on the
 * disk's device file (io_uring is refused, so the tier falls back), and each value is a file of the
 * disk, below SIM_DISK_KV. So the power takes what it takes of names: what was stored or deleted
 * since the last flush is there in part, the first few changes; a value itself is there whole or
 * not at all, as the command set promises. See disk.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "io/nvme.h"
#include "sim/disk_private.h"

#define KEY_BYTES    16u
#define PAGE_KEYS    7u /* of a list: few, so that there are many pages */
#define MEDIA_ERROR  0x281
#define DO_NOT_RETRY 0x4000

struct key {
    char path[96];
    uint8_t bytes[KEY_BYTES];
};

static void name_key(const struct sim_disk *disk, const struct nvme_passthru_cmd *c,
                     struct key *key) {
    uint32_t words[4] = {c->cdw2, c->cdw3, c->cdw14, c->cdw15};
    memcpy(key->bytes, words, sizeof(words));
    int n = snprintf(key->path, sizeof(key->path), "%s%s/", disk->root, SIM_DISK_KV);
    for (unsigned i = 0; i < KEY_BYTES; i++) {
        n += snprintf(key->path + n, sizeof(key->path) - (size_t)n, "%02x", key->bytes[i]);
    }
}

static uint64_t room_of(uint64_t bytes) {
    return (bytes + SIM_DISK_BLOCK - 1) / SIM_DISK_BLOCK * SIM_DISK_BLOCK;
}

static int store(struct sim_disk *disk, const struct key *key, const void *bytes, uint32_t len) {
    size_t i = sim_disk_find(disk, key->path);
    uint64_t held = i < disk->name_count ? room_of(disk->names[i].file->size) : 0;
    (void)sim_disk_step(disk, len);
    if (disk->cut) {
        return MC_NVME_NOT_COMPLETED;
    }
    if (sim_disk_fails(disk, disk->faults.write)) {
        return MEDIA_ERROR;
    }
    if (sim_disk_used(disk) - held + room_of(len) > disk->capacity) {
        disk->counts.full++;
        return MC_NVME_CAPACITY;
    }
    struct sim_file *file = sim_disk_create(disk, key->path, false);
    sim_file_write(file, 0, bytes, len);
    sim_file_sync(file);
    disk->counts.writes++;
    return MC_NVME_OK;
}

static int retrieve(struct sim_disk *disk, const struct key *key, void *out, uint32_t len,
                    uint32_t *size) {
    size_t i = sim_disk_find(disk, key->path);
    (void)sim_disk_step(disk, len);
    if (disk->cut) {
        return MC_NVME_NOT_COMPLETED;
    }
    if (sim_disk_fails(disk, disk->faults.read)) {
        return MEDIA_ERROR;
    }
    if (i == disk->name_count) {
        return MC_NVME_NO_SUCH_KEY;
    }
    const struct sim_file *file = disk->names[i].file;
    memcpy(out, file->seen, mc_min_u64(file->size, len));
    *size = (uint32_t)file->size;
    disk->counts.reads++;
    return MC_NVME_OK;
}

static int delete (struct sim_disk *disk, const struct key *key) {
    (void)sim_disk_step(disk, 0);
    if (disk->cut) {
        return MC_NVME_NOT_COMPLETED;
    }
    if (sim_disk_fails(disk, disk->faults.write)) {
        return MEDIA_ERROR;
    }
    if (sim_disk_find(disk, key->path) == disk->name_count) {
        return MC_NVME_NO_SUCH_KEY;
    }
    sim_disk_unlink(disk, key->path);
    return MC_NVME_OK;
}

static int flush(struct sim_disk *disk) {
    (void)sim_disk_step(disk, 0);
    if (disk->cut) {
        return MC_NVME_NOT_COMPLETED;
    }
    if (sim_disk_fails(disk, disk->faults.sync)) {
        return MEDIA_ERROR;
    }
    sim_disk_sync_names(disk);
    disk->counts.syncs++;
    return MC_NVME_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keys from the given one on, in their order, which is that of their names. */
static int list(struct sim_disk *disk, const struct key *from, bool first, char *out,
                uint32_t room) {
    const char **names = mc_alloc((disk->name_count + 1) * sizeof(*names));
    char below[96];
    size_t count = 0,
           len = (size_t)snprintf(below, sizeof(below), "%s%s/", disk->root, SIM_DISK_KV);
    for (size_t i = 0; i < disk->name_count; i++) {
        const char *path = disk->names[i].path;
        if (strncmp(path, below, len) == 0 && (first || strcmp(path, from->path) >= 0)) {
            names[count++] = path;
        }
    }
    qsort(names, count, sizeof(*names), by_name);
    uint32_t given = 0, at = sizeof(given);
    for (; given < count && given < PAGE_KEYS && at + 4 + KEY_BYTES <= room; given++) {
        uint16_t key_len = KEY_BYTES;
        memcpy(out + at, &key_len, sizeof(key_len));
        for (unsigned b = 0; b < KEY_BYTES; b++) {
            unsigned byte;
            MC_ASSERT(sscanf(names[given] + len + 2 * b, "%2x", &byte) == 1);
            out[at + sizeof(key_len) + b] = (char)byte;
        }
        at = (at + (uint32_t)sizeof(key_len) + KEY_BYTES + 3) / 4 * 4;
    }
    memcpy(out, &given, sizeof(given));
    free(names);
    return MC_NVME_OK;
}

static int carry_out(struct sim_disk *disk, struct nvme_passthru_cmd *c) {
    struct key key;
    void *data = (void *)(uintptr_t)c->addr; /* NOLINT: as the kernel gets it */
    name_key(disk, c, &key);
    if (disk->cut) {
        return MC_NVME_NOT_COMPLETED;
    }
    switch (c->opcode) {
    case 0x00:
        return flush(disk);
    case 0x01:
        return store(disk, &key, data, c->data_len);
    case 0x02:
        return retrieve(disk, &key, data, c->data_len, &c->result);
    case 0x06:
        return list(disk, &key, (c->cdw11 & 0xff) == 0, data, c->data_len);
    case 0x10:
        return delete (disk, &key);
    default:
        return 0x01; /* invalid opcode */
    }
}

int __real_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    struct sim_disk *disk = sim_disk_behind(fd);
    if (disk == NULL || request != NVME_IOCTL_IO_CMD) {
        return __real_ioctl(fd, request, argument);
    }
    int status = carry_out(disk, argument);
    if (status == MC_NVME_NOT_COMPLETED) {
        errno = ENODEV;
        return -1;
    }
    return status == MC_NVME_OK ? status : status | DO_NOT_RETRY;
}
