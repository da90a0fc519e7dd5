/*
 * The machine by hwloc, or by an XML that hwloc wrote elsewhere.
 *
 * hwloc shows a tree in which every PCI function hangs below its bridges, and operating system
 * devices below their function. Of it we keep, for each network card, GPU and drive, the list of
 * bridges above it: two devices whose lists begin alike meet at the last bridge they share. GPUs
 * are numbered by PCI address within a vendor, or as their runtime numbers them when an XML says
 * so.
 */
#include <hwloc.h>
#include <pthread.h>
#include <stdio.h>

#include "base/log.h"
#include "topo/private.h"

#define CLASS_DISPLAY     0x03
#define CLASS_ACCELERATOR 0x12
#define LOCAL_DISTANCE    10
#define REMOTE_DISTANCE   20 /* when the firmware says nothing */

static const struct {
    unsigned short vendor;
    const char *runtime; /* of upstream's location names */
} gpu_vendors[] = {{0x10de, "cuda"}, {0x1002, "hip"}, {0x1ed5, "musa"}, {0x9999, "maca"}};

/* Parts of hwloc that ask other libraries: of GPU vendors, which may start a runtime and a context
 * in the process, and of PCI, which reads a database of names that nobody needs. The kernel's files
 * say enough without them. */
static const char *const not_asked[] = {"pci", "opencl", "gl", "cuda", "nvml", "rsmi", "levelzero"};

void topo_text(char *out, size_t size, const char *text) {
    snprintf(out, size, "%s", text);
}

struct mc_topo_device *topo_device_add(struct mc_topo *topo) {
    if (topo->device_count == MC_TOPO_DEVICES_MAX) {
        mc_error("this machine has too many devices limit=%d", MC_TOPO_DEVICES_MAX);
        return NULL;
    }
    topo->devices = mc_realloc(topo->devices, (topo->device_count + 1) * sizeof(*topo->devices));
    struct mc_topo_device *device = &topo->devices[topo->device_count++];
    *device = (struct mc_topo_device){.numa_node = -1, .up = true};
    return device;
}

/* ---- where a device is ---- */

static void find_place(hwloc_topology_t hw, hwloc_obj_t object, struct mc_topo_device *device) {
    uint64_t upwards[MC_TOPO_PATH_MAX];
    hwloc_obj_t at = object;
    while (at != NULL && at->type != HWLOC_OBJ_PCI_DEVICE && at->type != HWLOC_OBJ_BRIDGE) {
        at = at->io_arity > 0 || at->type == HWLOC_OBJ_OS_DEVICE ? at->parent : NULL;
    }
    if (at != NULL && at->type == HWLOC_OBJ_PCI_DEVICE) {
        const struct hwloc_pcidev_attr_s *pci = &at->attr->pcidev;
        snprintf(device->pci, sizeof(device->pci), "%04x:%02x:%02x.%x", pci->domain & 0xffffu,
                 pci->bus, pci->dev & 0x1fu, pci->func & 0x7u);
        at = at->parent;
    }
    while (at != NULL && at->type == HWLOC_OBJ_BRIDGE && device->path_length < MC_TOPO_PATH_MAX) {
        upwards[device->path_length++] = at->gp_index;
        at = at->parent;
    }
    for (unsigned i = 0; i < device->path_length; i++) {
        device->path[i] = upwards[device->path_length - 1 - i];
    }
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(hw, object);
    if (near != NULL && near->nodeset != NULL && hwloc_bitmap_weight(near->nodeset) == 1) {
        device->numa_node = hwloc_bitmap_first(near->nodeset);
    }
}

static hwloc_obj_t pci_above(hwloc_obj_t object) {
    while (object != NULL && object->type != HWLOC_OBJ_PCI_DEVICE) {
        object = object->parent;
    }
    return object;
}

