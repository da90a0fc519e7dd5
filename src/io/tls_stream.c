/*
 * TLS streams over OpenSSL. See io/tls.h.
 *
 * OpenSSL reaches the socket through a BIO of ours, because its own writes with write(2), which
 * kills a process that does not ignore SIGPIPE. Reads and writes never block: they go on until the
 * caller's buffers are full or empty, or the socket is. What is decrypted but did not fit the
 * caller's buffers is invisible to epoll; the stream says so in `pending`, and in `wants` when it
 * waits for the other direction than the one that was asked for.
 *
 * A record that was made must leave as it is, so our BIO takes each whole and keeps what the socket
 * does not take (`unsent`). While something is kept the caller is told of one byte less than was
 * taken: it waits for room and comes again with that byte, which is skipped. So a caller may change
 * its mind about whatever it was not told of, but for that one byte, as with a plain socket.
 *
 * The lock lets one thread read while another writes, which OpenSSL does not allow by itself.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "io/private.h"
#include "io/tls_private.h"

#define ssl          mc_openssl
#define GATHER_BYTES 16384 /* small parts leave in one record */
#define HELLO_BYTES  6     /* so many tell a handshake from other protocols */

struct session {
    pthread_mutex_t lock;
    SSL *ssl;
    struct mc_buf unsent; /* records on their way; sent up to unsent_from */
    size_t unsent_from;
    bool server;
    bool failed; /* no more calls, not even to say good-bye */
    bool held;   /* the next byte to write is in `unsent` already */
    char peer[MC_HOST_MAX];
    uint64_t handshake_ends_ns; /* a server's that is under way; 0 = none */

    /* Of mc_stream_either, until it is known: */
    struct mc_tls *tls;
    bool demand;
    unsigned char hello[HELLO_BYTES]; /* read already; from hello_from on nobody has had them */
    uint8_t hello_len, hello_from;
};

static void set_wants(struct mc_stream *s, uint32_t events) {
    atomic_store_explicit(&s->wants, events, memory_order_relaxed);
}

static void set_pending(struct mc_stream *s, bool pending) {
    atomic_store_explicit(&s->pending, pending, memory_order_relaxed);
}

/* ---- the socket ---- */

/* True when nothing is kept any more; false with errno 0 when the socket is full. */
static bool flush(struct mc_stream *s) {
    struct session *session = s->session;
    while (session->unsent_from < session->unsent.len) {
        ssize_t n = send(s->fd, session->unsent.data + session->unsent_from,
                         session->unsent.len - session->unsent_from, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            errno = errno == EAGAIN ? 0 : errno;
            return false;
        }
        session->unsent_from += (size_t)n;
    }
    mc_buf_free(&session->unsent); /* few have one, and only for a while */
    session->unsent_from = 0;
    return true;
}

/* Takes all. */
int mc_tls_socket_write(BIO *bio, const char *bytes, int len) {
    struct mc_stream *s = ssl.BIO_get_data(bio);
    struct session *session = s->session;
    ssize_t n = 0;
    ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (session->unsent.len == 0) {
        n = send(s->fd, bytes, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return -1;
        }
        n = n < 0 ? 0 : n;
    }
    if (n < len) {
        mc_buf_append(&session->unsent, bytes + n, (size_t)(len - n));
    }
    return flush(s) || errno == 0 ? len : -1;
}

