/*
 * Metadata in etcd, through its v3 JSON gateway, which every etcd serves beside gRPC.
 *
 * All leased records of this process hang on one lease: it is granted before the first of them,
 * kept alive by renew, and gone with its records when the process is. A lease that the service no
 * longer knows (it restarted empty, or we could not reach it for too long) is replaced at the next
 * put.
 *
 * A call goes to the endpoint that answered last, and on to the next one when that one cannot be
 * reached or has no leader. A request that was carried out although its answer was lost is then
 * sent again: each is written so that twice is the same as once.
 *
 * With a user (MC_ETCD_USERNAME) calls carry a token. It is asked for at the first call, and anew
 * when etcd says that it does not know it (it was old, or the server restarted).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/log.h"
#include "io/http.h"
#include "io/tls.h"
#include "meta/endpoints.h"
#include "meta/etcd_json.h"
#include "meta/meta.h"

#define SCHEME             "etcd://"
#define SECURE_SCHEME      "etcds://" /* the same over TLS */
#define DEFAULT_PORT       2379
#define CALL_TIMEOUT_MS    6000 /* all endpoints */
#define TIMEOUT_MS         3000 /* one, while there is another */
#define CONNECT_TIMEOUT_MS 1500
#define ANSWER_MAX         (128u << 20)
#define MESSAGE_MAX        200
#define TOKEN_MAX          2048 /* a JWT has some hundreds */

struct etcd_kv {
    struct mc_meta_kv base;
    struct mc_meta_endpoints endpoints;
    _Atomic size_t current; /* the endpoint that answered last */
    uint32_t lease_s;
    bool secure;
    char *username, *password; /* "" = none */
    pthread_mutex_t auth_lock; /* held while a token is asked for: one is enough */
    char token[TOKEN_MAX];     /* "" = none */
    pthread_mutex_t lock;      /* held while a lease is granted: one is enough */
    int64_t lease;             /* 0 = none */
};

static char *copy_env(const char *name) {
    const char *text = getenv(name);
    return mc_strdup(text != NULL ? text : "");
}

static enum mc_status etcd_open(const char *connection, uint32_t lease_s, struct mc_meta_kv **out) {
    bool secure = strncmp(connection, SECURE_SCHEME, strlen(SECURE_SCHEME)) == 0;
    size_t scheme = secure                                             ? strlen(SECURE_SCHEME)
                    : strncmp(connection, SCHEME, strlen(SCHEME)) == 0 ? strlen(SCHEME)
                                                                       : 0;
    struct etcd_kv *kv = mc_zalloc(sizeof(*kv));
    kv->base.ops = &mc_meta_etcd_ops;
    kv->lease_s = lease_s;
    kv->secure = secure;
    if (mc_meta_endpoints_parse(connection + scheme, DEFAULT_PORT, &kv->endpoints) != MC_OK) {
        /* The text may hold a password by mistake: it is not shown. */
        mc_error(
            "the endpoints of etcd cannot be parsed expected=\"etcd://host:port[,host:port...] "
            "or etcds://\" at_most=%d; user and password are MC_ETCD_USERNAME and "
            "MC_ETCD_PASSWORD",
            MC_META_ENDPOINTS_MAX);
        free(kv);
        return MC_ERR_BAD_ADDRESS;
    }
    kv->username = copy_env("MC_ETCD_USERNAME");
    kv->password = copy_env("MC_ETCD_PASSWORD");
    pthread_mutex_init(&kv->auth_lock, NULL);
    pthread_mutex_init(&kv->lock, NULL);
    *out = &kv->base;
    return MC_OK;
}

/* ---- one call ---- */

/* What an answer other than 200 means. MC_ERR_UNREACHABLE: another endpoint may do better. */
static enum mc_status judge(int http_status, int code, const char *message) {
    if (code == MC_ETCD_NOT_FOUND) {
        return MC_ERR_NOT_FOUND;
    }
    if (code == MC_ETCD_UNAVAILABLE || code == MC_ETCD_DEADLINE || http_status == 503 ||
        http_status == 504) {
        return MC_ERR_UNREACHABLE;
    }
    if (code == MC_ETCD_EXHAUSTED && strstr(message, "space exceeded") != NULL) {
        return MC_ERR_REJECTED; /* the database is full: no fault of this value */
    }
    if (code == MC_ETCD_EXHAUSTED || strstr(message, "too large") != NULL) {
        return MC_ERR_LIMIT;
    }
    return code != 0 ? MC_ERR_REJECTED : MC_ERR_PROTOCOL;
}

/* One request to one endpoint. *code and `message` are of an answer other than 200, else 0 and "".
 */
