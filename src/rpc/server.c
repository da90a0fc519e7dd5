/*
 * The RPC server: an acceptor and N workers, each a reactor with its connections. See rpc.h.
 *
 * A worker reads into one buffer that all its connections share and handles the frames where they
 * lie; only a frame that is not complete yet is copied into a buffer of its connection, which grows
 * with the bytes that really came (a header's claim reserves nothing). Answers to the frames of one
 * read go out in one write; what the socket does not take stays with the connection, and while more
 * than OUT_LIMIT stays, its requests wait: unread in the socket, or unhandled in `in`. So an idle
 * connection owns no buffer at all.
 *
 * A connection is OPEN, or CLOSING: nothing more is handled, the answers left are written, the
 * sending side is shut down, and input is thrown away until the peer closes or LINGER_MS passed.
 * Closing at once with unread input would make the kernel send a reset, which can overtake the last
 * answer.
 *
 * A request that its handler calls slow runs aside, on threads that all workers share, so that it
 * delays nobody but its own connection: that one handles and reads nothing until the answer is
 * back, which keeps its answers in order. A connection that ends meanwhile is freed when the
 * request is through. So at most one request a connection waits there.
 *
 * Everything but the acceptor's counts and what runs aside belongs to the worker's thread.
 */
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "io/io.h"
#include "io/tls.h"
#include "rpc/frame.h"
#include "wire/schema.h"

#define READ_BYTES              (256u << 10)
#define OUT_FLUSH               (256u << 10) /* answers of one read leave in pieces of about this */
#define OUT_LIMIT               (4u << 20)   /* bytes of answers that a peer may leave unread */
#define KEEP_BYTES              (1u << 20)   /* a worker's buffers above this are given back */
#define PROGRESS_BYTES          (64u << 10)  /* of a frame: so much counts as a sign of life */
#define LINGER_MS               1000
#define LISTEN_BACKLOG          1024
#define MAX_WORKERS             256
#define MAX_ASIDE               64
#define PEER_TEXT               96
#define DEFAULT_MAX_CONNECTIONS 65536
#define DEFAULT_MAX_BUFFERED    (2ull << 30)
#define BUDGET_FREE_BYTES       (64u << 10) /* a connection of less is never closed for the sum */

/* A request on its way to the thread aside and back. */
struct aside {
    struct mc_task there, back;
    struct connection *connection;
    struct mc_rpc_request request; /* of the payload behind this struct */
    enum mc_rpc_errc errc;
    uint32_t seq;
    unsigned thread; /* which of those aside */
    struct mc_arena arena;
    struct mc_buf body, attachment;
    char payload[];
};

struct connection {
    struct mc_reactor_fd watch;
    struct mc_stream stream;
    struct worker *worker;
    struct mc_list link; /* in worker->open or worker->closing, longest silent first */
    uint64_t sign_of_life_ns;
    size_t progress; /* bytes since the sign of life */
    struct mc_buf in;
    struct mc_buf out;
    size_t out_sent;  /* of out */
    size_t accounted; /* of the server's buffered bytes */
    bool closing;
    bool input_ended; /* implies closing */
    bool shut;        /* the sending side is shut down */
    bool gone;        /* closed, and freed when `aside` is back */
    struct aside *aside;
    uint64_t peer_words[MC_RPC_PEER_WORDS];
    struct mc_task adopt;
    char peer[PEER_TEXT];
};

struct worker {
    struct mc_rpc_server *server;
    struct mc_reactor *reactor;
    struct mc_list open;
    struct mc_list closing;
    struct mc_timer sweep;
    struct mc_arena arena;
    struct mc_buf out; /* answers of the read in progress, when the connection has none waiting */
    struct mc_buf body, attachment;
    uint64_t requests, errors; /* of the read in progress */
    atomic_uint connections;   /* counted by the acceptor, so that a burst spreads evenly */
    char *scratch;
};

struct mc_rpc_server {
    struct mc_rpc_server_config config;
    struct mc_acceptor acceptor; /* on workers[0] */
    unsigned worker_count;
    struct worker *workers;
    struct mc_reactor *aside[MAX_ASIDE];    /* run slow requests; NULL when there are none */
    _Atomic unsigned aside_load[MAX_ASIDE]; /* requests that are there or on their way */
    uint32_t text_hash;
    _Atomic size_t buffered; /* buffers of all connections */
    struct {
        struct mc_metric connections, refused, requests, slow, errors, bad_frames, received, sent;
        struct mc_metric over_budget;
    } metrics;
};

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- life of a connection ---- */