/* The first operating system device of a type below the same PCI function; NULL when none. */
static hwloc_obj_t sibling(hwloc_obj_t object, hwloc_obj_osdev_type_t type) {
    hwloc_obj_t pci = pci_above(object);
    hwloc_obj_t child = pci == NULL ? NULL : pci->io_first_child;
    while (child != NULL &&
           (child->type != HWLOC_OBJ_OS_DEVICE || child->attr->osdev.type != type)) {
        child = child->next_sibling;
    }
    return child;
}

/* ---- network cards and drives ---- */

/* hwloc's word about the ports of an RDMA card: "PortNState" is 4 when active. */
static bool port_is_active(hwloc_obj_t object) {
    bool said = false;
    for (unsigned i = 0; i < object->infos_count; i++) {
        unsigned port;
        char tail[8];
        if (sscanf(object->infos[i].name, "Port%u%7s", &port, tail) == 2 &&
            strcmp(tail, "State") == 0) {
            said = true;
            if (strcmp(object->infos[i].value, "4") == 0) {
                return true;
            }
        }
    }
    return !said;
}

static enum mc_status add_card(hwloc_topology_t hw, hwloc_obj_t object, struct mc_topo *topo) {
    bool rdma = object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
    if (!rdma && sibling(object, HWLOC_OBJ_OSDEV_OPENFABRICS) != NULL) {
        return MC_OK; /* shown as that card's interface */
    }
    struct mc_topo_device *card = topo_device_add(topo);
    if (card == NULL) {
        return MC_ERR_LIMIT;
    }
    hwloc_obj_t net = rdma ? sibling(object, HWLOC_OBJ_OSDEV_NETWORK) : object;
    card->kind = MC_TOPO_NIC;
    card->rdma = rdma;
    card->up = !rdma || port_is_active(object);
    topo_text(card->name, sizeof(card->name), object->name);
    topo_text(card->netdev, sizeof(card->netdev), net == NULL ? "" : net->name);
    find_place(hw, object, card);
    return MC_OK;
}

static enum mc_status add_drive(hwloc_topology_t hw, hwloc_obj_t object, struct mc_topo *topo) {
    if (strncmp(object->name, "nvme", 4) != 0) {
        return MC_OK;
    }
    struct mc_topo_device *drive = topo_device_add(topo);
    if (drive == NULL) {
        return MC_ERR_LIMIT;
    }
    drive->kind = MC_TOPO_NVME;
    topo_text(drive->name, sizeof(drive->name), object->name);
    find_place(hw, object, drive);
    return MC_OK;
}

static enum mc_status add_os_devices(hwloc_topology_t hw, struct mc_topo *topo) {
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_osdev(hw, object)) != NULL) {
        if (object->name == NULL) {
            continue;
        }
        switch (object->attr->osdev.type) {
        case HWLOC_OBJ_OSDEV_OPENFABRICS:
        case HWLOC_OBJ_OSDEV_NETWORK:
            MC_TRY(add_card(hw, object, topo));
            break;
        case HWLOC_OBJ_OSDEV_BLOCK:
            MC_TRY(add_drive(hw, object, topo));
            break;
        default:
            break;
        }
    }
    return MC_OK;
}

/* ---- GPUs ---- */

static const char *gpu_runtime(hwloc_obj_t pci) {
    unsigned base = pci->attr->pcidev.class_id >> 8;
    for (size_t i = 0; i < MC_ARRAY_LEN(gpu_vendors); i++) {
        if ((base == CLASS_DISPLAY || base == CLASS_ACCELERATOR) &&
            pci->attr->pcidev.vendor_id == gpu_vendors[i].vendor) {
            return gpu_vendors[i].runtime;
        }
    }
    return NULL; /* a console's, or nobody's */
}

