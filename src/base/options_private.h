/* What the files of the option table share: options.c (values, command line, environment),
 * options_file.c (YAML, JSON), options_help.c (help, Markdown). */
#ifndef MC_BASE_OPTIONS_PRIVATE_H
#define MC_BASE_OPTIONS_PRIVATE_H

#include "base/options.h"

/* One run of mc_options_parse. */
struct options_run {
    const struct mc_option_set *set;
    void *config;
    struct mc_option_result *result;
};

/* Finds by name or alias; '-' equals '_'. Returns the index or -1. */
int mc_option_find(const struct mc_option_set *set, struct mc_str name);

/* Puts `text` into the option's field. `where` names the place for the error ("--port", "PORT in
 * the environment", "file.yaml:3: port"). */
MC_MUST_USE enum mc_status mc_option_assign(struct options_run *run, int index, const char *text,
                                            const char *where);

/* Fills result->error with "program: ..." and returns MC_ERR_USAGE. */
enum mc_status mc_option_error(struct options_run *run, const char *format, ...) MC_PRINTF(2, 3);

/* "; did you mean --x?" when an option is near, else "". */
void mc_option_suggest(const struct mc_option_set *set, struct mc_str name, const char *dashes,
                       struct mc_buf *out);

/* What a value of the option must look like: "a whole number between 1 and 65535". */
void mc_option_describe(const struct mc_option *option, struct mc_buf *out);

/* Reads a YAML or JSON file and assigns every key of it. */
MC_MUST_USE enum mc_status mc_options_read_file(struct options_run *run, const char *path);

#endif
