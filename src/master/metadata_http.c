/*
 * The embedded metadata server. See master/metadata_http.h.
 *
 * A chained hash table under one mutex: requests come from the HTTP server's thread, forgetting
 * from the janitor. Nothing else happens under the lock.
 */
#include "master/metadata_http.h"

#include "base/log.h"
#include "io/http.h"

#include <pthread.h>

#define BUCKETS 4096

struct entry {
    struct entry *next;
    uint64_t hash;
    size_t value_len;
    size_t key_len;
    char bytes[]; /* key, then value */
};

struct mc_metadata_http {
    struct mc_http_server *http;
    pthread_mutex_t mutex;
    struct entry *buckets[BUCKETS];
    size_t key_count;
    size_t total_bytes; /* of keys and values */
};

/* ---- the table, with the mutex held ---- */

/* The link that points to the entry of `key`, or to NULL at the end of its chain. */
static struct entry **find_locked(struct mc_metadata_http *m, struct mc_str key) {
    uint64_t hash = mc_hash64(key.ptr, key.len, 0);
    struct entry **link = &m->buckets[hash % BUCKETS];
    while (*link != NULL) {
        struct entry *e = *link;
        if (e->hash == hash && e->key_len == key.len && memcmp(e->bytes, key.ptr, key.len) == 0) {
            break;
        }
        link = &e->next;
    }
    return link;
}

static struct mc_str value_of(const struct entry *e) {
    return (struct mc_str){e->bytes + e->key_len, e->value_len};
}

static void remove_locked(struct mc_metadata_http *m, struct entry **link) {
    struct entry *e = *link;
    *link = e->next;
    m->key_count--;
    m->total_bytes -= e->key_len + e->value_len;
    free(e);
}

static void insert_locked(struct mc_metadata_http *m, struct mc_str key, struct mc_str value) {
    struct entry *e = mc_alloc(sizeof(*e) + key.len + value.len);
    e->hash = mc_hash64(key.ptr, key.len, 0);
    e->key_len = key.len;
    e->value_len = value.len;
    memcpy(e->bytes, key.ptr, key.len);
    if (value.len > 0) {
        memcpy(e->bytes + key.len, value.ptr, value.len);
    }
    struct entry **head = &m->buckets[e->hash % BUCKETS];
    e->next = *head;
    *head = e;
    m->key_count++;
    m->total_bytes += key.len + value.len;
}

/* ---- requests ---- */

static void answer(struct mc_http_response *response, int status, const char *text) {
    response->status = status;
    mc_buf_puts(&response->body, text);
}

static bool key_of(const struct mc_http_request *request, struct mc_http_response *response,
                   struct mc_str *key) {
    const char *text = mc_http_query(request, "key");
    if (text == NULL || text[0] == '\0') {
        answer(response, 400, "Missing key parameter");
        return false;
    }
    *key = mc_str_from(text);
    return true;
}

static void handle_get(void *ctx, const struct mc_http_request *request,
                       struct mc_http_response *response) {
    struct mc_metadata_http *m = ctx;
    struct mc_str key;
    if (!key_of(request, response, &key)) {
        return;
    }
    pthread_mutex_lock(&m->mutex);
    const struct entry *e = *find_locked(m, key);
    if (e != NULL) {
        struct mc_str value = value_of(e);
        mc_buf_append(&response->body, value.ptr, value.len);
        response->content_type = "application/json";
    }
    pthread_mutex_unlock(&m->mutex);
    if (e == NULL) {
        answer(response, 404, "metadata not found");
    }
}

