/*
 * `mooncake master` and the program mooncake_master: the options, the service, and a wait for the
 * signal that ends it.
 *
 * Nothing but the option table, the RPC server and the core is touched before the port accepts, so
 * that starting takes milliseconds.
 */
#include "cmd/cmd.h"
#include "cmd/master_options.h"
#include "cmd/quota_etcd.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <unistd.h>

/* ---- running ---- */

static void say_what_runs(const struct mc_master_service *service,
                          const struct mc_master_service_config *config) {
    struct mc_buf line = {0};
    mc_buf_printf(&line, "master ready rpc=%s:%u threads=%u", config->rpc_host,
                  mc_master_service_rpc_port(service), config->rpc_threads);
    mc_buf_printf(&line, " admin=%s:%u", config->admin_host, mc_master_service_admin_port(service));
    if (config->metadata) {
        mc_buf_printf(&line, " metadata=%s:%u", config->metadata_host,
                      mc_master_service_metadata_port(service));
    }
    mc_info("%s version=%s", mc_buf_cstr(&line), MC_VERSION);
    mc_buf_free(&line);
}

/* Where the notes are when nobody says: they outlive the master, and not the machine. */
static void choose_notes(struct mc_master_service_config *config, char *room, size_t size) {
    const char *asked = config->core.offload_notes_path;
    if (strcmp(asked, "none") == 0 || (strcmp(asked, "auto") == 0 && config->rpc_port == 0)) {
        config->core.offload_notes_path = "";
    } else if (strcmp(asked, "auto") == 0) {
        snprintf(room, size, "/dev/shm/mooncake-notes.%u.%s.%u", (unsigned)geteuid(),
                 config->core.cluster_id, (unsigned)config->rpc_port);
        config->core.offload_notes_path = room;
    }
}

static int serve(const char *program, const void *of) {
    const struct mc_master_options *options = of;
    struct mc_master_service_config config;
    struct mc_buf error = {0};
    char address[INET6_ADDRSTRLEN];
    const char *missing = mc_master_options_unsupported(options);
    if (missing != NULL) {
        return mc_cmd_fail(program, MC_EXIT_FAILED, "%s", missing);
    }
    if (mc_master_options_apply(options, &config, address, &error) != MC_OK) {
        mc_cmd_fail(program, 0, "%s", mc_buf_cstr(&error));
        mc_buf_free(&error);
        return MC_EXIT_FAILED;
    }
    char notes[256];
    choose_notes(&config, notes, sizeof(notes));
    mc_cmd_catch_signals();
    struct mc_master_service *service = NULL;
    struct mc_quota_store *quotas = &config.core.tenant_quota_store;
    enum mc_status status = MC_OK;
    if (options->enable_multi_tenants &&
        strcmp(options->tenant_quota_connector_type, "etcd") == 0) {
        status =
            mc_quota_etcd_open(options->tenant_quota_connector_uri, options->cluster_id, quotas);
    }
    if (status == MC_OK) {
        status = mc_master_service_start(&config, &service);
    }
    if (status != MC_OK) { /* who decided it has logged it, with the port */
        mc_quota_etcd_close(quotas);
        return mc_cmd_fail(program, MC_EXIT_FAILED, "the master cannot start: %s",
                           status == MC_INVALID_PARAMS
                               ? "a setting, or a file that one names, is wrong (see above)"
                               : mc_status_text(status));
    }
    say_what_runs(service, &config);
    while (!mc_cmd_wait_for_signal(UINT64_MAX)) {
    }
    mc_info("master stops on a signal");
    mc_master_service_stop(service);
    mc_quota_etcd_close(quotas);
    return 0;
}

int mc_cmd_master(int argc, char **argv) {
    struct mc_master_options options;
    const struct mc_upstream_program program = {
        .options = &mc_master_option_set, .config = &options, .log = &options.log, .run = serve};
    return mc_upstream_main(argc, argv, &program);
}
