/*
 * TLS contexts: OpenSSL, loaded when the first is made, and the files that they are made of. See
 * io/tls.h; tls_stream.c has the streams.
 *
 * A context that OpenSSL made is never changed: when a file has changed, a new one is made for the
 * connections that come from then on, and those that are open keep theirs.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#include "base/env.h"
#include "base/log.h"
#include "io/tls_files.h"
#include "io/tls_private.h"

#define ssl         mc_openssl
#define HANDSHAKE_S 10

/* ---- OpenSSL ---- */

struct openssl mc_openssl;

static bool find(void *library, const char *name, void *slot) {
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof(symbol));
    if (symbol == NULL) {
        mc_error("this OpenSSL has no %s: TLS needs version 3", name);
    }
    return symbol != NULL;
}

static void load(void) {
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    void *crypto = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || crypto == NULL) {
        mc_error("OpenSSL cannot be loaded: reason=\"%s\"", dlerror());
        return;
    }
    bool good = true;
#define X(name) good = good && find(library, #name, &ssl.name);
    SSL_FUNCTIONS(X)
#undef X
#define X(name) good = good && find(crypto, #name, &ssl.name);
    CRYPTO_FUNCTIONS(X)
#undef X
    ssl.socket_method = good ? ssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK, "mooncake socket") : NULL;
    if (ssl.socket_method == NULL) {
        return;
    }
    ssl.BIO_meth_set_write(ssl.socket_method, mc_tls_socket_write);
    ssl.BIO_meth_set_read(ssl.socket_method, mc_tls_socket_read);
    ssl.BIO_meth_set_ctrl(ssl.socket_method, mc_tls_socket_ctrl);
    ssl.loaded = true;
}

const char *mc_tls_reason_of(unsigned long code) {
    const char *text = ssl.ERR_reason_error_string(code);
    return text != NULL             ? text
           : ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code))
                                    : "unknown";
}

/* Why the last call of this thread failed. */
static const char *reason(void) {
    return mc_tls_reason_of(ssl.ERR_get_error());
}

/* ---- contexts ---- */

struct mc_tls {
    bool server;
    char *peer_name; /* NULL = none */
    uint64_t handshake_ns;
    pthread_mutex_t lock; /* guards what follows */
    SSL_CTX *context;
    struct mc_tls_files files;
};

static bool given(const char *path) {
    return path != NULL && path[0] != '\0';
}

static enum mc_status bad_file(const char *what, const char *path) {
    mc_error("TLS: the %s cannot be used: path=%s reason=\"%s\"", what, path, reason());
    return MC_INVALID_PARAMS;
}

static enum mc_status set_trust(SSL_CTX *context, const char *ca, bool server) {
    if (!given(ca)) {
        if (!server && ssl.SSL_CTX_set_default_verify_paths(context) != 1) {
            return bad_file("system's list of CAs", "");
        }
    } else if (ssl.SSL_CTX_load_verify_file(context, ca) != 1) {
        return bad_file("CA file", ca);
    } else if (server) { /* tells clients whose certificates it takes */
        ssl.SSL_CTX_set_client_CA_list(context, ssl.SSL_load_client_CA_file(ca));
    }
    int demand = SSL_VERIFY_PEER | (server ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0);
    ssl.SSL_CTX_set_verify(context, server && !given(ca) ? SSL_VERIFY_NONE : demand, NULL);
    return MC_OK;
}

static enum mc_status configure(SSL_CTX *context, const struct mc_tls_config *config, bool server) {
    if (given(config->cert) != given(config->key) || (server && !given(config->cert))) {
        mc_error("TLS: a certificate and its key go together: cert=%s key=%s",
                 given(config->cert) ? config->cert : "none",
                 given(config->key) ? config->key : "none");
        return MC_INVALID_PARAMS;
    }
    MC_TRY(mc_tls_config_check(config));
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL);
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                         SSL_MODE_RELEASE_BUFFERS,
                     NULL);
    ssl.SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
    /* A server that says nothing unasked: the RPC client takes bytes between two requests for the
     * end of a connection. */
    ssl.SSL_CTX_set_num_tickets(context, 0);
    if (given(config->cert)) {
        if (ssl.SSL_CTX_use_certificate_chain_file(context, config->cert) != 1) {
            return bad_file("certificate", config->cert);
        }
        if (ssl.SSL_CTX_use_PrivateKey_file(context, config->key, SSL_FILETYPE_PEM) != 1 ||
            ssl.SSL_CTX_check_private_key(context) != 1) {
            return bad_file("key", config->key);
        }
    }
    return set_trust(context, config->ca, server);
}

