/*
 * Handshake server: one listener and its connections on one reactor.
 *
 * A connection is a straight walk: length, body, answer written, our side shut, the peer closes.
 * Nothing waits: a peer that stalls holds only its own connection, and the timer of its whole life
 * ends that. Bytes are stored as they arrive, so a peer that claims a long frame and sends none
 * costs nothing.
 */
#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "io/io.h"
#include "io/tls.h"
#include "meta/meta.h"

#define READ_CHUNK    16384
#define STAGE_IDLE_MS 60000u /* a connection for staging that asks nothing for so long ends */

enum conn_state { CONN_READING, CONN_ANSWERING, CONN_WRITING, CONN_CLOSING };

struct mc_handshake_server {
    struct mc_reactor *reactor;
    struct mc_handshake_handler handler;
    struct mc_handshake_limits limits;
    struct mc_acceptor acceptor;
    struct mc_list conns;
    unsigned conn_count;
    struct mc_metrics *metrics;
    struct mc_metric requests[5]; /* by type */
    struct mc_metric rejected;    /* malformed, timed out or over the limit */
    _Atomic uint32_t refs;        /* the owner's and one for each call not answered */
};

/* A request that is answered later. It outlives its connection when that ends first. */
struct mc_handshake_call {
    struct mc_task task;
    struct mc_handshake_server *server;
    struct conn *conn; /* reactor's thread; NULL: gone */
    struct mc_buf body;
};

struct conn {
    struct mc_handshake_server *server;
    struct mc_list link;
    struct mc_reactor_fd io;
    struct mc_stream stream;
    struct mc_timer timer;
    enum conn_state state;
    struct mc_buf in;
    struct mc_buf out;
    size_t sent;
    struct mc_handshake_call *call; /* while CONN_ANSWERING */
    bool stays;                     /* for further requests: it is one for staging */
    void *stage_state;              /* the handler's */
};

static void conn_free(struct conn *c) {
    if (c->call != NULL) {
        c->call->conn = NULL;
    }
    if (c->stage_state != NULL) {
        c->server->handler.stage_closed(c->server->handler.ctx, c->stage_state);
    }
    mc_timer_stop(c->server->reactor, &c->timer);
    mc_reactor_remove(c->server->reactor, &c->io);
    c->stream.ops->close(&c->stream);
    mc_list_del(&c->link);
    c->server->conn_count--;
    mc_buf_free(&c->in);
    mc_buf_free(&c->out);
    free(c);
}

static void conn_reject(struct conn *c, const char *why) {
    mc_metric_add(&c->server->rejected, 1);
    mc_warn_limited("handshake connection closed reason=\"%s\"", why);
    conn_free(c);
}

static void on_conn_timer(struct mc_timer *timer) {
    struct conn *c = mc_container_of(timer, struct conn, timer);
    /* Answered, and the peer is slow to close; or it has nothing more to ask. */
    if (c->state == CONN_CLOSING || (c->stays && c->state == CONN_READING && c->in.len == 0)) {
        conn_free(c);
    } else {
        conn_reject(c, "the peer took too long");
    }
}

/* ---- answers ---- */

static void put_json(struct mc_buf *out, json_t *json) {
    char *text = json_dumps(json, JSON_COMPACT);
    MC_ASSERT(text != NULL);
    mc_buf_puts(out, text);
    free(text);
    json_decref(json);
}

static struct mc_str json_text(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_string(value)
               ? (struct mc_str){json_string_value(value), json_string_length(value)}
               : (struct mc_str){NULL, 0};
}

static enum mc_status answer_notify(struct conn *c, struct mc_str body) {
    json_t *request = json_loadb(body.ptr, body.len, 0, NULL);
    if (!json_is_object(request)) {
        json_decref(request);
        return MC_ERR_PROTOCOL;
    }
    enum mc_status status = c->server->handler.notify(
        c->server->handler.ctx, json_text(request, "name"), json_text(request, "notify_msg"));
    json_decref(request);
    put_json(&c->out,
             json_pack("{s:s, s:s}", "name", "", "notify_msg", status == MC_OK ? "success" : ""));
    return MC_OK;
}

