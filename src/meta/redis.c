/*
 * Metadata in Redis: one connection, one command at a time (what travels here is rare and small).
 * hiredis writes commands and reads replies; the connection is ours, plain or TLS.
 *
 * Each leased record has a time to live of its own, set with the value and prolonged by renew. A
 * claim is a script, because nothing else in Redis compares and sets in one step.
 *
 * A connection that broke is made again within the same call, at the same endpoint first and then
 * at the next one; so is one to a server that is a replica (READONLY) or still loads its data.
 * Every command is such that twice is the same as once.
 */
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdio.h>

#include "base/log.h"
#include "io/tls.h"
#include "meta/endpoints.h"
#include "meta/meta.h"

#define SCHEME             "redis://"
#define SECURE_SCHEME      "rediss://" /* the same over TLS */
#define DEFAULT_PORT       6379
#define CALL_TIMEOUT_MS    6000 /* all endpoints */
#define TIMEOUT_MS         3000
#define CONNECT_TIMEOUT_MS 1500
#define DB_INDEX_MAX       65535
#define ARGS_MAX           8
#define NUMBER_TEXT        24
#define READ_BYTES         16384

static const char CLAIM_SCRIPT[] =
    "local held = redis.call('GET', KEYS[1]) "
    "if held == false or held == ARGV[1] or held == ARGV[2] then "
    "redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) return 1 end return 0";

struct redis_kv {
    struct mc_meta_kv base;
    struct mc_meta_endpoints endpoints;
    char *username, *password; /* "" = none */
    uint32_t db;
    char lease_text[NUMBER_TEXT];
    struct mc_tls *tls; /* NULL = plain */
    pthread_mutex_t lock;
    redisReader *reader;     /* under the lock; NULL = not connected */
    struct mc_stream stream; /* the same */
    size_t current;          /* under the lock */
};

/* One command. */
struct command {
    int count;
    const char *args[ARGS_MAX];
    size_t lengths[ARGS_MAX];
};

static void add_bytes(struct command *c, struct mc_str bytes) {
    MC_ASSERT(c->count < ARGS_MAX);
    c->args[c->count] = bytes.ptr != NULL ? bytes.ptr : "";
    c->lengths[c->count++] = bytes.len;
}

static void add(struct command *c, const char *text) {
    add_bytes(c, mc_str_from(text));
}

/* ---- opening ---- */

static enum mc_status read_db_index(uint32_t *db) {
    const char *text = getenv("MC_REDIS_DB_INDEX");
    uint64_t value = 0;
    if (text != NULL && text[0] != '\0' && mc_parse_u64(text, 0, DB_INDEX_MAX, &value) != MC_OK) {
        /* Not the default instead: that would be another database. */
        mc_error("MC_REDIS_DB_INDEX is no database value=\"%s\" expected=\"0 to %d\"", text,
                 DB_INDEX_MAX);
        return MC_INVALID_PARAMS;
    }
    *db = (uint32_t)value;
    return MC_OK;
}

static char *copy_env(const char *name) {
    const char *text = getenv(name);
    return mc_strdup(text != NULL ? text : "");
}

static enum mc_status redis_open(const char *connection, uint32_t lease_s,
                                 struct mc_meta_kv **out) {
    bool secure = strncmp(connection, SECURE_SCHEME, strlen(SECURE_SCHEME)) == 0;
    uint32_t db;
    MC_TRY(read_db_index(&db));
    struct redis_kv *kv = mc_zalloc(sizeof(*kv));
    enum mc_status status = MC_ERR_BAD_ADDRESS;
    kv->base.ops = &mc_meta_redis_ops;
    kv->db = db;
    snprintf(kv->lease_text, sizeof(kv->lease_text), "%u", lease_s);
    if (mc_meta_endpoints_parse(connection + strlen(secure ? SECURE_SCHEME : SCHEME), DEFAULT_PORT,
                                &kv->endpoints) != MC_OK) {
        /* The text may hold a password by mistake: it is not shown. */
        mc_error("the endpoints of Redis cannot be parsed "
                 "expected=\"redis://host:port[,host:port...] or rediss://\" at_most=%d; user, "
                 "password and database are MC_REDIS_USERNAME, MC_REDIS_PASSWORD and "
                 "MC_REDIS_DB_INDEX",
                 MC_META_ENDPOINTS_MAX);
        goto fail_kv;
    }
    if (secure) {
        const struct mc_tls_config config = mc_tls_config_environment();
        status = mc_tls_create(&config, false, &kv->tls);
        if (status != MC_OK) {
            goto fail_kv;
        }
    }
    kv->username = copy_env("MC_REDIS_USERNAME");
    kv->password = copy_env("MC_REDIS_PASSWORD");
    pthread_mutex_init(&kv->lock, NULL);
    *out = &kv->base;
    return MC_OK;
fail_kv:
    free(kv);
    return status;
}

