/* The descriptor of a file segment. See wire/file_segment.h. */
#include "wire/file_segment.h"

#include <jansson.h>

#include "base/log.h"

static enum mc_status bad(const char *what) {
    mc_debug("file segment rejected reason=\"%s\"", what);
    return MC_ERR_PROTOCOL;
}

/* The value when it can be a path, else NULL. */
static const char *path_of(const json_t *value) {
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    bool good = text != NULL && text[0] == '/' && len < MC_FILE_PATH_MAX && strlen(text) == len;
    return good ? text : NULL;
}

static enum mc_status decode_part(const json_t *item, const char *server,
                                  struct mc_file_part *part) {
    const json_t *length = json_object_get(item, "length");
    const json_t *local = json_object_get(json_object_get(item, "local_path_map"), server);
    const char *path = path_of(local != NULL ? local : json_object_get(item, "file_path"));
    if (path == NULL) {
        return bad("a file has no absolute path");
    }
    if (!json_is_integer(length) || json_integer_value(length) <= 0) {
        return bad("a file has no length");
    }
    part->path = mc_strdup(path);
    part->length = (uint64_t)json_integer_value(length);
    return MC_OK;
}

static enum mc_status decode(const json_t *root, const char *server, struct mc_file_parts *parts) {
    const char *protocol = json_string_value(json_object_get(root, "protocol"));
    const json_t *list = json_object_get(root, "buffers");
    uint64_t total = 0;
    if (protocol == NULL || strcmp(protocol, "nvmeof") != 0) {
        return bad("the protocol is not nvmeof");
    }
    if (!json_is_array(list) || json_array_size(list) == 0 ||
        json_array_size(list) > MC_FILE_PARTS_MAX) {
        return bad("buffers is not a list of an acceptable length");
    }
    parts->list = mc_zalloc(json_array_size(list) * sizeof(*parts->list));
    for (; parts->count < json_array_size(list); parts->count++) {
        struct mc_file_part *part = &parts->list[parts->count];
        MC_TRY(decode_part(json_array_get(list, parts->count), server, part));
        if (part->length > INT64_MAX - total) {
            parts->count++;
            return bad("the lengths do not add up");
        }
        total += part->length;
    }
    return MC_OK;
}

enum mc_status mc_file_segment_decode(struct mc_str json, const char *server,
                                      struct mc_file_parts *out) {
    struct mc_file_parts parts = {0};
    json_error_t error;
    json_t *root = json_loadb(json.ptr ? json.ptr : "", json.len, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return bad(error.text);
    }
    enum mc_status status = decode(root, server, &parts);
    json_decref(root);
    if (status != MC_OK) {
        mc_file_parts_free(&parts);
        return status;
    }
    *out = parts;
    return MC_OK;
}

void mc_file_segment_encode(const char *name, const char *server, const struct mc_file_parts *parts,
                            struct mc_buf *out) {
    json_t *list = json_array();
    for (size_t i = 0; i < parts->count; i++) {
        const struct mc_file_part *part = &parts->list[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:{s:s}}", "file_path", part->path,
                                              "length", (json_int_t)part->length, "local_path_map",
                                              server, part->path));
    }
    json_t *root =
        json_pack("{s:s, s:s, s:o}", "name", name, "protocol", "nvmeof", "buffers", list);
    MC_ASSERT(root != NULL); /* names and paths are checked where they enter the engine */
    char *text = json_dumps(root, JSON_COMPACT);
    MC_ASSERT(text != NULL);
    mc_buf_puts(out, text);
    free(text);
    json_decref(root);
}

void mc_file_parts_free(struct mc_file_parts *parts) {
    for (size_t i = 0; i < parts->count; i++) {
        free(parts->list[i].path);
    }
    free(parts->list);
    *parts = (struct mc_file_parts){0};
}
