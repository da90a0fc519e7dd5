/* Messages between processes of one host: abstract SOCK_SEQPACKET and SOCK_STREAM sockets,
 * descriptors in SCM_RIGHTS, and pidfds. */
#include "io/io.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif
#define BACKLOG 128

static enum mc_status make_address(const char *name, struct sockaddr_un *out, socklen_t *len) {
    size_t name_len = strlen(name);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (name_len == 0 || name_len + 1 > sizeof(out->sun_path)) {
        return MC_ERR_BAD_ADDRESS;
    }
    memcpy(out->sun_path + 1, name, name_len); /* a leading NUL: abstract */
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_len);
    return MC_OK;
}

static enum mc_status listen_as(const char *name, int type, int *out) {
    struct sockaddr_un address;
    socklen_t len;
    MC_TRY(make_address(name, &address, &len));
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, BACKLOG) != 0) {
        enum mc_status status = errno == EADDRINUSE ? MC_ERR_ADDRESS_IN_USE : MC_ERR_IO;
        mc_warn("local socket failed name=%s errno=%d", name, errno);
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    *out = fd;
    return MC_OK;
}

static enum mc_status connect_as(const char *name, int type, uint32_t timeout_ms, int *out) {
    struct sockaddr_un address;
    socklen_t len;
    struct timeval timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    MC_TRY(make_address(name, &address, &len));
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return MC_ERR_IO;
    }
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) != 0 ||
        connect(fd, (struct sockaddr *)&address, len) != 0) {
        enum mc_status status = errno == EAGAIN ? MC_ERR_TIMEOUT : MC_ERR_UNREACHABLE;
        close(fd);
        return status;
    }
    *out = fd;
    return MC_OK;
}

enum mc_status mc_local_listen(const char *name, int *out) {
    return listen_as(name, SOCK_SEQPACKET, out);
}

enum mc_status mc_local_listen_stream(const char *name, int *out) {
    return listen_as(name, SOCK_STREAM, out);
}

enum mc_status mc_local_connect(const char *name, uint32_t timeout_ms, int *out) {
    return connect_as(name, SOCK_SEQPACKET, timeout_ms, out);
}

enum mc_status mc_local_connect_stream(const char *name, uint32_t timeout_ms, int *out) {
    return connect_as(name, SOCK_STREAM, timeout_ms, out);
}

enum mc_status mc_local_send(int fd, const void *message, size_t len, int pass_fd) {
    struct iovec iov = {(void *)(uintptr_t)message, len};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        memset(&control, 0, sizeof(control));
        header.msg_control = control.space;
        header.msg_controllen = sizeof(control.space);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &pass_fd, sizeof(int));
    }
    ssize_t n;
    do {
        n = sendmsg(fd, &header, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)len) {
        return MC_OK;
    }
    return n < 0 && errno == EAGAIN ? MC_ERR_TIMEOUT : MC_ERR_CLOSED;
}

/* The first descriptor that came goes to *passed_fd, unless one is there; all others are closed.
 * False when there were others, or no room for some. In the 24 bytes that one takes on a machine of
 * 64 bits there is room for two: the kernel says nothing. */
static bool take_passed(struct msghdr *header, int *passed_fd) {
    bool good = (header->msg_flags & MSG_CTRUNC) == 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (*passed_fd < 0) {
                *passed_fd = fd;
            } else {
                close(fd);
                good = false;
            }
        }
    }
    return good;
}

enum mc_status mc_local_recv(int fd, void *message, size_t len, int *passed_fd) {
    struct iovec iov = {message, len};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr header = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = sizeof(control.space)};
    ssize_t n;
    *passed_fd = -1;
    do {
        n = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) {
        return n < 0 && errno == EAGAIN ? MC_ERR_TIMEOUT : MC_ERR_CLOSED;
    }
    bool good = take_passed(&header, passed_fd);
    if (!good || n != (ssize_t)len || (header.msg_flags & MSG_TRUNC) != 0) {
        if (*passed_fd >= 0) {
            close(*passed_fd);
            *passed_fd = -1;
        }
        return MC_ERR_PROTOCOL;
    }
    return MC_OK;
}

enum mc_status mc_local_recv_some(int fd, void *buffer, size_t len, size_t *n, int *passed_fd) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {buffer, len};
    struct msghdr header = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = sizeof(control.space)};
    ssize_t got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    *n = got > 0 ? (size_t)got : 0;
    if (got > 0) {
        return take_passed(&header, passed_fd) ? MC_OK : MC_ERR_PROTOCOL;
    }
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? MC_OK : MC_ERR_CLOSED;
}

enum mc_status mc_local_recv_stream(int fd, void *buffer, size_t len, uint64_t deadline_ns,
                                    int *passed_fd) {
    char *at = buffer;
    enum mc_status status = MC_OK;
    *passed_fd = -1;
    while (len > 0 && status == MC_OK) {
        size_t n = 0;
        status = mc_local_recv_some(fd, at, len, &n, passed_fd);
        if (status == MC_OK && n == 0) {
            status = mc_wait_ready(fd, POLLIN, deadline_ns);
        }
        at += n;
        len -= n;
    }
    if (status != MC_OK && *passed_fd >= 0) {
        close(*passed_fd);
        *passed_fd = -1;
    }
    return status;
}

enum mc_status mc_local_peer_uid(int fd, uint32_t *uid) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        return MC_NOT_SUPPORTED;
    }
    *uid = cred.uid;
    return MC_OK;
}

enum mc_status mc_local_peer(int fd, struct mc_process *out) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 || cred.pid <= 0) {
        return MC_NOT_SUPPORTED;
    }
    int pidfd = -1;
    len = sizeof(pidfd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) != 0) {
        /* Older kernels: by number. Callers that go on to use the pid prove by other means whose it
         * is. */
        pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
    }
    if (pidfd < 0) {
        return MC_NOT_SUPPORTED;
    }
    *out = (struct mc_process){cred.pid, cred.uid, pidfd};
    return MC_OK;
}

bool mc_process_alive(int pidfd) {
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}
