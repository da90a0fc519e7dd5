/*
 * Classes of threads: "name:threads:slo_us:weight[:isolated_gbps],..." or JSON objects with these
 * members, in workload_classes_json also block_size, batch_size, intent_type and deadline_us.
 */
#include "cmd/tebench.h"

#include <jansson.h>
#include <stdio.h>

enum mc_status tebench_intent_parse(const char *text, enum mc_intent *out) {
    static const struct {
        const char *name;
        enum mc_intent intent;
    } known[] = {
        {"unspec", MC_INTENT_DEFAULT},
        {"intent_unspec", MC_INTENT_DEFAULT},
        {"foreground_get", MC_INTENT_LATENCY},
        {"weight_loading", MC_INTENT_THROUGHPUT},
        {"staging_internal", MC_INTENT_THROUGHPUT},
        {"migration", MC_INTENT_BACKGROUND},
        {"checkpoint", MC_INTENT_BACKGROUND},
        {"background_prefetch", MC_INTENT_BACKGROUND},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(known); i++) {
        if (strcmp(known[i].name, text) == 0) {
            *out = known[i].intent;
            return MC_OK;
        }
    }
    return MC_INVALID_PARAMS;
}

static enum mc_status check_class(const struct tebench_classes *classes,
                                  const struct tebench_class *c, struct mc_buf *error) {
    if (c->name[0] == '\0') {
        mc_buf_printf(error, "class number %zu has no name", classes->count + 1);
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < classes->count; i++) {
        if (strcmp(classes->list[i].name, c->name) == 0) {
            mc_buf_printf(error, "the class %s is there twice", c->name);
            return MC_INVALID_PARAMS;
        }
    }
    if (c->threads == 0 || c->threads > 1024 || !(c->weight > 0)) {
        mc_buf_printf(error, "the class %s needs 1 to 1024 threads and a weight above 0", c->name);
        return MC_INVALID_PARAMS;
    }
    return MC_OK;
}

static enum mc_status add_class(struct tebench_classes *classes, const struct tebench_class *c,
                                struct mc_buf *error) {
    if (classes->count == TEBENCH_CLASSES_MAX) {
        mc_buf_printf(error, "more than %d classes", TEBENCH_CLASSES_MAX);
        return MC_INVALID_PARAMS;
    }
    MC_TRY(check_class(classes, c, error));
    classes->list[classes->count++] = *c;
    return MC_OK;
}

/* ---- text ---- */

static enum mc_status parse_text(const char *text, struct tebench_classes *classes,
                                 struct mc_buf *error) {
    for (const char *at = text; at != NULL;) {
        struct tebench_class c = {0};
        unsigned long long threads, slo;
        char one[256];
        int used = 0;
        size_t len = strcspn(at, ",");
        snprintf(one, sizeof(one), "%.*s", (int)mc_min_u64(len, sizeof(one) - 1), at);
        bool good =
            sscanf(one, "%63[^:]:%llu:%llu:%lf%n", c.name, &threads, &slo, &c.weight, &used) == 4;
        if (good && one[used] != '\0') {
            int more = 0;
            good = sscanf(one + used, ":%lf%n", &c.isolated_gbps, &more) == 1 &&
                   one[used + more] == '\0';
        }
        if (!good || len >= sizeof(one)) {
            mc_buf_printf(error, "\"%s\" is not name:threads:slo_us:weight[:isolated_gbps]", one);
            return MC_INVALID_PARAMS;
        }
        c.threads = threads;
        c.slo_us = slo;
        MC_TRY(add_class(classes, &c, error));
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return MC_OK;
}

/* ---- JSON ---- */

static bool read_u64(const json_t *item, const char *key, uint64_t *out) {
    const json_t *value = json_object_get(item, key);
    if (value == NULL) {
        return true;
    }
    *out = (uint64_t)json_integer_value(value);
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static bool read_double(const json_t *item, const char *key, double *out) {
    const json_t *value = json_object_get(item, key);
    if (value == NULL) {
        return true;
    }
    *out = json_number_value(value);
    return json_is_number(value);
}

static enum mc_status parse_item(const json_t *item, bool shaped, struct tebench_classes *classes,
                                 struct mc_buf *error) {
    struct tebench_class c = {.weight = 1};
    const char *name = json_string_value(json_object_get(item, "name"));
    const char *intent = json_string_value(json_object_get(item, "intent_type"));
    snprintf(c.name, sizeof(c.name), "%s", name != NULL ? name : "");
    bool good = read_u64(item, "threads", &c.threads) && read_u64(item, "slo_us", &c.slo_us) &&
                read_double(item, "weight", &c.weight) &&
                read_double(item, "isolated_gbps", &c.isolated_gbps) &&
                read_u64(item, "block_size", &c.block_size) &&
                read_u64(item, "batch_size", &c.batch_size) &&
                read_u64(item, "deadline_us", &c.deadline_us);
    if (!good) {
        mc_buf_printf(error, "the class \"%s\" has a member that is not a number", c.name);
        return MC_INVALID_PARAMS;
    }
    if (shaped && (c.block_size == 0 || c.batch_size == 0 || c.batch_size > MC_BATCH_MAX ||
                   c.block_size > (UINT64_MAX >> 1) / c.batch_size)) {
        mc_buf_printf(error, "the class \"%s\" needs block_size and batch_size", c.name);
        return MC_INVALID_PARAMS;
    }
    if (intent != NULL && tebench_intent_parse(intent, &c.intent) != MC_OK) {
        mc_buf_printf(error, "the class \"%s\" has an unknown intent_type %s", c.name, intent);
        return MC_INVALID_PARAMS;
    }
    return add_class(classes, &c, error);
}

static enum mc_status parse_json(const char *text, bool shaped, struct tebench_classes *classes,
                                 struct mc_buf *error) {
    json_error_t where;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    enum mc_status status = MC_OK;
    if (!json_is_array(root) || json_array_size(root) == 0) {
        if (root == NULL) {
            mc_buf_printf(error, "column %d: %s", where.column, where.text);
        } else {
            mc_buf_puts(error, "not a list of classes");
        }
        status = MC_INVALID_PARAMS;
    }
    for (size_t i = 0; status == MC_OK && i < json_array_size(root); i++) {
        status = parse_item(json_array_get(root, i), shaped, classes, error);
    }
    json_decref(root);
    classes->shaped = shaped;
    return status;
}

enum mc_status tebench_classes_parse(const struct tebench_options *o, struct tebench_classes *out,
                                     struct mc_buf *error) {
    unsigned given = (o->qos_classes[0] != '\0') + (o->qos_classes_json[0] != '\0') +
                     (o->workload_classes_json[0] != '\0');
    *out = (struct tebench_classes){0};
    if (given == 0) {
        return MC_OK;
    }
    if (given > 1) {
        mc_buf_puts(error, "give one of qos_classes, qos_classes_json, workload_classes_json");
        return MC_INVALID_PARAMS;
    }
    if (o->qos_classes[0] != '\0') {
        return parse_text(o->qos_classes, out, error);
    }
    bool shaped = o->workload_classes_json[0] != '\0';
    return parse_json(shaped ? o->workload_classes_json : o->qos_classes_json, shaped, out, error);
}
