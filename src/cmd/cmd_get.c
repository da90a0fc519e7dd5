/*
 * `mooncake get KEY [FILE]`: writes an object to a file, or to standard output.
 */
#include "cmd/cmd.h"

#include <errno.h>
#include <stdio.h>

struct get_options {
    struct mc_cluster_options cluster;
};

static const struct mc_option table[] = {MC_CLUSTER_OPTIONS(struct get_options)};

const struct mc_option_set mc_get_options = {
    .program = "mooncake get",
    .synopsis = "[options] KEY [FILE]",
    .about = "Writes an object to a file (or to standard output). Nothing is written unless the "
             "whole object was read.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

/* The object may be replaced by another size between the question and the read; then it is asked
 * again. */
static enum mc_status read_object(struct mc_store *store, const char *key, struct mc_buf *out) {
    enum mc_status status = MC_BUFFER_OVERFLOW;
    for (int attempt = 0; attempt < 5 && status == MC_BUFFER_OVERFLOW; attempt++) {
        uint64_t size = 0;
        MC_TRY(mc_store_size(store, key, &size));
        mc_buf_clear(out);
        mc_buf_reserve(out, size);
        size_t length = 0;
        status = mc_store_get(store, key, out->data, size, &length);
        out->len = status == MC_OK ? length : 0;
    }
    return status;
}

static int write_out(const char *path, const struct mc_buf *value) {
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "we");
    bool good = file != NULL && fwrite(value->data, 1, value->len, file) == value->len;
    if (file != NULL) {
        good = (to_stdout ? fflush(file) : fclose(file)) == 0 && good;
    }
    return good ? 0
                : mc_cmd_fail("mooncake get", MC_EXIT_FAILED, "%s cannot be written: %s", path,
                              strerror(errno));
}

int mc_cmd_get(int argc, char **argv) {
    struct get_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_get_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_store *store;
    if (result.positional_count < 1 || result.positional_count > 2) {
        exit_status =
            mc_cmd_fail("mooncake get", MC_EXIT_USAGE, "a key and at most one file are expected");
    } else if (mc_cmd_open_store("mooncake get", &options.cluster, &store) != MC_OK) {
        exit_status = MC_EXIT_FAILED;
    } else {
        struct mc_buf value = {0};
        const char *key = result.positional[0];
        enum mc_status status = read_object(store, key, &value);
        mc_store_close(store);
        exit_status =
            status == MC_OK
                ? write_out(result.positional_count == 2 ? result.positional[1] : "-", &value)
                : mc_cmd_fail("mooncake get", MC_EXIT_FAILED, "%s: %s (%s)", key,
                              mc_status_text(status), mc_status_name(status));
        mc_buf_free(&value);
    }
    mc_options_free(&result);
    return exit_status;
}
