/*
 * The HTTP server: libmicrohttpd with one polling thread. See io/http.h.
 *
 * The library calls on_request several times a request: once when the headers are there, then for
 * each piece of the body, then a last time without one. struct call lives from the first to the
 * completion; the body is gathered in it up to the server's limit. A request that is refused (no
 * such path, wrong method, body too large) is read to its end first, so that the client finds the
 * answer instead of a reset; only an announced length over the limit is refused at once.
 *
 * A request whose end could be read in two ways, or with a NUL byte in its address, is refused too.
 *
 * Clients that hold connections and let their requests drip would shut out everybody else. So a new
 * connection is always taken: when CONNECTIONS_KEPT are open, the one goes whose last answer (or
 * beginning) is longest ago. Who asks and is answered is served as long as fewer than that many
 * connections come in the meantime.
 *
 * The listening socket is ours (mc_listen), so "port in use", v4 and v6 together and port 0 work
 * here as everywhere.
 */
#include "io/http.h"

#include <microhttpd.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "io/http_tls.h"
#include "io/io.h"

#define BACKLOG           128
#define CONNECTIONS_KEPT  240
#define CONNECTION_LIMIT  256 /* of the library: more than are kept, for they close a turn later */
#define CONNECTION_IDLE_S 10  /* also of a request that never gets whole */
#define TLS_VERSIONS      "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"
#define CONNECTION_MEMORY (128u << 10) /* headers and URL: a 30 KiB key percent-encoded fits */

struct mc_http_server {
    struct MHD_Daemon *daemon;
    const struct mc_http_route *routes;
    size_t route_count;
    size_t max_body;
    void *ctx;
    struct mc_http_tls *tls;    /* NULL = plain */
    struct mc_list connections; /* struct open, the longest without an answer first */
    unsigned kept;              /* of them */
};

struct open {             /* a connection; the server's thread only */
    struct mc_list entry; /* empty: it was shut down, and will be closed */
    int fd;
    void *tls;
};

struct call {
    struct mc_buf body;
    bool too_large;
};

/* The state of a request before its first call, when its path or an argument has a NUL byte: C
 * strings would end there and mean another. */
static const char has_nul;

const char *mc_http_query(const struct mc_http_request *request, const char *name) {
    return MHD_lookup_connection_value(request->native, MHD_GET_ARGUMENT_KIND, name);
}

/* HEAD is GET without the body, which the library leaves out by itself. */
static bool method_matches(const struct mc_http_route *route, const char *method) {
    return route->method == NULL || strcmp(route->method, method) == 0 ||
           (strcmp(method, MHD_HTTP_METHOD_HEAD) == 0 &&
            strcmp(route->method, MHD_HTTP_METHOD_GET) == 0);
}

/* The route, or NULL with the methods that the path does know in `allowed` (empty = no
 * such path). */
static const struct mc_http_route *find_route(const struct mc_http_server *server,
                                              const char *method, const char *path,
                                              struct mc_buf *allowed) {
    for (size_t i = 0; i < server->route_count; i++) {
        const struct mc_http_route *route = &server->routes[i];
        if (strcmp(route->path, path) != 0) {
            continue;
        }
        if (method_matches(route, method)) {
            return route;
        }
        mc_buf_printf(allowed, "%s%s", allowed->len > 0 ? ", " : "", route->method);
    }
    return NULL;
}

struct framing { /* headers that say where a request ends */
    unsigned lengths, encodings;
    bool odd; /* a name with a space in it */
};

