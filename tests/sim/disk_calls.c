/*
 * The system calls of the simulated disk: each __wrap_X takes the place of X in the programs of
 * tests/sim, serves what lies below SIM_DISK_ROOT, and hands all else to the kernel. See disk.h.
 *
 * Descriptors begin at FD_BASE, where no kernel's do.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#include "sim/disk_private.h"

#define FD_BASE   (1 << 24)
#define DISKS_MAX 8

/* Of the one thread that runs simulations. */
static struct sim_disk *disks[DISKS_MAX];

void sim_disk_attach(struct sim_disk *disk) {
    while (disks[disk->number] != NULL) {
        disk->number++;
        MC_ASSERT(disk->number < DISKS_MAX);
    }
    disks[disk->number] = disk;
}

void sim_disk_detach(struct sim_disk *disk) {
    disks[disk->number] = NULL;
}

/* ---- finding ---- */

static bool ours(const char *path) {
    return strncmp(path, SIM_DISK_ROOT, strlen(SIM_DISK_ROOT)) == 0;
}

static struct sim_disk *disk_of(const char *path) {
    for (unsigned i = 0; i < DISKS_MAX; i++) {
        size_t len = disks[i] != NULL ? strlen(disks[i]->root) : 0;
        if (len > 0 && strncmp(path, disks[i]->root, len) == 0 &&
            (path[len] == '\0' || path[len] == '/')) {
            return disks[i];
        }
    }
    MC_ASSERT(!"a path below the root of simulated disks is on none of them");
}

static int failed(int error) {
    errno = error;
    return -1;
}

/* An operation on names begins; false: there is no power, or nobody any more. */
static bool begin(struct sim_disk *disk) {
    bool lives = disk->pause == NULL || disk->pause(disk->pause_ctx);
    (void)sim_disk_step(disk, 0);
    return lives && !disk->cut;
}

/* The open file behind a descriptor; NULL with errno set. */
static struct sim_open *open_of(int fd, struct sim_disk **disk) {
    int index = fd - FD_BASE;
    *disk = index / SIM_DISK_OPEN < DISKS_MAX ? disks[index / SIM_DISK_OPEN] : NULL;
    struct sim_open *open = *disk != NULL ? &(*disk)->open[index % SIM_DISK_OPEN] : NULL;
    if (open == NULL || open->file == NULL) {
        errno = EBADF;
        return NULL;
    }
    return open;
}

struct sim_disk *sim_disk_behind(int fd) {
    struct sim_disk *disk = NULL;
    return fd >= FD_BASE && open_of(fd, &disk) != NULL ? disk : NULL;
}

static bool parent_is_there(const struct sim_disk *disk, const char *path) {
    char *parent = mc_strdup(path);
    *strrchr(parent, '/') = '\0';
    size_t i = sim_disk_find(disk, parent);
    free(parent);
    return i < disk->name_count && disk->names[i].file->directory;
}

static bool fits(struct sim_disk *disk, const struct sim_file *file, uint64_t end) {
    uint64_t grown = (end + SIM_DISK_BLOCK - 1) / SIM_DISK_BLOCK * SIM_DISK_BLOCK;
    uint64_t held = (mc_max_u64(file->size, file->reserved) + SIM_DISK_BLOCK - 1) / SIM_DISK_BLOCK *
                    SIM_DISK_BLOCK;
    bool good = grown <= held || sim_disk_used(disk) + (grown - held) <= disk->capacity;
    disk->counts.full += !good;
    return good;
}

/* ---- names ---- */

