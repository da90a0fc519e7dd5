/*
 * The priority matrix: made from a topology, read from upstream's JSON, printed as it.
 *
 * For a NUMA node the cards at that node are preferred, as upstream has it. For a GPU those at the
 * least distance are: below the same switch before the same root complex before the same node; so
 * eight GPUs with a card each get a card each. When nothing is known (NUMA -1), nothing is
 * preferred and all cards are available.
 */
#include <jansson.h>
#include <stdio.h>

#include "base/log.h"
#include "topo/private.h"

#define LOCATIONS_MAX 4096
#define CARDS_MAX     256
#define FILE_MAX      (1u << 20)

enum { PREFERRED, AVAILABLE };

/* ---- filters ---- */

static bool list_has(const char *list, const char *name) {
    size_t len = strlen(name);
    for (const char *at = list; at != NULL && *at != '\0';) {
        at += strspn(at, " \t");
        size_t word = strcspn(at, ",");
        const char *next = at[word] == ',' ? at + word + 1 : NULL;
        while (word > 0 && (at[word - 1] == ' ' || at[word - 1] == '\t')) {
            word--;
        }
        if (word == len && memcmp(at, name, len) == 0) {
            return true;
        }
        at = next;
    }
    return false;
}

bool mc_topo_filters_allow(const struct mc_topo_filters *filters, const char *name) {
    if (filters->only != NULL && filters->only[0] != '\0') {
        return list_has(filters->only, name);
    }
    return filters->except == NULL || !list_has(filters->except, name);
}

/* ---- making ---- */

static void add_name(struct mc_topo_entry *entry, int list, const char *name) {
    entry->names[list] =
        mc_realloc(entry->names[list], (entry->count[list] + 1) * sizeof(*entry->names[list]));
    topo_text(entry->names[list][entry->count[list]++], MC_TOPO_NAME_MAX, name);
}

/* Smaller is nearer; UINT64_MAX: nothing is known. */
static uint64_t rank_of(enum mc_topo_near near, uint32_t hops) {
    return near == MC_TOPO_UNKNOWN ? UINT64_MAX : (uint64_t)near << 32 | hops;
}

static bool serves(const struct mc_topo_device *d, const struct mc_topo_filters *filters) {
    return d->kind == MC_TOPO_NIC && d->rdma && d->up && mc_topo_filters_allow(filters, d->name);
}

static void fill_entry(const struct mc_topo *topo, const struct mc_topo_filters *filters,
                       bool nearest, struct mc_topo_entry *entry) {
    uint64_t best = rank_of(MC_TOPO_SAME, UINT32_MAX); /* of host memory: its own node only */
    uint32_t hops;
    if (nearest) {
        best = UINT64_MAX - 1;
        for (size_t i = 0; i < topo->device_count; i++) {
            const struct mc_topo_device *d = &topo->devices[i];
            if (serves(d, filters)) {
                enum mc_topo_near near = mc_topo_nearness_to(topo, d, entry->location, &hops);
                best = mc_min_u64(best, rank_of(near, hops));
            }
        }
    }
    for (size_t i = 0; i < topo->device_count; i++) {
        const struct mc_topo_device *d = &topo->devices[i];
        if (serves(d, filters)) {
            enum mc_topo_near near = mc_topo_nearness_to(topo, d, entry->location, &hops);
            add_name(entry, rank_of(near, hops) <= best ? PREFERRED : AVAILABLE, d->name);
        }
    }
}

static int by_location(const void *a, const void *b) {
    return strcmp(((const struct mc_topo_entry *)a)->location,
                  ((const struct mc_topo_entry *)b)->location);
}

static struct mc_topo_entry *add_entry(struct mc_topo_matrix *matrix, const char *location) {
    matrix->entries = mc_realloc(matrix->entries, (matrix->count + 1) * sizeof(*matrix->entries));
    struct mc_topo_entry *entry = &matrix->entries[matrix->count++];
    *entry = (struct mc_topo_entry){0};
    topo_text(entry->location, sizeof(entry->location), location);
    return entry;
}

struct mc_topo_matrix *mc_topo_matrix_make(const struct mc_topo *topo,
                                           const struct mc_topo_filters *filters) {
    struct mc_topo_matrix *matrix = mc_zalloc(sizeof(*matrix));
    char location[MC_TOPO_NAME_MAX];
    for (size_t i = 0; i < topo->node_count; i++) {
        snprintf(location, sizeof(location), "cpu:%d", topo->nodes[i].number);
        fill_entry(topo, filters, false, add_entry(matrix, location));
    }
    for (size_t i = 0; i < topo->device_count; i++) {
        if (topo->devices[i].kind == MC_TOPO_GPU) {
            fill_entry(topo, filters, true, add_entry(matrix, topo->devices[i].name));
        }
    }
    qsort(matrix->entries, matrix->count, sizeof(*matrix->entries), by_location);
    return matrix;
}

/* ---- reading ---- */

static bool read_name(const json_t *value, char out[MC_TOPO_NAME_MAX]) {
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    if (text == NULL || len == 0 || len >= MC_TOPO_NAME_MAX || memchr(text, 0, len) != NULL) {
        return false;
    }
    topo_text(out, MC_TOPO_NAME_MAX, text);
    return true;
}

