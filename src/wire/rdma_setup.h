/*
 * The body of a Connection handshake (type 0): how two engines tell each other the queue pairs of
 * an RDMA endpoint. Upstream's JSON; what is ours rides in the member "mooncake_c", which upstream
 * ignores and its messages do not have.
 *
 *   {"local_nic_path": "<server>@<nic>", "peer_nic_path": ..., "local_lid": 0,
 *    "local_gid": "00:..:ff:0a:09:00:01", "qp_num": [..], "reply_msg": "", "payload": "",
 *    "ready_ack": false, "mooncake_c": {"engine_id": [hex, hex], "peer_id": [hex, hex],
 *    "generation": n, "answers": n, "mtu": bytes, "close": false}}
 *
 * "local" is the sender in requests and in answers. An answer with a reply_msg is a rejection. The
 * format has no version: members that are absent have the defaults below.
 */
#ifndef MC_WIRE_RDMA_SETUP_H
#define MC_WIRE_RDMA_SETUP_H

#include "base/base.h"

#define MC_RDMA_QPS_MAX   255 /* a side of an endpoint; upstream's bound of MC_NUM_QP_PER_EP */
#define MC_RDMA_PATH_MAX  352 /* segment name, '@', NIC name, NUL */
#define MC_RDMA_NIC_MAX   64
#define MC_RDMA_REPLY_MAX 256
#define MC_RDMA_GID_TEXT  48 /* 16 bytes as "xx:..:xx" */

struct mc_rdma_setup {
    char local_path[MC_RDMA_PATH_MAX];
    char peer_path[MC_RDMA_PATH_MAX];
    uint16_t local_lid;
    uint8_t local_gid[16]; /* zero when the text is empty: of rejections */
    uint32_t qp_count;
    uint32_t qp_num[MC_RDMA_QPS_MAX];
    bool ready_ack; /* the sender's queue pairs are ready; sent after an answer */
    char reply_msg[MC_RDMA_REPLY_MAX]; /* cut when longer */
    /* ours; engine_id {0,0} = the sender is upstream's */
    struct mc_uuid engine_id;
    struct mc_uuid peer_id; /* whom the sender means; {0,0} = anybody */
    uint64_t generation;    /* of the sender's endpoint: grows with each that an engine makes */
    uint64_t answers;       /* in answers: the generation of the request */
    uint32_t mtu;           /* bytes; 0 = not said */
    bool close;             /* the sender is about to give these queue pairs up */
};

void mc_rdma_setup_encode(const struct mc_rdma_setup *setup, struct mc_buf *out);
/* MC_ERR_PROTOCOL unless the text is such an object with members of the right types and sizes. */
MC_MUST_USE enum mc_status mc_rdma_setup_decode(struct mc_str json, struct mc_rdma_setup *out);

/* "00:00:..:01" <-> 16 bytes. Parsing accepts one or two hexadecimal digits a byte. */
void mc_rdma_gid_format(const uint8_t gid[16], char out[MC_RDMA_GID_TEXT]);
MC_MUST_USE enum mc_status mc_rdma_gid_parse(const char *text, uint8_t gid[16]);

/* Cuts "<server>@<nic>" at the last '@'; MC_ERR_PROTOCOL when a part is empty or too long. `server`
 * holds MC_RDMA_PATH_MAX. */
MC_MUST_USE enum mc_status mc_rdma_path_split(const char *path, char *server,
                                              char nic[MC_RDMA_NIC_MAX]);

#endif
