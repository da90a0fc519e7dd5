/*
 * `mooncake put KEY [FILE]`: stores a file, or standard input, as one object.
 */
#include "cmd/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PUT_MAX_BYTES (1ull << 40)

struct put_options {
    struct mc_cluster_options cluster;
    uint64_t replicas, ttl;
    bool upsert, soft_pin, hard_pin, if_absent;
    const char *if_version;
};

#define OPT(...) MC_OPTION(struct put_options, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_CLUSTER_OPTIONS(struct put_options),
    OPT(U64, replicas, .default_value = "1", .min = 1, .max = 64,
        .doc = "copies on different nodes"),
    OPT(BOOL, upsert, .doc = "replace the object when the key exists"),
    OPT(BOOL, soft_pin, .doc = "evict it after the others"),
    OPT(BOOL, hard_pin, .doc = "never evict it"),
    OPT(DURATION, ttl, .default_value = "0", .max = UINT32_MAX,
        .doc = "the object ends by itself so long after it was stored; 0 = it does not"),
    OPT(BOOL, if_absent, .doc = "fail when the key exists"),
    OPT(STRING, if_version, .default_value = "",
        .doc = "replace the object if it still has this version, which `mooncake stat` shows"),
};

const struct mc_option_set mc_put_options = {
    .program = "mooncake put",
    .synopsis = "[options] KEY [FILE]",
    .about = "Stores a file (or standard input) as one object. A key that exists keeps its object.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static enum mc_status read_all(const char *path, struct mc_buf *out) {
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *file = from_stdin ? stdin : fopen(path, "re");
    size_t n = 0;
    while (file != NULL && out->len < PUT_MAX_BYTES) {
        mc_buf_reserve(out, 1u << 20);
        n = fread(out->data + out->len, 1, 1u << 20, file);
        if (n == 0) {
            break;
        }
        out->len += n;
    }
    bool good = file != NULL && !ferror(file);
    if (!good) {
        mc_cmd_fail("mooncake put", 0, "%s cannot be read: %s", path, strerror(errno));
    }
    if (file != NULL && !from_stdin) {
        fclose(file);
    }
    return good ? MC_OK : MC_FILE_READ_FAIL;
}

/* The options that say what the key must be; false after saying what is wrong with them. */
static bool condition(const struct put_options *o, struct mc_replicate_config *config,
                      uint64_t *version) {
    if (o->if_version[0] == '\0') {
        config->condition = o->if_absent ? MC_PUT_IF_ABSENT : MC_PUT_ALWAYS;
        return true;
    }
    char *end;
    errno = 0;
    *version = strtoull(o->if_version, &end, 10);
    if (errno != 0 || *end != '\0' || o->if_version[0] < '0' || o->if_version[0] > '9' ||
        o->if_absent) {
        mc_cmd_fail("mooncake put", 0, "--if_version=%s: %s", o->if_version,
                    o->if_absent ? "not together with --if_absent" : "not a version");
        return false;
    }
    config->condition = MC_PUT_IF_VERSION;
    config->expected = version;
    config->expected_count = 1;
    return true;
}

static int put(const struct put_options *o, const char *key, const struct mc_buf *value) {
    struct mc_replicate_config config = {.replica_num = o->replicas,
                                         .with_soft_pin = o->soft_pin,
                                         .with_hard_pin = o->hard_pin,
                                         .ttl_ms = o->ttl};
    uint64_t version;
    if (!condition(o, &config, &version)) {
        return MC_EXIT_USAGE;
    }
    struct mc_store *store;
    if (mc_cmd_open_store("mooncake put", &o->cluster, &store) != MC_OK) {
        return MC_EXIT_FAILED;
    }
    bool exists = false;
    if (!o->upsert && config.condition == MC_PUT_ALWAYS &&
        mc_store_exist(store, key, &exists) == MC_OK && exists) {
        mc_cmd_fail("mooncake put", 0, "%s exists and keeps its object; --upsert replaces it", key);
    }
    enum mc_status status = o->upsert
                                ? mc_store_upsert(store, key, value->data, value->len, &config)
                                : mc_store_put(store, key, value->data, value->len, &config);
    mc_store_close(store);
    if (status != MC_OK) {
        return mc_cmd_fail("mooncake put", MC_EXIT_FAILED, "%s: %s (%s)", key,
                           mc_status_text(status), mc_status_name(status));
    }
    return 0;
}

int mc_cmd_put(int argc, char **argv) {
    struct put_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_put_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_buf value = {0};
    if (result.positional_count < 1 || result.positional_count > 2) {
        exit_status =
            mc_cmd_fail("mooncake put", MC_EXIT_USAGE, "a key and at most one file are expected");
    } else if (read_all(result.positional_count == 2 ? result.positional[1] : "-", &value) !=
               MC_OK) {
        exit_status = MC_EXIT_FAILED;
    } else if (value.len == 0) {
        exit_status =
            mc_cmd_fail("mooncake put", MC_EXIT_FAILED, "an object has at least one byte");
    } else {
        exit_status = put(&options, result.positional[0], &value);
    }
    mc_buf_free(&value);
    mc_options_free(&result);
    return exit_status;
}
