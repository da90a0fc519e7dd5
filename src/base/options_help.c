/*
 * The option table as text: --help for a terminal and Markdown for docs/options.md. Both are made
 * from the same fields that parsing uses, so a documented default cannot differ from the real one.
 */
#include "base/options_private.h"

#define HELP_COLUMN 36
#define HELP_WIDTH  100

static const char *value_name(const struct mc_option *o) {
    static const char *const NAMES[] = {
        [MC_OPT_BOOL] = "bool",     [MC_OPT_I64] = "int",       [MC_OPT_U64] = "uint",
        [MC_OPT_DOUBLE] = "number", [MC_OPT_STRING] = "string", [MC_OPT_SIZE] = "size",
        [MC_OPT_DURATION] = "time", [MC_OPT_CHOICE] = "choice",
    };
    return NAMES[o->type];
}

static const char *default_of(const struct mc_option *o) {
    if (o->default_value != NULL) {
        return o->default_value;
    }
    switch (o->type) {
    case MC_OPT_BOOL:
        return "false";
    case MC_OPT_STRING:
    case MC_OPT_CHOICE:
        return "";
    default:
        return "0";
    }
}

static bool is_deprecated(const struct mc_option *o) {
    return strncmp(o->doc, "deprecated", 10) == 0;
}

static bool is_bounded(const struct mc_option *o) {
    return o->min != 0 || o->max != 0;
}

/* Breaks at spaces so that lines stay inside HELP_WIDTH; further lines begin at `indent`. `column`
 * is where the text starts on the present line. */
static void wrap(struct mc_buf *out, const char *text, size_t column, size_t indent) {
    const char *word = text;
    bool first = true;
    while (*word != '\0') {
        size_t len = strcspn(word, " ");
        if (!first && column + 1 + len > HELP_WIDTH) {
            mc_buf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            mc_buf_putc(out, ' ');
            column++;
        }
        mc_buf_append(out, word, len);
        column += len;
        word += len + strspn(word + len, " ");
        first = false;
    }
}

static void help_option(const struct mc_option *o, struct mc_buf *out) {
    struct mc_buf text = {0};
    size_t start = out->len;
    if (o->type == MC_OPT_BOOL) {
        mc_buf_printf(out, "  --[no]%s", o->name);
    } else if (o->type == MC_OPT_CHOICE) {
        mc_buf_printf(out, "  --%s=%s", o->name, o->choices);
    } else {
        mc_buf_printf(out, "  --%s=<%s>", o->name, value_name(o));
    }
    size_t column = out->len - start;
    if (column + 2 > HELP_COLUMN) {
        mc_buf_printf(out, "\n%*s", HELP_COLUMN, "");
    } else {
        mc_buf_printf(out, "%*s", (int)(HELP_COLUMN - column), "");
    }
    mc_buf_puts(&text, o->doc);
    if (is_bounded(o)) {
        mc_buf_printf(&text, " (%.15g to %.15g)", o->min, o->max);
    }
    if (default_of(o)[0] != '\0') {
        mc_buf_printf(&text, " [default: %s]", default_of(o));
    }
    if (o->env != NULL) {
        mc_buf_printf(&text, " [env: %s]", o->env);
    }
    if (o->alias != NULL) {
        mc_buf_printf(&text, " [also: --%s]", o->alias);
    }
    wrap(out, mc_buf_cstr(&text), HELP_COLUMN, HELP_COLUMN);
    mc_buf_putc(out, '\n');
    mc_buf_free(&text);
}

void mc_options_help(const struct mc_option_set *set, struct mc_buf *out) {
    mc_buf_printf(out, "Usage: %s %s\n\n", set->program, set->synopsis);
    wrap(out, set->about, 0, 0);
    mc_buf_puts(out, "\n\nOptions ('-' and '_' are the same; later ones win):\n");
    for (size_t i = 0; i < set->count; i++) {
        if (!is_deprecated(&set->options[i])) {
            help_option(&set->options[i], out);
        }
    }
    mc_buf_printf(out, "  %-*s%s\n", HELP_COLUMN - 2, "--help, --version",
                  "show this or the version, and exit");
    bool any = false;
    for (size_t i = 0; i < set->count; i++) {
        if (is_deprecated(&set->options[i])) {
            mc_buf_puts(out, any ? "" : "\nDeprecated:\n");
            help_option(&set->options[i], out);
            any = true;
        }
    }
    mc_buf_cstr(out);
}

static void markdown_cell(struct mc_buf *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            mc_buf_putc(out, '\\');
        }
        mc_buf_putc(out, *text == '\n' ? ' ' : *text);
    }
}

static void markdown_code(struct mc_buf *out, const char *text) {
    if (text[0] != '\0') {
        mc_buf_putc(out, '`');
        markdown_cell(out, text);
        mc_buf_putc(out, '`');
    }
}

void mc_options_markdown(const struct mc_option_set *set, struct mc_buf *out) {
    mc_buf_printf(out, "## `%s`\n\n%s\n\nUsage: `%s %s`\n\n", set->program, set->about,
                  set->program, set->synopsis);
    mc_buf_puts(out,
                "| Option | Value | Default | Environment | Meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < set->count; i++) {
        const struct mc_option *o = &set->options[i];
        struct mc_buf wanted = {0};
        mc_buf_printf(out, "| `--%s`", o->name);
        if (o->alias != NULL) {
            mc_buf_printf(out, ", `--%s`", o->alias);
        }
        mc_buf_puts(out, " | ");
        mc_option_describe(o, &wanted);
        markdown_cell(out, wanted.data);
        mc_buf_puts(out, " | ");
        markdown_code(out, default_of(o));
        mc_buf_puts(out, " | ");
        markdown_code(out, o->env != NULL ? o->env : "");
        mc_buf_puts(out, " | ");
        markdown_cell(out, o->doc);
        mc_buf_puts(out, " |\n");
        mc_buf_free(&wanted);
    }
    mc_buf_puts(out, "\n");
    mc_buf_cstr(out);
}
