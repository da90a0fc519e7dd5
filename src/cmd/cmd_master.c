/*
 * `mooncake master` and the program mooncake_master: the options, the service, and a wait for the
 * signal that ends it.
 *
 * Nothing but the option table, the RPC server and the core is touched before the port accepts, so
 * that starting takes milliseconds.
 */
#include "cmd/cmd.h"
#include "cmd/master_options.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define FLAGFILE_MAX_BYTES (1u << 20)
#define FLAGFILE_MAX_FLAGS 4096

/* ---- --flagfile ------------------------------------------------------------------------------ */

struct arguments {
    char **list;
    size_t count;
    struct mc_arena texts; /* the list points into them */
};

/* Appends the flags of a file, one a line; empty lines and lines that begin with # are comments. */
static enum mc_status read_flagfile(const char *path, struct arguments *args) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return MC_FILE_OPEN_FAIL;
    }
    char *text = mc_arena_zalloc(&args->texts, FLAGFILE_MAX_BYTES + 1);
    size_t len = fread(text, 1, FLAGFILE_MAX_BYTES, file);
    fclose(file);
    text[len] = '\0';
    char *rest = NULL;
    for (char *line = strtok_r(text, "\r\n", &rest); line != NULL;
         line = strtok_r(NULL, "\r\n", &rest)) {
        line += strspn(line, " \t");
        if (line[0] != '\0' && line[0] != '#') {
            if (args->count >= FLAGFILE_MAX_FLAGS) {
                return MC_ERR_LIMIT;
            }
            args->list[args->count++] = line;
        }
    }
    return MC_OK;
}

/* The path when argv[i] is --flagfile=PATH or --flagfile PATH, else NULL; *used is how many
 * arguments that took. */
static const char *flagfile_path(int argc, char **argv, int i, int *used) {
    const char *name = argv[i] + strspn(argv[i], "-");
    *used = 1;
    if (name == argv[i] || strncmp(name, "flagfile", 8) != 0) {
        return NULL;
    }
    if (name[8] == '=') {
        return name + 9;
    }
    if (name[8] != '\0' || i + 1 >= argc) {
        return NULL;
    }
    *used = 2;
    return argv[i + 1];
}

/* argv with each --flagfile replaced by the file's flags. */
static enum mc_status expand_flagfiles(int argc, char **argv, struct arguments *args) {
    args->list = mc_zalloc((FLAGFILE_MAX_FLAGS + (size_t)argc + 1) * sizeof(*args->list));
    for (int i = 0, used = 1; i < argc; i += used) {
        const char *path = flagfile_path(argc, argv, i, &used);
        if (path == NULL) {
            args->list[args->count++] = argv[i];
            continue;
        }
        enum mc_status status = path[0] != '\0' ? read_flagfile(path, args) : MC_OK;
        if (status != MC_OK) {
            mc_cmd_fail(argv[0], 0, "the flagfile %s cannot be read: %s", path,
                        mc_status_text(status));
            return status;
        }
    }
    return MC_OK;
}

/* ---- logging --------------------------------------------------------------------------------- */

static bool set_up_logging(const struct mc_master_options *o) {
    static const char *const levels[] = {"INFO", "WARNING", "ERROR", "OFF"};
    if (o->v > 0 || o->minloglevel > 0) {
        const char *level = o->minloglevel > 0 ? levels[o->minloglevel] : "DEBUG";
        if (mc_log_set_level(level) != MC_OK) {
            return false;
        }
    }
    if (o->logtostderr || o->log_dir[0] == '\0') {
        return true;
    }
    struct mc_buf path = {0};
    mc_buf_printf(&path, "%s/mooncake_master.log", o->log_dir);
    int fd = open(mc_buf_cstr(&path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    bool good = fd >= 0 && dup2(fd, STDERR_FILENO) >= 0;
    if (!good) {
        mc_cmd_fail("mooncake_master", 0, "the log file %s cannot be opened", mc_buf_cstr(&path));
    }
    if (fd >= 0) {
        close(fd);
    }
    mc_buf_free(&path);
    return good;
}

/* ---- running --------------------------------------------------------------------------------- */

static void say_what_runs(const struct mc_master_service *service,
                          const struct mc_master_service_config *config) {
    struct mc_buf line = {0};
    mc_buf_printf(&line, "master ready rpc=%s:%u threads=%u", config->rpc_host,
                  mc_master_service_rpc_port(service), config->rpc_threads);
    mc_buf_printf(&line, " admin=%s:%u", config->admin_host, mc_master_service_admin_port(service));
    if (config->metadata) {
        mc_buf_printf(&line, " metadata=%s:%u", config->metadata_host,
                      mc_master_service_metadata_port(service));
    }
    mc_info("%s version=%s", mc_buf_cstr(&line), MC_VERSION);
    mc_buf_free(&line);
}

static int serve(const char *program, const struct mc_master_options *options) {
    struct mc_master_service_config config;
    struct mc_buf error = {0};
    char address[INET6_ADDRSTRLEN];
    const char *missing = mc_master_options_unsupported(options);
    if (missing != NULL) {
        return mc_cmd_fail(program, MC_EXIT_FAILED, "%s", missing);
    }
    if (mc_master_options_apply(options, &config, address, &error) != MC_OK) {
        mc_cmd_fail(program, 0, "%s", mc_buf_cstr(&error));
        mc_buf_free(&error);
        return MC_EXIT_FAILED;
    }
    mc_cmd_catch_signals();
    struct mc_master_service *service;
    enum mc_status status = mc_master_service_start(&config, &service);
    if (status != MC_OK) { /* who decided it has logged it, with the port */
        return mc_cmd_fail(program, MC_EXIT_FAILED, "the master cannot start: %s",
                           mc_status_text(status));
    }
    say_what_runs(service, &config);
    while (!mc_cmd_wait_for_signal(UINT64_MAX)) {
    }
    mc_info("master stops on a signal");
    mc_master_service_stop(service);
    return 0;
}

/* The exit status of a wrong command line is 1, as with upstream's flags library. */
static int parse_and_serve(const char *program, struct arguments *args) {
    struct mc_master_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_master_option_set, (int)args->count, args->list, &options, &result,
                      &exit_status)) {
        return exit_status == 0 ? 0 : MC_EXIT_FAILED;
    }
    if (result.positional_count > 0) {
        exit_status =
            mc_cmd_fail(program, MC_EXIT_FAILED, "unexpected argument '%s'", result.positional[0]);
    } else {
        exit_status = set_up_logging(&options) ? serve(program, &options) : MC_EXIT_FAILED;
    }
    mc_options_free(&result);
    return exit_status;
}

int mc_cmd_master(int argc, char **argv) {
    struct arguments args = {0};
    int exit_status = MC_EXIT_FAILED;
    if (expand_flagfiles(argc, argv, &args) == MC_OK) {
        exit_status = parse_and_serve(argv[0], &args);
    }
    free(args.list);
    mc_arena_free(&args.texts);
    return exit_status;
}
