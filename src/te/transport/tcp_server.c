/*
 * The tcp transport's server: peers read and write this engine's registered memory.
 *
 * One state machine a connection, on one reactor's thread. Input is a stream of headers, each of a
 * write followed by its payload; output is a queue of replies, each a status word (unless the
 * request is of the plain protocol) and, for a read, the payload straight from registered memory.
 * Invariants:
 *
 *   - Requests take effect in order: a write is begun only when every queued read has left its
 *     memory.
 *   - A request's range is acquired from the engine before its first byte moves and released after
 *     its last.
 *   - Input is not read while it could not be handled, so a peer that does not read its answers
 *     stops itself.
 *
 * Device memory, which peers that are not ours ask for here (ours stage), goes through a buffer of
 * the connection, a part at a time: the copy is made on the reactor's thread, where it takes no
 * longer than the socket does.
 *
 * Payload of a write is received straight into its destination, together with the bytes behind it
 * (the next headers) in one call. Only what was read ahead with the header is copied; the
 * read-ahead is short when writes are long.
 *
 * Descriptors are edge triggered, so that a connection costs no epoll_ctl after it was accepted:
 * `readable` and `writable` say what epoll last said and no short transfer has disproved. A turn
 * moves at most TURN_BYTES and then queues behind the other connections of its reactor.
 */
#include "te/transport/tcp.h"

#include <errno.h>
#include <unistd.h>

#include "base/log.h"

#define LISTEN_BACKLOG  1024
#define CONNECTIONS_MAX 16384 /* of one engine; more are closed at once */
/* A request of 1 MiB with its header and status ends within the turn that began it: what is left
 * of it would wait for all others, and for whoever shares the core. */
#define TURN_BYTES       ((1u << 20) + (64u << 10))
#define REPLY_QUEUE      64
#define READ_AHEAD_LONG  16384 /* many pipelined headers or small writes cost one call */
#define READ_AHEAD_SHORT 512   /* behind long payloads: copy little */
#define LONG_WRITE_BYTES 32768
/* Of a rejected request's payload, read and dropped so that the status arrives. */
#define LINGER_BYTES (64ull << 20)
#define BOUNCE_BYTES (256u << 10) /* for device memory; of a connection that asks for such */

struct tcp_reply {
    struct mc_memory *memory; /* NULL without payload */
    const char *payload;
    uint64_t length;
    /* As on the wire: of requests without payload, then of this one. */
    uint64_t status[1 + TCP_PADS];
    uint32_t status_length; /* 0 in the plain protocol */
};

struct tcp_connection {
    struct mc_reactor_fd ready;
    struct mc_stream stream;
    struct tcp_shard *shard;
    struct mc_list link;
    struct mc_task task; /* brings it to its reactor, then continues a turn that was cut */
    bool task_queued;
    bool closed; /* waits for its task to be freed */
    struct mc_addr peer;

    bool readable, writable;
    bool hang_up;     /* epoll saw the peer's end: read up to it */
    bool ended;       /* and read it */
    bool refused;     /* a request was: what follows is read and dropped */
    bool output_done; /* the peer was told that nothing follows the refusal */
    bool moved;
    unsigned stalled;

    /* The write being received. */
    struct mc_memory *write_memory;
    char *write_at;
    uint64_t write_room; /* bytes that fit there: all that are left, or what the bounce holds */
    uint64_t write_left, write_length;
    bool write_acked;

    /* Of device memory: BOUNCE_BYTES, NULL until needed. For a write what goes to `bounce_device`;
     * for a read [bounce_from, +bounce_length) of the first reply's payload. */
    char *bounce;
    char *bounce_device;
    uint64_t bounce_from, bounce_length;
    struct mc_device bounce_pinned_by; /* ops NULL = not pinned */

    uint64_t lingered;
    uint32_t reply_first, reply_count;
    uint64_t reply_sent;     /* bytes of the first reply */
    uint64_t reply_payloads; /* replies queued that still read memory */
    struct tcp_reply replies[REPLY_QUEUE];

    uint32_t read_ahead;
    uint32_t input_begin, input_end;
    unsigned char input[READ_AHEAD_LONG];
};

static struct tcp_metrics *metrics_of(const struct tcp_connection *c) {
    return &c->shard->transport->metrics;
}

/* ---- device memory ---- */

