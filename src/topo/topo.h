/*
 * topo: what this machine is made of, as far as moving bytes cares: NUMA nodes, and network cards,
 * GPUs and NVMe drives with their place in the PCI tree. From hwloc and /sys; and the priority
 * matrix that says which network cards serve which memory, in upstream's JSON, in and out.
 *
 * Knowledge only: nothing here opens a device. A topology and a matrix are made once and then read
 * by any number of threads. May call base.
 */
#ifndef MC_TOPO_TOPO_H
#define MC_TOPO_TOPO_H

#include "base/base.h"

#define MC_TOPO_NAME_MAX    64
#define MC_TOPO_PATH_MAX    16   /* bridges above a device; deeper ones are cut at the top */
#define MC_TOPO_DEVICES_MAX 1024 /* of a machine */
#define MC_TOPO_NODES_MAX   1024

/* ---- the machine ---- */

enum mc_topo_kind { MC_TOPO_NIC, MC_TOPO_GPU, MC_TOPO_NVME };

struct mc_topo_device {
    enum mc_topo_kind kind;
    char name[MC_TOPO_NAME_MAX]; /* "mlx5_0"; "eth0" of a card without RDMA; "cuda:0"; "nvme0n1" */
    char netdev[32];             /* of a network card: its interface; "" = none */
    char pci[16];                /* "0000:3b:00.0"; "" = not on PCI */
    int numa_node;               /* number of the kernel's; -1 = unknown, or near several */
    bool rdma;                   /* of a network card: it speaks verbs */
    bool up;                     /* of a network card: a port has a link; others are up */
    uint64_t bandwidth;          /* of a network card: bytes a second; 0 = unknown */
    unsigned path_length;        /* bridges from the root complex down to the device */
    uint64_t path[MC_TOPO_PATH_MAX];
};

struct mc_topo_node {
    int number;
    uint64_t memory; /* bytes */
};

struct mc_topo {
    unsigned packages; /* sockets */
    size_t node_count;
    struct mc_topo_node *nodes;
    uint32_t *node_distances; /* [node_count * node_count], as the firmware says; 10 = local */
    size_t device_count;
    struct mc_topo_device *devices; /* by kind, then by number in the name */
};

/* Where to look. All NULL: this machine. */
struct mc_topo_source {
    const char *xml;   /* a file of hwloc's XML instead of the machine */
    const char *sysfs; /* instead of "/sys", for the state of network cards; with `xml` and without
                          this, the XML's word counts */
};

/* MC_FILE_OPEN_FAIL for an XML that cannot be used; MC_ERR_IO when hwloc fails; both logged.
 * MC_ERR_LIMIT. */
MC_MUST_USE enum mc_status mc_topo_discover(const struct mc_topo_source *source,
                                            struct mc_topo **out);
void mc_topo_free(struct mc_topo *topo);

/* By name, interface or PCI address; NULL when there is none. */
const struct mc_topo_device *mc_topo_find(const struct mc_topo *topo, const char *name);

/* ---- how near ---- */

enum mc_topo_near {
    MC_TOPO_SAME,    /* the device itself; for memory of the host: its own NUMA node */
    MC_TOPO_SWITCH,  /* below one PCI bridge: traffic stays off the root complex */
    MC_TOPO_ROOT,    /* below one root complex */
    MC_TOPO_NODE,    /* one NUMA node */
    MC_TOPO_SYSTEM,  /* another NUMA node */
    MC_TOPO_UNKNOWN, /* a NUMA node is not known */
};
/* *hops, if not NULL: PCI bridges on the way (SWITCH and ROOT), or the firmware's distance of the
 * nodes (NODE and SYSTEM); smaller is nearer within a class. */
enum mc_topo_near mc_topo_nearness(const struct mc_topo *topo, const struct mc_topo_device *a,
                                   const struct mc_topo_device *b, uint32_t *hops);
/* From a device to memory at a location: "cpu:N" (NUMA node N) or the name of a GPU. "*" and what
 * is not known are MC_TOPO_UNKNOWN. */
enum mc_topo_near mc_topo_nearness_to(const struct mc_topo *topo,
                                      const struct mc_topo_device *device, const char *location,
                                      uint32_t *hops);
const char *mc_topo_near_name(enum mc_topo_near near); /* "switch" */
/* An estimate of how much longer a move takes by that way, in per cent. */
uint32_t mc_topo_penalty(enum mc_topo_near near, uint32_t hops);

/* ---- the priority matrix ---- */

/* {"cpu:0": [["mlx5_0"], ["mlx5_1"]], ...}: for memory at a location the cards to use, and those to
 * use when none of them can. */
struct mc_topo_entry {
    char location[MC_TOPO_NAME_MAX];
    size_t count[2]; /* of preferred, available */
    char (*names[2])[MC_TOPO_NAME_MAX];
};
struct mc_topo_matrix {
    size_t count;
    struct mc_topo_entry *entries; /* by location */
};

/* Names of network cards, separated by commas; NULL or "" = no list. As upstream's: when `only` is
 * given, `except` does not count. */
struct mc_topo_filters {
    const char *only;   /* MC_TE_FILTERS, MC_MS_FILTERS */
    const char *except; /* MC_TE_FILTERS_EXCLUDE */
};
bool mc_topo_filters_allow(const struct mc_topo_filters *filters, const char *name);

/* RDMA cards with a link that pass the filters, for each NUMA node and GPU. Of a node are preferred
 * those at it, of a GPU those nearest to it. */
struct mc_topo_matrix *mc_topo_matrix_make(const struct mc_topo *topo,
                                           const struct mc_topo_filters *filters);
/* Upstream's JSON. On MC_INVALID_PARAMS `error` says what is wrong and where. Limits: 4096
 * locations, 256 cards in a list, names below 64 bytes. */
MC_MUST_USE enum mc_status mc_topo_matrix_parse(struct mc_str json, struct mc_topo_matrix **out,
                                                struct mc_buf *error);
/* Of a file of at most 1 MiB; `error` begins with its path. */
MC_MUST_USE enum mc_status mc_topo_matrix_read(const char *path, struct mc_topo_matrix **out,
                                               struct mc_buf *error);
void mc_topo_matrix_print(const struct mc_topo_matrix *matrix, bool pretty, struct mc_buf *out);
/* 0 preferred, 1 available, -1 not at all. A location that the matrix does not have (so "*") can
 * use every card that it names anywhere: 1. */
int mc_topo_matrix_rank(const struct mc_topo_matrix *matrix, const char *location,
                        const char *name);
void mc_topo_matrix_free(struct mc_topo_matrix *matrix);

#endif
