/*
 * TENT's configuration. See tent_config.h. Kept as one JSON object under a lock; a key set by
 * tent_set_config stands beside those of the file, the later one counts.
 */
#include "abi/tent_config.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/export.h"
#include "base/log.h"
#include "compat/tent/transfer_engine.h"

#define FILE_MAX (1 << 20)

static pthread_mutex_t config_lock = PTHREAD_MUTEX_INITIALIZER;
static json_t *config;  /* object; NULL = nothing set */
static bool config_bad; /* a file that was named could not be used */

/* A regular file: a pipe would be waited for. */
static json_t *load_file(const char *path, json_error_t *error) {
    struct stat st;
    json_t *json = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        snprintf(error->text, sizeof(error->text), "cannot be opened: %s", strerror(errno));
    } else if (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX) {
        snprintf(error->text, sizeof(error->text), "is no file of at most %d bytes", FILE_MAX);
    } else {
        json = json_loadfd(fd, JSON_REJECT_DUPLICATES, error);
    }
    if (fd >= 0) {
        close(fd);
    }
    return json;
}

/* Puts the members of the JSON text or file over `into`. */
static bool merge(json_t *into, json_t *from, const json_error_t *error, const char *what) {
    if (!json_is_object(from)) {
        mc_error("TENT configuration: not a JSON object source=%s line=%d column=%d reason=\"%s\"",
                 what, error->line, error->column,
                 from == NULL ? error->text : "another kind of value");
        json_decref(from);
        return false;
    }
    int failed = json_object_update(into, from);
    json_decref(from);
    return failed == 0;
}

MC_PUBLIC void tent_load_config_from_file(const char *path) {
    json_error_t error = {.line = -1};
    pthread_mutex_lock(&config_lock);
    config = config == NULL ? json_object() : config;
    config_bad =
        path == NULL || config == NULL || !merge(config, load_file(path, &error), &error, path);
    if (path == NULL) {
        mc_error("tent_load_config_from_file: path is NULL");
    }
    pthread_mutex_unlock(&config_lock);
}

MC_PUBLIC void tent_set_config(const char *key, const char *value) {
    if (key == NULL || value == NULL) {
        mc_error("tent_set_config: key or value is NULL");
        return;
    }
    pthread_mutex_lock(&config_lock);
    config = config == NULL ? json_object() : config;
    if (json_object_set_new(config, key, json_string(value)) != 0) {
        mc_error("tent_set_config: not UTF-8 key=%s", key);
    }
    pthread_mutex_unlock(&config_lock);
}

/* ---- into options ---- */

static bool read_environment(json_t *into) {
    const char *text = getenv("MC_TENT_CONF");
    json_error_t error = {.line = -1};
    if (text == NULL || text[0] == '\0') {
        return true;
    }
    json_t *from =
        text[0] == '{' ? json_loads(text, JSON_REJECT_DUPLICATES, &error) : load_file(text, &error);
    return merge(into, from, &error, "MC_TENT_CONF");
}

static const char *text_of(const json_t *all, const char *key) {
    const char *text = json_string_value(json_object_get(all, key));
    return text != NULL ? text : "";
}

/* A number, also as text; 0 when it is absent. */
static bool read_port(const json_t *all, const char *key, uint16_t *out) {
    const json_t *value = json_object_get(all, key);
    json_int_t number = json_integer_value(value);
    if (json_is_string(value)) {
        char *end = NULL;
        number = strtoll(json_string_value(value), &end, 10);
        number = *end == '\0' ? number : -1;
    }
    if (number < 0 || number > UINT16_MAX) {
        mc_error("TENT configuration: not a port key=%s", key);
        return false;
    }
    *out = (uint16_t)number;
    return true;
}

/* "p2p", or "http", "etcd", "redis" with its servers, as our metadata string; NULL after logging.
 */
static char *metadata_of(const json_t *all) {
    const char *type = text_of(all, "metadata_type");
    const char *servers = text_of(all, "metadata_servers");
    if (type[0] == '\0' || strcmp(type, "p2p") == 0) {
        return strdup("P2PHANDSHAKE");
    }
    if (servers[0] == '\0') {
        mc_error("TENT configuration: metadata_type %s needs metadata_servers", type);
        return NULL;
    }
    char *text = NULL;
    if (strstr(servers, "://") != NULL) {
        return strdup(servers);
    }
    int length = strcmp(type, "http") == 0 ? asprintf(&text, "http://%s/metadata", servers)
                                           : asprintf(&text, "%s://%s", type, servers);
    return length < 0 ? NULL : text;
}

/* What is left for the engine's policy, which knows upstream's keys: all that is not applied here.
 * tent_set_config has only text; what reads as a number, a truth or a list is one. NULL: no memory.
 */
static char *policy_of(const json_t *all) {
    static const char *const applied[] = {"local_segment_name", "metadata_type", "metadata_servers",
                                          "rpc_server_hostname", "rpc_server_port"};
    json_t *left = json_copy((json_t *)(uintptr_t)all), *value;
    const char *key;
    void *next;
    for (size_t i = 0; i < sizeof(applied) / sizeof(applied[0]); i++) {
        (void)json_object_del(left, applied[i]); /* perhaps it is not there */
    }
    json_object_foreach_safe(left, next, key, value) {
        json_t *read = json_is_string(value)
                           ? json_loads(json_string_value(value), JSON_DECODE_ANY, NULL)
                           : NULL;
        if (read != NULL && !json_is_string(read)) {
            (void)json_object_set(left, key, read);
        }
        json_decref(read);
    }
    char *text = json_dumps(left, JSON_COMPACT);
    json_decref(left);
    return text;
}

enum mc_status tent_config_apply(struct mc_engine_options *options,
                                 struct tent_config_texts *texts) {
    json_t *all = json_object();
    pthread_mutex_lock(&config_lock);
    bool good = all != NULL && !config_bad && read_environment(all) &&
                (config == NULL || json_object_update(all, config) == 0);
    pthread_mutex_unlock(&config_lock);
    *texts = (struct tent_config_texts){0};
    if (good && read_port(all, "rpc_server_port", &options->rpc_port)) {
        texts->metadata = metadata_of(all);
        texts->name = strdup(text_of(all, "local_segment_name"));
        texts->host = strdup(text_of(all, "rpc_server_hostname"));
        texts->policy = policy_of(all);
    }
    json_decref(all);
    if (texts->metadata == NULL || texts->name == NULL || texts->host == NULL ||
        texts->policy == NULL) {
        tent_config_free(texts);
        return MC_INVALID_PARAMS;
    }
    options->metadata = texts->metadata;
    options->local_name = texts->name;
    options->host = texts->host;
    options->policy = texts->policy;
    return MC_OK;
}

void tent_config_free(struct tent_config_texts *texts) {
    free(texts->metadata);
    free(texts->name);
    free(texts->host);
    free(texts->policy);
    *texts = (struct tent_config_texts){0};
}
