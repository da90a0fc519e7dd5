/*
 * meta: where engines find each other.
 *
 * Two ways lead to a peer's segment descriptor. P2P: the segment's name is the peer's handshake
 * address, and the peer is asked. A metadata store (HTTP, etcd, Redis; others by adding a file and
 * a line in store.c): descriptor and handshake address are published under the segment's name. In
 * both cases the peer answers notifications and probes on its handshake address.
 *
 * Owns the handshake listener and the store's connection. May call base, io, wire, rpc. Formats:
 * docs/meta.md.
 */
#ifndef MC_META_META_H
#define MC_META_META_H

#include "base/base.h"
#include "base/metrics.h"

struct mc_reactor;
struct mc_tls_peers; /* io/tls.h */

/* ---- handshake ---- */

/* frame := u64 length (LE, of what follows) u8 type, JSON.
 * One request and one reply a connection; staging has many, one after the other, on one. */
enum mc_handshake_type {
    MC_HANDSHAKE_CONNECTION = 0, /* of RDMA-like transports */
    MC_HANDSHAKE_METADATA = 1,
    MC_HANDSHAKE_NOTIFY = 2,
    MC_HANDSHAKE_PROBE = 3,
    MC_HANDSHAKE_STAGE = 4, /* ours; its body is wire/stage.h */
};

struct mc_handshake_limits {
    uint64_t max_frame_bytes;       /* longer frames end the connection, both ways */
    uint32_t connect_timeout_ms;    /* client */
    uint32_t reply_timeout_ms;      /* client: from connected to the whole reply */
    uint32_t serve_timeout_ms;      /* server: a connection's whole life */
    unsigned max_connections;       /* server: more at a time are closed at once, and counted */
    const struct mc_tls_peers *tls; /* both; NULL = plain. Not owned */
};
/* 1 MiB (MC_HANDSHAKE_MAX_LENGTH), 5 s (MC_HANDSHAKE_CONNECT_TIMEOUT), 60 s, 5 s, 1024. */
void mc_handshake_limits_init(struct mc_handshake_limits *limits);

/* A request whose answer may come later, from any thread: exactly one mc_handshake_answer() for
 * each, also after mc_handshake_stop(). An answer that comes after the connection's time is
 * dropped. */
struct mc_handshake_call;
void mc_handshake_answer(struct mc_handshake_call *call, struct mc_str body);

/* What the owner of the listener answers; called on the reactor's thread, must not block. */
struct mc_handshake_handler {
    void *ctx;
    /* Appends the own descriptor; `request` is the peer's, or any JSON. */
    void (*metadata)(void *ctx, struct mc_str request, struct mc_buf *reply);
    enum mc_status (*notify)(void *ctx, struct mc_str name, struct mc_str message);
    /* Takes the call (then true) and answers it, now or later; else it is answered with a
     * rejection. NULL = never. `body` is valid during the call only. */
    bool (*connection)(void *ctx, struct mc_str body, struct mc_handshake_call *call);
    /* The same for staging. *state is of the connection, NULL at its first request; when the
     * connection ends with one, stage_closed hears of it. Both NULL = never. */
    bool (*stage)(void *ctx, void **state, struct mc_str body, struct mc_handshake_call *call);
    void (*stage_closed)(void *ctx, void *state);
};

struct mc_handshake_server;
/* Serves connections of `listen_fd` (owned from here on, also on failure) on the reactor, many at a
 * time. */
MC_MUST_USE enum mc_status mc_handshake_serve(struct mc_reactor *reactor, int listen_fd,
                                              const struct mc_handshake_handler *handler,
                                              const struct mc_handshake_limits *limits,
                                              struct mc_metrics *metrics,
                                              struct mc_handshake_server **out);
/* Closes listener and connections; afterwards no handler is called. From any thread but the
 * reactor's. */
void mc_handshake_stop(struct mc_handshake_server *server);

/* Clients: blocking, until the limits' timeouts or the deadline (mc_clock_system), what is earlier.
 * MC_ERR_UNREACHABLE, MC_ERR_TIMEOUT, MC_ERR_CLOSED, MC_ERR_PROTOCOL, MC_ERR_REJECTED. */
MC_MUST_USE enum mc_status mc_handshake_metadata(const char *host, uint16_t port,
                                                 struct mc_str own_descriptor,
                                                 const struct mc_handshake_limits *limits,
                                                 uint64_t deadline_ns, struct mc_buf *reply);
MC_MUST_USE enum mc_status mc_handshake_notify(const char *host, uint16_t port, const char *name,
                                               const char *message,
                                               const struct mc_handshake_limits *limits,
                                               uint64_t deadline_ns);
/* `body` and the answer are JSON of wire/rdma_setup.h. */
MC_MUST_USE enum mc_status mc_handshake_connection(const char *host, uint16_t port,
                                                   struct mc_str body,
                                                   const struct mc_handshake_limits *limits,
                                                   uint64_t deadline_ns, struct mc_buf *reply);
/* A connection for staging: one call at a time, until one has failed. */
struct mc_handshake_channel;
MC_MUST_USE enum mc_status mc_handshake_channel_open(const char *host, uint16_t port,
                                                     const struct mc_handshake_limits *limits,
                                                     uint64_t deadline_ns,
                                                     struct mc_handshake_channel **out);
MC_MUST_USE enum mc_status mc_handshake_channel_call(struct mc_handshake_channel *channel,
                                                     struct mc_str body, uint64_t deadline_ns,
                                                     struct mc_buf *reply);
/* From another thread: the call under way fails, and so do those that follow. */
void mc_handshake_channel_abort(struct mc_handshake_channel *channel);
void mc_handshake_channel_close(struct mc_handshake_channel *channel); /* NULL is allowed */
MC_MUST_USE enum mc_status mc_handshake_probe(const char *host, uint16_t port,
                                              const struct mc_handshake_limits *limits,
                                              uint64_t deadline_ns);

