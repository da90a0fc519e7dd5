/*
 * The RPC client: a pool of connections to one peer, and calls that run on the caller's thread. See
 * rpc.h.
 *
 * A connection is either in the pool or owned by one call. Invariant of a pooled connection: every
 * request written on it has been answered in full, so the next bytes it yields answer the next
 * request. A call that ends in any other way (a deadline, an error, bytes that make no sense)
 * closes its connection instead of returning it.
 *
 * The newest connection is used first: its buffers are warm, and those that a burst opened sink to
 * the bottom, where the calls that come after the burst close them.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "base/log.h"
#include "io/io.h"
#include "io/tls.h"
#include "rpc/frame.h"
#include "wire/schema.h"

/* Used so recently, a connection is not looked at before it is used again. */
#define FRESH_FOR_NS (2 * MC_MS)
/* Unused for so long, a connection is closed by the calls on others. */
#define IDLE_MS         30000u
#define REPLY_ROOM      4096 /* an answer up to this is read with its header in one call */
#define MANY_READ_BYTES (64u << 10)
#define MANY_IOVECS     64

struct connection {
    struct connection *next; /* in the pool */
    struct mc_stream stream;
    uint64_t used_ns;
    uint32_t seq;
    bool cut_short; /* a request was answered before it was written in full */
};

struct mc_rpc_client {
    struct mc_hostport peer;
    char name[MC_HOST_MAX + 8]; /* for logs */
    unsigned max_connections;
    uint32_t connect_timeout_ms;
    struct mc_tls *tls; /* NULL = plain */
    bool or_plain;      /* to a peer that hangs up on TLS */
    pthread_mutex_t lock;
    pthread_cond_t freed;    /* a connection came back, or may be opened */
    struct connection *idle; /* the one used last is first */
    uint32_t idle_ms;
    uint64_t trim_at_ns;
    unsigned open; /* idle and in use */
    unsigned waiters;
};

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

