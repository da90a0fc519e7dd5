/* See etcd_json.h. Nothing in a request but a user needs JSON's escapes: it is base64 and numbers.
 */
#include "meta/etcd_json.h"

#include <jansson.h>
#include <stdio.h>

/* ---- base64 ---- */

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void mc_etcd_base64_encode(struct mc_buf *out, struct mc_str bytes) {
    const unsigned char *in = (const unsigned char *)bytes.ptr;
    mc_buf_reserve(out, (bytes.len + 2) / 3 * 4);
    for (size_t i = 0; i < bytes.len; i += 3) {
        size_t left = bytes.len - i;
        uint32_t group = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                         (left > 2 ? in[i + 2] : 0);
        char four[4] = {ALPHABET[group >> 18], ALPHABET[group >> 12 & 63],
                        left > 1 ? ALPHABET[group >> 6 & 63] : '=',
                        left > 2 ? ALPHABET[group & 63] : '='};
        mc_buf_append(out, four, 4);
    }
}

static int value_of(char c) {
    const char *at = c == '\0' ? NULL : strchr(ALPHABET, c);
    return at == NULL ? -1 : (int)(at - ALPHABET);
}

/* 1 to 3 bytes of four characters; 0 for what is no group. Bits that stand for nothing are 0. */
static size_t decode_group(const char *four, bool last, unsigned char bytes[3]) {
    size_t pad = last && four[3] == '=' ? (four[2] == '=' ? 2 : 1) : 0;
    uint32_t group = 0;
    for (size_t i = 0; i < 4; i++) {
        int value = i < 4 - pad ? value_of(four[i]) : 0;
        if (value < 0) {
            return 0;
        }
        group = group << 6 | (uint32_t)value;
    }
    if ((pad == 1 && (group & 0xff) != 0) || (pad == 2 && (group & 0xffff) != 0)) {
        return 0;
    }
    bytes[0] = (unsigned char)(group >> 16);
    bytes[1] = (unsigned char)(group >> 8);
    bytes[2] = (unsigned char)group;
    return 3 - pad;
}

bool mc_etcd_base64_decode(struct mc_buf *out, struct mc_str text) {
    size_t before = out->len;
    if (text.len % 4 != 0) {
        return false;
    }
    mc_buf_reserve(out, text.len / 4 * 3);
    for (size_t i = 0; i < text.len; i += 4) {
        unsigned char bytes[3];
        size_t n = decode_group(text.ptr + i, i + 4 == text.len, bytes);
        if (n == 0) {
            out->len = before;
            return false;
        }
        mc_buf_append(out, bytes, n);
    }
    return true;
}

/* ---- requests ---- */

static void member(struct mc_buf *out, const char *name, struct mc_str bytes) {
    mc_buf_printf(out, "\"%s\":\"", name);
    mc_etcd_base64_encode(out, bytes);
    mc_buf_putc(out, '"');
}

void mc_etcd_write_key(struct mc_buf *out, struct mc_str key) {
    mc_buf_putc(out, '{');
    member(out, "key", key);
    mc_buf_putc(out, '}');
}

void mc_etcd_write_put(struct mc_buf *out, struct mc_str key, struct mc_str value, int64_t lease) {
    mc_buf_putc(out, '{');
    member(out, "key", key);
    mc_buf_putc(out, ',');
    member(out, "value", value);
    if (lease != 0) {
        mc_buf_printf(out, ",\"lease\":\"%lld\"", (long long)lease);
    }
    mc_buf_putc(out, '}');
}

/* Behind the comparison: what is done if it holds, and the look at what is there if not. */
static void write_branches(struct mc_buf *out, struct mc_str key, struct mc_str value,
                           int64_t lease) {
    mc_buf_puts(out, "}],\"success\":[{\"request_put\":");
    mc_etcd_write_put(out, key, value, lease);
    mc_buf_puts(out, "}],\"failure\":[{\"request_range\":");
    mc_etcd_write_key(out, key);
    mc_buf_puts(out, "}]}");
}

