/*
 * Asking a master's HTTP admin endpoints, for the subcommands that look at a cluster without
 * touching it.
 */
#ifndef MC_CMD_ADMIN_CLIENT_H
#define MC_CMD_ADMIN_CLIENT_H

#include "cmd/cmd.h"
#include "cmd/replay.h"

struct mc_admin {
    char address[280];
    bool tls;
    char origin[400]; /* where the address is from, for messages */
};

/* The options of every subcommand that only looks: a first member of its configuration. */
struct mc_admin_options {
    const char *master, *admin;
};
#define MC_ADMIN_OPTIONS(type)                                                                     \
    MC_OPTION_AS(type, STRING, "master", reach.master, .default_value = "127.0.0.1:50051",         \
                 .env = "MOONCAKE_MASTER", .doc = "host:port of the master"),                      \
        MC_OPTION_AS(type, STRING, "admin", reach.admin,                                           \
                     .doc = "host:port of its admin endpoint, https:// before it where that "      \
                            "speaks TLS; empty = the master is asked, and where it does not "      \
                            "know, port 9003 of its host")

/* The address in options->admin, else what the master says, else, of a master that does not know
 * the question (upstream's) or does not answer, its host with port 9003. MC_ERR_BAD_ADDRESS;
 * MC_ERR_NOT_FOUND: the master says that it has no admin endpoint. */
MC_MUST_USE enum mc_status mc_admin_find(const struct mc_admin_options *options,
                                         struct mc_admin *out);
/* The same, and says on standard error why not. 0, or the exit status. */
int mc_admin_find_or_say(const char *program, const struct mc_admin_options *options,
                         struct mc_admin *out);

/* GET http(s)://<address><path>; the body is in `body`, NUL-terminated. A transport error is a
 * status; *http_status is the server's. */
MC_MUST_USE enum mc_status mc_admin_get(const struct mc_admin *admin, const char *path,
                                        int *http_status, struct mc_buf *body);

/* POST of a JSON text (empty = none), otherwise the same. */
MC_MUST_USE enum mc_status mc_admin_post(const struct mc_admin *admin, const char *path,
                                         struct mc_str json, int *http_status, struct mc_buf *body);

/* The same as mc_admin_get, and says on standard error why when there is no answer. */
MC_MUST_USE enum mc_status mc_admin_ask(const char *program, const struct mc_admin *admin,
                                        const char *path, int *http_status, struct mc_buf *body);

/* The same, and also when the answer is not 200. */
MC_MUST_USE enum mc_status mc_admin_get_or_say(const char *program, const struct mc_admin *admin,
                                               const char *path, struct mc_buf *body);

/* What Prometheus text of a master says about its cluster. */
void mc_cluster_state_from_text(const char *metrics, struct mc_cluster_state *out);

#endif