static enum mc_status make_context(const struct mc_tls_config *config, bool server, SSL_CTX **out) {
    ssl.ERR_clear_error();
    SSL_CTX *context = ssl.SSL_CTX_new(ssl.TLS_method());
    if (context == NULL) {
        mc_error("TLS: no context: reason=\"%s\"", reason());
        return MC_ERR_NO_MEMORY;
    }
    enum mc_status status = configure(context, config, server);
    if (status != MC_OK) {
        ssl.SSL_CTX_free(context);
        return status;
    }
    *out = context;
    return MC_OK;
}

enum mc_status mc_tls_create(const struct mc_tls_config *config, bool server, struct mc_tls **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!ssl.loaded) {
        return MC_NOT_SUPPORTED;
    }
    SSL_CTX *context;
    struct mc_tls *tls = mc_zalloc(sizeof(*tls));
    tls->peer_name = given(config->peer_name) ? mc_strdup(config->peer_name) : NULL;
    tls->server = server;
    tls->handshake_ns = mc_env_u64("MC_TLS_HANDSHAKE_TIMEOUT_SEC", 1, 3600, HANDSHAKE_S) * MC_SEC;
    pthread_mutex_init(&tls->lock, NULL);
    mc_tls_files_init(&tls->files, config);
    enum mc_status status = make_context(config, server, &context);
    if (status != MC_OK) {
        mc_tls_destroy(tls);
        return status;
    }
    tls->context = context;
    *out = tls;
    return MC_OK;
}

void mc_tls_destroy(struct mc_tls *tls) {
    if (tls == NULL) {
        return;
    }
    if (tls->context != NULL) {
        ssl.SSL_CTX_free(tls->context); /* counted: streams keep it */
    }
    mc_tls_files_free(&tls->files);
    free(tls->peer_name);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

static void renew_locked(struct mc_tls *tls) {
    const struct mc_tls_config config = mc_tls_files_config(&tls->files);
    SSL_CTX *context;
    if (make_context(&config, tls->server, &context) != MC_OK) {
        mc_warn("TLS: files have changed and cannot be used: those before stay in use");
        return;
    }
    ssl.SSL_CTX_free(tls->context);
    tls->context = context;
    mc_tls_files_say_renewed(&tls->files);
}

SSL_CTX *mc_tls_context(struct mc_tls *tls) {
    pthread_mutex_lock(&tls->lock);
    if (mc_tls_files_changed(&tls->files)) {
        renew_locked(tls);
    }
    SSL_CTX *context = tls->context;
    MC_ASSERT(ssl.SSL_CTX_up_ref(context) == 1);
    pthread_mutex_unlock(&tls->lock);
    return context;
}

enum mc_status mc_tls_peers_open(enum mc_tls_mode mode, const struct mc_tls_config *config,
                                 struct mc_tls_peers *out) {
    struct mc_tls_peers peers = {.mode = mode};
    if (mode != MC_TLS_OFF) {
        MC_TRY(mc_tls_create(config, true, &peers.server));
        enum mc_status status = mc_tls_create(config, false, &peers.client);
        if (status != MC_OK) {
            mc_tls_destroy(peers.server);
            return status;
        }
    }
    *out = peers;
    return MC_OK;
}

enum mc_status mc_tls_peers_environment(struct mc_tls_peers *out) {
    const struct mc_tls_config config = mc_tls_config_environment();
    enum mc_tls_mode mode;
    MC_TRY(mc_tls_mode_parse(NULL, &mode));
    return mc_tls_peers_open(mode, &config, out);
}

void mc_tls_peers_close(struct mc_tls_peers *peers) {
    mc_tls_destroy(peers->server);
    mc_tls_destroy(peers->client);
    *peers = (struct mc_tls_peers){0};
}

bool mc_tls_is_server(const struct mc_tls *tls) {
    return tls->server;
}

uint64_t mc_tls_handshake_ns(const struct mc_tls *tls) {
    return tls->handshake_ns;
}

const char *mc_tls_peer_name(const struct mc_tls *tls) {
    return tls->peer_name;
}
