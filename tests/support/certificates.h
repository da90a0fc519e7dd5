/*
 * Certificates for tests of TLS, made by the openssl program in a folder of their own: a CA
 * ("ca"), and signed by it "server" (for 127.0.0.1 and localhost), "elsewhere" (for another host),
 * "client", and "expired" (as "server", but out of date); and another CA, "stranger", that signed
 * nothing.
 */
#ifndef MC_TESTS_CERTIFICATES_H
#define MC_TESTS_CERTIFICATES_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/support.h"

struct certificates {
    char folder[32];
};

static inline bool certificates_run(const struct certificates *c, const char *command) {
    struct mc_buf line = {0};
    mc_buf_printf(&line, "cd %s && (%s) >log 2>&1", c->folder, command);
    int status = system(mc_buf_cstr(&line));
    mc_buf_free(&line);
    return status == 0;
}

static inline bool certificates_sign(const struct certificates *c, const char *name,
                                     const char *alternatives, const char *days) {
    struct mc_buf line = {0};
    mc_buf_printf(&line,
                  "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s.key "
                  "-out %s.req -subj /CN=%s && echo subjectAltName=%s > %s.ext && "
                  "openssl x509 -req -in %s.req -CA ca.pem -CAkey ca.key -CAcreateserial -days %s "
                  "-extfile %s.ext -out %s.pem",
                  name, name, name, alternatives, name, name, days, name, name);
    bool good = certificates_run(c, mc_buf_cstr(&line));
    mc_buf_free(&line);
    return good;
}

static inline bool certificates_ca(const struct certificates *c, const char *name) {
    struct mc_buf line = {0};
    mc_buf_printf(&line,
                  "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
                  "-keyout %s.key -out %s.pem -subj /CN=%s -days 2",
                  name, name, name);
    bool good = certificates_run(c, mc_buf_cstr(&line));
    mc_buf_free(&line);
    return good;
}

/* False when the openssl program is missing: the test is skipped. */
static inline bool certificates_make(struct certificates *c) {
    *c = (struct certificates){.folder = "/tmp/mc_tls_XXXXXX"};
    return mkdtemp(c->folder) != NULL && certificates_run(c, "openssl version") &&
           certificates_ca(c, "ca") && certificates_ca(c, "stranger") &&
           certificates_sign(c, "server", "IP:127.0.0.1,DNS:localhost", "2") &&
           /* openssl takes no fewer days than -1, and that is yesterday */
           certificates_sign(c, "expired", "IP:127.0.0.1,DNS:localhost", "-1") &&
           certificates_sign(c, "elsewhere", "DNS:elsewhere.example", "2") &&
           certificates_sign(c, "client", "DNS:client.example", "2");
}

/* malloc'ed */
static inline char *certificates_file(const struct certificates *c, const char *name) {
    struct mc_buf path = {0};
    mc_buf_printf(&path, "%s/%s", c->folder, name);
    (void)mc_buf_cstr(&path);
    return path.data;
}

/* Clients of this process show `name` and trust `ca`; NULL = none. */
static inline void certificates_use(const struct certificates *c, const char *name,
                                    const char *ca) {
    static const char *const VARIABLES[] = {"MC_TLS_CERT", "MC_TLS_KEY", "MC_TLS_CA"};
    static const char *const ENDS[] = {"pem", "key", "pem"};
    for (size_t i = 0; i < 3; i++) {
        char path[96];
        const char *of = i < 2 ? name : ca;
        if (of == NULL) {
            unsetenv(VARIABLES[i]);
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s.%s", c->folder, of, ENDS[i]);
        setenv(VARIABLES[i], path, 1);
    }
}

static inline void certificates_remove(const struct certificates *c) {
    struct mc_buf line = {0};
    mc_buf_printf(&line, "rm -r %s", c->folder);
    if (system(mc_buf_cstr(&line)) != 0) {
        fprintf(stderr, "%s is left behind\n", c->folder);
    }
    mc_buf_free(&line);
}

#endif
