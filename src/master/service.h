/*
 * The master as a service: the core of master.h behind an RPC server, with one janitor thread that
 * ticks it, and, when wanted, the admin endpoints and the embedded metadata server over HTTP.
 *
 * mooncake_master is this and an option table; `mooncake up`, `mooncake replay` and tests start one
 * inside their own process. Threads: rpc_threads reactors, the janitor, one for each HTTP server.
 */
#ifndef MC_MASTER_SERVICE_H
#define MC_MASTER_SERVICE_H

#include "io/tls.h"
#include "master/events.h"
#include "master/master.h"

struct mc_master_service_config {
    struct mc_master_config core; /* its callbacks are the service's own */
    const char *rpc_host;
    uint16_t rpc_port; /* 0 = any free; here and below */
    unsigned rpc_threads;
    uint32_t rpc_idle_timeout_ms; /* 0 = never */
    bool rpc_no_delay;
    struct mc_tls_config rpc_tls;    /* see io/tls.h; all NULL or empty = plain TCP */
    uint64_t rpc_buffer_limit_bytes; /* see mc_rpc_server_config.max_buffered_bytes */
    struct mc_tls_config http_tls;   /* of both HTTP servers */
    bool admin;
    const char *admin_host;
    uint16_t admin_port;
    bool metadata;
    const char *metadata_host;
    uint16_t metadata_port;
    bool metadata_cleanup;          /* forget what a lost client published */
    struct mc_events_config events; /* endpoint NULL or "" = none */
    uint32_t report_interval_ms; /* of the summary in the log, when something happened; 0 = never */
};
/* The defaults of docs/options.md, with every port free to choose and no HTTP server. */
void mc_master_service_config_init(struct mc_master_service_config *config);

struct mc_master_service;
/* When it returns MC_OK the master accepts on every port. On failure nothing runs. */
MC_MUST_USE enum mc_status mc_master_service_start(const struct mc_master_service_config *config,
                                                   struct mc_master_service **out);
/* Stops accepting, ends connections, joins the threads. NULL is allowed. */
void mc_master_service_stop(struct mc_master_service *service);

/* An RPC of ours, beside upstream's: no arguments; answers the port of the admin endpoints as a
 * uint64_t, 0 = off, with MC_MASTER_ADMIN_TLS when they speak TLS. For tools that know the RPC port
 * only. */
#define MC_MASTER_ADMIN_TLS      (1u << 16)
#define MC_MASTER_ADMIN_PORT_RPC "mooncake_c::admin_port"

uint16_t mc_master_service_rpc_port(const struct mc_master_service *service);
uint16_t mc_master_service_admin_port(const struct mc_master_service *service);    /* 0 = off */
uint16_t mc_master_service_metadata_port(const struct mc_master_service *service); /* 0 = off */
struct mc_master *mc_master_service_core(struct mc_master_service *service);
struct mc_metrics *mc_master_service_metrics(struct mc_master_service *service);

#endif