int __real_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (!ours(path)) {
        return __real_open64(path, flags, mode);
    }
    struct sim_disk *disk = disk_of(path);
    if (!begin(disk)) {
        return failed(EIO);
    }
    size_t i = sim_disk_find(disk, path);
    bool there = i < disk->name_count;
    if (!there && ((flags & O_CREAT) == 0 || !parent_is_there(disk, path))) {
        return failed(ENOENT);
    }
    if (there && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) {
        return failed(EEXIST);
    }
    unsigned slot = 0;
    while (slot < SIM_DISK_OPEN && disk->open[slot].file != NULL) {
        slot++;
    }
    if (slot == SIM_DISK_OPEN) {
        return failed(EMFILE);
    }
    struct sim_file *file = there ? disk->names[i].file : sim_disk_create(disk, path, false);
    if (there && (flags & O_TRUNC) != 0) {
        sim_file_resize(file, 0);
    }
    file->refs++;
    disk->open[slot] = (struct sim_open){.file = file, .writable = (flags & O_ACCMODE) != O_RDONLY};
    return FD_BASE + (int)(disk->number * SIM_DISK_OPEN + slot);
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_close(fd);
    }
    struct sim_open *open = open_of(fd, &disk);
    if (open == NULL) {
        return -1;
    }
    sim_file_unref(open->file);
    *open = (struct sim_open){0};
    return 0;
}

int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path) {
    if (!ours(path)) {
        return __real_unlink(path);
    }
    struct sim_disk *disk = disk_of(path);
    if (!begin(disk)) {
        return failed(EIO);
    }
    size_t i = sim_disk_find(disk, path);
    if (i == disk->name_count) {
        return failed(ENOENT);
    }
    if (disk->names[i].file->directory) {
        return failed(EISDIR);
    }
    sim_disk_unlink(disk, path);
    return 0;
}

static bool is_empty(const struct sim_disk *disk, const char *path) {
    size_t len = strlen(path);
    for (size_t i = 0; i < disk->name_count; i++) {
        const char *name = disk->names[i].path;
        if (strncmp(name, path, len) == 0 && name[len] == '/') {
            return false;
        }
    }
    return true;
}

int __real_rmdir(const char *path);
int __wrap_rmdir(const char *path);
int __wrap_rmdir(const char *path) {
    if (!ours(path)) {
        return __real_rmdir(path);
    }
    struct sim_disk *disk = disk_of(path);
    if (!begin(disk)) {
        return failed(EIO);
    }
    if (sim_disk_find(disk, path) == disk->name_count) {
        return failed(ENOENT);
    }
    if (!is_empty(disk, path)) {
        return failed(ENOTEMPTY);
    }
    sim_disk_unlink(disk, path);
    return 0;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    if (!ours(from)) {
        return __real_rename(from, to);
    }
    struct sim_disk *disk = disk_of(from);
    if (!begin(disk) || sim_disk_fails(disk, disk->faults.write)) {
        return failed(EIO);
    }
    if (sim_disk_find(disk, from) == disk->name_count || !parent_is_there(disk, to)) {
        return failed(ENOENT);
    }
    size_t len = strlen(to);
    if (disk->keeps_meta && len > 5 && strcmp(to + len - 5, ".meta") == 0 &&
        sim_disk_find(disk, to) < disk->name_count) {
        sim_disk_unlink(disk, from);
    } else {
        sim_disk_rename(disk, from, to);
    }
    return 0;
}

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode) {
    if (!ours(path)) {
        return __real_mkdir(path, mode);
    }
    struct sim_disk *disk = disk_of(path);
    if (!begin(disk)) {
        return failed(EIO);
    }
    if (sim_disk_find(disk, path) < disk->name_count) {
        return failed(EEXIST);
    }
    if (!parent_is_there(disk, path)) {
        return failed(ENOENT);
    }
    sim_disk_create(disk, path, true);
    return 0;
}

/* ---- questions ---- */

static void describe(const struct sim_file *file, struct stat *info) {
    uint64_t bytes = mc_max_u64(file->size, file->reserved);
    memset(info, 0, sizeof(*info));
    info->st_mode = file->directory ? S_IFDIR | 0755 : S_IFREG | 0644;
    info->st_size = (off_t)file->size;
    info->st_blksize = SIM_DISK_BLOCK;
    info->st_blocks =
        (blkcnt_t)((bytes + SIM_DISK_BLOCK - 1) / SIM_DISK_BLOCK * (SIM_DISK_BLOCK / 512));
}