void mc_etcd_write_create(struct mc_buf *out, struct mc_str key, struct mc_str value,
                          int64_t lease) {
    mc_buf_puts(out, "{\"compare\":[{");
    member(out, "key", key);
    mc_buf_puts(out, ",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"");
    write_branches(out, key, value, lease);
}

void mc_etcd_write_swap(struct mc_buf *out, struct mc_str key, struct mc_str old,
                        struct mc_str value, int64_t lease) {
    mc_buf_puts(out, "{\"compare\":[{");
    member(out, "key", key);
    mc_buf_puts(out, ",\"target\":\"VALUE\",\"result\":\"EQUAL\",");
    member(out, "value", old);
    write_branches(out, key, value, lease);
}

void mc_etcd_write_grant(struct mc_buf *out, uint32_t ttl_s) {
    mc_buf_printf(out, "{\"TTL\":\"%u\"}", ttl_s);
}

void mc_etcd_write_lease(struct mc_buf *out, int64_t lease) {
    mc_buf_printf(out, "{\"ID\":\"%lld\"}", (long long)lease);
}

void mc_etcd_write_user(struct mc_buf *out, const char *name, const char *password) {
    json_t *user = json_pack("{s:s%,s:s%}", "name", name, strlen(name), "password", password,
                             strlen(password));
    char *text = json_dumps(user, JSON_COMPACT); /* NULL: not UTF-8 */
    mc_buf_puts(out, text != NULL ? text : "{}");
    free(text);
    json_decref(user);
}

/* ---- answers ---- */

/* An object, or NULL. Streams send one object a line; the first one counts. */
static json_t *load(struct mc_str body) {
    json_t *json =
        body.len == 0 ? NULL : json_loadb(body.ptr, body.len, JSON_DISABLE_EOF_CHECK, NULL);
    if (!json_is_object(json)) {
        json_decref(json);
        return NULL;
    }
    return json;
}

/* A number, as a string or not; 0 when it is absent. */
static bool number_of(const json_t *object, const char *name, int64_t *out) {
    const json_t *found = json_object_get(object, name);
    if (found == NULL) {
        *out = 0;
        return true;
    }
    if (json_is_integer(found)) {
        *out = json_integer_value(found);
        return true;
    }
    uint64_t value;
    if (!json_is_string(found) ||
        mc_parse_u64(json_string_value(found), 0, INT64_MAX, &value) != MC_OK) {
        return false;
    }
    *out = (int64_t)value;
    return true;
}

/* The one key of a range's answer. */
static enum mc_status read_kvs(const json_t *range, struct mc_buf *value) {
    const json_t *kvs = json_object_get(range, "kvs");
    if (kvs == NULL || (json_is_array(kvs) && json_array_size(kvs) == 0)) {
        return MC_ERR_NOT_FOUND;
    }
    const json_t *first = json_array_get(kvs, 0);
    const json_t *held = json_object_get(first, "value");
    if (!json_is_object(first) || json_array_size(kvs) != 1) {
        return MC_ERR_PROTOCOL;
    }
    if (held == NULL) {
        return MC_OK; /* an empty value */
    }
    struct mc_str text = {json_string_value(held), json_string_length(held)};
    return json_is_string(held) && mc_etcd_base64_decode(value, text) ? MC_OK : MC_ERR_PROTOCOL;
}

enum mc_status mc_etcd_read_range(struct mc_str body, struct mc_buf *value) {
    json_t *json = load(body);
    enum mc_status status = MC_ERR_PROTOCOL;
    if (json_is_object(json_object_get(json, "header"))) {
        status = read_kvs(json, value);
    }
    json_decref(json);
    return status;
}

enum mc_status mc_etcd_read_delete(struct mc_str body) {
    json_t *json = load(body);
    enum mc_status status = MC_ERR_PROTOCOL;
    int64_t deleted;
    if (json_is_object(json_object_get(json, "header")) && number_of(json, "deleted", &deleted)) {
        status = deleted > 0 ? MC_OK : MC_ERR_NOT_FOUND;
    }
    json_decref(json);
    return status;
}

enum mc_status mc_etcd_read_transaction(struct mc_str body, struct mc_buf *held) {
    json_t *json = load(body);
    const json_t *succeeded = json_object_get(json, "succeeded");
    const json_t *responses = json_object_get(json, "responses");
    const json_t *range = json_object_get(json_array_get(responses, 0), "response_range");
    enum mc_status status = MC_ERR_PROTOCOL;
    if (json_is_true(succeeded)) {
        status = MC_OK;
    } else if ((succeeded == NULL || json_is_false(succeeded)) && json_is_object(range)) {
        status = read_kvs(range, held);
        status = status == MC_OK ? MC_ERR_EXISTS : status;
    }
    json_decref(json);
    return status;
}

enum mc_status mc_etcd_read_grant(struct mc_str body, int64_t *lease) {
    json_t *json = load(body);
    int64_t id = 0;
    bool good = number_of(json, "ID", &id) && id > 0;
    json_decref(json);
    if (!good) {
        return MC_ERR_PROTOCOL;
    }
    *lease = id;
    return MC_OK;
}

enum mc_status mc_etcd_read_keepalive(struct mc_str body) {
    json_t *json = load(body);
    const json_t *result = json_object_get(json, "result");
    enum mc_status status = MC_ERR_PROTOCOL;
    int64_t id, ttl;
    if (json_is_object(result) && number_of(result, "ID", &id) && number_of(result, "TTL", &ttl) &&
        id > 0) {
        status = ttl > 0 ? MC_OK : MC_ERR_NOT_FOUND;
    }
    json_decref(json);
    return status;
}

enum mc_status mc_etcd_read_token(struct mc_str body, char *token, size_t size) {
    json_t *json = load(body);
    const json_t *found = json_object_get(json, "token");
    size_t len = json_string_length(found);
    bool good = len > 0 && len < size;
    for (size_t i = 0; good && i < len; i++) {
        char c = json_string_value(found)[i];
        good = c > ' ' && c < 0x7f;
    }
    if (good) {
        memcpy(token, json_string_value(found), len + 1);
    }
    json_decref(json);
    return good ? MC_OK : MC_ERR_PROTOCOL;
}

void mc_etcd_read_error(struct mc_str body, int *code, char *message, size_t size) {
    json_t *json = load(body);
    const json_t *error = json_object_get(json, "error"); /* of a stream: an object */
    const json_t *holder = json_is_object(error) ? error : json;
    const json_t *text = json_object_get(holder, "message");
    int64_t number = 0;
    if (!number_of(holder, "code", &number) || number < 0 || number > 100) {
        number = 0;
    }
    if (number == 0 && (!number_of(holder, "grpc_code", &number) || number < 0 || number > 100)) {
        number = 0;
    }
    *code = (int)number;
    if (json_is_string(text)) {
        snprintf(message, size, "%s", json_string_value(text));
    } else {
        snprintf(message, size, "%.*s", (int)mc_min_u64(body.len, size - 1),
                 body.ptr != NULL ? body.ptr : "");
    }
    for (char *c = message; *c != '\0'; c++) {
        *c = (unsigned char)*c < ' ' || *c == '"' || *c == 0x7f ? ' ' : *c;
    }
    json_decref(json);
}