enum mc_status mc_rpc_client_create(const char *host_port, unsigned max_connections,
                                    uint32_t connect_timeout_ms, struct mc_rpc_client **out) {
    struct mc_hostport peer;
    MC_TRY(mc_hostport_parse(host_port, &peer));
    if (peer.port == 0) {
        mc_error("an RPC peer needs a port: address=%s", host_port);
        return MC_ERR_BAD_ADDRESS;
    }
    struct mc_rpc_client *client = mc_zalloc(sizeof(*client));
    client->peer = peer;
    mc_hostport_format(peer.host, peer.port, client->name, sizeof(client->name));
    client->max_connections = max_connections ? max_connections : 1;
    client->connect_timeout_ms = connect_timeout_ms;
    client->idle_ms = IDLE_MS;
    pthread_mutex_init(&client->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&client->freed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = client;
    return MC_OK;
}

void mc_rpc_client_use_tls(struct mc_rpc_client *client, struct mc_tls *tls) {
    client->tls = tls;
}

void mc_rpc_client_use_peers(struct mc_rpc_client *client, const struct mc_tls_peers *peers) {
    client->tls = peers->client;
    client->or_plain = peers->mode == MC_TLS_PREFER;
}

void mc_rpc_client_close_idle_after(struct mc_rpc_client *client, uint32_t idle_ms) {
    client->idle_ms = idle_ms;
}

static void connection_close(struct connection *c) {
    c->stream.ops->close(&c->stream);
    free(c);
}

static void close_all(struct connection *list) {
    while (list != NULL) {
        struct connection *c = list;
        list = c->next;
        connection_close(c);
    }
}

void mc_rpc_client_destroy(struct mc_rpc_client *client) {
    if (client == NULL) {
        return;
    }
    for (const struct connection *c = client->idle; c != NULL; c = c->next) {
        client->open--;
    }
    MC_ASSERT(client->open == 0);
    close_all(client->idle);
    pthread_cond_destroy(&client->freed);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

/* ---- the pool ---- */

/* The peer closed it, or sent bytes that nobody asked for. */
static bool is_dead(const struct connection *c) {
    char byte;
    ssize_t n = recv(c->stream.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n >= 0 || (errno != EAGAIN && errno != EINTR);
}

static void forget(struct mc_rpc_client *client, struct connection *c) {
    if (c != NULL) {
        connection_close(c);
    }
    pthread_mutex_lock(&client->lock);
    client->open--;
    if (client->waiters > 0) {
        pthread_cond_signal(&client->freed);
    }
    pthread_mutex_unlock(&client->lock);
}

/* Takes those out that nobody has used for long; the first has just been used. */
static struct connection *trim_locked(struct mc_rpc_client *client, uint64_t now) {
    uint64_t idle_ns = client->idle_ms * MC_MS;
    struct connection *last = client->idle;
    if (now < client->trim_at_ns) {
        return NULL;
    }
    client->trim_at_ns = now + idle_ns / 4;
    while (last->next != NULL && now - last->next->used_ns < idle_ns) {
        last = last->next;
    }
    struct connection *old = last->next;
    last->next = NULL;
    for (const struct connection *c = old; c != NULL; c = c->next) {
        client->open--;
    }
    return old;
}

static void give_back(struct mc_rpc_client *client, struct connection *c) {
    if (c->cut_short) {
        forget(client, c);
        return;
    }
    pthread_mutex_lock(&client->lock);
    c->used_ns = now_ns();
    c->next = client->idle;
    client->idle = c;
    struct connection *old = trim_locked(client, c->used_ns);
    if (client->waiters > 0) {
        pthread_cond_signal(&client->freed);
    }
    pthread_mutex_unlock(&client->lock);
    close_all(old);
}

static enum mc_status wait_freed_locked(struct mc_rpc_client *client, uint64_t deadline_ns) {
    int error;
    client->waiters++;
    if (deadline_ns == MC_NO_DEADLINE) {
        error = pthread_cond_wait(&client->freed, &client->lock);
    } else {
        struct timespec until = {(time_t)(deadline_ns / MC_SEC), (long)(deadline_ns % MC_SEC)};
        error = pthread_cond_timedwait(&client->freed, &client->lock, &until);
    }
    client->waiters--;
    return error == ETIMEDOUT ? MC_RPC_TIMEOUT : MC_OK;
}

/* A connection from the pool, or NULL in *out when the caller may open one. */
static enum mc_status take_slot(struct mc_rpc_client *client, uint64_t deadline_ns,
                                struct connection **out) {
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&client->lock);
    while (client->idle == NULL && client->open == client->max_connections && status == MC_OK) {
        status = wait_freed_locked(client, deadline_ns);
    }
    if (client->idle != NULL) { /* even when the deadline has just passed: the call will say so */
        status = MC_OK;
        *out = client->idle;
        client->idle = (*out)->next;
    } else if (client->open < client->max_connections) {
        status = MC_OK;
        *out = NULL;
        client->open++;
    }
    pthread_mutex_unlock(&client->lock);
    return status;
}

static enum mc_status open_plain(struct mc_stream *stream, const struct mc_addr *addr,
                                 uint64_t deadline_ns) {
    int fd;
    MC_TRY(mc_connect(addr, deadline_ns, &fd));
    mc_stream_plain(stream, fd);
    mc_stream_sleep_in_reads(stream);
    return MC_OK;
}

static enum mc_status open_tls(const struct mc_rpc_client *client, struct mc_stream *stream,
                               const struct mc_addr *addr, uint64_t deadline_ns) {
    int fd;
    MC_TRY(mc_connect(addr, deadline_ns, &fd));
    mc_stream_tls(stream, fd, client->tls, client->peer.host);
    enum mc_status status = mc_stream_tls_handshake(stream, deadline_ns);
    if (status == MC_ERR_CLOSED && client->or_plain) {
        stream->ops->close(stream);
        return open_plain(stream, addr, deadline_ns);
    }
    if (status != MC_OK) {
        mc_error("no TLS connection to the RPC server: peer=%s status=%s%s", client->name,
                 mc_status_name(status), status == MC_ERR_CLOSED ? " (it may not speak TLS)" : "");
        stream->ops->close(stream);
    }
    return status;
}

/* Uses the slot that take_slot counted; gives it back on failure. */
static enum mc_status connection_open(struct mc_rpc_client *client, uint64_t deadline_ns,
                                      struct connection **out) {
    struct mc_addr addr;
    uint64_t limit = now_ns() + client->connect_timeout_ms * MC_MS;
    uint64_t until = mc_min_u64(limit, deadline_ns);
    enum mc_status status = mc_addr_resolve(client->peer.host, client->peer.port, &addr);
    struct connection *c = mc_zalloc(sizeof(*c));
    if (status == MC_OK) {
        status = client->tls != NULL ? open_tls(client, &c->stream, &addr, until)
                                     : open_plain(&c->stream, &addr, until);
    }
    if (status != MC_OK) {
        free(c);
        forget(client, NULL);
        return status == MC_ERR_TIMEOUT && deadline_ns <= limit ? MC_RPC_TIMEOUT : MC_RPC_FAIL;
    }
    *out = c;
    return MC_OK;
}

/* *pooled tells that the connection has been used before and may have died since. */
static enum mc_status acquire(struct mc_rpc_client *client, uint64_t deadline_ns,
                              struct connection **out, bool *pooled) {
    for (;;) {
        struct connection *c = NULL;
        MC_TRY(take_slot(client, deadline_ns, &c));
        *pooled = c != NULL;
        if (c == NULL) {
            return connection_open(client, deadline_ns, out);
        }
        if (now_ns() - c->used_ns < FRESH_FOR_NS || !is_dead(c)) {
            *out = c;
            return MC_OK;
        }
        forget(client, c);
    }
}

/* ---- one call ---- */

struct call {
    struct mc_rpc_client *client;
    uint32_t function_id;
    uint64_t deadline_ns;
};

static struct mc_rpc_request_header request_header(const struct call *call, uint32_t seq,
                                                   struct mc_str body, struct mc_str attachment) {
    return (struct mc_rpc_request_header){
        .magic = MC_RPC_MAGIC,
        .version = MC_RPC_VERSION,
        .serialize_type = MC_RPC_STRUCT_PACK,
        .seq = seq,
        .function_id = call->function_id,
        .length = (uint32_t)body.len,
        .attach_length = (uint32_t)attachment.len,
    };
}

/* Skips the n bytes that were written. */
static void iov_advance(struct iovec **iov, int *count, size_t n) {
    while (*count > 0 && n >= (*iov)->iov_len) {
        n -= (*iov)->iov_len;
        ++*iov;
        --*count;
    }
    if (*count > 0) {
        (*iov)->iov_base = (char *)(*iov)->iov_base + n;
        (*iov)->iov_len -= n;
    }
}

/* *wrote tells whether any byte left. A peer that answers before the end of the request (it is too
 * large) ends the writing: its answer counts. */
static enum mc_status send_request(struct connection *c, const struct call *call,
                                   struct mc_str body, struct mc_str attachment, bool *wrote) {
    struct mc_rpc_request_header header = request_header(call, c->seq, body, attachment);
    struct iovec parts[3] = {{&header, sizeof(header)},
                             {(void *)body.ptr, body.len},
                             {(void *)attachment.ptr, attachment.len}};
    struct iovec *iov = parts;
    int count = attachment.len ? 3 : body.len ? 2 : 1;
    *wrote = false;
    while (count > 0) {
        size_t n = 0;
        MC_TRY(c->stream.ops->writev(&c->stream, iov, count, &n));
        *wrote = *wrote || n > 0;
        iov_advance(&iov, &count, n);
        if (count > 0 && n == 0) {
            MC_TRY(mc_wait_ready(c->stream.fd, POLLIN | POLLOUT, call->deadline_ns));
            if (is_dead(c)) { /* something to read: an early answer or the end */
                c->cut_short = true;
                return MC_OK;
            }
        }
    }
    return MC_OK;
}

static bool reply_valid(const struct mc_rpc_reply_header *h, uint32_t seq) {
    return h->magic == MC_RPC_MAGIC && h->seq == seq && h->length <= MC_RPC_MAX_BODY &&
           h->attach_length <= MC_RPC_MAX_BODY;
}

/* Reads the answer: header into *header, body and attachment behind reply->len (which stays as it
 * was; *payload is their length). */
static enum mc_status recv_reply(struct connection *c, const struct call *call,
                                 struct mc_buf *reply, struct mc_rpc_reply_header *header,
                                 size_t *payload) {
    size_t got = 0;
    mc_buf_reserve(reply, REPLY_ROOM);
    while (got < sizeof(*header)) {
        struct iovec iov[2] = {{(char *)header + got, sizeof(*header) - got},
                               {reply->data + reply->len, REPLY_ROOM}};
        size_t n;
        MC_TRY(mc_stream_recv_some(&c->stream, iov, 2, call->deadline_ns, &n));
        got += n;
    }
    *payload = (size_t)header->length + header->attach_length;
    got -= sizeof(*header);
    if (!reply_valid(header, c->seq) || got > *payload) {
        return MC_ERR_PROTOCOL;
    }
    if (got < *payload) {
        mc_buf_reserve(reply, *payload);
        MC_TRY(mc_stream_recv_all(&c->stream, reply->data + reply->len + got, *payload - got,
                                  call->deadline_ns));
    }
    return MC_OK;
}

/* Logs an answer's errc with its text. */
static void errc_log(const struct call *call, unsigned errc, struct mc_str body) {
    struct mc_arena arena = {0};
    struct mc_str text;
    if (mc_wire_decode(&mc_t_str, mc_type_hash(&mc_t_str), body, &arena, &text) != MC_OK) {
        text = mc_str_from(mc_rpc_errc_text(errc));
    }
    mc_warn_limited("RPC was refused: peer=%s function=0x%08x errc=%u text=\"%.*s\"",
                    call->client->name, call->function_id, errc, (int)mc_min_u64(text.len, 200),
                    text.ptr);
    mc_arena_free(&arena);
}

/* What a failed exchange means to the caller; the connection cannot be used again. */
static enum mc_status exchange_failed(const struct call *call, struct connection *c,
                                      enum mc_status status, enum mc_rpc_errc *errc) {
    *errc = status == MC_ERR_TIMEOUT    ? MC_RPC_TIMED_OUT
            : status == MC_ERR_PROTOCOL ? MC_RPC_PROTOCOL_ERROR
                                        : MC_RPC_IO_ERROR;
    mc_warn_limited("RPC failed: peer=%s function=0x%08x status=%s", call->client->name,
                    call->function_id, mc_status_name(status));
    forget(call->client, c);
    return status == MC_ERR_TIMEOUT ? MC_RPC_TIMEOUT : MC_RPC_FAIL;
}

static enum mc_status acquire_failed(enum mc_status status, enum mc_rpc_errc *errc) {
    *errc = status == MC_RPC_TIMEOUT ? MC_RPC_TIMED_OUT : MC_RPC_NOT_CONNECTED;
    return status;
}

/* Sends on a connection of the pool, or, if the pooled ones turn out dead before a byte has left,
 * on a fresh one. */
static enum mc_status start_call(const struct call *call, struct mc_str body,
                                 struct mc_str attachment, struct connection **out,
                                 enum mc_rpc_errc *errc) {
    for (;;) {
        bool pooled, wrote;
        struct connection *c = NULL;
        enum mc_status status = acquire(call->client, call->deadline_ns, &c, &pooled);
        if (status != MC_OK) {
            return acquire_failed(status, errc);
        }
        c->seq++;
        status = send_request(c, call, body, attachment, &wrote);
        if (status == MC_OK) {
            *out = c;
            return MC_OK;
        }
        if (status != MC_ERR_CLOSED || !pooled || wrote) {
            return exchange_failed(call, c, status, errc);
        }
        forget(call->client, c);
    }
}

enum mc_status mc_rpc_call_attach(struct mc_rpc_client *client, uint32_t function_id,
                                  struct mc_str body, struct mc_str attachment,
                                  uint64_t deadline_ns, struct mc_buf *reply_body,
                                  struct mc_buf *reply_attachment, enum mc_rpc_errc *errc) {
    enum mc_rpc_errc ignored;
    errc = errc != NULL ? errc : &ignored;
    if (body.len > MC_RPC_MAX_BODY || attachment.len > MC_RPC_MAX_BODY) {
        *errc = MC_RPC_MESSAGE_TOO_LARGE;
        return MC_INVALID_PARAMS;
    }
    struct call call = {client, function_id, deadline_ns};
    struct connection *c = NULL;
    MC_TRY(start_call(&call, body, attachment, &c, errc));
    struct mc_rpc_reply_header header;
    size_t payload;
    enum mc_status status = recv_reply(c, &call, reply_body, &header, &payload);
    if (status != MC_OK) {
        return exchange_failed(&call, c, status, errc);
    }
    const char *at = reply_body->data + reply_body->len;
    *errc = header.errc;
    if (header.errc != MC_RPC_OK) {
        errc_log(&call, header.errc, (struct mc_str){at, header.length});
        if (header.errc == MC_RPC_MESSAGE_TOO_LARGE) { /* the server is about to close it */
            forget(client, c);
        } else {
            give_back(client, c);
        }
        return MC_RPC_FAIL;
    }
    give_back(client, c);
    reply_body->len += header.length;
    if (reply_attachment != NULL) {
        mc_buf_append(reply_attachment, at + header.length, header.attach_length);
    }
    return MC_OK;
}

enum mc_status mc_rpc_call(struct mc_rpc_client *client, uint32_t function_id, struct mc_str body,
                           uint64_t deadline_ns, struct mc_buf *reply_body,
                           enum mc_rpc_errc *errc) {
    return mc_rpc_call_attach(client, function_id, body, (struct mc_str){0}, deadline_ns,
                              reply_body, NULL, errc);
}

/* ---- many calls ---- */

struct many {
    const struct call *call;
    struct connection *c;
    const struct mc_str *bodies;
    size_t count;
    struct mc_buf *replies;
    uint32_t first_seq;
    size_t written;      /* requests that are written in full */
    size_t written_part; /* bytes of the next one */
    size_t answered;
    struct answer {
        size_t before; /* length of the caller's buffer */
        bool here;
    } * answers;
    enum mc_rpc_errc errc; /* the first that was not OK */
    struct mc_buf in;
};

/* Writes requests until the socket takes no more. */
static enum mc_status many_write(struct many *m) {
    while (m->written < m->count) {
        struct mc_rpc_request_header headers[MANY_IOVECS / 2];
        struct iovec iov[MANY_IOVECS], *at = iov;
        size_t batch = mc_min_u64(m->count - m->written, MANY_IOVECS / 2), n = 0;
        for (size_t i = 0; i < batch; i++) {
            struct mc_str body = m->bodies[m->written + i];
            headers[i] = request_header(m->call, m->first_seq + (uint32_t)(m->written + i), body,
                                        (struct mc_str){0});
            iov[2 * i] = (struct iovec){&headers[i], sizeof(headers[i])};
            iov[2 * i + 1] = (struct iovec){(void *)body.ptr, body.len};
        }
        int count = (int)(2 * batch);
        iov_advance(&at, &count, m->written_part);
        MC_TRY(m->c->stream.ops->writev(&m->c->stream, at, count, &n));
        if (n == 0) {
            return MC_OK;
        }
        m->written_part += n;
        while (m->written < m->count &&
               m->written_part >= sizeof(headers[0]) + m->bodies[m->written].len) {
            m->written_part -= sizeof(headers[0]) + m->bodies[m->written].len;
            m->written++;
        }
    }
    return MC_OK;
}

static enum mc_status many_take(struct many *m, const struct mc_rpc_reply_header *header,
                                const char *body) {
    uint32_t index = header->seq - m->first_seq;
    if (index >= m->written || m->answers[index].here) {
        return MC_ERR_PROTOCOL;
    }
    m->answers[index].here = true;
    m->answered++;
    if (header->errc == MC_RPC_OK) {
        mc_buf_append(&m->replies[index], body, header->length);
    } else if (m->errc == MC_RPC_OK) {
        m->errc = header->errc;
        errc_log(m->call, header->errc, (struct mc_str){body, header->length});
    }
    return MC_OK;
}

/* Takes the complete answers out of m->in. */
static enum mc_status many_parse(struct many *m) {
    size_t used = 0;
    struct mc_rpc_reply_header header;
    while (m->in.len - used >= sizeof(header)) {
        memcpy(&header, m->in.data + used, sizeof(header));
        if (!reply_valid(&header, header.seq)) {
            return MC_ERR_PROTOCOL;
        }
        size_t frame = sizeof(header) + (size_t)header.length + header.attach_length;
        if (m->in.len - used < frame) {
            mc_buf_reserve(&m->in, frame - (m->in.len - used));
            break;
        }
        MC_TRY(many_take(m, &header, m->in.data + used + sizeof(header)));
        used += frame;
    }
    if (used > 0) {
        memmove(m->in.data, m->in.data + used, m->in.len - used);
        m->in.len -= used;
    }
    return MC_OK;
}

static enum mc_status many_read(struct many *m) {
    for (;;) {
        mc_buf_reserve(&m->in, MANY_READ_BYTES);
        struct iovec iov = {m->in.data + m->in.len, m->in.cap - m->in.len};
        size_t n = 0;
        MC_TRY(m->c->stream.ops->readv(&m->c->stream, &iov, 1, &n));
        m->in.len += n;
        MC_TRY(many_parse(m));
        if (n < iov.iov_len) {
            return MC_OK;
        }
    }
}

static enum mc_status many_run(struct many *m) {
    while (m->answered < m->count) {
        MC_TRY(many_write(m));
        short events = POLLIN | (m->written < m->count ? POLLOUT : 0);
        MC_TRY(mc_wait_ready(m->c->stream.fd, events, m->call->deadline_ns));
        MC_TRY(many_read(m));
    }
    return m->in.len == 0 ? MC_OK : MC_ERR_PROTOCOL;
}

/* On a fresh connection when the pooled ones turn out dead before a byte has left. */
static enum mc_status many_call(struct many *m) {
    for (;;) {
        bool pooled;
        enum mc_status status = acquire(m->call->client, m->call->deadline_ns, &m->c, &pooled);
        if (status != MC_OK) {
            return acquire_failed(status, &m->errc);
        }
        m->first_seq = m->c->seq + 1;
        m->c->seq += (uint32_t)m->count;
        status = many_run(m);
        if (status == MC_OK) {
            give_back(m->call->client, m->c);
            return m->errc == MC_RPC_OK ? MC_OK : MC_RPC_FAIL;
        }
        bool untouched = m->written == 0 && m->written_part == 0;
        if (status != MC_ERR_CLOSED || !pooled || !untouched) {
            for (size_t i = 0; i < m->count; i++) {
                m->replies[i].len = m->answers[i].before;
            }
            return exchange_failed(m->call, m->c, status, &m->errc);
        }
        forget(m->call->client, m->c);
    }
}

enum mc_status mc_rpc_call_many(struct mc_rpc_client *client, uint32_t function_id,
                                const struct mc_str *bodies, size_t count, uint64_t deadline_ns,
                                struct mc_buf *reply_bodies) {
    for (size_t i = 0; i < count; i++) {
        if (bodies[i].len > MC_RPC_MAX_BODY) {
            return MC_INVALID_PARAMS;
        }
    }
    if (count == 0) {
        return MC_OK;
    }
    struct call call = {client, function_id, deadline_ns};
    struct many m = {.call = &call, .bodies = bodies, .count = count, .replies = reply_bodies};
    m.answers = mc_alloc(count * sizeof(*m.answers));
    for (size_t i = 0; i < count; i++) {
        m.answers[i] = (struct answer){reply_bodies[i].len, false};
    }
    enum mc_status status = many_call(&m);
    free(m.answers);
    mc_buf_free(&m.in);
    return status;
}
