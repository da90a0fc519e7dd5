/*
 * Running a store node. See cmd/node_run.h.
 */
#include "cmd/node_run.h"
#include "base/env.h"
#include "cmd/cmd.h"
#include "io/http.h"

#include <stdio.h>

#define NODE_HTTP_MAX_BODY 65536

static void handle_health(void *ctx, const struct mc_http_request *request,
                          struct mc_http_response *response) {
    enum mc_status status = mc_store_health(mc_node_store(ctx));
    response->status = status == MC_OK ? 200 : 503;
    response->content_type = "application/json; charset=utf-8";
    mc_buf_printf(&response->body, "{\"status\":\"%s\",\"code\":%d}",
                  status == MC_OK ? "healthy" : "unhealthy", mc_status_to_wire(status));
}

/* NULL, and the answer says so, when the environment wants none (upstream's word for it). */
static char *metrics(void *ctx, struct mc_http_response *response) {
    response->content_type = "text/plain; version=0.0.4";
    if (!mc_env_bool("MC_STORE_CLIENT_METRIC", true)) {
        response->status = 503;
        mc_buf_puts(&response->body, "metrics not available");
        return NULL;
    }
    return mc_store_metrics(mc_node_store(ctx));
}

static void handle_metrics(void *ctx, const struct mc_http_request *request,
                           struct mc_http_response *response) {
    char *text = metrics(ctx, response);
    if (text != NULL) {
        mc_buf_puts(&response->body, text);
    }
    free(text);
}

/* The metrics without their comments, for a person. */
static void handle_summary(void *ctx, const struct mc_http_request *request,
                           struct mc_http_response *response) {
    char *text = metrics(ctx, response);
    char *rest = NULL;
    for (char *line = text != NULL ? strtok_r(text, "\n", &rest) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] != '#' && strstr(line, "_bucket{") == NULL) {
            mc_buf_printf(&response->body, "%s\n", line);
        }
    }
    free(text);
}

static const struct mc_http_route routes[] = {
    {"GET", "/health", handle_health},
    {"GET", "/metrics", handle_metrics},
    {"GET", "/metrics/summary", handle_summary},
};

/* Until a signal. */
static void say_and_wait(const struct mc_node_run *run, struct mc_node *node, uint16_t http_port) {
    if (!run->quiet) {
        struct mc_buf size = {0};
        mc_format_size(&size, run->node.store.segment_bytes);
        printf("node %s lends %s to the cluster of master %s",
               mc_store_hostname(mc_node_store(node)), mc_buf_cstr(&size), run->node.store.master);
        if (run->node.serve) {
            printf(", rpc port %u", mc_node_port(node));
        }
        if (run->http) {
            printf(", http port %u", http_port);
        }
        printf("\n");
        fflush(stdout);
        mc_buf_free(&size);
    }
    while (!mc_cmd_wait_for_signal(UINT64_MAX)) {
    }
}

int mc_node_run(const char *program, const struct mc_node_run *run) {
    struct mc_node *node;
    struct mc_http_server *http = NULL;
    uint16_t http_port = 0;
    mc_cmd_catch_signals();
    enum mc_status status = mc_node_start(&run->node, &node);
    if (status != MC_OK) {
        return mc_cmd_fail(program, MC_EXIT_FAILED,
                           "the node cannot join the cluster of master %s: %s (%s)",
                           run->node.store.master, mc_status_text(status), mc_status_name(status));
    }
    if (run->http) {
        const struct mc_http_server_config config = {.host = run->http_host,
                                                     .port = run->http_port,
                                                     .routes = routes,
                                                     .route_count = MC_ARRAY_LEN(routes),
                                                     .max_body_bytes = NODE_HTTP_MAX_BODY,
                                                     .tls = &run->http_tls,
                                                     .ctx = node};
        status = mc_http_server_start(&config, &http, &http_port);
    }
    if (status == MC_OK) {
        say_and_wait(run, node, http_port);
    } else {
        mc_cmd_fail(program, 0, "the HTTP server cannot start on port %u: %s", run->http_port,
                    mc_status_text(status));
    }
    if (http != NULL) {
        mc_http_server_stop(http);
    }
    mc_node_stop(node);
    return status == MC_OK ? 0 : MC_EXIT_FAILED;
}