static void put_locked(struct mc_metadata_http *m, struct mc_str key, struct mc_str value,
                       struct mc_http_response *response) {
    struct entry **link = find_locked(m, key);
    size_t freed = 0;
    if (*link != NULL) {
        /* Two engines under one name would answer for each other:
         * the address of the first stays. */
        if (memmem(key.ptr, key.len, "rpc_meta", 8) != NULL) {
            bool same = mc_str_eq(value_of(*link), value);
            answer(response, same ? 200 : 400,
                   same ? "metadata unchanged" : "Duplicate rpc_meta key not allowed");
            return;
        }
        freed = (*link)->key_len + (*link)->value_len;
    } else if (m->key_count >= MC_METADATA_MAX_KEYS) {
        answer(response, 507, "too many metadata keys");
        return;
    }
    if (m->total_bytes - freed + key.len + value.len > MC_METADATA_MAX_TOTAL) {
        answer(response, 507, "too much metadata");
        return;
    }
    if (*link != NULL) {
        remove_locked(m, link);
    }
    insert_locked(m, key, value);
    answer(response, 200, "metadata updated");
}

static void handle_put(void *ctx, const struct mc_http_request *request,
                       struct mc_http_response *response) {
    struct mc_metadata_http *m = ctx;
    struct mc_str key;
    if (!key_of(request, response, &key)) {
        return;
    }
    pthread_mutex_lock(&m->mutex);
    put_locked(m, key, request->body, response);
    pthread_mutex_unlock(&m->mutex);
}

static void handle_delete(void *ctx, const struct mc_http_request *request,
                          struct mc_http_response *response) {
    struct mc_metadata_http *m = ctx;
    struct mc_str key;
    if (!key_of(request, response, &key)) {
        return;
    }
    pthread_mutex_lock(&m->mutex);
    struct entry **link = find_locked(m, key);
    bool found = *link != NULL;
    if (found) {
        remove_locked(m, link);
    }
    pthread_mutex_unlock(&m->mutex);
    answer(response, found ? 200 : 404, found ? "metadata deleted" : "metadata not found");
}

static void handle_health(void *ctx, const struct mc_http_request *request,
                          struct mc_http_response *response) {
    answer(response, 200, "OK");
}

static const struct mc_http_route routes[] = {
    {"GET", "/metadata", handle_get},
    {"PUT", "/metadata", handle_put},
    {"DELETE", "/metadata", handle_delete},
    {"GET", "/health", handle_health},
};

/* ---- life ---- */

enum mc_status mc_metadata_http_start(const char *host, uint16_t port,
                                      const struct mc_tls_config *tls,
                                      struct mc_metadata_http **out, uint16_t *bound_port) {
    struct mc_metadata_http *m = mc_zalloc(sizeof(*m));
    const struct mc_http_server_config http = {.host = host,
                                               .port = port,
                                               .routes = routes,
                                               .route_count = MC_ARRAY_LEN(routes),
                                               .max_body_bytes = MC_METADATA_MAX_VALUE,
                                               .tls = tls,
                                               .ctx = m};
    pthread_mutex_init(&m->mutex, NULL);
    enum mc_status status = mc_http_server_start(&http, &m->http, bound_port);
    if (status != MC_OK) {
        pthread_mutex_destroy(&m->mutex);
        free(m);
        return status;
    }
    *out = m;
    return MC_OK;
}

void mc_metadata_http_stop(struct mc_metadata_http *m) {
    if (m == NULL) {
        return;
    }
    mc_http_server_stop(m->http);
    for (size_t i = 0; i < BUCKETS; i++) {
        while (m->buckets[i] != NULL) {
            remove_locked(m, &m->buckets[i]);
        }
    }
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

void mc_metadata_http_forget(struct mc_metadata_http *m, struct mc_str segment_name) {
    static const char *const kinds[] = {"ram", "rpc_meta"};
    struct mc_buf key = {0};
    for (size_t i = 0; i < MC_ARRAY_LEN(kinds); i++) {
        mc_buf_clear(&key);
        mc_buf_printf(&key, "mooncake/%s/%.*s", kinds[i], (int)segment_name.len, segment_name.ptr);
        pthread_mutex_lock(&m->mutex);
        struct entry **link = find_locked(m, (struct mc_str){key.data, key.len});
        bool found = *link != NULL;
        if (found) {
            remove_locked(m, link);
        }
        pthread_mutex_unlock(&m->mutex);
        if (found) {
            mc_info("metadata of a lost client removed key=%s", mc_buf_cstr(&key));
        }
    }
    mc_buf_free(&key);
}
