/*
 * The segment descriptor: what an engine tells its peers about itself, as upstream's JSON.
 *
 * `protocol`, `name`, `buffers`, `tcp_data_port`, `tcp_proto_version`, `timestamp`, and of
 * engines with RDMA `devices`, `priority_matrix` and the buffers' `rkey` and `lkey` are upstream's;
 * what we add rides in one extra member "mooncake_c", which upstream ignores and which is absent in
 * its descriptors. Decoding bounds everything before it allocates and accepts only what can be
 * used: a buffer with an empty name, a zero address or length, or a range that wraps makes the
 * whole descriptor invalid, as upstream has it.
 */
#ifndef MC_WIRE_SEGMENT_DESC_H
#define MC_WIRE_SEGMENT_DESC_H

#include "base/base.h"

#define MC_SEGMENT_NAME_MAX    280 /* with the NUL */
#define MC_SEGMENT_BUFFERS_MAX 65536

struct mc_segment_desc_buffer {
    uint64_t addr;
    uint64_t length;
    char location[64];
    int32_t shm_slot;  /* ours; -1 = none */
    bool shm_mappable; /* ours */
    bool on_device;    /* memory of an accelerator; of upstream's engines by its location */
};

/* What an engine with RDMA NICs says of them. Devices and the keys of each registered range, one
 * key a device, in the order of the devices. A range larger than a NIC registers at once is several
 * entries of "buffers"; "mooncake_c" names those that continue the one before, and decoding joins
 * them again: `keys` then has a finer cut than the descriptor's buffers. */
#define MC_RDMA_DEVICES_MAX 64
struct mc_rdma_device_desc {
    char name[64];
    uint16_t lid;
    uint8_t gid[16];
};
struct mc_rdma_keys_desc {
    uint64_t addr;
    uint64_t length;
    size_t first; /* of device_count entries of `rkeys` */
};
struct mc_rdma_desc {
    char server_name[MC_SEGMENT_NAME_MAX]; /* of NIC paths; "" = the segment's name */
    size_t device_count;
    struct mc_rdma_device_desc *devices;
    char *priority_matrix; /* JSON text; NULL = none */
    size_t key_count;
    struct mc_rdma_keys_desc *keys; /* sorted by address */
    uint32_t *rkeys;
};
void mc_rdma_desc_free(struct mc_rdma_desc *rdma); /* NULL is allowed */
/* The entry that holds addr, or NULL. */
const struct mc_rdma_keys_desc *mc_rdma_desc_find(const struct mc_rdma_desc *rdma, uint64_t addr);

struct mc_segment_desc {
    char name[MC_SEGMENT_NAME_MAX];
    char protocol[32];        /* "tcp"; of an array of protocols the first */
    char timestamp[40];       /* "YYYY-MM-DD HH:MM:SS.uuuuuu", local time */
    char tcp_data_host[256];  /* where tcp connects to (0.3.13 and later); "" = host of the name */
    uint16_t tcp_data_port;   /* 0 = the engine serves no tcp */
    unsigned tcp_proto;       /* 1 when absent */
    struct mc_uuid engine_id; /* ours; {0,0} of upstream's engines */
    char boot_id[40];         /* ours; "" */
    int32_t pid;              /* ours; 0 */
    char shm_socket[64];      /* ours; "" */
    bool tls;                 /* ours: handshake and data port speak TLS too, or only */
    size_t buffer_count;
    struct mc_segment_desc_buffer *buffers;
    struct mc_rdma_desc *rdma;     /* decoding only; NULL = none */
    struct mc_fabric_desc *fabric; /* the same; wire/segment_desc_fabric.h */
};

/* A new jansson object, to which transports add what they have to say ("mooncake_c" is a member
 * object). */
void *mc_segment_desc_json(const struct mc_segment_desc *desc);
/* Appends it as compact JSON with another `protocol`; keeps it. False: that is its protocol anyway.
 */
bool mc_segment_desc_print_as(void *json, const char *protocol, struct mc_buf *out);
/* Whether the descriptor is of an upstream engine that speaks only tcp. Such an engine goes by the
 * `protocol` of its peer, which names one. */
bool mc_segment_desc_wants_tcp(struct mc_str json);
/* Appends it as compact JSON and frees it. */
void mc_segment_desc_finish(void *json, struct mc_buf *out);
/* MC_ERR_PROTOCOL (logged at debug level with the reason) unless the whole text is one usable
 * descriptor. Buffers come out sorted by address. On success free with mc_segment_desc_free. */
MC_MUST_USE enum mc_status mc_segment_desc_decode(struct mc_str json, struct mc_segment_desc *desc);
void mc_segment_desc_free(struct mc_segment_desc *desc);

/* The value of `timestamp` for now. */
void mc_segment_desc_timestamp(char out[40]);

#endif
