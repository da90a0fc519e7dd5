/*
 * The HTTP client: libcurl, loaded when the first call is made. See io/http.h.
 *
 * Loading. libcurl pulls in some thirty libraries (TLS, LDAP, Kerberos, ...), which cost 7 ms and 6
 * MB at start. Most processes never make an HTTP call, so it is opened with dlopen at the first
 * one, and a machine without it loses only this.
 *
 * Handles. A handle keeps its connections alive between calls, so finished calls put theirs into a
 * small pool. The pool is the one piece of state here that is not passed in: libcurl's own
 * initialisation is per process too.
 */
#include "io/http.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <strings.h>

#include "base/log.h"
#include "io/tls_files.h"

#define POOL_SIZE          8
#define DEFAULT_TIMEOUT_MS 30000

struct curl_api {
    bool loaded;
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    void (*easy_reset)(CURL *handle);
    void (*easy_cleanup)(CURL *handle);
    CURLcode (*easy_setopt)(CURL *handle, CURLoption option, ...);
    CURLcode (*easy_getinfo)(CURL *handle, CURLINFO info, ...);
    CURLcode (*easy_perform)(CURL *handle);
    const char *(*easy_strerror)(CURLcode code);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
};

static struct curl_api api;
static pthread_once_t api_once = PTHREAD_ONCE_INIT;

static struct {
    pthread_mutex_t lock;
    CURL *idle[POOL_SIZE];
    size_t count;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load_api(void) {
    static const struct {
        const char *name;
        size_t offset;
    } SYMBOLS[] = {
        {"curl_global_init", offsetof(struct curl_api, global_init)},
        {"curl_easy_init", offsetof(struct curl_api, easy_init)},
        {"curl_easy_reset", offsetof(struct curl_api, easy_reset)},
        {"curl_easy_cleanup", offsetof(struct curl_api, easy_cleanup)},
        {"curl_easy_setopt", offsetof(struct curl_api, easy_setopt)},
        {"curl_easy_getinfo", offsetof(struct curl_api, easy_getinfo)},
        {"curl_easy_perform", offsetof(struct curl_api, easy_perform)},
        {"curl_easy_strerror", offsetof(struct curl_api, easy_strerror)},
        {"curl_slist_append", offsetof(struct curl_api, slist_append)},
        {"curl_slist_free_all", offsetof(struct curl_api, slist_free_all)},
    };
    static const char *const NAMES[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    void *library = NULL;
    for (size_t i = 0; i < MC_ARRAY_LEN(NAMES) && library == NULL; i++) {
        library = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL) {
        mc_error("HTTP calls need libcurl: reason=\"%s\"", dlerror());
        return;
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(SYMBOLS); i++) {
        void *symbol = dlsym(library, SYMBOLS[i].name);
        if (symbol == NULL) {
            mc_error("libcurl lacks a function: name=%s", SYMBOLS[i].name);
            return;
        }
        memcpy((char *)&api + SYMBOLS[i].offset, &symbol, sizeof(symbol));
    }
    api.loaded = api.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

static CURL *take_handle(void) {
    CURL *handle = NULL;
    pthread_mutex_lock(&pool.lock);
    if (pool.count > 0) {
        handle = pool.idle[--pool.count];
    }
    pthread_mutex_unlock(&pool.lock);
    if (handle == NULL) {
        handle = api.easy_init();
        MC_ASSERT(handle != NULL);
    }
    return handle;
}

static void put_handle(CURL *handle) {
    api.easy_reset(handle); /* keeps its connections */
    pthread_mutex_lock(&pool.lock);
    if (pool.count < POOL_SIZE) {
        pool.idle[pool.count++] = handle;
        handle = NULL;
    }
    pthread_mutex_unlock(&pool.lock);
    if (handle != NULL) {
        api.easy_cleanup(handle);
    }
}

struct received {
    struct mc_buf *body;
    size_t max;
    bool too_large;
};

static size_t on_body(char *bytes, size_t size, size_t count, void *arg) {
    struct received *r = arg;
    size_t len = size * count;
    if (len > r->max - r->body->len) {
        r->too_large = true;
        return 0;
    }
    mc_buf_append(r->body, bytes, len);
    return len;
}

#define SET(option, value) MC_ASSERT(api.easy_setopt(handle, (option), (value)) == CURLE_OK)

static void set_method(CURL *handle, const struct mc_http_call *call) {
    bool sends =
        call->send.len > 0 || strcmp(call->method, "POST") == 0 || strcmp(call->method, "PUT") == 0;
    if (strcmp(call->method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
    } else if (sends) {
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDS, call->send.len > 0 ? call->send.ptr : "");
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->send.len);
    }
    SET(CURLOPT_CUSTOMREQUEST, call->method);
}

static struct curl_slist *add_header(struct curl_slist *headers, const char *name,
                                     const char *value) {
    struct mc_buf line = {0};
    mc_buf_printf(&line, "%s:%s%s", name, value != NULL ? " " : "", value != NULL ? value : "");
    headers = api.slist_append(headers, mc_buf_cstr(&line)); /* without a value none is sent */
    MC_ASSERT(headers != NULL);
    mc_buf_free(&line);
    return headers;
}

static struct curl_slist *make_headers(const struct mc_http_call *call) {
    struct curl_slist *headers = add_header(NULL, "Content-Type", call->content_type);
    headers = add_header(headers, "Authorization", call->authorization);
    return add_header(headers, "Expect", NULL); /* no wait for 100 */
}

static void set_file(CURL *handle, CURLoption option, const char *path) {
    if (path != NULL && path[0] != '\0') {
        SET(option, path);
    }
}

static void set_tls(CURL *handle, const struct mc_tls_config *tls) {
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (tls != NULL) {
        set_file(handle, CURLOPT_CAINFO, tls->ca);
        set_file(handle, CURLOPT_SSLCERT, tls->cert);
        set_file(handle, CURLOPT_SSLKEY, tls->key);
    }
}

static void set_options(CURL *handle, const struct mc_http_call *call, struct curl_slist *headers,
                        struct received *received) {
    uint32_t timeout_ms = call->timeout_ms > 0 ? call->timeout_ms : DEFAULT_TIMEOUT_MS;
    uint32_t connect_ms = call->connect_timeout_ms > 0 ? call->connect_timeout_ms : timeout_ms;
    SET(CURLOPT_NOSIGNAL, 1L);
    /* Peers of one cluster: a proxy of the environment is for other traffic. */
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)connect_ms);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, received);
    SET(CURLOPT_URL, call->url);
    set_tls(handle, call->tls);
    set_method(handle, call);
}

