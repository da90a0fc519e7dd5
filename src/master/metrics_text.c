/* Reading one value out of Prometheus text. See master/metrics_text.h. */
#include "master/metrics_text.h"

int64_t mc_metrics_text_value(const char *text, const char *name) {
    size_t len = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, len) == 0 && line[len] == ' ') {
            return strtoll(line + len + 1, NULL, 10);
        }
    }
    return 0;
}
