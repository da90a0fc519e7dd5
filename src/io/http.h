/*
 * HTTP: a server (libmicrohttpd, one thread) and a client (libcurl) for administration, metrics and
 * metadata; nothing here is on the data path. Handlers run on the server's one thread: a slow one
 * delays the others. Calls may come from any thread; libcurl is loaded at the first one
 * (MC_NOT_SUPPORTED when the machine has none).
 */
#ifndef MC_IO_HTTP_H
#define MC_IO_HTTP_H

#include "base/base.h"

struct mc_http_request {
    const char *method; /* "GET" */
    const char *path;   /* "/metrics"; without the query */
    struct mc_str body; /* at most the server's max_body */
    void *native;       /* the server's own */
};
struct mc_http_response { /* the handler fills it; starts as 200, text/plain, empty */
    int status;
    const char *content_type;
    struct mc_buf body;
};
/* The decoded value of a query argument, or NULL when it is absent or has no '='; valid during the
 * request. */
const char *mc_http_query(const struct mc_http_request *request, const char *name);

struct mc_http_route {
    const char *method; /* NULL = any; "GET" serves HEAD too */
    const char *path;   /* exact */
    void (*handle)(void *ctx, const struct mc_http_request *request,
                   struct mc_http_response *response);
};

struct mc_tls_config; /* io/tls.h */

struct mc_http_server_config {
    const char *host;                   /* "" = all, v4 and v6 */
    uint16_t port;                      /* 0 = any free */
    const struct mc_http_route *routes; /* must outlive the server */
    size_t route_count;
    size_t max_body_bytes;
    /* Of a server, as for mc_tls_create; NULL, or nothing in it = plain. */
    const struct mc_tls_config *tls;
    void *ctx;
};
struct mc_http_server;
/* Unknown path: 404; known path with another method: 405. MC_ERR_ADDRESS_IN_USE names the port in
 * the log; with TLS also what mc_tls_create says. */
MC_MUST_USE enum mc_status mc_http_server_start(const struct mc_http_server_config *config,
                                                struct mc_http_server **out, uint16_t *bound_port);
void mc_http_server_stop(struct mc_http_server *server);

/* One request, blocking, at most timeout_ms in all (connect_timeout_ms of it for the connection).
 * Transport failures are a status; an HTTP status of any kind is MC_OK with *http_status. `body` is
 * cleared, then filled; MC_ERR_LIMIT when the answer is larger than max_body_bytes. Connections are
 * kept for later calls; redirects and proxies of the environment are not followed. */
struct mc_http_call {
    const char *method;
    const char *url;
    const char *content_type; /* of `send`; NULL = none */
    struct mc_str send;
    uint32_t timeout_ms;         /* 0 = 30 s */
    uint32_t connect_timeout_ms; /* 0 = as timeout_ms */
    size_t max_body_bytes;
    /* Of a client, for https: whom to trust (NULL = the system's CAs), and what to show. */
    const struct mc_tls_config *tls;
    const char *authorization; /* NULL = none; without line breaks */
};
MC_MUST_USE enum mc_status mc_http_call(const struct mc_http_call *call, int *http_status,
                                        struct mc_buf *body);
/* Percent-encodes everything but unreserved characters. */
void mc_http_escape(struct mc_buf *out, struct mc_str text);

#endif