static enum mc_status exchange(const struct etcd_kv *kv, const char *address, const char *path,
                               struct mc_str body, const char *token, uint64_t deadline_ms,
                               struct mc_buf *answer, int *code, char message[MESSAGE_MAX]) {
    const struct mc_tls_config tls = mc_tls_config_environment();
    uint64_t now_ms = mc_now_ms(mc_clock_system());
    uint64_t left_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 1;
    struct mc_buf url = {0};
    int http_status = 0;
    *code = 0;
    message[0] = '\0';
    mc_buf_printf(&url, "http%s://%s/v3/%s", kv->secure ? "s" : "", address, path);
    struct mc_http_call call = {
        .method = "POST",
        .url = mc_buf_cstr(&url),
        .content_type = "application/json",
        .authorization = token[0] != '\0' ? token : NULL,
        .send = body,
        .timeout_ms = (uint32_t)left_ms,
        .connect_timeout_ms = (uint32_t)mc_min_u64(CONNECT_TIMEOUT_MS, left_ms),
        .max_body_bytes = ANSWER_MAX,
        .tls = &tls,
    };
    enum mc_status status = mc_http_call(&call, &http_status, answer);
    if (status == MC_OK && http_status != 200) {
        mc_etcd_read_error((struct mc_str){answer->data, answer->len}, code, message, MESSAGE_MAX);
        if (message[0] == '\0') {
            snprintf(message, MESSAGE_MAX, "HTTP status %d", http_status);
        }
        status = judge(http_status, *code, message);
    }
    mc_buf_free(&url);
    return status;
}

static void refused(const char *address, const char *path, const char *message,
                    enum mc_status status) {
    mc_warn_limited("etcd refused endpoint=%s request=%s reason=\"%s\" status=%s", address, path,
                    message, mc_status_name(status));
}

/* ---- who we are ---- */

static enum mc_status login_locked(struct etcd_kv *kv, const char *address, uint64_t deadline_ms) {
    struct mc_buf request = {0}, answer = {0};
    char message[MESSAGE_MAX];
    int code;
    mc_etcd_write_user(&request, kv->username, kv->password);
    enum mc_status status =
        exchange(kv, address, "auth/authenticate", (struct mc_str){request.data, request.len}, "",
                 deadline_ms, &answer, &code, message);
    if (status == MC_OK) {
        status = mc_etcd_read_token((struct mc_str){answer.data, answer.len}, kv->token, TOKEN_MAX);
    } else if (code == MC_ETCD_FAILED_PRECONDITION) {
        mc_warn_limited("etcd asks for no users: MC_ETCD_USERNAME has no effect endpoint=%s",
                        address);
        status = MC_OK;
    } else if (code != 0) {
        mc_error("etcd does not accept MC_ETCD_USERNAME and MC_ETCD_PASSWORD user=\"%s\" "
                 "endpoint=%s reason=\"%s\"",
                 kv->username, address, message);
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    return status;
}

/* `token`: in, the one that etcd does not know ("" = none yet); out, another one, or none. */
static enum mc_status login(struct etcd_kv *kv, const char *address, uint64_t deadline_ms,
                            char token[TOKEN_MAX]) {
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&kv->auth_lock);
    if (strcmp(kv->token, token) == 0) { /* else another thread has asked already */
        kv->token[0] = '\0';
        status = login_locked(kv, address, deadline_ms);
    }
    memcpy(token, kv->token, TOKEN_MAX);
    pthread_mutex_unlock(&kv->auth_lock);
    return status;
}

/* Authentication may have been enabled, or rights changed, since the token was given. */
static bool wants_login(int code, const char *message) {
    return code == MC_ETCD_UNAUTHENTICATED || strstr(message, "auth store is old") != NULL ||
           strstr(message, "user name is empty") != NULL;
}

static enum mc_status call_endpoint(struct etcd_kv *kv, const struct mc_hostport *endpoint,
                                    const char *path, struct mc_str body, uint64_t deadline_ms,
                                    struct mc_buf *answer) {
    bool has_user = kv->username[0] != '\0';
    char address[MC_HOST_MAX + 8], message[MESSAGE_MAX], token[TOKEN_MAX] = "";
    int code;
    mc_hostport_format(endpoint->host, endpoint->port, address, sizeof(address));
    if (has_user) {
        MC_TRY(login(kv, address, deadline_ms, token));
    }
    enum mc_status status =
        exchange(kv, address, path, body, token, deadline_ms, answer, &code, message);
    if (has_user && wants_login(code, message)) {
        MC_TRY(login(kv, address, deadline_ms, token));
        status = exchange(kv, address, path, body, token, deadline_ms, answer, &code, message);
    }
    if (message[0] != '\0' && status != MC_ERR_NOT_FOUND) {
        refused(address, path, message, status);
    }
    return status;
}

