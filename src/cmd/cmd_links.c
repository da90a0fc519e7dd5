/*
 * `mooncake links [HOST:PORT]`: what each rail of a running engine carries, measured by that engine
 * and read from the metrics of its process (a node's HTTP port, or any endpoint that serves
 * mc_engine_metrics).
 */
#include <jansson.h>
#include <stdio.h>

#include "cmd/admin_client.h"
#include "cmd/cmd.h"

#define LINKS_MAX 128 /* transports times rails */

struct links_options {
    bool json;
};

static const struct mc_option table[] = {
    MC_OPTION(struct links_options, BOOL, json, .doc = "print JSON"),
};

const struct mc_option_set mc_links_options = {
    .program = "mooncake links",
    .synopsis = "[options] [HOST:PORT]",
    .about = "Shows each rail of an engine: bytes, bandwidth, latency, errors, state. HOST:PORT is "
             "where its process serves /metrics, by default 127.0.0.1:9300, the HTTP port of "
             "`mooncake node --http`; https://HOST:PORT when that has a certificate.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static const char program[] = "mooncake links";

struct link {
    char transport[64], rail[64];
    uint64_t bytes, slices, errors, bandwidth, latency_ns, inflight, state;
};
struct links {
    size_t count;
    struct link list[LINKS_MAX];
};

/* Copies the value of label `name` out of "a="x",b="y"}". */
static bool label(const char *labels, const char *name, char *out, size_t size) {
    char start[32];
    snprintf(start, sizeof(start), "%s=\"", name);
    const char *at = strstr(labels, start);
    const char *end = at == NULL ? NULL : strchr(at + strlen(start), '"');
    if (end == NULL || (size_t)(end - at) - strlen(start) >= size) {
        return false;
    }
    snprintf(out, size, "%.*s", (int)((size_t)(end - at) - strlen(start)), at + strlen(start));
    return true;
}

static struct link *link_of(struct links *links, const char *labels) {
    struct link key;
    if (!label(labels, "transport", key.transport, sizeof(key.transport)) ||
        !label(labels, "rail", key.rail, sizeof(key.rail))) {
        return NULL;
    }
    for (size_t i = 0; i < links->count; i++) {
        if (strcmp(links->list[i].transport, key.transport) == 0 &&
            strcmp(links->list[i].rail, key.rail) == 0) {
            return &links->list[i];
        }
    }
    if (links->count == LINKS_MAX) {
        return NULL;
    }
    struct link *made = &links->list[links->count++];
    memset(made, 0, sizeof(*made));
    memcpy(made->transport, key.transport, sizeof(made->transport));
    memcpy(made->rail, key.rail, sizeof(made->rail));
    return made;
}

static void take_line(struct links *links, const char *line) {
    static const struct {
        const char *name;
        size_t offset;
    } what[] = {
        {"mooncake_te_rail_bytes_total{", offsetof(struct link, bytes)},
        {"mooncake_te_rail_slices_total{", offsetof(struct link, slices)},
        {"mooncake_te_rail_errors_total{", offsetof(struct link, errors)},
        {"mooncake_te_rail_bandwidth_bytes{", offsetof(struct link, bandwidth)},
        {"mooncake_te_rail_latency_nanoseconds{", offsetof(struct link, latency_ns)},
        {"mooncake_te_rail_inflight_bytes{", offsetof(struct link, inflight)},
        {"mooncake_te_rail_state{", offsetof(struct link, state)},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(what); i++) {
        size_t len = strlen(what[i].name);
        const char *value = strncmp(line, what[i].name, len) == 0 ? strstr(line, "} ") : NULL;
        struct link *link = value == NULL ? NULL : link_of(links, line + len);
        if (link != NULL) { /* several lines of one rail (by direction, priority) add up */
            *(uint64_t *)(void *)((char *)link + what[i].offset) += strtoull(value + 2, NULL, 10);
        }
    }
}

static const char *state_name(uint64_t state) {
    static const char *const names[] = {"healthy", "paused", "probing", "down"};
    return state < MC_ARRAY_LEN(names) ? names[state] : "?";
}

static void print_text(const struct links *links) {
    printf("%-10s %-16s %-8s %12s %12s %14s %10s %10s\n", "transport", "rail", "state", "moved",
           "in flight", "bandwidth", "latency", "errors");
    for (size_t i = 0; i < links->count; i++) {
        const struct link *l = &links->list[i];
        struct mc_buf moved = {0}, inflight = {0}, speed = {0};
        mc_format_size(&moved, l->bytes);
        mc_format_size(&inflight, l->inflight);
        mc_format_size(&speed, l->bandwidth);
        printf("%-10s %-16s %-8s %12s %12s %12s/s %7.1f us %10llu\n", l->transport, l->rail,
               state_name(l->state), mc_buf_cstr(&moved), mc_buf_cstr(&inflight),
               mc_buf_cstr(&speed), (double)l->latency_ns / 1e3, (unsigned long long)l->errors);
        mc_buf_free(&moved);
        mc_buf_free(&inflight);
        mc_buf_free(&speed);
    }
}

static void print_json(const struct links *links) {
    json_t *list = json_array();
    for (size_t i = 0; i < links->count; i++) {
        const struct link *l = &links->list[i];
        json_array_append_new(
            list,
            json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "transport", l->transport, "rail",
                      l->rail, "state", state_name(l->state), "bytes", (json_int_t)l->bytes,
                      "slices", (json_int_t)l->slices, "errors", (json_int_t)l->errors,
                      "bandwidth_bytes_per_second", (json_int_t)l->bandwidth, "latency_ns",
                      (json_int_t)l->latency_ns, "inflight_bytes", (json_int_t)l->inflight));
    }
    json_dumpf(list, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(list);
}

/* Of the process at the address; false after saying why there are none. */
static bool metrics_of(const char *address, struct mc_buf *body) {
    const struct mc_admin_options at = {.admin = address, .master = ""};
    struct mc_admin admin;
    int http_status = 0;
    if (mc_admin_find_or_say(program, &at, &admin) != 0) {
        return false;
    }
    enum mc_status status = mc_admin_get(&admin, "/metrics", &http_status, body);
    if (status != MC_OK) {
        mc_cmd_fail(program, 0,
                    "%s does not answer: %s; a node serves its metrics with --http, and HOST:PORT "
                    "names another place",
                    admin.address, mc_status_text(status));
    } else if (http_status != 200) {
        mc_cmd_fail(program, 0, "%s answers /metrics with HTTP %d", admin.address, http_status);
    }
    return status == MC_OK && http_status == 200;
}

static int show(const struct links_options *o, const char *address) {
    struct mc_buf body = {0};
    struct links links = {0};
    if (!metrics_of(address, &body)) {
        mc_buf_free(&body);
        return MC_EXIT_FAILED;
    }
    for (const char *line = mc_buf_cstr(&body); line != NULL && *line != '\0';) {
        take_line(&links, line);
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    mc_buf_free(&body);
    if (links.count == 0) {
        return mc_cmd_fail(program, MC_EXIT_FAILED, "%s has no engine", address);
    }
    if (o->json) {
        print_json(&links);
    } else {
        print_text(&links);
    }
    return 0;
}

int mc_cmd_links(int argc, char **argv) {
    struct links_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_links_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    if (result.positional_count > 1) {
        exit_status = mc_cmd_fail(program, MC_EXIT_USAGE, "one address at most");
    } else {
        exit_status =
            show(&options, result.positional_count == 1 ? result.positional[0] : "127.0.0.1:9300");
    }
    mc_options_free(&result);
    return exit_status;
}
