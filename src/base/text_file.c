/*
 * Files that people write: configuration, quotas, policies, topologies. See base/base.h.
 *
 * The path is somebody's word, so nothing here waits or grows without a bound: a name that leads to
 * a pipe is given SILENCE_MS for each piece, and what is larger than the caller's limit is refused.
 * A pipe that somebody writes to is as good as a file (a shell's <(command)).
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_STEP  16384
#define SILENCE_MS 5000

static enum mc_status failed(struct mc_buf *why, const char *what, int error) {
    mc_buf_printf(why, "%s: %s", what, strerror(error));
    return MC_FILE_READ_FAIL;
}

/* It has no writer, or one that says nothing. */
static bool is_pipe(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

/* After EAGAIN: MC_OK when there is more, or the end. */
static enum mc_status wait_for_more(int fd, struct mc_buf *why) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int got = poll(&ready, 1, SILENCE_MS);
    if (got < 0 && errno != EINTR) {
        return failed(why, "cannot be read", errno);
    }
    return got != 0 ? MC_OK : failed(why, "cannot be read", ETIMEDOUT);
}

static enum mc_status read_fd(int fd, size_t max_bytes, struct mc_buf *out, struct mc_buf *why) {
    for (;;) {
        mc_buf_reserve(out, READ_STEP);
        ssize_t got = read(fd, out->data + out->len, READ_STEP);
        if (got == 0) {
            return out->len == 0 && is_pipe(fd) ? failed(why, "cannot be read", EPIPE) : MC_OK;
        }
        if (got < 0 && errno == EAGAIN) {
            MC_TRY(wait_for_more(fd, why));
        } else if (got < 0 && errno != EINTR) {
            return failed(why, "cannot be read", errno);
        } else if (got > 0 && (size_t)got > max_bytes - out->len) {
            mc_buf_puts(why, "is larger than ");
            mc_format_size(why, max_bytes);
            return MC_ERR_LIMIT;
        } else if (got > 0) {
            out->len += (size_t)got;
        }
    }
}

enum mc_status mc_text_file_read(const char *path, size_t max_bytes, struct mc_buf *out,
                                 struct mc_buf *why) {
    mc_buf_clear(out);
    mc_buf_clear(why);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    enum mc_status status;
    if (fd < 0) {
        status = errno == ENOENT ? MC_FILE_NOT_FOUND : MC_FILE_OPEN_FAIL;
        (void)failed(why, "cannot be opened", errno);
    } else {
        status = read_fd(fd, max_bytes, out, why);
        close(fd);
    }
    if (status != MC_OK) {
        mc_buf_clear(out);
        mc_buf_cstr(why);
    }
    return status;
}