int __real_stat64(const char *path, struct stat *info);
int __wrap_stat64(const char *path, struct stat *info);
int __wrap_stat64(const char *path, struct stat *info) {
    if (!ours(path)) {
        return __real_stat64(path, info);
    }
    struct sim_disk *disk = disk_of(path);
    size_t i = sim_disk_find(disk, path);
    if (disk->cut) {
        return failed(EIO);
    }
    if (i == disk->name_count) {
        return failed(ENOENT);
    }
    describe(disk->names[i].file, info);
    return 0;
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode) {
    struct stat info;
    return ours(path) ? __wrap_stat64(path, &info) : __real_access(path, mode);
}

int __real_fstat64(int fd, struct stat *info);
int __wrap_fstat64(int fd, struct stat *info);
int __wrap_fstat64(int fd, struct stat *info) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_fstat64(fd, info);
    }
    const struct sim_open *open = open_of(fd, &disk);
    if (open == NULL) {
        return -1;
    }
    describe(open->file, info);
    return 0;
}

int __real_statvfs64(const char *path, struct statvfs *info);
int __wrap_statvfs64(const char *path, struct statvfs *info);
int __wrap_statvfs64(const char *path, struct statvfs *info) {
    if (!ours(path)) {
        return __real_statvfs64(path, info);
    }
    struct sim_disk *disk = disk_of(path);
    uint64_t used = sim_disk_used(disk);
    memset(info, 0, sizeof(*info));
    info->f_bsize = info->f_frsize = SIM_DISK_BLOCK;
    info->f_blocks = disk->seen / SIM_DISK_BLOCK;
    info->f_bfree = info->f_bavail = (disk->seen > used ? disk->seen - used : 0) / SIM_DISK_BLOCK;
    return 0;
}

struct listing { /* what a DIR * of ours points to */
    struct listing *next;
    struct sim_disk *disk;
    char *path;
    size_t at;
    struct dirent entry;
};
static struct listing *listings; /* open ones */

DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path) {
    if (!ours(path)) {
        return __real_opendir(path);
    }
    struct sim_disk *disk = disk_of(path);
    size_t i = sim_disk_find(disk, path);
    if (disk->cut || i == disk->name_count) {
        errno = disk->cut ? EIO : ENOENT;
        return NULL;
    }
    struct listing *listing = mc_zalloc(sizeof(*listing));
    *listing = (struct listing){.next = listings, .disk = disk, .path = mc_strdup(path)};
    listings = listing;
    return (DIR *)listing;
}

static struct listing **find_listing(const DIR *directory) {
    struct listing **at = &listings;
    while (*at != NULL && (const DIR *)*at != directory) {
        at = &(*at)->next;
    }
    return at;
}

struct dirent *__real_readdir64(DIR *directory);
struct dirent *__wrap_readdir64(DIR *directory);
struct dirent *__wrap_readdir64(DIR *directory) {
    struct listing *listing = *find_listing(directory);
    if (listing == NULL) {
        return __real_readdir64(directory);
    }
    size_t len = strlen(listing->path);
    while (listing->at < listing->disk->name_count) {
        const struct sim_name *name = &listing->disk->names[listing->at++];
        if (strncmp(name->path, listing->path, len) == 0 && name->path[len] == '/' &&
            strchr(name->path + len + 1, '/') == NULL) {
            snprintf(listing->entry.d_name, sizeof(listing->entry.d_name), "%s",
                     name->path + len + 1);
            listing->entry.d_type = name->file->directory ? DT_DIR : DT_REG;
            return &listing->entry;
        }
    }
    return NULL;
}

int __real_closedir(DIR *directory);
int __wrap_closedir(DIR *directory);
int __wrap_closedir(DIR *directory) {
    struct listing **at = find_listing(directory), *listing = *at;
    if (listing == NULL) {
        return __real_closedir(directory);
    }
    *at = listing->next;
    free(listing->path);
    free(listing);
    return 0;
}

/* ---- reading ---- */

