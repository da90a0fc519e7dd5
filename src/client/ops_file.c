/*
 * DISK replicas: copies of objects in files of a file system that all clients share, as a master
 * with a root directory wants them. The file holds the value and nothing else; its path is in the
 * replica's descriptor.
 *
 * The client that puts an object writes its file after the object can be read from memory, and
 * tells the master; a reader turns to the file when nothing else is left. Paths are taken only
 * below the directory that the master named when the store was opened. A file is complete when it
 * is at its place: it is written beside it and renamed. Our master names each path once, so that a
 * late rename replaces nothing (master/files.c).
 */
#include "client/ops_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "te/device.h"

void mc_ops_find_files(struct mc_ops *ops) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_e_storage answer = {0};
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_GetStorageConfig, NULL, &answer,
                                       mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    struct mc_str fsdir = answer.value.fsdir;
    if (status == MC_OK && answer.error == 0 && fsdir.len > 0) {
        char *directory = mc_str_dup(fsdir);
        char *root = mc_str_dup(fsdir);
        char *slash = strrchr(root, '/');
        if (slash != NULL && slash != root) {
            *slash = '\0';
        }
        if (access(root, R_OK | W_OK | X_OK) == 0) {
            ops->fsdir = mc_str_from(directory);
            mc_info("copies of objects are kept in files: directory=%s", directory);
        } else {
            mc_warn("the master's directory for copies of objects cannot be used here: "
                    "directory=%s errno=%d reason=\"%s\"",
                    directory, errno, strerror(errno));
            free(directory);
        }
        free(root);
    }
    mc_ops_end(ops, call);
}

bool mc_ops_file_allowed(const struct mc_ops *ops, struct mc_str path) {
    const struct mc_str *dir = &ops->fsdir;
    return dir->len > 0 && path.len > dir->len + 1 && path.len < MC_OPS_PATH_MAX &&
           memcmp(path.ptr, dir->ptr, dir->len) == 0 && path.ptr[dir->len] == '/' &&
           memchr(path.ptr, '\0', path.len) == NULL &&
           memmem(path.ptr, path.len, "/../", 4) == NULL;
}

/* Upstream's next part is one letter, ours a number of 16 digits. */
bool mc_ops_file_own_name(const struct mc_ops *ops, struct mc_str path) {
    return memchr(path.ptr + ops->fsdir.len + 1, '/',
                  mc_min_u64(2, path.len - ops->fsdir.len - 1)) == NULL;
}

bool mc_ops_file_delete(struct mc_ops *ops, struct mc_str path) {
    char *name = mc_str_dup(path);
    bool allowed = mc_ops_file_allowed(ops, path);
    bool gone = allowed && (unlink(name) == 0 || errno == ENOENT);
    if (allowed && !gone) {
        mc_warn_limited("the copy of an object that is gone cannot be deleted: path=%s errno=%d "
                        "reason=\"%s\"",
                        name, errno, strerror(errno));
    }
    free(name);
    return gone;
}

/* The directories between the master's and the file. */
static bool make_directories(const struct mc_ops *ops, char *path) {
    bool good = true;
    for (char *at = path + ops->fsdir.len; at != NULL && good; at = strchr(at + 1, '/')) {
        *at = '\0';
        good = mkdir(path, 0755) == 0 || errno == EEXIST;
        *at = '/';
    }
    return good;
}