/* Gives the response's body to the library. */
static enum MHD_Result answer(struct MHD_Connection *connection, struct mc_http_response *response,
                              const char *allowed) {
    MC_ASSERT(response->status >= 100 && response->status <= 599);
    bool empty = response->body.len == 0;
    struct MHD_Response *native = MHD_create_response_from_buffer(
        response->body.len, empty ? (void *)"" : response->body.data,
        empty ? MHD_RESPMEM_PERSISTENT : MHD_RESPMEM_MUST_FREE);
    if (empty || native == NULL) {
        mc_buf_free(&response->body);
    }
    if (native == NULL) {
        return MHD_NO;
    }
    enum MHD_Result result =
        MHD_add_response_header(native, MHD_HTTP_HEADER_CONTENT_TYPE, response->content_type);
    if (result == MHD_YES && allowed[0] != '\0') {
        result = MHD_add_response_header(native, MHD_HTTP_HEADER_ALLOW, allowed);
    }
    if (result == MHD_YES) {
        result = MHD_queue_response(connection, (unsigned)response->status, native);
    }
    MHD_destroy_response(native);
    return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, int status, const char *text,
                                   const char *allowed) {
    struct mc_http_response response = {.status = status, .content_type = "text/plain"};
    mc_buf_puts(&response.body, text);
    return answer(connection, &response, allowed);
}

static enum MHD_Result serve(struct mc_http_server *server, struct MHD_Connection *connection,
                             const char *method, const char *path, struct call *call) {
    struct mc_buf allowed = {0};
    const struct mc_http_route *route = find_route(server, method, path, &allowed);
    enum MHD_Result result;
    if (route == NULL && allowed.len == 0) {
        result = answer_text(connection, MHD_HTTP_NOT_FOUND, "no such path\n", "");
    } else if (route == NULL) {
        result = answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "method not allowed\n",
                             mc_buf_cstr(&allowed));
    } else if (call->too_large) {
        result = answer_text(connection, MHD_HTTP_CONTENT_TOO_LARGE, "body too large\n", "");
    } else {
        struct mc_http_request request = {
            method, path, {call->body.data, call->body.len}, connection};
        struct mc_http_response response = {.status = MHD_HTTP_OK, .content_type = "text/plain"};
        route->handle(server->ctx, &request, &response);
        result = answer(connection, &response, "");
    }
    mc_buf_free(&allowed);
    return result;
}

static bool announces_too_much(struct MHD_Connection *connection, size_t max_body) {
    const char *text =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t length;
    return text != NULL && mc_parse_u64(text, 0, UINT64_MAX, &length) == MC_OK && length > max_body;
}

/* Says no before the body is read, and ends the connection. */
static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status,
                              const char *text) {
    struct MHD_Response *native = MHD_create_response_from_buffer(
        strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    if (native == NULL) {
        return MHD_NO;
    }
    enum MHD_Result result =
        MHD_add_response_header(native, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES
            ? MHD_queue_response(connection, status, native)
            : MHD_NO;
    MHD_destroy_response(native);
    return result;
}

/* Whoever stands before this server (a proxy) may read such a header in another way than it, and
 * take for the next request what belongs to this one. */
static enum MHD_Result see_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                  const char *value) {
    struct framing *framing = arg;
    framing->lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    framing->encodings += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    framing->odd |= name[strcspn(name, " \t")] != '\0';
    return MHD_YES;
}

/* The first call for a request: its head is there. */
static enum MHD_Result begin(struct mc_http_server *server, struct MHD_Connection *connection,
                             void **state) {
    struct framing framing = {0};
    bool nul = *state == &has_nul;
    *state = mc_zalloc(sizeof(struct call));
    MHD_get_connection_values(connection, MHD_HEADER_KIND, see_header, &framing);
    if (framing.odd || framing.lengths + framing.encodings > 1) {
        return refuse(connection, MHD_HTTP_BAD_REQUEST, "ambiguous headers\n");
    }
    if (nul) {
        return refuse(connection, MHD_HTTP_BAD_REQUEST, "a NUL byte in the address\n");
    }
    return announces_too_much(connection, server->max_body)
               ? refuse(connection, MHD_HTTP_CONTENT_TOO_LARGE, "body too large\n")
               : MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **state) {
    struct mc_http_server *server = cls;
    struct call *call = *state;
    if (call == NULL || *state == &has_nul) {
        return begin(server, connection, state);
    }
    if (*upload_size == 0) {
        return serve(server, connection, method, path, call);
    }
    if (*upload_size > server->max_body - call->body.len) {
        call->too_large = true;
    } else if (!call->too_large) {
        mc_buf_append(&call->body, upload, *upload_size);
    }
    *upload_size = 0;
    return MHD_YES;
}

/* Before the library takes escapes away; what is returned is the state of on_request. */
static void *on_address(void *cls, const char *address, struct MHD_Connection *connection) {
    return strstr(address, "%00") != NULL ? (void *)(uintptr_t)&has_nul : NULL;
}

static void forget(struct mc_http_server *server, struct open *open) {
    if (!mc_list_empty(&open->entry)) {
        mc_list_del(&open->entry);
        server->kept--;
    }
}

static void keep(struct mc_http_server *server, struct open *open) {
    mc_list_push_back(&server->connections, &open->entry);
    server->kept++;
}

/* No handler runs now, so whichever it is waits for its client. */
static void make_room(struct mc_http_server *server) {
    while (server->kept >= CONNECTIONS_KEPT) {
        struct open *open = mc_container_of(server->connections.next, struct open, entry);
        forget(server, open);
        shutdown(open->fd, SHUT_RDWR); /* the library closes it when it sees that */
    }
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode what) {
    struct mc_http_server *server = cls;
    struct open *open = *state;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        make_room(server);
        *state = open = mc_zalloc(sizeof(*open));
        open->fd =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        keep(server, open);
    }
    if (server->tls != NULL) {
        mc_http_tls_connection(server->tls, connection, &open->tls, what);
    }
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        forget(server, open);
        free(open);
        *state = NULL;
    }
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode how) {
    struct call *call = *state;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct open *open = info->socket_context;
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK && !mc_list_empty(&open->entry)) {
        forget(cls, open);
        keep(cls, open);
    }
    if (call != NULL && *state != &has_nul) {
        mc_buf_free(&call->body);
        free(call);
        *state = NULL;
    }
}

