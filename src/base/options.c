/*
 * The option table: values, the command line and the environment. See base/options.h.
 *
 * The command line is read first but assigned last: it says which file to read and whether only
 * help is wanted. Then every source is assigned from the weakest to the strongest (default, file,
 * environment, command line), each over what the weaker ones left, so there is no bookkeeping of
 * who won.
 */
#include "base/options_private.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"

struct owned_string {
    struct owned_string *next;
    char text[];
};

/* ---- errors and suggestions ---- */

enum mc_status mc_option_error(struct options_run *run, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    struct mc_buf *error = &run->result->error;
    mc_buf_clear(error);
    mc_buf_printf(error, "%s: %s\n", run->set->program, text);
    mc_buf_printf(error, "Try '%s --help'.\n", run->set->program);
    mc_buf_cstr(error);
    return MC_ERR_USAGE;
}

static char folded(char c) {
    return c == '-' ? '_' : c;
}

static bool same_name(struct mc_str written, const char *name) {
    if (name == NULL || strlen(name) != written.len) {
        return false;
    }
    for (size_t i = 0; i < written.len; i++) {
        if (folded(written.ptr[i]) != folded(name[i])) {
            return false;
        }
    }
    return true;
}

int mc_option_find(const struct mc_option_set *set, struct mc_str name) {
    for (size_t i = 0; i < set->count; i++) {
        if (same_name(name, set->options[i].name) || same_name(name, set->options[i].alias)) {
            return (int)i;
        }
    }
    return -1;
}

#define NAME_MAX_FOR_DISTANCE 80

/* Edits (insert, delete, replace) from one name to the other. */
static size_t edit_distance(struct mc_str a, struct mc_str b) {
    size_t row[NAME_MAX_FOR_DISTANCE + 1];
    if (a.len > NAME_MAX_FOR_DISTANCE || b.len > NAME_MAX_FOR_DISTANCE) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= b.len; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a.len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.len; j++) {
            size_t replace = diagonal + (folded(a.ptr[i - 1]) != folded(b.ptr[j - 1]));
            size_t shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replace < shift ? replace : shift;
        }
    }
    return row[b.len];
}

void mc_option_suggest(const struct mc_option_set *set, struct mc_str name, const char *dashes,
                       struct mc_buf *out) {
    const char *best = NULL;
    size_t best_distance = name.len / 3 + 2; /* more than this is another word */
    for (size_t i = 0; i < set->count; i++) {
        size_t distance = edit_distance(name, mc_str_from(set->options[i].name));
        if (distance < best_distance) {
            best = set->options[i].name;
            best_distance = distance;
        }
    }
    if (best != NULL) {
        mc_buf_printf(out, "; did you mean %s%s?", dashes, best);
    }
    mc_buf_cstr(out);
}

/* ---- values ---- */

static bool is_bounded(const struct mc_option *o) {
    return o->min != 0 || o->max != 0;
}

static bool in_bounds(const struct mc_option *o, double value) {
    return !is_bounded(o) || (value >= o->min && value <= o->max);
}

void mc_option_describe(const struct mc_option *option, struct mc_buf *out) {
    static const char *const WHAT[] = {
        [MC_OPT_BOOL] = "true or false",
        [MC_OPT_I64] = "a whole number",
        [MC_OPT_U64] = "a whole number, not negative",
        [MC_OPT_DOUBLE] = "a number",
        [MC_OPT_STRING] = "a text",
        [MC_OPT_SIZE] = "a size such as 4096, 64 MB or 1.5g",
        [MC_OPT_DURATION] = "a duration such as 250ms, 30s, 5m or 1h (no unit: ms)",
        [MC_OPT_CHOICE] = "one of ",
    };
    mc_buf_puts(out, WHAT[option->type]);
    if (option->type == MC_OPT_CHOICE) {
        mc_buf_puts(out, option->choices);
    } else if (is_bounded(option)) {
        mc_buf_printf(out, " from %.15g to %.15g", option->min, option->max);
    }
    mc_buf_cstr(out);
}

static enum mc_status parse_i64(const char *text, int64_t *out) {
    uint64_t magnitude;
    bool negative = text[0] == '-';
    uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    MC_TRY(mc_parse_u64(text + negative, 0, limit, &magnitude));
    *out = (int64_t)(negative ? -magnitude : magnitude);
    return MC_OK;
}

/* In the C locale, whatever the program that hosts the library has set. */
static enum mc_status parse_double(const char *text, double *out) {
    if (text[0] == '\0' || strspn(text, "0123456789.eE+-") != strlen(text)) {
        return MC_INVALID_PARAMS;
    }
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    MC_ASSERT(c_locale != (locale_t)0);
    char *end;
    double value = strtod_l(text, &end, c_locale);
    freelocale(c_locale);
    if (*end != '\0' || !isfinite(value)) {
        return MC_INVALID_PARAMS;
    }
    *out = value;
    return MC_OK;
}