/* What the connection's buffers take goes into the server's sum. False when it must go, for the sum
 * is over the budget and it has a good part in that. */
static bool account(struct connection *c, size_t bytes) {
    struct mc_rpc_server *s = c->worker->server;
    if (bytes == c->accounted) {
        return true;
    }
    bool grew = bytes > c->accounted;
    /* relaxed: a number, nothing hangs on its order */
    size_t sum =
        atomic_fetch_add_explicit(&s->buffered, bytes - c->accounted, memory_order_relaxed) +
        (bytes - c->accounted);
    c->accounted = bytes;
    return !grew || bytes < BUDGET_FREE_BYTES || sum <= s->config.max_buffered_bytes;
}

static size_t buffers_of(const struct connection *c) {
    size_t aside =
        c->aside == NULL ? 0 : c->aside->request.body.len + c->aside->request.attachment.len;
    return c->in.cap + c->out.cap + aside;
}

static void connection_forget(struct connection *c) {
    struct worker *w = c->worker;
    (void)account(c, 0);
    const struct mc_rpc_server_config *config = &w->server->config;
    if (config->closed != NULL) {
        config->closed(config->ctx, c->peer_words, c->peer);
    }
    mc_buf_free(&c->in);
    mc_buf_free(&c->out);
    atomic_fetch_sub_explicit(&w->connections, 1, memory_order_relaxed);
    mc_metric_add(&w->server->metrics.connections, -1);
    free(c);
}

static void connection_free(struct connection *c) {
    mc_reactor_remove(c->worker->reactor, &c->watch);
    c->stream.ops->close(&c->stream);
    mc_list_del(&c->link);
    if (c->aside != NULL) {
        c->gone = true;
    } else {
        connection_forget(c);
    }
}

static void sign_of_life(struct connection *c) {
    if (c->worker->server->config.idle_timeout_ms == 0 && !c->closing) {
        return; /* nobody looks: spare the clock */
    }
    c->sign_of_life_ns = now_ns();
    c->progress = 0;
    mc_list_del(&c->link);
    mc_list_push_back(c->closing ? &c->worker->closing : &c->worker->open, &c->link);
}

static void sweep_start(struct worker *w) {
    uint64_t period_ms = LINGER_MS / 4;
    uint64_t idle_ms = w->server->config.idle_timeout_ms;
    if (idle_ms != 0 && idle_ms / 4 < period_ms) {
        period_ms = idle_ms / 4 + 1;
    }
    if (w->sweep.heap_index == SIZE_MAX) {
        mc_timer_start(w->reactor, &w->sweep, now_ns() + period_ms * MC_MS);
    }
}

static void sweep_list(struct mc_list *list, uint64_t limit_ms, uint64_t now, bool complain) {
    while (!mc_list_empty(list)) {
        struct connection *c = mc_container_of(list->next, struct connection, link);
        if (now - c->sign_of_life_ns < limit_ms * MC_MS) {
            break;
        }
        if (c->aside != NULL) { /* the silence is ours */
            c->sign_of_life_ns = now;
            mc_list_del(&c->link);
            mc_list_push_back(list, &c->link);
            continue;
        }
        if (complain) {
            mc_debug("closing a silent connection: peer=%s idle_timeout_ms=%llu", c->peer,
                     (unsigned long long)limit_ms);
        }
        connection_free(c);
    }
}

static void on_sweep(struct mc_timer *timer) {
    struct worker *w = mc_container_of(timer, struct worker, sweep);
    uint64_t now = now_ns(), idle_ms = w->server->config.idle_timeout_ms;
    sweep_list(&w->closing, LINGER_MS, now, false);
    if (idle_ms != 0) {
        sweep_list(&w->open, idle_ms, now, true);
    }
    if (!mc_list_empty(&w->closing) || (idle_ms != 0 && !mc_list_empty(&w->open))) {
        sweep_start(w);
    }
}

/* From now on only the answers that wait are written. */
static void connection_start_closing(struct connection *c) {
    struct worker *w = c->worker;
    c->closing = true;
    c->sign_of_life_ns = now_ns();
    mc_buf_free(&c->in);
    mc_list_del(&c->link);
    mc_list_push_back(&w->closing, &c->link);
    sweep_start(w);
}