static void reject_connection(struct conn *c, struct mc_str body) {
    json_t *request = json_loadb(body.ptr, body.len, 0, NULL);
    json_t *path = json_object_get(request, "local_nic_path");
    put_json(&c->out, json_pack("{s:s, s:s, s:[], s:s}", "local_nic_path", "", "peer_nic_path",
                                json_is_string(path) ? json_string_value(path) : "", "qp_num",
                                "reply_msg", "no RDMA here"));
    json_decref(request);
}

static void conn_write(struct conn *c);
static void finish_frame(struct conn *c);

static void server_put(struct mc_handshake_server *server) {
    if (atomic_fetch_sub_explicit(&server->refs, 1, memory_order_acq_rel) == 1) {
        free(server);
    }
}

static void run_answer(struct mc_task *task) {
    struct mc_handshake_call *call = mc_container_of(task, struct mc_handshake_call, task);
    struct conn *c = call->conn;
    if (c != NULL) {
        c->call = NULL;
        c->state = CONN_WRITING;
        mc_buf_append(&c->out, call->body.data, call->body.len);
        finish_frame(c);
        conn_write(c);
    }
    mc_buf_free(&call->body);
    server_put(call->server);
    free(call);
}

void mc_handshake_answer(struct mc_handshake_call *call, struct mc_str body) {
    mc_buf_append(&call->body, body.ptr, body.len);
    mc_reactor_post(call->server->reactor, &call->task);
}

static struct mc_handshake_call *call_create(struct conn *c) {
    struct mc_handshake_call *call = mc_zalloc(sizeof(*call));
    call->task.run = run_answer;
    call->server = c->server;
    call->conn = c;
    c->call = call;
    c->state = CONN_ANSWERING;
    atomic_fetch_add_explicit(&c->server->refs, 1, memory_order_relaxed);
    return call;
}

/* The handler did not take it. */
static void call_drop(struct mc_handshake_call *call) {
    call->conn->call = NULL;
    call->conn->state = CONN_READING;
    server_put(call->server);
    free(call);
}

static void answer_connection(struct conn *c, struct mc_str body) {
    const struct mc_handshake_handler *handler = &c->server->handler;
    if (handler->connection != NULL) {
        struct mc_handshake_call *call = call_create(c);
        if (handler->connection(handler->ctx, body, call)) {
            return;
        }
        call_drop(call);
    }
    reject_connection(c, body);
}

static enum mc_status answer_stage(struct conn *c, struct mc_str body) {
    const struct mc_handshake_handler *handler = &c->server->handler;
    if (handler->stage == NULL) {
        return MC_ERR_PROTOCOL;
    }
    c->stays = true;
    mc_timer_start(c->server->reactor, &c->timer,
                   mc_now_ns(mc_clock_system()) + STAGE_IDLE_MS * MC_MS);
    struct mc_handshake_call *call = call_create(c);
    if (handler->stage(handler->ctx, &c->stage_state, body, call)) {
        return MC_OK;
    }
    call_drop(call);
    return MC_ERR_PROTOCOL;
}

static enum mc_status answer_body(struct conn *c, unsigned type, struct mc_str body) {
    switch (type) {
    case MC_HANDSHAKE_CONNECTION:
        answer_connection(c, body);
        return MC_OK;
    case MC_HANDSHAKE_METADATA:
        c->server->handler.metadata(c->server->handler.ctx, body, &c->out);
        return MC_OK;
    case MC_HANDSHAKE_NOTIFY:
        return answer_notify(c, body);
    case MC_HANDSHAKE_STAGE:
        return answer_stage(c, body);
    case MC_HANDSHAKE_PROBE:
        mc_buf_puts(&c->out, "{\"status\":\"success\"}");
        return MC_OK;
    default:
        return MC_ERR_PROTOCOL;
    }
}

/* The request is complete in c->in. Peers from before the type byte send JSON right away and get it
 * so. */
