/*
 * Handshake client: connect, one frame out, one frame in, all within a deadline. The reply's type
 * must be the request's and its length within the limit before anything is stored.
 */
#include <jansson.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/env.h"
#include "base/log.h"
#include "io/io.h"
#include "io/tls.h"
#include "meta/meta.h"

void mc_handshake_limits_init(struct mc_handshake_limits *limits) {
    *limits = (struct mc_handshake_limits){
        .max_frame_bytes = mc_env_u64("MC_HANDSHAKE_MAX_LENGTH", 1u << 20, 128u << 20, 1u << 20),
        .connect_timeout_ms =
            (uint32_t)mc_env_u64("MC_HANDSHAKE_CONNECT_TIMEOUT", 1, 3599, 5) * 1000u,
        .reply_timeout_ms = 60000,
        .serve_timeout_ms = 5000,
        .max_connections = 1024,
    };
}

static enum mc_status exchange(struct mc_stream *s, enum mc_handshake_type type, struct mc_str body,
                               uint64_t max_bytes, uint64_t deadline_ns, struct mc_buf *reply) {
    struct __attribute__((packed)) {
        uint64_t length;
        uint8_t type;
    } head = {1 + body.len, (uint8_t)type};
    struct iovec iov[2] = {{&head, sizeof(head)}, {(void *)(uintptr_t)body.ptr, body.len}};
    MC_TRY(mc_stream_send_all(s, iov, 2, deadline_ns));
    MC_TRY(mc_stream_recv_all(s, &head, sizeof(head), deadline_ns));
    if (head.length == 0 || head.length > max_bytes || head.type != (uint8_t)type) {
        return MC_ERR_PROTOCOL;
    }
    mc_buf_clear(reply);
    mc_buf_reserve(reply, head.length);
    MC_TRY(mc_stream_recv_all(s, reply->data, head.length - 1, deadline_ns));
    reply->len = head.length - 1;
    return MC_OK;
}

/* In TLS when that is wanted; in plain also when it was only preferred and the peer, which knows
 * nothing of it, hung up. */
static enum mc_status open_stream(const char *host, const struct mc_addr *addr,
                                  const struct mc_tls_peers *tls, uint64_t deadline_ns,
                                  struct mc_stream *s, const char **step) {
    int fd;
    *step = "connect";
    MC_TRY(mc_connect(addr, deadline_ns, &fd));
    if (tls == NULL || tls->mode == MC_TLS_OFF) {
        mc_stream_plain(s, fd);
        return MC_OK;
    }
    *step = "TLS";
    mc_stream_tls(s, fd, tls->client, host);
    enum mc_status status = mc_stream_tls_handshake(s, deadline_ns);
    if (status == MC_OK) {
        return MC_OK;
    }
    s->ops->close(s);
    if (status != MC_ERR_CLOSED || tls->mode != MC_TLS_PREFER) {
        return status;
    }
    MC_TRY(mc_connect(addr, deadline_ns, &fd));
    mc_stream_plain(s, fd);
    return MC_OK;
}

static enum mc_status connect_to(const char *host, uint16_t port,
                                 const struct mc_handshake_limits *limits, uint64_t deadline_ns,
                                 struct mc_stream *s, const char **step) {
    struct mc_addr addr;
    *step = "resolve";
    MC_TRY(mc_addr_resolve(host, port, &addr));
    uint64_t until = mc_now_ns(mc_clock_system()) + limits->connect_timeout_ms * MC_MS;
    return open_stream(host, &addr, limits->tls, mc_min_u64(deadline_ns, until), s, step);
}

static void say_failed(const char *host, uint16_t port, enum mc_handshake_type type,
                       const char *step, enum mc_status status) {
    mc_warn_limited("handshake failed peer=%s port=%u type=%d step=%s status=%s", host,
                    (unsigned)port, (int)type, step, mc_status_name(status));
}

static enum mc_status call(const char *host, uint16_t port, enum mc_handshake_type type,
                           struct mc_str body, const struct mc_handshake_limits *limits,
                           uint64_t deadline_ns, struct mc_buf *reply) {
    const char *step = "frame";
    enum mc_status status = MC_ERR_PROTOCOL;
    struct mc_stream stream;
    if (1 + body.len > limits->max_frame_bytes) {
        goto out;
    }
    status = connect_to(host, port, limits, deadline_ns, &stream, &step);
    if (status != MC_OK) {
        goto out;
    }
    step = "exchange";
    uint64_t now = mc_now_ns(mc_clock_system());
    status = exchange(&stream, type, body, limits->max_frame_bytes,
                      mc_min_u64(deadline_ns, now + limits->reply_timeout_ms * MC_MS), reply);
    stream.ops->close(&stream);
out:
    if (status != MC_OK) {
        say_failed(host, port, type, step, status);
    }
    return status;
}

