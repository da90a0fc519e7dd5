/*
 * The configuration file: one flat mapping from option names to plain values, as YAML or JSON.
 *
 * YAML is read event by event instead of as a document, because events carry line numbers and a
 * flat mapping needs no tree. A key that is no option, comes twice or has a list or mapping for a
 * value is an error: a misspelt key that is passed over in silence is a setting that somebody
 * believes in.
 */
#include "base/options_private.h"

#include <jansson.h>
#include <stdio.h>
#include <strings.h>
#include <yaml.h>

#define FILE_MAX_BYTES (1u << 20)

struct file_run {
    struct options_run *run;
    const char *path;
    bool *seen; /* by option index */
};

/* `line` is 0 when it is not known. */
static void place(const struct file_run *file, size_t line, const char *key, char *out,
                  size_t size) {
    if (line > 0) {
        snprintf(out, size, "%s:%zu: %s", file->path, line, key);
    } else {
        snprintf(out, size, "%s: %s", file->path, key);
    }
}

static enum mc_status assign_key(struct file_run *file, const char *key, const char *value,
                                 size_t line) {
    const struct mc_option_set *set = file->run->set;
    char where[512];
    place(file, line, key, where, sizeof(where));
    int index = mc_option_find(set, mc_str_from(key));
    if (index < 0) {
        struct mc_buf hint = {0};
        mc_option_suggest(set, mc_str_from(key), "", &hint);
        enum mc_status status =
            mc_option_error(file->run, "%s: unknown option%s", where, hint.data);
        mc_buf_free(&hint);
        return status;
    }
    if (index == mc_option_find(set, mc_str_from(set->config_option))) {
        return mc_option_error(file->run, "%s: a file cannot name another file", where);
    }
    if (file->seen[index]) {
        return mc_option_error(file->run, "%s: given twice", where);
    }
    file->seen[index] = true;
    return mc_option_assign(file->run, index, value, where);
}

/* ---- JSON ---- */

static bool json_as_text(const json_t *value, struct mc_buf *out) {
    mc_buf_clear(out);
    if (json_is_string(value)) {
        mc_buf_puts(out, json_string_value(value));
    } else if (json_is_integer(value)) {
        mc_buf_printf(out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        mc_buf_printf(out, "%.17g", json_real_value(value));
    } else if (json_is_boolean(value)) {
        mc_buf_puts(out, json_is_true(value) ? "true" : "false");
    } else {
        return false;
    }
    mc_buf_cstr(out);
    return true;
}

static enum mc_status assign_json(struct file_run *file, json_t *root) {
    struct mc_buf text = {0};
    enum mc_status status = MC_OK;
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (!json_as_text(value, &text)) {
            status = mc_option_error(file->run, "%s: %s: must be a plain value", file->path, key);
        } else {
            status = assign_key(file, key, text.data, 0);
        }
        if (status != MC_OK) {
            break;
        }
    }
    mc_buf_free(&text);
    return status;
}

static enum mc_status read_json(struct file_run *file, const struct mc_buf *content) {
    json_error_t error;
    json_t *root = json_loadb(content->data, content->len, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return mc_option_error(file->run, "%s:%d: not valid JSON: %s", file->path, error.line,
                               error.text);
    }
    enum mc_status status =
        json_is_object(root)
            ? assign_json(file, root)
            : mc_option_error(file->run, "%s: must be an object of options", file->path);
    json_decref(root);
    return status;
}

/* ---- YAML ---- */

/* Where in the flat document the reader is. */
struct yaml_state {
    bool in_mapping;
    char *key; /* read, its value is next */
    bool done;
};

static enum mc_status yaml_scalar(struct file_run *file, struct yaml_state *state,
                                  const yaml_event_t *event, size_t line) {
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length) {
        return mc_option_error(file->run, "%s:%zu: holds a NUL byte", file->path, line);
    }
    if (!state->in_mapping) { /* an empty file is one empty scalar */
        return text[0] == '\0'
                   ? MC_OK
                   : mc_option_error(file->run, "%s:%zu: must be \"option: value\" lines",
                                     file->path, line);
    }
    if (state->key == NULL) {
        state->key = mc_strdup(text);
        return MC_OK;
    }
    enum mc_status status = assign_key(file, state->key, text, line);
    free(state->key);
    state->key = NULL;
    return status;
}

static enum mc_status yaml_event(struct file_run *file, struct yaml_state *state,
                                 const yaml_event_t *event) {
    size_t line = event->start_mark.line + 1;
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return yaml_scalar(file, state, event, line);
    case YAML_MAPPING_START_EVENT:
        if (!state->in_mapping) {
            state->in_mapping = true;
            return MC_OK;
        }
        break;
    case YAML_MAPPING_END_EVENT:
        state->in_mapping = false;
        return MC_OK;
    case YAML_SEQUENCE_START_EVENT:
    case YAML_ALIAS_EVENT:
        break;
    case YAML_STREAM_END_EVENT:
        state->done = true;
        return MC_OK;
    default:
        return MC_OK;
    }
    return mc_option_error(file->run, "%s:%zu: %s%smust be a plain value", file->path, line,
                           state->key != NULL ? state->key : "", state->key != NULL ? ": " : "");
}

static enum mc_status read_yaml(struct file_run *file, const struct mc_buf *content) {
    yaml_parser_t parser;
    struct yaml_state state = {0};
    enum mc_status status = MC_OK;
    MC_ASSERT(yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)content->data, content->len);
    while (status == MC_OK && !state.done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = mc_option_error(file->run, "%s:%zu: not valid YAML: %s", file->path,
                                     parser.problem_mark.line + 1,
                                     parser.problem != NULL ? parser.problem : "unknown problem");
            break;
        }
        status = yaml_event(file, &state, &event);
        yaml_event_delete(&event);
    }
    free(state.key);
    yaml_parser_delete(&parser);
    return status;
}

/* ---- the file ---- */

static enum mc_status load(struct file_run *file, struct mc_buf *content) {
    struct mc_buf why = {0};
    enum mc_status status = mc_text_file_read(file->path, FILE_MAX_BYTES, content, &why);
    if (status != MC_OK) {
        status = mc_option_error(file->run, "%s: %s", file->path, why.data);
    }
    mc_buf_free(&why);
    return status;
}

static bool is_json(const char *path, const struct mc_buf *content) {
    const char *dot = strrchr(path, '.');
    if (dot != NULL && strcasecmp(dot, ".json") == 0) {
        return true;
    }
    if (dot != NULL && (strcasecmp(dot, ".yaml") == 0 || strcasecmp(dot, ".yml") == 0)) {
        return false;
    }
    for (size_t i = 0; i < content->len; i++) {
        if (strchr(" \t\r\n", content->data[i]) == NULL) {
            return content->data[i] == '{';
        }
    }
    return false;
}

enum mc_status mc_options_read_file(struct options_run *run, const char *path) {
    struct file_run file = {run, path, mc_zalloc(run->set->count + 1)};
    struct mc_buf content = {0};
    enum mc_status status = load(&file, &content);
    if (status == MC_OK) {
        status = is_json(path, &content) ? read_json(&file, &content) : read_yaml(&file, &content);
    }
    mc_buf_free(&content);
    free(file.seen);
    return status;
}
