/*
 * Whole-file helpers: opening with or without O_DIRECT, reading a small file, replacing one so that
 * a crash leaves the old or the new content and nothing between. See io/file.h; the ring is in
 * file_ring.c.
 */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

#define FILE_MODE 0644
#define READ_STEP (64u << 10)

enum mc_status mc_file_open(const char *path, int flags, bool want_direct, int *fd_out,
                            bool *direct) {
    int fd = -1;
    bool is_direct = want_direct;
    if (want_direct) {
        fd = open(path, flags | O_CLOEXEC | O_DIRECT, FILE_MODE);
        is_direct = fd >= 0 || errno != EINVAL; /* EINVAL: this file system has no O_DIRECT */
    }
    if (!is_direct) {
        fd = open(path, flags | O_CLOEXEC, FILE_MODE);
    }
    if (fd < 0 && errno == ENOENT) {
        return MC_FILE_NOT_FOUND; /* an answer: callers ask whether a file is there */
    }
    if (fd < 0) {
        mc_error("cannot open a file: path=%s errno=%d reason=\"%s\"", path, errno,
                 strerror(errno));
        return MC_FILE_OPEN_FAIL;
    }
    *fd_out = fd;
    *direct = is_direct;
    return MC_OK;
}

static enum mc_status read_to_end(int fd, size_t max_bytes, struct mc_buf *out) {
    for (;;) {
        mc_buf_reserve(out, READ_STEP);
        ssize_t got = read(fd, out->data + out->len, READ_STEP);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return MC_FILE_READ_FAIL;
        }
        if ((size_t)got > max_bytes - out->len) {
            return MC_ERR_LIMIT;
        }
        if (got == 0) {
            return MC_OK;
        }
        out->len += (size_t)got;
    }
}

enum mc_status mc_file_read_all(const char *path, size_t max_bytes, struct mc_buf *out) {
    int fd;
    bool direct;
    mc_buf_clear(out);
    MC_TRY(mc_file_open(path, O_RDONLY, false, &fd, &direct));
    enum mc_status status = read_to_end(fd, max_bytes, out);
    if (status == MC_FILE_READ_FAIL) {
        mc_error("cannot read a file: path=%s errno=%d reason=\"%s\"", path, errno,
                 strerror(errno));
    } else if (status == MC_ERR_LIMIT) {
        mc_error("a file is too large: path=%s limit=%zu", path, max_bytes);
    }
    close(fd);
    if (status != MC_OK) {
        mc_buf_clear(out);
    }
    return status;
}

static bool write_and_sync(int fd, struct mc_str content) {
    size_t done = 0;
    while (done < content.len) {
        ssize_t put = write(fd, content.ptr + done, content.len - done);
        if (put < 0 && errno != EINTR) {
            return false;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return fsync(fd) == 0;
}

/* Makes the rename itself durable. A file system that cannot sync a directory says EINVAL and needs
 * none. */
static bool sync_directory_of(const char *path) {
    char *directory = mc_strdup(path);
    char *slash = strrchr(directory, '/');
    if (slash != NULL) {
        slash[slash == directory ? 1 : 0] = '\0';
    }
    int fd = open(slash != NULL ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    free(directory);
    errno = error;
    return good;
}

enum mc_status mc_file_replace(const char *path, struct mc_str content) {
    struct mc_buf temporary = {0};
    const char *step = "open";
    mc_buf_printf(&temporary, "%s.tmp.%d.%d", path, (int)getpid(), (int)gettid());
    mc_buf_cstr(&temporary);
    int fd = open(temporary.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE);
    if (fd < 0) {
        goto fail;
    }
    step = "write";
    bool written = write_and_sync(fd, content);
    int error = errno;
    close(fd);
    errno = error;
    if (!written) {
        goto fail_unlink;
    }
    step = "rename";
    if (rename(temporary.data, path) != 0) {
        goto fail_unlink;
    }
    step = "sync directory";
    if (!sync_directory_of(path)) {
        goto fail;
    }
    mc_buf_free(&temporary);
    return MC_OK;

fail_unlink:
    error = errno;
    unlink(temporary.data);
    errno = error;
fail:
    mc_error("cannot replace a file: path=%s step=\"%s\" errno=%d reason=\"%s\"", path, step, errno,
             strerror(errno));
    mc_buf_free(&temporary);
    return MC_FILE_WRITE_FAIL;
}

enum mc_status mc_file_sync_names(const char *path) {
    if (sync_directory_of(path)) {
        return MC_OK;
    }
    mc_error("the directory of a file cannot be synced: path=%s errno=%d reason=\"%s\"", path,
             errno, strerror(errno));
    return MC_FILE_WRITE_FAIL;
}