/* ---- channels ---- */

struct mc_handshake_channel {
    struct mc_stream stream;
    struct mc_handshake_limits limits;
    char host[256];
    uint16_t port;
};

enum mc_status mc_handshake_channel_open(const char *host, uint16_t port,
                                         const struct mc_handshake_limits *limits,
                                         uint64_t deadline_ns, struct mc_handshake_channel **out) {
    const char *step;
    struct mc_handshake_channel *channel = mc_zalloc(sizeof(*channel));
    enum mc_status status = connect_to(host, port, limits, deadline_ns, &channel->stream, &step);
    if (status != MC_OK) {
        say_failed(host, port, MC_HANDSHAKE_STAGE, step, status);
        free(channel);
        return status;
    }
    channel->limits = *limits;
    channel->port = port;
    snprintf(channel->host, sizeof(channel->host), "%s", host);
    *out = channel;
    return MC_OK;
}

enum mc_status mc_handshake_channel_call(struct mc_handshake_channel *channel, struct mc_str body,
                                         uint64_t deadline_ns, struct mc_buf *reply) {
    uint64_t latest =
        mc_now_ns(mc_clock_system()) + channel->limits.reply_timeout_ms * (uint64_t)MC_MS;
    enum mc_status status =
        exchange(&channel->stream, MC_HANDSHAKE_STAGE, body, channel->limits.max_frame_bytes,
                 mc_min_u64(deadline_ns, latest), reply);
    if (status != MC_OK) {
        say_failed(channel->host, channel->port, MC_HANDSHAKE_STAGE, "exchange", status);
    }
    return status;
}

void mc_handshake_channel_abort(struct mc_handshake_channel *channel) {
    shutdown(channel->stream.fd, SHUT_RDWR);
}

void mc_handshake_channel_close(struct mc_handshake_channel *channel) {
    if (channel != NULL) {
        channel->stream.ops->close(&channel->stream);
        free(channel);
    }
}

/* ---- one request ---- */

enum mc_status mc_handshake_metadata(const char *host, uint16_t port, struct mc_str own_descriptor,
                                     const struct mc_handshake_limits *limits, uint64_t deadline_ns,
                                     struct mc_buf *reply) {
    return call(host, port, MC_HANDSHAKE_METADATA, own_descriptor, limits, deadline_ns, reply);
}

enum mc_status mc_handshake_connection(const char *host, uint16_t port, struct mc_str body,
                                       const struct mc_handshake_limits *limits,
                                       uint64_t deadline_ns, struct mc_buf *reply) {
    return call(host, port, MC_HANDSHAKE_CONNECTION, body, limits, deadline_ns, reply);
}

enum mc_status mc_handshake_notify(const char *host, uint16_t port, const char *name,
                                   const char *message, const struct mc_handshake_limits *limits,
                                   uint64_t deadline_ns) {
    json_t *json = json_pack("{s:s, s:s}", "name", name, "notify_msg", message);
    if (json == NULL) { /* not UTF-8 */
        return MC_INVALID_PARAMS;
    }
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    struct mc_buf reply = {0};
    enum mc_status status =
        call(host, port, MC_HANDSHAKE_NOTIFY, mc_str_from(text), limits, deadline_ns, &reply);
    free(text);
    if (status == MC_OK) {
        json_t *answer = json_loadb(reply.data, reply.len, 0, NULL);
        const char *message_back = json_string_value(json_object_get(answer, "notify_msg"));
        status = message_back != NULL && message_back[0] != '\0' ? MC_OK : MC_ERR_REJECTED;
        json_decref(answer);
    }
    mc_buf_free(&reply);
    return status;
}

enum mc_status mc_handshake_probe(const char *host, uint16_t port,
                                  const struct mc_handshake_limits *limits, uint64_t deadline_ns) {
    struct mc_buf reply = {0};
    enum mc_status status =
        call(host, port, MC_HANDSHAKE_PROBE, MC_STR("{}"), limits, deadline_ns, &reply);
    if (status == MC_OK) {
        json_t *answer = json_loadb(reply.data, reply.len, 0, NULL);
        const char *text = json_string_value(json_object_get(answer, "status"));
        status = text != NULL && strcmp(text, "success") == 0 ? MC_OK : MC_ERR_REJECTED;
        json_decref(answer);
    }
    mc_buf_free(&reply);
    return status;
}
