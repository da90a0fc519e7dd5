/*
 * Segment descriptor JSON, by jansson.
 *
 * The decoder reads member by member through small typed getters that fail on a wrong type or
 * range, so that no field of a peer's text is trusted further than its getter. Unknown members are
 * skipped: both upstream's newer ones and ours in an upstream peer's eyes.
 */
#include "wire/segment_desc.h"

#include <jansson.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#include "base/log.h"
#include "wire/segment_desc_fabric.h"
#include "wire/segment_desc_rdma.h"

void mc_segment_desc_timestamp(char out[40]) {
    struct timeval now;
    struct tm local;
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &local);
    size_t len = strftime(out, 40, "%Y-%m-%d %H:%M:%S", &local);
    snprintf(out + len, 40 - len, ".%06ld", (long)now.tv_usec);
}

/* ---- encoding ---- */

static json_t *encode_buffers(const struct mc_segment_desc *desc) {
    json_t *buffers = json_array();
    for (size_t i = 0; i < desc->buffer_count; i++) {
        const struct mc_segment_desc_buffer *b = &desc->buffers[i];
        json_array_append_new(buffers,
                              json_pack("{s:s, s:I, s:I}", "name", b->location, "addr",
                                        (json_int_t)b->addr, "length", (json_int_t)b->length));
    }
    return buffers;
}

/* Buffers we have more to say about: [addr, slot, mappable]. */
static json_t *encode_shm(const struct mc_segment_desc *desc) {
    json_t *list = json_array();
    for (size_t i = 0; i < desc->buffer_count; i++) {
        const struct mc_segment_desc_buffer *b = &desc->buffers[i];
        if (b->shm_slot >= 0) {
            json_array_append_new(list, json_pack("[I, i, b]", (json_int_t)b->addr,
                                                  (int)b->shm_slot, (int)b->shm_mappable));
        }
    }
    return list;
}

/* Addresses of buffers that the processor cannot touch. */
static json_t *encode_devices(const struct mc_segment_desc *desc) {
    json_t *list = json_array();
    for (size_t i = 0; i < desc->buffer_count; i++) {
        if (desc->buffers[i].on_device) {
            json_array_append_new(list, json_integer((json_int_t)desc->buffers[i].addr));
        }
    }
    return list;
}

static json_t *encode_ours(const struct mc_segment_desc *desc) {
    char hi[24], lo[24];
    snprintf(hi, sizeof(hi), "%016llx", (unsigned long long)desc->engine_id.hi);
    snprintf(lo, sizeof(lo), "%016llx", (unsigned long long)desc->engine_id.lo);
    json_t *ours =
        json_pack("{s:[s, s], s:s, s:i, s:s, s:o}", "engine_id", hi, lo, "boot_id", desc->boot_id,
                  "pid", (int)desc->pid, "shm_socket", desc->shm_socket, "shm", encode_shm(desc));
    json_t *devices = encode_devices(desc);
    if (json_array_size(devices) > 0) { /* else absent, as it was before there was staging */
        json_object_set(ours, "device_memory", devices);
    }
    json_decref(devices);
    if (desc->tls) {
        json_object_set_new(ours, "tls", json_true());
    }
    return ours;
}

void *mc_segment_desc_json(const struct mc_segment_desc *desc) {
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:i, s:s, s:o, s:o}", "name", desc->name, "protocol",
                  desc->protocol, "tcp_data_port", (int)desc->tcp_data_port, "tcp_proto_version",
                  (int)desc->tcp_proto, "timestamp", desc->timestamp, "buffers",
                  encode_buffers(desc), "mooncake_c", encode_ours(desc));
    /* json_pack fails on text that is not UTF-8; names are checked where they enter the engine. */
    MC_ASSERT(root != NULL);
    return root;
}

bool mc_segment_desc_print_as(void *json, const char *protocol, struct mc_buf *out) {
    json_t *own = json_incref(json_object_get(json, "protocol"));
    bool other = strcmp(json_string_value(own), protocol) != 0;
    if (other) {
        json_object_set_new(json, "protocol", json_string(protocol));
        char *text = json_dumps(json, JSON_COMPACT);
        MC_ASSERT(text != NULL);
        mc_buf_puts(out, text);
        free(text);
        json_object_set(json, "protocol", own);
    }
    json_decref(own);
    return other;
}

bool mc_segment_desc_wants_tcp(struct mc_str json) {
    json_t *root = json_loadb(json.ptr ? json.ptr : "", json.len, 0, NULL);
    const char *protocol = json_string_value(json_object_get(root, "protocol"));
    bool wants = protocol != NULL && strcmp(protocol, "tcp") == 0 &&
                 json_object_get(root, "mooncake_c") == NULL;
    json_decref(root);
    return wants;
}

void mc_segment_desc_finish(void *json, struct mc_buf *out) {
    char *text = json_dumps(json, JSON_COMPACT);
    MC_ASSERT(text != NULL);
    mc_buf_puts(out, text);
    free(text);
    json_decref(json);
}

