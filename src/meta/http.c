/*
 * The HTTP metadata service: GET, PUT and DELETE of <url>?key=<key>. Only 200 is success; a PUT
 * that the service refuses (400: the name is taken) is told from one that did not arrive. It knows
 * no leases: what it holds is put back when it is lost, and taken over when its engine is dead.
 */
#include "base/log.h"
#include "io/http.h"
#include "io/tls.h"
#include "meta/meta.h"

#define TIMEOUT_MS         3000
#define CONNECT_TIMEOUT_MS 1500
#define VALUE_MAX          (128u << 20)

struct http_kv {
    struct mc_meta_kv base;
    char *url;
};

static enum mc_status http_open(const char *connection, uint32_t lease_s, struct mc_meta_kv **out) {
    struct http_kv *kv = mc_zalloc(sizeof(*kv));
    kv->base.ops = &mc_meta_http_ops;
    kv->url = mc_strdup(connection);
    *out = &kv->base;
    return MC_OK;
}

static void http_close(struct mc_meta_kv *base) {
    struct http_kv *kv = mc_container_of(base, struct http_kv, base);
    free(kv->url);
    free(kv);
}

static enum mc_status request(struct mc_meta_kv *base, const char *method, const char *key,
                              struct mc_str send, struct mc_buf *body) {
    struct http_kv *kv = mc_container_of(base, struct http_kv, base);
    const struct mc_tls_config tls = mc_tls_config_environment();
    struct mc_buf url = {0};
    int http_status = 0;
    mc_buf_printf(&url, "%s?key=", kv->url);
    mc_http_escape(&url, mc_str_from(key));
    struct mc_http_call call = {
        .method = method,
        .url = mc_buf_cstr(&url),
        .content_type = send.ptr != NULL ? "application/json" : NULL,
        .send = send,
        .timeout_ms = TIMEOUT_MS,
        .connect_timeout_ms = CONNECT_TIMEOUT_MS,
        .max_body_bytes = VALUE_MAX,
        .tls = &tls,
    };
    enum mc_status status = mc_http_call(&call, &http_status, body);
    if (status == MC_OK && http_status != 200) {
        status = http_status == 404   ? MC_ERR_NOT_FOUND
                 : http_status == 400 ? MC_ERR_REJECTED
                                      : MC_ERR_PROTOCOL;
    }
    if (status != MC_OK && status != MC_ERR_NOT_FOUND && status != MC_ERR_REJECTED) {
        mc_warn_limited("metadata service failed method=%s url=%s http=%d status=%s", method,
                        url.data, http_status, mc_status_name(status));
    }
    mc_buf_free(&url);
    return status;
}

static enum mc_status http_put(struct mc_meta_kv *kv, const char *key, struct mc_str value,
                               bool leased) {
    struct mc_buf body = {0};
    enum mc_status status = request(kv, "PUT", key, value, &body);
    mc_buf_free(&body);
    return status;
}

static enum mc_status http_get(struct mc_meta_kv *kv, const char *key, struct mc_buf *value) {
    return request(kv, "GET", key, (struct mc_str){NULL, 0}, value);
}

static enum mc_status http_remove(struct mc_meta_kv *kv, const char *key) {
    struct mc_buf body = {0};
    enum mc_status status = request(kv, "DELETE", key, (struct mc_str){NULL, 0}, &body);
    mc_buf_free(&body);
    return status;
}

/* The service itself refuses a second value for an address. It cannot replace one by another at
 * once: of two engines that take over the same dead one's name the slower meets the faster's. */
static enum mc_status http_claim(struct mc_meta_kv *kv, const char *key, struct mc_str old,
                                 struct mc_str value) {
    enum mc_status status = http_put(kv, key, value, true);
    if (status == MC_ERR_REJECTED && old.ptr != NULL) {
        status = http_remove(kv, key);
        if (status == MC_OK || status == MC_ERR_NOT_FOUND) {
            status = http_put(kv, key, value, true);
        }
    }
    return status == MC_ERR_REJECTED ? MC_ERR_EXISTS : status;
}

const struct mc_meta_kv_ops mc_meta_http_ops = {
    .schemes = {"http://", "https://"},
    .open = http_open,
    .close = http_close,
    .put = http_put,
    .claim = http_claim,
    .get = http_get,
    .remove = http_remove,
};
