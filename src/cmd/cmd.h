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

/* What upstream's logging library gives every program: a member `log` of its configuration, and
 * these rows of its table. With logtostderr off the log goes to <log_dir>/<program>.log. */
struct mc_glog_options {
    bool logtostderr;
    const char *log_dir;
    int64_t v, minloglevel;
};
#define MC_GLOG_OPTIONS(type)                                                                      \
    MC_OPTION_AS(type, BOOL, "logtostderr", log.logtostderr, .default_value = "true",              \
                 .doc = "log to standard error; off: to a file in log_dir, when that is given"),   \
        MC_OPTION_AS(type, STRING, "log_dir", log.log_dir, .doc = "directory of the log file"),    \
        MC_OPTION_AS(type, I64, "v", log.v, .default_value = "0", .max = 9,                        \
                     .doc = "above 0: also log what only helps in finding faults"),                \
        MC_OPTION_AS(type, I64, "minloglevel", log.minloglevel, .default_value = "0", .max = 3,    \
                     .doc = "least important level that is logged: 0 info, 1 warning, 2 error, "   \
                            "3 nothing")

struct mc_upstream_program {
    const struct mc_option_set *options;
    void *config;                      /* the options go here; */
    const struct mc_glog_options *log; /* inside of it */
    bool ignores_words;                /* arguments that are no options are no error */
    int (*run)(const char *program, const void *config); /* returns the exit status */
};
/* The first thing a program does: standard descriptors that whoever started it has closed must not
 * become sockets and files of ours, for the log and the output would be written into them. They are
 * taken by what fails as a closed one does. */
void mc_cmd_open_standard_files(void);

/* main: each --flagfile=PATH is replaced by the file's flags, one a line; then options, log, and
 * run. The exit status of a wrong command line is 1, as with upstream's flags library. */
int mc_upstream_main(int argc, char **argv, const struct mc_upstream_program *program);

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
    MC_OPTION_AS(type, STRING, "master", cluster.master, .default_value = "127.0.0.1:50051",       \
                 .env = "MOONCAKE_MASTER", .doc = "host:port of the master",                       \
                 .alias = "master_server_address"),                                                \
        MC_OPTION_AS(type, STRING, "metadata", cluster.metadata, .default_value = "P2PHANDSHAKE",  \
                     .env = "MOONCAKE_TE_META_DATA_SERVER",                                        \
                     .doc = "where engines find each other: P2PHANDSHAKE, "                        \
                            "http://host:port/metadata, etcd://host:port or redis://host:port",    \
                     .alias = "metadata_server"),                                                  \
        MC_OPTION_AS(type, STRING, "host", cluster.host, .env = "MOONCAKE_LOCAL_HOSTNAME",         \
                     .doc = "address of this machine that others reach; empty = chosen"),          \
        MC_OPTION_AS(type, STRING, "tenant", cluster.tenant, .default_value = "default",           \
                     .env = "MOONCAKE_TENANT_ID", .doc = "tenant whose objects are meant"),        \
        MC_OPTION_AS(type, DURATION, "timeout", cluster.timeout_ms, .default_value = "30s",        \
                     .doc = "longest time of one operation")

/* Copies them into a store's options. */
void mc_cluster_options_apply(const struct mc_cluster_options *options,
                              struct mc_store_options *store);

/* Opens a store client without a segment of its own. On failure it has said why: nobody listens
 * there, the master is not ready, the address is wrong. */
MC_MUST_USE enum mc_status mc_cmd_open_store(const char *program,
                                             const struct mc_cluster_options *options,
                                             struct mc_store **store);

#endif
