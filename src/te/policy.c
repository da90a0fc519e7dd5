/*
 * Reading and asking policies. See policy.h.
 *
 * Nested objects and flat keys with slashes mean the same: {"qos": {"weights": ...}} is
 * {"qos/weights": ...}. Each leaf is looked up in one table of keys.
 */
#include "te/policy.h"

#include <jansson.h>
#include <stdio.h>

#include "base/log.h"
#include "mooncake/transfer.h"

#define PATH_LEN 256
#define FILE_MAX (1u << 20)

/* ---- small readers ---- */

static enum mc_status bad(const char *where, const char *wanted) {
    mc_error("policy: %s must be %s", where, wanted);
    return MC_INVALID_PARAMS;
}

static enum mc_status read_word(const json_t *v, const char *where, char *out, size_t size) {
    if (!json_is_string(v) || json_string_length(v) >= size) {
        return bad(where, "a short string");
    }
    snprintf(out, size, "%s", json_string_value(v));
    return MC_OK;
}

static enum mc_status read_bool(const json_t *v, const char *where, bool *out) {
    if (!json_is_boolean(v)) {
        return bad(where, "true or false");
    }
    *out = json_is_true(v);
    return MC_OK;
}

/* Bytes, as a number or as people write them. */
static enum mc_status read_size(const json_t *v, const char *where, uint64_t *out) {
    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        *out = (uint64_t)json_integer_value(v);
        return MC_OK;
    }
    return json_is_string(v) && mc_parse_size(json_string_value(v), out) == MC_OK
               ? MC_OK
               : bad(where, "a size");
}

/* One string or an array of them, each handed to `take`. */
static enum mc_status
read_words(const json_t *v, const char *where,
           enum mc_status (*take)(const char *word, const char *where, void *to), void *to) {
    if (json_is_string(v)) {
        return take(json_string_value(v), where, to);
    }
    size_t i;
    const json_t *each;
    if (!json_is_array(v)) {
        return bad(where, "a string or a list of strings");
    }
    json_array_foreach((json_t *)(uintptr_t)v, i, each) {
        if (!json_is_string(each)) {
            return bad(where, "a list of strings");
        }
        MC_TRY(take(json_string_value(each), where, to));
    }
    return MC_OK;
}

struct names { /* where a list of names goes */
    char *first;
    size_t size;
    unsigned *count;
};

static enum mc_status take_name(const char *word, const char *where, void *to) {
    struct names *n = to;
    if (*n->count == MC_POLICY_NAMES_MAX || strlen(word) >= n->size) {
        return bad(where, "a list of at most 16 short names");
    }
    snprintf(n->first + *n->count * n->size, n->size, "%s", word);
    ++*n->count;
    return MC_OK;
}

struct choice {               /* words that set bits */
    const char *const *words; /* NULL-terminated; the n-th sets bit n */
    unsigned *bits;
};

static enum mc_status take_choice(const char *word, const char *where, void *to) {
    struct choice *c = to;
    for (unsigned i = 0; c->words[i] != NULL; i++) {
        if (strcmp(word, c->words[i]) == 0) {
            *c->bits |= 1u << i;
            return MC_OK;
        }
    }
    mc_error("policy: %s does not know \"%s\"", where, word);
    return MC_INVALID_PARAMS;
}

/* ---- rules ---- */

static const char *const locality_words[] = {"same_process", "same_host", "remote", NULL};
static const char *const priority_words[] = {"high", "medium", "low", NULL};
static const char *const intent_words[] = {"default", "latency", "throughput", "background", NULL};
static const char *const type_words[] = {"memory", "file", NULL};

static enum mc_status read_rule_key(struct mc_policy_rule *r, const char *key, const json_t *v,
                                    unsigned *types) {
    if (strcmp(key, "name") == 0) {
        return read_word(v, "policy/name", r->name, sizeof(r->name));
    }
    if (strcmp(key, "segment_type") == 0) {
        return read_words(v, "policy/segment_type", take_choice,
                          &(struct choice){type_words, types});
    }
    if (strcmp(key, "locality") == 0) {
        return read_words(v, "policy/locality", take_choice,
                          &(struct choice){locality_words, &r->localities});
    }
    if (strcmp(key, "priority") == 0) {
        return read_words(v, "policy/priority", take_choice,
                          &(struct choice){priority_words, &r->priorities});
    }
    if (strcmp(key, "intent") == 0) {
        return read_words(v, "policy/intent", take_choice,
                          &(struct choice){intent_words, &r->intents});
    }
    if (strcmp(key, "local_memory") == 0) {
        return read_word(v, "policy/local_memory", r->local_memory, sizeof(r->local_memory));
    }
    if (strcmp(key, "remote_memory") == 0) {
        return read_word(v, "policy/remote_memory", r->remote_memory, sizeof(r->remote_memory));
    }
    if (strcmp(key, "min_size") == 0) {
        return read_size(v, "policy/min_size", &r->size_min);
    }
    if (strcmp(key, "max_size") == 0) {
        return read_size(v, "policy/max_size", &r->size_max);
    }
    if (strcmp(key, "transports") == 0) {
        return read_words(
            v, "policy/transports", take_name,
            &(struct names){r->transports[0], sizeof(r->transports[0]), &r->transport_count});
    }
    if (strcmp(key, "devices") == 0) {
        return read_words(v, "policy/devices", take_name,
                          &(struct names){r->devices[0], sizeof(r->devices[0]), &r->device_count});
    }
    mc_warn("policy: unknown key policy/%s in rule %s", key, r->name);
    return MC_OK;
}

