/*
 * tls: TLS 1.2 and 1.3 behind the stream interface of io.h.
 *
 * A context holds a certificate, its key and whom to trust; a stream of it does its handshake in
 * the first reads and writes, so a reactor needs to know nothing of it. OpenSSL 3 is loaded when
 * the first context is made: a process that uses none does not carry it.
 *
 * A server shows its certificate; with a CA it also demands one of each client, signed by that. A
 * client checks the server's certificate against the CA (the system's when none is given) and the
 * name or address that it connected to (or `peer_name`), always, and shows its own when it has one.
 *
 * Files that change are read again for the connections that come then, at most once a second, so
 * certificates are renewed without a restart: replace the files (best by renaming), key and
 * certificate in either order. While they do not fit each other, the old ones serve on.
 *
 * A server's handshake has a time of its own: MC_TLS_HANDSHAKE_TIMEOUT_SEC (10) seconds from the
 * connection on, or from the first byte where the peer may also speak plain. Who serves ends the
 * connection then (mc_stream_handshake_ends_ns).
 *
 * A stream may be read by one thread while another writes. Sessions are not resumed, and nobody
 * renegotiates.
 */
#ifndef MC_IO_TLS_H
#define MC_IO_TLS_H

#include "io/io.h"

/* Paths of PEM files; NULL or "" = none. */
struct mc_tls_config {
    const char *cert; /* the chain, the own certificate first */
    const char *key;
    const char *ca;
    const char *peer_name; /* a client's: who the peer must be, whatever address it has */
};
static inline bool mc_tls_wanted(const struct mc_tls_config *c) {
    return (c->cert != NULL && c->cert[0] != '\0') || (c->key != NULL && c->key[0] != '\0') ||
           (c->ca != NULL && c->ca[0] != '\0');
}
/* What the environment says: MC_TLS_CERT, MC_TLS_KEY, MC_TLS_CA, MC_TLS_PEER_NAME. */
struct mc_tls_config mc_tls_config_environment(void);

struct mc_tls; /* thread safe */
/* MC_NOT_SUPPORTED: OpenSSL 3 is not on this machine. MC_INVALID_PARAMS: a file is missing, no
 * regular file (a pipe would be waited for), or not what it should be, or the key is not the
 * certificate's; the log names it. A server needs cert and key. */
MC_MUST_USE enum mc_status mc_tls_create(const struct mc_tls_config *config, bool server,
                                         struct mc_tls **out);
void mc_tls_destroy(struct mc_tls *tls); /* streams of it may go on; NULL is allowed */

/* Over a connected socket, which the stream owns. `peer` is for logs and, on a client, the host
 * that the certificate must be for. */
void mc_stream_tls(struct mc_stream *s, int fd, struct mc_tls *tls, const char *peer);
/* A server's stream that is TLS when the peer begins with a handshake, and plain otherwise; with
 * `demand`, plain is MC_ERR_PROTOCOL, which is logged. For protocols whose first six bytes cannot
 * be those of a TLS handshake (as a little-endian length they are above 2^40; the first byte is
 * 0x16). The peer speaks first. */
void mc_stream_either(struct mc_stream *s, int fd, struct mc_tls *tls, bool demand,
                      const char *peer);

/* When a server's handshake that is under way has taken too long (mc_clock_system); 0 = none is.
 * For the thread that reads. */
uint64_t mc_stream_handshake_ends_ns(const struct mc_stream *s);

/* ---- between peers, each of which is server and client ---- */

enum mc_tls_mode {
    MC_TLS_OFF,
    MC_TLS_PREFER, /* serves both; asks in TLS, and in plain when the peer hangs up on that */
    MC_TLS_REQUIRE /* serves and asks in TLS only */
};
struct mc_tls_peers {
    enum mc_tls_mode mode;
    struct mc_tls *server, *client; /* NULL when off */
};
/* "off", "prefer", "require"; NULL or "" = MC_TLS_PEERS in the environment, else off.
 * MC_INVALID_PARAMS names the text. */
MC_MUST_USE enum mc_status mc_tls_mode_parse(const char *text, enum mc_tls_mode *out);
/* Unless off it needs a certificate, which is shown by both sides. */
MC_MUST_USE enum mc_status mc_tls_peers_open(enum mc_tls_mode mode,
                                             const struct mc_tls_config *config,
                                             struct mc_tls_peers *out);
/* All of it from the environment. */
MC_MUST_USE enum mc_status mc_tls_peers_environment(struct mc_tls_peers *out);
void mc_tls_peers_close(struct mc_tls_peers *peers); /* streams of it may go on; once is enough */
/* A server's stream as the mode says. */
void mc_stream_serve(struct mc_stream *s, int fd, const struct mc_tls_peers *peers,
                     const char *peer);

/* A client's handshake. What is wrong with a certificate is logged. MC_ERR_TIMEOUT, MC_ERR_CLOSED
 * (also: the peer speaks no TLS and hung up), MC_ERR_PROTOCOL. */
MC_MUST_USE enum mc_status mc_stream_tls_handshake(struct mc_stream *s, uint64_t deadline_ns);
/* The same without waiting: *done, or call again when the descriptor is ready for what the stream
 * `wants` (reading, when nothing). */
MC_MUST_USE enum mc_status mc_stream_tls_step(struct mc_stream *s, bool *done);

#endif
