/*
 * Listening, connecting, accepting, and whole messages with a deadline. See io.h.
 *
 * Ports are taken by binding, never by looking first: SO_REUSEADDR lets a restarted server have its
 * port back at once, and since it also lets two sockets bind one port before either listens,
 * listen(2) is where a port is really got and where "in use" is looked for as well. SO_REUSEPORT is
 * never set: it would let two processes share a port in silence.
 */
#include "io/private.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"

/* Of an ephemeral port that another process took between bind and listen. */
#define LISTEN_TRIES         64
#define KEEPALIVE_IDLE_S     30 /* then a dead machine is noticed after 30 + 3 * 10 s */
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES     3
#define SEND_BATCH           64 /* iovec entries handed to the kernel at once */

static void set_option(int fd, int level, int name, int value) {
    if (setsockopt(fd, level, name, &value, sizeof(value)) != 0) {
        mc_debug("setsockopt refused: level=%d name=%d errno=%d", level, name, errno);
    }
}

static void tune_connection(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
}

/* ---- listening ---- */

/* Binds and listens at exactly this address. Returns 0 or errno; logs nothing, because callers may
 * try others. */
static int listen_at(const struct mc_addr *addr, int backlog, int *fd_out, uint16_t *port_out) {
    int fd = socket(addr->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return errno;
    }
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (addr->storage.ss_family == AF_INET6) {
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    }
    struct mc_addr bound = {.len = sizeof(bound.storage)};
    if (bind(fd, (const struct sockaddr *)&addr->storage, addr->len) != 0 ||
        listen(fd, backlog) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound.storage, &bound.len) != 0) {
        int error = errno;
        close(fd);
        return error;
    }
    *fd_out = fd;
    *port_out = mc_addr_port(&bound);
    return 0;
}

static bool means_everywhere(const char *host) {
    return host == NULL || host[0] == '\0' || strcmp(host, "*") == 0;
}

static bool kernel_lacks_ipv6(int error) {
    return error == EAFNOSUPPORT || error == EPROTONOSUPPORT || error == EADDRNOTAVAIL;
}

/* A host that was resolved once and can be tried with many ports. */
struct listen_host {
    bool everywhere;
    struct mc_addr addr;
};

static int listen_port(const struct listen_host *host, uint16_t port, int backlog, int *fd,
                       uint16_t *bound_port) {
    struct mc_addr addr = host->addr;
    int error = 0;
    for (int i = 0; i < (port == 0 ? LISTEN_TRIES : 1); i++) {
        if (addr.storage.ss_family == AF_INET6) {
            ((struct sockaddr_in6 *)&addr.storage)->sin6_port = htons(port);
        } else {
            ((struct sockaddr_in *)&addr.storage)->sin_port = htons(port);
        }
        error = listen_at(&addr, backlog, fd, bound_port);
        if (host->everywhere && addr.storage.ss_family == AF_INET6 && kernel_lacks_ipv6(error)) {
            MC_ASSERT(mc_addr_resolve("0.0.0.0", port, &addr) == MC_OK);
            error = listen_at(&addr, backlog, fd, bound_port);
        }
        if (error != EADDRINUSE) {
            break;
        }
    }
    return error;
}

static enum mc_status listen_resolve(const char *host, struct listen_host *out) {
    out->everywhere = means_everywhere(host);
    return mc_addr_resolve(out->everywhere ? "::" : host, 0, &out->addr);
}

static enum mc_status listen_failed(const char *host, uint16_t min, uint16_t max, int error) {
    const char *shown = means_everywhere(host) ? "*" : host;
    if (error == EADDRINUSE && min == max) {
        mc_error("port is in use: host=%s port=%u", shown, (unsigned)min);
    } else if (error == EADDRINUSE) {
        mc_error("every port is in use: host=%s ports=%u..%u", shown, (unsigned)min, (unsigned)max);
    } else {
        mc_error("cannot listen: host=%s port=%u errno=%d reason=\"%s\"", shown, (unsigned)min,
                 error, strerror(error));
    }
    return error == EADDRINUSE      ? MC_ERR_ADDRESS_IN_USE
           : error == EADDRNOTAVAIL ? MC_ERR_BAD_ADDRESS
                                    : MC_ERR_IO;
}

enum mc_status mc_listen(const char *host, uint16_t port, int backlog, int *fd,
                         uint16_t *bound_port) {
    struct listen_host resolved;
    MC_TRY(listen_resolve(host, &resolved));
    int error = listen_port(&resolved, port, backlog, fd, bound_port);
    return error == 0 ? MC_OK : listen_failed(host, port, port, error);
}