static bool write_all(int fd, const char *at, size_t left) {
    while (left > 0) {
        ssize_t done = write(fd, at, left);
        if (done < 0 && errno != EINTR) {
            return false;
        }
        at += done > 0 ? done : 0;
        left -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

/* The kernel cannot reach device memory: a copy of it is written. */
static bool write_slice(int fd, const char *at, size_t length) {
    if (mc_device_is_host(at)) {
        return write_all(fd, at, length);
    }
    char *copy = mc_alloc(length);
    errno = EFAULT;
    bool good = mc_device_move(copy, at, length) == MC_OK && write_all(fd, copy, length);
    free(copy);
    return good;
}

static bool write_slices(int fd, const struct mc_slice *slices, size_t count, uint64_t length) {
    for (size_t i = 0; i < count && length > 0; i++) {
        size_t part = mc_min_u64(slices[i].length, length);
        if (part > 0 && !write_slice(fd, slices[i].ptr, part)) {
            return false;
        }
        length -= part;
    }
    return fdatasync(fd) == 0;
}

enum mc_status mc_ops_file_write(struct mc_ops *ops, struct mc_str path,
                                 const struct mc_slice *slices, size_t count, uint64_t length) {
    struct mc_buf temporary = {0};
    const char *step = "make directories";
    int fd = -1;
    if (!mc_ops_file_allowed(ops, path)) {
        mc_warn_limited("the master names a file outside of its directory: path=%.*s",
                        (int)path.len, path.ptr);
        return MC_INVALID_REPLICA;
    }
    char *name = mc_str_dup(path);
    if (mc_ops_file_own_name(ops, path)) { /* nobody else writes it */
        mc_buf_printf(&temporary, "%s.tmp", name);
    } else {
        mc_buf_printf(&temporary, "%s.tmp.%d.%d", name, (int)getpid(), (int)gettid());
    }
    bool good = make_directories(ops, name);
    if (good) {
        step = "open";
        fd = open(mc_buf_cstr(&temporary), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        good = fd >= 0;
    }
    if (good) {
        step = "write";
        good = write_slices(fd, slices, count, length) && rename(temporary.data, name) == 0;
    }
    if (!good) {
        int error = errno;
        mc_warn_limited("a copy of an object cannot be written: path=%s step=\"%s\" errno=%d "
                        "reason=\"%s\"",
                        name, step, error, strerror(error));
        (void)unlink(mc_buf_cstr(&temporary));
        if (mc_ops_file_own_name(ops, path)) {
            (void)unlink(name); /* over a network a rename may be done and answered as failed */
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    mc_buf_free(&temporary);
    free(name);
    return good ? MC_OK : MC_FILE_WRITE_FAIL;
}

static bool read_all(int fd, char *at, uint64_t length, uint64_t offset) {
    for (uint64_t done = 0; done < length;) {
        ssize_t got = pread(fd, at + done, length - done, (off_t)(offset + done));
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        done += got > 0 ? (uint64_t)got : 0;
    }
    return true;
}

static bool read_piece(int fd, const struct mc_store_range *piece) {
    if (mc_device_is_host(piece->ptr)) {
        return read_all(fd, piece->ptr, piece->length, piece->offset);
    }
    char *copy = mc_alloc(piece->length);
    bool good = read_all(fd, copy, piece->length, piece->offset) &&
                mc_device_move(piece->ptr, copy, piece->length) == MC_OK;
    free(copy);
    return good;
}

void mc_ops_file_read(struct mc_ops *ops, struct mc_ops_disk_read *read) {
    read->done = true;
    read->lost = false;
    read->status = MC_INVALID_REPLICA;
    if (!mc_ops_file_allowed(ops, read->file)) {
        return;
    }
    char *name = mc_str_dup(read->file);
    struct stat info;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    bool good = fd >= 0 && fstat(fd, &info) == 0;
    int error = errno;
    /* Not one that is missing: the file system may not be the others' here (not mounted, and then
     * its directories were made below the mount point by a put of ours). */
    read->lost = good && (uint64_t)info.st_size != read->size;
    good = good && !read->lost;
    for (size_t i = 0; i < read->piece_count && good; i++) {
        good = read_piece(fd, &read->pieces[i]);
    }
    read->status = good ? MC_OK : MC_FILE_READ_FAIL;
    if (!good) {
        mc_warn_limited("a copy of an object cannot be read: path=%s bytes=%llu lost=%d errno=%d",
                        name, (unsigned long long)read->size, read->lost, fd < 0 ? error : errno);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(name);
}

/* The word names the key alone, so it is said once: said again it would be of whatever was put
 * meanwhile. An object that is put or upserted between the answer that the file was still named in
 * and this word loses its file all the same; its memory stays. */
void mc_ops_files_lost(struct mc_ops *ops, struct mc_str *keys, size_t count,
                       uint64_t deadline_ns) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_a_batch_evict_disk args = {.client = ops->client,
                                         .keys = {keys, count},
                                         .tenant = ops->tenant,
                                         .type = MC_REPLICA_DISK};
    struct mc_vec answers;
    enum mc_status status = mc_ops_rpc_batch(ops, call, MC_RPC_BatchEvictDiskReplica, &args,
                                             &answers, count, deadline_ns, MC_OPS_ONCE);
    for (size_t i = 0; i < count; i++) {
        const struct mw_e_void *answer = answers.items;
        enum mc_status told = status == MC_OK ? mc_ops_status(answer[i].error) : status;
        mc_metric_add(&ops->counters.files_lost, told == MC_OK);
        mc_warn_limited("a copy of an object is damaged: key=%.*s, and the master knows: %s",
                        (int)keys[i].len, keys[i].ptr, mc_status_name(told));
    }
    mc_ops_end(ops, call);
}
