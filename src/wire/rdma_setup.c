/*
 * Connection handshake JSON, by jansson. Every member goes through a getter that checks its type
 * and size; members that upstream may leave out keep their defaults, unknown ones are skipped.
 */
#include "wire/rdma_setup.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>

#include "base/log.h"

/* ---- addresses ---- */

void mc_rdma_gid_format(const uint8_t gid[16], char out[MC_RDMA_GID_TEXT]) {
    for (int i = 0; i < 16; i++) {
        snprintf(out + 3 * i, 4, i < 15 ? "%02x:" : "%02x", gid[i]);
    }
}

enum mc_status mc_rdma_gid_parse(const char *text, uint8_t gid[16]) {
    uint8_t bytes[16];
    for (int i = 0; i < 16; i++) {
        unsigned value = 0, digits = 0;
        for (; isxdigit((unsigned char)*text) && digits < 2; text++, digits++) {
            unsigned c = (unsigned char)*text;
            value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20u) - 'a' + 10);
        }
        if (digits == 0 || *text != (i < 15 ? ':' : '\0')) {
            return MC_ERR_PROTOCOL;
        }
        text++;
        bytes[i] = (uint8_t)value;
    }
    memcpy(gid, bytes, 16);
    return MC_OK;
}

enum mc_status mc_rdma_path_split(const char *path, char *server, char nic[MC_RDMA_NIC_MAX]) {
    const char *at = strrchr(path, '@');
    size_t server_len = at == NULL ? 0 : (size_t)(at - path);
    if (server_len == 0 || server_len >= MC_RDMA_PATH_MAX || at[1] == '\0' ||
        strlen(at + 1) >= MC_RDMA_NIC_MAX) {
        return MC_ERR_PROTOCOL;
    }
    memcpy(server, path, server_len);
    server[server_len] = '\0';
    memcpy(nic, at + 1, strlen(at + 1) + 1);
    return MC_OK;
}

/* ---- encoding ---- */

static json_t *id_json(struct mc_uuid id) {
    char hi[24], lo[24];
    snprintf(hi, sizeof(hi), "%016llx", (unsigned long long)id.hi);
    snprintf(lo, sizeof(lo), "%016llx", (unsigned long long)id.lo);
    return json_pack("[s, s]", hi, lo);
}

static void put_gid(json_t *root, const uint8_t gid[16]) {
    static const uint8_t none[16];
    char text[MC_RDMA_GID_TEXT] = "";
    if (memcmp(gid, none, 16) != 0) {
        mc_rdma_gid_format(gid, text);
    }
    json_object_set_new(root, "local_gid", json_string(text));
}

void mc_rdma_setup_encode(const struct mc_rdma_setup *s, struct mc_buf *out) {
    json_t *qps = json_array();
    for (uint32_t i = 0; i < s->qp_count; i++) {
        json_array_append_new(qps, json_integer(s->qp_num[i]));
    }
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:s, s:s, s:b, s:o}", "local_nic_path", s->local_path,
                  "peer_nic_path", s->peer_path, "local_lid", (int)s->local_lid, "reply_msg",
                  s->reply_msg, "payload", "", "ready_ack", (int)s->ready_ack, "qp_num", qps);
    MC_ASSERT(root != NULL); /* all texts are ASCII: checked where they entered */
    put_gid(root, s->local_gid);
    if (s->engine_id.hi != 0 || s->engine_id.lo != 0) {
        json_object_set_new(root, "mooncake_c",
                            json_pack("{s:o, s:o, s:I, s:I, s:I, s:b}", "engine_id",
                                      id_json(s->engine_id), "peer_id", id_json(s->peer_id),
                                      "generation", (json_int_t)s->generation, "answers",
                                      (json_int_t)s->answers, "mtu", (json_int_t)s->mtu, "close",
                                      (int)s->close));
    }
    char *text = json_dumps(root, JSON_COMPACT);
    MC_ASSERT(text != NULL);
    mc_buf_puts(out, text);
    free(text);
    json_decref(root);
}

/* ---- decoding ---- */

static enum mc_status bad(const char *what) {
    mc_debug("connection handshake rejected reason=\"%s\"", what);
    return MC_ERR_PROTOCOL;
}

/* Printable ASCII that fits. */
static bool get_text(const json_t *object, const char *key, char *out, size_t size) {
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    size_t len = text == NULL ? size : json_string_length(value);
    if (len >= size) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] < 0x20 || text[i] > 0x7e) {
            return false;
        }
    }
    memcpy(out, text, len + 1);
    return true;
}