static enum mc_status status_of(CURLcode code) {
    switch (code) {
    case CURLE_OK:
        return MC_OK;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_COULDNT_RESOLVE_HOST:
        return MC_ERR_BAD_ADDRESS;
    case CURLE_COULDNT_CONNECT:
        return MC_ERR_UNREACHABLE;
    case CURLE_OPERATION_TIMEDOUT:
        return MC_ERR_TIMEOUT;
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
        return MC_ERR_CLOSED;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
    case CURLE_HTTP2:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
        return MC_ERR_PROTOCOL;
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
        return MC_INVALID_PARAMS;
    default:
        return MC_ERR_IO;
    }
}

static enum mc_status call_failed(const struct mc_http_call *call, enum mc_status status,
                                  const char *reason) {
    int shown = (int)strcspn(call->url, "?"); /* the query may hold keys */
    mc_warn_limited("HTTP call failed: method=%s url=%.*s status=%s reason=\"%s\"", call->method,
                    shown, call->url, mc_status_name(status), reason);
    return status;
}

enum mc_status mc_http_call(const struct mc_http_call *call, int *http_status,
                            struct mc_buf *body) {
    mc_buf_clear(body);
    pthread_once(&api_once, load_api);
    if (!api.loaded) {
        return call_failed(call, MC_NOT_SUPPORTED, "libcurl is not available");
    }
    if (call->tls != NULL && strncasecmp(call->url, "https:", 6) == 0) {
        MC_TRY(mc_tls_config_check(call->tls));
    }
    struct received received = {body, call->max_body_bytes, false};
    struct curl_slist *headers = make_headers(call);
    CURL *handle = take_handle();
    set_options(handle, call, headers, &received);
    CURLcode code = api.easy_perform(handle);
    long answered = 0;
    if (code == CURLE_OK) {
        code = api.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &answered);
    }
    put_handle(handle);
    api.slist_free_all(headers);
    if (code != CURLE_OK) {
        mc_buf_clear(body);
        return received.too_large
                   ? call_failed(call, MC_ERR_LIMIT, "the answer is larger than the caller accepts")
                   : call_failed(call, status_of(code), api.easy_strerror(code));
    }
    *http_status = (int)answered;
    return MC_OK;
}

void mc_http_escape(struct mc_buf *out, struct mc_str text) {
    static const char UNRESERVED[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c != '\0' && strchr(UNRESERVED, c) != NULL) {
            mc_buf_putc(out, (char)c);
        } else {
            mc_buf_printf(out, "%%%02X", c);
        }
    }
}