static void make_bounce(struct tcp_connection *c, struct mc_device device) {
    if (c->bounce == NULL) {
        c->bounce = mc_alloc(BOUNCE_BYTES);
        if (device.ops->pin(device.index, c->bounce, BOUNCE_BYTES) == MC_OK) {
            c->bounce_pinned_by = device;
        }
    }
}

static void free_bounce(struct tcp_connection *c) {
    if (c->bounce_pinned_by.ops != NULL) {
        c->bounce_pinned_by.ops->unpin(c->bounce_pinned_by.index, c->bounce);
    }
    free(c->bounce);
}

static bool copy_device(struct tcp_connection *c, const struct mc_memory *memory, void *to,
                        const void *from, uint64_t length) {
    return mc_device_copy(&c->shard->copier, memory->device, to, from, length) == MC_OK;
}

/* Where the payload of the first reply lies from `offset` on, and how much of it; NULL when it
 * cannot be copied. */
static const char *payload_of_device(struct tcp_connection *c, const struct tcp_reply *reply,
                                     uint64_t offset, uint64_t *length) {
    if (offset < c->bounce_from || offset >= c->bounce_from + c->bounce_length) {
        make_bounce(c, reply->memory->device);
        uint64_t part = mc_min_u64(reply->length - offset, BOUNCE_BYTES);
        if (!copy_device(c, reply->memory, c->bounce, reply->payload + offset, part)) {
            return NULL;
        }
        c->bounce_from = offset;
        c->bounce_length = part;
    }
    *length = c->bounce_from + c->bounce_length - offset;
    return c->bounce + (offset - c->bounce_from);
}

/* Bytes of a write have come to write_at; false when they cannot be copied on. */
static bool write_came(struct tcp_connection *c, uint64_t part) {
    c->write_at += part;
    c->write_room -= part;
    c->write_left -= part;
    if (c->write_room > 0 || !c->write_memory->on_device) {
        return true;
    }
    uint64_t length = (uint64_t)(c->write_at - c->bounce);
    if (!copy_device(c, c->write_memory, c->bounce_device, c->bounce, length)) {
        return false;
    }
    c->bounce_device += length;
    c->write_at = c->bounce;
    c->write_room = mc_min_u64(c->write_left, BOUNCE_BYTES);
    return true;
}

/* ---- replies ---- */

static struct tcp_reply *last_reply(struct tcp_connection *c) {
    return c->reply_count == 0 ? NULL
                               : &c->replies[(c->reply_first + c->reply_count - 1) % REPLY_QUEUE];
}

/* Status words that follow each other are one reply. */
static void push_reply(struct tcp_connection *c, bool acked, unsigned code,
                       struct mc_memory *memory, const char *payload, uint64_t length) {
    MC_ASSERT(c->reply_count < REPLY_QUEUE);
    struct tcp_reply *reply = last_reply(c);
    if (reply == NULL || reply->length > 0 || reply->status_length == sizeof(reply->status)) {
        reply = &c->replies[(c->reply_first + c->reply_count++) % REPLY_QUEUE];
        reply->status_length = 0;
    }
    reply->memory = memory;
    reply->payload = payload;
    reply->length = length;
    if (acked) {
        reply->status[reply->status_length / TCP_STATUS_BYTES] = htole64(TCP_STATUS_MAGIC | code);
        reply->status_length += TCP_STATUS_BYTES;
    }
    if (memory != NULL) {
        c->reply_payloads++;
    }
}

static uint64_t reply_bytes(const struct tcp_reply *reply) {
    return reply->status_length + reply->length;
}

static void pop_reply(struct tcp_connection *c) {
    struct tcp_reply *reply = &c->replies[c->reply_first];
    if (reply->memory != NULL) {
        mc_memory_release(reply->memory);
        c->reply_payloads--;
    }
    c->reply_first = (c->reply_first + 1) % REPLY_QUEUE;
    c->reply_count--;
    c->reply_sent = 0;
    c->bounce_length = 0;
}

/* Describes the unsent replies, at most `limit` bytes of payload more than the first
 * status words; of device memory one part, which is the last. 0 when that cannot be copied. */