static enum mc_status read_list(struct mc_topo_entry *entry, int list, const json_t *value,
                                struct mc_buf *error) {
    static const char *const words[] = {"preferred", "available"};
    char name[MC_TOPO_NAME_MAX];
    if (!json_is_array(value) || json_array_size(value) > CARDS_MAX) {
        mc_buf_printf(error, "\"%s\": the %s cards are not a list of at most %d", entry->location,
                      words[list], CARDS_MAX);
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (!read_name(json_array_get(value, i), name)) {
            mc_buf_printf(error, "\"%s\": number %zu of the %s cards is not a name",
                          entry->location, i + 1, words[list]);
            return MC_INVALID_PARAMS;
        }
        add_name(entry, list, name);
    }
    return MC_OK;
}

static enum mc_status read_entry(struct mc_topo_matrix *matrix, const char *key,
                                 const json_t *value, struct mc_buf *error) {
    if (key[0] == '\0' || strlen(key) >= MC_TOPO_NAME_MAX) {
        mc_buf_printf(error, "\"%.80s\" is not the name of a location", key);
        return MC_INVALID_PARAMS;
    }
    if (!json_is_array(value) || json_array_size(value) != 2) {
        mc_buf_printf(
            error, "\"%s\": not a list of two lists, the preferred and the available cards", key);
        return MC_INVALID_PARAMS;
    }
    struct mc_topo_entry *entry = add_entry(matrix, key);
    MC_TRY(read_list(entry, PREFERRED, json_array_get(value, 0), error));
    return read_list(entry, AVAILABLE, json_array_get(value, 1), error);
}

static enum mc_status read_matrix(json_t *root, struct mc_topo_matrix *matrix,
                                  struct mc_buf *error) {
    const char *key;
    json_t *value;
    if (!json_is_object(root) || json_object_size(root) > LOCATIONS_MAX) {
        mc_buf_printf(error, "not an object of at most %d locations", LOCATIONS_MAX);
        return MC_INVALID_PARAMS;
    }
    json_object_foreach(root, key, value) {
        MC_TRY(read_entry(matrix, key, value, error));
    }
    if (matrix->count > 0) {
        qsort(matrix->entries, matrix->count, sizeof(*matrix->entries), by_location);
    }
    return MC_OK;
}

enum mc_status mc_topo_matrix_parse(struct mc_str json, struct mc_topo_matrix **out,
                                    struct mc_buf *error) {
    json_error_t where;
    json_t *root =
        json_loadb(json.ptr != NULL ? json.ptr : "", json.len, JSON_REJECT_DUPLICATES, &where);
    if (root == NULL) {
        mc_buf_printf(error, "line %d, column %d: %s", where.line, where.column, where.text);
        return MC_INVALID_PARAMS;
    }
    struct mc_topo_matrix *matrix = mc_zalloc(sizeof(*matrix));
    enum mc_status status = read_matrix(root, matrix, error);
    json_decref(root);
    if (status != MC_OK) {
        mc_topo_matrix_free(matrix);
        return status;
    }
    *out = matrix;
    return MC_OK;
}

enum mc_status mc_topo_matrix_read(const char *path, struct mc_topo_matrix **out,
                                   struct mc_buf *error) {
    struct mc_buf text = {0}, why = {0};
    enum mc_status status = mc_text_file_read(path, FILE_MAX, &text, &why);
    mc_buf_printf(error, "%s: ", path);
    if (status != MC_OK) {
        mc_buf_puts(error, why.data);
    } else {
        status = mc_topo_matrix_parse((struct mc_str){text.data, text.len}, out, error);
    }
    mc_buf_free(&text);
    mc_buf_free(&why);
    if (status == MC_OK) {
        mc_buf_clear(error);
    }
    return status;
}

/* ---- printing and asking ---- */

static json_t *list_json(const struct mc_topo_entry *entry, int list) {
    json_t *names = json_array();
    for (size_t i = 0; i < entry->count[list]; i++) {
        json_array_append_new(names, json_string(entry->names[list][i]));
    }
    return names;
}

void mc_topo_matrix_print(const struct mc_topo_matrix *matrix, bool pretty, struct mc_buf *out) {
    json_t *root = json_object();
    for (size_t i = 0; i < matrix->count; i++) {
        const struct mc_topo_entry *entry = &matrix->entries[i];
        json_object_set_new(
            root, entry->location,
            json_pack("[o, o]", list_json(entry, PREFERRED), list_json(entry, AVAILABLE)));
    }
    char *text = json_dumps(root, pretty ? JSON_INDENT(4) : JSON_COMPACT);
    MC_ASSERT(text != NULL);
    mc_buf_puts(out, text);
    free(text);
    json_decref(root);
}

static bool entry_has(const struct mc_topo_entry *entry, int list, const char *name) {
    for (size_t i = 0; i < entry->count[list]; i++) {
        if (strcmp(entry->names[list][i], name) == 0) {
            return true;
        }
    }
    return false;
}

int mc_topo_matrix_rank(const struct mc_topo_matrix *matrix, const char *location,
                        const char *name) {
    bool anywhere = false;
    for (size_t i = 0; i < matrix->count; i++) {
        const struct mc_topo_entry *entry = &matrix->entries[i];
        if (strcmp(entry->location, location) == 0) {
            return entry_has(entry, PREFERRED, name)   ? 0
                   : entry_has(entry, AVAILABLE, name) ? 1
                                                       : -1;
        }
        anywhere |= entry_has(entry, PREFERRED, name) || entry_has(entry, AVAILABLE, name);
    }
    return anywhere ? 1 : -1;
}

void mc_topo_matrix_free(struct mc_topo_matrix *matrix) {
    for (size_t i = 0; matrix != NULL && i < matrix->count; i++) {
        free(matrix->entries[i].names[PREFERRED]);
        free(matrix->entries[i].names[AVAILABLE]);
    }
    if (matrix != NULL) {
        free(matrix->entries);
    }
    free(matrix);
}
