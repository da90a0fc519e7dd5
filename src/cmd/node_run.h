/*
 * Running a store node until a signal ends it: what `mooncake node` and mooncake_client share.
 */
#ifndef MC_CMD_NODE_RUN_H
#define MC_CMD_NODE_RUN_H

#include "client/node.h"
#include "io/tls.h"

struct mc_node_run {
    struct mc_node_options node;
    bool http; /* /health, /metrics, /metrics/summary */
    const char *http_host;
    uint16_t http_port;
    struct mc_tls_config http_tls; /* nothing in it = plain */
    bool quiet;                    /* do not say what runs */
};
/* Options of both programs: their configurations have strings of these names. */
#define MC_NODE_HTTP_TLS_OPTIONS(OPT)                                                              \
    OPT(STRING, http_tls_cert,                                                                     \
        .doc = "PEM file with the certificate of the HTTP server; with it, it is HTTPS only"),     \
        OPT(STRING, http_tls_key, .doc = "PEM file with its key"),                                 \
        OPT(STRING, http_tls_ca,                                                                   \
            .doc = "PEM file with a CA: HTTP clients must show a certificate that it signed")

/* Returns the exit status. */
int mc_node_run(const char *program, const struct mc_node_run *run);

#endif
