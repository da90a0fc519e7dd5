/*
 * `mooncake ls [PATTERN]`: the keys of a cluster. Asked from the admin endpoint, because the RPC
 * that lists keys grants a lease on each: looking would keep objects from eviction.
 */
#include "cmd/admin_client.h"
#include "cmd/cmd.h"

#include <fnmatch.h>
#include <stdio.h>

struct ls_options {
    const char *master, *admin;
};

#define OPT(kind, field, ...)                                                                      \
    {                                                                                              \
        .name = #field, .type = MC_OPT_##kind, .offset = offsetof(struct ls_options, field),       \
        __VA_ARGS__                                                                                \
    }

static const struct mc_option table[] = {
    OPT(STRING, master, .default_value = "127.0.0.1:50051", .env = "MOONCAKE_MASTER",
        .doc = "host:port of the master"),
    OPT(STRING, admin,
        .doc = "host:port of its admin endpoint; empty = the master's host, port 9003"),
};

const struct mc_option_set mc_ls_options = {
    .program = "mooncake ls",
    .synopsis = "[options] [PATTERN]",
    .about = "Lists the keys of the cluster, those that match a shell pattern (* ? [...]) when one "
             "is given. Grants no lease.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static int list(const char *admin, const char *pattern) {
    struct mc_buf keys = {0};
    if (mc_admin_get_or_say("mooncake ls", admin, "/get_all_keys", &keys) != MC_OK) {
        mc_buf_free(&keys);
        return MC_EXIT_FAILED;
    }
    for (char *line = keys.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        if (pattern == NULL || fnmatch(pattern, line, 0) == 0) {
            puts(line);
        }
    }
    mc_buf_free(&keys);
    return 0;
}

int mc_cmd_ls(int argc, char **argv) {
    struct ls_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_ls_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    char admin[MC_ADMIN_ADDRESS_MAX];
    if (result.positional_count > 1) {
        exit_status = mc_cmd_fail("mooncake ls", MC_EXIT_USAGE, "at most one pattern is expected");
    } else if (mc_admin_address(options.admin, options.master, admin, sizeof(admin)) != MC_OK) {
        exit_status =
            mc_cmd_fail("mooncake ls", MC_EXIT_USAGE, "'%s' is no address: host:port is expected",
                        options.admin[0] ? options.admin : options.master);
    } else {
        exit_status = list(admin, result.positional_count == 1 ? result.positional[0] : NULL);
    }
    mc_options_free(&result);
    return exit_status;
}
