/*
 * What the engine knows of the machine: read when a transport or the application first asks, for
 * looking at the PCI tree takes longer than an engine that needs none of it takes to start. A
 * priority matrix that the user gave is read at the start, and an unusable one stops it: nobody
 * should find out from a bandwidth that his file was ignored.
 */
#include <stdlib.h>

#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"
#include "topo/topo.h"

#define CUSTOM_FILE "MC_CUSTOM_TOPO_JSON"

enum mc_status mc_topology_init(struct mc_engine *engine) {
    const char *path = getenv(CUSTOM_FILE);
    struct mc_buf error = {0};
    if (path == NULL || path[0] == '\0') {
        return MC_OK;
    }
    enum mc_status status = mc_topo_matrix_read(path, &engine->matrix, &error);
    if (status != MC_OK) {
        mc_error("the topology that " CUSTOM_FILE " names cannot be used: %s", mc_buf_cstr(&error));
    }
    mc_buf_free(&error);
    return status;
}

void mc_topology_destroy(struct mc_engine *engine) {
    mc_topo_free(engine->topo);
    mc_topo_matrix_free(engine->matrix);
    pthread_mutex_destroy(&engine->topo_lock);
}

static void warn_unknown(const struct mc_topo *topo, const struct mc_topo_matrix *matrix) {
    for (size_t i = 0; i < matrix->count; i++) {
        const struct mc_topo_entry *entry = &matrix->entries[i];
        for (int list = 0; list < 2; list++) {
            for (size_t n = 0; n < entry->count[list]; n++) {
                if (mc_topo_find(topo, entry->names[list][n]) == NULL) {
                    mc_warn("the topology that " CUSTOM_FILE
                            " names has a card that this machine does not: location=%s card=%s",
                            entry->location, entry->names[list][n]);
                }
            }
        }
    }
}

static enum mc_status discover_locked(struct mc_engine *engine) {
    if (engine->topo != NULL) {
        return MC_OK;
    }
    MC_TRY(mc_topo_discover(&(struct mc_topo_source){NULL, NULL}, &engine->topo));
    if (engine->matrix != NULL) {
        warn_unknown(engine->topo, engine->matrix);
        return MC_OK;
    }
    const char *only = getenv("MC_TE_FILTERS");
    const struct mc_topo_filters filters = {
        only != NULL && only[0] != '\0' ? only : getenv("MC_MS_FILTERS"),
        getenv("MC_TE_FILTERS_EXCLUDE")};
    engine->matrix = mc_topo_matrix_make(engine->topo, &filters);
    return MC_OK;
}

enum mc_status mc_engine_topo(struct mc_engine *engine, const struct mc_topo **topo,
                              const struct mc_topo_matrix **matrix) {
    pthread_mutex_lock(&engine->topo_lock);
    enum mc_status status = discover_locked(engine);
    pthread_mutex_unlock(&engine->topo_lock);
    if (status == MC_OK) {
        *topo = engine->topo;
        *matrix = engine->matrix;
    }
    return status;
}

MC_PUBLIC char *mc_engine_topology(struct mc_engine *engine) {
    const struct mc_topo *topo;
    const struct mc_topo_matrix *matrix;
    struct mc_buf text = {0};
    if (mc_engine_topo(engine, &topo, &matrix) != MC_OK) {
        return NULL;
    }
    mc_topo_matrix_print(matrix, false, &text);
    (void)mc_buf_cstr(&text);
    return text.data;
}
