/*
 * rpc: coro_rpc frames (yalantinglibs) over io, bodies by wire.
 *
 * The server has N reactors; a connection lives on one of them. A handler runs inline on the
 * reactor and must not block; requests that may take long run aside (`slow`). Requests on a
 * connection are answered in order, each with its sequence number, so clients may pipeline. Limits,
 * and what happens at them: connections (a further one is closed at once), body bytes (an error
 * answer, then closed), bytes of answers waiting on one connection (the server stops reading from a
 * peer that does not read), bytes waiting on all connections together (the one that goes over is
 * closed), time without progress (closed). What is not a frame is closed without
 * an answer, as upstream does.
 *
 * The client is synchronous and pooled: a call takes an idle connection of the peer, writes the
 * request and reads the answer on the calling thread, so that a round trip costs no thread switch.
 *
 * Counters: mc_rpc_connections, mc_rpc_connections_refused, mc_rpc_requests, mc_rpc_errors,
 * mc_rpc_slow_requests, mc_rpc_bad_frames, mc_rpc_buffered_bytes, mc_rpc_over_budget,
 * mc_rpc_received_bytes, mc_rpc_sent_bytes.
 */
#ifndef MC_RPC_RPC_H
#define MC_RPC_RPC_H

#include "base/base.h"
#include "base/metrics.h"
#include "io/tls.h"

#define MC_RPC_MAGIC    21
#define MC_RPC_MAX_BODY (256u << 20)

enum mc_rpc_errc { /* coro_rpc's numbers */
                   MC_RPC_OK = 0,
                   MC_RPC_IO_ERROR = 1,
                   MC_RPC_NOT_CONNECTED = 2,
                   MC_RPC_TIMED_OUT = 3,
                   MC_RPC_INVALID_ARGUMENTS = 4,
                   MC_RPC_FUNCTION_THROWS = 10,
                   MC_RPC_NOT_REGISTERED = 11,
                   MC_RPC_PROTOCOL_ERROR = 12,
                   MC_RPC_UNKNOWN_VERSION = 13,
                   MC_RPC_MESSAGE_TOO_LARGE = 14,
};

/* First 4 bytes of MD5(qualified name), big-endian. */
uint32_t mc_rpc_function_id(const char *qualified_name);

/* ---- server ---- */

#define MC_RPC_PEER_WORDS 4
struct mc_rpc_request {
    uint32_t function_id;
    struct mc_str body;
    struct mc_str attachment;
    struct mc_arena *arena; /* reset after the handler returned */
    const char *peer;       /* "ip:port", for logs */
    /* The handler's own memory of this connection: zero when it opened, MC_RPC_PEER_WORDS long,
     * kept as the handler leaves it. Forgotten when the connection closes. */
    uint64_t *peer_words;
};
struct mc_rpc_reply {      /* the handler appends; both start empty */
    enum mc_rpc_errc errc; /* when not OK the server writes the standard text as body */
    struct mc_buf *body;
    struct mc_buf *attachment;
};
/* Called on a reactor thread; concurrently on several. Unknown function: set errc to
 * MC_RPC_NOT_REGISTERED. */
typedef void (*mc_rpc_handler)(void *ctx, const struct mc_rpc_request *request,
                               struct mc_rpc_reply *reply);

