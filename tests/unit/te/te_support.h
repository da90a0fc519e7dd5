/* What tests of the engine share. */
#ifndef MC_TESTS_TE_SUPPORT_H
#define MC_TESTS_TE_SUPPORT_H

#include <stdlib.h>

#include "mooncake/transfer.h"
#include "support/support.h"
#include "te/te.h"

/* The value of a metric by the beginning of its line ("name{labels}"), or -1. */
static inline int64_t te_counter(struct mc_engine *engine, const char *line_start) {
    char *text = mc_engine_metrics(engine);
    size_t len = strlen(line_start);
    int64_t value = -1;
    for (const char *at = text; at != NULL && *at != '\0';) {
        if (strncmp(at, line_start, len) == 0 && at[len] == ' ') {
            value = strtoll(at + len, NULL, 10);
        }
        at = strchr(at, '\n');
        at = at == NULL ? NULL : at + 1;
    }
    free(text);
    return value;
}

#endif