/* ---- writing ---- */

static size_t waiting_bytes(const struct connection *c) {
    return c->out.len - c->out_sent;
}

/* Writes what the socket takes of bytes[*sent..len). */
static enum mc_status write_some(struct connection *c, const char *bytes, size_t len,
                                 size_t *sent) {
    while (*sent < len) {
        struct iovec iov = {(char *)bytes + *sent, len - *sent};
        size_t n = 0;
        MC_TRY(c->stream.ops->writev(&c->stream, &iov, 1, &n));
        if (n == 0) {
            break;
        }
        *sent += n;
        mc_metric_add(&c->worker->server->metrics.sent, (int64_t)n);
    }
    return MC_OK;
}

static void drop_sent(struct connection *c) {
    if (c->out_sent == c->out.len) {
        mc_buf_free(&c->out);
        c->out_sent = 0;
    } else if (c->out_sent > waiting_bytes(c)) { /* a peer that is always a little behind */
        memmove(c->out.data, c->out.data + c->out_sent, waiting_bytes(c));
        c->out.len -= c->out_sent;
        c->out_sent = 0;
    }
}

/* The answers made so far leave: first what waits in c->out, then (c->out being empty) the worker's
 * buffer, whose rest moves into c->out. */
static enum mc_status flush(struct connection *c) {
    struct worker *w = c->worker;
    if (waiting_bytes(c) > 0) {
        size_t before = c->out_sent;
        MC_TRY(write_some(c, c->out.data, c->out.len, &c->out_sent));
        if (c->out_sent > before) {
            sign_of_life(c);
        }
        drop_sent(c);
    }
    if (w->out.len > 0) {
        size_t sent = 0;
        MC_ASSERT(c->out.len == 0);
        MC_TRY(write_some(c, w->out.data, w->out.len, &sent));
        mc_buf_append(&c->out, w->out.data + sent, w->out.len - sent);
        w->out.len = 0;
    }
    if (c->closing && waiting_bytes(c) == 0 && !c->shut) {
        c->shut = true;
        shutdown(c->stream.fd, SHUT_WR);
    }
    return MC_OK;
}

static void append_answer(struct connection *c, uint32_t seq, struct mc_rpc_reply *reply) {
    struct worker *w = c->worker;
    if (reply->body->len > MC_RPC_MAX_BODY || reply->attachment->len > MC_RPC_MAX_BODY) {
        reply->errc = MC_RPC_MESSAGE_TOO_LARGE;
    }
    if (reply->errc != MC_RPC_OK) {
        struct mc_str text = mc_str_from(mc_rpc_errc_text(reply->errc));
        mc_buf_clear(reply->body);
        mc_buf_clear(reply->attachment);
        mc_wire_encode(&mc_t_str, w->server->text_hash, &text, reply->body);
        w->errors++;
    }
    struct mc_rpc_reply_header header = {
        .magic = MC_RPC_MAGIC,
        .version = MC_RPC_VERSION,
        .errc = (uint8_t)reply->errc,
        .seq = seq,
        .length = (uint32_t)reply->body->len,
        .attach_length = (uint32_t)reply->attachment->len,
    };
    struct mc_buf *out = waiting_bytes(c) > 0 ? &c->out : &w->out;
    mc_buf_reserve(out, sizeof(header) + reply->body->len + reply->attachment->len);
    mc_buf_append(out, &header, sizeof(header));
    mc_buf_append(out, reply->body->data, reply->body->len);
    mc_buf_append(out, reply->attachment->data, reply->attachment->len);
}

static void buffer_reuse(struct mc_buf *buf) {
    if (buf->cap > KEEP_BYTES) {
        mc_buf_free(buf);
    }
    buf->len = 0;
}

/* ---- reading and handling ---- */

/* On the thread aside. */
static void aside_run(struct mc_task *task) {
    struct aside *aside = mc_container_of(task, struct aside, there);
    struct worker *w = aside->connection->worker;
    struct mc_rpc_reply reply = {MC_RPC_OK, &aside->body, &aside->attachment};
    w->server->config.handler(w->server->config.ctx, &aside->request, &reply);
    aside->errc = reply.errc;
    atomic_fetch_sub_explicit(&w->server->aside_load[aside->thread], 1, memory_order_relaxed);
    mc_reactor_post(w->reactor, &aside->back);
}

