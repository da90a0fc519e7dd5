/* See io/http_tls.h. */
#include "io/http_tls.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

#include "base/log.h"
#include "io/tls_files.h"

/* One set of files as it was read; counted by the connections that use it. */
struct credentials {
    gnutls_certificate_credentials_t native;
    size_t users;
};

struct mc_http_tls {
    struct mc_tls_files files;
    struct credentials *now;
    bool demand; /* a certificate of clients */
};

static int no_certificate(gnutls_session_t session, const gnutls_datum_t *cas, int ca_count,
                          const gnutls_pk_algorithm_t *algorithms, int algorithm_count,
                          gnutls_pcert_st **certificate, unsigned *length, gnutls_privkey_t *key) {
    return -1;
}
void *const mc_http_tls_no_certificate = (void *)no_certificate;

static void credentials_put(struct credentials *c) {
    if (--c->users == 0) {
        gnutls_certificate_free_credentials(c->native);
        free(c);
    }
}

static enum mc_status load(gnutls_certificate_credentials_t native,
                           const struct mc_tls_config *config) {
    int error = gnutls_certificate_set_x509_key_file(native, config->cert, config->key,
                                                     GNUTLS_X509_FMT_PEM);
    if (error < 0) {
        mc_error("TLS: the certificate or its key cannot be used: cert=%s key=%s reason=\"%s\"",
                 config->cert, config->key, gnutls_strerror(error));
        return MC_INVALID_PARAMS;
    }
    if (config->ca != NULL) {
        error = gnutls_certificate_set_x509_trust_file(native, config->ca, GNUTLS_X509_FMT_PEM);
        if (error <= 0) {
            mc_error("TLS: the CA file cannot be used: path=%s reason=\"%s\"", config->ca,
                     error == 0 ? "no certificate in it" : gnutls_strerror(error));
            return MC_INVALID_PARAMS;
        }
    }
    return MC_OK;
}

static enum mc_status credentials_make(const struct mc_tls_files *files, struct credentials **out) {
    const struct mc_tls_config config = mc_tls_files_config(files);
    if (config.cert == NULL || config.key == NULL) {
        mc_error("TLS: a certificate and its key go together: cert=%s key=%s",
                 config.cert != NULL ? config.cert : "none",
                 config.key != NULL ? config.key : "none");
        return MC_INVALID_PARAMS;
    }
    MC_TRY(mc_tls_config_check(&config));
    struct credentials *c = mc_zalloc(sizeof(*c));
    c->users = 1;
    MC_ASSERT(gnutls_certificate_allocate_credentials(&c->native) == 0); /* as mc_alloc */
    enum mc_status status = load(c->native, &config);
    if (status != MC_OK) {
        credentials_put(c);
        return status;
    }
    *out = c;
    return MC_OK;
}

enum mc_status mc_http_tls_create(const struct mc_tls_config *config, struct mc_http_tls **out) {
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        mc_error("this libmicrohttpd was built without TLS");
        return MC_NOT_SUPPORTED;
    }
    struct mc_http_tls *tls = mc_zalloc(sizeof(*tls));
    mc_tls_files_init(&tls->files, config);
    tls->demand = tls->files.paths[2] != NULL;
    enum mc_status status = credentials_make(&tls->files, &tls->now);
    if (status != MC_OK) {
        mc_tls_files_free(&tls->files);
        free(tls);
        return status;
    }
    *out = tls;
    return MC_OK;
}

void mc_http_tls_destroy(struct mc_http_tls *tls) {
    if (tls == NULL) {
        return;
    }
    credentials_put(tls->now);
    mc_tls_files_free(&tls->files);
    free(tls);
}

static void renew(struct mc_http_tls *tls) {
    struct credentials *renewed;
    if (credentials_make(&tls->files, &renewed) != MC_OK) {
        mc_warn("TLS: files have changed and cannot be used: those before stay in use");
        return;
    }
    credentials_put(tls->now);
    tls->now = renewed;
    mc_tls_files_say_renewed(&tls->files);
}

void mc_http_tls_connection(void *arg, struct MHD_Connection *connection, void **of_connection,
                            enum MHD_ConnectionNotificationCode what) {
    struct mc_http_tls *tls = arg;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*of_connection != NULL) {
            credentials_put(*of_connection);
            *of_connection = NULL;
        }
        return;
    }
    if (mc_tls_files_changed(&tls->files)) {
        renew(tls);
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    gnutls_session_t session = info->tls_session;
    MC_ASSERT(gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, tls->now->native) == 0);
    if (tls->demand) {
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
        gnutls_session_set_verify_cert(session, NULL, 0); /* of anybody whom the CA signed */
    }
    tls->now->users++;
    *of_connection = tls->now;
}
