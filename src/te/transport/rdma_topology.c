/*
 * Where NICs are: what the engine knows of the machine (te/topology.c), as distances for it and as
 * the priority matrix for peers. NICs that it does not know (its matrix names none of ours, say
 * because hwloc sees no virtual devices) are placed by the NUMA node that the driver names.
 */
#include <jansson.h>
#include <stdio.h>

#include "te/transport/rdma.h"
#include "topo/topo.h"

#define FAR_PERCENT       20 /* at another NUMA node, as far as the driver tells */
#define AVAILABLE_PERCENT 50 /* a NIC that the matrix has only for want of others */

static bool names_ours(const struct rdma_transport *t, const struct mc_topo_matrix *matrix) {
    for (unsigned i = 0; i < t->context_count; i++) {
        for (size_t e = 0; e < matrix->count; e++) {
            if (mc_topo_matrix_rank(matrix, matrix->entries[e].location, t->contexts[i]->name) >=
                0) {
                return true;
            }
        }
    }
    return false;
}

/* Looking at the whole machine takes a while; it says nothing of devices that are not on PCI,
 * unless the user does. */
static bool worth_asking(const struct rdma_transport *t) {
    const char *custom = getenv("MC_CUSTOM_TOPO_JSON");
    bool worth = custom != NULL && custom[0] != '\0';
    for (unsigned i = 0; i < t->context_count; i++) {
        worth |= t->contexts[i]->info.pci[0] != '\0';
    }
    return worth;
}

void rdma_topology_open(struct rdma_transport *t) {
    const struct mc_topo *topo = NULL;
    const struct mc_topo_matrix *matrix = NULL;
    if (worth_asking(t) && mc_engine_topo(t->base.engine, &topo, &matrix) == MC_OK &&
        names_ours(t, matrix)) {
        t->topo = topo;
        t->matrix = matrix;
    }
}

/* ---- distances ---- */

static int node_of(const char *location) {
    uint64_t node;
    return strncmp(location, "cpu:", 4) == 0 && mc_parse_u64(location + 4, 0, 4095, &node) == MC_OK
               ? (int)node
               : -1;
}

uint32_t rdma_topology_distance(const struct rdma_context *context, const char *location) {
    const struct rdma_transport *t = context->transport;
    if (t->matrix == NULL) {
        int here = context->info.numa_node, there = node_of(location);
        return here < 0 || there < 0 || here == there ? 0 : FAR_PERCENT;
    }
    uint32_t percent = 0, hops = 0;
    const struct mc_topo_device *device = mc_topo_find(t->topo, context->name);
    if (device != NULL) {
        enum mc_topo_near near = mc_topo_nearness_to(t->topo, device, location, &hops);
        percent = mc_topo_penalty(near, hops);
    }
    bool preferred = mc_topo_matrix_rank(t->matrix, location, context->name) == 0;
    return preferred || strcmp(location, "*") == 0
               ? percent
               : (uint32_t)mc_max_u64(percent, AVAILABLE_PERCENT);
}

/* ---- the matrix for peers ---- */

/* NICs at the location's NUMA node are preferred, the others available. */
static void add_row(const struct rdma_transport *t, json_t *matrix, const char *location,
                    int node) {
    json_t *preferred = json_array(), *available = json_array();
    for (unsigned i = 0; i < t->context_count; i++) {
        int at = t->contexts[i]->info.numa_node;
        json_t *list = node < 0 || at < 0 || at == node ? preferred : available;
        json_array_append_new(list, json_string(t->contexts[i]->name));
    }
    json_object_set_new(matrix, location, json_pack("[o, o]", preferred, available));
}

static json_t *matrix_of_drivers(const struct rdma_transport *t) {
    json_t *matrix = json_object();
    char location[24];
    add_row(t, matrix, "*", -1);
    add_row(t, matrix, "cpu:0", 0);
    for (unsigned i = 0; i < t->context_count; i++) {
        if (t->contexts[i]->info.numa_node > 0) {
            snprintf(location, sizeof(location), "cpu:%d", t->contexts[i]->info.numa_node);
            add_row(t, matrix, location, t->contexts[i]->info.numa_node);
        }
    }
    return matrix;
}

void *rdma_topology_json(const struct rdma_transport *t) {
    if (t->matrix == NULL) {
        return matrix_of_drivers(t);
    }
    struct mc_buf text = {0};
    mc_topo_matrix_print(t->matrix, false, &text);
    json_t *matrix = json_loadb(text.data, text.len, 0, NULL);
    mc_buf_free(&text);
    MC_ASSERT(matrix != NULL);
    return matrix;
}

bool rdma_topology_wants(const char *nic) {
    const char *only = getenv("MC_TE_FILTERS");
    if (only == NULL || only[0] == '\0') {
        only = getenv("MC_MS_FILTERS");
    }
    const struct mc_topo_filters filters = {only, getenv("MC_TE_FILTERS_EXCLUDE")};
    return mc_topo_filters_allow(&filters, nic);
}