static void disconnect(struct redis_kv *kv) {
    if (kv->reader != NULL) {
        redisReaderFree(kv->reader);
        kv->reader = NULL;
        kv->stream.ops->close(&kv->stream);
    }
}

static void redis_close(struct mc_meta_kv *base) {
    struct redis_kv *kv = mc_container_of(base, struct redis_kv, base);
    disconnect(kv);
    mc_tls_destroy(kv->tls);
    pthread_mutex_destroy(&kv->lock);
    explicit_bzero(kv->password, strlen(kv->password));
    free(kv->password);
    free(kv->username);
    free(kv);
}

/* ---- one command ---- */

static bool begins(const redisReply *reply, const char *word) {
    return strncmp(reply->str, word, strlen(word)) == 0;
}

/* What an error reply means. MC_ERR_UNREACHABLE: another endpoint, or this one later. */
static enum mc_status judge(const redisReply *reply) {
    static const char *const ELSEWHERE[] = {"READONLY",    "LOADING",  "MASTERDOWN",
                                            "CLUSTERDOWN", "TRYAGAIN", "BUSY"};
    for (size_t i = 0; i < MC_ARRAY_LEN(ELSEWHERE); i++) {
        if (begins(reply, ELSEWHERE[i])) {
            return MC_ERR_UNREACHABLE;
        }
    }
    return begins(reply, "MOVED") || begins(reply, "ASK") ? MC_NOT_SUPPORTED : MC_ERR_REJECTED;
}

static uint64_t deadline_in(uint64_t ms) {
    return mc_now_ns(mc_clock_system()) + ms * MC_MS;
}

static enum mc_status send_command(struct redis_kv *kv, const struct command *command,
                                   uint64_t deadline_ns) {
    char *text = NULL;
    int len = (int)redisFormatCommandArgv(
        &text, command->count, (const char **)(uintptr_t)command->args, command->lengths);
    MC_ASSERT(len > 0); /* else out of memory */
    struct iovec iov = {text, (size_t)len};
    enum mc_status status = mc_stream_send_all(&kv->stream, &iov, 1, deadline_ns);
    redisFreeCommand(text);
    return status;
}

static enum mc_status receive_reply(struct redis_kv *kv, uint64_t deadline_ns, redisReply **out) {
    char bytes[READ_BYTES];
    struct iovec iov = {bytes, sizeof(bytes)};
    for (;;) {
        void *reply = NULL;
        size_t n = 0;
        if (redisReaderGetReply(kv->reader, &reply) != REDIS_OK) {
            return MC_ERR_PROTOCOL;
        }
        if (reply != NULL) {
            *out = reply;
            return MC_OK;
        }
        MC_TRY(mc_stream_recv_some(&kv->stream, &iov, 1, deadline_ns, &n));
        if (redisReaderFeed(kv->reader, bytes, n) != REDIS_OK) {
            return MC_ERR_PROTOCOL;
        }
    }
}

/* Sends and waits; on success the reply is the caller's, and no error. */
static enum mc_status exchange(struct redis_kv *kv, const struct command *command,
                               redisReply **out) {
    char address[MC_HOST_MAX + 8];
    const struct mc_hostport *endpoint = &kv->endpoints.list[kv->current];
    uint64_t deadline_ns = deadline_in(TIMEOUT_MS);
    redisReply *reply = NULL;
    enum mc_status status = send_command(kv, command, deadline_ns);
    if (status == MC_OK) {
        status = receive_reply(kv, deadline_ns, &reply);
    }
    mc_hostport_format(endpoint->host, endpoint->port, address, sizeof(address));
    if (status != MC_OK) {
        mc_warn_limited("Redis failed endpoint=%s command=%s status=%s reason=\"%s\"", address,
                        command->args[0], mc_status_name(status), kv->reader->errstr);
        return status;
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        status = judge(reply);
        mc_warn_limited("Redis refused endpoint=%s command=%s status=%s reason=\"%.200s\"", address,
                        command->args[0], mc_status_name(status), reply->str);
        freeReplyObject(reply);
        return status;
    }
    *out = reply;
    return MC_OK;
}