static void aside_back(struct mc_task *task); /* goes on with the connection */

static void handle_frame(struct connection *c, const struct mc_rpc_request_header *header,
                         const char *payload) {
    struct worker *w = c->worker;
    struct mc_rpc_request request = {
        .function_id = header->function_id,
        .body = {payload, header->length},
        .attachment = {payload + header->length, header->attach_length},
        .arena = &w->arena,
        .peer = c->peer,
        .peer_words = c->peer_words,
    };
    struct mc_rpc_reply reply = {MC_RPC_OK, &w->body, &w->attachment};
    w->server->config.handler(w->server->config.ctx, &request, &reply);
    append_answer(c, header->seq, &reply);
    mc_arena_reset(&w->arena);
    buffer_reuse(&w->body);
    buffer_reuse(&w->attachment);
    w->requests++;
}

/* A guess is enough: other workers choose at the same time. */
static unsigned least_loaded_aside(struct mc_rpc_server *s) {
    unsigned best = 0, load = UINT_MAX;
    for (unsigned i = 0; i < s->config.slow_threads; i++) {
        unsigned n = atomic_load_explicit(&s->aside_load[i], memory_order_relaxed);
        if (n < load) {
            best = i;
            load = n;
        }
    }
    return best;
}

/* Copies the request and sends it on its way; true unless it is to be handled here. */
static bool handle_aside(struct connection *c, const struct mc_rpc_request_header *header,
                         const char *payload) {
    const struct mc_rpc_server_config *config = &c->worker->server->config;
    if (config->slow == NULL || !config->slow(config->ctx, header->function_id)) {
        return false;
    }
    size_t len = (size_t)header->length + header->attach_length;
    struct aside *aside = mc_alloc(sizeof(*aside) + len);
    *aside = (struct aside){
        .there.run = aside_run,
        .back.run = aside_back,
        .connection = c,
        .request = {.function_id = header->function_id,
                    .body = {aside->payload, header->length},
                    .attachment = {aside->payload + header->length, header->attach_length},
                    .arena = &aside->arena,
                    .peer = c->peer,
                    .peer_words = c->peer_words},
        .seq = header->seq};
    if (len > 0) {
        memcpy(aside->payload, payload, len);
    }
    c->aside = aside;
    struct mc_rpc_server *server = c->worker->server;
    aside->thread = least_loaded_aside(server);
    atomic_fetch_add_explicit(&server->aside_load[aside->thread], 1, memory_order_relaxed);
    mc_reactor_post(server->aside[aside->thread], &aside->there);
    return true;
}

static void refuse_too_large(struct connection *c, const struct mc_rpc_request_header *header) {
    struct worker *w = c->worker;
    struct mc_rpc_reply reply = {MC_RPC_MESSAGE_TOO_LARGE, &w->body, &w->attachment};
    mc_warn_limited("request is too large: peer=%s function=0x%08x body=%u attachment=%u limit=%u",
                    c->peer, header->function_id, header->length, header->attach_length,
                    w->server->config.max_body_bytes);
    append_answer(c, header->seq, &reply);
    buffer_reuse(&w->body);
    connection_start_closing(c);
}

/* The requests before it are answered, it is not, as upstream does. */
static void refuse_bad_frame(struct connection *c, const struct mc_rpc_request_header *header) {
    mc_warn_limited("not an RPC frame: peer=%s magic=%u version=%u", c->peer, header->magic,
                    header->version);
    mc_metric_add(&c->worker->server->metrics.bad_frames, 1);
    connection_start_closing(c);
}

static bool header_valid(const struct mc_rpc_request_header *h) {
    return h->magic == MC_RPC_MAGIC && h->version == MC_RPC_VERSION &&
           h->serialize_type == MC_RPC_STRUCT_PACK;
}

/* Handles the complete frames of bytes[0..len) until one is cut short, answers pile up, or the
 * connection is to close. *used is what was consumed; *need how long a buffer the next frame wants
 * (0 = not known). */
