/*
 * TLS streams over OpenSSL. See io/tls.h.
 *
 * OpenSSL reaches the socket through a BIO of ours, because its own writes with write(2), which
 * kills a process that does not ignore SIGPIPE. Reads and writes never block: they go on until the
 * caller's buffers are full or empty, or the socket wants to be waited for. What is decrypted but
 * did not fit the caller's buffers is invisible to epoll; the stream says so in `pending`, and in
 * `wants` when it waits for the other direction than the one that was asked for.
 *
 * A short write must be repeated with the same bytes (and perhaps more), wherever they lie then;
 * all who write to streams do.
 */
#include "io/tls.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "io/private.h"

#define GATHER_BYTES 16384 /* small parts leave in one record */

/* ---- OpenSSL ---- */

#define SSL_FUNCTIONS(X)                                                                           \
    X(TLS_method)                                                                                  \
    X(SSL_CTX_new)                                                                                 \
    X(SSL_CTX_free)                                                                                \
    X(SSL_CTX_ctrl)                                                                                \
    X(SSL_CTX_set_num_tickets)                                                                     \
    X(SSL_CTX_set_verify)                                                                          \
    X(SSL_CTX_set_options)                                                                         \
    X(SSL_CTX_set_default_verify_paths)                                                            \
    X(SSL_CTX_load_verify_file)                                                                    \
    X(SSL_load_client_CA_file)                                                                     \
    X(SSL_CTX_set_client_CA_list)                                                                  \
    X(SSL_CTX_use_certificate_chain_file)                                                          \
    X(SSL_CTX_use_PrivateKey_file)                                                                 \
    X(SSL_CTX_check_private_key)                                                                   \
    X(SSL_new)                                                                                     \
    X(SSL_free)                                                                                    \
    X(SSL_set_bio)                                                                                 \
    X(SSL_set_accept_state)                                                                        \
    X(SSL_set_connect_state)                                                                       \
    X(SSL_set1_host)                                                                               \
    X(SSL_get0_param)                                                                              \
    X(SSL_ctrl)                                                                                    \
    X(SSL_do_handshake)                                                                            \
    X(SSL_read)                                                                                    \
    X(SSL_write)                                                                                   \
    X(SSL_has_pending)                                                                             \
    X(SSL_shutdown)                                                                                \
    X(SSL_get_error)                                                                               \
    X(SSL_get_verify_result)
#define CRYPTO_FUNCTIONS(X)                                                                        \
    X(BIO_meth_new)                                                                                \
    X(BIO_meth_set_write)                                                                          \
    X(BIO_meth_set_read)                                                                           \
    X(BIO_meth_set_ctrl)                                                                           \
    X(BIO_new)                                                                                     \
    X(BIO_set_data)                                                                                \
    X(BIO_get_data)                                                                                \
    X(BIO_set_init)                                                                                \
    X(BIO_set_flags)                                                                               \
    X(BIO_clear_flags)                                                                             \
    X(ERR_clear_error)                                                                             \
    X(ERR_get_error)                                                                               \
    X(ERR_reason_error_string)                                                                     \
    X(X509_verify_cert_error_string)                                                               \
    X(X509_VERIFY_PARAM_set1_ip_asc)

struct openssl {
#define X(name) __typeof__(name) *name;
    SSL_FUNCTIONS(X)
    CRYPTO_FUNCTIONS(X)
#undef X
    BIO_METHOD *socket_method;
    bool loaded;
};
static struct openssl ssl; /* written once, under pthread_once */

static bool find(void *library, const char *name, void *slot) {
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof(symbol));
    if (symbol == NULL) {
        mc_error("this OpenSSL has no %s: TLS needs version 3", name);
    }
    return symbol != NULL;
}

static int socket_write(BIO *bio, const char *bytes, int len) {
    struct mc_stream *s = ssl.BIO_get_data(bio);
    ssize_t n;
    ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    do {
        n = send(s->fd, bytes, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        ssl.BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
    }
    return (int)n;
}

static int socket_read(BIO *bio, char *bytes, int len) {
    struct mc_stream *s = ssl.BIO_get_data(bio);
    ssize_t n;
    ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    do {
        n = recv(s->fd, bytes, (size_t)len, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        ssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    }
    return (int)n;
}

static long socket_ctrl(BIO *bio, int command, long number, void *pointer) {
    return command == BIO_CTRL_FLUSH;
}

static void load(void) {
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    void *crypto = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || crypto == NULL) {
        mc_error("OpenSSL cannot be loaded: reason=\"%s\"", dlerror());
        return;
    }
    bool good = true;
#define X(name) good = good && find(library, #name, &ssl.name);
    SSL_FUNCTIONS(X)
#undef X
#define X(name) good = good && find(crypto, #name, &ssl.name);
    CRYPTO_FUNCTIONS(X)
#undef X
    ssl.socket_method = good ? ssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK, "mooncake socket") : NULL;
    if (ssl.socket_method == NULL) {
        return;
    }
    ssl.BIO_meth_set_write(ssl.socket_method, socket_write);
    ssl.BIO_meth_set_read(ssl.socket_method, socket_read);
    ssl.BIO_meth_set_ctrl(ssl.socket_method, socket_ctrl);
    ssl.loaded = true;
}