/* The number of the runtime's, of a child named like "cuda3"; -1 when hwloc does not know. */
static int runtime_number(hwloc_obj_t pci, const char *runtime) {
    size_t len = strlen(runtime);
    uint64_t number;
    for (hwloc_obj_t child = pci->io_first_child; child != NULL; child = child->next_sibling) {
        if (child->name != NULL && strncmp(child->name, runtime, len) == 0 &&
            mc_parse_u64(child->name + len, 0, INT32_MAX, &number) == MC_OK) {
            return (int)number;
        }
    }
    return -1;
}

static int by_address(const void *a, const void *b) {
    const struct hwloc_pcidev_attr_s *x = &(*(const hwloc_obj_t *)a)->attr->pcidev;
    const struct hwloc_pcidev_attr_s *y = &(*(const hwloc_obj_t *)b)->attr->pcidev;
    uint64_t left = (uint64_t)x->domain << 24 | (uint64_t)x->bus << 16 | x->dev << 8 | x->func;
    uint64_t right = (uint64_t)y->domain << 24 | (uint64_t)y->bus << 16 | y->dev << 8 | y->func;
    return (left > right) - (left < right);
}

static enum mc_status add_gpus(hwloc_topology_t hw, struct mc_topo *topo) {
    hwloc_obj_t *gpus = mc_alloc(MC_TOPO_DEVICES_MAX * sizeof(hwloc_obj_t));
    unsigned next[MC_ARRAY_LEN(gpu_vendors)] = {0};
    size_t count = 0;
    hwloc_obj_t pci = NULL;
    while ((pci = hwloc_get_next_pcidev(hw, pci)) != NULL && count < MC_TOPO_DEVICES_MAX) {
        if (gpu_runtime(pci) != NULL) {
            gpus[count++] = pci;
        }
    }
    qsort(gpus, count, sizeof(hwloc_obj_t), by_address);
    for (size_t i = 0; i < count; i++) {
        struct mc_topo_device *gpu = topo_device_add(topo);
        if (gpu == NULL) {
            free(gpus);
            return MC_ERR_LIMIT;
        }
        const char *runtime = gpu_runtime(gpus[i]);
        unsigned vendor = 0;
        while (gpu_vendors[vendor].runtime != runtime) {
            vendor++;
        }
        int number = runtime_number(gpus[i], runtime);
        gpu->kind = MC_TOPO_GPU;
        snprintf(gpu->name, sizeof(gpu->name), "%s:%d", runtime,
                 number >= 0 ? number : (int)next[vendor]);
        next[vendor]++;
        find_place(hw, gpus[i], gpu);
    }
    free(gpus);
    return MC_OK;
}

/* ---- NUMA ---- */

static void read_distances(hwloc_topology_t hw, struct mc_topo *topo) {
    size_t n = topo->node_count;
    struct hwloc_distances_s *given = NULL;
    unsigned count = 1;
    for (size_t i = 0; i < n * n; i++) {
        topo->node_distances[i] = i / n == i % n ? LOCAL_DISTANCE : REMOTE_DISTANCE;
    }
    if (hwloc_distances_get_by_type(hw, HWLOC_OBJ_NUMANODE, &count, &given,
                                    HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
        count == 0) {
        return;
    }
    if (given->nbobjs == n) {
        for (size_t i = 0; i < n * n; i++) {
            size_t from = given->objs[i / n]->logical_index, to = given->objs[i % n]->logical_index;
            topo->node_distances[from * n + to] = (uint32_t)given->values[i];
        }
    }
    hwloc_distances_release(hw, given);
}

static enum mc_status add_nodes(hwloc_topology_t hw, struct mc_topo *topo) {
    int count = hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_NUMANODE);
    int packages = hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_PACKAGE);
    if (count <= 0 || count > MC_TOPO_NODES_MAX) {
        mc_error("number of NUMA nodes is out of range count=%d", count);
        return MC_ERR_LIMIT;
    }
    topo->packages = packages > 0 ? (unsigned)packages : 1;
    topo->node_count = (size_t)count;
    topo->nodes = mc_zalloc(topo->node_count * sizeof(*topo->nodes));
    topo->node_distances =
        mc_zalloc(topo->node_count * topo->node_count * sizeof(*topo->node_distances));
    for (unsigned i = 0; i < (unsigned)count; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(hw, HWLOC_OBJ_NUMANODE, i);
        topo->nodes[i].number = (int)node->os_index;
        topo->nodes[i].memory = node->attr->numanode.local_memory;
    }
    read_distances(hw, topo);
    return MC_OK;
}