static bool is_choice(const char *choices, const char *text) {
    size_t len = strlen(text);
    for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, text, len) == 0 && (at[len] == '|' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

static const char *own_string(struct mc_option_result *result, const char *text) {
    size_t size = strlen(text) + 1;
    struct owned_string *s = mc_alloc(sizeof(*s) + size);
    memcpy(s->text, text, size);
    s->next = result->owned;
    result->owned = s;
    return s->text;
}

#define STORE(field, type, value) memcpy((field), &(type){(value)}, sizeof(type))

/* Writes the field only when the text is good. */
static enum mc_status store(struct options_run *run, const struct mc_option *o, const char *text) {
    char *field = (char *)run->config + o->offset;
    bool yes = false;
    int64_t i64 = 0;
    uint64_t u64 = 0;
    double number = 0;
    switch (o->type) {
    case MC_OPT_BOOL:
        MC_TRY(mc_parse_bool(text, &yes));
        STORE(field, bool, yes);
        return MC_OK;
    case MC_OPT_I64:
        MC_TRY(parse_i64(text, &i64));
        MC_TRY(in_bounds(o, (double)i64) ? MC_OK : MC_INVALID_PARAMS);
        STORE(field, int64_t, i64);
        return MC_OK;
    case MC_OPT_DOUBLE:
        MC_TRY(parse_double(text, &number));
        MC_TRY(in_bounds(o, number) ? MC_OK : MC_INVALID_PARAMS);
        STORE(field, double, number);
        return MC_OK;
    case MC_OPT_U64:
        MC_TRY(mc_parse_u64(text, 0, UINT64_MAX, &u64));
        break;
    case MC_OPT_SIZE:
        MC_TRY(mc_parse_size(text, &u64));
        break;
    case MC_OPT_DURATION:
        MC_TRY(mc_parse_duration_ms(text, &u64));
        break;
    case MC_OPT_CHOICE:
        if (!is_choice(o->choices, text)) {
            return MC_INVALID_PARAMS;
        }
        STORE(field, const char *, own_string(run->result, text));
        return MC_OK;
    case MC_OPT_STRING:
        STORE(field, const char *, own_string(run->result, text));
        return MC_OK;
    }
    MC_TRY(in_bounds(o, (double)u64) ? MC_OK : MC_INVALID_PARAMS);
    STORE(field, uint64_t, u64);
    return MC_OK;
}

static void set_given(struct options_run *run, const struct mc_option *o, bool given) {
    if (o->given != 0) {
        STORE((char *)run->config + o->given, bool, given);
    }
}

enum mc_status mc_option_assign(struct options_run *run, int index, const char *text,
                                const char *where) {
    const struct mc_option *o = &run->set->options[index];
    if (store(run, o, text) != MC_OK) {
        struct mc_buf wanted = {0};
        mc_option_describe(o, &wanted);
        enum mc_status status = mc_option_error(run, "%s: \"%s\" is not accepted; it must be %s",
                                                where, text, wanted.data);
        mc_buf_free(&wanted);
        return status;
    }
    if (strncmp(o->doc, "deprecated", 10) == 0) {
        mc_warn("option is deprecated: option=%s given_as=\"%s\" doc=\"%s\"", o->name, where,
                o->doc);
    }
    set_given(run, o, true);
    return MC_OK;
}

static void assign_defaults(struct options_run *run) {
    for (size_t i = 0; i < run->set->count; i++) {
        const struct mc_option *o = &run->set->options[i];
        bool is_text = o->type == MC_OPT_STRING || o->type == MC_OPT_CHOICE;
        set_given(run, o, false);
        if (o->default_value != NULL) {
            MC_ASSERT(store(run, o, o->default_value) == MC_OK); /* the table is wrong */
        } else if (is_text) {
            STORE((char *)run->config + o->offset, const char *, "");
        } else {
            memset((char *)run->config + o->offset, 0, o->type == MC_OPT_BOOL ? sizeof(bool) : 8);
        }
    }
}

/* ---- the command line ---- */

/* What the command line asked, in order; assigned after the weaker sources. */
struct given {
    int index;
    const char *value;
    const char *argument; /* as written, for errors */
};

struct command_line {
    struct given *given;
    size_t count;
};

/* "--noflag", "--no-flag" of a boolean. */
static int find_negated(const struct mc_option_set *set, struct mc_str name) {
    if (name.len < 3 || strncmp(name.ptr, "no", 2) != 0) {
        return -1;
    }
    for (size_t skip = 2; skip <= 3; skip++) {
        int index = mc_option_find(set, (struct mc_str){name.ptr + skip, name.len - skip});
        if (index >= 0 && set->options[index].type == MC_OPT_BOOL) {
            return index;
        }
        if (folded(name.ptr[2]) != '_') {
            break;
        }
    }
    return -1;
}

static bool show_on_request(struct options_run *run, struct mc_str name) {
    if (mc_str_eq(name, MC_STR("help")) || mc_str_eq(name, MC_STR("h"))) {
        struct mc_buf text = {0};
        mc_options_help(run->set, &text);
        fwrite(text.data, 1, text.len, stdout);
        mc_buf_free(&text);
    } else if (mc_str_eq(name, MC_STR("version"))) {
        printf("%s %s\n", run->set->program, MC_VERSION);
    } else {
        return false;
    }
    fflush(stdout);
    run->result->help_shown = true;
    return true;
}

/* One argument that begins with '-'. Advances *i when it takes the next one as its value. */
static enum mc_status read_option(struct options_run *run, int argc, char **argv, int *i,
                                  struct command_line *line) {
    const char *argument = argv[*i];
    struct mc_str name = mc_str_from(argument + (argument[1] == '-' ? 2 : 1));
    const char *equals = memchr(name.ptr, '=', name.len);
    if (equals != NULL) {
        name.len = (size_t)(equals - name.ptr);
    }
    struct given *given = &line->given[line->count];
    *given = (struct given){mc_option_find(run->set, name), equals != NULL ? equals + 1 : NULL,
                            argument};
    if (given->index >= 0) {
        if (given->value == NULL && run->set->options[given->index].type == MC_OPT_BOOL) {
            given->value = "true";
        } else if (given->value == NULL && *i + 1 < argc) {
            given->value = argv[++*i];
        } else if (given->value == NULL) {
            return mc_option_error(run, "%s needs a value", argument);
        }
        line->count++;
        return MC_OK;
    }
    given->index = find_negated(run->set, name);
    if (given->index >= 0 && equals == NULL) {
        given->value = "false";
        line->count++;
        return MC_OK;
    }
    if (given->index >= 0) {
        return mc_option_error(run, "%s: the negative form takes no value", argument);
    }
    if (show_on_request(run, name)) {
        return MC_OK;
    }
    struct mc_buf hint = {0};
    mc_option_suggest(run->set, name, "--", &hint);
    enum mc_status status =
        run->set->gflags_words
            ? mc_option_error(run, "ERROR: unknown command line flag '%.*s'%s",
                              (int)mc_min_u64(name.len, 200), name.ptr, hint.data)
            : mc_option_error(run, "unknown option %s%s", argument, hint.data);
    mc_buf_free(&hint);
    return status;
}

static enum mc_status read_command_line(struct options_run *run, int argc, char **argv,
                                        struct command_line *line) {
    struct mc_option_result *result = run->result;
    for (int i = 1; i < argc && !result->help_shown; i++) {
        const char *argument = argv[i];
        if (strcmp(argument, "--") == 0) {
            while (++i < argc) {
                result->positional[result->positional_count++] = argv[i];
            }
        } else if (argument[0] != '-' || argument[1] == '\0') {
            result->positional[result->positional_count++] = argv[i];
        } else {
            MC_TRY(read_option(run, argc, argv, &i, line));
        }
    }
    return MC_OK;
}

/* ---- all together ---- */

static const char *environment_of(const struct mc_option *o) {
    const char *value = o->env != NULL ? getenv(o->env) : NULL;
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The file that the strongest source names, or "". */
static const char *config_path(const struct options_run *run, const struct command_line *line) {
    if (run->set->config_option == NULL) {
        return "";
    }
    int index = mc_option_find(run->set, mc_str_from(run->set->config_option));
    MC_ASSERT(index >= 0);
    const struct mc_option *o = &run->set->options[index];
    for (size_t i = line->count; i > 0; i--) {
        if (line->given[i - 1].index == index) {
            return line->given[i - 1].value;
        }
    }
    const char *path = environment_of(o) != NULL ? environment_of(o) : o->default_value;
    return path != NULL ? path : "";
}

static enum mc_status assign_environment(struct options_run *run) {
    for (size_t i = 0; i < run->set->count; i++) {
        const char *value = environment_of(&run->set->options[i]);
        if (value != NULL) {
            char where[128];
            snprintf(where, sizeof(where), "%s in the environment", run->set->options[i].env);
            MC_TRY(mc_option_assign(run, (int)i, value, where));
        }
    }
    return MC_OK;
}

static enum mc_status assign_all(struct options_run *run, const struct command_line *line) {
    const char *path = config_path(run, line);
    if (path[0] != '\0') {
        MC_TRY(mc_options_read_file(run, path));
    }
    MC_TRY(assign_environment(run));
    for (size_t i = 0; i < line->count; i++) {
        MC_TRY(mc_option_assign(run, line->given[i].index, line->given[i].value,
                                line->given[i].argument));
    }
    return MC_OK;
}

enum mc_status mc_options_parse(const struct mc_option_set *set, int argc, char **argv,
                                void *config, struct mc_option_result *result) {
    struct options_run run = {set, config, result};
    *result = (struct mc_option_result){0};
    result->positional = mc_zalloc(((size_t)argc + 1) * sizeof(char *));
    struct command_line line = {mc_zalloc(((size_t)argc + 1) * sizeof(struct given)), 0};
    assign_defaults(&run);
    enum mc_status status = read_command_line(&run, argc, argv, &line);
    if (status == MC_OK && !result->help_shown) {
        status = assign_all(&run, &line);
    }
    free(line.given);
    return status;
}

void mc_options_free(struct mc_option_result *result) {
    struct owned_string *next;
    for (struct owned_string *s = result->owned; s != NULL; s = next) {
        next = s->next;
        free(s);
    }
    free(result->positional);
    mc_buf_free(&result->error);
    *result = (struct mc_option_result){0};
}