/* A step of a new connection, whose answer is "OK". */
static enum mc_status introduce(struct redis_kv *kv, const struct command *command) {
    redisReply *reply;
    MC_TRY(exchange(kv, command, &reply));
    bool good = reply->type == REDIS_REPLY_STATUS && strcmp(reply->str, "OK") == 0;
    freeReplyObject(reply);
    return good ? MC_OK : MC_ERR_PROTOCOL;
}

static enum mc_status log_in(struct redis_kv *kv) {
    struct command auth = {0}, select = {0};
    char db[NUMBER_TEXT];
    if (kv->password[0] != '\0') {
        add(&auth, "AUTH");
        if (kv->username[0] != '\0') {
            add(&auth, kv->username);
        }
        add(&auth, kv->password);
        enum mc_status status = introduce(kv, &auth);
        if (status == MC_ERR_REJECTED) {
            mc_error("Redis does not accept MC_REDIS_PASSWORD user=\"%s\"", kv->username);
        }
        MC_TRY(status);
    }
    if (kv->db != 0) {
        snprintf(db, sizeof(db), "%u", kv->db);
        add(&select, "SELECT");
        add(&select, db);
        enum mc_status status = introduce(kv, &select);
        if (status == MC_ERR_REJECTED) {
            mc_error("Redis does not let us use database MC_REDIS_DB_INDEX=%u", kv->db);
        }
        MC_TRY(status);
    }
    return MC_OK;
}

/* To the current endpoint. */
static enum mc_status connect_redis(struct redis_kv *kv, uint64_t left_ms) {
    const struct mc_hostport *endpoint = &kv->endpoints.list[kv->current];
    uint64_t deadline_ns = deadline_in(mc_min_u64(CONNECT_TIMEOUT_MS, left_ms));
    struct mc_addr addr;
    int fd;
    if (mc_addr_resolve(endpoint->host, endpoint->port, &addr) != MC_OK) { /* it has logged why */
        return MC_ERR_UNREACHABLE;
    }
    MC_TRY(mc_connect(&addr, deadline_ns, &fd));
    enum mc_status status = MC_OK;
    if (kv->tls == NULL) {
        mc_stream_plain(&kv->stream, fd);
    } else {
        mc_stream_tls(&kv->stream, fd, kv->tls, endpoint->host);
        status = mc_stream_tls_handshake(&kv->stream, deadline_ns);
    }
    kv->reader = redisReaderCreate();
    MC_ASSERT(kv->reader != NULL); /* NULL is out of memory */
    if (status != MC_OK) {
        mc_warn_limited("no TLS with Redis endpoint=%s:%u status=%s", endpoint->host,
                        endpoint->port, mc_status_name(status));
    } else {
        status = log_in(kv);
    }
    if (status != MC_OK) {
        disconnect(kv);
    }
    return status;
}

static bool another_may_answer(enum mc_status status) {
    return status == MC_ERR_UNREACHABLE || status == MC_ERR_TIMEOUT || status == MC_ERR_CLOSED ||
           status == MC_ERR_IO;
}

/* A connection from earlier calls may have died unseen: that costs one more try, not an endpoint.
 */
static enum mc_status command_locked(struct redis_kv *kv, const struct command *command,
                                     redisReply **out) {
    uint64_t deadline_ms = mc_now_ms(mc_clock_system()) + CALL_TIMEOUT_MS;
    enum mc_status status = MC_ERR_TIMEOUT;
    for (size_t left = kv->endpoints.count + (kv->reader != NULL); left > 0; left--) {
        uint64_t now_ms = mc_now_ms(mc_clock_system());
        bool kept = kv->reader != NULL;
        if (now_ms >= deadline_ms) {
            break;
        }
        status = kept ? MC_OK : connect_redis(kv, deadline_ms - now_ms);
        if (status == MC_OK) {
            status = exchange(kv, command, out);
        }
        if (!another_may_answer(status)) {
            if (status == MC_ERR_PROTOCOL) {
                disconnect(kv);
            }
            return status;
        }
        disconnect(kv);
        if (!kept) {
            kv->current = (kv->current + 1) % kv->endpoints.count;
        }
    }
    mc_warn_limited("no endpoint of Redis answers command=%s tried=%zu status=%s", command->args[0],
                    kv->endpoints.count, mc_status_name(status));
    return status;
}

