/*
 * Asking a master's HTTP admin endpoints. See cmd/admin_client.h.
 */
#include "cmd/admin_client.h"
#include "io/http.h"
#include "io/io.h"
#include "io/tls.h"
#include "master/metrics_text.h"
#include "master/service.h"
#include "rpc/rpc.h"
#include "wire/schema.h"

#include <stdio.h>

#define ADMIN_TIMEOUT_MS 10000
#define ASK_TIMEOUT_MS   2000
#define ADMIN_MAX_ANSWER (1ull << 30) /* all keys of a large cluster */
#define DEFAULT_PORT     9003
#define HTTPS            "https://"

/* ---- finding ---- */

/* MC_NOT_SUPPORTED: it does not know the question, as upstream's. */
static enum mc_status ask_master(const char *master, uint64_t *port) {
    const struct mc_tls_config config = mc_tls_config_environment();
    struct mc_tls *tls = NULL;
    struct mc_rpc_client *client;
    struct mc_buf reply = {0};
    struct mc_arena arena = {0};
    enum mc_rpc_errc errc = MC_RPC_OK;
    MC_TRY(mc_rpc_client_create(master, 1, ASK_TIMEOUT_MS, &client));
    enum mc_status status = mc_tls_wanted(&config) ? mc_tls_create(&config, false, &tls) : MC_OK;
    if (status == MC_OK) {
        uint64_t deadline = mc_now_ns(mc_clock_system()) + ASK_TIMEOUT_MS * MC_MS;
        mc_rpc_client_use_tls(client, tls);
        status = mc_rpc_call(client, mc_rpc_function_id(MC_MASTER_ADMIN_PORT_RPC),
                             (struct mc_str){0}, deadline, &reply, &errc);
    }
    if (status != MC_OK && errc == MC_RPC_NOT_REGISTERED) {
        status = MC_NOT_SUPPORTED;
    } else if (status == MC_OK) {
        status = mc_wire_decode(&mc_t_u64, mc_type_hash(&mc_t_u64),
                                (struct mc_str){reply.data, reply.len}, &arena, port);
    }
    mc_arena_free(&arena);
    mc_buf_free(&reply);
    mc_rpc_client_destroy(client);
    mc_tls_destroy(tls);
    return status;
}

enum mc_status mc_admin_find(const struct mc_admin_options *options, struct mc_admin *out) {
    struct mc_hostport parsed;
    uint64_t port = 0; /* in the end below 65536 */
    out->tls = false;
    if (options->admin[0] != '\0') {
        size_t scheme = strlen(HTTPS);
        out->tls = strncmp(options->admin, HTTPS, scheme) == 0;
        MC_TRY(mc_hostport_parse(options->admin + (out->tls ? scheme : 0), &parsed));
        port = parsed.port != 0 ? parsed.port : DEFAULT_PORT;
        snprintf(out->origin, sizeof(out->origin), "given by --admin");
    } else {
        MC_TRY(mc_hostport_parse(options->master, &parsed));
        enum mc_status status = ask_master(options->master, &port);
        out->tls = status == MC_OK && (port & MC_MASTER_ADMIN_TLS) != 0;
        port &= ~(uint64_t)MC_MASTER_ADMIN_TLS;
        if (status == MC_OK && (port == 0 || port > UINT16_MAX)) {
            return MC_ERR_NOT_FOUND;
        }
        if (status == MC_OK) {
            snprintf(out->origin, sizeof(out->origin), "named by the master at %s",
                     options->master);
        } else {
            port = DEFAULT_PORT;
            snprintf(out->origin, sizeof(out->origin),
                     "the default port: the master at %s %s; name it with --admin host:port",
                     options->master,
                     status == MC_NOT_SUPPORTED ? "does not tell its own" : "does not answer");
        }
    }
    mc_hostport_format(parsed.host, (uint16_t)port, out->address, sizeof(out->address));
    return MC_OK;
}

int mc_admin_find_or_say(const char *program, const struct mc_admin_options *options,
                         struct mc_admin *out) {
    enum mc_status status = mc_admin_find(options, out);
    if (status == MC_ERR_NOT_FOUND) {
        return mc_cmd_fail(program, MC_EXIT_FAILED, "the master at %s has no admin endpoint",
                           options->master);
    }
    if (status != MC_OK) {
        return mc_cmd_fail(program, MC_EXIT_USAGE, "'%s' is no address: host:port is expected",
                           options->admin[0] != '\0' ? options->admin : options->master);
    }
    return 0;
}

/* ---- asking ---- */

static enum mc_status ask(const struct mc_admin *admin, const char *method, const char *path,
                          struct mc_str json, int *http_status, struct mc_buf *body) {
    const struct mc_tls_config tls = mc_tls_config_environment();
    struct mc_buf url = {0};
    mc_buf_printf(&url, "%s://%s%s", admin->tls ? "https" : "http", admin->address, path);
    struct mc_http_call call = {.method = method,
                                .url = mc_buf_cstr(&url),
                                .content_type = json.len > 0 ? "application/json" : NULL,
                                .send = json,
                                .timeout_ms = ADMIN_TIMEOUT_MS,
                                .connect_timeout_ms = ADMIN_TIMEOUT_MS / 4,
                                .max_body_bytes = ADMIN_MAX_ANSWER,
                                .tls = &tls};
    enum mc_status status = mc_http_call(&call, http_status, body);
    mc_buf_free(&url);
    mc_buf_cstr(body);
    return status;
}

enum mc_status mc_admin_get(const struct mc_admin *admin, const char *path, int *http_status,
                            struct mc_buf *body) {
    return ask(admin, "GET", path, (struct mc_str){0}, http_status, body);
}

enum mc_status mc_admin_post(const struct mc_admin *admin, const char *path, struct mc_str json,
                             int *http_status, struct mc_buf *body) {
    return ask(admin, "POST", path, json, http_status, body);
}

enum mc_status mc_admin_ask(const char *program, const struct mc_admin *admin, const char *path,
                            int *http_status, struct mc_buf *body) {
    enum mc_status status = mc_admin_get(admin, path, http_status, body);
    if (status != MC_OK) {
        mc_cmd_fail(program, 0, "the master's admin endpoint at %s does not answer: %s (%s)",
                    admin->address, mc_status_text(status), admin->origin);
    }
    return status;
}

enum mc_status mc_admin_get_or_say(const char *program, const struct mc_admin *admin,
                                   const char *path, struct mc_buf *body) {
    int http_status = 0;
    MC_TRY(mc_admin_ask(program, admin, path, &http_status, body));
    if (http_status != 200) {
        mc_cmd_fail(program, 0, "%s%s answered %d: %s", admin->address, path, http_status,
                    mc_buf_cstr(body));
        return MC_ERR_REJECTED;
    }
    return MC_OK;
}

static uint64_t positive(const char *metrics, const char *name) {
    int64_t value = mc_metrics_text_value(metrics, name);
    return value > 0 ? (uint64_t)value : 0;
}

void mc_cluster_state_from_text(const char *metrics, struct mc_cluster_state *out) {
    *out = (struct mc_cluster_state){
        .known = true,
        .allocated_bytes = positive(metrics, "master_allocated_bytes"),
        .capacity_bytes = positive(metrics, "master_total_capacity_bytes"),
        .keys = positive(metrics, "master_key_count"),
        .evicted_keys = positive(metrics, "master_evicted_key_count"),
        .evicted_bytes = positive(metrics, "master_evicted_size_bytes"),
    };
}
