/*
 * mooncake: the front door. One subcommand a file, cmd_<name>.c; the table of them is in
 * subcommands.c.
 */
#include "cmd/cmd.h"

#include "base/log.h"

#include <stdio.h>

static void print_help(FILE *out) {
    fputs("Usage: mooncake COMMAND [options]\n\n"
          "The data plane and the KV cache of disaggregated LLM serving.\n\nCommands:\n",
          out);
    for (size_t i = 0; i < mc_subcommand_count; i++) {
        fprintf(out, "  %-8s %s\n", mc_subcommands[i].name, mc_subcommands[i].summary);
    }
    fputs("\n'mooncake COMMAND --help' describes each. 'mooncake up' is a good start.\n", out);
}

static bool is_one_of(const char *text, const char *a, const char *b, const char *c) {
    return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

/* All option tables as Markdown; docs/options.md is made of it. */
static int print_options(void) {
    struct mc_buf out = {0};
    mc_buf_puts(&out, "# Options\n\nMade by `make docs` from the tables that the programs parse "
                      "with. Options are written\n"
                      "`--name=value`, `--name value` or `-name=value`, booleans also `--name` and "
                      "`--noname`; `-` and\n"
                      "`_` in names are the same. The command line is stronger than the "
                      "environment, the environment\n"
                      "than a file, the file than the default.\n\n");
    mc_options_markdown(&mc_master_option_set, &out);
    for (size_t i = 0; i < mc_subcommand_count; i++) {
        if (mc_subcommands[i].options != &mc_master_option_set) {
            mc_options_markdown(mc_subcommands[i].options, &out);
        }
    }
    mc_options_markdown(&mc_client_options, &out);
    mc_options_markdown(&mc_transfer_bench_options, &out);
    mc_options_markdown(&mc_tebench_options, &out);
    fwrite(out.data, 1, out.len, stdout);
    mc_buf_free(&out);
    return 0;
}

/* What a person typed answers on standard output; the log is for services and for those who ask for
 * it. */
static void quieten(const char *command) {
    bool is_service = is_one_of(command, "master", "node", "up");
    if (!is_service && getenv("MC_LOG_LEVEL") == NULL && mc_log_set_level("WARNING") != MC_OK) {
        fputs("mooncake: the log level cannot be set\n", stderr);
    }
}

int main(int argc, char **argv) {
    mc_cmd_open_standard_files();
    if (argc < 2 || is_one_of(argv[1], "--help", "-h", "help")) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? MC_EXIT_USAGE : 0;
    }
    if (is_one_of(argv[1], "--version", "-V", "version")) {
        printf("mooncake %s\n", MC_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "options-markdown") == 0) {
        return print_options();
    }
    for (size_t i = 0; i < mc_subcommand_count; i++) {
        if (strcmp(argv[1], mc_subcommands[i].name) == 0) {
            quieten(argv[1]);
            return mc_subcommands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "mooncake: no command '%s'\n\n", argv[1]);
    print_help(stderr);
    return MC_EXIT_USAGE;
}