static enum mc_status handle_frames(struct connection *c, const char *bytes, size_t len,
                                    size_t *used, size_t *need) {
    struct worker *w = c->worker;
    struct mc_rpc_request_header header;
    *used = 0;
    *need = 0;
    while (!c->closing && c->aside == NULL && waiting_bytes(c) <= OUT_LIMIT &&
           len - *used >= sizeof(header)) {
        memcpy(&header, bytes + *used, sizeof(header));
        if (!header_valid(&header)) {
            refuse_bad_frame(c, &header);
            break;
        }
        uint64_t payload = (uint64_t)header.length + header.attach_length;
        if (payload > w->server->config.max_body_bytes) {
            refuse_too_large(c, &header);
            break;
        }
        if (len - *used - sizeof(header) < payload) {
            *need = sizeof(header) + (size_t)payload;
            break;
        }
        if (!handle_aside(c, &header, bytes + *used + sizeof(header))) {
            handle_frame(c, &header, bytes + *used + sizeof(header));
        }
        *used += sizeof(header) + (size_t)payload;
        if (w->out.len >= OUT_FLUSH) {
            MC_TRY(flush(c));
        }
    }
    return MC_OK;
}

/* Reads what is there. Into c->in when a frame has begun there, else into the
 * scratch. */
static enum mc_status read_input(struct connection *c, char **bytes, size_t *len) {
    struct worker *w = c->worker;
    struct iovec iov = {w->scratch, READ_BYTES};
    if (c->in.len > 0) {
        size_t room = c->in.cap - c->in.len;
        if (room == 0) { /* grows with what came, not with what a header promises */
            mc_buf_reserve(&c->in, mc_min_u64(c->in.len, 16u << 20));
            room = c->in.cap - c->in.len;
        }
        iov = (struct iovec){c->in.data + c->in.len, room};
    }
    size_t n = 0;
    MC_TRY(c->stream.ops->readv(&c->stream, &iov, 1, &n));
    mc_metric_add(&w->server->metrics.received, (int64_t)n);
    c->progress += n;
    if (c->in.len > 0) {
        c->in.len += n;
        *bytes = c->in.data;
        *len = c->in.len;
    } else {
        *bytes = w->scratch;
        *len = n;
    }
    return MC_OK;
}

/* What handle_frames left of bytes[0..len) becomes c->in. */
static void keep_rest(struct connection *c, const char *bytes, size_t len, size_t used,
                      size_t need) {
    size_t rest = len - used;
    if (c->in.len == 0 && rest > 0) {
        size_t cap = mc_min_u64(mc_max_u64(need, rest), rest + READ_BYTES);
        mc_buf_reserve(&c->in, cap);
        mc_buf_append(&c->in, bytes + used, rest);
    } else if (rest == 0) {
        mc_buf_free(&c->in);
    } else if (used > 0) {
        memmove(c->in.data, c->in.data + used, rest);
        c->in.len = rest;
    }
}

static void count_requests(struct worker *w) {
    mc_metric_add(&w->server->metrics.requests, (int64_t)w->requests);
    if (w->errors > 0) {
        mc_metric_add(&w->server->metrics.errors, (int64_t)w->errors);
    }
    w->requests = w->errors = 0;
}

static enum mc_status process(struct connection *c, const char *bytes, size_t len) {
    bool held_back;
    do {
        size_t used, need;
        enum mc_status status = handle_frames(c, bytes, len, &used, &need);
        if (c->worker->requests > 0 || c->progress >= PROGRESS_BYTES) {
            sign_of_life(c);
        }
        count_requests(c->worker);
        MC_TRY(status);
        if (!c->closing) {
            keep_rest(c, bytes, len, used, need);
        }
        held_back = waiting_bytes(c) > OUT_LIMIT;
        MC_TRY(flush(c));
        bytes = c->in.data;
        len = c->in.len;
        /* When this write made room, no event will come for the requests that are here already. */
    } while (held_back && waiting_bytes(c) <= OUT_LIMIT && !c->closing && c->aside == NULL &&
             len > 0);
    return MC_OK;
}

static enum mc_status throw_away_input(struct connection *c) {
    struct iovec iov = {c->worker->scratch, READ_BYTES};
    size_t n = 0;
    return c->stream.ops->readv(&c->stream, &iov, 1, &n);
}

/* The peer sends no more, but may still read: what was asked before is answered. */
static enum mc_status end_of_input(struct connection *c) {
    if (waiting_bytes(c) == 0) {
        return MC_ERR_CLOSED;
    }
    c->input_ended = true;
    connection_start_closing(c);
    return MC_OK;
}