struct mc_rpc_server_config {
    const char *host;         /* "" = all */
    uint16_t port;            /* 0 = any */
    unsigned threads;         /* reactors; 0 = 1 */
    uint32_t max_body_bytes;  /* of body and attachment together; 0 = MC_RPC_MAX_BODY */
    uint32_t max_connections; /* 0 = 65536 */
    /* Of requests that are not complete, requests that run aside, and answers that peers have not
     * taken, over all connections; 0 = 2 GiB. A connection of at least 64 KiB that takes the sum
     * over it is closed. */
    uint64_t max_buffered_bytes;
    /* Closes a connection that for so long neither completed a request nor moved a good part of
     * one, nor took answers. 0 = never. */
    uint32_t idle_timeout_ms;
    bool no_delay; /* set it: without, the kernel may hold an answer back until the one before is
                      acknowledged */
    struct mc_tls *tls; /* of a server, not owned; NULL = plain TCP */
    /* Instead: as the mode says. Copied; the contexts in it are not owned. */
    struct mc_tls_peers peers;
    mc_rpc_handler handler;
    /* True for requests that may take long: they run on `slow_threads` threads of their own (0 = 1,
     * at most 64), and only their connection waits. May be NULL. */
    bool (*slow)(void *ctx, uint32_t function_id);
    unsigned slow_threads;
    /* A connection has closed, from whichever side; on its reactor thread. May be NULL. */
    void (*closed)(void *ctx, const uint64_t *peer_words, const char *peer);
    void *ctx;
    struct mc_metrics *metrics; /* may be NULL */
};
struct mc_rpc_server;
MC_MUST_USE enum mc_status mc_rpc_server_start(const struct mc_rpc_server_config *config,
                                               struct mc_rpc_server **out, uint16_t *bound_port);
void mc_rpc_server_stop(struct mc_rpc_server *server); /* ends connections, joins threads */

/* ---- client ---- */

struct mc_rpc_client; /* to one peer; thread safe */
/* Connects when it must: the peer need not run yet. At most `max_connections` (0 = 1) are open;
 * further callers wait for a free one. MC_ERR_BAD_ADDRESS when the text is no host:port. */
MC_MUST_USE enum mc_status mc_rpc_client_create(const char *host_port, unsigned max_connections,
                                                uint32_t connect_timeout_ms,
                                                struct mc_rpc_client **out);
/* Before the first call: connections speak TLS; `tls`, of a client, is not owned; NULL = plain. */
void mc_rpc_client_use_tls(struct mc_rpc_client *client, struct mc_tls *tls);
/* The same to a peer of ours, as the mode says. */
void mc_rpc_client_use_peers(struct mc_rpc_client *client, const struct mc_tls_peers *peers);
/* Before the first call: a connection that was not used for so long (30 s) is closed by a later
 * call. */
void mc_rpc_client_close_idle_after(struct mc_rpc_client *client, uint32_t idle_ms);
void mc_rpc_client_destroy(struct mc_rpc_client *client); /* no call may be running */

/* Appends the answer's body (and attachment, when wanted) on success. MC_RPC_TIMEOUT after the
 * absolute deadline (the connection is closed: a late answer can never be taken for another);
 * MC_RPC_FAIL for transport errors and for an errc != 0 (logged with its text; *errc tells; errc
 * may be NULL). A request is sent again on a fresh connection only when the pooled one was found
 * dead before a byte of this request was written. */
MC_MUST_USE enum mc_status mc_rpc_call(struct mc_rpc_client *client, uint32_t function_id,
                                       struct mc_str body, uint64_t deadline_ns,
                                       struct mc_buf *reply_body, enum mc_rpc_errc *errc);
MC_MUST_USE enum mc_status mc_rpc_call_attach(struct mc_rpc_client *client, uint32_t function_id,
                                              struct mc_str body, struct mc_str attachment,
                                              uint64_t deadline_ns, struct mc_buf *reply_body,
                                              struct mc_buf *reply_attachment,
                                              enum mc_rpc_errc *errc);

/* Pipelining: requests are written without waiting for answers, on one connection, and answers are
 * read meanwhile, so that neither side can block the other however many there are. The body of the
 * answer to bodies[i] is appended to reply_bodies[i]. MC_RPC_FAIL when an answer has an errc (the
 * others are filled). */
MC_MUST_USE enum mc_status mc_rpc_call_many(struct mc_rpc_client *client, uint32_t function_id,
                                            const struct mc_str *bodies, size_t count,
                                            uint64_t deadline_ns,
                                            struct mc_buf *reply_bodies /* count of them */);
#endif