static const char *reason_of(unsigned long code) {
    const char *text = ssl.ERR_reason_error_string(code);
    return text != NULL             ? text
           : ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code))
                                    : "unknown";
}

/* Why the last call of this thread failed. */
static const char *reason(void) {
    return reason_of(ssl.ERR_get_error());
}

/* ---- contexts ---- */

struct mc_tls {
    SSL_CTX *context;
    bool server;
};

static bool given(const char *path) {
    return path != NULL && path[0] != '\0';
}

static enum mc_status bad_file(const char *what, const char *path) {
    mc_error("TLS: the %s cannot be used: path=%s reason=\"%s\"", what, path, reason());
    return MC_INVALID_PARAMS;
}

static enum mc_status set_trust(SSL_CTX *context, const char *ca, bool server) {
    if (!given(ca)) {
        if (!server && ssl.SSL_CTX_set_default_verify_paths(context) != 1) {
            return bad_file("system's list of CAs", "");
        }
    } else if (ssl.SSL_CTX_load_verify_file(context, ca) != 1) {
        return bad_file("CA file", ca);
    } else if (server) { /* tells clients whose certificates it takes */
        ssl.SSL_CTX_set_client_CA_list(context, ssl.SSL_load_client_CA_file(ca));
    }
    int demand = SSL_VERIFY_PEER | (server ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0);
    ssl.SSL_CTX_set_verify(context, server && !given(ca) ? SSL_VERIFY_NONE : demand, NULL);
    return MC_OK;
}

static enum mc_status configure(SSL_CTX *context, const struct mc_tls_config *config, bool server) {
    if (given(config->cert) != given(config->key) || (server && !given(config->cert))) {
        mc_error("TLS: a certificate and its key go together: cert=%s key=%s",
                 given(config->cert) ? config->cert : "none",
                 given(config->key) ? config->key : "none");
        return MC_INVALID_PARAMS;
    }
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL);
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                         SSL_MODE_RELEASE_BUFFERS,
                     NULL);
    ssl.SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
    /* A server that says nothing unasked: the RPC client takes bytes between two requests for the
     * end of a connection. */
    ssl.SSL_CTX_set_num_tickets(context, 0);
    if (given(config->cert)) {
        if (ssl.SSL_CTX_use_certificate_chain_file(context, config->cert) != 1) {
            return bad_file("certificate", config->cert);
        }
        if (ssl.SSL_CTX_use_PrivateKey_file(context, config->key, SSL_FILETYPE_PEM) != 1 ||
            ssl.SSL_CTX_check_private_key(context) != 1) {
            return bad_file("key", config->key);
        }
    }
    return set_trust(context, config->ca, server);
}

enum mc_status mc_tls_create(const struct mc_tls_config *config, bool server, struct mc_tls **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!ssl.loaded) {
        return MC_NOT_SUPPORTED;
    }
    ssl.ERR_clear_error();
    SSL_CTX *context = ssl.SSL_CTX_new(ssl.TLS_method());
    if (context == NULL) {
        mc_error("TLS: no context: reason=\"%s\"", reason());
        return MC_ERR_NO_MEMORY;
    }
    enum mc_status status = configure(context, config, server);
    if (status != MC_OK) {
        ssl.SSL_CTX_free(context);
        return status;
    }
    *out = mc_zalloc(sizeof(**out));
    **out = (struct mc_tls){context, server};
    return MC_OK;
}

void mc_tls_destroy(struct mc_tls *tls) {
    if (tls != NULL) {
        ssl.SSL_CTX_free(tls->context); /* counted: streams keep it */
        free(tls);
    }
}

/* ---- streams ---- */

struct session {
    SSL *ssl;
    bool server;
    bool failed; /* no more calls, not even to say good-bye */
    char peer[MC_HOST_MAX];
};

/* How a call that returned `result` <= 0 stands: MC_OK = wait for the fd. */
static enum mc_status outcome(struct mc_stream *s, int result, uint32_t asked) {
    struct session *session = s->session;
    int error = ssl.SSL_get_error(session->ssl, result);
    int socket_error = errno;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        uint32_t event = error == SSL_ERROR_WANT_READ ? EPOLLIN : EPOLLOUT;
        s->wants = event != asked ? event : 0;
        return MC_OK;
    }
    session->failed = error != SSL_ERROR_ZERO_RETURN;
    unsigned long code = error == SSL_ERROR_SSL ? ssl.ERR_get_error() : 0;
    bool ended = error == SSL_ERROR_ZERO_RETURN ||
                 (error == SSL_ERROR_SYSCALL &&
                  (socket_error == 0 || socket_error == ECONNRESET || socket_error == EPIPE)) ||
                 ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    if (ended) {
        return MC_ERR_CLOSED;
    }
    const char *text = code != 0 ? reason_of(code) : strerror(socket_error);
    const char *verdict =
        ssl.X509_verify_cert_error_string(ssl.SSL_get_verify_result(session->ssl));
    if (session->server) { /* strangers must not fill the log */
        mc_warn_limited("TLS failed: peer=%s reason=\"%s\" certificate=\"%s\"", session->peer, text,
                        verdict);
    } else {
        mc_error("TLS failed: peer=%s reason=\"%s\" certificate=\"%s\"", session->peer, text,
                 verdict);
    }
    return code != 0 ? MC_ERR_PROTOCOL : MC_ERR_IO;
}

