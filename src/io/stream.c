/*
 * Streams: the plain one, and what waits on any. See io.h. A TLS stream is another table of these
 * three functions (io/tls.c).
 *
 * "Would block" is MC_OK with *n == 0, so the end of input needs a status of its own; a reader that
 * asks for zero bytes gets zero bytes, not an end that is not there.
 */
#include "io/private.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"

static enum mc_status socket_failed(int error, const char *step) {
    switch (error) {
    case EAGAIN:
        return MC_OK;
    case ECONNRESET:
    case EPIPE:
    case ESHUTDOWN:
        return MC_ERR_CLOSED;
    default:
        mc_warn_limited("socket failed: step=%s errno=%d reason=\"%s\"", step, error,
                        strerror(error));
        return MC_ERR_IO;
    }
}

static bool asks_for_bytes(const struct iovec *iov, int count) {
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len > 0) {
            return true;
        }
    }
    return false;
}

/* ---- gathering ----
 *
 * For a page and its headers one copy here is cheaper than handing the kernel a list: sendmsg and
 * recvmsg of two pieces take about half a microsecond more each than send and recv of one. */

#define GATHER_BYTES 4352

/* Whether the pieces are several, and so short that they go through one buffer. */
static bool worth_gathering(const struct iovec *iov, int count) {
    size_t total = 0;
    for (int i = 0; i < count && total <= GATHER_BYTES; i++) {
        total += mc_min_u64(iov[i].iov_len, GATHER_BYTES + 1);
    }
    return count > 1 && total <= GATHER_BYTES;
}

static size_t gather(const struct iovec *iov, int count, char *out) {
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        memcpy(out + total, iov[i].iov_base, iov[i].iov_len);
        total += iov[i].iov_len;
    }
    return total;
}

static void scatter(const struct iovec *iov, const char *from, size_t len) {
    for (size_t part; len > 0; iov++, from += part, len -= part) {
        part = mc_min_u64(iov->iov_len, len);
        memcpy(iov->iov_base, from, part);
    }
}

static ssize_t receive_pieces(int fd, const struct iovec *iov, int count, int flags) {
    if (worth_gathering(iov, count)) {
        char bytes[GATHER_BYTES];
        size_t room = 0;
        for (int i = 0; i < count; i++) {
            room += iov[i].iov_len;
        }
        ssize_t got = recv(fd, bytes, room, flags);
        scatter(iov, bytes, got > 0 ? (size_t)got : 0);
        return got;
    }
    struct msghdr message = {.msg_iov = (struct iovec *)iov,
                             .msg_iovlen = (size_t)(count < IOV_MAX ? count : IOV_MAX)};
    return recvmsg(fd, &message, flags);
}

static ssize_t send_pieces(int fd, const struct iovec *iov, int count, int flags) {
    if (worth_gathering(iov, count)) {
        char bytes[GATHER_BYTES];
        return send(fd, bytes, gather(iov, count, bytes), flags);
    }
    struct msghdr message = {.msg_iov = (struct iovec *)iov,
                             .msg_iovlen = (size_t)(count < IOV_MAX ? count : IOV_MAX)};
    return sendmsg(fd, &message, flags);
}

/* ---- reading and writing ---- */

/* flags: MSG_DONTWAIT, or 0 to sleep as long as the socket's own time limit says. */
enum mc_status mc_socket_receive(int fd, const struct iovec *iov, int count, int flags, size_t *n) {
    ssize_t got;
    do {
        got = count == 1 ? recv(fd, iov->iov_base, iov->iov_len, flags)
                         : receive_pieces(fd, iov, count, flags);
    } while (got < 0 && errno == EINTR);
    if (got == 0 && asks_for_bytes(iov, count)) {
        return MC_ERR_CLOSED;
    }
    if (got < 0) {
        MC_TRY(socket_failed(errno, "read"));
        got = 0;
    }
    *n = (size_t)got;
    return MC_OK;
}

enum mc_status mc_socket_readv(int fd, const struct iovec *iov, int count, size_t *n) {
    return mc_socket_receive(fd, iov, count, MSG_DONTWAIT, n);
}

enum mc_status mc_socket_writev(int fd, const struct iovec *iov, int count, size_t *n) {
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    ssize_t put;
    do { /* never writev(2): MSG_NOSIGNAL keeps a dead peer from killing the process */
        put = count == 1 ? send(fd, iov->iov_base, iov->iov_len, flags)
                         : send_pieces(fd, iov, count, flags);
    } while (put < 0 && errno == EINTR);
    if (put < 0) {
        MC_TRY(socket_failed(errno, "write"));
        put = 0;
    }
    *n = (size_t)put;
    return MC_OK;
}