static enum mc_status answer(struct conn *c) {
    struct mc_str body = {c->in.data + 8, c->in.len - 8};
    bool legacy = body.ptr[0] == '{';
    unsigned type = legacy ? MC_HANDSHAKE_CONNECTION : (uint8_t)body.ptr[0];
    uint64_t length = 0;
    mc_buf_append(&c->out, &length, sizeof(length));
    if (!legacy) {
        mc_buf_putc(&c->out, (char)type);
        body.ptr++;
        body.len--;
    }
    MC_TRY(answer_body(c, type, body));
    mc_metric_add(&c->server->requests[type], 1);
    finish_frame(c);
    return MC_OK;
}

static void finish_frame(struct conn *c) {
    uint64_t length = c->out.len - 8;
    memcpy(c->out.data, &length, sizeof(length));
}

/* ---- the walk ---- */

/* The answer is out; the next request may come. */
static void conn_again(struct conn *c) {
    mc_buf_clear(&c->in);
    mc_buf_clear(&c->out);
    c->sent = 0;
    c->state = CONN_READING;
    mc_timer_start(c->server->reactor, &c->timer,
                   mc_now_ns(mc_clock_system()) + STAGE_IDLE_MS * MC_MS);
    mc_reactor_modify(c->server->reactor, &c->io, EPOLLIN);
}

static void conn_write(struct conn *c) {
    while (c->sent < c->out.len) {
        struct iovec iov = {c->out.data + c->sent, c->out.len - c->sent};
        size_t n = 0;
        if (c->stream.ops->writev(&c->stream, &iov, 1, &n) != MC_OK) {
            conn_reject(c, "the peer went away before the answer");
            return;
        }
        if (n == 0) {
            mc_reactor_modify(c->server->reactor, &c->io, EPOLLOUT);
            return;
        }
        c->sent += n;
    }
    if (c->stays) {
        conn_again(c);
        return;
    }
    c->state = CONN_CLOSING;
    shutdown(c->stream.fd, SHUT_WR);
    mc_reactor_modify(c->server->reactor, &c->io, EPOLLIN);
}

/* Reads what is there, up to the end of the frame. *complete says whether it is whole. */
static enum mc_status conn_read(struct conn *c, bool *complete) {
    *complete = false;
    for (;;) {
        uint64_t want = 8;
        if (c->in.len >= 8) {
            uint64_t length;
            memcpy(&length, c->in.data, sizeof(length));
            if (length == 0 || length > c->server->limits.max_frame_bytes) {
                return MC_ERR_PROTOCOL;
            }
            want = 8 + length;
        }
        if (c->in.len == want) {
            *complete = true;
            return MC_OK;
        }
        size_t chunk = (size_t)mc_min_u64(want - c->in.len, READ_CHUNK);
        mc_buf_reserve(&c->in, chunk);
        struct iovec iov = {c->in.data + c->in.len, chunk};
        size_t n = 0;
        MC_TRY(c->stream.ops->readv(&c->stream, &iov, 1, &n));
        if (n == 0) {
            return MC_OK;
        }
        c->in.len += n;
    }
}

static void on_conn_ready(struct mc_reactor_fd *io, uint32_t events) {
    struct conn *c = mc_container_of(io, struct conn, io);
    if (c->state == CONN_CLOSING) { /* whatever arrives now, the end or noise, ends it */
        conn_free(c);
        return;
    }
    if (c->state == CONN_ANSWERING) { /* nothing is listened for, so the peer has gone */
        conn_free(c);
        return;
    }
    if (c->state == CONN_READING) {
        bool complete;
        enum mc_status status = conn_read(c, &complete);
        if (status == MC_ERR_CLOSED && c->in.len == 0) {
            conn_free(c); /* a port check */
            return;
        }
        if (status == MC_OK && !complete) {
            bool out = mc_stream_wants_out(&c->stream); /* TLS: its handshake has more to say */
            mc_reactor_modify(c->server->reactor, io, out ? EPOLLOUT : EPOLLIN);
            return;
        }
        if (status != MC_OK || answer(c) != MC_OK) {
            conn_reject(c, "malformed or cut off request");
            return;
        }
        if (c->state == CONN_ANSWERING) {
            mc_reactor_modify(c->server->reactor, &c->io, 0);
            return;
        }
        c->state = CONN_WRITING;
    }
    conn_write(c);
}

