/*
 * cmd: the programs. `mooncake` is the front door with one subcommand a file; mooncake_master and
 * mooncake_client are the upstream names for two of them.
 *
 * A subcommand is a function int(argc, argv) with argv[0] its own name; it returns the exit status:
 * 0 done, 1 it failed, 2 the command line was wrong (1 for the upstream programs, as theirs). What
 * the user asked for goes to standard output, everything else to standard error.
 */
#ifndef MC_CMD_CMD_H
#define MC_CMD_CMD_H

#include "base/base.h"
#include "base/options.h"
#include "mooncake/store.h"

#include <stdatomic.h>

#define MC_EXIT_FAILED 1
#define MC_EXIT_USAGE  2

struct mc_subcommand {
    const char *name;
    const char *summary; /* one line of `mooncake --help` */
    int (*run)(int argc, char **argv);
    const struct mc_option_set *options; /* for docs/options.md */
};
extern const struct mc_subcommand mc_subcommands[];
extern const size_t mc_subcommand_count;

int mc_cmd_up(int argc, char **argv);
int mc_cmd_master(int argc, char **argv);
int mc_cmd_node(int argc, char **argv);
int mc_cmd_put(int argc, char **argv);
int mc_cmd_get(int argc, char **argv);
int mc_cmd_ls(int argc, char **argv);
int mc_cmd_rm(int argc, char **argv);
int mc_cmd_stat(int argc, char **argv);
int mc_cmd_drain(int argc, char **argv);
int mc_cmd_top(int argc, char **argv);
int mc_cmd_bench(int argc, char **argv);
int mc_cmd_replay(int argc, char **argv);
int mc_cmd_topo(int argc, char **argv);
int mc_cmd_simulate(int argc, char **argv);
int mc_cmd_links(int argc, char **argv);
int mc_cmd_explain(int argc, char **argv);
int mc_cmd_doctor(int argc, char **argv);
extern const struct mc_option_set mc_up_options, mc_master_option_set, mc_node_options,
    mc_put_options, mc_get_options, mc_ls_options, mc_rm_options, mc_stat_options, mc_top_options,
    mc_bench_options, mc_replay_options, mc_simulate_options, mc_topo_options, mc_doctor_options,
    mc_transfer_bench_options, mc_tebench_options;
extern const struct mc_option_set mc_drain_options, mc_links_options, mc_explain_options;

/* Parses; true when the program should go on. Otherwise *exit_status is what to return (0 after
 * --help, MC_EXIT_USAGE after the error was printed). */
bool mc_cmd_parse(const struct mc_option_set *set, int argc, char **argv, void *config,
                  struct mc_option_result *result, int *exit_status);
/* The same for a command that takes options only: a word it does not expect is an error. */
bool mc_cmd_parse_no_words(const struct mc_option_set *set, int argc, char **argv, void *config,
                           struct mc_option_result *result, int *exit_status);
/* Prints "program: text" to standard error and returns `exit_status`. */
int mc_cmd_fail(const char *program, int exit_status, const char *format, ...) MC_PRINTF(3, 4);

/* ---- the programs with upstream's names ---- */

int mc_cmd_client(int argc, char **argv); /* mooncake_client */
extern const struct mc_option_set mc_client_options;

/* argv with each --flagfile=PATH replaced by the file's flags, one a line. MC_OK, or it has said
 * why not. */
struct mc_arguments {
    char **list;
    size_t count;
    struct mc_arena texts; /* the list points into them */
};
MC_MUST_USE enum mc_status mc_arguments_expand(int argc, char **argv, struct mc_arguments *args);
void mc_arguments_free(struct mc_arguments *args);

struct mc_glog_options {
    bool logtostderr;
    const char *log_dir;
    int64_t v, minloglevel;
};
/* Sets the level, and sends standard error to <log_dir>/<program>.log when that is asked. False
 * after saying why not. */
bool mc_glog_apply(const char *program, const struct mc_glog_options *options);

/* ---- signals ---- */

/* SIGINT and SIGTERM set this flag instead of ending the process; a second one ends it. */
const _Atomic bool *mc_cmd_catch_signals(void);
/* Sleeps until the flag is set or `ms` passed; true when it is set. */
bool mc_cmd_wait_for_signal(uint64_t ms);

/* ---- reaching a cluster ---- */

/* The options that every subcommand which talks to a cluster has: a first member of its
 * configuration. */
struct mc_cluster_options {
    const char *master;
    const char *metadata;
    const char *host;
    const char *tenant;
    uint64_t timeout_ms;
};
#define MC_CLUSTER_OPTIONS(type)                                                                   \
    {"master",                                                                                     \
     MC_OPT_STRING,                                                                                \
     offsetof(type, cluster.master),                                                               \
     "127.0.0.1:50051",                                                                            \
     "MOONCAKE_MASTER",                                                                            \
     NULL,                                                                                         \
     0,                                                                                            \
     0,                                                                                            \
     "host:port of the master",                                                                    \
     "master_server_address"},                                                                     \
        {"metadata",                                                                               \
         MC_OPT_STRING,                                                                            \
         offsetof(type, cluster.metadata),                                                         \
         "P2PHANDSHAKE",                                                                           \
         "MOONCAKE_TE_META_DATA_SERVER",                                                           \
         NULL,                                                                                     \
         0,                                                                                        \
         0,                                                                                        \
         "where engines find each other: P2PHANDSHAKE, http://host:port/metadata, "                \
         "etcd://host:port or redis://host:port",                                                  \
         "metadata_server"},                                                                       \
        {"host",                                                                                   \
         MC_OPT_STRING,                                                                            \
         offsetof(type, cluster.host),                                                             \
         NULL,                                                                                     \
         "MOONCAKE_LOCAL_HOSTNAME",                                                                \
         NULL,                                                                                     \
         0,                                                                                        \
         0,                                                                                        \
         "address of this machine that others reach; empty = chosen",                              \
         NULL},                                                                                    \
        {"tenant",                                                                                 \
         MC_OPT_STRING,                                                                            \
         offsetof(type, cluster.tenant),                                                           \
         "default",                                                                                \
         "MOONCAKE_TENANT_ID",                                                                     \
         NULL,                                                                                     \
         0,                                                                                        \
         0,                                                                                        \
         "tenant whose objects are meant",                                                         \
         NULL},                                                                                    \
    {                                                                                              \
        "timeout", MC_OPT_DURATION, offsetof(type, cluster.timeout_ms), "30s", NULL, NULL, 0, 0,   \
            "longest time of one operation", NULL                                                  \
    }

/* Copies them into a store's options. */
void mc_cluster_options_apply(const struct mc_cluster_options *options,
                              struct mc_store_options *store);

/* Opens a store client without a segment of its own. On failure it has said why: nobody listens
 * there, the master is not ready, the address is wrong. */
MC_MUST_USE enum mc_status mc_cmd_open_store(const char *program,
                                             const struct mc_cluster_options *options,
                                             struct mc_store **store);

#endif