/* ---- decoding ---- */

static enum mc_status bad(const char *what) {
    mc_debug("segment descriptor rejected reason=\"%s\"", what);
    return MC_ERR_PROTOCOL;
}

/* Copies a string member; it must fit and hold no NUL. */
static bool get_text(const json_t *object, const char *key, char *out, size_t size) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) {
        return false;
    }
    size_t len = json_string_length(value);
    const char *text = json_string_value(value);
    if (len >= size || memchr(text, 0, len) != NULL) {
        return false;
    }
    memcpy(out, text, len + 1);
    return true;
}

static bool get_number(const json_t *object, const char *key, uint64_t max, uint64_t *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > max) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int by_addr(const void *a, const void *b) {
    uint64_t x = ((const struct mc_segment_desc_buffer *)a)->addr;
    uint64_t y = ((const struct mc_segment_desc_buffer *)b)->addr;
    return (x > y) - (x < y);
}

static enum mc_status decode_buffer(const json_t *item, struct mc_segment_desc_buffer *b) {
    b->shm_slot = -1;
    b->shm_mappable = false;
    b->on_device = false;
    if (!get_text(item, "name", b->location, sizeof(b->location)) || b->location[0] == '\0') {
        return bad("buffer without a name");
    }
    if (!get_number(item, "addr", INT64_MAX, &b->addr) || b->addr == 0 ||
        !get_number(item, "length", INT64_MAX, &b->length) || b->length == 0) {
        return bad("buffer without an address or length");
    }
    if (b->length > UINT64_MAX - b->addr) {
        return bad("buffer wraps");
    }
    return MC_OK;
}

static enum mc_status decode_buffers(const json_t *root, struct mc_segment_desc *desc) {
    const json_t *list = json_object_get(root, "buffers");
    if (list == NULL || json_is_null(list)) { /* upstream writes null for none */
        return MC_OK;
    }
    if (!json_is_array(list) || json_array_size(list) > MC_SEGMENT_BUFFERS_MAX) {
        return bad("buffers is not a list of an acceptable length");
    }
    size_t count = json_array_size(list);
    desc->buffers = mc_zalloc((count + 1) * sizeof(*desc->buffers));
    for (size_t i = 0; i < count; i++) {
        MC_TRY(decode_buffer(json_array_get(list, i), &desc->buffers[i]));
    }
    desc->buffer_count = count;
    qsort(desc->buffers, count, sizeof(*desc->buffers), by_addr);
    return MC_OK;
}

static bool parse_hex64(const json_t *value, uint64_t *out) {
    const char *text = json_string_value(value);
    if (text == NULL || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return false;
    }
    *out = strtoull(text, NULL, 16);
    return true;
}

static struct mc_segment_desc_buffer *find_buffer(struct mc_segment_desc *desc, uint64_t addr) {
    struct mc_segment_desc_buffer key = {.addr = addr};
    return desc->buffer_count == 0
               ? NULL
               : bsearch(&key, desc->buffers, desc->buffer_count, sizeof(key), by_addr);
}

static enum mc_status decode_shm(const json_t *ours, struct mc_segment_desc *desc) {
    const json_t *list = json_object_get(ours, "shm");
    if (!json_is_array(list) || json_array_size(list) > MC_SEGMENT_BUFFERS_MAX) {
        return bad("mooncake_c.shm is not a list of an acceptable length");
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        json_t *addr = json_array_get(item, 0), *slot = json_array_get(item, 1);
        json_t *mappable = json_array_get(item, 2);
        if (!json_is_integer(addr) || !json_is_integer(slot) || !json_is_boolean(mappable) ||
            json_integer_value(slot) < 0 || json_integer_value(slot) > INT32_MAX) {
            return bad("malformed entry of mooncake_c.shm");
        }
        struct mc_segment_desc_buffer *found =
            find_buffer(desc, (uint64_t)json_integer_value(addr));
        if (found != NULL) {
            found->shm_slot = (int32_t)json_integer_value(slot);
            found->shm_mappable = json_boolean_value(mappable);
        }
    }
    return MC_OK;
}

static enum mc_status decode_devices(const json_t *ours, struct mc_segment_desc *desc) {
    const json_t *list = json_object_get(ours, "device_memory");
    if (list == NULL) {
        return MC_OK;
    }
    if (!json_is_array(list) || json_array_size(list) > MC_SEGMENT_BUFFERS_MAX) {
        return bad("mooncake_c.device_memory is not a list of an acceptable length");
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *addr = json_array_get(list, i);
        if (!json_is_integer(addr)) {
            return bad("malformed entry of mooncake_c.device_memory");
        }
        struct mc_segment_desc_buffer *found =
            find_buffer(desc, (uint64_t)json_integer_value(addr));
        if (found != NULL) {
            found->on_device = true;
        }
    }
    return MC_OK;
}

