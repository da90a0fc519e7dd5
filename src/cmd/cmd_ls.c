/*
 * `mooncake ls [PATTERN]`: the keys of a cluster. Asked from the admin endpoint, because the RPC
 * that lists keys grants a lease on each: looking would keep objects from eviction.
 */
#include "cmd/admin_client.h"
#include "cmd/cmd.h"

#include <fnmatch.h>
#include <stdio.h>

struct ls_options {
    struct mc_admin_options reach;
};

static const struct mc_option table[] = {MC_ADMIN_OPTIONS(struct ls_options)};

const struct mc_option_set mc_ls_options = {
    .program = "mooncake ls",
    .synopsis = "[options] [PATTERN]",
    .about = "Lists the keys of the cluster, those that match a shell pattern (* ? [...]) when one "
             "is given. Grants no lease.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static int list(const struct mc_admin *admin, const char *pattern) {
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
    struct mc_admin admin;
    if (result.positional_count > 1) {
        exit_status = mc_cmd_fail("mooncake ls", MC_EXIT_USAGE, "at most one pattern is expected");
    } else {
        exit_status = mc_admin_find_or_say("mooncake ls", &options.reach, &admin);
    }
    if (exit_status == 0) {
        exit_status = list(&admin, result.positional_count == 1 ? result.positional[0] : NULL);
    }
    mc_options_free(&result);
    return exit_status;
}