static int gather_replies(struct tcp_connection *c, struct iovec *iov, uint64_t limit,
                          uint64_t *total) {
    int count = 0;
    uint64_t skip = c->reply_sent;
    *total = 0;
    for (uint32_t i = 0; i < c->reply_count && *total < limit; i++, skip = 0) {
        const struct tcp_reply *reply = &c->replies[(c->reply_first + i) % REPLY_QUEUE];
        bool on_device = reply->memory != NULL && reply->memory->on_device;
        if (on_device && i > 0) {
            break; /* the bounce holds the first reply's */
        }
        if (skip < reply->status_length) {
            iov[count].iov_base = (char *)reply->status + skip;
            iov[count].iov_len = reply->status_length - skip;
            *total += iov[count++].iov_len;
            skip = 0;
        } else {
            skip -= reply->status_length;
        }
        if (skip < reply->length) {
            const char *payload = reply->payload + skip;
            uint64_t length = reply->length - skip;
            if (on_device && (payload = payload_of_device(c, reply, skip, &length)) == NULL) {
                return 0;
            }
            iov[count].iov_base = (char *)payload;
            iov[count].iov_len = mc_min_u64(length, limit);
            *total += iov[count].iov_len;
            if (iov[count++].iov_len < reply->length - skip) {
                break;
            }
        }
    }
    return count;
}

static void served(const struct tcp_connection *c, enum mc_transfer_op op, uint64_t bytes) {
    mc_metric_add(&metrics_of(c)->served_requests[op], 1);
    mc_metric_add(&metrics_of(c)->served_bytes[op], (int64_t)bytes);
}

static void replies_sent(struct tcp_connection *c, uint64_t n) {
    while (n > 0) {
        uint64_t left = reply_bytes(&c->replies[c->reply_first]) - c->reply_sent;
        uint64_t part = mc_min_u64(left, n);
        c->reply_sent += part;
        n -= part;
        if (part == left) {
            if (c->replies[c->reply_first].memory != NULL) {
                served(c, MC_TRANSFER_READ, c->replies[c->reply_first].length);
            }
            pop_reply(c);
        }
    }
}

/* One gathered send. False when the connection is broken. */
static bool send_replies(struct tcp_connection *c, uint64_t *budget) {
    struct iovec iov[2 * REPLY_QUEUE];
    uint64_t total;
    int count = gather_replies(c, iov, *budget, &total);
    size_t n = 0;
    if (count == 0 || c->stream.ops->writev(&c->stream, iov, count, &n) != MC_OK) {
        return false;
    }
    if (n < total) {
        c->writable = false;
    }
    replies_sent(c, n);
    c->moved |= n > 0;
    *budget -= mc_min_u64(*budget, n);
    return true;
}

/* ---- requests ---- */

static void finish_write(struct tcp_connection *c) {
    mc_memory_release(c->write_memory);
    c->write_memory = NULL;
    served(c, MC_TRANSFER_WRITE, c->write_length);
    if (c->write_acked) {
        push_reply(c, true, TCP_STATUS_OK, NULL, NULL, 0);
    }
}

static void refuse(struct tcp_connection *c, const struct tcp_header *h) {
    char peer[MC_HOST_MAX + 8];
    mc_addr_format(&c->peer, peer, sizeof(peer));
    mc_warn_limited("tcp: request outside registered memory: peer=%s op=%s addr=0x%llx size=%llu",
                    peer, (h->opcode & ~TCP_OPCODE_ACKED) == TCP_OPCODE_WRITE ? "write" : "read",
                    (unsigned long long)h->addr, (unsigned long long)h->size);
    mc_metric_add(&metrics_of(c)->rejected, 1);
    if (h->opcode & TCP_OPCODE_ACKED) {
        push_reply(c, true, TCP_STATUS_REJECTED, NULL, NULL, 0);
    }
    c->refused = true;
    c->input_begin = c->input_end = 0;
}

/* Upstream's rule: 1 writes, anything else reads; bit 7 asks for status frames. */
static void begin_request(struct tcp_connection *c, const struct tcp_header *h) {
    bool acked = h->opcode & TCP_OPCODE_ACKED;
    bool is_write = (h->opcode & ~TCP_OPCODE_ACKED) == TCP_OPCODE_WRITE;
    struct mc_memory *memory = NULL;
    if (h->size > 0) {
        struct mc_engine *engine = c->shard->transport->base.engine;
        memory = mc_memory_acquire(engine, h->addr, h->size);
        memory = memory != NULL ? memory : mc_memory_acquire_device(engine, h->addr, h->size);
        if (memory == NULL) {
            refuse(c, h);
            return;
        }
    }
    if (is_write) {
        c->read_ahead = h->size >= LONG_WRITE_BYTES ? READ_AHEAD_SHORT : READ_AHEAD_LONG;
    }
    if (is_write && h->size > 0) {
        c->write_memory = memory;
        c->write_at = (char *)(uintptr_t)h->addr;
        c->write_room = c->write_left = c->write_length = h->size;
        c->write_acked = acked;
        if (memory->on_device) {
            make_bounce(c, memory->device);
            c->bounce_device = c->write_at;
            c->write_at = c->bounce;
            c->write_room = mc_min_u64(h->size, BOUNCE_BYTES);
        }
    } else if (acked || h->size > 0) {
        push_reply(c, acked, TCP_STATUS_OK, memory, (const char *)(uintptr_t)h->addr, h->size);
    }
}