static enum mc_status connection_ready(struct connection *c, uint32_t events) {
    bool readable = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 || c->stream.pending ||
                    c->stream.wants == EPOLLOUT;
    if (waiting_bytes(c) > 0 && (events & EPOLLOUT)) {
        MC_TRY(flush(c));
    }
    if (c->input_ended) {
        return waiting_bytes(c) == 0 || (events & (EPOLLHUP | EPOLLERR)) ? MC_ERR_CLOSED : MC_OK;
    }
    if (c->closing) {
        return readable ? throw_away_input(c) : MC_OK;
    }
    if (waiting_bytes(c) > OUT_LIMIT || c->aside != NULL) {
        return events & (EPOLLHUP | EPOLLERR) ? MC_ERR_CLOSED : MC_OK;
    }
    char *bytes = c->in.data;
    size_t len = c->in.len;
    if (readable) {
        enum mc_status status = read_input(c, &bytes, &len);
        if (status != MC_OK) {
            return status == MC_ERR_CLOSED ? end_of_input(c) : status;
        }
    }
    return len > 0 ? process(c, bytes, len) : MC_OK;
}

static void end_turn(struct connection *c, enum mc_status status) {
    struct worker *w = c->worker;
    buffer_reuse(&w->out);
    if (status != MC_OK) {
        connection_free(c);
        return;
    }
    bool read_on =
        !c->input_ended && c->aside == NULL && (c->closing || waiting_bytes(c) <= OUT_LIMIT);
    if (!account(c, buffers_of(c))) {
        mc_warn_limited("closing a connection, RPC buffers are at their limit: peer=%s bytes=%zu "
                        "limit=%llu",
                        c->peer, c->accounted,
                        (unsigned long long)w->server->config.max_buffered_bytes);
        mc_metric_add(&w->server->metrics.over_budget, 1);
        connection_free(c);
        return;
    }
    uint32_t want = (read_on ? EPOLLIN : 0) | (waiting_bytes(c) > 0 ? EPOLLOUT : 0);
    if (read_on && (c->stream.pending || c->stream.wants == EPOLLOUT)) {
        want |= EPOLLOUT; /* comes at once: the way back here for input that no event announces */
    }
    mc_reactor_modify(w->reactor, &c->watch, want);
}

static void on_ready(struct mc_reactor_fd *watch, uint32_t events) {
    struct connection *c = mc_container_of(watch, struct connection, watch);
    end_turn(c, connection_ready(c, events));
}

/* The answer of a request that ran aside; then the requests that came meanwhile. */
static void aside_back(struct mc_task *task) {
    struct aside *aside = mc_container_of(task, struct aside, back);
    struct connection *c = aside->connection;
    c->aside = NULL;
    if (c->gone) {
        connection_forget(c);
    } else {
        struct mc_rpc_reply reply = {aside->errc, &aside->body, &aside->attachment};
        append_answer(c, aside->seq, &reply);
        c->worker->requests++;
        mc_metric_add(&c->worker->server->metrics.slow, 1);
        end_turn(c, process(c, c->in.data, c->in.len));
    }
    mc_arena_free(&aside->arena);
    mc_buf_free(&aside->body);
    mc_buf_free(&aside->attachment);
    free(aside);
}

/* ---- accepting ---- */

static void connection_adopt(struct mc_task *task) {
    struct connection *c = mc_container_of(task, struct connection, adopt);
    struct worker *w = c->worker;
    c->sign_of_life_ns = now_ns();
    mc_list_push_back(&w->open, &c->link);
    if (mc_reactor_add(w->reactor, &c->watch) != MC_OK) {
        c->stream.ops->close(&c->stream);
        mc_list_del(&c->link);
        atomic_fetch_sub_explicit(&w->connections, 1, memory_order_relaxed);
        mc_metric_add(&w->server->metrics.connections, -1);
        free(c);
        return;
    }
    if (w->server->config.idle_timeout_ms != 0) {
        sweep_start(w);
    }
}

static struct worker *least_loaded(struct mc_rpc_server *s, unsigned *total) {
    struct worker *best = NULL;
    unsigned best_count = UINT32_MAX;
    *total = 0;
    for (unsigned i = 0; i < s->worker_count; i++) {
        unsigned count = atomic_load_explicit(&s->workers[i].connections, memory_order_relaxed);
        *total += count;
        if (count < best_count) {
            best = &s->workers[i];
            best_count = count;
        }
    }
    return best;
}