static bool another_may_answer(enum mc_status status) {
    return status == MC_ERR_UNREACHABLE || status == MC_ERR_TIMEOUT || status == MC_ERR_CLOSED ||
           status == MC_ERR_BAD_ADDRESS || status == MC_ERR_IO;
}

static enum mc_status call(struct etcd_kv *kv, const char *path, struct mc_buf *request,
                           struct mc_buf *answer) {
    uint64_t deadline_ms = mc_now_ms(mc_clock_system()) + CALL_TIMEOUT_MS;
    size_t first = atomic_load_explicit(&kv->current, memory_order_relaxed);
    enum mc_status status = MC_ERR_TIMEOUT;
    for (size_t i = 0; i < kv->endpoints.count; i++) {
        size_t index = (first + i) % kv->endpoints.count;
        uint64_t now_ms = mc_now_ms(mc_clock_system());
        bool last = i + 1 == kv->endpoints.count;
        if (now_ms >= deadline_ms) {
            break;
        }
        status = call_endpoint(
            kv, &kv->endpoints.list[index], path, (struct mc_str){request->data, request->len},
            last ? deadline_ms : mc_min_u64(deadline_ms, now_ms + TIMEOUT_MS), answer);
        if (!another_may_answer(status)) {
            atomic_store_explicit(&kv->current, index, memory_order_relaxed);
            break;
        }
    }
    mc_buf_clear(request);
    if (another_may_answer(status)) {
        mc_warn_limited("no endpoint of etcd answers request=%s tried=%zu status=%s", path,
                        kv->endpoints.count, mc_status_name(status));
    }
    return status;
}

static enum mc_status unreadable(const char *path, enum mc_status status) {
    if (status == MC_ERR_PROTOCOL) {
        mc_warn_limited("the answer of etcd cannot be read request=%s", path);
    }
    return status;
}

/* ---- the lease ---- */

static enum mc_status grant_locked(struct etcd_kv *kv) {
    struct mc_buf request = {0}, answer = {0};
    mc_etcd_write_grant(&request, kv->lease_s);
    enum mc_status status = call(kv, "lease/grant", &request, &answer);
    if (status == MC_OK) {
        status =
            unreadable("lease/grant",
                       mc_etcd_read_grant((struct mc_str){answer.data, answer.len}, &kv->lease));
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    return status;
}

static enum mc_status have_lease(struct etcd_kv *kv, int64_t *lease) {
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&kv->lock);
    if (kv->lease == 0) {
        status = grant_locked(kv);
    }
    *lease = kv->lease;
    pthread_mutex_unlock(&kv->lock);
    return status;
}

static void lose_lease(struct etcd_kv *kv, int64_t lease) {
    pthread_mutex_lock(&kv->lock);
    if (kv->lease == lease) {
        kv->lease = 0;
    }
    pthread_mutex_unlock(&kv->lock);
}