static ssize_t read_at(struct sim_disk *disk, const struct sim_file *file, void *buffer, size_t len,
                       uint64_t offset) {
    (void)sim_disk_step(disk, len);
    disk->counts.reads++;
    if (disk->cut || sim_disk_fails(disk, disk->faults.read)) {
        return failed(EIO);
    }
    uint64_t n = offset < file->size ? mc_min_u64(len, file->size - offset) : 0;
    if (n > 0) {
        memcpy(buffer, file->seen + offset, n);
    }
    return (ssize_t)n;
}

ssize_t __real_pread64(int fd, void *buffer, size_t len, off_t offset);
ssize_t __wrap_pread64(int fd, void *buffer, size_t len, off_t offset);
ssize_t __wrap_pread64(int fd, void *buffer, size_t len, off_t offset) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_pread64(fd, buffer, len, offset);
    }
    const struct sim_open *open = open_of(fd, &disk);
    return open != NULL ? read_at(disk, open->file, buffer, len, (uint64_t)offset) : -1;
}

ssize_t __real_read(int fd, void *buffer, size_t len);
ssize_t __wrap_read(int fd, void *buffer, size_t len);
ssize_t __wrap_read(int fd, void *buffer, size_t len) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_read(fd, buffer, len);
    }
    struct sim_open *open = open_of(fd, &disk);
    ssize_t n = open != NULL ? read_at(disk, open->file, buffer, len, open->position) : -1;
    if (n > 0) {
        open->position += (uint64_t)n;
    }
    return n;
}

/* ---- writing ---- */

static ssize_t write_at(struct sim_disk *disk, const struct sim_open *open, const void *bytes,
                        size_t len, uint64_t offset) {
    if (disk->cut) {
        return failed(EIO);
    }
    if (!open->writable) {
        return failed(EBADF);
    }
    uint64_t torn = sim_disk_step(disk, len);
    disk->counts.writes++;
    if (disk->cut) {
        sim_file_write(open->file, offset, bytes, torn);
        return failed(EIO);
    }
    if (sim_disk_fails(disk, disk->faults.write)) {
        return failed(EIO);
    }
    if (!fits(disk, open->file, offset + len)) {
        return failed(ENOSPC);
    }
    sim_file_write(open->file, offset, bytes, len);
    return (ssize_t)len;
}

ssize_t __real_pwrite64(int fd, const void *bytes, size_t len, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t len, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t len, off_t offset) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_pwrite64(fd, bytes, len, offset);
    }
    const struct sim_open *open = open_of(fd, &disk);
    return open != NULL ? write_at(disk, open, bytes, len, (uint64_t)offset) : -1;
}

ssize_t __real_write(int fd, const void *bytes, size_t len);
ssize_t __wrap_write(int fd, const void *bytes, size_t len);
ssize_t __wrap_write(int fd, const void *bytes, size_t len) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_write(fd, bytes, len);
    }
    struct sim_open *open = open_of(fd, &disk);
    ssize_t n = open != NULL ? write_at(disk, open, bytes, len, open->position) : -1;
    if (n > 0) {
        open->position += (uint64_t)n;
    }
    return n;
}

ssize_t __real_writev(int fd, const struct iovec *parts, int count);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int count);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int count) {
    ssize_t done = 0;
    if (fd < FD_BASE) {
        return __real_writev(fd, parts, count);
    }
    for (int i = 0; i < count; i++) {
        ssize_t n = __wrap_write(fd, parts[i].iov_base, parts[i].iov_len);
        if (n < 0) {
            return done > 0 ? done : -1;
        }
        done += n;
    }
    return done;
}

int __real_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_ftruncate64(fd, size);
    }
    const struct sim_open *open = open_of(fd, &disk);
    if (open == NULL || disk->cut) {
        return open != NULL ? failed(EIO) : -1;
    }
    if (!fits(disk, open->file, (uint64_t)size)) {
        return failed(ENOSPC);
    }
    sim_file_resize(open->file, (uint64_t)size);
    return 0;
}