static void accepted(struct mc_acceptor *acceptor, int fd, const struct mc_addr *addr) {
    struct mc_rpc_server *s = mc_container_of(acceptor, struct mc_rpc_server, acceptor);
    unsigned total;
    struct worker *w = least_loaded(s, &total);
    char peer[PEER_TEXT];
    mc_addr_format(addr, peer, sizeof(peer));
    if (total >= s->config.max_connections) {
        mc_warn_limited("too many connections: peer=%s limit=%u", peer, s->config.max_connections);
        mc_metric_add(&s->metrics.refused, 1);
        close(fd);
        return;
    }
    if (!s->config.no_delay) {
        int off = 0;
        if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &off, sizeof(off)) != 0) {
            mc_debug("cannot clear TCP_NODELAY: peer=%s errno=%d", peer, errno);
        }
    }
    struct connection *c = mc_zalloc(sizeof(*c));
    memcpy(c->peer, peer, sizeof(peer));
    c->worker = w;
    c->watch = (struct mc_reactor_fd){.fd = fd, .events = EPOLLIN, .on_ready = on_ready};
    c->adopt.run = connection_adopt;
    if (s->config.tls != NULL) {
        mc_stream_tls(&c->stream, fd, s->config.tls, c->peer);
    } else {
        mc_stream_plain(&c->stream, fd);
    }
    atomic_fetch_add_explicit(&w->connections, 1, memory_order_relaxed);
    mc_metric_add(&s->metrics.connections, 1);
    if (mc_reactor_on_thread(w->reactor)) {
        connection_adopt(&c->adopt);
    } else {
        mc_reactor_post(w->reactor, &c->adopt);
    }
}

/* ---- start and stop ---- */

static int64_t read_buffered(void *arg) {
    struct mc_rpc_server *s = arg;
    return (int64_t)atomic_load_explicit(&s->buffered, memory_order_relaxed);
}

static void register_metrics(struct mc_rpc_server *s) {
    const struct {
        enum mc_metric_type type;
        const char *name, *help;
        struct mc_metric *metric;
    } all[] = {
        {MC_METRIC_GAUGE, "mc_rpc_connections", "open RPC connections", &s->metrics.connections},
        {MC_METRIC_COUNTER, "mc_rpc_connections_refused", "connections closed because of the limit",
         &s->metrics.refused},
        {MC_METRIC_COUNTER, "mc_rpc_requests", "requests answered", &s->metrics.requests},
        {MC_METRIC_COUNTER, "mc_rpc_slow_requests", "of these, those that ran aside",
         &s->metrics.slow},
        {MC_METRIC_COUNTER, "mc_rpc_errors", "answers with an RPC error", &s->metrics.errors},
        {MC_METRIC_COUNTER, "mc_rpc_bad_frames",
         "connections closed because of bytes that are no frame", &s->metrics.bad_frames},
        {MC_METRIC_COUNTER, "mc_rpc_over_budget",
         "connections closed because all buffers together were at their limit",
         &s->metrics.over_budget},
        {MC_METRIC_COUNTER, "mc_rpc_received_bytes", "bytes read from RPC connections",
         &s->metrics.received},
        {MC_METRIC_COUNTER, "mc_rpc_sent_bytes", "bytes written to RPC connections",
         &s->metrics.sent},
    };
    for (size_t i = 0; s->config.metrics != NULL && i < MC_ARRAY_LEN(all); i++) {
        mc_metrics_register(s->config.metrics, all[i].type, all[i].name, "", all[i].help,
                            all[i].metric);
    }
    if (s->config.metrics != NULL) {
        mc_metrics_register_fn(s->config.metrics, MC_METRIC_GAUGE, "mc_rpc_buffered_bytes", "",
                               "bytes of requests and answers that wait on connections",
                               read_buffered, s);
    }
}

static void worker_close_all(void *arg) {
    struct worker *w = arg;
    struct mc_list *lists[] = {&w->open, &w->closing};
    for (size_t i = 0; i < MC_ARRAY_LEN(lists); i++) {
        while (!mc_list_empty(lists[i])) {
            connection_free(mc_container_of(lists[i]->next, struct connection, link));
        }
    }
    mc_timer_stop(w->reactor, &w->sweep);
}