MC_PRINTF(2, 0) static void on_log(void *cls, const char *format, va_list args) {
    char text[512];
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = '\0';
    mc_debug("http server: %s", text);
}

/* Signals are the program's business, so the library's thread starts with all of them blocked. */
static struct MHD_Daemon *start_daemon(struct mc_http_server *server, int fd) {
    const struct MHD_OptionItem with_tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, mc_http_tls_no_certificate},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (char *)(uintptr_t)TLS_VERSIONS},
        {MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem *more = server->tls != NULL ? with_tls : &with_tls[2];
    unsigned flags = MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ERROR_LOG;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        flags | (server->tls != NULL ? MHD_USE_TLS : 0), 0, NULL, NULL, on_request, server,
        MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_URI_LOG_CALLBACK, on_address, NULL, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        server, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTION_LIMIT, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_ARRAY, more,
        MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

enum mc_status mc_http_server_start(const struct mc_http_server_config *config,
                                    struct mc_http_server **out, uint16_t *bound_port) {
    int fd;
    uint16_t bound;
    struct mc_http_tls *tls = NULL;
    if (config->tls != NULL && mc_tls_wanted(config->tls)) {
        MC_TRY(mc_http_tls_create(config->tls, &tls));
    }
    struct mc_http_server *server = mc_alloc(sizeof(*server));
    *server = (struct mc_http_server){.routes = config->routes,
                                      .route_count = config->route_count,
                                      .max_body = config->max_body_bytes,
                                      .ctx = config->ctx,
                                      .tls = tls};
    mc_list_init(&server->connections);
    enum mc_status status = mc_listen(config->host, config->port, BACKLOG, &fd, &bound);
    if (status != MC_OK) {
        goto fail_listen;
    }
    server->daemon = start_daemon(server, fd);
    if (server->daemon == NULL) {
        mc_error("cannot start the HTTP server: host=%s port=%u", config->host, (unsigned)bound);
        status = MC_ERR_IO;
        goto fail_start;
    }
    *out = server;
    *bound_port = bound;
    return MC_OK;

fail_start:
    close(fd);
fail_listen:
    mc_http_tls_destroy(tls);
    free(server);
    return status;
}

void mc_http_server_stop(struct mc_http_server *server) {
    if (server == NULL) {
        return;
    }
    MHD_stop_daemon(server->daemon); /* closes the listening socket too */
    mc_http_tls_destroy(server->tls);
    free(server);
}