/* ---- store ---- */

/* A key-value service that holds descriptors. Blocking calls from any thread; each ends within a
 * few seconds. Statuses beside those named: MC_ERR_UNREACHABLE, MC_ERR_TIMEOUT, MC_ERR_CLOSED (no
 * endpoint answers), MC_ERR_PROTOCOL (an answer that cannot be read), MC_ERR_REJECTED (password,
 * database, rights, room), MC_ERR_LIMIT (the value is too large). Whoever returns them has logged
 * the service's words. */
struct mc_meta_kv;
struct mc_meta_kv_ops {
    const char *schemes[3]; /* "http://": connection strings that begin so are this one's */
    /* `lease_s`: how long a leased record outlives its last renewal. */
    enum mc_status (*open)(const char *connection, uint32_t lease_s, struct mc_meta_kv **out);
    /* Ends the leases that the service knows by itself. */
    void (*close)(struct mc_meta_kv *kv);
    /* Whatever was there before; leased, or for ever. */
    enum mc_status (*put)(struct mc_meta_kv *kv, const char *key, struct mc_str value, bool leased);
    /* Writes (leased) where there is nothing, `value` already, or `old`: MC_ERR_EXISTS otherwise.
     */
    enum mc_status (*claim)(struct mc_meta_kv *kv, const char *key, struct mc_str old,
                            struct mc_str value);
    /* MC_ERR_NOT_FOUND */
    enum mc_status (*get)(struct mc_meta_kv *kv, const char *key, struct mc_buf *value);
    /* MC_ERR_NOT_FOUND */
    enum mc_status (*remove)(struct mc_meta_kv *kv, const char *key);
    /* Of leased records. MC_ERR_NOT_FOUND when one of them is gone. NULL: this service has no
     * leases. */
    enum mc_status (*renew)(struct mc_meta_kv *kv, const char *const *keys, size_t count);
};
struct mc_meta_kv {
    const struct mc_meta_kv_ops *ops;
};
/* The value as upstream writes it into etcd and Redis: with a newline behind it. */
void mc_meta_value_line(struct mc_buf *out, struct mc_str value);
extern const struct mc_meta_kv_ops mc_meta_http_ops;
extern const struct mc_meta_kv_ops mc_meta_etcd_ops;
extern const struct mc_meta_kv_ops mc_meta_redis_ops;

/* The way to peers that a connection string names. */
struct mc_meta;
/* "P2PHANDSHAKE", "http://host:port/metadata", "etcd://host:port[,...]", "etcds://..." (TLS),
 * "redis://host:port[,...]", "rediss://..."; bare host:port[,...] is etcd. Connects to nothing yet.
 * MC_NOT_SUPPORTED for other strings, MC_ERR_BAD_ADDRESS for endpoints that cannot be parsed. */
MC_MUST_USE enum mc_status mc_meta_open(const char *connection,
                                        const struct mc_handshake_limits *limits,
                                        struct mc_meta **out);
void mc_meta_close(struct mc_meta *meta);
bool mc_meta_is_p2p(const struct mc_meta *meta);
const struct mc_handshake_limits *mc_meta_limits(const struct mc_meta *meta);

/* Tells the store that engine `name` answers handshakes on host:port. An entry that a dead engine
 * of the same name left behind is replaced; one whose engine still answers is MC_ERR_EXISTS.
 * Nothing to do for P2P. */
MC_MUST_USE enum mc_status mc_meta_publish_address(struct mc_meta *meta, const char *name,
                                                   const char *host, uint16_t port);
/* The descriptor of an engine, which goes with the engine. */
MC_MUST_USE enum mc_status mc_meta_publish_descriptor(struct mc_meta *meta, const char *name,
                                                      struct mc_str descriptor);
/* One that stays until it is withdrawn: of a segment that is no engine's. */
MC_MUST_USE enum mc_status mc_meta_publish_lasting(struct mc_meta *meta, const char *name,
                                                   struct mc_str descriptor);
/* Prolongs the life of an engine's two records and looks whether they are there: MC_OK,
 * MC_ERR_NOT_FOUND when one is missing, MC_ERR_EXISTS when the name is another engine's by now,
 * else the store's error. */
MC_MUST_USE enum mc_status mc_meta_renew(struct mc_meta *meta, const char *name, const char *host,
                                         uint16_t port);
/* How often mc_meta_renew() is to be called: a third of the lease, 5 s at most. */
uint32_t mc_meta_renew_period_ms(const struct mc_meta *meta);
/* Removes the engine's records, unless the name is another engine's by now. */
void mc_meta_withdraw(struct mc_meta *meta, const char *name, const char *host, uint16_t port);
void mc_meta_withdraw_lasting(struct mc_meta *meta, const char *name);

/* What a store holds under a segment's name, whoever wrote it; of segments that are no engine's and
 * have no address. MC_SEGMENT_NOT_FOUND, MC_NOT_SUPPORTED with P2P. */
MC_MUST_USE enum mc_status mc_meta_get_descriptor(struct mc_meta *meta, const char *name,
                                                  struct mc_buf *out);

struct mc_meta_peer {
    char host[256];
    uint16_t rpc_port;
    struct mc_buf descriptor;
};
/* Finds a peer by segment name. MC_SEGMENT_NOT_FOUND, MC_ERR_BAD_ADDRESS (P2P name that is no
 * host:port), and the handshake's errors. On success free peer->descriptor. */
MC_MUST_USE enum mc_status mc_meta_lookup(struct mc_meta *meta, const char *name,
                                          struct mc_str own_descriptor, uint64_t deadline_ns,
                                          struct mc_meta_peer *peer);

#endif
