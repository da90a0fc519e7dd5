/*
 * A turn of a connection on its worker's thread: read what is there, handle the frames that are
 * whole, write the answers, and choose what to wait for. See server_private.h for who owns which
 * buffer.
 */
#include <sys/epoll.h>
#include <sys/socket.h>

#include "rpc/server_private.h"
#include "wire/schema.h"

#define OUT_FLUSH      (256u << 10) /* answers of one read leave in pieces of about this */
#define OUT_LIMIT      (4u << 20)   /* bytes of answers that a peer may leave unread */
#define KEEP_BYTES     (1u << 20)   /* a worker's buffers above this are given back */
#define PROGRESS_BYTES (64u << 10)  /* of a frame: so much counts as a sign of life */

/* ---- writing ---- */

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
            rpc_sign_of_life(c);
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

void rpc_append_answer(struct connection *c, uint32_t seq, struct mc_rpc_reply *reply) {
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
    rpc_append_answer(c, header->seq, &reply);
    mc_arena_reset(&w->arena);
    buffer_reuse(&w->body);
    buffer_reuse(&w->attachment);
    w->requests++;
}

static void refuse_too_large(struct connection *c, const struct mc_rpc_request_header *header) {
    struct worker *w = c->worker;
    struct mc_rpc_reply reply = {MC_RPC_MESSAGE_TOO_LARGE, &w->body, &w->attachment};
    mc_warn_limited("request is too large: peer=%s function=0x%08x body=%u attachment=%u limit=%u",
                    c->peer, header->function_id, header->length, header->attach_length,
                    w->server->config.max_body_bytes);
    rpc_append_answer(c, header->seq, &reply);
    buffer_reuse(&w->body);
    rpc_connection_start_closing(c);
}

/* The requests before it are answered, it is not, as upstream does. */
static void refuse_bad_frame(struct connection *c, const struct mc_rpc_request_header *header) {
    mc_warn_limited("not an RPC frame: peer=%s magic=%u version=%u", c->peer, header->magic,
                    header->version);
    mc_metric_add(&c->worker->server->metrics.bad_frames, 1);
    rpc_connection_start_closing(c);
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
        if (!rpc_aside_take(c, &header, bytes + *used + sizeof(header))) {
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
        size_t cap = mc_min_u64(mc_max_u64(need, rest), rest + GROW_BYTES);
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

enum mc_status rpc_process(struct connection *c, const char *bytes, size_t len) {
    bool held_back;
    do {
        size_t used, need;
        enum mc_status status = handle_frames(c, bytes, len, &used, &need);
        if (c->worker->requests > 0 || c->progress >= PROGRESS_BYTES) {
            rpc_sign_of_life(c);
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
    rpc_connection_start_closing(c);
    return MC_OK;
}

static enum mc_status connection_ready(struct connection *c, uint32_t events) {
    bool readable = (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 ||
                    mc_stream_pending(&c->stream) || mc_stream_wants_out(&c->stream);
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
    return len > 0 ? rpc_process(c, bytes, len) : MC_OK;
}

void rpc_end_turn(struct connection *c, enum mc_status status) {
    struct worker *w = c->worker;
    buffer_reuse(&w->out);
    if (status != MC_OK) {
        rpc_connection_free(c);
        return;
    }
    bool read_on =
        !c->input_ended && c->aside == NULL && (c->closing || waiting_bytes(c) <= OUT_LIMIT);
    if (!rpc_account(c, rpc_buffers_of(c))) {
        mc_warn_limited("closing a connection, RPC buffers are at their limit: peer=%s bytes=%zu "
                        "limit=%llu",
                        c->peer, c->accounted,
                        (unsigned long long)w->server->config.max_buffered_bytes);
        mc_metric_add(&w->server->metrics.over_budget, 1);
        rpc_connection_free(c);
        return;
    }
    uint32_t want = (read_on ? EPOLLIN : 0) | (waiting_bytes(c) > 0 ? EPOLLOUT : 0);
    if (read_on && (mc_stream_pending(&c->stream) || mc_stream_wants_out(&c->stream))) {
        want |= EPOLLOUT; /* comes at once: the way back here for input that no event announces */
    }
    mc_reactor_modify(w->reactor, &c->watch, want);
    rpc_watch_handshake(c);
}

void rpc_on_ready(struct mc_reactor_fd *watch, uint32_t events) {
    struct connection *c = mc_container_of(watch, struct connection, watch);
    rpc_end_turn(c, connection_ready(c, events));
}