int __real_fallocate64(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t len) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_fallocate64(fd, mode, offset, len);
    }
    const struct sim_open *open = open_of(fd, &disk);
    uint64_t end = (uint64_t)offset + (uint64_t)len;
    if (open == NULL || disk->cut) {
        return open != NULL ? failed(EIO) : -1;
    }
    if ((mode & ~FALLOC_FL_KEEP_SIZE) != 0) {
        return failed(EOPNOTSUPP);
    }
    if (!fits(disk, open->file, end)) {
        return failed(ENOSPC);
    }
    open->file->reserved = mc_max_u64(open->file->reserved, end);
    if (mode == 0 && end > open->file->size) {
        sim_file_resize(open->file, end);
    }
    return 0;
}

/* ---- making it last ---- */

static int sync_file(int fd) {
    struct sim_disk *disk;
    const struct sim_open *open = open_of(fd, &disk);
    if (open == NULL) {
        return -1;
    }
    (void)sim_disk_step(disk, 0);
    disk->counts.syncs++;
    if (disk->cut || sim_disk_fails(disk, disk->faults.sync)) {
        return failed(EIO);
    }
    if (open->file->directory) {
        sim_disk_sync_names(disk);
    } else {
        sim_file_sync(open->file);
    }
    return 0;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    return fd < FD_BASE ? __real_fsync(fd) : sync_file(fd);
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd) {
    return fd < FD_BASE ? __real_fdatasync(fd) : sync_file(fd);
}

int __real_sync_file_range(int fd, off_t offset, off_t len, unsigned flags);
int __wrap_sync_file_range(int fd, off_t offset, off_t len, unsigned flags);
int __wrap_sync_file_range(int fd, off_t offset, off_t len, unsigned flags) {
    /* a hint that makes nothing last */
    return fd < FD_BASE ? __real_sync_file_range(fd, offset, len, flags) : 0;
}

/* ---- the rest ---- */

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_flock(fd, operation);
    }
    struct sim_open *open = open_of(fd, &disk);
    if (open == NULL) {
        return -1;
    }
    for (unsigned i = 0; i < SIM_DISK_OPEN && (operation & LOCK_EX) != 0; i++) {
        if (&disk->open[i] != open && disk->open[i].file == open->file && disk->open[i].locked) {
            return failed(EWOULDBLOCK);
        }
    }
    open->locked = (operation & LOCK_UN) == 0;
    return 0;
}

int __real_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_fsetxattr(fd, name, value, len, flags);
    }
    const struct sim_open *open = open_of(fd, &disk);
    if (open == NULL || disk->cut) {
        return open != NULL ? failed(EIO) : -1;
    }
    for (unsigned i = 0; i < SIM_FILE_ATTRS && len <= sizeof(open->file->attrs[i].value); i++) {
        char **own = &open->file->attrs[i].name;
        if (*own == NULL || strcmp(*own, name) == 0) {
            *own = *own != NULL ? *own : mc_strdup(name);
            memcpy(open->file->attrs[i].value, value, len);
            open->file->attrs[i].len = len;
            return 0;
        }
    }
    return failed(ENOSPC);
}

ssize_t __real_fgetxattr(int fd, const char *name, void *value, size_t len);
ssize_t __wrap_fgetxattr(int fd, const char *name, void *value, size_t len);
ssize_t __wrap_fgetxattr(int fd, const char *name, void *value, size_t len) {
    struct sim_disk *disk;
    if (fd < FD_BASE) {
        return __real_fgetxattr(fd, name, value, len);
    }
    const struct sim_open *open = open_of(fd, &disk);
    if (open == NULL) {
        return -1;
    }
    for (unsigned i = 0; i < SIM_FILE_ATTRS && open->file->attrs[i].name != NULL; i++) {
        if (strcmp(open->file->attrs[i].name, name) == 0) {
            size_t have = open->file->attrs[i].len;
            if (have <= len) {
                memcpy(value, open->file->attrs[i].value, have);
            }
            return have <= len ? (ssize_t)have : failed(ERANGE);
        }
    }
    return failed(ENODATA);
}

/* The kernel's ring cannot reach a simulated disk; io/ then reads and writes one by one. */
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags) {
    return -ENOSYS;
}