static uint64_t gcd(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The ports that this process has drawn. A number that comes back is an address that somebody may
 * still hold, and its memory may lie where that of the first lay: such ports come last. */
static _Atomic uint64_t drawn_ports[65536 / 64];

static bool had_port(uint16_t port) { /* relaxed: it is a matter of preference */
    return atomic_load_explicit(&drawn_ports[port / 64], memory_order_relaxed) >> port % 64 & 1;
}

static void note_port(uint16_t port) {
    atomic_fetch_or_explicit(&drawn_ports[port / 64], 1ull << port % 64, memory_order_relaxed);
}

enum mc_status mc_listen_range(const char *host, uint16_t min, uint16_t max, struct mc_rng *rng,
                               int backlog, int *fd, uint16_t *bound_port) {
    if (min == 0 || min > max) {
        return MC_INVALID_PARAMS;
    }
    struct listen_host resolved;
    MC_TRY(listen_resolve(host, &resolved));
    /* A step that shares no factor with the count visits every port once, in an order that differs
     * by process. */
    uint64_t count = (uint64_t)max - min + 1;
    uint64_t at = mc_rng_below(rng, count);
    uint64_t step = mc_rng_below(rng, count) + 1;
    while (gcd(step, count) != 1) {
        step++;
    }
    int error = EADDRINUSE;
    for (uint64_t i = 0; i < 2 * count && error == EADDRINUSE; i++) {
        uint16_t port = (uint16_t)(min + at);
        at = (at + step) % count;
        if (had_port(port) == (i >= count)) {
            error = listen_port(&resolved, port, backlog, fd, bound_port);
        }
    }
    if (error == 0) {
        note_port(*bound_port);
    }
    return error == 0 ? MC_OK : listen_failed(host, min, max, error);
}

/* ---- connecting and accepting ---- */

enum mc_status mc_wait_ready(int fd, short events, uint64_t deadline_ns) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        struct timespec left = {0};
        if (deadline_ns != MC_NO_DEADLINE) {
            uint64_t now = mc_now_ns(mc_clock_system());
            uint64_t rest = deadline_ns > now ? deadline_ns - now : 0;
            left.tv_sec = (time_t)(rest / MC_SEC);
            left.tv_nsec = (long)(rest % MC_SEC);
        }
        int ready = ppoll(&p, 1, deadline_ns != MC_NO_DEADLINE ? &left : NULL, NULL);
        if (ready > 0) {
            return MC_OK; /* errors too: the next call on the socket reports them */
        }
        if (ready == 0) {
            return MC_ERR_TIMEOUT;
        }
        if (errno != EINTR) {
            mc_error("poll failed: errno=%d reason=\"%s\"", errno, strerror(errno));
            return MC_ERR_IO;
        }
    }
}

/* A connect to a free ephemeral port of this machine can meet itself (simultaneous open); such a
 * socket answers its own requests, so it counts as refused. */
static bool connected_to_itself(int fd) {
    struct mc_addr own = {.len = sizeof(own.storage)}, peer = {.len = sizeof(peer.storage)};
    memset(&own.storage, 0, sizeof(own.storage));
    memset(&peer.storage, 0, sizeof(peer.storage));
    return getsockname(fd, (struct sockaddr *)&own.storage, &own.len) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer.storage, &peer.len) == 0 &&
           own.len == peer.len && memcmp(&own.storage, &peer.storage, own.len) == 0;
}

enum mc_status mc_connect_begin(const struct mc_addr *addr, int *fd_out) {
    int fd = socket(addr->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        mc_error("cannot create a socket: errno=%d reason=\"%s\"", errno, strerror(errno));
        return errno == EMFILE || errno == ENFILE ? MC_ERR_LIMIT : MC_ERR_IO;
    }
    tune_connection(fd);
    if (connect(fd, (const struct sockaddr *)&addr->storage, addr->len) != 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        int error = errno;
        close(fd);
        errno = error;
        return error == ENOMEM || error == ENOBUFS ? MC_ERR_IO : MC_ERR_UNREACHABLE;
    }
    *fd_out = fd;
    return MC_OK;
}

enum mc_status mc_connect_end(int fd) {
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) {
        error = errno;
    }
    if (error == 0 && connected_to_itself(fd)) {
        error = ECONNREFUSED;
    }
    errno = error;
    return error == 0 ? MC_OK : MC_ERR_UNREACHABLE;
}

uint32_t mc_socket_rtt_us(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof(info);
    memset(&info, 0, sizeof(info));
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_rtt : 0;
}

