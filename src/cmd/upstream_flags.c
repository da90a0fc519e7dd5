/*
 * What upstream's flag and logging libraries (gflags, glog) give every program: --flagfile, flags
 * about the log, and where that goes. `main` of the programs that have upstream's names. See
 * cmd/cmd.h.
 */
#include "cmd/cmd.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define FLAGFILE_MAX_BYTES (1u << 20)
#define FLAGFILE_MAX_FLAGS 4096

/* ---- flags without effect ---- */

/* Of upstream's libraries: how its log looks and where else it goes, its arena for buffers. Command
 * lines that name them work; a warning says that they change nothing. */
static const struct {
    const char *name;
    bool is_switch; /* --name and --noname, no word behind them */
} WITHOUT_EFFECT[] = {
    {"alsologtostderr", true},
    {"colorlogtostderr", true},
    {"drop_log_memory", true},
    {"log_prefix", true},
    {"stop_logging_if_full_disk", true},
    {"symbolize_stacktrace", true},
    {"use_mmap_arena_allocator", true},
    {"log_backtrace_at", false},
    {"log_link", false},
    {"logbuflevel", false},
    {"logbufsecs", false},
    {"logfile_mode", false},
    {"max_log_size", false},
    {"mmap_arena_pool_size", false},
    {"stderrthreshold", false},
    {"vmodule", false},
};

static bool names(const char *text, size_t len, const char *name) {
    if (len != strlen(name)) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if ((text[i] == '-' ? '_' : text[i]) != name[i]) {
            return false;
        }
    }
    return true;
}

/* How many arguments the flag at argv[i] takes when it is one of those, else 0. */
static int without_effect(int argc, char **argv, int i) {
    const char *flag = argv[i] + strspn(argv[i], "-");
    size_t len = strcspn(flag, "=");
    bool whole = flag[len] == '\0';
    if (flag == argv[i]) {
        return 0;
    }
    for (size_t k = 0; k < MC_ARRAY_LEN(WITHOUT_EFFECT); k++) {
        const char *name = WITHOUT_EFFECT[k].name;
        bool is_switch = WITHOUT_EFFECT[k].is_switch;
        if (names(flag, len, name) ||
            (is_switch && whole && len > 2 && strncmp(flag, "no", 2) == 0 &&
             names(flag + 2, len - 2, name))) {
            mc_warn("this flag of upstream's has no effect here: --%s", name);
            return !is_switch && whole && i + 1 < argc ? 2 : 1;
        }
    }
    return 0;
}

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
            args->list[args->count] = line;
            args->count += without_effect(1, &line, 0) == 0;
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
        int skipped = i > 0 ? without_effect(argc, argv, i) : 0;
        if (skipped > 0) {
            used = skipped;
            continue;
        }
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