static enum mc_status worker_start(struct mc_rpc_server *s, struct worker *w, unsigned index) {
    char name[32];
    snprintf(name, sizeof(name), "mc-rpc-%u", index);
    w->server = s;
    mc_list_init(&w->open);
    mc_list_init(&w->closing);
    mc_timer_init(&w->sweep, on_sweep);
    MC_TRY(mc_reactor_create(name, &w->reactor));
    w->scratch = mc_alloc(READ_BYTES);
    return MC_OK;
}

static void worker_stop(struct worker *w) {
    mc_reactor_destroy(w->reactor);
    mc_arena_free(&w->arena);
    mc_buf_free(&w->out);
    mc_buf_free(&w->body);
    mc_buf_free(&w->attachment);
    free(w->scratch);
}

static struct mc_rpc_server *server_new(const struct mc_rpc_server_config *config) {
    struct mc_rpc_server *s = mc_zalloc(sizeof(*s));
    s->config = *config;
    s->config.max_body_bytes = config->max_body_bytes ? config->max_body_bytes : MC_RPC_MAX_BODY;
    s->config.max_connections =
        config->max_connections ? config->max_connections : DEFAULT_MAX_CONNECTIONS;
    s->config.max_buffered_bytes =
        config->max_buffered_bytes ? config->max_buffered_bytes : DEFAULT_MAX_BUFFERED;
    s->text_hash = mc_type_hash(&mc_t_str);
    unsigned threads = config->threads ? config->threads : 1;
    threads = threads < MAX_WORKERS ? threads : MAX_WORKERS;
    unsigned slow = config->slow_threads ? config->slow_threads : 1;
    s->config.slow_threads = slow < MAX_ASIDE ? slow : MAX_ASIDE;
    s->workers = mc_zalloc(threads * sizeof(struct worker));
    s->config.threads = threads;
    return s;
}

static void server_free(struct mc_rpc_server *s) {
    for (unsigned i = 0; i < s->worker_count; i++) {
        mc_reactor_call(s->workers[i].reactor, worker_close_all, &s->workers[i]);
    }
    for (unsigned i = 0; i < MAX_ASIDE; i++) {
        mc_reactor_destroy(s->aside[i]); /* what is there runs to its end and goes back */
    }
    while (s->worker_count > 0) {
        worker_stop(&s->workers[--s->worker_count]);
    }
    if (s->config.metrics != NULL) {
        mc_metrics_unregister_range(s->config.metrics, s, sizeof(*s));
    }
    free(s->workers);
    free(s);
}

enum mc_status mc_rpc_server_start(const struct mc_rpc_server_config *config,
                                   struct mc_rpc_server **out, uint16_t *bound_port) {
    MC_ASSERT(config->handler != NULL);
    struct mc_rpc_server *s = server_new(config);
    int fd;
    uint16_t port;
    enum mc_status status =
        mc_listen(config->host ? config->host : "", config->port, LISTEN_BACKLOG, &fd, &port);
    if (status != MC_OK) {
        goto fail_listen;
    }
    register_metrics(s);
    while (s->worker_count < s->config.threads) {
        status = worker_start(s, &s->workers[s->worker_count], s->worker_count);
        if (status != MC_OK) {
            goto fail_start;
        }
        s->worker_count++;
    }
    for (unsigned i = 0; config->slow != NULL && i < s->config.slow_threads; i++) {
        status = mc_reactor_create("mc-rpc-aside", &s->aside[i]);
        if (status != MC_OK) {
            goto fail_start;
        }
    }
    status = mc_acceptor_start(&s->acceptor, s->workers[0].reactor, fd, accepted);
    if (status != MC_OK) {
        goto fail_listen; /* the socket is closed */
    }
    *out = s;
    if (bound_port != NULL) {
        *bound_port = port;
    }
    return MC_OK;

fail_start:
    close(fd);
fail_listen:
    server_free(s);
    return status;
}

void mc_rpc_server_stop(struct mc_rpc_server *server) {
    if (server == NULL) {
        return;
    }
    /* First the acceptor: what it handed over before is queued at the workers and is closed by
     * them. */
    mc_acceptor_stop(&server->acceptor);
    server_free(server);
}
