/*
 * What upstream's flag and logging libraries (gflags, glog) give every program: --flagfile and
 * where the log goes. `main` of the programs that have upstream's names. See cmd/cmd.h.
 */
#include "cmd/cmd.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define FLAGFILE_MAX_BYTES (1u << 20)
#define FLAGFILE_MAX_FLAGS 4096

/* ---- --flagfile ---- */

/* argv with each --flagfile replaced by the flags in the file. */
struct arguments {
    char **list;
    size_t count;
    struct mc_arena texts; /* the list points into them */
};

/* Appends the flags of a text, one a line; empty lines and lines that begin with # are comments. */
static enum mc_status take_flags(struct mc_str content, struct arguments *args,
                                 struct mc_buf *why) {
    char *rest = NULL;
    struct mc_str text = mc_arena_str(&args->texts, content);
    if (memchr(text.ptr, '\0', text.len) != NULL) {
        mc_buf_puts(why, "holds a NUL byte");
        return MC_INVALID_PARAMS;
    }
    for (char *line = strtok_r((char *)(uintptr_t)text.ptr, "\r\n", &rest); line != NULL;
         line = strtok_r(NULL, "\r\n", &rest)) {
        line += strspn(line, " \t");
        if (line[0] != '\0' && line[0] != '#') {
            if (args->count >= FLAGFILE_MAX_FLAGS) {
                mc_buf_printf(why, "has more than %d flags", FLAGFILE_MAX_FLAGS);
                return MC_ERR_LIMIT;
            }
            args->list[args->count++] = line;
        }
    }
    return MC_OK;
}

static enum mc_status read_flagfile(const char *program, const char *path, struct arguments *args) {
    struct mc_buf content = {0}, why = {0};
    enum mc_status status = mc_text_file_read(path, FLAGFILE_MAX_BYTES, &content, &why);
    if (status == MC_OK) {
        status = take_flags((struct mc_str){content.data, content.len}, args, &why);
    }
    if (status != MC_OK) {
        mc_cmd_fail(program, 0, "the flagfile %s %s", path, mc_buf_cstr(&why));
    }
    mc_buf_free(&content);
    mc_buf_free(&why);
    return status;
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

/* MC_OK, or it has said why not. */
static enum mc_status expand(int argc, char **argv, struct arguments *args) {
    args->list = mc_zalloc((FLAGFILE_MAX_FLAGS + (size_t)argc + 1) * sizeof(*args->list));
    for (int i = 0, used = 1; i < argc; i += used) {
        const char *path = flagfile_path(argc, argv, i, &used);
        if (path == NULL) {
            args->list[args->count++] = argv[i];
            continue;
        }
        if (path[0] != '\0') {
            MC_TRY(read_flagfile(argv[0], path, args));
        }
    }
    return MC_OK;
}

/* ---- logging ---- */

/* False after saying why not. */
static bool log_as_asked(const char *program, const struct mc_glog_options *o) {
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
    mc_buf_printf(&path, "%s/%s.log", o->log_dir, program);
    int fd = open(mc_buf_cstr(&path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    bool good = fd >= 0 && dup2(fd, STDERR_FILENO) >= 0;
    if (!good) {
        mc_cmd_fail(program, 0, "the log file %s cannot be opened", mc_buf_cstr(&path));
    }
    if (fd >= 0) {
        close(fd);
    }
    mc_buf_free(&path);
    return good;
}

/* ---- main ---- */

static int parse_and_run(const char *name, const struct arguments *args,
                         const struct mc_upstream_program *p) {
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(p->options, (int)args->count, args->list, p->config, &result, &exit_status)) {
        return exit_status == 0 ? 0 : MC_EXIT_FAILED;
    }
    if (result.positional_count > 0 && !p->ignores_words) {
        exit_status =
            mc_cmd_fail(name, MC_EXIT_FAILED, "unexpected argument '%s'", result.positional[0]);
    } else {
        exit_status =
            log_as_asked(p->options->program, p->log) ? p->run(name, p->config) : MC_EXIT_FAILED;
    }
    mc_options_free(&result);
    return exit_status;
}

int mc_upstream_main(int argc, char **argv, const struct mc_upstream_program *program) {
    struct arguments args = {0};
    int exit_status = MC_EXIT_FAILED;
    mc_cmd_open_standard_files();
    if (expand(argc, argv, &args) == MC_OK) {
        exit_status = parse_and_run(argv[0], &args, program);
    }
    free(args.list);
    mc_arena_free(&args.texts);
    return exit_status;
}