/* The reply must be of `type` (or nil, which is MC_ERR_NOT_FOUND). */
static enum mc_status run(struct redis_kv *kv, const struct command *command, int type,
                          redisReply **out) {
    redisReply *reply = NULL;
    pthread_mutex_lock(&kv->lock);
    enum mc_status status = command_locked(kv, command, &reply);
    pthread_mutex_unlock(&kv->lock);
    MC_TRY(status);
    if (reply->type == type) {
        *out = reply;
        return MC_OK;
    }
    status = reply->type == REDIS_REPLY_NIL ? MC_ERR_NOT_FOUND : MC_ERR_PROTOCOL;
    if (status == MC_ERR_PROTOCOL) {
        mc_warn_limited("unexpected reply of Redis command=%s type=%d", command->args[0],
                        reply->type);
    }
    freeReplyObject(reply);
    return status;
}

static enum mc_status run_integer(struct redis_kv *kv, const struct command *command,
                                  long long *out) {
    redisReply *reply;
    MC_TRY(run(kv, command, REDIS_REPLY_INTEGER, &reply));
    *out = reply->integer;
    freeReplyObject(reply);
    return MC_OK;
}

/* ---- records ---- */

static enum mc_status redis_put(struct mc_meta_kv *base, const char *key, struct mc_str value,
                                bool leased) {
    struct redis_kv *kv = mc_container_of(base, struct redis_kv, base);
    struct mc_buf line = {0};
    struct command set = {0};
    redisReply *reply;
    mc_meta_value_line(&line, value);
    add(&set, "SET");
    add(&set, key);
    add_bytes(&set, (struct mc_str){line.data, line.len});
    if (leased) {
        add(&set, "EX");
        add(&set, kv->lease_text);
    }
    enum mc_status status = run(kv, &set, REDIS_REPLY_STATUS, &reply);
    if (status == MC_OK) {
        freeReplyObject(reply);
    }
    mc_buf_free(&line);
    return status;
}

static enum mc_status redis_claim(struct mc_meta_kv *base, const char *key, struct mc_str old,
                                  struct mc_str value) {
    struct redis_kv *kv = mc_container_of(base, struct redis_kv, base);
    struct mc_buf line = {0};
    struct command eval = {0};
    long long done = 0;
    mc_meta_value_line(&line, value);
    struct mc_str ours = {line.data, line.len};
    add(&eval, "EVAL");
    add(&eval, CLAIM_SCRIPT);
    add(&eval, "1");
    add(&eval, key);
    add_bytes(&eval, old.ptr != NULL ? old : ours);
    add_bytes(&eval, ours);
    add(&eval, kv->lease_text);
    enum mc_status status = run_integer(kv, &eval, &done);
    mc_buf_free(&line);
    return status == MC_OK && done == 0 ? MC_ERR_EXISTS : status;
}

static enum mc_status redis_get(struct mc_meta_kv *base, const char *key, struct mc_buf *value) {
    struct redis_kv *kv = mc_container_of(base, struct redis_kv, base);
    struct command get = {0};
    redisReply *reply;
    add(&get, "GET");
    add(&get, key);
    mc_buf_clear(value);
    MC_TRY(run(kv, &get, REDIS_REPLY_STRING, &reply));
    mc_buf_append(value, reply->str, (size_t)reply->len);
    freeReplyObject(reply);
    return MC_OK;
}

static enum mc_status redis_remove(struct mc_meta_kv *base, const char *key) {
    struct redis_kv *kv = mc_container_of(base, struct redis_kv, base);
    struct command del = {0};
    long long removed = 0;
    add(&del, "DEL");
    add(&del, key);
    MC_TRY(run_integer(kv, &del, &removed));
    return removed > 0 ? MC_OK : MC_ERR_NOT_FOUND;
}

static enum mc_status redis_renew(struct mc_meta_kv *base, const char *const *keys, size_t count) {
    struct redis_kv *kv = mc_container_of(base, struct redis_kv, base);
    for (size_t i = 0; i < count; i++) {
        struct command expire = {0};
        long long there = 0;
        add(&expire, "EXPIRE");
        add(&expire, keys[i]);
        add(&expire, kv->lease_text);
        MC_TRY(run_integer(kv, &expire, &there));
        if (there == 0) {
            return MC_ERR_NOT_FOUND;
        }
    }
    return MC_OK;
}

const struct mc_meta_kv_ops mc_meta_redis_ops = {
    .schemes = {SCHEME, SECURE_SCHEME},
    .open = redis_open,
    .close = redis_close,
    .put = redis_put,
    .claim = redis_claim,
    .get = redis_get,
    .remove = redis_remove,
    .renew = redis_renew,
};
