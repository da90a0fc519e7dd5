/*
 * `mooncake rm KEY...`: removes objects, by key, by regular expression, or all.
 */
#include "cmd/cmd.h"

#include <stdio.h>

struct rm_options {
    struct mc_cluster_options cluster;
    bool force, regex, all;
};

#define OPT(...) MC_OPTION(struct rm_options, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_CLUSTER_OPTIONS(struct rm_options),
    OPT(BOOL, force, .doc = "also objects that somebody is reading (holds a lease on)"),
    OPT(BOOL, regex, .doc = "KEY is a regular expression that a key must match"),
    OPT(BOOL, all, .doc = "remove every object of the tenant"),
};

const struct mc_option_set mc_rm_options = {
    .program = "mooncake rm",
    .synopsis = "[options] KEY...",
    .about =
        "Removes objects. An object that somebody holds a lease on stays, unless --force is given.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

/* Removals of many keys pass over what has a lease, and do not count it. */
static void say_removed(const struct rm_options *o, uint64_t removed) {
    printf("%llu removed\n", (unsigned long long)removed);
    if (!o->force) {
        mc_cmd_fail("mooncake rm", 0, "objects that were read a moment ago stay, without --force");
    }
}

static enum mc_status remove_one(struct mc_store *store, const struct rm_options *o,
                                 const char *key) {
    if (!o->regex) {
        return mc_store_remove(store, key, o->force);
    }
    uint64_t removed = 0;
    enum mc_status status = mc_store_remove_regex(store, key, o->force, &removed);
    if (status == MC_OK) {
        say_removed(o, removed);
    }
    return status;
}

static int remove_all(struct mc_store *store, const struct rm_options *o) {
    uint64_t removed = 0;
    enum mc_status status = mc_store_remove_all(store, o->force, &removed);
    if (status != MC_OK) {
        return mc_cmd_fail("mooncake rm", MC_EXIT_FAILED, "%s (%s)", mc_status_text(status),
                           mc_status_name(status));
    }
    say_removed(o, removed);
    return 0;
}

static int remove_keys(struct mc_store *store, const struct rm_options *o,
                       const struct mc_option_result *keys) {
    int exit_status = 0;
    for (size_t i = 0; i < keys->positional_count; i++) {
        enum mc_status status = remove_one(store, o, keys->positional[i]);
        if (status == MC_INVALID_PARAMS && o->regex) {
            exit_status = mc_cmd_fail("mooncake rm", MC_EXIT_FAILED,
                                      "%s is not a regular expression", keys->positional[i]);
        } else if (status != MC_OK) {
            exit_status =
                mc_cmd_fail("mooncake rm", MC_EXIT_FAILED, "%s: %s (%s)", keys->positional[i],
                            mc_status_text(status), mc_status_name(status));
        }
    }
    return exit_status;
}

int mc_cmd_rm(int argc, char **argv) {
    struct rm_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_rm_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_store *store;
    if ((result.positional_count == 0) != options.all) {
        exit_status = mc_cmd_fail("mooncake rm", MC_EXIT_USAGE, "either keys or --all is expected");
    } else if (mc_cmd_open_store("mooncake rm", &options.cluster, &store) != MC_OK) {
        exit_status = MC_EXIT_FAILED;
    } else {
        exit_status =
            options.all ? remove_all(store, &options) : remove_keys(store, &options, &result);
        mc_store_close(store);
    }
    mc_options_free(&result);
    return exit_status;
}
