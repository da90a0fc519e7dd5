/*
 * `mooncake topo`: what this machine (or one whose hwloc XML is at hand) is made of, and which
 * network cards serve which memory.
 */
#include "cmd/cmd.h"
#include "cmd/topo_draw.h"
#include "topo/topo.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct topo_options {
    bool json;
    const char *svg, *xml, *sysfs, *only, *except, *matrix;
};

#define OPT(...) MC_OPTION(struct topo_options, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(BOOL, json, .doc = "print the priority matrix as upstream's JSON and nothing else"),
    OPT(STRING, svg, .doc = "write a drawing to this file"),
    OPT(STRING, only, .env = "MC_TE_FILTERS",
        .doc = "network cards to use, separated by commas; empty = all"),
    OPT(STRING, except, .env = "MC_TE_FILTERS_EXCLUDE",
        .doc = "network cards not to use; does not count when `only` is given"),
    OPT(STRING, matrix, .env = "MC_CUSTOM_TOPO_JSON",
        .doc = "file with a priority matrix to use instead of the one made here; it is checked"),
    OPT(STRING, xml, .doc = "hwloc's XML of another machine (lstopo FILE.xml) instead of this one"),
    OPT(STRING, sysfs, .doc = "copy of that machine's /sys, for the state of its network cards"),
};

const struct mc_option_set mc_topo_options = {
    .program = "mooncake topo",
    .synopsis = "[options]",
    .about = "Shows NUMA nodes, network cards, GPUs and NVMe drives, how near they are to each "
             "other, and the priority matrix that the Transfer Engine uses.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static int write_file(const char *path, const struct mc_buf *text) {
    FILE *file = fopen(path, "we");
    bool good = file != NULL && fwrite(text->data, 1, text->len, file) == text->len;
    if (file != NULL && fclose(file) != 0) {
        good = false;
    }
    return good ? 0 : mc_cmd_fail("topo", MC_EXIT_FAILED, "%s cannot be written", path);
}

/* NULL after saying why. */
static struct mc_topo_matrix *get_matrix(const struct topo_options *o, const struct mc_topo *topo) {
    const struct mc_topo_filters filters = {o->only, o->except};
    struct mc_topo_matrix *matrix = NULL;
    struct mc_buf error = {0};
    if (o->matrix[0] == '\0') {
        return mc_topo_matrix_make(topo, &filters);
    }
    if (mc_topo_matrix_read(o->matrix, &matrix, &error) != MC_OK) {
        mc_cmd_fail("topo", 0, "%s", mc_buf_cstr(&error));
    }
    mc_buf_free(&error);
    return matrix;
}

static int show(const struct topo_options *o, const struct mc_topo *topo) {
    struct mc_topo_matrix *matrix = get_matrix(o, topo);
    struct mc_buf text = {0}, picture = {0};
    int exit_status = 0;
    if (matrix == NULL) {
        return MC_EXIT_FAILED;
    }
    if (o->json) {
        mc_topo_matrix_print(matrix, true, &text);
        mc_buf_puts(&text, "\n");
    } else {
        mc_topo_draw_text(topo, matrix, &text);
    }
    fwrite(text.data, 1, text.len, stdout);
    if (o->svg[0] != '\0') {
        mc_topo_draw_svg(topo, &picture);
        exit_status = write_file(o->svg, &picture);
    }
    mc_buf_free(&text);
    mc_buf_free(&picture);
    mc_topo_matrix_free(matrix);
    return exit_status;
}

int mc_cmd_topo(int argc, char **argv) {
    struct topo_options o;
    struct mc_option_result result;
    struct mc_topo *topo = NULL;
    int exit_status = 0;
    if (!mc_cmd_parse_no_words(&mc_topo_options, argc, argv, &o, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_topo_source source = {o.xml[0] != '\0' ? o.xml : NULL,
                                    o.sysfs[0] != '\0' ? o.sysfs : NULL};
    enum mc_status status = MC_OK;
    if (source.sysfs != NULL && access(source.sysfs, X_OK) != 0) {
        exit_status = mc_cmd_fail("topo", MC_EXIT_FAILED, "%s cannot be read: %s", source.sysfs,
                                  strerror(errno));
    } else if ((status = mc_topo_discover(&source, &topo)) != MC_OK) {
        exit_status = mc_cmd_fail("topo", MC_EXIT_FAILED, "the topology cannot be read: %s",
                                  mc_status_text(status));
    } else {
        exit_status = show(&o, topo);
    }
    mc_topo_free(topo);
    mc_options_free(&result);
    return exit_status;
}