static enum mc_status tls_readv(struct mc_stream *s, const struct iovec *iov, int count,
                                size_t *n) {
    struct session *session = s->session;
    size_t total = 0;
    bool filled = true;
    enum mc_status status = session->failed ? MC_ERR_CLOSED : MC_OK;
    s->wants = 0;
    for (int i = 0; i < count && status == MC_OK; i++) {
        for (size_t done = 0; done < iov[i].iov_len;) {
            ssl.ERR_clear_error();
            errno = 0;
            int got = ssl.SSL_read(session->ssl, (char *)iov[i].iov_base + done,
                                   (int)mc_min_u64(iov[i].iov_len - done, INT32_MAX));
            if (got <= 0) {
                status = outcome(s, got, EPOLLIN);
                filled = false;
                goto out;
            }
            done += (size_t)got;
            total += (size_t)got;
        }
    }
out:
    /* (Half a record also pends, but epoll will tell of the rest.) */
    s->pending = filled && status == MC_OK && ssl.SSL_has_pending(session->ssl) != 0;
    if (status != MC_OK && total == 0) {
        return status;
    }
    *n = total; /* an error comes again with the next call */
    return MC_OK;
}

/* Small parts go out together. */
static size_t gather(const struct iovec *iov, int count, char *buffer, const char **bytes) {
    *bytes = iov->iov_base;
    if (count == 1 || iov->iov_len >= GATHER_BYTES) {
        return iov->iov_len;
    }
    size_t len = 0;
    for (int i = 0; i < count && len < GATHER_BYTES; i++) {
        size_t part = mc_min_u64(iov[i].iov_len, GATHER_BYTES - len);
        if (part > 0) {
            memcpy(buffer + len, iov[i].iov_base, part);
        }
        len += part;
    }
    *bytes = buffer;
    return len;
}

static enum mc_status tls_writev(struct mc_stream *s, const struct iovec *iov, int count,
                                 size_t *n) {
    struct session *session = s->session;
    char buffer[GATHER_BYTES];
    const char *bytes;
    while (count > 0 && iov->iov_len == 0) {
        iov++;
        count--;
    }
    *n = 0;
    if (count == 0) {
        return MC_OK;
    }
    if (session->failed) {
        return MC_ERR_CLOSED;
    }
    size_t len = gather(iov, count, buffer, &bytes);
    ssl.ERR_clear_error();
    errno = 0;
    int put = ssl.SSL_write(session->ssl, bytes, (int)mc_min_u64(len, INT32_MAX));
    if (put <= 0) {
        return outcome(s, put, EPOLLOUT);
    }
    *n = (size_t)put;
    return MC_OK;
}

static void tls_close(struct mc_stream *s) {
    struct session *session = s->session;
    if (s->fd < 0) {
        return;
    }
    if (!session->failed) {
        ssl.ERR_clear_error();
        (void)ssl.SSL_shutdown(session->ssl); /* a word, without waiting for the answer */
    }
    ssl.SSL_free(session->ssl);
    free(session);
    close(s->fd);
    s->fd = -1;
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

void mc_stream_tls(struct mc_stream *s, int fd, struct mc_tls *tls, const char *peer) {
    static const struct mc_stream_ops ops = {tls_readv, tls_writev, tls_close};
    struct session *session = mc_zalloc(sizeof(*session));
    *s = (struct mc_stream){.ops = &ops, .fd = fd, .session = session};
    snprintf(session->peer, sizeof(session->peer), "%s", peer);
    session->server = tls->server;
    session->ssl = ssl.SSL_new(tls->context);
    BIO *bio = ssl.BIO_new(ssl.socket_method);
    MC_ASSERT(session->ssl != NULL && bio != NULL); /* as mc_alloc */
    ssl.BIO_set_data(bio, s);
    ssl.BIO_set_init(bio, 1);
    ssl.SSL_set_bio(session->ssl, bio, bio);
    if (tls->server) {
        ssl.SSL_set_accept_state(session->ssl);
    } else {
        ssl.SSL_set_connect_state(session->ssl);
        expect_host(session->ssl, peer);
    }
}

enum mc_status mc_stream_tls_handshake(struct mc_stream *s, uint64_t deadline_ns) {
    struct session *session = s->session;
    for (;;) {
        ssl.ERR_clear_error();
        errno = 0;
        int result = ssl.SSL_do_handshake(session->ssl);
        if (result == 1) {
            return MC_OK;
        }
        MC_TRY(outcome(s, result, EPOLLIN));
        MC_TRY(mc_wait_ready(s->fd, s->wants == EPOLLOUT ? POLLOUT : POLLIN, deadline_ns));
    }
}