enum mc_status mc_connect(const struct mc_addr *addr, uint64_t deadline_ns, int *fd_out) {
    int fd = -1;
    errno = 0;
    enum mc_status status = mc_connect_begin(addr, &fd);
    if (status == MC_OK) {
        status = mc_wait_ready(fd, POLLOUT, deadline_ns);
        errno = 0;
    }
    if (status == MC_OK) {
        status = mc_connect_end(fd);
    }
    if (status != MC_OK) {
        int error = errno;
        char peer[MC_HOST_MAX + 8];
        if (fd >= 0) {
            close(fd);
        }
        mc_addr_format(addr, peer, sizeof(peer));
        mc_warn_limited("cannot connect: peer=%s status=%s errno=%d reason=\"%s\"", peer,
                        mc_status_name(status), error, error != 0 ? strerror(error) : "");
        return status;
    }
    *fd_out = fd;
    return MC_OK;
}

/* accept(2): what goes wrong with one connection before it is accepted must not be taken for an
 * error of the listener. */
static bool is_about_one_connection(int error) {
    switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case EPERM:
        return true;
    default:
        return false;
    }
}

enum mc_status mc_accept(int listen_fd, int *fd_out, struct mc_addr *peer) {
    struct sockaddr_storage storage;
    int fd;
    do {
        socklen_t len = sizeof(storage);
        fd = accept4(listen_fd, (struct sockaddr *)&storage, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (fd < 0 && is_about_one_connection(errno));
    if (fd < 0) {
        if (errno == EAGAIN) {
            return MC_ERR_NOT_FOUND;
        }
        int error = errno;
        mc_warn_limited("cannot accept: errno=%d reason=\"%s\"", error, strerror(error));
        return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM
                   ? MC_ERR_LIMIT
                   : MC_ERR_IO;
    }
    if (storage.ss_family != AF_UNIX) {
        tune_connection(fd);
    }
    if (!mc_addr_from_sockaddr((const struct sockaddr *)&storage, peer)) {
        memset(peer, 0, sizeof(*peer));
    }
    *fd_out = fd;
    return MC_OK;
}

/* ---- whole messages ---- */

/* Copies into `batch` what is left of iov behind `done` bytes of its first entry. */
static int fill_batch(const struct iovec *iov, int count, size_t done, struct iovec *batch) {
    int n = count < SEND_BATCH ? count : SEND_BATCH;
    memcpy(batch, iov, (size_t)n * sizeof(*batch));
    batch[0].iov_base = (char *)batch[0].iov_base + done;
    batch[0].iov_len -= done;
    return n;
}

enum mc_status mc_send_all(int fd, const struct iovec *iov, int iov_count, uint64_t deadline_ns) {
    size_t done = 0; /* bytes of iov[0] that are sent */
    for (;;) {
        while (iov_count > 0 && done >= iov->iov_len) {
            done -= iov->iov_len;
            iov++;
            iov_count--;
        }
        if (iov_count == 0) {
            return MC_OK;
        }
        struct iovec batch[SEND_BATCH];
        size_t n = 0;
        int count = fill_batch(iov, iov_count, done, batch);
        MC_TRY(mc_socket_writev(fd, batch, count, &n));
        if (n == 0) {
            MC_TRY(mc_wait_ready(fd, POLLOUT, deadline_ns));
        }
        done += n;
    }
}

enum mc_status mc_recv_all(int fd, void *buffer, size_t len, uint64_t deadline_ns) {
    struct iovec rest = {buffer, len};
    while (rest.iov_len > 0) {
        size_t n = 0;
        MC_TRY(mc_socket_readv(fd, &rest, 1, &n));
        if (n == 0) {
            MC_TRY(mc_wait_ready(fd, POLLIN, deadline_ns));
        }
        rest.iov_base = (char *)rest.iov_base + n;
        rest.iov_len -= n;
    }
    return MC_OK;
}

void mc_sleep_in_reads(int fd) {
    struct timeval limit = {.tv_usec = MC_READ_SLEEP_NS / 1000};
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) { /* works all the same, a little slower */
        mc_debug("a socket cannot sleep in reads: fd=%d errno=%d", fd, errno);
    }
}

enum mc_status mc_recv_some(int fd, const struct iovec *iov, int iov_count, uint64_t deadline_ns,
                            size_t *n) {
    uint64_t sleep_ns = MC_READ_SLEEP_NS;
    for (;;) {
        size_t got = 0;
        uint64_t now = mc_now_ns(mc_clock_system());
        /* On a non-blocking socket the first read returns at once and the wait follows. */
        bool may_sleep = deadline_ns >= sleep_ns && now <= deadline_ns - sleep_ns;
        MC_TRY(mc_socket_receive(fd, iov, iov_count, may_sleep ? 0 : MSG_DONTWAIT, &got));
        if (got > 0) {
            *n = got;
            return MC_OK;
        }
        MC_TRY(mc_wait_ready(fd, POLLIN, deadline_ns));
    }
}
