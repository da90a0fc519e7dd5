/*
 * The master's HTTP administration: metrics, health, keys, segments (docs/master.md lists the
 * endpoints).
 *
 * Answers are upstream's, so that its tools and dashboards work. Endpoints of features that this
 * build or configuration has not (tenant quotas) answer upstream's error for a feature
 * that is off. Reads never grant leases or count as hits.
 */
#ifndef MC_MASTER_ADMIN_H
#define MC_MASTER_ADMIN_H

#include "master/events.h"
#include "master/master.h"

struct mc_admin;
struct mc_tls_config; /* io/tls.h */

struct mc_admin_config {
    const char *host;
    uint16_t port;                   /* 0 = any free */
    const struct mc_tls_config *tls; /* as of mc_http_server_config; NULL = plain */
    struct mc_master *master;
    struct mc_metrics *metrics;
    const struct mc_events *events;    /* NULL = none */
    const _Atomic bool *service_ready; /* the RPC server accepts */
};
MC_MUST_USE enum mc_status mc_admin_start(const struct mc_admin_config *config,
                                          struct mc_admin **out, uint16_t *bound_port);
void mc_admin_stop(struct mc_admin *admin);

/* GET, PUT, DELETE of tenant quotas; `tenant` NULL = none was given. The HTTP status. */
int mc_admin_tenants(struct mc_master *master, const char *method, const char *tenant,
                     struct mc_str request, struct mc_buf *out);

/* The line of /metrics/summary; rates are since the caller's last call with the same `rates`
 * (zero-initialised first). */
#define MC_SUMMARY_RATES 24
struct mc_summary_rates {
    uint64_t at_ns;
    int64_t seen[MC_SUMMARY_RATES];
};
void mc_admin_summary(struct mc_master *master, struct mc_metrics *metrics,
                      struct mc_summary_rates *rates, struct mc_buf *out);

/* ---- JSON by hand ---- */

/* The answers are small, and the master starts faster without a JSON library. */

/* A string literal; control characters escaped, bytes that are not UTF-8 replaced by U+FFFD. */
void mc_json_string(struct mc_buf *out, struct mc_str text);
/* {"success":false,"error_code":N,"error_message":"..."} and the HTTP status that goes with the
 * code. */
int mc_json_error(struct mc_buf *out, enum mc_status status,
                  const char *message /* NULL = the code's name */);

/* ---- admin_jobs.c: drain jobs. Each writes the JSON answer and returns its HTTP status. ---- */

/* Body: {"segments":[...],"target_segments":[...],"max_concurrency":4}; the last two may be
 * absent. */
int mc_admin_drain(struct mc_master *m, struct mc_str request, struct mc_buf *out);
/* `job` is "<u64>-<u64>". */
int mc_admin_job(struct mc_master *m, const char *job, struct mc_buf *out);
int mc_admin_job_cancel(struct mc_master *m, const char *job, struct mc_buf *out);

#endif