static bool get_number(const json_t *value, uint64_t max, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > max) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool get_id(const json_t *object, const char *key, struct mc_uuid *id) {
    uint64_t *parts[2] = {&id->hi, &id->lo};
    const json_t *list = json_object_get(object, key);
    for (size_t i = 0; i < 2; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text == NULL || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
            return false;
        }
        *parts[i] = strtoull(text, NULL, 16);
    }
    return true;
}

static enum mc_status decode_ours(const json_t *root, struct mc_rdma_setup *s) {
    const json_t *ours = json_object_get(root, "mooncake_c");
    uint64_t mtu;
    if (ours == NULL) {
        return MC_OK;
    }
    if (!get_id(ours, "engine_id", &s->engine_id) || !get_id(ours, "peer_id", &s->peer_id) ||
        !get_number(json_object_get(ours, "generation"), INT64_MAX, &s->generation) ||
        !get_number(json_object_get(ours, "answers"), INT64_MAX, &s->answers) ||
        !get_number(json_object_get(ours, "mtu"), 65536, &mtu)) {
        return bad("malformed mooncake_c");
    }
    s->mtu = (uint32_t)mtu;
    s->close = json_is_true(json_object_get(ours, "close"));
    return MC_OK;
}

static enum mc_status decode_qps(const json_t *root, struct mc_rdma_setup *s) {
    const json_t *list = json_object_get(root, "qp_num");
    if (list == NULL || json_is_null(list)) { /* of rejections */
        return MC_OK;
    }
    if (!json_is_array(list) || json_array_size(list) > MC_RDMA_QPS_MAX) {
        return bad("qp_num is not a list of an acceptable length");
    }
    s->qp_count = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < s->qp_count; i++) {
        uint64_t number;
        if (!get_number(json_array_get(list, i), 0xffffff, &number)) {
            return bad("qp_num holds something else than queue pair numbers");
        }
        s->qp_num[i] = (uint32_t)number;
    }
    return MC_OK;
}

/* An over-long reason is cut; one that is no text is given a name. */
static void decode_reply_msg(const json_t *root, struct mc_rdma_setup *s) {
    const json_t *value = json_object_get(root, "reply_msg");
    if (value != NULL && !json_is_null(value)) {
        const char *text = json_string_value(value);
        snprintf(s->reply_msg, sizeof(s->reply_msg), "%s", text != NULL ? text : "not a text");
        for (char *c = s->reply_msg; *c != '\0'; c++) {
            *c = *c < 0x20 || *c > 0x7e ? '?' : *c;
        }
    }
}

static enum mc_status decode_root(const json_t *root, struct mc_rdma_setup *s) {
    char gid[MC_RDMA_GID_TEXT] = "";
    uint64_t lid = 0;
    if (!json_is_object(root)) {
        return bad("not an object");
    }
    if (!get_text(root, "local_nic_path", s->local_path, sizeof(s->local_path)) ||
        !get_text(root, "peer_nic_path", s->peer_path, sizeof(s->peer_path))) {
        return bad("no NIC paths");
    }
    const json_t *value = json_object_get(root, "local_lid");
    if (value != NULL && !get_number(value, UINT16_MAX, &lid)) {
        return bad("local_lid is not a LID");
    }
    s->local_lid = (uint16_t)lid;
    value = json_object_get(root, "local_gid");
    if (value != NULL && (!get_text(root, "local_gid", gid, sizeof(gid)) ||
                          (gid[0] != '\0' && mc_rdma_gid_parse(gid, s->local_gid) != MC_OK))) {
        return bad("local_gid is not a GID");
    }
    s->ready_ack = json_is_true(json_object_get(root, "ready_ack"));
    decode_reply_msg(root, s);
    MC_TRY(decode_qps(root, s));
    return decode_ours(root, s);
}

enum mc_status mc_rdma_setup_decode(struct mc_str json, struct mc_rdma_setup *out) {
    struct mc_rdma_setup setup = {0};
    json_error_t error;
    json_t *root = json_loadb(json.ptr ? json.ptr : "", json.len, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return bad(error.text);
    }
    enum mc_status status = decode_root(root, &setup);
    json_decref(root);
    if (status == MC_OK) {
        *out = setup;
    }
    return status;
}