/* A header can be taken up: it is here whole, its reply has room, and a write waits until queued
 * reads left memory. */
static bool may_begin(const struct tcp_connection *c) {
    if (c->refused || c->input_end - c->input_begin < TCP_HEADER_BYTES ||
        c->reply_count == REPLY_QUEUE) {
        return false;
    }
    uint8_t opcode = c->input[c->input_begin + 16] & (uint8_t)~TCP_OPCODE_ACKED;
    return opcode != TCP_OPCODE_WRITE || c->reply_payloads == 0;
}

/* Handles what was read ahead. False when device memory cannot be written. */
static bool take_input(struct tcp_connection *c) {
    for (;;) {
        if (c->write_left > 0) {
            size_t part = mc_min_u64(c->write_room, c->input_end - c->input_begin);
            if (part == 0) {
                break;
            }
            memcpy(c->write_at, c->input + c->input_begin, part);
            c->input_begin += (uint32_t)part;
            if (!write_came(c, part)) {
                return false;
            }
        }
        if (c->write_memory != NULL && c->write_left == 0) {
            if (c->reply_count == REPLY_QUEUE) {
                break;
            }
            finish_write(c);
        }
        if (c->write_memory != NULL) {
            continue; /* the next part */
        }
        if (!may_begin(c)) {
            break;
        }
        struct tcp_header header = tcp_header_decode(c->input + c->input_begin);
        c->input_begin += TCP_HEADER_BYTES;
        begin_request(c, &header);
    }
    if (c->input_begin == c->input_end) {
        c->input_begin = c->input_end = 0;
    } else if (c->input_begin > READ_AHEAD_LONG / 2 ||
               c->input_end - c->input_begin < TCP_HEADER_BYTES) {
        memmove(c->input, c->input + c->input_begin, c->input_end - c->input_begin);
        c->input_end -= c->input_begin;
        c->input_begin = 0;
    }
    return true;
}

/* ---- input ---- */

/* Where the next bytes belong: the rest of a write's payload, then the read-ahead buffer when it is
 * empty or holds less than a header. Nothing while earlier input waits for replies to leave. */
static int place_input(struct tcp_connection *c, struct iovec iov[2], uint64_t limit,
                       uint64_t *total) {
    int count = 0;
    *total = 0;
    uint32_t buffered = c->input_end - c->input_begin;
    if (c->ended) {
        return 0;
    }
    if (c->refused) {
        iov[count++] = (struct iovec){c->input, sizeof(c->input)};
        *total = sizeof(c->input);
        return count;
    }
    if (buffered >= TCP_HEADER_BYTES || (c->write_memory != NULL && c->write_left == 0)) {
        return 0;
    }
    if (c->write_left > 0) {
        MC_ASSERT(buffered == 0);
        iov[count].iov_base = c->write_at;
        iov[count].iov_len = mc_min_u64(c->write_room, limit);
        *total += iov[count++].iov_len;
    }
    if (*total == c->write_left) {
        iov[count].iov_base = c->input + c->input_end;
        iov[count].iov_len = mc_max_u64(c->read_ahead, buffered + TCP_HEADER_BYTES) - buffered;
        *total += iov[count++].iov_len;
    }
    return count;
}

static bool input_came(struct tcp_connection *c, uint64_t n) {
    if (c->refused) {
        c->lingered += n;
        return c->lingered < LINGER_BYTES;
    }
    uint64_t part = mc_min_u64(n, c->write_room);
    c->input_end += (uint32_t)(n - part);
    return part == 0 || write_came(c, part);
}

/* One receive. False when the connection is broken or ended inside a request, or device memory
 * cannot be written. */
