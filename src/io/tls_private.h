/* What the files of TLS share: OpenSSL as it was found at run time, and contexts. See io/tls.h. */
#ifndef MC_IO_TLS_PRIVATE_H
#define MC_IO_TLS_PRIVATE_H

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>

#include "io/tls.h"

#define SSL_FUNCTIONS(X)                                                                           \
    X(TLS_method)                                                                                  \
    X(SSL_CTX_new)                                                                                 \
    X(SSL_CTX_free)                                                                                \
    X(SSL_CTX_up_ref)                                                                              \
    X(SSL_CTX_ctrl)                                                                                \
    X(SSL_CTX_set_num_tickets)                                                                     \
    X(SSL_CTX_set_verify)                                                                          \
    X(SSL_CTX_set_options)                                                                         \
    X(SSL_CTX_set_default_verify_paths)                                                            \
    X(SSL_CTX_load_verify_file)                                                                    \
    X(SSL_load_client_CA_file)                                                                     \
    X(SSL_CTX_set_client_CA_list)                                                                  \
    X(SSL_CTX_use_certificate_chain_file)                                                          \
    X(SSL_CTX_use_PrivateKey_file)                                                                 \
    X(SSL_CTX_check_private_key)                                                                   \
    X(SSL_new)                                                                                     \
    X(SSL_free)                                                                                    \
    X(SSL_set_bio)                                                                                 \
    X(SSL_set_accept_state)                                                                        \
    X(SSL_set_connect_state)                                                                       \
    X(SSL_set1_host)                                                                               \
    X(SSL_get0_param)                                                                              \
    X(SSL_ctrl)                                                                                    \
    X(SSL_in_init)                                                                                 \
    X(SSL_do_handshake)                                                                            \
    X(SSL_read)                                                                                    \
    X(SSL_write)                                                                                   \
    X(SSL_has_pending)                                                                             \
    X(SSL_shutdown)                                                                                \
    X(SSL_get_error)                                                                               \
    X(SSL_get_verify_result)
#define CRYPTO_FUNCTIONS(X)                                                                        \
    X(BIO_meth_new)                                                                                \
    X(BIO_meth_set_write)                                                                          \
    X(BIO_meth_set_read)                                                                           \
    X(BIO_meth_set_ctrl)                                                                           \
    X(BIO_new)                                                                                     \
    X(BIO_set_data)                                                                                \
    X(BIO_get_data)                                                                                \
    X(BIO_set_init)                                                                                \
    X(BIO_set_flags)                                                                               \
    X(BIO_clear_flags)                                                                             \
    X(ERR_clear_error)                                                                             \
    X(ERR_get_error)                                                                               \
    X(ERR_reason_error_string)                                                                     \
    X(X509_verify_cert_error_string)                                                               \
    X(X509_VERIFY_PARAM_set1_ip_asc)

struct openssl {
#define X(name) __typeof__(name) *name;
    SSL_FUNCTIONS(X)
    CRYPTO_FUNCTIONS(X)
#undef X
    BIO_METHOD *socket_method;
    bool loaded;
};
extern struct openssl mc_openssl; /* written once, before the first context is there */

/* Why: of an error code, and of this thread's last failed call. */
const char *mc_tls_reason_of(unsigned long code);

/* The context of the files as they are now, with a reference for the caller (SSL_CTX_free). */
SSL_CTX *mc_tls_context(struct mc_tls *tls);
bool mc_tls_is_server(const struct mc_tls *tls);
uint64_t mc_tls_handshake_ns(const struct mc_tls *tls); /* how long one may take */
const char *mc_tls_peer_name(const struct mc_tls *tls); /* NULL = the peer's address */

/* tls_stream.c: the functions of the BIO that reaches a stream's socket. */
int mc_tls_socket_write(BIO *bio, const char *bytes, int len);
int mc_tls_socket_read(BIO *bio, char *bytes, int len);
long mc_tls_socket_ctrl(BIO *bio, int command, long number, void *pointer);

#endif
