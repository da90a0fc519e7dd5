/*
 * How near two devices are. The classes follow what traffic crosses: nothing but a PCI switch, the
 * root complex, the links between root complexes of one node, the links between sockets. A device
 * whose NUMA node the firmware does not tell (numa_node -1) on a machine of several nodes is
 * UNKNOWN to everything it shares no bridge with: neither near nor far is claimed.
 */
#include <stdio.h>

#include "topo/private.h"

static const char *const names[] = {
    [MC_TOPO_SAME] = "same", [MC_TOPO_SWITCH] = "switch", [MC_TOPO_ROOT] = "root",
    [MC_TOPO_NODE] = "node", [MC_TOPO_SYSTEM] = "system", [MC_TOPO_UNKNOWN] = "unknown",
};

const char *mc_topo_near_name(enum mc_topo_near near) {
    return names[near];
}

/* Index of a node by its number; node_count when there is none. */
static size_t node_index(const struct mc_topo *topo, int number) {
    size_t i = 0;
    while (i < topo->node_count && topo->nodes[i].number != number) {
        i++;
    }
    return i;
}

static enum mc_topo_near between_nodes(const struct mc_topo *topo, int a, int b, uint32_t *hops) {
    size_t i = node_index(topo, a), j = node_index(topo, b);
    if (i == topo->node_count || j == topo->node_count) {
        *hops = 0;
        return MC_TOPO_UNKNOWN;
    }
    *hops = topo->node_distances[i * topo->node_count + j];
    return i == j ? MC_TOPO_NODE : MC_TOPO_SYSTEM;
}

enum mc_topo_near mc_topo_nearness(const struct mc_topo *topo, const struct mc_topo_device *a,
                                   const struct mc_topo_device *b, uint32_t *hops_out) {
    uint32_t unused, *hops = hops_out != NULL ? hops_out : &unused;
    unsigned shared = 0;
    *hops = 0;
    if (a == b) {
        return MC_TOPO_SAME;
    }
    while (shared < a->path_length && shared < b->path_length &&
           a->path[shared] == b->path[shared]) {
        shared++;
    }
    if (shared == 0) {
        return between_nodes(topo, a->numa_node, b->numa_node, hops);
    }
    *hops = a->path_length - shared + b->path_length - shared;
    /* The first bridge of a path is the root complex; a cut path may lack it. */
    bool below_switch = shared > 1 || a->path_length == MC_TOPO_PATH_MAX;
    return below_switch ? MC_TOPO_SWITCH : MC_TOPO_ROOT;
}

enum mc_topo_near mc_topo_nearness_to(const struct mc_topo *topo,
                                      const struct mc_topo_device *device, const char *location,
                                      uint32_t *hops_out) {
    uint32_t unused, *hops = hops_out != NULL ? hops_out : &unused;
    uint64_t node;
    *hops = 0;
    if (strncmp(location, "cpu:", 4) == 0 &&
        mc_parse_u64(location + 4, 0, INT32_MAX, &node) == MC_OK) {
        enum mc_topo_near near = between_nodes(topo, device->numa_node, (int)node, hops);
        return near == MC_TOPO_NODE ? MC_TOPO_SAME : near;
    }
    const struct mc_topo_device *other = mc_topo_find(topo, location);
    return other == NULL ? MC_TOPO_UNKNOWN : mc_topo_nearness(topo, device, other, hops);
}

uint32_t mc_topo_penalty(enum mc_topo_near near, uint32_t hops) {
    /* Rough: root complexes forward between ports at three quarters of a link, and sockets share
     * theirs with everything else. The scheduler measures; this only orders the beginning. */
    enum { ROOT = 25, NODE = 40, SYSTEM_MIN = 50, LOCAL = 10, PER_DISTANCE = 5, CAP = 200 };
    switch (near) {
    case MC_TOPO_SAME:
    case MC_TOPO_SWITCH:
        return 0;
    case MC_TOPO_ROOT:
        return ROOT;
    case MC_TOPO_NODE:
        return NODE;
    case MC_TOPO_SYSTEM:
        return (uint32_t)mc_min_u64(
            CAP, SYSTEM_MIN + (hops > 2 * LOCAL ? (hops - 2 * LOCAL) * PER_DISTANCE : 0));
    default:
        return SYSTEM_MIN;
    }
}