/* Upstream's engines name it only by the location. */
static void guess_devices(struct mc_segment_desc *desc) {
    for (size_t i = 0; i < desc->buffer_count; i++) {
        desc->buffers[i].on_device = strncmp(desc->buffers[i].location, "cuda:", 5) == 0;
    }
}

static enum mc_status decode_ours(const json_t *root, struct mc_segment_desc *desc) {
    const json_t *ours = json_object_get(root, "mooncake_c");
    if (ours == NULL) {
        guess_devices(desc);
        return MC_OK;
    }
    uint64_t pid;
    const json_t *id = json_object_get(ours, "engine_id");
    if (!json_is_array(id) || json_array_size(id) != 2 ||
        !parse_hex64(json_array_get(id, 0), &desc->engine_id.hi) ||
        !parse_hex64(json_array_get(id, 1), &desc->engine_id.lo)) {
        return bad("malformed mooncake_c.engine_id");
    }
    if (!get_text(ours, "boot_id", desc->boot_id, sizeof(desc->boot_id)) ||
        !get_text(ours, "shm_socket", desc->shm_socket, sizeof(desc->shm_socket)) ||
        !get_number(ours, "pid", INT32_MAX, &pid)) {
        return bad("malformed mooncake_c");
    }
    desc->pid = (int32_t)pid;
    desc->tls = json_is_true(json_object_get(ours, "tls"));
    const char *why = NULL;
    desc->fabric = mc_fabric_desc_decode(ours, &why);
    if (why != NULL) {
        return bad(why);
    }
    MC_TRY(decode_devices(ours, desc));
    return decode_shm(ours, desc);
}

/* ---- RDMA: wire/segment_desc_rdma.c ---- */

static enum mc_status decode_rdma(const json_t *root, struct mc_segment_desc *desc) {
    const char *why = NULL;
    desc->rdma = mc_rdma_desc_decode(root, &why);
    if (why != NULL) {
        return bad(why);
    }
    if (desc->rdma != NULL) {
        mc_rdma_desc_join(root, desc);
    }
    return MC_OK;
}

static enum mc_status decode_protocol(const json_t *root, struct mc_segment_desc *desc) {
    const json_t *protocol = json_object_get(root, "protocol");
    if (json_is_array(protocol)) { /* multi-protocol builds */
        protocol = json_array_get(protocol, 0);
    }
    const char *text = json_string_value(protocol);
    if (text == NULL || text[0] == '\0' || strlen(text) >= sizeof(desc->protocol)) {
        return bad("no protocol");
    }
    memcpy(desc->protocol, text, strlen(text) + 1);
    return MC_OK;
}

static enum mc_status decode_root(const json_t *root, struct mc_segment_desc *desc) {
    uint64_t number;
    if (!json_is_object(root)) {
        return bad("not an object");
    }
    if (!get_text(root, "name", desc->name, sizeof(desc->name)) || desc->name[0] == '\0') {
        return bad("no name");
    }
    MC_TRY(decode_protocol(root, desc));
    if (json_object_get(root, "tcp_data_port") != NULL) {
        if (!get_number(root, "tcp_data_port", UINT16_MAX, &number)) {
            return bad("tcp_data_port is not a port");
        }
        desc->tcp_data_port = (uint16_t)number;
    }
    if (json_object_get(root, "tcp_data_host") != NULL &&
        !get_text(root, "tcp_data_host", desc->tcp_data_host, sizeof(desc->tcp_data_host))) {
        return bad("tcp_data_host is not a host");
    }
    desc->tcp_proto = 1;
    if (json_object_get(root, "tcp_proto_version") != NULL) {
        if (!get_number(root, "tcp_proto_version", UINT16_MAX, &number)) {
            return bad("tcp_proto_version is not a version");
        }
        desc->tcp_proto = number == 0 ? 1 : (unsigned)number;
    }
    if (json_object_get(root, "timestamp") != NULL &&
        !get_text(root, "timestamp", desc->timestamp, sizeof(desc->timestamp))) {
        return bad("timestamp is not a text");
    }
    MC_TRY(decode_buffers(root, desc));
    MC_TRY(decode_ours(root, desc));
    return decode_rdma(root, desc);
}

enum mc_status mc_segment_desc_decode(struct mc_str json, struct mc_segment_desc *out) {
    struct mc_segment_desc desc = {0};
    json_error_t error;
    json_t *root = json_loadb(json.ptr ? json.ptr : "", json.len, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return bad(error.text);
    }
    enum mc_status status = decode_root(root, &desc);
    json_decref(root);
    if (status != MC_OK) {
        mc_segment_desc_free(&desc);
        return status;
    }
    *out = desc;
    return MC_OK;
}

void mc_segment_desc_free(struct mc_segment_desc *desc) {
    free(desc->buffers);
    desc->buffers = NULL;
    desc->buffer_count = 0;
    mc_rdma_desc_free(desc->rdma);
    desc->rdma = NULL;
    mc_fabric_desc_free(desc->fabric);
    desc->fabric = NULL;
}