static enum mc_status read_rules(struct mc_policy *p, const json_t *list) {
    size_t i;
    json_t *each, *v;
    const char *key;
    if (!json_is_array(list) || json_array_size(list) > MC_POLICY_RULES_MAX) {
        return bad("policy", "a list of at most 64 rules");
    }
    json_array_foreach((json_t *)(uintptr_t)list, i, each) {
        struct mc_policy_rule *r = &p->rules[p->rule_count];
        unsigned types = 0;
        *r = (struct mc_policy_rule){.size_max = UINT64_MAX};
        snprintf(r->name, sizeof(r->name), "#%zu", i + 1);
        if (!json_is_object(each)) {
            return bad("policy", "a list of objects");
        }
        json_object_foreach(each, key, v) {
            MC_TRY(read_rule_key(r, key, v, &types));
        }
        if (r->size_min > r->size_max) {
            return bad("policy/min_size", "at most max_size; the rule would never hold");
        }
        r->memory_segments = types == 0 || (types & 1) != 0;
        r->file_segments = types == 0 || (types & 2) != 0;
        r->localities = r->localities == 0 ? ~0u : r->localities;
        r->priorities = r->priorities == 0 ? ~0u : r->priorities;
        r->intents = r->intents == 0 ? ~0u : r->intents;
        p->rule_count++;
    }
    return MC_OK;
}

/* ---- keys ---- */

static enum mc_status read_weights(struct mc_policy *p, const json_t *v) {
    for (size_t i = 0; i < MC_PRIORITIES; i++) {
        const json_t *each = json_array_get(v, i);
        if (json_array_size(v) != MC_PRIORITIES || !json_is_integer(each) ||
            json_integer_value(each) < 1 || json_integer_value(each) > 1000000) {
            return bad("qos/weights", "three numbers from 1 to 1000000");
        }
        p->weights[i] = (uint32_t)json_integer_value(each);
    }
    return MC_OK;
}

/* Upstream's keys that mean something here elsewhere, or nothing at all; a trailing slash: all
 * below it. */
static const char *const without_effect[] = {
    "local_segment_name",
    "metadata_type",
    "metadata_servers",
    "rpc_server_hostname",
    "rpc_server_port",
    "rpc_server_threads",
    "topology/",
    "log_level",
    "verbose",
    "enable_auto_failover_on_poll",
    "enable_progress_worker",
    "enable_runtime_queue",
    "runtime_queue/",
    "merge_requests",
    "metrics/",
    "transports/",
};

static bool is_without_effect(const char *path) {
    for (size_t i = 0; i < MC_ARRAY_LEN(without_effect); i++) {
        size_t len = strlen(without_effect[i]);
        bool prefix = without_effect[i][len - 1] == '/';
        if (prefix ? strncmp(path, without_effect[i], len) == 0
                   : strcmp(path, without_effect[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* transports/NAME/enable. */
static enum mc_status read_enable(struct mc_policy *p, const char *path, const json_t *v) {
    char name[32];
    bool enabled = true;
    size_t len = strlen(path) - strlen("transports/") - strlen("/enable");
    MC_TRY(read_bool(v, path, &enabled));
    if (len >= sizeof(name) || enabled) {
        return MC_OK;
    }
    memcpy(name, path + strlen("transports/"), len);
    name[len] = '\0';
    return take_name(name, path,
                     &(struct names){p->disabled[0], sizeof(p->disabled[0]), &p->disabled_count});
}

static bool is_enable(const char *path) {
    const char *end = strrchr(path, '/');
    return strncmp(path, "transports/", 11) == 0 && end > path + 11 &&
           strcmp(end, "/enable") == 0 && strchr(path + 11, '/') == end;
}

static enum mc_status read_leaf(struct mc_policy *p, const char *path, const json_t *v) {
    if (strcmp(path, "policy") == 0) {
        return read_rules(p, v);
    }
    if (strcmp(path, "use_legacy_transport_selection") == 0) {
        return read_bool(v, path, &p->fixed_order);
    }
    if (strcmp(path, "max_failover_attempts") == 0) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1000000) {
            return bad(path, "a number from 0 to 1000000");
        }
        p->max_failovers = (unsigned)json_integer_value(v);
        return MC_OK;
    }
    if (strcmp(path, "attempt_timeout_ms") == 0) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 3600000) {
            return bad(path, "a number from 0 to 3600000");
        }
        p->attempt_ns = (uint64_t)json_integer_value(v) * MC_MS;
        return MC_OK;
    }
    if (strcmp(path, "qos/weights") == 0) {
        return read_weights(p, v);
    }
    if (strcmp(path, "qos/shared_page") == 0 ||
        strcmp(path, "transports/rdma/shared_quota_shm_path") == 0) {
        return read_word(v, path, p->qos_page, sizeof(p->qos_page));
    }
    if (is_enable(path)) {
        return read_enable(p, path, v);
    }
    if (is_without_effect(path)) {
        mc_info("policy: the key has no effect here key=%s", path);
    } else {
        mc_warn("policy: unknown key key=%s", path);
    }
    return MC_OK;
}

static enum mc_status read_object(struct mc_policy *p, const char *prefix, json_t *object) {
    const char *key;
    json_t *v;
    json_object_foreach(object, key, v) {
        char path[PATH_LEN];
        if (snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] != '\0' ? "/" : "", key) >=
            (int)sizeof(path)) {
            return bad(prefix, "of keys of reasonable length");
        }
        bool nested = json_is_object(v) && strcmp(path, "policy") != 0; /* that is a list */
        MC_TRY(nested ? read_object(p, path, v) : read_leaf(p, path, v));
    }
    return MC_OK;
}