static enum mc_status etcd_renew(struct mc_meta_kv *base, const char *const *keys, size_t count) {
    struct etcd_kv *kv = mc_container_of(base, struct etcd_kv, base);
    struct mc_buf request = {0}, answer = {0};
    pthread_mutex_lock(&kv->lock);
    int64_t lease = kv->lease;
    pthread_mutex_unlock(&kv->lock);
    if (lease == 0) {
        return MC_ERR_NOT_FOUND;
    }
    mc_etcd_write_lease(&request, lease);
    enum mc_status status = call(kv, "lease/keepalive", &request, &answer);
    if (status == MC_OK) {
        status = unreadable("lease/keepalive",
                            mc_etcd_read_keepalive((struct mc_str){answer.data, answer.len}));
    }
    if (status == MC_ERR_NOT_FOUND) {
        lose_lease(kv, lease);
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    return status;
}

static void etcd_close(struct mc_meta_kv *base) {
    struct etcd_kv *kv = mc_container_of(base, struct etcd_kv, base);
    struct mc_buf request = {0}, answer = {0};
    if (kv->lease != 0) {
        mc_etcd_write_lease(&request, kv->lease);
        enum mc_status status = call(kv, "lease/revoke", &request, &answer);
        if (status != MC_OK && status != MC_ERR_NOT_FOUND) {
            mc_warn("the lease in etcd ends by itself seconds=%u status=%s", kv->lease_s,
                    mc_status_name(status));
        }
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    pthread_mutex_destroy(&kv->lock);
    pthread_mutex_destroy(&kv->auth_lock);
    free(kv->username);
    free(kv->password);
    free(kv);
}

/* ---- records ---- */

static enum mc_status etcd_put(struct mc_meta_kv *base, const char *key, struct mc_str value,
                               bool leased) {
    struct etcd_kv *kv = mc_container_of(base, struct etcd_kv, base);
    struct mc_buf request = {0}, answer = {0}, line = {0};
    enum mc_status status = MC_ERR_NOT_FOUND;
    int64_t lease = 0;
    mc_meta_value_line(&line, value);
    for (int attempt = 0; attempt < 2 && status == MC_ERR_NOT_FOUND; attempt++) {
        status = leased ? have_lease(kv, &lease) : MC_OK;
        if (status == MC_OK) {
            mc_etcd_write_put(&request, mc_str_from(key), (struct mc_str){line.data, line.len},
                              lease);
            status = call(kv, "kv/put", &request, &answer);
        }
        if (status == MC_ERR_NOT_FOUND) { /* the lease */
            lose_lease(kv, lease);
        }
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    mc_buf_free(&line);
    return status;
}

/* One transaction; MC_ERR_NOT_FOUND when the lease or (of a swap) the key is gone. */
static enum mc_status transact(struct etcd_kv *kv, const char *key, const struct mc_str *old,
                               struct mc_str value, struct mc_buf *held) {
    struct mc_buf request = {0}, answer = {0};
    int64_t lease;
    MC_TRY(have_lease(kv, &lease));
    if (old == NULL) {
        mc_etcd_write_create(&request, mc_str_from(key), value, lease);
    } else {
        mc_etcd_write_swap(&request, mc_str_from(key), *old, value, lease);
    }
    enum mc_status status = call(kv, "kv/txn", &request, &answer);
    if (status == MC_ERR_NOT_FOUND) {
        lose_lease(kv, lease);
    } else if (status == MC_OK) {
        mc_buf_clear(held);
        status = unreadable(
            "kv/txn", mc_etcd_read_transaction((struct mc_str){answer.data, answer.len}, held));
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    return status;
}

/* Create; or, where `old` or the value itself is held, swap (which puts it under our lease). Races
 * and a lost lease lead back to the start, a few times. */
static enum mc_status etcd_claim(struct mc_meta_kv *base, const char *key, struct mc_str old,
                                 struct mc_str value) {
    struct etcd_kv *kv = mc_container_of(base, struct etcd_kv, base);
    struct mc_buf line = {0}, held = {0};
    enum mc_status status = MC_ERR_NOT_FOUND;
    mc_meta_value_line(&line, value);
    struct mc_str ours = {line.data, line.len};
    for (int attempt = 0; attempt < 3 && status == MC_ERR_NOT_FOUND; attempt++) {
        status = transact(kv, key, NULL, ours, &held);
        struct mc_str is = {held.data, held.len};
        if (status == MC_ERR_EXISTS &&
            (mc_str_eq(is, ours) || (old.ptr != NULL && mc_str_eq(is, old)))) {
            char *copy = mc_str_dup(is);
            struct mc_str expected = {copy, is.len};
            status = transact(kv, key, &expected, ours, &held);
            free(copy);
            if (status == MC_ERR_EXISTS && mc_str_eq((struct mc_str){held.data, held.len}, ours)) {
                status = MC_OK; /* carried out by a request whose answer was lost */
            }
        }
    }
    mc_buf_free(&line);
    mc_buf_free(&held);
    return status;
}

static enum mc_status etcd_get(struct mc_meta_kv *base, const char *key, struct mc_buf *value) {
    struct etcd_kv *kv = mc_container_of(base, struct etcd_kv, base);
    struct mc_buf request = {0}, answer = {0};
    mc_etcd_write_key(&request, mc_str_from(key));
    enum mc_status status = call(kv, "kv/range", &request, &answer);
    mc_buf_clear(value);
    if (status == MC_OK) {
        status = unreadable("kv/range",
                            mc_etcd_read_range((struct mc_str){answer.data, answer.len}, value));
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    return status;
}

static enum mc_status etcd_remove(struct mc_meta_kv *base, const char *key) {
    struct etcd_kv *kv = mc_container_of(base, struct etcd_kv, base);
    struct mc_buf request = {0}, answer = {0};
    mc_etcd_write_key(&request, mc_str_from(key));
    enum mc_status status = call(kv, "kv/deleterange", &request, &answer);
    if (status == MC_OK) {
        status = unreadable("kv/deleterange",
                            mc_etcd_read_delete((struct mc_str){answer.data, answer.len}));
    }
    mc_buf_free(&request);
    mc_buf_free(&answer);
    return status;
}

const struct mc_meta_kv_ops mc_meta_etcd_ops = {
    .schemes = {SCHEME, SECURE_SCHEME},
    .open = etcd_open,
    .close = etcd_close,
    .put = etcd_put,
    .claim = etcd_claim,
    .get = etcd_get,
    .remove = etcd_remove,
    .renew = etcd_renew,
};
