/*
 * Asking a master's HTTP admin endpoints. See cmd/admin_client.h.
 */
#include "cmd/admin_client.h"
#include "io/http.h"
#include "io/io.h"
#include "master/metrics_text.h"

#include <stdio.h>

#define ADMIN_TIMEOUT_MS 10000
#define ADMIN_MAX_ANSWER (1ull << 30) /* all keys of a large cluster */

enum mc_status mc_admin_address(const char *admin, const char *master, char *out, size_t size) {
    struct mc_hostport parsed;
    if (admin[0] != '\0') {
        MC_TRY(mc_hostport_parse(admin, &parsed));
        mc_hostport_format(parsed.host, parsed.port ? parsed.port : MC_ADMIN_DEFAULT_PORT, out,
                           size);
        return MC_OK;
    }
    MC_TRY(mc_hostport_parse(master, &parsed));
    mc_hostport_format(parsed.host, MC_ADMIN_DEFAULT_PORT, out, size);
    return MC_OK;
}

enum mc_status mc_admin_get(const char *address, const char *path, int *http_status,
                            struct mc_buf *body) {
    struct mc_buf url = {0};
    mc_buf_printf(&url, "http://%s%s", address, path);
    struct mc_http_call call = {.method = "GET",
                                .url = mc_buf_cstr(&url),
                                .timeout_ms = ADMIN_TIMEOUT_MS,
                                .connect_timeout_ms = ADMIN_TIMEOUT_MS / 4,
                                .max_body_bytes = ADMIN_MAX_ANSWER};
    enum mc_status status = mc_http_call(&call, http_status, body);
    mc_buf_free(&url);
    mc_buf_cstr(body);
    return status;
}

enum mc_status mc_admin_get_or_say(const char *program, const char *address, const char *path,
                                   struct mc_buf *body) {
    int http_status = 0;
    enum mc_status status = mc_admin_get(address, path, &http_status, body);
    if (status != MC_OK) {
        mc_cmd_fail(program, 0,
                    "the master's admin endpoint at %s does not answer (%s); name it with --admin "
                    "host:port",
                    address, mc_status_text(status));
        return status;
    }
    if (http_status != 200) {
        mc_cmd_fail(program, 0, "%s%s answered %d: %s", address, path, http_status,
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