/* The JSON of a file; NULL after saying why not in `error`. */
static json_t *load_file(const char *path, json_error_t *error) {
    struct mc_buf text = {0}, why = {0};
    json_t *root = NULL;
    if (mc_text_file_read(path, FILE_MAX, &text, &why) == MC_OK) {
        root = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, error);
    } else {
        *error = (json_error_t){0};
        snprintf(error->text, sizeof(error->text), "%s", why.data);
    }
    mc_buf_free(&text);
    mc_buf_free(&why);
    return root;
}

enum mc_status mc_policy_load(const char *text, struct mc_policy *policy) {
    json_error_t error;
    memset(policy, 0, sizeof(*policy));
    policy->attempt_ns = MC_ATTEMPT_MIN_NS;
    if (text == NULL || text[strspn(text, " \t\r\n")] == '\0') {
        return MC_OK;
    }
    bool inline_text = text[strspn(text, " \t\r\n")] == '{';
    json_t *root =
        inline_text ? json_loads(text, JSON_REJECT_DUPLICATES, &error) : load_file(text, &error);
    if (root == NULL || !json_is_object(root)) {
        mc_error("the policy cannot be read MC_TENT_CONF=%s line=%d column=%d reason=%s",
                 inline_text ? "(text)" : text, root == NULL ? error.line : 1,
                 root == NULL ? error.column : 1, root == NULL ? error.text : "not an object");
        json_decref(root);
        return MC_INVALID_PARAMS;
    }
    enum mc_status status = read_object(policy, "", root);
    json_decref(root);
    return status;
}

/* ---- asking ---- */

/* "cuda" holds for "cuda:0"; "*" and what is not known are "cpu". */
static bool is_kind(const char *wanted, const char *memory) {
    if (wanted[0] == '\0') {
        return true;
    }
    memory = memory == NULL || memory[0] == '\0' || memory[0] == '*' ? "cpu" : memory;
    size_t len = strlen(wanted);
    return strncmp(wanted, memory, len) == 0 && (memory[len] == '\0' || memory[len] == ':');
}

const struct mc_policy_rule *mc_policy_match(const struct mc_policy *policy,
                                             const struct mc_policy_question *q) {
    for (unsigned i = 0; i < policy->rule_count; i++) {
        const struct mc_policy_rule *r = &policy->rules[i];
        if ((q->is_file ? r->file_segments : r->memory_segments) &&
            (r->localities & q->locality) != 0 && (r->priorities >> q->priority & 1) != 0 &&
            (r->intents >> q->intent & 1) != 0 && q->size >= r->size_min &&
            q->size <= r->size_max && is_kind(r->local_memory, q->local_memory) &&
            is_kind(r->remote_memory, q->remote_memory)) {
            return r;
        }
    }
    return NULL;
}

bool mc_policy_disables(const struct mc_policy *policy, const char *transport) {
    for (unsigned i = 0; i < policy->disabled_count; i++) {
        if (strcmp(policy->disabled[i], transport) == 0) {
            return true;
        }
    }
    return false;
}

bool mc_policy_asks_memory(const struct mc_policy *policy) {
    for (unsigned i = 0; i < policy->rule_count; i++) {
        if (policy->rules[i].local_memory[0] != '\0' || policy->rules[i].remote_memory[0] != '\0') {
            return true;
        }
    }
    return false;
}

bool mc_policy_allows_device(const struct mc_policy_rule *rule, const char *rail) {
    for (unsigned i = 0; i < rule->device_count; i++) {
        if (strcmp(rule->devices[i], rail) == 0) {
            return true;
        }
    }
    return rule->device_count == 0;
}