static void conn_start(struct mc_handshake_server *server, int fd, const char *peer) {
    struct conn *c = mc_zalloc(sizeof(*c));
    c->server = server;
    c->state = CONN_READING;
    mc_stream_serve(&c->stream, fd, server->limits.tls, peer);
    mc_timer_init(&c->timer, on_conn_timer);
    c->io = (struct mc_reactor_fd){.fd = fd, .events = EPOLLIN, .on_ready = on_conn_ready};
    if (mc_reactor_add(server->reactor, &c->io) != MC_OK) {
        c->stream.ops->close(&c->stream);
        free(c);
        return;
    }
    mc_list_push_back(&server->conns, &c->link);
    server->conn_count++;
    mc_timer_start(server->reactor, &c->timer,
                   mc_now_ns(mc_clock_system()) + server->limits.serve_timeout_ms * MC_MS);
}

static void accepted(struct mc_acceptor *acceptor, int fd, const struct mc_addr *peer) {
    struct mc_handshake_server *server =
        mc_container_of(acceptor, struct mc_handshake_server, acceptor);
    if (server->conn_count >= server->limits.max_connections) {
        mc_metric_add(&server->rejected, 1);
        mc_warn_limited("handshake connection refused limit=%u", server->limits.max_connections);
        close(fd);
        return;
    }
    char name[MC_HOST_MAX + 8];
    mc_addr_format(peer, name, sizeof(name));
    conn_start(server, fd, name);
}

/* ---- life ---- */

static void close_all(void *arg) {
    struct mc_handshake_server *server = arg;
    while (!mc_list_empty(&server->conns)) {
        conn_free(mc_container_of(server->conns.next, struct conn, link));
    }
}

static void register_metrics(struct mc_handshake_server *server) {
    static const char *const labels[] = {"type=\"connection\"", "type=\"metadata\"",
                                         "type=\"notify\"", "type=\"probe\"", "type=\"stage\""};
    for (size_t i = 0; i < MC_ARRAY_LEN(labels); i++) {
        mc_metrics_register(server->metrics, MC_METRIC_COUNTER,
                            "mooncake_te_handshake_requests_total", labels[i],
                            "handshake requests answered", &server->requests[i]);
    }
    mc_metrics_register(server->metrics, MC_METRIC_COUNTER, "mooncake_te_handshake_rejected_total",
                        "", "handshake connections closed: malformed, too slow or too many",
                        &server->rejected);
}

enum mc_status mc_handshake_serve(struct mc_reactor *reactor, int listen_fd,
                                  const struct mc_handshake_handler *handler,
                                  const struct mc_handshake_limits *limits,
                                  struct mc_metrics *metrics, struct mc_handshake_server **out) {
    struct mc_handshake_server *server = mc_zalloc(sizeof(*server));
    server->reactor = reactor;
    atomic_store_explicit(&server->refs, 1, memory_order_relaxed);
    server->handler = *handler;
    server->limits = *limits;
    server->metrics = metrics;
    mc_list_init(&server->conns);
    enum mc_status status = mc_acceptor_start(&server->acceptor, reactor, listen_fd, accepted);
    if (status != MC_OK) {
        free(server);
        return status;
    }
    register_metrics(server);
    *out = server;
    return MC_OK;
}

void mc_handshake_stop(struct mc_handshake_server *server) {
    if (server == NULL) {
        return;
    }
    mc_acceptor_stop(&server->acceptor);
    mc_reactor_call(server->reactor, close_all, server);
    mc_metrics_unregister_range(server->metrics, server, sizeof(*server));
    server_put(server);
}
