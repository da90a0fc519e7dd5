/*
 * `mooncake ls [PREFIX]`: the keys of a cluster, page by page, so that neither side holds them all.
 * Asked from the admin endpoint: the RPC that lists keys grants a lease on each, and looking would
 * keep objects from eviction. A master that has no pages (upstream's) is asked for all at once.
 */
#include "cmd/admin_client.h"
#include "cmd/cmd.h"
#include "io/http.h"
#include "master/master.h"

#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>

struct ls_options {
    struct mc_admin_options reach;
    const char *after, *tenant;
    uint64_t limit;
};

#define OPT(...) MC_OPTION(struct ls_options, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_ADMIN_OPTIONS(struct ls_options),
    OPT(U64, limit, .default_value = "0",
        .doc = "list so many keys at most, and say on standard error where to go on; 0 = all"),
    OPT(STRING, after, .doc = "go on where a listing with --limit ended"),
    OPT(STRING, tenant, .default_value = "default", .env = "MOONCAKE_TENANT_ID",
        .doc = "tenant whose keys are meant"),
};

const struct mc_option_set mc_ls_options = {
    .program = "mooncake ls",
    .synopsis = "[options] [PREFIX | PATTERN]",
    .about = "Lists the keys of the cluster, in no order: those that begin with a prefix, or that "
             "match a shell pattern (* ? [...]). Grants no lease.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

/* What every key that matches must begin with. */
static struct mc_str prefix_of(const char *pattern) {
    return (struct mc_str){pattern, strcspn(pattern, "*?[\\")};
}

static bool matches(const char *pattern, bool glob, const char *key) {
    return !glob || fnmatch(pattern, key, 0) == 0;
}

/* An upstream master: everything in one answer, one key a line. */
static int list_at_once(const struct mc_admin *admin, const struct ls_options *o,
                        const char *pattern, bool glob) {
    struct mc_buf keys = {0};
    struct mc_str prefix = prefix_of(pattern);
    uint64_t left = o->limit != 0 ? o->limit : UINT64_MAX;
    if (mc_admin_get_or_say("mooncake ls", admin, "/get_all_keys", &keys) != MC_OK) {
        mc_buf_free(&keys);
        return MC_EXIT_FAILED;
    }
    for (char *line = keys.data, *end; left > 0 && (end = strchr(line, '\n')) != NULL;
         line = end + 1) {
        *end = '\0';
        if (strncmp(line, prefix.ptr, prefix.len) == 0 && matches(pattern, glob, line)) {
            puts(line);
            left--;
        }
    }
    mc_buf_free(&keys);
    return 0;
}

/* One page; *shown grows by what was printed. NULL: it has said why not, or *paged is false. */
static json_t *ask_page(const struct mc_admin *admin, const struct ls_options *o,
                        struct mc_str prefix, const char *after, uint64_t limit, bool *paged) {
    struct mc_buf path = {0}, body = {0};
    int http_status = 0;
    json_t *answer = NULL;
    mc_buf_printf(&path, "/api/v1/keys?limit=%llu&after=", (unsigned long long)limit);
    mc_http_escape(&path, mc_str_from(after));
    mc_buf_puts(&path, "&prefix=");
    mc_http_escape(&path, prefix);
    mc_buf_puts(&path, "&tenant_id=");
    mc_http_escape(&path, mc_str_from(o->tenant));
    *paged = true;
    if (mc_admin_ask("mooncake ls", admin, mc_buf_cstr(&path), &http_status, &body) == MC_OK) {
        *paged = http_status != 404;
        answer = http_status == 200 ? json_loadb(body.data, body.len, 0, NULL) : NULL;
        if (answer == NULL && *paged) {
            mc_cmd_fail("mooncake ls", 0, "%s%s answered %d: %s", admin->address,
                        mc_buf_cstr(&path), http_status, mc_buf_cstr(&body));
        }
    }
    mc_buf_free(&path);
    mc_buf_free(&body);
    return answer;
}

static int list(const struct mc_admin *admin, const struct ls_options *o, const char *pattern) {
    bool glob = pattern[prefix_of(pattern).len] != '\0', paged = true;
    uint64_t left = o->limit != 0 ? o->limit : UINT64_MAX;
    char after[64];
    snprintf(after, sizeof(after), "%s", o->after != NULL ? o->after : "");
    do {
        uint64_t limit = glob ? MC_LIST_PAGE_KEYS : mc_min_u64(left, MC_LIST_PAGE_KEYS);
        json_t *page = ask_page(admin, o, prefix_of(pattern), after, limit, &paged);
        if (page == NULL) {
            return paged ? MC_EXIT_FAILED : list_at_once(admin, o, pattern, glob);
        }
        const json_t *keys = json_object_get(page, "keys");
        for (size_t i = 0; i < json_array_size(keys) && left > 0; i++) {
            const char *key = json_string_value(json_array_get(keys, i));
            if (key != NULL && matches(pattern, glob, key)) {
                puts(key);
                left--;
            }
        }
        const char *next = json_string_value(json_object_get(page, "next"));
        snprintf(after, sizeof(after), "%s", next != NULL ? next : "");
        json_decref(page);
    } while (after[0] != '\0' && left > 0);
    if (after[0] != '\0' && !glob) {
        fprintf(stderr, "there are more: --after=%s\n", after);
    }
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
        exit_status =
            mc_cmd_fail("mooncake ls", MC_EXIT_USAGE, "at most one prefix or pattern is expected");
    } else {
        exit_status = mc_admin_find_or_say("mooncake ls", &options.reach, &admin);
    }
    if (exit_status == 0) {
        exit_status =
            list(&admin, &options, result.positional_count == 1 ? result.positional[0] : "");
    }
    mc_options_free(&result);
    return exit_status;
}
