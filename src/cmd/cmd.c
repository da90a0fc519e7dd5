/*
 * What all programs share: the command line and signals. See cmd/cmd.h.
 *
 * Apart from cluster.c, so that mooncake_master links neither the client nor the Transfer Engine.
 */
#include "cmd/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

/* ---- the command line ---- */

bool mc_cmd_parse(const struct mc_option_set *set, int argc, char **argv, void *config,
                  struct mc_option_result *result, int *exit_status) {
    enum mc_status status = mc_options_parse(set, argc, argv, config, result);
    if (status == MC_OK && !result->help_shown) {
        return true;
    }
    if (status != MC_OK) {
        fputs(mc_buf_cstr(&result->error), stderr);
    }
    *exit_status = status == MC_OK ? 0 : MC_EXIT_USAGE;
    mc_options_free(result);
    return false;
}

bool mc_cmd_parse_no_words(const struct mc_option_set *set, int argc, char **argv, void *config,
                           struct mc_option_result *result, int *exit_status) {
    if (!mc_cmd_parse(set, argc, argv, config, result, exit_status)) {
        return false;
    }
    if (result->positional_count == 0) {
        return true;
    }
    *exit_status =
        mc_cmd_fail(set->program, MC_EXIT_USAGE, "unexpected argument '%s'", result->positional[0]);
    mc_options_free(result);
    return false;
}

int mc_cmd_fail(const char *program, int exit_status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return exit_status;
}

void mc_cmd_open_standard_files(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
            _exit(MC_EXIT_FAILED); /* and nowhere to say so */
        }
    }
}

/* ---- signals ---- */

/* Handlers can only reach what is global. */
static _Atomic bool signal_seen;
static int signal_pipe[2] = {-1, -1};

static void on_signal(int number) {
    int saved = errno;
    atomic_store_explicit(&signal_seen, true, memory_order_relaxed);
    ssize_t ignored = write(signal_pipe[1], "", 1);
    (void)ignored;
    signal(number, SIG_DFL); /* the second one ends the process */
    errno = saved;
}

const _Atomic bool *mc_cmd_catch_signals(void) {
    if (signal_pipe[0] < 0 && pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) == 0) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* shared memory counts as a file: EFBIG says what is wrong */
    }
    return &signal_seen;
}

bool mc_cmd_wait_for_signal(uint64_t ms) {
    struct pollfd fd = {.fd = signal_pipe[0], .events = POLLIN};
    if (!atomic_load_explicit(&signal_seen, memory_order_relaxed)) {
        poll(&fd, 1, (int)mc_min_u64(ms, INT32_MAX));
    }
    return atomic_load_explicit(&signal_seen, memory_order_relaxed);
}
