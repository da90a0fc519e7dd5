/*
 * What the rdma transport needs of a verbs library, and nothing more: devices, memory regions,
 * completion queues, connected queue pairs, events.
 *
 * The transport is compiled into every program; libibverbs is not. It is reached through this table
 * of functions, which the module transport-rdma.so (rdma_verbs.c) fills and a test may fill
 * otherwise. The two sides are built together: the table's version and size must match exactly.
 *
 * Functions that return int give 0 or a positive errno value. Objects are destroyed in the reverse
 * order of their making. Queue pairs and completion queues may be used from any thread, several at
 * a time; destroying is for one.
 */
#ifndef MC_TE_TRANSPORT_RDMA_PROVIDER_H
#define MC_TE_TRANSPORT_RDMA_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDMA_PROVIDER_VERSION 2
#define RDMA_PROVIDER_SYMBOL  "mc_rdma_provider"
#define RDMA_NAME_MAX         64
#define RDMA_GIDS_MAX         256

struct rdma_device; /* the provider's */
struct rdma_region;
struct rdma_cq;
struct rdma_qp;

struct rdma_port_info {
    bool active;
    bool ethernet;
    bool soft_roce; /* Linux's own, in software */
    uint16_t lid;
    uint32_t mtu;         /* bytes, now */
    uint64_t max_region;  /* bytes that one region may have */
    uint64_t max_message; /* bytes of one work request */
    uint32_t max_qp;
    uint32_t max_qp_wr;
    uint32_t max_cqe;
    uint32_t max_reads;     /* RDMA READs in flight on a queue pair, either side */
    int32_t numa_node;      /* -1 = unknown */
    uint64_t bits_a_second; /* nominal */
    char pci[16];           /* "0000:3b:00.0"; "" = unknown */
};

enum rdma_gid_type { RDMA_GID_IB = 0, RDMA_GID_ROCE_V1 = 1, RDMA_GID_ROCE_V2 = 2 };
struct rdma_gid {
    uint8_t raw[16];
    uint32_t index;
    enum rdma_gid_type type;
};

enum rdma_access {
    RDMA_ACCESS_REMOTE = 1,  /* peers may read and write */
    RDMA_ACCESS_RELAXED = 2, /* relaxed ordering on the bus, where the device knows it */
};

struct rdma_qp_limits {
    uint32_t send_wrs;
    uint32_t inline_bytes; /* in: wanted; out: had */
};

struct rdma_path { /* from a local queue pair to a remote one */
    uint8_t local_port;
    uint32_t gid_index;
    uint8_t gid[16]; /* the remote's */
    uint16_t lid;    /* the remote's */
    bool global;     /* use the GID: always on Ethernet */
    uint32_t qp_num; /* the remote's */
    uint32_t mtu;    /* bytes: 256 .. 4096 */
    uint16_t pkey_index;
    uint8_t traffic_class, service_level;
    uint8_t timeout;     /* 4.096 us << timeout a try */
    uint8_t retry_count; /* 0 .. 7 */
    uint8_t reads;       /* max_rd_atomic, both ways */
};

struct rdma_wr {
    uint64_t id;
    uint64_t local;
    uint64_t remote;
    uint32_t length;
    uint32_t lkey;
    uint32_t rkey;
    bool write;
    bool inlined; /* the bytes are copied at once; lkey is not looked at */
};

enum rdma_wc_status {
    RDMA_WC_OK,
    RDMA_WC_FLUSHED,       /* the queue pair had failed, or was made to */
    RDMA_WC_UNREACHABLE,   /* no answer after all retries */
    RDMA_WC_REMOTE_DENIED, /* the peer's NIC refused: key, range or right */
    RDMA_WC_LOCAL,         /* local key, range or length */
    RDMA_WC_OTHER,
};
struct rdma_wc {
    uint64_t id;
    uint32_t qp_num;
    enum rdma_wc_status status;
    uint32_t vendor; /* for the log: libibverbs' status << 16 | the vendor's error */
};

enum rdma_event {
    RDMA_EVENT_NONE,
    RDMA_EVENT_PORT_DOWN,
    RDMA_EVENT_PORT_UP,
    RDMA_EVENT_GID_CHANGE,
    RDMA_EVENT_DEVICE_FATAL,
    RDMA_EVENT_QP, /* one queue pair failed: its completions say so too */
    RDMA_EVENT_OTHER,
};

struct rdma_provider {
    uint32_t version;
    uint32_t size; /* of this struct */
    const char *name;
    /* Names of the devices; writes at most `capacity`, returns how many there are. */
    size_t (*list)(char (*names)[RDMA_NAME_MAX], size_t capacity);
    int (*open)(const char *name, uint8_t port, struct rdma_device **out);
    void (*close)(struct rdma_device *device);
    int (*query)(struct rdma_device *device, struct rdma_port_info *info);
    size_t (*gids)(struct rdma_device *device, struct rdma_gid *gids, size_t capacity);

    int (*region_create)(struct rdma_device *device, uint64_t addr, uint64_t length,
                         unsigned access, struct rdma_region **out, uint32_t *lkey, uint32_t *rkey);
    /* Device memory by a dma-buf descriptor; ENOTSUP when the library or the kernel cannot. */
    int (*region_create_dmabuf)(struct rdma_device *device, int fd, uint64_t offset, uint64_t addr,
                                uint64_t length, unsigned access, struct rdma_region **out,
                                uint32_t *lkey, uint32_t *rkey);
    int (*region_destroy)(struct rdma_region *region);

    int (*cq_create)(struct rdma_device *device, uint32_t depth, struct rdma_cq **out);
    void (*cq_destroy)(struct rdma_cq *cq);
    int (*cq_fd)(struct rdma_cq *cq); /* readable after cq_arm() when a completion came */
    int (*cq_arm)(struct rdma_cq *cq);
    void (*cq_ack)(struct rdma_cq *cq); /* takes events off the descriptor; does not wait */
    int (*cq_poll)(struct rdma_cq *cq, struct rdma_wc *wcs, int capacity); /* count, or negative */

    int (*qp_create)(struct rdma_device *device, struct rdma_cq *cq, struct rdma_qp_limits *limits,
                     struct rdma_qp **out, uint32_t *number);
    /* From any state to ready to send. */
    int (*qp_connect)(struct rdma_qp *qp, const struct rdma_path *path);
    /* To the error state: what is in flight comes back flushed. */
    int (*qp_fail)(struct rdma_qp *qp);
    void (*qp_destroy)(struct rdma_qp *qp);
    /* Posts in order, each signalled; *posted were taken, also on an error. */
    int (*qp_post)(struct rdma_qp *qp, const struct rdma_wr *wrs, size_t count, size_t *posted);

    int (*event_fd)(struct rdma_device *device);
    enum rdma_event (*event_next)(struct rdma_device *device); /* does not wait */
};

typedef const struct rdma_provider *(*rdma_provider_fn)(void);

#endif