int mc_tls_socket_read(BIO *bio, char *bytes, int len) {
    struct mc_stream *s = ssl.BIO_get_data(bio);
    struct session *session = s->session;
    ssize_t n;
    ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (session->hello_from < session->hello_len) {
        n = (ssize_t)mc_min_u64((uint64_t)len, session->hello_len - session->hello_from);
        memcpy(bytes, session->hello + session->hello_from, (size_t)n);
        session->hello_from += (uint8_t)n;
        return (int)n;
    }
    do {
        n = recv(s->fd, bytes, (size_t)len, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        ssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    }
    return (int)n;
}

long mc_tls_socket_ctrl(BIO *bio, int command, long number, void *pointer) {
    return command == BIO_CTRL_FLUSH;
}

/* ---- failing ---- */

static enum mc_status failed(struct session *session, const char *text, enum mc_status status) {
    const char *verdict =
        ssl.X509_verify_cert_error_string(ssl.SSL_get_verify_result(session->ssl));
    session->failed = true;
    if (session->server) { /* strangers must not fill the log */
        mc_warn_limited("TLS failed: peer=%s reason=\"%s\" certificate=\"%s\"", session->peer, text,
                        verdict);
    } else {
        mc_error("TLS failed: peer=%s reason=\"%s\" certificate=\"%s\"", session->peer, text,
                 verdict);
    }
    return status;
}

static bool peer_left(int error) {
    return error == 0 || error == ECONNRESET || error == EPIPE;
}

/* How a call that returned `result` <= 0 stands: MC_OK = wait for the fd. */
static enum mc_status outcome(struct mc_stream *s, int result, uint32_t asked) {
    struct session *session = s->session;
    int error = ssl.SSL_get_error(session->ssl, result);
    int socket_error = errno;
    if (error == SSL_ERROR_WANT_READ) { /* our BIO never wants to write */
        /* In a handshake the peer answers what is kept here. Afterwards what is kept is the
         * writer's: a reader that waited for that to leave could wait for ever. */
        bool ours = session->unsent.len > 0 && ssl.SSL_in_init(session->ssl);
        uint32_t event = ours ? EPOLLOUT : EPOLLIN;
        set_wants(s, event != asked ? event : 0);
        return MC_OK;
    }
    session->failed = error != SSL_ERROR_ZERO_RETURN;
    unsigned long code = error == SSL_ERROR_SSL ? ssl.ERR_get_error() : 0;
    bool ended = error == SSL_ERROR_ZERO_RETURN ||
                 (error == SSL_ERROR_SYSCALL && peer_left(socket_error)) ||
                 ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    if (ended) {
        return MC_ERR_CLOSED;
    }
    return code != 0 ? failed(session, mc_tls_reason_of(code), MC_ERR_PROTOCOL)
                     : failed(session, strerror(socket_error), MC_ERR_IO);
}

/* Before anything else: what is kept leaves. MC_OK with *room false: the socket is full. */
static enum mc_status make_room(struct mc_stream *s, bool *room) {
    struct session *session = s->session;
    if (session->failed) {
        return MC_ERR_CLOSED;
    }
    *room = flush(s);
    if (*room || errno == 0) {
        return MC_OK;
    }
    session->failed = true;
    return peer_left(errno) ? MC_ERR_CLOSED : failed(session, strerror(errno), MC_ERR_IO);
}

/* ---- the handshake's time ---- */

static void handshake_begins(struct session *session, const struct mc_tls *tls) {
    if (session->handshake_ends_ns == 0) {
        session->handshake_ends_ns = mc_now_ns(mc_clock_system()) + mc_tls_handshake_ns(tls);
    }
}

static void handshake_looked_at(struct session *session) {
    if (session->handshake_ends_ns != 0 && !ssl.SSL_in_init(session->ssl)) {
        session->handshake_ends_ns = 0;
    }
}

uint64_t mc_stream_handshake_ends_ns(const struct mc_stream *s) {
    const struct session *session = s->session;
    return session != NULL ? session->handshake_ends_ns : 0;
}

/* ---- reading ---- */

static enum mc_status readv_locked(struct mc_stream *s, const struct iovec *iov, int count,
                                   size_t *n) {
    struct session *session = s->session;
    size_t total = 0;
    bool filled = true, room;
    set_wants(s, 0);
    enum mc_status status = make_room(s, &room);
    for (int i = 0; i < count && status == MC_OK && filled; i++) {
        for (size_t done = 0; done < iov[i].iov_len;) {
            ssl.ERR_clear_error();
            errno = 0;
            int got = ssl.SSL_read(session->ssl, (char *)iov[i].iov_base + done,
                                   (int)mc_min_u64(iov[i].iov_len - done, INT32_MAX));
            if (got <= 0) {
                status = outcome(s, got, EPOLLIN);
                filled = false;
                break;
            }
            done += (size_t)got;
            total += (size_t)got;
        }
    }
    handshake_looked_at(session);
    /* (Half a record also pends, but epoll will tell of the rest.) */
    set_pending(s, filled && status == MC_OK && ssl.SSL_has_pending(session->ssl) != 0);
    if (status != MC_OK && total == 0) {
        return status;
    }
    *n = total; /* an error comes again with the next call */
    return MC_OK;
}

static enum mc_status tls_readv(struct mc_stream *s, const struct iovec *iov, int count,
                                size_t *n) {
    struct session *session = s->session;
    pthread_mutex_lock(&session->lock);
    enum mc_status status = readv_locked(s, iov, count, n);
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* ---- writing ---- */

/* Where a writer is in its list. */
struct place {
    const struct iovec *iov;
    int count;
    size_t skip; /* of iov[0] */
};

static void advance(struct place *at, size_t n) {
    n += at->skip;
    while (at->count > 0 && n >= at->iov->iov_len) {
        n -= at->iov->iov_len;
        at->iov++;
        at->count--;
    }
    at->skip = n;
}

/* The next bytes of one record: where they lie, or, when they are small parts, together in
 * `buffer`. */
static size_t gather(struct place at, char *buffer, const char **bytes) {
    size_t len = at.iov->iov_len - at.skip;
    *bytes = (const char *)at.iov->iov_base + at.skip;
    if (at.count == 1 || len >= GATHER_BYTES) {
        return len;
    }
    *bytes = buffer;
    for (len = 0; at.count > 0 && len < GATHER_BYTES;) {
        size_t part = mc_min_u64(at.iov->iov_len - at.skip, GATHER_BYTES - len);
        memcpy(buffer + len, (const char *)at.iov->iov_base + at.skip, part);
        len += part;
        advance(&at, part);
    }
    return len;
}

static enum mc_status write_records(struct mc_stream *s, struct place at, size_t *total) {
    struct session *session = s->session;
    char buffer[GATHER_BYTES];
    const char *bytes;
    while (at.count > 0 && session->unsent.len == 0) {
        size_t len = gather(at, buffer, &bytes);
        ssl.ERR_clear_error();
        errno = 0;
        int put = ssl.SSL_write(session->ssl, bytes, (int)mc_min_u64(len, INT32_MAX));
        if (put <= 0) {
            return outcome(s, put, EPOLLOUT);
        }
        *total += (size_t)put;
        advance(&at, (size_t)put);
    }
    return MC_OK;
}

static enum mc_status writev_locked(struct mc_stream *s, const struct iovec *iov, int count,
                                    size_t *n) {
    struct session *session = s->session;
    struct place at = {iov, count, 0};
    size_t total = 0;
    bool room;
    *n = 0;
    advance(&at, 0);
    MC_TRY(make_room(s, &room));
    if (at.count == 0 || !room) {
        return MC_OK;
    }
    if (session->held) {
        session->held = false;
        total = 1;
        advance(&at, 1);
    }
    enum mc_status status = write_records(s, at, &total);
    if (status != MC_OK && total == 0) {
        return status;
    }
    session->held = session->unsent.len > 0 && total > 0;
    *n = total - session->held;
    return MC_OK;
}

static enum mc_status tls_writev(struct mc_stream *s, const struct iovec *iov, int count,
                                 size_t *n) {
    struct session *session = s->session;
    pthread_mutex_lock(&session->lock);
    enum mc_status status = writev_locked(s, iov, count, n);
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* ---- beginning and end ---- */

static void close_socket(struct mc_stream *s) {
    struct session *session = s->session;
    if (session == NULL) {
        return;
    }
    mc_buf_free(&session->unsent);
    pthread_mutex_destroy(&session->lock);
    free(session);
    s->session = NULL;
    if (s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

static void tls_close(struct mc_stream *s) {
    struct session *session = s->session;
    if (s->fd < 0) {
        return;
    }
    if (!session->failed && session->unsent.len == 0) {
        ssl.ERR_clear_error();
        (void)ssl.SSL_shutdown(session->ssl); /* a word, without waiting for the answer */
    }
    ssl.SSL_free(session->ssl);
    close_socket(s);
}

static void expect_host(SSL *connection, const char *host) {
    unsigned char address[sizeof(struct in6_addr)];
    bool numeric =
        inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    if (numeric) {
        ssl.X509_VERIFY_PARAM_set1_ip_asc(ssl.SSL_get0_param(connection), host);
    } else {
        ssl.SSL_set1_host(connection, host);
        ssl.SSL_ctrl(connection, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                     (void *)(uintptr_t)host);
    }
}

static void session_new(struct mc_stream *s, int fd, const char *peer) {
    struct session *session = mc_zalloc(sizeof(*session));
    pthread_mutex_init(&session->lock, NULL);
    snprintf(session->peer, sizeof(session->peer), "%s", peer);
    *s = (struct mc_stream){.fd = fd, .session = session};
}

/* From here on TLS. */
static void session_start(struct mc_stream *s, struct mc_tls *tls) {
    static const struct mc_stream_ops ops = {tls_readv, tls_writev, tls_close};
    struct session *session = s->session;
    SSL_CTX *context = mc_tls_context(tls);
    session->server = mc_tls_is_server(tls);
    session->ssl = ssl.SSL_new(context);
    ssl.SSL_CTX_free(context);
    BIO *bio = ssl.BIO_new(ssl.socket_method);
    MC_ASSERT(session->ssl != NULL && bio != NULL); /* as mc_alloc */
    ssl.BIO_set_data(bio, s);
    ssl.BIO_set_init(bio, 1);
    ssl.SSL_set_bio(session->ssl, bio, bio);
    if (session->server) {
        ssl.SSL_set_accept_state(session->ssl);
        handshake_begins(session, tls);
    } else {
        const char *name = mc_tls_peer_name(tls);
        ssl.SSL_set_connect_state(session->ssl);
        expect_host(session->ssl, name != NULL ? name : session->peer);
    }
    s->ops = &ops;
}

void mc_stream_tls(struct mc_stream *s, int fd, struct mc_tls *tls, const char *peer) {
    session_new(s, fd, peer);
    session_start(s, tls);
}

enum mc_status mc_stream_tls_step(struct mc_stream *s, bool *done) {
    struct session *session = s->session;
    bool room;
    *done = false;
    set_wants(s, 0);
    MC_TRY(make_room(s, &room));
    ssl.ERR_clear_error();
    errno = 0;
    int result = ssl.SSL_do_handshake(session->ssl);
    if (result != 1) {
        return outcome(s, result, EPOLLIN);
    }
    handshake_looked_at(session);
    /* The last flight must have left before the caller sleeps. */
    MC_TRY(make_room(s, &room));
    set_wants(s, room ? 0 : EPOLLOUT);
    *done = room;
    return MC_OK;
}

enum mc_status mc_stream_tls_handshake(struct mc_stream *s, uint64_t deadline_ns) {
    for (;;) {
        bool done;
        MC_TRY(mc_stream_tls_step(s, &done));
        if (done) {
            return MC_OK;
        }
        MC_TRY(mc_wait_ready(s->fd, mc_stream_wants_out(s) ? POLLOUT : POLLIN, deadline_ns));
    }
}

/* ---- plain or TLS ---- */

/* record type handshake, version 3.x, ... client hello */
static bool may_be_hello(const unsigned char *bytes, unsigned len) {
    return (len < 1 || bytes[0] == 0x16) && (len < 2 || bytes[1] == 3) &&
           (len < HELLO_BYTES || bytes[5] == 1);
}

/* Reads until it is known which; MC_OK with *known false: wait. */
static enum mc_status look(struct mc_stream *s, bool *known, bool *is_tls) {
    struct session *session = s->session;
    *known = false;
    for (;;) {
        if (!may_be_hello(session->hello, session->hello_len) ||
            session->hello_len == HELLO_BYTES) {
            *known = true;
            *is_tls = may_be_hello(session->hello, session->hello_len);
            return MC_OK;
        }
        struct iovec iov = {session->hello + session->hello_len,
                            (size_t)(HELLO_BYTES - session->hello_len)};
        size_t n = 0;
        MC_TRY(mc_socket_readv(s->fd, &iov, 1, &n));
        if (n == 0) {
            return MC_OK;
        }
        session->hello_len += (uint8_t)n;
        handshake_begins(session, session->tls);
    }
}

/* The bytes that were read to know, and what follows them. */
static enum mc_status become_plain(struct mc_stream *s, const struct iovec *iov, int count,
                                   size_t *n) {
    struct session *session = s->session;
    size_t len = session->hello_len, more = 0;
    int fd = s->fd;
    MC_ASSERT(iov[0].iov_len >= len);
    memcpy(iov[0].iov_base, session->hello, len);
    s->fd = -1;
    close_socket(s);
    mc_stream_plain(s, fd);
    struct iovec rest = {(char *)iov[0].iov_base + len, iov[0].iov_len - len};
    enum mc_status status = rest.iov_len > 0 ? s->ops->readv(s, &rest, 1, &more) : MC_OK;
    *n = len + more;
    if (status == MC_OK && more == rest.iov_len && count > 1) {
        more = 0;
        status = s->ops->readv(s, iov + 1, count - 1, &more);
        *n += more;
    }
    return MC_OK; /* an error comes again with the next call */
}

static enum mc_status either_readv(struct mc_stream *s, const struct iovec *iov, int count,
                                   size_t *n) {
    struct session *session = s->session;
    bool known, is_tls;
    *n = 0;
    MC_TRY(look(s, &known, &is_tls));
    if (!known) {
        return MC_OK;
    }
    if (is_tls) {
        session_start(s, session->tls);
        return s->ops->readv(s, iov, count, n);
    }
    if (session->demand) {
        mc_warn_limited("the peer does not speak TLS, which is demanded here: peer=%s",
                        session->peer);
        return MC_ERR_PROTOCOL;
    }
    return become_plain(s, iov, count, n);
}

static enum mc_status either_writev(struct mc_stream *s, const struct iovec *iov, int count,
                                    size_t *n) {
    *n = 0; /* the peer speaks first */
    return MC_OK;
}

void mc_stream_either(struct mc_stream *s, int fd, struct mc_tls *tls, bool demand,
                      const char *peer) {
    static const struct mc_stream_ops ops = {either_readv, either_writev, close_socket};
    session_new(s, fd, peer);
    struct session *session = s->session;
    session->tls = tls;
    session->demand = demand;
    if (demand) { /* else the peer may be a plain one that has nothing to say yet */
        handshake_begins(session, tls);
    }
    s->ops = &ops;
}

void mc_stream_serve(struct mc_stream *s, int fd, const struct mc_tls_peers *peers,
                     const char *peer) {
    if (peers == NULL || peers->mode == MC_TLS_OFF) {
        mc_stream_plain(s, fd);
    } else {
        mc_stream_either(s, fd, peers->server, peers->mode == MC_TLS_REQUIRE, peer);
    }
}