/* ---- all of it ---- */

/* "cuda:2" before "cuda:10". */
static int by_kind_and_number(const void *a, const void *b) {
    const struct mc_topo_device *x = a, *y = b;
    if (x->kind != y->kind) {
        return (int)x->kind - (int)y->kind;
    }
    return strverscmp(x->name, y->name);
}

/* hwloc closes its plugins with the last topology and opens them again with the next, a quarter of
 * a discovery, though none is asked. One topology that is never ended keeps them open. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static hwloc_topology_t keeps_plugins; /* a registry: set once */

static void keep_plugins(void) {
    (void)hwloc_topology_init(&keeps_plugins);
}

static enum mc_status load(const struct mc_topo_source *source, hwloc_topology_t *out) {
    hwloc_topology_t hw;
    pthread_once(&once, keep_plugins);
    if (hwloc_topology_init(&hw) != 0) {
        mc_error("hwloc cannot start");
        return MC_ERR_IO;
    }
    hwloc_topology_set_io_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_ALL);
    for (size_t i = 0; i < MC_ARRAY_LEN(not_asked); i++) {
        hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, not_asked[i]);
    }
    if (source->xml != NULL && hwloc_topology_set_xml(hw, source->xml) != 0) {
        mc_error("not a topology of hwloc file=%s", source->xml);
        hwloc_topology_destroy(hw);
        return MC_FILE_OPEN_FAIL;
    }
    if (hwloc_topology_load(hw) != 0) {
        mc_error("hwloc cannot read the topology file=%s",
                 source->xml != NULL ? source->xml : "(this machine)");
        hwloc_topology_destroy(hw);
        return source->xml != NULL ? MC_FILE_OPEN_FAIL : MC_ERR_IO;
    }
    *out = hw;
    return MC_OK;
}

enum mc_status mc_topo_discover(const struct mc_topo_source *source, struct mc_topo **out) {
    hwloc_topology_t hw;
    MC_TRY(load(source, &hw));
    struct mc_topo *topo = mc_zalloc(sizeof(*topo));
    enum mc_status status = add_nodes(hw, topo);
    if (status == MC_OK) {
        status = add_os_devices(hw, topo);
    }
    if (status == MC_OK) {
        status = add_gpus(hw, topo);
    }
    hwloc_topology_destroy(hw);
    const char *sysfs = source->sysfs != NULL ? source->sysfs : source->xml == NULL ? "/sys" : NULL;
    if (status == MC_OK && sysfs != NULL) {
        status = topo_sysfs_read(topo, sysfs);
    }
    if (status != MC_OK) {
        mc_topo_free(topo);
        return status;
    }
    if (topo->device_count > 0) {
        qsort(topo->devices, topo->device_count, sizeof(*topo->devices), by_kind_and_number);
    }
    *out = topo;
    return MC_OK;
}

void mc_topo_free(struct mc_topo *topo) {
    if (topo != NULL) {
        free(topo->nodes);
        free(topo->node_distances);
        free(topo->devices);
        free(topo);
    }
}

const struct mc_topo_device *mc_topo_find(const struct mc_topo *topo, const char *name) {
    for (size_t i = 0; name[0] != '\0' && i < topo->device_count; i++) {
        const struct mc_topo_device *d = &topo->devices[i];
        if (strcmp(d->name, name) == 0 || strcmp(d->netdev, name) == 0 ||
            strcmp(d->pci, name) == 0) {
            return d;
        }
    }
    return NULL;
}
