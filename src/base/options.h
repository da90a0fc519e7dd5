/*
 * Options: declared once, read from many places.
 *
 * A program declares a table of struct mc_option; the table gives flags (`--a=b`, `-a=b`, `--a b`,
 * `--flag` and `--noflag` for booleans; '-' and '_' are the same in names), environment variables,
 * a YAML or JSON file, `--help` and docs/options.md. Order of strength: command line, then
 * environment, then file, then default. An unknown option, a value that does not parse or is out of
 * its range is an error that names the option, where it was given and what would be accepted.
 */
#ifndef MC_BASE_OPTIONS_H
#define MC_BASE_OPTIONS_H

#include "base/base.h"

enum mc_option_type {
    MC_OPT_BOOL,     /* bool */
    MC_OPT_I64,      /* int64_t, in [min, max] */
    MC_OPT_U64,      /* uint64_t, in [min, max] */
    MC_OPT_DOUBLE,   /* double, in [min, max] */
    MC_OPT_STRING,   /* const char *, owned by the option set */
    MC_OPT_SIZE,     /* uint64_t bytes, mc_parse_size */
    MC_OPT_DURATION, /* uint64_t ms, mc_parse_duration_ms */
    MC_OPT_CHOICE,   /* const char *, one of `choices` ("a|b|c") */
};

struct mc_option {
    const char *name; /* canonical, with '_' */
    enum mc_option_type type;
    size_t offset;             /* of the field in the configuration struct */
    const char *default_value; /* as text; NULL = "" / 0 / false */
    const char *env;           /* environment variable or NULL */
    const char *choices;       /* for MC_OPT_CHOICE */
    double min, max;           /* for numbers; both 0 = no bound */
    const char *doc;           /* one sentence; begins with "deprecated" when it is */
    const char *alias;         /* another accepted name or NULL; aliases are accepted everywhere */
    size_t given;              /* offset of a bool that says whether it was given; 0 = none */
};

/* A row of a table: `field` of `type` is filled by the option of that name, or of another one. */
#define MC_OPTION(type_, kind, field, ...) MC_OPTION_AS(type_, kind, #field, field, __VA_ARGS__)
#define MC_OPTION_AS(type_, kind, name_, field, ...)                                               \
    { .name = (name_), .type = MC_OPT_##kind, .offset = offsetof(type_, field), __VA_ARGS__ }

struct mc_option_set {
    const char *program;  /* "mooncake_master" */
    const char *synopsis; /* "[options]" */
    const char *about;    /* a sentence or two */
    const struct mc_option *options;
    size_t count;
    const char *config_option; /* the option that names the file, or NULL: e.g. "config_path" */
    bool gflags_words; /* an unknown option is reported as upstream's flags library reports it */
};

struct mc_option_result {
    char **positional; /* arguments that are not options, and all behind "--" */
    size_t positional_count;
    bool help_shown;     /* --help or --version was asked and printed: exit 0 */
    struct mc_buf error; /* why the status is MC_ERR_USAGE, ready to print */
    void *owned;         /* strings; freed by mc_options_free */
};

/* Fills `config` (a struct whose fields the table names).
 * On MC_ERR_USAGE result->error says why. */
MC_MUST_USE enum mc_status mc_options_parse(const struct mc_option_set *set, int argc, char **argv,
                                            void *config, struct mc_option_result *result);
void mc_options_free(struct mc_option_result *result);

void mc_options_help(const struct mc_option_set *set, struct mc_buf *out); /* for a terminal */
/* For docs/options.md. */
void mc_options_markdown(const struct mc_option_set *set, struct mc_buf *out);

#endif