static enum mc_status plain_readv(struct mc_stream *s, const struct iovec *iov, int count,
                                  size_t *n) {
    return mc_socket_readv(s->fd, iov, count, n);
}

static enum mc_status plain_writev(struct mc_stream *s, const struct iovec *iov, int count,
                                   size_t *n) {
    return mc_socket_writev(s->fd, iov, count, n);
}

static void plain_close(struct mc_stream *s) {
    if (s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

static const struct mc_stream_ops plain_ops = {plain_readv, plain_writev, plain_close};

void mc_stream_plain(struct mc_stream *s, int fd) {
    *s = (struct mc_stream){.ops = &plain_ops, .fd = fd};
}

bool mc_stream_is_plain(const struct mc_stream *s) {
    return s->ops == &plain_ops;
}

/* ---- waiting ---- */

void mc_stream_sleep_in_reads(struct mc_stream *s) {
    MC_ASSERT(mc_stream_is_plain(s));
    mc_sleep_in_reads(s->fd);
    mc_spin_init(&s->spin);
}

enum mc_status mc_stream_recv_once(struct mc_stream *s, const struct iovec *iov, int iov_count,
                                   size_t *n) {
    *n = 0;
    enum mc_status status = mc_spin_enter() ? mc_spin_read(s, iov, iov_count, n) : MC_OK;
    if (status == MC_OK && *n == 0) {
        status = mc_socket_receive(s->fd, iov, iov_count, 0, n);
    }
    mc_spin_leave();
    return status;
}

static enum mc_status plain_recv_some(struct mc_stream *s, const struct iovec *iov, int iov_count,
                                      uint64_t deadline_ns, size_t *n) {
    *n = 0;
    enum mc_status status = mc_spin_enter() ? mc_spin_read(s, iov, iov_count, n) : MC_OK;
    if (status == MC_OK && *n == 0) {
        status = mc_recv_some(s->fd, iov, iov_count, deadline_ns, n);
    }
    mc_spin_leave();
    return status;
}

enum mc_status mc_stream_recv_some(struct mc_stream *s, const struct iovec *iov, int iov_count,
                                   uint64_t deadline_ns, size_t *n) {
    if (mc_stream_is_plain(s)) {
        return plain_recv_some(s, iov, iov_count, deadline_ns, n);
    }
    for (;;) {
        size_t got = 0;
        MC_TRY(s->ops->readv(s, iov, iov_count, &got));
        if (got > 0) {
            *n = got;
            return MC_OK;
        }
        MC_TRY(mc_wait_ready(s->fd, mc_stream_wants_out(s) ? POLLOUT : POLLIN, deadline_ns));
    }
}

enum mc_status mc_stream_send_all(struct mc_stream *s, const struct iovec *iov, int iov_count,
                                  uint64_t deadline_ns) {
    if (mc_stream_is_plain(s)) {
        return mc_send_all(s->fd, iov, iov_count, deadline_ns);
    }
    for (int i = 0; i < iov_count; i++) {
        for (size_t sent = 0; sent < iov[i].iov_len;) {
            struct iovec rest = {(char *)iov[i].iov_base + sent, iov[i].iov_len - sent};
            size_t n = 0;
            MC_TRY(s->ops->writev(s, &rest, 1, &n));
            sent += n;
            if (sent < iov[i].iov_len) {
                bool in = atomic_load_explicit(&s->wants, memory_order_relaxed) == EPOLLIN;
                MC_TRY(mc_wait_ready(s->fd, in ? POLLIN : POLLOUT, deadline_ns));
            }
        }
    }
    return MC_OK;
}

enum mc_status mc_stream_recv_all(struct mc_stream *s, void *buffer, size_t len,
                                  uint64_t deadline_ns) {
    if (mc_stream_is_plain(s)) {
        return mc_recv_all(s->fd, buffer, len, deadline_ns);
    }
    for (size_t got = 0; got < len;) {
        struct iovec iov = {(char *)buffer + got, len - got};
        size_t n;
        MC_TRY(mc_stream_recv_some(s, &iov, 1, deadline_ns, &n));
        got += n;
    }
    return MC_OK;
}