static bool receive_input(struct tcp_connection *c, const struct iovec *iov, int count,
                          uint64_t total, uint64_t *budget) {
    size_t n = 0;
    enum mc_status status = c->stream.ops->readv(&c->stream, iov, count, &n);
    if (status == MC_ERR_CLOSED) {
        c->ended = true; /* a header cut short is dropped: nothing was asked */
        return c->write_memory == NULL;
    }
    if (status != MC_OK) {
        return false;
    }
    if (n < total && (n == 0 || !c->hang_up)) {
        c->readable = false;
    }
    c->moved |= n > 0 && !c->refused;
    *budget -= mc_min_u64(*budget, n);
    return input_came(c, n);
}

/* ---- the turn ---- */

static void free_connection(struct tcp_connection *c) {
    if (!c->task_queued) {
        free(c);
    }
}

static void close_connection(struct tcp_connection *c) {
    mc_reactor_remove(c->shard->reactor, &c->ready);
    c->stream.ops->close(&c->stream);
    while (c->reply_count > 0) {
        pop_reply(c);
    }
    if (c->write_memory != NULL) {
        mc_memory_release(c->write_memory);
    }
    free_bounce(c);
    mc_list_del(&c->link);
    atomic_fetch_sub_explicit(&c->shard->connection_count, 1, memory_order_relaxed);
    mc_metric_add(&metrics_of(c)->connections, -1);
    c->closed = true;
    free_connection(c);
}

static void connection_broken(struct tcp_connection *c, const char *why) {
    if (c->write_memory != NULL || c->reply_count > 0) {
        char peer[MC_HOST_MAX + 8];
        mc_addr_format(&c->peer, peer, sizeof(peer));
        mc_warn_limited("tcp: %s: peer=%s step=%s", why, peer,
                        c->write_memory != NULL ? "receive payload" : "send reply");
        mc_metric_add(&metrics_of(c)->served_errors, 1);
    }
    close_connection(c);
}

/* All replies are out. True when nothing is left to do for a connection that takes no more
 * requests. */
static bool may_close(struct tcp_connection *c) {
    if (c->refused && !c->output_done) {
        /* Closing over unread input would reset the connection and could destroy the status on its
         * way. */
        shutdown(c->stream.fd, SHUT_WR);
        c->output_done = true;
    }
    return c->ended;
}

static void run_connection(struct tcp_connection *c) {
    uint64_t budget = TURN_BYTES;
    for (bool moved = true; moved && budget > 0;) {
        moved = false;
        if (!take_input(c)) {
            connection_broken(c, "device memory could not be written");
            return;
        }
        if (c->reply_count > 0 && c->writable) {
            moved = true;
            if (!send_replies(c, &budget)) {
                connection_broken(c, "the peer left inside a request");
                return;
            }
        }
        if (c->reply_count == 0 && (c->refused || c->ended) && may_close(c)) {
            close_connection(c);
            return;
        }
        struct iovec iov[2];
        uint64_t total;
        int count = c->readable && budget > 0 ? place_input(c, iov, budget, &total) : 0;
        if (count > 0) {
            moved = true;
            if (!receive_input(c, iov, count, total, &budget)) {
                connection_broken(c, "the peer left inside a request");
                return;
            }
        }
    }
    if (budget == 0 && !c->task_queued) {
        c->task_queued = true;
        mc_reactor_post(c->shard->reactor, &c->task);
    }
}

static void on_ready(struct mc_reactor_fd *ready, uint32_t events) {
    struct tcp_connection *c = mc_container_of(ready, struct tcp_connection, ready);
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        c->hang_up = true;
        c->readable = c->writable = true;
    }
    c->readable |= (events & EPOLLIN) != 0 || mc_stream_wants_out(&c->stream);
    c->writable |= (events & EPOLLOUT) != 0;
    run_connection(c);
}

static void on_continue(struct mc_task *task) {
    struct tcp_connection *c = mc_container_of(task, struct tcp_connection, task);
    c->task_queued = false;
    if (c->closed) {
        free_connection(c);
        return;
    }
    run_connection(c);
}

/* ---- accepting ---- */

static void on_adopt(struct mc_task *task) {
    struct tcp_connection *c = mc_container_of(task, struct tcp_connection, task);
    c->task_queued = false;
    c->task.run = on_continue;
    mc_list_push_back(&c->shard->connections, &c->link);
    if (mc_reactor_add(c->shard->reactor, &c->ready) != MC_OK) { /* logged there */
        mc_list_del(&c->link);
        c->stream.ops->close(&c->stream);
        atomic_fetch_sub_explicit(&c->shard->connection_count, 1, memory_order_relaxed);
        mc_metric_add(&metrics_of(c)->connections, -1);
        free(c);
    }
}

