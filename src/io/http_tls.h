/*
 * TLS for the HTTP server: what libmicrohttpd leaves open, which is certificates that change, and
 * demanding one of clients.
 *
 * libmicrohttpd speaks TLS through GnuTLS and reads its certificate once. Each connection is given
 * credentials of ours instead, made anew when a file has changed (io/tls.h has the rules); those
 * before live as long as their connections. Everything here runs on the server's one thread.
 */
#ifndef MC_IO_HTTP_TLS_H
#define MC_IO_HTTP_TLS_H

#include <microhttpd.h>

#include "io/tls.h"

struct mc_http_tls;
/* As mc_tls_create of a server. MC_NOT_SUPPORTED: this libmicrohttpd was built without TLS. */
MC_MUST_USE enum mc_status mc_http_tls_create(const struct mc_tls_config *config,
                                              struct mc_http_tls **out);
void mc_http_tls_destroy(struct mc_http_tls *tls); /* no connection is left; NULL is allowed */

/* To be called by what MHD_OPTION_NOTIFY_CONNECTION calls, with a pointer of the connection. */
void mc_http_tls_connection(void *tls, struct MHD_Connection *connection, void **of_connection,
                            enum MHD_ConnectionNotificationCode what);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK, which libmicrohttpd wants; credentials of ours never ask. */
extern void *const mc_http_tls_no_certificate;

#endif