/* The least loaded reactor; NULL when the engine has all the connections it may have. */
static struct tcp_shard *choose_shard(struct tcp_transport *t) {
    struct tcp_shard *best = NULL;
    uint32_t best_count = UINT32_MAX, total = 0;
    for (unsigned i = 0; i < t->shard_count; i++) {
        uint32_t count = atomic_load_explicit(&t->shards[i].connection_count, memory_order_relaxed);
        total += count;
        if (count < best_count) {
            best_count = count;
            best = &t->shards[i];
        }
    }
    return total < CONNECTIONS_MAX ? best : NULL;
}

static void take_connection(struct mc_acceptor *acceptor, int fd, const struct mc_addr *peer) {
    struct tcp_server *server = mc_container_of(acceptor, struct tcp_server, acceptor);
    struct tcp_shard *shard = choose_shard(server->transport);
    if (shard == NULL) {
        mc_warn_limited("tcp: too many connections, closing a new one: limit=%d", CONNECTIONS_MAX);
        mc_metric_add(&server->transport->metrics.served_errors, 1);
        close(fd);
        return;
    }
    char name[MC_HOST_MAX + 8];
    struct tcp_connection *c = mc_alloc(sizeof(*c));
    memset(c, 0, offsetof(struct tcp_connection, input));
    c->ready = (struct mc_reactor_fd){fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, on_ready};
    mc_addr_format(peer, name, sizeof(name));
    mc_stream_serve(&c->stream, fd, server->transport->tls, name);
    c->shard = shard;
    c->task.run = on_adopt;
    c->task_queued = true;
    c->peer = *peer;
    c->read_ahead = READ_AHEAD_LONG;
    mc_list_init(&c->link);
    atomic_fetch_add_explicit(&shard->connection_count, 1, memory_order_relaxed);
    mc_metric_add(&server->transport->metrics.connections, 1);
    mc_reactor_post(shard->reactor, &c->task);
}

/* ---- start, sweep, stop ---- */

enum mc_status tcp_server_start(struct tcp_server *server, struct tcp_transport *transport) {
    const struct mc_engine_options *config = mc_engine_config(transport->base.engine);
    struct mc_rng rng;
    int fd;
    mc_rng_seed_system(&rng);
    server->transport = transport;
    MC_TRY(mc_listen_range(config->host, config->port_min, config->port_max, &rng, LISTEN_BACKLOG,
                           &fd, &server->port));
    return mc_acceptor_start(&server->acceptor, transport->shards[0].reactor, fd, take_connection);
}

void tcp_server_stop_listening(struct tcp_server *server) {
    mc_acceptor_stop(&server->acceptor);
}

void tcp_server_close_all(struct tcp_shard *shard) {
    while (!mc_list_empty(&shard->connections)) {
        close_connection(mc_container_of(shard->connections.next, struct tcp_connection, link));
    }
}

static bool handshake_late(const struct tcp_connection *c) {
    uint64_t ends_ns = mc_stream_handshake_ends_ns(&c->stream);
    if (ends_ns == 0 || mc_now_ns(mc_clock_system()) < ends_ns) {
        return false;
    }
    char peer[MC_HOST_MAX + 8];
    mc_addr_format(&c->peer, peer, sizeof(peer));
    mc_warn_limited("tcp: closing a connection whose TLS handshake does not end: peer=%s", peer);
    return true;
}

/* A connection inside a request that moved nothing since the last sweeps holds memory that somebody
 * may want to unregister: it is closed, as is one whose handshake does not end. Idle connections
 * stay; keep-alive finds those whose peer
 * has vanished. */
void tcp_server_sweep(struct tcp_shard *shard) {
    for (struct mc_list *i = shard->connections.next, *next; i != &shard->connections; i = next) {
        struct tcp_connection *c = mc_container_of(i, struct tcp_connection, link);
        next = i->next;
        if (handshake_late(c)) {
            close_connection(c);
            continue;
        }
        bool busy = c->write_memory != NULL || c->reply_count > 0 || c->refused;
        c->stalled = busy && !c->moved ? c->stalled + 1 : 0;
        c->moved = false;
        if (c->stalled < shard->transport->stall_ticks && !(c->refused && c->stalled >= 2)) {
            continue;
        }
        connection_broken(c, "the peer stopped inside a request");
    }
}
